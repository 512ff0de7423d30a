//! Locks through the public API, on node machines behind real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use common::{FakeCluster, soon, until};
use conclave_client::{AcquireError, Fence, Mode, Refusal, Token};

#[tokio::test]
async fn a_lock_is_taken_seen_and_given_back() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let guard = soon("acquire", client.lock("a").note("hello").acquire())
        .await
        .unwrap();
    assert_eq!(guard.name().to_string(), "a");
    assert!(guard.is_held());
    assert!(guard.valid_for() > Duration::ZERO);
    assert!(guard.members().len() >= 2, "{:?}", guard.members());
    assert!(
        guard
            .members()
            .iter()
            .all(|(node, _)| (1..=3).contains(node))
    );
    let first = guard.token();
    guard.release().await.unwrap();
    until("the nodes forget it", || cluster.requests("a") == 0).await;

    let guard = soon("again", client.lock("a").acquire()).await.unwrap();
    assert!(guard.token() > first);
    drop(guard);
    until("the nodes forget it again", || cluster.requests("a") == 0).await;
}

#[tokio::test]
async fn one_is_inside_and_tokens_grow() {
    let cluster = FakeCluster::start(3).await;
    let inside = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(std::sync::Mutex::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for owner in ["one", "two"] {
        let client = cluster.client(owner).await;
        for _ in 0..8 {
            let (client, inside, last) = (client.clone(), inside.clone(), last.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = client.lock("hot").acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    let before = std::mem::replace(&mut *last.lock().unwrap(), guard.token());
                    assert!(guard.token() > before);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    soon("all", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn groups_share_and_exclude() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let red = soon("red", client.lock("gpu").group("red").acquire())
        .await
        .unwrap();
    let also = soon("also", client.lock("gpu").group("red").acquire())
        .await
        .unwrap();
    assert_eq!(red.group(), also.group());
    let blue = client.lock("gpu").group("blue").try_acquire();
    assert!(soon("blue", blue).await.unwrap().is_none());
    let mut fence = Fence::new();
    assert!(fence.admit(&red.group(), Token(red.token())));
    assert!(fence.admit(&also.group(), Token(also.token())));
    drop((red, also));
    let blue = soon("blue", client.lock("gpu").group("blue").acquire())
        .await
        .unwrap();
    assert!(fence.admit(&blue.group(), Token(blue.token())));
    drop(blue);
    let one = soon("reader", client.lock("gpu").shared().acquire())
        .await
        .unwrap();
    let two = soon("reader", client.lock("gpu").shared().acquire())
        .await
        .unwrap();
    assert!(one.is_held() && two.is_held());
}

#[tokio::test]
async fn an_attempt_does_not_wait_and_a_wait_ends_in_time() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let other = cluster.client("two").await;
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    let attempt = soon("attempt", other.lock("a").try_acquire()).await;
    assert!(attempt.unwrap().is_none());
    let heard = Arc::new(AtomicU32::new(u32::MAX));
    let tell = heard.clone();
    let late = other
        .lock("a")
        .on_position(move |place| tell.store(place, Ordering::SeqCst))
        .acquire_timeout(Duration::from_millis(100));
    match soon("late", late).await {
        Err(AcquireError::TimedOut { position }) => assert_eq!(position, Some(1)),
        other => panic!("{other:?}"),
    }
    assert_eq!(heard.load(Ordering::SeqCst), 1);
    drop(guard);
    let attempt = soon("attempt", other.lock("a").acquire_timeout(common::LONG)).await;
    assert!(attempt.unwrap().is_held());
}

#[tokio::test]
async fn wishes_that_cannot_be_are_refused_by_name() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let short = client.lock("a").ttl(Duration::from_millis(1)).acquire();
    match soon("short", short).await {
        Err(AcquireError::Refused(Refusal::TtlTooShort { .. })) => {}
        other => panic!("{other:?}"),
    }
    let nameless = soon("nameless", client.lock("").acquire()).await;
    assert_eq!(nameless.unwrap_err(), AcquireError::Refused(Refusal::Size));
    let torn = client.lock_all(["a"]).with("a", Mode::Shared).acquire();
    let torn = soon("torn", torn).await;
    assert_eq!(torn.unwrap_err(), AcquireError::Refused(Refusal::Unfit));
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    match client.lock("a").while_holding(&guard).acquire().await {
        Err(AcquireError::AlreadyHeld { name }) => assert_eq!(name.to_string(), "a"),
        other => panic!("{other:?}"),
    }
    let other = client.lock("b").while_holding(&guard).acquire();
    assert!(soon("other", other).await.unwrap().is_held());
}

#[tokio::test]
async fn a_set_is_taken_whole_or_not_at_all() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let request = client.lock_all(["b", "a", "b"]).with("c", Mode::Shared);
    let set = soon("set", request.acquire()).await.unwrap();
    let names: Vec<String> = set.names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(set.token("a").is_some() && set.token("d").is_none());
    assert!(set.members("b").len() >= 2);
    assert!(set.is_held());
    let attempt = client.lock_all(["0", "b"]).try_acquire();
    assert!(soon("attempt", attempt).await.unwrap().is_none());
    until("nothing stays behind", || cluster.requests("0") == 0).await;
    match client
        .lock_all(["x", "b"])
        .while_holding(&set)
        .acquire()
        .await
    {
        Err(AcquireError::AlreadyHeld { name }) => assert_eq!(name.to_string(), "b"),
        other => panic!("{other:?}"),
    }
    set.release().await.unwrap();
    let set = soon("again", client.lock_all(["0", "b"]).acquire()).await;
    assert!(set.unwrap().is_held());
}

#[tokio::test]
async fn closing_gives_everything_back_and_ends_what_waits() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    let waits = tokio::spawn(client.lock("a").acquire());
    until("it waits", || cluster.requests("a") >= 4).await;
    let lost = guard.lost();
    soon("close", client.close()).await;
    assert!(!guard.is_held());
    assert_eq!(cluster.requests("a"), 0, "the nodes have heard it");
    let ended = soon("the waiter", waits).await.unwrap();
    assert_eq!(ended.unwrap_err(), AcquireError::Closed);
    let later = soon("later", client.lock("b").acquire()).await;
    assert_eq!(later.unwrap_err(), AcquireError::Closed);
    assert!(guard.release().await.is_err(), "it ended before");
    soon("lost", lost).await;
    soon("twice", client.close()).await;
}

#[tokio::test]
async fn the_last_one_to_leave_closes_the_connections() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(guard.is_held(), "a guard keeps its client alive");
    drop(guard);
    until("all is quiet", || {
        let connected = cluster.nodes.iter().any(|node| node.connections() > 0);
        cluster.requests("a") == 0 && !connected
    })
    .await;
}

#[tokio::test]
async fn a_semaphore_has_as_many_holders_as_slots() {
    let cluster = FakeCluster::start(3).await;
    let inside = Arc::new(AtomicUsize::new(0));
    let slots: Arc<[AtomicU32; 3]> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for owner in ["one", "two"] {
        let client = cluster.client(owner).await;
        for _ in 0..6 {
            let (client, inside, slots) = (client.clone(), inside.clone(), slots.clone());
            tasks.spawn(async move {
                for _ in 0..5 {
                    let guard = client.semaphore("pool", 3).acquire().await.unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                    let slot = &slots[guard.slot() as usize - 1];
                    assert_eq!(slot.fetch_add(1, Ordering::SeqCst), 0, "one per slot");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    slot.fetch_sub(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    soon("all", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_semaphore_is_told_and_a_dropped_slot_is_free() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let take = || client.semaphore("pool", 2).try_acquire();
    let first = soon("first", take()).await.unwrap().expect("free");
    let second = soon("second", take()).await.unwrap().expect("free");
    assert_ne!(first.slot(), second.slot());
    assert_eq!(first.name().to_string(), format!("pool~{}", first.slot()));
    assert!(soon("third", take()).await.unwrap().is_none());
    let limit = Duration::from_millis(50);
    let timed = soon("timed", client.semaphore("pool", 2).acquire_timeout(limit));
    let error = timed.await.unwrap_err();
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    let freed = first.slot();
    drop(first);
    let third = soon("freed", client.semaphore("pool", 2).acquire())
        .await
        .unwrap();
    assert_eq!(third.slot(), freed);
    for slots in [0, 65] {
        let error = client.semaphore("pool", slots).acquire().await.unwrap_err();
        assert_eq!(
            error,
            AcquireError::Slots {
                asked: slots,
                max: 64
            }
        );
    }
}
