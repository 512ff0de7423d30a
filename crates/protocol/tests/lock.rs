//! The lock machines in a small cluster without a world around them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::id::{Key, Name};
use conclave_protocol::lock::{Acquire, ClientEvent, ClientInput, Mode};
use harness::{Cluster, config};

#[test]
fn one_client_enters_and_leaves() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 1);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    let token = cluster.entered(0, 1).expect("entered");
    cluster.release(0, 1);
    cluster.drain();
    cluster.acquire(0, 2, "a", Mode::Exclusive);
    cluster.drain();
    assert!(cluster.entered(0, 2).unwrap() > token);
}

#[test]
fn exclusive_requests_take_turns_in_order() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
    for client in 0..3 {
        cluster.acquire(client, 1, "a", Mode::Exclusive);
        cluster.pass(Duration::from_millis(1));
    }
    let mut last = None;
    for client in 0..3 {
        let token = cluster.entered(client, 1);
        assert!(token > last, "{client}: {token:?} after {last:?}");
        last = token;
        for other in client + 1..3 {
            assert_eq!(cluster.entered(other, 1), None);
        }
        cluster.release(client, 1);
        cluster.drain();
    }
}

#[test]
fn a_hold_lasts_as_long_as_nodes_answer_and_ends_by_itself_when_they_do_not() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_mins(2));
    assert!(cluster.is_inside(0, 1, "a"));
    for node in 0..3 {
        cluster.crash(node);
    }
    cluster.pass(Duration::from_secs(30));
    assert!(!cluster.is_inside(0, 1, "a"));
    let lost =
        |(_, event): &(usize, ClientEvent)| *event == ClientEvent::Lost(Key(1), Name::new("a"));
    assert!(cluster.told.iter().any(lost));
}

#[test]
fn a_holder_moves_when_a_node_dies() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_secs(2));
    let (_, members) = held(&cluster);
    cluster.crash(members[0]);
    cluster.pass(Duration::from_secs(5));
    let (_, after) = held(&cluster);
    assert!(!after.contains(&members[0]), "{after:?}");
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_mins(1));
    assert!(cluster.is_inside(0, 1, "a"));
    assert!(!cluster.is_inside(1, 1, "a"));
    cluster.release(0, 1);
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.is_inside(1, 1, "a"));
}

fn held(cluster: &Cluster) -> (u64, Vec<usize>) {
    let now = cluster.now.mono;
    let (token, members) = cluster.clients[0]
        .held(Key(1), &Name::new("a"), now)
        .unwrap();
    (
        token.0,
        members.iter().map(|(node, _)| node.index()).collect(),
    )
}

#[test]
fn a_cancel_leaves_nothing_behind() {
    let mut cluster = Cluster::new(config("billiard(4)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    cluster.acquire(1, 1, "a", Mode::Shared);
    cluster.drain();
    cluster.client(1, ClientInput::Cancel(Key(1)));
    cluster.release(0, 1);
    cluster.drain();
    for node in cluster.nodes.iter().flatten() {
        assert_eq!(node.kept()[0], 0);
    }
}

#[test]
fn a_crashed_node_pauses_and_its_holder_reclaims() {
    let mut cluster = Cluster::new(config("singleton(1)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_secs(2));
    cluster.crash(0);
    cluster.pass(Duration::from_millis(100));
    cluster.restart(0);
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_mins(1));
    assert!(cluster.is_inside(0, 1, "a"), "reclaimed");
    assert!(!cluster.is_inside(1, 1, "a"));
    cluster.release(0, 1);
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.is_inside(1, 1, "a"));
}

/// A node that was down while nobody needed it is not looked after; when it is the last that can
/// help it must be asked all the same.
#[test]
fn trouble_that_nobody_looks_after_does_not_keep_a_lock_from_its_last_quorum() {
    for holding in [false, true] {
        let mut cluster = Cluster::new(config("majority(5)", &[]), 1);
        cluster.acquire(0, 1, "a", Mode::Exclusive);
        cluster.pass(Duration::from_secs(1));
        let (_, first) = held(&cluster);
        let spare = (0..5).find(|node| !first.contains(node)).unwrap();
        // Another lock brings a connection to the spare node.
        for key in 10..60 {
            cluster.acquire(0, key, &format!("other {key}"), Mode::Exclusive);
            cluster.drain();
            cluster.release(0, key);
            cluster.drain();
        }
        assert!(cluster.wires.link(0, spare).is_some());
        // Once it knows that those requests have ended, nothing is wanted of it.
        cluster.pass(Duration::from_secs(1));
        cluster.crash(spare);
        cluster.pass(Duration::from_secs(1));
        cluster.restart(spare);
        cluster.pass(Duration::from_mins(2));
        if !holding {
            cluster.release(0, 1);
            cluster.drain();
        }
        let other = (0..5).find(|node| !first.contains(node) && *node != spare);
        cluster.crash(other.unwrap());
        cluster.crash(first[0]);
        if !holding {
            cluster.acquire(0, 2, "a", Mode::Exclusive);
        }
        cluster.pass(Duration::from_secs(5));
        let key = if holding { 1 } else { 2 };
        assert!(cluster.is_inside(0, key, "a"), "holding: {holding}");
        cluster.pass(Duration::from_secs(20));
        assert!(cluster.is_inside(0, key, "a"), "holding: {holding}");
    }
}

/// A request that reaches its nodes on new connections is answered once all of them is known.
#[test]
fn an_attempt_on_a_free_lock_is_not_told_to_wait_by_a_reconnect() {
    let mut cluster = Cluster::new(config("majority(2)", &[]), 1);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    cluster.release(0, 1);
    cluster.drain();
    for link in cluster.wires.links_of(None, None) {
        cluster.reset(link);
    }
    let mut wish = Acquire::new(Name::new("a"), Mode::Exclusive, Duration::from_secs(10));
    wish.attempt = true;
    cluster.client(0, ClientInput::Acquire(Key(2), wish));
    cluster.pass(Duration::from_millis(200));
    assert_eq!(cluster.ended(0, 2), None);
    assert!(cluster.is_inside(0, 2, "a"));
}
