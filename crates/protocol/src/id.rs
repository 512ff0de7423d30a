//! One type per number that could be mistaken for another.

use std::fmt;
use std::sync::Arc;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::LowerHex for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, out)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }
    };
}

number! {
    /// A client process, smart client or gateway: random, never reused.
    ClientId(u128)
}
number! {
    /// A session: random, never reused. One session has one TTL.
    SessionId(u128)
}
number! {
    /// A request of a client; increasing per client.
    RequestNo(u64)
}
number! {
    /// A grant of a node; increasing per node and incarnation. Zero is no grant.
    GrantNo(u64)
}
number! {
    /// A connection of a client to one node; increasing per client and node.
    ConnNo(u64)
}
number! {
    /// One life of a node's state; increasing per node.
    Incarnation(u64)
}
number! {
    /// A fencing token: strictly increasing over conflicting holders of one lock name, for ever.
    Token(u64)
}
number! {
    /// A transport connection as the node's driver numbers it; never reused in one life.
    LinkId(u64)
}
number! {
    /// A watch of a client, as it numbers them; never reused.
    WatchNo(u64)
}
number! {
    /// The caller's name for one acquisition or handle operation; the caller never reuses it.
    Key(u64)
}

/// A node of the cluster, counted from 0; shown from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node's place in node sets.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The node at this place of node sets.
    pub fn at(index: usize) -> Self {
        Self(index as u32)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "n{}", self.0 + 1)
    }
}

/// The name of a lock: bytes, compared whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The name with these bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A stable hash of the name: every requester of a lock draws its first quorum from it.
    pub fn seed(&self) -> u64 {
        let hash = blake3::hash(&self.0);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Name({self})")
    }
}
