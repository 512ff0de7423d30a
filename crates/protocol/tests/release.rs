//! A handle is called released only when its lock is free for others.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Key, Name, SessionId};
use conclave_protocol::lock::{Acquire, ClientInput, Ended, Handle, Mode};
use harness::{Cluster, config};

/// A lock that a handle holds; its gateway is client 0.
fn held(named: bool) -> (Cluster, Handle) {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    let mut wish = Acquire::new(Name::new("a"), Mode::Exclusive, Duration::from_secs(50));
    wish.detach = Some((SessionId(7), named));
    cluster.client(0, ClientInput::Acquire(Key(1), wish));
    cluster.pass(Duration::from_secs(1));
    let handle = cluster.handle(0, 1).expect("the lock");
    (cluster, handle)
}

fn finish(cluster: &mut Cluster, gateway: usize, key: u64, handle: &Handle) {
    let input = ClientInput::Finish(Key(key), Box::new(handle.clone()));
    cluster.client(gateway, input);
}

#[test]
fn a_release_that_no_quorum_has_heard_is_not_called_one() {
    for named in [false, true] {
        let (mut cluster, handle) = held(named);
        let members: Vec<_> = handle.grants.iter().map(|(node, ..)| *node).collect();
        for node in &members {
            cluster.crash(node.index());
        }
        finish(&mut cluster, 0, 2, &handle);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.ended(0, 2), None, "it waits a while");
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.ended(0, 2), Some(Ended::TimedOut));
    }
}

#[test]
fn a_release_needs_no_member_that_others_can_do_without() {
    for named in [false, true] {
        let (mut cluster, handle) = held(named);
        let (lost, ..) = handle.grants[0];
        cluster.crash(lost.index());
        finish(&mut cluster, 1, 2, &handle);
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.ended(1, 2), Some(Ended::Released));
        let next = Acquire::new(Name::new("a"), Mode::Exclusive, Duration::from_secs(5));
        cluster.client(0, ClientInput::Acquire(Key(3), next));
        cluster.pass(Duration::from_secs(2));
        assert!(cluster.entered(0, 3).is_some(), "it is free");
    }
}

#[test]
fn a_release_is_said_again_on_a_new_connection() {
    let (mut cluster, handle) = held(false);
    let members: Vec<_> = handle.grants.iter().map(|(node, ..)| *node).collect();
    for node in &members {
        cluster.crash(node.index());
    }
    finish(&mut cluster, 0, 2, &handle);
    for node in &members {
        cluster.restart(node.index());
    }
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.ended(0, 2), Some(Ended::Released));
    // Renewing it is over for whoever still has the handle.
    cluster.client(
        1,
        ClientInput::Keep(Key(9), Box::new(handle), Arc::default()),
    );
    cluster.pass(Duration::from_secs(2));
    assert!(cluster.handle(1, 9).is_none());
}

/// A gateway gives a handle out once all its members know of the hold, or are left.
#[test]
fn a_handle_is_given_out_when_its_last_silent_member_is_left() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 1);
    cluster.acquire(0, 1, "warm", Mode::Exclusive);
    cluster.pass(Duration::from_secs(1));
    cluster.acquire_detached(0, 2, "a", Mode::Exclusive, 7);
    for node in 0..3 {
        cluster.deliver_all(0, node, true);
    }
    let asked = (0..3).filter(|node| {
        let link = cluster.wires.link(0, *node);
        link.is_some_and(|link| cluster.wires.peek(link, false).is_some())
    });
    let asked: Vec<usize> = asked.collect();
    let [known, silent] = asked[..] else {
        panic!("a quorum of three has two members: {asked:?}");
    };
    // One member never hears that the holder is inside; the other one is lost for a moment, so
    // that the third node stands in for it and the hold has more members than it needs.
    cluster.wires.stall(0, silent, true, true);
    cluster.drain();
    assert!(cluster.entered(0, 2).is_some());
    let link = cluster.wires.link(0, known).expect("it is connected");
    cluster.reset(link);
    cluster.pass(Duration::from_secs(3));
    assert!(cluster.handle(0, 2).is_some(), "the caller waits for it");
}
