//! Something that is wrong in a cluster, as people are told.

use serde::Serialize;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// What it is about, such as `broker 2`.
    pub(crate) object: String,
    /// What is wrong with it.
    pub(crate) problem: String,
    /// What to do about it.
    pub(crate) advice: String,
}

impl Problem {
    pub(crate) fn new(
        object: impl Into<String>,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            object: object.into(),
            problem: problem.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!("{} {}; {}", self.object, self.problem, self.advice)
    }
}
