//! What a chaos run has shown.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use conclave_sim::fact::Violation;
use conclave_sim::history;
use conclave_sim::history::line::{self, ClientWord, Kind, Line};
use serde_json::{Value, json};

use super::commands::{Commands, Stopped};
use super::faults::Fault;
use super::proxy::Proxy;
use super::{PROBES, Stage};
use crate::cli::Failure;
use crate::output;

/// A probe's last acquisition may lie so long before the fault that then keeps it waiting.
const CYCLE_NS: u64 = 20_000_000;

/// What a run has shown.
pub(super) struct Report {
    verdict: history::Verdict,
    faults: Vec<Toll>,
    /// How often clients entered, by kind of client.
    entries: BTreeMap<&'static str, u64>,
    /// Bytes between clients and nodes, where a proxy counts them.
    bytes: u64,
    /// How many commands ran, and which were stopped.
    commands: usize,
    stopped: Vec<Stopped>,
}

/// What one kind of fault did.
struct Toll {
    fault: Fault,
    times: u64,
    /// The longest time without an acquisition, in nanoseconds, by kind of client.
    pause: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Reads the histories of everybody and checks them.
    pub(super) fn read(stage: &Stage, marks: &[(Fault, u64, u64)]) -> Result<Self, Failure> {
        let mut lines = Vec::new();
        for file in stage.histories() {
            let name = file.display().to_string();
            // A client that was killed at once has written nothing.
            let Ok(opened) = File::open(&file) else {
                continue;
            };
            let read = line::read(&name, BufReader::new(opened)).map_err(Failure::input)?;
            lines.extend(read);
        }
        let mut entered: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
        for line in &lines {
            let Line::Client(line) = line else { continue };
            if line.event == ClientWord::Entered && line.client >= PROBES {
                let kind = match line.kind {
                    Kind::Smart => "smart",
                    Kind::Thin => "thin",
                };
                entered.entry(kind).or_default().push(line.at);
            }
        }
        for times in entered.values_mut() {
            times.sort_unstable();
        }
        let config = stage.local.cluster().shared_config();
        let config = config.map_err(Failure::input)?;
        let verdict = history::check(&config, lines);
        let mut kinds: Vec<Fault> = marks.iter().map(|(fault, ..)| *fault).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let toll = |fault: Fault| {
            let spans = marks.iter().filter(|(of, ..)| *of == fault);
            let spans: Vec<(u64, u64)> = spans.map(|(_, from, to)| (*from, *to)).collect();
            let pause = entered.iter().map(|(kind, times)| {
                let pauses = spans.iter().map(|span| longest(times, *span));
                (*kind, pauses.max().unwrap_or(0))
            });
            Toll {
                fault,
                times: spans.len() as u64,
                pause: pause.collect(),
            }
        };
        let commands = stage.commands.as_ref();
        Ok(Self {
            commands: commands.map_or(0, Commands::len),
            stopped: commands.map_or_else(Vec::new, |commands| commands.stopped.clone()),
            bytes: stage.proxies.iter().map(Proxy::passed).sum(),
            faults: kinds.into_iter().map(toll).collect(),
            entries: BTreeMap::from([
                ("smart", verdict.smart.acquisitions),
                ("thin", verdict.thin.acquisitions),
            ]),
            verdict,
        })
    }

    /// One line of a table: entries of both kinds of clients, crashes, losses, late writes refused,
    /// the longest pause of a smart client, violations.
    pub(super) fn cells(&self) -> [String; 7] {
        let entered = |kind: &str| self.entries.get(kind).copied().unwrap_or(0).to_string();
        let pauses = self
            .faults
            .iter()
            .filter_map(|toll| toll.pause.get("smart"));
        let pause = pauses.max().copied().unwrap_or(0) as f64 / 1e6;
        [
            entered("smart"),
            entered("thin"),
            self.verdict.crashes.to_string(),
            self.verdict.lost.to_string(),
            self.verdict.refused.to_string(),
            format!("{pause:.0} ms"),
            self.broken().to_string(),
        ]
    }

    /// Whether nothing was violated.
    pub(super) fn holds(&self) -> bool {
        self.verdict.holds() && self.stopped.is_empty()
    }

    /// How often something was violated.
    fn broken(&self) -> usize {
        self.verdict.broken + self.stopped.len()
    }

    /// Prints it.
    pub(super) fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            output::line(self.json().to_string())
        } else {
            self.show()
        }
    }

    pub(super) fn json(&self) -> Value {
        let millis = |pause: &BTreeMap<&'static str, u64>| {
            let all = pause.iter();
            let all = all.map(|(kind, nanos)| ((*kind).to_owned(), json!(*nanos as f64 / 1e6)));
            Value::Object(all.collect())
        };
        let faults = self.faults.iter().map(|toll| {
            json!({
                "fault": toll.fault.name(),
                "times": toll.times,
                "longest_pause_ms": millis(&toll.pause),
            })
        });
        let faults: Vec<Value> = faults.collect();
        let violations = self.verdict.violations.iter();
        let violations: Vec<String> = violations.map(text).collect();
        let stopped: Vec<Value> = self.stopped.iter().map(Stopped::json).collect();
        json!({
            "entered": self.entries,
            "lost": self.verdict.lost,
            "writes_admitted": self.verdict.admitted,
            "late_writes_refused": self.verdict.refused,
            "node_crashes": self.verdict.crashes,
            "lines": self.verdict.lines,
            "bytes": self.bytes,
            "faults": faults,
            "checked": self.verdict.checked,
            "not_checked": self.verdict.left_out,
            "violations": violations,
            "commands": self.commands,
            "commands_stopped": stopped,
            "violations_in_all": self.broken(),
        })
    }

    pub(super) fn show(&self) -> Result<(), Failure> {
        let kinds: Vec<&'static str> = self.entries.keys().copied().collect();
        let pause = |kind: &&str| format!("LONGEST PAUSE, {kind}");
        let mut header = vec!["FAULT".to_owned(), "TIMES".to_owned()];
        header.extend(kinds.iter().map(|kind| pause(kind).to_uppercase()));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = output::table(&header);
        for toll in &self.faults {
            let mut row = vec![toll.fault.name().to_owned(), toll.times.to_string()];
            row.extend(kinds.iter().map(|kind| {
                let nanos = toll.pause.get(kind).copied().unwrap_or(0);
                format!("{:.0} ms", nanos as f64 / 1e6)
            }));
            table.add_row(row);
        }
        output::print(&table)?;
        output::line("")?;
        for (kind, count) in &self.entries {
            output::line(format!("{count} locks entered by {kind} clients"))?;
        }
        output::line(format!(
            "{} lost, {} late writes refused by the fence",
            self.verdict.lost, self.verdict.refused
        ))?;
        let mib = self.bytes as f64 / 1_048_576.0;
        output::line(format!("{mib:.1} MiB between clients and nodes"))?;
        output::line(format!("checked: {}", self.verdict.checked.join(", ")))?;
        output::line(format!("not checked: {}", self.verdict.left_out.join(", ")))?;
        for violation in &self.verdict.violations {
            output::line(format!("VIOLATION {}", text(violation)))?;
        }
        for stopped in &self.stopped {
            output::line(format!("VIOLATION kept: {}", stopped.text()))?;
        }
        output::line(format!(
            "{} commands under conclave lock, {} of them stopped",
            self.commands,
            self.stopped.len()
        ))?;
        output::line(format!("{} violations", self.broken()))
    }
}

/// The longest pauses of many runs.
#[derive(Debug, Default)]
pub(super) struct Worst {
    runs: usize,
    entered: u64,
    pauses: BTreeMap<(Fault, &'static str), u64>,
}

impl Worst {
    pub(super) fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.entered += report.entries.values().sum::<u64>();
        for toll in &report.faults {
            for (kind, nanos) in &toll.pause {
                let worst = self.pauses.entry((toll.fault, kind)).or_default();
                *worst = (*worst).max(*nanos);
            }
        }
    }

    /// Prints them; `broken` are the seeds of runs in which something was violated.
    pub(super) fn show(&self, broken: &[u64]) -> Result<(), Failure> {
        let mut table = output::table(&["FAULT", "CLIENTS", "LONGEST PAUSE OF ALL RUNS"]);
        for ((fault, kind), nanos) in &self.pauses {
            let pause = format!("{:.0} ms", *nanos as f64 / 1e6);
            table.add_row([fault.name(), kind, &pause]);
        }
        output::print(&table)?;
        let (runs, entered) = (self.runs, self.entered);
        output::line(format!("{runs} runs, {entered} locks entered"))?;
        if broken.is_empty() {
            return output::line("nothing was violated");
        }
        output::line(format!("VIOLATIONS with seeds {broken:?}"))
    }
}

fn text(violation: &Violation) -> String {
    let Violation { property, at, what } = violation;
    format!("{property} at {} ns: {what}", at.0)
}

/// The longest time without an acquisition that began in this span. One that began before belongs
/// to an earlier fault.
fn longest(times: &[u64], (from, to): (u64, u64)) -> u64 {
    let pairs = times.windows(2).map(|pair| (pair[0], pair[1]));
    let begun = pairs.filter(|(last, _)| last + CYCLE_NS >= from && *last <= to);
    begun.map(|(last, at)| at - last).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_belongs_to_the_fault_that_it_began_in() {
        let times = [0, 100, 500, 600, 2000].map(|millis| millis * 1_000_000);
        let span = |from: u64, to: u64| (from * 1_000_000, to * 1_000_000);
        assert_eq!(longest(&times, span(110, 120)), 400_000_000);
        assert_eq!(longest(&times, span(490, 510)), 100_000_000);
        assert_eq!(longest(&times, span(550, 700)), 1_400_000_000);
        assert_eq!(longest(&times, span(700, 900)), 0, "it began before");
        assert_eq!(longest(&[], span(0, 300)), 0);
    }
}
