//! Nodes as processes: their disks, their deaths, their lies.

use std::collections::{BTreeMap, VecDeque};

use conclave_protocol::id::{LinkId, Name, NodeId};
use conclave_protocol::keeper::{
    Answer, Ask, Keeper, KeeperConfig, KeeperInput, KeeperRecord, KeeperStart, KeeperStored,
};
use conclave_protocol::object::{ObjectTell, Phase, Rank};
use conclave_protocol::{EffectsOf, Envelope, Machine};

use super::{Event, World};
use crate::clock::Clock;
use crate::fact::Violation;
use crate::net::exponential;
use crate::object::check::broken;
use crate::object::liar::{self, Habit, Reaction};

/// A node's process and its disk.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) keeper: Option<Keeper>,
    pub(super) life: u32,
    pub(super) links: BTreeMap<LinkId, usize>,
    pub(super) clock: Clock,
    /// How it lies, if it does.
    pub(super) habit: Option<Habit>,
    disk: Disk,
    wake: Option<u64>,
}

/// What is on a node's disk, and what waits to be.
#[derive(Debug, Default)]
struct Disk {
    durable: Option<KeeperStored>,
    pending: VecDeque<KeeperRecord>,
    /// Records of this life that are durable.
    done: u64,
    writing: usize,
    held: VecDeque<(u64, Envelope<LinkId, Answer>)>,
}

impl Node {
    pub(super) fn new(clock: Clock, habit: Option<Habit>) -> Self {
        Self {
            keeper: None,
            life: 0,
            links: BTreeMap::new(),
            clock,
            habit,
            disk: Disk::default(),
            wake: None,
        }
    }
}

impl World<'_> {
    /// A node's process starts.
    pub(super) fn node_up(&mut self, node: usize) {
        let now = self.nodes[node].clock.now(self.queue.now());
        let config = KeeperConfig {
            lease: self.config.lease.clone(),
            objects: Some(self.config.clone()),
            access: self.access.clone(),
            verifier: None,
            seed: self.rng.next_u64(),
        };
        let disk = &mut self.nodes[node].disk;
        disk.done = 0;
        disk.writing = 0;
        let start = match &disk.durable {
            Some(stored) if stored.open => KeeperStart::Kept(Box::new(stored.clone())),
            // It died before it could promise anything, and is begun anew.
            _ => KeeperStart::Fresh,
        };
        let mut out = EffectsOf::<Keeper>::new();
        let keeper = Keeper::new(config, start, now, &mut out);
        self.nodes[node].keeper = Some(keeper);
        self.trace(Some(node), None, || "starts".to_owned());
        self.node_effects(node, out);
    }

    /// A node's process dies; of what was not on disk a first part survives.
    pub(super) fn node_down(&mut self, node: usize) {
        self.trace(Some(node), None, || "dies".to_owned());
        let kept = self.rng.below(self.nodes[node].disk.pending.len() + 1);
        let down = exponential(self.options.down_ms * 1_000_000, &mut self.rng);
        let here = &mut self.nodes[node];
        here.keeper = None;
        here.life += 1;
        here.wake = None;
        here.disk.writing = kept;
        here.disk.held.clear();
        self.made_durable(node);
        self.nodes[node].disk.pending.clear();
        self.drop_links(node);
        self.kills += 1;
        self.queue.push_in(down, Event::NodeUp(node));
    }

    pub(super) fn node_step(&mut self, node: usize, input: KeeperInput) {
        let here = &mut self.nodes[node];
        let now = here.clock.now(self.queue.now());
        let Some(keeper) = &mut here.keeper else {
            return;
        };
        let mut out = EffectsOf::<Keeper>::new();
        keeper.handle(now, input, &mut out);
        self.node_effects(node, out);
    }

    fn node_effects(&mut self, node: usize, out: EffectsOf<Keeper>) {
        let disk = &mut self.nodes[node].disk;
        disk.pending.extend(out.persist);
        let need = disk.done + disk.pending.len() as u64;
        disk.held.extend(
            out.send_durable
                .into_iter()
                .map(|envelope| (need, envelope)),
        );
        for envelope in out.send_now {
            self.tell(node, envelope.to, envelope.message);
        }
        self.release(node);
        let here = &mut self.nodes[node];
        if here.disk.writing == 0 && !here.disk.pending.is_empty() {
            here.disk.writing = here.disk.pending.len();
            let life = here.life;
            let nanos = exponential(self.options.disk_us * 1000, &mut self.rng);
            self.queue.push_in(nanos + 1, Event::Synced(node, life));
        }
        self.node_wake_at(node);
    }

    /// Sends what no longer waits for the disk.
    fn release(&mut self, node: usize) {
        loop {
            let disk = &mut self.nodes[node].disk;
            let done = disk.done;
            let Some((_, envelope)) = disk.held.pop_front_if(|(need, _)| *need <= done) else {
                return;
            };
            self.tell(node, envelope.to, envelope.message);
        }
    }

    fn node_wake_at(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let wake = here.keeper.as_ref().and_then(Machine::next_wake);
        let Some(at) = wake.map(|wake| here.clock.true_at(wake.at)) else {
            return;
        };
        let at = at.0.max(self.queue.now().0 + 1);
        if here.wake.is_none_or(|planned| at < planned) {
            here.wake = Some(at);
            let life = here.life;
            self.queue
                .push(crate::fact::True(at), Event::NodeWake(node, life));
        }
    }

    pub(super) fn node_wake(&mut self, node: usize, life: u32) {
        if self.nodes[node].life == life {
            self.nodes[node].wake = None;
            self.node_step(node, KeeperInput::Wake);
        }
    }

    /// A write is done, unless the node dies just before or just after it.
    pub(super) fn synced(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life {
            return;
        }
        self.syncs += 1;
        let chance = self.options.kill;
        let dies = |world: &mut Self, point: u64| {
            let planned = world.options.kill_at == point;
            planned || (world.faulty && chance > 0.0 && world.rng.chance(chance / 2.0))
        };
        if dies(self, 2 * self.syncs - 1) {
            return self.node_down(node);
        }
        self.made_durable(node);
        if dies(self, 2 * self.syncs) {
            return self.node_down(node);
        }
        self.release(node);
        let done = self.nodes[node].disk.done;
        self.node_step(node, KeeperInput::Durable(done));
    }

    /// The records of the write under way are on disk.
    fn made_durable(&mut self, node: usize) {
        let at = self.queue.now();
        let here = &mut self.nodes[node];
        let disk = &mut here.disk;
        let stored = disk.durable.get_or_insert_with(KeeperStored::new);
        let mut found: Option<Violation> = None;
        for record in disk.pending.drain(..disk.writing) {
            disk.done += 1;
            if let Err(error) = stored.apply(&record) {
                found = found.or(Some(broken("records", at, error.to_string())));
            }
            let (KeeperRecord::Committed { object, .. }
            | KeeperRecord::Adopted { object, .. }
            | KeeperRecord::Restored { object, .. }) = &record
            else {
                continue;
            };
            let (None, Some(kept)) = (here.habit, stored.objects.get(object)) else {
                continue;
            };
            let result = self
                .checks
                .committed(at, NodeId::at(node), object, &kept.committed);
            found = found.or(result.err());
        }
        disk.writing = 0;
        if let Some(found) = found {
            self.found(found);
        }
    }

    /// A node's answer leaves.
    fn tell(&mut self, node: usize, link: LinkId, answer: Answer) {
        if let Err(found) = self.is_on_disk(node, &answer) {
            self.found(found);
        }
        self.trace_answer(node, link, &answer);
        self.down(node, link, answer);
    }

    /// What a truthful node promises is on its disk by then.
    fn is_on_disk(&self, node: usize, answer: &Answer) -> Result<(), Violation> {
        let here = &self.nodes[node];
        let (None, Answer::Object(name, tell)) = (here.habit, answer) else {
            return Ok(());
        };
        let stored = here.disk.durable.as_ref();
        let kept = stored.and_then(|stored| stored.objects.get(name));
        let max = kept.map_or(Rank::default(), |kept| kept.max);
        let holds = match tell {
            ObjectTell::Got { rank, .. } => max >= *rank,
            ObjectTell::Outranked { max: told, .. } => max >= *told,
            ObjectTell::Taken {
                rank, phase, stamp, ..
            } => {
                let committed = kept.map_or(0, |kept| kept.committed.version());
                max >= *rank && (*phase != Phase::Commit || committed >= stamp.version)
            }
            _ => true,
        };
        if holds {
            return Ok(());
        }
        let node = NodeId::at(node);
        let what = format!("{node} says {tell:?} and has only {max:?} on disk");
        Err(broken("on-disk", self.queue.now(), what))
    }

    /// A question arrives at a node.
    pub(super) fn at_node(&mut self, node: usize, link: LinkId, ask: Ask) {
        let Some(client) = self.nodes[node].links.get(&link).copied() else {
            return;
        };
        if let Some(habit) = self.nodes[node].habit {
            let who = client as u32;
            match &ask {
                Ask::Object(name, question) => {
                    let rng = &mut self.rng;
                    match liar::object(habit, who, name, question, &mut self.known, rng) {
                        Reaction::Honest => {}
                        Reaction::Say(tells) => {
                            return self.lie(node, link, name, tells);
                        }
                    }
                }
                Ask::Lease(key, question) => {
                    match liar::lease(habit, who, question, &mut self.rng) {
                        Reaction::Honest => {}
                        Reaction::Say(replies) => {
                            for reply in replies {
                                self.tell(node, link, Answer::Lease(key.clone(), reply));
                            }
                            return;
                        }
                    }
                }
                Ask::Survey { .. } => {}
            }
        }
        self.node_step(node, KeeperInput::Receive(link, ask));
    }

    fn lie(&mut self, node: usize, link: LinkId, name: &Name, tells: Vec<ObjectTell>) {
        for tell in tells {
            self.tell(node, link, Answer::Object(name.clone(), tell));
        }
    }
}
