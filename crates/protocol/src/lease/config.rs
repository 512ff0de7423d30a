//! What all who deal with leases agree on, and how a contender asks.

use std::time::Duration;

use crate::fault::Faults;

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
    pub rules: super::plant::Rules,
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
            release: true,
            designated: false,
            least: span / 2,
        }
    }
}
