//! Speed of the simulated world: events a second of a large lock run, with and without checkers,
//! of the seeds of a fuzz run and of the event queue alone.
//!
//! `cargo bench -p conclave-sim --bench world [-- PART]` runs the parts whose names contain PART.
//! Rates count the processor time of the one thread that works, so that a busy machine tells the
//! same as an idle one.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should stop"
)]

use std::time::Instant;

use conclave_protocol::lock::Protocol;
use conclave_quorum::Prng;
use conclave_sim::engine::Queue;
use conclave_sim::fact::True;
use conclave_sim::{Options, invariants, run, run_checked, swarm};

/// Processor time of this thread in seconds where the system tells, else time of day.
struct Stopwatch {
    wall: Instant,
    own: Option<f64>,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            wall: Instant::now(),
            own: own_seconds(),
        }
    }

    fn seconds(&self) -> f64 {
        let own = own_seconds().zip(self.own).map(|(now, then)| now - then);
        own.unwrap_or_else(|| self.wall.elapsed().as_secs_f64())
            .max(1e-9)
    }
}

fn own_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos as f64 / 1e9)
}

fn show(what: &str, events: u64, seconds: f64) {
    let rate = events as f64 / seconds / 1e6;
    println!("{what}: {events} events in {seconds:.2} s, {rate:.2} million a second");
}

/// A large world in which nothing fails; everybody wants the same few locks.
fn large(system: &str, exclusive: bool, names: u32, span_ms: u64) -> Options {
    Options {
        system: system.to_owned(),
        clients: 100,
        groups: 4,
        names,
        hot: 0.0,
        exclusive: if exclusive { 1.0 } else { 0.0 },
        shared: 0.0,
        hold_ms: 5,
        think_ms: 20,
        act_ms: 5,
        cancel: 0.0,
        deadline: 0.0,
        attempt: 0.0,
        together: 0.0,
        detach: 0.0,
        hedge_us: 50_000,
        heal_ms: 60_000,
        span_ms,
        ..Options::default()
    }
}

/// The best of three rounds: others share the machine's caches.
fn world(what: &str, options: &Options, watched: bool) {
    let mut best = (0, f64::MAX);
    for _ in 0..if watched { 1 } else { 3 } {
        let config = options.config(watched).unwrap();
        let mut checkers = if watched {
            invariants::all(&config)
        } else {
            Vec::new()
        };
        let watch = Stopwatch::start();
        let outcome = run(options, &mut checkers, None).unwrap();
        let seconds = watch.seconds();
        assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
        if seconds < best.1 {
            best = (outcome.events, seconds);
        }
    }
    show(what, best.0, best.1);
}

fn seeds(what: &str, protocol: Protocol) {
    let watch = Stopwatch::start();
    let mut events = 0;
    for seed in 1..=300 {
        events += run_checked(&swarm(protocol, seed, None)).unwrap().events;
    }
    show(what, events, watch.seconds());
}

/// As many events under way as a large run has, each followed by another.
fn queue() {
    let (waiting, events) = (20_000, 10_000_000);
    let mut queue = Queue::new();
    let mut rng = Prng::new(1);
    for _ in 0..waiting {
        queue.push(True(rng.below(1_000_000) as u64), [0_u64; 8]);
    }
    let watch = Stopwatch::start();
    for _ in 0..events {
        let (at, event) = queue.pop().unwrap();
        queue.push(True(at.0 + rng.below(1_000_000) as u64), event);
    }
    show("queue alone", events, watch.seconds());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.find(|word| !word.starts_with('-'));
    let wanted = |part: &str| wanted.as_ref().is_none_or(|want| part.contains(want));
    for system in [
        "grid(1000)",
        "plane(993)",
        "billiard(1104)",
        "billiard(1000)",
    ] {
        for (mode, exclusive) in [("exclusive", true), ("groups", false)] {
            for names in [1, 4, 100] {
                for (checkers, watched) in [("off", false), ("on", true)] {
                    let part = format!("{system}, {mode}, {names} names, checkers {checkers}");
                    if wanted(&part) {
                        let span = if watched { 1000 } else { 2000 };
                        world(&part, &large(system, exclusive, names, span), watched);
                    }
                }
            }
        }
    }
    if wanted("seeds of lock") {
        seeds("300 seeds of lock", Protocol::Parallel);
    }
    if wanted("seeds of lock-serial") {
        seeds("300 seeds of lock-serial", Protocol::Serial);
    }
    if wanted("queue alone") {
        queue();
    }
}
