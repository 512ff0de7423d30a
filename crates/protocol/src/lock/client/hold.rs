//! A requester inside: how long it may stay, and how it moves to other nodes.

use conclave_quorum::{NodeSet, pick};

use super::LockClient;
use super::link::Link;
use super::request::{Member, Phase, Requester};
use crate::id::{GrantNo, NodeId, Token};
use crate::lock::api::{ClientEffects, ClientEvent};
use crate::lock::message::{GrantRef, Message};
use crate::lock::plant::Plant;
use crate::time::Instant;

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    pub(super) token: Token,
    /// A larger token that is being registered, so that new members may count.
    pub(super) raise: Option<Raise>,
    /// When it entered.
    pub(super) since: Instant,
    /// Members that no longer know it. Whoever is asked to stand in for them hears of them.
    pub(super) lost: Vec<NodeId>,
}

/// A token being registered at the quorum that a hold will rest on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raise {
    pub(super) token: Token,
    pub(super) quorum: Vec<NodeId>,
}

impl LockClient {
    /// Until when a member's grant is surely not given to others: counted from the sending of
    /// the last heartbeat that the node answered, for the connection's lease until the node knows
    /// that we are inside, for the session's TTL from then on.
    pub(super) fn fresh_until(&self, request: &Requester, member: &Member) -> Option<Instant> {
        let grant = member.grant.as_ref()?;
        let base = self.link(member.node)?.base?;
        let (times, rules) = (&self.config.times, self.config.rules);
        let mut acked = grant.acked;
        if rules.has(Plant::FreshnessPerQuorum) {
            let known = |member: &Member| member.grant.as_ref().is_some_and(|grant| grant.acked);
            acked = request.members.iter().any(known);
        }
        let ttl = request.info.ttl;
        let base = if acked && request.info.detached {
            grant.announced
        } else {
            base
        };
        let span = match (acked, request.info.detached) {
            (true, _) => ttl,
            // Until it has entered, a detached request lives by this client's connection alone.
            (false, true) => times.link_ttl,
            (false, false) => ttl.min(times.link_ttl),
        };
        let span = if rules.has(Plant::NoDriftMargin) {
            span
        } else {
            times.shrink(span)
        };
        let until = base + span;
        if request.info.detached && !acked && grant.announced != Instant::FAR {
            // The node may have heard that we entered: then the TTL runs there.
            return Some(until.min(grant.announced + times.shrink(ttl)));
        }
        Some(until)
    }

    /// When the fresh members no longer contain a quorum; none if it is not inside.
    pub(super) fn hold_deadline(&self, place: u32) -> Option<Instant> {
        let request = self.requests.get(place)?;
        request.token()?;
        let counted = request.members.iter().filter(|member| counts(member));
        if request.asks_target() && counted.clone().count() == request.target.len() {
            // No part of that quorum will do: it ends with the first of its members.
            let ends = counted.map(|member| self.fresh_until(request, member));
            return ends.map(Option::unwrap_or_default).min();
        }
        let mut ends: Vec<(Instant, NodeId)> = counted
            .map(|member| {
                (
                    self.fresh_until(request, member).unwrap_or_default(),
                    member.node,
                )
            })
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let family = self.config.quorums.family(&request.ask.mode);
        let least = self.config.quorums.least(&request.ask.mode);
        let mut set = NodeSet::new(self.config.quorums.nodes());
        for (index, (until, node)) in ends.iter().enumerate() {
            set.insert(node.index());
            if index + 1 >= least && family.contains_quorum(&set) {
                return Some(*until);
            }
        }
        Some(Instant::ZERO)
    }

    pub(super) fn fresh_members(&self, place: u32, now: Instant) -> Vec<(NodeId, GrantNo)> {
        let Some(request) = self.requests.get(place) else {
            return Vec::new();
        };
        let counted = request.members.iter().filter(|member| counts(member));
        let fresh = counted.filter(|member| {
            self.fresh_until(request, member)
                .is_some_and(|until| until > now)
        });
        fresh
            .filter_map(|member| Some((member.node, member.grant.as_ref()?.number)))
            .collect()
    }

    /// Goes in: this is the one step that decides.
    pub(super) fn enter(
        &mut self,
        place: u32,
        token: Token,
        quorum: &[NodeId],
        out: &mut ClientEffects,
    ) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let reference = request.reference();
        request.phase = Phase::Inside(Inside {
            token,
            raise: None,
            since: now,
            lost: Vec::new(),
        });
        request.hedge_at = None;
        request.hedges = 0;
        request.short = false;
        let (key, name, group) = (request.key, request.ask.name.clone(), request.ask.group());
        let extras = request
            .members
            .iter()
            .filter(|member| !quorum.contains(&member.node));
        let extras: Vec<NodeId> = extras.map(|member| member.node).collect();
        request
            .members
            .retain(|member| quorum.contains(&member.node));
        for member in &mut request.members {
            if let Some(grant) = &mut member.grant {
                grant.counted = true;
            }
        }
        for node in extras {
            self.send_done(node, reference, None, out);
        }
        self.announce_hold(place, quorum, false, out);
        let members = self.counted_members(place);
        let until = self.hold_deadline(place).unwrap_or_default();
        out.events.push(ClientEvent::Entered {
            key,
            name,
            token,
            members,
            group,
            until,
        });
        self.rearm(place);
        self.leave_troubled(place, out);
        self.entered_one(key, place, out);
    }

    /// Says ENTERED: at once if the hold moved there, if others wait to read it or if the hold
    /// lives on without us, otherwise with the next heartbeat.
    pub(super) fn announce_hold(
        &mut self,
        place: u32,
        nodes: &[NodeId],
        moved: bool,
        out: &mut ClientEffects,
    ) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let reference = request.reference();
        let at_once = moved || request.note.is_some() || request.info.detached || request.watched;
        let now = self.now.mono;
        for node in nodes {
            if let Some(request) = self.requests.get_mut(place)
                && let Some(member) = request.member_mut(*node)
                && let Some(grant) = &mut member.grant
            {
                grant.announced = grant.announced.min(now);
            }
            if let Some(link) = self.link_mut(*node) {
                link.to_note.insert(reference);
            }
            if at_once && let Some(entered) = self.entered_notice(reference, *node) {
                self.tell(*node, Message::Entered(Box::new(entered)), out);
            }
        }
    }

    pub(super) fn counted_members(&self, place: u32) -> Vec<(NodeId, GrantNo)> {
        let Some(request) = self.requests.get(place) else {
            return Vec::new();
        };
        let counted = request.members.iter().filter(|member| counts(member));
        counted
            .filter_map(|member| Some((member.node, member.grant.as_ref()?.number)))
            .collect()
    }

    /// Ends the hold if too few of its grants are still fresh.
    pub(super) fn check_hold(&mut self, place: u32, out: &mut ClientEffects) {
        if self
            .hold_deadline(place)
            .is_some_and(|until| until <= self.now.mono)
            && !self.clings(place)
        {
            self.lose(place, out);
        }
    }

    /// When to look whether the hold has ended.
    pub(super) fn hold_check(&self, place: u32) -> Option<Instant> {
        let until = self.hold_deadline(place)?;
        if until <= self.now.mono && self.clings(place) {
            return Some(self.now.mono + self.config.times.heartbeat);
        }
        Some(until)
    }

    /// The planted bug: a hold that has run out goes on while a node that it rests on is not
    /// connected, in the hope to reclaim the grant there.
    fn clings(&self, place: u32) -> bool {
        if !self.config.rules.has(Plant::ReclaimStale) {
            return false;
        }
        let members = self.requests.get(place).map(|request| &request.members);
        let mut counted = members.into_iter().flatten().filter(|one| counts(one));
        counted.any(|member| !self.link(member.node).is_some_and(Link::is_open))
    }

    pub(super) fn lose(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let (key, name) = (request.key, request.ask.name.clone());
        let token = request.token();
        self.moves.finish(request.reference());
        out.events.push(ClientEvent::Lost(key, name));
        self.leave_all(place, token, out);
        self.requests.remove(place);
        self.lost_one(key, place, out);
    }

    /// A node acknowledged that we are inside on its grant.
    pub(super) fn noted(&mut self, node: NodeId, grant: GrantRef, out: &mut ClientEffects) {
        let reference = (grant.session, grant.request);
        let Some(place) = self.by_ref.get(&reference).copied() else {
            return;
        };
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let token = request.holder_token().unwrap_or_default();
        let Some(held) = request
            .member_mut(node)
            .and_then(|member| member.grant.as_mut())
        else {
            return;
        };
        if held.number != grant.grant {
            return;
        }
        held.acked = true;
        // The node has lowered the limit to what was named.
        held.limit = held.raised.max(token);
        if let Some(link) = self.link_mut(node) {
            link.to_note.remove(&reference);
        }
        // From now on a detached hold counts its TTL, which may end sooner than the connection's.
        self.check_hold(place, out);
        self.rearm(place);
        // It may have moved here: then those that it left need not wait any longer.
        self.leave_troubled(place, out);
        self.hand_over(place, out);
    }

    /// A hold that rests on a node in trouble from its first moment moves at once, and one that
    /// took a larger token leaves the nodes that were not told of it.
    fn leave_troubled(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let avoided = |member: &Member| !self.troubled.is_empty() && self.avoided(member.node);
        let unsound = |member: &Member| avoided(member) || !request.is_told(member);
        if request.members.iter().any(unsound) {
            self.migrate(place, out);
        }
    }

    /// Gathers grants elsewhere for members in trouble, before theirs go stale.
    pub(super) fn migrate(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Some(token) = request.token() else { return };
        if request.travels() {
            return;
        }
        let nodes = self.config.quorums.nodes();
        let family = self.config.quorums.family(&request.ask.mode).clone();
        let good = self.sound_members(place);
        if family.contains_quorum(&good) {
            self.settle(place, out);
            return;
        }
        let reference = request.reference();
        if !self.moves.admit(reference) {
            return;
        }
        let Some(request) = self.requests.get(place) else {
            return;
        };
        // Members that are well cost nothing: as few new nodes as possible are asked.
        let weights = self.moving_costs(|node| good.contains(node));
        let mut rng = conclave_quorum::Prng::new(request.ask.name.seed());
        let avoid = self.avoid_set(Some(place));
        let healthy = pick(family.as_ref(), &avoid, Some(&weights), &mut rng);
        let empty = NodeSet::new(nodes);
        let quorum = healthy.or_else(|| pick(family.as_ref(), &empty, Some(&weights), &mut rng));
        let known = |node: &usize| request.member(NodeId::at(*node)).is_some();
        let new = quorum
            .iter()
            .flat_map(NodeSet::iter)
            .filter(|node| !known(node));
        let new: Vec<usize> = new.collect();
        if let Some(request) = self.requests.get_mut(place) {
            request.hint = request.hint.max(token);
        }
        for node in new {
            self.ask_node(place, NodeId::at(node), out);
        }
        self.look_again(place);
    }

    /// While a hold moves it looks again now and then, for answers that did not come.
    fn look_again(&mut self, place: u32) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.hedge_at.is_none() {
            request.hedges += 1;
            let (reference, rounds) = (request.reference(), request.hedges);
            self.moves.tired(reference, rounds);
            self.arm_hedge(place);
        }
    }

    /// A holder has new grants in hand: counts what may count, and registers a larger token
    /// where a node has seen one that is not below ours.
    pub(super) fn gather(&mut self, place: u32, out: &mut ClientEffects) {
        let lax = self.config.rules.has(Plant::MigrateWithoutFloor);
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Some(token) = request.token() else { return };
        let mut new = Vec::new();
        for member in &mut request.members {
            let Some(grant) = member.grant.as_mut().filter(|grant| !grant.counted) else {
                continue;
            };
            if lax || grant.floor < token && grant.limit >= token {
                grant.counted = true;
                new.push(member.node);
            }
        }
        if !new.is_empty() {
            self.announce_hold(place, &new, true, out);
            self.say_moved(place, out);
        }
        self.moved_if_raised(place, out);
        self.maybe_raise(place, out);
        self.migrate_done(place, out);
    }

    fn say_moved(&mut self, place: u32, out: &mut ClientEffects) {
        let members = self.counted_members(place);
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Phase::Inside(inside) = &request.phase else {
            return;
        };
        out.events.push(ClientEvent::Moved {
            key: request.key,
            name: request.ask.name.clone(),
            token: inside.token,
            members,
        });
        self.rearm(place);
    }

    /// Starts to register a larger token if that would let new members count.
    fn maybe_raise(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Inside(inside) = &request.phase else {
            return;
        };
        let waiting = request
            .members
            .iter()
            .any(|member| member.grant.as_ref().is_some_and(|grant| !grant.counted));
        // The holder of a handle learns of a larger token only with its next handle. A raise that
        // waits for a node in trouble is replaced once others can answer.
        let raises = |raise: &Raise| !raise.quorum.iter().any(|node| self.avoided(*node));
        if !waiting || inside.raise.as_ref().is_some_and(raises) {
            return;
        }
        let well = request
            .members
            .iter()
            .filter(|member| member.grant.is_some() && !self.avoided(member.node));
        let nodes = self.config.quorums.nodes();
        let set = NodeSet::of(nodes, well.clone().map(|member| member.node.index()));
        let family = self.config.quorums.family(&request.ask.mode);
        if !family.contains_quorum(&set) {
            return;
        }
        let floors = well.filter_map(|member| Some(member.grant.as_ref()?.floor));
        let floor = floors.max().unwrap_or_default().max(inside.token);
        let token = Token(floor.0.saturating_add(1));
        let quorum: Vec<NodeId> = set.iter().map(NodeId::at).collect();
        let raise = Raise {
            token,
            quorum: quorum.clone(),
        };
        let request = self.requests.get_mut(place).expect("invariant: just seen");
        if let Phase::Inside(inside) = &mut request.phase {
            inside.raise = Some(raise);
        }
        self.send_raises(place, token, &quorum, out);
    }

    /// The larger token is registered everywhere: it counts, and with it all new members.
    pub(super) fn moved_if_raised(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Inside(inside) = &request.phase else {
            return;
        };
        let Some(raise) = inside.raise.clone() else {
            return;
        };
        if !self.all_raised(place, raise.token, &raise.quorum) {
            return;
        }
        // The hold must have lasted until now; otherwise it was lost already.
        self.check_hold(place, out);
        if !self.fresh_quorum(place, &raise.quorum) {
            // From the moment the larger token counts the hold rests on these alone.
            if let Some(request) = self.requests.get_mut(place) {
                request.wants_fresh = true;
            }
            return;
        }
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        for node in &raise.quorum {
            let grant = request
                .member_mut(*node)
                .and_then(|member| member.grant.as_mut());
            if let Some(grant) = grant {
                grant.counted = true;
            }
        }
        if let Phase::Inside(inside) = &mut request.phase {
            inside.token = raise.token;
            inside.raise = None;
        }
        // The others were not told of the larger token. A whole quorum was, so it is safe with
        // whichever members the hold lasts: they count until that quorum knows that we are inside.
        if self.config.rules.has(Plant::LeaveOnRaise) {
            self.drop_all_but(place, &raise.quorum, out);
        }
        self.announce_hold(place, &raise.quorum, true, out);
        self.say_moved(place, out);
        self.migrate_done(place, out);
        self.gather_again(place, out);
    }

    /// Whether those of these members whose grants are fresh contain a quorum.
    fn fresh_quorum(&self, place: u32, nodes: &[NodeId]) -> bool {
        let Some(request) = self.requests.get(place) else {
            return false;
        };
        let mut set = NodeSet::new(self.config.quorums.nodes());
        for member in nodes.iter().filter_map(|node| request.member(*node)) {
            let until = self.fresh_until(request, member);
            if until.is_some_and(|until| until > self.now.mono) {
                set.insert(member.node.index());
            }
        }
        let family = self.config.quorums.family(&request.ask.mode);
        family.contains_quorum(&set)
    }

    /// A grant that came while a token was being registered may need another round.
    fn gather_again(&mut self, place: u32, out: &mut ClientEffects) {
        let open = self.requests.get(place).is_some_and(|request| {
            let uncounted =
                |member: &Member| member.grant.as_ref().is_some_and(|grant| !grant.counted);
            request.members.iter().any(uncounted)
        });
        if open {
            self.gather(place, out);
        }
    }

    fn migrate_done(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let family = self.config.quorums.family(&request.ask.mode);
        let good = self.sound_members(place);
        if family.contains_quorum(&good) {
            self.settle(place, out);
        } else if let Some(request) = self.requests.get_mut(place) {
            // A new connection's first heartbeat may be all that is missing.
            request.wants_fresh = true;
        }
    }

    /// The members that a hold may rest on alone: counted, fresh and out of trouble.
    fn sound_members(&self, place: u32) -> NodeSet {
        let mut set = NodeSet::new(self.config.quorums.nodes());
        for (node, _) in self.fresh_members(place, self.now.mono) {
            if !self.avoided(node) {
                set.insert(node.index());
            }
        }
        set
    }

    /// The hold rests on healthy nodes. The others are left, but not before the healthy ones know
    /// that it is inside: until then a new member keeps its grant for the connection's lease only.
    fn settle(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if matches!(&request.phase, Phase::Inside(inside) if inside.raise.is_some()) {
            return;
        }
        request.hedge_at = None;
        request.hedges = 0;
        request.wants_fresh = false;
        self.moves.finish(request.reference());
        let known = self.is_known_to_quorum(place);
        let request = self.requests.get(place).expect("invariant: just seen");
        let left = request.members.iter().filter(|member| {
            let unsound = !request.is_told(member) || self.avoided(member.node);
            !counts(member) || known && unsound
        });
        let left: Vec<NodeId> = left.map(|member| member.node).collect();
        if left.is_empty() {
            return;
        }
        for node in left {
            self.drop_member(place, node, out);
        }
        self.say_moved(place, out);
        // Those that are left may be all that a handle waited for.
        if !self.config.rules.has(Plant::HandleWaits) {
            self.hand_over(place, out);
        }
    }

    /// Whether the sound members that know of the hold are enough for it.
    fn is_known_to_quorum(&self, place: u32) -> bool {
        let Some(request) = self.requests.get(place) else {
            return false;
        };
        let mut known = self.sound_members(place);
        let early = self.config.rules.has(Plant::LeaveBeforeNoted);
        for member in &request.members {
            let acked = member.grant.as_ref().is_some_and(|grant| grant.acked);
            if !request.is_told(member) || !acked && !early {
                known.remove(member.node.index());
            }
        }
        let family = self.config.quorums.family(&request.ask.mode);
        family.contains_quorum(&known)
    }

    /// The planted bug: the hold rests on these nodes alone, whether they know of it or not.
    fn drop_all_but(&mut self, place: u32, nodes: &[NodeId], out: &mut ClientEffects) {
        let request = self.requests.get(place);
        let members = request.iter().flat_map(|request| &request.members);
        let others = members.map(|member| member.node);
        let others: Vec<NodeId> = others.filter(|node| !nodes.contains(node)).collect();
        for node in others {
            self.drop_member(place, node, out);
        }
    }

    /// Leaves one node; its grant counts as used if the hold rested on it.
    pub(super) fn drop_member(&mut self, place: u32, node: NodeId, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let reference = request.reference();
        let token = request.token();
        let Ok(found) = request
            .members
            .binary_search_by_key(&node, |member| member.node)
        else {
            return;
        };
        let member = request.members.remove(found);
        self.send_done(node, reference, used(&member, token), out);
        // Without this member the hold may end earlier.
        self.rearm(place);
    }
}

/// The token that may have been used while the hold rested on this member.
pub(super) fn used(member: &Member, token: Option<Token>) -> Option<Token> {
    let grant = member.grant.as_ref().filter(|grant| grant.counted)?;
    // A larger token was registered elsewhere when this member was left.
    Some(token?.min(grant.limit))
}

/// Whether the hold rests on this member.
fn counts(member: &Member) -> bool {
    member.grant.as_ref().is_some_and(|grant| grant.counted)
}
