//! The daemon: one node of a cluster on real sockets and a real disk, around the pure machine of
//! [`conclave_protocol::lock`].
//!
//! | module | thread | what |
//! |---|---|---|
//! | [`shard`] | its own | owns the machine, the connections and their timers |
//! | [`journal`] | its own | writes records, many per sync |
//! | [`keeper`] | its own | owns leases and objects, and their store |
//! | [`api`] | its own runtime | gateway, HTTP, gRPC, metrics |
//! | [`audit`] | its own | writes who was granted, lost and refused what |
//! | [`history`] | the shard's | notes every grant and its end, for the checkers |

pub mod access;
pub mod api;
pub mod audit;
mod change;
pub mod history;
pub mod journal;
pub mod keeper;
pub mod meters;
mod node;
mod sentry;
pub mod shard;
pub mod store;
mod twin;
pub mod who;

use std::net::TcpListener;
use std::path::PathBuf;

use conclave_client::Security;
use conclave_client::secure::{Certified, Identity};
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use conclave_wire::handle::Key;
use thiserror::Error;

pub use change::Change;
pub use node::{Node, Pulse};

/// Whether this is a certificate that this node of the cluster can serve with; if not, what is
/// wrong with it.
pub fn fits_node(certified: Option<&Certified>, cluster: &str, id: u32) -> Result<(), String> {
    let wanted = Certified {
        cluster: cluster.to_owned(),
        who: Identity::Node(id),
    };
    match certified {
        Some(found) if *found == wanted => Ok(()),
        Some(found) => Err(format!(
            "the certificate is that of {found}, not of {wanted}"
        )),
        None => Err(format!(
            "the certificate names no node or client of a cluster, and this is {wanted}"
        )),
    }
}

use crate::store::StoreError;

/// What a node needs to start.
#[derive(Debug)]
pub struct Options {
    /// The cluster.
    pub cluster: Cluster,
    /// Which of its nodes this is, from 1.
    pub id: u32,
    /// Where it keeps its records.
    pub data: PathBuf,
    /// Whether an empty data directory is a new node (and not a lost disk).
    pub init: bool,
    /// The key that seals handles.
    pub key: Key,
    /// Where peers and smart clients connect.
    pub peer: TcpListener,
    /// Where the API is served.
    pub api: TcpListener,
    /// Writes every grant and its end with its time to this file, for the checkers.
    pub history: Option<PathBuf>,
    /// The access file: who may do what. Without it nobody has to show who they are.
    pub access: Option<PathBuf>,
    /// Writes who was granted, lost and refused what.
    pub audit: Option<audit::AuditOptions>,
    /// How it shows who it is, and whom it believes; the default is plain TCP.
    pub security: Security,
    /// Makes the node lie about leases and objects, for tests of those who must survive it.
    pub liar: Option<keeper::liar::Mode>,
    /// As whom a node that lost its disk orders objects anew: an operator's token or certificate.
    /// Without it as the node that it is, from which the others take only what they have.
    pub rejoin: Option<Security>,
    /// Changes the configuration to that of the cluster file, if it is another than before.
    pub change: Option<Change>,
    /// Under which names the API may be called besides those in the cluster file; `*` is any.
    /// Checked where nobody has to show who they are.
    pub api_names: Vec<String>,
}

/// Why a node cannot start, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The cluster file cannot be.
    #[error("the cluster file is wrong: {0}")]
    Cluster(#[from] ClusterError),
    /// The cluster has no such node.
    #[error("node {id} is not in the cluster; its nodes are 1 to {nodes}")]
    Id {
        /// Which was asked for.
        id: u32,
        /// How many there are.
        nodes: usize,
    },
    /// The cluster file is not what the node served.
    #[error(
        "this node served epoch {epoch} (digest {digest}) and the cluster file is epoch {file}: \
         {differ}; give it the file that it served, or stop all nodes, give all of them the new \
         file and start each with 'conclave serve --reconfigure'"
    )]
    Changed {
        /// The number of the configuration that was served.
        epoch: u64,
        /// The beginning of its digest.
        digest: String,
        /// The number of the one in the file.
        file: u64,
        /// What differs.
        differ: String,
    },
    /// The configuration cannot be changed so.
    #[error("{0}")]
    Change(String),
    /// It was told to end before it had started.
    #[error("stopped before the new configuration was in force")]
    Stopped,
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another process serves as this node.
    #[error("another process already serves as node {id} at {address}; stop one of them")]
    Twin {
        /// Which node.
        id: u32,
        /// Where it answers.
        address: String,
    },
    /// The certificate is not this node's.
    #[error("{problem}; make it with 'conclave certs node --id {id}'")]
    Certificate {
        /// Which node this is.
        id: u32,
        /// What is wrong.
        problem: String,
    },
    /// The history cannot be written.
    #[error("cannot open the history {path}: {problem}")]
    History {
        /// Where.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// The access file cannot be used.
    #[error(transparent)]
    Access(#[from] access::AccessFileError),
    /// There is an access file and no TLS.
    #[error(
        "an access file needs TLS: without it tokens are handed to whoever listens; add [tls] to \
         the node file ('conclave certs' makes certificates)"
    )]
    AccessWithoutTls,
    /// The audit log cannot be written.
    #[error(
        "cannot open the audit log {path}: {problem}; make its folder writable, or name another"
    )]
    Audit {
        /// Where.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// The system gives no thread, socket or random number.
    #[error("the system refuses what a node needs: {0}")]
    System(String),
}

/// Why a node ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system no longer tells about connections.
    #[error("cannot wait for connections: {0}")]
    Poll(String),
    /// The history cannot be written.
    #[error("cannot write the history {path}: {problem}; the node stops")]
    History {
        /// Where.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// A fault in this program.
    #[error("a fault in this program ended the node: {thread} panicked: {words}; please report it")]
    Panic {
        /// The thread or task.
        thread: String,
        /// What it said.
        words: String,
    },
}
