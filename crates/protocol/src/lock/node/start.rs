//! Starting, stopping, and coming back without a disk.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::NodeSet;

use super::disk::Disk;
use super::token_clock::TokenClock;
use super::{LockNode, State, Timer};
use crate::id::{GrantNo, Incarnation, NodeId, Token};
use crate::lock::api::{NodeEffects, NodeEvent, To};
use crate::lock::arbiter::{Entry, Grant};
use crate::lock::config::{Config, Restart};
use crate::lock::message::{Message, Recovered};
use crate::lock::plant::Plant;
use crate::lock::record::{Record, Snapshot, Stored, StoredGrant};
use crate::table::{Slab, Table};
use crate::time::{Instant, Now, Wall};

/// What a node finds when it starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// A new node: its default floor is its clock.
    Init,
    /// Its disk.
    Disk(Stored),
    /// Nothing, although it should have been there: it asks the others first.
    Lost,
}

/// How far a node that lost its disk has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recovery {
    /// Until then it only asks whether the cluster is new: a grant of its forgotten life may
    /// still be in use, and what the others know may still change.
    wait_until: Instant,
    /// Nodes that never served, as far as they say.
    fresh: Vec<NodeId>,
    /// What nodes answered after the wait.
    heard: BTreeMap<NodeId, Recovered>,
    tries: u32,
}

/// Lives are numbered this far apart at least, so that grant numbers, which start at the life's
/// number, never meet those of an earlier life.
const LIFE: u64 = 1 << 32;

/// How often a node that lost its disk asks the others.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl LockNode {
    /// Starts a node. The records in `out` must be durable before the first message is given to
    /// it. `seed` only spreads its hash tables.
    pub fn start(
        config: Arc<Config>,
        id: NodeId,
        seed: u64,
        start: Start,
        now: Now,
        out: &mut NodeEffects,
    ) -> Self {
        let stored = match &start {
            Start::Disk(stored) => stored.clone(),
            Start::Init | Start::Lost => Stored::default(),
        };
        let longest = stored.longest_ttl.max(config.times.link_ttl);
        let last = stored
            .incarnation
            .map_or(0, |last| last.0.saturating_add(LIFE));
        // Every floor that is on disk lies within the bound of this clock.
        let forgets = config.rules.has(Plant::TokenClockForgotten);
        let ahead = crate::time::micros_of(config.times.token_ahead);
        let floor = stored.ceiling.max(stored.default_floor).0;
        let clock = stored.clock.0.max(floor.saturating_sub(ahead));
        let tokens = TokenClock::new(now, if forgets { 0 } else { clock });
        let incarnation = Incarnation(last.max(tokens.shown()).max(LIFE));
        // Nothing that a front of a hierarchy says rests on its own disk.
        let restart = config.gate.map_or(config.restart, |_| Restart::Pause);
        let mut node = Self {
            id,
            incarnation,
            state: State::Serving,
            now,
            links: Table::new(seed),
            clients: Table::new(seed),
            peers: Slab::default(),
            by_session: Table::new(seed),
            sessions: Slab::default(),
            by_name: Table::new(seed),
            locks: Slab::default(),
            idle: VecDeque::new(),
            idle_stamp: 0,
            tombs: BTreeMap::new(),
            tombs_by_age: VecDeque::new(),
            access: Arc::default(),
            arrivals: Table::new(seed),
            accounts: super::quota::Accounts::default(),
            revoked: BTreeMap::new(),
            revoked_by_age: VecDeque::new(),
            revoked_here: 0,
            timers: BinaryHeap::new(),
            last_grant: GrantNo(incarnation.0),
            tokens,
            default_floor: stored.default_floor,
            served: stored.ceiling > Token(0),
            lives: BTreeMap::new(),
            disk: Disk::new(restart, stored.ceiling, longest),
            steps: Vec::new(),
            deferred: None,
            watchers: super::watch::Watchers::default(),
            checks: BTreeMap::new(),
            gates: super::gate::Gates::default(),
            config,
        };
        match start {
            // What it was is of no use to the front of a hierarchy, apart from its life.
            Start::Init | Start::Lost if node.config.gate.is_some() => node.begin_new(out),
            Start::Init => node.begin_new(out),
            Start::Lost => node.begin_lost(out),
            // A disk without a life is as good as none.
            Start::Disk(stored) if stored.incarnation.is_none() => node.begin_lost(out),
            Start::Disk(stored) => node.begin_again(stored, out),
        }
        node
    }

    fn begin_new(&mut self, out: &mut NodeEffects) {
        self.default_floor = Token(self.token_clock().0);
        self.write_birth(out);
        self.after_records(State::Serving);
    }

    /// Writes everything that a later start needs.
    fn write_birth(&mut self, out: &mut NodeEffects) {
        self.last_grant = GrantNo(self.incarnation.0);
        self.persist(Record::DefaultFloor(self.default_floor), out);
        let (ceiling, clock) = (self.disk.ceiling(), self.clock_for_disk());
        self.persist(Record::Ceiling { ceiling, clock }, out);
        let longest = self.disk.longest_ttl;
        self.persist(Record::LongestTtl(longest), out);
        // The life comes last: a disk that has one has all that it rests on.
        self.persist(Record::Incarnation(self.incarnation), out);
    }

    /// Goes to a state once all records so far are on disk.
    fn after_records(&mut self, then: State) {
        self.state = State::Starting {
            then: Box::new(then),
            records: self.disk.written(),
        };
    }

    fn begin_again(&mut self, mut stored: Stored, out: &mut NodeEffects) {
        let clean = stored.clean.take();
        if clean.is_some() && !self.config.rules.has(Plant::CleanMarkKept) {
            self.persist(Record::Unclean, out);
        }
        self.persist(Record::Incarnation(self.incarnation), out);
        if self.config.gate.is_some() {
            // Whatever its earlier life was given runs out above, and nothing is reclaimed.
            self.after_records(State::Serving);
            return;
        }
        self.restore_revocations(&stored);
        if let Some(snapshot) = clean {
            self.default_floor = snapshot.floor.max(stored.default_floor);
            for grant in &snapshot.grants {
                self.restore(grant, out);
            }
            self.end_restored(&stored);
            self.after_records(State::Serving);
            return;
        }
        // Every token that may have been used is below the ceiling.
        self.default_floor = stored.ceiling.max(stored.default_floor);
        if self.config.restart == Restart::Durable {
            for grant in stored.grants.values() {
                self.restore(grant, out);
            }
            self.end_restored(&stored);
            self.after_records(State::Serving);
            return;
        }
        let rules = self.config.rules;
        let longest = self.disk.longest_ttl;
        let pause = if rules.has(Plant::PauseTooShort) {
            longest / 4
        } else {
            self.config.times.stretch(longest)
        };
        if rules.has(Plant::SecondCrashForgetsPause) {
            self.persist(Record::LongestTtl(self.config.times.link_ttl), out);
        }
        let until = self.now.mono + pause;
        self.arm(until, Timer::Node);
        self.after_records(State::Pausing { until });
    }

    /// Takes a grant from disk; its session starts with a full life.
    fn restore(&mut self, stored: &StoredGrant, out: &mut NodeEffects) {
        let client = stored.client;
        let peer = self.clients.get(&client).copied();
        let peer = peer.unwrap_or_else(|| self.add_peer(client));
        let Ok(session) = self.add_session(peer, &stored.session, true, out) else {
            return;
        };
        let mut entry = Entry::new(stored.ask.clone(), Token(0), false, peer);
        entry.grant = Some(Grant {
            number: stored.grant,
            floor: stored.floor,
            limit: stored.limit,
            named: stored.named,
            inquired: false,
            entered: stored.entered,
            since: self.now.mono,
        });
        if let Some(kept) = self.sessions.get_mut(session) {
            kept.entered |= stored.entered;
        }
        self.insert(session, entry);
        // Not resumed: the client says on its next connection what it still has.
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.resumed = false;
        }
        self.arm_peer(peer);
    }

    pub(super) fn drain(&mut self, out: &mut NodeEffects) {
        if self.state != State::Serving {
            return;
        }
        self.state = State::Draining;
        for peer in self.peers.places() {
            self.send(peer, Message::Draining, out);
        }
    }

    /// Writes the state of a clean stop. Nothing leaves the node from now on.
    pub(super) fn stop(&mut self, out: &mut NodeEffects) {
        let clean = matches!(self.state, State::Serving | State::Draining);
        self.state = State::Stopped;
        if !clean {
            // A pause or a recovery has not ended: the next start must go through it again.
            return;
        }
        let mut snapshot = Snapshot {
            floor: self.highest().0,
            ..Snapshot::default()
        };
        let grants = self.config.gate.is_none();
        for (place, session) in self.sessions.iter().filter(|_| grants) {
            for request in session.requests.keys() {
                snapshot.grants.extend(self.stored_grant(place, *request));
            }
        }
        self.persist(Record::Clean(Box::new(snapshot)), out);
    }

    fn begin_lost(&mut self, out: &mut NodeEffects) {
        let wait = self.config.times.stretch(self.config.times.ttl_max);
        self.state = State::Recovering(Recovery {
            wait_until: self.now.mono + wait,
            fresh: Vec::new(),
            heard: BTreeMap::new(),
            tries: 0,
        });
        self.recover(out);
    }

    /// Asks all others, now and again until enough have answered.
    pub(super) fn recover(&mut self, out: &mut NodeEffects) {
        let now = self.now.mono;
        let State::Recovering(recovery) = &mut self.state else {
            return;
        };
        recovery.tries += 1;
        let waited = recovery.wait_until <= now;
        if waited && self.config.rules.has(Plant::AmnesiaZeroFloor) {
            self.default_floor = Token(0);
            self.write_birth(out);
            self.after_records(State::Serving);
            return;
        }
        if waited && recovery.tries.is_multiple_of(64) {
            self.event(NodeEvent::CannotRecover, out);
        }
        self.ask_others(out);
        self.arm(now + ASK_AGAIN, Timer::Node);
        self.maybe_recovered(out);
    }

    /// Tells all others of a life that is not the first: its number may be ahead of the clock, and
    /// they must remember it should the disk be lost one day.
    pub(super) fn announce_life(&self, out: &mut NodeEffects) {
        if self.incarnation.0 <= self.token_clock().0 {
            return;
        }
        for node in self.config.quorums.all() {
            if node != self.id {
                let alive = Message::Alive {
                    node: self.id,
                    incarnation: self.incarnation,
                };
                out.send(To::Node(node), alive);
            }
        }
    }

    /// Takes note of another node's life.
    pub(super) fn remember_life(&mut self, node: NodeId, incarnation: Incarnation) {
        let known = self.lives.entry(node).or_default();
        *known = incarnation.max(*known);
    }

    /// Asks all others what they know.
    fn ask_others(&self, out: &mut NodeEffects) {
        for node in self.config.quorums.all() {
            if node != self.id {
                let ask = Message::Recover {
                    node: self.id,
                    incarnation: self.incarnation,
                };
                out.send(To::Node(node), ask);
            }
        }
    }

    pub(super) fn answer_recovery(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        out: &mut NodeEffects,
    ) {
        if node.index() >= self.config.quorums.nodes() {
            return;
        }
        let (floor, limit) = self.highest();
        let known = self.lives.get(&node).copied().unwrap_or_default();
        self.remember_life(node, incarnation);
        let recovering = !matches!(self.state, State::Serving | State::Draining);
        let answer = Recovered {
            node: self.id,
            recovering,
            served: self.served,
            floor,
            limit,
            incarnation: known,
            clock: self.token_clock(),
        };
        out.send(To::Node(node), Message::Recovered(answer));
    }

    /// No token above the first was ever given away here; and the last life of another node that
    /// is known here.
    pub fn known(&self, node: NodeId) -> (Token, Incarnation) {
        let (floor, limit) = self.highest();
        let life = self.lives.get(&node).copied().unwrap_or_default();
        (floor.max(limit), life)
    }

    pub(super) fn recovered(&mut self, answer: Recovered, out: &mut NodeEffects) {
        let now = self.now.mono;
        let State::Recovering(recovery) = &mut self.state else {
            return;
        };
        if !answer.served && !recovery.fresh.contains(&answer.node) {
            recovery.fresh.push(answer.node);
        }
        if recovery.wait_until <= now && !answer.recovering {
            recovery.heard.insert(answer.node, answer);
        }
        self.maybe_recovered(out);
    }

    fn maybe_recovered(&mut self, out: &mut NodeEffects) {
        let State::Recovering(recovery) = &self.state else {
            return;
        };
        let nodes = self.config.quorums.nodes();
        if recovery.fresh.len() + 1 >= nodes {
            self.begin_new(out);
            return;
        }
        let heard = NodeSet::of(nodes, recovery.heard.keys().map(|node| node.index()));
        if recovery.heard.is_empty() || !self.config.quorums.informs(&heard) {
            return;
        }
        let without_limits = self.config.rules.has(Plant::RecoverWithoutLimits);
        let without_clock = self.config.rules.has(Plant::RecoverWithoutClock);
        let (mut floor, mut life) = (Token(0), self.incarnation);
        let mut clock = Wall(0);
        for answer in recovery.heard.values() {
            clock = clock.max(answer.clock);
            floor = floor.max(answer.floor);
            if !without_limits {
                floor = floor.max(answer.limit);
            }
            life = life.max(Incarnation(answer.incarnation.0.saturating_add(LIFE)));
        }
        self.incarnation = life;
        self.default_floor = floor;
        if !without_clock {
            self.hear_token_clock(clock);
            self.make_room_for(floor);
        }
        self.served = true;
        self.write_birth(out);
        self.after_records(State::Serving);
    }

    /// When asking a node that takes no requests again may help.
    pub(super) fn retry(&self) -> Duration {
        match &self.state {
            State::Pausing { until } => until.since(self.now.mono),
            State::Recovering(recovery) => recovery.wait_until.since(self.now.mono) + ASK_AGAIN,
            _ => self.config.times.link_ttl,
        }
    }
}
