//! Traces of real processes, as a collector receives them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "service/cluster.rs"]
mod cluster;

use cluster::{Cluster, Kid, ran, until};

/// A span, and who sent it.
#[derive(Clone, Debug)]
struct Seen {
    service: String,
    instance: String,
    span: Span,
}

impl Seen {
    fn note(&self, field: &str) -> String {
        said(&self.span.attributes, field)
    }

    fn is(&self, name: &str, lock: &str) -> bool {
        self.span.name == name && self.note("lock.name") == lock
    }
}

fn said(attributes: &[KeyValue], field: &str) -> String {
    let found = attributes.iter().find(|pair| pair.key == field);
    let value = found.and_then(|pair| pair.value.as_ref()?.value.as_ref());
    match value {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(flag)) => flag.to_string(),
        _ => String::new(),
    }
}

/// A collector that keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Seen>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for sent in request.into_inner().resource_spans {
            let resource = sent.resource.unwrap_or_default().attributes;
            let spans = sent.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let seen = spans.map(|span| Seen {
                service: said(&resource, "service.name"),
                instance: said(&resource, "service.instance.id"),
                span,
            });
            self.0.lock().unwrap().extend(seen);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts it on a thread that ends with the test; gives its address.
    fn start() -> (Self, String) {
        let it = Self::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let service = TraceServiceServer::new(it.clone());
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let serve = Server::builder().add_service(service);
                let _ = serve.serve_with_incoming(TcpIncoming::from(listener)).await;
            });
        });
        (it, address)
    }

    fn all(&self) -> Vec<Seen> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for a span of a lock.
    fn wait_for(&self, name: &str, lock: &str, fits: impl Fn(&Seen) -> bool) -> Seen {
        let mut found = None;
        until(&format!("a span {name} of {lock}"), || {
            let mut all = self.all().into_iter();
            found = all.find(|seen| seen.is(name, lock) && fits(seen));
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until so many nodes have told that they granted this, and gives their spans.
    fn grants(&self, root: &Seen, nodes: usize) -> Vec<Seen> {
        let mut grants = Vec::new();
        until("the grants of a quorum", || {
            grants = self.all();
            grants.retain(|seen| {
                seen.span.name == "lock.grant"
                    && seen.span.trace_id == root.span.trace_id
                    && seen.note("outcome") == "granted"
            });
            let told = grants.iter().map(|seen| seen.note("node"));
            told.collect::<BTreeSet<_>>().len() >= nodes
        });
        grants
    }
}

fn post(url: &str, headers: &str, body: &str) -> Value {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    let length = body.len();
    let request = format!(
        "POST /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

#[test]
fn an_acquisition_is_one_trace_across_processes() {
    let (collector, address) = Collector::start();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", address.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(home, &["--processes"], &environment);
    of_a_command(&cluster, &collector);
    of_a_thin_client(&cluster, &collector);
    of_those_who_wait(&cluster, &collector);
    of_nobody(&cluster, &collector);
    without_a_collector(&cluster);
    if std::env::var_os("SHOW").is_some() {
        show(&collector);
    }
}

/// The client's root, a grant of each node of a quorum, and the hold: all in one trace.
fn of_a_command(cluster: &Cluster, collector: &Collector) {
    let (code, _, errors) = cluster.run(&["lock", "jobs/nightly", "--", "true"]);
    assert_eq!(code, 0, "{errors}");
    let root = collector.wait_for("lock.acquire", "jobs/nightly", |_| true);
    assert_eq!(root.service, "conclave-client");
    assert!(root.span.parent_span_id.is_empty(), "{root:?}");
    assert_eq!(root.note("outcome"), "entered");
    assert_eq!(root.note("lock.mode"), "exclusive");
    assert_eq!(root.note("lock.session").len(), 8);
    assert!(root.note("lock.token").parse::<u64>().unwrap() > 0);
    let grants = collector.grants(&root, 3);
    for grant in &grants {
        assert_eq!(grant.span.parent_span_id, root.span.span_id);
        assert_eq!(grant.service, "conclave-node");
        assert_eq!(
            grant.instance,
            grant.note("node"),
            "each from its own process"
        );
        assert!(grant.is("lock.grant", "jobs/nightly"));
        assert!(grant.span.end_time_unix_nano >= grant.span.start_time_unix_nano);
    }
    let told: BTreeSet<String> = grants.iter().map(|grant| grant.note("node")).collect();
    for member in root.note("lock.members").split(' ') {
        assert!(told.contains(member), "{member} granted it: {told:?}");
    }
    let hold = collector.wait_for("lock.hold", "jobs/nightly", |_| true);
    assert_eq!(hold.span.trace_id, root.span.trace_id);
    assert_eq!(hold.span.parent_span_id, root.span.span_id);
    assert_eq!(hold.note("outcome"), "released");
}

/// The gateway makes the root, and links to what its caller was doing.
fn of_a_thin_client(cluster: &Cluster, collector: &Collector) {
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let header = format!("traceparent: 00-{trace}-{span}-01\r\n");
    let api = &cluster.nodes[1].api;
    let taken = post(&format!("{api}/v1/locks/thin/acquire"), &header, "{}");
    let handle = taken["handle"].as_str().unwrap();
    let body = format!("{{\"handle\":\"{handle}\"}}");
    post(
        &format!("{}/v1/locks/release", cluster.nodes[2].api),
        "",
        &body,
    );
    let root = collector.wait_for("lock.acquire", "thin", |_| true);
    assert_eq!((&*root.service, &*root.instance), ("conclave-node", "n2"));
    assert_ne!(hex(&root.span.trace_id), trace, "a link, no parent");
    let links = &root.span.links;
    assert_eq!(links.len(), 1, "{root:?}");
    assert_eq!(hex(&links[0].trace_id), trace);
    assert_eq!(hex(&links[0].span_id), span);
    let grants = collector.grants(&root, 3);
    assert!(
        grants
            .iter()
            .all(|grant| !grant.note("lock.grant").is_empty())
    );
    let release = collector.wait_for("lock.release", "thin", |_| true);
    assert_eq!(release.span.trace_id, root.span.trace_id);
    assert_eq!(release.instance, "n3");
    for seen in collector.all() {
        assert!(
            !format!("{seen:?}").contains(handle),
            "a handle is no one else's"
        );
    }
}

/// Who waits is told its place, and who only tries that it is busy.
fn of_those_who_wait(cluster: &Cluster, collector: &Collector) {
    let holder = cluster.holder(&["gpu"]);
    let mut waits = cluster.command(&["lock", "gpu", "--group", "b", "--", "true"]);
    let mut waits = Kid::spawn(waits.stderr(Stdio::null()));
    until("somebody waits", || {
        let shown = cluster.json(&["show", "gpu", "--json"]);
        shown["waiters"].as_array().is_some_and(|it| !it.is_empty())
    });
    let (code, _, _) = cluster.run(&["lock", "gpu", "--shared", "--try", "--", "true"]);
    assert_eq!(code, 3);
    assert_eq!(holder.leave(), 0);
    assert_eq!(waits.code(), 0);
    collector.wait_for("lock.acquire", "gpu", |seen| seen.note("outcome") == "busy");
    let root = collector.wait_for("lock.acquire", "gpu", |seen| {
        seen.note("lock.group") == "b" && seen.note("outcome") == "entered"
    });
    let queued = root.span.events.iter().find(|event| event.name == "queued");
    assert!(queued.is_some(), "{root:?}");
    let grants = collector.grants(&root, 3);
    assert!(
        grants
            .iter()
            .any(|grant| grant.note("queue.position") == "1"),
        "{grants:?}"
    );
}

/// What is not sampled is not sent.
fn of_nobody(cluster: &Cluster, collector: &Collector) {
    let mut command = cluster.command(&["lock", "unseen", "--", "true"]);
    let (code, _, _) = ran(command.env("OTEL_TRACES_SAMPLER_ARG", "0"));
    assert_eq!(code, 0);
    // The nodes were told no ratio: they send theirs.
    collector.wait_for("lock.grant", "unseen", |_| true);
    let all = collector.all();
    assert!(!all.iter().any(|seen| seen.is("lock.acquire", "unseen")));
}

/// Traces that cannot be sent are in nobody's way.
fn without_a_collector(cluster: &Cluster) {
    let run = |endpoint: &str| {
        let mut command = cluster.command(&["lock", "alone", "--", "true"]);
        ran(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint))
    };
    let (code, _, _) = run("http://127.0.0.1:1");
    assert_eq!(code, 0);
    let (code, _, errors) = run("nonsense");
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("warning: no traces are sent"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// Prints every trace as a tree, for people.
fn show(collector: &Collector) {
    let all = collector.all();
    for root in all
        .iter()
        .filter(|seen| seen.span.parent_span_id.is_empty())
    {
        let mut spans: Vec<&Seen> = all.iter().collect();
        spans.retain(|seen| seen.span.trace_id == root.span.trace_id);
        spans.sort_by_key(|seen| seen.span.start_time_unix_nano);
        let begun = root.span.start_time_unix_nano;
        println!("trace {}", hex(&root.span.trace_id));
        for seen in spans {
            let span = &seen.span;
            let at = span.start_time_unix_nano.saturating_sub(begun) as f64 / 1e6;
            let took = (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e6;
            let notes = span.attributes.iter();
            let notes = notes.map(|pair| format!("{}={}", pair.key, seen.note(&pair.key)));
            let indent = if span.parent_span_id.is_empty() {
                ""
            } else {
                "  "
            };
            let words = notes.collect::<Vec<_>>().join(" ");
            println!("{indent}{} +{at:.2} ms, {took:.2} ms  {words}", span.name);
            for event in &span.events {
                println!("{indent}    * {}", event.name);
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    digits.collect()
}
