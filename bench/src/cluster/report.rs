//! Tables of what a session measured.

use std::fmt::Write;

use super::failover::Taken as Lost;
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

/// A row: the median and the worst of so many values.
fn row(out: &mut String, name: &str, found: Option<Summary>, digits: usize) {
    let Some(found) = found else {
        return;
    };
    let _ = writeln!(
        out,
        "| {name} | {:.digits$} | {:.digits$} | {} |",
        found.median, found.most, found.values
    );
}

const HEAD: &str = "| | median | worst | of |\n|---|---|---|---|\n";

fn lost(title: &str, about: &str, streamlets: u32, runs: &[Lost]) -> String {
    let mut out = String::new();
    if runs.is_empty() {
        return out;
    }
    let moved = summary(runs.iter().map(|run| run.moved as f64)).map_or(0.0, |m| m.median);
    let _ = write!(
        out,
        "\n### {title}\n\n{about} {streamlets} streamlets, of which about {moved:.0} get another owner (with those of the \
         internal stream). Milliseconds since the signal.\n\n{HEAD}"
    );
    let of = |value: fn(&Lost) -> f64| summary(runs.iter().map(value));
    row(
        &mut out,
        "the first new owner is recorded",
        of(|run| run.noticed_ms),
        0,
    );
    row(
        &mut out,
        "all new owners are recorded",
        of(|run| run.recorded_ms),
        0,
    );
    row(
        &mut out,
        "all groups that it wrote are closed",
        of(|run| run.closed_ms),
        0,
    );
    row(
        &mut out,
        "half of its streamlets acknowledge",
        of(|run| run.half_ms),
        0,
    );
    row(
        &mut out,
        "all streamlets of the other brokers acknowledge",
        of(|run| run.others_ms),
        0,
    );
    row(
        &mut out,
        "**all streamlets acknowledge**",
        of(|run| run.acknowledged_ms),
        0,
    );
    let part = |controller: bool| {
        let runs = runs.iter().filter(|run| run.controller == controller);
        summary(runs.map(|run| run.acknowledged_ms))
    };
    row(
        &mut out,
        "the same, of runs in which it was controller",
        part(true),
        0,
    );
    row(&mut out, "the same, of the other runs", part(false), 0);
    out
}

fn hand_overs(results: &Results) -> String {
    let mut out = String::new();
    if results.hand_over.is_empty() {
        return out;
    }
    let refused: usize = results.hand_over.iter().map(|run| run.refused).sum();
    let _ = write!(
        out,
        "\n### A streamlet is handed over\n\nOne at a time, in {} clusters of {} streamlets that are all sent to; {refused} \
         were refused. Milliseconds between two acknowledgements of the streamlet.\n\n{HEAD}",
        results.hand_over.len(),
        results.streamlets,
    );
    let gaps = results.hand_over.iter().flat_map(|run| &run.gaps_ms);
    row(
        &mut out,
        "**over the hand-over**",
        summary(gaps.copied()),
        0,
    );
    let still = results.hand_over.iter().flat_map(|run| &run.still_ms);
    row(&mut out, "without one, as long", summary(still.copied()), 0);
    out
}

fn joins(results: &Results) -> String {
    let mut out = String::new();
    if results.join.is_empty() {
        return out;
    }
    let plan = &results.join_plan;
    let rate = summary(results.join.iter().map(|run| run.rate as f64));
    let _ = write!(
        out,
        "\n### A fourth broker comes\n\nTo three that have {} MiB of records in {} streamlets, while a producer sends {} % of \
         what a probe of {} s shows, {:.0} thousand records a second (100 bytes each) in the median run.\n\n{HEAD}",
        plan.history_bytes >> 20,
        plan.streamlets,
        plan.percent,
        plan.probe_seconds,
        rate.map_or(0.0, |rate| rate.median / 1e3),
    );
    let of = |value: fn(&super::join::Taken) -> f64| summary(results.join.iter().map(value));
    row(
        &mut out,
        "**worst second, % below the rate**",
        of(|run| run.dip_percent),
        1,
    );
    row(
        &mut out,
        "the same, before it came",
        of(|run| run.dip_before_percent),
        1,
    );
    row(
        &mut out,
        "**it acknowledges an append, s after its start**",
        of(|run| run.serves_seconds),
        1,
    );
    row(
        &mut out,
        "it has its share of the streamlets, s",
        of(|run| run.share_seconds),
        1,
    );
    out
}

/// A target, and the worst that came of it.
struct Target {
    what: &'static str,
    at_most: f64,
    unit: &'static str,
    found: Option<Summary>,
}

fn targets(results: &Results) -> String {
    let lease = results.lease_ms as f64;
    let gaps = results.hand_over.iter().flat_map(|run| &run.gaps_ms);
    let list = [
        Target {
            what: "killed: all acknowledge within lease + 1.5 s",
            at_most: lease + FAILOVER_BEYOND_LEASE_MS,
            unit: "ms",
            found: summary(results.failover.iter().map(|run| run.acknowledged_ms)),
        },
        Target {
            what: "silent: all acknowledge within lease + 1.5 s",
            at_most: lease + FAILOVER_BEYOND_LEASE_MS,
            unit: "ms",
            found: summary(results.silence.iter().map(|run| run.acknowledged_ms)),
        },
        Target {
            what: "hand-over: gap",
            at_most: HAND_OVER_MS,
            unit: "ms",
            found: summary(gaps.copied()),
        },
        Target {
            what: "join: worst second below the rate",
            at_most: DIP_PERCENT,
            unit: "%",
            found: summary(results.join.iter().map(|run| run.dip_percent)),
        },
        Target {
            what: "join: serves appends",
            at_most: SERVES_SECONDS,
            unit: "s",
            found: summary(results.join.iter().map(|run| run.serves_seconds)),
        },
    ];
    let mut out =
        "\n### Targets\n\n| target | at most | median | worst | |\n|---|---|---|---|---|\n"
            .to_owned();
    for target in list {
        let Some(found) = target.found else {
            continue;
        };
        let verdict = match (found.most <= target.at_most, found.median <= target.at_most) {
            (true, _) => "met",
            (false, true) => "**missed by the worst**",
            (false, false) => "**missed**",
        };
        let digits = if target.unit == "ms" { 0 } else { 1 };
        let _ = writeln!(
            out,
            "| {} | {:.0} {} | {:.digits$} | {:.digits$} | {verdict} |",
            target.what, target.at_most, target.unit, found.median, found.most
        );
    }
    out
}
