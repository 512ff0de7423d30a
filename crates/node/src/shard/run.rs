//! The loop of the shard's thread.
//!
//! Each round: wait, run due timers, take commands, read every connection that has something and
//! step the machine for each message, then one write per connection with all there is for it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::lock::{
    Config, LockNode, Message, NodeEffects, NodeEvent, NodeInput, Start, To,
};
use conclave_protocol::{Effects, Envelope, Instant, Machine, Now};
use mio::net::TcpListener;
use mio::{Events, Poll, Token};

use super::conn::{Got, Stage};
use super::conns::Conns;
use super::door::Door;
use super::peers::Peers;
use super::quiet::Quiet;
use super::{Command, Inner, Query, Report};
use crate::NodeError;
use crate::history::History;
use crate::journal::Journal;
use crate::meters::Meters;

pub(super) const WAKER: Token = Token(usize::MAX);
pub(super) const LISTENER: Token = Token(usize::MAX - 1);

/// At most this much is read from one connection per round, so that all get their turn.
const READ_ROUND: usize = 256 * 1024;
/// How much is read at once.
const READ_CHUNK: usize = 64 * 1024;
/// No connection is read while so many messages wait for the disk.
const PARKED_PAUSE: usize = 65_536;
/// The loop looks around at least this often: a machine that slept counts differently from a poll.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// While it drains, a node looks this often whether it is empty.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// How often the gauges are set anew.
const GAUGES: Duration = Duration::from_secs(1);

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// Until nothing is held here, or this time.
    Draining {
        until: Instant,
    },
    /// The machine has stopped; its last records are on their way to the disk.
    Stopped,
    /// At once, as after a crash.
    Killed,
}

/// Everything that the shard's thread owns.
pub(super) struct Loop {
    pub(super) config: Arc<Config>,
    pub(super) clock: super::Clock,
    pub(super) conns: Conns,
    pub(super) door: Door,
    pub(super) peers: Peers,
    pub(super) meters: Arc<Meters>,
    pub(super) quiet: Quiet,
    inner: Arc<Inner>,
    poll: Poll,
    node: LockNode,
    out: NodeEffects,
    journal: Journal,
    history: Option<History>,
    written: u64,
    synced: u64,
    parked: VecDeque<(u64, Envelope<To, Message>)>,
    /// Connections that broke while something was written to them.
    lost: Vec<u64>,
    scratch: Box<[u8]>,
    /// Whether the records of the start are durable: before, nothing is read.
    started: bool,
    leaving: Leaving,
    /// Grants that are out.
    granted: i64,
    gauges_at: Instant,
}

/// What the loop is made of.
pub(super) struct Parts {
    pub(super) config: Arc<Config>,
    pub(super) id: NodeId,
    pub(super) start: Start,
    pub(super) seed: u64,
    pub(super) clock: super::Clock,
    pub(super) poll: Poll,
    pub(super) listener: TcpListener,
    pub(super) door: Door,
    pub(super) peers: Peers,
    pub(super) meters: Arc<Meters>,
    pub(super) inner: Arc<Inner>,
    pub(super) journal: Journal,
    pub(super) history: Option<History>,
}

impl Loop {
    /// Starts the machine; its first records go to the journal.
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let mut out = Effects::new();
        let now = (parts.clock)();
        let node = LockNode::start(
            parts.config.clone(),
            parts.id,
            parts.seed,
            parts.start,
            now,
            &mut out,
        );
        let registry = parts.poll.registry().try_clone()?;
        let mut door = parts.door;
        door.listen(parts.listener, parts.poll.registry())?;
        let granted = i64::try_from(node.requests()).unwrap_or(i64::MAX);
        let mut it = Self {
            config: parts.config,
            clock: parts.clock,
            conns: Conns::new(registry),
            door,
            peers: parts.peers,
            meters: parts.meters,
            quiet: Quiet::default(),
            inner: parts.inner,
            poll: parts.poll,
            node,
            out,
            journal: parts.journal,
            history: parts.history,
            written: 0,
            synced: 0,
            parked: VecDeque::new(),
            lost: Vec::new(),
            scratch: vec![0; READ_CHUNK].into_boxed_slice(),
            started: false,
            leaving: Leaving::No,
            granted,
            gauges_at: now.mono,
        };
        if let Some(history) = &mut it.history {
            history.start(now.mono, it.node.incarnation());
        }
        it.apply(now);
        it.started = it.written == 0;
        Ok(it)
    }

    pub(super) fn now(&self) -> Now {
        (self.clock)()
    }

    /// Runs until the node is told to end or cannot go on.
    pub(super) fn run(&mut self) -> Result<(), NodeError> {
        let mut events = Events::with_capacity(1024);
        let mut ready = Vec::new();
        self.accept_early();
        self.end_round()?;
        loop {
            match self.poll.poll(&mut events, Some(self.timeout())) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(NodeError::Poll(error.to_string()));
                }
                _ => {}
            }
            self.meters.wakes.inc();
            self.note_events(&events);
            // After a pause what has expired ends before anything that came meanwhile is heard.
            self.wake_if_due();
            self.take_commands()?;
            self.bury_lost();
            self.accept();
            self.look_at_deadlines();
            self.dial_due();
            if self.may_read() {
                self.conns.take_ready(&mut ready);
                for id in ready.drain(..) {
                    self.read(id);
                }
            }
            self.drain_on();
            self.end_round()?;
            match self.leaving {
                Leaving::Killed => return Ok(()),
                Leaving::Stopped if self.synced >= self.written => return self.farewell(),
                _ => {}
            }
        }
    }

    /// What must be on paper before the messages of this round leave, then the messages.
    fn end_round(&mut self) -> Result<(), NodeError> {
        if let Some(history) = &mut self.history {
            history.write().map_err(|error| NodeError::History {
                path: history.path().to_owned(),
                problem: error.to_string(),
            })?;
        }
        let sent = self.conns.flush(&mut self.lost);
        self.meters.bytes_out.inc_by(sent as u64);
        let now = self.now().mono;
        if self.gauges_at <= now {
            self.gauges_at = now + GAUGES;
            self.set_gauges();
        }
        Ok(())
    }

    fn farewell(&mut self) -> Result<(), NodeError> {
        let now = self.now().mono;
        if let Some(history) = &mut self.history {
            history.down(now, self.node.incarnation());
        }
        self.end_round()
    }

    fn may_read(&self) -> bool {
        self.started
            && self.parked.len() < PARKED_PAUSE
            && matches!(self.leaving, Leaving::No | Leaving::Draining { .. })
            && !self.node.is_starting()
    }

    fn timeout(&self) -> Duration {
        if !self.lost.is_empty() || self.conns.has_ready() && self.may_read() {
            return Duration::ZERO;
        }
        let now = self.now().mono;
        let mut at = now + ROUND_MAX;
        if self.started
            && let Some(wake) = self.node.next_wake()
        {
            at = at.min(wake.at);
        }
        if self.started {
            at = self.conns.next_deadline().map_or(at, |next| at.min(next));
        }
        at = self.peers.next_dial().map_or(at, |next| at.min(next));
        at = self.door.again().map_or(at, |next| at.min(next));
        if matches!(self.leaving, Leaving::Draining { .. }) {
            at = at.min(now + DRAIN_LOOK);
        }
        at.since(now)
    }

    fn note_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKER => {}
                LISTENER => self.door.ring(),
                Token(id) => {
                    let id = id as u64;
                    let Some(conn) = self.conns.get_mut(id) else {
                        continue;
                    };
                    conn.hangs_up |= event.is_read_closed() || event.is_error();
                    conn.readable |= event.is_readable() || conn.hangs_up;
                    self.conns.mark_ready(id);
                    if event.is_writable() || event.is_error() {
                        self.became_writable(id);
                    }
                }
            }
        }
    }

    fn became_writable(&mut self, id: u64) {
        match self.conns.stage(id) {
            Some(Stage::Dialled { node, open: false }) => self.dialled(id, node),
            Some(_) => {
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.unblock();
                }
                self.conns.mark_dirty(id);
            }
            None => {}
        }
    }

    fn take_commands(&mut self) -> Result<(), NodeError> {
        for command in self.inner.take() {
            match command {
                Command::Durable(Ok(records)) => self.durable(records),
                Command::Durable(Err(error)) => return Err(NodeError::Store(error)),
                Command::Inspect(query, answer) => {
                    let report = self.look(&query);
                    // Whoever asked may have gone.
                    let _ = answer.send(report);
                }
                Command::Drain => {
                    tracing::info!("draining: holders are asked to move to other nodes");
                    self.step(NodeInput::Drain);
                }
                Command::Stop(grace) => self.begin_stop(grace),
                Command::Kill => self.leaving = Leaving::Killed,
                Command::Expire(session) => self.step(NodeInput::Expire(session)),
                Command::Resolved(node, found) => self.resolved(node, found),
            }
        }
        Ok(())
    }

    /// What waited for these records leaves before the machine learns that it may overtake.
    fn durable(&mut self, records: u64) {
        self.synced = records;
        while self
            .parked
            .front()
            .is_some_and(|(needs, _)| *needs <= records)
        {
            if let Some((_, envelope)) = self.parked.pop_front() {
                self.send(&envelope);
            }
        }
        if !self.started && self.synced >= self.written {
            self.started = true;
            let now = self.now().mono;
            self.conns.restart_deadlines(now);
        }
        self.handle(NodeInput::Durable(records));
    }

    fn begin_stop(&mut self, grace: Duration) {
        if self.leaving == Leaving::No {
            let until = self.now().mono + grace;
            self.leaving = Leaving::Draining { until };
            if self.started {
                self.step(NodeInput::Drain);
            }
        }
    }

    /// Stops once nothing is held here or the time is up.
    fn drain_on(&mut self) {
        let Leaving::Draining { until } = self.leaving else {
            return;
        };
        let now = self.now().mono;
        if until <= now || self.node.requests() == 0 || !self.started {
            self.handle(NodeInput::Stop);
            self.leaving = Leaving::Stopped;
        }
    }

    fn wake_if_due(&mut self) {
        let now = self.now();
        self.wake_if_due_at(now);
    }

    fn wake_if_due_at(&mut self, now: Now) -> bool {
        let wake = self.node.next_wake().filter(|_| self.started);
        let due = wake.is_some_and(|wake| wake.at <= now.mono);
        if due {
            self.handle_at(now, NodeInput::Wake);
        }
        due
    }

    /// One step, behind the timers that are due.
    pub(super) fn step(&mut self, input: NodeInput) {
        let now = self.now();
        if self.wake_if_due_at(now) {
            self.handle(input);
        } else {
            self.handle_at(now, input);
        }
    }

    fn handle(&mut self, input: NodeInput) {
        let now = self.now();
        self.handle_at(now, input);
    }

    fn handle_at(&mut self, now: Now, input: NodeInput) {
        self.node.handle(now, input, &mut self.out);
        self.apply(now);
    }

    /// Does what a step asks for, in the order of the contract.
    fn apply(&mut self, now: Now) {
        let mut out = std::mem::take(&mut self.out);
        if !out.persist.is_empty() {
            self.written += out.persist.len() as u64;
            self.journal.write(std::mem::take(&mut out.persist));
        }
        for envelope in out.send_now.drain(..) {
            self.send(&envelope);
        }
        let written = self.written;
        self.parked.extend(
            out.send_durable
                .drain(..)
                .map(|envelope| (written, envelope)),
        );
        for event in out.events.drain(..) {
            self.event(&event, now);
        }
        self.out = out;
    }

    fn send(&mut self, envelope: &Envelope<To, Message>) {
        self.meters.sent(&envelope.message);
        match envelope.to {
            To::Link(link) => {
                if !self.conns.send(link.0, &envelope.message) {
                    self.overflows(link.0);
                }
            }
            To::Node(node) => self.send_to_node(node, &envelope.message),
        }
    }

    /// A connection that does not read what it is sent ends.
    pub(super) fn overflows(&mut self, id: u64) {
        if let Some(address) = self.conns.address(id)
            && self.quiet.may_speak(self.now().mono)
        {
            tracing::warn!(peer = %address, "closed: too much is waiting to be read by it");
        }
        self.lost.push(id);
    }

    fn event(&mut self, event: &NodeEvent, now: Now) {
        self.meters.event(event);
        if let Some(history) = &mut self.history {
            history.event(now.mono, event);
        }
        match event {
            NodeEvent::Close(link) => self.conns.close_soon(link.0, now.mono),
            NodeEvent::Granted { .. } | NodeEvent::Reclaimed { .. } => self.granted += 1,
            NodeEvent::Ended { grant, .. } if grant.0 > 0 => self.granted -= 1,
            NodeEvent::Serving => {
                tracing::info!(incarnation = %self.node.incarnation(), "serving");
                self.set_gauges();
            }
            NodeEvent::CannotRecover => tracing::error!(
                "this node has lost its disk and too few others can tell what it may have \
                 granted; start them, or start this one with --init if its locks may be forgotten"
            ),
            NodeEvent::Refused(why) => {
                tracing::debug!(%why, "refused");
            }
            NodeEvent::Ended { .. } | NodeEvent::Entered { .. } => {}
        }
    }

    /// Reads what a connection has, up to its share of a round.
    fn read(&mut self, id: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut total = 0;
        let end = loop {
            let Some(conn) = self.conns.get_mut(id) else {
                break None;
            };
            if !conn.readable {
                break None;
            }
            let got = match conn.read(&mut scratch) {
                Ok(got) => got,
                Err(error) => break Some(End::Broken(error.to_string())),
            };
            let bytes = match got {
                Got::End => break Some(End::Closed),
                Got::Bytes(bytes) => bytes,
                Got::Last(bytes) => {
                    conn.readable = false;
                    bytes
                }
            };
            total += bytes;
            if let Err(end) = self.digest_with_rest(id, &scratch[..bytes]) {
                break Some(end);
            }
            if total >= READ_ROUND || !self.may_read() {
                break None;
            }
        };
        self.scratch = scratch;
        self.meters.bytes_in.inc_by(total as u64);
        match end {
            Some(end) => self.end_conn(id, &end),
            None => self.conns.mark_ready(id),
        }
    }

    /// Takes all whole frames of what was kept and what came now, and keeps the start of the next.
    fn digest_with_rest(&mut self, id: u64, bytes: &[u8]) -> Result<(), End> {
        let mut rest = self.conns.take_rest(id);
        let left = if rest.is_empty() {
            let used = self.digest(id, bytes)?;
            bytes[used..].to_vec()
        } else {
            rest.extend_from_slice(bytes);
            let used = self.digest(id, &rest)?;
            rest.drain(..used);
            rest
        };
        if !left.is_empty() && !self.conns.keep_rest(id, left) {
            return Err(End::Rude(
                "all connections together hold too many unfinished frames",
            ));
        }
        Ok(())
    }

    /// Takes whole frames off the front and says how many bytes they were.
    fn digest(&mut self, id: u64, bytes: &[u8]) -> Result<usize, End> {
        let mut used = 0;
        loop {
            let Some(stage) = self.conns.stage(id) else {
                return Ok(bytes.len());
            };
            let left = &bytes[used..];
            let taken = match stage {
                Stage::Closing { .. } => return Ok(bytes.len()),
                Stage::Waiting => self.take_greeting(id, left)?,
                Stage::Dialled { node, .. } => self.take_reply(id, node, left)?,
                Stage::Spoken(_) if left.is_empty() => None,
                Stage::Spoken(_) => return Err(End::Rude("it speaks on a connection of ours")),
                Stage::Client { .. } | Stage::Node(_) if !self.may_read() => {
                    // The machine starts anew: the rest is heard when it has.
                    if let Some(conn) = self.conns.get_mut(id) {
                        conn.readable = true;
                    }
                    None
                }
                Stage::Client { known } => {
                    self.take_message(id, left, |it, message| it.from_client(id, known, message))?
                }
                Stage::Node(node) => {
                    self.take_message(id, left, |it, message| it.from_node(node, message))?
                }
            };
            match taken {
                Some(bytes) => used += bytes,
                None => return Ok(used),
            }
        }
    }

    fn take_message(
        &mut self,
        id: u64,
        bytes: &[u8],
        then: impl FnOnce(&mut Self, Message) -> Result<(), End>,
    ) -> Result<Option<usize>, End> {
        let Some(conn) = self.conns.get_mut(id) else {
            return Ok(None);
        };
        match conn.decoder.decode(bytes) {
            Ok(Some((message, used))) => {
                self.meters.received(&message);
                then(self, message)?;
                Ok(Some(used))
            }
            Ok(None) if bytes.len() > REST_MAX => Err(End::Rude("its frames do not end")),
            Ok(None) => Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                Err(End::Broken(error.to_string()))
            }
        }
    }

    fn from_client(&mut self, id: u64, known: bool, message: Message) -> Result<(), End> {
        if !said_by_clients(&message) {
            return Err(End::Rude("it sends what only nodes send"));
        }
        if !known && matches!(message, Message::Hello { .. }) {
            self.conns.set_stage(id, Stage::Client { known: true });
        }
        self.step(NodeInput::Receive(LinkId(id), message));
        Ok(())
    }

    fn from_node(&mut self, node: NodeId, message: Message) -> Result<(), End> {
        if !said_by_nodes(&message) {
            return Err(End::Rude("it sends what no node sends to another"));
        }
        self.step(NodeInput::Peer(node, message));
        Ok(())
    }

    /// A connection ends by the other side's doing or fault.
    pub(super) fn end_conn(&mut self, id: u64, end: &End) {
        let Some(address) = self.conns.address(id) else {
            return;
        };
        let stage = self.conns.stage(id);
        let what = match (stage, end) {
            (Some(Stage::Closing { .. }), _) | (_, End::Closed) => None,
            (_, End::Broken(what)) => Some(what.as_str()),
            (_, End::Rude(what)) => Some(*what),
        };
        if let Some(what) = what
            && self.quiet.may_speak(self.now().mono)
        {
            let who = stage.map_or_else(String::new, who);
            tracing::warn!(peer = %address, %who, reason = what, "connection closed");
        }
        self.drop_conn(id);
    }

    /// Drops a connection and tells whoever lived on it.
    pub(super) fn drop_conn(&mut self, id: u64) {
        match self.conns.remove(id) {
            Some(Stage::Client { .. }) => self.step(NodeInput::Closed(LinkId(id))),
            Some(Stage::Node(node)) => self.door.node_left(node, id),
            Some(Stage::Dialled { node, .. } | Stage::Spoken(node)) => self.dial_failed(node, id),
            Some(Stage::Waiting | Stage::Closing { .. }) | None => {}
        }
    }

    fn bury_lost(&mut self) {
        for id in std::mem::take(&mut self.lost) {
            self.drop_conn(id);
        }
    }

    /// Connections that have not got further in time end.
    fn look_at_deadlines(&mut self) {
        if !self.started {
            return;
        }
        let now = self.now().mono;
        while let Some(id) = self.conns.overdue(now) {
            let late = match self.conns.stage(id) {
                Some(Stage::Waiting) => "no greeting came",
                Some(Stage::Client { known: false }) => "no first message came",
                Some(Stage::Dialled { .. }) => "no reply came",
                Some(Stage::Closing { .. }) => "it did not read the farewell",
                Some(Stage::Client { known: true } | Stage::Node(_) | Stage::Spoken(_)) | None => {
                    continue;
                }
            };
            self.end_conn(id, &End::Rude(late));
        }
    }

    fn look(&self, query: &Query) -> Report {
        match query {
            Query::Overview => Report::Overview {
                state: self.node.state(),
                incarnation: self.node.incarnation().0,
                kept: self.node.kept(),
                connections: self.conns.len(),
            },
            Query::Lock(name) => Report::Lock(self.node.view(name)),
            Query::Locks {
                prefix,
                from,
                limit,
            } => {
                let (page, next) = self.node.locks_from(prefix, *from, *limit);
                Report::Locks(page, next)
            }
            Query::Sessions { from, limit } => {
                let now = self.now().mono;
                let (page, next) = self.node.sessions_from(*from, *limit, now);
                Report::Sessions(page, next)
            }
            Query::Labels(of) => {
                let of = of.iter().take(super::LABELS_MAX);
                let label = |(session, request)| self.node.label(session, request);
                Report::Labels(of.copied().map(label).collect())
            }
        }
    }

    fn set_gauges(&self) {
        let set = |gauge: &prometheus_client::metrics::gauge::Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let [locks, sessions, clients, tombstones] = self.node.kept();
        let meters = &self.meters;
        set(&meters.locks, locks);
        set(&meters.sessions, sessions);
        set(&meters.clients, clients);
        set(&meters.tombstones, tombstones);
        set(&meters.connections, self.conns.len());
        set(&meters.buffered, self.conns.unsent());
        set(&meters.parked, self.parked.len());
        set(&meters.journal_queue, self.journal.behind() as usize);
        let granted = self.granted.max(0);
        meters.granted.set(granted);
        let requests = i64::try_from(self.node.requests()).unwrap_or(i64::MAX);
        meters.waiting.set((requests - granted).max(0));
        meters.set_state(self.node.state());
    }
}

/// Why a connection ends.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The other side closed it.
    Closed,
    /// The system or the codec says that it cannot go on.
    Broken(String),
    /// The other side does what it must not.
    Rude(&'static str),
}

/// More than what is skipped, the longest frame and one read.
const REST_MAX: usize =
    conclave_wire::codec::FRAME_MAX + conclave_wire::codec::SKIP_MAX + 2 * READ_CHUNK;

fn who(stage: Stage) -> String {
    match stage {
        Stage::Waiting => "not greeted".to_owned(),
        Stage::Client { .. } => "client".to_owned(),
        Stage::Node(node) | Stage::Dialled { node, .. } | Stage::Spoken(node) => node.to_string(),
        Stage::Closing { .. } => "closing".to_owned(),
    }
}

fn said_by_clients(message: &Message) -> bool {
    matches!(
        message,
        Message::Hello { .. }
            | Message::Resume(_)
            | Message::Open(_)
            | Message::Request { .. }
            | Message::Yield(_)
            | Message::Done { .. }
            | Message::Raise { .. }
            | Message::Entered(_)
            | Message::Heartbeat { .. }
            | Message::Keepalive { .. }
            | Message::Finish { .. }
            | Message::Travel(_)
    )
}

fn said_by_nodes(message: &Message) -> bool {
    matches!(
        message,
        Message::Recover { .. }
            | Message::Recovered(_)
            | Message::Alive { .. }
            | Message::Travel(_)
    )
}
