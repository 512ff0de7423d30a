//! Watches, elections, barriers and latches, on node machines behind real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{FakeCluster, soon, until};
use conclave_client::{
    BarrierError, Client, Leading, LockState, Observer, Refusal, Sight, Watch, WatchError,
};

const SHORT: Duration = Duration::from_millis(500);

/// Reads a watch until a state is as wanted.
async fn until_state(watch: &mut Watch, what: &str, so: impl Fn(&LockState) -> bool) -> LockState {
    soon(what, async {
        loop {
            let state = watch.next().await.unwrap();
            if so(&state) {
                return state;
            }
        }
    })
    .await
}

async fn until_leading(observer: &mut Observer, what: &str, so: impl Fn(&Leading) -> bool) {
    soon(what, async {
        loop {
            if so(&observer.next().await.unwrap()) {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_shows_who_is_inside_and_how_many_wait() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("watcher").await;
    let other = cluster.client("holder").await;
    let mut watch = client.watch("a");
    let first = soon("first", watch.next()).await.unwrap();
    assert!(first.is_idle() && !first.partial, "{first:?}");
    let guard = soon("acquire", other.lock("a").note("hello").acquire())
        .await
        .unwrap();
    let token = guard.token();
    let state = until_state(&mut watch, "held", |state| !state.holders.is_empty()).await;
    let holder = state.leader().unwrap();
    assert_eq!(holder.token.0, token);
    assert_eq!(&*holder.owner, "holder");
    assert_eq!(holder.note.as_deref(), Some(b"hello".as_slice()));
    let waits = tokio::spawn({
        let other = other.clone();
        async move { other.lock("a").acquire().await.unwrap() }
    });
    until_state(&mut watch, "one waits", |state| state.waiting == 1).await;
    guard.release().await.unwrap();
    let next = soon("next", waits).await.unwrap();
    let larger = next.token();
    until_state(&mut watch, "the next", |state| {
        let leader = state.leader().map(|leader| leader.token.0);
        assert!(leader.is_none_or(|token| token == larger), "{state:?}");
        leader.is_some()
    })
    .await;
    drop(next);
    until_state(&mut watch, "free", LockState::is_idle).await;
    drop(watch);
    let mut empty = client.watch("");
    let refused = soon("refused", empty.next()).await.unwrap_err();
    assert_eq!(refused, WatchError::Refused(Refusal::Size));
}

#[tokio::test]
async fn a_prefix_is_listed_then_followed_and_only_the_newest_waits() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("watcher").await;
    let other = cluster.client("holder").await;
    let mut held = Vec::new();
    for number in 0..20 {
        let name = format!("jobs/{number}");
        held.push(soon("held", other.lock(name).acquire()).await.unwrap());
    }
    let mut watch = client.watch_prefix("jobs/");
    let mut names = std::collections::BTreeSet::new();
    soon("list", async {
        loop {
            match watch.next().await.unwrap() {
                Sight::State(state) => {
                    names.insert(state.name.to_string());
                }
                Sight::Synced { partial } => {
                    assert!(!partial);
                    return;
                }
            }
        }
    })
    .await;
    assert_eq!(names.len(), 20);
    drop(held);
    // Nobody reads while a lock goes to and fro; then only its newest state is there.
    for _ in 0..30 {
        let guard = soon("again", other.lock("jobs/x").acquire()).await.unwrap();
        guard.release().await.unwrap();
    }
    let last = soon("last", other.lock("jobs/x").note("last").acquire())
        .await
        .unwrap();
    let mut read = 0;
    soon("newest", async {
        loop {
            if let Sight::State(state) = watch.next().await.unwrap() {
                read += 1;
                let leader = state.leader().map(|leader| leader.token.0);
                if leader == Some(last.token()) {
                    return;
                }
            }
        }
    })
    .await;
    assert!(read < 60, "{read} states were read");
}

#[tokio::test]
async fn a_watch_goes_on_over_broken_connections() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("watcher").await;
    let other = cluster.client("holder").await;
    let mut watch = client.watch("a");
    soon("first", watch.next()).await.unwrap();
    for down in 0..3 {
        cluster.nodes[down].hang_up().await;
        let guard = soon("acquire", other.lock("a").acquire()).await.unwrap();
        let token = guard.token();
        until_state(&mut watch, "seen", |state| {
            state.leader().is_some_and(|leader| leader.token.0 == token)
        })
        .await;
        guard.release().await.unwrap();
        until_state(&mut watch, "free", LockState::is_idle).await;
        cluster.nodes[down].listen().await;
    }
    cluster.nodes[0].hang_up().await;
    cluster.nodes[1].hang_up().await;
    until_state(&mut watch, "partial", |state| state.partial).await;
    cluster.nodes[0].listen().await;
    until_state(&mut watch, "whole", |state| !state.partial).await;
    client.close().await;
    let over = soon("closed", watch.next()).await.unwrap_err();
    assert_eq!(over, WatchError::Closed);
}

#[tokio::test]
async fn a_leader_is_followed_from_value_to_value() {
    let cluster = FakeCluster::start(3).await;
    let (one, two) = (cluster.client("one").await, cluster.client("two").await);
    let watcher = cluster.client("watcher").await;
    let mut observer = watcher.observe("election");
    until_leading(&mut observer, "nobody", |now| now.leader.is_none()).await;
    let leader = soon(
        "lead",
        one.elect("election").value("one:1").ttl(SHORT).lead(),
    )
    .await
    .unwrap();
    assert!(leader.is_leading());
    let token = leader.token();
    until_leading(&mut observer, "the first leads", |now| {
        let leader = now.leader.as_ref();
        leader.is_some_and(|leader| &*leader.value == b"one:1" && leader.token == token)
    })
    .await;
    let candidate = two
        .elect("election")
        .value("two:1")
        .wait(Duration::from_millis(50));
    assert!(soon("wait", candidate.lead()).await.is_err());
    leader.set_value("one:2").unwrap();
    assert_eq!(leader.set_value(vec![0; 5000]), Err(Refusal::Size));
    let is = |now: &Leading, value: &[u8]| {
        let leader = now.leader.as_ref();
        leader.is_some_and(|leader| &*leader.value == value)
    };
    until_leading(&mut observer, "a new value", |now| is(now, b"one:2")).await;
    let next = tokio::spawn(async move { two.elect("election").value("two:2").lead().await });
    leader.resign().await.unwrap();
    let next = soon("next", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    until_leading(&mut observer, "the second leads", |now| {
        assert!(!is(now, b"one:1"), "values never go back");
        is(now, b"two:2")
    })
    .await;
}

/// One party of some rounds; all of them meet between rounds.
async fn party(client: Client, rounds: u32, inside: Arc<Vec<AtomicU32>>) {
    for round in 0..rounds {
        inside[round as usize].fetch_add(1, Ordering::SeqCst);
        client.barrier("b", 3).ttl(SHORT).wait().await.unwrap();
        let arrived = inside[round as usize].load(Ordering::SeqCst);
        assert_eq!(arrived, 3, "round {round} began without everyone");
    }
}

#[tokio::test]
async fn nobody_passes_a_barrier_before_all_have_come() {
    let cluster = FakeCluster::start(3).await;
    let rounds = 5;
    let inside = Arc::new((0..rounds).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let mut parties = tokio::task::JoinSet::new();
    for owner in ["one", "two", "three"] {
        let client = cluster.client(owner).await;
        parties.spawn(party(client, rounds, inside.clone()));
    }
    soon("all rounds", async {
        while let Some(done) = parties.join_next().await {
            done.unwrap();
        }
    })
    .await;
    until("nothing is left", || {
        (1..=3).all(|slot| cluster.requests(&format!("b~{slot}")) == 0)
    })
    .await;
}

#[tokio::test]
async fn a_party_that_leaves_is_waited_for_again() {
    let cluster = FakeCluster::start(3).await;
    let (one, two) = (cluster.client("one").await, cluster.client("two").await);
    let early = one.barrier("b", 2).timeout(Duration::from_millis(200));
    let error = soon("too few", early.wait()).await.unwrap_err();
    assert_eq!(
        error,
        BarrierError::TimedOut {
            there: 1,
            parties: 2
        }
    );
    assert!(error.to_string().contains("1 of 2"), "{error}");
    // Its place is free again: two others pass, the one that left is not counted.
    let both = soon("both", async {
        tokio::join!(one.barrier("b", 2).wait(), two.barrier("b", 2).wait())
    })
    .await;
    let mut slots = [both.0.unwrap(), both.1.unwrap()];
    slots.sort_unstable();
    assert_eq!(slots, [1, 2]);
    let none = soon("none", one.barrier("b", 0).wait()).await.unwrap_err();
    assert_eq!(none, BarrierError::Parties(0));
}

#[tokio::test]
async fn a_latch_opens_when_all_have_counted_and_stay() {
    let cluster = FakeCluster::start(3).await;
    let (one, two) = (cluster.client("one").await, cluster.client("two").await);
    let latch = one.latch("l", 2);
    let first = soon("count", latch.count_down()).await.unwrap();
    let closed = one.latch("l", 2).timeout(Duration::from_millis(100));
    assert!(soon("closed", closed.wait()).await.is_err());
    // A count that is gone does not count.
    drop(first);
    until("gone", || {
        cluster.requests("l~1") + cluster.requests("l~2") == 0
    })
    .await;
    let second = soon("count", two.latch("l", 2).count_down()).await.unwrap();
    let closed = one.latch("l", 2).timeout(Duration::from_millis(100));
    assert!(soon("closed", closed.wait()).await.is_err());
    let waits = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    let third = soon("count", latch.count_down()).await.unwrap();
    soon("open", waits).await.unwrap().unwrap();
    let full = two.latch("l", 2).timeout(Duration::from_millis(100));
    assert!(soon("full", full.count_down()).await.is_err());
    drop((second, third));
}
