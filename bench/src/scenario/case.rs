//! Every combination of a scenario's lists is a case.

use serde::{Deserialize, Serialize};

use super::{Acks, Contender, File, Keys, Scenario, Size, Target, Work};

/// One combination of what a scenario lists.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Case {
    /// The scenario's name.
    pub scenario: String,
    pub work: Work,
    pub contenders: Vec<Contender>,
    pub records: u64,
    pub record_bytes: u32,
    pub keys: Keys,
    pub batch: Size,
    pub linger_ms: f64,
    pub partitions: u32,
    pub acks: Acks,
    /// Records a second, for an open loop.
    pub rate: Option<u64>,
    pub targets: Vec<Target>,
}

impl Case {
    /// Says which case it is, in one line.
    pub fn name(&self) -> String {
        let mut name = format!(
            "{} partitions={}, batch={}, linger={} ms",
            self.scenario, self.partitions, self.batch, self.linger_ms
        );
        if self.work != Work::Consume {
            name.push_str(&format!(", acks={}", self.acks.name()));
        }
        if let Some(rate) = self.rate {
            name.push_str(&format!(", rate={rate}/s"));
        }
        name
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.records * u64::from(self.record_bytes)
    }
}

/// The cases of a file, in the order in which they run.
#[derive(Clone, Debug)]
pub struct Cases(pub Vec<Case>);

impl Cases {
    /// All cases, with their records divided by `divide`.
    pub fn of(file: &File, divide: u64) -> Self {
        Self(
            file.scenario
                .iter()
                .flat_map(|scenario| expand(scenario, divide))
                .collect(),
        )
    }

    /// Those whose name contains one of `only` (or all, if that is empty), by those of `contenders`
    /// (or all, if that is empty). Cases without contender are dropped.
    pub fn select(mut self, only: &[String], contenders: &[Contender]) -> Self {
        self.0
            .retain(|case| only.is_empty() || only.iter().any(|text| case.name().contains(text)));
        if !contenders.is_empty() {
            for case in &mut self.0 {
                case.contenders.retain(|one| contenders.contains(one));
            }
        }
        self.0.retain(|case| !case.contenders.is_empty());
        self
    }

    /// Runs of all cases.
    pub fn runs(&self, repetitions: u32) -> u64 {
        let turns: usize = self.0.iter().map(|case| case.contenders.len()).sum();
        turns as u64 * u64::from(repetitions)
    }
}

fn expand(scenario: &Scenario, divide: u64) -> Vec<Case> {
    let rates: Vec<Option<u64>> = if scenario.rate.is_empty() {
        vec![None]
    } else {
        scenario.rate.iter().copied().map(Some).collect()
    };
    let mut cases = Vec::new();
    for &batch in &scenario.batch {
        for &linger_ms in &scenario.linger_ms {
            for &partitions in &scenario.partitions {
                for &acks in &scenario.acks {
                    for &rate in &rates {
                        let records = match rate {
                            // Never less than what comes after the first second.
                            Some(rate) => rate * (scenario.seconds.unwrap_or(2) / divide).max(2),
                            None => (scenario.records.unwrap_or(1) / divide).max(1),
                        };
                        cases.push(Case {
                            scenario: scenario.name.clone(),
                            work: scenario.work,
                            contenders: scenario.contenders.clone(),
                            records,
                            record_bytes: scenario.record_bytes,
                            keys: scenario.keys,
                            batch,
                            linger_ms,
                            partitions,
                            acks,
                            rate,
                            targets: scenario.target.clone(),
                        });
                    }
                }
            }
        }
    }
    cases
}
