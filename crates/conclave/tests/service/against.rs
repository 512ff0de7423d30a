//! `conclave bench --against`: the command, the rows, and who is left out.

use std::path::Path;

use serde_json::Value;

use crate::cluster::{conclave, ran};

/// Runs a comparison and gives the exit code, the last line as JSON, and what was said.
fn told(home: &Path, arguments: &[&str]) -> (i32, Value, String) {
    let mut command = conclave(home);
    command
        .args(["bench", "--json", "--against"])
        .args(arguments);
    let (code, out, err) = ran(&mut command);
    let last = out.lines().last().unwrap_or_default();
    (code, serde_json::from_str(last).unwrap_or(Value::Null), err)
}

fn keys(told: &Value) -> Vec<(String, String, u64)> {
    let rows = told["rows"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut keys: Vec<_> = rows
        .map(|row| {
            let clients = row["clients"].as_u64().unwrap();
            (text(&row["system"]), text(&row["load"]), clients)
        })
        .collect();
    keys.sort();
    keys
}

#[test]
fn conclave_is_measured_in_both_modes_beside_an_echo() {
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("out.html");
    let arguments = "conclave --nodes 3 --clients 2 --loads uncontended,hot --rounds 1 \
        --seconds 0.3 --names 20 --html";
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.push(page.to_str().unwrap());
    let (code, told, err) = told(home.path(), &arguments);
    assert_eq!(code, 0, "{err}");
    let key = |system: &str, load: &str, clients| (system.to_owned(), load.to_owned(), clients);
    assert_eq!(
        keys(&told),
        [
            key("conclave", "hot", 2),
            key("conclave", "uncontended", 2),
            key("conclave-durable", "hot", 2),
            key("conclave-durable", "uncontended", 2),
            key("echo", "echo", 1),
        ]
    );
    assert_eq!(
        (told["nodes"].as_u64(), told["rounds"].as_u64()),
        (Some(3), Some(1))
    );
    assert!(told["machine"]["fsync_us"]["p50"].as_f64().unwrap() > 0.0);
    assert_eq!(told["skipped"], Value::Array(Vec::new()));
    for row in told["rows"].as_array().unwrap() {
        assert_eq!(row["violations"], 0, "{row}");
        assert!(row["cycles_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["p50_us"].as_f64().unwrap() > 0.0, "{row}");
        if row["system"] != "echo" {
            assert!(row["net_bytes_per_cycle"].as_f64().unwrap() > 50.0, "{row}");
            assert!(row["rss_mb"].as_f64().unwrap() > 1.0, "{row}");
        }
        // Without contention every grant of a durable node waits for a sync.
        let syncs = row["fsyncs_per_cycle"].as_f64();
        if row["system"] == "conclave-durable" {
            assert!(syncs.unwrap() > 0.1, "{row}");
        }
    }
    assert!(
        std::fs::read_to_string(page)
            .unwrap()
            .contains("Conclave, durable")
    );
}

#[test]
fn a_node_is_killed_and_then_stopped() {
    let home = tempfile::tempdir().unwrap();
    let arguments = "conclave --nodes 3 --clients 1,4 --loads kill --rounds 1 --seconds 0.3";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let (code, told, err) = told(home.path(), &arguments);
    assert_eq!(code, 0, "{err}");
    let rows = told["rows"].as_array().unwrap();
    let hit: Vec<&Value> = rows.iter().filter(|row| row["system"] != "echo").collect();
    assert_eq!(hit.len(), 4, "{told}");
    for row in hit {
        assert_eq!(
            (row["clients"].as_u64(), row["survives"].as_bool()),
            (Some(4), Some(true))
        );
        assert!(row["client_gap_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[cfg(not(feature = "peers"))]
#[test]
fn a_build_without_peers_says_so() {
    let home = tempfile::tempdir().unwrap();
    let (code, _, err) = told(home.path(), &["etcd", "--loads", "hot"]);
    assert_eq!(code, 2);
    assert!(err.contains("feature 'peers'"), "{err}");
}

#[cfg(feature = "peers")]
#[test]
fn peers_that_are_not_there_are_named() {
    let home = tempfile::tempdir().unwrap();
    let empty = home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let mut arguments = vec!["etcd,zookeeper,redis,redlock", "--peers-path"];
    arguments.push(empty.to_str().unwrap());
    let more = "--nodes 1 --clients 1 --loads uncontended --rounds 1 --seconds 0.1";
    arguments.extend(more.split_whitespace());
    let (code, told, err) = told(home.path(), &arguments);
    assert_eq!(code, 0, "{err}");
    let skipped = told["skipped"].as_array().unwrap();
    let names = skipped.iter().map(|one| one["system"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["etcd", "zookeeper", "redis", "redlock"]);
    for one in skipped {
        assert_eq!(one["why"], "not installed: run bench/peers.sh");
    }
    assert!(err.contains("etcd is skipped: not installed"), "{err}");
    assert_eq!(keys(&told).len(), 3, "Conclave in both modes, and the echo");
}

#[cfg(feature = "peers")]
#[test]
fn redis_is_measured_where_it_is_installed() {
    if !Path::new("/usr/bin/redis-server").is_file() {
        eprintln!("skipped: redis-server is not installed");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let arguments = "redis,redlock --nodes 3 --clients 3 --loads hot,mix --rounds 1 --seconds 0.2";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let (code, told, err) = told(home.path(), &arguments);
    assert_eq!(code, 0, "{err}");
    let rows = told["rows"].as_array().unwrap();
    for system in ["redis", "redlock"] {
        let mut rows = rows.iter().filter(|row| row["system"] == system);
        let row = rows.next().unwrap_or_else(|| panic!("{told}"));
        assert_eq!(
            (&row["load"], row["violations"].as_u64()),
            (&"hot".into(), Some(0))
        );
        assert!(row["cycles_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["fsyncs_per_cycle"], 0.0);
        assert!(rows.next().is_none());
    }
    let impossible = told["impossible"].as_array().unwrap();
    assert_eq!(impossible.len(), 2, "{told}");
    assert!(impossible.iter().all(|one| one["load"] == "mix"));
}

#[test]
fn what_makes_no_sense_is_refused_in_a_line() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, word) in [
        ("--against consul", "consul"),
        ("--against conclave --seconds 0", "--seconds"),
        ("--against conclave --rounds 0", "rounds"),
        ("--against conclave --names 0", "--names"),
        ("--against conclave --restart durable", "--restart"),
        ("--against conclave --rate 5", "--rate"),
        ("--against conclave --loads cold", "cold"),
        ("--against conclave --quorum nonsense(", "nonsense"),
        ("--loads kill", "--against"),
        ("--html out.html", "--against"),
        ("--peers-path .", "--against"),
    ] {
        let mut command = conclave(home.path());
        command.arg("bench").args(arguments.split_whitespace());
        let (code, out, err) = ran(&mut command);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments}: {err}");
        assert!(err.contains(word), "{arguments}: {err}");
    }
}
