//! How long a contender waits between two attempts.

use std::time::Duration;

use conclave_quorum::Prng;

use super::config::Backoff;

/// No wait grows to more than so many times its floor.
const GROWTH_MAX: f64 = 1e6;

impl Backoff {
    /// By how much the longest wait after so many failures exceeds the floor.
    pub fn growth(self, failures: u32) -> f64 {
        let growth = match self {
            Self::Exponential { cap } => 2f64.powf(f64::from(failures.min(cap))),
            Self::Polynomial { power, cap } => (1.0 + f64::from(failures.min(cap))).powf(power),
        };
        // A power from outside may be anything.
        if growth.is_nan() {
            return 1.0;
        }
        growth.clamp(1.0, GROWTH_MAX)
    }

    /// A wait drawn evenly between the floor and the limit after so many failures.
    pub fn draw(self, floor: Duration, failures: u32, rng: &mut Prng) -> Duration {
        let factor = 1.0 + rng.unit() * (self.growth(failures) - 1.0);
        Duration::try_from_secs_f64(floor.as_secs_f64() * factor).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_as_named_and_stop_at_the_cap() {
        let exponential = Backoff::Exponential { cap: 12 };
        assert_eq!(exponential.growth(1), 2.0);
        assert_eq!(exponential.growth(10), 1024.0);
        assert_eq!(exponential.growth(40), 4096.0);
        let square = Backoff::Polynomial { power: 2.0, cap: 9 };
        assert_eq!(square.growth(3), 16.0);
        assert_eq!(square.growth(1000), 100.0);
    }

    #[test]
    fn any_power_gives_a_wait_within_bounds() {
        let mut rng = Prng::new(1);
        let floor = Duration::from_millis(100);
        for power in [f64::NAN, f64::INFINITY, -f64::INFINITY, -3.0, 0.0, 1e300] {
            let backoff = Backoff::Polynomial { power, cap: 64 };
            for failures in [0, 1, 7, u32::MAX] {
                let wait = backoff.draw(floor, failures, &mut rng);
                assert!(wait >= floor && wait <= floor * 1_000_001, "{power}");
            }
        }
    }

    #[test]
    fn waits_are_spread_evenly() {
        let mut rng = Prng::new(2);
        let backoff = Backoff::Exponential { cap: 12 };
        let floor = Duration::from_secs(1);
        let waits: Vec<f64> = (0..4000)
            .map(|_| backoff.draw(floor, 2, &mut rng).as_secs_f64())
            .collect();
        let mean = waits.iter().sum::<f64>() / 4000.0;
        assert!((mean - 2.5).abs() < 0.1, "{mean}");
        assert!(waits.iter().all(|wait| (1.0..=4.0).contains(wait)));
    }
}
