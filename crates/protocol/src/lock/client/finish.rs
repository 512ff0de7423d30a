//! Releases by handle that say so only when it is true.
//!
//! FINISH is not answered. The KEEPALIVE that follows it on the same connection is: a node that
//! has no such grant says DEAD. The lock is free for others once the nodes that never had the
//! grant, together with those that said DEAD, contain a quorum. What is left of the hold stands in
//! nobody's way then, and cannot be renewed, since it contains no quorum.

use std::collections::BTreeSet;

use super::{LockClient, Timer};
use crate::id::{GrantNo, Key, NodeId, RequestNo, SessionId};
use crate::lock::api::{ClientEffects, ClientEvent, Ended};
use crate::lock::handle::Handle;
use crate::lock::message::{GrantRef, Message};
use crate::lock::mode::{Bond, Mode};
use crate::time::Instant;

/// A release whose nodes have not all answered.
#[derive(Clone, Debug)]
pub(super) struct Finishing {
    handle: Box<Handle>,
    /// Nodes that may still have a grant.
    waiting: BTreeSet<NodeId>,
    /// Nodes that do not answer are waited for until then, if they are not needed.
    patience: Instant,
    /// It fails then.
    until: Instant,
}

impl Finishing {
    /// When its next timer comes.
    pub(super) fn armed(&self, now: Instant) -> Instant {
        if self.patience > now {
            self.patience
        } else {
            self.until
        }
    }

    pub(super) fn waits_for(&self, node: NodeId) -> bool {
        self.waiting.contains(&node)
    }
}

impl LockClient {
    /// Ends a handle and its whole session, and says that it is released once it is.
    pub(super) fn finish(&mut self, key: Key, handle: Box<Handle>, out: &mut ClientEffects) {
        if self.finishing.contains_key(&key) {
            return;
        }
        self.stop_keeping(&handle, out);
        let now = self.now.mono;
        let waiting: BTreeSet<NodeId> = self.finish_nodes(&handle, true).into_iter().collect();
        let link_ttl = self.config.times.link_ttl;
        let delay = self.hedge_delay(waiting.iter().copied()) * 4;
        let until = now + link_ttl * 2;
        let finishing = Finishing {
            patience: (now + delay.max(link_ttl / 4)).min(until),
            until,
            waiting: waiting.clone(),
            handle,
        };
        let armed = finishing.armed(now);
        self.finishing.insert(key, finishing);
        for node in waiting {
            if self.want_link(node, out).is_open() {
                self.send_finish(key, node, out);
            }
        }
        self.arm(armed, Timer::Finish(key));
        self.judge_finish(key, out);
    }

    /// The nodes that must hear that a handle has ended.
    pub(super) fn finish_nodes(&self, handle: &Handle, all: bool) -> Vec<NodeId> {
        let nodes = self.config.quorums.nodes();
        // Attempts of a named session may rest on other nodes than this one's: their gateways may
        // be gone, and then nobody else ends them before their TTL is over.
        if all && handle.ask.bond == Bond::Named {
            return (0..nodes).map(NodeId::at).collect();
        }
        let theirs = handle.grants.iter().map(|(node, ..)| *node);
        theirs.filter(|node| node.index() < nodes).collect()
    }

    /// A renewal of a handle that is released here ends.
    pub(super) fn stop_keeping(&mut self, handle: &Handle, out: &mut ClientEffects) {
        let reference = (handle.ask.session, handle.ask.request);
        if let Some(place) = self.by_ref.get(&reference).copied()
            && let Some(other) = self.requests.get(place).map(|request| request.key)
        {
            self.fail(other, Ended::NotHeld, out);
        }
    }

    fn send_finish(&mut self, key: Key, node: NodeId, out: &mut ClientEffects) {
        let Some(finishing) = self.finishing.get(&key) else {
            return;
        };
        let handle = &finishing.handle;
        let (session, request, token) = (handle.ask.session, handle.ask.request, handle.token);
        let mut grants = handle.grants.iter();
        let grant = grants.find(|(granted, ..)| *granted == node);
        let grant = GrantRef {
            session,
            request,
            grant: grant.map_or(GrantNo(0), |(.., grant)| *grant),
        };
        self.tell(node, finish_message(handle), out);
        self.tell(node, Message::Keepalive { grant, token }, out);
    }

    /// On a new connection everything that was not answered is said again.
    pub(super) fn finish_again(&mut self, node: NodeId, out: &mut ClientEffects) {
        let open = self.finishing.iter();
        let open = open.filter(|(_, finishing)| finishing.waits_for(node));
        for key in open.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.send_finish(key, node, out);
        }
    }

    /// A node has no such grant.
    pub(super) fn finish_heard(
        &mut self,
        node: NodeId,
        session: SessionId,
        request: Option<RequestNo>,
        out: &mut ClientEffects,
    ) {
        let hit = |finishing: &Finishing| {
            let ask = &finishing.handle.ask;
            ask.session == session && request.is_none_or(|request| request == ask.request)
        };
        let keys = self.finishing.iter().filter(|(_, one)| hit(one));
        for key in keys.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(finishing) = self.finishing.get_mut(&key) {
                finishing.waiting.remove(&node);
            }
            self.judge_finish(key, out);
        }
    }

    /// Says that a handle is released, once it is and nobody is about to answer.
    fn judge_finish(&mut self, key: Key, out: &mut ClientEffects) {
        let Some(finishing) = self.finishing.get(&key) else {
            return;
        };
        let silent = finishing.patience <= self.now.mono;
        let about_to_answer = |node: &NodeId| {
            let link = self.link(*node);
            link.is_some_and(super::link::Link::is_open) && !self.avoided(*node)
        };
        if (silent || !finishing.waiting.iter().any(about_to_answer)) && self.is_free(finishing) {
            self.finish_ends(key, Ended::Released, out);
        }
    }

    /// Whether what may be left of a hold stands in nobody's way.
    fn is_free(&self, finishing: &Finishing) -> bool {
        let quorums = &self.config.quorums;
        let clear = || quorums.all().filter(|node| !finishing.waits_for(*node));
        quorums.served_by(&Mode::Exclusive, clear())
            && quorums.served_by(&finishing.handle.ask.mode, clear())
    }

    pub(super) fn finish_timer(&mut self, key: Key, out: &mut ClientEffects) {
        self.judge_finish(key, out);
        let now = self.now.mono;
        let Some(finishing) = self.finishing.get(&key) else {
            return;
        };
        if finishing.until <= now {
            self.finish_ends(key, Ended::TimedOut, out);
        } else {
            let armed = finishing.armed(now);
            self.arm(armed, Timer::Finish(key));
        }
    }

    /// Nodes that are not connected hear of it when they are.
    fn finish_ends(&mut self, key: Key, ended: Ended, out: &mut ClientEffects) {
        let Some(finishing) = self.finishing.remove(&key) else {
            return;
        };
        for node in finishing.waiting {
            if !self.link(node).is_some_and(super::link::Link::is_open) {
                self.say(node, finish_message(&finishing.handle), out);
            }
        }
        out.events.push(ClientEvent::Ended(key, ended));
    }
}

/// Ends all requests of a handle's session.
pub(super) fn finish_message(handle: &Handle) -> Message {
    Message::Finish {
        session: handle.ask.session,
        request: handle.ask.request,
        token: Some(handle.token),
    }
}
