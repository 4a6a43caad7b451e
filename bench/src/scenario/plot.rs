//! Plots, as a file of scenarios names them.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Contender, Measure, Scenario};

/// A plot of what the cases of one scenario measured.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plot {
    /// Name of its file, without the ending; no two files of scenarios may share one.
    pub name: String,
    /// The scenario whose cases are drawn.
    pub scenario: String,
    pub kind: PlotKind,
    /// What is drawn; each has a panel of its own, side by side.
    pub measure: Vec<Measure>,
    /// The dimension along the horizontal axis, as tables name it, such as `partitions` or `batch`.
    /// Bars may go without one: then each contender has a bar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Only cases whose name contains every one of these, such as `batch=16 KiB`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    /// Only these contenders, in this order; all without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contenders: Vec<Contender>,
    /// The axes whose scale is logarithmic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<Axis>,
    pub title: String,
    /// What is seen, in a sentence.
    pub caption: String,
}

/// How values are drawn; both show the span from the least to the most of the runs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlotKind {
    /// A line for each contender, over a dimension.
    Lines,
    /// A bar for each contender, grouped by a dimension if there is one.
    Bars,
}

/// An axis of a plot.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    X,
    Y,
}

impl Plot {
    /// True if the scale of `axis` is logarithmic.
    pub(crate) fn is_log(&self, axis: Axis) -> bool {
        self.log.contains(&axis)
    }

    /// Checks it against the scenarios of its file.
    pub(super) fn check(&self, scenarios: &[Scenario]) -> Result<()> {
        let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            !self.name.is_empty() && self.name.chars().all(fit),
            "its name is a file's: lowercase letters, digits and hyphens"
        );
        let named = scenarios.iter().find(|one| one.name == self.scenario);
        ensure!(named.is_some(), "no scenario is named {}", self.scenario);
        ensure!(
            (1..=3).contains(&self.measure.len()),
            "a plot has one to three measures"
        );
        ensure!(
            self.kind == PlotKind::Bars || self.over.is_some(),
            "lines need `over`, the dimension along the horizontal axis"
        );
        for text in [&self.title, &self.caption] {
            ensure!(!text.trim().is_empty(), "title or caption is empty");
            ensure!(!text.contains('\n'), "title and caption are one line each");
        }
        Ok(())
    }
}
