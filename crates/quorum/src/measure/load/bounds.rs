//! What has been proved so far: the best weights from below, the best strategy from above.

use crate::family::cost_of;
use crate::{Family, NodeSet, Sizes};

use super::plan::Plan;
use super::{EXACT_GAP, Load};

/// Finds light quorums, from a list where there is one and else by the construction.
#[derive(Debug)]
pub(super) struct Pricing<'a> {
    family: &'a dyn Family,
    listed: Option<&'a [NodeSet]>,
}

impl<'a> Pricing<'a> {
    pub(super) fn new(family: &'a dyn Family, listed: Option<&'a [NodeSet]>) -> Self {
        let listed = listed.filter(|quorums| !quorums.is_empty());
        Self { family, listed }
    }

    pub(super) fn family(&self) -> &'a dyn Family {
        self.family
    }

    pub(super) fn listed(&self) -> Option<&'a [NodeSet]> {
        self.listed
    }

    /// Whether the lightest quorum found is truly the lightest.
    pub(super) fn exact(&self) -> bool {
        self.listed.is_some() || self.family.cheapest_is_exact()
    }

    /// A light quorum for these weights, with its weight.
    pub(super) fn lightest(&self, weights: &[f64]) -> Option<(NodeSet, f64)> {
        let Some(listed) = self.listed else {
            let quorum = self.family.cheapest(weights)?;
            let weight = cost_of(&quorum, weights);
            return Some((quorum, weight));
        };
        listed
            .iter()
            .map(|quorum| (quorum, cost_of(quorum, weights)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(quorum, weight)| (quorum.clone(), weight))
    }

    /// A rough count of the steps one pricing takes.
    pub(super) fn work(&self) -> u64 {
        let nodes = self.family.nodes() as u64;
        match self.listed {
            Some(quorums) => quorums.len() as u64 * (1 + nodes / 8),
            None if self.exact() => nodes,
            // A search, which asks many times whether a set contains a quorum.
            None => 16 * nodes * nodes,
        }
    }
}

/// The best bounds so far, with their proofs.
#[derive(Debug)]
pub(super) struct Bounds {
    capacity: Vec<f64>,
    lower: f64,
    weights: Vec<f64>,
    upper: f64,
    loads: Vec<f64>,
    strategy: Vec<(NodeSet, f64)>,
}

impl Bounds {
    pub(super) fn new(capacity: &[f64]) -> Self {
        let total: f64 = capacity.iter().sum();
        Self {
            capacity: capacity.to_vec(),
            lower: 0.0,
            weights: vec![1.0 / total; capacity.len()],
            upper: f64::INFINITY,
            loads: vec![0.0; capacity.len()],
            strategy: Vec::new(),
        }
    }

    pub(super) fn lower(&self) -> f64 {
        self.lower
    }

    pub(super) fn upper(&self) -> f64 {
        self.upper
    }

    /// The weights that prove the lower bound.
    pub(super) fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Whether a strategy of this load would close the gap.
    pub(super) fn closes(&self, upper: f64) -> bool {
        upper.is_finite() && (upper - self.lower).abs() <= EXACT_GAP * upper
    }

    pub(super) fn exact(&self) -> bool {
        self.closes(self.upper)
    }

    /// The bound from sizes alone. With every quorum of at least `min` nodes, leave out the `k`
    /// nodes of most capacity and weigh the rest equally: `min - k` of them are in every quorum.
    pub(super) fn offer_sizes(&mut self, sizes: Sizes, some: &NodeSet) {
        let min = if sizes.exact {
            sizes.min.min(some.len())
        } else {
            1
        };
        let mut order: Vec<usize> = (0..self.capacity.len()).collect();
        order.sort_by(|a, b| self.capacity[*b].total_cmp(&self.capacity[*a]));
        let mut weights = vec![1.0; self.capacity.len()];
        // Leaving nodes out helps only where some have more capacity than others.
        let alike = self.capacity.iter().all(|c| *c == self.capacity[0]);
        let most = if alike { min.min(1) } else { min.min(1000) };
        for k in 0..most {
            self.offer_weights(&weights, (min - k) as f64);
            weights[order[k]] = 0.0;
        }
    }

    /// Node weights of any scale, of which every quorum carries at least `lightest`.
    pub(super) fn offer_weights(&mut self, weights: &[f64], lightest: f64) {
        let total: f64 = weights
            .iter()
            .zip(&self.capacity)
            .map(|(weight, capacity)| weight * capacity)
            .sum();
        let lower = lightest / total;
        if lower.is_finite() && lower > self.lower {
            self.lower = lower;
            self.weights = weights.iter().map(|weight| weight / total).collect();
        }
    }

    /// A strategy over `quorums` by shares of any scale. Its loads are computed here.
    pub(super) fn offer_strategy(&mut self, quorums: &[NodeSet], shares: &[f64]) {
        let total: f64 = shares.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            return;
        }
        let mut loads = vec![0.0; self.capacity.len()];
        let mut strategy = Vec::new();
        for (quorum, share) in quorums
            .iter()
            .zip(shares)
            .filter(|(_, share)| **share > 0.0)
        {
            let share = share / total;
            for node in quorum.iter() {
                loads[node] += share;
            }
            strategy.push((quorum.clone(), share));
        }
        let upper = self.busiest(&loads);
        if upper < self.upper {
            self.upper = upper;
            self.loads = loads;
            self.strategy = strategy;
        }
    }

    /// The loads of the construction's own strategy; `true` if they are the best so far.
    pub(super) fn offer_loads(&mut self, plan: &Plan) -> bool {
        let better = plan.upper < self.upper;
        if better {
            self.upper = plan.upper;
            self.loads.clone_from(&plan.loads);
            self.strategy.clear();
        }
        better
    }

    /// The load of the busiest node.
    pub(super) fn busiest(&self, loads: &[f64]) -> f64 {
        loads
            .iter()
            .zip(&self.capacity)
            .map(|(load, capacity)| load / capacity)
            .fold(0.0, f64::max)
    }

    /// The answer. A lower bound that a quorum of the strategy refutes is withdrawn: it came
    /// from a construction that calls a quorum cheapest that is not.
    pub(super) fn finish(self, method: &'static str) -> Load {
        let lightest = self
            .strategy
            .iter()
            .map(|(quorum, _)| cost_of(quorum, &self.weights))
            .fold(self.lower, f64::min);
        let refuted = lightest < self.lower * (1.0 - EXACT_GAP)
            || self.lower > self.upper * (1.0 + EXACT_GAP);
        let exact = self.exact() && !refuted;
        Load {
            lower: if refuted {
                0.0
            } else {
                self.lower.min(self.upper)
            },
            upper: self.upper,
            loads: self.loads,
            weights: self.weights,
            // Shares that are rounding errors of a solver are no part of the strategy.
            strategy: {
                let mut strategy = self.strategy;
                strategy.retain(|(_, share)| *share > 1e-12);
                strategy
            },
            exact,
            method,
        }
    }
}
