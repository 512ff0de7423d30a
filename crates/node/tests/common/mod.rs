//! Clusters of real nodes in one process, and raw connections to them.
#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub)]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conclave_client::driver::{Driver, Job, Work};
use conclave_node::shard::{Query, Report};
use conclave_node::store::{Memory, Store};
use conclave_node::{Node, Options};
use conclave_protocol::id::{ClientId, ConnNo, Name, NodeId};
use conclave_protocol::lock::{Acquire, ClientEvent, Message, Mode};
use conclave_wire::Cluster;
use conclave_wire::codec::{Decoder, Encoder};
use conclave_wire::greeting::{Greeting, Reply, Role, Service, decode_reply, encode_greeting};
use conclave_wire::handle::Key;
use conclave_wire::version::SPOKEN;

/// Nothing in a test takes as long unless it hangs.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The sockets of a cluster and its file.
pub struct Plan {
    pub cluster: Cluster,
    pub sockets: Vec<Option<(TcpListener, TcpListener)>>,
}

pub fn plan(nodes: u32) -> Plan {
    plan_with(nodes, "")
}

/// A cluster with more lines at the top level of its file.
pub fn plan_with(nodes: u32, more: &str) -> Plan {
    plan_of(nodes, "majority", more)
}

/// A cluster of this quorum system, with more lines at the top level of its file.
pub fn plan_of(nodes: u32, quorum: &str, more: &str) -> Plan {
    let mut text = format!("name = \"test\"\nepoch = 1\nquorum = \"{quorum}\"\n{more}\n");
    let mut sockets = Vec::new();
    for id in 1..=nodes {
        let peer = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = TcpListener::bind("127.0.0.1:0").unwrap();
        let _ = write!(
            text,
            "[[nodes]]\nid = {id}\npeer = \"{}\"\napi = \"http://{}\"\n",
            peer.local_addr().unwrap(),
            api.local_addr().unwrap()
        );
        sockets.push(Some((peer, api)));
    }
    Plan {
        cluster: Cluster::parse(&text).unwrap(),
        sockets,
    }
}

impl Plan {
    pub fn peer(&self, id: u32) -> SocketAddr {
        self.cluster.node(id).unwrap().peer.parse().unwrap()
    }

    /// Options with the sockets bound at first, or bound again to the same ports.
    pub fn options(&mut self, id: u32, data: &Path) -> Options {
        let taken = self.sockets[id as usize - 1].take();
        let (peer, api) = taken.unwrap_or_else(|| {
            let node = self.cluster.node(id).unwrap();
            let api = node.api.strip_prefix("http://").unwrap();
            (rebind(&node.peer), rebind(api))
        });
        Options {
            cluster: self.cluster.clone(),
            id,
            data: data.to_owned(),
            init: true,
            key: Key::new(b"secret"),
            peer,
            api,
            history: None,
            access: None,
            audit: None,
            security: conclave_client::Security::default(),
            liar: None,
            rejoin: None,
            change: None,
            api_names: Vec::new(),
        }
    }

    pub fn start_on(&mut self, id: u32, store: impl Store + 'static) -> Node {
        let options = self.options(id, Path::new("unused"));
        let clock = Arc::new(conclave_client::clock::now);
        Node::start_on(options, Box::new(store), clock).unwrap()
    }

    pub fn start_all(&mut self) -> Vec<Node> {
        let ids = 1..=self.cluster.nodes.len() as u32;
        ids.map(|id| self.start_on(id, Memory::default())).collect()
    }
}

/// The port of a node that has just ended may need a moment.
pub fn rebind(address: &str) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{address}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.unwrap_or_else(|_| panic!("{what} takes too long"))
}

pub async fn state(node: &Node) -> &'static str {
    match node.shard().inspect(Query::Overview).await {
        Some(Report::Overview { state, .. }) => state,
        other => panic!("{other:?}"),
    }
}

pub async fn until_state(node: &Node, wanted: &str) {
    in_time(wanted, async {
        while state(node).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub fn wish(name: &str) -> Acquire {
    Acquire::new(Name::new(name), Mode::Exclusive, Duration::from_secs(10))
}

/// Takes a lock and gives its token.
pub async fn acquire(driver: &Driver, name: &str) -> (Job, u64) {
    acquire_as(driver, wish(name)).await
}

/// Has a wish come true and gives its token.
pub async fn acquire_as(driver: &Driver, wish: Acquire) -> (Job, u64) {
    let mut job = driver.begin(Work::Acquire(wish));
    let token = in_time("acquire", async {
        loop {
            match job.next().await {
                Some(ClientEvent::Entered { token, .. }) => return token.0,
                Some(ClientEvent::Position(..)) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    (job, token)
}

/// A connection that says exactly what the test wants.
pub struct Raw {
    pub stream: TcpStream,
    pub encoder: Encoder,
    pub decoder: Decoder,
    pub bytes: Vec<u8>,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            bytes: Vec::new(),
        }
    }

    /// A connection that has greeted and was accepted.
    pub fn greeted(cluster: &Cluster, id: u32) -> Self {
        let address = cluster.node(id).unwrap().peer.parse().unwrap();
        let mut raw = Self::connect(address);
        raw.greet(&greeting(cluster, id));
        let reply = raw.reply().expect("a reply");
        assert_eq!(reply.refusal, None);
        raw
    }

    pub fn greet(&mut self, greeting: &Greeting) {
        let mut bytes = Vec::new();
        encode_greeting(greeting, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn send(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        self.encoder.encode(message, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Reads more; false at the end.
    pub fn more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(bytes) => {
                self.bytes.extend_from_slice(&chunk[..bytes]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }

    pub fn reply(&mut self) -> Option<Reply> {
        loop {
            if let Some((reply, used)) = decode_reply(&self.bytes).unwrap() {
                self.bytes.drain(..used);
                return Some(reply);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// The next message; none at the end.
    pub fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((message, used)) = self.decoder.decode(&self.bytes).unwrap() {
                self.bytes.drain(..used);
                return Some(message);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// Whether the other side has ended the connection; waits for it.
    pub fn ends(&mut self) -> bool {
        while self.more() {}
        true
    }
}

pub fn greeting(cluster: &Cluster, target: u32) -> Greeting {
    Greeting {
        versions: SPOKEN,
        role: Role::Client,
        target: NodeId(target - 1),
        process: 77,
        digest: cluster.digest(),
        facts: cluster.facts(),
        credential: None,
        service: Service::Locks,
    }
}

pub fn hello(cluster: &Cluster, client: u128, conn: u64) -> Message {
    Message::Hello {
        client: ClientId(client),
        conn: ConnNo(conn),
        config: cluster.config().unwrap().id,
    }
}
