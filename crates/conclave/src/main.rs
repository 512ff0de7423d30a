//! The `conclave` command: one binary for the lock service and its toolbox.

use std::process::ExitCode;

mod cli;
mod output;
mod png;
mod quorum;

fn main() -> ExitCode {
    cli::run()
}
