//! Each limit is reached and refuses by its name.

use std::io::Read;
use std::sync::Arc;

use conclave_client::Security;
use conclave_node::api::{self, ApiHandle, ApiLimits, Context};
use conclave_node::who::Gate;
use serde_json::json;

use super::harness::{Answer, LONG_TTL, Nodes, call, connect, send, until};

/// A second API of the first node, with limits of its own.
pub(crate) fn narrow(nodes: &Nodes, limits: ApiLimits, security: Security) -> ApiHandle {
    let node = nodes.running[0].as_ref().unwrap();
    let context = Context {
        cluster: nodes.cluster.clone(),
        id: 1,
        shard: node.shard().clone(),
        key: nodes.key.clone(),
        meters: node.meters().clone(),
        process: 7,
        limits,
        gate: Arc::new(Gate::open()),
        audit: None,
        security,
        names: Vec::new(),
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    api::spawn(context, listener).unwrap()
}

/// How many requests wait for a lock.
fn waiters(nodes: &Nodes, name: &str) -> usize {
    let shown = nodes.get(1, &format!("/v1/locks/{name}"));
    shown.json["waiters"].as_array().map_or(0, Vec::len)
}

#[test]
fn too_many_waiters_are_refused() {
    let nodes = Nodes::start(1);
    let limits = ApiLimits {
        waiters: 2,
        ..ApiLimits::default()
    };
    let api = narrow(&nodes, limits, Security::default());
    let held = nodes.lock(1, "a");
    let body = json!({ "ttl_ms": LONG_TTL }).to_string();
    let path = "/v1/locks/a/acquire";
    let mut waiting: Vec<_> = (0..2)
        .map(|_| send(api.addr(), "POST", path, "", &body))
        .collect();
    // A try takes a place too, so it comes only when both have theirs.
    until("both wait", || waiters(&nodes, "a") == 2);
    let answer = call(
        api.addr(),
        "POST",
        path,
        &body.replace('}', ",\"wait_ms\":0}"),
    );
    assert_eq!(
        (answer.status, answer.code()),
        (429, "too_many_waiters"),
        "{answer:?}"
    );
    // Others are served.
    assert_eq!(call(api.addr(), "GET", "/healthz", "").status, 200);
    assert_eq!(nodes.try_lock(1, "b").status, 200);
    let told = nodes.get(1, "/metrics").text;
    assert!(told.contains("conclave_refused_total{reason=\"too_many_waiters\"}"));
    // When the first of them is served, there is room again.
    nodes.release(1, &held["handle"]);
    until("one is served", || {
        let answer = call(api.addr(), "POST", "/v1/locks/c/acquire", &body);
        answer.status == 200
    });
    waiting.clear();
    api.stop();
}

#[test]
fn too_many_connections_are_refused() {
    let nodes = Nodes::start(1);
    let limits = ApiLimits {
        connections: 3,
        ..ApiLimits::default()
    };
    let api = narrow(&nodes, limits, Security::default());
    let silent: Vec<_> = (0..3).map(|_| connect(api.addr())).collect();
    let mut refused = None;
    // They may not have been accepted yet.
    until("there is no room", || {
        let mut stream = send(api.addr(), "GET", "/healthz", "", "");
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        let answer = Answer::parse(&bytes);
        let full = read.is_ok() && answer.status == 503;
        refused = full.then_some(answer);
        full
    });
    assert_eq!(refused.unwrap().code(), "too_many_connections");
    drop(silent);
    until("there is room", || {
        let mut stream = send(api.addr(), "GET", "/healthz", "", "");
        let mut bytes = Vec::new();
        // A refused connection may be reset.
        let read = stream.read_to_end(&mut bytes);
        read.is_ok() && Answer::parse(&bytes).status == 200
    });
    api.stop();
}

#[test]
fn whoever_says_nothing_is_closed() {
    let nodes = Nodes::start(1);
    let limits = ApiLimits {
        head: std::time::Duration::from_millis(300),
        ..ApiLimits::default()
    };
    let api = narrow(&nodes, limits, Security::default());
    // Also in the middle of a head or of HTTP/2's first words.
    for words in [&b""[..], b"GET / HT", b"PRI * HT"] {
        let mut stream = connect(api.addr());
        std::io::Write::write_all(&mut stream, words).unwrap();
        let mut rest = Vec::new();
        // It ends: its patience is longer than the node's.
        let ended = stream.read_to_end(&mut rest);
        let late = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!late, "{words:?}");
    }
    api.stop();
}

#[test]
fn a_full_queue_is_refused_by_its_name() {
    let nodes = Nodes::with(1, |cluster| cluster.limits.waiters_per_lock = Some(2));
    let _held = nodes.lock(1, "a");
    let body = json!({ "ttl_ms": LONG_TTL }).to_string();
    let _waits = send(nodes.api(1), "POST", "/v1/locks/a/acquire", "", &body);
    until("it is full", || waiters(&nodes, "a") == 1);
    let answer = nodes.try_lock(1, "a");
    assert_eq!(
        (answer.status, answer.code()),
        (429, "queue_full"),
        "{answer:?}"
    );
}

#[test]
fn too_many_locks_and_requests_are_refused_by_their_names() {
    // Besides those in use a node remembers 1024 idle locks; all of them count.
    let nodes = Nodes::with(1, |cluster| cluster.limits.locks = Some(2));
    let refused = (0..1100).find_map(|number| {
        let answer = nodes.try_lock(1, &format!("lock{number}"));
        (answer.status != 200).then_some((number, answer))
    });
    let (number, answer) = refused.unwrap();
    assert_eq!(
        (answer.status, answer.code()),
        (429, "lock_limit"),
        "{number} {answer:?}"
    );

    // A gateway is one client to the nodes, and what waits counts as its own.
    let nodes = Nodes::with(1, |cluster| cluster.limits.locks_per_client = Some(2));
    let _held = nodes.lock(1, "a");
    let body = json!({ "ttl_ms": LONG_TTL }).to_string();
    let path = "/v1/locks/a/acquire";
    let send = || send(nodes.api(1), "POST", path, "", &body);
    let mut waiting = Vec::new();
    until("one too many", || {
        waiting.push(send());
        let answer = nodes.try_lock(1, "x");
        answer.status == 429 && answer.code() == "request_limit"
    });
}
