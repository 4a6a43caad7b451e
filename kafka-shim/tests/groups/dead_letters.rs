//! What share groups give up goes to their dead-letter topics (KIP-1191).

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, DeleteRecordsRequest, DeleteRecordsResponse, ProduceRequest, ProduceResponse,
};
use kera_coordinator::classic::shares::{ShareOpen, ShareWrite};
use kera_coordinator::classic::{Reply, Request};
use kera_coordinator::share::ShareState;
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_metadata::{Cleanup, StreamConfig};
use kera_protocol::batch::{BatchBuilder, Compression, Header, NewRecord, ProducerStamp};
use uuid::Uuid;

use crate::common::shares::{ACCEPT, REJECT, RELEASE, Sharer, acquired, alter, dead_letters};
use crate::common::{Client, PATIENCE, World};
use crate::shares::{begin, send};
use crate::topic;

/// Kafka's numbers of a topic and of a group among resources.
const TOPIC: i8 = 2;
const GROUP: i8 = 32;
const TO: &str = "errors.deadletterqueue.topic.name";
const COPY: &str = "errors.deadletterqueue.copy.record.enable";
const ENABLE: &str = "errors.deadletterqueue.group.enable";

/// A topic for dead letters.
fn for_dead_letters(world: &World, name: &str) {
    let config = StreamConfig {
        dead_letters: true,
        ..StreamConfig::default()
    };
    world.create(name, config);
}

/// A batch of records with these keys and headers, compressed; their values are `v0`, `v1` and so on.
fn compressed(keys: &[Option<&str>], headers: &[Header<'_>]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (number, key) in keys.iter().enumerate() {
        let value = format!("v{number}");
        let record = NewRecord {
            key: key.map(str::as_bytes),
            value: Some(value.as_bytes()),
            headers,
            timestamp: 1_000,
        };
        builder.push(&record).unwrap();
    }
    let batch = builder.finish(Compression::Gzip, ProducerStamp::NONE);
    batch.unwrap()
}

async fn send_batch(client: &mut Client, name: &str, batch: Bytes) {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(batch));
    let data = TopicProduceData::default()
        .with_name(topic(name))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![data]);
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
}

/// Sends records with a header, compressed, to a topic.
async fn send_compressed(client: &mut Client, name: &str, records: usize) {
    let header = Header {
        key: "trace",
        value: Some(b"17"),
    };
    let keys = vec![Some("k"); records];
    send_batch(client, name, compressed(&keys, &[header])).await;
}

/// Looks until so many records that were given up could be written nowhere.
async fn unwritten(world: &World, count: u64) {
    let counts = &world.broker.shared().shares.counts;
    let looks = async {
        while counts.unwritten_dead_letters.get() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let looks = tokio::time::timeout(PATIENCE, looks).await;
    looks.expect("it is given up");
    assert_eq!(counts.unwritten_dead_letters.get(), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_or_delivered_too_often_is_a_dead_letter_with_its_record() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.g");
    let mut one = world.client().await;
    let set = [
        (TO, "dlq.g"),
        (COPY, "true"),
        ("share.delivery.count.limit", "2"),
    ];
    let stream = begin(&world, &mut one, &set).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send_compressed(&mut one, "t", 6).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 5, 1)]);
    assert_eq!(a.say(&mut one, stream, 0, (1, 2), REJECT).await, 0);
    assert_eq!(a.say(&mut one, stream, 0, (0, 0), RELEASE).await, 0);
    assert_eq!(a.say(&mut one, stream, 0, (3, 5), ACCEPT).await, 0);
    let rejected = dead_letters(&mut one, "dlq.g", 0, 2).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 0, 2)]);
    assert_eq!(a.say(&mut one, stream, 0, (0, 0), RELEASE).await, 0);
    let all = dead_letters(&mut one, "dlq.g", 0, 3).await;
    assert_eq!(rejected.len(), 2);
    let expected = [
        ("1", "1", "rejected"),
        ("2", "1", "rejected"),
        ("0", "2", "delivered"),
    ];
    for (letter, (offset, deliveries, why)) in all.iter().zip(expected) {
        assert_eq!(letter.told("topic"), "t");
        assert_eq!(letter.told("partition"), "0");
        assert_eq!(letter.told("group"), "g");
        assert_eq!(letter.told("offset"), offset);
        assert_eq!(letter.told("delivery.count"), deliveries);
        assert!(letter.told("message").contains(why), "{letter:?}");
        assert_eq!(letter.headers["trace"], "17", "{letter:?}");
        assert_eq!(letter.key.as_deref(), Some("k"));
        assert_eq!(letter.value.as_deref(), Some(&*format!("v{offset}")));
    }
    let counts = &world.broker.shared().shares.counts;
    assert_eq!(counts.dead_letters.get(), 3);
    assert_eq!(counts.unwritten_dead_letters.get(), 0);
    // They are done.
    send_compressed(&mut one, "t", 1).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(6, 6, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_copies_a_dead_letter_tells_where_it_comes_from_alone() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.g");
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[(TO, "dlq.g")]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send_compressed(&mut one, "t", 2).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 1, 1)]);
    assert_eq!(a.say(&mut one, stream, 0, (1, 1), REJECT).await, 0);
    let letters = dead_letters(&mut one, "dlq.g", 0, 1).await;
    assert_eq!(letters[0].told("offset"), "1");
    assert_eq!((&letters[0].key, &letters[0].value), (&None, &None));
    assert!(!letters[0].headers.contains_key("trace"));
}

/// Compressed, a million headers of no bytes are a few thousand bytes. The owner holds no copy that the topic would not take.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_more_headers_than_the_topic_takes_is_a_letter_without_them() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.g");
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[(TO, "dlq.g"), (COPY, "true")]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    let empty = Header {
        key: "",
        value: None,
    };
    let many = compressed(&[Some("k")], &vec![empty; 1_000_000]);
    assert!(many.len() < 5_000, "{}", many.len());
    send_batch(&mut one, "t", many).await;
    send_compressed(&mut one, "t", 1).await;
    let mut got = a.acquire(&mut one, stream, 0).await;
    if got == [(0, 0, 1)] {
        got = a.acquire(&mut one, stream, 0).await;
    }
    assert_eq!(got.last().map(|run| run.1), Some(1));
    assert_eq!(a.say(&mut one, stream, 0, (0, 1), REJECT).await, 0);
    let letters = dead_letters(&mut one, "dlq.g", 0, 2).await;
    assert!(letters[0].told("message").contains("too large"));
    assert_eq!((&letters[0].key, &letters[0].value), (&None, &None));
    assert_eq!(letters[1].value.as_deref(), Some("v0"));
    assert_eq!(letters[1].headers["trace"], "17");
}

/// A compacted topic takes no letter without a key. The others of the batch are there all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_topic_does_not_take_costs_no_other_record_its_letter() {
    let world = World::start().await;
    let config = StreamConfig {
        dead_letters: true,
        cleanup: Cleanup::Compact,
        ..StreamConfig::default()
    };
    world.create("dlq.g", config);
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[(TO, "dlq.g"), (COPY, "true")]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    let keys: Vec<Option<&str>> = (0..40)
        .map(|at| (![0, 17, 18, 39].contains(&at)).then_some("k"))
        .collect();
    send_batch(&mut one, "t", compressed(&keys, &[])).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 39, 1)]);
    assert_eq!(a.say(&mut one, stream, 0, (0, 39), REJECT).await, 0);
    unwritten(&world, 4).await;
    let letters = dead_letters(&mut one, "dlq.g", 0, 36).await;
    let offsets = letters.iter().map(|letter| letter.told("offset"));
    let with_keys = (0..40).filter(|at| keys[*at].is_some());
    let with_keys: Vec<String> = with_keys.map(|at| at.to_string()).collect();
    assert_eq!(offsets.collect::<Vec<_>>(), with_keys);
}

/// A member of a group whose dead letters go to a topic, with ten records of another that it has acquired.
async fn of_group(
    client: &mut Client,
    group: &'static str,
    source: (&str, Uuid),
    to: &str,
) -> Sharer {
    let set = [(TO, to), ("share.auto.offset.reset", "earliest")];
    assert_eq!(alter(client, GROUP, group, &set).await, 0);
    let mut a = Sharer::new(group, "a");
    a.beat(client, 0, source.0).await;
    assert_eq!(a.acquire(client, source.1, 0).await, [(0, 9, 1)]);
    a
}

/// As with Kafka a group goes on where its dead letters cannot be written. An operator sees that by a metric.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_dead_letter_holds_up_no_group() {
    let world = World::start().await;
    for_dead_letters(&world, "letters");
    for_dead_letters(&world, "dlq.source");
    world.topic("dlq.plain", 1);
    let mut one = world.client().await;
    let id = |name: &str| {
        world
            .broker
            .shared()
            .data
            .catalog
            .named(name)
            .unwrap()
            .id()
            .0
    };
    let source = ("dlq.source", id("dlq.source"));
    send_compressed(&mut one, source.0, 10).await;
    let groups = [
        ("g1", "dlq.none"),
        ("g2", "dlq.plain"),
        ("g3", "letters"),
        ("g4", "dlq.source"),
    ];
    for (at, (group, to)) in groups.into_iter().enumerate() {
        let mut client = world.client().await;
        let mut a = of_group(&mut client, group, source, to).await;
        let stream = source.1;
        assert_eq!(a.say(&mut client, stream, 0, (0, 8), REJECT).await, 0);
        unwritten(&world, 9 * (at as u64 + 1)).await;
        // All that was given up is done, and the last one is all that may come again.
        assert_eq!(a.say(&mut client, stream, 0, (9, 9), RELEASE).await, 0);
        assert_eq!(a.acquire(&mut client, stream, 0).await, [(9, 9, 2)]);
        if to == "dlq.plain" {
            // It counts at once that an operator lets the topic have them.
            assert_eq!(alter(&mut one, TOPIC, to, &[(ENABLE, "true")]).await, 0);
            assert_eq!(a.say(&mut client, stream, 0, (9, 9), REJECT).await, 0);
            let letters = dead_letters(&mut one, to, 0, 1).await;
            assert_eq!(letters[0].told("offset"), "9");
        }
    }
    assert_eq!(world.broker.shared().shares.counts.dead_letters.get(), 1);
    let invalid = ResponseError::InvalidConfig.code();
    for wrong in ["__consumer_offsets", "_kera.groups"] {
        assert_eq!(alter(&mut one, GROUP, "g5", &[(TO, wrong)]).await, invalid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_for_dead_letters_is_made_where_operators_allow_that() {
    let world = World::with(|config| {
        config.kafka.auto_create_dead_letters = true;
        config.kafka.dead_letter_prefix = Some("dead.".into());
    })
    .await;
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[(TO, "dead.g"), (COPY, "true")]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 2).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 1, 1)]);
    let catalog = &world.broker.shared().data.catalog;
    assert!(catalog.named("dead.g").is_none());
    assert_eq!(a.say(&mut one, stream, 0, (0, 1), REJECT).await, 0);
    let letters = dead_letters(&mut one, "dead.g", 0, 2).await;
    assert_eq!(letters[1].value.as_deref(), Some("v1"));
    let made = catalog.named("dead.g").expect("it is made");
    assert!(made.record.load().config.dead_letters);
}

/// Has it kept where the group stands in the partition, as an owner does that goes before it writes a dead letter.
async fn keep(world: &World, state: ShareState) {
    let shared = world.broker.shared();
    let ask = |request: Request| async move {
        let request = AnyRequest::Classic(request);
        match shared.coordination.call(shared, "g", request).await {
            Ok(AnyReply::Classic(reply)) => reply,
            other => panic!("{other:?}"),
        }
    };
    let id = shared.data.catalog.named("t").unwrap().id();
    let open = ShareOpen {
        group: "g".into(),
        stream: id,
        partition: 0,
        owner_epoch: 0,
    };
    let Reply::ShareOpened(opened) = ask(Request::ShareOpen(open)).await else {
        panic!("it begins");
    };
    let write = ShareWrite {
        group: "g".into(),
        stream: id,
        partition: 0,
        state_epoch: opened.state_epoch,
        state,
    };
    assert_eq!(ask(Request::ShareWrite(write)).await, Reply::ShareWritten);
}

/// An owner has what it gives up kept before it writes a dead letter. One that goes between the two leaves that to the next.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_gave_up_before_it_went_is_a_dead_letter_of_the_next_one() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.g");
    let mut one = world.client().await;
    let set = [
        (TO, "dlq.g"),
        (COPY, "true"),
        ("share.delivery.count.limit", "3"),
    ];
    let stream = begin(&world, &mut one, &set).await;
    Sharer::new("g", "a").beat(&mut one, 0, "t").await;
    send(&mut one, 5).await;
    // The first came back after its third delivery, the second was rejected after its first, the third is to come again.
    let state = ShareState::of(0, &[1, 3 << 1 | 1, 1, 1 << 1 | 1, 1, 1 << 1]);
    keep(&world, state).await;
    let World { broker, dir, .. } = world;
    drop(one);
    broker.shutdown().await;

    let world = World::at(dir, |_| {}).await;
    let mut one = world.client().await;
    let mut a = Sharer::new("g", "a");
    let got = a.acquire(&mut one, stream, 0).await;
    assert_eq!(got.first(), Some(&(2, 2, 2)), "{got:?}");
    let letters = dead_letters(&mut one, "dlq.g", 0, 2).await;
    for (letter, (offset, deliveries, why)) in letters
        .iter()
        .zip([("0", "3", "delivered"), ("1", "1", "rejected")])
    {
        assert_eq!(letter.told("offset"), offset);
        assert_eq!(letter.told("delivery.count"), deliveries);
        assert!(letter.told("message").contains(why), "{letter:?}");
        assert_eq!(letter.value.as_deref(), Some(&*format!("v{offset}")));
    }
    // They are done for good: nothing is written again, and no other gets them.
    a.epoch = -1;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, 0);
    let mut b = Sharer::new("g", "b");
    let again = acquired(&b.fetch(&mut one, stream, 0, 500).await);
    assert_eq!(again.first().map(|run| run.0), Some(2), "{again:?}");
    dead_letters(&mut one, "dlq.g", 0, 2).await;
}

/// Retention may take what is given up before it is a letter. A letter does not need its record.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_trimmed_since_it_was_given_up_is_a_letter_all_the_same() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.g");
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[(TO, "dlq.g"), (COPY, "true")]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 5).await;
    keep(&world, ShareState::of(0, &[3, 1 << 1 | 1])).await;
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(2);
    let of = DeleteRecordsTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![of]);
    let deleted: DeleteRecordsResponse = one.call(ApiKey::DeleteRecords, 2, &request).await;
    assert_eq!(deleted.topics[0].partitions[0].low_watermark, 2);
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(3, 4, 1)]);
    let letters = dead_letters(&mut one, "dlq.g", 0, 3).await;
    let told: Vec<_> = letters
        .iter()
        .map(|letter| (letter.told("offset"), letter.value.as_deref()))
        .collect();
    assert_eq!(told, [("0", None), ("1", None), ("2", Some("v2"))]);
    let counts = &world.broker.shared().shares.counts;
    assert_eq!(counts.unwritten_dead_letters.get(), 0);
}

/// A group whose members never go hears of its topic all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_set_changed_or_taken_back_counts_for_members_that_are_there() {
    let world = World::start().await;
    for_dead_letters(&world, "dlq.a");
    for_dead_letters(&world, "dlq.b");
    let (mut one, mut operator) = (world.client().await, world.client().await);
    let stream = begin(&world, &mut one, &[]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 7).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 6, 1)]);
    let steps = [("dlq.a", 0), ("dlq.b", 2), ("", 4), ("dlq.b", 5)];
    for (to, first) in steps {
        assert_eq!(alter(&mut operator, GROUP, "g", &[(TO, to)]).await, 0);
        let last = if to.is_empty() { first } else { first + 1 };
        assert_eq!(
            a.say(&mut one, stream, 0, (first, last), REJECT).await,
            0,
            "{to}"
        );
        let offsets = match (to, first) {
            ("dlq.a", _) => vec!["0", "1"],
            ("dlq.b", 2) => vec!["2", "3"],
            ("dlq.b", _) => vec!["2", "3", "5", "6"],
            _ => continue,
        };
        let letters = dead_letters(&mut operator, to, 0, offsets.len()).await;
        let told = letters.iter().map(|letter| letter.told("offset"));
        assert_eq!(told.collect::<Vec<_>>(), offsets);
    }
    dead_letters(&mut operator, "dlq.a", 0, 2).await;
    let counts = &world.broker.shared().shares.counts;
    assert_eq!(counts.unwritten_dead_letters.get(), 0);
}
