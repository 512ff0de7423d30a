//! Nothing leaves a node before it is durable, and what does not depend on the disk does.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, Raw, greeting, hello, in_time, plan, plan_with};
use conclave_node::store::faulty::{Fault, Faults, Faulty};
use conclave_node::store::{Memory, StoreError};
use conclave_node::{Node, NodeError, StartError};
use conclave_protocol::id::{ClientId, Name, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Ask, Bond, Message, Mode, Priority, Resume, SessionInfo};

/// Lets the disk go on at the end, also of a test that fails: a node that ends waits for it.
struct Opens(Faults);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Asks for a lock with a session of this TTL.
fn ask(raw: &mut Raw, client: u128, ttl: Duration) {
    raw.send(&Message::Open(SessionInfo {
        session: SessionId(client),
        ttl,
        detached: false,
        owner: "test".into(),
        principal: Arc::default(),
    }));
    raw.send(&Message::Request {
        ask: Arc::new(Ask {
            name: Name::new("a"),
            mode: Mode::Exclusive,
            session: SessionId(client),
            request: RequestNo(1),
            priority: Priority {
                t: 1,
                client: ClientId(client),
                request: RequestNo(1),
            },
            bond: Bond::Attached,
        }),
        hint: Token(0),
        inside: None,
    });
}

/// A client that has said hello and what it has: nothing.
fn client(cluster: &conclave_wire::Cluster, id: u128) -> Raw {
    let mut raw = Raw::greeted(cluster, 1);
    raw.send(&hello(cluster, id, 1));
    raw.send(&Message::Resume(Box::new(Resume {
        last: true,
        ..Resume::default()
    })));
    assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
    raw
}

/// Whether nothing at all has come on a connection up to now.
fn silent(raw: &mut Raw) -> bool {
    assert!(raw.bytes.is_empty(), "{:?}", raw.bytes);
    raw.stream.set_nonblocking(true).unwrap();
    let read = raw.stream.read(&mut [0; 16]);
    raw.stream.set_nonblocking(false).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn beats(raw: &mut Raw, count: u64) {
    for beat in 1..=count {
        let entered = Vec::new();
        raw.send(&Message::Heartbeat { beat, entered });
        match raw.next() {
            Some(Message::Beat { beat: answered, .. }) => assert_eq!(answered, beat),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn no_grant_leaves_before_its_record_is_durable() {
    let mut plan = plan_with(1, "times = { link_ttl = \"60s\" }");
    let (store, faults) = Faulty::new(Memory::default());
    let _node = plan.start_on(1, store);
    let _opens = Opens(faults.clone());
    let mut other = client(&plan.cluster, 2);
    let mut asks = client(&plan.cluster, 1);
    faults.hold();
    // The first grant needs a token ceiling on disk.
    ask(&mut asks, 1, Duration::from_mins(1));
    faults.await_waiting();
    // Others are answered all the while.
    beats(&mut other, 100);
    assert!(silent(&mut asks), "the disk has not written yet");
    // What comes behind keeps its place behind.
    let entered = Vec::new();
    asks.send(&Message::Heartbeat { beat: 7, entered });
    beats(&mut other, 100);
    assert!(silent(&mut asks), "the disk has not written yet");
    faults.let_go();
    assert!(matches!(asks.next(), Some(Message::Locked { .. })));
    assert!(matches!(asks.next(), Some(Message::Beat { beat: 7, .. })));
}

#[test]
fn a_durable_node_writes_every_grant_first() {
    let more = "restart = \"durable\"\ntimes = { link_ttl = \"60s\" }";
    let mut plan = plan_with(1, more);
    let (store, faults) = Faulty::new(Memory::default());
    let _node = plan.start_on(1, store);
    let _opens = Opens(faults.clone());
    let mut first = client(&plan.cluster, 1);
    ask(&mut first, 1, Duration::from_mins(1));
    assert!(matches!(first.next(), Some(Message::Locked { .. })));
    let mut second = client(&plan.cluster, 2);
    ask(&mut second, 2, Duration::from_mins(1));
    assert!(matches!(second.next(), Some(Message::Queued { .. })));
    faults.hold();
    first.send(&Message::Done {
        session: SessionId(1),
        request: RequestNo(1),
        token: None,
    });
    faults.await_waiting();
    std::thread::sleep(Duration::from_millis(50));
    assert!(silent(&mut second), "the grant is not on disk");
    faults.let_go();
    assert!(matches!(second.next(), Some(Message::Locked { .. })));
}

#[test]
fn nothing_is_read_before_the_first_records_are_durable() {
    let mut plan = plan(1);
    let (store, faults) = Faulty::new(Memory::default());
    faults.hold();
    let (peer, cluster) = (plan.peer(1), plan.cluster.clone());
    let starting = std::thread::spawn(move || plan.start_on(1, store));
    let opens = Opens(faults.clone());
    faults.await_waiting();
    let mut raw = Raw::connect(peer);
    raw.greet(&greeting(&cluster, 1));
    raw.send(&hello(&cluster, 1, 1));
    std::thread::sleep(Duration::from_millis(50));
    assert!(silent(&mut raw), "the node has not started");
    faults.let_go();
    assert_eq!(raw.reply().unwrap().refusal, None);
    assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
    drop(opens);
    drop(starting.join().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_ends_the_node_with_its_reason() {
    for (fault, word) in [(Fault::NoSpace, "No space"), (Fault::Sync, "sync")] {
        let mut plan = plan(1);
        let (store, faults) = Faulty::new(Memory::default());
        let node = plan.start_on(1, store);
        let mut asks = client(&plan.cluster, 1);
        faults.fail_after(0, fault);
        ask(&mut asks, 1, Duration::from_mins(1));
        let error = in_time("the end", node.wait()).await.unwrap_err();
        let NodeError::Store(StoreError::Write { problem, .. }) = &error else {
            panic!("{error}");
        };
        assert!(problem.contains(word), "{problem}");
        asks.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(asks.next(), None, "no grant left the node");
    }
}

#[test]
fn a_node_does_not_start_on_a_disk_that_fails_at_once() {
    let mut plan = plan(1);
    let (store, faults) = Faulty::new(Memory::default());
    faults.fail_after(0, Fault::NoSpace);
    let options = plan.options(1, std::path::Path::new("unused"));
    let clock = Arc::new(conclave_client::clock::now);
    let error = Node::start_on(options, Box::new(store), clock).unwrap_err();
    assert!(matches!(error, StartError::Store(_)), "{error}");
}
