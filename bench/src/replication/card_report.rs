//! Tables of what a network card's cases measured: ratios to rpc, and nothing else.

use std::fmt::Write;

use super::cases::Section;
use super::plan::Wire;
use super::report::{failed, figure, spread};
use super::results::{Measure, Measured, Results};
use crate::statistics::Summary;

/// What all ways are compared with.
const BASE: Wire = Wire::Rpc;

const THROUGHPUT: [(&str, Measure); 6] = [
    ("records/s", Measure::Throughput),
    ("p50", Measure::P50),
    ("p99", Measure::P99),
    ("CPU of the primary", Measure::Primary),
    ("CPU of the backups", Measure::Backups),
    ("CPU of the whole machine", Measure::Machine),
];

const LATENCY: [(&str, Measure); 4] = [
    ("p50", Measure::P50),
    ("p99", Measure::P99),
    ("CPU of the backups", Measure::Backups),
    ("CPU of the whole machine", Measure::Machine),
];

/// The whole section, as Markdown.
pub fn render(results: &Results) -> String {
    let mut out = heading(results);
    let tables: [(Section, &[(&str, Measure)]); 2] = [
        (Section::Throughput, &THROUGHPUT),
        (Section::Latency, &LATENCY),
    ];
    for (section, columns) in tables {
        let of = |one: &&Measured| one.case.section == section;
        let lines: Vec<_> = results.replication.iter().filter(of).collect();
        if lines.is_empty() {
            continue;
        }
        let about = match section {
            Section::Latency => "One lane, the next append when the one before is acknowledged.",
            _ => "64 appends under way over 16 groups; CPU is per record.",
        };
        let _ = write!(out, "\n### {}\n\n{about}\n\n", section.title());
        out += &table(results, &lines, columns);
    }
    out += &targets(results);
    out
}

fn heading(results: &Results) -> String {
    let machine = &results.machine;
    let slow = if results.slow_build {
        " **Built without optimisation: these ratios say nothing.**"
    } else {
        ""
    };
    let note = results.note.as_deref().unwrap_or("no virtual machine");
    let commit = results.commit.as_deref().unwrap_or("unknown");
    format!(
        "{} UTC, commit {commit}, {:.0} minutes, {} runs of each by turns. {note}: {} cores, {} MiB, {}; a primary and {} backups, each a \
         process. Each figure is a ratio to that of rpc in the same turn: the median of all turns, with least and most.{slow}\n",
        results.started,
        results.minutes,
        results.runs,
        machine.cores,
        machine.memory_bytes >> 20,
        machine.kernel,
        results.backups,
    )
}

/// How many times as much as over [`BASE`], turn by turn.
fn ratio(results: &Results, line: &Measured, measure: Measure) -> Option<Summary> {
    let base = results.find(&line.case, BASE)?;
    let (ours, theirs) = (
        line.each(measure, results.backups),
        base.each(measure, results.backups),
    );
    let pairs = ours.iter().zip(&theirs).filter(|(_, base)| **base > 0.0);
    Summary::of(pairs.map(|(one, base)| one / base))
}

fn table(results: &Results, lines: &[&Measured], columns: &[(&str, Measure)]) -> String {
    let titles: Vec<_> = columns
        .iter()
        .map(|(title, _)| format!("{title}, of rpc's"))
        .collect();
    let mut out = format!("| case | way | {} |\n", titles.join(" | "));
    out += &format!("|---|---|{}\n", "---|".repeat(columns.len()));
    // Of rpc itself there is nothing to be said, unless it failed.
    let told = |line: &&&Measured| line.wire != BASE || !line.failures.is_empty();
    for line in lines.iter().filter(told) {
        let _ = write!(
            out,
            "| {} | {}{} |",
            line.case.name,
            line.wire.title(),
            failed(line)
        );
        for (_, measure) in columns {
            let _ = write!(out, " {} |", spread(ratio(results, line, *measure), 1.0));
        }
        out.push('\n');
    }
    out
}

fn targets(results: &Results) -> String {
    let mut out = "\n### Targets\n\n| target | wanted | found | |\n|---|---|---|---|\n".to_owned();
    let lines = results.replication.iter();
    for line in lines.filter(|one| one.wire == Wire::Rdma) {
        let (what, measure, bound, at_least) = match line.case.section {
            Section::Throughput => ("throughput", Measure::Throughput, 1.7, true),
            _ => ("p99 of one append at a time", Measure::P99, 0.4, false),
        };
        let found = ratio(results, line, measure).map(|ratio| ratio.median);
        let verdict = match found {
            None => "not measured",
            Some(found) if at_least == (found >= bound) || found == bound => "met",
            Some(_) => "**missed**",
        };
        let word = if at_least { "at least" } else { "at most" };
        let _ = writeln!(
            out,
            "| {}: {what} over rdma, of rpc's | {word} {bound:.2} | {} | {verdict} |",
            line.case.name,
            found.map_or_else(|| "-".to_owned(), figure)
        );
    }
    out
}
