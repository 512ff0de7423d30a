//! What nodes of a hierarchy say to each other.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use crate::id::{Incarnation, Name, NodeId, Token};
use crate::lock::Mode;
use crate::time::Instant;

/// What names a lock. The service uses [`Name`]; a simulation of one lock a number.
pub trait LockKey: Clone + Debug + Eq + Ord + Hash {
    /// A hash of the key that is the same at every node: it spreads the locks over the members
    /// of a cluster.
    fn spread(&self) -> u64;
}

impl LockKey for Name {
    fn spread(&self) -> u64 {
        self.bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

impl LockKey for u32 {
    fn spread(&self) -> u64 {
        u64::from(*self)
    }
}

/// A number that no other request or pairing of any node has: one life of a node never uses a
/// counter twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Who made it.
    pub node: NodeId,
    /// In which life.
    pub life: Incarnation,
    /// Its number in that life.
    pub counter: u64,
}

/// The order in which the runs of a cluster are served: smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The requester's logical clock when its run began.
    pub clock: u64,
    /// The requester.
    pub node: NodeId,
}

/// The number of a grant of one arbiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId {
    /// The arbiter's life.
    pub life: Incarnation,
    /// Its number in that life.
    pub counter: u64,
}

/// Tokens that a consent allows to be used: those above `from` and up to `to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// The largest token that may have been used before.
    pub from: Token,
    /// The largest token that may be used.
    pub to: Token,
}

impl Block {
    /// Whether no token is left.
    pub fn is_empty(&self) -> bool {
        self.from >= self.to
    }
}

/// What is said to have been used under something that is not remembered: anything. Where its end
/// was told before, this word comes too late to matter.
pub const UNKNOWN: Token = Token(u64::MAX);

/// Until when a consent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Until {
    /// Until this time of the clock that all nodes share; only simulations have one.
    At(Instant),
    /// For this long from the time when the receiver *sent* its message of this number.
    For {
        /// Of the receiver's messages about this pairing, the last one that had arrived.
        echo: u64,
        /// How long.
        span: Duration,
    },
}

/// One message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LevelMessage<L> {
    /// The lock.
    pub lock: L,
    /// The level of the cluster it is about: for words between a requester and an arbiter their
    /// common cluster's; for words between a child and its representing node the child's. The
    /// wishes of a node itself count as one level below the last.
    pub level: u8,
    /// The sender's life.
    pub life: Incarnation,
    /// The sender's logical clock.
    pub clock: u64,
    /// What it says.
    pub word: Word,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// Asks an arbiter of the own cluster for its permission.
    Request {
        /// The request's place in the order.
        place: Place,
        /// The request.
        rid: Id,
        /// At least so far the arbiter shall reserve tokens.
        hint: Token,
        /// For how long a permission shall be kept for a silent holder.
        span: Duration,
    },
    /// Gives the permission.
    Reply {
        /// The request.
        rid: Id,
        /// The number of the grant.
        grant: GrantId,
        /// The tokens that the arbiter has reserved for it.
        block: Block,
    },
    /// Asks a permission back.
    Inquire {
        /// The request.
        rid: Id,
        /// The grant.
        grant: GrantId,
    },
    /// Gives a permission back, and waits on.
    Yield {
        /// The request.
        rid: Id,
        /// The grant.
        grant: GrantId,
    },
    /// Ends a request, whatever has become of it.
    Release {
        /// The request.
        rid: Id,
        /// The largest token that was used under it.
        used: Token,
    },
    /// Keeps a permission of the root from running out.
    Renew {
        /// The request.
        rid: Id,
        /// Which message of this kind it is.
        number: u64,
        /// At least so far the arbiter shall reserve tokens.
        hint: Token,
        /// For how long the permission shall be kept from now on.
        span: Duration,
    },
    /// The answer to a renewal.
    Renewed {
        /// The request.
        rid: Id,
        /// The renewal.
        number: u64,
        /// The tokens now reserved; none if the request holds nothing here.
        block: Option<Block>,
    },
    /// A child asks its own cluster and will want the representing node's consent soon.
    Announce {
        /// The pairing of the child's run and this representing node.
        cid: Id,
        /// What the child wants.
        mode: Mode,
    },
    /// A child has its own cluster's permissions and wants consent.
    Ask {
        /// The pairing.
        cid: Id,
        /// What the child wants.
        mode: Mode,
        /// For how long a consent must hold to be of use.
        span: Duration,
    },
    /// A child that waits or has consent is still there.
    Keep {
        /// The pairing.
        cid: Id,
        /// Which message of this kind it is; the first is the ask itself, number 0.
        number: u64,
    },
    /// Consent, or how long it holds now.
    Consent {
        /// The pairing.
        cid: Id,
        /// Until when.
        until: Until,
        /// The tokens that may be used under it.
        block: Block,
    },
    /// Ends a pairing, whatever has become of it.
    Done {
        /// The pairing.
        cid: Id,
        /// The largest token that was used under it.
        used: Token,
    },
    /// An arbiter that restarted, or whose connection was lost, asks about a request it knows.
    Recovered {
        /// The request.
        rid: Id,
        /// The grant, if it has one.
        grant: GrantId,
    },
    /// A representing node whose connection was lost asks about a pairing it knows.
    Rejoined {
        /// The pairing.
        cid: Id,
    },
}

impl Word {
    /// How the message is called in figures and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request { .. } => "Request",
            Self::Reply { .. } => "Reply",
            Self::Inquire { .. } => "Inquire",
            Self::Yield { .. } => "Yield",
            Self::Release { .. } => "Release",
            Self::Renew { .. } => "Renew",
            Self::Renewed { .. } => "Renewed",
            Self::Announce { .. } => "PreCRequest",
            Self::Ask { .. } => "CRequest",
            Self::Keep { .. } => "Keep",
            Self::Consent { .. } => "CReply",
            Self::Done { .. } => "CRelease",
            Self::Recovered { .. } | Self::Rejoined { .. } => "NodeRecovery",
        }
    }
}
