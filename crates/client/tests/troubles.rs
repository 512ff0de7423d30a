//! What goes wrong in the world: silence, broken connections, nodes that are not what they should
//! be, pauses, callers that lose interest.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::proxy::Proxy;
use common::{FakeCluster, LONG, soon, until};
use conclave_client::{AcquireError, Client, clock};
use conclave_wire::greeting::Rejection;

/// Polls a future this often at most, and drops it.
async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Lets a future run while others take this many turns, and drops it.
async fn run_turns<F: Future>(future: F, turns: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = turns;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[tokio::test]
async fn a_dropped_future_leaves_nothing_behind() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let rival = cluster.client("rival").await;
    for turn in 0..60 {
        // Sometimes it must wait for a rival, who leaves while it waits.
        let guard = if turn % 2 == 0 {
            Some(soon("rival", rival.lock("a").acquire()).await.unwrap())
        } else {
            None
        };
        let leaves = tokio::spawn(async move {
            for _ in 0..turn {
                tokio::task::yield_now().await;
            }
            drop(guard);
        });
        drop(run_turns(client.lock("a").acquire(), turn).await);
        drop(run_turns(client.lock_all(["a", "b"]).acquire(), turn).await);
        drop(poll_times(client.lock("a").acquire(), turn % 5).await);
        let brief = Duration::from_millis(turn as u64);
        let timed = tokio::time::timeout(brief, client.lock("a").acquire()).await;
        drop(timed);
        leaves.await.unwrap();
        until("nothing is left", || {
            cluster.requests("a") + cluster.requests("b") == 0
        })
        .await;
        assert_eq!(client.driver().live(), 0);
    }
    assert!(
        soon("still works", client.lock("a").acquire())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_lock_is_lost_before_it_is_given_on() {
    let cluster = FakeCluster::start(3).await;
    let mut behind = cluster.cluster.clone();
    let mut proxies = Vec::new();
    for node in &mut behind.nodes {
        let proxy = Proxy::start(node.peer.parse().unwrap()).await;
        node.peer = proxy.addr.to_string();
        proxies.push(proxy);
    }
    let cut = Client::builder().cluster(behind).connect().await.unwrap();
    let rival = cluster.client("rival").await;
    let ttl = Duration::from_millis(500);
    let guard = soon("acquire", cut.lock("a").ttl(ttl).acquire())
        .await
        .unwrap();
    let first = guard.token();
    let until_nanos = Arc::new(AtomicU64::new(0));
    let waits = tokio::spawn(rival.lock("a").acquire());
    until("the rival waits", || cluster.requests("a") >= 4).await;
    let lost = [tokio::spawn(guard.lost()), tokio::spawn(guard.lost())];
    for proxy in &proxies {
        proxy.freeze();
    }
    // Whatever it believes while it believes to hold the lock.
    until("the holder gives up", || {
        until_nanos.fetch_max(guard.until_nanos(), Ordering::SeqCst);
        !guard.is_held()
    })
    .await;
    for lost in lost {
        soon("lost", lost).await.unwrap();
    }
    soon("lost already", guard.lost()).await;
    let second = soon("the rival", waits).await.unwrap().unwrap();
    assert!(second.token() > first);
    let believed = until_nanos.load(Ordering::SeqCst);
    assert!(believed > 0);
    let entered = clock::now().mono.nanos();
    assert!(believed < entered, "{believed} {entered}");
    for node in &cluster.nodes {
        for granted in node.grants("a").into_iter().skip(1) {
            assert!(granted.nanos() > believed, "given on while it was held");
        }
    }
    assert_eq!(guard.name().to_string(), "a");
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");
    for proxy in &proxies {
        proxy.thaw();
    }
    drop(second);
    let back = soon("back", cut.lock("a").acquire()).await.unwrap();
    assert!(back.is_held());
}

#[tokio::test]
async fn a_hold_outlives_each_node_in_turn() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let token = guard.token();
        node.hang_up().await;
        until("it rests on others", || {
            let gone = index as u32 + 1;
            let members = guard.members();
            members.len() >= 2 && members.iter().all(|(node, _)| *node != gone)
        })
        .await;
        assert!(guard.is_held());
        assert!(guard.token() >= token);
        let other = soon("another", client.lock("b").acquire()).await.unwrap();
        drop(other);
        node.listen().await;
    }
    guard.release().await.unwrap();
    until("all is released", || cluster.requests("a") == 0).await;
}

#[tokio::test]
async fn another_configuration_is_named() {
    let cluster = FakeCluster::start(3).await;
    let facts = cluster.other_facts();
    cluster.behave(|manners| {
        manners.rejection = Some(Rejection::Config {
            facts: facts.clone(),
        });
    });
    let client = cluster.client("one").await;
    // Without a time limit: waiting would not help.
    let error = soon("acquire", client.lock("a").acquire())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            AcquireError::NoQuorum {
                reachable: 0,
                nodes: 3,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("epoch is '1' here and '9' there"), "{text}");
    // Whoever mends the nodes is let in.
    cluster.behave(|manners| manners.rejection = None);
    until("the nodes accept", || {
        let reachable = client.driver().reachable().len();
        drop(client.driver().troubles());
        reachable >= 2 || {
            // A wish makes it try again.
            let wish = client.lock("a").try_acquire();
            tokio::spawn(wish);
            false
        }
    })
    .await;
    assert!(soon("acquire", client.lock("b").acquire()).await.is_ok());
}

#[tokio::test]
async fn one_bad_node_does_no_harm() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    for round in 0..4 {
        cluster.nodes[0].hang_up().await;
        cluster.nodes[0].behave(|manners| match round {
            0 => manners.garbage = vec![0xff; 64],
            1 => manners.garbage = (0..255).collect(),
            2 => manners.garbage = vec![3, 0, 0, 0, 0x0a, 0xff, 0x01],
            _ => manners.claims = Some(1),
        });
        cluster.nodes[0].listen().await;
        for name in 0..10 {
            let name = format!("lock {name}");
            let guard = soon(&name, client.lock(&name).acquire()).await.unwrap();
            guard.release().await.unwrap();
        }
    }
    let trouble = |client: &Client| {
        let troubles = client.driver().troubles();
        troubles
            .into_iter()
            .map(|(_, text)| text)
            .collect::<Vec<_>>()
    };
    until("the wrong node is named", || {
        tokio::spawn(client.lock("x").acquire());
        trouble(&client)
            .iter()
            .any(|text| text.contains("this is n2"))
    })
    .await;
}

#[tokio::test]
async fn too_few_nodes_are_told_apart_from_a_busy_lock() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    for node in &cluster.nodes[1..] {
        node.hang_up().await;
    }
    let wait = Duration::from_millis(300);
    let error = soon("acquire", client.lock("a").acquire_timeout(wait))
        .await
        .unwrap_err();
    let text = error.to_string();
    match error {
        AcquireError::NoQuorum {
            reachable,
            nodes: 3,
            ..
        } => assert!(reachable <= 1),
        other => panic!("{other:?}"),
    }
    assert!(text.contains("cannot connect to 127.0.0.1"), "{text}");
    let attempt = soon("attempt", client.lock("a").try_acquire()).await;
    assert!(
        matches!(attempt, Err(AcquireError::NoQuorum { .. })),
        "{attempt:?}"
    );
    for node in &cluster.nodes {
        node.hang_up().await;
        node.listen().await;
    }
    assert!(soon("healed", client.lock("a").acquire()).await.is_ok());
}

#[test]
fn a_client_whose_runtime_has_ended_says_so() {
    let other = tokio::runtime::Runtime::new().unwrap();
    let here = tokio::runtime::Runtime::new().unwrap();
    let cluster = here.block_on(FakeCluster::start(3));
    let client = other.block_on(cluster.client("one"));
    let guard = other.block_on(client.lock("a").acquire()).unwrap();
    other.shutdown_timeout(LONG);
    assert!(!guard.is_held(), "nobody renews it");
    here.block_on(async {
        soon("lost", guard.lost()).await;
        let later = soon("later", client.lock("b").acquire()).await;
        assert_eq!(later.unwrap_err(), AcquireError::Closed);
        until("the nodes were told", || cluster.requests("a") == 0).await;
    });
}
