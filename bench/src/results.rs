//! What a session measured, as it is kept in JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::measure::disk::Disk;
use crate::measure::machine::Machine;
use crate::scenario::{Broker, Case, Contender, Measure, Plot, Target};
use kera_load::process::Memory;
use kera_load::{Latency, Sides};

/// Changes when a field changes its meaning.
const FORMAT: u32 = 1;

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub format: u32,
    pub title: String,
    pub command: String,
    /// UTC, such as 2026-01-31 12:00.
    pub started: String,
    pub minutes: f64,
    pub repetitions: u32,
    /// Other processes' share of the cores above which a run is noisy.
    pub noise: f64,
    pub machine: Machine,
    pub disk: Disk,
    /// Of what is neither a broker nor the machine, by name.
    pub versions: BTreeMap<String, String>,
    pub brokers: Vec<BrokerFacts>,
    pub left_out: Vec<LeftOut>,
    pub targets: Vec<Target>,
    /// What is drawn of it.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// Sessions by which this one was completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherSession>,
    pub cases: Vec<CaseRuns>,
}

/// Another session that some cases were taken from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OtherSession {
    /// UTC; cases name their session by it.
    pub started: String,
    pub minutes: f64,
    pub repetitions: u32,
    pub machine: Machine,
    pub disk: Disk,
    pub versions: BTreeMap<String, String>,
    pub brokers: Vec<BrokerFacts>,
}

/// A broker of the session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BrokerFacts {
    pub broker: Broker,
    pub version: String,
    /// What an acknowledgement meant.
    pub durability: String,
    /// Command line and configuration, as started.
    pub configuration: String,
    /// From its start until it answered.
    pub start_seconds: f64,
    /// Before it was given anything.
    pub idle: Memory,
}

/// A broker that could not be had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub broker: Broker,
    pub why: String,
}

/// A case and its runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseRuns {
    pub case: Case,
    /// When the other session began that this was taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    pub runs: Vec<Run>,
}

/// A run that counts; noisy ones that were repeated are gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub contender: Contender,
    pub repetition: u32,
    /// From 1; more if it had to be repeated.
    pub attempts: u32,
    /// It stayed noisy however often it was repeated.
    pub noisy: bool,
    /// Share of the cores that other processes used.
    pub others: f64,
    /// None if it failed.
    pub taken: Option<Taken>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Run {
    /// A run that measured nothing.
    pub(crate) fn failed(contender: Contender, repetition: u32, why: String) -> Self {
        Self {
            contender,
            repetition,
            attempts: 1,
            noisy: false,
            others: 0.0,
            taken: None,
            failure: Some(why),
        }
    }
}

/// What a run took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub records: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub broker_cpu_seconds: f64,
    pub client_cpu_seconds: f64,
    /// The broker's, at the end of the run and at most during it.
    pub memory: Memory,
    /// Bytes that the broker wrote.
    pub broker_written: u64,
    /// Bytes of a batch on average, headers included; none if the client does not tell.
    pub mean_batch_bytes: Option<f64>,
    pub latency: Option<Latency>,
    /// What only loads with several clients tell.
    #[serde(default)]
    pub sides: Sides,
    /// Of a broker that was only started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// Of brokers that form one system; what is above is of all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterTaken>,
    /// Of the device, where an acknowledgement waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTaken>,
}

/// What flushes took on the device that has the brokers' data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceTaken {
    /// Flushes by one writer alone that were timed, half of them just before the run and half just after.
    pub samples: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// What the whole device did during the run, as the kernel counts it; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub during: Option<FlushesTaken>,
}

/// Flushes of a device, whoever asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FlushesTaken {
    pub flushes: u64,
    /// How long they took together.
    pub seconds: f64,
}

/// What the parts of a cluster took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterTaken {
    /// Of each broker, in order of their numbers.
    pub broker_cpu_seconds: Vec<f64>,
    /// Of etcd, where the brokers share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreTaken>,
}

/// What etcd took, and what it was asked to write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreTaken {
    pub cpu_seconds: f64,
    pub memory: Memory,
    pub written: u64,
    /// Changes that it agreed on: transactions, and leases given and ended.
    pub transactions: u64,
    /// Keys that these put or deleted.
    pub keys: u64,
}

/// A broker's start, and what it took while it had nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// From the start of its process to the first answer to a request.
    pub answers_seconds: f64,
    /// And until the ends of its topic's first and last partition were told; none without a topic.
    pub ready_seconds: Option<f64>,
    /// And until a record that was sent to it was acknowledged; none if that was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appended_seconds: Option<f64>,
    /// Resident memory, in bytes, at the end of the time in which it was left alone.
    pub idle_memory: u64,
    /// Its CPU time during that, as a share of one core.
    pub idle_cpu: f64,
}

impl Taken {
    /// One quantity: records a second, nanoseconds a record, bytes, microseconds; a start in seconds,
    /// shares of a core in ones.
    pub(crate) fn value(&self, measure: Measure) -> Option<f64> {
        let records = self.records.max(1) as f64;
        let latency = self.latency.as_ref();
        match measure {
            // Who asks for that of each consumer divides it by their number.
            Measure::Throughput | Measure::PerConsumer => Some(records / self.seconds.max(1e-9)),
            Measure::Compacted => {
                (self.broker_cpu_seconds > 0.0).then(|| self.bytes as f64 / self.broker_cpu_seconds)
            }
            Measure::BrokerCpu => Some(self.broker_cpu_seconds * 1e9 / records),
            Measure::ClientCpu => Some(self.client_cpu_seconds * 1e9 / records),
            Measure::Memory => Some(self.memory.peak as f64),
            Measure::Batch => self.mean_batch_bytes,
            Measure::P50 => latency.map(|latency| latency.p50_us),
            Measure::P99 => latency.map(|latency| latency.p99_us),
            Measure::P999 => latency.map(|latency| latency.p999_us),
            Measure::Max => latency.map(|latency| latency.max_us),
            Measure::Start => self.start.map(|start| start.answers_seconds),
            Measure::Ready => self.start.and_then(|start| start.ready_seconds),
            Measure::FirstAppend => self.start.and_then(|start| start.appended_seconds),
            Measure::IdleMemory => self.start.map(|start| start.idle_memory as f64),
            Measure::IdleCpu => self.start.map(|start| start.idle_cpu),
            Measure::Produced => self.sides.produced.map(|side| side.per_second()),
            Measure::Consumed => self.sides.consumed.map(|side| side.per_second()),
            Measure::Rate => self.sides.rate.map(|rate| rate.wanted),
            Measure::AckP50 => self.sides.acks.as_ref().map(|acks| acks.p50_us),
            Measure::AckP99 => self.sides.acks.as_ref().map(|acks| acks.p99_us),
            Measure::AckP999 => self.sides.acks.as_ref().map(|acks| acks.p999_us),
            Measure::AckP50Flushes => self.in_flushes(|acks| acks.p50_us, |device| device.p50_us),
            Measure::AckP99Flushes => self.in_flushes(|acks| acks.p99_us, |device| device.p99_us),
            Measure::DeviceP50 => self.device.map(|device| device.p50_us),
            Measure::DeviceP99 => self.device.map(|device| device.p99_us),
            Measure::Flushes => self.flushes().map(|all| all.flushes as f64 / self.seconds),
            Measure::FlushRecords => self.flushes().map(|all| records / all.flushes as f64),
            Measure::FlushTime => self
                .flushes()
                .map(|all| all.seconds * 1e6 / all.flushes as f64),
            Measure::BusyAckP99 => self.sides.busy_acks.as_ref().map(|acks| acks.p99_us),
            Measure::StoreCpu => self.store().map(|store| store.cpu_seconds * 1e9 / records),
            Measure::StoreWrites => self.per_gb(|store| store.transactions),
            Measure::StoreKeys => self.per_gb(|store| store.keys),
            Measure::Written => Some(self.broker_written as f64 / self.bytes.max(1) as f64),
            Measure::CpuShare => Some(self.broker_cpu_seconds / self.seconds.max(1e-9)),
        }
    }
}

impl Taken {
    fn store(&self) -> Option<&StoreTaken> {
        self.cluster.as_ref()?.store.as_ref()
    }

    /// Of a run during which there was one at least.
    fn flushes(&self) -> Option<FlushesTaken> {
        let during = self.device?.during?;
        (during.flushes > 0 && self.seconds > 0.0).then_some(during)
    }

    /// An acknowledgement as a multiple of what a flush takes by itself.
    fn in_flushes(
        &self,
        ack: impl Fn(&Latency) -> f64,
        flush: impl Fn(&DeviceTaken) -> f64,
    ) -> Option<f64> {
        let (acks, device) = (self.sides.acks.as_ref()?, self.device.as_ref()?);
        Some(ack(acks) / flush(device).max(1e-3))
    }

    /// What etcd was asked for, for each GB of records.
    fn per_gb(&self, of: impl Fn(&StoreTaken) -> u64) -> Option<f64> {
        let store = self.store()?;
        Some(of(store) as f64 * 1e9 / self.bytes.max(1) as f64)
    }
}

impl Results {
    /// The format that this version writes.
    pub(crate) fn format() -> u32 {
        FORMAT
    }

    /// True if a text of JSON is what a session measured, of whatever format.
    pub(crate) fn is_one(text: &str) -> bool {
        let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
        value.is_some_and(|value| value.get("format").is_some() && value.get("cases").is_some())
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        read_json(path, "run", FORMAT)
    }

    /// Writes the file anew, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }
}

/// Reads what a command of `kera-bench` measured and wrote in a format, whatever else the file says of
/// another one.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, command: &str, format: u32) -> Result<T> {
    /// What is the same in every format.
    #[derive(Deserialize)]
    struct Formatted {
        format: u32,
    }
    let path_text = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path_text}"))?;
    let odd = || format!("{path_text} is not what `kera-bench {command}` wrote");
    let found = serde_json::from_str::<Formatted>(&text).with_context(odd)?;
    ensure!(
        found.format == format,
        "{path_text} has format {}, not {format}; run it again",
        found.format
    );
    serde_json::from_str(&text).with_context(odd)
}

/// Writes what was measured as a file, whole or not at all.
pub(crate) fn write_json(path: &Path, results: &impl Serialize) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = path.with_extension("json.new");
    let mut text = serde_json::to_string_pretty(results)?;
    text.push('\n');
    fs::write(&aside, text)
        .and_then(|()| fs::rename(&aside, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
