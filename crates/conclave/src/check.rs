//! `conclave check`: every order of events, at small sizes.

use clap::{Args, Subcommand, ValueEnum};
use conclave_protocol::lock::Protocol;
use conclave_sim::model::{ModelError, ModelOptions, ModelReport, ModelViolation, check};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output::{self, Progress};
use crate::sim::{self, thousands};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Visit every state that requesters of one lock can reach; exit 1 with the shortest way to a
    /// broken property
    #[command(
        after_help = "Examples:\n  conclave check lock --system 'billiard(4)' --requesters 3\n  \
        conclave check lock --system 'surficial(groups=2, n=4)' --groups 2\n  \
        conclave check lock --requesters 2 --cancels --expiries --crashes 1\n  \
        conclave check lock --plant yield-inside\n  \
        conclave check lock --protocol serial --system 'expr(1*3 + 2*3)' --requesters 2"
    )]
    Lock(Lock),
}

/// Runs one command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Lock(lock) => lock.run(),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Lock {
    /// The quorum system
    #[arg(long, default_value = "billiard(4)")]
    system: String,
    /// The protocol
    #[arg(long, value_enum, default_value = "parallel")]
    protocol: How,
    /// How many clients ask for the lock
    #[arg(long, value_name = "N", default_value_t = 3)]
    requesters: usize,
    /// How many groups they belong to, in turn; without it every request is exclusive
    #[arg(long, value_name = "G", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=8))]
    groups: u16,
    /// Every request is exclusive, which is the default
    #[arg(long, conflicts_with = "groups")]
    exclusive: bool,
    /// How often each requester enters
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4))]
    entries: u32,
    /// Waiting requests may be cancelled, so many in all; whoever cancels asks again
    #[arg(long, value_name = "N", num_args = 0..=1, default_value_t = 0)]
    #[arg(default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=8))]
    cancels: u32,
    /// A node may expire the session of a live client, so many times in all
    #[arg(long, value_name = "N", num_args = 0..=1, default_value_t = 0)]
    #[arg(default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=8))]
    expiries: u32,
    /// So many clients may crash
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=8))]
    crashes: u32,
    /// How many holders of a group a node lets in at once; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_inside: u32,
    /// How many late members of the group inside may pass a waiting request
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_bypass: u32,
    /// Each requester uses a quorum of its own where there are several, instead of all the same
    #[arg(long)]
    spread: bool,
    /// Whether holders announce their hold at once: one search each way, or only one of them
    #[arg(long, value_enum, default_value = "both")]
    notes: Notes,
    /// Give up after so many states
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    states_max: u64,
    /// Plant this bug; see 'conclave sim plants'
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How requests reach the members of a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// All at once
    Parallel,
    /// One after the other
    Serial,
}

/// Whether holders announce their hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Notes {
    /// Only searches in which they do
    With,
    /// Only searches in which they do not
    Without,
    /// One after the other: each hides what the other shows
    Both,
}

impl Lock {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut options = self.options()?;
        let progress = (!self.json).then(|| Progress::new("exploring"));
        let mut report = ModelReport {
            exhausted: true,
            ..ModelReport::default()
        };
        for notes in [false, true] {
            let left_out = if notes { Notes::Without } else { Notes::With };
            if self.notes == left_out || !report.violations.is_empty() {
                continue;
            }
            options.notes = notes;
            let found = explore(&options, progress.as_ref()).map_err(Failure::input)?;
            report.states += found.states;
            report.transitions += found.transitions;
            report.exhausted &= found.exhausted;
            report.depth = report.depth.max(found.depth);
            report.violations.extend(found.violations);
        }
        drop(progress);
        if self.json {
            output::json(&as_json(&report))?;
        } else {
            print(&report)?;
        }
        if report.violations.is_empty() {
            Ok(())
        } else {
            Err(Failure::Violation)
        }
    }

    fn options(&self) -> Result<ModelOptions, Failure> {
        let plant = self.plant.as_deref().map(sim::plant).transpose()?;
        let groups = if self.exclusive { 0 } else { self.groups };
        Ok(ModelOptions {
            system: self.system.clone(),
            requesters: self.requesters,
            groups: usize::from(groups),
            max_inside: self.max_inside,
            max_bypass: self.max_bypass,
            protocol: match self.protocol {
                How::Parallel => Protocol::Parallel,
                How::Serial => Protocol::Serial,
            },
            entries: self.entries,
            spread: self.spread,
            notes: false,
            cancels: self.cancels,
            expiries: self.expiries,
            crashes: self.crashes,
            states_max: usize::try_from(self.states_max).unwrap_or(usize::MAX),
            plant,
        })
    }
}

fn explore(options: &ModelOptions, progress: Option<&Progress>) -> Result<ModelReport, ModelError> {
    check(options, &mut |step| {
        if let Some(progress) = progress {
            let states = thousands(step.states as u64);
            progress.say(&format!("{states} states, depth {}", step.depth));
            let seen = step.states.saturating_sub(step.frontier);
            progress.set(seen as u64, step.states as u64);
        }
    })
}

fn as_json(report: &ModelReport) -> Value {
    let violation = |violation: &ModelViolation| {
        json!({
            "property": violation.property,
            "what": violation.what,
            "trace": violation.trace,
        })
    };
    let violations: Vec<Value> = report.violations.iter().map(violation).collect();
    json!({
        "states": report.states,
        "transitions": report.transitions,
        "depth": report.depth,
        "exhausted": report.exhausted,
        "violations": violations,
    })
}

fn print(report: &ModelReport) -> Result<(), Failure> {
    for violation in &report.violations {
        let (property, what) = (violation.property, &violation.what);
        output::line(format!("{property} is BROKEN: {what}"))?;
        for (place, step) in violation.trace.iter().enumerate() {
            output::line(format!("{:>4}  {step}", place + 1))?;
        }
        output::line("")?;
    }
    let states = thousands(report.states as u64);
    let steps = thousands(report.transitions as u64);
    let end = match (report.violations.is_empty(), report.exhausted) {
        (true, true) => "every reachable state was visited, every property holds",
        (true, false) => {
            "no property is broken so far, but not every state was visited: raise --states-max \
             or ask for less"
        }
        (false, _) => "the search stopped at the shortest way to a broken property",
    };
    let depth = report.depth;
    output::line(format!(
        "{states} states, {steps} steps, depth {depth}: {end}"
    ))
}
