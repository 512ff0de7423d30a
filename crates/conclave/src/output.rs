//! Printing: tables for people, JSON for programs, progress on standard error.

use std::io::{self, IsTerminal, Write};

use comfy_table::presets;
use comfy_table::{ContentArrangement, Table};
use conclave_quorum::measure::failure::Failure as Chance;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use serde_json::Value;

use crate::cli::Failure;

/// Writes bytes to standard output.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Writes text and a line end to standard output.
pub(crate) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    raw(format!("{}\n", text.as_ref()).as_bytes())
}

/// Writes a JSON value to standard output, indented.
pub(crate) fn json(value: &Value) -> Result<(), Failure> {
    line(format!("{value:#}"))
}

/// A table with a header line and no frame.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    table
}

/// Prints a table without the blanks at line ends.
pub(crate) fn print(table: &Table) -> Result<(), Failure> {
    line(table.trim_fmt())
}

/// A number, or two with a dash between them.
pub(crate) fn span(from: usize, to: usize) -> String {
    if from == to {
        from.to_string()
    } else {
        format!("{from}-{to}")
    }
}

/// The text, cut to so many characters.
pub(crate) fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let cut: String = text.chars().take(most).collect();
    format!("{cut}...")
}

/// A failure probability in a cell: an interval where it was simulated.
pub(crate) fn failure(chance: &Chance) -> String {
    if chance.exact {
        number(chance.value)
    } else {
        format!(
            "{} [{}, {}]",
            number(chance.value),
            number(chance.low),
            number(chance.high)
        )
    }
}

/// The fields of both JSON objects, those of the second after those of the first.
pub(crate) fn merged(mut first: Value, second: Value) -> Value {
    if let (Value::Object(into), Value::Object(more)) = (&mut first, second) {
        into.extend(more);
    }
    first
}

/// A probability or ratio in a few digits: plain where that is readable, else with an exponent.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e6).contains(&value.abs()) {
        let text = format!("{value:.6}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.to_owned()
    } else {
        format!("{value:.3e}")
    }
}

/// A progress line on standard error, shown only to a terminal and only after a moment.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line that says what is being done.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr_with_hz(4));
        if !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{msg} {bar:30} {percent}%")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what.to_owned());
        Self(bar)
    }

    /// Shows how much is done, out of `total`.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.set_length(total.max(1));
        self.0.set_position(done);
    }

    /// Shows what is being done now.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
