//! The seeded world: nodes, clients, connections, disks and clocks around the lock machines, with
//! faults first, then healing, then an end to everything that waits.

mod attack;
mod clients;
mod eyes;
mod faults;
mod holds;
mod nodes;
mod overdue;
mod service;
mod wires;

use std::sync::Arc;

use conclave_protocol::id::{GrantNo, Key, Name, NodeId};
use conclave_protocol::lock::{ClientEffects, Config, Fence, Group, Message, NodeEffects};
use conclave_protocol::table::Table;
use conclave_quorum::Prng;

use self::clients::ClientProcess;
use self::faults::Fault;
use self::holds::{Do, Holds};
use self::nodes::NodeProcess;
use self::service::Disturbed;
use crate::engine::Queue;
use crate::fact::{Checker, Fact, True, Violation};
use crate::measure::{Measures, Meter};
use crate::net::{Latency, Link, Way};
use crate::options::{Options, OptionsError};
use crate::trace::{self, Line};
use crate::workload::Workload;

/// What a connection carries: a message, or its end.
type Item = Option<Message>;

/// Something that will happen.
#[derive(Debug)]
enum Event {
    /// Something sent by a client comes to the end of its way.
    Up(u32, Item),
    /// Something sent by a node comes to the end of its way.
    Down(u32, Item),
    /// A stall of one way of a connection may have ended.
    Release(u32, Way),
    /// A wish to connect reaches the node.
    Dial(u32),
    /// The answer reaches the client: whether it was taken.
    Dialled(u32, bool),
    /// The client stops waiting for the answer.
    GiveUp(u32),
    /// An end learns of a broken connection.
    Broken(u32, Way),
    /// A message between nodes arrives.
    Peer(NodeId, NodeId, Box<Message>),
    /// A node may want to be woken.
    WakeNode(u32),
    /// A client may want to be woken.
    WakeClient(u32),
    /// A write of this life of a node is durable.
    Synced(u32, u32),
    /// A node that drains is stopped.
    Stop(u32, u32),
    /// A node starts.
    StartNode(u32),
    /// A client starts.
    StartClient(u32),
    /// A paused node goes on.
    ResumeNode(u32, u32),
    /// A paused client goes on.
    ResumeClient(u32, u32),
    /// A client may make its next wish.
    Wish(u32, u32),
    /// Something is due for a wish.
    Hold(Key, Do),
    /// Something breaks.
    Fault(Fault),
    /// A step of the script comes.
    Script(usize),
    /// Checkers look at what waits.
    Tick,
    /// All faults end.
    Heal,
    /// The time of the run is up, or everything has ended.
    Over,
}

/// What came out of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What was broken; the run stops at the first.
    pub violation: Option<Violation>,
    /// How many events happened.
    pub events: u64,
    /// How many locks were entered.
    pub grants: u64,
    /// How many requests of live processes still waited at the end.
    pub waiting: usize,
    /// What the run cost.
    pub measures: Measures,
}

/// Whoever reads a trace.
pub type Tracer<'a> = &'a mut dyn FnMut(&Line);

/// So many events at one moment are a machine that turns in circles.
const MOMENT_MAX: u64 = 300_000;

/// Runs a world from its first event to its last. Checkers see every fact and stop the run at the
/// first violation; without checkers and tracer nodes report nothing and holders use no resource.
pub fn run<'a>(
    options: &'a Options,
    checkers: &'a mut [Box<dyn Checker>],
    tracer: Option<Tracer<'a>>,
) -> Result<Outcome, OptionsError> {
    let watched = !checkers.is_empty() || tracer.is_some();
    let config = options.config(watched)?;
    let mut world = World::new(options, config, checkers, tracer);
    world.begin();
    world.turn();
    Ok(world.finish())
}

struct World<'a> {
    options: &'a Options,
    config: Arc<Config>,
    queue: Queue<Event>,
    now: u64,
    /// Chance of the network, the disks and the clocks.
    rng: Prng,
    /// Chance of faults.
    mischief: Prng,
    nodes: Vec<NodeProcess>,
    clients: Vec<ClientProcess>,
    /// All connections ever made; a connection's place is the node's name for it.
    links: Vec<Link<Item>>,
    /// Until when each way of each pair of client and node stalls; empty without faults.
    stalls: Vec<[u64; 2]>,
    /// Until when each pair of nodes cannot hear each other; empty without faults.
    splits: Vec<u64>,
    disturbed: Disturbed,
    /// Within how many nanoseconds a request that could be served must be.
    patience: u64,
    workload: Workload,
    holds: Holds,
    fences: Vec<Fence>,
    /// How many attacks there were.
    attacks: u64,
    /// The group behind each grant; only if watched.
    groups: Table<(NodeId, GrantNo), Group>,
    meter: Meter,
    watched: bool,
    healed: bool,
    /// When everything had ended.
    quiet_at: u64,
    over: bool,
    checkers: Option<&'a mut [Box<dyn Checker>]>,
    violation: Option<Violation>,
    tracer: Option<Tracer<'a>>,
    node_out: NodeEffects,
    client_out: ClientEffects,
}

impl<'a> World<'a> {
    fn new(
        options: &'a Options,
        config: Arc<Config>,
        checkers: &'a mut [Box<dyn Checker>],
        tracer: Option<Tracer<'a>>,
    ) -> Self {
        let mut rng = Prng::new(options.seed);
        let count = config.quorums.nodes();
        let faulty = options.has_faults();
        let pairs = if faulty {
            count * options.clients as usize
        } else {
            0
        };
        let nodes = (0..count).map(|_| NodeProcess::new(options, &mut rng));
        let nodes = nodes.collect();
        let clients = (0..options.clients).map(|_| ClientProcess::new(options, count, &mut rng));
        let clients = clients.collect();
        Self {
            options,
            queue: Queue::new(),
            now: 0,
            mischief: Prng::new(options.seed ^ 0x006d_6973_6368_6965),
            nodes,
            clients,
            links: Vec::new(),
            stalls: vec![[0; 2]; pairs],
            splits: vec![0; if faulty { count * count } else { 0 }],
            disturbed: Disturbed::new(count, pairs),
            patience: service::patience(options),
            workload: Workload::new(options),
            holds: Holds::default(),
            fences: vec![Fence::new(); options.names as usize],
            attacks: 0,
            groups: Table::new(options.seed),
            meter: Meter::new(options, count),
            watched: !checkers.is_empty() || tracer.is_some(),
            healed: false,
            quiet_at: 0,
            over: false,
            checkers: (!checkers.is_empty()).then_some(checkers),
            violation: None,
            tracer,
            node_out: NodeEffects::new(),
            client_out: ClientEffects::new(),
            rng,
            config,
        }
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            self.queue.push(True(0), Event::StartNode(node));
        }
        for client in 0..self.clients.len() as u32 {
            // Clients come once the nodes are there, and not all at one moment.
            let start = 5_000_000 + self.rng.below(20_000_000) as u64;
            self.queue.push(True(start), Event::StartClient(client));
        }
        self.schedule_faults();
        if self.checkers.is_some() {
            self.queue.push(True(0), Event::Tick);
        }
        let span = self.options.span_ms * 1_000_000;
        self.queue.push(True(span), Event::Heal);
    }

    /// Takes event after event until the run is over.
    fn turn(&mut self) {
        let mut moment = (0, 0);
        while let Some((at, event)) = self.queue.pop() {
            self.now = at.0;
            moment = if moment.0 == at.0 {
                (at.0, moment.1 + 1)
            } else {
                (at.0, 0)
            };
            if moment.1 > MOMENT_MAX {
                self.violate(Violation {
                    property: "livelock",
                    at,
                    what: format!("{MOMENT_MAX} events at one moment, the last: {event:?}"),
                });
            }
            self.happen(event);
            if self.over {
                break;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Up(link, item) => self.arrive_up(link, item),
            Event::Down(link, item) => self.arrive_down(link, item),
            Event::Release(link, way) => self.release(link, way),
            Event::Dial(link) => self.dial(link),
            Event::Dialled(link, taken) => self.dialled(link, taken),
            Event::GiveUp(link) => self.give_up(link),
            Event::Broken(link, way) => self.broken(link, way),
            Event::Peer(from, to, message) => self.peer(from, to, *message),
            Event::WakeNode(node) => self.wake_node(node),
            Event::WakeClient(client) => self.wake_client(client),
            Event::Synced(node, life) => self.synced(node, life),
            Event::Stop(node, life) => self.stop_node(node, life),
            Event::StartNode(node) => self.start_node(node),
            Event::StartClient(client) => self.start_client(client),
            Event::ResumeNode(node, life) => self.resume_node(node, life),
            Event::ResumeClient(client, life) => self.resume_client(client, life),
            Event::Wish(client, life) => self.wish(client, life),
            Event::Hold(key, what) => self.hold_due(key, what),
            Event::Fault(fault) => self.fault(fault),
            Event::Script(step) => self.script_step(step),
            Event::Tick => self.tick(),
            Event::Heal => self.heal(),
            Event::Over => self.end(),
        }
    }

    /// Everything ends or is told to: the world looks whether it is quiet.
    fn check_quiet(&mut self) {
        if self.healed && self.holds.is_quiet() {
            self.quiet_at = self.now;
            // Checkers look at what is left once every promise has ended by itself.
            let options = self.options;
            let rest = options.ttl_max_ms + 2 * options.link_ttl_ms;
            let linger = options.linger_ms + if self.watched { rest } else { 0 };
            self.queue
                .push(True(self.now + linger * 1_000_000), Event::Over);
        }
    }

    fn end(&mut self) {
        let late = self.now >= (self.options.span_ms + self.options.heal_ms) * 1_000_000;
        if !late && !self.holds.is_quiet() {
            return;
        }
        self.tell(&Fact::Over);
        self.over = true;
    }

    fn finish(self) -> Outcome {
        let waiting = crate::fact::Eyes::waiting(&self).len();
        Outcome {
            violation: self.violation,
            events: self.queue.taken(),
            grants: self.meter.entries(),
            waiting,
            measures: self.meter.finish(if self.quiet_at > 0 {
                self.quiet_at
            } else {
                self.now
            }),
        }
    }

    /// Shows a fact to all checkers, right after it happened.
    fn tell(&mut self, fact: &Fact) {
        let at = True(self.now);
        if let Some(tracer) = &mut self.tracer
            && let Some(line) = trace::fact(at, fact)
        {
            tracer(&line);
        }
        let Some(checkers) = self.checkers.take() else {
            return;
        };
        for checker in checkers.iter_mut() {
            if let Err(violation) = checker.watch(at, fact, self) {
                self.violate(violation);
                break;
            }
        }
        self.checkers = Some(checkers);
    }

    fn violate(&mut self, violation: Violation) {
        if let Some(tracer) = &mut self.tracer {
            let text = format!("VIOLATION of {}: {}", violation.property, violation.what);
            tracer(&trace::world(True(self.now), &text));
        }
        self.violation.get_or_insert(violation);
        self.over = true;
    }

    /// Writes a line of the trace, if somebody reads it.
    fn note(&mut self, node: Option<u32>, client: Option<u32>, text: impl FnOnce() -> String) {
        if let Some(tracer) = &mut self.tracer {
            tracer(&Line {
                at: True(self.now),
                node: node.map(NodeId),
                client,
                text: text(),
            });
        }
    }

    /// How far apart a client and a node are, the same for the whole run.
    fn pair_latency(&self, client: u32, node: u32) -> Latency {
        let mut factor = 1.0;
        if self.options.region_of_client(client) != self.region_of_node(node) {
            factor *= self.options.far;
        }
        if node == 0 {
            factor *= self.options.slow;
        }
        if self.options.spread <= 1.0 {
            return if factor > 1.0 {
                self.options.latency.scaled(factor)
            } else {
                self.options.latency
            };
        }
        let pair = u64::from(client) << 32 | u64::from(node);
        let draw = Prng::new(self.options.seed ^ pair.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unit();
        self.options
            .latency
            .scaled(factor * (1.0 + draw * (self.options.spread - 1.0)))
    }

    /// Nodes next to each other are of one region.
    fn region_of_node(&self, node: u32) -> u32 {
        let nodes = self.nodes.len().max(1) as u64;
        (u64::from(node) * u64::from(self.options.regions) / nodes) as u32
    }

    /// Whether nodes hear each other quickly whenever they run: then nobody waits for a token.
    fn nodes_hear_each_other(&self) -> bool {
        let options = self.options;
        let quick = match options.latency {
            Latency::Constant(nanos) | Latency::Uniform(_, nanos) => nanos <= 5_000_000,
            _ => false,
        };
        let faults = [options.partition, options.loss, options.node_pause];
        quick && faults.iter().all(|rate| *rate <= 0.0)
    }

    fn name(&self, name: u32) -> Name {
        self.workload.name(name).clone()
    }
}
