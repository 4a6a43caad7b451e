//! A user with a latency objective beside one that floods the broker.

use std::io::Read;

use bytes::{Bytes, BytesMut};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{FrameKind, Hello};
use kera_protocol::ids::StreamId;
use kera_protocol::login::{REPLY_HEAD_BYTES, first};
use kera_protocol::v1;
use serde_json::json;

use crate::common::http::get;
use crate::common::raw::{Raw, batch_of, frame_of};
use crate::logins::{PASSWORD, World, world};

/// Appends of the flood, which is not done before minutes have passed.
const FLOOD: u32 = 300;

/// A connection of a user, after its hello.
fn connect(world: &World, user: &str) -> Raw {
    let mut raw = Raw::connect_to(world.broker.address());
    raw.send(&first(0, format!("\0{user}\0{PASSWORD}").as_bytes()));
    let mut head = [0; REPLY_HEAD_BYTES + 4];
    let read = raw.socket.read_exact(&mut head);
    read.expect("the proof is answered");
    assert_eq!(head[..2], [0, 0], "{user} is let in");
    raw.send(&Hello::CURRENT.encode());
    raw.hello_reply();
    raw
}

fn stream_id(world: &World, stream: &str) -> Bytes {
    let told = world.run("admin", &["stream", "describe", stream, "--json"], b"");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let id = told["id"].as_str().and_then(|id| id.parse().ok());
    let id: StreamId = id.expect("an id");
    Bytes::copy_from_slice(id.as_bytes())
}

fn stored(world: &World, stream: &str) -> u64 {
    let told = world.run("admin", &["stream", "describe", stream, "--json"], b"");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let records = told["lane_descriptions"][0]["records"].as_u64();
    records.expect("a number")
}

fn append(stream: &Bytes, correlation: u32) -> BytesMut {
    let request = v1::AppendRequest {
        stream: stream.clone(),
        ..Default::default()
    };
    frame_of(FrameKind::Append, correlation, &request, &batch_of(b"v"))
}

fn read(stream: &Bytes, correlation: u32) -> BytesMut {
    let request = v1::ReadRequest {
        stream: stream.clone(),
        max_bytes: 1 << 20,
        ..Default::default()
    };
    frame_of(FrameKind::Read, correlation, &request, &[])
}

fn metric(world: &World, name: &str) -> u64 {
    let text = get(world.broker.http(), "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim().parse().expect("a number")
}

/// A broker that can do four requests in a second, of which 2.4 are let in.
fn slow_broker() -> World {
    world(&[
        "--auth-mechanisms",
        "SCRAM-SHA-512,PLAIN",
        "--http-listen",
        "127.0.0.1:0",
        "--objectives-requests-per-second",
        "4",
    ])
}

fn objective(rate: &'static str) -> [&'static str; 8] {
    [
        "quota",
        "set",
        "--objective-latency",
        "20s",
        "--objective-request-rate",
        rate,
        "--objective-byte-rate",
        "1KiB",
    ]
}

#[test]
fn a_user_with_an_objective_is_served_before_a_flood_that_waits() {
    let world = slow_broker();
    for stream in ["flood", "own"] {
        let create = [
            "stream",
            "create",
            stream,
            "--streamlets",
            "1",
            "--lanes",
            "1",
        ];
        world.run("admin", &create, b"");
    }
    let (flooded, own) = (stream_id(&world, "flood"), stream_id(&world, "own"));
    let mut ann = connect(&world, "ann");
    ann.send(&append(&own, 1));
    assert_eq!(ann.append_answer().1.error, 0, "nothing waits yet");
    let of_ann = ["--principal", "User:ann"];
    world.run("admin", &[&objective("1")[..], &of_ann].concat(), b"");

    let mut flood = connect(&world, "admin");
    let mut all: Vec<u8> = (0..FLOOD).flat_map(|one| append(&flooded, one)).collect();
    let ping = frame_of(FrameKind::Ping, 999, &v1::CallRequest::default(), &[]);
    all.extend_from_slice(&ping);
    flood.send(&all);
    // What is no append passes those that wait.
    let mut answers = Vec::new();
    loop {
        let frame = flood.next().expect("an answer");
        if frame.kind == FrameKind::Pong {
            break;
        }
        answers.push(frame);
    }
    let mut reader = connect(&world, "admin");
    reader.send(&read(&own, 7));
    // Appends and reads of ann go on, on her connection and on a new one.
    let mut another = connect(&world, "ann");
    for number in 2..6 {
        ann.send(&append(&own, number));
        let (answered, reply) = ann.append_answer();
        assert_eq!((answered, reply.error), (number, 0), "{}", reply.message);
        another.send(&read(&own, number));
        let frame = another.next().expect("an answer");
        assert_eq!(
            (frame.kind, frame.correlation),
            (FrameKind::ReadReply, number)
        );
        assert!(!frame.body.is_empty());
    }
    assert!(stored(&world, "flood") < u64::from(FLOOD));
    assert!(metric(&world, "kera_turn_waits_total ") > 0);
    let met = r#"kera_objective_answers_total{user="ann",result="met"} "#;
    assert!(metric(&world, met) > 0);

    // Without an objective nobody waits any more.
    world.run(
        "admin",
        &["quota", "delete", "--principal", "User:ann", "--yes"],
        b"",
    );
    let frame = reader.next().expect("an answer");
    assert_eq!((frame.kind, frame.correlation), (FrameKind::ReadReply, 7));
    while answers.len() < FLOOD as usize {
        answers.push(flood.next().expect("an answer"));
    }
    let mut taken = 0;
    for frame in answers {
        let reply: v1::AppendResponse = frame.message().expect("an answer");
        let gave_up = reply.error == ErrorCode::Overloaded as u32;
        // Ten seconds is the most that one waits.
        assert!(reply.error == 0 || gave_up, "{}", reply.message);
        assert!(
            !gave_up || reply.message.contains("latency objective"),
            "{}",
            reply.message
        );
        taken += u64::from(reply.error == 0);
    }
    assert_eq!(stored(&world, "flood"), taken);
    assert_eq!(metric(&world, "kera_turns_waiting "), 0);
}

#[test]
fn an_objective_that_cannot_be_met_is_refused_and_others_are_kept() {
    let mut world = slow_broker();
    let refused = |words: &[&str], why: &str| {
        let finished = world.attempt("admin", "right", words, b"");
        assert!(!finished.status.success(), "{words:?}");
        assert!(finished.stderr.contains(why), "{}", finished.stderr);
    };
    let of = |user: &'static str| ["--principal", user];
    let left = "90.0 % are left of the 90 % that may be guaranteed";
    refused(&[&objective("3")[..], &of("User:ann")].concat(), left);
    world.run(
        "admin",
        &[&objective("2")[..], &of("User:ann")].concat(),
        b"",
    );
    refused(
        &[&objective("2")[..], &of("User:bob")].concat(),
        "user ann has 83.3 %",
    );
    refused(
        &[&objective("0.1")[..], &of("User:*")].concat(),
        "of one user by name",
    );
    let soon = [
        "quota",
        "set",
        "--principal",
        "User:ann",
        "--objective-latency",
        "1ms",
    ];
    refused(&soon, "objectives.latency");
    let part = [
        "quota",
        "set",
        "--principal",
        "User:bob",
        "--objective-latency",
        "1s",
    ];
    refused(
        &part,
        "lacks objective_request_rate and objective_byte_rate",
    );
    let part = [
        "quota",
        "delete",
        "--principal",
        "User:ann",
        "--limit",
        "objective_byte_rate",
        "--yes",
    ];
    refused(&part, "lacks objective_byte_rate");
    world.broker.stop();
    world.broker.restart();
    let listed = world.run("admin", &["quota", "list", "--json"], b"");
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let limits = json!({"objective_latency_ms": 20000.0, "objective_request_rate": 2.0, "objective_byte_rate": 1024.0});
    assert_eq!(
        listed,
        json!([{"principal": "User:ann", "client_id": null, "address": null, "limits": limits}])
    );
    assert_eq!(metric(&world, "kera_objectives_guaranteed_percent "), 83);
    let calibrate = world.attempt("admin", "right", &["calibrate"], b"");
    assert!(
        calibrate.stderr.contains("delete it first"),
        "{}",
        calibrate.stderr
    );
    world.run(
        "admin",
        &["quota", "delete", "--principal", "User:ann", "--yes"],
        b"",
    );
    assert_eq!(metric(&world, "kera_objectives_guaranteed_percent "), 0);
}
