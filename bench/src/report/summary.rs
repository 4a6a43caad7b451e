//! The section at the top of a document: what was expected of all sessions, and what came of it.

use super::targets::{self, margin, outcomes};
use super::text;
use crate::results::Results;

/// Of all sessions; each with the heading of its section in the document.
pub(super) fn render(sessions: &[&Results]) -> String {
    let mut out = String::new();
    let (mut met, mut all, mut unknown) = (0, 0, 0);
    let mut rows = String::new();
    for results in sessions {
        for outcome in outcomes(results) {
            let came = match outcome.worst {
                Some(worst) => {
                    all += 1;
                    met += u32::from(outcome.target.met(worst));
                    format!(
                        "{} of {} | {} | {}",
                        outcome.met,
                        outcome.cases,
                        targets::show(&outcome.target, worst),
                        margin(&outcome.target, worst)
                    )
                }
                None => {
                    unknown += 1;
                    "- | - | not measured".to_owned()
                }
            };
            rows.push_str(&format!(
                "| [{}](#{}) | {} | {came} |\n",
                results.title,
                anchor(&super::heading(results)),
                outcome.words(),
            ));
        }
    }
    if !rows.is_empty() {
        let unknown = match unknown {
            0 => String::new(),
            unknown => format!(", {unknown} could not be measured"),
        };
        out.push_str(&format!(
            "Met in every case: {met} of {all} targets{unknown}. They are about medians; of several cases the worst is shown.\n\n\
             | session | target | met in cases | worst | |\n|---|---|---|---|---|\n{rows}\n"
        ));
    }
    out.push_str("| session | measured (UTC) | machine, disk | brokers and what an acknowledgement meant |\n|---|---|---|---|\n");
    for results in sessions {
        let brokers: Vec<String> = results
            .brokers
            .iter()
            .map(|one| {
                format!(
                    "{} {}: {}",
                    one.broker.title(),
                    version(&one.version),
                    one.durability
                )
            })
            .collect();
        let commit = results.versions.get("commit").map_or("", String::as_str);
        out.push_str(&format!(
            "| {} (commit {commit}) | {}, {:.0} minutes, {} runs of each case | {}; {} | {} |\n",
            results.title,
            results.started,
            results.minutes,
            results.repetitions,
            text::machine(&results.machine),
            text::disk(&results.disk),
            brokers.join("; ")
        ));
    }
    out
}

/// A version without what it runs on.
fn version(text: &str) -> &str {
    text.split_once(" (").map_or(text, |(version, _)| version)
}

/// A heading's anchor, as the usual renderers make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
