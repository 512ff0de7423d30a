//! Watches over HTTP and gRPC.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use conclave_wire::api::v1::locks_client::LocksClient;
use conclave_wire::api::v1::{WatchRequest, watch_event, watch_request};
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::harness::{Answer, LONG_TTL, Nodes, PATIENCE, send, until};

/// The events of a stream as they come: number, kind, content.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    pub(crate) fn open(nodes: &Nodes, id: usize, path: &str) -> Self {
        let stream = send(nodes.api(id), "GET", path, "", "");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn field(&mut self, name: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "no more events");
            if let Some(value) = line.trim_end().strip_prefix(&format!("{name}: ")) {
                return value.to_owned();
            }
        }
    }

    fn next(&mut self) -> (u64, String, Value) {
        let number = self.field("id").parse().unwrap();
        let kind = self.field("event");
        let data = self.field("data");
        (number, kind, serde_json::from_str(&data).unwrap())
    }

    /// Reads until a state is as wanted.
    fn until(&mut self, so: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (_, kind, data) = self.next();
            if kind == "state" && so(&data) {
                return data;
            }
        }
    }
}

#[test]
fn a_lock_is_watched_as_server_sent_events() {
    let nodes = Nodes::start(3);
    let mut events = Events::open(&nodes, 1, "/v1/locks/jobs/nightly/watch");
    let (number, kind, first) = events.next();
    assert_eq!((number, kind.as_str()), (1, "state"));
    let idle = json!({
        "name": "jobs/nightly", "holders": [], "more": 0, "waiting": 0, "partial": false
    });
    assert_eq!(first, idle);
    let body = json!({ "ttl_ms": LONG_TTL, "wait_ms": 0, "owner": "me", "note": "hello" });
    let held = nodes.post(2, "/v1/locks/jobs/nightly/acquire", &body);
    assert_eq!(held.status, 200, "{held:?}");
    let state = events.until(|state| state["holders"] != json!([]));
    let holder = &state["holders"][0];
    assert_eq!(holder["token"], held.json["token"]);
    assert_eq!(holder["group"], held.json["group"]);
    assert_eq!(holder["owner"], "me");
    assert_eq!(holder["note"], "hello");
    assert_eq!(holder["mode"], "exclusive");
    nodes.release(3, &held.json["handle"]);
    events.until(|state| *state == idle);
    // A name that ends so is still shown, with its last slash written in code.
    assert_eq!(nodes.get(1, "/v1/locks/a%2Fwatch").status, 200);
}

#[test]
fn a_prefix_is_watched_as_server_sent_events() {
    let nodes = Nodes::start(3);
    nodes.lock(1, "jobs/a");
    nodes.lock(2, "jobs/b");
    nodes.lock(3, "other");
    let mut events = Events::open(&nodes, 2, "/v1/watch?prefix=jobs%2F");
    let mut names = Vec::new();
    loop {
        match events.next() {
            (_, kind, data) if kind == "state" => names.push(data["name"].clone()),
            (number, kind, data) => {
                assert_eq!(kind, "synced");
                assert_eq!(data, json!({ "partial": false }));
                assert!(number as usize > names.len());
                break;
            }
        }
    }
    names.sort_by_key(ToString::to_string);
    names.dedup();
    assert_eq!(names, [json!("jobs/a"), json!("jobs/b")]);
    nodes.lock(1, "jobs/c");
    events.until(|state| state["name"] == "jobs/c" && state["holders"] != json!([]));
    let mut wrong = send(nodes.api(1), "GET", "/v1/watch?prefx=a", "", "");
    assert_eq!(Answer::read(&mut wrong).status, 400);
    let mut long = send(
        nodes.api(1),
        "GET",
        &format!("/v1/watch?prefix={}", "a".repeat(2000)),
        "",
        "",
    );
    assert_eq!(Answer::read(&mut long).status, 400);
}

/// Who watches through a node that dies asks another and goes on from the present.
#[test]
fn a_watch_goes_on_when_a_node_dies_and_ends_with_its_own() {
    let mut nodes = Nodes::start(3);
    let mut events = Events::open(&nodes, 1, "/v1/locks/a/watch");
    events.next();
    drop(nodes.running[2].take());
    let held = nodes.until_free(2, "a");
    let state = events.until(|state| state["holders"] != json!([]));
    assert_eq!(state["holders"][0]["token"], held["token"]);
    let stopped = nodes.running[0].take().unwrap();
    let stops = std::thread::spawn(move || drop(stopped));
    loop {
        let (_, kind, data) = events.next();
        if kind == "error" {
            assert_eq!(data["error"]["code"], "not_ready", "{data}");
            assert_eq!(data["status"], 503);
            break;
        }
    }
    stops.join().unwrap();
}

async fn channel(nodes: &Nodes, id: usize) -> Channel {
    let url = nodes.cluster.nodes[id - 1].api.clone();
    let endpoint = Channel::from_shared(url).unwrap();
    endpoint.connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_watched_over_grpc() {
    let nodes = Nodes::start(3);
    let mut locks = LocksClient::new(channel(&nodes, 1).await);
    let what = Some(watch_request::What::Prefix(b"jobs/".to_vec()));
    let mut stream = locks
        .watch(WatchRequest { what })
        .await
        .unwrap()
        .into_inner();
    let first = stream.message().await.unwrap().unwrap().event.unwrap();
    assert!(matches!(first, watch_event::Event::Synced(synced) if !synced.partial));
    let held = tokio::task::block_in_place(|| nodes.lock(2, "jobs/a"));
    let state = loop {
        let event = stream.message().await.unwrap().unwrap().event.unwrap();
        if let watch_event::Event::State(state) = event
            && !state.holders.is_empty()
        {
            break state;
        }
    };
    assert_eq!(state.name, b"jobs/a");
    assert_eq!(state.holders[0].token, held["token"].as_u64());
    let what = Some(watch_request::What::Name(Vec::new()));
    let refused = locks.watch(WatchRequest { what }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    drop(stream);
    until("the nodes forget the watch", || {
        let metrics = nodes.get(1, "/metrics").text;
        metrics.contains("conclave_watches 0")
    });
}
