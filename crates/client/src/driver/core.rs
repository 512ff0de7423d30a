//! The machine with everything around it that callers and the background task share.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use conclave_protocol::id::{ClientId, ConnNo, Key, Name, NodeId};
use conclave_protocol::lock::{
    ClientEffects, ClientEvent, ClientInput, Config, Ended, LockClient, Message,
};
use conclave_protocol::{Instant, Machine, Now};
use foldhash::fast::FixedState;

use super::Work;
use super::conn::{Flushed, OUT_MAX, Writer};
use super::job::{Cell, Keys, Kind, Wish, locked};
use super::nudge::Nudge;
use super::timer::Timer;
use crate::clock;
use crate::directory::Directory;
use crate::fault::{Fault, catch};

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections tried.
    pub connects: u64,
    /// Connections that ended or were not made.
    pub closed: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Calls of the system to write.
    pub writes: u64,
    /// Calls of the system to read.
    pub reads: u64,
    /// Turns of the background task.
    pub turns: u64,
    /// Locks that were lost.
    pub lost: u64,
}

/// Callers that write within this time of each other are a crowd: what they say is put together.
const CLOSE: Duration = Duration::from_micros(40);

/// How far the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Nothing new is begun; what was said is still being written.
    Closing,
    Closed,
}

/// Who writes what callers have put into the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// Nobody yet: a caller may write at once.
    Free,
    /// The next caller that writes at once, or else the background task at its next turn.
    Later,
    /// The background task, once others that are ready had their turn.
    Due,
}

#[derive(Debug, Default)]
struct Link {
    /// The connection that the machine wants.
    wanted: Option<ConnNo>,
    writer: Option<Writer>,
    /// Whether the node has accepted us on the present connection.
    ready: bool,
    trouble: Option<String>,
    /// Whether the node refused us for a reason that does not pass by itself.
    misfit: bool,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) machine: LockClient,
    config: Arc<Config>,
    out: ClientEffects,
    pub(super) jobs: HashMap<Key, Cell, FixedState>,
    keys: Arc<Keys>,
    links: Vec<Link>,
    /// Nodes with bytes to write.
    dirty: Vec<NodeId>,
    broken: Vec<(NodeId, ConnNo, String)>,
    /// Connections for the background task to open.
    pub(super) to_open: Vec<(NodeId, ConnNo)>,
    /// Whom to wake once the lock is released.
    pub(super) wakes: Vec<Waker>,
    pub(super) task: Option<Waker>,
    pub(super) wake_task: bool,
    /// Whether the background task shall have a turn once others that are ready had theirs.
    pub(super) wake_soon: bool,
    pub(super) flush: Flush,
    /// When a caller or the task last wrote.
    written: Instant,
    /// The time of the last step.
    now: Instant,
    /// How many callers the last messages woke: with several, writing is left to one of them.
    pub(super) crowd: usize,
    timer: Arc<Timer>,
    nudge: Arc<Nudge>,
    armed: Instant,
    pub(super) stage: Stage,
    pub(super) counters: Counters,
    /// Whether the last node that answered did not accept what shows who we are.
    pub(super) unauthenticated: bool,
    fault: Arc<Fault>,
    directory: Directory,
}

impl Core {
    pub(super) fn new(
        machine: LockClient,
        config: Arc<Config>,
        timer: Arc<Timer>,
        nudge: Arc<Nudge>,
        keys: Arc<Keys>,
        fault: Arc<Fault>,
        directory: Directory,
    ) -> Self {
        let links = config.quorums.all().map(|_| Link::default()).collect();
        Self {
            machine,
            config,
            out: ClientEffects::new(),
            // Its keys are numbers of our own: nobody can choose them to collide.
            jobs: HashMap::with_hasher(FixedState::default()),
            keys,
            links,
            dirty: Vec::new(),
            broken: Vec::new(),
            to_open: Vec::new(),
            wakes: Vec::new(),
            task: None,
            wake_task: false,
            wake_soon: false,
            flush: Flush::Free,
            written: Instant::ZERO,
            now: Instant::ZERO,
            crowd: 0,
            timer,
            nudge,
            armed: Instant::FAR,
            stage: Stage::Running,
            counters: Counters::default(),
            unauthenticated: false,
            fault,
            directory,
        }
    }

    /// The cluster has another configuration: what is held under the old one is lost, and what
    /// waits is asked for anew by whoever waits.
    pub(super) fn adopt(&mut self, machine: LockClient, config: Arc<Config>) {
        self.machine = machine;
        self.links = config.quorums.all().map(|_| Link::default()).collect();
        self.config = config;
        self.out = ClientEffects::new();
        self.dirty.clear();
        self.broken.clear();
        self.to_open.clear();
        self.unauthenticated = false;
        self.armed = Instant::FAR;
        for (key, cell) in &self.jobs {
            let mut job = locked(cell);
            if job.over {
                continue;
            }
            job.over = true;
            job.lose();
            job.put(ClientEvent::Ended(*key, Ended::NotHeld));
            self.wakes.extend(job.waker.take());
        }
    }

    /// Ends what waits if no quorum is left, now that nobody knows better.
    pub(super) fn judge(&mut self) {
        if self.is_hopeless() && !self.directory.is_asking() {
            self.give_up();
        }
    }

    /// Does something with the machine. If that panics, everything ends.
    pub(super) fn guard<T: Default>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        catch(|| act(self)).unwrap_or_else(|words| {
            self.fail(&words);
            T::default()
        })
    }

    /// There is a fault in this program: nothing that the machine knew counts any more. Nodes see
    /// the connections close, and what they granted runs out.
    pub(super) fn fail(&mut self, words: &str) {
        self.fault.tell(words);
        self.machine = LockClient::new(self.config.clone(), ClientId(0), 0);
        self.out = ClientEffects::new();
        self.dirty.clear();
        self.broken.clear();
        self.to_open.clear();
        self.end();
        self.wake_task = true;
    }

    /// Until when a lock is held; none once that time has passed, or when nobody renews it.
    pub(super) fn held_until(&self, key: Key, name: &Name) -> Option<Instant> {
        if self.stage != Stage::Running {
            return None;
        }
        let until = self.machine.held_until(key, name)?;
        (until > clock::steady()).then_some(until)
    }

    /// Does what a caller wants.
    pub(super) fn grant(&mut self, wish: Wish) {
        match wish {
            Wish::Begin(key, cell, work) => self.begin(key, cell, work),
            Wish::Leave(key) => self.leave(key),
            Wish::Drop(key) => self.forget(key),
        }
    }

    fn begin(&mut self, key: Key, cell: Cell, work: Work) {
        if self.stage != Stage::Running {
            let mut job = locked(&cell);
            job.over = true;
            self.wakes.extend(job.waker.take());
            return;
        }
        self.jobs.insert(key, cell);
        self.step(match work {
            Work::Acquire(wish) => ClientInput::Acquire(key, wish),
            Work::AcquireAll(wishes) => ClientInput::AcquireAll(key, wishes),
            Work::AcquireAny(wishes) => ClientInput::AcquireAny(key, wishes),
            Work::Keep(handle, principal) => ClientInput::Keep(key, handle, principal),
            Work::Finish(handle) => ClientInput::Finish(key, handle),
            Work::Abandon(handle) => ClientInput::Abandon(key, handle),
            Work::Watch(what) => ClientInput::Watch(key, what),
        });
        self.send_soon();
    }

    pub(super) fn leave(&mut self, key: Key) {
        if self.stage == Stage::Running {
            self.step(ClientInput::Release(key));
            // A caller that is not alone is likely to be followed by another.
            if self.jobs.len() > 1 {
                self.send_later();
            } else {
                self.send_soon();
            }
        }
        self.jobs.remove(&key);
    }

    /// Cancels what waits, releases what is held.
    fn forget(&mut self, key: Key) {
        let Some(cell) = self.jobs.remove(&key) else {
            return;
        };
        let mut job = locked(&cell);
        if self.stage != Stage::Running || job.kind == Kind::Handle {
            return;
        }
        let over = job.over;
        let events = std::mem::take(&mut job.events);
        drop(job);
        if !over {
            self.step(ClientInput::Release(key));
        }
        for event in events {
            // A handle that nobody took: its lock would stay until its TTL.
            if let ClientEvent::Handle(_, handle, _) = event {
                let key = self.keys.next();
                self.step(ClientInput::Abandon(key, handle));
            }
        }
        self.send_soon();
    }

    /// Steps the machine. What was due before comes first: after a pause, a lock that ran out is
    /// known to be lost before anything else is done with it.
    pub(super) fn step(&mut self, input: ClientInput) {
        let now = clock::steady_now();
        self.wake_if_due(now);
        self.raw_step(now, input);
    }

    /// Tells the machine the time if it wanted to be woken by now.
    pub(super) fn wake_due(&mut self) {
        if self.machine.next_wake().is_some() {
            self.wake_if_due(clock::steady_now());
        }
    }

    fn wake_if_due(&mut self, now: Now) {
        let wake = self.machine.next_wake();
        if wake.is_some_and(|wake| wake.at <= now.mono) {
            self.raw_step(now, ClientInput::Wake);
        }
    }

    fn raw_step(&mut self, now: Now, input: ClientInput) {
        self.now = now.mono;
        let mut next = Some(input);
        while let Some(input) = next {
            let mut out = std::mem::take(&mut self.out);
            self.machine.handle(now, input, &mut out);
            for envelope in out.send_now.drain(..).chain(out.send_durable.drain(..)) {
                self.trace_sent(envelope.to, &envelope.message);
                self.send(envelope.to, &envelope.message);
            }
            for event in out.events.drain(..) {
                self.dispatch(event);
            }
            self.out = out;
            next = self.broken.pop().and_then(|(node, no, why)| {
                let known = self.drop_link(node, no, Some(why));
                known.then_some(ClientInput::Closed(node, no))
            });
        }
    }

    fn send(&mut self, node: NodeId, message: &Message) {
        let link = self.links.get_mut(node.index());
        let Some(writer) = link.and_then(|link| link.writer.as_mut()) else {
            return;
        };
        self.counters.sent += 1;
        if !writer.has_bytes() {
            self.dirty.push(node);
        }
        if !writer.push(message) {
            let why = format!("the node does not read: {OUT_MAX} bytes wait for it");
            let no = writer.no;
            self.broken.push((node, no, why));
        }
    }

    fn dispatch(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Connect(node, no) => {
                if let Some(link) = self.links.get_mut(node.index()) {
                    link.wanted = Some(no);
                    self.counters.connects += 1;
                    self.to_open.push((node, no));
                    self.wake_task = true;
                }
            }
            ClientEvent::Disconnect(node, no) => {
                let why = "the node did not answer in time".to_owned();
                self.drop_link(node, no, Some(why));
            }
            ClientEvent::Entered { key, .. }
            | ClientEvent::EnteredAll(key)
            | ClientEvent::Moved { key, .. }
            | ClientEvent::Position(key, _)
            | ClientEvent::Lost(key, _)
            | ClientEvent::Ended(key, _)
            | ClientEvent::Seen(key, _)
            | ClientEvent::Synced(key, _)
            | ClientEvent::Handle(key, ..) => self.tell(key, event),
        }
    }

    pub(super) fn tell(&mut self, key: Key, event: ClientEvent) {
        self.trace_told(key, &event);
        let lost = matches!(event, ClientEvent::Lost(..));
        self.counters.lost += u64::from(lost);
        let Some(cell) = self.jobs.get(&key) else {
            return;
        };
        let mut job = locked(cell);
        // After its last event the machine no longer knows the key.
        job.over |= matches!(event, ClientEvent::Ended(..)) || !self.machine.knows(key);
        if lost {
            job.lose();
        }
        let unheard = job.quiet && matches!(event, ClientEvent::Position(..));
        job.put(event);
        if !unheard {
            self.wakes.extend(job.waker.take());
        }
    }

    /// The connection to a node is open: greets, and lets the machine speak.
    pub(super) fn opened(&mut self, node: NodeId, no: ConnNo, writer: Writer) -> bool {
        let Some(link) = self.links.get_mut(node.index()) else {
            return false;
        };
        if link.wanted != Some(no) || self.stage != Stage::Running {
            return false;
        }
        link.writer = Some(writer);
        self.dirty.push(node);
        self.step(ClientInput::Opened(node, no));
        self.links[node.index()].wanted == Some(no)
    }

    /// The connection to a node ended or could not be opened.
    pub(super) fn closed(&mut self, node: NodeId, no: ConnNo, why: String) {
        if self.drop_link(node, no, Some(why)) {
            self.step(ClientInput::Closed(node, no));
        }
    }

    /// The same; `lasting` if trying again does not help.
    pub(super) fn failed(&mut self, node: NodeId, no: ConnNo, why: String, lasting: bool) {
        if lasting && self.is_current(node, no) {
            self.rejected(node, no, why, true);
        } else {
            self.closed(node, no, why);
        }
    }

    /// How long a node may take to accept a connection.
    pub(super) fn patience(&self) -> Duration {
        self.config.times.link_ttl
    }

    /// Whether messages of this connection still count.
    pub(super) fn is_current(&self, node: NodeId, no: ConnNo) -> bool {
        let link = self.links.get(node.index());
        link.is_some_and(|link| link.wanted == Some(no))
    }

    fn drop_link(&mut self, node: NodeId, no: ConnNo, why: Option<String>) -> bool {
        let Some(link) = self.links.get_mut(node.index()) else {
            return false;
        };
        if link.wanted != Some(no) {
            return false;
        }
        link.wanted = None;
        link.writer = None;
        link.ready = false;
        if let Some(why) = why {
            // What the node itself said tells more than that it then closed the connection.
            if !link.misfit {
                tracing::debug!(%node, %why, "connection ended");
                link.trouble = Some(why);
            }
        }
        self.counters.closed += 1;
        // The background task forgets the other half.
        self.wake_task = true;
        true
    }

    /// The node has accepted us.
    pub(super) fn accepted(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(node.index()) {
            link.ready = true;
            link.misfit = false;
            link.trouble = None;
        }
    }

    /// The node has refused us; `lasting` if trying again does not help.
    pub(super) fn rejected(&mut self, node: NodeId, no: ConnNo, why: String, lasting: bool) {
        if let Some(link) = self.links.get_mut(node.index()) {
            tracing::warn!(%node, %why, "the node refuses the connection");
            link.misfit = lasting;
            link.trouble = Some(why);
        }
        if self.drop_link(node, no, None) {
            self.step(ClientInput::Closed(node, no));
        }
        if lasting {
            self.judge();
        }
    }

    /// Whether so many nodes refuse us for good that no quorum is left.
    pub(super) fn is_hopeless(&self) -> bool {
        let mode = conclave_protocol::lock::Mode::Exclusive;
        let nodes = self.config.quorums.all();
        let fit = nodes.filter(|node| !self.links[node.index()].misfit);
        !self.config.quorums.served_by(&mode, fit)
    }

    /// Ends what waits; what is held goes on as long as it can.
    fn give_up(&mut self) {
        for key in self.takers() {
            self.raw_step(clock::steady_now(), ClientInput::Cancel(key));
        }
    }

    fn takers(&self) -> Vec<Key> {
        let jobs = self.jobs.iter();
        let takes = jobs.filter(|(_, cell)| locked(cell).kind != Kind::Handle);
        takes.map(|(key, _)| *key).collect()
    }

    /// Nodes that have accepted our present connection.
    pub(super) fn reachable(&self) -> Vec<NodeId> {
        let nodes = self.config.quorums.all();
        nodes
            .filter(|node| self.links[node.index()].ready)
            .collect()
    }

    /// What went wrong with each node that is not reachable, as far as it was tried.
    pub(super) fn troubles(&self) -> Vec<(NodeId, String)> {
        let nodes = self.config.quorums.all();
        nodes
            .filter_map(|node| Some((node, self.links[node.index()].trouble.clone()?)))
            .collect()
    }

    /// Writes what the system takes, one write per connection.
    pub(super) fn write_all(&mut self, mut cx: Option<&mut Context<'_>>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        if !dirty.is_empty() {
            self.written = self.now;
        }
        dirty.retain(|node| {
            let Some(writer) = self.links[node.index()].writer.as_mut() else {
                return false;
            };
            match writer.flush(cx.as_deref_mut(), &mut self.counters.writes) {
                Flushed::All => false,
                Flushed::Some => {
                    // The task alone is told when there is room again.
                    self.wake_task |= cx.is_none();
                    true
                }
                Flushed::Broken(error) => {
                    let no = writer.no;
                    self.broken.push((*node, no, error.to_string()));
                    false
                }
            }
        });
        // Nothing was sent meanwhile, so no node was added.
        self.dirty = dirty;
        while let Some((node, no, why)) = self.broken.pop() {
            self.closed(node, no, why);
        }
    }

    pub(super) fn has_bytes(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Sends what a caller has just put into the buffers, or leaves it to the task if several
    /// callers are about to do the same, or have just done so: each write wakes a node.
    pub(super) fn send_soon(&mut self) {
        if self.dirty.is_empty() || self.flush == Flush::Due {
            return;
        }
        let close = self.jobs.len() > 1 && self.now < self.written + CLOSE;
        if self.crowd > 1 || close {
            self.flush = Flush::Due;
            self.wake_soon = true;
        } else {
            self.flush = Flush::Free;
            self.wake_soon = false;
            self.nudge.spare();
            self.write_all(None);
        }
    }

    /// Sends what a caller has just put into the buffers together with what it says next, or when
    /// it lets others run: whoever leaves a lock often asks for one right away.
    pub(super) fn send_later(&mut self) {
        if !self.dirty.is_empty() && self.flush == Flush::Free {
            self.flush = Flush::Later;
            self.wake_soon = true;
        }
    }

    /// Sets the timer if the machine wants to be woken sooner than it rings.
    pub(super) fn arm(&mut self) {
        self.machine.skip_stale_timers();
        let Some(wake) = self.machine.next_wake() else {
            return;
        };
        if wake.at < self.armed {
            self.armed = wake.at;
            self.wake_task |= self.timer.arm(wake.at);
        }
    }

    /// The timer has rung: it must be set again.
    pub(super) fn rung(&mut self) {
        self.armed = Instant::FAR;
    }

    /// Ends everything that goes on and begins nothing new.
    pub(super) fn close(&mut self) {
        if self.stage != Stage::Running {
            return;
        }
        for key in self.takers() {
            // Whoever still uses it hears that it is gone before any node does.
            if let Some(cell) = self.jobs.get(&key) {
                let mut job = locked(cell);
                if !job.over {
                    job.lose();
                }
            }
            self.step(ClientInput::Release(key));
        }
        self.stage = Stage::Closing;
        self.wake_task = true;
    }

    /// Nothing more comes: whoever waits is told.
    pub(super) fn end(&mut self) {
        self.stage = Stage::Closed;
        for link in &mut self.links {
            *link = Link::default();
        }
        for cell in self.jobs.values() {
            let mut job = locked(cell);
            if !job.over {
                job.over = true;
                // Nobody renews it any more.
                job.lose();
            }
            self.wakes.extend(job.waker.take());
        }
    }

    /// Drops the writing sides: nodes see that we are done once they have read everything.
    pub(super) fn hang_up(&mut self) {
        for link in &mut self.links {
            link.writer = None;
        }
        self.dirty.clear();
    }
}
