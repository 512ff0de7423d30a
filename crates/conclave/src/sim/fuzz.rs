//! `conclave sim fuzz`.

use clap::Args;
use conclave_sim::fuzz::Sweep;
use conclave_sim::{Finding, Fuzz as What, FuzzReport, fuzz};
use serde_json::{Value, json};

use super::faulty::Faulty;
use super::lease::Leases;
use super::multilevel::{Hierarchies, Levels};
use super::object::Objects;
use super::planted::Planted;
use super::{Machines, Seeds, quiet_panics, replay_command, thousands};
use crate::cli::Failure;
use crate::output::{self, Progress};

/// So many findings are told in full.
const SHOWN_MAX: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// The protocol
    #[arg(long, value_enum, default_value = "lock")]
    protocol: Machines,
    /// The seeds: one, or a range A..B with both ends
    #[arg(long, value_name = "A..B", default_value = "1..300")]
    seeds: Seeds,
    /// Plant this bug and stop at the first seed that finds it
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    #[command(flatten)]
    faulty: Faulty,
    /// Hierarchies: how many levels below the root, one number or a range A..B with both ends
    #[arg(long, value_name = "A..B")]
    levels: Option<Levels>,
    /// How many runs at once; 0 takes all cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let plant = self.plant.as_deref();
        let plant = plant
            .map(|name| Planted::named_in(name, self.protocol))
            .transpose()?;
        if self.levels.is_some() && self.protocol != Machines::Multilevel {
            return Err(Failure::input(
                "--levels is for hierarchies: leave it out or give --protocol multilevel",
            ));
        }
        let seeds = Sweep {
            seeds: self.seeds.all(),
            threads: usize::from(self.threads),
            stop_at_first: plant.is_some(),
        };
        let (report, got) = match self.protocol.locks() {
            Some(protocol) => {
                self.faulty.refuse(self.protocol.name())?;
                let plant = match plant {
                    Some(Planted::Lock(plant)) => Some(plant),
                    _ => None,
                };
                let what = What {
                    protocol,
                    seeds: seeds.seeds.clone(),
                    plant,
                    threads: seeds.threads,
                    stop_at_first: seeds.stop_at_first,
                };
                let report = search(&seeds, self.json, "fuzzing", |told| fuzz(&what, told));
                (report, "locks entered")
            }
            None if self.protocol == Machines::Multilevel => {
                let worlds = Hierarchies::new(self.faulty, self.levels, plant)?;
                let report = search(&seeds, self.json, "fuzzing", |told| {
                    worlds.fuzz(&seeds, told)
                });
                (report, "locks entered")
            }
            None if self.protocol == Machines::Object => {
                let objects = Objects::new(self.faulty, plant)?;
                let report = search(&seeds, self.json, "fuzzing", |told| {
                    objects.fuzz(&seeds, told)
                });
                (report, "operations")
            }
            None => {
                let leases = Leases::new(self.faulty, plant)?;
                let report = search(&seeds, self.json, "fuzzing", |told| {
                    leases.fuzz(&seeds, told)
                });
                (report, "leases")
            }
        };
        if self.json {
            output::json(&as_json(&report))?;
        } else {
            print(&report, got)?;
        }
        if report.violations.is_empty() {
            Ok(())
        } else {
            Err(Failure::Violation)
        }
    }
}

/// Runs all seeds, with a progress line unless `silent`.
pub(super) fn search(
    seeds: &Sweep,
    silent: bool,
    message: &str,
    run: impl FnOnce(&(dyn Fn(u64) + Sync)) -> FuzzReport,
) -> FuzzReport {
    quiet_panics();
    let total = seeds.seeds.end() - seeds.seeds.start() + 1;
    let progress = (!silent).then(|| Progress::new(message));
    run(&|done| {
        if let Some(progress) = &progress {
            progress.set(done, total);
        }
    })
}

fn as_json(report: &FuzzReport) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "seed": finding.seed,
            "property": finding.property,
            "what": finding.what,
            "replay": finding.replay,
            "command": replay_command(&finding.replay),
        })
    };
    let violations: Vec<Value> = report.violations.iter().map(finding).collect();
    json!({
        "runs": report.runs,
        "grants": report.grants,
        "events": report.events,
        "violations": violations,
    })
}

/// The options of a token, several to the line.
fn lines(token: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for option in token.split(';') {
        let full = lines
            .last()
            .is_some_and(|line| line.len() + option.len() > 90);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            let gap = if line.is_empty() { "" } else { "  " };
            line.push_str(gap);
            line.push_str(option);
        }
    }
    lines
}

fn print(report: &FuzzReport, got: &str) -> Result<(), Failure> {
    for finding in report.violations.iter().take(SHOWN_MAX) {
        let (seed, property) = (finding.seed, &finding.property);
        output::line(format!("seed {seed} breaks {property}: {}", finding.what))?;
        output::line("  its world differs from the plain one in:")?;
        for options in lines(&finding.replay) {
            output::line(format!("    {options}"))?;
        }
        let command = replay_command(&finding.replay);
        output::line(format!("  replay: {command}\n"))?;
    }
    let more = report.violations.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        output::line(format!("and {more} more; --json has them all\n"))?;
    }
    let result = match report.violations.len() {
        0 => "every property held".to_owned(),
        1 => "1 run broke a property".to_owned(),
        many => format!("{many} runs broke a property"),
    };
    let (runs, grants) = (thousands(report.runs), thousands(report.grants));
    let events = thousands(report.events);
    output::line(format!(
        "{runs} runs, {grants} {got}, {events} events: {result}"
    ))
}
