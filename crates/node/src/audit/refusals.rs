//! Refusals, summed up per source and reason, so that whoever is refused cannot fill the log.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use jiff::Timestamp;

/// So many refusals of one source for one reason are written whole in a window; more are counted.
const WHOLE_MAX: u64 = 5;
/// Sources and reasons that are told apart in a window.
const KEYS_MAX: usize = 1_024;

/// Who is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A machine; of IPv6 the network, whose addresses are free to take.
    Address(IpAddr),
    /// Somebody who showed who they are.
    Principal(Arc<str>),
    /// Everyone beyond those that are told apart.
    Others,
}

impl Source {
    /// The machine behind an address.
    pub(super) fn address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// What was not written whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) source: Source,
    pub(super) reason: &'static str,
    pub(super) count: u64,
    /// When the first of them was.
    pub(super) since: Timestamp,
}

#[derive(Debug, Default)]
struct Count {
    whole: u64,
    summed: u64,
    since: Timestamp,
}

/// The refusals of a window.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: HashMap<(Source, &'static str), Count>,
}

impl Refusals {
    /// Counts a refusal; says whether it is to be written whole.
    pub(super) fn note(&mut self, source: Source, reason: &'static str, now: Timestamp) -> bool {
        let mut key = (source, reason);
        if self.counts.len() >= KEYS_MAX && !self.counts.contains_key(&key) {
            key.0 = Source::Others;
        }
        let others = key.0 == Source::Others;
        let count = self.counts.entry(key).or_default();
        if count.whole < WHOLE_MAX && !others {
            count.whole += 1;
            return true;
        }
        if count.summed == 0 {
            count.since = now;
        }
        count.summed += 1;
        false
    }

    /// Ends the window: what was counted in it.
    pub(super) fn take(&mut self) -> Vec<Sum> {
        let counts = std::mem::take(&mut self.counts).into_iter();
        let summed = counts.filter(|(_, count)| count.summed > 0);
        summed
            .map(|((source, reason), count)| Sum {
                source,
                reason,
                count: count.summed,
                since: count.since,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_sources_are_told_apart_up_to_a_bound_and_none_is_forgotten() {
        let mut refusals = Refusals::default();
        let now = Timestamp::now();
        let (mut whole, mut noted) = (0, 0);
        for number in 0..3_000_u32 {
            for _ in 0..7 {
                let source = Source::address(IpAddr::V4(number.into()));
                whole += u64::from(refusals.note(source, "unauthenticated", now));
                noted += 1;
            }
        }
        let sums = refusals.take();
        assert_eq!(whole, WHOLE_MAX * KEYS_MAX as u64);
        assert_eq!(sums.len(), KEYS_MAX + 1);
        let summed: u64 = sums.iter().map(|sum| sum.count).sum();
        assert_eq!(whole + summed, noted);
        assert!(refusals.take().is_empty(), "the window is over");
    }

    #[test]
    fn a_machine_is_one_source_however_it_writes_its_address() {
        let source = |text: &str| Source::address(text.parse().unwrap());
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}
