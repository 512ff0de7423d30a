//! `conclave bench`: loads on a cluster of real processes, beside a bare echo in the same run.

mod against;
mod big;
mod echo;
mod html;
mod load;
mod objects;
mod scaling;

use std::sync::Arc;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use conclave_protocol::lock::{Mode, Quorums};
use conclave_wire::cluster::RestartText;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output;
use crate::service::local::{Local, LocalOptions, Work};
use crate::service::shape::Shape;
use crate::service::usage;

use load::{Conclave, Drive, Load, Referee};

pub(crate) use echo::serve as serve_echo;

/// Measure a cluster: cycles a second, latencies, CPU and memory, beside a bare echo
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    shape: Shape,
    /// Another quorum system to put under the same loads, in a cluster of its own; may be repeated
    #[arg(long, value_name = "SYSTEM", conflicts_with_all = ["held", "used"])]
    beside: Vec<String>,
    /// How many clients, in turn
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1,16,64,256",
        default_value_if("scaling", ArgPredicate::IsPresent, "64")
    )]
    clients: Vec<usize>,
    /// What they do, in turn; all without it
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',')]
    loads: Vec<Load>,
    /// Whether clients are tasks that share a connection per node, or have their own
    #[arg(long, value_enum, default_value_t = Connections::Both)]
    connections: Connections,
    /// Open loop: so many cycles a second over all clients; latency counts from the timetable
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Seconds of each run; 5 without it, 10 with --against
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// How often each is run, interleaved; medians are shown; 1 without it, 3 with --against
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Names over all clients of the uncontended load
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    names: usize,
    /// Take and keep so many locks instead: memory, heartbeats, restart
    #[arg(long, value_name = "LOCKS", conflicts_with = "used")]
    held: Option<usize>,
    /// Use so many names once instead: memory
    #[arg(long, value_name = "NAMES")]
    used: Option<u64>,
    /// Work on replicated objects instead: a counter that all clients add to, then a large map
    #[arg(long, conflicts_with_all = ["held", "used", "beside"])]
    objects: bool,
    /// Keys of that map, of 100 bytes each; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: usize,
    #[command(flatten)]
    against: against::Flags,
    /// Grow the cluster instead: billiard and majority at each of --sizes, one cluster at a time,
    /// with 64 clients unless said otherwise; what the busiest node has to do, beside its load
    #[arg(long)]
    #[arg(conflicts_with_all = [
        "against", "held", "used", "objects", "beside", "rate", "rounds", "loads", "connections",
        "nodes", "quorum", "groups"
    ])]
    scaling: bool,
    /// How many nodes those clusters have
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "4,12,24,40"
    )]
    #[arg(requires = "scaling")]
    sizes: Vec<u32>,
    /// Print JSON; the last line is the result
    #[arg(long)]
    json: bool,
}

/// How clients reach the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Connections {
    /// All tasks share one connection per node
    Shared,
    /// Every client has its own
    Separate,
    /// Both, one after the other
    Both,
}

/// What a bench measured: times in nanoseconds.
#[derive(Clone, Debug)]
struct Row {
    system: String,
    load: String,
    clients: usize,
    cycles_per_s: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    gap: f64,
    cpu_s_per_1000: f64,
    rss_mb: f64,
    /// The largest share of cycles that one node took part in.
    busiest: f64,
    /// What the busiest node would take part in by the load-optimal strategy.
    planned_load: f64,
    /// Messages of a cycle, as nodes count them, heartbeats left out.
    messages: f64,
    /// Three for each member of a quorum.
    planned_messages: f64,
    errors: u64,
    violations: u64,
    spread: f64,
}

/// A cluster under load, and what the toolbox says about its quorum system.
struct Target {
    /// Its quorum system, for the table.
    system: String,
    local: Local,
    /// Members of the smallest quorum.
    members: usize,
    /// The load of the busiest node by the load-optimal strategy.
    load: f64,
    /// Messages of an entry and a release without contention.
    messages: f64,
}

impl Target {
    async fn start(shape: &Shape, system: &str) -> Result<Self, Failure> {
        let spec = conclave_quorum::text::parse(system).map_err(Failure::input)?;
        let no_files = |_: &str| Err("write the system out".to_owned());
        let nodes = Some(shape.size()? as usize);
        let built = conclave_quorum::build::build(&spec, nodes, &no_files);
        let built = built.map_err(Failure::input)?;
        let groups: Vec<&str> = shape.groups.iter().map(String::as_str).collect();
        let quorums = Quorums::new(&built.system, &groups).map_err(Failure::input)?;
        let family = quorums.family(&Mode::Exclusive);
        let load = conclave_quorum::measure::load::load(family.as_ref(), None, &mut |_| {});
        let options = LocalOptions {
            shape: shape.clone(),
            history: false,
        };
        Ok(Self {
            members: quorums.least(&Mode::Exclusive),
            messages: 3.0 * load.mean_size(),
            load: load.upper,
            system: match shape.restart().unwrap_or_default() {
                RestartText::Pause => built.text.clone(),
                RestartText::Durable => format!("{}, durable", built.text),
            },
            local: Local::start(&options).await?,
        })
    }
}

/// Times from a microsecond to a minute, to a hundredth. Every task has one: with more digits they
/// would not fit the processor's caches, and the benchmark would measure itself.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 2).expect("invariant: the bounds are in order")
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.check()?;
        if self.against.wanted() {
            return self.run_against();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(2)
            .build()?;
        if self.scaling {
            return runtime.block_on(scaling::run(&scaling::Plan {
                shape: &self.shape,
                sizes: &self.sizes,
                clients: &self.clients,
                names: self.names,
                span: self.span(),
                json: self.json,
            }));
        }
        let mut targets = runtime.block_on(self.targets())?;
        let first = targets.first_mut();
        let first = first.expect("invariant: the cluster of the flags is always there");
        if self.objects {
            let plan = objects::Plan {
                clients: &self.clients,
                connections: self.connections,
                span: self.span(),
                keys: self.keys,
                json: self.json,
            };
            return runtime.block_on(objects::run(&first.local, &plan));
        }
        if let Some(locks) = self.held {
            return runtime.block_on(big::held(&mut first.local, locks, self.json));
        }
        if let Some(names) = self.used {
            return runtime.block_on(big::used(&first.local, names, self.json));
        }
        let members = first.members;
        let mut rows: Vec<Row> = Vec::new();
        for round in 0..self.rounds() {
            rows.push(Self::echo(members, self.span())?);
            for (load, clients, shared) in self.plan() {
                for target in &targets {
                    self.progress(round, target, load, clients, shared);
                    let row = runtime.block_on(self.one(target, load, clients, shared));
                    rows.push(row?);
                }
            }
        }
        let rows = medians(&rows);
        self.report(&rows, &targets)?;
        let broken = rows.iter().any(|row| row.violations > 0);
        if broken {
            Err(Failure::Violation)
        } else {
            Ok(())
        }
    }

    /// The clusters to measure, all running.
    async fn targets(&self) -> Result<Vec<Target>, Failure> {
        let mut targets = vec![Target::start(&self.shape, &self.shape.system()).await?];
        for system in &self.beside {
            let shape = Shape {
                nodes: None,
                quorum: Some(system.clone()),
                groups: Vec::new(),
                ..self.shape.clone()
            };
            targets.push(Target::start(&shape, system).await?);
        }
        Ok(targets)
    }

    /// Everything but the systems under test, as `--against` wants it.
    fn run_against(&self) -> Result<(), Failure> {
        let loads = [
            Load::Uncontended,
            Load::Hot,
            Load::Mix,
            Load::Groups,
            Load::Kill,
        ];
        against::run(&against::Plan {
            flags: &self.against,
            shape: &self.shape,
            clients: &self.clients,
            loads: if self.loads.is_empty() {
                &loads
            } else {
                &self.loads
            },
            names: self.names,
            span: self.span(),
            rounds: self.rounds(),
            json: self.json,
        })
    }

    /// How long each run is.
    fn span(&self) -> Duration {
        let usual = if self.against.wanted() { 10.0 } else { 5.0 };
        Duration::from_secs_f64(self.seconds.unwrap_or(usual))
    }

    /// How often each is run.
    fn rounds(&self) -> u32 {
        let usual = if self.against.wanted() { 3 } else { 1 };
        self.rounds.unwrap_or(usual)
    }

    fn check(&self) -> Result<(), Failure> {
        let seconds = self.seconds.unwrap_or(1.0);
        if !seconds.is_finite() || !(0.1..=3600.0).contains(&seconds) {
            return Err(Failure::input("--seconds must be 0.1 to 3600"));
        }
        if self.loads.contains(&Load::Kill) && !self.against.wanted() {
            return Err(Failure::input(
                "the load kill needs --against, as in --against conclave --loads kill",
            ));
        }
        if self.names == 0 {
            return Err(Failure::input("--names must be above 0"));
        }
        if self
            .clients
            .iter()
            .any(|&clients| clients == 0 || clients > 4096)
        {
            return Err(Failure::input("--clients must be 1 to 4096 each"));
        }
        if self
            .rate
            .is_some_and(|rate| !rate.is_finite() || rate <= 0.0)
        {
            return Err(Failure::input("--rate must be above 0"));
        }
        Ok(())
    }

    fn plan(&self) -> Vec<(Load, usize, bool)> {
        let mut plan = Vec::new();
        let all = [Load::Uncontended, Load::Hot, Load::Mix, Load::Groups];
        let loads = if self.loads.is_empty() {
            all.as_slice()
        } else {
            &self.loads
        };
        for &load in loads {
            for &clients in &self.clients {
                if self.connections != Connections::Separate {
                    plan.push((load, clients, true));
                }
                // One client has its own connections either way.
                let both = self.connections == Connections::Both && clients > 1;
                if both || self.connections == Connections::Separate {
                    plan.push((load, clients, false));
                }
            }
        }
        plan
    }

    fn progress(&self, round: u32, target: &Target, load: Load, clients: usize, shared: bool) {
        let how = if shared { "shared" } else { "separate" };
        anstream::eprintln!(
            "round {}/{}: {}, {} with {clients} clients, {how} connections",
            round + 1,
            self.rounds(),
            target.system,
            load.name()
        );
    }

    fn echo(members: usize, span: Duration) -> Result<Row, Failure> {
        let times = echo::measure(members, span.min(Duration::from_secs(3)))?;
        let per_s = 1e9 / times.mean().max(1.0);
        Ok(Row {
            system: "echo".to_owned(),
            load: format!("to {members} processes"),
            clients: 1,
            cycles_per_s: per_s,
            p50: times.value_at_quantile(0.5) as f64,
            p99: times.value_at_quantile(0.99) as f64,
            p999: times.value_at_quantile(0.999) as f64,
            gap: times.max() as f64,
            cpu_s_per_1000: 0.0,
            rss_mb: 0.0,
            busiest: 0.0,
            planned_load: 0.0,
            messages: 0.0,
            planned_messages: 0.0,
            errors: 0,
            violations: 0,
            spread: 0.0,
        })
    }

    async fn one(
        &self,
        target: &Target,
        load: Load,
        tasks: usize,
        shared: bool,
    ) -> Result<Row, Failure> {
        let local = &target.local;
        let mut clients = Vec::new();
        for _ in 0..if shared { 1 } else { tasks } {
            let client = local.target().client().await;
            clients.push(Conclave {
                client: client.map_err(Failure::input)?,
                patience: Duration::from_secs(30),
            });
        }
        let referee = Arc::new(Referee::default());
        let span = self.span();
        let drive = Drive {
            load,
            tasks,
            names: (self.names / tasks).max(1),
            rate: self.rate,
            warm: (span / 5).min(Duration::from_secs(1)),
            span,
        };
        let warm = drive.warm;
        let run = tokio::spawn(load::run(clients.clone(), drive, referee.clone()));
        tokio::time::sleep(warm).await;
        let (cpu, before) = (all_cpu(local), local.work().await);
        tokio::time::sleep(span).await;
        let (cpu_after, after) = (all_cpu(local), local.work().await);
        let seen = run.await.map_err(Failure::input)??;
        let done = before.iter().zip(&after);
        let done: Vec<Work> = done.map(|(before, after)| after.since(*before)).collect();
        let busiest = done.iter().map(|work| work.grants).max();
        let messages: u64 = done.iter().map(|work| work.messages).sum();
        for taker in clients {
            taker.client.close().await;
        }
        let cycles = seen.cycles.max(1) as f64;
        Ok(Row {
            system: target.system.clone(),
            load: format!(
                "{}{}",
                load.name(),
                if shared { "" } else { ", own connections" }
            ),
            clients: tasks,
            cycles_per_s: seen.cycles as f64 / span.as_secs_f64(),
            p50: seen.times.value_at_quantile(0.5) as f64,
            p99: seen.times.value_at_quantile(0.99) as f64,
            p999: seen.times.value_at_quantile(0.999) as f64,
            gap: seen.gap as f64,
            cpu_s_per_1000: (cpu_after - cpu) / cycles * 1000.0,
            rss_mb: local.resident_mb(),
            busiest: busiest.unwrap_or(0) as f64 / cycles,
            planned_load: target.load,
            messages: messages as f64 / cycles,
            planned_messages: target.messages,
            errors: seen.errors,
            violations: referee.violations(),
            spread: 0.0,
        })
    }

    fn report(&self, rows: &[Row], targets: &[Target]) -> Result<(), Failure> {
        if self.json {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            let clusters = targets.iter().map(|target| {
                json!({
                    "system": target.system,
                    "nodes": target.local.len(),
                    "members": target.members,
                    "load": target.load,
                    "messages": target.messages,
                })
            });
            let restart = self.shape.restart().unwrap_or_default();
            let result = json!({
                "clusters": clusters.collect::<Vec<Value>>(),
                "restart": format!("{restart:?}").to_lowercase(),
                "seconds": self.span().as_secs_f64(),
                "rounds": self.rounds(),
                "rows": rows,
            });
            return output::line(result.to_string());
        }
        let mut table = output::table(&[
            "SYSTEM",
            "LOAD",
            "CLIENTS",
            "CYCLES/S",
            "P50 us",
            "P99 us",
            "P99.9 us",
            "GAP ms",
            "CPU s/1000",
            "MB/NODE",
            "BUSIEST",
            "PLANNED",
            "MESSAGES",
            "PLANNED",
        ]);
        for row in rows {
            table.add_row(row.cells());
        }
        output::print(&table)?;
        for row in rows
            .iter()
            .filter(|row| row.violations > 0 || row.errors > 0)
        {
            output::line(format!(
                "{} with {} clients: {} errors, {} violations of exclusion or token order",
                row.load, row.clients, row.errors, row.violations
            ))?;
        }
        Ok(())
    }
}

/// CPU seconds of nodes and clients so far: the clients live in this process.
fn all_cpu(local: &Local) -> f64 {
    local.cpu_seconds() + usage::cpu_seconds(std::process::id())
}

impl Row {
    fn key(&self) -> (String, String, usize) {
        (self.system.clone(), self.load.clone(), self.clients)
    }

    fn cells(&self) -> Vec<String> {
        let micros = |nanos: f64| format!("{:.0}", nanos / 1e3);
        let some = |value: f64, text: String| if value > 0.0 { text } else { "-".to_owned() };
        vec![
            self.system.clone(),
            self.load.clone(),
            self.clients.to_string(),
            format!("{:.0}", self.cycles_per_s),
            micros(self.p50),
            micros(self.p99),
            micros(self.p999),
            format!("{:.1}", self.gap / 1e6),
            some(self.cpu_s_per_1000, format!("{:.4}", self.cpu_s_per_1000)),
            some(self.rss_mb, format!("{:.1}", self.rss_mb)),
            some(self.busiest, format!("{:.3}", self.busiest)),
            some(self.planned_load, format!("{:.3}", self.planned_load)),
            some(self.messages, format!("{:.2}", self.messages)),
            some(
                self.planned_messages,
                format!("{:.2}", self.planned_messages),
            ),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "load": self.load,
            "clients": self.clients,
            "cycles_per_s": self.cycles_per_s,
            "p50_us": self.p50 / 1e3,
            "p99_us": self.p99 / 1e3,
            "p999_us": self.p999 / 1e3,
            "gap_ms": self.gap / 1e6,
            "cpu_s_per_1000": self.cpu_s_per_1000,
            "rss_mb": self.rss_mb,
            "busiest_share": self.busiest,
            "planned_load": self.planned_load,
            "messages_per_cycle": self.messages,
            "planned_messages": self.planned_messages,
            "errors": self.errors,
            "violations": self.violations,
            "spread": self.spread,
        })
    }
}

/// One row per load and number of clients: the median of each number over the rounds, the sums of
/// what went wrong, and how far the cycles a second of the rounds lie apart.
fn medians(rows: &[Row]) -> Vec<Row> {
    let mut done: Vec<Row> = Vec::new();
    for row in rows {
        if done.iter().any(|other| other.key() == row.key()) {
            continue;
        }
        let same: Vec<&Row> = rows
            .iter()
            .filter(|other| other.key() == row.key())
            .collect();
        let median = |field: fn(&Row) -> f64| {
            let mut values: Vec<f64> = same.iter().map(|row| field(row)).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let speeds = same.iter().map(|row| row.cycles_per_s);
        let (low, high) = speeds.fold((f64::MAX, 0.0_f64), |(low, high), speed| {
            (low.min(speed), high.max(speed))
        });
        done.push(Row {
            cycles_per_s: median(|row| row.cycles_per_s),
            p50: median(|row| row.p50),
            p99: median(|row| row.p99),
            p999: median(|row| row.p999),
            gap: median(|row| row.gap),
            cpu_s_per_1000: median(|row| row.cpu_s_per_1000),
            rss_mb: median(|row| row.rss_mb),
            busiest: median(|row| row.busiest),
            messages: median(|row| row.messages),
            errors: same.iter().map(|row| row.errors).sum(),
            violations: same.iter().map(|row| row.violations).sum(),
            spread: (high - low) / high.max(1.0),
            ..row.clone()
        });
    }
    done
}
