//! Clients that use up their quotas: they are told to wait, and wait. Nothing here waits for time to pass but where a
//! rate is measured: a quota of one byte a second lets nobody go on before the test is over.

use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::messages::{
    ApiKey, FetchResponse, MetadataRequest, MetadataResponse, ProduceResponse,
};
use kera_broker::quotas::{self, Change};
use kera_metadata::quota::{QuotaEntity, Whom};
use kera_protocol::batch::{Compression, ProducerStamp};
use tokio::io::AsyncWriteExt;

use crate::common::{Client, PATIENCE, World, batch};
use crate::{fetching, producing};

const VERSION: i16 = 11;

/// Gives the clients of these tests a limit, or takes it away.
async fn limit(world: &World, name: &str, value: Option<f64>) {
    let change = Change {
        entity: QuotaEntity {
            client: Some(Whom::Name("test".to_owned())),
            ..QuotaEntity::default()
        },
        limits: vec![(name.to_owned(), value)],
    };
    let made = quotas::alter(world.broker.shared(), &[change], false).await;
    assert!(made.expect("it is stored").iter().all(Result::is_ok));
}

fn records(many: usize) -> Bytes {
    batch("value-", many, Compression::None, ProducerStamp::NONE)
}

/// 700 records, of which a request is not read before there is room for all of it.
fn large() -> Bytes {
    let value = "x".repeat(1000);
    batch(&value, 700, Compression::None, ProducerStamp::NONE)
}

async fn send(client: &mut Client, records: &Bytes) -> i32 {
    let request = producing::request("t", -1, &[(0, records.clone())]);
    client.send(ApiKey::Produce, VERSION, &request).await
}

/// The offset that a batch got, and how long the client is told to wait.
async fn placed(client: &mut Client, correlation: i32) -> (i64, i32) {
    let reply: ProduceResponse = client.receive(ApiKey::Produce, VERSION, correlation).await;
    let partition = &reply.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, 0, "a batch beyond a quota is stored");
    (partition.base_offset, reply.throttle_time_ms)
}

async fn topics(client: &mut Client) -> usize {
    let all = MetadataRequest::default().with_topics(None);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    reply.topics.len()
}

/// True if nothing has come: the broker was asked something else meanwhile, which it answered.
async fn is_silent(world: &World, client: &Client) -> bool {
    let mut other = world.client().await;
    topics(&mut other).await;
    let mut byte = [0];
    client.stream.try_read(&mut byte).is_err()
}

async fn no_connection_is_left(world: &World) {
    let connections = &world.broker.shared().connections;
    let gone = async {
        while connections.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("no connection is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_beyond_its_quota_is_told_to_wait_and_waits_until_it_is_raised() {
    let world = World::start().await;
    world.topic("t", 1);
    limit(&world, "producer_byte_rate", Some(1.0)).await;
    let (mut one, records) = (world.client().await, records(100));
    let first = send(&mut one, &records).await;
    // It is answered, although the connection waits.
    let (offset, throttle) = placed(&mut one, first).await;
    assert_eq!(offset, 0);
    let least = (records.len() as i32 - 2) * 1000;
    assert!(throttle >= least, "{throttle} of at least {least} ms");
    let second = send(&mut one, &records).await;
    // A new connection shares the debt; requests other than produce are answered.
    let mut two = world.client().await;
    assert!(topics(&mut two).await > 0);
    let third = send(&mut two, &records).await;
    assert!(is_silent(&world, &one).await, "it waits");
    assert!(is_silent(&world, &two).await, "it waits as well");
    // Raised: what is owed is nothing at this rate. Both go on, in some order.
    limit(&world, "producer_byte_rate", Some(1e12)).await;
    let (at, throttle) = placed(&mut one, second).await;
    let (other_at, other_throttle) = placed(&mut two, third).await;
    assert_eq!((throttle, other_throttle), (0, 0));
    assert_eq!(at + other_at, 300, "at 100 and 200");
}

/// How long a client is told to wait that asks for all topics.
async fn told(client: &mut Client) -> i32 {
    let all = MetadataRequest::default().with_topics(None);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    reply.throttle_time_ms
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_requests_take_too_much_time_waits_after_each() {
    let world = World::start().await;
    world.topic("t", 1);
    let (mut client, mut other) = (world.client().await, world.client().await);
    other.id = "other";
    assert_eq!(told(&mut client).await, 0, "nothing limits it");
    // Ten nanoseconds in a second: each request takes more.
    limit(&world, "request_percentage", Some(1e-6)).await;
    assert!((0..=1000).contains(&told(&mut client).await));
    let begin = Instant::now();
    for _ in 0..2 {
        // A second at a time, whatever it owes.
        let wait = told(&mut client).await;
        assert!((1..=1000).contains(&wait), "{wait}");
        assert_eq!(told(&mut other).await, 0, "another client");
    }
    let sent = send(&mut client, &records(1)).await;
    let (offset, wait) = placed(&mut client, sent).await;
    assert_eq!(offset, 0);
    assert!((1..=1000).contains(&wait), "{wait}");
    // It is not the client that keeps to that.
    assert!(begin.elapsed().as_secs_f64() > 1.9, "{:?}", begin.elapsed());
    // A new connection has what the others owe.
    let mut anew = world.client().await;
    let wait = told(&mut anew).await;
    assert!((1..=1000).contains(&wait), "{wait}");
    limit(&world, "request_percentage", None).await;
    assert_eq!(told(&mut client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_together_are_no_faster_than_the_quota() {
    const RATE: f64 = 100_000.0;
    const CONNECTIONS: usize = 3;
    let world = World::start().await;
    world.topic("t", 1);
    let records = records(1000);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(world.client().await);
    }
    limit(&world, "producer_byte_rate", Some(RATE)).await;
    let begin = Instant::now();
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        for client in &mut clients {
            let sent = send(client, &records).await;
            placed(client, sent).await;
        }
    }
    // The last answers come before their waits.
    let passed = begin.elapsed().as_secs_f64();
    let sent = (ROUNDS * CONNECTIONS * records.len()) as f64;
    let most = RATE * (passed + 1.0) + (CONNECTIONS * (records.len() + 200)) as f64;
    assert!(sent <= most, "{sent} of {most} in {passed} s");
    // More than the quota of all the time that passes, however slowly requests come.
    let more = large();
    assert!(more.len() as f64 > 2.0 * RATE);
    let sent = send(&mut clients[0], &more).await;
    let (_, throttle) = placed(&mut clients[0], sent).await;
    assert!(throttle > 0, "who sends more is told to wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_beyond_its_quota_gets_a_batch_and_waits() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    for _ in 0..3 {
        let sent = send(&mut client, &records(100)).await;
        assert_eq!(placed(&mut client, sent).await.1, 0, "nothing limits it");
    }
    limit(&world, "consumer_byte_rate", Some(1.0)).await;
    let request = |offset| fetching::request("t", vec![fetching::partition(0, offset)]);
    let reply: FetchResponse = client.call(ApiKey::Fetch, VERSION, &request(0)).await;
    let bytes = |reply: &FetchResponse| {
        let records = reply.responses[0].partitions[0].records.as_ref();
        records.map_or(0, Bytes::len)
    };
    let least = records(100).len();
    assert_eq!(bytes(&reply), least, "one batch and no more");
    assert!(reply.throttle_time_ms as usize >= (least - 2) * 1000);
    let next = client.send(ApiKey::Fetch, VERSION, &request(100)).await;
    assert!(is_silent(&world, &client).await, "it waits");
    // Deleted.
    limit(&world, "consumer_byte_rate", None).await;
    let reply: FetchResponse = client.receive(ApiKey::Fetch, VERSION, next).await;
    assert_eq!((bytes(&reply), reply.throttle_time_ms), (2 * least, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sent_that_wants_no_answers_and_went_is_kept_beyond_its_quota() {
    const MANY: usize = 20;
    let world = World::start().await;
    world.topic("t", 1);
    limit(&world, "producer_byte_rate", Some(1.0)).await;
    let mut client = world.client().await;
    let request = producing::request("t", 0, &[(0, records(1))]);
    for _ in 0..MANY {
        client.send(ApiKey::Produce, VERSION, &request).await;
    }
    drop(client);
    producing::wait_for_end(&world, "t", 1).await;
    limit(&world, "producer_byte_rate", Some(1e12)).await;
    producing::wait_for_end(&world, "t", MANY as i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sent_that_wants_no_answers_and_went_is_kept_behind_what_would_be_answered() {
    const MANY: usize = 4;
    let world = World::start().await;
    world.topic("t", 1);
    // Each batch leaves a debt of about a second, in which it is seen that the client is gone.
    limit(&world, "producer_byte_rate", Some(100.0)).await;
    let mut client = world.client().await;
    let request = producing::request("t", 0, &[(0, records(1))]);
    let all = MetadataRequest::default().with_topics(None);
    for _ in 0..MANY {
        client.send(ApiKey::Produce, VERSION, &request).await;
        // The answer finds nobody, and the system tells so while batches behind it still wait.
        client.send(ApiKey::Metadata, 9, &all).await;
    }
    drop(client);
    producing::wait_for_end(&world, "t", MANY as i64).await;
    no_connection_is_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_that_waits_for_a_quota_takes_no_memory_from_others() {
    let world = World::with(|config| config.server.max_in_flight_bytes = 1 << 20).await;
    world.topic("t", 1);
    limit(&world, "producer_byte_rate", Some(1.0)).await;
    let large = large();
    let mut one = world.client().await;
    let first = send(&mut one, &records(100)).await;
    assert_eq!(placed(&mut one, first).await.0, 0);
    let (mut held, of_held) = (world.client().await, large.clone());
    assert!(topics(&mut held).await > 0);
    let held = tokio::spawn(async move {
        let sent = send(&mut held, &of_held).await;
        (held, sent)
    });
    // Nothing limits another client; of both there is room for one.
    let mut other = world.client().await;
    other.id = "other";
    for _ in 0..3 {
        assert!(is_silent(&world, &one).await);
        let sent = send(&mut other, &large).await;
        assert_eq!(placed(&mut other, sent).await.1, 0);
    }
    limit(&world, "producer_byte_rate", Some(1e12)).await;
    let (mut held, sent) = held.await.expect("it is sent");
    assert_eq!(placed(&mut held, sent).await.0, 100 + 3 * 700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_waits_for_a_quota_also_if_a_length_comes_before_the_rest() {
    let world = World::start().await;
    world.topic("t", 1);
    limit(&world, "producer_byte_rate", Some(1.0)).await;
    let mut one = world.client().await;
    let first = send(&mut one, &records(100)).await;
    assert_eq!(placed(&mut one, first).await.0, 0);
    let mut two = world.client().await;
    let all = MetadataRequest::default().with_topics(None);
    let asked = two.frame_of(ApiKey::Metadata, 9, &all);
    let request = producing::request("t", -1, &[(0, large())]);
    let mut sent = two.frame_of(ApiKey::Produce, VERSION, &request);
    let correlation = two.last();
    // Both are so short that they come at once: with the answer to the one the other is there.
    let length = sent.split_to(4);
    two.stream
        .write_all(&[&asked[..], &length].concat())
        .await
        .unwrap();
    let reply: MetadataResponse = two.receive(ApiKey::Metadata, 9, correlation - 1).await;
    assert!(!reply.topics.is_empty());
    let two = tokio::spawn(async move {
        two.stream.write_all(&sent).await.unwrap();
        two
    });
    // Nothing limits another client. What the broker takes in of it comes after what it has of the others.
    let mut other = world.client().await;
    other.id = "other";
    for _ in 0..3 {
        assert!(is_silent(&world, &one).await);
        let sent = send(&mut other, &large()).await;
        assert_eq!(placed(&mut other, sent).await.1, 0);
    }
    limit(&world, "producer_byte_rate", Some(1e12)).await;
    let mut two = two.await.expect("it is sent");
    let (offset, throttle) = placed(&mut two, correlation).await;
    assert_eq!((offset, throttle), (100 + 3 * 700, 0), "it has waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_while_it_waits_leaves_no_connection() {
    let world = World::start().await;
    world.topic("t", 1);
    limit(&world, "producer_byte_rate", Some(1.0)).await;
    let mut one = world.client().await;
    let first = send(&mut one, &records(100)).await;
    placed(&mut one, first).await;
    let mut two = world.client().await;
    send(&mut two, &records(100)).await;
    assert!(is_silent(&world, &two).await, "it waits");
    // One has sent nothing that waits, the other has.
    drop((one, two));
    no_connection_is_left(&world).await;
}
