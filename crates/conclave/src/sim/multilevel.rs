//! Hierarchies in the simulator.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use conclave_protocol::multilevel::LevelPlant;
use conclave_sim::Outcome;
use conclave_sim::fuzz::{FuzzReport, Sweep, caught, sweep};
use conclave_sim::multilevel::{
    GAP, Kind, LevelOptions, Measured, SPAN, Scenario, options, run, swarm, world,
};
use conclave_sim::trace::Line;
use serde_json::{Value, json};

use super::faulty::{Faulty, RuleBook};
use super::planted::Planted;
use super::{short, thousands};
use crate::cli::Failure;
use crate::output::{self, Progress};

/// The most levels below the root of a simulated hierarchy.
const LEVELS_MAX: u8 = 6;
/// The hierarchy of a run unless one is given.
const SYSTEM: &str = "multilevel(tree, 1200, levels=1)";

/// Numbers of levels: one, or an inclusive range `A..B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Levels {
    from: u8,
    to: u8,
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let (from, to) = (from.parse::<u8>().ok(), to.parse::<u8>().ok());
        match (from, to) {
            (Some(from), Some(to)) if from <= to && to <= LEVELS_MAX => Ok(Self { from, to }),
            _ => Err(format!(
                "levels are a number, or a range A..B, from 0 to {LEVELS_MAX}"
            )),
        }
    }
}

/// Which worlds of hierarchies to draw.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchies {
    levels: RangeInclusive<u8>,
    paper: bool,
    plant: Option<LevelPlant>,
}

impl Hierarchies {
    /// What the flags ask for.
    pub(crate) fn new(
        faulty: Faulty,
        levels: Option<Levels>,
        plant: Option<Planted>,
    ) -> Result<Self, Failure> {
        if faulty.size().is_some() {
            return Err(Failure::input(
                "no node of a hierarchy lies: leave out --nodes and --byzantine",
            ));
        }
        let plant = match plant {
            Some(Planted::Level(plant)) => Some(plant),
            _ => None,
        };
        let paper = faulty.rules == RuleBook::Paper;
        if paper && plant.is_some() {
            return Err(Failure::input(
                "bugs are planted in the rules of the service: leave out --rules or --plant",
            ));
        }
        Ok(Self {
            levels: levels.map_or(0..=3, |levels| levels.from..=levels.to),
            paper,
            plant,
        })
    }

    /// Worlds that show a bug.
    pub(crate) fn planted(plant: LevelPlant) -> Self {
        Self {
            levels: 0..=3,
            paper: false,
            plant: Some(plant),
        }
    }

    fn options(&self, seed: u64) -> LevelOptions {
        swarm(seed, self.levels.clone(), self.paper, self.plant)
    }

    /// Runs all seeds.
    pub(crate) fn fuzz(&self, seeds: &Sweep, progress: &(dyn Fn(u64) + Sync)) -> FuzzReport {
        sweep(
            seeds,
            &|seed| caught(|| world::check(&self.options(seed), None)),
            &|seed| self.options(seed).to_string(),
            progress,
        )
    }
}

/// The options of a token of hierarchies; none if it is a token of something else.
pub(crate) fn token(text: &str) -> Option<Result<LevelOptions, Failure>> {
    let mut parts = text.split(';').map(str::trim);
    parts.any(|part| part == "protocol=multilevel").then(|| {
        let options: LevelOptions = text.parse().map_err(|error| {
            Failure::Input(format!("the token is not one that a run prints: {error}"))
        })?;
        let topology = options.topology().map_err(Failure::input)?;
        options.checked(topology.nodes()).map_err(Failure::input)?;
        Ok(options)
    })
}

/// Runs the world of a token once more without its planted bug.
pub(crate) fn without_plant(replay: &str) -> Option<Outcome> {
    let mut options: LevelOptions = replay.parse().ok()?;
    options.plant = None;
    Some(caught(|| world::check(&options, None)))
}

/// Runs a world and tells what happens in it.
pub(crate) fn replayed(options: &LevelOptions, tracer: &mut dyn FnMut(&Line)) -> Outcome {
    caught(|| world::check(options, Some(&mut |line: &Line| tracer(line))))
}

/// A set-up to measure hierarchies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scene {
    /// That of the published simulation
    Paper,
}

/// The flags of a hierarchy's run.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Hierarchies")]
pub(crate) struct Paper {
    /// The set-up
    #[arg(long, value_enum)]
    scenario: Option<Scene>,
    /// The share of time that a node is up, above 0.5 and up to 1
    #[arg(long, value_name = "F")]
    up: Option<f64>,
    /// How many entries to measure, 20,000 if left out
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    entries: Option<u64>,
    /// Measure for as long as the published runs, 4,000,000,000 units of time
    #[arg(long, conflicts_with = "entries")]
    full: bool,
    /// The mean time between two requests of a node, 5,000,000 if left out
    #[arg(long, value_name = "TIME")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    gap: Option<u64>,
    /// How long a holder stays inside, 10 if left out
    #[arg(long, value_name = "TIME")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=900))]
    hold: Option<u64>,
    /// Ask level by level, without announcements, and count elections of coordinators apart
    #[arg(long)]
    sequential: bool,
    /// With primary-backup: how long a client waits before it asks again, 500 if left out
    #[arg(long, value_name = "TIME")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    retry: Option<u64>,
    /// With primary-backup: how long the second server takes to stand in, 200 if left out
    #[arg(long, value_name = "TIME")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    failover: Option<u64>,
}

impl Paper {
    /// Whether any flag asks for this set-up.
    pub(crate) fn is_given(&self) -> bool {
        self.scenario.is_some()
            || self.up.is_some()
            || self.entries.is_some()
            || self.full
            || self.gap.is_some()
            || self.hold.is_some()
            || self.sequential
            || self.retry.is_some()
            || self.failover.is_some()
    }

    /// Runs a hierarchy, or the two servers that it is compared with, and tells what it cost.
    pub(crate) fn run(
        &self,
        system: Option<&str>,
        backup: bool,
        groups: u32,
        seed: u64,
        json: bool,
    ) -> Result<(), Failure> {
        let system = system.unwrap_or(SYSTEM);
        let scenario = self.scenario(system, backup, groups, seed)?;
        let progress = (!json).then(|| Progress::new("running"));
        let total = if self.full {
            (SPAN as f64 * scenario.system.nodes() as f64 / scenario.gap as f64) as u64
        } else {
            scenario.entries
        };
        let start = Instant::now();
        let measured = run(&scenario, &mut |entries| {
            if let Some(progress) = &progress {
                progress.set(entries.min(total), total);
            }
        });
        let took = start.elapsed();
        drop(progress);
        let told = Told {
            system,
            scenario: &scenario,
            measured: &measured,
            took,
        };
        if json {
            return output::json(&told.as_json());
        }
        told.print()
    }

    fn scenario(
        &self,
        system: &str,
        backup: bool,
        groups: u32,
        seed: u64,
    ) -> Result<Scenario, Failure> {
        let up = self.up.unwrap_or(1.0);
        if !(up > 0.5 && up <= 1.0) {
            return Err(Failure::Input(format!(
                "--up {up}: give the share of time that a node is up, above 0.5 and up to 1"
            )));
        }
        if !backup && (self.retry.is_some() || self.failover.is_some()) {
            return Err(Failure::input(
                "--retry and --failover are for two servers: give --protocol primary-backup",
            ));
        }
        if backup && (self.sequential || groups > 0) {
            return Err(Failure::input(
                "two servers know neither levels nor groups: leave out --sequential and --groups",
            ));
        }
        let topology = options::topology(system).map_err(Failure::input)?;
        if topology.nodes() > options::NODES_MAX {
            return Err(Failure::Input(format!(
                "{} nodes are too many: a hierarchy is simulated with at most {}",
                topology.nodes(),
                options::NODES_MAX
            )));
        }
        let mut scenario = Scenario::new(Arc::new(topology), up);
        scenario.seed = seed;
        scenario.groups = groups;
        scenario.kind = match (backup, self.sequential) {
            (true, _) => Kind::PrimaryBackup {
                retry: self.retry.unwrap_or(500),
                failover: self.failover.unwrap_or(200),
            },
            (false, true) => Kind::Sequential,
            (false, false) => Kind::Parallel,
        };
        scenario.entries = self.entries.unwrap_or(scenario.entries);
        scenario.span = if self.full { SPAN } else { 0 };
        scenario.gap = self.gap.unwrap_or(GAP);
        scenario.hold = self.hold.unwrap_or(scenario.hold);
        Ok(scenario)
    }
}

/// A run that is over.
struct Told<'a> {
    system: &'a str,
    scenario: &'a Scenario,
    measured: &'a Measured,
    took: Duration,
}

impl Told<'_> {
    fn kind(&self) -> &'static str {
        match self.scenario.kind {
            Kind::Parallel => "multilevel",
            Kind::Sequential => "multilevel, level by level",
            Kind::PrimaryBackup { .. } => "primary-backup",
        }
    }

    fn speed(&self) -> f64 {
        self.measured.events as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn as_json(&self) -> Value {
        let (scenario, measured) = (self.scenario, self.measured);
        let kinds: serde_json::Map<String, Value> = measured
            .by_kind
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), json!(count)))
            .collect();
        json!({
            "protocol": self.kind(),
            "system": self.system,
            "nodes": scenario.system.nodes(),
            "levels": scenario.system.levels(),
            "scenario": "paper",
            "up": scenario.up,
            "groups": scenario.groups,
            "gap": scenario.gap,
            "hold": scenario.hold,
            "seed": scenario.seed,
            "entries": measured.entries,
            "messages_per_entry": measured.messages_per_entry,
            "messages_per_entry_without_self": measured.without_self,
            "messages_until_consent": measured.until_consent,
            "messages_by_kind": kinds,
            "elections_per_entry": measured.elections_per_entry,
            "predicted": measured.predicted,
            "waiting": {
                "mean": measured.waiting_mean,
                "p50": measured.waiting_p50,
                "p99": measured.waiting_p99,
            },
            "concurrency": measured.concurrency,
            "up_measured": measured.up,
            "span": measured.span,
            "events": measured.events,
            "seconds": self.took.as_secs_f64(),
            "events_per_s": self.speed(),
            "memory": memory(),
        })
    }

    fn print(&self) -> Result<(), Failure> {
        let (scenario, measured) = (self.scenario, self.measured);
        let wishes = match scenario.groups {
            0 => "exclusive wishes".to_owned(),
            1 => "1 group".to_owned(),
            many => format!("{many} groups"),
        };
        output::line(format!(
            "{} on {}, nodes up {}, {wishes}, seed {}\n",
            self.kind(),
            self.system,
            scenario.up,
            scenario.seed
        ))?;
        let mut table = output::table(&[]);
        table.add_row(["entries", &thousands(measured.entries)]);
        let messages = format!(
            "{}, {} without those of a node to itself, {} until consent",
            short(measured.messages_per_entry),
            short(measured.without_self),
            short(measured.until_consent)
        );
        table.add_row(["messages per entry", &messages]);
        let kinds = measured.by_kind.iter();
        let kinds = kinds.map(|(kind, count)| format!("{kind} {}", short(*count)));
        let kinds: Vec<String> = kinds.collect();
        table.add_row(["  by kind", &kinds.join(", ")]);
        table.add_row(["  predicted", &short(measured.predicted)]);
        if measured.elections_per_entry > 0.0 {
            let apart = short(measured.elections_per_entry);
            table.add_row(["elections, apart", &format!("{apart} messages per entry")]);
        }
        let waits = format!(
            "mean {}, half within {}, 99 % within {}",
            short(measured.waiting_mean),
            short(measured.waiting_p50),
            short(measured.waiting_p99)
        );
        table.add_row(["waiting", &waits]);
        table.add_row(["inside at once", &short(measured.concurrency)]);
        table.add_row(["nodes really up", &format!("{:.4}", measured.up)]);
        let run = format!(
            "{} units of time, {} events in {:.2} s, {} a second",
            thousands(measured.span),
            thousands(measured.events),
            self.took.as_secs_f64(),
            thousands(self.speed() as u64)
        );
        table.add_row(["the run", &run]);
        if let Some(bytes) = memory() {
            table.add_row(["memory", &format!("{} MB", bytes / 1_000_000)]);
        }
        output::print(&table)
    }
}

/// The most memory this process has had, in bytes, where the system tells it.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_with_both_ends() {
        assert_eq!("0..3".parse(), Ok(Levels { from: 0, to: 3 }));
        assert_eq!("2".parse(), Ok(Levels { from: 2, to: 2 }));
        for wrong in ["", "3..1", "0..9", "-1", "a"] {
            assert!(wrong.parse::<Levels>().is_err(), "{wrong}");
        }
    }
}
