//! Scenarios as data: what is run, by whom, and what is expected of it.

mod case;
mod cluster;
mod crowd;
mod durability;
mod plot;
mod size;
mod target;

pub(crate) use case::{Case, Cases};
pub(crate) use cluster::Cluster;
pub(crate) use crowd::{Crowd, Sharing};
pub(crate) use durability::Durability;
pub(crate) use plot::{Axis, Plot, PlotKind};
pub(crate) use size::Size;
pub(crate) use target::Target;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// A file of scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Heading of the section that a report makes of it.
    pub title: String,
    /// The command that runs the file, as a report names it.
    pub command: String,
    /// How often each case is run.
    #[serde(default = "five")]
    pub repetitions: u32,
    /// Records that each broker takes and gives before anything is measured.
    #[serde(default)]
    pub warm_up_records: u64,
    /// The scenarios, in the order in which they run.
    pub scenario: Vec<Scenario>,
    /// What is expected over all cases.
    #[serde(default)]
    pub target: Vec<Target>,
    /// What is drawn of it.
    #[serde(default)]
    pub plot: Vec<Plot>,
}

/// One kind of work; each of its lists is a dimension, and every combination is a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Cases of one name share a table.
    pub name: String,
    pub work: Work,
    pub contenders: Vec<Contender>,
    /// Records of a run; of an open loop it is the rate that decides, for `seconds`.
    pub records: Option<u64>,
    /// Key and value together.
    #[serde(default = "hundred")]
    pub record_bytes: u32,
    pub keys: Keys,
    pub batch: Vec<Size>,
    /// How long the producer waits for a batch to fill.
    pub linger_ms: Vec<f64>,
    pub partitions: Vec<u32>,
    #[serde(default = "all")]
    pub acks: Vec<Acks>,
    /// What an acknowledgement is to mean; contenders without such a mode sit that case out.
    #[serde(default = "written")]
    pub durability: Vec<Durability>,
    /// `work = "produce"` stops sending after so long, even before all records are sent: a case that
    /// takes one contender a second takes another minutes.
    pub most_seconds: Option<f64>,
    /// Records a second, for an open loop.
    #[serde(default)]
    pub rate: Vec<u64>,
    /// How long a run takes, where it is time that decides; of an open loop the first second is not
    /// counted.
    pub seconds: Option<u64>,
    /// Producers at once.
    #[serde(default = "one")]
    pub producers: Vec<u32>,
    /// Consumers at once; as many as producers if it is not said.
    pub consumers: Option<Vec<u32>>,
    /// How often every record is read, each time by so many consumers.
    #[serde(default = "once")]
    pub subscriptions: u32,
    /// How a group's members share the partitions.
    #[serde(default)]
    pub order: Vec<Sharing>,
    /// What a consumer is busy with each record, in microseconds.
    #[serde(default)]
    pub work_us: u64,
    /// Streamlets of a stream for Kera's own clients; its lanes are the partitions divided by them.
    pub streamlets: Option<u32>,
    /// The rate of an open loop as a share of what the contender has shown it can do.
    #[serde(default)]
    pub rate_of_peak: Vec<f64>,
    /// Records of a transaction of those contenders that have transactions. Where `work = "latency"` they are due all at
    /// once, for the others too.
    pub transaction_records: Option<u32>,
    /// Records of another stream, a tenth as many different keys, that `kera-native-compacting` compacts during a run.
    pub compacted_records: Option<u64>,
    /// `work = "start"`: closed groups that the broker is started with, in place of records.
    pub closed_groups: Option<u32>,
    /// Brokers that form one system; without it there is one, which is no cluster.
    #[serde(default)]
    pub brokers: Vec<u32>,
    /// Copies of each record, all of which an acknowledgement waits for.
    #[serde(default = "one")]
    pub replicas: Vec<u32>,
    #[serde(default)]
    pub target: Vec<Target>,
}

/// What a run does.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    /// Append as fast as the broker takes it.
    Produce,
    /// Read what was appended before, visiting every record.
    Consume,
    /// Append at a rate and read at once; time from when a record was due to when it arrived.
    Latency,
    /// Start a broker of its own, empty or with data, and leave it alone for a while.
    Start,
    /// Append and read at once, both as fast as they can.
    Both,
    /// Append at a rate, and after a while begin to read all that is there, until caught up.
    #[serde(rename = "catch-up")]
    CatchUp,
    /// Append a little to each of very many partitions.
    Trickle,
    /// Read as a group whose members take time for each record.
    Share,
    /// Leave only the newest record of each key of those that are there, without rests.
    Compact,
}

impl Work {
    /// As scenarios call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Latency => "latency",
            Self::Start => "start",
            Self::Both => "both",
            Self::CatchUp => "catch-up",
            Self::Trickle => "trickle",
            Self::Share => "share",
            Self::Compact => "compact",
        }
    }
}

/// A broker and the way clients speak to it.
#[derive(
    Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// Apache Kafka, with librdkafka.
    Kafka,
    /// Kera's Kafka listener, with librdkafka.
    Kera,
    /// Kera's own protocol, with its own clients.
    KeraNative,
    /// The same, sending no faster than librdkafka did to Kera in the same case: what is left is the
    /// price of the path, without that of a client which leaves the broker idle in between.
    KeraNativePaced,
    /// NATS JetStream, with nats.go.
    Nats,
    /// Apache Iggy, with a client of its binary protocol; only if the command line names it.
    Iggy,
    /// Apache Kafka, Kera's Kafka listener and Kera's own protocol, with producers that commit transactions.
    KafkaTransactions,
    KeraTransactions,
    KeraNativeTransactions,
    /// Kera's own protocol while the broker compacts another stream, with the quarter of a core that it takes for that.
    KeraNativeCompacting,
}

impl Contender {
    /// Its name, its title in tables, its broker, and its clients.
    fn facts(self) -> (&'static str, &'static str, Broker, ClientPath) {
        use ClientPath::{Iggy, Kafka, Native, Nats};
        match self {
            Self::Kafka => ("kafka", "Apache Kafka", Broker::Kafka, Kafka),
            Self::Kera => ("kera", "Kera", Broker::Kera, Kafka),
            Self::KeraNative => ("kera-native", "Kera, native", Broker::Kera, Native),
            Self::KeraNativePaced => {
                let title = "Kera, native, as slow";
                ("kera-native-paced", title, Broker::Kera, Native)
            }
            Self::Nats => ("nats", "NATS JetStream", Broker::Nats, Nats),
            Self::Iggy => ("iggy", "Apache Iggy", Broker::Iggy, Iggy),
            Self::KafkaTransactions => {
                let title = "Apache Kafka, transactions";
                ("kafka-transactions", title, Broker::Kafka, Kafka)
            }
            Self::KeraTransactions => {
                let title = "Kera, transactions";
                ("kera-transactions", title, Broker::Kera, Kafka)
            }
            Self::KeraNativeTransactions => {
                let title = "Kera, native, transactions";
                ("kera-native-transactions", title, Broker::Kera, Native)
            }
            Self::KeraNativeCompacting => {
                let title = "Kera, native, compacting";
                ("kera-native-compacting", title, Broker::Kera, Native)
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.facts().0
    }

    /// As tables call it.
    pub(crate) fn title(self) -> &'static str {
        self.facts().1
    }

    /// Its broker; [`Case::broker`] tells which one serves a case.
    pub(crate) fn broker(self) -> Broker {
        self.facts().2
    }

    pub(crate) fn path(self) -> ClientPath {
        self.facts().3
    }

    /// True if it takes so much by hand to have that it takes part only where the command line names it.
    pub(crate) fn on_request(self) -> bool {
        self == Self::Iggy
    }

    /// True if its load can do such work.
    pub(crate) fn does(self, work: Work) -> bool {
        match self {
            Self::Nats => matches!(
                work,
                Work::Produce | Work::Consume | Work::Latency | Work::Start
            ),
            Self::Iggy => !matches!(work, Work::Share | Work::Compact),
            Self::KeraNative => true,
            Self::KeraNativeCompacting => work == Work::Latency,
            _ if self.has_transactions() => matches!(work, Work::Both | Work::Latency),
            _ => work != Work::Compact,
        }
    }

    /// True if its producers append in transactions.
    pub(crate) fn has_transactions(self) -> bool {
        matches!(
            self,
            Self::KafkaTransactions | Self::KeraTransactions | Self::KeraNativeTransactions
        )
    }

    /// The contender of whose peak its rate is a share: where transactions are compared, all have the rate of one that has
    /// them.
    pub(crate) fn peak_of(self, case: &Case) -> Self {
        match self {
            Self::KeraNative if case.transaction_records.is_some() => Self::KeraNativeTransactions,
            other => other,
        }
    }

    /// The contender whose throughput in a case is the pace of this one.
    pub(crate) fn paced_by(self) -> Option<Self> {
        (self == Self::KeraNativePaced).then_some(Self::Kera)
    }
}

/// A broker that the harness can start.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Broker {
    Kafka,
    Kera,
    Nats,
    /// Its other setting of `sync_interval`, which is one for the whole server.
    NatsSynced,
    /// Apache Iggy that writes what it acknowledges.
    Iggy,
    /// Its other settings of what is saved when, which are one for the whole server.
    IggyMemory,
    IggySynced,
    /// So many brokers that share streams through etcd.
    KeraCluster(u8),
    /// So many brokers, each of which is a controller, too.
    KafkaCluster(u8),
}

impl Broker {
    /// Its name for folders, and its title.
    fn facts(self) -> (&'static str, &'static str) {
        match self {
            Self::Kafka => ("kafka", "Apache Kafka"),
            Self::Kera => ("kera", "Kera"),
            Self::Nats => ("nats", "NATS JetStream"),
            Self::NatsSynced => ("nats-synced", "NATS JetStream, sync always"),
            Self::Iggy => ("iggy", "Apache Iggy"),
            Self::IggyMemory => ("iggy-memory", "Apache Iggy, saving later"),
            Self::IggySynced => ("iggy-synced", "Apache Iggy, syncing"),
            Self::KeraCluster(brokers) => [
                ("kera-1", "Kera, a cluster of 1"),
                ("kera-2", "Kera, a cluster of 2"),
                ("kera-3", "Kera, a cluster of 3"),
                ("kera-4", "Kera, a cluster of 4"),
            ][turn(brokers)],
            Self::KafkaCluster(brokers) => [
                ("kafka-1", "Apache Kafka, a cluster of 1"),
                ("kafka-2", "Apache Kafka, a cluster of 2"),
                ("kafka-3", "Apache Kafka, a cluster of 3"),
                ("kafka-4", "Apache Kafka, a cluster of 4"),
            ][turn(brokers)],
        }
    }

    pub(crate) fn title(self) -> &'static str {
        self.facts().1
    }

    /// Its name for folders.
    pub(crate) fn name(self) -> &'static str {
        self.facts().0
    }

    /// True if a `kera` binary is needed to start it.
    pub(crate) fn is_kera(self) -> bool {
        matches!(self, Self::Kera | Self::KeraCluster(_))
    }

    /// True if it is several processes that form one system.
    pub(crate) fn is_cluster(self) -> bool {
        matches!(self, Self::KeraCluster(_) | Self::KafkaCluster(_))
    }
}

/// Which of the names of clusters is that of one with so many brokers.
fn turn(brokers: u8) -> usize {
    usize::from(brokers).clamp(1, cluster::MOST_BROKERS as usize) - 1
}

/// Which clients make the load.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientPath {
    /// librdkafka.
    Kafka,
    /// `kera-producer` and `kera-consumer`.
    Native,
    /// nats.go.
    Nats,
    /// The client in `iggy`.
    Iggy,
}

/// Whether records have keys.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keys {
    /// None: the client keeps to a partition for a batch.
    None,
    /// Eight random bytes, which choose the partition by murmur2.
    Random,
    /// The same, but a tenth as many different ones as there are records.
    Tenth,
}

/// Whose acknowledgement a producer asks for. At NATS, `1` and `all` are the same. Kera's own clients
/// and Iggy's always wait for what the stream, or the server, promises.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) enum Acks {
    #[serde(rename = "0")]
    None,
    #[serde(rename = "1")]
    Leader,
    #[serde(rename = "all")]
    All,
}

impl Acks {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "0",
            Self::Leader => "1",
            Self::All => "all",
        }
    }
}

/// A quantity of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Records a second.
    Throughput,
    /// Nanoseconds of the broker's CPU per record.
    BrokerCpu,
    /// Nanoseconds of the client's CPU per record.
    ClientCpu,
    /// The broker's highest resident memory during the run.
    Memory,
    /// Bytes of a batch on average, as the client sent them.
    Batch,
    P50,
    P99,
    P999,
    Max,
    /// From the start of the process to the first answer to a request.
    Start,
    /// From the start of the process until the ends of its topic's first and last partition are told.
    Ready,
    /// From the start of the process until a record that was sent to it is acknowledged.
    FirstAppend,
    /// Resident memory of a broker that has nothing to do.
    IdleMemory,
    /// CPU time of a broker that has nothing to do, as a share of one core.
    IdleCpu,
    /// Records a second acknowledged while others were read.
    Produced,
    /// Records a second read while others were appended.
    Consumed,
    /// Records a second at which an open loop was to run.
    Rate,
    /// From when a record was due to its acknowledgement.
    AckP50,
    AckP99,
    AckP999,
    /// The same, divided by the median and by the p99 of what one flush takes on the idle device.
    AckP50Flushes,
    AckP99Flushes,
    /// The same while a consumer catches up.
    BusyAckP99,
    /// The broker's CPU time as a share of one core.
    CpuShare,
    /// Nanoseconds of etcd's CPU per record, which the broker's contain.
    StoreCpu,
    /// Transactions that etcd took for each GB (10^9 bytes) of records.
    StoreWrites,
    /// Keys that they put or deleted, likewise.
    StoreKeys,
    /// Bytes that the brokers wrote per byte of records.
    Written,
    /// Records a second of each consumer.
    PerConsumer,
    /// Bytes of records that were compacted for a second of the broker's CPU.
    Compacted,
    /// Flushes a second that the device was asked for, by whomever.
    Flushes,
    /// Records for each of them.
    FlushRecords,
    /// How long one took on average during the run.
    FlushTime,
    /// What one writer alone waited for 4 KiB to be flushed, just before and after the run.
    DeviceP50,
    DeviceP99,
}

impl File {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Takes the text of a file apart; unknown keys are refused.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let file: Self = toml::from_str(text)?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<()> {
        let file = self;
        ensure!(file.repetitions > 0, "repetitions must not be 0");
        ensure!(!file.scenario.is_empty(), "there is no [[scenario]]");
        for target in &file.target {
            target.check()?;
            ensure!(
                target.measure == Measure::Memory && target.baseline.is_none(),
                "a target over all cases is about memory; put others into a scenario"
            );
        }
        for plot in &file.plot {
            plot.check(&file.scenario)
                .with_context(|| format!("plot {}", plot.name))?;
            let namesakes = file.plot.iter().filter(|one| one.name == plot.name);
            ensure!(namesakes.count() == 1, "two plots are named {}", plot.name);
        }
        for scenario in &file.scenario {
            scenario
                .check()
                .with_context(|| format!("scenario {}", scenario.name))?;
        }
        Ok(())
    }
}

impl Scenario {
    fn check(&self) -> Result<()> {
        ensure!(!self.contenders.is_empty(), "contenders is empty");
        ensure!(!self.batch.is_empty(), "batch is empty");
        ensure!(!self.linger_ms.is_empty(), "linger_ms is empty");
        ensure!(!self.partitions.is_empty(), "partitions is empty");
        ensure!(!self.acks.is_empty(), "acks is empty");
        ensure!(!self.durability.is_empty(), "durability is empty");
        ensure!(
            self.most_seconds
                .is_none_or(|most| self.work == Work::Produce && most > 0.0),
            "most_seconds is more than 0, and for work = \"produce\""
        );
        for contender in &self.contenders {
            ensure!(
                contender.does(self.work),
                "{} cannot do this work",
                contender.name()
            );
        }
        ensure!(
            self.partitions.iter().all(|n| (1..=10_000).contains(n)),
            "partitions are 1 to 10000"
        );
        ensure!(
            self.linger_ms
                .iter()
                .all(|ms| (0.0..=10_000.0).contains(ms)),
            "linger_ms is 0 to 10000"
        );
        ensure!(
            (16..=1 << 20).contains(&self.record_bytes),
            "record_bytes is 16 to 1048576"
        );
        self.check_crowd()?;
        self.check_cluster()?;
        self.check_exactly_once()?;
        for (at, contender) in self.contenders.iter().enumerate() {
            if let Some(pace) = contender.paced_by() {
                ensure!(
                    self.contenders[..at].contains(&pace),
                    "{} is paced by {}, which must come before it",
                    contender.name(),
                    pace.name()
                );
                ensure!(
                    self.work == Work::Produce,
                    "{} can only produce",
                    contender.name()
                );
            }
        }
        for target in &self.target {
            target.check()?;
            target.check_within(self)?;
            for contender in [Some(target.contender), target.against]
                .into_iter()
                .flatten()
            {
                ensure!(
                    self.contenders.contains(&contender),
                    "a target names {}, which is no contender",
                    contender.name()
                );
            }
        }
        Ok(())
    }
}

impl Scenario {
    /// Checks what only transactions and compaction have.
    fn check_exactly_once(&self) -> Result<()> {
        let has_transactions = |one: &Contender| one.has_transactions();
        ensure!(
            self.transaction_records.is_some() == self.contenders.iter().any(has_transactions),
            "transaction_records are for contenders with transactions, which need them"
        );
        ensure!(
            self.transaction_records != Some(0) && self.compacted_records != Some(0),
            "transaction_records and compacted_records are not 0"
        );
        let compacts = self.contenders.contains(&Contender::KeraNativeCompacting);
        ensure!(
            self.compacted_records.is_some() == compacts,
            "compacted_records are for kera-native-compacting, which needs them"
        );
        ensure!(
            self.work != Work::Compact || self.keys == Keys::Tenth,
            "work = \"compact\" needs keys = \"tenth\""
        );
        Ok(())
    }
}

fn five() -> u32 {
    5
}

fn one() -> Vec<u32> {
    vec![1]
}

fn once() -> u32 {
    1
}

fn hundred() -> u32 {
    100
}

fn all() -> Vec<Acks> {
    vec![Acks::All]
}

fn written() -> Vec<Durability> {
    vec![Durability::Written]
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod crowd_tests;
