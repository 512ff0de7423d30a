//! Five nodes and their clients in one process: the machines and the codec, bytes in between, no
//! sockets and no clock but our own.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, ConnNo, Key, LinkId, Name, NodeId};
use conclave_protocol::lock::{
    Acquire, ClientEffects, ClientEvent, ClientInput, Config, LockClient, LockNode, Message, Mode,
    NodeEffects, NodeInput, Quorums, Start, To,
};
use conclave_protocol::{Instant, Machine, Now, Wall};
use conclave_wire::codec::{Decoder, Encoder};

/// The quorum system of all counts.
const SYSTEM: &str = "majority(5)";
/// Locks that are used in turn, as in the usual benchmark of the service.
const NAMES: usize = 10_000;
/// Cycles before anything is counted.
const WARM: usize = 1_000;
const TTL: Duration = Duration::from_secs(10);
/// Between the steps of a cycle: four of them and a thousand cycles make one heartbeat.
const TICK: Duration = Duration::from_micros(62);

/// One direction of a connection: what is on its way, and both ends of the codec.
#[derive(Default)]
struct Pipe {
    encoder: Encoder,
    decoder: Decoder,
    bytes: Vec<u8>,
}

impl Pipe {
    fn put(&mut self, message: &Message) {
        self.encoder.encode(message, &mut self.bytes);
    }

    fn take(&mut self) -> Vec<Message> {
        let (mut messages, mut rest) = (Vec::new(), &self.bytes[..]);
        while let Some((message, length)) = self.decoder.decode(rest).unwrap() {
            messages.push(message);
            rest = &rest[length..];
        }
        self.bytes.clear();
        messages
    }
}

struct Link {
    no: ConnNo,
    up: Pipe,
    down: Pipe,
}

struct Client {
    machine: LockClient,
    out: ClientEffects,
    links: Vec<Option<Link>>,
    /// Connections that the machine asked for in this step.
    opened: Vec<(NodeId, ConnNo)>,
    /// Who has entered, in order.
    entered: Vec<Key>,
    last_key: u64,
}

struct Node {
    machine: LockNode,
    out: NodeEffects,
    written: u64,
}

/// Nodes, clients and the bytes between them.
pub(crate) struct Mesh {
    pub(crate) now: Now,
    names: Vec<Name>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    cycles: usize,
}

impl Mesh {
    /// A cluster that has served every client for a while.
    pub(crate) fn warm(clients: usize) -> Self {
        let spec = conclave_quorum::text::parse(SYSTEM).unwrap();
        let read = |_: &str| -> Result<String, String> { Err("no files".into()) };
        let built = conclave_quorum::build::build(&spec, None, &read).unwrap();
        let config = Arc::new(Config::new(Quorums::new(&built.system, &[]).unwrap()));
        let now = Now {
            mono: Instant::from_nanos(1_000_000_000),
            wall: Wall(1_767_225_600_000_000),
        };
        let size = config.quorums.nodes();
        let mut mesh = Self {
            now,
            names: (0..NAMES)
                .map(|i| Name::new(format!("bench/{i:06}")))
                .collect(),
            nodes: (0..size).map(|i| Node::start(&config, i, now)).collect(),
            clients: (0..clients).map(|i| Client::new(&config, i)).collect(),
            cycles: 0,
        };
        for _ in 0..WARM {
            for client in 0..clients {
                mesh.cycle(client);
            }
        }
        mesh
    }

    /// One client takes a lock that nobody else wants and leaves it.
    pub(crate) fn cycle(&mut self, client: usize) {
        self.cycles += 1;
        let key = self.acquire(client, self.cycles * 7919 % NAMES);
        self.settle();
        assert_eq!(self.clients[client].entered.pop(), Some(key));
        self.client(client, ClientInput::Release(key));
        self.settle();
    }

    /// The holder of a lock that many of one process want leaves, the next one enters, and the
    /// first one waits again.
    pub(crate) fn handover(&mut self, client: usize) {
        let holder = self.clients[client].entered.pop().unwrap();
        self.client(client, ClientInput::Release(holder));
        self.acquire(client, 0);
        while self.clients[client].entered.is_empty() {
            self.settle();
        }
    }

    /// Wants a lock; what it sends is on its way.
    pub(crate) fn acquire(&mut self, client: usize, name: usize) -> Key {
        let (key, input) = self.wish(client, name);
        self.client(client, input);
        key
    }

    /// The wish for a lock, for whoever steps the machine.
    pub(crate) fn wish(&mut self, client: usize, name: usize) -> (Key, ClientInput) {
        let client = &mut self.clients[client];
        client.last_key += 1;
        let key = Key(client.last_key);
        let name = self.names[name].clone();
        let acquire = Acquire::new(name, Mode::Exclusive, TTL);
        (key, ClientInput::Acquire(key, acquire))
    }

    /// Who has entered since it was last asked.
    pub(crate) fn entered(&mut self, client: usize) -> Vec<Key> {
        std::mem::take(&mut self.clients[client].entered)
    }

    /// What a client has sent to a node, in place of its delivery, heartbeats left out.
    pub(crate) fn sent_up(&mut self, client: usize, node: usize) -> Vec<Message> {
        let mut messages = self.link(client, node).up.take();
        messages.retain(|message| !matches!(message, Message::Heartbeat { .. }));
        messages
    }

    /// What nodes have sent to a client, in place of its delivery.
    pub(crate) fn sent_down(&mut self, client: usize) -> Vec<(NodeId, ConnNo, Message)> {
        let mut all = Vec::new();
        for node in 0..self.nodes.len() {
            let link = self.link(client, node);
            let no = link.no;
            let messages = link.down.take().into_iter();
            all.extend(messages.map(|message| (NodeId::at(node), no, message)));
        }
        all
    }

    /// The machine of a node, and the connection on which it hears a client.
    pub(crate) fn node(&mut self, node: usize, client: usize) -> (&mut LockNode, LinkId) {
        let id = LinkId((client * self.nodes.len() + node) as u64);
        (&mut self.nodes[node].machine, id)
    }

    pub(crate) fn machine(&mut self, client: usize) -> &mut LockClient {
        &mut self.clients[client].machine
    }

    fn link(&mut self, client: usize, node: usize) -> &mut Link {
        self.clients[client].links[node].as_mut().unwrap()
    }

    /// Steps a client as its driver does: what is due first, then the input, then the messages.
    pub(crate) fn client(&mut self, client: usize, input: ClientInput) {
        let who = &mut self.clients[client];
        let due = who.machine.next_wake();
        if due.is_some_and(|wake| wake.at <= self.now.mono) {
            who.step(self.now, ClientInput::Wake);
        }
        who.step(self.now, input);
        while let Some((node, no)) = who.opened.pop() {
            who.step(self.now, ClientInput::Opened(node, no));
        }
        who.machine.skip_stale_timers();
    }

    /// Delivers until all is silent.
    pub(crate) fn settle(&mut self) {
        while self.deliver_up() | self.deliver_down() {}
    }

    /// Everything on its way to nodes arrives.
    pub(crate) fn deliver_up(&mut self) -> bool {
        self.tick();
        let mut any = false;
        for client in 0..self.clients.len() {
            for node in 0..self.nodes.len() {
                any |= self.hear_up(client, node);
            }
        }
        any
    }

    fn deliver_down(&mut self) -> bool {
        self.tick();
        let mut any = false;
        for client in 0..self.clients.len() {
            for node in 0..self.nodes.len() {
                any |= self.hear_down(client, node);
            }
        }
        any
    }

    fn tick(&mut self) {
        self.now.mono = self.now.mono + TICK;
        self.now.wall = self.now.wall.plus(TICK);
    }

    fn hear_up(&mut self, client: usize, node: usize) -> bool {
        let Some(link) = self.clients[client].links[node].as_mut() else {
            return false;
        };
        let mut bytes = std::mem::take(&mut link.up.bytes);
        let mut used = 0;
        let id = LinkId((client * self.nodes.len() + node) as u64);
        loop {
            let pipe = &mut self.link(client, node).up;
            let Some((message, length)) = pipe.decoder.decode(&bytes[used..]).unwrap() else {
                break;
            };
            used += length;
            self.node_step(node, NodeInput::Receive(id, message));
        }
        bytes.clear();
        self.link(client, node).up.bytes = bytes;
        used > 0
    }

    fn hear_down(&mut self, client: usize, node: usize) -> bool {
        let Some(link) = self.clients[client].links[node].as_mut() else {
            return false;
        };
        let mut bytes = std::mem::take(&mut link.down.bytes);
        let (mut used, no) = (0, link.no);
        loop {
            let pipe = &mut self.link(client, node).down;
            let Some((message, length)) = pipe.decoder.decode(&bytes[used..]).unwrap() else {
                break;
            };
            used += length;
            let input = ClientInput::Receive(NodeId::at(node), no, message);
            self.client(client, input);
        }
        bytes.clear();
        self.link(client, node).down.bytes = bytes;
        used > 0
    }

    /// Steps a node as its thread does; its disk is instant.
    fn node_step(&mut self, node: usize, input: NodeInput) {
        let it = &mut self.nodes[node];
        let due = it.machine.next_wake();
        if due.is_some_and(|wake| wake.at <= self.now.mono) {
            it.machine.handle(self.now, NodeInput::Wake, &mut it.out);
        }
        it.machine.handle(self.now, input, &mut it.out);
        it.settle(self.now, self.clients.as_mut_slice());
    }
}

impl Client {
    fn new(config: &Arc<Config>, index: usize) -> Self {
        let id = ClientId(100 + index as u128);
        Self {
            machine: LockClient::new(config.clone(), id, index as u64),
            out: ClientEffects::new(),
            links: config.quorums.all().map(|_| None).collect(),
            opened: Vec::new(),
            entered: Vec::new(),
            last_key: 0,
        }
    }

    fn step(&mut self, now: Now, input: ClientInput) {
        self.machine.handle(now, input, &mut self.out);
        for envelope in self.out.send_now.drain(..) {
            let link = self.links[envelope.to.index()].as_mut().unwrap();
            link.up.put(&envelope.message);
        }
        for event in self.out.events.drain(..) {
            match event {
                ClientEvent::Connect(node, no) => {
                    self.links[node.index()] = Some(Link {
                        no,
                        up: Pipe::default(),
                        down: Pipe::default(),
                    });
                    self.opened.push((node, no));
                }
                ClientEvent::Entered { key, .. } => self.entered.push(key),
                ClientEvent::Ended(..) | ClientEvent::Position(..) | ClientEvent::Moved { .. } => {}
                event => panic!("nothing goes wrong here, but {event:?}"),
            }
        }
    }
}

impl Node {
    fn start(config: &Arc<Config>, index: usize, now: Now) -> Self {
        let (mut out, id) = (NodeEffects::new(), NodeId::at(index));
        let machine = LockNode::start(config.clone(), id, 7, Start::Init, now, &mut out);
        let mut node = Self {
            machine,
            out,
            written: 0,
        };
        node.settle(now, &mut []);
        node
    }

    /// Does what the machine asks for.
    fn settle(&mut self, now: Now, clients: &mut [Client]) {
        let records = std::mem::take(&mut self.out.persist).len() as u64;
        let durable = self.out.send_durable.drain(..);
        for envelope in self.out.send_now.drain(..).chain(durable) {
            if let To::Link(LinkId(link)) = envelope.to {
                let link = link as usize;
                let nodes = clients[0].links.len();
                let client = &mut clients[link / nodes];
                let link = client.links[link % nodes].as_mut().unwrap();
                link.down.put(&envelope.message);
            }
        }
        self.out.events.clear();
        if records > 0 {
            self.written += records;
            let durable = NodeInput::Durable(self.written);
            self.machine.handle(now, durable, &mut self.out);
            self.settle(now, clients);
        }
    }
}
