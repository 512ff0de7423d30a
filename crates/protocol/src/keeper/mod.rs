//! The node's side of leases and objects, and the messages on a connection to it.

pub mod client;

use crate::id::Name;
use crate::lease::{LeaseAsk, LeaseKey, LeaseReply};
use crate::object::{ObjectAsk, ObjectTell};

/// What is asked of a node's keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// About a lease.
    Lease(LeaseKey, LeaseAsk),
    /// About an object.
    Object(Name, ObjectAsk),
    /// Which objects are there, and in which states? Other nodes may ask this, too.
    Survey {
        /// The asker's number for the question.
        ticket: u64,
        /// After which object to go on.
        after: Option<Name>,
    },
}

/// What a node's keeper says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// About a lease.
    Lease(LeaseKey, LeaseReply),
    /// About an object.
    Object(Name, ObjectTell),
    /// Some objects and their states.
    Surveyed {
        /// The question's number.
        ticket: u64,
        /// The objects, by name, with what is committed.
        objects: Vec<(Name, crate::object::Stamp)>,
        /// The largest token of any lease that the node may have granted.
        token: crate::id::Token,
        /// Whether these are the last.
        last: bool,
    },
}
