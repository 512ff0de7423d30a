//! What is exact in a hierarchy by recurrences from the leaf clusters up, although delegates are
//! shared between levels.
//!
//! The spans of the children of a cluster are disjoint, and all that the cluster shares with the
//! chain below a child is the child's delegate. So little has to be known of a chain:
//!
//! - For the failure probability, the joint weights of "the delegate is up" and "the chain has its
//!   quorums": four numbers per cluster, found from those of its children with the coterie's own
//!   recurrence. Each is a sum of products of weights, never a difference, so a failure
//!   probability of 1e-30 keeps its digits.
//! - For the cheapest quorum, two prices: with the delegate to pay, and with the delegate paid for
//!   above. A cluster that goes on with child `j` pays for its own quorum, where `j`'s delegate is
//!   cheaper by what it saves below, plus the price of `j` with its delegate to pay: one call of
//!   the coterie's `cheapest`. The result is exact if the coteries' answers are.

use super::{ClusterId, Multilevel};
use crate::family::{cost_of, shrink};
use crate::{Family, Mass, NodeSet, Odds};

/// The weights of a chain with and without quorums, each by the state of its delegate.
#[derive(Clone, Copy, Debug)]
struct Chain {
    live: Odds,
    dead: Odds,
}

impl Chain {
    /// The weights of the delegate's states, whatever the chain does.
    fn any(&self) -> Odds {
        Odds {
            up: self.live.up + self.dead.up,
            down: self.live.down + self.dead.down,
        }
    }
}

pub(super) fn mass(system: &Multilevel, odds: &[Odds]) -> Option<Mass> {
    if odds.len() != system.clusters.nodes() {
        return None;
    }
    let chain = chain(system, system.clusters.root(), odds)?;
    Some(Mass {
        live: chain.live.up + chain.live.down,
        dead: chain.dead.up + chain.dead.down,
    })
}

/// The weights of the chains from a cluster down.
fn chain(system: &Multilevel, id: ClusterId, odds: &[Odds]) -> Option<Chain> {
    let side: &dyn Fn(bool) -> Option<Mass> = if system.clusters.is_leaf(id) {
        let members: Vec<Odds> = system.clusters.members(id).map(|node| odds[node]).collect();
        &move |up| system.coterie(id).mass(&given(members.clone(), up))
    } else {
        let children = system.clusters.children(id);
        let below: Option<Vec<Chain>> = children.map(|child| chain(system, child, odds)).collect();
        let below = below?;
        &move |up| side_mass(system, id, &below, up)
    };
    let (up, down) = (side(true)?, side(false)?);
    Some(Chain {
        live: Odds {
            up: up.live,
            down: down.live,
        },
        dead: Odds {
            up: up.dead,
            down: down.dead,
        },
    })
}

/// The weights of the chains from a cluster above the last level, with its delegate up or down.
fn side_mass(system: &Multilevel, id: ClusterId, below: &[Chain], up: bool) -> Option<Mass> {
    let coterie = system.coterie(id);
    let any = || below.iter().map(Chain::any);
    let dead = || below.iter().map(|child| child.dead);
    let silent = coterie.mass(&given(any().collect(), up))?.dead;
    let stranded = coterie.mass(&given(dead().collect(), up))?.live;
    // Live: summed over which child is the first whose chain is live.
    let mut live = 0.0;
    let mut mixed: Vec<Odds> = any().collect();
    for (place, child) in below.iter().enumerate() {
        mixed[place] = child.live;
        live += coterie.mass(&given(mixed.clone(), up))?.live;
        mixed[place] = child.dead;
    }
    Some(Mass {
        live,
        dead: silent + stranded,
    })
}

/// The odds with the first node, the delegate, known to be up or down.
fn given(mut odds: Vec<Odds>, up: bool) -> Vec<Odds> {
    if let Some(first) = odds.first_mut() {
        if up {
            first.down = 0.0;
        } else {
            first.up = 0.0;
        }
    }
    odds
}

/// What the cheapest chain from a cluster down costs; infinite where there is none.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// With the cluster's delegate to pay.
    full: f64,
    /// With the cluster's delegate paid for above.
    shared: f64,
}

/// The first step of a cheapest chain.
struct Step {
    total: f64,
    places: NodeSet,
    child: Option<usize>,
}

pub(super) fn cheapest(system: &Multilevel, cost: &[f64]) -> Option<NodeSet> {
    let clusters = &system.clusters;
    // The prices of each level's clusters, filled from the last level up.
    let mut prices: Vec<Vec<Price>> = vec![Vec::new(); clusters.levels() + 2];
    for level in (1..=clusters.levels()).rev() {
        let below = std::mem::take(&mut prices[level + 1]);
        prices[level] = clusters
            .at(level)
            .map(|id| {
                let total = |shared| {
                    step(system, id, cost, shared, &below).map_or(f64::INFINITY, |step| step.total)
                };
                let full = total(false);
                let paid = cost[clusters.delegate(id)] == 0.0;
                let shared = if paid { full } else { total(true) };
                Price { full, shared }
            })
            .collect();
        prices[level + 1] = below;
    }
    let mut union = NodeSet::new(clusters.nodes());
    let (mut id, mut shared) = (clusters.root(), false);
    loop {
        let step = step(system, id, cost, shared, &prices[id.level() + 1])?;
        system.insert_places(id, &step.places, &mut union);
        let Some(place) = step.child else { break };
        shared = step.places.contains(place) || (shared && place == 0);
        id = clusters.children(id).nth(place)?;
    }
    Some(shrink(&union, cost, &|set| system.contains_quorum(set)))
}

/// The cheapest chain from a cluster down: its quorum there and the child it goes on with.
fn step(
    system: &Multilevel,
    id: ClusterId,
    cost: &[f64],
    shared: bool,
    below: &[Price],
) -> Option<Step> {
    let clusters = &system.clusters;
    let coterie = system.coterie(id);
    let mut local: Vec<f64> = clusters.members(id).map(|node| cost[node]).collect();
    if shared {
        local[0] = 0.0;
    }
    let places = coterie.cheapest(&local)?;
    let base = cost_of(&places, &local);
    if clusters.is_leaf(id) {
        return Some(Step {
            total: base,
            places,
            child: None,
        });
    }
    let mut prices: Vec<Price> = clusters.children(id).map(|c| below[c.index()]).collect();
    if shared {
        prices[0].full = prices[0].shared;
    }
    let mut order: Vec<usize> = (0..prices.len()).collect();
    order.sort_by(|a, b| prices[*a].shared.total_cmp(&prices[*b].shared));
    let mut best: Option<Step> = None;
    for place in order {
        let Price { full, shared } = prices[place];
        let bound = best.as_ref().map_or(f64::INFINITY, |best| best.total);
        if base + shared >= bound {
            break;
        }
        if full.is_infinite() {
            continue;
        }
        let own = local[place];
        local[place] = (own - (full - shared)).max(0.0);
        let quorum = coterie.cheapest(&local);
        if let Some(places) = quorum {
            let total = cost_of(&places, &local) + full;
            if total < bound {
                let child = Some(place);
                best = Some(Step {
                    total,
                    places,
                    child,
                });
            }
        }
        local[place] = own;
    }
    best
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use super::super::{Clusters, MultilevelError};
    use super::*;
    use crate::family::list;
    use crate::{Prng, Sizes};

    /// A family that is nothing but its list of quorums.
    #[derive(Debug)]
    struct Listed(usize, Vec<NodeSet>);

    impl Family for Listed {
        fn nodes(&self) -> usize {
            self.0
        }

        fn contains_quorum(&self, set: &NodeSet) -> bool {
            self.1.iter().any(|quorum| quorum.is_subset(set))
        }

        fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
            let total = |quorum: &&NodeSet| cost_of(quorum, cost);
            let best = self.1.iter().min_by(|a, b| total(a).total_cmp(&total(b)))?;
            total(&best).is_finite().then(|| best.clone())
        }

        fn sample(&self, rng: &mut Prng) -> NodeSet {
            self.1[rng.below(self.1.len())].clone()
        }

        fn sizes(&self) -> Sizes {
            Sizes::exact(1, self.0)
        }

        fn visit(
            &self,
            visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>,
        ) -> Option<ControlFlow<()>> {
            Some(self.1.iter().try_for_each(visit))
        }

        fn mass(&self, odds: &[Odds]) -> Option<Mass> {
            Some(add_up(self, odds))
        }
    }

    fn add_up(family: &dyn Family, odds: &[Odds]) -> Mass {
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        for mask in 0..1u64 << odds.len() {
            let state = |(node, odds): (usize, &Odds)| {
                if mask >> node & 1 == 1 {
                    odds.up
                } else {
                    odds.down
                }
            };
            let weight: f64 = odds.iter().enumerate().map(state).product();
            if family.contains_quorum(&NodeSet::from_mask(odds.len(), mask)) {
                mass.live += weight;
            } else {
                mass.dead += weight;
            }
        }
        mass
    }

    /// Clusters of two where only the second member votes, clusters of three by majority: a
    /// delegate can skip the level between two at which it is used.
    fn uneven() -> Multilevel {
        let coterie = |_, size| {
            let quorums: &[u64] = if size == 2 { &[2] } else { &[3, 5, 6] };
            let sets = quorums.iter().map(|mask| NodeSet::from_mask(size, *mask));
            Ok::<_, MultilevelError>(Arc::new(Listed(size, sets.collect())) as Arc<dyn Family>)
        };
        Multilevel::new(Clusters::build(12, 2).unwrap(), &coterie).unwrap()
    }

    #[test]
    fn a_delegate_paid_for_at_the_root_is_free_two_levels_below() {
        let system = uneven();
        let quorums = list(&system, 1000).unwrap();
        let mut rng = Prng::new(2);
        for _ in 0..500 {
            let cost: Vec<f64> = (0..12).map(|_| rng.unit()).collect();
            let best = quorums.iter().map(|quorum| cost_of(quorum, &cost));
            let best = best.fold(f64::INFINITY, f64::min);
            let found = system.cheapest(&cost).unwrap();
            assert!((cost_of(&found, &cost) - best).abs() < 1e-12);
        }
    }

    #[test]
    fn mass_knows_the_delegate_two_levels_below() {
        let system = uneven();
        let odds: Vec<Odds> = (0..12)
            .map(|node| Odds::down(0.05 + 0.07 * f64::from(node)))
            .collect();
        let (mass, expected) = (system.mass(&odds).unwrap(), add_up(&system, &odds));
        assert!((mass.live / expected.live - 1.0).abs() < 1e-12);
        assert!((mass.dead / expected.dead - 1.0).abs() < 1e-12);
    }
}
