#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use conclave_protocol::lock::Mode;

use super::*;

/// A client of nodes that nobody runs.
fn alone() -> Driver {
    let mut text = "name = \"alone\"\nepoch = 1\nquorum = \"majority\"\n".to_owned();
    for id in 1..=3 {
        let at = format!("127.0.0.1:{id}");
        text += &format!("[[nodes]]\nid = {id}\npeer = \"{at}\"\napi = \"http://{at}\"\n");
    }
    let cluster = Cluster::parse(&text).unwrap();
    Driver::spawn(&cluster, "test").unwrap()
}

fn take(driver: &Driver, name: &str) -> Job {
    let ttl = Duration::from_secs(10);
    let wish = Acquire::new(Name::new(name), Mode::Exclusive, ttl);
    driver.begin(Work::Acquire(wish))
}

#[tokio::test]
async fn what_is_wanted_while_the_machine_is_taken_is_done_when_it_is_given_back() {
    let driver = alone();
    let shared = driver.owned.shared.clone();
    let core = shared.core.lock().unwrap();
    // Neither of these waits: it would be for ever.
    let kept = take(&driver, "a");
    drop(take(&driver, "b"));
    assert_eq!(core.machine.live(), 0);
    shared.finish(core);
    assert_eq!(driver.live(), 1, "what was dropped later is not begun anew");
    drop(kept);
    assert_eq!(driver.live(), 0);
}

#[tokio::test]
async fn what_was_wanted_before_comes_first() {
    let driver = alone();
    let shared = driver.owned.shared.clone();
    let core = shared.core.lock().unwrap();
    let job = take(&driver, "a");
    // Given back without a look, as somebody does who has just looked.
    drop(core);
    job.cancel();
    assert_eq!(
        driver.live(),
        0,
        "a cancel does not overtake its own beginning"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wish_of_a_crowd_stays_behind() {
    let driver = alone();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let driver = driver.clone();
            tokio::spawn(async move {
                for turn in 0..200 {
                    drop(take(&driver, &format!("{task}/{turn}")));
                    tokio::task::yield_now().await;
                }
                take(&driver, &format!("{task}/last"))
            })
        })
        .collect();
    let mut kept = Vec::new();
    for task in tasks {
        kept.push(task.await.unwrap());
    }
    assert_eq!(driver.owned.shared.waiting.load(Ordering::SeqCst), 0);
    assert_eq!(driver.live(), 64);
    drop(kept);
    assert_eq!(driver.live(), 0);
}
