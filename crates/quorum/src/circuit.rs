//! Monotone circuits of threshold gates: the common language of duality and decision diagrams.

use crate::NodeSet;

/// The place of a gate in its circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GateId(u32);

/// One gate: a node of the cluster, or a vote among earlier gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// True iff the node is in the set.
    Node(usize),
    /// True iff the true inputs carry at least `votes` votes.
    Vote {
        /// How many votes are needed.
        votes: u64,
        /// The inputs and the votes each carries (at least 1).
        inputs: Vec<(GateId, u64)>,
    },
}

/// A monotone function of node sets as a directed acyclic graph of threshold gates. Gates may be
/// shared; a gate only uses gates made before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    nodes: usize,
    gates: Vec<Gate>,
}

impl Circuit {
    /// A circuit over `nodes` nodes, without gates yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            gates: Vec::new(),
        }
    }

    /// How many nodes the circuit is over.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// All gates, inputs before users. The last one is the circuit's output.
    pub fn gates(&self) -> &[Gate] {
        &self.gates
    }

    /// The place of a gate in [`Circuit::gates`].
    pub fn index(id: GateId) -> usize {
        id.0 as usize
    }

    /// Adds a gate that is true iff `node` is in the set.
    pub fn node(&mut self, node: usize) -> GateId {
        self.push(Gate::Node(node))
    }

    /// Adds a gate that is true iff at least `votes` inputs are true.
    pub fn at_least(&mut self, votes: u64, inputs: impl IntoIterator<Item = GateId>) -> GateId {
        let inputs = inputs.into_iter().map(|id| (id, 1)).collect();
        self.push(Gate::Vote { votes, inputs })
    }

    /// Adds a gate that is true iff the true inputs carry at least `votes` votes.
    pub fn vote(&mut self, votes: u64, inputs: Vec<(GateId, u64)>) -> GateId {
        self.push(Gate::Vote { votes, inputs })
    }

    /// Adds a gate that is true iff every input is.
    pub fn all(&mut self, inputs: impl IntoIterator<Item = GateId>) -> GateId {
        let inputs: Vec<_> = inputs.into_iter().map(|id| (id, 1)).collect();
        let votes = inputs.len() as u64;
        self.push(Gate::Vote { votes, inputs })
    }

    /// Adds a gate that is true iff some input is.
    pub fn any(&mut self, inputs: impl IntoIterator<Item = GateId>) -> GateId {
        self.at_least(1, inputs)
    }

    /// Adds the gates of `other`, a circuit over the same nodes, and gives its output's place.
    pub fn append(&mut self, other: &Self) -> GateId {
        self.append_at(other, Self::node)
    }

    /// Adds the gates of `other` with each node gate replaced by the gate that `leaf` makes.
    pub fn append_at(
        &mut self,
        other: &Self,
        mut leaf: impl FnMut(&mut Self, usize) -> GateId,
    ) -> GateId {
        let mut places = Vec::with_capacity(other.gates.len());
        for gate in &other.gates {
            let place = match gate {
                Gate::Node(node) => leaf(self, *node),
                Gate::Vote { votes, inputs } => {
                    let inputs = inputs
                        .iter()
                        .map(|(id, weight)| (places[Self::index(*id)], *weight))
                        .collect();
                    self.vote(*votes, inputs)
                }
            };
            places.push(place);
        }
        *places.last().expect("invariant: a circuit has an output")
    }

    /// The dual: true of a set iff this circuit is false of its complement. Its minimal true
    /// sets are the minimal transversals of this circuit's.
    #[must_use]
    pub fn dual(&self) -> Self {
        let gates = self
            .gates
            .iter()
            .map(|gate| match gate {
                Gate::Node(node) => Gate::Node(*node),
                Gate::Vote { votes, inputs } => {
                    let total: u64 = inputs.iter().map(|(_, weight)| weight).sum();
                    Gate::Vote {
                        votes: (total + 1).saturating_sub(*votes),
                        inputs: inputs.clone(),
                    }
                }
            })
            .collect();
        Self {
            nodes: self.nodes,
            gates,
        }
    }

    /// The output for the set.
    pub fn eval(&self, set: &NodeSet) -> bool {
        let mut values = Vec::with_capacity(self.gates.len());
        for gate in &self.gates {
            let value = match gate {
                Gate::Node(node) => set.contains(*node),
                Gate::Vote { votes, inputs } => {
                    let held: u64 = inputs
                        .iter()
                        .filter(|(id, _)| values[Self::index(*id)])
                        .map(|(_, weight)| weight)
                        .sum();
                    held >= *votes
                }
            };
            values.push(value);
        }
        values.last().copied().unwrap_or(false)
    }

    fn push(&mut self, gate: Gate) -> GateId {
        let id = GateId(u32::try_from(self.gates.len()).expect("invariant: fewer than 2^32 gates"));
        self.gates.push(gate);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dual_is_false_exactly_on_complements() {
        let mut circuit = Circuit::new(5);
        let nodes: Vec<_> = (0..5).map(|node| circuit.node(node)).collect();
        let left = circuit.all(nodes[..2].iter().copied());
        let right = circuit.vote(3, vec![(nodes[2], 2), (nodes[3], 1), (nodes[4], 1)]);
        circuit.any([left, right]);
        let dual = circuit.dual();
        for mask in 0..32 {
            let set = NodeSet::from_mask(5, mask);
            assert_eq!(dual.eval(&set), !circuit.eval(&set.complement()));
        }
    }
}
