//! What must be on disk before a message leaves.

use std::collections::VecDeque;
use std::time::Duration;

use super::{LockNode, State};
use crate::id::Token;
use crate::lock::api::{NodeEffects, NodeEvent};
use crate::lock::arbiter::Reserve;
use crate::lock::config::Restart;
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
            Record::Ceiling(ceiling) => {
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
            if self.state == State::Serving {
                self.event(NodeEvent::Serving, out);
            }
        }
    }

    /// The clock, as a token.
    pub(super) fn clock(&self) -> Token {
        Token(self.now.wall.0)
    }

    /// The largest token that could be meant honestly.
    pub(super) fn token_bound(&self) -> Token {
        let known = self.clock().max(self.disk.ceiling);
        let ahead = crate::time::micros_of(self.config.times.token_ahead);
        Token(known.0.saturating_add(ahead))
    }

    pub(super) fn reserve(&self) -> Reserve {
        let times = &self.config.times;
        Reserve {
            reach: Token(self.now.wall.plus(times.lead).0),
            margin: times.reserve,
            ceiling: self.disk.ceiling_synced,
        }
    }

    /// Makes sure that a limit told to `peer` is covered by the ceiling on disk, and keeps the
    /// ceiling ahead of the need so that this seldom waits.
    pub(super) fn cover(&mut self, peer: u32, limit: Token, out: &mut NodeEffects) {
        let step = crate::time::micros_of(self.config.times.ceiling_step);
        let reach = Token(self.now.wall.plus(self.config.times.lead).0);
        let soon = Token(reach.0.saturating_add(step / 2));
        if limit > self.disk.ceiling || soon > self.disk.ceiling {
            let next = Token(limit.max(reach).0.saturating_add(step));
            self.persist(Record::Ceiling(next), out);
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
