//! `conclave guard-command`: starts a command and ends it before its lock can be another's.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use conclave_client::clock;
use conclave_protocol::hold_watch::{HoldWatch, Order};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::line::{self, Ending, WORD, Word};
use super::{code, tree};
use crate::cli::Failure;
use crate::service::forward::Signals;
use crate::service::runtime;

/// How often it is looked whether what a command has left is gone.
const LOOK_BELOW: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct GuardCommand {
    /// The process group that the command joins; without it, it leads one of its own
    #[arg(long, value_name = "PGID")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    group: Option<i32>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl GuardCommand {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let stdin = std::io::stdin();
        let input = line::receive_stdin(&stdin).map_err(|_| {
            Failure::input("this is started by `conclave lock`; run that instead".to_owned())
        })?;
        let line = rustix::io::fcntl_dupfd_cloexec(&stdin, 3).map_err(std::io::Error::from)?;
        tree::adopt_orphans()?;
        let ended = runtime()?.block_on(self.guard(Socket::from(line), input))?;
        match ended {
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    async fn guard(&self, line: Socket, input: OwnedFd) -> Result<u8, Failure> {
        // What is meant for the command comes through the holder: it must not end us.
        let _signals = Signals::new()?;
        line.set_nonblocking(true)?;
        let (from, mut to) = UnixStream::from_std(line)?.into_split();
        let (tell, mut told) = mpsc::channel(64);
        tokio::spawn(listen(from, tell));
        let Some(Word::Until(until)) = told.recv().await else {
            // The holder is gone before it began.
            return Err(Failure::Exit(1));
        };
        let mut watch = HoldWatch::new(clock::now().mono, until);
        let mut child = self.start(input)?;
        let mut orphaned = false;
        let status = loop {
            match watch.look(clock::now().mono) {
                Some(Order::End) => self.tell_all(&child),
                Some(Order::Kill) => self.kill_all(&child),
                None => {}
            }
            tokio::select! {
                biased;
                word = told.recv(), if !orphaned => match word {
                    Some(Word::Until(until)) => watch.renewed(clock::now().mono, until),
                    Some(Word::Lost) => watch.lost(clock::now().mono),
                    Some(Word::Signal(signal)) => self.pass(&child, signal),
                    None => {
                        orphaned = true;
                        watch.orphaned();
                    }
                },
                status = child.wait() => break status?,
                () = tokio::time::sleep(watch.pause(clock::now().mono)) => tree::reap(child.id()),
            }
        };
        let ending = Ending {
            status: status.into_raw(),
            told: watch.told(),
        };
        if !watch.told() && to.write_all(&ending.bytes()).await.is_ok() {
            return Ok(code(status));
        }
        // The lock is going, or its holder is gone: what the command has left ends with it.
        watch.orphaned();
        while tree::is_below() {
            match watch.look(clock::now().mono) {
                Some(Order::End) => drop(tree::signal_all(Signal::TERM)),
                Some(Order::Kill) => tree::kill_all(),
                None => tokio::time::sleep(LOOK_BELOW).await,
            }
        }
        // A holder that is gone does not want to know.
        let _ = to.write_all(&ending.bytes()).await;
        Ok(code(status))
    }

    fn start(&self, input: OwnedFd) -> Result<Child, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["exec-guarded", "--parent", &std::process::id().to_string()])
            .arg("--")
            .args(&self.command)
            .process_group(self.group.unwrap_or(0))
            .stdin(Stdio::from(input));
        let started = command.spawn();
        started.map_err(|error| Failure::Failed(format!("cannot start the command: {error}")))
    }

    /// Tells whatever runs for the command to end.
    fn tell_all(&self, child: &Child) {
        if tree::signal_all(Signal::TERM) == 0 {
            self.pass(child, Signal::TERM.as_raw());
        }
    }

    /// Kills whatever runs for the command.
    fn kill_all(&self, child: &Child) {
        self.pass(child, Signal::KILL.as_raw());
        tree::kill_all();
    }

    /// Sends a signal to the command, with its group if it leads one. It was not waited for yet,
    /// so its number is its own.
    fn pass(&self, child: &Child, signal: i32) {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw);
        if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
            // It may have ended just now.
            let _ = if self.group.is_none() {
                kill_process_group(pid, signal)
            } else {
                kill_process(pid, signal)
            };
        }
    }
}

/// Takes what the holder says until it is gone.
async fn listen(mut from: OwnedReadHalf, tell: mpsc::Sender<Word>) {
    let mut bytes = [0; WORD];
    while from.read_exact(&mut bytes).await.is_ok() {
        let Some(word) = Word::read(bytes) else {
            return;
        };
        if tell.send(word).await.is_err() {
            return;
        }
    }
}
