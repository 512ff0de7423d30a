//! Systems for lying nodes: thresholds with a large overlap, and grids of several rows and columns
//! (the M-Grid of Malkhi, Reiter and Wool).
//!
//! | rule | any two quorums share | some quorum avoids any |
//! |---|---|---|
//! | masking | `2b+1` nodes | `b` nodes |
//! | mutex (backoff mutual exclusion) | `3b+1` | `b` |
//! | ordering (backoff ordering) | `2b+1` | `2b` |
//! | free (leases by the FREE rule) | `b+1` | `b` |

use std::ops::ControlFlow;

use thiserror::Error;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::formula::{Formula, FormulaError};
use super::{SizeError, check_nodes};

/// Row sets that are tried one by one in search of the cheapest quorum.
const ROW_SETS_MAX: f64 = 5_000.0;

/// What a system for lying nodes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Reads that outvote liars: overlap `2b+1`.
    Masking,
    /// Backoff mutual exclusion as published: overlap `3b+1`.
    Mutex,
    /// Backoff ordering of operations: overlap `2b+1`, with `2b` nodes to spare.
    Ordering,
    /// Leases granted by a quorum of free answers: overlap `b+1`.
    Free,
}

impl Rule {
    /// How many nodes any two quorums must share; `None` past the range of numbers.
    pub fn overlap(self, faults: usize) -> Option<usize> {
        let times = match self {
            Self::Masking | Self::Ordering => 2,
            Self::Mutex => 3,
            Self::Free => 1,
        };
        faults.checked_mul(times)?.checked_add(1)
    }

    /// How many nodes a quorum must be able to avoid; `None` past the range of numbers.
    pub fn spared(self, faults: usize) -> Option<usize> {
        match self {
            Self::Ordering => faults.checked_mul(2),
            Self::Masking | Self::Mutex | Self::Free => Some(faults),
        }
    }

    /// The name used in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Masking => "masking",
            Self::Mutex => "mutex",
            Self::Ordering => "ordering",
            Self::Free => "free",
        }
    }
}

/// Why a system for lying nodes cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MaskingError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A vote that cannot be built.
    #[error(transparent)]
    Formula(#[from] FormulaError),
    /// Too few nodes for so many liars.
    #[error(
        "{nodes} nodes cannot tolerate b={faults} lying nodes under the {rule} rule: use at \
         least {least} nodes, or at most b={most}"
    )]
    TooManyFaults {
        /// The nodes given.
        nodes: usize,
        /// The liars asked for.
        faults: usize,
        /// The rule's name.
        rule: &'static str,
        /// How many nodes would do.
        least: usize,
        /// How many liars these nodes can take.
        most: usize,
    },
    /// A grid too small for so many liars.
    #[error(
        "a grid of {nodes} nodes cannot tolerate b={faults} lying nodes under the {rule} rule: \
         use a larger square number of nodes, or {rule}({nodes}, b={faults}) if that is possible"
    )]
    SmallGrid {
        /// The nodes given.
        nodes: usize,
        /// The liars asked for.
        faults: usize,
        /// The rule's name.
        rule: &'static str,
    },
}

/// The size of the threshold quorums for `faults` liars among `nodes` nodes.
pub fn threshold_size(nodes: usize, faults: usize, rule: Rule) -> Option<usize> {
    let size = nodes.checked_add(rule.overlap(faults)?)?.div_ceil(2);
    let spared = rule.spared(faults)?;
    (size.checked_add(spared)? <= nodes).then_some(size)
}

/// The threshold system for `faults` liars among `nodes` nodes.
pub fn threshold(nodes: usize, faults: usize, rule: Rule) -> Result<Formula, MaskingError> {
    check_nodes(nodes)?;
    let Some(size) = threshold_size(nodes, faults, rule) else {
        let fits = |nodes: &usize| threshold_size(*nodes, faults, rule).is_some();
        return Err(MaskingError::TooManyFaults {
            nodes,
            faults,
            rule: rule.name(),
            least: (nodes..nodes.saturating_mul(8).saturating_add(64))
                .find(fits)
                .unwrap_or_else(|| faults.saturating_mul(8).saturating_add(1)),
            most: (0..faults.min(nodes))
                .rev()
                .find(|faults| threshold_size(nodes, *faults, rule).is_some())
                .unwrap_or(0),
        });
    };
    Ok(Formula::threshold(nodes, size)?)
}

/// A square grid whose quorums are several full rows and as many full columns. Nodes past the
/// largest square are in no quorum.
#[derive(Clone, Debug)]
pub struct Mgrid {
    nodes: usize,
    side: usize,
    lines: usize,
}

impl Mgrid {
    /// The grid with the fewest rows and columns per quorum that do for `faults` liars.
    pub fn new(nodes: usize, faults: usize, rule: Rule) -> Result<Self, MaskingError> {
        check_nodes(nodes)?;
        let side = nodes.isqrt();
        let lines = (1..=side).find(|lines| {
            let grid = Self {
                nodes,
                side,
                lines: *lines,
            };
            rule.overlap(faults)
                .is_some_and(|overlap| grid.overlap() >= overlap)
                && rule
                    .spared(faults)
                    .is_some_and(|spared| spared <= side - lines)
        });
        let refusal = MaskingError::SmallGrid {
            nodes,
            faults,
            rule: rule.name(),
        };
        let lines = lines.ok_or(refusal)?;
        Ok(Self { nodes, side, lines })
    }

    /// The side of the grid.
    pub fn side(&self) -> usize {
        self.side
    }

    /// How many rows, and how many columns, make a quorum.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// The fewest nodes that two quorums share.
    pub fn overlap(&self) -> usize {
        // Rows (and columns) in both quorums, when they share as few as they can.
        let shared = (2 * self.lines).saturating_sub(self.side);
        let single = self.lines - shared;
        let neither = self.side - 2 * single - shared;
        shared * self.side + 2 * single * self.lines + neither * shared
    }

    fn quorum(&self, rows: &[usize], cols: &[usize]) -> NodeSet {
        let side = self.side;
        let in_rows = rows.iter().flat_map(|row| row * side..(row + 1) * side);
        let in_cols = cols
            .iter()
            .flat_map(|col| (0..side).map(move |row| row * side + col));
        NodeSet::of(self.nodes, in_rows.chain(in_cols))
    }

    fn row_sets(&self) -> f64 {
        (0..self.lines).fold(1.0, |count, chosen| {
            count * (self.side - chosen) as f64 / (chosen + 1) as f64
        })
    }

    /// The columns that add least to these rows, and the cost of all.
    fn best_cols(&self, rows: &[usize], cost: &[f64]) -> (f64, Vec<usize>) {
        let side = self.side;
        let held: f64 = rows
            .iter()
            .map(|row| cost[row * side..(row + 1) * side].iter().sum::<f64>())
            .sum();
        let mut cols: Vec<(f64, usize)> = (0..side)
            .map(|col| {
                let added = (0..side).filter(|row| !rows.contains(row));
                (added.map(|row| cost[row * side + col]).sum(), col)
            })
            .collect();
        cols.sort_by(|a, b| a.0.total_cmp(&b.0));
        cols.truncate(self.lines);
        let total = held + cols.iter().map(|(added, _)| added).sum::<f64>();
        (total, cols.into_iter().map(|(_, col)| col).collect())
    }

    /// The best rows of a few starts, each improved by exchanging rows one at a time.
    fn improved_rows(&self, cost: &[f64]) -> Vec<usize> {
        let side = self.side;
        let price = |row: &usize| -> f64 { cost[row * side..(row + 1) * side].iter().sum() };
        let mut rows: Vec<usize> = (0..side).collect();
        rows.sort_by(|a, b| price(a).total_cmp(&price(b)));
        rows.truncate(self.lines);
        let mut best = self.best_cols(&rows, cost).0;
        let mut better = true;
        while better {
            better = false;
            for place in 0..self.lines {
                for row in (0..side).filter(|row| price(row).is_finite()) {
                    if rows.contains(&row) {
                        continue;
                    }
                    let before = std::mem::replace(&mut rows[place], row);
                    let total = self.best_cols(&rows, cost).0;
                    if total < best {
                        best = total;
                        better = true;
                    } else {
                        rows[place] = before;
                    }
                }
            }
        }
        rows
    }
}

/// Calls `visit` with every set of `count` out of `0..of`, ascending.
fn combinations(
    of: usize,
    count: usize,
    visit: &mut dyn FnMut(&[usize]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut chosen: Vec<usize> = (0..count).collect();
    loop {
        visit(&chosen)?;
        let Some(place) = (0..count)
            .rev()
            .find(|place| chosen[*place] < of - count + place)
        else {
            return ControlFlow::Continue(());
        };
        chosen[place] += 1;
        for after in place + 1..count {
            chosen[after] = chosen[after - 1] + 1;
        }
    }
}

impl Family for Mgrid {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let side = self.side;
        let full_row = |row: &usize| (row * side..(row + 1) * side).all(|node| set.contains(node));
        let full_col = |col: &usize| (0..side).all(|row| set.contains(row * side + col));
        (0..side).filter(full_row).nth(self.lines - 1).is_some()
            && (0..side).filter(full_col).nth(self.lines - 1).is_some()
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best: Option<(f64, Vec<usize>)> = None;
        if self.cheapest_is_exact() {
            let _ = combinations(self.side, self.lines, &mut |rows| {
                let total = self.best_cols(rows, cost).0;
                if total < best.as_ref().map_or(f64::INFINITY, |(least, _)| *least) {
                    best = Some((total, rows.to_vec()));
                }
                ControlFlow::Continue(())
            });
        } else {
            let rows = self.improved_rows(cost);
            best = Some((self.best_cols(&rows, cost).0, rows));
        }
        let (total, rows) = best?;
        let cols = self.best_cols(&rows, cost).1;
        total.is_finite().then(|| self.quorum(&rows, &cols))
    }

    fn cheapest_is_exact(&self) -> bool {
        self.row_sets() <= ROW_SETS_MAX
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut lines = || {
            let mut all: Vec<usize> = (0..self.side).collect();
            rng.shuffle(&mut all);
            all.truncate(self.lines);
            all
        };
        let (rows, cols) = (lines(), lines());
        self.quorum(&rows, &cols)
    }

    fn sizes(&self) -> Sizes {
        let size = 2 * self.lines * self.side - self.lines * self.lines;
        Sizes::exact(size, size)
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        (site < self.side * self.side).then(|| {
            let from = |start: usize| -> Vec<usize> {
                (0..self.lines)
                    .map(|ahead| (start + ahead) % self.side)
                    .collect()
            };
            self.quorum(&from(site / self.side), &from(site % self.side))
        })
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        if self.lines == self.side {
            return Some(visit(&NodeSet::of(self.nodes, 0..self.side * self.side)));
        }
        Some(combinations(self.side, self.lines, &mut |rows| {
            let rows = rows.to_vec();
            combinations(self.side, self.lines, &mut |cols| {
                visit(&self.quorum(&rows, cols))
            })
        }))
    }

    fn count(&self) -> Option<f64> {
        Some(self.row_sets() * self.row_sets())
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        if odds.iter().any(|each| *each != odds[0]) {
            return None;
        }
        let Odds { up, down } = odds[0];
        let side = self.side;
        let mut terms = vec![vec![1.0]];
        for n in 0..side {
            let last: &Vec<f64> = &terms[n];
            let at = |k: usize| last.get(k).copied().unwrap_or(0.0);
            let next = (0..=n + 1)
                .map(|k| at(k) * down + if k > 0 { at(k - 1) * up } else { 0.0 })
                .collect();
            terms.push(next);
        }
        let any = |n: usize| (up + down).powi(n as i32);
        // whole[rows][k]: weight of `rows` full rows (capped) and k whole columns so far.
        let mut whole = vec![vec![0.0; side + 1]; self.lines + 1];
        whole[0][side] = 1.0;
        for _ in 0..side {
            let mut next = vec![vec![0.0; side + 1]; self.lines + 1];
            for (rows, by) in whole.iter().enumerate() {
                for (k, weight) in by.iter().enumerate() {
                    let rest = side - k;
                    for left in 0..k {
                        next[rows][left] += weight * terms[k][left] * any(rest);
                    }
                    next[rows][k] += weight * terms[k][k] * terms[rest][..rest].iter().sum::<f64>();
                    next[(rows + 1).min(self.lines)][k] += weight * terms[side][side];
                }
            }
            whole = next;
        }
        let live: f64 = whole[self.lines][self.lines..].iter().sum();
        let dead: f64 = whole[self.lines][..self.lines].iter().sum::<f64>()
            + whole[..self.lines].iter().flatten().sum::<f64>();
        let spares = any(self.nodes - side * side);
        Some(Mass {
            live: live * spares,
            dead: dead * spares,
        })
    }

    fn circuit(&self) -> Option<Circuit> {
        let side = self.side;
        let mut circuit = Circuit::new(self.nodes);
        let gates: Vec<_> = (0..side * side).map(|node| circuit.node(node)).collect();
        let rows: Vec<_> = gates
            .chunks(side)
            .map(|row| circuit.all(row.iter().copied()))
            .collect();
        let cols: Vec<_> = (0..side)
            .map(|col| circuit.all((0..side).map(|row| gates[row * side + col])))
            .collect();
        let rows = circuit.at_least(self.lines as u64, rows);
        let cols = circuit.at_least(self.lines as u64, cols);
        circuit.all([rows, cols]);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if capacity.iter().any(|c| *c != capacity[0]) {
            return None;
        }
        let cells = self.side * self.side;
        let (mut loads, mut weights) = (vec![0.0; self.nodes], vec![0.0; self.nodes]);
        loads[..cells].fill(self.sizes().min as f64 / cells as f64);
        weights[..cells].fill(1.0);
        Some(LoadPlan { loads, weights })
    }

    fn transversal(&self) -> Option<usize> {
        Some(self.side - self.lines + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::twin;
    use crate::family::list;

    /// Nodes, liars, then the sizes for free, mutex and ordering (0: impossible).
    const SIZES: [(usize, usize, usize, usize, usize); 16] = [
        (4, 1, 3, 0, 0),
        (5, 1, 4, 0, 0),
        (6, 1, 4, 5, 0),
        (7, 1, 5, 6, 5),
        (8, 1, 5, 6, 6),
        (9, 1, 6, 7, 6),
        (10, 1, 6, 7, 7),
        (7, 2, 5, 0, 0),
        (9, 2, 6, 0, 0),
        (11, 2, 7, 9, 0),
        (12, 2, 8, 10, 0),
        (13, 2, 8, 10, 9),
        (15, 2, 9, 11, 10),
        (16, 3, 10, 13, 0),
        (19, 3, 12, 15, 13),
        (22, 3, 13, 16, 15),
    ];

    #[test]
    fn threshold_sizes_are_the_published_ones() {
        for (nodes, faults, free, mutex, ordering) in SIZES {
            for (rule, size) in [
                (Rule::Free, free),
                (Rule::Mutex, mutex),
                (Rule::Ordering, ordering),
            ] {
                let expected = (size > 0).then_some(size);
                assert_eq!(
                    threshold_size(nodes, faults, rule),
                    expected,
                    "{nodes} {faults} {rule:?}"
                );
            }
            assert_eq!(
                threshold_size(nodes, faults, Rule::Masking).is_some(),
                nodes > 4 * faults
            );
        }
    }

    /// Backoff paper, section 4: mutex needs n > 5b and ordering n > 6b; leases need n > 3b.
    #[test]
    fn feasible_exactly_above_the_bounds() {
        for faults in 1..6 {
            for nodes in 1..60 {
                let fits = |rule| threshold_size(nodes, faults, rule).is_some();
                assert_eq!(fits(Rule::Mutex), nodes > 5 * faults, "{nodes} {faults}");
                assert_eq!(fits(Rule::Ordering), nodes > 6 * faults, "{nodes} {faults}");
                assert_eq!(fits(Rule::Free), nodes > 3 * faults, "{nodes} {faults}");
            }
        }
    }

    #[test]
    fn refusals_say_what_would_do() {
        let error = threshold(4, 1, Rule::Masking).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("at least 5 nodes, or at most b=0"),
            "{error}"
        );
        assert!(threshold(7, usize::MAX, Rule::Mutex).is_err());
        assert!(matches!(
            Mgrid::new(9, 2, Rule::Mutex),
            Err(MaskingError::SmallGrid { .. })
        ));
    }

    #[test]
    fn grids_agree_with_their_brute_force_twin_and_overlap_as_stated() {
        for (nodes, faults, rule) in [
            (4, 0, Rule::Masking),
            (9, 1, Rule::Free),
            (10, 1, Rule::Free),
            (9, 1, Rule::Masking),
            (11, 0, Rule::Ordering),
        ] {
            twin::check_coterie(
                &format!("mgrid({nodes},{faults})"),
                &Mgrid::new(nodes, faults, rule).unwrap(),
            );
        }
        for side in 2..=6 {
            for lines in 1..=side {
                let grid = Mgrid {
                    nodes: side * side,
                    side,
                    lines,
                };
                let quorums = list(&grid, 1000).unwrap();
                let least = quorums
                    .iter()
                    .flat_map(|a| quorums.iter().map(|b| a.common(b)))
                    .min();
                assert_eq!(least, Some(grid.overlap()), "{side} {lines}");
            }
        }
    }

    #[test]
    fn grid_sizes_beside_thresholds() {
        for (nodes, size, beside) in [(25, 16, 16), (49, 24, 28), (100, 36, 54)] {
            assert_eq!(Mgrid::new(nodes, 2, Rule::Mutex).unwrap().sizes().min, size);
            assert_eq!(threshold_size(nodes, 2, Rule::Mutex), Some(beside));
        }
    }

    #[test]
    fn the_search_finds_a_quorum_where_it_is_not_exact() {
        let grid = Mgrid {
            nodes: 900,
            side: 30,
            lines: 5,
        };
        assert!(!grid.cheapest_is_exact());
        let mut prng = Prng::new(4);
        let mut cost: Vec<f64> = (0..900).map(|_| 1.0 + prng.unit()).collect();
        for row in 0..25 {
            cost[row * 31] = f64::INFINITY;
        }
        let quorum = grid.cheapest(&cost).unwrap();
        assert!(grid.contains_quorum(&quorum) && quorum.len() == grid.sizes().min);
        cost[26 * 31] = f64::INFINITY;
        assert_eq!(grid.cheapest(&cost), None);
    }
}
