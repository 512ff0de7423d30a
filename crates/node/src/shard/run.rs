//! The loop of the shard's thread.
//!
//! Each round: wait, run due timers, take commands, read every connection that has something and
//! step the machine for each message, then one write per connection with all there is for it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use conclave_client::Security;
use conclave_client::secure::Session;
use conclave_client::trace;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{
    Config, LockNode, Message, NodeEffects, NodeEvent, NodeInput, Start, To,
};
use conclave_protocol::{Effects, Envelope, Instant, Machine, Now};
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use tokio::sync::oneshot;

use super::conn::Stage;
use super::conns::Conns;
use super::door::Door;
use super::grants::Grants;
use super::keeper::Keepers;
use super::levels::{LevelParts, Levels};
use super::peers::Peers;
use super::quiet::Quiet;
use super::read::READ_CHUNK;
use super::{Command, Inner, Revocation, speak};
use crate::NodeError;
use crate::audit::Auditor;
use crate::history::History;
use crate::journal::Journal;
use crate::meters::Meters;
use crate::who::Gate;

pub(super) const WAKER: Token = Token(usize::MAX);
pub(super) const LISTENER: Token = Token(usize::MAX - 1);

/// So many connections get on with their TLS handshake per round: signatures take their time, and
/// those who hold locks must be heard meanwhile.
const HANDSHAKES_ROUND: usize = 8;
/// No connection is read while so many messages wait for the disk.
const PARKED_PAUSE: usize = 65_536;
/// The loop looks around at least this often: a machine that slept counts differently from a poll.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// While it drains, a node looks this often whether it is empty.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// As long as holders leave, a drain may last so many times its grace.
const DRAIN_GRACES: u32 = 5;
/// How often the gauges are set anew.
const GAUGES: Duration = Duration::from_secs(1);

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// Until nothing is held here, nobody leaves any more, or the last moment has come.
    Draining {
        grace: Duration,
        /// Then it ends, unless somebody has left by then.
        until: Instant,
        last: Instant,
        /// How many requests were here when it was looked last.
        left: usize,
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
    id: NodeId,
    grants: Grants,
    inner: Arc<Inner>,
    poll: Poll,
    pub(super) node: LockNode,
    out: NodeEffects,
    pub(super) journal: Journal,
    history: Option<History>,
    pub(super) audit: Option<Auditor>,
    pub(super) gate: Arc<Gate>,
    written: u64,
    pub(super) synced: u64,
    pub(super) parked: VecDeque<(u64, Envelope<To, Message>)>,
    /// Operators whose revocations are on their way to the disk.
    revokes: VecDeque<(u64, oneshot::Sender<Revocation>, Revocation)>,
    /// Connections that broke while something was written to them.
    lost: Vec<u64>,
    pub(super) scratch: Box<[u8]>,
    /// Bytes as they came from a socket that speaks TLS.
    pub(super) sealed: Box<[u8]>,
    pub(super) security: Security,
    pub(super) keepers: Keepers,
    pub(super) levels: Option<Box<Levels>>,
    /// Whether the records of the start are durable: before, nothing is read.
    pub(super) started: bool,
    leaving: Leaving,
    /// Grants that are out.
    pub(super) granted: i64,
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
    pub(super) audit: Option<Auditor>,
    pub(super) gate: Arc<Gate>,
    pub(super) security: Security,
    pub(super) keeper: Option<crate::keeper::Inbox>,
    pub(super) levels: Option<LevelParts>,
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
        let sealed = parts.security.tls().map_or(0, |_| Session::FEED_MAX);
        let granted = i64::try_from(node.requests()).unwrap_or(i64::MAX);
        let life = node.incarnation();
        let levels = parts
            .levels
            .map(|levels| Levels::new(levels, parts.id, life, parts.seed, now));
        let mut it = Self {
            config: parts.config,
            clock: parts.clock,
            conns: Conns::new(registry),
            door,
            peers: parts.peers,
            meters: parts.meters,
            quiet: Quiet::default(),
            id: parts.id,
            grants: Grants::new(parts.id),
            inner: parts.inner,
            poll: parts.poll,
            node,
            out,
            journal: parts.journal,
            history: parts.history,
            audit: parts.audit,
            gate: parts.gate,
            written: 0,
            synced: 0,
            parked: VecDeque::new(),
            revokes: VecDeque::new(),
            lost: Vec::new(),
            scratch: vec![0; READ_CHUNK].into_boxed_slice(),
            sealed: vec![0; sealed].into_boxed_slice(),
            security: parts.security,
            keepers: Keepers::new(parts.keeper),
            levels,
            started: false,
            leaving: Leaving::No,
            granted,
            gauges_at: now.mono,
        };
        if let Some(history) = &mut it.history {
            history.start(now.mono, it.node.incarnation());
        }
        it.apply(now);
        let rules = it.gate.rules();
        it.handle(NodeInput::Access(rules));
        it.started = it.written == 0;
        if it.started {
            it.start_levels();
        }
        Ok(it)
    }

    pub(super) fn now(&self) -> Now {
        (self.clock)()
    }

    /// Records that were given to the journal, and how many of them are on disk.
    pub(super) fn journaled(&self) -> (u64, u64) {
        (self.written, self.synced)
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
            self.wake_levels();
            self.wake_if_due();
            self.take_commands()?;
            self.bury_lost();
            self.accept();
            self.look_at_deadlines();
            self.dial_due();
            if self.may_read() {
                self.conns.take_ready(&mut ready);
                let mut handshakes = 0;
                for id in ready.drain(..) {
                    if self.conns.is_handshaking(id) {
                        handshakes += 1;
                        if handshakes > HANDSHAKES_ROUND {
                            self.conns.mark_ready(id);
                            continue;
                        }
                    }
                    self.read(id);
                }
            }
            self.look_at_levels();
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
            self.look_for_idle();
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

    pub(super) fn may_read(&self) -> bool {
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
            let levels = self.levels.as_ref().and_then(|levels| levels.next_wake());
            at = levels.map_or(at, |next| at.min(next));
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
            Some(Stage::LevelDialled { node, open: false }) => self.level_dialled(id, node),
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
                    let node = self.id;
                    tracing::info!(%node, "draining: holders are asked to move to other nodes");
                    self.step(NodeInput::Drain);
                }
                Command::Stop(grace) => self.begin_stop(grace),
                Command::Kill => self.leaving = Leaving::Killed,
                Command::Expire(session) => self.step(NodeInput::Expire(session)),
                Command::Access(access) => {
                    self.keepers.set_access(&access);
                    self.handle(NodeInput::Access(access));
                    // Its token is gone: whoever came by it comes again, and is refused by name.
                    for id in self.conns.outdated(&self.gate) {
                        self.drop_conn(id);
                    }
                }
                Command::Revoke(revoke, answer) => {
                    let told = self.revoke(revoke);
                    self.revokes.push_back((self.written, answer, told));
                    self.answer_revokes();
                }
                Command::Resolved(node, found) => {
                    self.level_resolved(node, &found);
                    self.resolved(node, found);
                }
                Command::Answers(frames) => self.keeper_says(frames),
                Command::Room => self.unstall(),
                Command::End(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells operators what came of their revocations, once no restart can undo them.
    fn answer_revokes(&mut self) {
        let synced = self.synced;
        while let Some((_, answer, told)) =
            self.revokes.pop_front_if(|(needs, ..)| *needs <= synced)
        {
            // Whoever asked may have gone.
            let _ = answer.send(told);
        }
    }

    /// What waited for these records leaves before the machine learns that it may overtake.
    fn durable(&mut self, records: u64) {
        self.synced = records;
        self.answer_revokes();
        self.release_parked();
        if !self.started && self.synced >= self.written {
            self.started = true;
            let now = self.now().mono;
            self.conns.restart_deadlines(now);
            self.start_levels();
        }
        let own = match &self.levels {
            Some(_) => self.levels_durable(records),
            None => Some(records),
        };
        if let Some(own) = own {
            self.handle(NodeInput::Durable(own));
        }
        self.turn_levels();
    }

    fn begin_stop(&mut self, grace: Duration) {
        if self.leaving == Leaving::No {
            let now = self.now().mono;
            self.leaving = Leaving::Draining {
                grace,
                until: now + grace,
                last: now + grace * DRAIN_GRACES,
                left: self.node.requests(),
            };
            if self.started {
                self.step(NodeInput::Drain);
            }
        }
    }

    /// Stops once nothing is held here or the time is up.
    fn drain_on(&mut self) {
        let Leaving::Draining {
            grace,
            until,
            last,
            left,
        } = self.leaving
        else {
            return;
        };
        let now = self.now().mono;
        let here = self.node.requests();
        if until <= now || here == 0 || !self.started {
            self.handle(NodeInput::Stop);
            self.leaving = Leaving::Stopped;
        } else if here < left {
            // Whoever has much here takes its time to move all of it.
            self.leaving = Leaving::Draining {
                grace,
                until: last.min(now + grace),
                last,
                left: here,
            };
        }
    }

    fn wake_if_due(&mut self) {
        let now = self.now();
        self.wake_if_due_at(now);
    }

    fn wake_if_due_at(&mut self, now: Now) {
        let wake = self.node.next_wake().filter(|_| self.started);
        let due = wake.is_some_and(|wake| wake.at <= now.mono);
        if due {
            self.handle_at(now, NodeInput::Wake);
        }
    }

    /// One step, behind the timers that are due.
    pub(super) fn step(&mut self, input: NodeInput) {
        let now = self.now();
        self.step_at(now, input);
    }

    /// One step at a time that was read just now, behind the timers that are due.
    fn step_at(&mut self, now: Now, input: NodeInput) {
        self.wake_if_due_at(now);
        self.handle_at(now, input);
    }

    /// One step for a message. All that one read brought was sent before `read_at`, so no promise
    /// to its sender ends before the sender thinks; what others were promised ends a little later.
    pub(super) fn hear(&mut self, read_at: Now, input: NodeInput) {
        // The steps of the levels in between read the clock themselves: time must not go back.
        if self.levels.is_some() {
            self.step(input);
        } else {
            self.step_at(read_at, input);
        }
    }

    pub(super) fn handle(&mut self, input: NodeInput) {
        let now = self.now();
        self.handle_at(now, input);
    }

    fn handle_at(&mut self, now: Now, input: NodeInput) {
        if let NodeInput::Receive(_, message) | NodeInput::Peer(_, message) = &input {
            speak::heard(self.id, message);
            if trace::on() {
                self.grants.heard(now, message);
            }
        }
        self.node.handle(now, input, &mut self.out);
        self.apply(now);
        if self.levels.is_some() {
            self.turn_levels();
        }
    }

    /// Does what a step asks for, in the order of the contract.
    fn apply(&mut self, now: Now) {
        let mut out = std::mem::take(&mut self.out);
        if !out.persist.is_empty() {
            self.note_records(out.persist.len() as u64, true);
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
        // What it waits for may be on disk already, though the machine has not heard of it.
        self.release_parked();
        for event in out.events.drain(..) {
            self.event(&event, now);
        }
        self.out = out;
    }

    /// Sends what waited for records that are on disk by now.
    fn release_parked(&mut self) {
        let synced = self.synced;
        let ready = |first: Option<&(u64, Envelope<To, Message>)>| {
            first.is_some_and(|(needs, _)| *needs <= synced)
        };
        while ready(self.parked.front())
            && let Some((_, envelope)) = self.parked.pop_front()
        {
            self.send(&envelope);
        }
    }

    /// So many records all machines have written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Records are about to be written, by the front or by the levels.
    pub(super) fn note_records(&mut self, records: u64, front: bool) {
        self.written += records;
        if let Some(levels) = &mut self.levels {
            levels.wrote(records, front, self.written);
        }
    }

    fn send(&mut self, envelope: &Envelope<To, Message>) {
        self.meters.sent(&envelope.message);
        speak::said(self.id, &envelope.message);
        if trace::on() {
            self.grants.said(self.now(), &envelope.message);
        }
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
        if let Some(audit) = &mut self.audit {
            audit.event(event, &self.node);
        }
        speak::event(self.id, event);
        if trace::on() {
            self.grants.told(now, event);
        }
        match event {
            NodeEvent::Close(link) => self.conns.close_soon(link.0, now.mono),
            NodeEvent::Granted { .. } | NodeEvent::Reclaimed { .. } => self.granted += 1,
            NodeEvent::Ended { grant, .. } if grant.0 > 0 => self.granted -= 1,
            NodeEvent::Serving => {
                let incarnation = self.node.incarnation();
                tracing::info!(node = %self.id, %incarnation, "serving");
                self.set_gauges();
            }
            NodeEvent::CannotRecover => tracing::error!(
                node = %self.id,
                "this node has lost its disk and too few others can tell what it may have \
                 granted; start them, or start this one with --init if its locks may be forgotten"
            ),
            NodeEvent::Refused(_)
            | NodeEvent::Ended { .. }
            | NodeEvent::Entered { .. }
            | NodeEvent::Barred { .. } => {}
            NodeEvent::Want { .. } | NodeEvent::Leave { .. } => self.level_event(event),
        }
    }

    fn bury_lost(&mut self) {
        for id in std::mem::take(&mut self.lost) {
            self.drop_conn(id);
        }
    }
}
