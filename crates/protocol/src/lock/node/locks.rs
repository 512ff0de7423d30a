//! Requests, grants and their ends.

use std::sync::Arc;

use super::quota::Item;
use super::{Lock, LockNode, State};
use crate::id::{GrantNo, Name, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{NodeEffects, NodeEvent};
use crate::lock::arbiter::{Arbiter, Entry, Grant, Scope, Step};
use crate::lock::config::{Protocol, Restart};
use crate::lock::floor::Floors;
use crate::lock::message::{GrantRef, Message, NotNow, Refusal, SessionInfo};
use crate::lock::mode::{Ask, Bond, Mode};
use crate::lock::plant::Plant;
use crate::lock::record::{Record, StoredGrant};

impl LockNode {
    pub(super) fn request(
        &mut self,
        peer: u32,
        ask: Arc<Ask>,
        hint: Token,
        inside: Option<Vec<NodeId>>,
        out: &mut NodeEffects,
    ) {
        let (id, request) = (ask.session, ask.request);
        let Some(place) = self.by_session.get(&id).copied() else {
            self.unknown(peer, id, out);
            return;
        };
        if let Some(why) = self.not_now() {
            let retry = self.retry();
            let message = Message::NotNow {
                session: id,
                request,
                why,
                retry,
            };
            self.send(peer, message, out);
            return;
        }
        if self.entry(place, request).is_some() {
            self.answer_again(peer, place, &ask, inside.as_deref(), out);
            return;
        }
        // An attached hold may come back to a node that it has left: tombstones of attached
        // requests are about those that travel, and this one does not.
        let finished = ask.bond != Bond::Attached || self.config.rules.has(Plant::NoWayBack);
        if finished && self.tombs.contains_key(&(id, request)) {
            self.deny(peer, id, Some(request), Refusal::Finished, out);
            return;
        }
        let session = self
            .sessions
            .get(place)
            .expect("invariant: sessions are indexed");
        if self.config.rules.has(Plant::FinishedMark) && request <= session.finished {
            return;
        }
        if let Err(why) = self.fits(peer, place, &ask, false) {
            self.bar(peer, id, Some(request), Some(&ask.name), why, out);
            return;
        }
        // Behind a gate consent brings the tokens.
        let hint = if self.config.gate.is_some() {
            Token(0)
        } else {
            self.believable(hint)
        };
        let believed = inside.is_some() && self.believes_inside();
        let claim = inside.map(|members| (ask.clone(), members));
        let lock = self.insert(place, Entry::new(ask, hint, believed, peer));
        self.schedule(lock, false, out);
        if let Some((ask, members)) = claim {
            self.check_inside(place, &ask, &members, out);
        }
        self.tell_position(peer, lock, id, request, out);
    }

    /// Whether a request may be kept.
    pub(super) fn fits(
        &self,
        peer: u32,
        place: u32,
        ask: &Ask,
        travels: bool,
    ) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let session = self.sessions.get(place).ok_or(Refusal::Unfit)?;
        self.permits(place, ask)?;
        if travels && ask.bond != Bond::Attached {
            return Err(Refusal::NoHandles);
        }
        let attached = ask.bond == Bond::Attached;
        if attached == session.detached || attached && session.peer != peer {
            return Err(Refusal::Unfit);
        }
        if ask.priority.request != ask.request {
            return Err(Refusal::Unfit);
        }
        let group = match &ask.mode {
            Mode::Group(group) => group.len(),
            Mode::Exclusive | Mode::Shared => 0,
        };
        let name = ask.name.bytes().len();
        if (self.config.policy(&ask.name).protocol == Protocol::Serial) != travels {
            return Err(Refusal::Unfit);
        }
        if name == 0 || name > limits.name_bytes || group > limits.group_bytes {
            return Err(Refusal::Size);
        }
        if self.too_far(ask.priority.t) {
            let clock = self.token_clock();
            return Err(Refusal::PriorityAhead { clock });
        }
        let account = Some(session.account);
        if !self.accounts.has_room(account, Item::request(ask), limits) {
            return Err(Refusal::RequestLimit);
        }
        match self.by_name.get(&ask.name) {
            None if self.locks.len() >= limits.locks.saturating_add(limits.idle_locks) => {
                Err(Refusal::LockLimit)
            }
            Some(lock) if self.queue_len(*lock) >= limits.queue => Err(Refusal::QueueFull),
            _ => Ok(()),
        }
    }

    pub(super) fn queue_len(&self, lock: u32) -> usize {
        self.locks.get(lock).map_or(0, |lock| lock.arbiter.len())
    }

    pub(super) fn not_now(&self) -> Option<NotNow> {
        match self.state {
            State::Serving => None,
            State::Draining | State::Stopped => Some(NotNow::Draining),
            _ => Some(NotNow::Pausing),
        }
    }

    /// Puts an entry into its lock, session and carrier.
    pub(super) fn insert(&mut self, place: u32, entry: Entry) -> u32 {
        let (peer, request) = (entry.peer, entry.ask.request);
        let lock = self.lock_of(&entry.ask.name);
        let session = self
            .sessions
            .get_mut(place)
            .expect("invariant: its session exists");
        session.requests.insert(request, lock);
        let (detached, opener) = (session.detached, session.peer);
        self.accounts.charge(session.account, Item::entry(&entry));
        if detached && let Some(opener) = self.peers.get_mut(opener) {
            opener.loose.remove(&place);
        }
        if let Some(peer) = self.peers.get_mut(peer).filter(|_| detached) {
            peer.carried.insert((place, request));
        }
        let kept = self.locks.get_mut(lock).expect("invariant: just found");
        kept.idle = 0;
        kept.arbiter.insert(entry);
        self.touch(lock);
        lock
    }

    /// The place of a lock, made if it is new.
    pub(super) fn lock_of(&mut self, name: &Name) -> u32 {
        if let Some(place) = self.by_name.get(name).copied() {
            return place;
        }
        let place = self.locks.insert(Lock {
            name: name.clone(),
            policy: self.config.policy(name),
            arbiter: Arbiter::new(Floors::of(self.default_floor)),
            idle: 0,
            gate: None,
        });
        self.by_name.insert(name.clone(), place);
        place
    }

    pub(super) fn entry(&self, session: u32, request: RequestNo) -> Option<&Entry> {
        let session = self.sessions.get(session)?;
        let lock = self.locks.get(*session.requests.get(&request)?)?;
        lock.arbiter.get(session.id, request)
    }

    pub(super) fn entry_mut(&mut self, session: u32, request: RequestNo) -> Option<&mut Entry> {
        let session = self.sessions.get(session)?;
        let lock = self.locks.get_mut(*session.requests.get(&request)?)?;
        lock.arbiter.get_mut(session.id, request)
    }

    /// The session and the entry that a grant reference means, if that is still the grant.
    pub(super) fn granted(&mut self, grant: GrantRef) -> Option<(u32, &mut Entry)> {
        let place = self.by_session.get(&grant.session).copied()?;
        let entry = self.entry_mut(place, grant.request)?;
        let held = entry.grant.as_ref()?;
        (held.number == grant.grant).then_some((place, entry))
    }

    /// Answers a request that is there already.
    pub(super) fn answer_again(
        &mut self,
        peer: u32,
        place: u32,
        ask: &Arc<Ask>,
        inside: Option<&[NodeId]>,
        out: &mut NodeEffects,
    ) {
        let (id, request) = (ask.session, ask.request);
        let Some(entry) = self.entry(place, request) else {
            return;
        };
        if entry.ask != *ask || entry.peer != peer && ask.bond == Bond::Attached {
            self.deny(peer, id, Some(request), Refusal::Unfit, out);
            return;
        }
        self.carry(peer, place, request);
        let Some(entry) = self.entry(place, request) else {
            return;
        };
        if entry.grant.is_some() {
            if self.is_doomed(id, request) {
                // It hears when this grant has ended, and asks again.
                let queued = Message::Queued {
                    session: id,
                    request,
                    position: 1,
                };
                self.send(peer, queued, out);
            } else {
                self.repeat_grant(place, request, out);
            }
            return;
        }
        if inside.is_some() && self.believes_inside() {
            self.rank_inside(ask, out);
        } else if let Some(members) = inside {
            self.check_inside(place, ask, members, out);
        }
        let lock = self
            .sessions
            .get(place)
            .and_then(|session| session.requests.get(&request));
        if let Some(lock) = lock.copied() {
            self.tell_position(peer, lock, id, request, out);
        }
    }

    /// Lets another connection carry a request.
    pub(super) fn carry(&mut self, peer: u32, place: u32, request: RequestNo) {
        let detached = self
            .sessions
            .get(place)
            .is_some_and(|session| session.detached);
        let Some(entry) = self.entry_mut(place, request) else {
            return;
        };
        let old = std::mem::replace(&mut entry.peer, peer);
        if old == peer {
            return;
        }
        if let Some(old) = self.peers.get_mut(old) {
            old.carried.remove(&(place, request));
        }
        if let Some(peer) = self.peers.get_mut(peer).filter(|_| detached) {
            peer.carried.insert((place, request));
        }
        self.forget_peer(old);
    }

    /// Says LOCKED again, and INQUIRE if the grant was asked back.
    pub(super) fn repeat_grant(&mut self, place: u32, request: RequestNo, out: &mut NodeEffects) {
        let Some(entry) = self.entry(place, request) else {
            return;
        };
        let Some(grant) = entry.grant.clone() else {
            return;
        };
        if entry.way.is_some() {
            self.pass_on(place, request, out);
            return;
        }
        let (peer, ask) = (entry.peer, entry.ask.clone());
        self.say_locked(peer, &ask, &grant, out);
        if grant.inquired && !grant.entered {
            let inquire = Message::Inquire(reference(&ask, grant.number));
            self.send(peer, inquire, out);
        }
    }

    pub(super) fn say_locked(
        &mut self,
        peer: u32,
        ask: &Ask,
        grant: &Grant,
        out: &mut NodeEffects,
    ) {
        if self.config.gate.is_none() {
            self.cover(peer, grant.limit, out);
        }
        let locked = Message::Locked {
            grant: reference(ask, grant.number),
            floor: grant.floor,
            limit: grant.limit,
            incarnation: self.incarnation,
            clock: self.token_clock(),
        };
        self.send(peer, locked, out);
    }

    /// Says QUEUED to a request of a client, if it is there and waits.
    pub(super) fn tell_waiting(
        &mut self,
        peer: u32,
        session: SessionId,
        request: RequestNo,
        out: &mut NodeEffects,
    ) {
        let place = self.by_session.get(&session).copied();
        let kept = place.and_then(|place| self.sessions.get(place));
        let lock = kept.and_then(|kept| kept.requests.get(&request).copied());
        if let Some(lock) = lock {
            self.tell_position(peer, lock, session, request, out);
        }
    }

    /// Says QUEUED to a request that was not granted.
    pub(super) fn tell_position(
        &mut self,
        peer: u32,
        lock: u32,
        session: SessionId,
        request: RequestNo,
        out: &mut NodeEffects,
    ) {
        if self.deferred.is_some() {
            return;
        }
        let Some(kept) = self.locks.get(lock) else {
            return;
        };
        let Some(position) = kept.arbiter.position(session, request) else {
            return;
        };
        if kept.arbiter.entries()[position].grant.is_some() {
            return;
        }
        if self.config.rules.has(Plant::FailedRule) {
            let entries = kept.arbiter.entries();
            let first_waiting = entries.iter().position(|entry| entry.grant.is_none());
            if first_waiting == Some(position) && position == 0 {
                return;
            }
        }
        let position = self
            .config
            .gate
            .map_or(position, |_| self.gated_position(lock, position));
        let queued = Message::Queued {
            session,
            request,
            position: position as u32,
        };
        self.send(peer, queued, out);
    }

    /// Runs the arbiter of a lock and says what it wants said; forgets the lock if it is idle.
    pub(super) fn schedule(&mut self, lock: u32, removed: bool, out: &mut NodeEffects) {
        if let Some(deferred) = &mut self.deferred {
            deferred.push(lock);
            return;
        }
        if self.config.gate.is_some() {
            self.schedule_gated(lock, out);
            return;
        }
        let reserve = self.reserve();
        let (rules, now) = (self.config.rules, self.now.mono);
        let serving = matches!(self.state, State::Serving | State::Draining);
        let mut steps = std::mem::take(&mut self.steps);
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        if kept.arbiter.is_empty() {
            self.rest(lock);
        } else if serving {
            let mut scope = Scope {
                policy: kept.policy,
                rules,
                reserve,
                last: &mut self.last_grant,
                steps: &mut steps,
                now,
                removed,
            };
            kept.arbiter.schedule(&mut scope);
        }
        for step in steps.drain(..) {
            self.perform(step, out);
        }
        self.steps = steps;
    }

    pub(super) fn perform(&mut self, step: Step, out: &mut NodeEffects) {
        match step {
            Step::Inquire { peer, ask, number } => {
                self.send(peer, Message::Inquire(reference(&ask, number)), out);
            }
            Step::Grant {
                peer,
                ask,
                number,
                floor,
                limit,
                bypass,
                inside,
                travels,
            } => {
                self.served = true;
                let grant = Grant {
                    number,
                    floor,
                    limit,
                    named: Token(0),
                    inquired: false,
                    entered: false,
                    since: self.now.mono,
                };
                self.store(&ask, out);
                if travels {
                    self.pass_on_ask(&ask, out);
                } else {
                    self.say_locked(peer, &ask, &grant, out);
                }
                if self.is_watched(&ask.name) {
                    let grant = reference(&ask, number);
                    self.send(peer, Message::Watched(grant), out);
                }
                if self.config.observe {
                    out.events.push(NodeEvent::Granted {
                        ask,
                        grant: number,
                        floor,
                        limit,
                        bypass,
                        inside,
                    });
                }
            }
        }
    }

    /// Whether grants are on disk. Those of the front of a hierarchy are not: they rest on
    /// consent, which no restart brings back.
    pub(super) fn keeps_grants(&self) -> bool {
        self.config.restart == Restart::Durable && self.config.gate.is_none()
    }

    /// Writes a grant to disk, if this node keeps grants there.
    pub(super) fn store(&mut self, ask: &Ask, out: &mut NodeEffects) {
        if !self.keeps_grants() {
            return;
        }
        let Some(place) = self.by_session.get(&ask.session).copied() else {
            return;
        };
        if let Some(stored) = self.stored_grant(place, ask.request) {
            self.persist(Record::Grant(Box::new(stored)), out);
        }
    }

    /// A grant as it is written to disk.
    pub(super) fn stored_grant(&self, place: u32, request: RequestNo) -> Option<StoredGrant> {
        let session = self.sessions.get(place)?;
        let entry = self.entry(place, request)?;
        let grant = entry.grant.as_ref()?;
        let client = self.peers.get(entry.peer).map(|peer| peer.id);
        Some(StoredGrant {
            ask: entry.ask.clone(),
            session: SessionInfo {
                session: session.id,
                ttl: session.ttl,
                detached: session.detached,
                owner: session.owner.clone(),
                principal: session.principal.clone(),
            },
            client: client.unwrap_or(entry.ask.priority.client),
            grant: grant.number,
            floor: grant.floor,
            limit: grant.limit,
            named: grant.named,
            entered: grant.entered,
        })
    }

    /// A lock without requests: its floors are kept for a while, then folded into the default.
    pub(super) fn rest(&mut self, lock: u32) {
        self.idle_stamp += 1;
        let stamp = self.idle_stamp;
        if let Some(kept) = self.locks.get_mut(lock) {
            kept.idle = stamp;
        }
        self.idle.push_back((lock, stamp));
        // A lock that went to and fro leaves stale notes behind: they are bounded too.
        while self.idle.len() > self.config.limits.idle_locks {
            let Some((lock, stamp)) = self.idle.pop_front() else {
                break;
            };
            if self.locks.get(lock).is_some_and(|kept| kept.idle == stamp) {
                let kept = self.locks.remove(lock).expect("invariant: just seen");
                self.default_floor = self.default_floor.max(kept.arbiter.floors.highest());
                self.by_name.remove(&kept.name);
            }
        }
    }

    /// The largest token in any floor or limit.
    pub fn highest_token(&self) -> Token {
        let (floor, limit) = self.highest();
        floor.max(limit)
    }

    /// The largest token that may have been used in any lock here, and the largest registered.
    pub(super) fn highest(&self) -> (Token, Token) {
        let mut floor = self.default_floor;
        let mut limit = Token(0);
        for (_, lock) in self.locks.iter() {
            floor = floor.max(lock.arbiter.floors.highest());
            let grants = lock
                .arbiter
                .entries()
                .iter()
                .filter_map(|entry| entry.grant.as_ref());
            limit = grants.map(|grant| grant.limit).fold(limit, Token::max);
        }
        (floor, limit)
    }
}

pub(super) fn reference(ask: &Ask, grant: GrantNo) -> GrantRef {
    GrantRef {
        session: ask.session,
        request: ask.request,
        grant,
    }
}
