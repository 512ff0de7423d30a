//! A requester outside: asking, gathering grants, yielding, raising, entering.

use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::{NodeSet, family, pick};

use super::serial::Journey;
use super::{LockClient, Timer};
use crate::id::{GrantNo, Incarnation, Key, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{Acquire, ClientEffects, ClientEvent, Ended};
use crate::lock::config::Protocol;
use crate::lock::message::{GrantRef, Message, Refusal, SessionInfo};
use crate::lock::mode::{Ask, Bond, Mode, Priority};
use crate::lock::plant::Plant;
use crate::time::{Instant, Wall};

/// One wish for one lock.
#[derive(Clone, Debug)]
pub(super) struct Requester {
    pub(super) key: Key,
    pub(super) serial: u64,
    pub(super) ask: Arc<Ask>,
    pub(super) info: SessionInfo,
    pub(super) note: Option<Arc<[u8]>>,
    pub(super) phase: Phase,
    /// The nodes asked, in order of their ids.
    pub(super) members: Vec<Member>,
    /// The largest floor seen.
    pub(super) hint: Token,
    /// The quorum asked first; the way of a request that travels.
    pub(super) target: Arc<[NodeId]>,
    /// No quorum is smaller.
    quorum_min: usize,
    pub(super) deadline: Option<Instant>,
    attempt: bool,
    /// Whether it holds grants that are not fresh: the next heartbeat may let it in.
    pub(super) wants_fresh: bool,
    /// Whether a node said that it must wait.
    told_to_wait: bool,
    position: u32,
    pub(super) refusal: Option<Refusal>,
    restarts: u32,
    pub(super) journey: Journey,
    pub(super) hedges: u32,
    pub(super) hedge_at: Option<Instant>,
    armed: Option<Instant>,
}

/// Where a requester is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for the first word of any node, to learn the time.
    Starting,
    /// It gathers grants.
    Trying,
    /// It holds a quorum and registers a token there. It counts as inside: inquiries wait.
    Raising { token: Token, quorum: Vec<NodeId> },
    /// It holds the lock.
    Inside(super::hold::Inside),
    /// A handle is being renewed.
    Keeping(super::handles::Keeping),
}

/// A node that a requester asked.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) node: NodeId,
    /// The last grant of this node that was seen.
    pub(super) seen: GrantNo,
    pub(super) grant: Option<Held>,
    pub(super) asked: Instant,
    pub(super) answered: bool,
    /// The node takes no requests before this.
    pub(super) retry: Option<Instant>,
    /// The node refused this request.
    pub(super) denied: bool,
}

/// A grant in hand.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) number: GrantNo,
    pub(super) floor: Token,
    pub(super) limit: Token,
    pub(super) incarnation: Incarnation,
    /// An inquiry came while it could not be answered.
    pub(super) inquired: bool,
    /// The largest token that the node has registered at our word.
    pub(super) raised: Token,
    /// Whether the hold rests on it.
    pub(super) counted: bool,
    /// Whether the node knows that we are inside on it.
    pub(super) acked: bool,
    /// When the node was first told so: a detached hold lives from here.
    pub(super) announced: Instant,
}

impl Requester {
    pub(super) fn reference(&self) -> (SessionId, RequestNo) {
        (self.ask.session, self.ask.request)
    }

    pub(super) fn member(&self, node: NodeId) -> Option<&Member> {
        let place = self
            .members
            .binary_search_by_key(&node, |member| member.node);
        Some(&self.members[place.ok()?])
    }

    pub(super) fn member_mut(&mut self, node: NodeId) -> Option<&mut Member> {
        let place = self
            .members
            .binary_search_by_key(&node, |member| member.node);
        Some(&mut self.members[place.ok()?])
    }

    /// Whether its lock is serial.
    pub(super) fn travels(&self) -> bool {
        self.journey != Journey::None
    }

    /// The token in use, if it is inside.
    pub(super) fn token(&self) -> Option<Token> {
        match &self.phase {
            Phase::Inside(inside) => Some(inside.token),
            _ => None,
        }
    }

    /// The token in use, also of a handle that is being renewed.
    pub(super) fn holder_token(&self) -> Option<Token> {
        match &self.phase {
            Phase::Keeping(keeping) => Some(keeping.handle.token),
            _ => self.token(),
        }
    }

    /// Whether it asks on behalf of a holder.
    fn speaks_for_holder(&self) -> bool {
        matches!(self.phase, Phase::Inside(_) | Phase::Keeping(_))
    }

    /// The token that is being registered.
    pub(super) fn raising(&self) -> Option<Token> {
        match &self.phase {
            Phase::Raising { token, .. } => Some(*token),
            Phase::Inside(inside) => inside.raise.as_ref().map(|raise| raise.token),
            _ => None,
        }
    }

    /// Whether the token is being registered at this node.
    pub(super) fn raises_at(&self, node: NodeId) -> bool {
        match &self.phase {
            Phase::Raising { quorum, .. } => quorum.contains(&node),
            Phase::Inside(inside) => inside
                .raise
                .as_ref()
                .is_some_and(|raise| raise.quorum.contains(&node)),
            _ => false,
        }
    }

    /// Whether a node said that it must wait.
    pub(super) fn was_told_to_wait(&self) -> bool {
        self.told_to_wait
    }

    /// Whether it has asked the quorum it chose first, and nobody else. That quorum is a minimal
    /// one: no part of it will do.
    pub(super) fn asks_target(&self) -> bool {
        let asked = self.members.iter().map(|member| &member.node);
        self.members.len() == self.target.len() && asked.eq(self.target.iter())
    }

    fn grant_ref(&self, grant: GrantNo) -> GrantRef {
        GrantRef {
            session: self.ask.session,
            request: self.ask.request,
            grant,
        }
    }
}

/// After so many refusals of its clock a request gives up.
const RESTARTS_MAX: u32 = 8;

/// First quorums remembered.
const PICKS_MAX: usize = 4096;

impl LockClient {
    /// Whether a wish is well formed, by this client's own limits.
    pub(super) fn check_wish(&self, wish: &Acquire) -> Result<(), Refusal> {
        let (limits, times) = (&self.config.limits, &self.config.times);
        let name = wish.name.bytes().len();
        let group = match &wish.mode {
            Mode::Group(group) => group.len(),
            Mode::Exclusive | Mode::Shared => 0,
        };
        let note = wish.note.as_ref().map_or(0, |note| note.len());
        if name == 0 || name > limits.name_bytes {
            return Err(Refusal::Size);
        }
        if group > limits.group_bytes || note > limits.note_bytes {
            return Err(Refusal::Size);
        }
        if wish.ttl > times.ttl_max {
            return Err(Refusal::TtlTooLong { max: times.ttl_max });
        }
        if wish.ttl < times.ttl_min {
            return Err(Refusal::TtlTooShort { min: times.ttl_min });
        }
        // A handle moves to other nodes; a serial hold cannot.
        let serial = self.config.policy(&wish.name).protocol == Protocol::Serial;
        if serial && wish.detach.is_some() {
            return Err(Refusal::NoHandles);
        }
        Ok(())
    }

    /// Starts to ask for a lock.
    pub(super) fn begin(&mut self, key: Key, wish: Acquire, out: &mut ClientEffects) -> u32 {
        let (session, bond) = match wish.detach {
            None => (self.session_of(wish.ttl), Bond::Attached),
            Some((session, false)) => (session, Bond::Detached),
            Some((session, true)) => (session, Bond::Named),
        };
        self.last_request.0 += 1;
        let request = if bond == Bond::Named {
            // Several clients may use the session: their numbers must not meet.
            RequestNo(self.rng.next_u64())
        } else {
            self.last_request
        };
        let ask = Ask {
            name: wish.name.clone(),
            mode: wish.mode.clone(),
            session,
            request,
            priority: Priority {
                t: 0,
                client: self.id,
                request,
            },
            bond,
        };
        let deadline = wish.deadline;
        let place = self.insert_request(key, Arc::new(ask), wish, Phase::Starting);
        if let Some(deadline) = deadline {
            self.arm_request(place, deadline);
        }
        if let Some(clock) = self.nodes_clock() {
            self.ask_first(place, clock, out);
            return place;
        }
        self.starting.push(place);
        let target = self
            .requests
            .get(place)
            .map(|request| request.target.clone());
        for node in target.iter().flat_map(|target| target.iter()) {
            self.want_link(*node, out);
        }
        self.arm_hedge(place);
        place
    }

    /// Puts a requester in place.
    pub(super) fn insert_request(
        &mut self,
        key: Key,
        ask: Arc<Ask>,
        wish: Acquire,
        phase: Phase,
    ) -> u32 {
        self.last_serial += 1;
        let target = self.first_quorum(&ask);
        let journey = match self.config.policy(&ask.name).protocol {
            Protocol::Parallel => Journey::None,
            Protocol::Serial => Journey::Prepared,
        };
        let quorum_min = self.config.quorums.least(&ask.mode);
        let mut info = self.attached_info(ask.session, wish.ttl);
        info.detached = ask.bond != Bond::Attached;
        self.requests.insert(Requester {
            key,
            serial: self.last_serial,
            ask,
            info,
            note: wish.note,
            phase,
            members: Vec::with_capacity(target.len()),
            hint: Token(0),
            target,
            quorum_min,
            deadline: wish.deadline,
            attempt: wish.attempt,
            wants_fresh: false,
            told_to_wait: false,
            position: 0,
            refusal: None,
            restarts: 0,
            journey,
            hedges: 0,
            hedge_at: None,
            armed: None,
        })
    }

    /// The first word of a node has come: requests that waited for the time may ask.
    pub(super) fn begin_starting(&mut self, out: &mut ClientEffects) {
        let Some(clock) = self.nodes_clock() else {
            return;
        };
        for place in std::mem::take(&mut self.starting) {
            let starts = |request: &Requester| request.phase == Phase::Starting;
            if self.requests.get(place).is_some_and(starts) {
                self.ask_first(place, clock, out);
            }
        }
    }

    /// Fixes the priority and asks the first quorum.
    fn ask_first(&mut self, place: u32, clock: Wall, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let mut ask = (*request.ask).clone();
        ask.priority.t = clock.0;
        request.ask = Arc::new(ask);
        request.phase = Phase::Trying;
        let reference = request.reference();
        let target = request.target.clone();
        if request.travels() {
            self.set_off(place, out);
            return;
        }
        self.by_ref.insert(reference, place);
        for node in target.iter() {
            self.ask_node(place, *node, out);
        }
        self.arm_hedge(place);
    }

    /// The quorum that all requesters of this lock try first.
    pub(super) fn first_quorum(&mut self, ask: &Ask) -> Arc<[NodeId]> {
        let seed = ask.name.seed();
        let clear = self.troubled.iter().all(|node| !self.avoided(*node));
        let family = Arc::as_ptr(self.config.quorums.family(&ask.mode)).cast::<()>() as usize;
        if clear && let Some(quorum) = self.picks.get(&(seed, family)) {
            return quorum.clone();
        }
        let avoid = self.avoid_set(None);
        let quorum = self.config.quorums.pick(&ask.mode, seed, &avoid);
        let quorum = Self::shared(quorum.iter());
        if clear {
            if self.picks.len() >= PICKS_MAX {
                self.picks = crate::table::Table::new(seed);
            }
            self.picks.insert((seed, family), quorum.clone());
        }
        quorum
    }

    /// Nodes that had better not be asked, for any request or for this one.
    pub(super) fn avoid_set(&self, place: Option<u32>) -> NodeSet {
        let troubled = self.troubled.iter().filter(|node| self.avoided(**node));
        let nodes = self.config.quorums.nodes();
        let mut avoid = NodeSet::of(nodes, troubled.map(|node| node.index()));
        if let Some(request) = place.and_then(|place| self.requests.get(place)) {
            for member in &request.members {
                let busy = member.retry.is_some_and(|retry| retry > self.now.mono);
                if member.denied || busy {
                    avoid.insert(member.node.index());
                }
            }
            let reference = request.reference();
            let left = self.config.quorums.all();
            for node in left.filter(|node| self.just_left(*node, reference)) {
                avoid.insert(node.index());
            }
        }
        avoid
    }

    /// Whether a node may not have heard yet that this request left it. A grant of its first
    /// round may still be on the way: asked now, it would be taken for one of the second.
    fn just_left(&self, node: NodeId, reference: (SessionId, RequestNo)) -> bool {
        self.link(node)
            .is_some_and(|link| link.just_left(reference))
    }

    /// Asks a node, or asks it again.
    pub(super) fn ask_node(&mut self, place: u32, node: NodeId, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get(place) else {
            return;
        };
        // Outside, a request leaves nodes only when it ends: its number is never used again.
        let reference = request.reference();
        if request.speaks_for_holder() && self.just_left(node, reference) {
            return;
        }
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.travels() {
            // It goes where its way leads, and nowhere else.
            return;
        }
        match request
            .members
            .binary_search_by_key(&node, |member| member.node)
        {
            Ok(found) => {
                let member = &mut request.members[found];
                member.asked = now;
                member.answered = false;
                member.retry = None;
            }
            Err(gap) => {
                let member = Member {
                    node,
                    seen: GrantNo(0),
                    grant: None,
                    asked: now,
                    answered: false,
                    retry: None,
                    denied: false,
                };
                request.members.insert(gap, member);
            }
        }
        let (hint, inside) = (request.hint, request.speaks_for_holder());
        let (ask, info) = (request.ask.clone(), request.info.clone());
        let link = self.want_link(node, out);
        link.requests.insert(reference);
        if link.is_open() {
            self.announce(node, &info, out);
            out.send(node, Message::Request { ask, hint, inside });
        }
    }

    pub(super) fn arm_hedge(&mut self, place: u32) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let silent = request.members.iter().filter(|member| !member.answered);
        let delay = self.hedge_delay(silent.map(|member| member.node));
        // Each round waits longer: a cluster that is slow as a whole is not flooded.
        let delay = delay * (1 << request.hedges.min(8));
        let at = self.now.mono + delay;
        if let Some(request) = self.requests.get_mut(place) {
            request.hedge_at = Some(at);
        }
        self.arm_request(place, at);
    }

    pub(super) fn arm_request(&mut self, place: u32, at: Instant) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.armed.is_none_or(|armed| armed > at) {
            request.armed = Some(at);
            let serial = request.serial;
            self.arm(at, Timer::Request(place, serial));
        }
    }

    pub(super) fn request_timer(&mut self, place: u32, serial: u64, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.serial != serial || request.armed.is_some_and(|armed| armed > now) {
            return;
        }
        request.armed = None;
        let key = request.key;
        let outside = matches!(
            request.phase,
            Phase::Starting | Phase::Trying | Phase::Raising { .. }
        );
        if outside && request.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail(key, Ended::TimedOut, out);
            return;
        }
        if matches!(request.phase, Phase::Inside(_)) {
            self.check_hold(place, out);
        }
        self.keep_timer(place, out);
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let retry = |member: &Member| member.retry.is_some_and(|retry| retry <= now);
        if request.hedge_at.is_some_and(|at| at <= now) || request.members.iter().any(retry) {
            request.hedge_at = None;
            self.hedge(place, out);
        }
        self.rearm(place);
    }

    /// Arms the timer for whatever of this request comes next.
    pub(super) fn rearm(&mut self, place: u32) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let hold = self.hold_check(place);
        let retry = request
            .members
            .iter()
            .filter_map(|member| member.retry)
            .min();
        let next = [request.hedge_at, request.deadline, hold, retry];
        let outside = request.token().is_none();
        let next = next.into_iter().flatten();
        let next = next
            .filter(|at| outside || request.deadline != Some(*at))
            .min();
        if let Some(at) = next {
            self.arm_request(place, at);
        }
    }

    /// No answer in time, or a node that must not be waited for: asks more nodes.
    fn hedge(&mut self, place: u32, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.phase == Phase::Starting {
            // No node of the first quorum was reached: try all others.
            request.hedges += 1;
            for node in self.config.quorums.all() {
                self.want_link(node, out);
            }
            self.arm_hedge(place);
            return;
        }
        if request.travels() {
            self.travel_again(place, out);
            return;
        }
        let silent = request.members.iter().filter(|member| !member.answered);
        let silent: Vec<NodeId> = silent.map(|member| member.node).collect();
        let due = |member: &&Member| member.retry.is_some_and(|retry| retry <= now);
        let again = request.members.iter().filter(due);
        let again: Vec<NodeId> = again.map(|member| member.node).collect();
        for node in again {
            self.ask_node(place, node, out);
        }
        for node in silent {
            if let Some(link) = self.link_mut(node) {
                link.suspect = true;
                self.troubled.insert(node);
            }
        }
        self.look_elsewhere(place, out);
    }

    /// Asks for a quorum without the nodes in trouble, if there is one, and otherwise for one
    /// with them.
    pub(super) fn look_elsewhere(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        match &request.phase {
            Phase::Starting | Phase::Keeping(_) => return,
            Phase::Inside(_) => {
                self.migrate(place, out);
                return;
            }
            Phase::Trying | Phase::Raising { .. } => {}
        }
        if request.travels() {
            self.travel_elsewhere(place, out);
            return;
        }
        let avoid = self.avoid_set(Some(place));
        let family = self.config.quorums.family(&request.ask.mode).as_ref();
        let seed = request.ask.name.seed();
        let mut rng = conclave_quorum::Prng::new(seed);
        let healthy = pick(family, &avoid, None, &mut rng);
        let refusal = request.refusal;
        let reachable = healthy.is_some();
        let quorum = healthy.unwrap_or_else(|| {
            self.config.quorums.pick(
                &request.ask.mode,
                seed,
                &NodeSet::new(self.config.quorums.nodes()),
            )
        });
        let known = |node: &usize| request.member(NodeId::at(*node)).is_some();
        let new: Vec<usize> = quorum.iter().filter(|node| !known(node)).collect();
        let key = request.key;
        if !reachable && let Some(why) = refusal {
            self.fail(key, Ended::Refused(why), out);
            return;
        }
        for node in new {
            self.ask_node(place, NodeId::at(node), out);
        }
        self.hedge_again(place);
    }

    /// Looks again after a while, if anybody has not answered.
    fn hedge_again(&mut self, place: u32) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let waits = request.members.iter().any(|member| !member.answered);
        let retry = request
            .members
            .iter()
            .filter_map(|member| member.retry)
            .min();
        if waits {
            request.hedges += 1;
            self.arm_hedge(place);
        } else if let Some(retry) = retry {
            request.hedge_at = Some(retry);
            self.arm_request(place, retry);
        }
    }

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
    fn any_request(&self, node: NodeId, grant: GrantRef) -> Option<u32> {
        if !self.config.rules.has(Plant::NoRequestOnLocked) {
            return None;
        }
        let link = self.link(node)?;
        let same = link
            .requests
            .iter()
            .find(|(session, _)| *session == grant.session)?;
        self.by_ref.get(same).copied()
    }

    /// Looks whether the grants in hand let the requester in, or on.
    pub(super) fn progress(&mut self, place: u32, out: &mut ClientEffects) {
        let phase = self.requests.get(place).map(|request| &request.phase);
        match phase {
            Some(Phase::Trying) => self.try_enter(place, out),
            Some(Phase::Inside(_)) => self.gather(place, out),
            Some(Phase::Keeping(_)) => self.gather_kept(place, out),
            _ => {}
        }
    }

    fn try_enter(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let held = request
            .members
            .iter()
            .filter(|member| member.grant.is_some());
        let count = held.clone().count();
        if count < request.quorum_min || count < request.target.len() && request.asks_target() {
            return;
        }
        let stale_too = self.config.rules.has(Plant::NoFreshnessAtEntry);
        let now = self.now.mono;
        let fresh = held.clone().filter(|member| {
            stale_too
                || self
                    .fresh_until(request, member)
                    .is_some_and(|until| until > now)
        });
        let nodes = self.config.quorums.nodes();
        let set = NodeSet::of(nodes, fresh.map(|member| member.node.index()));
        let family = self.config.quorums.family(&request.ask.mode);
        let whole = request.target.iter().all(|node| set.contains(node.index()));
        if !whole && !family.contains_quorum(&set) {
            let wants = held.count() > set.len();
            let request = self.requests.get_mut(place).expect("invariant: just seen");
            request.wants_fresh = wants;
            return;
        }
        let quorum: Vec<NodeId> = if whole {
            request.target.to_vec()
        } else {
            let even = vec![1.0; nodes];
            let least = family::shrink(&set, &even, &|set| family.contains_quorum(set));
            least.iter().map(NodeId::at).collect()
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
            request.phase = Phase::Raising {
                token,
                quorum: quorum.clone(),
            };
            self.send_raises(place, token, &quorum, out);
            if self.config.rules.has(Plant::EnterBeforeRaised) {
                self.enter(place, token, &quorum, out);
            }
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

    fn all_fresh(&self, place: u32, quorum: &[NodeId]) -> bool {
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
            out.events.push(ClientEvent::Position(key, position));
        }
        if request.attempt && request.token().is_none() {
            self.fail(key, Ended::Busy, out);
        } else if self.config.rules.has(Plant::FailedRule) {
            self.yield_deferred(place, out);
        }
    }

    /// Only a planted bug defers inquiries outside.
    fn yield_deferred(&mut self, place: u32, out: &mut ClientEffects) {
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
        if trying && !defers || inside && rules.has(Plant::YieldInside) {
            self.give_back(place, node, grant.grant, out);
        }
    }

    fn give_back(&mut self, place: u32, node: NodeId, grant: GrantNo, out: &mut ClientEffects) {
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
        let hit = |reference: &&(SessionId, RequestNo)| {
            reference.0 == session && number.is_none_or(|number| number == reference.1)
        };
        let refs: Vec<_> = link.requests.iter().filter(hit).copied().collect();
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
    fn member_died(&mut self, place: u32, node: NodeId, out: &mut ClientEffects) {
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
        member.grant = None;
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
                self.drop_member(place, node, out);
                self.check_hold(place, out);
                self.migrate(place, out);
            }
            Phase::Keeping(_) => self.keep_answer(place, node, false, out),
            Phase::Starting => {}
        }
        self.arm_hedge_if_silent(place);
    }

    fn arm_hedge_if_silent(&mut self, place: u32) {
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
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if why == Refusal::Finished {
            let key = request.key;
            self.fail(key, Ended::NotHeld, out);
            return;
        }
        if request.token().is_some() {
            self.member_died(place, node, out);
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

    fn session_denied(
        &mut self,
        node: NodeId,
        session: SessionId,
        why: Refusal,
        out: &mut ClientEffects,
    ) {
        self.unannounce(node, session);
        let Some(link) = self.link(node) else { return };
        let refs = link
            .requests
            .iter()
            .filter(|reference| reference.0 == session);
        for reference in refs.copied().collect::<Vec<_>>() {
            self.denied(node, reference.0, Some(reference.1), why, out);
        }
    }

    /// The request's time was refused: asks again as a new request, with the nodes' time.
    fn start_over(&mut self, place: u32, node: NodeId, why: Refusal, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        request.restarts += 1;
        let key = request.key;
        if request.restarts > RESTARTS_MAX {
            self.fail(key, Ended::Refused(why), out);
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
            let counted = member.grant.as_ref().is_some_and(|grant| grant.counted);
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
