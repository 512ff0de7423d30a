//! Real nodes on real sockets serve locks, through stops and restarts.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::{acquire, acquire_as, in_time, plan, plan_with, state, until_state, wish};
use conclave_client::driver::Driver;
use conclave_node::shard::{Query, Report};
use conclave_node::{Node, StartError};
use conclave_protocol::id::Name;
use conclave_protocol::lock::Acquire;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_give_a_lock_to_one_after_the_other() {
    let mut plan = plan(3);
    let nodes = plan.start_all();
    let (first, second) = (
        Driver::spawn(&plan.cluster, "first").unwrap(),
        Driver::spawn(&plan.cluster, "second").unwrap(),
    );
    let (held, token) = acquire(&first, "a").await;
    let waits = tokio::spawn(async move { acquire(&second, "a").await.1 });
    // Somebody waits at some node before the first one leaves.
    in_time("a waiter", async {
        loop {
            for node in &nodes {
                let lock = Query::Lock(Name::new("a"));
                if let Some(Report::Lock(Some(view))) = node.shard().inspect(lock).await
                    && view.entries.len() == 2
                {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(!waits.is_finished(), "the lock is exclusive");
    held.release();
    let later = in_time("the second", waits).await.unwrap();
    assert!(later > token, "tokens rise: {token} then {later}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_people_ask_is_answered_in_pages() {
    let mut plan = plan(1);
    let nodes = plan.start_all();
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    let mut held = Vec::new();
    for number in 0..7 {
        held.push(acquire(&driver, &format!("page/{number}")).await.0);
    }
    held.push(acquire(&driver, "other").await.0);
    let (mut from, mut names, mut pages) = (0, Vec::new(), 0);
    loop {
        let query = Query::Locks {
            prefix: b"page/".to_vec(),
            from,
            limit: 3,
        };
        let Some(Report::Locks(page, next)) = nodes[0].shard().inspect(query).await else {
            panic!("no page");
        };
        assert!(page.len() <= 3);
        names.extend(page.into_iter().map(|(name, view)| {
            assert_eq!(view.entries.len(), 1);
            (name.to_string(), view.entries[0].ask.clone())
        }));
        pages += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((names.len(), pages), (7, 3));
    let ask = &names[0].1;
    let labels = Query::Labels(vec![(ask.session, ask.request)]);
    let Some(Report::Labels(labels)) = nodes[0].shard().inspect(labels).await else {
        panic!("no labels");
    };
    assert_eq!(&*labels[0].as_ref().unwrap().owner, "me");
    let sessions = Query::Sessions {
        from: 0,
        limit: 10,
        reader: None,
    };
    let Some(Report::Sessions(page, None)) = nodes[0].shard().inspect(sessions).await else {
        panic!("no sessions");
    };
    assert_eq!(page.len(), 1);
    assert_eq!(page[0].requests, 8);
    nodes[0].shard().expire(page[0].session);
    in_time("the end of the session", async {
        loop {
            let overview = nodes[0].shard().inspect(Query::Overview).await;
            if let Some(Report::Overview { kept, .. }) = overview
                && kept[0] == 0
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_needs_no_pause_and_a_crash_does() {
    // The pause after a crash is as long as the longest TTL.
    let brief = || Acquire {
        ttl: Duration::from_secs(1),
        ..wish("a")
    };
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan_with(1, "times = { link_ttl = \"500ms\", heartbeat = \"100ms\" }");
    let node = Node::start(plan.options(1, dir.path())).unwrap();
    until_state(&node, "serving").await;
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    let (held, first) = acquire_as(&driver, brief()).await;
    held.release();
    node.drain_and_stop();
    in_time("the stop", node.wait()).await.unwrap();
    assert!(node.shard().inspect(Query::Overview).await.is_none());
    drop(node);

    let node = Node::start(plan.options(1, dir.path())).unwrap();
    let seen = in_time("the restart", async {
        loop {
            match state(&node).await {
                "starting" => tokio::time::sleep(Duration::from_millis(1)).await,
                seen => return seen,
            }
        }
    })
    .await;
    assert_eq!(seen, "serving", "a clean stop is followed by no pause");
    let (held, second) = acquire_as(&driver, brief()).await;
    assert!(second > first);
    drop(node);

    let node = Node::start(plan.options(1, dir.path())).unwrap();
    let seen = in_time("the restart", async {
        loop {
            match state(&node).await {
                "starting" => tokio::time::sleep(Duration::from_millis(1)).await,
                seen => return seen,
            }
        }
    })
    .await;
    assert_eq!(seen, "pausing", "a crash is followed by a pause");
    drop(held);
    until_state(&node, "serving").await;
    let (_held, third) = acquire_as(&driver, brief()).await;
    assert!(third > second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_disk_is_not_a_new_node() {
    let mut plan = plan(3);
    let nodes = [
        plan.start_on(1, conclave_node::store::Memory::default()),
        plan.start_on(2, conclave_node::store::Memory::default()),
    ];
    let driver = Driver::spawn(&plan.cluster, "me").unwrap();
    let _held = acquire(&driver, "a").await;
    let dir = tempfile::tempdir().unwrap();
    let mut options = plan.options(3, dir.path());
    options.init = false;
    let lost = Node::start(options).unwrap();
    assert_eq!(state(&lost).await, "recovering");
    drop(nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_never_served_let_an_empty_disk_begin() {
    let mut plan = plan(3);
    let _others = [
        plan.start_on(1, conclave_node::store::Memory::default()),
        plan.start_on(2, conclave_node::store::Memory::default()),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut options = plan.options(3, dir.path());
    options.init = false;
    let new = Node::start(options).unwrap();
    // It asks over connections of its own and is answered over theirs.
    until_state(&new, "serving").await;
}

#[test]
fn what_cannot_be_started_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan(3);
    let mut options = plan.options(1, dir.path());
    options.id = 9;
    let error = Node::start(options).unwrap_err();
    assert_eq!(error, StartError::Id { id: 9, nodes: 3 });
    let mut options = plan.options(2, dir.path());
    options.cluster.quorum = "majority(7)".to_owned();
    let error = Node::start(options).unwrap_err();
    assert!(matches!(error, StartError::Cluster(_)), "{error}");
    let mut options = plan.options(3, dir.path());
    options.history = Some(dir.path().join("no/such/dir"));
    let error = Node::start(options).unwrap_err();
    assert!(matches!(error, StartError::History { .. }), "{error}");
}
