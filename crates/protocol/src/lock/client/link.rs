//! A client's connection to one node: handshake, heartbeats, resume, suspicion.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::request::Phase;
use super::{LockClient, Timer};
use crate::id::{ConnNo, Incarnation, Key, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{ClientEffects, ClientEvent};
use crate::lock::canon::{Canon, whole};
use crate::lock::message::{
    Claim, Entered, Finished, GrantRef, Message, Refusal, Resume, SessionInfo,
};
use crate::lock::plant::Plant;
use crate::table::{Set, Table};
use crate::time::{Instant, Wall};

type Ref = (SessionId, RequestNo);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Not connected and not wanted.
    Idle,
    Connecting,
    Open,
    /// Not connected; the next attempt comes at this time.
    Waiting(Instant),
}

/// How little a node is trusted to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspicion {
    #[default]
    None,
    /// It let a few round trips pass: whoever waits for it asks others too, new requests go
    /// elsewhere.
    Hedged,
    /// It missed a heartbeat or its connection ended: holds that rest on it move.
    Left,
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) state: LinkState,
    conn: ConnNo,
    incarnation: Incarnation,
    /// When the last hello was sent.
    hello: Instant,
    /// When the last heartbeat that was answered was sent: freshness counts from here.
    pub(super) base: Option<Instant>,
    /// When anything came last on this connection.
    heard: Instant,
    /// Heartbeats without an answer, on this connection.
    beats: VecDeque<(u64, Instant)>,
    last_beat: u64,
    next_beat: Instant,
    /// Sessions announced at this node, with the heartbeat whose answer says that it knows.
    opened: BTreeMap<SessionId, u64>,
    /// The last heartbeat that was answered.
    answered: u64,
    /// Requests asked here that go on.
    pub(super) requests: Set<Ref>,
    /// Holds whose token the node has not acknowledged.
    pub(super) to_note: Set<Ref>,
    /// Ended requests, with the heartbeat whose answer says that the node knows.
    done: VecDeque<(u64, Finished)>,
    /// How many of them ended since the last heartbeat.
    done_since: usize,
    /// How often each request stands there: thousands may leave a node at once.
    left: Table<Ref, u32>,
    /// Watches that are kept here, or will be once the connection is open.
    pub(super) watches: BTreeSet<Key>,
    /// What is said once the connection is open.
    outbox: Vec<Message>,
    pub(super) rtt: Duration,
    suspicion: Suspicion,
    pub(super) draining: bool,
    /// The node refused something: better not ask it before this.
    pub(super) avoid_until: Instant,
    tries: u32,
    armed: Option<Instant>,
}

impl Link {
    fn new() -> Self {
        Self {
            state: LinkState::Idle,
            conn: ConnNo(0),
            incarnation: Incarnation(0),
            hello: Instant::ZERO,
            base: None,
            heard: Instant::ZERO,
            beats: VecDeque::new(),
            last_beat: 0,
            next_beat: Instant::FAR,
            opened: BTreeMap::new(),
            answered: 0,
            // Their keys are ours alone: nobody can choose them to collide.
            requests: Set::new(0),
            to_note: Set::new(0),
            done: VecDeque::new(),
            done_since: 0,
            left: Table::new(0),
            watches: BTreeSet::new(),
            outbox: Vec::new(),
            rtt: Duration::ZERO,
            suspicion: Suspicion::None,
            draining: false,
            avoid_until: Instant::ZERO,
            tries: 0,
            armed: None,
        }
    }

    /// Whether the node may not have heard yet that this request left it.
    pub(super) fn just_left(&self, reference: Ref) -> bool {
        self.left.get(&reference).is_some()
    }

    /// The node knows that an earlier round of this request ended.
    pub(super) fn forget_done(&mut self, reference: Ref) {
        if self.left.remove(&reference).is_some() {
            self.done
                .retain(|(_, done)| (done.session, done.request) != reference);
        }
    }

    fn push_done(&mut self, beat: u64, finished: Finished) {
        let reference = (finished.session, finished.request);
        match self.left.get_mut(&reference) {
            Some(count) => *count += 1,
            None => _ = self.left.insert(reference, 1),
        }
        self.done.push_back((beat, finished));
        self.done_since += 1;
    }

    fn pop_done(&mut self) {
        let Some((_, done)) = self.done.pop_front() else {
            return;
        };
        let reference = (done.session, done.request);
        if let Some(count) = self.left.get_mut(&reference) {
            *count -= 1;
            if *count == 0 {
                self.left.remove(&reference);
            }
        }
    }

    /// When its next timer comes.
    pub(super) fn armed(&self) -> Option<Instant> {
        self.armed
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.suspicion == Suspicion::None
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == LinkState::Open
    }

    /// What it keeps for the node, in canonical form.
    pub(super) fn canon_lists<C: Canon>(&self, canon: &mut C) {
        canon.plain(self.conn.0);
        canon.plain(self.last_beat);
        canon.plain(self.answered);
        canon.plain(self.beats.len() as u64);
        for (beat, _) in &self.beats {
            canon.plain(*beat);
        }
        whole(&self.opened, canon);
        whole(&self.requests.sorted(|_| true), canon);
        whole(&self.outbox, canon);
        canon.plain(self.done.len() as u64);
        for (beat, done) in &self.done {
            canon.plain(*beat);
            whole(&(done.session, done.request), canon);
        }
    }

    /// Whether the node is being told that a request is over.
    pub(super) fn tells_end(&self, reference: Ref) -> bool {
        self.left.get(&reference).is_some()
    }

    /// Whether the node is known to know a session on this connection.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        let announced = self.opened.get(&session);
        self.is_open() && announced.is_some_and(|beat| *beat <= self.answered)
    }
}

impl LockClient {
    pub(super) fn link(&self, node: NodeId) -> Option<&Link> {
        self.links.get(node.index())?.as_deref()
    }

    pub(super) fn link_mut(&mut self, node: NodeId) -> Option<&mut Link> {
        self.links.get_mut(node.index())?.as_deref_mut()
    }

    /// The link to a node, connecting if it was idle.
    pub(super) fn want_link(&mut self, node: NodeId, out: &mut ClientEffects) -> &mut Link {
        let slot = &mut self.links[node.index()];
        let link = slot.get_or_insert_with(|| Box::new(Link::new()));
        if link.state == LinkState::Idle {
            self.connect(node, out);
        }
        self.links[node.index()]
            .as_mut()
            .expect("invariant: just made")
    }

    fn connect(&mut self, node: NodeId, out: &mut ClientEffects) {
        let give_up = self.now.mono + self.config.times.link_ttl;
        let Some(link) = self.link_mut(node) else {
            return;
        };
        link.conn.0 += 1;
        link.state = LinkState::Connecting;
        out.events.push(ClientEvent::Connect(node, link.conn));
        link.next_beat = give_up;
        self.arm_link(node, give_up);
    }

    pub(super) fn arm_link(&mut self, node: NodeId, at: Instant) {
        let Some(link) = self.link_mut(node) else {
            return;
        };
        if link.armed.is_none_or(|armed| armed > at) {
            link.armed = Some(at);
            self.arm(at, Timer::Link(node));
        }
    }

    /// Whether a message of this connection counts; if so the node is no longer suspected.
    pub(super) fn hears(&mut self, node: NodeId, conn: ConnNo) -> bool {
        let now = self.now.mono;
        let Some(link) = self.link_mut(node) else {
            return false;
        };
        if link.conn != conn || link.state != LinkState::Open {
            return false;
        }
        link.heard = now;
        if std::mem::take(&mut link.suspicion) != Suspicion::None && !self.avoided(node) {
            self.troubled.remove(&node);
        }
        true
    }

    pub(super) fn opened(&mut self, node: NodeId, conn: ConnNo, out: &mut ClientEffects) {
        let (now, config, client) = (self.now.mono, self.config.id, self.id);
        let Some(link) = self.link_mut(node) else {
            return;
        };
        if link.conn != conn || link.state != LinkState::Connecting {
            return;
        }
        link.state = LinkState::Open;
        link.hello = now;
        link.heard = Instant::ZERO;
        link.draining = false;
        link.beats.clear();
        let hello = Message::Hello {
            client,
            conn,
            config,
        };
        out.send(node, hello);
        self.resume(node, out);
        let outbox = self
            .link_mut(node)
            .map(|link| std::mem::take(&mut link.outbox));
        for message in outbox.into_iter().flatten() {
            out.send(node, message);
        }
        self.finish_again(node, out);
        self.watch_again(node, out);
        self.note_again(node);
        self.send_beat(node, out);
    }

    /// A note may have been lost with the old connection, or with the node's memory.
    fn note_again(&mut self, node: NodeId) {
        let Some(link) = self.link(node) else { return };
        let noted = |reference: &Ref| {
            let place = self.by_ref.get(reference).copied();
            let request = place.and_then(|place| self.requests.get(place));
            request.is_some_and(|request| {
                request.note.is_some() && matches!(request.phase, Phase::Inside(_))
            })
        };
        let noted = link.requests.sorted(noted);
        if let Some(link) = self.link_mut(node) {
            for reference in noted {
                link.to_note.insert(reference);
            }
        }
    }

    /// Says what this client has at a node, in parts.
    fn resume(&mut self, node: NodeId, out: &mut ClientEffects) {
        let part = self.config.limits.resume_part.max(1);
        let Some(link) = self.link(node) else { return };
        let refs = link.requests.sorted(|_| true);
        let mut sessions = Vec::new();
        let mut named = BTreeSet::new();
        for (ttl, session) in &self.sessions {
            if link.opened.contains_key(session) {
                named.insert(*session);
                sessions.push(self.attached_info(*session, *ttl));
            }
        }
        let mut live = Vec::new();
        let claimed = refs.clone();
        for reference in refs {
            let Some(place) = self.by_ref.get(&reference).copied() else {
                continue;
            };
            let claim = self.claim(place, node);
            if named.insert(reference.0) {
                let request = self
                    .requests
                    .get(place)
                    .expect("invariant: requests are indexed");
                sessions.push(request.info.clone());
            }
            live.extend(claim);
        }
        let link = self.link_mut(node).expect("invariant: just seen");
        let done: Vec<Finished> = link.done.iter().map(|(_, done)| *done).collect();
        let next = link.last_beat + 1;
        link.opened = named.into_iter().map(|session| (session, next)).collect();
        let first = link.conn == ConnNo(1);
        if first && sessions.is_empty() && live.is_empty() && done.is_empty() {
            return;
        }
        let mut resume = Resume {
            sessions,
            done,
            ..Resume::default()
        };
        while live.len() > part {
            resume.live = live.split_off(live.len() - part);
            out.send(node, Message::Resume(Box::new(std::mem::take(&mut resume))));
        }
        resume.live = live;
        resume.last = true;
        out.send(node, Message::Resume(Box::new(resume)));
        // Nothing else reminds a request that its claim was not answered.
        for reference in claimed {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.arm_hedge_if_silent(place);
            }
        }
    }

    /// What a requester says about itself at a node on a new connection.
    fn claim(&mut self, place: u32, node: NodeId) -> Option<Claim> {
        let now = self.now.mono;
        let request = self.requests.get(place)?;
        let member = request.member(node)?;
        if let Phase::Keeping(keeping) = &request.phase
            && member.grant.is_none()
            && !keeping.asks()
        {
            return None;
        }
        if request.travels() && member.grant.is_none() {
            // It sets off once the node knows its session.
            return None;
        }
        let until = self.fresh_until(request, member);
        let stale_counts = self.config.rules.has(Plant::ReclaimStale);
        let fresh = stale_counts || until.is_some_and(|until| until > now);
        let grant = member.grant.as_ref();
        let token = request.holder_token();
        let inside = token.filter(|_| grant.is_none_or(|grant| grant.counted));
        let raising = request.raising().filter(|token| {
            grant.is_some_and(|grant| grant.raised < *token) && request.raises_at(node)
        });
        let moves = request.rests_on().filter(|_| grant.is_none());
        let moves = moves.unwrap_or_default();
        let claim = Claim {
            ask: request.ask.clone(),
            hint: request.hint,
            seen: member.seen,
            holding: grant.is_some(),
            inside,
            raising,
            fresh,
            members: moves,
        };
        let member = self.requests.get_mut(place)?.member_mut(node)?;
        member.asked = now;
        member.answered = member.grant.is_some();
        Some(claim)
    }

    pub(super) fn attached_info(&self, session: SessionId, ttl: Duration) -> SessionInfo {
        SessionInfo {
            session,
            ttl,
            detached: false,
            owner: self.owner.clone(),
            principal: Arc::default(),
        }
    }

    pub(super) fn closed(&mut self, node: NodeId, conn: ConnNo, out: &mut ClientEffects) {
        let current = self.link(node).is_some_and(|link| {
            link.conn == conn && matches!(link.state, LinkState::Open | LinkState::Connecting)
        });
        if current {
            self.lose_link(node, out);
        }
    }

    /// The connection is gone: connect again after a while, and do not wait for this node.
    fn lose_link(&mut self, node: NodeId, out: &mut ClientEffects) {
        let times = self.config.times;
        let now = self.now.mono;
        let jitter = 0.5 + self.rng.unit();
        let Some(link) = self.link_mut(node) else {
            return;
        };
        let doubled = times.reconnect_min * (1 << link.tries.min(10));
        let wait = doubled.min(times.reconnect_max).mul_f64(jitter);
        link.tries = link.tries.saturating_add(1);
        link.beats.clear();
        link.next_beat = Instant::FAR;
        if link.requests.is_empty() && link.done.is_empty() {
            // Sessions without requests are opened again when they are needed.
            link.opened.clear();
        }
        link.state = LinkState::Waiting(now + wait);
        self.arm_link(node, now + wait);
        self.suspect(node, out);
    }

    /// Looks after nodes that were taken for dead while nobody needed any.
    pub(super) fn look_after_troubled(&mut self, out: &mut ClientEffects) {
        let idle = |node: &NodeId| {
            let link = self.link(*node);
            link.is_some_and(|link| link.state == LinkState::Idle)
        };
        let idle: Vec<NodeId> = self.troubled.iter().copied().filter(idle).collect();
        for node in idle {
            self.connect(node, out);
        }
    }

    /// Whether a node is at work: answers to others came within the time that an answer takes.
    /// What was asked of it meanwhile waits its turn there.
    pub(super) fn is_busy(&self, node: NodeId) -> bool {
        let delay = self.hedge_delay(std::iter::once(node));
        let link = self.link(node).filter(|link| link.is_open());
        link.is_some_and(|link| link.heard + delay > self.now.mono)
    }

    /// Whether there is a reason to be connected.
    fn wanted(&self, node: NodeId) -> bool {
        let mut finishing = self.finishing.values();
        if finishing.any(|release| release.waits_for(node)) {
            return true;
        }
        self.link(node).is_some_and(|link| {
            !link.requests.is_empty()
                || !link.done.is_empty()
                || !link.outbox.is_empty()
                || !link.watches.is_empty()
        })
    }

    /// A node does not answer: those who wait for it ask others, those who rest on it move.
    pub(super) fn suspect(&mut self, node: NodeId, out: &mut ClientEffects) {
        self.distrust(node, Suspicion::Left);
        self.leave_node(node, out);
    }

    pub(super) fn distrust(&mut self, node: NodeId, suspicion: Suspicion) {
        if let Some(link) = self.link_mut(node) {
            link.suspicion = link.suspicion.max(suspicion);
            self.troubled.insert(node);
        }
    }

    /// Whether a connected node is silent although it was asked for a sign of life. If nothing
    /// came from it for a while and it was not asked, it is asked now.
    pub(super) fn is_silent(&mut self, node: NodeId, out: &mut ClientEffects) -> bool {
        let now = self.now.mono;
        let delay = self.hedge_delay(std::iter::once(node));
        let Some(link) = self.link(node).filter(|link| link.is_open()) else {
            return false;
        };
        if link.heard + delay > now {
            return false;
        }
        let heard = link.heard;
        let asked = link.beats.iter().find(|(_, sent)| *sent >= heard);
        let Some((_, asked)) = asked.copied() else {
            self.send_beat(node, out);
            return false;
        };
        asked + delay <= now
    }

    pub(super) fn draining(&mut self, node: NodeId, out: &mut ClientEffects) {
        if let Some(link) = self.link_mut(node) {
            link.draining = true;
            self.troubled.insert(node);
            self.leave_node(node, out);
        }
    }

    fn leave_node(&mut self, node: NodeId, out: &mut ClientEffects) {
        let refs: Vec<Ref> = self
            .link(node)
            .map(|link| link.requests.sorted(|_| true))
            .unwrap_or_default();
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.look_elsewhere(place, out);
            }
        }
        self.watch_elsewhere(node, out);
    }

    pub(super) fn refused(&mut self, node: NodeId, why: Refusal, out: &mut ClientEffects) {
        let wait = self.now.mono + self.config.times.reconnect_max;
        let Some(link) = self.link_mut(node) else {
            return;
        };
        link.avoid_until = wait;
        link.tries = link.tries.max(6);
        let conn = link.conn;
        let refs = link.requests.sorted(|_| true);
        self.troubled.insert(node);
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.note_refusal(place, why);
            }
        }
        out.events.push(ClientEvent::Disconnect(node, conn));
        self.lose_link(node, out);
    }

    /// Whether a node had better not be asked.
    pub(super) fn avoided(&self, node: NodeId) -> bool {
        self.link(node).is_some_and(|link| {
            let suspected = link.suspicion != Suspicion::None;
            suspected || link.draining || link.avoid_until > self.now.mono
        })
    }

    pub(super) fn welcome(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        clock: Wall,
        out: &mut ClientEffects,
    ) {
        let early = self.config.rules.has(Plant::HeartbeatBeforeResume);
        let now = self.now.mono;
        let Some(link) = self.link_mut(node) else {
            return;
        };
        let reborn = link.incarnation != Incarnation(0) && link.incarnation != incarnation;
        link.incarnation = incarnation;
        link.tries = 0;
        let sample = now.since(link.hello);
        link.rtt = if link.rtt.is_zero() { sample } else { link.rtt };
        if early {
            link.base = link.base.max(Some(link.hello));
        }
        if link.avoid_until <= now {
            self.troubled.remove(&node);
        }
        if reborn {
            self.forget_seen(node);
        }
        self.measure_distances();
        self.hear_clock(node, clock);
        self.begin_starting(out);
    }

    /// A new life of a node may count its grants from a smaller number, if it lost its disk.
    /// Nothing of the old life comes over this connection.
    fn forget_seen(&mut self, node: NodeId) {
        let refs = self.link(node).map(|link| link.requests.sorted(|_| true));
        for reference in refs.into_iter().flatten() {
            let place = self.by_ref.get(&reference).copied();
            let request = place.and_then(|place| self.requests.get_mut(place));
            if let Some(member) = request.and_then(|request| request.member_mut(node)) {
                let held = member.grant.as_ref().map(|grant| grant.number);
                member.seen = held.unwrap_or_default();
            }
        }
    }

    pub(super) fn hear_clock(&mut self, node: NodeId, clock: Wall) {
        let now = self.now.mono;
        if let Some(heard) = self.clocks.get_mut(node.index()) {
            *heard = Some((clock, now));
        }
    }

    /// The nodes' clock: the lower median of what was heard, carried on by the steady clock. None
    /// before any node was heard: a request made up from this client's own clock could pass
    /// everyone who waits.
    pub(super) fn nodes_clock(&mut self) -> Option<Wall> {
        let now = self.now.mono;
        let heard = self.clocks.iter().flatten();
        let mut clocks = std::mem::take(&mut self.readings);
        clocks.clear();
        clocks.extend(heard.map(|(clock, at)| clock.plus(now.since(*at))));
        let middle = clocks.len().checked_sub(1).map(|last| last / 2);
        let clock = middle.map(|middle| *clocks.select_nth_unstable(middle).1);
        self.readings = clocks;
        clock
    }

    pub(super) fn send_beat(&mut self, node: NodeId, out: &mut ClientEffects) {
        let now = self.now.mono;
        let shortest = self.sessions.keys().next().copied();
        let pace = self.config.times.heartbeat;
        let pace = shortest.map_or(pace, |ttl| pace.min(ttl / 4));
        let Some(link) = self.link(node) else { return };
        let refs = link.to_note.sorted(|_| true);
        let mut entered = Vec::with_capacity(refs.len());
        for reference in refs {
            entered.extend(self.entered_notice(reference, node));
        }
        let Some(link) = self.link_mut(node) else {
            return;
        };
        link.last_beat += 1;
        link.done_since = 0;
        let beat = link.last_beat;
        link.beats.push_back((beat, now));
        link.next_beat = now + pace;
        let next = link.next_beat;
        out.send(node, Message::Heartbeat { beat, entered });
        self.arm_link(node, next);
    }

    pub(super) fn entered_notice(&self, reference: Ref, node: NodeId) -> Option<Entered> {
        let place = self.by_ref.get(&reference).copied()?;
        let request = self.requests.get(place)?;
        let token = request.holder_token()?;
        let grant = request.member(node)?.grant.as_ref()?;
        // A hold that moved may have a token by now that this node was never told to reserve.
        let told = grant.counted && token <= grant.limit;
        told.then(|| Entered {
            grant: GrantRef {
                session: reference.0,
                request: reference.1,
                grant: grant.number,
            },
            token,
            note: request.note.clone(),
            edition: request.edition,
        })
    }

    pub(super) fn beat(
        &mut self,
        node: NodeId,
        beat: u64,
        clock: Wall,
        noted: &[GrantRef],
        out: &mut ClientEffects,
    ) {
        let now = self.now.mono;
        let from_reply = self.config.rules.has(Plant::ValidityFromReply);
        self.hear_clock(node, clock);
        let Some(link) = self.link_mut(node) else {
            return;
        };
        let mut sent = None;
        while let Some((number, at)) = link.beats.front().copied() {
            if number > beat {
                break;
            }
            link.beats.pop_front();
            sent = (number == beat).then_some(at);
        }
        let Some(sent) = sent else { return };
        link.answered = link.answered.max(beat);
        link.base = link.base.max(Some(if from_reply { now } else { sent }));
        let sample = now.since(sent);
        link.rtt = if link.rtt.is_zero() {
            sample
        } else {
            (link.rtt * 7 + sample) / 8
        };
        while link.done.front().is_some_and(|(number, _)| *number <= beat) {
            link.pop_done();
        }
        self.measure_distances();
        for grant in noted {
            self.noted(node, *grant, out);
        }
        self.tidy_moves();
        self.freshened(node, out);
        self.depart_through(node, out);
    }

    /// Requests that hold enough but not freshly may enter now.
    fn freshened(&mut self, node: NodeId, out: &mut ClientEffects) {
        let Some(link) = self.link(node) else { return };
        let waits = |reference: &Ref| {
            let place = self.by_ref.get(reference).copied();
            let request = place.and_then(|place| self.requests.get(place));
            request.is_some_and(|request| request.wants_fresh)
        };
        let refs = link.requests.sorted(waits);
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.progress(place, out);
            }
        }
    }

    pub(super) fn link_timer(&mut self, node: NodeId, out: &mut ClientEffects) {
        let now = self.now.mono;
        let times = self.config.times;
        let Some(link) = self.link_mut(node) else {
            return;
        };
        if link.armed.is_some_and(|armed| armed > now) {
            return;
        }
        link.armed = None;
        match link.state {
            LinkState::Idle => {}
            LinkState::Waiting(at) if at > now => self.arm_link(node, at),
            LinkState::Waiting(_) => {
                link.state = LinkState::Idle;
                // Whoever is at work wants to know when a node is back: as long as it is taken
                // for dead, this client meets others at the wrong first quorum.
                let at_work = self.live() > 0 || self.watches() > 0;
                if self.wanted(node) || at_work && self.avoided(node) {
                    self.connect(node, out);
                }
            }
            LinkState::Connecting if link.next_beat <= now => {
                let conn = link.conn;
                out.events.push(ClientEvent::Disconnect(node, conn));
                self.lose_link(node, out);
            }
            LinkState::Connecting => {
                let at = link.next_beat;
                self.arm_link(node, at);
            }
            LinkState::Open => {
                let oldest = link.beats.front().map(|(_, sent)| *sent);
                let conn = link.conn;
                if oldest.is_some_and(|sent| sent + times.link_ttl <= now) {
                    out.events.push(ClientEvent::Disconnect(node, conn));
                    self.lose_link(node, out);
                } else if link.next_beat <= now {
                    // A node that answers other things is busy, not dead.
                    let heard = link.heard;
                    let silent = oldest.is_some_and(|sent| sent < now && heard <= sent);
                    let silent = silent && link.suspicion < Suspicion::Left;
                    self.send_beat(node, out);
                    if silent {
                        self.suspect(node, out);
                    }
                } else {
                    let at = link.next_beat;
                    self.arm_link(node, at);
                }
            }
        }
    }

    /// Announces a request's session at a node, once; says whether it was news.
    pub(super) fn announce(
        &mut self,
        node: NodeId,
        info: &SessionInfo,
        out: &mut ClientEffects,
    ) -> bool {
        let Some(link) = self.link_mut(node) else {
            return false;
        };
        if link.opened.contains_key(&info.session) {
            return false;
        }
        link.opened.insert(info.session, link.last_beat + 1);
        out.send(node, Message::Open(info.clone()));
        true
    }

    /// The session is gone at this node: it must be announced again.
    pub(super) fn unannounce(&mut self, node: NodeId, session: SessionId) {
        if let Some(link) = self.link_mut(node) {
            link.opened.remove(&session);
        }
    }

    /// Says something to a node now, or as soon as there is a connection.
    pub(super) fn say(&mut self, node: NodeId, message: Message, out: &mut ClientEffects) {
        let most = self.config.limits.outbox;
        let link = self.want_link(node, out);
        if link.is_open() {
            out.send(node, message);
        } else if link.outbox.len() < most {
            link.outbox.push(message);
        }
    }

    /// Says something to a node if there is a connection.
    pub(super) fn tell(&self, node: NodeId, message: Message, out: &mut ClientEffects) {
        if self.link(node).is_some_and(Link::is_open) {
            out.send(node, message);
        }
    }

    /// Forgets that a request speaks to a node, without a word to it.
    pub(super) fn forget_request(&mut self, node: NodeId, reference: Ref) {
        if let Some(link) = self.link_mut(node) {
            link.requests.remove(&reference);
            link.to_note.remove(&reference);
        }
    }

    /// Tells a node that a request ended, and remembers it until the node is known to know.
    pub(super) fn send_done(
        &mut self,
        node: NodeId,
        reference: Ref,
        token: Option<Token>,
        out: &mut ClientEffects,
    ) {
        let (session, request) = reference;
        let (max, early) = {
            let limits = &self.config.limits;
            (limits.unacknowledged, limits.early_heartbeat)
        };
        let Some(link) = self.link_mut(node) else {
            return;
        };
        link.to_note.remove(&reference);
        if !link.requests.remove(&reference) {
            return;
        }
        let finished = Finished {
            session,
            request,
            token,
        };
        link.push_done(link.last_beat + 1, finished);
        if link.done.len() > max {
            link.pop_done();
        }
        let done = Message::Done {
            session,
            request,
            token,
        };
        // One at a time: a burst of releases does not make a burst of heartbeats.
        let quiet = link.is_open() && link.beats.is_empty();
        let many = quiet && link.done_since >= early;
        self.tell(node, done, out);
        if many {
            self.send_beat(node, out);
        }
    }

    /// How long to wait for answers of these nodes before asking others.
    pub(super) fn hedge_delay(&self, nodes: impl Iterator<Item = NodeId>) -> Duration {
        let slowest = nodes.filter_map(|node| Some(self.link(node)?.rtt)).max();
        (slowest.unwrap_or_default() * 4).max(self.config.times.hedge_min)
    }

    /// A phase that still hopes for grants.
    pub(super) fn hopes(phase: &Phase) -> bool {
        matches!(phase, Phase::Trying | Phase::Raising { .. })
    }

    /// The session of a TTL, made when first needed.
    pub(super) fn session_of(&mut self, ttl: Duration) -> SessionId {
        if let Some(session) = self.sessions.get(&ttl) {
            return *session;
        }
        let high = u128::from(self.rng.next_u64());
        let session = SessionId(high << 64 | u128::from(self.rng.next_u64()));
        self.sessions.insert(ttl, session);
        session
    }

    /// A shared list of nodes, for routes and targets.
    pub(super) fn shared(nodes: impl Iterator<Item = usize>) -> Arc<[NodeId]> {
        nodes.map(NodeId::at).collect()
    }
}
