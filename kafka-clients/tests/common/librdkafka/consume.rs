//! Consumers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientContext, Offset, Timestamp, TopicPartitionList};
use serde_json::{Value, json};

use super::super::records::hex;
use super::super::{PATIENCE, pause};
use super::{Answer, CALL, Refusal, base, number, partition, partitions, text};

/// How often partitions came and went.
#[derive(Default)]
struct Seen {
    assigned: AtomicUsize,
    revoked: AtomicUsize,
}

impl ClientContext for Seen {}

impl ConsumerContext for Seen {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => self.assigned.fetch_add(list.count(), Ordering::SeqCst),
            Rebalance::Revoke(list) => self.revoked.fetch_add(list.count(), Ordering::SeqCst),
            Rebalance::Error(_) => 0,
        };
    }
}

pub struct Member(BaseConsumer<Seen>);

impl Member {
    pub fn open(request: &Value) -> Result<Self, Refusal> {
        let mut config = base(text(request, "bootstrap"));
        let reset = match text(request, "reset") {
            "" => "earliest",
            "none" => "error",
            other => other,
        };
        let group = match text(request, "group") {
            // The library wants one even where it is not used.
            "" => "none",
            group => group,
        };
        let strategy = match text(request, "strategy") {
            "cooperative" => "cooperative-sticky",
            _ => "range",
        };
        config
            .set("group.id", group)
            .set("client.id", text(request, "consumer"))
            .set(
                "isolation.level",
                match text(request, "isolation") {
                    "" => "read_uncommitted",
                    isolation => isolation,
                },
            )
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", reset)
            .set(
                "allow.auto.create.topics",
                (request["auto_create"] == true).to_string(),
            )
            .set("fetch.wait.max.ms", "200")
            .set("fetch.error.backoff.ms", "50");
        if text(request, "strategy") == "consumer" {
            // The broker says how long sessions are.
            config.set("group.protocol", "consumer");
        } else {
            let session = request["session_ms"].as_i64().unwrap_or(10_000);
            config
                .set("session.timeout.ms", session.to_string())
                .set("heartbeat.interval.ms", "300")
                .set("partition.assignment.strategy", strategy);
        }
        if let Some(instance) = request["instance"].as_str() {
            config.set("group.instance.id", instance);
        }
        if let Some(rack) = request["rack"].as_str() {
            config.set("client.rack", rack);
        }
        Ok(Self(config.create_with_context(Seen::default())?))
    }

    pub fn group(&self) -> Option<ConsumerGroupMetadata> {
        self.0.group_metadata()
    }

    pub fn handle(&self, op: &str, request: &Value) -> Answer {
        let topic = text(request, "topic");
        match op {
            "assign" => {
                let mut list = TopicPartitionList::new();
                let from = match &request["from"] {
                    Value::Null => Offset::Stored,
                    from => offset(from),
                };
                for partition in partitions(request) {
                    list.add_partition_offset(topic, partition, from)?;
                }
                self.0.assign(&list)?;
                Ok(json!({}))
            }
            "subscribe" => {
                let topics = request["topics"].as_array().expect("topics");
                let topics: Vec<&str> = topics.iter().filter_map(Value::as_str).collect();
                self.0.subscribe(&topics)?;
                Ok(json!({}))
            }
            "poll" => self.poll(request),
            "seek" => self.seek(request),
            "position" => {
                let positions = self.0.position()?;
                let found = positions.find_partition(topic, partition(request));
                match found.map(|each| each.offset()) {
                    Some(Offset::Offset(offset)) => Ok(json!({"offset": offset})),
                    _ => Ok(json!({"offset": null})),
                }
            }
            "commit" => {
                let mut list = TopicPartitionList::new();
                for each in request["offsets"].as_array().expect("offsets") {
                    let mut entry = list.add_partition(topic, partition(each));
                    entry.set_offset(Offset::Offset(number(each, "offset")))?;
                    entry.set_metadata(text(each, "metadata"));
                }
                self.0.commit(&list, CommitMode::Sync)?;
                Ok(json!({}))
            }
            "committed" => {
                let mut list = TopicPartitionList::new();
                for partition in partitions(request) {
                    list.add_partition(topic, partition);
                }
                let found = self.0.committed_offsets(list, CALL)?;
                let offsets: Vec<Value> = found
                    .elements()
                    .iter()
                    .filter_map(|each| match each.offset() {
                        Offset::Offset(offset) => Some(json!({"partition": each.partition(),
                            "offset": offset, "metadata": each.metadata()})),
                        _ => None,
                    })
                    .collect();
                Ok(offsets.into())
            }
            "offset_for_time" => {
                let mut list = TopicPartitionList::new();
                let time = Offset::Offset(number(request, "timestamp"));
                list.add_partition_offset(topic, partition(request), time)?;
                let found = self.0.offsets_for_times(list, CALL)?;
                match found.elements()[0].offset() {
                    Offset::Offset(offset) => Ok(json!({"offset": offset})),
                    _ => Ok(json!({"offset": null})),
                }
            }
            "watermarks" => {
                let (low, high) = self.0.fetch_watermarks(topic, partition(request), CALL)?;
                Ok(json!({"low": low, "high": high}))
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    fn poll(&self, request: &Value) -> Answer {
        let begin = Instant::now();
        let wait = Duration::from_millis(number(request, "wait_ms") as u64);
        let mut records = Vec::new();
        loop {
            // Wait for the first record only.
            let left = if records.is_empty() {
                wait.saturating_sub(begin.elapsed())
            } else {
                Duration::ZERO
            };
            match self.0.poll(left) {
                Some(Ok(message)) => records.push(record(&message)),
                Some(Err(error)) => {
                    if !super::passes(&error) {
                        return Err(error.into());
                    }
                }
                None => break,
            }
            if records.len() >= 10_000 {
                break;
            }
        }
        let assignment: Vec<Value> = self
            .0
            .assignment()?
            .elements()
            .iter()
            .map(|each| json!({"topic": each.topic(), "partition": each.partition()}))
            .collect();
        let seen = self.0.context();
        Ok(json!({
            "records": records,
            "assignment": assignment,
            "assigned": seen.assigned.load(Ordering::SeqCst),
            "revoked": seen.revoked.load(Ordering::SeqCst),
        }))
    }

    fn seek(&self, request: &Value) -> Answer {
        let begin = Instant::now();
        loop {
            let (topic, to) = (text(request, "topic"), offset(&request["to"]));
            match self.0.seek(topic, partition(request), to, CALL) {
                Ok(()) => return Ok(json!({})),
                // An assignment takes effect in the background.
                Err(_) if begin.elapsed() < PATIENCE / 3 => pause(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn offset(value: &Value) -> Offset {
    match value {
        Value::Number(number) => Offset::Offset(number.as_i64().expect("an offset")),
        Value::String(text) if text == "end" => Offset::End,
        _ => Offset::Beginning,
    }
}

fn record(message: &BorrowedMessage<'_>) -> Value {
    let headers: Vec<Value> = message
        .headers()
        .map(|headers| {
            headers
                .iter()
                .map(|header| json!([header.key, header.value.map(hex)]))
                .collect()
        })
        .unwrap_or_default();
    let (timestamp, append_time) = match message.timestamp() {
        Timestamp::CreateTime(time) => (time, false),
        Timestamp::LogAppendTime(time) => (time, true),
        Timestamp::NotAvailable => (-1, false),
    };
    json!({
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "append_time": append_time,
        "key": message.key().map(hex),
        "value": message.payload().map(hex),
        "headers": headers,
    })
}
