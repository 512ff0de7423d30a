//! What a node keeps about a lock.

use std::collections::VecDeque;
use std::time::Duration;

use crate::id::{Incarnation, NodeId, Token};
use crate::lock::Mode;
use crate::multilevel::message::{Block, GrantId, Id, Place};
use crate::time::Instant;

/// A lock at a level of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) lock: u32,
    pub(super) level: u8,
}

/// One lock.
#[derive(Clone, Debug)]
pub(super) struct Lock<L> {
    pub(super) key: L,
    pub(super) spread: u64,
    /// Tells this lock from an earlier one in the same place.
    pub(super) born: u64,
    /// Set while the lock is idle.
    pub(super) idle: u64,
    /// The largest token seen here, in any role.
    pub(super) seen: Token,
    /// From the highest level where this node is a member down to the last.
    pub(super) levels: Vec<Level>,
    /// What this node itself wants.
    pub(super) wishes: Vec<Wish>,
    /// Whether the regular timer of wishes is armed.
    pub(super) upkeep: bool,
}

impl<L> Lock<L> {
    pub(super) fn is_idle(&self) -> bool {
        self.wishes.is_empty() && self.levels.iter().all(Level::is_idle)
    }
}

/// One level of a lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    pub(super) arbiter: Arbiter,
    pub(super) agent: Agent,
    /// The layout of the cluster's tree for this lock: a member's place is `mul * seat + add`.
    pub(super) mul: u32,
    pub(super) add: u32,
}

impl Level {
    fn is_idle(&self) -> bool {
        self.agent.stage == Stage::Idle
            && self.agent.children.is_empty()
            && self.agent.fifo.is_empty()
            && self.agent.pre.is_empty()
            && self.arbiter.holder.is_none()
            && self.arbiter.queue.is_empty()
    }
}

/// Who has this node's permission, and who waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    pub(super) holder: Option<Holder>,
    /// Best last.
    pub(super) queue: Vec<Waiting>,
    /// Requests that ended before they came.
    pub(super) tombs: VecDeque<Id>,
    /// The largest token that may have been used.
    pub(super) floor: Token,
}

/// A request that has the permission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) place: Place,
    pub(super) rid: Id,
    pub(super) grant: GrantId,
    pub(super) inquiring: bool,
    pub(super) block: Block,
    pub(super) span: Duration,
    /// When the permission ends by itself; only at the root, and only with leases.
    pub(super) until: Instant,
}

/// A request that waits for the permission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) place: Place,
    pub(super) rid: Id,
    pub(super) hint: Token,
    pub(super) span: Duration,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no run.
    #[default]
    Idle,
    /// It gathers permissions of its cluster.
    Asking,
    /// It has them and wants the consent of the level above.
    Rising,
    /// It has consent, and no child to give it to.
    Waiting,
    /// Its child, or group of children, has consent.
    Busy,
}

/// What an arbiter has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Open,
    /// It asked a grant back that has not come yet.
    Early(GrantId),
    Given(GrantId),
}

/// An arbiter that was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) node: NodeId,
    /// The counter of the request.
    pub(super) rid: u64,
    pub(super) answer: Answer,
    /// The last grant that was given back: answers up to it are repeated ones.
    pub(super) yielded: GrantId,
    pub(super) block: Block,
    /// From when its lease counts: when the request or the last answered renewal was sent.
    pub(super) fresh: Instant,
    /// How long it is, and how long the last renewal wants it.
    pub(super) span: Duration,
    pub(super) renewal_span: Duration,
    /// The last renewal, and when it was sent.
    pub(super) renewal: u64,
    pub(super) renewal_at: Instant,
    /// Whether its answer is awaited.
    pub(super) renewing: bool,
    /// Whether it belongs to the quorum that counts.
    pub(super) counts: bool,
    /// Whether it belongs to the quorum that shall count next.
    pub(super) next: bool,
}

/// Requester and representing node in one.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Agent {
    pub(super) stage: Stage,
    pub(super) clock: u64,
    pub(super) asked: Vec<Asked>,
    /// What this run is for.
    pub(super) mode: Option<Mode>,
    pub(super) up: Option<Up>,
    /// The children that this run serves: one, or several of one group.
    pub(super) children: Vec<Child>,
    pub(super) fifo: VecDeque<Child>,
    /// Children that announced themselves, oldest first.
    pub(super) pre: Vec<(Id, Mode)>,
    /// Pairings that ended before they came.
    pub(super) tombs: VecDeque<Id>,
    pub(super) passes: u32,
    pub(super) lingers: u32,
    pub(super) deadline: Instant,
    pub(super) block: Block,
    pub(super) used: Token,
    pub(super) orphan: bool,
    /// No quorum is up.
    pub(super) blocked: bool,
    /// A quorum is being exchanged because a member of it is gone.
    pub(super) moving: bool,
    /// The number of the last timer that may end the wait for a child.
    pub(super) epoch: u64,
    /// Whether the regular timer is armed.
    pub(super) upkeep: bool,
    /// How often consent came, for those who watch.
    pub(super) consents: u64,
}

impl Agent {
    /// For how long a lease of this run shall be.
    pub(super) fn span(&self) -> Duration {
        let spans = self.children.iter().map(|child| child.span);
        spans.max().unwrap_or_default()
    }

    pub(super) fn knows(&self, cid: Id) -> bool {
        self.children.iter().any(|child| child.cid == cid)
            || self.fifo.iter().any(|child| child.cid == cid)
    }
}

/// The pairing of a run with its representing node.
#[derive(Clone, Debug)]
pub(super) struct Up {
    pub(super) node: NodeId,
    /// The newest life of it when it was chosen.
    pub(super) life: Incarnation,
    pub(super) cid: Id,
    /// What it was asked for; none if it was not asked yet.
    pub(super) mode: Option<Mode>,
    /// For how long it was asked.
    pub(super) span: Duration,
    pub(super) line: Line,
}

/// What was sent about a pairing, and when: leases count from there.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    number: u64,
    sent: VecDeque<(u64, Instant)>,
}

/// So many times of sending are remembered.
const LINE_MAX: usize = 16;

impl Line {
    /// Takes note that the ask was sent.
    pub(super) fn asked(&mut self, now: Instant) {
        if self.sent.is_empty() {
            self.sent.push_back((0, now));
        }
    }

    /// The number of the next message.
    pub(super) fn next(&mut self, now: Instant) -> u64 {
        self.number += 1;
        if self.sent.len() == LINE_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.number, now));
        self.number
    }

    /// When the message of this number was sent, if that is remembered.
    pub(super) fn sent(&self, number: u64) -> Option<Instant> {
        let found = self.sent.iter().find(|(sent, _)| *sent == number);
        found.map(|(_, at)| *at)
    }
}

/// A child that is served or waits.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) cid: Id,
    pub(super) mode: Mode,
    pub(super) span: Duration,
    /// The last message of it about this pairing.
    pub(super) echo: u64,
    /// Whether it has consent, and until when it was promised.
    pub(super) given: Option<Instant>,
}

/// Something that this node itself wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) number: u64,
    pub(super) cid: Id,
    pub(super) mode: Mode,
    pub(super) span: Duration,
    /// The node whose agent it asks: this one, unless it wants to meet its group. None is up:
    /// none.
    pub(super) at: Option<NodeId>,
    pub(super) life: Incarnation,
    pub(super) line: Line,
    /// Until when it may be inside.
    pub(super) inside: Option<Instant>,
}
