//! Waiting with the queue position, as lines and as events.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use super::harness::{LONG_TTL, Nodes, send, until};

/// The objects of a stream as they come.
fn objects(stream: std::net::TcpStream, prefix: &'static str) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.filter_map(move |line| serde_json::from_str(line.strip_prefix(prefix)?).ok())
}

#[test]
fn a_stream_tells_the_position_and_then_the_lock() {
    let nodes = Nodes::start(3);
    for (accept, prefix) in [
        ("application/x-ndjson", ""),
        ("text/event-stream", "data: "),
    ] {
        let name = accept.replace('/', "-");
        let path = format!("/v1/locks/{name}/acquire");
        let held = nodes.lock(1, &name);
        let body = json!({ "ttl_ms": LONG_TTL }).to_string();
        let before = send(nodes.api(2), "POST", &path, "", &body);
        until("one waits", || {
            nodes.get(1, &format!("/v1/locks/{name}")).json["waiters"] != json!([])
        });
        let head = format!("accept: {accept}\r\n");
        let stream = send(nodes.api(3), "POST", &path, &head, &body);
        let mut told = objects(stream, prefix).filter(Value::is_object);
        let first = told.next().unwrap();
        assert_eq!(first, json!({ "position": 2 }), "{accept}");
        // The one before gives up.
        drop(before);
        let mut last = told.next().unwrap();
        assert_eq!(last, json!({ "position": 1 }), "{accept}");
        nodes.release(2, &held["handle"]);
        for object in told {
            last = object;
        }
        assert!(last["token"].as_u64() > held["token"].as_u64(), "{last}");
        assert_eq!(nodes.keep(1, &last["handle"]).status, 200);
    }
}

#[test]
fn a_stream_that_fails_carries_its_status() {
    let nodes = Nodes::start(1);
    let held = nodes.lock(1, "a");
    let body = json!({ "ttl_ms": 1000, "wait_ms": 200 }).to_string();
    let head = "accept: application/x-ndjson\r\n";
    let stream = send(nodes.api(1), "POST", "/v1/locks/a/acquire", head, &body);
    let last = objects(stream, "").filter(Value::is_object).last().unwrap();
    assert_eq!(last["status"], 409, "{last}");
    assert_eq!(last["error"]["code"], "not_acquired");
    assert_eq!(last["holders"][0]["token"], held["token"]);
    // What is wrong from the start is said with the status of HTTP.
    let mut stream = send(
        nodes.api(1),
        "POST",
        "/v1/locks/a/acquire",
        head,
        "{\"ttl\":1}",
    );
    assert_eq!(super::harness::Answer::read(&mut stream).status, 400);
}

#[test]
fn hanging_up_on_a_stream_cancels() {
    let nodes = Nodes::start(1);
    let held = nodes.lock(1, "a");
    let body = json!({ "ttl_ms": LONG_TTL }).to_string();
    let head = "accept: application/x-ndjson\r\n";
    let stream = send(nodes.api(1), "POST", "/v1/locks/a/acquire", head, &body);
    let mut told = objects(stream, "").filter(Value::is_object);
    assert_eq!(told.next().unwrap(), json!({ "position": 1 }));
    drop(told);
    until("nobody waits", || {
        nodes.get(1, "/v1/locks/a").json["waiters"] == json!([])
    });
    nodes.release(1, &held["handle"]);
    nodes.until_free(1, "a");
}
