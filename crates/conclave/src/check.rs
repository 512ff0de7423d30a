//! `conclave check`: every order of events, at small sizes.

use clap::{Args, Subcommand, ValueEnum};
use conclave_protocol::lock::Protocol;
use conclave_protocol::object;
use conclave_sim::model::{
    ModelError, ModelOptions, ModelProgress, ModelReport, ModelViolation, ObjectModel, check,
    check_object,
};
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
    /// Visit every state that attempts to change one object can reach, at nodes of which one may
    /// lie; exit 1 with the shortest way to a broken property
    #[command(
        after_help = "Examples:\n  conclave check object --nodes 3 --attempts 3\n  \
        conclave check object --nodes 5 --byzantine 1 --attempts 2\n  \
        conclave check object --plant propose-unranked\n  \
        conclave check object --nodes 5 --byzantine 1 --plant less-support"
    )]
    Object(Object),
}

/// Runs one command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Lock(lock) => lock.run(),
        Command::Object(object) => object.run(),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Object {
    /// How many nodes there are
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,
    /// How many of them lie
    #[arg(long, value_name = "B", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1))]
    byzantine: u16,
    /// How many attempts to change the object, each with a larger rank than the one before
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4))]
    attempts: u16,
    /// How many times honest nodes restart, in all; one if the bug needs it
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=4))]
    restarts: Option<u8>,
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

impl Object {
    fn run(&self) -> Result<(), Failure> {
        let named = |name: &String| {
            object::Plant::named(name).ok_or_else(|| {
                Failure::Input(format!(
                    "objects have no planted bug '{name}': 'conclave sim plants' lists them"
                ))
            })
        };
        let plant = self.plant.as_ref().map(named).transpose()?;
        let forgets = plant == Some(object::Plant::ForgetRank);
        let options = ObjectModel {
            nodes: usize::from(self.nodes),
            liars: usize::from(self.byzantine),
            attempts: usize::from(self.attempts),
            restarts: self.restarts.unwrap_or(u8::from(forgets)),
            states_max: usize::try_from(self.states_max).unwrap_or(usize::MAX),
            plant,
        };
        let progress = (!self.json).then(|| Progress::new("exploring"));
        let mut tell = |step| show(step, progress.as_ref());
        let report = check_object(&options, &mut tell).map_err(Failure::input)?;
        drop(progress);
        finish(&report, self.json)
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
        finish(&report, self.json)
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
    check(options, &mut |step| show(step, progress))
}

fn show(step: ModelProgress, progress: Option<&Progress>) {
    if let Some(progress) = progress {
        let states = thousands(step.states as u64);
        progress.say(&format!("{states} states, depth {}", step.depth));
        let seen = step.states.saturating_sub(step.frontier);
        progress.set(seen as u64, step.states as u64);
    }
}

/// Prints what was found; a violation is a failure.
fn finish(report: &ModelReport, json: bool) -> Result<(), Failure> {
    if json {
        output::json(&as_json(report))?;
    } else {
        print(report)?;
    }
    if report.violations.is_empty() {
        Ok(())
    } else {
        Err(Failure::Violation)
    }
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
