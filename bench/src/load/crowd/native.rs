//! Kera's own clients.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kera_consumer::{Reader, Start};
use kera_producer::{AppendError, Producer, Record};
use tokio::runtime::Handle;

use super::shared::Sink;
use super::{Consuming, Producing};
use crate::load::Plan;
use crate::load::acks::Acks;
use crate::load::native::{mean_batch, producer};

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
            every: (rate / TIMED).max(1),
            sent: 0,
            opened: 0,
        })
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        // Partition p of a stream with M streamlets is lane p / M of streamlet p mod M.
        let streamlets = self.plan.crowd.streamlets.unwrap_or(self.plan.partitions);
        let lanes = partitions.iter().map(|p| (p % streamlets, p / streamlets));
        let reader = Reader::builder()
            .bootstrap(&self.plan.bootstrap)
            .stream(&self.plan.topic)
            .start(Start::Earliest)
            .lanes(lanes.collect::<Vec<_>>())
            .open();
        Ok(NativeConsumer {
            reader: self.handle.block_on(reader).context("no reader")?,
            handle: self.handle.clone(),
        })
    }
}

pub(super) struct NativeProducer {
    producer: Producer,
    handle: Handle,
    acks: Arc<Acks>,
    /// One record of so many has its acknowledgement timed.
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
        let timed = due.filter(|_| self.sent.is_multiple_of(self.every));
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
        mean_batch(&self.producer)
    }
}

pub(super) struct NativeConsumer {
    reader: Reader,
    handle: Handle,
}

impl Consuming for NativeConsumer {
    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let reader = &mut self.reader;
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
