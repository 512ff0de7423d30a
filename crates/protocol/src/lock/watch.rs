//! What is said and shown about locks to those who only watch.

use std::sync::Arc;

use super::message::Refusal;
use super::mode::{Group, Mode};
use crate::id::{Name, RequestNo, SessionId, Token};
use crate::time::Wall;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watch {
    /// One lock.
    Name(Name),
    /// All locks whose names begin with these bytes.
    Prefix(Arc<[u8]>),
}

impl Watch {
    /// Whether a lock of this name is watched.
    pub fn covers(&self, name: &Name) -> bool {
        match self {
            Self::Name(watched) => watched == name,
            Self::Prefix(prefix) => name.bytes().starts_with(prefix),
        }
    }

    /// The bytes of the name or prefix.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Name(name) => name.bytes(),
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// What a node tells a watcher.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sight {
    /// A list of all locks begins; what it does not name by its end is over.
    Begin,
    /// A lock as the node sees it now.
    State(Report),
    /// All locks there are have been told.
    Synced,
    /// The watch is refused and not kept.
    Refused(Refusal),
}

/// A lock as one node sees it. One that names nobody is idle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// The lock.
    pub name: Name,
    /// Who is inside, best first, up to a limit. A token of zero says that the holder moves here
    /// and that the node does not know its token.
    pub holders: Vec<Holder>,
    /// How many more are inside.
    pub more: u32,
    /// How many wait.
    pub waiting: u32,
}

impl Report {
    /// Whether nobody is inside and nobody waits.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.more == 0 && self.waiting == 0
    }
}

/// Somebody inside a lock, as others may know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Its session.
    pub session: SessionId,
    /// Its request.
    pub request: RequestNo,
    /// Whom it shares with.
    pub group: Group,
    /// Its token.
    pub token: Token,
    /// When it asked, on the clock of the nodes.
    pub asked: Wall,
    /// Who owns its session, for people.
    pub owner: Arc<str>,
    /// What it wants others to read.
    pub note: Option<Arc<[u8]>>,
    /// How often it has changed its note.
    pub edition: u32,
}

impl Holder {
    /// With whom it asked to share.
    pub fn mode(&self) -> Mode {
        match &self.group {
            Group::Request(..) | Group::Session(_) => Mode::Exclusive,
            Group::Shared => Mode::Shared,
            Group::Named(name) => Mode::Group(name.clone()),
        }
    }
}

/// A lock as a watcher is told about it, put together from what several nodes see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The lock.
    pub name: Name,
    /// Who is inside, largest token first, up to a limit: all of one group.
    pub holders: Vec<Holder>,
    /// How many more are inside.
    pub more: u32,
    /// How many wait, at the node where most do.
    pub waiting: u32,
    /// Whether too few nodes are heard to know of every holder.
    pub partial: bool,
}

impl LockState {
    /// Whether nobody is inside and nobody waits.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.more == 0 && self.waiting == 0
    }

    /// The holder with the largest token.
    pub fn leader(&self) -> Option<&Holder> {
        self.holders.first()
    }
}
