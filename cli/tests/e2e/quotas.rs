//! Quotas of native clients: appends and reads beyond them wait, and nothing else does.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{Frame, FrameKind};
use kera_protocol::v1::{self, CallMethod};
use serde_json::json;

use crate::common::http::get;
use crate::common::ports::Reserved;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::common::{Broker, PATIENCE};

/// So long the broker holds an answer back at most, with some to spare.
const HELD: Duration = Duration::from_secs(9);

/// An append of one record.
fn append_frame(stream: &Bytes, correlation: u32, value: &[u8]) -> BytesMut {
    let request = v1::AppendRequest {
        stream: stream.clone(),
        ..Default::default()
    };
    frame_of(FrameKind::Append, correlation, &request, &batch_of(value))
}

fn append(raw: &mut Raw, stream: &Bytes, correlation: u32) {
    raw.send(&append_frame(stream, correlation, &[b'v'; 1000]));
}

/// Short appends with these numbers, and `last` behind them, at once.
fn send_all(raw: &mut Raw, stream: &Bytes, numbers: Range<u32>, last: &[u8]) {
    let mut all: Vec<u8> = numbers
        .flat_map(|number| append_frame(stream, number, b"v"))
        .collect();
    all.extend_from_slice(last);
    raw.send(&all);
}

fn ping() -> BytesMut {
    frame_of(FrameKind::Ping, 99, &v1::CallRequest::default(), &[])
}

fn read(raw: &mut Raw, stream: &Bytes, correlation: u32) {
    let request = v1::ReadRequest {
        stream: stream.clone(),
        max_bytes: 1 << 20,
        ..Default::default()
    };
    raw.send(&frame_of(FrameKind::Read, correlation, &request, &[]));
}

/// A ping, and a control call such as a member of a group makes, are answered before anything else.
fn others_pass(raw: &mut Raw, begun: Instant) {
    let call = v1::CallRequest {
        method: CallMethod::ListStreams.into(),
        deadline_ms: 0,
    };
    let body = v1::ListStreamsRequest::default().encode_to_vec();
    raw.send(&frame_of(FrameKind::Call, 98, &call, &body));
    raw.send(&ping());
    let mut waited = Vec::new();
    for _ in 0..2 {
        let frame = raw.next().expect("an answer");
        waited.push(frame.kind);
    }
    waited.sort_by_key(|kind| *kind as u8);
    let late = begun.elapsed() >= HELD;
    let all = [FrameKind::Pong, FrameKind::CallReply];
    assert!(
        late || all.iter().all(|kind| waited.contains(kind)),
        "{waited:?}"
    );
}

fn answer(raw: &mut Raw, kind: FrameKind, correlation: u32) -> Frame {
    let frame = raw.next().expect("an answer");
    assert_eq!((frame.kind, frame.correlation), (kind, correlation));
    frame
}

/// A broker with a stream of one lane, and the stream's id.
fn broker_with_stream() -> (Broker, Bytes) {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]);
    let stream = stream_id(&broker, "s");
    (broker, stream)
}

/// Changes what clients may do that prove nothing.
fn quota(broker: &Broker, words: &[&str]) {
    let anonymous = ["--principal", "User:ANONYMOUS"];
    broker.run(&[&["quota"][..], words, &anonymous].concat());
}

#[test]
fn appends_and_reads_wait_for_a_quota_and_nothing_else_does() {
    let (broker, stream) = broker_with_stream();
    let quota = |words: &[&str]| quota(&broker, words);
    let mut raw = Raw::open(&broker);
    append(&mut raw, &stream, 1);
    assert_eq!(raw.append_answer().1.error, 0, "nothing limits it");

    // A byte a second: nobody may send a second batch before the test is over.
    quota(&["set", "--producer-byte-rate", "1"]);
    let begun = Instant::now();
    append(&mut raw, &stream, 2);
    // It is stored at once: another connection reads it.
    let mut other = Raw::open(&broker);
    loop {
        read(&mut other, &stream, 7);
        let frame = answer(&mut other, FrameKind::ReadReply, 7);
        if frame.body.len() > 2000 {
            break;
        }
    }
    others_pass(&mut raw, begun);
    // Those that share the quota owe too much: an append of another connection is refused, and not stored.
    append(&mut other, &stream, 3);
    let (_, refused) = other.append_answer();
    assert_eq!(refused.error, ErrorCode::Overloaded as u32);
    assert!(
        refused.message.contains("kera quota list"),
        "{}",
        refused.message
    );
    quota(&["delete", "--yes"]);
    if begun.elapsed() < HELD {
        let (correlation, stored) = raw.append_answer();
        assert_eq!((correlation, stored.error), (2, 0));
        append(&mut raw, &stream, 4);
        assert_eq!(raw.append_answer().0, 4);
    }

    quota(&["set", "--consumer-byte-rate", "1"]);
    let mut raw = Raw::open(&broker);
    read(&mut raw, &stream, 5);
    let first = answer(&mut raw, FrameKind::ReadReply, 5);
    assert!(!first.body.is_empty(), "one batch comes whatever the quota");
    read(&mut raw, &stream, 6);
    others_pass(&mut raw, Instant::now());
    // A read that has to wait is no longer than one that can be served.
    let long = v1::ReadRequest {
        stream: vec![0; 60_000].into(),
        from_copy: true,
        ..Default::default()
    };
    raw.send(&frame_of(FrameKind::Read, 7, &long, &[]));
    let refused = answer(&mut raw, FrameKind::ReadReply, 7);
    let refused: v1::ReadResponse = refused.message().expect("an answer");
    assert_eq!(refused.error, ErrorCode::InvalidArgument as u32);
    quota(&["delete", "--limit", "consumer_byte_rate", "--yes"]);
    assert!(!answer(&mut raw, FrameKind::ReadReply, 6).body.is_empty());
}

#[test]
fn appends_and_reads_wait_for_time_and_nothing_else_does() {
    let (broker, stream) = broker_with_stream();
    let quota = |words: &[&str]| quota(&broker, words);
    let mut raw = Raw::open(&broker);
    append(&mut raw, &stream, 1);
    assert_eq!(raw.append_answer().1.error, 0, "nothing limits it");
    // A hundred nanoseconds in a second, which each request takes at the least.
    quota(&["set", "--request-percentage", "0.00001"]);
    let begun = Instant::now();
    for correlation in 2..4 {
        // A second at a time, whatever is owed.
        append(&mut raw, &stream, correlation);
        let (answered, reply) = raw.append_answer();
        assert_eq!((answered, reply.error), (correlation, 0));
    }
    read(&mut raw, &stream, 4);
    assert!(!answer(&mut raw, FrameKind::ReadReply, 4).body.is_empty());
    assert!(begun.elapsed() > Duration::from_millis(1900));
    // A ping that comes with appends is answered before these are.
    send_all(&mut raw, &stream, 5..13, &ping());
    let kinds: Vec<_> = (0..9)
        .map(|_| raw.next().expect("an answer").kind)
        .collect();
    assert_ne!(kinds[8], FrameKind::Pong, "{kinds:?}");
    quota(&["delete", "--yes"]);
}

#[test]
fn a_client_that_waits_for_no_answer_waits_for_its_time() {
    const MANY: u32 = 40;
    let (broker, stream) = broker_with_stream();
    let quota = |words: &[&str]| quota(&broker, words);
    // A hundred nanoseconds in a second: an append in a second.
    quota(&["set", "--request-percentage", "0.00001"]);
    let mut raw = Raw::open(&broker);
    send_all(&mut raw, &stream, 0..MANY, &ping());
    // What comes behind them is taken, and they are not.
    while raw.next().expect("an answer").kind != FrameKind::Pong {}
    let stored = |told: &serde_json::Value| {
        let lane = &told["lane_descriptions"][0];
        lane["records"].as_u64().expect("a number")
    };
    let describe = ["stream", "describe", "s"];
    let there = stored(&broker.json(&describe));
    assert!(there < u64::from(MANY), "{there} are stored already");
    // Its end changes nothing: what it has sent is stored as its quota allows.
    drop(raw);
    quota(&["delete", "--yes"]);
    broker.until(&describe, |told| stored(told) == u64::from(MANY));
}

#[test]
fn what_waits_for_time_is_short_and_given_up_as_answers_are() {
    const MANY: u32 = 30;
    let http = Reserved::new();
    let broker = Broker::with(&["--http-listen", http.address()]);
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]);
    let stream = stream_id(&broker, "s");
    // A hundred nanoseconds in a second: an append in a second.
    quota(&broker, &["set", "--request-percentage", "0.00001"]);
    let [mut raw, gone] = [(), ()].map(|()| {
        let mut raw = Raw::open(&broker);
        send_all(&mut raw, &stream, 0..MANY, &[]);
        raw
    });
    drop(gone);
    // What has no stream's id is refused and does not wait, as long as it is.
    raw.send(&append_frame(&vec![0; 60_000].into(), MANY, b"v"));
    let all: Vec<_> = (0..=MANY).map(|_| raw.append_answer()).collect();
    let refused = |code: ErrorCode| {
        let all = all
            .iter()
            .filter(move |(_, told)| told.error == code as u32);
        all.map(|(number, _)| *number).collect::<Vec<_>>()
    };
    assert_eq!(refused(ErrorCode::InvalidArgument), [MANY]);
    let (_, told) = all
        .iter()
        .find(|(number, _)| *number == MANY - 1)
        .expect("an answer");
    assert_eq!(told.error, ErrorCode::Overloaded as u32, "{told:?}");
    assert_eq!(told.placement, v1::Placement::NotPlaced as i32);
    assert!(told.message.contains("has waited 10 seconds"), "{told:?}");
    // Nothing of the client that has gone is held any more either.
    let begin = Instant::now();
    loop {
        let metrics = get(http.address(), "/metrics");
        let has = |line: &str| metrics.lines().any(|told| told == line);
        if has("kera_in_flight_bytes 0") && has("kera_connections 1") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{metrics}");
    }
    let stored = MANY as usize - refused(ErrorCode::Overloaded).len();
    let describe = broker.json(&["stream", "describe", "s"]);
    let records = describe["lane_descriptions"][0]["records"].as_u64();
    let records = records.expect("a number");
    assert!(
        stored as u64 <= records && records < u64::from(2 * MANY),
        "{stored} of {records}"
    );
}

#[test]
fn what_waits_for_time_is_answered_when_the_broker_stops_also_where_nothing_more_comes() {
    const MANY: u32 = 30;
    let (mut broker, stream) = broker_with_stream();
    quota(&broker, &["set", "--request-percentage", "0.00001"]);
    let mut raw = Raw::open(&broker);
    let last = frame_of(FrameKind::GoAway, 0, &v1::GoAway::default(), &[]);
    send_all(&mut raw, &stream, 0..MANY, &last);
    assert_eq!(raw.append_answer().1.error, 0);
    assert!(broker.stop().success());
    let codes: Vec<_> = (1..MANY).map(|_| raw.append_answer().1.error).collect();
    let is_stopping = |code: &u32| *code == ErrorCode::ShuttingDown as u32;
    assert!(
        codes.iter().all(|code| *code == 0 || is_stopping(code)),
        "{codes:?}"
    );
    assert!(codes.iter().any(is_stopping), "{codes:?}");
}

#[test]
fn a_transactional_id_that_no_coordinator_takes_is_refused_at_once() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]);
    let mut raw = Raw::open(&broker);
    let request = v1::AppendRequest {
        stream: stream_id(&broker, "s"),
        transactional_id: "i".repeat(40_000),
        ..Default::default()
    };
    let batch = batch_of(b"v");
    raw.send(&frame_of(FrameKind::Append, 1, &request, &batch));
    let (_, refused) = raw.append_answer();
    assert_eq!(refused.error, ErrorCode::InvalidArgument as u32);
    let told = refused.message.contains("at most 1024 bytes");
    assert!(told && refused.message.len() < 200, "{}", refused.message);
}

#[test]
fn quotas_are_set_listed_and_deleted() {
    let mut broker = Broker::start();
    assert_eq!(broker.json(&["quota", "list"]), json!([]));
    let set = |words: &[&str]| broker.run(&[&["quota", "set"][..], words].concat());
    set(&["--principal", "User:ann", "--producer-byte-rate", "1MiB"]);
    set(&["--principal", "User:ann", "--consumer-byte-rate", "2MiB"]);
    set(&[
        "--principal",
        "User:*",
        "--client-id",
        "app",
        "--consumer-byte-rate",
        "7",
    ]);
    let all = json!([
        {"principal": "User:*", "client_id": "app", "address": null, "limits": {"consumer_byte_rate": 7.0}},
        {"principal": "User:ann", "client_id": null, "address": null,
         "limits": {"consumer_byte_rate": 2097152.0, "producer_byte_rate": 1048576.0}},
    ]);
    assert_eq!(broker.json(&["quota", "list"]), all);
    // At a lane in a thousand seconds four are owed until the test is over.
    set(&[
        "--principal",
        "User:ANONYMOUS",
        "--controller-mutation-rate",
        "0.001",
    ]);
    broker.run(&[
        "stream",
        "create",
        "one",
        "--streamlets",
        "2",
        "--lanes",
        "2",
    ]);
    for words in [["create", "two", "--lanes=1"], ["delete", "one", "--yes"]] {
        let told = broker.refused(&[&["stream"][..], &words[..]].concat());
        assert!(told.contains("controller_mutation_rate"), "{told}");
    }
    broker.run(&["quota", "delete", "--principal", "User:ANONYMOUS", "--yes"]);
    broker.run(&["stream", "delete", "one", "--yes"]);
    broker.stop();
    broker.restart();
    assert_eq!(broker.json(&["quota", "list"]), all);
    let told = broker.refused(&["quota", "delete", "--principal", "User:bob", "--yes"]);
    assert!(told.contains("no such quota"), "{told}");
    broker.run(&["quota", "delete", "--principal", "User:ann", "--yes"]);
    let left = broker.json(&["quota", "list"]);
    assert_eq!(left, json!([all[0]]));
}
