//! Consumers of a benchmark: one reader, or a group that shares the stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kera_consumer::{Batch, ConsumeError, Consumer, Order, Reader, Start};
use tokio::task::JoinHandle;

use super::report::{histogram, record};
use crate::connect::ConnectArgs;
use crate::failure::Failure;
use crate::output::now_ms;

/// A run in which nothing arrives for this long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// Shorter than [`SILENCE`]: how often it is looked whether all records have arrived elsewhere.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What all consumers of a run have counted.
#[derive(Debug)]
pub(super) struct Tally {
    /// Records wanted.
    wanted: u64,
    records: AtomicU64,
    bytes: AtomicU64,
    /// The moment stamps count from; none if records carry no stamps.
    begin: Option<Instant>,
}

impl Tally {
    /// Counts up to `wanted` records, whose stamps count from `begin`.
    pub(super) fn new(wanted: u64, begin: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            wanted,
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            begin,
        })
    }

    /// Records counted.
    pub(super) fn records(&self) -> u64 {
        self.records.load(Relaxed)
    }

    /// Bytes of keys and values counted.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn is_full(&self) -> bool {
        self.records() >= self.wanted
    }

    /// Visits every record of a batch.
    fn visit(&self, batch: &Batch, latencies: &mut Histogram<u64>) -> Result<(), Failure> {
        let now = self.begin.map(|begin| begin.elapsed());
        let mut records = 0;
        let mut bytes = 0;
        for found in batch.records() {
            let found = found?;
            let value = found.value.unwrap_or_default();
            records += 1;
            bytes += (value.len() + found.key.map_or(0, <[u8]>::len)) as u64;
            if let (Some(now), Some(stamp)) = (now, value.first_chunk::<8>()) {
                let stamp = Duration::from_nanos(u64::from_le_bytes(*stamp));
                record(latencies, now.saturating_sub(stamp), 1);
            }
        }
        self.records.fetch_add(records, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

/// Consumers at work.
pub(super) struct Consumers {
    tasks: Vec<JoinHandle<Result<Histogram<u64>, Failure>>>,
}

impl Consumers {
    /// Opens so many consumers; they read from the first record on, or, if `from_now`, only what is
    /// appended after this returns.
    pub(super) async fn open(
        stream: &str,
        connect: &ConnectArgs,
        number: u32,
        from_now: bool,
        tally: &Arc<Tally>,
    ) -> Result<Self, Failure> {
        let mut tasks = Vec::new();
        if number == 1 {
            let start = if from_now {
                Start::Latest
            } else {
                Start::Earliest
            };
            let reader = Reader::builder()
                .bootstrap(&connect.bootstrap)
                .connect_options(connect.options()?)
                .stream(stream)
                .start(start)
                .open()
                .await?;
            tasks.push(tokio::spawn(read(reader, tally.clone())));
        } else {
            let group = format!("bench-{:08x}", rand::random::<u32>());
            let start = if from_now {
                Start::Timestamp(now_ms())
            } else {
                Start::Earliest
            };
            for _ in 0..number {
                let consumer = Consumer::builder()
                    .bootstrap(&connect.bootstrap)
                    .connect_options(connect.options()?)
                    .stream(stream)
                    .group(&group)
                    .client_name("kera bench")
                    .order(Order::None)
                    .start(start)
                    .open()
                    .await?;
                tasks.push(tokio::spawn(share(consumer, tally.clone())));
            }
        }
        Ok(Self { tasks })
    }

    /// Waits until the tally is full; returns the latencies.
    pub(super) async fn finish(self) -> Result<Histogram<u64>, Failure> {
        let mut latencies = histogram();
        for task in self.tasks {
            latencies.add(&task.await??)?;
        }
        Ok(latencies)
    }
}

async fn read(mut reader: Reader, tally: Arc<Tally>) -> Result<Histogram<u64>, Failure> {
    let mut latencies = histogram();
    while !tally.is_full() {
        match tokio::time::timeout(SILENCE, reader.next_batch()).await {
            Ok(Ok(Some(batch))) => tally.visit(&batch, &mut latencies)?,
            Ok(Err(error)) if error.is_retryable() => {}
            Ok(Err(error)) => return Err(error.into()),
            Ok(Ok(None)) | Err(_) => return Err(silent(&tally)),
        }
    }
    Ok(latencies)
}

async fn share(mut consumer: Consumer, tally: Arc<Tally>) -> Result<Histogram<u64>, Failure> {
    let mut latencies = histogram();
    let mut heard = Instant::now();
    while !tally.is_full() {
        match tokio::time::timeout(LOOK_EVERY, consumer.next_batch()).await {
            Ok(Ok(batch)) => {
                tally.visit(&batch, &mut latencies)?;
                heard = Instant::now();
            }
            Ok(Err(ConsumeError::StaleLease { .. })) => {}
            Ok(Err(error)) if error.is_retryable() => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) if heard.elapsed() < SILENCE => {}
            Err(_) => return Err(silent(&tally)),
        }
    }
    consumer.close().await?;
    Ok(latencies)
}

fn silent(tally: &Tally) -> Failure {
    Failure::message(format!(
        "only {} of {} records arrived; does the stream hold as many? `kera bench produce` appends some",
        tally.records(),
        tally.wanted
    ))
}
