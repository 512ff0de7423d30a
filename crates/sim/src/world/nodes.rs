//! Node processes: starting, stepping, writing, crashing, pausing, stopping cleanly.

use std::collections::VecDeque;
use std::sync::Arc;

use conclave_protocol::id::{NodeId, SessionId};
use conclave_protocol::lock::{LockNode, Message, NodeEffects, NodeEvent, NodeInput, To};
use conclave_protocol::{Envelope, Machine};
use conclave_quorum::Prng;

use super::{Event, World};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::fact::{Fact, True};
use crate::net::exponential;
use crate::options::Options;

/// How likely a node hears an operator's word.
const REVOKE_HEARD: f64 = 0.9;
/// Sessions of which a node heard lately, to expire one by spite.
const SESSIONS_REMEMBERED: usize = 12;

/// What a paused process finds when it goes on.
#[derive(Debug)]
pub(super) enum NodeThing {
    Input(NodeInput),
    Synced,
}

/// How far a clean stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    Draining,
    Stopped,
}

/// One node's process, with its clocks and its disk.
#[derive(Debug)]
pub(super) struct NodeProcess {
    /// The machine; none while the process is down.
    pub(super) machine: Option<LockNode>,
    /// Counts the starts of the process.
    pub(super) life: u32,
    /// Whether the records of its start are durable.
    pub(super) ready: bool,
    pub(super) paused: bool,
    leaving: Leaving,
    /// Whether it lost its disk at its last crash.
    pub(super) amnesiac: bool,
    pub(super) clock: Clock,
    /// When the earliest wake-up under way comes.
    wake: u64,
    inbox: VecDeque<NodeThing>,
    pub(super) disk: Disk,
    pub(super) sessions: VecDeque<SessionId>,
}

impl NodeProcess {
    pub(super) fn new(options: &Options, rng: &mut Prng) -> Self {
        let clock = if options.has_faults() || options.skew_ms > 0 {
            Clock::draw(options.drift_ppm, options.skew_ms * 1000, rng)
        } else {
            Clock::exact()
        };
        Self {
            machine: None,
            life: 0,
            ready: false,
            paused: false,
            leaving: Leaving::No,
            amnesiac: false,
            clock,
            wake: u64::MAX,
            inbox: VecDeque::new(),
            disk: Disk::default(),
            sessions: VecDeque::new(),
        }
    }
}

impl World<'_> {
    /// A node's process starts, with what is on its disk.
    pub(super) fn start_node(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        if process.machine.is_some() {
            return;
        }
        process.life += 1;
        process.ready = false;
        process.paused = false;
        process.leaving = Leaving::No;
        process.wake = u64::MAX;
        process.inbox.clear();
        if process.life > 1 && self.mischief.chance(0.5) {
            process.clock.reboot(&mut self.mischief);
        }
        if self.options.epoch > 0.0 && !self.healed && self.mischief.chance(self.options.epoch) {
            self.clocks_are_set();
            let now = True(self.now);
            self.nodes[node as usize].clock.begin_in_1970(now);
        }
        let process = &mut self.nodes[node as usize];
        let start = process.disk.start();
        let seed = self.options.seed ^ u64::from(node) << 32 ^ u64::from(process.life);
        let now = process.clock.now(True(self.now));
        let mut out = std::mem::take(&mut self.node_out);
        let machine = LockNode::start(
            self.config.clone(),
            NodeId(node),
            seed,
            start,
            now,
            &mut out,
        );
        self.nodes[node as usize].machine = Some(machine);
        self.after_node_step(node, &mut out);
        self.node_out = out;
        if self.nodes[node as usize].disk.is_idle() {
            self.node_ready(node);
        }
    }

    /// The records of its start are durable: it takes messages from now on.
    fn node_ready(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        if process.ready {
            return;
        }
        process.ready = true;
        process.disk.serves();
        if self.watched {
            self.tell(&Fact::NodeUp { node: NodeId(node) });
        }
    }

    /// Gives a node an input, now or when its pause ends; nothing if it is down.
    pub(super) fn give_node(&mut self, node: u32, input: NodeInput) {
        let process = &mut self.nodes[node as usize];
        if process.machine.is_none() || !process.ready {
            return;
        }
        if process.paused {
            process.inbox.push_back(NodeThing::Input(input));
        } else {
            self.step_node(node, input);
        }
    }

    pub(super) fn step_node(&mut self, node: u32, input: NodeInput) {
        let process = &mut self.nodes[node as usize];
        let Some(machine) = &mut process.machine else {
            return;
        };
        let mut out = std::mem::take(&mut self.node_out);
        machine.handle(process.clock.now(True(self.now)), input, &mut out);
        self.after_node_step(node, &mut out);
        self.node_out = out;
    }

    /// Does what a step asks for, in the order of the contract.
    fn after_node_step(&mut self, node: u32, out: &mut NodeEffects) {
        if !out.persist.is_empty() {
            let process = &mut self.nodes[node as usize];
            process.disk.write(out.persist.drain(..));
            self.begin_sync(node);
        }
        for envelope in out.send_now.drain(..) {
            self.send_of_node(node, envelope);
        }
        if !out.send_durable.is_empty() {
            for envelope in out.send_durable.drain(..) {
                self.nodes[node as usize].disk.hold(envelope);
            }
            self.send_durable(node);
        }
        if !out.events.is_empty() {
            for event in out.events.drain(..) {
                self.node_event(node, event);
            }
        }
        self.arm_node(node);
    }

    fn begin_sync(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        let mean = self.options.disk_us * 1000;
        let slow = self.options.disk_slow;
        if let Some(nanos) = process.disk.sync(mean, slow, &mut self.rng) {
            let life = process.life;
            self.queue.push_in(nanos, Event::Synced(node, life));
            if nanos > self.options.link_ttl_ms * 500_000 {
                // Nothing durable leaves the node for so long that its connections end.
                self.disturb_node_until(node, self.now + nanos);
            }
        }
    }

    fn send_durable(&mut self, node: u32) {
        while let Some(envelope) = self.nodes[node as usize].disk.released() {
            self.send_of_node(node, envelope);
        }
    }

    fn send_of_node(&mut self, node: u32, envelope: Envelope<To, Message>) {
        match envelope.to {
            To::Link(link) => self.send_down(node, link, envelope.message),
            To::Node(to) => self.send_peer(NodeId(node), to, envelope.message),
        }
    }

    /// A write is durable.
    pub(super) fn synced(&mut self, node: u32, life: u32) {
        let process = &mut self.nodes[node as usize];
        if process.life != life || process.machine.is_none() {
            return;
        }
        if process.paused {
            process.inbox.push_back(NodeThing::Synced);
            return;
        }
        let count = process.disk.synced();
        self.send_durable(node);
        if self.nodes[node as usize].disk.is_idle() {
            self.node_ready(node);
        }
        self.step_node(node, NodeInput::Durable(count));
        self.begin_sync(node);
        let process = &self.nodes[node as usize];
        if process.leaving == Leaving::Stopped && process.disk.is_idle() {
            self.down_cleanly(node);
        }
    }

    fn node_event(&mut self, node: u32, event: NodeEvent) {
        let id = NodeId(node);
        match event {
            NodeEvent::Close(link) if link.0 >= super::attack::LINKS => {}
            NodeEvent::Close(link) => self.close_by_node(node, link.0 as u32),
            NodeEvent::Serving => {
                self.note(Some(node), None, || "* serves".to_owned());
            }
            NodeEvent::CannotRecover => {
                self.note(Some(node), None, || "cannot recover by itself".to_owned());
            }
            NodeEvent::Refused(why) => {
                self.note(Some(node), None, || format!("refuses: {why}"));
            }
            NodeEvent::Granted {
                ask,
                grant,
                floor,
                limit,
                bypass,
                inside,
            } if self.watched => {
                self.groups.insert((id, grant), ask.group());
                self.tell(&Fact::Granted {
                    node: id,
                    ask,
                    grant,
                    floor,
                    limit,
                    bypass,
                    inside,
                });
            }
            NodeEvent::Reclaimed { ask, grant, token } if self.watched => {
                self.groups.insert((id, grant), ask.group());
                self.tell(&Fact::Reclaimed {
                    node: id,
                    ask,
                    grant,
                    token,
                });
            }
            NodeEvent::Ended { ask, grant, why } if self.watched => {
                self.tell(&Fact::NodeEnded {
                    node: id,
                    ask,
                    grant,
                    why,
                });
            }
            NodeEvent::Barred { .. }
            | NodeEvent::Want { .. }
            | NodeEvent::Leave { .. }
            | NodeEvent::Granted { .. }
            | NodeEvent::Entered { .. }
            | NodeEvent::Reclaimed { .. }
            | NodeEvent::Ended { .. } => {}
        }
    }

    /// Sees to it that the node is woken when it wants to be.
    fn arm_node(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        let Some(wake) = process.machine.as_ref().and_then(Machine::next_wake) else {
            return;
        };
        let at = process.clock.true_at(wake.at).0.max(self.now);
        if at < process.wake {
            process.wake = at;
            self.queue.push(True(at), Event::WakeNode(node));
        }
    }

    pub(super) fn wake_node(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        if process.wake != self.now {
            return;
        }
        process.wake = u64::MAX;
        if process.paused || !process.ready {
            // A process that is not ready is woken as soon as it is.
            if !process.ready && process.machine.is_some() && !process.paused {
                process.wake = self.now + 100_000;
                self.queue
                    .push(True(self.now + 100_000), Event::WakeNode(node));
            }
            return;
        }
        self.wake_node_if_due(node);
    }

    fn wake_node_if_due(&mut self, node: u32) {
        let process = &self.nodes[node as usize];
        let wake = process.machine.as_ref().and_then(Machine::next_wake);
        let Some(wake) = wake else {
            return;
        };
        if wake.at <= process.clock.now(True(self.now)).mono {
            self.step_node(node, NodeInput::Wake);
        } else {
            self.arm_node(node);
        }
    }

    /// A node's process dies; its disk keeps what was durable and perhaps more.
    pub(super) fn crash_node(&mut self, node: u32, disk_lost: bool) {
        let process = &mut self.nodes[node as usize];
        if process.machine.take().is_none() {
            return;
        }
        process.disk.crash(&mut self.mischief);
        if disk_lost {
            process.disk.lose();
        }
        process.amnesiac |= disk_lost;
        self.after_death(node, disk_lost);
    }

    fn after_death(&mut self, node: u32, disk_lost: bool) {
        self.disturb_node(node);
        let process = &mut self.nodes[node as usize];
        process.inbox.clear();
        process.ready = false;
        process.paused = false;
        self.drop_links_of_node(node);
        if self.watched {
            self.tell(&Fact::NodeDown {
                node: NodeId(node),
                disk_lost,
            });
        }
        // A script says itself when the node is back.
        if self.options.script.is_empty() {
            let nanos = exponential(self.options.down_ms * 1_000_000, &mut self.mischief);
            self.queue.push_in(nanos, Event::StartNode(node));
        }
    }

    /// A node is told to drain; it is stopped some time later.
    pub(super) fn drain_node(&mut self, node: u32) {
        let process = &mut self.nodes[node as usize];
        if process.machine.is_none()
            || !process.ready
            || process.paused
            || process.leaving != Leaving::No
        {
            return;
        }
        process.leaving = Leaving::Draining;
        let life = process.life;
        self.disturb_node(node);
        self.note(Some(node), None, || "* drains".to_owned());
        self.step_node(node, NodeInput::Drain);
        let nanos = 1_000_000 + self.mischief.below(300_000_000) as u64;
        self.queue.push_in(nanos, Event::Stop(node, life));
    }

    pub(super) fn stop_node(&mut self, node: u32, life: u32) {
        let process = &mut self.nodes[node as usize];
        if process.life != life || process.machine.is_none() {
            return;
        }
        if process.paused {
            // The order to stop waits in the process's mailbox like anything else.
            self.queue.push_in(10_000_000, Event::Stop(node, life));
            return;
        }
        process.leaving = Leaving::Stopped;
        self.note(Some(node), None, || "* stops".to_owned());
        self.step_node(node, NodeInput::Stop);
        if self.nodes[node as usize].disk.is_idle() {
            self.down_cleanly(node);
        }
    }

    fn down_cleanly(&mut self, node: u32) {
        if self.nodes[node as usize].machine.take().is_some() {
            self.after_death(node, false);
        }
    }

    pub(super) fn pause_node(&mut self, node: u32) {
        if self.freeze_node(node) {
            let life = self.nodes[node as usize].life;
            let nanos = exponential(self.options.pause_ms * 1_000_000, &mut self.mischief);
            self.queue.push_in(nanos, Event::ResumeNode(node, life));
        }
    }

    /// A node that runs stands still until it is resumed; `false` if it does not run.
    pub(super) fn freeze_node(&mut self, node: u32) -> bool {
        let process = &mut self.nodes[node as usize];
        if process.machine.is_none() || process.paused {
            return false;
        }
        process.paused = true;
        self.disturb_node(node);
        self.note(Some(node), None, || "* is paused".to_owned());
        true
    }

    /// A paused node goes on: due wake-ups first, then what came meanwhile.
    pub(super) fn resume_node(&mut self, node: u32, life: u32) {
        let process = &mut self.nodes[node as usize];
        if process.life != life || !process.paused {
            return;
        }
        process.paused = false;
        process.wake = u64::MAX;
        self.disturb_node(node);
        self.note(Some(node), None, || "* goes on".to_owned());
        if self.nodes[node as usize].ready {
            self.wake_node_if_due(node);
        }
        while let Some(thing) = self.nodes[node as usize].inbox.pop_front() {
            match thing {
                NodeThing::Input(input) => self.give_node(node, input),
                NodeThing::Synced => self.synced(node, life),
            }
            if self.over {
                return;
            }
        }
        self.arm_node(node);
    }

    /// Remembers the sessions of requests, so that one of them may be expired by spite.
    pub(super) fn remember_session(&mut self, node: u32, message: &Message) {
        if self.options.expire <= 0.0 && self.options.revoke <= 0.0 {
            return;
        }
        let session = match message {
            Message::Request { ask, .. } => ask.session,
            Message::Travel(travel) => travel.ask.session,
            _ => return,
        };
        let sessions = &mut self.nodes[node as usize].sessions;
        if !sessions.contains(&session) {
            sessions.push_back(session);
            if sessions.len() > SESSIONS_REMEMBERED {
                sessions.pop_front();
            }
        }
    }

    /// Releasing a handle ends all attempts of its session at a node: one that is inside by now
    /// ends without its own doing.
    pub(super) fn warn_of_finish(&mut self, node: u32, message: &Message) {
        if let Message::Finish { session, .. } = message
            && self.watched
            && self.holds.uses_session(*session)
        {
            self.tell(&Fact::ExpiredBySpite {
                node: NodeId(node),
                session: *session,
            });
        }
    }

    /// Ends a live session at a node, as no healthy node would.
    pub(super) fn expire_by_spite(&mut self, node: u32) {
        let process = &self.nodes[node as usize];
        if process.machine.is_none() || !process.ready || process.paused {
            return;
        }
        let place = self.mischief.below(process.sessions.len());
        let Some(session) = process.sessions.get(place).copied() else {
            return;
        };
        if self.watched {
            self.tell(&Fact::ExpiredBySpite {
                node: NodeId(node),
                session,
            });
        }
        self.disturb_node(node);
        self.step_node(node, NodeInput::Expire(session));
    }

    /// An operator revokes a session that a node heard of lately, at the nodes that hear it.
    pub(super) fn revoke_session(&mut self, node: u32) {
        let sessions = &self.nodes[node as usize].sessions;
        let place = self.mischief.below(sessions.len());
        let Some(session) = sessions.get(place).copied() else {
            return;
        };
        for node in 0..self.nodes.len() as u32 {
            let heard = self.mischief.chance(REVOKE_HEARD);
            let process = &self.nodes[node as usize];
            if !heard || process.machine.is_none() || !process.ready || process.paused {
                continue;
            }
            self.disturb_node(node);
            self.note(Some(node), None, || {
                format!("* an operator revokes s{:04x}", session.0 as u16)
            });
            let revoke = NodeInput::Revoke {
                session,
                by: Arc::default(),
                force: false,
            };
            self.step_node(node, revoke);
        }
    }
}
