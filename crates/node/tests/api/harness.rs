//! A cluster of nodes in this process, and an HTTP client that does just what it is told.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use conclave_node::{Node, Options};
use conclave_wire::Cluster;
use conclave_wire::cluster::{LimitsText, PolicyText, ProtocolText, RestartText, Times};
use conclave_wire::faults::FaultsText;
use conclave_wire::handle::Key;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything should take, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// A TTL that no test waits for.
pub(crate) const LONG_TTL: u64 = 50_000;

pub(crate) struct Nodes {
    pub(crate) running: Vec<Option<Node>>,
    pub(crate) cluster: Cluster,
    pub(crate) key: Key,
    _data: TempDir,
}

impl Nodes {
    /// As many nodes as asked for, all of them serving.
    pub(crate) fn start(nodes: u32) -> Self {
        Self::with(nodes, |_| {})
    }

    pub(crate) fn with(nodes: u32, change: impl FnOnce(&mut Cluster)) -> Self {
        let data = TempDir::new().unwrap();
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets: Vec<(TcpListener, TcpListener)> =
            (0..nodes).map(|_| (bind(), bind())).collect();
        let listed =
            sockets
                .iter()
                .zip(1..)
                .map(|((peer, api), id)| conclave_wire::cluster::Node {
                    id,
                    peer: peer.local_addr().unwrap().to_string(),
                    api: format!("http://{}", api.local_addr().unwrap()),
                    place: None,
                });
        let mut cluster = Cluster {
            name: "test".into(),
            epoch: 1,
            quorum: "majority".into(),
            topology: None,
            coterie: None,
            groups: Vec::new(),
            restart: RestartText::Pause,
            times: Times::default(),
            limits: LimitsText::default(),
            faults: FaultsText::default(),
            policies: vec![PolicyText {
                prefix: "serial/".into(),
                max_inside: None,
                max_bypass: None,
                protocol: Some(ProtocolText::Serial),
                choice: None,
            }],
            nodes: listed.collect(),
        };
        change(&mut cluster);
        let key = Key::new(b"secret of the test");
        let started = sockets.into_iter().zip(1..).map(|((peer, api), id)| {
            let options = Options {
                cluster: cluster.clone(),
                id,
                data: data.path().join(id.to_string()),
                init: true,
                key: key.clone(),
                peer,
                api,
                history: None,
                access: None,
                audit: None,
                security: conclave_client::Security::default(),
                liar: None,
                rejoin: None,
                change: None,
                api_names: Vec::new(),
            };
            Some(Node::start(options).unwrap())
        });
        let nodes = Self {
            running: started.collect(),
            cluster: cluster.clone(),
            key: key.clone(),
            _data: data,
        };
        for id in 1..=nodes.running.len() {
            until("the node serves", || nodes.get(id, "/readyz").status == 200);
        }
        nodes
    }

    pub(crate) fn api(&self, id: usize) -> SocketAddr {
        let url = &self.cluster.nodes[id - 1].api;
        url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    pub(crate) fn get(&self, id: usize, path: &str) -> Answer {
        call(self.api(id), "GET", path, "")
    }

    pub(crate) fn post(&self, id: usize, path: &str, body: &Value) -> Answer {
        call(self.api(id), "POST", path, &body.to_string())
    }

    /// Tries to take a lock for a long time, without waiting.
    pub(crate) fn try_lock(&self, id: usize, name: &str) -> Answer {
        let body = serde_json::json!({ "ttl_ms": LONG_TTL, "wait_ms": 0 });
        self.post(id, &format!("/v1/locks/{name}/acquire"), &body)
    }

    /// Takes a lock that must be free.
    pub(crate) fn lock(&self, id: usize, name: &str) -> Value {
        let answer = self.try_lock(id, name);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json
    }

    pub(crate) fn keep(&self, id: usize, handle: &Value) -> Answer {
        let body = serde_json::json!({ "handle": handle });
        self.post(id, "/v1/locks/keepalive", &body)
    }

    pub(crate) fn release(&self, id: usize, handle: &Value) -> Answer {
        let body = serde_json::json!({ "handle": handle });
        self.post(id, "/v1/locks/release", &body)
    }

    /// Waits until a lock can be taken, which must be long before its last TTL is over.
    pub(crate) fn until_free(&self, id: usize, name: &str) -> Value {
        let begun = Instant::now();
        let limit = Duration::from_millis(LONG_TTL / 2);
        loop {
            let answer = self.try_lock(id, name);
            if answer.status == 200 {
                return answer.json;
            }
            assert_eq!(answer.code(), "not_acquired", "{answer:?}");
            let shown = self.get(id, &format!("/v1/locks/{name}")).json;
            assert!(
                begun.elapsed() < limit,
                "the lock was not released: {shown}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a call answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines before the body.
    pub(crate) head: String,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or("no code")
    }

    /// Reads an answer to its end.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Self::parse(&bytes)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked {
            unchunk(body)
        } else {
            body.to_owned()
        };
        Self {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            json: serde_json::from_str(&body).unwrap_or_default(),
            text: body,
        }
    }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        out.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    out
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request on a connection of its own; the server closes it after the answer.
pub(crate) fn send(at: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> TcpStream {
    let mut stream = connect(at);
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{head}content-length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

pub(crate) fn call(at: SocketAddr, method: &str, path: &str, body: &str) -> Answer {
    Answer::read(&mut send(at, method, path, "", body))
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
