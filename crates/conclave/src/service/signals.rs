//! Signals to this process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask to stop.
pub(crate) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    /// Takes these signals from now on.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.hangup.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// The exit code of a process that a signal ended, as shells tell it.
pub(crate) fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(255)
}
