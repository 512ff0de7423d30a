//! `conclave lock`: runs a command while it holds a lock.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use clap::Args;
use conclave_client::{AcquireError, Client, Guard, GuardSet, Mode, Request, SlotGuard, clock};
use conclave_protocol::Instant as Steady;
use conclave_wire::Span;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::ending::{ended, ending};
use super::find::{Endpoints, Target, not_connected};
use super::forward::Signals;
use super::place::shown;
use super::signals::code_of_signal;
use super::{look, runtime};
use crate::cli::Failure;

/// How often the time that is left is looked at, at least: timers stand still while a machine
/// sleeps, the lock does not.
const LOOK: Duration = Duration::from_millis(250);

/// When a wait is explained first, and how often afterwards.
const WAIT_TOLD: Duration = Duration::from_secs(1);
const WAIT_TOLD_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Lock {
    /// The lock
    pub(super) name: OsString,
    /// Hold this lock too: all or none
    #[arg(long, value_name = "OTHER")]
    pub(super) and: Vec<OsString>,
    /// Take any one of so many slots of this name: at most so many hold it at once; all callers
    /// must give the same number
    #[arg(long, value_name = "K", conflicts_with_all = ["shared", "group", "and"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) slots: Option<u32>,
    /// Share it with other readers
    #[arg(long, conflicts_with = "group")]
    pub(super) shared: bool,
    /// Share it with everybody who asks for this group
    #[arg(long, value_name = "G")]
    pub(super) group: Option<OsString>,
    /// How long the lock outlives us if we vanish
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(super) ttl: Span,
    /// Wait at most so long; without it, and without --try, as long as it takes
    #[arg(long, value_name = "SPAN", conflicts_with = "try_only")]
    pub(super) wait: Option<Span>,
    /// Do not wait
    #[arg(long = "try")]
    pub(super) try_only: bool,
    #[command(flatten)]
    pub(super) endpoints: Endpoints,
    /// Say what is waited for even if nobody seems to watch
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Print a line of JSON to standard error at the end (standard output is the command's)
    #[arg(long)]
    pub(super) json: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
    /// What others may read about the holder
    #[arg(skip)]
    pub(super) value: Option<Vec<u8>>,
    /// Take one of so many slots instead
    #[arg(skip)]
    pub(super) latch: Option<u32>,
}

/// What came of it, for the line of JSON.
#[derive(Debug, Default)]
struct Report {
    token: Option<u64>,
    slot: Option<u32>,
    group: Option<String>,
    waited: Duration,
    held: Option<Duration>,
}

impl Lock {
    /// An exclusive lock as other commands take it.
    pub(super) fn plain(name: OsString, endpoints: Endpoints, command: Vec<OsString>) -> Self {
        Self {
            name,
            and: Vec::new(),
            slots: None,
            shared: false,
            group: None,
            ttl: Span(Duration::from_secs(10)),
            wait: None,
            try_only: false,
            endpoints,
            verbose: false,
            json: false,
            command,
            value: None,
            latch: None,
        }
    }

    pub(crate) fn run(&self) -> Result<(), Failure> {
        let target = self.endpoints.find()?;
        let mut report = Report::default();
        let result = runtime()?.block_on(self.take(&target, &mut report));
        if !self.json {
            return result;
        }
        let Some((outcome, code, message)) = ending(&result) else {
            return result;
        };
        let line = json!({
            "lock": self.name.to_string_lossy(),
            "outcome": outcome,
            "token": report.token,
            "slot": report.slot,
            "group": report.group,
            "waited_ms": millis(report.waited),
            "held_ms": report.held.map(millis),
            "exit": code,
            "message": message,
        });
        anstream::eprintln!("{line}");
        ended(code)
    }

    /// What is held, in words.
    fn shown(&self) -> String {
        let mut names = shown(&self.name.to_string_lossy());
        for other in &self.and {
            names.push_str("' and '");
            names.push_str(&shown(&other.to_string_lossy()));
        }
        names
    }

    /// Whether somebody wants to know what is waited for.
    fn talks(&self) -> bool {
        !self.json && (self.verbose || std::io::stderr().is_terminal())
    }

    async fn take(&self, target: &Target, report: &mut Report) -> Result<(), Failure> {
        let mut signals = Signals::new()?;
        let begun = Instant::now();
        let interrupted = |signal: Signal| Failure::Exit(code_of_signal(signal.as_raw()));
        let client = tokio::select! {
            client = target.client() => client,
            signal = signals.stop() => return Err(interrupted(signal)),
        };
        let client = client.map_err(|error| not_connected(&error))?;
        let acquired = tokio::select! {
            acquired = self.acquire(&client) => acquired,
            never = self.tell_wait(target) => never,
            signal = signals.stop() => Err(interrupted(signal)),
        };
        report.waited = begun.elapsed();
        let result = match acquired {
            Ok(guard) => {
                report.token = Some(guard.token());
                report.slot = guard.slot();
                report.group = guard.group();
                let begun = Instant::now();
                let result = self.hold(guard, &mut signals).await;
                report.held = Some(begun.elapsed());
                result
            }
            Err(failure) => Err(failure),
        };
        // What was queued for the nodes must leave before this process does.
        client.close().await;
        result
    }

    fn mode(&self) -> Mode {
        match &self.group {
            Some(group) => Mode::group(group.as_bytes()),
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    async fn acquire(&self, client: &Client) -> Result<Held, Failure> {
        let own = self.name.as_bytes();
        if let Some(count) = self.latch {
            return self.count(client, count).await.map(Held::One);
        }
        let acquired = if let Some(slots) = self.slots {
            self.wait_for(client.semaphore(own, slots))
                .await
                .map(Held::Slot)
        } else if self.and.is_empty() {
            let mut request = client.lock(own).mode(self.mode());
            if let Some(value) = &self.value {
                request = request.note(value);
            }
            self.wait_for(request).await.map(Held::One)
        } else {
            let others = self.and.iter().map(|name| name.as_bytes());
            let request = client.lock_all(std::iter::once(own).chain(others));
            let taken = self.wait_for(request.mode(self.mode())).await;
            taken.map(|set| Held::Set(set, self.name.clone()))
        };
        let name = self.shown();
        acquired.map_err(|error| match error {
            AcquireError::TimedOut { .. } if self.try_only => {
                Failure::NotAcquired(format!("'{name}' is held by somebody else"))
            }
            AcquireError::TimedOut { .. } => Failure::NotAcquired(format!("'{name}': {error}")),
            AcquireError::NoQuorum { .. } => Failure::NoQuorum(error.to_string()),
            error => Failure::Input(format!("'{name}': {error}")),
        })
    }

    /// Waits as long as was said.
    async fn wait_for<G>(&self, request: Request<G>) -> Result<G, AcquireError> {
        let mut request = request.ttl(self.ttl.0);
        if self.talks() {
            let name = self.shown();
            request = request.on_position(move |place| {
                anstream::eprintln!("waiting for '{name}': {place} before us");
            });
        }
        if self.try_only {
            let tried = request.try_acquire().await;
            tried.and_then(|guard| guard.ok_or(AcquireError::TimedOut { position: None }))
        } else if let Some(wait) = self.wait {
            request.acquire_timeout(wait.0).await
        } else {
            request.acquire().await
        }
    }

    /// Says who is in the way while it waits; it never ends.
    async fn tell_wait(&self, target: &Target) -> Result<Held, Failure> {
        if self.talks() {
            let mut pause = WAIT_TOLD;
            loop {
                tokio::time::sleep(pause).await;
                for line in self.in_the_way(target).await {
                    anstream::eprintln!("{line}");
                }
                pause = WAIT_TOLD_AGAIN;
            }
        }
        std::future::pending().await
    }

    async fn in_the_way(&self, target: &Target) -> Vec<String> {
        let me = conclave_client::default_owner();
        let mut lines = Vec::new();
        if let Some(slots) = self.slots {
            let path = look::slots_path(self.name.as_bytes());
            if let Ok(told) = look::ask(target, &path).await {
                let locks = look::list(&told["locks"]).iter();
                let held = locks.filter(|lock| !look::list(&lock["holders"]).is_empty());
                let name = self.shown();
                lines.push(format!(
                    "'{name}': {} of {slots} slots are held",
                    held.count()
                ));
            }
            return lines;
        }
        for name in std::iter::once(&self.name).chain(&self.and) {
            let path = look::lock_path(name.as_bytes());
            let Ok(told) = look::ask(target, &path).await else {
                continue;
            };
            let mut waiters = look::list(&told["waiters"]).iter();
            let Some(mine) = waiters.find(|waiter| waiter["owner"] == me.as_str()) else {
                continue;
            };
            let name = shown(&name.to_string_lossy());
            let why = look::text(&mine["why"]["text"]);
            let holder = look::list(&told["holders"]).first();
            let since = holder.and_then(|holder| holder["held_ms"].as_u64());
            let since = since.map_or(String::new(), |held| {
                format!(", for {}", look::span_text(held))
            });
            lines.push(format!("'{name}': {why}{since}"));
        }
        lines
    }

    /// Takes one of the slots of a latch.
    async fn count(&self, client: &Client, count: u32) -> Result<Guard, Failure> {
        let mut latch = client.latch(self.name.as_bytes(), count).ttl(self.ttl.0);
        if let Some(wait) = self.wait {
            latch = latch.timeout(wait.0);
        }
        let counted = latch.count_down().await;
        counted.map_err(|error| super::together::failure(&self.name, &error))
    }

    /// Runs the command, and sees to it that it does not outlive the lock.
    async fn hold(&self, guard: Held, signals: &mut Signals) -> Result<(), Failure> {
        let mut child = self.start(&guard, signals.apart())?;
        let mut lost = guard.lost();
        let mut watch = Watch::default();
        let status = loop {
            if let Some(signal) = watch.look(clock::now().mono, guard.valid_for()) {
                signals.send(&child, signal);
                continue;
            }
            let pause = watch.pause(clock::now().mono, guard.valid_for());
            tokio::select! {
                biased;
                () = &mut lost, if !watch.lost => watch.lost = true,
                status = child.wait() => break status?,
                signal = signals.next() => signals.pass(&child, signal),
                () = tokio::time::sleep(pause) => {}
            }
        };
        let name = self.shown();
        let how = super::members::ended(status);
        let kept = guard.release().await;
        if watch.told {
            return Err(Failure::Lost(format!(
                "'{name}' was lost; the command was told to end: {how}"
            )));
        }
        if !kept {
            return Err(Failure::Lost(format!(
                "'{name}' was lost as the command ended: {how}"
            )));
        }
        match code(status) {
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    fn start(&self, guard: &Held, apart: bool) -> Result<Child, Failure> {
        let binary = std::env::current_exe()?;
        let mut command = Command::new(binary);
        command
            .args(["exec-guarded", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--")
            .args(&self.command)
            .env("CONCLAVE_LOCK", &self.name)
            .env("CONCLAVE_TOKEN", guard.token().to_string())
            .env("CONCLAVE_GROUP", guard.group().unwrap_or_default());
        if let Some(slot) = guard.slot() {
            command.env("CONCLAVE_SLOT", slot.to_string());
        }
        if let Held::Set(set, _) = &guard {
            // Names may hold anything but a zero byte; lines keep them apart well enough.
            let names = set.names();
            let tokens = names.iter().map(|name| set.token(name.bytes()));
            let tokens = tokens.map(|token| token.unwrap_or_default().to_string());
            let lines = names
                .iter()
                .map(conclave_client::Name::bytes)
                .collect::<Vec<_>>();
            command
                .env("CONCLAVE_LOCKS", OsStr::from_bytes(&lines.join(&b'\n')))
                .env("CONCLAVE_TOKENS", tokens.collect::<Vec<_>>().join("\n"));
        }
        if apart {
            command.process_group(0);
        }
        let started = command.spawn();
        started.map_err(|error| Failure::Failed(format!("cannot start the command: {error}")))
    }
}

/// What was taken.
#[derive(Debug)]
enum Held {
    One(Guard),
    Slot(SlotGuard),
    /// Several, and which of them was named first.
    Set(GuardSet, OsString),
}

impl Held {
    /// The token of the lock that was named first.
    fn token(&self) -> u64 {
        match self {
            Self::One(guard) => guard.token(),
            Self::Slot(guard) => guard.token(),
            Self::Set(set, first) => set.token(first.as_bytes()).unwrap_or_default(),
        }
    }

    fn slot(&self) -> Option<u32> {
        match self {
            Self::Slot(guard) => Some(guard.slot()),
            Self::One(_) | Self::Set(..) => None,
        }
    }

    fn group(&self) -> Option<String> {
        let group = match self {
            Self::One(guard) => Some(guard.group()),
            Self::Slot(guard) => Some(guard.group()),
            Self::Set(set, first) => set.group(first.as_bytes()),
        };
        group.map(|group| group.to_string())
    }

    fn valid_for(&self) -> Duration {
        match self {
            Self::One(guard) => guard.valid_for(),
            Self::Slot(guard) => guard.valid_for(),
            Self::Set(set, _) => set.valid_for(),
        }
    }

    /// Ends when it is lost; it borrows nothing.
    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Self::One(guard) => Box::pin(guard.lost()),
            Self::Slot(guard) => Box::pin(guard.lost()),
            Self::Set(set, _) => Box::pin(set.lost()),
        }
    }

    /// Releases; false if it had been lost before.
    async fn release(self) -> bool {
        match self {
            Self::One(guard) => guard.release().await.is_ok(),
            Self::Slot(guard) => guard.release().await.is_ok(),
            Self::Set(set, _) => set.release().await.is_ok(),
        }
    }
}

/// When the command is told that the lock is going, and when it is killed.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// How long it has between being told and being killed: a fifth of the longest time that was
    /// left. A hold that the nodes have not all heard of counts from one heartbeat to the next; it
    /// gets its whole TTL only afterwards.
    grace: Duration,
    /// The lock is lost.
    pub(super) lost: bool,
    /// The command was told.
    pub(super) told: bool,
    killed: bool,
    /// The latest that the lock may be ours, as last known, by a clock that never stands still.
    deadline: Steady,
}

impl Watch {
    /// What to send to the command now, `left` before the lock may be another's.
    pub(super) fn look(&mut self, now: Steady, left: Duration) -> Option<Signal> {
        if !self.lost {
            self.deadline = now + left;
            self.grace = self.grace.max(left / 5);
        }
        if !self.told && (self.lost || left <= self.grace) {
            self.told = true;
            // Whoever is told before the time must not take all of it: others may be inside.
            self.deadline = self.deadline.min(now + self.grace);
            return Some(Signal::TERM);
        }
        if self.lost && !self.killed && now >= self.deadline {
            self.killed = true;
            return Some(Signal::KILL);
        }
        None
    }

    /// How long nothing needs to be looked at.
    pub(super) fn pause(&self, now: Steady, left: Duration) -> Duration {
        let until = if self.lost {
            self.deadline.since(now)
        } else if self.told {
            left
        } else {
            left.saturating_sub(self.grace)
        };
        until.clamp(Duration::from_millis(1), LOOK)
    }
}

pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(255),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => 255,
    }
}

pub(super) fn millis(span: Duration) -> Value {
    Value::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Steady {
        Steady::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_command_is_told_when_renewal_fails_and_killed_when_the_lock_is_lost() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), TTL), None);
        assert_eq!(watch.look(at(7999), Duration::from_millis(2001)), None);
        assert_eq!(watch.look(at(8000), 2 * SECOND), Some(Signal::TERM));
        assert_eq!(watch.look(at(9000), SECOND), None, "it is told once");
        assert_eq!(watch.look(at(10_000), Duration::ZERO), None, "not lost yet");
        watch.lost = true;
        assert_eq!(watch.look(at(10_000), Duration::ZERO), Some(Signal::KILL));
        assert_eq!(watch.look(at(10_001), Duration::ZERO), None);
    }

    #[test]
    fn the_command_is_told_at_once_when_the_lock_is_lost_before_its_time() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), TTL), None);
        watch.lost = true;
        assert_eq!(watch.look(at(1000), Duration::ZERO), Some(Signal::TERM));
        assert_eq!(watch.look(at(2999), Duration::ZERO), None, "it has a grace");
        assert_eq!(watch.look(at(3000), Duration::ZERO), Some(Signal::KILL));
    }

    #[test]
    fn a_command_that_slept_past_the_deadline_is_killed_right_after_it_is_told() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), TTL), None);
        watch.lost = true;
        assert_eq!(watch.look(at(60_000), Duration::ZERO), Some(Signal::TERM));
        assert_eq!(watch.look(at(60_001), Duration::ZERO), Some(Signal::KILL));
    }

    #[test]
    fn a_young_hold_counts_from_heartbeat_to_heartbeat() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), SECOND), None);
        assert_eq!(watch.look(at(250), Duration::from_millis(750)), None);
        assert_eq!(watch.look(at(300), TTL), None, "all nodes have heard of it");
        assert_eq!(watch.look(at(8300), 2 * SECOND), Some(Signal::TERM));
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), SECOND), None);
        assert_eq!(watch.look(at(800), SECOND / 5), Some(Signal::TERM));
    }

    #[test]
    fn a_lock_that_is_renewed_after_all_spares_a_command_that_was_told() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(0), TTL), None);
        assert_eq!(watch.look(at(8500), SECOND), Some(Signal::TERM));
        assert_eq!(watch.look(at(9000), TTL), None);
        assert_eq!(watch.look(at(18_000), TTL), None);
    }
}
