//! A Kafka client of a user with a latency objective beside one that floods the broker.

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, ProduceRequest, ProduceResponse, TopicName,
};
use kera_broker::quotas;
use kera_metadata::quota::{QuotaEntity, QuotaKind, Whom};
use kera_protocol::batch::{Compression, ProducerStamp};

use super::shares::{claim, entered, in_flight};
use super::*;

/// Requests of the flood, of which the broker takes two in a second.
const FLOOD: u32 = 200;

fn produce(topic: &str) -> ProduceRequest {
    let records = common::batch("x", 1, Compression::None, ProducerStamp::NONE);
    let data = PartitionProduceData::default().with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(TopicName(words(topic)))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![data])
}

async fn objective(world: &World, values: [Option<f64>; 3]) {
    let limits = QuotaKind::OBJECTIVE.into_iter().zip(values);
    let limits = limits.map(|(kind, value)| (kind.name().to_owned(), value));
    let change = quotas::Change {
        entity: QuotaEntity {
            user: Some(Whom::Name("ann".to_owned())),
            ..QuotaEntity::default()
        },
        limits: limits.collect(),
    };
    let made = quotas::alter(world.broker.shared(), &[change], false).await;
    assert_eq!(made.unwrap(), [Ok(())]);
}

fn stored(world: &World, topic: &str) -> u64 {
    let shared = world.broker.shared();
    let stream = shared.data.catalog.named(topic).unwrap();
    let streamlets = stream.streamlets.iter();
    let lanes = streamlets.flat_map(|streamlet| streamlet.describe());
    lanes.map(|lane| lane.end_ordinal).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_an_objective_is_served_before_a_flood_that_waits() {
    let world = World::with(|config| {
        asking(config);
        config.objectives.requests_per_second = 4;
    })
    .await;
    for topic in ["flood", "own"] {
        world.topic(topic, 1);
    }
    for name in ["mallory", "ann"] {
        user(&world, name, "right").await;
    }
    let mut ann = entered(&world, "ann").await;
    let mut flood = entered(&world, "mallory").await;
    objective(&world, [Some(20_000.0), Some(1.0), Some(1024.0)]).await;
    let mut sent = Vec::new();
    for _ in 0..FLOOD {
        sent.push(flood.send(ApiKey::Produce, 9, &produce("flood")).await);
    }
    let turns = || world.broker.shared().quotas.waiting_turns();
    let waits = async {
        while turns() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let waits = tokio::time::timeout(common::PATIENCE, waits).await;
    assert!(waits.is_ok(), "the flood waits");
    for _ in 0..4 {
        let reply: ProduceResponse = ann.call(ApiKey::Produce, 9, &produce("own")).await;
        assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
    }
    // Another connection of the same user: what keeps members in groups passes, what asks for something waits.
    let mut member = entered(&world, "mallory").await;
    let request = HeartbeatRequest::default().with_group_id(words("g").into());
    let beaten: HeartbeatResponse = member.call(ApiKey::Heartbeat, 4, &request).await;
    assert_ne!(beaten.error_code, 0, "there is no such group");
    let asked = MetadataRequest::default();
    let asked = member.send(ApiKey::Metadata, 12, &asked).await;
    assert!(stored(&world, "flood") < u64::from(FLOOD));
    assert_eq!(stored(&world, "own"), 4);

    objective(&world, [None; 3]).await;
    let told: MetadataResponse = member.receive(ApiKey::Metadata, 12, asked).await;
    assert!(!told.brokers.is_empty());
    for correlation in sent {
        let reply: ProduceResponse = flood.receive(ApiKey::Produce, 9, correlation).await;
        assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
    }
    assert_eq!((stored(&world, "flood"), turns()), (u64::from(FLOOD), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_bytes_that_are_only_claimed_and_who_sent_them_for_those_that_came() {
    let world = World::with(|config| {
        asking(config);
        config.objectives.append_bytes_per_second = 64 << 10;
        config.server.receive_timeout = Duration::from_secs(600);
    })
    .await;
    world.topic("own", 1);
    for name in ["mallory", "bob"] {
        user(&world, name, "right").await;
    }
    let mut bob = entered(&world, "bob").await;
    let mut claims = Vec::new();
    for _ in 0..4 {
        claims.push(entered(&world, "mallory").await);
    }
    objective(&world, [Some(20_000.0), Some(1.0), Some(1024.0)]).await;
    let turns = || world.broker.shared().quotas.waiting_turns();
    // Sixteen seconds of all that may be appended, each.
    for connection in &mut claims {
        connection.stream.write_all(&claim(1 << 20)).await.unwrap();
    }
    let admitted = async {
        while in_flight(&world) < 4 << 20 {
            tokio::task::yield_now().await;
        }
    };
    let admitted = tokio::time::timeout(common::PATIENCE, admitted).await;
    assert!(admitted.is_ok(), "each has its turn");
    // All of these together cost less than is there at once.
    for _ in 0..4 {
        let reply: ProduceResponse = bob.call(ApiKey::Produce, 9, &produce("own")).await;
        assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
        assert_eq!(turns(), 0, "for what is not there");
    }
    // Here all comes, twelve seconds of what may be appended.
    let mut large = entered(&world, "mallory").await;
    let mut request = produce("own");
    let records = common::batch(
        &"x".repeat(1000),
        800,
        Compression::None,
        ProducerStamp::NONE,
    );
    request.topic_data[0].partition_data[0].records = Some(records);
    let reply: ProduceResponse = large.call(ApiKey::Produce, 9, &request).await;
    assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
    let asked = MetadataRequest::default();
    let asked = large.send(ApiKey::Metadata, 12, &asked).await;
    let waits = async {
        while turns() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let waits = tokio::time::timeout(common::PATIENCE, waits).await;
    assert!(waits.is_ok(), "mallory owes for what came");
    let reply: ProduceResponse = bob.call(ApiKey::Produce, 9, &produce("own")).await;
    assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);

    objective(&world, [None; 3]).await;
    let _: MetadataResponse = large.receive(ApiKey::Metadata, 12, asked).await;
    assert_eq!(turns(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_objective_of_less_than_a_request_a_second_is_refused() {
    let world = World::with(asking).await;
    let limits = |rate: f64| {
        let values = [20_000.0, rate, 1024.0].map(Some);
        let limits = QuotaKind::OBJECTIVE.into_iter().zip(values);
        limits.map(|(kind, value)| (kind.name().to_owned(), value))
    };
    let entity = QuotaEntity {
        user: Some(Whom::Name("ann".to_owned())),
        ..QuotaEntity::default()
    };
    for (rate, why) in [
        (0.5, "at least 1 "),
        (1e-300, "at least 1 "),
        (f64::NAN, "above 0"),
        (f64::INFINITY, "above 0"),
    ] {
        let change = quotas::Change {
            entity: entity.clone(),
            limits: limits(rate).collect(),
        };
        let made = quotas::alter(world.broker.shared(), &[change], false).await;
        let refused = made.unwrap().remove(0).unwrap_err();
        assert!(refused.message.contains(why), "{refused:?}");
    }
    let listed = quotas::list(world.broker.shared()).await.unwrap();
    assert!(listed.is_empty());
}
