//! What is expected of a measurement.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Case, Contender, Measure, Scenario, Size};

/// What is expected: `contender`'s median lies within a bound, after it was divided by that of
/// another contender in the same case, or by its own in another case. Without either it is the
/// median itself that is bounded, in the unit in which tables show the quantity.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub measure: Measure,
    pub contender: Contender,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Contender>,
    /// The other case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

/// The case that others of its scenario are compared with: alike but for what is named here.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<u32>,
}

impl Baseline {
    /// True if `other` is the case that `case` is compared with.
    pub(crate) fn is_of(&self, other: &Case, case: &Case) -> bool {
        let mut wanted = case.clone();
        wanted.partitions = self.partitions.unwrap_or(case.partitions);
        wanted.batch = self.batch.unwrap_or(case.batch);
        wanted.crowd.consumers = self.consumers.unwrap_or(case.crowd.consumers);
        // Sizes of runs, and what is expected of them, may differ from case to case.
        wanted.records = other.records;
        wanted.crowd.millis = other.crowd.millis;
        wanted.contenders.clone_from(&other.contenders);
        wanted.targets.clone_from(&other.targets);
        wanted == *other
    }

    /// True if `case` is itself such a case, with which others are compared.
    pub(crate) fn holds(&self, case: &Case) -> bool {
        self.is_of(case, case)
    }

    /// In words, such as `partitions=16`.
    pub(crate) fn words(&self) -> String {
        let partitions = self.partitions.map(|n| format!("partitions={n}"));
        let batch = self.batch.map(|size| format!("batch={size}"));
        let consumers = self.consumers.map(|n| format!("consumers={n}"));
        let all = [partitions, batch, consumers];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Target {
    /// True if the ratio, or the value, is within the bound.
    pub(crate) fn met(&self, value: f64) -> bool {
        self.at_most.is_none_or(|bound| value <= bound)
            && self.at_least.is_none_or(|bound| value >= bound)
    }

    /// True if it is the value that is bounded, not a ratio.
    pub(crate) fn is_absolute(&self) -> bool {
        self.against.is_none() && self.baseline.is_none()
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.at_most.is_some() != self.at_least.is_some(),
            "a target has either at_most or at_least"
        );
        ensure!(
            self.against != Some(self.contender),
            "a target compares two different contenders"
        );
        ensure!(
            self.against.is_none() || self.baseline.is_none(),
            "a target has either against or baseline"
        );
        let none = Baseline {
            partitions: None,
            batch: None,
            consumers: None,
        };
        ensure!(
            self.baseline != Some(none),
            "a baseline names partitions, batch or consumers"
        );
        Ok(())
    }

    /// Checks that the scenario has the case that others are to be compared with.
    pub(super) fn check_within(&self, scenario: &Scenario) -> Result<()> {
        let Some(baseline) = self.baseline else {
            return Ok(());
        };
        let has = |wanted: Option<u32>, list: &[u32]| wanted.is_none_or(|n| list.contains(&n));
        let consumers = scenario.consumers.as_ref().unwrap_or(&scenario.producers);
        let batch = baseline.batch;
        ensure!(
            has(baseline.partitions, &scenario.partitions)
                && has(baseline.consumers, consumers)
                && batch.is_none_or(|size| scenario.batch.contains(&size)),
            "a target's baseline, {}, is no case of the scenario",
            baseline.words()
        );
        Ok(())
    }
}
