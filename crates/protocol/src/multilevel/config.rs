//! What all nodes of a hierarchy agree on.

use std::sync::Arc;
use std::time::Duration;

use super::plant::LevelRules;
use super::topology::Topology;
use crate::lock::Restart;

/// The shared configuration.
#[derive(Clone, Debug)]
pub struct LevelConfig {
    /// Clusters and their coteries.
    pub topology: Arc<Topology>,
    /// Whether children announce themselves, so that all levels ask at once. Without it the
    /// levels ask one after the other, as in older protocols.
    pub announce: bool,
    /// How a child chooses its representing node.
    pub choice: Representation,
    /// Whether each lock lays out its trees differently, so that no node votes on every lock.
    pub spread: bool,
    /// How long a representing node that has consent waits for a child that announced itself.
    pub threshold: Duration,
    /// How long it waits after a child is done, if others have announced themselves.
    pub threshold2: Duration,
    /// The base of the probability of that wait; 0 turns it off.
    pub linger: f64,
    /// How many more children one consent may serve; none: as many as there are child clusters.
    pub passes: Option<u32>,
    /// What may be believed about failures and clocks.
    pub trust: Trust,
    /// How long a holder may stay inside (only with [`Trust::Oracle`]).
    pub inside_max: Duration,
    /// How long one message may take (only with [`Trust::Oracle`]).
    pub way_max: Duration,
    /// How long the root's consent holds: with [`Trust::Oracle`] always, with [`Trust::Leases`]
    /// at least.
    pub lease: Duration,
    /// The longest lease that anybody may ask for.
    pub lease_max: Duration,
    /// By how many millionths the rates of two steady clocks may differ.
    pub drift_ppm: u32,
    /// What the root's arbiters keep on disk.
    pub restart: Restart,
    /// Idle locks whose state is kept for the next request.
    pub idle_locks: usize,
    /// Locks with a request, at one node.
    pub locks_max: usize,
    /// Requests and children of one lock and level that are kept at one node.
    pub queue_max: usize,
    /// Whether words that end something unknown are remembered, for networks that reorder.
    pub tombstones: bool,
    /// The rules of the protocol; only a test or the simulator breaks one.
    pub rules: LevelRules,
}

/// How a child chooses its representing node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Representation {
    /// Any member of the parent cluster that is up.
    #[default]
    Random,
    /// The first that is up, in an order that depends on the lock and the child's cluster alone.
    Sticky,
}

/// What may be believed about failures and clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Failures are reported without error, and all nodes share a clock. Only a simulation has
    /// that.
    Oracle,
    /// Suspicions may be wrong and clocks share no origin: every promise is a lease that its
    /// holder counts from when it asked.
    #[default]
    Leases,
}

impl LevelConfig {
    /// The usual configuration of a service over this hierarchy.
    pub fn new(topology: Arc<Topology>) -> Self {
        Self {
            topology,
            announce: true,
            choice: Representation::Sticky,
            spread: true,
            threshold: Duration::from_millis(50),
            threshold2: Duration::from_millis(20),
            linger: 0.0,
            passes: None,
            trust: Trust::Leases,
            inside_max: Duration::ZERO,
            way_max: Duration::ZERO,
            lease: Duration::from_secs(5),
            lease_max: Duration::from_mins(3),
            drift_ppm: 5_000,
            restart: Restart::Pause,
            idle_locks: 1024,
            locks_max: 1_000_000,
            queue_max: 65_536,
            tombstones: false,
            rules: LevelRules::default(),
        }
    }

    /// The set-up of the published simulation: times in units of one nanosecond each, so that a
    /// mean message takes 12.
    pub fn paper(topology: Arc<Topology>) -> Self {
        let units = Duration::from_nanos;
        Self {
            choice: Representation::Random,
            spread: false,
            threshold: units(100),
            threshold2: units(100),
            trust: Trust::Oracle,
            inside_max: units(10),
            way_max: units(40),
            lease: units(1000),
            lease_max: units(1000),
            drift_ppm: 0,
            restart: Restart::Durable,
            passes: Some(8),
            ..Self::new(topology)
        }
    }
}
