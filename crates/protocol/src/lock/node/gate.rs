//! A node as the front of a hierarchy: it grants a lock only while the clusters consent.
//!
//! Clients speak the lock protocol to one node, their home. Its arbiter schedules as ever, but
//! behind a gate: whoever asks makes the node *want* the lock, and only once consent has come
//! from above are requests of that class let in. Several exclusive requests may follow each other
//! under one consent, up to a bound; then it goes back, and is wanted again if others wait.
//!
//! **Time.** A client counts its hold from the heartbeats that were answered, so none is answered
//! unless consent lasts for as long as that answer promises. A hold that cannot be promised any
//! longer is *doomed*: its client is told at once that it is dead, and for a client that is not
//! reached the grant stays until the last promise has run out.
//!
//! **Tokens.** Consent brings a block of tokens. Floors begin at its start, and no limit exceeds
//! its end; the largest token that was used goes back with it.
//!
//! Nothing of this is on disk: a node that starts again has no consent, and what its earlier life
//! was given runs out above.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{LockNode, State, Timer};
use crate::id::{Name, RequestNo, SessionId, Token};
use crate::lock::api::{End, NodeEffects, NodeEvent};
use crate::lock::arbiter::{Entry, Reserve, Scope};
use crate::lock::floor::Floors;
use crate::lock::message::{GrantRef, Message, Refusal};
use crate::lock::mode::Mode;
use crate::multilevel::Block;
use crate::time::Instant;

/// What a node in front of a hierarchy keeps for all its locks.
#[derive(Clone, Debug, Default)]
pub(super) struct Gates {
    /// The last wish.
    wishes: u64,
    /// Grants that are renewed no more, and when they end.
    doomed: BTreeMap<(SessionId, RequestNo), Instant>,
}

/// How far a lock has come with the clusters; a lock without one has asked for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Consent is wanted.
    Wanted(Wanted),
    /// Consent is there.
    Open(Open),
    /// Consent is lost, and some who were let in may still believe in their grants.
    Lapsing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    wish: u64,
    mode: Mode,
    /// When whoever waits is told that somebody is in the way.
    late: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Open {
    wish: u64,
    mode: Mode,
    block: Block,
    until: Instant,
    /// How many were let in.
    passed: u32,
}

impl LockNode {
    /// Whether this node is the front of a hierarchy.
    pub fn is_gated(&self) -> bool {
        self.config.gate.is_some()
    }

    /// How many locks have consent, and how many want it; only those with a request are looked
    /// at.
    pub fn consents(&self) -> [usize; 2] {
        let mut counts = [0; 2];
        for (_, lock) in self.locks.iter() {
            match lock.gate.as_deref() {
                Some(Gate::Open(_)) => counts[0] += 1,
                Some(Gate::Wanted(_)) => counts[1] += 1,
                Some(Gate::Lapsing) | None => {}
            }
        }
        counts
    }

    /// Runs the arbiter of a lock behind its gate.
    pub(super) fn schedule_gated(&mut self, lock: u32, out: &mut NodeEffects) {
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        let (granted, gate) = (kept.arbiter.granted, kept.gate.take());
        let next = match gate.map(|gate| *gate) {
            Some(Gate::Open(open)) => self.let_in(lock, open, out),
            Some(Gate::Wanted(wanted)) => self.want_on(lock, wanted, out),
            Some(Gate::Lapsing) if granted > 0 => Some(Gate::Lapsing),
            Some(Gate::Lapsing) | None => None,
        };
        let next = next.or_else(|| self.want(lock, out));
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        kept.gate = next.map(Box::new);
        if kept.arbiter.is_empty() {
            self.rest(lock);
        }
    }

    /// Wants consent for the best request.
    fn want(&mut self, lock: u32, out: &mut NodeEffects) -> Option<Gate> {
        if !matches!(self.state, State::Serving | State::Draining) {
            return None;
        }
        let patience = self.config.gate.as_ref()?.patience;
        let kept = self.locks.get(lock)?;
        let mode = kept.arbiter.entries().front()?.ask.mode.clone();
        let name = kept.name.clone();
        let same = kept.arbiter.entries().iter();
        let same = same.filter(|entry| entry.ask.mode == mode);
        let longest = same.map(|entry| self.need(entry)).max()?;
        // Twice the need: a consent that is renewed in time never falls below it.
        let span = longest * 2 + self.config.times.link_ttl;
        self.gates.wishes += 1;
        let wish = self.gates.wishes;
        let late = self.now.mono + patience;
        self.arm(late, Timer::Gate(lock));
        out.events.push(NodeEvent::Want {
            name,
            wish,
            mode: mode.clone(),
            span,
        });
        Some(Gate::Wanted(Wanted { wish, mode, late }))
    }

    /// A wish stands while somebody of its class waits.
    fn want_on(&mut self, lock: u32, wanted: Wanted, out: &mut NodeEffects) -> Option<Gate> {
        let kept = self.locks.get(lock)?;
        let entries = kept.arbiter.entries();
        if entries.iter().any(|entry| entry.ask.mode == wanted.mode) {
            return Some(Gate::Wanted(wanted));
        }
        out.events.push(NodeEvent::Leave {
            name: kept.name.clone(),
            wish: wanted.wish,
            used: Token(0),
        });
        None
    }

    /// Lets in whom the consent covers, best first; gives it back when nobody is inside and the
    /// next may not be let in under it.
    fn let_in(&mut self, lock: u32, mut open: Open, out: &mut NodeEffects) -> Option<Gate> {
        if matches!(self.state, State::Serving | State::Draining) {
            while let Some(place) = self.next_in(lock, &open) {
                open.passed += 1;
                self.admit(lock, place, &open, out);
            }
        }
        let kept = self.locks.get(lock)?;
        if kept.arbiter.granted > 0 {
            return Some(Gate::Open(open));
        }
        let highest = kept.arbiter.floors.highest();
        let used = if highest > open.block.from {
            highest
        } else {
            Token(0)
        };
        out.events.push(NodeEvent::Leave {
            name: kept.name.clone(),
            wish: open.wish,
            used,
        });
        None
    }

    /// The request that may be let in next under a consent, if there is one.
    fn next_in(&self, lock: u32, open: &Open) -> Option<usize> {
        let (rules, kept) = (self.config.gate.as_ref()?, self.locks.get(lock)?);
        let arbiter = &kept.arbiter;
        let place = arbiter.entries().iter().position(|one| one.grant.is_none());
        let place = place?;
        let entry = &arbiter.entries()[place];
        let bound = match open.mode {
            Mode::Exclusive => rules.passes,
            Mode::Shared | Mode::Group(_) => rules.joins,
        };
        // Whoever is of another class goes first if it is older: nobody passes it.
        let fits = entry.ask.mode == open.mode
            && open.passed < bound
            && arbiter.granted < kept.policy.max_inside.max(1)
            && arbiter.floors.highest() < open.block.to
            && open.until >= self.now.mono + self.need(entry)
            && arbiter.admits(&entry.ask);
        fits.then_some(place)
    }

    fn admit(&mut self, lock: u32, place: usize, open: &Open, out: &mut NodeEffects) {
        let slice = self.config.gate.as_ref().map_or(0, |gate| gate.slice);
        let (rules, now) = (self.config.rules, self.now.mono);
        let mut steps = std::mem::take(&mut self.steps);
        if let Some(kept) = self.locks.get_mut(lock) {
            let mut scope = Scope {
                policy: kept.policy,
                rules,
                reserve: Reserve {
                    reach: Token(0),
                    margin: slice,
                    ceiling: open.block.to,
                    bound: open.block.to,
                },
                last: &mut self.last_grant,
                steps: &mut steps,
                now,
                removed: false,
            };
            kept.arbiter.grant(place, false, &mut scope);
        }
        for step in steps.drain(..) {
            self.perform(step, out);
        }
        self.steps = steps;
    }

    /// For how long a consent must last to let a request in, or to renew it.
    fn need(&self, entry: &Entry) -> Duration {
        let session = self.by_session.get(&entry.ask.session).copied();
        let session = session.and_then(|place| self.sessions.get(place));
        let ttl = session.map_or(self.config.times.ttl_max, |session| session.ttl);
        ttl.max(self.config.times.link_ttl)
    }

    /// Consent has come.
    pub(super) fn consent(
        &mut self,
        name: &Name,
        wish: u64,
        block: Block,
        until: Instant,
        out: &mut NodeEffects,
    ) {
        let Some(lock) = self.by_name.get(name).copied() else {
            return;
        };
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        let Some(Gate::Wanted(wanted)) = kept.gate.as_deref() else {
            return;
        };
        if wanted.wish != wish {
            return;
        }
        let mode = wanted.mode.clone();
        kept.gate = Some(Box::new(Gate::Open(Open {
            wish,
            mode,
            block,
            until,
            passed: 0,
        })));
        // All that was used before, here and elsewhere, is below the block.
        kept.arbiter.floors = Floors::of(block.from);
        self.schedule(lock, false, out);
    }

    /// Consent lasts longer.
    pub(super) fn extended(&mut self, name: &Name, wish: u64, until: Instant) {
        if let Some(open) = self.open_gate(name, wish) {
            open.until = open.until.max(until);
        }
    }

    fn open_gate(&mut self, name: &Name, wish: u64) -> Option<&mut Open> {
        let lock = self.by_name.get(name).copied()?;
        match self.locks.get_mut(lock)?.gate.as_deref_mut()? {
            Gate::Open(open) if open.wish == wish => Some(open),
            _ => None,
        }
    }

    /// Consent has run out, or is about to: whoever is inside is renewed no more.
    pub(super) fn consent_lost(&mut self, name: &Name, wish: u64, out: &mut NodeEffects) {
        let Some(until) = self.open_gate(name, wish).map(|open| open.until) else {
            return;
        };
        let Some(lock) = self.by_name.get(name).copied() else {
            return;
        };
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        kept.gate = Some(Box::new(Gate::Lapsing));
        let granted = kept.arbiter.entries().iter();
        let granted = granted.filter(|entry| entry.grant.is_some());
        let granted: Vec<_> = granted
            .map(|entry| (entry.ask.session, entry.ask.request))
            .collect();
        for (session, request) in granted {
            self.doom(session, request, until, out);
        }
        self.schedule(lock, true, out);
    }

    /// The clusters have no room for a wish: whoever waits is refused.
    pub(super) fn consent_refused(&mut self, name: &Name, wish: u64, out: &mut NodeEffects) {
        let Some(lock) = self.by_name.get(name).copied() else {
            return;
        };
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        let wanted = |gate: &Gate| matches!(gate, Gate::Wanted(wanted) if wanted.wish == wish);
        if !kept.gate.as_deref().is_some_and(wanted) {
            return;
        }
        kept.gate = None;
        let waiting = kept.arbiter.entries().iter();
        let waiting = waiting.filter(|entry| entry.grant.is_none());
        let waiting: Vec<_> = waiting
            .map(|entry| (entry.peer, entry.ask.session, entry.ask.request))
            .collect();
        let mut ended = Vec::new();
        for (peer, session, request) in waiting {
            self.deny(peer, session, Some(request), Refusal::LockLimit, out);
            let place = self.by_session.get(&session).copied();
            ended.extend(place.map(|place| (place, request)));
        }
        self.end_all(&ended, End::Cancelled, out);
    }

    /// Renews a grant no more: its client is told, and for one that is not reached it stays as
    /// long as it was promised.
    fn doom(
        &mut self,
        session: SessionId,
        request: RequestNo,
        until: Instant,
        out: &mut NodeEffects,
    ) {
        if self.is_doomed(session, request) {
            return;
        }
        let Some(place) = self.by_session.get(&session).copied() else {
            return;
        };
        let Some(promised) = self.promised(place, request) else {
            return;
        };
        let at = promised.min(until);
        self.tell_dead(place, Some(request), out);
        self.gates.doomed.insert((session, request), at);
        self.arm(at, Timer::Doom(session, request));
    }

    /// Until when the client of a grant may believe in it.
    fn promised(&self, place: u32, request: RequestNo) -> Option<Instant> {
        let session = self.sessions.get(place)?;
        let entry = self.entry(place, request)?;
        let link = self.peers.get(entry.peer).map(|peer| peer.renewed);
        let link = link.map_or(self.now.mono, |at| at + self.config.times.link_ttl);
        Some(self.session_deadline(session).max(link))
    }

    pub(super) fn is_doomed(&self, session: SessionId, request: RequestNo) -> bool {
        self.gates.doomed.contains_key(&(session, request))
    }

    /// A request has ended, or given its grant back.
    pub(super) fn undoom(&mut self, session: SessionId, request: RequestNo) {
        if self.config.gate.is_some() {
            self.gates.doomed.remove(&(session, request));
        }
    }

    pub(super) fn doom_timer(
        &mut self,
        session: SessionId,
        request: RequestNo,
        out: &mut NodeEffects,
    ) {
        let at = self.gates.doomed.get(&(session, request));
        if at.is_none_or(|at| *at > self.now.mono) {
            return;
        }
        if let Some(place) = self.by_session.get(&session).copied() {
            // A requester that is outside asks again when it hears this.
            self.tell_dead(place, Some(request), out);
            self.end(place, request, End::Expired, out);
            self.tidy_detached(place);
        }
        self.gates.doomed.remove(&(session, request));
    }

    /// Whoever still waits for consent is told that somebody is in the way.
    pub(super) fn gate_timer(&mut self, lock: u32, out: &mut NodeEffects) {
        let Some(kept) = self.locks.get(lock) else {
            return;
        };
        let Some(Gate::Wanted(wanted)) = kept.gate.as_deref() else {
            return;
        };
        if wanted.late > self.now.mono {
            return;
        }
        for (place, entry) in kept.arbiter.entries().iter().enumerate() {
            let link = self.peers.get(entry.peer).and_then(|peer| peer.link);
            let Some(link) = link.filter(|_| entry.grant.is_none()) else {
                continue;
            };
            let queued = Message::Queued {
                session: entry.ask.session,
                request: entry.ask.request,
                position: place.max(1) as u32,
            };
            // Nothing of a gated node waits for its disk.
            out.send(crate::lock::api::To::Link(link), queued);
        }
    }

    /// A request's place as its client is told: nobody is first while somebody else is inside,
    /// here or elsewhere as far as that can be guessed.
    pub(super) fn gated_position(&self, lock: u32, position: usize) -> usize {
        let Some(kept) = self.locks.get(lock) else {
            return position;
        };
        let late = match kept.gate.as_deref() {
            Some(Gate::Wanted(wanted)) => wanted.late <= self.now.mono,
            Some(Gate::Open(_)) => kept.arbiter.granted > 0,
            Some(Gate::Lapsing) => true,
            None => false,
        };
        position.max(usize::from(late))
    }

    /// Whether everything that a client's heartbeat would renew is covered by consent. What is not
    /// is doomed; but at first the heartbeat is only not answered, because consent may be on its
    /// way.
    pub(super) fn may_renew(&mut self, place: u32, out: &mut NodeEffects) -> bool {
        let Some(peer) = self.peers.get(place) else {
            return true;
        };
        let link_ttl = self.config.times.link_ttl;
        let fresh = self.now.mono.since(peer.renewed) < link_ttl / 2;
        let granted = self.requests_of(place, |entry| entry.grant.is_some());
        let bare: Vec<_> = granted
            .into_iter()
            .filter_map(|(session, request)| {
                let kept = self.sessions.get(session)?;
                let entered = self.entry(session, request)?.grant.as_ref()?.entered;
                // Whoever has a handle is renewed by it.
                let by_handle = kept.detached && entered;
                let covered = by_handle || self.is_covered(session, request);
                (!covered && !self.is_doomed(kept.id, request)).then_some((kept.id, request))
            })
            .collect();
        if bare.is_empty() {
            return true;
        }
        if fresh {
            return false;
        }
        for (session, request) in bare {
            self.doom(session, request, Instant::FAR, out);
        }
        true
    }

    /// Whether consent for the lock of a grant lasts for as long as a renewal would promise.
    fn is_covered(&self, session: u32, request: RequestNo) -> bool {
        let lock = self.sessions.get(session);
        let lock = lock.and_then(|session| session.requests.get(&request));
        let gate = lock.and_then(|lock| self.locks.get(*lock)?.gate.as_deref());
        let Some(entry) = self.entry(session, request) else {
            return true;
        };
        match gate {
            Some(Gate::Open(open)) => open.until >= self.now.mono + self.need(entry),
            _ => false,
        }
    }

    /// Refuses what is said about a grant that is doomed, or that cannot be renewed by what is
    /// said. `true` if it did.
    pub(super) fn cuts_off(&mut self, peer: u32, grant: GrantRef, out: &mut NodeEffects) -> bool {
        let Some(place) = self.by_session.get(&grant.session).copied() else {
            return false;
        };
        let Some(entry) = self.entry(place, grant.request) else {
            return false;
        };
        let current = entry.grant.as_ref().map(|held| held.number);
        if current != Some(grant.grant) {
            return false;
        }
        let detached = self.sessions.get(place).is_some_and(|kept| kept.detached);
        if !self.is_doomed(grant.session, grant.request) {
            // What is said with a handle renews its whole session.
            if !detached || self.all_covered(place) {
                return false;
            }
            self.doom(grant.session, grant.request, Instant::FAR, out);
        }
        self.dead(peer, grant.session, Some(grant.request), out);
        true
    }

    fn all_covered(&self, place: u32) -> bool {
        let Some(kept) = self.sessions.get(place) else {
            return true;
        };
        kept.requests.keys().all(|request| {
            let granted = self.entry(place, *request).map(|one| one.grant.is_some());
            granted != Some(true) || self.is_covered(place, *request)
        })
    }

    /// The last token of the consent that a grant rests on, if this node has a gate.
    pub(super) fn block_end(&self, grant: GrantRef) -> Option<Token> {
        self.config.gate.as_ref()?;
        let place = self.by_session.get(&grant.session)?;
        let lock = self.sessions.get(*place)?.requests.get(&grant.request)?;
        match self.locks.get(*lock)?.gate.as_deref()? {
            Gate::Open(open) => Some(open.block.to),
            _ => Some(Token(0)),
        }
    }
}
