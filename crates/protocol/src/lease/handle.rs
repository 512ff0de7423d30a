//! A lease by its handle: whoever has it renews and releases the lease without having taken it.
//!
//! A handle carries the secrets of one attempt, one per node, and never the seed that they come
//! from: it is good for this lease alone. A node looks at the secret and at who shows it; nothing
//! else in a handle is believed by anybody but its holder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::LeaseConfig;
use super::contender::Asks;
use super::message::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, LeaseReply, Secret, Space,
};
use super::plant::Plant;
use super::round::lasting;
use crate::id::{Name, NodeId, Token};
use crate::time::{Instant, Now, Wake};

/// What renews and releases a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    /// The lease.
    pub name: Name,
    /// The attempt that won it.
    pub attempt: Attempt,
    /// Its fencing token.
    pub token: Token,
    /// How long it lasts from a renewal on.
    pub span: Duration,
    /// How many attempts it took.
    pub attempts: u32,
    /// The secret for each node that may have given its vote.
    pub secrets: Vec<(NodeId, Secret)>,
}

impl LeaseHandle {
    /// Which lease.
    pub fn key(&self) -> LeaseKey {
        LeaseKey {
            space: Space::Lease,
            name: self.name.clone(),
        }
    }
}

/// What is done with a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleAction {
    /// The lease is to last longer.
    Renew,
    /// The lease is given back.
    Release,
}

/// Where a request with a handle stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStanding {
    /// Answers are missing.
    Open,
    /// The lease is held until then, on the clock of whoever asked.
    Renewed {
        /// It ends then or before.
        end: Instant,
    },
    /// So many nodes have forgotten it that others can have it.
    Released,
    /// Too few nodes know the lease: it cannot be renewed any more.
    Ended,
    /// Enough nodes say that the caller may not.
    Refused(LeaseRefusal),
    /// Too few nodes answered in time. The lease ends when it was to end; asking again may help.
    TimedOut,
}

/// One request to all nodes of a handle.
#[derive(Debug)]
pub struct HandleRequest {
    config: Arc<LeaseConfig>,
    handle: LeaseHandle,
    action: HandleAction,
    /// Tells its answers from those to other requests with the same handle.
    sub: u32,
    asked: Instant,
    until: Instant,
    nodes: BTreeMap<NodeId, Reply>,
    standing: HandleStanding,
}

/// What one node has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Missing,
    Yes,
    No,
    Refused(LeaseRefusal),
}

impl HandleRequest {
    /// Asks all nodes of the handle, and waits for them at most so long. Every request of a
    /// client has a `sub` of its own.
    pub fn new(
        config: Arc<LeaseConfig>,
        handle: LeaseHandle,
        action: HandleAction,
        sub: u32,
        now: Now,
        patience: Duration,
        out: &mut Asks,
    ) -> Self {
        let there = config.faults.nodes();
        let secrets = handle.secrets.iter();
        let nodes = secrets.filter(|(node, _)| node.index() < there);
        let request = Self {
            nodes: nodes.map(|(node, _)| (*node, Reply::Missing)).collect(),
            asked: now.mono,
            until: now.mono + patience,
            standing: HandleStanding::Open,
            config,
            handle,
            action,
            sub,
        };
        let nodes = request.nodes.keys();
        out.extend(nodes.filter_map(|node| Some((*node, request.question(*node)?))));
        request
    }

    /// The handle.
    pub fn handle(&self) -> &LeaseHandle {
        &self.handle
    }

    /// Where it stands.
    pub fn standing(&self) -> HandleStanding {
        self.standing
    }

    /// When it must be woken.
    pub fn next_wake(&self) -> Option<Wake> {
        (self.standing == HandleStanding::Open).then_some(Wake {
            at: self.until,
            reason: "nodes were asked with a handle for long enough",
        })
    }

    /// A node answers.
    pub fn heard(&mut self, now: Now, node: NodeId, reply: &LeaseReply) {
        let sub = match self.action {
            HandleAction::Renew => self.sub,
            HandleAction::Release => 0,
        };
        if reply.attempt != self.handle.attempt || reply.sub != sub {
            return;
        }
        let said = match (self.action, reply.answer) {
            (HandleAction::Renew, LeaseAnswer::Free { .. })
            | (HandleAction::Release, LeaseAnswer::Released) => Reply::Yes,
            (_, LeaseAnswer::Refused(why)) => Reply::Refused(why),
            (HandleAction::Renew, LeaseAnswer::Locked { .. } | LeaseAnswer::Stale { .. }) => {
                Reply::No
            }
            _ => return,
        };
        if let Some(known @ Reply::Missing) = self.nodes.get_mut(&node) {
            *known = said;
            self.judge(now);
        }
    }

    /// A connection to a node is new: it is asked again what it has not answered.
    pub fn opened(&self, node: NodeId, out: &mut Asks) {
        if self.standing == HandleStanding::Open
            && self.nodes.get(&node) == Some(&Reply::Missing)
            && let Some(question) = self.question(node)
        {
            out.push((node, question));
        }
    }

    /// The time of [`Self::next_wake`] has come, or may have.
    pub fn wake(&mut self, now: Now) {
        if self.standing == HandleStanding::Open && now.mono >= self.until {
            self.standing = HandleStanding::TimedOut;
        }
    }

    fn question(&self, node: NodeId) -> Option<LeaseAsk> {
        let mut secrets = self.handle.secrets.iter();
        let (_, secret) = secrets.find(|(other, _)| *other == node)?;
        let (attempt, secret) = (self.handle.attempt, *secret);
        Some(match self.action {
            HandleAction::Renew => LeaseAsk::Renew {
                attempt,
                sub: self.sub,
                secret,
            },
            HandleAction::Release => LeaseAsk::Release { attempt, secret },
        })
    }

    fn count(&self, which: impl Fn(Reply) -> bool) -> usize {
        self.nodes.values().filter(|reply| which(**reply)).count()
    }

    /// How many nodes must agree. A renewal needs the votes of a lease. A release is done when
    /// the votes that are left stand in nobody's way; where nodes lie about it, they lapse.
    fn needed(&self) -> usize {
        let faults = self.config.faults;
        match self.action {
            HandleAction::Renew => faults.free(),
            HandleAction::Release => {
                let harmless = faults.nodes() - faults.free();
                self.nodes.len().saturating_sub(harmless).max(1)
            }
        }
    }

    fn judge(&mut self, now: Now) {
        if self.standing != HandleStanding::Open {
            return;
        }
        let agree = self.count(|reply| reply == Reply::Yes);
        let needed = self.needed();
        if agree >= needed {
            self.standing = match self.action {
                HandleAction::Renew => self.renewed(now),
                HandleAction::Release => HandleStanding::Released,
            };
            return;
        }
        let vouch = self.config.faults.vouch();
        let refusal = lasting().find(|why| {
            let same = Reply::Refused(*why);
            self.count(|reply| reply == same) >= vouch
        });
        if let Some(why) = refusal {
            self.standing = HandleStanding::Refused(why);
        } else if self.action == HandleAction::Renew
            && agree + self.count(|reply| reply == Reply::Missing) < needed
        {
            self.standing = HandleStanding::Ended;
        }
    }

    /// Every node that agreed did so after it was asked, and votes for nobody else for as long as
    /// its vote lasts from then on.
    fn renewed(&self, now: Now) -> HandleStanding {
        let late = self.config.rules.has(Plant::RenewFromAnswer);
        let from = if late { now.mono } else { self.asked };
        let end = from + self.config.sure(self.config.vote(self.handle.span));
        if end <= now.mono {
            return HandleStanding::TimedOut;
        }
        HandleStanding::Renewed { end }
    }
}
