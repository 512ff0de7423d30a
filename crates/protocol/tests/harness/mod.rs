//! A cluster in one process: machines, FIFO connections that the test empties, one clock.
#![allow(dead_code, reason = "each test file uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

pub(crate) mod raw;
pub(crate) mod show;
pub(crate) mod wires;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, Key, Name, NodeId, SessionId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEffects, ClientEvent, ClientInput, Config, Ended, Handle, LockClient, LockNode,
    Message, Mode, NodeEffects, NodeEvent, NodeInput, Quorums, Record, Start, Stored,
};
use conclave_protocol::{Instant, Machine, Now, Wall};

use wires::Wires;

/// The wall clock at the start of every test.
pub(crate) const EPOCH: u64 = 1_000_000_000_000;

/// The shared configuration over a quorum system in text form.
pub(crate) fn config(system: &str, groups: &[&str]) -> Config {
    let spec = conclave_quorum::text::parse(system).unwrap();
    let read = |_: &str| -> Result<String, String> { Err("no files".into()) };
    let built = conclave_quorum::build::build(&spec, None, &read).unwrap();
    Config::new(Quorums::new(&built.system, groups).unwrap())
}

/// A message that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) client: usize,
    pub(crate) node: usize,
    /// From the client to the node.
    pub(crate) up: bool,
    pub(crate) message: Message,
}

/// Nodes, clients and the connections between them.
pub(crate) struct Cluster {
    pub(crate) config: Arc<Config>,
    pub(crate) now: Now,
    pub(crate) nodes: Vec<Option<LockNode>>,
    pub(crate) disks: Vec<Stored>,
    written: Vec<u64>,
    /// By how much each node's wall clock lags behind.
    pub(crate) lags: Vec<Duration>,
    pub(crate) clients: Vec<LockClient>,
    pub(crate) wires: Wires,
    /// What clients were told, in order.
    pub(crate) told: Vec<(usize, ClientEvent)>,
    pub(crate) node_events: Vec<(usize, NodeEvent)>,
    /// Every message delivered.
    pub(crate) delivered: Vec<Delivered>,
    /// The readable trace, if one is kept.
    pub(crate) trace: Option<show::Trace>,
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
            nodes: (0..nodes).map(|_| None).collect(),
            disks: vec![Stored::default(); nodes],
            written: vec![0; nodes],
            lags: vec![Duration::ZERO; nodes],
            clients: Vec::new(),
            wires: Wires::default(),
            told: Vec::new(),
            node_events: Vec::new(),
            delivered: Vec::new(),
            trace: None,
            config,
        };
        for index in 0..nodes {
            cluster.start_node(index, Start::Init);
        }
        for _ in 0..clients {
            cluster.add_client();
        }
        cluster
    }

    /// A further client; clients made later have larger ids.
    pub(crate) fn add_client(&mut self) -> usize {
        let index = self.clients.len();
        let id = ClientId(100 + index as u128);
        let client = LockClient::new(self.config.clone(), id, index as u64);
        self.clients.push(client);
        index
    }

    pub(crate) fn start_node(&mut self, index: usize, start: Start) {
        let mut out = NodeEffects::new();
        let id = NodeId::at(index);
        self.written[index] = 0;
        let mut now = self.now;
        now.wall.0 -= self.lags[index].as_micros() as u64;
        let node = LockNode::start(self.config.clone(), id, 7, start, now, &mut out);
        self.nodes[index] = Some(node);
        self.node_effects(index, out);
    }

    /// The node's process dies; its disk stays.
    pub(crate) fn crash(&mut self, index: usize) {
        self.nodes[index] = None;
        for link in self.wires.links_of(None, Some(index)) {
            self.reset(link);
        }
        self.wires.forget_late(index);
    }

    pub(crate) fn restart(&mut self, index: usize) {
        let disk = self.disks[index].clone();
        self.start_node(index, Start::Disk(disk));
    }

    /// The node comes back without its disk.
    pub(crate) fn lose_disk(&mut self, index: usize) {
        self.disks[index] = Stored::default();
        self.start_node(index, Start::Lost);
    }

    pub(crate) fn node(&mut self, index: usize, input: NodeInput) {
        let Some(node) = self.nodes[index].as_mut() else {
            return;
        };
        let mut out = NodeEffects::new();
        let mut now = self.now;
        now.wall.0 -= self.lags[index].as_micros() as u64;
        node.handle(now, input, &mut out);
        self.node_effects(index, out);
    }

    fn node_effects(&mut self, index: usize, out: NodeEffects) {
        for envelope in out.send_now {
            self.sent_by_node(index, envelope.to, envelope.message);
        }
        let wrote = !out.persist.is_empty();
        for record in out.persist {
            if let Record::Incarnation(life) = &record
                && let Some(trace) = &mut self.trace
            {
                trace.life(index, *life);
            }
            self.disks[index].apply(record);
            self.written[index] += 1;
        }
        for envelope in out.send_durable {
            self.sent_by_node(index, envelope.to, envelope.message);
        }
        for event in out.events {
            if let NodeEvent::Close(link) = event
                && let Some(conn) = self.wires.close(link)
            {
                let node = NodeId::at(conn.node);
                self.client(conn.client, ClientInput::Closed(node, conn.number));
            }
            if let Some(trace) = &mut self.trace {
                trace.node_event(index, &event);
            }
            self.node_events.push((index, event));
        }
        if wrote {
            let count = self.written[index];
            self.node(index, NodeInput::Durable(count));
        }
    }

    pub(crate) fn client(&mut self, index: usize, input: ClientInput) {
        let mut out = ClientEffects::new();
        self.clients[index].handle(self.now, input, &mut out);
        for envelope in out.send_now {
            self.wires
                .push_up(index, envelope.to.index(), envelope.message);
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
                self.wires.open(index, node.index(), conn);
                self.client(index, ClientInput::Opened(node, conn));
            }
            ClientEvent::Disconnect(node, conn) => {
                if let Some(link) = self.wires.find(index, node.index(), conn) {
                    self.wires.close(link);
                    self.node(node.index(), NodeInput::Closed(link));
                }
            }
            event => {
                if let Some(trace) = &mut self.trace {
                    trace.client_event(index, &event);
                }
                self.told.push((index, event));
            }
        }
    }

    /// Lets time pass in small steps, with wake-ups and deliveries.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.pass_without(span, &[]);
    }

    /// Lets time pass while these clients do not run: they neither wake nor hear.
    pub(crate) fn pass_without(&mut self, span: Duration, paused: &[usize]) {
        for client in paused {
            self.wires.stall_client(*client, true);
        }
        let end = self.now.mono + span;
        loop {
            self.drain();
            let clients = self.clients.iter().enumerate();
            let clients = clients.filter(|(index, _)| !paused.contains(index));
            let clients = clients.filter_map(|(_, client)| client.next_wake());
            let nodes = self.nodes.iter().flatten().filter_map(Machine::next_wake);
            let next = clients.chain(nodes).map(|wake| wake.at).min();
            let next = next.unwrap_or(end).min(end).max(self.now.mono);
            self.jump(next.since(self.now.mono));
            for index in 0..self.nodes.len() {
                self.node(index, NodeInput::Wake);
            }
            for index in 0..self.clients.len() {
                if !paused.contains(&index) {
                    self.client(index, ClientInput::Wake);
                }
            }
            if next >= end {
                self.drain();
                break;
            }
        }
        for client in paused {
            self.wires.stall_client(*client, false);
        }
    }

    /// Moves both clocks, and nothing else.
    pub(crate) fn jump(&mut self, span: Duration) {
        self.now.mono = self.now.mono + span;
        self.now.wall = self.now.wall.plus(span);
    }

    pub(crate) fn acquire(&mut self, client: usize, key: u64, name: &str, mode: Mode) {
        let wish = Acquire::new(Name::new(name), mode, Duration::from_secs(10));
        self.client(client, ClientInput::Acquire(Key(key), wish));
    }

    /// Asks for a lock whose hold will live by its handle.
    pub(crate) fn acquire_detached(
        &mut self,
        client: usize,
        key: u64,
        name: &str,
        mode: Mode,
        session: u128,
    ) {
        let mut wish = Acquire::new(Name::new(name), mode, Duration::from_secs(10));
        wish.detach = Some((SessionId(session), false));
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

    /// How a key of a client ended, if it did.
    pub(crate) fn ended(&self, client: usize, key: u64) -> Option<Ended> {
        self.told.iter().rev().find_map(|(who, event)| match event {
            ClientEvent::Ended(of, ended) if *who == client && of.0 == key => Some(ended.clone()),
            _ => None,
        })
    }

    /// The last handle that a key of a client gave out.
    pub(crate) fn handle(&self, client: usize, key: u64) -> Option<Handle> {
        self.told.iter().rev().find_map(|(who, event)| match event {
            ClientEvent::Handle(of, handle, _) if *who == client && of.0 == key => {
                Some((**handle).clone())
            }
            _ => None,
        })
    }

    pub(crate) fn was_lost(&self, client: usize, key: u64) -> bool {
        self.told.iter().any(|(who, event)| {
            *who == client && matches!(event, ClientEvent::Lost(of, _) if of.0 == key)
        })
    }

    pub(crate) fn is_inside(&self, client: usize, key: u64, name: &str) -> bool {
        let until = self.clients[client].held_until(Key(key), &Name::new(name));
        until.is_some_and(|until| until > self.now.mono)
    }

    /// The session of a client's request.
    pub(crate) fn session(&self, client: usize, key: u64, name: &str) -> Option<SessionId> {
        let ask = self.clients[client].ask(Key(key), &Name::new(name));
        ask.map(|ask| ask.session)
    }

    /// How many messages of these kinds have been delivered.
    pub(crate) fn count(&self, kinds: &[&str]) -> usize {
        let hit = |one: &&Delivered| kinds.contains(&one.message.kind());
        self.delivered.iter().filter(hit).count()
    }
}

/// The messages that an entry is charged with: not the handshake, heartbeats, notes and QUEUED.
pub(crate) const CHARGED: [&str; 8] = [
    "REQUEST", "LOCKED", "INQUIRE", "YIELD", "DONE", "RAISE", "RAISED", "NOT_NOW",
];
