//! What the client's machine for leases and objects is told, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Ask};
use crate::fault::Lie;
use crate::id::{Key, Name, NodeId, Token};
use crate::lease::{HandleAction, LeaseHandle, LeaseRefusal, Terms};
use crate::machine::Effects;
use crate::object::envelope::Wish;
use crate::object::{Cell, Kind, ObjectRefusal, Proof, Rank, Span, State, Value};
use crate::time::Instant;

/// The effects of the client's machine.
pub type ClientEffects = Effects<NodeId, Ask, (), ClientEvent>;

/// What the client's machine is told.
#[derive(Clone, Debug)]
pub enum ClientInput {
    /// A connection to this node is open, and nothing was sent on it yet.
    Opened(NodeId),
    /// The connection to this node is gone, with what was on it.
    Closed(NodeId),
    /// A node says something.
    Heard(NodeId, Answer),
    /// The time of [`crate::Machine::next_wake`] has come, or may have.
    Wake,
    /// Do this; what comes of it is told under the key, which the caller never uses again.
    Do(Key, Command),
    /// Extend the lease of this key.
    Renew(Key),
    /// Forget the lease of this key without giving it back: whoever has its handle goes on.
    HandOver(Key),
    /// Give back the lease of this key, or stop what it asked for. An operation that was
    /// submitted may still be done.
    End(Key),
}

/// What a caller wants.
#[derive(Clone, Debug)]
pub enum Command {
    /// A lease.
    Lease {
        /// Its name.
        name: Name,
        /// How to ask for it.
        terms: Terms,
        /// How long to try; none tries until it has it, zero tries once.
        wait: Option<Duration>,
    },
    /// A lease that is renewed or released by its handle, whoever took it.
    Handle {
        /// The handle.
        handle: LeaseHandle,
        /// What is done with it.
        action: HandleAction,
        /// How long to wait for the nodes.
        patience: Duration,
    },
    /// An operation on an object.
    Submit {
        /// The object.
        object: Name,
        /// What it is.
        kind: Arc<dyn Kind>,
        /// What is wished for.
        wish: Wish,
    },
    /// The cells that an operation reads, as committed at some time after this.
    Read {
        /// The object.
        object: Name,
        /// What it is.
        kind: Arc<dyn Kind>,
        /// The cells, span by span, by the names that the kind gives them.
        spans: Vec<Span>,
    },
    /// To be told of changes to an object.
    Watch {
        /// The object.
        object: Name,
        /// What it is.
        kind: Arc<dyn Kind>,
    },
    /// The state of an object, committed under a new rank: for a node that lost its disk.
    Refresh {
        /// The object.
        object: Name,
    },
}

/// What the client's machine tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The lease is held until then, on the clock of this client.
    Held {
        /// Whose.
        key: Key,
        /// The fencing token.
        token: Token,
        /// The lease ends now or before.
        end: Instant,
        /// How many attempts it took.
        attempts: u32,
    },
    /// The lease is held longer.
    Renewed {
        /// Whose.
        key: Key,
        /// Until then.
        end: Instant,
    },
    /// A renewal did not get enough votes; the lease ends when it was to end.
    NotRenewed {
        /// Whose.
        key: Key,
    },
    /// A lease was given back by its handle.
    Released {
        /// Whose.
        key: Key,
    },
    /// An operation was done.
    Done {
        /// Whose.
        key: Key,
        /// What came of it.
        result: Arc<[u8]>,
        /// The version at which it is known to be done, if it is known.
        version: Option<u64>,
    },
    /// What was read.
    Read {
        /// Whose.
        key: Key,
        /// The version that was read; 0 if there is nothing.
        version: u64,
        /// The cells of each span.
        cells: Vec<Vec<(Cell, Value)>>,
    },
    /// A watched object has (at least) this version now. The first one comes at once.
    Changed {
        /// Whose.
        key: Key,
        /// b+1 nodes have committed it.
        version: u64,
    },
    /// The latest state of an object, committed under this rank.
    Refreshed {
        /// Whose.
        key: Key,
        /// The state.
        state: State,
        /// The rank.
        rank: Rank,
        /// Its signature, in clusters that ask for it.
        proof: Proof,
    },
    /// It will not be.
    Failed {
        /// Whose.
        key: Key,
        /// Why.
        why: Failure,
    },
    /// A node differs from what enough others say.
    Lied {
        /// Which.
        node: NodeId,
        /// How.
        lie: Lie,
    },
}

/// Why something asked for did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The time to wait is over.
    TimedOut,
    /// Enough nodes refuse the lease.
    Lease(LeaseRefusal),
    /// Enough nodes refuse the operation, or whoever ordered it did.
    Object(ObjectRefusal),
    /// The object is of another kind, or of newer code.
    OtherKind,
    /// The key was ended by its caller.
    Ended,
    /// This client has as much under way as it may.
    Busy,
}
