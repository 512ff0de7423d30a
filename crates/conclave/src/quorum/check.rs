//! `conclave quorum check`.

use clap::Args;
use conclave_quorum::System;
use conclave_quorum::check::{Counterexample, Report, Verdict, check};
use serde_json::{Map, Value, json};

use super::Target;
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    target: Target,
    /// Group names and the cartels they are to use, for example red=1,blue=2
    #[arg(long, value_name = "NAME=CARTEL", value_delimiter = ',')]
    assign: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let built = match self.target.build() {
            Err(Failure::Broken(why)) => return self.broken(&why),
            built => built?,
        };
        self.register(&built.system, &built.text)?;
        let report = check(&built.system, built.given.as_deref());
        if self.json {
            output::json(&as_json(&built.text, &built.system, &report))?;
        } else {
            print(&built.text, &built.system, &report)?;
        }
        if report.ok() {
            Ok(())
        } else {
            Err(Failure::Violation)
        }
    }

    /// A file whose groups do not meet: there is no system to look further at.
    fn broken(&self, why: &str) -> Result<(), Failure> {
        if self.json {
            output::json(&json!({
                "ok": false,
                "properties": { "intersection": false },
                "counterexample": { "property": "intersection", "text": why },
            }))?;
        } else {
            output::line(format!("violation: intersection fails: {why}"))?;
        }
        Err(Failure::Violation)
    }

    fn register(&self, system: &System, text: &str) -> Result<(), Failure> {
        if self.assign.is_empty() {
            return Ok(());
        }
        let System::Groups(groups) = system else {
            return Err(Failure::Input(format!(
                "'{text}' has no groups: leave out --assign, or use a group system"
            )));
        };
        let mut pairs = Vec::new();
        for pair in &self.assign {
            let wrong = || {
                let message = "write NAME=CARTEL, with cartels from 1";
                Failure::Input(format!("'{pair}' is no assignment: {message}"))
            };
            let (name, cartel) = pair.rsplit_once('=').ok_or_else(wrong)?;
            let cartel: usize = cartel.parse().map_err(|_| wrong())?;
            if name.is_empty() {
                return Err(wrong());
            }
            pairs.push((name.to_owned(), cartel.checked_sub(1).ok_or_else(wrong)?));
        }
        groups.register(pairs).map(|_| ()).map_err(Failure::input)
    }
}

fn as_json(text: &str, system: &System, report: &Report) -> Value {
    let mut properties = Map::new();
    let mut details = Map::new();
    for property in &report.properties {
        let (holds, example) = match &property.verdict {
            Verdict::Holds => (Value::Bool(true), Value::Null),
            Verdict::Fails(example) => (Value::Bool(false), Value::String(example.to_string())),
            Verdict::Unknown => (Value::Null, Value::Null),
        };
        properties.insert(property.name.to_owned(), holds);
        let detail = json!({
            "required": property.required,
            "how": property.how,
            "counterexample": example,
        });
        details.insert(property.name.to_owned(), detail);
    }
    properties.insert("degree".to_owned(), json!(report.degree));
    let counterexample = report.failure().map(|(property, example)| {
        json!({
            "property": property.name,
            "text": example.to_string(),
            "quorums": sets(example),
        })
    });
    json!({
        "system": text,
        "n": system.nodes(),
        "kind": system.kind(),
        "ok": report.ok(),
        "properties": properties,
        "details": details,
        "counterexample": counterexample,
    })
}

fn sets(example: &Counterexample) -> Vec<Vec<usize>> {
    let sets = match example {
        Counterexample::Apart { pair, .. } => vec![&pair.left, &pair.right],
        Counterexample::Contained { small, large } => vec![small, large],
        Counterexample::Undecided(set) | Counterexample::Blocking(set) => vec![set],
        Counterexample::Excluded { quorum, .. } => quorum.iter().collect(),
        Counterexample::Sizes(..) | Counterexample::Responsibility { .. } => vec![],
    };
    sets.into_iter()
        .map(|set| set.numbers().collect())
        .collect()
}

fn print(text: &str, system: &System, report: &Report) -> Result<(), Failure> {
    let promise = match system {
        System::Coterie(_) => "any two quorums meet",
        System::Masking(_) => "any two quorums meet in enough nodes to outvote liars",
        System::Groups(_) => "quorums of different groups meet",
        System::Loose(_) => "nothing is promised; checked as a coterie",
    };
    output::line(format!(
        "{text}: {} nodes, {} ({promise})\n",
        system.nodes(),
        system.kind()
    ))?;
    let mut table = output::table(&["PROPERTY", "HOLDS", "HOW", "COUNTEREXAMPLE"]);
    for property in &report.properties {
        let (holds, example) = match &property.verdict {
            Verdict::Holds => ("yes", String::new()),
            Verdict::Fails(example) if property.required => ("NO", example.to_string()),
            Verdict::Fails(example) => ("no", example.to_string()),
            Verdict::Unknown => ("unknown", String::new()),
        };
        table.add_row([
            property.name,
            holds,
            &property.how,
            &output::clip(&example, 100),
        ]);
    }
    let degree = format!("at least {}", report.degree);
    table.add_row(["degree", &degree, "disjoint quorums found", ""]);
    output::print(&table)?;
    match report.failure() {
        None => output::line("\nok: no promised property fails"),
        Some((property, example)) => {
            output::line(format!("\nviolation: {} fails: {example}", property.name))
        }
    }
}
