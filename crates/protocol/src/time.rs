//! Time as an argument: every step of a machine is told what its process's clocks say.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A reading of a process's steady clock, in nanoseconds since some start. Steady clocks of
/// different processes share a rate (within the drift margin), never an origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's start.
    pub const ZERO: Self = Self(0);
    /// Later than every real reading.
    pub const FAR: Self = Self(u64::MAX);

    /// The reading of this many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if it lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos_of(span)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos_of(span)))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.6}s", self.0 as f64 / 1e9)
    }
}

/// A reading of the wall clock, in microseconds. It may jump; tokens and priorities take it as a
/// hint for speed and fairness, never for safety.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

impl Wall {
    /// This reading plus a span.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(span)))
    }
}

/// What both clocks of a process say at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// The steady clock: leases and timers.
    pub mono: Instant,
    /// The wall clock: tokens and priorities.
    pub wall: Wall,
}

/// When a machine wants to be woken, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// No later than this.
    pub at: Instant,
    /// What is due then, for logs and traces.
    pub reason: &'static str,
}

/// Whole nanoseconds of a span, capped.
pub(crate) fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole microseconds of a span, capped.
pub(crate) fn micros_of(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
