//! Every combination of a scenario's lists is a case.

use serde::{Deserialize, Serialize};

use super::{
    Acks, Broker, Cluster, Contender, Crowd, Durability, File, Keys, Scenario, Size, Target, Work,
    cluster, crowd,
};

/// Bytes a second: more than clients of one machine reach.
const FASTEST: u64 = 1_000_000_000;

/// One combination of what a scenario lists.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(crate) struct Case {
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
    /// What an acknowledgement is to mean.
    #[serde(default)]
    pub durability: Durability,
    /// Sending stops after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_seconds: Option<f64>,
    /// Records a second, for an open loop.
    pub rate: Option<u64>,
    /// How long a started broker is left alone, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Closed groups that a broker is started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_groups: Option<u32>,
    /// Records of a transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_records: Option<u32>,
    /// Records of another stream that is compacted during a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted_records: Option<u64>,
    /// The clients.
    #[serde(default)]
    pub crowd: Crowd,
    /// The brokers, where they are several that form one system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    pub targets: Vec<Target>,
}

impl Case {
    /// Says which case it is, in one line.
    pub(crate) fn name(&self) -> String {
        if self.work == Work::Start {
            let data = self.data();
            let records = match self.cluster {
                Some(_) => ", records in etcd",
                None => "",
            };
            return format!(
                "{} partitions={}, data={data}{records}",
                self.scenario, self.partitions
            );
        }
        let mut name = format!(
            "{} partitions={}, batch={}, linger={} ms",
            self.scenario, self.partitions, self.batch, self.linger_ms
        );
        if self.work != Work::Consume {
            name.push_str(&format!(", acks={}", self.acks.name()));
        }
        if self.durability != Durability::Written {
            name.push_str(&format!(", durability={}", self.durability.name()));
        }
        if let Some(rate) = self.rate {
            name.push_str(&format!(", rate={rate}/s"));
        }
        let crowd = &self.crowd;
        if (crowd.producers, crowd.consumers) != (1, 1) {
            name.push_str(&format!(
                ", producers={}, consumers={}",
                crowd.producers, crowd.consumers
            ));
        }
        if let Some(order) = crowd.order {
            let work_ms = crowd.work_us as f64 / 1e3;
            name.push_str(&format!(", order={}, work={work_ms} ms", order.name()));
        }
        if let Some(records) = self.transaction_records {
            name.push_str(&format!(", transactions of {records}"));
        }
        if let Some(share) = crowd.rate_of_peak {
            name.push_str(&format!(", rate={share} of peak"));
        }
        if let Some(cluster) = self.cluster {
            name.push_str(&format!(
                ", brokers={}, replicas={}",
                cluster.brokers, cluster.replicas
            ));
        }
        name
    }

    /// The broker that serves a contender in this case.
    pub(crate) fn broker(&self, contender: Contender) -> Broker {
        if let Some(cluster) = self.cluster {
            let brokers = u8::try_from(cluster.brokers).unwrap_or(u8::MAX);
            match contender.broker() {
                Broker::Kera => return Broker::KeraCluster(brokers),
                Broker::Kafka => return Broker::KafkaCluster(brokers),
                _ => {}
            }
        }
        match (contender.broker(), self.durability) {
            (Broker::Nats, Durability::Synced) => Broker::NatsSynced,
            (Broker::Iggy, Durability::Memory) => Broker::IggyMemory,
            (Broker::Iggy, Durability::Synced) => Broker::IggySynced,
            (broker, _) => broker,
        }
    }

    /// True if a contender has the case's durability.
    pub(crate) fn offers(&self, contender: Contender) -> bool {
        self.durability.means(self.broker(contender)).is_some()
    }

    /// Those of its contenders that have its durability.
    pub(crate) fn able(&self) -> impl Iterator<Item = Contender> {
        let all = self.contenders.iter().copied();
        all.filter(|&one| self.offers(one))
    }

    /// What a broker is started with, such as `2 GiB`, `1000 closed groups`, or `none`.
    pub(crate) fn data(&self) -> String {
        if let Some(groups) = self.closed_groups {
            return format!("{groups} closed groups");
        }
        let bytes = self.bytes();
        if bytes == 0 {
            "none".to_owned()
        } else if bytes >= 1 << 30 {
            format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30))
        } else {
            format!("{:.0} MiB", (bytes as f64 / f64::from(1 << 20)).max(1.0))
        }
    }

    /// Bytes of all copies of all records; where time decides, what nobody on this machine has reached.
    pub(crate) fn bytes(&self) -> u64 {
        let by_time = match (self.work, self.crowd.millis) {
            (Work::Both | Work::Latency, Some(millis)) if self.records == 0 => {
                millis * FASTEST / 1_000
            }
            _ => 0,
        };
        let copies = self.cluster.map_or(1, |cluster| cluster.replicas);
        let records = self.records * u64::from(copies) + self.compacted_records.unwrap_or(0);
        records * u64::from(self.record_bytes) + by_time
    }
}

/// The cases of a file, in the order in which they run.
#[derive(Clone, Debug)]
pub(crate) struct Cases(pub Vec<Case>);

impl Cases {
    /// All cases, with their records divided by `divide`.
    pub(crate) fn of(file: &File, divide: u64) -> Self {
        Self(
            file.scenario
                .iter()
                .flat_map(|scenario| expand(scenario, divide))
                .collect(),
        )
    }

    /// Those whose name contains one of `only` (or all, if that is empty), by those of `contenders`
    /// (or all, if that is empty). Who takes part on request only joins every case whose work it can
    /// do if `contenders` names it, and none otherwise. Cases without contender are dropped.
    pub(crate) fn select(mut self, only: &[String], contenders: &[Contender]) -> Self {
        self.0
            .retain(|case| only.is_empty() || only.iter().any(|text| case.name().contains(text)));
        for case in &mut self.0 {
            case.contenders.retain(|one| {
                !one.on_request() && (contenders.is_empty() || contenders.contains(one))
            });
            for &asked in contenders.iter().filter(|one| one.on_request()) {
                if asked.does(case.work) && !case.contenders.contains(&asked) {
                    case.contenders.push(asked);
                }
            }
        }
        self.0.retain(|case| case.able().next().is_some());
        self
    }

    /// Runs of all cases.
    pub(crate) fn runs(&self, repetitions: u32) -> u64 {
        let turns: usize = self.0.iter().map(|case| case.able().count()).sum();
        turns as u64 * u64::from(repetitions)
    }
}

fn expand(scenario: &Scenario, divide: u64) -> Vec<Case> {
    let rates: Vec<Option<u64>> = if scenario.rate.is_empty() {
        vec![None]
    } else {
        scenario.rate.iter().copied().map(Some).collect()
    };
    let crowds = crowd::expand(scenario, divide);
    let clusters = cluster::expand(scenario);
    let mut cases = Vec::new();
    for &batch in &scenario.batch {
        for &linger_ms in &scenario.linger_ms {
            for &partitions in &scenario.partitions {
                for &acks in &scenario.acks {
                    for &durability in &scenario.durability {
                        for &rate in &rates {
                            for &cluster in &clusters {
                                cases.extend(crowds.iter().map(|&crowd| {
                                    Case {
                                        scenario: scenario.name.clone(),
                                        work: scenario.work,
                                        contenders: scenario.contenders.clone(),
                                        records: records(scenario, rate, &crowd, divide),
                                        record_bytes: scenario.record_bytes,
                                        keys: scenario.keys,
                                        batch,
                                        linger_ms,
                                        partitions,
                                        acks,
                                        durability,
                                        most_seconds: scenario.most_seconds,
                                        rate,
                                        idle_ms: idle_ms(scenario, divide),
                                        closed_groups: closed_groups(scenario, divide),
                                        transaction_records: scenario.transaction_records,
                                        compacted_records: scenario
                                            .compacted_records
                                            .map(|records| (records / divide).max(1)),
                                        crowd,
                                        cluster,
                                        targets: scenario.target.clone(),
                                    }
                                }));
                            }
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Records of a run, or before it; 0 where only time decides, or for a start without data.
fn records(scenario: &Scenario, rate: Option<u64>, crowd: &Crowd, divide: u64) -> u64 {
    match (scenario.records, rate, crowd.millis) {
        (Some(records), _, _) => (records / divide).max(1),
        (None, Some(rate), Some(millis)) => rate * millis / 1_000,
        (None, _, _) => 0,
    }
}

/// How long a broker that was started is left alone.
fn idle_ms(scenario: &Scenario, divide: u64) -> Option<u64> {
    let seconds = scenario.seconds.unwrap_or(1);
    (scenario.work == Work::Start).then(|| (seconds * 1000 / divide).max(200))
}

/// Closed groups that a broker is started with.
fn closed_groups(scenario: &Scenario, divide: u64) -> Option<u32> {
    let groups = u64::from(scenario.closed_groups?) / divide;
    Some(u32::try_from(groups.max(1)).unwrap_or(u32::MAX))
}
