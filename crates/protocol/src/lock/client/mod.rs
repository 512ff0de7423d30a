//! The client's machine: all requesters of one process, with its sessions and its connections.
//!
//! Getters: [`LockClient::id`], [`LockClient::held_until`], [`LockClient::held`],
//! [`LockClient::live`], [`LockClient::key_of`], [`LockClient::knows`], [`LockClient::nodes`].
//! Inputs: [`Machine::handle`]. Outputs: [`ClientEffects`].
//!
//! What it guarantees, if the nodes keep their promises:
//!
//! - Whoever is told *entered* holds a quorum of grants that no node may give away before the
//!   holder is told *lost*, or before [`LockClient::held_until`], as its own clock counts.
//! - Its token is larger than that of every conflicting holder before it.
//! - Cancel and enter are decided by one step: never both.
//!
//! It never looks at the wall clock: drivers need not read it.

mod answers;
mod canon;
mod choice;
mod finish;
mod grants;
mod handles;
mod hold;
mod jobs;
mod link;
mod moves;
mod raise;
mod request;
mod revoked;
mod serial;
mod sight;
mod timers;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::Prng;

use super::api::{ClientEffects, ClientEvent, ClientInput};
use super::config::Config;
use super::message::Message;
use crate::id::{ClientId, ConnNo, GrantNo, Key, Name, NodeId, RequestNo, SessionId, Token};
use crate::machine::Machine;
use crate::table::{Slab, Table};
use crate::time::{Instant, Now, Wake, Wall};

use jobs::{Job, Want};
use link::Link;
use moves::Moves;
use request::Requester;

/// All requesters of one client process, with its sessions and its connections to the nodes.
#[derive(Clone, Debug)]
pub struct LockClient {
    config: Arc<Config>,
    id: ClientId,
    owner: Arc<str>,
    now: Now,
    rng: Prng,
    links: Vec<Option<Box<Link>>>,
    /// What each node's clock said, and when. Every wish reads all of them: they lie together.
    clocks: Vec<Option<(Wall, Instant)>>,
    /// Room to sort them in.
    readings: Vec<Wall>,
    /// Nodes that are suspected, draining or refused us.
    troubled: BTreeSet<NodeId>,
    /// Nodes that keep refusing tokens, and their token clocks.
    behind: BTreeMap<NodeId, Wall>,
    /// The attached session of each TTL.
    sessions: BTreeMap<Duration, SessionId>,
    requests: Slab<Requester>,
    by_ref: Table<(SessionId, RequestNo), u32>,
    jobs: Table<Key, Job>,
    watches: watch::Watches,
    /// Releases by handle that nodes have not answered.
    finishing: BTreeMap<Key, finish::Finishing>,
    /// First quorums by the seed of the lock's name and the mode's family.
    picks: Table<(u64, usize), Arc<[NodeId]>>,
    /// The quorums among them, each once.
    picked: BTreeSet<Arc<[NodeId]>>,
    /// How far the nodes are, as far as round trips were measured.
    distances: choice::Distances,
    /// Requests that wait for a first word from any node.
    starting: Vec<u32>,
    moves: Moves,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    last_request: RequestNo,
    last_serial: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Link(NodeId),
    /// A requester's place and serial number.
    Request(u32, u64),
    Watch(Key),
    /// A release by handle.
    Finish(Key),
}

impl LockClient {
    /// A client. `seed` gives it its session ids and spreads its hash tables.
    pub fn new(config: Arc<Config>, id: ClientId, seed: u64) -> Self {
        let nodes = config.quorums.nodes();
        let most_moves = config.limits.moves;
        Self {
            links: vec![None; nodes],
            clocks: vec![None; nodes],
            readings: Vec::new(),
            config,
            id,
            owner: Arc::from(""),
            now: Now::default(),
            rng: Prng::new(seed),
            troubled: BTreeSet::new(),
            behind: BTreeMap::new(),
            sessions: BTreeMap::new(),
            requests: Slab::default(),
            by_ref: Table::new(seed),
            jobs: Table::new(seed),
            watches: watch::Watches::default(),
            finishing: BTreeMap::new(),
            picks: Table::new(seed),
            picked: BTreeSet::new(),
            distances: choice::Distances::unknown(nodes),
            moves: Moves::new(most_moves),
            starting: Vec::new(),
            timers: BinaryHeap::new(),
            last_request: RequestNo(0),
            last_serial: 0,
        }
    }

    /// Sets the label that its sessions carry from now on.
    #[must_use]
    pub fn with_owner(mut self, owner: &str) -> Self {
        self.owner = Arc::from(owner);
        self
    }

    /// Which client this is.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Until when a lock is held if no node is heard from again; none if it is not held.
    pub fn held_until(&self, key: Key, name: &Name) -> Option<Instant> {
        let place = self.find(key, name)?;
        self.hold_deadline(place)
    }

    /// The token of a held lock and the fresh grants it rests on at `now`.
    pub fn held(
        &self,
        key: Key,
        name: &Name,
        now: Instant,
    ) -> Option<(Token, Vec<(NodeId, GrantNo)>)> {
        let place = self.find(key, name)?;
        let token = self.requests.get(place)?.token()?;
        Some((token, self.fresh_members(place, now)))
    }

    /// Whether a node was told to reserve the token of a held lock. Where it was not, the hold may
    /// count the node's grant, but the token is safe with others.
    pub fn reserves(&self, key: Key, name: &Name, node: NodeId) -> bool {
        let place = self.find(key, name);
        let request = place.and_then(|place| self.requests.get(place));
        let told = |request: &Requester| {
            let member = request.member(node);
            member.is_some_and(|member| request.is_told(member))
        };
        request.is_some_and(told)
    }

    /// The group and number of a key's request for a lock, while it lives.
    pub fn ask(&self, key: Key, name: &Name) -> Option<&Arc<super::mode::Ask>> {
        Some(&self.requests.get(self.find(key, name)?)?.ask)
    }

    /// The key of a request that was sent, while it lives.
    pub fn key_of(&self, session: SessionId, request: RequestNo) -> Option<Key> {
        let place = self.by_ref.get(&(session, request))?;
        Some(self.requests.get(*place)?.key)
    }

    /// Whether anything that was asked by this key goes on.
    pub fn knows(&self, key: Key) -> bool {
        let finishing = self.finishing.contains_key(&key);
        finishing || self.jobs.get(&key).is_some() || self.watches.knows(key)
    }

    /// How many requests are live.
    pub fn live(&self) -> usize {
        self.requests.len()
    }

    fn find(&self, key: Key, name: &Name) -> Option<u32> {
        let job = self.jobs.get(&key)?;
        let named = |place: &&u32| {
            let request = self.requests.get(**place);
            request.is_some_and(|request| request.ask.name == *name)
        };
        job.places().iter().find(named).copied()
    }

    fn receive(&mut self, node: NodeId, conn: ConnNo, message: Message, out: &mut ClientEffects) {
        if !self.hears(node, conn) {
            return;
        }
        match message {
            Message::Welcome {
                incarnation, clock, ..
            } => self.welcome(node, incarnation, clock, out),
            Message::Beat { beat, clock, noted } => self.beat(node, beat, clock, &noted, out),
            Message::Locked {
                grant,
                floor,
                limit,
                incarnation,
                clock,
            } => {
                self.hear_clock(node, clock);
                self.locked(node, grant, floor, limit, incarnation, out);
            }
            Message::Queued {
                session,
                request,
                position,
            } => self.queued(node, session, request, position, out),
            Message::NotNow {
                session,
                request,
                retry,
                ..
            } => self.not_now(node, session, request, retry, out),
            Message::Inquire(grant) => self.inquired(node, grant, out),
            Message::Raised { grant, token } => self.raised(node, grant, token, out),
            Message::Noted(grant) => self.noted(node, grant, out),
            Message::Kept(grant) => self.kept(node, grant, out),
            Message::Dead { session, request } => {
                self.dead(node, session, request, out);
                self.finish_heard(node, session, request, out);
            }
            Message::Denied {
                session,
                request,
                why,
            } => self.denied(node, session, request, why, out),
            Message::Carried {
                session,
                request,
                grants,
            } => self.carried(session, request, &grants, out),
            Message::Refused(why) => self.refused(node, why, out),
            Message::Draining => self.draining(node, out),
            Message::Revoked(session) => self.revoked(node, session, out),
            Message::Seen { watch, sight } => self.seen(node, watch, *sight, out),
            Message::Watched(grant) => self.watched(node, grant, out),
            // The rest is said by clients, not to them.
            _ => {}
        }
    }
}

impl Machine for LockClient {
    type Input = ClientInput;
    type Address = NodeId;
    type Message = Message;
    type Record = std::convert::Infallible;
    type Event = ClientEvent;

    fn handle(&mut self, now: Now, input: ClientInput, out: &mut ClientEffects) {
        self.now = Now {
            mono: now.mono.max(self.now.mono),
            wall: now.wall,
        };
        match input {
            ClientInput::Opened(node, conn) => self.opened(node, conn, out),
            ClientInput::Closed(node, conn) => self.closed(node, conn, out),
            ClientInput::Receive(node, conn, message) => self.receive(node, conn, message, out),
            ClientInput::Wake => self.wake(out),
            ClientInput::Acquire(key, wish) => self.acquire(key, vec![wish], Want::One, out),
            ClientInput::AcquireAll(key, wishes) => self.acquire(key, wishes, Want::All, out),
            ClientInput::AcquireAny(key, wishes) => self.acquire(key, wishes, Want::Any, out),
            ClientInput::Cancel(key) => self.cancel(key, out),
            ClientInput::Release(key) => self.release(key, out),
            ClientInput::Watch(key, what) => self.watch(key, what, out),
            ClientInput::Note(key, note) => self.set_note(key, &note, out),
            ClientInput::Keep(key, handle, principal) => self.keep(key, &handle, principal, out),
            ClientInput::Finish(key, handle) => self.finish(key, handle, out),
            ClientInput::Abandon(key, handle) => self.abandon(key, &handle, out),
        }
        self.go_on_moving(out);
    }

    fn next_wake(&self) -> Option<Wake> {
        let Reverse((at, timer)) = self.timers.peek()?;
        let reason = match timer {
            Timer::Link(_) => "connection",
            Timer::Request(..) => "request",
            Timer::Watch(_) => "watch",
            Timer::Finish(_) => "release",
        };
        Some(Wake { at: *at, reason })
    }
}
