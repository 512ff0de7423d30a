//! Spans of what this node does for requests, as parts of their traces. Nothing is kept while no
//! traces are made.
//!
//! | span | from | to |
//! |---|---|---|
//! | `lock.grant` | the request comes, or its grant was given back | it is granted, refused, or ends |
//! | `lock.inquire` | a grant is asked back | it is given back, or ends |

use std::collections::HashMap;
use std::sync::Arc;

use conclave_client::trace::{self, Origin, Span};
use conclave_protocol::Now;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{Ask, End, GrantRef, Message, NodeEvent};

/// The most requests with an open span; more are not traced at this node.
const OPEN_MAX: usize = 16_384;

/// The open spans of a node.
#[derive(Debug)]
pub(super) struct Grants {
    node: NodeId,
    open: HashMap<Origin, Open>,
}

#[derive(Debug)]
struct Open {
    span: Span,
    /// The serial protocol sends no answer of its own for each grant.
    travels: bool,
}

impl Grants {
    pub(super) fn new(node: NodeId) -> Self {
        Self {
            node,
            open: HashMap::new(),
        }
    }

    /// A message came, and is about to be stepped.
    pub(super) fn heard(&mut self, now: Now, message: &Message) {
        match message {
            Message::Request { ask, inside, .. } => {
                if let Some(span) = self.begin(now, ask, false)
                    && *inside
                {
                    span.note("inside", true);
                }
            }
            Message::Travel(travel) => {
                self.begin(now, &travel.ask, true);
            }
            Message::Resume(resume) => {
                // What this node has granted before is no new request.
                for claim in resume.live.iter().filter(|claim| claim.seen.0 == 0) {
                    self.begin(now, &claim.ask, false);
                }
            }
            _ => {}
        }
    }

    /// A message leaves.
    pub(super) fn said(&mut self, now: Now, message: &Message) {
        match message {
            Message::Locked { grant, .. } => {
                let origin = origin(*grant);
                if let Some(open) = self.open.get_mut(&origin) {
                    open.span.note("lock.grant", grant.grant.0);
                }
                self.end(now, origin, "granted");
            }
            Message::Queued {
                session,
                request,
                position,
            } => {
                let origin = Origin {
                    session: *session,
                    request: *request,
                };
                if let Some(open) = self.open.get_mut(&origin) {
                    let position = u64::from(*position);
                    open.span.note("queue.position", position);
                    let notes = vec![("queue.position", position.into())];
                    open.span.event("queued", now, notes);
                }
            }
            Message::NotNow {
                session, request, ..
            } => {
                let (session, request) = (*session, *request);
                self.end(now, Origin { session, request }, "not_now");
            }
            Message::Denied {
                session,
                request: Some(request),
                ..
            }
            | Message::Dead {
                session,
                request: Some(request),
            } => {
                let (session, request) = (*session, *request);
                self.end(now, Origin { session, request }, "refused");
            }
            Message::Inquire(grant) => {
                let origin = origin(*grant);
                if let Some(span) = self.open("lock.inquire", now, origin, false) {
                    span.note("lock.grant", grant.grant.0);
                }
            }
            _ => {}
        }
    }

    /// The machine tells something.
    pub(super) fn told(&mut self, now: Now, event: &NodeEvent) {
        match event {
            NodeEvent::Granted { ask, grant, .. } => {
                let origin = Origin::from(&**ask);
                if let Some(open) = self.open.get_mut(&origin)
                    && open.travels
                {
                    open.span.note("lock.grant", grant.0);
                    self.end(now, origin, "granted");
                }
            }
            NodeEvent::Ended { ask, why, .. } => {
                self.end(now, Origin::from(&**ask), outcome(*why));
                if *why == End::Yielded
                    && let Some(span) = self.begin(now, ask, false)
                {
                    span.note("yielded", true);
                }
            }
            _ => {}
        }
    }

    /// A request waits for a grant from now on.
    fn begin(&mut self, now: Now, ask: &Arc<Ask>, travels: bool) -> Option<&mut Span> {
        let span = self.open("lock.grant", now, Origin::from(&**ask), travels)?;
        span.note_ask(ask);
        Some(span)
    }

    fn open(
        &mut self,
        name: &'static str,
        now: Now,
        origin: Origin,
        travels: bool,
    ) -> Option<&mut Span> {
        if self.open.len() >= OPEN_MAX || self.open.contains_key(&origin) || !trace::wants(origin) {
            return None;
        }
        let mut span = Span::child(name, origin, now);
        span.note("node", self.node.to_string());
        let open = self.open.entry(origin);
        Some(&mut open.or_insert(Open { span, travels }).span)
    }

    fn end(&mut self, now: Now, origin: Origin, outcome: &'static str) {
        if let Some(open) = self.open.remove(&origin) {
            open.span.end(now, outcome);
        }
    }
}

fn origin(grant: GrantRef) -> Origin {
    Origin {
        session: grant.session,
        request: grant.request,
    }
}

/// Why a request ended, in a word.
pub(super) fn outcome(why: End) -> &'static str {
    match why {
        End::Done(_) => "done",
        End::Cancelled => "cancelled",
        End::Yielded => "yielded",
        End::Expired => "expired",
        End::Lapsed => "lapsed",
        End::Disconnected => "disconnected",
        End::Forgotten => "forgotten",
        End::Revoked => "revoked",
    }
}
