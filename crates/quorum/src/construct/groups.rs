//! Group systems made of other systems.
//!
//! After Joung, "Quorum-Based Algorithms for Group Mutual Exclusion". Requests of one group may
//! run together, requests of different groups may not. A group system has one family of quorums,
//! a *cartel*, per group; quorums of different cartels share a node, quorums of one cartel need
//! not.
//!
//! Next to the groups there are exclusive requests, and requests of groups without a cartel. Their
//! quorums must meet each other and every quorum of every cartel:
//!
//! - With two or more cartels, the union of two quorums of different cartels `a` and `b` does: a
//!   quorum of a cartel other than `a` meets the part from `a`, one of `a` meets the part from
//!   `b`; and another union has a part that is not from `a`. This is [`Pairs`].
//! - With one cartel, a set that contains a quorum and meets every quorum does: of two such sets
//!   one contains a quorum and the other meets it. This is [`Crossing`].
//!
//! | Joung | here |
//! |---|---|
//! | m-group quorum system, cartel `C_i` | [`GroupSystem`], [`GroupSystem::cartels`] |
//! | degree of a cartel | [`degree`] |
//! | `T_m(C)` | [`same`] |

use std::ops::ControlFlow;
use std::sync::Arc;

use thiserror::Error;

use super::explicit::{Explicit, NODES_MAX};
use crate::family::{cost_of, list, shrink};
use crate::{Circuit, Coterie, Family, GroupSystem, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// The group system in which each of `groups` cartels is the same coterie (Joung's `T_m(C)`). Two
/// members of one group then never hold disjoint quorums; they run together only if nodes grant
/// several requests of one group at once.
pub fn same(coterie: &Coterie, groups: usize) -> Result<GroupSystem, GroupsError> {
    check_count(groups)?;
    let family = coterie.family();
    Ok(GroupSystem::by_construction(
        vec![family.clone(); groups],
        family.clone(),
    ))
}

/// The group system of the given cartels. All pairs of quorums of different cartels are checked.
pub fn checked(cartels: Vec<Explicit>) -> Result<GroupSystem, GroupsError> {
    check_count(cartels.len())?;
    let nodes = cartels[0].nodes();
    if let Some(place) = cartels.iter().position(|other| other.nodes() != nodes) {
        return Err(GroupsError::Nodes {
            first: nodes,
            cartel: place + 1,
            other: cartels[place].nodes(),
        });
    }
    let lists: Vec<usize> = cartels.iter().map(Explicit::len).collect();
    let pairs = pair_sum(&lists);
    if pairs > CHECKED_PAIRS_MAX {
        return Err(GroupsError::TooManyPairs { pairs });
    }
    for (right, cartel) in cartels.iter().enumerate() {
        for quorum in cartel.quorums() {
            for (left, other) in cartels[..right].iter().enumerate() {
                let meets = |place: &usize| other.members(*place).any(|node| quorum.contains(node));
                let apart = (0..other.len()).find(|place| !meets(place));
                if let Some(place) = apart {
                    return Err(GroupsError::Apart {
                        left: left + 1,
                        left_quorum: NodeSet::of(nodes, other.members(place)),
                        right: right + 1,
                        right_quorum: quorum,
                    });
                }
            }
        }
    }
    Ok(from_cartels(cartels))
}

/// The group system of at least one cartel over the same nodes, whose quorums meet across cartels
/// by construction.
pub(crate) fn from_cartels(cartels: Vec<Explicit>) -> GroupSystem {
    let cartels: Vec<Arc<Explicit>> = cartels.into_iter().map(Arc::new).collect();
    let families = cartels
        .iter()
        .map(|cartel| Arc::clone(cartel) as Arc<dyn Family>)
        .collect();
    let exclusive: Arc<dyn Family> = if let [only] = cartels.as_slice() {
        Arc::new(Crossing(Arc::clone(only)))
    } else {
        Arc::new(Pairs::new(cartels))
    };
    GroupSystem::by_construction(families, exclusive)
}

/// The degree of a cartel: the most quorums of which no two share a node. `None` if its quorums
/// cannot be listed or the search would take too long.
pub fn degree(cartel: &dyn Family) -> Option<usize> {
    let quorums = list(cartel, LISTED_DEGREE_MAX)?;
    Explicit::new(cartel.nodes(), quorums).ok()?.degree()
}

/// Why cartels are no group system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupsError {
    /// The number of groups is zero or too large.
    #[error("a group system cannot have {groups} groups: give 1 to {NODES_MAX}")]
    Count {
        /// The number asked for.
        groups: usize,
    },
    /// The cartels are over different numbers of nodes.
    #[error(
        "cartel 1 is over {first} nodes but cartel {cartel} over {other}: use one set of nodes"
    )]
    Nodes {
        /// The nodes of the first cartel.
        first: usize,
        /// The cartel that differs, from 1.
        cartel: usize,
        /// Its nodes.
        other: usize,
    },
    /// Two quorums of different cartels share no node.
    #[error(
        "quorum {left_quorum} of cartel {left} and quorum {right_quorum} of cartel {right} share \
         no node: quorums of different cartels must"
    )]
    Apart {
        /// One cartel, from 1.
        left: usize,
        /// Its quorum.
        left_quorum: NodeSet,
        /// The other cartel, from 1.
        right: usize,
        /// Its quorum.
        right_quorum: NodeSet,
    },
    /// Checking would take too long.
    #[error("{pairs} pairs of quorums are too many to check: at most {CHECKED_PAIRS_MAX} are")]
    TooManyPairs {
        /// How many there are.
        pairs: usize,
    },
}

fn check_count(groups: usize) -> Result<(), GroupsError> {
    if groups == 0 || groups > NODES_MAX {
        return Err(GroupsError::Count { groups });
    }
    Ok(())
}

/// The sum of the products of all pairs, or the largest number if it is larger.
fn pair_sum(counts: &[usize]) -> usize {
    let mut before = 0usize;
    let mut sum = 0usize;
    for count in counts {
        sum = sum.saturating_add(before.saturating_mul(*count));
        before = before.saturating_add(*count);
    }
    sum
}

/// The unions of two quorums of different cartels: the quorums of exclusive requests.
#[derive(Clone, Debug)]
pub struct Pairs {
    cartels: Vec<Arc<Explicit>>,
    /// All minimal unions, if there are few.
    listed: Option<Explicit>,
    /// Whether cartels are disjoint within and share exactly one node across, as in the surficial
    /// and affine systems.
    crossing_once: bool,
    /// The sizes of the smallest and the largest quorum of a cartel.
    quorum_sizes: (usize, usize),
}

impl Pairs {
    /// The unions for at least two cartels whose quorums meet across cartels.
    fn new(cartels: Vec<Arc<Explicit>>) -> Self {
        assert!(cartels.len() > 1, "invariant: a pair needs two cartels");
        let sizes = cartels.iter().map(|cartel| cartel.sizes());
        let mut pairs = Self {
            listed: None,
            crossing_once: cross_once(&cartels),
            quorum_sizes: sizes.fold((usize::MAX, 0), |(min, max), size| {
                (min.min(size.min), max.max(size.max))
            }),
            cartels,
        };
        pairs.listed = pairs.list_all();
        pairs
    }

    fn list_all(&self) -> Option<Explicit> {
        let counts: Vec<usize> = self.cartels.iter().map(|cartel| cartel.len()).collect();
        let pairs = pair_sum(&counts);
        let members = pairs.saturating_mul(2 * self.quorum_sizes.1);
        if pairs > LISTED_PAIRS_MAX || members > LISTED_MEMBERS_MAX {
            return None;
        }
        let mut unions = Vec::new();
        for (right, cartel) in self.cartels.iter().enumerate() {
            for other in &self.cartels[..right] {
                for left in other.quorums() {
                    unions.extend(cartel.quorums().map(|quorum| quorum.union(&left)));
                }
            }
        }
        Explicit::new(self.nodes(), unions).ok()
    }

    /// The cheapest union where any two quorums of different cartels share exactly one node: for
    /// each node the two cheapest quorums through it, since a pair is known by its shared node.
    fn cheapest_crossing(&self, cost: &[f64]) -> Option<NodeSet> {
        let none = (f64::INFINITY, 0, 0);
        let mut two = vec![[none; 2]; self.nodes()];
        for (index, cartel) in self.cartels.iter().enumerate() {
            for place in 0..cartel.len() {
                let total: f64 = cartel.members(place).map(|node| cost[node]).sum();
                for node in cartel.members(place) {
                    let [best, second] = &mut two[node];
                    if total < best.0 {
                        *second = *best;
                        *best = (total, index, place);
                    } else if total < second.0 {
                        *second = (total, index, place);
                    }
                }
            }
        }
        let mut least = f64::INFINITY;
        let mut found = None;
        for (node, [best, second]) in two.iter().enumerate() {
            // Infinite quorums first: infinity less infinity is not a number.
            if second.0.is_infinite() {
                continue;
            }
            let total = best.0 + second.0 - cost[node];
            if total < least {
                least = total;
                found = Some((best, second));
            }
        }
        let (best, second) = found?;
        let members = |quorum: &(f64, usize, usize)| self.cartels[quorum.1].members(quorum.2);
        Some(self.minimal(
            NodeSet::of(self.nodes(), members(best).chain(members(second))),
            cost,
        ))
    }

    /// A cheap union: for each cartel its cheapest quorum, then the other cartel that adds least.
    fn cheapest_greedy(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best: Option<NodeSet> = None;
        for (index, cartel) in self.cartels.iter().enumerate() {
            let Some(quorum) = cartel.cheapest(cost) else {
                continue;
            };
            let mut rest = cost.to_vec();
            for node in quorum.iter() {
                rest[node] = 0.0;
            }
            for (_, other) in self.others(index) {
                let Some(second) = other.cheapest(&rest) else {
                    continue;
                };
                let union = quorum.union(&second);
                let better = best
                    .as_ref()
                    .is_none_or(|best| cost_of(&union, cost) < cost_of(best, cost));
                if better {
                    best = Some(union);
                }
            }
        }
        best.map(|union| self.minimal(union, cost))
    }

    fn others(&self, index: usize) -> impl Iterator<Item = (usize, &Arc<Explicit>)> {
        let cartels = self.cartels.iter().enumerate();
        cartels.filter(move |(other, _)| *other != index)
    }

    /// A union may contain another one if quorums are small.
    fn minimal(&self, union: NodeSet, cost: &[f64]) -> NodeSet {
        if self.antichain() {
            return union;
        }
        shrink(&union, cost, &|set| self.contains_quorum(set))
    }

    /// Whether no union contains another by reason of size: either all unions are equally large,
    /// or a union has at most two nodes in common with a quorum that it was not made of, and all
    /// quorums have three.
    fn antichain(&self) -> bool {
        let (min, max) = self.quorum_sizes;
        self.crossing_once && (min == max || min > 2)
    }

    /// How many cartels cover each node, if that number is the same for all nodes that are
    /// covered at all, all cartels have equally many quorums, and all quorums are equally large.
    fn regular(&self) -> Option<Vec<u32>> {
        let (min, max) = self.quorum_sizes;
        let counts = self.cartels.iter().map(|cartel| cartel.len());
        let equal = counts.clone().max() == counts.min();
        let cover = cover(&self.cartels);
        let most = *cover.iter().max()?;
        let even = cover.iter().all(|times| [0, most].contains(times));
        (self.crossing_once && min == max && equal && even).then_some(cover)
    }
}

/// How many quorums each node is in.
fn cover(cartels: &[Arc<Explicit>]) -> Vec<u32> {
    let mut cover = vec![0; cartels[0].nodes()];
    for cartel in cartels {
        for place in 0..cartel.len() {
            for node in cartel.members(place) {
                cover[node] += 1;
            }
        }
    }
    cover
}

/// Whether each cartel's quorums are disjoint and quorums of different cartels share one node:
/// as they share at least one, it is enough to count.
fn cross_once(cartels: &[Arc<Explicit>]) -> bool {
    let counts: Vec<usize> = cartels.iter().map(|cartel| cartel.len()).collect();
    let shared: u64 = cover(cartels)
        .iter()
        .map(|times| u64::from(*times) * u64::from(times.saturating_sub(1)) / 2)
        .sum();
    cartels.iter().all(|cartel| cartel.is_disjoint()) && shared == pair_sum(&counts) as u64
}

impl Family for Pairs {
    fn nodes(&self) -> usize {
        self.cartels[0].nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let held = self
            .cartels
            .iter()
            .filter(|cartel| cartel.contains_quorum(set));
        held.take(2).count() == 2
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        match &self.listed {
            Some(listed) => listed.cheapest(cost),
            None if self.crossing_once => self.cheapest_crossing(cost),
            None => self.cheapest_greedy(cost),
        }
    }

    fn cheapest_is_exact(&self) -> bool {
        self.listed.is_some() || self.crossing_once
    }

    /// Two different cartels, and a quorum of each, all equally likely.
    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let first = rng.below(self.cartels.len());
        let step = 1 + rng.below(self.cartels.len() - 1);
        let second = (first + step) % self.cartels.len();
        let union = self.cartels[first]
            .sample(rng)
            .union(&self.cartels[second].sample(rng));
        if self.antichain() {
            return union;
        }
        let cost: Vec<f64> = (0..self.nodes()).map(|_| rng.unit()).collect();
        self.minimal(union, &cost)
    }

    fn sizes(&self) -> Sizes {
        if let Some(listed) = &self.listed {
            return listed.sizes();
        }
        let mut bounds = Sizes::exact(usize::MAX, 0);
        for (index, cartel) in self.cartels.iter().enumerate() {
            for (_, other) in self.others(index) {
                let (a, b) = (cartel.sizes(), other.sizes());
                bounds.min = bounds.min.min(a.min + b.min - 1);
                bounds.max = bounds.max.max(a.max + b.max - 1);
            }
        }
        bounds.exact = self.antichain();
        if !bounds.exact {
            let cheapest = self.cheapest(&vec![1.0; self.nodes()]);
            bounds.min = cheapest.map_or(bounds.min, |quorum| quorum.len());
            bounds.max = bounds.max.max(bounds.min).min(self.nodes());
        }
        bounds
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        self.listed.as_ref()?.visit(visit)
    }

    fn count(&self) -> Option<f64> {
        match &self.listed {
            Some(listed) => listed.count(),
            // With three nodes in every quorum, a union tells which quorums it was made of.
            None if self.crossing_once && self.quorum_sizes.0 > 2 => {
                let counts: Vec<usize> = self.cartels.iter().map(|cartel| cartel.len()).collect();
                Some(pair_sum(&counts) as f64)
            }
            None => None,
        }
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        self.listed.as_ref()?.mass(odds)
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes());
        let mut held = Vec::with_capacity(self.cartels.len());
        for cartel in &self.cartels {
            held.push(circuit.append(&cartel.circuit()?));
        }
        circuit.at_least(2, held);
        Some(circuit)
    }

    /// Known for equal capacities where nodes and quorums are all alike.
    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let equal = capacity.iter().all(|other| *other == capacity[0]);
        let cover = equal.then(|| self.regular())??;
        let used = cover.iter().filter(|times| **times > 0).count() as f64;
        let size = (2 * self.quorum_sizes.0 - 1) as f64;
        let mark = |times: &u32, value| if *times > 0 { value } else { 0.0 };
        Some(LoadPlan {
            loads: cover.iter().map(|times| mark(times, size / used)).collect(),
            weights: cover.iter().map(|times| mark(times, 1.0)).collect(),
        })
    }

    fn transversal(&self) -> Option<usize> {
        if let [left, right] = self.cartels.as_slice() {
            return Some(left.transversal()?.min(right.transversal()?));
        }
        self.listed.as_ref()?.transversal()
    }
}

/// The sets that contain a quorum of a cartel and meet all of them: the quorums of exclusive
/// requests next to a single group.
#[derive(Clone, Debug)]
pub struct Crossing(Arc<Explicit>);

impl Crossing {
    /// The cheapest way to take one quorum whole and one node of every other, for disjoint ones.
    fn cheapest_disjoint(&self, cost: &[f64]) -> Option<NodeSet> {
        let least = |place: usize| {
            let members = self.0.members(place);
            members.min_by(|a, b| cost[*a].total_cmp(&cost[*b]))
        };
        let picks: Vec<usize> = (0..self.0.len()).filter_map(least).collect();
        let rest = |place: usize| -> f64 {
            let sum: f64 = self.0.members(place).map(|node| cost[node]).sum();
            // Infinity less infinity is not a number, and the quorum is of no use then.
            if sum.is_finite() {
                sum - cost[picks[place]]
            } else {
                sum
            }
        };
        let mut set = NodeSet::of(self.nodes(), picks.iter().copied());
        // The node of a quorum of one is that quorum: nothing more to take.
        if self.0.sizes().min > 1 {
            let whole = (0..self.0.len()).min_by(|a, b| rest(*a).total_cmp(&rest(*b)))?;
            self.0.members(whole).for_each(|node| {
                set.insert(node);
            });
        }
        cost_of(&set, cost).is_finite().then_some(set)
    }
}

impl Family for Crossing {
    fn nodes(&self) -> usize {
        self.0.nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.0.contains_quorum(set) && !self.0.contains_quorum(&set.complement())
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        if self.0.is_disjoint() {
            return self.cheapest_disjoint(cost);
        }
        let nodes = 0..self.nodes();
        let live = NodeSet::of(self.nodes(), nodes.filter(|node| cost[*node].is_finite()));
        self.contains_quorum(&live)
            .then(|| shrink(&live, cost, &|set| self.contains_quorum(set)))
    }

    fn cheapest_is_exact(&self) -> bool {
        self.0.is_disjoint()
    }

    /// A quorum of the cartel, all equally likely, and random nodes of the others.
    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut cost: Vec<f64> = (0..self.nodes()).map(|_| 1.0 + rng.unit()).collect();
        for node in self.0.sample(rng).iter() {
            cost[node] = 0.0;
        }
        self.cheapest(&cost)
            .expect("invariant: all nodes together contain a quorum and meet all")
    }

    fn sizes(&self) -> Sizes {
        let sizes = self.0.sizes();
        let most = self.0.len();
        if self.0.is_disjoint() && sizes.min == 1 {
            // A quorum of one node is taken whole with that node.
            return Sizes::exact(most, most);
        }
        if self.0.is_disjoint() {
            return Sizes::exact(sizes.min + most - 1, sizes.max + most - 1);
        }
        Sizes {
            min: sizes.min,
            max: (sizes.max + most - 1).min(self.nodes()),
            exact: false,
        }
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let minimal = minimal_masks(self.nodes(), &|set| self.contains_quorum(set))?;
        Some(visit_masks(self.nodes(), &minimal, visit))
    }

    fn circuit(&self) -> Option<Circuit> {
        let cartel = self.0.circuit()?;
        let mut circuit = Circuit::new(self.nodes());
        let held = circuit.append(&cartel);
        let met = circuit.append(&cartel.dual());
        circuit.all([held, met]);
        Some(circuit)
    }

    /// To meet all these sets, meet every quorum of the cartel or contain one.
    fn transversal(&self) -> Option<usize> {
        Some(self.0.transversal()?.min(self.0.sizes().min))
    }
}

/// The minimal sets of a monotone function as bit masks in ascending order, for few nodes.
pub(super) fn minimal_masks(nodes: usize, holds: &dyn Fn(&NodeSet) -> bool) -> Option<Vec<u64>> {
    if nodes > ENUMERATED_NODES_MAX {
        return None;
    }
    let held: Vec<bool> = (0..1u64 << nodes)
        .map(|mask| holds(&NodeSet::from_mask(nodes, mask)))
        .collect();
    let minimal = |mask: &u64| {
        held[*mask as usize]
            && (0..nodes).all(|node| mask >> node & 1 == 0 || !held[(mask ^ 1 << node) as usize])
    };
    Some((0..1u64 << nodes).filter(minimal).collect())
}

/// Calls `visit` with the set of each mask.
pub(super) fn visit_masks(
    nodes: usize,
    masks: &[u64],
    visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>,
) -> ControlFlow<()> {
    masks
        .iter()
        .try_for_each(|mask| visit(&NodeSet::from_mask(nodes, *mask)))
}

/// Up to so many nodes, quorums are found by going through all sets.
pub(super) const ENUMERATED_NODES_MAX: usize = 16;
/// The most pairs of quorums that are checked for a common node.
const CHECKED_PAIRS_MAX: usize = 1 << 24;
/// The most unions that are kept as a list.
const LISTED_PAIRS_MAX: usize = 1 << 12;
/// The most members of all listed unions.
const LISTED_MEMBERS_MAX: usize = 1 << 18;
/// The most quorums among which disjoint ones are searched.
const LISTED_DEGREE_MAX: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use super::super::affine::affine_cartels;
    use super::super::surficial::Surficial;
    use super::*;

    fn surficial(widths: &[usize]) -> Vec<Arc<Explicit>> {
        let geometry = Surficial::with_widths(None, widths).unwrap();
        let cartels = 0..widths.len();
        cartels
            .map(|index| Arc::new(geometry.cartel(index).unwrap()))
            .collect()
    }

    fn costs(nodes: usize, rng: &mut Prng) -> Vec<f64> {
        (0..nodes)
            .map(|_| {
                if rng.chance(0.2) {
                    f64::INFINITY
                } else {
                    rng.unit()
                }
            })
            .collect()
    }

    /// The ways that serve systems too large to list must agree with the list of small ones.
    #[test]
    fn unlisted_pairs_agree_with_listed_ones() {
        let mut rng = Prng::new(1);
        let mut systems: Vec<_> = [4, 9, 16, 25]
            .iter()
            .map(|nodes| affine_cartels(*nodes, 3).unwrap())
            .map(|cartels| cartels.into_iter().map(Arc::new).collect())
            .collect();
        systems.extend([
            surficial(&[2, 2]),
            surficial(&[1, 4]),
            surficial(&[1, 1, 1]),
            surficial(&[1, 2, 3]),
            // Here the union of cartels 1 and 2 contains others.
            surficial(&[1, 1, 3]),
            surficial(&[3, 3, 3, 2]),
        ]);
        for cartels in systems {
            let full = Pairs::new(cartels);
            let listed = full.listed.clone().unwrap();
            let unlisted = Pairs {
                listed: None,
                ..full
            };
            assert!(unlisted.crossing_once);
            let sizes = unlisted.sizes();
            assert!(!sizes.exact || sizes == listed.sizes(), "{sizes:?}");
            assert!(
                unlisted
                    .count()
                    .is_none_or(|count| listed.count() == Some(count))
            );
            let quorums: Vec<NodeSet> = listed.quorums().collect();
            for _ in 0..100 {
                assert!(quorums.contains(&unlisted.sample(&mut rng)));
                let cost = costs(unlisted.nodes(), &mut rng);
                let best = listed.cheapest(&cost).map(|quorum| cost_of(&quorum, &cost));
                let found = unlisted.cheapest(&cost);
                let total = found.as_ref().map(|quorum| cost_of(quorum, &cost));
                assert_eq!(best.is_some(), total.is_some());
                let gap = best.unwrap_or(0.0) - total.unwrap_or(0.0);
                assert!(gap.abs() < 1e-12, "{best:?} {total:?}");
                assert!(found.is_none_or(|quorum| quorums.contains(&quorum)));
                let greedy = unlisted.cheapest_greedy(&cost);
                assert_eq!(greedy.is_some(), best.is_some());
                assert!(greedy.is_none_or(|quorum| quorums.contains(&quorum)));
            }
        }
    }
}
