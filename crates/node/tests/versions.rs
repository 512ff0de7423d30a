//! Processes of other versions: one of the first version, frozen, and one from the future.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod frozen;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{PATIENCE, Plan, in_time, plan};
use conclave_client::{Client, Cluster};
use frozen::{Body, Came, body, kind, next_frame, send};
use serde_json::{Value, json};

const CLIENT: u128 = 0x000c_11e4_0000_0000_0000_0000_0000_0007;
const SESSION: u128 = 0x5e55_1040_0000_0000_0000_0000_0000_0001;
const TIME: u64 = 1_767_225_600_000_000;
/// The session when it is mentioned first, and later.
const NEW: (u64, Option<u128>) = (1, Some(SESSION));
const KNOWN: (u64, Option<u128>) = (1, None);

/// What only a newer version says: a field of each type.
fn news(message: Body) -> Body {
    let message = message.uint(500, 7).fixed(501, 8);
    message.message(502, body().bytes(1, b"later"))
}

/// A message of a kind that there is not yet.
fn unknown(bytes: usize) -> Body {
    kind(1000, body().bytes(1, &vec![b'x'; bytes]))
}

#[test]
fn the_frozen_bytes_are_those_of_the_golden_files() {
    let facts = [("epoch", "3"), ("groups", ""), ("quorum", "majority")];
    let digest = b"0123456789abcdef";
    let (life, token) = (TIME, TIME + 1);
    let limit = token + 1_000_000;
    let noted = |session| body_of_grant(session, 300, 70_000);
    for (name, written) in [
        ("greeting-client", frozen::greeting(0, digest, &facts)),
        ("reply-accepted", frozen::reply(3)),
        ("hello", frozen::hello(CLIENT, 2, 3, digest)),
        ("welcome", frozen::welcome(4, life, TIME)),
        (
            "open",
            frozen::open(NEW, 10_000_000_000, true, "héctor@host:42"),
        ),
        (
            "request",
            frozen::request(NEW, (300, token), ("jobs/nightly", TIME), Some(CLIENT)),
        ),
        (
            "locked",
            frozen::locked(NEW, 300, 70_000, [token, limit, life, TIME]),
        ),
        (
            "entered",
            frozen::entered(NEW, 300, 70_000, token, Some("note")),
        ),
        ("noted", frozen::noted(NEW, 300, 70_000)),
        ("heartbeat", frozen::heartbeat(9)),
        (
            "beat",
            frozen::beat(9, TIME, vec![noted(NEW), noted(KNOWN)]),
        ),
        ("done", frozen::done(NEW, 300, token)),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/testdata/v1");
        let golden = std::fs::read(format!("{folder}/{name}.bin")).unwrap();
        assert_eq!(written.frame(), golden, "{name}");
    }
}

fn body_of_grant(session: (u64, Option<u128>), number: u64, grant: u64) -> Body {
    body().session(session).uint(3, number).uint(4, grant)
}

/// A client with one connection that says exactly what it is told to say.
struct Peer(TcpStream);

impl Peer {
    /// Greets the first node of a plan, and gives the reply.
    fn greet(plan: &Plan, change: impl FnOnce(Body) -> Body) -> (Self, Came) {
        let stream = TcpStream::connect(plan.peer(1)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Self(stream);
        let greeting = frozen::greeting(0, &plan.cluster.digest(), &[]);
        peer.say(change(greeting));
        let reply = Came::plain(&next_frame(&mut peer.0).expect("a reply"));
        (peer, reply)
    }

    fn say(&mut self, body: Body) {
        send(&mut self.0, body);
    }

    /// The next message of this kind; what else comes is passed over.
    fn hears(&mut self, kind: u64) -> Came {
        loop {
            let frame = next_frame(&mut self.0);
            let frame = frame.unwrap_or_else(|| panic!("closed before a message {kind}"));
            let came = Came::message(&frame);
            // Dead, refused and denied.
            assert!(![15, 20, 22].contains(&came.kind), "{came:?}");
            if came.kind == kind {
                return came;
            }
        }
    }

    /// Takes a lock and gives it back, through every message that a plain client sends.
    fn takes_a_lock(&mut self, plan: &Plan, also: impl Fn(&mut Self)) {
        let cluster = &plan.cluster;
        self.say(frozen::hello(CLIENT, 1, cluster.epoch, &cluster.digest()));
        let welcome = self.hears(17);
        assert_eq!(welcome.number(1), 0);
        let now = welcome.number(3);
        also(self);
        // Nothing to resume: the last and only part.
        self.say(kind(18, body().uint(4, 1)));
        self.say(frozen::open(NEW, 10_000_000_000, false, "old@host"));
        let mut last = 0;
        for number in [1, 2] {
            also(self);
            self.say(frozen::request(KNOWN, (number, 0), ("a", now), None));
            let locked = self.hears(2);
            assert_eq!(locked.number(3), number);
            let (floor, limit) = (locked.number(5), locked.number(6));
            assert!(floor >= last && floor < limit, "{locked:?}");
            let (grant, token) = (locked.number(4), floor + 1);
            self.say(frozen::entered(KNOWN, number, grant, token, Some("me")));
            assert_eq!(self.hears(7).number(4), grant);
            also(self);
            self.say(frozen::heartbeat(number));
            assert_eq!(self.hears(5).number(1), number);
            self.say(frozen::done(KNOWN, number, token));
            last = token;
        }
    }
}

#[test]
fn a_client_of_the_first_version_is_served() {
    let mut plan = plan(1);
    let _nodes = plan.start_all();
    let (mut peer, reply) = Peer::greet(&plan, |greeting| greeting);
    assert_eq!(reply.number(1), 1, "the version that it knows");
    assert!(!reply.has(4), "{reply:?}");
    peer.takes_a_lock(&plan, |_| {});
}

#[test]
fn a_client_from_the_future_is_served_with_the_newest_common_version() {
    let mut plan = plan(1);
    let nodes = plan.start_all();
    let (mut peer, reply) = Peer::greet(&plan, |greeting| news(greeting.uint(10, 9)));
    assert_eq!(reply.number(1), 1);
    assert!(!reply.has(4), "{reply:?}");
    // More in a row than any decoder passes over, and more than one read brings.
    peer.takes_a_lock(&plan, |peer| {
        let many = unknown(1000).frame().repeat(200);
        peer.0.write_all(&many).unwrap();
    });
    let metrics = fetch(&nodes[0].api_addr().to_string(), "/metrics");
    let counted = |name: &str| {
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name} in {metrics}"))
            .to_owned()
    };
    assert_eq!(
        counted("conclave_unknown_messages_total "),
        "conclave_unknown_messages_total 1000"
    );
    assert!(counted("conclave_damaged_frames_total ").ends_with(" 0"));
    counted("conclave_greetings_total{version=\"1\"} ");
}

#[test]
fn a_client_that_is_too_new_is_told_what_the_node_speaks() {
    let mut plan = plan(1);
    let _nodes = plan.start_all();
    let too_new = |_| {
        let greeting = body().uint(1, 2).uint(3, 0).id(4, 7);
        greeting.bytes(5, &[0; 16]).uint(10, 9)
    };
    let (mut peer, reply) = Peer::greet(&plan, too_new);
    let why = reply.inside(4);
    // A reason and a version, as the first version told them.
    assert_eq!((why.number(1), why.number(2)), (1, 1));
    assert_eq!(next_frame(&mut peer.0), None, "it is closed");
}

fn fetch(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// How a scripted node answers.
#[derive(Clone, Copy)]
struct Manners {
    /// The version that its replies name.
    version: u64,
    /// What its messages have beyond those of the first version.
    more: fn(Body) -> Body,
    /// How many messages of unknown kinds go before each.
    unknown: usize,
}

const FIRST: Manners = Manners {
    version: 1,
    more: |message| message,
    unknown: 0,
};

/// A node with one lock and no memory, which answers as a node of the first version does.
struct OldNode {
    manners: Manners,
    digest: [u8; 16],
    /// The session of the connection, and whether it was mentioned.
    session: Option<u128>,
    told: bool,
    grants: u64,
}

impl OldNode {
    /// Serves connections on a port until the test ends.
    fn listen(listener: TcpListener, digest: [u8; 16], manners: Manners) {
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let node = Self {
                    manners,
                    digest,
                    session: None,
                    told: false,
                    grants: 0,
                };
                std::thread::spawn(move || node.serve(stream));
            }
        });
    }

    fn serve(mut self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let Some(greeting) = next_frame(&mut stream) else {
            return;
        };
        let greeting = Came::plain(&greeting);
        // This is how the first version judged: a version that is not its own, or another digest.
        assert_eq!(greeting.number(1), 1, "equality is all that it knew");
        assert_eq!(greeting.bytes(5), self.digest);
        let reply = body().uint(1, self.manners.version).uint(2, 0).id(3, 9);
        self.send(&mut stream, reply, false);
        while let Some(frame) = next_frame(&mut stream) {
            let came = Came::message(&frame);
            for answer in self.answer(&came) {
                self.send(&mut stream, answer, true);
            }
        }
    }

    fn send(&self, stream: &mut TcpStream, body: Body, message: bool) {
        let mut bytes = Vec::new();
        if message {
            for _ in 0..self.manners.unknown {
                bytes.extend(unknown(1000).frame());
            }
        }
        bytes.extend((self.manners.more)(body).frame());
        // Whoever has heard enough is gone.
        let _ = stream.write_all(&bytes);
    }

    /// The session as this side mentions it.
    fn session(&mut self) -> (u64, Option<u128>) {
        let session = self.session.expect("a session");
        let first = !std::mem::replace(&mut self.told, true);
        (1, first.then_some(session))
    }

    fn learn(&mut self, came: &Came) {
        if came.has(2) {
            let id = came.bytes(2).try_into().unwrap();
            self.session = Some(u128::from_le_bytes(id));
        }
    }

    fn answer(&mut self, came: &Came) -> Vec<Body> {
        let clock = conclave_client::clock::now().wall.0;
        match came.kind {
            16 => vec![frozen::welcome(0, TIME, clock)],
            19 => {
                self.learn(came);
                Vec::new()
            }
            1 => {
                let ask = came.inside(1);
                self.learn(&ask);
                self.grants += 1;
                let (floor, limit) = (TIME + self.grants, TIME + 1_000_000);
                let told = [floor, limit, TIME, clock];
                vec![frozen::locked(
                    self.session(),
                    ask.number(3),
                    self.grants,
                    told,
                )]
            }
            4 => vec![frozen::beat(came.number(1), clock, Vec::new())],
            6 => vec![frozen::noted(
                self.session(),
                came.number(3),
                came.number(4),
            )],
            _ => Vec::new(),
        }
    }
}

/// The cluster of a scripted node as the first version told it, and its two ports.
fn scripted() -> (Value, Cluster, TcpListener, TcpListener) {
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let told = json!({
        "name": "old", "epoch": 3, "quorum": "majority", "restart": "pause",
        "times": {}, "limits": { "name_bytes": 200 },
        "policies": [{ "prefix": "batch/", "max_inside": 4 }],
        "nodes": [{
            "id": 1,
            "peer": peer.local_addr().unwrap().to_string(),
            "api": format!("http://{}", api.local_addr().unwrap()),
        }],
    });
    let cluster = serde_json::from_value(told.clone()).unwrap();
    (told, cluster, peer, api)
}

/// Answers every request with this text.
fn serve_json(listener: TcpListener, told: &Value) {
    let text = told.to_string();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut asked = Vec::new();
            let mut byte = [0];
            while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|it| it == 1) {
                asked.push(byte[0]);
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            let _ = stream.write_all(format!("{head}{text}").as_bytes());
        }
    });
}

async fn takes_a_lock_twice(endpoint: &str) {
    let client = in_time("connect", Client::connect([endpoint]))
        .await
        .unwrap();
    let mut last = 0;
    for _ in 0..2 {
        let guard = in_time("acquire", client.lock("a").acquire())
            .await
            .unwrap();
        assert!(guard.is_held());
        assert!(guard.token() > last);
        last = guard.token();
        in_time("release", guard.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_of_the_first_version_serves_a_client_of_this_one() {
    let (told, cluster, peer, api) = scripted();
    let endpoint = api.local_addr().unwrap().to_string();
    serve_json(api, &told);
    OldNode::listen(peer, cluster.digest(), FIRST);
    takes_a_lock_twice(&endpoint).await;
}

#[tokio::test]
async fn a_node_from_the_future_serves_a_client_of_this_version() {
    let (mut told, cluster, peer, api) = scripted();
    let endpoint = api.local_addr().unwrap().to_string();
    for section in ["", "/times", "/limits", "/policies/0", "/nodes/0"] {
        told.pointer_mut(section).unwrap()["later"] = json!({ "some": ["thing", null] });
    }
    serve_json(api, &told);
    let manners = Manners {
        more: news,
        unknown: 200,
        ..FIRST
    };
    OldNode::listen(peer, cluster.digest(), manners);
    takes_a_lock_twice(&endpoint).await;
}

#[tokio::test]
async fn a_node_that_answers_in_a_version_never_offered_is_refused_by_name() {
    let (_, cluster, peer, _api) = scripted();
    let manners = Manners {
        version: 9,
        ..FIRST
    };
    OldNode::listen(peer, cluster.digest(), manners);
    let client = Client::builder().cluster(cluster).connect();
    let client = in_time("connect", client).await.unwrap();
    // Without a time limit: waiting would not help.
    let asked = client.lock("a").acquire();
    let error = in_time("refusal", asked).await.unwrap_err().to_string();
    assert!(error.contains("no common version"), "{error}");
}
