//! What Conclave wants to reach beside the others, and whether it did in this run.

use serde_json::{Value, json};

use super::rows::{Numbers, Row};
use crate::cli::Failure;
use crate::output;

/// How a ratio of Conclave's number to the other's is judged.
#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    /// At most one part in so many.
    OneIn(f64),
    AtMost(f64),
}

impl Wanted {
    fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::OneIn(parts) => ratio <= 1.0 / parts,
            Self::AtMost(most) => ratio <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("at least {least} x"),
            Self::OneIn(parts) => format!("at most 1/{parts}"),
            Self::AtMost(most) => format!("at most {most} x"),
        }
    }
}

/// One goal: a number of ours, the number of a peer, and what their ratio shall be.
struct Goal {
    what: &'static str,
    ours: (&'static str, &'static str),
    against: &'static str,
    /// The other's load.
    load: &'static str,
    /// Numbers of clients that will do, the best first.
    clients: &'static [usize],
    number: fn(&Numbers) -> f64,
    wanted: Wanted,
}

const SPEED: fn(&Numbers) -> f64 = |numbers| numbers.cycles_per_s;
const GAP: fn(&Numbers) -> f64 = |numbers| numbers.gap_ms;

/// A goal for uncontended cycles a second.
const fn speed(ours: &'static str, against: &'static str, times: f64) -> Goal {
    Goal {
        what: "uncontended cycles/s, 64 clients",
        ours: (ours, "uncontended"),
        against,
        load: "uncontended",
        clients: &[64],
        number: SPEED,
        wanted: Wanted::AtLeast(times),
    }
}

/// A goal for the pause after a fault, measured by that of etcd whose leader is killed.
const fn pause(what: &'static str, load: &'static str) -> Goal {
    Goal {
        what,
        ours: ("conclave", load),
        against: "etcd",
        load: "kill",
        clients: &[64, 16],
        number: GAP,
        wanted: Wanted::OneIn(50.0),
    }
}

const GOALS: [Goal; 10] = [
    speed("conclave", "etcd", 30.0),
    speed("conclave", "zookeeper", 10.0),
    speed("conclave", "redlock", 5.0),
    speed("conclave", "redis", 1.0),
    Goal {
        what: "durable, uncontended cycles/s, 64 clients",
        ..speed("conclave-durable", "etcd", 10.0)
    },
    Goal {
        what: "acquire p50, one client",
        ours: ("conclave", "uncontended"),
        against: "echo",
        load: "echo",
        clients: &[1],
        number: |numbers| numbers.p50_us,
        wanted: Wanted::AtMost(2.0),
    },
    Goal {
        what: "hot lock, handovers/s, 64 clients",
        ours: ("conclave", "hot"),
        load: "hot",
        ..speed("conclave", "etcd", 30.0)
    },
    pause("longest pause, a node killed", "kill"),
    pause("longest pause, a node stopped", "stop"),
    Goal {
        what: "CPU per 1,000 cycles, 64 clients",
        number: |numbers| numbers.cpu_s_per_1000,
        wanted: Wanted::OneIn(20.0),
        ..speed("conclave", "etcd", 0.0)
    },
];

/// The goals that the rows allow to judge.
pub(super) fn judge(rows: &[Row]) -> Vec<Value> {
    let find = |system: &str, load: &str, clients: usize| {
        let mut rows = rows.iter();
        rows.find(|row| (row.system, row.load, row.clients) == (system, load, clients))
    };
    let judged = GOALS.iter().filter_map(|goal| {
        let (ours, theirs) = goal.clients.iter().find_map(|&clients| {
            let ours = find(goal.ours.0, goal.ours.1, clients)?;
            Some((ours, find(goal.against, goal.load, clients)?))
        })?;
        let theirs = (goal.number)(&theirs.numbers);
        let ratio = (goal.number)(&ours.numbers) / theirs;
        ratio.is_finite().then(|| {
            json!({
                "what": goal.what,
                "against": goal.against,
                "wanted": goal.wanted.text(),
                "ratio": ratio,
                "met": goal.wanted.met(ratio),
            })
        })
    });
    judged.collect()
}

/// Prints what was left out, and the goals.
pub(super) fn print(result: &Value) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |name: &str| result[name].as_array().cloned().unwrap_or_default();
    for entry in list("skipped") {
        let (system, why) = (text(&entry["system"]), text(&entry["why"]));
        output::line(format!("{system} is skipped: {why}"))?;
    }
    for entry in list("impossible") {
        let (system, load) = (text(&entry["system"]), text(&entry["load"]));
        output::line(format!("{system}, {load}: {}", text(&entry["why"])))?;
    }
    let targets = list("targets");
    if targets.is_empty() {
        return Ok(());
    }
    let mut table = output::table(&["TARGET", "AGAINST", "WANTED", "RATIO", "MET"]);
    for target in targets {
        let met = target["met"].as_bool().unwrap_or(false);
        table.add_row(vec![
            text(&target["what"]),
            text(&target["against"]),
            text(&target["wanted"]),
            target["ratio"].as_f64().map_or_else(String::new, figure),
            if met { "yes" } else { "no" }.to_owned(),
        ]);
    }
    output::line("")?;
    output::print(&table)
}

/// A ratio with about three digits.
fn figure(ratio: f64) -> String {
    if ratio < 1.0 {
        format!("{ratio:.4}")
    } else {
        format!("{ratio:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::row;
    use super::*;

    #[test]
    fn targets_are_judged_where_their_rows_are() {
        let rows = [
            row("conclave", "uncontended", 64, 40_000.0),
            row("conclave", "uncontended", 1, 5_000.0),
            row("etcd", "uncontended", 64, 1_000.0),
            row("redis", "uncontended", 64, 50_000.0),
            row("redlock", "uncontended", 16, 7_000.0),
            row("echo", "echo", 1, 10_000.0),
            row("conclave", "stop", 16, 100_000.0),
            row("etcd", "kill", 16, 1_000.0),
        ];
        let told = judge(&rows);
        let all: Vec<(&str, &str, bool)> = told
            .iter()
            .map(|target| {
                let text = |key: &str| target[key].as_str().unwrap();
                (
                    text("what"),
                    text("against"),
                    target["met"].as_bool().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            all,
            [
                ("uncontended cycles/s, 64 clients", "etcd", true),
                ("uncontended cycles/s, 64 clients", "redis", false),
                ("acquire p50, one client", "echo", true),
                ("longest pause, a node stopped", "etcd", true),
                ("CPU per 1,000 cycles, 64 clients", "etcd", true),
            ]
        );
        assert_eq!(told[0]["ratio"], 40.0);
        assert_eq!(told[0]["wanted"], "at least 30 x");
        assert_eq!(told[2]["ratio"], 2.0);
        assert_eq!(told[3]["ratio"], 0.01);
        assert_eq!(told[4]["wanted"], "at most 1/20");
        assert!(judge(&rows[1..2]).is_empty());
    }
}
