//! How requests end, and what is remembered of it.

use super::LockNode;
use super::quota::Item;
use crate::id::{RequestNo, SessionId, Token};
use crate::lock::api::{End, NodeEffects, NodeEvent};
use crate::lock::arbiter::Entry;
use crate::lock::message::{GrantRef, Refusal};
use crate::lock::mode::Bond;
use crate::lock::plant::Plant;
use crate::lock::record::Record;

impl LockNode {
    /// Ends requests, granted or waiting, and lets others in once all of them are gone: nothing
    /// is granted to a request that is about to end.
    pub(super) fn end_all(
        &mut self,
        requests: &[(u32, RequestNo)],
        why: End,
        out: &mut NodeEffects,
    ) {
        let mut locks = Vec::with_capacity(requests.len());
        for (session, request) in requests {
            locks.extend(self.take_out(*session, *request, why, out));
            self.tidy_detached(*session);
        }
        locks.sort_unstable();
        locks.dedup();
        for lock in locks {
            self.schedule(lock, true, out);
        }
    }

    /// Ends a request, granted or waiting, and lets others in.
    pub(super) fn end(&mut self, place: u32, request: RequestNo, why: End, out: &mut NodeEffects) {
        if let Some(lock) = self.take_out(place, request, why, out) {
            self.schedule(lock, true, out);
        }
    }

    /// Ends a request and names its lock, which must be scheduled.
    pub(super) fn take_out(
        &mut self,
        place: u32,
        request: RequestNo,
        why: End,
        out: &mut NodeEffects,
    ) -> Option<u32> {
        let session = self.sessions.get_mut(place)?;
        let lock = session.requests.remove(&request)?;
        let (id, account) = (session.id, session.account);
        session.finished = session.finished.max(request);
        let kept = self.locks.get_mut(lock)?;
        let entry = kept.arbiter.remove(id, request)?;
        self.accounts.refund(account, Item::entry(&entry));
        if let Some(peer) = self.peers.get_mut(entry.peer) {
            peer.carried.remove(&(place, request));
        }
        let number = entry
            .grant
            .as_ref()
            .map_or(Self::NO_GRANT, |grant| grant.number);
        if let Some(grant) = &entry.grant {
            let used = match why {
                End::Done(token) => token.max(grant.named),
                End::Cancelled if grant.entered => grant.named,
                End::Cancelled | End::Yielded | End::Disconnected => Token(0),
                End::Expired | End::Lapsed | End::Forgotten | End::Revoked
                    if self.config.rules.has(Plant::NoFloorOnExpiry) =>
                {
                    Token(0)
                }
                End::Expired | End::Lapsed | End::Forgotten | End::Revoked => grant.limit,
            };
            if used > Token(0) {
                kept.arbiter.floors.record(&entry.ask.group(), used);
            }
            if self.keeps_grants() {
                self.persist(Record::GrantEnded(id, request), out);
            }
        }
        self.undoom(id, request);
        self.forget_check(id, request);
        self.touch(lock);
        let peer = entry.peer;
        if self.config.observe {
            out.events.push(NodeEvent::Ended {
                ask: entry.ask,
                grant: number,
                why,
            });
        }
        self.forget_peer(peer);
        Some(lock)
    }

    pub(super) fn yielded(&mut self, peer: u32, grant: GrantRef, out: &mut NodeEffects) {
        let Some((place, entry)) = self.granted(grant) else {
            self.maybe_unknown(peer, grant.session, out);
            return;
        };
        if entry.grant.as_ref().is_some_and(|grant| grant.entered) {
            return;
        }
        let ask = entry.ask.clone();
        let session = self.sessions.get(place).expect("invariant: just found");
        let lock = session.requests[&grant.request];
        let kept = self.locks.get_mut(lock).expect("invariant: just found");
        kept.arbiter.take_back(grant.session, grant.request);
        self.undoom(grant.session, grant.request);
        if self.keeps_grants() {
            self.persist(Record::GrantEnded(grant.session, grant.request), out);
        }
        if self.config.observe {
            out.events.push(NodeEvent::Ended {
                ask,
                grant: grant.grant,
                why: End::Yielded,
            });
        }
        self.schedule(lock, true, out);
    }

    pub(super) fn done(
        &mut self,
        peer: u32,
        session: SessionId,
        request: RequestNo,
        token: Option<Token>,
        out: &mut NodeEffects,
    ) {
        if token.is_none() && self.has_entered(session, request) {
            // Whoever was inside says with which token; this is about a stray.
            return;
        }
        self.mark_ended(session, request, out);
        let Some(place) = self.by_session.get(&session).copied() else {
            return;
        };
        let spoken_for = |entry: &Entry| {
            let entered = entry.grant.as_ref().is_some_and(|grant| grant.entered);
            entry.ask.bond != Bond::Attached && (entered || entry.peer != peer)
        };
        // A gateway that gives up ends neither what it handed out nor what another gateway has:
        // that takes the handle.
        if token.is_none() && self.entry(place, request).is_some_and(spoken_for) {
            return;
        }
        self.end_used(peer, place, request, token, out);
        self.tidy_detached(place);
    }

    /// Ends a request at its holder's word; a token above the limit is refused and counts as the
    /// limit.
    pub(super) fn end_used(
        &mut self,
        peer: u32,
        place: u32,
        request: RequestNo,
        token: Option<Token>,
        out: &mut NodeEffects,
    ) {
        let Some(entry) = self.entry(place, request) else {
            return;
        };
        let session = entry.ask.session;
        let limit = entry.grant.as_ref().map_or(Token(0), |grant| grant.limit);
        let granted = entry.grant.is_some();
        let why = match token {
            Some(token)
                if granted && token > limit && !self.config.rules.has(Plant::DoneUnchecked) =>
            {
                self.deny(peer, session, Some(request), Refusal::TokenAboveLimit, out);
                End::Done(limit)
            }
            Some(token) => End::Done(token),
            None => End::Cancelled,
        };
        self.end(place, request, why, out);
    }

    /// A detached session without requests is over.
    pub(super) fn tidy_detached(&mut self, place: u32) {
        let over = |session: &super::Session| session.detached && session.requests.is_empty();
        if self.sessions.get(place).is_some_and(over) {
            self.close_session(place);
        }
    }

    /// Ends all requests of a detached session, by a handle; also if it is not known here.
    pub(super) fn finish(
        &mut self,
        peer: u32,
        session: SessionId,
        request: RequestNo,
        token: Option<Token>,
        out: &mut NodeEffects,
    ) {
        self.entomb(session, request);
        let Some(place) = self.by_session.get(&session).copied() else {
            return;
        };
        let Some(kept) = self.sessions.get(place).filter(|session| session.detached) else {
            return;
        };
        let others = kept.requests.keys().filter(|number| **number != request);
        let others: Vec<RequestNo> = others.copied().collect();
        let mut ended = Vec::new();
        for number in others {
            self.entomb(session, number);
            let Some(entry) = self.entry(place, number) else {
                continue;
            };
            let carrier = entry.peer;
            let entered = entry.grant.as_ref().map(|grant| grant.entered);
            // Another gateway may enter on this grant at any moment: it stays until that gateway
            // has given it up, or is not heard from.
            if entered != Some(false) {
                ended.push((place, number));
            }
            if entered != Some(true) {
                self.deny(carrier, session, Some(number), Refusal::Finished, out);
            }
        }
        self.end_all(&ended, End::Cancelled, out);
        self.end_used(peer, place, request, token, out);
        self.tidy_detached(place);
    }

    pub(super) fn entomb(&mut self, session: SessionId, request: RequestNo) {
        let until = self.now.mono + self.config.times.stretch(self.config.times.ttl_max);
        self.tombs.insert((session, request), until);
        self.tombs_by_age.push_back((until, session, request));
        self.bury();
    }
}
