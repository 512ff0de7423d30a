//! The simulations of the paper: messages and waiting over nodes, levels and availability.

use std::sync::Arc;

use conclave_protocol::multilevel::Topology;
use conclave_quorum::draw::{Axis, Bar, Chart, Panel, panels};
use conclave_sim::multilevel::{Kind, Measured, Scenario, run as simulate};

use super::{NODES, UPS, best, built};
use crate::cli::Failure;
use crate::figures::figure::{Figure, Judgement, Made, Paper, Verdict};
use crate::figures::pool::Setting;
use crate::figures::table::Table;
use crate::sim::short;

/// The most levels below the root that are simulated.
const LEVELS: usize = 3;
/// How much two costs may differ by chance and still count as equal.
const TIE: f64 = 0.03;

pub(super) const COLUMNS: [&str; 9] = [
    "levels",
    "nodes",
    "up",
    "messages",
    "without_own",
    "predicted",
    "waiting",
    "waiting_p99",
    "entries",
];

const ACROSS_UP: &str = "share of time that a node is up";

pub(super) static FIGURES: [Figure; 6] = [
    Figure {
        id: "multilevel-7a",
        paper: Paper::Multilevel,
        place: "Figure 7 (a)",
        title: "Messages per entry by level, nodes up 95 % of the time, 1,200 nodes",
        claim: "There is an optimal level of clustering, and it is 1.",
        columns: &COLUMNS,
        draw: draw_levels,
        judge: |table| judge_levels(table, &[1.0]),
    },
    Figure {
        id: "multilevel-7b",
        paper: Paper::Multilevel,
        place: "Figure 7 (b)",
        title: "Messages per entry by level, nodes up 85 % of the time, 1,200 nodes",
        claim: "With nodes that are up less often, the optimal level is higher than in 7 (a).",
        columns: &COLUMNS,
        draw: draw_levels,
        judge: |table| judge_levels(table, &[2.0, 3.0]),
    },
    Figure {
        id: "multilevel-8",
        paper: Paper::Multilevel,
        place: "Figure 8",
        title: "Messages per entry over the number of nodes, nodes up 85 % of the time",
        claim: "Clusters lower the messages, and the more nodes there are the more they save.",
        columns: &COLUMNS,
        draw: |table| draw_lines(table, "messages", "nodes", Axis::Fit, "nodes"),
        judge: judge_gap,
    },
    Figure {
        id: "multilevel-9",
        paper: Paper::Multilevel,
        place: "Figure 9",
        title: "Messages per entry over how often nodes are up, 1,200 nodes",
        claim: "Without clusters an entry is cheapest if all nodes are up, and by far dearest if \
                they often are not.",
        columns: &COLUMNS,
        draw: |table| draw_lines(table, "messages", "up", Axis::Falling, ACROSS_UP),
        judge: judge_ends,
    },
    Figure {
        id: "multilevel-10",
        paper: Paper::Multilevel,
        place: "Figure 10",
        title: "Waiting over the number of nodes, nodes up 85 % of the time",
        claim: "With clusters one waits less than without, at every level; a further level may \
                need fewer messages and yet wait longer.",
        columns: &COLUMNS,
        draw: |table| draw_lines(table, "waiting", "nodes", Axis::Fit, "nodes"),
        judge: |table| judge_waiting(table, "nodes"),
    },
    Figure {
        id: "multilevel-11",
        paper: Paper::Multilevel,
        place: "Figure 11",
        title: "Waiting over how often nodes are up, 1,200 nodes",
        claim: "With clusters one waits less than without, at every level; a further level may \
                need fewer messages and yet wait longer.",
        columns: &COLUMNS,
        draw: |table| draw_lines(table, "waiting", "up", Axis::Falling, ACROSS_UP),
        judge: |table| judge_waiting(table, "up"),
    },
];

/// One world of the set-up of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) levels: usize,
    pub(super) nodes: usize,
    pub(super) up: f64,
}

/// Simulates a point; `adjust` changes the set-up of the paper.
pub(super) fn measure(
    point: Point,
    setting: &Setting,
    adjust: impl Fn(&mut Scenario),
) -> Result<Measured, Failure> {
    let Point { levels, nodes, up } = point;
    let clusters = built(nodes, levels)
        .ok_or_else(|| Failure::Input(format!("{nodes} nodes have no {levels} levels")))?;
    let mut scenario = Scenario::new(Arc::new(Topology::trees(clusters)), up);
    scenario.seed = setting.seed;
    scenario.kind = Kind::Parallel;
    adjust(&mut scenario);
    Ok(simulate(&scenario, &mut |_| ()))
}

/// All points of these figures, simulated.
pub(super) fn run(setting: &Setting) -> Result<Vec<(Point, Measured)>, Failure> {
    let mut points = Vec::new();
    for levels in 0..=LEVELS {
        for up in UPS {
            points.push(Point {
                levels,
                nodes: NODES,
                up,
            });
        }
        for nodes in setting.either(&[600, 700, 800, 900, 1000, 1100][..], &[600, 900]) {
            points.push(Point {
                levels,
                nodes: *nodes,
                up: 0.85,
            });
        }
    }
    let entries = setting.either(20_000, 300);
    let found = setting.each(
        "hierarchies",
        &points,
        // Failures are as frequent as nodes, and quorums without clusters are large.
        |point| ((1.3 - point.up) * 100.0) as u64 * (8 - point.levels as u64) + 1,
        |point| measure(*point, setting, |scenario| scenario.entries = entries),
    );
    let pairs = points.into_iter().zip(found);
    pairs.map(|(point, found)| Ok((point, found?))).collect()
}

/// The tables of the figures, each with its part of the points.
pub(super) fn make(points: &[(Point, Measured)]) -> Vec<Made> {
    let wide = |point: &Point| point.nodes == NODES;
    let table = |wanted: &dyn Fn(&Point) -> bool| {
        let mut table = Table::new(&COLUMNS);
        for (point, found) in points.iter().filter(|(point, _)| wanted(point)) {
            push(&mut table, *point, found);
        }
        table
    };
    let tables = [
        table(&|point| wide(point) && point.up == 0.95),
        table(&|point| wide(point) && point.up == 0.85),
        table(&|point| point.up == 0.85),
        table(&wide),
        table(&|point| point.up == 0.85),
        table(&wide),
    ];
    let made = FIGURES.iter().zip(tables);
    made.map(|(figure, table)| Made { figure, table }).collect()
}

pub(super) fn push(table: &mut Table, point: Point, found: &Measured) {
    table.push([
        point.levels.into(),
        point.nodes.into(),
        point.up.into(),
        found.messages_per_entry.into(),
        found.without_self.into(),
        found.predicted.into(),
        found.waiting_mean.into(),
        found.waiting_p99.into(),
        (found.entries as f64).into(),
    ]);
}

fn draw_levels(table: &Table) -> String {
    let panel = |title: &str, column: &str| {
        let at = |levels: f64, column: &str| {
            let found = table.at(&[("levels", levels.into())], column);
            found.unwrap_or(f64::NAN)
        };
        let levels = table.numbers("levels");
        let bars = levels.iter().map(|levels| Bar {
            name: format!("{levels}"),
            value: at(*levels, column),
        });
        let line = levels.iter().map(|levels| at(*levels, "predicted"));
        Panel {
            title: title.to_owned(),
            across: "levels below the root".to_owned(),
            up: "messages".to_owned(),
            chart: Chart::Bars {
                bars: bars.collect(),
                line: (column == "messages")
                    .then(|| ("predicted by formula".to_owned(), line.collect())),
            },
        }
    };
    let shown = [
        panel("All messages", "messages"),
        panel("Without those of a node to itself", "without_own"),
    ];
    panels("Messages per entry", &[], &shown)
}

fn draw_lines(table: &Table, column: &str, x: &str, axis: Axis, across: &str) -> String {
    let up = if column == "messages" {
        "messages"
    } else {
        "units of time, of which a message takes 12"
    };
    let panel = Panel {
        title: String::new(),
        across: across.to_owned(),
        up: up.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("levels", "levels below the root: "), x, column),
            x: axis,
            y: Axis::FromZero,
        },
    };
    let title = if column == "messages" {
        "Messages per entry"
    } else {
        "Waiting, from the request to the entry"
    };
    panels(title, &[], &[panel])
}

/// The values of a column by level, as text.
fn by_level(table: &Table, x: (&str, f64), column: &str) -> String {
    let value = |levels: &f64| {
        let keys = [("levels", (*levels).into()), (x.0, x.1.into())];
        table.at(&keys, column).map_or("-".to_owned(), short)
    };
    let values: Vec<String> = table.numbers("levels").iter().map(value).collect();
    values.join(", ")
}

fn judge_levels(table: &Table, wanted: &[f64]) -> Judgement {
    let up = table.numbers("up").first().copied().unwrap_or(f64::NAN);
    let least = |column: &str| best(table, ("up", up), column).unwrap_or((f64::NAN, f64::NAN));
    let (all, own) = (least("messages"), least("without_own"));
    let near = wanted.iter().any(|levels| {
        let found = table.at(&[("levels", (*levels).into())], "messages");
        found.is_some_and(|found| found <= all.1 * (1.0 + TIE))
    });
    let verdict = if wanted.contains(&all.0) {
        Verdict::Held
    } else if near {
        Verdict::InPart
    } else {
        Verdict::NotHeld
    };
    let entries = table.numbers("entries").first().copied().unwrap_or(0.0);
    let found = format!(
        "With 0 to {LEVELS} levels: {} messages; best at {}. Without a node's messages to itself: \
         {}; best at {}. {} entries each.",
        by_level(table, ("up", up), "messages"),
        short(all.0),
        by_level(table, ("up", up), "without_own"),
        short(own.0),
        short(entries),
    );
    let why = if verdict == Verdict::InPart {
        "A tie: the claimed level needs at most 3 % more messages than the best one."
    } else {
        "Request, permission and release are counted, as well as a node's messages to itself; the \
         paper does not say whether it counts these."
    };
    Judgement::new(verdict, found, why)
}

fn judge_gap(table: &Table) -> Judgement {
    let nodes = table.numbers("nodes");
    let saved = |nodes: f64| {
        let keys = [("levels", 0u32.into()), ("nodes", nodes.into())];
        let flat = table.at(&keys, "messages").unwrap_or(f64::NAN);
        let (levels, least) = best(table, ("nodes", nodes), "messages").unwrap_or((0.0, f64::NAN));
        (levels, flat - least)
    };
    let ends = (nodes.first().copied(), nodes.last().copied());
    let (first, last) = (ends.0.unwrap_or(f64::NAN), ends.1.unwrap_or(f64::NAN));
    let parts = [
        !nodes.is_empty() && nodes.iter().all(|nodes| saved(*nodes).0 > 0.0),
        saved(last).1 > saved(first).1,
    ];
    let found = format!(
        "With 0 to {LEVELS} levels: {} messages for {first} nodes, {} for {last}. The best level \
         saves {} and {}.",
        by_level(table, ("nodes", first), "messages"),
        by_level(table, ("nodes", last), "messages"),
        short(saved(first).1),
        short(saved(last).1),
    );
    Judgement::new(Verdict::of(&parts), found, "")
}

fn judge_ends(table: &Table) -> Judgement {
    let ups = table.numbers("up");
    let (low, high) = (
        ups.first().copied().unwrap_or(f64::NAN),
        ups.last().copied().unwrap_or(f64::NAN),
    );
    let at = |levels: f64, up: f64| {
        let keys = [("levels", levels.into()), ("up", up.into())];
        table.at(&keys, "messages").unwrap_or(f64::NAN)
    };
    let others = |up: f64| (1..=LEVELS).map(move |levels| at(levels as f64, up));
    let parts = [
        others(high).all(|other| at(0.0, high) < other),
        // "By far": a third more than any other.
        others(low).all(|other| at(0.0, low) > 1.33 * other),
    ];
    let found = format!(
        "With 0 to {LEVELS} levels: {} messages with nodes up {high} of the time, {} with {low}.",
        by_level(table, ("up", high), "messages"),
        by_level(table, ("up", low), "messages"),
    );
    Judgement::new(Verdict::of(&parts), found, "")
}

fn judge_waiting(table: &Table, x: &str) -> Judgement {
    let values = table.numbers(x);
    let at = |levels: usize, value: f64, column: &str| {
        let keys = [("levels", levels.into()), (x, value.into())];
        table.at(&keys, column).unwrap_or(f64::NAN)
    };
    let less = |levels: usize| {
        let less = |value: &&f64| at(levels, **value, "waiting") < at(0, **value, "waiting");
        values.iter().filter(less).count()
    };
    let wins: Vec<usize> = (1..=LEVELS).map(less).collect();
    let cheaper_and_slower = values.iter().any(|value| {
        (1..LEVELS).any(|levels| {
            at(levels + 1, *value, "messages") < at(levels, *value, "messages")
                && at(levels + 1, *value, "waiting") > at(levels, *value, "waiting")
        })
    });
    let always = !values.is_empty() && wins.iter().all(|wins| *wins == values.len());
    let parts = [always, cheaper_and_slower];
    let (first, last) = (
        values.first().copied().unwrap_or(f64::NAN),
        values.last().copied().unwrap_or(f64::NAN),
    );
    let found = format!(
        "With 0 to {LEVELS} levels: {} at {first}, {} at {last}. Of {} points, 1, 2 and 3 levels \
         wait less than none at {}, {} and {}.",
        by_level(table, (x, first), "waiting"),
        by_level(table, (x, last), "waiting"),
        values.len(),
        wins[0],
        wins[1],
        wins[2],
    );
    let why = if always {
        ""
    } else {
        "Each level adds a step up and a step down to the way of a request, about 40 units of \
         time, and saves only what the smaller quorums save. If nodes are up nearly always, that \
         is less: one level pays from about 95 % on downwards, two from 90 %, three from 85 %."
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of levels, nodes, up, messages and waiting.
    fn table(rows: &[(u32, u32, f64, f64, f64)]) -> Table {
        let mut table = Table::new(&COLUMNS);
        for (levels, nodes, up, messages, waiting) in rows {
            table.push([
                (*levels).into(),
                (*nodes).into(),
                (*up).into(),
                (*messages).into(),
                (*messages).into(),
                (*messages).into(),
                (*waiting).into(),
                (*waiting).into(),
                20_000u32.into(),
            ]);
        }
        table
    }

    fn levels(messages: [f64; 4]) -> Table {
        let rows = (0..4)
            .zip(messages)
            .map(|(level, cost)| (level, 1200, 0.85, cost, 100.0));
        table(&rows.collect::<Vec<_>>())
    }

    #[test]
    fn the_optimal_level_is_judged_with_a_margin() {
        assert_eq!(
            judge_levels(&levels([55.0, 41.0, 40.0, 43.0]), &[2.0]).verdict,
            Verdict::Held
        );
        let tie = judge_levels(&levels([55.0, 40.0, 40.5, 43.0]), &[2.0]);
        assert_eq!(tie.verdict, Verdict::InPart);
        let wrong = judge_levels(&levels([30.0, 40.0, 41.0, 43.0]), &[2.0]);
        assert_eq!(wrong.verdict, Verdict::NotHeld);
    }

    #[test]
    fn savings_must_grow_with_the_nodes() {
        let rows = |last: f64| {
            table(&[
                (0, 600, 0.85, 48.0, 1.0),
                (1, 600, 0.85, 36.0, 1.0),
                (0, 1200, 0.85, last, 1.0),
                (1, 1200, 0.85, 40.0, 1.0),
            ])
        };
        assert_eq!(judge_gap(&rows(56.0)).verdict, Verdict::Held);
        assert_eq!(judge_gap(&rows(45.0)).verdict, Verdict::InPart);
        assert_eq!(judge_gap(&rows(39.0)).verdict, Verdict::NotHeld);
    }

    #[test]
    fn waiting_must_be_less_everywhere_to_hold() {
        let rows = |flat: f64| {
            let mut rows = Vec::new();
            for (up, best) in [(0.75, 260.0), (1.0, flat)] {
                rows.push((0, 1200, up, 80.0, best));
                rows.push((1, 1200, up, 42.0, 130.0));
                rows.push((2, 1200, up, 40.0, 150.0));
                rows.push((3, 1200, up, 43.0, 180.0));
            }
            table(&rows)
        };
        assert_eq!(judge_waiting(&rows(200.0), "up").verdict, Verdict::Held);
        assert_eq!(judge_waiting(&rows(110.0), "up").verdict, Verdict::InPart);
        let ends = judge_ends(&rows(110.0));
        assert_eq!(
            ends.verdict,
            Verdict::InPart,
            "flat is not cheapest if all are up"
        );
    }
}
