//! The thread that owns the machine: connections, timers and steps.

use conclave_protocol::id::{Name, RequestNo, SessionId};
use conclave_protocol::lock::{Label, LockView};

/// A handle to the shard's thread, for the API and for whoever started the node.
#[derive(Clone, Debug)]
pub struct Shard {}

/// Something to read from the machine.
#[derive(Clone, Debug)]
pub enum Query {
    /// State, life, and how much it keeps.
    Overview,
    /// One lock.
    Lock(Name),
    /// Locks whose name has this prefix: at most `limit`, from this cursor on.
    Locks {
        /// The prefix.
        prefix: Vec<u8>,
        /// Where to go on; 0 at first.
        from: u32,
        /// How many at most.
        limit: usize,
    },
    /// Sessions: at most `limit`, from this cursor on.
    Sessions {
        /// Where to go on; 0 at first.
        from: u32,
        /// How many at most.
        limit: usize,
    },
    /// Owner and note of requests, at most [`LABELS_MAX`].
    Labels(Vec<(SessionId, RequestNo)>),
}

/// The answer to a [`Query`].
#[derive(Clone, Debug)]
pub enum Report {
    /// To [`Query::Overview`].
    Overview {
        /// `starting`, `pausing`, `recovering`, `serving`, `draining` or `stopped`.
        state: &'static str,
        /// The present life.
        incarnation: u64,
        /// Locks with a request, sessions, clients, tombstones.
        kept: [usize; 4],
        /// Open connections.
        connections: usize,
    },
    /// To [`Query::Lock`].
    Lock(Option<LockView>),
    /// To [`Query::Locks`], with the next cursor if there is more.
    Locks(Vec<(Name, LockView)>, Option<u32>),
    /// To [`Query::Sessions`], with the next cursor if there is more.
    Sessions(Vec<SessionView>, Option<u32>),
    /// To [`Query::Labels`], in its order; none for a request that is gone.
    Labels(Vec<Option<Label>>),
}

/// The most requests of [`Query::Labels`].
pub const LABELS_MAX: usize = 4096;

impl Shard {
    /// Reads something; none if the thread has ended.
    pub async fn inspect(&self, query: Query) -> Option<Report> {
        let _ = query;
        None
    }
}

/// A session as this node sees it.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Who owns it, for people.
    pub owner: std::sync::Arc<str>,
    /// Its TTL.
    pub ttl: std::time::Duration,
    /// Whether it is renewed by handles.
    pub detached: bool,
    /// How many requests it has here.
    pub requests: usize,
    /// How long ago it was renewed.
    pub age: std::time::Duration,
}
