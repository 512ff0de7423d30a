//! A watchdog sees whether the threads of a node go on.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{in_time, plan, until_state};
use conclave_node::store::Memory;
use conclave_node::store::faulty::{Faults, Faulty};
use conclave_node::{Node, Pulse};

/// Long enough for a pulse that comes; one that does not never comes.
const WHILE: Duration = Duration::from_millis(300);

/// Lets the disk go on at the end, also of a test that fails: a node that ends waits for it.
struct Opens(Faults);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

async fn hangs(pulse: &Pulse) -> bool {
    tokio::time::timeout(WHILE, pulse.beat()).await.is_err()
}

#[tokio::test]
async fn a_node_that_serves_has_a_pulse_and_one_that_ended_has_none() {
    let mut plan = plan(1);
    let node = plan.start_on(1, Memory::default());
    until_state(&node, "serving").await;
    let pulse = node.pulse();
    assert!(in_time("a pulse", pulse.beat()).await);
    node.drain_and_stop();
    in_time("its end", node.wait()).await.unwrap();
    assert!(!in_time("no pulse", pulse.beat()).await);
}

#[tokio::test]
async fn a_journal_that_hangs_stops_the_pulse() {
    let mut plan = plan(1);
    let (store, faults) = Faulty::new(Memory::default());
    let node = plan.start_on(1, store);
    until_state(&node, "serving").await;
    let pulse = node.pulse();
    assert!(in_time("a pulse", pulse.beat()).await);
    let _opens = Opens(faults.clone());
    faults.hold();
    // A lock makes it write.
    let api = node.api_addr();
    let head = format!("POST /v1/locks/a/acquire HTTP/1.1\r\nhost: {api}");
    let mut caller = std::net::TcpStream::connect(api).unwrap();
    write!(caller, "{head}\r\ncontent-length: 2\r\n\r\n{{}}").unwrap();
    let mut beats = 0;
    while !hangs(&pulse).await {
        beats += 1;
        assert!(beats < 600, "the journal hangs, and the pulse goes on");
        // The call may not have reached the node yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    faults.let_go();
    assert!(in_time("a pulse", pulse.beat()).await);
}

/// A clock at which threads of this name stop while it is told.
struct Trap {
    name: &'static str,
    set: AtomicBool,
    held: Mutex<bool>,
    open: Condvar,
}

impl Trap {
    fn pass(&self) {
        let here = std::thread::current();
        let caught = here.name().is_some_and(|name| name.starts_with(self.name));
        if caught && self.set.load(Ordering::SeqCst) {
            let mut held = self.held.lock().unwrap();
            while *held {
                held = self.open.wait(held).unwrap();
            }
        }
    }

    fn close(&self) {
        *self.held.lock().unwrap() = true;
        self.set.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.set.store(false, Ordering::SeqCst);
        *self.held.lock().unwrap() = false;
        self.open.notify_all();
    }
}

/// Opens the trap also when a test fails.
struct Release(Arc<Trap>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[tokio::test]
async fn a_thread_that_hangs_stops_the_pulse() {
    for name in ["shard", "keeper"] {
        let mut plan = plan(1);
        let trap = Arc::new(Trap {
            name,
            set: AtomicBool::new(false),
            held: Mutex::new(false),
            open: Condvar::new(),
        });
        let options = plan.options(1, Path::new("unused"));
        let at = trap.clone();
        let clock = Arc::new(move || {
            at.pass();
            conclave_client::clock::now()
        });
        let node = Node::start_on(options, Box::new(Memory::default()), clock).unwrap();
        until_state(&node, "serving").await;
        let pulse = node.pulse();
        assert!(in_time("a pulse", pulse.beat()).await);
        let release = Release(trap.clone());
        trap.close();
        // It may have answered before it came to the clock.
        let mut beats = 0;
        while !hangs(&pulse).await {
            beats += 1;
            assert!(beats < 600, "{name} hangs, and the pulse goes on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(release);
        assert!(in_time("a pulse", pulse.beat()).await, "{name}");
    }
}
