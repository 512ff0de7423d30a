//! Many seeds, all cores, one report.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::options::Options;
use super::swarm::{Frame, swarm};
use super::world::{Outcome, run};
use crate::fact::{True, Violation};
use crate::fuzz::Finding;

/// What to run.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// What all runs have in common.
    pub frame: Frame,
    /// Which seeds.
    pub seeds: RangeInclusive<u64>,
    /// How many runs at once; zero takes all cores.
    pub threads: usize,
    /// Whether to stop at the smallest seed that breaks something.
    pub stop_at_first: bool,
}

/// What many runs have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuzzReport {
    /// How many runs were made.
    pub runs: u64,
    /// How many operations and reads were answered.
    pub done: u64,
    /// How many events happened.
    pub events: u64,
    /// How many client processes died.
    pub crashes: u64,
    /// How many node processes died.
    pub kills: u64,
    /// What was broken, by seed.
    pub violations: Vec<Finding>,
}

/// One run; a panic of the machines is a violation of its own.
pub fn run_caught(options: &Options) -> Outcome {
    let fault = |property: &'static str, what: String| Outcome {
        violation: Some(Violation {
            property,
            at: True(0),
            what,
        }),
        ..Outcome::default()
    };
    match catch_unwind(AssertUnwindSafe(|| run(options, None))) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => fault("options", error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            fault("panic", text.unwrap_or_default())
        }
    }
}

/// Runs all seeds. `progress` is told after each run how many are done; the report does not depend
/// on the number of threads.
pub fn fuzz(what: &Fuzz, progress: &(dyn Fn(u64) + Sync)) -> FuzzReport {
    let next = AtomicU64::new(*what.seeds.start());
    let done = AtomicU64::new(0);
    let broken = AtomicU64::new(u64::MAX);
    let results: Mutex<Vec<(u64, Outcome)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let past = what.stop_at_first && seed > broken.load(Ordering::Relaxed);
            if seed > *what.seeds.end() || past {
                break;
            }
            let mut outcome = run_caught(&swarm(what.frame, seed));
            outcome.waits = Vec::new();
            if outcome.violation.is_some() {
                broken.fetch_min(seed, Ordering::Relaxed);
            }
            if let Ok(mut results) = results.lock() {
                results.push((seed, outcome));
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if what.threads == 0 {
        cores
    } else {
        what.threads
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    report(what, results.into_inner().unwrap_or_default())
}

fn report(what: &Fuzz, mut results: Vec<(u64, Outcome)>) -> FuzzReport {
    results.sort_by_key(|(seed, _)| *seed);
    if what.stop_at_first
        && let Some(first) = results.iter().position(|(_, run)| run.violation.is_some())
    {
        results.truncate(first + 1);
    }
    let mut report = FuzzReport::default();
    for (seed, outcome) in results {
        report.runs += 1;
        report.done += outcome.done;
        report.events += outcome.events;
        report.crashes += outcome.crashes;
        report.kills += outcome.kills;
        if let Some(violation) = outcome.violation {
            report.violations.push(Finding {
                seed,
                property: violation.property.to_owned(),
                what: violation.what,
                replay: swarm(what.frame, seed).to_string(),
            });
        }
    }
    report
}
