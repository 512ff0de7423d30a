//! The thread that owns the machine: connections, timers and steps.
//!
//! Others talk to it through a [`Shard`], which only queues commands and wakes the thread.

mod badge;
mod conn;
mod conns;
mod door;
mod grants;
mod keeper;
mod level_links;
mod levels;
mod look;
mod peers;
mod quiet;
mod read;
mod run;
mod speak;

use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use conclave_client::Security;
use conclave_protocol::id::{LinkId, Name, NodeId, RequestNo, SessionId};
use conclave_protocol::lock::{Access, Config, Label, LockView, Reason, Start};
use conclave_protocol::multilevel::{LevelConfig, LevelView};
use conclave_protocol::{Now, Wall};
use conclave_wire::Cluster;
use mio::{Poll, Waker};
use tokio::sync::{oneshot, watch};

use crate::NodeError;
use crate::audit::{Audit, Auditor};
use crate::history::History;
use crate::journal::Journal;
use crate::meters::Meters;
use crate::sentry::Sentry;
use crate::store::{Store, StoreError};
use crate::who::Gate;
use run::{Loop, Parts, WAKER};

pub use conclave_protocol::lock::SessionView;

/// The most labels that one [`Query::Labels`] answers.
pub const LABELS_MAX: usize = 16_384;

/// Reads both clocks.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// Something to read from the machine.
#[derive(Clone, Debug)]
pub enum Query {
    /// State, life, and how much it keeps.
    Overview,
    /// One lock.
    Lock(Name),
    /// Locks whose name has this prefix: at most `limit`, from this cursor on. A page may be
    /// short, even empty, before the end.
    Locks {
        /// The prefix.
        prefix: Vec<u8>,
        /// Where to go on; 0 at first.
        from: u32,
        /// How many at most.
        limit: usize,
    },
    /// Sessions: at most `limit`, from this cursor on.
    Sessions {
        /// Where to go on; 0 at first.
        from: u32,
        /// How many at most.
        limit: usize,
        /// Who reads: sees its own and those it may administer. None sees all.
        reader: Option<Arc<str>>,
    },
    /// Why each request for a lock waits, and what else people ask about it.
    Reasons(Name),
    /// Owner and note of requests, at most [`LABELS_MAX`].
    Labels(Vec<(SessionId, RequestNo)>),
    /// What it does in its clusters.
    Levels,
}

/// The answer to a [`Query`].
#[derive(Clone, Debug)]
pub enum Report {
    /// To [`Query::Overview`].
    Overview {
        /// `starting`, `pausing`, `recovering`, `serving`, `draining` or `stopped`.
        state: &'static str,
        /// The present life.
        incarnation: u64,
        /// Locks with a request, sessions, clients, tombstones.
        kept: [usize; 4],
        /// Open connections.
        connections: usize,
        /// What its token clock shows.
        token_clock: Wall,
        /// Whether its wall clock is so far ahead that nothing is made of it.
        clock_ignored: bool,
        /// Records that were given to the journal, and how many of them are on disk.
        journal: (u64, u64),
    },
    /// To [`Query::Lock`].
    Lock(Option<LockView>),
    /// To [`Query::Locks`], with the next cursor if there is more.
    Locks(Vec<(Name, LockView)>, Option<u32>),
    /// To [`Query::Sessions`], with the next cursor if there is more.
    Sessions(Vec<SessionView>, Option<u32>),
    /// To [`Query::Reasons`].
    Reasons {
        /// What the node is doing, as in [`Report::Overview`].
        state: &'static str,
        /// How long it grants nothing yet, if it pauses or recovers.
        pause: Option<Duration>,
        /// The requests, best first.
        reasons: Vec<Reason>,
    },
    /// To [`Query::Labels`], in its order; none for a request that is gone.
    Labels(Vec<Option<Label>>),
    /// To [`Query::Levels`]; none if no hierarchy serves the locks.
    Levels(Option<LevelReport>),
}

/// What a node does in the clusters of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelReport {
    /// For each level where it is a member: what it does there, and the members.
    pub levels: Vec<(LevelView, Vec<NodeId>)>,
    /// Locks that have the consent of the clusters here.
    pub held: usize,
    /// Locks that want it.
    pub wanted: usize,
    /// Nodes that it cannot reach.
    pub suspected: Vec<NodeId>,
    /// Nodes that it is connected with.
    pub links: usize,
}

enum Command {
    Inspect(Query, oneshot::Sender<Report>),
    Drain,
    Stop(Duration),
    Kill,
    Expire(SessionId),
    Access(Arc<Access>),
    Revoke(Revoke, oneshot::Sender<Revocation>),
    Durable(Result<u64, StoreError>),
    Resolved(NodeId, Result<std::net::SocketAddr, String>),
    /// What the keeper says, as frames for each connection.
    Answers(Vec<(LinkId, Vec<u8>)>),
    /// The keeper has room for more questions.
    Room,
    /// Another thread cannot go on.
    End(NodeError),
}

/// An operator's word against a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    /// Which session.
    pub session: SessionId,
    /// Who says so.
    pub by: Arc<str>,
    /// Whether to free its locks at once, while its holder may still believe to hold them.
    pub force: bool,
}

/// What came of a [`Revoke`] at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// Its caller may not administer all that the session asks for here.
    NotPermitted,
    /// The session is renewed no more.
    Revoked {
        /// Whether the node knew it.
        known: bool,
        /// How many grants it has left here.
        grants: usize,
        /// How long they last if their holder does not leave.
        left: Duration,
    },
}

/// How the thread ended; none while it runs.
pub(crate) type Ended = Option<Result<(), NodeError>>;

/// What the handles and the thread share.
struct Inner {
    /// None once the thread has ended.
    commands: Mutex<Option<Vec<Command>>>,
    waker: Waker,
}

impl Inner {
    fn tell(&self, command: Command) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(commands) = &mut *commands else {
            return;
        };
        commands.push(command);
        // One wake-up is enough for all that is queued.
        if commands.len() == 1
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the shard; it looks by itself within a second");
        }
    }

    fn take(&self) -> Vec<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nothing is taken any more; those who wait for an answer learn it.
    fn close(&self) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        *commands = None;
    }
}

/// A handle to the shard's thread, for the API and for whoever started the node.
#[derive(Clone)]
pub struct Shard {
    inner: Arc<Inner>,
    ended: watch::Receiver<Ended>,
    sentry: Sentry,
}

impl fmt::Debug for Shard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shard").finish_non_exhaustive()
    }
}

impl Shard {
    /// Reads from the machine; none if its thread has ended.
    pub async fn inspect(&self, query: Query) -> Option<Report> {
        let (answer, wait) = oneshot::channel();
        self.inner.tell(Command::Inspect(query, answer));
        wait.await.ok()
    }

    /// Takes no more requests and asks holders to move to other nodes.
    pub fn drain(&self) {
        self.inner.tell(Command::Drain);
    }

    /// Drains until nothing is held here, at most this long; then stops cleanly.
    pub fn stop(&self, grace: Duration) {
        self.inner.tell(Command::Stop(grace));
    }

    /// Ends at once, as a crash would.
    pub fn kill(&self) {
        self.inner.tell(Command::Kill);
    }

    /// Ends a session at once, as if it had expired.
    pub fn expire(&self, session: SessionId) {
        self.inner.tell(Command::Expire(session));
    }

    /// From now on these rules say who may do what.
    pub fn set_access(&self, access: Arc<Access>) {
        self.inner.tell(Command::Access(access));
    }

    /// Renews a session no more; none if the thread has ended.
    pub async fn revoke(&self, revoke: Revoke) -> Option<Revocation> {
        let (answer, wait) = oneshot::channel();
        self.inner.tell(Command::Revoke(revoke, answer));
        wait.await.ok()
    }

    /// Sends frames of the keeper.
    pub(crate) fn answers(&self, frames: Vec<(LinkId, Vec<u8>)>) {
        self.inner.tell(Command::Answers(frames));
    }

    /// Reads those again that had to wait for the keeper.
    pub(crate) fn keeper_has_room(&self) {
        self.inner.tell(Command::Room);
    }

    /// Another thread cannot go on, so the node ends.
    pub(crate) fn end(&self, error: NodeError) {
        self.inner.tell(Command::End(error));
    }

    /// Starts threads and tasks that end the node when they panic.
    pub(crate) fn sentry(&self) -> &Sentry {
        &self.sentry
    }

    /// What this handle starts under this name panics at once.
    #[cfg(test)]
    pub(crate) fn trip(&mut self, name: &'static str) {
        self.sentry.trip = Some(name);
    }

    /// Waits until the thread has ended, and says why.
    pub async fn ended(&self) -> Result<(), NodeError> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ok(())),
            Err(_) => Err(NodeError::Panic {
                thread: "shard".to_owned(),
                words: "it left no word".to_owned(),
            }),
        }
    }
}

/// What a shard needs to start.
pub struct ShardOptions {
    /// The cluster.
    pub cluster: Cluster,
    /// What the machine runs with, made from the cluster.
    pub config: Arc<Config>,
    /// Which node this is.
    pub id: NodeId,
    /// This process: random, so that two with one id are told apart.
    pub process: u128,
    /// What the node finds when it starts.
    pub start: Start,
    /// Where its records go.
    pub store: Box<dyn Store>,
    /// Where peers and smart clients connect.
    pub listener: TcpListener,
    /// Connections that were already accepted there.
    pub accepted: Vec<TcpStream>,
    /// Where every grant and its end is noted.
    pub history: Option<History>,
    /// What operators ask about.
    pub meters: Arc<Meters>,
    /// The clocks.
    pub clock: Clock,
    /// What is believed about callers.
    pub gate: Arc<Gate>,
    /// Where grants, losses and refusals are noted.
    pub audit: Option<Audit>,
    /// How it shows who it is, and whom it believes.
    pub security: Security,
    /// Where questions about leases and objects go; none refuses them.
    pub keeper: Option<crate::keeper::Inbox>,
    /// What the clusters run with, if a hierarchy serves the locks.
    pub levels: Option<LevelConfig>,
    /// Ends the node when one of its threads panics.
    pub(crate) sentry: Sentry,
}

impl fmt::Debug for ShardOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ShardOptions")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Starts the shard's thread and its journal.
pub fn spawn(options: ShardOptions) -> std::io::Result<(Shard, JoinHandle<()>)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKER)?;
    let inner = Arc::new(Inner {
        commands: Mutex::new(Some(Vec::new())),
        waker,
    });
    let sentry = options.sentry.clone();
    let ends = inner.clone();
    sentry.on_panic(move |error| ends.tell(Command::End(error)));
    options.listener.set_nonblocking(true)?;
    let listener = mio::net::TcpListener::from_std(options.listener);
    let journal = {
        let inner = inner.clone();
        let done = move |result| inner.tell(Command::Durable(result));
        Journal::spawn_under(&options.sentry, options.store, done, options.meters.clone())?
    };
    let (names, wanted) = mpsc::channel();
    let found = inner.clone();
    sentry.thread("resolve", move || {
        peers::resolve_all(&wanted, |node, address| {
            found.tell(Command::Resolved(node, address));
        });
    })?;
    let levels = options.levels.map(|config| levels::LevelParts {
        stored: levels::stored(&options.start, &config, (options.clock)()),
        config,
    });
    let parts = Parts {
        door: door::Door::new(
            options.id,
            options.process,
            &options.cluster,
            before(&options.start),
            options.accepted,
        ),
        peers: peers::Peers::new(&options.cluster, names),
        config: options.config,
        id: options.id,
        start: options.start,
        seed: getrandom::u64().unwrap_or(options.process as u64),
        clock: options.clock,
        poll,
        listener,
        meters: options.meters,
        inner: inner.clone(),
        journal,
        history: options.history,
        gate: options.gate,
        audit: options.audit.map(Auditor::new),
        security: options.security,
        keeper: options.keeper,
        levels,
    };
    let (tell, ended) = watch::channel(None);
    let shared = inner.clone();
    let name = format!("shard-{}", options.id);
    let guarded = sentry.clone();
    let thread = std::thread::Builder::new().name(name.clone());
    let thread = thread.spawn(move || {
        let result = guarded.catch(&name, || run(parts));
        let result = result.unwrap_or_else(Err);
        if let Err(error) = &result {
            tracing::error!(%error, "the node ends");
        }
        shared.close();
        tell.send_replace(Some(result));
    })?;
    let shard = Shard {
        inner,
        ended,
        sentry,
    };
    Ok((shard, thread))
}

/// How many nodes the configuration before the present one had.
fn before(start: &Start) -> u32 {
    match start {
        Start::Disk(stored) => stored.config.as_ref().map_or(0, |config| config.before),
        Start::Init | Start::Lost => 0,
    }
}

fn run(parts: Parts) -> Result<(), NodeError> {
    let mut it = Loop::new(parts).map_err(|error| NodeError::Poll(error.to_string()))?;
    it.run()
}
