//! Stopping, draining, jumping clocks, and the history that is left behind.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Raw, acquire, hello, in_time, plan, plan_with, until_state, wish};
use conclave_client::driver::{Driver, Work};
use conclave_node::Node;
use conclave_node::store::Memory;
use conclave_protocol::lock::{ClientEvent, Message};
use conclave_protocol::{Instant, Now, Wall};

/// All nodes restart in turn while a lock is held: it is never lost, and moves by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan(3);
    let data = |id: u32| dir.path().join(id.to_string());
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(Node::start(plan.options(id, &data(id))).unwrap());
    }
    for node in &nodes {
        until_state(node, "serving").await;
    }
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    let (mut held, _) = acquire(&driver, "a").await;
    for id in 1..=3 {
        let node = nodes.remove(0);
        node.drain_and_stop();
        in_time("the stop", node.wait()).await.unwrap();
        drop(node);
        let node = Node::start(plan.options(id, &data(id))).unwrap();
        until_state(&node, "serving").await;
        nodes.push(node);
    }
    let (other, _) = acquire(&driver, "b").await;
    drop(other);
    held.release();
    let end = in_time("the release", async {
        loop {
            match held.next().await {
                Some(ClientEvent::Moved { .. } | ClientEvent::Position(..)) => {}
                other => return other,
            }
        }
    })
    .await;
    assert!(matches!(end, Some(ClientEvent::Ended(..))), "{end:?}");
}

/// A clock whose wall jumps to and fro, and whose steady part leaps.
fn jumping(calls: Arc<AtomicU64>) -> conclave_node::shard::Clock {
    Arc::new(move || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let now = conclave_client::clock::now();
        let wall = match call / 50 % 6 {
            0 => now.wall.0,
            1 => 0,
            2 => now.wall.0.saturating_mul(2),
            3 => now.wall.0 - 3_600_000_000,
            4 => u64::MAX,
            _ => now.wall.0 + 3_600_000_000,
        };
        let leap = call / 500 * 3_000_000_000;
        let back = if call.is_multiple_of(7) {
            1_000_000_000
        } else {
            0
        };
        Now {
            mono: Instant::from_nanos((now.mono.nanos() + leap).saturating_sub(back)),
            wall: Wall(wall),
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ends_nothing_but_leases() {
    let mut plan = plan(1);
    let options = plan.options(1, Path::new("unused"));
    let calls = Arc::new(AtomicU64::new(0));
    let clock = jumping(calls.clone());
    let node = Node::start_on(options, Box::new(Memory::default()), clock).unwrap();
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    in_time("enough readings of the clock", async {
        let mut round = 0;
        while calls.load(Ordering::Relaxed) < 6000 {
            let mut job = driver.begin(Work::Acquire(wish(&format!("a/{round}"))));
            // Whatever it comes to: a wild clock may refuse anything, it must not break anything.
            let wait = tokio::time::timeout(Duration::from_millis(200), job.next());
            let _ = wait.await;
            round += 1;
        }
    })
    .await;
    let ended = tokio::time::timeout(Duration::from_millis(1), node.wait()).await;
    assert!(ended.is_err(), "the node ended: {ended:?}");
    common::state(&node).await;
}

/// Everything that a client was granted stands in the node's file, even after a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_has_every_grant_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n1.jsonl");
    let mut plan = plan_with(1, "");
    let mut options = plan.options(1, Path::new("unused"));
    options.history = Some(path.clone());
    let clock = Arc::new(conclave_client::clock::now);
    let node = Node::start_on(options, Box::new(Memory::default()), clock).unwrap();
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let mut job = driver.begin(Work::Acquire(wish(&format!("a/{round}"))));
        let entered = in_time("acquire", async {
            loop {
                match job.next().await {
                    Some(ClientEvent::Entered { members, .. }) => return members,
                    Some(ClientEvent::Position(..)) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        seen.extend(entered.await.iter().map(|(_, grant)| grant.0));
        if round % 2 == 0 {
            job.release();
        }
    }
    let text = std::fs::read_to_string(&path).unwrap();
    drop(node);
    let lines = text.lines().filter(|line| !line.is_empty());
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["event"], "start");
    assert_eq!(lines[1]["event"], "serving");
    let granted = lines.iter().filter(|line| line["event"] == "granted");
    let granted: BTreeSet<u64> = granted
        .map(|line| line["grant"].as_u64().unwrap())
        .collect();
    assert!(granted.is_superset(&seen), "{seen:?} in {granted:?}");
    let times: Vec<u64> = lines
        .iter()
        .map(|line| line["at"].as_u64().unwrap())
        .collect();
    assert!(
        times.is_sorted(),
        "the lines are in the order of their times"
    );
}

/// After a pause what has expired ends before anything that came meanwhile is heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_timers_run_before_messages() {
    for round in 0..20 {
        let mut plan = plan_with(1, "times = { link_ttl = \"30s\" }");
        let ahead = Arc::new(AtomicU64::new(0));
        let slept = ahead.clone();
        let clock = Arc::new(move || {
            let now = conclave_client::clock::now();
            let nanos = now.mono.nanos() + slept.load(Ordering::SeqCst);
            Now {
                mono: Instant::from_nanos(nanos),
                ..now
            }
        });
        let options = plan.options(1, Path::new("unused"));
        let node = Node::start_on(options, Box::new(Memory::default()), clock).unwrap();
        let mut raw = Raw::greeted(&plan.cluster, 1);
        raw.send(&hello(&plan.cluster, 1, 1));
        assert!(matches!(raw.next(), Some(Message::Welcome { .. })));
        let beat = |beat| Message::Heartbeat {
            beat,
            entered: Vec::new(),
        };
        raw.send(&beat(1));
        assert!(matches!(raw.next(), Some(Message::Beat { beat: 1, .. })));
        ahead.store(31_000_000_000, Ordering::SeqCst);
        raw.send(&beat(2));
        assert_eq!(raw.next(), None, "round {round}: its lease had lapsed");
        drop(node);
    }
}
