//! Administration.

use rdkafka::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewPartitions, NewTopic,
    ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::groups::GroupInfo;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaErrorCode;
use serde_json::{Map, Value, json};

use super::{Answer, CALL, Refusal, base, name_of, number, partition, text};

pub struct Admin {
    client: AdminClient<DefaultClientContext>,
    /// For what the admin client has no call.
    consumer: BaseConsumer,
}

fn refused(code: RDKafkaErrorCode) -> Refusal {
    Refusal::Failed(name_of(code), code.to_string())
}

/// The results of a call about one thing.
fn only<T>(results: Vec<Result<T, (String, RDKafkaErrorCode)>>) -> Result<T, Refusal> {
    let result = results.into_iter().next().expect("one thing was asked for");
    result.map_err(|(_, code)| refused(code))
}

impl Admin {
    pub fn open(bootstrap: &str) -> Self {
        let client = base(bootstrap).create().expect("an admin client");
        let consumer = base(bootstrap)
            .set("group.id", "none")
            .create()
            .expect("a consumer");
        Self { client, consumer }
    }

    pub async fn handle(&self, op: &str, request: &Value) -> Answer {
        let options = AdminOptions::new()
            .request_timeout(Some(CALL))
            .operation_timeout(Some(CALL));
        let (topic, group) = (text(request, "topic"), text(request, "group"));
        match op {
            "create_topic" => {
                let count = number(request, "partitions") as i32;
                let mut new = NewTopic::new(topic, count, TopicReplication::Fixed(1));
                let configs = request["configs"].as_object().cloned().unwrap_or_default();
                for (name, value) in &configs {
                    new = new.set(name, value.as_str().expect("a value"));
                }
                only(self.client.create_topics([&new], &options).await?)?;
                Ok(json!({}))
            }
            "delete_topic" => {
                only(self.client.delete_topics(&[topic], &options).await?)?;
                Ok(json!({}))
            }
            "list_topics" => {
                let metadata = self.consumer.fetch_metadata(None, CALL)?;
                let names: Vec<&str> = metadata.topics().iter().map(|each| each.name()).collect();
                Ok(json!(names))
            }
            "describe_topic" => self.describe_topic(topic),
            "describe_configs" => {
                let resource = ResourceSpecifier::Topic(topic);
                let results = self.client.describe_configs([&resource], &options).await?;
                let found = results.into_iter().next().expect("one topic was asked for");
                let found = found.map_err(refused)?;
                let mut configs = Map::new();
                for entry in found.entries {
                    let own = matches!(entry.source, ConfigSource::DynamicTopic);
                    configs.insert(entry.name, json!({"value": entry.value, "own": own}));
                }
                Ok(configs.into())
            }
            // The call that replaces all settings: what is not set is reset.
            "alter_configs" => {
                let set = request["set"].as_object().cloned().unwrap_or_default();
                let mut change = AlterConfig::new(ResourceSpecifier::Topic(topic));
                for (name, value) in &set {
                    change = change.set(name, value.as_str().expect("a value"));
                }
                let results = self.client.alter_configs([&change], &options).await?;
                let result = results.into_iter().next().expect("one topic was asked for");
                result.map_err(|(_, code)| refused(code))?;
                Ok(json!({}))
            }
            "create_partitions" => {
                let new = NewPartitions::new(topic, number(request, "count") as usize);
                only(self.client.create_partitions([&new], &options).await?)?;
                Ok(json!({}))
            }
            "describe_cluster" => {
                let metadata = self.consumer.fetch_metadata(None, CALL)?;
                let nodes: Vec<Value> = metadata
                    .brokers()
                    .iter()
                    .map(|each| json!({"id": each.id(), "host": each.host(), "port": each.port()}))
                    .collect();
                let id = self.consumer.client().fetch_cluster_id(CALL);
                Ok(json!({"cluster_id": id, "controller": null, "nodes": nodes}))
            }
            "delete_records" => {
                let mut list = TopicPartitionList::new();
                let before = match number(request, "before") {
                    -1 => Offset::End,
                    before => Offset::Offset(before),
                };
                list.add_partition_offset(topic, partition(request), before)?;
                let found = self.client.delete_records(&list, &options).await?;
                let found = outcome(&found.elements()[0]);
                match found {
                    Ok(Offset::Offset(low)) => Ok(json!({"low": low})),
                    Ok(other) => panic!("{other:?} is no low watermark"),
                    Err(error) => Err(error.into()),
                }
            }
            "list_offsets" => self.list_offsets(topic, request),
            "list_groups" => {
                let list = self.consumer.fetch_group_list(None, CALL)?;
                let groups: Vec<Value> = list
                    .groups()
                    .iter()
                    .map(|each| {
                        json!({"group": each.name(), "protocol_type": each.protocol_type(),
                            "state": each.state()})
                    })
                    .collect();
                Ok(groups.into())
            }
            "describe_group" => {
                let list = self.consumer.fetch_group_list(Some(group), CALL)?;
                list.groups()
                    .iter()
                    .find(|each| each.name() == group)
                    .map(describe_group)
                    .ok_or_else(|| {
                        Refusal::Failed("GROUP_ID_NOT_FOUND".to_owned(), "not listed".to_owned())
                    })
            }
            "delete_group" => {
                only(self.client.delete_groups(&[group], &options).await?)?;
                Ok(json!({}))
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    fn describe_topic(&self, topic: &str) -> Answer {
        let metadata = self.consumer.fetch_metadata(Some(topic), CALL)?;
        let found = &metadata.topics()[0];
        if let Some(error) = found.error() {
            return Err(refused(error.into()));
        }
        let partitions: Vec<Value> = found
            .partitions()
            .iter()
            .map(|each| {
                json!({"partition": each.id(), "leader": each.leader(),
                    "replicas": each.replicas(), "isr": each.isr()})
            })
            .collect();
        Ok(json!({"partitions": partitions}))
    }

    fn list_offsets(&self, topic: &str, request: &Value) -> Answer {
        let partition = partition(request);
        if let Some(time) = request["at"].as_i64() {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, partition, Offset::Offset(time))?;
            let found = self.consumer.offsets_for_times(list, CALL)?;
            return match found.elements()[0].offset() {
                Offset::Offset(offset) => Ok(json!({"offset": offset})),
                _ => Ok(json!({"offset": null})),
            };
        }
        let (low, high) = self.consumer.fetch_watermarks(topic, partition, CALL)?;
        match request["at"].as_str() {
            Some("earliest") => Ok(json!({"offset": low})),
            Some("latest") => Ok(json!({"offset": high})),
            _ => Err(Refusal::Unsupported),
        }
    }
}

fn outcome(element: &TopicPartitionListElem<'_>) -> KafkaResult<Offset> {
    element.error().map(|()| element.offset())
}

fn describe_group(group: &GroupInfo) -> Value {
    let members: Vec<Value> = group
        .members()
        .iter()
        .map(|each| {
            let assignment = each.assignment().map(assigned).unwrap_or_default();
            json!({"member": each.id(), "client": each.client_id(), "instance": null,
                "assignment": assignment})
        })
        .collect();
    json!({"state": group.state(), "strategy": group.protocol(), "members": members})
}

/// Reads an assignment as consumers exchange it: version, topics with their partitions.
fn assigned(bytes: &[u8]) -> Vec<Value> {
    let mut at = 2;
    let mut take = |count: usize| {
        at += count;
        &bytes[at - count..at]
    };
    let mut list = Vec::new();
    let number = |bytes: &[u8]| i32::from_be_bytes(bytes.try_into().expect("four bytes"));
    for _ in 0..number(take(4)) {
        let length = take(2);
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let topic = String::from_utf8(take(length).to_vec()).expect("a topic is text");
        for _ in 0..number(take(4)) {
            list.push(json!({"topic": topic, "partition": number(take(4))}));
        }
    }
    list
}
