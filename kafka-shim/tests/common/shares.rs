//! A member of a share group by hand.
#![allow(dead_code)]

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition as Partition, FetchTopic as Topic};
use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use kafka_protocol::messages::share_fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::share_fetch_response::PartitionData;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ApiKey, FetchRequest, FetchResponse, GroupId,
    ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest, ShareFetchResponse,
    ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};
use kera_protocol::batch::{MAX_BATCH_BYTES, Records, batches};
use uuid::Uuid;

use super::newer_bodies::share_acknowledge;
use super::{Client, PATIENCE};

pub const ACCEPT: i8 = 1;
pub const RELEASE: i8 = 2;
pub const REJECT: i8 = 3;
pub const RENEW: i8 = 4;

fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A member, with its session at one broker.
pub struct Sharer {
    pub group: &'static str,
    pub id: &'static str,
    /// Of its next request of the session.
    pub epoch: i32,
}

impl Sharer {
    pub fn new(group: &'static str, id: &'static str) -> Self {
        Self {
            group,
            id,
            epoch: 0,
        }
    }

    /// A heartbeat under an epoch, which joins if that is 0.
    pub async fn beat(
        &self,
        client: &mut Client,
        epoch: i32,
        topic: &str,
    ) -> ShareGroupHeartbeatResponse {
        let topics = vec![TopicName(words(topic))];
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(GroupId(words(self.group)))
            .with_member_id(words(self.id))
            .with_member_epoch(epoch)
            .with_subscribed_topic_names((epoch == 0).then_some(topics));
        client.call(ApiKey::ShareGroupHeartbeat, 1, &request).await
    }

    pub fn fetch_request(
        &self,
        topic: Uuid,
        partitions: &[i32],
        wait_ms: i32,
    ) -> ShareFetchRequest {
        let partitions = partitions
            .iter()
            .map(|number| FetchPartition::default().with_partition_index(*number));
        let topics = FetchTopic::default()
            .with_topic_id(topic)
            .with_partitions(partitions.collect());
        ShareFetchRequest::default()
            .with_group_id(Some(GroupId(words(self.group))))
            .with_member_id(Some(words(self.id)))
            .with_share_session_epoch(self.epoch)
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_records(500)
            .with_batch_size(500)
            .with_topics(vec![topics])
    }

    pub async fn fetch(
        &mut self,
        client: &mut Client,
        topic: Uuid,
        partition: i32,
        wait_ms: i32,
    ) -> ShareFetchResponse {
        let request = self.fetch_request(topic, &[partition], wait_ms);
        let response: ShareFetchResponse = client.call(ApiKey::ShareFetch, 1, &request).await;
        if response.error_code == 0 {
            self.epoch += 1;
        }
        response
    }

    /// Fetches until it has acquired something in the partition: what, as first, last and deliveries.
    pub async fn acquire(
        &mut self,
        client: &mut Client,
        topic: Uuid,
        partition: i32,
    ) -> Vec<(i64, i64, i16)> {
        let acquires = async {
            loop {
                let response = self.fetch(client, topic, partition, 500).await;
                assert_eq!(response.error_code, 0, "{response:?}");
                let acquired = acquired(&response);
                if !acquired.is_empty() {
                    return acquired;
                }
            }
        };
        let acquired = tokio::time::timeout(PATIENCE, acquires).await;
        acquired.expect("there is something to acquire")
    }

    /// Says one thing of records; the partition's error code.
    pub async fn say(
        &mut self,
        client: &mut Client,
        topic: Uuid,
        partition: i32,
        run: (i64, i64),
        what: i8,
    ) -> i16 {
        self.say_all(client, topic, partition, &[run], what).await
    }

    /// The same of several runs, for each of which the request names the partition anew.
    pub async fn say_all(
        &mut self,
        client: &mut Client,
        topic: Uuid,
        partition: i32,
        runs: &[(i64, i64)],
        what: i8,
    ) -> i16 {
        let named = runs.iter().map(|(first, last)| {
            let batch = AcknowledgementBatch::default()
                .with_first_offset(*first)
                .with_last_offset(*last)
                .with_acknowledge_types(vec![what]);
            AcknowledgePartition::default()
                .with_partition_index(partition)
                .with_acknowledgement_batches(vec![batch])
        });
        let of = AcknowledgeTopic::default()
            .with_topic_id(topic)
            .with_partitions(named.collect());
        let request = self.acknowledge_request(vec![of]);
        let response: ShareAcknowledgeResponse =
            client.call(ApiKey::ShareAcknowledge, 1, &request).await;
        if response.error_code != 0 {
            return response.error_code;
        }
        self.epoch += 1;
        response.responses[0].partitions[0].error_code
    }

    fn acknowledge_request(&self, topics: Vec<AcknowledgeTopic>) -> ShareAcknowledgeRequest {
        ShareAcknowledgeRequest::default()
            .with_group_id(Some(GroupId(words(self.group))))
            .with_member_id(Some(words(self.id)))
            .with_share_session_epoch(self.epoch)
            .with_topics(topics)
    }

    /// Renews locks by a request that says whether it does: how long they last, and the partition's error code.
    pub async fn renew(
        &mut self,
        client: &mut Client,
        topic: Uuid,
        run: (i64, i64),
        says: bool,
    ) -> (i32, i16) {
        let batch = AcknowledgementBatch::default()
            .with_first_offset(run.0)
            .with_last_offset(run.1)
            .with_acknowledge_types(vec![RENEW]);
        let partition = AcknowledgePartition::default().with_acknowledgement_batches(vec![batch]);
        let of = AcknowledgeTopic::default()
            .with_topic_id(topic)
            .with_partitions(vec![partition]);
        let body = share_acknowledge(&self.acknowledge_request(vec![of]), 2, says);
        let answer = client.call_with(ApiKey::ShareAcknowledge, 2, &body).await;
        self.epoch += 1;
        // The time to wait, no error and no text, and then what the codec does not know.
        assert_eq!(answer[..7], [0; 7]);
        let lock = i32::from_be_bytes(answer[7..11].try_into().expect("four bytes"));
        let mut rest = Bytes::from([&answer[..7], &answer[11..]].concat());
        let response = ShareAcknowledgeResponse::decode(&mut rest, 1).expect("an answer");
        (lock, response.responses[0].partitions[0].error_code)
    }
}

/// The partitions of an answer.
pub fn parts(response: &ShareFetchResponse) -> Vec<&PartitionData> {
    let topics = response.responses.iter();
    topics.flat_map(|topic| &topic.partitions).collect()
}

/// What was acquired: first, last, deliveries.
pub fn acquired(response: &ShareFetchResponse) -> Vec<(i64, i64, i16)> {
    let runs = parts(response).into_iter();
    let runs = runs.flat_map(|part| &part.acquired_records);
    runs.map(|run| (run.first_offset, run.last_offset, run.delivery_count))
        .collect()
}

/// Sets what is to hold for a resource of this kind, and nothing else; its error code.
pub async fn alter(client: &mut Client, kind: i8, name: &str, set: &[(&str, &str)]) -> i16 {
    let configs = set.iter().map(|(name, value)| {
        AlterableConfig::default()
            .with_name(words(name))
            .with_value(Some(words(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(words(name))
        .with_configs(configs.collect());
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let altered: AlterConfigsResponse = client.call(ApiKey::AlterConfigs, 2, &request).await;
    altered.responses[0].error_code
}

/// A record of a dead-letter topic.
#[derive(Debug)]
pub struct DeadLetter {
    pub key: Option<String>,
    pub value: Option<String>,
    /// The last of each name.
    pub headers: BTreeMap<String, String>,
}

impl DeadLetter {
    /// What Kafka's header of this name tells.
    pub fn told(&self, name: &str) -> &str {
        &self.headers[&format!("__dlq.errors.{name}")]
    }
}

/// Reads a partition of a topic until so many records are there.
pub async fn dead_letters(
    client: &mut Client,
    topic: &str,
    partition: i32,
    count: usize,
) -> Vec<DeadLetter> {
    let request = |offset: u64| {
        let at = Partition::default()
            .with_partition(partition)
            .with_fetch_offset(offset as i64)
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(16 << 20);
        let of = Topic::default()
            .with_topic(TopicName(words(topic)))
            .with_partitions(vec![at]);
        FetchRequest::default()
            .with_replica_id((-1).into())
            .with_max_wait_ms(20)
            .with_min_bytes(1)
            .with_max_bytes(50 << 20)
            .with_session_epoch(-1)
            .with_topics(vec![of])
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let reads = async {
        let (mut found, mut next) = (Vec::new(), 0);
        loop {
            let response: FetchResponse = client.call(ApiKey::Fetch, 12, &request(next)).await;
            let answer = &response.responses[0].partitions[0];
            let bytes = answer.records.clone().unwrap_or_default();
            for batch in batches(&bytes) {
                let (header, batch) = batch.expect("a batch");
                next = header.next_ordinal();
                let mut scratch = Vec::new();
                let records = Records::open(batch, MAX_BATCH_BYTES, &mut scratch);
                for record in records.expect("records") {
                    let record = record.expect("a record");
                    let headers = record.headers();
                    let headers =
                        headers.map(|h| (h.key.to_owned(), text(h.value.unwrap_or_default())));
                    found.push(DeadLetter {
                        key: record.key.map(text),
                        value: record.value.map(text),
                        headers: headers.collect(),
                    });
                }
            }
            if found.len() >= count {
                return found;
            }
        }
    };
    let read = tokio::time::timeout(PATIENCE, reads).await;
    let read = read.expect("the dead letters come");
    assert_eq!(read.len(), count, "no more than these: {read:?}");
    read
}
