//! Checking a construction's own strategy and certificate.
//!
//! The certificate is proved by pricing its weights. The strategy comes as node loads only; that
//! some strategy has them cannot be proved cheaply, but it can be refuted: under any node weights
//! the mean weight of a quorum is at least that of the lightest one. [`check`] tries weights that
//! lean ever more on the nodes which the plan claims to spare.

use super::bounds::{Bounds, Pricing};

/// The node loads of a construction's own strategy, not refuted.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) loads: Vec<f64>,
    /// Load of the busiest node.
    pub(super) upper: f64,
}

/// The construction's plan, if it has one that is not refuted. Offers its weights to `bounds`
/// where they prove something.
pub(super) fn check(pricing: &Pricing<'_>, capacity: &[f64], bounds: &mut Bounds) -> Option<Plan> {
    let plan = pricing.family().load_plan(capacity)?;
    let fits = |values: &[f64]| {
        values.len() == capacity.len() && values.iter().all(|v| v.is_finite() && *v >= 0.0)
    };
    if fits(&plan.weights)
        && pricing.exact()
        && let Some((_, lightest)) = pricing.lightest(&plan.weights)
    {
        bounds.offer_weights(&plan.weights, lightest);
    }
    if !fits(&plan.loads) || plan.loads.iter().any(|load| *load > 1.0 + 1e-9) {
        return None;
    }
    let upper = bounds.busiest(&plan.loads);
    if upper < bounds.lower() * (1.0 - super::EXACT_GAP) || refuted(pricing, &plan.loads) {
        return None;
    }
    Some(Plan {
        loads: plan.loads,
        upper,
    })
}

/// Whether some weights show that no strategy has these loads.
fn refuted(pricing: &Pricing<'_>, loads: &[f64]) -> bool {
    if !pricing.exact() {
        return false;
    }
    let rounds = (ROUND_WORK / pricing.work().max(1)).clamp(4, ROUNDS_MAX);
    let mut weights = vec![1.0; loads.len()];
    let mut drawn = vec![0.0; loads.len()];
    for round in 0..rounds {
        let Some((quorum, lightest)) = pricing.lightest(&weights) else {
            return true;
        };
        let mean: f64 = loads.iter().zip(&weights).map(|(l, w)| l * w).sum();
        if mean < lightest * (1.0 - 1e-9) {
            return true;
        }
        // Nodes that the quorums had to use more than the plan says gain weight.
        for node in quorum.iter() {
            drawn[node] += 1.0;
        }
        let passed = (round + 1) as f64;
        for (node, weight) in weights.iter_mut().enumerate() {
            *weight = (STEP * (drawn[node] - passed * loads[node]))
                .clamp(-30.0, 30.0)
                .exp();
        }
    }
    false
}

/// How sharply the weights lean.
const STEP: f64 = 0.5;
const ROUNDS_MAX: u64 = 64;
const ROUND_WORK: u64 = 1_000_000;
