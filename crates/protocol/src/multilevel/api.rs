//! What a driver tells the machine and is told by it.

use std::time::Duration;

use super::message::{Block, LevelMessage};
use super::record::LevelRecord;
use crate::id::{Incarnation, NodeId, Token};
use crate::lock::Mode;
use crate::machine::Effects;
use crate::time::Instant;

/// What the machine can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelInput<L> {
    /// Another node said this.
    Receive(NodeId, LevelMessage<L>),
    /// Somebody at this node wants to be inside.
    Want {
        /// The lock.
        lock: L,
        /// The caller's number for it; never used twice for a lock.
        wish: u64,
        /// Alone, or with whom.
        mode: Mode,
        /// How long consent must hold to be of use, each time it is renewed.
        span: Duration,
    },
    /// A wish ends: whoever was inside has left, or nobody waits for it any more.
    Leave {
        /// The lock.
        lock: L,
        /// The wish.
        wish: u64,
        /// The largest token that was used under it; zero if none was.
        used: Token,
    },
    /// A life of a node has certainly ended.
    Failed(NodeId, Incarnation),
    /// A node cannot be reached and what was sent to it lately may be lost. It may be wrong that
    /// the node has died.
    Suspected(NodeId),
    /// A node can be reached again, or for the first time, and lives in this life; what was sent
    /// to it before may be lost.
    Alive(NodeId, Incarnation),
    /// So many of the records of this life are on disk.
    Durable(u64),
    /// Time has passed.
    Wake,
}

/// What the machine tells its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelEvent<L> {
    /// A wish is granted: whoever wanted it may be inside until then.
    Granted {
        /// The lock.
        lock: L,
        /// The wish.
        wish: u64,
        /// The tokens it may use.
        block: Block,
        /// Until when, by this node's steady clock.
        until: Instant,
    },
    /// A wish that is granted may stay inside longer.
    Extended {
        /// The lock.
        lock: L,
        /// The wish.
        wish: u64,
        /// Until when, by this node's steady clock.
        until: Instant,
    },
    /// A wish that was granted has ended because its time ran out. It need not be left any more.
    Lost {
        /// The lock.
        lock: L,
        /// The wish.
        wish: u64,
    },
    /// A wish is refused: this node keeps too much already. It need not be left.
    Refused {
        /// The lock.
        lock: L,
        /// The wish.
        wish: u64,
    },
}

/// The effects of the machine.
pub type LevelEffects<L> = Effects<NodeId, LevelMessage<L>, LevelRecord<L>, LevelEvent<L>>;
