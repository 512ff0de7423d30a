//! Objects in the simulator.

use clap::Args;
use conclave_protocol::fault::{Aborts, Faults};
use conclave_protocol::object::plant::Plant;
use conclave_sim::Outcome;
use conclave_sim::fuzz::{FuzzReport, Sweep, caught, sweep};
use conclave_sim::object::{Cost, Frame, Options, cost, run, swarm};
use conclave_sim::trace::Line;
use serde_json::{Value, json};

use super::faulty::{Faulty, RuleBook};
use super::planted::Planted;
use super::short;
use crate::cli::Failure;
use crate::output::{self, Progress};

/// Which worlds of objects to draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    frame: Frame,
}

impl Objects {
    /// What the flags ask for, refused if no object can come of it. Five or six times as many
    /// nodes as liars do only if attempts are given up by time-outs alone.
    pub(crate) fn new(faulty: Faulty, plant: Option<Planted>) -> Result<Self, Failure> {
        let paper = faulty.rules == RuleBook::Paper;
        let plant = match plant {
            Some(Planted::Object(plant)) => Some(plant),
            _ => None,
        };
        if paper && plant.is_some() {
            return Err(Failure::input(
                "bugs are planted in the rules of the service: leave out --rules or --plant",
            ));
        }
        let mut frame = Frame {
            paper,
            plant,
            ..Frame::default()
        };
        if let Some((nodes, liars)) = faulty.size() {
            let faults = Faults::new(nodes, liars).map_err(Failure::input)?;
            frame.timed = !paper && faults.ordering(Aborts::Vouched).is_err();
            frame.size = Some((nodes as u32, liars as u32));
            let options = swarm(frame, 1);
            options.config().map_err(Failure::input)?;
        }
        Ok(Self { frame })
    }

    /// Worlds that show a bug.
    pub(crate) fn planted(plant: Plant) -> Self {
        let frame = Frame {
            plant: Some(plant),
            ..Frame::default()
        };
        Self { frame }
    }

    /// Runs all seeds.
    pub(crate) fn fuzz(self, seeds: &Sweep, progress: &(dyn Fn(u64) + Sync)) -> FuzzReport {
        sweep(
            seeds,
            &|seed| outcome(&swarm(self.frame, seed)),
            &|seed| swarm(self.frame, seed).to_string(),
            progress,
        )
    }
}

fn outcome(options: &Options) -> Outcome {
    caught(|| run(options, None).map(conclave_sim::object::Outcome::plain))
}

/// The options of a token of objects; none if it is a token of something else.
pub(crate) fn token(text: &str) -> Option<Result<Options, Failure>> {
    let mut parts = text.split(';').map(str::trim);
    parts.any(|part| part == "protocol=object").then(|| {
        let options: Options = text.parse().map_err(|error| {
            Failure::Input(format!("the token is not one that a run prints: {error}"))
        })?;
        options.config().map_err(Failure::input)?;
        Ok(options)
    })
}

/// Runs the world of a token once more without its planted bug.
pub(crate) fn without_plant(replay: &str) -> Option<Outcome> {
    let options: Options = replay.parse().ok()?;
    Some(outcome(&options.without_plant()))
}

/// Runs a world and tells what happens in it.
pub(crate) fn replayed(options: &Options, tracer: &mut dyn FnMut(&Line)) -> Outcome {
    let mut show = |line: &Line| tracer(line);
    caught(|| run(options, Some(&mut show)).map(conclave_sim::object::Outcome::plain))
}

#[derive(Debug, Args)]
pub(crate) struct Costs {
    /// How many clients submit one operation each, all at the same time
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,8,64"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: Vec<u32>,
    /// How many runs of each
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Costs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut rows = Vec::new();
        let progress = (!self.json).then(|| Progress::new("measuring"));
        let total = 2 * self.clients.len() as u64;
        for paper in [false, true] {
            for clients in &self.clients {
                let cost = cost(paper, *clients, self.runs).map_err(Failure::input)?;
                rows.push((paper, cost));
                if let Some(progress) = &progress {
                    progress.set(rows.len() as u64, total);
                }
            }
        }
        drop(progress);
        if self.json {
            let rows: Vec<Value> = rows.iter().map(as_json).collect();
            return output::json(&json!({ "runs": self.runs, "costs": rows }));
        }
        let mut table = output::table(&[
            "RULES", "CLIENTS", "MEAN", "LAST", "CONTENDS", "ROUNDS", "VERSIONS",
        ]);
        for (paper, cost) in &rows {
            table.add_row([
                rules(*paper).to_owned(),
                cost.clients.to_string(),
                short(cost.mean),
                short(cost.last),
                short(cost.contends),
                short(cost.rounds),
                short(cost.versions),
            ]);
        }
        output::print(&table)?;
        output::line(
            "7 nodes, one silent; times in spans of the lease for ordering, of which a message \
             takes up to a tenth",
        )
    }
}

fn rules(paper: bool) -> &'static str {
    if paper { "published" } else { "ours" }
}

fn as_json((paper, cost): &(bool, Cost)) -> Value {
    json!({
        "rules": rules(*paper),
        "clients": cost.clients,
        "mean": cost.mean,
        "last": cost.last,
        "contends": cost.contends,
        "rounds": cost.rounds,
        "versions": cost.versions,
    })
}
