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

use thiserror::Error;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::{NODES_MAX, SizeError, check_nodes};

/// The most votes that weighted gates may need together, so that the tables over votes stay small.
pub const VOTES_MAX: u64 = 1_000_000;

/// The most cells of the table over inputs and votes of one weighted gate.
const TABLE_MAX: u64 = 20_000_000;

/// From this much work on, votes among equal inputs are summed as binomial tails.
const ALIKE_WORK_MIN: u64 = 4_000_000;

/// Listing quorums recurses once per member; larger systems have too many to list anyway.
const VISIT_NODES_MAX: usize = 4096;

/// Why a formula of votes cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormulaError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// More votes are asked for than there are.
    #[error("{votes} votes are needed but all nodes together have {total}: lower the votes")]
    Unreachable {
        /// The votes asked for.
        votes: u64,
        /// All votes.
        total: u64,
    },
    /// No votes are asked for: the empty set would be a quorum.
    #[error("a quorum needs at least 1 vote")]
    NoVotes,
    /// The votes are too large for the tables over votes.
    #[error(
        "{votes} votes are too many: divide all weights (at most {VOTES_MAX} votes in all, and \
         fewer the more nodes there are)"
    )]
    TooManyVotes {
        /// The votes asked for.
        votes: u64,
    },
}

/// A part of a formula under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A node, counted from 0.
    Node(usize),
    /// At least `votes` votes of the parts, each with its votes.
    Vote(u64, Vec<(Part, u64)>),
}

impl Part {
    /// At least `votes` of the parts, one vote each.
    pub fn at_least(votes: usize, parts: Vec<Self>) -> Self {
        Self::Vote(
            votes as u64,
            parts.into_iter().map(|part| (part, 1)).collect(),
        )
    }

    /// More than half of the parts.
    pub fn majority(parts: Vec<Self>) -> Self {
        Self::at_least(parts.len() / 2 + 1, parts)
    }
}

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

    fn transversal(&self) -> Option<usize> {
        Some(self.extreme_size(true, u64::min) as usize)
    }
}

/// Refuses gates out of reach and finds out whether every node stands once.
fn check_part(part: &Part, seen: &mut NodeSet) -> Result<bool, FormulaError> {
    match part {
        Part::Node(node) => {
            if *node >= seen.capacity() {
                return Err(SizeError::TooMany {
                    nodes: *node + 1,
                    most: NODES_MAX,
                }
                .into());
            }
            Ok(seen.insert(*node))
        }
        Part::Vote(votes, parts) => {
            let total = parts
                .iter()
                .try_fold(0u64, |sum, (_, weight)| sum.checked_add(*weight))
                .ok_or(FormulaError::TooManyVotes { votes: u64::MAX })?;
            if *votes == 0 {
                return Err(FormulaError::NoVotes);
            }
            if *votes > total {
                return Err(FormulaError::Unreachable {
                    votes: *votes,
                    total,
                });
            }
            let plain = total == parts.len() as u64;
            let table = total.saturating_mul(parts.len() as u64);
            if total > VOTES_MAX || (!plain && table > TABLE_MAX) {
                return Err(FormulaError::TooManyVotes { votes: total });
            }
            let mut once = true;
            for (part, _) in parts {
                once &= check_part(part, seen)?;
            }
            Ok(once)
        }
    }
}

fn tree_part(index: usize, nodes: usize) -> Part {
    if 2 * index + 2 >= nodes {
        return Part::Node(index);
    }
    Part::at_least(
        2,
        vec![
            Part::Node(index),
            tree_part(2 * index + 1, nodes),
            tree_part(2 * index + 2, nodes),
        ],
    )
}

fn hierarchy_part(fanouts: &[usize], fresh: &mut impl Iterator<Item = usize>) -> Part {
    match fanouts {
        [] => Part::Node(fresh.next().expect("invariant: one number per leaf")),
        [fanout, below @ ..] => {
            Part::majority((0..*fanout).map(|_| hierarchy_part(below, fresh)).collect())
        }
    }
}

/// The extreme size of a set of `votes` inputs of one vote each: those of the extreme sizes.
fn plain_size(
    votes: usize,
    inputs: &[(usize, u64)],
    below: &[u64],
    better: fn(u64, u64) -> u64,
) -> u64 {
    let mut sizes: Vec<u64> = inputs.iter().map(|(input, _)| below[*input]).collect();
    sizes.sort_unstable();
    if better(1, 2) == 2 {
        sizes.reverse();
    }
    sizes[..votes].iter().sum()
}

/// The number of sets of `votes` inputs of one vote each, all of which count alike.
fn plain_count(votes: u64, inputs: &[(usize, u64)], below: &[f64]) -> Option<f64> {
    let each = below[inputs.first()?.0];
    let alike = inputs
        .iter()
        .all(|(input, weight)| *weight == 1 && below[*input] == each);
    alike.then(|| {
        (0..votes).fold(1.0, |count: f64, chosen| {
            let ways = (inputs.len() as u64 - chosen) as f64 / (chosen + 1) as f64;
            // Rounded while it is small enough to be a whole number.
            let next = count * ways;
            if next < 1e15 { next.round() } else { next }
        }) * each.powf(votes as f64)
    })
}

/// Walks the minimal input sets of a gate: inputs come by descending votes, so a set is minimal
/// iff its last input reaches the votes. `join` extends a set's value by an input, `merge` joins
/// the values of two ways.
fn sweep<T: Copy>(
    votes: u64,
    inputs: impl Iterator<Item = (T, u64)>,
    empty: T,
    join: impl Fn(T, T) -> T,
    merge: impl Fn(T, T) -> T,
) -> Option<T> {
    let votes = votes as usize;
    // open[s]: the sets of inputs so far that hold s votes and do not reach the gate's votes.
    let mut open: Vec<Option<T>> = vec![None; votes];
    open[0] = Some(empty);
    let mut done: Option<T> = None;
    let either = |a: Option<T>, b: Option<T>| match (a, b) {
        (Some(a), Some(b)) => Some(merge(a, b)),
        (a, b) => a.or(b),
    };
    for (input, weight) in inputs {
        let weight = weight.min(votes as u64) as usize;
        for held in (0..votes).rev() {
            let joined = open[held].map(|value| join(value, input));
            if held + weight >= votes {
                done = either(done, joined);
            } else {
                open[held + weight] = either(open[held + weight], joined);
            }
        }
    }
    done
}

/// The masses of a vote over inputs with the given masses.
fn vote_mass(votes: u64, inputs: &[(usize, u64)], below: &[Mass]) -> Mass {
    let work = votes.saturating_mul(inputs.len() as u64);
    let first = below[inputs[0].0];
    let alike = |(input, weight): &(usize, u64)| *weight == 1 && below[*input] == first;
    if work > ALIKE_WORK_MIN && inputs.iter().all(alike) {
        return alike_mass(votes as usize, inputs.len(), first);
    }
    let votes = votes as usize;
    let mut held = vec![0.0; votes + 1];
    held[0] = 1.0;
    for (input, weight) in inputs {
        let Mass { live, dead } = below[*input];
        let weight = (*weight).min(votes as u64) as usize;
        held[votes] *= live + dead;
        for count in (0..votes).rev() {
            let mass = held[count];
            held[count] = mass * dead;
            held[(count + weight).min(votes)] += mass * live;
        }
    }
    Mass {
        live: held[votes],
        dead: held[..votes].iter().sum(),
    }
}

/// The masses of a vote among many inputs of the same mass, as the two tails of a binomial, each
/// summed from its largest term outwards.
fn alike_mass(votes: usize, inputs: usize, each: Mass) -> Mass {
    let total = each.live + each.dead;
    if each.live <= 0.0 || each.dead <= 0.0 {
        let all = total.powf(inputs as f64);
        let (live, dead) = if each.live > 0.0 {
            (all, 0.0)
        } else {
            (0.0, all)
        };
        return Mass { live, dead };
    }
    let tail = |from: usize, to: usize| -> f64 {
        let mode = ((inputs + 1) as f64 * each.live / total).floor() as usize;
        let start = mode.clamp(from, to);
        let ln_ways = |count: usize| -> f64 {
            (1..=count)
                .map(|i| (((inputs - count + i) as f64) / i as f64).ln())
                .sum()
        };
        let few = start.min(inputs - start);
        let log =
            ln_ways(few) + start as f64 * each.live.ln() + (inputs - start) as f64 * each.dead.ln();
        let (mut up, mut down, mut sum) = (1.0, 1.0, 1.0);
        for count in start..to {
            up *= (inputs - count) as f64 / (count + 1) as f64 * (each.live / each.dead);
            sum += up;
        }
        for count in (from + 1..=start).rev() {
            down *= count as f64 / (inputs - count + 1) as f64 * (each.dead / each.live);
            sum += down;
        }
        log.exp() * sum
    };
    Mass {
        live: tail(votes, inputs),
        dead: tail(0, votes - 1),
    }
}

/// The cheapest minimal set of weighted inputs that carries the votes; all inputs if no set has
/// a finite cost.
fn cheapest_votes(votes: u64, inputs: &[(usize, u64)], cost: &[f64]) -> Vec<usize> {
    let mut inputs = inputs.to_vec();
    inputs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let votes = votes as usize;
    // best[i][s]: least cost of s votes (capped) from the first i inputs.
    let width = votes + 1;
    let mut best = vec![f64::INFINITY; (inputs.len() + 1) * width];
    best[0] = 0.0;
    for (place, (input, weight)) in inputs.iter().enumerate() {
        let (before, after) = best.split_at_mut((place + 1) * width);
        let (before, after) = (&before[place * width..], &mut after[..width]);
        after.copy_from_slice(before);
        for held in 0..votes {
            let reach = held.saturating_add(*weight as usize).min(votes);
            let with = before[held] + cost[*input];
            if with < after[reach] {
                after[reach] = with;
            }
        }
    }
    if best[inputs.len() * width + votes].is_infinite() {
        return inputs.into_iter().map(|(input, _)| input).collect();
    }
    let mut chosen: Vec<(usize, u64)> = Vec::new();
    let mut held = votes;
    for (place, (input, weight)) in inputs.iter().enumerate().rev() {
        let here = best[(place + 1) * width + held];
        if here == best[place * width + held] {
            continue;
        }
        chosen.push((*input, *weight));
        let before = &best[place * width..(place + 1) * width];
        held = (0..=held)
            .find(|from| {
                (*from + *weight as usize).min(votes) == held
                    && before[*from] + cost[*input] == here
            })
            .unwrap_or(0);
    }
    // Inputs of no cost may be more than needed: leave out what the others make up for.
    let mut total: u64 = chosen.iter().map(|(_, weight)| weight).sum();
    chosen.retain(|(_, weight)| {
        let spare = total - weight >= votes as u64;
        total -= if spare { *weight } else { 0 };
        !spare
    });
    chosen.into_iter().map(|(input, _)| input).collect()
}

/// Shares the use of a gate among its inputs so that the largest load is least: an input of load
/// `v` is used with probability `min(1, level / v)`. Gives that level, the gate's load, and the
/// shares of the certificate.
fn balance(
    votes: u64,
    inputs: &[(usize, u64)],
    value: &[f64],
    usage: &mut [f64],
    share: &mut [f64],
) -> f64 {
    let mut order: Vec<usize> = inputs.iter().map(|(input, _)| *input).collect();
    order.sort_by(|a, b| value[*a].total_cmp(&value[*b]).then(a.cmp(b)));
    let mut rest: f64 = order.iter().map(|input| 1.0 / value[*input]).sum();
    let mut open = votes as f64;
    let mut always = 0;
    // The lightest inputs are in every set if even then they carry less than the level.
    while always + 1 < order.len() && open > 1.0 && open / rest > value[order[always]] {
        rest -= 1.0 / value[order[always]];
        open -= 1.0;
        always += 1;
    }
    // Summed again: the subtractions above lose digits.
    rest = order[always..]
        .iter()
        .map(|input| 1.0 / value[*input])
        .sum();
    let level = open / rest;
    for (place, input) in order.iter().enumerate() {
        if place < always {
            usage[*input] = 1.0;
            share[*input] = 0.0;
        } else {
            usage[*input] = (level / value[*input]).min(1.0);
            share[*input] = 1.0 / value[*input] / rest;
        }
    }
    level
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
    fn binomial_tails_agree_with_the_sweep() {
        for (inputs, votes, down) in [(60, 31, 0.1), (60, 1, 0.5), (60, 60, 0.03), (61, 31, 0.97)] {
            let each = Mass {
                live: 1.0 - down,
                dead: down,
            };
            let gate: Vec<(usize, u64)> = (0..inputs).map(|input| (input, 1)).collect();
            let slow = vote_mass(votes as u64, &gate, &vec![each; inputs]);
            let fast = alike_mass(votes, inputs, each);
            assert!(
                (slow.dead / fast.dead - 1.0).abs() < 1e-10,
                "{slow:?} {fast:?}"
            );
            assert!(
                (slow.live / fast.live - 1.0).abs() < 1e-10,
                "{slow:?} {fast:?}"
            );
        }
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
