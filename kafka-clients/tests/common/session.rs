//! Typed requests to a client.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::agent::Client;
use super::records::{NewRecord, Place, Read};
use super::{Broker, Kind, until};

/// Why a request failed: Kafka's name of the error, or `CLIENT:` and the client's own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Failure {
    #[serde(rename = "error")]
    pub name: String,
    pub message: String,
}

/// A partition and a number of records of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Part {
    pub topic: String,
    pub partition: i32,
}

/// What a poll brought.
#[derive(Clone, Debug, Deserialize)]
pub struct Polled {
    pub records: Vec<Read>,
    pub assignment: Vec<Part>,
    /// Partitions that came so far, over all rebalances.
    #[serde(default)]
    pub assigned: u32,
    /// Partitions that went so far.
    #[serde(default)]
    pub revoked: u32,
    /// Partitions that were taken away so far.
    #[serde(default)]
    pub lost: u32,
}

/// An offset, and what it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Found {
    pub offset: Option<i64>,
    #[serde(default)]
    pub timestamp: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Watermarks {
    pub low: i64,
    pub high: i64,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Committed {
    pub partition: i32,
    pub offset: i64,
    #[serde(default)]
    pub metadata: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PartitionInfo {
    pub partition: i32,
    pub leader: Option<i32>,
    pub replicas: Vec<i32>,
    pub isr: Vec<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TopicInfo {
    pub partitions: Vec<PartitionInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Setting {
    pub value: Option<String>,
    /// Whether it was set on the topic.
    pub own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeInfo {
    pub id: i32,
    pub host: String,
    pub port: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ClusterInfo {
    pub cluster_id: Option<String>,
    pub controller: Option<i32>,
    pub nodes: Vec<NodeInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedGroup {
    pub group: String,
    pub protocol_type: String,
    pub state: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MemberInfo {
    pub member: String,
    pub client: String,
    pub instance: Option<String>,
    pub assignment: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GroupInfo {
    pub state: String,
    pub strategy: String,
    pub members: Vec<MemberInfo>,
}

#[derive(Deserialize)]
struct Nothing {}

/// What came of one record.
#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    Failed(Failure),
    Placed(Place),
}

/// A client that talks to a broker.
pub struct Session {
    pub kind: Kind,
    client: Box<dyn Client + Send>,
    bootstrap: String,
}

impl Session {
    pub fn open(kind: Kind, broker: &Broker) -> Self {
        Self::with(kind, kind.open(), broker)
    }

    pub fn with(kind: Kind, client: Box<dyn Client + Send>, broker: &Broker) -> Self {
        Self::at(kind, client, broker.bootstrap())
    }

    /// A client that begins at these addresses.
    pub fn at(kind: Kind, client: Box<dyn Client + Send>, bootstrap: &str) -> Self {
        Self {
            kind,
            client,
            bootstrap: bootstrap.to_owned(),
        }
    }

    /// The request's answer.
    pub fn ask<T: DeserializeOwned>(&mut self, op: &str, fields: Value) -> Result<T, Failure> {
        let Value::Object(mut request) = fields else {
            panic!("a request's fields are an object");
        };
        request.insert("op".to_owned(), op.into());
        request.insert("bootstrap".to_owned(), self.bootstrap.clone().into());
        let request = Value::Object(request);
        let mut answer = self.client.answer(&request);
        if let Some(result) = answer.get_mut("ok") {
            let result = result.take();
            return Ok(serde_json::from_value(result.clone())
                .unwrap_or_else(|error| panic!("{error}: {request} brought {result}")));
        }
        match serde_json::from_value(answer.clone()) {
            Ok(failure) => Err(failure),
            Err(_) => panic!("{} does not do {request}: {answer}", self.kind.name()),
        }
    }

    fn do_it(&mut self, op: &str, fields: Value) -> Result<(), Failure> {
        self.ask::<Nothing>(op, fields).map(|_| ())
    }

    // Administration.

    pub fn try_create_topic(
        &mut self,
        topic: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let configs: BTreeMap<_, _> = configs.iter().copied().collect();
        let fields = json!({"topic": topic, "partitions": partitions, "configs": configs});
        self.do_it("create_topic", fields)
    }

    pub fn create_topic(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        self.try_create_topic(topic, partitions, configs)
            .expect("a topic can be created");
        // Where there are several threads of metadata, it takes a moment until all know.
        until("the topic is known", || {
            let described = self.describe_topic(topic).ok()?;
            let known = described.partitions.len() == partitions as usize;
            let led = described
                .partitions
                .iter()
                .all(|each| each.leader.is_some_and(|leader| leader >= 0));
            (known && led).then_some(())
        });
    }

    pub fn delete_topic(&mut self, topic: &str) -> Result<(), Failure> {
        self.do_it("delete_topic", json!({"topic": topic}))
    }

    pub fn list_topics(&mut self) -> Vec<String> {
        self.ask("list_topics", json!({}))
            .expect("topics are listed")
    }

    pub fn describe_topic(&mut self, topic: &str) -> Result<TopicInfo, Failure> {
        self.ask("describe_topic", json!({"topic": topic}))
    }

    pub fn describe_configs(&mut self, topic: &str) -> Result<BTreeMap<String, Setting>, Failure> {
        self.ask("describe_configs", json!({"topic": topic}))
    }

    pub fn alter_configs(
        &mut self,
        topic: &str,
        set: &[(&str, &str)],
        delete: &[&str],
    ) -> Result<(), Failure> {
        let set: BTreeMap<_, _> = set.iter().copied().collect();
        let fields = json!({"topic": topic, "set": set, "delete": delete});
        self.do_it("alter_configs", fields)
    }

    pub fn create_partitions(&mut self, topic: &str, count: i32) -> Result<(), Failure> {
        self.do_it("create_partitions", json!({"topic": topic, "count": count}))
    }

    pub fn describe_cluster(&mut self) -> ClusterInfo {
        self.ask("describe_cluster", json!({}))
            .expect("the cluster is described")
    }

    pub fn delete_records(
        &mut self,
        topic: &str,
        partition: i32,
        before: i64,
    ) -> Result<Option<i64>, Failure> {
        #[derive(Deserialize)]
        struct Low {
            low: Option<i64>,
        }
        let fields = json!({"topic": topic, "partition": partition, "before": before});
        self.ask::<Low>("delete_records", fields).map(|low| low.low)
    }

    /// `at`: "earliest", "latest", "max_timestamp" or a time in milliseconds.
    pub fn list_offsets(
        &mut self,
        topic: &str,
        partition: i32,
        at: impl Into<Value>,
    ) -> Result<Found, Failure> {
        let fields = json!({"topic": topic, "partition": partition, "at": at.into()});
        self.ask("list_offsets", fields)
    }

    pub fn list_groups(&mut self) -> Vec<ListedGroup> {
        self.ask("list_groups", json!({}))
            .expect("groups are listed")
    }

    pub fn describe_group(&mut self, group: &str) -> Result<GroupInfo, Failure> {
        self.ask("describe_group", json!({"group": group}))
    }

    pub fn delete_group(&mut self, group: &str) -> Result<(), Failure> {
        self.do_it("delete_group", json!({"group": group}))
    }

    pub fn try_group_offsets(&mut self, group: &str) -> Result<Vec<Committed>, Failure> {
        let mut offsets: Vec<Committed> = self.ask("group_offsets", json!({"group": group}))?;
        offsets.sort_by_key(|each| each.partition);
        Ok(offsets)
    }

    pub fn group_offsets(&mut self, group: &str) -> Vec<Committed> {
        self.try_group_offsets(group)
            .expect("a group's offsets are listed")
    }

    pub fn delete_offsets(
        &mut self,
        group: &str,
        topic: &str,
        partitions: &[i32],
    ) -> Result<(), Failure> {
        let fields = json!({"group": group, "topic": topic, "partitions": partitions});
        self.do_it("delete_offsets", fields)
    }

    // Producing.

    /// Opens a producer; `settings` as `{"acks": "all", "compression": "gzip"}`.
    pub fn producer(&mut self, name: &str, settings: Value) {
        let mut fields = object(settings);
        fields.insert("producer".to_owned(), name.into());
        self.do_it("producer", Value::Object(fields))
            .expect("a producer can be opened");
    }

    /// What came of each record.
    pub fn try_send(
        &mut self,
        producer: &str,
        topic: &str,
        records: &[NewRecord],
    ) -> Vec<Result<Place, Failure>> {
        let fields = json!({"producer": producer, "topic": topic, "records": records});
        let outcomes: Vec<Outcome> = self.ask("send", fields).expect("records can be sent");
        assert_eq!(outcomes.len(), records.len());
        let result = |outcome| match outcome {
            Outcome::Placed(place) => Ok(place),
            Outcome::Failed(failure) => Err(failure),
        };
        outcomes.into_iter().map(result).collect()
    }

    /// Where each record is.
    pub fn send(&mut self, producer: &str, topic: &str, records: &[NewRecord]) -> Vec<Place> {
        let outcomes = self.try_send(producer, topic, records);
        let placed = |outcome: Result<Place, Failure>| outcome.expect("the record is stored");
        outcomes.into_iter().map(placed).collect()
    }

    pub fn close_producer(&mut self, producer: &str) {
        self.do_it("close_producer", json!({"producer": producer}))
            .expect("a producer can be closed");
    }

    // Transactions.

    /// A transaction's step: "init_transactions", "begin_transaction", "commit_transaction" or "abort_transaction".
    pub fn try_transaction(&mut self, step: &str, producer: &str) -> Result<(), Failure> {
        self.do_it(step, json!({"producer": producer}))
    }

    pub fn transaction(&mut self, step: &str, producer: &str) {
        self.try_transaction(step, producer)
            .unwrap_or_else(|failure| panic!("{step} of {producer}: {failure:?}"));
    }

    /// Commits offsets of a consumer's group with a producer's transaction: partitions and offsets.
    pub fn try_send_offsets(
        &mut self,
        producer: &str,
        consumer: &str,
        topic: &str,
        offsets: &[(i32, i64)],
    ) -> Result<(), Failure> {
        let fields = json!({
            "producer": producer, "consumer": consumer, "topic": topic, "offsets": offsets,
        });
        self.do_it("send_offsets", fields)
    }

    // Consuming.

    /// Opens a consumer; `settings` as `{"group": "g", "strategy": "range", "reset": "none"}`.
    pub fn consumer(&mut self, name: &str, settings: Value) {
        let mut fields = object(settings);
        fields.insert("consumer".to_owned(), name.into());
        self.do_it("consumer", Value::Object(fields))
            .expect("a consumer can be opened");
    }

    /// Assigns partitions; `from` as for [`seek`](Self::seek), or null to start where committed.
    pub fn assign(&mut self, consumer: &str, topic: &str, partitions: &[i32], from: Value) {
        let fields =
            json!({"consumer": consumer, "topic": topic, "partitions": partitions, "from": from});
        self.do_it("assign", fields)
            .expect("partitions can be assigned");
    }

    pub fn subscribe(&mut self, consumer: &str, topic: &str) {
        self.do_it(
            "subscribe",
            json!({"consumer": consumer, "topics": [topic]}),
        )
        .expect("a topic can be subscribed to");
    }

    pub fn try_poll(&mut self, consumer: &str, wait_ms: u64) -> Result<Polled, Failure> {
        let fields = json!({"consumer": consumer, "wait_ms": wait_ms});
        let mut polled: Polled = self.ask("poll", fields)?;
        polled.assignment.sort();
        Ok(polled)
    }

    pub fn poll(&mut self, consumer: &str) -> Polled {
        self.try_poll(consumer, 200).expect("a consumer can poll")
    }

    /// Polls until that many records came.
    pub fn read(&mut self, consumer: &str, count: usize) -> Vec<Read> {
        let mut records = Vec::new();
        until("records can be read", || {
            records.extend(self.poll(consumer).records);
            (records.len() >= count).then_some(())
        });
        assert_eq!(records.len(), count, "no more records than were sent");
        records
    }

    /// `to`: "beginning", "end" or an offset.
    pub fn seek(&mut self, consumer: &str, topic: &str, partition: i32, to: impl Into<Value>) {
        let fields = json!(
            {"consumer": consumer, "topic": topic, "partition": partition, "to": to.into()});
        self.do_it("seek", fields).expect("a consumer can seek");
    }

    pub fn position(&mut self, consumer: &str, topic: &str, partition: i32) -> i64 {
        let fields = json!({"consumer": consumer, "topic": topic, "partition": partition});
        let found: Found = self.ask("position", fields).expect("a position");
        found.offset.expect("a position is an offset")
    }

    pub fn try_commit(
        &mut self,
        consumer: &str,
        topic: &str,
        offsets: &[(i32, i64, &str)],
    ) -> Result<(), Failure> {
        let offsets: Vec<Value> = offsets
            .iter()
            .map(|(partition, offset, metadata)| {
                json!({"partition": partition, "offset": offset, "metadata": metadata})
            })
            .collect();
        let fields = json!({"consumer": consumer, "topic": topic, "offsets": offsets});
        self.do_it("commit", fields)
    }

    pub fn commit(&mut self, consumer: &str, topic: &str, offsets: &[(i32, i64, &str)]) {
        self.try_commit(consumer, topic, offsets)
            .expect("offsets can be committed");
    }

    pub fn try_committed(
        &mut self,
        consumer: &str,
        topic: &str,
        partitions: &[i32],
    ) -> Result<Vec<Committed>, Failure> {
        let fields = json!({"consumer": consumer, "topic": topic, "partitions": partitions});
        let mut found: Vec<Committed> = self.ask("committed", fields)?;
        found.sort_by_key(|each| each.partition);
        Ok(found)
    }

    pub fn committed(&mut self, consumer: &str, topic: &str, partitions: &[i32]) -> Vec<Committed> {
        let found = self.try_committed(consumer, topic, partitions);
        found.expect("committed offsets")
    }

    pub fn offset_for_time(
        &mut self,
        consumer: &str,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> Found {
        let fields = json!({"consumer": consumer, "topic": topic, "partition": partition,
            "timestamp": timestamp});
        self.ask("offset_for_time", fields)
            .expect("the offset of a time")
    }

    pub fn watermarks(&mut self, consumer: &str, topic: &str, partition: i32) -> Watermarks {
        let fields = json!({"consumer": consumer, "topic": topic, "partition": partition});
        self.ask("watermarks", fields).expect("watermarks")
    }

    pub fn close_consumer(&mut self, consumer: &str) {
        self.do_it("close_consumer", json!({"consumer": consumer}))
            .expect("a consumer can be closed");
    }
}

fn object(fields: Value) -> Map<String, Value> {
    match fields {
        Value::Object(fields) => fields,
        other => panic!("settings are an object, not {other}"),
    }
}
