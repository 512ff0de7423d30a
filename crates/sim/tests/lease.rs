//! Leases hold under every seed, and the checkers find what is broken on purpose.

use conclave_protocol::lease::plant::Plant;
use conclave_sim::fact::Violation;
use conclave_sim::lease::{LeaseOptions, run, swarm};

fn violation(options: &LeaseOptions) -> Option<Violation> {
    let outcome = run(options, None);
    outcome.expect("every seed makes a run").outcome.violation
}

#[test]
fn leases_hold() {
    for size in [
        Some((4, 1)),
        Some((6, 1)),
        Some((7, 1)),
        Some((11, 2)),
        None,
    ] {
        for seed in 1..=40 {
            let options = swarm(seed, size, false, None);
            assert_eq!(violation(&options), None, "{options}");
        }
    }
}

#[test]
fn every_planted_bug_is_found_and_nothing_without_it() {
    let mut missed = Vec::new();
    for plant in Plant::ALL {
        let hunt = (1..=400).find_map(|seed| {
            let options = swarm(seed, None, false, Some(*plant));
            violation(&options).map(|found| (seed, options, found))
        });
        let Some((seed, options, found)) = hunt else {
            missed.push(plant.name());
            continue;
        };
        println!("{} {seed} {}", plant.name(), found.property);
        let clean = LeaseOptions {
            plant: None,
            ..options
        };
        assert_eq!(violation(&clean), None, "{clean}");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn the_published_protocol_breaks_in_two_ways() {
    let mut kinds: Vec<&str> = (1..=200)
        .filter_map(|seed| violation(&swarm(seed, None, true, None)))
        .map(|violation| violation.property)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.contains(&"overlap (delayed list)"), "{kinds:?}");
    assert!(kinds.contains(&"overlap (late answer)"), "{kinds:?}");
}

/// Clocks a fifth fast are safe if everybody allows for it.
#[test]
fn fast_clocks_that_are_allowed_for_do_no_harm() {
    let mut broken = 0;
    for seed in 1..=60 {
        let mut options = swarm(seed, None, false, Some(Plant::FastNodes));
        broken += u32::from(violation(&options).is_some());
        options.drift_ppm = 200_000;
        options.plant = None;
        options.fast_ppm = 200_000;
        assert_eq!(violation(&options), None, "{options}");
    }
    assert!(broken > 10, "{broken}");
}
