//! What goes wrong: nodes fail and come back, connections break and are made anew.

use conclave_protocol::id::{Incarnation, NodeId};
use conclave_protocol::multilevel::LevelInput;
use conclave_quorum::construct::multilevel::ClusterId;

use super::draws::exponential;
use super::options::LevelOptions;
use super::world::{Event, NEVER, World};

/// So long a node that is back almost at once is down, at most.
const QUICK: usize = 10;

/// The connections of pairs of nodes; empty where every connection always holds.
#[derive(Debug)]
pub(super) struct Links {
    nodes: usize,
    /// By pair, the smaller node first; empty without leases.
    pairs: Vec<Link>,
    /// When the last message from one to another arrives; empty if no order is kept.
    last: Vec<u64>,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Which connection of the two it is.
    epoch: u32,
    up: bool,
    /// For each side the connection it knows, and whether it takes it for open.
    sides: [(u32, bool); 2],
}

impl Links {
    pub(super) fn new(options: &LevelOptions, nodes: usize) -> Self {
        let link = Link {
            epoch: 0,
            up: true,
            sides: [(0, true); 2],
        };
        let pairs = if options.leases { nodes * nodes } else { 0 };
        let ordered = options.jitter > 0 && options.fifo;
        Self {
            nodes,
            pairs: vec![link; pairs],
            last: vec![0; if ordered { nodes * nodes } else { 0 }],
        }
    }

    fn place(&self, one: u32, other: u32) -> (usize, usize) {
        let (low, high) = (one.min(other), one.max(other));
        let place = low as usize * self.nodes + high as usize;
        (place, usize::from(one > other))
    }

    /// The connection on which `from` sends to `to`; none if what it sends is lost.
    pub(super) fn epoch(&self, from: u32, to: u32) -> Option<u32> {
        if self.pairs.is_empty() {
            return Some(0);
        }
        let (place, side) = self.place(from, to);
        let link = &self.pairs[place];
        (link.up && link.sides[side] == (link.epoch, true)).then_some(link.epoch)
    }

    /// Whether what was sent on a connection still arrives.
    pub(super) fn carries(&self, from: u32, to: u32, epoch: u32) -> bool {
        if self.pairs.is_empty() {
            return true;
        }
        let link = &self.pairs[self.place(from, to).0];
        link.up && link.epoch == epoch
    }

    /// When a message arrives that would arrive at `at`, behind all sent before it.
    pub(super) fn in_order(&mut self, from: u32, to: u32, at: u64) -> u64 {
        let place = from as usize * self.nodes + to as usize;
        match self.last.get_mut(place) {
            Some(last) => {
                *last = at.max(*last);
                *last
            }
            None => at,
        }
    }
}

impl World<'_> {
    /// Whether anything may still go wrong.
    fn goes_wrong(&self) -> bool {
        let until = self.options.faults_until;
        self.is_busy() && (until == 0 || self.queue.now().0 < until)
    }

    pub(super) fn next_crash(&mut self) {
        let (up, recovery) = (self.options.up, self.options.recovery as f64);
        let each = recovery * up / (1.0 - up);
        let nanos = exponential(each / self.nodes.len() as f64, &mut self.rng);
        self.queue.push_in(nanos, Event::Crash);
    }

    /// Puts so many nodes down from the beginning as are down at any time.
    pub(super) fn some_are_down(&mut self) {
        let mut order: Vec<u32> = (0..self.nodes.len() as u32).collect();
        self.rng.shuffle(&mut order);
        for node in order {
            if self.rng.chance(1.0 - self.options.up) && self.may_fail(node) {
                self.crash(node);
                let life = self.nodes[node as usize].life.into();
                self.detected(node, life);
            }
        }
    }

    /// Whether every cluster has a quorum without the node, if that is asked for.
    fn may_fail(&self, node: u32) -> bool {
        if !self.options.guard {
            return true;
        }
        let clusters = self.topology.clusters();
        let mut own = clusters.leaf_of(node as usize);
        while let Some(cluster) = own {
            let up = |seat: u32| {
                let member = clusters.member(cluster, seat as usize);
                member != node as usize && self.nodes[member].up
            };
            if !self.topology.chooser(cluster).is_quorum(&up) {
                return false;
            }
            let stands = clusters.delegate(cluster) == node as usize;
            own = clusters.parent(cluster).filter(|_| stands);
        }
        true
    }

    pub(super) fn crash_some(&mut self) {
        if !self.goes_wrong() {
            return;
        }
        self.next_crash();
        let node = self.rng.below(self.nodes.len()) as u32;
        if !self.nodes[node as usize].up || !self.may_fail(node) {
            return;
        }
        self.crash(node);
        let life: u64 = self.nodes[node as usize].life.into();
        if self.view.is_some() {
            let detect = self.options.detect;
            self.queue.push_in(detect, Event::Detect { node, life });
        } else if !self.options.leases {
            self.spread_word(node, life, false);
        }
    }

    fn crash(&mut self, node: u32) {
        self.tell_trace(Some(node), || "fails".to_owned());
        self.set_active(node, false);
        let state = &mut self.nodes[node as usize];
        state.up = false;
        state.machine = None;
        state.armed = NEVER;
        self.down += 1;
        self.meter.down(self.queue.now().0, self.down);
        if let Some(disk) = self.disks.get_mut(&node) {
            disk.parked.clear();
            disk.synced = 0;
        }
        let own = self.wishes.iter().filter(|(_, wish)| wish.node == node);
        let own: Vec<u64> = own.map(|(number, _)| *number).collect();
        for number in own {
            self.orphan(number);
        }
        if self.options.leases {
            for other in self.topology.neighbours(NodeId(node)) {
                self.disconnect(node, other.0);
            }
        }
        let nanos = if self.rng.chance(self.options.quick) {
            self.rng.below(QUICK) as u64
        } else {
            exponential(self.options.recovery as f64, &mut self.rng)
        };
        self.queue.push_in(nanos, Event::Up { node });
    }

    /// A wish whose node fails. With an oracle whoever is inside stops with the node; with leases
    /// it goes on until its time is over.
    fn orphan(&mut self, number: u64) {
        let Some(wish) = self.wishes.get_mut(&number) else {
            return;
        };
        if wish.ghost {
            return;
        }
        let node = wish.node;
        if self.options.leases && wish.until.is_some() {
            wish.ghost = true;
            self.again(node);
            return;
        }
        self.outside(number);
        self.ended(number);
    }

    pub(super) fn restart(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        state.up = true;
        state.life += 1;
        state.busy = 0;
        let life: u64 = state.life.into();
        self.down -= 1;
        self.meter.down(self.queue.now().0, self.down);
        self.tell_trace(Some(node), || format!("is back in life {life}"));
        if let Some(clock) = self.clocks.get_mut(node as usize) {
            clock.reboot(&mut self.rng);
        }
        if let Some(view) = &self.view {
            view.fails(NodeId(node), Incarnation(life - 1));
            view.lives(NodeId(node), Incarnation(life));
        }
        // A node with nothing on its disk has nothing to say until somebody speaks to it.
        if self.view.is_none() || self.disks.contains_key(&node) {
            self.ensure(node);
            self.tell(node, LevelInput::Wake);
        }
        if self.view.is_some() {
            let alive = LevelInput::Alive(NodeId(node), Incarnation(life));
            self.tell_active(node, &alive);
        } else if self.options.leases {
            for other in self.topology.neighbours(NodeId(node)) {
                let nanos = self.rng.below(self.options.detect as usize + 1) as u64;
                let (one, other) = (node, other.0);
                self.queue.push_in(nanos, Event::Open { one, other });
            }
        } else {
            self.spread_word(node, life, true);
        }
    }

    /// Lets all who must know notice, each at its own time.
    fn spread_word(&mut self, node: u32, life: u64, alive: bool) {
        for other in self.topology.neighbours(NodeId(node)) {
            let nanos = self.rng.below(self.options.detect as usize + 1) as u64;
            let event = Event::Told {
                to: other.0,
                node,
                life,
                alive,
            };
            self.queue.push_in(nanos, event);
        }
    }

    pub(super) fn told(&mut self, to: u32, node: u32, life: u64, alive: bool) {
        let life = Incarnation(life);
        let input = if alive {
            LevelInput::Alive(NodeId(node), life)
        } else {
            LevelInput::Failed(NodeId(node), life)
        };
        self.tell_trace(Some(to), || format!("notices {input:?}"));
        self.tell(to, input);
    }

    /// Tells all nodes where something goes on.
    fn tell_active(&mut self, about: u32, input: &LevelInput<u32>) {
        // In the order of nodes, so that no detail of how they are kept shows.
        let mut active = self.active.clone();
        active.sort_unstable();
        for node in active {
            if node != about {
                self.tell(node, input.clone());
            }
        }
    }

    pub(super) fn detected(&mut self, node: u32, life: u64) {
        let life = Incarnation(life);
        if let Some(view) = &self.view {
            view.fails(NodeId(node), life);
        }
        self.tell_active(node, &LevelInput::Failed(NodeId(node), life));
        if !self.coordinators.is_empty() {
            self.elect(node);
        }
    }

    pub(super) fn first_coordinators(&mut self) {
        let clusters = self.topology.clusters();
        for level in 0..=clusters.levels() {
            let delegates = clusters.at(level).map(|id| clusters.delegate(id) as u32);
            self.coordinators.push(delegates.collect());
        }
    }

    /// Where the node coordinates a cluster, its members choose another: each is asked and
    /// answers, and the new one tells the cluster above.
    fn elect(&mut self, node: u32) {
        let topology = self.topology.clone();
        let clusters = topology.clusters();
        let Some(leaf) = clusters.leaf_of(node as usize) else {
            return;
        };
        let mut chain: Vec<ClusterId> = clusters.chain(leaf);
        while let Some(cluster) = chain.pop().filter(|cluster| cluster.level() > 0) {
            let (level, index) = (cluster.level(), cluster.index());
            if self.coordinators[level][index] != node {
                return;
            }
            let members: Vec<u32> = if clusters.is_leaf(cluster) {
                clusters.members(cluster).map(|node| node as u32).collect()
            } else {
                let children = clusters.children(cluster);
                let below = &self.coordinators[level + 1];
                children.map(|child| below[child.index()]).collect()
            };
            let above = clusters.parent(cluster).map_or(1, |id| clusters.size(id));
            self.meter.elections += (2 * (members.len() - 1) + above - 1) as u64;
            let mut live = members
                .iter()
                .filter(|member| self.nodes[**member as usize].up);
            if let Some(next) = live.next() {
                self.coordinators[level][index] = *next;
            }
        }
    }

    /// All nodes learn that they are connected to their neighbours.
    pub(super) fn all_connect(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            for other in self.topology.neighbours(NodeId(node)) {
                let alive = LevelInput::Alive(other, Incarnation(1));
                self.tell(node, alive);
            }
        }
    }

    pub(super) fn next_cut(&mut self) {
        let nanos = exponential(self.options.cut as f64, &mut self.rng);
        self.queue.push_in(nanos, Event::Cut);
    }

    pub(super) fn cut_some(&mut self) {
        if !self.goes_wrong() {
            return;
        }
        self.next_cut();
        let one = self.rng.below(self.nodes.len()) as u32;
        let near = self.topology.neighbours(NodeId(one));
        if near.is_empty() {
            return;
        }
        let other = near[self.rng.below(near.len())].0;
        self.disconnect(one, other);
        let nanos = exponential(self.options.cut_for as f64, &mut self.rng);
        self.queue.push_in(nanos, Event::Open { one, other });
    }

    /// Breaks a connection: what is under way is lost, and both sides notice in their own time.
    fn disconnect(&mut self, one: u32, other: u32) {
        let (place, side) = self.links.place(one, other);
        let Some(link) = self.links.pairs.get_mut(place) else {
            return;
        };
        if !self.nodes[one as usize].up {
            link.sides[side].1 = false;
        }
        if !link.up {
            return;
        }
        link.up = false;
        link.epoch += 1;
        let epoch = link.epoch;
        self.tell_trace(Some(one), || {
            format!("loses its connection to n{}", other + 1)
        });
        for (at, other) in [(one, other), (other, one)] {
            let nanos = self.rng.below(self.options.detect as usize + 1) as u64;
            self.queue
                .push_in(nanos, Event::Closed { at, other, epoch });
        }
    }

    pub(super) fn open(&mut self, one: u32, other: u32) {
        let (place, _) = self.links.place(one, other);
        let both = self.nodes[one as usize].up && self.nodes[other as usize].up;
        let Some(link) = self.links.pairs.get_mut(place) else {
            return;
        };
        if link.up || !both {
            return;
        }
        link.up = true;
        let epoch = link.epoch;
        for (at, other) in [(one, other), (other, one)] {
            let nanos = self.rng.below(self.options.detect as usize + 1) as u64;
            self.queue
                .push_in(nanos, Event::Opened { at, other, epoch });
        }
    }

    pub(super) fn closed(&mut self, at: u32, other: u32, epoch: u32) {
        let (place, side) = self.links.place(at, other);
        let Some(link) = self.links.pairs.get_mut(place) else {
            return;
        };
        let known = &mut link.sides[side];
        if !known.1 || known.0 >= epoch {
            return;
        }
        known.1 = false;
        self.tell_trace(Some(at), || format!("suspects n{}", other + 1));
        self.tell(at, LevelInput::Suspected(NodeId(other)));
    }

    pub(super) fn opened(&mut self, at: u32, other: u32, epoch: u32) {
        let (place, side) = self.links.place(at, other);
        let Some(link) = self.links.pairs.get_mut(place) else {
            return;
        };
        if !link.up || link.epoch != epoch || link.sides[side] == (epoch, true) {
            return;
        }
        // Whoever has not noticed that the old connection broke does so now.
        let stale = link.sides[side].1;
        link.sides[side] = (epoch, true);
        if stale {
            self.tell(at, LevelInput::Suspected(NodeId(other)));
        }
        let life = Incarnation(self.nodes[other as usize].life.into());
        self.tell_trace(Some(at), || format!("is connected to n{}", other + 1));
        self.tell(at, LevelInput::Alive(NodeId(other), life));
    }
}
