//! What clients and nodes say to each other about objects.

use std::sync::Arc;

use super::state::{Cell, Delta, Digest, Stamp, Value};
use crate::id::ClientId;

/// The rank of a client's attempt to order operations. The larger one wins; fresh for every get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Compared first. Zero is the rank of the empty state; real ones begin with one.
    pub round: u64,
    /// Whose, to tell equal rounds apart.
    pub client: ClientId,
}

/// A client's signature of an object's name and a rank, for clusters that ask for it.
pub type Proof = Option<Arc<[u8]>>;

/// Who submits operations to one object, one at a time: when it began (milliseconds, 48 bits) and
/// 80 random bits. Never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Author(pub u128);

impl Author {
    /// An author that begins at this time of the wall clock.
    pub fn new(millis: u64, chance: u128) -> Self {
        Self(u128::from(millis) << 80 | chance >> 48)
    }

    /// When it began, in milliseconds.
    pub fn began(self) -> u64 {
        (self.0 >> 80) as u64
    }
}

/// An operation: whose, and which one, counted from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// Whose.
    pub author: Author,
    /// Which.
    pub number: u64,
}

/// An operation that waits to be ordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pending {
    /// Which.
    pub op: OpId,
    /// In whose name, as the node has seen it.
    pub principal: Arc<str>,
    /// What it does; only the object's kind can read it.
    pub body: Arc<[u8]>,
}

/// Cells by name: from `from` on, up to but not including `to` (none is the end).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub from: Cell,
    /// The first that no longer counts.
    pub to: Option<Cell>,
    /// How many at most.
    pub limit: u32,
    /// Whether from the last one backwards.
    pub backwards: bool,
}

/// How to get from a state that a node may have to the one that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carry {
    /// The state it starts from.
    pub base: Stamp,
    /// One version after the other.
    pub deltas: Vec<Delta>,
}

/// The steps of an attempt that carry a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Reading what is there.
    Get,
    /// Proposing a state.
    Propose,
    /// Committing it.
    Commit,
}

/// What a client asks of a node about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectAsk {
    /// Let this be done, and tell me what came of it. Answered by [`ObjectTell::Held`] or
    /// [`ObjectTell::Done`] at once; if held, by `Done` later.
    Submit {
        /// Which operation.
        op: OpId,
        /// What it does.
        body: Arc<[u8]>,
    },
    /// What is there? Answered by [`ObjectTell::Got`] or [`ObjectTell::Outranked`].
    Get {
        /// The attempt's rank.
        rank: Rank,
        /// The same if the question is sent again, another one for every attempt.
        nonce: u64,
        /// A state that the client has.
        have: Option<Stamp>,
        /// The rank's signature.
        proof: Proof,
    },
    /// Hold this as proposed.
    Propose {
        /// The attempt's rank.
        rank: Rank,
        /// The state.
        stamp: Stamp,
        /// How to get there.
        carry: Option<Carry>,
        /// The rank's signature.
        proof: Proof,
    },
    /// Hold this as committed.
    Commit {
        /// The attempt's rank.
        rank: Rank,
        /// The state.
        stamp: Stamp,
        /// How to get there, for a node that said it needs it.
        carry: Option<Carry>,
        /// The rank's signature.
        proof: Proof,
    },
    /// Give me a state that you hold, cell by cell. Answered by [`ObjectTell::Page`] or
    /// [`ObjectTell::Gone`].
    Fetch {
        /// The client's number for the question; answers carry it.
        ticket: u64,
        /// Which state.
        stamp: Stamp,
        /// After which cell to go on.
        after: Option<Cell>,
    },
    /// Here is a state that you need, page by page; then the question that needed it comes again.
    Give {
        /// The client's number.
        ticket: u64,
        /// Which state.
        stamp: Stamp,
        /// A part of it. The pages of one state come in the order of their cells.
        page: Page,
    },
    /// What is committed, without a rank? Answered by [`ObjectTell::Peeked`].
    Peek {
        /// The client's number for the question.
        ticket: u64,
        /// A state that the client has.
        have: Option<Stamp>,
        /// The cells it wants to see.
        spans: Vec<Span>,
    },
    /// Tell me whenever something is committed, until [`ObjectAsk::Unwatch`].
    Watch {
        /// The client's number for the watch.
        ticket: u64,
    },
    /// No longer.
    Unwatch {
        /// The watch.
        ticket: u64,
    },
}

/// A part of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The digest of the version before the state.
    pub previous: Digest,
    /// Cells in the order of their names.
    pub cells: Vec<(Cell, Value)>,
    /// Whether these are the last.
    pub last: bool,
}

/// What a node says about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectTell {
    /// The operation waits here.
    Held {
        /// Which.
        op: OpId,
        /// In whose name it was taken.
        principal: Arc<str>,
    },
    /// The operation was done.
    Done {
        /// Which.
        op: OpId,
        /// What came of it.
        result: Arc<[u8]>,
    },
    /// The operation will not be taken.
    Denied {
        /// Which.
        op: OpId,
        /// Why.
        why: ObjectRefusal,
    },
    /// What is there.
    Got {
        /// The rank of the question.
        rank: Rank,
        /// Its nonce.
        nonce: u64,
        /// What is there.
        view: Box<View>,
    },
    /// It is held, on disk.
    Taken {
        /// The rank of the question.
        rank: Rank,
        /// Which question.
        phase: Phase,
        /// The state.
        stamp: Stamp,
        /// How many operations wait there that the state does not reflect.
        waiting: u32,
    },
    /// A larger rank was seen, or the same one in another attempt.
    Outranked {
        /// The rank of the question.
        rank: Rank,
        /// Which question.
        phase: Phase,
        /// The largest rank seen.
        max: Rank,
        /// Its signature.
        proof: Proof,
    },
    /// The node cannot make the state from what it has; it needs a carry from one of these, or
    /// the whole state.
    NeedState {
        /// The rank of the question.
        rank: Rank,
        /// Which question.
        phase: Phase,
        /// The state that it needs.
        stamp: Stamp,
        /// What it holds as committed.
        committed: Stamp,
        /// What it holds as proposed.
        proposed: Stamp,
    },
    /// A question of an attempt is refused whatever its rank.
    Refused {
        /// The rank of the question.
        rank: Rank,
        /// Which question.
        phase: Phase,
        /// Why.
        why: ObjectRefusal,
    },
    /// A part of the state that was asked for.
    Page {
        /// The question's number.
        ticket: u64,
        /// Which state.
        stamp: Stamp,
        /// A part of it.
        page: Page,
    },
    /// A page was taken.
    Given {
        /// The question's number.
        ticket: u64,
        /// Whether the state is whole and is what it was said to be.
        whole: bool,
    },
    /// The node does not hold that state (any more), or does not answer that question.
    Gone {
        /// The question's number.
        ticket: u64,
        /// Why.
        why: ObjectRefusal,
    },
    /// What is committed.
    Peeked {
        /// The question's number.
        ticket: u64,
        /// The committed state.
        committed: Stamp,
        /// The version of the proposed one.
        proposed: u64,
        /// From the state that the client has to the committed one, if the node still has the way.
        suffix: Vec<Delta>,
        /// The cells of each span, in its order.
        cells: Vec<Vec<(Cell, Value)>>,
    },
    /// Something was committed.
    Changed {
        /// The watch.
        ticket: u64,
        /// What is committed now.
        stamp: Stamp,
    },
}

impl ObjectTell {
    /// Whether it tells of something that must be on disk before.
    pub fn rests(&self) -> bool {
        match self {
            Self::Held { .. }
            | Self::Denied { .. }
            | Self::NeedState { .. }
            | Self::Refused { .. }
            | Self::Given { .. }
            | Self::Gone { .. } => false,
            Self::Done { .. }
            | Self::Got { .. }
            | Self::Taken { .. }
            | Self::Outranked { .. }
            | Self::Page { .. }
            | Self::Peeked { .. }
            | Self::Changed { .. } => true,
        }
    }
}

/// What a node holds of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The committed state.
    pub committed: Stamp,
    /// The proposed state.
    pub proposed: Stamp,
    /// The rank under which it was proposed.
    pub proposer: Rank,
    /// Operations that wait, at most as many as fit.
    pub pending: Vec<Pending>,
    /// From the state that the client has to the committed one, if the node still has the way.
    pub suffix: Vec<Delta>,
    /// From the committed state to the proposed one, if that is one step.
    pub step: Option<Delta>,
}

/// Why a node refuses something about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectRefusal {
    /// The caller may not.
    NotPermitted,
    /// It is larger than allowed: an operation, a delta or the object.
    TooLarge,
    /// The node keeps as much as it may; later perhaps.
    Full,
    /// The name is too long, or empty.
    Name,
    /// The node does not serve yet.
    NotServing,
    /// The node does not hold that state.
    Unknown,
    /// The client contradicts itself: two states under one rank, or cells that are not the state.
    Contradiction,
    /// The state is older than the committed one.
    Older,
    /// The rank's signature is missing or false.
    Proof,
    /// The cluster's nodes are too few for objects.
    Infeasible,
    /// The author has been away for so long that it was forgotten; begin anew.
    Forgotten,
}
