//! The thread that keeps leases and objects: it owns the machine and its store.
//!
//! The shard puts what it hears into the [`Inbox`]; the thread takes everything there is, steps the
//! machine for each, writes all records with one sync and then gives the shard the answers. So many
//! clients share one sync, and objects never hold up locks.

pub mod liar;
mod links;
mod others;
mod suspect;
mod thread;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use conclave_client::Security;
use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::keeper::{KeeperInput, KeeperStart, KeeperStored};
use conclave_protocol::lease::LeaseConfig;
use conclave_protocol::lock::{Access, Start};
use conclave_protocol::object::{ObjectConfig, ObjectView};
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use tokio::sync::oneshot;

use crate::meters::Meters;
use crate::shard::{Clock, Shard};
use crate::store::KeeperStore;

pub(crate) use thread::spawn;

/// So many questions wait for the keeper at the most, and so many bytes of them: then the shard
/// reads no more of them.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES: usize = 32 << 20;

/// The most objects that one look shows.
pub const VIEWS_MAX: usize = 1000;

/// What the keeper's thread is told.
#[derive(Debug)]
pub(crate) enum Said {
    /// What the machine is told.
    Input(KeeperInput),
    /// Somebody wants to see what there is.
    Look(Look, oneshot::Sender<Seen>),
}

/// What to show of leases and objects.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Objects after this one.
    pub after: Option<conclave_protocol::id::Name>,
    /// So many objects, at most [`VIEWS_MAX`].
    pub limit: usize,
}

/// What a keeper shows.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether it serves; if not it has lost its disk and has not rejoined.
    pub serving: bool,
    /// How long it gives no votes for leases yet.
    pub opens_in: Duration,
    /// Above every token that it has voted for.
    pub mark: Token,
    /// Names of leases that it remembers, and requests that wait for one.
    pub leases: (usize, usize),
    /// How many objects there are, and how many bytes they have.
    pub objects: (usize, usize),
    /// Some of the objects, by name.
    pub views: Vec<ObjectView>,
}

#[derive(Debug, Default)]
struct Waiting {
    said: Vec<Said>,
    bytes: usize,
    /// Above every token of a lease that was voted for.
    mark: Token,
    /// Somebody had to wait because there was no room.
    wanted: bool,
    over: bool,
}

/// Where the shard and the API put what the keeper is told. Clones are the same inbox.
#[derive(Clone, Default)]
pub struct Inbox {
    shared: Arc<(Mutex<Waiting>, Condvar)>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Inbox").finish_non_exhaustive()
    }
}

/// What was in the inbox.
struct Batch {
    said: Vec<Said>,
    /// Somebody waited for room, and has it now.
    wanted: bool,
    over: bool,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in. It is taken even if there is no room: who asks questions looks first.
    pub(crate) fn put(&self, said: Said, bytes: usize) {
        let mut waiting = self.lock();
        if waiting.over {
            return;
        }
        waiting.bytes += bytes;
        waiting.said.push(said);
        if waiting.said.len() == 1 {
            self.shared.1.notify_one();
        }
    }

    /// Whether there is no room. If so, the shard is told as soon as there is.
    pub(crate) fn is_full(&self) -> bool {
        let mut waiting = self.lock();
        let full = waiting.said.len() >= WAITING_MAX || waiting.bytes >= WAITING_BYTES;
        waiting.wanted |= full;
        full
    }

    /// Above every token of a lease that was voted for, as of a moment ago.
    pub(crate) fn mark(&self) -> Token {
        self.lock().mark
    }

    fn set_mark(&self, mark: Token) {
        self.lock().mark = mark;
    }

    /// Everything there is, after at most this long.
    fn take(&self, wait: Duration) -> Batch {
        let mut waiting = self.lock();
        if waiting.said.is_empty() && !waiting.over && !wait.is_zero() {
            let waited = self.shared.1.wait_timeout(waiting, wait);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.bytes = 0;
        Batch {
            said: std::mem::take(&mut waiting.said),
            wanted: std::mem::take(&mut waiting.wanted),
            over: waiting.over,
        }
    }

    fn close(&self) {
        let mut waiting = self.lock();
        waiting.over = true;
        waiting.said.clear();
        self.shared.1.notify_all();
    }
}

/// What a keeper runs with.
#[derive(Clone, Debug)]
pub struct Configs {
    /// Leases.
    pub lease: Arc<LeaseConfig>,
    /// Objects, if there are any.
    pub objects: Option<Arc<ObjectConfig>>,
}

/// What the keeper of a cluster runs with.
pub fn config(cluster: &Cluster) -> Result<Configs, ClusterError> {
    let lease = Arc::new(cluster.lease_config()?);
    let objects = cluster.object_config()?.map(Arc::new);
    Ok(Configs { lease, objects })
}

/// How a keeper begins, from what was on its disk and how the node begins.
pub fn choose(stored: Option<KeeperStored>, start: &Start) -> KeeperStart {
    match (stored, start) {
        (Some(stored), _) => KeeperStart::Kept(Box::new(stored)),
        (None, Start::Lost) => KeeperStart::Lost,
        // A node that has records of locks and none of objects is from before there were objects.
        (None, _) => KeeperStart::Fresh,
    }
}

/// What the keeper's thread is made of.
pub(crate) struct Parts {
    pub(crate) inbox: Inbox,
    pub(crate) config: Configs,
    pub(crate) access: Arc<Access>,
    pub(crate) start: KeeperStart,
    pub(crate) store: Box<dyn KeeperStore>,
    pub(crate) shard: Shard,
    pub(crate) clock: Clock,
    pub(crate) meters: Arc<Meters>,
    pub(crate) liar: Option<liar::Mode>,
    pub(crate) id: NodeId,
    pub(crate) dial: Dialling,
}

/// How this node connects to the keepers of the others.
#[derive(Clone, Debug)]
pub(crate) struct Dialling {
    pub(crate) id: NodeId,
    pub(crate) process: u128,
    pub(crate) cluster: Cluster,
    /// As a node.
    pub(crate) security: Security,
    /// As a client of the others, for coming back after the loss of its disk.
    pub(crate) rejoin: Option<Security>,
}

/// A handle to the keeper's thread.
#[derive(Debug)]
pub struct Handle {
    inbox: Inbox,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    /// Where to put what the keeper is told.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Ends the thread, as a crash would: what was answered is on disk.
    pub fn stop(&self) {
        self.inbox.close();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Its panics were told to the shard.
            let _ = thread.join();
        }
    }
}

impl Inbox {
    /// Shows what there is; none if the thread has ended.
    pub async fn look(&self, look: Look) -> Option<Seen> {
        let (answer, wait) = oneshot::channel();
        self.put(Said::Look(look, answer), 0);
        wait.await.ok()
    }
}
