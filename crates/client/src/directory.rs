//! Where the nodes of a cluster are, as far as a client knows, and how it learns that again: from
//! its endpoints, from the nodes that it knows and from its cluster file.
//!
//! When to ask and whom to believe is decided by [`Rediscovery`]; here the questions are asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conclave_protocol::id::NodeId;
use conclave_protocol::rediscovery::{
    Place, Rediscovery, RediscoveryEvent, RediscoveryInput, Source, Told,
};
use conclave_wire::Cluster;
use tokio::sync::watch;

use crate::clock;
use crate::discover::{answers, is_local};
use crate::secure::Security;

/// What a client knows of its cluster. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Told after every round of questions.
    known: watch::Sender<Arc<Cluster>>,
    sources: Sources,
    security: Security,
}

#[derive(Debug)]
struct State {
    machine: Rediscovery,
    cluster: Arc<Cluster>,
}

/// Whom to ask besides the nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The endpoints that the client was given.
    pub(crate) endpoints: Arc<[String]>,
    /// The cluster file that it was given.
    pub(crate) file: Option<PathBuf>,
    /// Whether it goes on with another configuration; else it follows addresses only.
    pub(crate) adopts: bool,
}

impl Directory {
    /// For a client that has learnt this.
    pub(crate) fn new(cluster: &Cluster, sources: Sources, security: &Security) -> Self {
        let machine = Rediscovery::new(&told(Source::File, cluster), sources.adopts);
        let cluster = Arc::new(cluster.clone());
        Self {
            inner: Arc::new(Inner {
                known: watch::Sender::new(cluster.clone()),
                state: Mutex::new(State { machine, cluster }),
                sources,
                security: security.clone(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.inner.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster as it is known now.
    pub(crate) fn cluster(&self) -> Arc<Cluster> {
        self.state().cluster.clone()
    }

    /// Tells the cluster as it is known after every round of questions, also if nothing is new.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Cluster>> {
        self.inner.known.subscribe()
    }

    /// Where a node takes connections.
    pub(crate) fn peer(&self, node: NodeId) -> Arc<str> {
        let state = self.state();
        let place = state.machine.place(node);
        place.map(|(peer, _)| peer.clone()).unwrap_or_default()
    }

    /// Whether answers are waited for: they may change everything.
    pub(crate) fn is_asking(&self) -> bool {
        self.state().machine.is_asking()
    }

    /// A node could not be reached. Called on a runtime, as the two that follow.
    pub(crate) fn failed(&self, node: NodeId) {
        self.tell(RediscoveryInput::Failed(node));
    }

    /// A node serves another configuration, or another node is where it was.
    pub(crate) fn refused(&self, node: NodeId) {
        self.tell(RediscoveryInput::Refused(node));
    }

    /// A node has taken the client in.
    pub(crate) fn reached(&self, node: NodeId) {
        self.tell(RediscoveryInput::Reached(node));
    }

    fn tell(&self, input: RediscoveryInput) {
        let mut out = Vec::new();
        let mut state = self.state();
        state.machine.handle(clock::now().mono, input, &mut out);
        if out.contains(&RediscoveryEvent::Ask) {
            tokio::spawn(ask(self.clone(), state.cluster.clone()));
        }
    }

    /// Takes up what everyone has said.
    fn hear(&self, said: &[(Source, Cluster)]) {
        let all = said.iter().map(|(source, cluster)| told(*source, cluster));
        let input = RediscoveryInput::Told(all.collect());
        let mut out = Vec::new();
        let mut state = self.state();
        state.machine.handle(clock::now().mono, input, &mut out);
        for event in out {
            match event {
                RediscoveryEvent::Ask => {}
                RediscoveryEvent::Moved(node, place) => state.moved(node, &place),
                RediscoveryEvent::Adopt(at) => {
                    if let Some((_, cluster)) = said.get(at) {
                        state.adopt(cluster, &self.inner.sources);
                    }
                }
            }
        }
        let cluster = state.cluster.clone();
        drop(state);
        self.inner.known.send_replace(cluster);
    }
}

impl State {
    fn moved(&mut self, node: NodeId, (peer, api): &Place) {
        tracing::info!(%node, %peer, "the node has moved");
        let nodes = &mut Arc::make_mut(&mut self.cluster).nodes;
        if let Some(place) = nodes.iter_mut().find(|place| place.node() == node) {
            place.peer = peer.to_string();
            place.api = api.to_string();
        }
    }

    fn adopt(&mut self, cluster: &Cluster, sources: &Sources) {
        let (before, now) = (self.cluster.epoch, cluster.epoch);
        tracing::warn!(
            before,
            now,
            "the cluster has another configuration: what was held under the old one is lost"
        );
        self.machine = Rediscovery::new(&told(Source::File, cluster), sources.adopts);
        self.cluster = Arc::new(cluster.clone());
    }
}

/// A round of questions.
async fn ask(directory: Directory, known: Arc<Cluster>) {
    let sources = &directory.inner.sources;
    let mut said = Vec::new();
    if let Some(path) = &sources.file {
        match crate::client::read(path) {
            Ok(cluster) => said.push((Source::File, cluster)),
            Err(error) => tracing::warn!(%error, "the cluster file cannot be read again"),
        }
    }
    let mut whom: Vec<(Source, String)> = Vec::new();
    for text in sources.endpoints.iter() {
        let each = text.split(',').map(str::trim).filter(|one| !one.is_empty());
        whom.extend(each.map(|one| (Source::Endpoint, one.to_owned())));
    }
    let apis = known.nodes.iter().filter(|node| !node.api.is_empty());
    whom.extend(apis.map(|node| (Source::Node(node.node()), node.api.clone())));
    said.extend(answers(whom, &directory.inner.security).await);
    // A cluster of another name is another cluster, whoever is where ours was.
    said.retain(|(_, cluster)| cluster.name == known.name && cluster.config().is_ok());
    directory.hear(&said);
}

fn told(source: Source, cluster: &Cluster) -> Told {
    let mut nodes: Vec<_> = cluster.nodes.iter().collect();
    nodes.sort_by_key(|node| node.id);
    let place = |node: &&conclave_wire::cluster::Node| {
        (Arc::from(node.peer.as_str()), Arc::from(node.api.as_str()))
    };
    let local = is_local(cluster);
    Told {
        source,
        config: conclave_protocol::lock::ConfigId {
            epoch: cluster.epoch,
            digest: cluster.digest(),
        },
        // On one machine there is nobody else to believe.
        byzantine: if local { 0 } else { cluster.faults.byzantine() },
        places: nodes.iter().map(place).collect(),
    }
}
