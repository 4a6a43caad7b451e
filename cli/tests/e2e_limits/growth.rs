//! Lanes that grow in number under load.

use std::collections::BTreeMap;

use kera_consumer::{ConsumeError, Consumer};
use kera_producer::{Producer, Record};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::common::{Broker, PATIENCE};

const KEYS: u64 = 40;
const CONSUMERS: usize = 3;
/// Records of each key with each number of lanes.
const ROUNDS: u64 = 400;

/// When consumers begin to read.
enum Consumers {
    AtOnce,
    /// Once all records are there, those of every number of lanes.
    Afterwards,
}

/// Key and number of a record.
type Read = (u64, u64);

async fn consume(address: String, reads: Sender<Read>, mut stop: watch::Receiver<bool>) {
    let mut consumer = Consumer::builder()
        .bootstrap(address)
        .stream("s")
        .group("g")
        .open()
        .await
        .expect("a consumer can be opened");
    loop {
        let batch = tokio::select! {
            batch = consumer.next_batch() => batch.expect("a batch"),
            _ = stop.wait_for(|stop| *stop) => break,
        };
        for record in batch.records() {
            let record = record.expect("a record");
            let number = |bytes: Option<&[u8]>| {
                let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
                u64::from_le_bytes(bytes.expect("eight bytes"))
            };
            let read = (number(record.key), number(record.value));
            if reads.send(read).await.is_err() {
                return;
            }
        }
    }
    let closed: Result<(), ConsumeError> = consumer.close().await;
    closed.expect("a consumer can be closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_while_lanes_grow() {
    let broker = block_in_place(Broker::start);
    let described =
        grow_under_load(&broker, "2", "--lanes", &[2, 3, 4, 5, 6], Consumers::AtOnce).await;
    assert_eq!(described["lanes"], 6);
    assert_eq!(described["partitions"], 12);
}

/// Keys move between streamlets here, so that the new lanes of one wait for the old ones of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_while_partitions_grow_to_any_number() {
    let broker = block_in_place(Broker::start);
    let steps = [6, 7, 13, 16];
    let described = grow_under_load(&broker, "4", "--partitions", &steps, Consumers::AtOnce).await;
    assert_eq!(described["partitions"], 16);
    let lanes = described["lane_descriptions"].as_array().expect("lanes");
    assert_eq!(lanes.len(), 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_in_order_for_who_reads_after_partitions_have_grown() {
    let broker = block_in_place(Broker::start);
    let steps = [6, 7, 13];
    let described =
        grow_under_load(&broker, "4", "--partitions", &steps, Consumers::Afterwards).await;
    assert_eq!(
        (&described["partitions"], &described["lanes"]),
        (&13.into(), &4.into())
    );
}

/// Grows a stream step by step with a producer and consumers at work; every key's records are read once
/// and in order. What is described of it afterwards.
async fn grow_under_load(
    broker: &Broker,
    streamlets: &str,
    setting: &str,
    steps: &[u32],
    consumers: Consumers,
) -> serde_json::Value {
    block_in_place(|| broker.run(&["stream", "create", "s", "--streamlets", streamlets]));
    let (to_us, mut reads) = channel(1024);
    let (stop, stopped) = watch::channel(false);
    let begin = || -> Vec<_> {
        (0..CONSUMERS)
            .map(|_| consume(broker.address().to_owned(), to_us.clone(), stopped.clone()))
            .map(tokio::spawn)
            .collect()
    };
    let mut consuming = match consumers {
        Consumers::AtOnce => begin(),
        Consumers::Afterwards => Vec::new(),
    };

    let all = (steps.len() as u64 + 1) * ROUNDS;
    let checking = tokio::spawn(async move {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..KEYS * all {
            let read = timeout(PATIENCE, reads.recv()).await;
            let (key, number) = read.expect("records arrive").expect("consumers live");
            let next = next.entry(key).or_default();
            assert_eq!(number, *next, "key {key}");
            *next += 1;
        }
        reads
    });

    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .batch_size(1 << 10)
        .build()
        .await
        .expect("a producer can be built");
    let sender = producer.clone();
    let (reached, mut progress) = watch::channel(0);
    let sending = tokio::spawn(async move {
        for number in 0..all {
            for key in 0..KEYS {
                let (key, value) = (key.to_le_bytes(), number.to_le_bytes());
                let sent = sender.append_wait(&Record::keyed(&key, &value)).await;
                sent.expect("a record is taken");
            }
            let _ = reached.send(number);
        }
    });
    // In the middle of each part, with the producer at work.
    for (number, count) in (1..).zip(steps) {
        let middle = number * ROUNDS - ROUNDS / 2;
        let due = progress.wait_for(|number| *number >= middle);
        due.await.expect("the producer lives");
        let count = count.to_string();
        block_in_place(|| broker.run(&["stream", "alter", "s", setting, &count]));
    }
    sending.await.expect("the producer does not panic");
    producer.close().await.expect("everything is stored");
    if consuming.is_empty() {
        consuming = begin();
    }
    drop(to_us);
    let mut reads = checking.await.expect("every key is read in order, once");

    let described = block_in_place(|| broker.json(&["stream", "describe", "s"]));
    let used = described["lane_descriptions"].as_array().expect("lanes");
    let used = used
        .iter()
        .filter(|lane| lane["head_ordinal"].as_u64() > Some(0));
    assert!(used.count() > 2, "the new lanes are used");
    // And nothing more comes.
    stop.send_replace(true);
    for consumer in consuming {
        consumer.await.expect("a consumer does not panic");
    }
    assert_eq!(reads.recv().await, None, "nothing is read twice");
    described
}
