//! The strategy of a hierarchy and its load.
//!
//! Every quorum contains a quorum of the root cluster, so no strategy has a smaller load than the
//! root's coterie alone. This strategy reaches it: it draws a root quorum by the coterie's own
//! strategy, goes on with the child of a member *of that quorum*, and so on down. A chain below a
//! delegate is then used only while the delegate is used anyway, so no node below has a larger
//! load than the delegate above it, and the delegates have exactly their loads in the root.
//!
//! The child is drawn in proportion to the root's load certificate. All quorums of an optimal
//! strategy have the same weight in an optimal certificate, so a child of weight `w` and load `x`
//! is drawn with probability `x w / (weight of a quorum)`: exact, without listing quorums.

use std::collections::BTreeMap;

use super::{ClusterId, Multilevel, Part};
use crate::family::{cost_of, shrink};
use crate::{Family, LoadPlan, NodeSet, Prng};

/// How far two sides of a plan may differ, relatively, to count as equal.
const SLACK: f64 = 1e-9;

impl Multilevel {
    /// A lower bound for the load of every strategy, proven by the root's coterie alone: every
    /// quorum contains one of the root's. `None` where the root's coterie has no plan, or where
    /// its cheapest quorum is not known to be cheapest.
    pub fn load_lower(&self) -> Option<f64> {
        let root = self.coterie(self.clusters.root());
        if !root.cheapest_is_exact() {
            return None;
        }
        let weights = self.part(self.clusters.root()).weights()?;
        let total: f64 = weights.iter().sum();
        let least = cost_of(&root.cheapest(weights)?, weights);
        (total > 0.0).then(|| least / total)
    }

    /// The mean size of the quorums that [`Family::sample`] draws, or a little more: a drawn
    /// quorum drops members that a delegate from above makes needless. `None` without a plan.
    pub fn expected_size(&self) -> Option<f64> {
        let plan = self.load_plan(&vec![1.0; self.nodes()])?;
        Some(plan.loads.iter().sum())
    }
}

impl Part {
    /// The load certificate of the coterie for equal capacities.
    fn weights(&self) -> Option<&[f64]> {
        let find = || {
            let plan = self.family.load_plan(&vec![1.0; self.family.nodes()])?;
            (plan.weights.len() == self.family.nodes()).then_some(plan.weights)
        };
        self.weights.get_or_init(find).as_deref()
    }
}

pub(super) fn sample(system: &Multilevel, rng: &mut Prng) -> NodeSet {
    let clusters = &system.clusters;
    let mut union = NodeSet::new(clusters.nodes());
    // Deep members are dropped first: those of the root's quorum are all needed.
    let mut depth = vec![0.0; clusters.nodes()];
    let mut id = clusters.root();
    loop {
        let places = system.coterie(id).sample(rng);
        for place in places.iter() {
            let node = clusters.member(id, place);
            if union.insert(node) {
                depth[node] = id.level() as f64;
            }
        }
        let place = draw_child(system.part(id), &places, rng);
        let Some(child) = clusters.children(id).nth(place) else {
            break;
        };
        id = child;
    }
    shrink(&union, &depth, &|set| system.contains_quorum(set))
}

/// The place of the member of the quorum whose child the chain goes on with.
fn draw_child(part: &Part, quorum: &NodeSet, rng: &mut Prng) -> usize {
    let places: Vec<usize> = quorum.iter().collect();
    let weighted = part.weights().and_then(|weights| {
        let shares: Vec<f64> = places.iter().map(|place| weights[*place]).collect();
        rng.weighted(&shares)
    });
    let drawn = weighted.unwrap_or_else(|| rng.below(places.len()));
    places.get(drawn).copied().unwrap_or(0)
}

pub(super) fn load_plan(system: &Multilevel, capacity: &[f64]) -> Option<LoadPlan> {
    let clusters = &system.clusters;
    if capacity.len() != clusters.nodes() {
        return None;
    }
    let equal = capacity.windows(2).all(|pair| pair[0] == pair[1]);
    let mut known = BTreeMap::new();
    let mut loads = vec![0.0; clusters.nodes()];
    let mut weights = vec![0.0; clusters.nodes()];
    let mut reached = vec![(clusters.root(), 1.0)];
    while let Some((id, reach)) = reached.pop() {
        let key = system.key(id);
        // Clusters of equal level, size and capacities have equal plans.
        let plan = match known.remove(&key) {
            Some(plan) if equal => plan,
            _ => ClusterPlan::new(system, id, capacity)?,
        };
        for (place, node) in clusters.members(id).enumerate() {
            // The delegate of a cluster on the chain is in the quorum above already.
            if place > 0 || id.level() == 0 {
                loads[node] = reach * plan.loads[place];
            }
            if id.level() == 0 {
                weights[node] = plan.weights[place];
            }
        }
        let children = clusters.children(id).zip(&plan.drawn);
        reached.extend(children.map(|(child, drawn)| (child, reach * drawn)));
        known.insert(key, plan);
    }
    Some(LoadPlan { loads, weights })
}

/// The plan of one cluster's coterie, and how often each of its children is drawn.
#[derive(Debug)]
struct ClusterPlan {
    loads: Vec<f64>,
    weights: Vec<f64>,
    drawn: Vec<f64>,
}

impl ClusterPlan {
    fn new(system: &Multilevel, id: ClusterId, capacity: &[f64]) -> Option<Self> {
        let coterie = system.coterie(id);
        let members = system.clusters.members(id);
        let capacity: Vec<f64> = members.map(|node| capacity[node]).collect();
        let LoadPlan { loads, weights } = coterie.load_plan(&capacity)?;
        if loads.len() != capacity.len() || weights.len() != capacity.len() {
            return None;
        }
        let load = loads.iter().zip(&capacity).map(|(load, cap)| load / cap);
        let load = load.fold(0.0, f64::max);
        let total: f64 = weights.iter().zip(&capacity).map(|(w, cap)| w * cap).sum();
        let least = cost_of(&coterie.cheapest(&weights)?, &weights);
        let tight = coterie.cheapest_is_exact()
            && least > 0.0
            && (load * total - least).abs() <= SLACK * least;
        let drawn = loads.iter().zip(&weights).map(|(load, weight)| {
            // Without a tight certificate only this is known: the child of a member is drawn
            // while the member is in use.
            let share = if tight { weight / least } else { 1.0 };
            load * share.min(1.0)
        });
        let drawn = drawn.collect();
        Some(Self {
            loads,
            weights,
            drawn,
        })
    }
}
