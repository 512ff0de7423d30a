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
use conclave_wire::greeting::{Credential, Greeting, Role, Service, VERSION};

use crate::api::{self, ApiHandle, ApiLimits};
use crate::audit::Audit;
use crate::history::History;
use crate::meters::Meters;
use crate::shard::{self, Clock, Shard, ShardOptions};
use crate::store::objects::ObjectDisk;
use crate::store::{self, KeeperMemory, KeeperStore, Store};
use crate::who::Gate;
use crate::{NodeError, Options, StartError, keeper, twin};

/// How long a node that stops waits for holders to move elsewhere.
const GRACE: Duration = Duration::from_secs(2);

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
        check(&options.cluster, options.id)?;
        check_certificate(&options)?;
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
        let id = check(&options.cluster, options.id)?;
        check_certificate(&options)?;
        let config = options.cluster.shared_config()?;
        let levels = options.cluster.level_config()?;
        let peer = options.peer.local_addr().map_err(system)?;
        let api = options.api.local_addr().map_err(system)?;
        let start = choose(store.load()?, options.init);
        let kept = keeper::choose(objects.load()?, &start);
        if matches!(kept, KeeperStart::Lost) {
            // Before anything else is on disk: a store of objects without records beside one of
            // locks would pass for one from before there were objects.
            objects.write(&[KeeperRecord::Mark(Token(0))], &KeeperStored::new)?;
        }
        let keeper_config = keeper::config(&options.cluster)?;
        let process = process()?;
        let mut accepted = Vec::new();
        let greeting = Greeting {
            version: VERSION,
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
        let audit = open_audit(&options, id, &meters)?;
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
                credential: Credential::new(gate.key().credential_of(id).as_bytes())
                    .filter(|_| !gate.is_open()),
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

/// A thread that takes up changes of the access file; it ends when this is dropped.
#[derive(Debug)]
struct AccessWatch(#[expect(dead_code, reason = "its end is what it says")] mpsc::Sender<()>);

impl AccessWatch {
    fn spawn(gate: Arc<Gate>, shard: Shard) -> std::io::Result<Self> {
        let (alive, over) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("access".to_owned());
        thread.spawn(move || {
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
    let key = options.key.clone();
    let path = options.access.as_deref();
    path.map_or_else(
        || Ok(Gate::open(key.clone())),
        |path| Ok(Gate::of_file(path, key.clone())?),
    )
}

fn open_audit(
    options: &Options,
    id: NodeId,
    meters: &Arc<Meters>,
) -> Result<Option<Audit>, StartError> {
    let Some(path) = &options.audit else {
        return Ok(None);
    };
    let opened = Audit::open(path, id, meters.clone());
    opened.map(Some).map_err(|error| StartError::Audit {
        path: path.clone(),
        problem: error.to_string(),
    })
}

fn check(cluster: &Cluster, id: u32) -> Result<NodeId, StartError> {
    cluster.check()?;
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

fn process() -> Result<u128, StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| StartError::System(error.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
}
