//! Chance as an argument: a named generator with a seed, so that a run is a function of its inputs.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A seeded pseudo-random generator (xoshiro256++). The same seed gives the same numbers in every
/// version of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prng(Xoshiro256PlusPlus);

impl Prng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`; `0` when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * bound as u128;
        (wide >> 64) as usize
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `true` with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Puts the slice in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// An index drawn with probability proportional to its weight; `None` if all weights are 0.
    pub fn weighted(&mut self, weights: &[f64]) -> Option<usize> {
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return None;
        }
        let mut rest = self.unit() * total;
        for (index, weight) in weights.iter().enumerate() {
            rest -= weight;
            if rest < 0.0 && *weight > 0.0 {
                return Some(index);
            }
        }
        weights.iter().rposition(|weight| *weight > 0.0)
    }

    /// Indices of a set in which index `i` is with probability `marginals[i]` (each in `0..=1`),
    /// and whose size is the sum of the marginals whenever that sum is whole (systematic
    /// sampling over a random order).
    pub fn with_marginals(&mut self, marginals: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..marginals.len()).collect();
        self.shuffle(&mut order);
        let mut edge = self.unit();
        let mut total = 0.0;
        let mut chosen = Vec::new();
        for index in order {
            total += marginals[index];
            // The tolerance keeps a sum that is whole but for rounding from losing its last member.
            if total > edge + 1e-12 {
                chosen.push(index);
                edge += 1.0;
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_its_numbers() {
        let mut prng = Prng::new(7);
        let first: Vec<usize> = (0..6).map(|_| prng.below(100)).collect();
        let mut again = Prng::new(7);
        assert_eq!(first, (0..6).map(|_| again.below(100)).collect::<Vec<_>>());
        assert_ne!(first, {
            let mut other = Prng::new(8);
            (0..6).map(|_| other.below(100)).collect::<Vec<_>>()
        });
    }

    #[test]
    fn marginals_are_met_and_the_size_is_constant() {
        let marginals = [0.9, 0.6, 0.5, 0.4, 0.3, 0.3];
        let mut prng = Prng::new(1);
        let mut seen = [0u32; 6];
        for _ in 0..40_000 {
            let chosen = prng.with_marginals(&marginals);
            assert_eq!(chosen.len(), 3);
            for index in chosen {
                seen[index] += 1;
            }
        }
        for (count, marginal) in seen.iter().zip(marginals) {
            assert!((f64::from(*count) / 40_000.0 - marginal).abs() < 0.02);
        }
    }
}
