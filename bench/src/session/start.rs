//! `work = "start"`: brokers that are started, asked, and left alone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use kera_metadata::{EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore};

use super::prepare::fill;
use super::{Session, closed};
use crate::measure::noise::Snapshot;
use crate::peers::{Etcd, Running, pause};
use crate::results::{Start, Taken};
use crate::scenario::{Broker, Case, Contender, Work};
use kera_load::Sides;
use kera_load::process::{Memory, Usage};

/// The topic of a broker that is started with data.
const TOPIC: &str = "bench-start";
/// Records of closed groups that are read before anything is measured, at most.
const READ_BACK: u64 = 50_000;
/// The number of the broker that is started.
const BROKER: u32 = 1;
/// The share of the idle time that passes before it is measured: what a start leaves to do.
const SETTLE: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Session {
    /// Where a broker that is started for a case keeps its data.
    fn start_folder(&self, broker: Broker) -> PathBuf {
        self.places.data.join(format!("start-{}", broker.name()))
    }

    /// Makes the directory on which a broker will be started: formatted, with the case's data,
    /// cleanly stopped. The name of the topic.
    pub(super) fn prepare_start(&self, case: &Case, contender: Contender) -> Result<String> {
        let broker = case.broker(contender);
        self.forget_start(broker)?;
        let folder = self.start_folder(broker);
        let running = Running::start_in(broker, &[case.durability], &self.places, &folder)?;
        if case.records > 0 {
            running.create(TOPIC, case.partitions, case.durability, None)?;
            self.run_load_at(&running, &fill(case), contender, TOPIC, None)?;
        }
        if let Some(groups) = case.closed_groups {
            running.create(TOPIC, case.partitions, case.durability, case.cluster)?;
            // No broker may run while its groups are made.
            drop(running);
            let records = make_groups(broker, &folder, groups, case.record_bytes)?;
            // They can be read: all of few, and many of very many.
            let running = Running::start_in(broker, &[case.durability], &self.places, &folder)?;
            let read = Case {
                work: Work::Consume,
                records: records.min(READ_BACK),
                closed_groups: None,
                ..fill(case)
            };
            let read = self.run_load_at(&running, &read, contender, TOPIC, None);
            read.context("the closed groups cannot be read")?;
        }
        Ok(TOPIC.to_owned())
    }

    /// Removes what a broker that was started for a case has left.
    pub(super) fn forget_start(&self, broker: Broker) -> Result<()> {
        let folder = self.start_folder(broker);
        for data in ["data", "broker1/data"] {
            closed::unshare(&folder.join(data).join("streams"))?;
        }
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", folder.display()))
            }
            _ => Ok(()),
        }
    }

    /// Starts a broker once; what that took, and the share of the cores that others used while it
    /// was left alone.
    pub(super) fn start_once(&self, case: &Case, contender: Contender) -> Result<(Taken, f64)> {
        let broker = case.broker(contender);
        let folder = self.start_folder(broker);
        let running = Running::start_in(broker, &[case.durability], &self.places, &folder)?;
        let ready = match (case.records, case.closed_groups) {
            (0, None) => None,
            _ => running.wait_until_served(TOPIC, case.partitions)?,
        };
        let appended = match case.closed_groups {
            Some(_) => Some(running.append_one(TOPIC)?),
            None => None,
        };
        let idle = Duration::from_millis(case.idle_ms.unwrap_or(1_000));
        self.leave_alone(idle / SETTLE)?;
        let mut ours: Vec<u32> = self.brokers.values().flat_map(Running::pids).collect();
        ours.extend([std::process::id(), running.pid()]);
        let (noise, before, begin) = (
            Snapshot::take(&ours),
            Usage::of(running.pid())?,
            Instant::now(),
        );
        self.leave_alone(idle)?;
        let after = Usage::of(running.pid())?;
        let lasted = begin.elapsed().as_secs_f64();
        let others = Snapshot::take(&ours).others_since(&noise);
        let memory = Memory::of(running.pid())?;
        running.check()?;
        let taken = Taken {
            device: None,
            records: case.records,
            bytes: case.bytes(),
            seconds: running.facts.start_seconds,
            broker_cpu_seconds: after.cpu.as_secs_f64(),
            client_cpu_seconds: 0.0,
            memory,
            broker_written: after.written,
            mean_batch_bytes: None,
            latency: None,
            sides: Sides::default(),
            start: Some(Start {
                answers_seconds: running.facts.start_seconds,
                ready_seconds: ready.map(|ready| ready.as_secs_f64()),
                appended_seconds: appended.map(|appended| appended.as_secs_f64()),
                idle_memory: memory.resident,
                idle_cpu: after.since(&before).cpu.as_secs_f64() / lasted.max(1e-3),
            }),
            cluster: None,
        };
        Ok((taken, others))
    }

    /// Lets time pass, unless someone wants the session to end.
    fn leave_alone(&self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        while let Some(left) = time
            .checked_sub(begin.elapsed())
            .filter(|left| !left.is_zero())
        {
            self.interrupt.check()?;
            pause(left.min(LOOK_EVERY));
        }
        Ok(())
    }
}

/// Gives the stopped broker of a folder closed groups; how many records they hold.
fn make_groups(broker: Broker, folder: &Path, groups: u32, record_bytes: u32) -> Result<u64> {
    let make = |store: &dyn kera_metadata::MetadataStore, data: &Path| {
        let streams = data.join("streams");
        closed::share(&streams, broker.name())?;
        let made = closed::make(store, &streams, TOPIC, (BROKER, groups), record_bytes);
        store.close();
        made
    };
    let made = if broker.is_cluster() {
        let etcd = Etcd::start(&folder.join("etcd"))?;
        let store = EtcdStore::open(&etcd.url(), EtcdOptions::default())?;
        make(&store, &folder.join("broker1/data"))
    } else {
        let data = folder.join("data");
        let path = data.join("metadata.redb");
        let store = EmbeddedStore::open(path, EmbeddedOptions::default())?;
        make(&store, &data)
    };
    // Nothing is left to be written while starts are measured.
    rustix::fs::sync();
    made
}
