//! A small network of real nodes whose messages a test delivers by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Incarnation, NodeId, Token};
use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{
    Block, Id, LevelConfig, LevelEffects, LevelEvent, LevelInput, LevelMessage, LevelNode,
    LevelPlant, LevelRules, LevelStored, Representation, Seen, Topology, Trust, Word,
};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};

/// Whether a scenario went as it should; if not, what went wrong.
pub(crate) type Said = Result<(), String>;

/// Fails with a sentence.
pub(crate) fn ensure(holds: bool, what: &str) -> Said {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// A scenario must hold with all rules kept, and fail with this one broken.
#[track_caller]
pub(crate) fn shows(plant: LevelPlant, scenario: impl Fn(LevelRules) -> Said) {
    assert_eq!(scenario(LevelRules::default()), Ok(()));
    let broken = scenario(LevelRules::default().with(plant));
    assert!(
        broken.is_err(),
        "without its rule ({plant:?}) it goes well, too"
    );
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) message: LevelMessage<u32>,
}

impl Wire {
    pub(crate) fn is(&self, kind: &str, level: u8) -> bool {
        self.message.word.kind() == kind && self.message.level == level
    }
}

/// Somebody inside.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    pub(crate) node: usize,
    pub(crate) mode: Mode,
    pub(crate) block: Block,
    pub(crate) until: u64,
}

/// Nodes, what is between them, and one clock for all.
pub(crate) struct Net {
    config: Arc<LevelConfig>,
    nodes: Vec<Option<LevelNode<u32, Seen>>>,
    lives: Vec<u64>,
    stored: Vec<LevelStored<u32>>,
    pub(crate) flying: Vec<Wire>,
    pub(crate) now: u64,
    pub(crate) lock: u32,
    modes: BTreeMap<u64, Mode>,
    pub(crate) inside: BTreeMap<u64, Inside>,
    /// Wishes in the order in which they were granted.
    pub(crate) granted: Vec<u64>,
    /// The first time that two were inside who may not be together.
    pub(crate) overlap: Option<String>,
    /// The tokens of those grants.
    pub(crate) blocks: Vec<Block>,
    /// Messages that left, those of a node to itself excepted.
    pub(crate) sent: usize,
}

/// The published set-up with sticky representing nodes and one layout for all locks.
pub(crate) fn published(text: &str, rules: LevelRules) -> LevelConfig {
    let topology = Topology::parse(text, None).expect("it can be built");
    let topology = topology.expect("it is a hierarchy");
    LevelConfig {
        choice: Representation::Sticky,
        tombstones: true,
        rules,
        ..LevelConfig::paper(Arc::new(topology))
    }
}

/// The same with leases: times in nanoseconds, leases of 10,000.
pub(crate) fn leased(text: &str, rules: LevelRules) -> LevelConfig {
    LevelConfig {
        trust: Trust::Leases,
        lease: Duration::from_micros(10),
        lease_max: Duration::from_micros(100),
        ..published(text, rules)
    }
}

impl Net {
    pub(crate) fn new(config: LevelConfig) -> Self {
        Self::seeded(config, 1, 1)
    }

    pub(crate) fn seeded(config: LevelConfig, lock: u32, seed: u64) -> Self {
        let count = config.topology.nodes();
        let mut net = Self {
            config: Arc::new(config),
            nodes: (0..count).map(|_| None).collect(),
            lives: vec![0; count],
            stored: (0..count).map(|_| LevelStored::default()).collect(),
            flying: Vec::new(),
            now: 0,
            lock,
            modes: BTreeMap::new(),
            inside: BTreeMap::new(),
            granted: Vec::new(),
            blocks: Vec::new(),
            overlap: None,
            sent: 0,
        };
        net.lives = vec![1; count];
        for node in 0..count {
            net.start(node, seed);
        }
        net
    }

    /// The first lock for which a scenario's set-up is what the test is about.
    pub(crate) fn find(config: &LevelConfig, fits: impl Fn(&mut Self) -> bool) -> u32 {
        let fit = |lock: &u32| fits(&mut Self::seeded(config.clone(), *lock, 1));
        (1..500).find(fit).expect("some lock fits")
    }

    fn start(&mut self, node: usize, seed: u64) {
        let known = self.lives.iter().enumerate();
        let seen = Seen::of(known.map(|(other, life)| (NodeId::at(other), Incarnation(*life))));
        let mut out: LevelEffects<u32> = Effects::new();
        let stored = self.stored[node].clone();
        let life = Incarnation(self.lives[node]);
        let (config, id) = (self.config.clone(), NodeId::at(node));
        let now = self.both();
        let machine = LevelNode::start(config, id, life, seed, stored, seen, now, &mut out);
        self.nodes[node] = Some(machine);
        for wire in self.effects(node, out) {
            self.step(node, LevelInput::Receive(id, wire.message));
        }
    }

    fn both(&self) -> Now {
        Now {
            mono: Instant::from_nanos(self.now),
            wall: Wall(self.now),
        }
    }

    /// One step of a node, and of itself until it has heard all that it said to itself.
    pub(crate) fn step(&mut self, node: usize, input: LevelInput<u32>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.both();
            let Some(machine) = &mut self.nodes[node] else {
                return;
            };
            let mut out: LevelEffects<u32> = Effects::new();
            machine.handle(now, input, &mut out);
            let own = self.effects(node, out);
            inputs.extend(own.into_iter().map(|wire| {
                let from = NodeId::at(node);
                LevelInput::Receive(from, wire.message)
            }));
        }
    }

    /// Does what a step asks for; what a node says to itself comes back.
    fn effects(&mut self, node: usize, out: LevelEffects<u32>) -> Vec<Wire> {
        if !out.persist.is_empty() {
            out.persist
                .iter()
                .for_each(|record| self.stored[node].apply(record));
            let now = self.both();
            if let Some(machine) = &mut self.nodes[node] {
                machine.handle(now, LevelInput::Durable(u64::MAX), &mut Effects::new());
            }
        }
        for event in out.events {
            self.note(node, &event);
        }
        let mut own = Vec::new();
        for envelope in out.send_now.into_iter().chain(out.send_durable) {
            let wire = Wire {
                from: node,
                to: envelope.to.index(),
                message: envelope.message,
            };
            if wire.to == node {
                own.push(wire);
            } else {
                self.sent += 1;
                self.flying.push(wire);
            }
        }
        own
    }

    fn note(&mut self, node: usize, event: &LevelEvent<u32>) {
        match *event {
            LevelEvent::Granted {
                wish, block, until, ..
            } => {
                let mode = self.modes[&wish].clone();
                for (other, inside) in &self.inside {
                    let alone = mode == Mode::Exclusive || inside.mode != mode;
                    // Whoever is at its end has left.
                    if alone && inside.until > self.now && self.overlap.is_none() {
                        let at = self.now;
                        self.overlap = Some(format!("{wish} is let in beside {other} at {at}"));
                    }
                }
                let until = until.nanos();
                self.granted.push(wish);
                self.blocks.push(block);
                self.inside.insert(
                    wish,
                    Inside {
                        node,
                        mode,
                        block,
                        until,
                    },
                );
            }
            LevelEvent::Extended { wish, until, .. } => {
                if let Some(inside) = self.inside.get_mut(&wish) {
                    inside.until = until.nanos();
                }
            }
            LevelEvent::Lost { wish, .. } | LevelEvent::Refused { wish, .. } => {
                self.inside.remove(&wish);
            }
        }
    }

    pub(crate) fn want(&mut self, node: usize, wish: u64) {
        self.want_as(node, wish, Mode::Exclusive, 0);
    }

    pub(crate) fn want_as(&mut self, node: usize, wish: u64, mode: Mode, span: u64) {
        self.modes.insert(wish, mode.clone());
        let want = LevelInput::Want {
            lock: self.lock,
            wish,
            mode,
            span: Duration::from_nanos(span),
        };
        self.step(node, want);
    }

    /// A wish ends: whoever is inside leaves, or nobody waits any more.
    pub(crate) fn leave(&mut self, node: usize, wish: u64) {
        let inside = self.inside.remove(&wish);
        let used = inside.map_or(Token(0), |inside| Token(inside.block.from.0 + 1));
        let lock = self.lock;
        self.step(node, LevelInput::Leave { lock, wish, used });
    }

    /// The same, and what was used is not known any more.
    pub(crate) fn leave_unknown(&mut self, node: usize, wish: u64) {
        self.inside.remove(&wish);
        let (lock, used) = (self.lock, Token(u64::MAX));
        self.step(node, LevelInput::Leave { lock, wish, used });
    }

    pub(crate) fn is_inside(&self, wish: u64) -> bool {
        self.inside.contains_key(&wish)
    }

    /// Nobody was ever inside beside somebody else.
    pub(crate) fn apart(&self) -> Said {
        self.overlap.clone().map_or(Ok(()), Err)
    }

    /// Whether such a message is on its way.
    pub(crate) fn flies(&self, what: impl Fn(&Wire) -> bool) -> bool {
        self.flying.iter().any(what)
    }

    /// Delivers the first such message.
    pub(crate) fn deliver(&mut self, what: impl Fn(&Wire) -> bool) -> Said {
        let Some(place) = self.flying.iter().position(what) else {
            return Err("no such message is on its way".to_owned());
        };
        let wire = self.flying.remove(place);
        let from = NodeId::at(wire.from);
        self.step(wire.to, LevelInput::Receive(from, wire.message));
        Ok(())
    }

    /// Delivers all messages, and those that follow from them, in the order in which they left.
    pub(crate) fn settle(&mut self) {
        self.settle_but(|_| false);
    }

    /// The same, but such messages stay on their way.
    pub(crate) fn settle_but(&mut self, held: impl Fn(&Wire) -> bool) {
        for _ in 0..10_000 {
            if self.deliver(|wire| !held(wire)).is_err() {
                return;
            }
        }
        self.overlap = Some("messages without end".to_owned());
    }

    /// Lets time pass: what is due is done, but no message arrives.
    pub(crate) fn pass(&mut self, span: u64) {
        let end = self.now + span;
        while self.wake_next(end) {}
        self.now = end;
    }

    /// Lets time pass, and messages arrive at once.
    pub(crate) fn live(&mut self, span: u64) {
        self.live_but(span, |_| false);
    }

    pub(crate) fn live_but(&mut self, span: u64, held: impl Fn(&Wire) -> bool) {
        let end = self.now + span;
        loop {
            self.settle_but(&held);
            if !self.wake_next(end) {
                break;
            }
        }
        self.now = end;
    }

    fn wake_next(&mut self, end: u64) -> bool {
        let wakes = self.nodes.iter().enumerate().filter_map(|(node, machine)| {
            let wake = machine.as_ref()?.next_wake()?;
            Some((wake.at.nanos(), node))
        });
        let Some((at, node)) = wakes.min().filter(|(at, _)| *at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        self.step(node, LevelInput::Wake);
        true
    }

    /// Serves whoever is inside and lets time pass until nobody wants anything, or for `span`.
    pub(crate) fn finish(&mut self, span: u64) {
        let end = self.now + span;
        loop {
            self.settle();
            if let Some((wish, inside)) = self.inside.first_key_value() {
                let (wish, node) = (*wish, inside.node);
                self.leave(node, wish);
            } else if !self.wake_next(end) {
                break;
            }
        }
    }

    /// Nothing is left behind at any node that is up.
    pub(crate) fn all_idle(&self) -> Said {
        for node in self.nodes.iter().flatten() {
            let id = node.id();
            ensure(
                node.is_idle(),
                &format!("something is left at {id:?}: {:?}", node.view()),
            )?;
        }
        Ok(())
    }

    /// Permissions that arbiters of a level have given away.
    pub(crate) fn permissions(&self, level: u8) -> usize {
        let nodes = self.nodes.iter().flatten();
        let views = nodes.flat_map(LevelNode::view);
        views
            .filter(|view| view.level == level)
            .map(|view| view.permissions)
            .sum()
    }

    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node] = None;
        self.inside.retain(|_, inside| inside.node != node);
        self.flying.retain(|wire| wire.to != node);
    }

    /// A new life, which takes all others to be up in the lives that they were last seen in.
    pub(crate) fn restart(&mut self, node: usize) {
        self.lives[node] += 1;
        self.start(node, 7);
    }

    /// Everybody hears that the present life of a node has ended.
    pub(crate) fn tell_failed(&mut self, node: usize) {
        let input = LevelInput::Failed(NodeId::at(node), Incarnation(self.lives[node]));
        self.tell_others(node, &input);
    }

    /// Everybody hears that a node lives.
    pub(crate) fn tell_alive(&mut self, node: usize) {
        let input = LevelInput::Alive(NodeId::at(node), Incarnation(self.lives[node]));
        self.tell_others(node, &input);
    }

    /// Everybody suspects a node, which may be wrong.
    pub(crate) fn suspect(&mut self, node: usize) {
        self.tell_others(node, &LevelInput::Suspected(NodeId::at(node)));
    }

    fn tell_others(&mut self, node: usize, input: &LevelInput<u32>) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.step(other, input.clone());
        }
    }

    /// The connection of two nodes breaks: what is on its way is lost, and both know it.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        let between = |wire: &Wire| {
            (wire.from, wire.to) == (one, other) || (wire.from, wire.to) == (other, one)
        };
        self.flying.retain(|wire| !between(wire));
        self.step(one, LevelInput::Suspected(NodeId::at(other)));
        self.step(other, LevelInput::Suspected(NodeId::at(one)));
        self.flying.retain(|wire| !between(wire));
    }

    /// The connection of two nodes is there again.
    pub(crate) fn join(&mut self, one: usize, other: usize) {
        let life = |node: usize| Incarnation(self.lives[node]);
        let (first, second) = (life(one), life(other));
        self.step(one, LevelInput::Alive(NodeId::at(other), second));
        self.step(other, LevelInput::Alive(NodeId::at(one), first));
    }

    /// Says a word in the name of a node.
    pub(crate) fn say(&mut self, from: usize, to: usize, level: u8, word: Word) {
        let message = LevelMessage {
            lock: self.lock,
            level,
            life: Incarnation(self.lives[from]),
            clock: 1,
            word,
        };
        self.step(to, LevelInput::Receive(NodeId::at(from), message));
    }

    /// Makes a node's logical clock run ahead.
    pub(crate) fn say_clock(&mut self, node: usize, clock: u64) {
        let message = LevelMessage {
            lock: self.lock,
            level: 0,
            life: Incarnation(1),
            clock,
            word: Word::Rejoined {
                cid: self.strange_id(node),
            },
        };
        self.step(node, LevelInput::Receive(NodeId::at(0), message));
        self.flying.retain(|wire| wire.from != node);
    }

    /// A number that no request or pairing of a node has.
    pub(crate) fn strange_id(&self, node: usize) -> Id {
        Id {
            node: NodeId::at(node),
            life: Incarnation(self.lives[node]),
            counter: 1 << 40,
        }
    }
}
