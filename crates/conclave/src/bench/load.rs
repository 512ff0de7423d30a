//! The loads: what the clients of a benchmark do, and the check that the locks exclude.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use conclave_client::{Client, Fence, Guard, Token};
use hdrhistogram::Histogram;

use crate::cli::Failure;

/// What clients contend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Load {
    /// Every client has locks of its own
    Uncontended,
    /// One exclusive lock for all
    Hot,
    /// Eight locks, four of five requests shared
    Mix,
    /// Eight locks, three groups
    Groups,
}

impl Load {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Hot => "hot",
            Self::Mix => "mix",
            Self::Groups => "groups",
        }
    }

    /// The lock and the company of a client's next cycle.
    fn wish(self, task: usize, cycle: u64, names: usize) -> (String, Company) {
        // A cheap mixer: which lock and group come next must not depend on speed.
        let dice = (cycle ^ (task as u64) << 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        match self {
            Self::Uncontended => {
                let own = cycle as usize % names.max(1);
                (format!("bench/u/{task}/{own}"), Company::Alone)
            }
            Self::Hot => ("bench/hot".to_owned(), Company::Alone),
            Self::Mix => {
                let company = if dice.is_multiple_of(5) {
                    Company::Alone
                } else {
                    Company::Readers
                };
                (format!("bench/m/{}", dice / 5 % 8), company)
            }
            Self::Groups => (format!("bench/g/{}", dice % 8), Company::Group(task % 3)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    Alone,
    Readers,
    Group(usize),
}

/// Who is inside each lock, as the clients of this process see it, and the resource's fence.
#[derive(Debug, Default)]
pub(super) struct Referee {
    locks: Mutex<HashMap<String, Inside>>,
    violations: AtomicU64,
}

#[derive(Debug, Default)]
struct Inside {
    company: Option<Company>,
    count: u32,
    fence: Fence,
}

impl Referee {
    fn enter(&self, name: &str, company: Company, guard: &Guard) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = locks.entry(name.to_owned()).or_default();
        let alone = inside.count == 0;
        let fits = alone || inside.company == Some(company) && company != Company::Alone;
        let admitted = inside.fence.admit(&guard.group(), Token(guard.token()));
        if !fits || !admitted {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
        inside.company = Some(company);
        inside.count += 1;
    }

    fn leave(&self, name: &str) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inside) = locks.get_mut(name) {
            inside.count = inside.count.saturating_sub(1);
        }
    }

    pub(super) fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }
}

/// How a load is driven.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    pub(super) load: Load,
    pub(super) tasks: usize,
    /// Names per client of the uncontended load.
    pub(super) names: usize,
    /// Cycles a second over all clients; none = each client as fast as it can.
    pub(super) rate: Option<f64>,
    pub(super) warm: Duration,
    pub(super) span: Duration,
}

/// What a run saw.
#[derive(Debug)]
pub(super) struct Seen {
    /// Cycles in the measured span.
    pub(super) cycles: u64,
    /// Acquire times in nanoseconds.
    pub(super) times: Histogram<u64>,
    /// The longest span in which no client acquired anything, in nanoseconds.
    pub(super) gap: u64,
    /// Acquisitions that ended in an error, and one of the errors.
    pub(super) errors: u64,
    pub(super) error: Option<String>,
}

struct Shared {
    drive: Drive,
    referee: Arc<Referee>,
    measuring: AtomicBool,
    stop: AtomicBool,
    start: Instant,
    /// When the last acquisition was, in nanoseconds since the start, and the longest gap.
    last: AtomicU64,
    gap: AtomicU64,
}

/// Runs a load over these clients: task i uses client i modulo their number.
pub(super) async fn run(
    clients: Vec<Client>,
    drive: Drive,
    referee: Arc<Referee>,
) -> Result<Seen, Failure> {
    let shared = Arc::new(Shared {
        referee,
        measuring: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        start: Instant::now(),
        last: AtomicU64::new(0),
        gap: AtomicU64::new(0),
        drive: drive.clone(),
    });
    let tasks: Vec<_> = (0..drive.tasks)
        .map(|task| {
            let client = clients[task % clients.len()].clone();
            tokio::spawn(work(client, task, shared.clone()))
        })
        .collect();
    tokio::time::sleep(drive.warm).await;
    let begin = nanos(shared.start.elapsed());
    shared.last.store(begin, Ordering::Relaxed);
    shared.gap.store(0, Ordering::Relaxed);
    shared.measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(drive.span).await;
    shared.measuring.store(false, Ordering::Relaxed);
    let end = nanos(shared.start.elapsed());
    shared.stop.store(true, Ordering::Relaxed);
    let mut seen = Seen {
        cycles: 0,
        times: super::histogram(),
        gap: 0,
        errors: 0,
        error: None,
    };
    for task in tasks {
        let one = task.await.map_err(Failure::input)?;
        seen.cycles += one.cycles;
        seen.errors += one.errors;
        seen.error = seen.error.or(one.error);
        seen.times.add(&one.times).map_err(Failure::input)?;
    }
    let last = shared.last.load(Ordering::Relaxed);
    let tail = end.saturating_sub(last);
    seen.gap = shared.gap.load(Ordering::Relaxed).max(tail);
    Ok(seen)
}

async fn work(client: Client, task: usize, shared: Arc<Shared>) -> Seen {
    let mut seen = Seen {
        cycles: 0,
        times: super::histogram(),
        gap: 0,
        errors: 0,
        error: None,
    };
    let drive = &shared.drive;
    // In an open loop each client has its own timetable, and a late start counts as waiting.
    let step = drive
        .rate
        .map(|rate| Duration::from_secs_f64(drive.tasks as f64 / rate));
    let mut due = shared.start
        + step
            .unwrap_or_default()
            .mul_f64(task as f64 / drive.tasks as f64);
    let mut cycle = 0_u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let before = match step {
            Some(step) => {
                tokio::time::sleep_until(due.into()).await;
                let planned = due;
                due += step;
                planned
            }
            None => Instant::now(),
        };
        let (name, company) = drive.load.wish(task, cycle, drive.names);
        cycle += 1;
        let lock = client.lock(&name);
        let lock = match company {
            Company::Alone => lock.exclusive(),
            Company::Readers => lock.shared(),
            Company::Group(group) => lock.group(["red", "green", "blue"][group % 3]),
        };
        let guard = match lock.acquire_timeout(Duration::from_secs(30)).await {
            Ok(guard) => guard,
            Err(error) => {
                seen.errors += 1;
                seen.error = Some(error.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let after = Instant::now();
        let contended = drive.load != Load::Uncontended;
        if contended {
            shared.referee.enter(&name, company, &guard);
        }
        note(&shared, after);
        if shared.measuring.load(Ordering::Relaxed) {
            seen.cycles += 1;
            let _ = seen
                .times
                .record(nanos(after.saturating_duration_since(before)));
        }
        if contended {
            shared.referee.leave(&name);
        }
        if guard.release().await.is_err() {
            seen.errors += 1;
            seen.error = Some("the lock was lost".to_owned());
        }
    }
    seen
}

fn note(shared: &Shared, at: Instant) {
    if shared.measuring.load(Ordering::Relaxed) {
        let at = nanos(at.saturating_duration_since(shared.start));
        let last = shared.last.swap(at, Ordering::Relaxed);
        shared
            .gap
            .fetch_max(at.saturating_sub(last), Ordering::Relaxed);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
