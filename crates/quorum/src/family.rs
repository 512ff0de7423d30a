//! What every construction offers: the one trait behind protocols, checks, measures and drawings.

use std::fmt::Debug;
use std::ops::ControlFlow;

use crate::{Circuit, NodeSet, Prng};

/// A family of quorums over nodes `0..nodes()`, seen as the monotone function "does this set
/// contain a quorum?".
///
/// A family promises nothing about intersection; the types of [`crate::system`] do. Protocols use
/// [`Family::contains_quorum`] and [`pick`]; the rest serves checks, measures and drawings.
/// Methods with a default that answers `None` are knowledge a construction may have: where it has
/// none, [`crate::measure`] finds the value from the other methods, or bounds it.
pub trait Family: Debug + Send + Sync {
    /// How many nodes there are. Sets and slices given to this family have this size.
    fn nodes(&self) -> usize;

    /// Whether `set` contains a quorum.
    fn contains_quorum(&self, set: &NodeSet) -> bool;

    /// A minimal quorum of least total cost, or `None` if every quorum has a node of infinite
    /// cost. Costs are never negative or NaN. See [`Family::cheapest_is_exact`].
    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet>;

    /// Whether [`Family::cheapest`] is a true minimum over all quorums. Where it is not, it finds
    /// a quorum whenever there is one, but maybe not the cheapest, and load has no lower bound
    /// from it.
    fn cheapest_is_exact(&self) -> bool {
        true
    }

    /// A minimal quorum drawn from the family's own strategy for a cluster with every node up:
    /// the load-optimal one where it is known. The node loads of that strategy are those of
    /// [`Family::load_plan`] where that is given.
    fn sample(&self, rng: &mut Prng) -> NodeSet;

    /// The sizes of the smallest and the largest minimal quorum.
    fn sizes(&self) -> Sizes;

    /// The quorum that the construction assigns to `site`, where it assigns one. It contains
    /// `site` if the construction has the inclusion property, and for the sake of that it may
    /// have a node more than a minimal quorum.
    fn own(&self, site: usize) -> Option<NodeSet> {
        let _ = site;
        None
    }

    /// Calls `visit` with the minimal quorums, each once, until it breaks. The order is fixed.
    /// A family that cannot list its quorums answers `None` without a call.
    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>>;

    /// How many minimal quorums there are, as a floating point number (it may be huge), where
    /// that is known without listing them.
    fn count(&self) -> Option<f64> {
        None
    }

    /// The exact mass of the live sets that contain a quorum and of those that do not, by a
    /// recurrence that only adds and multiplies, so that tiny failure probabilities keep their
    /// digits. `None` where no recurrence is known for these odds.
    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let _ = odds;
        None
    }

    /// The family as a circuit of threshold gates, for decision diagrams. Variables appear in
    /// the order that keeps the diagram small. `None` where the circuit would be too large.
    fn circuit(&self) -> Option<Circuit> {
        None
    }

    /// A strategy and its certificate for nodes of the given capacities (all positive).
    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let _ = capacity;
        None
    }

    /// The size of the smallest set that meets every quorum, where it is known: with one node
    /// fewer down, some quorum is always left.
    fn transversal(&self) -> Option<usize> {
        None
    }

    /// Whether of every set and its complement exactly one contains a quorum, where the
    /// construction proves it: then the family is a coterie that no other dominates.
    fn is_self_dual(&self) -> bool {
        false
    }

    /// The part of the family that is used while every node is up, if that is not the whole
    /// family. Load is measured there: the rest is for failures.
    fn primary(&self) -> Option<&dyn Family> {
        None
    }
}

/// The sizes of a family's minimal quorums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the smallest quorum.
    pub min: usize,
    /// Size of the largest minimal quorum.
    pub max: usize,
    /// Whether both are exact; otherwise no quorum is known to be smaller than `min`, and none is
    /// larger than `max`.
    pub exact: bool,
}

impl Sizes {
    /// Exact sizes.
    pub fn exact(min: usize, max: usize) -> Self {
        Self {
            min,
            max,
            exact: true,
        }
    }
}

/// The weights of a node being up and down. They sum to 1 for a probability; recurrences that
/// condition on something use other sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odds {
    /// Weight of the node being up.
    pub up: f64,
    /// Weight of the node being down.
    pub down: f64,
}

impl Odds {
    /// A node that is down with probability `down`.
    pub fn down(down: f64) -> Self {
        Self {
            up: 1.0 - down,
            down,
        }
    }
}

/// The total weight of the live sets that contain a quorum, and of those that do not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mass {
    /// Weight of the sets with a quorum.
    pub live: f64,
    /// Weight of the sets without one: the failure probability.
    pub dead: f64,
}

/// A strategy's node loads, and node weights that prove no strategy does better.
///
/// With capacities `c`, every strategy's load is at least `min over quorums of weights(quorum)`
/// when `sum of c[i] * weights[i]` is 1. [`crate::measure::load`] checks both sides itself, so a
/// wrong plan shows as a gap and never as a wrong answer.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPlan {
    /// The probability with which the strategy uses each node, or an upper bound of it.
    pub loads: Vec<f64>,
    /// The certificate: not negative, of any scale.
    pub weights: Vec<f64>,
}

/// A quorum that avoids `avoid`, or `None` if there is none.
///
/// Without weights and with nothing to avoid this samples the family's strategy (load-optimal
/// where it is known). Otherwise it takes the cheapest quorum, where a node costs its weight plus
/// a random part: equal nodes are equally likely, and the random part of all nodes together is
/// too small to outweigh a difference of weights of one in a thousand.
pub fn pick(
    family: &dyn Family,
    avoid: &NodeSet,
    weights: Option<&[f64]>,
    rng: &mut Prng,
) -> Option<NodeSet> {
    if weights.is_none() && avoid.is_empty() {
        return Some(family.sample(rng));
    }
    let nodes = family.nodes();
    let mut cost: Vec<f64> = match weights {
        None => (0..nodes).map(|_| 1.0 + rng.unit()).collect(),
        Some(weights) => {
            let mean = weights.iter().sum::<f64>() / nodes.max(1) as f64;
            let grain = if mean > 0.0 {
                mean * 1e-3 / nodes as f64
            } else {
                1.0
            };
            weights
                .iter()
                .map(|weight| weight + grain * rng.unit())
                .collect()
        }
    };
    for node in avoid.iter() {
        cost[node] = f64::INFINITY;
    }
    family.cheapest(&cost)
}

/// The minimal quorums of a family, or `None` if it cannot list them or has more than `limit`.
pub fn list(family: &dyn Family, limit: usize) -> Option<Vec<NodeSet>> {
    if family.count().is_some_and(|count| count > limit as f64) {
        return None;
    }
    let mut quorums = Vec::new();
    let end = family.visit(&mut |quorum| {
        if quorums.len() == limit {
            return ControlFlow::Break(());
        }
        quorums.push(quorum.clone());
        ControlFlow::Continue(())
    })?;
    end.is_continue().then_some(quorums)
}

/// The total cost of a set.
pub fn cost_of(set: &NodeSet, cost: &[f64]) -> f64 {
    set.iter().map(|node| cost[node]).sum()
}

/// Takes nodes out of `set`, dearest first and in large steps before small ones, while it still
/// passes `keeps`: what is left is minimal. `set` itself must pass.
pub fn shrink(set: &NodeSet, cost: &[f64], keeps: &dyn Fn(&NodeSet) -> bool) -> NodeSet {
    let mut order: Vec<usize> = set.iter().collect();
    order.sort_by(|a, b| cost[*b].total_cmp(&cost[*a]).then(a.cmp(b)));
    let mut left = set.clone();
    // One pass suffices: a node that could not be taken out of a larger set of a monotone
    // family cannot be taken out of a smaller one.
    let mut pending = vec![order.as_slice()];
    while let Some(chunk) = pending.pop() {
        for node in chunk {
            left.remove(*node);
        }
        if keeps(&left) {
            continue;
        }
        for node in chunk {
            left.insert(*node);
        }
        if chunk.len() > 1 {
            let (first, second) = chunk.split_at(chunk.len() / 2);
            pending.push(second);
            pending.push(first);
        }
    }
    left
}
