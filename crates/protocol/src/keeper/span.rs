//! How long the votes last that a node may have given, so that it knows after a restart how long
//! to give none.
//!
//! Lengths count in steps, each twice as long as the one before. A longer step is on disk before
//! its first vote leaves; a shorter one is written a while after the longer votes have lapsed.

use std::time::Duration;

use crate::time::{Instant, Wake};

/// The shortest step, for the votes under which objects are ordered: always counted with, so that
/// an idle node need not write anything before its next vote.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);
const STEPS: usize = 20;
/// Longer votes are counted with for this much longer than they last.
const LINGER: Duration = Duration::from_mins(1);

/// The lengths of a node's votes.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    /// What is on disk, or on its way there.
    longest: Duration,
    /// Until when votes of each step are counted with.
    until: [Option<Instant>; STEPS],
}

/// The length of a step. Nothing is longer than the last one: that is twelve days.
fn length(step: usize) -> Duration {
    SHORTEST.saturating_mul(1 << step)
}

/// The step that covers a length.
fn step_of(lasts: Duration) -> usize {
    (0..STEPS)
        .find(|step| length(*step) >= lasts)
        .unwrap_or(STEPS - 1)
}

impl Spans {
    /// After a start: votes of up to this length may be outstanding until `opens`.
    pub(super) fn new(longest: Duration, opens: Instant) -> Self {
        let mut spans = Self {
            longest: longest.max(SHORTEST),
            until: [None; STEPS],
        };
        spans.until[step_of(longest)] = Some(opens);
        spans
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// A vote was given that lasts this long. What must be on disk before it leaves, if anything.
    pub(super) fn voted(&mut self, now: Instant, lasts: Duration) -> Option<Duration> {
        let step = step_of(lasts);
        let covers = length(step).max(lasts);
        self.until[step] = Some(now + covers + LINGER);
        if covers <= self.longest {
            return None;
        }
        self.longest = covers;
        Some(covers)
    }

    /// The longest votes that may still be outstanding, if they are shorter ones now.
    pub(super) fn lapsed(&mut self, now: Instant) -> Option<Duration> {
        for until in &mut self.until {
            until.take_if(|until| *until < now);
        }
        let step = self.until.iter().rposition(Option::is_some);
        let longest = length(step.unwrap_or(0));
        if longest >= self.longest {
            return None;
        }
        self.longest = longest;
        Some(longest)
    }

    /// When there may be shorter ones only.
    pub(super) fn next_wake(&self) -> Option<Wake> {
        let step = self.until.iter().rposition(Option::is_some)?;
        let at = self.until[step]? + Duration::from_millis(1);
        (self.longest > SHORTEST).then_some(Wake {
            at,
            reason: "the longest votes have lapsed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn longer_votes_are_written_before_and_shorter_ones_after() {
        let mut spans = Spans::new(Duration::ZERO, Instant::ZERO);
        assert_eq!(spans.longest(), SHORTEST);
        assert_eq!(spans.voted(at(1), Duration::from_millis(600)), None);
        let five = Duration::from_secs(5);
        assert_eq!(spans.voted(at(1), five), Some(Duration::from_secs(8)));
        assert_eq!(spans.voted(at(2), five), None);
        assert_eq!(spans.lapsed(at(7)), None);
        assert!(spans.next_wake().is_some());
        assert_eq!(spans.lapsed(at(71)), Some(SHORTEST));
        assert_eq!(spans.next_wake(), None);
    }

    #[test]
    fn what_a_life_before_may_have_voted_for_counts_until_votes_are_given_again() {
        let minute = Duration::from_mins(1);
        let mut spans = Spans::new(minute, at(64));
        assert_eq!(spans.lapsed(at(64)), None);
        assert_eq!(spans.voted(at(64), Duration::from_millis(600)), None);
        assert_eq!(spans.lapsed(at(65)), Some(SHORTEST));
    }
}
