//! What happened in a run, on true time: the one language between the world and its checkers.

use std::sync::Arc;

use conclave_protocol::Wall;
use conclave_protocol::id::{GrantNo, Key, Name, NodeId, Token};
use conclave_protocol::lock::{Ask, End, Group, LockState, LockView};

/// True time in nanoseconds: the world's own, which no process can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct True(pub u64);

/// One acquisition of one client: client, life of that client's process, key and lock name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The client's index in the world.
    pub client: u32,
    /// Which life of its process.
    pub life: u32,
    /// The caller's key.
    pub key: Key,
    /// The lock.
    pub name: Name,
}

/// Something a checker may want to know.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A client asked for a lock.
    Asked {
        /// Who.
        holder: Holder,
    },
    /// A client asked for any one of several locks: it may never be inside two of them.
    AskedAny {
        /// One of the holders that it may become.
        holder: Holder,
        /// How many locks it named.
        of: usize,
    },
    /// It is inside.
    Entered {
        /// Who.
        holder: Holder,
        /// Its group.
        group: Group,
        /// Its token.
        token: Token,
        /// The grants it rests on.
        members: Vec<(NodeId, GrantNo)>,
    },
    /// It is still inside, with another token or on other grants.
    Moved {
        /// Who.
        holder: Holder,
        /// Its token from now on.
        token: Token,
        /// The grants it rests on from now on.
        members: Vec<(NodeId, GrantNo)>,
    },
    /// It released the lock.
    Released {
        /// Who.
        holder: Holder,
    },
    /// It was told that the lock is lost.
    Lost {
        /// Who.
        holder: Holder,
    },
    /// It ended without having entered (cancelled, timed out, busy, refused).
    Ended {
        /// Who.
        holder: Holder,
    },
    /// It ended because no quorum took its token, although the nodes heard each other.
    Unserved {
        /// Who.
        holder: Holder,
    },
    /// A node refused its token, although the nodes hear each other.
    TokenRefused {
        /// The node.
        node: NodeId,
        /// Whose request.
        session: conclave_protocol::id::SessionId,
        /// Which request.
        request: conclave_protocol::id::RequestNo,
    },
    /// Wall clocks are about to be set.
    ClocksSet,
    /// A client has done its worst at a node.
    Attacked {
        /// The node.
        node: NodeId,
    },
    /// The client's process died with this acquisition in it.
    Vanished {
        /// Who.
        holder: Holder,
    },
    /// It used the resource; the resource admitted it or not.
    Acted {
        /// Who.
        holder: Holder,
        /// Its group.
        group: Group,
        /// The token it showed.
        token: Token,
        /// Whether the fence let it pass.
        admitted: bool,
    },
    /// A node granted a request.
    Granted {
        /// The node.
        node: NodeId,
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The floor told.
        floor: Token,
        /// The limit registered.
        limit: Token,
        /// Whether a better request of another group waited.
        bypass: bool,
        /// Whether the requester was inside already and moves.
        inside: bool,
    },
    /// A grant was taken over from an earlier life of the node.
    Reclaimed {
        /// The node.
        node: NodeId,
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The holder's token.
        token: Token,
    },
    /// A node ended a request; `grant` is zero if it was waiting.
    NodeEnded {
        /// The node.
        node: NodeId,
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// Why.
        why: End,
    },
    /// The world expired a session at a node although it was alive (a planted fault): whoever
    /// holds a grant through it there may be overlapped.
    ExpiredBySpite {
        /// The node.
        node: NodeId,
        /// The session's id.
        session: conclave_protocol::id::SessionId,
    },
    /// A watching client was shown a lock.
    Seen {
        /// The client's index in the world.
        client: u32,
        /// Which life of its process.
        life: u32,
        /// Which watch.
        key: Key,
        /// What it was shown.
        state: Box<LockState>,
    },
    /// A node process died (its memory is gone; its disk may be).
    NodeDown {
        /// The node.
        node: NodeId,
        /// Whether its disk is lost too.
        disk_lost: bool,
    },
    /// A node process runs again.
    NodeUp {
        /// The node.
        node: NodeId,
    },
    /// Some time has passed.
    Tick,
    /// All faults have ended and everything is being healed.
    Healed,
    /// The run is over: the world is quiet or its time is up.
    Over,
}

/// What a checker may look at beside the facts.
pub trait Eyes {
    /// Until when, on true time, this holder believes that it holds the lock, by its own clock
    /// and as if it heard from no node again; none if it does not believe so (released, lost,
    /// never entered, or its process is dead). A paused process still believes.
    fn believes_until(&self, holder: &Holder) -> Option<True>;

    /// A lock as a running node sees it.
    fn view(&self, node: NodeId, name: &Name) -> Option<LockView>;

    /// The grants that this holder counts as fresh now, by its own clock; empty if it does not
    /// believe. For a handle: the grants it names, while it is valid.
    fn fresh_members(&self, holder: &Holder) -> Vec<(NodeId, GrantNo)>;

    /// Whether a node that this holder rests on was told to reserve its token.
    fn reserves(&self, _: &Holder, _: NodeId) -> bool {
        true
    }

    /// Since when the holder's process has run without a pause, so that it was woken whenever it
    /// wanted to be; none if it is paused or dead, or if no process holds the lock but a handle.
    fn awake_since(&self, holder: &Holder) -> Option<True>;

    /// Whether a node runs and grants: it is not starting, pausing, recovering or draining.
    fn serving(&self, node: NodeId) -> bool;

    /// The requests of live processes that still wait.
    fn waiting(&self) -> Vec<Holder>;

    /// How many locks, sessions, clients and tombstones each running node keeps.
    fn kept(&self, node: NodeId) -> Option<[usize; 4]>;

    /// The largest token in any floor or limit of a running node, and its token clock.
    fn tokens(&self, node: NodeId) -> Option<(Token, Wall)>;

    /// What the wall clock of a node shows, whether it runs or not.
    fn wall(&self, node: NodeId) -> Option<Wall>;

    /// How many nodes the cluster has.
    fn nodes(&self) -> usize;

    /// Whether a request that waits could be served: a quorum has served its client and been
    /// reachable for a while, and nobody conflicting is inside or ahead.
    fn servable(&self, _holder: &Holder) -> bool {
        false
    }

    /// Within how many nanoseconds a request that could be served must be.
    fn patience(&self) -> u64 {
        u64::MAX
    }

    /// Whether a quorum has served the client of a hold and been reachable for a while, and
    /// nobody ends the holds of others in this world.
    fn keepable(&self, _holder: &Holder) -> bool {
        false
    }

    /// The holds that clients keep themselves and that a quorum serves, each with the nanoseconds
    /// that it lasts if nothing more is heard, and those that it should last.
    fn kept_holds(&self) -> Vec<(Holder, u64, u64)> {
        Vec::new()
    }
}

/// A property and what broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the property.
    pub property: &'static str,
    /// When, on true time.
    pub at: True,
    /// What happened, in one line.
    pub what: String,
}

/// A property that is watched during a run. One file each in [`crate::invariants`].
pub trait Checker {
    /// Its name.
    fn property(&self) -> &'static str;

    /// Looks at one fact, right after it happened.
    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation>;
}
