//! The daemon: one node of a cluster on real sockets and a real disk, around the pure machine of
//! [`conclave_protocol::lock`].
//!
//! | module | thread | what |
//! |---|---|---|
//! | [`shard`] | its own | owns the machine, the connections and their timers |
//! | [`journal`] | its own | writes records, many per sync |
//! | [`api`] | its own runtime | gateway, HTTP, gRPC, metrics |

pub mod api;
pub mod journal;
pub mod meters;
pub mod shard;
pub mod store;

use std::net::TcpListener;
use std::path::PathBuf;

use conclave_wire::Cluster;
use conclave_wire::handle::Key;

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
}
