//! `kera stream`.

use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use serde_json::Value;

use crate::common::Broker;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};

#[test]
fn created_listed_described_and_deleted() {
    let broker = Broker::start();
    assert_eq!(broker.json(&["stream", "list"]), serde_json::json!([]));
    let create = [
        "stream",
        "create",
        "clicks",
        "--streamlets",
        "3",
        "--lanes",
        "2",
        "--ack",
        "synced",
        "--segment-size",
        "128KiB",
        "--segments-per-group",
        "4",
        "--retention-time",
        "7d",
        "--retention-bytes",
        "10GiB",
        "--group-max-age",
        "1h",
    ];
    let created = broker.json(&create);
    assert_eq!(created["streamlets"], 3);
    assert_eq!(created["lanes"], 2);
    assert_eq!(created["ack"], "synced");
    assert_eq!(created["segment_size"], 128 << 10);
    assert_eq!(created["retention_ms"], 7 * 24 * 3600 * 1000_u64);
    assert_eq!(created["retention_bytes"], 10_u64 << 30);
    assert_eq!(created["group_max_age_ms"], 3600 * 1000);
    assert_eq!(created["owners"].as_array().map(Vec::len), Some(3));
    assert_eq!(created["owners"][0]["owner"], broker.address());
    let listed = broker.json(&["stream", "list"]);
    assert_eq!(listed[0]["id"], created["id"]);
    let described = broker.json(&["stream", "describe", "clicks"]);
    assert_eq!(described["id"], created["id"]);
    assert_eq!(
        described["lane_descriptions"].as_array().map(Vec::len),
        Some(6)
    );

    let said = broker.refused(&["stream", "create", "clicks"]);
    assert!(said.contains("STREAM_EXISTS"), "{said}");
    broker.run(&["stream", "create", "clicks", "--if-not-exists"]);

    broker.feed(&["produce", "clicks", "-q"], b"one\n");
    broker.run(&["stream", "delete", "clicks", "--yes"]);
    assert_eq!(broker.json(&["stream", "list"]), serde_json::json!([]));
    let said = broker.refused(&["consume", "clicks"]);
    assert!(said.contains("UNKNOWN_STREAM"), "{said}");
    let again = broker.json(&["stream", "create", "clicks"]);
    assert_ne!(again["id"], created["id"]);
    assert_eq!(
        broker.run(&["consume", "clicks"]),
        "",
        "a new stream of an old name is empty"
    );
}

#[test]
fn refusals_name_object_and_code() {
    let broker = Broker::start();
    for (words, code) in [
        (vec!["stream", "describe", "nothing"], "UNKNOWN_STREAM"),
        (
            vec!["stream", "delete", "nothing", "--yes"],
            "UNKNOWN_STREAM",
        ),
        (
            vec!["stream", "alter", "nothing", "--lanes", "2"],
            "UNKNOWN_STREAM",
        ),
        (vec!["produce", "nothing"], "UNKNOWN_STREAM"),
        (vec!["consume", "nothing"], "UNKNOWN_STREAM"),
        (vec!["stream", "create", "a/b"], "INVALID_NAME"),
        (vec!["stream", "create", ".."], "INVALID_NAME"),
        (vec!["stream", "create", "_kera-mine"], "INVALID_NAME"),
        (
            vec!["stream", "create", "small", "--segment-size", "1KiB"],
            "INVALID_ARGUMENT",
        ),
    ] {
        let said = broker.refused(&words);
        assert!(said.starts_with("error: "), "{said}");
        assert!(said.contains(code), "{words:?}: {said}");
    }
    broker.run(&["stream", "create", "s", "--lanes", "4"]);
    let said = broker.refused(&["stream", "alter", "s", "--lanes", "2"]);
    assert!(said.contains("INVALID_ARGUMENT"), "{said}");
    let said = broker.refused(&["consume", "s", "--streamlet", "9", "--lane", "0"]);
    assert!(said.contains("streamlet") || said.contains("9/0"), "{said}");
    // Nothing of this has hurt.
    broker.feed(&["produce", "s", "-q"], b"fine\n");
    assert_eq!(broker.run(&["consume", "s"]), "fine\n");
}

#[test]
fn altered_settings_survive_a_restart() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(
        &["produce", "s", "-q", "--key-separator", ","],
        b"a,1\nb,2\nc,3\nd,4\n",
    );
    let altered = broker.json(&[
        "stream",
        "alter",
        "s",
        "--lanes",
        "4",
        "--retention-time",
        "30d",
        "--ack",
        "memory",
    ]);
    assert_eq!(altered["lanes"], 4);
    assert_eq!(altered["lane_generation"], 1);
    broker.feed(
        &["produce", "s", "-q", "--key-separator", ","],
        b"a,5\nb,6\nc,7\nd,8\n",
    );
    broker.run(&["stream", "alter", "s", "--ack", "written"]);
    broker.stop();
    broker.restart();
    let described = broker.json(&["stream", "describe", "s"]);
    assert_eq!(described["lanes"], 4);
    assert_eq!(described["ack"], "written");
    assert_eq!(described["retention_ms"], 30 * 24 * 3600 * 1000_u64);
    let text = broker.run(&["consume", "s"]);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["1", "2", "3", "4", "5", "6", "7", "8"]);
}

/// Partitions that streamlets hold in unequal numbers: what a producer of an older version takes for
/// them would send keys elsewhere.
#[test]
fn a_producer_that_knows_equal_numbers_of_lanes_only_is_refused() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "4"]);
    let altered = broker.json(&["stream", "alter", "s", "--partitions", "6"]);
    assert_eq!(
        (&altered["partitions"], &altered["lanes"]),
        (&6.into(), &2.into())
    );
    let stream = stream_id(&broker, "s");
    let mut raw = Raw::open(&broker);
    let mut append = |streamlet, lane, lane_generation, partitions| {
        let request = v1::AppendRequest {
            stream: stream.clone(),
            streamlet,
            lane,
            lane_generation,
            partitions,
            transactional_id: String::new(),
        };
        let frame = frame_of(FrameKind::Append, 1, &request, &batch_of(b"v"));
        raw.send(&frame);
        let (_, answer) = raw.append_answer();
        (ErrorCode::from_number(answer.error), answer.message)
    };
    let (code, text) = append(0, 0, 1, 0);
    assert_eq!(code, Some(ErrorCode::UnsupportedVersion));
    assert!(
        text.contains("6 partitions") && text.contains("update it"),
        "{text}"
    );
    assert_eq!(append(0, 0, 0, 0).0, Some(ErrorCode::StaleLanes));
    assert_eq!(append(2, 1, 1, 6).0, Some(ErrorCode::UnknownLane));
    for (streamlet, lane) in [(0, 0), (0, 1), (1, 1), (2, 0), (3, 0)] {
        assert_eq!(append(streamlet, lane, 1, 6).0, Some(ErrorCode::Ok));
    }
    // With as many lanes in each it may go on.
    broker.run(&["stream", "alter", "s", "--lanes", "2"]);
    assert_eq!(append(3, 1, 2, 0).0, Some(ErrorCode::Ok));
    let said = broker.refused(&["stream", "alter", "s", "--partitions", "7"]);
    assert!(said.contains("partitions is 8 and may only grow"), "{said}");
    assert_eq!(broker.json(&["stream", "describe", "s"])["partitions"], 8);
}

#[test]
fn trimmed_records_are_not_served_any_more() {
    let mut broker = Broker::start();
    broker.run(&[
        "stream",
        "create",
        "s",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "1",
    ]);
    let input: String = (0..20_000).map(|n| format!("{n:019}\n")).collect();
    broker.feed(
        &["produce", "s", "-q", "--batch-size", "8KiB"],
        input.as_bytes(),
    );
    let groups = |broker: &Broker| {
        let described = broker.json(&["stream", "describe", "s"]);
        let lane = described["lane_descriptions"][0].clone();
        let groups = lane["groups"].as_array().map_or(0, Vec::len);
        (lane["log_start"].as_u64(), groups)
    };
    let (_, before) = groups(&broker);
    let said = broker.refused(&["stream", "trim", "s", "--ordinal", "12345"]);
    assert!(
        said.contains("lane"),
        "ordinals count within a lane: {said}"
    );
    let lane = ["--streamlet", "0", "--lane", "0"];
    let trim = |ordinal| [&["stream", "trim", "s", "--ordinal", ordinal], &lane[..]].concat();
    let said = broker.refused(&trim("20001"));
    assert!(said.contains("above 20000, where lane 0/0"), "{said}");
    broker.run(&trim("12345"));
    let first = |broker: &Broker| -> Value {
        let text = broker.run(&["consume", "s", "--format", "jsonl", "--max", "1"]);
        serde_json::from_str(&text).expect("a record")
    };
    assert_eq!(first(&broker)["ordinal"], 12_345);
    let (start, after) = groups(&broker);
    assert_eq!(start, Some(12_345));
    assert!(
        after < before,
        "whole groups below are deleted: {before}, then {after}"
    );
    broker.kill();
    broker.restart();
    assert_eq!(first(&broker)["ordinal"], 12_345);
    broker.run(&["stream", "trim", "s", "--everything", "--yes"]);
    assert_eq!(broker.run(&["consume", "s"]), "");
    broker.feed(&["produce", "s", "-q"], b"next\n");
    let next = first(&broker);
    assert_eq!(next["value"], "next");
    assert!(
        next["ordinal"].as_u64() >= Some(20_000),
        "ordinals are never reused: {next}"
    );
}

/// The pins of a stream by name: state, why it is lost if it is, and whether it holds anything back.
fn pins(broker: &Broker) -> Vec<(String, String, String, bool)> {
    let listed = broker.json(&["pin", "list", "--stream", "s"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pins = listed.as_array().expect("a list").iter();
    let of = |pin: &Value| {
        let holds = pin["held_bytes"].as_u64() > Some(0);
        (
            text(&pin["name"]),
            text(&pin["state"]),
            text(&pin["lost"]["cause"]),
            holds,
        )
    };
    pins.map(of).collect()
}

#[test]
fn retention_waits_for_pins_within_their_bounds_and_a_trim_does_not() {
    let broker = Broker::with(&["--retention-check-interval", "100ms"]);
    let create = ["stream", "create", "s", "--segment-size", "64KiB"];
    broker.run(&[&create[..], &["--segments-per-group", "1"]].concat());
    let input: String = (0..20_000).map(|n| format!("{n:019}\n")).collect();
    let produce = ["produce", "s", "-q", "--batch-size", "8KiB"];
    broker.feed(&produce, input.as_bytes());
    let pin =
        |name: &str, more: &[&str]| broker.json(&[&["pin", "create", "s", name], more].concat());
    let made = pin("savepoint", &["--policy", "wait", "--job", "billing"]);
    assert_eq!(made["positions"][0]["ordinal"], 0);
    assert_eq!(made["job"], "billing");
    pin("warned", &[]);
    pin("small", &["--policy", "wait", "--max-bytes", "1KiB"]);
    let later = pin("later", &["--policy", "wait", "--at", "end"]);
    assert_eq!(later["positions"][0]["ordinal"], 20_000);
    let said = broker.refused(&["pin", "create", "s", "no good"]);
    assert!(said.contains("cannot be named"), "{said}");
    let start = |broker: &Broker| {
        let described = broker.json(&["stream", "describe", "s"]);
        described["lane_descriptions"][0]["log_start"].as_u64()
    };

    broker.run(&["stream", "alter", "s", "--retention-bytes", "64KiB"]);
    // Retention has looked once it says which pins it has not waited for.
    broker.until(&["pin", "list", "--stream", "s"], |listed| {
        let pins = listed.as_array().expect("a list").iter();
        pins.filter(|pin| pin["state"] == "lost").count() == 2
    });
    let pins_now = |broker: &Broker| pins(broker).into_iter();
    let named = |of: &(String, String, String, bool)| {
        let (name, state, cause, holds) = of;
        format!("{name} {state} {cause} {holds}")
    };
    assert_eq!(
        pins_now(&broker).map(|pin| named(&pin)).collect::<Vec<_>>(),
        [
            "later kept  false",
            "savepoint held  true",
            "small lost bytes false",
            "warned lost retention false",
        ]
    );
    assert_eq!(start(&broker), Some(0), "the first record is still there");
    // One of the same name is moved, and needs what is there now.
    pin("warned", &["--at", "end"]);
    let told = broker.run(&["pin", "describe", "s", "savepoint"]);
    assert!(told.contains("billing") && told.contains("held"), "{told}");

    // One that waits, and for nothing that is due.
    pin("last", &["--policy", "wait", "--at", "end"]);
    let deleted = broker.json(&["pin", "delete", "s", "savepoint", "--yes"]);
    assert_eq!(deleted["name"], "savepoint");
    broker.until(&["stream", "describe", "s"], |told| {
        told["lane_descriptions"][0]["log_start"].as_u64() > Some(0)
    });
    let gone = broker.refused(&["pin", "create", "s", "savepoint", "--from-group", "none"]);
    assert!(gone.contains("none"), "{gone}");
    broker.feed(&produce, b"one more\n");
    let trimmed = broker.json(&["stream", "trim", "s", "--everything", "--yes"]);
    assert_eq!(
        trimmed["lost_pins"],
        serde_json::json!(["last", "later", "warned"]),
        "a trim waits for nobody"
    );
    let states = pins_now(&broker).map(|(_, state, cause, _)| (state, cause));
    let trim = ("lost".to_owned(), "trim".to_owned());
    assert_eq!(states.filter(|one| *one == trim).count(), 3);

    // They go with their stream, and one of the same name has none.
    broker.run(&["stream", "delete", "s", "--yes"]);
    broker.run(&create);
    assert_eq!(broker.json(&["pin", "list"]), serde_json::json!([]));
}
