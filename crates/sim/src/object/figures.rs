//! What an operation costs when nothing goes wrong, by our rules and by those first published.

use super::liar::Habit;
use super::options::Options;
use super::world::run;
use crate::net::Latency;
use crate::options::OptionsError;

/// What operations have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// How many clients submitted one operation each, all at the same time.
    pub clients: u32,
    /// How long one took on average, in spans of the lease for ordering.
    pub mean: f64,
    /// How long the last one took.
    pub last: f64,
    /// How often clients contended for the lease, per run.
    pub contends: f64,
    /// Round trips under a rank, per run: gets, proposals and commits.
    pub rounds: f64,
    /// How many versions were made, per run: so many winners were needed.
    pub versions: f64,
}

/// The span of the lease for ordering, in milliseconds; messages take up to a tenth of it.
const SPAN_MS: u64 = 1000;

/// When those begin who are measured: by then the object has a version, and nobody holds a lease.
const LATE_MS: u64 = 20 * SPAN_MS;

/// The world of a figure: seven nodes, one of which says nothing, and nothing else goes wrong. One
/// client has written once; then all others, who know nothing, submit together.
pub fn calm(paper: bool, clients: u32, seed: u64) -> Options {
    Options {
        seed,
        paper,
        clients: clients + 1,
        late_ms: LATE_MS,
        lie: Habit::Silent,
        ops: 1,
        reads: 0.0,
        random: 0.0,
        think_ms: 0,
        latency: Latency::Uniform(0, SPAN_MS / 10 * 1_000_000),
        disk_us: 1,
        delay_ms: SPAN_MS / 10,
        order_ms: SPAN_MS,
        span_ms: 3_600_000,
        ..Options::default()
    }
}

/// What it costs when so many clients submit at once, over these many runs.
pub fn cost(paper: bool, clients: u32, runs: u64) -> Result<Cost, OptionsError> {
    let mut cost = Cost {
        clients,
        ..Cost::default()
    };
    let each = 1.0 / runs.max(1) as f64;
    let span = SPAN_MS as f64 * 1e6;
    for seed in 1..=runs.max(1) {
        let outcome = run(&calm(paper, clients, seed), None)?;
        let sum: u64 = outcome.waits.iter().sum();
        let last = outcome.waits.iter().copied().max().unwrap_or(0);
        let counters = outcome.counters;
        cost.mean += each * sum as f64 / outcome.waits.len().max(1) as f64 / span;
        cost.last += each * last as f64 / span;
        cost.contends += each * counters.contends as f64;
        let rounds = counters.gets + counters.proposes + counters.commits;
        cost.rounds += each * rounds as f64;
        cost.versions += each * outcome.versions.saturating_sub(1) as f64;
    }
    Ok(cost)
}
