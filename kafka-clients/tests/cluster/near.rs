//! Clients that name their rack read closed groups from the broker there that holds copies: all records
//! once and in order, whatever becomes of that broker and its copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::common::records::unhex;
use crate::common::{Kind, PATIENCE, Session, machine, until};
use crate::etcd::Etcd;
use crate::nodes::{BROKERS, Nodes, rack};

const STREAM: &str = "near";
/// About three and a half groups.
const RECORDS: usize = 3_600;
/// Of groups of 128 KiB.
const SEGMENT: &str = "64KiB";

fn value(number: usize) -> String {
    format!("{number:08} {}", "v".repeat(100))
}

fn number(value: &[u8]) -> usize {
    let text = std::str::from_utf8(&value[..8]).expect("digits");
    text.parse().expect("a number")
}

/// Brokers in racks, with a stream in small groups of which only the newest is open.
struct Filled {
    nodes: Nodes,
    /// A broker that does not own it.
    near: usize,
}

impl Filled {
    fn start() -> Self {
        let nodes = Nodes::in_racks();
        let words = [
            "stream",
            "create",
            // An attempt whose answer was lost may have made it.
            "--if-not-exists",
            STREAM,
            "--streamlets",
            "1",
            "--lanes",
            "1",
            "--segment-size",
            SEGMENT,
            "--segments-per-group",
            "2",
            "--replicas",
            "3",
            "--min-insync-replicas",
            "2",
        ];
        until("the stream is created", || nodes.kera(&words).then_some(()));
        let mut filled = Self { nodes, near: 0 };
        filled.produce(0..RECORDS);
        let described = until("groups are closed, with all copies", || {
            let described = filled.describe();
            let groups = described["lane_descriptions"][0]["groups"].as_array()?;
            let closed = groups.iter().filter(|group| group["closed"] == true);
            let whole = described["under_replicated_groups"] == 0;
            (closed.count() >= 3 && whole).then_some(described)
        });
        let owner = described["owners"][0]["owner"].as_str().expect("an owner");
        filled.near = (filled.nodes.at(owner) + 1) % BROKERS;
        filled
    }

    fn describe(&self) -> Value {
        let words = ["stream", "describe", STREAM, "--json"];
        serde_json::from_str(&self.nodes.kera_says(&words)).expect("JSON")
    }

    fn produce(&self, numbers: std::ops::Range<usize>) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", self.nodes.bootstrap())
            .set("enable.idempotence", "true")
            .set("batch.size", "4096")
            .create()
            .expect("a producer can be made");
        for number in numbers {
            let value = value(number);
            let record = BaseRecord::<(), _>::to(STREAM).payload(&value).partition(0);
            producer.send(record).expect("there is room for a record");
            producer.poll(Duration::ZERO);
        }
        producer.flush(PATIENCE).expect("all records are stored");
    }

    /// Bytes that a broker served from copies.
    fn copy_bytes(&self, broker: usize) -> u64 {
        self.nodes.metric(broker, "kera_replica_read_bytes_total ")
    }

    /// A consumer of librdkafka near that broker, at the begin.
    fn consumer(&self, settings: &[(&str, &str)]) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.nodes.bootstrap())
            .set("group.id", "none")
            .set("client.rack", rack(self.near))
            .set("enable.auto.commit", "false")
            // A position that is reset shows itself.
            .set("auto.offset.reset", "latest")
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "200")
            .set("fetch.error.backoff.ms", "50")
            .set("log_level", "2");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let consumer: BaseConsumer = config.create().expect("a consumer can be made");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(STREAM, 0, Offset::Offset(0))
            .expect("an offset");
        consumer.assign(&list).expect("a partition is assigned");
        consumer
    }
}

/// Reads the records of these numbers, which must come next, each once.
fn read(consumer: &BaseConsumer, numbers: std::ops::Range<usize>) {
    let mut expected = numbers.start;
    until("all records are read", || {
        while expected < numbers.end {
            match consumer.poll(Duration::from_millis(200))? {
                Ok(message) => {
                    let found = number(message.payload().expect("a value"));
                    assert_eq!(found, expected, "offset {}", message.offset());
                    assert_eq!(message.offset(), expected as i64);
                    expected += 1;
                }
                Err(error) => eprintln!("a poll: {error}"),
            }
        }
        Some(())
    });
}

fn lacking(test: &str) -> bool {
    if let Some(reason) = Etcd::lacking() {
        machine::skip(test, &reason);
        return true;
    }
    false
}

#[test]
fn closed_groups_come_from_the_clients_rack() {
    if lacking("near::closed_groups_come_from_the_clients_rack") {
        return;
    }
    let filled = Filled::start();
    let mut kinds = vec![Kind::Librdkafka, Kind::Java, Kind::FranzGo];
    if cfg!(feature = "wider") {
        kinds.extend([Kind::Java3, Kind::Sarama, Kind::Confluent]);
    }
    let mut written = RECORDS;
    for kind in kinds {
        if !kind.is_here("near::closed_groups_come_from_the_clients_rack") {
            continue;
        }
        let before: Vec<_> = (0..BROKERS).map(|id| filled.copy_bytes(id)).collect();
        let bootstrap = filled.nodes.bootstrap();
        // Some take one address.
        let (first, _) = bootstrap.split_once(',').expect("several brokers");
        let mut client = Session::at(kind, kind.open(), first);
        client.consumer("c", json!({"rack": rack(filled.near), "reset": "latest"}));
        client.assign("c", STREAM, &[0], 0.into());
        let mut expected = 0;
        let mut take = |client: &mut Session, until: usize| {
            for record in client.read("c", until - expected) {
                let bytes = unhex(record.value.as_deref().expect("a value"));
                assert_eq!(number(&bytes), expected, "{}", kind.name());
                assert_eq!(record.offset, expected as i64);
                expected += 1;
            }
        };
        take(&mut client, written);
        let from_copies = filled.copy_bytes(filled.near) - before[filled.near];
        let others = (0..BROKERS).filter(|id| *id != filled.near);
        for id in others {
            assert_eq!(filled.copy_bytes(id), before[id], "{}", kind.name());
        }
        // Two groups at the least.
        assert!(
            from_copies > 2 * (120 << 10),
            "{}: {from_copies} bytes came from copies",
            kind.name()
        );
        // It is back at the owner, and goes on there.
        filled.produce(written..written + 100);
        written += 100;
        take(&mut client, written);
    }
}

#[test]
fn a_broker_that_dies_under_its_readers_costs_no_record() {
    if lacking("near::a_broker_that_dies_under_its_readers_costs_no_record") {
        return;
    }
    let mut filled = Filled::start();
    // Little is fetched ahead.
    let consumer = filled.consumer(&[
        ("queued.min.messages", "1"),
        ("max.partition.fetch.bytes", "8192"),
        ("fetch.queue.backoff.ms", "1"),
    ]);
    read(&consumer, 0..600);
    let served = filled.copy_bytes(filled.near);
    assert!(served > 8192, "{served} bytes came from copies");
    let near = filled.near;
    filled.nodes.kill(near);
    read(&consumer, 600..RECORDS);
    filled.produce(RECORDS..RECORDS + 50);
    read(&consumer, RECORDS..RECORDS + 50);
    filled.nodes.restart(near);
}

#[test]
fn a_copy_that_is_spoiled_is_left_for_the_owner() {
    if lacking("near::a_copy_that_is_spoiled_is_left_for_the_owner") {
        return;
    }
    let filled = Filled::start();
    let flushed = "kera_replica_store_replicas{state=\"flushed\"} ";
    until("copies are on the disk", || {
        (filled.nodes.metric(filled.near, flushed) >= 3).then_some(())
    });
    let described = filled.describe();
    let stream = described["id"].as_str().expect("an id");
    let group = &described["lane_descriptions"][0]["groups"][1];
    let (id, length) = (group["group"].as_u64(), group["bytes"].as_u64());
    let name = format!("{}.0.log", id.expect("a number"));
    let copies = filled.nodes.data(filled.near).join("backup").join(stream);
    let length = length.expect("a length") as usize;
    let spoiled = until("the copy is on the disk", || {
        let file = find(&copies, &name)?;
        let size = fs::metadata(&file).ok()?.len() as usize;
        (size >= length).then_some(file)
    });
    let mut bytes = fs::read(&spoiled).expect("the copy can be read");
    bytes[length / 4] ^= 1;
    fs::write(&spoiled, bytes).expect("the copy can be spoiled");
    let consumer = filled.consumer(&[]);
    read(&consumer, 0..RECORDS);
    let served = filled.copy_bytes(filled.near);
    assert!(served > 0, "what is whole comes from the copy");
    assert!(
        filled
            .nodes
            .log(filled.near)
            .contains("a replica of this broker cannot be read"),
        "it was met"
    );
}

fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
    }
    None
}
