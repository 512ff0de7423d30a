//! Load and capacity (Naor and Wool 1998).
//!
//! A strategy draws quorums with some probabilities; a node's load is the probability that it is
//! drawn, divided by the node's capacity; the system's load is that of the busiest node under the
//! best strategy. Two facts bound it: any strategy from above, and any node weights `y` with
//! `sum of capacity[i] * y[i] = 1` from below, by the weight of the lightest quorum. [`load`]
//! looks for a strategy and weights that meet, and recomputes both sides itself: `exact` is never
//! taken from a solver. A construction's own strategy comes as node loads; it is taken where
//! they meet proven weights and a search for weights that refute them finds none.

mod bounds;
mod columns;
mod master;
mod plan;
mod smooth;

use crate::family::list;
use crate::{Family, NodeSet};

use super::Progress;
use bounds::{Bounds, Pricing};

/// Relative gap up to which two bounds count as one value.
pub const EXACT_GAP: f64 = 1e-9;

/// The load of a family, with the strategy and the weights that prove it.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// No strategy has a smaller load.
    pub lower: f64,
    /// The load of the strategy found: infinite if the family has no quorum.
    pub upper: f64,
    /// The probability with which that strategy uses each node (not divided by capacity).
    pub loads: Vec<f64>,
    /// The node weights that prove `lower`, scaled so that capacities times weights sum to 1.
    pub weights: Vec<f64>,
    /// The strategy: quorums and their probabilities. Empty where the family's own sampler is
    /// the strategy.
    pub strategy: Vec<(NodeSet, f64)>,
    /// Whether the bounds are within [`EXACT_GAP`] of each other.
    pub exact: bool,
    /// How the strategy was found, in a few words.
    pub method: &'static str,
}

impl Load {
    /// How many entries per unit of time the system can serve if a node of capacity 1 serves one
    /// request per unit of time: the inverse of the load.
    pub fn capacity(&self) -> f64 {
        1.0 / self.upper
    }

    /// How far the bounds are apart, relative to the upper one.
    pub fn gap(&self) -> f64 {
        if self.upper.is_finite() && self.upper > 0.0 {
            (self.upper - self.lower) / self.upper
        } else {
            0.0
        }
    }

    /// The mean size of a quorum drawn by the strategy.
    pub fn mean_size(&self) -> f64 {
        self.loads.iter().sum()
    }
}

/// The load of `family` (of its [`Family::primary`] part where it has one) for nodes of the given
/// capacities, all 1 by default.
///
/// Work is bounded by counts, never by a clock, so the answer depends on the arguments alone.
/// Where the bound is reached first, the answer has a gap.
///
/// # Panics
///
/// If `capacity` has another length than the family has nodes, or holds a value that is not
/// positive and finite: [`super::tables::check_capacities`] says so without a panic.
pub fn load(
    family: &dyn Family,
    capacity: Option<&[f64]>,
    progress: &mut dyn FnMut(Progress),
) -> Load {
    let family = family.primary().unwrap_or(family);
    let units = vec![1.0; family.nodes()];
    let capacity = capacity.unwrap_or(&units);
    assert!(
        capacity.len() == family.nodes() && capacity.iter().all(|c| c.is_finite() && *c > 0.0),
        "invariant: one positive, finite capacity per node"
    );
    let mut bounds = Bounds::new(capacity);
    let Some(first) = family.cheapest(&units) else {
        return bounds.finish("no quorum");
    };
    let listed = list(family, LISTED_MAX);
    let pricing = Pricing::new(family, listed.as_deref());
    bounds.offer_sizes(family.sizes(), &first);
    let plan = plan::check(&pricing, capacity, &mut bounds);
    if let Some(plan) = &plan
        && bounds.closes(plan.upper)
    {
        bounds.offer_loads(plan);
        return bounds.finish("the construction's strategy");
    }
    let method = search(&pricing, first, capacity, &mut bounds, progress);
    let taken = plan.is_some_and(|plan| !bounds.exact() && bounds.offer_loads(&plan));
    bounds.finish(if taken {
        "the construction's strategy"
    } else {
        method
    })
}

/// Looks for a strategy and weights by linear programming, and where that is too large or ends
/// early, by smoothing; says which of them found the strategy.
fn search(
    pricing: &Pricing<'_>,
    first: NodeSet,
    capacity: &[f64],
    bounds: &mut Bounds,
    progress: &mut dyn FnMut(Progress),
) -> &'static str {
    if let Some(quorums) = pricing.listed()
        && quorums.len() <= DIRECT_QUORUMS_MAX
        && quorums.len() * capacity.len() <= DIRECT_CELLS_MAX
    {
        columns::direct(pricing, quorums, capacity, bounds);
        if bounds.exact() {
            return "linear program";
        }
    }
    let dense = capacity.len() * first.len();
    let start = columns::start(pricing, first);
    if capacity.len() <= COLUMNS_NODES_MAX && dense <= COLUMNS_CELLS_MAX {
        columns::generate(pricing, start.clone(), capacity, bounds, progress);
        if bounds.exact() {
            return "column generation";
        }
    }
    let before = bounds.upper();
    smooth::smooth(pricing, &start, capacity, bounds, progress);
    if bounds.upper() < before {
        "multiplicative weights"
    } else {
        "column generation"
    }
}

/// The most quorums that are listed rather than priced by the construction.
const LISTED_MAX: usize = 20_000;

/// The most quorums, and the most quorums times nodes, for which the whole linear program is
/// solved at once.
const DIRECT_QUORUMS_MAX: usize = 300;
const DIRECT_CELLS_MAX: usize = 30_000;

/// The most nodes, and the most nodes times members of a quorum, for which linear programs are
/// solved.
const COLUMNS_NODES_MAX: usize = 1500;
const COLUMNS_CELLS_MAX: usize = 60_000;
