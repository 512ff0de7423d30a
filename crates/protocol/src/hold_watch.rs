//! When a command that runs under a lock or a lease is told to end, and when it is killed.
//!
//! The process that guards the command drives this. It knows until when the lock counts from
//! whoever renews it, and goes on counting when that process stands still or is gone.

use std::time::Duration;

use crate::Instant;

/// For so long too little must be left before the command is told.
const LOW: Duration = Duration::from_millis(100);

/// A command has at least so long to die before the lock may be another's.
const MARGIN: Duration = Duration::from_millis(50);

/// How often the clock is looked at, at least: timers stand still while a machine sleeps, the lock
/// does not.
const LOOK: Duration = Duration::from_millis(250);

/// What happens to the command now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It is told to end.
    End,
    /// It is killed, and whatever else it has started meanwhile.
    Kill,
}

/// Watches over a hold for the sake of a command.
#[derive(Debug)]
pub struct HoldWatch {
    /// Until when the lock counts, as last told.
    until: Instant,
    /// How long the command has between being told and being killed: a fifth of the longest time
    /// that was left. A hold that the nodes have not all heard of counts from one heartbeat to the
    /// next; it gets its whole TTL only afterwards.
    grace: Duration,
    /// Since when less than that is left. A hold that moves with a larger token counts for a
    /// round trip by its new nodes' connections alone.
    low: Option<Instant>,
    /// When the command must be dead, once nobody renews the lock any more.
    deadline: Option<Instant>,
    told: bool,
}

impl HoldWatch {
    /// A hold that counts until then.
    pub fn new(now: Instant, until: Instant) -> Self {
        Self {
            until,
            grace: until.since(now) / 5,
            low: None,
            deadline: None,
            told: false,
        }
    }

    /// The lock counts until then.
    pub fn renewed(&mut self, now: Instant, until: Instant) {
        self.until = until;
        self.grace = self.grace.max(until.since(now) / 5);
    }

    /// The lock is lost, before its time perhaps: others may be inside by now, so the command must
    /// not take all the time that it had.
    pub fn lost(&mut self, now: Instant) {
        let deadline = self.until.min(now + self.grace);
        self.deadline.get_or_insert(deadline);
    }

    /// Whoever renewed the lock is gone: nobody gives it away, it runs out.
    pub fn orphaned(&mut self) {
        let deadline = self.last_moment();
        self.deadline.get_or_insert(deadline);
    }

    /// Whether the command was told to end.
    pub fn told(&self) -> bool {
        self.told
    }

    /// What to do with the command now, if anything. It is told once.
    pub fn look(&mut self, now: Instant) -> Option<Order> {
        let left = self.until.since(now);
        self.low = (left <= self.grace).then(|| self.low.unwrap_or(now));
        let low = self
            .low
            .is_some_and(|low| now.since(low) >= self.patience() || now >= self.last_moment());
        if !self.told && (low || self.deadline.is_some()) {
            self.told = true;
            return Some(Order::End);
        }
        let over = match self.deadline {
            Some(deadline) => now >= deadline,
            None => self.told && now >= self.last_moment(),
        };
        over.then_some(Order::Kill)
    }

    /// How long nothing needs to be looked at.
    pub fn pause(&self, now: Instant) -> Duration {
        let next = match (self.deadline, self.low) {
            (Some(deadline), _) => deadline.since(now),
            (None, _) if self.told => self.last_moment().since(now),
            (None, Some(low)) => (low + self.patience()).since(now),
            (None, None) => self.until.since(now).saturating_sub(self.grace),
        };
        next.clamp(Duration::from_millis(1), LOOK)
    }

    /// How long too little may be left before the command is told.
    fn patience(&self) -> Duration {
        LOW.min(self.grace / 4)
    }

    /// When the command is killed at the latest: dying takes its time.
    fn last_moment(&self) -> Instant {
        self.until - (self.grace / 10).max(MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn fresh() -> HoldWatch {
        HoldWatch::new(at(0), at(0) + TTL)
    }

    #[test]
    fn a_command_is_told_when_renewal_fails_and_killed_before_the_lock_can_be_anothers() {
        let mut watch = fresh();
        assert_eq!(watch.look(at(0)), None);
        assert_eq!(watch.look(at(7999)), None);
        assert_eq!(watch.look(at(8000)), None, "it may move");
        assert_eq!(watch.look(at(8100)), Some(Order::End));
        assert_eq!(watch.look(at(9000)), None, "it is told once");
        assert_eq!(watch.look(at(9799)), None, "there is time");
        assert_eq!(watch.look(at(9800)), Some(Order::Kill));
        assert_eq!(watch.look(at(9801)), Some(Order::Kill), "until it is dead");
    }

    #[test]
    fn a_command_is_told_at_once_when_the_lock_is_lost_before_its_time() {
        let mut watch = fresh();
        watch.lost(at(1000));
        assert_eq!(watch.look(at(1000)), Some(Order::End));
        assert_eq!(watch.look(at(2999)), None, "it has a grace");
        assert_eq!(watch.look(at(3000)), Some(Order::Kill));
    }

    #[test]
    fn a_command_without_anybody_who_renews_has_the_time_that_is_left() {
        let mut watch = fresh();
        watch.orphaned();
        assert_eq!(watch.look(at(1000)), Some(Order::End));
        assert_eq!(watch.look(at(9799)), None);
        assert_eq!(watch.look(at(9800)), Some(Order::Kill));
    }

    #[test]
    fn a_command_that_slept_past_the_deadline_is_killed_right_after_it_is_told() {
        for lost in [false, true] {
            let mut watch = fresh();
            assert_eq!(watch.look(at(5000)), None);
            if lost {
                watch.lost(at(60_000));
            }
            assert_eq!(watch.look(at(60_000)), Some(Order::End));
            assert_eq!(watch.look(at(60_001)), Some(Order::Kill));
        }
    }

    #[test]
    fn a_young_hold_counts_from_heartbeat_to_heartbeat() {
        let mut watch = HoldWatch::new(at(0), at(1000));
        assert_eq!(watch.look(at(250)), None);
        watch.renewed(at(300), at(300) + TTL);
        assert_eq!(watch.look(at(8300)), None, "all nodes have heard of it");
        assert_eq!(watch.look(at(8400)), Some(Order::End));
        let mut watch = HoldWatch::new(at(0), at(1000));
        assert_eq!(watch.look(at(800)), None);
        assert_eq!(watch.look(at(850)), Some(Order::End));
    }

    #[test]
    fn a_lock_that_is_renewed_after_all_spares_a_command() {
        let mut watch = fresh();
        assert_eq!(watch.look(at(8000)), None);
        watch.renewed(at(8050), at(18_000));
        assert_eq!(watch.look(at(8200)), None, "it was not even told");
        assert_eq!(watch.look(at(16_000)), None);
        assert_eq!(watch.look(at(16_100)), Some(Order::End));
        watch.renewed(at(17_000), at(27_000));
        assert_eq!(watch.look(at(26_000)), None, "it is not killed");
    }

    #[test]
    fn nothing_is_missed_during_a_pause() {
        let mut watch = fresh();
        let mut now = at(0);
        let mut orders = Vec::new();
        while now < at(12_000) {
            orders.extend(watch.look(now).map(|order| (order, now)));
            now = now + watch.pause(now);
        }
        let told = orders.iter().map(|(order, _)| *order).collect::<Vec<_>>();
        assert_eq!(told[..2], [Order::End, Order::Kill]);
        assert!(orders[1].1 < at(9_950), "{orders:?}");
    }
}
