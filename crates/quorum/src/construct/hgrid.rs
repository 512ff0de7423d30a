//! Hierarchical grids (Kumar and Cheung): grids of grids.
//!
//! At each level a part is a grid of smaller parts. A part is *lined* if some row of it is lined
//! in every place, and *covered* if every row of it is covered in some place; a node is both if it
//! is in the set. A quorum makes the whole both lined and covered. A line of one quorum and a
//! cover of another meet at every level in one part, and so in one node.

use std::ops::ControlFlow;

use thiserror::Error;

use crate::{Circuit, Family, GateId, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::{SizeError, check_nodes};

/// Why a hierarchical grid cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HgridError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// A hierarchical grid. `shape[0]` is the top level; nodes are numbered part by part, row by row.
#[derive(Clone, Debug)]
pub struct Hgrid {
    shape: Vec<(usize, usize)>,
    nodes: usize,
}

/// What a chosen set makes of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Line,
    Cover,
    Both,
}

/// The cost of making a part lined, covered, or both.
#[derive(Clone, Copy)]
struct Costs {
    line: f64,
    cover: f64,
    both: f64,
}

impl Costs {
    /// What it costs to make a lined part covered as well.
    fn extra(&self) -> f64 {
        if self.both.is_finite() {
            self.both - self.line
        } else {
            f64::INFINITY
        }
    }
}

/// The weights of a part being neither, only lined, only covered, and both.
type Joint = [f64; 4];

impl Hgrid {
    /// The hierarchy of grids with these (rows, columns), from the top.
    pub fn new(shape: &[(usize, usize)]) -> Result<Self, HgridError> {
        let nodes = shape
            .iter()
            .try_fold(1usize, |product, (rows, cols)| {
                product.checked_mul(*rows)?.checked_mul(*cols)
            })
            .unwrap_or(usize::MAX);
        check_nodes(nodes)?;
        Ok(Self {
            shape: shape.to_vec(),
            nodes,
        })
    }

    /// The levels' (rows, columns), from the top.
    pub fn shape(&self) -> &[(usize, usize)] {
        &self.shape
    }

    /// How many nodes a part of this level holds.
    pub fn part_nodes(&self, level: usize) -> usize {
        self.shape[level..]
            .iter()
            .map(|(rows, cols)| rows * cols)
            .product()
    }

    /// Works out one value per part from the nodes up; gives those of the level asked for.
    fn fold<T>(
        &self,
        level: usize,
        leaf: impl Fn(usize) -> T,
        part: impl Fn(&[T], usize) -> T,
    ) -> Vec<T> {
        let mut values: Vec<T> = (0..self.nodes).map(leaf).collect();
        for (rows, cols) in self.shape[level..].iter().rev() {
            values = values
                .chunks(rows * cols)
                .map(|children| part(children, *cols))
                .collect();
        }
        values
    }

    fn costs(&self, level: usize, cost: &[f64]) -> Vec<Costs> {
        let leaf = |node: usize| Costs {
            line: cost[node],
            cover: cost[node],
            both: cost[node],
        };
        self.fold(level, leaf, |children, cols| {
            let rows = children.chunks(cols);
            let lines: Vec<f64> = rows
                .clone()
                .map(|row| row.iter().map(|c| c.line).sum())
                .collect();
            let covers: Vec<f64> = rows
                .clone()
                .map(|row| least(row.iter().map(|c| c.cover)))
                .collect();
            let all_covers: f64 = covers.iter().sum();
            let both = rows.enumerate().map(|(place, row)| {
                if all_covers.is_infinite() {
                    return f64::INFINITY;
                }
                let cross = least(row.iter().map(Costs::extra));
                let others = all_covers - covers[place];
                lines[place] + cross + others
            });
            Costs {
                line: least(lines.iter().copied()),
                cover: all_covers,
                both: least(both),
            }
        })
    }

    /// Adds the cheapest nodes that make this part what is wanted.
    fn take(
        &self,
        level: usize,
        first: usize,
        want: Want,
        costs: &[Vec<Costs>],
        set: &mut NodeSet,
    ) {
        let Some((_, cols)) = self.shape.get(level) else {
            set.insert(first);
            return;
        };
        let step = self.part_nodes(level + 1);
        let below = &costs[level + 1];
        let child = |place: usize| &below[first / step + place];
        let places = self.part_nodes(level) / step;
        let rows = places / cols;
        let line_of =
            |row: usize| -> f64 { (0..*cols).map(|col| child(row * cols + col).line).sum() };
        let cover_at = |row: usize| argmin(*cols, |col| child(row * cols + col).cover);
        let cross_at = |row: usize| argmin(*cols, |col| child(row * cols + col).extra());
        let full = match want {
            Want::Line => Some(argmin(rows, line_of)),
            Want::Cover => None,
            Want::Both => Some(argmin(rows, |row| {
                let extra = child(row * cols + cross_at(row)).extra();
                line_of(row) + extra - child(row * cols + cover_at(row)).cover
            })),
        };
        for row in 0..rows {
            let cross = cross_at(row);
            let cover = cover_at(row);
            for col in 0..*cols {
                let want = match (full == Some(row), want) {
                    (true, Want::Both) if col == cross => Want::Both,
                    (true, _) => Want::Line,
                    (false, Want::Line) => continue,
                    (false, _) if col == cover => Want::Cover,
                    (false, _) => continue,
                };
                self.take(
                    level + 1,
                    first + (row * cols + col) * step,
                    want,
                    costs,
                    set,
                );
            }
        }
    }

    /// Adds random nodes that make this part what is wanted, every row and column alike.
    fn draw(&self, level: usize, first: usize, want: Want, rng: &mut Prng, set: &mut NodeSet) {
        let Some((rows, cols)) = self.shape.get(level).copied() else {
            set.insert(first);
            return;
        };
        let step = self.part_nodes(level + 1);
        let full = (want != Want::Cover).then(|| rng.below(rows));
        for row in 0..rows {
            let chosen = rng.below(cols);
            for col in 0..cols {
                let want = match (full == Some(row), want) {
                    (true, Want::Both) if col == chosen => Want::Both,
                    (true, _) => Want::Line,
                    (false, Want::Line) => continue,
                    (false, _) if col == chosen => Want::Cover,
                    (false, _) => continue,
                };
                self.draw(level + 1, first + (row * cols + col) * step, want, rng, set);
            }
        }
    }

    fn widths(&self) -> (usize, usize) {
        let rows = self.shape.iter().map(|(rows, _)| rows).product();
        let cols = self.shape.iter().map(|(_, cols)| cols).product();
        (rows, cols)
    }

    /// All minimal node sets that make a part lined or covered.
    fn all(&self, level: usize, first: usize, want: Want) -> Vec<Vec<usize>> {
        let Some((rows, cols)) = self.shape.get(level).copied() else {
            return vec![vec![first]];
        };
        let step = self.part_nodes(level + 1);
        let child =
            |row: usize, col: usize| self.all(level + 1, first + (row * cols + col) * step, want);
        if want == Want::Line {
            let line = |row| product((0..cols).map(|col| child(row, col)).collect());
            return (0..rows).flat_map(line).collect();
        }
        let cover = |row| (0..cols).flat_map(|col| child(row, col)).collect();
        product((0..rows).map(cover).collect())
    }

    fn counts(&self) -> (f64, f64) {
        self.shape
            .iter()
            .rev()
            .fold((1.0, 1.0), |(line, cover), (rows, cols)| {
                let (rows, cols) = (*rows as f64, *cols as f64);
                (rows * f64::powf(line, cols), f64::powf(cols * cover, rows))
            })
    }
}

fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

fn argmin(count: usize, value: impl Fn(usize) -> f64) -> usize {
    let better = |a: &usize, b: &usize| value(*a).total_cmp(&value(*b));
    (0..count).min_by(better).unwrap_or(0)
}

/// One of each choice, joined, in every way.
fn product(choices: Vec<Vec<Vec<usize>>>) -> Vec<Vec<usize>> {
    choices
        .into_iter()
        .fold(vec![Vec::new()], |joined, choice| {
            let join = |left: &Vec<usize>| -> Vec<Vec<usize>> {
                choice
                    .iter()
                    .map(|right| [left.as_slice(), right].concat())
                    .collect()
            };
            joined.iter().flat_map(join).collect()
        })
}

/// The joint weights of a part from those of its children.
fn join(children: &[Joint], cols: usize) -> Joint {
    // By whether some row is lined (bit 0) and every row is covered (bit 1).
    let mut part: Joint = [0.0, 0.0, 1.0, 0.0];
    for row in children.chunks(cols) {
        // By whether all places so far are lined (bit 0) and some is covered (bit 1).
        let mut state: Joint = [0.0, 1.0, 0.0, 0.0];
        for child in row {
            let mut next = [0.0; 4];
            for (before, weight) in state.iter().enumerate() {
                for (now, mass) in child.iter().enumerate() {
                    next[(before & now & 1) | ((before | now) & 2)] += weight * mass;
                }
            }
            state = next;
        }
        let mut next = [0.0; 4];
        for (before, weight) in part.iter().enumerate() {
            for (now, mass) in state.iter().enumerate() {
                next[((before | now) & 1) | (before & now & 2)] += weight * mass;
            }
        }
        part = next;
    }
    part
}

impl Family for Hgrid {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let leaf = |node: usize| (set.contains(node), set.contains(node));
        let whole = self.fold(0, leaf, |children: &[(bool, bool)], cols| {
            let mut rows = children.chunks(cols);
            let lined = rows.clone().any(|row| row.iter().all(|(lined, _)| *lined));
            let covered = rows.all(|row| row.iter().any(|(_, covered)| *covered));
            (lined, covered)
        });
        whole == [(true, true)]
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        // Nodes of no cost would make ties between a set and its supersets.
        let floor = cost
            .iter()
            .copied()
            .filter(|c| *c > 0.0)
            .fold(1.0, f64::min)
            * 1e-12;
        let cost: Vec<f64> = cost.iter().map(|c| c + floor / self.nodes as f64).collect();
        let costs: Vec<_> = (0..=self.shape.len())
            .map(|level| self.costs(level, &cost))
            .collect();
        if costs[0][0].both.is_infinite() {
            return None;
        }
        let mut set = NodeSet::new(self.nodes);
        self.take(0, 0, Want::Both, &costs, &mut set);
        Some(set)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut set = NodeSet::new(self.nodes);
        self.draw(0, 0, Want::Both, rng, &mut set);
        set
    }

    fn sizes(&self) -> Sizes {
        let (rows, cols) = self.widths();
        // A line and a cover may share more than one node, but never fewer; every minimal
        // quorum of a grid of single rows or columns is the whole line or cover.
        Sizes::exact(rows + cols - 1, rows + cols - 1)
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        let mut cost = vec![1.0; self.nodes];
        *cost.get_mut(site)? = 0.0;
        self.cheapest(&cost).filter(|quorum| quorum.contains(site))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let (lines, covers) = self.counts();
        if lines * covers > 2e6 {
            return None;
        }
        let lines = self.all(0, 0, Want::Line);
        let covers = self.all(0, 0, Want::Cover);
        let least = self.sizes().min;
        let mut seen = std::collections::BTreeSet::new();
        for line in &lines {
            for cover in &covers {
                let set = NodeSet::of(self.nodes, line.iter().chain(cover).copied());
                if set.len() == least && seen.insert(set.clone()) && visit(&set).is_break() {
                    return Some(ControlFlow::Break(()));
                }
            }
        }
        Some(ControlFlow::Continue(()))
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let leaf = |node: usize| [odds[node].down, 0.0, 0.0, odds[node].up];
        let [neither, lined, covered, both] = self.fold(0, leaf, join)[0];
        Some(Mass {
            live: both,
            dead: neither + lined + covered,
        })
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        let mut parts: Vec<(GateId, GateId)> = (0..self.nodes)
            .map(|node| {
                let gate = circuit.node(node);
                (gate, gate)
            })
            .collect();
        for (rows, cols) in self.shape.iter().rev() {
            parts = parts
                .chunks(rows * cols)
                .map(|children| {
                    let lines: Vec<_> = children
                        .chunks(*cols)
                        .map(|row| circuit.all(row.iter().map(|(line, _)| *line)))
                        .collect();
                    let covers: Vec<_> = children
                        .chunks(*cols)
                        .map(|row| circuit.any(row.iter().map(|(_, cover)| *cover)))
                        .collect();
                    (circuit.any(lines), circuit.all(covers))
                })
                .collect();
        }
        let (line, cover) = parts[0];
        circuit.all([line, cover]);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if capacity.iter().any(|c| *c != capacity[0]) {
            return None;
        }
        // Rows and the places of a row can be exchanged at every level: all nodes are alike.
        let load = self.sizes().min as f64 / self.nodes as f64;
        Some(LoadPlan {
            loads: vec![load; self.nodes],
            weights: vec![1.0; self.nodes],
        })
    }

    fn transversal(&self) -> Option<usize> {
        let (rows, cols) = self.widths();
        Some(rows.min(cols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::twin;

    #[test]
    fn agrees_with_its_brute_force_twin() {
        for shape in [
            &[(1, 1)][..],
            &[(2, 3)],
            &[(3, 2)],
            &[(3, 4)],
            &[(1, 4)],
            &[(4, 1)],
            &[(2, 2), (2, 2)],
            &[(2, 2), (1, 3)],
            &[(1, 2), (3, 2)],
            &[(2, 1), (2, 2)],
        ] {
            twin::check_coterie(&format!("hgrid({shape:?})"), &Hgrid::new(shape).unwrap());
        }
    }

    #[test]
    fn the_size_is_just_under_twice_the_root() {
        let grid = Hgrid::new(&[(3, 3), (3, 3)]).unwrap();
        assert_eq!((grid.nodes(), grid.sizes().min), (81, 17));
        assert!(Hgrid::new(&[(1 << 40, 1 << 40)]).is_err());
        assert!(Hgrid::new(&[(0, 3)]).is_err());
    }
}
