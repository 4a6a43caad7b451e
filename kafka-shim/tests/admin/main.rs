//! Administration by hand, over a socket: every API in every version that is served.

mod absent;
mod broker_configs;
#[path = "../common/mod.rs"]
mod common;
mod configs;
mod loggers;
mod metadata;
mod offsets;
mod quotas;
mod topics;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, CreateTopicsResponse, ProduceRequest, ProduceResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_kafka_shim::apis;

use common::Client;

/// A topic's name as the codec takes it.
fn name(text: &str) -> TopicName {
    TopicName(words(text))
}

/// Text as the codec takes it.
fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Every version of an API that is served.
fn versions(api: ApiKey) -> std::ops::RangeInclusive<i16> {
    let api = apis::find(api as i16).expect("an API that is served");
    api.min..=api.max
}

#[track_caller]
fn assert_code(code: i16, expected: ResponseError) {
    assert_eq!(ResponseError::try_from_code(code), Some(expected));
}

/// A topic to create.
fn topic(text: &str, partitions: i32, configs: &[(&str, &str)]) -> CreatableTopic {
    let configs = configs.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(words(name))
            .with_value(Some(words(value)))
    });
    CreatableTopic::default()
        .with_name(name(text))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs.collect())
}

async fn create(client: &mut Client, version: i16, topic: CreatableTopic) -> CreatableTopicResult {
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    let response: CreateTopicsResponse = client.call(ApiKey::CreateTopics, version, &request).await;
    assert_eq!(response.topics.len(), 1);
    response.topics[0].clone()
}

/// Creates a topic that must come to be.
async fn created(client: &mut Client, text: &str, partitions: i32) -> CreatableTopicResult {
    let result = create(client, 7, topic(text, partitions, &[])).await;
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    result
}

/// Appends a batch and returns its first offset.
async fn produce(client: &mut Client, text: &str, partition: i32, records: Bytes) -> i64 {
    let reply = produced(client, text, partition, records).await;
    let answer = &reply.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, 0);
    answer.base_offset
}

/// What a Produce request of one batch is answered.
async fn produced(
    client: &mut Client,
    text: &str,
    partition: i32,
    records: Bytes,
) -> ProduceResponse {
    let partition = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(name(text))
                .with_partition_data(vec![partition]),
        ]);
    client.call(ApiKey::Produce, 9, &request).await
}
