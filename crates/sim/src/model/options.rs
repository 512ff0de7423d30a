//! What to explore, and what came out.

use std::sync::Arc;

use conclave_protocol::lock::{
    Config, Mode, Plant, Policy, Protocol, Quorums, QuorumsError, Restart, Rules,
};
use conclave_quorum::System;
use conclave_quorum::build::build;
use conclave_quorum::text;
use thiserror::Error;

/// The lock that all requesters want.
pub(super) const NAME: &str = "lock";

/// What the model checker explores: every interleaving of a few requesters of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// The quorum system in text form.
    pub system: String,
    /// How many clients ask for the lock, at most [`ModelOptions::REQUESTERS_MAX`].
    pub requesters: usize,
    /// Zero: all requests are exclusive. Otherwise requester `i` asks for group `i % groups`.
    pub groups: usize,
    /// How many requests of a group a node lets in at once; zero is no limit.
    pub max_inside: u32,
    /// How many late members of the group inside may pass a waiting request.
    pub max_bypass: u32,
    /// Which protocol.
    pub protocol: Protocol,
    /// How often each requester enters; zero is twice, and once if there are faults to explore.
    pub entries: u32,
    /// Whether each requester uses a quorum of its own, where there are several. Otherwise all
    /// start with the quorum that the lock's name picks, as in the service.
    pub spread: bool,
    /// Whether holders announce their hold at once, as those with a note do.
    pub notes: bool,
    /// How many waiting requests may be cancelled, in all; whoever cancels asks again.
    pub cancels: u32,
    /// How many times a node may expire the session of a live client, in all.
    pub expiries: u32,
    /// How many clients may crash, in all.
    pub crashes: u32,
    /// The search gives up after so many states.
    pub states_max: usize,
    /// A bug to plant.
    pub plant: Option<Plant>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            system: "billiard(4)".to_owned(),
            requesters: 3,
            groups: 0,
            max_inside: 0,
            max_bypass: 16,
            protocol: Protocol::Parallel,
            entries: 0,
            spread: false,
            notes: false,
            cancels: 0,
            expiries: 0,
            crashes: 0,
            states_max: 20_000_000,
            plant: None,
        }
    }
}

impl ModelOptions {
    /// More requesters than this could never be explored.
    pub const REQUESTERS_MAX: usize = 8;
    /// More nodes than this could never be explored.
    pub const NODES_MAX: usize = 64;

    /// The mode that a requester asks for.
    pub(super) fn mode(&self, requester: usize) -> Mode {
        match self.groups {
            0 => Mode::Exclusive,
            groups => Mode::group(group_name(requester % groups)),
        }
    }

    /// The quorum system.
    pub(super) fn build_system(&self) -> Result<System, ModelError> {
        let bad = |why: String| ModelError::System {
            text: self.system.clone(),
            why,
        };
        let spec = text::parse(&self.system).map_err(|why| bad(why.to_string()))?;
        let no_files = |_: &str| Err("a model reads no files".to_owned());
        let built = build(&spec, None, &no_files).map_err(|why| bad(why.to_string()))?;
        Ok(built.system)
    }

    /// The configuration over a system.
    pub(super) fn config(&self, system: &System) -> Result<Arc<Config>, ModelError> {
        let cartels = match system {
            System::Groups(groups) => groups.cartels().len(),
            _ => 0,
        };
        let names: Vec<String> = (0..self.groups.min(cartels)).map(group_name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut config = Config::new(Quorums::new(system, &names)?);
        config.restart = Restart::Pause;
        config.rules = self.plant.map_or_else(Rules::default, Rules::planted);
        let policy = Policy {
            max_inside: self.limit(),
            max_bypass: self.max_bypass,
            protocol: self.protocol,
            ..Policy::default()
        };
        config.policies = vec![(NAME.as_bytes().to_vec(), policy)];
        Ok(Arc::new(config))
    }

    /// How often each requester enters.
    pub(super) fn rounds(&self) -> u16 {
        let faults = self.cancels > 0 || self.expiries > 0 || self.crashes > 0;
        match self.entries {
            0 if faults => 1,
            0 => 2,
            entries => u16::try_from(entries).unwrap_or(u16::MAX),
        }
    }

    /// The limit of holders per node.
    pub(super) fn limit(&self) -> u32 {
        match self.max_inside {
            0 => u32::MAX,
            limit => limit,
        }
    }
}

fn group_name(group: usize) -> String {
    format!("g{}", group + 1)
}

/// Why a model cannot be explored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// The system cannot be built.
    #[error("the system '{text}' cannot be built: {why}")]
    System {
        /// The system.
        text: String,
        /// Why.
        why: String,
    },
    /// The system cannot serve locks.
    #[error(transparent)]
    Quorums(#[from] QuorumsError),
    /// There are no requesters, or too many.
    #[error("a model has 1 to {} requesters", ModelOptions::REQUESTERS_MAX)]
    Requesters,
    /// There are too few nodes for so many liars.
    #[error(transparent)]
    Faults(#[from] conclave_protocol::fault::FaultError),
    /// There are too many nodes, liars or attempts.
    #[error("a model of objects has at most 7 nodes, 1 liar and 1 to 4 attempts")]
    Object,
    /// There are too many nodes.
    #[error("a model has at most {} nodes", ModelOptions::NODES_MAX)]
    Nodes,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelReport {
    /// Distinct states visited.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: usize,
    /// Whether every reachable state was visited.
    pub exhausted: bool,
    /// The length of the longest shortest path.
    pub depth: usize,
    /// What was broken, nearest first; the search stops at the depth of the first.
    pub violations: Vec<ModelViolation>,
}

/// A broken property, with a shortest way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelViolation {
    /// The name of the property.
    pub property: &'static str,
    /// What is wrong, in one line.
    pub what: String,
    /// The steps that lead there, one line each.
    pub trace: Vec<String>,
}

/// How far a search is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelProgress {
    /// Distinct states visited.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: usize,
    /// How many steps from the start the search is.
    pub depth: usize,
    /// How many states wait to be looked at.
    pub frontier: usize,
}
