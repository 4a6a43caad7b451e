//! What was expected, and what came of it.

use super::text;
use crate::results::{CaseRuns, Results};
use crate::scenario::{Measure, Target};
use crate::statistics::Summary;

/// A target's ratio in a case of `all`, or its value; `None` if one of what it needs is missing, or
/// if it is the case that others are compared with.
pub fn value(all: &[CaseRuns], runs: &CaseRuns, target: &Target) -> Option<f64> {
    let median = |runs: &CaseRuns, contender| {
        text::summary(runs, contender, target.measure).map(|one| one.median)
    };
    let own = median(runs, target.contender)?;
    if let Some(other) = target.against {
        return divide(own, median(runs, other)?);
    }
    let Some(baseline) = target.baseline else {
        return Some(text::scaled(target.measure, own));
    };
    if baseline.holds(&runs.case) {
        return None;
    }
    let mut others = all.iter();
    let base = others.find(|other| baseline.is_of(&other.case, &runs.case))?;
    divide(own, median(base, target.contender)?)
}

/// The same over all cases: the highest median of any case.
pub fn overall(results: &Results, target: &Target) -> Option<f64> {
    let highest = |contender| {
        let cases = results.cases.iter();
        let medians = cases.filter_map(|runs| text::summary(runs, contender, target.measure));
        Summary::of(medians.map(|one| one.median)).map(|all| all.most)
    };
    let own = highest(target.contender)?;
    match target.against {
        Some(other) => divide(own, highest(other)?),
        None => Some(text::scaled(target.measure, own)),
    }
}

fn divide(one: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| one / other)
}

/// A ratio and whether it is within its bound.
pub fn verdict(target: &Target, ratio: f64) -> String {
    let met = if target.met(ratio) {
        "met"
    } else {
        "**missed**"
    };
    format!("{ratio:.2}, {met}")
}

/// The bound in words, such as `at most 0.5`.
pub fn bound(target: &Target) -> String {
    match (target.at_most, target.at_least) {
        (Some(most), _) => format!("at most {}", number(most)),
        (_, Some(least)) => format!("at least {}", number(least)),
        _ => "no bound".to_owned(),
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Which targets were met, in a table; nothing if there are none.
pub fn summary(results: &Results) -> String {
    let mut seen: Vec<(String, Target)> = Vec::new();
    for runs in &results.cases {
        for target in &runs.case.targets {
            let group = group(runs);
            if !seen
                .iter()
                .any(|(name, one)| *name == group && one == target)
            {
                seen.push((group, *target));
            }
        }
    }
    let mut rows = String::new();
    for (group, target) in seen {
        let cases = results
            .cases
            .iter()
            .filter(|runs| self::group(runs) == group);
        let ratios: Vec<(f64, String)> = cases
            .filter(|runs| runs.case.targets.contains(&target))
            .filter_map(|runs| Some((value(&results.cases, runs, &target)?, runs.case.name())))
            .collect();
        let met = ratios
            .iter()
            .filter(|(ratio, _)| target.met(*ratio))
            .count();
        let worst = ratios.iter().max_by(|one, other| {
            let order = one.0.total_cmp(&other.0);
            if target.at_most.is_some() {
                order
            } else {
                order.reverse()
            }
        });
        let Some((worst, at)) = worst else {
            continue;
        };
        let at = at.split_once(' ').map_or("", |(_, at)| at);
        rows.push_str(&format!(
            "| {group}: {} | {met} of {} | {worst:.2} ({at}) |\n",
            words(&target),
            ratios.len()
        ));
    }
    for target in &results.targets {
        if let Some(ratio) = overall(results, target) {
            let met = u8::from(target.met(ratio));
            rows.push_str(&format!(
                "| {} | {met} of 1 | {ratio:.2} |\n",
                words(target)
            ));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("| expected of the medians | met in cases | worst |\n|---|---|---|\n{rows}\n")
}

fn group(runs: &CaseRuns) -> String {
    format!("{}, {}", runs.case.scenario, runs.case.batch)
}

fn words(target: &Target) -> String {
    let what = match target.measure {
        Measure::Throughput => "throughput",
        Measure::BrokerCpu => "broker CPU per record",
        Measure::ClientCpu => "client CPU per record",
        Measure::Memory => "highest resident memory",
        Measure::Batch => "mean batch",
        Measure::P50 => "p50",
        Measure::P99 => "p99",
        Measure::P999 => "p99.9",
        Measure::Max => "longest",
        // A bound of its own needs the unit.
        own => text::title(own),
    };
    format!("{what}, {}, {}", parties(target), bound(target))
}

/// Those that a target compares, such as `Kera / Apache Kafka`.
pub fn parties(target: &Target) -> String {
    let own = target.contender.title();
    match (target.against, target.baseline) {
        (Some(other), _) => format!("{own} / {}", other.title()),
        (None, Some(baseline)) => format!("{own} / itself at {}", baseline.words()),
        (None, None) => own.to_owned(),
    }
}
