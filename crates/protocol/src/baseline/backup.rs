//! Primary and backup: one server decides, and a second one knows each grant before it is given.
//!
//! REQUEST, REPLICATE, STORED, GRANT, RELEASE: 5 messages, delay 4. Releases ride on the next
//! REPLICATE, so the backup may believe that somebody is inside who has left, never the other way
//! round: after the primary's death it would wait too long for somebody, and let nobody in too
//! early. That take-over, and what it needs (somebody to say that the primary is dead), is not
//! part of this baseline.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::central::{self, Book, Client};
use super::{BaselineEffects, Event, Input, Named, Peer};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// What processes, primary and backup say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Between a process and the primary: as with one server.
    Lock(central::Message),
    /// The primary will let these in.
    Replicate {
        /// The number of this message, from 1.
        number: u64,
        /// Who will be inside.
        entering: Vec<Peer>,
        /// Who left since the last such message.
        left: Vec<Peer>,
    },
    /// The backup knows it.
    Stored {
        /// The number of the message.
        number: u64,
    },
}

impl Named for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Lock(message) => message.kind(),
            Self::Replicate { .. } => "REPLICATE",
            Self::Stored { .. } => "STORED",
        }
    }
}

/// The server that decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Primary {
    backup: Peer,
    book: Book,
    replicated: u64,
    /// Who enters once the backup has stored a message.
    pending: BTreeMap<u64, Vec<Peer>>,
    left: BTreeSet<Peer>,
}

impl Primary {
    /// A primary for the peers `0..processes` with this backup.
    pub fn new(backup: Peer, processes: u32, max_bypass: u32) -> Self {
        Self {
            backup,
            book: Book::new(processes, max_bypass),
            replicated: 0,
            pending: BTreeMap::new(),
            left: BTreeSet::new(),
        }
    }

    fn receive(&mut self, from: Peer, message: &Message, out: &mut BaselineEffects<Message>) {
        match message {
            Message::Lock(central::Message::Request { group }) => {
                let admitted = self.book.request(from, *group);
                self.replicate(admitted, out);
            }
            Message::Lock(central::Message::Release) => {
                // Who has not been told that it is inside cannot leave.
                if self.pending.values().flatten().any(|peer| *peer == from) {
                    return;
                }
                if let Some(admitted) = self.book.release(from) {
                    self.left.insert(from);
                    self.replicate(admitted, out);
                }
            }
            Message::Stored { number } if from == self.backup => {
                for peer in self.pending.remove(number).unwrap_or_default() {
                    out.send(peer, Message::Lock(central::Message::Grant));
                }
            }
            Message::Lock(central::Message::Grant)
            | Message::Stored { .. }
            | Message::Replicate { .. } => {}
        }
    }

    fn replicate(&mut self, admitted: Vec<Peer>, out: &mut BaselineEffects<Message>) {
        if admitted.is_empty() {
            return;
        }
        self.replicated += 1;
        let message = Message::Replicate {
            number: self.replicated,
            entering: admitted.clone(),
            left: std::mem::take(&mut self.left).into_iter().collect(),
        };
        out.send(self.backup, message);
        self.pending.insert(self.replicated, admitted);
    }
}

/// The server that remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backup {
    primary: Peer,
    processes: u32,
    inside: BTreeSet<Peer>,
}

impl Backup {
    /// The backup of this primary, for the peers `0..processes`.
    pub fn new(primary: Peer, processes: u32) -> Self {
        Self {
            primary,
            processes,
            inside: BTreeSet::new(),
        }
    }

    /// Who may be inside, as far as the backup knows.
    pub fn inside(&self) -> &BTreeSet<Peer> {
        &self.inside
    }

    fn receive(&mut self, from: Peer, message: Message, out: &mut BaselineEffects<Message>) {
        let Message::Replicate {
            number,
            entering,
            left,
        } = message
        else {
            return;
        };
        if from != self.primary {
            return;
        }
        for peer in &left {
            self.inside.remove(peer);
        }
        let known = entering.into_iter().filter(|it| it.0 < self.processes);
        self.inside.extend(known);
        out.send(from, Message::Stored { number });
    }
}

/// A process or one of the two servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A process.
    Process(Client),
    /// The server that decides.
    Primary(Primary),
    /// The server that remembers.
    Backup(Backup),
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
                let Some(input) = for_client(&input) else {
                    return;
                };
                if let Some((to, message)) = client.step(input, &mut out.events) {
                    out.send(to, Message::Lock(message));
                }
            }
            Self::Primary(primary) => {
                if let Input::Receive { from, message } = input {
                    primary.receive(from, &message, out);
                }
            }
            Self::Backup(backup) => {
                if let Input::Receive { from, message } = input {
                    backup.receive(from, message, out);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}

/// The input as a process that knows one server sees it.
fn for_client(input: &Input<Message>) -> Option<Input<central::Message>> {
    match *input {
        Input::Ask { group } => Some(Input::Ask { group }),
        Input::Leave => Some(Input::Leave),
        Input::Receive {
            from,
            message: Message::Lock(message),
        } => Some(Input::Receive { from, message }),
        Input::Receive { .. } => None,
    }
}
