//! What goes wrong, when it stops going wrong, and how everything comes back.

use conclave_protocol::lock::LockNode;
use conclave_quorum::NodeSet;

use super::wires::NONE;
use super::{Event, World};
use crate::fact::{Fact, True};
use crate::net::{Way, exponential};
use crate::script::Action;

/// A day in microseconds.
const DAY_MICROS: i64 = 86_400_000_000;

/// A kind of fault. Each comes by itself, at its own rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Reset,
    Stall,
    Partition,
    Crash,
    Drain,
    PauseNode,
    PauseClient,
    CrashClient,
    Expire,
    Jump,
    Revoke,
    /// A wall clock, or that of every node, is set by days.
    Step,
    Attack,
    /// A node that came back dies again.
    CrashAgain(u32),
}

impl World<'_> {
    fn rate(&self, fault: Fault) -> f64 {
        let options = self.options;
        match fault {
            Fault::Reset => options.reset,
            Fault::Stall => options.stall,
            Fault::Partition => options.partition,
            Fault::Crash => options.crash,
            Fault::Drain => options.drain,
            Fault::PauseNode => options.node_pause,
            Fault::PauseClient => options.client_pause,
            Fault::CrashClient => options.client_crash,
            Fault::Expire => options.expire,
            Fault::Jump => options.jump,
            Fault::Revoke => options.revoke,
            Fault::Step => options.step,
            Fault::Attack => options.attack,
            Fault::CrashAgain(_) => 0.0,
        }
    }

    pub(super) fn schedule_faults(&mut self) {
        for fault in [
            Fault::Reset,
            Fault::Stall,
            Fault::Partition,
            Fault::Crash,
            Fault::Drain,
            Fault::PauseNode,
            Fault::PauseClient,
            Fault::CrashClient,
            Fault::Expire,
            Fault::Jump,
            Fault::Revoke,
            Fault::Step,
            Fault::Attack,
        ] {
            self.schedule_fault(fault);
        }
        self.schedule_script();
    }

    /// What the script says comes when it says so.
    fn schedule_script(&mut self) {
        let span = self.options.span_ms * 1_000_000;
        for (place, step) in self.options.script.steps().iter().enumerate() {
            let at = span / 100 * u64::from(step.at);
            self.queue.push(True(at), Event::Script(place));
        }
    }

    pub(super) fn script_step(&mut self, place: usize) {
        if self.healed {
            return;
        }
        let options = self.options;
        let step = &options.script.steps()[place];
        for node in step.nodes.iter().map(|node| node - 1) {
            let life = self.nodes[node as usize].life;
            match step.action {
                Action::Kill => self.crash_node(node, false),
                Action::Start => self.start_node(node),
                Action::Freeze => {
                    self.freeze_node(node);
                }
                Action::Resume => self.resume_node(node, life),
                Action::Stop => self.drain_node(node),
            }
        }
    }

    fn schedule_fault(&mut self, fault: Fault) {
        let rate = self.rate(fault);
        if rate > 0.0 && !self.healed {
            let nanos = exponential((1e9 / rate) as u64, &mut self.mischief);
            self.queue.push_in(nanos + 1, Event::Fault(fault));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        if self.healed {
            return;
        }
        let node = self.mischief.below(self.nodes.len()) as u32;
        let client = self.mischief.below(self.clients.len()) as u32;
        match fault {
            Fault::Reset => {
                let place = self.clients[client as usize].links[node as usize];
                if place != NONE && self.links[place as usize].opened {
                    let late = self.mischief.chance(self.options.late);
                    self.note(Some(node), Some(client), || {
                        let bytes = if late { ", late bytes" } else { "" };
                        format!("* the connection breaks{bytes}")
                    });
                    self.reset(place, late);
                }
            }
            Fault::Stall => {
                let way = if self.mischief.chance(0.5) {
                    Way::Up
                } else {
                    Way::Down
                };
                let until = self.now + self.stall_span();
                self.note(Some(node), Some(client), || {
                    format!("* {way:?} stalls until {:.6}", until as f64 / 1e9)
                });
                self.stall(client, node, way, until);
            }
            Fault::Partition => self.partition(),
            Fault::Crash => self.crash(node),
            Fault::CrashAgain(node) => self.crash_node(node, false),
            Fault::Drain => self.drain_node(node),
            Fault::PauseNode => self.pause_node(node),
            Fault::PauseClient => self.pause_client(client),
            Fault::CrashClient => self.crash_client(client),
            Fault::Expire => self.expire_by_spite(node),
            Fault::Jump => self.jump(),
            Fault::Revoke => self.revoke_session(node),
            Fault::Step => self.step_clocks(node),
            Fault::Attack => self.attack(node),
        }
        self.schedule_fault(fault);
    }

    fn stall_span(&mut self) -> u64 {
        exponential(self.options.stall_ms * 1_000_000, &mut self.mischief)
    }

    /// Splits all processes in two parts that do not hear each other, or only one the other.
    fn partition(&mut self) {
        let until = self.now + self.stall_span();
        let ways: &[Way] = match self.mischief.below(3) {
            0 => &[Way::Up],
            1 => &[Way::Down],
            _ => &[Way::Up, Way::Down],
        };
        let share = self.mischief.unit();
        let mut side = |count: usize| -> Vec<bool> {
            (0..count).map(|_| self.mischief.chance(share)).collect()
        };
        let nodes = side(self.nodes.len());
        let clients = side(self.clients.len());
        self.note(None, None, || {
            format!("* partition until {:.6}: {nodes:?}", until as f64 / 1e9)
        });
        for (client, there) in clients.iter().enumerate() {
            for (node, here) in nodes.iter().enumerate() {
                if there != here {
                    for way in ways {
                        self.stall(client as u32, node as u32, *way, until);
                    }
                }
            }
        }
        let count = nodes.len();
        for (from, here) in nodes.iter().enumerate() {
            for (to, there) in nodes.iter().enumerate() {
                if here != there {
                    let split = &mut self.splits[from * count + to];
                    *split = (*split).max(until);
                }
            }
        }
    }

    fn crash(&mut self, node: u32) {
        if self.mischief.chance(self.options.blackout) {
            for node in 0..self.nodes.len() as u32 {
                self.crash_node(node, false);
            }
            return;
        }
        let lost = self.mischief.chance(self.options.disk_lost) && self.may_lose_disk(node);
        self.crash_node(node, lost);
        if self.mischief.chance(self.options.again) {
            let nanos = exponential(self.options.down_ms * 3_000_000, &mut self.mischief);
            self.queue
                .push_in(nanos, Event::Fault(Fault::CrashAgain(node)));
        }
    }

    /// A disk may be lost only while the others can tell what it held: no system survives more.
    fn may_lose_disk(&self, node: u32) -> bool {
        let others = NodeSet::of(self.nodes.len(), [node as usize]).complement();
        let forgetful = self.nodes.iter().any(|process| {
            let serves = process.machine.as_ref().is_some_and(LockNode::is_serving);
            process.amnesiac && !serves
        });
        !forgetful && self.config.quorums.informs(&others)
    }

    fn jump(&mut self) {
        self.clocks_are_set();
        let reach = self.options.jump_ms as usize * 1000;
        let offset = self.mischief.below(reach * 2 + 1) as i64 - reach as i64;
        let node = self.mischief.below(self.nodes.len() + self.clients.len());
        let (at_node, at_client) = if node < self.nodes.len() {
            self.nodes[node].clock.set_wall(offset);
            self.disturb_node(node as u32);
            (Some(node as u32), None)
        } else {
            let client = node - self.nodes.len();
            self.clients[client].clock.set_wall(offset);
            (None, Some(client as u32))
        };
        self.note(at_node, at_client, || {
            format!("* the wall clock is off by {offset} us")
        });
    }

    /// Checkers read all clocks for the last time before some are set.
    pub(super) fn clocks_are_set(&mut self) {
        if self.watched {
            self.tell(&Fact::ClocksSet);
        }
    }

    /// The wall clock of a node is set wrong by days, or right again; or those of all nodes are.
    fn step_clocks(&mut self, node: u32) {
        let all = self.mischief.chance(0.3);
        let days = match self.mischief.below(3) {
            0 => 0,
            1 => -(self.mischief.below(6) as i64),
            _ => self.mischief.below(31) as i64,
        };
        self.clocks_are_set();
        let offset = days * DAY_MICROS + self.mischief.below(2_000_000) as i64;
        for (index, process) in self.nodes.iter_mut().enumerate() {
            if all || index == node as usize {
                process.clock.set_wall(offset);
            }
        }
        self.note((!all).then_some(node), None, || {
            format!("* the wall clock is set wrong by {days} days")
        });
    }

    /// All faults end: the network is whole, everything runs, and clients ask no more.
    pub(super) fn heal(&mut self) {
        self.clocks_are_set();
        self.healed = true;
        self.end_stalls();
        let skew = self.options.skew_ms as i64 * 1000;
        for node in 0..self.nodes.len() as u32 {
            let process = &mut self.nodes[node as usize];
            let offset = process.clock.wall_offset().clamp(-skew, skew);
            process.clock.set_wall(offset);
            let life = process.life;
            self.resume_node(node, life);
            self.queue.push_in(1_000_000, Event::StartNode(node));
        }
        for client in 0..self.clients.len() as u32 {
            let process = &mut self.clients[client as usize];
            let offset = process.clock.wall_offset().clamp(-skew, skew);
            process.clock.set_wall(offset);
            let life = process.life;
            self.resume_client(client, life);
            self.queue.push_in(1_000_000, Event::StartClient(client));
        }
        self.tell(&Fact::Healed);
        let limit = self.options.heal_ms * 1_000_000;
        self.queue.push(True(self.now + limit), Event::Over);
        self.check_quiet();
    }
}
