//! Requests that travel from node to node.

use super::LockNode;
use crate::Envelope;
use crate::id::{RequestNo, SessionId, Token};
use crate::lock::api::{End, NodeEffects, NodeEvent, To};
use crate::lock::arbiter::Entry;
use crate::lock::config::Protocol;
use crate::lock::message::{Message, Refusal, Travel};
use crate::lock::mode::Ask;
use crate::lock::plant::Plant;
use crate::lock::serial::{Onward, Way, is_route};

impl LockNode {
    /// A client sends its request on its way; this node is the first of the route.
    pub(super) fn travel_begins(&mut self, peer: u32, travel: Travel, out: &mut NodeEffects) {
        let (session, request) = (travel.ask.session, travel.ask.request);
        let first = travel.route.first() == Some(&self.id) && travel.grants.is_empty();
        let nodes = self.config.quorums.nodes();
        let last = travel.route.last().map_or(0, |last| last.index());
        if !first || last >= nodes || !is_route(&travel.route, self.id) {
            self.deny(peer, session, Some(request), Refusal::Unfit, out);
            return;
        }
        if self.tombs.contains_key(&(session, request)) {
            self.dead(peer, session, Some(request), out);
            return;
        }
        if self.by_session.get(&session).is_none() {
            self.unknown(peer, session, out);
            return;
        }
        self.travel(peer, travel, out);
    }

    /// A request comes from the member before this one. Its client has announced its session
    /// here; if it is not there, or cannot be told anything, the client finds out by itself and
    /// starts again.
    pub(super) fn travel_comes(&mut self, travel: Travel, out: &mut NodeEffects) {
        if !is_route(&travel.route, self.id) {
            self.event(NodeEvent::Refused(Refusal::Unfit), out);
            return;
        }
        let (session, request) = (travel.ask.session, travel.ask.request);
        if self.tombs.contains_key(&(session, request)) {
            return;
        }
        let peer = self.clients.get(&travel.ask.priority.client).copied();
        let Some(peer) = peer else { return };
        let there = self.peers.get(peer);
        if there.is_some_and(|peer| peer.link.is_some() && peer.resumed) {
            self.travel(peer, travel, out);
        }
    }

    /// Asks after the grants of a client that has not entered on them for a whole lease. A
    /// request that came so late that its end was forgotten belongs to nobody: its client says
    /// so, and it ends.
    pub(super) fn ask_after(&mut self, peer: u32, out: &mut NodeEffects) {
        if !self.has_serial() {
            return;
        }
        let open = |entry: &Entry| {
            let entered = entry.grant.as_ref().is_none_or(|grant| grant.entered);
            entry.way.is_some() && !entered
        };
        for (place, request) in self.requests_of(peer, open) {
            let Some(entry) = self.entry_mut(place, request) else {
                continue;
            };
            let session = entry.ask.session;
            let way = entry.way.as_mut().expect("invariant: just seen");
            if std::mem::replace(&mut way.seen, true) {
                let queued = Message::Queued {
                    session,
                    request,
                    position: 0,
                };
                self.send(peer, queued, out);
            }
        }
    }

    /// Whether a travelling request is known to be inside.
    pub(super) fn has_entered(&self, session: SessionId, request: RequestNo) -> bool {
        let place = self.by_session.get(&session).copied();
        let entry = place.and_then(|place| self.entry(place, request));
        entry.is_some_and(|entry| {
            entry.way.is_some() && entry.grant.as_ref().is_some_and(|grant| grant.entered)
        })
    }

    fn has_serial(&self) -> bool {
        let mut policies = self.config.policies.iter();
        policies.any(|(_, policy)| policy.protocol == Protocol::Serial)
    }

    fn travel(&mut self, peer: u32, travel: Travel, out: &mut NodeEffects) {
        let (id, request) = (travel.ask.session, travel.ask.request);
        let Some(place) = self.by_session.get(&id).copied() else {
            return;
        };
        if let Some(why) = self.not_now() {
            let retry = self.retry();
            let message = Message::NotNow {
                session: id,
                request,
                why,
                retry,
            };
            self.send(peer, message, out);
            return;
        }
        let Travel {
            ask,
            hint,
            route,
            grants,
        } = travel;
        if let Some(entry) = self.entry_mut(place, request) {
            let same = entry.ask == ask;
            match entry.way.as_mut().filter(|way| same && way.route == route) {
                Some(way) => {
                    way.before = grants;
                    self.pass_on(place, request, out);
                }
                None => self.deny(peer, id, Some(request), Refusal::Unfit, out),
            }
            return;
        }
        if let Err(why) = self.fits(peer, place, &ask, true) {
            self.bar(peer, id, Some(request), Some(&ask.name), why, out);
            return;
        }
        let hint = self.believable(hint);
        let mut entry = Entry::new(ask, hint, false, peer);
        entry.way = Some(Box::new(Way {
            route,
            before: grants,
            seen: false,
        }));
        let lock = self.insert(place, entry);
        self.schedule(lock, false, out);
        self.tell_position(peer, lock, id, request, out);
    }

    pub(super) fn pass_on_ask(&mut self, ask: &Ask, out: &mut NodeEffects) {
        if let Some(place) = self.by_session.get(&ask.session).copied() {
            self.pass_on(place, ask.request, out);
        }
    }

    /// Sends a granted request on: to the next member, or home if this was the last.
    pub(super) fn pass_on(&mut self, place: u32, request: RequestNo, out: &mut NodeEffects) {
        let Some(entry) = self.entry(place, request) else {
            return;
        };
        let Some(onward) = entry.onward(self.id, self.incarnation) else {
            return;
        };
        let (peer, session) = (entry.peer, entry.ask.session);
        let limit = entry.grant.as_ref().map_or(Token(0), |grant| grant.limit);
        self.cover(peer, limit, out);
        match onward {
            Onward::Home(grants) => {
                let carried = Message::Carried {
                    session,
                    request,
                    grants,
                };
                self.send(peer, carried, out);
            }
            Onward::Node(next, travel) => {
                let (to, message) = (To::Node(next), Message::Travel(travel));
                // What its client may not be told yet, no other may be told.
                let hold = self.peers.get(peer).map_or(0, |peer| peer.hold);
                if self.disk.must_wait(hold) {
                    out.send_durable.push(Envelope { to, message });
                } else {
                    out.send(to, message);
                }
            }
        }
    }

    /// Remembers the end of a request that may still be on its way here.
    pub(super) fn mark_ended(
        &mut self,
        session: SessionId,
        request: RequestNo,
        out: &mut NodeEffects,
    ) {
        if !self.has_serial() {
            return;
        }
        let place = self.by_session.get(&session).copied();
        if self.config.rules.has(Plant::SerialUnlockWithoutRequest) {
            // The session is the requester: it is locked here or it is not.
            let Some((place, kept)) = place.and_then(|at| Some((at, self.sessions.get(at)?)))
            else {
                return;
            };
            let all = kept.requests.keys().map(|request| (place, *request));
            let mut all: Vec<(u32, RequestNo)> = all.collect();
            all.retain(|(place, request)| {
                let entry = self.entry(*place, *request);
                entry.is_some_and(|entry| entry.way.is_some())
            });
            self.end_all(&all, End::Cancelled, out);
            return;
        }
        let entry = place.and_then(|place| self.entry(place, request));
        if entry.is_none_or(|entry| entry.way.is_some()) {
            self.entomb(session, request);
        }
    }
}
