//! What nodes answer: wait, yield, not now, never heard of it, refused.

use std::sync::Arc;
use std::time::Duration;

use super::LockClient;
use super::request::{Phase, Requester};
use crate::id::{GrantNo, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{ClientEffects, Ended};
use crate::lock::message::{GrantRef, Message, Refusal};
use crate::lock::plant::Plant;

/// After so many refusals of its clock a request gives up.
const RESTARTS_MAX: u32 = 8;

impl LockClient {
    pub(super) fn queued(
        &mut self,
        node: NodeId,
        session: SessionId,
        number: RequestNo,
        position: u32,
        out: &mut ClientEffects,
    ) {
        let Some(place) = self.by_ref.get(&(session, number)).copied() else {
            if !self
                .link(node)
                .is_some_and(|link| link.tells_end((session, number)))
            {
                self.end_stray(session, number, out);
            }
            return;
        };
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Some(member) = request.member_mut(node) else {
            return;
        };
        member.answered = true;
        member.retry = None;
        let key = request.key;
        request.told_to_wait = true;
        if position > request.position {
            request.position = position;
            self.tell_position(key, position, out);
        }
        // The first in the queue of a hierarchy waits for consent, not for somebody.
        let in_the_way = position > 0 || self.config.gate.is_none();
        let tries =
            |request: &Requester| request.attempt && request.token().is_none() && in_the_way;
        if self.requests.get(place).is_some_and(tries) {
            self.fail_one(place, Ended::Busy, out);
        } else if self.config.rules.has(Plant::FailedRule) {
            self.yield_deferred(place, out);
        }
    }

    /// Only a planted bug defers inquiries outside.
    pub(super) fn yield_deferred(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        if request.phase != Phase::Trying {
            return;
        }
        let open = request.members.iter().filter_map(|member| {
            let grant = member.grant.as_ref()?;
            grant.inquired.then_some((member.node, grant.number))
        });
        for (node, grant) in open.collect::<Vec<_>>() {
            self.give_back(place, node, grant, out);
        }
    }

    pub(super) fn not_now(
        &mut self,
        node: NodeId,
        session: SessionId,
        number: RequestNo,
        retry: Duration,
        out: &mut ClientEffects,
    ) {
        let Some(place) = self.by_ref.get(&(session, number)).copied() else {
            return;
        };
        let times = &self.config.times;
        let wait = retry.min(times.ttl_max * 2).max(times.hedge_min);
        let at = self.now.mono + wait;
        if let Some(link) = self.link_mut(node) {
            link.avoid_until = link.avoid_until.max(at);
            self.troubled.insert(node);
        }
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if let Some(member) = request.member_mut(node) {
            member.answered = true;
            member.retry = Some(at);
        }
        self.look_elsewhere(place, out);
        self.rearm(place);
    }

    pub(super) fn inquired(&mut self, node: NodeId, grant: GrantRef, out: &mut ClientEffects) {
        let Some(place) = self.by_ref.get(&(grant.session, grant.request)).copied() else {
            return;
        };
        let rules = self.config.rules;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let trying = request.phase == Phase::Trying;
        let inside = request.token().is_some();
        let defers = rules.has(Plant::FailedRule) && !request.told_to_wait;
        let Some(held) = request
            .member_mut(node)
            .and_then(|member| member.grant.as_mut())
        else {
            return;
        };
        if held.number != grant.grant {
            return;
        }
        held.inquired = true;
        if trying && request.attempt {
            // A better request is in the way, and after a yield nobody would say so again.
            self.fail_one(place, Ended::Busy, out);
            return;
        }
        if trying && !defers || inside && rules.has(Plant::YieldInside) {
            self.give_back(place, node, grant.grant, out);
        }
    }

    pub(super) fn give_back(
        &mut self,
        place: u32,
        node: NodeId,
        grant: GrantNo,
        out: &mut ClientEffects,
    ) {
        let lies = self.config.rules.has(Plant::YieldInside);
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let inside = request.token().is_some();
        let reference = request.grant_ref(grant);
        // A holder that yields by a planted bug does not even notice.
        if !(lies && inside)
            && let Some(member) = request.member_mut(node)
        {
            member.grant = None;
        }
        self.tell(node, Message::Yield(reference), out);
    }

    pub(super) fn dead(
        &mut self,
        node: NodeId,
        session: SessionId,
        number: Option<RequestNo>,
        out: &mut ClientEffects,
    ) {
        let Some(link) = self.link(node) else { return };
        let hit = |reference: &(SessionId, RequestNo)| {
            reference.0 == session && number.is_none_or(|number| number == reference.1)
        };
        let refs = link.requests.sorted(hit);
        if number.is_none() {
            self.unannounce(node, session);
        }
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.member_died(place, node, out);
            }
        }
    }

    /// A node no longer knows a request: its grant is gone.
    pub(super) fn member_died(&mut self, place: u32, node: NodeId, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.travels() && Self::hopes(&request.phase) {
            self.start_again(place, out);
            return;
        }
        let raising = request.raises_at(node);
        let Some(member) = request.member_mut(node) else {
            return;
        };
        let counted = member.grant.take().is_some_and(|grant| grant.counted);
        // What it grants from now on is new, also if it counts from a smaller number.
        member.seen = GrantNo(0);
        match &mut request.phase {
            Phase::Trying => self.ask_node(place, node, out),
            Phase::Raising { .. } => {
                if raising {
                    self.abort_raise(place, out);
                }
                self.ask_node(place, node, out);
            }
            Phase::Inside(inside) => {
                if raising {
                    inside.raise = None;
                }
                if counted && !inside.lost.contains(&node) {
                    inside.lost.push(node);
                }
                self.drop_member(place, node, out);
                self.check_hold(place, out);
                self.migrate(place, out);
            }
            Phase::Keeping(_) => self.keep_answer(place, node, false, out),
            Phase::Starting => {}
        }
        self.arm_hedge_if_silent(place);
    }

    pub(super) fn arm_hedge_if_silent(&mut self, place: u32) {
        let silent = self.requests.get(place).is_some_and(|request| {
            Self::hopes(&request.phase)
                && request.hedge_at.is_none()
                && request.members.iter().any(|member| !member.answered)
        });
        if silent {
            self.arm_hedge(place);
        }
    }

    pub(super) fn denied(
        &mut self,
        node: NodeId,
        session: SessionId,
        number: Option<RequestNo>,
        why: Refusal,
        out: &mut ClientEffects,
    ) {
        let Some(number) = number else {
            self.session_denied(node, session, why, out);
            return;
        };
        let Some(place) = self.by_ref.get(&(session, number)).copied() else {
            return;
        };
        if why == Refusal::Finished {
            self.fail_one(place, Ended::NotHeld, out);
            return;
        }
        if why == Refusal::Revoked {
            self.forsake(session);
            self.end_revoked(place, out);
            return;
        }
        if let Refusal::TokenAhead { clock } = why
            && self.raise_refused(place, node, clock)
        {
            return;
        }
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.token().is_some() {
            self.member_died(place, node, out);
            return;
        }
        if why == Refusal::NotPermitted && matches!(request.phase, Phase::Keeping(_)) {
            request.refusal = Some(why);
            self.keep_answer(place, node, false, out);
            return;
        }
        if let Refusal::PriorityAhead { clock } = why {
            self.hear_clock(node, clock);
            self.start_over(place, node, why, out);
            return;
        }
        if request.travels() && Self::hopes(&request.phase) {
            self.travel_denied(place, why, out);
            return;
        }
        if let Some(member) = request.member_mut(node) {
            member.answered = true;
            member.denied = true;
            member.grant = None;
        }
        request.refusal = Some(why);
        if request.raises_at(node) {
            self.abort_raise(place, out);
        }
        self.look_elsewhere(place, out);
    }

    pub(super) fn session_denied(
        &mut self,
        node: NodeId,
        session: SessionId,
        why: Refusal,
        out: &mut ClientEffects,
    ) {
        self.unannounce(node, session);
        let Some(link) = self.link(node) else { return };
        let refs = link.requests.sorted(|reference| reference.0 == session);
        for reference in refs {
            self.denied(node, reference.0, Some(reference.1), why, out);
        }
    }

    /// The request's time was refused: asks again as a new request, with the nodes' time.
    pub(super) fn start_over(
        &mut self,
        place: u32,
        node: NodeId,
        why: Refusal,
        out: &mut ClientEffects,
    ) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        request.restarts += 1;
        if request.restarts > RESTARTS_MAX {
            self.fail_one(place, Ended::Refused(why), out);
            return;
        }
        let avoid_until = self.now.mono + self.config.times.reconnect_max;
        if let Some(link) = self.link_mut(node) {
            link.avoid_until = avoid_until;
            self.troubled.insert(node);
        }
        self.renumber(place, out);
        let clock = self.nodes_clock().unwrap_or_default();
        self.ask_first(place, clock, out);
    }

    /// Ends the request at all nodes and gives it a new number.
    pub(super) fn renumber(&mut self, place: u32, out: &mut ClientEffects) {
        self.leave_all(place, None, out);
        self.last_request.0 += 1;
        let number = self.last_request;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let mut ask = (*request.ask).clone();
        ask.request = number;
        ask.priority.request = number;
        request.phase = Phase::Trying;
        request.wants_fresh = false;
        request.ask = Arc::new(ask.clone());
        let target = self.first_quorum(&ask);
        if let Some(request) = self.requests.get_mut(place) {
            request.target = target;
        }
    }

    /// Tells every node that was asked that the request is over.
    pub(super) fn leave_all(&mut self, place: u32, token: Option<Token>, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let reference = request.reference();
        let keeping = matches!(request.phase, Phase::Keeping(_));
        let members = std::mem::take(&mut request.members);
        self.by_ref.remove(&reference);
        for member in members {
            // Only what a node has confirmed belongs to the handle; of the rest, a node that
            // knows better ignores our leaving.
            let grant = member.grant.as_ref();
            let counted = grant.is_some_and(|grant| grant.counted && grant.acked);
            if keeping && counted {
                // A handle that was not renewed is not released: its holder may still hold it.
                self.forget_request(member.node, reference);
                continue;
            }
            self.send_done(
                member.node,
                reference,
                super::hold::used(&member, token),
                out,
            );
        }
    }

    pub(super) fn note_refusal(&mut self, place: u32, why: Refusal) {
        if let Some(request) = self.requests.get_mut(place) {
            request.refusal = Some(why);
        }
    }
}
