//! Keepers, clients and the nodes' own work in one process: messages arrive at once and in order,
//! and time moves on when nothing else does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, Key, LinkId, Name, NodeId};
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::keeper::{
    Answer, Ask, Diffusion, DiffusionEvent, DiffusionInput, Keeper, KeeperClient, KeeperEvent,
    KeeperInput, KeeperStart, Rejoin, RejoinEvent, RejoinInput,
};
use conclave_protocol::lock::Access;
use conclave_protocol::object::envelope::{Outcome, Wish, decode_outcomes};
use conclave_protocol::object::kinds::counter::{Counter, Op};
use conclave_protocol::object::kinds::{Code, Typed, result};
use conclave_protocol::object::{ObjectConfig, Signing};
use conclave_protocol::{Effects, Machine};

use super::{Node, Seals, caller, object};

/// Who talks to nodes.
pub(crate) enum Actor {
    Client(Box<KeeperClient>),
    Diffusion(NodeId, Box<Diffusion>),
    /// With the client that orders for it.
    Rejoin(NodeId, Box<Rejoin>, usize),
}

pub(crate) struct Net {
    pub(crate) config: Arc<ObjectConfig>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) up: Vec<bool>,
    pub(crate) actors: Vec<Actor>,
    asks: VecDeque<(usize, NodeId, Ask)>,
    pub(crate) events: Vec<(usize, ClientEvent)>,
    /// Changes what a node says on its way.
    pub(crate) lies: Option<fn(NodeId, &mut Answer)>,
    keys: u64,
}

fn link(actor: usize) -> LinkId {
    LinkId(actor as u64 + 1)
}

impl Net {
    pub(crate) fn new(config: &Arc<ObjectConfig>) -> Self {
        let count = config.faults.nodes();
        let new = |_| Node::new(config, Access::default());
        Self {
            config: config.clone(),
            nodes: (0..count).map(new).collect(),
            up: vec![true; count],
            actors: Vec::new(),
            asks: VecDeque::new(),
            events: Vec::new(),
            lies: None,
            keys: 0,
        }
    }

    pub(crate) fn client(&mut self, id: u128) -> usize {
        let lease = self.config.lease.clone();
        let seed = [id as u8; 32];
        let mut client = KeeperClient::new(lease, Some(self.config.clone()), ClientId(id), seed);
        if self.config.signed {
            client = client.signed(Signing {
                signer: Arc::new(Seals),
                verifier: Arc::new(Seals),
            });
        }
        self.join(Actor::Client(Box::new(client)))
    }

    pub(crate) fn join(&mut self, actor: Actor) -> usize {
        let at = self.actors.len();
        self.actors.push(actor);
        for node in 0..self.nodes.len() {
            self.connect(at, node);
        }
        at
    }

    fn connect(&mut self, actor: usize, node: usize) {
        let id = NodeId::at(node);
        let home = match &self.actors[actor] {
            Actor::Client(_) => None,
            Actor::Diffusion(home, _) | Actor::Rejoin(home, ..) => Some(*home),
        };
        if !self.up[node] || home == Some(id) {
            return;
        }
        let caller = caller("ann", home);
        self.nodes[node].step(KeeperInput::Opened(link(actor), caller));
        self.tell(actor, |now, actor, net| match actor {
            Actor::Client(client) => net.client_step(client, now, ClientInput::Opened(id)),
            Actor::Diffusion(_, work) => net.work(work, now, DiffusionInput::Opened(id)),
            Actor::Rejoin(_, rejoin, client) => {
                net.rejoin(rejoin, *client, now, RejoinInput::Opened(id))
            }
        });
    }

    pub(crate) fn down(&mut self, node: usize) {
        self.up[node] = false;
        for actor in 0..self.actors.len() {
            self.nodes[node].step(KeeperInput::Closed(link(actor)));
            let id = NodeId::at(node);
            self.tell(actor, |now, actor, net| match actor {
                Actor::Client(client) => net.client_step(client, now, ClientInput::Closed(id)),
                Actor::Diffusion(_, work) => net.work(work, now, DiffusionInput::Closed(id)),
                Actor::Rejoin(_, rejoin, client) => {
                    net.rejoin(rejoin, *client, now, RejoinInput::Closed(id))
                }
            });
        }
    }

    pub(crate) fn back(&mut self, node: usize) {
        self.up[node] = true;
        for actor in 0..self.actors.len() {
            self.connect(actor, node);
        }
    }

    /// The node's disk is gone, and it begins to rejoin with a client of its own.
    pub(crate) fn lose(&mut self, at: usize) {
        self.down(at);
        let node = &mut self.nodes[at];
        node.disk.clear();
        node.restart();
        let mut out = Effects::new();
        node.keeper = Keeper::new(node.config.clone(), KeeperStart::Lost, node.now, &mut out);
        let opens = node.keeper.opens();
        self.back(at);
        let client = self.client(1000 + at as u128);
        let rejoin = Rejoin::new(self.config.faults, Some(&self.config), opens, true);
        let id = NodeId::at(at);
        self.join(Actor::Rejoin(id, Box::new(rejoin), client));
    }

    fn tell(
        &mut self,
        actor: usize,
        step: impl FnOnce(conclave_protocol::Now, &mut Actor, &mut Self) -> Vec<(NodeId, Ask)>,
    ) {
        let now = self.nodes[0].now;
        let blank = Diffusion::new(self.config.clone(), 0);
        let blank = Actor::Diffusion(NodeId(0), Box::new(blank));
        let mut own = std::mem::replace(&mut self.actors[actor], blank);
        let asks = step(now, &mut own, self);
        self.actors[actor] = own;
        self.asks
            .extend(asks.into_iter().map(|(node, ask)| (actor, node, ask)));
    }

    fn client_step(
        &mut self,
        client: &mut KeeperClient,
        now: conclave_protocol::Now,
        input: ClientInput,
    ) -> Vec<(NodeId, Ask)> {
        let mut out = Effects::new();
        client.handle(now, input, &mut out);
        self.events
            .extend(out.events.into_iter().map(|event| (0, event)));
        let sent = out.send_now.into_iter();
        sent.map(|envelope| (envelope.to, envelope.message))
            .collect()
    }

    fn work(
        &mut self,
        work: &mut Diffusion,
        now: conclave_protocol::Now,
        input: DiffusionInput,
    ) -> Vec<(NodeId, Ask)> {
        let mut out = Effects::new();
        work.handle(now, input, &mut out);
        for event in out.events {
            let input = match event {
                DiffusionEvent::Adopt {
                    object,
                    stamp,
                    remedy,
                } => KeeperInput::Adopt {
                    object,
                    stamp,
                    remedy,
                },
                DiffusionEvent::Settled { object, stamp } => KeeperInput::Settled { object, stamp },
            };
            // Tests have one node that works like this.
            let home = self.home();
            self.nodes[home].step(input);
        }
        let sent = out.send_now.into_iter();
        sent.map(|envelope| (envelope.to, envelope.message))
            .collect()
    }

    fn home(&self) -> usize {
        self.nodes.len() - 1
    }

    fn rejoin(
        &mut self,
        rejoin: &mut Rejoin,
        client: usize,
        now: conclave_protocol::Now,
        input: RejoinInput,
    ) -> Vec<(NodeId, Ask)> {
        let mut out = Effects::new();
        rejoin.handle(now, input, &mut out);
        for event in out.events {
            match event {
                RejoinEvent::Refresh(object) => {
                    self.keys += 1;
                    let key = Key(1_000_000 + self.keys);
                    let command = Command::Refresh { object };
                    self.tell(client, |now, actor, net| {
                        let Actor::Client(client) = actor else {
                            return Vec::new();
                        };
                        net.client_step(client, now, ClientInput::Do(key, command))
                    });
                }
                RejoinEvent::Begin => {
                    let lost = self.nodes.iter().position(|node| !node.keeper.is_serving());
                    let lost = lost.expect("one that rejoins");
                    self.nodes[lost].step(KeeperInput::Begin);
                }
                RejoinEvent::Rejoined { mark } => {
                    let lost = self.nodes.iter().position(|node| !node.keeper.is_serving());
                    let lost = lost.expect("one that rejoins");
                    self.nodes[lost].step(KeeperInput::Rejoined { mark });
                }
            }
        }
        let sent = out.send_now.into_iter();
        sent.map(|envelope| (envelope.to, envelope.message))
            .collect()
    }

    /// What a rejoining node's client has ordered goes to its keeper.
    fn restore(&mut self) {
        let refreshed =
            |(_, event): &(usize, ClientEvent)| matches!(event, ClientEvent::Refreshed { .. });
        while let Some(at) = self.events.iter().position(refreshed) {
            let (_, event) = self.events.remove(at);
            let ClientEvent::Refreshed {
                state, rank, proof, ..
            } = event
            else {
                continue;
            };
            let lost = self.nodes.iter().position(|node| !node.keeper.is_serving());
            let lost = lost.expect("one that rejoins");
            self.nodes[lost].step(KeeperInput::Restored {
                object: object(),
                rank,
                proof,
                state,
            });
            let actor = self.actors.len() - 1;
            self.tell(actor, |now, actor, net| {
                let Actor::Rejoin(_, rejoin, client) = actor else {
                    return Vec::new();
                };
                net.rejoin(rejoin, *client, now, RejoinInput::Refreshed(object()))
            });
        }
    }

    /// Delivers all that is under way.
    pub(crate) fn drain(&mut self) {
        loop {
            self.restore();
            while let Some((actor, node, ask)) = self.asks.pop_front() {
                if self.up[node.index()] {
                    let input = KeeperInput::Receive(link(actor), ask);
                    self.nodes[node.index()].step(input);
                }
            }
            let mut quiet = true;
            for at in 0..self.nodes.len() {
                self.nodes[at].sync();
                for event in std::mem::take(&mut self.nodes[at].events) {
                    quiet &= !self.observe(at, event);
                }
                for (to, mut answer) in std::mem::take(&mut self.nodes[at].said) {
                    quiet = false;
                    if let Some(lie) = self.lies {
                        lie(NodeId::at(at), &mut answer);
                    }
                    self.deliver(at, to, answer);
                }
            }
            if quiet && self.asks.is_empty() {
                return;
            }
        }
    }

    /// What a node's keeper tells goes to the work of that node.
    fn observe(&mut self, at: usize, event: KeeperEvent) -> bool {
        let input = match event {
            KeeperEvent::Serving | KeeperEvent::New(_) => return false,
            KeeperEvent::Committed { object, stamp } => DiffusionInput::Own(object, stamp),
            KeeperEvent::NotAdopted { object, stamp } => DiffusionInput::NotAdopted(object, stamp),
        };
        let mine = |actor: &Actor| matches!(actor, Actor::Diffusion(home, _) if home.index() == at);
        let Some(actor) = self.actors.iter().position(mine) else {
            return false;
        };
        self.tell(actor, |now, actor, net| match actor {
            Actor::Diffusion(_, work) => net.work(work, now, input),
            _ => Vec::new(),
        });
        true
    }

    fn deliver(&mut self, node: usize, to: LinkId, answer: Answer) {
        let id = NodeId::at(node);
        let actor = to.0 as usize - 1;
        self.tell(actor, |now, actor, net| match actor {
            Actor::Client(client) => net.client_step(client, now, ClientInput::Heard(id, answer)),
            Actor::Diffusion(_, work) => net.work(work, now, DiffusionInput::Heard(id, answer)),
            Actor::Rejoin(_, rejoin, client) => {
                net.rejoin(rejoin, *client, now, RejoinInput::Heard(id, answer))
            }
        });
    }

    /// Lets this much time pass, in small steps.
    pub(crate) fn pass(&mut self, span: Duration) {
        let step = Duration::from_millis(5);
        let mut passed = Duration::ZERO;
        self.drain();
        while passed < span {
            passed += step;
            for node in &mut self.nodes {
                node.pass(step);
                node.step(KeeperInput::Wake);
            }
            for actor in 0..self.actors.len() {
                self.tell(actor, |now, actor, net| match actor {
                    Actor::Client(client) => net.client_step(client, now, ClientInput::Wake),
                    Actor::Diffusion(_, work) => net.work(work, now, DiffusionInput::Wake),
                    Actor::Rejoin(_, rejoin, client) => {
                        net.rejoin(rejoin, *client, now, RejoinInput::Wake)
                    }
                });
            }
            self.drain();
        }
    }

    /// Adds to a counter; what comes of it within some seconds.
    pub(crate) fn add(&mut self, client: usize, object: Name, amount: i64) -> Option<i64> {
        self.keys += 1;
        let key = Key(self.keys);
        let command = Command::Submit {
            object,
            kind: Arc::new(Typed(Counter)),
            wish: Wish::Operation(Op::Add(amount).encode().into()),
        };
        self.tell(client, |now, actor, net| match actor {
            Actor::Client(client) => net.client_step(client, now, ClientInput::Do(key, command)),
            _ => Vec::new(),
        });
        for _ in 0..1000 {
            self.drain();
            let done = self.events.iter().find_map(|(_, event)| match event {
                ClientEvent::Done {
                    key: of, result, ..
                } if *of == key => Some(result.clone()),
                _ => None,
            });
            if let Some(done) = done {
                return Some(number(&done));
            }
            self.pass(Duration::from_millis(5));
        }
        None
    }
}

fn number(done: &[u8]) -> i64 {
    if let Some(outcomes) = decode_outcomes(done)
        && let [Outcome::Result(one)] = outcomes.as_slice()
    {
        return result(one).expect("a number");
    }
    result(done).expect("a number")
}
