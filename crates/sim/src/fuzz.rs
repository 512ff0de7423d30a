//! Many seeds, all cores, one report.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use conclave_protocol::lock::{Plant, Protocol};

use crate::fact::{True, Violation};
use crate::invariants;
use crate::options::{Options, OptionsError};
use crate::swarm::swarm;
use crate::world::{Outcome, run};

/// What many runs have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuzzReport {
    /// How many runs were made.
    pub runs: u64,
    /// How many locks were entered in them.
    pub grants: u64,
    /// How many events happened in them.
    pub events: u64,
    /// What was broken, by seed.
    pub violations: Vec<Finding>,
}

/// A property that was broken in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The run's seed.
    pub seed: u64,
    /// The property; `panic` if the run ended with one.
    pub property: String,
    /// What happened.
    pub what: String,
    /// The token that replays the run.
    pub replay: String,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// Which protocol.
    pub protocol: Protocol,
    /// Which seeds.
    pub seeds: RangeInclusive<u64>,
    /// A bug planted on purpose.
    pub plant: Option<Plant>,
    /// How many runs at once; zero takes all cores.
    pub threads: usize,
    /// Whether to stop at the first violation. The report then has the smallest seed with one,
    /// and counts the runs up to it.
    pub stop_at_first: bool,
}

/// Which seeds to run, and how.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Which seeds.
    pub seeds: RangeInclusive<u64>,
    /// How many runs at once; zero takes all cores.
    pub threads: usize,
    /// Whether to stop at the first violation. The report then has the smallest seed with one,
    /// and counts the runs up to it.
    pub stop_at_first: bool,
}

/// One run with all checkers.
pub fn run_checked(options: &Options) -> Result<Outcome, OptionsError> {
    let config = options.config(true)?;
    run(options, &mut invariants::all(&config), None)
}

/// As [`run_checked`]; a panic of the machines is a violation of its own.
pub fn run_caught(options: &Options) -> Outcome {
    caught(|| run_checked(options))
}

/// What a run comes to; a panic in it, or options it cannot be made of, are violations.
pub fn caught<E: std::fmt::Display>(run: impl FnOnce() -> Result<Outcome, E>) -> Outcome {
    let result = catch_unwind(AssertUnwindSafe(run));
    let fault = |property: &'static str, what: String| Outcome {
        violation: Some(Violation {
            property,
            at: True(0),
            what,
        }),
        ..Outcome::default()
    };
    match result {
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
    let seeds = Sweep {
        seeds: what.seeds.clone(),
        threads: what.threads,
        stop_at_first: what.stop_at_first,
    };
    let options = |seed| swarm(what.protocol, seed, what.plant);
    sweep(
        &seeds,
        &|seed| run_caught(&options(seed)),
        &|seed| options(seed).to_string(),
        progress,
    )
}

/// Runs all seeds of any world: `run` is a function of the seed, `replay` the token of its run.
pub fn sweep(
    what: &Sweep,
    run: &(dyn Fn(u64) -> Outcome + Sync),
    replay: &dyn Fn(u64) -> String,
    progress: &(dyn Fn(u64) + Sync),
) -> FuzzReport {
    let next = AtomicU64::new(*what.seeds.start());
    let done = AtomicU64::new(0);
    let spent = AtomicBool::new(what.seeds.is_empty());
    // With `stop_at_first`, seeds above the smallest broken one need not be run.
    let broken = AtomicU64::new(u64::MAX);
    let results: Mutex<Vec<(u64, Outcome)>> = Mutex::new(Vec::new());
    let work = || {
        while !spent.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let past = what.stop_at_first && seed > broken.load(Ordering::Relaxed);
            if seed > *what.seeds.end() || past {
                spent.store(true, Ordering::Relaxed);
                break;
            }
            let outcome = run(seed);
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
    let results = results.into_inner().unwrap_or_default();
    report(what.stop_at_first, replay, results)
}

fn report(
    stop_at_first: bool,
    replay: &dyn Fn(u64) -> String,
    mut results: Vec<(u64, Outcome)>,
) -> FuzzReport {
    results.sort_by_key(|(seed, _)| *seed);
    if stop_at_first {
        let first = results.iter().position(|(_, run)| run.violation.is_some());
        if let Some(first) = first {
            results.truncate(first + 1);
        }
    }
    let mut report = FuzzReport::default();
    for (seed, outcome) in results {
        report.runs += 1;
        report.grants += outcome.grants;
        report.events += outcome.events;
        if let Some(violation) = outcome.violation {
            report.violations.push(Finding {
                seed,
                property: violation.property.to_owned(),
                what: violation.what,
                replay: replay(seed),
            });
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_finding() {
        let outcome = caught::<OptionsError>(|| panic!("invariant: broken on purpose"));
        let violation = outcome.violation.unwrap();
        assert_eq!(violation.property, "panic");
        assert_eq!(violation.what, "invariant: broken on purpose");
        let refused = caught::<OptionsError>(|| {
            let options: Options = "clients=0".parse()?;
            run_checked(&options)
        });
        assert_eq!(refused.violation.unwrap().property, "options");
    }

    #[test]
    fn a_report_stops_at_the_smallest_broken_seed() {
        let replay = |seed| swarm(Protocol::Parallel, seed, None).to_string();
        let broken = || caught::<OptionsError>(|| panic!("x"));
        let results = || vec![(4, broken()), (2, broken()), (1, Outcome::default())];
        let seeds = |report: &FuzzReport| -> Vec<u64> {
            report
                .violations
                .iter()
                .map(|finding| finding.seed)
                .collect()
        };
        let all = report(false, &replay, results());
        assert_eq!((all.runs, seeds(&all)), (3, vec![2, 4]));
        let first = report(true, &replay, results());
        assert_eq!((first.runs, seeds(&first)), (2, vec![2]));
        let token: Options = first.violations[0].replay.parse().unwrap();
        assert_eq!(token.seed, 2);
    }
}
