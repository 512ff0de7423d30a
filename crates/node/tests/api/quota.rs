//! One greedy caller, and everybody else.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;

use crate::harness::{LONG_TTL, Nodes, PATIENCE};

/// The status and the code of an answer to a caller from this address.
fn take(from: Ipv4Addr, to: SocketAddr, name: &str) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    });
    let mut stream = { stream }.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = json!({ "ttl_ms": LONG_TTL, "wait_ms": 0 }).to_string();
    let request = format!(
        "POST /v1/locks/{name}/acquire HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or_default();
    (status, code.to_owned())
}

#[test]
fn a_greedy_caller_takes_nothing_from_the_others() {
    let nodes = Nodes::with(3, |cluster| {
        cluster.limits.sessions_per_client = Some(20);
    });
    let (greedy, others) = (Ipv4Addr::new(127, 0, 0, 2), 3..=6);
    let mut refused = Vec::new();
    for number in 0..60 {
        let gateway = nodes.api(number % 3 + 1);
        let (status, code) = take(greedy, gateway, &format!("greedy/{number}"));
        if status != 200 {
            refused.push((status, code));
        }
    }
    // Each node keeps 20 sessions of it; a lock rests on two of three nodes.
    assert!(refused.len() >= 30, "{} of 60 are refused", refused.len());
    let named = |(status, code): &(u16, String)| (*status, code.as_str()) == (429, "session_limit");
    assert!(refused.iter().all(named), "{refused:?}");
    for last in others {
        let caller = Ipv4Addr::new(127, 0, 0, last);
        for id in 1..=3 {
            let name = format!("modest/{last}/{id}");
            assert_eq!(take(caller, nodes.api(id), &name).0, 200, "{name}");
        }
    }
}
