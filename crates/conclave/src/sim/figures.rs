//! `conclave sim figures`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, Subcommand};
use conclave_quorum::draw::{Chart, Panel, Trace, panels};
use conclave_sim::lease::response::{Burst, Load, Style, burst, load, styles};
use serde_json::{Value, json};

use super::short;
use crate::cli::Failure;
use crate::output::{self, Progress};
use crate::quorum::draw;

#[derive(Debug, Args)]
pub(crate) struct Figures {
    #[command(subcommand)]
    figure: Figure,
}

#[derive(Debug, Subcommand)]
enum Figure {
    /// How long clients wait for a lease, by how they back off
    #[command(
        after_help = "Examples:\n  conclave sim figures backoff --out figures\n  \
        conclave sim figures backoff --out figures --quick --json"
    )]
    Backoff(Backoff),
}

#[derive(Debug, Args)]
struct Backoff {
    /// The directory for backoff.csv, backoff.svg, backoff.png and load.csv; made if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Fewer clients and fewer runs
    #[arg(long)]
    quick: bool,
    /// The seed of all runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many clients come at once.
const CLIENTS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// How many clients come per span where they come one by one.
const RATES: [f64; 3] = [0.2, 0.4, 0.5];

/// More attempts are cut off in the picture, where they would hide the rest.
const ATTEMPTS_SHOWN: f64 = 40.0;

/// One thing to simulate.
#[derive(Clone, Copy)]
enum Task {
    Burst { clients: u32, runs: u32 },
    Load { rate: f64, clients: u32, runs: u32 },
}

/// What came of it.
#[derive(Clone, Copy)]
enum Done {
    Burst(Burst),
    Load(Load),
}

impl Figures {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.figure {
            Figure::Backoff(backoff) => backoff.run(),
        }
    }
}

impl Backoff {
    fn run(&self) -> Result<(), Failure> {
        let wrong = |error: std::io::Error| {
            Failure::Input(format!("directory '{}': {error}", self.out.display()))
        };
        std::fs::create_dir_all(&self.out).map_err(wrong)?;
        let tasks = self.tasks();
        let done = simulate(&tasks, u64::from(self.seed), self.json);
        let bursts: Vec<(Style, Burst)> = done
            .iter()
            .filter_map(|(style, done)| match done {
                Done::Burst(burst) => Some((*style, *burst)),
                Done::Load(_) => None,
            })
            .collect();
        let loads: Vec<(Style, Load)> = done
            .iter()
            .filter_map(|(style, done)| match done {
                Done::Load(load) => Some((*style, *load)),
                Done::Burst(_) => None,
            })
            .collect();
        self.write("backoff.csv", &bursts_csv(&bursts))?;
        self.write("load.csv", &loads_csv(&loads))?;
        let picture = picture(&bursts);
        draw::write(&self.out.join("backoff.svg"), &picture)?;
        draw::write(&self.out.join("backoff.png"), &picture)?;
        if self.json {
            return output::json(&as_json(&bursts, &loads));
        }
        print(&bursts, &loads, &self.out)
    }

    fn tasks(&self) -> Vec<(Style, Task)> {
        let most = if self.quick { 64 } else { 1024 };
        let work: u32 = if self.quick { 200 } else { 4096 };
        let mut tasks = Vec::new();
        for style in styles() {
            for clients in CLIENTS.into_iter().filter(|clients| *clients <= most) {
                let runs = (work / clients).clamp(4, 400);
                tasks.push((style, Task::Burst { clients, runs }));
            }
            for rate in RATES {
                let (clients, runs) = if self.quick { (200, 1) } else { (1000, 4) };
                tasks.push((
                    style,
                    Task::Load {
                        rate,
                        clients,
                        runs,
                    },
                ));
            }
        }
        tasks
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.out.join(name);
        std::fs::write(&path, text)
            .map_err(|error| Failure::Input(format!("file '{}': {error}", path.display())))
    }
}

/// Does all tasks on all cores; the results come in the order of the tasks.
fn simulate(tasks: &[(Style, Task)], seed: u64, silent: bool) -> Vec<(Style, Done)> {
    let progress = (!silent).then(|| Progress::new("simulating"));
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Done)>> = Mutex::new(Vec::new());
    let work = || {
        // The last tasks of a style take longest, so they begin first.
        while let Some(left) = tasks
            .len()
            .checked_sub(next.fetch_add(1, Ordering::Relaxed) + 1)
        {
            let (style, task) = tasks[left];
            let done = match task {
                Task::Burst { clients, runs } => Done::Burst(burst(style, clients, runs, seed)),
                Task::Load {
                    rate,
                    clients,
                    runs,
                } => Done::Load(load(style, rate, clients, runs, seed)),
            };
            if let Ok(mut results) = results.lock() {
                results.push((left, done));
                if let Some(progress) = &progress {
                    progress.set(results.len() as u64, tasks.len() as u64);
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(place, _)| *place);
    let results = results.into_iter();
    results
        .map(|(place, done)| (tasks[place].0, done))
        .collect()
}

fn bursts_csv(bursts: &[(Style, Burst)]) -> String {
    let mut text = "backoff,clients,runs,mean_over_span_clients,last_over_span_clients,\
                    attempts_per_client\n"
        .to_owned();
    for (style, burst) in bursts {
        let _ = writeln!(
            text,
            "\"{}\",{},{},{:.4},{:.4},{:.3}",
            style.name, burst.clients, burst.runs, burst.mean, burst.last, burst.attempts
        );
    }
    text
}

fn loads_csv(loads: &[(Style, Load)]) -> String {
    let mut text = "backoff,leases_per_span,clients,median_spans,mean_spans,p99_spans\n".to_owned();
    for (style, load) in loads {
        let _ = writeln!(
            text,
            "\"{}\",{},{},{:.3},{:.3},{:.2}",
            style.name, load.rate, load.clients, load.median, load.mean, load.p99
        );
    }
    text
}

/// Lines of one value over the logarithm of the number of clients.
fn traces(bursts: &[(Style, Burst)], value: fn(&Burst) -> f64) -> Vec<Trace> {
    let line = |style: Style| Trace {
        name: style.name.to_owned(),
        points: bursts
            .iter()
            .filter(|(other, _)| other.name == style.name)
            .map(|(_, burst)| (f64::from(burst.clients).log2(), value(burst)))
            .collect(),
    };
    styles().into_iter().map(line).collect()
}

/// A line that theory gives, over the same range.
fn theory(bursts: &[(Style, Burst)], name: &str, value: impl Fn(f64) -> f64) -> Trace {
    let mut logs: Vec<f64> = bursts
        .iter()
        .map(|(_, burst)| f64::from(burst.clients).log2())
        .collect();
    logs.sort_by(f64::total_cmp);
    logs.dedup();
    Trace {
        name: name.to_owned(),
        points: logs.into_iter().map(|log| (log, value(log))).collect(),
    }
}

fn picture(bursts: &[(Style, Burst)]) -> String {
    let panel = |title: &str, up: &str, lines: Vec<Trace>, claimed: Trace, theory: Trace| Panel {
        title: title.to_owned(),
        across: "clients that come at once, as a power of two".to_owned(),
        up: up.to_owned(),
        chart: Chart::Lines([lines, vec![claimed, theory]].concat()),
    };
    // Every panel has the same lines in the same places, so that the legend serves all.
    let flat = |value: f64| theory(bursts, "claimed", |_| value);
    let logarithm = |value: fn(f64) -> f64| theory(bursts, "with a logarithm", value);
    let over = "over span and clients";
    let shown = [
        panel(
            "Mean wait; claimed to be in proportion to the clients",
            over,
            traces(bursts, |burst| burst.mean),
            flat(2.0),
            logarithm(|_| f64::NAN),
        ),
        panel(
            "Wait of the last client; claimed likewise, but it needs a logarithm more",
            over,
            traces(bursts, |burst| burst.last),
            flat(2.0),
            logarithm(|log| 1.4 * log),
        ),
        panel(
            "Attempts; about the logarithm of the clients and one more",
            "per client",
            traces(bursts, |burst| burst.attempts.min(ATTEMPTS_SHOWN)),
            flat(f64::NAN),
            logarithm(|log| log + 1.0),
        ),
    ];
    let lines = [
        "Leases of 6 nodes, one of which votes for nobody; a delay is a tenth of the \
                  span; virtual time."
            .to_owned(),
    ];
    panels("Waits for a lease, by backoff", &lines, &shown)
}

fn as_json(bursts: &[(Style, Burst)], loads: &[(Style, Load)]) -> Value {
    let burst = |(style, burst): &(Style, Burst)| {
        json!({
            "backoff": style.name,
            "clients": burst.clients,
            "runs": burst.runs,
            "mean": burst.mean,
            "last": burst.last,
            "attempts": burst.attempts,
        })
    };
    let load = |(style, load): &(Style, Load)| {
        json!({
            "backoff": style.name,
            "rate": load.rate,
            "clients": load.clients,
            "median": load.median,
            "mean": load.mean,
            "p99": load.p99,
        })
    };
    json!({
        "bursts": bursts.iter().map(burst).collect::<Vec<_>>(),
        "loads": loads.iter().map(load).collect::<Vec<_>>(),
    })
}

fn print(bursts: &[(Style, Burst)], loads: &[(Style, Load)], out: &Path) -> Result<(), Failure> {
    output::line("Clients that come at once: mean wait; wait of the last, over span and clients")?;
    let mut counts: Vec<u32> = bursts.iter().map(|(_, burst)| burst.clients).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut header = vec!["BACKOFF".to_owned()];
    header.extend(counts.iter().map(ToString::to_string));
    let names: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = output::table(&names);
    for style in styles() {
        let mut row = vec![style.name.to_owned()];
        let ours = bursts.iter().filter(|(other, _)| other.name == style.name);
        row.extend(ours.map(|(_, burst)| format!("{:.2}; {:.1}", burst.mean, burst.last)));
        table.add_row(row);
    }
    output::print(&table)?;
    output::line("\nClients that come one by one: wait in spans")?;
    let mut table = output::table(&["BACKOFF", "LEASES PER SPAN", "MEDIAN", "MEAN", "P99"]);
    for (style, load) in loads {
        table.add_row([
            style.name.to_owned(),
            load.rate.to_string(),
            short(load.median),
            short(load.mean),
            short(load.p99),
        ]);
    }
    output::print(&table)?;
    output::line(format!(
        "\nwritten to {}: backoff.csv, backoff.svg, backoff.png, load.csv",
        out.display()
    ))
}
