//! Small families to measure, written as plainly as possible.

use std::ops::ControlFlow;

use conclave_quorum::family::cost_of;
use conclave_quorum::{Circuit, Family, GateId, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// Any `votes` of `nodes` nodes.
#[derive(Clone, Debug)]
pub(crate) struct Threshold {
    pub(crate) nodes: usize,
    pub(crate) votes: usize,
}

impl Family for Threshold {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        set.len() >= self.votes
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut order: Vec<usize> = (0..self.nodes).collect();
        order.sort_by(|a, b| cost[*a].total_cmp(&cost[*b]).then(a.cmp(b)));
        let chosen = &order[..self.votes];
        chosen
            .iter()
            .all(|node| cost[*node].is_finite())
            .then(|| NodeSet::of(self.nodes, chosen.iter().copied()))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut order: Vec<usize> = (0..self.nodes).collect();
        rng.shuffle(&mut order);
        NodeSet::of(self.nodes, order[..self.votes].iter().copied())
    }

    fn sizes(&self) -> Sizes {
        Sizes::exact(self.votes, self.votes)
    }

    fn visit(&self, _: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        None
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        let nodes: Vec<GateId> = (0..self.nodes).map(|node| circuit.node(node)).collect();
        circuit.at_least(self.votes as u64, nodes);
        Some(circuit)
    }
}

/// A list of quorums, with switches for what it admits to know.
#[derive(Clone, Debug)]
pub(crate) struct Explicit {
    pub(crate) nodes: usize,
    pub(crate) quorums: Vec<NodeSet>,
    /// Whether it lists its quorums.
    pub(crate) lists: bool,
    /// Whether it takes the first quorum for the cheapest, and says so.
    pub(crate) vague: bool,
    pub(crate) plan: Option<LoadPlan>,
}

impl Explicit {
    pub(crate) fn new(nodes: usize, quorums: impl IntoIterator<Item = Vec<usize>>) -> Self {
        let all: Vec<NodeSet> = quorums
            .into_iter()
            .map(|quorum| NodeSet::of(nodes, quorum))
            .collect();
        let mut minimal: Vec<NodeSet> = Vec::new();
        for quorum in &all {
            let smaller = all
                .iter()
                .any(|other| other != quorum && other.is_subset(quorum));
            if !smaller && !minimal.contains(quorum) {
                minimal.push(quorum.clone());
            }
        }
        Self {
            nodes,
            quorums: minimal,
            lists: true,
            vague: false,
            plan: None,
        }
    }

    /// The cyclic shifts of a set.
    pub(crate) fn shifts(nodes: usize, set: &[usize]) -> Self {
        let shift = |by| set.iter().map(move |node| (node + by) % nodes).collect();
        Self::new(nodes, (0..nodes).map(shift))
    }

    /// Each row with each column of a square.
    pub(crate) fn grid(side: usize) -> Self {
        let quorum = |(row, column)| {
            let in_row = (0..side).map(move |j| row * side + j);
            let in_column = (0..side).map(move |i| i * side + column);
            in_row.chain(in_column).collect()
        };
        let pairs = (0..side).flat_map(|row| (0..side).map(move |column| (row, column)));
        Self::new(side * side, pairs.map(quorum))
    }

    /// Random sets of two to five nodes.
    pub(crate) fn random(nodes: usize, count: usize, rng: &mut Prng) -> Self {
        let quorums: Vec<Vec<usize>> = (0..count)
            .map(|_| {
                let mut order: Vec<usize> = (0..nodes).collect();
                rng.shuffle(&mut order);
                order.truncate(2 + rng.below(4));
                order
            })
            .collect();
        Self::new(nodes, quorums)
    }

    pub(crate) fn unlisted(&self) -> Self {
        Self {
            lists: false,
            ..self.clone()
        }
    }
}

impl Family for Explicit {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.quorums.iter().any(|quorum| quorum.is_subset(set))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut open = self
            .quorums
            .iter()
            .filter(|quorum| cost_of(quorum, cost).is_finite());
        if self.vague {
            return open.next().cloned();
        }
        open.min_by(|a, b| cost_of(a, cost).total_cmp(&cost_of(b, cost)))
            .cloned()
    }

    fn cheapest_is_exact(&self) -> bool {
        !self.vague
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.quorums[rng.below(self.quorums.len())].clone()
    }

    fn sizes(&self) -> Sizes {
        let sizes = || self.quorums.iter().map(NodeSet::len);
        Sizes::exact(sizes().min().unwrap_or(0), sizes().max().unwrap_or(0))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        self.lists.then(|| self.quorums.iter().try_for_each(visit))
    }

    fn load_plan(&self, _: &[f64]) -> Option<LoadPlan> {
        self.plan.clone()
    }
}

/// Two of three, of two of three, and so on: `3^depth` nodes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) depth: u32,
}

impl Tree {
    fn cheapest_of(cost: &[f64], first: usize) -> (f64, Vec<usize>) {
        if let [own] = cost {
            return (*own, vec![first]);
        }
        let third = cost.len() / 3;
        let mut parts: Vec<(f64, Vec<usize>)> = cost
            .chunks(third)
            .enumerate()
            .map(|(part, cost)| Self::cheapest_of(cost, first + part * third))
            .collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        parts.truncate(2);
        let total = parts.iter().map(|part| part.0).sum();
        (total, parts.into_iter().flat_map(|part| part.1).collect())
    }
}

impl Family for Tree {
    fn nodes(&self) -> usize {
        3usize.pow(self.depth)
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let mut level: Vec<bool> = (0..self.nodes()).map(|node| set.contains(node)).collect();
        while level.len() > 1 {
            level = level
                .chunks(3)
                .map(|part| part.iter().filter(|up| **up).count() >= 2)
                .collect();
        }
        level[0]
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let (total, nodes) = Self::cheapest_of(cost, 0);
        total.is_finite().then(|| NodeSet::of(self.nodes(), nodes))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let cost: Vec<f64> = (0..self.nodes()).map(|_| rng.unit()).collect();
        self.cheapest(&cost).expect("finite costs")
    }

    fn sizes(&self) -> Sizes {
        Sizes::exact(2usize.pow(self.depth), 2usize.pow(self.depth))
    }

    fn visit(&self, _: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        None
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes());
        let mut level: Vec<GateId> = (0..self.nodes()).map(|node| circuit.node(node)).collect();
        while level.len() > 1 {
            level = level
                .chunks(3)
                .map(|part| circuit.at_least(2, part.iter().copied()))
                .collect();
        }
        Some(circuit)
    }
}

/// A threshold that knows its recurrence and its transversal.
#[derive(Clone, Debug)]
pub(crate) struct Voting(pub(crate) Threshold);

impl Family for Voting {
    fn nodes(&self) -> usize {
        self.0.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.0.contains_quorum(set)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        self.0.cheapest(cost)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.0.sample(rng)
    }

    fn sizes(&self) -> Sizes {
        self.0.sizes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        self.0.visit(visit)
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        // The mass of each number of live nodes.
        let mut by_count = vec![1.0];
        for odds in odds {
            let mut next = vec![0.0; by_count.len() + 1];
            for (count, mass) in by_count.iter().enumerate() {
                next[count] += mass * odds.down;
                next[count + 1] += mass * odds.up;
            }
            by_count = next;
        }
        Some(Mass {
            live: by_count[self.0.votes..].iter().sum(),
            dead: by_count[..self.0.votes].iter().sum(),
        })
    }

    fn transversal(&self) -> Option<usize> {
        Some(self.0.nodes - self.0.votes + 1)
    }
}

/// A family of which a part is used while every node is up.
#[derive(Clone, Debug)]
pub(crate) struct Spare {
    pub(crate) main: Explicit,
    pub(crate) whole: Threshold,
}

impl Family for Spare {
    fn nodes(&self) -> usize {
        self.whole.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.whole.contains_quorum(set)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        self.whole.cheapest(cost)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.main.sample(rng)
    }

    fn sizes(&self) -> Sizes {
        self.whole.sizes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        self.whole.visit(visit)
    }

    fn primary(&self) -> Option<&dyn Family> {
        Some(&self.main)
    }
}
