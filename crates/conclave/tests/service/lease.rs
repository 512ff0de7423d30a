//! `conclave lease`, on real processes.

use serde_json::Value;

use crate::cluster::{Cluster, Kid};

#[test]
fn the_command_finds_its_lease_in_the_environment_and_its_code_is_ours() {
    let cluster = Cluster::start(&["--nodes", "4", "--byzantine", "1", "--ordering", "off"]);
    let script = "echo \"$CONCLAVE_LEASE $CONCLAVE_TOKEN $CONCLAVE_DEADLINE_MS\"; exit 7";
    let words = [
        "lease", "a/b c", "--for", "20s", "--wait", "60s", "--", "sh", "-c", script,
    ];
    let (code, out, err) = cluster.run(&words);
    assert_eq!(code, 7, "{err}");
    let told = out.strip_prefix("a/b c ").expect("the name");
    let numbers: Vec<u64> = told
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_millis() as u64;
    assert!(numbers[1] > now && numbers[1] < now + 21_000, "{numbers:?}");
    // It was given back: whoever comes next has it at once, with a larger token.
    let (code, out, err) = cluster.run(&words);
    assert_eq!(code, 7, "{err}");
    let next = out.split_whitespace().nth(2).expect("a token");
    assert!(next.parse::<u64>().unwrap() > numbers[0]);
    let (code, _, err) = cluster.run(&["lease", "x", "--for", "10m", "--", "true"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("longer than the cluster allows"), "{err}");
    let (code, _, err) = cluster.run(&["object", "counter", "c", "get"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("no_objects"), "{err}");
}

#[test]
fn whoever_comes_second_is_told_and_a_lease_that_ends_ends_its_command() {
    let cluster = Cluster::start(&["--nodes", "7", "--byzantine", "1"]);
    let keeps = [
        "lease", "x", "--for", "2s", "--renew", "--wait", "60s", "--",
    ];
    let mut holder = cluster.command(&[&keeps[..], &["sh", "-c", "echo in; cat"]].concat());
    let mut holder = Kid::spawn(holder.stdin(std::process::Stdio::piped()));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut holder.output(), &mut line).unwrap();
    assert_eq!(line, "in\n");
    let (code, out, err) = cluster.run(&["lease", "x", "--try", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    let words = ["lease", "x", "--wait", "3s", "--json", "--", "echo", "in"];
    let (code, out, err) = cluster.run(&words);
    assert_eq!((code, out.as_str()), (3, ""), "it is renewed: {err}");
    let told: Value = serde_json::from_str(err.trim()).unwrap();
    assert_eq!(told["outcome"], "not_acquired");
    drop(holder.0.stdin.take());
    assert_eq!(holder.code(), 0);
    // Nobody renews this one.
    let words = [
        "lease", "x", "--for", "1s", "--wait", "60s", "--", "sleep", "60",
    ];
    let (code, _, err) = cluster.run(&words);
    assert_eq!(code, 4, "{err}");
}

#[test]
fn a_lying_node_neither_grants_twice_nor_stands_in_the_way() {
    let words = [
        "--nodes",
        "4",
        "--byzantine",
        "1",
        "--ordering",
        "off",
        "--liar",
        "2=equivocate",
    ];
    let cluster = Cluster::start(&words);
    let script = "sleep 1";
    let mut first = cluster.command(&[
        "lease", "x", "--for", "20s", "--wait", "60s", "--", "sh", "-c", script,
    ]);
    let mut first = Kid::spawn(&mut first);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let words = [
            "lease", "x", "--for", "5s", "--wait", "60s", "--json", "--", "true",
        ];
        let (code, _, err) = cluster.run(&words);
        assert_eq!(code, 0, "{err}");
        let told: Value = serde_json::from_str(err.trim()).unwrap();
        tokens.push(told["token"].as_u64().unwrap());
    }
    assert!(tokens.is_sorted() && tokens[0] < tokens[1], "{tokens:?}");
    assert_eq!(first.code(), 0);
}
