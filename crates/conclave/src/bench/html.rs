//! A comparison as one page: goals, plots and tables, with nothing to fetch and no scripts.
//!
//! The page is made from the JSON result alone, so that a result of another day or machine makes
//! the same page. What is missing or no number is shown as a dash.

mod plots;
mod tables;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::Failure;
use crate::figures::{escape, framed};

use plots::plots;

/// The systems in the order of every table and legend.
const SYSTEMS: [(&str, &str); 7] = [
    ("conclave", "Conclave"),
    ("conclave-durable", "Conclave, durable"),
    ("etcd", "etcd"),
    ("zookeeper", "ZooKeeper"),
    ("redis", "one Redis"),
    ("redlock", "Redlock"),
    ("echo", "bare echo"),
];

/// What is done under each load.
const LOADS: [(&str, &str, &str); 6] = [
    (
        "uncontended",
        "Locks that nobody else wants",
        "Every client takes and leaves locks of its own: the cost of the service itself.",
    ),
    (
        "hot",
        "One hot lock",
        "All clients want the same lock: how quickly it goes from one to the next.",
    ),
    (
        "mix",
        "Shared and exclusive",
        "Clients share locks, and now and then one wants a lock for itself.",
    ),
    (
        "groups",
        "Groups",
        "Three groups want eight resources; members of a group may be inside together.",
    ),
    (
        "kill",
        "A node is killed",
        "SIGKILL to a node, or to the leader of a system that has one, in the middle of the run.",
    ),
    (
        "stop",
        "A node is stopped",
        "The same with SIGSTOP: connections stay open, and nobody answers.",
    ),
];

/// Writes the page, and its pictures beside it: `out.html` has `out-gap-kill.svg` and others.
pub(super) fn write(file: &Path, result: &Value) -> Result<(), Failure> {
    let put = |file: &Path, text: &str| {
        fs::write(file, text)
            .map_err(|error| Failure::Input(format!("{}: {error}", file.display())))
    };
    put(file, &page(result))?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    for (name, svg) in plots(result) {
        put(&file.with_file_name(format!("{stem}-{name}.svg")), &svg)?;
    }
    Ok(())
}

/// A page of the result of `conclave bench --against`.
fn page(result: &Value) -> String {
    let rows = rows(result);
    let mut body = String::new();
    head(&mut body, result, &rows);
    goals(&mut body, result);
    left_out(&mut body, result);
    let pictures = plots(result);
    let picture = |body: &mut String, stem: &str| {
        for (_, svg) in pictures.iter().filter(|(name, _)| name == stem) {
            let _ = writeln!(body, "<div class=\"picture chart\">\n{svg}</div>");
        }
    };
    for load in loads(&rows) {
        let (title, about) = titles(&load);
        let name = escape(&load);
        let _ = writeln!(
            body,
            "<article id=\"{name}\">\n<header><span class=\"place\">{name}</span><h3>{}</h3>\
             </header>\n<p>{}</p>",
            escape(title),
            escape(about)
        );
        picture(&mut body, &format!("throughput-{load}"));
        picture(&mut body, &format!("gap-{load}"));
        if load == "uncontended" {
            for (stem, svg) in &pictures {
                if stem.starts_with("latency-") {
                    let _ = writeln!(body, "<div class=\"picture chart\">\n{svg}</div>");
                }
            }
        }
        tables::load(&mut body, &load, &rows);
        body.push_str("</article>\n");
    }
    tables::words(&mut body);
    framed("Conclave beside others", &body)
}

/// A measurement, as far as it can be read.
#[derive(Clone, Debug)]
struct Row<'a> {
    system: &'a str,
    load: &'a str,
    clients: u64,
    all: &'a Value,
}

impl Row<'_> {
    /// A number of the row.
    fn number(&self, key: &str) -> Option<f64> {
        number(&self.all[key])
    }

    fn label(&self) -> &str {
        label(self.system)
    }

    /// The place of its system in tables and legends.
    fn place(&self) -> usize {
        let known = SYSTEMS.iter().position(|(name, _)| *name == self.system);
        known.unwrap_or(SYSTEMS.len())
    }

    /// The points of its latency: shares and microseconds.
    fn latencies(&self) -> Vec<(f64, f64)> {
        let points = self.all["latency_us"].as_array();
        let points = points.into_iter().flatten();
        points
            .filter_map(|point| Some((number(&point[0])?, number(&point[1])?)))
            .collect()
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

fn label(system: &str) -> &str {
    let known = SYSTEMS.iter().find(|(name, _)| *name == system);
    known.map_or(system, |(_, label)| label)
}

fn titles(load: &str) -> (&str, &str) {
    let known = LOADS.iter().find(|(name, ..)| *name == load);
    known.map_or((load, ""), |(_, title, about)| (title, about))
}

/// All rows that name a system and a load, systems in their order and clients ascending.
fn rows(result: &Value) -> Vec<Row<'_>> {
    let all = result["rows"].as_array().into_iter().flatten();
    let mut rows: Vec<Row<'_>> = all
        .filter_map(|row| {
            Some(Row {
                system: row["system"].as_str()?,
                load: row["load"].as_str()?,
                clients: row["clients"].as_u64().unwrap_or(1),
                all: row,
            })
        })
        .collect();
    rows.sort_by_key(|row| (row.clients, row.place()));
    rows
}

/// The loads that were measured, known ones first; the echo is no load.
fn loads(rows: &[Row<'_>]) -> Vec<String> {
    let known = LOADS.iter().map(|(name, ..)| *name);
    let mut loads: Vec<String> = Vec::new();
    for load in known.chain(rows.iter().map(|row| row.load)) {
        let here = rows.iter().any(|row| row.load == load);
        if here && load != "echo" && !loads.iter().any(|other| other == load) {
            loads.push(load.to_owned());
        }
    }
    loads
}

fn head(body: &mut String, result: &Value, rows: &[Row<'_>]) {
    let machine = &result["machine"];
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let shown = |value: &Value, digits: usize| match number(value) {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    body.push_str("<h1>Conclave beside others</h1>\n");
    let _ = writeln!(
        body,
        "<p>All systems on one machine, {} nodes each (one Redis is one), under the same loads in \
         turn: {} s for each, {} rounds, medians with the lowest and the highest beside them.</p>",
        shown(&result["nodes"], 0),
        shown(&result["seconds"], 0),
        shown(&result["rounds"], 0),
    );
    let _ = writeln!(
        body,
        "<p class=\"small\">{} cores of {}, {} GB of memory, Linux {}. A sync of the disk takes {} \
         µs (99 %: {} µs).{}</p>",
        shown(&machine["cores"], 0),
        escape(&text(&machine["cpu"])),
        shown(&machine["memory_gb"], 1),
        escape(&text(&machine["kernel"])),
        shown(&machine["fsync_us"]["p50"], 0),
        shown(&machine["fsync_us"]["p99"], 0),
        escape(&echo(rows)),
    );
    if let Some(command) = result["command"].as_str() {
        let _ = writeln!(body, "<pre><code>{}</code></pre>", escape(command));
    }
}

/// What the bare echo of the same run took.
fn echo(rows: &[Row<'_>]) -> String {
    let echo = rows.iter().find(|row| row.load == "echo");
    let times = echo.and_then(|row| Some((row.number("p50_us")?, row.number("p99_us")?)));
    times.map_or_else(String::new, |(p50, p99)| {
        format!(
            " A bare echo to as many processes as a quorum has takes {p50:.0} µs (99 %: {p99:.0} \
             µs): nothing that asks a quorum is quicker."
        )
    })
}

fn goals(body: &mut String, result: &Value) {
    let Some(goals) = result["targets"].as_array().filter(|all| !all.is_empty()) else {
        return;
    };
    let met = goals.iter().filter(|goal| goal["met"] == true).count();
    let missed = goals.len() - met;
    let _ = writeln!(
        body,
        "<h2>Goals</h2>\n<div class=\"tally\"><span class=\"badge held\">met: {met}</span>\
         <span class=\"badge not-held\">not met: {missed}</span></div>\n\
         <div class=\"wide\"><table>\n<tr><th></th><th>what</th><th>against</th><th>wanted</th>\
         <th class=\"number\">measured</th></tr>"
    );
    let text = |value: &Value| escape(value.as_str().unwrap_or("-"));
    for goal in goals {
        let (class, word) = if goal["met"] == true {
            ("held", "met")
        } else {
            ("not-held", "not met")
        };
        let against = goal["against"].as_str().unwrap_or("-");
        let _ = writeln!(
            body,
            "<tr><td><span class=\"badge {class}\">{word}</span></td><td>{}</td><td>{}</td>\
             <td>{}</td><td class=\"number\">{}</td></tr>",
            text(&goal["what"]),
            escape(label(against)),
            text(&goal["wanted"]),
            tables::times(number(&goal["ratio"])),
        );
    }
    body.push_str("</table></div>\n");
}

/// Who was not measured, and who cannot do what.
fn left_out(body: &mut String, result: &Value) {
    let mut lines = Vec::new();
    let text = |value: &Value| escape(value.as_str().unwrap_or("-"));
    for entry in result["skipped"].as_array().into_iter().flatten() {
        let system = entry["system"].as_str().unwrap_or("-");
        let why = text(&entry["why"]);
        lines.push(format!("<b>{}</b>: {why}", escape(label(system))));
    }
    for entry in result["impossible"].as_array().into_iter().flatten() {
        let system = escape(label(entry["system"].as_str().unwrap_or("-")));
        let (load, why) = (text(&entry["load"]), text(&entry["why"]));
        lines.push(format!("<b>{system}</b>, {load}: {why}"));
    }
    if lines.is_empty() {
        return;
    }
    body.push_str("<h2>Not measured</h2>\n<ul>\n");
    for line in lines {
        let _ = writeln!(body, "<li>{line}</li>");
    }
    body.push_str("</ul>\n");
}

#[cfg(test)]
mod tests;
