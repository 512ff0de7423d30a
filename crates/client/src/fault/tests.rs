#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/common/mod.rs"]
mod common;

use common::{FakeCluster, soon, until};

use crate::{AcquireError, Client, Counter, ObjectError, Trouble};

/// A fault in the machine, found in a task of its own.
async fn provoke(client: &Client) {
    let client = client.clone();
    let _ = tokio::spawn(async move { client.driver().provoke() }).await;
}

#[tokio::test]
async fn a_client_that_panicked_is_closed_and_what_it_held_is_lost() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    let (lost, failed) = (guard.lost(), client.driver().failed());
    let waits = tokio::spawn(client.lock("a").acquire());
    until("it waits", || cluster.requests("a") >= 4).await;
    provoke(&client).await;
    soon("the loss", lost).await;
    assert!(!guard.is_held());
    let fault = AcquireError::Fault {
        words: "provoked".to_owned(),
    };
    let ended = soon("the waiter", waits).await.unwrap();
    assert_eq!(ended.unwrap_err(), fault);
    let later = soon("later", client.lock("b").acquire()).await;
    assert_eq!(later.unwrap_err(), fault);
    assert!(guard.release().await.is_err(), "it was lost before");
    assert_eq!(
        soon("whoever looks after it", failed).await.as_deref(),
        Some("provoked")
    );
    soon("close", client.close()).await;
}

#[tokio::test]
async fn leases_and_objects_of_a_client_that_panicked_end_with_the_fault() {
    let cluster = FakeCluster::start(3).await;
    let client = cluster.client("one").await;
    let keeper = client.keeper().await.unwrap();
    // These nodes keep no objects: it waits.
    let counter = client.object::<Counter>("c");
    let waits = tokio::spawn(async move { counter.incr().await });
    until("it waits", || keeper.jobs() > 0).await;
    let failed = keeper.failed();
    let _ = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.provoke() }
    })
    .await;
    let ended = soon("the waiter", waits).await.unwrap().unwrap_err();
    let fault = Trouble::Fault("provoked".to_owned());
    let is_fault =
        |error: &ObjectError| matches!(error, ObjectError::Trouble(why) if *why == fault);
    assert!(is_fault(&ended), "{ended}");
    let later = soon("later", client.object::<Counter>("c").incr()).await;
    assert!(later.as_ref().is_err_and(is_fault), "{later:?}");
    let lease = soon("a lease", client.lease("l").acquire()).await;
    assert!(lease.is_err());
    assert_eq!(
        soon("whoever looks after it", failed).await.as_deref(),
        Some("provoked")
    );
    soon("close", keeper.close()).await;
}
