//! Callers that go away before their answer was written: what they waited for is cancelled, what
//! they were given is released, long before its TTL.

use std::io::{Read, Write};

use serde_json::json;

use super::harness::{LONG_TTL, Nodes, connect, send, until};

fn body(id: Option<&str>) -> String {
    json!({ "ttl_ms": LONG_TTL, "owner": "gone", "id": id }).to_string()
}

fn waiters(nodes: &Nodes, name: &str) -> usize {
    let shown = nodes.get(1, &format!("/v1/locks/{name}"));
    shown.json["waiters"].as_array().map_or(0, Vec::len)
}

#[test]
fn whoever_hangs_up_while_waiting_waits_no_more() {
    let nodes = Nodes::start(3);
    for id in [None, Some("named")] {
        let held = nodes.until_free(1, "a");
        let gone = send(nodes.api(2), "POST", "/v1/locks/a/acquire", "", &body(id));
        until("it waits", || waiters(&nodes, "a") == 1);
        drop(gone);
        until("it is cancelled", || waiters(&nodes, "a") == 0);
        nodes.release(1, &held["handle"]);
        nodes.release(1, &nodes.until_free(3, "a")["handle"]);
    }
}

#[test]
fn whoever_hangs_up_at_once_leaves_nothing_behind() {
    let nodes = Nodes::start(3);
    // The moment of hanging up moves over the whole life of a request.
    for round in 0..40_u64 {
        let name = format!("round{round}");
        let path = format!("/v1/locks/{name}/acquire");
        let stream = send(nodes.api(1), "POST", &path, "", &body(None));
        std::thread::sleep(std::time::Duration::from_micros(round * 250));
        // Closing with bytes unread resets the connection; without, it is an orderly end.
        drop(stream);
    }
    // Whoever was answered in time had the lock: those answers were written. The others are free.
    let taken = (0..40).filter(|round| {
        let name = format!("round{round}");
        let shown = nodes.get(1, &format!("/v1/locks/{name}"));
        let holders = shown.json["holders"].as_array().map_or(0, Vec::len);
        holders > 0
    });
    let written = nodes.get(1, "/metrics").text;
    let acquired = written
        .lines()
        .find_map(|line| line.strip_prefix("conclave_gateway_answers_total{outcome=\"acquired\"} "))
        .map_or(0, |count| count.parse::<usize>().unwrap());
    let taken = taken.count();
    assert!(taken <= acquired, "{taken} held, {acquired} answered");
}

#[test]
fn a_lock_whose_answer_was_not_written_is_released() {
    // The caller takes its lock while it cannot be told: its connection is closed while the
    // answer waits behind another one that it does not read.
    let nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    let mut stream = connect(nodes.api(2));
    let request = format!(
        "POST /v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{}",
        body(None).len(),
        body(None)
    );
    stream.write_all(request.as_bytes()).unwrap();
    until("it waits", || waiters(&nodes, "a") == 1);
    // The caller hangs up in the moment in which the lock becomes free.
    std::thread::scope(|scope| {
        scope.spawn(|| nodes.release(1, &held["handle"]));
        drop(stream);
    });
    nodes.until_free(3, "a");
}

#[test]
fn hanging_up_with_an_id_does_not_release_what_a_retry_got() {
    let nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    let path = "/v1/locks/a/acquire";
    // The first attempt waits, and its caller loses patience and tries again elsewhere.
    let first = send(nodes.api(1), "POST", path, "", &body(Some("job")));
    until("it waits", || waiters(&nodes, "a") == 1);
    let mut second = send(nodes.api(2), "POST", path, "", &body(Some("job")));
    until("both wait", || waiters(&nodes, "a") == 2);
    nodes.release(3, &held["handle"]);
    let mut answer = Vec::new();
    second.read_to_end(&mut answer).unwrap();
    let got = super::harness::Answer::parse(&answer);
    assert_eq!(got.status, 200, "{got:?}");
    // The answer of the first attempt was never read.
    drop(first);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let kept = nodes.keep(3, &got.json["handle"]);
    assert_eq!(kept.status, 200, "the retry still holds: {kept:?}");
    assert_eq!(nodes.try_lock(3, "a").code(), "not_acquired");
}
