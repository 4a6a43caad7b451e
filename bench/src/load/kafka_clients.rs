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

use kera_load::{Acks, Consuming, Producing, SILENCE, Sink};

use super::Plan;
use super::kafka::{
    Outcome, consumer, crowd_producer, finish, give_room, member, producer, record, record_due,
    taken, wait_until_sent,
};
use crate::scenario::Work;

/// How long the thread that hears of acknowledgements waits for one.
const HEAR: Duration = Duration::from_millis(50);
/// Most messages between two looks of a consumer at the others.
const MESSAGES: usize = 256;

pub(super) struct Clients<'a> {
    pub(super) plan: &'a Plan,
}

impl<'a> kera_load::Clients for Clients<'a> {
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
        if self.plan.transactions {
            let begun = producer.init_transactions(SILENCE);
            begun.context("no transactions")?;
        }
        Ok(KafkaProducer {
            plan: self.plan,
            listener: paced.then(|| Listener::start(producer.clone())),
            producer,
            is_open: false,
        })
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        if self.plan.work == Work::Share {
            // No group before has its name.
            let group = format!("{}-{}", self.plan.topic, std::process::id());
            return Ok(KafkaConsumer {
                consumer: member(self.plan, &group)?,
                reads: Reads::Topic(self.plan.topic.clone()),
            });
        }
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
        Ok(KafkaConsumer {
            consumer,
            reads: Reads::Partitions(list),
        })
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
    /// A transaction is.
    is_open: bool,
}

impl KafkaProducer<'_> {
    /// Begins a transaction if it has them and none is open.
    fn begin(&mut self) -> Result<()> {
        if self.plan.transactions && !self.is_open {
            self.producer.begin_transaction()?;
            self.is_open = true;
        }
        Ok(())
    }
}

impl Producing for KafkaProducer<'_> {
    fn open(&mut self, partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        self.begin()?;
        let record = record(&self.plan.topic, key, value).partition(i32::try_from(partition)?);
        ensure!(
            taken(self.producer.send(record))?,
            "librdkafka's queue is too short"
        );
        self.complete()
    }

    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()> {
        self.begin()?;
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

    fn complete(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_open) {
            wait_until_sent(&self.producer)?;
            let committed = self.producer.commit_transaction(SILENCE);
            committed.context("a transaction was not committed")?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.complete()?;
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
    reads: Reads,
}

enum Reads {
    Partitions(TopicPartitionList),
    /// What its group gives it.
    Topic(String),
}

impl Consuming for KafkaConsumer {
    fn begin(&mut self) -> Result<()> {
        let begun = match &self.reads {
            Reads::Partitions(list) => self.consumer.assign(list),
            Reads::Topic(topic) => self.consumer.subscribe(&[topic]),
        };
        begun.context("librdkafka cannot begin to read")
    }

    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let mut wait = wait;
        for _ in 0..MESSAGES {
            let Some(message) = self.consumer.poll(wait) else {
                break;
            };
            wait = Duration::ZERO;
            let message = message.context("librdkafka cannot read")?;
            sink.now();
            let key = message.key().map_or(0, <[u8]>::len);
            sink.take(key, message.payload().unwrap_or_default())?;
        }
        Ok(())
    }
}
