//! The world itself: events in the order of true time.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{
    Block, LevelConfig, LevelEffects, LevelEvent, LevelInput, LevelMessage, LevelNode, LevelStored,
    Topology,
};
use conclave_protocol::{Effects, Instant};
use conclave_quorum::Prng;

use super::check::{self, Broken, Check, Holder};
use super::draws::{Normal, exponential};
use super::drive::Disk;
use super::eye::{Eye, View};
use super::faults::Links;
use super::meter::Meter;
use super::options::{LevelOptions, LevelOptionsError};
use super::scenario::Measured;
use crate::clock::Clock;
use crate::engine::Queue;
use crate::fact::{True, Violation};
use crate::trace::Line;
use crate::world::{Outcome, Tracer};

/// So many events are a run that does not end, where a run must.
const EVENTS_MAX: u64 = 20_000_000;
/// So many events that wait at once are a storm of messages.
const PENDING_MAX: usize = 300_000;
/// The one lock of the world.
pub(super) const LOCK: u32 = 0;
/// So often progress is told, in entries.
const PROGRESS: u64 = 1000;

/// Something that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A message arrives. Epochs number the connections of two nodes.
    Deliver {
        from: u32,
        to: u32,
        epoch: u32,
        message: LevelMessage<u32>,
    },
    Wake {
        node: u32,
    },
    /// Somebody somewhere asks.
    Request,
    /// This node asks once more.
    Ask {
        node: u32,
    },
    /// A holder has done what it wanted.
    Leave {
        wish: u64,
    },
    /// A holder's time may be over.
    Expire {
        wish: u64,
    },
    /// A wish is given up.
    Cancel {
        wish: u64,
    },
    /// A node may fail.
    Crash,
    Up {
        node: u32,
    },
    /// All nodes together notice a failure.
    Detect {
        node: u32,
        life: u64,
    },
    /// One node notices that another has failed, or is back.
    Told {
        to: u32,
        node: u32,
        life: u64,
        alive: bool,
    },
    /// A node's oldest write is on disk.
    Written {
        node: u32,
        life: u64,
    },
    /// A connection breaks.
    Cut,
    /// A connection is made.
    Open {
        one: u32,
        other: u32,
    },
    /// One side of a connection notices.
    Closed {
        at: u32,
        other: u32,
        epoch: u32,
    },
    Opened {
        at: u32,
        other: u32,
        epoch: u32,
    },
}

/// What the world keeps about a node.
#[derive(Debug)]
pub(super) struct Node {
    /// None while it is down, and before anything concerns it.
    pub(super) machine: Option<Box<LevelNode<u32, Eye>>>,
    pub(super) life: u32,
    pub(super) up: bool,
    /// Until when it is busy with sending.
    pub(super) busy: u64,
    /// When it is woken next.
    pub(super) armed: u64,
    /// Its place among the active nodes.
    pub(super) place: u32,
}

/// No place, or no wake.
pub(super) const NOWHERE: u32 = u32::MAX;
pub(super) const NEVER: u64 = u64::MAX;

/// A wish of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) node: u32,
    asked: u64,
    /// How many entries there had been when it was asked for.
    before: u64,
    group: Option<u32>,
    /// True time at which its consent ends, if it is inside.
    pub(super) until: Option<u64>,
    used: Token,
    /// Its node is down, but whoever is inside does not know.
    pub(super) ghost: bool,
}

pub(super) struct World<'a> {
    pub(super) options: &'a LevelOptions,
    pub(super) config: Arc<LevelConfig>,
    pub(super) topology: Arc<Topology>,
    pub(super) queue: Queue<Event>,
    pub(super) rng: Prng,
    pub(super) nodes: Vec<Node>,
    /// Nodes where something goes on.
    pub(super) active: Vec<u32>,
    /// Clocks; none if all are exact.
    pub(super) clocks: Vec<Clock>,
    /// Disks of nodes that ever wrote something.
    pub(super) disks: BTreeMap<u32, Disk>,
    pub(super) view: Option<Rc<View>>,
    pub(super) links: Links,
    pub(super) ways: Normal,
    pub(super) sends: Normal,
    pub(super) out: LevelEffects<u32>,
    pub(super) inputs: VecDeque<(u32, LevelInput<u32>)>,
    pub(super) stepping: bool,
    pub(super) wishes: BTreeMap<u64, Wish>,
    next_wish: u64,
    modes: Vec<Mode>,
    askers: Vec<u32>,
    asks_left: BTreeMap<u32, u32>,
    pub(super) down: u64,
    /// The coordinator of every cluster below the root, by level; only without announcements.
    pub(super) coordinators: Vec<Vec<u32>>,
    pub(super) meter: Meter,
    pub(super) check: Option<Check>,
    pub(super) broken: Option<Broken>,
    tracer: Option<Tracer<'a>>,
}

/// Runs a world with all checkers. The trace is a function of the options.
pub fn check<'a>(
    options: &'a LevelOptions,
    tracer: Option<Tracer<'a>>,
) -> Result<Outcome, LevelOptionsError> {
    let topology = options.topology()?;
    options.checked(topology.nodes())?;
    let mut world = World::new(options, topology, tracer, true);
    world.go(&mut |_| ());
    if world.broken.is_none() && !options.open {
        world.broken = world.at_rest().err();
    }
    if let Some((property, what)) = world.broken.clone() {
        world.tell_trace(None, || format!("VIOLATION of {property}: {what}"));
    }
    let at = world.queue.now();
    Ok(Outcome {
        violation: world
            .broken
            .map(|(property, what)| Violation { property, at, what }),
        events: world.queue.taken(),
        grants: world.meter.entries(),
        waiting: world.wishes.len(),
        ..Outcome::default()
    })
}

/// Runs a world without checkers and measures it.
pub(super) fn measure(
    options: &LevelOptions,
    topology: Arc<Topology>,
    progress: &mut dyn FnMut(u64),
) -> Measured {
    let nodes = topology.nodes() as u64;
    let mut world = World::new(options, topology, None, false);
    world.go(progress);
    let (now, events) = (world.queue.now().0, world.queue.taken());
    world.meter.finish(now, nodes, events)
}

impl<'a> World<'a> {
    fn new(
        options: &'a LevelOptions,
        topology: Arc<Topology>,
        tracer: Option<Tracer<'a>>,
        checked: bool,
    ) -> Self {
        let mut rng = Prng::new(options.seed ^ 0x6c65_7665_6c73);
        let count = topology.nodes();
        let mut clocks = Vec::new();
        if options.leases {
            let draw = |_| Clock::draw(options.drift_ppm, 0, &mut rng);
            clocks = (0..count).map(draw).collect();
        }
        let mut askers: Vec<u32> = (0..count as u32).collect();
        if options.askers > 0 && (options.askers as usize) < count {
            rng.shuffle(&mut askers);
            askers.truncate(options.askers as usize);
        }
        let node = |_| Node {
            machine: None,
            life: 1,
            up: true,
            busy: 0,
            armed: NEVER,
            place: NOWHERE,
        };
        let groups = (0..options.groups).map(|group| Mode::group(format!("g{group}")));
        let shared = options.shared && !options.leases;
        let mut world = Self {
            options,
            config: Arc::new(options.config(Arc::clone(&topology))),
            queue: Queue::new(),
            nodes: (0..count).map(node).collect(),
            active: Vec::new(),
            clocks,
            disks: BTreeMap::new(),
            view: shared.then(|| Rc::new(View::new(count))),
            links: Links::new(options, count),
            ways: Normal::new(options.way, options.way_sd),
            sends: Normal::new(options.send, options.send_sd),
            out: Effects::new(),
            inputs: VecDeque::new(),
            stepping: false,
            wishes: BTreeMap::new(),
            next_wish: 1,
            modes: groups.collect(),
            asks_left: BTreeMap::new(),
            askers,
            down: 0,
            coordinators: Vec::new(),
            meter: Meter::default(),
            check: checked.then(Check::default),
            broken: None,
            tracer,
            topology,
            rng,
        };
        world.begin();
        world
    }

    /// The first events.
    fn begin(&mut self) {
        let options = self.options;
        if !options.announce {
            self.first_coordinators();
        }
        if options.open {
            self.next_request();
        } else {
            for node in self.askers.clone() {
                self.asks_left.insert(node, options.asks);
                let nanos = self.rest();
                self.queue.push_in(nanos, Event::Ask { node });
            }
        }
        if options.up < 1.0 {
            if options.open {
                self.some_are_down();
            }
            self.next_crash();
        }
        if options.leases {
            self.all_connect();
        }
        if options.cut > 0 {
            self.next_cut();
        }
    }

    fn rest(&mut self) -> u64 {
        exponential(self.options.gap as f64, &mut self.rng)
    }

    fn next_request(&mut self) {
        let mean = self.options.gap as f64 / self.askers.len() as f64;
        let nanos = exponential(mean, &mut self.rng);
        self.queue.push_in(nanos, Event::Request);
    }

    fn go(&mut self, progress: &mut dyn FnMut(u64)) {
        let (open, entries) = (self.options.open, self.options.entries);
        let mut told = 0;
        while let Some((at, event)) = self.queue.pop() {
            if at.0 > self.options.limit {
                break;
            }
            // The published text often turns in circles: that shows soon.
            let most = if self.options.paper {
                EVENTS_MAX / 60
            } else {
                EVENTS_MAX
            };
            let wild = self.queue.taken() > most || self.queue.len() > PENDING_MAX;
            if !open && wild {
                self.breaks("endless", || "the run does not come to rest".to_owned());
            }
            self.happen(event);
            if self.broken.is_some() {
                break;
            }
            let done = self.meter.entries();
            if done >= told + PROGRESS {
                told = done;
                progress(done);
            }
            if open && done >= entries {
                break;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver {
                from,
                to,
                epoch,
                message,
            } => self.delivered(from, to, epoch, message),
            Event::Wake { node } => self.wake(node),
            Event::Request => {
                self.next_request();
                let node = self.askers[self.rng.below(self.askers.len())];
                if self.nodes[node as usize].up {
                    self.want(node);
                }
            }
            Event::Ask { node } => self.ask(node),
            Event::Leave { wish } => self.leave(wish),
            Event::Expire { wish } => self.expire(wish),
            Event::Cancel { wish } => self.cancel(wish),
            Event::Crash => self.crash_some(),
            Event::Up { node } => self.restart(node),
            Event::Detect { node, life } => self.detected(node, life),
            Event::Told {
                to,
                node,
                life,
                alive,
            } => self.told(to, node, life, alive),
            Event::Written { node, life } => self.written(node, life),
            Event::Cut => self.cut_some(),
            Event::Open { one, other } => self.open(one, other),
            Event::Closed { at, other, epoch } => self.closed(at, other, epoch),
            Event::Opened { at, other, epoch } => self.opened(at, other, epoch),
        }
    }

    /// Whether there is still something to do for nodes that ask again.
    pub(super) fn is_busy(&self) -> bool {
        self.options.open || !self.asks_left.is_empty() || !self.wishes.is_empty()
    }

    fn ask(&mut self, node: u32) {
        if !self.nodes[node as usize].up {
            let nanos = exponential(self.options.recovery as f64, &mut self.rng);
            self.queue.push_in(nanos, Event::Ask { node });
            return;
        }
        let Some(left) = self.asks_left.get_mut(&node) else {
            return;
        };
        *left -= 1;
        self.want(node);
    }

    /// A wish has ended; its node asks again after a while, if it shall.
    pub(super) fn ended(&mut self, wish: u64) -> Option<Wish> {
        let ended = self.wishes.remove(&wish)?;
        if !ended.ghost {
            self.again(ended.node);
        }
        Some(ended)
    }

    pub(super) fn again(&mut self, node: u32) {
        match self.asks_left.get(&node) {
            Some(0) => {
                self.asks_left.remove(&node);
            }
            Some(_) => {
                let nanos = self.rest();
                self.queue.push_in(nanos, Event::Ask { node });
            }
            None => {}
        }
    }

    fn want(&mut self, node: u32) {
        let number = self.next_wish;
        self.next_wish += 1;
        let alone = self.modes.is_empty() || self.rng.chance(self.options.exclusive);
        let group = (!alone).then(|| self.rng.below(self.modes.len()) as u32);
        let mode = group.map_or(Mode::Exclusive, |group| self.modes[group as usize].clone());
        let now = self.queue.now().0;
        let wish = Wish {
            node,
            asked: now,
            before: self.meter.entries(),
            group,
            until: None,
            used: Token(0),
            ghost: false,
        };
        self.wishes.insert(number, wish);
        if self.options.cancel > 0.0 && self.rng.chance(self.options.cancel) {
            let nanos = exponential(150.0, &mut self.rng);
            self.queue.push_in(nanos, Event::Cancel { wish: number });
        }
        self.tell_trace(Some(node), || format!("wants it {mode}: wish {number}"));
        let span = Duration::from_nanos(self.options.wanted_span());
        let input = LevelInput::Want {
            lock: LOCK,
            wish: number,
            mode,
            span,
        };
        self.tell(node, input);
    }

    /// What a machine says to its caller.
    pub(super) fn heard(&mut self, node: u32, event: &LevelEvent<u32>) {
        self.tell_trace(Some(node), || format!("says {event:?}"));
        match *event {
            LevelEvent::Granted {
                wish, block, until, ..
            } => self.granted(node, wish, block, until),
            LevelEvent::Extended { wish, until, .. } => {
                let until = self.true_at(node, until);
                let known = self.wishes.get_mut(&wish);
                if let Some(known) = known.filter(|wish| wish.until.is_some()) {
                    known.until = Some(until);
                    self.queue.push(True(until), Event::Expire { wish });
                }
            }
            LevelEvent::Lost { wish, .. } => {
                if !self.options.leases && self.wishes.contains_key(&wish) {
                    self.breaks("kept", || {
                        format!("wish {wish} is lost although nothing lapsed")
                    });
                }
                self.outside(wish);
                self.ended(wish);
            }
            LevelEvent::Refused { wish, .. } => {
                self.ended(wish);
            }
        }
    }

    fn granted(&mut self, node: u32, number: u64, block: Block, until: Instant) {
        let now = self.queue.now().0;
        let until = self.true_at(node, until);
        let room = (block.to.0.saturating_sub(block.from.0)).min(3);
        let used = Token(block.from.0 + 1 + self.rng.below(room as usize) as u64);
        let most = self.options.hold;
        let hold = if self.options.hold_any {
            self.rng.below(most as usize + 1) as u64
        } else {
            most
        };
        let known = self.wishes.get_mut(&number);
        let Some(wish) = known.filter(|wish| wish.node == node && wish.until.is_none()) else {
            self.breaks("asked", || {
                format!("wish {number} is granted and nobody wants it")
            });
            return;
        };
        wish.until = Some(until);
        wish.used = used;
        let wish = *wish;
        if let Some(check) = &mut self.check {
            let holder = Holder {
                wish: number,
                node,
                class: wish.group.map_or(number + (1 << 32), u64::from),
            };
            if let Err(broken) = check.enters(holder, block, used) {
                self.broken.get_or_insert(broken);
            }
            self.check_entry(&wish, now + hold, until);
        }
        self.meter.enters(now, wish.asked);
        self.queue.push_in(hold, Event::Leave { wish: number });
        if self.options.leases {
            self.queue.push(True(until), Event::Expire { wish: number });
        }
    }

    /// Nobody stays past the end of its consent, and nobody is passed by too many.
    fn check_entry(&mut self, wish: &Wish, leaves: u64, until: u64) {
        let options = self.options;
        if !options.leases && leaves > until {
            self.breaks("in-time", || {
                format!(
                    "node {} stays until {leaves} and may until {until}",
                    wish.node + 1
                )
            });
        }
        if options.calm() && options.exclusive >= 1.0 && !options.open && !options.leases {
            let passed = self.meter.entries() - wish.before;
            let bound = self.bypass_bound();
            if passed > bound {
                self.breaks("bypass", || {
                    format!(
                        "node {} was passed {passed} times, not {bound}",
                        wish.node + 1
                    )
                });
            }
        }
    }

    /// With clusters of `C` and `B` passes: `C (C (C + B))^l`.
    fn bypass_bound(&self) -> u64 {
        let clusters = self.topology.clusters();
        let all = (0..=clusters.levels()).flat_map(|level| clusters.at(level));
        let most = all.map(|cluster| clusters.size(cluster)).max().unwrap_or(1) as u64;
        let step = most * (most + u64::from(self.options.passes));
        most.saturating_mul(step.saturating_pow(u32::from(self.topology.levels())))
    }

    fn leave(&mut self, number: u64) {
        let Some(wish) = self.wishes.get(&number).copied() else {
            return;
        };
        self.outside(number);
        self.ended(number);
        if wish.ghost {
            return;
        }
        self.tell_trace(Some(wish.node), || format!("leaves: wish {number}"));
        let input = LevelInput::Leave {
            lock: LOCK,
            wish: number,
            used: wish.used,
        };
        self.tell(wish.node, input);
    }

    fn expire(&mut self, number: u64) {
        let now = self.queue.now().0;
        let wish = self.wishes.get(&number);
        if wish
            .and_then(|wish| wish.until)
            .is_some_and(|until| until <= now)
        {
            self.leave(number);
        }
    }

    fn cancel(&mut self, number: u64) {
        let waits = self.wishes.get(&number).filter(|wish| wish.until.is_none());
        if waits.is_some() {
            self.leave(number);
        }
    }

    /// Whoever was inside with a wish is not any more.
    pub(super) fn outside(&mut self, wish: u64) {
        if self
            .wishes
            .get(&wish)
            .is_some_and(|wish| wish.until.is_some())
        {
            self.meter.leaves(self.queue.now().0);
            if let Some(check) = &mut self.check {
                check.leaves(wish);
            }
        }
    }

    pub(super) fn breaks(&mut self, property: &'static str, what: impl FnOnce() -> String) {
        if self.check.is_some() && self.broken.is_none() {
            self.broken = Some((property, what()));
        }
    }

    /// What must hold when nothing happens any more.
    fn at_rest(&self) -> Result<(), Broken> {
        if let Some((number, wish)) = self.wishes.iter().find(|(_, wish)| !wish.ghost) {
            let (node, asked) = (wish.node + 1, wish.asked);
            let what = format!("wish {number} of node {node}, made at {asked}, is never served");
            return Err(("everybody-gets-in", what));
        }
        if !self.queue.is_empty() {
            return Err(("endless", "the run does not come to rest".to_owned()));
        }
        if let Some(holder) = self.check.as_ref().and_then(|check| check.inside().first()) {
            let what = format!("node {} is inside for ever", holder.node + 1);
            return Err(("everybody-leaves", what));
        }
        let mut machines = self.nodes.iter().filter_map(|node| node.machine.as_ref());
        if let Some(machine) = machines.find(|machine| !machine.is_idle()) {
            let what = format!("node {} is not idle at the end", machine.id().0 + 1);
            return Err(("rest", what));
        }
        let options = self.options;
        let plain = options.groups == 0 && !options.leases && !options.paper && !options.blank;
        if options.calm() && plain {
            return check::adds_up(&self.meter, self.topology.levels(), options.announce);
        }
        Ok(())
    }

    pub(super) fn tell_trace(&mut self, node: Option<u32>, text: impl FnOnce() -> String) {
        let at = self.queue.now();
        if let Some(tracer) = &mut self.tracer {
            tracer(&Line {
                at,
                node: node.map(NodeId),
                client: None,
                text: text(),
            });
        }
    }

    /// What the node's disk has.
    pub(super) fn stored(&self, node: u32) -> LevelStored<u32> {
        let disk = self.disks.get(&node);
        disk.map(|disk| disk.stored.clone()).unwrap_or_default()
    }
}
