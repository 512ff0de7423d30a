//! Holders who do not know that their handle has run out: they show it again, through several
//! gateways at once. Whoever is told that the lock is still held goes on as if nothing had been.

use conclave_protocol::id::Key;
use conclave_protocol::lock::Handle;

use super::holds::{Do, Phase};
use super::{Event, World};
use crate::fact::{Fact, True};
use crate::net::exponential;

/// How often a handle that ran out is shown.
const TRIES: usize = 6;
/// The mean nanoseconds between two of them.
const APART: u64 = 10_000_000;

impl World<'_> {
    /// A hold has just been lost because its handle ran out: sometimes its holder tries to renew
    /// it all the same. It waits as a new wish would, and is inside again only by a node's word.
    pub(super) fn try_overdue(&mut self, key: Key) -> bool {
        let share = self.options.overdue;
        if share <= 0.0 || self.healed || !self.workload.rng().chance(share) {
            return false;
        }
        let Some(mut hold) = self.holds.take(key) else {
            return false;
        };
        for lock in &mut hold.locks {
            lock.phase = Phase::Waiting;
            lock.group = None;
            lock.stamp = self.meter.asked(self.now, lock.name, false);
        }
        let mut ttl = 0;
        if let Some(detached) = &mut hold.detached {
            detached.old = None;
            detached.until = 0;
            let handle = detached.handle.as_ref();
            ttl = handle.map_or(0, |handle| handle.ttl.as_nanos() as u64);
        }
        let key = self.holds.insert(hold);
        if self.watched {
            self.tell_each(key, |holder| Fact::Asked { holder });
        }
        let mut nanos = exponential(ttl / 2, self.workload.rng());
        for _ in 0..TRIES {
            self.queue.push_in(nanos, Event::Hold(key, Do::Retry));
            nanos += exponential(APART, self.workload.rng());
        }
        let leave = self.now + nanos + 2 * ttl;
        self.queue.push(True(leave), Event::Hold(key, Do::Leave));
        true
    }

    /// Shows the handle once more, unless an earlier try got through.
    pub(super) fn retry_overdue(&mut self, key: Key) {
        let Some(hold) = self.holds.get(key).filter(|hold| hold.is_overdue()) else {
            return;
        };
        let handle = hold.detached.as_ref().and_then(|d| d.handle.clone());
        if let Some(handle) = handle {
            self.operate(key, handle, true, false);
        }
    }

    /// The nodes say that the lock was held all the time.
    pub(super) fn back_inside(&mut self, key: Key, handle: Box<Handle>, until: u64) {
        let name = handle.ask.name.clone();
        let members = super::holds::members_of(&handle);
        let token = handle.token;
        self.set_handle(key, handle, until);
        self.entered(key, &name, token, members);
        self.schedule_keep(key);
    }
}
