//! The older protocols on the simulator's engine, without faults: what a lock costs elsewhere.
//!
//! Each process thinks, asks as a member of a random group, waits, stays inside for a while,
//! leaves, and starts over, until the given number of entries is reached; then the run goes on
//! until nobody waits. Messages between two peers keep their order; otherwise every message takes
//! its own time. Exclusion is checked at each entry and whoever waits for ever is reported.
//!
//! ```
//! use conclave_protocol::baseline::ricart;
//! use conclave_quorum::{System, build::build, text};
//! use conclave_sim::baseline::{Kind, Options, run};
//!
//! let no_files = |_: &str| Err("no files here".to_owned());
//! let built = build(&text::parse("billiard(12)")?, None, &no_files)?;
//! let System::Coterie(coterie) = built.system else {
//!     return Err("no coterie".into());
//! };
//! let options = Options::new(coterie, 7);
//! let measured = run(Kind::Ricart(ricart::Variant::Exclusive), &options);
//! assert_eq!(measured.violation, None);
//! assert_eq!(measured.measures.messages_per_entry, 2.0 * f64::from(options.processes - 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::str::FromStr;

use conclave_protocol::baseline::{Peer, backup, central, maekawa, ricart};
use conclave_quorum::{Coterie, NodeSet, Prng, System};

use crate::net::Latency;
use crate::options::{self, OptionsError};

mod drive;
mod measure;

pub use measure::Measured;

/// The most processes that a run takes: more is refused by taking this many.
pub const PROCESSES_MAX: u32 = 4096;

/// Which protocol is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Quorums with or without FAILED.
    Maekawa(maekawa::Variant),
    /// Permission of everybody.
    Ricart(ricart::Variant),
    /// One server.
    Central,
    /// A primary that tells a backup first.
    Backup,
}

impl Kind {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 8] = [
        Self::Maekawa(maekawa::Variant::Corrected),
        Self::Maekawa(maekawa::Variant::AtOnce),
        Self::Maekawa(maekawa::Variant::Published),
        Self::Ricart(ricart::Variant::Exclusive),
        Self::Ricart(ricart::Variant::Groups),
        Self::Ricart(ricart::Variant::Capture),
        Self::Central,
        Self::Backup,
    ];

    /// Its name, as commands and tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Maekawa(maekawa::Variant::Corrected) => "maekawa",
            Self::Maekawa(maekawa::Variant::AtOnce) => "maekawa-at-once",
            Self::Maekawa(maekawa::Variant::Published) => "maekawa-1985",
            Self::Ricart(ricart::Variant::Exclusive) => "ricart-agrawala",
            Self::Ricart(ricart::Variant::Groups) => "ra1",
            Self::Ricart(ricart::Variant::Capture) => "ra2",
            Self::Central => "central",
            Self::Backup => "primary-backup",
        }
    }

    /// Whether members of one group may be inside together.
    pub fn knows_groups(self) -> bool {
        match self {
            Self::Maekawa(_) | Self::Ricart(ricart::Variant::Exclusive) => false,
            Self::Ricart(_) | Self::Central | Self::Backup => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no baseline; there are {names}")
        })
    }
}

/// Which quorum each process uses, where quorums are used: always the same one, as with Maekawa.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Its own: the one its construction assigns to it, else one drawn for it.
    #[default]
    Own,
    /// All use one quorum.
    Shared,
}

/// The load of a run. The same numbers describe a run of the lock itself.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many processes there are.
    pub processes: u32,
    /// How many of them ever ask; the others only answer.
    pub askers: u32,
    /// How many groups they choose from.
    pub groups: u32,
    /// The share of requests that are exclusive, whatever the group.
    pub exclusive: f64,
    /// The share of requests that are shared; the rest are for a group.
    pub shared: f64,
    /// The mean time between leaving and asking again, in nanoseconds (exponential).
    pub think: u64,
    /// The mean time inside, in nanoseconds (exponential).
    pub hold: u64,
    /// How long messages take.
    pub latency: Latency,
    /// How many entries are asked for in all.
    pub entries: u64,
    /// How often members of the group inside may pass a waiting stranger at a server.
    pub max_bypass: u32,
    /// The quorums that Maekawa's lock uses.
    pub coterie: Coterie,
    /// Which of them each process uses.
    pub choice: Choice,
    /// Decides all chance.
    pub seed: u64,
}

impl Options {
    /// Ten processes of one group that ask often, for 1,000 entries.
    pub fn new(coterie: Coterie, seed: u64) -> Self {
        Self {
            processes: 10,
            askers: 10,
            groups: 1,
            exclusive: 0.0,
            shared: 0.0,
            think: 5_000_000,
            hold: 1_000_000,
            latency: Latency::Exponential(500_000),
            entries: 1000,
            max_bypass: 16,
            coterie,
            choice: Choice::Own,
            seed,
        }
    }

    /// The load of a run of the lock with one name, as far as the older protocols know it: no
    /// faults, no cancels, no deadlines, one wish at a time. Without a limit on wishes each
    /// process asks 100 times.
    pub fn like(lock: &options::Options) -> Result<Self, OptionsError> {
        let coterie = match lock.build_system()? {
            System::Coterie(coterie) => coterie,
            System::Groups(groups) => groups.exclusive().clone(),
            other => {
                return Err(OptionsError::Value {
                    key: "system".to_owned(),
                    what: format!("baselines need a coterie, this is {}", other.kind()),
                });
            }
        };
        let asks = if lock.asks == 0 { 100 } else { lock.asks };
        Ok(Self {
            processes: lock.clients,
            askers: lock.clients,
            groups: lock.groups,
            exclusive: lock.exclusive,
            shared: lock.shared,
            think: lock.think_ms.saturating_mul(1_000_000),
            hold: lock.hold_ms.saturating_mul(1_000_000),
            latency: lock.latency.scaled(f64::midpoint(1.0, lock.spread)),
            entries: asks.saturating_mul(u64::from(lock.clients)),
            max_bypass: lock.max_bypass,
            // The requesters of one lock meet at the same quorum.
            choice: Choice::Shared,
            ..Self::new(coterie, lock.seed)
        })
    }
}

/// Runs a protocol under a load and measures it. A broken property ends the run and is told in
/// [`Measured::violation`].
pub fn run(kind: Kind, options: &Options) -> Measured {
    let processes = options.processes.min(PROCESSES_MAX);
    match kind {
        Kind::Maekawa(variant) => {
            drive::drive(kind, options, processes, maekawa_sites(variant, options))
        }
        Kind::Ricart(variant) => {
            let all = (0..processes).map(Peer);
            let sites = all.map(|me| ricart::Process::new(me, processes, variant));
            drive::drive(kind, options, 0, sites.collect())
        }
        Kind::Central => {
            let client = central::Site::Process(central::Client::new(Peer(processes)));
            let mut sites = vec![client; processes as usize];
            let book = central::Book::new(processes, options.max_bypass);
            sites.push(central::Site::Server(book));
            drive::drive(kind, options, processes, sites)
        }
        Kind::Backup => {
            let (first, second) = (Peer(processes), Peer(processes + 1));
            let client = backup::Site::Process(central::Client::new(first));
            let mut sites = vec![client; processes as usize];
            let primary = backup::Primary::new(second, processes, options.max_bypass);
            sites.push(backup::Site::Primary(primary));
            sites.push(backup::Site::Backup(backup::Backup::new(first, processes)));
            drive::drive(kind, options, processes, sites)
        }
    }
}

fn maekawa_sites(variant: maekawa::Variant, options: &Options) -> Vec<maekawa::Site> {
    let processes = options.processes.min(PROCESSES_MAX);
    let family = options.coterie.family();
    let nodes = family.nodes();
    // A generator of its own: the choice of quorums must not change the load.
    let mut rng = Prng::new(options.seed ^ 0x71_75_6f_72_75_6d);
    let shared = family.sample(&mut rng);
    let mut quorum_of = |process: u32| -> NodeSet {
        match options.choice {
            Choice::Shared => shared.clone(),
            Choice::Own => {
                let own = family.own(process as usize % nodes.max(1));
                own.unwrap_or_else(|| family.sample(&mut rng))
            }
        }
    };
    let mut sites = Vec::with_capacity(processes as usize + nodes);
    for process in 0..processes {
        let quorum = quorum_of(process);
        let members = quorum.iter().map(|node| Peer(processes + node as u32));
        let requester = maekawa::Requester::new(Peer(process), variant, members);
        sites.push(maekawa::Site::Process(requester));
    }
    let node = maekawa::Site::Node(maekawa::Arbiter::new(variant, processes));
    sites.extend(std::iter::repeat_n(node, nodes));
    sites
}
