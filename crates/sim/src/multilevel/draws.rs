//! Times drawn at random: whole units, at least one.

use conclave_quorum::Prng;

/// How many equally likely values stand for a distribution.
const VALUES: usize = 4096;

/// A normal distribution, rounded to whole units and clipped at one: as many values as fit in a
/// cache, all equally likely, so that a draw is one look.
#[derive(Clone, Debug)]
pub(super) struct Normal {
    values: Box<[u32]>,
}

impl Normal {
    pub(super) fn new(mean: f64, deviation: f64) -> Self {
        let value = |place: usize| {
            let at = (place as f64 + 0.5) / VALUES as f64;
            (mean + deviation * quantile(at)).round().max(1.0) as u32
        };
        Self {
            values: (0..VALUES).map(value).collect(),
        }
    }

    /// The value that belongs to these random bits.
    pub(super) fn at(&self, bits: u64) -> u64 {
        u64::from(self.values[bits as usize % VALUES])
    }

    /// A value drawn at random.
    pub(super) fn draw(&self, rng: &mut Prng) -> u64 {
        self.at(rng.next_u64())
    }
}

/// Random bits of two nodes, whichever is named first.
pub(super) fn pair_bits(seed: u64, one: u32, other: u32) -> u64 {
    let (low, high) = (one.min(other), one.max(other));
    let mut bits = seed ^ (u64::from(high) << 32 | u64::from(low));
    // The finisher of SplitMix64: every bit of the pair moves every bit of the result.
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A time with an exponential distribution of this mean.
pub(super) fn exponential(mean: f64, rng: &mut Prng) -> u64 {
    let drawn = -(1.0 - rng.unit()).ln() * mean;
    (drawn.round() as u64).max(1)
}

/// The standard normal distribution's quantile, by bisection of its distribution function.
fn quantile(at: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if below(middle) < at {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The standard normal distribution function, to seven digits (Zelen and Severo).
fn below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let series = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = density * series;
    if x > 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_variance_are_those_asked_for() {
        let normal = Normal::new(12.0, 6f64.sqrt());
        let values = normal.values.iter().map(|value| f64::from(*value));
        let count = values.len() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 12.0).abs() < 0.01, "{mean}");
        // Rounding adds a twelfth.
        assert!((variance - 6.08).abs() < 0.1, "{variance}");
        assert_eq!(Normal::new(1.0, 5.0).at(0), 1);
    }

    #[test]
    fn pairs_have_one_time_in_both_directions() {
        let normal = Normal::new(12.0, 6f64.sqrt());
        let mut sum = 0;
        for one in 0..100 {
            for other in 0..100 {
                let bits = pair_bits(5, one, other);
                assert_eq!(bits, pair_bits(5, other, one));
                sum += normal.at(bits);
            }
        }
        assert!((sum as f64 / 1e4 - 12.0).abs() < 0.2);
    }
}
