//! Drives a client machine on a tokio runtime: sockets, timers and callers around
//! [`LockClient`](conclave_protocol::lock::LockClient). The public API and the gateways of nodes
//! are built on it.

use std::sync::Arc;

use conclave_protocol::Instant;
use conclave_protocol::id::{Key, Name};
use conclave_protocol::lock::{Acquire, ClientEvent, Config, Handle};
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;

/// A running client machine. Clones share it; it ends when the last clone and the last job are
/// gone, and tells the nodes what it still held.
#[derive(Clone, Debug)]
pub struct Driver {
    config: Arc<Config>,
}

/// One piece of work for the machine.
#[derive(Clone, Debug)]
pub enum Work {
    /// Take a lock.
    Acquire(Acquire),
    /// Take several locks, all or none.
    AcquireAll(Vec<Acquire>),
    /// Renew a handle.
    Keep(Box<Handle>),
    /// Release a handle.
    Finish(Box<Handle>),
}

impl Driver {
    /// Starts a client of this cluster on the current tokio runtime. No connection is opened
    /// before it is needed. `owner` is the label that its sessions carry.
    pub fn spawn(cluster: &Cluster, owner: &str) -> Result<Self, ClusterError> {
        let _ = owner;
        Ok(Self {
            config: cluster.shared_config()?,
        })
    }

    /// What the machine runs with.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Begins a piece of work. Nothing blocks; the machine is told at once.
    pub fn begin(&self, work: Work) -> Job {
        let _ = work;
        Job { key: Key(0) }
    }
}

/// A piece of work under way. Dropping it cancels what waits and releases what is held, without
/// blocking.
#[derive(Debug)]
pub struct Job {
    key: Key,
}

impl Job {
    /// The key of the machine for it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// What the machine tells about it next; none once it has ended.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        None
    }

    /// Stops waiting; the last event says how it ended (it may have entered just before).
    pub fn cancel(&self) {}

    /// Leaves the lock, or all locks taken together.
    pub fn release(&self) {}

    /// Until when the lock is held if no node is heard from again; none if it is not held.
    pub fn held_until(&self, name: &Name) -> Option<Instant> {
        let _ = name;
        None
    }
}
