//! The model checker exhausts small systems without a violation, and finds planted bugs.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::model::{ModelError, ModelOptions, ModelReport, check};

/// Three requesters that enter once each.
fn small() -> ModelOptions {
    ModelOptions {
        entries: 1,
        states_max: 2_000_000,
        ..ModelOptions::default()
    }
}

fn explore(options: &ModelOptions) -> ModelReport {
    check(options, &mut |_| {}).unwrap()
}

/// Every state was visited and nothing was wrong in any.
fn holds(options: &ModelOptions, least: usize) {
    let report = explore(options);
    assert_eq!(report.violations, [], "{options:?}");
    assert!(report.exhausted, "{options:?}: {}", report.states);
    assert!(report.states >= least, "{options:?}: {}", report.states);
    assert!(report.transitions > report.states);
}

#[test]
fn exclusive_locks_hold_in_every_state() {
    holds(&small(), 4_000);
    let spread = ModelOptions {
        spread: true,
        ..small()
    };
    holds(&spread, 10_000);
    let notes = ModelOptions {
        notes: true,
        ..small()
    };
    holds(&notes, 10_000);
}

#[test]
fn group_locks_hold_in_every_state() {
    for (system, least) in [("billiard(4)", 6_000), ("surficial(groups=2, n=4)", 4_000)] {
        let groups = ModelOptions {
            system: system.to_owned(),
            groups: 2,
            ..small()
        };
        holds(&groups, least);
        let strict = ModelOptions {
            max_inside: 1,
            max_bypass: 0,
            ..groups
        };
        holds(&strict, 2_000);
    }
}

#[test]
fn two_requesters_survive_cancel_expiry_and_crash() {
    for (cancels, expiries, crashes) in [(2, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)] {
        let faults = ModelOptions {
            requesters: 2,
            cancels,
            expiries,
            crashes,
            ..small()
        };
        holds(&faults, 1_000);
    }
}

#[test]
fn two_quorums_that_share_one_node_survive_an_expiry() {
    let options = ModelOptions {
        system: "expr(1*3 + 2*3)".to_owned(),
        requesters: 2,
        spread: true,
        expiries: 1,
        ..small()
    };
    holds(&options, 1_000);
}

/// The system over which a published form of the serial protocol breaks exclusion: a request
/// that comes again while its last round is still locked must wait.
#[test]
fn serial_locks_hold_in_every_state() {
    let serial = ModelOptions {
        protocol: Protocol::Serial,
        ..small()
    };
    holds(&serial, 800);
    let groups = ModelOptions {
        groups: 2,
        ..serial.clone()
    };
    holds(&groups, 1_000);
    let two = ModelOptions {
        system: "expr(1*3 + 2*3)".to_owned(),
        requesters: 2,
        entries: 3,
        spread: true,
        ..serial
    };
    holds(&two, 1_000);
    for (cancels, expiries, crashes) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let faults = ModelOptions {
            entries: 2,
            cancels,
            expiries,
            crashes,
            ..two.clone()
        };
        holds(&faults, 1_000);
    }
    let cancels = ModelOptions { cancels: 1, ..two };
    finds("serial-unlock-without-request", "admission", cancels);
}

/// The bug is found, as a violation of this property, with a trace.
fn finds(plant: &str, property: &str, options: ModelOptions) {
    let options = ModelOptions {
        plant: Some(Plant::named(plant).unwrap()),
        ..options
    };
    let report = explore(&options);
    let found = report.violations.iter();
    let found = found.clone().find(|found| found.property == property);
    let found = found.unwrap_or_else(|| panic!("{plant}: {report:?}"));
    assert!(!report.exhausted);
    let asks = options.requesters;
    assert!(
        found.trace[..asks]
            .iter()
            .all(|line| line.ends_with("asks"))
    );
    assert!(found.trace.len() > asks, "{found:?}");
}

#[test]
fn planted_bugs_are_found() {
    let two = ModelOptions {
        requesters: 2,
        ..small()
    };
    finds("yield-inside", "exclusion", small());
    finds("failed-rule", "deadlock", small());
    let cancels = ModelOptions {
        cancels: 1,
        ..two.clone()
    };
    finds("no-request-on-locked", "exclusion", cancels);
    let refill = ModelOptions {
        groups: 1,
        max_inside: 1,
        cancels: 1,
        ..small()
    };
    finds("literal-refill", "max_inside", refill);
    let expiry = ModelOptions {
        expiries: 1,
        ..two.clone()
    };
    finds("silent-expiry", "deadlock", expiry);
    let expiries = ModelOptions { expiries: 2, ..two };
    finds("no-floor-on-expiry", "admission", expiries);
}

/// It takes one expiry to force a raise, and another to make the raise come too late at the only
/// node that the next holder shares.
#[test]
fn an_entry_before_its_raise_is_found() {
    let apart = ModelOptions {
        system: "expr(1*3 + 2*3)".to_owned(),
        spread: true,
        expiries: 2,
        ..small()
    };
    finds("enter-before-raised", "admission", apart);
}

/// Two holders at once, on the shortest way there.
#[test]
fn a_counterexample_reads_as_a_story() {
    let options = ModelOptions {
        requesters: 2,
        plant: Plant::named("yield-inside"),
        ..small()
    };
    let report = explore(&options);
    let found = &report.violations[0];
    assert_eq!(
        found.what,
        "c1 (exclusive) and c2 (exclusive) are inside together"
    );
    let story = found.trace.join("\n");
    for part in [
        "n1 hears from c2: REQUEST",
        "; c2 enters with token",
        ": YIELD",
    ] {
        assert!(story.contains(part), "{story}");
    }
    assert!(
        found.trace.last().unwrap().contains("; c1 enters"),
        "{story}"
    );
    // Two requests of two messages each way, two inquiries answered: no step is wasted.
    assert_eq!(found.trace.len(), 2 + 4 + 4 + 4, "{story}");
}

#[test]
fn a_search_may_be_bounded_and_tells_how_far_it_is() {
    let options = ModelOptions {
        requesters: 3,
        cancels: 1,
        states_max: 70_000,
        ..small()
    };
    let mut told = Vec::new();
    let report = check(&options, &mut |progress| told.push(progress)).unwrap();
    assert!(!report.exhausted);
    assert!(report.violations.is_empty());
    // The bound is looked at between states, each of which has a few successors.
    assert!((70_000..70_100).contains(&report.states));
    assert!(!told.is_empty() && told[0].states < report.states);
}

#[test]
fn what_cannot_be_explored_is_refused() {
    let refused = |options: ModelOptions| check(&options, &mut |_| {}).unwrap_err();
    let none = ModelOptions {
        requesters: 0,
        ..small()
    };
    assert_eq!(refused(none), ModelError::Requesters);
    let wide = ModelOptions {
        system: "majority(65)".to_owned(),
        ..small()
    };
    assert_eq!(refused(wide), ModelError::Nodes);
    let loose = ModelOptions {
        system: "expr(1 + 2)".to_owned(),
        ..small()
    };
    assert!(matches!(refused(loose), ModelError::Quorums(_)));
    let nonsense = ModelOptions {
        system: "heap(3)".to_owned(),
        ..small()
    };
    assert!(matches!(refused(nonsense), ModelError::System { .. }));
}
