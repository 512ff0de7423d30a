//! Locks on hierarchies hold under every seed, the checkers find what is broken on purpose, and
//! entries cost what they should.

use std::sync::Arc;

use conclave_protocol::multilevel::{LevelPlant, Topology};
use conclave_quorum::construct::multilevel::Clusters;
use conclave_sim::fuzz::caught;
use conclave_sim::multilevel::{Kind, LevelOptions, Measured, Scenario, run, swarm, world};
use conclave_sim::trace::Line;

fn violation(options: &LevelOptions) -> Option<String> {
    let broken = caught(|| world::check(options, None)).violation?;
    Some(format!("{}: {}", broken.property, broken.what))
}

#[test]
fn locks_on_hierarchies_hold() {
    for seed in 1..=120 {
        let options = swarm(seed, 0..=3, false, None);
        assert_eq!(violation(&options), None, "{options}");
    }
}

/// Looks for the bugs in every fourth place, so that all cores have something to do.
fn hunt(part: usize) {
    let mut missed = Vec::new();
    for plant in LevelPlant::ALL.into_iter().skip(part).step_by(4) {
        let found = (1..=400).find_map(|seed| {
            let options = swarm(seed, 0..=3, false, Some(plant));
            violation(&options).map(|_| options)
        });
        let Some(options) = found else {
            missed.push(plant.name());
            continue;
        };
        let clean = LevelOptions {
            plant: None,
            ..options
        };
        assert_eq!(violation(&clean), None, "{clean}");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn planted_bugs_are_found_and_nothing_without_them() {
    hunt(0);
}

#[test]
fn more_planted_bugs_are_found() {
    hunt(1);
}

#[test]
fn yet_more_planted_bugs_are_found() {
    hunt(2);
}

#[test]
fn the_rest_of_the_planted_bugs_is_found() {
    hunt(3);
}

/// The text as it was published hangs, and runs in circles.
#[test]
fn the_published_protocol_breaks_in_many_ways() {
    let broken = (1..=30).filter_map(|seed| violation(&swarm(seed, 0..=3, true, None)));
    let mut kinds: Vec<String> = broken
        .map(|what| what.split(':').next().unwrap_or_default().to_owned())
        .collect();
    assert!(kinds.len() > 15, "{kinds:?}");
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.len() > 1, "{kinds:?}");
    assert!(
        kinds.iter().any(|kind| kind == "everybody-gets-in"),
        "{kinds:?}"
    );
}

#[test]
fn a_seed_gives_the_same_trace_to_the_byte() {
    for seed in [2, 11, 31] {
        let options = swarm(seed, 0..=3, false, None);
        let trace = || {
            let mut text = String::new();
            let mut tracer = |line: &Line| {
                text.push_str(&line.to_string());
                text.push('\n');
            };
            world::check(&options, Some(&mut tracer)).expect("a world");
            text
        };
        let first = trace();
        assert!(first.len() > 1000, "{options}");
        assert!(first == trace(), "{options}");
    }
}

fn measured(nodes: usize, levels: usize, up: f64, kind: Kind, entries: u64) -> Measured {
    let clusters = Clusters::build(nodes, levels).expect("a hierarchy");
    let mut scenario = Scenario::new(Arc::new(Topology::trees(clusters)), up);
    (scenario.kind, scenario.entries) = (kind, entries);
    run(&scenario, &mut |_| ())
}

/// What an entry costs in a network of 1200 nodes stays within a few hundredths of the sum of
/// its quorums, and the best number of levels grows as nodes fail more often.
#[test]
fn messages_are_those_predicted() {
    for (up, levels, within) in [
        (1.0, 0, 0.05),
        (1.0, 1, 0.03),
        (0.95, 1, 0.03),
        (0.8, 2, 0.03),
    ] {
        let found = measured(1200, levels, up, Kind::Parallel, 2000);
        let ratio = found.messages_per_entry / found.predicted;
        assert!((ratio - 1.0).abs() < within, "{up} {levels}: {found:?}");
        assert_eq!(found.entries, 2000);
    }
}

/// Announcements save most of the waiting for the levels above.
#[test]
fn levels_that_ask_at_once_wait_less() {
    for (levels, most) in [(1, 0.75), (2, 0.65)] {
        let at_once = measured(1200, levels, 0.95, Kind::Parallel, 1500);
        let in_turn = measured(1200, levels, 0.95, Kind::Sequential, 1500);
        let ratio = at_once.waiting_mean / in_turn.waiting_mean;
        assert!(ratio < most, "{levels} levels: {ratio}");
        assert!(in_turn.elections_per_entry > 1.0, "{in_turn:?}");
        assert_eq!(at_once.elections_per_entry, 0.0);
    }
}

/// Members of one group are inside together.
#[test]
fn groups_share_the_lock() {
    let clusters = Clusters::build(64, 1).expect("a hierarchy");
    let mut scenario = Scenario::new(Arc::new(Topology::trees(clusters)), 1.0);
    (scenario.entries, scenario.gap, scenario.hold) = (1000, 5000, 200);
    let alone = run(&scenario, &mut |_| ());
    scenario.groups = 1;
    let together = run(&scenario, &mut |_| ());
    assert_eq!(alone.concurrency, 1.0);
    assert!(together.concurrency > 1.3, "{together:?}");
}

/// An entry that nothing disturbs takes as long as its messages: 8 to send each of a burst, 12 on
/// the way.
#[test]
fn an_undisturbed_entry_takes_the_time_of_its_messages() {
    for (nodes, levels, expected) in [(7, 0, 56.0), (15, 0, 64.0), (49, 1, 104.0), (343, 2, 144.0)]
    {
        let clusters = Clusters::build(nodes, levels).expect("a hierarchy");
        let mut scenario = Scenario::new(Arc::new(Topology::trees(clusters)), 1.0);
        (scenario.way, scenario.send) = ((12.0, 0.0), (8.0, 0.0));
        (scenario.entries, scenario.gap) = (400, 50_000_000);
        let found = run(&scenario, &mut |_| ());
        assert_eq!(found.waiting_p50, expected, "{nodes} {levels}");
    }
}
