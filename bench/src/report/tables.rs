//! A table for each quantity of each scenario.

use super::kept;
use super::targets::{bound, overall, parties, value, verdict};
use super::text::{self, measures, spread, summary};
use crate::results::{CaseRuns, Results};
use crate::scenario::{Case, Contender, Durability, Keys, Measure, Target, Work};
use crate::statistics::Summary;

/// A column that tells cases apart.
pub(super) type Dimension = (&'static str, fn(&Case) -> String);

/// All of them, in the order of a table's columns.
pub(super) const DIMENSIONS: [Dimension; 17] = [
    ("batch", |case| unless_started(case, case.batch.to_string())),
    ("partitions", |case| case.partitions.to_string()),
    ("data", |case| {
        if case.work == Work::Start {
            case.data()
        } else {
            "-".to_owned()
        }
    }),
    ("records in", |case| {
        let store = if case.cluster.is_some() {
            "etcd"
        } else {
            "its own store"
        };
        if case.work == Work::Start { store } else { "-" }.to_owned()
    }),
    ("acks", |case| {
        // It means nothing to a consumer.
        let produces = case.work != Work::Consume && case.work != Work::Start;
        if produces { case.acks.name() } else { "-" }.to_owned()
    }),
    ("durability", |case| {
        unless_started(case, case.durability.name().to_owned())
    }),
    ("linger", |case| {
        unless_started(case, format!("{} ms", case.linger_ms))
    }),
    ("records/s", |case| {
        case.rate
            .map_or_else(|| "-".to_owned(), |rate| rate.to_string())
    }),
    ("of its peak", |case| {
        let share = case.crowd.rate_of_peak;
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
    }),
    ("producers", |case| match case.work {
        Work::Both | Work::Latency | Work::CatchUp => case.crowd.producers.to_string(),
        _ => "-".to_owned(),
    }),
    ("consumers", |case| match case.work {
        Work::Both | Work::Latency | Work::CatchUp | Work::Share => {
            (case.crowd.consumers * case.crowd.subscriptions).to_string()
        }
        _ => "-".to_owned(),
    }),
    ("streamlets", |case| {
        let streamlets = case.crowd.streamlets;
        streamlets.map_or_else(|| "-".to_owned(), |n| format!("{n} (Kera, native)"))
    }),
    ("brokers", |case| {
        let cluster = case.cluster.filter(|_| case.work != Work::Start);
        cluster.map_or_else(|| "-".to_owned(), |cluster| cluster.brokers.to_string())
    }),
    ("replicas", |case| {
        let cluster = case.cluster.filter(|_| case.work != Work::Start);
        cluster.map_or_else(|| "-".to_owned(), |cluster| cluster.replicas.to_string())
    }),
    ("order", |case| {
        let order = case.crowd.order;
        order.map_or_else(|| "-".to_owned(), |order| order.name().to_owned())
    }),
    ("work of each record", |case| match case.work {
        Work::Share => format!("{} ms", case.crowd.work_us as f64 / 1e3),
        _ => "-".to_owned(),
    }),
    ("records of a transaction", |case| {
        let records = case.transaction_records;
        records.map_or_else(|| "-".to_owned(), |records| records.to_string())
    }),
];

/// How data came to a broker that is only started means nothing to it.
fn unless_started(case: &Case, value: String) -> String {
    if case.work == Work::Start {
        "-".to_owned()
    } else {
        value
    }
}

/// All tables of a session; `plots` gives what stands above those of a scenario.
pub(super) fn all(results: &Results, plots: &dyn Fn(&str) -> String) -> String {
    let mut out = String::new();
    for group in groups(results) {
        let case = &group[0].case;
        let varies: Vec<Dimension> = DIMENSIONS
            .into_iter()
            .filter(|(_, show)| group.iter().any(|runs| show(&runs.case) != show(case)))
            .collect();
        out.push_str(&format!(
            "### {}\n\n{}\n\n",
            case.scenario,
            setting(&group, &varies)
        ));
        out.push_str(&plots(&case.scenario));
        for measure in measures(case) {
            out.push_str(&table(&results.cases, &group, &varies, measure));
        }
        out.push_str(&kept::remarks(&group));
        out.push_str(&taken_over(&group));
    }
    out.push_str(&memory(results));
    out
}

/// Which cases are another session's, whose conditions are above.
fn taken_over(group: &[&CaseRuns]) -> String {
    let mut out = String::new();
    for runs in group {
        if let Some(from) = &runs.from {
            let name = runs.case.name();
            let which = name.split_once(' ').map_or("", |(_, which)| which);
            out.push_str(&format!("- {which}: measured {from} UTC\n"));
        }
    }
    if out.is_empty() {
        return out;
    }
    format!("† of another session:\n\n{out}\n")
}

/// Cases of one name, in the order in which they ran.
fn groups(results: &Results) -> Vec<Vec<&CaseRuns>> {
    let mut groups: Vec<Vec<&CaseRuns>> = Vec::new();
    for runs in &results.cases {
        let found = groups
            .iter_mut()
            .find(|group| group[0].case.scenario == runs.case.scenario);
        match found {
            Some(group) => group.push(runs),
            None => groups.push(vec![runs]),
        }
    }
    groups
}

/// What all cases of a group have in common.
fn setting(group: &[&CaseRuns], varies: &[Dimension]) -> String {
    let case = &group[0].case;
    let mut out = match case.work {
        Work::Produce | Work::Consume | Work::Compact => {
            format!("{} of {} bytes a run", records(group), case.record_bytes)
        }
        Work::Latency | Work::Trickle => format!("Records of {} bytes", case.record_bytes),
        Work::Both | Work::CatchUp | Work::Share => kept::setting(case),
        Work::Start => format!(
            "A broker of its own, data of {} bytes a record; after a clean stop, files in the page cache; then left alone for {:.1} s",
            case.record_bytes,
            case.idle_ms.unwrap_or(0) as f64 / 1e3
        ),
    };
    if case.work == Work::Start {
        out.push('.');
        return out;
    }
    match case.keys {
        Keys::None => {}
        Keys::Random => out.push_str(", random keys"),
        Keys::Tenth => out.push_str(", a tenth as many different keys"),
    }
    for (name, show) in DIMENSIONS {
        let value = show(case);
        if value != "-" && !varies.iter().any(|(one, _)| *one == name) {
            out.push_str(&format!("; {name} {value}"));
        }
    }
    out.push('.');
    if case.work == Work::Latency && case.transaction_records.is_none() {
        out.push_str(if case.crowd.consumers == 0 {
            " From the moment at which a record was due, at a fixed rate, until it is acknowledged; without the first second, and without consumers."
        } else {
            " From the moment at which a record was due, at a fixed rate, until its consumer has it; without the first second."
        });
    }
    out.push_str(kept::explanation(case));
    if case.cluster.is_some() && case.work != Work::Start {
        out.push_str(kept::OF_CLUSTERS);
        if case.durability == Durability::Synced {
            out.push_str(kept::OF_FLUSHES);
        }
    }
    out
}

/// How many records a run has.
fn records(group: &[&CaseRuns]) -> String {
    let mut all: Vec<u64> = group.iter().map(|runs| runs.case.records).collect();
    all.sort_unstable();
    let show = |records: u64| text::thousands(records as f64);
    match (all.first(), all.last()) {
        (Some(&least), Some(&most)) if least < most => {
            format!("{} to {} records", show(least), show(most))
        }
        (Some(&one), _) => format!("{} records", show(one)),
        _ => String::new(),
    }
}

fn contenders(group: &[&CaseRuns]) -> Vec<Contender> {
    let mut all: Vec<_> = group
        .iter()
        .flat_map(|runs| runs.case.contenders.clone())
        .collect();
    all.sort();
    all.dedup();
    all
}

fn table(all: &[CaseRuns], group: &[&CaseRuns], varies: &[Dimension], measure: Measure) -> String {
    let contenders = contenders(group);
    // One column for each pair that is compared; the bound may differ from row to row.
    let mut pairs: Vec<String> = Vec::new();
    for target in group.iter().flat_map(|runs| &runs.case.targets) {
        let pair = parties(target);
        if target.measure == measure && !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let mut head: Vec<String> = varies.iter().map(|(name, _)| (*name).to_owned()).collect();
    head.extend(contenders.iter().map(|one| one.title().to_owned()));
    head.extend(pairs.iter().map(|pair| match pair.contains(" / ") {
        true => pair.clone(),
        false => format!("{pair}, expected"),
    }));
    let mut rows = Vec::new();
    for runs in group {
        let mut row: Vec<String> = varies.iter().map(|(_, show)| show(&runs.case)).collect();
        if let (Some(first), Some(_)) = (row.first_mut(), &runs.from) {
            first.push('†');
        }
        row.extend(contenders.iter().map(|&one| cell(runs, one, measure)));
        row.extend(pairs.iter().map(|pair| compared(all, runs, pair, measure)));
        rows.push(row);
    }
    // What no client tells, or what results of an older kind lack, is no table.
    let columns = varies.len()..varies.len() + contenders.len();
    let told = rows
        .iter()
        .any(|row| row[columns.clone()].iter().any(|cell| cell != "-"));
    if told {
        markdown(text::title(measure), &head, &rows)
    } else {
        String::new()
    }
}

fn cell(runs: &CaseRuns, contender: Contender, measure: Measure) -> String {
    if !runs.case.contenders.contains(&contender) {
        return "-".to_owned();
    }
    if !runs.case.offers(contender) {
        return "has no such mode".to_owned();
    }
    let all = || runs.runs.iter().filter(|run| run.contender == contender);
    match summary(runs, contender, measure) {
        Some(summary) => {
            let star = if all().any(|run| run.noisy) { "*" } else { "" };
            format!("{}{star}", spread(measure, &summary))
        }
        // The runs went well but do not tell this.
        None if all().any(|run| run.taken.is_some()) => "-".to_owned(),
        None if all().next().is_some() => "failed".to_owned(),
        None => "left out".to_owned(),
    }
}

fn compared(all: &[CaseRuns], runs: &CaseRuns, pair: &str, measure: Measure) -> String {
    let mut targets = runs.case.targets.iter();
    let of_pair = |target: &&Target| target.measure == measure && parties(target) == pair;
    let Some(target) = targets.find(of_pair) else {
        return "-".to_owned();
    };
    match value(all, runs, target) {
        Some(value) => format!("{} ({})", verdict(target, value), bound(target)),
        None => "-".to_owned(),
    }
}

fn markdown(title: &str, head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = format!("**{title}**\n\n{}", line(head));
    out.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for row in rows {
        out.push_str(&line(row));
    }
    out.push('\n');
    out
}

/// Resident memory of the brokers, and what they wrote.
fn memory(results: &Results) -> String {
    let mut head = vec!["broker".to_owned(), "after its start".to_owned()];
    let mut groups = groups(results);
    groups.retain(|group| group[0].case.work != Work::Start);
    if groups.is_empty() {
        return String::new();
    }
    head.extend(groups.iter().map(|group| group[0].case.scenario.clone()));
    head.push("bytes written per byte of records".to_owned());
    let mut rows = Vec::new();
    for facts in &results.brokers {
        let megabytes = |bytes: f64| text::value(Measure::Memory, bytes);
        let mut row = vec![
            facts.broker.title().to_owned(),
            megabytes(facts.idle.resident as f64),
        ];
        for group in &groups {
            let peaks = group.iter().flat_map(|runs| {
                let contenders = runs.case.contenders.iter();
                let ours = contenders.filter(|one| runs.case.broker(**one) == facts.broker);
                ours.filter_map(|&one| summary(runs, one, Measure::Memory))
            });
            let highest = Summary::of(peaks.map(|peak| peak.median)).map(|all| all.most);
            row.push(highest.map_or_else(|| "-".to_owned(), megabytes));
        }
        let produce = results.cases.iter();
        let produce = produce.filter(|runs| runs.case.work == Work::Produce);
        let written = produce
            .flat_map(|runs| runs.runs.iter().map(|run| (&runs.case, run)))
            .filter(|(case, run)| case.broker(run.contender) == facts.broker)
            .filter_map(|(_, run)| run.taken.as_ref())
            .map(|taken| taken.broker_written as f64 / taken.bytes.max(1) as f64);
        row.push(
            Summary::of(written).map_or_else(|| "-".to_owned(), |all| format!("{:.2}", all.median)),
        );
        rows.push(row);
    }
    let mut out = "### Memory and disk\n\nThe highest median of any case.\n\n".to_owned();
    out.push_str(&markdown(text::title(Measure::Memory), &head, &rows));
    for target in &results.targets {
        if let Some(value) = overall(results, target) {
            out.push_str(&format!(
                "{}: {} ({}).\n",
                parties(target),
                verdict(target, value),
                bound(target)
            ));
        }
    }
    out
}
