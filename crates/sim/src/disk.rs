//! The disk of a node: what was written, what of it would survive, and what waits for it.

use std::collections::VecDeque;

use conclave_protocol::Envelope;
use conclave_protocol::lock::{Message, Record, Start, Stored, To};
use conclave_quorum::Prng;

use crate::net::exponential;

/// A node's disk and the messages held back until their records are on it.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// What is durable; none if it was never written or is lost.
    durable: Option<Stored>,
    /// Whether a node ever served with it: until then its operator starts it as new.
    used: bool,
    /// Written, not yet durable.
    pending: VecDeque<Record>,
    /// Records that became durable in this life of the node.
    done: u64,
    /// How many of `pending` the write under way covers.
    writing: usize,
    /// Messages, and how many records of this life must be durable before each.
    held: VecDeque<(u64, Envelope<To, Message>)>,
}

impl Disk {
    /// What a node that starts now finds. The count of records starts anew.
    pub(crate) fn start(&mut self) -> Start {
        self.done = 0;
        self.writing = 0;
        match &self.durable {
            _ if !self.used => Start::Init,
            Some(stored) => Start::Disk(stored.clone()),
            None => Start::Lost,
        }
    }

    /// Its node takes messages from now on.
    pub(crate) fn serves(&mut self) {
        self.used = true;
    }

    /// Takes the records of one step.
    pub(crate) fn write(&mut self, records: impl IntoIterator<Item = Record>) {
        self.pending.extend(records);
    }

    /// Whether everything written is durable.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Keeps a message back until everything written so far is durable.
    pub(crate) fn hold(&mut self, envelope: Envelope<To, Message>) {
        let need = self.done + self.pending.len() as u64;
        self.held.push_back((need, envelope));
    }

    /// Begins to make durable what is written, unless it is being done or there is nothing; says
    /// how long it takes.
    pub(crate) fn sync(&mut self, mean: u64, slow: f64, rng: &mut Prng) -> Option<u64> {
        if self.writing > 0 || self.pending.is_empty() {
            return None;
        }
        self.writing = self.pending.len();
        let nanos = exponential(mean, rng);
        Some(if slow > 0.0 && rng.chance(slow) {
            nanos * 100
        } else {
            nanos
        })
    }

    /// The write under way is done: how many records of this life are durable now.
    pub(crate) fn synced(&mut self) -> u64 {
        let stored = self.durable.get_or_insert_default();
        for record in self.pending.drain(..self.writing) {
            stored.apply(record);
        }
        self.done += self.writing as u64;
        self.writing = 0;
        self.done
    }

    /// The next message whose records are durable.
    pub(crate) fn released(&mut self) -> Option<Envelope<To, Message>> {
        let (need, _) = self.held.front()?;
        if *need > self.done {
            return None;
        }
        self.held.pop_front().map(|(_, envelope)| envelope)
    }

    /// The node's process dies: of what was not durable some first part survives, the rest and
    /// all messages held back are gone.
    pub(crate) fn crash(&mut self, rng: &mut Prng) {
        let kept = rng.below(self.pending.len() + 1);
        if kept > 0 {
            let stored = self.durable.get_or_insert_default();
            for record in self.pending.drain(..kept) {
                stored.apply(record);
            }
        }
        self.pending.clear();
        self.held.clear();
        self.writing = 0;
    }

    /// Everything on it is gone.
    pub(crate) fn lose(&mut self) {
        self.used = true;
        self.durable = None;
        self.pending.clear();
        self.held.clear();
        self.writing = 0;
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::Wall;
    use conclave_protocol::id::{Incarnation, LinkId, Token};

    use super::*;

    fn envelope(link: u64) -> Envelope<To, Message> {
        Envelope {
            to: To::Link(LinkId(link)),
            message: Message::Draining,
        }
    }

    fn ceiling(token: u64) -> Record {
        Record::Ceiling {
            ceiling: Token(token),
            clock: Wall(0),
        }
    }

    #[test]
    fn messages_wait_for_all_records_before_them() {
        let mut rng = Prng::new(1);
        let mut disk = Disk::default();
        assert!(matches!(disk.start(), Start::Init));
        disk.hold(envelope(1));
        assert_eq!(disk.released(), Some(envelope(1)), "nothing to wait for");
        disk.write([ceiling(1)]);
        disk.hold(envelope(2));
        assert!(disk.sync(100, 0.0, &mut rng).is_some());
        disk.write([ceiling(2), ceiling(3)]);
        disk.hold(envelope(3));
        assert_eq!(disk.released(), None);
        assert_eq!(disk.synced(), 1);
        assert_eq!(disk.released(), Some(envelope(2)));
        assert_eq!(disk.released(), None);
        assert!(disk.sync(100, 0.0, &mut rng).is_some());
        assert_eq!(disk.synced(), 3);
        assert_eq!(disk.released(), Some(envelope(3)));
        assert!(disk.is_idle());
    }

    #[test]
    fn a_crash_keeps_a_first_part_and_a_lost_disk_nothing() {
        let mut kept = [false; 4];
        for seed in 0..100 {
            let mut disk = Disk::default();
            disk.start();
            disk.write([Record::Incarnation(Incarnation(1))]);
            disk.sync(1, 0.0, &mut Prng::new(seed));
            disk.synced();
            disk.serves();
            disk.write((1..=3).map(ceiling));
            disk.hold(envelope(1));
            disk.crash(&mut Prng::new(seed));
            assert_eq!(disk.released(), None);
            let Start::Disk(stored) = disk.start() else {
                panic!("the first write was durable");
            };
            kept[stored.ceiling.0 as usize] = true;
            disk.lose();
            assert!(matches!(disk.start(), Start::Lost));
        }
        assert_eq!(kept, [true; 4]);
    }
}
