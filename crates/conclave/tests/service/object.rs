//! `conclave object`, on real processes.

use std::io::BufRead;

use serde_json::Value;

use crate::cluster::{Cluster, Kid};

/// A command that must succeed; what it printed.
fn ok(cluster: &Cluster, words: &[&str]) -> String {
    let (code, out, err) = cluster.run(&[&["object"], words].concat());
    assert_eq!(code, 0, "{words:?}: {err}");
    out.trim_end_matches('\n').to_owned()
}

/// A command that must fail; its code and message.
fn no(cluster: &Cluster, words: &[&str]) -> (i32, String) {
    let (code, out, err) = cluster.run(&[&["object"], words].concat());
    assert_eq!(out, "", "{words:?}");
    (code, err)
}

#[test]
fn every_kind_does_what_it_says_though_a_node_lies() {
    let words = ["--nodes", "7", "--byzantine", "1", "--liar", "3=forge"];
    let cluster = Cluster::start(&words);
    kinds(&cluster);
    let (code, err) = no(&cluster, &["map", "visits", "get", "k"]);
    assert!(code == 1 && err.contains("other_kind"), "{err}");
    let told = ok(&cluster, &["counter", "visits", "get", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["value"], 3);
    ok(&cluster, &["delete", "visits"]);
    assert_eq!(ok(&cluster, &["counter", "visits", "get"]), "0");
}

fn kinds(cluster: &Cluster) {
    assert_eq!(ok(cluster, &["counter", "visits", "incr"]), "1");
    assert_eq!(ok(cluster, &["counter", "visits", "add", "-3"]), "-2");
    assert_eq!(ok(cluster, &["counter", "visits", "add", "5"]), "3");
    assert_eq!(ok(cluster, &["counter", "visits", "get"]), "3");

    let version = ok(cluster, &["map", "users", "set", "ada", "1815"]);
    assert_eq!(ok(cluster, &["map", "users", "get", "ada"]), "1815");
    let newer = [
        "map",
        "users",
        "set",
        "ada",
        "1852",
        "--if-version",
        &version,
    ];
    ok(cluster, &newer);
    let (code, err) = no(cluster, &newer);
    assert!(code == 1 && err.contains("version_mismatch"), "{err}");
    ok(cluster, &["map", "users", "set", "bob", "1"]);
    assert_eq!(ok(cluster, &["map", "users", "list"]), "ada\t1852\nbob\t1");
    assert_eq!(ok(cluster, &["map", "users", "remove", "bob"]), "1");
    let (code, err) = no(cluster, &["map", "users", "get", "bob"]);
    assert!(code == 1 && err.contains("absent"), "{err}");

    ok(cluster, &["queue", "jobs", "push", "one"]);
    ok(cluster, &["queue", "jobs", "push", "two"]);
    assert_eq!(ok(cluster, &["queue", "jobs", "pop"]), "one");
    assert_eq!(ok(cluster, &["queue", "jobs", "len"]), "1");
    assert_eq!(ok(cluster, &["queue", "jobs", "pop"]), "two");
    let (code, err) = no(cluster, &["queue", "jobs", "pop"]);
    assert!(code == 1 && err.contains("empty"), "{err}");

    for (at, entry) in ["a", "b", "c"].into_iter().enumerate() {
        let number = ok(cluster, &["log", "audit", "append", entry]);
        assert_eq!(number, at.to_string());
    }
    assert_eq!(ok(cluster, &["log", "audit", "trim", "1"]), "1");
    assert_eq!(
        ok(
            cluster,
            &["log", "audit", "read", "--from", "0", "--limit", "1"]
        ),
        "1\tb"
    );

    ok(cluster, &["register", "motd", "set", "hello"]);
    assert_eq!(ok(cluster, &["register", "motd", "get"]), "hello");
}

#[test]
fn a_watch_tells_every_change_of_its_key_and_no_other() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    ok(&cluster, &["map", "m", "set", "k", "1"]);
    let mut watch = cluster.command(&["object", "map", "m", "watch", "k"]);
    let mut watch = Kid::spawn(&mut watch);
    let mut lines = watch.output();
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "k\t1\n");
    ok(&cluster, &["map", "m", "set", "other", "2"]);
    ok(&cluster, &["map", "m", "set", "k", "3"]);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "k\t3\n");
}

#[test]
fn many_clients_count_together_and_none_is_lost() {
    let cluster = Cluster::start(&["--nodes", "7", "--byzantine", "1", "--liar", "5=equivocate"]);
    let adders: Vec<Kid> = (0..6)
        .map(|_| {
            let mut add = cluster.command(&["object", "counter", "c", "incr", "--wait", "2m"]);
            Kid::spawn(&mut add)
        })
        .collect();
    for mut adder in adders {
        assert_eq!(adder.code(), 0);
    }
    assert_eq!(ok(&cluster, &["counter", "c", "get"]), "6");
}
