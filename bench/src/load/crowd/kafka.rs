//! Clients with librdkafka.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::shared::Sink;
use super::{Consuming, Producing};
use crate::load::acks::Acks;
use crate::load::kafka::{
    Outcome, consumer, crowd_producer, finish, give_room, producer, record, record_due, taken,
};
use crate::load::{Plan, SILENCE};
use crate::scenario::Work;

/// How long the thread that hears of acknowledgements waits for one.
const HEAR: Duration = Duration::from_millis(50);
/// Most messages between two looks of a consumer at the others.
const MESSAGES: usize = 256;

pub(super) struct Clients<'a> {
    pub(super) plan: &'a Plan,
}

impl<'a> super::Clients for Clients<'a> {
    type Producer = KafkaProducer<'a>;
    type Consumer = KafkaConsumer;

    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer> {
        let paced = self.plan.rate.is_some();
        let producer = match self.plan.work {
            Work::Produce => producer(self.plan)?,
            _ => crowd_producer(self.plan, paced.then(|| acks.clone()))?,
        };
        producer
            .client()
            .fetch_metadata(Some(&self.plan.topic), SILENCE)
            .context("no metadata of the topic")?;
        let producer = Arc::new(producer);
        Ok(KafkaProducer {
            plan: self.plan,
            listener: paced.then(|| Listener::start(producer.clone())),
            producer,
        })
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        let consumer = consumer(self.plan)?;
        let mut list = TopicPartitionList::new();
        for &partition in partitions {
            let partition = i32::try_from(partition)?;
            list.add_partition_offset(&self.plan.topic, partition, Offset::Beginning)?;
        }
        if self.plan.work == Work::Consume {
            // Who only reads begins with connections that are open.
            consumer
                .fetch_metadata(Some(&self.plan.topic), SILENCE)
                .context("no metadata of the topic")?;
        }
        Ok(KafkaConsumer { consumer, list })
    }
}

/// Hears of acknowledgements as they come, as an application's own polling thread does.
struct Listener {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(producer: Arc<BaseProducer<Outcome>>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Relaxed) {
                producer.poll(HEAR);
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) struct KafkaProducer<'a> {
    plan: &'a Plan,
    listener: Option<Listener>,
    producer: Arc<BaseProducer<Outcome>>,
}

impl Producing for KafkaProducer<'_> {
    fn open(&mut self, partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        let record = record(&self.plan.topic, key, value).partition(i32::try_from(partition)?);
        ensure!(
            taken(self.producer.send(record))?,
            "librdkafka's queue is too short"
        );
        Ok(())
    }

    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()> {
        let topic = &self.plan.topic;
        while !taken(self.producer.send(record_due(topic, key, value, due)))? {
            give_room(&self.producer);
            self.producer.context().check()?;
        }
        Ok(())
    }

    fn look(&mut self, _idle: Duration) -> Result<()> {
        if self.listener.is_none() {
            self.producer.poll(Duration::ZERO);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        finish(&self.producer)?;
        self.producer.poll(Duration::ZERO);
        self.listener = None;
        self.producer.context().check()
    }

    fn mean_batch_bytes(&self) -> Option<f64> {
        self.producer.context().mean_batch_bytes()
    }
}

pub(super) struct KafkaConsumer {
    consumer: BaseConsumer,
    list: TopicPartitionList,
}

impl Consuming for KafkaConsumer {
    fn begin(&mut self) -> Result<()> {
        let assigned = self.consumer.assign(&self.list);
        assigned.context("cannot assign partitions")
    }

    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let mut next = self.consumer.poll(wait);
        for _ in 0..MESSAGES {
            let Some(message) = next else {
                return Ok(());
            };
            let message = message.context("librdkafka cannot read")?;
            sink.now();
            sink.take(message.payload().unwrap_or_default())?;
            next = self.consumer.poll(Duration::ZERO);
        }
        if let Some(message) = next {
            let message = message.context("librdkafka cannot read")?;
            sink.now();
            sink.take(message.payload().unwrap_or_default())?;
        }
        Ok(())
    }
}
