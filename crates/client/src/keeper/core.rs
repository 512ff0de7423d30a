//! The machine with everything around it that callers and connections share.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use conclave_protocol::fault::Lie;
use conclave_protocol::id::{Key, NodeId};
use conclave_protocol::keeper::KeeperClient;
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::keeper::{Answer, Ask};
use conclave_protocol::lease::LeaseHandle;
use conclave_protocol::{Effects, Instant, Machine};
use conclave_wire::keeper::encode_ask;
use tokio::sync::Notify;

use crate::clock;
use crate::directory::Directory;
use crate::driver::timer::Timer;
use crate::fault::{Fault, catch};

/// The most bytes that wait for a node that does not read.
const OUT_MAX: usize = 32 << 20;

/// How long what was proposed may take to be finished when the driver closes: others would wait
/// for the lease under which it is ordered.
const DRAIN: Duration = Duration::from_secs(1);

/// The most kinds of trouble per node that are told in the log.
const LIES_TOLD: u64 = 3;

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that nodes have accepted.
    pub opened: u64,
    /// Connections that ended or were not made.
    pub closed: u64,
    /// Questions sent.
    pub sent: u64,
    /// Answers received.
    pub received: u64,
    /// Bytes sent, without TLS.
    pub bytes_sent: u64,
    /// Bytes received, without TLS.
    pub bytes_received: u64,
}

/// How far the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Nothing new is begun; what was proposed is still being finished, for a while.
    Draining,
    /// What was said is still being written.
    Closing,
}

/// What a caller waits for.
#[derive(Debug, Default)]
pub(super) struct JobState {
    events: VecDeque<ClientEvent>,
    waker: Option<Waker>,
    pub(super) over: bool,
    /// Until when its lease is held.
    end: Option<Instant>,
    /// How often its lease is renewed, and when next.
    keep: Option<(Duration, Instant)>,
}

impl JobState {
    pub(super) fn pop(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    fn put(&mut self, event: ClientEvent, now: Instant) {
        match &event {
            ClientEvent::Held { end, .. } | ClientEvent::Renewed { end, .. } => {
                self.end = Some(*end);
                if let Some((every, next)) = &mut self.keep {
                    *next = now + *every;
                }
            }
            ClientEvent::Done { .. }
            | ClientEvent::Read { .. }
            | ClientEvent::Refreshed { .. }
            | ClientEvent::Released { .. } => {
                self.over = true;
            }
            ClientEvent::Failed { .. } => {
                self.over = true;
                self.keep = None;
            }
            _ => {}
        }
        // Whoever watches wants the newest only.
        let changed = |event: &ClientEvent| matches!(event, ClientEvent::Changed { .. });
        if changed(&event) {
            self.events.retain(|waiting| !changed(waiting));
        }
        self.events.push_back(event);
    }
}

/// The connection to a node.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Whether the node has accepted us on the present connection.
    pub(super) open: bool,
    /// Whether it was tried at least once.
    tried: bool,
    /// Bytes that wait to be written.
    pub(super) out: Vec<u8>,
    /// Rung when there is something to write, or to connect for.
    pub(super) bell: Arc<Notify>,
    trouble: Option<String>,
    /// Whether the node refused us for a reason that does not pass by itself.
    misfit: bool,
    /// How often it was caught, by kind of lie.
    lies: [u64; Lie::ALL.len()],
}

/// The machine with everything around it.
#[derive(Debug)]
pub(super) struct Core {
    /// None after a fault, and once the cluster has another configuration.
    machine: Option<KeeperClient>,
    out: Effects<NodeId, Ask, (), ClientEvent>,
    pub(super) jobs: HashMap<Key, JobState>,
    last_key: u64,
    pub(super) links: Vec<Link>,
    pub(super) wakes: Vec<Waker>,
    timer: Arc<Timer>,
    armed: Instant,
    /// The task of the timer.
    pub(super) task: Option<Waker>,
    pub(super) wake_task: bool,
    pub(super) stage: Stage,
    /// When what is not finished is given up.
    drained: Instant,
    pub(super) counters: Counters,
    pub(super) unauthenticated: bool,
    /// So many nodes must take us in.
    needed: usize,
    fault: Arc<Fault>,
    directory: Directory,
    /// Whether the cluster has another configuration now.
    pub(super) outdated: bool,
}

impl Core {
    pub(super) fn new(
        machine: KeeperClient,
        nodes: usize,
        needed: usize,
        timer: Arc<Timer>,
        fault: Arc<Fault>,
        directory: Directory,
    ) -> Self {
        Self {
            machine: Some(machine),
            out: Effects::new(),
            jobs: HashMap::new(),
            last_key: 0,
            links: (0..nodes).map(|_| Link::default()).collect(),
            wakes: Vec::new(),
            timer,
            armed: Instant::FAR,
            task: None,
            wake_task: false,
            stage: Stage::Running,
            drained: Instant::FAR,
            counters: Counters::default(),
            unauthenticated: false,
            needed,
            fault,
            directory,
            outdated: false,
        }
    }

    /// The cluster has another configuration: what is held or wanted under the old one is lost.
    pub(super) fn leave(&mut self) {
        self.outdated = true;
        self.abandon();
    }

    /// Ends what waits if too few nodes are left, now that nobody knows better.
    pub(super) fn judge(&mut self) {
        if self.is_hopeless() && !self.directory.is_asking() {
            for job in self.jobs.values_mut() {
                job.over = true;
            }
            self.wake_all();
        }
    }

    /// Does something with the machine. If that panics, everything ends.
    pub(super) fn guard<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch(|| act(self));
        done.map_err(|words| self.fail(&words)).ok()
    }

    /// There is a fault in this program: nothing that the machine knew counts any more. Nodes see
    /// the connections close, and what they granted runs out.
    pub(super) fn fail(&mut self, words: &str) {
        self.fault.tell(words);
        self.abandon();
    }

    /// Ends everything without a word to the nodes.
    fn abandon(&mut self) {
        self.machine = None;
        self.out = Effects::new();
        for job in self.jobs.values_mut() {
            (job.over, job.end, job.keep) = (true, None, None);
        }
        for link in &mut self.links {
            link.open = false;
            link.out = Vec::new();
        }
        self.wake_all();
        self.shut();
    }

    /// Begins something; its events are told under the key.
    pub(super) fn begin(&mut self, command: Command) -> Key {
        self.last_key += 1;
        let key = Key(self.last_key);
        // Whoever refuses us may not do so any more once it is known what the cluster is now.
        let hopeless = self.is_hopeless() && !self.directory.is_asking();
        let runs = self.stage == Stage::Running && !hopeless;
        let state = JobState {
            over: !runs,
            ..JobState::default()
        };
        self.jobs.insert(key, state);
        if runs {
            self.step(ClientInput::Do(key, command));
            // Nodes that were given up while nothing was wanted are tried again.
            self.ring();
        }
        key
    }

    /// A job of which nothing is told, for whoever waits for connections.
    pub(super) fn begin_idle(&mut self) -> Key {
        self.last_key += 1;
        let key = Key(self.last_key);
        self.jobs.insert(key, JobState::default());
        self.ring();
        key
    }

    fn ring(&self) {
        for link in self.links.iter().filter(|link| !link.open) {
            link.bell.notify_one();
        }
    }

    /// Whether connections are worth having.
    pub(super) fn wanted(&self) -> bool {
        self.stage == Stage::Running && !self.jobs.is_empty()
    }

    /// Steps the machine; what was due before comes first.
    pub(super) fn step(&mut self, input: ClientInput) {
        self.wake_due();
        self.raw_step(input);
    }

    /// Does what is due by the clock: the machine's timers, and renewals.
    pub(super) fn wake_due(&mut self) {
        let now = clock::now().mono;
        if self.stage == Stage::Draining && self.drained <= now {
            self.shut();
        }
        if self.next_wake().is_some_and(|at| at <= now) {
            self.raw_step(ClientInput::Wake);
        }
        let due: Vec<Key> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.keep.is_some_and(|(_, next)| next <= now))
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            if let Some(job) = self.jobs.get_mut(&key) {
                let over = job.end.is_some_and(|end| end <= now);
                // A renewal that is not answered is tried again well before the end.
                let again = |(every, _)| (every, now + every / 4);
                job.keep = job.keep.filter(|_| !over).map(again);
                if !over {
                    self.raw_step(ClientInput::Renew(key));
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        Some(self.machine.as_ref()?.next_wake()?.at)
    }

    fn is_idle(&self) -> bool {
        self.machine.as_ref().is_none_or(KeeperClient::is_idle)
    }

    fn raw_step(&mut self, input: ClientInput) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let mut out = std::mem::take(&mut self.out);
        let now = clock::now();
        machine.handle(now, input, &mut out);
        for envelope in out.send_now.drain(..).chain(out.send_durable.drain(..)) {
            self.send(envelope.to, &envelope.message);
        }
        for event in out.events.drain(..) {
            self.tell(event, now.mono);
        }
        self.out = out;
        if self.stage == Stage::Draining && self.is_idle() {
            self.shut();
        }
    }

    fn send(&mut self, node: NodeId, ask: &Ask) {
        let Some(link) = self.links.get_mut(node.index()).filter(|link| link.open) else {
            return;
        };
        if let Err(error) = encode_ask(ask, &mut link.out) {
            tracing::warn!(%node, %error, "a question is too long and was not sent");
            return;
        }
        self.counters.sent += 1;
        link.bell.notify_one();
    }

    fn tell(&mut self, event: ClientEvent, now: Instant) {
        let key = match &event {
            ClientEvent::Held { key, .. }
            | ClientEvent::Renewed { key, .. }
            | ClientEvent::NotRenewed { key }
            | ClientEvent::Released { key }
            | ClientEvent::Done { key, .. }
            | ClientEvent::Read { key, .. }
            | ClientEvent::Changed { key, .. }
            | ClientEvent::Refreshed { key, .. }
            | ClientEvent::Failed { key, .. } => *key,
            ClientEvent::Lied { node, lie } => return self.lied(*node, *lie),
        };
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.put(event, now);
        self.wakes.extend(job.waker.take());
    }

    fn lied(&mut self, node: NodeId, lie: Lie) {
        let Some(link) = self.links.get_mut(node.index()) else {
            return;
        };
        let place = Lie::ALL.iter().position(|one| *one == lie);
        let Some(count) = place.and_then(|place| link.lies.get_mut(place)) else {
            return;
        };
        *count = count.saturating_add(1);
        if *count <= LIES_TOLD {
            tracing::warn!(%node, lie = lie.name(), "a node differs from enough others");
        }
    }

    /// How often each node was seen to differ from enough others, and how.
    pub(super) fn lies(&self) -> Vec<(NodeId, Lie, u64)> {
        let each = |(at, link): (usize, &Link)| {
            let counts = Lie::ALL.into_iter().zip(link.lies);
            let some = counts.filter(|(_, count)| *count > 0);
            some.map(move |(lie, count)| (NodeId::at(at), lie, count))
                .collect::<Vec<_>>()
        };
        self.links.iter().enumerate().flat_map(each).collect()
    }

    /// What a caller is told next.
    pub(super) fn poll(
        &mut self,
        key: Key,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<ClientEvent>> {
        use std::task::Poll;
        self.wake_due();
        let Some(job) = self.jobs.get_mut(&key) else {
            return Poll::Ready(None);
        };
        if let Some(event) = job.pop() {
            return Poll::Ready(Some(event));
        }
        if job.over {
            return Poll::Ready(None);
        }
        job.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Until when a lease is held; none once that time has passed.
    pub(super) fn held_until(&self, key: Key) -> Option<Instant> {
        let job = self.jobs.get(&key)?;
        let end = job.end.filter(|_| self.stage == Stage::Running)?;
        (end > clock::now().mono).then_some(end)
    }

    /// What renews and releases a lease elsewhere; none if it is not held.
    pub(super) fn lease_handle(&self, key: Key) -> Option<LeaseHandle> {
        self.held_until(key)?;
        self.machine.as_ref()?.lease_handle(key)
    }

    /// From now on a lease is renewed, so often.
    pub(super) fn keep(&mut self, key: Key, every: Duration) {
        let next = clock::now().mono + every;
        if let Some(job) = self.jobs.get_mut(&key) {
            job.keep = Some((every, next));
        }
    }

    /// The node has accepted us.
    pub(super) fn opened(&mut self, node: NodeId) {
        let Some(link) = self.links.get_mut(node.index()) else {
            return;
        };
        link.open = true;
        link.tried = true;
        link.misfit = false;
        link.trouble = None;
        link.out.clear();
        self.unauthenticated = false;
        self.counters.opened += 1;
        self.step(ClientInput::Opened(node));
        self.wake_all();
    }

    /// A connection ended, or was not made; `lasting` if trying again does not help.
    pub(super) fn closed(&mut self, node: NodeId, why: String, lasting: bool) {
        let Some(link) = self.links.get_mut(node.index()) else {
            return;
        };
        let was_open = std::mem::take(&mut link.open);
        link.tried = true;
        link.misfit = lasting;
        link.out = Vec::new();
        tracing::debug!(%node, %why, "no connection for leases and objects");
        link.trouble = Some(why);
        self.counters.closed += 1;
        if was_open {
            self.step(ClientInput::Closed(node));
        }
        if lasting {
            self.judge();
        }
        self.wake_all();
    }

    /// Callers look again at what has changed.
    fn wake_all(&mut self) {
        for job in self.jobs.values_mut() {
            self.wakes.extend(job.waker.take());
        }
    }

    /// What a node says.
    pub(super) fn heard(&mut self, node: NodeId, answer: Answer) {
        self.counters.received += 1;
        self.step(ClientInput::Heard(node, answer));
    }

    /// Whether a node that does not read is to be left.
    pub(super) fn is_stuck(&self, node: NodeId) -> bool {
        let link = self.links.get(node.index());
        link.is_some_and(|link| link.out.len() > OUT_MAX)
    }

    /// Whether so many nodes refuse us for good that too few are left.
    pub(super) fn is_hopeless(&self) -> bool {
        self.links.iter().filter(|link| !link.misfit).count() < self.needed
    }

    /// Whether enough nodes have taken us in, or all have been tried.
    pub(super) fn is_settled(&self) -> bool {
        self.reachable() >= self.needed || self.links.iter().all(|link| link.open || link.tried)
    }

    /// How many nodes have taken us in.
    pub(super) fn reachable(&self) -> usize {
        self.links.iter().filter(|link| link.open).count()
    }

    /// What went wrong with each node that is not reachable.
    pub(super) fn troubles(&self) -> Vec<(NodeId, String)> {
        let links = self.links.iter().enumerate();
        links
            .filter_map(|(at, link)| Some((NodeId::at(at), link.trouble.clone()?)))
            .collect()
    }

    /// Sets the timer to whatever is due first.
    pub(super) fn arm(&mut self) {
        let machine = self.next_wake();
        let keeps = self.jobs.values().filter_map(|job| Some(job.keep?.1));
        let next = machine.into_iter().chain(keeps).min();
        let next = next.unwrap_or(Instant::FAR).min(self.drained);
        if next != self.armed {
            self.armed = next;
            self.wake_task |= self.timer.arm(next);
        }
    }

    /// The timer has rung.
    pub(super) fn rung(&mut self) {
        self.armed = Instant::ZERO;
        self.wake_due();
    }

    /// Ends everything; what nodes must hear of it is written before the connections close.
    pub(super) fn close(&mut self) {
        if self.stage != Stage::Running {
            return;
        }
        let mut keys: Vec<Key> = self.jobs.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.step(ClientInput::End(key));
        }
        self.stage = Stage::Draining;
        self.drained = clock::now().mono + DRAIN;
        for job in self.jobs.values_mut() {
            job.over = true;
        }
        self.wake_all();
        if self.is_idle() || self.reachable() == 0 {
            self.shut();
        }
        self.ring();
    }

    /// The connections close once everything is written.
    pub(super) fn shut(&mut self) {
        self.stage = Stage::Closing;
        self.drained = Instant::FAR;
        for link in &self.links {
            link.bell.notify_one();
        }
        self.wake_task = true;
    }
}
