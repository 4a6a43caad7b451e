//! A Kafka client of a user with a latency objective beside one that floods the broker.

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, ProduceRequest, ProduceResponse, TopicName,
};
use kera_broker::quotas;
use kera_metadata::quota::{QuotaEntity, QuotaKind, Whom};
use kera_protocol::batch::{Compression, ProducerStamp};

use super::shares::entered;
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
