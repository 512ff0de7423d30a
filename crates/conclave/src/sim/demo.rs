//! `conclave sim demo`: a simulated cluster goes through faults, and what held is told.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use conclave_protocol::lock::Protocol;
use conclave_sim::trace::Line;
use conclave_sim::{Options, demo, invariants, swarm};
use serde_json::{Value, json};

use super::run::{Measured, Subject, load, measure_lock};
use super::{guarded, quiet_panics, replay_command, short, thousands};
use crate::cli::Failure;
use crate::output::{self, Progress};

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How many worlds go through faults
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    worlds: u64,
    /// How many more go through the faults of `conclave demo`, with the times of real nodes
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=10_000))]
    demos: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000_000_000))]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the trace of a run says about faults, by how the line begins, and what people call it.
const FAULTS: [(&str, &str, &str); 11] = [
    (
        "* goes DOWN, its disk",
        "disks_lost",
        "of them without their disk",
    ),
    ("* the connection breaks", "resets", "connections reset"),
    ("* Up stalls", "stalls", "one-way stalls of a connection"),
    ("* Down stalls", "stalls", "one-way stalls of a connection"),
    (
        "* partition until",
        "partitions",
        "partitions of the network",
    ),
    ("* is paused", "pauses", "processes paused and resumed"),
    ("* CRASHES", "client_crashes", "clients killed"),
    ("* drains", "drains", "nodes stopped cleanly"),
    (
        "* the wall clock is off",
        "clock_jumps",
        "wall clocks set wrong",
    ),
    ("* EXPIRES", "expiries", "live sessions expired by a node"),
    ("* goes DOWN", "crashes", "nodes killed"),
];

/// The properties that are watched, in plain words.
const PROPERTIES: [(&str, &str); 14] = [
    (
        "exclusion",
        "different groups were never inside at the same true time",
    ),
    (
        "token-order",
        "tokens grew from holder to conflicting holder",
    ),
    ("admission", "the resource refused only holders of the past"),
    (
        "lost-in-time",
        "whoever lost a lock knew before anybody else got it",
    ),
    (
        "grounded",
        "every holder rested on grants of its own request",
    ),
    ("max-inside", "no node let more in at once than it may"),
    (
        "bypass",
        "late members passed a waiting request only so often",
    ),
    (
        "migration",
        "whoever was served first as a holder had been granted a quorum",
    ),
    ("no-forgotten", "once faults had ended, every request ended"),
    (
        "served-in-time",
        "whoever a quorum could serve was served, also during faults",
    ),
    ("kept", "holds that a quorum could keep were kept"),
    ("next-step", "nothing waited without a timer"),
    ("memory", "nodes kept only what is live"),
    ("structure", "every queue of every node was in order"),
];

/// What many worlds have been through.
#[derive(Default)]
struct Survey {
    worlds: u64,
    events: u64,
    grants: u64,
    lost: u64,
    refused: u64,
    faults: BTreeMap<&'static str, u64>,
    /// Property, what happened, token: of runs that broke something.
    broken: Vec<(String, String, String)>,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        quiet_panics();
        let progress = (!self.json).then(|| Progress::new("breaking things"));
        let survey = self.survey(progress.as_ref());
        if let Some(progress) = &progress {
            progress.say("measuring");
        }
        let system = "billiard(24)";
        let calm = measured(system, 1, 0, 20)?;
        let groups = measured(system, 60, 3, 5)?;
        let exclusive = measured(system, 60, 0, 5)?;
        drop(progress);
        if self.json {
            output::json(&json!({
                "worlds": survey.as_json(),
                "alone": calm.as_json(),
                "groups": groups.as_json(),
                "exclusive": exclusive.as_json(),
            }))?;
        } else {
            survey.print()?;
            print_cost(system, &calm)?;
            print_groups(system, &groups, &exclusive)?;
            print_end(&survey)?;
        }
        let all = [&calm, &groups, &exclusive];
        if !survey.broken.is_empty() || all.iter().any(|one| one.violation.is_some()) {
            return Err(Failure::Violation);
        }
        Ok(())
    }

    /// Runs all worlds on all cores.
    fn survey(&self, progress: Option<&Progress>) -> Survey {
        let next = AtomicU64::new(0);
        let whole = Mutex::new(Survey::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let work = || loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= self.worlds + self.demos {
                break;
            }
            // The long ones first.
            let one = if place < self.demos {
                world(&demo(self.seed + place, None))
            } else {
                let seed = self.seed + place - self.demos;
                world(&swarm(Protocol::Parallel, seed, None))
            };
            if let Ok(mut whole) = whole.lock() {
                whole.add(one);
                if let Some(progress) = progress {
                    progress.set(whole.worlds, self.worlds + self.demos);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(work);
            }
        });
        whole.into_inner().unwrap_or_default()
    }
}

/// One world with all checkers, and what its trace says.
fn world(options: &Options) -> Survey {
    let mut survey = Survey {
        worlds: 1,
        ..Survey::default()
    };
    let mut look = |line: &Line| survey.see(&line.text);
    let outcome = options
        .config(true)
        .map_err(Failure::input)
        .and_then(|config| guarded(options, &mut invariants::all(&config), Some(&mut look)));
    if let Ok(outcome) = outcome {
        survey.events = outcome.events;
        survey.grants = outcome.grants;
        if let Some(violation) = outcome.violation {
            let property = violation.property.to_owned();
            let token = options.to_string();
            survey.broken.push((property, violation.what, token));
        }
    }
    survey
}

fn measured(system: &str, clients: u32, groups: u32, seconds: u64) -> Result<Measured, Failure> {
    let options = Options {
        system: system.to_owned(),
        ..load(clients, groups, seconds)
    };
    measure_lock(Subject::Lock(Protocol::Parallel), &options, true, false)
}

impl Survey {
    fn see(&mut self, text: &str) {
        let Some(rest) = text.strip_prefix("* ") else {
            return;
        };
        for (start, key, _) in FAULTS {
            if text.starts_with(start) {
                *self.faults.entry(key).or_default() += 1;
            }
        }
        // A lost disk is no lost lock.
        let lost = rest.ends_with("is LOST") && !rest.starts_with("goes DOWN");
        self.lost += u64::from(lost);
        self.refused += u64::from(rest.ends_with("REFUSED"));
    }

    fn add(&mut self, one: Self) {
        self.worlds += one.worlds;
        self.events += one.events;
        self.grants += one.grants;
        self.lost += one.lost;
        self.refused += one.refused;
        for (key, count) in one.faults {
            *self.faults.entry(key).or_default() += count;
        }
        self.broken.extend(one.broken);
        self.broken.sort();
    }

    fn count(&self, key: &str) -> u64 {
        self.faults.get(key).copied().unwrap_or(0)
    }

    fn print(&self) -> Result<(), Failure> {
        let worlds = thousands(self.worlds);
        output::line(format!(
            "{worlds} small clusters were put through faults, then healed: {} events.\n",
            thousands(self.events)
        ))?;
        let mut table = output::table(&["WHAT HAPPENED", "TIMES"]);
        table.add_row(["locks entered", &thousands(self.grants)]);
        let mut shown: Vec<&str> = Vec::new();
        for key in ["crashes", "disks_lost"] {
            self.add_row(&mut table, key, &mut shown);
        }
        for (_, key, _) in FAULTS {
            self.add_row(&mut table, key, &mut shown);
        }
        table.add_row([
            "holders told that their lock is lost",
            &thousands(self.lost),
        ]);
        let refused = "uses of the resource with a token of the past, refused";
        table.add_row([refused, &thousands(self.refused)]);
        output::print(&table)?;
        output::line("")?;
        let mut table = output::table(&["WHAT HELD", ""]);
        for (property, words) in PROPERTIES {
            let broken = self.broken.iter().filter(|(name, _, _)| name == property);
            let result = match broken.count() {
                0 => "held".to_owned(),
                times => format!("BROKEN {times} times"),
            };
            table.add_row([words, &result]);
        }
        output::print(&table)
    }

    fn add_row(&self, table: &mut comfy_table::Table, key: &'static str, shown: &mut Vec<&str>) {
        if shown.contains(&key) {
            return;
        }
        shown.push(key);
        if let Some((_, _, words)) = FAULTS.iter().find(|(_, known, _)| *known == key) {
            table.add_row([*words, &thousands(self.count(key))]);
        }
    }

    fn as_json(&self) -> Value {
        let broken = self.broken.iter().map(|(property, what, token)| {
            json!({ "property": property, "what": what, "replay": token })
        });
        json!({
            "runs": self.worlds,
            "events": self.events,
            "grants": self.grants,
            "lost": self.lost,
            "refused": self.refused,
            "faults": self.faults,
            "properties": PROPERTIES.map(|(name, _)| name),
            "violations": broken.collect::<Vec<_>>(),
        })
    }
}

fn print_cost(system: &str, calm: &Measured) -> Result<(), Failure> {
    let measures = &calm.measures;
    let messages = short(measures.messages_per_entry);
    let delay = measures.calm_delay.map_or("-".to_owned(), short);
    output::line(format!(
        "\nOne client alone on {system}: {messages} messages per entry, inside after {delay} \
         message delays."
    ))
}

fn print_groups(system: &str, groups: &Measured, exclusive: &Measured) -> Result<(), Failure> {
    output::line(format!(
        "\n60 clients on one lock of {system}, the same load once in 3 groups, once exclusive:\n"
    ))?;
    let mut table = output::table(&[
        "LOCK",
        "ENTRIES A SECOND",
        "MEAN WAIT",
        "99 % WITHIN",
        "INSIDE AT ONCE",
    ]);
    for (name, one) in [("group", groups), ("exclusive", exclusive)] {
        let measures = &one.measures;
        table.add_row([
            name.to_owned(),
            short(one.throughput()),
            format!("{} ms", short(measures.wait.mean)),
            format!("{} ms", short(measures.wait.p99)),
            format!("{} on average", short(measures.inside_mean)),
        ]);
    }
    output::print(&table)
}

fn print_end(survey: &Survey) -> Result<(), Failure> {
    for (property, what, token) in survey.broken.iter().take(3) {
        output::line(format!("\n{property} BROKE: {what}"))?;
        output::line(format!("replay: {}", replay_command(token)))?;
    }
    if survey.broken.is_empty() {
        output::line(
            "\nEvery property held. More: conclave sim fuzz --seeds 1..1000, conclave check lock",
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace_are_counted() {
        let mut survey = Survey::default();
        for line in [
            "* goes DOWN",
            "* goes DOWN, its disk is LOST",
            "* Up stalls until 1.0",
            "* client 1 is LOST",
            "LOCKED",
        ] {
            survey.see(line);
        }
        assert_eq!(survey.count("crashes"), 2);
        assert_eq!(survey.count("disks_lost"), 1);
        assert_eq!(survey.count("stalls"), 1);
        assert_eq!(survey.lost, 1);
    }
}
