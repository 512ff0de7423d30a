//! How long clients wait for a lease, by how they back off.

use conclave_quorum::draw::{Axis, Chart, Panel, Trace, panels};
use conclave_sim::lease::response::{Burst, Load, Style, burst, load, styles};

use super::figure::{Figure, Judgement, Made, Paper, Verdict};
use super::pool::Setting;
use super::table::{Cell, Table};
use crate::sim::short;

/// How many clients come at once.
const CLIENTS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// How many clients come per span where they come one by one.
const RATES: [f64; 3] = [0.2, 0.4, 0.5];
/// More attempts are cut off in the picture, where they would hide the rest.
const ATTEMPTS_SHOWN: f64 = 40.0;
/// The published way to wait.
const PUBLISHED: &str = "exponential";

pub(super) static FIGURES: [Figure; 2] = [
    Figure {
        id: "backoff",
        paper: Paper::Backoff,
        place: "Lemma 2 and Corollary 1",
        title: "Waits for a lease of clients that come at once",
        claim: "A client without rivals waits one round trip. If t clients come at once, the mean \
                wait is in proportion to t and to the span of a lease (Corollary 1), and so is the \
                time until all have had it (Lemma 2).",
        columns: &[
            "backoff",
            "clients",
            "runs",
            "mean_over_span_clients",
            "last_over_span_clients",
            "attempts_per_client",
        ],
        draw: draw_bursts,
        judge: judge_bursts,
    },
    Figure {
        id: "backoff-load",
        paper: Paper::Backoff,
        place: "Section 3, after Corollary 1",
        title: "Waits for a lease of clients that come one by one",
        claim: "Exponential backoff is expected to do less well in other measures than polynomial \
                backoff, as on a shared channel.",
        columns: &[
            "backoff",
            "leases_per_span",
            "clients",
            "median_spans",
            "mean_spans",
            "p99_spans",
        ],
        draw: draw_loads,
        judge: judge_loads,
    },
];

/// One thing to simulate.
#[derive(Clone, Copy)]
enum Task {
    Burst { clients: u32, runs: u32 },
    Load { rate: f64, clients: u32, runs: u32 },
}

/// What came of it.
enum Done {
    Burst(Burst),
    Load(Load),
}

impl Task {
    fn run(self, style: Style, seed: u64) -> Done {
        match self {
            Self::Burst { clients, runs } => Done::Burst(burst(style, clients, runs, seed)),
            Self::Load {
                rate,
                clients,
                runs,
            } => Done::Load(load(style, rate, clients, runs, seed)),
        }
    }

    fn cost(self) -> u64 {
        match self {
            Self::Burst { clients, runs } => u64::from(clients) * u64::from(runs),
            Self::Load { clients, runs, .. } => 4 * u64::from(clients) * u64::from(runs),
        }
    }
}

pub(super) fn make(setting: &Setting) -> Vec<Made> {
    let tasks = tasks(setting);
    let done = setting.each(
        "waits for leases",
        &tasks,
        |(_, task)| task.cost(),
        |(style, task)| task.run(*style, setting.seed),
    );
    let mut bursts = Table::new(FIGURES[0].columns);
    let mut loads = Table::new(FIGURES[1].columns);
    for ((style, _), done) in tasks.iter().zip(done) {
        match done {
            Done::Burst(burst) => bursts.push([
                style.name.into(),
                burst.clients.into(),
                burst.runs.into(),
                burst.mean.into(),
                burst.last.into(),
                burst.attempts.into(),
            ]),
            Done::Load(load) => loads.push([
                style.name.into(),
                load.rate.into(),
                load.clients.into(),
                load.median.into(),
                load.mean.into(),
                load.p99.into(),
            ]),
        }
    }
    let made = FIGURES.iter().zip([bursts, loads]);
    made.map(|(figure, table)| Made { figure, table }).collect()
}

fn tasks(setting: &Setting) -> Vec<(Style, Task)> {
    let most = setting.either(1024, 64);
    let work: u32 = setting.either(4096, 200);
    let mut tasks = Vec::new();
    for style in styles() {
        for clients in CLIENTS.into_iter().filter(|clients| *clients <= most) {
            let runs = (work / clients).clamp(4, 400);
            tasks.push((style, Task::Burst { clients, runs }));
        }
        for rate in RATES {
            let (clients, runs) = setting.either((1000, 4), (200, 1));
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

/// A line that theory gives, over the clients of the table.
fn theory(table: &Table, name: &str, value: impl Fn(f64) -> f64) -> Trace {
    let clients = table.numbers("clients").into_iter();
    Trace {
        name: name.to_owned(),
        points: clients.map(|clients| (clients, value(clients))).collect(),
    }
}

fn draw_bursts(table: &Table) -> String {
    let panel = |title: &str, up: &str, column: &str, more: Vec<Trace>| {
        let mut traces = table.traces(("backoff", ""), "clients", column);
        for trace in &mut traces {
            if column == "attempts_per_client" {
                trace
                    .points
                    .retain(|(_, attempts)| *attempts <= ATTEMPTS_SHOWN);
            }
        }
        traces.extend(more);
        Panel {
            title: title.to_owned(),
            across: "clients that come at once".to_owned(),
            up: up.to_owned(),
            chart: Chart::Curves {
                traces,
                x: Axis::Log,
                y: Axis::FromZero,
            },
        }
    };
    let over = "over span and clients";
    let shown = [
        panel(
            "Mean wait; claimed to be in proportion to the clients",
            over,
            "mean_over_span_clients",
            vec![theory(table, "claimed", |_| 2.0)],
        ),
        panel(
            "Wait of the last client; claimed likewise, but it needs a logarithm more",
            over,
            "last_over_span_clients",
            vec![
                theory(table, "claimed", |_| 2.0),
                theory(table, "with a logarithm", |clients| 1.4 * clients.log2()),
            ],
        ),
        panel(
            "Attempts; about the logarithm of the clients and one more",
            "per client",
            "attempts_per_client",
            vec![theory(table, "with a logarithm", |clients| {
                clients.log2() + 1.0
            })],
        ),
    ];
    let lines = [
        "Leases of 6 nodes, one of which votes for nobody; a delay is a tenth of the \
                  span; virtual time."
            .to_owned(),
    ];
    panels("Waits for a lease, by backoff", &lines, &shown)
}

fn judge_bursts(table: &Table) -> Judgement {
    let value = |clients: f64, column: &str| {
        let keys = [("backoff", PUBLISHED.into()), ("clients", clients.into())];
        table.at(&keys, column).unwrap_or(f64::NAN)
    };
    let most = table.numbers("clients").last().copied().unwrap_or(1.0);
    let (mean, last) = ("mean_over_span_clients", "last_over_span_clients");
    let alone = value(1.0, "attempts_per_client");
    // A delay is a tenth of the span, so a round trip takes up to a fifth.
    let alone_held = alone == 1.0 && value(1.0, mean) <= 0.2;
    let (mean_from, mean_to) = (value(8.0, mean), value(most, mean));
    let (last_from, last_to) = (value(8.0, last), value(most, last));
    // Twice eight clients' share over many doublings is growth, not chance.
    let flat = |from: f64, to: f64| to <= 1.5 * from;
    let parts = [
        alone_held,
        flat(mean_from, mean_to),
        flat(last_from, last_to),
    ];
    let found = format!(
        "Alone: {} attempt, {} spans. With exponential waits, 8 and then {most} clients: mean wait \
         {} and {} times span and clients, wait of the last one {} and {} times.",
        short(alone),
        short(value(1.0, mean)),
        short(mean_from),
        short(mean_to),
        short(last_from),
        short(last_to),
    );
    let why = if parts[2] {
        ""
    } else {
        "The mean keeps the claim. The last client does not: the proof of Lemma 2 sums waits of \
         O(log t) attempts as if each were as long as the first that suffices, but whoever is \
         last draws from intervals that go on doubling, which costs a factor of log t. Waits that \
         grow with a power of the failures, and votes given back after each failure, keep the last \
         wait in proportion as well; the service does that."
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

fn draw_loads(table: &Table) -> String {
    let panel = |title: &str, column: &str| Panel {
        title: title.to_owned(),
        across: "clients per span".to_owned(),
        up: "spans".to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("backoff", ""), "leases_per_span", column),
            x: Axis::Fit,
            y: Axis::Log,
        },
    };
    let shown = [
        panel("Mean wait", "mean_spans"),
        panel("One client in a hundred waits longer", "p99_spans"),
    ];
    let lines = [
        "Clients come at random times, each for one lease of one span; virtual time.".to_owned(),
    ];
    panels(
        "Waits for a lease under a steady load, by backoff",
        &lines,
        &shown,
    )
}

fn judge_loads(table: &Table) -> Judgement {
    let rates = table.numbers("leases_per_span");
    let p99 = |style: &str, rate: f64| {
        let keys: [(&str, Cell); 2] = [("backoff", style.into()), ("leases_per_span", rate.into())];
        table.at(&keys, "p99_spans").unwrap_or(f64::NAN)
    };
    let pairs = [
        (PUBLISHED, "quadratic"),
        ("exponential, release", "power 1.5, release"),
    ];
    let better = |rate: f64| {
        let wins = pairs.map(|(exponential, power)| p99(power, rate) < p99(exponential, rate));
        wins.iter().all(|win| *win)
    };
    let parts: Vec<bool> = rates.iter().map(|rate| better(*rate)).collect();
    let most = rates.last().copied().unwrap_or(f64::NAN);
    let least = rates.first().copied().unwrap_or(f64::NAN);
    let told = pairs.map(|(exponential, power)| {
        format!(
            "{exponential} {} and {}, {power} {} and {}",
            short(p99(exponential, least)),
            short(p99(exponential, most)),
            short(p99(power, least)),
            short(p99(power, most)),
        )
    });
    let found = format!(
        "The wait that one in a hundred exceeds, in spans, at {least} and {most} clients per span: \
         {}.",
        told.join("; ")
    );
    let verdict = Verdict::of(&parts);
    let why = match verdict {
        Verdict::Held => "",
        _ => {
            "Where clients seldom meet, the way to back off hardly matters, and small differences \
             are chance. Near the most that leases can carry, powers win clearly."
        }
    };
    Judgement::new(verdict, found, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bursts(last: f64) -> Table {
        let mut table = Table::new(FIGURES[0].columns);
        let mut row = |clients: u32, mean: f64, last: f64| {
            let attempts = f64::from(clients).log2() + 1.0;
            table.push([
                PUBLISHED.into(),
                clients.into(),
                4u32.into(),
                mean.into(),
                last.into(),
                attempts.into(),
            ]);
        };
        row(1, 0.13, 0.13);
        row(8, 1.7, 4.0);
        row(64, 1.8, last);
        table
    }

    #[test]
    fn growth_by_a_logarithm_is_told_from_proportion() {
        assert_eq!(judge_bursts(&bursts(4.4)).verdict, Verdict::Held);
        let grown = judge_bursts(&bursts(8.0));
        assert_eq!(grown.verdict, Verdict::InPart);
        assert!(grown.why.contains("log t"));
        assert_eq!(
            judge_bursts(&Table::new(FIGURES[0].columns)).verdict,
            Verdict::NotHeld
        );
    }

    #[test]
    fn a_power_must_win_at_every_rate() {
        let table = |power: f64| {
            let mut table = Table::new(FIGURES[1].columns);
            for rate in [0.2, 0.5] {
                for (style, p99) in [
                    (PUBLISHED, 9.0),
                    ("quadratic", power),
                    ("exponential, release", 9.0),
                    ("power 1.5, release", power * rate),
                ] {
                    let cell = || Cell::from(p99);
                    table.push([
                        style.into(),
                        rate.into(),
                        1u32.into(),
                        cell(),
                        cell(),
                        cell(),
                    ]);
                }
            }
            table
        };
        assert_eq!(judge_loads(&table(5.0)).verdict, Verdict::Held);
        assert_eq!(judge_loads(&table(50.0)).verdict, Verdict::NotHeld);
    }
}
