//! Holders that migrate here: whoever claims to be inside is served first only once other nodes
//! have confirmed it.
//!
//! A request that claims to be inside waits in its ordinary place. If it is not granted there at
//! once, the nodes that it says it rests on are asked whether they have granted it. It ranks first
//! once those that say so, together with those that cannot say or do not answer in time, contain a
//! quorum, and at least one says so. Then every quorum of the nodes that answer has a member that
//! granted this very request in its ordinary turn: nobody whom it passes could have entered before
//! it. A claim that is not confirmed costs its request nothing but the rank.

use std::sync::Arc;

use super::{LockNode, State, Timer};
use crate::id::{NodeId, RequestNo, SessionId};
use crate::lock::api::{NodeEffects, To};
use crate::lock::arbiter::Entry;
use crate::lock::canon::{Canon, whole};
use crate::lock::message::Message;
use crate::lock::mode::Ask;
use crate::lock::plant::Plant;
use crate::time::Instant;

/// So many claims are checked at a time; others keep their ordinary rank.
const CHECKS_MAX: usize = 16_384;

/// A claim to be inside that other nodes are asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InsideCheck {
    ask: Arc<Ask>,
    /// Nodes that have granted the request.
    granted: Vec<NodeId>,
    /// Nodes that started again and cannot say.
    unsure: Vec<NodeId>,
    /// Nodes that have not answered.
    waiting: Vec<NodeId>,
    /// Those count as lost from then on.
    until: Instant,
}

impl InsideCheck {
    pub(super) fn canon<C: Canon>(&self, canon: &mut C) {
        for nodes in [&self.granted, &self.unsure, &self.waiting] {
            let mut nodes = nodes.clone();
            nodes.sort_unstable();
            whole(&nodes, canon);
        }
    }
}

impl LockNode {
    /// Whether a claim to be inside is believed without a question. Only a planted bug does.
    pub(super) fn believes_inside(&self) -> bool {
        self.config.rules.has(Plant::BelievesInside) && self.config.gate.is_none()
    }

    /// Asks the nodes that a request claims to rest on, unless it was granted or is being checked.
    pub(super) fn check_inside(
        &mut self,
        place: u32,
        ask: &Arc<Ask>,
        named: &[NodeId],
        out: &mut NodeEffects,
    ) {
        let key = (ask.session, ask.request);
        let waits = |entry: &Entry| entry.grant.is_none() && !entry.inside();
        let waits = self.entry(place, ask.request).is_some_and(waits);
        let full = self.checks.len() >= CHECKS_MAX || self.checks.contains_key(&key);
        // Behind a gate nobody is inside before consent has come.
        if !waits || full || self.config.gate.is_some() {
            return;
        }
        let nodes = self.config.quorums.nodes();
        let others = named
            .iter()
            .filter(|node| **node != self.id && node.index() < nodes);
        let mut waiting: Vec<NodeId> = others.copied().collect();
        waiting.sort_unstable();
        waiting.dedup();
        let check = InsideCheck {
            ask: ask.clone(),
            granted: Vec::new(),
            unsure: Vec::new(),
            waiting,
            until: self.now.mono + self.config.times.link_ttl / 4,
        };
        let all = check.waiting.iter().copied();
        if !self.config.quorums.served_by(&ask.mode, all) {
            return;
        }
        for node in &check.waiting {
            out.send(To::Node(*node), Message::ConfirmGrant(ask.clone()));
        }
        self.arm(check.until, Timer::InsideCheck(key.0, key.1));
        self.checks.insert(key, check);
    }

    /// Another node asks whether this one has granted a request.
    pub(super) fn confirm_grant(&self, from: NodeId, ask: &Ask, out: &mut NodeEffects) {
        let serving = matches!(self.state, State::Serving | State::Draining);
        // After a restart holders may not have come back yet: nobody is called a liar.
        let granted = serving.then(|| {
            let place = self.by_session.get(&ask.session).copied();
            let entry = place.and_then(|place| self.entry(place, ask.request));
            entry.is_some_and(|entry| *entry.ask == *ask && entry.grant.is_some())
        });
        let (session, request) = (ask.session, ask.request);
        let answer = Message::GrantConfirmed {
            session,
            request,
            granted,
        };
        out.send(To::Node(from), answer);
    }

    /// Another node says whether it has granted a request.
    pub(super) fn grant_confirmed(
        &mut self,
        from: NodeId,
        session: SessionId,
        request: RequestNo,
        granted: Option<bool>,
        out: &mut NodeEffects,
    ) {
        let Some(check) = self.checks.get_mut(&(session, request)) else {
            return;
        };
        let Some(found) = check.waiting.iter().position(|node| *node == from) else {
            return;
        };
        check.waiting.swap_remove(found);
        match granted {
            Some(true) => check.granted.push(from),
            Some(false) => {}
            None => check.unsure.push(from),
        }
        self.judge_inside(session, request, out);
    }

    pub(super) fn check_timer(
        &mut self,
        session: SessionId,
        request: RequestNo,
        out: &mut NodeEffects,
    ) {
        self.judge_inside(session, request, out);
    }

    fn judge_inside(&mut self, session: SessionId, request: RequestNo, out: &mut NodeEffects) {
        let Some(check) = self.checks.get(&(session, request)) else {
            return;
        };
        let over = check.until <= self.now.mono;
        let lost = check.waiting.iter().filter(|_| over);
        let all = check.granted.iter().chain(&check.unsure).chain(lost);
        let quorums = &self.config.quorums;
        let enough = quorums.served_by(&check.ask.mode, all.copied());
        let enough = enough && !check.granted.is_empty();
        if !enough && !over && !check.waiting.is_empty() {
            return;
        }
        let ask = check.ask.clone();
        self.checks.remove(&(session, request));
        if enough {
            self.rank_inside(&ask, out);
        }
    }

    /// A request that waits comes before all that are not inside.
    pub(super) fn rank_inside(&mut self, ask: &Arc<Ask>, out: &mut NodeEffects) {
        let Some(place) = self.by_session.get(&ask.session).copied() else {
            return;
        };
        let Some(entry) = self.entry(place, ask.request) else {
            return;
        };
        if entry.ask != *ask || entry.grant.is_some() || entry.inside() {
            return;
        }
        let (id, request, peer) = (ask.session, ask.request, entry.peer);
        let session = self.sessions.get(place);
        let lock = session.and_then(|session| session.requests.get(&request));
        let lock = *lock.expect("invariant: the entry is in its session");
        let kept = self.locks.get_mut(lock).expect("invariant: just found");
        let old = kept.arbiter.remove(id, request);
        let old = old.expect("invariant: just found");
        kept.arbiter
            .insert(Entry::new(old.ask, old.hint, true, peer));
        self.touch(lock);
        self.schedule(lock, false, out);
    }

    /// Nothing is asked any more for a request that has ended.
    pub(super) fn forget_check(&mut self, session: SessionId, request: RequestNo) {
        if !self.checks.is_empty() {
            self.checks.remove(&(session, request));
        }
    }
}
