//! Figures of undisturbed runs, and how often a request can be passed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Incarnation, NodeId, Token};
use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{
    LevelConfig, LevelEffects, LevelEvent, LevelInput, LevelMessage, LevelNode, LevelPlant,
    LevelRules, LevelStored, Seen, Topology,
};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};
use conclave_quorum::Prng;
use conclave_quorum::construct::multilevel::Clusters;
use conclave_quorum::measure::hierarchy::{paper_delay, true_delay};

use super::net::{Net, published};
use super::rules::target;

/// How long sending one message takes.
const SEND: u64 = 8;
/// How long a message is on its way.
const WAY: u64 = 12;

/// What is due.
#[derive(Clone, Debug)]
enum Due {
    Message(usize, usize, LevelMessage<u32>),
    Leave(usize, u64, Token),
    Want(usize),
    Wake(usize),
}

/// Nodes that send one message after the other.
struct Timed {
    nodes: Vec<LevelNode<u32, Seen>>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Due>,
    count: u64,
    now: u64,
    /// When each node has sent what it has to.
    busy: Vec<u64>,
    armed: Vec<Option<u64>>,
    lock: u32,
    stay: u64,
    wishes: u64,
    /// Wishes of each node that are still to come.
    more: Vec<u32>,
    waiting: BTreeMap<u64, usize>,
    granted: Vec<(u64, u64)>,
    to_self: usize,
    sent: usize,
    rng: Option<Prng>,
}

impl Timed {
    fn new(config: LevelConfig, lock: u32, seed: u64) -> Self {
        let config = Arc::new(config);
        let count = config.topology.nodes();
        let start = |node: usize| {
            let near = config.topology.neighbours(NodeId::at(node));
            LevelNode::start(
                config.clone(),
                NodeId::at(node),
                Incarnation(1),
                seed,
                LevelStored::default(),
                Seen::of(near.into_iter().map(|near| (near, Incarnation(1)))),
                Now::default(),
                &mut Effects::new(),
            )
        };
        Self {
            nodes: (0..count).map(start).collect(),
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            count: 0,
            now: 0,
            busy: vec![0; count],
            armed: vec![None; count],
            lock,
            stay: 10,
            wishes: 0,
            more: vec![0; count],
            waiting: BTreeMap::new(),
            granted: Vec::new(),
            to_self: 0,
            sent: 0,
            rng: None,
        }
    }

    fn push(&mut self, at: u64, due: Due) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count)));
        self.due.insert(self.count, due);
    }

    fn step(&mut self, node: usize, input: LevelInput<u32>) {
        let now = Now {
            mono: Instant::from_nanos(self.now),
            wall: Wall(self.now),
        };
        let mut out: LevelEffects<u32> = Effects::new();
        self.nodes[node].handle(now, input, &mut out);
        if !out.persist.is_empty() {
            let all = LevelInput::Durable(u64::MAX);
            self.nodes[node].handle(now, all, &mut Effects::new());
        }
        for envelope in out.send_now.into_iter().chain(out.send_durable) {
            let to = envelope.to.index();
            let at = if to == node {
                self.to_self += 1;
                self.now
            } else {
                self.sent += 1;
                let way = self
                    .rng
                    .as_mut()
                    .map_or(WAY, |rng| 5 + rng.below(20) as u64);
                self.busy[node] = self.busy[node].max(self.now) + SEND;
                self.busy[node] + way
            };
            self.push(at, Due::Message(node, to, envelope.message));
        }
        for event in out.events {
            if let LevelEvent::Granted { wish, block, .. } = event {
                self.granted.push((wish, self.now));
                self.waiting.remove(&wish);
                let used = Token(block.from.0 + 1);
                self.push(self.now + self.stay, Due::Leave(node, wish, used));
            }
        }
        if let Some(wake) = self.nodes[node].next_wake() {
            let at = wake.at.nanos().max(self.now);
            if self.armed[node].is_none_or(|armed| armed > at) {
                self.armed[node] = Some(at);
                self.push(at, Due::Wake(node));
            }
        }
    }

    fn next(&mut self) -> bool {
        let Some(Reverse((at, key))) = self.queue.pop() else {
            return false;
        };
        self.now = at;
        match self.due.remove(&key).expect("each key has what is due") {
            Due::Message(from, to, message) => {
                self.step(to, LevelInput::Receive(NodeId::at(from), message));
            }
            Due::Leave(node, wish, used) => {
                let lock = self.lock;
                self.step(node, LevelInput::Leave { lock, wish, used });
                if self.more[node] > 0 {
                    self.more[node] -= 1;
                    self.push(self.now, Due::Want(node));
                }
            }
            Due::Want(node) => {
                self.wishes += 1;
                let wish = self.wishes;
                self.waiting.insert(wish, self.granted.len());
                let want = LevelInput::Want {
                    lock: self.lock,
                    wish,
                    mode: Mode::Exclusive,
                    span: Duration::ZERO,
                };
                self.step(node, want);
            }
            Due::Wake(node) => {
                if self.armed[node] == Some(at) {
                    self.armed[node] = None;
                }
                self.step(node, LevelInput::Wake);
            }
        }
        true
    }
}

/// The time from the first wish of a network to its grant, and how many messages the whole entry
/// takes, for a request in which no node speaks to itself.
fn undisturbed(levels: usize, size: usize) -> (u64, usize) {
    let nodes = size.pow(levels as u32 + 1);
    let clusters = Clusters::build(nodes, levels).expect("it can be built");
    let topology = Arc::new(Topology::trees(clusters));
    for seed in 1..200 {
        let config = LevelConfig::paper(topology.clone());
        let mut timed = Timed::new(config, 1, seed);
        timed.push(0, Due::Want(nodes - 1 - seed as usize % (size - 1)));
        while timed.next() {}
        if timed.to_self == 0 {
            return (timed.granted[0].1, timed.sent);
        }
    }
    panic!("in every run some node speaks to itself");
}

/// The minimum delays, to the unit; and three messages for each member of the quorums and four
/// for each step between levels.
#[test]
fn an_undisturbed_entry_takes_exactly_this_long() {
    let table = [
        (0, 7, 3, 56),
        (1, 7, 3, 104),
        (2, 7, 3, 144),
        (0, 15, 4, 64),
        (1, 15, 4, 112),
    ];
    for (levels, size, quorum, delay) in table {
        let (found, sent) = undisturbed(levels, size);
        assert_eq!(found, delay, "{levels} levels, quorums of {quorum}");
        let formula = true_delay(levels, quorum, SEND as f64, WAY as f64);
        assert!((formula - delay as f64).abs() < 1e-9);
        let printed = paper_delay(levels, quorum, SEND as f64, WAY as f64);
        let late = if levels > 0 { SEND } else { 0 };
        assert!((printed + late as f64 - delay as f64).abs() < 1e-9);
        assert_eq!(sent, 3 * quorum * (levels + 1) + 4 * levels);
    }
}

/// How often the most unlucky request is passed, with every node always wanting the lock: four
/// clusters of four, three of which share a representing node.
fn most_passed(rules: LevelRules) -> usize {
    let text = "multilevel(tree, 16, levels=1)";
    let mut config = published(text, rules);
    config.passes = Some(3);
    // Consent ends late enough to be handed on for as long as anybody wants it.
    config.lease = Duration::from_secs(1);
    // Three clusters with one representing node, the fourth with another.
    let lock = Net::find(&config, |net| {
        let parents: Vec<Option<usize>> = (0..4)
            .map(|cluster| {
                net.flying.clear();
                net.want(4 * cluster + 1, cluster as u64);
                target(net, "PreCRequest", 1)
            })
            .collect();
        let same = |parent: &Option<usize>| parents.iter().filter(|other| *other == parent).count();
        parents.iter().any(|parent| same(parent) == 3)
    });
    let mut timed = Timed::new(config, lock, 3);
    timed.rng = Some(Prng::new(5));
    for node in 0..16 {
        timed.more[node] = 39;
        timed.push(node as u64, Due::Want(node));
    }
    let mut most = 0;
    while timed.next() {
        let passed = |at: &usize| timed.granted.len() - at;
        most = most.max(timed.waiting.values().map(passed).max().unwrap_or(0));
    }
    assert_eq!(
        timed.granted.len(),
        16 * 40,
        "everybody is served in the end"
    );
    most
}

/// Consent is handed on within a bound, so nobody is passed more often than the levels allow;
/// without the bound a request waits until all others have had enough.
#[test]
fn nobody_is_passed_without_end() {
    let bound = |cluster: usize, passes: usize| cluster * (cluster * (cluster + passes));
    let passed = most_passed(LevelRules::default());
    assert!(passed <= bound(4, 3), "passed {passed} times");
    let endless = most_passed(LevelRules::default().with(LevelPlant::NoBound));
    assert!(
        endless > 400,
        "without the bound passed {endless} times only"
    );
}
