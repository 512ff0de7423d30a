//! What all who deal with leases agree on, and how a contender asks.

use std::time::Duration;

use super::plant::Rules;
use crate::fault::Faults;

/// Clocks show no finer steps than this.
const TICK: Duration = Duration::from_micros(1);
/// Rates that are off by more than this are not clocks.
const DRIFT_MAX: u128 = 900_000;
const MILLION: u128 = 1_000_000;

/// What nodes and clients of a cluster agree on about leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The nodes, and how many may lie.
    pub faults: Faults,
    /// How long a message takes at most when all is well: queues, disks and sleep included. Only
    /// liveness and the length of a lease depend on it.
    pub delay: Duration,
    /// How far the rate of a clock may be off, in millionths.
    pub drift_ppm: u32,
    /// The longest span of a lease.
    pub span_max: Duration,
    /// Most leases that a node keeps at once.
    pub leases_max: usize,
    /// Most requests that wait for one lease at a node.
    pub waiting_max: usize,
    /// Most bytes of a name.
    pub name_max: usize,
    /// Which rules are broken on purpose, if any.
    pub rules: Rules,
}

impl LeaseConfig {
    /// The usual times and limits for these nodes.
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            delay: Duration::from_millis(50),
            drift_ppm: 5_000,
            span_max: Duration::from_mins(1),
            leases_max: 65_536,
            waiting_max: 64,
            name_max: 1024,
            rules: Rules::default(),
        }
    }

    /// How long a node's vote for a lease of this span lasts, on the node's clock: the span, the
    /// way there and back, and a tick, longer by what two clocks may differ.
    pub fn vote(&self, span: Duration) -> Duration {
        let bare = span.saturating_add(self.delay.saturating_mul(2));
        if self.rules.paper {
            return bare;
        }
        let whole = bare.saturating_add(TICK);
        let (fast, slow) = self.rates();
        let nanos = whole.as_nanos().saturating_mul(fast).div_ceil(slow);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long a contender may count on a time that a node has measured: less by what two
    /// clocks may differ.
    pub fn sure(&self, measured: Duration) -> Duration {
        let (fast, slow) = self.rates();
        let nanos = measured.as_nanos().saturating_mul(slow) / fast;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long a node gives no vote after a restart: no vote that it gave before lasts longer.
    pub fn quarantine(&self) -> Duration {
        self.vote(self.span_max).saturating_add(TICK)
    }

    /// How long an attempt waits for answers: the way there and back, on the fastest clock, and a
    /// tick.
    pub fn round_trip(&self) -> Duration {
        let (fast, _) = self.rates();
        let ways = self.delay.saturating_mul(2).saturating_add(TICK);
        let nanos = ways.as_nanos().saturating_mul(fast).div_ceil(MILLION);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The rates of the fastest and the slowest clock, in millionths of the true one.
    fn rates(&self) -> (u128, u128) {
        let drift = u128::from(self.drift_ppm).min(DRIFT_MAX);
        (MILLION + drift, MILLION - drift)
    }
}

/// How a contender asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// How long it is to last.
    pub span: Duration,
    /// How long nodes may keep a request that they cannot grant at once; zero never.
    pub patience: Duration,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// The shortest wait between attempts; none takes the shortest that makes sense.
    pub floor: Option<Duration>,
    /// Whether votes are given back after a failed attempt and at the end.
    pub release: bool,
    /// Whether this is the one client of the name that tries again without waiting.
    pub designated: bool,
    /// A lease of which less than this is left when it is won counts as failed.
    pub least: Duration,
}

/// How the waits between attempts grow: each is drawn evenly between a floor and a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backoff {
    /// The limit doubles with every failure, at most `cap` times.
    Exponential {
        /// After so many failures it no longer grows.
        cap: u32,
    },
    /// The limit is the floor times (1 + failures) to this power, of at most `cap` failures.
    Polynomial {
        /// The power.
        power: f64,
        /// After so many failures it no longer grows.
        cap: u32,
    },
}

impl Default for Backoff {
    fn default() -> Self {
        Self::Polynomial {
            power: 1.5,
            cap: 64,
        }
    }
}

impl Terms {
    /// The usual way to ask for a lease of this span.
    pub fn new(span: Duration) -> Self {
        Self {
            span,
            patience: Duration::ZERO,
            backoff: Backoff::default(),
            floor: None,
            release: true,
            designated: false,
            least: span / 2,
        }
    }
}
