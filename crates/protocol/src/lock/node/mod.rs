//! The node's machine: the arbiters of all its locks, with sessions, connections and what must
//! survive a restart.
//!
//! Getters: [`LockNode::id`], [`LockNode::incarnation`], [`LockNode::is_serving`],
//! [`LockNode::view`], [`LockNode::kept`], and those of `look.rs`. Inputs: [`LockNode::start`] and
//! [`Machine::handle`]. Outputs: [`NodeEffects`].
//!
//! What it guarantees, whatever its clients, its disk's delay and its own crashes do:
//!
//! - A grant ends only by YIELD, DONE, RESUME, expiry or an operator's word, never because a
//!   connection broke.
//! - Whoever is granted a lock is told a floor that covers every token that an earlier conflicting
//!   grant of this node may have used.
//! - No limit above the ceiling on disk leaves the node.
//! - No limit, floor or named token is further ahead of the token clock than the configuration
//!   allows, whatever clients say.

mod access;
mod canon;
mod disk;
mod ends;
mod gate;
mod locks;
mod look;
mod migration;
mod quota;
mod resume;
mod serial;
mod sessions;
mod start;
mod token_clock;
mod tokens;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::api::{LockView, NodeEffects, NodeEvent, NodeInput, To};
use super::arbiter::{Arbiter, Step};
use super::config::{Config, Policy};
use super::message::{Message, Resume};
use super::record::Record;
use crate::id::{
    ClientId, ConnNo, GrantNo, Incarnation, LinkId, Name, NodeId, RequestNo, SessionId, Token,
};
use crate::machine::Machine;
use crate::table::{Slab, Table};
use crate::time::{Instant, Now, Wake};

pub use start::Start;

/// The arbiters of all locks at one node, with their sessions and connections.
#[derive(Clone, Debug)]
pub struct LockNode {
    config: Arc<Config>,
    id: NodeId,
    incarnation: Incarnation,
    state: State,
    /// The time of the present step.
    now: Now,

    links: Table<LinkId, u32>,
    clients: Table<ClientId, u32>,
    peers: Slab<Peer>,
    by_session: Table<SessionId, u32>,
    sessions: Slab<Session>,
    by_name: Table<Name, u32>,
    locks: Slab<Lock>,
    /// Locks without a request, oldest first, with the stamp they became idle at.
    idle: VecDeque<(u32, u64)>,
    idle_stamp: u64,
    /// Ended requests that are detached or travel, so that a late message cannot bring them back.
    tombs: BTreeMap<(SessionId, RequestNo), Instant>,
    tombs_by_age: VecDeque<(Instant, SessionId, RequestNo)>,
    /// Who may do what.
    access: Arc<Access>,
    /// Who is at the other end of connections that have said nothing yet.
    arrivals: Table<LinkId, quota::Origin>,
    /// Who makes it keep how much.
    accounts: quota::Accounts,
    /// Sessions that an operator revoked: until when that is remembered, and who said so.
    revoked: BTreeMap<SessionId, (Instant, Arc<str>)>,
    revoked_by_age: VecDeque<(Instant, SessionId)>,
    /// How many sessions that are kept are revoked.
    revoked_here: usize,

    /// What bounds all tokens.
    tokens: token_clock::TokenClock,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    last_grant: GrantNo,
    /// Tokens up to this one may have been used in every lock that is not kept.
    default_floor: Token,
    /// Whether it ever granted anything, in any life.
    served: bool,
    /// The last life of other nodes that was heard of.
    lives: BTreeMap<NodeId, Incarnation>,
    disk: disk::Disk,
    steps: Vec<Step>,
    /// Locks to be scheduled when the present step has seen everything it brings.
    deferred: Option<Vec<u32>>,
    watchers: watch::Watchers,
    /// Claims to be inside that other nodes are asked about.
    checks: BTreeMap<(SessionId, RequestNo), migration::InsideCheck>,
    gates: gate::Gates,
}

/// Whether a node grants.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Its first records are not on disk yet.
    Starting {
        then: Box<State>,
        records: u64,
    },
    /// It restarted after a crash; holders may reclaim, nobody is granted anything until then.
    Pausing {
        until: Instant,
    },
    /// It lost its disk.
    Recovering(start::Recovery),
    Serving,
    Draining,
    Stopped,
}

/// A client: its connection and what it made the node keep.
#[derive(Clone, Debug)]
struct Peer {
    id: ClientId,
    conn: ConnNo,
    link: Option<LinkId>,
    /// Who is at the other end; none if nobody said so, and everything is believed.
    origin: Option<quota::Origin>,
    /// When the connection's last heartbeat came (the handshake is the first).
    heard: Instant,
    /// When its attached sessions and its grants were last renewed.
    renewed: Instant,
    /// Whether the client has said on this connection what it has.
    resumed: bool,
    partial: Option<Box<Resume>>,
    /// Attached sessions.
    sessions: BTreeSet<u32>,
    /// Detached sessions that it opened and that have no request yet: they end with its
    /// connection.
    loose: BTreeSet<u32>,
    /// Detached requests that its connection carries.
    carried: BTreeSet<(u32, RequestNo)>,
    /// Messages to it wait until this many records are on disk.
    hold: u64,
    timer: Option<Instant>,
    /// Who pays for what it watches.
    pays: Option<u32>,
    /// What it watches.
    lookout: Option<Box<watch::Lookout>>,
}

#[derive(Clone, Debug)]
struct Session {
    id: SessionId,
    ttl: Duration,
    detached: bool,
    owner: Arc<str>,
    /// In whose name it asks.
    principal: Arc<str>,
    /// Who pays for it and for its requests.
    account: u32,
    /// If an operator revoked it: when it ends, whatever is heard.
    revoked: Option<Instant>,
    /// The client it is attached to; of a detached session, whoever opened it.
    peer: u32,
    /// When it was opened, or last renewed by a handle.
    renewed: Instant,
    /// Whether a detached session has entered: from then on its TTL counts.
    entered: bool,
    /// Its requests, and their locks.
    requests: BTreeMap<RequestNo, u32>,
    /// The largest request it ended (only a planted bug uses it).
    finished: RequestNo,
    timer: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Lock {
    name: Name,
    policy: Policy,
    arbiter: Arbiter,
    /// Set while the lock is idle.
    idle: u64,
    /// What was asked of the clusters, at the front of a hierarchy.
    gate: Option<Box<gate::Gate>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Node,
    /// The others are told the token clock.
    Clock,
    Peer(ClientId),
    Session(SessionId),
    Watch(ClientId),
    /// Those who wait for consent to this lock are told that it takes long.
    Gate(u32),
    /// A grant that is renewed no more ends.
    Doom(SessionId, RequestNo),
    /// Nodes that were asked about a claim to be inside have had their time.
    InsideCheck(SessionId, RequestNo),
}

impl LockNode {
    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its present life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether it grants: it is neither starting, pausing, recovering, draining nor stopped.
    pub fn is_serving(&self) -> bool {
        self.state == State::Serving
    }

    /// A lock as this node sees it, if it keeps anything about it.
    pub fn view(&self, name: &Name) -> Option<LockView> {
        let lock = self.locks.get(*self.by_name.get(name)?)?;
        Some(lock.arbiter.view())
    }

    /// How many locks with a request, sessions, clients and tombstones it keeps.
    pub fn kept(&self) -> [usize; 4] {
        // Of the notes about idle locks some are stale; they are few, the locks may be millions.
        let is_idle = |(lock, stamp): &&(u32, u64)| {
            self.locks
                .get(*lock)
                .is_some_and(|kept| kept.idle == *stamp)
        };
        let idle = self.idle.iter().filter(is_idle).count();
        [
            self.locks.len() - idle,
            self.sessions.len(),
            self.peers.len(),
            self.tombs.len(),
        ]
    }

    /// Sends to a client, behind what waits for the disk. A client that is gone gets nothing.
    fn send(&mut self, peer: u32, message: Message, out: &mut NodeEffects) {
        let Some(peer) = self.peers.get_mut(peer) else {
            return;
        };
        let Some(link) = peer.link else { return };
        let to = To::Link(link);
        if self.disk.must_wait(peer.hold) {
            // Later messages of this link line up behind this one, see the driver's contract.
            peer.hold = self.disk.written();
            out.send_durable.push(crate::Envelope { to, message });
        } else {
            out.send(to, message);
        }
    }

    fn event(&self, event: NodeEvent, out: &mut NodeEffects) {
        if self.config.observe {
            out.events.push(event);
        }
    }

    fn persist(&mut self, record: Record, out: &mut NodeEffects) {
        self.disk.write(&record);
        out.persist.push(record);
    }

    fn arm(&mut self, at: Instant, timer: Timer) {
        self.timers.push(Reverse((at, timer)));
    }

    /// From now on nothing is granted, until [`Self::schedule_deferred`]: what ends makes room
    /// only when all that ends or comes back in this step has its place.
    fn defer(&mut self) {
        self.deferred = Some(Vec::new());
    }

    fn schedule_deferred(&mut self, out: &mut NodeEffects) {
        let mut locks = self.deferred.take().unwrap_or_default();
        locks.sort_unstable();
        locks.dedup();
        for lock in locks {
            self.schedule(lock, true, out);
        }
    }

    fn wake(&mut self, out: &mut NodeEffects) {
        self.defer();
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > self.now.mono {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Node => self.node_timer(out),
                Timer::Clock => self.clock_timer(out),
                Timer::Peer(client) => self.peer_timer(client, out),
                Timer::Session(session) => self.session_timer(session, out),
                Timer::Watch(client) => self.watch_timer(client),
                Timer::Gate(lock) => self.gate_timer(lock, out),
                Timer::Doom(session, request) => self.doom_timer(session, request, out),
                Timer::InsideCheck(session, request) => self.check_timer(session, request, out),
            }
        }
        self.schedule_deferred(out);
        self.bury();
        self.forgive(out);
    }

    /// Forgets tombstones whose time is over.
    fn bury(&mut self) {
        while let Some((until, session, request)) = self.tombs_by_age.front().copied() {
            if until > self.now.mono && self.tombs_by_age.len() <= self.config.limits.tombstones {
                break;
            }
            self.tombs_by_age.pop_front();
            if self.tombs.get(&(session, request)) == Some(&until) {
                self.tombs.remove(&(session, request));
            }
        }
    }

    fn receive(&mut self, link: LinkId, message: Message, out: &mut NodeEffects) {
        if let Message::Hello {
            client,
            conn,
            config,
        } = message
        {
            self.hello(link, client, conn, config, out);
            return;
        }
        let Some(peer) = self.links.get(&link).copied() else {
            // Late bytes of a connection that was replaced or closed.
            return;
        };
        let gated = self.config.gate.is_some();
        match message {
            Message::Resume(part) => self.resume_part(peer, *part, out),
            Message::Heartbeat { beat, entered } => self.heartbeat(peer, beat, entered, out),
            _ if !self.peers.get(peer).is_some_and(|peer| peer.resumed) => {}
            _ if self.refuses(peer, &message, out) => {}
            Message::Raise { grant, .. } | Message::Keepalive { grant, .. }
                if gated && self.cuts_off(peer, grant, out) => {}
            Message::Entered(entered) if gated && self.cuts_off(peer, entered.grant, out) => {}
            Message::Open(info) => self.open(peer, &info, out),
            Message::Request { ask, hint, inside } => self.request(peer, ask, hint, inside, out),
            Message::Travel(travel) => self.travel_begins(peer, *travel, out),
            Message::Yield(grant) => self.yielded(peer, grant, out),
            Message::Done {
                session,
                request,
                token,
            } => self.done(peer, session, request, token, out),
            Message::Raise { grant, token } => self.raise(peer, grant, token, out),
            Message::Entered(entered) => {
                let grant = entered.grant;
                if self.entered(peer, *entered, out) {
                    self.send(peer, Message::Noted(grant), out);
                }
            }
            Message::Keepalive { grant, token } => self.keepalive(peer, grant, token, out),
            Message::Finish {
                session,
                request,
                token,
            } => self.finish(peer, session, request, token, out),
            Message::Watch { watch, what } => self.watch(peer, watch, what, out),
            Message::Unwatch { watch } => self.unwatch(peer, watch),
            // The rest is said by nodes, not to them.
            _ => self.event(NodeEvent::Refused(super::message::Refusal::Unfit), out),
        }
    }

    fn peer_message(&mut self, from: NodeId, message: Message, out: &mut NodeEffects) {
        if from == self.id || from.index() >= self.config.quorums.nodes() {
            self.event(NodeEvent::Refused(super::message::Refusal::Unfit), out);
            return;
        }
        match message {
            Message::Recover { node, incarnation } if node == from => {
                self.answer_recovery(node, incarnation, out);
            }
            Message::Recovered(answer) if answer.node == from => self.recovered(answer, out),
            Message::Alive { node, incarnation } if node == from => {
                self.remember_life(node, incarnation);
            }
            Message::TokenClock { clock, asks } => self.clock_told(from, clock, asks, out),
            Message::ConfirmGrant(ask) => self.confirm_grant(from, &ask, out),
            Message::GrantConfirmed {
                session,
                request,
                granted,
            } => self.grant_confirmed(from, session, request, granted, out),
            Message::Travel(travel) => self.travel_comes(*travel, out),
            _ => self.event(NodeEvent::Refused(super::message::Refusal::Unfit), out),
        }
    }
}

impl Machine for LockNode {
    type Input = NodeInput;
    type Address = To;
    type Message = Message;
    type Record = Record;
    type Event = NodeEvent;

    fn handle(&mut self, now: Now, input: NodeInput, out: &mut NodeEffects) {
        // A steady clock that seems to run backwards is read as standing still.
        self.now = Now {
            mono: now.mono.max(self.now.mono),
            wall: now.wall,
        };
        if self.state == State::Stopped {
            if let NodeInput::Durable(records) = input {
                self.disk.synced(records);
            }
            return;
        }
        self.read_clocks(out);
        match input {
            NodeInput::Durable(records) => self.durable(records, out),
            NodeInput::Receive(link, _) if self.is_starting() => {
                out.events.push(NodeEvent::Close(link));
            }
            NodeInput::Receive(link, message) => self.receive(link, message, out),
            NodeInput::Closed(link) => self.closed(link, out),
            NodeInput::Peer(from, message) => self.peer_message(from, message, out),
            NodeInput::Wake => self.wake(out),
            NodeInput::Drain => self.drain(out),
            NodeInput::Stop => self.stop(out),
            NodeInput::Expire(session) => self.expire_now(session, out),
            NodeInput::Opened(link, who) => self.arrives(link, quota::Origin::Known(who)),
            NodeInput::OpenedFrom {
                link,
                address,
                gateway,
            } => self.arrives(link, quota::Origin::Address(address, gateway)),
            NodeInput::Access(access) => self.set_access(access, out),
            NodeInput::Revoke { session, by, force } => self.revoke(session, by, force, out),
            NodeInput::Consent {
                name,
                wish,
                block,
                until,
            } => self.consent(&name, wish, block, until, out),
            NodeInput::Extended { name, wish, until } => self.extended(&name, wish, until),
            NodeInput::ConsentLost { name, wish } => self.consent_lost(&name, wish, out),
            NodeInput::ConsentRefused { name, wish } => self.consent_refused(&name, wish, out),
        }
        self.tell_watchers(out);
    }

    fn next_wake(&self) -> Option<Wake> {
        if self.state == State::Stopped {
            return None;
        }
        let Reverse((at, timer)) = self.timers.peek()?;
        let reason = match timer {
            Timer::Node => "node",
            Timer::Clock => "token clock",
            Timer::Peer(_) => "connection lease",
            Timer::Session(_) => "session",
            Timer::Watch(_) => "watch",
            Timer::Gate(_) => "consent",
            Timer::Doom(..) => "grant",
            Timer::InsideCheck(..) => "claim to be inside",
        };
        Some(Wake { at: *at, reason })
    }
}
