//! `conclave exec-guarded`: becomes a command that is told when the process that wanted it ends.
//!
//! A child can only ask for itself to be told of its parent's death, so commands are started
//! through this step: it asks, checks that the parent is still there, and becomes the command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::{Pid, Signal, getppid};

use crate::cli::Failure;
use crate::service::place::shown;

#[derive(Debug, Args)]
pub(crate) struct ExecGuarded {
    /// The process whose end ends the command
    #[arg(long, value_name = "PID")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    parent: i32,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl ExecGuarded {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        end_with(self.parent)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::input("no command is given"));
        };
        // It only returns if the command cannot be run.
        let error = Command::new(program).args(arguments).exec();
        let program = shown(&program.to_string_lossy());
        anstream::eprintln!("error: cannot run '{program}': {error}");
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        Err(Failure::Exit(if missing { 127 } else { 126 }))
    }
}

/// Asks for SIGTERM when the parent ends; fails if it has ended already.
pub(crate) fn end_with(parent: i32) -> Result<(), Failure> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
    let now = getppid().map(Pid::as_raw_nonzero);
    if now.is_none_or(|now| now.get() != parent) {
        return Err(Failure::Exit(crate::service::signals::code_of_signal(
            Signal::TERM.as_raw(),
        )));
    }
    Ok(())
}
