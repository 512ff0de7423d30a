//! Each mistake has its status and its code.

use std::sync::Arc;

use conclave_node::api::{self, ApiLimits, Context};
use conclave_node::who::Gate;
use conclave_wire::handle::Key;
use serde_json::{Value, json};

use super::harness::{Answer, Nodes, call, connect, send, until};

#[test]
fn what_is_wrong_with_a_request_is_named() {
    let nodes = Nodes::start(1);
    let long_name = "a".repeat(1025);
    let long = format!("/v1/locks/{long_name}/acquire");
    let acquire = "/v1/locks/a/acquire";
    let note = format!(r#"{{"note":"{}"}}"#, "n".repeat(4097));
    let id = format!(r#"{{"id":"{}"}}"#, "i".repeat(257));
    let group = format!(r#"{{"mode":{{"group":"{}"}}}}"#, "g".repeat(257));
    let big = format!(r#"{{"note":"{}"}}"#, "n".repeat(70_000));
    let slots = format!("/v1/locks/{}/acquire", "a".repeat(1023));
    let cases: [(&str, &str, &str, u16, &str); 39] = [
        ("POST", &slots, r#"{"slots":2}"#, 400, "bad_name"),
        ("POST", "/v1/sessions/%ff/revoke", "", 400, "bad_request"),
        (
            "POST",
            "/v1/objects/map/a",
            r#"{"op":"acl","write":[""]}"#,
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/objects/counter/a",
            r#"{"op":"get","amount":1}"#,
            400,
            "bad_request",
        ),
        (
            "GET",
            "/v1/objects/map/a?key=b&limit=x",
            "",
            400,
            "bad_request",
        ),
        ("GET", "/nothing", "", 404, "not_found"),
        ("POST", "/v1/nothing", "", 404, "not_found"),
        ("POST", "/healthz", "", 405, "wrong_method"),
        ("DELETE", "/v1/locks", "", 405, "wrong_method"),
        ("DELETE", "/v1/locks/a", "", 405, "wrong_method"),
        ("POST", "/v1/locks/a", "", 405, "wrong_method"),
        ("PUT", acquire, "", 405, "wrong_method"),
        ("POST", "/v1/locks//acquire", "", 400, "bad_name"),
        ("POST", "/v1/locks/acquire", "", 400, "bad_name"),
        ("GET", "/v1/locks/", "", 400, "bad_name"),
        ("GET", "/v1/locks/%", "", 400, "bad_name"),
        ("GET", "/v1/locks/%f", "", 400, "bad_name"),
        ("POST", "/v1/locks/%xy/acquire", "", 400, "bad_name"),
        ("POST", &long, "", 400, "bad_name"),
        ("POST", acquire, "{", 400, "bad_request"),
        ("POST", acquire, "[]", 400, "bad_request"),
        ("POST", acquire, r#"{"ttl":1}"#, 400, "bad_request"),
        ("POST", acquire, r#"{"ttl_ms":-1}"#, 400, "bad_request"),
        ("POST", acquire, r#"{"mode":"both"}"#, 400, "bad_request"),
        ("POST", acquire, r#"{"id":""}"#, 400, "bad_request"),
        ("POST", acquire, &id, 400, "bad_request"),
        ("POST", acquire, r#"{"ttl_ms":1}"#, 400, "ttl_too_short"),
        ("POST", acquire, r#"{"ttl_ms":60001}"#, 400, "ttl_too_long"),
        (
            "POST",
            acquire,
            r#"{"ttl_ms":1000,"wait_ms":100001}"#,
            400,
            "wait_too_long",
        ),
        (
            "POST",
            acquire,
            r#"{"wait_ms":18446744073709551615}"#,
            400,
            "wait_too_long",
        ),
        ("POST", acquire, &note, 400, "size"),
        ("POST", acquire, &group, 400, "size"),
        ("POST", acquire, &big, 413, "body_too_large"),
        (
            "POST",
            "/v1/locks/serial/x/acquire",
            "{}",
            400,
            "no_handles",
        ),
        ("POST", "/v1/locks/keepalive", "", 400, "bad_request"),
        (
            "POST",
            "/v1/locks/release",
            r#"{"handle":"x"}"#,
            400,
            "forged_handle",
        ),
        ("GET", "/v1/locks?limit=0", "", 400, "bad_request"),
        ("GET", "/v1/locks?perfix=a", "", 400, "bad_request"),
        (
            "GET",
            "/v1/sessions?local=true&cursor=x",
            "",
            400,
            "bad_request",
        ),
    ];
    for (method, path, body, status, code) in cases {
        let answer = call(nodes.api(1), method, path, body);
        let short = &path[..path.len().min(60)];
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{method} {short} {answer:?}"
        );
        assert!(answer.json["error"]["message"].as_str().unwrap().len() > 5);
    }
    // After all that the node serves.
    nodes.lock(1, "a");
}

#[test]
fn only_the_handles_of_this_cluster_are_taken() {
    let nodes = Nodes::start(1);
    let handle = nodes.lock(1, "a")["handle"].as_str().unwrap().to_owned();
    let both = ["/v1/locks/keepalive", "/v1/locks/release"];
    // Any changed character, and any cut.
    for at in (0..handle.len()).step_by(handle.len() / 20 + 1) {
        let mut forged = handle.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        for path in both {
            for text in [&forged[..], &handle[..at]] {
                let answer = nodes.post(1, path, &json!({ "handle": text }));
                assert_eq!(
                    (answer.status, answer.code()),
                    (400, "forged_handle"),
                    "{path} {at}"
                );
            }
        }
    }
    // Another cluster's: the same node with another key.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let node = nodes.running[0].as_ref().unwrap();
    let other = Context {
        cluster: nodes.cluster.clone(),
        id: 1,
        shard: node.shard().clone(),
        key: Key::new(b"another secret"),
        meters: node.meters().clone(),
        process: 1,
        limits: ApiLimits::default(),
        gate: Arc::new(Gate::open()),
        audit: None,
        security: conclave_client::Security::default(),
        names: Vec::new(),
    };
    let other = api::spawn(other, listener).unwrap();
    for path in both {
        let body = json!({ "handle": handle }).to_string();
        let answer = call(other.addr(), "POST", path, &body);
        assert_eq!((answer.status, answer.code()), (400, "forged_handle"));
    }
    other.stop();
    // Another principal's.
    let opened = conclave_wire::handle::open(&nodes.key, "anonymous", &handle).unwrap();
    let foreign = conclave_wire::handle::seal(&nodes.key, "somebody else", &opened);
    for path in both {
        let answer = nodes.post(1, path, &json!({ "handle": foreign }));
        assert_eq!((answer.status, answer.code()), (403, "foreign_handle"));
    }
    // Nothing of this has touched the lock.
    assert_eq!(nodes.keep(1, &Value::from(handle)).status, 200);
}

#[test]
fn without_a_quorum_the_answer_is_503() {
    let mut nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    drop(nodes.running[1].take());
    drop(nodes.running[2].take());
    let answer = nodes.try_lock(1, "b");
    assert_eq!(
        (answer.status, answer.code()),
        (503, "no_quorum"),
        "{answer:?}"
    );
    // Whoever would wait long is told as well.
    let answer = nodes.post(1, "/v1/locks/b/acquire", &json!({ "ttl_ms": 60_000 }));
    assert_eq!(
        (answer.status, answer.code()),
        (503, "no_quorum"),
        "{answer:?}"
    );
    let answer = nodes.keep(1, &held["handle"]);
    assert_eq!(
        (answer.status, answer.code()),
        (503, "no_quorum"),
        "{answer:?}"
    );
    let answer = nodes.release(1, &held["handle"]);
    assert_eq!(
        (answer.status, answer.code()),
        (503, "not_released"),
        "{answer:?}"
    );
    // Looking still works, and says what it cannot know.
    let shown = nodes.get(1, "/v1/locks/a");
    assert_eq!(shown.status, 200);
    assert_eq!(shown.json["partial"], true, "{shown:?}");
    assert_eq!(shown.json["silent"].as_array().unwrap().len(), 2);
}

#[test]
fn a_node_that_stops_says_so() {
    let nodes = Nodes::start(3);
    let held = nodes.lock(2, "a");
    let body = json!({ "ttl_ms": 60_000 }).to_string();
    let mut waiting = send(nodes.api(1), "POST", "/v1/locks/a/acquire", "", &body);
    until("it waits", || {
        nodes.get(2, "/v1/locks/a").json["waiters"] != json!([])
    });
    nodes.running[0].as_ref().unwrap().drain_and_stop();
    let told = Answer::read(&mut waiting);
    assert_eq!((told.status, told.code()), (503, "not_ready"), "{told:?}");
    // What it held for others is kept by others.
    let kept = nodes.keep(3, &held["handle"]);
    assert_eq!(kept.status, 200, "{kept:?}");
}

#[test]
fn bytes_that_are_no_http_end_their_connection_only() {
    use std::io::{Read, Write};
    let nodes = Nodes::start(1);
    let junk: [&[u8]; 5] = [
        b"\0\xff\xfe garbage\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"POST /v1/locks/a/acquire HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
    ];
    for bytes in junk {
        let mut stream = connect(nodes.api(1));
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // It ends; what it says is hyper's business.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert_eq!(nodes.get(1, "/healthz").status, 200);
    nodes.lock(1, "a");
}

#[test]
fn a_wrong_method_is_told_the_right_ones() {
    let nodes = Nodes::start(1);
    for (method, path, allow) in [
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("PUT", "/v1/locks", "GET, HEAD"),
        ("POST", "/v1/locks/a", "GET, HEAD"),
        ("PUT", "/v1/locks/a/acquire", "GET, HEAD, POST"),
        ("GET", "/v1/sessions/1/revoke", "POST"),
        ("GET", "/v1/leases/a/acquire", "POST"),
        ("PUT", "/v1/objects/map/a", "GET, POST"),
    ] {
        let answer = call(nodes.api(1), method, path, "");
        assert_eq!(
            (answer.status, answer.code()),
            (405, "wrong_method"),
            "{method} {path}"
        );
        let told = answer
            .head
            .lines()
            .find_map(|line| line.strip_prefix("allow: "));
        assert_eq!(told, Some(allow), "{method} {path}");
    }
}

#[test]
fn query_values_of_a_wrong_type_are_refused() {
    let nodes = Nodes::start(1);
    for path in [
        "/v1/locks?local=maybe",
        "/v1/locks/a?local=2",
        "/v1/status?local=yes",
        "/v1/sessions?local=x",
        "/v1/sessions?cursor=x",
        "/v1/sessions?limit=1&limit=2",
        "/v1/locks?limit=ten",
        "/v1/objects/log/a?limit=99999999999",
    ] {
        let answer = nodes.get(1, path);
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad_request"),
            "{path}"
        );
    }
    for path in [
        "/v1/sessions/1/revoke?force=maybe",
        "/v1/sessions/1/revoke?local=maybe",
    ] {
        let answer = nodes.post(1, path, &json!({}));
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad_request"),
            "{path}"
        );
    }
    for path in [
        "/v1/locks?local=true",
        "/v1/locks?local=0",
        "/v1/status?local",
    ] {
        assert_eq!(nodes.get(1, path).status, 200, "{path}");
    }
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let nodes = Nodes::start(1);
    let metrics = |accept: &str| {
        let head = format!("accept: {accept}\r\n");
        Answer::read(&mut send(nodes.api(1), "GET", "/metrics", &head, ""))
    };
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    for open in ["*/*", "application/openmetrics-text", prometheus] {
        let answer = metrics(open);
        assert!(answer.text.ends_with("# EOF\n"), "{open}");
        assert!(
            answer.head.contains("application/openmetrics-text"),
            "{open}"
        );
        assert!(
            answer.text.contains("# TYPE conclave_grants counter"),
            "{open}"
        );
    }
    for classic in ["text/plain", "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"] {
        let answer = metrics(classic);
        assert!(
            answer.head.contains("text/plain; version=0.0.4"),
            "{classic}"
        );
        assert!(!answer.text.contains("# EOF"), "{classic}");
        assert!(
            answer.text.contains("# TYPE conclave_grants_total counter"),
            "{classic}"
        );
        assert!(
            answer.text.contains("\nconclave_grants_total "),
            "{classic}"
        );
    }
}

#[test]
fn the_first_page_names_every_path() {
    let nodes = Nodes::start(1);
    let page = nodes.get(1, "/").text;
    let described = nodes.get(1, "/v1/openapi.json").json;
    for path in described["paths"].as_object().unwrap().keys() {
        assert!(page.contains(path.as_str()), "{path} is not listed");
    }
}
