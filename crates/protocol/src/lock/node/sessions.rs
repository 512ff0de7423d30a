//! Connections and sessions: who is there, and until when without a word.

use std::collections::{BTreeMap, BTreeSet};

use super::quota::{Item, Origin, Payer};
use super::{LockNode, Peer, Session, State, Timer};
use crate::id::{ClientId, ConnNo, GrantNo, LinkId, RequestNo, SessionId};
use crate::lock::access::PRINCIPAL_MAX;
use crate::lock::api::{End, NodeEffects, NodeEvent, To};
use crate::lock::message::{ConfigId, Entered, Message, Refusal, SessionInfo};
use crate::lock::plant::Plant;
use crate::lock::record::Record;
use crate::time::{Instant, Wall};

impl LockNode {
    pub(super) fn hello(
        &mut self,
        link: LinkId,
        client: ClientId,
        conn: ConnNo,
        config: ConfigId,
        out: &mut NodeEffects,
    ) {
        if config != self.config.id {
            let node = self.config.id;
            self.turn_away(link, Refusal::StaleConfig { node }, out);
            return;
        }
        if self.links.get(&link).is_some() {
            return;
        }
        let origin = self.arrivals.remove(&link);
        let place = match self.clients.get(&client).copied() {
            Some(place) => place,
            None if self.peers.len() >= self.config.limits.clients => {
                self.turn_away(link, Refusal::ClientLimit, out);
                return;
            }
            None => self.add_peer(client),
        };
        if self.is_stranger(place, origin.as_ref().and_then(Origin::who)) {
            self.turn_away(link, Refusal::NotPermitted, out);
            return;
        }
        let lax = self.config.rules.has(Plant::NoConnCheck);
        let peer = self
            .peers
            .get(place)
            .expect("invariant: a client is a peer");
        if conn <= peer.conn && !lax {
            self.turn_away(link, Refusal::OldConnection, out);
            return;
        }
        if let Some(old) = peer.link {
            if !lax {
                self.links.remove(&old);
                out.events.push(NodeEvent::Close(old));
            }
            self.disconnect(place, out);
        }
        // The last of what it waited for may have been all that was known of it.
        let place = self.clients.get(&client).copied();
        let place = place.unwrap_or_else(|| self.add_peer(client));
        let now = self.now.mono;
        let peer = self
            .peers
            .get_mut(place)
            .expect("invariant: a client is a peer");
        peer.conn = conn;
        peer.link = Some(link);
        peer.origin = origin;
        peer.heard = now;
        peer.partial = None;
        peer.resumed = peer.sessions.is_empty() && peer.carried.is_empty();
        if peer.resumed {
            peer.renewed = now;
        }
        self.links.insert(link, place);
        self.arm_peer(place);
        let welcome = Message::Welcome {
            node: self.id,
            incarnation: self.incarnation,
            clock: self.token_clock(),
        };
        self.send(place, welcome, out);
    }

    /// Refuses a connection that is not kept.
    fn turn_away(&mut self, link: LinkId, why: Refusal, out: &mut NodeEffects) {
        out.send(To::Link(link), Message::Refused(why));
        out.events.push(NodeEvent::Close(link));
        self.event(NodeEvent::Refused(why), out);
    }

    pub(super) fn add_peer(&mut self, id: ClientId) -> u32 {
        let place = self.peers.insert(Peer {
            id,
            conn: ConnNo(0),
            link: None,
            origin: None,
            heard: self.now.mono,
            renewed: self.now.mono,
            resumed: true,
            partial: None,
            sessions: BTreeSet::new(),
            loose: BTreeSet::new(),
            carried: BTreeSet::new(),
            hold: 0,
            timer: None,
            pays: None,
            lookout: None,
        });
        self.clients.insert(id, place);
        place
    }

    pub(super) fn closed(&mut self, link: LinkId, out: &mut NodeEffects) {
        self.arrivals.remove(&link);
        let Some(place) = self.links.remove(&link) else {
            return;
        };
        let current = self
            .peers
            .get(place)
            .is_some_and(|peer| peer.link == Some(link));
        if current {
            self.disconnect(place, out);
            self.forget_peer(place);
        }
    }

    /// A connection is gone: what waited on it ends, what it was granted stays for its time.
    pub(super) fn disconnect(&mut self, place: u32, out: &mut NodeEffects) {
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        peer.link = None;
        peer.partial = None;
        let loose = std::mem::take(&mut peer.loose);
        self.unwatch_all(place);
        for session in loose {
            self.close_session(session);
        }
        let waiting = self.requests_of(place, |entry| entry.grant.is_none());
        self.end_all(&waiting, End::Disconnected, out);
        self.arm_peer(place);
    }

    /// The requests that a client's connection carries and that pass a test.
    pub(super) fn requests_of(
        &self,
        place: u32,
        test: impl Fn(&crate::lock::arbiter::Entry) -> bool,
    ) -> Vec<(u32, RequestNo)> {
        let Some(peer) = self.peers.get(place) else {
            return Vec::new();
        };
        let attached = peer.sessions.iter().filter_map(|place| {
            let session = self.sessions.get(*place)?;
            Some(session.requests.keys().map(|request| (*place, *request)))
        });
        let all = attached.flatten().chain(peer.carried.iter().copied());
        let passes = |(session, request): &(u32, RequestNo)| {
            self.entry(*session, *request).is_some_and(&test)
        };
        all.filter(passes).collect()
    }

    /// Forgets a client that has neither a connection nor a session.
    pub(super) fn forget_peer(&mut self, place: u32) {
        let Some(peer) = self.peers.get(place) else {
            return;
        };
        if peer.link.is_none() && peer.sessions.is_empty() && peer.carried.is_empty() {
            let id = peer.id;
            self.clients.remove(&id);
            self.peers.remove(place);
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        place: u32,
        beat: u64,
        entered: Vec<Entered>,
        out: &mut NodeEffects,
    ) {
        let now = self.now.mono;
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        peer.heard = now;
        let resumed = peer.resumed;
        let gated = self.config.gate.is_some();
        if gated && resumed && !self.may_renew(place, out) {
            return;
        }
        if let Some(peer) = self.peers.get_mut(place).filter(|_| resumed) {
            peer.renewed = now;
        }
        let mut noted = Vec::new();
        if resumed {
            for entered in entered {
                let grant = entered.grant;
                if let Some(why) = self.bars(place, grant.session) {
                    self.bar(place, grant.session, Some(grant.request), None, why, out);
                    continue;
                }
                let cut = gated && self.cuts_off(place, grant, out);
                if !cut && self.entered(place, entered, out) {
                    noted.push(grant);
                }
            }
        }
        let clock = self.token_clock();
        self.send(place, Message::Beat { beat, clock, noted }, out);
    }

    pub(super) fn arm_peer(&mut self, place: u32) {
        let ttl = self.config.times.link_ttl;
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        let at = if peer.link.is_some() {
            peer.heard.min(peer.renewed) + ttl
        } else {
            peer.renewed + ttl
        };
        if peer.timer.is_none_or(|armed| armed > at) {
            peer.timer = Some(at);
            let id = peer.id;
            self.arm(at, Timer::Peer(id));
        }
    }

    pub(super) fn peer_timer(&mut self, client: ClientId, out: &mut NodeEffects) {
        let Some(place) = self.clients.get(&client).copied() else {
            return;
        };
        let ttl = self.config.times.link_ttl;
        let now = self.now.mono;
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        if peer.timer.is_some_and(|armed| armed > now) {
            return;
        }
        peer.timer = None;
        let (heard, renewed) = (peer.heard, peer.renewed);
        if let Some(link) = peer.link
            && heard + ttl <= now
        {
            self.links.remove(&link);
            out.events.push(NodeEvent::Close(link));
            self.disconnect(place, out);
        }
        if renewed + ttl <= now {
            let lapsed = |entry: &crate::lock::arbiter::Entry| {
                entry.grant.as_ref().is_some_and(|grant| !grant.entered)
            };
            let lapsed = self.requests_of(place, lapsed);
            for (session, request) in &lapsed {
                self.tell_dead(*session, Some(*request), out);
            }
            self.end_all(&lapsed, End::Lapsed, out);
        }
        self.ask_after(place, out);
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        if peer.link.is_some() {
            let next = if renewed + ttl > now {
                heard.min(renewed)
            } else {
                heard
            };
            let at = next + ttl;
            peer.timer = Some(at);
            self.arm(at, Timer::Peer(client));
        } else if renewed + ttl > now {
            let at = renewed + ttl;
            peer.timer = Some(at);
            self.arm(at, Timer::Peer(client));
        }
        self.forget_peer(place);
    }

    pub(super) fn open(&mut self, peer: u32, info: &SessionInfo, out: &mut NodeEffects) {
        if let Err(why) = self.add_session(peer, info, false, out) {
            self.bar(peer, info.session, None, None, why, out);
        }
    }

    /// Adds a session, or finds it there already. What was on disk has its place, whatever the
    /// limits are now.
    pub(super) fn add_session(
        &mut self,
        peer: u32,
        info: &SessionInfo,
        stored: bool,
        out: &mut NodeEffects,
    ) -> Result<u32, Refusal> {
        let principal = self.principal_of(peer, &info.principal);
        if let Some(place) = self.by_session.get(&info.session).copied() {
            let session = self
                .sessions
                .get(place)
                .expect("invariant: sessions are indexed");
            if session.principal != principal {
                return Err(Refusal::NotPermitted);
            }
            if session.revoked.is_some() {
                return Err(Refusal::Revoked);
            }
            let own = session.detached && info.detached || session.peer == peer;
            return if own && session.detached == info.detached && session.ttl == info.ttl {
                Ok(place)
            } else {
                Err(Refusal::Unfit)
            };
        }
        let (times, limits) = (&self.config.times, &self.config.limits);
        if info.ttl > times.ttl_max {
            return Err(Refusal::TtlTooLong { max: times.ttl_max });
        }
        if info.ttl < times.ttl_min {
            return Err(Refusal::TtlTooShort { min: times.ttl_min });
        }
        if info.owner.len() > limits.owner_bytes || principal.len() > PRINCIPAL_MAX {
            return Err(Refusal::Size);
        }
        let payer = match &principal {
            named if stored && !named.is_empty() => Payer::Named(named.clone()),
            _ => self.payer(peer, &info.principal),
        };
        let item = Item::session(&info.owner, &principal);
        let account = self.accounts.find(&payer);
        if !stored && !self.accounts.has_room(account, item, limits) {
            return Err(Refusal::SessionLimit);
        }
        let account = self.accounts.open(payer);
        self.accounts.charge(account, item);
        self.cover_ttl(peer, info.ttl, out);
        let now = self.now.mono;
        let place = self.sessions.insert(Session {
            id: info.session,
            ttl: info.ttl,
            detached: info.detached,
            owner: info.owner.clone(),
            principal,
            account,
            revoked: None,
            peer,
            renewed: now,
            entered: false,
            requests: BTreeMap::new(),
            finished: RequestNo(0),
            timer: None,
        });
        self.by_session.insert(info.session, place);
        if let Some(keeper) = self.peers.get_mut(peer) {
            let kind = if info.detached {
                &mut keeper.loose
            } else {
                &mut keeper.sessions
            };
            kind.insert(place);
        }
        self.arm_session(place);
        Ok(place)
    }

    /// When a session ends if nothing more is heard.
    pub(super) fn session_deadline(&self, session: &Session) -> Instant {
        if let Some(until) = session.revoked {
            return until;
        }
        if session.detached {
            return session.renewed + session.ttl;
        }
        let peer = self.peers.get(session.peer);
        let renewed = peer.map_or(session.renewed, |peer| peer.renewed.max(session.renewed));
        renewed + session.ttl
    }

    pub(super) fn arm_session(&mut self, place: u32) {
        let Some(session) = self.sessions.get(place) else {
            return;
        };
        let at = self.session_deadline(session);
        let id = session.id;
        if session.timer.is_none_or(|armed| armed > at) {
            let session = self.sessions.get_mut(place).expect("invariant: just seen");
            session.timer = Some(at);
            self.arm(at, Timer::Session(id));
        }
    }

    pub(super) fn session_timer(&mut self, id: SessionId, out: &mut NodeEffects) {
        let Some(place) = self.by_session.get(&id).copied() else {
            return;
        };
        let session = self
            .sessions
            .get_mut(place)
            .expect("invariant: sessions are indexed");
        if session.timer.is_some_and(|armed| armed > self.now.mono) {
            return;
        }
        session.timer = None;
        let session = self.sessions.get(place).expect("invariant: just seen");
        let lives_by_link = session.detached && !session.entered && !session.requests.is_empty();
        let lives_by_link = lives_by_link && session.revoked.is_none();
        let over = self.session_deadline(session) <= self.now.mono;
        if over && session.revoked.is_some() {
            self.expire(place, End::Expired, out);
        } else if over && !lives_by_link {
            self.expire_entered(place, out);
        } else if lives_by_link {
            // Its requests end with their connections; it is looked at again then.
            let at = self.now.mono + session.ttl;
            let session = self.sessions.get_mut(place).expect("invariant: just seen");
            session.timer = Some(at);
            self.arm(at, Timer::Session(id));
        } else {
            self.arm_session(place);
        }
    }

    /// Ends a session that was not renewed. Attempts of a detached one that have not entered
    /// live by their gateways' links and stay.
    fn expire_entered(&mut self, place: u32, out: &mut NodeEffects) {
        let Some(session) = self.sessions.get(place) else {
            return;
        };
        let entered = |request: &RequestNo| {
            let grant = self
                .entry(place, *request)
                .and_then(|entry| entry.grant.as_ref());
            grant.is_some_and(|grant| grant.entered)
        };
        let (gone, stay): (Vec<RequestNo>, Vec<RequestNo>) =
            session.requests.keys().copied().partition(entered);
        if !session.detached || stay.is_empty() {
            self.expire(place, End::Expired, out);
            return;
        }
        let gone: Vec<(u32, RequestNo)> = gone.iter().map(|number| (place, *number)).collect();
        if !self.config.rules.has(Plant::SilentExpiry) {
            for (_, number) in &gone {
                self.tell_dead(place, Some(*number), out);
            }
        }
        self.end_all(&gone, End::Expired, out);
        let at = self.now.mono + self.config.times.link_ttl;
        if let Some(session) = self.sessions.get_mut(place) {
            session.entered = false;
            session.timer = Some(at);
            let id = session.id;
            self.arm(at, Timer::Session(id));
        }
    }

    /// Ends a session with all its requests.
    pub(super) fn expire(&mut self, place: u32, why: End, out: &mut NodeEffects) {
        if !self.config.rules.has(Plant::SilentExpiry) {
            self.tell_dead(place, None, out);
        }
        let Some(session) = self.sessions.get(place) else {
            return;
        };
        let requests: Vec<(u32, RequestNo)> = session
            .requests
            .keys()
            .map(|request| (place, *request))
            .collect();
        self.end_all(&requests, why, out);
        self.close_session(place);
    }

    pub(super) fn close_session(&mut self, place: u32) {
        let Some(session) = self.sessions.remove(place) else {
            return;
        };
        self.by_session.remove(&session.id);
        let item = Item::session(&session.owner, &session.principal);
        self.accounts.refund(session.account, item);
        self.revoked_here -= usize::from(session.revoked.is_some());
        if session.ttl >= self.disk.longest_ttl && session.ttl > self.config.times.link_ttl {
            let at = self.now.mono + self.config.times.link_ttl;
            self.arm(at, Timer::Node);
        }
        if let Some(peer) = self.peers.get_mut(session.peer) {
            peer.sessions.remove(&place);
            peer.loose.remove(&place);
        }
        self.forget_peer(session.peer);
    }

    pub(super) fn expire_now(&mut self, session: SessionId, out: &mut NodeEffects) {
        if let Some(place) = self.by_session.get(&session).copied() {
            self.expire(place, End::Revoked, out);
        }
    }

    /// Tells everyone who speaks for a session, or for one of its requests, that it is gone.
    pub(super) fn tell_dead(
        &mut self,
        place: u32,
        request: Option<RequestNo>,
        out: &mut NodeEffects,
    ) {
        let Some(session) = self.sessions.get(place) else {
            return;
        };
        let id = session.id;
        let mut whom = BTreeSet::new();
        if !session.detached {
            whom.insert(session.peer);
        }
        for number in session.requests.keys() {
            if request.is_none_or(|request| request == *number)
                && let Some(entry) = self.entry(place, *number)
            {
                whom.insert(entry.peer);
            }
        }
        for peer in whom {
            self.dead(peer, id, request, out);
        }
    }

    pub(super) fn dead(
        &mut self,
        peer: u32,
        session: SessionId,
        request: Option<RequestNo>,
        out: &mut NodeEffects,
    ) {
        self.send(peer, Message::Dead { session, request }, out);
    }

    pub(super) fn deny(
        &mut self,
        peer: u32,
        session: SessionId,
        request: Option<RequestNo>,
        why: Refusal,
        out: &mut NodeEffects,
    ) {
        self.event(NodeEvent::Refused(why), out);
        let denied = Message::Denied {
            session,
            request,
            why,
        };
        self.send(peer, denied, out);
    }

    /// Due work of the node itself: the end of a pause, recovery, lowering the longest TTL.
    pub(super) fn node_timer(&mut self, out: &mut NodeEffects) {
        match &self.state {
            State::Pausing { until } if *until <= self.now.mono => {
                self.state = State::Serving;
                self.lower_ttl(out);
                self.event(NodeEvent::Serving, out);
            }
            State::Pausing { until } => {
                let at = *until;
                self.arm(at, Timer::Node);
            }
            State::Recovering(_) => self.recover(out),
            State::Serving => self.lower_ttl(out),
            _ => {}
        }
    }

    /// Writes the longest TTL of the live sessions, if it is shorter than what is on disk.
    pub(super) fn lower_ttl(&mut self, out: &mut NodeEffects) {
        let live = self.sessions.iter().map(|(_, session)| session.ttl).max();
        let longest = live.unwrap_or_default().max(self.config.times.link_ttl);
        if longest < self.disk.longest_ttl {
            self.persist(Record::LongestTtl(longest), out);
        }
    }

    /// A priority must not lie far in the future: it would wait behind everyone for ever.
    pub(super) fn too_far(&self, t: u64) -> bool {
        Wall(t) > self.token_clock().plus(self.config.times.priority_ahead)
    }

    /// A grant number that no grant has.
    pub(super) const NO_GRANT: GrantNo = GrantNo(0);
}
