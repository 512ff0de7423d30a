//! Commands that must not outlive a lock or a lease.
//!
//! Three processes: the holder renews the lock and says until when it counts, the guard starts the
//! command and ends it in time, and the command. A holder that is stopped or killed therefore does
//! not leave its command running when the lock is another's. The guard ends whatever the command
//! has started, too.

mod exec;
mod line;
mod process;
mod tree;

use std::ffi::OsString;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use conclave_client::clock;
use rustix::process::getpgrp;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::forward::Signals;
use super::signals::code_of_signal;
use crate::cli::Failure;
use line::{Ending, Word};

pub(crate) use exec::{ExecGuarded, end_with};
pub(crate) use process::GuardCommand;

/// How often the guard hears how long the lock counts, at least.
const TELL: Duration = Duration::from_millis(250);

/// A command under a guard.
#[derive(Debug)]
pub(super) struct Guarded {
    guard: Child,
    line: UnixStream,
}

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    status: ExitStatus,
    /// It was told to, for the sake of the lock.
    pub(super) told: bool,
}

impl Guarded {
    /// Starts a command with these variables; what it may use is held for `left`.
    pub(super) async fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        signals: &Signals,
        left: Duration,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::Failed(format!("cannot start the command: {error}"));
        tree::adopt_orphans().map_err(failed)?;
        let (ours, theirs) = Socket::pair().map_err(failed)?;
        let mut guard = Command::new(std::env::current_exe().map_err(failed)?);
        guard.arg("guard-command");
        if !signals.apart() {
            // The terminal knows one foreground group: the command stays in it.
            let group = getpgrp().as_raw_nonzero();
            guard.args(["--group", &group.to_string()]);
        }
        guard.arg("--").args(command);
        guard.envs(variables.iter().map(|(name, value)| (name, value)));
        // In a group of its own it is not stopped from the keyboard, and goes on to count.
        guard.process_group(0).stdin(OwnedFd::from(theirs));
        let guard = guard.spawn().map_err(failed)?;
        line::send_stdin(&ours).map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let line = UnixStream::from_std(ours).map_err(failed)?;
        let mut guarded = Self { guard, line };
        guarded.tell(left).await;
        Ok(guarded)
    }

    /// Waits for the end of the command. `left` says how long the lock still counts, `lost` ends
    /// when it is lost.
    pub(super) async fn ended(
        mut self,
        left: impl Fn() -> Duration,
        lost: impl Future<Output = ()>,
        signals: &mut Signals,
    ) -> Result<Ended, Failure> {
        let mut lost = std::pin::pin!(lost);
        let mut is_lost = false;
        let mut ending = Vec::new();
        loop {
            if !is_lost {
                self.tell(left()).await;
            }
            let pause = (left() / 8).clamp(Duration::from_millis(5), TELL);
            tokio::select! {
                biased;
                () = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.say(Word::Lost).await;
                }
                more = line::read_ending(&mut self.line, &mut ending) => {
                    if !more {
                        break;
                    }
                }
                signal = signals.next() => {
                    if !signals.reached_all(signal) {
                        self.say(Word::Signal(signal.as_raw())).await;
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
        let guard = self.guard.wait().await?;
        let Some(ending) = Ending::read(&ending) else {
            // Somebody killed the guard: what it guarded is ours now, and nobody counts for it.
            tree::kill_all();
            return Err(Failure::Lost(format!(
                "the process that guards the command ended ({}), so the command was killed",
                super::members::ended(guard)
            )));
        };
        Ok(Ended {
            status: ExitStatus::from_raw(ending.status),
            told: ending.told,
        })
    }

    async fn tell(&mut self, left: Duration) {
        self.say(Word::Until(clock::now().mono + left)).await;
    }

    /// A guard that is gone has said how the command ended; that is read next.
    async fn say(&mut self, word: Word) {
        let _ = self.line.write_all(&word.bytes()).await;
    }
}

impl Ended {
    /// The end of the command as the end of this process.
    pub(super) fn result(self) -> Result<(), Failure> {
        match code(self.status) {
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    /// How the command ended, in words.
    pub(super) fn how(self) -> String {
        super::members::ended(self.status)
    }
}

/// The code that a shell would tell.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(255),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => 255,
    }
}
