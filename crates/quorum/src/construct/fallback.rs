//! Fallback quorums: enlargement and self-dual completion.
//!
//! A family of small quorums loses its last quorum early when nodes fail. A fallback adds larger
//! quorums to it that still meet whatever the family must meet, so that requests go on; the small
//! ones stay in use while nodes are up.
//!
//! - [`completion`] of a coterie `f`: also every set that meets all quorums of `f` and holds a
//!   majority of votes. Exactly one of any set and its complement then has a quorum: if neither
//!   had one of `f`, both meet all quorums of `f`, and one of them has the majority. So no coterie
//!   has more quorums; it is *nondominated*.
//! - [`balanced`] group system: cartel `i` may also use every set that meets all quorums of the
//!   other cartels and holds a majority of votes. Two such sets meet by majority.
//! - [`nondominated`] group system, after Joung, "Quorum-Based Algorithms for Group Mutual
//!   Exclusion", section 3: in order, each cartel is replaced by all sets that meet the present
//!   quorums of all others. This is the most a cartel can have, but the first takes nearly all.
//!
//! Majority means more than half of the votes; each node has one vote, and node 1 has two if the
//! number of nodes is even, so that of a set and its complement exactly one has the majority.
//!
//! In both group systems the added sets also meet every exclusive quorum. The balanced rule gives
//! exclusive requests fallback sets too: the majorities that meet all base quorums; under the
//! nondominated rule they keep their own quorums alone. Where
//! an exclusive quorum is made of quorums of two cartels that is no further demand: an
//! added set of cartel `c` meets all quorums of the other cartels, and of the two at least one is
//! not `c`.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use super::groups::{ENUMERATED_NODES_MAX, minimal_masks, visit_masks};
use crate::family::shrink;
use crate::{Circuit, Coterie, Family, GateId, GroupSystem, Mass, NodeSet, Odds, Prng, Sizes};

/// The nondominated coterie that has all quorums of the given one.
pub fn completion(coterie: &Coterie) -> Coterie {
    let base = coterie.family().clone();
    let against = vec![base.clone()];
    Coterie::by_construction(Arc::new(Fallback::new(base, Rule::Majority { against })))
}

/// The group system in which every cartel has the majority sets that meet all it must meet.
pub fn balanced(groups: &GroupSystem) -> GroupSystem {
    // Exclusive requests may use a majority that meets every base quorum. It meets the added
    // sets of the cartels, and others of its kind, because all of them are majorities.
    let against = groups.cartels().iter().chain([groups.exclusive().family()]);
    let rule = Rule::Majority {
        against: against.cloned().collect(),
    };
    let exclusive = Arc::new(Fallback::new(groups.exclusive().family().clone(), rule));
    let cartel_rule = |index: usize| {
        let others = groups.cartels().iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let exclusive = groups.exclusive().family();
        let against = others
            .map(|(_, cartel)| cartel)
            .chain([exclusive])
            .cloned()
            .collect();
        Rule::Majority { against }
    };
    enlarge(groups, &cartel_rule, exclusive)
}

/// The group system in which each cartel in turn has all sets that meet the quorums, as they are
/// by then, of all other cartels.
pub fn nondominated(groups: &GroupSystem) -> GroupSystem {
    let cartels: Arc<[Arc<dyn Family>]> = groups.cartels().into();
    let exclusive = groups.exclusive().family().clone();
    let rule = |index| Rule::Turn {
        index,
        cartels: Arc::clone(&cartels),
        exclusive: exclusive.clone(),
    };
    enlarge(groups, &rule, exclusive.clone())
}

fn enlarge(
    groups: &GroupSystem,
    rule: &dyn Fn(usize) -> Rule,
    exclusive: Arc<dyn Family>,
) -> GroupSystem {
    let cartels = groups.cartels().iter().enumerate();
    let cartels = cartels
        .map(|(index, base)| Arc::new(Fallback::new(base.clone(), rule(index))) as Arc<dyn Family>)
        .collect();
    GroupSystem::by_construction(cartels, exclusive)
}

/// A family enlarged by fallback quorums. The base family's quorums come first: they are sampled,
/// and the fallback is only searched when every base quorum has a node that is ruled out.
#[derive(Clone, Debug)]
pub struct Fallback {
    base: Arc<dyn Family>,
    rule: Rule,
    /// The minimal quorums as bit masks, once they have been asked for.
    minimal: OnceLock<Option<Vec<u64>>>,
}

/// Which sets are added to the base family.
#[derive(Clone, Debug)]
enum Rule {
    /// The sets that hold a majority and meet every quorum of these families.
    Majority { against: Vec<Arc<dyn Family>> },
    /// The sets that meet every quorum of the other cartels, of which those before `index` have
    /// had their turn, and every exclusive quorum.
    Turn {
        index: usize,
        cartels: Arc<[Arc<dyn Family>]>,
        exclusive: Arc<dyn Family>,
    },
}

impl Fallback {
    fn new(base: Arc<dyn Family>, rule: Rule) -> Self {
        Self {
            base,
            rule,
            minimal: OnceLock::new(),
        }
    }

    /// The family that is enlarged.
    pub fn base(&self) -> &Arc<dyn Family> {
        &self.base
    }

    /// The minimal quorums, for few nodes.
    fn minimal(&self) -> Option<&[u64]> {
        self.minimal
            .get_or_init(|| minimal_masks(self.nodes(), &|set| self.contains_quorum(set)))
            .as_deref()
    }

    /// Whether a base quorum may contain a smaller fallback quorum.
    fn may_shrink(&self, quorum: &NodeSet) -> bool {
        match &self.rule {
            Rule::Majority { .. } => has_majority(quorum),
            Rule::Turn { .. } => true,
        }
    }
}

/// Whether the set holds more than half of the votes.
fn has_majority(set: &NodeSet) -> bool {
    let nodes = set.capacity();
    let votes = set.len() + usize::from(nodes.is_multiple_of(2) && set.contains(0));
    votes > nodes / 2
}

/// The fewest nodes with a majority.
fn majority_size(nodes: usize) -> usize {
    nodes.div_ceil(2).max(1)
}

/// Whether the cartel at `index` has a quorum in `set` after the turns of the cartels up to it.
fn holds_in_turn(
    index: usize,
    cartels: &[Arc<dyn Family>],
    exclusive: &Arc<dyn Family>,
    set: &NodeSet,
) -> bool {
    let other = set.complement();
    if exclusive.contains_quorum(&other) {
        return false;
    }
    if cartels[index + 1..]
        .iter()
        .any(|later| later.contains_quorum(&other))
    {
        return false;
    }
    // Each turn of an earlier cartel is taken for the set and its complement side by side.
    let both = |family: &Arc<dyn Family>| [set, &other].map(|set| family.contains_quorum(set));
    let base: Vec<[bool; 2]> = cartels[1..].iter().map(both).collect();
    let apart = both(exclusive);
    let mut enlarged: Vec<[bool; 2]> = Vec::with_capacity(index + 1);
    for turn in 0..=index {
        let against = || enlarged.iter().chain(&base[turn..]).chain([&apart]);
        let holds = !against().any(|[_, other]| *other);
        let other_holds = !against().any(|[set, _]| *set);
        enlarged.push([holds, other_holds]);
    }
    enlarged[index][0]
}

impl Family for Fallback {
    fn nodes(&self) -> usize {
        self.base.nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        match &self.rule {
            Rule::Majority { against } => {
                self.base.contains_quorum(set)
                    || has_majority(set) && {
                        let other = set.complement();
                        !against.iter().any(|family| family.contains_quorum(&other))
                    }
            }
            // The base quorums are among these sets, as they meet those of all other cartels.
            Rule::Turn {
                index,
                cartels,
                exclusive,
            } => holds_in_turn(*index, cartels, exclusive, set),
        }
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let start = match self.base.cheapest(cost) {
            Some(quorum) if !self.may_shrink(&quorum) => return Some(quorum),
            Some(quorum) => quorum,
            None => {
                let nodes = 0..self.nodes();
                NodeSet::of(self.nodes(), nodes.filter(|node| cost[*node].is_finite()))
            }
        };
        self.contains_quorum(&start)
            .then(|| shrink(&start, cost, &|set| self.contains_quorum(set)))
    }

    fn cheapest_is_exact(&self) -> bool {
        false
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let quorum = self.base.sample(rng);
        if !self.may_shrink(&quorum) {
            return quorum;
        }
        let cost: Vec<f64> = (0..self.nodes()).map(|_| rng.unit()).collect();
        shrink(&quorum, &cost, &|set| self.contains_quorum(set))
    }

    fn sizes(&self) -> Sizes {
        if let Some(minimal) = self.minimal() {
            let sizes = minimal.iter().map(|mask| mask.count_ones() as usize);
            let (min, max) = (sizes.clone().min(), sizes.max());
            return Sizes::exact(min.unwrap_or(0), max.unwrap_or(0));
        }
        let base = self.base.sizes();
        let majority = majority_size(self.nodes());
        Sizes {
            min: base.min.min(majority),
            max: base.max.max(majority),
            exact: false,
        }
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        self.base.own(site)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        Some(visit_masks(self.nodes(), self.minimal()?, visit))
    }

    fn count(&self) -> Option<f64> {
        self.minimal().map(|minimal| minimal.len() as f64)
    }

    /// By going through all live sets, for few nodes.
    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let nodes = self.nodes();
        if nodes > ENUMERATED_NODES_MAX {
            return None;
        }
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        for mask in 0..1u64 << nodes {
            let set = NodeSet::from_mask(nodes, mask);
            let weight: f64 = (0..nodes)
                .map(|node| {
                    let Odds { up, down } = odds[node];
                    if set.contains(node) { up } else { down }
                })
                .product();
            let side = if self.contains_quorum(&set) {
                &mut mass.live
            } else {
                &mut mass.dead
            };
            *side += weight;
        }
        Some(mass)
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes());
        match &self.rule {
            Rule::Majority { against } => {
                let base = circuit.append(&self.base.circuit()?);
                let mut needs = vec![majority_gate(&mut circuit, self.nodes())];
                for family in against {
                    needs.push(circuit.append(&family.circuit()?.dual()));
                }
                let fallback = circuit.all(needs);
                circuit.any([base, fallback]);
            }
            Rule::Turn {
                index,
                cartels,
                exclusive,
            } => turn_gates(&mut circuit, *index, cartels, exclusive)?,
        }
        Some(circuit)
    }

    /// To meet every quorum, a set must meet the base quorums and hold a majority or a quorum
    /// that the fallback is against; such a quorum alone meets them all.
    fn transversal(&self) -> Option<usize> {
        if let Some(minimal) = self.minimal() {
            let masks = 0..1u64 << self.nodes();
            return masks
                .filter(|mask| minimal.iter().all(|quorum| quorum & mask != 0))
                .map(|mask| mask.count_ones() as usize)
                .min();
        }
        let Rule::Majority { against } = &self.rule else {
            return None;
        };
        let sizes: Vec<Sizes> = against.iter().map(|family| family.sizes()).collect();
        let least = sizes.iter().map(|size| size.min).min()?;
        let known = sizes.iter().all(|size| size.exact) && least <= majority_size(self.nodes());
        known.then_some(least)
    }

    fn is_self_dual(&self) -> bool {
        // Only the completion of a coterie asks for nothing but its own quorums.
        match &self.rule {
            Rule::Majority { against } => {
                matches!(against.as_slice(), [only] if Arc::ptr_eq(only, &self.base))
            }
            Rule::Turn { .. } => false,
        }
    }

    fn primary(&self) -> Option<&dyn Family> {
        Some(self.base.as_ref())
    }
}

fn majority_gate(circuit: &mut Circuit, nodes: usize) -> GateId {
    let inputs = (0..nodes)
        .map(|node| {
            let votes = 1 + u64::from(node == 0 && nodes.is_multiple_of(2));
            (circuit.node(node), votes)
        })
        .collect();
    circuit.vote(nodes as u64 / 2 + 1, inputs)
}

/// The gate of the cartel at `index` after its turn, made last. Each cartel before it has a gate
/// and one for its dual: "meets every quorum".
fn turn_gates(
    circuit: &mut Circuit,
    index: usize,
    cartels: &[Arc<dyn Family>],
    exclusive: &Arc<dyn Family>,
) -> Option<()> {
    let mut with_dual = |family: &Arc<dyn Family>| {
        let family = family.circuit()?;
        Some((circuit.append(&family), circuit.append(&family.dual())))
    };
    let exclusive = with_dual(exclusive)?;
    let mut later = Vec::with_capacity(cartels.len());
    for cartel in &cartels[1..] {
        later.push(with_dual(cartel)?);
    }
    let mut enlarged: Vec<(GateId, GateId)> = Vec::with_capacity(index);
    for turn in 0..=index {
        let against: Vec<_> = enlarged
            .iter()
            .chain(&later[turn..])
            .chain([&exclusive])
            .copied()
            .collect();
        let dual = circuit.any(against.iter().map(|(gate, _)| *gate));
        let gate = circuit.all(against.iter().map(|(_, dual)| *dual));
        enlarged.push((gate, dual));
    }
    Some(())
}
