//! `conclave lock`: runs a command while it holds a lock.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::pin::Pin;
use std::time::{Duration, Instant};

use clap::Args;
use conclave_client::{AcquireError, Client, Guard, GuardSet, Mode, Request, SlotGuard};
use conclave_wire::Span;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::ending::{ended, ending};
use super::find::{Endpoints, Target, not_connected};
use super::forward::Signals;
use super::guard::Guarded;
use super::place::shown;
use super::signals::code_of_signal;
use super::{look, runtime};
use crate::cli::Failure;

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
    async fn hold(&self, held: Held, signals: &mut Signals) -> Result<(), Failure> {
        let variables = self.variables(&held);
        let command = Guarded::start(&self.command, &variables, signals, held.valid_for()).await?;
        let ended = command
            .ended(|| held.valid_for(), held.lost(), signals)
            .await?;
        let (name, how) = (self.shown(), ended.how());
        let kept = held.release().await;
        if ended.told {
            return Err(Failure::Lost(format!(
                "'{name}' was lost; the command was told to end: {how}"
            )));
        }
        if !kept {
            return Err(Failure::Lost(format!(
                "'{name}' was lost as the command ended: {how}"
            )));
        }
        ended.result()
    }

    /// What the command finds in its environment.
    fn variables(&self, held: &Held) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            ("CONCLAVE_LOCK", self.name.clone()),
            ("CONCLAVE_TOKEN", held.token().to_string().into()),
            ("CONCLAVE_GROUP", held.group().unwrap_or_default().into()),
        ];
        if let Some(slot) = held.slot() {
            variables.push(("CONCLAVE_SLOT", slot.to_string().into()));
        }
        if let Held::Set(set, _) = held {
            // Names may hold anything but a zero byte; lines keep them apart well enough.
            let names = set.names();
            let tokens = names.iter().map(|name| set.token(name.bytes()));
            let tokens = tokens.map(|token| token.unwrap_or_default().to_string());
            let lines = names
                .iter()
                .map(conclave_client::Name::bytes)
                .collect::<Vec<_>>();
            let lines = OsString::from_vec(lines.join(&b'\n'));
            variables.push(("CONCLAVE_LOCKS", lines));
            let tokens = tokens.collect::<Vec<_>>().join("\n");
            variables.push(("CONCLAVE_TOKENS", tokens.into()));
        }
        variables
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

pub(super) fn millis(span: Duration) -> Value {
    Value::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
