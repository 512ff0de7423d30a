//! What all nodes and clients of a cluster agree on, and the limits each keeps.

use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::{Family, NodeSet, Prng, System, pick};
use thiserror::Error;

use super::message::ConfigId;
use super::mode::Mode;
use super::plant::Rules;
use crate::id::{Name, NodeId};

/// The shared configuration of a cluster's locks.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number and digest, compared in every handshake.
    pub id: ConfigId,
    /// The quorums.
    pub quorums: Quorums,
    /// Times.
    pub times: Times,
    /// Limits.
    pub limits: Limits,
    /// What a node keeps on disk.
    pub restart: Restart,
    /// Policies by prefix of the lock's name; the longest prefix that fits counts.
    pub policies: Vec<(Vec<u8>, Policy)>,
    /// The rules of the protocol; only a test or the simulator breaks one.
    pub rules: Rules,
    /// Whether nodes report every grant and its end as events. Metrics and checkers need it;
    /// a run for speed may do without.
    pub observe: bool,
    /// Whether nodes are the fronts of a hierarchy; none: each is an arbiter of its own.
    pub gate: Option<Gate>,
}

impl Config {
    /// The usual times and limits over these quorums.
    pub fn new(quorums: Quorums) -> Self {
        Self {
            id: ConfigId::default(),
            quorums,
            times: Times::default(),
            limits: Limits::default(),
            restart: Restart::default(),
            policies: Vec::new(),
            rules: Rules::default(),
            observe: true,
            gate: None,
        }
    }

    /// The policy of a lock.
    pub fn policy(&self, name: &Name) -> Policy {
        let fits = self
            .policies
            .iter()
            .filter(|(prefix, _)| name.bytes().starts_with(prefix));
        fits.max_by_key(|(prefix, _)| prefix.len())
            .map_or_else(Policy::default, |(_, policy)| *policy)
    }
}

/// How the front of a hierarchy uses consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// How many exclusive requests are let in under one consent, one after the other.
    pub passes: u32,
    /// How many members of a group are let in under one consent.
    pub joins: u32,
    /// How many tokens a grant reserves, so that a lost holder costs no more.
    pub slice: u64,
    /// How long consent may take before whoever waits is told that somebody is in the way.
    pub patience: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            passes: 16,
            joins: 64,
            slice: 16,
            patience: Duration::from_millis(250),
        }
    }
}

/// The times of the protocol. Steady clocks may differ in rate by `drift_ppm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long a connection lives without a heartbeat.
    pub link_ttl: Duration,
    /// How often a client sends a heartbeat, at most a quarter of its shortest TTL.
    pub heartbeat: Duration,
    /// The longest TTL of a session.
    pub ttl_max: Duration,
    /// The shortest TTL of a session.
    pub ttl_min: Duration,
    /// By how many millionths the rates of two steady clocks may differ.
    pub drift_ppm: u32,
    /// How far above its clock a node reserves tokens.
    pub lead: Duration,
    /// How far above the largest known token a node reserves at least.
    pub reserve: u64,
    /// How far ahead of its need a node writes its token ceiling to disk.
    pub ceiling_step: Duration,
    /// A requester asks other nodes when none has answered for this long, or for four round
    /// trips if that is longer.
    pub hedge_min: Duration,
    /// A client waits at least this long before it connects again.
    pub reconnect_min: Duration,
    /// And at most this long.
    pub reconnect_max: Duration,
    /// A priority further ahead of a node's clock than this is refused.
    pub priority_ahead: Duration,
    /// No token is further ahead of a node's token clock than this.
    pub token_ahead: Duration,
    /// How often a node tells the others its token clock.
    pub clock_tell: Duration,
    /// How long a client waits before it repeats a raise that was refused.
    pub raise_again: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            link_ttl: Duration::from_secs(1),
            heartbeat: Duration::from_millis(250),
            ttl_max: Duration::from_mins(1),
            ttl_min: Duration::from_millis(100),
            drift_ppm: 5_000,
            lead: Duration::from_secs(1),
            reserve: 1024,
            ceiling_step: Duration::from_secs(1),
            hedge_min: Duration::from_millis(2),
            reconnect_min: Duration::from_millis(20),
            reconnect_max: Duration::from_secs(1),
            priority_ahead: Duration::from_mins(1),
            token_ahead: Duration::from_hours(24),
            clock_tell: Duration::from_secs(1),
            raise_again: Duration::from_millis(20),
        }
    }
}

impl Times {
    /// A span as a client counts it: shorter by the drift, so that it ends before the node's.
    pub fn shrink(&self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * u128::from(1_000_000 - self.drift_ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A span as a node waits for others to end: longer by the drift.
    pub fn stretch(&self, span: Duration) -> Duration {
        let nanos = (span.as_nanos() * u128::from(1_000_000 + self.drift_ppm)).div_ceil(1_000_000);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// How much one caller, and all of them, can make a node or client keep. What is said of a client
/// counts for its principal, through whichever connections and gateways it asks; where nobody says
/// who they are, for its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests per lock at one node.
    pub queue: usize,
    /// Sessions per client at one node.
    pub sessions_per_client: usize,
    /// Requests per client at one node.
    pub requests_per_client: usize,
    /// Clients (connections) per node.
    pub clients: usize,
    /// Connections of one client at one node.
    pub connections_per_client: usize,
    /// Locks per node with a request in them.
    pub locks: usize,
    /// Idle locks whose exact floors a node still remembers.
    pub idle_locks: usize,
    /// Tombstones of detached requests per node.
    pub tombstones: usize,
    /// Bytes that all sessions, requests and watches of a node may take. One client may take as
    /// many as are still free.
    pub memory: usize,
    /// Bytes of a lock's name.
    pub name_bytes: usize,
    /// Bytes of a group's name.
    pub group_bytes: usize,
    /// Bytes of an owner label.
    pub owner_bytes: usize,
    /// Bytes of a holder's note.
    pub note_bytes: usize,
    /// Claims in one message of a resume.
    pub resume_part: usize,
    /// Locks taken at once.
    pub together: usize,
    /// Ended requests a client remembers per node until they are acknowledged.
    pub unacknowledged: usize,
    /// Watches per client at one node.
    pub watches_per_client: usize,
    /// Watches per node.
    pub watches: usize,
    /// Changes that wait to be told on one connection before a watch starts over.
    pub watch_changes: usize,
    /// Holders of one lock that a watch tells one by one; of the others, how many.
    pub watch_holders: usize,
    /// Locks that one watch of a prefix may follow.
    pub watched_locks: usize,
    /// So many timers of a client may be out of date before it looks for them.
    pub stale_timers: usize,
    /// After so many ended requests a client's heartbeat leaves early: its answer lets the client
    /// forget them. A busy one would else keep thousands, all of them out of the processor's
    /// caches.
    pub early_heartbeat: usize,
    /// Holds of one client that move at the same time.
    pub moves: usize,
    /// First quorums that a client remembers.
    pub picks: usize,
    /// Messages of a client that wait for a connection; a handle's owner tries again anyway.
    pub outbox: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue: 4096,
            sessions_per_client: 16_384,
            requests_per_client: 16_384,
            clients: 65_536,
            connections_per_client: 4096,
            locks: 4_000_000,
            idle_locks: 256,
            tombstones: 65_536,
            memory: 512 << 20,
            name_bytes: 1024,
            group_bytes: 256,
            owner_bytes: 256,
            note_bytes: 4096,
            resume_part: 256,
            together: 64,
            unacknowledged: 4096,
            watches_per_client: 4096,
            watches: 65_536,
            watch_changes: 8192,
            watch_holders: 64,
            watched_locks: 262_144,
            stale_timers: 256,
            early_heartbeat: 64,
            moves: 128,
            picks: 16_384,
            outbox: 1024,
        }
    }
}

/// What a node keeps on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// Only a token ceiling, its incarnation and its longest TTL: no grant waits for the disk,
    /// and after a crash the node grants nothing until every earlier promise has ended.
    #[default]
    Pause,
    /// Every grant, before it is sent; no pause after a crash.
    Durable,
}

/// How a lock is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many requests of a group a node lets in at once.
    pub max_inside: u32,
    /// How many late members of the group inside may pass a waiting request of another group.
    pub max_bypass: u32,
    /// Which protocol.
    pub protocol: Protocol,
    /// How a client chooses the quorum that it asks first.
    pub choice: Choice,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_inside: u32::MAX,
            max_bypass: 16,
            protocol: Protocol::Parallel,
            choice: Choice::Shared,
        }
    }
}

/// How a client chooses the quorum that it asks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// By the lock's name alone: all requesters of a lock meet at the same nodes.
    #[default]
    Shared,
    /// Near nodes first, for locks that one region uses mostly. Requesters of one region meet;
    /// those of different regions ask different quorums, and more inquiries go back and forth.
    Near,
}

/// Which protocol serves a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// `Maekawa_M`: all members of the quorum are asked at once.
    Parallel,
    /// `Maekawa_S`: the request travels through the quorum.
    Serial,
}

/// A group by name, its own quorums, and the size of the smallest.
type Registered = (Arc<[u8]>, Arc<dyn Family>, usize);

/// Which quorums a request may use.
#[derive(Clone, Debug)]
pub struct Quorums {
    exclusive: Arc<dyn Family>,
    /// Some families count long to tell their sizes: they are asked once.
    exclusive_least: usize,
    registered: Vec<Registered>,
    /// The node that is asked first, if any single node will do.
    home: Option<usize>,
}

impl Quorums {
    /// The quorums of a system. `groups` names the groups that own the cartels of a group system,
    /// in their order; other groups, readers and exclusive requests use the quorums that meet
    /// them all.
    pub fn new(system: &System, groups: &[&str]) -> Result<Self, QuorumsError> {
        let (exclusive, cartels): (_, &[Arc<dyn Family>]) = match system {
            System::Coterie(coterie) => (coterie.family().clone(), &[]),
            System::Masking(masking) => (masking.family().clone(), &[]),
            System::Groups(groups) => (groups.exclusive().family().clone(), groups.cartels()),
            System::Loose(_) => return Err(QuorumsError::Loose),
        };
        if groups.len() > cartels.len() {
            return Err(QuorumsError::Groups {
                named: groups.len(),
                cartels: cartels.len(),
            });
        }
        for (place, group) in groups.iter().enumerate() {
            if groups[..place].contains(group) {
                return Err(QuorumsError::Twice {
                    group: (*group).to_owned(),
                });
            }
        }
        let registered = groups.iter().zip(cartels);
        Ok(Self {
            exclusive_least: exclusive.sizes().min,
            exclusive,
            registered: registered
                .map(|(name, family)| (name.as_bytes().into(), family.clone(), family.sizes().min))
                .collect(),
            home: None,
        })
    }

    /// For clients of a hierarchy: any single node is asked. Such quorums do not meet; what keeps
    /// holders apart is the consent that nodes need ([`Config::gate`]).
    pub fn any_one(nodes: usize) -> Self {
        Self {
            exclusive: Arc::new(super::home::AnyOne { nodes }),
            exclusive_least: 1,
            registered: Vec::new(),
            home: None,
        }
    }

    /// As before, and this node is asked first.
    #[must_use]
    pub fn with_home(mut self, home: NodeId) -> Self {
        self.home = Some(home.index()).filter(|home| *home < self.nodes());
        self
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.exclusive.nodes()
    }

    /// The quorums of requests of this mode.
    pub fn family(&self, mode: &Mode) -> &Arc<dyn Family> {
        self.registered(mode)
            .map_or(&self.exclusive, |(_, family, _)| family)
    }

    /// No quorum of requests of this mode is smaller.
    pub fn least(&self, mode: &Mode) -> usize {
        self.registered(mode)
            .map_or(self.exclusive_least, |(_, _, least)| *least)
    }

    fn registered(&self, mode: &Mode) -> Option<&Registered> {
        let Mode::Group(name) = mode else {
            return None;
        };
        self.registered.iter().find(|(group, ..)| group == name)
    }

    /// The quorum that every requester of `seed` picks first, without the nodes in `avoid` if
    /// that leaves one.
    pub fn pick(&self, mode: &Mode, seed: u64, avoid: &NodeSet) -> NodeSet {
        if let Some(home) = self.home.filter(|home| !avoid.contains(*home)) {
            return NodeSet::of(self.nodes(), [home]);
        }
        let family = self.family(mode).as_ref();
        let found = pick(family, avoid, None, &mut Prng::new(seed));
        found.unwrap_or_else(|| family.sample(&mut Prng::new(seed)))
    }

    /// The cheapest quorum without the nodes in `avoid`, if there is one. Costs are spread by
    /// `seed` by less than a factor of two: equal ones are equally likely, and with the same seed
    /// and costs everybody picks the same quorum.
    pub fn pick_by(
        &self,
        mode: &Mode,
        seed: u64,
        avoid: &NodeSet,
        costs: &[f64],
    ) -> Option<NodeSet> {
        let mut rng = Prng::new(seed);
        let mut costs: Vec<f64> = costs.iter().map(|cost| cost * (1.0 + rng.unit())).collect();
        if let Some(home) = self.home {
            costs[home] = 0.0;
        }
        for node in avoid.iter() {
            costs[node] = f64::INFINITY;
        }
        self.family(mode).cheapest(&costs)
    }

    /// Whether reading all of `heard` tells node `lost` everything that a quorum through it may
    /// have decided: every quorum of every family with `lost` in it has another node in `heard`.
    pub fn informs(&self, heard: &NodeSet) -> bool {
        let silent = heard.complement();
        let families = self.registered.iter().map(|(_, family, _)| family);
        let mut all = families.chain([&self.exclusive]);
        all.all(|family| !family.contains_quorum(&silent))
    }

    /// All nodes.
    pub fn all(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes()).map(NodeId::at)
    }
}

/// Why a system cannot serve locks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuorumsError {
    /// Its quorums need not meet.
    #[error(
        "the quorums of this system need not share a node: no lock can use it; see `quorum check`"
    )]
    Loose,
    /// More groups than cartels.
    #[error("{named} groups are named, but the system has cartels for {cartels}")]
    Groups {
        /// How many were named.
        named: usize,
        /// How many there are.
        cartels: usize,
    },
    /// A group is named twice.
    #[error("group '{group}' is named twice")]
    Twice {
        /// The group.
        group: String,
    },
}
