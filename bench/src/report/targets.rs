//! What was expected, and what came of it.

use super::text;
use crate::results::{CaseRuns, Results};
use crate::scenario::{Measure, Target};
use crate::statistics::Summary;

/// What came of a target, over all cases that it is about.
pub(super) struct Outcome {
    pub target: Target,
    /// The cases, as a table calls them; empty if it is about all.
    pub group: String,
    pub met: usize,
    pub cases: usize,
    /// The ratio, or the value, farthest to the wrong side; none if nothing was measured that tells.
    pub worst: Option<f64>,
    /// The case that it is of; empty if it is about all.
    pub at: String,
}

/// A target's ratio in a case of `all`, or its value; `None` if one of what it needs is missing, or
/// if it is the case that others are compared with.
pub(super) fn value(all: &[CaseRuns], runs: &CaseRuns, target: &Target) -> Option<f64> {
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
pub(super) fn overall(results: &Results, target: &Target) -> Option<f64> {
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

/// A ratio, or a value, and whether it is within its bound.
pub(super) fn verdict(target: &Target, value: f64) -> String {
    let met = if target.met(value) {
        "met"
    } else {
        "**missed**"
    };
    format!("{}, {met}", show(target, value))
}

/// A ratio, or a value in the unit of its table.
pub(super) fn show(target: &Target, value: f64) -> String {
    if target.is_absolute() {
        text::short(value)
    } else {
        format!("{value:.2}")
    }
}

/// The bound in words, such as `at most 0.5`.
pub(super) fn bound(target: &Target) -> String {
    match (target.at_most, target.at_least) {
        (Some(most), _) => format!("at most {}", number(most)),
        (_, Some(least)) => format!("at least {}", number(least)),
        _ => "no bound".to_owned(),
    }
}

/// How far a value is from its bound, such as `missed by 8 %`.
pub(super) fn margin(target: &Target, value: f64) -> String {
    let (bound, spare) = match (target.at_most, target.at_least) {
        (Some(most), _) => (most, most - value),
        (_, Some(least)) => (least, value - least),
        _ => return String::new(),
    };
    let percent = text::thousands((spare / bound.max(1e-12)).abs() * 100.0);
    if target.met(value) {
        format!("met with {percent} % to spare")
    } else {
        format!("**missed by {percent} %**")
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What came of every target.
pub(super) fn outcomes(results: &Results) -> Vec<Outcome> {
    let mut seen: Vec<(String, Target)> = Vec::new();
    for runs in &results.cases {
        for target in &runs.case.targets {
            let entry = (group(runs), *target);
            if !seen.contains(&entry) {
                seen.push(entry);
            }
        }
    }
    let mut outcomes = Vec::new();
    for (group, target) in seen {
        let cases = results
            .cases
            .iter()
            .filter(|runs| self::group(runs) == group);
        let values: Vec<(f64, String)> = cases
            .filter(|runs| runs.case.targets.contains(&target))
            .filter_map(|runs| Some((value(&results.cases, runs, &target)?, runs.case.name())))
            .collect();
        let met = values.iter().filter(|(value, _)| target.met(*value));
        let met = met.count();
        let worst = values.iter().max_by(|one, other| {
            let order = one.0.total_cmp(&other.0);
            if target.at_most.is_some() {
                order
            } else {
                order.reverse()
            }
        });
        let at = worst.and_then(|(_, at)| at.split_once(' '));
        outcomes.push(Outcome {
            target,
            group,
            met,
            cases: values.len(),
            worst: worst.map(|(worst, _)| *worst),
            at: at.map_or("", |(_, at)| at).to_owned(),
        });
    }
    for target in &results.targets {
        let worst = overall(results, target);
        outcomes.push(Outcome {
            target: *target,
            group: String::new(),
            met: usize::from(worst.is_some_and(|worst| target.met(worst))),
            cases: usize::from(worst.is_some()),
            worst,
            at: String::new(),
        });
    }
    outcomes
}

impl Outcome {
    /// What was expected, in words.
    pub(super) fn words(&self) -> String {
        let colon = if self.group.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", self.group, words(&self.target))
    }
}

/// Which targets were met, in a table; those that nothing was measured for are left out. Nothing if
/// there are none.
pub(super) fn summary(results: &Results) -> String {
    let mut rows = String::new();
    for outcome in outcomes(results) {
        let Some(worst) = outcome.worst else {
            continue;
        };
        let at = match outcome.at.as_str() {
            "" => String::new(),
            at => format!(" ({at})"),
        };
        rows.push_str(&format!(
            "| {} | {} of {} | {}{at} |\n",
            outcome.words(),
            outcome.met,
            outcome.cases,
            show(&outcome.target, worst)
        ));
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("| expected of the medians | met in cases | worst |\n|---|---|---|\n{rows}\n")
}

fn group(runs: &CaseRuns) -> String {
    if runs.case.work == crate::scenario::Work::Start {
        return runs.case.scenario.clone();
    }
    format!("{}, {}", runs.case.scenario, runs.case.batch)
}

/// Those that a target compares, such as `Kera / Apache Kafka`.
pub(super) fn parties(target: &Target) -> String {
    let own = target.contender.title();
    match (target.against, target.baseline) {
        (Some(other), _) => format!("{own} / {}", other.title()),
        (None, Some(baseline)) => format!("{own} / itself at {}", baseline.words()),
        (None, None) => own.to_owned(),
    }
}

fn words(target: &Target) -> String {
    let what = match target.measure {
        // A bound of its own needs the unit.
        own if target.is_absolute() => text::title(own),
        Measure::Throughput => "throughput",
        Measure::BrokerCpu => "broker CPU per record",
        Measure::ClientCpu => "client CPU per record",
        Measure::Memory => "highest resident memory",
        Measure::Batch => "mean batch",
        Measure::P50 => "p50",
        Measure::P99 => "p99",
        Measure::P999 => "p99.9",
        Measure::Max => "longest",
        Measure::Start => "from start to first answer",
        Measure::Ready => "from start until partitions are served",
        Measure::IdleMemory => "resident memory when idle",
        Measure::IdleCpu => "CPU when idle",
        other => text::title(other),
    };
    format!("{what}, {}, {}", parties(target), bound(target))
}
