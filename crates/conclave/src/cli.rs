//! The command line: what is asked, and how it ends.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{check, demo, quorum, sim};

/// How a command that did not succeed ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A check or run found a violation: exit 1. The finding is already printed.
    Violation,
    /// Usage or bad input: one line, exit 2.
    Input(String),
    /// A system that breaks the promise of its kind: a violation to `check`, bad input to others.
    Broken(String),
    /// The reader of our output is gone: end quietly.
    Closed,
}

impl Failure {
    /// Bad input, told by anything that displays.
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::Input(message.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Input(error.to_string())
        }
    }
}

/// A leaderless lock service on quorums of nodes, and a toolbox for quorum systems.
#[derive(Debug, Parser)]
#[command(
    name = "conclave",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 ok, 1 a check found a violation, 2 usage or bad input."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build, check, measure, compare, choose and draw quorum systems
    #[command(subcommand)]
    Quorum(quorum::Command),
    /// Run the protocols in a simulated world that tries to break them
    #[command(subcommand)]
    Sim(sim::Command),
    /// Explore every order of events at small sizes
    #[command(subcommand)]
    Check(check::Command),
    /// Put a simulated cluster through faults and tell what held
    #[command(after_help = "Example:\n  conclave demo --worlds 300")]
    Demo(demo::Demo),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  conclave completions bash > /etc/bash_completion.d/conclave"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Parses the arguments, runs the command, prints what went wrong and gives the exit code.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            if matches!(
                error.kind(),
                ErrorKind::ValueValidation | ErrorKind::InvalidValue
            ) {
                // A wrong value is told in one line, like any other bad input.
                let text = error.to_string();
                let lines = text.lines().take_while(|line| !line.is_empty());
                let lines: Vec<&str> = lines.map(str::trim).collect();
                anstream::eprintln!("{}", lines.join(" "));
                return ExitCode::from(code);
            }
            // Help goes to standard output, complaints to standard error; a closed pipe is fine.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::Quorum(command) => quorum::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Check(command) => check::run(command),
        Command::Demo(demo) => demo.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "conclave", &mut script);
            crate::output::raw(&script)
        }
    };
    match result {
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Violation) => ExitCode::from(1),
        Err(Failure::Input(message) | Failure::Broken(message)) => {
            anstream::eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
