//! What operators, probes and smart clients read.

use serde_json::{Value, json};

use super::harness::{Nodes, until};

#[test]
fn probes_status_and_description() {
    let mut nodes = Nodes::start(3);
    assert_eq!(nodes.get(1, "/healthz").json, json!({ "alive": true }));
    assert_eq!(nodes.get(1, "/readyz").json["state"], "serving");
    let root = nodes.get(1, "/");
    assert!(root.text.contains("/v1/openapi.json"), "{root:?}");
    let openapi = nodes.get(1, "/v1/openapi.json");
    assert_eq!(openapi.json["openapi"], "3.1.0");
    let cluster = nodes.get(2, "/v1/cluster");
    let cluster: conclave_wire::Cluster = serde_json::from_value(cluster.json).unwrap();
    assert_eq!(cluster, nodes.cluster);
    assert_eq!(cluster.digest(), nodes.cluster.digest());

    let status = nodes.get(1, "/v1/status");
    assert_eq!(status.json["id"], 1);
    assert_eq!(status.json["available"], true);
    let listed = status.json["nodes"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    for (node, id) in listed.iter().zip(1..) {
        assert_eq!(
            (&node["id"], &node["reachable"]),
            (&json!(id), &json!(true))
        );
        assert_eq!(node["status"]["state"], "serving");
    }
    drop(nodes.running[2].take());
    let status = nodes.get(1, "/v1/status");
    assert_eq!(status.json["nodes"][2]["reachable"], false, "{status:?}");
    assert!(status.json["nodes"][2]["why"].is_string());
    assert_eq!(status.json["available"], true);
    let local = nodes.get(2, "/v1/status?local=true");
    assert_eq!(local.json["id"], 2);
    assert!(local.json.get("nodes").is_none());
}

#[test]
fn metrics_count_what_happened() {
    let nodes = Nodes::start(1);
    let held = nodes.lock(1, "a");
    nodes.try_lock(1, "a");
    nodes.keep(1, &held["handle"]);
    nodes.release(1, &held["handle"]);
    let text = nodes.get(1, "/metrics").text;
    for line in [
        "conclave_gateway_answers_total{outcome=\"acquired\"} 1",
        "conclave_gateway_answers_total{outcome=\"not_acquired\"} 1",
        "conclave_gateway_answers_total{outcome=\"kept\"} 1",
        "conclave_gateway_answers_total{outcome=\"released\"} 1",
        "conclave_acquire_seconds_count 1",
        "conclave_state{state=\"serving\"} 1",
        "# TYPE conclave_fsync_seconds histogram",
        "# EOF",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}\n{text}");
    }
    let helps = text
        .lines()
        .filter(|line| line.starts_with("# HELP conclave_"));
    assert!(helps.count() > 30, "{text}");
}

#[test]
fn a_list_is_complete_ordered_and_paged() {
    let nodes = Nodes::start(3);
    let names: Vec<String> = (0..25).map(|n| format!("jobs/{n:02}")).collect();
    for (name, place) in names.iter().zip(0..) {
        nodes.lock(place % 3 + 1, name);
    }
    nodes.lock(1, "other");
    nodes.lock(1, "%FE");
    let mut seen = Vec::new();
    let mut path = "/v1/locks?prefix=jobs%2F&limit=4".to_owned();
    for page in 0.. {
        assert!(page < 20, "it ends");
        let answer = nodes.get(page % 3 + 1, &path);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json["partial"], false);
        let locks = answer.json["locks"].as_array().unwrap();
        assert!(locks.len() <= 4);
        for lock in locks {
            assert_eq!(lock["holders"].as_array().unwrap().len(), 1, "{lock}");
            seen.push(lock["name"].as_str().unwrap().to_owned());
        }
        match &answer.json["next"] {
            Value::String(next) => {
                path = format!("/v1/locks?prefix=jobs/&limit=4&cursor={next}");
            }
            _ => break,
        }
    }
    assert_eq!(seen, names);
    let all = nodes.get(2, "/v1/locks");
    let locks = all.json["locks"].as_array().unwrap();
    assert_eq!(locks.len(), 27);
    assert_eq!(locks[26]["name"], json!({ "base64": "/g==" }));
}

#[test]
fn sessions_say_whose_they_are() {
    let nodes = Nodes::start(3);
    let body = json!({ "ttl_ms": 50_000, "owner": "cron@host", "wait_ms": 0 });
    let held = nodes.post(1, "/v1/locks/a/acquire", &body);
    assert_eq!(held.status, 200);
    let mine = |answer: &Value| {
        let sessions = answer["sessions"].as_array().unwrap().clone();
        let mut mine = sessions
            .into_iter()
            .filter(|one| one["owner"] == "cron@host");
        let first = mine.next();
        assert!(mine.next().is_none(), "one line per session: {answer}");
        first
    };
    let session = mine(&nodes.get(3, "/v1/sessions").json).unwrap();
    assert_eq!(session["detached"], true);
    assert_eq!(session["ttl_ms"], 50_000);
    assert!(session["nodes"].as_array().unwrap().len() >= 2, "{session}");
    let own = nodes.get(1, "/v1/sessions?local=true&limit=1000");
    assert!(own.json["sessions"].is_array());
    nodes.release(2, &held.json["handle"]);
    until("it is over", || {
        mine(&nodes.get(3, "/v1/sessions").json).is_none()
    });
}
