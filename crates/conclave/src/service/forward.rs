//! Signals that `lock` passes on to its command.

use std::fs::File;
use std::io;
use std::task::Poll;

use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that are passed on.
const PASSED: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::WINCH,
];

/// Those that the terminal sends to its whole foreground group.
const OF_THE_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::WINCH];

/// Those that end whoever waits for a lock.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals to this process.
pub(crate) struct Signals {
    all: Vec<(Signal, unix::Signal)>,
    terminal: Option<File>,
}

impl Signals {
    /// Takes the signals from now on.
    pub(crate) fn new() -> io::Result<Self> {
        let take = |one: Signal| Ok((one, signal(SignalKind::from_raw(one.as_raw()))?));
        Ok(Self {
            all: PASSED.into_iter().map(take).collect::<io::Result<_>>()?,
            terminal: File::open("/dev/tty").ok(),
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (one, stream) in &mut self.all {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*one);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks to stop.
    pub(crate) async fn stop(&mut self) -> Signal {
        loop {
            let one = self.next().await;
            if ENDING.contains(&one) {
                return one;
            }
        }
    }

    /// Whether the command shall lead a group of its own. Below a terminal it stays in ours, for
    /// the terminal knows one foreground group; elsewhere its whole group is told and killed.
    pub(crate) fn apart(&self) -> bool {
        self.terminal.is_none()
    }

    /// Whether the terminal has sent a signal to the command as well.
    pub(crate) fn reached_all(&self, signal: Signal) -> bool {
        let foreground = self.terminal.as_ref().and_then(|tty| tcgetpgrp(tty).ok());
        OF_THE_TERMINAL.contains(&signal) && foreground == Some(getpgrp())
    }
}
