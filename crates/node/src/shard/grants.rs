//! Spans of what this node does for requests, as parts of their traces. Nothing is kept while no
//! traces are made.
//!
//! | span | from | to |
//! |---|---|---|
//! | `lock.grant` | the request comes, or its grant was given back | it is granted or ends |
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
    limit: usize,
    /// Whether a trace of a request is made.
    wants: fn(Origin) -> bool,
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
            limit: OPEN_MAX,
            wants: trace::wants,
        }
    }

    /// A message came, and is about to be stepped.
    pub(super) fn heard(&mut self, now: Now, message: &Message) {
        match message {
            Message::Request { ask, inside, .. } => {
                if let Some(span) = self.begin(now, ask, false)
                    && inside.is_some()
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
        let full = self.open.len() >= self.limit;
        if full || self.open.contains_key(&origin) || !(self.wants)(origin) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conclave_protocol::Wall;
    use conclave_protocol::id::{
        ClientId, GrantNo, Incarnation, Name, RequestNo, SessionId, Token,
    };
    use conclave_protocol::lock::{Bond, Claim, Mode, Priority, Refusal, Resume, Travel};

    use super::*;

    fn grants(limit: usize) -> Grants {
        Grants {
            limit,
            wants: |_| true,
            ..Grants::new(NodeId(0))
        }
    }

    fn ask(request: u64) -> Arc<Ask> {
        Arc::new(Ask {
            name: Name::new("a"),
            mode: Mode::Exclusive,
            session: SessionId(1),
            request: RequestNo(request),
            priority: Priority {
                t: 0,
                client: ClientId(1),
                request: RequestNo(request),
            },
            bond: Bond::Attached,
        })
    }

    fn request(request: u64) -> Message {
        Message::Request {
            ask: ask(request),
            hint: Token(0),
            inside: None,
        }
    }

    fn reference(request: u64) -> GrantRef {
        GrantRef {
            session: SessionId(1),
            request: RequestNo(request),
            grant: GrantNo(7),
        }
    }

    fn locked(request: u64) -> Message {
        Message::Locked {
            grant: reference(request),
            floor: Token(0),
            limit: Token(0),
            incarnation: Incarnation(1),
            clock: Wall(0),
        }
    }

    fn ended(request: u64, why: End) -> NodeEvent {
        NodeEvent::Ended {
            ask: ask(request),
            grant: GrantNo(7),
            why,
        }
    }

    fn kept(grants: &Grants) -> Vec<Origin> {
        grants.open.keys().copied().collect()
    }

    #[test]
    fn whatever_answers_a_request_ends_its_span() {
        let (session, number) = (SessionId(1), RequestNo(1));
        let answers = [
            locked(1),
            Message::Denied {
                session,
                request: Some(number),
                why: Refusal::Size,
            },
            Message::Dead {
                session,
                request: Some(number),
            },
        ];
        let mut grants = grants(10);
        for answer in answers {
            grants.heard(Now::default(), &request(1));
            assert_eq!(kept(&grants).len(), 1);
            grants.said(Now::default(), &answer);
            assert!(kept(&grants).is_empty(), "{answer:?}");
        }
        for why in [
            End::Cancelled,
            End::Expired,
            End::Done(Token(1)),
            End::Revoked,
        ] {
            grants.heard(Now::default(), &request(1));
            grants.told(Now::default(), &ended(1, why));
            assert!(kept(&grants).is_empty(), "{why:?}");
        }
    }

    #[test]
    fn a_grant_that_is_given_back_is_waited_for_again() {
        let mut grants = grants(10);
        grants.heard(Now::default(), &request(1));
        grants.said(Now::default(), &locked(1));
        grants.said(Now::default(), &Message::Inquire(reference(1)));
        assert_eq!(kept(&grants).len(), 1, "until it is given back");
        grants.told(Now::default(), &ended(1, End::Yielded));
        assert_eq!(kept(&grants).len(), 1, "it waits again");
        grants.said(Now::default(), &locked(1));
        assert!(kept(&grants).is_empty());
    }

    #[test]
    fn a_travelling_request_ends_with_its_grant_and_a_resumed_one_is_not_new() {
        let mut grants = grants(10);
        let travel = Travel {
            ask: ask(1),
            hint: Token(0),
            route: Arc::from([NodeId(0)]),
            grants: Vec::new(),
        };
        grants.heard(Now::default(), &Message::Travel(Box::new(travel)));
        let granted = NodeEvent::Granted {
            ask: ask(1),
            grant: GrantNo(7),
            floor: Token(0),
            limit: Token(0),
            bypass: false,
            inside: false,
        };
        grants.told(Now::default(), &granted);
        assert!(kept(&grants).is_empty());
        let claim = |request: u64, seen: u64| Claim {
            ask: ask(request),
            hint: Token(0),
            seen: GrantNo(seen),
            holding: seen > 0,
            inside: None,
            raising: None,
            fresh: true,
            members: Vec::new(),
        };
        let resume = Resume {
            live: vec![claim(1, 5), claim(2, 0)],
            last: true,
            ..Resume::default()
        };
        grants.heard(Now::default(), &Message::Resume(Box::new(resume)));
        assert_eq!(kept(&grants), [Origin::from(&*ask(2))]);
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut grants = grants(3);
        for number in 0..10 {
            grants.heard(Now::default(), &request(number));
        }
        assert_eq!(kept(&grants).len(), 3);
        let not_now = |number: u64| Message::NotNow {
            session: SessionId(1),
            request: RequestNo(number),
            why: conclave_protocol::lock::NotNow::Draining,
            retry: Duration::ZERO,
        };
        for number in 0..10 {
            grants.said(Now::default(), &not_now(number));
        }
        assert!(kept(&grants).is_empty());
    }
}
