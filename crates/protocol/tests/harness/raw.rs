//! One node, spoken to by hand.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, LinkId, Name, NodeId, RequestNo, SessionId, Token,
};
use conclave_protocol::lock::{
    Ask, Bond, Config, ConfigId, GrantRef, LockNode, Message, Mode, NodeEffects, NodeEvent,
    NodeInput, Priority, Refusal, SessionInfo, Start, To,
};
use conclave_protocol::{Instant, Machine, Now, Wall};

use super::EPOCH;

/// A node whose disk is instant. What it says is collected.
pub(crate) struct Raw {
    pub(crate) node: LockNode,
    pub(crate) now: Now,
    written: u64,
    pub(crate) said: Vec<(LinkId, Message)>,
    /// What it said to other nodes, but for clocks.
    pub(crate) between: Vec<(NodeId, Message)>,
    pub(crate) closed: Vec<LinkId>,
    /// All other events, in order.
    pub(crate) events: Vec<NodeEvent>,
}

impl Raw {
    pub(crate) fn new(config: Config) -> Self {
        let now = Now {
            mono: Instant::from_nanos(1_000_000_000),
            wall: Wall(EPOCH),
        };
        let mut out = NodeEffects::new();
        let id = NodeId(0);
        let node = LockNode::start(Arc::new(config), id, 7, Start::Init, now, &mut out);
        let mut raw = Self {
            node,
            now,
            written: 0,
            said: Vec::new(),
            between: Vec::new(),
            closed: Vec::new(),
            events: Vec::new(),
        };
        raw.effects(out);
        raw
    }

    pub(crate) fn input(&mut self, input: NodeInput) {
        let mut out = NodeEffects::new();
        self.node.handle(self.now, input, &mut out);
        self.effects(out);
    }

    fn effects(&mut self, out: NodeEffects) {
        let wrote = !out.persist.is_empty();
        self.written += out.persist.len() as u64;
        for envelope in out.send_now.into_iter().chain(out.send_durable) {
            match (envelope.to, envelope.message) {
                (To::Node(_), Message::TokenClock { .. }) => {}
                (To::Node(node), message) => self.between.push((node, message)),
                (To::Link(link), message) => self.said.push((link, message)),
            }
        }
        for event in out.events {
            match event {
                NodeEvent::Close(link) => self.closed.push(link),
                other => self.events.push(other),
            }
        }
        if wrote {
            self.input(NodeInput::Durable(self.written));
        }
    }

    /// Says something on a connection and gives back what was answered on it.
    pub(crate) fn say(&mut self, link: u64, message: Message) -> Vec<Message> {
        self.said.clear();
        self.input(NodeInput::Receive(LinkId(link), message));
        let said = std::mem::take(&mut self.said);
        let here = said.into_iter().filter(|(to, _)| to.0 == link);
        here.map(|(_, message)| message).collect()
    }

    /// Connects a client on a connection of the same number.
    pub(crate) fn hello(&mut self, link: u64, client: u128, conn: u64) -> Vec<Message> {
        let hello = Message::Hello {
            client: ClientId(client),
            conn: ConnNo(conn),
            config: ConfigId::default(),
        };
        self.say(link, hello)
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now.mono = self.now.mono + span;
        self.now.wall = self.now.wall.plus(span);
        self.input(NodeInput::Wake);
    }

    /// Asks for a lock and gives the grant back, if it was granted at once.
    pub(crate) fn grant(&mut self, link: u64, ask: &Arc<Ask>) -> Option<(GrantRef, Token, Token)> {
        let answers = self.say(link, request(ask));
        answers.into_iter().find_map(|answer| match answer {
            Message::Locked {
                grant,
                floor,
                limit,
                ..
            } => Some((grant, floor, limit)),
            _ => None,
        })
    }
}

/// A session as its client announces it.
pub(crate) fn open(session: u128, ttl: Duration, detached: bool) -> Message {
    Message::Open(SessionInfo {
        session: SessionId(session),
        ttl,
        detached,
        owner: "test".into(),
        principal: Arc::default(),
    })
}

/// An exclusive request made at the start of the test.
pub(crate) fn ask(name: impl AsRef<[u8]>, session: u128, request: u64) -> Arc<Ask> {
    Arc::new(Ask {
        name: Name::new(name),
        mode: Mode::Exclusive,
        session: SessionId(session),
        request: RequestNo(request),
        priority: Priority {
            t: EPOCH,
            client: ClientId(1),
            request: RequestNo(request),
        },
        bond: Bond::Attached,
    })
}

pub(crate) fn request(ask: &Arc<Ask>) -> Message {
    Message::Request {
        ask: ask.clone(),
        hint: Token(0),
        inside: None,
    }
}

pub(crate) fn done(ask: &Ask, token: Option<u64>) -> Message {
    Message::Done {
        session: ask.session,
        request: ask.request,
        token: token.map(Token),
    }
}

/// A reference to a grant that a request never had.
pub(crate) fn no_grant(ask: &Ask) -> GrantRef {
    GrantRef {
        session: ask.session,
        request: ask.request,
        grant: GrantNo(1),
    }
}

/// Why the node refused, if it did.
pub(crate) fn refused(answers: &[Message]) -> Option<Refusal> {
    answers.iter().find_map(|answer| match answer {
        Message::Denied { why, .. } | Message::Refused(why) => Some(*why),
        _ => None,
    })
}
