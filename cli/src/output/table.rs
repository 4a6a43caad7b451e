//! Aligned tables for people.

use std::fmt::Write as _;

use super::Out;
use crate::failure::Failure;

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading, padded so that columns line up.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A heading that starts with `>` names a column of numbers.
    pub fn new(headings: &[&str]) -> Self {
        let columns = headings
            .iter()
            .map(|heading| match heading.strip_prefix('>') {
                Some(rest) => (rest.to_uppercase(), Align::Right),
                None => (heading.to_uppercase(), Align::Left),
            })
            .collect();
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub fn row<I, S>(&mut self, cells: I)
    where
        I: IntoIterator<Item = S>,
        S: ToString,
    {
        let mut cells: Vec<String> = cells
            .into_iter()
            .map(|cell| cell.to_string().replace(['\n', '\t', '\r'], " "))
            .collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The table as text, a newline at the end of each line and no blanks before it.
    pub fn render(&self) -> String {
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (heading, _))| {
                let cells = self.rows.iter().map(|row| width(&row[index]));
                cells.chain([width(heading)]).max().unwrap_or(0)
            })
            .collect();
        let headings: Vec<String> = self
            .columns
            .iter()
            .map(|(heading, _)| heading.clone())
            .collect();
        let mut out = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, (_, align))) in row.iter().zip(&self.columns).enumerate() {
                if index > 0 {
                    line.push_str("  ");
                }
                let padding = widths[index] - width(cell);
                let _ = match align {
                    Align::Left => write!(line, "{cell}{:padding$}", ""),
                    Align::Right => write!(line, "{:padding$}{cell}", ""),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// Prints the table, or a line that says there is nothing.
    pub fn print(&self, nothing: &str) -> Result<(), Failure> {
        let mut out = Out::stdout();
        if self.rows.is_empty() {
            out.line(nothing)?;
        } else {
            out.bytes(self.render().as_bytes())?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["stream", ">records", "note"]);
        table.row(["a", "12", "x"]);
        table.row(["längere", "3", ""]);
        assert_eq!(
            table.render(),
            "STREAM   RECORDS  NOTE\na             12  x\nlängere        3\n"
        );
    }

    #[test]
    fn a_first_column_of_numbers_is_aligned_too() {
        let mut table = Table::new(&[">n", "x"]);
        table.row(["1", "a"]);
        table.row(["100", "b"]);
        assert_eq!(table.render(), "  N  X\n  1  a\n100  b\n");
    }

    #[test]
    fn odd_rows_do_not_break_the_table() {
        let mut table = Table::new(&["a", "b"]);
        table.row(["1"]);
        table.row(["1", "2", "3"]);
        table.row(["two\nlines", ""]);
        assert_eq!(table.render(), "A          B\n1\n1          2\ntwo lines\n");
    }
}
