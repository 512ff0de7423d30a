//! What an entry costs: the set-up of the published simulation and its measures.

use std::sync::Arc;

use conclave_protocol::multilevel::Topology;
use conclave_quorum::Prng;

use super::options::LevelOptions;
use super::{primary, world};

/// The mean time between two requests of a node in the published set-up.
pub const GAP: u64 = 5_000_000;
/// How long a published run takes.
pub const SPAN: u64 = 4_000_000_000;
/// So many draws estimate a mean quorum where no formula gives it.
const DRAWS: u64 = 4_000;

/// How nodes ask for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All levels at once: children announce themselves. With no level below the root this is
    /// the plain quorum lock.
    Parallel,
    /// Level by level, as in older protocols. Elections of coordinators are counted apart.
    Sequential,
    /// A server that tells a second one first.
    PrimaryBackup {
        /// How long a client waits before it asks again.
        retry: u64,
        /// How long the second server takes to stand in.
        failover: u64,
    },
}

/// A world whose cost is measured. Times are in units of which a mean message takes 12.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Clusters and their coteries.
    pub system: Arc<Topology>,
    /// The share of time that a node is up.
    pub up: f64,
    /// How many entries to measure.
    pub entries: u64,
    /// If not zero: how long to measure, whatever the number of entries.
    pub span: u64,
    /// The seed of all chance.
    pub seed: u64,
    /// How nodes ask.
    pub kind: Kind,
    /// The mean time between two requests of a node.
    pub gap: u64,
    /// How long a holder stays inside.
    pub hold: u64,
    /// How many groups requests are for; 0: every request is exclusive.
    pub groups: u32,
    /// The mean way of a message, which is the same for every message of two nodes, and its
    /// standard deviation.
    pub way: (f64, f64),
    /// The mean time to prepare and send one message, and its standard deviation.
    pub send: (f64, f64),
    /// The mean time that a node is down.
    pub recovery: u64,
    /// How long a failure goes unnoticed.
    pub detect: u64,
}

impl Scenario {
    /// The published set-up, for 20,000 entries.
    pub fn new(system: Arc<Topology>, up: f64) -> Self {
        Self {
            system,
            up,
            entries: 20_000,
            span: 0,
            seed: 1,
            kind: Kind::Parallel,
            gap: GAP,
            hold: 10,
            groups: 0,
            way: (12.0, 6f64.sqrt()),
            send: (8.0, 2.0),
            recovery: 100_000,
            detect: 20,
        }
    }

    /// The messages of an entry that nobody disturbs: request, reply and release for every member
    /// of the quorums, and four between two levels (three without announcements).
    pub fn predicted(&self) -> f64 {
        let steps = match self.kind {
            Kind::Parallel => 4.0,
            Kind::Sequential => 3.0,
            Kind::PrimaryBackup { .. } => return 7.0,
        };
        3.0 * mean_quorums(&self.system, self.up) + steps * f64::from(self.system.levels())
    }

    fn options(&self) -> LevelOptions {
        LevelOptions {
            seed: self.seed,
            open: true,
            entries: if self.span > 0 {
                u64::MAX
            } else {
                self.entries
            },
            limit: if self.span > 0 { self.span } else { u64::MAX },
            gap: self.gap,
            hold: self.hold,
            groups: self.groups,
            exclusive: if self.groups == 0 { 1.0 } else { 0.0 },
            way: self.way.0,
            way_sd: self.way.1,
            send: self.send.0,
            send_sd: self.send.1,
            up: self.up,
            recovery: self.recovery,
            detect: self.detect,
            guard: true,
            shared: true,
            announce: self.kind != Kind::Sequential,
            ..LevelOptions::default()
        }
    }
}

/// The mean size of all quorums along the way of a random node to the root.
fn mean_quorums(system: &Topology, up: f64) -> f64 {
    let clusters = system.clusters();
    let mut rng = Prng::new(7);
    let mut sum = 0.0;
    for level in 0..=clusters.levels() {
        let mut sizes: Vec<(usize, f64, usize)> = Vec::new();
        for cluster in clusters.at(level) {
            let (size, nodes) = (clusters.size(cluster), clusters.span(cluster).len());
            if let Some(known) = sizes.iter_mut().find(|known| known.0 == size) {
                known.2 += nodes;
                continue;
            }
            let chooser = system.chooser(cluster);
            let mean = chooser.mean_size(up);
            let mean = mean.unwrap_or_else(|| drawn_size(chooser, up, &mut rng));
            sizes.push((size, mean, nodes));
        }
        let total = clusters.nodes() as f64;
        let parts = sizes
            .iter()
            .map(|(_, mean, nodes)| mean * *nodes as f64 / total);
        sum += parts.sum::<f64>();
    }
    sum
}

/// The mean size of a quorum where members are up at random, by drawing many.
fn drawn_size(chooser: &dyn conclave_protocol::multilevel::Choose, up: f64, rng: &mut Prng) -> f64 {
    let (mut sum, mut found) = (0, 0u64);
    for _ in 0..DRAWS {
        let down: Vec<bool> = (0..chooser.seats()).map(|_| !rng.chance(up)).collect();
        if let Some(quorum) = chooser.first(&|seat| down[seat as usize], rng) {
            sum += quorum.len();
            found += 1;
        }
    }
    sum as f64 / found.max(1) as f64
}

/// What was measured. Messages are per entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// All messages, those of a node to itself included.
    pub messages_per_entry: f64,
    /// Without those of a node to itself.
    pub without_self: f64,
    /// Without those that give permissions and consent back.
    pub until_consent: f64,
    /// From the request to the entry, on average.
    pub waiting_mean: f64,
    /// Half of the requests wait at most so long.
    pub waiting_p50: f64,
    /// All but one in a hundred wait at most so long.
    pub waiting_p99: f64,
    /// The messages of an entry that nobody disturbs.
    pub predicted: f64,
    /// How many entries there were.
    pub entries: u64,
    /// How many events there were.
    pub events: u64,
    /// Messages of elections; only [`Kind::Sequential`] has any.
    pub elections_per_entry: f64,
    /// All messages by kind.
    pub by_kind: Vec<(&'static str, f64)>,
    /// How many are inside, averaged over the times when somebody is.
    pub concurrency: f64,
    /// The share of time that nodes were really up: a failure that would leave a cluster without
    /// a quorum does not happen.
    pub up: f64,
    /// How long the run was.
    pub span: u64,
}

/// Runs a scenario and measures it; `progress` is told now and then how many entries there were.
pub fn run(scenario: &Scenario, progress: &mut dyn FnMut(u64)) -> Measured {
    let mut measured = match scenario.kind {
        Kind::Parallel | Kind::Sequential => {
            world::measure(&scenario.options(), Arc::clone(&scenario.system), progress)
        }
        Kind::PrimaryBackup { retry, failover } => primary::run(scenario, retry, failover),
    };
    measured.predicted = scenario.predicted();
    measured
}
