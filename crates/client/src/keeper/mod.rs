//! Drives the client's machine for leases and objects on a tokio runtime: connections of their
//! own to every node, timers and callers around [`KeeperClient`].
//!
//! The guards and handles of the public API are built on it: [`LeaseGuard`](crate::LeaseGuard),
//! [`Object`] and its kinds.

mod core;
pub(crate) mod error;
pub(crate) mod handles;
pub(crate) mod lease;
mod link;
pub(crate) mod object;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::fault::Lie;
use conclave_protocol::id::{ClientId, Key, Name, NodeId};
use conclave_protocol::keeper::KeeperClient;
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::lease::{LeaseConfig, LeaseHandle};
use conclave_protocol::object::ObjectConfig;
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use tokio::sync::{Notify, watch};

pub use self::core::Counters;
use self::core::{Core, Stage};
use self::error::{LeaseError, Trouble};
use self::lease::LeaseRequest;
use self::object::{Handle, Object};
use crate::client::Client;
use crate::dial::Hello;
use crate::directory::{Directory, Sources};
use crate::driver::timer::Timer;
use crate::fault::Fault;
use crate::secure::Security;

/// How long connections may take before something is begun without them.
const SETTLE: Duration = Duration::from_secs(1);

/// The key of no job.
const NOTHING: Key = Key(0);

/// A running machine for leases and objects. Clones share it; it ends when the last clone and the
/// last job are gone, and gives back what it still held.
#[derive(Clone, Debug)]
pub struct Keeper {
    owned: Arc<Owned>,
}

impl Keeper {
    /// Starts a client of this cluster on the current tokio runtime, which must have its I/O and
    /// time enabled. No connection is opened before it is needed.
    pub fn spawn(cluster: &Cluster, security: &Security) -> Result<Self, ClusterError> {
        let directory = Directory::new(cluster, Sources::default(), security);
        Self::spawn_in(&directory, security)
    }

    /// The same, of the cluster that is known there. It ends when that has another configuration.
    pub(crate) fn spawn_in(
        directory: &Directory,
        security: &Security,
    ) -> Result<Self, ClusterError> {
        let known = directory.follow();
        let cluster = &*directory.cluster();
        cluster.check()?;
        let lease = Arc::new(cluster.lease_config()?);
        let objects = cluster.object_config()?.map(Arc::new);
        let nodes = cluster.nodes.len();
        let machine = KeeperClient::new(lease.clone(), objects.clone(), id(), seed());
        let timer = Arc::new(Timer::new());
        let needed = lease.faults.free();
        let fault = Arc::new(Fault::default());
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(
                machine,
                nodes,
                needed,
                timer.clone(),
                fault.clone(),
                directory.clone(),
            )),
            timer,
            fault,
            links: AtomicUsize::new(nodes),
            ended: Notify::new(),
            lease,
            objects,
        });
        let process = random();
        let digest = cluster.shared_config()?.id.digest;
        for node in &cluster.nodes {
            let id = node.node();
            let hello = Hello::new(process, digest, cluster.facts(), security.bearer_for(id));
            let dialler = link::Dialler {
                node: id,
                directory: directory.clone(),
                security: security.clone(),
                hello: Arc::new(hello),
            };
            let shared = shared.clone();
            tokio::spawn(async move {
                // Also when the runtime ends: nobody waits for a connection that is gone.
                let _leaves = Leaves(shared.clone());
                link::run(dialler, shared).await;
            });
        }
        tokio::spawn(tick(shared.clone()));
        tokio::spawn(follow(Arc::downgrade(&shared), known, digest));
        Ok(Self {
            owned: Arc::new(Owned { shared }),
        })
    }

    /// Asks for a lease; see [`Client::lease`](crate::Client::lease).
    pub fn lease(&self, name: impl AsRef<[u8]>) -> LeaseRequest {
        LeaseRequest::new(Source::Keeper(self.clone()), Name::new(name))
    }

    /// Extends a lease by its handle, whoever took it, and says until when it is held then: by
    /// its span from when the nodes were asked.
    pub async fn renew_lease(
        &self,
        handle: LeaseHandle,
        patience: Duration,
    ) -> Result<Instant, LeaseError> {
        lease::renew(self, handle, patience).await
    }

    /// Gives a lease back by its handle, whoever took it. Doing it twice, or late, does no harm.
    pub async fn release_lease(
        &self,
        handle: LeaseHandle,
        patience: Duration,
    ) -> Result<(), LeaseError> {
        lease::release(self, handle, patience).await
    }

    /// A handle of an object; see [`Client::object`](crate::Client::object).
    pub fn object<T: Handle>(&self, name: impl AsRef<[u8]>) -> T {
        let source = Source::Keeper(self.clone());
        T::new(Object::open(source, Name::new(name), T::Model::default()))
    }

    /// What leases run with.
    pub fn lease_config(&self) -> &Arc<LeaseConfig> {
        &self.owned.shared.lease
    }

    /// What objects run with; none if the cluster keeps none.
    pub fn object_config(&self) -> Option<&Arc<ObjectConfig>> {
        self.owned.shared.objects.as_ref()
    }

    /// Begins something. Nothing blocks; the machine is told at once.
    pub fn begin(&self, command: Command) -> Job {
        let key = self.owned.shared.try_with(|core| core.begin(command));
        let key = key.unwrap_or(NOTHING);
        Job {
            key,
            owned: self.owned.clone(),
        }
    }

    /// Begins something once enough nodes are connected, or all have been tried, or a second has
    /// passed: an attempt that is made only once must not fail for want of connections.
    pub async fn begin_ready(&self, command: Command) -> Job {
        let shared = &self.owned.shared;
        let key = shared.try_with(Core::begin_idle).unwrap_or(NOTHING);
        let idle = Job {
            key,
            owned: self.owned.clone(),
        };
        let settled = std::future::poll_fn(|cx| {
            shared
                .try_with(|core| {
                    if core.is_settled() || core.stage != Stage::Running {
                        return Poll::Ready(());
                    }
                    core.poll(key, cx).map(drop)
                })
                .unwrap_or(Poll::Ready(()))
        });
        let _ = tokio::time::timeout(SETTLE, settled).await;
        let job = self.begin(command);
        drop(idle);
        job
    }

    /// How many nodes have taken this client in.
    pub fn reachable(&self) -> usize {
        self.owned.shared.with(|core| core.reachable())
    }

    /// What went wrong last with nodes that are not reachable, as far as they were needed.
    pub fn troubles(&self) -> Vec<(NodeId, String)> {
        self.owned.shared.with(|core| core.troubles())
    }

    /// Whether nodes refuse this client because it has not shown who it is.
    pub fn is_unauthenticated(&self) -> bool {
        self.owned.shared.with(|core| core.unauthenticated)
    }

    /// Whether it ended because the cluster has another configuration.
    pub(crate) fn is_outdated(&self) -> bool {
        self.owned.shared.with(|core| core.outdated)
    }

    /// Whether so many nodes refuse this client for good that too few are left.
    pub fn is_hopeless(&self) -> bool {
        self.owned.shared.with(|core| core.is_hopeless())
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

    #[cfg(test)]
    pub(crate) fn jobs(&self) -> usize {
        self.owned.shared.with(|core| core.jobs.len())
    }

    /// How often each node was seen to differ from what enough others say, and how.
    pub fn lies(&self) -> Vec<(NodeId, Lie, u64)> {
        self.owned.shared.with(|core| core.lies())
    }

    /// What has been counted since the start.
    pub fn counters(&self) -> Counters {
        self.owned.shared.with(|core| core.counters)
    }

    /// Gives back everything, waits until the nodes have heard it, two seconds at most, and ends.
    pub async fn close(&self) {
        let shared = &self.owned.shared;
        shared.with(Core::close);
        loop {
            let mut ended = std::pin::pin!(shared.ended.notified());
            ended.as_mut().enable();
            if shared.links.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// Where a handle gets its driver from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// From a client, which makes one when it is first needed.
    Client(Client),
    /// It has it.
    Keeper(Keeper),
}

impl Source {
    async fn keeper(&self) -> Result<Keeper, Trouble> {
        match self {
            Self::Client(client) => client.keeper().await,
            Self::Keeper(keeper) => Ok(keeper.clone()),
        }
    }
}

/// Something under way. Dropping it gives back its lease, or stops waiting; an operation that was
/// submitted may still be done.
#[derive(Debug)]
pub struct Job {
    key: Key,
    owned: Arc<Owned>,
}

impl Job {
    /// The machine's number for it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// What the machine tells about it next; none once it has ended. Cancelling the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        let (shared, key) = (&self.owned.shared, self.key);
        std::future::poll_fn(|cx| {
            let told = shared.try_with(|core| core.poll(key, cx));
            told.unwrap_or(Poll::Ready(None))
        })
        .await
    }

    /// Extends its lease.
    pub fn renew(&self) {
        self.owned
            .shared
            .with(|core| core.step(ClientInput::Renew(self.key)));
    }

    /// Extends its lease again and again, so often.
    pub fn keep(&self, every: Duration) {
        self.owned.shared.with(|core| core.keep(self.key, every));
    }

    /// What renews and releases its lease elsewhere; none if it is not held.
    pub fn lease_handle(&self) -> Option<LeaseHandle> {
        self.owned.shared.with(|core| {
            core.wake_due();
            core.lease_handle(self.key)
        })
    }

    /// Ends without giving its lease back, which is left to whoever has the handle.
    pub fn hand_over(self) {
        self.owned
            .shared
            .with(|core| core.step(ClientInput::HandOver(self.key)));
    }

    /// Until when its lease is held; none if it is not.
    pub fn held_until(&self) -> Option<Instant> {
        self.owned.shared.with(|core| {
            core.wake_due();
            core.held_until(self.key)
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.owned.shared.with(|core| {
            core.jobs.remove(&self.key);
            if core.stage == Stage::Running {
                core.step(ClientInput::End(self.key));
            }
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

/// What callers and connections share.
#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    timer: Arc<Timer>,
    fault: Arc<Fault>,
    /// How many connections are still looked after.
    links: AtomicUsize,
    ended: Notify,
    lease: Arc<LeaseConfig>,
    objects: Option<Arc<ObjectConfig>>,
}

impl Shared {
    /// Does something with the core, then wakes whoever has something to do. If it panics, the
    /// client is closed, everyone is told, and nothing comes of it.
    fn with<T: Default>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        self.try_with(act).unwrap_or_default()
    }

    /// The same; none if it panics.
    fn try_with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> Option<T> {
        // Panics are caught while it is taken: it is never poisoned.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let done = core.guard(act);
        core.guard(Core::arm);
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

/// Counts a connection out.
struct Leaves(Arc<Shared>);

impl Drop for Leaves {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.with(|core| core.fail("a task of it panicked"));
        }
        if self.0.links.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.with(|core| {
                core.close();
                core.shut();
            });
        }
        self.0.ended.notify_waiters();
    }
}

/// Takes up what is new about the cluster.
async fn follow(shared: Weak<Shared>, mut known: watch::Receiver<Arc<Cluster>>, digest: [u8; 16]) {
    while known.changed().await.is_ok() {
        let other = known.borrow_and_update().digest() != digest;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if other {
            return shared.with(Core::leave);
        }
        shared.with(Core::judge);
    }
}

/// Keeps the time.
async fn tick(shared: Arc<Shared>) {
    std::future::poll_fn(|cx| {
        let mut rung = false;
        while shared.timer.poll_rung(cx).is_ready() {
            rung = true;
        }
        let turn = shared.try_with(|core| {
            core.task = Some(cx.waker().clone());
            if rung {
                core.rung();
            }
            if core.stage == Stage::Closing {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        turn.unwrap_or(Poll::Ready(()))
    })
    .await;
}

fn id() -> ClientId {
    ClientId(random())
}

fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&random().to_le_bytes());
    seed[16..].copy_from_slice(&random().to_le_bytes());
    seed
}

pub(crate) use crate::driver::random;
