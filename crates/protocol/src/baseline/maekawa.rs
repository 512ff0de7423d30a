//! Maekawa's lock on quorums as it was published (Maekawa 1985), with its FAILED message.
//!
//! | message | from, to | meaning |
//! |---|---|---|
//! | REQUEST | process, its quorum | lock for me |
//! | LOCKED | node, process | the node is locked for you |
//! | FAILED | node, process | a better request is before yours |
//! | INQUIRE | node, holder | a better request waits: will you get all of your quorum? |
//! | RELINQUISH | holder, node | no: lock for the other one, and queue me again |
//! | RELEASE | process, its quorum | I am out |
//!
//! A node locks for one request at a time. A newcomer that is not the best of all requests at the
//! node gets FAILED; the best makes the node inquire the holder, once per lock. A process answers
//! an INQUIRE with RELINQUISH as soon as it knows that it lacks some node: one that sent FAILED,
//! or one that it relinquished, and that has not locked for it since. Until then it keeps the
//! INQUIRE in mind; entering settles it, because RELEASE will answer.
//!
//! Three [`Variant`]s differ in who is told what:
//!
//! - [`Variant::Published`] tells only a newcomer that it failed. A request that was the best one
//!   waiting and is beaten later never hears of it, keeps locks that others need, and the system
//!   can stop for good (Sanders 1987).
//! - [`Variant::Corrected`] also tells the one that was best before.
//! - [`Variant::AtOnce`] has no FAILED: a process relinquishes whenever it is not inside. This is
//!   the rule that our own locks use.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::{BaselineEffects, Event, Input, Named, Peer, Phase, Stamp};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// Which rule decides when a lock is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// As published: it can deadlock.
    Published,
    /// With FAILED also to the request that was best before a better one came.
    Corrected,
    /// Without FAILED: every lock is given back when asked for, unless inside.
    AtOnce,
}

/// What processes and nodes say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Lock for this request.
    Request {
        /// The request.
        stamp: Stamp,
    },
    /// The node is locked for the request.
    Locked {
        /// The request.
        stamp: Stamp,
        /// The number of the lock at this node.
        grant: u64,
        /// The node's clock.
        clock: u64,
    },
    /// A better request is before this one.
    Failed {
        /// The request.
        stamp: Stamp,
        /// The node's clock.
        clock: u64,
    },
    /// A better request waits.
    Inquire {
        /// The request that the node is locked for.
        stamp: Stamp,
        /// The number of the lock.
        grant: u64,
        /// The node's clock.
        clock: u64,
    },
    /// The lock is given back, the request waits again.
    Relinquish {
        /// The request.
        stamp: Stamp,
        /// The number of the lock.
        grant: u64,
    },
    /// The request is over.
    Release {
        /// The request.
        stamp: Stamp,
    },
}

impl Named for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Request { .. } => "REQUEST",
            Self::Locked { .. } => "LOCKED",
            Self::Failed { .. } => "FAILED",
            Self::Inquire { .. } => "INQUIRE",
            Self::Relinquish { .. } => "RELINQUISH",
            Self::Release { .. } => "RELEASE",
        }
    }
}

/// What a process knows of one member of its quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    /// The lock it has there, if any.
    grant: Option<u64>,
    /// Whether it knows that it must wait for this member.
    failed: bool,
    /// Whether an INQUIRE about the lock is not answered yet.
    inquired: bool,
}

/// A process: it asks for one entry at a time and locks its quorum for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    me: Peer,
    variant: Variant,
    members: BTreeMap<Peer, Member>,
    clock: u64,
    stamp: Stamp,
    phase: Phase,
}

impl Requester {
    /// The process `me`, which always uses the quorum of these nodes.
    pub fn new(me: Peer, variant: Variant, quorum: impl IntoIterator<Item = Peer>) -> Self {
        let members = quorum.into_iter().map(|node| (node, Member::default()));
        Self {
            me,
            variant,
            members: members.collect(),
            clock: 0,
            stamp: Stamp::default(),
            phase: Phase::Idle,
        }
    }

    fn ask(&mut self, out: &mut BaselineEffects<Message>) {
        if self.phase != Phase::Idle {
            return;
        }
        self.clock = self.clock.saturating_add(1);
        self.stamp = Stamp {
            counter: self.clock,
            peer: self.me,
        };
        self.phase = Phase::Asking;
        for (node, member) in &mut self.members {
            *member = Member::default();
            out.send(*node, Message::Request { stamp: self.stamp });
        }
        self.enter_if_locked(out);
    }

    fn leave(&mut self, out: &mut BaselineEffects<Message>) {
        if self.phase != Phase::Inside {
            return;
        }
        self.phase = Phase::Idle;
        for node in self.members.keys() {
            out.send(*node, Message::Release { stamp: self.stamp });
        }
        out.events.push(Event::Left);
    }

    fn receive(&mut self, from: Peer, message: Message, out: &mut BaselineEffects<Message>) {
        let (Message::Locked { stamp, clock, .. }
        | Message::Failed { stamp, clock }
        | Message::Inquire { stamp, clock, .. }) = message
        else {
            return;
        };
        self.clock = self.clock.max(clock);
        if self.phase != Phase::Asking || stamp != self.stamp {
            return;
        }
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        match message {
            Message::Locked { grant, .. } => {
                *member = Member {
                    grant: Some(grant),
                    ..Member::default()
                };
                self.enter_if_locked(out);
            }
            Message::Failed { .. } => {
                member.failed = true;
                self.relinquish(out);
            }
            Message::Inquire { grant, .. } if member.grant == Some(grant) => {
                member.inquired = true;
                self.relinquish(out);
            }
            _ => {}
        }
    }

    fn enter_if_locked(&mut self, out: &mut BaselineEffects<Message>) {
        if self.members.values().all(|member| member.grant.is_some()) {
            self.phase = Phase::Inside;
            out.events.push(Event::Entered);
        }
    }

    /// Gives back what was inquired, if this request cannot enter as things stand.
    fn relinquish(&mut self, out: &mut BaselineEffects<Message>) {
        let hopeless = self.members.values().any(|member| member.failed);
        if !hopeless && self.variant != Variant::AtOnce {
            return;
        }
        for (node, member) in &mut self.members {
            if !std::mem::take(&mut member.inquired) {
                continue;
            }
            if let Some(grant) = member.grant.take() {
                // It waits there again, and needs no message to know it.
                member.failed = true;
                let stamp = self.stamp;
                out.send(*node, Message::Relinquish { stamp, grant });
            }
        }
    }
}

/// The request a node is locked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holder {
    stamp: Stamp,
    grant: u64,
    inquired: bool,
}

/// A node: it locks for one request at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arbiter {
    variant: Variant,
    processes: u32,
    clock: u64,
    grants: u64,
    holder: Option<Holder>,
    /// The requests that wait, best first.
    waiting: BTreeSet<Stamp>,
    /// Those of them that know it.
    told: BTreeSet<Stamp>,
}

impl Arbiter {
    /// A node that serves the peers `0..processes`.
    pub fn new(variant: Variant, processes: u32) -> Self {
        Self {
            variant,
            processes,
            clock: 0,
            grants: 0,
            holder: None,
            waiting: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// How many requests it keeps.
    pub fn kept(&self) -> usize {
        self.waiting.len() + usize::from(self.holder.is_some())
    }

    fn receive(&mut self, from: Peer, message: Message, out: &mut BaselineEffects<Message>) {
        let (Message::Request { stamp }
        | Message::Relinquish { stamp, .. }
        | Message::Release { stamp }) = message
        else {
            return;
        };
        if stamp.peer != from || from.0 >= self.processes {
            return;
        }
        match message {
            Message::Request { .. } => self.request(stamp, out),
            Message::Relinquish { grant, .. } => self.relinquish(stamp, grant, out),
            _ => self.release(stamp, out),
        }
    }

    fn request(&mut self, stamp: Stamp, out: &mut BaselineEffects<Message>) {
        let mut known = self.waiting.iter().copied();
        let holds = self.holder.is_some_and(|it| it.stamp.peer == stamp.peer);
        if holds || known.any(|other| other.peer == stamp.peer) {
            return;
        }
        self.clock = self.clock.max(stamp.counter);
        let best_before = self.waiting.first().copied();
        self.waiting.insert(stamp);
        let Some(holder) = self.holder else {
            self.lock_best(out);
            return;
        };
        if holder.stamp < stamp || best_before.is_some_and(|best| best < stamp) {
            self.tell_failed(stamp, out);
            return;
        }
        self.inquire(out);
        if let (Variant::Corrected, Some(best)) = (self.variant, best_before) {
            self.tell_failed(best, out);
        }
    }

    fn relinquish(&mut self, stamp: Stamp, grant: u64, out: &mut BaselineEffects<Message>) {
        let holds = |holder: &Holder| holder.stamp == stamp && holder.grant == grant;
        if self.holder.is_some_and(|holder| holds(&holder)) {
            self.holder = None;
            self.waiting.insert(stamp);
            self.told.insert(stamp);
            self.lock_best(out);
        }
    }

    fn release(&mut self, stamp: Stamp, out: &mut BaselineEffects<Message>) {
        self.waiting.remove(&stamp);
        self.told.remove(&stamp);
        if self.holder.is_some_and(|holder| holder.stamp == stamp) {
            self.holder = None;
            self.lock_best(out);
        }
    }

    fn lock_best(&mut self, out: &mut BaselineEffects<Message>) {
        let Some(stamp) = self.waiting.pop_first() else {
            return;
        };
        self.told.remove(&stamp);
        self.grants += 1;
        let (grant, clock) = (self.grants, self.clock);
        self.holder = Some(Holder {
            stamp,
            grant,
            inquired: false,
        });
        let message = Message::Locked {
            stamp,
            grant,
            clock,
        };
        out.send(stamp.peer, message);
    }

    fn inquire(&mut self, out: &mut BaselineEffects<Message>) {
        let Some(holder) = self.holder.as_mut().filter(|holder| !holder.inquired) else {
            return;
        };
        holder.inquired = true;
        let message = Message::Inquire {
            stamp: holder.stamp,
            grant: holder.grant,
            clock: self.clock,
        };
        out.send(holder.stamp.peer, message);
    }

    fn tell_failed(&mut self, stamp: Stamp, out: &mut BaselineEffects<Message>) {
        if self.variant != Variant::AtOnce && self.told.insert(stamp) {
            let clock = self.clock;
            out.send(stamp.peer, Message::Failed { stamp, clock });
        }
    }
}

/// A process or a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A process.
    Process(Requester),
    /// A node.
    Node(Arbiter),
}

impl Machine for Site {
    type Input = Input<Message>;
    type Address = Peer;
    type Message = Message;
    type Record = Infallible;
    type Event = Event;

    fn handle(&mut self, _: Now, input: Self::Input, out: &mut BaselineEffects<Message>) {
        match (self, input) {
            (Self::Process(process), Input::Ask { .. }) => process.ask(out),
            (Self::Process(process), Input::Leave) => process.leave(out),
            (Self::Process(process), Input::Receive { from, message }) => {
                process.receive(from, message, out);
            }
            (Self::Node(node), Input::Receive { from, message }) => {
                node.receive(from, message, out);
            }
            (Self::Node(_), Input::Ask { .. } | Input::Leave) => {}
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
