//! HTTP/2: many streams whose bodies do not end hold a bounded number of bytes.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use conclave_client::Security;
use conclave_node::api::ApiLimits;
use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::task::JoinSet;

use super::harness::{Nodes, PATIENCE, connect};
use super::limits::narrow;

type Sent = BoxBody<Bytes, Infallible>;

/// A body of so many bytes that does not end; to gRPC it is the beginning of a large message.
fn endless(bytes: usize) -> Sent {
    let mut data = vec![0, 0, 0, 0xff, 0xff];
    data.resize(bytes, b' ');
    let data = Frame::data(Bytes::from(data));
    let stream = stream::iter([Ok(data)]).chain(stream::pending());
    BodyExt::boxed(StreamBody::new(stream))
}

async fn dial(at: SocketAddr) -> SendRequest<Sent> {
    let socket = tokio::net::TcpStream::connect(at).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn post(at: SocketAddr, path: &str, kind: &str, body: Sent) -> Request<Sent> {
    Request::post(format!("http://{at}{path}"))
        .header("content-type", kind)
        .body(body)
        .unwrap()
}

async fn answer(response: Response<hyper::body::Incoming>) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Bodies of which nothing is given up for being slow.
fn patient() -> ApiLimits {
    ApiLimits {
        bodies: 1 << 20,
        bodies_per_address: 512 << 10,
        body_time: Duration::from_hours(1),
        ..ApiLimits::default()
    }
}

#[tokio::test]
async fn bodies_that_do_not_end_hold_no_more_than_their_budget() {
    let nodes = Nodes::start(1);
    let api = narrow(&nodes, patient(), Security::default());
    let (at, path, each) = (api.addr(), "/v1/locks/a/acquire", 32 << 10);
    let mut sent = JoinSet::new();
    let mut senders = Vec::new();
    for number in 0..6 {
        let sender = dial(at).await;
        for _ in 0..100 {
            let mut sender = sender.clone();
            // Both kinds of callers.
            let (path, kind) = match number % 2 {
                0 => (path, "application/json"),
                _ => ("/conclave.v1.Locks/Acquire", "application/grpc"),
            };
            sent.spawn(async move {
                let request = post(at, path, kind, endless(each));
                let response = sender.send_request(request).await.unwrap();
                let code = response.headers().get("conclave-code").cloned();
                let code = code.map(|code| code.to_str().unwrap().to_owned());
                let json = answer(response).await.1;
                code.unwrap_or_else(|| json["error"]["code"].as_str().unwrap().to_owned())
            });
        }
        senders.push(sender);
    }
    // All are given up but those that the budget of one address has room for.
    let held = (512 << 10) / each;
    while sent.len() > held {
        let next = tokio::time::timeout(PATIENCE, sent.join_next()).await;
        let next = next.expect("too much is held").unwrap().unwrap();
        assert_eq!(next, "too_many_bodies");
    }
    // Whoever sends what it has to say is served meanwhile.
    let body = Full::new(Bytes::from(r#"{"wait_ms":0}"#)).boxed();
    let request = post(at, path, "application/json", body);
    let response = dial(at).await.send_request(request).await.unwrap();
    let (status, json) = answer(response).await;
    assert_eq!(status, 200, "{json}");
    drop((sent, senders));
    api.stop();
}

#[tokio::test]
async fn a_body_of_grpc_that_does_not_end_is_given_up() {
    let nodes = Nodes::start(1);
    let limits = ApiLimits {
        body_time: Duration::from_millis(100),
        ..ApiLimits::default()
    };
    let api = narrow(&nodes, limits, Security::default());
    let at = api.addr();
    let request = post(
        at,
        "/conclave.v1.Locks/Acquire",
        "application/grpc",
        endless(3),
    );
    let mut sender = dial(at).await;
    let answered = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
    let response = answered.expect("it is waited for").unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
    assert_eq!(response.headers()["conclave-code"], "slow_body");
    api.stop();
}

#[test]
fn a_connection_has_a_hundred_streams_and_small_windows() {
    let nodes = Nodes::start(1);
    let mut stream = connect(nodes.api(1));
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    stream.write_all(&hello).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "the first frame has the settings");
    let mut told = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut told).unwrap();
    let setting = |id: u16| {
        let mut all = told.chunks(6);
        let found = all.find(|one| one[..2] == id.to_be_bytes()).unwrap();
        u32::from_be_bytes(found[2..].try_into().unwrap())
    };
    let (streams, window, heads) = (setting(3), setting(4), setting(6));
    assert_eq!(streams, 100);
    assert!(window <= 64 << 10, "{window}");
    assert!(heads <= 16 << 10, "{heads}");
}
