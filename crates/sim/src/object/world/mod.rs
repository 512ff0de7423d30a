//! The world: nodes, clients and wires on one queue of events.

mod clients;
mod nodes;
mod show;
mod wires;

use std::sync::Arc;

use conclave_protocol::id::{LinkId, Name, NodeId};
use conclave_protocol::keeper::{Answer, Ask};
use conclave_protocol::lock::Access;
use conclave_protocol::object::{Counters, ObjectConfig, State};
use conclave_quorum::Prng;

use super::check::{Answers, Order, broken};
use super::known::Known;
use super::options::Options;
use crate::clock::Clock;
use crate::engine::Queue;
use crate::fact::{True, Violation};
use crate::options::OptionsError;
use crate::trace::Line;
use clients::{Client, ledger, toy};
use nodes::Node;
use wires::Pipe;

/// A run that goes on for longer does not end.
const EVENTS_MAX: u64 = 2_000_000;

/// What is shown of a run while it goes on.
pub type Tracer<'a> = &'a mut dyn FnMut(&Line);

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was broken.
    pub violation: Option<Violation>,
    /// How many events happened.
    pub events: u64,
    /// How many operations and reads were answered.
    pub done: u64,
    /// How many operations are in the ledger.
    pub ordered: u64,
    /// The latest version of the ledger.
    pub versions: u64,
    /// How many client processes died.
    pub crashes: u64,
    /// How many node processes died.
    pub kills: u64,
    /// How many writes reached a disk.
    pub syncs: u64,
    /// How often a client saw a node differ from what enough others say.
    pub lies: u64,
    /// How much work the objects were.
    pub counters: Counters,
    /// How long each operation and read took, in nanoseconds.
    pub waits: Vec<u64>,
    /// When the run ended.
    pub ended: True,
}

impl Outcome {
    /// What all worlds tell of a run.
    pub fn plain(self) -> crate::Outcome {
        crate::Outcome {
            violation: self.violation,
            events: self.events,
            grants: self.done,
            ..crate::Outcome::default()
        }
    }
}

/// What happens.
#[derive(Debug)]
enum Event {
    Connect {
        client: usize,
        node: usize,
        life: u32,
    },
    ToNode {
        node: usize,
        link: LinkId,
        ask: Ask,
    },
    ToClient {
        client: usize,
        node: usize,
        link: LinkId,
        answer: Answer,
    },
    ClosedAtNode {
        node: usize,
        link: LinkId,
    },
    ClosedAtClient {
        client: usize,
        node: usize,
        link: LinkId,
    },
    NodeWake(usize, u32),
    ClientWake(usize, u32),
    Synced(usize, u32),
    NodeUp(usize),
    ClientUp(usize),
    Next(usize, u32),
    Healed,
}

/// All that is watched.
#[derive(Debug, Default)]
struct Checks {
    order: Order,
    answers: Answers,
}

impl Checks {
    fn committed(
        &mut self,
        at: True,
        node: NodeId,
        object: &Name,
        state: &State,
    ) -> Result<(), Violation> {
        if *object == ledger() {
            self.order.committed(at, node, state)
        } else if *object == toy() {
            self.answers.chain.committed(at, node, state)
        } else {
            Ok(())
        }
    }
}

struct World<'a> {
    options: &'a Options,
    config: Arc<ObjectConfig>,
    access: Arc<Access>,
    rng: Prng,
    queue: Queue<Event>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    pipes: Vec<Pipe>,
    known: Known,
    checks: Checks,
    tracer: Option<Tracer<'a>>,
    /// Whether things go wrong still.
    faulty: bool,
    /// Whether the ledger has said who may write it.
    sealed: bool,
    links: u64,
    syncs: u64,
    kills: u64,
    crashes: u64,
    lies: u64,
    done: u64,
    waits: Vec<u64>,
    counters: Counters,
    violation: Option<Violation>,
}

/// Runs a world with all checkers until every operation is answered, or should have been.
pub fn run<'a>(options: &'a Options, tracer: Option<Tracer<'a>>) -> Result<Outcome, OptionsError> {
    let config = Arc::new(options.config()?);
    let mut world = World::new(options, config, tracer);
    let end = True((options.span_ms + options.heal_ms) * 1_000_000);
    world
        .queue
        .push(True(options.span_ms * 1_000_000), Event::Healed);
    while world.violation.is_none() && !world.is_over() {
        let Some((at, event)) = world.queue.pop() else {
            break;
        };
        if at > end || world.queue.taken() > EVENTS_MAX {
            break;
        }
        world.happen(event);
    }
    world.finish();
    Ok(world.outcome())
}

impl<'a> World<'a> {
    fn new(options: &'a Options, config: Arc<ObjectConfig>, tracer: Option<Tracer<'a>>) -> Self {
        let mut rng = Prng::new(options.seed);
        let (nodes, clients) = (options.nodes as usize, options.clients as usize);
        let skew = options.skew_ms * 1000;
        let mut places: Vec<usize> = (0..nodes).collect();
        rng.shuffle(&mut places);
        places.truncate(options.liars as usize);
        let mut queue = Queue::new();
        let node = |place: usize, rng: &mut Prng| {
            let habit = places.contains(&place).then_some(options.lie);
            Node::new(Clock::draw(options.drift_ppm, skew, rng), habit)
        };
        let nodes: Vec<Node> = (0..nodes).map(|place| node(place, &mut rng)).collect();
        let clients: Vec<Client> = (0..clients)
            .map(|_| {
                let clock = Clock::draw(options.drift_ppm, skew, &mut rng);
                Client::new(clock, options.ops)
            })
            .collect();
        for node in 0..nodes.len() {
            queue.push(True(0), Event::NodeUp(node));
        }
        // Whoever restarts with an unknown past gives no votes for a while; these begin after it.
        for client in 0..clients.len() {
            queue.push(True(1), Event::ClientUp(client));
        }
        World {
            pipes: vec![Pipe::default(); nodes.len() * clients.len()],
            options,
            config,
            access: Arc::new(Access::default()),
            rng,
            queue,
            nodes,
            clients,
            known: Known::default(),
            checks: Checks::default(),
            tracer,
            faulty: true,
            sealed: false,
            links: 0,
            syncs: 0,
            kills: 0,
            crashes: 0,
            lies: 0,
            done: 0,
            waits: Vec::new(),
            counters: Counters::default(),
            violation: None,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect { client, node, life } => self.connect(client, node, life),
            Event::ToNode { node, link, ask } => self.at_node(node, link, ask),
            Event::ToClient {
                client,
                node,
                link,
                answer,
            } => {
                if self.is_open(client, node, link) {
                    self.at_client(client, node, answer);
                }
            }
            Event::ClosedAtNode { node, link } => self.closed_at_node(node, link),
            Event::ClosedAtClient { client, node, link } => {
                self.closed_at_client(client, node, link);
            }
            Event::NodeWake(node, life) => self.node_wake(node, life),
            Event::ClientWake(client, life) => self.client_wake(client, life),
            Event::Synced(node, life) => self.synced(node, life),
            Event::NodeUp(node) => self.node_up(node),
            Event::ClientUp(client) => self.client_up(client),
            Event::Next(client, life) => self.next_op(client, life),
            Event::Healed => {
                self.trace(None, None, || "no more faults from here on".to_owned());
                self.faulty = false;
            }
        }
    }

    fn is_over(&self) -> bool {
        (0..self.clients.len()).all(|client| !self.is_busy(client))
    }

    /// Whether a client has something to do. One that is not let in need not have tried.
    fn is_busy(&self, client: usize) -> bool {
        let here = &self.clients[client];
        !self.is_intruder(client) && (here.left > 0 || here.doing.is_some())
    }

    fn found(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// What can only be said at the end.
    fn finish(&mut self) {
        let at = self.queue.now();
        if self.violation.is_some() {
            return;
        }
        if let Some(place) = (0..self.clients.len()).find(|client| self.is_busy(*client)) {
            let here = &self.clients[place];
            let what = format!(
                "client {place} still waits for {:?} and has {} more to do",
                here.doing, here.left
            );
            return self.found(broken("returns", at, what));
        }
        let result = self.checks.order.over(at);
        let result = result.and_then(|()| self.checks.answers.over(at));
        if let Err(found) = result {
            self.found(found);
        }
    }

    fn outcome(self) -> Outcome {
        // Whoever goes first only makes ready for the others.
        let first = usize::from(self.options.late_ms > 0);
        let clients = self.clients.iter().skip(first);
        let machines = clients.filter_map(|client| client.machine.as_ref());
        let counters = machines.map(conclave_protocol::keeper::caller::KeeperClient::counters);
        Outcome {
            counters: counters.fold(self.counters, Counters::plus),
            violation: self.violation,
            events: self.queue.taken(),
            done: self.done,
            versions: self.checks.order.chain().top().version(),
            ordered: self.checks.order.len() as u64,
            crashes: self.crashes,
            kills: self.kills,
            syncs: self.syncs,
            lies: self.lies,
            waits: self.waits,
            ended: self.queue.now(),
        }
    }
}
