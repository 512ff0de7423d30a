//! A timer on the clock of the machines: it goes on counting while the machine sleeps.

use std::task::{Context, Poll};

use conclave_protocol::Instant;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use steady::Timer;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use usual::Timer;

/// A wake-up later than this is as good as none: the timer is set again when it comes.
const FAR_NANOS: u64 = 1 << 62;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod steady {
    use rustix::fd::OwnedFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::{Context, FAR_NANOS, Instant, Poll, usual};

    /// A timer of the system, or tokio's where the system has none to give.
    #[derive(Debug)]
    pub(crate) enum Timer {
        System(AsyncFd<OwnedFd>),
        Usual(usual::Timer),
    }

    impl Timer {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that are not their descriptor's owner"
        )]
        pub(crate) fn new() -> Self {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let made = timerfd_create(TimerfdClockId::Boottime, flags)
                .map_err(std::io::Error::from)
                .and_then(|fd| AsyncFd::with_interest(fd, Interest::READABLE));
            match made {
                Ok(fd) => Self::System(fd),
                Err(error) => {
                    tracing::warn!(%error, "no timer of the system; sleep is not counted");
                    Self::Usual(usual::Timer::new())
                }
            }
        }

        /// Sets it to this time, from any thread. `true` if its task must be polled to notice.
        pub(crate) fn arm(&self, at: Instant) -> bool {
            let fd = match self {
                Self::System(fd) => fd,
                Self::Usual(timer) => return timer.arm(at),
            };
            // Zero would disarm it.
            let nanos = at.nanos().clamp(1, FAR_NANOS);
            let value = Timespec {
                tv_sec: (nanos / 1_000_000_000) as _,
                tv_nsec: (nanos % 1_000_000_000) as _,
            };
            let zero = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let time = Itimerspec {
                it_interval: zero,
                it_value: value,
            };
            if let Err(error) = timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &time) {
                tracing::error!(%error, "a timer was refused");
            }
            false
        }

        /// Ready when it has rung since the last call.
        pub(crate) fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
            match self {
                Self::System(fd) => match fd.poll_read_ready(cx) {
                    Poll::Ready(Ok(mut ready)) => {
                        // Setting it again clears it; what is read from it says nothing more.
                        ready.clear_ready();
                        Poll::Ready(())
                    }
                    Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
                },
                Self::Usual(timer) => timer.poll_rung(cx),
            }
        }
    }
}

mod usual {
    use std::pin::Pin;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use tokio::time::Sleep;

    use super::{Context, FAR_NANOS, Instant, Poll};

    /// Tokio's timer, to the millisecond.
    #[derive(Debug)]
    pub(crate) struct Timer(Mutex<(Instant, Option<Pin<Box<Sleep>>>)>);

    impl Timer {
        pub(crate) fn new() -> Self {
            Self(Mutex::new((Instant::FAR, None)))
        }

        pub(crate) fn arm(&self, at: Instant) -> bool {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (at, None);
            true
        }

        pub(crate) fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (at, sleep) = &mut *inner;
            if at.nanos() >= FAR_NANOS {
                return Poll::Pending;
            }
            let sleep = sleep.get_or_insert_with(|| {
                let left = at.since(crate::clock::now().mono);
                Box::pin(tokio::time::sleep(left.min(Duration::from_hours(1))))
            });
            let rung = sleep.as_mut().poll(cx);
            if rung.is_ready() {
                *inner = (Instant::FAR, None);
            }
            rung
        }
    }
}
