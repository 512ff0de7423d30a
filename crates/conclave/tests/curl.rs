//! The worked example of `docs/curl.md`, run as it stands.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;
use std::process::Command;

#[allow(dead_code, reason = "shared with the tests of the service")]
#[path = "service/cluster.rs"]
mod cluster;

use cluster::{Cluster, ran, signal};
use rustix::process::Signal;

/// The blocks of a page that are marked with this word, in order, as one script.
fn blocks(page: &str, word: &str) -> String {
    let mark = format!("```{word}\n");
    let blocks = page.split(mark.as_str()).skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.collect()
}

fn page() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/curl.md");
    fs::read_to_string(file).unwrap()
}

fn is_installed() -> bool {
    let found = Command::new("curl").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: curl is not installed");
    }
    found
}

fn run(script: &str, folder: &Path, variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut shell = Command::new("sh");
    shell.args(["-euxc", script]).current_dir(folder);
    ran(shell.envs(variables.iter().copied()))
}

#[test]
fn the_example_works_as_it_stands() {
    if !is_installed() {
        return;
    }
    let cluster = Cluster::start(&["--nodes", "3"]);
    let script = blocks(&page(), "sh");
    assert!(script.lines().count() > 15, "the blocks are found");
    let variables = [("NODE", cluster.nodes[0].api.as_str())];
    let (code, out, err) = run(&script, cluster.home.path(), &variables);
    assert_eq!(code, 0, "{out}\n{err}");
    let script = blocks(&page(), "keeper");
    assert!(script.lines().count() > 10, "the blocks are found");
    let (code, out, err) = run(&script, cluster.home.path(), &variables);
    assert_eq!(code, 0, "{out}\n{err}");
}

#[test]
fn the_example_goes_on_at_another_node() {
    if !is_installed() {
        return;
    }
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let apis: Vec<&str> = cluster.nodes.iter().map(|node| node.api.as_str()).collect();
    let apis = apis.join(" ");
    let script = blocks(&page(), "sh nodes");
    assert!(
        script.contains("call /v1/locks/release"),
        "the block is found"
    );
    for what in [Signal::STOP, Signal::KILL] {
        signal(cluster.nodes[0].pid, what);
        let variables = [("NODES", apis.as_str()), ("LIMIT", "2")];
        let (code, out, err) = run(&script, cluster.home.path(), &variables);
        assert_eq!(code, 0, "{out}\n{err}");
        assert!(out.contains("\"released\":true"), "{out}");
    }
}

#[test]
fn the_example_works_over_tls() {
    if !is_installed() {
        return;
    }
    let cluster = Cluster::start(&["--nodes", "3", "--tls"]);
    let file = |name: &str| cluster.second["tls"][name].as_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
    let variables = [
        ("NODE", cluster.nodes[0].api.as_str()),
        ("CONCLAVE_CA", &ca),
        ("CONCLAVE_CERT", &cert),
        ("CONCLAVE_KEY", &key),
    ];
    let script = blocks(&page(), "sh tls");
    let (code, out, err) = run(&script, cluster.home.path(), &variables);
    assert_eq!(code, 0, "{out}\n{err}");
    assert!(out.contains("\"released\":true"), "{out}");
}

#[test]
fn the_example_works_with_a_token() {
    let home = tempfile::tempdir().unwrap();
    let (_, help, _) = ran(cluster::conclave(home.path()).args(["up", "--help"]));
    if !help.contains("--access") {
        eprintln!("skipped: this program has no access file");
        return;
    }
    if !is_installed() {
        return;
    }
    let words = ["token", "new", "--principal", "ci", "--json"];
    let (_, made, _) = ran(cluster::conclave(home.path()).args(words));
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let word = |name: &str| made[name].as_str().unwrap().to_owned();
    let rule = "[[permission]]\nwho = \"ci\"\nprefix = \"ci/\"\nmay = [\"acquire\"]\n";
    let access = home.path().join("access.toml");
    fs::write(&access, format!("{rule}\n{}\n", word("access_toml"))).unwrap();
    fs::write(home.path().join("ci.token"), word("token")).unwrap();
    let access = access.to_str().unwrap();
    let cluster = Cluster::start(&["--nodes", "3", "--tls", "--access", access]);
    let ca = cluster.second["tls"]["ca"].as_str().unwrap();
    let variables = [("NODE", cluster.nodes[0].api.as_str()), ("CONCLAVE_CA", ca)];
    let (code, out, err) = run(&blocks(&page(), "sh token"), home.path(), &variables);
    assert_eq!(code, 0, "{out}\n{err}");
}

#[test]
fn a_broken_example_is_found() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(
        blocks("a\n```sh\nb\n```\n```\nc\n```\n```sh\nd\n```", "sh"),
        "b\nd\n"
    );
    let (code, _, _) = run("test 1 -gt 2\ntrue\n", home.path(), &[]);
    assert_ne!(code, 0);
}
