//! The scenarios can fail: a client that lies in one thing is caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::agent::Client;
use crate::common::broker::unique;
use crate::common::{Broker, Kind, Session, with_patience};
use crate::stage::{Scenario, Stage};
use crate::{admin, groups, producing, reading};

/// Changes answers to one kind of request.
struct Liar {
    client: Box<dyn Client + Send>,
    op: &'static str,
    lie: fn(&mut Value),
}

impl Client for Liar {
    fn answer(&mut self, request: &Value) -> Value {
        let mut answer = self.client.answer(request);
        if request["op"] == self.op {
            (self.lie)(&mut answer);
        }
        answer
    }
}

/// A scenario that believes a lie fails within this time.
const SOON: Duration = Duration::from_secs(8);

/// Plays a scenario with a client that lies; it must fail.
fn catches(scenario: fn() -> Scenario, op: &'static str, lie: fn(&mut Value)) {
    let scenario = scenario();
    let Some(broker) = Broker::start("a_lie_is_caught", scenario.setup) else {
        return;
    };
    let client = Box::new(Liar {
        client: Kind::Librdkafka.open(),
        op,
        lie,
    });
    let topic = unique("mutant");
    let mut stage = Stage {
        name: topic.clone(),
        client: Session::with(Kind::Librdkafka, client, &broker),
        broker,
        group: format!("{topic}-group"),
        topic,
    };
    let play = AssertUnwindSafe(|| (scenario.play)(&mut stage));
    let outcome = with_patience(SOON, || catch_unwind(play));
    assert!(outcome.is_err(), "the scenario believes the lie about {op}");
}

/// The records of a poll's answer.
fn records(answer: &mut Value) -> Option<&mut Vec<Value>> {
    answer.pointer_mut("/ok/records")?.as_array_mut()
}

/// Changes one field of the last record of a poll.
fn last(answer: &mut Value, change: impl FnOnce(&mut Value)) {
    if let Some(record) = records(answer).and_then(|records| records.last_mut()) {
        change(record);
    }
}

fn add(value: &mut Value, more: i64) {
    *value = json!(value.as_i64().unwrap_or(0) + more);
}

/// Changes a number in a successful answer.
fn shift(answer: &mut Value, pointer: &str) {
    if let Some(value) = answer.pointer_mut(pointer).filter(|value| value.is_i64()) {
        add(value, 1);
    }
}

fn swallow(answer: &mut Value) {
    if answer.get("error").is_some() {
        *answer = json!({"ok": {}});
    }
}

macro_rules! lies {
    ($($name:ident: $scenario:path, $op:literal, $lie:expr;)*) => {
        $(
            #[test]
            fn $name() {
                catches($scenario, $op, $lie);
            }
        )*
    };
}

lies! {
    value: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| record["value"] = json!("00"));
    key: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| record["key"] = json!("00"));
    header: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| record["headers"] = json!([["x", null]]));
    timestamp: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| add(&mut record["timestamp"], 1));
    offset: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| add(&mut record["offset"], 1));
    partition: producing::every_codec_comes_back_exactly, "poll",
        |answer| last(answer, |record| add(&mut record["partition"], 1));
    a_record_too_many: producing::every_codec_comes_back_exactly, "poll",
        |answer| if let Some(records) = records(answer) {
            records.extend(records.last().cloned());
        };
    a_record_too_few: producing::every_codec_comes_back_exactly, "poll",
        |answer| if let Some(records) = records(answer) {
            records.pop();
        };
    order: producing::every_codec_comes_back_exactly, "poll",
        |answer| if let Some(records) = records(answer) {
            records.reverse();
        };
    head: producing::every_codec_comes_back_exactly, "watermarks",
        |answer| shift(answer, "/ok/high");
    start: producing::every_codec_comes_back_exactly, "watermarks",
        |answer| shift(answer, "/ok/low");
    place: producing::keys_choose_kafkas_partitions, "send",
        |answer| shift(answer, "/ok/7/partition");
    acknowledged_offset: producing::acknowledgements_of_all_kinds, "send",
        |answer| shift(answer, "/ok/3/offset");
    kind_of_time: producing::append_time_is_the_brokers, "poll",
        |answer| last(answer, |record| record["append_time"] = json!(false));
    append_time: producing::append_time_is_the_brokers, "poll",
        |answer| last(answer, |record| add(&mut record["timestamp"], 60_000));
    too_large: producing::too_large_is_refused, "send",
        |answer| if answer.pointer("/ok/0/error").is_some() {
            *answer = json!({"ok": [{"partition": 0, "offset": 0}]});
        };
    middle_of_a_batch: reading::offsets_inside_a_compressed_batch, "poll",
        |answer| last(answer, |record| record["value"] = json!("3030"));
    position: reading::seeking, "position", |answer| shift(answer, "/ok/offset");
    out_of_range: reading::positions_out_of_range, "poll", |answer| if answer.get("error").is_some() {
        *answer = json!({"ok": {"records": [], "assignment": []}});
    };
    time: reading::offsets_of_times, "offset_for_time", |answer| shift(answer, "/ok/offset");
    listed_offset: reading::offsets_of_times, "list_offsets", |answer| shift(answer, "/ok/offset");
    committed: groups::commits_survive_the_client, "committed",
        |answer| shift(answer, "/ok/0/offset");
    metadata: groups::commits_survive_the_client, "committed",
        |answer| if let Some(value) = answer.pointer_mut("/ok/0/metadata") {
            *value = json!("other");
        };
    resumed: groups::commits_survive_the_client, "commit", |answer| *answer = json!({"error": "X", "message": ""});
    existing_topic: admin::cluster_and_topics, "create_topic", swallow;
    missing_topic: admin::cluster_and_topics, "delete_topic", swallow;
    replicas: admin::cluster_and_topics, "describe_topic",
        |answer| shift(answer, "/ok/partitions/0/replicas/0");
    address: admin::cluster_and_topics, "describe_cluster", |answer| shift(answer, "/ok/nodes/0/port");
    config: admin::configs, "describe_configs",
        |answer| if let Some(value) = answer.pointer_mut("/ok/retention.ms/value") {
            *value = json!("1");
        };
    whose_config: admin::configs, "describe_configs",
        |answer| if let Some(value) = answer.pointer_mut("/ok/cleanup.policy/own") {
            *value = json!(true);
        };
    shrinking: admin::partitions_grow, "create_partitions", swallow;
    group_state: admin::groups_are_administered, "describe_group",
        |answer| if let Some(value) = answer.pointer_mut("/ok/state") {
            *value = json!("Dead");
        };
    group_with_members: admin::groups_are_administered, "delete_group", swallow;
    low_watermark: admin::records_are_deleted, "delete_records", |answer| shift(answer, "/ok/low");
    deleted_too_much: admin::records_are_deleted, "delete_records", swallow;
}
