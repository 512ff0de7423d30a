//! Which requests the cluster could serve: what a checker needs to say that one waits too long.
//!
//! A fault disturbs a node, or one client's way to it, until it is over. Whatever has not been
//! disturbed for the world's [patience](crate::fact::Eyes::patience) counts as well, also while
//! faults go on elsewhere.

use conclave_protocol::id::{ClientId, GrantNo, Key};
use conclave_protocol::lock::{Ask, EntryView, LockNode, Mode, Protocol};
use conclave_quorum::NodeSet;

use super::clients::ClientProcess;
use super::holds::{Hold, Phase};
use super::{Event, World};
use crate::fact::{Fact, Holder};
use crate::net::Latency;
use crate::options::Options;
use crate::workload::Workload;

/// When each node, and each client's way to each node, was last disturbed.
#[derive(Debug, Default)]
pub(super) struct Disturbed {
    nodes: Vec<u64>,
    pairs: Vec<u64>,
}

impl Disturbed {
    pub(super) fn new(nodes: usize, pairs: usize) -> Self {
        Self {
            nodes: vec![0; nodes],
            pairs: vec![0; pairs],
        }
    }

    fn last(&self, client: u32, node: usize) -> u64 {
        let pair = client as usize * self.nodes.len() + node;
        let pair = self.pairs.get(pair).copied().unwrap_or_default();
        self.nodes[node].max(pair)
    }
}

/// How long a client, a node and the network may take for a few steps, in nanoseconds: two lives
/// of a connection, and some messages there and back.
pub(super) fn patience(options: &Options) -> u64 {
    let slowest = match options.latency {
        Latency::Constant(nanos) | Latency::Uniform(_, nanos) => nanos,
        Latency::Exponential(mean) => mean * 8,
        Latency::Tail { mean, times, .. } => mean * 8 * u64::from(times),
    };
    let factor = options.spread.max(1.0) * options.far.max(options.slow).max(1.0);
    let trips = (slowest as f64 * factor) as u64 * 40;
    // A token that is refused waits until the nodes have told each other the time.
    let clocks = if options.attack > 0.0 || options.step > 0.0 {
        3_000_000_000
    } else {
        0
    };
    2 * options.link_ttl_ms * 1_000_000 + trips + clocks + options.disk_us * 20_000
}

impl World<'_> {
    /// Looks at what waits, and has the next look after a while.
    pub(super) fn tick(&mut self) {
        for node in 0..self.nodes.len() {
            let process = &self.nodes[node];
            let serves = process.machine.as_ref().is_some_and(LockNode::is_serving);
            if !serves || process.paused {
                self.disturb_node(node as u32);
            }
        }
        self.tell(&Fact::Tick);
        let apart = (self.options.link_ttl_ms * 1_000_000 / 8).max(1_000_000);
        self.queue.push_in(apart, Event::Tick);
    }

    pub(super) fn disturb_node(&mut self, node: u32) {
        self.disturb_node_until(node, self.now);
    }

    pub(super) fn disturb_node_until(&mut self, node: u32, until: u64) {
        let last = &mut self.disturbed.nodes[node as usize];
        *last = (*last).max(until);
    }

    pub(super) fn disturb_pair(&mut self, client: u32, node: u32, until: u64) {
        let pair = client as usize * self.nodes.len() + node as usize;
        if let Some(last) = self.disturbed.pairs.get_mut(pair) {
            *last = (*last).max(until);
        }
    }

    /// Whether a node serves a client and has done so for a while.
    fn serves_well(&self, client: u32, node: usize) -> bool {
        let process = &self.nodes[node];
        let serves = process.machine.as_ref().is_some_and(LockNode::is_serving);
        let calm = self.disturbed.last(client, node) + self.patience <= self.now;
        serves && !process.paused && calm
    }

    fn runs_well(&self, process: &ClientProcess) -> bool {
        let awake = process.machine.is_some() && !process.paused;
        awake && process.awake_since + self.patience <= self.now
    }

    /// Whether a quorum for this mode serves a client.
    pub(super) fn has_quorum(&self, client: u32, mode: &Mode) -> bool {
        let nodes = self.nodes.len();
        let well = (0..nodes).filter(|node| self.serves_well(client, *node));
        let family = self.config.quorums.family(mode);
        family.contains_quorum(&NodeSet::of(nodes, well))
    }

    /// Whether a hold that its client has just lost could have gone on.
    pub(super) fn could_keep(&self, holder: &Holder) -> bool {
        let spite = self.options.expire > 0.0 || self.options.revoke > 0.0;
        let process = &self.clients[holder.client as usize];
        if spite || !self.runs_well(process) || process.life != holder.life {
            return false;
        }
        let Some(hold) = self.holds.get(holder.key) else {
            return false;
        };
        // Whoever is to live by a handle may be told to ask again until there is one.
        if hold.detached.is_some() {
            return false;
        }
        let number = Workload::number(&holder.name);
        let mut locks = hold.locks.iter();
        let lock = locks.find(|lock| Some(lock.name) == number);
        lock.is_some_and(|lock| self.has_quorum(holder.client, &lock.mode))
    }

    /// What a client that runs well has asked for a lock, by its own machine.
    pub(super) fn asked_well(&self, holder: &Holder) -> Option<&Ask> {
        let process = &self.clients[holder.client as usize];
        if !self.runs_well(process) || process.life != holder.life {
            return None;
        }
        let machine = process.machine.as_ref()?;
        machine.ask(holder.key, &holder.name).map(AsRef::as_ref)
    }

    /// Whether a request that waits could be served: a quorum has served for a while, and nobody
    /// is in its way.
    pub(super) fn could_serve(&self, holder: &Holder) -> bool {
        let overdue = self.holds.get(holder.key).is_none_or(Hold::is_overdue);
        if overdue || self.config.policy(&holder.name).protocol == Protocol::Serial {
            return false;
        }
        let Some(ask) = self.asked_well(holder) else {
            return false;
        };
        self.has_quorum(holder.client, &ask.mode) && !self.is_in_the_way(holder.key, ask)
    }

    /// Whether anybody is inside or ahead.
    fn is_in_the_way(&self, key: Key, ask: &Ask) -> bool {
        let limited = self.config.policy(&ask.name).max_inside != u32::MAX;
        let number = Workload::number(&ask.name);
        let inside = self.holds.iter().any(|hold| {
            let mut locks = hold.locks.iter();
            hold.key != key
                && locks.any(|lock| {
                    let there = lock.phase == Phase::Inside && Some(lock.name) == number;
                    there && (limited || lock.group != Some(ask.group()))
                })
        });
        inside || (0..self.nodes.len()).any(|node| self.is_blocked_at(node, ask, limited))
    }

    fn is_blocked_at(&self, node: usize, ask: &Ask, limited: bool) -> bool {
        let machine = self.nodes[node].machine.as_ref();
        let view = machine.and_then(|machine| machine.view(&ask.name));
        view.is_some_and(|view| {
            view.entries.iter().any(|entry| {
                let own = entry.ask.session == ask.session && entry.ask.request == ask.request;
                let together = entry.ask.group() == ask.group();
                match (own, together, entry.grant != GrantNo(0)) {
                    (true, _, _) | (_, true, false) => false,
                    (_, true, true) => limited,
                    (_, false, false) => entry.ask.priority < ask.priority,
                    (_, false, true) => !self.will_yield(node, entry, ask),
                }
            })
        })
    }

    /// Whether a grant that conflicts with a request belongs to one that must give it back.
    fn will_yield(&self, node: usize, entry: &EntryView, ask: &Ask) -> bool {
        let owner = self.client_of(entry.ask.priority.client);
        let Some((client, process)) = owner.filter(|(_, process)| self.runs_well(process)) else {
            return false;
        };
        let machine = process.machine.as_ref();
        let waits = machine.is_some_and(|machine| {
            let key = machine.key_of(entry.ask.session, entry.ask.request);
            key.is_some_and(|key| machine.held_until(key, &ask.name).is_none())
        });
        waits && entry.ask.priority > ask.priority && self.serves_well(client, node)
    }

    fn client_of(&self, id: ClientId) -> Option<(u32, &ClientProcess)> {
        let mut clients = (0..).zip(&self.clients);
        clients.find(|(_, process)| process.machine.as_ref().is_some_and(|it| it.id() == id))
    }

    /// How long a hold that its client keeps lasts at least if nothing more is heard, if a quorum
    /// serves it; in nanoseconds.
    pub(super) fn lasts(&self, holder: &Holder) -> Option<u64> {
        let ask = self.asked_well(holder)?;
        let detached = self.holds.get(holder.key).is_none_or(Hold::is_detached);
        if detached || !self.has_quorum(holder.client, &ask.mode) {
            return None;
        }
        let process = &self.clients[holder.client as usize];
        let until = process
            .machine
            .as_ref()?
            .held_until(holder.key, &holder.name)?;
        Some(process.clock.true_at(until).0.saturating_sub(self.now))
    }

    /// A lock that someone holds now, by name, for each hold that is inside.
    pub(super) fn inside_now(&self) -> Vec<Holder> {
        let mut all = Vec::new();
        for hold in self.holds.iter() {
            let inside = hold.locks.iter().filter(|lock| lock.phase == Phase::Inside);
            all.extend(inside.map(|lock| Holder {
                client: hold.client,
                life: hold.life,
                key: hold.key,
                name: self.name(lock.name),
            }));
        }
        all
    }
}
