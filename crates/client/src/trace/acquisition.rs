//! The spans of one job of the client's machine, from what it sends and what it is told.

use std::sync::Arc;

use conclave_protocol::Now;
use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lock::{Ask, Bond, ClientEvent, Ended};

use super::{Caller, Link, Origin, Span, wants};
use crate::clock;

/// The most requests of one job that are traced.
const REQUESTS_MAX: usize = 128;
/// The most nodes of one request that are told apart.
const NODES_MAX: usize = 256;

/// The spans of a job. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Acquisition {
    begun: Now,
    caller: Option<Caller>,
    requests: Vec<Request>,
    /// The release of a handle.
    release: Option<Span>,
}

/// The spans of one request: it waits, then it is held.
#[derive(Debug)]
struct Request {
    ask: Arc<Ask>,
    asked: Vec<NodeId>,
    wait: Option<Span>,
    hold: Option<Span>,
}

impl Acquisition {
    /// A job that takes locks for this caller.
    pub(crate) fn begin(caller: Caller) -> Self {
        Self {
            begun: clock::now(),
            caller: Some(caller),
            requests: Vec::new(),
            release: None,
        }
    }

    /// A job that releases the lock of a handle; none if its trace is not made.
    pub(crate) fn release(ask: &Ask) -> Option<Self> {
        let origin = Origin::from(ask);
        wants(origin).then(|| {
            let begun = clock::now();
            let mut span = Span::child("lock.release", origin, begun);
            span.note_ask(ask);
            Self {
                begun,
                caller: None,
                requests: Vec::new(),
                release: Some(span),
            }
        })
    }

    /// A node is asked.
    pub(crate) fn asked(&mut self, node: NodeId, ask: &Arc<Ask>) {
        let known = |request: &&mut Request| {
            request.ask.session == ask.session && request.ask.request == ask.request
        };
        if let Some(request) = self.requests.iter_mut().find(known) {
            if request.asked.len() < NODES_MAX && !request.asked.contains(&node) {
                request.asked.push(node);
            }
            return;
        }
        let origin = Origin::from(&**ask);
        if self.requests.len() >= REQUESTS_MAX || !wants(origin) {
            return;
        }
        let first = self.requests.first();
        let first = first.map(|request| Origin::from(&*request.ask));
        let begun = first.map_or(self.begun, |_| clock::now());
        let mut wait = Span::root("lock.acquire", origin, begun);
        wait.note_ask(ask);
        match first {
            Some(first) => wait.link(Link::Request(first)),
            None => wait.link(Link::Caller(self.caller.take().unwrap_or_default())),
        }
        self.requests.push(Request {
            ask: ask.clone(),
            asked: vec![node],
            wait: Some(wait),
            hold: None,
        });
    }

    /// The machine tells something. `lives` says whether it still has a request.
    pub(crate) fn told(&mut self, event: &ClientEvent, lives: impl Fn(Origin) -> bool) {
        let now = clock::now();
        match event {
            ClientEvent::Position(_, position) => {
                for wait in self.requests.iter_mut().filter_map(|it| it.wait.as_mut()) {
                    let place = u64::from(*position);
                    wait.note("queue.position", place);
                    wait.event("queued", now, vec![("queue.position", place.into())]);
                }
            }
            ClientEvent::Entered {
                name,
                token,
                members,
                ..
            } => {
                if let Some(request) = self.find(name) {
                    let nodes = members.iter().map(|(node, _)| *node);
                    request.entered(now, token.0, nodes);
                    // A detached lock is its caller's to hold; this process keeps nothing about it.
                    if request.ask.bond == Bond::Attached {
                        let mut hold = Span::child("lock.hold", Origin::from(&*request.ask), now);
                        hold.note_ask(&request.ask);
                        hold.note("lock.token", token.0);
                        request.hold = Some(hold);
                    }
                }
            }
            ClientEvent::Handle(_, handle, _) => {
                if let Some(request) = self.find(&handle.ask.name) {
                    let nodes = handle.grants.iter().map(|(node, ..)| *node);
                    request.entered(now, handle.token.0, nodes);
                }
            }
            ClientEvent::Moved {
                name,
                token,
                members,
                ..
            } => {
                let nodes = joined(members.iter().map(|(node, _)| *node));
                if let Some(hold) = self.find(name).and_then(|it| it.hold.as_mut()) {
                    hold.note("lock.token", token.0);
                    hold.event("moved", now, vec![("lock.members", nodes.into())]);
                }
            }
            ClientEvent::Lost(_, name) => {
                if let Some(request) = self.find(name) {
                    request.end(now, "lost");
                }
            }
            ClientEvent::Ended(_, ended) => self.end(now, outcome(ended)),
            _ => {}
        }
        // One of several was entered: the others have left their queues. What ends otherwise is
        // told by an event of its own.
        if matches!(event, ClientEvent::Entered { .. } | ClientEvent::Handle(..)) {
            for request in &mut self.requests {
                if request.wait.is_some() && !lives(Origin::from(&*request.ask)) {
                    request.end(now, "cancelled");
                }
            }
        }
    }

    fn find(&mut self, name: &Name) -> Option<&mut Request> {
        let named = |request: &&mut Request| request.ask.name == *name && request.is_open();
        self.requests.iter_mut().find(named)
    }

    fn end(&mut self, now: Now, outcome: &'static str) {
        for request in &mut self.requests {
            request.end(now, outcome);
        }
        if let Some(release) = self.release.take() {
            release.end(now, outcome);
        }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let now = clock::now();
        for request in &mut self.requests {
            let waits = request.wait.is_some();
            request.end(now, if waits { "cancelled" } else { "released" });
        }
        if let Some(release) = self.release.take() {
            release.end(now, "cancelled");
        }
    }
}

impl Request {
    fn is_open(&self) -> bool {
        self.wait.is_some() || self.hold.is_some()
    }

    fn entered(&mut self, now: Now, token: u64, members: impl Iterator<Item = NodeId>) {
        if let Some(mut wait) = self.wait.take() {
            wait.note("lock.token", token);
            wait.note("lock.members", joined(members));
            wait.note("nodes.asked", self.asked.len() as u64);
            wait.end(now, "entered");
        }
    }

    fn end(&mut self, now: Now, outcome: &'static str) {
        if let Some(mut wait) = self.wait.take() {
            wait.note("nodes.asked", self.asked.len() as u64);
            wait.end(now, outcome);
        }
        if let Some(hold) = self.hold.take() {
            hold.end(now, outcome);
        }
    }
}

fn joined(nodes: impl Iterator<Item = NodeId>) -> String {
    let nodes: Vec<String> = nodes.take(NODES_MAX).map(|node| node.to_string()).collect();
    nodes.join(" ")
}

fn outcome(ended: &Ended) -> &'static str {
    match ended {
        Ended::Released => "released",
        Ended::Cancelled => "cancelled",
        Ended::TimedOut => "timed_out",
        Ended::Busy => "busy",
        Ended::Refused(_) => "refused",
        Ended::NotHeld => "lost",
    }
}
