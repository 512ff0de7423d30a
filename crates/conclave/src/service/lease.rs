//! `conclave lease`: runs a command while it has a lease.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use conclave_client::{Client, LeaseError, LeaseGuard, Trouble, clock};
use conclave_wire::Span;
use rustix::process::Signal;
use serde_json::json;

use super::ending::{ended, ending};
use super::find::{Endpoints, Target, not_connected};
use super::forward::Signals;
use super::guard::Guarded;
use super::lock::millis;
use super::place::shown;
use super::runtime;
use super::signals::code_of_signal;
use crate::cli::Failure;

#[derive(Debug, Args)]
pub(crate) struct Lease {
    /// The lease
    name: OsString,
    /// How long it lasts
    #[arg(long = "for", value_name = "SPAN", default_value = "5s")]
    span: Span,
    /// Wait at most so long; without it, and without --try, as long as it takes
    #[arg(long, value_name = "SPAN", conflicts_with = "try_only")]
    wait: Option<Span>,
    /// Try once
    #[arg(long = "try")]
    try_only: bool,
    /// Extend it until the command ends
    #[arg(long)]
    renew: bool,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print a line of JSON to standard error at the end (standard output is the command's)
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What came of it, for the line of JSON.
#[derive(Debug, Default)]
struct Report {
    token: Option<u64>,
    attempts: Option<u32>,
    error: Option<&'static str>,
    waited: Duration,
    held: Option<Duration>,
}

impl Lease {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let target = self.endpoints.find()?;
        let mut report = Report::default();
        let result = runtime()?.block_on(self.take(&target, &mut report));
        if !self.json {
            return result;
        }
        let Some((outcome, code, message)) = ending(&result) else {
            return result;
        };
        let line = json!({
            "lease": self.name.to_string_lossy(),
            "outcome": outcome,
            "error": report.error,
            "token": report.token,
            "attempts": report.attempts,
            "waited_ms": millis(report.waited),
            "held_ms": report.held.map(millis),
            "exit": code,
            "message": message,
        });
        anstream::eprintln!("{line}");
        ended(code)
    }

    fn shown(&self) -> String {
        shown(&self.name.to_string_lossy())
    }

    async fn take(&self, target: &Target, report: &mut Report) -> Result<(), Failure> {
        let mut signals = Signals::new()?;
        let begun = Instant::now();
        let interrupted = |signal: Signal| Failure::Exit(code_of_signal(signal.as_raw()));
        let client = tokio::select! {
            client = target.client() => client,
            signal = signals.stop() => return Err(interrupted(signal)),
        };
        let client = client.map_err(|error| not_connected(&error))?;
        let acquired = tokio::select! {
            acquired = self.acquire(&client) => acquired.map_err(|error| {
                report.error = Some(error.name());
                self.failure(&error)
            }),
            signal = signals.stop() => Err(interrupted(signal)),
        };
        report.waited = begun.elapsed();
        let result = match acquired {
            Ok(guard) => {
                report.token = Some(guard.token());
                report.attempts = Some(guard.attempts());
                let begun = Instant::now();
                let result = self.hold(guard, &mut signals).await;
                report.held = Some(begun.elapsed());
                result
            }
            Err(failure) => Err(failure),
        };
        // What was queued for the nodes must leave before this process does.
        client.close().await;
        result
    }

    async fn acquire(&self, client: &Client) -> Result<LeaseGuard, LeaseError> {
        let request = client.lease(self.name.as_bytes()).for_(self.span.0);
        if self.try_only {
            return request.try_().await?.ok_or(LeaseError::TimedOut);
        }
        match self.wait {
            Some(wait) => request.wait(wait.0).await,
            None => request.acquire().await,
        }
    }

    fn failure(&self, error: &LeaseError) -> Failure {
        let name = self.shown();
        match error {
            LeaseError::TimedOut if self.try_only => {
                Failure::NotAcquired(format!("'{name}' is held by somebody else"))
            }
            LeaseError::TimedOut => Failure::NotAcquired(format!("'{name}': {error}")),
            LeaseError::Ended | LeaseError::NotRenewed => {
                Failure::Lost(format!("'{name}': {error}"))
            }
            LeaseError::Trouble(Trouble::NoQuorum { .. }) => Failure::NoQuorum(error.to_string()),
            error => Failure::Input(format!("'{name}': {error}")),
        }
    }

    /// Runs the command, and sees to it that it does not outlive the lease.
    async fn hold(&self, guard: LeaseGuard, signals: &mut Signals) -> Result<(), Failure> {
        if self.renew {
            guard.keep();
        }
        // Scripts know the wall clock only.
        let deadline = clock::now().wall.plus(guard.remaining()).0 / 1000;
        let variables = [
            ("CONCLAVE_LEASE", self.name.clone()),
            ("CONCLAVE_TOKEN", guard.token().to_string().into()),
            ("CONCLAVE_DEADLINE_MS", deadline.to_string().into()),
        ];
        let command = Guarded::start(&self.command, &variables, signals, guard.remaining()).await?;
        let ended = command
            .ended(|| guard.remaining(), guard.lost(), signals)
            .await?;
        let (name, how) = (self.shown(), ended.how());
        let kept = guard.release().is_ok();
        if ended.told {
            return Err(Failure::Lost(format!(
                "'{name}' was about to end; the command was told to end: {how}"
            )));
        }
        if !kept {
            return Err(Failure::Lost(format!(
                "'{name}' ended before the command did: {how}"
            )));
        }
        ended.result()
    }
}
