//! A family on the first nodes of a larger cluster; the rest are spares.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// A family over the first nodes of a cluster. The other nodes are in no quorum.
#[derive(Clone, Debug)]
pub struct Spare {
    inner: Arc<dyn Family>,
    /// The part of the family used while every node is up, if that is not the whole.
    primary: Option<Arc<Spare>>,
    nodes: usize,
}

impl Spare {
    /// Puts `inner` on the first of `nodes` nodes; `nodes` is at least what `inner` needs.
    pub(crate) fn new(inner: Arc<dyn Family>, nodes: usize) -> Self {
        assert!(nodes >= inner.nodes(), "invariant: the family fits");
        Self {
            inner,
            primary: None,
            nodes,
        }
    }

    /// The same, with the part of the family that is used while every node is up.
    pub(crate) fn with_primary(mut self, primary: Arc<dyn Family>) -> Self {
        self.primary = Some(Arc::new(Self::new(primary, self.nodes)));
        self
    }

    fn widen(&self, set: &NodeSet) -> NodeSet {
        NodeSet::of(self.nodes, set.iter())
    }
}

impl Family for Spare {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let inner = self.inner.nodes();
        let part = set.iter().take_while(|node| *node < inner);
        self.inner.contains_quorum(&NodeSet::of(inner, part))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let quorum = self.inner.cheapest(&cost[..self.inner.nodes()])?;
        Some(self.widen(&quorum))
    }

    fn cheapest_is_exact(&self) -> bool {
        self.inner.cheapest_is_exact()
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        self.widen(&self.inner.sample(rng))
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        if site >= self.inner.nodes() {
            return None;
        }
        self.inner.own(site).map(|quorum| self.widen(&quorum))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        self.inner.visit(&mut |quorum| visit(&self.widen(quorum)))
    }

    fn count(&self) -> Option<f64> {
        self.inner.count()
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let (used, spare) = odds.split_at(self.inner.nodes());
        let mass = self.inner.mass(used)?;
        let any: f64 = spare.iter().map(|odds| odds.up + odds.down).product();
        Some(Mass {
            live: mass.live * any,
            dead: mass.dead * any,
        })
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        circuit.append(&self.inner.circuit()?);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let mut plan = self.inner.load_plan(&capacity[..self.inner.nodes()])?;
        plan.loads.resize(self.nodes, 0.0);
        plan.weights.resize(self.nodes, 0.0);
        Some(plan)
    }

    fn transversal(&self) -> Option<usize> {
        self.inner.transversal()
    }

    fn primary(&self) -> Option<&dyn Family> {
        let primary: &dyn Family = self.primary.as_deref()?;
        Some(primary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::formula::Formula;
    use crate::construct::twin;

    #[test]
    fn spares_are_in_no_quorum() {
        let spare = Spare::new(Arc::new(Formula::tree(5).unwrap()), 8);
        twin::check_coterie("tree(5) and 3 spares", &spare);
    }
}
