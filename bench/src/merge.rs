//! A session that was ended, completed by another.

use anyhow::{Result, ensure};

use crate::results::{CaseRuns, OtherSession, Results};
use crate::scenario::Case;

impl Results {
    /// True if a case of that name was measured, by one contender at least.
    pub(crate) fn has(&self, case: &Case) -> bool {
        let name = case.name();
        let mut same = self.cases.iter().filter(|runs| runs.case.name() == name);
        same.any(CaseRuns::measured)
    }

    /// Takes the cases that are missing here from `other`, each marked with its session. What was
    /// measured here stays. An error if the two are not of one title.
    pub(crate) fn complete_from(&mut self, other: &Self) -> Result<()> {
        ensure!(
            self.title == other.title,
            "`{}` cannot be completed by `{}`; sessions of one title can",
            self.title,
            other.title
        );
        let mut taken = Vec::new();
        for runs in other.cases.iter().filter(|runs| runs.measured()) {
            if self.has(&runs.case) {
                continue;
            }
            let mut runs = runs.clone();
            let from = runs.from.take().unwrap_or_else(|| other.started.clone());
            if from != self.started {
                runs.from = Some(from);
            }
            taken.push(runs);
        }
        for runs in taken {
            let name = runs.case.name();
            // One that failed here makes room.
            match self.cases.iter_mut().find(|old| old.case.name() == name) {
                Some(failed) => *failed = runs,
                None => self.cases.push(runs),
            }
        }
        let sessions = other.others.iter().cloned().chain([other.as_other()]);
        for session in sessions {
            let named = |runs: &CaseRuns| runs.from.as_ref() == Some(&session.started);
            let known = self.others.iter().any(|one| one.started == session.started);
            if !known && self.cases.iter().any(named) {
                self.others.push(session);
            }
        }
        if self.plots.is_empty() {
            self.plots.clone_from(&other.plots);
        }
        Ok(())
    }

    fn as_other(&self) -> OtherSession {
        OtherSession {
            started: self.started.clone(),
            minutes: self.minutes,
            repetitions: self.repetitions,
            machine: self.machine.clone(),
            disk: self.disk.clone(),
            versions: self.versions.clone(),
            brokers: self.brokers.clone(),
        }
    }
}

impl CaseRuns {
    /// True if a run of it succeeded.
    pub(crate) fn measured(&self) -> bool {
        self.runs.iter().any(|run| run.taken.is_some())
    }
}
