//! Who may speak for a session and ask for a lock, and sessions that an operator revoked.
//!
//! A revoked session is renewed no more. Whoever speaks for it is told before anything that they
//! say later is answered, so nobody counts an answer that no longer renews. Its grants stay as long
//! as a holder that was not reached may believe in them; then they end as possibly used.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::LockNode;
use super::quota::Origin;
use crate::id::{LinkId, Name, RequestNo, SessionId};
use crate::lock::access::{ADDRESS_MARK, Access, Action, Who};
use crate::lock::api::{End, NodeEffects, NodeEvent};
use crate::lock::message::{Message, Refusal};
use crate::lock::mode::Ask;
use crate::lock::plant::Plant;
use crate::lock::record::{Record, Stored, StoredRevocation};
use crate::lock::watch::Watch;
use crate::time::Instant;

impl LockNode {
    /// Whether a principal may administer a session: every lock it asks for here, or all locks if
    /// it asks for none. None if there is no such session.
    pub fn may_administer(&self, principal: &str, session: SessionId) -> Option<bool> {
        let place = self.by_session.get(&session).copied()?;
        let kept = self.sessions.get(place)?;
        let may = |lock: &u32| {
            let lock = self.locks.get(*lock);
            let name = lock.map_or(&b""[..], |lock| lock.name.bytes());
            self.access.may(principal, Action::Administer, name)
        };
        if kept.requests.is_empty() {
            return Some(self.access.may_all(principal, Action::Administer));
        }
        Some(kept.requests.values().all(may))
    }

    /// How many grants a session has here, and how long they last if nothing more is heard.
    pub fn grants_of(&self, session: SessionId, now: Instant) -> Option<(usize, Duration)> {
        let place = self.by_session.get(&session).copied()?;
        let kept = self.sessions.get(place)?;
        let granted = |request: &&RequestNo| {
            let entry = self.entry(place, **request);
            entry.is_some_and(|entry| entry.grant.is_some())
        };
        let grants = kept.requests.keys().filter(granted).count();
        Some((grants, self.believed_until(place).since(now)))
    }

    /// Who is at the other end of a connection that has not said anything yet.
    pub(super) fn arrives(&mut self, link: LinkId, origin: Origin) {
        // One that speaks already is who it was.
        if self.links.get(&link).is_none() {
            self.arrivals.insert(link, origin);
        }
    }

    /// Whether a client has something here that is not of this principal: then somebody else
    /// took its id.
    pub(super) fn is_stranger(&self, peer: u32, who: Option<&Who>) -> bool {
        let (Some(who), Some(peer)) = (who.filter(|who| !who.gateway), self.peers.get(peer)) else {
            return false;
        };
        let carried = peer.carried.iter().map(|(session, _)| session);
        let mut all = peer.sessions.iter().chain(&peer.loose).chain(carried);
        all.any(|place| {
            let session = self.sessions.get(*place);
            session.is_some_and(|session| session.principal != who.principal)
        })
    }

    /// The one principal that a connection may speak for; none if it may speak for any.
    fn bound(&self, peer: u32) -> Option<&Arc<str>> {
        let who = self.peers.get(peer)?.origin.as_ref()?.who()?;
        (!who.gateway).then_some(&who.principal)
    }

    /// Whether a connection may watch: it must be allowed to read all that it would see. A gateway
    /// looks for itself whether its caller is.
    pub(super) fn may_watch(&self, peer: u32, what: &Watch) -> bool {
        let bound = self.bound(peer);
        bound.is_none_or(|who| self.access.may(who, Action::Read, what.bytes()))
    }

    /// From now on these rules count.
    pub(super) fn set_access(&mut self, access: Arc<Access>, out: &mut NodeEffects) {
        self.access = access;
        self.end_barred_watches(out);
    }

    /// In whose name a session asks that this connection announces.
    pub(super) fn principal_of(&self, peer: u32, claimed: &Arc<str>) -> Arc<str> {
        let principal = self.bound(peer).unwrap_or(claimed);
        if principal.starts_with(ADDRESS_MARK) {
            // Nobody has said who they are; the address only pays.
            return Arc::default();
        }
        principal.clone()
    }

    /// Why a connection may not speak for a session that is here, if so.
    pub(super) fn bars(&self, peer: u32, session: SessionId) -> Option<Refusal> {
        let bound = self.bound(peer);
        if bound.is_none() && self.revoked_here == 0 {
            return None;
        }
        let place = self.by_session.get(&session).copied()?;
        let kept = self.sessions.get(place)?;
        if bound.is_some_and(|bound| *bound != kept.principal) {
            return Some(Refusal::NotPermitted);
        }
        kept.revoked.map(|_| Refusal::Revoked)
    }

    /// Refuses what a connection may not say, or what is said for a revoked session. `true` if it
    /// did.
    pub(super) fn refuses(&mut self, peer: u32, message: &Message, out: &mut NodeEffects) -> bool {
        let Some((session, request, ends)) = about(message) else {
            return false;
        };
        let bound = self.bound(peer).is_some();
        if let Message::Finish { .. } | Message::Keepalive { .. } = message
            && bound
            && self.by_session.get(&session).is_none()
        {
            // Only gateways have handles: nobody else leaves marks about sessions unknown here.
            self.dead(peer, session, Some(request), out);
            return true;
        }
        match self.bars(peer, session) {
            None => false,
            Some(Refusal::Revoked) if ends => false,
            Some(Refusal::Revoked) if matches!(message, Message::Yield(_)) => {
                // It would wait on, for nothing.
                self.done(peer, session, request, None, out);
                true
            }
            Some(why) => {
                self.bar(peer, session, Some(request), None, why, out);
                true
            }
        }
    }

    /// Refuses by name, and tells observers in whose name it was asked.
    pub(super) fn bar(
        &mut self,
        peer: u32,
        session: SessionId,
        request: Option<RequestNo>,
        name: Option<&Name>,
        why: Refusal,
        out: &mut NodeEffects,
    ) {
        if matches!(why, Refusal::NotPermitted | Refusal::Revoked) && self.config.observe {
            let place = self.by_session.get(&session).copied();
            let kept = place.and_then(|place| self.sessions.get(place));
            let of = self.bound(peer).or(kept.map(|kept| &kept.principal));
            out.events.push(NodeEvent::Barred {
                principal: of.cloned().unwrap_or_default(),
                session,
                name: name.cloned(),
                why,
            });
        }
        self.deny(peer, session, request, why, out);
    }

    /// Whether a session may ask for a lock here.
    pub(super) fn permits(&self, session: u32, ask: &Ask) -> Result<(), Refusal> {
        let Some(kept) = self.sessions.get(session) else {
            return Err(Refusal::Unfit);
        };
        let name = ask.name.bytes();
        if !self.access.may(&kept.principal, Action::Acquire, name) {
            return Err(Refusal::NotPermitted);
        }
        let by = self.revoked.get(&ask.session);
        let revoked = |by: &str| self.access.may(by, Action::Administer, name);
        if kept.revoked.is_some() || by.is_some_and(|(_, by)| revoked(by)) {
            return Err(Refusal::Revoked);
        }
        Ok(())
    }

    /// An operator revokes a session, which may be unknown here: it may still come.
    pub(super) fn revoke(
        &mut self,
        session: SessionId,
        by: Arc<str>,
        force: bool,
        out: &mut NodeEffects,
    ) {
        self.remember_revocation(session, by.clone());
        let known = self.by_session.get(&session).is_some();
        let revocation = StoredRevocation { session, by, known };
        self.persist(Record::Revoked(Box::new(revocation)), out);
        self.forgive(out);
        let Some(place) = self.by_session.get(&session).copied() else {
            return;
        };
        let early = self.config.rules.has(Plant::RevokeFreesEarly);
        self.tell_revoked(place, out);
        if force || early {
            // What ends in its time is an expiry like any other; only force breaks a promise.
            let why = if force { End::Revoked } else { End::Expired };
            self.expire(place, why, out);
            return;
        }
        self.renew_no_more(place);
        self.end_waiting(place, out);
    }

    /// What may still come of a session is refused for as long as anything of it may live.
    fn remember_revocation(&mut self, session: SessionId, by: Arc<str>) {
        let until = self.now.mono + self.config.times.stretch(self.config.times.ttl_max);
        self.revoked.insert(session, (until, by));
        self.revoked_by_age.push_back((until, session));
    }

    /// A session ends when a holder that was not reached must have left.
    fn renew_no_more(&mut self, place: u32) {
        let until = self.believed_until(place);
        let Some(kept) = self.sessions.get_mut(place) else {
            return;
        };
        if kept.revoked.is_none() {
            kept.revoked = Some(until);
            self.revoked_here += 1;
        }
        self.arm_session(place);
    }

    /// Takes revocations from disk, before anything is restored: a restart undoes none.
    pub(super) fn restore_revocations(&mut self, stored: &Stored) {
        for revocation in stored.revoked.values() {
            self.remember_revocation(revocation.session, revocation.by.clone());
        }
    }

    /// What was restored of revoked sessions ends in its time.
    pub(super) fn end_restored(&mut self, stored: &Stored) {
        for revocation in stored.revoked.values().filter(|one| one.known) {
            if let Some(place) = self.by_session.get(&revocation.session).copied() {
                self.renew_no_more(place);
            }
        }
    }

    /// Until when somebody who was not reached may believe to hold a lock of a session.
    fn believed_until(&self, place: u32) -> Instant {
        let Some(kept) = self.sessions.get(place) else {
            return self.now.mono;
        };
        let mut until = self.session_deadline(kept);
        for request in kept.requests.keys() {
            let Some(entry) = self.entry(place, *request) else {
                continue;
            };
            // What has not entered lives by the heartbeats of its connection.
            if entry.grant.as_ref().is_some_and(|grant| !grant.entered)
                && let Some(peer) = self.peers.get(entry.peer)
            {
                until = until.max(peer.renewed + self.config.times.link_ttl);
            }
        }
        until
    }

    fn end_waiting(&mut self, place: u32, out: &mut NodeEffects) {
        let Some(kept) = self.sessions.get(place) else {
            return;
        };
        let id = kept.id;
        let waits = |request: &&RequestNo| {
            let entry = self.entry(place, **request);
            entry.is_some_and(|entry| entry.grant.is_none())
        };
        let waiting = kept.requests.keys().filter(waits);
        let waiting: Vec<_> = waiting.map(|request| (place, *request)).collect();
        self.end_all(&waiting, End::Cancelled, out);
        // Whoever holds nothing has nothing to wait for.
        if self.by_session.get(&id) == Some(&place) {
            let kept = self.sessions.get(place);
            if kept.is_some_and(|kept| kept.requests.is_empty()) {
                self.close_session(place);
            }
        }
    }

    /// Forgets revocations whose time is over.
    pub(super) fn forgive(&mut self, out: &mut NodeEffects) {
        while let Some((until, session)) = self.revoked_by_age.front().copied() {
            let many = self.revoked_by_age.len() > self.config.limits.tombstones;
            if until > self.now.mono && !many {
                break;
            }
            self.revoked_by_age.pop_front();
            if self
                .revoked
                .get(&session)
                .is_some_and(|kept| kept.0 == until)
            {
                self.revoked.remove(&session);
                self.persist(Record::RevocationEnded(session), out);
            }
        }
    }

    /// Tells everyone who speaks for a session that it is revoked.
    fn tell_revoked(&mut self, place: u32, out: &mut NodeEffects) {
        let Some(session) = self.sessions.get(place) else {
            return;
        };
        let id = session.id;
        let mut whom = BTreeSet::new();
        if !session.detached {
            whom.insert(session.peer);
        }
        let entries = session.requests.keys();
        whom.extend(entries.filter_map(|number| Some(self.entry(place, *number)?.peer)));
        for peer in whom {
            self.send(peer, Message::Revoked(id), out);
        }
    }
}

/// The session and request that a client's message is about, and whether it only ends them.
fn about(message: &Message) -> Option<(SessionId, RequestNo, bool)> {
    Some(match message {
        Message::Request { ask, .. } => (ask.session, ask.request, false),
        Message::Travel(travel) => (travel.ask.session, travel.ask.request, false),
        Message::Yield(grant) => (grant.session, grant.request, false),
        Message::Raise { grant, .. } | Message::Keepalive { grant, .. } => {
            (grant.session, grant.request, false)
        }
        Message::Entered(entered) => (entered.grant.session, entered.grant.request, false),
        Message::Done {
            session, request, ..
        }
        | Message::Finish {
            session, request, ..
        } => (*session, *request, true),
        _ => return None,
    })
}
