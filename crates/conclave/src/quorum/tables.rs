//! `conclave quorum tables`.

use clap::{Args, ValueEnum};
use conclave_quorum::measure::hierarchy::{self, Table};
use conclave_quorum::reference;
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output::{self, Progress};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Availability of the billiard tiers beside majorities
    Billiard,
    /// Costs, optimal levels, availability and delays of multilevel hierarchies
    Multilevel,
    /// Quorum sizes for lying nodes
    Byzantine,
    /// All of them
    All,
}

#[derive(Debug, Args)]
pub(crate) struct Tables {
    /// Which tables
    #[arg(value_enum, default_value_t = Which::All)]
    which: Which,
    /// Random states per simulated value
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    samples: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Tables {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if !(1..=100_000_000).contains(&self.samples) {
            return Err(Failure::input(
                "--samples takes a number from 1 to 100000000",
            ));
        }
        let progress = Progress::new("simulating");
        let mut tables = Vec::new();
        let wanted = |which| self.which == which || self.which == Which::All;
        if wanted(Which::Billiard) {
            tables.push(reference::billiard(
                self.samples,
                &mut super::tell(&progress),
            ));
        }
        if wanted(Which::Multilevel) {
            tables.extend(hierarchy::tables());
        }
        if wanted(Which::Byzantine) {
            tables.push(reference::byzantine());
        }
        drop(progress);
        let away: usize = tables.iter().map(|table| table.deviations().len()).sum();
        if self.json {
            let listed: Vec<Value> = tables.iter().map(as_json).collect();
            output::json(&json!({ "tables": listed, "deviations": away }))?;
        } else {
            for table in &tables {
                print(table)?;
            }
            let rows = tables.iter().flat_map(|table| &table.rows);
            let cells: usize = rows.map(|row| row.cells.len()).sum();
            output::line(format!(
                "{cells} values, {away} differ from the expected ones"
            ))?;
        }
        if away == 0 {
            Ok(())
        } else {
            Err(Failure::Violation)
        }
    }
}

fn as_json(table: &Table) -> Value {
    let cell = |cell: &hierarchy::Cell| {
        json!({
            "computed": cell.computed,
            "expected": cell.expected,
            "agrees": cell.agrees(),
        })
    };
    let row = |row: &hierarchy::TableRow| {
        let cells: Vec<Value> = row.cells.iter().map(cell).collect();
        json!({ "label": row.label, "cells": cells })
    };
    let rows: Vec<Value> = table.rows.iter().map(row).collect();
    json!({ "title": table.title, "columns": table.columns, "rows": rows })
}

fn print(table: &Table) -> Result<(), Failure> {
    output::line(format!(
        "{} (computed / expected; ! marks a difference)\n",
        table.title
    ))?;
    let columns = table.columns.iter().map(String::as_str);
    let header: Vec<&str> = std::iter::once("").chain(columns).collect();
    let mut printed = output::table(&header);
    for row in &table.rows {
        let cells = row.cells.iter().map(|cell| {
            let digits = cell.decimals as usize;
            let mark = if cell.agrees() { "" } else { " !" };
            format!(
                "{:.digits$} / {:.digits$}{mark}",
                cell.computed, cell.expected
            )
        });
        printed.add_row(std::iter::once(row.label.clone()).chain(cells));
    }
    output::print(&printed)?;
    output::line("")
}
