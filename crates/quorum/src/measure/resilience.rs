//! Resilience: how many nodes may crash, whichever they are, with a quorum still left.
//!
//! It is one less than the size of the smallest set that meets every quorum (a transversal: with
//! it down, no quorum is left).

mod hitting;

use crate::family::{list, shrink};
use crate::{Family, NodeSet};

use super::Progress;
use super::diagram::{Diagram, circuit_of};
use super::load::load;

/// How many crashes a family survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resilience {
    /// Any this many crashes leave a quorum.
    pub value: usize,
    /// Some `upper + 1` crashes leave none.
    pub upper: usize,
    /// Whether both are the same.
    pub exact: bool,
    /// A set of `upper + 1` nodes without which no quorum is left, where one was found.
    pub witness: Option<NodeSet>,
}

impl Resilience {
    /// From bounds on the smallest killing set.
    fn between(lower: usize, upper: usize, witness: Option<NodeSet>) -> Self {
        let upper = upper.saturating_sub(1);
        let value = lower.saturating_sub(1).min(upper);
        Self {
            value,
            upper,
            exact: value == upper,
            witness,
        }
    }

    fn of(witness: NodeSet) -> Self {
        Self::between(witness.len(), witness.len(), Some(witness))
    }
}

/// The resilience of `family`. A family without any quorum, or with an empty one, has none that
/// could be measured: the answer is then 0, or all nodes.
pub fn resilience(family: &dyn Family, progress: &mut dyn FnMut(Progress)) -> Resilience {
    let nodes = family.nodes();
    if !family.contains_quorum(&NodeSet::full(nodes)) {
        return Resilience::between(0, 0, None);
    }
    if family.contains_quorum(&NodeSet::new(nodes)) {
        return Resilience::between(nodes + 1, nodes + 1, None);
    }
    if let Some(size) = family.transversal() {
        let witness = (nodes <= WITNESS_NODES_MAX).then(|| greedy(family));
        return Resilience::between(size, size, witness.filter(|set| set.len() == size));
    }
    if nodes <= ENUMERATED_MAX {
        return Resilience::of(enumerated(family));
    }
    progress(Progress {
        stage: "resilience: searching the smallest killing set",
        done: 0,
        total: 1,
    });
    let mut known = greedy(family);
    let mut packed = 1;
    if let Some(quorums) = list(family, LISTED_MAX) {
        (packed, known) = hitting::smallest(&quorums, known);
        if packed == known.len() {
            return Resilience::of(known);
        }
    }
    let circuit = circuit_of(family);
    if let Some(diagram) = circuit.and_then(|c| Diagram::build(&c, DIAGRAM_NODES_MAX))
        && let Some(cut) = diagram.smallest_cut()
    {
        return Resilience::of(cut);
    }
    // A killing set is a cover of the quorums, whose fractional optimum is the inverse of the
    // load for equal nodes.
    let fraction = (1.0 / load(family, None, progress).upper - 1e-9).ceil();
    let lower = packed.max(fraction.max(1.0) as usize).min(known.len());
    Resilience::between(lower, known.len(), Some(known))
}

/// The smallest killing set, by size and then by number.
fn enumerated(family: &dyn Family) -> NodeSet {
    let nodes = family.nodes();
    for size in 1..nodes {
        // All masks of `size` bits in ascending order (Gosper).
        let mut mask = (1u64 << size) - 1;
        while mask < 1 << nodes {
            let set = NodeSet::from_mask(nodes, mask);
            if !family.contains_quorum(&set.complement()) {
                return set;
            }
            let lowest = mask & mask.wrapping_neg();
            let ripple = mask + lowest;
            mask = (((ripple ^ mask) >> 2) / lowest) | ripple;
        }
    }
    NodeSet::full(nodes)
}

/// A small killing set: quorums that avoid it are made one after the other, each time the node
/// that most of them had is added; then what is not needed is taken out. Two ways are tried.
fn greedy(family: &dyn Family) -> NodeSet {
    let by_use = by_use(family);
    // A quorum of a coterie meets every quorum, so the smallest one may be the better set.
    let nodes = family.nodes();
    let kills = |set: &NodeSet| !family.contains_quorum(&set.complement());
    let quorum = family
        .cheapest(&vec![1.0; nodes])
        .filter(kills)
        .map(|set| shrink(&set, &vec![1.0; nodes], &kills));
    match quorum {
        Some(quorum) if quorum.len() < by_use.len() => quorum,
        _ => by_use,
    }
}

fn by_use(family: &dyn Family) -> NodeSet {
    let nodes = family.nodes();
    let mut killed = NodeSet::new(nodes);
    let mut uses = vec![0.0f64; nodes];
    let mut cost = vec![1.0f64; nodes];
    // Each round kills one node, so the loop ends.
    'kill: while family.contains_quorum(&killed.complement()) {
        for _ in 0..DRAWS {
            let Some(quorum) = family.cheapest(&cost) else {
                break 'kill;
            };
            for node in quorum.iter() {
                uses[node] += 1.0;
                cost[node] += 1.0 / nodes as f64;
            }
        }
        let next = (0..nodes)
            .filter(|node| !killed.contains(*node))
            .max_by(|a, b| uses[*a].total_cmp(&uses[*b]).then(b.cmp(a)));
        let Some(next) = next else {
            break;
        };
        killed.insert(next);
        cost[next] = f64::INFINITY;
        uses.fill(0.0);
    }
    let kills = |set: &NodeSet| !family.contains_quorum(&set.complement());
    if !kills(&killed) {
        // The construction found no quorum where there is one: fall back on all nodes.
        killed = NodeSet::full(nodes);
    }
    shrink(&killed, &vec![1.0; nodes], &kills)
}

/// Quorums made for each node that is added to a killing set.
const DRAWS: usize = 4;

/// The most nodes for which a killing set is sought though its size is known.
const WITNESS_NODES_MAX: usize = 200;

/// The most nodes whose subsets are enumerated.
const ENUMERATED_MAX: usize = 20;

/// The most quorums that are searched for a smallest hitting set.
const LISTED_MAX: usize = 20_000;

const DIAGRAM_NODES_MAX: usize = 500_000;
