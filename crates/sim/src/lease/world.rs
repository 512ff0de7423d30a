//! The world itself: events in the order of true time.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, LinkId, Name, NodeId, Token};
use conclave_protocol::lease::plant::Plant;
use conclave_protocol::lease::{
    Contender, LeaseAnswer, LeaseAsk, LeaseConfig, LeaseKey, LeaseOut, LeaseReply, LeaseServer,
    LeaseStart, Space, Standing,
};
use conclave_protocol::{Instant, Now};
use conclave_quorum::Prng;

use super::check::{Check, Lease};
use super::liar::{Sight, lie};
use super::options::{LeaseOptions, LeaseOptionsError};
use crate::clock::Clock;
use crate::engine::Queue;
use crate::fact::{True, Violation};
use crate::net::exponential;
use crate::trace::Line;
use crate::world::{Outcome, Tracer};

/// So many events are a run that does not end.
const EVENTS_MAX: u64 = 50_000_000;
/// The seed of all hash tables.
const TABLE_SEED: u64 = 7;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct LeaseOutcome {
    /// As of any run.
    pub outcome: Outcome,
    /// For every lease: nanoseconds from the wish to the lease, and attempts.
    pub waits: Vec<(u64, u32)>,
}

/// Something that happens.
#[derive(Debug)]
enum Event {
    /// A question arrives at a node.
    Ask {
        node: usize,
        process: usize,
        ask: LeaseAsk,
    },
    /// An answer arrives at a client.
    Reply {
        node: usize,
        process: usize,
        reply: LeaseReply,
        delayed: bool,
    },
    NodeWake {
        node: usize,
        life: u32,
    },
    ClientWake {
        process: usize,
    },
    /// A client wants its next lease.
    Begin {
        process: usize,
    },
    /// A holder does something with its lease.
    Plan {
        process: usize,
        lease: u64,
        plan: Plan,
    },
    /// A client gives up an attempt.
    Cancel {
        process: usize,
        number: u64,
    },
    /// A connection breaks and is made anew.
    Reopen {
        process: usize,
        node: usize,
    },
    /// Some node goes down.
    Crash,
    /// A node comes back.
    Up {
        node: usize,
    },
}

/// What a holder does next.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Release,
    Renew,
    Crash,
}

struct Node {
    clock: Clock,
    server: LeaseServer,
    up: bool,
    life: u32,
    lies: bool,
    slow: bool,
    armed: Option<Instant>,
    /// The mark on disk, and those on their way there.
    disk: Token,
    writes: Vec<(True, Token)>,
    durable: True,
}

struct Client {
    clock: Clock,
    id: ClientId,
    machine: Contender,
    process: usize,
    armed: Option<Instant>,
    began: True,
    wins: u32,
    /// The lease it holds, by number, and its end.
    lease: Option<(u64, Instant)>,
    /// For every node the vote that counts: for which attempt, and whether it came after a wait.
    votes: Vec<Option<(u64, bool)>>,
}

struct World<'a> {
    options: &'a LeaseOptions,
    config: Arc<LeaseConfig>,
    key: LeaseKey,
    queue: Queue<Event>,
    rng: Prng,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    /// Which client a process belongs to.
    processes: Vec<usize>,
    check: Check,
    violation: Option<Violation>,
    waits: Vec<(u64, u32)>,
    tracer: Option<Tracer<'a>>,
}

/// Runs a world of leases from its first event to its last.
pub fn run<'a>(
    options: &'a LeaseOptions,
    tracer: Option<Tracer<'a>>,
) -> Result<LeaseOutcome, LeaseOptionsError> {
    let config = options.config()?;
    let mut world = World::new(options, config, tracer);
    world.go();
    if let Some(violation) = world.violation.clone() {
        let Violation { property, what, .. } = violation;
        world.tell(None, None, || format!("VIOLATION of {property}: {what}"));
    }
    Ok(LeaseOutcome {
        outcome: Outcome {
            violation: world.violation,
            events: world.queue.taken(),
            grants: world.check.count(),
            ..Outcome::default()
        },
        waits: world.waits,
    })
}

impl<'a> World<'a> {
    fn new(
        options: &'a LeaseOptions,
        config: Arc<LeaseConfig>,
        tracer: Option<Tracer<'a>>,
    ) -> Self {
        let mut rng = Prng::new(options.seed ^ 0x006c_6561_7365);
        let mut order: Vec<usize> = (0..options.nodes as usize).collect();
        rng.shuffle(&mut order);
        let liars = options.liars() as usize;
        let slow = options.slow as usize;
        let clock = |rng: &mut Prng, fast: u32| {
            let mut clock = Clock::draw(options.rate_ppm * 2, options.skew_ms * 1000, rng);
            clock.hasten(fast);
            clock
        };
        let mut nodes: Vec<Node> = Vec::new();
        for _ in 0..options.nodes {
            let start = LeaseStart {
                opens: Instant::ZERO,
                mark: Token(0),
            };
            nodes.push(Node {
                clock: clock(&mut rng, options.fast()),
                server: LeaseServer::new(Arc::clone(&config), start, TABLE_SEED),
                up: true,
                life: 0,
                lies: false,
                slow: false,
                armed: None,
                disk: Token(0),
                writes: Vec::new(),
                durable: True(0),
            });
        }
        for node in order.iter().take(liars) {
            nodes[*node].lies = true;
        }
        for node in order.iter().skip(liars).take(slow) {
            nodes[*node].slow = true;
        }
        let clocks: Vec<Clock> = (0..options.clients).map(|_| clock(&mut rng, 0)).collect();
        let mut world = Self {
            options,
            key: LeaseKey {
                space: Space::Lease,
                name: Name::new("lease"),
            },
            queue: Queue::new(),
            rng,
            nodes,
            clients: Vec::new(),
            processes: Vec::new(),
            check: Check::new(options.paper),
            violation: None,
            waits: Vec::new(),
            tracer,
            config,
        };
        for (index, clock) in clocks.into_iter().enumerate() {
            let (process, id, machine) = world.process(index);
            world.clients.push(Client {
                clock,
                id,
                machine,
                process,
                armed: None,
                began: True(0),
                wins: 0,
                lease: None,
                votes: vec![None; options.nodes as usize],
            });
        }
        world.first_wishes();
        if options.restart > 0.0 {
            world.next_crash();
        }
        world
    }

    fn first_wishes(&mut self) {
        let span = self.options.span_ms * 1_000_000;
        let mut at = 0;
        for process in 0..self.clients.len() {
            if self.options.arrive > 0.0 {
                at += exponential((span as f64 / self.options.arrive) as u64, &mut self.rng);
            } else if !self.options.together {
                at = self.rest();
            }
            self.queue.push(True(at), Event::Begin { process });
        }
    }

    /// A new process of a client, with a machine of its own.
    fn process(&mut self, client: usize) -> (usize, ClientId, Contender) {
        let process = self.processes.len();
        self.processes.push(client);
        let id = ClientId(u128::from(self.rng.next_u64()) << 64 | process as u128);
        (process, id, self.machine(client, id, 1))
    }

    fn machine(&mut self, client: usize, id: ClientId, number: u64) -> Contender {
        let mut seed = [0; 32];
        for part in seed.chunks_mut(8) {
            part.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let terms = self.options.terms(client);
        let (config, key) = (Arc::clone(&self.config), self.key.clone());
        Contender::new(config, key, id, terms, number, seed)
    }

    fn rest(&mut self) -> u64 {
        exponential(self.options.think_ms * 1_000_000, &mut self.rng)
    }

    fn next_crash(&mut self) {
        let mean = 1e9 / self.options.restart;
        let nanos = exponential(mean as u64, &mut self.rng);
        self.queue.push_in(nanos, Event::Crash);
    }

    fn go(&mut self) {
        let limit = True(self.options.limit_s * 1_000_000_000);
        while let Some((at, event)) = self.queue.pop() {
            if at > limit || self.queue.taken() > EVENTS_MAX {
                self.stuck(at);
                return;
            }
            self.happen(event);
            if self.violation.is_some() || self.done() {
                return;
            }
        }
        self.stuck(self.queue.now());
    }

    fn done(&self) -> bool {
        let goal = self.options.goal;
        self.clients.iter().all(|client| client.wins >= goal)
    }

    /// The run ends before everybody has its leases.
    fn stuck(&mut self, at: True) {
        if !self.options.synchronous() || self.options.paper {
            return;
        }
        let goal = self.options.goal;
        let behind = self.clients.iter().position(|client| client.wins < goal);
        let Some(client) = behind else {
            return;
        };
        self.violation = Some(Violation {
            property: "everybody-gets-a-lease",
            at,
            what: format!(
                "c{} has {} of {goal} leases although every message came in time",
                client + 1,
                self.clients[client].wins
            ),
        });
    }

    fn tell(&mut self, node: Option<usize>, client: Option<usize>, text: impl FnOnce() -> String) {
        let at = self.queue.now();
        if let Some(tracer) = &mut self.tracer {
            tracer(&Line {
                at,
                node: node.map(NodeId::at),
                client: client.map(|client| client as u32),
                text: text(),
            });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask { node, process, ask } => self.asked(node, process, &ask),
            Event::Reply {
                node,
                process,
                reply,
                delayed,
            } => self.replied(node, process, &reply, delayed),
            Event::NodeWake { node, life } => self.wake_node(node, life),
            Event::ClientWake { process } => {
                let client = self.processes[process];
                if self.clients[client].process == process {
                    self.clients[client].armed = None;
                }
                self.with_client(process, Contender::wake);
            }
            Event::Begin { process } => self.begin(process),
            Event::Plan {
                process,
                lease,
                plan,
            } => self.follow(process, lease, plan),
            Event::Cancel { process, number } => self.cancel(process, number),
            Event::Reopen { process, node } => {
                self.nodes[node].server.closed(LinkId(process as u64));
                self.with_client(process, |machine, now, out| {
                    machine.opened(now, NodeId::at(node), out);
                });
            }
            Event::Crash => self.crash_node(),
            Event::Up { node } => self.start_node(node),
        }
    }

    /// How long a message from or to a node takes; none if it is lost.
    fn way(&mut self, node: usize) -> Option<u64> {
        if self.options.loss > 0.0 && self.rng.chance(self.options.loss) {
            return None;
        }
        let longest = self.options.delay_ms * 1_000_000;
        if self.nodes[node].slow {
            let most = longest * u64::from(self.options.slower);
            return Some(self.rng.below(most as usize + 1) as u64);
        }
        Some(self.options.delays.draw(longest, &mut self.rng))
    }

    fn asked(&mut self, node: usize, process: usize, ask: &LeaseAsk) {
        if !self.nodes[node].up {
            return;
        }
        let client = self.processes[process];
        self.tell(Some(node), Some(client), || format!("hears {ask:?}"));
        let now = self.queue.now();
        if self.nodes[node].lies {
            let sight = Sight {
                held_by_other: self.check.held_by_other(client, now),
                vote: self
                    .config
                    .vote(Duration::from_millis(self.options.span_ms)),
                delay: self.config.delay,
                wall: self.nodes[node].clock.now(now).wall.0,
            };
            let words = lie(self.options.lie, ask, sight, &mut self.rng);
            for (after, reply) in words {
                if let Some(way) = self.way(node) {
                    let nanos = way + after.as_nanos() as u64;
                    self.send_reply(nanos, node, process, reply, false);
                }
            }
            return;
        }
        let mut out = LeaseOut::default();
        let own = self.nodes[node].clock.now(now);
        let link = LinkId(process as u64);
        let key = self.key.clone();
        self.nodes[node]
            .server
            .ask(own, link, &key, ask, None, &mut out);
        self.answer(node, out, Some(process));
    }

    fn send_reply(
        &mut self,
        nanos: u64,
        node: usize,
        process: usize,
        reply: LeaseReply,
        delayed: bool,
    ) {
        let event = Event::Reply {
            node,
            process,
            reply,
            delayed,
        };
        self.queue.push_in(nanos, event);
    }

    /// Lets a node's answers leave once its mark is on disk.
    fn answer(&mut self, node: usize, out: LeaseOut, asker: Option<usize>) {
        let now = self.queue.now();
        let disk = self.options.disk_ms * 1_000_000;
        if let Some(mark) = out.mark {
            let at = True(now.0 + disk);
            self.nodes[node].writes.push((at, mark));
            self.nodes[node].durable = at;
        }
        let late = self.options.plant == Some(Plant::MarkLate);
        let leaves = if late { now } else { self.nodes[node].durable };
        let held_back = leaves.0.saturating_sub(now.0);
        for (link, _, reply) in out.answers {
            let process = link.0 as usize;
            let client = self.processes[process];
            self.tell(Some(node), Some(client), || format!("says {reply:?}"));
            if let Some(way) = self.way(node) {
                let delayed = asker != Some(process);
                self.send_reply(way + held_back, node, process, reply, delayed);
            }
        }
        self.arm_node(node);
    }

    fn arm_node(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let wake = node.server.next_wake().map(|wake| wake.at);
        if wake == node.armed {
            return;
        }
        node.armed = wake;
        if let Some(at) = wake {
            let event = Event::NodeWake {
                node: index,
                life: node.life,
            };
            self.queue.push(node.clock.true_at(at), event);
        }
    }

    fn wake_node(&mut self, node: usize, life: u32) {
        if !self.nodes[node].up || self.nodes[node].life != life {
            return;
        }
        self.nodes[node].armed = None;
        let now = self.nodes[node].clock.now(self.queue.now());
        let mut out = LeaseOut::default();
        self.nodes[node].server.wake(now, &|_| None, &mut out);
        self.answer(node, out, None);
    }

    fn crash_node(&mut self) {
        self.next_crash();
        let index = self.rng.below(self.nodes.len());
        if !self.nodes[index].up || self.nodes[index].lies {
            return;
        }
        self.tell(Some(index), None, || "goes down".to_owned());
        let now = self.queue.now();
        let node = &mut self.nodes[index];
        node.up = false;
        node.life += 1;
        for (at, mark) in std::mem::take(&mut node.writes) {
            if at <= now {
                node.disk = node.disk.max(mark);
            }
        }
        let nanos = self.options.down_ms * 1_000_000;
        self.queue.push_in(nanos, Event::Up { node: index });
    }

    fn start_node(&mut self, index: usize) {
        let now = self.queue.now();
        let node = &mut self.nodes[index];
        node.clock.reboot(&mut self.rng);
        let own = node.clock.now(now);
        let start = LeaseStart {
            opens: own.mono + self.config.quarantine(),
            mark: node.disk,
        };
        node.server = LeaseServer::new(Arc::clone(&self.config), start, TABLE_SEED);
        node.up = true;
        node.armed = None;
        node.durable = now;
        let mark = node.disk;
        self.tell(Some(index), None, || format!("is back with mark {mark}"));
    }

    fn begin(&mut self, process: usize) {
        let client = self.processes[process];
        if self.clients[client].process != process {
            return;
        }
        let now = self.queue.now();
        self.clients[client].began = now;
        self.with_client(process, Contender::start);
    }

    /// Lets a client's machine do something, and does what it asks for.
    fn with_client(
        &mut self,
        process: usize,
        step: impl FnOnce(&mut Contender, Now, &mut Vec<(NodeId, LeaseAsk)>),
    ) {
        let index = self.processes[process];
        let at = self.queue.now();
        let client = &mut self.clients[index];
        if client.process != process {
            return;
        }
        let number = client.machine.next_number();
        let mut out = Vec::new();
        step(&mut client.machine, client.clock.now(at), &mut out);
        if client.machine.next_number() != number {
            client.votes.fill(None);
            self.attempt_begins(process, number);
        }
        for (node, ask) in out {
            let node = node.index();
            self.tell(Some(node), Some(index), || format!("is sent {ask:?}"));
            if let Some(way) = self.way(node) {
                self.queue.push_in(way, Event::Ask { node, process, ask });
            }
        }
        self.settle(index);
        self.arm_client(index);
    }

    /// Some attempts are given up in the middle, and in some a connection breaks.
    fn attempt_begins(&mut self, process: usize, number: u64) {
        let options = self.options;
        let trip = options.delay_ms * 2_000_000;
        if options.cancel > 0.0 && self.rng.chance(options.cancel) {
            let nanos = self.rng.below(trip as usize * 3) as u64;
            self.queue.push_in(nanos, Event::Cancel { process, number });
        }
        if options.reopen > 0.0 && self.rng.chance(options.reopen) {
            let nanos = self.rng.below(trip as usize) as u64;
            let node = self.rng.below(self.nodes.len());
            self.queue.push_in(nanos, Event::Reopen { process, node });
        }
    }

    fn arm_client(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let wake = client.machine.next_wake().map(|wake| wake.at);
        if wake == client.armed {
            return;
        }
        client.armed = wake;
        if let Some(at) = wake {
            let process = client.process;
            let at = client.clock.true_at(at);
            self.queue.push(at, Event::ClientWake { process });
        }
    }

    fn replied(&mut self, node: usize, process: usize, reply: &LeaseReply, delayed: bool) {
        let index = self.processes[process];
        let client = &mut self.clients[index];
        if client.process != process {
            return;
        }
        if matches!(reply.answer, LeaseAnswer::Free { .. }) {
            client.votes[node] = Some((reply.attempt.number, delayed));
        } else if let Some(vote) = &mut client.votes[node]
            && reply.attempt.number >= vote.0
            && !matches!(reply.answer, LeaseAnswer::Released)
        {
            client.votes[node] = None;
        }
        self.tell(Some(node), Some(index), || {
            format!("is heard: {:?}", reply.answer)
        });
        self.with_client(process, |machine, now, out| {
            machine.heard(now, NodeId::at(node), reply, out);
        });
    }

    /// Looks at what a client's machine has come to.
    fn settle(&mut self, index: usize) {
        let standing = *self.clients[index].machine.standing();
        let lease = self.clients[index].lease;
        match (standing, lease) {
            (
                Standing::Held {
                    token,
                    end,
                    attempts,
                },
                None,
            ) => self.won(index, token, end, attempts),
            (Standing::Held { end, .. }, Some((number, known))) if end > known => {
                let until = self.clients[index].clock.true_at(end);
                self.tell(None, Some(index), || format!("renewed until {until:?}"));
                self.check.renewed(number, until);
                self.clients[index].lease = Some((number, end));
                self.plan(index, number, end);
            }
            (Standing::Held { .. }, Some(_)) => {}
            (Standing::Ended(Some(why)), _) => {
                self.violation = Some(Violation {
                    property: "refused",
                    at: self.queue.now(),
                    what: format!("c{} is told {why:?}", index + 1),
                });
            }
            (_, Some((number, _))) => {
                let now = self.queue.now();
                self.tell(None, Some(index), || "has no lease any more".to_owned());
                self.check.ended(number, now);
                self.clients[index].lease = None;
                self.rest_and_go_on(index);
            }
            (_, None) => {}
        }
    }

    fn won(&mut self, index: usize, token: Token, end: Instant, attempts: u32) {
        let now = self.queue.now();
        let client = &mut self.clients[index];
        let number = client.machine.next_number() - 1;
        let votes = client.votes.iter().flatten();
        let lease = Lease {
            client: index,
            token,
            from: now,
            until: client.clock.true_at(end),
            late: votes.clone().any(|(attempt, _)| *attempt != number),
            delayed: votes.clone().any(|(_, delayed)| *delayed),
        };
        self.waits.push((now.0 - client.began.0, attempts));
        client.wins += 1;
        let wall = Clock::exact().now(now).wall.0;
        let wall = wall + self.options.skew_ms * 1000;
        self.tell(None, Some(index), || format!("has the lease: {lease:?}"));
        match self.check.won(lease, wall) {
            Ok(number) => {
                self.clients[index].lease = Some((number, end));
                self.plan(index, number, end);
            }
            Err(violation) => self.violation = Some(violation),
        }
    }

    /// Decides what a holder does with the rest of its lease.
    fn plan(&mut self, index: usize, lease: u64, end: Instant) {
        let options = self.options;
        if options.use_ms > 0 {
            let event = Event::Plan {
                process: self.clients[index].process,
                lease,
                plan: Plan::Release,
            };
            self.queue.push_in(options.use_ms * 1_000_000, event);
            return;
        }
        let draw = self.rng.unit();
        let plan = if draw < options.crash {
            Plan::Crash
        } else if draw < options.crash + options.renew {
            Plan::Renew
        } else if !options.paper && self.rng.chance(options.early) {
            Plan::Release
        } else {
            return;
        };
        let now = self.queue.now();
        let client = &self.clients[index];
        let rest = client.clock.true_at(end).0.saturating_sub(now.0);
        let part = match plan {
            Plan::Renew => 0.3 + self.rng.unit() * 0.65,
            Plan::Release | Plan::Crash => self.rng.unit(),
        };
        let event = Event::Plan {
            process: client.process,
            lease,
            plan,
        };
        self.queue.push_in((rest as f64 * part) as u64, event);
    }

    fn follow(&mut self, process: usize, lease: u64, plan: Plan) {
        let index = self.processes[process];
        let client = &self.clients[index];
        let holds = client.lease.is_some_and(|(number, _)| number == lease);
        if client.process != process || !holds {
            return;
        }
        match plan {
            Plan::Renew => self.with_client(process, Contender::renew),
            Plan::Release => {
                self.with_client(process, Contender::release);
                self.renew_machine(index);
            }
            Plan::Crash => self.crash_client(index),
        }
    }

    /// A client whose machine has ended takes another.
    fn renew_machine(&mut self, index: usize) {
        let client = &self.clients[index];
        let (id, number) = (client.id, client.machine.next_number());
        let machine = self.machine(index, id, number);
        let client = &mut self.clients[index];
        client.machine = machine;
        client.armed = None;
    }

    fn crash_client(&mut self, index: usize) {
        self.tell(None, Some(index), || "crashes".to_owned());
        let old = self.clients[index].process;
        for node in 0..self.nodes.len() {
            if self.rng.chance(0.5) {
                self.nodes[node].server.closed(LinkId(old as u64));
                self.arm_node(node);
            }
        }
        let (process, id, machine) = self.process(index);
        let client = &mut self.clients[index];
        client.process = process;
        client.id = id;
        client.machine = machine;
        client.armed = None;
        // Nodes do not know that it is gone: the lease is taken as held until its end.
        client.lease = None;
        self.rest_and_go_on(index);
    }

    fn rest_and_go_on(&mut self, index: usize) {
        if self.clients[index].wins >= self.options.goal {
            return;
        }
        let nanos = self.rest();
        let process = self.clients[index].process;
        self.queue.push_in(nanos, Event::Begin { process });
    }

    fn cancel(&mut self, process: usize, number: u64) {
        let index = self.processes[process];
        let client = &self.clients[index];
        let same = client.machine.next_number() == number + 1;
        if client.process != process || !same || client.lease.is_some() {
            return;
        }
        self.with_client(process, Contender::release);
        self.renew_machine(index);
        self.rest_and_go_on(index);
    }
}
