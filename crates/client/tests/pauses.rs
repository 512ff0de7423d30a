//! A client that stands still at any point of an acquisition, and goes on when its time is over.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use common::{FakeCluster, soon};
use conclave_client::{Client, clock};

/// Shorter than the pauses.
const TTL: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(500);

/// From when to when somebody was inside, on the clock of this machine.
type Stays = Arc<Mutex<Vec<(u64, u64)>>>;

/// Stops the thread before the poll of this number: the driver, which runs on the same thread,
/// stands still too.
async fn pause_before<F: Future>(future: F, poll: usize) -> F::Output {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        if polls == poll {
            std::thread::sleep(PAUSE);
        }
        match future.as_mut().poll(cx) {
            // Every turn of the runtime counts, not only those that bring something.
            Poll::Pending if polls < poll => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            other => other,
        }
    })
    .await
}

async fn rival(client: Client, stays: Stays, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let from = clock::now().mono.nanos();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let to = clock::now().mono.nanos().min(guard.until_nanos());
        stays.lock().unwrap().push((from, to));
        let _ = guard.release().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn whoever_wakes_up_late_is_not_inside_with_another() {
    // The nodes and the rival do not stand still.
    let there = tokio::runtime::Runtime::new().unwrap();
    let here = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let cluster = there.block_on(FakeCluster::start(3));
    let stays = Stays::default();
    let stop = Arc::new(AtomicBool::new(false));
    let client = there.block_on(cluster.client("rival"));
    let rival = there.spawn(rival(client, stays.clone(), stop.clone()));
    let mut mine = Vec::new();
    here.block_on(async {
        let client = cluster.client("sleeper").await;
        for poll in 1..12 {
            let acquire = client.lock("a").ttl(TTL).acquire();
            let guard = soon("acquire", pause_before(acquire, poll * 2))
                .await
                .unwrap();
            let from = clock::now().mono.nanos();
            if poll % 3 == 0 {
                // Or while it is inside.
                std::thread::sleep(PAUSE);
                assert!(!guard.is_held(), "it slept longer than its TTL");
                soon("lost", guard.lost()).await;
                assert!(guard.release().await.is_err());
                continue;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            mine.push((from, clock::now().mono.nanos().min(guard.until_nanos())));
            let _ = guard.release().await;
        }
        client.close().await;
    });
    stop.store(true, Ordering::SeqCst);
    there.block_on(soon("the rival ends", rival)).unwrap();
    let theirs = stays.lock().unwrap();
    assert!(!theirs.is_empty() && !mine.is_empty());
    for (from, to) in &mine {
        let meets = |(start, end): &&(u64, u64)| start < to && from < end;
        let met = theirs.iter().find(meets);
        assert!(
            met.is_none(),
            "{from}..{to} and {met:?} are inside together"
        );
    }
}
