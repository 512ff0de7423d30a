//! What happens when a client comes back.

use std::collections::BTreeSet;

use super::locks::reference;
use super::{LockNode, State};
use crate::id::{RequestNo, SessionId, Token};
use crate::lock::api::{End, NodeEffects, NodeEvent};
use crate::lock::arbiter::{Entry, Grant};
use crate::lock::message::{Claim, Finished, GrantRef, Message, Refusal, Resume};
use crate::lock::mode::Bond;

impl LockNode {
    /// Collects a resume and applies it when it is complete.
    pub(super) fn resume_part(&mut self, place: u32, part: Resume, out: &mut NodeEffects) {
        let limits = self.config.limits;
        let (sessions, requests) = self.resume_limits(place);
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        let mut all = peer.partial.take().unwrap_or_default();
        all.sessions.extend(part.sessions);
        all.live.extend(part.live);
        all.done.extend(part.done);
        if all.sessions.len() > sessions
            || all.live.len() > requests
            || all.done.len() > limits.unacknowledged
        {
            let why = Refusal::RequestLimit;
            self.send(place, Message::Refused(why), out);
            self.event(NodeEvent::Refused(why), out);
            let link = self.peers.get(place).and_then(|peer| peer.link);
            if let Some(link) = link {
                out.events.push(NodeEvent::Close(link));
                self.closed(link, out);
            }
            return;
        }
        if part.last {
            self.resume(place, *all, out);
        } else if let Some(peer) = self.peers.get_mut(place) {
            peer.partial = Some(all);
        }
    }

    fn resume(&mut self, place: u32, resume: Resume, out: &mut NodeEffects) {
        let now = self.now.mono;
        self.defer();
        for done in resume.done {
            self.finished(place, done, out);
        }
        self.drop_unclaimed(place, &resume.sessions, &resume.live, out);
        if let Some(peer) = self.peers.get_mut(place) {
            peer.resumed = true;
            peer.renewed = now;
        }
        for info in &resume.sessions {
            self.open(place, info, out);
        }
        let claimed = resume.live.iter().map(|claim| claim.ask.clone());
        let claimed: Vec<_> = claimed.collect();
        for claim in resume.live {
            self.claim(place, claim, out);
        }
        self.schedule_deferred(out);
        // Only now is it known who waits: an attempt that is told to wait gives up.
        for ask in claimed {
            self.tell_waiting(place, ask.session, ask.request, out);
        }
        self.arm_peer(place);
    }

    fn finished(&mut self, peer: u32, done: Finished, out: &mut NodeEffects) {
        if self.bars(peer, done.session) != Some(Refusal::NotPermitted) {
            self.done(peer, done.session, done.request, done.token, out);
        }
    }

    /// Ends what the client no longer speaks of: it may have used it.
    fn drop_unclaimed(
        &mut self,
        place: u32,
        sessions: &[crate::lock::message::SessionInfo],
        live: &[Claim],
        out: &mut NodeEffects,
    ) {
        let claimed: BTreeSet<(SessionId, RequestNo)> = live
            .iter()
            .map(|claim| (claim.ask.session, claim.ask.request))
            .collect();
        let declared: BTreeSet<SessionId> = sessions.iter().map(|info| info.session).collect();
        let Some(peer) = self.peers.get(place) else {
            return;
        };
        let attached: Vec<u32> = peer.sessions.iter().copied().collect();
        // What it carried for a handle and has not entered lived by its word alone.
        let carried = peer.carried.iter().filter(|(session, request)| {
            let id = self.sessions.get(*session).map(|session| session.id);
            let entered = self
                .entry(*session, *request)
                .is_some_and(|entry| entry.grant.as_ref().is_some_and(|grant| grant.entered));
            !entered && id.is_some_and(|id| !claimed.contains(&(id, *request)))
        });
        let carried: Vec<(u32, RequestNo)> = carried.copied().collect();
        self.end_all(&carried, End::Forgotten, out);
        for session in attached {
            let Some(kept) = self.sessions.get(session) else {
                continue;
            };
            let id = kept.id;
            let gone = kept.requests.keys().map(|request| (session, *request));
            let gone: Vec<(u32, RequestNo)> = gone
                .filter(|(_, request)| !claimed.contains(&(id, *request)))
                .collect();
            self.end_all(&gone, End::Forgotten, out);
            if !declared.contains(&id) {
                self.expire(session, End::Forgotten, out);
            }
        }
    }

    fn claim(&mut self, place: u32, claim: Claim, out: &mut NodeEffects) {
        let (id, request) = (claim.ask.session, claim.ask.request);
        if let Some(why) = self.bars(place, id) {
            self.bar(place, id, Some(request), Some(&claim.ask.name), why, out);
            return;
        }
        let Some(session) = self.by_session.get(&id).copied() else {
            if claim.ask.bond == Bond::Attached || claim.holding {
                self.dead(place, id, Some(request), out);
            }
            return;
        };
        if self.is_doomed(id, request) {
            self.dead(place, id, Some(request), out);
            return;
        }
        let Some(entry) = self.entry(session, request) else {
            self.claim_missing(place, session, claim, out);
            return;
        };
        if entry.ask != claim.ask {
            self.deny(place, id, Some(request), Refusal::Unfit, out);
            return;
        }
        let grant = entry.grant.clone();
        self.carry(place, session, request);
        self.claim_used(session, &claim);
        match grant {
            Some(grant) if claim.holding && claim.seen == grant.number => {
                self.claim_kept(place, &claim, &grant, out);
            }
            Some(grant) if claim.seen >= grant.number => {
                // It saw this grant and does not hold it: the yield was lost.
                self.yielded(place, reference(&claim.ask, grant.number), out);
            }
            Some(_) => self.repeat_grant(session, request, out),
            None if claim.holding => {
                self.dead(place, id, Some(request), out);
                self.end(session, request, End::Cancelled, out);
            }
            None => {}
        }
    }

    /// A node that started again from its disk learns from its holders which tokens they use.
    fn claim_used(&mut self, session: u32, claim: &Claim) {
        let token = claim.inside.filter(|_| claim.holding).unwrap_or_default();
        let Some(entry) = self.entry_mut(session, claim.ask.request) else {
            return;
        };
        let held = entry.grant.as_ref().filter(|grant| grant.entered);
        if held.is_some_and(|grant| token <= grant.limit) && token > entry.used {
            entry.used = token;
            let lock = self.by_name.get(&claim.ask.name).copied();
            if let Some(lock) = lock {
                self.touch(lock);
            }
        }
    }

    /// The client holds what the node gave it.
    fn claim_kept(&mut self, place: u32, claim: &Claim, grant: &Grant, out: &mut NodeEffects) {
        let reference: GrantRef = reference(&claim.ask, grant.number);
        if grant.inquired && !grant.entered {
            self.send(place, Message::Inquire(reference), out);
        }
        if let Some(token) = claim.raising {
            self.raise(place, reference, token, out);
        }
    }

    /// The client speaks of a request that is not here.
    fn claim_missing(&mut self, place: u32, session: u32, claim: Claim, out: &mut NodeEffects) {
        let (id, request) = (claim.ask.session, claim.ask.request);
        if !claim.holding {
            let inside = claim.inside.map(|_| claim.members);
            self.request(place, claim.ask, claim.hint, inside, out);
            return;
        }
        if let Err(why) = self.permits(session, &claim.ask) {
            self.bar(place, id, Some(request), Some(&claim.ask.name), why, out);
            return;
        }
        let token = claim
            .inside
            .filter(|token| self.may_reclaim(&claim, *token));
        let Some(token) = token else {
            self.dead(place, id, Some(request), out);
            return;
        };
        let hint = self.believable(claim.hint);
        let mut entry = Entry::new(claim.ask.clone(), hint, true, place);
        entry.grant = Some(Grant {
            number: claim.seen,
            floor: Token(0),
            limit: token,
            named: token,
            inquired: false,
            entered: true,
            since: self.now.mono,
        });
        entry.used = token;
        self.insert(session, entry);
        if let Some(kept) = self.sessions.get_mut(session) {
            kept.entered = true;
        }
        self.store(&claim.ask, out);
        let reclaimed = NodeEvent::Reclaimed {
            ask: claim.ask.clone(),
            grant: claim.seen,
            token,
        };
        self.event(reclaimed, out);
        if let Some(token) = claim.raising {
            self.raise(place, reference(&claim.ask, claim.seen), token, out);
        }
    }

    /// After a crash a holder gets its grant back while the node pauses, if it is the first of
    /// its group's conflict and its own count says that the old grant has not run out.
    fn may_reclaim(&self, claim: &Claim, token: Token) -> bool {
        let pausing = matches!(self.state, State::Pausing { .. });
        let lock = self.by_name.get(&claim.ask.name);
        let lock = lock.and_then(|place| self.locks.get(*place));
        let free = lock.is_none_or(|lock| lock.arbiter.admits(&claim.ask));
        let buried = (claim.ask.session, claim.ask.request);
        let free = free && !self.tombs.contains_key(&buried);
        // No limit above the ceiling ever left the node, so a larger token is a lie.
        // A handle may have been released through another gateway: it does not reclaim.
        let attached = claim.ask.bond == Bond::Attached;
        pausing && attached && claim.fresh && free && token <= self.disk.ceiling()
    }
}
