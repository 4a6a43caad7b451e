//! Clients of Apache Iggy.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use kera_load::{Acks, Consuming, Producing, Sink};

use super::Plan;
use super::iggy::{Consumer, Producer};

pub(super) struct Clients<'a> {
    pub(super) plan: &'a Plan,
}

impl<'a> kera_load::Clients for Clients<'a> {
    type Producer = Producer<'a>;
    type Consumer = Consumer<'a>;

    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer> {
        let paced = self.plan.rate.is_some();
        Producer::connect(self.plan, paced.then(|| acks.clone()))
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        Consumer::connect(self.plan, partitions.iter().copied())
    }
}

impl Producing for Producer<'_> {
    fn open(&mut self, partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        self.send_to(partition as usize, key, value, None)?;
        self.finish()
    }

    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()> {
        Producer::send(self, key, value, due)
    }

    fn look(&mut self, idle: Duration) -> Result<()> {
        Producer::look(self, idle)
    }

    fn finish(&mut self) -> Result<()> {
        Producer::finish(self)
    }

    fn mean_batch_bytes(&self) -> Option<f64> {
        Producer::mean_batch_bytes(self)
    }
}

impl Consuming for Consumer<'_> {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let key_bytes = self.key_bytes();
        let mut first = true;
        Consumer::receive(self, wait, |payload| {
            if std::mem::take(&mut first) {
                sink.now();
            }
            sink.take(key_bytes, payload)
        })
    }
}
