//! Who may be inside together.

use std::fmt;
use std::sync::Arc;

use crate::id::{ClientId, Name, RequestNo, SessionId};

/// What a request asks for. A group that a user calls "shared" is not [`Mode::Shared`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With all other readers.
    Shared,
    /// With everyone who asks for the same group, compared by all its bytes.
    Group(Arc<[u8]>),
}

impl Mode {
    /// The group of this name.
    pub fn group(name: impl AsRef<[u8]>) -> Self {
        Self::Group(name.as_ref().into())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => write!(out, "exclusive"),
            Self::Shared => write!(out, "shared"),
            Self::Group(name) => write!(out, "group {}", name.escape_ascii()),
        }
    }
}

/// The order in which waiting requests are served: smaller first. A request keeps its priority
/// for its whole life, at every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority {
    /// When it was made, in microseconds, on the clock of the nodes.
    pub t: u64,
    /// Who made it.
    pub client: ClientId,
    /// Its number there.
    pub request: RequestNo,
}

/// How the session of a request is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bond {
    /// By the heartbeats of the client's connection.
    Attached,
    /// By handles that any gateway may present.
    Detached,
    /// As [`Bond::Detached`], with a session named by the caller: its attempts are one holder
    /// and never exclude each other.
    Named,
}

/// What a request says to every node it asks; it never changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The lock.
    pub name: Name,
    /// With whom it may be shared.
    pub mode: Mode,
    /// The session that holds it.
    pub session: SessionId,
    /// The request's number, unique in its session.
    pub request: RequestNo,
    /// Its place in the order.
    pub priority: Priority,
    /// How its session is kept alive.
    pub bond: Bond,
}

impl Ask {
    /// The identity that decides who excludes whom.
    pub fn group(&self) -> Group {
        match (&self.mode, self.bond) {
            (Mode::Shared, _) => Group::Shared,
            (Mode::Group(name), _) => Group::Named(name.clone()),
            (Mode::Exclusive, Bond::Named) => Group::Session(self.session),
            (Mode::Exclusive, _) => Group::Request(self.session, self.request),
        }
    }

    /// Whether two requests may be inside together; the same as comparing their groups.
    pub fn joins(&self, other: &Self) -> bool {
        match (&self.mode, &other.mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Group(a), Mode::Group(b)) => Arc::ptr_eq(a, b) || a == b,
            (Mode::Exclusive, Mode::Exclusive) => {
                self.session == other.session
                    && match (self.bond, other.bond) {
                        (Bond::Named, Bond::Named) => true,
                        (Bond::Named, _) | (_, Bond::Named) => false,
                        _ => self.request == other.request,
                    }
            }
            _ => false,
        }
    }
}

/// The identity behind a fencing token: holders of equal groups share, others exclude.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// An exclusive request: a group of one.
    Request(SessionId, RequestNo),
    /// The exclusive requests of a session that the caller named.
    Session(SessionId),
    /// All readers.
    Shared,
    /// A group by its name.
    Named(Arc<[u8]>),
}

impl fmt::Display for Group {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(session, request) => write!(out, "own:{session:x}/{request}"),
            Self::Session(session) => write!(out, "own:{session:x}"),
            Self::Shared => write!(out, "shared"),
            Self::Named(name) => write!(out, "group:{}", name.escape_ascii()),
        }
    }
}
