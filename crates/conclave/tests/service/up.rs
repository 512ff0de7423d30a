//! `conclave up` and `conclave serve`.

use std::io::BufRead;
use std::net::TcpListener;
use std::process::Stdio;

use rustix::process::Signal;

use crate::cluster::{Cluster, Kid, Node, conclave, get, lives, ran, until};

#[test]
fn the_first_line_tells_the_nodes_once_they_are_ready() {
    let mut cluster = Cluster::start(&["--nodes", "3"]);
    let pid = cluster.up.pid();
    let node = |node: &Node| {
        let Node { id, api, peer, .. } = node;
        format!(r#"{{"id":{id},"api":"{api}","peer":"{peer}","pid":{pid}}}"#)
    };
    let nodes: Vec<String> = cluster.nodes.iter().map(node).collect();
    let expected = format!(r#"{{"ready":true,"nodes":[{}]}}"#, nodes.join(","));
    assert_eq!(cluster.first.trim_end(), expected);
    let ids: Vec<u64> = cluster.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [1, 2, 3]);
    for node in &cluster.nodes {
        assert_eq!(get(&format!("{}/readyz", node.api)), Some(200), "{node:?}");
    }
    let data = cluster.data().to_owned();
    assert!(data.join("cluster.toml").exists());
    cluster.up.signal(Signal::INT);
    assert_eq!(cluster.up.code(), 0);
    assert!(!data.exists(), "a temporary directory is removed");
}

#[test]
fn people_are_told_what_to_try_next() {
    let home = tempfile::tempdir().unwrap();
    let mut command = conclave(home.path());
    command.args(["up", "--nodes", "1"]).stdout(Stdio::piped());
    let mut up = Kid::spawn(&mut command);
    let output = up.output();
    let mut lines = output.lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.contains("is ready"), "{first}");
    let told = lines.find(|line| line.contains("conclave lock"));
    assert!(told.is_some(), "the next command is told");
    up.signal(Signal::TERM);
    assert_eq!(up.code(), 0);
}

#[test]
fn a_node_that_is_killed_can_be_started_by_hand() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let flags = ["--nodes", "3", "--processes", "--data", folder];
    let mut cluster = Cluster::start(&[&flags[..], &["--ttl-max", "2s"]].concat());
    let pids: Vec<u32> = cluster.nodes.iter().map(|node| node.pid).collect();
    assert!(
        pids.iter()
            .all(|pid| lives(*pid) && *pid != cluster.up.pid())
    );
    let (code, out, err) = cluster.run(&["lock", "x", "--ttl", "1s", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    let node = cluster.nodes[1].clone();
    crate::cluster::signal(node.pid, Signal::KILL);
    until("the node is gone", || !lives(node.pid));
    let (code, _, err) = cluster.run(&["lock", "x", "--ttl", "1s", "--", "true"]);
    assert_eq!(code, 0, "two of three are enough: {err}");
    let file = data.path().join("node2.toml");
    let command = cluster.second["serve"][1].as_str().unwrap();
    assert!(
        command.ends_with(&format!("serve --config {}", file.display())),
        "{command}"
    );
    let mut serve = conclave(cluster.home.path());
    serve.arg("serve").arg("--config").arg(&file).arg("--json");
    let mut serve = Kid::spawn(serve.stdout(Stdio::piped()));
    let mut line = String::new();
    serve.output().read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["ready"], true);
    assert_eq!(ready["api"], node.api.as_str(), "the same ports");
    assert_eq!(ready["peer"], node.peer.as_str());
    assert_eq!(ready["pid"], serve.pid());
    // Now the node that was started by hand is needed.
    crate::cluster::signal(pids[0], Signal::KILL);
    let (code, _, err) = cluster.run(&["lock", "x", "--ttl", "1s", "--", "true"]);
    assert_eq!(code, 0, "{err}");
    assert!(cluster.up.0.try_wait().unwrap().is_none(), "up goes on");
    serve.signal(Signal::TERM);
    assert_eq!(serve.code(), 0);
    cluster.up.signal(Signal::TERM);
    assert_eq!(cluster.up.code(), 0);
    until("its nodes are gone", || pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn a_data_directory_is_used_again() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("cluster");
    let folder = folder.to_str().unwrap();
    let mut first = Cluster::start(&["--nodes", "3", "--data", folder]);
    let (code, out, err) = first.run(&["lock", "x", "--", "sh", "-c", "echo $CONCLAVE_TOKEN"]);
    assert_eq!(code, 0, "{err}");
    let token: u64 = out.trim().parse().unwrap();
    first.up.signal(Signal::TERM);
    assert_eq!(first.up.code(), 0);
    let again = Cluster::start(&["--data", folder]);
    let ports = |cluster: &Cluster| -> Vec<(String, String)> {
        let nodes = cluster.nodes.iter();
        nodes
            .map(|node| (node.api.clone(), node.peer.clone()))
            .collect()
    };
    assert_eq!(ports(&again), ports(&first));
    let (code, out, err) = again.run(&["lock", "x", "--", "sh", "-c", "echo $CONCLAVE_TOKEN"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.trim().parse::<u64>().unwrap() > token,
        "tokens never go back"
    );
    drop(again);
    let home = tempfile::tempdir().unwrap();
    let other = ["up", "--nodes", "4", "--data", folder];
    let (code, _, err) = ran(conclave(home.path()).args(other));
    assert_eq!(code, 2);
    assert!(err.contains("--nodes: the cluster in"), "{err}");
}

#[test]
fn ports_in_use_are_named() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let mut first = Cluster::start(&["--nodes", "1", "--data", folder]);
    let node = first.nodes[0].clone();
    first.up.signal(Signal::TERM);
    assert_eq!(first.up.code(), 0);
    let taken = TcpListener::bind(&node.peer).unwrap();
    let home = tempfile::tempdir().unwrap();
    let (code, out, err) = ran(conclave(home.path()).args(["up", "--data", folder]));
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(
        err.contains(&format!("cannot listen on {}", node.peer)),
        "{err}"
    );
    let file = data.path().join("node1.toml");
    let (code, _, err) = ran(conclave(home.path()).arg("serve").arg("--config").arg(file));
    // Not 2, as for bad input, which a service manager does not try again.
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains(&format!("cannot listen on {}", node.peer)),
        "{err}"
    );
    drop(taken);
}

#[test]
fn nodes_end_when_up_is_killed() {
    let mut cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let pids: Vec<u32> = cluster.nodes.iter().map(|node| node.pid).collect();
    let data = cluster.data().to_owned();
    cluster.up.0.kill().unwrap();
    cluster.up.end();
    until("its nodes end", || pids.iter().all(|pid| !lives(*pid)));
    // Killed, it could not clean up.
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn a_cluster_is_found_without_naming_it() {
    let mut cluster = Cluster::start(&["--nodes", "1"]);
    let status = cluster.json(&["status", "--json"]);
    assert_eq!(status["nodes"][0]["api"], cluster.nodes[0].api.as_str());
    cluster.up.signal(Signal::TERM);
    assert_eq!(cluster.up.code(), 0);
    let (code, _, err) = cluster.run(&["status"]);
    assert_eq!(code, 2, "{err}");
    for way in ["--endpoints", "CONCLAVE_ENDPOINTS", "conclave up"] {
        assert!(err.contains(way), "{way}: {err}");
    }
    assert_eq!(err.lines().count(), 1, "{err}");
}
