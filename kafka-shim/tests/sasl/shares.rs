//! Memory that users share: one that takes all it can get leaves some for others.

use std::sync::atomic::Ordering;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kera_protocol::batch::{Compression, ProducerStamp};

use super::*;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 4 * MIB;
/// What one user may have of it where there are others.
const MOST: u64 = 3 * MIB;

pub async fn entered(world: &World, name: &str) -> Client {
    let mut client = world.client().await;
    let message = format!("\0{name}\0right");
    assert_eq!(plain(&mut client, message.as_bytes()).await, 0);
    client
}

/// The head of a Produce request of so many bytes with its length, of which no more comes.
pub fn claim(bytes: u64) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_i32(bytes as i32 - 4);
    out.put_i16(ApiKey::Produce as i16);
    out.put_i16(9);
    out.put_i32(1);
    // A client id of one byte, no tags, no transactional id; acks and timeout.
    out.put_slice(&[0, 1, b'x', 0, 0, 0xff, 0xff, 0, 0, 0x75, 0x30]);
    out
}

/// More than what is read ahead: there has to be room for all of it.
fn large() -> ProduceRequest {
    let value = "x".repeat(1000);
    let records = common::batch(&value, 700, Compression::None, ProducerStamp::NONE);
    let data = PartitionProduceData::default().with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(TopicName(words("t")))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![data])
}

async fn append(client: &mut Client) {
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &large()).await;
    let answer = &reply.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, 0);
}

async fn world() -> World {
    let world = World::with(|config| {
        asking(config);
        config.server.max_in_flight_bytes = LIMIT;
        // What never comes is waited for longer than the test takes.
        config.server.receive_timeout = Duration::from_secs(600);
    })
    .await;
    world.topic("t", 1);
    for name in ["mallory", "ann", "bob"] {
        user(&world, name, "right").await;
    }
    world
}

pub fn in_flight(world: &World) -> u64 {
    let data = &world.broker.shared().data;
    data.in_flight.load(Ordering::Relaxed)
}

async fn until(world: &World, wanted: u64) {
    let there = async {
        while in_flight(world) < wanted {
            tokio::task::yield_now().await;
        }
    };
    let there = tokio::time::timeout(common::PATIENCE, there).await;
    assert!(there.is_ok(), "{} of {wanted}", in_flight(world));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_many_connections_leaves_memory_for_others() {
    let world = world().await;
    let mut claims = Vec::new();
    for _ in 0..8 {
        let mut client = entered(&world, "mallory").await;
        client.stream.write_all(&claim(MIB)).await.unwrap();
        claims.push(client);
    }
    until(&world, MOST).await;
    // Each is served, one after the other, and twice.
    for name in ["ann", "bob", "ann", "bob"] {
        let mut client = entered(&world, name).await;
        for _ in 0..2 {
            append(&mut client).await;
        }
        assert!(in_flight(&world) >= MOST, "mallory holds what it had");
    }
    // All that the others had is free again, and mallory gets no more of it.
    let left = async {
        while in_flight(&world) > MOST {
            tokio::task::yield_now().await;
        }
    };
    let left = tokio::time::timeout(common::PATIENCE, left).await;
    assert!(left.is_ok(), "{} of {MOST}", in_flight(&world));
    // What mallory gives up is there for its other connections.
    claims.drain(..3);
    until(&world, MOST).await;
}

/// Two users hold all that one may have, and all but a last part of what is kept for others: with frames that do not come.
#[tokio::test(flavor = "multi_thread")]
async fn frames_that_do_not_come_give_way_to_those_that_wait() {
    let world = world().await;
    let mut claims = Vec::new();
    let most_of_the_rest = LIMIT - LIMIT / 16 - MOST;
    for (name, bytes) in [
        ("mallory", MIB),
        ("mallory", MIB),
        ("mallory", MIB),
        ("bob", most_of_the_rest),
    ] {
        let before = in_flight(&world);
        let mut client = entered(&world, name).await;
        client.stream.write_all(&claim(bytes)).await.unwrap();
        until(&world, before + bytes).await;
        claims.push(client);
    }
    let mut client = entered(&world, "ann").await;
    append(&mut client).await;
}
