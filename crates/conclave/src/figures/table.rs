//! The numbers of a figure: a table that becomes a CSV file, and that pictures and judgements
//! are made from.

use conclave_quorum::draw::Trace;

use crate::output::number;

/// A value of a table. A number that is none is an empty cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Number(f64),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Self {
        Self::Number(f64::from(value))
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Number(value as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Cell {
    /// The cell as it stands in a file.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value) if value.is_finite() => number(*value),
            Self::Number(_) => String::new(),
        }
    }

    fn csv(&self) -> String {
        let text = self.shown();
        if text.contains([',', '"', '\n']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    }
}

/// Named columns and rows of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for every column.
    pub(crate) fn push<const N: usize>(&mut self, row: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(row.into());
    }

    pub(crate) fn csv(&self) -> String {
        let mut text = self.columns.join(",");
        text.push('\n');
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::csv).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| *column == name)
    }

    /// The cell of a row, by its column.
    fn cell<'a>(&self, row: &'a [Cell], name: &str) -> Option<&'a Cell> {
        row.get(self.column(name)?)
    }

    /// The number of the first row with these cells.
    pub(crate) fn at(&self, keys: &[(&str, Cell)], column: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| {
            let mut keys = keys.iter();
            keys.all(|(name, wanted)| self.cell(row, name) == Some(wanted))
        })?;
        match self.cell(row, column)? {
            Cell::Number(value) if value.is_finite() => Some(*value),
            _ => None,
        }
    }

    /// The different cells of a column, in the order in which they come.
    pub(crate) fn distinct(&self, column: &str) -> Vec<Cell> {
        let mut found: Vec<Cell> = Vec::new();
        for row in &self.rows {
            if let Some(cell) = self.cell(row, column)
                && !found.contains(cell)
            {
                found.push(cell.clone());
            }
        }
        found
    }

    /// The different numbers of a column, ascending.
    pub(crate) fn numbers(&self, column: &str) -> Vec<f64> {
        let cells = self.distinct(column).into_iter();
        let mut numbers: Vec<f64> = cells
            .filter_map(|cell| match cell {
                Cell::Number(value) if value.is_finite() => Some(value),
                _ => None,
            })
            .collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    }

    /// Points of two columns, by ascending x, of the rows where `series` is `name`.
    pub(crate) fn points(&self, series: (&str, &Cell), x: &str, y: &str) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        for row in &self.rows {
            if self.cell(row, series.0) == Some(series.1)
                && let (Some(Cell::Number(x)), Some(Cell::Number(y))) =
                    (self.cell(row, x), self.cell(row, y))
            {
                points.push((*x, *y));
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// A line for each value of the column `series`, named `label` and the value.
    pub(crate) fn traces(&self, (series, label): (&str, &str), x: &str, y: &str) -> Vec<Trace> {
        let values = self.distinct(series).into_iter();
        let trace = values.map(|value| Trace {
            name: format!("{label}{}", value.shown()),
            points: self.points((series, &value), x, y),
        });
        trace.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["name", "x", "y"]);
        table.push(["a, \"b\"".into(), 2u32.into(), 1.5.into()]);
        table.push(["a, \"b\"".into(), 1u32.into(), f64::NAN.into()]);
        table.push(["c".into(), 1u32.into(), 7u32.into()]);
        table
    }

    #[test]
    fn files_have_a_header_and_quote_what_needs_it() {
        let csv = table().csv();
        assert_eq!(
            csv,
            "name,x,y\n\"a, \"\"b\"\"\",2,1.5\n\"a, \"\"b\"\"\",1,\nc,1,7\n"
        );
    }

    #[test]
    fn cells_are_found_by_their_row_and_column() {
        let table = table();
        assert_eq!(table.at(&[("name", "c".into())], "y"), Some(7.0));
        assert_eq!(table.at(&[("name", "d".into())], "y"), None);
        assert_eq!(table.at(&[("name", "c".into())], "z"), None);
        assert_eq!(table.at(&[("x", 1u32.into())], "y"), None, "not a number");
        assert_eq!(table.numbers("x"), [1.0, 2.0]);
        let traces = table.traces(("name", "line "), "x", "y");
        assert_eq!(traces[1].name, "line c");
        assert_eq!(traces[0].points[1], (2.0, 1.5));
    }
}
