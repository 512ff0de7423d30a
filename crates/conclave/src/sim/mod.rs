//! The simulator on the command line.

use std::ops::RangeInclusive;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use clap::Subcommand;
use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::fact::{Checker, True, Violation};
use conclave_sim::world::Tracer;
use conclave_sim::{Options, Outcome};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::figures::Figures;

mod bench;
mod demo;
mod faulty;
mod fuzz;
mod lease;
mod multilevel;
mod object;
mod planted;
mod plants;
mod plot;
mod record;
mod replay;
pub(crate) mod run;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one world and measure it; exit 1 if a property breaks
    #[command(after_help = "Examples:\n  \
        conclave sim run --system 'billiard(24)' --clients 100 --groups 3\n  \
        conclave sim run --system 'billiard(24)' --clients 100 --faults heavy --seed 7\n  \
        conclave sim run --system 'majority(5)' --clients 20 --groups 2 --plot out.svg\n  \
        conclave sim run --system 'grid(16)' --groups 2 --compare exclusive,maekawa,ra1,central\n  \
        conclave sim run --protocol multilevel --up 0.95 --entries 5000\n  \
        conclave sim run --protocol primary-backup --scenario paper --up 0.8 --retry 50\n\n\
        Protocols: lock, lock-serial, exclusive (every wish exclusive),\n\
            and older ones without faults: maekawa, maekawa-at-once, maekawa-1985,\n\
            ricart, ra1, ra2, central, backup;\n\
            multilevel: one lock on a hierarchy of clusters, in the published set-up.")]
    Run(run::Run),
    /// Run a world for every seed, with all checkers; exit 1 if a property breaks
    #[command(after_help = "Examples:\n  conclave sim fuzz --seeds 1..1000\n  \
        conclave sim fuzz --protocol lock-serial --seeds 1..300\n  \
        conclave sim fuzz --protocol lease --nodes 7 --byzantine 1 --seeds 1..1000\n  \
        conclave sim fuzz --protocol lease --rules paper --seeds 1..200\n  \
        conclave sim fuzz --protocol object --nodes 7 --byzantine 1 --seeds 1..1000\n  \
        conclave sim fuzz --protocol multilevel --levels 1..3 --seeds 1..1000\n  \
        conclave sim fuzz --plant yield-inside --seeds 1..400     # stops at the first seed")]
    Fuzz(fuzz::Fuzz),
    /// List the bugs that can be planted, or show how soon each is found
    #[command(after_help = "Examples:\n  conclave sim plants\n  conclave sim plants --find 1..400")]
    Plants(plants::Plants),
    /// Run one world again and print what happens in it; exit 1 if a property breaks
    #[command(
        after_help = "Examples:\n  conclave sim replay 'seed=7;clients=4' --to 0.1\n  \
        conclave sim replay 'seed=7;clients=4;crash=1' --from 1.2 --to 1.5 --node 3"
    )]
    Replay(replay::Replay),
    /// Put small clusters through faults and tell what held; exit 1 if a property breaks
    #[command(after_help = "Example:\n  conclave sim demo --worlds 300")]
    Demo(demo::Demo),
    /// Make the figures and tables of the papers, with a page that says which claims held
    #[command(
        after_help = "Examples:\n  conclave sim figures all --out figures --quick\n  \
        conclave sim figures multilevel --out figures --seed 7\n  \
        conclave sim figures backoff --out figures --json\n\n\
        Each figure is a CSV file and a picture as SVG and PNG; index.html shows them all, with\n\
        what the paper claims and what was found, and errata.html what is wrong in the papers."
    )]
    Figures(Figures),
    /// Measure what an operation on an object costs, by our rules and by those first published
    #[command(after_help = "Example:\n  conclave sim objects --clients 1,8,64 --runs 20")]
    Objects(object::Costs),
    /// Measure how many events a second the simulator handles, checkers off and on
    #[command(after_help = "Example:\n  conclave sim bench --system 'majority(1001)'")]
    Bench(bench::Bench),
}

/// Runs one command of the simulator.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => run.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Plants(plants) => plants.run(),
        Command::Replay(replay) => replay.run(),
        Command::Demo(demo) => demo.run(),
        Command::Figures(figures) => figures.run(),
        Command::Objects(costs) => costs.run(),
        Command::Bench(bench) => bench.run(),
    }
}

/// The most seeds of one command.
const SEEDS_MAX: u64 = 10_000_000;

/// Seeds: one, or an inclusive range `A..B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    from: u64,
    to: u64,
}

impl Seeds {
    /// One seed.
    pub(crate) fn one(seed: u64) -> Self {
        Self {
            from: seed,
            to: seed,
        }
    }

    pub(crate) fn all(self) -> RangeInclusive<u64> {
        self.from..=self.to
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let seed = |text: &str| -> Result<u64, String> {
            text.parse()
                .map_err(|_| "seeds are a number, or a range A..B of whole numbers".to_owned())
        };
        let (from, to) = (seed(from)?, seed(to)?);
        if from > to {
            return Err("a range A..B goes upwards".to_owned());
        }
        if to - from >= SEEDS_MAX {
            return Err(format!("at most {SEEDS_MAX} seeds at once"));
        }
        Ok(Self { from, to })
    }
}

/// A protocol that can be fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Machines {
    /// Requests go to all members of a quorum at once
    Lock,
    /// Requests travel from member to member
    LockSerial,
    /// Leases from nodes of which some lie
    Lease,
    /// Objects kept by nodes of which some lie
    Object,
    /// One lock on a hierarchy of clusters
    Multilevel,
}

impl Machines {
    /// The protocol of locks, if it is one.
    pub(crate) fn locks(self) -> Option<Protocol> {
        match self {
            Self::Lock => Some(Protocol::Parallel),
            Self::LockSerial => Some(Protocol::Serial),
            Self::Lease | Self::Object | Self::Multilevel => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::LockSerial => "lock-serial",
            Self::Lease => "lease",
            Self::Object => "object",
            Self::Multilevel => "multilevel",
        }
    }
}

/// The planted bug of locks of this name.
pub(crate) fn plant(name: &str) -> Result<Plant, Failure> {
    Plant::named(name).ok_or_else(|| {
        Failure::Input(format!(
            "there is no planted bug '{name}' of locks: 'conclave sim plants' lists them"
        ))
    })
}

const NODES_MAX: usize = 100_000;
/// Pairs of clients and nodes that the world keeps something about.
const PAIRS_MAX: usize = 20_000_000;
/// Nodes of a world in which the network falls apart.
const NODES_FAULTY_MAX: usize = 3_000;
/// A fault or use of the resource a microsecond is the most that makes sense.
const RATE_MAX: f64 = 1e6;
const DAY_MS: f64 = 86_400_000.0;

/// Refuses options that no run can be made of, or that would not end or fit.
pub(crate) fn checked(options: &Options) -> Result<(), Failure> {
    for part in options.to_string().split(';') {
        let Some((key, value)) = part.split_once('=') else {
            continue;
        };
        let Ok(number) = value.parse::<f64>() else {
            continue;
        };
        let most = if key == "seed" {
            f64::INFINITY
        } else if key.ends_with("_ms") {
            DAY_MS
        } else if key.ends_with("_us") {
            DAY_MS * 1000.0
        } else {
            RATE_MAX
        };
        if number > most {
            return Err(Failure::Input(format!(
                "option {key}: {value} is too much: give at most {most}"
            )));
        }
    }
    let nodes = options.build_system().map_err(Failure::input)?.nodes();
    let clients = options.clients as usize;
    if nodes > NODES_MAX {
        return Err(Failure::Input(format!(
            "{nodes} nodes are too many: a run takes at most {NODES_MAX}"
        )));
    }
    if nodes.saturating_mul(clients) > PAIRS_MAX {
        return Err(Failure::Input(format!(
            "{clients} clients of {nodes} nodes are too many pairs: a run takes at most \
             {PAIRS_MAX}; lower --clients or take a smaller system"
        )));
    }
    if options.has_faults() && nodes > NODES_FAULTY_MAX {
        return Err(Failure::Input(format!(
            "{nodes} nodes are too many for a run with faults, which takes at most \
             {NODES_FAULTY_MAX}: leave faults out or take a smaller system"
        )));
    }
    options.config(false).map_err(Failure::input)?;
    Ok(())
}

/// The command that replays a run.
pub(crate) fn replay_command(token: &str) -> String {
    format!("conclave sim replay '{token}'")
}

/// Keeps panics of the machines, which are findings, from writing to standard error.
pub(crate) fn quiet_panics() {
    panic::set_hook(Box::new(|_| {}));
}

/// Runs a world. A panic of the machines is a violation like any other.
pub(crate) fn guarded<'a>(
    options: &'a Options,
    checkers: &'a mut [Box<dyn Checker>],
    tracer: Option<Tracer<'a>>,
) -> Result<Outcome, Failure> {
    match catch_unwind(AssertUnwindSafe(|| {
        conclave_sim::run(options, checkers, tracer)
    })) {
        Ok(outcome) => outcome.map_err(Failure::input),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Ok(Outcome {
                violation: Some(Violation {
                    property: "panic",
                    at: True(0),
                    what: text.unwrap_or_default(),
                }),
                ..Outcome::default()
            })
        }
    }
}

/// What a run has broken.
pub(crate) fn violation_json(outcome: &Outcome) -> Value {
    let Some(violation) = &outcome.violation else {
        return Value::Null;
    };
    json!({
        "property": violation.property,
        "at": violation.at.0 as f64 / 1e9,
        "what": violation.what,
    })
}

/// A whole number with commas between the thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with so few decimals that it reads well in a table.
pub(crate) fn short(value: f64) -> String {
    let text = if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    };
    if text.contains('.') {
        let text = text.trim_end_matches('0').trim_end_matches('.');
        return text.to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_with_both_ends() {
        let seeds: Seeds = "1..400".parse().unwrap();
        assert_eq!(seeds.all(), 1..=400);
        assert_eq!("7".parse(), Ok(Seeds { from: 7, to: 7 }));
        for wrong in ["", "..", "1..", "5..4", "-1..3", "a", "0..99999999"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_that_would_not_end_or_fit_are_refused() {
        let refused = |token: &str| {
            let options: Options = token.parse().unwrap();
            checked(&options).unwrap_err()
        };
        for token in [
            "act_ms=18446744073709551615",
            "hedge_us=18446744073709551615",
            "lead_ms=18446744073709551615",
            "reset=1e300",
            "clients=100000;system=majority(1001)",
            "system=majority(99999);crash=1;clients=1",
            "system=threshold(4, 2)",
            "system=majority(",
            "clients=0",
        ] {
            assert!(matches!(refused(token), Failure::Input(_)), "{token}");
        }
        assert!(checked(&Options::default()).is_ok());
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
        assert_eq!(short(3.0), "3");
        assert_eq!(short(21.04), "21");
        assert_eq!(short(1200.4), "1200");
    }
}
