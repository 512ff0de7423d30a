//! The clocks of a process: one that runs steadily but not quite at the true rate, and one that
//! shows the time of day, wrongly, and may jump.

use conclave_protocol::{Instant, Now, Wall};
use conclave_quorum::Prng;

use crate::fact::True;

/// The time of day, in microseconds, at true time zero.
const EPOCH_MICROS: u64 = 1_000_000_000_000;
/// Parts in which rates are counted.
const PARTS: i128 = 1_000_000_000;

/// Both clocks of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What the steady clock shows at true time zero.
    origin: u64,
    /// By how many billionths the steady clock is fast (or slow, if negative).
    rate: i64,
    /// How far the wall clock is off, in microseconds.
    wall_offset: i64,
}

impl Clock {
    /// Clocks that are right.
    pub fn exact() -> Self {
        Self {
            origin: 0,
            rate: 0,
            wall_offset: 0,
        }
    }

    /// Clocks drawn at random: the rates of any two steady clocks differ by at most `drift_ppm`
    /// millionths; the wall clock is off by at most `skew_micros`.
    pub fn draw(drift_ppm: u32, skew_micros: u64, rng: &mut Prng) -> Self {
        // Each rate lies within half the margin of the true one; a third of them at an edge,
        // where a missing margin shows.
        let half = i64::from(drift_ppm) * 500;
        let rate = match rng.below(6) {
            0 => -half,
            1 => half,
            _ => rng.below(half as usize * 2 + 1) as i64 - half,
        };
        let skew = rng.below(skew_micros as usize * 2 + 1) as i64 - skew_micros as i64;
        Self {
            origin: rng.below(1 << 40) as u64,
            rate,
            wall_offset: skew,
        }
    }

    /// Makes the steady clock faster by so many millionths.
    pub fn hasten(&mut self, ppm: u32) {
        self.rate += i64::from(ppm) * 1000;
    }

    /// The steady clock starts anew, as after the machine was switched off.
    pub fn reboot(&mut self, rng: &mut Prng) {
        self.origin = rng.below(1 << 40) as u64;
    }

    /// Sets how far the wall clock is off.
    pub fn set_wall(&mut self, offset_micros: i64) {
        self.wall_offset = offset_micros;
    }

    /// The wall clock begins in 1970, as on a machine whose battery is empty.
    pub fn begin_in_1970(&mut self, at: True) {
        let shown = EPOCH_MICROS + at.0 / 1000;
        self.wall_offset = -i64::try_from(shown).unwrap_or(i64::MAX);
    }

    /// How far the wall clock is off, in microseconds.
    pub fn wall_offset(&self) -> i64 {
        self.wall_offset
    }

    /// What both clocks say at a true time.
    pub fn now(&self, at: True) -> Now {
        let micros = (EPOCH_MICROS + at.0 / 1000).saturating_add_signed(self.wall_offset);
        Now {
            mono: Instant::from_nanos(self.mono(at.0)),
            wall: Wall(micros),
        }
    }

    fn mono(&self, at: u64) -> u64 {
        if self.rate == 0 {
            return self.origin + at;
        }
        let moved = i128::from(at) * (PARTS + i128::from(self.rate)) / PARTS;
        self.origin + moved as u64
    }

    /// The first true time at which the steady clock shows `own` or more; the far future for
    /// [`Instant::FAR`].
    pub fn true_at(&self, own: Instant) -> True {
        if own == Instant::FAR {
            return True(u64::MAX);
        }
        let moved = own.nanos().saturating_sub(self.origin);
        if self.rate == 0 {
            return True(moved);
        }
        let parts = PARTS + i128::from(self.rate);
        let at = (i128::from(moved) * PARTS + parts - 1) / parts;
        True(u64::try_from(at).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conclave_protocol::lock::Times;

    use super::*;

    #[test]
    fn a_wake_comes_at_the_first_moment_it_is_due() {
        let mut rng = Prng::new(1);
        for _ in 0..2000 {
            let clock = Clock::draw(5_000, 0, &mut rng);
            let own = clock.now(True(rng.below(1 << 40) as u64)).mono;
            let at = clock.true_at(own);
            assert!(clock.now(at).mono >= own);
            assert!(at.0 == 0 || clock.now(True(at.0 - 1)).mono < own);
        }
    }

    /// A span that a client counts shrunk ends before the same span at any node.
    #[test]
    fn the_margin_covers_every_pair_of_rates() {
        let mut rng = Prng::new(2);
        let times = Times::default();
        let span = Duration::from_mins(1);
        for _ in 0..2000 {
            let client = Clock::draw(times.drift_ppm, 0, &mut rng);
            let node = Clock::draw(times.drift_ppm, 0, &mut rng);
            let start = True(rng.below(1 << 40) as u64);
            let ends = client.true_at(client.now(start).mono + times.shrink(span));
            let expires = node.true_at(node.now(start).mono + span);
            assert!(ends <= expires, "{ends:?} {expires:?}");
        }
    }

    #[test]
    fn the_wall_clock_jumps_and_the_steady_one_does_not() {
        let mut clock = Clock::exact();
        let before = clock.now(True(5_000));
        clock.set_wall(-3);
        let after = clock.now(True(5_000));
        assert_eq!(before.mono, after.mono);
        assert_eq!(before.wall.0 - 3, after.wall.0);
    }
}
