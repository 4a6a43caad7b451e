//! What a contender can do at most, before it is asked for a share of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::Session;
use super::progress::Progress;
use crate::scenario::{Case, Contender, Work};
use crate::statistics::Summary;

/// Runs of which the median is the peak.
const RUNS: usize = 3;

impl Session {
    /// The case as it is for each contender: where its rate is a share of the peak, that is measured
    /// first, once in a session, with producers and consumers at work as fast as they can.
    pub(super) fn at_share_of_peak(
        &mut self,
        case: &Case,
        contenders: &[Contender],
        progress: &Progress,
    ) -> Result<BTreeMap<Contender, Result<Case, String>>> {
        let mut cases = BTreeMap::new();
        for &contender in contenders {
            let actual = match case.crowd.rate_of_peak {
                None => Ok(case.clone()),
                Some(share) => {
                    let peak = self.peak(case, contender.peak_of(case), progress);
                    self.interrupt.check()?;
                    peak.map(|peak| at_rate(case, peak * share))
                }
            };
            cases.insert(contender, actual);
        }
        Ok(cases)
    }

    fn peak(
        &mut self,
        case: &Case,
        contender: Contender,
        progress: &Progress,
    ) -> Result<f64, String> {
        let closed = as_fast_as_it_goes(case);
        let key = (contender, closed.name());
        if let Some(known) = self.peaks.get(&key) {
            return known.clone();
        }
        progress.doing(format!("{}: its peak", contender.name()));
        let peak = (0..RUNS)
            .map(|_| {
                let (taken, _) = self.one_run(&closed, (contender, None))?;
                Ok(taken.records as f64 / taken.seconds.max(1e-9))
            })
            .collect::<Result<Vec<f64>>>()
            .and_then(|all| {
                let summary = Summary::of(all);
                Ok(summary.context("no run of the peak was measured")?.median)
            })
            .map_err(|error| format!("the peak could not be measured: {error:#}"));
        if let Ok(peak) = &peak {
            progress.say(format!(
                "{}: {peak:.0} records/s at its peak, {}",
                contender.name(),
                closed.name()
            ));
        }
        self.peaks.insert(key, peak.clone());
        peak
    }
}

/// The same clients without a rate.
fn as_fast_as_it_goes(case: &Case) -> Case {
    let mut closed = case.clone();
    closed.work = Work::Both;
    closed.records = 0;
    closed.rate = None;
    closed.crowd.rate_of_peak = None;
    closed
}

/// The case at so many records a second.
fn at_rate(case: &Case, rate: f64) -> Case {
    let mut actual = case.clone();
    let rate = (rate.round() as u64).max(1);
    actual.rate = Some(rate);
    actual.records = (rate * case.crowd.millis.unwrap_or(0) / 1_000).max(1);
    actual
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Cases, File};

    #[test]
    fn a_share_becomes_a_rate_and_cases_share_a_peak() {
        let text = "title = \"T\"\ncommand = \"c\"\n[[scenario]]\nname = \"l\"\nwork = \"latency\"\n\
            contenders = [\"kera\"]\nkeys = \"none\"\nbatch = [\"16KiB\"]\nlinger_ms = [1]\n\
            partitions = [1]\nrate_of_peak = [0.5, 0.9]\nseconds = 3\n";
        let cases = Cases::of(&File::parse(text).unwrap(), 1).0;
        let half = at_rate(&cases[0], 1_000_001.0 * 0.5);
        assert_eq!((half.rate, half.records), (Some(500_001), 1_500_003));
        let closed: Vec<_> = cases.iter().map(as_fast_as_it_goes).collect();
        assert_eq!(closed[0].name(), closed[1].name());
        assert_eq!((closed[0].work, closed[0].rate), (Work::Both, None));
        assert_ne!(cases[0].name(), cases[1].name());
    }
}
