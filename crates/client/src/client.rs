//! A client of one cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conclave_protocol::id::Name;
use conclave_protocol::lock::{NodeHealth, Watch as What};
use conclave_protocol::object::kinds::Model;
use conclave_wire::Cluster;
use tokio::sync::Mutex;

use crate::barrier::Barrier;
use crate::directory::{Directory, Sources};
use crate::discover::{DiscoverError, confirm, discover_with, is_local};
use crate::driver::Driver;
use crate::elect::{Election, Observer};
use crate::error::{AcquireError, ConnectError};
use crate::keeper::error::Trouble;
use crate::keeper::lease::LeaseRequest;
use crate::keeper::object::{Handle, Object};
use crate::keeper::{Keeper, Source};
use crate::latch::Latch;
use crate::request::{LockAllRequest, LockRequest, SlotRequest};
use crate::secure::Security;
use crate::semaphore::slot_names;
use crate::watch::{PrefixWatch, Watch};

/// A client of a cluster. Clones share their connections; many tasks may use one at once.
#[derive(Clone, Debug)]
pub struct Client {
    driver: Driver,
    directory: Directory,
    /// What leases and objects are asked through, once they are, and of which epoch it is.
    keeper: Arc<Mutex<Option<(u64, Keeper)>>>,
    /// Where the cluster was learnt from; none if its description was given.
    learnt: Arc<[String]>,
    security: Security,
}

impl Client {
    /// A client of the cluster that any of these endpoints belongs to. Endpoints are the API URLs
    /// of nodes.
    pub async fn connect<I>(endpoints: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::builder().endpoints(endpoints).connect().await
    }

    /// A client with settings of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Asks for a lock: exclusive unless said otherwise, with a TTL of ten seconds.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> LockRequest {
        LockRequest::one(self.driver.clone(), Name::new(name))
    }

    /// Asks for several locks together, all or none. Callers that hold nothing else never wait
    /// for each other in a circle, whatever names they ask for.
    pub fn lock_all<I>(&self, names: I) -> LockAllRequest
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let names = names.into_iter().map(Name::new);
        LockAllRequest::all(self.driver.clone(), names.collect())
    }

    /// Asks for one of the `slots` (1 to 64) of a semaphore: never are more than so many inside.
    /// All callers must name the same number of slots. The slots are the exclusive locks
    /// `NAME~1`, `NAME~2` and so on; the guard tells which one was taken.
    ///
    /// A free slot costs one request. Whoever finds the slot that it tries first taken asks for
    /// all at once, and waits in all queues in the order of its asking.
    pub fn semaphore(&self, name: impl AsRef<[u8]>, slots: u32) -> SlotRequest {
        let max = self.driver.config().limits.together;
        let fits = (1..=max).contains(&(slots as usize));
        let names = slot_names(name.as_ref(), if fits { slots } else { 0 });
        let request = SlotRequest::any(self.driver.clone(), names);
        if fits {
            return request;
        }
        request.refused(AcquireError::Slots { asked: slots, max })
    }

    /// Watches a lock: who is inside and how many wait, now and on every change.
    pub fn watch(&self, name: impl AsRef<[u8]>) -> Watch {
        let what = What::Name(Name::new(name));
        Watch::new(self.driver.clone(), what)
    }

    /// Watches all locks whose names begin so.
    pub fn watch_prefix(&self, prefix: impl AsRef<[u8]>) -> PrefixWatch {
        let what = What::Prefix(prefix.as_ref().into());
        PrefixWatch::new(self.driver.clone(), what)
    }

    /// Stands for election: whoever holds the lock of this name leads.
    pub fn elect(&self, name: impl AsRef<[u8]>) -> Election {
        let limit = self.driver.config().limits.note_bytes;
        Election::new(self.lock(name), limit)
    }

    /// Follows an election without standing.
    pub fn observe(&self, name: impl AsRef<[u8]>) -> Observer {
        let what = What::Name(Name::new(name));
        Observer::new(self.driver.clone(), what)
    }

    /// A place where so many parties wait for each other.
    pub fn barrier(&self, name: impl AsRef<[u8]>, parties: u32) -> Barrier {
        Barrier::new(self, name.as_ref(), parties)
    }

    /// Counts that others wait for.
    pub fn latch(&self, name: impl AsRef<[u8]>, count: u32) -> Latch {
        Latch::new(self, name.as_ref(), count)
    }

    /// Asks for a lease: the exclusive right to something for a time, of five seconds unless said
    /// otherwise. It survives up to b lying nodes, and needs no release.
    pub fn lease(&self, name: impl AsRef<[u8]>) -> LeaseRequest {
        LeaseRequest::new(Source::Client(self.clone()), Name::new(name))
    }

    /// A handle of an object, which is made by the first operation that changes it:
    ///
    /// ```no_run
    /// # use conclave_client::{Client, ObjectError};
    /// # async fn example(client: Client) -> Result<(), ObjectError> {
    /// use conclave_client::{Counter, Map};
    ///
    /// let visits = client.object::<Counter>("visits").incr().await?;
    /// let users = client.object::<Map>("users");
    /// let version = users.set("ada", "1815").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For a kind of one's own, see [`Object`].
    pub fn object<T: Handle>(&self, name: impl AsRef<[u8]>) -> T {
        T::new(self.object_of(name, T::Model::default()))
    }

    /// A handle of an object of this kind.
    pub fn object_of<M: Model>(&self, name: impl AsRef<[u8]>, model: M) -> Object<M> {
        Object::open(Source::Client(self.clone()), Name::new(name), model)
    }

    /// What leases and objects are asked through. The first call makes sure that the description
    /// of the cluster can be believed.
    pub async fn keeper(&self) -> Result<Keeper, Trouble> {
        let mut kept = self.keeper.lock().await;
        let cluster = self.cluster();
        if let Some((epoch, keeper)) = &*kept
            && *epoch == cluster.epoch
        {
            return Ok(keeper.clone());
        }
        if !self.learnt.is_empty() {
            confirm(&cluster, &self.learnt, &self.security).await?;
        }
        let byzantine = cluster.faults.byzantine();
        let nodes = cluster.nodes.len();
        if byzantine > 0 && self.security.shares_bearer(nodes) && !is_local(&cluster) {
            return Err(Trouble::SharedToken { byzantine });
        }
        let keeper = Keeper::spawn_in(&self.directory, &self.security)
            .map_err(|error| Trouble::Cluster(error.to_string()))?;
        *kept = Some((cluster.epoch, keeper.clone()));
        Ok(keeper)
    }

    /// The cluster it works with, as far as it knows now.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.directory.cluster()
    }

    /// How the nodes look from here: round trips, and which of them are avoided or slow.
    pub fn nodes(&self) -> Vec<NodeHealth> {
        self.driver.nodes()
    }

    /// What runs below.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Releases everything, waits until the nodes have heard it (a second at most), and ends.
    /// Dropping all clones and guards does the same in the background.
    pub async fn close(&self) {
        let keeper = self.keeper.lock().await.clone();
        if let Some((_, keeper)) = keeper {
            tokio::join!(keeper.close(), self.driver.close());
            return;
        }
        self.driver.close().await;
    }
}

/// Settings of a client.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    endpoints: Vec<String>,
    owner: Option<String>,
    cluster: Option<Cluster>,
    file: Option<PathBuf>,
    security: Security,
    home: Option<u32>,
}

impl Builder {
    /// Adds endpoints to learn the cluster from: API URLs of nodes.
    #[must_use]
    pub fn endpoints<I>(mut self, endpoints: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.endpoints.extend(endpoints.into_iter().map(Into::into));
        self
    }

    /// The label by which people find its locks; otherwise user, host and process.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Takes the cluster from this description, and asks no endpoint.
    #[must_use]
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Takes the cluster from this file, and asks no endpoint.
    #[must_use]
    pub fn cluster_file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self
    }

    /// The node (from 1) that is asked first where a hierarchy serves the locks; otherwise that of
    /// the first endpoint, and without one a node that depends on the lock. Others are asked when
    /// it does not answer.
    #[must_use]
    pub fn home(mut self, node: u32) -> Self {
        self.home = Some(node);
        self
    }

    /// How it shows who it is and whom it believes; plain TCP without it.
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Makes the client. Connections to nodes open when they are first needed.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let security = self.security;
        security.check_bearers()?;
        let mut file = None;
        let (cluster, learnt) = match (self.cluster, self.file) {
            (Some(cluster), _) => (cluster, Vec::new()),
            (None, Some(path)) => {
                let cluster = read(&path)?;
                file = Some(path);
                (cluster, Vec::new())
            }
            (None, None) if self.endpoints.is_empty() => {
                return Err(DiscoverError::NoEndpoints.into());
            }
            (None, None) => {
                let cluster = discover_with(&self.endpoints, &security).await?;
                (cluster, self.endpoints)
            }
        };
        let owner = self.owner.unwrap_or_else(default_owner);
        let home = self.home.and_then(|id| cluster.node(id));
        let home = home.or_else(|| home_of(&cluster, learnt.first()?));
        let home = home.map(conclave_wire::cluster::Node::node);
        let learnt: Arc<[String]> = learnt.into();
        let sources = Sources {
            endpoints: learnt.clone(),
            file,
            adopts: true,
        };
        let directory = Directory::new(&cluster, sources, &security);
        let driver = Driver::spawn_in(directory.clone(), &owner, security.clone(), home)?;
        Ok(Client {
            driver,
            directory,
            keeper: Arc::default(),
            learnt,
            security,
        })
    }
}

/// The node whose API an endpoint is.
fn home_of<'a>(cluster: &'a Cluster, endpoint: &str) -> Option<&'a conclave_wire::cluster::Node> {
    let first = endpoint
        .split(',')
        .map(str::trim)
        .find(|one| !one.is_empty())?;
    let host = |url: &str| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.trim_end_matches('/').to_owned()
    };
    let wanted = host(first);
    cluster.nodes.iter().find(|node| host(&node.api) == wanted)
}

pub(crate) fn read(path: &Path) -> Result<Cluster, ConnectError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConnectError::File {
        path: path.display().to_string(),
        error,
    })?;
    Ok(Cluster::parse(&text)?)
}

/// User, host and process, as far as they are known.
pub fn default_owner() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "someone".to_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "somewhere".to_owned());
    format!("{user}@{} pid {}", host.trim(), std::process::id())
}
