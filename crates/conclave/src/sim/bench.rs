//! `conclave sim bench`.

use std::time::Instant;

use clap::Args;
use conclave_sim::fact::Checker;
use conclave_sim::{Options, invariants, run};
use serde_json::json;

use super::run::load;
use super::{checked, short, thousands};
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The quorum system
    #[arg(long, default_value = "grid(1024)")]
    system: String,
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How many lock names
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    names: u32,
    /// How many seconds of virtual time
    #[arg(long, value_name = "S", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How often each is run; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut options = load(self.clients, 0, self.seconds);
        options.system.clone_from(&self.system);
        options.names = self.names;
        checked(&options)?;
        let (events, off) = self.best(&options, false)?;
        let (watched, on) = self.best(&options, true)?;
        if self.json {
            return output::json(&json!({
                "system": self.system,
                "events": events,
                "events_per_second": off,
                "events_with_checkers": watched,
                "events_per_second_with_checkers": on,
            }));
        }
        let mut table = output::table(&["CHECKERS", "EVENTS", "MILLION EVENTS A SECOND"]);
        table.add_row(["off", &thousands(events), &short(off / 1e6)]);
        table.add_row(["on", &thousands(watched), &short(on / 1e6)]);
        output::print(&table)?;
        output::line(format!(
            "\n{}, {} clients, {} locks, one core, the best of {} rounds",
            self.system, self.clients, self.names, self.rounds
        ))
    }

    /// The events of a run, and the best rate of all rounds.
    fn best(&self, options: &Options, watched: bool) -> Result<(u64, f64), Failure> {
        let mut best: f64 = 0.0;
        let mut events = 0;
        for _ in 0..self.rounds {
            let config = options.config(watched).map_err(Failure::input)?;
            let mut checkers: Vec<Box<dyn Checker>> = if watched {
                invariants::all(&config)
            } else {
                Vec::new()
            };
            let start = Instant::now();
            let outcome = run(options, &mut checkers, None).map_err(Failure::input)?;
            let seconds = start.elapsed().as_secs_f64();
            if let Some(violation) = outcome.violation {
                output::line(format!("{}: {}", violation.property, violation.what))?;
                return Err(Failure::Violation);
            }
            events = outcome.events;
            best = best.max(outcome.events as f64 / seconds.max(1e-9));
        }
        Ok((events, best))
    }
}
