//! What the two machines of the lock protocol are told, and what they tell.

use std::sync::Arc;
use std::time::Duration;

use super::access::{Access, Who};
use super::handle::Handle;
use super::message::{Message, Refusal};
use super::mode::{Ask, Group, Mode};
use super::watch::{LockState, Watch};
use crate::id::{ConnNo, GrantNo, Key, LinkId, Name, NodeId, RequestNo, SessionId, Token};
use crate::machine::Effects;
use crate::multilevel::Block;
use crate::time::{Instant, Wall};

/// Whom a node sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum To {
    /// The client at the other end of a connection.
    Link(LinkId),
    /// Another node. Such messages may be lost whole; they are never needed for safety.
    Node(NodeId),
}

/// What a node is told.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// A message came on a connection of a client.
    Receive(LinkId, Message),
    /// A connection of a client ended.
    Closed(LinkId),
    /// A message came from another node.
    Peer(NodeId, Message),
    /// This many records since the start are on disk, counted over all steps.
    Durable(u64),
    /// The time of [`crate::Machine::next_wake`] has come, or may have.
    Wake,
    /// Stop taking requests and ask holders to move elsewhere.
    Drain,
    /// Write the clean mark and fall silent. The driver stops when it is durable.
    Stop,
    /// End a session at once, as if it had expired.
    Expire(SessionId),
    /// A client's connection is open, and this is who is at its other end. Of a connection that
    /// this was never said about everything is believed.
    Opened(LinkId, Who),
    /// A client's connection is open, and nobody has to say who they are: everything is believed.
    /// What it makes the node keep is charged to its address, which begins with
    /// [`ADDRESS_MARK`](super::access::ADDRESS_MARK), or to the addresses that it names if it may
    /// be a gateway.
    OpenedFrom {
        /// The connection.
        link: LinkId,
        /// The address.
        address: Arc<str>,
        /// Whether a gateway may be there.
        gateway: bool,
    },
    /// From now on these rules say who may do what. What is held stays held.
    Access(Arc<Access>),
    /// Renew a session no more, at an operator's word.
    Revoke {
        /// Which session.
        session: SessionId,
        /// Who said so: what the session asks for later is refused where they may administer.
        by: Arc<str>,
        /// Free its locks at once, while its holder may still believe to hold them.
        force: bool,
    },
    /// The clusters consent to a wish of [`NodeEvent::Want`].
    Consent {
        /// The lock.
        name: Name,
        /// The wish.
        wish: u64,
        /// The tokens that may be used.
        block: Block,
        /// Until when, by this node's steady clock.
        until: Instant,
    },
    /// A consent lasts longer.
    Extended {
        /// The lock.
        name: Name,
        /// The wish.
        wish: u64,
        /// Until when, by this node's steady clock.
        until: Instant,
    },
    /// A consent has run out. It is not left any more.
    ConsentLost {
        /// The lock.
        name: Name,
        /// The wish.
        wish: u64,
    },
    /// A wish is refused: too much is kept already. It is not left any more.
    ConsentRefused {
        /// The lock.
        name: Name,
        /// The wish.
        wish: u64,
    },
}

/// What a node tells its driver and observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The driver closes this connection.
    Close(LinkId),
    /// A request was granted.
    Granted {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The floor told.
        floor: Token,
        /// The limit registered.
        limit: Token,
        /// Whether a better request of another group waits.
        bypass: bool,
        /// Whether the requester is inside and moves.
        inside: bool,
    },
    /// A granted or waiting request ended here.
    Ended {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant, zero if it was waiting.
        grant: GrantNo,
        /// Why.
        why: End,
    },
    /// A grant of an earlier life was taken over.
    Reclaimed {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The holder's token.
        token: Token,
    },
    /// A holder said that it entered.
    Entered {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// Its token.
        token: Token,
    },
    /// The node grants from now on.
    Serving,
    /// The node cannot recover by itself: too few others can tell what it may have granted.
    CannotRecover,
    /// Something was refused.
    Refused(Refusal),
    /// Somebody asked for what they may not.
    Barred {
        /// In whose name.
        principal: Arc<str>,
        /// The session.
        session: SessionId,
        /// The lock, if one was named.
        name: Option<Name>,
        /// Why.
        why: Refusal,
    },
    /// The front of a hierarchy wants the consent of the clusters.
    Want {
        /// The lock.
        name: Name,
        /// The wish; no other of this life has its number.
        wish: u64,
        /// What for.
        mode: Mode,
        /// How long consent must last to be of use, each time it is renewed.
        span: Duration,
    },
    /// The front of a hierarchy gives consent back, or wants it no more.
    Leave {
        /// The lock.
        name: Name,
        /// The wish.
        wish: u64,
        /// The largest token that was used; zero if none was.
        used: Token,
    },
}

/// Why a request ended at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Its holder left and may have used this token.
    Done(Token),
    /// It was cancelled, or never used.
    Cancelled,
    /// The grant was given back; the request waits on.
    Yielded,
    /// Its session was not renewed in time.
    Expired,
    /// It had not entered and its connection was not renewed in time.
    Lapsed,
    /// It waited on a connection that ended.
    Disconnected,
    /// Its client came back without it.
    Forgotten,
    /// An operator ended its session.
    Revoked,
}

/// The effects of a node.
pub type NodeEffects = Effects<To, Message, super::record::Record, NodeEvent>;

/// What a client is told.
#[derive(Clone, Debug)]
pub enum ClientInput {
    /// The connection asked for is open.
    Opened(NodeId, ConnNo),
    /// The connection ended, or could not be opened.
    Closed(NodeId, ConnNo),
    /// A message came.
    Receive(NodeId, ConnNo, Message),
    /// The time of [`crate::Machine::next_wake`] has come, or may have.
    Wake,
    /// Take a lock.
    Acquire(Key, Acquire),
    /// Take several locks, all or none.
    AcquireAll(Key, Vec<Acquire>),
    /// Take the first of several locks that is granted, never two. One is tried first; only if
    /// somebody is in the way are all asked for. The earliest deadline counts.
    AcquireAny(Key, Vec<Acquire>),
    /// Stop waiting. It ends with [`Ended::Cancelled`], or it entered just before.
    Cancel(Key),
    /// Leave a lock, or all locks taken together.
    Release(Key),
    /// Watch locks, until [`ClientInput::Cancel`].
    Watch(Key, Watch),
    /// Change what a held lock shows to others.
    Note(Key, Arc<[u8]>),
    /// Renew a handle, in the name of this principal.
    Keep(Key, Box<Handle>, Arc<str>),
    /// Release a handle. It ends with [`Ended::Released`] once enough nodes have said that the
    /// lock is free, and with [`Ended::TimedOut`] if they do not: asking again does no harm.
    Finish(Key, Box<Handle>),
    /// As [`ClientInput::Finish`], but nobody waits for the nodes, and of a session that its caller
    /// named it ends only this request: the caller may hold another one, and this handle never
    /// reached it.
    Abandon(Key, Box<Handle>),
}

/// A wish for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The lock.
    pub name: Name,
    /// With whom it may be shared.
    pub mode: Mode,
    /// How long the hold outlives contact with the nodes.
    pub ttl: Duration,
    /// When to stop waiting.
    pub deadline: Option<Instant>,
    /// Enter only if nobody is in the way: the first answer that says *wait* ends it.
    pub attempt: bool,
    /// For a thin client: the session to detach the hold to, and whether the caller named it.
    pub detach: Option<(SessionId, bool)>,
    /// What others may read about the holder.
    pub note: Option<Arc<[u8]>>,
    /// Who owns a detached session, if not this client; attached sessions are the client's own.
    pub owner: Option<Arc<str>>,
    /// In whose name a gateway asks.
    pub principal: Arc<str>,
}

impl Acquire {
    /// A wish without time limit or note.
    pub fn new(name: Name, mode: Mode, ttl: Duration) -> Self {
        Self {
            name,
            mode,
            ttl,
            deadline: None,
            attempt: false,
            detach: None,
            note: None,
            owner: None,
            principal: Arc::default(),
        }
    }
}

/// What a client tells its driver and caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The driver opens a connection to this node and answers with [`ClientInput::Opened`] or
    /// [`ClientInput::Closed`].
    Connect(NodeId, ConnNo),
    /// The driver closes this connection; no answer is needed.
    Disconnect(NodeId, ConnNo),
    /// The lock is held.
    Entered {
        /// Whose.
        key: Key,
        /// Which lock; one event per lock of a set.
        name: Name,
        /// The token in use.
        token: Token,
        /// The grants it rests on.
        members: Vec<(NodeId, GrantNo)>,
        /// What a fence compares.
        group: Group,
        /// Until when it is held if no node is heard from again. Later words of the nodes only
        /// put the end off, unless the hold moves or is told to be lost.
        until: Instant,
    },
    /// All locks of a set are held.
    EnteredAll(Key),
    /// A held lock now has a larger token, or rests on other nodes.
    Moved {
        /// Whose.
        key: Key,
        /// Which lock.
        name: Name,
        /// The token in use.
        token: Token,
        /// The grants it rests on.
        members: Vec<(NodeId, GrantNo)>,
    },
    /// The place in the queue, worst over the nodes asked.
    Position(Key, u32),
    /// A held lock is lost: stop using it at once.
    Lost(Key, Name),
    /// It is over without a loss.
    Ended(Key, Ended),
    /// A watched lock looks like this now. States may be skipped; none is older than one told
    /// before.
    Seen(Key, Box<LockState>),
    /// All that a watch knows was told; the flag says whether it is partial: too few nodes are
    /// heard to know of every holder.
    Synced(Key, bool),
    /// A detached lock is held, renewed or moved; this is its handle from now on. It is valid
    /// until the given time.
    Handle(Key, Box<Handle>, Instant),
}

/// How an acquisition or an operation on a handle ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was released.
    Released,
    /// It was cancelled before it entered.
    Cancelled,
    /// Its time was up before it entered, was renewed or was released.
    TimedOut,
    /// An attempt found somebody in the way.
    Busy,
    /// A node or this client refused it.
    Refused(Refusal),
    /// The handle is no longer held.
    NotHeld,
}

/// The effects of a client.
pub type ClientEffects = Effects<NodeId, Message, std::convert::Infallible, ClientEvent>;

/// A request as a node sees it, for people and checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// What was asked.
    pub ask: Arc<Ask>,
    /// The grant, zero while it waits.
    pub grant: GrantNo,
    /// The largest token registered for the grant.
    pub limit: Token,
    /// Whether the grant was asked back.
    pub inquired: bool,
    /// Whether the requester said it was inside when it asked.
    pub inside: bool,
    /// The token it entered with, if it said so.
    pub entered: Option<Token>,
}

/// A lock as a node sees it, for people and checkers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockView {
    /// All requests, best first.
    pub entries: Vec<EntryView>,
    /// Whether the best request belongs to the group inside.
    pub has_priority: bool,
    /// How often late members have passed since this group took over.
    pub bypassed: u32,
}

/// A node as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Which node.
    pub node: NodeId,
    /// The smoothed round trip, while there is a connection.
    pub round_trip: Option<Duration>,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether it is suspected, about to stop, pausing or refused this client.
    pub avoided: bool,
    /// Whether it is far slower than all others.
    pub slow: bool,
    /// Its token clock, if it keeps refusing tokens that other nodes know.
    pub refuses_tokens: Option<Wall>,
}

/// A session as a node sees it, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Who owns it, for people.
    pub owner: Arc<str>,
    /// In whose name it asks; empty if nobody has to say.
    pub principal: Arc<str>,
    /// Whether an operator revoked it: it is not renewed any more.
    pub revoked: bool,
    /// Its TTL.
    pub ttl: Duration,
    /// Whether it is renewed by handles.
    pub detached: bool,
    /// How many requests it has here.
    pub requests: usize,
    /// How long ago it was renewed.
    pub age: Duration,
}

/// Why a request waits at a node. The request named is one that stands in its way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A request that excludes it is granted.
    Held(SessionId, RequestNo),
    /// A request that excludes it is granted and was asked to give its grant back; it has not said
    /// that it is inside.
    AskedBack(SessionId, RequestNo),
    /// Its own group is granted, but a better request of another group waits: nobody joins before
    /// that one had its turn.
    DoorClosed(SessionId, RequestNo),
    /// Its own group is granted, and as many late members have passed a waiting request of another
    /// group as may.
    BypassLimit(u32),
    /// Its own group is granted to as many as may be inside at this node.
    MaxInside(u32),
    /// Nobody is granted: it is its turn, or the node grants nothing for now.
    Turn,
}

/// A request at a node with what people ask about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestNo,
    /// Why it waits; none if it is granted.
    pub why: Option<Why>,
    /// How long it has had its grant, as far as this life of the node knows.
    pub granted: Option<Duration>,
    /// When its session ends if it is not renewed.
    pub expires: Option<Duration>,
}

/// What a request's maker wants people to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Who owns its session.
    pub owner: Arc<str>,
    /// In whose name it asks; empty if nobody has to say.
    pub principal: Arc<str>,
    /// The holder's note.
    pub note: Option<Arc<[u8]>>,
}
