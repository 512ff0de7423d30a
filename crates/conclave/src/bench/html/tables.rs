//! The tables of a comparison.

use std::fmt::Write as _;

use super::{Row, number};
use crate::figures::escape;
use crate::sim::thousands;

/// A column: its head, and the cell of a row.
type Column = (&'static str, fn(&Row<'_>) -> String);

const COLUMNS: [Column; 10] = [
    ("p50 µs", |row| whole(row.number("p50_us"))),
    ("p99 µs", |row| whole(row.number("p99_us"))),
    ("p99.9 µs", |row| whole(row.number("p999_us"))),
    ("gap ms", |row| fine(row.number("gap_ms"))),
    ("CPU s/1,000", |row| fine(row.number("cpu_s_per_1000"))),
    ("memory MB", |row| whole(row.number("rss_mb"))),
    ("bytes/cycle", |row| {
        whole(row.number("net_bytes_per_cycle"))
    }),
    ("syncs/cycle", |row| fine(row.number("fsyncs_per_cycle"))),
    ("errors", |row| whole(row.number("errors"))),
    ("violations", violations),
];

/// The table of a load: a block for every number of clients.
pub(super) fn load(body: &mut String, load: &str, rows: &[Row<'_>]) {
    let ours: Vec<&Row<'_>> = rows.iter().filter(|row| row.load == load).collect();
    body.push_str(
        "<div class=\"wide\"><table class=\"numbers\">\n<tr><th>system</th><th>cycles/s</th>\
         <th>lowest to highest</th><th>Conclave is</th>",
    );
    for (head, _) in COLUMNS {
        let _ = write!(body, "<th>{head}</th>");
    }
    let remarked = ours.iter().any(|row| !remarks(row).is_empty());
    body.push_str(if remarked {
        "<th>remarks</th></tr>\n"
    } else {
        "</tr>\n"
    });
    let mut clients = None;
    for row in &ours {
        if clients != Some(row.clients) {
            clients = Some(row.clients);
            let count = match row.clients {
                1 => "1 client".to_owned(),
                count => format!("{count} clients"),
            };
            let columns = COLUMNS.len() + 5;
            let _ = writeln!(
                body,
                "<tr class=\"block\"><td colspan=\"{columns}\">{count}</td></tr>"
            );
        }
        line(body, row, &ours);
        if remarked {
            let _ = write!(body, "<td class=\"remark\">{}</td>", remarks(row));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n");
}

fn line(body: &mut String, row: &Row<'_>, all: &[&Row<'_>]) {
    let speed = row.number("cycles_per_s");
    let ours = all
        .iter()
        .find(|other| other.system == "conclave" && other.clients == row.clients);
    let ratio = ours
        .filter(|ours| ours.system != row.system)
        .and_then(|ours| Some(ours.number("cycles_per_s")? / speed.filter(|s| *s > 0.0)?));
    let class = if row.system == "conclave" {
        " class=\"us\""
    } else {
        ""
    };
    let _ = write!(
        body,
        "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        escape(row.label()),
        whole(speed),
        range(row),
        times(ratio),
    );
    for (_, cell) in COLUMNS {
        let _ = write!(body, "<td>{}</td>", cell(row));
    }
}

fn violations(row: &Row<'_>) -> String {
    match row.number("violations") {
        Some(count) if count > 0.0 => {
            format!("<span class=\"badge not-held\">{count:.0}</span>")
        }
        count => whole(count),
    }
}

/// The lowest and the highest cycles a second of the rounds.
fn range(row: &Row<'_>) -> String {
    let spread = &row.all["spread"]["cycles_per_s"];
    match (number(&spread[0]), number(&spread[1])) {
        (Some(low), Some(high)) if low < high => {
            format!("{} to {}", whole(Some(low)), whole(Some(high)))
        }
        _ => "-".to_owned(),
    }
}

fn remarks(row: &Row<'_>) -> String {
    let mut remarks = Vec::new();
    if row.all["emulated"] == true {
        remarks.push("by an exclusive lock".to_owned());
    }
    if row.all["survives"] == false {
        remarks.push("does not come back by itself".to_owned());
    }
    if let Some(error) = row.all["error"].as_str() {
        remarks.push(error.to_owned());
    }
    escape(&remarks.join("; "))
}

/// What the columns mean.
pub(super) fn words(body: &mut String) {
    body.push_str(
        "<h2>What the columns mean</h2>\n<dl>\n\
         <dt>cycle</dt><dd>acquire and release; the times are those of the acquire</dd>\n\
         <dt>Conclave is</dt><dd>how many times as many cycles a second Conclave makes under the \
         same load with as many clients</dd>\n\
         <dt>gap</dt><dd>the longest time in which no client entered</dd>\n\
         <dt>CPU s/1,000</dt><dd>processor seconds of servers and clients for 1,000 cycles</dd>\n\
         <dt>memory</dt><dd>resident memory of all server processes</dd>\n\
         <dt>bytes, syncs</dt><dd>on the network and of the disk, for each cycle</dd>\n\
         <dt>violations</dt><dd>two inside where one may be, or a token that went back</dd>\n\
         </dl>\n",
    );
}

/// A number of things.
fn whole(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 10_000.0 => thousands(value.round() as u64),
        Some(value) if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
        None => "-".to_owned(),
    }
}

/// A small number, to two digits or so.
fn fine(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 100.0 => whole(Some(value)),
        Some(value) if value >= 1.0 || value == 0.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.4}"),
        None => "-".to_owned(),
    }
}

/// A ratio.
pub(super) fn times(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio >= 10.0 => format!("{} ×", whole(Some(ratio))),
        Some(ratio) if ratio >= 1.0 => format!("{ratio:.1} ×"),
        Some(ratio) if ratio >= 0.1 => format!("{ratio:.2} ×"),
        Some(ratio) if ratio > 0.0 => format!("1/{}", whole(Some(1.0 / ratio))),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(times(Some(31.24)), "31 ×");
        assert_eq!(times(Some(1.26)), "1.3 ×");
        assert_eq!(times(Some(0.45)), "0.45 ×");
        assert_eq!(times(Some(0.0125)), "1/80");
        assert_eq!(times(None), "-");
        assert_eq!(whole(Some(48_835.4)), "48,835");
        assert_eq!(whole(Some(7.26)), "7.3");
        assert_eq!(fine(Some(0.0315)), "0.0315");
        assert_eq!(fine(Some(1_730.2)), "1730");
        assert_eq!(fine(None), "-");
    }
}
