//! Decision diagrams of circuits: exact failure probability and exact resilience in one pass.
//!
//! Building is bounded by the nodes of any one diagram and by the total work, both counted, so
//! that whether a diagram is found does not depend on the machine.

use std::collections::{BTreeMap, BTreeSet};

use biodivine_lib_bdd::{Bdd, BddNode, BddPointer, BddVariable, BddVariableSet, op_function};

use crate::family::list;
use crate::{Circuit, Family, Gate, GateId, Mass, NodeSet, Odds};

/// A reduced ordered decision diagram of a monotone circuit.
#[derive(Clone, Debug)]
pub(super) struct Diagram {
    bdd: Bdd,
    /// The cluster node that each variable stands for.
    order: Vec<usize>,
    nodes: usize,
}

impl Diagram {
    /// The diagram of a circuit, or `None` if it needs more than `limit` nodes or too much work.
    /// Variables are ordered as they first appear in the circuit.
    pub(super) fn build(circuit: &Circuit, limit: usize) -> Option<Self> {
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        let mut order = Vec::new();
        for gate in circuit.gates() {
            if let Gate::Node(node) = gate
                && !places.contains_key(node)
            {
                places.insert(*node, order.len());
                order.push(*node);
            }
        }
        // The diagrams' variables are 16 bits wide, and a larger circuit would not fit anyway.
        let variables = u16::try_from(order.len())
            .ok()
            .filter(|v| *v < VARIABLES_MAX)?;
        let builder = Builder {
            circuit,
            places,
            set: BddVariableSet::new_anonymous(variables),
            limit,
            work: 0,
        };
        Some(Self {
            bdd: builder.run()?,
            order,
            nodes: circuit.nodes(),
        })
    }

    /// How many nodes the diagram has.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.bdd.size()
    }

    /// The mass of live sets with and without a quorum. The odds of each node must sum to 1.
    pub(super) fn mass(&self, odds: &[Odds]) -> Mass {
        let mut masses: Vec<Mass> = Vec::with_capacity(self.bdd.size());
        for pointer in self.bdd.pointers() {
            let mass = if pointer.is_terminal() {
                let live = if pointer.is_one() { 1.0 } else { 0.0 };
                Mass {
                    live,
                    dead: 1.0 - live,
                }
            } else {
                let odds = odds[self.node_of(pointer)];
                let up = masses[self.bdd.high_link_of(pointer).to_index()];
                let down = masses[self.bdd.low_link_of(pointer).to_index()];
                Mass {
                    live: odds.up * up.live + odds.down * down.live,
                    dead: odds.up * up.dead + odds.down * down.dead,
                }
            };
            masses.push(mass);
        }
        // The false diagram has the one node "false", so the last entry is the root's.
        masses.last().copied().unwrap_or(Mass {
            live: 0.0,
            dead: 1.0,
        })
    }

    /// A smallest set of nodes that leaves no quorum when it is down, or `None` if a quorum is
    /// left whatever is down.
    pub(super) fn smallest_cut(&self) -> Option<NodeSet> {
        let mut costs: Vec<usize> = Vec::with_capacity(self.bdd.size());
        for pointer in self.bdd.pointers() {
            costs.push(if pointer.is_zero() {
                0
            } else if pointer.is_one() {
                usize::MAX
            } else {
                let low = costs[self.bdd.low_link_of(pointer).to_index()];
                let high = costs[self.bdd.high_link_of(pointer).to_index()];
                low.saturating_add(1).min(high)
            });
        }
        let mut pointer = self.bdd.root_pointer();
        if costs[pointer.to_index()] == usize::MAX {
            return None;
        }
        let mut cut = NodeSet::new(self.nodes);
        while !pointer.is_terminal() {
            let high = self.bdd.high_link_of(pointer);
            if costs[high.to_index()] == costs[pointer.to_index()] {
                pointer = high;
            } else {
                cut.insert(self.node_of(pointer));
                pointer = self.bdd.low_link_of(pointer);
            }
        }
        Some(cut)
    }

    fn node_of(&self, pointer: BddPointer) -> usize {
        self.order[self.bdd.var_of(pointer).to_index()]
    }
}

/// The family's circuit, or for a family that lists its quorums "some quorum is up entirely".
pub(super) fn circuit_of(family: &dyn Family) -> Option<Circuit> {
    if let Some(circuit) = family.circuit() {
        return Some(circuit);
    }
    let quorums = list(family, LISTED_MAX)?;
    let mut circuit = Circuit::new(family.nodes());
    let nodes: Vec<GateId> = (0..family.nodes()).map(|node| circuit.node(node)).collect();
    let all: Vec<GateId> = quorums
        .iter()
        .map(|quorum| circuit.all(quorum.iter().map(|node| nodes[node])))
        .collect();
    circuit.any(all);
    Some(circuit)
}

/// What a gate still needs: the position among its inputs and the votes missing there.
type Need = (usize, u64);

struct Builder<'a> {
    circuit: &'a Circuit,
    /// The variable of each cluster node.
    places: BTreeMap<usize, usize>,
    set: BddVariableSet,
    limit: usize,
    work: usize,
}

impl Builder<'_> {
    fn run(mut self) -> Option<Bdd> {
        let gates = self.circuit.gates();
        let Some(last) = gates.len().checked_sub(1) else {
            return Some(self.set.mk_false());
        };
        let mut uses = uses(gates);
        uses[last] += 1;
        let mut built: Vec<Option<Bdd>> = vec![None; gates.len()];
        for (index, gate) in gates.iter().enumerate() {
            if uses[index] == 0 {
                continue;
            }
            built[index] = Some(match gate {
                Gate::Node(node) => self.set.mk_var(self.variable(*node)),
                Gate::Vote { votes, inputs } => self.vote(*votes, inputs, &built)?,
            });
            if let Gate::Vote { inputs, .. } = gate {
                for (id, _) in inputs {
                    let input = Circuit::index(*id);
                    uses[input] -= 1;
                    if uses[input] == 0 {
                        built[input] = None;
                    }
                }
            }
        }
        built[last].take()
    }

    fn variable(&self, node: usize) -> BddVariable {
        BddVariable::from_index(self.places[&node])
    }

    fn vote(&mut self, votes: u64, inputs: &[(GateId, u64)], built: &[Option<Bdd>]) -> Option<Bdd> {
        let total = inputs
            .iter()
            .try_fold(0u64, |sum, (_, weight)| sum.checked_add(*weight))?;
        if votes == 0 {
            return Some(self.set.mk_true());
        }
        if votes > total {
            return Some(self.set.mk_false());
        }
        if let Some(leaves) = self.leaves(inputs) {
            return self.vote_of_leaves(votes, &leaves);
        }
        let mut sorted: Vec<(&Bdd, u64)> = inputs
            .iter()
            .filter_map(|(id, weight)| Some((built[Circuit::index(*id)].as_ref()?, *weight)))
            .collect();
        sorted.sort_by_key(|(bdd, _)| bdd.var_of(bdd.root_pointer()));
        let diagrams = sorted.iter().map(|(bdd, _)| (*bdd).clone()).collect();
        if sorted.iter().all(|(_, weight)| *weight >= votes) {
            return self.balanced(diagrams, op_function::or);
        }
        if votes == total {
            return self.balanced(diagrams, op_function::and);
        }
        self.vote_of_gates(votes, &sorted)
    }

    /// The inputs as variables with their votes, in variable order, if all are distinct nodes.
    fn leaves(&self, inputs: &[(GateId, u64)]) -> Option<Vec<(usize, u64)>> {
        let mut leaves = Vec::with_capacity(inputs.len());
        for (id, weight) in inputs {
            match self.circuit.gates()[Circuit::index(*id)] {
                Gate::Node(node) => leaves.push((self.places[&node], *weight)),
                Gate::Vote { .. } => return None,
            }
        }
        leaves.sort_unstable();
        leaves
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0)
            .then_some(leaves)
    }

    /// A vote among variables, built node by node from the last variable up.
    fn vote_of_leaves(&mut self, votes: u64, leaves: &[(usize, u64)]) -> Option<Bdd> {
        let weights: Vec<u64> = leaves.iter().map(|(_, weight)| *weight).collect();
        let levels = needs(votes, &weights, self.limit)?;
        let variables = self.set.num_vars();
        let mut nodes = vec![BddNode::mk_zero(variables), BddNode::mk_one(variables)];
        let mut places: BTreeMap<Need, BddPointer> = BTreeMap::new();
        for (level, (variable, weight)) in leaves.iter().enumerate().rev() {
            let mut unique: BTreeMap<(usize, usize), BddPointer> = BTreeMap::new();
            for need in &levels[level] {
                let low = known((level + 1, *need), &weights, &places)?;
                let with = need.saturating_sub(*weight);
                let high = known((level + 1, with), &weights, &places)?;
                let pointer = if low == high {
                    low
                } else {
                    *unique
                        .entry((low.to_index(), high.to_index()))
                        .or_insert_with(|| {
                            let variable = BddVariable::from_index(*variable);
                            nodes.push(BddNode::mk_node(variable, low, high));
                            BddPointer::from_index(nodes.len() - 1)
                        })
                };
                places.insert((level, *need), pointer);
            }
        }
        self.spend(nodes.len())?;
        let root = known((0, votes), &weights, &places)?;
        match root.as_bool() {
            Some(true) => Some(self.set.mk_true()),
            Some(false) => Some(self.set.mk_false()),
            None => {
                nodes.truncate(root.to_index() + 1);
                Bdd::from_nodes(&nodes).ok()
            }
        }
    }

    /// A vote among gates: "need more votes of the inputs from here on", from the last input up.
    fn vote_of_gates(&mut self, votes: u64, inputs: &[(&Bdd, u64)]) -> Option<Bdd> {
        let weights: Vec<u64> = inputs.iter().map(|(_, weight)| *weight).collect();
        let levels = needs(votes, &weights, STATES_MAX)?;
        let mut after: BTreeMap<u64, Bdd> = BTreeMap::new();
        for (level, (input, weight)) in inputs.iter().enumerate().rev() {
            let mut here = BTreeMap::new();
            let rest: u64 = weights[level + 1..].iter().sum();
            let constant = |need: u64| -> Option<Bdd> {
                if need == 0 {
                    Some(self.set.mk_true())
                } else if need > rest {
                    Some(self.set.mk_false())
                } else {
                    after.get(&need).cloned()
                }
            };
            let pairs: Vec<(u64, Bdd, Bdd)> = levels[level]
                .iter()
                .map(|need| {
                    let without = constant(*need)?;
                    let with = constant(need.saturating_sub(*weight))?;
                    Some((*need, without, with))
                })
                .collect::<Option<_>>()?;
            for (need, without, with) in pairs {
                // Fewer missing votes are easier to find, so "with" holds wherever "without" does.
                let taken = self.apply(input, &with, op_function::and)?;
                here.insert(need, self.apply(&taken, &without, op_function::or)?);
            }
            after = here;
        }
        after.remove(&votes)
    }

    /// Joins diagrams pairwise, so that large ones meet late.
    fn balanced(&mut self, mut diagrams: Vec<Bdd>, op: Op) -> Option<Bdd> {
        while diagrams.len() > 1 {
            let mut joined = Vec::with_capacity(diagrams.len().div_ceil(2));
            for pair in diagrams.chunks(2) {
                joined.push(match pair {
                    [left, right] => self.apply(left, right, op)?,
                    _ => pair[0].clone(),
                });
            }
            diagrams = joined;
        }
        diagrams.pop()
    }

    fn apply(&mut self, left: &Bdd, right: &Bdd, op: Op) -> Option<Bdd> {
        let tasks = TASKS_PER_NODE * self.limit;
        if left.size().saturating_mul(right.size()) > tasks {
            // A small result can hide a large search: count its steps before taking them.
            Bdd::check_binary_op(tasks, left, right, op)?;
        }
        let joined = Bdd::binary_op_with_limit(self.limit, left, right, op)?;
        self.spend(left.size() + right.size() + joined.size())?;
        Some(joined)
    }

    fn spend(&mut self, nodes: usize) -> Option<()> {
        self.work += nodes;
        (self.work <= WORK_PER_NODE * self.limit).then_some(())
    }
}

type Op = fn(Option<bool>, Option<bool>) -> Option<bool>;

/// How many gates use each gate.
fn uses(gates: &[Gate]) -> Vec<usize> {
    let mut uses = vec![0; gates.len()];
    let mut needed = vec![false; gates.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for (index, gate) in gates.iter().enumerate().rev() {
        if let Gate::Vote { inputs, .. } = gate
            && needed[index]
        {
            for (id, _) in inputs {
                uses[Circuit::index(*id)] += 1;
                needed[Circuit::index(*id)] = true;
            }
        }
    }
    uses
}

/// For each input, the numbers of missing votes that can occur before it and are still open.
/// `None` if there are more than `limit` altogether.
fn needs(votes: u64, weights: &[u64], limit: usize) -> Option<Vec<BTreeSet<u64>>> {
    let mut rest: u64 = weights.iter().sum();
    let mut levels = vec![BTreeSet::from([votes])];
    let mut states = 1;
    for weight in weights {
        rest -= weight;
        let next: BTreeSet<u64> = levels[levels.len() - 1]
            .iter()
            .flat_map(|need| [*need, need.saturating_sub(*weight)])
            .filter(|need| *need > 0 && *need <= rest)
            .collect();
        states += next.len();
        if states > limit {
            return None;
        }
        levels.push(next);
    }
    Some(levels)
}

/// The diagram node for a need: a constant where the need is met or can no longer be met.
fn known(
    (level, need): Need,
    weights: &[u64],
    places: &BTreeMap<Need, BddPointer>,
) -> Option<BddPointer> {
    if need == 0 {
        Some(BddPointer::one())
    } else if let Some(place) = places.get(&(level, need)) {
        Some(*place)
    } else {
        let rest: u64 = weights[level..].iter().sum();
        (need > rest).then_some(BddPointer::zero())
    }
}

/// Variables a diagram may have.
const VARIABLES_MAX: u16 = 20_000;

/// The most quorums that are joined one by one.
const LISTED_MAX: usize = 2000;

/// Steps of one operation, and nodes touched by all of them, per node that a diagram may have.
const TASKS_PER_NODE: usize = 3;
const WORK_PER_NODE: usize = 6;

/// Intermediate results of one vote among gates.
const STATES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prng;

    /// A random circuit over `nodes` nodes with gates of every kind.
    fn random(nodes: usize, gates: usize, rng: &mut Prng) -> Circuit {
        let mut circuit = Circuit::new(nodes);
        let mut ids: Vec<GateId> = (0..nodes).map(|node| circuit.node(node)).collect();
        for _ in 0..gates {
            let width = 2 + rng.below(5);
            let inputs: Vec<(GateId, u64)> = (0..width)
                .map(|_| (ids[rng.below(ids.len())], 1 + rng.below(3) as u64))
                .collect();
            let total: u64 = inputs.iter().map(|(_, weight)| weight).sum();
            let votes = rng.below(total as usize + 2) as u64;
            ids.push(circuit.vote(votes, inputs));
        }
        circuit
    }

    fn brute(circuit: &Circuit, odds: &[Odds]) -> (Mass, Option<usize>) {
        let nodes = circuit.nodes();
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        let mut cut = None;
        for mask in 0..1u64 << nodes {
            let set = NodeSet::from_mask(nodes, mask);
            let weight: f64 = (0..nodes)
                .map(|node| {
                    if set.contains(node) {
                        odds[node].up
                    } else {
                        odds[node].down
                    }
                })
                .product();
            if circuit.eval(&set) {
                mass.live += weight;
            } else {
                mass.dead += weight;
                let down = nodes - set.len();
                cut = Some(cut.map_or(down, |best: usize| best.min(down)));
            }
        }
        (mass, cut)
    }

    #[test]
    fn diagrams_agree_with_enumeration_on_random_circuits() {
        let mut rng = Prng::new(11);
        for round in 0..300 {
            let nodes = 3 + rng.below(7);
            let gates = 1 + rng.below(9);
            let circuit = random(nodes, gates, &mut rng);
            let odds: Vec<Odds> = (0..nodes).map(|_| Odds::down(rng.unit())).collect();
            let diagram = Diagram::build(&circuit, 100_000).unwrap();
            let (mass, cut) = brute(&circuit, &odds);
            let found = diagram.mass(&odds);
            assert!((found.live - mass.live).abs() < 1e-12, "round {round}");
            assert!((found.dead - mass.dead).abs() < 1e-12, "round {round}");
            let smallest = diagram.smallest_cut();
            assert_eq!(smallest.as_ref().map(NodeSet::len), cut, "round {round}");
            if let Some(set) = smallest {
                assert!(!circuit.eval(&set.complement()));
            }
        }
    }

    #[test]
    fn a_majority_of_nodes_is_built_directly() {
        let mut circuit = Circuit::new(501);
        let inputs: Vec<GateId> = (0..501).map(|node| circuit.node(node)).collect();
        circuit.at_least(251, inputs);
        let diagram = Diagram::build(&circuit, 100_000).unwrap();
        assert_eq!(diagram.size(), 251 * 251 + 2);
        assert_eq!(diagram.smallest_cut().unwrap().len(), 251);
        let mass = diagram.mass(&vec![Odds::down(0.5); 501]);
        assert!((mass.dead - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_diagram_past_the_limit_is_refused() {
        let mut circuit = Circuit::new(40);
        let inputs: Vec<GateId> = (0..40).map(|node| circuit.node(node)).collect();
        circuit.at_least(20, inputs);
        assert!(Diagram::build(&circuit, 422).is_some());
        assert!(Diagram::build(&circuit, 100).is_none());
    }
}
