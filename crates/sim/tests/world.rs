//! The world as a whole: it is the same for the same seed, counts what it should, breaks what it
//! should, and ends.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of a test panic like the test itself"
)]

use std::cell::RefCell;
use std::rc::Rc;

use conclave_protocol::lock::{Choice, Plant, Protocol};
use conclave_sim::fact::{Checker, Eyes, Fact, True, Violation};
use conclave_sim::measure::Measures;
use conclave_sim::net::Latency;
use conclave_sim::trace::Line;
use conclave_sim::{Fuzz, Options, demo, fuzz, invariants, run, run_checked, swarm};

/// One wish after another, nobody in the way, nothing wrong.
fn calm(system: &str) -> Options {
    Options {
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
        hedge_us: 100_000,
        span_ms: 20_000,
        ..Options::default()
    }
}

/// Quorums of one system may differ in size, but without faults one lock uses one of them.
fn quorum_size(measures: &Measures) -> f64 {
    let size: f64 = measures.load.iter().sum();
    assert!(size >= 1.0 && (size - size.round()).abs() < 1e-9, "{size}");
    size.round()
}

#[test]
fn an_uncontended_entry_costs_three_messages_a_member_and_two_delays() {
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
            (measures.messages_per_entry - 3.0 * size).abs() < 1e-9,
            "{system}: {:?}",
            measures.messages_by_kind
        );
        assert_eq!(measures.calm_delay, Some(2.0), "{system}");
        assert_eq!(measures.raises_per_entry, 0.0, "{system}");
    }
}

#[test]
fn contention_costs_at_most_twice_as_much_and_no_raises() {
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
        assert!(measures.messages_per_entry <= 6.0 * quorum_size(&measures));
        assert_eq!(measures.raises_per_entry, 0.0);
        assert!(measures.sync_delay.unwrap() > 0.5);
        assert!(measures.fairness > 0.95, "{}", measures.fairness);
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

#[test]
fn a_seed_is_one_run_whoever_looks() {
    for seed in [3, 14] {
        let options = swarm(Protocol::Parallel, seed, None);
        let first = run_checked(&options).unwrap();
        assert_eq!(first, run_checked(&options).unwrap());
        let mut lines = 0;
        let mut count = |_: &Line| lines += 1;
        let config = options.config(true).unwrap();
        let mut checkers = invariants::all(&config);
        let traced = run(&options, &mut checkers, Some(&mut count)).unwrap();
        assert_eq!(first, traced);
        assert!(lines > 1000, "{lines}");
        let token = options.to_string();
        assert_eq!(first, run_checked(&token.parse().unwrap()).unwrap());
    }
}

#[test]
fn seeds_hold_and_the_report_does_not_depend_on_the_threads() {
    let what = |threads| Fuzz {
        protocol: Protocol::Parallel,
        seeds: 1..=24,
        plant: None,
        threads,
        stop_at_first: false,
    };
    let report = fuzz(&what(2), &|_| {});
    assert_eq!(report.violations, []);
    assert_eq!(report.runs, 24);
    assert!(report.grants > 1000, "{}", report.grants);
    assert_eq!(report, fuzz(&what(1), &|_| {}));
}

/// Counts what happens, to see that faults are faults.
struct Counter(Rc<RefCell<Seen>>);

#[derive(Default)]
struct Seen {
    counts: std::collections::BTreeMap<&'static str, u32>,
    over: bool,
    waiting: usize,
}

impl Checker for Counter {
    fn property(&self) -> &'static str {
        "counter"
    }

    fn watch(&mut self, _: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let mut seen = self.0.borrow_mut();
        let what = match fact {
            Fact::Entered { .. } => "entered",
            Fact::Lost { .. } => "lost",
            Fact::Vanished { .. } => "vanished",
            Fact::Moved { .. } => "moved",
            Fact::Acted { admitted, .. } if !admitted => "refused",
            Fact::NodeDown { disk_lost, .. } if *disk_lost => "disk lost",
            Fact::NodeDown { .. } => "down",
            Fact::NodeUp { .. } => "up",
            Fact::ExpiredBySpite { .. } => "spite",
            Fact::Reclaimed { .. } => "reclaimed",
            Fact::Over => {
                seen.over = true;
                seen.waiting = eyes.waiting().len();
                "over"
            }
            _ => "other",
        };
        *seen.counts.entry(what).or_default() += 1;
        Ok(())
    }
}

/// Everything at once, and often.
fn storm(seed: u64) -> Options {
    Options {
        seed,
        clients: 8,
        names: 2,
        reset: 5.0,
        late: 0.5,
        stall: 3.0,
        partition: 0.5,
        loss: 0.1,
        crash: 2.0,
        blackout: 0.1,
        again: 0.3,
        disk_lost: 0.3,
        drain: 1.0,
        node_pause: 1.0,
        client_pause: 5.0,
        client_crash: 2.0,
        expire: 4.0,
        revoke: 2.0,
        jump: 2.0,
        jump_ms: 200,
        pause_ms: 900,
        act_ms: 5,
        hold_ms: 150,
        span_ms: 6000,
        ..Options::default()
    }
}

#[test]
fn everything_goes_wrong_and_then_everything_ends() {
    const RUNS: u32 = 24;
    let seen = Rc::new(RefCell::new(Seen::default()));
    for seed in 1..=RUNS {
        let options = storm(seed.into());
        let config = options.config(true).unwrap();
        let mut checkers = invariants::all(&config);
        checkers.push(Box::new(Counter(seen.clone())));
        let outcome = run(&options, &mut checkers, None).unwrap();
        assert_eq!(outcome.violation, None, "{options}");
        let seen = seen.borrow();
        assert!(seen.over && seen.waiting == 0 && outcome.waiting == 0);
    }
    let counts = &seen.borrow().counts;
    for what in [
        "entered",
        "lost",
        "vanished",
        "moved",
        "refused",
        "down",
        "disk lost",
        "up",
        "spite",
        "reclaimed",
    ] {
        assert!(counts.contains_key(what), "no {what} in {counts:?}");
    }
    // All five nodes start in each run, and come back each time.
    assert_eq!(
        counts["up"],
        counts["down"] + counts["disk lost"] + 5 * RUNS
    );
}

/// Eight clients, three slots: the bound is as hard as a lock, and it is used.
#[test]
fn a_semaphore_is_as_full_as_it_may_be() {
    for seed in 1..=8 {
        let options = Options {
            seed,
            names: 3,
            any: 1.0,
            clients: 8,
            exclusive: 1.0,
            detach: 0.3,
            named: 0.0,
            cancel: 0.2,
            reset: 2.0,
            span_ms: 2000,
            ..Options::default()
        };
        let outcome = run_checked(&options).unwrap();
        assert_eq!(outcome.violation, None, "{options}");
        assert_eq!(outcome.measures.inside_max, 3, "{options}");
    }
}

/// Two regions, each with locks of its own: whoever chooses near quorums enters within its region,
/// and a node that is slow for everybody is left alone.
#[test]
fn near_quorums_are_quick_and_slow_nodes_are_left_out() {
    let world = |choice| Options {
        system: "majority(5)".to_owned(),
        names: 64,
        hot: 0.0,
        local: 1.0,
        exclusive: 1.0,
        clients: 6,
        cancel: 0.0,
        deadline: 0.0,
        attempt: 0.0,
        together: 0.0,
        detach: 0.0,
        hold_ms: 5,
        think_ms: 20,
        link_ttl_ms: 1000,
        heartbeat_ms: 250,
        hedge_us: 50_000,
        latency: Latency::Constant(500_000),
        regions: 2,
        far: 30.0,
        choice,
        ..Options::default()
    };
    let wait = |options: &Options| {
        let outcome = run_checked(options).unwrap();
        assert_eq!(outcome.violation, None, "{options}");
        outcome.measures
    };
    // Three nodes of five are in the first region: a quorum.
    let far = wait(&world(Choice::Shared)).wait.p50;
    let close = wait(&world(Choice::Near)).wait.p50;
    assert!(close * 4.0 < far, "{close} {far}");

    let mut slow = world(Choice::Shared);
    slow.regions = 1;
    slow.slow = 200.0;
    let measures = wait(&slow);
    assert!(measures.load[0] < 0.1, "{:?}", measures.load);
    assert!(measures.load.iter().skip(1).all(|load| *load < 0.9));
}

#[test]
fn the_schedule_of_the_demo_serves_everybody() {
    for seed in 1..=2 {
        let options = demo(seed, None);
        let outcome = run_checked(&options).unwrap();
        assert_eq!(outcome.violation, None, "{options}");
        assert!(outcome.grants > 1000, "{}", outcome.grants);
    }
}

/// What stopped the demo of real processes stops the simulated one too.
#[test]
fn a_timer_that_is_lost_is_found_in_the_demo() {
    let options = demo(1, Some(Plant::SweepBeforePop));
    let outcome = run_checked(&options).unwrap();
    let property = outcome.violation.map(|violation| violation.property);
    assert_eq!(property, Some("next-step"), "{options}");
}
