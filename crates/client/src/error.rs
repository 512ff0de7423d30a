//! What can go wrong, and what helps.

use std::fmt::Write;

use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lock::Refusal;
use conclave_wire::cluster::ClusterError;
use thiserror::Error;

use crate::discover::DiscoverError;
use crate::driver::Driver;
use crate::secure::SecurityError;

/// Why a client could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No node told about its cluster.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// It would show a token to whoever listens.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The cluster file cannot be read.
    #[error("cannot read the cluster file {path}: {error}")]
    File {
        /// Which file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The description of the cluster makes no sense.
    #[error("the cluster file is wrong: {0}")]
    Cluster(#[from] ClusterError),
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The time was up before the lock was free.
    #[error("not acquired in time{}; ask again or wait longer", behind(*position))]
    TimedOut {
        /// The last place in the queue that was heard of: how many were before it.
        position: Option<u32>,
    },
    /// Too few nodes can be reached.
    #[error(
        "no quorum: {reachable} of {nodes} nodes can be reached{}; start or reconnect them",
        listed(troubles)
    )]
    NoQuorum {
        /// How many nodes are connected.
        reachable: usize,
        /// How many there are.
        nodes: usize,
        /// What went wrong with the others.
        troubles: Vec<(NodeId, String)>,
    },
    /// A node or this client refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The nodes want to know who asks, and do not accept what was shown.
    #[error("not authenticated: the nodes accept no such token; ask the operator for a valid one")]
    NotAuthenticated,
    /// The request was made while holding the same lock: it would wait for itself.
    #[error("'{name}' is held already, and locks are not re-entrant; use the guard at hand")]
    AlreadyHeld {
        /// Which lock.
        name: Name,
    },
    /// No semaphore has so many slots, or so few.
    #[error("a semaphore of {asked} slots cannot be had; give 1 to {max}")]
    Slots {
        /// How many were named.
        asked: u32,
        /// How many there may be.
        max: usize,
    },
    /// The client was closed, or its runtime ended.
    #[error("the client is closed; connect again")]
    Closed,
    /// The client closed itself: what it held is lost.
    #[error("a fault in the client closed it: {words}; connect again, and please report it")]
    Fault {
        /// What the panic said.
        words: String,
    },
}

/// The lock was lost before it was released: others may have been inside meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{name}' was lost before it was released; what was done last may need a look")]
pub struct LostError {
    /// Which lock.
    pub name: Name,
}

/// Why no quorum can be reached, as far as the driver knows.
pub(crate) fn no_quorum(driver: &Driver) -> AcquireError {
    AcquireError::NoQuorum {
        reachable: driver.reachable().len(),
        nodes: driver.config().quorums.nodes(),
        troubles: driver.troubles(),
    }
}

/// Why a client is closed.
pub(crate) fn closed(driver: &Driver) -> AcquireError {
    let fault = driver.fault().map(|words| words.to_string());
    fault.map_or(AcquireError::Closed, |words| AcquireError::Fault { words })
}

fn behind(position: Option<u32>) -> String {
    match position {
        None => String::new(),
        Some(0) => ", next in the queue".to_owned(),
        Some(count) => format!(", {count} before it in the queue"),
    }
}

pub(crate) fn listed(troubles: &[(NodeId, String)]) -> String {
    const SHOWN: usize = 5;
    let mut text = String::new();
    for (node, trouble) in troubles.iter().take(SHOWN) {
        let _ = write!(text, "; {node}: {trouble}");
    }
    if troubles.len() > SHOWN {
        let _ = write!(text, "; and {} more", troubles.len() - SHOWN);
    }
    text
}
