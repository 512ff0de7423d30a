//! Nine real nodes in clusters of three serve locks: exclusion and tokens over clients with
//! different homes, groups, and what dies when a node does.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Plan, acquire_as, in_time, plan_of};
use conclave_client::Security;
use conclave_client::driver::{Driver, Job, Work};
use conclave_node::Node;
use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lock::{Acquire, ClientEvent, Ended, Mode};

const TTL: Duration = Duration::from_secs(2);

fn nine() -> (Plan, Vec<Option<Node>>) {
    let mut plan = plan_of(9, "multilevel(tree, levels=1)", "");
    let nodes = plan.start_all().into_iter().map(Some).collect();
    (plan, nodes)
}

/// A client whose home is this node, from 1.
fn at(plan: &Plan, home: u32) -> Driver {
    let home = Some(NodeId(home - 1));
    Driver::spawn_at(&plan.cluster, "test", Security::default(), home).unwrap()
}

fn wish(name: &str, mode: Mode) -> Acquire {
    Acquire::new(Name::new(name), mode, TTL)
}

async fn lock(driver: &Driver, name: &str) -> (Job, u64) {
    acquire_as(driver, wish(name, Mode::Exclusive)).await
}

async fn lost(job: &mut Job) {
    in_time("the loss", async {
        while !matches!(job.next().await, Some(ClientEvent::Lost(..))) {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_all_homes_exclude_each_other_with_growing_tokens() {
    let (plan, _nodes) = nine();
    let last = Arc::new(AtomicU64::new(0));
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for home in 1..=9 {
        let driver = at(&plan, home);
        let (last, inside) = (last.clone(), inside.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..4 {
                let (job, token) = lock(&driver, "a").await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let before = last.swap(token, Ordering::SeqCst);
                assert!(before < token, "{before} then {token}");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                job.release();
            }
        }));
    }
    for task in tasks {
        in_time("all turns", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_inside_together_whatever_its_homes_are() {
    let (plan, _nodes) = nine();
    let blue = || wish("a", Mode::group("blue"));
    let mut held = Vec::new();
    // Each stays inside until all are: nobody waits for another to leave.
    for home in [1, 2, 5, 9] {
        held.push(acquire_as(&at(&plan, home), blue()).await.0);
    }
    let rival = at(&plan, 4);
    let waits = tokio::spawn(async move { lock(&rival, "a").await.1 });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "the group is inside");
    for job in held {
        job.release();
    }
    in_time("the rival", waits).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_only_tries_gets_a_free_lock_and_no_other() {
    let (plan, _nodes) = nine();
    let (first, second) = (at(&plan, 2), at(&plan, 8));
    let attempt = || Acquire {
        attempt: true,
        ..wish("a", Mode::Exclusive)
    };
    let (job, _) = acquire_as(&first, attempt()).await;
    let mut tries = second.begin(Work::Acquire(attempt()));
    in_time("busy", async {
        loop {
            match tries.next().await {
                Some(ClientEvent::Ended(_, Ended::Busy)) => return,
                Some(ClientEvent::Position(..)) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    job.release();
    acquire_as(&second, attempt()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_root_member_ends_no_hold_elsewhere_for_long_and_the_rest_goes_on() {
    let (plan, mut nodes) = nine();
    // Nodes 1, 4 and 7 are the root.
    for victim in [4, 7] {
        let driver = at(&plan, 2);
        let name = format!("under-{victim}");
        let (job, token) = lock(&driver, &name).await;
        nodes[victim - 1] = None;
        job.release();
        for home in [1, 3, 5, 9] {
            let (job, later) = lock(&at(&plan, home), &name).await;
            assert!(later > token);
            job.release();
        }
        if victim == 4 {
            // It comes back with an empty memory, as a node whose disk was new.
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_holders_home_frees_the_lock_when_its_time_is_over() {
    let (plan, mut nodes) = nine();
    let (holder, next) = (at(&plan, 6), at(&plan, 2));
    let (mut job, token) = lock(&holder, "a").await;
    let waits = tokio::spawn(async move { lock(&next, "a").await.1 });
    tokio::time::sleep(Duration::from_millis(200)).await;
    nodes[5] = None;
    lost(&mut job).await;
    let later = in_time("the next", waits).await.unwrap();
    assert!(later > token, "{token} then {later}");
    // Its client finds another home.
    let (again, _) = lock(&holder, "b").await;
    again.release();
}
