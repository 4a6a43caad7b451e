//! Topics, made and deleted as any Kafka client does.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::child::pause;
use crate::measure::disk;
use crate::scenario::{Cluster, Durability};

/// How long a broker may take to start.
const START: Duration = Duration::from_secs(60);
/// How long it may take to create or delete a topic, or to give back space.
const CHANGE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it may take until copies are known everywhere.
const COPIES: Duration = Duration::from_secs(5);
/// How much longer a change may take for each partition.
const EACH: Duration = Duration::from_millis(12);
/// A topic with so many partitions is made in two steps.
const AT_ONCE: u32 = 8_000;
/// What a broker without topics may keep on the disk.
const EMPTY: u64 = 96 << 20;

/// Runs a request of the administration to its end.
fn block_on<T>(request: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(request))
}

fn config(address: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", address)
        .set("client.id", "kera-bench")
        .set("broker.address.family", "v4")
        .set("log_level", "0");
    config
}

/// Waits until a broker answers at `address` that knows of so many, itself included.
pub(super) fn wait_until_up(address: &str, brokers: usize) -> Result<()> {
    let consumer: BaseConsumer = config(address).create()?;
    let begin = Instant::now();
    loop {
        match consumer.fetch_metadata(None, Duration::from_secs(1)) {
            Ok(metadata) if metadata.brokers().len() >= brokers => return Ok(()),
            result => ensure!(
                begin.elapsed() < START,
                "{brokers} brokers do not answer at {address} after {START:?} ({})",
                result.map_or_else(
                    |error| error.to_string(),
                    |metadata| format!("{} are listed", metadata.brokers().len())
                )
            ),
        }
        pause(LOOK_EVERY);
    }
}

/// Makes a topic, with the setting that its durability takes if there is one, and waits until every partition has a leader. In a
/// cluster its partitions have so many copies.
pub(super) fn create(
    address: &str,
    topic: &str,
    partitions: u32,
    (durability, setting): (Durability, Option<(&str, &str)>),
    cluster: Option<Cluster>,
) -> Result<()> {
    // Thousands of logs take their time.
    let within = CHANGE + EACH * partitions;
    let admin: AdminClient<DefaultClientContext> = config(address).create()?;
    // Kafka's controller takes 10,000 changes at a time, and a topic is more than its partitions.
    let first = match partitions {
        AT_ONCE.. => partitions / 2,
        few => few,
    };
    let replicas = cluster.map_or(1, |cluster| cluster.replicas);
    let replicas = i32::try_from(replicas)?;
    let least = cluster
        .map_or(1, |cluster| cluster.least_copies(durability))
        .to_string();
    let mut new = NewTopic::new(
        topic,
        i32::try_from(first)?,
        TopicReplication::Fixed(replicas),
    );
    if let Some((name, value)) = setting {
        new = new.set(name, value);
    }
    if cluster.is_some() {
        new = new.set("min.insync.replicas", &least);
    }
    let options = AdminOptions::new()
        .request_timeout(Some(within))
        .operation_timeout(Some(within));
    let done = block_on(admin.create_topics(&[new], &options))??;
    for one in done {
        one.map_err(|(_, code)| anyhow!("{code}"))?;
    }
    if first < partitions {
        let more = NewPartitions::new(topic, partitions as usize);
        let done = block_on(admin.create_partitions(&[more], &options))??;
        for one in done {
            one.map_err(|(_, code)| anyhow!("{code}"))?;
        }
    }
    wait_until_led(address, topic, partitions)
}

/// Waits until every partition of a topic has a leader.
pub(super) fn wait_until_led(address: &str, topic: &str, partitions: u32) -> Result<()> {
    let within = CHANGE + EACH * partitions;
    let consumer: BaseConsumer = config(address).create()?;
    let begin = Instant::now();
    loop {
        let metadata = consumer.fetch_metadata(Some(topic), CHANGE)?;
        let found = metadata.topics().iter().find(|one| one.name() == topic);
        let led = found.map_or(0, |topic| {
            let led = topic.partitions().iter().filter(|one| one.leader() >= 0);
            led.count()
        });
        if led == partitions as usize {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < within,
            "only {led} of {partitions} partitions have a leader"
        );
        pause(LOOK_EVERY);
    }
}

/// Looks whether a topic that has records has so many copies. Kera lists those that hold some of a partition,
/// and of one without records its leader alone.
pub(super) fn check_copies(address: &str, topic: &str, wanted: u32) -> Result<()> {
    let wanted = usize::try_from(wanted)?;
    let consumer: BaseConsumer = config(address).create()?;
    let begin = Instant::now();
    loop {
        let metadata = consumer.fetch_metadata(Some(topic), CHANGE)?;
        let found = metadata.topics().iter().find(|one| one.name() == topic);
        let partitions = found.map_or(&[][..], |topic| topic.partitions());
        let copies = partitions.iter().map(|one| one.replicas().len());
        let most = copies.max().unwrap_or(0);
        if most == wanted {
            return Ok(());
        }
        // A broker hears of copies a little later than their owner does.
        ensure!(
            most < wanted && begin.elapsed() < COPIES,
            "topic {topic} has {most} copies in place of {wanted}"
        );
        pause(LOOK_EVERY);
    }
}

/// Waits until the ends of the first and the last partition are told, with records in one of them
/// at least.
pub(super) fn wait_until_served(address: &str, topic: &str, partitions: u32) -> Result<()> {
    let consumer: BaseConsumer = config(address).create()?;
    let last = i32::try_from(partitions)? - 1;
    let begin = Instant::now();
    loop {
        let end = |partition| consumer.fetch_watermarks(topic, partition, Duration::from_secs(1));
        let ends = end(0).and_then(|(_, first)| Ok(first + end(last)?.1));
        match ends {
            Ok(records) if records > 0 => return Ok(()),
            result => ensure!(
                begin.elapsed() < START,
                "not after {START:?} ({})",
                result.map_or_else(|error| error.to_string(), |_| "it is empty".into())
            ),
        }
        pause(Duration::from_millis(1));
    }
}

/// Deletes a topic.
pub(super) fn delete(address: &str, topic: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = config(address).create()?;
    let options = AdminOptions::new()
        .request_timeout(Some(CHANGE))
        .operation_timeout(Some(CHANGE));
    let done = block_on(admin.delete_topics(&[topic], &options))?;
    for one in done.context("the request failed")? {
        one.map_err(|(_, code)| anyhow!("{code}"))?;
    }
    Ok(())
}

/// Waits until a broker without topics has removed their files: what is not removed would be
/// written to the disk during somebody else's run.
pub(super) fn wait_until_freed(data: &Path) {
    let begin = Instant::now();
    while disk::used(data) > EMPTY && begin.elapsed() < CHANGE {
        pause(LOOK_EVERY);
    }
}
