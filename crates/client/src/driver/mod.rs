//! Drives a client machine on a tokio runtime: sockets, timers and callers around
//! [`LockClient`]. The public API and the gateways of nodes are built on it.
//!
//! Callers step the machine themselves, under one lock, and write to the sockets themselves when
//! they are alone; one background task reads, keeps the time and opens connections.

mod conn;
mod core;
mod sights;
mod task;
pub(crate) mod timer;
mod traced;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use conclave_protocol::Instant;
use conclave_protocol::id::{ClientId, GrantNo, Key, Name, NodeId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEvent, ClientInput, Config, Group, Handle, LockClient, NodeHealth, Watch,
};
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use tokio::sync::Notify;

pub use self::core::Counters;
use self::core::{Core, JobState, Kind, Stage};
use crate::clock;
use crate::dial::Hello;
use crate::secure::Security;
use crate::trace::Caller;
use task::Task;
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
        cluster.check()?;
        let mut config = cluster.config()?;
        if let Some(home) = home.filter(|_| config.gate.is_some()) {
            config.quorums = config.quorums.with_home(home);
        }
        let config = Arc::new(config);
        let mut owner = owner;
        while owner.len() > config.limits.owner_bytes {
            let cut = owner.char_indices().next_back().map_or(0, |(at, _)| at);
            owner = &owner[..cut];
        }
        let id = ClientId(random());
        let seed = random() as u64;
        let machine = LockClient::new(config.clone(), id, seed).with_owner(owner);
        let mut peers = vec![Arc::from(""); cluster.nodes.len()];
        for node in &cluster.nodes {
            if let Some(peer) = peers.get_mut(node.node().index()) {
                *peer = Arc::from(node.peer.as_str());
            }
        }
        let hello = Hello::new(
            random(),
            config.id.digest,
            cluster.facts(),
            security.bearer(),
        );
        let timer = Arc::new(Timer::new());
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(machine, config.clone(), timer.clone())),
            timer,
            ended: Notify::new(),
            config,
        });
        let patience = shared.config.times.link_ttl;
        let task = Task::new(shared.clone(), hello, peers, security, patience);
        // Its turns are bounded by themselves.
        tokio::spawn(tokio::task::unconstrained(task));
        Ok(Self {
            owned: Arc::new(Owned { shared }),
        })
    }

    /// What the machine runs with.
    pub fn config(&self) -> &Arc<Config> {
        &self.owned.shared.config
    }

    /// Begins a piece of work. Nothing blocks; the machine is told at once.
    pub fn begin(&self, work: Work) -> Job {
        self.begin_for(work, Caller::current())
    }

    /// As [`Driver::begin`], for a caller elsewhere; a trace of the work links to it.
    pub fn begin_for(&self, work: Work, caller: Caller) -> Job {
        let kind = match work {
            Work::Acquire(_) | Work::AcquireAll(_) | Work::AcquireAny(_) => Kind::Take,
            Work::Watch(_) => Kind::Watch,
            Work::Keep(..) | Work::Finish(_) | Work::Abandon(_) => Kind::Handle,
        };
        let key = self.owned.shared.with(|core| {
            let key = core.new_key();
            let mut state = JobState::new(kind);
            state.trace = traced::begin(&work, caller);
            state.over = core.stage != Stage::Running;
            let runs = !state.over;
            core.jobs.insert(key, state);
            if runs {
                core.step(match work {
                    Work::Acquire(wish) => ClientInput::Acquire(key, wish),
                    Work::AcquireAll(wishes) => ClientInput::AcquireAll(key, wishes),
                    Work::AcquireAny(wishes) => ClientInput::AcquireAny(key, wishes),
                    Work::Keep(handle, principal) => ClientInput::Keep(key, handle, principal),
                    Work::Finish(handle) => ClientInput::Finish(key, handle),
                    Work::Abandon(handle) => ClientInput::Abandon(key, handle),
                    Work::Watch(what) => ClientInput::Watch(key, what),
                });
                core.send_soon();
            }
            key
        });
        Job {
            key,
            owned: self.owned.clone(),
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
    owned: Arc<Owned>,
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

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<ClientEvent>> {
        self.owned.shared.with(|core| {
            // After a pause, what was lost meanwhile is known before what was won is told.
            core.wake_due();
            let Some(job) = core.jobs.get_mut(&self.key) else {
                return Poll::Ready(None);
            };
            if let Some(event) = job.pop(self.key) {
                return Poll::Ready(Some(event));
            }
            if job.over {
                return Poll::Ready(None);
            }
            if !job
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                job.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// What the machine has told already, without waiting.
    pub fn try_next(&self) -> Option<ClientEvent> {
        self.owned.shared.with(|core| {
            core.wake_due();
            core.jobs.get_mut(&self.key)?.pop(self.key)
        })
    }

    /// Stops waiting; the last event says how it ended (it may have entered just before).
    pub fn cancel(&self) {
        self.tell(ClientInput::Cancel(self.key));
    }

    /// Leaves the lock, or all locks taken together.
    pub fn release(&self) {
        self.tell(ClientInput::Release(self.key));
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

    /// The group that the request belongs to, while it lives: what a fence compares.
    pub fn group(&self, name: &Name) -> Option<Group> {
        self.owned.shared.with(|core| {
            let ask = core.machine.ask(self.key, name);
            ask.map(|ask| ask.group())
        })
    }

    /// Ends when a lock of this job is lost; at once if one is lost already. A job that ends
    /// otherwise never ends it.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let alarm = self.owned.shared.with(|core| {
            core.wake_due();
            core.jobs.get_mut(&self.key).map(JobState::alarm)
        });
        async move {
            match alarm {
                Some(alarm) => alarm.heard().await,
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.owned.shared.with(|core| {
            let Some(job) = core.jobs.remove(&self.key) else {
                return;
            };
            if core.stage != Stage::Running || job.kind == Kind::Handle {
                return;
            }
            if !job.over {
                core.step(ClientInput::Release(self.key));
            }
            for event in job.events {
                // A handle that nobody took: its lock would stay until its TTL.
                if let ClientEvent::Handle(_, handle, _) = event {
                    let key = core.new_key();
                    core.step(ClientInput::Abandon(key, handle));
                }
            }
            core.send_soon();
        });
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
    timer: Arc<Timer>,
    ended: Notify,
    config: Arc<Config>,
}

impl Shared {
    /// Does something with the core, then wakes whoever has something to do.
    fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut core);
        core.arm();
        let wakes = std::mem::take(&mut core.wakes);
        let task = std::mem::take(&mut core.wake_task)
            .then(|| core.task.clone())
            .flatten();
        drop(core);
        // Whoever is woken finds the lock free.
        task.into_iter()
            .chain(wakes)
            .for_each(std::task::Waker::wake);
        done
    }
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
