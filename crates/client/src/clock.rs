//! The clocks of this process.

use conclave_protocol::{Instant, Now, Wall};
use rustix::time::{ClockId, clock_gettime};

/// What both clocks say now. The steady one counts the time in which the machine slept, and is the
/// same for all processes of one machine.
pub fn now() -> Now {
    Now {
        mono: steady(),
        wall: Wall(nanos(ClockId::Realtime) / 1000),
    }
}

/// The same for machines that never look at the wall clock, such as the client's.
pub(crate) fn steady_now() -> Now {
    Now {
        mono: steady(),
        wall: Wall(0),
    }
}

/// What the steady clock says now.
pub(crate) fn steady() -> Instant {
    Instant::from_nanos(nanos(STEADY))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const STEADY: ClockId = ClockId::Monotonic;

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
