//! `conclave chaos all`: the same faults and checkers over several quorum systems, group systems
//! and the serial protocol.

use std::path::PathBuf;

use clap::Args;
use conclave_wire::Span;
use conclave_wire::cluster::{PolicyText, ProtocolText};
use serde_json::{Value, json};

use super::faults::Fault;
use super::{Run, runtime};
use crate::cli::Failure;
use crate::output;
use crate::service::shape::Shape;
use crate::service::up::Restart;
use crate::sim::Seeds;

#[derive(Debug, Args)]
pub(crate) struct All {
    /// How long the faults go on in each; every kind comes once at least
    #[arg(long, value_name = "S", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Which faults, and in which order when, come from this
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The faults to draw from
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',', value_enum)]
    #[arg(default_value = "kill,stop,pause,kill-client,cut,half,reset,rolling,power,minority")]
    faults: Vec<Fault>,
    /// The TTL of the clients' locks
    #[arg(long, value_name = "SPAN", default_value = "2s")]
    ttl: Span,
    /// Keep the histories and logs in this folder, one below it for each
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A cluster and what is special about it.
struct Setup {
    name: &'static str,
    shape: Shape,
    thin: u32,
}

/// What is put through the faults.
fn setups() -> Vec<Setup> {
    let system = |quorum: &str| Shape {
        quorum: Some(quorum.to_owned()),
        ..Shape::default()
    };
    let setup = |name, shape| Setup {
        name,
        shape,
        thin: 3,
    };
    vec![
        setup("majority(5)", system("majority(5)")),
        setup(
            "majority(5), durable",
            Shape {
                restart: Some(Restart::Durable),
                ..system("majority(5)")
            },
        ),
        setup("billiard(12)", system("billiard(12)")),
        setup("tree(7)", system("tree(7)")),
        setup(
            "clusters of clusters, 9 nodes",
            system("multilevel(tree, 9, levels=1)"),
        ),
        setup(
            "surficial(groups=2, n=4), groups red and blue",
            Shape {
                groups: vec!["red".to_owned(), "blue".to_owned()],
                ..system("surficial(groups=2, n=4)")
            },
        ),
        Setup {
            name: "majority(5), serial",
            shape: Shape {
                policy: vec![PolicyText {
                    prefix: "chaos/".to_owned(),
                    max_inside: None,
                    max_bypass: None,
                    protocol: Some(ProtocolText::Serial),
                    choice: None,
                }],
                ..system("majority(5)")
            },
            // Serial locks have no handles, so thin clients cannot take them.
            thin: 0,
        },
    ]
}

impl All {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let runtime = runtime()?;
        let mut told = Vec::new();
        let mut broken = false;
        let mut table = output::table(&[
            "CLUSTER",
            "ENTERED, SMART",
            "ENTERED, THIN",
            "CRASHES",
            "LOST",
            "LATE WRITES REFUSED",
            "LONGEST PAUSE",
            "VIOLATIONS",
        ]);
        for (place, setup) in setups().into_iter().enumerate() {
            anstream::eprintln!("== {}", setup.name);
            let run = Run {
                shape: setup.shape,
                smart: 6,
                thin: setup.thin,
                names: 4,
                ttl: self.ttl,
                seconds: self.seconds,
                seed: Seeds::one(self.seed),
                faults: self.faults.clone(),
                keep: self.keep.as_ref().map(|keep| keep.join(place.to_string())),
                hosts: false,
                json: self.json,
            };
            let report = runtime.block_on(run.play(self.seed))?;
            if !report.holds() && !self.json {
                report.show()?;
            }
            broken |= !report.holds();
            let mut row = vec![setup.name.to_owned()];
            row.extend(report.cells());
            table.add_row(row);
            let mut one = report.json();
            if let Value::Object(fields) = &mut one {
                fields.insert("cluster".to_owned(), json!(setup.name));
            }
            told.push(one);
        }
        if self.json {
            output::line(json!({"runs": told}).to_string())?;
        } else {
            output::print(&table)?;
        }
        if broken {
            return Err(Failure::Violation);
        }
        Ok(())
    }
}
