//! A cluster in one process: machines, FIFO connections that the test empties, one clock.
#![allow(dead_code, reason = "each test file uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, ConnNo, Key, LinkId, Name, NodeId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEffects, ClientEvent, ClientInput, Config, LockClient, LockNode, Message, Mode,
    NodeEffects, NodeEvent, NodeInput, Quorums, Start, Stored, To,
};
use conclave_protocol::{Instant, Machine, Now, Wall};

/// The wall clock at the start of every test.
pub(crate) const EPOCH: u64 = 1_000_000_000_000;

/// The shared configuration over a quorum system in text form.
pub(crate) fn config(system: &str, groups: &[&str]) -> Config {
    let spec = conclave_quorum::text::parse(system).unwrap();
    let read = |_: &str| -> Result<String, String> { Err("no files".into()) };
    let built = conclave_quorum::build::build(&spec, None, &read).unwrap();
    Config::new(Quorums::new(&built.system, groups).unwrap())
}

struct Conn {
    client: usize,
    node: usize,
    conn: ConnNo,
    open: bool,
    up: VecDeque<Message>,
    down: VecDeque<Message>,
}

/// Nodes, clients and the connections between them.
pub(crate) struct Cluster {
    pub(crate) config: Arc<Config>,
    pub(crate) now: Now,
    pub(crate) nodes: Vec<Option<LockNode>>,
    pub(crate) disks: Vec<Stored>,
    written: Vec<u64>,
    pub(crate) clients: Vec<LockClient>,
    conns: BTreeMap<LinkId, Conn>,
    last_link: u64,
    /// What clients were told, in order.
    pub(crate) told: Vec<(usize, ClientEvent)>,
    pub(crate) node_events: Vec<(usize, NodeEvent)>,
    /// Every message delivered: kind, from a client or to it.
    pub(crate) delivered: Vec<(&'static str, bool)>,
}

impl Cluster {
    pub(crate) fn new(config: Config, clients: usize) -> Self {
        let nodes = config.quorums.nodes();
        let config = Arc::new(config);
        let now = Now {
            mono: Instant::from_nanos(1_000_000_000),
            wall: Wall(EPOCH),
        };
        let mut cluster = Self {
            now,
            nodes: Vec::new(),
            disks: vec![Stored::default(); nodes],
            written: vec![0; nodes],
            clients: Vec::new(),
            conns: BTreeMap::new(),
            last_link: 0,
            told: Vec::new(),
            node_events: Vec::new(),
            delivered: Vec::new(),
            config,
        };
        for index in 0..nodes {
            cluster.nodes.push(None);
            cluster.start_node(index, Start::Init);
        }
        for index in 0..clients {
            let id = ClientId(100 + index as u128);
            let client = LockClient::new(cluster.config.clone(), id, index as u64);
            cluster.clients.push(client);
        }
        cluster
    }

    pub(crate) fn start_node(&mut self, index: usize, start: Start) {
        let mut out = NodeEffects::new();
        let id = NodeId::at(index);
        self.written[index] = 0;
        let node = LockNode::start(self.config.clone(), id, 7, start, self.now, &mut out);
        self.nodes[index] = Some(node);
        self.node_effects(index, out);
    }

    /// The node's process dies; its disk stays.
    pub(crate) fn crash(&mut self, index: usize) {
        self.nodes[index] = None;
        let links: Vec<LinkId> = self.links_of(None, Some(index));
        for link in links {
            self.reset(link);
        }
    }

    pub(crate) fn restart(&mut self, index: usize) {
        let disk = self.disks[index].clone();
        self.start_node(index, Start::Disk(disk));
    }

    pub(crate) fn links_of(&self, client: Option<usize>, node: Option<usize>) -> Vec<LinkId> {
        let hit = self.conns.iter().filter(|(_, conn)| {
            client.is_none_or(|client| conn.client == client)
                && node.is_none_or(|node| conn.node == node)
                && conn.open
        });
        hit.map(|(link, _)| *link).collect()
    }

    /// Breaks a connection; what was under way is lost, both ends learn of it.
    pub(crate) fn reset(&mut self, link: LinkId) {
        let Some(conn) = self.conns.remove(&link) else {
            return;
        };
        self.node(conn.node, NodeInput::Closed(link));
        self.client(
            conn.client,
            ClientInput::Closed(NodeId::at(conn.node), conn.conn),
        );
    }

    pub(crate) fn node(&mut self, index: usize, input: NodeInput) {
        let Some(node) = self.nodes[index].as_mut() else {
            return;
        };
        let mut out = NodeEffects::new();
        node.handle(self.now, input, &mut out);
        self.node_effects(index, out);
    }

    fn node_effects(&mut self, index: usize, out: NodeEffects) {
        for envelope in out.send_now {
            self.from_node(index, envelope.to, envelope.message);
        }
        let wrote = !out.persist.is_empty();
        for record in out.persist {
            self.disks[index].apply(record);
            self.written[index] += 1;
        }
        for envelope in out.send_durable {
            self.from_node(index, envelope.to, envelope.message);
        }
        for event in out.events {
            if let NodeEvent::Close(link) = event
                && let Some(conn) = self.conns.remove(&link)
            {
                let node = NodeId::at(conn.node);
                self.client(conn.client, ClientInput::Closed(node, conn.conn));
            }
            self.node_events.push((index, event));
        }
        if wrote {
            let count = self.written[index];
            self.node(index, NodeInput::Durable(count));
        }
    }

    fn from_node(&mut self, from: usize, to: To, message: Message) {
        match to {
            To::Link(link) => {
                if let Some(conn) = self.conns.get_mut(&link) {
                    conn.down.push_back(message);
                }
            }
            To::Node(node) => {
                self.node(node.index(), NodeInput::Peer(NodeId::at(from), message));
            }
        }
    }

    pub(crate) fn client(&mut self, index: usize, input: ClientInput) {
        let mut out = ClientEffects::new();
        self.clients[index].handle(self.now, input, &mut out);
        for envelope in out.send_now {
            let conn = self
                .conns
                .values_mut()
                .filter(|conn| conn.client == index && conn.open);
            let node = envelope.to.index();
            if let Some(conn) = conn.filter(|conn| conn.node == node).last() {
                conn.up.push_back(envelope.message);
            }
        }
        for event in out.events {
            self.client_event(index, event);
        }
    }

    fn client_event(&mut self, index: usize, event: ClientEvent) {
        match event {
            ClientEvent::Connect(node, conn) => {
                if self.nodes[node.index()].is_none() {
                    self.client(index, ClientInput::Closed(node, conn));
                    return;
                }
                self.last_link += 1;
                let link = LinkId(self.last_link);
                let fresh = Conn {
                    client: index,
                    node: node.index(),
                    conn,
                    open: true,
                    up: VecDeque::new(),
                    down: VecDeque::new(),
                };
                self.conns.insert(link, fresh);
                self.client(index, ClientInput::Opened(node, conn));
            }
            ClientEvent::Disconnect(node, conn) => {
                let hit = self.conns.iter().find(|(_, other)| {
                    other.client == index && other.node == node.index() && other.conn == conn
                });
                if let Some(link) = hit.map(|(link, _)| *link) {
                    self.conns.remove(&link);
                    self.node(node.index(), NodeInput::Closed(link));
                }
            }
            event => self.told.push((index, event)),
        }
    }

    /// Delivers one message, if there is one: to the node before to the client.
    pub(crate) fn step(&mut self) -> bool {
        let ready = self.conns.iter().find(|(_, conn)| !conn.up.is_empty());
        if let Some(link) = ready.map(|(link, _)| *link) {
            return self.deliver_up(link);
        }
        let ready = self.conns.iter().find(|(_, conn)| !conn.down.is_empty());
        match ready.map(|(link, _)| *link) {
            Some(link) => self.deliver_down(link),
            None => false,
        }
    }

    pub(crate) fn deliver_up(&mut self, link: LinkId) -> bool {
        let Some(conn) = self.conns.get_mut(&link) else {
            return false;
        };
        let Some(message) = conn.up.pop_front() else {
            return false;
        };
        let node = conn.node;
        self.delivered.push((message.kind(), true));
        self.node(node, NodeInput::Receive(link, message));
        true
    }

    pub(crate) fn deliver_down(&mut self, link: LinkId) -> bool {
        let Some(conn) = self.conns.get_mut(&link) else {
            return false;
        };
        let Some(message) = conn.down.pop_front() else {
            return false;
        };
        let (client, node, number) = (conn.client, NodeId::at(conn.node), conn.conn);
        self.delivered.push((message.kind(), false));
        self.client(client, ClientInput::Receive(node, number, message));
        true
    }

    /// Delivers everything.
    pub(crate) fn drain(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "the cluster does not come to rest");
        }
    }

    /// Lets time pass in small steps, with wake-ups and deliveries.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now.mono + span;
        loop {
            self.drain();
            let clients = self.clients.iter().filter_map(Machine::next_wake);
            let nodes = self.nodes.iter().flatten().filter_map(Machine::next_wake);
            let next = clients.chain(nodes).map(|wake| wake.at).min();
            let next = next.unwrap_or(end).min(end).max(self.now.mono);
            let passed = next.since(self.now.mono);
            self.now.mono = next;
            self.now.wall = self.now.wall.plus(passed);
            for index in 0..self.nodes.len() {
                self.node(index, NodeInput::Wake);
            }
            for index in 0..self.clients.len() {
                self.client(index, ClientInput::Wake);
            }
            if next >= end {
                self.drain();
                return;
            }
        }
    }

    pub(crate) fn acquire(&mut self, client: usize, key: u64, name: &str, mode: Mode) {
        let wish = Acquire::new(Name::new(name), mode, Duration::from_secs(10));
        self.client(client, ClientInput::Acquire(Key(key), wish));
    }

    pub(crate) fn release(&mut self, client: usize, key: u64) {
        self.client(client, ClientInput::Release(Key(key)));
    }

    /// The token a client entered with under a key, if it did.
    pub(crate) fn entered(&self, client: usize, key: u64) -> Option<Token> {
        self.told.iter().rev().find_map(|(who, event)| match event {
            ClientEvent::Entered { key: of, token, .. } if *who == client && of.0 == key => {
                Some(*token)
            }
            _ => None,
        })
    }

    pub(crate) fn is_inside(&self, client: usize, key: u64, name: &str) -> bool {
        let until = self.clients[client].held_until(Key(key), &Name::new(name));
        until.is_some_and(|until| until > self.now.mono)
    }
}
