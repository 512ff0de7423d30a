//! What serial locks cost in the world, and that faults do not break them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of a test panic like the test itself"
)]

use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::measure::Measures;
use conclave_sim::{Fuzz, FuzzReport, Options, fuzz, run_checked};

/// Nothing goes wrong.
fn calm(system: &str) -> Options {
    Options {
        protocol: Protocol::Serial,
        system: system.to_owned(),
        clients: 1,
        names: 1,
        asks: 40,
        exclusive: 1.0,
        cancel: 0.0,
        deadline: 0.0,
        attempt: 0.0,
        together: 0.0,
        detach: 0.0,
        span_ms: 20_000,
        ..Options::default()
    }
}

/// Quorums of one system may differ in size, but one lock uses one of them.
fn quorum_size(measures: &Measures) -> f64 {
    let size: f64 = measures.load.iter().sum();
    assert!(size >= 1.0 && (size - size.round()).abs() < 1e-9, "{size}");
    size.round()
}

#[test]
fn an_uncontended_entry_costs_two_messages_a_member_and_one() {
    for system in [
        "majority(5)",
        "billiard(12)",
        "grid(9)",
        "billiard(4)",
        "singleton(3)",
    ] {
        let options = calm(system);
        let outcome = run_checked(&options).unwrap();
        assert_eq!(outcome.violation, None, "{system}");
        assert_eq!(outcome.grants, 40, "{system}");
        let measures = outcome.measures;
        let size = quorum_size(&measures);
        assert!(
            (measures.messages_per_entry - (2.0 * size + 1.0)).abs() < 1e-9,
            "{system}: {:?}",
            measures.messages_by_kind
        );
        assert_eq!(measures.calm_delay, Some(size + 1.0), "{system}");
        assert_eq!(measures.raises_per_entry, 0.0, "{system}");
    }
}

#[test]
fn contention_costs_nothing_more() {
    for system in ["majority(5)", "billiard(12)"] {
        let options = Options {
            clients: 12,
            think_ms: 1,
            hold_ms: 3,
            hot: 1.0,
            asks: 30,
            latency: "uniform:200:3000".parse().unwrap(),
            ..calm(system)
        };
        let outcome = run_checked(&options).unwrap();
        assert_eq!(outcome.violation, None, "{system}");
        assert_eq!(outcome.grants, 360, "{system}");
        let measures = outcome.measures;
        let size = quorum_size(&measures);
        assert!(
            (measures.messages_per_entry - (2.0 * size + 1.0)).abs() < 1e-9,
            "{system}: {:?}",
            measures.messages_by_kind
        );
        assert_eq!(measures.raises_per_entry, 0.0);
        assert_eq!(measures.inside_max, 1);
    }
}

#[test]
fn a_group_that_nobody_disturbs_is_inside_all_at_once() {
    let options = Options {
        clients: 10,
        exclusive: 0.0,
        shared: 1.0,
        hold_ms: 2000,
        asks: 3,
        ..calm("majority(5)")
    };
    let outcome = run_checked(&options).unwrap();
    assert_eq!(outcome.violation, None);
    assert_eq!(outcome.measures.inside_max, 10);
}

fn seeds(last: u64, plant: Option<Plant>) -> FuzzReport {
    let what = Fuzz {
        protocol: Protocol::Serial,
        seeds: 1..=last,
        plant,
        threads: 0,
        stop_at_first: plant.is_some(),
    };
    fuzz(&what, &|_| {})
}

#[test]
fn faults_break_nothing() {
    let report = seeds(150, None);
    assert_eq!(report.violations, []);
    assert!(report.grants > 5_000, "{}", report.grants);
}

#[test]
fn an_unlock_that_does_not_name_its_request_is_found() {
    let report = seeds(100, Some(Plant::SerialUnlockWithoutRequest));
    assert_eq!(report.violations.len(), 1);
}
