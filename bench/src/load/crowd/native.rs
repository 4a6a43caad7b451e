//! Kera's own clients.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kera_consumer::{Reader, ReaderBuilder, Start};
use kera_producer::{AppendError, Producer, Record};
use tokio::runtime::Handle;

use super::shared::Sink;
use super::{Consuming, Producing};
use crate::load::Plan;
use crate::load::acks::Acks;
use crate::scenario::Work;

/// The memory of all producers together when few batches are open.
const LEAST_MEMORY: usize = 64 << 20;
/// Acknowledgements that are timed, a second and producer.
const TIMED: u64 = 2_000;

pub(super) struct Clients<'a> {
    pub(super) plan: &'a Plan,
    pub(super) handle: Handle,
}

impl super::Clients for Clients<'_> {
    type Producer = NativeProducer;
    type Consumer = NativeConsumer;

    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer> {
        let producers = u64::from(self.plan.crowd.producers.max(1));
        let rate = self.plan.rate.unwrap_or(0) / producers;
        Ok(NativeProducer {
            producer: self.handle.block_on(producer(self.plan))?,
            handle: self.handle.clone(),
            acks: acks.clone(),
            every: match self.plan.work {
                Work::Produce => 0,
                _ => (rate / TIMED).max(1),
            },
            sent: 0,
            opened: 0,
        })
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        let mut builder = Reader::builder()
            .bootstrap(&self.plan.bootstrap)
            .stream(&self.plan.topic)
            .start(Start::Earliest);
        if partitions.len() < self.plan.partitions as usize {
            // Partition p of a stream with M streamlets is lane p / M of streamlet p mod M.
            let streamlets = self.plan.crowd.streamlets.unwrap_or(self.plan.partitions);
            let lanes = partitions.iter().map(|p| (p % streamlets, p / streamlets));
            builder = builder.lanes(lanes.collect::<Vec<_>>());
        }
        Ok(NativeConsumer {
            builder: Some(builder),
            reader: None,
            handle: self.handle.clone(),
        })
    }
}

/// A producer that waits so long, with room for every lane's batch to fill.
async fn producer(plan: &Plan) -> Result<Producer> {
    let batch = plan.batch_bytes as usize;
    // Every lane's batch can fill.
    let producers = plan.crowd.producers.max(1) as usize;
    let memory = plan.partitions as usize * batch * 2 + LEAST_MEMORY / producers;
    let producer = Producer::builder()
        .bootstrap(&plan.bootstrap)
        .stream(&plan.topic)
        .batch_size(batch)
        .linger(Duration::from_micros(plan.linger_us))
        .memory_limit(memory)
        .build();
    producer.await.context("no producer")
}

pub(super) struct NativeProducer {
    producer: Producer,
    handle: Handle,
    acks: Arc<Acks>,
    /// One record of so many has its acknowledgement timed; none if it is 0.
    every: u64,
    sent: u64,
    opened: u64,
}

impl Producing for NativeProducer {
    fn open(&mut self, _partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        // Without a key every flush moves on to the next lane.
        self.send(key, value, None)?;
        self.sent -= 1;
        self.opened += 1;
        Ok(self.handle.block_on(self.producer.flush())?)
    }

    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()> {
        let record = Record {
            key,
            value: Some(value),
            ..Record::default()
        };
        let timed = due
            .filter(|_| self.every > 0)
            .filter(|_| self.sent.is_multiple_of(self.every));
        self.sent += 1;
        let Some(due) = timed else {
            match self.producer.send(&record) {
                Err(AppendError::Full) => {
                    self.handle.block_on(self.producer.append_wait(&record))?;
                }
                taken => taken?,
            }
            return Ok(());
        };
        let delivery = self.handle.block_on(self.producer.append_wait(&record))?;
        let acks = self.acks.clone();
        self.handle.spawn(async move {
            // A failure is told by the flush.
            if delivery.await.is_ok() {
                acks.take(due);
            }
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.handle.block_on(self.producer.flush())?;
        let counts = self.producer.metrics();
        let sent = self.sent + self.opened;
        ensure!(
            counts.records_failed == 0 && counts.records_acknowledged == sent,
            "{} of {sent} records were acknowledged",
            counts.records_acknowledged
        );
        Ok(())
    }

    fn mean_batch_bytes(&self) -> Option<f64> {
        let counts = self.producer.metrics();
        let sent = counts.batches + counts.batches_resent;
        (sent > 0).then(|| counts.bytes_sent as f64 / sent as f64)
    }
}

pub(super) struct NativeConsumer {
    builder: Option<ReaderBuilder>,
    reader: Option<Reader>,
    handle: Handle,
}

impl Consuming for NativeConsumer {
    fn begin(&mut self) -> Result<()> {
        let builder = self.builder.take().context("it begins once")?;
        let reader = self.handle.block_on(builder.open());
        self.reader = Some(reader.context("no reader")?);
        Ok(())
    }

    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let reader = self.reader.as_mut().context("it has begun")?;
        let next = async { tokio::time::timeout(wait, reader.next_batch()).await };
        let batch = match self.handle.block_on(next) {
            Ok(Ok(Some(batch))) => batch,
            Ok(Ok(None)) => bail!("a reader that follows came to an end"),
            Ok(Err(error)) if error.is_retryable() => return Ok(()),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Ok(()),
        };
        sink.now();
        for record in batch.records() {
            sink.take(record?.value.unwrap_or_default())?;
        }
        Ok(())
    }
}
