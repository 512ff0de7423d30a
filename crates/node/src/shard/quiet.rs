//! Lines about peers in the log, not more than a few per second.

use std::time::Duration;

use conclave_protocol::Instant;

/// So many lines per second.
const LINES: u32 = 10;

/// Keeps a peer that misbehaves from filling the log.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    since: Instant,
    lines: u32,
    hidden: u64,
}

impl Quiet {
    /// Whether one more line may be written.
    pub(super) fn may_speak(&mut self, now: Instant) -> bool {
        if self.since + Duration::from_secs(1) <= now || now < self.since {
            if self.hidden > 0 {
                tracing::warn!(lines = self.hidden, "more of the same was not logged");
            }
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
        self.lines += 1;
        let may = self.lines <= LINES;
        self.hidden += u64::from(!may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_a_second_later_heard_again() {
        let mut quiet = Quiet::default();
        let at = Instant::from_nanos(5_000_000_000);
        let spoken = (0..100).filter(|_| quiet.may_speak(at)).count();
        assert_eq!(spoken, LINES as usize);
        assert!(quiet.may_speak(at + Duration::from_secs(1)));
        assert!(quiet.may_speak(Instant::ZERO), "a clock that went back");
    }
}
