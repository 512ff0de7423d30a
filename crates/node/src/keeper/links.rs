//! Connections to the keepers of the other nodes, made again as long as the node lives.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use conclave_client::Security;
use conclave_client::secure::Tls;
use conclave_protocol::id::NodeId;
use conclave_protocol::keeper::{Answer, Ask};
use conclave_wire::Cluster;
use conclave_wire::codec::{First, first_frame};
use conclave_wire::greeting::{Credential, Greeting, Role, Service, decode_reply, encode_greeting};
use conclave_wire::keeper::{decode_answer, encode_ask};
use conclave_wire::version::SPOKEN;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use crate::sentry::Sentry;

/// The waits between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a node may take to accept a connection and to greet.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many questions wait for one node at the most; more are dropped, as a lost connection would.
const ASKS_MAX: usize = 4096;
/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// In which role a connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    /// As a node, which may only look.
    Node,
    /// As a client, or as a node that rebuilds what it lost.
    Client,
}

/// What a connection tells.
#[derive(Debug)]
pub(super) enum Event {
    Opened(As, NodeId),
    Closed(As, NodeId),
    Heard(As, NodeId, Answer),
}

/// What connections of one role are made with.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) role: As,
    pub(super) id: NodeId,
    pub(super) process: u128,
    pub(super) cluster: Cluster,
    pub(super) security: Security,
    pub(super) sentry: Sentry,
}

/// Connections to all other nodes, in one role.
pub(super) struct Links {
    asks: BTreeMap<NodeId, mpsc::Sender<Ask>>,
    tasks: tokio::task::JoinSet<Option<()>>,
}

impl Links {
    /// Begins to connect to all others.
    pub(super) fn open(dial: &Dial, events: &mpsc::Sender<Event>) -> Self {
        let mut links = Self {
            asks: BTreeMap::new(),
            tasks: tokio::task::JoinSet::new(),
        };
        for node in dial
            .cluster
            .nodes
            .iter()
            .map(conclave_wire::cluster::Node::node)
        {
            if node == dial.id {
                continue;
            }
            let (asks, wanted) = mpsc::channel(ASKS_MAX);
            links.asks.insert(node, asks);
            let keep = keep(dial.clone(), node, wanted, events.clone());
            let keep = dial.sentry.task("others", keep);
            links.tasks.spawn(keep);
        }
        links
    }

    /// Asks a node something; lost if it cannot be reached.
    pub(super) fn ask(&self, node: NodeId, ask: Ask) {
        if let Some(asks) = self.asks.get(&node) {
            let _ = asks.try_send(ask);
        }
    }

    /// Ends all connections.
    pub(super) fn end(mut self) {
        self.tasks.abort_all();
    }
}

async fn keep(
    dial: Dial,
    node: NodeId,
    mut asks: mpsc::Receiver<Ask>,
    events: mpsc::Sender<Event>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        let opened = tokio::time::timeout(PATIENCE, connect(&dial, node)).await;
        if let Ok(Ok(stream)) = opened {
            let greeted = tokio::time::timeout(PATIENCE, greet(&dial, node, stream)).await;
            if let Ok(Ok((stream, rest))) = greeted {
                pause = PAUSE_MIN;
                // What was asked before belongs to a connection that is gone.
                while asks.try_recv().is_ok() {}
                if events.send(Event::Opened(dial.role, node)).await.is_err() {
                    return;
                }
                let (reads, writes) = tokio::io::split(stream);
                tokio::select! {
                    _ = read(reads, rest, (dial.role, node), &events) => {}
                    _ = write(writes, &mut asks) => {}
                }
                if events.send(Event::Closed(dial.role, node)).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Plain or over TLS.
trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

async fn connect(dial: &Dial, node: NodeId) -> io::Result<Box<dyn Both>> {
    dial.security.check_bearers().map_err(io::Error::other)?;
    let place = dial.cluster.node(node.0 + 1);
    let peer = place.map(|node| node.peer.clone()).unwrap_or_default();
    let stream = TcpStream::connect(peer).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = dial.security.tls() else {
        return Ok(Box::new(stream));
    };
    let name = Tls::peer_name(&dial.cluster.name, node.0 + 1);
    let connector = TlsConnector::from(tls.client_config());
    Ok(Box::new(connector.connect(name, stream).await?))
}

async fn greet(
    dial: &Dial,
    node: NodeId,
    mut stream: Box<dyn Both>,
) -> io::Result<(Box<dyn Both>, Vec<u8>)> {
    let greeting = Greeting {
        versions: SPOKEN,
        role: match dial.role {
            As::Node => Role::Node(dial.id),
            As::Client => Role::Client,
        },
        target: node,
        process: dial.process,
        digest: dial.cluster.digest(),
        facts: dial.cluster.facts(),
        credential: match dial.role {
            // Its certificate shows that it is one.
            As::Node => None,
            // Each node gets its own token: one that lies cannot use it at the others.
            As::Client => {
                let token = dial.security.bearer_for(node);
                token.and_then(|token| Credential::new(token.reveal().as_bytes()))
            }
        },
        service: Service::Keeper,
    };
    let mut bytes = Vec::new();
    encode_greeting(&greeting, &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    loop {
        if let Some((reply, length)) = decode_reply(&bytes).map_err(io::Error::other)? {
            if let Err(refusal) = reply.accepted_by(node) {
                tracing::debug!(%node, %refusal, "another node refuses questions about objects");
                return Err(io::Error::other(refusal));
            }
            bytes.drain(..length);
            return Ok((stream, bytes));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn read(
    mut stream: impl AsyncRead + Unpin,
    mut bytes: Vec<u8>,
    (role, node): (As, NodeId),
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    loop {
        let mut taken = 0;
        loop {
            let first = first_frame(&bytes[taken..], decode_answer);
            let answer = match first.map_err(io::Error::other)? {
                First::Message(answer, length) => {
                    taken += length;
                    answer
                }
                // A newer node may send what this build does not know.
                First::Unknown(length) => {
                    taken += length;
                    continue;
                }
                First::Partial => break,
            };
            let heard = Event::Heard(role, node, answer);
            // A full channel makes this node read less, and the other wait.
            events.send(heard).await.map_err(io::Error::other)?;
        }
        bytes.drain(..taken);
        bytes.reserve(CHUNK);
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

async fn write(
    mut stream: impl AsyncWrite + Unpin,
    asks: &mut mpsc::Receiver<Ask>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(ask) = asks.recv().await {
        encode_ask(&ask, &mut bytes).map_err(io::Error::other)?;
        while let Ok(ask) = asks.try_recv() {
            encode_ask(&ask, &mut bytes).map_err(io::Error::other)?;
        }
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        bytes.clear();
    }
    Ok(())
}
