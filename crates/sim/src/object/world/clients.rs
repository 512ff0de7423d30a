//! Clients as processes: what they do, and how they die in the middle of it.

use std::sync::Arc;

use conclave_protocol::id::{ClientId, Key, Name, NodeId};
use conclave_protocol::keeper::Ask;
use conclave_protocol::keeper::caller::KeeperClient;
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::object::acl::Acl;
use conclave_protocol::object::envelope::Wish;
use conclave_protocol::object::{Kind, ObjectAsk};
use conclave_protocol::{EffectsOf, Machine};

use super::{Event, World};
use crate::clock::Clock;
use crate::fact::True;
use crate::linear::{Action, Bytes, Reply};
use crate::net::exponential;
use crate::object::check::{ReadMark, broken};
use crate::object::kinds::{Entry, Ledger, Placed, Toy, read_reply, write_action};
use crate::object::options::Family;

/// How often clients look whether the ledger has said who may write it.
const SEAL_LOOK: u64 = 20_000_000;

/// A client's process and what it is at.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) machine: Option<KeeperClient>,
    pub(super) life: u32,
    pub(super) clock: Clock,
    /// Operations that it has not begun.
    pub(super) left: u32,
    pub(super) doing: Option<(Key, Doing, True)>,
    key: u64,
    wake: Option<u64>,
}

/// What a client waits for.
#[derive(Clone, Debug)]
pub(super) enum Doing {
    /// An entry in the ledger.
    Entry(Entry),
    /// The number of entries in the ledger.
    Count(ReadMark),
    /// An operation on the second object: which call of its history.
    Act(usize),
    /// A read of the second object.
    Look(usize, Action),
    /// Who may write the ledger.
    Seal,
    /// What nobody allows.
    Intrude,
}

impl Client {
    pub(super) fn new(clock: Clock, ops: u32) -> Self {
        Self {
            machine: None,
            life: 0,
            clock,
            left: ops,
            doing: None,
            key: 0,
            wake: None,
        }
    }
}

/// The object in which all operations are written down.
pub(super) fn ledger() -> Name {
    Name::new("ledger")
}

/// The second object.
pub(super) fn toy() -> Name {
    Name::new("toy")
}

/// In whose name a client asks.
pub(super) fn principal(client: usize) -> Arc<str> {
    format!("c{client}").into()
}

impl World<'_> {
    /// A client's process starts.
    pub(super) fn client_up(&mut self, client: usize) {
        let mut seed = [0; 32];
        for part in seed.chunks_exact_mut(8) {
            part.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let id = if self.options.same_client {
            1
        } else {
            u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64())
        };
        let (lease, config) = (self.config.lease.clone(), self.config.clone());
        let machine = KeeperClient::new(lease, Some(config), ClientId(id), seed);
        self.clients[client].machine = Some(machine);
        self.trace(None, Some(client), || "starts".to_owned());
        let life = self.clients[client].life;
        for node in 0..self.nodes.len() {
            self.queue.push_in(1, Event::Connect { client, node, life });
        }
        self.rest(client);
    }

    /// The client does something after a while.
    fn rest(&mut self, client: usize) {
        let nanos = match self.options.think_ms {
            0 => 1_000,
            mean => exponential(mean * 1_000_000, &mut self.rng),
        };
        let life = self.clients[client].life;
        let late = if client > 0 {
            self.options.late_ms * 1_000_000
        } else {
            0
        };
        let at = late.max(self.queue.now().0 + nanos + 2);
        self.queue.push(True(at), Event::Next(client, life));
    }

    /// A client's process dies. What it waited for may still come about.
    pub(super) fn client_down(&mut self, client: usize) {
        self.trace(None, Some(client), || "dies".to_owned());
        let here = &mut self.clients[client];
        if let Some(machine) = here.machine.take() {
            self.counters = self.counters.plus(machine.counters());
        }
        here.life += 1;
        here.wake = None;
        here.doing = None;
        self.crashes += 1;
        self.hang_up(client);
        let down = exponential(self.options.down_ms * 1_000_000, &mut self.rng);
        self.queue.push_in(down, Event::ClientUp(client));
    }

    /// The client begins its next operation.
    pub(super) fn next_op(&mut self, client: usize, life: u32) {
        let here = &mut self.clients[client];
        if here.life != life || here.left == 0 || here.doing.is_some() {
            return;
        }
        let waits = self.options.intruder && !self.sealed && client > 0;
        if waits {
            return self.queue.push_in(SEAL_LOOK, Event::Next(client, life));
        }
        let here = &mut self.clients[client];
        here.key += 1;
        let key = Key(here.key);
        if self.options.intruder && !self.sealed {
            return self.seal(key);
        }
        here.left -= 1;
        if self.is_intruder(client) {
            return self.intrude(client, key);
        }
        let reads = self.rng.chance(self.options.reads);
        let on_ledger = self.options.toy == Family::None || self.rng.chance(self.options.ledger);
        let (doing, command) = match (on_ledger, reads) {
            (true, false) => self.write_entry(client, key),
            (true, true) => {
                let command = Command::Read {
                    object: ledger(),
                    kind: Arc::new(Ledger),
                    spans: vec![Ledger::count_span()],
                };
                (Doing::Count(self.checks.order.reading()), command)
            }
            (false, _) => self.play(client, key, reads),
        };
        let at = self.queue.now();
        self.trace(None, Some(client), || format!("begins {doing:?}"));
        self.clients[client].doing = Some((key, doing, at));
        self.client_step(client, ClientInput::Do(key, command));
    }

    /// Whether the ledger's owner has not let this client in.
    pub(super) fn is_intruder(&self, client: usize) -> bool {
        self.options.intruder && client + 1 == self.clients.len()
    }

    /// The ledger's first client says who may write: everybody but the last.
    fn seal(&mut self, key: Key) {
        let others = 0..self.clients.len() - 1;
        let acl = Acl {
            write: others.map(principal).collect(),
            read: Vec::new(),
        };
        let command = Command::Submit {
            object: ledger(),
            kind: Arc::new(Ledger),
            wish: Wish::SetAcl(acl.write_cell().unwrap_or_default()),
        };
        self.clients[0].doing = Some((key, Doing::Seal, self.queue.now()));
        self.client_step(0, ClientInput::Do(key, command));
    }

    /// The last client tries to write all the same.
    fn intrude(&mut self, client: usize, key: Key) {
        let entry = Entry {
            client: client as u32,
            number: key.0 as u32,
            random: false,
        };
        let command = Command::Submit {
            object: ledger(),
            kind: Arc::new(Ledger),
            wish: Wish::Operation(entry.body()),
        };
        self.clients[client].doing = Some((key, Doing::Intrude, self.queue.now()));
        self.client_step(client, ClientInput::Do(key, command));
    }

    fn write_entry(&mut self, client: usize, key: Key) -> (Doing, Command) {
        let entry = Entry {
            client: client as u32,
            number: key.0 as u32,
            random: self.rng.chance(self.options.random),
        };
        self.checks.order.submitted(entry);
        let command = Command::Submit {
            object: ledger(),
            kind: Arc::new(Ledger),
            wish: Wish::Operation(entry.body()),
        };
        (Doing::Entry(entry), command)
    }

    /// Something with the second object.
    fn play(&mut self, client: usize, key: Key, reads: bool) -> (Doing, Command) {
        let value: Bytes = format!("{client}.{}", key.0).into_bytes().into();
        let slot: Bytes = vec![b'a' + self.rng.below(3) as u8].into();
        let more = self.rng.below(3);
        let action = match (self.options.toy, reads) {
            (Family::Register | Family::None, true) => Action::Get,
            (Family::Register | Family::None, false) => Action::Set(value),
            (Family::Counter, true) => Action::Count,
            (Family::Counter, false) => Action::Add(1 + more as i64),
            (Family::Map, true) => Action::Look(slot),
            (Family::Map, false) => match more {
                0 => Action::Put(slot, value),
                1 => Action::Swap(slot, None, value),
                _ => Action::Remove(slot),
            },
            (Family::Queue, true) => Action::Pop,
            (Family::Queue, false) if more == 0 => Action::Pop,
            (Family::Queue, false) => Action::Push(value),
            (Family::Log, true) => Action::Read(more as u64, 3),
            (Family::Log, false) => Action::Append(value),
        };
        let at = self.queue.now();
        let call = self.checks.answers.began(at, client as u32, action.clone());
        let kind: Arc<dyn Kind> = Arc::new(Toy);
        let object = toy();
        let Some(span) = Toy::span(&action).filter(|_| self.rng.chance(0.7)) else {
            let wish = Wish::Operation(write_action(&action));
            let command = Command::Submit { object, kind, wish };
            return (Doing::Act(call), command);
        };
        let spans = vec![span];
        let command = Command::Read {
            object,
            kind,
            spans,
        };
        (Doing::Look(call, action), command)
    }

    pub(super) fn client_step(&mut self, client: usize, input: ClientInput) {
        let here = &mut self.clients[client];
        let now = here.clock.now(self.queue.now());
        let Some(machine) = &mut here.machine else {
            return;
        };
        let mut out = EffectsOf::<KeeperClient>::new();
        machine.handle(now, input, &mut out);
        let mut asks: Vec<(usize, Ask)> = Vec::with_capacity(out.send_now.len());
        for envelope in out.send_now {
            asks.push((envelope.to.index(), envelope.message));
        }
        let dies = self.dies_now(&mut asks);
        let most = self.options.duel_ms.min(self.options.delay_ms) as usize * 1_000_000;
        let wait = self.rng.below(most + 1) as u64;
        for (node, ask) in asks {
            self.trace_ask(client, node, &ask);
            if self.is_duel(&ask) {
                self.vote(client, node, &ask, wait);
                continue;
            }
            if let Ask::Object(name, ask) = &ask {
                self.known.watch(name, ask);
            }
            self.up(client, node, ask);
        }
        if dies {
            return self.client_down(client);
        }
        for event in out.events {
            self.heard(client, event);
        }
        self.client_wake_at(client);
    }

    /// Whether the client dies now that it begins to propose or to commit: some are not told.
    fn dies_now(&mut self, asks: &mut Vec<(usize, Ask)>) -> bool {
        let holds = |ask: &Ask| {
            matches!(
                ask,
                Ask::Object(_, ObjectAsk::Propose { .. } | ObjectAsk::Commit { .. })
            )
        };
        let begins = asks.iter().filter(|(_, ask)| holds(ask)).count() > 2;
        let chance = self.options.crash;
        if !begins || !self.faulty || chance == 0.0 || !self.rng.chance(chance) {
            return false;
        }
        self.rng.shuffle(asks);
        // A few who know are worse than many.
        let most = if self.rng.chance(0.5) { 2 } else { asks.len() };
        asks.truncate(self.rng.below(most + 1));
        true
    }

    fn client_wake_at(&mut self, client: usize) {
        let here = &mut self.clients[client];
        let wake = here.machine.as_ref().and_then(Machine::next_wake);
        let Some(at) = wake.map(|wake| here.clock.true_at(wake.at)) else {
            return;
        };
        let at = at.0.max(self.queue.now().0 + 1);
        if here.wake.is_none_or(|planned| at < planned) {
            here.wake = Some(at);
            let life = here.life;
            self.queue.push(True(at), Event::ClientWake(client, life));
        }
    }

    pub(super) fn client_wake(&mut self, client: usize, life: u32) {
        if self.clients[client].life == life {
            self.clients[client].wake = None;
            self.client_step(client, ClientInput::Wake);
        }
    }

    pub(super) fn at_client(
        &mut self,
        client: usize,
        node: usize,
        answer: conclave_protocol::keeper::Answer,
    ) {
        self.client_step(client, ClientInput::Heard(NodeId::at(node), answer));
    }

    /// The client's machine tells something.
    fn heard(&mut self, client: usize, event: ClientEvent) {
        let at = self.queue.now();
        let key = match &event {
            ClientEvent::Done { key, .. }
            | ClientEvent::Read { key, .. }
            | ClientEvent::Failed { key, .. } => *key,
            ClientEvent::Lied { .. } => {
                self.lies += 1;
                return;
            }
            _ => return,
        };
        self.trace(None, Some(client), || format!("is told {event:?}"));
        let doing = self.clients[client].doing.take_if(|(own, ..)| *own == key);
        let Some((_, doing, began)) = doing else {
            let what = format!("client {client} is told about {key:?} twice, or for no reason");
            return self.found(broken("told-once", at, what));
        };
        self.done += 1;
        if client > 0 || self.options.late_ms == 0 {
            self.waits.push(at.0 - began.0);
        }
        let result = match (doing, event) {
            (Doing::Intrude, ClientEvent::Failed { .. }) => Ok(()),
            (Doing::Intrude, _) => {
                let what = format!("client {client} wrote what it may not");
                Err(broken("permitted", at, what))
            }
            (Doing::Seal, ClientEvent::Done { .. }) => {
                self.sealed = true;
                Ok(())
            }
            (_, ClientEvent::Failed { why, .. }) => {
                let what = format!("an operation of client {client} failed: {why:?}");
                Err(broken("answered", at, what))
            }
            (Doing::Entry(entry), ClientEvent::Done { result, .. }) => {
                match Placed::read(&result) {
                    Some(placed) => self.checks.order.answered(at, entry, placed),
                    None => Err(broken(
                        "order",
                        at,
                        format!("{entry:?} was told {result:?}"),
                    )),
                }
            }
            (Doing::Count(mark), ClientEvent::Read { version, cells, .. }) => {
                let count = cells.first().map_or(0, |cells| Ledger::count_read(cells));
                self.checks.order.read(at, mark, version, count)
            }
            (Doing::Act(call), ClientEvent::Done { result, .. }) => {
                // What is no reply fits no order.
                let reply = read_reply(&result).unwrap_or(Reply::Entries(Vec::new()));
                self.checks.answers.ended(at, call, reply);
                Ok(())
            }
            (Doing::Look(call, action), ClientEvent::Read { cells, .. }) => {
                let cells = cells.into_iter().next().unwrap_or_default();
                self.checks
                    .answers
                    .ended(at, call, Toy::told(&action, &cells));
                Ok(())
            }
            (doing, event) => {
                let what = format!("client {client} waits for {doing:?} and is told {event:?}");
                Err(broken("told-once", at, what))
            }
        };
        if let Err(found) = result {
            return self.found(found);
        }
        self.rest(client);
    }
}
