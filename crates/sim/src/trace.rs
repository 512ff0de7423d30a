//! A run as people read it: one line per event.

use std::fmt;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{GrantRef, Message, Sight};

use crate::fact::{Fact, Holder, True};

/// One line of a trace.
#[derive(Clone, Debug)]
pub struct Line {
    /// When, on true time.
    pub at: True,
    /// The node it concerns, if one.
    pub node: Option<NodeId>,
    /// The client it concerns, if one.
    pub client: Option<u32>,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:>12.6} ", self.at.0 as f64 / 1e9)?;
        let node = self.node.map_or(String::new(), |node| node.to_string());
        let client = self
            .client
            .map_or(String::new(), |client| format!("c{}", client + 1));
        write!(out, "{node:>5} {client:>5}  {}", self.text)
    }
}

/// Which lines to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Nothing before this time.
    pub from: Option<True>,
    /// Nothing after this time.
    pub to: Option<True>,
    /// Only lines that concern this node, or no node at all.
    pub node: Option<NodeId>,
}

impl Filter {
    /// Whether a line is shown.
    pub fn shows(&self, line: &Line) -> bool {
        self.from.is_none_or(|from| line.at >= from)
            && self.to.is_none_or(|to| line.at <= to)
            && (self.node.is_none() || line.node.is_none() || line.node == self.node)
    }
}

/// A long number, short enough to read and still told apart.
fn short(number: u128) -> String {
    format!("{:04x}", (number ^ number >> 64) as u16)
}

fn grant(grant: &GrantRef) -> String {
    let session = short(grant.session.0);
    format!("s{session}/r{} g{}", grant.request, grant.grant)
}

/// A message in one line.
pub fn message(message: &Message) -> String {
    let kind = message.kind();
    match message {
        Message::Hello { client, conn, .. } => {
            format!("{kind} {} conn {conn}", short(client.0))
        }
        Message::Resume(resume) => {
            let live: Vec<String> = resume
                .live
                .iter()
                .map(|claim| {
                    format!(
                        "s{}/r{} seen g{}{}{}{}",
                        short(claim.ask.session.0),
                        claim.ask.request,
                        claim.seen,
                        if claim.holding { " holding" } else { "" },
                        claim
                            .inside
                            .map_or(String::new(), |token| format!(" inside {token}")),
                        if claim.fresh { " fresh" } else { "" },
                    )
                })
                .collect();
            let done = resume.done.len();
            format!("{kind} live [{}] done {done}", live.join(", "))
        }
        Message::Open(info) => format!(
            "{kind} s{} ttl {:?}{}",
            short(info.session.0),
            info.ttl,
            if info.detached { " detached" } else { "" }
        ),
        Message::Request { ask, hint, inside } => format!(
            "{kind} s{}/r{} {} {} t{} hint {hint}{}",
            short(ask.session.0),
            ask.request,
            ask.name,
            ask.mode,
            ask.priority.t,
            if inside.is_some() { " inside" } else { "" },
        ),
        Message::Yield(of)
        | Message::Inquire(of)
        | Message::Noted(of)
        | Message::Kept(of)
        | Message::Watched(of) => {
            format!("{kind} {}", grant(of))
        }
        Message::Done {
            session,
            request,
            token,
        }
        | Message::Finish {
            session,
            request,
            token,
        } => {
            let token = token.map_or("unused".to_owned(), |token| format!("token {token}"));
            format!("{kind} s{}/r{request} {token}", short(session.0))
        }
        Message::Raise { grant: of, token }
        | Message::Raised { grant: of, token }
        | Message::Keepalive { grant: of, token } => format!("{kind} {} to {token}", grant(of)),
        Message::Entered(entered) => {
            format!("{kind} {} token {}", grant(&entered.grant), entered.token)
        }
        Message::Heartbeat { beat, entered } => format!("{kind} {beat} entered {}", entered.len()),
        Message::Beat { beat, noted, .. } => format!("{kind} {beat} noted {}", noted.len()),
        Message::Locked {
            grant: of,
            floor,
            limit,
            incarnation,
            ..
        } => format!(
            "{kind} {} floor {floor} limit {limit} life {incarnation}",
            grant(of)
        ),
        Message::Queued {
            session,
            request,
            position,
        } => format!("{kind} s{}/r{request} at {position}", short(session.0)),
        Message::NotNow {
            session,
            request,
            why,
            retry,
        } => format!(
            "{kind} s{}/r{request} {why:?} retry {retry:?}",
            short(session.0)
        ),
        Message::Dead { session, request } => match request {
            Some(request) => format!("{kind} s{}/r{request}", short(session.0)),
            None => format!("{kind} s{}", short(session.0)),
        },
        Message::Denied { session, why, .. } => format!("{kind} s{} {why}", short(session.0)),
        Message::Refused(why) => format!("{kind} {why}"),
        other => format!("{kind} {}", brief(other)),
    }
}

/// The rest of a message that is rare enough to be shown as it is.
fn brief(message: &Message) -> String {
    match message {
        Message::Welcome { incarnation, .. } => format!("life {incarnation}"),
        Message::Travel(travel) => format!(
            "s{}/r{} {} route {:?} passed {}",
            short(travel.ask.session.0),
            travel.ask.request,
            travel.ask.name,
            travel
                .route
                .iter()
                .map(|node| node.0 + 1)
                .collect::<Vec<_>>(),
            travel.grants.len()
        ),
        Message::Carried {
            session,
            request,
            grants,
        } => format!("s{}/r{request} grants {}", short(session.0), grants.len()),
        Message::Recovered(answer) => format!(
            "floor {} limit {}{}",
            answer.floor,
            answer.limit,
            if answer.recovering { " recovering" } else { "" }
        ),
        Message::Watch { watch, what } => {
            format!("w{watch} {}", what.bytes().escape_ascii())
        }
        Message::Unwatch { watch } => format!("w{watch}"),
        Message::Seen { watch, sight } => match &**sight {
            Sight::State(report) => {
                let holders = report.holders.iter();
                let tokens: Vec<_> = holders.map(|holder| holder.token.0).collect();
                format!("w{watch} {} tokens {tokens:?}", report.name)
            }
            other => format!("w{watch} {other:?}"),
        },
        Message::ConfirmGrant(ask) => format!("r{} {}", ask.request, ask.name),
        Message::GrantConfirmed {
            request, granted, ..
        } => format!("r{request} {granted:?}"),
        Message::TokenClock { clock, asks } => {
            format!("{}{}", clock.0, if *asks { " and asks" } else { "" })
        }
        Message::Recover { node, .. } | Message::Alive { node, .. } => format!("of {node}"),
        _ => String::new(),
    }
}

fn holder(holder: &Holder) -> String {
    format!("key {} {}", holder.key, holder.name)
}

/// A fact as a line; none for what the messages around it say already.
pub fn fact(at: True, fact: &Fact) -> Option<Line> {
    let of = |who: &Holder, text: String| {
        Some(Line {
            at,
            node: None,
            client: Some(who.client),
            text: format!("* {} {text}", holder(who)),
        })
    };
    let at_node = |node: NodeId, text: String| {
        Some(Line {
            at,
            node: Some(node),
            client: None,
            text: format!("* {text}"),
        })
    };
    match fact {
        Fact::Asked { holder } => of(holder, "asks".to_owned()),
        Fact::AskedAny { holder, of: count } => of(holder, format!("takes any one of {count}")),
        Fact::Entered {
            holder,
            group,
            token,
            members,
        } => of(
            holder,
            format!("ENTERS with token {token} as {group} on {}", list(members)),
        ),
        Fact::Moved {
            holder,
            token,
            members,
        } => of(holder, format!("moves, token {token} on {}", list(members))),
        Fact::Released { holder } => of(holder, "LEAVES".to_owned()),
        Fact::Lost { holder } => of(holder, "is LOST".to_owned()),
        Fact::Ended { holder } => of(holder, "ends outside".to_owned()),
        Fact::Vanished { holder } => of(holder, "dies with its process".to_owned()),
        Fact::Acted {
            holder,
            token,
            admitted,
            ..
        } => {
            let result = if *admitted { "admitted" } else { "REFUSED" };
            of(holder, format!("acts with token {token}: {result}"))
        }
        Fact::Granted {
            node, ask, grant, ..
        } => at_node(
            *node,
            format!(
                "grants g{grant} to s{}/r{}",
                short(ask.session.0),
                ask.request
            ),
        ),
        Fact::Reclaimed {
            node, ask, grant, ..
        } => at_node(
            *node,
            format!(
                "takes g{grant} of s{}/r{} over",
                short(ask.session.0),
                ask.request
            ),
        ),
        Fact::NodeEnded {
            node,
            ask,
            grant,
            why,
        } => at_node(
            *node,
            format!(
                "ends s{}/r{} g{grant}: {why:?}",
                short(ask.session.0),
                ask.request
            ),
        ),
        Fact::ExpiredBySpite { node, session } => {
            at_node(*node, format!("EXPIRES s{} by spite", short(session.0)))
        }
        Fact::NodeDown { node, disk_lost } => {
            let disk = if *disk_lost { ", its disk is LOST" } else { "" };
            at_node(*node, format!("goes DOWN{disk}"))
        }
        Fact::Seen { client, state, .. } => {
            let tokens = state.holders.iter().map(|holder| holder.token.0);
            let tokens: Vec<u64> = tokens.collect();
            let partial = if state.partial { ", partial" } else { "" };
            Some(Line {
                at,
                node: None,
                client: Some(*client),
                text: format!("* sees {} tokens {tokens:?}{partial}", state.name),
            })
        }
        Fact::Unserved { holder } => of(holder, "is turned away for its token".to_owned()),
        Fact::TokenRefused {
            node,
            session,
            request,
        } => at_node(
            *node,
            format!("refuses the token of s{}/r{request}", short(session.0)),
        ),
        Fact::Attacked { node } => at_node(*node, "was attacked".to_owned()),
        Fact::NodeUp { node } => at_node(*node, "is UP".to_owned()),
        Fact::ClocksSet | Fact::Tick => None,
        Fact::Healed => Some(world(at, "everything HEALS")),
        Fact::Over => Some(world(at, "the run is OVER")),
    }
}

/// A line about no process in particular.
pub fn world(at: True, text: &str) -> Line {
    Line {
        at,
        node: None,
        client: None,
        text: format!("* {text}"),
    }
}

fn list(members: &[(NodeId, conclave_protocol::id::GrantNo)]) -> String {
    let parts: Vec<String> = members
        .iter()
        .map(|(node, grant)| format!("{node}:g{grant}"))
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_keeps_the_times_and_the_node() {
        let line = |at, node: Option<u32>| Line {
            at: True(at),
            node: node.map(NodeId),
            client: Some(2),
            text: "LOCKED".to_owned(),
        };
        let filter = Filter {
            from: Some(True(10)),
            to: Some(True(20)),
            node: Some(NodeId(1)),
        };
        assert!(filter.shows(&line(10, Some(1))));
        assert!(filter.shows(&line(20, None)));
        assert!(!filter.shows(&line(9, Some(1))));
        assert!(!filter.shows(&line(21, Some(1))));
        assert!(!filter.shows(&line(15, Some(0))));
        assert!(Filter::default().shows(&line(0, Some(7))));
        let text = line(1_500_000_000, Some(0)).to_string();
        assert_eq!(text.trim(), "1.500000    n1    c3  LOCKED");
    }
}
