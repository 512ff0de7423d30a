//! The loop: one queue of events, one machine per peer.

use std::convert::Infallible;

use conclave_protocol::baseline::{BaselineEffects, Event, GroupNo, Input, Named, Peer};
use conclave_protocol::table::Table;
use conclave_protocol::{Machine, Now};
use conclave_quorum::Prng;

use super::measure::Meter;
use super::{Kind, Measured, Options};
use crate::engine::Queue;
use crate::fact::{True, Violation};
use crate::net::exponential;

/// What happens next.
#[derive(Debug)]
enum Happening<M> {
    Ask(u32),
    Leave(u32),
    Arrive { from: Peer, to: Peer, message: M },
}

struct Run<'a, T, M> {
    options: &'a Options,
    rng: Prng,
    queue: Queue<Happening<M>>,
    sites: Vec<T>,
    /// The group that each process asks for.
    groups: Vec<GroupNo>,
    /// When the last message from one peer to another arrives.
    last: Table<(Peer, Peer), u64>,
    under_way: u64,
    /// How many entries may still be asked for.
    left: u64,
    meter: Meter,
    out: BaselineEffects<M>,
}

/// Runs the machines under the load. Peers before `deciders` are left out of the loads.
pub(super) fn drive<T, M>(kind: Kind, options: &Options, deciders: u32, sites: Vec<T>) -> Measured
where
    T: Machine<Input = Input<M>, Address = Peer, Message = M, Record = Infallible, Event = Event>,
    M: Named,
{
    let peers = sites.len();
    let processes = options.processes.min(super::PROCESSES_MAX);
    let askers = options.askers.min(processes);
    let mut run = Run {
        options,
        rng: Prng::new(options.seed),
        queue: Queue::new(),
        sites,
        groups: vec![GroupNo(0); peers],
        last: Table::new(options.seed),
        under_way: 0,
        left: options.entries,
        meter: Meter::new(kind, peers, askers as usize),
        out: BaselineEffects::new(),
    };
    for process in 0..askers {
        run.think(process);
    }
    let mut violation = None;
    while let Some((at, next)) = run.queue.pop() {
        if let Err(broken) = run.step(at, next) {
            violation = Some(broken);
            break;
        }
    }
    let at = run.queue.now();
    let waiting = run.meter.waiting();
    if violation.is_none() && waiting > 0 {
        violation = Some(Violation {
            property: "deadlock",
            at,
            what: format!("{waiting} processes wait and nothing is under way"),
        });
    }
    let unit = options.latency.mean();
    let events = run.queue.taken();
    run.meter
        .finish(at, events, unit, deciders as usize, violation)
}

impl<T, M> Run<'_, T, M>
where
    T: Machine<Input = Input<M>, Address = Peer, Message = M, Record = Infallible, Event = Event>,
    M: Named,
{
    fn think(&mut self, process: u32) {
        let pause = exponential(self.options.think, &mut self.rng);
        self.queue.push_in(pause, Happening::Ask(process));
    }

    /// An exclusive request is a group of one, sharing is one more group.
    fn pick_group(&mut self, process: u32) -> GroupNo {
        let Options {
            groups,
            exclusive,
            shared,
            ..
        } = *self.options;
        let draw = self.rng.unit();
        if draw < exclusive || groups == 0 && shared <= 0.0 {
            GroupNo(u32::MAX - process)
        } else if draw < exclusive + shared || groups == 0 {
            GroupNo(groups)
        } else {
            GroupNo(self.rng.below(groups as usize) as u32)
        }
    }

    fn step(&mut self, at: True, next: Happening<M>) -> Result<(), Violation> {
        match next {
            Happening::Ask(process) => {
                let Some(left) = self.left.checked_sub(1) else {
                    return Ok(());
                };
                self.left = left;
                let group = self.pick_group(process);
                self.groups[process as usize] = group;
                self.meter.asks(at, process, self.under_way == 0);
                self.feed(at, Peer(process), Input::Ask { group })
            }
            Happening::Leave(process) => self.feed(at, Peer(process), Input::Leave),
            Happening::Arrive { from, to, message } => {
                self.under_way -= 1;
                self.meter.arrived(to.index(), message.kind());
                self.feed(at, to, Input::Receive { from, message })
            }
        }
    }

    fn feed(&mut self, at: True, who: Peer, input: Input<M>) -> Result<(), Violation> {
        let mut out = std::mem::take(&mut self.out);
        self.sites[who.index()].handle(Now::default(), input, &mut out);
        for envelope in out.send_now.drain(..) {
            self.send(at, who, envelope.to, envelope.message);
        }
        for event in out.events.drain(..) {
            match event {
                Event::Entered => {
                    let group = self.groups[who.index()];
                    self.meter.entered(at, who.0, group)?;
                    let stay = exponential(self.options.hold, &mut self.rng);
                    self.queue.push_in(stay, Happening::Leave(who.0));
                }
                Event::Left => {
                    self.meter.left(at, who.0);
                    self.think(who.0);
                }
            }
        }
        self.out = out;
        Ok(())
    }

    fn send(&mut self, at: True, from: Peer, to: Peer, message: M) {
        if to.index() >= self.sites.len() {
            return;
        }
        self.meter.sent(message.kind());
        self.under_way += 1;
        let takes = self.options.latency.draw(&mut self.rng);
        let earliest = self.last.get(&(from, to)).copied().unwrap_or(0);
        let arrives = earliest.max(at.0.saturating_add(takes));
        self.last.insert((from, to), arrives);
        let letter = Happening::Arrive { from, to, message };
        self.queue.push(True(arrives), letter);
    }
}
