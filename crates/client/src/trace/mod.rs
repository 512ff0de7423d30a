//! One trace per acquisition, across the client and the nodes.
//!
//! Nothing is added to what is sent: the ids of a trace follow from the request that it is of
//! ([`Origin`]), so that its client and every node it asks come to the same ones by themselves,
//! and so does the decision whether it is sampled. The client makes the root, `lock.acquire`, and
//! `lock.hold`; nodes make a `lock.grant` each.
//!
//! Without the feature `otel` nothing of this is done, and [`on`] is always `false`. With it,
//! nothing is done before [`start`] has found where traces go.

mod acquisition;
#[cfg(feature = "otel")]
mod live;
#[cfg(not(feature = "otel"))]
mod still;

#[cfg(feature = "otel")]
use live as sink;
#[cfg(not(feature = "otel"))]
use still as sink;

use std::fmt;
use std::time::Duration;

use conclave_protocol::Now;
use conclave_protocol::id::{Name, RequestNo, SessionId};
use conclave_protocol::lock::Ask;
use thiserror::Error;

pub(crate) use acquisition::Acquisition;
#[cfg(feature = "otel")]
pub use live::send_to;
pub use sink::{Caller, on, start, stop, wants};

/// The most events that a span keeps; later ones are only counted.
const EVENTS_MAX: usize = 32;
/// The most bytes of a name that traces and logs show.
const SHOWN_BYTES: usize = 64;

/// Why traces are not sent.
#[derive(Debug, Error)]
pub enum StartError {
    /// The environment asks for something that is not built in.
    #[error("{name}='{value}' is not supported: {remedy}")]
    Unsupported {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The exporter or its thread cannot be made.
    #[error("the exporter of traces cannot start: {0}")]
    Exporter(String),
}

/// The request that a trace is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Its session.
    pub session: SessionId,
    /// Its number there.
    pub request: RequestNo,
}

impl From<&Ask> for Origin {
    fn from(ask: &Ask) -> Self {
        Self {
            session: ask.session,
            request: ask.request,
        }
    }
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Words.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// Another span that one has to do with.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// What the caller was doing.
    Caller(Caller),
    /// The root of another request of the same caller.
    Request(Origin),
}

/// Something that happened during a span.
#[derive(Clone, Debug)]
struct Event {
    name: &'static str,
    after: Duration,
    notes: Vec<(&'static str, Value)>,
}

/// A span under way. It is sent when it is ended, and never if it is dropped.
#[derive(Clone, Debug)]
#[must_use = "a span is sent when it is ended"]
pub struct Span {
    name: &'static str,
    origin: Origin,
    is_root: bool,
    begun: Now,
    notes: Vec<(&'static str, Value)>,
    events: Vec<Event>,
    events_dropped: u32,
    links: Vec<Link>,
    /// What went wrong.
    failed: Option<&'static str>,
}

impl Span {
    /// A part of the trace of this request.
    pub fn child(name: &'static str, origin: Origin, begun: Now) -> Self {
        Self {
            name,
            origin,
            is_root: false,
            begun,
            notes: Vec::new(),
            events: Vec::new(),
            events_dropped: 0,
            links: Vec::new(),
            failed: None,
        }
    }

    /// The root of the trace of this request; its parts are children of it.
    pub(crate) fn root(name: &'static str, origin: Origin, begun: Now) -> Self {
        Self {
            is_root: true,
            ..Self::child(name, origin, begun)
        }
    }

    /// Sets what an attribute says.
    pub fn note(&mut self, field: &'static str, value: impl Into<Value>) {
        let value = value.into();
        match self.notes.iter_mut().find(|(known, _)| *known == field) {
            Some((_, said)) => *said = value,
            None => self.notes.push((field, value)),
        }
    }

    /// Adds something that happened.
    pub fn event(&mut self, name: &'static str, now: Now, notes: Vec<(&'static str, Value)>) {
        if self.events.len() >= EVENTS_MAX {
            self.events_dropped += 1;
            return;
        }
        let after = now.mono.since(self.begun.mono);
        self.events.push(Event { name, after, notes });
    }

    /// What is asked, and by whom.
    pub fn note_ask(&mut self, ask: &Ask) {
        self.note("lock.name", shown(&ask.name).to_string());
        self.note("lock.mode", mode(ask));
        if let conclave_protocol::lock::Mode::Group(group) = &ask.mode {
            self.note("lock.group", Shown(group).to_string());
        }
        self.note("lock.session", short(ask.session).to_string());
        self.note("lock.request", ask.request.0);
    }

    /// Ends it with this outcome, and sends it.
    pub fn end(mut self, now: Now, outcome: &'static str) {
        self.note("outcome", outcome);
        if matches!(outcome, "refused" | "timed_out" | "lost" | "expired") {
            self.failed = Some(outcome);
        }
        let took = now.mono.since(self.begun.mono);
        sink::send(self, took);
    }

    pub(crate) fn link(&mut self, link: Link) {
        self.links.push(link);
    }
}

fn mode(ask: &Ask) -> &'static str {
    use conclave_protocol::lock::Mode;
    match ask.mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Group(_) => "group",
    }
}

/// The name of a lock for traces and logs: escaped, and cut where it is long.
pub fn shown(name: &Name) -> impl fmt::Display + '_ {
    Shown(name.bytes())
}

/// The first digits of a session's id: enough to find it, too few to speak for it.
pub fn short(session: SessionId) -> impl fmt::Display {
    Short(session)
}

struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(out, "{}", cut.escape_ascii())?;
        if cut.len() < self.0.len() {
            write!(out, "…")?;
        }
        Ok(())
    }
}

struct Short(SessionId);

impl fmt::Display for Short {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}", self.0.0 >> 96)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_cut() {
        let name = |bytes: &[u8]| shown(&Name::new(bytes)).to_string();
        assert_eq!(name(b"jobs/nightly"), "jobs/nightly");
        assert_eq!(name(b"a\n\xff\"\x1b[31m"), r#"a\n\xff\"\x1b[31m"#);
        assert_eq!(name(&[b'x'; 64]), "x".repeat(64));
        assert_eq!(name(&[b'x'; 65]), "x".repeat(64) + "…");
    }

    #[test]
    fn a_session_is_told_by_its_first_digits() {
        let session = SessionId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(short(session).to_string(), "01234567");
    }

    #[test]
    fn a_span_keeps_so_many_events_and_no_more() {
        let origin = Origin {
            session: SessionId(1),
            request: RequestNo(1),
        };
        let mut span = Span::child("lock.grant", origin, Now::default());
        for _ in 0..EVENTS_MAX + 5 {
            span.event("queued", Now::default(), Vec::new());
        }
        assert_eq!((span.events.len(), span.events_dropped), (EVENTS_MAX, 5));
    }
}
