//! Tables of what a session measured.

use std::fmt::Write;

use super::card_report;
use super::cases::Section;
use super::plan::Wire;
use super::results::{Measure, Measured, Results};
use crate::statistics::Summary;

/// The whole section, as Markdown.
pub fn render(results: &Results) -> String {
    if results.cards {
        return card_report::render(results);
    }
    let mut out = heading(results);
    for section in Section::ALL {
        let lines: Vec<_> = results
            .replication
            .iter()
            .filter(|one| one.case.section == section)
            .collect();
        if lines.is_empty() {
            continue;
        }
        let _ = write!(out, "\n### {}\n\n{}\n\n", section.title(), section.about());
        out += &match section {
            Section::Recovery => table(results, &lines, "way", &RECOVERY),
            Section::Latency => table(results, &lines, "way", &LATENCY),
            Section::Brokers => table(results, &lines, "copies", &BROKERS),
            _ => table(results, &lines, "way", &APPENDS),
        };
    }
    out += &targets(results);
    out
}

fn heading(results: &Results) -> String {
    let machine = &results.machine;
    let slow = if results.slow_build {
        " **Built without optimisation: these figures say nothing.**"
    } else {
        ""
    };
    let commit = results.commit.as_deref().unwrap_or("unknown");
    format!(
        "{} UTC, commit {commit}, {:.0} minutes, {} runs of each by turns; figures are medians, spans least to most. {} cores \
         ({}), {} GiB, {}; a primary and {} backups, each a process, over loopback. Records of 100 bytes.{slow}\n",
        results.started,
        results.minutes,
        results.runs,
        machine.cores,
        machine.processor,
        machine.memory_bytes >> 30,
        machine.kernel,
        results.backups,
    )
}

/// A figure with three digits.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn median(summary: Option<Summary>, unit: f64) -> String {
    summary.map_or_else(|| "-".into(), |s| figure(s.median / unit))
}

/// A median with least and most, in units of `unit`.
pub(super) fn spread(summary: Option<Summary>, unit: f64) -> String {
    match summary {
        Some(s) if s.values > 1 => format!(
            "{} ({}-{})",
            figure(s.median / unit),
            figure(s.least / unit),
            figure(s.most / unit)
        ),
        other => median(other, unit),
    }
}

/// How many times as much as over `other`.
fn ratio(results: &Results, line: &Measured, measure: Measure, other: Wire) -> Option<f64> {
    let there = results.find(&line.case, other)?;
    let (one, two) = (
        line.of(measure, results.backups)?,
        there.of(measure, results.backups)?,
    );
    (two.median > 0.0).then(|| one.median / two.median)
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
}

/// The word for a line whose runs did not all measure something.
pub(super) fn failed(line: &Measured) -> String {
    match line.failures.first() {
        Some(why) => format!(" **({} runs failed: {why})**", line.failures.len()),
        None => String::new(),
    }
}

/// What stands in a column for a line.
#[derive(Clone, Copy)]
enum Cell {
    /// The median of a quantity, in such units.
    Median(Measure, f64),
    /// With the least and the most.
    Spread(Measure, f64),
    /// How many times as much as over another way.
    Times(Measure, Wire),
}

/// A column's title, and what stands in it.
type Column = (&'static str, Cell);

const APPENDS: [Column; 9] = [
    (
        "records/s (thousands)",
        Cell::Spread(Measure::Throughput, 1e3),
    ),
    ("MB/s", Cell::Median(Measure::Bytes, 1e6)),
    ("p50, us", Cell::Median(Measure::P50, 1.0)),
    ("p99, us", Cell::Median(Measure::P99, 1.0)),
    ("primary, ns/record", Cell::Spread(Measure::Primary, 1.0)),
    ("backups, ns/record", Cell::Median(Measure::Backups, 1.0)),
    (
        "one backup, ns/KiB",
        Cell::Spread(Measure::PerByte, 1.0 / 1024.0),
    ),
    ("of bare", Cell::Times(Measure::PerByte, Wire::Bare)),
    ("of rpc", Cell::Times(Measure::PerByte, Wire::Rpc)),
];

const LATENCY: [Column; 3] = [
    ("p50, us", Cell::Spread(Measure::P50, 1.0)),
    ("p99, us", Cell::Spread(Measure::P99, 1.0)),
    ("p99 of rpc", Cell::Times(Measure::P99, Wire::Rpc)),
];

const BROKERS: [Column; 4] = [
    (
        "records/s (thousands)",
        Cell::Spread(Measure::Throughput, 1e3),
    ),
    (
        "first broker, ns/record",
        Cell::Spread(Measure::Primary, 1.0),
    ),
    (
        "the others together, ns/record",
        Cell::Spread(Measure::Backups, 1.0),
    ),
    ("all brokers, ns/record", Cell::Spread(Measure::All, 1.0)),
];

const RECOVERY: [Column; 4] = [
    ("closed, s", Cell::Spread(Measure::Closed, 1.0)),
    ("read, s", Cell::Spread(Measure::Read, 1.0)),
    ("new owner, ns/record", Cell::Median(Measure::Primary, 1.0)),
    ("backups, ns/record", Cell::Median(Measure::Backups, 1.0)),
];

/// A row for each line: its case, which way it went, and the columns.
fn table(results: &Results, lines: &[&Measured], way: &str, columns: &[Column]) -> String {
    let titles: Vec<_> = columns.iter().map(|(title, _)| *title).collect();
    let mut out = format!("| case | {way} | {} |\n", titles.join(" | "));
    out += &format!("|---|---|{}\n", "---|".repeat(columns.len()));
    for line in lines {
        let of = |measure| line.of(measure, results.backups);
        let _ = write!(
            out,
            "| {} | {}{} |",
            line.case.name,
            line.wire.title(),
            failed(line)
        );
        for (_, cell) in columns {
            let text = match *cell {
                Cell::Median(measure, unit) => median(of(measure), unit),
                Cell::Spread(measure, unit) => spread(of(measure), unit),
                Cell::Times(measure, other) => times(ratio(results, line, measure, other)),
            };
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
    }
    out
}

/// A target, and what came of it.
struct Target {
    what: String,
    bound: f64,
    at_least: bool,
    found: Option<f64>,
}

fn target_list(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    let over_tcp = |section| {
        results
            .replication
            .iter()
            .filter(move |one| one.wire == Wire::Tcp && one.case.section == section)
    };
    for line in over_tcp(Section::Throughput) {
        targets.push(Target {
            what: format!(
                "{}: a backup's CPU over tcp, of a bare receive loop's",
                line.case.name
            ),
            bound: 1.3,
            at_least: false,
            found: ratio(results, line, Measure::PerByte, Wire::Bare),
        });
        if line.case.name == "append=1KiB" {
            targets.push(Target {
                what: "append=1KiB: a backup's CPU over tcp, of rpc's".into(),
                bound: 1.0 / 3.0,
                at_least: false,
                found: ratio(results, line, Measure::PerByte, Wire::Rpc),
            });
        }
    }
    let groups: Vec<_> = over_tcp(Section::Groups).collect();
    let same = |a: &&Measured, b: &&Measured| {
        a.case.work.load().append_bytes == b.case.work.load().append_bytes
    };
    for groups in groups.chunk_by(same) {
        if let [few, .., many] = groups {
            let of = |line: &Measured| line.of(Measure::Throughput, results.backups);
            let found = of(many).zip(of(few)).map(|(m, f)| m.median / f.median);
            targets.push(Target {
                what: format!(
                    "throughput over tcp at {}, of that at {}",
                    many.case.name, few.case.name
                ),
                bound: 0.8,
                at_least: true,
                found,
            });
        }
    }
    let whole = results
        .replication
        .iter()
        .filter(|one| one.wire == Wire::Copies && one.case.name == "batch=128KiB");
    for line in whole {
        let nanos = |measure| line.of(measure, results.backups).map(|s| s.median);
        targets.push(Target {
            what: "batch=128KiB, a copy at each broker: CPU of the first, ns/record".into(),
            bound: 120.0,
            at_least: false,
            found: nanos(Measure::Primary),
        });
        targets.push(Target {
            what: "batch=128KiB, a copy at each broker: CPU of all, ns/record".into(),
            bound: 250.0,
            at_least: false,
            found: nanos(Measure::All),
        });
    }
    for line in over_tcp(Section::Recovery) {
        targets.push(Target {
            what: format!("{}: recovery over tcp, of rpc's time", line.case.name),
            bound: 1.0,
            at_least: false,
            found: ratio(results, line, Measure::Read, Wire::Rpc),
        });
    }
    targets
}

fn targets(results: &Results) -> String {
    let mut out = "\n### Targets\n\n| target | wanted | found | |\n|---|---|---|---|\n".to_owned();
    for target in target_list(results) {
        let word = if target.at_least {
            "at least"
        } else {
            "at most"
        };
        let verdict = match target.found {
            None => "not measured",
            Some(found) if target.at_least == (found >= target.bound) || found == target.bound => {
                "met"
            }
            Some(_) => "**missed**",
        };
        let _ = writeln!(
            out,
            "| {} | {word} {:.2} | {} | {verdict} |",
            target.what,
            target.bound,
            times(target.found)
        );
    }
    out
}

/// What a run was, for who watches.
pub fn line(measured: &Measured, backups: u32) -> String {
    let (case, wire) = (&measured.case, measured.wire);
    let of = |measure| measured.each(measure, backups).last().copied();
    let median =
        |value: Option<f64>, unit: f64| value.map_or_else(|| "-".into(), |v| figure(v / unit));
    let what = match case.section {
        Section::Recovery => format!("{} s", median(of(Measure::Read), 1.0)),
        Section::Latency => format!("p50 {} us", median(of(Measure::P50), 1.0)),
        _ => format!("{} MB/s", median(of(Measure::Bytes), 1e6)),
    };
    format!(
        "{} {}: {}, {what}",
        case.section.name(),
        case.name,
        wire.title()
    )
}
