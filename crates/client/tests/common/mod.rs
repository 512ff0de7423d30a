//! A cluster of real node machines behind real sockets, in the test's own process. Its nodes can
//! be silenced, killed, started again, and made to say anything.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several tests, each of which uses its own part"
)]

pub mod proxy;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conclave_client::clock;
use conclave_client::{Client, Cluster};
use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::lock::{Config, LockNode, NodeEffects, NodeEvent, NodeInput, Start, To};
use conclave_protocol::{Effects, Instant, Machine};
use conclave_wire::cluster::{Facts, LimitsText, Node, RestartText, Times};
use conclave_wire::codec::{Decoder, Encoder};
use conclave_wire::faults::FaultsText;
use conclave_wire::greeting::{Rejection, Reply, decode_greeting, encode_reply};
use conclave_wire::version::SPOKEN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

/// More than any wait of a test that goes well.
pub const LONG: Duration = Duration::from_secs(30);

/// Ends a test that hangs.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(LONG, future).await;
    waited.unwrap_or_else(|_| panic!("{what}: not within {LONG:?}"))
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    soon(what, async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// How a node behaves.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// It hears and says nothing; its own time goes on.
    pub mute: bool,
    /// What it answers to greetings instead of a welcome.
    pub rejection: Option<Rejection>,
    /// Who it says it is, if not itself.
    pub claims: Option<u32>,
    /// What it says right after its reply.
    pub garbage: Vec<u8>,
}

struct Inner {
    machine: LockNode,
    written: u64,
    links: BTreeMap<LinkId, (mpsc::UnboundedSender<Vec<u8>>, Encoder)>,
    last_link: u64,
    manners: Manners,
    events: Vec<(Instant, NodeEvent)>,
}

pub struct FakeNode {
    id: NodeId,
    pub addr: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    timer: Arc<Notify>,
    running: Mutex<Vec<AbortHandle>>,
}

impl Inner {
    fn step(&mut self, input: NodeInput) {
        let mut out: NodeEffects = Effects::new();
        self.machine.handle(clock::now(), input, &mut out);
        self.apply(out);
    }

    fn apply(&mut self, mut out: NodeEffects) {
        for envelope in out.send_now.drain(..) {
            self.send(envelope.to, &envelope.message);
        }
        for event in out.events.drain(..) {
            if let NodeEvent::Close(link) = event {
                self.links.remove(&link);
            }
            self.events.push((clock::now().mono, event));
        }
        let records = out.persist.len() as u64;
        for envelope in out.send_durable.drain(..) {
            self.send(envelope.to, &envelope.message);
        }
        if records > 0 {
            self.written += records;
            self.step(NodeInput::Durable(self.written));
        }
    }

    fn send(&mut self, to: To, message: &conclave_protocol::lock::Message) {
        let To::Link(link) = to else { return };
        if let Some((sender, encoder)) = self.links.get_mut(&link) {
            let mut bytes = Vec::new();
            encoder.encode(message, &mut bytes);
            if !self.manners.mute {
                let _ = sender.send(bytes);
            }
        }
    }
}

impl FakeNode {
    async fn start(config: Arc<Config>, id: NodeId, addr: SocketAddr) -> Self {
        let mut out: NodeEffects = Effects::new();
        let machine = LockNode::start(config, id, 7, Start::Init, clock::now(), &mut out);
        let mut inner = Inner {
            machine,
            written: 0,
            links: BTreeMap::new(),
            last_link: 0,
            manners: Manners::default(),
            events: Vec::new(),
        };
        inner.apply(out);
        let node = Self {
            id,
            addr,
            inner: Arc::new(Mutex::new(inner)),
            timer: Arc::new(Notify::new()),
            running: Mutex::new(Vec::new()),
        };
        node.listen().await;
        let (inner, timer) = (node.inner.clone(), node.timer.clone());
        // Its time goes on when its sockets are gone.
        tokio::spawn(async move {
            loop {
                let wake = inner.lock().unwrap().machine.next_wake();
                let left = wake.map(|wake| wake.at.since(clock::now().mono));
                let sleep = tokio::time::sleep(left.unwrap_or(LONG));
                tokio::select! {
                    () = sleep => {}
                    () = timer.notified() => {}
                }
                let mut inner = inner.lock().unwrap();
                let wake = inner.machine.next_wake();
                if wake.is_some_and(|wake| wake.at <= clock::now().mono) {
                    inner.step(NodeInput::Wake);
                }
            }
        });
        node
    }

    /// Opens its port; again after [`FakeNode::hang_up`].
    pub async fn listen(&self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.addr).unwrap();
        let listener = socket.listen(64).unwrap();
        let (id, inner, timer) = (self.id, self.inner.clone(), self.timer.clone());
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn(serve(id, stream, inner.clone(), timer.clone()));
            }
        });
        self.running.lock().unwrap().push(task.abort_handle());
        tokio::task::yield_now().await;
    }

    /// Closes its port and all its connections.
    pub async fn hang_up(&self) {
        for task in self.running.lock().unwrap().drain(..) {
            task.abort();
        }
        // Aborted tasks close their sockets when they are dropped.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut inner = self.inner.lock().unwrap();
        for link in std::mem::take(&mut inner.links).into_keys() {
            inner.step(NodeInput::Closed(link));
        }
    }

    /// Changes how it behaves.
    pub fn behave(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.inner.lock().unwrap().manners);
    }

    /// When it granted the lock, and to which request of its session.
    pub fn grants(&self, name: &str) -> Vec<Instant> {
        let inner = self.inner.lock().unwrap();
        let granted = inner.events.iter().filter(|(_, event)| {
            matches!(event, NodeEvent::Granted { ask, .. } if ask.name.bytes() == name.as_bytes())
        });
        granted.map(|(at, _)| *at).collect()
    }

    /// How many requests it keeps for the lock.
    pub fn requests(&self, name: &str) -> usize {
        let inner = self.inner.lock().unwrap();
        let name = conclave_client::Name::new(name);
        inner
            .machine
            .view(&name)
            .map_or(0, |view| view.entries.len())
    }

    /// How many connections it has.
    pub fn connections(&self) -> usize {
        self.inner.lock().unwrap().links.len()
    }
}

async fn serve(id: NodeId, stream: TcpStream, inner: Arc<Mutex<Inner>>, timer: Arc<Notify>) {
    stream.set_nodelay(true).unwrap();
    let (mut read, mut write) = stream.into_split();
    let (sender, mut receiver) = mpsc::unbounded_channel::<Vec<u8>>();
    let mut writer = tokio::task::JoinSet::new();
    writer.spawn(async move {
        while let Some(mut bytes) = receiver.recv().await {
            while let Ok(more) = receiver.try_recv() {
                bytes.extend(more);
            }
            if write.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    let mut bytes = Vec::new();
    let mut decoder = Decoder::new();
    let mut link = None;
    loop {
        {
            let mut inner = inner.lock().unwrap();
            if link.is_none()
                && let Ok(Some((_, length))) = decode_greeting(&bytes)
            {
                bytes.drain(..length);
                let manners = inner.manners.clone();
                let reply = Reply {
                    version: SPOKEN.newest(),
                    node: manners.claims.map_or(id, NodeId),
                    process: 1,
                    refusal: manners.rejection.clone(),
                    standing: None,
                };
                let mut answer = Vec::new();
                encode_reply(&reply, &mut answer);
                answer.extend(manners.garbage);
                let _ = sender.send(answer);
                if manners.rejection.is_some() {
                    break;
                }
                inner.last_link += 1;
                let number = LinkId(inner.last_link);
                inner.links.insert(number, (sender.clone(), Encoder::new()));
                link = Some(number);
            }
            while let Some(link) = link {
                let Ok(Some((message, length))) = decoder.decode(&bytes) else {
                    break;
                };
                bytes.drain(..length);
                if !inner.manners.mute {
                    inner.step(NodeInput::Receive(link, message));
                }
            }
            if link.is_some_and(|link| !inner.links.contains_key(&link)) {
                // The machine has closed it.
                break;
            }
        }
        timer.notify_one();
        match read.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    drop(sender);
    if let Some(link) = link {
        let mut inner = inner.lock().unwrap();
        inner.links.remove(&link);
        inner.step(NodeInput::Closed(link));
    }
    timer.notify_one();
    // What was said last still leaves.
    let _ = tokio::time::timeout(Duration::from_secs(1), writer.join_next()).await;
}

/// Some nodes and the description of their cluster.
pub struct FakeCluster {
    pub cluster: Cluster,
    pub nodes: Vec<FakeNode>,
}

impl FakeCluster {
    pub async fn start(count: usize) -> Self {
        let span = |millis| Some(conclave_wire::Span(Duration::from_millis(millis)));
        let times = Times {
            link_ttl: span(400),
            heartbeat: span(50),
            ..Times::default()
        };
        Self::start_with(count, times).await
    }

    pub async fn start_with(count: usize, times: Times) -> Self {
        let mut addrs = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addrs.push(listener.local_addr().unwrap());
        }
        let describe = |(index, addr): (usize, &SocketAddr)| Node {
            id: index as u32 + 1,
            peer: addr.to_string(),
            api: format!("http://{addr}"),
            place: None,
        };
        let cluster = Cluster {
            name: "fake".to_owned(),
            epoch: 1,
            quorum: "majority".to_owned(),
            topology: None,
            coterie: None,
            groups: Vec::new(),
            restart: RestartText::Pause,
            times,
            limits: LimitsText::default(),
            faults: FaultsText::default(),
            policies: Vec::new(),
            nodes: addrs.iter().enumerate().map(describe).collect(),
        };
        let config = cluster.shared_config().unwrap();
        let mut nodes = Vec::new();
        for (index, addr) in addrs.into_iter().enumerate() {
            nodes.push(FakeNode::start(config.clone(), NodeId::at(index), addr).await);
        }
        Self { cluster, nodes }
    }

    pub async fn client(&self, owner: &str) -> Client {
        let builder = Client::builder().cluster(self.cluster.clone());
        builder.owner(owner).connect().await.unwrap()
    }

    /// How many requests all nodes keep for the lock.
    pub fn requests(&self, name: &str) -> usize {
        self.nodes.iter().map(|node| node.requests(name)).sum()
    }

    /// Changes how all nodes behave.
    pub fn behave(&self, change: impl Fn(&mut Manners)) {
        for node in &self.nodes {
            node.behave(&change);
        }
    }

    /// The facts of a cluster of another epoch.
    pub fn other_facts(&self) -> Facts {
        let mut other = self.cluster.clone();
        other.epoch = 9;
        other.facts()
    }
}
