//! Detached holds: a gateway acquires them, hands out a handle and forgets them; whoever has the
//! handle renews or releases through any gateway.
//!
//! A handle is held if the nodes that confirm its grants contain a quorum. If some are missing,
//! the gateway asks other nodes on the holder's behalf. They count at once if their floor is below
//! the handle's token: whoever held the lock in between without us knowing would have left a
//! larger floor at one of them, since its quorum meets the new one outside the nodes that never
//! let us go. If a floor is not below it, which most often only means that the node is busy, and
//! some node still knows the handle, a larger token is registered at all of them first, and the
//! new handle carries it: should anybody have been inside meanwhile, the handle came after its
//! deadline, its holder counts the lock as lost, and the new token is larger than that of whoever
//! was inside.

use std::sync::Arc;

use conclave_quorum::{NodeSet, pick};

use super::LockClient;
use super::finish::finish_message;
use super::request::{Held, Member, Phase};
use crate::id::{GrantNo, Incarnation, Key, NodeId, Token};
use crate::lock::api::{Acquire, ClientEffects, ClientEvent, Ended};
use crate::lock::handle::Handle;
use crate::lock::message::{GrantRef, Message, Refusal};
use crate::lock::mode::Bond;
use crate::time::Instant;

/// A handle being renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keeping {
    pub(super) handle: Box<Handle>,
    /// When the nodes were asked: validity counts from here.
    sent: Instant,
    /// Nodes of the handle that have not answered.
    waiting: Vec<NodeId>,
    /// Whether other nodes were asked to stand in.
    mending: bool,
    /// The token that the renewed handle will carry.
    token: Token,
    /// The larger token that is being registered because a stand-in's floor asks for it.
    raise: Option<Token>,
    /// When to stop waiting for answers.
    until: Instant,
}

impl Keeping {
    /// Whether nodes have been asked to stand in: until then a node that does not know the
    /// handle is not asked for anything.
    pub(super) fn asks(&self) -> bool {
        self.mending
    }

    /// The nodes that the handle names.
    pub(super) fn members(&self) -> impl Iterator<Item = NodeId> {
        self.handle.grants.iter().map(|(node, ..)| *node)
    }

    /// The token that the renewed handle will carry.
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// The token that is being registered.
    pub(super) fn raising(&self) -> Option<Token> {
        self.raise
    }
}

impl LockClient {
    /// A detached hold that all its nodes know of lives without us: its handle is given out.
    pub(super) fn hand_over(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        if !request.info.detached {
            return;
        }
        match &request.phase {
            Phase::Inside(inside) => {
                let ready = request.members.iter().all(|member| {
                    let counted = member.grant.as_ref().filter(|grant| grant.counted);
                    counted.is_none_or(|grant| grant.acked && request.is_told(member))
                });
                if inside.raise.is_some() || !ready {
                    return;
                }
                let (token, since) = (inside.token, inside.since);
                self.give_handle(place, token, since, out);
            }
            Phase::Keeping(_) => self.mended(place, out),
            _ => {}
        }
    }

    /// Gives the handle out and forgets the request, without a word to the nodes.
    fn give_handle(&mut self, place: u32, token: Token, since: Instant, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let (key, ttl) = (request.key, request.info.ttl);
        let grants = request.members.iter().filter_map(|member| {
            let grant = member
                .grant
                .as_ref()
                .filter(|grant| grant.counted && grant.acked)?;
            Some((member.node, grant.incarnation, grant.number))
        });
        let handle = Handle {
            config: self.config.id,
            ask: request.ask.clone(),
            token,
            ttl,
            grants: grants.collect(),
        };
        let until = since + self.config.times.shrink(ttl);
        if until <= self.now.mono {
            // It took too long: nobody can say that the hold has lasted.
            self.fail(key, Ended::NotHeld, out);
            return;
        }
        self.forget(place, out);
        self.jobs.remove(&key);
        out.events
            .push(ClientEvent::Handle(key, Box::new(handle), until));
    }

    /// Forgets a request whose hold lives on; members that do not belong to it are left.
    fn forget(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.remove(place) else {
            return;
        };
        let reference = request.reference();
        self.by_ref.remove(&reference);
        for member in request.members {
            let kept = member
                .grant
                .is_some_and(|grant| grant.counted && grant.acked);
            if !kept {
                self.send_done(member.node, reference, None, out);
            } else if let Some(link) = self.link_mut(member.node) {
                link.requests.remove(&reference);
                link.to_note.remove(&reference);
            }
        }
    }

    pub(super) fn keep(
        &mut self,
        key: Key,
        handle: &Handle,
        principal: Arc<str>,
        out: &mut ClientEffects,
    ) {
        let reference = (handle.ask.session, handle.ask.request);
        let nodes = self.config.quorums.nodes();
        let known = handle.grants.iter().all(|(node, ..)| node.index() < nodes);
        let free = self.by_ref.get(&reference).is_none() && self.jobs.get(&key).is_none();
        if handle.config != self.config.id || !known || !free {
            // A second renewal through the same gateway may simply be tried again.
            let ended = if known && !free {
                Ended::Busy
            } else {
                Ended::NotHeld
            };
            out.events.push(ClientEvent::Ended(key, ended));
            return;
        }
        let mut wish = Acquire::new(handle.ask.name.clone(), handle.ask.mode.clone(), handle.ttl);
        wish.detach = Some((handle.ask.session, false));
        wish.principal = principal;
        let place = self.begin_kept(key, handle, wish);
        self.by_ref.insert(reference, place);
        for (node, _, grant) in &handle.grants {
            let grant = GrantRef {
                session: reference.0,
                request: reference.1,
                grant: *grant,
            };
            let token = handle.token;
            self.say(*node, Message::Keepalive { grant, token }, out);
            if let Some(link) = self.link_mut(*node) {
                link.requests.insert(reference);
            }
        }
        self.rearm_keep(place);
    }

    /// Puts a requester in place that renews a handle.
    fn begin_kept(&mut self, key: Key, handle: &Handle, wish: Acquire) -> u32 {
        let now = self.now.mono;
        let nodes = handle.grants.iter().map(|(node, ..)| *node);
        let patience = self.config.times.link_ttl / 4;
        let until = now + (self.hedge_delay(nodes.clone()) * 4).max(patience);
        let keeping = Keeping {
            sent: now,
            waiting: nodes.collect(),
            mending: false,
            token: handle.token,
            raise: None,
            until,
            handle: Box::new(handle.clone()),
        };
        let members = handle
            .grants
            .iter()
            .map(|(node, incarnation, grant)| Member {
                node: *node,
                seen: *grant,
                grant: Some(held(*grant, *incarnation, handle.token, now)),
                asked: now,
                answered: true,
                retry: None,
                denied: false,
            });
        let mut members: Vec<Member> = members.collect();
        members.sort_by_key(|member| member.node);
        members.dedup_by_key(|member| member.node);
        let place = self.insert_request(key, handle.ask.clone(), wish, Phase::Keeping(keeping));
        if let Some(request) = self.requests.get_mut(place) {
            request.members = members;
            request.hint = handle.token;
        }
        self.add_job(key, place);
        place
    }

    fn rearm_keep(&mut self, place: u32) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        if let Phase::Keeping(keeping) = &request.phase {
            let at = keeping.until;
            self.arm_request(place, at);
        }
    }

    pub(super) fn kept(&mut self, node: NodeId, grant: GrantRef, out: &mut ClientEffects) {
        let Some(place) = self.by_ref.get(&(grant.session, grant.request)).copied() else {
            return;
        };
        let lax = self
            .config
            .rules
            .has(crate::lock::plant::Plant::OldGrantHandle);
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Some(held) = request
            .member_mut(node)
            .and_then(|member| member.grant.as_mut())
        else {
            return;
        };
        if held.number == grant.grant || lax {
            held.acked = true;
            self.keep_answer(place, node, true, out);
        }
    }

    /// A node of the handle answered.
    pub(super) fn keep_answer(
        &mut self,
        place: u32,
        node: NodeId,
        held: bool,
        out: &mut ClientEffects,
    ) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &mut request.phase else {
            return;
        };
        keeping.waiting.retain(|other| *other != node);
        let over = keeping.waiting.is_empty() && !keeping.mending;
        if !held && let Some(member) = request.member_mut(node) {
            member.grant = None;
        }
        if over {
            self.decide(place, out);
        } else {
            self.mended(place, out);
        }
    }

    /// All nodes of a handle have answered, or have had their time.
    fn decide(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &request.phase else {
            return;
        };
        if self.confirmed_quorum(place) {
            let (token, sent) = (keeping.token(), keeping.sent);
            self.give_handle(place, token, sent, out);
        } else {
            self.mend(place, out);
        }
    }

    /// Whether the nodes that confirm the hold contain a quorum.
    fn confirmed_quorum(&self, place: u32) -> bool {
        let Some(request) = self.requests.get(place) else {
            return false;
        };
        let token = request.holder_token().unwrap_or_default();
        let covers = |member: &&Member| {
            let grant = member.grant.as_ref();
            grant.is_some_and(|grant| grant.limit >= token)
        };
        let confirmed = request.members.iter().filter(|member| confirmed(member));
        let confirmed = confirmed.filter(covers);
        let nodes = self.config.quorums.nodes();
        let set = NodeSet::of(nodes, confirmed.map(|member| member.node.index()));
        self.config
            .quorums
            .family(&request.ask.mode)
            .contains_quorum(&set)
    }

    /// Asks other nodes to stand in for those that do not confirm.
    fn mend(&mut self, place: u32, out: &mut ClientEffects) {
        let patience = self.config.times.link_ttl / 2;
        let now = self.now.mono;
        let nodes = self.config.quorums.nodes();
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &mut request.phase else {
            return;
        };
        keeping.mending = true;
        keeping.until = now + patience;
        // What does not confirm is not counted: it is asked anew, or left.
        request.members.retain(confirmed);
        let request = self.requests.get(place).expect("invariant: just seen");
        let good: Vec<NodeId> = request.members.iter().map(|member| member.node).collect();
        let weights = self.moving_costs(|node| good.contains(&NodeId::at(node)));
        let family = self.config.quorums.family(&request.ask.mode).clone();
        let mut rng = conclave_quorum::Prng::new(request.ask.name.seed());
        let avoid = self.avoid_set(Some(place));
        let empty = NodeSet::new(nodes);
        let quorum = pick(family.as_ref(), &avoid, Some(&weights), &mut rng)
            .or_else(|| pick(family.as_ref(), &empty, Some(&weights), &mut rng));
        let new = quorum.iter().flat_map(NodeSet::iter).map(NodeId::at);
        for node in new.filter(|node| !good.contains(node)).collect::<Vec<_>>() {
            self.ask_node(place, node, out);
        }
        self.rearm_keep(place);
    }

    /// New grants for a handle are in hand: counts them, or registers a larger token first.
    pub(super) fn gather_kept(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &request.phase else {
            return;
        };
        let token = keeping.raise.unwrap_or(keeping.token);
        let grants = request.members.iter().filter_map(|it| it.grant.as_ref());
        let mut new = grants.filter(|grant| !grant.counted).peekable();
        if new.peek().is_none() {
            return;
        }
        let (floor, limit) = new.fold((Token(0), Token(u64::MAX)), |(floor, limit), grant| {
            (floor.max(grant.floor), limit.min(grant.limit))
        });
        // Where no node of the handle knows it any more its time is over, whatever the floors say.
        let held = request.members.iter().any(confirmed);
        if floor >= token && !held {
            let key = request.key;
            self.fail(key, Ended::NotHeld, out);
        } else if floor >= token {
            let Some(raise) = floor.0.checked_add(1) else {
                let key = request.key;
                self.fail(key, Ended::NotHeld, out);
                return;
            };
            self.raise_kept(place, Token(raise), out);
        } else if limit >= token && keeping.raise.is_none() {
            self.count_kept(place, out);
        } else {
            self.raise_kept(place, token, out);
        }
    }

    /// Registers a larger token at all nodes that the renewed handle will rest on.
    fn raise_kept(&mut self, place: u32, token: Token, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if let Phase::Keeping(keeping) = &mut request.phase {
            keeping.raise = Some(token);
        }
        let with = request.members.iter().filter(|it| it.grant.is_some());
        let nodes: Vec<NodeId> = with.map(|member| member.node).collect();
        self.send_raises(place, token, &nodes, out);
    }

    /// A node has registered the larger token; it counts once all have.
    pub(super) fn raised_kept(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &mut request.phase else {
            return;
        };
        let Some(token) = keeping.raise else { return };
        let mut grants = request.members.iter().filter_map(|it| it.grant.as_ref());
        if grants.all(|grant| grant.raised >= token && grant.floor < token) {
            keeping.token = token;
            keeping.raise = None;
            self.count_kept(place, out);
        }
    }

    /// The stand-ins count from now on, and are told so.
    fn count_kept(&mut self, place: u32, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        let mut new = Vec::new();
        for member in &mut request.members {
            let uncounted = |grant: &&mut Held| !grant.counted;
            if let Some(grant) = member.grant.as_mut().filter(uncounted) {
                grant.counted = true;
                grant.announced = now;
                new.push(member.node);
            }
        }
        self.announce_hold(place, &new, true, out);
    }

    /// A handle is whole again once the nodes that stand in know of it.
    fn mended(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &request.phase else {
            return;
        };
        // Whoever was told that we are inside answers first, so that the handle names it.
        let open = request.members.iter().any(|member| {
            let grant = member.grant.as_ref();
            grant.is_some_and(|grant| grant.counted && !grant.acked)
        });
        if keeping.mending && !open && keeping.raise.is_none() && self.confirmed_quorum(place) {
            let (token, sent) = (keeping.token(), keeping.sent);
            self.give_handle(place, token, sent, out);
        }
    }

    pub(super) fn keep_timer(&mut self, place: u32, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let Phase::Keeping(keeping) = &request.phase else {
            return;
        };
        let key = request.key;
        if keeping.until > now {
            self.rearm_keep(place);
        } else if keeping.mending && self.confirmed_quorum(place) {
            let (token, sent) = (keeping.token(), keeping.sent);
            self.give_handle(place, token, sent, out);
        } else if keeping.mending {
            let refused = request.refusal == Some(Refusal::NotPermitted);
            let why = Ended::Refused(Refusal::NotPermitted);
            self.fail(key, if refused { why } else { Ended::TimedOut }, out);
        } else {
            self.decide(place, out);
        }
    }

    /// Ends a handle that nobody was given: of a session that its caller named, only the request
    /// that the handle names. Nobody waits for it.
    pub(super) fn abandon(&mut self, key: Key, handle: &Handle, out: &mut ClientEffects) {
        self.stop_keeping(handle, out);
        let (session, request) = (handle.ask.session, handle.ask.request);
        for node in self.finish_nodes(handle, false) {
            let end = if handle.ask.bond == Bond::Named {
                Message::Done {
                    session,
                    request,
                    token: Some(handle.token),
                }
            } else {
                finish_message(handle)
            };
            self.say(node, end, out);
        }
        out.events.push(ClientEvent::Ended(key, Ended::Released));
    }
}

/// A grant that a handle speaks of; it is confirmed once its node says so.
fn held(number: GrantNo, incarnation: Incarnation, token: Token, now: Instant) -> Held {
    Held {
        number,
        floor: Token(0),
        limit: token,
        incarnation,
        inquired: false,
        raised: Token(0),
        counted: true,
        acked: false,
        announced: now,
    }
}

fn confirmed(member: &Member) -> bool {
    let grant = member.grant.as_ref();
    grant.is_some_and(|grant| grant.counted && grant.acked)
}
