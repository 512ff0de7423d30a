//! How long clients wait for a lease: when many come at once, and when they come one by one.
//!
//! Six nodes, one of which gives its vote to nobody; a delay is a tenth of the span, and messages
//! take nothing, half of it or all of it.

use super::liar::Strategy;
use super::options::{Delays, Growth, LeaseOptions};
use super::world::run;

/// A way to back off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Its name in tables.
    pub name: &'static str,
    /// How waits grow.
    pub growth: Growth,
    /// Whether votes are given back after failures.
    pub release: bool,
    /// The shortest wait, in milliseconds; zero takes the shortest that makes sense.
    pub floor_ms: u64,
    /// How long a lease is used before it is given back, in milliseconds; zero lets it end.
    pub use_ms: u64,
}

/// The ways that are compared. In all but the last the shortest wait is a span and four delays
/// and leases end by themselves, as in the measurements they are compared with.
pub fn styles() -> Vec<Style> {
    let style = |name, growth, release| Style {
        name,
        growth,
        release,
        floor_ms: SPAN_MS + 4 * DELAY_MS,
        use_ms: 0,
    };
    vec![
        style("exponential", Growth::exponential(), false),
        style("quadratic", Growth::power(2.0), false),
        style("linear", Growth::power(1.0), false),
        style("exponential, release", Growth::exponential(), true),
        style("power 1.5, release", Growth::power(1.5), true),
        Style {
            floor_ms: 0,
            use_ms: SPAN_MS,
            ..style("as the service does", Growth::power(1.5), true)
        },
    ]
}

/// The longest delay and the span of all runs, in milliseconds.
const DELAY_MS: u64 = 100;
const SPAN_MS: u64 = 1000;

/// What `clients` that come at once wait for, as multiples of the span and their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// How many clients.
    pub clients: u32,
    /// How many runs.
    pub runs: u32,
    /// The mean wait over (span times clients).
    pub mean: f64,
    /// The wait of the last one over (span times clients).
    pub last: f64,
    /// Attempts per client.
    pub attempts: f64,
}

fn options(style: Style, clients: u32, seed: u64) -> LeaseOptions {
    LeaseOptions {
        seed,
        nodes: 6,
        byzantine: 1,
        lie: Strategy::Locked,
        clients,
        goal: 1,
        span_ms: SPAN_MS,
        delay_ms: DELAY_MS,
        delays: Delays::Three,
        growth: style.growth,
        release: style.release,
        early: 0.0,
        floor_ms: style.floor_ms,
        use_ms: style.use_ms,
        limit_s: 10_000_000,
        ..LeaseOptions::default()
    }
}

/// Lets so many clients come at once, each for one lease, `runs` times.
pub fn burst(style: Style, clients: u32, runs: u32, seed: u64) -> Burst {
    let unit = SPAN_MS as f64 * 1e6 * f64::from(clients);
    let (mut mean, mut last, mut attempts) = (0.0, 0.0, 0.0);
    for round in 0..runs {
        let options = LeaseOptions {
            together: true,
            ..options(style, clients, seed + u64::from(round))
        };
        let Ok(outcome) = run(&options, None) else {
            continue;
        };
        let waits = outcome.waits;
        let sum: f64 = waits.iter().map(|(nanos, _)| *nanos as f64).sum();
        let longest = waits.iter().map(|(nanos, _)| *nanos).max().unwrap_or(0);
        let tries: f64 = waits.iter().map(|(_, tries)| f64::from(*tries)).sum();
        mean += sum / waits.len().max(1) as f64 / unit;
        last += longest as f64 / unit;
        attempts += tries / waits.len().max(1) as f64;
    }
    let runs_made = f64::from(runs.max(1));
    Burst {
        clients,
        runs,
        mean: mean / runs_made,
        last: last / runs_made,
        attempts: attempts / runs_made,
    }
}

/// What clients wait for that come one by one, in spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// How many come per span.
    pub rate: f64,
    /// How many came.
    pub clients: u32,
    /// The middle wait.
    pub median: f64,
    /// The mean wait.
    pub mean: f64,
    /// One in a hundred waits longer.
    pub p99: f64,
}

/// Lets clients come one by one, `rate` per span in the mean, each for one lease.
pub fn load(style: Style, rate: f64, clients: u32, runs: u32, seed: u64) -> Load {
    let mut waits: Vec<f64> = Vec::new();
    for round in 0..runs {
        let options = LeaseOptions {
            arrive: rate,
            ..options(style, clients, seed + u64::from(round))
        };
        let Ok(outcome) = run(&options, None) else {
            continue;
        };
        let spans = |nanos: u64| nanos as f64 / (SPAN_MS as f64 * 1e6);
        waits.extend(outcome.waits.iter().map(|(nanos, _)| spans(*nanos)));
    }
    waits.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (waits.len() as f64 * part) as usize;
        waits.get(place.min(waits.len().saturating_sub(1))).copied()
    };
    Load {
        rate,
        clients: clients * runs,
        median: at(0.5).unwrap_or(0.0),
        mean: waits.iter().sum::<f64>() / waits.len().max(1) as f64,
        p99: at(0.99).unwrap_or(0.0),
    }
}
