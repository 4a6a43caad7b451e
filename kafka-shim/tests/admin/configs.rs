use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ApiKey, DescribeConfigsRequest,
    DescribeConfigsResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    alter_configs_request, incremental_alter_configs_request,
};
use kera_kafka_shim::config_table::TOPIC_CONFIGS;
use kera_metadata::{AckPolicy, StreamConfig};

use crate::common::{Client, World};
use crate::{assert_code, create, created, topic, versions, words};

const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const SET: i8 = 0;
pub(super) const DELETE: i8 = 1;
pub(super) const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(super) async fn describe(
    client: &mut Client,
    version: i16,
    kind: i8,
    text: &str,
    keys: Option<&[&str]>,
) -> DescribeConfigsResult {
    let keys = keys.map(|keys| keys.iter().map(|key| words(key)).collect());
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(words(text))
        .with_configuration_keys(keys);
    let mut request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true);
    if version >= 3 {
        request.include_documentation = true;
    }
    let response: DescribeConfigsResponse = client
        .call(ApiKey::DescribeConfigs, version, &request)
        .await;
    assert_eq!(response.results.len(), 1);
    response.results[0].clone()
}

pub(super) fn find<'a>(
    result: &'a DescribeConfigsResult,
    name: &str,
) -> &'a DescribeConfigsResourceResult {
    let mut configs = result.configs.iter();
    configs.find(|c| c.name.as_str() == name).expect(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_describes_topics() {
    let world = World::start().await;
    let mut client = world.client().await;
    let configs = [("retention.ms", "60000"), ("flush.messages", "1")];
    assert_eq!(
        create(&mut client, 7, topic("t", 2, &configs))
            .await
            .error_code,
        0
    );
    for version in versions(ApiKey::DescribeConfigs) {
        let result = describe(&mut client, version, TOPIC, "t", None).await;
        assert_eq!(result.error_code, 0);
        assert_eq!(result.configs.len(), TOPIC_CONFIGS.len());
        let retention = find(&result, "retention.ms");
        assert_eq!(retention.value.as_deref(), Some("60000"));
        assert_eq!((retention.config_source, retention.read_only), (1, false));
        let synonyms: Vec<_> = retention
            .synonyms
            .iter()
            .map(|s| (s.name.as_str(), s.value.as_deref().unwrap_or(""), s.source))
            .collect();
        assert_eq!(
            synonyms,
            [
                ("retention.ms", "60000", 1),
                ("log.retention.ms", "604800000", 5)
            ]
        );
        assert_eq!(find(&result, "kera.ack").value.as_deref(), Some("synced"));
        let age = find(&result, "segment.ms");
        assert_eq!(
            (age.value.as_deref(), age.config_source),
            (Some("3600000"), 5)
        );
        let hint = find(&result, "index.interval.bytes");
        assert!(hint.read_only);
        if version >= 3 {
            assert_eq!((retention.config_type, hint.config_type), (5, 3));
            let text = hint.documentation.as_ref().expect("documentation");
            assert!(text.contains("no effect in Kera"), "{}", text.as_str());
        }
        let keys: &[&str] = &["segment.bytes", "no.such.key"];
        let some = describe(&mut client, version, TOPIC, "t", Some(keys)).await;
        assert_eq!(some.configs.len(), 1);
        for absent in ["u", "_kera_groups"] {
            let unknown = describe(&mut client, version, TOPIC, absent, None).await;
            assert_code(unknown.error_code, ResponseError::UnknownTopicOrPartition);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_is_described() {
    let world = World::with(|config| config.kafka.default_partitions = 7).await;
    let mut client = world.client().await;
    for version in versions(ApiKey::DescribeConfigs) {
        let result = describe(&mut client, version, BROKER, "1", None).await;
        assert_eq!(result.error_code, 0);
        assert!(find(&result, "data_dir").read_only && find(&result, "node.id").read_only);
        let of = |name: &str| {
            find(&result, name)
                .value
                .as_ref()
                .expect("a value")
                .as_str()
                .to_owned()
        };
        assert_eq!(of("kafka.default_partitions"), "7");
        assert_eq!(find(&result, "kafka.default_partitions").config_source, 4);
        assert_eq!(of("num.partitions"), "7");
        assert_eq!(of("storage.flush_interval"), "1s");
        assert_eq!(find(&result, "storage.flush_interval").config_source, 5);
        let other = describe(&mut client, version, BROKER, "2", None).await;
        assert_code(other.error_code, ResponseError::InvalidRequest);
        let all = describe(&mut client, version, BROKER, "", None).await;
        assert_eq!((all.error_code, all.configs.len()), (0, 0));
        let metrics = describe(&mut client, version, 16, "1", None).await;
        assert_code(metrics.error_code, ResponseError::InvalidRequest);
    }
}

pub(super) async fn change_some(
    client: &mut Client,
    version: i16,
    kind: i8,
    text: &str,
    changes: &[(&str, i8, Option<&str>)],
    validate_only: bool,
) -> (i16, String) {
    use incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let configs = changes.iter().map(|(name, operation, value)| {
        AlterableConfig::default()
            .with_name(words(name))
            .with_config_operation(*operation)
            .with_value(value.map(words))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(words(text))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(validate_only);
    let response: IncrementalAlterConfigsResponse = client
        .call(ApiKey::IncrementalAlterConfigs, version, &request)
        .await;
    let answer = &response.responses[0];
    assert_eq!(answer.resource_name.as_str(), text);
    let text = answer.error_message.as_ref().map(|t| t.as_str().to_owned());
    (answer.error_code, text.unwrap_or_default())
}

fn config_of(world: &World) -> StreamConfig {
    let stream = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .expect("the stream");
    stream.record.load().config.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn single_settings_are_changed() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 2).await;
    let before = config_of(&world);
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        let changes = [
            ("retention.bytes", SET, Some("500")),
            ("kera.ack", SET, Some("synced")),
            ("file.delete.delay.ms", SET, Some("1")),
            ("cleanup.policy", APPEND, Some("delete")),
            ("leader.replication.throttled.replicas", APPEND, Some("0:1")),
        ];
        let only = change_some(&mut client, version, TOPIC, "t", &changes, true).await;
        assert_eq!(only.0, 0, "{}", only.1);
        assert_eq!(config_of(&world), before);
        let (code, text) = change_some(&mut client, version, TOPIC, "t", &changes, false).await;
        assert_eq!(code, 0, "{text}");
        let expected = StreamConfig {
            retention_bytes: 1000,
            ack: AckPolicy::Synced,
            ..before.clone()
        };
        assert_eq!(config_of(&world), expected);
        let undo = [
            ("retention.bytes", DELETE, None),
            ("flush.messages", DELETE, None),
            ("segment.bytes", DELETE, None),
        ];
        let (code, text) = change_some(&mut client, version, TOPIC, "t", &undo, false).await;
        assert_eq!(code, 0, "{text}");
        assert_eq!(config_of(&world), before);

        use ResponseError as Kafka;
        for (changes, error) in [
            (
                vec![("retention.ms", SET, Some("soon"))],
                Kafka::InvalidConfig,
            ),
            (vec![("retention.ms", SET, None)], Kafka::InvalidRequest),
            (vec![("retention.ms", 9, Some("1"))], Kafka::InvalidRequest),
            (
                vec![("retention.ms", APPEND, Some("1"))],
                Kafka::InvalidConfig,
            ),
            (
                vec![("cleanup.policy", APPEND, Some("snapshot"))],
                Kafka::InvalidConfig,
            ),
            (
                vec![("cleanup.policy", SUBTRACT, Some("delete"))],
                Kafka::InvalidConfig,
            ),
            (
                vec![("segment.bytes", SET, Some("1000"))],
                Kafka::InvalidConfig,
            ),
            (
                vec![("max.message.bytes", SET, Some("100000000"))],
                Kafka::InvalidConfig,
            ),
            (
                vec![("min.insync.replicas", SET, Some("2"))],
                Kafka::InvalidConfig,
            ),
            (vec![("retention", SET, Some("2"))], Kafka::InvalidConfig),
            (
                vec![
                    ("retention.ms", SET, Some("2")),
                    ("retention.ms", DELETE, None),
                ],
                Kafka::InvalidRequest,
            ),
            (
                vec![
                    ("retention.ms", SET, Some("2")),
                    ("flush.messages", SET, Some("7")),
                ],
                Kafka::InvalidConfig,
            ),
        ] {
            let (code, text) = change_some(&mut client, version, TOPIC, "t", &changes, false).await;
            assert_eq!(
                ResponseError::try_from_code(code),
                Some(error),
                "{changes:?}"
            );
            assert!(!text.is_empty());
        }
        assert_eq!(config_of(&world), before);
        let change = [("retention.ms", SET, Some("1"))];
        let (code, _) = change_some(&mut client, version, TOPIC, "u", &change, false).await;
        assert_code(code, ResponseError::UnknownTopicOrPartition);
        let (code, _) = change_some(&mut client, version, 8, "g", &change, false).await;
        assert_code(code, ResponseError::InvalidRequest);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_is_set_and_what_is_not_named_gets_its_default() {
    use alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let world = World::start().await;
    let mut client = world.client().await;
    let configs = [
        ("retention.ms", "5000"),
        ("segment.ms", "7000"),
        ("segment.bytes", "50000000"),
    ];
    assert_eq!(
        create(&mut client, 7, topic("t", 1, &configs))
            .await
            .error_code,
        0
    );
    for version in versions(ApiKey::AlterConfigs) {
        let resource = |value: &str| {
            let config = AlterableConfig::default()
                .with_name(words("segment.ms"))
                .with_value(Some(words(value)));
            AlterConfigsResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(words("t"))
                .with_configs(vec![config])
        };
        let request = AlterConfigsRequest::default().with_resources(vec![resource("9000")]);
        let response: AlterConfigsResponse =
            client.call(ApiKey::AlterConfigs, version, &request).await;
        assert_eq!(
            response.responses[0].error_code, 0,
            "{:?}",
            response.responses[0]
        );
        let config = config_of(&world);
        assert_eq!(config.group_max_age_ms, 9000);
        assert_eq!(config.retention_ms, StreamConfig::default().retention_ms);
        assert_eq!(config.segments_per_group, 6, "fixed at creation");
        let twice = request.with_resources(vec![resource("1"), resource("2")]);
        let response: AlterConfigsResponse =
            client.call(ApiKey::AlterConfigs, version, &twice).await;
        for answer in &response.responses {
            assert_code(answer.error_code, ResponseError::InvalidRequest);
        }
        assert_eq!(config_of(&world), config);
    }
}
