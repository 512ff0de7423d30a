//! Drives the machines: inputs in, messages, records and events out.

use std::collections::VecDeque;

use conclave_protocol::id::{Incarnation, NodeId};
use conclave_protocol::multilevel::{
    LevelEffects, LevelInput, LevelMessage, LevelNode, LevelRecord, LevelStored, Seen, Sight,
};
use conclave_protocol::{Effects, Envelope, Instant, Machine, Now, Wall};

use super::draws::pair_bits;
use super::eye::Eye;
use super::world::{Event, NEVER, NOWHERE, World};
use crate::fact::True;

/// So many steps at one moment are a machine that turns in circles.
const MOMENT_MAX: u32 = 20_000;

/// A node's disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) stored: LevelStored<u32>,
    /// Writes that are not done yet, and what may leave after each of them.
    pub(super) parked: VecDeque<Parked>,
    /// How many records of the node's present life are on disk.
    pub(super) synced: u64,
}

/// One write and what waits for it.
#[derive(Debug)]
pub(super) struct Parked {
    done: u64,
    records: Vec<LevelRecord<u32>>,
    sends: Vec<Envelope<NodeId, LevelMessage<u32>>>,
}

impl World<'_> {
    /// What a node's clocks say.
    pub(super) fn clock(&self, node: u32) -> Now {
        let now = self.queue.now();
        match self.clocks.get(node as usize) {
            Some(clock) => clock.now(now),
            None => Now {
                mono: Instant::from_nanos(now.0),
                wall: Wall(now.0),
            },
        }
    }

    /// The true time at which a node's steady clock shows this.
    pub(super) fn true_at(&self, node: u32, own: Instant) -> u64 {
        match self.clocks.get(node as usize) {
            Some(clock) => clock.true_at(own).0,
            None => own.nanos(),
        }
    }

    /// Tells a machine something, and then all machines what they tell themselves.
    pub(super) fn tell(&mut self, node: u32, input: LevelInput<u32>) {
        self.inputs.push_back((node, input));
        self.drain();
    }

    fn drain(&mut self) {
        if self.stepping {
            return;
        }
        self.stepping = true;
        let mut steps = 0;
        while let Some((node, input)) = self.inputs.pop_front() {
            self.step(node, input);
            steps += 1;
            if steps > MOMENT_MAX {
                self.breaks("endless", || {
                    format!("node {} does not stop talking to itself", node + 1)
                });
                self.inputs.clear();
            }
        }
        self.stepping = false;
    }

    fn step(&mut self, node: u32, input: LevelInput<u32>) {
        if !self.nodes[node as usize].up {
            return;
        }
        self.ensure(node);
        let now = self.clock(node);
        let mut out = std::mem::take(&mut self.out);
        if let Some(machine) = &mut self.nodes[node as usize].machine {
            machine.handle(now, input, &mut out);
        }
        self.follow(node, &mut out);
        self.out = out;
        self.settle(node);
    }

    /// Makes the machine of a node that is up and has none yet.
    pub(super) fn ensure(&mut self, node: u32) {
        let index = node as usize;
        if self.nodes[index].machine.is_some() {
            return;
        }
        let eye = match &self.view {
            Some(view) => Eye::Shared(view.clone()),
            None => Eye::Own(self.first_sight(node)),
        };
        let life = self.nodes[index].life;
        let seed = pair_bits(self.options.seed ^ u64::from(life) << 40, node, node);
        let mut out = Effects::new();
        let machine = LevelNode::start(
            self.config.clone(),
            NodeId(node),
            Incarnation(life.into()),
            seed,
            self.stored(node),
            eye,
            self.clock(node),
            &mut out,
        );
        self.nodes[index].machine = Some(Box::new(machine));
        self.follow(node, &mut out);
        self.settle(node);
    }

    /// What a node knows when it starts: with an oracle everything, with leases nothing.
    fn first_sight(&mut self, node: u32) -> Seen {
        let mut seen = Seen::default();
        if self.options.leases || self.options.blank && self.nodes[node as usize].life == 1 {
            return seen;
        }
        for other in self.topology.neighbours(NodeId(node)) {
            let known = &self.nodes[other.index()];
            let life = Incarnation(known.life.into());
            if known.up {
                seen.lives(other, life);
                seen.fails(other, Incarnation(life.0 - 1));
            } else {
                seen.fails(other, life);
            }
        }
        seen
    }

    /// Does what a machine asks for.
    fn follow(&mut self, node: u32, out: &mut LevelEffects<u32>) {
        if !out.persist.is_empty() || !out.send_durable.is_empty() {
            self.write(node, out);
        }
        for envelope in out.send_now.drain(..) {
            self.send(node, envelope.to.0, envelope.message);
        }
        for event in out.events.drain(..) {
            self.heard(node, &event);
        }
    }

    /// Writes records; messages that need them leave when they are on disk.
    fn write(&mut self, node: u32, out: &mut LevelEffects<u32>) {
        let now = self.queue.now().0;
        let slow = self.options.disk;
        let disk = self.disks.entry(node).or_default();
        if slow == 0 {
            for record in out.persist.drain(..) {
                disk.stored.apply(&record);
            }
            // The machine is not told that its records are on disk: it goes on to send what
            // must wait for them, and that leaves at once.
            for envelope in out.send_durable.drain(..) {
                self.send(node, envelope.to.0, envelope.message);
            }
            return;
        }
        let busy = disk.parked.back().map_or(now, |parked| parked.done);
        if out.persist.is_empty() && disk.parked.is_empty() {
            for envelope in out.send_durable.drain(..) {
                self.send(node, envelope.to.0, envelope.message);
            }
            return;
        }
        let done = if out.persist.is_empty() {
            busy
        } else {
            busy + 1 + self.rng.below(slow as usize) as u64
        };
        disk.parked.push_back(Parked {
            done,
            records: std::mem::take(&mut out.persist),
            sends: std::mem::take(&mut out.send_durable),
        });
        let life = self.nodes[node as usize].life.into();
        self.queue.push(True(done), Event::Written { node, life });
    }

    pub(super) fn written(&mut self, node: u32, life: u64) {
        let state = &self.nodes[node as usize];
        if !state.up || u64::from(state.life) != life {
            return;
        }
        let Some(disk) = self.disks.get_mut(&node) else {
            return;
        };
        let Some(parked) = disk.parked.pop_front() else {
            return;
        };
        for record in &parked.records {
            disk.stored.apply(record);
        }
        disk.synced += parked.records.len() as u64;
        let synced = disk.synced;
        for envelope in parked.sends {
            self.send(node, envelope.to.0, envelope.message);
        }
        self.tell(node, LevelInput::Durable(synced));
    }

    /// Sends a message: one after the other, each on its own way.
    fn send(&mut self, from: u32, to: u32, message: LevelMessage<u32>) {
        self.meter.count(&message.word, from == to);
        if from == to {
            let input = LevelInput::Receive(NodeId(from), message);
            self.inputs.push_back((from, input));
            return;
        }
        let now = self.queue.now().0;
        let took = self.sends.draw(&mut self.rng);
        let node = &mut self.nodes[from as usize];
        let leaves = node.busy.max(now) + took;
        node.busy = leaves;
        let Some(epoch) = self.links.epoch(from, to) else {
            return;
        };
        let way = self.ways.at(pair_bits(self.options.seed, from, to));
        let mut at = leaves + way;
        if self.options.jitter > 0 {
            at += self.rng.below(self.options.jitter as usize + 1) as u64;
            at = self.links.in_order(from, to, at);
        }
        let event = Event::Deliver {
            from,
            to,
            epoch,
            message,
        };
        self.queue.push(True(at), event);
    }

    pub(super) fn delivered(&mut self, from: u32, to: u32, epoch: u32, message: LevelMessage<u32>) {
        if !self.nodes[to as usize].up || !self.links.carries(from, to, epoch) {
            return;
        }
        // Whoever hears something on a connection knows that it is open.
        self.opened(to, from, epoch);
        self.tell_trace(Some(to), || format!("hears n{}: {message:?}", from + 1));
        self.tell(to, LevelInput::Receive(NodeId(from), message));
    }

    pub(super) fn wake(&mut self, node: u32) {
        let now = self.queue.now().0;
        if self.nodes[node as usize].armed != now {
            return;
        }
        self.nodes[node as usize].armed = NEVER;
        let machine = self.nodes[node as usize].machine.as_ref();
        let due = machine.and_then(|machine| machine.next_wake());
        if due.is_some_and(|wake| self.true_at(node, wake.at) <= now) {
            self.tell_trace(Some(node), || "wakes".to_owned());
            self.tell(node, LevelInput::Wake);
        } else {
            self.settle(node);
        }
    }

    /// Notes when the machine must be woken and whether anything goes on in it.
    fn settle(&mut self, node: u32) {
        let index = node as usize;
        let Some(machine) = &self.nodes[index].machine else {
            return;
        };
        let idle = machine.is_idle();
        if let Some(wake) = machine.next_wake() {
            let at = self.true_at(node, wake.at).max(self.queue.now().0);
            if at < self.nodes[index].armed {
                self.nodes[index].armed = at;
                self.queue.push(True(at), Event::Wake { node });
            }
        }
        self.set_active(node, !idle);
    }

    pub(super) fn set_active(&mut self, node: u32, active: bool) {
        let place = self.nodes[node as usize].place;
        if active == (place != NOWHERE) {
            return;
        }
        if active {
            self.nodes[node as usize].place = self.active.len() as u32;
            self.active.push(node);
            return;
        }
        self.active.swap_remove(place as usize);
        if let Some(moved) = self.active.get(place as usize) {
            self.nodes[*moved as usize].place = place;
        }
        self.nodes[node as usize].place = NOWHERE;
    }
}
