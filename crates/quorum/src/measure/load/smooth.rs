//! Load by multiplicative weights, for families too large for linear programs.
//!
//! Each round draws the lightest quorum and makes its nodes heavier; the quorums drawn are the
//! strategy, each with the same share. The bounds close slowly but every step is cheap.

use crate::NodeSet;
use crate::measure::Progress;

use super::bounds::{Bounds, Pricing};

/// Runs a number of rounds that depends on the family's size alone.
pub(super) fn smooth(
    pricing: &Pricing<'_>,
    start: &[NodeSet],
    capacity: &[f64],
    bounds: &mut Bounds,
    progress: &mut dyn FnMut(Progress),
) {
    bounds.offer_strategy(start, &vec![1.0; start.len()]);
    let nodes = capacity.len();
    let mean = capacity.iter().sum::<f64>() / nodes.max(1) as f64;
    let rounds = (ROUND_WORK / pricing.work().max(1)).clamp(ROUNDS_MIN, ROUNDS_MAX);
    let mut counts = vec![0.0f64; nodes];
    let mut drawn: Vec<NodeSet> = Vec::new();
    let mut sums = vec![0.0f64; nodes];
    for round in 0..rounds {
        // Node weights times capacity are a distribution; dividing by the largest exponent
        // keeps them in range.
        let top = counts.iter().copied().fold(0.0, f64::max);
        let weights: Vec<f64> = counts
            .iter()
            .zip(capacity)
            .map(|(count, capacity)| (STEP * (count - top)).exp() / (capacity / mean))
            .collect();
        let Some((quorum, lightest)) = pricing.lightest(&weights) else {
            break;
        };
        if pricing.exact() {
            bounds.offer_weights(&weights, lightest);
        }
        let total: f64 = weights.iter().zip(capacity).map(|(w, c)| w * c).sum();
        for (sum, weight) in sums.iter_mut().zip(&weights) {
            *sum += weight / total;
        }
        for node in quorum.iter() {
            counts[node] += mean / capacity[node];
        }
        drawn.push(quorum);
        progress(Progress {
            stage: "load: smoothing",
            done: round + 1,
            total: rounds,
        });
        if (round + 1) % CHECK_EVERY == 0 {
            bounds.offer_strategy(&drawn, &vec![1.0; drawn.len()]);
            // The mean of all weights is steadier than the last ones.
            if pricing.exact()
                && let Some((_, lightest)) = pricing.lightest(&sums)
            {
                bounds.offer_weights(&sums, lightest);
            }
            if bounds.exact() {
                break;
            }
        }
    }
    bounds.offer_strategy(&drawn, &vec![1.0; drawn.len()]);
}

const STEP: f64 = 0.5;
const CHECK_EVERY: u64 = 100;
const ROUNDS_MIN: u64 = 100;
const ROUNDS_MAX: u64 = 4000;
const ROUND_WORK: u64 = 400_000_000;
