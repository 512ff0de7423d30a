//! Nested composition: every node of an outer system is a whole copy of an inner one.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::family::list;
use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::{SizeError, check_nodes};

/// Copies of the inner family that are listed at most.
const INNER_LISTED_MAX: usize = 4096;

/// An outer family over copies of an inner one. Copy `i` has nodes `i*k..(i+1)*k`. A quorum is an
/// inner quorum in each copy of an outer quorum; it intersects as much as its parts do.
#[derive(Clone, Debug)]
pub struct Compose {
    outer: Arc<dyn Family>,
    inner: Arc<dyn Family>,
}

impl Compose {
    /// Replaces every node of `outer` by a copy of `inner`.
    pub fn new(outer: Arc<dyn Family>, inner: Arc<dyn Family>) -> Result<Self, SizeError> {
        check_nodes(outer.nodes().saturating_mul(inner.nodes()))?;
        Ok(Self { outer, inner })
    }

    /// The outer family.
    pub fn outer(&self) -> &Arc<dyn Family> {
        &self.outer
    }

    /// The inner family.
    pub fn inner(&self) -> &Arc<dyn Family> {
        &self.inner
    }

    fn width(&self) -> usize {
        self.inner.nodes()
    }

    fn place(&self, copy: usize, inner: &NodeSet, set: &mut NodeSet) {
        for node in inner.iter() {
            set.insert(copy * self.width() + node);
        }
    }

    fn fill(&self, outer: &NodeSet, mut inner: impl FnMut(usize) -> NodeSet) -> NodeSet {
        let mut set = NodeSet::new(self.nodes());
        for copy in outer.iter() {
            self.place(copy, &inner(copy), &mut set);
        }
        set
    }

    fn visit_copies(
        &self,
        copies: &[usize],
        inner: &[NodeSet],
        set: &NodeSet,
        visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let [copy, rest @ ..] = copies else {
            return visit(set);
        };
        for quorum in inner {
            let mut with = set.clone();
            self.place(*copy, quorum, &mut with);
            self.visit_copies(rest, inner, &with, visit)?;
        }
        ControlFlow::Continue(())
    }
}

impl Family for Compose {
    fn nodes(&self) -> usize {
        self.outer.nodes() * self.inner.nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        let width = self.width();
        let held = |copy: &usize| {
            let first = copy * width;
            let part = NodeSet::of(width, (0..width).filter(|node| set.contains(first + node)));
            self.inner.contains_quorum(&part)
        };
        let copies = NodeSet::of(self.outer.nodes(), (0..self.outer.nodes()).filter(held));
        self.outer.contains_quorum(&copies)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let inner: Vec<Option<NodeSet>> = cost
            .chunks(self.width())
            .map(|cost| self.inner.cheapest(cost))
            .collect();
        let price: Vec<f64> = inner
            .iter()
            .zip(cost.chunks(self.width()))
            .map(|(quorum, cost)| {
                let price = |quorum| crate::family::cost_of(quorum, cost);
                quorum.as_ref().map_or(f64::INFINITY, price)
            })
            .collect();
        let outer = self.outer.cheapest(&price)?;
        let chosen = |copy: usize| inner[copy].clone();
        Some(self.fill(&outer, |copy| {
            chosen(copy).unwrap_or_else(|| NodeSet::new(self.width()))
        }))
    }

    fn cheapest_is_exact(&self) -> bool {
        self.outer.cheapest_is_exact() && self.inner.cheapest_is_exact()
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let outer = self.outer.sample(rng);
        self.fill(&outer, |_| self.inner.sample(rng))
    }

    fn sizes(&self) -> Sizes {
        let (outer, inner) = (self.outer.sizes(), self.inner.sizes());
        Sizes {
            min: outer.min * inner.min,
            max: outer.max * inner.max,
            exact: outer.exact && inner.exact,
        }
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        let (copy, place) = (site / self.width(), site % self.width());
        let outer = self.outer.own(copy)?;
        let own = self.inner.own(place)?;
        Some(self.fill(&outer, |_| own.clone()))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let inner = list(self.inner.as_ref(), INNER_LISTED_MAX)?;
        let empty = NodeSet::new(self.nodes());
        self.outer.visit(&mut |outer| {
            let copies: Vec<usize> = outer.iter().collect();
            self.visit_copies(&copies, &inner, &empty, visit)
        })
    }

    fn count(&self) -> Option<f64> {
        let sizes = self.outer.sizes();
        if !sizes.exact || sizes.min != sizes.max {
            return None;
        }
        Some(self.outer.count()? * self.inner.count()?.powf(sizes.min as f64))
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let mut copies = Vec::with_capacity(self.outer.nodes());
        for odds in odds.chunks(self.width()) {
            let Mass { live, dead } = self.inner.mass(odds)?;
            copies.push(Odds {
                up: live,
                down: dead,
            });
        }
        self.outer.mass(&copies)
    }

    fn circuit(&self) -> Option<Circuit> {
        let (outer, inner) = (self.outer.circuit()?, self.inner.circuit()?);
        let mut circuit = Circuit::new(self.nodes());
        circuit.append_at(&outer, |circuit, copy| {
            circuit.append_at(&inner, |circuit, node| {
                circuit.node(copy * self.width() + node)
            })
        });
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if capacity.iter().any(|c| *c != capacity[0]) {
            return None;
        }
        let outer = self.outer.load_plan(&capacity[..self.outer.nodes()])?;
        let inner = self.inner.load_plan(&capacity[..self.inner.nodes()])?;
        let join = |outer: &[f64], inner: &[f64]| -> Vec<f64> {
            outer
                .iter()
                .flat_map(|a| inner.iter().map(move |b| a * b))
                .collect()
        };
        Some(LoadPlan {
            loads: join(&outer.loads, &inner.loads),
            weights: join(&outer.weights, &inner.weights),
        })
    }

    fn transversal(&self) -> Option<usize> {
        Some(self.outer.transversal()? * self.inner.transversal()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::formula::Formula;
    use crate::construct::grid::Grid;
    use crate::construct::twin;
    use crate::construct::walls::Walls;

    #[test]
    fn agrees_with_its_brute_force_twin() {
        let parts: Vec<Arc<dyn Family>> = vec![
            Arc::new(Formula::majority(3).unwrap()),
            Arc::new(Formula::singleton(2).unwrap()),
            Arc::new(Walls::new(&[1, 2, 2]).unwrap()),
            Arc::new(Grid::new(4).unwrap()),
        ];
        for outer in &parts {
            for inner in &parts {
                if outer.nodes() * inner.nodes() <= 12 {
                    let family = Compose::new(outer.clone(), inner.clone()).unwrap();
                    twin::check_coterie(&format!("{family:?}"), &family);
                }
            }
        }
    }

    #[test]
    fn too_large_compositions_are_refused() {
        let large: Arc<dyn Family> = Arc::new(Formula::majority(1000).unwrap());
        assert!(Compose::new(large.clone(), large).is_err());
    }
}
