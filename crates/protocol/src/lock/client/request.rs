//! A requester outside: what it is, whom it asks, and when it asks others.

use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::NodeSet;

use super::link::Suspicion;
use super::serial::Journey;
use super::{LockClient, Timer};
use crate::id::{GrantNo, Incarnation, Key, NodeId, RequestNo, SessionId, Token};
use crate::lock::api::{Acquire, ClientEffects, Ended};
use crate::lock::config::Protocol;
use crate::lock::message::{GrantRef, Message, Refusal, SessionInfo};
use crate::lock::mode::{Ask, Bond, Mode, Priority};
use crate::lock::plant::Plant;
use crate::table::Table;
use crate::time::{Instant, Wall};

/// One wish for one lock.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the request"
)]
pub(super) struct Requester {
    pub(super) key: Key,
    pub(super) serial: u64,
    pub(super) ask: Arc<Ask>,
    pub(super) info: SessionInfo,
    pub(super) note: Option<Arc<[u8]>>,
    /// How often the note was changed.
    pub(super) edition: u32,
    /// Whether somebody waits to read that it entered.
    pub(super) watched: bool,
    pub(super) phase: Phase,
    /// The nodes asked, in order of their ids.
    pub(super) members: Vec<Member>,
    /// The largest floor seen.
    pub(super) hint: Token,
    /// The quorum asked first; the way of a request that travels.
    pub(super) target: Arc<[NodeId]>,
    /// No quorum is smaller.
    pub(super) quorum_min: usize,
    pub(super) deadline: Option<Instant>,
    pub(super) attempt: bool,
    /// Whether it holds grants that are not fresh: the next heartbeat may let it in.
    pub(super) wants_fresh: bool,
    /// Whether no quorum was out of trouble when it looked last: it looks again now and then, for
    /// nodes that are back.
    pub(super) short: bool,
    /// Whether a node said that it must wait.
    pub(super) told_to_wait: bool,
    pub(super) position: u32,
    pub(super) refusal: Option<Refusal>,
    pub(super) restarts: u32,
    pub(super) journey: Journey,
    pub(super) repeat: super::raise::Repeat,
    pub(super) hedges: u32,
    pub(super) hedge_at: Option<Instant>,
    pub(super) armed: Option<Instant>,
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
            Phase::Keeping(keeping) => Some(keeping.token()),
            _ => self.token(),
        }
    }

    /// Whether it asks on behalf of a holder.
    pub(super) fn speaks_for_holder(&self) -> bool {
        matches!(self.phase, Phase::Inside(_) | Phase::Keeping(_))
    }

    /// The nodes that its holder rests on, those that are lost included; none if it is outside.
    pub(super) fn rests_on(&self) -> Option<Vec<NodeId>> {
        let counted = |member: &&Member| member.grant.as_ref().is_some_and(|grant| grant.counted);
        let members = self.members.iter().filter(counted);
        let members = members.map(|member| member.node);
        match &self.phase {
            Phase::Inside(inside) => Some(members.chain(inside.lost.iter().copied()).collect()),
            Phase::Keeping(keeping) => Some(keeping.members().collect()),
            _ => None,
        }
    }

    /// The token that is being registered.
    pub(super) fn raising(&self) -> Option<Token> {
        match &self.phase {
            Phase::Raising { token, .. } => Some(*token),
            Phase::Inside(inside) => inside.raise.as_ref().map(|raise| raise.token),
            Phase::Keeping(keeping) => keeping.raising(),
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

    /// Whether every node that it asked has answered, and it can do nothing but wait.
    pub(super) fn just_waits(&self) -> bool {
        let heard = |member: &Member| member.answered;
        self.told_to_wait
            && self.phase == Phase::Trying
            && !self.travels()
            && self.members.iter().all(heard)
            && !self.is_half_way()
            && !self.short
    }

    /// Whether it has some grants and needs the word of more nodes to enter. Nobody conflicting is
    /// inside any more: a node that is silent now stops everybody.
    pub(super) fn is_half_way(&self) -> bool {
        let granted = |member: &Member| member.grant.is_some();
        LockClient::hopes(&self.phase) && !self.travels() && self.members.iter().any(granted)
    }

    /// Whether a member's node was told to reserve the token that we are inside with. A node that
    /// was in trouble when the token grew was not.
    pub(super) fn is_told(&self, member: &Member) -> bool {
        let token = self.token().unwrap_or_default();
        let grant = member.grant.as_ref();
        grant.is_some_and(|grant| grant.limit >= token)
    }

    /// Whether it gathers grants and some node that it asked has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        let silent = |member: &Member| !member.answered;
        LockClient::hopes(&self.phase) && !self.travels() && self.members.iter().any(silent)
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

    pub(super) fn grant_ref(&self, grant: GrantNo) -> GrantRef {
        GrantRef {
            session: self.ask.session,
            request: self.ask.request,
            grant,
        }
    }
}

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
        let owner = wish.owner.as_ref().map_or(0, |owner| owner.len());
        if name == 0 || name > limits.name_bytes {
            return Err(Refusal::Size);
        }
        if group > limits.group_bytes || note > limits.note_bytes || owner > limits.owner_bytes {
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
        let near = self.chooses_near(&ask);
        let deadline = wish.deadline;
        let place = self.insert_request(key, Arc::new(ask), wish, Phase::Starting);
        if near {
            self.look_around(out);
        }
        if let Some(clock) = self.nodes_clock() {
            self.ask_first(place, clock, out);
        } else {
            self.wait_for_time(place, out);
        }
        // Last: a timer that comes sooner looks at the deadline too, and most requests end before
        // either. Those that wait their turn in the heap would else pile up there.
        if let Some(deadline) = deadline {
            self.arm_request(place, deadline);
        }
        place
    }

    /// Connects to the first quorum: the first word of a node tells the time.
    fn wait_for_time(&mut self, place: u32, out: &mut ClientEffects) {
        self.starting.push(place);
        let target = self
            .requests
            .get(place)
            .map(|request| request.target.clone());
        for node in target.iter().flat_map(|target| target.iter()) {
            self.want_link(*node, out);
        }
        self.arm_hedge(place);
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
        if let Some(owner) = wish.owner.filter(|_| info.detached) {
            info.owner = owner;
        }
        info.principal = wish.principal;
        self.requests.insert(Requester {
            key,
            serial: self.last_serial,
            ask,
            info,
            note: wish.note,
            edition: 0,
            watched: false,
            phase,
            members: Vec::with_capacity(target.len()),
            hint: Token(0),
            target,
            quorum_min,
            deadline: wish.deadline,
            attempt: wish.attempt,
            wants_fresh: false,
            short: false,
            told_to_wait: false,
            position: 0,
            refusal: None,
            restarts: 0,
            journey,
            repeat: super::raise::Repeat::default(),
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
    pub(super) fn ask_first(&mut self, place: u32, clock: Wall, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        Arc::make_mut(&mut request.ask).priority.t = clock.0;
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
        let near = self.chooses_near(ask);
        let clear = self.troubled.iter().all(|node| !self.avoided(*node)) && !self.finds_slow();
        let family = Arc::as_ptr(self.config.quorums.family(&ask.mode)).cast::<()>() as usize;
        if clear && let Some(quorum) = self.picks.get(&(seed, family)) {
            return quorum.clone();
        }
        let avoid = self.avoid_set(None);
        let by_distance = near || !clear;
        let quorum = by_distance.then(|| self.quorum_without(ask, &avoid));
        let quorum = quorum.flatten();
        let quorum = quorum.unwrap_or_else(|| self.config.quorums.pick(&ask.mode, seed, &avoid));
        let quorum = Self::shared(quorum.iter());
        if clear {
            return self.remember_pick((seed, family), quorum);
        }
        quorum
    }

    /// Keeps the first quorum of a name. Many names share one.
    fn remember_pick(&mut self, of: (u64, usize), quorum: Arc<[NodeId]>) -> Arc<[NodeId]> {
        if self.picks.len() >= self.config.limits.picks {
            self.forget_picks();
        }
        let known = self.picked.get(&quorum).cloned();
        let quorum = known.unwrap_or_else(|| {
            self.picked.insert(quorum.clone());
            quorum
        });
        self.picks.insert(of, quorum.clone());
        quorum
    }

    /// Quorums are chosen anew.
    pub(super) fn forget_picks(&mut self) {
        self.picks = Table::new(self.last_serial);
        self.picked.clear();
    }

    /// Nodes that will not answer this request: silent ones, and those that answered it already.
    fn silent_set(&self, place: u32) -> NodeSet {
        let mut avoid = self.avoid_set(Some(place));
        let request = self.requests.get(place);
        for node in self.config.quorums.all() {
            let asked = request.is_some_and(|request| request.member(node).is_some());
            let there = self.link(node).is_none_or(super::link::Link::is_trusted);
            let left = request.is_some_and(|request| self.just_left(node, request.reference()));
            if !asked && there && !left {
                avoid.remove(node.index());
            }
        }
        avoid
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
    pub(super) fn just_left(&self, node: NodeId, reference: (SessionId, RequestNo)) -> bool {
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
        let (hint, inside) = (request.hint, request.rests_on());
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
        let members = request.members.iter().map(|member| member.node);
        let trip = self.hedge_delay(members);
        // Each round waits longer: a cluster that is slow as a whole is not flooded.
        let mut delay = trip * (1 << request.hedges.min(8));
        if request.is_half_way() {
            // A node may fall silent at any time, and everybody behind this request waits too.
            delay = delay.min(self.half_way_delay(trip));
        }
        let late = self.config.rules.has(Plant::HedgeStaysLate);
        if !late && (request.short || request.token().is_some()) {
            // Nodes that were in trouble may be back, and a hold that moves has little time.
            delay = delay.min(trip.max(self.config.times.heartbeat));
        }
        let at = self.now.mono + delay;
        if let Some(request) = self.requests.get_mut(place) {
            request.hedge_at = Some(at);
        }
        self.arm_request(place, at);
    }

    /// A request that has grants but not enough looks again soon: a node that said *wait* may have
    /// fallen silent since, and others may be back. It may have meant to look much later.
    pub(super) fn arm_hedge_half_way(&mut self, place: u32) {
        let half_way = |request: &&Requester| request.is_half_way();
        let Some(request) = self.requests.get(place).filter(half_way) else {
            return;
        };
        let trip = self.hedge_delay(request.members.iter().map(|member| member.node));
        let soon = self.now.mono + self.half_way_delay(trip);
        let late = self.config.rules.has(Plant::HedgeStaysLate);
        if request.hedge_at.is_some_and(|at| at <= soon || late) {
            return;
        }
        if let Some(request) = self.requests.get_mut(place) {
            request.hedges = 0;
        }
        self.arm_hedge(place);
    }

    fn half_way_delay(&self, trip: Duration) -> Duration {
        trip.max(self.config.times.heartbeat / 5)
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
        let outside = matches!(
            request.phase,
            Phase::Starting | Phase::Trying | Phase::Raising { .. }
        );
        if outside && request.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail_one(place, Ended::TimedOut, out);
            return;
        }
        if matches!(request.phase, Phase::Inside(_)) {
            self.check_hold(place, out);
        }
        self.repeat_raise(place, out);
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
        self.rest_a_little(place);
    }

    /// Whatever is still due after its turn has the next one a little later: timers never spin.
    fn rest_a_little(&mut self, place: u32) {
        let now = self.now.mono;
        let soon = now + self.config.times.hedge_min;
        if let Some(request) = self.requests.get_mut(place)
            && request.armed.is_some_and(|armed| armed <= now)
        {
            request.armed = None;
            self.arm_request(place, soon);
        }
    }

    /// Arms the timer for whatever of this request comes next.
    pub(super) fn rearm(&mut self, place: u32) {
        if let Some(at) = self.next_moment(place) {
            self.arm_request(place, at);
        }
    }

    /// When this request has something to do next, if nothing happens before.
    fn next_moment(&self, place: u32) -> Option<Instant> {
        let request = self.requests.get(place)?;
        let hold = self.hold_check(place);
        let retry = request
            .members
            .iter()
            .filter_map(|member| member.retry)
            .min();
        let hedge = request.hedge_at.filter(|_| !request.just_waits());
        let outside = request.token().is_none();
        let deadline = request.deadline.filter(|_| outside);
        let raise = request.repeat.at;
        [hedge, deadline, hold, retry, raise]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether a request waits in queues and has nothing to do at `at`.
    pub(super) fn may_put_off(&self, place: u32, at: Instant) -> bool {
        let waits = self.requests.get(place).is_some_and(Requester::just_waits);
        waits && self.next_moment(place).is_none_or(|next| next > at)
    }

    /// Sets the timer of a request that waits in queues for when it has something to do.
    pub(super) fn put_off(&mut self, place: u32) {
        if let Some(request) = self.requests.get_mut(place) {
            request.armed = None;
            request.hedge_at = None;
            self.rearm(place);
        }
    }

    /// No answer in time, or a node that must not be waited for: asks more nodes.
    pub(super) fn hedge(&mut self, place: u32, out: &mut ClientEffects) {
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
            // Its way is tried again as a whole; nobody is asked again alone.
            for member in &mut request.members {
                member.retry = member.retry.filter(|retry| *retry > now);
            }
            self.travel_again(place, out);
            return;
        }
        let silent = request.members.iter().filter(|member| !member.answered);
        let silent: Vec<(NodeId, Instant)> =
            silent.map(|member| (member.node, member.asked)).collect();
        let due = |member: &&Member| member.retry.is_some_and(|retry| retry <= now);
        let again = request.members.iter().filter(due);
        let again: Vec<NodeId> = again.map(|member| member.node).collect();
        for node in again {
            self.ask_node(place, node, out);
        }
        let patience = self.config.times.link_ttl;
        for (node, asked) in silent {
            // With much asked of it at once, its answers take their time.
            if asked + patience > now && self.is_busy(node) {
                continue;
            }
            self.distrust(node, Suspicion::Hedged);
        }
        self.probe_members(place, out);
        self.look_elsewhere(place, out);
    }

    /// Whether the nodes that a request half-way inside has asked are there. One that is not is
    /// asked no more, but nothing that rests on it moves: it may be back in a moment.
    fn probe_members(&mut self, place: u32, out: &mut ClientEffects) {
        let half_way = |request: &&Requester| request.is_half_way();
        let request = self.requests.get(place).filter(half_way);
        let members = request.iter().flat_map(|request| &request.members);
        let members: Vec<NodeId> = members.map(|member| member.node).collect();
        for node in members {
            if self.is_silent(node, out) {
                self.distrust(node, Suspicion::Hedged);
            }
        }
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
        let seed = request.ask.name.seed();
        let healthy = self.quorum_without(&request.ask, &avoid);
        let refusal = request.refusal;
        let reachable = healthy.is_some();
        // Those that asked for patience may serve by now; better them than nobody.
        let patient = || self.quorum_without(&request.ask, &self.silent_set(place));
        let quorum = healthy.or_else(patient).unwrap_or_else(|| {
            self.config.quorums.pick(
                &request.ask.mode,
                seed,
                &NodeSet::new(self.config.quorums.nodes()),
            )
        });
        let known = |node: &usize| request.member(NodeId::at(*node)).is_some();
        let new: Vec<usize> = quorum.iter().filter(|node| !known(node)).collect();
        if !reachable && let Some(why) = refusal {
            self.fail_one(place, Ended::Refused(why), out);
            return;
        }
        if let Some(request) = self.requests.get_mut(place) {
            request.short = !reachable;
        }
        for node in new {
            self.ask_node(place, NodeId::at(node), out);
        }
        self.raise_elsewhere(place, out);
        self.hedge_again(place);
    }

    /// Looks again after a while, if anybody has not answered.
    pub(super) fn hedge_again(&mut self, place: u32) {
        let soon = self.now.mono + self.config.times.heartbeat;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let waits = request.members.iter().any(|member| !member.answered);
        let waits = waits || request.is_half_way();
        let short = request.short.then_some(soon);
        let retry = request
            .members
            .iter()
            .filter_map(|member| member.retry)
            .min();
        if waits {
            request.hedges += 1;
            self.arm_hedge(place);
        } else if let Some(at) = retry.into_iter().chain(short).min() {
            request.hedge_at = Some(at);
            self.arm_request(place, at);
        }
    }
}
