//! The rows of the comparison: one per system, load and number of clients.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output;

/// Where the distribution of acquire times is told.
const QUANTILES: [f64; 16] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// What one run measured, or the medians of several.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) system: &'static str,
    pub(super) load: &'static str,
    pub(super) clients: usize,
    pub(super) numbers: Numbers,
    /// Syncs to disk of a cycle, where the system counts them.
    pub(super) fsyncs: Option<f64>,
    pub(super) errors: u64,
    /// One of the errors.
    pub(super) error: Option<String>,
    pub(super) violations: u64,
    /// An exclusive lock stood in for what was asked for.
    pub(super) emulated: bool,
    /// After a fault: whether locks were acquired again.
    pub(super) survives: Option<bool>,
    /// Acquire times of all rounds, in nanoseconds.
    pub(super) times: Histogram<u64>,
    /// How many runs this is the median of.
    pub(super) rounds: usize,
    /// The least and the largest of the runs.
    pub(super) low: Numbers,
    pub(super) high: Numbers,
}

/// What is a number in every row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) cycles_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) gap_ms: f64,
    pub(super) client_gap_ms: f64,
    pub(super) cpu_s_per_1000: f64,
    pub(super) rss_mb: f64,
    pub(super) net_bytes: f64,
}

impl Numbers {
    /// Each number, from the numbers of the same name.
    fn each(of: &[Self], pick: impl Fn(Vec<f64>) -> f64) -> Self {
        let take = |field: fn(&Self) -> f64| pick(of.iter().map(field).collect());
        Self {
            cycles_per_s: take(|one| one.cycles_per_s),
            p50_us: take(|one| one.p50_us),
            p99_us: take(|one| one.p99_us),
            p999_us: take(|one| one.p999_us),
            gap_ms: take(|one| one.gap_ms),
            client_gap_ms: take(|one| one.client_gap_ms),
            cpu_s_per_1000: take(|one| one.cpu_s_per_1000),
            rss_mb: take(|one| one.rss_mb),
            net_bytes: take(|one| one.net_bytes),
        }
    }
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.get(half) {
        None => 0.0,
        Some(&upper) if values.len() % 2 == 1 => upper,
        Some(&upper) => f64::midpoint(values[half - 1], upper),
    }
}

/// One row per system, load and number of clients: medians, and how far the rounds lie apart.
pub(super) fn medians(rows: &[Row]) -> Vec<Row> {
    let key = |row: &Row| (row.system, row.load, row.clients);
    let mut done: Vec<Row> = Vec::new();
    for row in rows {
        if done.iter().any(|other| key(other) == key(row)) {
            continue;
        }
        let same = rows.iter().filter(|other| key(other) == key(row));
        let same: Vec<&Row> = same.collect();
        let numbers: Vec<Numbers> = same.iter().map(|row| row.numbers).collect();
        let fsyncs: Option<Vec<f64>> = same.iter().map(|row| row.fsyncs).collect();
        let mut times = row.times.clone();
        for other in &same[1..] {
            let _ = times.add(&other.times);
        }
        done.push(Row {
            numbers: Numbers::each(&numbers, median),
            fsyncs: fsyncs.map(median),
            errors: same.iter().map(|row| row.errors).sum(),
            error: same.iter().find_map(|row| row.error.clone()),
            violations: same.iter().map(|row| row.violations).sum(),
            survives: same.iter().map(|row| row.survives).min().flatten(),
            times,
            rounds: same.len(),
            low: Numbers::each(&numbers, |all| all.into_iter().fold(f64::MAX, f64::min)),
            high: Numbers::each(&numbers, |all| all.into_iter().fold(0.0, f64::max)),
            ..row.clone()
        });
    }
    done
}

impl Row {
    pub(super) fn json(&self) -> Value {
        let n = &self.numbers;
        let spread = |field: fn(&Numbers) -> f64| json!([field(&self.low), field(&self.high)]);
        let points = QUANTILES.map(|quantile| {
            let nanos = self.times.value_at_quantile(quantile);
            json!([quantile, nanos as f64 / 1e3])
        });
        let mut row = json!({
            "system": self.system,
            "load": self.load,
            "clients": self.clients,
            "cycles_per_s": n.cycles_per_s,
            "p50_us": n.p50_us,
            "p99_us": n.p99_us,
            "p999_us": n.p999_us,
            "gap_ms": n.gap_ms,
            "client_gap_ms": n.client_gap_ms,
            "cpu_s_per_1000": n.cpu_s_per_1000,
            "rss_mb": n.rss_mb,
            "net_bytes_per_cycle": n.net_bytes,
            "fsyncs_per_cycle": self.fsyncs,
            "errors": self.errors,
            "violations": self.violations,
            "rounds": self.rounds,
            "spread": {
                "cycles_per_s": spread(|n| n.cycles_per_s),
                "p50_us": spread(|n| n.p50_us),
                "p99_us": spread(|n| n.p99_us),
                "gap_ms": spread(|n| n.gap_ms),
                "cpu_s_per_1000": spread(|n| n.cpu_s_per_1000),
            },
            "latency_us": points,
        });
        if self.emulated {
            row["emulated"] = json!(true);
        }
        if let Some(survives) = self.survives {
            row["survives"] = json!(survives);
        }
        if let Some(error) = &self.error {
            row["error"] = json!(error);
        }
        row
    }

    fn cells(&self) -> Vec<String> {
        let n = &self.numbers;
        let some = |value: f64, text: String| if value > 0.0 { text } else { "-".to_owned() };
        vec![
            self.system.to_owned(),
            self.load.to_owned(),
            self.clients.to_string(),
            format!("{:.0}", n.cycles_per_s),
            format!("{:.0}", n.p50_us),
            format!("{:.0}", n.p99_us),
            format!("{:.0}", n.p999_us),
            format!("{:.1}", n.gap_ms),
            some(n.cpu_s_per_1000, format!("{:.4}", n.cpu_s_per_1000)),
            some(n.rss_mb, format!("{:.0}", n.rss_mb)),
            some(n.net_bytes, format!("{:.0}", n.net_bytes)),
            self.fsyncs
                .map_or_else(|| "-".to_owned(), |fsyncs| format!("{fsyncs:.3}")),
            self.remarks().join("; "),
        ]
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.emulated {
            remarks.push("by an exclusive lock".to_owned());
        }
        if self.survives == Some(false) {
            remarks.push("did not come back".to_owned());
        }
        if self.violations > 0 {
            remarks.push(format!("{} VIOLATIONS", self.violations));
        }
        if self.errors > 0 {
            let error = self.error.as_deref().unwrap_or_default();
            let error = output::clip(error.lines().next().unwrap_or_default(), 60);
            remarks.push(format!("{} errors, such as: {error}", self.errors));
        }
        remarks
    }
}

/// Prints the rows as a table.
pub(super) fn print(rows: &[Row]) -> Result<(), Failure> {
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
        "MB",
        "BYTES",
        "FSYNCS",
        "",
    ]);
    for row in rows {
        table.add_row(row.cells());
    }
    output::print(&table)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row with a speed; the other numbers follow from it.
    pub(in super::super) fn row(
        system: &'static str,
        load: &'static str,
        clients: usize,
        speed: f64,
    ) -> Row {
        let numbers = Numbers {
            cycles_per_s: speed,
            p50_us: 1e6 / speed,
            gap_ms: 1e5 / speed,
            cpu_s_per_1000: 1e2 / speed,
            ..Numbers::default()
        };
        let mut times = crate::bench::histogram();
        let _ = times.record((1e9 / speed) as u64);
        Row {
            system,
            load,
            clients,
            numbers,
            fsyncs: Some(1.0),
            errors: 1,
            error: None,
            violations: 0,
            emulated: false,
            survives: None,
            times,
            rounds: 1,
            low: numbers,
            high: numbers,
        }
    }

    #[test]
    fn rounds_become_medians_with_their_spread() {
        let mut rows = vec![
            row("a", "hot", 1, 100.0),
            row("a", "hot", 2, 7.0),
            row("a", "hot", 1, 400.0),
            row("a", "hot", 1, 200.0),
            row("a", "hot", 2, 9.0),
        ];
        rows[4].fsyncs = None;
        rows[3].violations = 2;
        rows[0].survives = Some(true);
        rows[2].survives = Some(false);
        rows[3].survives = Some(true);
        let told = medians(&rows);
        assert_eq!(told.len(), 2);
        let one = told[0].json();
        assert_eq!(one["cycles_per_s"], 200.0);
        assert_eq!(one["spread"]["cycles_per_s"], json!([100.0, 400.0]));
        assert_eq!(one["spread"]["p50_us"], json!([2500.0, 10000.0]));
        assert_eq!(
            (one["errors"].as_u64(), one["rounds"].as_u64()),
            (Some(3), Some(3))
        );
        assert_eq!(one["violations"], 2);
        assert_eq!(one["survives"], false, "one round that did not is enough");
        assert_eq!(one["fsyncs_per_cycle"], 1.0);
        let points = one["latency_us"].as_array().unwrap();
        assert_eq!(points.len(), QUANTILES.len());
        assert!(points[0][1].as_f64() < points[15][1].as_f64());
        let two = told[1].json();
        assert_eq!(two["cycles_per_s"], 8.0, "of two the mean");
        assert_eq!(two["fsyncs_per_cycle"], Value::Null);
        assert!(two.get("survives").is_none() && two.get("emulated").is_none());
    }

    #[test]
    fn remarks_tell_what_is_odd() {
        let mut row = row("a", "hot", 1, 1.0);
        row.errors = 0;
        assert!(row.remarks().is_empty());
        row.violations = 1;
        row.survives = Some(false);
        assert_eq!(row.remarks().len(), 2);
    }
}
