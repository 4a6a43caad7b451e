//! Tables of what a session measured.

use std::fmt::Write;

use super::failover::Taken as Lost;
use super::join::Taken as Joined;
use super::results::Results;
use crate::statistics::Summary;

/// What the marks of the document's section say.
pub(super) const TITLE: &str = "owners";

/// Beyond the lease, a failover may take so long.
const FAILOVER_BEYOND_LEASE_MS: f64 = 1_500.0;
const HAND_OVER_MS: f64 = 500.0;
const DIP_PERCENT: f64 = 5.0;
const SERVES_SECONDS: f64 = 10.0;

/// The whole section, as Markdown.
pub(super) fn render(results: &Results) -> String {
    let mut out = heading(results);
    out += &lost(
        "A broker is killed",
        "SIGKILL to one of three brokers, each in its turn; a fresh cluster for every run. The others notice that nobody \
         listens at its address any more before its lease ends.",
        results.streamlets,
        &results.failover,
    );
    out += &lost(
        "A broker falls silent",
        "SIGSTOP in place of SIGKILL, as when a machine is gone: nobody is refused, and the lease decides.",
        results.streamlets,
        &results.silence,
    );
    out += &hand_overs(results);
    out += &joins(results);
    out += &targets(results);
    for failed in &results.failures {
        let _ = writeln!(
            out,
            "\n**A run of {} failed: {}**",
            failed.scenario.name(),
            failed.reason.lines().next().unwrap_or_default()
        );
    }
    out
}

fn heading(results: &Results) -> String {
    let machine = &results.machine;
    let slow = if results.slow_build {
        " **Built without optimisation: these figures say nothing.**"
    } else {
        ""
    };
    format!(
        "{} UTC, commit {}, {:.0} minutes. {} cores ({}), {} GiB, {}, {} on {} ({} MB/s); brokers, etcd ({}) and clients share \
         them, over loopback. {}; streams with 3 copies, of which 2 must be there, `written`; leases of {} s. A loop for each \
         streamlet sends a record, waits for its acknowledgement, and sends the next when it is due.{slow}\n",
        results.started,
        results.commit.as_deref().unwrap_or("unknown"),
        results.minutes,
        machine.cores,
        machine.processor,
        machine.memory_bytes >> 30,
        machine.kernel,
        results.disk.filesystem,
        results.disk.device,
        speeds(&results.disk.write_mb_per_second),
        results.etcd,
        results.kera,
        results.lease_ms as f64 / 1e3,
    )
}

fn speeds(all: &[u64]) -> String {
    let all: Vec<_> = all.iter().map(u64::to_string).collect();
    all.join(" and ")
}

fn summary(values: impl Iterator<Item = f64>) -> Option<Summary> {
    Summary::of(values.collect::<Vec<_>>())
}

const HEAD: &str = "| | median | worst | of |\n|---|---|---|---|\n";

/// A table: the median and the worst of each row's values; rows without values are left out.
fn table(digits: usize, rows: &[(&str, Option<Summary>)]) -> String {
    let mut out = HEAD.to_owned();
    for (name, found) in rows {
        if let Some(found) = found {
            let (median, most) = (found.median, found.most);
            let _ = writeln!(
                out,
                "| {name} | {median:.digits$} | {most:.digits$} | {} |",
                found.values
            );
        }
    }
    out
}

fn lost(title: &str, about: &str, streamlets: u32, runs: &[Lost]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let of = |value: fn(&Lost) -> f64| summary(runs.iter().map(value));
    let part = |controller: bool| {
        let runs = runs.iter().filter(|run| run.controller == controller);
        summary(runs.map(|run| run.acknowledged_ms))
    };
    let moved = of(|run| run.moved as f64).map_or(0.0, |moved| moved.median);
    let rows = [
        ("the first new owner is recorded", of(|run| run.noticed_ms)),
        ("all new owners are recorded", of(|run| run.recorded_ms)),
        (
            "all groups that it wrote are closed",
            of(|run| run.closed_ms),
        ),
        ("half of its streamlets acknowledge", of(|run| run.half_ms)),
        (
            "all streamlets of the other brokers acknowledge",
            of(|run| run.others_ms),
        ),
        (
            "**all streamlets acknowledge**",
            of(|run| run.acknowledged_ms),
        ),
        ("the same, of runs in which it was controller", part(true)),
        ("the same, of the other runs", part(false)),
    ];
    format!(
        "\n### {title}\n\n{about} {streamlets} streamlets, of which about {moved:.0} get another owner (with those of the \
         internal stream). Milliseconds since the signal.\n\n{}",
        table(0, &rows)
    )
}

/// All hand-overs' times.
fn gaps(results: &Results) -> Option<Summary> {
    let gaps = results.hand_over.iter().flat_map(|run| &run.gaps_ms);
    summary(gaps.copied())
}

fn hand_overs(results: &Results) -> String {
    if results.hand_over.is_empty() {
        return String::new();
    }
    let refused: usize = results.hand_over.iter().map(|run| run.refused).sum();
    let still = results.hand_over.iter().flat_map(|run| &run.still_ms);
    let rows = [
        ("**over the hand-over**", gaps(results)),
        ("without one, as long", summary(still.copied())),
    ];
    format!(
        "\n### A streamlet is handed over\n\nOne at a time, in {} clusters of {} streamlets that are all sent to; {refused} \
         were refused. Milliseconds between two acknowledgements of the streamlet.\n\n{}",
        results.hand_over.len(),
        results.streamlets,
        table(0, &rows)
    )
}

fn joins(results: &Results) -> String {
    if results.join.is_empty() {
        return String::new();
    }
    let plan = &results.join_plan;
    let of = |value: fn(&Joined) -> f64| summary(results.join.iter().map(value));
    let rows = [
        (
            "**worst second, % below the rate**",
            of(|run| run.dip_percent),
        ),
        ("the same, before it came", of(|run| run.dip_before_percent)),
        (
            "**it acknowledges an append, s after its start**",
            of(|run| run.serves_seconds),
        ),
        (
            "it has its share of the streamlets, s",
            of(|run| run.share_seconds),
        ),
    ];
    format!(
        "\n### A fourth broker comes\n\nTo three that have {} MiB of records in {} streamlets, while a producer sends {} % of \
         what a probe of {} s shows, {:.0} thousand records a second (100 bytes each) in the median run.\n\n{}",
        plan.history_bytes >> 20,
        plan.streamlets,
        plan.percent,
        plan.probe_seconds,
        of(|run| run.rate as f64).map_or(0.0, |rate| rate.median / 1e3),
        table(1, &rows)
    )
}

/// Each target with its bound and unit, and what came of it.
fn targets(results: &Results) -> String {
    let failover = results.lease_ms as f64 + FAILOVER_BEYOND_LEASE_MS;
    let lost = |runs: &[Lost]| summary(runs.iter().map(|run| run.acknowledged_ms));
    let join = |value: fn(&Joined) -> f64| summary(results.join.iter().map(value));
    let list = [
        (
            "killed: all acknowledge within lease + 1.5 s",
            failover,
            "ms",
            lost(&results.failover),
        ),
        (
            "silent: all acknowledge within lease + 1.5 s",
            failover,
            "ms",
            lost(&results.silence),
        ),
        ("hand-over: gap", HAND_OVER_MS, "ms", gaps(results)),
        (
            "join: worst second below the rate",
            DIP_PERCENT,
            "%",
            join(|run| run.dip_percent),
        ),
        (
            "join: serves appends",
            SERVES_SECONDS,
            "s",
            join(|run| run.serves_seconds),
        ),
    ];
    let mut out =
        "\n### Targets\n\n| target | at most | median | worst | |\n|---|---|---|---|---|\n"
            .to_owned();
    for (what, bound, unit, found) in list {
        let Some(Summary { median, most, .. }) = found else {
            continue;
        };
        let verdict = match (most <= bound, median <= bound) {
            (true, _) => "met",
            (false, true) => "**missed by the worst**",
            (false, false) => "**missed**",
        };
        let digits = if unit == "ms" { 0 } else { 1 };
        let _ = writeln!(
            out,
            "| {what} | {bound:.0} {unit} | {median:.digits$} | {most:.digits$} | {verdict} |"
        );
    }
    out
}
