//! A client that does its worst with tokens, over real sockets, locks nobody out: not at one node,
//! not at several, not at all of them, not with clocks that differ, not after a restart.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Plan, Raw, acquire_as, hello, in_time, plan, until_state};
use conclave_client::driver::Driver;
use conclave_node::{Node, store};
use conclave_protocol::id::{ClientId, Name, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Acquire, Ask, Bond, Entered, GrantRef, Message, Mode, Priority, Refusal, SessionInfo,
};
use conclave_protocol::{Now, Wall};
use conclave_wire::Cluster;

/// A short TTL: a node that was killed pauses for as long.
const TTL: Duration = Duration::from_secs(1);
const DAY: u64 = 86_400_000_000;
/// More names than a node remembers once they are idle.
const FILLERS: u64 = 300;

/// A clock whose wall is off by so many seconds.
fn clock(seconds: i64) -> conclave_node::shard::Clock {
    Arc::new(move || {
        let now = conclave_client::clock::now();
        let wall = now.wall.0.saturating_add_signed(seconds * 1_000_000);
        Now {
            wall: Wall(wall),
            ..now
        }
    })
}

/// The clocks of the three nodes differ by seconds.
fn start(plan: &mut Plan, id: u32, data: &Path) -> Node {
    let options = plan.options(id, data);
    let store = store::open(data, id, "test").unwrap();
    Node::start_on(options, store, clock([4, -3, 0][id as usize - 1])).unwrap()
}

/// One hostile connection.
struct Attacker {
    raw: Raw,
    client: u128,
    session: SessionId,
    time: u64,
    request: u64,
}

impl Attacker {
    fn at(cluster: &Cluster, id: u32, client: u128) -> Self {
        let mut raw = Raw::greeted(cluster, id);
        raw.send(&hello(cluster, client, 1));
        let Some(Message::Welcome { clock, .. }) = raw.next() else {
            panic!("no welcome");
        };
        let session = SessionId(client << 8);
        raw.send(&Message::Open(SessionInfo {
            session,
            ttl: TTL,
            detached: false,
            owner: Arc::from("attacker"),
            principal: Arc::default(),
        }));
        Self {
            raw,
            client,
            session,
            time: clock.0,
            request: 0,
        }
    }

    /// Takes a lock at this node alone, and gives its grant and limit.
    fn take(&mut self, name: &str, hint: u64) -> (GrantRef, Token) {
        self.request += 1;
        let request = RequestNo(self.request);
        let ask = Ask {
            name: Name::new(name),
            mode: Mode::Exclusive,
            session: self.session,
            request,
            priority: Priority {
                t: self.time,
                client: ClientId(self.client),
                request,
            },
            bond: Bond::Attached,
        };
        self.raw.send(&Message::Request {
            ask: Arc::new(ask),
            hint: Token(hint),
            inside: None,
        });
        loop {
            match self.raw.next().expect("the node goes on talking") {
                Message::Locked { grant, limit, .. } => return (grant, limit),
                Message::Denied {
                    request: Some(number),
                    why,
                    ..
                } if number == request => panic!("not even granted: {why}"),
                _ => {}
            }
        }
    }

    fn done(&mut self, token: u64) {
        self.raw.send(&Message::Done {
            session: self.session,
            request: RequestNo(self.request),
            token: Some(Token(token)),
        });
    }

    /// Raises the token by a day, again and again, until the node refuses.
    fn climb(&mut self, grant: GrantRef, mut token: Token) {
        for _ in 0..30 {
            for step in [DAY, DAY / 2, 1_000_000, 1] {
                let next = Token(token.0.saturating_add(step));
                self.raw.send(&Message::Raise { grant, token: next });
                match self.answer() {
                    Message::Raised { .. } => {
                        token = next;
                        break;
                    }
                    Message::Denied {
                        why: Refusal::TokenAhead { .. },
                        ..
                    } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn answer(&mut self) -> Message {
        loop {
            let message = self.raw.next().expect("the node goes on talking");
            if let Message::Raised { .. } | Message::Denied { .. } = message {
                return message;
            }
        }
    }

    /// Everything that could lift a floor, and then enough other names for it to be forgotten.
    fn does_its_worst(&mut self) {
        for round in 0..4 {
            let (grant, limit) = self.take("evil", u64::MAX);
            self.climb(grant, limit);
            self.raw.send(&Message::Entered(Box::new(Entered {
                grant,
                token: Token(u64::MAX),
                note: None,
                edition: 0,
            })));
            self.done(if round % 2 == 0 {
                u64::MAX
            } else {
                limit.0 + DAY
            });
        }
        for filler in 0..FILLERS {
            self.take(&format!("filler/{filler}"), u64::MAX - filler);
            self.done(u64::MAX);
        }
    }
}

/// Honest clients get every lock they ask for.
async fn serves(plan: &Plan, what: &str) {
    let driver = Driver::spawn(&plan.cluster, "honest").unwrap();
    for number in 0..12 {
        let name = Name::new(format!("{what}/{number}"));
        let wish = Acquire::new(name, Mode::Exclusive, TTL);
        let (job, _) = in_time(what, acquire_as(&driver, wish)).await;
        drop(job);
    }
    driver.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_far_ahead_lock_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let data = |id: u32| dir.path().join(id.to_string());
    let mut plan = plan(3);
    let mut nodes: Vec<Node> = (1..=3).map(|id| start(&mut plan, id, &data(id))).collect();
    for node in &nodes {
        until_state(node, "serving").await;
    }
    serves(&plan, "before").await;
    for (round, attacked) in [&[1][..], &[2, 3], &[1, 2, 3]].into_iter().enumerate() {
        for id in attacked {
            let client = 1000 * (round as u128 + 1) + u128::from(*id);
            Attacker::at(&plan.cluster, *id, client).does_its_worst();
        }
        serves(&plan, &format!("after {} nodes", attacked.len())).await;
    }
    // A restart, as after a crash, does not bring what was lifted down, and does no harm either.
    for node in &nodes {
        node.shard().kill();
        in_time("the end", node.wait()).await.unwrap();
    }
    nodes.clear();
    for id in 1..=3 {
        nodes.push(start(&mut plan, id, &data(id)));
    }
    for node in &nodes {
        until_state(node, "serving").await;
    }
    serves(&plan, "after the restart").await;
}
