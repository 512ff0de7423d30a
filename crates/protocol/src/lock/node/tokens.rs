//! What holders say about their tokens.

use super::LockNode;
use super::quota::Item;
use crate::id::{SessionId, Token};
use crate::lock::api::{NodeEffects, NodeEvent};
use crate::lock::message::{Entered, GrantRef, Message, Refusal};
use crate::lock::mode::Bond;
use crate::lock::plant::Plant;

impl LockNode {
    pub(super) fn raise(
        &mut self,
        peer: u32,
        grant: GrantRef,
        token: Token,
        out: &mut NodeEffects,
    ) {
        let end = self.block_end(grant);
        let bound = self.token_bound();
        let Some((_, entry)) = self.granted(grant) else {
            self.no_grant(peer, grant, out);
            return;
        };
        if end.is_none() && token > bound {
            let (session, request) = (grant.session, grant.request);
            let clock = self.token_clock();
            self.ask_clocks(out);
            self.deny(
                peer,
                session,
                Some(request),
                Refusal::TokenAhead { clock },
                out,
            );
            return;
        }
        if end.is_some_and(|end| token > end) {
            // Another consent brings larger tokens, and only another consent.
            let (session, request) = (grant.session, grant.request);
            self.deny(peer, session, Some(request), Refusal::TokenAboveLimit, out);
            return;
        }
        let ask = entry.ask.clone();
        let held = entry.grant.as_mut().expect("invariant: just found");
        held.limit = held.limit.max(token);
        held.named = held.named.max(token);
        let limit = held.limit;
        self.store(&ask, out);
        if end.is_none() && !self.config.rules.has(Plant::RaisedAboveCeiling) {
            self.cover(peer, limit, out);
        }
        self.send(peer, Message::Raised { grant, token }, out);
    }

    /// Applies a holder's notice; `true` if it was.
    pub(super) fn entered(&mut self, peer: u32, entered: Entered, out: &mut NodeEffects) -> bool {
        let Entered {
            grant,
            token,
            note,
            edition,
        } = entered;
        let (session, request) = (grant.session, grant.request);
        if let Some(why) = note
            .as_ref()
            .and_then(|note| self.note_refusal(session, note))
        {
            self.deny(peer, session, Some(request), why, out);
            return false;
        }
        let lowers = self.config.rules.has(Plant::KeepaliveLowersLimit);
        let unchecked = self.config.rules.has(Plant::EnteredUnchecked);
        let now = self.now.mono;
        let Some((place, entry)) = self.granted(grant) else {
            self.no_grant(peer, grant, out);
            return false;
        };
        let ask = entry.ask.clone();
        let held = entry.grant.as_mut().expect("invariant: just found");
        if token > held.limit && !unchecked {
            self.deny(peer, session, Some(request), Refusal::TokenAboveLimit, out);
            return false;
        }
        held.named = held.named.max(token);
        // The token is final unless the holder raises it: nothing above it will be used.
        held.limit = if lowers { token } else { held.named };
        let first = !std::mem::replace(&mut held.entered, true);
        entry.used = entry.used.max(token);
        // Of notes that come late the newest stays.
        let newer = note.is_some() && edition >= entry.edition;
        let old = newer.then(|| Item::note(entry.note.as_deref()));
        if newer {
            entry.note = note;
            entry.edition = edition;
        }
        let new = newer.then(|| Item::note(entry.note.as_deref()));
        let session = self.sessions.get_mut(place).expect("invariant: just found");
        if let (Some(old), Some(new)) = (old, new) {
            self.accounts.charge(session.account, new);
            self.accounts.refund(session.account, old);
        }
        let lock = session.requests.get(&request).copied();
        if session.detached {
            session.entered = true;
            session.renewed = now;
            self.arm_session(place);
        }
        if let Some(lock) = lock {
            self.touch(lock);
        }
        self.store(&ask, out);
        if first {
            let entered = NodeEvent::Entered {
                ask,
                grant: grant.grant,
                token,
            };
            self.event(entered, out);
        }
        true
    }

    pub(super) fn keepalive(
        &mut self,
        peer: u32,
        mut grant: GrantRef,
        token: Token,
        out: &mut NodeEffects,
    ) {
        if self.config.rules.has(Plant::OldGrantHandle)
            && let Some(place) = self.by_session.get(&grant.session).copied()
            && let Some(entry) = self.entry(place, grant.request)
            && let Some(held) = &entry.grant
        {
            grant.grant = held.number;
        }
        let now = self.now.mono;
        let lowers = self.config.rules.has(Plant::KeepaliveLowersLimit);
        let Some((place, entry)) = self.granted(grant) else {
            self.dead(peer, grant.session, Some(grant.request), out);
            return;
        };
        let ask = entry.ask.clone();
        let held = entry.grant.as_mut().expect("invariant: just found");
        if token > held.limit || ask.bond == Bond::Attached {
            let (session, request) = (grant.session, grant.request);
            self.deny(peer, session, Some(request), Refusal::TokenAboveLimit, out);
            return;
        }
        held.named = held.named.max(token);
        if lowers {
            held.limit = token;
        }
        let mut first = !std::mem::replace(&mut held.entered, true);
        first |= token > entry.used;
        entry.used = entry.used.max(token);
        let session = self.sessions.get_mut(place).expect("invariant: just found");
        session.entered = true;
        session.renewed = now;
        let lock = session.requests.get(&grant.request).copied();
        self.arm_session(place);
        if let Some(lock) = lock.filter(|_| first) {
            self.touch(lock);
        }
        self.store(&ask, out);
        self.send(peer, Message::Kept(grant), out);
    }

    /// A message about a grant that is not there: the request is dead, or the whole session.
    pub(super) fn no_grant(&mut self, peer: u32, grant: GrantRef, out: &mut NodeEffects) {
        if self.by_session.get(&grant.session).is_some() {
            let known = self.by_session.get(&grant.session).copied();
            let waits = known.is_some_and(|place| self.entry(place, grant.request).is_some());
            if !waits {
                self.dead(peer, grant.session, Some(grant.request), out);
            }
        } else {
            self.unknown(peer, grant.session, out);
        }
    }

    pub(super) fn maybe_unknown(&mut self, peer: u32, session: SessionId, out: &mut NodeEffects) {
        if self.by_session.get(&session).is_none() {
            self.unknown(peer, session, out);
        }
    }

    pub(super) fn unknown(&mut self, peer: u32, session: SessionId, out: &mut NodeEffects) {
        if !self.config.rules.has(Plant::SilentExpiry) {
            self.dead(peer, session, None, out);
        }
    }
}
