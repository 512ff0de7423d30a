//! `conclave sim run`.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use conclave_protocol::lock::Protocol;
use conclave_sim::baseline::{self, Kind};
use conclave_sim::fact::{Checker, Violation};
use conclave_sim::measure::{Measures, theoretical_load};
use conclave_sim::{Options, invariants};
use serde_json::{Value, json};

use super::multilevel::Paper;
use super::plot;
use super::record::{History, Recorder};
use super::{checked, guarded, replay_command, short, thousands};
use crate::cli::Failure;
use crate::output::{self, Progress};
use crate::quorum::draw;

/// Theory is not computed for larger systems: some take long.
const THEORY_MAX: usize = 2_000;
/// The most messages that an older protocol may exchange in a run.
const MESSAGES_MAX: u64 = 20_000_000;

/// How many clients there are unless a number is given.
const CLIENTS: u32 = 20;
/// How many seconds of virtual time they go on unless a number is given.
const SECONDS: u64 = 10;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The protocol: lock, lock-serial, exclusive or an older one
    #[arg(long, default_value = "lock")]
    protocol: Subject,
    /// The quorum system, for example 'billiard(24)'; see 'conclave quorum list'
    ///
    /// Left out: 'majority(5)', and 'multilevel(tree, 1200, levels=1)' for hierarchies
    #[arg(long)]
    system: Option<String>,
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = CLIENTS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How many groups they ask for; 0: every wish is exclusive
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    groups: u32,
    /// How many lock names
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    names: u32,
    /// What goes wrong
    #[arg(long, value_enum, default_value = "none")]
    faults: Faults,
    /// The seed of all chance
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// How many seconds of virtual time clients go on asking
    #[arg(long, value_name = "S", default_value_t = SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Any other option of the world, as in a replay token
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Protocols to put beside it on the same load, for example exclusive,maekawa,ra1,central
    #[arg(long, value_name = "PROTOCOLS", value_delimiter = ',')]
    compare: Vec<Subject>,
    /// Run without checkers: faster, and nothing is promised
    #[arg(long)]
    unchecked: bool,
    /// Draw concurrency, waiting times and load into this file, SVG or PNG by its name
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    paper: Paper,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Faults {
    /// Nothing
    None,
    /// Now and then a connection, a node or a client
    Light,
    /// Everything, often
    Heavy,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The lock of this project.
    Lock(Protocol),
    /// The same, but every wish is exclusive.
    Exclusive,
    /// An older protocol.
    Older(Kind),
    /// One lock on a hierarchy.
    Multilevel,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lock" => return Ok(Self::Lock(Protocol::Parallel)),
            "lock-serial" => return Ok(Self::Lock(Protocol::Serial)),
            "exclusive" => return Ok(Self::Exclusive),
            "multilevel" => return Ok(Self::Multilevel),
            _ => {}
        }
        let name = match text {
            "ricart" => "ricart-agrawala",
            "backup" => "primary-backup",
            other => other,
        };
        name.parse().map(Self::Older).map_err(|_| {
            let older = Kind::ALL.map(Kind::name).join(", ");
            format!("give lock, lock-serial, exclusive, multilevel, {older}")
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Lock(Protocol::Parallel) => "lock",
            Self::Lock(Protocol::Serial) => "lock-serial",
            Self::Exclusive => "exclusive",
            Self::Older(kind) => kind.name(),
            Self::Multilevel => "multilevel",
        })
    }
}

/// What came out of one run.
pub(crate) struct Measured {
    pub(crate) subject: Subject,
    pub(crate) measures: Measures,
    pub(crate) events: u64,
    pub(crate) violation: Option<Violation>,
    pub(crate) theory: Option<Vec<f64>>,
    pub(crate) history: Option<Rc<RefCell<History>>>,
    /// Replays the run; none for older protocols.
    token: Option<String>,
}

impl Run {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.protocol == Subject::Multilevel || self.paper.is_given() {
            return self.hierarchy();
        }
        if let Some(path) = &self.plot {
            draw::check_path(path)?;
        }
        let plain = self.options()?;
        let subjects: Vec<Subject> = [&[self.protocol][..], &self.compare].concat();
        for subject in &subjects {
            judge(*subject, &plain)?;
        }
        super::quiet_panics();
        let progress = (!self.json).then(|| Progress::new("running"));
        let mut all = Vec::new();
        for (place, subject) in subjects.iter().enumerate() {
            if let Some(progress) = &progress {
                progress.say(&format!("running {subject}"));
                progress.set(place as u64, subjects.len() as u64);
            }
            all.push(self.measure(*subject, &plain)?);
        }
        drop(progress);
        if let Some(path) = &self.plot {
            draw::write(path, &plot::picture(&self.title(), &all))?;
        }
        match (all.as_slice(), self.json) {
            ([one], true) => output::json(&self.as_json(one))?,
            ([one], false) => self.print(one)?,
            (all, true) => {
                let runs: Vec<Value> = all.iter().map(|one| self.as_json(one)).collect();
                output::json(&json!({ "runs": runs }))?;
            }
            (all, false) => self.print_beside(all)?,
        }
        if let (Some(path), false) = (&self.plot, self.json) {
            output::line(format!("\ndrawn into {}", path.display()))?;
        }
        if all.iter().any(|one| one.violation.is_some()) {
            return Err(Failure::Violation);
        }
        Ok(())
    }

    fn system(&self) -> &str {
        self.system.as_deref().unwrap_or("majority(5)")
    }

    /// Runs the set-up of hierarchies.
    fn hierarchy(&self) -> Result<(), Failure> {
        let plain = self.clients == CLIENTS
            && self.names == 1
            && self.seconds == SECONDS
            && self.faults == Faults::None
            && self.set.is_empty()
            && self.compare.is_empty()
            && self.plot.is_none();
        if !plain {
            return Err(Failure::input(
                "a hierarchy's run takes --system, --up, --entries, --full, --gap, --hold, \
                 --groups, --seed, --sequential, --retry, --failover and --json: leave out others",
            ));
        }
        let backup = match self.protocol {
            Subject::Multilevel => false,
            Subject::Older(Kind::Backup) => true,
            other => {
                return Err(Failure::Input(format!(
                    "{other} has no such set-up: give --protocol multilevel or primary-backup"
                )));
            }
        };
        let system = self.system.as_deref();
        self.paper
            .run(system, backup, self.groups, self.seed, self.json)
    }

    /// The options of a run of the lock with this load.
    fn options(&self) -> Result<Options, Failure> {
        let mut options = load(self.clients, self.groups, self.seconds);
        options.seed = self.seed;
        self.system().clone_into(&mut options.system);
        options.names = self.names;
        if self.faults != Faults::None {
            add_faults(&mut options, self.faults);
        }
        for part in &self.set {
            let Some((key, value)) = part.split_once('=') else {
                return Err(Failure::Input(format!(
                    "--set takes KEY=VALUE, not '{part}': for example --set hold_ms=50"
                )));
            };
            let set = options.set(key.trim(), value.trim());
            set.map_err(|error| Failure::Input(format!("--set: {error}")))?;
        }
        checked(&options)?;
        Ok(options)
    }

    fn measure(&self, subject: Subject, plain: &Options) -> Result<Measured, Failure> {
        let mut options = plain.clone();
        match subject {
            Subject::Lock(protocol) => {
                options.protocol = protocol;
                if protocol == Protocol::Serial {
                    keep_serial(&mut options);
                }
            }
            Subject::Exclusive => {
                options.exclusive = 1.0;
                options.shared = 0.0;
            }
            Subject::Older(kind) => return measure_older(kind, plain),
            Subject::Multilevel => return Err(alone()),
        }
        measure_lock(subject, &options, !self.unchecked, self.plot.is_some())
    }

    fn title(&self) -> String {
        let (system, clients) = (self.system(), self.clients);
        let faults = match self.faults {
            Faults::None => "no faults",
            Faults::Light => "light faults",
            Faults::Heavy => "heavy faults",
        };
        let groups = match self.groups {
            0 => "exclusive wishes".to_owned(),
            1 => "1 group".to_owned(),
            many => format!("{many} groups"),
        };
        let seed = self.seed;
        format!("{system}, {clients} clients, {groups}, {faults}, seed {seed}")
    }

    fn as_json(&self, one: &Measured) -> Value {
        let more = json!({
            "protocol": one.subject.to_string(),
            "system": self.system(),
            "clients": self.clients,
            "groups": self.groups,
            "names": self.names,
            "faults": format!("{:?}", self.faults).to_lowercase(),
            "seed": self.seed,
        });
        output::merged(more, one.as_json())
    }

    fn print(&self, one: &Measured) -> Result<(), Failure> {
        output::line(format!("{} on {}\n", one.subject, self.title()))?;
        let measures = &one.measures;
        let mut table = output::table(&[]);
        let seconds = measures.virtual_seconds;
        let entries = thousands(measures.entries);
        let rate = short(one.throughput());
        table.add_row([
            "entries",
            &format!("{entries}, {rate} a second of virtual time"),
        ]);
        let per = short(measures.messages_per_entry);
        table.add_row(["messages per entry", &per]);
        table.add_row(["  all by kind", &one.kinds()]);
        table.add_row(["delay, alone", &latencies(measures.calm_delay)]);
        table.add_row(["delay, handover", &latencies(measures.sync_delay)]);
        let wait = &measures.wait;
        let waits = format!(
            "mean {} ms, half within {} ms, 99 % within {} ms",
            short(wait.mean),
            short(wait.p50),
            short(wait.p99)
        );
        table.add_row(["waiting", &waits]);
        let mean = short(measures.inside_mean);
        let inside = format!("at most {}, {mean} on average", measures.inside_max);
        table.add_row(["inside at once", &inside]);
        table.add_row(["load of a node", &one.load()]);
        table.add_row(["fairness", &short(measures.fairness)]);
        let raises = short(measures.raises_per_entry * 100.0);
        table.add_row(["tokens raised", &format!("{raises} % of entries")]);
        let events = thousands(one.events);
        table.add_row(["the run", &format!("{} s, {events} events", short(seconds))]);
        output::print(&table)?;
        self.print_result(std::slice::from_ref(one))
    }

    /// Says what held, or what broke and how to see it again.
    fn print_result(&self, all: &[Measured]) -> Result<(), Failure> {
        let mut held = true;
        for one in all {
            let Some(violation) = &one.violation else {
                continue;
            };
            held = false;
            let (property, what) = (violation.property, &violation.what);
            output::line(format!("\n{} BROKE {property}: {what}", one.subject))?;
            if let Some(token) = &one.token {
                output::line(format!("replay: {}", replay_command(token)))?;
            }
        }
        if held && !self.unchecked {
            output::line("\nno property was broken")?;
        }
        Ok(())
    }

    fn print_beside(&self, all: &[Measured]) -> Result<(), Failure> {
        output::line(format!("{}\n", self.title()))?;
        let mut table = output::table(&[
            "PROTOCOL", "ENTRIES", "A SECOND", "MESSAGES", "ALONE", "HANDOVER", "WAIT", "P50",
            "P99", "INSIDE", "MOST", "LOAD", "FAIRNESS",
        ]);
        for one in all {
            let measures = &one.measures;
            let delay = |delay: Option<f64>| delay.map_or("-".to_owned(), short);
            table.add_row([
                one.subject.to_string(),
                thousands(measures.entries),
                short(one.throughput()),
                short(measures.messages_per_entry),
                delay(measures.calm_delay),
                delay(measures.sync_delay),
                short(measures.wait.mean),
                short(measures.wait.p50),
                short(measures.wait.p99),
                short(measures.inside_mean),
                measures.inside_max.to_string(),
                short(busiest(&measures.load)),
                short(measures.fairness),
            ]);
        }
        output::print(&table)?;
        output::line(
            "\nMESSAGES: per entry. ALONE, HANDOVER: delay in mean latencies. WAIT (mean), P50, \
             P99: in ms.\nINSIDE, MOST: holders at once. LOAD: share of entries that use the \
             busiest node.",
        )?;
        self.print_result(all)
    }
}

fn alone() -> Failure {
    Failure::input("multilevel has its own world: leave out --compare")
}

/// Refuses what a protocol cannot do.
fn judge(subject: Subject, options: &Options) -> Result<(), Failure> {
    let kind = match subject {
        Subject::Older(kind) => kind,
        Subject::Multilevel => return Err(alone()),
        Subject::Lock(_) | Subject::Exclusive => return Ok(()),
    };
    if options.has_faults() {
        return Err(Failure::Input(format!(
            "{kind} knows no faults: leave out --faults, or compare only lock, lock-serial \
             and exclusive"
        )));
    }
    if options.names > 1 {
        return Err(Failure::Input(format!(
            "{kind} serves one lock: leave out --names"
        )));
    }
    if options.clients > baseline::PROCESSES_MAX {
        return Err(Failure::Input(format!(
            "{kind} takes at most {} clients",
            baseline::PROCESSES_MAX
        )));
    }
    baseline::Options::like(options).map_err(Failure::input)?;
    Ok(())
}

fn latencies(delay: Option<f64>) -> String {
    delay.map_or("-".to_owned(), |delay| {
        format!("{} mean latencies", short(delay))
    })
}

fn busiest(load: &[f64]) -> f64 {
    load.iter().copied().fold(0.0, f64::max)
}

impl Measured {
    /// Entries per second of virtual time.
    pub(crate) fn throughput(&self) -> f64 {
        let seconds = self.measures.virtual_seconds;
        if seconds > 0.0 {
            self.measures.entries as f64 / seconds
        } else {
            0.0
        }
    }

    fn per_entry(&self, count: u64) -> f64 {
        count as f64 / self.measures.entries.max(1) as f64
    }

    fn kinds(&self) -> String {
        let mut kinds: Vec<_> = self.measures.messages_by_kind.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds = kinds.iter().map(|(kind, count)| {
            let per = short(self.per_entry(**count));
            format!("{kind} {per}")
        });
        kinds.collect::<Vec<_>>().join(", ")
    }

    fn load(&self) -> String {
        let most = short(busiest(&self.measures.load));
        let theory = self.theory.as_ref().map(|theory| {
            let best = short(busiest(theory));
            format!("; the best strategy over many locks needs {best}")
        });
        let theory = theory.unwrap_or_default();
        format!("{most} of entries use the busiest{theory}")
    }

    pub(crate) fn as_json(&self) -> Value {
        let measures = &self.measures;
        let kinds = measures.messages_by_kind.iter();
        let per_kind: serde_json::Map<String, Value> = kinds
            .map(|(kind, count)| ((*kind).to_owned(), json!(self.per_entry(*count))))
            .collect();
        let violation = self.violation.as_ref().map(|violation| {
            json!({
                "property": violation.property,
                "at": violation.at.0 as f64 / 1e9,
                "what": violation.what,
            })
        });
        json!({
            "entries": measures.entries,
            "events": self.events,
            "virtual_seconds": measures.virtual_seconds,
            "entries_per_second": self.throughput(),
            "messages_per_entry": measures.messages_per_entry,
            "messages_by_kind": measures.messages_by_kind,
            "per_entry_by_kind": per_kind,
            "sync_delay": measures.sync_delay,
            "calm_delay": measures.calm_delay,
            "wait": {
                "mean": measures.wait.mean,
                "p50": measures.wait.p50,
                "p99": measures.wait.p99,
            },
            "max_inside": measures.inside_max,
            "mean_inside": measures.inside_mean,
            "load": measures.load,
            "load_theory": self.theory,
            "fairness": measures.fairness,
            "raises_per_entry": measures.raises_per_entry,
            "violation": violation,
            "replay": self.token,
        })
    }
}

/// A steady load on one lock: clients ask, hold for a moment, rest for a moment.
pub(crate) fn load(clients: u32, groups: u32, seconds: u64) -> Options {
    let exclusive = if groups == 0 { 1.0 } else { 0.0 };
    let mut options = Options {
        clients,
        groups: groups.max(1),
        names: 1,
        hot: 0.0,
        exclusive,
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
        span_ms: seconds * 1000,
        ..Options::default()
    };
    // Everybody who still waits at the end goes in once more, one after the other at worst.
    options.heal_ms = (60_000 + u64::from(clients) * 100).min(86_400_000);
    options
}

/// What goes wrong in a run with faults: clocks stay within the lead that nodes reserve.
pub(crate) fn add_faults(options: &mut Options, faults: Faults) {
    let times = match faults {
        Faults::None => return,
        Faults::Light => 0.2,
        Faults::Heavy => 1.0,
    };
    options.hedge_us = 2000;
    options.cancel = 0.05;
    options.skew_ms = 50;
    options.reset = 5.0 * times;
    options.late = 0.5;
    options.stall = 3.0 * times;
    options.partition = 0.5 * times;
    options.loss = 0.1 * times;
    options.crash = times;
    options.again = 0.3;
    options.disk_lost = 0.2;
    options.drain = 0.5 * times;
    options.node_pause = 0.5 * times;
    options.client_pause = 2.0 * times;
    options.client_crash = times;
    options.expire = times;
    options.jump = times;
    options.jump_ms = 300;
}

/// The serial protocol does not change its quorum: it is spared what would need that.
fn keep_serial(options: &mut Options) {
    options.stall = 0.0;
    options.partition = 0.0;
    options.loss = 0.0;
    options.disk_lost = 0.0;
    options.drain = 0.0;
    options.node_pause = 0.0;
    options.jump = 0.0;
    options.detach = 0.0;
}

/// Runs the lock and measures it.
pub(crate) fn measure_lock(
    subject: Subject,
    options: &Options,
    check: bool,
    record: bool,
) -> Result<Measured, Failure> {
    let config = options.config(true).map_err(Failure::input)?;
    let nodes = config.quorums.nodes();
    let mut checkers: Vec<Box<dyn Checker>> = Vec::new();
    if check {
        checkers = invariants::all(&config);
    }
    let mut history = None;
    if record {
        let (recorder, written) = Recorder::new();
        checkers.push(Box::new(recorder));
        history = Some(written);
    }
    let token = options.to_string();
    let outcome = guarded(options, &mut checkers, None)?;
    let theory = if nodes <= THEORY_MAX {
        Some(theoretical_load(options).map_err(Failure::input)?)
    } else {
        None
    };
    Ok(Measured {
        subject,
        measures: outcome.measures,
        events: outcome.events,
        violation: outcome.violation,
        theory,
        history,
        token: Some(token),
    })
}

fn measure_older(kind: Kind, options: &Options) -> Result<Measured, Failure> {
    let mut like = baseline::Options::like(options).map_err(Failure::input)?;
    let clients = u64::from(options.clients);
    like.entries = like.entries.min(MESSAGES_MAX / clients).max(clients);
    let measured = baseline::run(kind, &like);
    Ok(Measured {
        subject: Subject::Older(kind),
        measures: measured.measures,
        events: measured.events,
        violation: measured.violation,
        theory: None,
        history: None,
        token: None,
    })
}
