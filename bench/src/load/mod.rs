//! The load of one run, made by a process of its own so that its CPU time is its own.
//!
//! It reads a [`Plan`] from its standard input, gets ready, says so, waits for `go`, does the work
//! and says what it was; then it stays until its standard input ends, so that it can be looked at.

mod iggy;
mod iggy_clients;
mod kafka;
mod kafka_clients;

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kera_consumer::Order;
use kera_load::native::NativeClients;
use kera_load::{Done, Load, Sides};
use kera_rpc::ConnectOptions;
use kera_rpc::admin::Admin;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, Runtime};

use crate::scenario::{Acks, ClientPath, Crowd, Durability, Keys, Sharing, Work};

/// The memory of all of Kera's producers together when few batches are open.
const LEAST_MEMORY: usize = 64 << 20;
/// Ranges that a member of Kera's groups holds at a time: one is worked on while the next is on its way.
const RANGES: usize = 2;

/// What the load is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub path: ClientPath,
    /// HOST:PORT.
    pub bootstrap: String,
    /// The topic or stream; it exists.
    pub topic: String,
    pub work: Work,
    pub records: u64,
    pub record_bytes: u32,
    pub keys: Keys,
    pub batch_bytes: u32,
    pub linger_us: u64,
    pub partitions: u32,
    pub acks: Acks,
    /// What the topic promises.
    #[serde(default)]
    pub durability: Durability,
    /// Sending stops after so long, even before all records are sent.
    #[serde(default)]
    pub most_ms: Option<u64>,
    /// Producers commit transactions of [`at_once`](Self::at_once) records.
    #[serde(default)]
    pub transactions: bool,
    /// Records of a transaction, and those that are due at once.
    #[serde(default)]
    pub at_once: Option<u32>,
    /// Records a second, for an open loop; of Kera's own producer also the most that it sends.
    pub rate: Option<u64>,
    /// The clients.
    pub crowd: Crowd,
}

impl Plan {
    /// What the engine is to do.
    fn load(&self) -> Result<Load> {
        let crowd = &self.crowd;
        Ok(Load {
            work: match self.work {
                Work::Produce => kera_load::Work::Produce,
                Work::Consume => kera_load::Work::Consume,
                Work::Both | Work::Latency => kera_load::Work::Both,
                Work::CatchUp => kera_load::Work::CatchUp,
                Work::Trickle => kera_load::Work::Trickle,
                Work::Share => kera_load::Work::Share,
                Work::Start | Work::Compact => bail!("there are no such clients"),
            },
            records: self.records,
            record_bytes: self.record_bytes,
            keyed: self.keys != Keys::None,
            different_keys: (self.keys == Keys::Tenth).then_some(self.records / 10),
            partitions: self.partitions,
            rate: self.rate,
            at_once: self.at_once.map(u64::from),
            time: crowd.millis.map(Duration::from_millis),
            most: self.most_ms.map(Duration::from_millis),
            producers: crowd.producers,
            consumers: crowd.consumers,
            subscriptions: crowd.subscriptions,
            group: self.work == Work::Share,
            busy: Duration::from_micros(crowd.work_us),
            timed: self.work == Work::Latency,
            warm: true,
            sample: 0,
        })
    }

    /// Has the broker compact the stream, and waits until that is done.
    fn compact<R: BufRead>(&self, gate: &mut Gate<R>) -> Result<Done> {
        let runtime = Runtime::new()?;
        let admin = {
            let _within = runtime.enter();
            Admin::connect_to(&self.bootstrap)?
        };
        let begin = gate.wait()?;
        let told = runtime.block_on(admin.compact_stream(&self.topic))?;
        let seconds = begin.elapsed().as_secs_f64();
        ensure!(
            told.lanes == self.partitions && told.bytes_after < told.bytes_before / 2,
            "{} of {} lanes were compacted, {} bytes to {}",
            told.lanes,
            self.partitions,
            told.bytes_before,
            told.bytes_after
        );
        Ok(Done {
            records: self.records,
            bytes: self.records * u64::from(self.record_bytes),
            seconds,
            mean_batch_bytes: None,
            latency: None,
            sides: Sides::default(),
        })
    }

    /// Runs it with clients of the path.
    fn run<R: BufRead>(&self, gate: &mut Gate<R>) -> Result<Done> {
        if self.work == Work::Compact {
            return self.compact(gate);
        }
        let load = self.load()?;
        let begin = || gate.wait();
        let ranges = self.work == Work::Share && self.crowd.order == Some(Sharing::None);
        let mut done = match self.path {
            ClientPath::Kafka if ranges => bail!("librdkafka knows no share groups"),
            ClientPath::Iggy if self.work == Work::Share => {
                bail!("groups of Iggy's consumers are not compared")
            }
            ClientPath::Kafka => {
                kera_load::run(&kafka_clients::Clients { plan: self }, &load, begin)
            }
            ClientPath::Iggy => kera_load::run(&iggy_clients::Clients { plan: self }, &load, begin),
            ClientPath::Nats => bail!("the load for NATS is a program of its own"),
            ClientPath::Native => {
                let runtime = Runtime::new()?;
                let clients = self.native(&load, runtime.handle().clone());
                let done = kera_load::run(&clients, &load, begin);
                // A reader's connections may still be at work.
                runtime.shutdown_background();
                done
            }
        }?;
        ensure!(
            self.work != Work::Share || done.records > 0,
            "no record was worked on"
        );
        if matches!(self.work, Work::Produce | Work::Consume | Work::Share) {
            // One side alone is the whole.
            done.sides = Sides::default();
        }
        Ok(done)
    }

    /// Kera's own clients; a producer has room for every lane's batch to fill.
    fn native<'a>(&self, load: &'a Load, handle: Handle) -> NativeClients<'a> {
        let batch = self.batch_bytes as usize;
        let producers = self.crowd.producers.max(1) as usize;
        let options = ConnectOptions::default();
        let clients = NativeClients::new(load, handle, &self.bootstrap, &self.topic, &options);
        NativeClients {
            timed_acks: match self.work {
                // At a rate it is to be as slow as another, and no more.
                Work::Produce => 0,
                _ => clients.timed_acks,
            },
            streamlets: self.crowd.streamlets.unwrap_or(self.partitions),
            transactions: self.transactions,
            producer: clients
                .producer
                .batch_size(batch)
                .linger(Duration::from_micros(self.linger_us))
                .memory_limit(self.partitions as usize * batch * 2 + LEAST_MEMORY / producers),
            member: match self.crowd.order {
                Some(Sharing::None) => clients
                    .member
                    .order(Order::None)
                    // Of one batch each, so that there is something for everybody.
                    .range_bytes(self.batch_bytes)
                    .max_leases(RANGES),
                _ => clients.member.order(Order::Lane),
            },
            ..clients
        }
    }
}

/// A line to the harness.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Said {
    Ready,
    Done(Box<Done>),
}

/// The word that starts the work.
pub(crate) const GO: &str = "go";

/// Stands between getting ready and the work.
pub(crate) struct Gate<R> {
    input: R,
}

impl<R: BufRead> Gate<R> {
    /// Tells the harness that the work can begin and waits for its word; returns when it begins.
    fn wait(&mut self) -> Result<Instant> {
        say(&Said::Ready)?;
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        ensure!(line.trim() == GO, "the harness went away");
        Ok(Instant::now())
    }
}

/// The process `kera-bench load`.
pub(crate) fn run() -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let plan: Plan = serde_json::from_str(&line).context("the plan is odd")?;
    let mut gate = Gate { input };
    let done = plan.run(&mut gate)?;
    say(&Said::Done(Box::new(done)))?;
    // Until the harness has seen enough of this process.
    gate.input.read_line(&mut line)?;
    Ok(())
}

fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
