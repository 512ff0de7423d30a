//! Node files and cluster files: what holds and why, and one line for whatever is wrong.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

mod common;

use common::{Run, conclave, directory, put};
use serde_json::Value;

const CLUSTER: &str = r#"name = "test"
epoch = 1
quorum = "majority"

[[nodes]]
id = 1
peer = "127.0.0.1:7001"
api = "http://127.0.0.1:8001"

[[nodes]]
id = 2
peer = "127.0.0.1:7002"
api = "http://127.0.0.1:8002"

[[nodes]]
id = 3
peer = "10.0.0.3:7003"
api = "https://three.example.org"
"#;

const NODE: &str =
    "id = 1\ndata = \"data\"\ncluster = \"cluster.toml\"\nsecret_file = \"secret\"\n";

fn files(folder: &Path) {
    put(folder, "cluster.toml", CLUSTER);
    put(folder, "node.toml", NODE);
    put(folder, "secret", "0123456789abcdef0123456789abcdef\n");
}

/// Runs `conclave` with these variables and no others of ours.
fn with(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(folder)
        .output()
        .expect("the binary starts");
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        err: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

fn told(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Value {
    let run = with(folder, variables, arguments);
    assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.err);
    serde_json::from_str(&run.out).expect("JSON")
}

fn setting<'a>(told: &'a Value, name: &str) -> (&'a str, &'a str) {
    let settings = told["settings"].as_array().expect("settings");
    let found = settings.iter().find(|one| one["name"] == name);
    let found = found.expect("the setting is told");
    let text = |field: &str| found[field].as_str().expect("a text");
    (text("value"), text("from"))
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let here = directory();
    files(here.path());
    let check = ["check-config", "node.toml", "--json"];
    let plain = told(here.path(), &[], &check);
    assert_eq!(setting(&plain, "id"), ("1", "the file, line 1"));
    assert_eq!(setting(&plain, "data"), ("data", "the file, line 2"));
    assert_eq!(
        setting(&plain, "listen_peer"),
        ("127.0.0.1:7001", "the cluster file")
    );
    assert_eq!(
        setting(&plain, "listen_api"),
        ("127.0.0.1:8001", "the cluster file")
    );
    assert_eq!(setting(&plain, "log"), ("info", "default"));
    let env = [("CONCLAVE_ID", "2"), ("CONCLAVE_LOG", "debug")];
    let other = told(here.path(), &env, &check);
    assert_eq!(setting(&other, "id"), ("2", "CONCLAVE_ID"));
    assert_eq!(setting(&other, "log"), ("debug", "CONCLAVE_LOG"));
    assert_eq!(setting(&other, "listen_peer").0, "127.0.0.1:7002");
    let flagged = ["check-config", "node.toml", "--json", "--log", "trace"];
    let flagged = told(here.path(), &env, &flagged);
    assert_eq!(setting(&flagged, "log"), ("trace", "--log"));
    assert_eq!(setting(&flagged, "id"), ("2", "CONCLAVE_ID"));
}

/// Four nodes in two regions, one of them with two racks.
const PLACES: [&str; 4] = ["eu/r1", "eu/r1", "eu/r2", "us/r1"];

fn placed(places: &[&str]) -> String {
    let mut text = "name = \"wide\"\nepoch = 1\ntopology = \"multilevel\"\n".to_owned();
    for (place, id) in places.iter().zip(1..) {
        let _ = write!(
            text,
            "[[nodes]]\nid = {id}\npeer = \"127.0.0.1:700{id}\"\n\
             api = \"http://127.0.0.1:800{id}\"\nplace = \"{place}\"\n"
        );
    }
    text
}

#[test]
fn the_clusters_of_a_hierarchy_are_told() {
    let here = directory();
    put(here.path(), "cluster.toml", placed(&PLACES));
    let check = ["check-config", "cluster.toml", "--json"];
    let told = told(here.path(), &[], &check);
    let quorum = told["cluster"]["facts"]["quorum"].as_str();
    assert_eq!(quorum, Some("multilevel(tree, sizes=[[2,1],[1]])"));
    let clusters = told["hierarchy"]["clusters"].as_array().expect("clusters");
    let named = |place: &str, members: &[u64]| {
        let found = clusters.iter().find(|cluster| cluster["place"] == place);
        let found = found.unwrap_or_else(|| panic!("no cluster {place}"));
        assert_eq!(found["members"], serde_json::json!(members), "{place}");
    };
    named("eu", &[1, 3]);
    named("eu/r1", &[1, 2]);
    named("us/r1", &[4]);
    assert_eq!(
        clusters[0]["members"],
        serde_json::json!([1, 4]),
        "the root"
    );
    let run = conclave(here.path(), &["check-config", "cluster.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(
        run.out.contains("root") && run.out.contains("eu/r1"),
        "{}",
        run.out
    );
    put(
        here.path(),
        "cluster.toml",
        placed(&["eu/r1", "us/r1", "eu/r1", "us/r2"]),
    );
    let run = conclave(here.path(), &["check-config", "cluster.toml"]);
    assert_eq!(run.code, Some(2));
    let lines: Vec<&str> = run.err.lines().collect();
    assert_eq!(lines.len(), 1, "{}", run.err);
    assert!(
        lines[0].contains("node 3 is in 'eu' again after nodes elsewhere"),
        "{}",
        run.err
    );
}

#[test]
fn the_cluster_and_its_quorums_are_told() {
    let here = directory();
    files(here.path());
    let node = told(here.path(), &[], &["check-config", "node.toml", "--json"]);
    let cluster = told(
        here.path(),
        &[],
        &["check-config", "cluster.toml", "--json"],
    );
    assert_eq!(node["kind"], "node");
    assert_eq!(cluster["kind"], "cluster");
    assert_eq!(node["cluster"], cluster["cluster"]);
    let digest = node["cluster"]["digest"].as_str().expect("a digest");
    assert_eq!(digest.len(), 32);
    assert_eq!(cluster["quorum"]["size"]["min"], 2);
    assert_eq!(cluster["quorum"]["crashes_survived"], 1);
    let run = conclave(here.path(), &["check-config", "node.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for word in [
        "digest",
        digest,
        "quorum size",
        "any 1 of 3 nodes",
        "SETTING",
    ] {
        assert!(run.out.contains(word), "{word}: {}", run.out);
    }
}

#[test]
fn a_cluster_may_stand_in_the_node_file() {
    let here = directory();
    files(here.path());
    let inline = CLUSTER.replace("[[nodes]]", "[[cluster.nodes]]");
    let node = "id = 1\ndata = \"data\"\nsecret_file = \"secret\"\n[cluster]\n";
    put(here.path(), "inline.toml", format!("{node}{inline}"));
    let inline = told(here.path(), &[], &["check-config", "inline.toml", "--json"]);
    let split = told(here.path(), &[], &["check-config", "node.toml", "--json"]);
    assert_eq!(inline["cluster"], split["cluster"]);
    assert_eq!(setting(&inline, "cluster").0, "(in this file)");
}

#[test]
fn paths_count_from_the_file_they_stand_in() {
    let here = directory();
    let inner = here.path().join("etc");
    std::fs::create_dir(&inner).expect("a directory");
    files(&inner);
    let told = told(
        here.path(),
        &[],
        &["check-config", "etc/node.toml", "--json"],
    );
    assert_eq!(setting(&told, "data").0, "etc/data");
    assert_eq!(setting(&told, "secret_file").0, "etc/secret");
}

#[test]
fn plain_tcp_for_others_must_be_asked_for() {
    let here = directory();
    files(here.path());
    let open = ["check-config", "node.toml", "--listen-peer", "0.0.0.0:7001"];
    let run = conclave(here.path(), &open);
    assert_eq!(run.code, Some(2), "{}", run.out);
    assert!(run.err.contains("insecure = true"), "{}", run.err);
    let asked = [&open[..], &["--insecure", "--json"]].concat();
    let told = told(here.path(), &[], &asked);
    let warnings = told["warnings"].to_string();
    assert!(warnings.contains("plain TCP"), "{warnings}");
}

#[test]
fn a_secret_that_others_can_read_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let here = directory();
    files(here.path());
    let secret = here.path().join("secret");
    let mode = |mode| std::fs::set_permissions(&secret, PermissionsExt::from_mode(mode));
    mode(0o600).expect("permissions");
    let check = ["check-config", "node.toml", "--json"];
    assert_eq!(
        told(here.path(), &[], &check)["warnings"],
        Value::Array(Vec::new())
    );
    mode(0o644).expect("permissions");
    let warnings = told(here.path(), &[], &check)["warnings"].to_string();
    assert!(warnings.contains("chmod 600"), "{warnings}");
}

/// Each: what the node file is, and what the error must say.
fn bad_nodes() -> Vec<(String, &'static str)> {
    let with = |line: &str| format!("{NODE}{line}\n");
    let without = |key: &str| {
        let lines = NODE.lines().filter(|line| !line.starts_with(key));
        lines.collect::<Vec<_>>().join("\n")
    };
    vec![
        (with("lgo = \"info\""), "line 5, column 1"),
        (with("lgo = \"info\""), "lgo"),
        (with("log = 7"), "line 5, column 7"),
        (with("log = \"loud=very\""), "log = 'loud=very'"),
        (with("log_format = \"xml\""), "line 5"),
        (with("insecure = \"yes\""), "line 5"),
        (with("id = 2"), "line 5"),
        (with("= 2"), "line 5, column 1"),
        (with("listen_peer = \"7000\""), "is not host:port"),
        (with("listen_api = \"host:70000\""), "is not host:port"),
        (without("id"), "id is missing"),
        (without("data"), "data is missing"),
        (without("cluster"), "cluster is missing"),
        (without("secret"), "secret_file is missing"),
        (NODE.replace("id = 1", "id = 0"), "has nodes 1 to 3"),
        (NODE.replace("id = 1", "id = 9"), "has nodes 1 to 3"),
        (NODE.replace("id = 1", "id = -1"), "line 1, column 6"),
        (NODE.replace("id = 1", "id = 3"), "listen_api is missing"),
        (NODE.replace("\"cluster.toml\"", "7"), "line 3, column 11"),
        (
            NODE.replace("\"cluster.toml\"", "\"none.toml\""),
            "none.toml",
        ),
        (NODE.replace("\"secret\"", "\"none\""), "secret_file 'none'"),
        (NODE.replace("\"secret\"", "\"short\""), "too few"),
        (NODE.replace("\"secret\"", "\".\""), "not a file"),
        (
            NODE.replace("\"cluster.toml\"", "\"wrong.toml\""),
            "wrong.toml', line 3, column 1",
        ),
        ("\u{1b}[31m = 1".to_owned(), "line 1"),
        (String::new(), "id is missing"),
    ]
}

#[test]
fn what_is_wrong_with_a_node_file_is_told_in_one_line() {
    let here = directory();
    files(here.path());
    put(here.path(), "short", "secret");
    put(
        here.path(),
        "wrong.toml",
        CLUSTER.replace("majority", "majority(4)"),
    );
    for (text, says) in bad_nodes() {
        put(here.path(), "bad.toml", &text);
        for arguments in [
            &["check-config", "bad.toml"][..],
            &["serve", "--config", "bad.toml"],
        ] {
            refused(&conclave(here.path(), arguments), &text, says);
        }
    }
}

#[test]
fn what_is_wrong_with_a_cluster_file_is_told_in_one_line() {
    let here = directory();
    let cases = [
        (
            CLUSTER.replace("epoch = 1", "epoch = \"one\""),
            "line 2, column 9",
        ),
        (CLUSTER.replace("epoch", "epcoh"), "line 2, column 1"),
        (
            CLUSTER.replace("majority", "majority(9)"),
            "line 3, column 1",
        ),
        (CLUSTER.replace("id = 2", "id = 1"), "id 1 is given twice"),
        (
            CLUSTER.replace("id = 2", "id = 7"),
            "id 7 is not one of 1 to 3",
        ),
        (
            CLUSTER.replace("127.0.0.1:7001", "nowhere"),
            "is not host:port",
        ),
        (
            CLUSTER.replace("name = \"test\"", "name = \"\""),
            "line 1, column 1",
        ),
        (
            format!("{CLUSTER}\n[times]\nheartbeat = \"9s\"\n"),
            "times.heartbeat",
        ),
        (
            format!("{CLUSTER}\n[times]\nttl_max = \"ten\"\n"),
            "'ten' is not a span of time",
        ),
    ];
    for (text, says) in cases {
        put(here.path(), "cluster.toml", &text);
        let run = conclave(here.path(), &["check-config", "cluster.toml"]);
        refused(&run, &text, says);
    }
    put(here.path(), "cluster.toml", b"name = \"\xff\"");
    let run = conclave(here.path(), &["check-config", "cluster.toml"]);
    refused(&run, "bytes", "not a text in UTF-8");
    refused(
        &conclave(here.path(), &["check-config", "none.toml"]),
        "",
        "none.toml",
    );
    refused(
        &conclave(here.path(), &["check-config", "."]),
        "",
        "not a file",
    );
}

#[test]
fn variables_that_make_no_sense_are_named() {
    let here = directory();
    files(here.path());
    for (name, value, says) in [
        ("CONCLAVE_ID", "zero", "CONCLAVE_ID: 'zero' is not a number"),
        ("CONCLAVE_ID", "0", "CONCLAVE_ID: '0' is not a number"),
        ("CONCLAVE_INSECURE", "maybe", "true or false"),
        ("CONCLAVE_LOG_FORMAT", "xml", "text or json"),
        ("CONCLAVE_LISTEN_API", "x", "from CONCLAVE_LISTEN_API"),
        ("CONCLAVE_CLUSTER", "nowhere.toml", "nowhere.toml"),
    ] {
        let run = with(
            here.path(),
            &[(name, value)],
            &["check-config", "node.toml"],
        );
        refused(&run, name, says);
    }
}

fn refused(run: &Run, what: &str, says: &str) {
    assert_eq!(run.code, Some(2), "{what}\n{}{}", run.out, run.err);
    assert!(run.err.starts_with("error: "), "{what}: {}", run.err);
    assert_eq!(run.err.lines().count(), 1, "{what}: {}", run.err);
    assert!(
        run.err.contains(says),
        "{what}: '{says}' is not in {}",
        run.err
    );
    let plain = run.err.trim_end().chars().all(|c| !c.is_control());
    assert!(plain, "{what}: control characters in {:?}", run.err);
}

#[test]
fn tls_needs_all_its_files_and_the_right_certificate() {
    let here = directory();
    files(here.path());
    let init = ["certs", "init", "--cluster", "test"];
    let node = ["certs", "node", "--id", "1", "--host", "127.0.0.1"];
    for words in [&init[..], &node[..]] {
        let run = conclave(here.path(), words);
        assert_eq!(run.code, Some(0), "{}", run.err);
    }
    let some = format!("{NODE}[tls]\nca = \"certs/ca.pem\"\ncert = \"certs/node-1.pem\"\n");
    put(here.path(), "node.toml", &some);
    let check = ["check-config", "node.toml"];
    let fails = |flags: &[&str], says: &str| {
        let run = conclave(here.path(), &[&check[..], flags].concat());
        assert_eq!(run.code, Some(2), "{flags:?}: {}", run.out);
        assert!(run.err.contains(says), "{flags:?}: {}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    };
    fails(&[], "tls.key is missing");
    put(
        here.path(),
        "node.toml",
        format!("{some}key = \"certs/node-1.key\"\n"),
    );
    fails(&[], "write https://");
    put(
        here.path(),
        "cluster.toml",
        CLUSTER.replace("http://", "https://"),
    );
    fails(&["--id", "2"], "node/1 of cluster 'test', not of node/2");
    fails(&["--tls-ca", "secret"], "no certificate in PEM");
    fails(&["--tls-key", "certs/ca.key"], "does not fit");
    // Others may reach it without asking for plain TCP.
    let open = ["--listen-peer", "0.0.0.0:7001", "--json"];
    let told = told(here.path(), &[], &[&check[..], &open].concat());
    let file = setting(&told, "tls.cert");
    assert_eq!(file, ("certs/node-1.pem", "the file, line 7"));
    assert_eq!(setting(&told, "listen_api").0, "127.0.0.1:8001");
}
