//! The hierarchy beside other algorithms, its least delay, and hierarchies of many nodes.

use conclave_quorum::draw::{Axis, Chart, Panel, panels};
use conclave_quorum::measure::hierarchy::{paper_delay, true_delay};
use conclave_sim::multilevel::{Kind, Measured};

use super::simulated::{Point, measure};
use super::{NODES, UPS};
use crate::cli::Failure;
use crate::figures::figure::{Figure, Judgement, Made, Paper, Verdict};
use crate::figures::pool::Setting;
use crate::figures::table::Table;
use crate::sim::short;

const OURS: &str = "parallel hierarchy, best level";
const TREE: &str = "tree quorums without clusters [9]";
const SEQUENTIAL: &str = "hierarchy level by level with coordinators [25]";
const PATIENT: &str = "primary and backup, asked again after 500 [39]";
const HASTY: &str = "primary and backup, asked again after 50 [39]";

/// How long a backup takes to stand in.
const FAILOVER: u64 = 200;
/// Time to send a message, and its way, in the figure of delays.
const SEND: f64 = 8.0;
const WAY: f64 = 12.0;

const COLUMNS: [&str; 5] = ["algorithm", "up", "levels", "messages", "waiting"];

pub(super) static FIGURES: [Figure; 4] = [
    Figure {
        id: "multilevel-12",
        paper: Paper::Multilevel,
        place: "Figure 12",
        title: "Messages per entry of four algorithms, 1,200 nodes",
        claim: "The parallel hierarchy needs the fewest messages of the four, and its lead grows \
                as nodes are up less often.",
        columns: &COLUMNS,
        draw: |table| draw_rivals(table, "messages", "Messages per entry"),
        judge: |table| judge_rivals(table, "messages", &UPS),
    },
    Figure {
        id: "multilevel-13",
        paper: Paper::Multilevel,
        place: "Figure 13",
        title: "Waiting with four algorithms, 1,200 nodes",
        claim: "The parallel hierarchy waits least of the four, above all where nodes are up less \
                than 95 % of the time; of the two hierarchies the parallel one is faster.",
        columns: &COLUMNS,
        draw: |table| draw_rivals(table, "waiting", "Waiting, from the request to the entry"),
        judge: |table| judge_rivals(table, "waiting", &UPS),
    },
    Figure {
        id: "multilevel-delay",
        paper: Paper::Multilevel,
        place: "Section III.E.3",
        title: "Least delay of an entry",
        claim: "With P to send a message and T for its way, an entry takes (2l+1)(P+T) + qP + T.",
        columns: &["levels", "quorum", "formula", "corrected", "measured"],
        draw: draw_delay,
        judge: judge_delay,
    },
    Figure {
        id: "multilevel-large",
        paper: Paper::Multilevel,
        place: "not in the paper",
        title: "Up to 100,000 nodes, up 90 % of the time",
        claim: "How do messages and waiting grow beyond the 1,200 nodes that the paper could \
                simulate?",
        columns: &[
            "levels",
            "nodes",
            "messages",
            "predicted",
            "waiting",
            "waiting_p99",
        ],
        draw: draw_large,
        judge: judge_large,
    },
];

pub(super) fn make(setting: &Setting, points: &[(Point, Measured)]) -> Result<Vec<Made>, Failure> {
    let rivals = rivals(setting, points)?;
    let tables = [rivals.clone(), rivals, delays(setting)?, large(setting)?];
    let made = FIGURES.iter().zip(tables);
    Ok(made.map(|(figure, table)| Made { figure, table }).collect())
}

/// What is simulated beside the hierarchy itself.
#[derive(Clone, Copy)]
struct Rival {
    name: &'static str,
    up: f64,
    levels: usize,
    kind: Kind,
}

fn rivals(setting: &Setting, points: &[(Point, Measured)]) -> Result<Table, Failure> {
    let mut tasks = Vec::new();
    for up in UPS {
        for levels in 1..=2 {
            tasks.push(Rival {
                name: SEQUENTIAL,
                up,
                levels,
                kind: Kind::Sequential,
            });
        }
        for (name, retry) in [(PATIENT, 500), (HASTY, 50)] {
            let failover = FAILOVER;
            tasks.push(Rival {
                name,
                up,
                levels: 0,
                kind: Kind::PrimaryBackup { retry, failover },
            });
        }
    }
    let entries = setting.either(20_000, 150);
    let found = setting.each(
        "other algorithms",
        &tasks,
        |task| ((1.3 - task.up) * 100.0) as u64,
        |task| {
            let point = Point {
                levels: task.levels,
                nodes: NODES,
                up: task.up,
            };
            measure(point, setting, |scenario| {
                scenario.kind = task.kind;
                scenario.entries = entries;
            })
        },
    );
    let mut rows: Vec<(&str, f64, usize, f64, f64)> = Vec::new();
    for (point, found) in points.iter().filter(|(point, _)| point.nodes == NODES) {
        let name = if point.levels == 0 { TREE } else { OURS };
        let messages = found.messages_per_entry;
        rows.push((name, point.up, point.levels, messages, found.waiting_mean));
        // The hierarchy without levels is the tree algorithm, and may be its best.
        if point.levels == 0 {
            rows.push((OURS, point.up, 0, messages, found.waiting_mean));
        }
    }
    for (task, found) in tasks.iter().zip(found) {
        let found = found?;
        let messages = found.messages_per_entry + found.elections_per_entry;
        rows.push((
            task.name,
            task.up,
            task.levels,
            messages,
            found.waiting_mean,
        ));
    }
    let mut table = Table::new(&COLUMNS);
    for name in [OURS, TREE, SEQUENTIAL, PATIENT, HASTY] {
        for up in UPS {
            let ours = rows.iter().filter(|row| row.0 == name && row.1 == up);
            let best = ours.min_by(|a, b| a.3.total_cmp(&b.3));
            if let Some((_, _, levels, messages, waiting)) = best {
                table.push([
                    name.into(),
                    up.into(),
                    (*levels).into(),
                    (*messages).into(),
                    (*waiting).into(),
                ]);
            }
        }
    }
    Ok(table)
}

fn draw_rivals(table: &Table, column: &str, title: &str) -> String {
    let panel = Panel {
        title: String::new(),
        across: "share of time that a node is up".to_owned(),
        up: column.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("algorithm", ""), "up", column),
            x: Axis::Falling,
            y: Axis::Log,
        },
    };
    let lines = ["Each at the level where it needs the fewest messages.".to_owned()];
    panels(title, &lines, &[panel])
}

fn at(table: &Table, name: &str, up: f64, column: &str) -> f64 {
    let keys = [("algorithm", name.into()), ("up", up.into())];
    table.at(&keys, column).unwrap_or(f64::NAN)
}

/// The hierarchy must not be above a rival where the claim speaks of it.
fn judge_rivals(table: &Table, column: &str, ups: &[f64]) -> Judgement {
    let value = |name: &str, up: f64| at(table, name, up, column);
    let beats = |name: &str| {
        let mut ups = ups.iter();
        ups.all(|up| value(OURS, *up) <= value(name, *up))
    };
    let grows = |name: &str| {
        let lead = |up: f64| value(name, up) - value(OURS, up);
        lead(UPS[5]) > lead(UPS[0])
    };
    let parts = [
        beats(TREE) && grows(TREE),
        beats(SEQUENTIAL) && grows(SEQUENTIAL),
        beats(PATIENT) || beats(HASTY),
    ];
    let told = [OURS, TREE, SEQUENTIAL, PATIENT, HASTY].map(|name| {
        let values = [UPS[0], UPS[1], UPS[3], UPS[5]].map(|up| short(value(name, up)));
        format!("{name} {}", values.join(", "))
    });
    let found = format!(
        "With nodes up 1, 0.95, 0.85 and 0.75 of the time: {}.",
        told.join("; ")
    );
    let why = if parts.iter().all(|part| *part) {
        ""
    } else if column == "messages" {
        "Against the tree and the older hierarchy the claim holds. A primary with a backup needs \
         seven messages; it comes near only if clients that get no answer ask again very often. \
         The paper does not say how often they do. What it pays is waiting (Figure 13). \
         Elections of coordinators are estimated, not simulated."
    } else {
        "Where two servers seldom fail together, asking one of them is faster than any quorum."
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

fn delays(setting: &Setting) -> Result<Table, Failure> {
    let tasks: [(usize, usize, usize); 5] =
        [(0, 3, 7), (1, 3, 49), (2, 3, 343), (1, 4, 225), (0, 4, 15)];
    let found = setting.each(
        "least delay",
        &tasks,
        |(_, _, nodes)| *nodes as u64,
        |(levels, _, nodes)| {
            let point = Point {
                levels: *levels,
                nodes: *nodes,
                up: 1.0,
            };
            measure(point, setting, |scenario| {
                scenario.entries = setting.either(4000, 300);
                (scenario.send, scenario.way) = ((SEND, 0.0), (WAY, 0.0));
                // So seldom that requests do not meet.
                scenario.gap = *nodes as u64 * 1_000_000;
            })
        },
    );
    let mut table = Table::new(FIGURES[2].columns);
    for ((levels, quorum, _), found) in tasks.iter().zip(found) {
        table.push([
            (*levels).into(),
            (*quorum).into(),
            paper_delay(*levels, *quorum, SEND, WAY).into(),
            true_delay(*levels, *quorum, SEND, WAY).into(),
            // Whoever asks itself saves a way; nearly the longest wait is one that saves none.
            found?.waiting_p99.into(),
        ]);
    }
    Ok(table)
}

fn draw_delay(table: &Table) -> String {
    let quorums = table.distinct("quorum");
    let mut shown = Vec::new();
    for quorum in quorums {
        let line = |name: &str, column: &str| conclave_quorum::draw::Trace {
            name: name.to_owned(),
            points: table.points(("quorum", &quorum), "levels", column),
        };
        shown.push(Panel {
            title: format!("Quorums of {}", quorum.shown()),
            across: "levels below the root".to_owned(),
            up: "units of time".to_owned(),
            chart: Chart::Curves {
                traces: vec![
                    line("the paper's formula", "formula"),
                    line("corrected", "corrected"),
                    line("measured", "measured"),
                ],
                x: Axis::Fit,
                y: Axis::FromZero,
            },
        });
    }
    let lines = ["P = 8, T = 12, nothing left to chance.".to_owned()];
    panels("Least delay of an entry", &lines, &shown)
}

fn judge_delay(table: &Table) -> Judgement {
    let mut told = Vec::new();
    let (mut flat, mut deep) = (true, true);
    for levels in table.numbers("levels") {
        for quorum in table.numbers("quorum") {
            let keys = [("levels", levels.into()), ("quorum", quorum.into())];
            let value = |column: &str| table.at(&keys, column);
            let (Some(formula), Some(measured)) = (value("formula"), value("measured")) else {
                continue;
            };
            let same = (formula - measured).abs() < 1e-6;
            if levels == 0.0 {
                flat &= same;
            } else {
                deep &= same;
            }
            told.push(format!(
                "l={levels} q={quorum}: {formula}, {}",
                short(measured)
            ));
        }
    }
    let parts = [
        flat && !table.rows.is_empty(),
        deep && !table.rows.is_empty(),
    ];
    let found = format!("By formula, and measured: {}.", told.join("; "));
    let why = if deep {
        ""
    } else {
        "Without clusters the formula is right. With them the true value is one P larger: each \
         level first sends its announcement to the level above, so that its own requests leave P \
         later than the formula counts (see the errata)."
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

/// As many requests and failures per unit of time as 1,200 nodes have.
fn large(setting: &Setting) -> Result<Table, Failure> {
    let sizes: &[usize] = setting.either(&[1200, 10_000, 100_000], &[1200, 10_000]);
    let mut points = Vec::new();
    for nodes in sizes {
        for levels in 0..=4 {
            points.push(Point {
                levels,
                nodes: *nodes,
                up: 0.9,
            });
        }
    }
    let found = setting.each(
        "many nodes",
        &points,
        |point| point.nodes as u64,
        |point| {
            measure(*point, setting, |scenario| {
                scenario.entries = setting.either(5000, 60);
                let times = point.nodes as f64 / NODES as f64;
                scenario.gap = (scenario.gap as f64 * times) as u64;
                scenario.recovery = (scenario.recovery as f64 * times) as u64;
            })
        },
    );
    let mut table = Table::new(FIGURES[3].columns);
    for (point, found) in points.iter().zip(found) {
        let found = found?;
        table.push([
            point.levels.into(),
            point.nodes.into(),
            found.messages_per_entry.into(),
            found.predicted.into(),
            found.waiting_mean.into(),
            found.waiting_p99.into(),
        ]);
    }
    Ok(table)
}

fn draw_large(table: &Table) -> String {
    let panel = |title: &str, column: &str, up: &str| Panel {
        title: title.to_owned(),
        across: "nodes".to_owned(),
        up: up.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("levels", "levels below the root: "), "nodes", column),
            x: Axis::Log,
            y: Axis::FromZero,
        },
    };
    let shown = [
        panel("Messages per entry", "messages", "messages"),
        panel(
            "Waiting, from the request to the entry",
            "waiting",
            "units of time",
        ),
    ];
    let lines = ["As many requests and failures per unit of time as 1,200 nodes have.".to_owned()];
    panels("Hierarchies of many nodes", &lines, &shown)
}

fn judge_large(table: &Table) -> Judgement {
    let told = table.numbers("nodes").into_iter().map(|nodes| {
        let by = |column: &str| {
            let found = super::best(table, ("nodes", nodes), column);
            found.map_or("-".to_owned(), |(levels, value)| {
                format!("{} with {levels} levels", short(value))
            })
        };
        let flat = |column: &str| {
            let keys = [("levels", 0u32.into()), ("nodes", nodes.into())];
            table.at(&keys, column).map_or("-".to_owned(), short)
        };
        format!(
            "{nodes} nodes: fewest messages {} ({} without clusters), least waiting {} ({})",
            by("messages"),
            flat("messages"),
            by("waiting"),
            flat("waiting")
        )
    });
    let told: Vec<String> = told.collect();
    Judgement::new(Verdict::Ours, format!("{}.", told.join("; ")), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_that_needs_less_is_told() {
        let table = |primary: f64| {
            let mut table = Table::new(&COLUMNS);
            for (place, up) in (0u32..).zip(UPS) {
                let grows = f64::from(place);
                for (name, value) in [
                    (OURS, 40.0),
                    (TREE, 41.0 + grows),
                    (SEQUENTIAL, 42.0 + grows),
                    (PATIENT, primary),
                    (HASTY, primary),
                ] {
                    table.push([
                        name.into(),
                        up.into(),
                        1u32.into(),
                        value.into(),
                        value.into(),
                    ]);
                }
            }
            table
        };
        assert_eq!(
            judge_rivals(&table(50.0), "messages", &UPS).verdict,
            Verdict::Held
        );
        let part = judge_rivals(&table(7.0), "messages", &UPS);
        assert_eq!(part.verdict, Verdict::InPart);
        assert!(part.why.contains("seven messages"));
    }

    #[test]
    fn a_delay_that_is_longer_than_the_formula_is_told() {
        let table = |late: f64| {
            let mut table = Table::new(FIGURES[2].columns);
            for (levels, formula) in [(0u32, 56.0), (1, 96.0)] {
                let measured = formula + late * f64::from(levels);
                table.push([
                    levels.into(),
                    3u32.into(),
                    formula.into(),
                    measured.into(),
                    measured.into(),
                ]);
            }
            table
        };
        assert_eq!(judge_delay(&table(0.0)).verdict, Verdict::Held);
        assert_eq!(judge_delay(&table(8.0)).verdict, Verdict::InPart);
    }
}
