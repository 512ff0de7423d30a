//! Projective planes.
//!
//! Maekawa, "A √N algorithm for mutual exclusion in decentralized systems" (1985), takes the
//! lines of a finite projective plane as quorums: any two lines meet in exactly one point, every
//! point is on as many lines as a line has points. A plane of order `s` has `s²+s+1` points and
//! exists for every prime power `s`.
//!
//! We use Singer's form of the plane: a *difference set* `D` of `s+1` numbers such that every
//! nonzero number modulo `n` is the difference of exactly one pair of `D`. The lines are the
//! shifts `D + i`, so `D` is all there is to store; and as `D` contains 0, line `i` contains node
//! `i`.
//!
//! | Maekawa | here |
//! |---|---|
//! | `N`, `K` | `nodes()`, `order() + 1` |
//! | `S_i`, the set of site i | [`Plane::line`], [`Family::own`] |

use std::ops::ControlFlow;
use std::sync::Arc;

use thiserror::Error;

use super::explicit::NODES_MAX;
use super::field::{Field, prime_power};
use crate::{Circuit, Coterie, Family, LoadPlan, NodeSet, Prng, Sizes};

/// The lines of a projective plane of prime-power order: a coterie of `n` quorums of about `√n`
/// nodes, with the least load that quorums of that size can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plane {
    nodes: usize,
    /// The members of line 0, ascending: a difference set with 0 and 1 in it.
    differences: Vec<usize>,
}

impl Plane {
    /// The plane of `nodes` points.
    pub fn new(nodes: usize) -> Result<Self, PlaneError> {
        if nodes > NODES_MAX {
            return Err(PlaneError::TooMany { nodes });
        }
        let order = (2..=nodes.isqrt()).find(|order| points(*order) == nodes);
        let field = order.and_then(Field::new);
        let Some(field) = field else {
            return Err(PlaneError::not_a_plane(nodes));
        };
        Ok(Self {
            nodes,
            differences: difference_set(&field, nodes),
        })
    }

    /// The order `s`: a line has `s+1` nodes.
    pub fn order(&self) -> usize {
        self.differences.len() - 1
    }

    /// The members of line `place` (from 0): `place` itself first, the others in cyclic order.
    pub fn line(&self, place: usize) -> impl Iterator<Item = usize> + '_ {
        let shift = place % self.nodes;
        self.differences.iter().map(move |difference| {
            let node = difference + shift;
            if node < self.nodes {
                node
            } else {
                node - self.nodes
            }
        })
    }

    /// The plane as a coterie: two lines always share a node.
    pub fn coterie(self) -> Coterie {
        Coterie::by_construction(Arc::new(self))
    }

    fn quorum(&self, place: usize) -> NodeSet {
        NodeSet::of(self.nodes, self.line(place))
    }
}

impl Family for Plane {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        (0..self.nodes)
            .filter(|place| set.contains(*place))
            .any(|place| self.line(place).all(|node| set.contains(node)))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best = None;
        let mut least = f64::INFINITY;
        for place in 0..self.nodes {
            let total: f64 = self.line(place).map(|node| cost[node]).sum();
            if total < least {
                least = total;
                best = Some(place);
            }
        }
        best.map(|place| self.quorum(place))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.quorum(rng.below(self.nodes))
    }

    fn sizes(&self) -> Sizes {
        Sizes::exact(self.differences.len(), self.differences.len())
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        (site < self.nodes).then(|| self.quorum(site))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        for place in 0..self.nodes {
            if visit(&self.quorum(place)).is_break() {
                return Some(ControlFlow::Break(()));
            }
        }
        Some(ControlFlow::Continue(()))
    }

    fn count(&self) -> Option<f64> {
        Some(self.nodes as f64)
    }

    fn circuit(&self) -> Option<Circuit> {
        if self.nodes > CIRCUIT_NODES_MAX {
            return None;
        }
        let mut circuit = Circuit::new(self.nodes);
        let gates: Vec<_> = (0..self.nodes).map(|node| circuit.node(node)).collect();
        let lines: Vec<_> = (0..self.nodes)
            .map(|place| circuit.all(self.line(place).map(|node| gates[node])))
            .collect();
        circuit.any(lines);
        Some(circuit)
    }

    /// Known for equal capacities: all lines equally often.
    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let equal = capacity.iter().all(|other| *other == capacity[0]);
        equal.then(|| LoadPlan {
            loads: vec![self.differences.len() as f64 / self.nodes as f64; self.nodes],
            weights: vec![1.0; self.nodes],
        })
    }

    /// A line meets every line. Fewer nodes do not: each is on only `s+1` of the `s²+s+1` lines.
    fn transversal(&self) -> Option<usize> {
        Some(self.differences.len())
    }
}

/// Why there is no plane.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlaneError {
    /// The number of nodes is not that of a plane.
    #[error(
        "a projective plane has n = s²+s+1 nodes for a prime power s: {}",
        nearest(*below, *above)
    )]
    NotAPlane {
        /// The number of nodes asked for.
        nodes: usize,
        /// The next smaller order with a plane.
        below: Option<usize>,
        /// The next larger order with a plane.
        above: Option<usize>,
    },
    /// More nodes than this library takes.
    #[error("{nodes} nodes are too many: at most {NODES_MAX} are allowed")]
    TooMany {
        /// How many were asked for.
        nodes: usize,
    },
}

impl PlaneError {
    fn not_a_plane(nodes: usize) -> Self {
        let mut orders = (2..NODES_MAX).take_while(|order| points(*order) <= NODES_MAX);
        let mut below = None;
        let above = orders.find(|order| {
            let fits = prime_power(*order).is_some();
            if fits && points(*order) < nodes {
                below = Some(*order);
            }
            fits && points(*order) > nodes
        });
        Self::NotAPlane {
            nodes,
            below,
            above,
        }
    }
}

fn nearest(below: Option<usize>, above: Option<usize>) -> String {
    let name = |order: usize| format!("{} (s={order})", points(order));
    match (below, above) {
        (Some(below), Some(above)) => format!("{} or {} are nearest", name(below), name(above)),
        (Some(one), None) | (None, Some(one)) => format!("{} is nearest", name(one)),
        (None, None) => "none is near".to_owned(),
    }
}

/// The number of points of a plane of this order.
fn points(order: usize) -> usize {
    order * order + order + 1
}

/// Singer's difference set, shifted to contain 0 and 1 (that shift is unique).
///
/// The powers of a suitable element `x` of the cubic extension of the field run through all
/// `n` points, and those whose `x²` part is zero form a line.
fn difference_set(field: &Field, nodes: usize) -> Vec<usize> {
    let order = field.order();
    // The constant term varies fastest: where 3 divides s-1, some constants never work.
    let line = (0..order * order)
        .flat_map(|rest| (1..order).map(move |constant| [constant, rest % order, rest / order]))
        .find_map(|cubic| powers_on_a_line(field, cubic, nodes))
        .expect("invariant: every finite field has a primitive cubic polynomial");
    let shift = line
        .iter()
        .copied()
        .find(|start| line.contains(&((start + 1) % nodes)))
        .expect("invariant: 1 is the difference of two members of a difference set");
    let mut shifted: Vec<usize> = line
        .iter()
        .map(|member| (member + nodes - shift) % nodes)
        .collect();
    shifted.sort_unstable();
    shifted
}

/// The exponents below `nodes` of powers of `x` without an `x²` part, where
/// `x³ = cubic[0] + cubic[1] x + cubic[2] x²`; `None` if the powers come back to the field itself
/// before they have run through all points.
fn powers_on_a_line(field: &Field, cubic: [usize; 3], nodes: usize) -> Option<Vec<usize>> {
    let mut line = Vec::new();
    let mut power = [1, 0, 0];
    for exponent in 0..nodes {
        if exponent > 0 && power[1] == 0 && power[2] == 0 {
            return None;
        }
        if power[2] == 0 {
            line.push(exponent);
        }
        let [low, middle, top] = power;
        power = [
            field.mul(top, cubic[0]),
            field.add(low, field.mul(top, cubic[1])),
            field.add(middle, field.mul(top, cubic[2])),
        ];
    }
    Some(line)
}

/// Larger planes have no small decision diagram, so a circuit would be of no use.
const CIRCUIT_NODES_MAX: usize = 31;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::list;

    #[test]
    fn every_prime_power_order_has_its_plane() {
        for order in (2..=32).filter(|order| prime_power(*order).is_some()) {
            let plane = Plane::new(points(order)).unwrap();
            assert_eq!(plane.order(), order);
            let lines = list(&plane, 2000).unwrap();
            assert_eq!(lines.len(), points(order));
            for (place, line) in lines.iter().enumerate() {
                assert_eq!(line.len(), order + 1);
                assert!(line.contains(place));
                assert_eq!(plane.own(place).as_ref(), Some(line));
                for other in &lines[..place] {
                    assert_eq!(line.common(other), 1);
                }
            }
        }
    }

    /// One difference for each nonzero number is the whole plane axiom, so large orders are
    /// checked by it.
    #[test]
    fn large_planes_have_perfect_difference_sets() {
        for order in [169, 243, 256, 311, 313] {
            let plane = Plane::new(points(order)).unwrap();
            let mut seen = NodeSet::new(plane.nodes());
            for a in &plane.differences {
                for b in plane.differences.iter().filter(|b| *b != a) {
                    assert!(seen.insert((a + plane.nodes() - b) % plane.nodes()));
                }
            }
            assert_eq!(seen.len(), plane.nodes() - 1);
        }
    }

    #[test]
    fn the_fano_plane_agrees_with_its_list() {
        let plane = Plane::new(7).unwrap();
        let lines = list(&plane, 10).unwrap();
        let circuit = plane.circuit().unwrap();
        let mut transversal = 7;
        for mask in 0..128 {
            let set = NodeSet::from_mask(7, mask);
            let holds = lines.iter().any(|line| line.is_subset(&set));
            assert_eq!(plane.contains_quorum(&set), holds);
            assert_eq!(circuit.eval(&set), holds);
            if lines.iter().all(|line| line.intersects(&set)) {
                transversal = transversal.min(set.len());
            }
        }
        assert_eq!(plane.transversal(), Some(transversal));
    }

    #[test]
    fn the_cheapest_line_avoids_dear_nodes() {
        let plane = Plane::new(13).unwrap();
        let mut rng = Prng::new(3);
        for _ in 0..50 {
            let cost: Vec<f64> = (0..13)
                .map(|_| {
                    if rng.chance(0.3) {
                        f64::INFINITY
                    } else {
                        rng.unit()
                    }
                })
                .collect();
            let up = NodeSet::of(13, (0..13).filter(|node| cost[*node].is_finite()));
            let total = |line: &NodeSet| line.iter().map(|node| cost[node]).sum::<f64>();
            let least = list(&plane, 13)
                .unwrap()
                .iter()
                .map(total)
                .fold(f64::INFINITY, f64::min);
            match plane.cheapest(&cost) {
                Some(line) => assert_eq!(total(&line), least),
                None => assert!(!plane.contains_quorum(&up)),
            }
        }
    }

    #[test]
    fn other_sizes_are_refused_with_the_nearest_that_work() {
        let told = |nodes| Plane::new(nodes).unwrap_err().to_string();
        assert_eq!(
            told(14),
            "a projective plane has n = s²+s+1 nodes for a prime power s: \
             13 (s=3) or 21 (s=4) are nearest"
        );
        assert!(told(43).ends_with("31 (s=5) or 57 (s=7) are nearest"));
        assert!(told(0).ends_with(": 7 (s=2) is nearest"));
        assert!(told(3).ends_with(": 7 (s=2) is nearest"));
        assert!(told(99_999).ends_with(": 98283 (s=313) is nearest"));
        assert!(told(100_001).contains("too many"));
        assert!(told(usize::MAX).contains("too many"));
    }
}
