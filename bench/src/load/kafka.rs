//! Load through librdkafka.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use serde::Deserialize;

use kera_load::{Acks, SILENCE};

use super::Plan;
use crate::scenario::Durability;

/// How long to wait when librdkafka's queue is full.
const FULL: Duration = Duration::from_millis(1);
/// How long librdkafka is asked again and again to send what is open.
const BURST: Duration = Duration::from_millis(1);
/// Longest pause between two of these.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// How often librdkafka tells the size of its batches.
const STATISTICS_MS: &str = "200";

/// What both producer and consumer are told.
fn client(plan: &Plan) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &plan.bootstrap)
        .set("client.id", "kera-bench")
        .set("broker.address.family", "v4")
        .set("socket.nagle.disable", "true")
        .set("allow.auto.create.topics", "false");
    config
}

/// The producer's settings: batches of the wanted size, a queue in which every partition's batch can
/// fill, and no report for records that went well.
pub(super) fn producer(plan: &Plan) -> Result<BaseProducer<Outcome>> {
    create(&producer_config(plan), Outcome::default())
}

/// One of several producers. Records without key go to one partition until the linger is over, so
/// that batches fill whatever the number of partitions; `acks` hears of every acknowledgement.
pub(super) fn crowd_producer(
    plan: &Plan,
    acks: Option<Arc<Acks>>,
) -> Result<BaseProducer<Outcome>> {
    let mut config = producer_config(plan);
    let sticky = plan.linger_us.div_ceil(1_000).clamp(1, 1_000);
    // Few partitions have an open batch at a time: a queue for all of them would only add a backlog that
    // takes a slow broker longer to work off than the run lasts. One record of each must fit.
    let (all, least) = match plan.durability {
        // A broker that flushes for every batch may take a few thousand records a second.
        Durability::Synced => (10_000, 1_000),
        Durability::Memory | Durability::Written => (100_000, 10_000),
    };
    let queued = (all / u64::from(plan.crowd.producers.max(1)))
        .max(least)
        .max(2 * u64::from(plan.partitions));
    config
        .set("queue.buffering.max.messages", queued.to_string())
        .set("sticky.partitioning.linger.ms", sticky.to_string())
        .set("delivery.report.only.error", acks.is_none().to_string());
    let outcome = Outcome {
        acks,
        ..Outcome::default()
    };
    create(&config, outcome)
}

fn create(config: &ClientConfig, outcome: Outcome) -> Result<BaseProducer<Outcome>> {
    config
        .create_with_context(outcome)
        .context("librdkafka makes no producer")
}

fn producer_config(plan: &Plan) -> ClientConfig {
    let batch_records = u64::from(plan.batch_bytes / plan.record_bytes).max(1);
    let least = (100_000 / u64::from(plan.crowd.producers.max(1))).max(10_000);
    let queued = (u64::from(plan.partitions) * batch_records * 2).clamp(least, 10_000_000);
    let mut config = client(plan);
    config
        .set("acks", plan.acks.name())
        .set("linger.ms", (plan.linger_us as f64 / 1e3).to_string())
        .set("batch.size", plan.batch_bytes.to_string())
        .set("batch.num.messages", "1000000")
        .set("queue.buffering.max.messages", queued.to_string())
        .set("queue.buffering.max.kbytes", "2000000")
        .set("partitioner", "murmur2_random")
        .set("delivery.report.only.error", "true")
        .set("statistics.interval.ms", STATISTICS_MS);
    if plan.transactions {
        // No producer before has its name.
        let id = format!("bench-{:016x}", rand::random::<u64>());
        config.set("transactional.id", id);
    }
    config
}

/// A consumer that is assigned partitions, not a group's member.
pub(super) fn consumer(plan: &Plan) -> Result<BaseConsumer> {
    let mut config = client(plan);
    config
        .set("group.id", "kera-bench")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        // Never the reader's own pauses: its defaults stop fetching for a second when it is behind.
        .set("fetch.queue.backoff.ms", "1")
        .set("queued.min.messages", "1000000")
        .set("queued.max.messages.kbytes", "262144");
    config.create().context("librdkafka makes no consumer")
}

/// A member of a group.
pub(super) fn member(plan: &Plan, group: &str) -> Result<BaseConsumer> {
    let mut config = client(plan);
    config
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        // Who has a partition keeps it while others join.
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("heartbeat.interval.ms", "500");
    config.create().context("librdkafka makes no consumer")
}

/// What a producer hears from librdkafka.
#[derive(Default)]
pub(super) struct Outcome {
    /// Who is told when records that were due at a time are acknowledged.
    acks: Option<Arc<Acks>>,
    failed: AtomicU64,
    first: Mutex<Option<String>>,
    /// Bytes and number of the batches seen so far.
    batches: Mutex<(f64, f64)>,
}

/// The part of librdkafka's statistics that matters.
#[derive(Deserialize)]
struct Statistics {
    #[serde(default)]
    topics: BTreeMap<String, TopicStatistics>,
}

#[derive(Deserialize)]
struct TopicStatistics {
    batchsize: BatchStatistics,
}

#[derive(Deserialize)]
struct BatchStatistics {
    sum: f64,
    cnt: f64,
}

impl Outcome {
    fn fail(&self, what: &dyn std::fmt::Display) {
        self.failed.fetch_add(1, Relaxed);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| what.to_string());
    }

    /// An error if any record was not acknowledged.
    pub(super) fn check(&self) -> Result<()> {
        let failed = self.failed.load(Relaxed);
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(
            failed == 0,
            "{failed} records were not acknowledged: {}",
            first.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    /// Bytes of a batch on average, as far as librdkafka has told.
    pub(super) fn mean_batch_bytes(&self) -> Option<f64> {
        let (bytes, number) = *self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        (number > 0.0).then(|| bytes / number)
    }
}

impl ClientContext for Outcome {
    fn stats_raw(&self, statistics: &[u8]) {
        // Each telling is about the time since the one before.
        if let Ok(told) = serde_json::from_slice::<Statistics>(statistics) {
            let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
            for topic in told.topics.values() {
                batches.0 += topic.batchsize.sum;
                batches.1 += topic.batchsize.cnt;
            }
        }
    }
}

impl ProducerContext for Outcome {
    /// When the record was due, in nanoseconds from the beginning, and one more; 0 for others.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, due: usize) {
        match (result, &self.acks) {
            (Err((error, _)), _) => self.fail(error),
            (Ok(_), Some(acks)) if due > 0 => {
                acks.take(Duration::from_nanos(due as u64 - 1));
            }
            _ => {}
        }
    }
}

/// What librdkafka answers to a record; it gives back what it does not take.
type Sent<'a> = std::result::Result<(), (KafkaError, BaseRecord<'a, [u8], [u8], usize>)>;

/// True if the record was taken, false if there is no room just now.
pub(super) fn taken(sent: Sent<'_>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Ok(false),
        Err((error, _)) => Err(error).context("librdkafka takes no record"),
    }
}

/// A record for the partition that its key, or the client, chooses.
pub(super) fn record<'a>(
    topic: &'a str,
    key: Option<&'a [u8]>,
    value: &'a [u8],
) -> BaseRecord<'a, [u8], [u8], usize> {
    record_due(topic, key, value, None)
}

/// The same for a record that was due so long after the beginning.
pub(super) fn record_due<'a>(
    topic: &'a str,
    key: Option<&'a [u8]>,
    value: &'a [u8],
    due: Option<Duration>,
) -> BaseRecord<'a, [u8], [u8], usize> {
    let due = due.and_then(|due| usize::try_from(due.as_nanos()).ok());
    let opaque = due.map_or(0, |due| due.saturating_add(1));
    let record = BaseRecord::with_opaque_to(topic, opaque).payload(value);
    match key {
        Some(key) => record.key(key),
        None => record,
    }
}

/// Lets librdkafka's queue empty for a moment. The crate's own wait is a loop that looks at the clock for the
/// last millisecond, so that a producer which waits would take a core from the brokers.
pub(super) fn give_room(producer: &BaseProducer<Outcome>) {
    producer.poll(Duration::ZERO);
    std::thread::park_timeout(FULL);
}

/// Waits until all records are acknowledged and the linger of open batches is over. The crate's own commit asks librdkafka
/// to send them ten times a second only, for a moment each.
pub(super) fn wait_until_sent(producer: &BaseProducer<Outcome>) -> Result<()> {
    let begin = Instant::now();
    while producer.in_flight_count() > 0 {
        give_room(producer);
        ensure!(
            begin.elapsed() < SILENCE,
            "records were not acknowledged within {SILENCE:?}"
        );
    }
    Ok(())
}

/// Waits until all records are acknowledged, without waiting for open batches to fill.
///
/// librdkafka sends open batches at once only while a flush is under way, and the crate's flush is
/// under way for a moment only, ten times a second: with a long linger that is the end of it. So it is
/// asked many times, with pauses in which others have the core.
pub(super) fn finish(producer: &BaseProducer<Outcome>) -> Result<()> {
    let begin = Instant::now();
    let mut pause = BURST;
    loop {
        let burst = Instant::now();
        while burst.elapsed() < BURST {
            if producer.flush(Duration::ZERO).is_ok() {
                return Ok(());
            }
        }
        // What is open is on its way after the first of them; what is left is to wait for answers.
        producer.poll(Duration::ZERO);
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        ensure!(
            begin.elapsed() < SILENCE,
            "records were not acknowledged within {SILENCE:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_averaged_over_all_tellings() {
        let outcome = Outcome::default();
        assert_eq!(outcome.mean_batch_bytes(), None);
        outcome.stats_raw(br#"{"topics":{"t":{"batchsize":{"sum":300,"cnt":3,"avg":100}}}}"#);
        outcome.stats_raw(br#"{"topics":{"t":{"batchsize":{"sum":1700,"cnt":1}}}}"#);
        outcome.stats_raw(b"no JSON");
        assert_eq!(outcome.mean_batch_bytes(), Some(500.0));
    }

    #[test]
    fn one_failure_fails_the_run() {
        let outcome = Outcome::default();
        assert!(outcome.check().is_ok());
        outcome.fail(&"first");
        outcome.fail(&"second");
        let text = outcome.check().unwrap_err().to_string();
        assert_eq!(text, "2 records were not acknowledged: first");
    }
}
