//! The cheapest quorum of a hierarchy, exact if the coteries' own cheapest quorums are.
//!
//! Two clusters of a chain share only the delegate of the lower one. So from a cluster down two
//! prices are enough: with its delegate to pay, and with its delegate paid for above. A cluster
//! that goes on with child `j` pays for its own quorum, where `j`'s delegate is cheaper by what
//! it saves below, plus the price of `j` with its delegate to pay: one call of the coterie's
//! `cheapest`.

use super::{ClusterId, Multilevel};
use crate::family::{cost_of, shrink};
use crate::{Family, NodeSet};

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
