//! The node's side of leases and objects, and the messages on a connection to it.

pub mod caller;
pub mod client;
pub mod diffusion;
pub mod node;
pub mod record;
pub mod rejoin;
mod span;

use crate::id::{Name, NodeId};
use crate::lease::{LeaseAsk, LeaseKey, LeaseReply};
use crate::lock::Who;
use crate::object::{ObjectAsk, ObjectTell};

pub use caller::KeeperClient;
pub use diffusion::{Diffusion, DiffusionEvent, DiffusionInput};
pub use node::{Keeper, KeeperConfig, KeeperEvent, KeeperInput, KeeperStart};
pub use record::{KeeperRecord, KeeperStored};
pub use rejoin::{Rejoin, RejoinEvent, RejoinInput};

/// Who is at the other end of a connection to a keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// In whose name all on this connection is asked.
    pub who: Who,
    /// The node, if it is one: nodes may look, and refresh what they do not change.
    pub node: Option<NodeId>,
}

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
        /// Whether the asker itself never kept anything, as far as it knows.
        new: bool,
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
        /// Whether the node does not serve because it lost its disk: then it knows of nothing.
        lost: bool,
        /// Whether it never voted for a lease and never had an object, as far as it knows.
        new: bool,
    },
}
