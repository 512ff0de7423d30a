//! What a system under test is to the benchmark: something that is started, hands out takers of
//! locks, is weighed, and has a server that can be hit.

use std::path::PathBuf;
use std::time::Duration;

use conclave_protocol::lock::{Mode, Quorums};
use rustix::process::Signal;

use super::Plan;
use crate::bench::load::{Load, Taker};
use crate::cli::Failure;
use crate::service::shape::Shape;

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Conclave,
    Durable,
    Etcd,
    Zookeeper,
    Redis,
    Redlock,
}

impl System {
    /// What it is called in the result.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Conclave => "conclave",
            Self::Durable => "conclave-durable",
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
        }
    }

    /// Whether it is Conclave itself.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Conclave | Self::Durable)
    }

    /// Why it cannot carry a load; none if it can.
    pub(super) fn cannot(self, load: Load) -> Option<&'static str> {
        let redis = matches!(self, Self::Redis | Self::Redlock);
        (redis && load == Load::Mix).then_some("it has no shared locks")
    }

    /// Whether it carries a load by an exclusive lock, for want of what was asked for.
    pub(super) fn emulates(self, load: Load) -> bool {
        match load {
            Load::Groups => !self.is_ours(),
            Load::Mix => self == Self::Etcd,
            Load::Uncontended | Load::Hot | Load::Kill => false,
        }
    }
}

/// Where and how systems are started.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "peers"),
    allow(dead_code, reason = "some of it is for other systems alone")
)]
pub(super) struct Place {
    /// Servers of each system; of the one Redis there is one.
    pub(super) nodes: usize,
    /// Conclave's quorum system, and the members of its smallest quorum.
    pub(super) quorum: String,
    pub(super) members: usize,
    /// The cluster of Conclave.
    pub(super) shape: Shape,
    /// Where the programs of other systems are, if that was said.
    pub(super) programs: Option<PathBuf>,
}

impl Place {
    pub(super) fn new(plan: &Plan<'_>) -> Result<Self, Failure> {
        let nodes = plan.shape.size()? as usize;
        let spec = conclave_quorum::text::parse(&plan.shape.system()).map_err(Failure::input)?;
        let no_files = |_: &str| Err("write the system out".to_owned());
        let built = conclave_quorum::build::build(&spec, Some(nodes), &no_files);
        let built = built.map_err(Failure::input)?;
        let groups: Vec<&str> = plan.shape.groups.iter().map(String::as_str).collect();
        let quorums = Quorums::new(&built.system, &groups).map_err(Failure::input)?;
        Ok(Self {
            nodes,
            members: quorums.least(&Mode::Exclusive),
            quorum: built.text,
            shape: plan.shape.clone(),
            programs: plan.flags.peers_path.clone(),
        })
    }
}

/// Whether a system's programs are here; if not, what to do.
#[cfg(feature = "peers")]
pub(super) fn installed(system: System, place: &Place) -> Result<(), String> {
    let found = match system {
        System::Conclave | System::Durable => return Ok(()),
        System::Etcd => super::servers::find("etcd", place).is_some(),
        System::Redis | System::Redlock => super::servers::find("redis-server", place).is_some(),
        System::Zookeeper => super::zookeeper::programs(place).is_some(),
    };
    found
        .then_some(())
        .ok_or_else(|| "not installed: run bench/peers.sh".to_owned())
}

/// What takers shall be like.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "peers"),
    allow(dead_code, reason = "some of it is for other systems alone")
)]
pub(super) struct Wanted {
    /// How many tasks there will be.
    pub(super) tasks: usize,
    /// How long one attempt to acquire may take.
    pub(super) patience: Duration,
    /// Whether a server will be hit: a client that lives on one server must know the others.
    pub(super) roam: bool,
}

/// A system that was started. Dropping it ends its servers.
pub(super) trait Site: Sized {
    type Taker: Taker;
    type Fleet: Fleet;

    /// Starts its servers; they need not serve yet.
    async fn start(place: &Place, system: System) -> Result<Self, Failure>;

    /// Takers for so many tasks: task i uses the i-th, modulo their number.
    async fn takers(&self, wanted: Wanted) -> Result<Vec<Self::Taker>, String>;

    /// Makes ready what users would make once for their locks, and not for each cycle.
    async fn prepare(&self, _names: &[String]) -> Result<(), String> {
        Ok(())
    }

    /// Says goodbye to the servers.
    async fn close(&self, _takers: Vec<Self::Taker>) {}

    /// Its processes.
    fn fleet(&self) -> &Self::Fleet;

    /// Its processes, to hit one.
    fn fleet_mut(&mut self) -> &mut Self::Fleet;

    /// Syncs to disk of all servers so far, as they count them.
    async fn fsyncs(&self) -> Option<u64>;

    /// The server that hurts most: the leader where there is one. Where nobody leads, one server
    /// is as good as another.
    async fn leader(&self) -> Result<usize, String> {
        Ok(0)
    }
}

/// The processes of a system.
pub(super) trait Fleet {
    /// What a server said last, if one has ended by itself.
    fn ended(&mut self) -> Option<String>;

    /// What the servers said last.
    fn last_words(&self) -> String;

    /// CPU seconds of all servers so far, those that were killed among them.
    fn cpu_seconds(&self) -> f64;

    /// Resident memory of all servers together, in MiB.
    fn resident_mb(&self) -> f64;

    /// Sends a signal to a server; one that is killed is gone when this returns.
    fn hit(&mut self, server: usize, signal: Signal);
}
