//! The serial arbiter of one lock: requests travel through their quorum node by node
//! (`Maekawa_S`).
//!
//! | paper | here |
//! |---|---|
//! | REQUEST | [`Travel`], from the requester to the first member and on from member to member |
//! | GRANT | [`Step::Carried`], from the last member |
//! | UNLOCK | [`Serial::done`] |
//! | requester | a session *and* a request number: see [`Ref`] |
//! | reference | `reference`: while it holds, members of its group join freely |
//! | deferred | entries without a grant |
//!
//! All routes follow one order of all nodes, so requests that hold some members never wait for
//! each other in a circle. The arbiter differs from the published one where that forgets cancels:
//!
//! - An unlock names its request. A travelling request that comes after its own end is dropped;
//!   [`Graves`] remembers the ends. A requester's next request is another entry, so it needs no
//!   special place while the unlock of the last one is still on its way.
//! - Waiting requests stand in order of priority, not of arrival: one that had to start again
//!   keeps its place.
//! - The door is looked at after every change. It opens again when the last conflicting request
//!   has gone, and closes once `max_bypass` late members have passed one that waits.
//! - A request that comes again while it is here is sent on again with the same grant, so a
//!   requester mends a message lost between nodes by starting its request once more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::api::{End, EntryView, LockView};
use super::config::Policy;
use super::floor::Floors;
use super::message::{Carried, GrantRef, Refusal, Travel};
use super::mode::{Ask, Group, Priority};
use super::plant::{Plant, Rules};
use crate::id::{GrantNo, Incarnation, NodeId, RequestNo, SessionId, Token};
use crate::time::Instant;

/// What the protocol calls one requester. Request numbers are never used twice, so no requester
/// ever asks while it still holds.
pub(super) type Ref = (SessionId, RequestNo);

/// Where the arbiter sits and how it serves.
pub(super) struct Desk<'a> {
    /// Its node.
    pub node: NodeId,
    /// The node's present life.
    pub incarnation: Incarnation,
    /// The lock's policy.
    pub policy: Policy,
    /// The rules.
    pub rules: Rules,
    /// As many requests as are kept.
    pub queue: usize,
    /// A new grant number, and a limit above the given token.
    pub mint: &'a mut dyn FnMut(Token) -> (GrantNo, Token),
}

/// What is to be done after a change, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A request was granted here.
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
    },
    /// It travels on to the next member.
    Forward(NodeId, Box<Travel>),
    /// Every member has granted: its client is told.
    Carried(Arc<Ask>, Vec<Carried>),
    /// It waits here, behind so many.
    Queued(Arc<Ask>, u32),
    /// A request ended here; the grant is zero if it waited.
    Ended {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// Why.
        why: End,
    },
}

/// The arbiter of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Serial {
    entries: BTreeMap<Priority, Entry>,
    places: BTreeMap<Ref, Priority>,
    floors: Floors,
    /// The door is open while this entry holds.
    reference: Option<Priority>,
    /// How many late members have passed a waiting request since the group took over.
    passed: u32,
}

/// A request that is here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    ask: Arc<Ask>,
    hint: Token,
    route: Arc<[NodeId]>,
    /// The grants of the members before this one.
    before: Vec<Carried>,
    held: Option<Held>,
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    /// Its number.
    pub grant: GrantNo,
    /// The floor told with it.
    pub floor: Token,
    /// The largest token registered.
    pub limit: Token,
    /// The largest token its holder has named.
    pub named: Token,
    /// The token it entered with.
    pub entered: Option<Token>,
}

impl Serial {
    /// The arbiter of a lock of which these floors are known.
    pub(super) fn new(floors: Floors) -> Self {
        Self {
            floors,
            ..Self::default()
        }
    }

    /// What may have been used.
    pub(super) fn floors(&self) -> &Floors {
        &self.floors
    }

    /// The largest token registered for any grant.
    pub(super) fn limit(&self) -> Token {
        let held = self.entries.values().filter_map(|entry| entry.held);
        held.map(|held| held.limit).max().unwrap_or_default()
    }

    /// Whether nothing is here.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The grant of a request, if it has one.
    pub(super) fn held(&self, key: Ref) -> Option<&Held> {
        self.entry(key)?.held.as_ref()
    }

    /// The requests of a session that are here.
    pub(super) fn of_session(&self, session: SessionId) -> Vec<Ref> {
        let all = (session, RequestNo(0))..=(session, RequestNo(u64::MAX));
        self.places.range(all).map(|(key, _)| *key).collect()
    }

    /// The lock as people and checkers see it.
    pub(super) fn view(&self) -> LockView {
        let entries = self.entries.values().map(|entry| EntryView {
            ask: entry.ask.clone(),
            grant: entry.held.map_or(GrantNo(0), |held| held.grant),
            limit: entry.held.map_or(Token(0), |held| held.limit),
            inquired: false,
            inside: false,
            entered: entry.held.and_then(|held| held.entered),
        });
        let group = self.group();
        let best = self.entries.values().next().map(|entry| entry.ask.group());
        LockView {
            entries: entries.collect(),
            has_priority: best.is_some() && group == best,
            bypassed: self.passed,
        }
    }

    /// A request arrives. The caller has seen to it that it has not ended.
    pub(super) fn travel(
        &mut self,
        desk: &mut Desk<'_>,
        travel: Travel,
        steps: &mut Vec<Step>,
    ) -> Result<(), Refusal> {
        if !travel.route.is_sorted_by(|a, b| a < b) || !travel.route.contains(&desk.node) {
            return Err(Refusal::Unfit);
        }
        let key = (travel.ask.session, travel.ask.request);
        let at = travel.ask.priority;
        let Travel {
            ask,
            hint,
            route,
            grants,
        } = travel;
        if let Some(entry) = self
            .places
            .get(&key)
            .and_then(|at| self.entries.get_mut(at))
        {
            if entry.ask != ask || entry.route != route {
                return Err(Refusal::Unfit);
            }
            entry.before = grants;
            if entry.held.is_some() {
                steps.push(entry.onward(desk));
            }
            return Ok(());
        }
        if self.entries.len() >= desk.queue {
            return Err(Refusal::QueueFull);
        }
        if self.entries.contains_key(&at) {
            return Err(Refusal::Unfit);
        }
        self.places.insert(key, at);
        let entry = Entry {
            ask: ask.clone(),
            hint,
            route,
            before: grants,
            held: None,
        };
        self.entries.insert(at, entry);
        self.schedule(desk, steps);
        if self.held(key).is_none() {
            let before = self.entries.range(..at).count();
            steps.push(Step::Queued(ask, before as u32));
        }
        Ok(())
    }

    /// A request ends: its holder may have used `token`, or was never inside. Says whether the
    /// request was here.
    pub(super) fn done(
        &mut self,
        desk: &mut Desk<'_>,
        key: Ref,
        token: Option<Token>,
        steps: &mut Vec<Step>,
    ) -> bool {
        if desk.rules.has(Plant::SerialUnlockWithoutRequest) {
            // The session is the requester: it is locked here or it is not.
            self.drop_session(desk, key.0, End::Cancelled, steps);
            return true;
        }
        let Some(entry) = self.entry(key) else {
            return false;
        };
        let why = match (token, entry.held) {
            (Some(token), Some(held)) => End::Done(token.min(held.limit).max(held.named)),
            _ => End::Cancelled,
        };
        self.end(desk, key, why, steps);
        true
    }

    /// Ends a request. A grant that was neither given back by its holder nor cancelled counts as
    /// used up to its limit.
    pub(super) fn end(&mut self, desk: &mut Desk<'_>, key: Ref, why: End, steps: &mut Vec<Step>) {
        if self.remove(key, why, steps) {
            self.schedule(desk, steps);
        }
    }

    /// Ends all requests of a session.
    pub(super) fn drop_session(
        &mut self,
        desk: &mut Desk<'_>,
        session: SessionId,
        why: End,
        steps: &mut Vec<Step>,
    ) {
        for key in self.of_session(session) {
            self.remove(key, why, steps);
        }
        self.schedule(desk, steps);
    }

    /// Registers a larger token for a grant; none if there is no such grant.
    pub(super) fn raise(&mut self, grant: GrantRef, token: Token) -> Option<Token> {
        let held = self.grant_mut(grant)?;
        held.named = held.named.max(token);
        held.limit = held.limit.max(token);
        Some(held.limit)
    }

    /// The holder of a grant is inside with this token. Nothing above it will be used without a
    /// raise, so a later crash burns nothing.
    pub(super) fn entered(
        &mut self,
        grant: GrantRef,
        token: Token,
    ) -> Result<Option<Arc<Ask>>, Refusal> {
        let Some(held) = self.grant_mut(grant) else {
            return Ok(None);
        };
        if token > held.limit {
            return Err(Refusal::TokenAboveLimit);
        }
        held.named = held.named.max(token);
        held.entered = Some(held.named);
        held.limit = held.named;
        let entry = self.entry((grant.session, grant.request));
        Ok(entry.map(|entry| entry.ask.clone()))
    }

    /// Takes over a grant of an earlier life, unless it conflicts with one that is here.
    pub(super) fn restore(&mut self, ask: &Arc<Ask>, held: Held) -> bool {
        let key = (ask.session, ask.request);
        let other = self.group().is_some_and(|group| group != ask.group());
        if other || self.places.contains_key(&key) || self.entries.contains_key(&ask.priority) {
            return false;
        }
        let entry = Entry {
            ask: ask.clone(),
            hint: Token(0),
            route: Arc::from([]),
            before: Vec::new(),
            held: Some(held),
        };
        self.places.insert(key, ask.priority);
        self.entries.insert(ask.priority, entry);
        self.reference.get_or_insert(ask.priority);
        true
    }

    /// The group that holds, if any.
    fn group(&self) -> Option<Group> {
        let mut held = self.entries.values().filter(|entry| entry.held.is_some());
        held.next().map(|entry| entry.ask.group())
    }

    fn entry(&self, key: Ref) -> Option<&Entry> {
        self.entries.get(self.places.get(&key)?)
    }

    fn grant_mut(&mut self, grant: GrantRef) -> Option<&mut Held> {
        let at = self.places.get(&(grant.session, grant.request))?;
        let held = self.entries.get_mut(at)?.held.as_mut()?;
        (held.grant == grant.grant).then_some(held)
    }

    fn remove(&mut self, key: Ref, why: End, steps: &mut Vec<Step>) -> bool {
        let Some(at) = self.places.remove(&key) else {
            return false;
        };
        let entry = self.entries.remove(&at);
        let entry = entry.expect("invariant: every place has its entry");
        if self.reference == Some(at) {
            self.reference = None;
        }
        if let Some(held) = entry.held {
            match why {
                End::Done(token) => self.floors.record(&entry.ask.group(), token),
                End::Cancelled | End::Yielded => {}
                _ => self.floors.record(&entry.ask.group(), held.limit),
            }
        }
        steps.push(Step::Ended {
            grant: entry.held.map_or(GrantNo(0), |held| held.grant),
            ask: entry.ask,
            why,
        });
        true
    }

    /// Grants what may be granted; to be called after every change.
    fn schedule(&mut self, desk: &mut Desk<'_>, steps: &mut Vec<Step>) {
        let mut inside = 0;
        let mut group = None;
        for entry in self.entries.values().filter(|entry| entry.held.is_some()) {
            inside += 1;
            group.get_or_insert_with(|| entry.ask.group());
        }
        let Some((best, entry)) = self.entries.first_key_value() else {
            (self.reference, self.passed) = (None, 0);
            return;
        };
        let group = if let Some(group) = group {
            group
        } else {
            (self.reference, self.passed) = (Some(*best), 0);
            entry.ask.group()
        };
        // The best request of another group that waits: who joins behind it passes it.
        let rival = self.waiting().find(|(_, ask)| ask.group() != group);
        let rival = rival.map(|(at, _)| at);
        if self.reference.is_none() {
            if rival.is_some() {
                return;
            }
            // Nobody is in the way any more: the door opens again.
            let mut held = self
                .entries
                .iter()
                .filter(|(_, entry)| entry.held.is_some());
            self.reference = held.next().map(|(at, _)| *at);
        }
        let members = self.waiting().filter(|(_, ask)| ask.group() == group);
        let members: Vec<Priority> = members.map(|(at, _)| at).collect();
        for at in members {
            if inside >= desk.policy.max_inside.max(1) {
                break;
            }
            let bypass = rival.is_some_and(|rival| rival < at);
            if bypass {
                if self.passed >= desk.policy.max_bypass {
                    self.reference = None;
                    break;
                }
                self.passed += 1;
            }
            inside += 1;
            self.grant(desk, at, bypass, steps);
        }
    }

    /// Requests without a grant, best first.
    fn waiting(&self) -> impl Iterator<Item = (Priority, &Ask)> {
        let waiting = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.held.is_none());
        waiting.map(|(at, entry)| (*at, entry.ask.as_ref()))
    }

    fn grant(&mut self, desk: &mut Desk<'_>, at: Priority, bypass: bool, steps: &mut Vec<Step>) {
        let Some(entry) = self.entries.get_mut(&at) else {
            return;
        };
        let floor = self.floors.other(&entry.ask.group());
        let (grant, limit) = (desk.mint)(self.floors.highest().max(entry.hint));
        entry.held = Some(Held {
            grant,
            floor,
            limit,
            named: Token(0),
            entered: None,
        });
        steps.push(Step::Granted {
            ask: entry.ask.clone(),
            grant,
            floor,
            limit,
            bypass,
        });
        steps.push(entry.onward(desk));
    }
}

impl Entry {
    /// Sends a granted request on: to the next member, or to its client if this was the last.
    fn onward(&self, desk: &Desk<'_>) -> Step {
        let held = self
            .held
            .expect("invariant: only a granted request travels on");
        let mut grants = self.before.clone();
        grants.push(Carried {
            node: desk.node,
            incarnation: desk.incarnation,
            grant: held.grant,
            floor: held.floor,
            limit: held.limit,
        });
        let Some(next) = self.route.iter().find(|node| **node > desk.node) else {
            return Step::Carried(self.ask.clone(), grants);
        };
        let travel = Travel {
            ask: self.ask.clone(),
            hint: grants
                .iter()
                .map(|grant| grant.floor)
                .fold(self.hint, Token::max),
            route: self.route.clone(),
            grants,
        };
        Step::Forward(*next, Box::new(travel))
    }
}

/// Requests that ended, so that one still travelling is not taken up after its end. Bounded in
/// number and time: a request that comes later still holds a place until its client, told of the
/// grant, ends it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Graves {
    until: BTreeMap<Ref, Instant>,
    order: VecDeque<(Instant, Ref)>,
}

impl Graves {
    /// Remembers an end for `span`, and at most `limit` of them.
    pub(super) fn bury(&mut self, now: Instant, key: Ref, span: Duration, limit: usize) {
        let until = now + span;
        if self.until.insert(key, until).is_none() {
            self.order.push_back((until, key));
        }
        self.sweep(now);
        while self.order.len() > limit {
            self.drop_first();
        }
    }

    /// Whether this request is known to have ended.
    pub(super) fn has(&self, key: Ref) -> bool {
        self.until.contains_key(&key)
    }

    /// How many ends are remembered.
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    /// Forgets what is old.
    pub(super) fn sweep(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, key)) = self.order.pop_front() {
            self.until.remove(&key);
        }
    }
}
