//! `conclave sim plants`.

use std::time::{Duration, Instant};

use clap::Args;
use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::{Fuzz as What, FuzzReport};
use serde_json::{Value, json};

use super::Seeds;
use super::fuzz::search;
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
    plant: Plant,
    report: FuzzReport,
    took: Duration,
}

impl Plants {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(seeds) = self.find {
            return self.find(seeds);
        }
        if self.json {
            let plants: Vec<Value> = Plant::ALL.iter().map(|plant| as_json(*plant)).collect();
            return output::json(&json!({ "plants": plants }));
        }
        let mut table = output::table(&["NAME", "PROTOCOL", "WHAT IS WRONG"]);
        for plant in Plant::ALL {
            table.add_row([plant.name(), plant.protocol(), plant.what()]);
        }
        output::print(&table)
    }

    fn find(&self, seeds: Seeds) -> Result<(), Failure> {
        let plants = if self.only.is_empty() {
            Plant::ALL.to_vec()
        } else {
            let named = self.only.iter().map(|name| super::plant(name));
            named.collect::<Result<_, _>>()?
        };
        let mut searched = Vec::new();
        if !self.json {
            output::line(
                "| planted bug | what is wrong | found as | seed | runs a second | time |",
            )?;
            output::line("|---|---|---|---|---|---|")?;
        }
        for plant in plants {
            let protocol = if plant.protocol() == "lock" {
                Protocol::Parallel
            } else {
                Protocol::Serial
            };
            let what = What {
                protocol,
                seeds: seeds.all(),
                plant: Some(plant),
                threads: 0,
                stop_at_first: true,
            };
            let start = Instant::now();
            let report = search(&what, self.json, plant.name());
            let one = Searched {
                plant,
                report,
                took: start.elapsed(),
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
        let missed = searched.iter().any(|one| one.report.violations.is_empty());
        if missed {
            return Err(Failure::Violation);
        }
        Ok(())
    }
}

fn as_json(plant: Plant) -> Value {
    json!({
        "name": plant.name(),
        "protocol": plant.protocol(),
        "what": plant.what(),
    })
}

impl Searched {
    fn row(&self) -> String {
        let (name, what) = (self.plant.name(), self.plant.what());
        let seconds = self.took.as_secs_f64();
        let rate = super::short(self.report.runs as f64 / seconds.max(1e-9));
        let found = match self.report.violations.first() {
            Some(finding) => format!("`{}` | {}", finding.property, finding.seed),
            None => "not found | -".to_owned(),
        };
        format!("| `{name}` | {what} | {found} | {rate} | {seconds:.2} s |")
    }

    fn as_json(&self) -> Value {
        let finding = self.report.violations.first();
        let more = json!({
            "found": finding.is_some(),
            "seed": finding.map(|finding| finding.seed),
            "property": finding.map(|finding| finding.property.clone()),
            "replay": finding.map(|finding| finding.replay.clone()),
            "runs": self.report.runs,
            "seconds": self.took.as_secs_f64(),
        });
        output::merged(as_json(self.plant), more)
    }
}
