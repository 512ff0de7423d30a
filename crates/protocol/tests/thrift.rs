//! What a busy client does not keep and does not wake for.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::Machine;
use conclave_protocol::id::{Key, Name};
use conclave_protocol::lock::{Acquire, ClientInput, Message, Mode};
use harness::{Cluster, config};

fn wish(name: &str, wait: Duration, cluster: &Cluster) -> Acquire {
    let mut wish = Acquire::new(Name::new(name), Mode::Exclusive, Duration::from_secs(10));
    wish.deadline = Some(cluster.now.mono + wait);
    wish
}

/// When the client wants to be woken, after timers that would find nothing to do are forgotten.
fn next_wake(cluster: &mut Cluster, client: usize) -> Duration {
    cluster.clients[client].skip_stale_timers();
    let wake = cluster.clients[client].next_wake().unwrap();
    wake.at.since(cluster.now.mono)
}

/// Whoever waits in a queue everywhere has nothing to do until somebody speaks: only heartbeats
/// wake its driver. Whoever has not been answered is woken to ask others.
#[test]
fn waiting_in_a_queue_needs_no_timer() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    cluster.acquire(1, 1, "warm", Mode::Exclusive);
    cluster.drain();
    cluster.release(1, 1);
    cluster.drain();
    let beat = next_wake(&mut cluster, 1);
    let hedge = cluster.config.times.hedge_min;
    assert!(beat > hedge, "only a heartbeat is due");
    let late = wish("a", Duration::from_secs(30), &cluster);
    cluster.client(1, ClientInput::Acquire(Key(2), late));
    assert_eq!(next_wake(&mut cluster, 1), hedge, "nobody has answered yet");
    cluster.drain();
    assert_eq!(next_wake(&mut cluster, 1), beat, "all have said: wait");
    // It is still heard when it matters.
    cluster.release(0, 1);
    cluster.drain();
    assert!(cluster.entered(1, 2).is_some());
}

/// A deadline is kept although no timer stands in the heap for it alone.
#[test]
fn a_deadline_behind_a_put_off_timer_is_kept() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    let short = wish("a", Duration::from_millis(40), &cluster);
    cluster.client(1, ClientInput::Acquire(Key(2), short));
    cluster.drain();
    cluster.clients[1].skip_stale_timers();
    cluster.pass(Duration::from_millis(39));
    assert_eq!(cluster.ended(1, 2), None);
    cluster.pass(Duration::from_millis(2));
    assert!(cluster.ended(1, 2).is_some(), "it gave up in time");
}

/// Requests that end long before their deadline leave no timers behind: the client would else be
/// woken for each of them, half a minute later, and keep them all until then.
#[test]
fn deadlines_of_ended_requests_do_not_pile_up() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 1);
    for key in 0..500 {
        let long = wish("a", Duration::from_secs(30), &cluster);
        cluster.client(0, ClientInput::Acquire(Key(key), long));
        cluster.drain();
        cluster.release(0, key);
        cluster.drain();
    }
    assert_eq!(cluster.clients[0].live(), 0);
    cluster.pass(Duration::from_millis(5));
    assert!(
        cluster.clients[0].timers() <= 2 * 5,
        "one for each connection, not {}",
        cluster.clients[0].timers()
    );
}

/// The same for requests that had to wait: each has a timer for its deadline by then.
#[test]
fn deadlines_of_those_who_waited_do_not_pile_up() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 2);
    for turn in 0..2_000_u64 {
        let (holder, other) = if turn.is_multiple_of(2) {
            (0, 1)
        } else {
            (1, 0)
        };
        let long = wish("a", Duration::from_secs(30), &cluster);
        cluster.client(other, ClientInput::Acquire(Key(turn + 1), long));
        cluster.drain();
        cluster.pass(Duration::from_millis(3));
        cluster.release(holder, turn);
        cluster.drain();
        assert!(cluster.entered(other, turn + 1).is_some());
    }
    for client in 0..2 {
        let timers = cluster.clients[client].timers();
        assert!(timers < 400, "{timers} after a thousand requests");
    }
}

/// A busy client asks soon whether its releases were heard, so it need not keep thousands of
/// them for a node that loses the connection.
#[test]
fn many_releases_are_acknowledged_early() {
    let mut cluster = Cluster::new(config("singleton(1)", &[]), 1);
    cluster.acquire(0, 0, "a", Mode::Exclusive);
    cluster.drain();
    cluster.release(0, 0);
    cluster.drain();
    let before = cluster.count(&["HEARTBEAT"]);
    for key in 1..=640 {
        cluster.acquire(0, key, "a", Mode::Exclusive);
        cluster.drain();
        cluster.release(0, key);
        cluster.drain();
    }
    let beats = cluster.count(&["HEARTBEAT"]) - before;
    assert!((5..=20).contains(&beats), "{beats} for 640 releases");
    // What is told again on a new connection is what was not acknowledged.
    let mut told_again = 0;
    let link = cluster.wires.links_of(Some(0), Some(0))[0];
    cluster.reset(link);
    cluster.pass(Duration::from_secs(2));
    for one in &cluster.delivered {
        if let Message::Resume(resume) = &one.message {
            told_again = resume.done.len();
        }
    }
    assert!(told_again < 128, "{told_again} ended requests were kept");
}
