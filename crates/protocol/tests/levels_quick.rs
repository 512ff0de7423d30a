//! A hierarchy without faults in a small network: one inside at a time, everybody served, and
//! nothing left behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Incarnation, NodeId, Token};
use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{
    LevelConfig, LevelEffects, LevelEvent, LevelInput, LevelMessage, LevelNode, LevelStored, Seen,
    Topology, Trust,
};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};
use conclave_quorum::Prng;
use conclave_quorum::construct::multilevel::Clusters;

#[derive(Clone, Debug)]
enum Event {
    Message(NodeId, NodeId, LevelMessage<u32>),
    Want(usize),
    Leave(usize, u64, Token),
    Wake(usize),
}

struct Net {
    nodes: Vec<LevelNode<u32, Seen>>,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next: u64,
    now: u64,
    rng: Prng,
    hold: u64,
    mode: Mode,
    inside: Vec<(usize, u64)>,
    most: usize,
    served: usize,
    messages: BTreeMap<&'static str, u64>,
    last: Token,
    wishes: u64,
    armed: Vec<Option<u64>>,
}

impl Net {
    fn new(config: LevelConfig, seed: u64) -> Self {
        let config = Arc::new(config);
        let mut out = Effects::new();
        let count = config.topology.nodes();
        let nodes = (0..count).map(|node| {
            LevelNode::start(
                config.clone(),
                NodeId::at(node),
                Incarnation(1),
                seed,
                LevelStored::default(),
                Seen::of((0..count).map(|node| (NodeId::at(node), Incarnation(1)))),
                Now::default(),
                &mut out,
            )
        });
        Self {
            nodes: nodes.collect(),
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            now: 0,
            rng: Prng::new(seed),
            hold: 10,
            mode: Mode::Exclusive,
            inside: Vec::new(),
            most: 0,
            served: 0,
            messages: BTreeMap::new(),
            last: Token(0),
            wishes: 0,
            armed: vec![None; count],
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.heap.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
    }

    fn step(&mut self, node: usize, input: LevelInput<u32>) {
        let mut out: LevelEffects<u32> = Effects::new();
        let now = Now {
            mono: Instant::from_nanos(self.now),
            wall: Wall(self.now),
        };
        self.nodes[node].handle(now, input, &mut out);
        let written = out.persist.len() as u64;
        if written > 0 {
            let all = LevelInput::Durable(u64::MAX);
            self.nodes[node].handle(now, all, &mut Effects::new());
        }
        for envelope in out.send_now.into_iter().chain(out.send_durable) {
            let kind = envelope.message.word.kind();
            *self.messages.entry(kind).or_default() += 1;
            let own = envelope.to.index() == node;
            let way = if own {
                0
            } else {
                5 + self.rng.below(20) as u64
            };
            let from = NodeId::at(node);
            self.push(
                self.now + way,
                Event::Message(from, envelope.to, envelope.message),
            );
        }
        for event in out.events {
            if let LevelEvent::Granted { wish, block, .. } = event {
                if self.mode == Mode::Exclusive {
                    assert!(self.inside.is_empty(), "two inside at {}", self.now);
                    assert!(
                        block.from >= self.last && !block.is_empty(),
                        "{block:?} {:?}",
                        self.last
                    );
                }
                self.last = Token(block.from.0 + 1);
                self.inside.push((node, wish));
                self.most = self.most.max(self.inside.len());
                self.push(self.now + self.hold, Event::Leave(node, wish, self.last));
            }
        }
        if let Some(wake) = self.nodes[node].next_wake() {
            let at = wake.at.nanos().max(self.now);
            if self.armed[node].is_none_or(|armed| armed > at) {
                self.armed[node] = Some(at);
                self.push(at, Event::Wake(node));
            }
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, key))) = self.heap.pop() {
            self.now = at;
            match self.events.remove(&key).expect("each key has its event") {
                Event::Message(from, to, message) => {
                    self.step(to.index(), LevelInput::Receive(from, message));
                }
                Event::Want(node) => {
                    self.wishes += 1;
                    let want = LevelInput::Want {
                        lock: 0,
                        wish: self.wishes,
                        mode: self.mode.clone(),
                        span: Duration::ZERO,
                    };
                    self.step(node, want);
                }
                Event::Leave(node, wish, used) => {
                    self.inside.retain(|inside| *inside != (node, wish));
                    self.served += 1;
                    let lock = 0;
                    self.step(node, LevelInput::Leave { lock, wish, used });
                }
                Event::Wake(node) => {
                    if self.armed[node] == Some(at) {
                        self.armed[node] = None;
                    }
                    self.step(node, LevelInput::Wake);
                }
            }
            assert!(self.next < 3_000_000, "it never comes to rest");
        }
    }
}

fn crowd(nodes: usize, levels: usize, gap: u64, seed: u64, trust: Trust, mode: Mode) -> Net {
    let clusters = Clusters::build(nodes, levels).expect("it can be built");
    let mut config = LevelConfig::paper(Arc::new(Topology::trees(clusters)));
    config.tombstones = true;
    config.trust = trust;
    if trust == Trust::Leases {
        config.lease = Duration::from_micros(4);
        config.lease_max = Duration::from_micros(8);
    }
    let mut net = Net::new(config, seed);
    net.mode = mode;
    for _ in 0..3 * nodes {
        let at = net.rng.below(gap as usize * 3 * nodes) as u64;
        let node = net.rng.below(nodes);
        net.push(at, Event::Want(node));
    }
    net.run();
    assert_eq!(
        net.served,
        3 * nodes,
        "{nodes} nodes, {levels} levels, seed {seed}"
    );
    for node in &net.nodes {
        let id = node.id();
        assert!(node.is_idle(), "seed {seed}: {id:?}");
    }
    net
}

#[test]
fn one_inside_at_a_time_and_everybody_served() {
    for seed in 1..=30 {
        for levels in 0..=3 {
            for gap in [3, 60, 400] {
                crowd(
                    7 + seed as usize % 24,
                    levels,
                    gap,
                    seed,
                    Trust::Oracle,
                    Mode::Exclusive,
                );
            }
        }
    }
}

#[test]
fn the_same_with_leases() {
    for seed in 1..=30 {
        for levels in 0..=3 {
            crowd(
                7 + seed as usize % 24,
                levels,
                60,
                seed,
                Trust::Leases,
                Mode::Exclusive,
            );
        }
    }
}

#[test]
fn a_group_is_inside_together() {
    for trust in [Trust::Oracle, Trust::Leases] {
        for levels in 0..=2 {
            let net = crowd(20, levels, 5, 3, trust, Mode::Shared);
            assert!(net.most > 3, "{trust:?}, {levels} levels: {}", net.most);
        }
    }
}
