//! What requesters and arbiters say to each other.
//!
//! | paper | here |
//! |---|---|
//! | REQUEST | [`Message::Request`] |
//! | LOCKED | [`Message::Locked`] |
//! | INQUIRE | [`Message::Inquire`] |
//! | UNLOCK(false), RELINQUISH | [`Message::Yield`] |
//! | UNLOCK(true), RELEASE | [`Message::Done`] |
//!
//! The other kinds keep sessions, tokens and connections.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::mode::Ask;
use super::watch::{Sight, Watch};
use crate::id::{
    ClientId, ConnNo, GrantNo, Incarnation, NodeId, RequestNo, SessionId, Token, WatchNo,
};
use crate::time::Wall;

/// The configuration that both ends of a connection must share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigId {
    /// Its number.
    pub epoch: u64,
    /// The digest of what it says.
    pub digest: [u8; 16],
}

/// One message. Within a connection messages arrive in order or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    // From a client to a node.
    /// The first message of a connection.
    Hello {
        /// Who connects.
        client: ClientId,
        /// The number of this connection.
        conn: ConnNo,
        /// The configuration the client works with.
        config: ConfigId,
    },
    /// What the client believes to have at this node; see [`Resume`].
    Resume(Box<Resume>),
    /// Announces a session; saying it again does no harm.
    Open(SessionInfo),
    /// Asks for a lock.
    Request {
        /// What is asked.
        ask: Arc<Ask>,
        /// The largest floor the requester has seen: the node reserves above it.
        hint: Token,
        /// If the requester is inside already and migrates here: the nodes that it rests on.
        inside: Option<Vec<NodeId>>,
    },
    /// Gives a grant back; the request waits on.
    Yield(GrantRef),
    /// Ends a request, waiting or granted.
    Done {
        /// Its session.
        session: SessionId,
        /// The request.
        request: RequestNo,
        /// The token it may have used, if it was inside.
        token: Option<Token>,
    },
    /// Asks to register a larger token for a grant.
    Raise {
        /// The grant.
        grant: GrantRef,
        /// The token to be used.
        token: Token,
    },
    /// Says that the requester is inside, and with which token.
    Entered(Box<Entered>),
    /// Renews the connection and its attached sessions.
    Heartbeat {
        /// Its number on this connection.
        beat: u64,
        /// Entries whose token the node has not acknowledged.
        entered: Vec<Entered>,
    },
    /// Renews a detached session by its handle.
    Keepalive {
        /// The grant that the handle names.
        grant: GrantRef,
        /// The handle's token.
        token: Token,
    },
    /// Ends all requests of a detached session at this node, by its handle.
    Finish {
        /// The session.
        session: SessionId,
        /// The request that the handle names.
        request: RequestNo,
        /// The handle's token.
        token: Option<Token>,
    },

    /// Asks to be told about locks, now and on every change, while the connection lasts.
    Watch {
        /// The watch's number.
        watch: WatchNo,
        /// What is watched.
        what: Watch,
    },
    /// Ends a watch.
    Unwatch {
        /// Which.
        watch: WatchNo,
    },

    // From a node to a client.
    /// Answers a hello.
    Welcome {
        /// Which node this is.
        node: NodeId,
        /// Its present life.
        incarnation: Incarnation,
        /// Its wall clock.
        clock: Wall,
    },
    /// Refuses the connection; the node closes it.
    Refused(Refusal),
    /// Grants a request.
    Locked {
        /// The grant.
        grant: GrantRef,
        /// Tokens of other groups up to this one may have been used.
        floor: Token,
        /// Tokens up to this one are registered for this grant.
        limit: Token,
        /// The node's present life.
        incarnation: Incarnation,
        /// Its wall clock.
        clock: Wall,
    },
    /// The request waits.
    Queued {
        /// Its session.
        session: SessionId,
        /// The request.
        request: RequestNo,
        /// How many requests are before it at this node.
        position: u32,
    },
    /// The node takes no requests for now; the request is not kept.
    NotNow {
        /// Its session.
        session: SessionId,
        /// The request.
        request: RequestNo,
        /// Why.
        why: NotNow,
        /// When asking again may help.
        retry: Duration,
    },
    /// Asks for a grant back, unless the requester is inside.
    Inquire(GrantRef),
    /// The token is registered.
    Raised {
        /// The grant.
        grant: GrantRef,
        /// The token.
        token: Token,
    },
    /// An [`Message::Entered`] was applied.
    Noted(GrantRef),
    /// Answers a heartbeat.
    Beat {
        /// The heartbeat's number.
        beat: u64,
        /// The node's wall clock.
        clock: Wall,
        /// The entries of the heartbeat that were applied.
        noted: Vec<GrantRef>,
    },
    /// A detached session was renewed.
    Kept(GrantRef),
    /// The node has no such session, or no such request in it.
    Dead {
        /// The session.
        session: SessionId,
        /// The request; none if the whole session is gone.
        request: Option<RequestNo>,
    },
    /// The request was refused and is not kept.
    Denied {
        /// Its session.
        session: SessionId,
        /// The request; none if the session itself was refused.
        request: Option<RequestNo>,
        /// Why.
        why: Refusal,
    },
    /// The node is about to stop: holders move elsewhere.
    Draining,
    /// An operator ended a session: nothing of it is renewed at this node any more, and all its
    /// requests here are lost or refused.
    Revoked(SessionId),
    /// What a watch sees.
    Seen {
        /// Which watch.
        watch: WatchNo,
        /// What it sees.
        sight: Box<Sight>,
    },
    /// Somebody watches the lock of this grant: whoever enters on it says so at once.
    Watched(GrantRef),

    // Between nodes.
    /// A node that lost its disk asks what others know.
    Recover {
        /// Who asks.
        node: NodeId,
        /// Its guess of its present life.
        incarnation: Incarnation,
    },
    /// What a node knows about tokens and about the asking node.
    Recovered(Recovered),
    /// A node started again; others remember the number of its life.
    Alive {
        /// Which node.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A node tells its token clock, every second, when it jumps, and when it is asked.
    TokenClock {
        /// What its clock shows.
        clock: Wall,
        /// Whether it wants to hear the clock of whoever hears this.
        asks: bool,
    },
    /// Asks another node whether it has granted this request, whose requester claims to be inside.
    ConfirmGrant(Arc<Ask>),
    /// Answers [`Message::ConfirmGrant`].
    GrantConfirmed {
        /// The session.
        session: SessionId,
        /// The request.
        request: RequestNo,
        /// Whether it is granted here; none if the node started again and cannot say.
        granted: Option<bool>,
    },
    /// A request on its way through its quorum, node by node (the serial protocol).
    Travel(Box<Travel>),
    /// All members of the quorum have granted (the serial protocol).
    Carried {
        /// The session.
        session: SessionId,
        /// The request.
        request: RequestNo,
        /// What each member granted, in the order of the route.
        grants: Vec<Carried>,
    },
}

/// Names every kind of message once; counters find it by its place in this list.
macro_rules! kinds {
    ($($variant:ident $kind:literal,)*) => {
        enum Kind { $($variant,)* }

        impl Message {
            /// One word for each kind, in the order of [`Message::kind_number`].
            pub const KINDS: &'static [&'static str] = &[$($kind,)*];

            /// The place of its kind in [`Message::KINDS`], for counters.
            #[inline]
            pub fn kind_number(&self) -> usize {
                match self { $(Self::$variant { .. } => Kind::$variant as usize,)* }
            }

            /// One word for the kind, as in traces and message counts.
            pub fn kind(&self) -> &'static str {
                Self::KINDS[self.kind_number()]
            }
        }
    };
}

kinds! {
    Hello "HELLO",
    Resume "RESUME",
    Open "OPEN",
    Request "REQUEST",
    Yield "YIELD",
    Done "DONE",
    Raise "RAISE",
    Entered "ENTERED",
    Heartbeat "HEARTBEAT",
    Keepalive "KEEPALIVE",
    Finish "FINISH",
    Welcome "WELCOME",
    Refused "REFUSED",
    Locked "LOCKED",
    Queued "QUEUED",
    NotNow "NOT_NOW",
    Inquire "INQUIRE",
    Raised "RAISED",
    Noted "NOTED",
    Beat "BEAT",
    Kept "KEPT",
    Dead "DEAD",
    Denied "DENIED",
    Draining "DRAINING",
    Revoked "REVOKED",
    Recover "RECOVER",
    Recovered "RECOVERED",
    Alive "ALIVE",
    Travel "TRAVEL",
    Carried "CARRIED",
    Watch "WATCH",
    Unwatch "UNWATCH",
    Seen "SEEN",
    Watched "WATCHED",
    TokenClock "TOKEN_CLOCK",
    ConfirmGrant "CONFIRM_GRANT",
    GrantConfirmed "GRANT_CONFIRMED",
}

/// One grant of one node to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef {
    /// The session it was given to.
    pub session: SessionId,
    /// The request it was given to.
    pub request: RequestNo,
    /// Its number.
    pub grant: GrantNo,
}

/// A session as its client announces it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// How long it lives without being renewed.
    pub ttl: Duration,
    /// Whether it is renewed by handles instead of the connection's heartbeats.
    pub detached: bool,
    /// Who owns it, for people.
    pub owner: Arc<str>,
    /// In whose name it asks. Only a gateway is believed; of others the node knows it already.
    pub principal: Arc<str>,
}

/// A holder's notice that it is inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entered {
    /// The grant it uses.
    pub grant: GrantRef,
    /// The token it uses.
    pub token: Token,
    /// What it wants others to read.
    pub note: Option<Arc<[u8]>>,
    /// How often it has changed its note.
    pub edition: u32,
}

/// What a client believes to have at a node, on a new connection. It may span several messages
/// and is applied when the last one is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resume {
    /// The client's attached sessions.
    pub sessions: Vec<SessionInfo>,
    /// Its requests that go on.
    pub live: Vec<Claim>,
    /// Its requests that ended, as far as the node may not know.
    pub done: Vec<Finished>,
    /// Whether this is the last part.
    pub last: bool,
}

/// A request that goes on over a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// What was asked.
    pub ask: Arc<Ask>,
    /// The largest floor seen.
    pub hint: Token,
    /// The last grant of this node that was seen.
    pub seen: GrantNo,
    /// Whether that grant is still held.
    pub holding: bool,
    /// The token in use, if the requester is inside.
    pub inside: Option<Token>,
    /// The token of a raise that this node has not answered.
    pub raising: Option<Token>,
    /// Whether the grant is still fresh by the requester's own count: only then may it be
    /// reclaimed from a node that restarted.
    pub fresh: bool,
    /// The nodes that a requester which is inside rests on, if it asks to migrate to this one.
    pub members: Vec<NodeId>,
}

/// A request that ended while the node may not have heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Finished {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestNo,
    /// The token it may have used.
    pub token: Option<Token>,
}

/// What a node answers to another that lost its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recovered {
    /// Who answers.
    pub node: NodeId,
    /// Whether the answering node is itself pausing or recovering: then its answer counts for
    /// nothing.
    pub recovering: bool,
    /// Whether it has ever granted anything.
    pub served: bool,
    /// The largest token that may have been used in any of its locks.
    pub floor: Token,
    /// The largest token registered for any of its outstanding grants.
    pub limit: Token,
    /// The last life of the asking node that it has seen.
    pub incarnation: Incarnation,
    /// Its token clock.
    pub clock: Wall,
}

/// A request on its way through a quorum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Travel {
    /// What is asked.
    pub ask: Arc<Ask>,
    /// The largest floor the requester has seen.
    pub hint: Token,
    /// The quorum, in the one order of all nodes.
    pub route: Arc<[NodeId]>,
    /// What the members passed so far have granted.
    pub grants: Vec<Carried>,
}

/// A grant carried along with a travelling request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Carried {
    /// Who granted.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The grant.
    pub grant: GrantNo,
    /// As in [`Message::Locked`].
    pub floor: Token,
    /// As in [`Message::Locked`].
    pub limit: Token,
}

/// Why a node takes no requests for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotNow {
    /// It restarted and waits until every older promise has ended.
    Pausing,
    /// It is about to stop.
    Draining,
}

/// Why a request, a session or a connection was refused, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The lock has as many waiting requests as a node keeps.
    #[error("the lock's queue is full; try again later")]
    QueueFull,
    /// The client has as many sessions as a node keeps for one.
    #[error("too many sessions; close some first")]
    SessionLimit,
    /// The client has as many requests as a node keeps for one.
    #[error("too many requests of one client; finish some first")]
    RequestLimit,
    /// The node keeps as many locks as it may.
    #[error("the node keeps too many locks; try again later")]
    LockLimit,
    /// The node keeps as many connections as it may.
    #[error("the node has too many clients; try again later")]
    ClientLimit,
    /// Client and node work with different configurations.
    #[error("stale configuration: the node is at epoch {}; fetch it again", node.epoch)]
    StaleConfig {
        /// What the node works with.
        node: ConfigId,
    },
    /// The connection is older than another one of the same client.
    #[error("a newer connection of this client exists")]
    OldConnection,
    /// The priority lies too far in the future.
    #[error("the request's clock is ahead of the node's ({}); make a new request", clock.0)]
    PriorityAhead {
        /// The node's clock.
        clock: Wall,
    },
    /// The token lies too far in the future.
    #[error("the token is too far ahead of the node's token clock ({}); try again", clock.0)]
    TokenAhead {
        /// The node's token clock.
        clock: Wall,
    },
    /// The token exceeds what was registered.
    #[error("the token exceeds the limit registered for its grant")]
    TokenAboveLimit,
    /// The session asks for a longer life than the cluster allows.
    #[error("the session's TTL is too long; at most {max:?}")]
    TtlTooLong {
        /// The longest allowed.
        max: Duration,
    },
    /// The session asks for a shorter life than heartbeats can keep.
    #[error("the session's TTL is too short; at least {min:?}")]
    TtlTooShort {
        /// The shortest allowed.
        min: Duration,
    },
    /// A name, group, label or note is longer than allowed, or empty.
    #[error("a name, group, label or note has a size that is not allowed")]
    Size,
    /// The request's session was released by its handle.
    #[error("the session was released by its handle")]
    Finished,
    /// A lock of the serial protocol was asked for a handle.
    #[error("locks of the serial protocol have no handles; use a connected client")]
    NoHandles,
    /// The caller may not do this with a lock of this name, or speaks of another's session.
    #[error("not permitted: the caller may not do this with a lock of this name")]
    NotPermitted,
    /// An operator revoked the session.
    #[error("an operator revoked the session; begin anew if you still may")]
    Revoked,
    /// The client or the node has as many watches as the node keeps.
    #[error("too many watches; end some first")]
    WatchLimit,
    /// The message does not fit the protocol of this lock or the state of the connection.
    #[error("the message does not fit here")]
    Unfit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own_at_its_number() {
        let node = NodeId(0);
        let incarnation = Incarnation(1);
        let session = SessionId(1);
        let some: [(Message, &str); 4] = [
            (Message::Draining, "DRAINING"),
            (Message::Recover { node, incarnation }, "RECOVER"),
            (Message::Alive { node, incarnation }, "ALIVE"),
            (
                Message::Dead {
                    session,
                    request: None,
                },
                "DEAD",
            ),
        ];
        for (message, kind) in some {
            assert_eq!(message.kind(), kind);
        }
        let mut names = Message::KINDS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Message::KINDS.len());
    }
}
