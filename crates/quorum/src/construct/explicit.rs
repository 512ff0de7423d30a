//! Families given as a list of quorums.
//!
//! The list is kept as the members of each quorum, not as bit sets, so that a family of a hundred
//! thousand single nodes stays small. Quorums that contain another quorum of the list add nothing
//! and are dropped; the others keep their order.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use thiserror::Error;

use crate::{Circuit, Coterie, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// A family given as a list of quorums, none of which contains another.
///
/// Lists whose quorums are pairwise disjoint, such as the cartels of surficial and affine group
/// systems, are recognised: their failure probability, load and transversals have formulas.
#[derive(Clone, Debug, PartialEq)]
pub struct Explicit {
    nodes: usize,
    /// The members of all quorums, one quorum after the other, ascending within each.
    members: Vec<u32>,
    /// Where each quorum starts in `members`, and the end of the last.
    starts: Vec<usize>,
    disjoint: bool,
    strategy: Option<Vec<f64>>,
}

impl Explicit {
    /// The family of the given quorums over `nodes` nodes.
    pub fn new(nodes: usize, quorums: Vec<NodeSet>) -> Result<Self, ExplicitError> {
        if nodes > NODES_MAX {
            return Err(ExplicitError::TooManyNodes { nodes });
        }
        if quorums.is_empty() {
            return Err(ExplicitError::NoQuorum);
        }
        if quorums.len() > QUORUMS_MAX {
            return Err(ExplicitError::TooManyQuorums {
                quorums: quorums.len(),
            });
        }
        let mut total = 0usize;
        for (place, quorum) in quorums.iter().enumerate() {
            if quorum.capacity() != nodes {
                return Err(ExplicitError::Capacity {
                    quorum: place + 1,
                    capacity: quorum.capacity(),
                    nodes,
                });
            }
            if quorum.is_empty() {
                return Err(ExplicitError::EmptyQuorum { quorum: place + 1 });
            }
            total += quorum.len();
        }
        if total > MEMBERS_MAX {
            return Err(ExplicitError::TooManyMembers { members: total });
        }
        let minimal = minimal(quorums);
        Ok(Self::from_antichain(
            nodes,
            minimal.iter().map(NodeSet::iter),
        ))
    }

    /// The family of quorums of which none contains another, by construction.
    pub(crate) fn from_antichain<Q>(nodes: usize, quorums: impl IntoIterator<Item = Q>) -> Self
    where
        Q: IntoIterator<Item = usize>,
    {
        let mut members = Vec::new();
        let mut starts = vec![0];
        let mut seen = NodeSet::new(nodes);
        let mut disjoint = true;
        for quorum in quorums {
            let start = members.len();
            for node in quorum {
                assert!(node < nodes, "invariant: a quorum's members are nodes");
                disjoint &= seen.insert(node);
                members.push(node as u32);
            }
            members[start..].sort_unstable();
            assert!(members.len() > start, "invariant: a quorum has a member");
            starts.push(members.len());
        }
        assert!(starts.len() > 1, "invariant: a family has a quorum");
        Self {
            nodes,
            members,
            starts,
            disjoint,
            strategy: None,
        }
    }

    /// Lets [`Family::sample`] take each quorum with the given weight instead of equally often.
    /// The weights are those of the kept quorums, in the order of [`Explicit::quorums`].
    pub fn with_strategy(mut self, weights: Vec<f64>) -> Result<Self, ExplicitError> {
        let sound = weights.iter().all(|weight| *weight >= 0.0) && {
            let total: f64 = weights.iter().sum();
            total > 0.0 && total.is_finite()
        };
        if weights.len() != self.len() || !sound {
            return Err(ExplicitError::Strategy {
                weights: weights.len(),
                quorums: self.len(),
            });
        }
        self.strategy = Some(weights);
        Ok(self)
    }

    /// How many quorums the family has: at least one.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a family is never without quorums"
    )]
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The quorums in the order of the list.
    pub fn quorums(&self) -> impl Iterator<Item = NodeSet> + '_ {
        (0..self.len()).map(|place| self.quorum(place))
    }

    /// The members of the quorum at `place` of the list (from 0), ascending. Empty past the end.
    pub fn members(&self, place: usize) -> impl Iterator<Item = usize> + '_ {
        self.slice(place).iter().map(|node| *node as usize)
    }

    /// Whether no two quorums share a node.
    pub fn is_disjoint(&self) -> bool {
        self.disjoint
    }

    /// The degree: the most quorums of which no two share a node, so many requests of one group
    /// can hold quorums at once. `None` if finding it would take too long.
    pub fn degree(&self) -> Option<usize> {
        if self.disjoint {
            return Some(self.len());
        }
        let masks = self.masks()?;
        let mut search = Packing {
            best: 0,
            steps: SEARCH_STEPS,
        };
        search.run(&masks, 0, 0)?;
        Some(search.best)
    }

    /// The family as a coterie. All pairs of quorums are checked to share a node.
    pub fn coterie(self) -> Result<Coterie, ExplicitError> {
        if self.len() > CHECKED_QUORUMS_MAX {
            return Err(ExplicitError::TooManyToCheck {
                quorums: self.len(),
            });
        }
        for right in 0..self.len() {
            let quorum = self.quorum(right);
            let meets = |left: &usize| self.members(*left).any(|node| quorum.contains(node));
            if let Some(left) = (0..right).find(|left| !meets(left)) {
                return Err(ExplicitError::Apart {
                    left: self.quorum(left),
                    right: quorum,
                });
            }
        }
        Ok(Coterie::by_construction(Arc::new(self)))
    }

    fn slice(&self, place: usize) -> &[u32] {
        match (self.starts.get(place), self.starts.get(place + 1)) {
            (Some(start), Some(end)) => &self.members[*start..*end],
            _ => &[],
        }
    }

    fn slices(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.len()).map(|place| self.slice(place))
    }

    fn quorum(&self, place: usize) -> NodeSet {
        NodeSet::of(self.nodes, self.members(place))
    }

    /// The quorums as machine words, if there are at most 64 nodes.
    fn masks(&self) -> Option<Vec<u64>> {
        (self.nodes <= 64).then(|| {
            self.slices()
                .map(|quorum| quorum.iter().fold(0, |mask, node| mask | 1u64 << node))
                .collect()
        })
    }

    /// For disjoint quorums, each fails or not on its own: product formulas.
    fn disjoint_mass(&self, odds: &[Odds]) -> Mass {
        let mut mass = Mass {
            live: 0.0,
            dead: 1.0,
        };
        let mut used = NodeSet::new(self.nodes);
        for quorum in self.slices() {
            // Split the states of this quorum's nodes by the first node that is down.
            let mut up = 1.0;
            let mut down = 0.0;
            for node in quorum {
                let Odds { up: u, down: d } = odds[*node as usize];
                down = down * (u + d) + up * d;
                up *= u;
                used.insert(*node as usize);
            }
            mass.live = mass.live * (up + down) + mass.dead * up;
            mass.dead *= down;
        }
        for node in used.complement().iter() {
            let total = odds[node].up + odds[node].down;
            mass.live *= total;
            mass.dead *= total;
        }
        mass
    }
}

impl Family for Explicit {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.slices()
            .any(|quorum| quorum.iter().all(|node| set.contains(*node as usize)))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best = None;
        let mut least = f64::INFINITY;
        for place in 0..self.len() {
            let total: f64 = self.members(place).map(|node| cost[node]).sum();
            if total < least {
                least = total;
                best = Some(place);
            }
        }
        best.map(|place| self.quorum(place))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let place = self
            .strategy
            .as_deref()
            .and_then(|weights| rng.weighted(weights))
            .unwrap_or_else(|| rng.below(self.len()));
        self.quorum(place)
    }

    fn sizes(&self) -> Sizes {
        let (mut min, mut max) = (usize::MAX, 0);
        for quorum in self.slices() {
            min = min.min(quorum.len());
            max = max.max(quorum.len());
        }
        Sizes::exact(min, max)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let mut quorum = NodeSet::new(self.nodes);
        for slice in self.slices() {
            for node in slice {
                quorum.insert(*node as usize);
            }
            if visit(&quorum).is_break() {
                return Some(ControlFlow::Break(()));
            }
            for node in slice {
                quorum.remove(*node as usize);
            }
        }
        Some(ControlFlow::Continue(()))
    }

    fn count(&self) -> Option<f64> {
        Some(self.len() as f64)
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        if self.disjoint {
            return Some(self.disjoint_mass(odds));
        }
        if self.nodes > ENUMERATED_NODES_MAX || self.len() > ENUMERATED_QUORUMS_MAX {
            return None;
        }
        let masks = self.masks()?;
        Some(split(&masks, odds, 1.0))
    }

    fn circuit(&self) -> Option<Circuit> {
        if self.members.len() > CIRCUIT_MEMBERS_MAX {
            return None;
        }
        let mut circuit = Circuit::new(self.nodes);
        let mut gates = vec![None; self.nodes];
        let mut quorums = Vec::with_capacity(self.len());
        for quorum in self.slices() {
            let inputs: Vec<_> = quorum
                .iter()
                .map(|node| {
                    let node = *node as usize;
                    *gates[node].get_or_insert_with(|| circuit.node(node))
                })
                .collect();
            quorums.push(circuit.all(inputs));
        }
        circuit.any(quorums);
        Some(circuit)
    }

    /// Known for disjoint quorums (each quorum is as strong as its weakest node, and is used in
    /// that proportion), and for equal capacities when all quorums are equally large and all
    /// nodes that occur do so equally often. With a strategy of the caller's there is no plan.
    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if self.strategy.is_some() {
            return None;
        }
        if self.disjoint {
            return Some(self.disjoint_plan(capacity));
        }
        let mut degree = vec![0u32; self.nodes];
        for node in &self.members {
            degree[*node as usize] += 1;
        }
        let common = *degree.iter().find(|degree| **degree > 0)?;
        let sizes = self.sizes();
        let regular = sizes.min == sizes.max
            && degree.iter().all(|times| [0, common].contains(times))
            && capacity.iter().all(|other| *other == capacity[0]);
        regular.then(|| LoadPlan {
            loads: degree
                .iter()
                .map(|times| f64::from(*times) / self.len() as f64)
                .collect(),
            weights: degree.iter().map(|times| f64::from(*times)).collect(),
        })
    }

    fn transversal(&self) -> Option<usize> {
        if self.disjoint {
            return Some(self.len());
        }
        let masks = self.masks()?;
        let mut search = Hitting {
            best: self.nodes,
            steps: SEARCH_STEPS,
        };
        search.run(&masks, 0)?;
        Some(search.best)
    }
}

impl Explicit {
    fn disjoint_plan(&self, capacity: &[f64]) -> LoadPlan {
        let mut plan = LoadPlan {
            loads: vec![0.0; self.nodes],
            weights: vec![0.0; self.nodes],
        };
        let weakest: Vec<usize> = (0..self.len())
            .filter_map(|place| {
                self.members(place)
                    .min_by(|a, b| capacity[*a].total_cmp(&capacity[*b]))
            })
            .collect();
        let total: f64 = weakest.iter().map(|node| capacity[*node]).sum();
        for (place, weak) in weakest.into_iter().enumerate() {
            for node in self.members(place) {
                plan.loads[node] = capacity[weak] / total;
            }
            plan.weights[weak] = 1.0;
        }
        plan
    }
}

/// Why a list of quorums is no family.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExplicitError {
    /// More nodes than this library takes.
    #[error("{nodes} nodes are too many: at most {NODES_MAX} are allowed")]
    TooManyNodes {
        /// How many were asked for.
        nodes: usize,
    },
    /// The list is empty.
    #[error("the list of quorums is empty: give at least one quorum")]
    NoQuorum,
    /// The list is too long.
    #[error("{quorums} quorums are too many for a list: at most {QUORUMS_MAX} are allowed")]
    TooManyQuorums {
        /// How many there are.
        quorums: usize,
    },
    /// The quorums are too large together.
    #[error("the quorums have {members} members together: at most {MEMBERS_MAX} are allowed")]
    TooManyMembers {
        /// How many there are.
        members: usize,
    },
    /// A quorum has no member.
    #[error("quorum {quorum} of the list is empty: give it at least one node")]
    EmptyQuorum {
        /// Its place in the list, from 1.
        quorum: usize,
    },
    /// A quorum is over another number of nodes.
    #[error("quorum {quorum} of the list is over {capacity} nodes, but the system has {nodes}")]
    Capacity {
        /// Its place in the list, from 1.
        quorum: usize,
        /// The number of nodes it is over.
        capacity: usize,
        /// The number of nodes of the system.
        nodes: usize,
    },
    /// Two quorums of a coterie share no node.
    #[error("quorums {left} and {right} share no node: in a coterie any two quorums must")]
    Apart {
        /// One quorum.
        left: NodeSet,
        /// The other.
        right: NodeSet,
    },
    /// Checking all pairs would take too long.
    #[error("{quorums} quorums are too many to check: at most {CHECKED_QUORUMS_MAX} are allowed")]
    TooManyToCheck {
        /// How many there are.
        quorums: usize,
    },
    /// The weights are no strategy.
    #[error(
        "the strategy has {weights} weights for {quorums} quorums: give each quorum a weight of at \
         least 0, and some quorum more than 0"
    )]
    Strategy {
        /// How many weights were given.
        weights: usize,
        /// How many quorums there are.
        quorums: usize,
    },
}

/// The quorums that contain no other one, in their order (of equal ones the first stays).
fn minimal(quorums: Vec<NodeSet>) -> Vec<NodeSet> {
    let mut order: Vec<usize> = (0..quorums.len()).collect();
    order.sort_by_key(|place| (quorums[*place].len(), *place));
    let mut same_size = BTreeSet::new();
    let mut size = 0;
    // Kept quorums that are smaller than the present size: only those can be contained.
    let mut smaller = 0;
    let mut kept: Vec<usize> = Vec::new();
    for place in order {
        let quorum = &quorums[place];
        if quorum.len() > size {
            size = quorum.len();
            smaller = kept.len();
            same_size.clear();
        }
        let contains_other = kept[..smaller]
            .iter()
            .any(|other| quorums[*other].is_subset(quorum));
        if !contains_other && same_size.insert(quorum) {
            kept.push(place);
        }
    }
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    let places = quorums.into_iter().enumerate();
    places
        .filter_map(|(place, quorum)| kept.next_if_eq(&place).map(|_| quorum))
        .collect()
}

/// Sums the weights of all states of the nodes by deciding one node after the other. `left` are
/// the quorums without a node that is down, less the nodes that are up.
fn split(left: &[u64], odds: &[Odds], weight: f64) -> Mass {
    if left.is_empty() || left.contains(&0) {
        let weight = odds
            .iter()
            .fold(weight, |weight, odds| weight * (odds.up + odds.down));
        let (live, dead) = if left.is_empty() {
            (0.0, weight)
        } else {
            (weight, 0.0)
        };
        return Mass { live, dead };
    }
    // Quorums are left, so nodes are: a quorum only has nodes that are not decided yet.
    let (first, rest) = odds
        .split_first()
        .expect("invariant: undecided quorums have undecided nodes");
    let up: Vec<u64> = left.iter().map(|quorum| quorum >> 1).collect();
    let down: Vec<u64> = left
        .iter()
        .filter(|quorum| *quorum & 1 == 0)
        .map(|quorum| quorum >> 1)
        .collect();
    let with = split(&up, rest, weight * first.up);
    let without = split(&down, rest, weight * first.down);
    Mass {
        live: with.live + without.live,
        dead: with.dead + without.dead,
    }
}

/// Search for the smallest set that meets every quorum.
struct Hitting {
    best: usize,
    steps: usize,
}

impl Hitting {
    /// `left` are the quorums still to meet, without the nodes that are ruled out. `None` when
    /// the steps run out.
    fn run(&mut self, left: &[u64], taken: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(left.len() + 1)?;
        let Some(tightest) = left
            .iter()
            .copied()
            .min_by_key(|quorum| quorum.count_ones())
        else {
            self.best = self.best.min(taken);
            return Some(());
        };
        if tightest == 0 || taken + disjoint_count(left) >= self.best {
            return Some(());
        }
        // One of the nodes of the tightest quorum is taken: branch on the first that is.
        let mut ruled_out = 0u64;
        let mut nodes = tightest;
        while nodes != 0 {
            let node = nodes & nodes.wrapping_neg();
            nodes ^= node;
            let next: Vec<u64> = left
                .iter()
                .filter(|quorum| *quorum & node == 0)
                .map(|quorum| quorum & !ruled_out)
                .collect();
            self.run(&next, taken + 1)?;
            ruled_out |= node;
        }
        Some(())
    }
}

/// The size of some set of pairwise disjoint quorums: at least so many nodes meet them all.
fn disjoint_count(quorums: &[u64]) -> usize {
    let mut used = 0;
    let mut count = 0;
    for quorum in quorums {
        if quorum & used == 0 {
            used |= quorum;
            count += 1;
        }
    }
    count
}

/// Search for the most pairwise disjoint quorums.
struct Packing {
    best: usize,
    steps: usize,
}

impl Packing {
    fn run(&mut self, left: &[u64], used: u64, taken: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(left.len() + 1)?;
        self.best = self.best.max(taken);
        for (place, quorum) in left.iter().enumerate() {
            if taken + (left.len() - place) <= self.best {
                break;
            }
            let used = used | quorum;
            let next: Vec<u64> = left[place + 1..]
                .iter()
                .copied()
                .filter(|other| other & used == 0)
                .collect();
            self.run(&next, used, taken + 1)?;
        }
        Some(())
    }
}

/// The most nodes of a system.
pub(crate) const NODES_MAX: usize = 100_000;
/// The most quorums of a list given by a caller.
const QUORUMS_MAX: usize = 1 << 16;
/// The most quorums of a list whose pairs are checked.
const CHECKED_QUORUMS_MAX: usize = 1 << 14;
/// The most members of all quorums of a list together.
const MEMBERS_MAX: usize = 1 << 22;
/// Circuits of more node uses than this are not worth making.
const CIRCUIT_MEMBERS_MAX: usize = 1 << 16;
/// Up to so many nodes the failure probability is found by going through all live sets.
const ENUMERATED_NODES_MAX: usize = 20;
/// The same goes for quorums: each live set looks at those that are left.
const ENUMERATED_QUORUMS_MAX: usize = 1 << 12;
/// How many quorums the searches for transversals and degree may look at.
const SEARCH_STEPS: usize = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{cost_of, list};

    fn numbers(nodes: usize, quorums: &[&[usize]]) -> Explicit {
        let quorums = quorums
            .iter()
            .map(|quorum| NodeSet::of_numbers(nodes, quorum.iter().copied()))
            .collect();
        Explicit::new(nodes, quorums).unwrap()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-13 * a.abs().max(b.abs())
    }

    /// Random families: disjoint ones, small antichains and regular ones.
    fn samples() -> Vec<Explicit> {
        let mut rng = Prng::new(11);
        let mut families = vec![
            numbers(7, &[&[1, 2], &[4, 5, 7]]),
            numbers(6, &[&[1, 2, 3], &[4, 5, 6]]),
            numbers(3, &[&[1, 2], &[2, 3], &[1, 3]]),
            numbers(1, &[&[1]]),
        ];
        for _ in 0..40 {
            let nodes = 2 + rng.below(8);
            let quorums = (0..=rng.below(7))
                .map(|_| NodeSet::from_mask(nodes, 1 + rng.next_u64() % ((1 << nodes) - 1)))
                .collect();
            families.push(Explicit::new(nodes, quorums).unwrap());
        }
        families
    }

    #[test]
    fn larger_quorums_go_and_the_order_stays() {
        let family = numbers(5, &[&[3, 4, 5], &[1, 2], &[1, 2, 5], &[3, 4], &[2, 1]]);
        let kept: Vec<String> = family.quorums().map(|quorum| quorum.to_string()).collect();
        assert_eq!(kept, ["{1, 2}", "{3, 4}"]);
        assert!(family.is_disjoint());
    }

    #[test]
    fn bad_lists_are_refused() {
        let new = |sets: Vec<NodeSet>| Explicit::new(3, sets).unwrap_err();
        assert_eq!(new(vec![]), ExplicitError::NoQuorum);
        assert_eq!(
            new(vec![NodeSet::full(3), NodeSet::new(3)]),
            ExplicitError::EmptyQuorum { quorum: 2 }
        );
        assert_eq!(
            new(vec![NodeSet::full(4)]),
            ExplicitError::Capacity {
                quorum: 1,
                capacity: 4,
                nodes: 3
            }
        );
        assert_eq!(
            new(vec![NodeSet::full(3); QUORUMS_MAX + 1]),
            ExplicitError::TooManyQuorums {
                quorums: QUORUMS_MAX + 1
            }
        );
        assert_eq!(
            Explicit::new(NODES_MAX + 1, vec![]),
            Err(ExplicitError::TooManyNodes {
                nodes: NODES_MAX + 1
            })
        );
        let large = vec![NodeSet::full(NODES_MAX); MEMBERS_MAX / NODES_MAX + 1];
        assert_eq!(
            Explicit::new(NODES_MAX, large),
            Err(ExplicitError::TooManyMembers {
                members: (MEMBERS_MAX / NODES_MAX + 1) * NODES_MAX
            })
        );
        let family = numbers(3, &[&[1], &[2]]);
        assert_eq!(
            family.clone().coterie().unwrap_err().to_string(),
            "quorums {1} and {2} share no node: in a coterie any two quorums must"
        );
        for weights in [vec![1.0], vec![0.0, 0.0], vec![f64::NAN, 1.0]] {
            assert!(family.clone().with_strategy(weights).is_err());
        }
    }

    #[test]
    fn everything_agrees_with_enumeration() {
        let mut rng = Prng::new(5);
        for family in samples() {
            let nodes = family.nodes();
            let quorums = list(&family, 100).unwrap();
            let odds: Vec<Odds> = (0..nodes)
                .map(|_| Odds {
                    up: rng.unit(),
                    down: rng.unit(),
                })
                .collect();
            let circuit = family.circuit().unwrap();
            let (mut live, mut dead) = (0.0, 0.0);
            let mut transversal = nodes;
            for mask in 0..1u64 << nodes {
                let set = NodeSet::from_mask(nodes, mask);
                let holds = quorums.iter().any(|quorum| quorum.is_subset(&set));
                assert_eq!(family.contains_quorum(&set), holds);
                assert_eq!(circuit.eval(&set), holds);
                let weight: f64 = (0..nodes)
                    .map(|node| {
                        let Odds { up, down } = odds[node];
                        if set.contains(node) { up } else { down }
                    })
                    .product();
                *if holds { &mut live } else { &mut dead } += weight;
                if quorums.iter().all(|quorum| quorum.intersects(&set)) {
                    transversal = transversal.min(set.len());
                }
            }
            let mass = family.mass(&odds).unwrap();
            assert!(close(mass.live, live) && close(mass.dead, dead));
            assert_eq!(family.transversal(), Some(transversal));
            let least = quorums.iter().map(NodeSet::len).min().unwrap();
            let most = quorums.iter().map(NodeSet::len).max().unwrap();
            assert_eq!(family.sizes(), Sizes::exact(least, most));
            let degree = (0..1u64 << quorums.len())
                .filter(|chosen| apart(&quorums, *chosen))
                .map(u64::count_ones)
                .max();
            assert_eq!(family.degree(), degree.map(|degree| degree as usize));
        }
    }

    fn apart(quorums: &[NodeSet], chosen: u64) -> bool {
        let places = 0..quorums.len();
        let chosen: Vec<usize> = places.filter(|place| chosen >> place & 1 == 1).collect();
        chosen.iter().all(|a| {
            let mut others = chosen.iter().filter(|b| *b != a);
            others.all(|b| !quorums[*a].intersects(&quorums[*b]))
        })
    }

    #[test]
    fn the_cheapest_avoids_what_is_infinite() {
        let mut rng = Prng::new(6);
        for family in samples() {
            let mut cost: Vec<f64> = (0..family.nodes()).map(|_| rng.unit()).collect();
            cost[rng.below(family.nodes())] = f64::INFINITY;
            let best = family
                .quorums()
                .map(|quorum| cost_of(&quorum, &cost))
                .fold(f64::INFINITY, f64::min);
            match family.cheapest(&cost) {
                Some(quorum) => assert_eq!(cost_of(&quorum, &cost), best),
                None => assert_eq!(best, f64::INFINITY),
            }
        }
    }

    #[test]
    fn tiny_failure_probabilities_keep_their_digits() {
        let family = numbers(4, &[&[1, 2], &[3, 4]]);
        let dead = family.mass(&[Odds::down(1e-12); 4]).unwrap().dead;
        let each = 2e-12 - 1e-24;
        assert!(close(dead, each * each));
    }

    #[test]
    fn load_plans_prove_themselves() {
        let mut rng = Prng::new(8);
        let mut planned = 0;
        for family in samples() {
            let equal = vec![1.0; family.nodes()];
            let mixed: Vec<f64> = (0..family.nodes()).map(|_| 0.5 + rng.unit()).collect();
            for capacity in [equal, mixed] {
                let Some(plan) = family.load_plan(&capacity) else {
                    continue;
                };
                planned += 1;
                let pairs = plan.loads.iter().zip(&capacity);
                let load = pairs.map(|(load, cap)| load / cap).fold(0.0, f64::max);
                let pairs = plan.weights.iter().zip(&capacity);
                let scale: f64 = pairs.map(|(weight, cap)| weight * cap).sum();
                let bound = family
                    .quorums()
                    .map(|quorum| cost_of(&quorum, &plan.weights))
                    .fold(f64::INFINITY, f64::min);
                assert!(close(load, bound / scale), "{family:?}");
            }
        }
        assert!(planned > 8);
    }

    #[test]
    fn a_strategy_decides_what_is_sampled() {
        let family = numbers(4, &[&[1, 2], &[3, 4]]);
        let mut rng = Prng::new(1);
        let first = NodeSet::of_numbers(4, [1, 2]);
        let hits = |family: &Explicit, rng: &mut Prng| {
            (0..1000).filter(|_| family.sample(rng) == first).count()
        };
        assert!((400..600).contains(&hits(&family, &mut rng)));
        let biased = family.with_strategy(vec![0.0, 2.0]).unwrap();
        assert_eq!(hits(&biased, &mut rng), 0);
        assert_eq!(biased.load_plan(&[1.0; 4]), None);
    }
}
