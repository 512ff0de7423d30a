//! Grants in hand: gathering them, raising a token, and the step inside.

use std::sync::Arc;

use conclave_quorum::{NodeSet, family};

use super::LockClient;
use super::request::{Held, Member, Phase};
use crate::id::{GrantNo, Incarnation, NodeId, Token};
use crate::lock::api::ClientEffects;
use crate::lock::message::{GrantRef, Message};
use crate::lock::plant::Plant;
use crate::time::Instant;

impl LockClient {
    pub(super) fn locked(
        &mut self,
        node: NodeId,
        grant: GrantRef,
        floor: Token,
        limit: Token,
        incarnation: Incarnation,
        out: &mut ClientEffects,
    ) {
        let place = self.by_ref.get(&(grant.session, grant.request)).copied();
        let place = place.or_else(|| self.any_request(node, grant));
        let Some(place) = place else { return };
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let seen = request.hint.max(floor);
        let Some(member) = request.member_mut(node) else {
            return;
        };
        if grant.grant <= member.seen {
            return;
        }
        member.seen = grant.grant;
        member.answered = true;
        member.retry = None;
        member.grant = Some(Held {
            number: grant.grant,
            floor,
            limit,
            incarnation,
            inquired: false,
            raised: Token(0),
            counted: false,
            acked: false,
            announced: Instant::FAR,
        });
        request.hint = seen;
        let reference = request.reference();
        if let Some(link) = self.link_mut(node) {
            // It answered after our last word: it has heard that an earlier round ended.
            link.forget_done(reference);
        }
        self.progress(place, out);
    }

    /// Only a planted bug takes a grant of an ended request for a present one.
    pub(super) fn any_request(&self, node: NodeId, grant: GrantRef) -> Option<u32> {
        if !self.config.rules.has(Plant::NoRequestOnLocked) {
            return None;
        }
        let link = self.link(node)?;
        let same = link
            .requests
            .sorted(|(session, _)| *session == grant.session);
        self.by_ref.get(same.first()?).copied()
    }

    /// Looks whether the grants in hand let the requester in, or on.
    pub(super) fn progress(&mut self, place: u32, out: &mut ClientEffects) {
        let phase = self.requests.get(place).map(|request| &request.phase);
        match phase {
            Some(Phase::Trying) => self.try_enter(place, out),
            Some(Phase::Raising { .. }) => self.raise_elsewhere(place, out),
            Some(Phase::Inside(_)) => self.gather(place, out),
            Some(Phase::Keeping(_)) => self.gather_kept(place, out),
            _ => {}
        }
    }

    pub(super) fn try_enter(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let held = request
            .members
            .iter()
            .filter(|member| member.grant.is_some());
        let count = held.count();
        if count < request.quorum_min || count < request.target.len() && request.asks_target() {
            self.arm_hedge_half_way(place);
            return;
        }
        let Some(quorum) = self.entry_quorum(place) else {
            self.arm_hedge_half_way(place);
            return;
        };
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let grants = quorum
            .iter()
            .filter_map(|node| request.member(*node)?.grant.as_ref());
        let floor = grants
            .clone()
            .map(|grant| grant.floor)
            .max()
            .unwrap_or_default();
        let limit = grants.map(|grant| grant.limit).min().unwrap_or_default();
        let token = Token(floor.0.saturating_add(1));
        let request = self.requests.get_mut(place).expect("invariant: just seen");
        request.wants_fresh = false;
        if token <= limit {
            self.enter(place, token, &quorum, out);
        } else {
            // All of them must answer: better none that may not.
            let quorum = self.sound_quorum(place).unwrap_or(quorum);
            let floors = quorum.iter().filter_map(|node| self.floor_at(place, *node));
            let token = Token(floors.max().unwrap_or_default().0.saturating_add(1));
            let request = self.requests.get_mut(place).expect("invariant: just seen");
            request.phase = Phase::Raising {
                token,
                quorum: quorum.to_vec(),
            };
            self.send_raises(place, token, &quorum, out);
            self.arm_hedge_half_way(place);
            if self.config.rules.has(Plant::EnterBeforeRaised) {
                self.enter(place, token, &quorum, out);
            }
        }
    }

    /// A quorum of grants that are fresh, if the requester has one: that which it asked first, or
    /// the least that will do.
    fn entry_quorum(&mut self, place: u32) -> Option<Arc<[NodeId]>> {
        let request = self.requests.get(place)?;
        let stale_too = self.config.rules.has(Plant::NoFreshnessAtEntry);
        let now = self.now.mono;
        let is_fresh = |member: &Member| {
            let until = self.fresh_until(request, member);
            member.grant.is_some() && (stale_too || until.is_some_and(|until| until > now))
        };
        let holds = |node: &NodeId| request.member(*node).is_some_and(is_fresh);
        if request.target.iter().all(holds) {
            return Some(request.target.clone());
        }
        let nodes = self.config.quorums.nodes();
        let fresh = request.members.iter().filter(|member| is_fresh(member));
        let set = NodeSet::of(nodes, fresh.map(|member| member.node.index()));
        let family = self.config.quorums.family(&request.ask.mode);
        if family.contains_quorum(&set) {
            let even = vec![1.0; nodes];
            let least = family::shrink(&set, &even, &|set| family.contains_quorum(set));
            return Some(Self::shared(least.iter()));
        }
        let granted = |member: &&Member| member.grant.is_some();
        let wants = request.members.iter().filter(granted).count() > set.len();
        self.requests.get_mut(place)?.wants_fresh = wants;
        None
    }

    fn floor_at(&self, place: u32, node: NodeId) -> Option<Token> {
        let member = self.requests.get(place)?.member(node)?;
        Some(member.grant.as_ref()?.floor)
    }

    /// The least quorum of fresh grants of nodes out of trouble, if the requester has one.
    fn sound_quorum(&self, place: u32) -> Option<Arc<[NodeId]>> {
        let request = self.requests.get(place)?;
        let now = self.now.mono;
        let sound = |member: &&Member| {
            let until = self.fresh_until(request, member);
            until.is_some_and(|until| until > now) && !self.avoided(member.node)
        };
        let nodes = self.config.quorums.nodes();
        let sound = request.members.iter().filter(sound);
        let set = NodeSet::of(nodes, sound.map(|member| member.node.index()));
        let family = self.config.quorums.family(&request.ask.mode);
        family.contains_quorum(&set).then(|| {
            let even = vec![1.0; nodes];
            let least = family::shrink(&set, &even, &|set| family.contains_quorum(set));
            Self::shared(least.iter())
        })
    }

    /// A token is being registered at a node that does not answer: registers it elsewhere, if
    /// there are other grants by now.
    pub(super) fn raise_elsewhere(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Raising { token, quorum } = &request.phase else {
            return;
        };
        let missing = |node: &NodeId| {
            let grant = request.member(*node).and_then(|it| it.grant.as_ref());
            grant.is_none_or(|grant| grant.raised < *token)
        };
        let stuck = quorum
            .iter()
            .any(|node| missing(node) && self.avoided(*node));
        if stuck && self.sound_quorum(place).is_some() {
            self.abort_raise(place, out);
        }
    }

    pub(super) fn send_raises(
        &self,
        place: u32,
        token: Token,
        quorum: &[NodeId],
        out: &mut ClientEffects,
    ) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        for node in quorum {
            let grant = request
                .member(*node)
                .and_then(|member| member.grant.as_ref());
            if let Some(grant) = grant {
                let grant = request.grant_ref(grant.number);
                self.tell(*node, Message::Raise { grant, token }, out);
            }
        }
    }

    pub(super) fn raised(
        &mut self,
        node: NodeId,
        grant: GrantRef,
        token: Token,
        out: &mut ClientEffects,
    ) {
        let Some(place) = self.by_ref.get(&(grant.session, grant.request)).copied() else {
            return;
        };
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Some(held) = request
            .member_mut(node)
            .and_then(|member| member.grant.as_mut())
        else {
            return;
        };
        if held.number != grant.grant {
            return;
        }
        held.raised = held.raised.max(token);
        held.limit = held.limit.max(token);
        self.raise_taken(node);
        let Some(request) = self.requests.get(place) else {
            return;
        };
        match &request.phase {
            Phase::Raising { token, quorum } => {
                let (token, quorum) = (*token, quorum.clone());
                if !self.all_raised(place, token, &quorum) {
                    return;
                }
                let fresh = self.all_fresh(place, &quorum);
                if fresh || self.config.rules.has(Plant::NoFreshnessAtEntry) {
                    self.enter(place, token, &quorum, out);
                } else {
                    self.abort_raise(place, out);
                }
            }
            Phase::Inside(_) => self.moved_if_raised(place, out),
            Phase::Keeping(_) => self.raised_kept(place, out),
            _ => {}
        }
    }

    pub(super) fn all_raised(&self, place: u32, token: Token, quorum: &[NodeId]) -> bool {
        let Some(request) = self.requests.get(place) else {
            return false;
        };
        quorum.iter().all(|node| {
            let grant = request
                .member(*node)
                .and_then(|member| member.grant.as_ref());
            grant.is_some_and(|grant| grant.raised >= token)
        })
    }

    pub(super) fn all_fresh(&self, place: u32, quorum: &[NodeId]) -> bool {
        let now = self.now.mono;
        let Some(request) = self.requests.get(place) else {
            return false;
        };
        quorum.iter().all(|node| {
            let until = request
                .member(*node)
                .and_then(|member| self.fresh_until(request, member));
            until.is_some_and(|until| until > now)
        })
    }

    /// A raise cannot succeed: the requester is outside again and answers what it left open.
    pub(super) fn abort_raise(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if !matches!(request.phase, Phase::Raising { .. }) {
            return;
        }
        request.phase = Phase::Trying;
        let open = request.members.iter().filter_map(|member| {
            let grant = member.grant.as_ref()?;
            grant.inquired.then_some((member.node, grant.number))
        });
        let open: Vec<(NodeId, GrantNo)> = open.collect();
        for (node, grant) in open {
            self.give_back(place, node, grant, out);
        }
        self.try_enter(place, out);
    }
}
