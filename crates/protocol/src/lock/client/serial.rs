//! A requester whose request travels through its quorum.
//!
//! It sends its request to the first member once every member is connected and has acknowledged
//! its session, since the last of them answers for all. It never changes its quorum: what goes
//! wrong outside ends it everywhere, and it starts again with a new number and its old place in
//! the order. Inside it is like any other, but it does not move.

use super::LockClient;
use super::link::Link;
use super::request::{Held, Member, Phase};
use crate::id::{GrantNo, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{ClientEffects, Ended};
use crate::lock::message::{Carried, Message, Refusal, Travel};
use crate::time::Instant;

/// How far a request has come on its way through a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Journey {
    /// Its lock is parallel: it asks all members at once.
    None,
    /// It waits until all members are ready for it.
    Prepared,
    OnItsWay,
}

/// How often the wait for a lost request doubles.
const DOUBLINGS_MAX: u32 = 3;

impl LockClient {
    /// Prepares the way through the present target, and sets off as soon as it is clear.
    pub(super) fn set_off(&mut self, place: u32, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let (target, reference) = (request.target.clone(), request.reference());
        let info = request.info.clone();
        request.journey = Journey::Prepared;
        let members = target.iter().map(|node| Member {
            node: *node,
            seen: GrantNo(0),
            grant: None,
            asked: now,
            answered: false,
            retry: None,
            denied: false,
        });
        request.members = members.collect();
        self.by_ref.insert(reference, place);
        for node in target.iter() {
            let link = self.want_link(*node, out);
            link.requests.insert(reference);
            if link.is_open() && self.announce(*node, &info, out) {
                // Its answer says that the session is known there.
                self.send_beat(*node, out);
            }
        }
        self.depart(place, out);
        self.arm_travel(place);
    }

    /// Sends the request to its first member if all members are ready for it.
    fn depart(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        if request.journey == Journey::OnItsWay || request.phase != Phase::Trying {
            return;
        }
        let ready = request.target.iter().all(|node| {
            let link = self.link(*node);
            let knows = link.is_some_and(|link| link.knows(request.ask.session));
            knows && !self.barred(*node)
        });
        if ready {
            self.send_travel(place, out);
            self.arm_travel(place);
        }
    }

    fn send_travel(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Some(first) = request.target.first().copied() else {
            return;
        };
        request.journey = Journey::OnItsWay;
        let travel = Travel {
            ask: request.ask.clone(),
            hint: request.hint,
            route: request.target.clone(),
            grants: Vec::new(),
        };
        self.tell(first, Message::Travel(Box::new(travel)), out);
    }

    /// A node has acknowledged what was said to it: requests that waited for that set off.
    pub(super) fn depart_through(&mut self, node: NodeId, out: &mut ClientEffects) {
        let Some(link) = self.link(node) else { return };
        let waits = |reference: &(SessionId, RequestNo)| {
            let place = self.by_ref.get(reference).copied();
            let request = place.and_then(|place| self.requests.get(place));
            request.is_some_and(|request| request.journey == Journey::Prepared)
        };
        let refs = link.requests.sorted(waits);
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.depart(place, out);
            }
        }
    }

    /// Looks again later: whether the way is clear, or whether a request that set off was lost.
    fn arm_travel(&mut self, place: u32) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let hop = self.hedge_delay(request.target.iter().copied());
        let way = hop * (request.target.len() as u32 + 1);
        let patience = if request.journey == Journey::OnItsWay {
            way.max(self.config.times.link_ttl)
        } else {
            hop
        };
        let at = self.now.mono + patience * (1 << request.hedges.min(DOUBLINGS_MAX));
        if let Some(request) = self.requests.get_mut(place) {
            request.hedge_at = Some(at);
        }
        self.arm_request(place, at);
    }

    /// The time to look again has come. A request that set off is sent once more: members that
    /// granted it pass it on again, so that whatever was lost between them is mended.
    pub(super) fn travel_again(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.phase != Phase::Trying {
            return;
        }
        request.hedges += 1;
        let carried = request.members.iter().all(|member| member.grant.is_some());
        if request.journey == Journey::OnItsWay && !carried {
            self.send_travel(place, out);
        } else {
            self.depart(place, out);
            self.travel_elsewhere(place, out);
        }
        self.arm_travel(place);
    }

    /// A node is in trouble: a request whose way leads through it starts again, elsewhere if
    /// there is another way.
    pub(super) fn travel_elsewhere(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        if !request.target.iter().any(|node| self.barred(*node)) {
            return;
        }
        let (ask, target) = (request.ask.clone(), request.target.clone());
        if request.journey == Journey::OnItsWay || self.first_quorum(&ask) != target {
            self.start_again(place, out);
        }
    }

    /// Whether no request gets through a node. One that is merely slow is waited for: starting
    /// again costs more, and on a slow network it would never end.
    fn barred(&self, node: NodeId) -> bool {
        let bars =
            |link: &Link| !link.is_open() || link.draining || link.avoid_until > self.now.mono;
        self.link(node).is_none_or(bars)
    }

    /// Ends the request everywhere and starts it again, with a new number and its old time.
    pub(super) fn start_again(&mut self, place: u32, out: &mut ClientEffects) {
        self.renumber(place, out);
        self.set_off(place, out);
    }

    /// A member refused the request: there is no way around it.
    pub(super) fn travel_denied(&mut self, place: u32, why: Refusal, out: &mut ClientEffects) {
        self.fail_one(place, Ended::Refused(why), out);
    }

    /// A node speaks of a request that is over, and that it was told is over: it has forgotten,
    /// and others may have too.
    pub(super) fn end_stray(
        &mut self,
        session: SessionId,
        request: RequestNo,
        out: &mut ClientEffects,
    ) {
        for node in self.config.quorums.all() {
            let done = Message::Done {
                session,
                request,
                token: None,
            };
            self.tell(node, done, out);
        }
    }

    /// All members have granted.
    pub(super) fn carried(
        &mut self,
        session: SessionId,
        number: RequestNo,
        grants: &[Carried],
        out: &mut ClientEffects,
    ) {
        let place = self.by_ref.get(&(session, number)).copied();
        let Some((place, request)) = place.and_then(|at| Some((at, self.requests.get(at)?))) else {
            self.end_stray(session, number, out);
            return;
        };
        if !request.travels() || request.phase != Phase::Trying {
            return;
        }
        // A member that restarted has lost its connection: the request has started again since.
        let alive = grants
            .iter()
            .all(|grant| self.link(grant.node).is_some_and(Link::is_open));
        let nodes = grants.iter().map(|grant| grant.node);
        if !alive || !nodes.eq(request.target.iter().copied()) {
            self.start_again(place, out);
            return;
        }
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        for (member, grant) in request.members.iter_mut().zip(grants) {
            member.seen = grant.grant;
            member.answered = true;
            member.grant = Some(Held {
                number: grant.grant,
                floor: grant.floor,
                limit: grant.limit,
                incarnation: grant.incarnation,
                inquired: false,
                raised: Token(0),
                counted: false,
                acked: false,
                announced: Instant::FAR,
            });
            request.hint = request.hint.max(grant.floor);
        }
        self.progress(place, out);
    }
}
