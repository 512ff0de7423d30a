//! `conclave barrier` and `conclave latch`: starting together, and waiting for so many.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

use clap::Args;
use conclave_client::{AcquireError, BarrierError};
use conclave_wire::Span;
use serde_json::json;

use super::find::Endpoints;
use super::lock::Lock;
use super::place::shown;
use super::signals::{Stops, code_of_signal};
use super::watch::{connect, watch_failure};
use super::{runtime, traces};
use crate::cli::Failure;

#[derive(Debug, Args)]
pub(crate) struct Barrier {
    /// The barrier
    name: OsString,
    /// How many must be there before any goes on
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    parties: u32,
    /// Wait at most so long
    #[arg(long, value_name = "SPAN")]
    wait: Option<Span>,
    /// How long a party that vanished is waited for
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    ttl: Span,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print a line of JSON to standard error when all are there
    #[arg(long)]
    json: bool,
    /// The command to become when all are there; without it just ends
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Latch {
    /// The latch
    name: OsString,
    /// How many counts open it
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    count: u32,
    /// Wait until it is open, instead of counting
    #[arg(long = "await", conflicts_with_all = ["command", "ttl"])]
    wait_for: bool,
    /// Wait at most so long
    #[arg(long, value_name = "SPAN")]
    wait: Option<Span>,
    /// How long the count outlives us if we vanish
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    ttl: Span,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print a line of JSON to standard error at the end
    #[arg(long)]
    json: bool,
    /// The command; the count lasts while it runs
    #[arg(required_unless_present = "wait_for", last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Barrier {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let slot = runtime()?.block_on(async {
            let mut stops = Stops::new()?;
            let client = connect(&self.endpoints.find()?).await?;
            let mut barrier = client.barrier(self.name.as_bytes(), self.parties);
            barrier = barrier.ttl(self.ttl.0);
            if let Some(wait) = self.wait {
                barrier = barrier.timeout(wait.0);
            }
            let passed = tokio::select! {
                passed = barrier.wait() => passed.map_err(|error| failure(&self.name, &error)),
                signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
            };
            // What was queued for the nodes must leave before this process does.
            client.close().await;
            passed
        })?;
        if self.json {
            let name = self.name.to_string_lossy();
            anstream::eprintln!(
                "{}",
                json!({ "barrier": name, "passed": true, "slot": slot })
            );
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(());
        };
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .env("CONCLAVE_SLOT", slot.to_string());
        traces::stop();
        // It only returns if the command cannot be run.
        let error = command.exec();
        let program = shown(&program.to_string_lossy());
        anstream::eprintln!("error: cannot run '{program}': {error}");
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        Err(Failure::Exit(if missing { 127 } else { 126 }))
    }
}

impl Latch {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.wait_for {
            return self.open();
        }
        let mut lock = Lock::plain(self.name, self.endpoints, self.command);
        (lock.ttl, lock.wait) = (self.ttl, self.wait);
        (lock.json, lock.latch) = (self.json, Some(self.count));
        lock.run()
    }

    fn open(&self) -> Result<(), Failure> {
        runtime()?.block_on(async {
            let mut stops = Stops::new()?;
            let client = connect(&self.endpoints.find()?).await?;
            let mut latch = client.latch(self.name.as_bytes(), self.count);
            if let Some(wait) = self.wait {
                latch = latch.timeout(wait.0);
            }
            tokio::select! {
                open = latch.wait() => open.map_err(|error| failure(&self.name, &error)),
                signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
            }
        })?;
        if self.json {
            let name = self.name.to_string_lossy();
            anstream::eprintln!("{}", json!({ "latch": name, "open": true }));
        }
        Ok(())
    }
}

/// How a party that did not pass ends.
pub(super) fn failure(name: &OsString, error: &BarrierError) -> Failure {
    let name = shown(&name.to_string_lossy());
    match error {
        BarrierError::TimedOut { .. } | BarrierError::Acquire(AcquireError::TimedOut { .. }) => {
            Failure::NotAcquired(format!("'{name}': {error}"))
        }
        BarrierError::Lost(error) => Failure::Lost(error.to_string()),
        BarrierError::Acquire(AcquireError::NoQuorum { .. }) => {
            Failure::NoQuorum(error.to_string())
        }
        BarrierError::Watch(error) => watch_failure(error),
        error => Failure::Input(format!("'{name}': {error}")),
    }
}
