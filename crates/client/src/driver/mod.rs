//! Drives a client machine on a tokio runtime: sockets, timers and callers around
//! [`LockClient`]. The public API and the gateways of nodes are built on it.
//!
//! Callers step the machine themselves, under one lock, and write to the sockets themselves when
//! they are alone; one background task reads, keeps the time and opens connections.

mod conn;
mod core;
mod job;
mod nudge;
mod sights;
mod task;
#[cfg(test)]
mod tests;
pub(crate) mod timer;
mod traced;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::task::Context;

use conclave_protocol::Instant;
use conclave_protocol::id::{ClientId, GrantNo, Key, Name, NodeId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEvent, ClientInput, Config, Handle, LockClient, NodeHealth, Watch,
};
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use tokio::sync::Notify;

pub use self::core::Counters;
use self::core::{Core, Stage};
use self::job::{Cell, JobState, Keys, Kind, Told, Wish, locked};
use crate::clock;
use crate::dial::Hello;
use crate::directory::{Directory, Sources};
use crate::fault::Fault;
use crate::secure::Security;
use crate::trace::Caller;
use nudge::Nudge;
use task::{Settings, Task};
use timer::Timer;

/// A running client machine. Clones share it; it ends when the last clone and the last job are
/// gone, and tells the nodes what it still held.
#[derive(Clone, Debug)]
pub struct Driver {
    owned: Arc<Owned>,
}

/// One piece of work for the machine.
#[derive(Clone, Debug)]
pub enum Work {
    /// Take a lock.
    Acquire(Acquire),
    /// Take several locks, all or none.
    AcquireAll(Vec<Acquire>),
    /// Take any one of several locks.
    AcquireAny(Vec<Acquire>),
    /// Renew a handle, in the name of this principal.
    Keep(Box<Handle>, Arc<str>),
    /// Release a handle.
    Finish(Box<Handle>),
    /// Give up a handle that its caller never received.
    Abandon(Box<Handle>),
    /// Watch locks.
    Watch(Watch),
}

impl Driver {
    /// Starts a client of this cluster on the current tokio runtime, which must have its I/O and
    /// time enabled. No connection is opened before it is needed. `owner` is the label that its
    /// sessions carry.
    pub fn spawn(cluster: &Cluster, owner: &str) -> Result<Self, ClusterError> {
        Self::spawn_with(cluster, owner, Security::default())
    }

    /// The same, showing and believing what `security` says.
    pub fn spawn_with(
        cluster: &Cluster,
        owner: &str,
        security: Security,
    ) -> Result<Self, ClusterError> {
        Self::spawn_at(cluster, owner, security, None)
    }

    /// The same, asking this node first if a hierarchy serves the locks.
    pub fn spawn_at(
        cluster: &Cluster,
        owner: &str,
        security: Security,
        home: Option<NodeId>,
    ) -> Result<Self, ClusterError> {
        let directory = Directory::new(cluster, Sources::default(), &security);
        Self::spawn_in(directory, owner, security, home)
    }

    /// The same, of the cluster that is known there.
    pub(crate) fn spawn_in(
        directory: Directory,
        owner: &str,
        security: Security,
        home: Option<NodeId>,
    ) -> Result<Self, ClusterError> {
        let cluster = directory.cluster();
        cluster.check()?;
        let config = Arc::new(configured(&cluster, home)?);
        let mut owner = owner;
        while owner.len() > config.limits.owner_bytes {
            let cut = owner.char_indices().next_back().map_or(0, |(at, _)| at);
            owner = &owner[..cut];
        }
        let id = ClientId(random());
        let seed = random() as u64;
        let machine = LockClient::new(config.clone(), id, seed).with_owner(owner);
        let hello = hello(&cluster, &security);
        let timer = Arc::new(Timer::new());
        let keys = Arc::new(Keys::default());
        let nudge = Arc::new(Nudge::default());
        let fault = Arc::new(Fault::default());
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(
                machine,
                config.clone(),
                timer.clone(),
                nudge.clone(),
                keys.clone(),
                fault.clone(),
                directory.clone(),
            )),
            keys,
            posted: Mutex::default(),
            waiting: AtomicUsize::new(0),
            timer,
            nudge,
            ended: Notify::new(),
            fault,
            config: RwLock::new(config),
        });
        let settings = Settings {
            directory,
            security,
            home,
            owner: owner.into(),
        };
        let task = Task::new(shared.clone(), hello, settings);
        // Its turns are bounded by themselves.
        tokio::spawn(tokio::task::unconstrained(task));
        Ok(Self {
            owned: Arc::new(Owned { shared }),
        })
    }

    /// What the machine runs with now.
    pub fn config(&self) -> Arc<Config> {
        self.owned.shared.config()
    }

    /// Begins a piece of work. Nothing blocks; the machine is told at once, by whoever has it.
    pub fn begin(&self, work: Work) -> Job {
        self.begin_for(work, Caller::current())
    }

    /// As [`Driver::begin`], for a caller elsewhere; a trace of the work links to it.
    pub fn begin_for(&self, work: Work, caller: Caller) -> Job {
        self.begin_job(work, caller, false)
    }

    /// As [`Driver::begin`], for a caller that is not woken to hear its place in the queue: it
    /// finds the last one among what it is told when something else happens.
    pub(crate) fn begin_quietly(&self, work: Work) -> Job {
        self.begin_job(work, Caller::current(), true)
    }

    fn begin_job(&self, work: Work, caller: Caller, quiet: bool) -> Job {
        let kind = match work {
            Work::Acquire(_) | Work::AcquireAll(_) | Work::AcquireAny(_) => Kind::Take,
            Work::Watch(_) => Kind::Watch,
            Work::Keep(..) | Work::Finish(_) | Work::Abandon(_) => Kind::Handle,
        };
        let key = self.owned.shared.keys.next();
        let mut state = JobState::new(kind);
        state.quiet = quiet;
        state.trace = traced::begin(&work, caller);
        let cell = Arc::new(Mutex::new(state));
        let wish = Wish::Begin(key, cell.clone(), work);
        self.owned.shared.post(wish);
        Job {
            key,
            cell,
            owned: self.owned.clone(),
            left: false,
        }
    }

    /// The nodes that have accepted our present connections.
    pub fn reachable(&self) -> Vec<NodeId> {
        self.owned.shared.with(|core| core.reachable())
    }

    /// What went wrong last with nodes that are not reachable, as far as they were needed.
    pub fn troubles(&self) -> Vec<(NodeId, String)> {
        self.owned.shared.with(|core| core.troubles())
    }

    /// Whether so many nodes refuse this client for good (another configuration, another version)
    /// that no quorum is left. What waits is then cancelled.
    pub fn is_hopeless(&self) -> bool {
        self.owned.shared.with(|core| core.is_hopeless())
    }

    /// Whether nodes refuse this client because it has not shown who it is.
    pub fn is_unauthenticated(&self) -> bool {
        self.owned.shared.with(|core| core.unauthenticated)
    }

    /// How the nodes look from here.
    pub fn nodes(&self) -> Vec<NodeHealth> {
        self.owned.shared.with(|core| core.machine.nodes())
    }

    /// What has been counted since the start.
    pub fn counters(&self) -> Counters {
        self.owned.shared.with(|core| core.counters)
    }

    /// What a panic of the machine said, if one closed this client.
    pub fn fault(&self) -> Option<Arc<str>> {
        self.owned.shared.fault.told()
    }

    /// Waits until a panic of the machine closes this client, and tells what it said; none if the
    /// client ends without.
    pub fn failed(&self) -> impl Future<Output = Option<Arc<str>>> + Send + use<> {
        self.owned.shared.fault.wait()
    }

    /// Panics as a fault in the machine would.
    #[cfg(test)]
    pub(crate) fn provoke(&self) {
        self.owned.shared.with(|_| -> () { panic!("provoked") });
    }

    /// How many requests wait or hold.
    pub fn live(&self) -> usize {
        self.owned.shared.with(|core| core.machine.live())
    }

    /// Releases and cancels everything, waits until the nodes have heard it, a second at most,
    /// and ends. Work begun later ends at once.
    pub async fn close(&self) {
        let shared = &self.owned.shared;
        let mut ended = std::pin::pin!(shared.ended.notified());
        ended.as_mut().enable();
        let over = shared.with(|core| {
            core.close();
            core.stage == Stage::Closed
        });
        if !over {
            ended.await;
        }
    }
}

/// A piece of work under way. Dropping it cancels what waits and releases what is held, without
/// blocking; work on a handle goes on unheard.
#[derive(Debug)]
pub struct Job {
    key: Key,
    cell: Cell,
    owned: Arc<Owned>,
    /// Whether the caller has left: nothing is to be done any more.
    left: bool,
}

impl Job {
    /// The key of the machine for it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// What the machine tells about it next; none once it has ended. Cancelling the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Told {
        if let Ok(told) = locked(&self.cell).look_now(self.key, cx) {
            return told;
        }
        // After a pause, what was lost meanwhile is known before what was won is told.
        self.owned.shared.with(Core::wake_due);
        locked(&self.cell).look(self.key, cx)
    }

    /// What the machine has told already, without waiting.
    pub fn try_next(&self) -> Option<ClientEvent> {
        if let Ok(event) = locked(&self.cell).pop_now(self.key) {
            return event;
        }
        self.owned.shared.with(Core::wake_due);
        locked(&self.cell).pop(self.key)
    }

    /// Stops waiting; the last event says how it ended (it may have entered just before).
    pub fn cancel(&self) {
        self.tell(ClientInput::Cancel(self.key));
    }

    /// Leaves the lock, or all locks taken together.
    pub fn release(&self) {
        self.tell(ClientInput::Release(self.key));
    }

    /// Leaves the lock, or all locks taken together, and says which of these was lost before, if
    /// one was. The nodes are told together with what the caller says next, or as soon as it lets
    /// other tasks run.
    pub(crate) fn leave<'a>(mut self, names: impl Iterator<Item = &'a Name>) -> Option<&'a Name> {
        self.left = true;
        if self.surely_holds() {
            self.owned.shared.post(Wish::Leave(self.key));
            return None;
        }
        let mut names = names.peekable();
        let first = names.peek().copied();
        let left = self.owned.shared.with(|core| {
            core.wake_due();
            let lost = names.find(|name| core.held_until(self.key, name).is_none());
            core.leave(self.key);
            Some(lost)
        });
        // After a panic nothing is held.
        left.unwrap_or(first)
    }

    fn surely_holds(&self) -> bool {
        locked(&self.cell).surely_holds()
    }

    /// Changes what others may read about the holder.
    pub fn note(&self, note: Arc<[u8]>) {
        self.tell(ClientInput::Note(self.key, note));
    }

    fn tell(&self, input: ClientInput) {
        self.owned.shared.with(|core| {
            if core.stage == Stage::Running {
                core.step(input);
                core.send_soon();
            }
        });
    }

    /// Until when the lock is held if no node is heard from again; none if it is not held.
    pub fn held_until(&self, name: &Name) -> Option<Instant> {
        self.owned.shared.with(|core| {
            core.wake_due();
            core.held_until(self.key, name)
        })
    }

    /// The token of a held lock and the fresh grants it rests on now.
    pub fn held(&self, name: &Name) -> Option<(Token, Vec<(NodeId, GrantNo)>)> {
        self.owned.shared.with(|core| {
            core.wake_due();
            core.held_until(self.key, name)?;
            core.machine.held(self.key, name, clock::now().mono)
        })
    }

    /// Whether a lock is held right now, by the clock.
    pub(crate) fn holds(&self, name: &Name) -> bool {
        self.surely_holds() || self.held_until(name).is_some()
    }

    /// Ends when a lock of this job is lost; at once if one is lost already. A job that ends
    /// otherwise never ends it.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        self.owned.shared.with(Core::wake_due);
        let alarm = locked(&self.cell).alarm();
        async move { alarm.heard().await }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        self.owned.shared.post(Wish::Drop(self.key));
    }
}

/// What the clones of a driver and its jobs own together: when it goes, the driver closes.
#[derive(Debug)]
struct Owned {
    shared: Arc<Shared>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.shared.with(Core::close);
    }
}

/// What callers and the background task share.
#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    keys: Arc<Keys>,
    /// Wishes of callers that found the core taken, in order, and how many there are.
    posted: Mutex<Vec<Wish>>,
    waiting: AtomicUsize,
    timer: Arc<Timer>,
    nudge: Arc<Nudge>,
    ended: Notify,
    fault: Arc<Fault>,
    config: RwLock<Arc<Config>>,
}

impl Shared {
    fn config(&self) -> Arc<Config> {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something with the core, then wakes whoever has something to do. If it panics, the
    /// client is closed, everyone is told, and nothing comes of it.
    fn with<T: Default>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        // Panics are caught while it is taken: it is never poisoned.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.take_posted(&mut core);
        let done = core.guard(act);
        self.finish(core);
        done
    }

    /// Does what a caller wants, or leaves it to whoever has the core: many callers at once would
    /// else wait for each other, and each wait costs more than what it waits for.
    fn post(&self, wish: Wish) {
        if let Some(mut core) = self.free_core() {
            self.take_posted(&mut core);
            core.guard(|core| core.grant(wish));
            self.finish(core);
            return;
        }
        {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            posted.push(wish);
            // Counted before we look whether the core is still taken: whoever gives it back looks
            // at the count afterwards, so one of us sees the other.
            self.waiting.store(posted.len(), Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if let Some(core) = self.free_core() {
            self.finish(core);
        }
    }

    /// The core, if nobody has it.
    fn free_core(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does what was posted so far. It comes before anything that is wanted later.
    fn take_posted(&self, core: &mut Core) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let posted = {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(0, Ordering::SeqCst);
            std::mem::take(&mut *posted)
        };
        for wish in posted {
            core.guard(|core| core.grant(wish));
        }
    }

    /// Gives the core back, when nothing is posted any more, and wakes whoever has something to
    /// do.
    fn finish<'a>(&'a self, mut core: MutexGuard<'a, Core>) {
        loop {
            self.take_posted(&mut core);
            core.guard(Core::arm);
            let wakes = std::mem::take(&mut core.wakes);
            let soon = std::mem::take(&mut core.wake_soon);
            let task = std::mem::take(&mut core.wake_task)
                .then(|| core.task.clone())
                .flatten();
            drop(core);
            // Whoever is woken finds the lock free.
            match task {
                Some(task) => task.wake(),
                None if soon => self.nudge.ask(),
                None => {}
            }
            wakes.into_iter().for_each(std::task::Waker::wake);
            fence(Ordering::SeqCst);
            if self.waiting.load(Ordering::SeqCst) == 0 {
                return;
            }
            // Whoever has it now looks after its own work.
            let Some(free) = self.free_core() else {
                return;
            };
            core = free;
        }
    }
}

/// What a client of a cluster runs with.
fn configured(cluster: &Cluster, home: Option<NodeId>) -> Result<Config, ClusterError> {
    let mut config = cluster.config()?;
    let home = home.filter(|home| config.gate.is_some() && home.index() < cluster.nodes.len());
    if let Some(home) = home {
        config.quorums = config.quorums.with_home(home);
    }
    Ok(config)
}

/// What it says of itself.
fn hello(cluster: &Cluster, security: &Security) -> Hello {
    let bearer = security.bearer();
    Hello::new(random(), cluster.digest(), cluster.facts(), bearer)
}

/// A random number of the system.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // The standard library keys its hash tables from the same source, with fallbacks.
        for half in bytes.chunks_mut(8) {
            let word = RandomState::new().build_hasher().finish();
            half.copy_from_slice(&word.to_le_bytes());
        }
    }
    u128::from_le_bytes(bytes)
}
