//! Broker settings that are changed while the broker runs.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ApiKey, InitProducerIdRequest,
    InitProducerIdResponse, ProducerId, TransactionalId,
};
use kera_broker::settings::Scope;

use crate::common::{Client, World};
use crate::configs::{APPEND, BROKER, DELETE, SET, change_some, describe, find};
use crate::{assert_code, create, topic, versions, words};

const INCREMENTAL: i16 = 1;

/// A setting's value, its source, and its synonyms with theirs.
fn told(result: &DescribeConfigsResult, name: &str) -> (String, i8, Vec<(String, i8)>) {
    let config = find(result, name);
    let text = |value: &Option<kafka_protocol::protocol::StrBytes>| {
        value.as_ref().expect("a value").as_str().to_owned()
    };
    let synonyms = config.synonyms.iter();
    let synonyms = synonyms.map(|s| (text(&s.value), s.source)).collect();
    assert!(!config.read_only, "{name}");
    (text(&config.value), config.config_source, synonyms)
}

fn layers(layers: &[(&str, i8)]) -> Vec<(String, i8)> {
    let owned = layers
        .iter()
        .map(|(value, source)| ((*value).into(), *source));
    owned.collect()
}

async fn changed(client: &mut Client, broker: &str, changes: &[(&str, i8, Option<&str>)]) {
    let (code, text) = change_some(client, INCREMENTAL, BROKER, broker, changes, false).await;
    assert_eq!(code, 0, "{text}");
}

/// Partitions of a topic that is created without a number.
async fn partitions_of_new(client: &mut Client, name: &str) -> i32 {
    let made = create(client, 7, topic(name, -1, &[])).await;
    assert_eq!(made.error_code, 0, "{:?}", made.error_message);
    made.num_partitions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_setting_takes_effect_is_told_and_outlives_a_restart() {
    let started_with = |config: &mut kera_broker::config::BrokerConfig| {
        config.kafka.default_partitions = 7;
    };
    let world = World::with(started_with).await;
    let mut client = world.client().await;
    assert_eq!(partitions_of_new(&mut client, "a").await, 7);
    changed(&mut client, "", &[("num.partitions", SET, Some("3"))]).await;
    assert_eq!(partitions_of_new(&mut client, "b").await, 3);
    changed(
        &mut client,
        "1",
        &[("kafka.default_partitions", SET, Some("2"))],
    )
    .await;
    assert_eq!(partitions_of_new(&mut client, "c").await, 2);
    for version in versions(ApiKey::DescribeConfigs) {
        let one = describe(&mut client, version, BROKER, "1", None).await;
        let expected = layers(&[("2", 2), ("3", 3), ("7", 4), ("1", 5)]);
        for name in ["num.partitions", "kafka.default_partitions"] {
            assert_eq!(told(&one, name), ("2".into(), 2, expected.clone()));
        }
        let all = describe(&mut client, version, BROKER, "", None).await;
        assert_eq!((all.error_code, all.configs.len()), (0, 2));
        assert_eq!(told(&all, "num.partitions").1, 3);
    }
    let described = world.broker.shared().changed_settings();
    let setting = &described[0];
    let values = (setting.value.as_str(), setting.configured.as_str());
    assert_eq!(described.len(), 1);
    assert_eq!(
        (setting.name.as_str(), values),
        ("kafka.default_partitions", ("2", "7"))
    );
    assert!(!setting.of_all);
    let World { broker, dir, .. } = world;
    broker.shutdown().await;
    let world = World::at(dir, started_with).await;
    let mut client = world.client().await;
    assert_eq!(partitions_of_new(&mut client, "d").await, 2);
    // What is deleted here leaves what all brokers have, and that leaves the configuration.
    changed(&mut client, "1", &[("num.partitions", DELETE, None)]).await;
    assert_eq!(partitions_of_new(&mut client, "e").await, 3);
    changed(
        &mut client,
        "",
        &[("kafka.default_partitions", DELETE, None)],
    )
    .await;
    assert_eq!(partitions_of_new(&mut client, "f").await, 7);
    let all = describe(&mut client, 4, BROKER, "", None).await;
    assert!(all.configs.is_empty());
}

/// Begins under a transactional id, once its coordinator has read its state.
async fn init(client: &mut Client, request: &InitProducerIdRequest) -> i16 {
    loop {
        let begun: InitProducerIdResponse = client.call(ApiKey::InitProducerId, 4, request).await;
        match ResponseError::try_from_code(begun.error_code) {
            Some(
                ResponseError::CoordinatorLoadInProgress | ResponseError::CoordinatorNotAvailable,
            ) => {}
            _ => return begun.error_code,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_reach_what_reads_them() {
    let world = World::start().await;
    let mut client = world.client().await;
    let changes = [
        ("max.connections", SET, Some("17")),
        ("connections.max.idle.ms", SET, Some("-1")),
        ("auto.create.topics.enable", SET, Some("FALSE")),
        ("socket.request.max.bytes", SET, Some("65536")),
        ("log.flush.interval.ms", SET, Some("20")),
        ("offsets.retention.minutes", SET, Some("60")),
        ("group.max.size", SET, Some("5")),
    ];
    changed(&mut client, "", &changes).await;
    let shared = world.broker.shared();
    let live = shared.live().clone();
    assert_eq!(shared.admission.limit(), 17);
    assert!(live.server.idle_timeout.is_zero());
    assert!(!live.kafka.auto_create_topics);
    assert_eq!(live.storage.flush_interval.as_millis(), 20);
    assert_eq!(live.kafka.offsets_retention.as_secs(), 3600);
    assert_eq!(live.consumers.max_members, 5);
    let result = describe(&mut client, 4, BROKER, "1", None).await;
    for (name, value) in [
        ("connections.max.idle.ms", "-1"),
        ("server.idle_timeout", "0"),
        ("offsets.retention.minutes", "60"),
        ("kafka.offsets_retention", "1h"),
        ("socket.request.max.bytes", "65536"),
        ("kafka.max_request_bytes", "64KiB"),
    ] {
        assert_eq!(told(&result, name).0, value, "{name}");
    }
    // A producer may have its transactions open for longer once operators allow it.
    let long = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(words("slow"))))
        .with_transaction_timeout_ms(3_600_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let refused = init(&mut client, &long).await;
    assert_code(refused, ResponseError::InvalidTransactionTimeout);
    let longer = [("transaction.max.timeout.ms", SET, Some("3600000"))];
    changed(&mut client, "", &longer).await;
    assert_eq!(init(&mut client, &long).await, 0);
    // A request that is too long now ends its connection.
    let long = AlterConfigsRequest::default().with_resources(vec![
        AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(words(&"1".repeat(30_000))),
        AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(words(&"2".repeat(30_000))),
        AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(words(&"3".repeat(30_000))),
    ]);
    client.send(ApiKey::AlterConfigs, 1, &long).await;
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_by_name_and_nothing_changes() {
    let world = World::start().await;
    let mut client = world.client().await;
    use ResponseError as Kafka;
    let restart = "set it in the configuration file and restart";
    for (changes, error, part) in [
        (
            vec![("data_dir", SET, Some("/x"))],
            Kafka::InvalidConfig,
            restart,
        ),
        (
            vec![("producers.expiry", DELETE, None)],
            Kafka::InvalidConfig,
            restart,
        ),
        (
            vec![("log.retention.ms", SET, Some("5"))],
            Kafka::InvalidConfig,
            "set retention.ms of the topics",
        ),
        (
            vec![("no.such.key", SET, Some("5"))],
            Kafka::InvalidConfig,
            "\"no.such.key\" cannot be changed",
        ),
        (
            vec![("num.partitions", SET, Some("0"))],
            Kafka::InvalidConfig,
            "kafka.default_partitions: 0 is out of range",
        ),
        (
            vec![("num.partitions", SET, Some("many"))],
            Kafka::InvalidConfig,
            "num.partitions: `many` is not a whole number",
        ),
        (
            vec![("num.partitions", SET, None)],
            Kafka::InvalidRequest,
            "no value",
        ),
        (
            vec![("num.partitions", APPEND, Some("2"))],
            Kafka::InvalidConfig,
            "no list",
        ),
        (
            vec![("num.partitions", 9, Some("2"))],
            Kafka::InvalidRequest,
            "kind 9",
        ),
        (
            vec![
                ("num.partitions", SET, Some("2")),
                ("kafka.default_partitions", SET, Some("3")),
            ],
            Kafka::InvalidRequest,
            "changed twice",
        ),
        (
            vec![
                ("max.connections", SET, Some("9")),
                ("group.min.session.timeout.ms", SET, Some("3000000")),
            ],
            Kafka::InvalidConfig,
            "kafka.session_min is above kafka.session_max",
        ),
    ] {
        for broker in ["", "1"] {
            let answer = change_some(&mut client, INCREMENTAL, BROKER, broker, &changes, false);
            let (code, text) = answer.await;
            assert_eq!(
                ResponseError::try_from_code(code),
                Some(error),
                "{changes:?}"
            );
            assert!(text.contains(part), "`{part}` not in: {text}");
        }
    }
    let only = [("num.partitions", SET, Some("5"))];
    let (code, text) = change_some(&mut client, INCREMENTAL, BROKER, "", &only, true).await;
    assert_eq!(code, 0, "{text}");
    let (code, _) = change_some(&mut client, INCREMENTAL, BROKER, "2", &only, false).await;
    assert_code(code, Kafka::InvalidRequest);
    let settings = &world.broker.shared().settings;
    assert!(settings.set_of(Scope::All).is_empty() && settings.set_of(Scope::Own).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_replaces_what_was_changed_before() {
    let world = World::start().await;
    let mut client = world.client().await;
    for version in versions(ApiKey::AlterConfigs) {
        let before = [
            ("num.partitions", SET, Some("5")),
            ("max.connections", SET, Some("50")),
        ];
        changed(&mut client, "1", &before).await;
        let config = AlterableConfig::default()
            .with_name(words("max.connections"))
            .with_value(Some(words("60")));
        let resource = AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(words("1"))
            .with_configs(vec![config]);
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        let response: AlterConfigsResponse =
            client.call(ApiKey::AlterConfigs, version, &request).await;
        assert_eq!(response.responses[0].error_code, 0);
        let set = world.broker.shared().settings.set_of(Scope::Own);
        let set: Vec<_> = set.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(set, [("server.max_connections", "60")]);
    }
}
