//! DescribeClientQuotas and AlterClientQuotas, as Kafka's tools send them.

use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};

use super::*;
use crate::common::World;

const INVALID_REQUEST: i16 = 42;
const PRODUCER: &str = "producer_byte_rate";
const CONSUMER: &str = "consumer_byte_rate";

/// Types and names; no name for the default.
type Entity = &'static [(&'static str, Option<&'static str>)];

fn entry(entity: Entity, ops: &[(&str, Option<f64>)]) -> EntryData {
    let parts = entity.iter().map(|(kind, name)| {
        EntityData::default()
            .with_entity_type(words(kind))
            .with_entity_name(name.map(words))
    });
    let ops = ops.iter().map(|(key, value)| {
        OpData::default()
            .with_key(words(key))
            .with_value(value.unwrap_or_default())
            .with_remove(value.is_none())
    });
    EntryData::default()
        .with_entity(parts.collect())
        .with_ops(ops.collect())
}

async fn alter(
    client: &mut Client,
    version: i16,
    only_check: bool,
    entries: Vec<EntryData>,
) -> Vec<i16> {
    let request = AlterClientQuotasRequest::default()
        .with_entries(entries)
        .with_validate_only(only_check);
    let reply: AlterClientQuotasResponse = client
        .call(ApiKey::AlterClientQuotas, version, &request)
        .await;
    let told = |one: &&kafka_protocol::messages::alter_client_quotas_response::EntryData| {
        one.error_code == 0 || one.error_message.is_some()
    };
    assert!(reply.entries.iter().all(|one| told(&one)));
    reply.entries.iter().map(|one| one.error_code).collect()
}

/// A part of a filter: a type, how it is compared, and a name.
type Part = (&'static str, i8, Option<&'static str>);

/// The error, and what was found as text.
async fn found(
    client: &mut Client,
    version: i16,
    parts: &[Part],
    strict: bool,
) -> (i16, Vec<String>) {
    let components = parts.iter().map(|(kind, how, name)| {
        ComponentData::default()
            .with_entity_type(words(kind))
            .with_match_type(*how)
            .with_match(name.map(words))
    });
    let request = DescribeClientQuotasRequest::default()
        .with_components(components.collect())
        .with_strict(strict);
    let reply: DescribeClientQuotasResponse = client
        .call(ApiKey::DescribeClientQuotas, version, &request)
        .await;
    let entries = reply.entries.unwrap_or_default();
    let shown = entries.iter().map(|entry| {
        let parts = entry.entity.iter().map(|part| {
            let name = part.entity_name.as_ref();
            let name = name.map_or("<default>", |name| name.as_str());
            format!("{} {name}", part.entity_type.as_str())
        });
        let values = entry
            .values
            .iter()
            .map(|value| format!("{}={}", value.key.as_str(), value.value));
        parts.chain(values).collect::<Vec<_>>().join(", ")
    });
    (reply.error_code, shown.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_made_found_and_taken_away() {
    const ANN: &str = "user ann, producer_byte_rate=1000, consumer_byte_rate=2000";
    const ANN_APP: &str = "user ann, client-id app, producer_byte_rate=10";
    const ANY_USER: &str = "user <default>, producer_byte_rate=1";
    const APP: &str = "client-id app, consumer_byte_rate=7";
    let world = World::start().await;
    let mut client = world.client().await;
    for version in 0..=1 {
        let entries = vec![
            entry(
                &[("user", Some("ann"))],
                &[(PRODUCER, Some(1000.0)), (CONSUMER, Some(2000.0))],
            ),
            entry(
                &[("client-id", Some("app")), ("user", Some("ann"))],
                &[(PRODUCER, Some(10.0))],
            ),
            entry(&[("user", None)], &[(PRODUCER, Some(1.0))]),
            entry(&[("client-id", Some("app"))], &[(CONSUMER, Some(7.0))]),
        ];
        // Only checked: nothing is there afterwards.
        let checked = alter(&mut client, version, true, entries.clone()).await;
        assert_eq!(checked, [0; 4]);
        assert_eq!(found(&mut client, version, &[], false).await.1.len(), 0);
        assert_eq!(alter(&mut client, version, false, entries).await, [0; 4]);

        let all = [APP, ANY_USER, ANN, ANN_APP].map(str::to_owned).to_vec();
        assert_eq!(found(&mut client, version, &[], false).await, (0, all));
        let filters: &[(&[Part], bool, &[&str])] = &[
            (&[("user", 2, None)], false, &[ANY_USER, ANN, ANN_APP]),
            (&[("user", 2, None)], true, &[ANY_USER, ANN]),
            (&[("user", 0, Some("ann"))], false, &[ANN, ANN_APP]),
            (&[("user", 0, Some("ann"))], true, &[ANN]),
            (&[("user", 1, None)], true, &[ANY_USER]),
            (
                &[("client-id", 2, None), ("user", 2, None)],
                true,
                &[ANN_APP],
            ),
            (&[("client-id", 0, Some("app"))], true, &[APP]),
            (&[("ip", 2, None)], false, &[]),
        ];
        for (parts, strict, wanted) in filters {
            let wanted: Vec<String> = wanted.iter().map(|text| (*text).to_owned()).collect();
            let answer = found(&mut client, version, parts, *strict).await;
            assert_eq!(answer, (0, wanted), "{parts:?} strict {strict}");
        }

        let entries = vec![
            entry(
                &[("user", Some("ann"))],
                &[(PRODUCER, None), (CONSUMER, None)],
            ),
            entry(
                &[("user", Some("ann")), ("client-id", Some("app"))],
                &[(PRODUCER, None)],
            ),
            entry(&[("user", None)], &[(PRODUCER, None)]),
            // What is not there need not be taken away.
            entry(
                &[("client-id", Some("app"))],
                &[(CONSUMER, None), (PRODUCER, None)],
            ),
        ];
        assert_eq!(alter(&mut client, version, false, entries).await, [0; 4]);
        assert_eq!(found(&mut client, version, &[], false).await.1.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_quota_is_refused_and_the_rest_is_made() {
    let world = World::start().await;
    let mut client = world.client().await;
    let ann: Entity = &[("user", Some("ann"))];
    let wrong = vec![
        entry(&[], &[(PRODUCER, Some(1.0))]),
        entry(&[("group", Some("g"))], &[(PRODUCER, Some(1.0))]),
        entry(
            &[("user", Some("a")), ("user", None)],
            &[(PRODUCER, Some(1.0))],
        ),
        entry(
            &[("user", Some("a")), ("ip", None)],
            &[(PRODUCER, Some(1.0))],
        ),
        entry(&[("user", Some(""))], &[(PRODUCER, Some(1.0))]),
        entry(&[("user", Some("b"))], &[("producer_rate", Some(1.0))]),
        entry(&[("user", Some("c"))], &[(PRODUCER, Some(0.0))]),
        entry(&[("user", Some("d"))], &[(PRODUCER, Some(f64::NAN))]),
        entry(&[("user", Some("e"))], &[(PRODUCER, Some(0.5))]),
        entry(
            &[("user", Some("f"))],
            &[(PRODUCER, Some(1.0)), (PRODUCER, None)],
        ),
    ];
    let count = wrong.len();
    let mut entries = wrong;
    entries.push(entry(ann, &[(PRODUCER, Some(5.0))]));
    entries.push(entry(ann, &[(CONSUMER, Some(5.0))]));
    let mut wanted = vec![INVALID_REQUEST; count];
    // Of two entries about one the first counts.
    wanted.extend([0, INVALID_REQUEST]);
    assert_eq!(alter(&mut client, 1, false, entries).await, wanted);
    let made = vec!["user ann, producer_byte_rate=5".to_owned()];
    assert_eq!(found(&mut client, 1, &[], false).await, (0, made));

    let filters: [&[Part]; 5] = [
        &[("group", 2, None)],
        &[("user", 0, None)],
        &[("user", 1, Some("ann"))],
        &[("user", 9, None)],
        &[("user", 2, None), ("user", 1, None)],
    ];
    for parts in filters {
        let (error, _) = found(&mut client, 1, parts, false).await;
        assert_eq!(error, INVALID_REQUEST, "{parts:?}");
    }
}

async fn create(client: &mut Client, name: &str) -> (i16, i32) {
    let topic = CreatableTopic::default()
        .with_name(super::name(name))
        .with_num_partitions(3)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let reply: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &request).await;
    (reply.topics[0].error_code, reply.throttle_time_ms)
}

async fn delete(client: &mut Client, name: &str) -> (i16, i32) {
    let request = DeleteTopicsRequest::default()
        .with_topic_names(vec![super::name(name)])
        .with_timeout_ms(30_000);
    let reply: DeleteTopicsResponse = client.call(ApiKey::DeleteTopics, 5, &request).await;
    (reply.responses[0].error_code, reply.throttle_time_ms)
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_beyond_a_quota_are_neither_made_nor_deleted() {
    let exceeded = ResponseError::ThrottlingQuotaExceeded.code();
    let world = World::start().await;
    let mut client = world.client().await;
    const RATE: &str = "controller_mutation_rate";
    let anonymous: Entity = &[("user", Some("ANONYMOUS"))];
    // One in a million seconds.
    let set = vec![entry(anonymous, &[(RATE, Some(1e-6))])];
    assert_eq!(alter(&mut client, 1, false, set).await, [0]);
    assert_eq!(create(&mut client, "one").await, (0, 0), "made whole");
    let (code, throttle) = create(&mut client, "two").await;
    assert_eq!(code, exceeded);
    assert!(throttle > 1_000_000, "{throttle}");
    let (code, throttle) = delete(&mut client, "one").await;
    assert_eq!(code, exceeded);
    assert!(throttle > 1_000_000, "{throttle}");
    let catalog = &world.broker.shared().data.catalog;
    assert!(catalog.named("one").is_some() && catalog.named("two").is_none());
    let unset = vec![entry(anonymous, &[(RATE, None)])];
    assert_eq!(alter(&mut client, 1, false, unset).await, [0]);
    assert_eq!(create(&mut client, "two").await, (0, 0));
    assert_eq!(delete(&mut client, "one").await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_a_quota_of_their_address_are_closed() {
    let world = World::start().await;
    let mut client = world.client().await;
    let set = |value| {
        vec![entry(
            &[("ip", None)],
            &[("connection_creation_rate", value)],
        )]
    };
    assert_eq!(alter(&mut client, 1, false, set(Some(1.0))).await, [0]);
    // At one in a second, of many at once some are closed.
    let mut others = Vec::new();
    for _ in 0..50 {
        others.push(world.client().await);
    }
    let mut closed = 0;
    for other in &mut others {
        let request = DescribeClientQuotasRequest::default();
        let sent = other
            .try_send(ApiKey::DescribeClientQuotas, 1, &request)
            .await;
        closed += usize::from(sent.is_err() || other.frame().await.is_err());
    }
    assert!(closed > 0, "all were let in");
    // Who is in stays.
    assert_eq!(alter(&mut client, 1, false, set(None)).await, [0]);
    let mut anew = world.client().await;
    assert_eq!(found(&mut anew, 1, &[], false).await, (0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_there_after_a_restart() {
    let world = World::start().await;
    let mut client = world.client().await;
    let entries = vec![entry(&[("user", None)], &[(CONSUMER, Some(12.0))])];
    assert_eq!(alter(&mut client, 1, false, entries).await, [0]);
    let World { broker, dir, .. } = world;
    broker.shutdown().await;
    let world = World::at(dir, |_| {}).await;
    let mut client = world.client().await;
    let (_, found) = found(&mut client, 1, &[], false).await;
    assert_eq!(found, ["user <default>, consumer_byte_rate=12"]);
    // And they count.
    let shared = world.broker.shared();
    let principal = kera_broker::principal::Principal::Anonymous;
    let mut meter = kera_broker::quotas::Meter::new(shared.quotas.clone(), &principal);
    assert_eq!(meter.most(kera_broker::quotas::Metered::Reads, 1000), 12);
}

/// A limit of an address counts however it was written: it is looked for as the system writes the address.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_one_however_it_is_written() {
    const RATE: &str = "connection_creation_rate";
    let world = World::start().await;
    let mut client = world.client().await;
    let limit = &[(RATE, Some(50.0))];
    let set = vec![
        entry(&[("ip", Some("::ffff:192.0.2.1"))], limit),
        entry(&[("ip", Some("2001:DB8:0::1"))], limit),
    ];
    assert_eq!(alter(&mut client, 1, false, set).await, [0; 2]);
    let texts = ["ip 192.0.2.1", "ip 2001:db8::1"].map(|ip| format!("{ip}, {RATE}=50"));
    let (_, all) = found(&mut client, 1, &[], false).await;
    assert_eq!(all, texts);
    for (name, text) in ["::ffff:192.0.2.1", "2001:DB8:0::1"].into_iter().zip(texts) {
        let (_, one) = found(&mut client, 1, &[("ip", 0, Some(name))], true).await;
        assert_eq!(one, [text]);
    }
}
