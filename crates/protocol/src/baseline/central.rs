//! One server decides: the cheapest lock there is while the server lives, and what a quorum is
//! measured against.
//!
//! A process sends REQUEST, waits for GRANT and says RELEASE: 3 messages, delay 2. The server
//! keeps requests in the order they came. Members of the group inside join at once; past a
//! waiting request of another group they may do so `max_bypass` times before that group has its
//! turn.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;

use super::{BaselineEffects, Event, GroupNo, Input, Named, Peer, Phase};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// What processes and the server say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A process wants to enter.
    Request {
        /// As a member of this group.
        group: GroupNo,
    },
    /// It may.
    Grant,
    /// It is out.
    Release,
}

impl Named for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Request { .. } => "REQUEST",
            Self::Grant => "GRANT",
            Self::Release => "RELEASE",
        }
    }
}

/// Who is inside and who waits, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Book {
    processes: u32,
    max_bypass: u32,
    group: GroupNo,
    inside: BTreeSet<Peer>,
    waiting: VecDeque<(Peer, GroupNo)>,
    /// How often the group inside was let past a waiting stranger.
    bypassed: u32,
}

impl Book {
    /// An empty book for the peers `0..processes`.
    pub fn new(processes: u32, max_bypass: u32) -> Self {
        Self {
            processes,
            max_bypass,
            group: GroupNo::default(),
            inside: BTreeSet::new(),
            waiting: VecDeque::new(),
            bypassed: 0,
        }
    }

    /// Who is inside.
    pub fn inside(&self) -> &BTreeSet<Peer> {
        &self.inside
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Notes a request and says who may enter now. A stranger, and one who waits or is inside,
    /// is ignored.
    pub fn request(&mut self, peer: Peer, group: GroupNo) -> Vec<Peer> {
        let known = self.inside.contains(&peer) || self.waiting.iter().any(|it| it.0 == peer);
        if known || peer.0 >= self.processes {
            return Vec::new();
        }
        self.waiting.push_back((peer, group));
        self.admit()
    }

    /// Notes that somebody is out and says who may enter now; `None` if it was not inside.
    pub fn release(&mut self, peer: Peer) -> Option<Vec<Peer>> {
        self.inside.remove(&peer).then(|| self.admit())
    }

    fn admit(&mut self) -> Vec<Peer> {
        if self.inside.is_empty() {
            self.bypassed = 0;
            let Some((_, group)) = self.waiting.front() else {
                return Vec::new();
            };
            self.group = *group;
        }
        let mut admitted = Vec::new();
        let mut place = 0;
        while let Some((peer, group)) = self.waiting.get(place).copied() {
            let fits = group == self.group;
            // Everyone before `place` was left waiting: they are strangers.
            let bypass = u32::from(place > 0);
            if fits && self.bypassed + bypass <= self.max_bypass {
                self.bypassed += bypass;
                self.waiting.remove(place);
                self.inside.insert(peer);
                admitted.push(peer);
            } else if fits {
                break;
            } else {
                place += 1;
            }
        }
        admitted
    }
}

/// A process that asks a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    server: Peer,
    phase: Phase,
}

impl Client {
    /// A process that asks this server.
    pub fn new(server: Peer) -> Self {
        Self {
            server,
            phase: Phase::Idle,
        }
    }

    /// Takes a step and says what to tell the server, if anything.
    pub(super) fn step(
        &mut self,
        input: Input<Message>,
        events: &mut Vec<Event>,
    ) -> Option<(Peer, Message)> {
        match (self.phase, input) {
            (Phase::Idle, Input::Ask { group }) => {
                self.phase = Phase::Asking;
                Some((self.server, Message::Request { group }))
            }
            (Phase::Inside, Input::Leave) => {
                self.phase = Phase::Idle;
                events.push(Event::Left);
                Some((self.server, Message::Release))
            }
            (
                Phase::Asking,
                Input::Receive {
                    from,
                    message: Message::Grant,
                },
            ) if from == self.server => {
                self.phase = Phase::Inside;
                events.push(Event::Entered);
                None
            }
            _ => None,
        }
    }
}

/// A process or the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A process.
    Process(Client),
    /// The server.
    Server(Book),
}

impl Machine for Site {
    type Input = Input<Message>;
    type Address = Peer;
    type Message = Message;
    type Record = Infallible;
    type Event = Event;

    fn handle(&mut self, _: Now, input: Self::Input, out: &mut BaselineEffects<Message>) {
        match self {
            Self::Process(client) => {
                if let Some((to, message)) = client.step(input, &mut out.events) {
                    out.send(to, message);
                }
            }
            Self::Server(book) => {
                let Input::Receive { from, message } = input else {
                    return;
                };
                let admitted = match message {
                    Message::Request { group } => book.request(from, group),
                    Message::Release => book.release(from).unwrap_or_default(),
                    Message::Grant => return,
                };
                for peer in admitted {
                    out.send(peer, Message::Grant);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
