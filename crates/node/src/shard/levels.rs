//! The levels of a hierarchy behind the shard's locks.
//!
//! The front ([`LockNode`](conclave_protocol::lock::LockNode)) wants and leaves consent; the
//! machine of the levels gives it. What one tells the other waits in a small queue and is heard in
//! the same turn of the loop, as is what the node says to itself. What it says to others goes
//! over [connections of their own](super::level_links).

use std::collections::VecDeque;
use std::time::Duration;

use conclave_protocol::id::{Incarnation, Name, NodeId, Token};
use conclave_protocol::lock::{NodeEvent, NodeInput, Record, Start};
use conclave_protocol::multilevel::{
    LevelConfig, LevelEffects, LevelEvent, LevelInput, LevelMessage, LevelNode, LevelStored, Seen,
};
use conclave_protocol::{Envelope, Instant, Machine, Now};

use super::level_links::LevelLinks;
use super::run::Loop;

/// What the loop needs to know about a hierarchy.
#[derive(Debug)]
pub(super) struct LevelParts {
    pub(super) config: LevelConfig,
    pub(super) stored: LevelStored<Name>,
}

/// What the arbiters of the root find when they start. Tokens begin at the clock and grow far more
/// slowly: of a lost disk it is known that none above the clock and a lead was promised, and no
/// lease longer than the longest.
pub(super) fn stored(start: &Start, config: &LevelConfig, now: Now) -> LevelStored<Name> {
    match start {
        Start::Init => LevelStored {
            ceiling: Token(now.wall.0),
            ..LevelStored::default()
        },
        Start::Disk(stored) => stored.levels.clone(),
        Start::Lost => LevelStored {
            ceiling: Token(now.wall.plus(LOST_LEAD).0),
            lease: config.lease_max,
            lost: true,
            ..LevelStored::default()
        },
    }
}

/// So far ahead of its clock a node may have promised tokens before it lost its disk.
const LOST_LEAD: Duration = Duration::from_hours(1);

/// What waits to be heard in this turn.
#[derive(Debug)]
enum Local {
    /// For the machine of the levels.
    Up(LevelInput<Name>),
    /// For the front.
    Down(NodeInput),
}

/// The levels of a hierarchy at this node.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) config: LevelConfig,
    pub(super) machine: LevelNode<Name>,
    pub(super) links: LevelLinks,
    out: LevelEffects<Name>,
    queue: VecDeque<Local>,
    /// Whether the queue is being emptied further up.
    turning: bool,
    parked: VecDeque<(u64, Envelope<NodeId, LevelMessage<Name>>)>,
    /// Each machine counts its own records: so many of the front's and so many of the levels' are
    /// among so many of all.
    marks: VecDeque<(u64, [u64; 2])>,
    wrote: [u64; 2],
}

impl Levels {
    /// Starts the machine; what it asks for is done with the first turn.
    pub(super) fn new(
        parts: LevelParts,
        id: NodeId,
        life: Incarnation,
        seed: u64,
        now: Now,
    ) -> Box<Self> {
        let mut out = LevelEffects::new();
        let machine = LevelNode::start(
            parts.config.clone().into(),
            id,
            life,
            seed,
            parts.stored,
            Seen::default(),
            now,
            &mut out,
        );
        Box::new(Self {
            config: parts.config,
            machine,
            links: LevelLinks::default(),
            out,
            queue: VecDeque::new(),
            turning: false,
            parked: VecDeque::new(),
            marks: VecDeque::new(),
            wrote: [0; 2],
        })
    }

    /// The front or the levels wrote records; all records are so many now.
    pub(super) fn wrote(&mut self, records: u64, front: bool, written: u64) {
        self.wrote[usize::from(!front)] += records;
        self.marks.push_back((written, self.wrote));
    }

    /// How many records of each machine are among the first `synced` of all, if that is news.
    fn synced(&mut self, synced: u64) -> Option<[u64; 2]> {
        let mut own = None;
        while let Some((all, each)) = self.marks.front().copied() {
            if all > synced {
                break;
            }
            own = Some(each);
            self.marks.pop_front();
        }
        own
    }

    /// When the machine or a connection wants to be looked at.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let wake = self.machine.next_wake().map(|wake| wake.at);
        let links = self.links.next_look();
        wake.into_iter().chain(links).min()
    }
}

impl Loop {
    /// What the front wants of the levels.
    pub(super) fn level_event(&mut self, event: &NodeEvent) {
        let Some(levels) = &mut self.levels else {
            return;
        };
        match event {
            NodeEvent::Want {
                name,
                wish,
                mode,
                span,
            } => {
                self.meters.levels.wants.inc();
                levels.queue.push_back(Local::Up(LevelInput::Want {
                    lock: name.clone(),
                    wish: *wish,
                    mode: mode.clone(),
                    span: *span,
                }));
            }
            NodeEvent::Leave { name, wish, used } => {
                levels.queue.push_back(Local::Up(LevelInput::Leave {
                    lock: name.clone(),
                    wish: *wish,
                    used: *used,
                }));
            }
            _ => {}
        }
    }

    /// Tells the machine of the levels something.
    pub(super) fn level_input(&mut self, input: LevelInput<Name>) {
        if let Some(levels) = &mut self.levels {
            levels.queue.push_back(Local::Up(input));
            self.turn_levels();
        }
    }

    /// The records of the start are on disk: the levels may speak.
    pub(super) fn start_levels(&mut self) {
        let now = self.now();
        self.apply_levels(now);
        self.turn_levels();
    }

    /// Lets the machines hear each other until neither has anything to say.
    pub(super) fn turn_levels(&mut self) {
        let Some(levels) = &mut self.levels else {
            return;
        };
        if !self.started || std::mem::replace(&mut levels.turning, true) {
            return;
        }
        while let Some(next) = self.levels.as_mut().and_then(|it| it.queue.pop_front()) {
            match next {
                Local::Up(input) => self.level_step(input),
                Local::Down(input) => self.handle(input),
            }
        }
        if let Some(levels) = &mut self.levels {
            levels.turning = false;
        }
    }

    /// One step of the levels, behind their timers that are due.
    fn level_step(&mut self, input: LevelInput<Name>) {
        let now = self.now();
        self.wake_levels_at(now);
        if let Some(levels) = &mut self.levels {
            levels.machine.handle(now, input, &mut levels.out);
        }
        self.apply_levels(now);
    }

    /// Wakes the levels if their time has come.
    pub(super) fn wake_levels(&mut self) {
        if self.levels.is_some() && self.started {
            let now = self.now();
            self.wake_levels_at(now);
            self.turn_levels();
        }
    }

    fn wake_levels_at(&mut self, now: Now) {
        let Some(levels) = &mut self.levels else {
            return;
        };
        let wake = levels.machine.next_wake();
        if wake.is_some_and(|wake| wake.at <= now.mono) {
            levels
                .machine
                .handle(now, LevelInput::Wake, &mut levels.out);
            self.apply_levels(now);
        }
    }

    /// Does what a step of the levels asks for, in the order of the contract.
    fn apply_levels(&mut self, now: Now) {
        let Some(levels) = &mut self.levels else {
            return;
        };
        let mut out = std::mem::take(&mut levels.out);
        if !out.persist.is_empty() {
            let records: Vec<Record> = out
                .persist
                .drain(..)
                .map(|record| Record::Level(Box::new(record)))
                .collect();
            self.note_records(records.len() as u64, false);
            self.journal.write(records);
        }
        for envelope in out.send_now.drain(..) {
            self.level_send(envelope);
        }
        let written = self.written();
        if let Some(levels) = &mut self.levels {
            let parked = out.send_durable.drain(..);
            levels.parked.extend(parked.map(|one| (written, one)));
        }
        // The machine may not have heard yet that its records are on disk. If they are, nobody
        // else comes back for what it holds back.
        self.release_levels();
        for event in out.events.drain(..) {
            self.level_tells(event, now);
        }
        if let Some(levels) = &mut self.levels {
            levels.out = out;
        }
    }

    fn level_send(&mut self, envelope: Envelope<NodeId, LevelMessage<Name>>) {
        let Envelope { to, message } = envelope;
        let Some(levels) = &mut self.levels else {
            return;
        };
        if to == levels.machine.id() {
            let heard = LevelInput::Receive(to, message);
            levels.queue.push_back(Local::Up(heard));
        } else {
            self.meters.levels.sent.inc();
            self.send_level(to, message);
        }
    }

    /// What waited for these records leaves, then the levels hear of it; how many of the front's
    /// own are among them.
    pub(super) fn levels_durable(&mut self, synced: u64) -> Option<u64> {
        self.release_levels();
        let levels = self.levels.as_mut()?;
        let [front, own] = levels.synced(synced)?;
        levels.queue.push_back(Local::Up(LevelInput::Durable(own)));
        Some(front)
    }

    /// Sends what waited for records that are on disk by now.
    fn release_levels(&mut self) {
        let synced = self.synced;
        while let Some(levels) = &mut self.levels
            && let Some((at, _)) = levels.parked.front()
            && *at <= synced
            && let Some((_, envelope)) = levels.parked.pop_front()
        {
            self.level_send(envelope);
        }
    }

    fn level_tells(&mut self, event: LevelEvent<Name>, _now: Now) {
        let meters = &self.meters.levels;
        let input = match event {
            LevelEvent::Granted {
                lock,
                wish,
                block,
                until,
            } => {
                meters.consents.inc();
                NodeInput::Consent {
                    name: lock,
                    wish,
                    block,
                    until,
                }
            }
            LevelEvent::Extended { lock, wish, until } => NodeInput::Extended {
                name: lock,
                wish,
                until,
            },
            LevelEvent::Lost { lock, wish } => {
                meters.lost.inc();
                tracing::warn!(
                    lock = %lock.bytes().escape_ascii(),
                    "consent to a lock ran out: its holders here have lost it"
                );
                NodeInput::ConsentLost { name: lock, wish }
            }
            LevelEvent::Refused { lock, wish } => {
                meters.refused.inc();
                NodeInput::ConsentRefused { name: lock, wish }
            }
        };
        if let Some(levels) = &mut self.levels {
            levels.queue.push_back(Local::Down(input));
        }
    }
}
