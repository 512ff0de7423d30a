//! The pictures of a comparison.

use conclave_quorum::draw::{Axis, Bar, Chart, Panel, Trace, panels};
use serde_json::Value;

use super::{Row, SYSTEMS, label, loads, rows, titles};

/// The loads after which the longest gap counts.
const FAULTS: [&str; 2] = ["kill", "stop"];
/// Whose latencies are shown: a client alone and a crowd.
const CROWDS: [u64; 2] = [1, 64];

/// All pictures of a result: the stem of the file's name, and the SVG.
pub(super) fn plots(result: &Value) -> Vec<(String, String)> {
    let rows = rows(result);
    let mut pictures = Vec::new();
    for load in loads(&rows) {
        if FAULTS.contains(&load.as_str()) {
            pictures.extend(gaps(&rows, &load).map(|svg| (format!("gap-{load}"), svg)));
        } else {
            let svg = throughput(&rows, &load);
            pictures.extend(svg.map(|svg| (format!("throughput-{load}"), svg)));
        }
    }
    for clients in crowds(&rows) {
        let svg = latency(&rows, clients);
        pictures.extend(svg.map(|svg| (format!("latency-{clients}"), svg)));
    }
    pictures
}

/// The systems of all rows in their order, so that each has one colour in all pictures.
fn systems<'a>(rows: &[Row<'a>]) -> Vec<&'a str> {
    let mut sorted: Vec<&Row<'a>> = rows.iter().collect();
    sorted.sort_by_key(|row| row.place());
    let mut systems: Vec<&str> = sorted.iter().map(|row| row.system).collect();
    systems.dedup();
    systems.retain(|system| *system != "echo");
    systems
}

/// Cycles a second over the number of clients, or as bars where there is one number only.
fn throughput(rows: &[Row<'_>], load: &str) -> Option<String> {
    let ours = || rows.iter().filter(|row| row.load == load);
    let mut counts: Vec<u64> = ours().map(|row| row.clients).collect();
    counts.sort_unstable();
    counts.dedup();
    let speed = |row: &Row<'_>| row.number("cycles_per_s").filter(|speed| *speed > 0.0);
    let chart = if counts.len() > 1 {
        let traces = systems(rows).into_iter().map(|system| {
            let points = ours().filter(|row| row.system == system);
            let points = points.filter_map(|row| Some((row.clients as f64, speed(row)?)));
            trace(system, points.collect())
        });
        let traces: Vec<Trace> = traces.collect();
        if traces.iter().all(|trace| trace.points.is_empty()) {
            return None;
        }
        Chart::Curves {
            traces,
            x: Axis::Log,
            y: Axis::Log,
        }
    } else {
        let bars = ours().filter_map(|row| bar(row.label(), speed(row)?));
        bars_of(bars.collect())?
    };
    let across = match counts[..] {
        [count] => format!("{count} clients"),
        _ => "clients at the same time".to_owned(),
    };
    let title = format!("{}: acquire and release, cycles a second", titles(load).0);
    let line = "Higher is better; both axes in equal factors.".to_owned();
    let panel = Panel {
        title: format!("load: {load}"),
        across,
        up: "cycles a second".to_owned(),
        chart,
    };
    let lines = if counts.len() > 1 {
        vec![line]
    } else {
        Vec::new()
    };
    Some(panels(&title, &lines, &[panel]))
}

/// A line of a system; one without points stands in the legend only, and says so.
fn trace(system: &str, points: Vec<(f64, f64)>) -> Trace {
    let name = label(system);
    let name = if points.is_empty() {
        format!("{name} (not measured)")
    } else {
        name.to_owned()
    };
    Trace { name, points }
}

fn bar(name: &str, value: f64) -> Option<Bar> {
    (value > 0.0).then(|| Bar {
        name: name.to_owned(),
        value,
    })
}

fn bars_of(bars: Vec<Bar>) -> Option<Chart> {
    (!bars.is_empty()).then_some(Chart::Bars { bars, line: None })
}

/// The numbers of clients whose latency is shown: those asked for, or what there is.
fn crowds(rows: &[Row<'_>]) -> Vec<u64> {
    let with = |row: &&Row<'_>| row.load == "uncontended" && !row.latencies().is_empty();
    let mut counts: Vec<u64> = rows.iter().filter(with).map(|row| row.clients).collect();
    counts.sort_unstable();
    counts.dedup();
    let wanted = counts.iter().copied();
    let wanted: Vec<u64> = wanted.filter(|count| CROWDS.contains(count)).collect();
    if wanted.is_empty() { counts } else { wanted }
}

/// How long an acquire takes for which share of all, under the uncontended load.
fn latency(rows: &[Row<'_>], clients: u64) -> Option<String> {
    let mut names = systems(rows);
    // A client alone can be compared with the echo, which knows no crowd.
    let echo = SYSTEMS[SYSTEMS.len() - 1].0;
    if clients == 1 && rows.iter().any(|row| row.system == echo) {
        names.push(echo);
    }
    let traces = names.into_iter().map(|system| {
        let row = rows.iter().find(|row| {
            row.system == system
                && row.clients == clients
                && (row.load == "uncontended" || system == echo)
        });
        trace(system, row.map(Row::latencies).unwrap_or_default())
    });
    let traces: Vec<Trace> = traces.collect();
    if traces.iter().all(|trace| trace.points.is_empty()) {
        return None;
    }
    let crowd = match clients {
        1 => "one client".to_owned(),
        count => format!("{count} clients"),
    };
    let panel = Panel {
        title: format!("load: uncontended, {crowd}"),
        across: "share of acquires that take at most this long".to_owned(),
        up: "microseconds".to_owned(),
        chart: Chart::Curves {
            traces,
            x: Axis::Nines,
            y: Axis::Log,
        },
    };
    let line = "Lower is better; each further nine is as wide as the one before.".to_owned();
    let title = format!("How long an acquire takes, {crowd}");
    Some(panels(&title, &[line], &[panel]))
}

/// The longest time in which nobody entered, after a fault.
fn gaps(rows: &[Row<'_>], load: &str) -> Option<String> {
    let ours: Vec<&Row<'_>> = rows.iter().filter(|row| row.load == load).collect();
    let most = ours.iter().map(|row| row.clients).max()?;
    let shown = ours.iter().filter(|row| row.clients == most);
    let bars = shown.filter_map(|row| {
        let lost = row.all["survives"] == false;
        let name = format!("{}{}", row.label(), if lost { " (not back)" } else { "" });
        bar(&name, row.number("gap_ms")?)
    });
    let panel = Panel {
        title: format!("load: {load}, {most} clients"),
        across: "longest time without an entry, over all clients".to_owned(),
        up: "milliseconds".to_owned(),
        chart: bars_of(bars.collect())?,
    };
    let title = format!("{}: the longest gap", titles(load).0);
    let line = "Lower is better.".to_owned();
    Some(panels(&title, &[line], &[panel]))
}
