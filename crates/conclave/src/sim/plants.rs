//! `conclave sim plants`.

use std::time::{Duration, Instant};

use clap::Args;
use conclave_sim::FuzzReport;
use conclave_sim::fuzz::Sweep;
use serde_json::{Value, json};

use super::Seeds;
use super::fuzz::search;
use super::planted::Planted;
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Plants {
    /// Look for each of them with these seeds, and print a table of how soon it was found
    #[arg(long, value_name = "A..B")]
    find: Option<Seeds>,
    /// Look only for these, by name
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "find")]
    only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A planted bug and what the search for it gave.
struct Searched {
    plant: Planted,
    report: FuzzReport,
    took: Duration,
    /// What the same world breaks without the bug: nothing, or the search has proved nothing.
    control: Option<&'static str>,
}

impl Plants {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(seeds) = self.find {
            return self.find(seeds);
        }
        if self.json {
            let plants: Vec<Value> = Planted::all().into_iter().map(as_json).collect();
            return output::json(&json!({ "plants": plants }));
        }
        let mut table = output::table(&["NAME", "PROTOCOL", "WHAT IS WRONG"]);
        for plant in Planted::all() {
            table.add_row([plant.name(), plant.protocol(), plant.what()]);
        }
        output::print(&table)
    }

    fn find(&self, seeds: Seeds) -> Result<(), Failure> {
        let plants = if self.only.is_empty() {
            Planted::all()
        } else {
            let named = self.only.iter().map(|name| Planted::named(name));
            named.collect::<Result<_, _>>()?
        };
        let mut searched = Vec::new();
        if !self.json {
            output::line("| planted bug | what is wrong | found as | seed | time | without it |")?;
            output::line("|---|---|---|---|---|---|")?;
        }
        for plant in plants {
            let sought = Sweep {
                seeds: seeds.all(),
                threads: 0,
                stop_at_first: true,
            };
            let start = Instant::now();
            let report = search(&sought, self.json, plant.name(), |told| {
                plant.hunt(sought.clone(), told)
            });
            let took = start.elapsed();
            let finding = report.violations.first();
            let one = Searched {
                control: finding.and_then(|finding| plant.control(&finding.replay)),
                plant,
                report,
                took,
            };
            if !self.json {
                output::line(one.row())?;
            }
            searched.push(one);
        }
        if self.json {
            let plants: Vec<Value> = searched.iter().map(Searched::as_json).collect();
            output::json(&json!({ "plants": plants }))?;
        }
        if !searched.iter().all(Searched::is_proved) {
            return Err(Failure::Violation);
        }
        Ok(())
    }
}

fn as_json(plant: Planted) -> Value {
    json!({
        "name": plant.name(),
        "protocol": plant.protocol(),
        "what": plant.what(),
    })
}

impl Searched {
    /// Whether the bug, and nothing else, was found.
    fn is_proved(&self) -> bool {
        !self.report.violations.is_empty() && self.control.is_none()
    }

    fn row(&self) -> String {
        let (name, what) = (self.plant.name(), self.plant.what());
        let seconds = self.took.as_secs_f64();
        let found = match self.report.violations.first() {
            Some(finding) => format!("`{}` | {}", finding.property, finding.seed),
            None => "not found | -".to_owned(),
        };
        let control = match (self.control, self.is_proved()) {
            (Some(property), _) => format!("also breaks `{property}`"),
            (None, true) => "holds".to_owned(),
            (None, false) => "-".to_owned(),
        };
        format!("| `{name}` | {what} | {found} | {seconds:.2} s | {control} |")
    }

    fn as_json(&self) -> Value {
        let finding = self.report.violations.first();
        let more = json!({
            "found": finding.is_some(),
            "seed": finding.map(|finding| finding.seed),
            "property": finding.map(|finding| finding.property.clone()),
            "replay": finding.map(|finding| finding.replay.clone()),
            "without": self.control,
            "runs": self.report.runs,
            "seconds": self.took.as_secs_f64(),
        });
        output::merged(as_json(self.plant), more)
    }
}
