//! The `conclave` command: one binary for the lock service and its toolbox.

use std::process::ExitCode;

mod bench;
mod certs;
mod chaos;
mod check;
mod cli;
mod figures;
mod output;
mod png;
mod quorum;
mod service;
mod sim;

fn main() -> ExitCode {
    cli::run()
}
