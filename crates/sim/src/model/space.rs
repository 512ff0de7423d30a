//! The local states of nodes and clients that were met, each kept once, and the steps between
//! them, each taken once.
//!
//! A global state is then a list of small numbers, and most of its steps are looked up: the
//! machines run only for pairs of a local state and an input that are new.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, GrantNo, Key, LinkId, Name, NodeId, SessionId, Token};
use conclave_protocol::lock::{
    Acquire, Canon, ClientEffects, ClientEvent, ClientInput, Config, End, Ended, Group, LockClient,
    LockNode, Message, NodeEffects, NodeEvent, NodeInput, Plant, Protocol, Start, To,
};
use conclave_protocol::table::Table;
use conclave_protocol::{Instant, Machine, Now, Wall};

use super::options::{ModelOptions, NAME};
use super::properties;

/// What a process is told; the messages are numbers of [`Space::mails`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum In {
    /// A message: from this client or node.
    Mail(u16, u32),
    /// A message of another node.
    Peer(u16, u32),
    /// The connection of this client ended.
    Closed(u16),
    /// The session of this client expires.
    Expire(u16),
    /// Ask for the lock, for the n-th time.
    Ask(u16),
    /// Stop waiting for the n-th attempt.
    Cancel(u16),
    /// Leave after the n-th attempt.
    Release(u16),
    /// Ask for another lock, to get connected.
    Warm(u16),
    /// Leave it.
    Cool(u16),
    /// Send the heartbeats that are due.
    Beat,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dest {
    Client(usize),
    Node(usize),
}

/// Something that a step did beside sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// The client is inside, or its token or its members changed.
    Holds { group: Group, token: Token },
    /// The client is no longer inside, against its will.
    Lost,
    /// The attempt is over.
    Over(Ended),
    /// A grant ended as possibly used, without its holder's word.
    Revoked { session: SessionId, grant: GrantNo },
    /// A connection was closed although nothing was wrong.
    Closed,
}

/// What a step did.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) next: u32,
    pub(super) sends: Vec<(Dest, u32)>,
    pub(super) happened: Vec<Happened>,
}

/// A number of the canonical form that stands for its rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    /// Session and node: numbers of one pair are ranked together.
    pub(super) pair: u16,
    pub(super) number: u64,
    /// Whether it only looks at the others and is no grant of its own.
    pub(super) looks: bool,
}

/// A canonical form: what counts as it is, by number, and what counts by rank.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) plain: u32,
    pub(super) ranked: Vec<Ranked>,
}

pub(super) struct NodeLocal {
    pub(super) machine: LockNode,
    /// Records written since its start.
    written: u64,
    pub(super) form: Form,
    /// The sessions that have a request for the lock here.
    pub(super) asked: Vec<SessionId>,
    /// Which invariant it breaks by itself.
    pub(super) broken: Option<(&'static str, String)>,
}

pub(super) struct ClientLocal {
    pub(super) machine: LockClient,
    pub(super) form: Form,
    pub(super) holding: Option<Holding>,
}

/// What a client inside rests on.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    pub(super) group: Group,
    pub(super) token: Token,
    pub(super) members: Vec<(NodeId, GrantNo)>,
}

pub(super) struct Mail {
    pub(super) message: Message,
    pub(super) form: Form,
}

/// All local states, messages and steps met so far.
pub(super) struct Space {
    pub(super) options: ModelOptions,
    pub(super) now: Now,
    pub(super) width: usize,
    pub(super) name: Name,
    pub(super) nodes: Vec<NodeLocal>,
    pub(super) clients: Vec<ClientLocal>,
    pub(super) mails: Vec<Mail>,
    outcomes: Vec<Outcome>,
    /// The session of each client.
    pub(super) sessions: Vec<SessionId>,
    slots: Vec<SessionId>,
    known_nodes: Table<u128, u32>,
    known_clients: Table<u128, u32>,
    known_mails: Table<(u16, Message), u32>,
    known_plains: Table<u128, u32>,
    node_steps: Table<(u32, In), u32>,
    client_steps: Table<(u32, In), u32>,
}

/// How long the sessions live; time stands still, so any length does.
const TTL: Duration = Duration::from_secs(10);

/// Longer than the pace of heartbeats, shorter than every lease.
const BEATS_DUE: Duration = Duration::from_millis(300);

/// Collects a canonical form.
struct Scribe<'a> {
    slots: &'a mut Vec<SessionId>,
    width: usize,
    bytes: Vec<u8>,
    ranked: Vec<Ranked>,
}

impl Scribe<'_> {
    fn pair(&mut self, node: NodeId, session: SessionId) -> u16 {
        let known = self.slots.iter().position(|slot| *slot == session);
        let slot = known.unwrap_or_else(|| {
            self.slots.push(session);
            self.slots.len() - 1
        });
        (slot * self.width + node.index()) as u16
    }

    fn rank(&mut self, node: NodeId, session: SessionId, grant: GrantNo, looks: bool) {
        // The place of a ranked number belongs to what is told as it is.
        self.bytes.push(0xff);
        let pair = self.pair(node, session);
        self.ranked.push(Ranked {
            pair,
            number: grant.0,
            looks,
        });
    }
}

impl Canon for Scribe<'_> {
    fn plain(&mut self, word: u64) {
        // A length and that many bytes: most words are small.
        let length = 8 - word.leading_zeros() as usize / 8;
        self.bytes.push(length as u8);
        self.bytes.extend_from_slice(&word.to_le_bytes()[..length]);
    }

    fn grant(&mut self, node: NodeId, session: SessionId, grant: GrantNo) {
        self.rank(node, session, grant, false);
    }

    fn seen(&mut self, node: NodeId, session: SessionId, grant: GrantNo) {
        self.rank(node, session, grant, true);
    }
}

impl Space {
    /// Time passes once, so that heartbeats are due, and then stands still for ever.
    pub(super) fn let_beats_be_due(&mut self) {
        self.now.mono = self.now.mono + BEATS_DUE;
    }

    /// No local states yet.
    pub(super) fn new(options: &ModelOptions, width: usize) -> Self {
        Self {
            options: options.clone(),
            now: Now {
                mono: Instant::from_nanos(1_000_000_000),
                // Small tokens read better in traces.
                wall: Wall(1_000),
            },
            width,
            name: Name::new(NAME),
            nodes: Vec::new(),
            clients: Vec::new(),
            mails: Vec::new(),
            outcomes: Vec::new(),
            sessions: Vec::new(),
            slots: Vec::new(),
            known_nodes: Table::new(1),
            known_clients: Table::new(2),
            known_mails: Table::new(3),
            known_plains: Table::new(4),
            node_steps: Table::new(5),
            client_steps: Table::new(6),
        }
    }

    /// A node that has just started on an empty disk, and has written that it did.
    pub(super) fn start_node(&mut self, config: &Arc<Config>, index: usize) -> u32 {
        let mut out = NodeEffects::new();
        let id = NodeId::at(index);
        let node = LockNode::start(config.clone(), id, 7, Start::Init, self.now, &mut out);
        let mut local = (node, 0);
        self.settle_disk(&mut local, &mut out);
        self.add_node(index, local.0, local.1)
    }

    /// A client that has done nothing yet.
    pub(super) fn start_client(&mut self, config: &Arc<Config>, index: usize) -> u32 {
        let id = ClientId(1 + index as u128);
        let client = LockClient::new(config.clone(), id, 100 + index as u64);
        self.add_client(index, client, 0)
    }

    /// The records of a step are on disk at once.
    fn settle_disk(&self, local: &mut (LockNode, u64), out: &mut NodeEffects) {
        while !out.persist.is_empty() {
            local.1 += out.persist.len() as u64;
            out.persist.clear();
            let durable = NodeInput::Durable(local.1);
            local.0.handle(self.now, durable, out);
        }
    }

    pub(super) fn outcome(&self, outcome: u32) -> &Outcome {
        &self.outcomes[outcome as usize]
    }

    /// Learns the session of a client that has just asked for the first time.
    pub(super) fn learn_session(&mut self, local: u32) {
        let machine = &self.clients[local as usize].machine;
        let ask = machine.ask(key(0), &self.name);
        self.sessions.extend(ask.map(|ask| ask.session));
    }

    /// How grants of a node to a client's session are ranked: together.
    pub(super) fn pair(&self, client: usize, node: usize) -> u16 {
        let session = self.sessions[client];
        let place = self.slots.iter().position(|slot| *slot == session);
        (place.unwrap_or_default() * self.width + node) as u16
    }

    /// How many pairs there are.
    pub(super) fn pairs(&self) -> usize {
        self.slots.len() * self.width
    }

    /// One step of a node.
    pub(super) fn step_node(&mut self, index: usize, local: u32, input: In) -> u32 {
        if let Some(outcome) = self.node_steps.get(&(local, input)) {
            return *outcome;
        }
        let told = match input {
            In::Mail(client, mail) => {
                let message = self.mails[mail as usize].message.clone();
                NodeInput::Receive(link(client), message)
            }
            In::Peer(node, mail) => {
                let message = self.mails[mail as usize].message.clone();
                NodeInput::Peer(NodeId(u32::from(node)), message)
            }
            In::Closed(client) => NodeInput::Closed(link(client)),
            In::Expire(client) => NodeInput::Expire(self.sessions[usize::from(client)]),
            _ => NodeInput::Wake,
        };
        let kept = &self.nodes[local as usize];
        let mut next = (kept.machine.clone(), kept.written);
        let mut out = NodeEffects::new();
        next.0.handle(self.now, told, &mut out);
        let persisted = !out.persist.is_empty();
        if persisted {
            // What waits for the disk follows what does not, as the machine's contract says.
            self.settle_disk(&mut next, &mut out);
        }
        let mut sends = Vec::new();
        for envelope in out.send_now.drain(..).chain(out.send_durable.drain(..)) {
            let (dest, at) = match envelope.to {
                To::Link(link) => (Dest::Client(client_of(link)), index),
                To::Node(node) => (Dest::Node(node.index()), node.index()),
            };
            sends.push((dest, self.add_mail(at, envelope.message)));
        }
        let next = self.add_node(index, next.0, next.1);
        let happened = Self::node_happened(out.events);
        let outcome = self.add_outcome(next, sends, happened);
        self.node_steps.insert((local, input), outcome);
        outcome
    }

    fn node_happened(events: Vec<NodeEvent>) -> Vec<Happened> {
        let mut happened = Vec::new();
        for event in events {
            match event {
                NodeEvent::Close(_) => happened.push(Happened::Closed),
                NodeEvent::Ended {
                    ask,
                    grant,
                    why: End::Expired | End::Lapsed | End::Revoked | End::Forgotten,
                } if grant > GrantNo(0) => {
                    let session = ask.session;
                    happened.push(Happened::Revoked { session, grant });
                }
                _ => {}
            }
        }
        happened
    }

    /// One step of a client.
    pub(super) fn step_client(&mut self, index: usize, local: u32, input: In, attempt: u16) -> u32 {
        if let Some(outcome) = self.client_steps.get(&(local, input)) {
            return *outcome;
        }
        let told = match input {
            In::Mail(node, mail) => {
                let message = self.mails[mail as usize].message.clone();
                ClientInput::Receive(NodeId(u32::from(node)), FIRST, message)
            }
            In::Ask(attempt) => ClientInput::Acquire(key(attempt), self.wish(index)),
            In::Cancel(attempt) => ClientInput::Cancel(key(attempt)),
            In::Release(attempt) => ClientInput::Release(key(attempt)),
            In::Warm(round) => {
                let name = Name::new(format!("warm {round}"));
                let wish = Acquire::new(name, self.options.mode(index), TTL);
                ClientInput::Acquire(warm_key(round), wish)
            }
            In::Cool(round) => ClientInput::Release(warm_key(round)),
            In::Beat | In::Peer(..) | In::Closed(_) | In::Expire(_) => ClientInput::Wake,
        };
        let mut machine = self.clients[local as usize].machine.clone();
        let mut out = ClientEffects::new();
        machine.handle(self.now, told, &mut out);
        let mut happened = Vec::new();
        // Connections open at once; what the client then says comes after what it said.
        let mut at = 0;
        while at < out.events.len() {
            if let ClientEvent::Connect(node, conn) = out.events[at] {
                machine.handle(self.now, ClientInput::Opened(node, conn), &mut out);
            }
            at += 1;
        }
        for event in out.events {
            self.client_happened(event, &machine, &mut happened);
        }
        let mut sends = Vec::new();
        for envelope in out.send_now {
            let node = envelope.to.index();
            sends.push((Dest::Node(node), self.add_mail(node, envelope.message)));
        }
        let next = self.add_client(index, machine, attempt);
        let outcome = self.add_outcome(next, sends, happened);
        self.client_steps.insert((local, input), outcome);
        outcome
    }

    fn client_happened(
        &self,
        event: ClientEvent,
        machine: &LockClient,
        happened: &mut Vec<Happened>,
    ) {
        match event {
            ClientEvent::Entered {
                key, name, token, ..
            }
            | ClientEvent::Moved {
                key, name, token, ..
            } if name == self.name => {
                if let Some(ask) = machine.ask(key, &name) {
                    let group = ask.group();
                    happened.push(Happened::Holds { group, token });
                }
            }
            ClientEvent::Lost(_, name) if name == self.name => happened.push(Happened::Lost),
            ClientEvent::Ended(key, ended) if key.0 >= KEYS => {
                happened.push(Happened::Over(ended));
            }
            ClientEvent::Disconnect(..) => happened.push(Happened::Closed),
            _ => {}
        }
    }

    fn wish(&self, index: usize) -> Acquire {
        let mut wish = Acquire::new(self.name.clone(), self.options.mode(index), TTL);
        if self.options.notes {
            wish.note = Some(Arc::from(&b"note"[..]));
        }
        wish
    }

    fn add_outcome(&mut self, next: u32, sends: Vec<(Dest, u32)>, happened: Vec<Happened>) -> u32 {
        self.outcomes.push(Outcome {
            next,
            sends,
            happened,
        });
        (self.outcomes.len() - 1) as u32
    }

    fn add_node(&mut self, index: usize, machine: LockNode, written: u64) -> u32 {
        let last = machine.last_grant().0;
        let (form, identity) = self.form(index as u64, last, |scribe| machine.canon(scribe));
        if let Some(known) = self.known_nodes.get(&identity) {
            return *known;
        }
        let view = machine.view(&self.name).unwrap_or_default();
        let asked = view.entries.iter().map(|entry| entry.ask.session);
        let asked = asked.collect();
        let broken = properties::node(index, &view, &self.options);
        self.nodes.push(NodeLocal {
            machine,
            written,
            form,
            asked,
            broken,
        });
        let place = (self.nodes.len() - 1) as u32;
        self.known_nodes.insert(identity, place);
        place
    }

    fn add_client(&mut self, index: usize, machine: LockClient, attempt: u16) -> u32 {
        let (form, identity) = self.form(index as u64, 0, |scribe| machine.canon(scribe));
        if let Some(known) = self.known_clients.get(&identity) {
            return *known;
        }
        let holding = self.holding(&machine, attempt);
        self.clients.push(ClientLocal {
            machine,
            form,
            holding,
        });
        let place = (self.clients.len() - 1) as u32;
        self.known_clients.insert(identity, place);
        place
    }

    fn holding(&self, machine: &LockClient, attempt: u16) -> Option<Holding> {
        let (key, now) = (key(attempt), self.now.mono);
        let until = machine.held_until(key, &self.name)?;
        if until <= now {
            return None;
        }
        let (token, members) = machine.held(key, &self.name, now)?;
        let group = machine.ask(key, &self.name)?.group();
        Some(Holding {
            group,
            token,
            members,
        })
    }

    fn add_mail(&mut self, node: usize, message: Message) -> u32 {
        let known = (node as u16, message);
        if let Some(mail) = self.known_mails.get(&known) {
            return *mail;
        }
        let (node, message) = known;
        let at = NodeId(u32::from(node));
        let (form, _) = self.form(u64::MAX, 0, |scribe| message.canon(at, scribe));
        self.mails.push(Mail {
            message: message.clone(),
            form,
        });
        let place = (self.mails.len() - 1) as u32;
        self.known_mails.insert((node, message), place);
        place
    }

    /// A canonical form, and the identity of exactly this value: with all numbers as they are.
    fn form(&mut self, owner: u64, extra: u64, tell: impl FnOnce(&mut Scribe<'_>)) -> (Form, u128) {
        let mut scribe = Scribe {
            slots: &mut self.slots,
            width: self.width,
            bytes: Vec::with_capacity(512),
            ranked: Vec::new(),
        };
        scribe.plain(owner);
        tell(&mut scribe);
        let Scribe {
            mut bytes, ranked, ..
        } = scribe;
        let digest = digest(&bytes);
        let next = self.known_plains.len() as u32;
        let plain = self.known_plains.get(&digest).copied().unwrap_or(next);
        if plain == next {
            self.known_plains.insert(digest, next);
        }
        bytes.clear();
        bytes.extend_from_slice(&plain.to_le_bytes());
        bytes.extend_from_slice(&extra.to_le_bytes());
        for rank in &ranked {
            bytes.extend_from_slice(&rank.number.to_le_bytes());
            bytes.extend_from_slice(&rank.pair.to_le_bytes());
        }
        (Form { plain, ranked }, self::digest(&bytes))
    }

    /// Whether a message changes nothing that any step reads, whatever the client does before or
    /// after: it may then be handed over as soon as it is next in line. In the
    /// parallel protocol QUEUED tells only the caller and the hedging timer; a planted bug makes
    /// requesters listen to it.
    pub(super) fn is_idle_talk(&self, mail: u32) -> bool {
        let queued = matches!(self.mails[mail as usize].message, Message::Queued { .. });
        let parallel = self.options.protocol == Protocol::Parallel;
        queued && parallel && self.options.plant != Some(Plant::FailedRule)
    }
}

/// The number of every connection: there is one per client and node.
const FIRST: conclave_protocol::id::ConnNo = conclave_protocol::id::ConnNo(1);

/// The keys of the explored attempts; smaller ones belong to the preparation.
const KEYS: u64 = 1 << 20;

fn key(attempt: u16) -> Key {
    Key(KEYS + u64::from(attempt))
}

fn warm_key(round: u16) -> Key {
    Key(u64::from(round) + 1)
}

fn link(client: u16) -> LinkId {
    LinkId(u64::from(client) + 1)
}

fn client_of(link: LinkId) -> usize {
    link.0 as usize - 1
}

/// 128 bits that no two states share.
pub(super) fn digest(bytes: &[u8]) -> u128 {
    let hash = blake3::hash(bytes);
    let mut first = [0; 16];
    first.copy_from_slice(&hash.as_bytes()[..16]);
    u128::from_le_bytes(first)
}
