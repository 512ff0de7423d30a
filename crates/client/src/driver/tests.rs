#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::task::{Wake, Waker};
use std::time::Duration;

use conclave_protocol::lock::Mode;

use super::*;

/// A client of nodes that nobody runs.
fn alone() -> Driver {
    let mut text = "name = \"alone\"\nepoch = 1\nquorum = \"majority\"\n".to_owned();
    for id in 1..=3 {
        let at = format!("127.0.0.1:{id}");
        let _ = writeln!(
            text,
            "[[nodes]]\nid = {id}\npeer = \"{at}\"\napi = \"http://{at}\""
        );
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
    // Whoever has the machine may still be at work on the last of them; nobody else asks for it.
    let waiting = || driver.owned.shared.waiting.load(Ordering::SeqCst);
    for _ in 0..30_000 {
        if waiting() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(waiting(), 0, "nobody looks after them any more");
    assert_eq!(driver.live(), 64);
    drop(kept);
    assert_eq!(driver.live(), 0);
}

/// Counts how often it wakes somebody.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_place_in_the_queue_wakes_only_those_who_want_to_hear_it() {
    let driver = alone();
    let wish = |name| Acquire::new(Name::new(name), Mode::Exclusive, Duration::from_secs(10));
    let loud = driver.begin(Work::Acquire(wish("a")));
    let quiet = driver.begin_quietly(Work::Acquire(wish("b")));
    for (mut job, times) in [(loud, 1), (quiet, 0)] {
        let woken = Arc::new(Count::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(job.poll_next(&mut cx).is_pending());
        let event = ClientEvent::Position(job.key, 3);
        driver.owned.shared.with(|core| core.tell(job.key, event));
        assert_eq!(woken.0.load(Ordering::SeqCst), times);
        // Whoever looks for another reason finds it.
        let told = job.try_next();
        assert!(matches!(told, Some(ClientEvent::Position(_, 3))));
    }
}
