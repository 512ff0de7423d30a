//! Boards of boards: the paper's hierarchical structuring in two forms.
//!
//! **Composition** (H1): each site of a board is itself a board. A quorum is a quorum of the top
//! board with a quorum inside each of its sites; two of them share a site by induction. With
//! sides `q1, q2, ..` quorums have `q1 * q2 * ..` members: the paper's remark that structuring
//! keeps the size `sqrt(2n)` does not hold, each level costs another factor of about `sqrt(2)`.
//!
//! **Dual form** (H2), the analogue of Kumar and Cheung's hierarchical grid: a quorum holds the
//! root in two ways, `R` and `C`. On odd levels (the root is level 1) a board is held by `R` if
//! its children held by `R` include a diagonal path from left to right, and by `C` if those held
//! by `C` include a star path from top to bottom; on even levels `R` takes star and `C` diagonal
//! paths. A diagonal path one way meets a star path the other way, so by induction every `R`
//! meets every `C`. A full row of full columns with a full column of full rows has
//! `q1*t2 + t1*q2 - 1` members, just under `2 sqrt(n)`; the smallest quorums of two levels have
//! `q1*t2 + t1*q2 - t2`, because in the board where both meet one diagonal path does for both.

use std::ops::ControlFlow;

use thiserror::Error;

use crate::family::{cost_of, shrink};
use crate::{Circuit, Family, GateId, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::listing::{self, TABLE_MAX};
use super::reach::{self, Steps, Way};
use super::{Billiard, Board, BoardError, SITES_MAX, Tier, Tiers, circuits};

/// How levels combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A quorum of quorums.
    H1,
    /// Rows of columns and columns of rows.
    H2,
}

/// A coterie on full boards nested in each other. Node `x` of the inner board at site `s` of the
/// top board is node `s * n + x`, where `n` is the size of an inner board; and so on inwards.
#[derive(Debug)]
pub struct Hierarchy {
    form: Form,
    /// Outermost first.
    levels: Vec<Billiard>,
    nodes: usize,
}

/// Up to this many nodes a hierarchy gives a circuit in the dual form.
const CIRCUIT_MAX: usize = 200;

/// Chooses children of a board of a level, for their costs.
type Choose<'a> = dyn Fn(usize, &Billiard, &[f64]) -> Option<NodeSet> + 'a;

/// Makes the gate of a board of a level from those of its children.
type Join<'a> = dyn Fn(&mut Circuit, usize, &Billiard, &[GateId]) -> GateId + 'a;

/// How many times the ways to hold the root are adapted to each other.
const TURNS: usize = 4;

/// Why there is no hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HierarchyError {
    /// A level has no board.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// Too few levels for the form.
    #[error("a hierarchy of form {form:?} has at least {least} levels: give as many sides")]
    Levels {
        /// The form asked for.
        form: Form,
        /// How many levels it needs.
        least: usize,
    },
}

impl Hierarchy {
    /// The hierarchy with these sides, outermost first. In form H1 each level takes the T1
    /// quorums of its board. H1 needs a level, H2 two.
    pub fn new(sides: &[usize], form: Form) -> Result<Self, HierarchyError> {
        Self::with_tier(sides, form, Tier::T1)
    }

    /// The same with the quorums of another tier on each level of form H1: T0 gives the paper's
    /// own sets. Form H2 does not use it.
    pub fn with_tier(sides: &[usize], form: Form, tier: Tier) -> Result<Self, HierarchyError> {
        let least = if form == Form::H2 { 2 } else { 1 };
        if sides.len() < least {
            return Err(HierarchyError::Levels { form, least });
        }
        let tiers = Tiers::of([tier]).unwrap_or_default();
        let mut levels = Vec::new();
        let mut nodes: usize = 1;
        for side in sides {
            let board = Board::with_side(*side)?;
            nodes = nodes.saturating_mul(board.nodes());
            if nodes > SITES_MAX {
                return Err(BoardError::TooMany { nodes }.into());
            }
            levels.push(Billiard::new(board, tiers));
        }
        Ok(Self {
            form,
            levels,
            nodes,
        })
    }

    /// How levels combine.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The boards, outermost first.
    pub fn boards(&self) -> impl Iterator<Item = &Board> {
        self.levels.iter().map(Billiard::board)
    }

    /// Whether the root is held, level by level from the innermost on: leaves in `set` are held,
    /// and `up` decides for a board of a level from its held children.
    fn fold_up(&self, set: &NodeSet, up: &dyn Fn(usize, &Billiard, NodeSet) -> bool) -> bool {
        let mut held: Vec<bool> = (0..self.nodes).map(|node| set.contains(node)).collect();
        for (level, family) in self.levels.iter().enumerate().rev() {
            let size = family.nodes();
            held = held
                .chunks(size)
                .map(|held| {
                    let held = (0..size).filter(|site| held[*site]);
                    up(level, family, NodeSet::of(size, held))
                })
                .collect();
        }
        held[0]
    }

    /// The set that holds the root by choosing children at each board, for what they cost. It is
    /// the cheapest if the choices are.
    fn choose_up(&self, cost: &[f64], choose: &Choose<'_>) -> Option<NodeSet> {
        let mut price = cost.to_vec();
        // For each level the choice of each of its boards.
        let mut chosen: Vec<Vec<Option<NodeSet>>> = Vec::new();
        for (level, family) in self.levels.iter().enumerate().rev() {
            let choices: Vec<Option<NodeSet>> = price
                .chunks(family.nodes())
                .map(|price| choose(level, family, price))
                .collect();
            price = price
                .chunks(family.nodes())
                .zip(&choices)
                .map(|(price, choice)| {
                    let paid = choice.as_ref().map(|choice| cost_of(choice, price));
                    paid.unwrap_or(f64::INFINITY)
                })
                .collect();
            chosen.push(choices);
        }
        let mut held = vec![0];
        for (choices, family) in chosen.iter().rev().zip(&self.levels) {
            let mut next = Vec::new();
            for board in held {
                let choice = choices[board].as_ref()?;
                next.extend(choice.iter().map(|site| board * family.nodes() + site));
            }
            held = next;
        }
        Some(NodeSet::of(self.nodes, held))
    }

    /// A cheap quorum of the dual form: one way first, then in turns what the other way still
    /// costs with the last one given.
    fn cheapest_dual(&self, cost: &[f64]) -> Option<NodeSet> {
        let hold = |cost: &[f64], hold: Hold| {
            self.choose_up(cost, &|level, family, price| {
                let (way, steps) = hold.paths(level);
                let board = family.board();
                let (starts, ends) = (way.starts(board, steps), way.ends(board, steps));
                let (_, path) = reach::cheapest(board, price, steps, &starts, &ends)?;
                Some(board.image(path))
            })
        };
        let given = |free: &NodeSet, way: Hold| {
            let mut rest = cost.to_vec();
            for node in free.iter() {
                rest[node] = 0.0;
            }
            hold(&rest, way)
        };
        let mut best: Option<(f64, NodeSet)> = None;
        for (mut way, mut next) in [(Hold::R, Hold::C), (Hold::C, Hold::R)] {
            let mut part = hold(cost, way)?;
            for _ in 0..TURNS {
                let other = given(&part, next)?;
                let both = part.union(&other);
                let price = cost_of(&both, cost);
                if best.as_ref().is_none_or(|(least, _)| price < *least) {
                    best = Some((price, both));
                }
                part = other;
                std::mem::swap(&mut way, &mut next);
            }
        }
        let (_, best) = best?;
        Some(shrink(&best, cost, &|set| self.contains_quorum(set)))
    }

    /// The size of the smallest known quorum of the dual form, for two levels the smallest of
    /// all. At each board the diagonal path has `q` children and the star path across it goes
    /// straight, two rows per child, but for a stretch of `shared` children of the former.
    fn least_dual(&self) -> usize {
        // What it takes to hold a child by the way with a diagonal path, by the one with a star
        // path, and by both. These swap on the next level.
        let (mut diagonal, mut star, mut both) = (1, 1, 1);
        for family in self.levels.iter().rev() {
            let (q, t) = (family.board().q(), family.board().t());
            let with = |shared: usize| {
                let straight = t - 1 - (shared - 1) / 2;
                (q - shared) * star + straight * diagonal + shared * both
            };
            let least = (1..2 * t).map(with).min().unwrap_or(both);
            (diagonal, star, both) = (q * star, t * diagonal, least);
        }
        both
    }

    /// A product over the levels of one number each.
    fn product(&self, value: impl Fn(&Billiard) -> Option<usize>) -> Option<usize> {
        self.levels.iter().map(value).product()
    }

    /// The minimal quorums, for a few nodes.
    fn table(&self) -> Option<Vec<NodeSet>> {
        (self.nodes <= TABLE_MAX).then(|| listing::table(self))
    }

    /// Adds the gates of all boards, from those of the leaves on, and gives the root's.
    fn build(
        &self,
        circuit: &mut Circuit,
        mut gates: Vec<GateId>,
        join: &Join<'_>,
    ) -> Option<GateId> {
        for (level, family) in self.levels.iter().enumerate().rev() {
            gates = gates
                .chunks(family.nodes())
                .map(|children| join(circuit, level, family, children))
                .collect();
        }
        gates.first().copied()
    }
}

/// The two ways to hold a board in the dual form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    R,
    C,
}

impl Hold {
    /// The paths that hold a board of this level, levels from 0.
    fn paths(self, level: usize) -> (Way, Steps) {
        let diagonal = level.is_multiple_of(2) == (self == Self::R);
        let way = match self {
            Self::R => Way::LeftRight,
            Self::C => Way::TopBottom,
        };
        let steps = if diagonal {
            Steps::Diagonal
        } else {
            Steps::Star
        };
        (way, steps)
    }

    /// Whether the children in `held` hold the board this way.
    fn holds(self, level: usize, board: &Board, held: &NodeSet) -> bool {
        let (way, steps) = self.paths(level);
        let live: Vec<bool> = (0..board.cells())
            .map(|cell| held.contains(board.site(cell)))
            .collect();
        let label = reach::components(board, &live, steps);
        reach::joins(&label, &way.starts(board, steps), &way.ends(board, steps))
    }
}

impl Family for Hierarchy {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        match self.form {
            Form::H1 => self.fold_up(set, &|_, family, held| family.contains_quorum(&held)),
            Form::H2 => [Hold::R, Hold::C].into_iter().all(|hold| {
                self.fold_up(set, &|level, family, held| {
                    hold.holds(level, family.board(), &held)
                })
            }),
        }
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        if cost.len() != self.nodes {
            return None;
        }
        match self.form {
            Form::H1 => self.choose_up(cost, &|_, family, price| family.cheapest(price)),
            Form::H2 => self.cheapest_dual(cost),
        }
    }

    fn cheapest_is_exact(&self) -> bool {
        self.form == Form::H1 && self.levels.iter().all(Family::cheapest_is_exact)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        if self.form == Form::H2 {
            let cost: Vec<f64> = (0..self.nodes).map(|_| 1.0 + rng.unit()).collect();
            let cheapest = self.cheapest_dual(&cost);
            return cheapest.expect("invariant: with every site up there is a quorum");
        }
        let mut held = vec![0];
        for family in &self.levels {
            let mut next = Vec::new();
            for board in held {
                let quorum = family.sample(rng);
                next.extend(quorum.iter().map(|site| board * family.nodes() + site));
            }
            held = next;
        }
        NodeSet::of(self.nodes, held)
    }

    fn sizes(&self) -> Sizes {
        if self.form == Form::H1 {
            let sizes = self.levels.iter().map(Family::sizes);
            return sizes.fold(Sizes::exact(1, 1), |all, level| Sizes {
                min: all.min * level.min,
                max: all.max * level.max,
                exact: all.exact && level.exact,
            });
        }
        if let Some(table) = self.table() {
            let sizes = table.iter().map(NodeSet::len);
            if let (Some(min), Some(max)) = (sizes.clone().min(), sizes.max()) {
                return Sizes::exact(min, max);
            }
        }
        Sizes {
            min: self.least_dual(),
            max: self.nodes,
            exact: false,
        }
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        Some(self.table()?.iter().try_for_each(visit))
    }

    fn count(&self) -> Option<f64> {
        if self.form == Form::H2 {
            return None;
        }
        // Each member of an outer quorum has any of the inner quorums.
        self.levels.iter().rev().try_fold(1.0f64, |inner, family| {
            let Sizes { min, max, .. } = family.sizes();
            let count = family.count().filter(|_| min == max)?;
            Some(count * inner.powf(min as f64))
        })
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        if self.form == Form::H2 || odds.len() != self.nodes {
            return None;
        }
        let mut odds = odds.to_vec();
        for family in self.levels.iter().rev() {
            odds = odds
                .chunks(family.nodes())
                .map(|children| {
                    let mass = family.mass(children)?;
                    Some(Odds {
                        up: mass.live,
                        down: mass.dead,
                    })
                })
                .collect::<Option<_>>()?;
        }
        let root = odds.first()?;
        Some(Mass {
            live: root.up,
            dead: root.down,
        })
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        if self.form == Form::H1 {
            let parts: Vec<Circuit> = self
                .levels
                .iter()
                .map(Family::circuit)
                .collect::<Option<_>>()?;
            let leaves = (0..self.nodes).map(|node| circuit.node(node)).collect();
            self.build(&mut circuit, leaves, &|circuit, level, _, children| {
                circuit.append_at(&parts[level], |_, site| children[site])
            })?;
            return Some(circuit);
        }
        if self.nodes > CIRCUIT_MAX {
            return None;
        }
        let leaves: Vec<GateId> = (0..self.nodes).map(|node| circuit.node(node)).collect();
        let mut hold = |hold: Hold| {
            self.build(
                &mut circuit,
                leaves.clone(),
                &|circuit, level, family, children| {
                    let (way, steps) = hold.paths(level);
                    circuits::across(circuit, family.board(), children, way, steps)
                },
            )
        };
        let (row, column) = (hold(Hold::R)?, hold(Hold::C)?);
        circuit.all([row, column]);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let equal = capacity.windows(2).all(|pair| pair[0] == pair[1]);
        if self.form == Form::H2 || capacity.len() != self.nodes || !equal {
            return None;
        }
        // Loads and certificates of a composition are products.
        let one = LoadPlan {
            loads: vec![1.0],
            weights: vec![1.0],
        };
        self.levels.iter().try_fold(one, |outer, family| {
            let inner = family.load_plan(&vec![1.0; family.nodes()])?;
            Some(LoadPlan {
                loads: products(&outer.loads, &inner.loads),
                weights: products(&outer.weights, &inner.weights),
            })
        })
    }

    fn transversal(&self) -> Option<usize> {
        // To hit every quorum of a composition, hit all inner quorums at the sites of a set
        // that hits every outer one.
        (self.form == Form::H1)
            .then(|| self.product(Family::transversal))
            .flatten()
    }
}

/// All products of an outer with an inner number, outer ones first.
fn products(outer: &[f64], inner: &[f64]) -> Vec<f64> {
    outer
        .iter()
        .flat_map(|outer| inner.iter().map(move |inner| outer * inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composition_has_products_of_sizes_and_the_known_availability() {
        for (sides, nodes, size) in [([3, 3], 16, 9), ([5, 5], 144, 25), ([7, 7], 576, 49)] {
            let family = Hierarchy::new(&sides, Form::H1).unwrap();
            assert_eq!(family.nodes(), nodes);
            assert_eq!(family.sizes(), Sizes::exact(size, size));
            let quorum = family.sample(&mut Prng::new(1));
            assert!(quorum.len() == size && family.contains_quorum(&quorum));
        }
        // Side 5, one in ten down, own quorums of the paper.
        for (depth, expected) in [(1, 0.9657), (2, 0.9970), (3, 0.99998)] {
            let family = Hierarchy::with_tier(&vec![5; depth], Form::H1, Tier::T0).unwrap();
            let mass = family.mass(&vec![Odds::down(0.1); family.nodes()]).unwrap();
            assert!(
                (mass.live - expected).abs() < 6e-5,
                "{depth}: {}",
                mass.live
            );
        }
        // Above these fixed points availability grows with depth, below it falls.
        for (side, tier, point) in [
            (3, Tier::T0, 0.7676),
            (5, Tier::T0, 0.7672),
            (5, Tier::T1, 0.7459),
        ] {
            let family = Hierarchy::with_tier(&[side], Form::H1, tier).unwrap();
            let live = |up: f64| {
                family
                    .mass(&vec![Odds::down(1.0 - up); family.nodes()])
                    .unwrap()
                    .live
            };
            assert!(live(point - 0.001) < point - 0.001 && live(point + 0.001) > point + 0.001);
        }
    }

    #[test]
    fn small_hierarchies_are_coteries_with_the_known_sizes() {
        for (form, min) in [(Form::H1, 9), (Form::H2, 5)] {
            let family = Hierarchy::new(&[3, 3], form).unwrap();
            assert_eq!(family.sizes().min, min);
            let circuit = family.circuit().unwrap();
            let mut quorums = Vec::new();
            let _ = family.visit(&mut |quorum| {
                quorums.push(quorum.clone());
                ControlFlow::Continue(())
            });
            for mask in 0..1 << 16 {
                let set = NodeSet::from_mask(16, mask);
                let holds = family.contains_quorum(&set);
                assert!(!(holds && family.contains_quorum(&set.complement())));
                assert_eq!(circuit.eval(&set), holds);
            }
            if let Some(count) = family.count() {
                assert_eq!(count, quorums.len() as f64);
            }
            let cost: Vec<f64> = (0..16).map(|node| f64::from(node * 7 % 16)).collect();
            let cheapest = family.cheapest(&cost).unwrap();
            assert!(quorums.contains(&cheapest));
            if family.cheapest_is_exact() {
                let least = quorums.iter().map(|quorum| cost_of(quorum, &cost));
                assert_eq!(
                    least.fold(f64::INFINITY, f64::min),
                    cost_of(&cheapest, &cost)
                );
            }
        }
    }

    /// Two levels: a path of full rows with a full column of paths, which share one node.
    fn rows_and_columns(side: usize) -> NodeSet {
        let board = Board::with_side(side).unwrap();
        let sites = |cell: &dyn Fn(usize) -> (usize, usize)| -> Vec<usize> {
            let cells = (1..=side).map(cell);
            cells
                .filter_map(|(row, column)| board.site_at(row, column))
                .collect()
        };
        let nested = |outer: Vec<usize>, inner: Vec<usize>| -> Vec<usize> {
            let nodes = board.nodes();
            let pair = |outer: usize| inner.iter().map(move |inner| outer * nodes + inner);
            outer.into_iter().flat_map(pair).collect()
        };
        let rows = nested(sites(&|at| (1 + at % 2, at)), sites(&|at| (3, at)));
        let columns = nested(sites(&|at| (at, 3)), sites(&|at| (at, 1 + at % 2)));
        let nodes = board.nodes() * board.nodes();
        NodeSet::of(nodes, rows.into_iter().chain(columns))
    }

    #[test]
    fn the_dual_form_is_just_under_two_roots() {
        let mut rng = Prng::new(2);
        for (side, size) in [(5, 18), (7, 39)] {
            let family = Hierarchy::new(&[side, side], Form::H2).unwrap();
            assert_eq!(family.sizes().min, size);
            assert!(family.contains_quorum(&rows_and_columns(side)));
            assert_eq!(rows_and_columns(side).len(), 2 * side * (side / 2) - 1);
            let drawn: Vec<NodeSet> = (0..200).map(|_| family.sample(&mut rng)).collect();
            let least = drawn.iter().map(NodeSet::len).min();
            assert_eq!(least, Some(size));
            for (place, set) in drawn.iter().enumerate() {
                assert!(family.contains_quorum(set));
                assert!(drawn[..place].iter().all(|other| set.intersects(other)));
            }
        }
        // Two in ten down: about 0.999.
        let family = Hierarchy::new(&[5, 5], Form::H2).unwrap();
        let circuit = family.circuit().unwrap();
        let mut live = 0;
        for round in 0..3000 {
            let set = NodeSet::of(144, (0..144).filter(|_| !rng.chance(0.2)));
            live += usize::from(family.contains_quorum(&set));
            if round < 20 {
                let set = NodeSet::of(144, (0..144).filter(|_| rng.chance(0.5)));
                assert_eq!(circuit.eval(&set), family.contains_quorum(&set));
                assert!(
                    !(family.contains_quorum(&set) && family.contains_quorum(&set.complement()))
                );
            }
        }
        assert!((2985..3000).contains(&live), "{live}");
    }

    #[test]
    fn bad_hierarchies_are_refused() {
        assert!(Hierarchy::new(&[], Form::H1).is_err());
        assert!(Hierarchy::new(&[5], Form::H2).is_err());
        assert!(Hierarchy::new(&[5, 4], Form::H1).is_err());
        let error = Hierarchy::new(&[447, 447], Form::H1).unwrap_err();
        assert!(error.to_string().contains("at most 100000"));
    }

    #[test]
    fn loads_of_a_composition_are_products() {
        let family = Hierarchy::new(&[5, 7], Form::H1).unwrap();
        let plan = family.load_plan(&vec![1.0; 288]).unwrap();
        let load = plan.loads.iter().copied().fold(0.0, f64::max);
        assert!((load - 1.0 / 6.0).abs() < 1e-9);
        let least = family.cheapest(&plan.weights).unwrap();
        let lower = cost_of(&least, &plan.weights) / plan.weights.iter().sum::<f64>();
        assert!((lower - load).abs() < 1e-9);
        assert_eq!(family.transversal(), None);
        let even = Hierarchy::new(&[5, 9], Form::H1).unwrap();
        assert_eq!(even.transversal(), Some(8));
    }
}
