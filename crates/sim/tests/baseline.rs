//! The baselines as measured on the simulator's engine.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

use conclave_protocol::baseline::{maekawa, ricart};
use conclave_quorum::{Coterie, System, build::build, text};
use conclave_sim::baseline::{Choice, Kind, Options, run};
use conclave_sim::net::Latency;

const CORRECTED: Kind = Kind::Maekawa(maekawa::Variant::Corrected);
const PUBLISHED: Kind = Kind::Maekawa(maekawa::Variant::Published);
const AT_ONCE: Kind = Kind::Maekawa(maekawa::Variant::AtOnce);
const EVERYBODY: Kind = Kind::Ricart(ricart::Variant::Exclusive);
const RA1: Kind = Kind::Ricart(ricart::Variant::Groups);
const RA2: Kind = Kind::Ricart(ricart::Variant::Capture);

fn coterie(text: &str) -> Coterie {
    let no_files = |_: &str| Err("no files here".to_owned());
    let built = build(&text::parse(text).unwrap(), None, &no_files).unwrap();
    match built.system {
        System::Coterie(coterie) => coterie,
        other => panic!("{text} is {}", other.kind()),
    }
}

fn options(seed: u64) -> Options {
    Options::new(coterie("plane(7)"), seed)
}

/// One process asks, messages take one millisecond each: what theory says, exactly.
fn free(kind: Kind) -> (f64, f64) {
    let mut options = options(1);
    options.askers = 1;
    options.entries = 50;
    options.latency = Latency::Constant(1_000_000);
    options.think = 1_000_000_000;
    let measured = run(kind, &options);
    assert_eq!(measured.violation, None);
    let measures = measured.measures;
    assert_eq!(measures.entries, 50);
    assert_eq!(measures.sync_delay, None, "nobody waits for another");
    assert_eq!((measures.inside_max, measures.fairness), (1, 1.0));
    (measures.messages_per_entry, measures.calm_delay.unwrap())
}

#[test]
fn uncontended_costs_are_those_of_theory() {
    for kind in [PUBLISHED, CORRECTED, AT_ONCE] {
        assert_eq!(free(kind), (9.0, 2.0), "{kind}");
    }
    for kind in [EVERYBODY, RA1, RA2] {
        assert_eq!(free(kind), (18.0, 2.0), "{kind}");
    }
    assert_eq!(free(Kind::Central), (3.0, 2.0));
    assert_eq!(free(Kind::Backup), (5.0, 4.0));
}

#[test]
fn handing_over_takes_the_time_of_theory() {
    let delay = |kind| {
        let mut options = options(2);
        options.think = 100_000;
        options.hold = 20_000_000;
        options.latency = Latency::Constant(1_000_000);
        options.groups = 50;
        let measured = run(kind, &options);
        assert_eq!(measured.violation, None);
        measured.measures.sync_delay.unwrap()
    };
    // One message tells the next one directly; a node or server in between makes two of it, a
    // backup four.
    let about = |kind, theory: f64| {
        let delay = delay(kind);
        assert!((delay - theory).abs() < 0.1, "{kind}: {delay}");
    };
    about(EVERYBODY, 1.0);
    about(CORRECTED, 2.0);
    about(AT_ONCE, 2.0);
    about(Kind::Central, 2.0);
    about(Kind::Backup, 4.0);
}

#[test]
fn nothing_breaks_under_load() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != PUBLISHED) {
        for seed in 0..30 {
            let mut options = options(seed);
            options.processes = 3 + seed as u32 % 9;
            options.groups = 1 + seed as u32 % 4;
            options.think = [0, 1_000_000, 20_000_000][seed as usize % 3];
            options.entries = 300;
            options.max_bypass = seed as u32 % 5;
            options.choice = [Choice::Own, Choice::Shared][seed as usize % 2];
            let measured = run(kind, &options);
            assert_eq!(measured.violation, None, "{kind}, seed {seed}");
            assert_eq!(measured.measures.entries, 300);
        }
    }
}

#[test]
fn the_published_rule_is_caught_waiting_for_ever() {
    let broken: Vec<&str> = (0..60)
        .filter_map(|seed| {
            let mut options = options(seed);
            options.think = 0;
            run(PUBLISHED, &options).violation
        })
        .map(|violation| violation.property)
        .collect();
    assert!(!broken.is_empty());
    assert!(broken.iter().all(|property| *property == "deadlock"));
}

#[test]
fn a_run_is_a_function_of_its_options() {
    for kind in Kind::ALL {
        let mut options = options(5);
        options.groups = 3;
        assert_eq!(run(kind, &options), run(kind, &options));
        assert_eq!(kind.name().parse::<Kind>(), Ok(kind));
        let first = run(kind, &options);
        options.seed = 6;
        assert_ne!(first, run(kind, &options));
    }
    let refusal = "raft".parse::<Kind>().unwrap_err();
    assert!(refusal.starts_with("'raft' is no baseline; there are maekawa, "));
}

#[test]
fn one_group_is_inside_together() {
    for kind in [RA1, RA2, Kind::Central, Kind::Backup] {
        let mut options = options(3);
        options.think = 0;
        options.hold = 100_000_000;
        assert_eq!(run(kind, &options).measures.inside_max, 10, "{kind}");
        options.groups = u32::MAX;
        assert_eq!(run(kind, &options).measures.inside_max, 1, "{kind}");
    }
}

/// Why RA2 exists: with two groups RA1 lets in hardly more than one at a time.
#[test]
fn capture_makes_groups_worth_while() {
    let mut options = options(4);
    options.groups = 2;
    options.think = 0;
    options.hold = 10_000_000;
    options.entries = 3000;
    let [exclusive, ra1, ra2] = [EVERYBODY, RA1, RA2].map(|kind| run(kind, &options));
    assert!(ra2.throughput() > 1.2 * ra1.throughput());
    assert!(ra1.throughput() > 1.2 * exclusive.throughput());
    assert_eq!(ra1.per_entry("START"), 0.0);
    assert!(ra2.per_entry("START") > 0.0);
    let [exclusive, ra1, ra2] = [exclusive, ra1, ra2].map(|it| it.measures);
    assert!(exclusive.inside_mean < 1.0 && ra1.inside_mean < 2.5);
    assert!(ra2.inside_mean > 1.5 * ra1.inside_mean);
    assert!(ra2.wait.mean < ra1.wait.mean);
    assert_eq!(ra1.messages_per_entry, 18.0);
    assert!(ra2.messages_per_entry <= 27.0, "3n as published");
}

#[test]
fn loads_are_those_of_the_quorums() {
    let measured = run(CORRECTED, &options(9));
    assert_eq!(measured.measures.load.len(), 7);
    let mean = measured.measures.load.iter().sum::<f64>() / 7.0;
    assert!((mean - 3.0 / 7.0).abs() < 1e-9);
    let shared = {
        let mut options = options(9);
        options.choice = Choice::Shared;
        run(CORRECTED, &options)
    };
    let used: Vec<f64> = shared
        .measures
        .load
        .into_iter()
        .filter(|load| *load > 0.0)
        .collect();
    assert_eq!(used, [1.0; 3]);
    assert_eq!(run(Kind::Central, &options(9)).measures.load, [1.0]);
    assert_eq!(run(Kind::Backup, &options(9)).received, [3.0, 1.0]);
    let everybody = run(EVERYBODY, &options(9)).measures.load;
    assert_eq!(everybody.len(), 10);
    assert!((everybody.iter().sum::<f64>() - 9.0).abs() < 1e-9);
}

/// The load of a lock run carries over, exclusive requests included.
#[test]
fn the_load_of_a_lock_run_carries_over() {
    let text = "seed=3;system=billiard(12);clients=8;groups=3;exclusive=0;shared=0;asks=40;\
                hold_ms=10;think_ms=1";
    let mut lock: conclave_sim::Options = text.parse().unwrap();
    let options = Options::like(&lock).unwrap();
    assert_eq!((options.processes, options.entries), (8, 320));
    assert_eq!((options.hold, options.think), (10_000_000, 1_000_000));
    let groups = run(Kind::Central, &options).measures;
    assert!(groups.inside_max > 1);
    assert_eq!(groups.entries, 320);
    lock.exclusive = 1.0;
    let exclusive = run(Kind::Central, &Options::like(&lock).unwrap()).measures;
    assert_eq!(exclusive.inside_max, 1);
    assert!(exclusive.wait.mean > groups.wait.mean);
    (lock.exclusive, lock.shared) = (0.0, 1.0);
    let shared = run(Kind::Central, &Options::like(&lock).unwrap()).measures;
    assert_eq!(shared.inside_max, 8);
    lock.system = "masking(9, b=1)".to_owned();
    let refusal = Options::like(&lock).unwrap_err().to_string();
    assert!(refusal.contains("need a coterie"), "{refusal}");
}

/// The order of costs under one load; with `--nocapture` the table itself.
#[test]
fn the_table_is_in_the_expected_order() {
    let mut options = options(7);
    options.groups = 2;
    options.think = 1_000_000;
    let rows = Kind::ALL.map(|kind| {
        let row = run(kind, &options);
        let it = &row.measures;
        println!(
            "{kind:16} {:6.1} messages  {:4.1} delay  {:6.2} ms wait  {:4.1} inside  {:5.0}/s",
            it.messages_per_entry,
            it.sync_delay.unwrap_or(0.0),
            it.wait.mean,
            it.inside_mean,
            row.throughput(),
        );
        row
    });
    let cost = |kind| {
        let row = rows.iter().find(|row| row.kind == kind).unwrap();
        row.measures.messages_per_entry
    };
    let order = [Kind::Central, Kind::Backup, AT_ONCE, CORRECTED, RA1, RA2];
    // The primary tells the backup of several at once, so it may cost less than five.
    let costs = order.map(cost);
    assert!(costs.is_sorted(), "{costs:?}");
    assert_eq!(cost(EVERYBODY), cost(RA1));
}
