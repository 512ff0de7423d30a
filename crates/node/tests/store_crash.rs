//! What was confirmed survives a kill at any moment and a full disk.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod store_support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use conclave_node::store::StoreError;
use conclave_protocol::lock::Stored;
use rustix::process::{Pid, Signal, kill_process};
use store_support::{Dice, contents, copy_dir, open_here, quick_dir, records, sum_of_first};

/// Names the directory when this program runs as a child of one of its tests.
const CHILD: &str = "CONCLAVE_TEST_STORE_CHILD";
/// Records in one write of the crash tests: enough to fill journals quickly.
const BATCH: u64 = 40;

fn batch(number: u64) -> std::ops::Range<u64> {
    number * BATCH..(number + 1) * BATCH
}

/// How many batches this is the sum of, if it is at least `confirmed`.
fn batches_in(stored: Option<&Stored>, confirmed: u64) -> Option<u64> {
    // Every batch has a ceiling.
    let count = match stored {
        Some(stored) => stored.ceiling.0 / BATCH + 1,
        None => 0,
    };
    (count >= confirmed && stored == sum_of_first(count * BATCH).as_ref()).then_some(count)
}

/// Stops or continues a child; returns when it has stopped.
fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    let stopped = || {
        let stat = fs::read_to_string(&stat).unwrap();
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned());
        state.is_some_and(|state| state.starts_with(" T"))
    };
    while signal == Signal::STOP && !stopped() {
        thread::yield_now();
    }
}

#[test]
fn images_of_a_running_store_hold_all_that_was_confirmed() {
    let root = quick_dir();
    let (path, copy) = (root.path().join("data"), root.path().join("copy"));
    let mut child = spawn_child(&path);
    let confirmed = Arc::new(AtomicU64::new(0));
    let reader = thread::spawn({
        let confirmed = confirmed.clone();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        move || {
            for count in lines
                .map_while(|line| Some(confirmed_in(&line.ok()?)))
                .flatten()
            {
                confirmed.store(count, Ordering::SeqCst);
            }
        }
    });
    let mut dice = Dice(3);
    for number in 0..20 {
        let before = confirmed.load(Ordering::SeqCst);
        while confirmed.load(Ordering::SeqCst) == before {
            thread::sleep(Duration::from_millis(1));
        }
        (0..dice.roll(200_000)).for_each(|_| std::hint::spin_loop());
        let before = confirmed.load(Ordering::SeqCst);
        // A stopped process leaves on disk what a killed one would.
        signal(&child, Signal::STOP);
        copy_dir(&path, &copy);
        signal(&child, Signal::CONT);
        let stored = contents(&copy).unwrap_or_else(|error| panic!("image {number}: {error}"));
        let count = batches_in(stored.as_ref(), before);
        assert!(
            count.is_some(),
            "image {number} does not hold the first {before}"
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
}

/// Not a test of its own: what the children of the tests below run.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let mut store = open_here(Path::new(&path)).unwrap();
    let stored = store.load().unwrap();
    let first = batches_in(stored.as_ref(), 0).expect("a whole number of batches");
    println!("confirmed {first}");
    for number in first.. {
        if let Err(error) = store.write(&records(batch(number))) {
            assert!(matches!(error, StoreError::Write { .. }), "{error}");
            assert_eq!(
                store.write(&records(0..1)),
                Err(error.clone()),
                "it stays failed"
            );
            println!("failed {error}");
            return;
        }
        println!("confirmed {}", number + 1);
        std::io::stdout().flush().unwrap();
    }
}

/// A command that runs [`child`].
fn child_command(path: &Path) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "{CHILD}='{}' exec '{}' --exact child --nocapture",
        path.display(),
        program.display()
    )
}

fn spawn_child(path: &Path) -> Child {
    Command::new("sh")
        .args(["-c", &child_command(path)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn confirmed_in(line: &str) -> Option<u64> {
    line.rsplit_once("confirmed ")?.1.trim().parse().ok()
}

#[test]
fn a_killed_process_loses_nothing_it_confirmed() {
    let root = quick_dir();
    let path = root.path().join("data");
    let mut total = 0;
    for lines in [1, 3, 50, 200, 7] {
        let mut child = spawn_child(&path);
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut confirmed = 0;
        for _ in 0..lines {
            let line = out.by_ref().find_map(|line| confirmed_in(&line.unwrap()));
            confirmed = line.expect("the child writes until it is killed");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = out.filter_map(|line| confirmed_in(&line.ok()?)).last();
        confirmed = rest.unwrap_or(confirmed);
        assert!(confirmed >= total, "{confirmed} after {total}");
        let stored = contents(&path).unwrap();
        total = batches_in(stored.as_ref(), confirmed).expect("all that was confirmed");
    }
    assert!(total > 200);
}

/// Runs the child until its disk fails and gives what it confirmed, none if `script` cannot run.
fn fill(script: &str) -> Option<u64> {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("cannot limit") {
        return None;
    }
    assert!(text.contains("failed cannot write to"), "{output:?}");
    text.lines().filter_map(confirmed_in).max()
}

#[test]
fn a_file_that_may_not_grow_stops_the_store_and_loses_nothing() {
    let root = quick_dir();
    let path = root.path().join("data");
    // Room for the first journal and not for the next, larger one.
    let script = format!(
        "trap '' XFSZ; ulimit -f 6000 || {{ echo cannot limit; exit 0; }}; {}",
        child_command(&path)
    );
    let Some(confirmed) = fill(&script) else {
        eprintln!("skipped: this shell cannot limit the size of files");
        return;
    };
    assert!(confirmed > 10);
    let stored = contents(&path).unwrap();
    assert!(batches_in(stored.as_ref(), confirmed).is_some());
}

#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    let root = quick_dir();
    let mount = root.path().join("small");
    fs::create_dir(&mount).unwrap();
    let (path, out) = (mount.join("data"), root.path().join("out"));
    // A disk of its own, in a namespace of its own, that ends with the process; what it held is
    // copied out.
    let inner = format!(
        "mount -t tmpfs -o size=5m none '{0}' || {{ echo cannot limit; exit 0; }}\n\
         ( {1} )\ncp -r '{0}/data' '{2}'",
        mount.display(),
        child_command(&path),
        out.display()
    );
    fs::write(root.path().join("inner.sh"), inner).unwrap();
    let script = format!(
        "unshare --mount --map-root-user true 2>/dev/null || {{ echo cannot limit; exit 0; }}\n\
         exec unshare --mount --map-root-user sh '{}'",
        root.path().join("inner.sh").display()
    );
    let Some(confirmed) = fill(&script) else {
        eprintln!("skipped: making a small disk of its own is not permitted here");
        return;
    };
    assert!(confirmed > 10);
    let stored = contents(&out).unwrap();
    assert!(batches_in(stored.as_ref(), confirmed).is_some());
}
