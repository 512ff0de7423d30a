//! Older ways to the same end, as machines of the same kind, so that a lock can be measured
//! against them on one load.
//!
//! | module | who decides | messages per entry, nobody else asking | groups |
//! |---|---|---|---|
//! | [`maekawa`] | a quorum of c nodes, each for itself (Maekawa 1985) | 3c | no |
//! | [`ricart`] | all n processes (Ricart and Agrawala 1981; Joung 2002) | 2(n-1) | by variant |
//! | [`central`] | one server | 3 | yes |
//! | [`backup`] | one server that tells a second one before it answers | 5 | yes |
//!
//! They serve comparison and nothing else. None of them survives a crash, a lost message or a
//! reconnect, none gives fencing tokens, and nobody can cancel. They assume that nothing fails
//! and that messages from one peer to another keep their order. What comes from outside still
//! cannot make them panic or grow: a message that does not fit is ignored, and a peer has at most
//! one request anywhere.
//!
//! Every machine takes [`Input`]s and gives [`Event`]s. Processes are the peers `0..processes`;
//! servers, where there are any, are the peers after them.

use std::convert::Infallible;
use std::fmt;

use crate::machine::Effects;

pub mod backup;
pub mod central;
pub mod maekawa;
pub mod ricart;

/// A process or a server: processes come first, then the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

impl Peer {
    /// Its place in a list of all peers.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0 + 1)
    }
}

/// A group. Members of one group may be inside together where a protocol knows groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNo(pub u32);

/// The place of a request in the order that all peers agree on: smaller is better. A process
/// never uses a counter twice, so a stamp also names its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The process's clock when it asked.
    pub counter: u64,
    /// The process: decides between equal counters.
    pub peer: Peer,
}

/// What a baseline machine can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<M> {
    /// The caller wants to enter. Ignored by a server, and by a process that asks or is inside.
    Ask {
        /// As a member of this group.
        group: GroupNo,
    },
    /// The caller is done. Ignored unless inside.
    Leave,
    /// A message came.
    Receive {
        /// From whom.
        from: Peer,
        /// What it says.
        message: M,
    },
}

/// What a baseline machine tells its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// The caller is inside.
    Entered,
    /// The caller is outside again.
    Left,
}

/// The effects of a baseline machine: nothing is ever written to disk.
pub type BaselineEffects<M> = Effects<Peer, M, Infallible, Event>;

/// A message whose kind can be counted.
pub trait Named {
    /// One word for the kind of message.
    fn kind(&self) -> &'static str;
}

/// The state of a process that is served by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Asking,
    Inside,
}
