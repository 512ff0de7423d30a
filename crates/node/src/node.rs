//! A whole node: store, journal, shard and API put together.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use conclave_client::secure::{Session, Tls};
use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::keeper::{KeeperRecord, KeeperStart, KeeperStored};
use conclave_protocol::lock::Start;
use conclave_wire::Cluster;
use conclave_wire::greeting::{Greeting, Role, Service};
use conclave_wire::version::SPOKEN;

use crate::api::{self, ApiHandle, ApiLimits};
use crate::audit::Audit;
use crate::history::History;
use crate::meters::Meters;
use crate::sentry::Sentry;
use crate::shard::{self, Clock, Query, Report, Shard, ShardOptions};
use crate::store::objects::ObjectDisk;
use crate::store::{self, KeeperMemory, KeeperStore, Store};
use crate::who::Gate;
use crate::{NodeError, Options, StartError, change, keeper, twin};

/// How long a node that stops waits for holders to move elsewhere.
const GRACE: Duration = Duration::from_secs(2);

/// How often a watchdog looks whether records are on disk.
const WRITTEN_LOOK: Duration = Duration::from_millis(50);

/// How often the access file is looked at for changes.
const LOOK: Duration = Duration::from_secs(2);

/// A running node. Dropped without [`Node::drain_and_stop`] it ends at once, as in a crash.
#[derive(Debug)]
pub struct Node {
    id: u32,
    peer: SocketAddr,
    api: SocketAddr,
    shard: Shard,
    meters: Arc<Meters>,
    thread: Option<JoinHandle<()>>,
    /// Gone once the node has ended.
    gateway: Mutex<Option<ApiHandle>>,
    access: Option<AccessWatch>,
    keeper: keeper::Handle,
}

impl Node {
    /// Starts a node on the store in its data directory.
    pub fn start(options: Options) -> Result<Self, StartError> {
        // A directory is taken for a node only once it can be that node.
        check_options(&options)?;
        let store = store::open(&options.data, options.id, &options.cluster.name)?;
        let objects = ObjectDisk::open(&options.data, options.id, &options.cluster.name)?;
        let clock = Arc::new(conclave_client::clock::now);
        Self::start_with(options, store, Box::new(objects), clock)
    }

    /// Starts a node on this store and these clocks; leases and objects are kept in memory.
    pub fn start_on(
        options: Options,
        store: Box<dyn Store>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(options, store, Box::new(KeeperMemory::default()), clock)
    }

    /// Starts a node on these stores and these clocks.
    pub fn start_with(
        options: Options,
        mut store: Box<dyn Store>,
        mut objects: Box<dyn KeeperStore>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let system = |error: std::io::Error| StartError::System(error.to_string());
        check_options(&options)?;
        let mut kept = objects.load()?;
        let disks = change::Disks {
            locks: &mut store,
            objects: &mut objects,
            kept: &mut kept,
        };
        change::settle(&options, disks, &clock)?;
        let id = check(&options.cluster, options.id)?;
        let config = options.cluster.shared_config()?;
        let levels = options.cluster.level_config()?;
        let peer = options.peer.local_addr().map_err(system)?;
        let api = options.api.local_addr().map_err(system)?;
        let stored = store.load()?;
        let start = choose(stored.filter(|it| it.incarnation.is_some()), options.init);
        let kept = keeper::choose(kept, &start);
        if matches!(kept, KeeperStart::Lost) {
            // Before anything else is on disk: a store of objects without records beside one of
            // locks would pass for one from before there were objects.
            objects.write(&[KeeperRecord::Mark(Token(0))], &KeeperStored::new)?;
        }
        let keeper_config = keeper::config(&options.cluster)?;
        let process = process()?;
        let mut accepted = Vec::new();
        let greeting = Greeting {
            versions: SPOKEN,
            role: Role::Node(id),
            target: id,
            process,
            digest: options.cluster.digest(),
            facts: options.cluster.facts(),
            credential: None,
            service: Service::Locks,
        };
        find_twin(&options, &greeting, &mut accepted)?;
        let history = open_history(&options, id)?;
        let meters = Meters::new();
        let gate = Arc::new(gate(&options)?);
        let sentry = Sentry::new();
        let audit = open_audit(&options, id, &meters, &sentry)?;
        let inbox = keeper::Inbox::new();
        let (shard, thread) = shard::spawn(ShardOptions {
            cluster: options.cluster.clone(),
            config,
            id,
            process,
            start,
            store,
            listener: options.peer,
            accepted,
            history,
            meters: meters.clone(),
            clock: clock.clone(),
            gate: gate.clone(),
            audit: audit.clone(),
            security: options.security.clone(),
            keeper: Some(inbox.clone()),
            levels,
            sentry,
        })
        .map_err(system)?;
        let keeper = keeper::spawn(keeper::Parts {
            inbox,
            config: keeper_config,
            access: gate.rules(),
            start: kept,
            store: objects,
            shard: shard.clone(),
            clock,
            meters: meters.clone(),
            liar: options.liar,
            id,
            dial: keeper::Dialling {
                id,
                process,
                cluster: options.cluster.clone(),
                security: options.security.clone(),
                rejoin: options.rejoin,
            },
        })
        .map_err(system)?;
        let mut node = Self {
            id: options.id,
            peer,
            api,
            shard: shard.clone(),
            meters: meters.clone(),
            thread: Some(thread),
            gateway: Mutex::new(None),
            access: None,
            keeper,
        };
        let context = api::Context {
            cluster: options.cluster,
            id: options.id,
            shard: shard.clone(),
            key: options.key,
            meters,
            process,
            limits: ApiLimits::default(),
            gate: gate.clone(),
            audit,
            security: options.security,
            names: options.api_names,
        };
        let gateway = api::spawn(context, options.api);
        let gateway = gateway.map_err(|error| StartError::System(error.to_string()))?;
        node.gateway = Mutex::new(Some(gateway));
        if !gate.is_open() {
            node.access = Some(AccessWatch::spawn(gate, node.shard.clone()).map_err(system)?);
        }
        Ok(node)
    }

    /// Which node this is, from 1.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where peers and smart clients connect.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Where the API is served.
    pub fn api_addr(&self) -> SocketAddr {
        self.api
    }

    /// The thread that owns the machine.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The thread that keeps leases and objects.
    pub fn keeper(&self) -> &keeper::Handle {
        &self.keeper
    }

    /// What operators ask about.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// By which somebody else sees whether its threads go on.
    pub fn pulse(&self) -> Pulse {
        let gateway = self.gateway.lock().unwrap_or_else(PoisonError::into_inner);
        Pulse {
            shard: self.shard.clone(),
            keeper: self.keeper.inbox().clone(),
            api: gateway.as_ref().map(|gateway| gateway.runtime().clone()),
        }
    }

    /// Asks holders to move to other nodes, waits for them a little, and stops cleanly. Returns at
    /// once; [`Node::wait`] returns when it is done.
    pub fn drain_and_stop(&self) {
        self.shard.stop(GRACE);
    }

    /// Waits until the node has ended, its API too, and says why.
    pub async fn wait(&self) -> Result<(), NodeError> {
        let ended = self.shard.ended().await;
        self.keeper.stop();
        let gateway = self.take_gateway();
        // Whoever still waits for an answer gets one; that takes a moment of a thread.
        let _ = tokio::task::spawn_blocking(move || drop(gateway)).await;
        ended
    }

    fn take_gateway(&self) -> Option<ApiHandle> {
        let mut gateway = self.gateway.lock().unwrap_or_else(PoisonError::into_inner);
        gateway.take()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shard.kill();
        drop(self.take_gateway());
        if let Some(thread) = self.thread.take() {
            // Its panics are told by `wait`.
            let _ = thread.join();
        }
        self.keeper.stop();
    }
}

/// Whether the threads of a node go on, for a watchdog.
#[derive(Clone, Debug)]
pub struct Pulse {
    shard: Shard,
    keeper: keeper::Inbox,
    api: Option<tokio::runtime::Handle>,
}

impl Pulse {
    /// Ends once every thread that serves has shown that it goes on: those of locks, of leases and
    /// objects and of the API have answered, and the journal has written what it had been given.
    /// Does not end while one of them hangs; false if the node has ended.
    pub async fn beat(&self) -> bool {
        let Some(api) = &self.api else { return false };
        let (journal, keeper, api) = tokio::join!(
            self.written(),
            self.keeper.look(keeper::Look::default()),
            api.spawn(async {})
        );
        journal.is_some() && keeper.is_some() && api.is_ok()
    }

    /// Ends when the records that the journal has now are on disk; none if the node has ended.
    async fn written(&self) -> Option<()> {
        let (wanted, mut synced) = self.journal().await?;
        while synced < wanted {
            tokio::time::sleep(WRITTEN_LOOK).await;
            synced = self.journal().await?.1;
        }
        Some(())
    }

    async fn journal(&self) -> Option<(u64, u64)> {
        match self.shard.inspect(Query::Overview).await {
            Some(Report::Overview { journal, .. }) => Some(journal),
            _ => None,
        }
    }
}

/// A thread that takes up changes of the access file; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct AccessWatch(
    #[expect(dead_code, reason = "its end is what it says")] mpsc::Sender<()>,
);

impl AccessWatch {
    pub(crate) fn spawn(gate: Arc<Gate>, shard: Shard) -> std::io::Result<Self> {
        let (alive, over) = mpsc::channel::<()>();
        let sentry = shard.sentry().clone();
        sentry.thread("access", move || {
            while over.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(rules) = gate.reload() {
                    shard.set_access(rules);
                }
            }
        })?;
        Ok(Self(alive))
    }
}

fn gate(options: &Options) -> Result<Gate, StartError> {
    let Some(path) = options.access.as_deref() else {
        return Ok(Gate::open());
    };
    // Whoever listens where a node should be would be handed tokens that count.
    if options.security.tls().is_none() {
        return Err(StartError::AccessWithoutTls);
    }
    Ok(Gate::of_file(path)?)
}

fn open_audit(
    options: &Options,
    id: NodeId,
    meters: &Arc<Meters>,
    sentry: &Sentry,
) -> Result<Option<Audit>, StartError> {
    let Some(audit) = &options.audit else {
        return Ok(None);
    };
    let opened = Audit::open_under(sentry, audit, id, meters.clone());
    opened.map(Some).map_err(|error| StartError::Audit {
        path: audit.path.clone(),
        problem: error.to_string(),
    })
}

fn check(cluster: &Cluster, id: u32) -> Result<NodeId, StartError> {
    let node = cluster.node(id).ok_or(StartError::Id {
        id,
        nodes: cluster.nodes.len(),
    })?;
    Ok(node.node())
}

/// What the node makes of its disk.
fn choose(stored: Option<conclave_protocol::lock::Stored>, init: bool) -> Start {
    match stored {
        Some(stored) => {
            if init {
                tracing::info!("the data directory is not empty: it is kept, init has no effect");
            }
            Start::Disk(stored)
        }
        None if init => Start::Init,
        None => {
            tracing::warn!("the data directory is empty: the node asks the others what it was");
            Start::Lost
        }
    }
}

/// Whether a node can start with these options, as far as can be told without its data.
fn check_options(options: &Options) -> Result<(), StartError> {
    options.cluster.check()?;
    check_certificate(options)?;
    options.cluster.shared_config()?;
    // A node that leaves by a change is not in the new file.
    if options.change.is_none() {
        check(&options.cluster, options.id)?;
    }
    Ok(())
}

/// A node that speaks TLS has a certificate of its own, made for it.
fn check_certificate(options: &Options) -> Result<(), StartError> {
    let Some(tls) = options.security.tls() else {
        return Ok(());
    };
    let certified = tls.certified();
    crate::fits_node(certified.as_ref(), &options.cluster.name, options.id).map_err(|problem| {
        StartError::Certificate {
            id: options.id,
            problem,
        }
    })
}

fn find_twin(
    options: &Options,
    greeting: &Greeting,
    early: &mut Vec<std::net::TcpStream>,
) -> Result<(), StartError> {
    let id = options.id;
    let Some(node) = options.cluster.node(id) else {
        return Ok(());
    };
    let tls = options.security.tls().and_then(|tls| {
        let name = Tls::peer_name(&options.cluster.name, id);
        Session::dial(tls.current_client_config(), name).ok()
    });
    match twin::find(&node.peer, greeting, tls, &options.peer, early) {
        Some(address) => Err(StartError::Twin {
            id,
            address: address.to_string(),
        }),
        None => Ok(()),
    }
}

fn open_history(options: &Options, id: NodeId) -> Result<Option<History>, StartError> {
    let Some(path) = &options.history else {
        return Ok(None);
    };
    let opened = History::open(path, id);
    opened.map(Some).map_err(|error| StartError::History {
        path: path.clone(),
        problem: error.to_string(),
    })
}

/// A number that no other process has.
pub(crate) fn process() -> Result<u128, StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| StartError::System(error.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
}
