//! `conclave status`, `locks`, `show` and `sessions`.

use std::io::BufRead;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, Kid, until};

#[test]
fn holders_and_waiters_are_shown() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let free = cluster.json(&["show", "jobs/a", "--json"]);
    assert_eq!(free["holders"], Value::Array(Vec::new()));
    let holder = cluster.holder(&["jobs/a", "--group", "red"]);
    let mut waiting = cluster.command(&["lock", "jobs/a", "--", "true"]);
    let mut waiting = Kid::spawn(&mut waiting);
    let mut shown = Value::Null;
    until("both are seen", || {
        shown = cluster.json(&["show", "jobs/a", "--json"]);
        let count = |field: &str| shown[field].as_array().map_or(0, Vec::len);
        let told = !shown["holders"][0]["token"].is_null();
        count("holders") == 1 && count("waiters") == 1 && told
    });
    assert_eq!(shown["holders"][0]["mode"]["group"], "red");
    assert_eq!(shown["waiters"][0]["why"]["code"], "held");
    assert!(shown["holders"][0]["held_ms"].is_u64(), "{shown}");
    assert!(shown["holders"][0]["expires_ms"].is_u64(), "{shown}");
    let owner = shown["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert!(owner.contains(&holder.kid.pid().to_string()), "{owner}");
    let (code, text, err) = cluster.run(&["show", "jobs/a"]);
    assert_eq!(code, 0, "{err}");
    let why = "behind 1 other; held by";
    for word in ["1 inside, 1 waiting", "group red", &owner, why, "ago"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let all = cluster.json(&["locks", "--json"]);
    assert_eq!(all["locks"][0]["name"], "jobs/a");
    let some = cluster.json(&["locks", "jobs/", "--json"]);
    assert_eq!(some["locks"].as_array().unwrap().len(), 1);
    let none = cluster.json(&["locks", "other/", "--json"]);
    assert_eq!(none["locks"], Value::Array(Vec::new()));
    let (_, text, _) = cluster.run(&["locks"]);
    assert!(text.contains("jobs/a") && text.contains("LOCK"), "{text}");
    let sessions = cluster.json(&["sessions", "--json"]);
    let owners = sessions["sessions"].as_array().unwrap();
    assert!(
        owners.iter().any(|one| one["owner"] == owner.as_str()),
        "{sessions}"
    );
    let (_, text, _) = cluster.run(&["sessions"]);
    assert!(text.contains(&owner), "{text}");
    assert_eq!(holder.leave(), 0);
    assert_eq!(waiting.code(), 0);
}

#[test]
fn the_state_of_nodes_is_told_even_if_some_are_gone() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let status = cluster.json(&["status", "--json"]);
    assert_eq!(status["available"], true);
    let (code, text, err) = cluster.run(&["status"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        text.contains("a quorum serves") && text.contains("serving"),
        "{text}"
    );
    crate::cluster::signal(cluster.nodes[0].pid, Signal::KILL);
    until("the loss is seen", || {
        let status = cluster.json(&["status", "--json"]);
        status["nodes"][0]["reachable"] == false
    });
    let (code, text, err) = cluster.run(&["status"]);
    assert_eq!(code, 0, "two of three serve: {err}");
    assert!(text.contains("unreachable"), "{text}");
}

#[test]
fn a_watch_looks_again_and_again() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let mut watch = cluster.command(&["status", "--watch=100ms", "--json"]);
    let mut watch = Kid::spawn(&mut watch);
    let mut output = watch.output();
    for _ in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).expect("a line each time");
        assert_eq!(told["available"], true);
    }
}
