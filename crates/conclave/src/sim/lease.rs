//! Leases in the simulator.

use conclave_protocol::fault::Faults;
use conclave_protocol::lease::plant::Plant;
use conclave_sim::Outcome;
use conclave_sim::fuzz::{FuzzReport, Sweep, caught, sweep};
use conclave_sim::lease::{LeaseOptions, run, swarm};
use conclave_sim::trace::Line;

use super::faulty::{Faulty, RuleBook};
use super::planted::Planted;
use crate::cli::Failure;

/// The most nodes of a simulated cluster with liars.
const NODES_MAX: usize = 100;

/// Which worlds of leases to draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leases {
    size: Option<(u32, u32)>,
    paper: bool,
    plant: Option<Plant>,
}

impl Leases {
    /// What the flags ask for, refused if no lease can come of it.
    pub(crate) fn new(faulty: Faulty, plant: Option<Planted>) -> Result<Self, Failure> {
        let paper = faulty.rules == RuleBook::Paper;
        let plant = match plant {
            Some(Planted::Lease(plant)) => Some(plant),
            _ => None,
        };
        if paper && plant.is_some() {
            return Err(Failure::input(
                "bugs are planted in the rules of the service: leave out --rules or --plant",
            ));
        }
        if let Some((nodes, liars)) = faulty.size() {
            let faults = Faults::new(nodes, liars).map_err(Failure::input)?;
            if paper {
                faults.mutex().map_err(Failure::input)?;
            }
            if nodes > NODES_MAX {
                return Err(Failure::Input(format!(
                    "{nodes} nodes are too many: leases are simulated with at most {NODES_MAX}"
                )));
            }
        }
        let size = faulty
            .size()
            .map(|(nodes, liars)| (nodes as u32, liars as u32));
        Ok(Self { size, paper, plant })
    }

    /// Worlds that show a bug.
    pub(crate) fn planted(plant: Plant) -> Self {
        Self {
            size: None,
            paper: false,
            plant: Some(plant),
        }
    }

    fn options(self, seed: u64) -> LeaseOptions {
        swarm(seed, self.size, self.paper, self.plant)
    }

    /// Runs all seeds.
    pub(crate) fn fuzz(self, seeds: &Sweep, progress: &(dyn Fn(u64) + Sync)) -> FuzzReport {
        sweep(
            seeds,
            &|seed| caught(|| run(&self.options(seed), None).map(|run| run.outcome)),
            &|seed| self.options(seed).to_string(),
            progress,
        )
    }
}

/// The options of a token of leases; none if it is a token of something else.
pub(crate) fn token(text: &str) -> Option<Result<LeaseOptions, Failure>> {
    let mut parts = text.split(';').map(str::trim);
    parts.any(|part| part == "protocol=lease").then(|| {
        let options: LeaseOptions = text.parse().map_err(|error| {
            Failure::Input(format!("the token is not one that a run prints: {error}"))
        })?;
        options.config().map_err(Failure::input)?;
        Ok(options)
    })
}

/// Runs the world of a token once more without its planted bug.
pub(crate) fn without_plant(replay: &str) -> Option<Outcome> {
    let mut options: LeaseOptions = replay.parse().ok()?;
    options.plant = None;
    Some(caught(|| run(&options, None).map(|run| run.outcome)))
}

/// Runs a world and tells what happens in it.
pub(crate) fn replayed(options: &LeaseOptions, tracer: &mut dyn FnMut(&Line)) -> Outcome {
    caught(|| run(options, Some(&mut |line: &Line| tracer(line))).map(|run| run.outcome))
}
