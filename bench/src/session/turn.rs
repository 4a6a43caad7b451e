//! One run: load by a process of its own, measured from its first record to its last.

use std::process::Command;

use anyhow::Result;

use super::Session;
use super::loader::Loader;
use crate::load::Plan;
use crate::measure::noise::Snapshot;
use crate::measure::process::{Memory, Usage, forget_peak};
use crate::peers::{Running, share_load};
use crate::results::Taken;
use crate::scenario::{Case, ClientPath, Contender, Sharing};

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
            most_ms: case.most_seconds.map(|most| (most * 1e3).ceil() as u64),
            rate: case.rate.or(pace),
            crowd: case.crowd,
        };
        let program = self.program(running, &plan)?;
        let mut loader = Loader::start(program, &plan, &self.interrupt)?;
        let mut ours: Vec<u32> = self.brokers.values().map(|one| one.pid()).collect();
        let broker = running.pid();
        ours.extend([std::process::id(), loader.pid(), broker]);

        forget_peak(broker);
        let noise = Snapshot::take(&ours);
        let (broker_before, client_before) = (Usage::of(broker)?, Usage::of(loader.pid())?);
        let done = loader.work(&self.interrupt)?;
        let (broker_after, client_after) = (Usage::of(broker)?, Usage::of(loader.pid())?);
        let others = Snapshot::take(&ours).others_since(&noise);
        let memory = Memory::of(broker)?;
        drop(loader);

        let broker = broker_after.since(&broker_before);
        let taken = Taken {
            records: done.records,
            bytes: done.bytes,
            seconds: done.seconds,
            broker_cpu_seconds: broker.cpu.as_secs_f64(),
            client_cpu_seconds: client_after.since(&client_before).cpu.as_secs_f64(),
            memory,
            broker_written: broker.written,
            mean_batch_bytes: done.mean_batch_bytes,
            latency: done.latency,
            sides: done.sides,
            start: None,
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
