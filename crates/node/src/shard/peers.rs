//! Our connections to other nodes: opened when first needed, again after a while when they break.
//! Messages that cannot leave are kept for a while, the oldest are lost first; the protocol needs
//! none of them for its promises.

use std::collections::{BTreeSet, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use conclave_client::Security;
use conclave_client::secure::{Session, Tls};
use conclave_protocol::Instant;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Message;
use conclave_wire::cluster::differences;
use conclave_wire::greeting::{Rejection, decode_reply, encode_greeting};
use mio::net::TcpStream;

use super::conn::{self, Stage};
use super::door::Door;
use super::read::End;
use super::run::Loop;

/// Messages kept for a node that cannot be reached.
const QUEUE_MAX: usize = 1024;
/// The first wait before a connection is tried again, doubled with every failure.
const AGAIN_MIN: Duration = Duration::from_millis(50);
/// The longest wait before a connection is tried again.
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// How far the connection to a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing is needed, or not before this time.
    Idle { not_before: Instant },
    /// Its host name is being looked up.
    Resolving,
    /// Its connection; it takes messages once it is open.
    Conn { id: u64, open: bool },
}

#[derive(Debug)]
struct PeerLink {
    address: String,
    way: Way,
    queue: VecDeque<Message>,
    failures: u32,
    dialled: bool,
}

/// All other nodes.
#[derive(Debug)]
pub(super) struct Peers {
    links: Vec<PeerLink>,
    /// Nodes to be dialled and when.
    due: BTreeSet<(Instant, NodeId)>,
    resolver: mpsc::Sender<(NodeId, String)>,
}

impl Peers {
    pub(super) fn new(
        cluster: &conclave_wire::Cluster,
        resolver: mpsc::Sender<(NodeId, String)>,
    ) -> Self {
        let mut nodes: Vec<_> = cluster.nodes.iter().collect();
        nodes.sort_by_key(|node| node.id);
        let links = nodes.into_iter().map(|node| PeerLink {
            address: node.peer.clone(),
            way: Way::Idle {
                not_before: Instant::ZERO,
            },
            queue: VecDeque::new(),
            failures: 0,
            dialled: false,
        });
        Self {
            links: links.collect(),
            due: BTreeSet::new(),
            resolver,
        }
    }

    /// Where a node is.
    pub(super) fn address(&self, node: NodeId) -> Option<&str> {
        self.links
            .get(node.index())
            .map(|link| link.address.as_str())
    }

    /// Whether the last try to reach a node failed too.
    pub(super) fn failed_before(&self, node: NodeId) -> bool {
        let link = self.links.get(node.index());
        link.is_some_and(|link| link.failures > 0)
    }

    /// Asks for the address of a host name; false if nobody looks it up any more.
    pub(super) fn resolve(&self, node: NodeId, name: String) -> bool {
        self.resolver.send((node, name)).is_ok()
    }

    /// When the next node is to be dialled.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

/// Looks up host names off the shard's thread, until the shard is gone.
pub(super) fn resolve_all(
    names: &mpsc::Receiver<(NodeId, String)>,
    found: impl Fn(NodeId, Result<SocketAddr, String>),
) {
    for (node, name) in names {
        let addresses = name.to_socket_addrs();
        let first = addresses.map(|mut all| all.next());
        found(
            node,
            match first {
                Ok(Some(address)) => Ok(address),
                Ok(None) => Err("no address".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        );
    }
}

/// How a connection of ours to this node speaks.
pub(super) fn dial_way(
    security: &Security,
    door: &Door,
    node: NodeId,
) -> Result<conn::Way, String> {
    let Some(tls) = security.tls() else {
        return Ok(conn::Way::Plain);
    };
    let name = Tls::peer_name(&door.cluster, node.0 + 1);
    let session = Session::dial(tls.current_client_config(), name);
    let session = session.map_err(|error| error.to_string())?;
    Ok(conn::Way::Tls(Box::new(session)))
}

impl Loop {
    /// Sends to another node over our connection to it, which is opened if need be.
    pub(super) fn send_to_node(&mut self, node: NodeId, message: &Message) {
        let Some(link) = self.peers.links.get_mut(node.index()) else {
            return;
        };
        if let Way::Conn { id, open: true } = link.way {
            if !self.conns.send(id, message) {
                self.overflows(id);
            }
            return;
        }
        if let Message::TokenClock { .. } = message {
            // The newest says all that the older ones say.
            let older = |kept: &Message| matches!(kept, Message::TokenClock { .. });
            link.queue.retain(|kept| !older(kept));
        }
        if link.queue.len() >= QUEUE_MAX {
            link.queue.pop_front();
        }
        link.queue.push_back(message.clone());
        if let Way::Idle { not_before } = link.way {
            self.peers.due.insert((not_before, node));
        }
    }

    /// Opens the connections that are needed and whose time has come.
    pub(super) fn dial_due(&mut self) {
        let now = self.now().mono;
        while let Some((at, node)) = self.peers.due.first().copied() {
            if at > now {
                break;
            }
            self.peers.due.pop_first();
            self.dial(node);
        }
    }

    fn dial(&mut self, node: NodeId) {
        let Some(link) = self.peers.links.get_mut(node.index()) else {
            return;
        };
        if !matches!(link.way, Way::Idle { .. }) {
            return;
        }
        link.way = Way::Resolving;
        if let Ok(address) = link.address.parse::<SocketAddr>() {
            self.resolved(node, Ok(address));
        } else {
            let name = link.address.clone();
            if self.peers.resolver.send((node, name)).is_err() {
                self.resolved(node, Err("host names cannot be looked up".to_owned()));
            }
        }
    }

    /// The address of a node is known, or why not.
    pub(super) fn resolved(&mut self, node: NodeId, found: Result<SocketAddr, String>) {
        let now = self.now().mono;
        let Some(link) = self.peers.links.get_mut(node.index()) else {
            return;
        };
        if link.way != Way::Resolving {
            return;
        }
        if std::mem::replace(&mut link.dialled, true) {
            self.meters.reconnects.inc();
        }
        let opened = found.and_then(|address| {
            let socket = TcpStream::connect(address).map_err(|error| error.to_string())?;
            let stage = Stage::Dialled { node, open: false };
            let way = dial_way(&self.security, &self.door, node)?;
            let added = self.conns.add(socket, address, stage, way, now);
            added.map_err(|error| error.to_string())
        });
        match opened {
            Ok(id) => {
                link.way = Way::Conn { id, open: false };
                let greeting = self.door.greeting(node);
                self.conns
                    .send_raw(id, |output| encode_greeting(&greeting, output));
            }
            Err(problem) => {
                if !self.peers.failed_before(node) && self.quiet.may_speak(now) {
                    tracing::warn!(%node, problem, "cannot reach another node; trying again");
                }
                self.try_again(node);
            }
        }
    }

    /// Whether a socket that we opened is connected by now; one that failed is ended.
    pub(super) fn socket_opened(&mut self, id: u64) -> bool {
        let Some(conn) = self.conns.get_mut(id) else {
            return false;
        };
        let socket = conn.socket();
        let failed = socket.take_error().ok().flatten();
        if failed.is_none() && socket.peer_addr().is_err() {
            // Not yet: the socket says so again.
            return false;
        }
        if let Some(error) = failed {
            self.end_conn(id, &End::Broken(error.to_string()));
            return false;
        }
        // Without it a frame may wait for an acknowledgement: slower, not wrong.
        let _ = socket.set_nodelay(true);
        conn.unblock();
        true
    }

    /// A connection of ours is open, or failed to.
    pub(super) fn dialled(&mut self, id: u64, node: NodeId) {
        if !self.socket_opened(id) {
            return;
        }
        self.conns
            .set_stage(id, Stage::Dialled { node, open: true });
        if let Some(link) = self.peers.links.get_mut(node.index()) {
            link.way = Way::Conn { id, open: true };
            for message in std::mem::take(&mut link.queue) {
                self.conns.send(id, &message);
            }
        }
        self.conns.mark_dirty(id);
    }

    /// Takes the reply of another node off the front of what it sent.
    pub(super) fn take_reply(
        &mut self,
        id: u64,
        node: NodeId,
        bytes: &[u8],
    ) -> Result<Option<usize>, End> {
        let (reply, used) = match decode_reply(bytes) {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                return Err(End::Broken(error.to_string()));
            }
        };
        if let Err(refusal) = reply.accepted_by(node) {
            if let Rejection::Twin { node } = refusal {
                tracing::error!(%node, "another process also serves as this node; stop one");
            }
            let problem = match &refusal {
                Rejection::Config { facts } => {
                    let differ = differences(&self.door.facts, facts).unwrap_or_default();
                    format!("it refuses: {refusal}: {}", differ.escape_debug())
                }
                _ => format!("it refuses: {refusal}"),
            };
            return Err(End::Broken(problem));
        }
        self.conns.set_stage(id, Stage::Spoken(node));
        if let Some(link) = self.peers.links.get_mut(node.index()) {
            link.failures = 0;
        }
        Ok(Some(used))
    }

    /// A connection of ours is gone.
    pub(super) fn dial_failed(&mut self, node: NodeId, id: u64) {
        let link = self.peers.links.get(node.index());
        if link.is_some_and(|link| matches!(link.way, Way::Conn { id: kept, .. } if kept == id)) {
            self.try_again(node);
        }
    }

    fn try_again(&mut self, node: NodeId) {
        let now = self.now().mono;
        let Some(link) = self.peers.links.get_mut(node.index()) else {
            return;
        };
        let wait = AGAIN_MIN
            .saturating_mul(1 << link.failures.min(16))
            .min(AGAIN_MAX);
        link.failures = link.failures.saturating_add(1);
        // Half to all of it, so that nodes do not come back in step.
        let share = getrandom::u32().unwrap_or(0) % 512 + 512;
        let not_before = now + wait * share / 1024;
        link.way = Way::Idle { not_before };
        if !link.queue.is_empty() {
            self.peers.due.insert((not_before, node));
        }
    }
}
