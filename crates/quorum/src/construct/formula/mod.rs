//! Read-once formulas of voting gates: votes, trees, hierarchies of votes.
//!
//! Many classic coteries are a formula of "at least `k` votes of these" gates in which every node
//! stands at most once. For such a formula the smallest quorum, the cheapest quorum, the number
//! of quorums, the failure probability, the load and its certificate all follow by one walk over
//! the gates, exactly, for thousands of nodes.
//!
//! The coteries here are Gifford's weighted votes, Agrawal and El Abbadi's tree (each inner
//! node is a vote of two out of itself, its left and its right subtree) and Kumar's hierarchical
//! quorum consensus.

use std::ops::ControlFlow;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::check_nodes;

mod gate;
mod part;

pub use part::{FormulaError, Part, VOTES_MAX};

use gate::{balance, cheapest_votes, plain_count, plain_size, sweep, vote_mass};
use part::{check_part, hierarchy_part, tree_part};

/// Listing quorums recurses once per member; larger systems have too many to list anyway.
const VISIT_NODES_MAX: usize = 4096;

#[derive(Clone, Debug)]
enum Step {
    Node(usize),
    Vote {
        votes: u64,
        /// Inputs by descending votes, then place: the order in which minimal sets are built.
        inputs: Vec<(usize, u64)>,
        plain: bool,
    },
}

/// A read-once formula of voting gates. Nodes that do not stand in it are in no quorum.
#[derive(Clone, Debug)]
pub struct Formula {
    nodes: usize,
    /// Inputs before users; the last step is the output.
    steps: Vec<Step>,
    /// The step whose input each step is, and its place there.
    parent: Vec<Option<usize>>,
    leaf_of: Vec<Option<usize>>,
    /// Probability that the strategy uses a step when it uses the step above.
    usage: Option<Vec<f64>>,
}

impl Formula {
    /// The formula over `nodes` nodes. Every node stands at most once in `part`; votes of each
    /// gate are at least 1 and within reach. The library's own constructions hold to that; for
    /// formulas from outside use [`Formula::checked`].
    pub(crate) fn new(nodes: usize, part: &Part) -> Self {
        let mut formula = Self {
            nodes,
            steps: Vec::new(),
            parent: Vec::new(),
            leaf_of: vec![None; nodes],
            usage: None,
        };
        formula.push(part);
        formula.usage = formula.plan(&vec![1.0; nodes]).map(|plan| plan.usage);
        formula
    }

    /// The formula over `nodes` nodes, or why it is none. `Ok(None)` if some node stands twice.
    pub fn checked(nodes: usize, part: &Part) -> Result<Option<Self>, FormulaError> {
        check_nodes(nodes)?;
        let mut seen = NodeSet::new(nodes);
        if !check_part(part, &mut seen)? {
            return Ok(None);
        }
        Ok(Some(Self::new(nodes, part)))
    }

    /// At least `votes` of `nodes` nodes.
    pub fn threshold(nodes: usize, votes: usize) -> Result<Self, FormulaError> {
        check_nodes(nodes)?;
        let part = Part::at_least(votes, (0..nodes).map(Part::Node).collect());
        check_part(&part, &mut NodeSet::new(nodes))?;
        Ok(Self::new(nodes, &part))
    }

    /// More than half of `nodes` nodes.
    pub fn majority(nodes: usize) -> Result<Self, FormulaError> {
        Self::threshold(nodes, nodes / 2 + 1)
    }

    /// One node decides alone; the others are in no quorum.
    pub fn singleton(nodes: usize) -> Result<Self, FormulaError> {
        check_nodes(nodes)?;
        Ok(Self::new(nodes, &Part::Node(0)))
    }

    /// Nodes with votes. `votes` votes make a quorum; by default more than half of all.
    pub fn weighted(weights: &[u64], votes: Option<u64>) -> Result<Self, FormulaError> {
        check_nodes(weights.len())?;
        let total = weights
            .iter()
            .try_fold(0u64, |sum, weight| sum.checked_add(*weight))
            .ok_or(FormulaError::TooManyVotes { votes: u64::MAX })?;
        let votes = votes.unwrap_or(total / 2 + 1);
        let voters = weights
            .iter()
            .enumerate()
            .filter(|(_, weight)| **weight > 0);
        let inputs = voters.map(|(node, weight)| (Part::Node(node), *weight));
        let part = Part::Vote(votes, inputs.collect());
        check_part(&part, &mut NodeSet::new(weights.len()))?;
        Ok(Self::new(weights.len(), &part))
    }

    /// The tree coterie over any number of nodes, laid out as a heap. A node with only a left
    /// child counts as a leaf: the last node of an even number of nodes never votes.
    pub fn tree(nodes: usize) -> Result<Self, FormulaError> {
        check_nodes(nodes)?;
        Ok(Self::new(nodes, &tree_part(0, nodes)))
    }

    /// Kumar's hierarchy: at each level more than half of the parts below, `fanouts[0]` at the top.
    pub fn hierarchical(fanouts: &[usize]) -> Result<Self, FormulaError> {
        let nodes = fanouts
            .iter()
            .try_fold(1usize, |product, fanout| product.checked_mul(*fanout))
            .unwrap_or(usize::MAX);
        check_nodes(nodes)?;
        Ok(Self::new(nodes, &hierarchy_part(fanouts, &mut (0..nodes))))
    }

    fn push(&mut self, part: &Part) -> usize {
        let step = match part {
            Part::Node(node) => Step::Node(*node),
            Part::Vote(votes, parts) => {
                let mut inputs: Vec<(usize, u64)> = parts
                    .iter()
                    .map(|(part, weight)| (self.push(part), *weight))
                    .collect();
                inputs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
                let plain = inputs.iter().all(|(_, weight)| *weight == 1);
                Step::Vote {
                    votes: *votes,
                    inputs,
                    plain,
                }
            }
        };
        let place = self.steps.len();
        match &step {
            Step::Node(node) => self.leaf_of[*node] = Some(place),
            Step::Vote { inputs, .. } => {
                for (input, _) in inputs {
                    self.parent[*input] = Some(place);
                }
            }
        }
        self.steps.push(step);
        self.parent.push(None);
        place
    }

    /// One value per step, inputs first: `leaf` for nodes, `gate` for votes.
    fn fold<T>(
        &self,
        mut leaf: impl FnMut(usize) -> T,
        mut gate: impl FnMut(u64, &[(usize, u64)], &[T]) -> T,
    ) -> Vec<T> {
        let mut values = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let value = match step {
                Step::Node(node) => leaf(*node),
                Step::Vote { votes, inputs, .. } => gate(*votes, inputs, &values),
            };
            values.push(value);
        }
        values
    }

    fn output(&self) -> usize {
        self.steps.len() - 1
    }

    /// The cheapest inputs of a gate that carry its votes, given each step's cost; all inputs if
    /// no choice has a finite cost.
    fn cheapest_inputs(
        votes: u64,
        inputs: &[(usize, u64)],
        plain: bool,
        cost: &[f64],
    ) -> Vec<usize> {
        if plain {
            let mut order: Vec<usize> = inputs.iter().map(|(input, _)| *input).collect();
            let last = votes as usize - 1;
            order.select_nth_unstable_by(last, |a, b| cost[*a].total_cmp(&cost[*b]).then(a.cmp(b)));
            order.truncate(votes as usize);
            order
        } else {
            cheapest_votes(votes, inputs, cost)
        }
    }

    fn step_costs(&self, cost: &[f64]) -> Vec<f64> {
        let mut values: Vec<f64> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let value = match step {
                Step::Node(node) => cost[*node],
                Step::Vote {
                    votes,
                    inputs,
                    plain,
                } => {
                    let chosen = Self::cheapest_inputs(*votes, inputs, *plain, &values);
                    chosen.iter().map(|input| values[*input]).sum()
                }
            };
            values.push(value);
        }
        values
    }

    /// Sizes by the same sweep that counts: `better` chooses between two sizes.
    fn extreme_size(&self, dual: bool, better: fn(u64, u64) -> u64) -> u64 {
        let values = self.fold(
            |_| 1u64,
            |votes, inputs, below| {
                let total: u64 = inputs.iter().map(|(_, weight)| weight).sum();
                let votes = if dual { total + 1 - votes } else { votes };
                if total == inputs.len() as u64 {
                    return plain_size(votes as usize, inputs, below, better);
                }
                sweep(
                    votes,
                    inputs
                        .iter()
                        .map(|(input, weight)| (below[*input], *weight)),
                    0,
                    |size, input| size + input,
                    better,
                )
                .expect("invariant: the votes of a gate are within reach")
            },
        );
        values[self.output()]
    }

    fn plan(&self, capacity: &[f64]) -> Option<GatePlan> {
        if self
            .steps
            .iter()
            .any(|step| matches!(step, Step::Vote { plain: false, .. }))
        {
            return None;
        }
        let mut value = Vec::with_capacity(self.steps.len());
        let mut usage = vec![1.0; self.steps.len()];
        let mut share = vec![0.0; self.steps.len()];
        for step in &self.steps {
            let load = match step {
                Step::Node(node) => 1.0 / capacity[*node],
                Step::Vote { votes, inputs, .. } => {
                    balance(*votes, inputs, &value, &mut usage, &mut share)
                }
            };
            value.push(load);
        }
        let output = self.output();
        share[output] = 1.0;
        Some(GatePlan { usage, share })
    }

    fn collect(&self, step: usize, choose: &mut dyn FnMut(usize) -> Vec<usize>, set: &mut NodeSet) {
        let mut open = vec![step];
        while let Some(step) = open.pop() {
            match &self.steps[step] {
                Step::Node(node) => {
                    set.insert(*node);
                }
                Step::Vote { .. } => open.extend(choose(step)),
            }
        }
    }

    fn cheapest_of(&self, values: &[f64], step: usize, set: &mut NodeSet) {
        let mut choose = |step: usize| match &self.steps[step] {
            Step::Node(_) => Vec::new(),
            Step::Vote {
                votes,
                inputs,
                plain,
            } => Self::cheapest_inputs(*votes, inputs, *plain, values),
        };
        self.collect(step, &mut choose, set);
    }

    fn visit_goals(
        &self,
        goals: Option<&Goals<'_>>,
        set: &mut NodeSet,
        visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(goals) = goals else {
            return visit(set);
        };
        match &self.steps[goals.step] {
            Step::Node(node) => {
                set.insert(*node);
                let end = self.visit_goals(goals.rest, set, visit);
                set.remove(*node);
                end
            }
            Step::Vote { votes, inputs, .. } => {
                let missing = votes - goals.held;
                for (place, (input, weight)) in inputs.iter().enumerate().skip(goals.from) {
                    let above = Goals {
                        step: goals.step,
                        from: place + 1,
                        held: goals.held + weight,
                        rest: goals.rest,
                    };
                    let rest = if *weight >= missing {
                        goals.rest
                    } else {
                        Some(&above)
                    };
                    let next = Goals {
                        step: *input,
                        from: 0,
                        held: 0,
                        rest,
                    };
                    self.visit_goals(Some(&next), set, visit)?;
                }
                ControlFlow::Continue(())
            }
        }
    }
}

/// What is still to be satisfied while listing quorums.
struct Goals<'a> {
    step: usize,
    from: usize,
    held: u64,
    rest: Option<&'a Goals<'a>>,
}

struct GatePlan {
    usage: Vec<f64>,
    share: Vec<f64>,
}

impl Family for Formula {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let values = self.fold(
            |node| set.contains(node),
            |votes, inputs, below| {
                let mut held = 0;
                inputs.iter().any(|(input, weight)| {
                    held += if below[*input] { *weight } else { 0 };
                    held >= votes
                })
            },
        );
        values[self.output()]
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let values = self.step_costs(cost);
        if values[self.output()].is_infinite() {
            return None;
        }
        let mut set = NodeSet::new(self.nodes);
        self.cheapest_of(&values, self.output(), &mut set);
        Some(set)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut set = NodeSet::new(self.nodes);
        let mut choose = |step: usize| match (&self.steps[step], &self.usage) {
            (Step::Vote { inputs, .. }, Some(usage)) => {
                let marginals: Vec<f64> = inputs.iter().map(|(input, _)| usage[*input]).collect();
                let chosen = rng.with_marginals(&marginals);
                chosen.into_iter().map(|place| inputs[place].0).collect()
            }
            (Step::Vote { votes, inputs, .. }, None) => {
                let mut order = inputs.clone();
                rng.shuffle(&mut order);
                let all: Vec<f64> = vec![1.0; self.steps.len()];
                let mut held = 0;
                order.retain(|(_, weight)| {
                    let needed = held < *votes;
                    held += if needed { *weight } else { 0 };
                    needed
                });
                cheapest_votes(*votes, &order, &all)
            }
            (Step::Node(_), _) => Vec::new(),
        };
        self.collect(self.output(), &mut choose, &mut set);
        set
    }

    fn sizes(&self) -> Sizes {
        let min = self.extreme_size(false, u64::min);
        let max = self.extreme_size(false, u64::max);
        Sizes::exact(min as usize, max as usize)
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        let mut step = (*self.leaf_of.get(site)?)?;
        let sizes: Vec<f64> = self.step_costs(&vec![1.0; self.nodes]);
        let mut set = NodeSet::of(self.nodes, [site]);
        while let Some(parent) = self.parent[step] {
            let Step::Vote {
                votes,
                inputs,
                plain: true,
            } = &self.steps[parent]
            else {
                return None;
            };
            // The others in turn from this one on, so that the own quorums spread evenly.
            let place = inputs.iter().position(|(input, _)| *input == step)?;
            let mut others: Vec<usize> = (1..inputs.len())
                .map(|ahead| inputs[(place + ahead) % inputs.len()].0)
                .collect();
            others.sort_by(|a, b| sizes[*a].total_cmp(&sizes[*b]));
            for other in &others[..*votes as usize - 1] {
                self.cheapest_of(&sizes, *other, &mut set);
            }
            step = parent;
        }
        Some(set)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        if self.nodes > VISIT_NODES_MAX {
            return None;
        }
        let goals = Goals {
            step: self.output(),
            from: 0,
            held: 0,
            rest: None,
        };
        let mut set = NodeSet::new(self.nodes);
        Some(self.visit_goals(Some(&goals), &mut set, visit))
    }

    fn count(&self) -> Option<f64> {
        let values = self.fold(
            |_| 1.0,
            |votes, inputs, below| {
                if let Some(count) = plain_count(votes, inputs, below) {
                    return count;
                }
                let inputs = inputs
                    .iter()
                    .map(|(input, weight)| (below[*input], *weight));
                sweep(
                    votes,
                    inputs,
                    1.0,
                    |count, input| count * input,
                    |a, b| a + b,
                )
                .unwrap_or(0.0)
            },
        );
        Some(values[self.output()])
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let mut values = self.fold(
            |node| Mass {
                live: odds[node].up,
                dead: odds[node].down,
            },
            vote_mass,
        );
        let mut mass = values.pop()?;
        for (node, leaf) in self.leaf_of.iter().enumerate() {
            if leaf.is_none() {
                let total = odds[node].up + odds[node].down;
                mass.live *= total;
                mass.dead *= total;
            }
        }
        Some(mass)
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        let mut gates = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let gate = match step {
                Step::Node(node) => circuit.node(*node),
                Step::Vote { votes, inputs, .. } => {
                    let inputs = inputs
                        .iter()
                        .map(|(input, weight)| (gates[*input], *weight));
                    circuit.vote(*votes, inputs.collect())
                }
            };
            gates.push(gate);
        }
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let GatePlan {
            mut usage,
            mut share,
        } = self.plan(capacity)?;
        let (mut loads, mut weights) = (vec![0.0; self.nodes], vec![0.0; self.nodes]);
        usage[self.output()] = 1.0;
        // From the output down: a step is used as often as the step above uses it.
        for (place, step) in self.steps.iter().enumerate().rev() {
            match step {
                Step::Node(node) => {
                    loads[*node] = usage[place];
                    weights[*node] = share[place] / capacity[*node];
                }
                Step::Vote { inputs, .. } => {
                    for (input, _) in inputs {
                        usage[*input] *= usage[place];
                        share[*input] *= share[place];
                    }
                }
            }
        }
        Some(LoadPlan { loads, weights })
    }

    fn is_self_dual(&self) -> bool {
        self.steps.iter().all(|step| match step {
            Step::Node(_) => true,
            Step::Vote { votes, inputs, .. } => {
                let total: u64 = inputs.iter().map(|(_, weight)| weight).sum();
                2 * votes == total + 1
            }
        })
    }

    fn transversal(&self) -> Option<usize> {
        Some(self.extreme_size(true, u64::min) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::twin;
    use crate::family::{cost_of, list};

    fn all_small() -> Vec<(String, Formula)> {
        let mut all = Vec::new();
        for nodes in 1..=9 {
            for votes in 1..=nodes {
                let formula = Formula::threshold(nodes, votes).unwrap();
                all.push((format!("threshold({nodes},{votes})"), formula));
            }
        }
        for nodes in 1..=13 {
            all.push((format!("tree({nodes})"), Formula::tree(nodes).unwrap()));
        }
        for fanouts in [&[3, 3][..], &[2, 2, 3], &[3, 4], &[5, 2]] {
            let formula = Formula::hierarchical(fanouts).unwrap();
            all.push((format!("hierarchical({fanouts:?})"), formula));
        }
        for weights in [
            &[3, 1, 1, 1][..],
            &[5, 4, 3, 2, 1, 1],
            &[2, 2, 2, 1, 0, 7],
            &[1, 1, 2, 3, 5, 8],
        ] {
            let formula = Formula::weighted(weights, None).unwrap();
            all.push((format!("weighted({weights:?})"), formula));
        }
        all
    }

    #[test]
    fn agrees_with_its_brute_force_twin() {
        for (name, formula) in all_small() {
            twin::check(&name, &formula);
        }
    }

    #[test]
    fn load_plans_close_their_gap() {
        let mut prng = Prng::new(9);
        for (name, formula) in all_small() {
            for round in 0..4 {
                let n = formula.nodes();
                let capacity: Vec<f64> = (0..n)
                    .map(|_| if round == 0 { 1.0 } else { 0.2 + prng.unit() })
                    .collect();
                let Some(plan) = formula.load_plan(&capacity) else {
                    assert!(name.starts_with("weighted"), "{name}");
                    continue;
                };
                let upper = plan
                    .loads
                    .iter()
                    .zip(&capacity)
                    .map(|(load, capacity)| load / capacity)
                    .fold(0.0, f64::max);
                let scale: f64 = plan.weights.iter().zip(&capacity).map(|(w, c)| w * c).sum();
                let cheapest = formula.cheapest(&plan.weights).unwrap();
                let lower = cost_of(&cheapest, &plan.weights) / scale;
                assert!((upper - lower).abs() < 1e-9, "{name}: {lower} {upper}");
            }
        }
    }

    #[test]
    fn known_values() {
        let five = Formula::majority(5).unwrap();
        let dead = five.mass(&[Odds::down(0.1); 5]).unwrap().dead;
        assert!((dead - 0.00856).abs() < 1e-12);
        assert!((five.load_plan(&[1.0; 5]).unwrap().loads[0] - 0.6).abs() < 1e-12);
        assert_eq!(five.transversal(), Some(3));
        let big = Formula::tree(1023).unwrap();
        assert_eq!((big.sizes().min, big.sizes().max), (10, 512));
        let loads = big.load_plan(&vec![1.0; 1023]).unwrap().loads;
        let upper = loads.iter().copied().fold(0.0, f64::max);
        assert!(
            (upper - 2.0 / 11.0).abs() < 1e-12,
            "Naor and Wool: 2/(h+2), got {upper}"
        );
    }

    #[test]
    fn large_votes_are_quick_and_add_up() {
        let large = Formula::majority(99_999).unwrap();
        let mass = large.mass(&vec![Odds::down(0.49); 99_999]).unwrap();
        assert!((mass.live + mass.dead - 1.0).abs() < 1e-9, "{mass:?}");
        assert!((large.sizes().min, large.transversal()) == (50_000, Some(50_000)));
    }

    #[test]
    fn own_quorums_contain_their_site_and_spread() {
        for (name, formula) in all_small() {
            let quorums = list(&formula, 100_000).unwrap();
            for site in 0..formula.nodes() {
                if let Some(own) = formula.own(site) {
                    assert!(own.contains(site), "{name}");
                    assert!(quorums.contains(&own), "{name} {own}");
                } else {
                    assert!(
                        name.starts_with("tree") || name.starts_with("weighted"),
                        "{name}"
                    );
                }
            }
        }
        let seven = Formula::majority(7).unwrap();
        let mut seen = [0; 7];
        for site in 0..7 {
            seven
                .own(site)
                .unwrap()
                .iter()
                .for_each(|node| seen[node] += 1);
        }
        assert_eq!(seen, [4; 7]);
    }

    #[test]
    fn votes_out_of_reach_are_refused() {
        assert!(matches!(
            Formula::threshold(5, 6),
            Err(FormulaError::Unreachable { .. })
        ));
        assert!(matches!(
            Formula::threshold(5, 0),
            Err(FormulaError::NoVotes)
        ));
        assert!(matches!(Formula::majority(0), Err(FormulaError::Size(_))));
        assert!(matches!(
            Formula::majority(1_000_000_000),
            Err(FormulaError::Size(_))
        ));
        assert!(matches!(
            Formula::weighted(&[u64::MAX, 2], None),
            Err(FormulaError::TooManyVotes { .. })
        ));
        assert!(matches!(
            Formula::hierarchical(&[1 << 40, 1 << 40]),
            Err(FormulaError::Size(_))
        ));
    }
}
