//! Load by linear programming: the whole program at once, or quorums generated as needed.

use std::collections::BTreeSet;

use crate::measure::Progress;
use crate::{NodeSet, Prng};

use super::EXACT_GAP;
use super::bounds::{Bounds, Pricing};
use super::master::{Dual, primal};

/// Solves both programs over all quorums.
pub(super) fn direct(
    pricing: &Pricing<'_>,
    quorums: &[NodeSet],
    capacity: &[f64],
    bounds: &mut Bounds,
) {
    let scaled = scale(capacity);
    if let Some(shares) = primal(quorums, &scaled) {
        bounds.offer_strategy(quorums, &shares);
    }
    if let Some((weights, _)) = Dual::new(quorums, &scaled).and_then(|dual| dual.point())
        && let Some((_, lightest)) = pricing.lightest(&weights)
    {
        bounds.offer_weights(&weights, lightest);
    }
}

/// Quorums to start from: those that the construction assigns to sites, and some of its samples.
pub(super) fn start(pricing: &Pricing<'_>, first: NodeSet) -> Vec<NodeSet> {
    let family = pricing.family();
    let nodes = family.nodes();
    let mut seen = BTreeSet::from([first.clone()]);
    let mut start = vec![first];
    let mut rng = Prng::new(0);
    let own = (0..nodes.min(START_MAX)).filter_map(|site| family.own(site));
    let own: Vec<NodeSet> = own.collect();
    let samples = if own.len() < nodes {
        nodes.min(START_MAX)
    } else {
        0
    };
    let drawn = (0..samples).map(|_| family.sample(&mut rng));
    for quorum in own.into_iter().chain(drawn) {
        if quorum.capacity() == nodes
            && family.contains_quorum(&quorum)
            && seen.insert(quorum.clone())
        {
            start.push(quorum);
        }
    }
    start
}

/// Grows a list of quorums until the best strategy over it is the best of all, or until the work
/// is used up. The dual program asks for the lightest quorum under its weights; a quorum lighter
/// than it believed becomes a new row.
pub(super) fn generate(
    pricing: &Pricing<'_>,
    mut quorums: Vec<NodeSet>,
    capacity: &[f64],
    bounds: &mut Bounds,
    progress: &mut dyn FnMut(Progress),
) {
    let scaled = scale(capacity);
    let mut seen: BTreeSet<NodeSet> = quorums.iter().cloned().collect();
    let mut dual = Dual::new(&quorums, &scaled);
    let mut work = 0;
    while let Some((weights, value)) = dual.as_ref().and_then(Dual::point) {
        let Some(quorum) = separate(pricing, &weights, value, bounds) else {
            break;
        };
        if !pricing.family().contains_quorum(&quorum) || !seen.insert(quorum.clone()) {
            break;
        }
        let pivots = dual.as_ref().map_or(0, Dual::pivots);
        let added = dual.as_mut().and_then(|dual| dual.add(&quorum));
        quorums.push(quorum);
        if added.is_none() {
            // The solver lost its way: a fresh start may find it again, once.
            dual = Dual::new(&quorums, &scaled);
        }
        let pivoted = dual.as_ref().map_or(0, Dual::pivots).saturating_sub(pivots);
        work += 2 * pricing.work() + pivot_work(&quorums, capacity.len()) * (10 + pivoted);
        progress(Progress {
            stage: "load: generating quorums",
            done: work.min(WORK_MAX),
            total: WORK_MAX,
        });
        if work >= WORK_MAX || quorums.len() >= QUORUMS_MAX {
            break;
        }
    }
    if let Some(shares) = primal(&quorums, &scaled) {
        bounds.offer_strategy(&quorums, &shares);
    }
    if !bounds.upper().is_finite() {
        bounds.offer_strategy(&quorums, &vec![1.0; quorums.len()]);
    }
}

/// A quorum that is lighter under `weights` than `value`, or `None` if there is none. Looks first
/// from half way to the best weights so far, which steadies the search.
fn separate(
    pricing: &Pricing<'_>,
    weights: &[f64],
    value: f64,
    bounds: &mut Bounds,
) -> Option<NodeSet> {
    let scale_to = |target: &[f64]| {
        let (sum, goal): (f64, f64) = (target.iter().sum(), weights.iter().sum());
        if sum > 0.0 { goal / sum } else { 0.0 }
    };
    let factor = scale_to(bounds.weights());
    let between: Vec<f64> = weights
        .iter()
        .zip(bounds.weights())
        .map(|(weight, best)| 0.5 * weight + 0.5 * factor * best)
        .collect();
    for point in [between.as_slice(), weights] {
        let (quorum, lightest) = pricing.lightest(point)?;
        if pricing.exact() {
            bounds.offer_weights(point, lightest);
        }
        let here = crate::family::cost_of(&quorum, weights);
        if here < value * (1.0 - EXACT_GAP / 100.0) {
            return Some(quorum);
        }
    }
    None
}

/// The work of one pivot. Its time was measured to grow with the cube of the program's size, and
/// to be about a third for quorums that are few nodes of many.
fn pivot_work(quorums: &[NodeSet], nodes: usize) -> u64 {
    let size = (nodes + quorums.len()) as u64;
    let members = quorums.last().map_or(0, NodeSet::len);
    let density = members as f64 / nodes.max(1) as f64;
    (size.pow(3) as f64 * (0.25 + density) / PIVOTS_PER_STEP) as u64
}

/// Capacities with mean 1, which keeps the programs well scaled.
fn scale(capacity: &[f64]) -> Vec<f64> {
    let mean = capacity.iter().sum::<f64>() / capacity.len().max(1) as f64;
    capacity.iter().map(|capacity| capacity / mean).collect()
}

const START_MAX: usize = 300;
const QUORUMS_MAX: usize = 4000;

/// Scale of a pivot's work against that of a pricing, and the work after which the search ends:
/// some ten seconds of a processor.
const PIVOTS_PER_STEP: f64 = 1000.0;
const WORK_MAX: u64 = 3_000_000_000;
