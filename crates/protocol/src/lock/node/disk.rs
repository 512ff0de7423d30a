//! What must be on disk before a message leaves.

use std::collections::VecDeque;
use std::time::Duration;

use super::{LockNode, State};
use crate::id::Token;
use crate::lock::api::{NodeEffects, NodeEvent};
use crate::lock::arbiter::Reserve;
use crate::lock::config::Restart;
use crate::lock::plant::Plant;
use crate::lock::record::Record;

/// What was written and what is known to be on disk.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    restart: Restart,
    written: u64,
    synced: u64,
    /// The last ceiling written.
    ceiling: Token,
    /// The last ceiling known to be on disk.
    ceiling_synced: Token,
    ceilings: VecDeque<(u64, Token)>,
    /// The last longest TTL written, and in which record.
    pub(super) longest_ttl: Duration,
    ttl_record: u64,
}

impl Disk {
    pub(super) fn new(restart: Restart, ceiling: Token, longest_ttl: Duration) -> Self {
        Self {
            restart,
            written: 0,
            synced: 0,
            ceiling,
            ceiling_synced: ceiling,
            ceilings: VecDeque::new(),
            longest_ttl,
            ttl_record: 0,
        }
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn ceiling(&self) -> Token {
        self.ceiling
    }

    /// Whether a message must wait that depends on this many records.
    pub(super) fn must_wait(&self, records: u64) -> bool {
        let needed = match self.restart {
            Restart::Pause => records,
            // Any message may tell of a grant.
            Restart::Durable => self.written,
        };
        needed > self.synced
    }

    pub(super) fn write(&mut self, record: &Record) {
        self.written += 1;
        match record {
            Record::Ceiling { ceiling, .. } => {
                self.ceiling = *ceiling;
                self.ceilings.push_back((self.written, *ceiling));
            }
            Record::LongestTtl(ttl) => {
                self.longest_ttl = *ttl;
                self.ttl_record = self.written;
            }
            _ => {}
        }
    }

    pub(super) fn synced(&mut self, records: u64) {
        self.synced = self.synced.max(records.min(self.written));
        while let Some((record, ceiling)) = self.ceilings.front().copied() {
            if record > self.synced {
                break;
            }
            self.ceiling_synced = ceiling;
            self.ceilings.pop_front();
        }
    }
}

impl LockNode {
    /// Whether it waits for the first records of a life: no message may be given to it.
    pub fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting { .. })
    }

    pub(super) fn durable(&mut self, records: u64, out: &mut NodeEffects) {
        self.disk.synced(records);
        if let State::Starting { then, records } = &self.state
            && self.disk.synced >= *records
        {
            self.state = (**then).clone();
            self.announce_life(out);
            self.begin_telling(out);
            if self.state == State::Serving {
                self.event(NodeEvent::Serving, out);
            }
        }
    }

    /// How far a node reserves tokens ahead of need.
    fn reach(&self) -> Token {
        Token(self.token_clock().plus(self.config.times.lead).0)
    }

    pub(super) fn reserve(&self) -> Reserve {
        let uncapped = self.config.rules.has(Plant::ReserveUncapped);
        Reserve {
            reach: self.reach(),
            margin: self.config.times.reserve,
            ceiling: self.disk.ceiling_synced,
            bound: if uncapped {
                Token(u64::MAX)
            } else {
                self.token_bound()
            },
        }
    }

    /// Writes a ceiling that covers `limit`, and the clock that bounds it: whoever starts from
    /// this record has a clock that leaves room for every token below the ceiling.
    pub(super) fn write_ceiling(&mut self, least: Token, out: &mut NodeEffects) {
        let clock = self.clock_for_disk();
        let bound = Token(clock.0.saturating_add(self.token_ahead()));
        let step = crate::time::micros_of(self.config.times.ceiling_step);
        let ceiling = Token(least.0.saturating_add(step)).min(bound).max(least);
        self.persist(Record::Ceiling { ceiling, clock }, out);
    }

    /// Makes sure that a limit told to `peer` is covered by the ceiling on disk, and keeps the
    /// ceiling ahead of the need so that this seldom waits.
    pub(super) fn cover(&mut self, peer: u32, limit: Token, out: &mut NodeEffects) {
        let step = crate::time::micros_of(self.config.times.ceiling_step);
        let reach = self.reach();
        let soon = Token(reach.0.saturating_add(step / 2));
        if limit > self.disk.ceiling || soon > self.disk.ceiling {
            self.write_ceiling(limit.max(reach), out);
        }
        if limit > self.disk.ceiling_synced
            && let Some(peer) = self.peers.get_mut(peer)
        {
            peer.hold = self.disk.written;
        }
    }

    /// Makes sure that the longest TTL on disk covers a session of `peer`.
    pub(super) fn cover_ttl(&mut self, peer: u32, ttl: Duration, out: &mut NodeEffects) {
        if self.config.gate.is_some() {
            // No pause after a crash rests on it.
            return;
        }
        if ttl > self.disk.longest_ttl {
            self.persist(Record::LongestTtl(ttl), out);
        }
        // The write may be under way for another session: what this one causes waits too.
        if let Some(peer) = self.peers.get_mut(peer)
            && self.disk.ttl_record > self.disk.synced
        {
            peer.hold = self.disk.written;
        }
    }
}
