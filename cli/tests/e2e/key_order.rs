//! `--order key`: more consumers than lanes, and the records of each key in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kera_consumer::{Consumer, Order};
use kera_producer::{Producer, Record};
use tokio::sync::{oneshot, watch};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::common::{Broker, PATIENCE};

const CONSUMERS: usize = 8;
const KEYS: u64 = 100;
const ROUNDS: u64 = 60;
/// The consumer that is killed.
const KILLED: usize = 3;

/// What was delivered, in the order in which it was.
#[derive(Default)]
struct Deliveries {
    /// By key, who got each of its records last.
    by_key: BTreeMap<u64, Vec<usize>>,
    by_consumer: [u64; CONSUMERS],
    again: u64,
    is_killed: bool,
}

impl Deliveries {
    fn note(&mut self, consumer: usize, key: u64, number: u64) {
        self.by_consumer[consumer] += 1;
        let got = self.by_key.entry(key).or_default();
        let number = number as usize;
        assert!(
            number <= got.len(),
            "{number} of key {key} came after {}",
            got.len()
        );
        if number < got.len() {
            // It comes again: each consumer that had it, or a later one of its key, was killed before its commit.
            let of_killed = got[number..].iter().all(|last| *last == KILLED);
            assert!(
                self.is_killed && of_killed && consumer != KILLED,
                "{number} of key {key} came to consumer {consumer} after {:?}",
                &got[number..]
            );
            self.again += 1;
            got.truncate(number);
        }
        got.push(consumer);
    }

    fn are_all(&self) -> bool {
        self.by_key.len() as u64 == KEYS
            && self.by_key.values().all(|got| got.len() as u64 == ROUNDS)
    }
}

/// Consumes until it is told to end. A consumer that is killed commits nothing more, and leaves no group.
async fn consume(
    address: String,
    number: usize,
    deliveries: Arc<watch::Sender<Deliveries>>,
    end: oneshot::Receiver<()>,
) {
    let session = match number {
        KILLED => Duration::from_secs(6),
        _ => Duration::from_secs(30),
    };
    let mut consumer = Consumer::builder()
        .bootstrap(&address)
        .stream("s")
        .group("g")
        .client_name(format!("c{number}"))
        .order(Order::Key)
        .session(session)
        .auto_commit(Duration::from_millis(20))
        .open()
        .await
        .expect("a consumer can be opened");
    let consuming = async {
        loop {
            let batch = consumer.next_batch().await.expect("a batch");
            let number_of = |bytes: Option<&[u8]>| -> u64 {
                let text = std::str::from_utf8(bytes.expect("it is there"));
                text.expect("text").parse().expect("a number")
            };
            deliveries.send_modify(|deliveries| {
                for record in batch.records() {
                    let record = record.expect("it decodes");
                    deliveries.note(number, number_of(record.key), number_of(record.value));
                }
            });
        }
    };
    tokio::select! {
        () = consuming => {}
        _ = end => {}
    }
    match number {
        KILLED => std::mem::forget(consumer),
        _ => consumer.close().await.expect("it leaves"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_consumers_of_two_lanes_get_each_key_in_order_while_lanes_grow_and_one_dies() {
    let broker = block_in_place(Broker::start);
    block_in_place(|| {
        broker.run(&[
            "stream",
            "create",
            "s",
            "--streamlets",
            "2",
            "--lanes",
            "1",
            "--lane-by",
            "key",
        ])
    });
    let deliveries = Arc::new(watch::Sender::new(Deliveries::default()));
    let mut ends = Vec::new();
    let mut threads = Vec::new();
    for number in 0..CONSUMERS {
        let (end, ended) = oneshot::channel();
        let consuming = consume(
            broker.address().to_owned(),
            number,
            deliveries.clone(),
            ended,
        );
        // A runtime for each: what ends with it ends at once.
        threads.push(Some(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(consuming);
        })));
        ends.push(Some(end));
    }
    let is_there = |groups: &serde_json::Value| groups.as_array().is_some_and(|g| !g.is_empty());
    block_in_place(|| broker.until(&["group", "list"], is_there));
    let all_hold_some = |described: &serde_json::Value| {
        let lanes = described["lanes"].as_array().expect("lanes");
        let leases = lanes.iter().flat_map(|lane| lane["leases"].as_array());
        let members: BTreeSet<_> = leases
            .flatten()
            .map(|lease| &lease["member"])
            .map(|m| m.as_str())
            .collect();
        members.len() == CONSUMERS
    };
    block_in_place(|| broker.until(&["group", "describe", "g"], all_hold_some));
    let told = block_in_place(|| broker.run(&["group", "describe", "g"]));
    assert!(
        told.contains("order key") && told.contains("SLICES"),
        "{told}"
    );

    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .batch_size(1 << 10)
        .build()
        .await
        .expect("a producer can be built");
    let mut delivered = deliveries.subscribe();
    let produce = async {
        for round in 0..ROUNDS {
            for key in 0..KEYS {
                let (key, value) = (key.to_string(), round.to_string());
                let record = Record::keyed(key.as_bytes(), value.as_bytes());
                producer.append_wait(&record).await.expect("it is taken");
            }
            producer.flush().await.expect("all is stored");
            // Keys move among lanes of a streamlet, and then between streamlets.
            let grown = match round {
                15 => ["stream", "alter", "s", "--lanes", "2"],
                35 => ["stream", "alter", "s", "--partitions", "5"],
                _ => continue,
            };
            block_in_place(|| broker.run(&grown));
        }
    };
    let kill = async {
        let gets_some = delivered.wait_for(|all| all.by_consumer[KILLED] > 0);
        let gets_some = timeout(PATIENCE, gets_some).await;
        drop(gets_some.expect("it gets some").expect("it is told"));
        ends[KILLED].take().map(|end| end.send(()));
        let thread = threads[KILLED].take().expect("it runs");
        block_in_place(|| thread.join()).expect("it does not panic");
        deliveries.send_modify(|all| all.is_killed = true);
    };
    tokio::join!(produce, kill);
    let all = timeout(PATIENCE, delivered.wait_for(Deliveries::are_all)).await;
    drop(all.expect("all records are delivered").expect("it is told"));
    // Slices without records of their own get there as well.
    let is_consumed = |described: &serde_json::Value| described["lag"] == 0;
    block_in_place(|| broker.until(&["group", "describe", "g"], is_consumed));
    for end in ends.into_iter().flatten() {
        let _ = end.send(());
    }
    for thread in threads.into_iter().flatten() {
        block_in_place(|| thread.join()).expect("no consumer panics");
    }
    let by_consumer = deliveries.borrow().by_consumer;
    assert!(by_consumer.iter().all(|got| *got > 0), "{by_consumer:?}");
    let lag = block_in_place(|| broker.json(&["group", "describe", "g"]))["lag"].clone();
    assert_eq!(lag, 0);
}

/// How many slices are told as `0-15,40`.
fn slices_of(told: &str) -> u64 {
    let number = |text: &str| -> u64 { text.parse().expect("a number") };
    let ranges = told.split(',').map(|range| match range.split_once('-') {
        Some((first, last)) => number(last) - number(first) + 1,
        None => 1,
    });
    ranges.sum()
}

/// Consumers of one lane.
const SHARERS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_keys_large_keys_and_records_without_a_key_each_go_to_one_of_four() {
    let broker = block_in_place(Broker::start);
    block_in_place(|| broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]));
    let mut consumers = Vec::new();
    for _ in 0..SHARERS {
        let consumer = Consumer::builder()
            .bootstrap(broker.address())
            .stream("s")
            .group("g")
            .order(Order::Key)
            .auto_commit(Duration::from_millis(20));
        consumers.push(consumer.open().await.expect("a consumer can be opened"));
    }
    // None has more than an eighth too much or too little, and each has one lease: nothing moves any more.
    let all_hold_a_fourth = |described: &serde_json::Value| {
        let leases = described["lanes"][0]["leases"].as_array();
        let leases = leases.map_or(&[][..], Vec::as_slice);
        let members: BTreeSet<_> = leases.iter().map(|l| l["member"].as_str()).collect();
        let shares = leases.iter().filter_map(|lease| lease["slices"].as_str());
        members.len() == SHARERS
            && leases.len() == SHARERS
            && shares
                .map(slices_of)
                .all(|slices| (14..=18).contains(&slices))
    };
    block_in_place(|| broker.until(&["group", "describe", "g"], all_hold_a_fourth));

    let large = vec![b'k'; 300_000];
    let keys: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"\0"), Some(&large), None];
    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .build()
        .await
        .expect("a producer can be built");
    const RECORDS: usize = 400;
    for number in 0..RECORDS {
        let value = number.to_string();
        let record = Record {
            key: keys[number % keys.len()],
            ..Record::of_value(value.as_bytes())
        };
        producer.append_wait(&record).await.expect("it is taken");
    }
    producer.flush().await.expect("all is stored");

    let (got, mut gets) = tokio::sync::mpsc::channel(RECORDS);
    for (number, mut consumer) in consumers.into_iter().enumerate() {
        let got = got.clone();
        tokio::spawn(async move {
            let mut records = consumer.records();
            while let Some(record) = records.next().await {
                let record = record.expect("a record");
                if got.send((number, record)).await.is_err() {
                    break;
                }
            }
        });
    }
    let mut by_key: BTreeMap<_, (usize, Vec<usize>)> = BTreeMap::new();
    let mut keyless = BTreeMap::new();
    for _ in 0..RECORDS {
        let next = timeout(PATIENCE, gets.recv()).await;
        let (consumer, record) = next.expect("it is delivered").expect("they run");
        let value = record.value.expect("it has a value");
        let number: usize = std::str::from_utf8(&value).unwrap().parse().unwrap();
        assert_eq!(record.key.as_deref(), keys[number % keys.len()], "{number}");
        let Some(key) = record.key else {
            assert_eq!(keyless.insert(record.ordinal, consumer), None);
            continue;
        };
        let (of, numbers) = by_key.entry(key).or_insert((consumer, Vec::new()));
        assert_eq!(*of, consumer, "{number}: a key has one consumer");
        numbers.push(number);
    }
    assert_eq!(by_key.len(), 3);
    for (_, numbers) in by_key.values() {
        assert!(numbers.is_sorted() && numbers.len() == RECORDS / keys.len());
    }
    // Without a key they go round.
    let mut consumers = BTreeMap::new();
    for (ordinal, consumer) in keyless {
        let of = consumers.entry(ordinal % 64).or_insert(consumer);
        assert_eq!(*of, consumer, "{ordinal}");
    }
    assert_eq!(consumers.values().collect::<BTreeSet<_>>().len(), SHARERS);
    let is_consumed = |described: &serde_json::Value| described["lag"] == 0;
    block_in_place(|| broker.until(&["group", "describe", "g"], is_consumed));
}

#[test]
fn the_command_consumes_by_key_and_groups_of_other_orders_are_refused() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "2"]);
    let lines: String = (0..2_000).map(|n| format!("key{},{n}\n", n % 50)).collect();
    let produce = [
        "produce",
        "s",
        "-q",
        "--key-separator",
        ",",
        "--batch-size",
        "1KiB",
    ];
    broker.feed(&produce, lines.as_bytes());
    let consume = ["consume", "s", "--group", "g", "--order", "key"];
    let mut newest = BTreeMap::new();
    for line in broker.run(&consume).lines() {
        let number: u64 = line.parse().expect("a number");
        let before = newest.insert(number % 50, number);
        assert_eq!(before.map_or(number % 50, |before| before + 50), number);
    }
    assert_eq!(newest.len(), 50);
    assert!(newest.values().all(|number| *number >= 1_950));
    assert_eq!(broker.run(&consume), "", "all of it is committed");
    let said = broker.refused(&["consume", "s", "--group", "g", "--order", "lane"]);
    assert!(said.contains("order=key"), "{said}");
    let list = broker.json(&["group", "list"]);
    assert_eq!(
        (&list[0]["order"], &list[0]["lag"]),
        (&"key".into(), &0.into())
    );
}
