//! Permission of everybody: Ricart and Agrawala 1981, and two variants for groups after
//! Joung 2002 (called RA1 and RA2 there).
//!
//! A process stamps its request with a clock that has seen all stamps it heard of, sends REQUEST
//! to all others, and enters as soon as all have sent REPLY. A process answers at once, unless it
//! is inside, or asks itself with a better stamp: then it answers when it has left.
//!
//! | variant | whose answer is put off | messages per entry |
//! |---|---|---|
//! | [`Variant::Exclusive`] | everybody's | 2(n-1) |
//! | [`Variant::Groups`] (RA1) | that of other groups | 2(n-1) |
//! | [`Variant::Capture`] (RA2) | that of other groups | 2(n-1), and 2 per capture |
//!
//! **RA1** lets a whole group in together if nobody else asks. But requests enter in the order of
//! their stamps: when the stamps of two groups alternate, a member behind a stranger's request
//! waits for that stranger, and the system behaves almost as if it knew no groups.
//!
//! **RA2** mends that by *capture*. Joung's paper was not at hand; another one of his (on
//! surficial quorums) tells what RA1 and RA2 reach: both have a least delay of 2 and let all
//! members of a group in together, at 2n and 3n messages per entry. The rules below are ours,
//! made to reach the same, and not a transcription:
//!
//! 1. A process that enters on everybody's REPLY is a *captain*. While it is inside, it sends
//!    START to each process of its group whose request waits behind a better request of another
//!    group. START is permission to enter at once.
//! 2. A process that was started and leaves tells its captain OVER. A START that comes too late
//!    is answered with OVER at once.
//! 3. A captain answers no request of another group before it has left *and* has heard OVER of
//!    all that it started. After it has left it starts nobody: the door is closed, so strangers
//!    wait for a bounded time. Its own next request for another group waits too: the crew,
//!    being inside, puts it off.
//!
//! Why this excludes: whoever is inside belongs to the group of some captain whose hold is not
//! over (itself, or the one that started it). Two such holds of different groups cannot exist at
//! once: of the two captains, the one with the better stamp answers the other only after its
//! hold, by the argument of Ricart and Agrawala.
//!
//! A REPLY says which request of its sender ended last, so that a captain does not start
//! processes that have long been served. Where nobody of another group asks, nobody is started,
//! and RA2 costs what RA1 costs.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::{BaselineEffects, Event, GroupNo, Input, Named, Peer, Phase, Stamp};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// Whether groups count, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// Groups do not count: one process at a time.
    Exclusive,
    /// RA1: members of one group do not hinder each other.
    Groups,
    /// RA2: besides, who is inside brings waiting members of its group in.
    Capture,
}

/// What processes say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// May this request enter?
    Request {
        /// The request.
        stamp: Stamp,
        /// Its group.
        group: GroupNo,
    },
    /// As far as the sender is concerned, yes.
    Reply {
        /// The request.
        stamp: Stamp,
        /// The counter of the sender's last request that is over, zero if there is none.
        ended: u64,
    },
    /// The request may enter at once, on the sender's permission.
    Start {
        /// The request.
        stamp: Stamp,
    },
    /// A started request is over.
    Over {
        /// The request.
        stamp: Stamp,
    },
}

impl Named for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Request { .. } => "REQUEST",
            Self::Reply { .. } => "REPLY",
            Self::Start { .. } => "START",
            Self::Over { .. } => "OVER",
        }
    }
}

/// What a process knows of another's latest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Heard {
    stamp: Stamp,
    group: GroupNo,
    /// Whether it was answered.
    answered: bool,
}

/// A captain's hold: it lasts until the captain and all whom it started have left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    group: GroupNo,
    /// Whom it started, and for which request.
    crew: BTreeMap<Peer, Stamp>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    me: Peer,
    processes: u32,
    variant: Variant,
    clock: u64,
    phase: Phase,
    stamp: Stamp,
    group: GroupNo,
    /// Who has not answered the current request yet.
    missing: BTreeSet<Peer>,
    /// The latest request of each other process, unless it is known to be over.
    heard: BTreeMap<Peer, Heard>,
    /// The counter of my last request that is over.
    ended: u64,
    hold: Option<Hold>,
    /// Who started my current request: each is told when it is over.
    captains: BTreeSet<Peer>,
}

impl Process {
    /// The process `me` of the peers `0..processes`.
    pub fn new(me: Peer, processes: u32, variant: Variant) -> Self {
        Self {
            me,
            processes,
            variant,
            clock: 0,
            phase: Phase::Idle,
            stamp: Stamp::default(),
            group: GroupNo::default(),
            missing: BTreeSet::new(),
            heard: BTreeMap::new(),
            ended: 0,
            hold: None,
            captains: BTreeSet::new(),
        }
    }

    /// How many entries it keeps about others.
    pub fn kept(&self) -> usize {
        let crew = self.hold.as_ref().map_or(0, |hold| hold.crew.len());
        self.missing.len() + self.heard.len() + self.captains.len() + crew
    }

    fn ask(&mut self, group: GroupNo, out: &mut BaselineEffects<Message>) {
        if self.phase != Phase::Idle {
            return;
        }
        self.clock = self.clock.saturating_add(1);
        self.stamp = Stamp {
            counter: self.clock,
            peer: self.me,
        };
        self.group = group;
        self.phase = Phase::Asking;
        let others = (0..self.processes).map(Peer).filter(|it| *it != self.me);
        self.missing = others.collect();
        let stamp = self.stamp;
        for peer in &self.missing {
            out.send(*peer, Message::Request { stamp, group });
        }
        self.enter_if_answered(out);
    }

    fn leave(&mut self, out: &mut BaselineEffects<Message>) {
        if self.phase != Phase::Inside {
            return;
        }
        self.phase = Phase::Idle;
        self.ended = self.stamp.counter;
        self.missing.clear();
        let stamp = self.stamp;
        for captain in std::mem::take(&mut self.captains) {
            out.send(captain, Message::Over { stamp });
        }
        out.events.push(Event::Left);
        self.end_hold();
        self.answer(out);
    }

    fn receive(&mut self, from: Peer, message: Message, out: &mut BaselineEffects<Message>) {
        if from.0 >= self.processes || from == self.me {
            return;
        }
        match message {
            Message::Request { stamp, group } if stamp.peer == from => {
                self.clock = self.clock.max(stamp.counter);
                self.requested(from, stamp, group, out);
            }
            Message::Reply { stamp, ended } => {
                self.clock = self.clock.max(ended);
                if self
                    .heard
                    .get(&from)
                    .is_some_and(|it| it.stamp.counter <= ended)
                {
                    self.heard.remove(&from);
                }
                if self.phase == Phase::Asking && stamp == self.stamp {
                    self.missing.remove(&from);
                    self.enter_if_answered(out);
                }
            }
            Message::Start { stamp } => self.started(from, stamp, out),
            Message::Over { stamp } if stamp.peer == from => self.over(stamp, out),
            Message::Request { .. } | Message::Over { .. } => {}
        }
    }

    fn requested(
        &mut self,
        from: Peer,
        stamp: Stamp,
        group: GroupNo,
        out: &mut BaselineEffects<Message>,
    ) {
        let older = |heard: &Heard| heard.stamp >= stamp;
        if self.heard.get(&from).is_some_and(older) {
            return;
        }
        let answered = false;
        let heard = Heard {
            stamp,
            group,
            answered,
        };
        self.heard.insert(from, heard);
        self.answer(out);
        self.capture(out);
    }

    /// A captain lets this process in.
    fn started(&mut self, from: Peer, stamp: Stamp, out: &mut BaselineEffects<Message>) {
        if self.variant != Variant::Capture {
            return;
        }
        let current = stamp == self.stamp && self.phase != Phase::Idle;
        // Who is a captain itself needs no other: its own hold protects it.
        if !current || self.is_captain() {
            out.send(from, Message::Over { stamp });
            return;
        }
        self.captains.insert(from);
        if self.phase == Phase::Asking {
            self.phase = Phase::Inside;
            out.events.push(Event::Entered);
        }
    }

    fn over(&mut self, stamp: Stamp, out: &mut BaselineEffects<Message>) {
        if self
            .heard
            .get(&stamp.peer)
            .is_some_and(|it| it.stamp == stamp)
        {
            self.heard.remove(&stamp.peer);
        }
        if let Some(hold) = &mut self.hold {
            hold.crew.retain(|_, started| *started != stamp);
        }
        self.end_hold();
        self.answer(out);
    }

    fn is_captain(&self) -> bool {
        self.phase == Phase::Inside && self.captains.is_empty()
    }

    fn end_hold(&mut self) {
        let over = self.hold.as_ref().is_some_and(|hold| hold.crew.is_empty());
        if over && !self.is_captain() {
            self.hold = None;
        }
    }

    fn enter_if_answered(&mut self, out: &mut BaselineEffects<Message>) {
        let ready = self.phase == Phase::Asking && self.missing.is_empty();
        if !ready {
            return;
        }
        self.phase = Phase::Inside;
        out.events.push(Event::Entered);
        if self.variant == Variant::Capture {
            let group = self.group;
            // A crew of its last entry may still be inside; then it is of the same group, for it
            // would have put this request off.
            let crew = self.hold.take().filter(|hold| hold.group == group);
            self.hold = Some(crew.unwrap_or_else(|| Hold {
                group,
                crew: BTreeMap::new(),
            }));
            self.capture(out);
        }
    }

    /// Whether a request of `group` must wait for this process.
    fn puts_off(&self, stamp: Stamp, group: GroupNo) -> bool {
        let strange = |own: GroupNo| self.variant == Variant::Exclusive || own != group;
        let held = self.hold.as_ref().is_some_and(|hold| strange(hold.group));
        let wanted = match self.phase {
            Phase::Idle => false,
            Phase::Asking => self.stamp < stamp && strange(self.group),
            Phase::Inside => strange(self.group),
        };
        held || wanted
    }

    /// Answers every request that need not wait for this process any longer.
    fn answer(&mut self, out: &mut BaselineEffects<Message>) {
        let ended = self.ended;
        let ready: Vec<Peer> = self
            .heard
            .iter()
            .filter(|(_, it)| !it.answered && !self.puts_off(it.stamp, it.group))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in ready {
            if let Some(heard) = self.heard.get_mut(&peer) {
                heard.answered = true;
                let stamp = heard.stamp;
                out.send(peer, Message::Reply { stamp, ended });
            }
        }
    }

    /// As a captain inside: starts the members of the group that wait behind a stranger.
    fn capture(&mut self, out: &mut BaselineEffects<Message>) {
        if self.variant != Variant::Capture || !self.is_captain() {
            return;
        }
        let group = self.group;
        let strangers = self.heard.values().filter(|it| it.group != group);
        let Some(best) = strangers.filter(|it| !it.answered).map(|it| it.stamp).min() else {
            return;
        };
        let Some(hold) = &mut self.hold else {
            return;
        };
        for heard in self.heard.values() {
            let stamp = heard.stamp;
            if heard.group != group || stamp < best {
                continue;
            }
            if hold.crew.insert(stamp.peer, stamp) != Some(stamp) {
                out.send(stamp.peer, Message::Start { stamp });
            }
        }
    }
}

impl Machine for Process {
    type Input = Input<Message>;
    type Address = Peer;
    type Message = Message;
    type Record = Infallible;
    type Event = Event;

    fn handle(&mut self, _: Now, input: Self::Input, out: &mut BaselineEffects<Message>) {
        match input {
            Input::Ask { group } => self.ask(group, out),
            Input::Leave => self.leave(out),
            Input::Receive { from, message } => self.receive(from, message, out),
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
