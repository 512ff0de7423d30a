//! The loads: what the clients of a benchmark do, and the check that the locks exclude.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use conclave_client::{Client, Fence, Group, Guard, Token};
use conclave_protocol::id::{RequestNo, SessionId};
use hdrhistogram::Histogram;
use tokio::task::JoinHandle;

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
    /// Uncontended, and a node is killed, then stopped (with --against)
    Kill,
}

impl Load {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Hot => "hot",
            Self::Mix => "mix",
            Self::Groups => "groups",
            Self::Kill => "kill",
        }
    }

    /// Whether clients may meet at a lock.
    fn contended(self) -> bool {
        !matches!(self, Self::Uncontended | Self::Kill)
    }

    /// The lock and the company of a client's next cycle.
    fn wish(self, task: usize, cycle: u64, drive: &Drive) -> (String, Company) {
        // A cheap mixer: which lock and group come next must not depend on speed.
        let dice = (cycle ^ (task as u64) << 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        match self {
            Self::Uncontended | Self::Kill => {
                let own = cycle as usize % drive.names.max(1);
                let name = format!("bench/u/{}", own * drive.tasks + task);
                (name, Company::Alone)
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

    /// Every name that clients of this load may use, for systems that want to know them before.
    pub(super) fn names(self, most: usize) -> Vec<String> {
        match self {
            Self::Uncontended | Self::Kill => (0..most).map(|n| format!("bench/u/{n}")).collect(),
            Self::Hot => vec!["bench/hot".to_owned()],
            Self::Mix => (0..8).map(|n| format!("bench/m/{n}")).collect(),
            Self::Groups => (0..8).map(|n| format!("bench/g/{n}")).collect(),
        }
    }
}

/// With whom a lock may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Alone,
    Readers,
    Group(usize),
}

/// What takes locks of a system under load, for one task or for all that share it.
pub(super) trait Taker: Clone + Send + Sync + 'static {
    /// A lock that is held.
    type Held: Send;

    /// Takes a lock; tells what was wrong if that takes too long or fails.
    fn acquire(
        &self,
        name: &str,
        company: Company,
    ) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Gives a lock back; returns when the system's own client would.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// The fencing token, where the system has one.
    fn token(held: &Self::Held) -> Option<u64>;

    /// The company that the system really lets in where this one was asked for.
    fn company(wanted: Company) -> Company {
        wanted
    }
}

/// Conclave's own client.
#[derive(Clone, Debug)]
pub(super) struct Conclave {
    pub(super) client: Client,
    /// How long an acquisition may take.
    pub(super) patience: Duration,
}

impl Taker for Conclave {
    type Held = Guard;

    async fn acquire(&self, name: &str, company: Company) -> Result<Guard, String> {
        let lock = self.client.lock(name);
        let lock = match company {
            Company::Alone => lock.exclusive(),
            Company::Readers => lock.shared(),
            Company::Group(group) => lock.group(["red", "green", "blue"][group % 3]),
        };
        let guard = lock.acquire_timeout(self.patience).await;
        guard.map_err(|error| error.to_string())
    }

    async fn release(&self, guard: Guard) -> Result<(), String> {
        let lost = guard.release().await;
        lost.map_err(|_| "the lock was lost".to_owned())
    }

    fn token(guard: &Guard) -> Option<u64> {
        Some(guard.token())
    }
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
    /// How many were inside so far: those who are alone are told apart by it.
    entered: u64,
    fence: Fence,
}

impl Referee {
    fn enter(&self, name: &str, company: Company, token: Option<u64>) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = locks.entry(name.to_owned()).or_default();
        let alone = inside.count == 0;
        let fits = alone || inside.company == Some(company) && company != Company::Alone;
        inside.entered += 1;
        let group = match company {
            Company::Alone => Group::Request(SessionId::default(), RequestNo(inside.entered)),
            Company::Readers => Group::Shared,
            Company::Group(group) => Group::Named(Arc::from([group as u8])),
        };
        let admitted = token.is_none_or(|token| inside.fence.admit(&group, Token(token)));
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
    /// The longest time that a client was without a lock which it wanted, over failed attempts.
    pub(super) longest: u64,
    /// Acquisitions that ended in an error, and one of the errors.
    pub(super) errors: u64,
    pub(super) error: Option<String>,
}

impl Seen {
    fn new() -> Self {
        Self {
            cycles: 0,
            times: super::histogram(),
            gap: 0,
            longest: 0,
            errors: 0,
            error: None,
        }
    }
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

/// A load that runs.
pub(super) struct Running {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<Seen>>,
}

impl Running {
    /// Sets the tasks off: task i uses taker i modulo their number.
    pub(super) fn start<T: Taker>(takers: &[T], drive: Drive, referee: Arc<Referee>) -> Self {
        let shared = Arc::new(Shared {
            referee,
            measuring: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            start: Instant::now(),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
            drive,
        });
        let tasks = (0..shared.drive.tasks).map(|task| {
            let taker = takers[task % takers.len()].clone();
            tokio::spawn(work(taker, task, shared.clone()))
        });
        Self {
            tasks: tasks.collect(),
            shared,
        }
    }

    /// From now on everything counts.
    pub(super) fn measure(&self) {
        let begin = nanos(self.shared.start.elapsed());
        self.shared.last.store(begin, Ordering::Relaxed);
        self.shared.gap.store(0, Ordering::Relaxed);
        self.shared.measuring.store(true, Ordering::Relaxed);
    }

    /// How long nobody has acquired anything.
    pub(super) fn idle(&self) -> Duration {
        let last = Duration::from_nanos(self.shared.last.load(Ordering::Relaxed));
        self.shared.start.elapsed().saturating_sub(last)
    }

    /// From now on nothing counts; the load goes on.
    pub(super) fn rest(&self) {
        if self.shared.measuring.swap(false, Ordering::Relaxed) {
            let end = nanos(self.shared.start.elapsed());
            let last = self.shared.last.load(Ordering::Relaxed);
            let tail = end.saturating_sub(last);
            self.shared.gap.fetch_max(tail, Ordering::Relaxed);
        }
    }

    /// Ends the load and tells what was seen.
    pub(super) async fn finish(mut self) -> Result<Seen, Failure> {
        self.rest();
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut seen = Seen::new();
        for task in std::mem::take(&mut self.tasks) {
            let one = task.await.map_err(Failure::input)?;
            seen.cycles += one.cycles;
            seen.longest = seen.longest.max(one.longest);
            seen.errors += one.errors;
            seen.error = seen.error.or(one.error);
            seen.times.add(&one.times).map_err(Failure::input)?;
        }
        seen.gap = self.shared.gap.load(Ordering::Relaxed);
        Ok(seen)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Runs a load over these takers for its time.
pub(super) async fn run<T: Taker>(
    takers: Vec<T>,
    drive: Drive,
    referee: Arc<Referee>,
) -> Result<Seen, Failure> {
    let (warm, span) = (drive.warm, drive.span);
    let running = Running::start(&takers, drive, referee);
    tokio::time::sleep(warm).await;
    running.measure();
    tokio::time::sleep(span).await;
    running.finish().await
}

async fn work<T: Taker>(taker: T, task: usize, shared: Arc<Shared>) -> Seen {
    let mut seen = Seen::new();
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
    let contended = drive.load.contended();
    let mut without: Option<Instant> = None;
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
        let (name, company) = drive.load.wish(task, cycle, drive);
        cycle += 1;
        let held = match taker.acquire(&name, company).await {
            Ok(held) => held,
            Err(error) => {
                seen.errors += 1;
                seen.error = Some(error);
                without.get_or_insert(before);
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let after = Instant::now();
        if contended {
            let company = T::company(company);
            shared.referee.enter(&name, company, T::token(&held));
            // Whoever else is wrongly inside shall have the chance to be seen.
            tokio::task::yield_now().await;
        }
        note(&shared, after);
        let since = without.take().unwrap_or(before);
        if shared.measuring.load(Ordering::Relaxed) {
            seen.cycles += 1;
            let waited = nanos(after.saturating_duration_since(since));
            seen.longest = seen.longest.max(waited);
            let took = nanos(after.saturating_duration_since(before));
            let _ = seen.times.record(took);
        }
        if contended {
            shared.referee.leave(&name);
        }
        if let Err(error) = taker.release(held).await {
            seen.errors += 1;
            seen.error = Some(error);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets everybody in, with a token that does not grow, or with none.
    #[derive(Clone)]
    struct Open {
        token: Option<u64>,
    }

    impl Taker for Open {
        type Held = Option<u64>;

        async fn acquire(&self, _: &str, _: Company) -> Result<Option<u64>, String> {
            tokio::task::yield_now().await;
            Ok(self.token)
        }

        async fn release(&self, _: Option<u64>) -> Result<(), String> {
            Ok(())
        }

        fn token(held: &Option<u64>) -> Option<u64> {
            *held
        }
    }

    fn drive(load: Load, tasks: usize) -> Drive {
        Drive {
            load,
            tasks,
            names: 10,
            rate: None,
            warm: Duration::from_millis(1),
            span: Duration::from_millis(30),
        }
    }

    #[test]
    fn a_lock_that_lets_two_in_is_found() {
        let referee = Referee::default();
        referee.enter("a", Company::Readers, None);
        referee.enter("a", Company::Readers, None);
        referee.enter("b", Company::Group(1), None);
        assert_eq!(referee.violations(), 0);
        referee.enter("a", Company::Alone, None);
        assert_eq!(referee.violations(), 1);
        referee.enter("b", Company::Group(2), None);
        assert_eq!(referee.violations(), 2);
        referee.leave("c");
        referee.enter("c", Company::Alone, None);
        referee.leave("c");
        referee.enter("c", Company::Alone, None);
        assert_eq!(referee.violations(), 2);
    }

    #[test]
    fn a_token_that_goes_back_is_found() {
        let referee = Referee::default();
        let enter = |company, token| {
            referee.enter("a", company, Some(token));
            referee.leave("a");
            referee.violations()
        };
        assert_eq!(enter(Company::Alone, 5), 0);
        assert_eq!(enter(Company::Readers, 6), 0);
        assert_eq!(enter(Company::Readers, 6), 0, "readers may share one");
        assert_eq!(enter(Company::Alone, 6), 1, "an exclusive holder may not");
    }

    #[test]
    fn names_are_told_before_they_are_used() {
        for load in [Load::Uncontended, Load::Hot, Load::Mix, Load::Groups] {
            let drive = drive(load, 7);
            let names = load.names(drive.names * drive.tasks);
            for (task, cycle) in (0..7).flat_map(|task| (0..40).map(move |cycle| (task, cycle))) {
                let (name, _) = load.wish(task, cycle, &drive);
                assert!(names.contains(&name), "{name}");
            }
        }
    }

    #[tokio::test]
    async fn a_run_tells_what_its_taker_does_wrong() {
        for token in [None, Some(1)] {
            let referee = Arc::new(Referee::default());
            let taker = vec![Open { token }];
            let seen = run(taker, drive(Load::Hot, 4), referee.clone()).await;
            let seen = seen.unwrap_or_else(|_| panic!("the run ends"));
            assert!(seen.cycles > 0 && seen.errors == 0);
            assert!(referee.violations() > 0, "{token:?}");
        }
    }
}
