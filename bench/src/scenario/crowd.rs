//! How many clients a run has, and how they go about their work.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{ClientPath, Contender, Scenario, Work};

/// Most producers, or consumers, of a run.
const MOST_CLIENTS: u32 = 1_000;

/// The clients of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub(crate) struct Crowd {
    /// At work at once, each with connections of its own; they share records, time or rate evenly.
    pub producers: u32,
    /// Of each subscription; they share the partitions evenly.
    pub consumers: u32,
    /// How often every record is read.
    pub subscriptions: u32,
    /// How long a run lasts that is limited by time, in milliseconds.
    pub millis: Option<u64>,
    /// How a group's members share the partitions.
    pub order: Option<Sharing>,
    /// What a consumer is busy with each record, in microseconds.
    pub work_us: u64,
    /// Kera's own clients use a stream of so many streamlets, with the partitions as their lanes.
    pub streamlets: Option<u32>,
    /// The rate of an open loop as a share of the contender's own peak.
    pub rate_of_peak: Option<f64>,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            producers: 1,
            consumers: 1,
            subscriptions: 1,
            millis: None,
            order: None,
            work_us: 0,
            streamlets: None,
            rate_of_peak: None,
        }
    }
}

/// How a group's members share what there is to read.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sharing {
    /// One member follows a partition or lane: Kafka's consumer group, Kera's `order = lane`.
    Lane,
    /// Any member takes any records: Kafka's share group, Kera's `order = none`.
    None,
}

impl Sharing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::None => "none",
        }
    }
}

/// Every combination of a scenario's clients; times are divided by `divide`.
pub(super) fn expand(scenario: &Scenario, divide: u64) -> Vec<Crowd> {
    let one = Crowd {
        millis: millis(scenario, divide),
        work_us: scenario.work_us,
        streamlets: scenario.streamlets,
        subscriptions: scenario.subscriptions,
        ..Crowd::default()
    };
    let mut crowds = Vec::new();
    for &producers in &scenario.producers {
        // Without a list of their own there are as many consumers as producers.
        let alike = vec![producers];
        for &consumers in scenario.consumers.as_ref().unwrap_or(&alike) {
            for order in optional(&scenario.order) {
                for rate_of_peak in optional(&scenario.rate_of_peak) {
                    crowds.push(Crowd {
                        producers,
                        consumers,
                        order,
                        rate_of_peak,
                        ..one
                    });
                }
            }
        }
    }
    crowds
}

fn optional<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    if list.is_empty() {
        vec![None]
    } else {
        list.iter().copied().map(Some).collect()
    }
}

/// How long a run takes. An open loop keeps two seconds at least, as its first one does not count.
fn millis(scenario: &Scenario, divide: u64) -> Option<u64> {
    let least = match scenario.work {
        Work::Produce | Work::Consume | Work::Start | Work::Compact => return None,
        Work::Latency => 2_000,
        Work::CatchUp => 1_500,
        Work::Both | Work::Share | Work::Trickle => 300,
    };
    let seconds = scenario.seconds?;
    Some((seconds * 1_000 / divide).max(least))
}

impl Scenario {
    /// Checks what only some kinds of work have.
    pub(super) fn check_crowd(&self) -> Result<()> {
        let name = self.work.name();
        let numbers = |all: &[u32], least| {
            let within = |n: &u32| (least..=MOST_CLIENTS).contains(n);
            !all.is_empty() && all.iter().all(within)
        };
        ensure!(numbers(&self.producers, 1), "producers are 1 to 1000");
        let consumers = self.consumers.as_deref();
        ensure!(
            consumers.is_none_or(|all| numbers(all, 0)),
            "consumers are 0 to 1000"
        );
        ensure!(
            (1..=16).contains(&self.subscriptions),
            "subscriptions are 1 to 16"
        );
        let crowded = matches!(self.work, Work::Both | Work::Latency | Work::CatchUp);
        ensure!(
            crowded || self.producers == [1] && self.subscriptions == 1,
            "work = \"{name}\" has one producer at most"
        );
        ensure!(
            crowded || consumers.is_none() || self.work == Work::Share,
            "consumers mean nothing to work = \"{name}\""
        );
        ensure!(
            matches!(self.work, Work::Both | Work::Latency)
                || consumers.is_none_or(|all| !all.contains(&0)),
            "only work = \"both\" and \"latency\" can do without consumers"
        );
        let shares = self.work == Work::Share;
        ensure!(
            shares != self.order.is_empty(),
            "order is for work = \"share\", which needs it"
        );
        ensure!(
            shares || self.work_us == 0,
            "work_us is for work = \"share\""
        );
        ensure!(
            self.work_us <= 1_000_000,
            "work_us is 1000000 at most, a second"
        );
        ensure!(
            self.rate_of_peak.is_empty() || self.work == Work::Latency,
            "rate_of_peak is for work = \"latency\""
        );
        ensure!(
            self.rate_of_peak
                .iter()
                .all(|&share| share > 0.0 && share <= 1.5),
            "rate_of_peak is a share such as 0.5, and 1.5 at most"
        );
        let alone = self.producers == [1] && self.subscriptions == 1;
        let alone = alone && consumers.is_none_or(|all| *all == [1]);
        ensure!(
            (alone && self.rate_of_peak.is_empty())
                || self
                    .contenders
                    .iter()
                    .all(|one| one.path() != ClientPath::Nats),
            "nats has one producer and one consumer, and no peak that could be measured"
        );
        self.check_streamlets()?;
        self.check_amounts()
    }

    fn check_streamlets(&self) -> Result<()> {
        let Some(streamlets) = self.streamlets else {
            return Ok(());
        };
        ensure!(
            self.contenders
                .iter()
                .any(|one| one.path() == ClientPath::Native),
            "streamlets are for kera-native, which is no contender"
        );
        ensure!(
            streamlets > 0 && self.partitions.iter().all(|n| n.is_multiple_of(streamlets)),
            "partitions must be multiples of streamlets"
        );
        Ok(())
    }

    /// Records, time or rate: what decides how much a run does.
    fn check_amounts(&self) -> Result<()> {
        let rates = !self.rate.is_empty() && !self.rate.contains(&0);
        ensure!(
            self.closed_groups.is_none() || self.work == Work::Start,
            "closed_groups are for work = \"start\""
        );
        match self.work {
            Work::Start => {
                ensure!(
                    self.closed_groups.is_none()
                        || self.records.is_none() && self.contenders == [Contender::Kera],
                    "closed_groups are in place of records, and for kera alone"
                );
                ensure!(self.rate.is_empty(), "rate is not for work = \"start\"");
                ensure!(
                    self.seconds.is_some_and(|s| s > 0),
                    "seconds is missing or 0: how long the broker is left alone"
                );
            }
            Work::Produce | Work::Consume | Work::Compact => {
                ensure!(self.records.is_some_and(|n| n > 0), "records is missing");
                ensure!(
                    self.rate.is_empty() && self.seconds.is_none(),
                    "rate and seconds are not for work = \"{}\"",
                    self.work.name()
                );
            }
            Work::Latency => {
                ensure!(
                    self.records.is_none(),
                    "rate and seconds decide, not records"
                );
                let peak = !self.rate_of_peak.is_empty();
                ensure!(
                    if peak { self.rate.is_empty() } else { rates },
                    "rate is missing or 0; there is either rate or rate_of_peak"
                );
                ensure!(
                    self.seconds.is_some_and(|s| s > 1),
                    "seconds is missing, or 1: the first second is not counted"
                );
            }
            Work::Both => {
                ensure!(
                    self.records.is_some_and(|n| n > 0) != self.seconds.is_some_and(|s| s > 0),
                    "either records or seconds decides how long work = \"both\" lasts"
                );
                ensure!(
                    self.rate.is_empty(),
                    "work = \"both\" goes as fast as it can"
                );
            }
            Work::CatchUp => {
                ensure!(
                    self.records.is_some_and(|n| n > 0),
                    "records is missing: what is there before the run"
                );
                ensure!(rates, "rate is missing or 0: at which the producer goes on");
                ensure!(
                    self.seconds.is_some_and(|s| s > 1),
                    "seconds is missing, or 1: how long the producer is alone at first, the first of them not counted"
                );
            }
            Work::Trickle => {
                ensure!(
                    self.records.is_none(),
                    "rate and seconds decide, not records"
                );
                ensure!(rates, "rate is missing or 0");
                ensure!(self.seconds.is_some_and(|s| s > 0), "seconds is missing");
            }
            Work::Share => {
                ensure!(
                    self.records.is_some_and(|n| n > 0),
                    "records is missing: what there is to share"
                );
                ensure!(
                    self.seconds.is_some_and(|s| s > 0) && self.rate.is_empty(),
                    "seconds decides how long work = \"share\" lasts"
                );
            }
        }
        self.check_share()
    }

    /// What there is must last for all that consumers can do in the time.
    fn check_share(&self) -> Result<()> {
        let Some(most) = self.consumers.iter().flatten().max().copied() else {
            return Ok(());
        };
        if self.work == Work::Share && self.work_us > 0 {
            let seconds = self.seconds.unwrap_or(0) + 2;
            let needed = u64::from(most) * seconds * 1_000_000 / self.work_us;
            ensure!(
                self.records.is_some_and(|records| records >= needed),
                "{most} consumers can do {needed} records in the time and two seconds more; give them so many"
            );
        }
        Ok(())
    }
}
