//! One run: load by a process of its own, measured from its first record to its last.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Session;
use super::loader::Loader;
use crate::load::Plan;
use crate::measure::flushes::{DeviceFlushes, FlushTimes};
use crate::measure::noise::Snapshot;
use crate::peers::{Counts, Running, share_load};
use crate::results::{ClusterTaken, DeviceTaken, FlushesTaken, StoreTaken, Taken};
use crate::scenario::{Case, ClientPath, Contender, Durability, Sharing};
use kera_load::process::{Memory, Usage, forget_peak};

/// What the processes of a broker have used.
struct Parts {
    brokers: Vec<Usage>,
    store: Option<(Usage, Counts)>,
}

impl Parts {
    fn of(running: &Running) -> Result<Self> {
        let counts = running.store_counts()?;
        let mut brokers = Vec::new();
        for pid in running.pids() {
            brokers.push(Usage::of(pid)?);
        }
        // The store comes last.
        let store = counts.and_then(|counts| Some((brokers.pop()?, counts)));
        Ok(Self { brokers, store })
    }

    /// Of all brokers, and what they share.
    fn whole(&self) -> Usage {
        let store = self.store.iter().map(|(usage, _)| usage);
        let all = self.brokers.iter().chain(store);
        all.fold(Usage::default(), |sum, one| sum.with(one))
    }

    /// Apart from each other.
    fn since(&self, earlier: &Self, running: &Running) -> Result<ClusterTaken> {
        let pairs = self.brokers.iter().zip(&earlier.brokers);
        let brokers = pairs.map(|(now, before)| now.since(before).cpu.as_secs_f64());
        let stores = self.store.as_ref().zip(earlier.store.as_ref());
        let store = stores.map(|((now, counts), (before, counted))| {
            let used = now.since(before);
            let pids = running.pids();
            let memory = Memory::of_all(&pids[self.brokers.len()..])?;
            anyhow::Ok(StoreTaken {
                cpu_seconds: used.cpu.as_secs_f64(),
                memory,
                written: used.written,
                transactions: counts.transactions.saturating_sub(counted.transactions),
                keys: counts.keys.saturating_sub(counted.keys),
            })
        });
        Ok(ClusterTaken {
            broker_cpu_seconds: brokers.collect(),
            store: store.transpose()?,
        })
    }
}

/// The device as one writer alone sees it, before a run and after.
struct Device<'a> {
    times: FlushTimes,
    data: &'a Path,
}

impl<'a> Device<'a> {
    /// Looks at the device if the case's acknowledgements wait for it. What the brokers have not written
    /// yet is written first, so that nobody else has it do anything meanwhile.
    fn look(case: &Case, data: &'a Path) -> Result<Option<Self>> {
        if case.durability != Durability::Synced {
            return Ok(None);
        }
        rustix::fs::sync();
        let mut times = FlushTimes::new()?;
        times.look(data)?;
        Ok(Some(Self { times, data }))
    }

    /// Looks once more; together with what it did during the run.
    fn taken(mut self, during: Option<DeviceFlushes>) -> Result<DeviceTaken> {
        rustix::fs::sync();
        self.times.look(self.data)?;
        Ok(DeviceTaken {
            samples: self.times.samples(),
            p50_us: self.times.at(0.5),
            p99_us: self.times.at(0.99),
            during: during.map(|during| FlushesTaken {
                flushes: during.flushes,
                seconds: during.took.as_secs_f64(),
            }),
        })
    }
}

impl Session {
    /// Runs the load of a case on a topic that exists; what it took, and the share of the cores that
    /// others used meanwhile. With a pace, no more records a second than that.
    pub(super) fn run_load(
        &self,
        case: &Case,
        contender: Contender,
        topic: &str,
        pace: Option<u64>,
    ) -> Result<(Taken, f64)> {
        self.run_load_at(self.broker(case, contender)?, case, contender, topic, pace)
    }

    /// The same at a broker that is not the session's.
    pub(super) fn run_load_at(
        &self,
        running: &Running,
        case: &Case,
        contender: Contender,
        topic: &str,
        pace: Option<u64>,
    ) -> Result<(Taken, f64)> {
        let plan = Plan {
            path: contender.path(),
            bootstrap: running.address(contender.path())?.to_owned(),
            topic: topic.to_owned(),
            work: case.work,
            records: case.records,
            record_bytes: case.record_bytes,
            keys: case.keys,
            batch_bytes: case.batch.0,
            linger_us: (case.linger_ms * 1e3).round() as u64,
            partitions: case.partitions,
            acks: case.acks,
            durability: case.durability,
            transactions: contender.has_transactions() && case.transaction_records.is_some(),
            at_once: case.transaction_records,
            most_ms: case.most_seconds.map(|most| (most * 1e3).ceil() as u64),
            rate: case.rate.or(pace),
            crowd: case.crowd,
        };
        let program = self.program(running, &plan)?;
        let mut loader = Loader::start(program, &plan, &self.interrupt)?;
        let mut ours: Vec<u32> = self.brokers.values().flat_map(Running::pids).collect();
        ours.extend([std::process::id(), loader.pid()]);
        ours.extend(running.pids());

        let device = Device::look(case, &self.places.data)?;
        running.pids().into_iter().for_each(forget_peak);
        let noise = Snapshot::take(&ours);
        let (before, client_before) = (Parts::of(running)?, Usage::of(loader.pid())?);
        let flushed = DeviceFlushes::below(&self.places.data);
        let done = loader.work(&self.interrupt)?;
        let flushed_then = DeviceFlushes::below(&self.places.data);
        let (after, client_after) = (Parts::of(running)?, Usage::of(loader.pid())?);
        let others = Snapshot::take(&ours).others_since(&noise);
        drop(loader);
        if let Some(cluster) = case.cluster {
            running.check_copies(topic, cluster)?;
        }
        let during = flushed_then.zip(flushed);
        let during = during.map(|(now, before)| now.since(&before));

        let broker = after.whole().since(&before.whole());
        let taken = Taken {
            records: done.records,
            bytes: done.bytes,
            seconds: done.seconds,
            broker_cpu_seconds: broker.cpu.as_secs_f64(),
            client_cpu_seconds: client_after.since(&client_before).cpu.as_secs_f64(),
            memory: Memory::of_all(&running.pids())?,
            broker_written: broker.written,
            mean_batch_bytes: done.mean_batch_bytes,
            latency: done.latency,
            sides: done.sides,
            start: None,
            cluster: case
                .cluster
                .map(|_| after.since(&before, running))
                .transpose()?,
            device: device.map(|device| device.taken(during)).transpose()?,
        };
        Ok((taken, others))
    }

    /// The program that makes the load.
    fn program(&self, running: &Running, plan: &Plan) -> Result<Command> {
        if plan.path == ClientPath::Kafka && plan.crowd.order == Some(Sharing::None) {
            return share_load(&self.places.build, plan);
        }
        running.load(plan.path)
    }
}
