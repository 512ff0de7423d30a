//! `conclave elect` and `conclave watch`: leaders that are killed, and those who follow.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use conclave_protocol::id::{NodeId, RequestNo, SessionId};
use conclave_sim::history::{self, line};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Kid, PATIENCE, signal};

/// A command that prints a line of JSON per change.
struct Follower {
    _kid: Kid,
    lines: Receiver<Value>,
    seen: Vec<Value>,
}

impl Follower {
    fn start(cluster: &Cluster, words: &[&str]) -> Self {
        let mut command = cluster.command(words);
        let mut kid = Kid::spawn(command.stderr(Stdio::inherit()));
        let output = kid.output();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let parsed = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(parsed).is_err() {
                    break;
                }
            }
        });
        let seen = Vec::new();
        Self {
            _kid: kid,
            lines,
            seen,
        }
    }

    /// Reads until a line is as wanted.
    fn until(&mut self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("never: {what}; {:?}", self.seen));
            self.seen.push(line.clone());
            if so(&line) {
                return line;
            }
        }
    }
}

fn leader(cluster: &Cluster, value: &str) -> Kid {
    let words = [
        "elect", "e", "--value", value, "--ttl", "1s", "--", "sleep", "1000",
    ];
    Kid::spawn(cluster.command(&words).stderr(Stdio::null()))
}

#[test]
fn the_next_leads_when_the_leader_is_killed_and_observers_never_go_back() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes", "--history"]);
    let (code, out, err) = cluster.run(&["elect", "e", "--observe", "--once"]);
    assert_eq!((code, out.as_str()), (3, "nobody leads\n"), "{err}");
    let mut follower = Follower::start(&cluster, &["elect", "e", "--observe", "--json"]);
    follower.until("nobody", |line| line["leader"] == json!(null));
    let values = ["one", "two", "three", "four"];
    let mut leaders: Vec<Kid> = Vec::new();
    for (turn, value) in values.iter().enumerate() {
        leaders.push(leader(&cluster, value));
        if let Some(last) = turn.checked_sub(1) {
            let words = ["watch", "e", "--json"];
            let mut watch = Follower::start(&cluster, &words);
            watch.until("one stands", |line| line["waiting"] == json!(1));
            // No word from it: it is gone as if its machine were.
            let killed = Instant::now();
            leaders[last].signal(Signal::KILL);
            leaders[last].end();
            follower.until(value, |line| line["leader"]["value"] == **value);
            println!(
                "{value} is seen to lead {:?} after the kill",
                killed.elapsed()
            );
        } else {
            follower.until(value, |line| line["leader"]["value"] == **value);
        }
        if turn == 1 {
            signal(cluster.nodes[2].pid, Signal::KILL);
        }
    }
    let (code, out, _) = cluster.run(&["elect", "e", "--observe", "--once", "--json"]);
    let now: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, now["leader"]["value"].as_str()), (0, Some("four")));
    let tokens = follower
        .seen
        .iter()
        .filter_map(|line| line["leader"]["token"].as_u64());
    let tokens: Vec<u64> = tokens.collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
    let order: Vec<&str> = follower
        .seen
        .iter()
        .filter_map(|line| line["leader"]["value"].as_str())
        .collect();
    let mut once = order.clone();
    once.dedup();
    assert_eq!(once, values, "{order:?}");
    drop(leaders);
    no_two_lead(&cluster);
}

/// By the histories of the nodes: no two requests ever have grants of a quorum at one time.
fn no_two_lead(cluster: &Cluster) {
    let mut lines = Vec::new();
    for node in &cluster.nodes {
        let path = cluster.data().join(format!("node{}.history", node.id));
        let file = BufReader::new(fs::File::open(&path).unwrap());
        lines.extend(line::read(&path.display().to_string(), file).unwrap());
    }
    lines.sort_by_key(line::Line::at);
    let mut held: BTreeMap<(SessionId, RequestNo), Vec<NodeId>> = BTreeMap::new();
    let (mut most, mut led) = (0, std::collections::BTreeSet::new());
    for line in &lines {
        let line::Line::Node(line) = line else {
            continue;
        };
        match &line.event {
            line::NodeWord::Granted { ask, .. } => {
                let id = (ask.session, ask.request);
                held.entry(id).or_default().push(line.node);
            }
            line::NodeWord::Ended { ask, .. } => {
                if let Some(nodes) = held.get_mut(&(ask.session, ask.request)) {
                    nodes.retain(|node| *node != line.node);
                }
            }
            _ => {}
        }
        let quorums = held.iter().filter(|(_, nodes)| nodes.len() >= 2);
        let quorums: Vec<_> = quorums.map(|(id, _)| *id).collect();
        most = most.max(quorums.len());
        led.extend(quorums);
    }
    assert_eq!(most, 1, "two requests had a quorum at once");
    assert_eq!(led.len(), 4, "each of the four led once");
    let text = fs::read_to_string(cluster.data().join("cluster.toml")).unwrap();
    let config = conclave_wire::Cluster::parse(&text).unwrap();
    let verdict = history::check(&config.shared_config().unwrap(), lines);
    assert!(verdict.holds(), "{:?}", verdict.violations);
}

#[test]
fn a_leader_is_a_lock_with_a_value() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let script = "echo \"$CONCLAVE_LOCK $CONCLAVE_TOKEN\"; exit 7";
    let words = [
        "elect", "e", "--value", "v", "--json", "--", "sh", "-c", script,
    ];
    let (code, out, err) = cluster.run(&words);
    assert_eq!(code, 7, "{err}");
    assert!(out.starts_with("e 1"), "{out}");
    let report: Value = serde_json::from_str(err.trim()).unwrap();
    assert_eq!(report["exit"], 7);
    let mut first = leader(&cluster, "first");
    let mut follower = Follower::start(&cluster, &["elect", "e", "--observe"]);
    follower.until("first", |line| {
        line.as_str()
            .is_some_and(|line| line.starts_with("first leads with token "))
    });
    let words = [
        "elect", "e", "--value", "v", "--wait", "100ms", "--", "true",
    ];
    let (code, _, err) = cluster.run(&words);
    assert_eq!(code, 3, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    first.signal(Signal::TERM);
    first.end();
    follower.until("nobody", |line| line == "nobody leads");
    for words in [
        &["elect", "e", "--", "true"][..],
        &["elect", "e", "--value", "v"],
        &["elect", "e", "--once", "--value", "v", "--", "true"],
        &["elect", "", "--observe"],
        &["watch"],
        &["watch", "a", "--prefix", "b"],
        &["barrier", "b", "--parties", "0"],
        &["latch", "l", "--count", "3"],
        &["latch", "l", "--count", "2000", "--await"],
    ] {
        let (code, _, err) = cluster.run(words);
        assert_eq!(code, 2, "{words:?}: {err}");
    }
}

#[test]
fn locks_are_watched_from_the_shell() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let (code, out, err) = cluster.run(&["watch", "jobs/a", "--once"]);
    assert_eq!((code, out.as_str()), (0, "jobs/a: free\n"), "{err}");
    let words = ["watch", "--prefix", "jobs/", "--json"];
    let mut follower = Follower::start(&cluster, &words);
    follower.until("all", |line| line["synced"] == json!(true));
    let holder = cluster.holder(&["jobs/a"]);
    let state = follower.until("held", |line| {
        line["holders"]
            .as_array()
            .is_some_and(|list| list.len() == 1)
    });
    assert_eq!(state["name"], "jobs/a");
    // It goes on when a node is killed.
    signal(cluster.nodes[0].pid, Signal::KILL);
    let other = cluster.holder(&["jobs/b"]);
    follower.until("another", |line| {
        line["name"] == "jobs/b" && line["holders"] != json!([])
    });
    assert_eq!(holder.leave(), 0);
    assert_eq!(other.leave(), 0);
    follower.until("free", |line| {
        line["name"] == "jobs/a" && line["holders"] == json!([])
    });
}
