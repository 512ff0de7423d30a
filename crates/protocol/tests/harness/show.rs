//! Messages and events as short, stable lines.

use std::fmt::Write as _;

use conclave_protocol::id::{GrantNo, Incarnation, Token};
use conclave_protocol::lock::{
    ClientEvent, End, Ended, Entered, Finished, GrantRef, LockView, Message, NodeEvent, Refusal,
};

use super::EPOCH;

/// A readable trace: numbers are small and the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    lives: Vec<Vec<Incarnation>>,
    lines: Vec<String>,
}

/// Messages that every connection exchanges and that say nothing about a lock.
pub(crate) fn is_routine(message: &Message) -> bool {
    match message {
        Message::Hello { .. } | Message::Welcome { .. } | Message::Open(_) => true,
        Message::Heartbeat { entered, .. } => entered.is_empty(),
        Message::Beat { noted, .. } => noted.is_empty(),
        Message::Resume(resume) => resume.live.is_empty() && resume.done.is_empty(),
        _ => false,
    }
}

/// A moment or a token, counted from the start of the test in microseconds.
pub(crate) fn number(value: u64) -> String {
    let Some(value) = value.checked_sub(EPOCH) else {
        return format!("#{value}");
    };
    match (value / 1_000_000, value % 1_000_000) {
        (0, rest) => rest.to_string(),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, rest) => format!("{seconds}s+{rest}"),
    }
}

fn token(token: Token) -> String {
    number(token.0)
}

fn used(used: Option<Token>) -> String {
    used.map_or_else(String::new, |used| format!(" used={}", token(used)))
}

impl Trace {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            lives: vec![Vec::new(); nodes],
            lines: Vec::new(),
        }
    }

    /// A node starts a life: its grants are numbered from here.
    pub(crate) fn life(&mut self, node: usize, life: Incarnation) {
        self.lives[node].push(life);
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    pub(crate) fn say(&mut self, line: String) {
        self.lines.push(line);
    }

    /// A grant's number in its node's life; later lives are counted with dashes.
    pub(crate) fn grant(&self, node: usize, grant: GrantNo) -> String {
        if grant.0 == 0 {
            return "g0".into();
        }
        let lives = &self.lives[node];
        let life = lives.iter().rposition(|life| life.0 <= grant.0);
        match life {
            Some(life) => format!("g{}{}", grant.0 - lives[life].0, "'".repeat(life)),
            None => "g?".into(),
        }
    }

    fn reference(&self, node: usize, grant: GrantRef) -> String {
        format!("r{} {}", grant.request, self.grant(node, grant.grant))
    }

    pub(crate) fn message(&mut self, client: usize, node: usize, up: bool, message: &Message) {
        if is_routine(message) {
            return;
        }
        let (client, what) = (client + 1, self.text(node, message));
        let line = if up {
            format!("c{client} -> n{} {what}", node + 1)
        } else {
            format!("n{} -> c{client} {what}", node + 1)
        };
        self.say(line);
    }

    pub(crate) fn between(&mut self, from: usize, to: usize, message: &Message) {
        let what = self.text(from, message);
        let line = format!("n{} -> n{} {what}", from + 1, to + 1);
        // Nodes repeat themselves until they are answered.
        if !self.lines.contains(&line) {
            self.say(line);
        }
    }

    fn text(&self, node: usize, message: &Message) -> String {
        let kind = message.kind();
        let rest = match message {
            Message::Resume(resume) => self.resume(node, resume),
            Message::Request { ask, inside, .. } => {
                let inside = if inside.is_some() { " inside" } else { "" };
                let t = number(ask.priority.t);
                format!("r{} {} {} t={t}{inside}", ask.request, ask.name, ask.mode)
            }
            Message::Yield(grant)
            | Message::Inquire(grant)
            | Message::Noted(grant)
            | Message::Kept(grant) => self.reference(node, *grant),
            Message::Done { request, token, .. } | Message::Finish { request, token, .. } => {
                format!("r{request}{}", used(*token))
            }
            Message::Raise { grant, token: to }
            | Message::Raised { grant, token: to }
            | Message::Keepalive { grant, token: to } => {
                format!("{} token={}", self.reference(node, *grant), token(*to))
            }
            Message::Entered(entered) => self.entered(node, entered),
            Message::Heartbeat { entered, .. } => {
                let all = entered.iter().map(|entered| self.entered(node, entered));
                format!("entered {}", all.collect::<Vec<_>>().join(", "))
            }
            Message::Beat { noted, .. } => {
                let all = noted.iter().map(|grant| self.reference(node, *grant));
                format!("noted {}", all.collect::<Vec<_>>().join(", "))
            }
            Message::Refused(why) => refusal(why),
            Message::Locked {
                grant,
                floor,
                limit,
                ..
            } => format!(
                "{} floor={} limit={}",
                self.reference(node, *grant),
                token(*floor),
                token(*limit)
            ),
            Message::Queued {
                request, position, ..
            } => format!("r{request} behind {position}"),
            Message::NotNow { request, why, .. } => format!("r{request} {why:?}").to_lowercase(),
            Message::Dead { request, .. } => match request {
                Some(request) => format!("r{request}"),
                None => "session".into(),
            },
            Message::Denied { request, why, .. } => match request {
                Some(request) => format!("r{request} {}", refusal(why)),
                None => format!("session {}", refusal(why)),
            },
            Message::Recovered(answer) => format!(
                "floor={} limit={}{}",
                token(answer.floor),
                token(answer.limit),
                if answer.recovering { " recovering" } else { "" }
            ),
            Message::Travel(travel) => format!("r{} {}", travel.ask.request, travel.ask.name),
            Message::Carried {
                request, grants, ..
            } => {
                let all = grants.iter().map(|carried| {
                    let grant = self.grant(carried.node.index(), carried.grant);
                    format!("{} {grant}", carried.node)
                });
                format!("r{request} {}", all.collect::<Vec<_>>().join(", "))
            }
            _ => String::new(),
        };
        format!("{kind} {rest}").trim_end().to_owned()
    }

    fn entered(&self, node: usize, entered: &Entered) -> String {
        let reference = self.reference(node, entered.grant);
        format!("{reference} token={}", token(entered.token))
    }

    fn resume(&self, node: usize, resume: &conclave_protocol::lock::Resume) -> String {
        let mut parts = Vec::new();
        for claim in &resume.live {
            let mut part = format!("r{}", claim.ask.request);
            if claim.holding {
                write!(part, " holds {}", self.grant(node, claim.seen)).unwrap();
            } else if claim.seen.0 > 0 {
                write!(part, " gave {} back", self.grant(node, claim.seen)).unwrap();
            } else {
                part += " waits";
            }
            if let Some(inside) = claim.inside {
                write!(part, " inside token={}", token(inside)).unwrap();
            }
            if let Some(raising) = claim.raising {
                write!(part, " raising={}", token(raising)).unwrap();
            }
            parts.push(part);
        }
        for Finished { request, token, .. } in &resume.done {
            parts.push(format!("r{request} done{}", used(*token)));
        }
        parts.join(", ")
    }

    pub(crate) fn client_event(&mut self, client: usize, event: &ClientEvent) {
        let members = |trace: &Self, members: &[(conclave_protocol::id::NodeId, GrantNo)]| {
            let all = members
                .iter()
                .map(|(node, grant)| format!("{node} {}", trace.grant(node.index(), *grant)));
            all.collect::<Vec<_>>().join(", ")
        };
        let line = match event {
            ClientEvent::Entered {
                key,
                name,
                token: with,
                members: on,
                ..
            } => format!(
                "{key} ENTERS {name} token={} on {}",
                token(*with),
                members(self, on)
            ),
            ClientEvent::Moved {
                key,
                name,
                token: with,
                members: on,
            } => format!(
                "{key} MOVES {name} token={} on {}",
                token(*with),
                members(self, on)
            ),
            ClientEvent::EnteredAll(key) => format!("{key} HAS ALL"),
            ClientEvent::Position(key, position) => format!("{key} waits behind {position}"),
            ClientEvent::Lost(key, name) => format!("{key} LOSES {name}"),
            ClientEvent::Ended(key, ended) => match ended {
                Ended::Refused(why) => format!("{key} ends: {}", refusal(why)),
                ended => format!("{key} ends: {ended:?}"),
            },
            ClientEvent::Handle(key, handle, _) => {
                format!("{key} has a handle token={}", token(handle.token))
            }
            ClientEvent::Seen(key, state) => {
                let tokens = state.holders.iter().map(|holder| token(holder.token));
                let tokens: Vec<_> = tokens.collect();
                format!("{key} sees {} [{}]", state.name, tokens.join(" "))
            }
            ClientEvent::Synced(key, partial) => format!("{key} knows all, partial={partial}"),
            ClientEvent::Connect(..) | ClientEvent::Disconnect(..) => return,
        };
        self.say(format!("c{}/{line}", client + 1));
    }

    pub(crate) fn node_event(&mut self, node: usize, event: &NodeEvent) {
        let line = match event {
            NodeEvent::Ended { ask, grant, why } if unasked(*why) => {
                format!(
                    "ends r{} {}: {why:?}",
                    ask.request,
                    self.grant(node, *grant)
                )
            }
            NodeEvent::Reclaimed {
                ask,
                grant,
                token: with,
            } => format!(
                "lets r{} reclaim {} token={}",
                ask.request,
                self.grant(node, *grant),
                token(*with)
            ),
            NodeEvent::Serving => "serves".into(),
            NodeEvent::CannotRecover => "cannot recover".into(),
            _ => return,
        };
        self.say(format!("n{} {line}", node + 1));
    }

    /// The queue of a lock at a node.
    pub(crate) fn view(&mut self, node: usize, view: Option<&LockView>) {
        let Some(view) = view.filter(|view| !view.entries.is_empty()) else {
            self.say(format!("n{}: free", node + 1));
            return;
        };
        let entries: Vec<String> = view
            .entries
            .iter()
            .map(|entry| {
                let who = entry.ask.priority.client.0 - 99;
                let mut text = format!("c{who} r{} {}", entry.ask.request, entry.ask.mode);
                if entry.grant.0 > 0 {
                    write!(text, " {}", self.grant(node, entry.grant)).unwrap();
                }
                for (mark, on) in [
                    (" inquired", entry.inquired),
                    (" moves", entry.inside),
                    (" inside", entry.entered.is_some()),
                ] {
                    text += if on { mark } else { "" };
                }
                text
            })
            .collect();
        let door = if view.has_priority { "" } else { " (closing)" };
        let passed = match view.bypassed {
            0 => String::new(),
            count => format!(" (passed {count})"),
        };
        let line = format!("n{}{door}{passed}: {}", node + 1, entries.join("; "));
        self.say(line);
    }
}

/// Ends that no message of the requester explains.
fn unasked(why: End) -> bool {
    !matches!(why, End::Done(_) | End::Cancelled | End::Yielded)
}

fn refusal(why: &Refusal) -> String {
    let text = format!("{why:?}");
    let name = text.split([' ', '{', '(']).next().unwrap_or_default();
    format!("refused {name}")
}
