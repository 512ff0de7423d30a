//! Who may come in: accepting connections and answering their greetings.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use conclave_client::secure::{NO_TLS_ALERT, Port, is_client_hello};
use conclave_protocol::Instant;
use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::lock::{ConfigId, NodeInput};
use conclave_protocol::membership::{Stage as Standpoint, Standing};
use conclave_wire::cluster::{Facts, differences};
use conclave_wire::greeting::{
    Greeting, Rejection, Reply, Role, Service, decode_greeting, encode_reply,
};
use conclave_wire::version::SPOKEN;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};

use super::conn::{Stage, Way};
use super::read::End;
use super::run::{LISTENER, Loop};
use crate::access::TokenHash;
use crate::who::account_of;

/// At most this many connections are accepted per round.
const ACCEPT_ROUND: usize = 64;
/// After the system has refused a connection (no more file descriptors), so long is none taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// No greeting is longer: whoever announces more is not one of us.
const GREETING_MAX: usize = 64 * 1024;

/// The listener, and what a greeting is compared with.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) id: NodeId,
    pub(super) process: u128,
    /// The name of the cluster.
    pub(super) cluster: String,
    pub(super) nodes: usize,
    pub(super) digest: [u8; 16],
    pub(super) facts: Facts,
    /// Of the configuration: its number, and how many nodes the one before had.
    epoch: u64,
    before: u32,
    /// How many nodes may lie, and whether all of them are on this machine.
    pub(super) liars: usize,
    pub(super) local: bool,
    /// Where nodes are; none if that takes a look at names.
    places: Option<BTreeSet<IpAddr>>,
    listener: Option<TcpListener>,
    /// Connections that were accepted before the loop began.
    early: Vec<std::net::TcpStream>,
    rings: bool,
    again: Option<Instant>,
    /// The connection of each other node, and its process.
    speakers: BTreeMap<NodeId, (u128, u64)>,
}

impl Door {
    pub(super) fn new(
        id: NodeId,
        process: u128,
        cluster: &conclave_wire::Cluster,
        before: u32,
        early: Vec<std::net::TcpStream>,
    ) -> Self {
        Self {
            id,
            process,
            cluster: cluster.name.clone(),
            nodes: cluster.nodes.len(),
            digest: cluster.digest(),
            facts: cluster.facts(),
            epoch: cluster.epoch,
            before,
            liars: cluster.faults.byzantine(),
            local: cluster.nodes.iter().all(|node| is_local(&node.peer)),
            places: cluster.nodes.iter().map(|node| place(&node.peer)).collect(),
            listener: None,
            early,
            rings: false,
            again: None,
            speakers: BTreeMap::new(),
        }
    }

    pub(super) fn listen(
        &mut self,
        mut listener: TcpListener,
        registry: &Registry,
    ) -> io::Result<()> {
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Somebody is at the door.
    pub(super) fn ring(&mut self) {
        self.rings = true;
    }

    /// When to look at the door again without being rung.
    pub(super) fn again(&self) -> Option<Instant> {
        self.again.filter(|_| self.rings)
    }

    /// The connection of another node is gone.
    pub(super) fn node_left(&mut self, node: NodeId, id: u64) {
        if self
            .speakers
            .get(&node)
            .is_some_and(|(_, kept)| *kept == id)
        {
            self.speakers.remove(&node);
        }
    }

    /// What this node says when it opens a connection.
    pub(super) fn greeting(&self, target: NodeId) -> Greeting {
        Greeting {
            versions: SPOKEN,
            role: Role::Node(self.id),
            target,
            process: self.process,
            digest: self.digest,
            facts: self.facts.clone(),
            credential: None,
            service: Service::Locks,
        }
    }

    /// Whether a node may be at this address.
    fn may_be_node(&self, address: IpAddr) -> bool {
        let places = self.places.as_ref();
        places.is_none_or(|places| places.contains(&address.to_canonical()))
    }

    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.listener {
            Some(listener) => listener.accept(),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Why a greeting is refused, if it is, apart from its version and how many there are.
    fn judge(&self, greeting: &Greeting) -> Option<Rejection> {
        if greeting.target != self.id {
            return Some(Rejection::OtherNode { node: self.id });
        }
        // Whoever asks how this node stands may be about to change its configuration.
        if greeting.service == Service::Change {
            return None;
        }
        if greeting.digest != self.digest {
            let facts = self.facts.clone();
            return Some(Rejection::Config { facts });
        }
        // Another node may look at objects on as many connections as it likes.
        let Role::Node(node) = greeting.role else {
            return None;
        };
        if greeting.service != Service::Locks {
            return None;
        }
        let twin = node == self.id
            || self
                .speakers
                .get(&node)
                .is_some_and(|(process, _)| *process != greeting.process);
        twin.then_some(Rejection::Twin { node })
    }
}

impl Loop {
    /// Takes in connections that came before the loop began.
    pub(super) fn accept_early(&mut self) {
        for socket in std::mem::take(&mut self.door.early) {
            let Ok(address) = socket.peer_addr() else {
                continue;
            };
            if socket.set_nonblocking(true).is_ok() {
                self.welcome(TcpStream::from_std(socket), address);
            }
        }
    }

    /// Accepts whoever is at the door.
    pub(super) fn accept(&mut self) {
        let now = self.now().mono;
        if !self.door.rings || self.door.again.is_some_and(|again| now < again) {
            return;
        }
        self.door.again = None;
        for _ in 0..ACCEPT_ROUND {
            match self.door.accept() {
                Ok((socket, address)) => self.welcome(socket, address),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.door.rings = false;
                    return;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    if self.quiet.may_speak(now) {
                        tracing::warn!(%error, "cannot accept connections; trying again");
                    }
                    self.door.again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        // There may be more: they have their turn in the next round, which comes at once.
        self.door.again = Some(now);
    }

    fn welcome(&mut self, socket: TcpStream, address: SocketAddr) {
        self.meters.accepted.inc();
        let now = self.now().mono;
        if self.conns.is_crowded() {
            self.meters.refused("crowded");
            if self.quiet.may_speak(now) {
                tracing::warn!(peer = %address, "too many connections that do not greet");
            }
            return;
        }
        // Without it a frame may wait for an acknowledgement: slower, not wrong.
        let _ = socket.set_nodelay(true);
        let tls = self.security.tls();
        let way = match tls.and_then(|tls| tls.server_config(Port::Peer)) {
            Some(config) => Way::Unknown(config),
            None => Way::Plain,
        };
        let added = self.conns.add(socket, address, Stage::Waiting, way, now);
        if let Err(error) = added
            && self.quiet.may_speak(now)
        {
            tracing::warn!(peer = %address, %error, "cannot watch a new connection");
        }
    }

    /// Takes the greeting off the front of what a new connection sent.
    pub(super) fn take_greeting(&mut self, id: u64, bytes: &[u8]) -> Result<Option<usize>, End> {
        if announced(bytes).is_some_and(|length| length > GREETING_MAX) {
            self.meters.damaged.inc();
            if is_client_hello(bytes) {
                self.meters.refused("tls");
                let say = |output: &mut Vec<u8>| output.extend_from_slice(&NO_TLS_ALERT);
                self.conns.send_raw(id, say);
                let now = self.now().mono;
                if let Some(peer) = self.conns.address(id)
                    && self.quiet.may_speak(now)
                {
                    tracing::warn!(%peer, "refused: it speaks TLS, and this node has no [tls]");
                }
                self.conns.close_soon(id, now);
                return Ok(Some(bytes.len()));
            }
            return Err(End::Rude("what it sends is no greeting"));
        }
        match decode_greeting(bytes) {
            Ok(Some((greeting, used))) => {
                self.greet(id, &greeting)?;
                Ok(Some(used))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                Err(End::Broken(error.to_string()))
            }
        }
    }

    fn greet(&mut self, id: u64, greeting: &Greeting) -> Result<(), End> {
        let now = self.now().mono;
        if let Role::Node(node) = greeting.role
            && node.index() >= self.door.nodes
            && greeting.digest == self.door.digest
        {
            return Err(End::Rude(
                "it claims to be a node that the cluster does not have",
            ));
        }
        let client = greeting.role == Role::Client || greeting.service == Service::Keeper;
        let version = greeting.choose_version();
        let judged = version.clone().err().or_else(|| self.door.judge(greeting));
        // Who is not believed learns nothing but that.
        let who = self.who(id, greeting);
        let address = self.conns.address(id).map(|address| address.ip());
        let account = match &who {
            Ok(Some(who)) => Some(who.principal.clone()),
            _ => address.map(account_of),
        };
        let limits = &self.config.limits;
        let many = |account| self.conns.of_account(account) >= limits.connections_per_client;
        let full = client
            && (self.conns.clients() >= limits.clients || account.as_ref().is_some_and(many));
        let refusal = match &who {
            Err(refusal) => Some(refusal.clone()),
            Ok(who) => judged
                .or_else(|| self.judge_service(id, greeting, who.as_ref()))
                .or_else(|| full.then_some(Rejection::Full)),
        };
        let asked = greeting.service == Service::Change && refusal.is_none();
        let version = version.unwrap_or(SPOKEN.newest());
        let reply = Reply {
            version,
            node: self.door.id,
            process: self.door.process,
            refusal: refusal.clone(),
            standing: asked.then(|| self.standing(greeting.role)),
        };
        self.conns
            .send_raw(id, |output| encode_reply(&reply, output));
        if let Some(refusal) = refusal {
            self.reject(id, greeting, &refusal);
            return Ok(());
        }
        self.meters.greeted(version);
        if asked {
            self.conns.close_soon(id, now);
            return Ok(());
        }
        if client && let Some(account) = account.clone() {
            self.conns.charge(id, account);
        }
        if let (Ok(Some(who)), Some(token)) = (&who, &greeting.credential)
            && !self.gate.is_open()
        {
            let token = TokenHash::of(token.bytes());
            self.conns.let_in(id, token, who.principal.clone());
        }
        match greeting.role {
            _ if greeting.service == Service::Keeper => {
                self.conns.set_stage(id, Stage::Keeper);
                self.keeper_came(id, greeting.role, who.ok().flatten());
            }
            Role::Client => {
                self.conns.set_stage(id, Stage::Client { known: false });
                self.conns.watch(id, now);
                let link = LinkId(id);
                if let Ok(Some(who)) = who {
                    self.step(NodeInput::Opened(link, who));
                } else if let (Some(address), Some(ip)) = (account, address) {
                    let gateway = self.door.may_be_node(ip);
                    self.step(NodeInput::OpenedFrom {
                        link,
                        address,
                        gateway,
                    });
                }
            }
            Role::Node(node) if greeting.service == Service::Levels => self.level_came(id, node),
            Role::Node(node) => {
                self.conns.set_stage(id, Stage::Node(node));
                let old = self.door.speakers.insert(node, (greeting.process, id));
                if let Some((_, old)) = old {
                    self.conns.close_soon(old, now);
                }
            }
        }
        Ok(())
    }

    /// How this node stands: it serves what it started with, unless it has lost its disk and does
    /// not know yet what that was.
    fn standing(&self, asker: Role) -> Standing {
        let (floor, life) = match asker {
            Role::Node(node) => self.node.known(node),
            Role::Client => Default::default(),
        };
        Standing {
            config: ConfigId {
                epoch: self.door.epoch,
                digest: self.door.digest,
            },
            stage: match self.node.state() {
                "recovering" => Standpoint::Joining,
                _ => Standpoint::Serving,
            },
            floor,
            mark: self.keepers.mark(),
            objects: 0,
            before: self.door.before,
            life,
        }
    }

    fn reject(&mut self, id: u64, greeting: &Greeting, refusal: &Rejection) {
        let now = self.now().mono;
        self.meters.refused(match refusal {
            Rejection::Version(_) => "version",
            Rejection::OtherNode { .. } => "other_node",
            Rejection::Twin { .. } => "twin",
            Rejection::Config { .. } => "config",
            Rejection::Full => "full",
            Rejection::Credential => "credential",
            Rejection::Identity { .. } => "identity",
            Rejection::Service { .. } => "service",
            Rejection::Other { .. } => "other",
        });
        // At its start a node looks whether it is its own twin, perhaps through a proxy.
        let own = greeting.process == self.door.process;
        if let Some(address) = self.conns.address(id)
            && !own
            && self.quiet.may_speak(now)
        {
            let differ = differences(&self.door.facts, &greeting.facts);
            let differ = differ.filter(|_| matches!(refusal, Rejection::Config { .. }));
            // What the other side sent goes to the log without its control characters.
            let differ = differ.unwrap_or_default().escape_debug().to_string();
            tracing::warn!(
                peer = %address,
                role = ?greeting.role,
                reason = %refusal,
                %differ,
                "connection refused"
            );
        }
        if let (Rejection::Credential, Some(audit)) = (refusal, &self.audit) {
            let from = self.conns.address(id).map(|address| address.to_string());
            let from = from.unwrap_or_default();
            audit.audit().refused("", None, "unauthenticated", &from);
        }
        // The old connection may be that of a process that is gone without a word (its machine
        // lost power): if so the next attempt succeeds, if not both sides are told again.
        if let Rejection::Twin { node } = refusal
            && let Some((_, old)) = self.door.speakers.remove(node)
        {
            self.conns.close_soon(old, now);
        }
        self.conns.close_soon(id, now);
    }
}

/// Whether an address of the cluster file is one of this machine alone.
fn is_local(peer: &str) -> bool {
    let address: Result<SocketAddr, _> = peer.parse();
    address.map_or_else(
        |_| peer.starts_with("localhost:"),
        |address| address.ip().is_loopback(),
    )
}

/// Where an address of the cluster file is, if it is no name.
fn place(peer: &str) -> Option<IpAddr> {
    let address: SocketAddr = peer.parse().ok()?;
    Some(address.ip().to_canonical())
}

/// The length that a frame announces.
fn announced(bytes: &[u8]) -> Option<usize> {
    let length: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(u32::from_le_bytes(length) as usize)
}
