//! Aligned tables for people.

use std::fmt::Write as _;

use console::Style;

use super::Out;
use super::columns::{columns_of, parts};
use super::paragraph::wrapped;
use super::plain::plain;
use crate::failure::Failure;

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// How a cell looks, by what is in it.
type StyleOf = fn(&str) -> Style;

/// Between two columns.
const BETWEEN: &str = "  ";
/// A last column of words is this wide at least before what does not fit goes on below.
const WORDS: usize = 24;

/// Where what follows these columns begins.
fn indent(columns: &[usize], widths: &[usize]) -> usize {
    let with_gap = columns.iter().map(|index| widths[*index] + BETWEEN.len());
    with_gap.sum()
}

/// Rows under a heading, padded so that columns line up.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    keys: usize,
    /// How cells of a column look, by what is in them.
    styles: Vec<(usize, StyleOf)>,
}

impl Table {
    /// An empty table. A heading that starts with `>` names a column of numbers.
    pub(crate) fn new(headings: &[&str]) -> Self {
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
            keys: 1,
            styles: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub(crate) fn row<I, S>(&mut self, cells: I)
    where
        I: IntoIterator<Item = S>,
        S: ToString,
    {
        let mut cells: Vec<String> = cells
            .into_iter()
            .map(|cell| plain(&cell.to_string().replace(['\n', '\t', '\r'], " ")))
            .collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The first `keys` columns say what a row is about: where a table is wider than the terminal they stand in
    /// each of its parts. One, unless it is said.
    #[must_use]
    pub(crate) fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// On a terminal the cells of a column look as `style` says of what is in them.
    #[must_use]
    pub(crate) fn styled(mut self, column: usize, style: StyleOf) -> Self {
        self.styles.push((column, style));
        self
    }

    /// The table as text, a newline at the end of each line and no blanks before it, no wider than the
    /// terminal.
    pub(crate) fn render(&self) -> String {
        self.render_within(super::width())
    }

    /// The same within so many columns of the terminal: what does not fit stands below, in a part of its own.
    fn render_within(&self, most: Option<usize>) -> String {
        let mut widths = self.widths();
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let most = most.unwrap_or(usize::MAX);
        if self.fits(&all, &widths, most) {
            return self.part(&all, &widths, most);
        }
        let (keys, rest) = all.split_at(self.keys.min(all.len()));
        // Long names go on below themselves, so that there is room for what is said of them.
        let names = |key: &&usize| self.columns[**key].1 == Align::Left;
        let room = match keys.iter().filter(names).count() {
            0 | 1 => most * 2 / 5,
            several => most / 2 / several,
        };
        for key in keys.iter().filter(names) {
            let least = columns_of(&self.columns[*key].0);
            widths[*key] = widths[*key].min(room.max(least));
        }
        if self.fits(&all, &widths, most) {
            return self.part(&all, &widths, most);
        }
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for column in rest {
            let with = |part: &Vec<usize>| [part.as_slice(), &[*column]].concat();
            match parts.last_mut() {
                Some(part) if self.fits(&with(part), &widths, most) => part.push(*column),
                _ => parts.push([keys, &[*column]].concat()),
            }
        }
        let parts = parts.iter().map(|part| self.part(part, &widths, most));
        parts.collect::<Vec<_>>().join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.columns.iter().enumerate();
        let widest = |(index, (heading, _)): (usize, &(String, Align))| {
            let cells = self.rows.iter().map(|row| columns_of(&row[index]));
            cells.chain([columns_of(heading)]).max().unwrap_or(0)
        };
        columns.map(widest).collect()
    }

    /// Whether these columns need no more than `most`, where words at the end of a line may go on below it.
    fn fits(&self, columns: &[usize], widths: &[usize], most: usize) -> bool {
        let Some((last, before)) = columns.split_last() else {
            return true;
        };
        let (heading, align) = &self.columns[*last];
        let least = match align {
            Align::Left => widths[*last].min(WORDS.max(columns_of(heading))),
            Align::Right => widths[*last],
        };
        indent(before, widths) + least <= most
    }

    /// Some of the columns.
    fn part(&self, columns: &[usize], widths: &[usize], most: usize) -> String {
        let Some((last, before)) = columns.split_last() else {
            return String::new();
        };
        let indent = indent(before, widths);
        let room = most.saturating_sub(indent).max(1);
        let headings: Vec<String> = self
            .columns
            .iter()
            .map(|(heading, _)| heading.clone())
            .collect();
        let mut out = String::new();
        for (number, row) in std::iter::once(&headings).chain(&self.rows).enumerate() {
            let looks: Vec<Option<Style>> = columns
                .iter()
                .map(|index| {
                    let style = self.styles.iter().find(|(column, _)| column == index);
                    style
                        .filter(|_| number > 0)
                        .map(|(_, style)| style(&row[*index]))
                })
                .collect();
            let cells: Vec<Vec<String>> = columns
                .iter()
                .map(|index| match index == last {
                    true => wrapped(&row[*index], room),
                    false => parts(&row[*index], widths[*index]),
                })
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
            for at in 0..height {
                let mut line = String::new();
                for ((index, cell), look) in columns.iter().zip(&cells).zip(&looks) {
                    let text = cell.get(at).map_or("", String::as_str);
                    let padding = widths[*index].saturating_sub(columns_of(text));
                    let text = match look {
                        Some(look) if !text.is_empty() => look.apply_to(text).to_string(),
                        _ => text.to_owned(),
                    };
                    let _ = match self.columns[*index].1 {
                        Align::Left => write!(line, "{text}{:padding$}", ""),
                        Align::Right => write!(line, "{:padding$}{text}", ""),
                    };
                    line.push_str(BETWEEN);
                }
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
        out
    }

    /// Prints the table, or a line that says there is nothing.
    pub(crate) fn print(&self, nothing: &str) -> Result<(), Failure> {
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
    fn columns_line_up_below_wide_letters() {
        let mut table = Table::new(&["group", ">lag"]);
        table.row(["日本語のグループ", "12"]);
        table.row(["billing", "3"]);
        let text = table.render_within(Some(80));
        let widths: Vec<usize> = text.lines().map(columns_of).collect();
        assert_eq!(widths, [21; 3], "{text}");
        let text = table.render_within(Some(15));
        assert!(text.lines().all(|line| columns_of(line) <= 15), "{text}");
    }

    #[test]
    fn a_first_column_of_numbers_is_aligned_too() {
        let mut table = Table::new(&[">n", "x"]);
        table.row(["1", "a"]);
        table.row(["100", "b"]);
        assert_eq!(table.render(), "  N  X\n  1  a\n100  b\n");
    }

    fn wide() -> Table {
        let mut table = Table::new(&[
            "broker",
            "state",
            "address",
            "host",
            "rack",
            ">streamlets",
            ">bytes",
            ">replicas",
            ">held",
            ">to come",
            "role",
        ]);
        for broker in ["1", "2"] {
            table.row([
                broker,
                "DRAINING, 12 left",
                "broker1.example.org:7600",
                "machine",
                "rack-one",
                "1,234",
                "12.4 GiB",
                "1,234",
                "1.2 GiB",
                "-",
                "controller",
            ]);
        }
        table
    }

    #[test]
    fn a_table_that_is_wider_than_the_terminal_stands_in_parts() {
        let text = wide().render_within(Some(80));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| columns_of(line) <= 80), "{text}");
        assert_eq!(
            (lines[0].get(..6), lines[3], lines[4].get(..6)),
            (Some("BROKER"), "", Some("BROKER"))
        );
        for heading in ["TO COME", "ROLE", "STREAMLETS"] {
            assert_eq!(text.matches(heading).count(), 1, "{text}");
        }
        assert_eq!(text.matches("controller").count(), 2, "{text}");
        let lines = wide().render_within(None);
        assert_eq!(
            lines.lines().count(),
            3,
            "where nobody says how wide it is: {lines}"
        );
    }

    #[test]
    fn several_columns_may_say_what_a_row_is_about() {
        let text = wide().keys(2).render_within(Some(80));
        assert_eq!(text.matches("DRAINING, 12 left").count(), 6, "{text}");
        assert!(text.lines().all(|line| columns_of(line) <= 80), "{text}");
    }

    #[test]
    fn long_names_go_on_below_themselves() {
        let mut table = Table::new(&["stream", ">streamlets", ">lanes", "created"]);
        let name = "a-stream-with-quite-a-long-name-as-people-have-them.in.production.v2";
        table.row([name, "1", "4", "2026-11-27T01:35:39.568Z"]);
        table.row(["clicks", "2", "1", "2026-11-27T01:35:39.568Z"]);
        let text = table.render_within(Some(80));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| columns_of(line) <= 80), "{text}");
        assert!(
            lines[1].starts_with(&name[..32]) && lines[2].starts_with(&name[32..64]),
            "{text}"
        );
        assert_eq!(text.matches("clicks").count(), 1, "{text}");
        let whole = table.render_within(None);
        assert!(whole.contains(name));
    }

    #[test]
    fn words_at_the_end_of_a_line_go_on_below() {
        let mut table = Table::new(&["stream", ">streamlet", "not served until"]);
        let reason = "brokers live on 3 machines, one for each replica; now there are 2";
        table.row(["clicks", "4", reason]);
        let text = table.render_within(Some(60));
        assert!(text.lines().all(|line| columns_of(line) <= 60), "{text}");
        assert!(
            text.lines()
                .nth(2)
                .is_some_and(|line| line.starts_with("                   ")),
            "{text}"
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.ends_with(reason), "{text}");
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
