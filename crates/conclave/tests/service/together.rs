//! `conclave barrier` and `conclave latch`, as processes.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;

use crate::cluster::{Cluster, Kid, until};

/// How many slots are taken.
fn taken(cluster: &Cluster, prefix: &str) -> usize {
    let (code, out, err) = cluster.run(&["watch", "--prefix", prefix, "--once", "--json"]);
    assert_eq!(code, 0, "{err}");
    out.lines()
        .filter(|line| line.contains("\"token\""))
        .count()
}

fn party(cluster: &Cluster, log: &str) -> Kid {
    let script = format!("echo passed $CONCLAVE_SLOT >> {log}");
    let words = [
        "barrier",
        "b",
        "--parties",
        "3",
        "--ttl",
        "1s",
        "--",
        "sh",
        "-c",
        &script,
    ];
    Kid::spawn(cluster.command(&words).stderr(Stdio::inherit()))
}

#[test]
fn three_processes_start_together_twice_and_a_killed_one_does_not_count() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let log = cluster.home.path().join("log");
    let passed = || fs::read_to_string(&log).unwrap_or_default();
    for round in 1..=2 {
        let mut parties = vec![
            party(&cluster, log.to_str().unwrap()),
            party(&cluster, log.to_str().unwrap()),
        ];
        until("two are there", || taken(&cluster, "b~") == 2);
        if round == 2 {
            parties[0].signal(Signal::KILL);
            parties[0].end();
            parties.remove(0);
            until("its place is free", || taken(&cluster, "b~") == 1);
            parties.push(party(&cluster, log.to_str().unwrap()));
            until("two again", || taken(&cluster, "b~") == 2);
        }
        assert_eq!(passed().lines().count(), 3 * (round - 1), "{}", passed());
        parties.push(party(&cluster, log.to_str().unwrap()));
        for mut one in parties {
            assert_eq!(one.code(), 0);
        }
        let text = passed();
        let mut slots: Vec<&str> = text.lines().skip(3 * (round - 1)).collect();
        slots.sort_unstable();
        assert_eq!(slots, ["passed 1", "passed 2", "passed 3"]);
    }
    until("nobody is left", || taken(&cluster, "b~") == 0);
    let (code, _, err) = cluster.run(&["barrier", "b", "--parties", "2", "--wait", "100ms"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("of 2 are there"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_latch_opens_while_enough_commands_run() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let wait = ["latch", "l", "--count", "2", "--await", "--wait", "100ms"];
    let (code, _, err) = cluster.run(&wait);
    assert_eq!(code, 3, "{err}");
    let count = || {
        let words = ["latch", "l", "--count", "2", "--", "cat"];
        Kid::spawn(cluster.command(&words).stdin(Stdio::piped()))
    };
    let mut first = count();
    until("one counted", || taken(&cluster, "l~") == 1);
    let mut second = count();
    let (code, _, err) = cluster.run(&["latch", "l", "--count", "2", "--await", "--json"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("\"open\":true"), "{err}");
    drop(first.0.stdin.take());
    assert_eq!(first.code(), 0);
    until("one is gone", || taken(&cluster, "l~") == 1);
    let (code, _, err) = cluster.run(&wait);
    assert_eq!(code, 3, "{err}");
    drop(second.0.stdin.take());
    assert_eq!(second.code(), 0);
}
