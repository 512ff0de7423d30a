//! Objects hold under every seed and in every schedule of the acceptance table that needs a world,
//! and the checkers find what is broken on purpose.

use conclave_protocol::object::plant::Plant;
use conclave_sim::fact::Violation;
use conclave_sim::object::figures::calm;
use conclave_sim::object::liar::Habit;
use conclave_sim::object::{Family, Frame, Options, Outcome, cost, run, swarm};

fn played(options: &Options) -> Outcome {
    run(options, None).expect("every seed makes a run")
}

fn violation(options: &Options) -> Option<Violation> {
    played(options).violation
}

fn sized(nodes: u32, byzantine: u32) -> Frame {
    Frame {
        size: Some((nodes, byzantine)),
        ..Frame::default()
    }
}

#[test]
fn objects_hold() {
    for frame in [sized(7, 1), sized(13, 2), Frame::default()] {
        for seed in 1..=30 {
            let options = swarm(frame, seed);
            assert_eq!(violation(&options), None, "{options}");
        }
    }
}

/// Fewer nodes do if attempts are given up by time-outs.
#[test]
fn objects_hold_with_timed_aborts() {
    for (nodes, byzantine) in [(5, 1), (6, 1), (9, 2)] {
        let frame = Frame {
            timed: true,
            ..sized(nodes, byzantine)
        };
        for seed in 1..=20 {
            let options = swarm(frame, seed);
            assert_eq!(violation(&options), None, "{options}");
        }
    }
}

/// Three clients with three operations each, losses, deaths in each phase, and a liar that backs
/// whoever loses.
#[test]
fn rivals_and_a_liar_that_backs_the_losers() {
    for seed in 1..=60 {
        let options = Options {
            seed,
            lie: Habit::Back,
            duel: true,
            raw: true,
            loss: 0.02,
            crash: 0.08,
            delay_ms: 100,
            order_ms: 1000,
            ..Options::default()
        };
        assert_eq!(violation(&options), None, "{options}");
    }
}

/// Two clients may run the same undetermined operation; one result survives, and it is the one
/// that is told.
#[test]
fn of_undetermined_results_one_survives() {
    for seed in 1..=40 {
        let options = Options {
            seed,
            random: 1.0,
            reads: 0.0,
            duel: true,
            crash: 0.2,
            clients: 4,
            ..Options::default()
        };
        assert_eq!(violation(&options), None, "{options}");
    }
}

/// With nobody dying every operation returns, whatever the liars do.
#[test]
fn everything_returns() {
    for habit in Habit::ALL {
        for seed in 1..=4 {
            let options = Options {
                seed,
                lie: habit,
                clients: 5,
                ops: 4,
                toy: Family::Map,
                loss: 0.05,
                ..Options::default()
            };
            assert_eq!(violation(&options), None, "{options}");
        }
    }
}

/// Reads without a rank amid writes are fresh, and most of them need no rank.
#[test]
fn reads_amid_writes_are_fresh() {
    let (mut peeks, mut refreshes) = (0, 0);
    for seed in 1..=30 {
        let options = Options {
            seed,
            reads: 0.7,
            ops: 6,
            toy: Family::Register,
            ledger: 0.5,
            lie: Habit::Mix,
            ..Options::default()
        };
        let outcome = played(&options);
        assert_eq!(outcome.violation, None, "{options}");
        peeks += outcome.counters.peeks;
        refreshes += outcome.counters.refreshes;
    }
    assert!(peeks > refreshes, "{peeks} {refreshes}");
}

/// A node may die at any write, just before it is on disk or just after.
#[test]
fn a_node_dies_at_every_write() {
    let plain = Options {
        clients: 3,
        ops: 2,
        reads: 0.0,
        lie: Habit::Stale,
        ..Options::default()
    };
    let writes = played(&plain).syncs;
    assert!(writes > 20, "{writes}");
    for kill_at in 1..=2 * writes {
        let options = Options {
            kill_at,
            ..plain.clone()
        };
        let outcome = played(&options);
        assert_eq!(outcome.violation, None, "{options}");
    }
}

/// A client that knows nothing needs one lease and four round trips, the vote's included.
#[test]
fn one_operation_costs_one_lease_and_four_round_trips() {
    for seed in 1..=10 {
        let outcome = played(&calm(false, 1, seed));
        assert_eq!(outcome.violation, None, "seed {seed}");
        let counters = outcome.counters;
        assert_eq!(
            (
                counters.contends,
                counters.gets,
                counters.proposes,
                counters.commits
            ),
            (1, 1, 1, 1),
            "seed {seed}"
        );
        assert_eq!((counters.outranked, counters.timeouts), (0, 0));
    }
}

/// One winner serves all who wait, and the rules first published cost more.
#[test]
fn one_winner_serves_all() {
    let ours = cost(false, 8, 6).expect("a run");
    assert!(ours.versions < 1.5, "{ours:?}");
    let (one, published) = (cost(false, 1, 6), cost(true, 1, 6));
    let (one, published) = (one.expect("a run"), published.expect("a run"));
    assert!(one.mean < 0.6, "{one:?}");
    assert!(published.mean > 4.0 * one.mean, "{published:?}");
}

#[test]
fn every_planted_bug_is_found_and_nothing_without_it() {
    let mut wrong = Vec::new();
    for plant in Plant::ALL.iter().copied() {
        let frame = Frame {
            plant: Some(plant),
            ..Frame::default()
        };
        let hunt = (1..=400).find_map(|seed| {
            let options = swarm(frame, seed);
            violation(&options).map(|found| (seed, options, found))
        });
        let Some((seed, options, found)) = hunt else {
            wrong.push(format!("{} is not found", plant.name()));
            continue;
        };
        println!("{} {seed} {}", plant.name(), found.property);
        let options = options.without_plant();
        if let Some(found) = violation(&options) {
            wrong.push(format!("{options} breaks without it: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
