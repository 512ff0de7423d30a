//! Whatever comes to the peer port: a clear answer or an end of that connection, nothing else.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{ErrorKind, Write};
use std::time::Duration;

use common::{Raw, acquire, greeting, hello, in_time, plan, plan_with};
use conclave_client::driver::Driver;
use conclave_node::shard::{Query, Report};
use conclave_node::store::Memory;
use conclave_node::{Node, StartError};
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Message;
use conclave_wire::cluster::differences;
use conclave_wire::greeting::{Rejection, Role};
use conclave_wire::version::{SPOKEN, VersionMismatch, VersionRange};

fn alive(node: NodeId) -> Message {
    Message::Alive {
        node,
        incarnation: conclave_protocol::id::Incarnation(5),
    }
}

/// The node still serves: a new client gets a lock.
async fn serves(plan: &common::Plan) {
    let driver = Driver::spawn(&plan.cluster, "after").unwrap();
    drop(acquire(&driver, "still").await);
    driver.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_bytes_end_their_connection_only() {
    let mut plan = plan(1);
    let nodes = plan.start_all();
    let address = plan.peer(1);
    let mut seed = 1_u64;
    for length in [1_usize, 3, 4, 5, 40, 400, 4000] {
        let mut raw = Raw::connect(address);
        let noise = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u8
        });
        let noise: Vec<u8> = noise.take(length).collect();
        raw.stream.write_all(&noise).unwrap();
        // What is not whole waits; our end is the end of it.
        raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(raw.ends(), "{length} bytes");
    }
    for bomb in [[0xff; 4], [0, 0, 0x20, 0]] {
        let mut raw = Raw::connect(address);
        raw.stream.write_all(&bomb).unwrap();
        assert!(raw.ends(), "a greeting of {bomb:?} bytes");
        let mut raw = Raw::greeted(&plan.cluster, 1);
        raw.stream.write_all(&bomb).unwrap();
        if bomb[0] == 0xff {
            assert!(raw.ends(), "a frame of {bomb:?} bytes");
        }
    }
    let mut raw = Raw::greeted(&plan.cluster, 1);
    raw.send(&hello(&plan.cluster, 5, 1));
    assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
    raw.stream
        .write_all(&[9, 0, 0, 0, 0xff, 0xff, 0xff])
        .unwrap();
    raw.stream.write_all(&[0xff; 6]).unwrap();
    assert!(raw.ends(), "a frame of nonsense");
    assert!(nodes[0].meters().damaged.get() >= 3);
    serves(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_may_come_byte_by_byte() {
    let mut plan = plan(1);
    let _nodes = plan.start_all();
    let mut raw = Raw::connect(plan.peer(1));
    raw.stream.set_nodelay(true).unwrap();
    let mut bytes = Vec::new();
    conclave_wire::greeting::encode_greeting(&greeting(&plan.cluster, 1), &mut bytes);
    raw.encoder.encode(&hello(&plan.cluster, 5, 1), &mut bytes);
    for byte in bytes {
        raw.stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(raw.reply().unwrap().refusal, None);
    assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused_by_name() {
    let mut plan = plan(2);
    let _nodes = plan.start_all();
    let refusal = |greeting| {
        let mut raw = Raw::connect(plan.peer(1));
        raw.greet(&greeting);
        // More may follow at once: it is not heard, and does not destroy the answer.
        raw.send(&hello(&plan.cluster, 5, 1));
        let refusal = raw.reply().expect("a reply").refusal;
        assert!(raw.ends());
        refusal.expect("a refusal")
    };
    let good = greeting(&plan.cluster, 1);

    let mut other = good.clone();
    other.versions = VersionRange::new(98, 99);
    let (opener, node) = (SPOKEN, VersionRange::only(1));
    let mismatch = VersionMismatch { opener, node };
    assert_eq!(refusal(other), Rejection::Version(mismatch));

    let mut other = good.clone();
    other.target = NodeId(1);
    assert_eq!(refusal(other), Rejection::OtherNode { node: NodeId(0) });

    let mut cluster = plan.cluster.clone();
    cluster.epoch = 7;
    match refusal(greeting(&cluster, 1)) {
        Rejection::Config { facts } => {
            let differ = differences(&cluster.facts(), &facts);
            assert_eq!(differ.as_deref(), Some("epoch is '7' here and '1' there"));
        }
        other => panic!("{other}"),
    }

    let mut other = good.clone();
    other.role = Role::Node(NodeId(0));
    assert_eq!(refusal(other), Rejection::Twin { node: NodeId(0) });
    serves(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_with_one_id_are_told_apart() {
    let mut plan = plan(2);
    let _node = plan.start_on(1, Memory::default());
    let connect = |process| {
        let mut raw = Raw::connect(plan.peer(1));
        let mut greeting = greeting(&plan.cluster, 1);
        greeting.role = Role::Node(NodeId(1));
        greeting.process = process;
        raw.greet(&greeting);
        let refusal = raw.reply().expect("a reply").refusal;
        (raw, refusal)
    };
    let (mut first, refusal) = connect(1);
    assert_eq!(refusal, None);
    first.send(&alive(NodeId(1)));
    // The same process again takes the place of its old connection.
    let (mut again, refusal) = connect(1);
    assert_eq!(refusal, None);
    assert!(first.ends());
    let (_twin, refusal) = connect(2);
    assert_eq!(refusal, Some(Rejection::Twin { node: NodeId(1) }));
    // The first may have been a process that is gone without a word: it must come again.
    assert!(again.ends());
    let (_later, refusal) = connect(2);
    assert_eq!(refusal, None);
}

#[test]
fn a_second_process_with_one_id_does_not_start() {
    let mut plan = plan(3);
    let node = plan.start_on(1, Memory::default());
    let mut options = plan.options(2, std::path::Path::new("unused"));
    options.id = 1;
    let clock = std::sync::Arc::new(conclave_client::clock::now);
    let error = Node::start_on(options, Box::new(Memory::default()), clock).unwrap_err();
    let address = plan.peer(1).to_string();
    assert_eq!(error, StartError::Twin { id: 1, address });
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unexpected_kind_ends_its_connection_only() {
    let mut plan = plan(3);
    let _nodes = [1, 2].map(|id| plan.start_on(id, Memory::default()));
    let mut raw = Raw::greeted(&plan.cluster, 1);
    raw.send(&hello(&plan.cluster, 5, 1));
    raw.send(&alive(NodeId(1)));
    assert!(raw.ends());
    let mut raw = Raw::connect(plan.peer(1));
    // The third node is nowhere: nobody else is it.
    let mut node = greeting(&plan.cluster, 1);
    node.role = Role::Node(NodeId(2));
    raw.greet(&node);
    assert_eq!(raw.reply().unwrap().refusal, None);
    raw.send(&hello(&plan.cluster, 5, 1));
    assert!(raw.ends());
    let mut raw = Raw::connect(plan.peer(1));
    node.role = Role::Node(NodeId(70));
    raw.greet(&node);
    assert!(raw.ends());
    serves(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_refused_by_name() {
    let mut plan = plan_with(1, "limits = { connections = 2 }");
    let nodes = plan.start_all();
    let mut first = Raw::greeted(&plan.cluster, 1);
    first.send(&hello(&plan.cluster, 1, 1));
    let _second = Raw::greeted(&plan.cluster, 1);
    let mut third = Raw::connect(plan.peer(1));
    third.greet(&greeting(&plan.cluster, 1));
    assert_eq!(third.reply().unwrap().refusal, Some(Rejection::Full));
    assert!(third.ends());
    assert!(nodes[0].meters().text().contains("reason=\"full\""));
    drop(first);
    in_time("a free place", async {
        loop {
            let mut raw = Raw::connect(plan.peer(1));
            raw.greet(&greeting(&plan.cluster, 1));
            if raw.reply().unwrap().refusal.is_none() {
                return;
            }
        }
    })
    .await;
}

/// Whoever connects and says nothing, or greets and says nothing more, is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_end() {
    let mut plan = plan(1);
    let nodes = plan.start_all();
    let mut silent = Raw::connect(plan.peer(1));
    let mut greeted = Raw::greeted(&plan.cluster, 1);
    assert!(silent.ends());
    assert!(greeted.ends());
    let overview = nodes[0].shard().inspect(Query::Overview).await;
    assert!(
        matches!(
            overview,
            Some(Report::Overview {
                kept: [0, 0, 0, 0],
                ..
            })
        ),
        "{overview:?}"
    );
}

/// Who does not read its answers is not read either, and others do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_read_is_not_read() {
    let mut plan = plan_with(1, "times = { link_ttl = \"60s\" }");
    let nodes = plan.start_all();
    let mut raw = Raw::greeted(&plan.cluster, 1);
    raw.send(&hello(&plan.cluster, 1, 1));
    let mut frames = Vec::new();
    let beat = Message::Heartbeat {
        beat: 1,
        entered: Vec::new(),
    };
    for _ in 0..10_000 {
        raw.encoder.encode(&beat, &mut frames);
    }
    raw.stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let (mut sent, limit) = (0_usize, 256 << 20);
    let stuck = loop {
        match raw.stream.write(&frames[sent % frames.len()..]) {
            Ok(bytes) if sent < limit => sent += bytes,
            Ok(_) => break false,
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut));
                break true;
            }
        }
    };
    assert!(stuck, "the node took {sent} bytes and was never read");
    serves(&plan).await;
    // It reads on as soon as it is read: every beat is answered, in order, in the end.
    let sent_beats = sent / (frames.len() / 10_000);
    assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
    for _ in 0..sent_beats {
        assert!(matches!(raw.next(), Some(Message::Beat { beat: 1, .. })));
    }
    drop(nodes);
}
