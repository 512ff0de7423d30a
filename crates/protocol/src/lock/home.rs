//! Clients of a hierarchy speak to one node, their home.

use std::ops::ControlFlow;

use conclave_quorum::{Family, NodeSet, Prng, Sizes};

/// Every single node will do. Two such nodes do not meet: what keeps holders apart is the consent
/// that each of them needs, so only clients of a hierarchy may use this.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnyOne {
    pub(super) nodes: usize,
}

impl AnyOne {
    fn of(self, node: usize) -> NodeSet {
        NodeSet::of(self.nodes, [node])
    }
}

impl Family for AnyOne {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        !set.is_empty()
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let finite = (0..self.nodes).filter(|node| cost[*node].is_finite());
        let least = finite.min_by(|a, b| cost[*a].total_cmp(&cost[*b]))?;
        Some(self.of(least))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.of(rng.below(self.nodes.max(1)))
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            min: 1,
            max: 1,
            exact: true,
        }
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        for node in 0..self.nodes {
            if visit(&self.of(node)).is_break() {
                return Some(ControlFlow::Break(()));
            }
        }
        Some(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mode, Quorums};
    use super::*;
    use crate::id::NodeId;

    #[test]
    fn the_home_is_asked_first_and_any_other_when_it_must_be_avoided() {
        let quorums = Quorums::any_one(9);
        let none = NodeSet::new(9);
        let first = quorums.pick(&Mode::Exclusive, 7, &none);
        assert_eq!(first.len(), 1);
        assert_eq!(first, quorums.pick(&Mode::Exclusive, 7, &none), "by seed");
        let home = quorums.with_home(NodeId(4));
        for seed in 0..20 {
            let picked = home.pick(&Mode::Shared, seed, &none);
            assert_eq!(picked.iter().collect::<Vec<_>>(), [4]);
            let costs = [1.0; 9];
            let picked = home.pick_by(&Mode::Shared, seed, &none, &costs);
            assert_eq!(picked.unwrap().iter().collect::<Vec<_>>(), [4]);
            let avoid = NodeSet::of(9, [4]);
            let other = home.pick(&Mode::Shared, seed, &avoid);
            assert!(!other.contains(4) && other.len() == 1);
            let other = home.pick_by(&Mode::Shared, seed, &avoid, &costs).unwrap();
            assert!(!other.contains(4) && other.len() == 1);
        }
        let all_but_one = NodeSet::of(9, 0..8);
        assert!(!home.informs(&all_but_one), "the last may know of a grant");
    }
}
