//! What `/metrics` tells of each stream, and how long reads and requests took.

use bytes::Bytes;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use kera_testkit::http::get;

use crate::common::Broker;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::kafka;

/// The value of a metric, if `/metrics` has it.
pub(crate) fn metric(broker: &Broker, name: &str) -> Option<f64> {
    let metrics = get(broker.http(), "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.map(|value| value.trim().parse().expect("a number"))
}

fn append(raw: &mut Raw, stream: &Bytes, correlation: u32) -> usize {
    let request = v1::AppendRequest {
        stream: stream.clone(),
        ..v1::AppendRequest::default()
    };
    let batch = batch_of(b"news");
    raw.send(&frame_of(FrameKind::Append, correlation, &request, &batch));
    batch.len()
}

/// Asks for what follows `ordinal`.
pub(crate) fn read(raw: &mut Raw, stream: &Bytes, correlation: u32, ordinal: u64) {
    let request = v1::ReadRequest {
        stream: stream.clone(),
        cursor: Some(v1::Cursor {
            ordinal,
            ..v1::Cursor::default()
        }),
        max_bytes: 1 << 20,
        min_bytes: 1,
        max_wait_ms: 3_600_000,
        ..v1::ReadRequest::default()
    };
    raw.send(&frame_of(FrameKind::Read, correlation, &request, b""));
}

fn answer(raw: &mut Raw, kind: FrameKind) {
    let frame = raw.next().expect("the broker goes on");
    assert_eq!(frame.kind, kind);
}

#[test]
fn streams_are_told_by_name_up_to_the_limit_and_the_others_together() {
    // One of them is the internal stream of consumer groups.
    let broker = Broker::with(&["--http-listen", "127.0.0.1:0", "--http-max-streams", "3"]);
    let mut raw = Raw::open(&broker);
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d"] {
        broker.run(&["stream", "create", name]);
        ids.push(stream_id(&broker, name));
    }
    let of = |what: &str, stream: &str| {
        metric(
            &broker,
            &format!("kera_stream_{what}{{stream=\"{stream}\"}}"),
        )
    };
    let mut bytes = 0;
    for (at, appends) in [(0, 1), (1, 2), (2, 4), (3, 8)] {
        for _ in 0..appends {
            bytes = append(&mut raw, &ids[at], 0);
            answer(&mut raw, FrameKind::AppendReply);
        }
    }
    read(&mut raw, &ids[1], 0, 0);
    answer(&mut raw, FrameKind::ReadReply);
    for (stream, appends) in [("a", 1.0), ("b", 2.0), ("", 12.0)] {
        assert_eq!(of("records", stream), Some(appends));
        assert_eq!(of("appended_records_total", stream), Some(appends));
        let appended = of("appended_bytes_total", stream);
        assert_eq!(appended, Some(appends * bytes as f64));
        assert_eq!(of("append_duration_seconds_count", stream), Some(appends));
        let bucket = "kera_stream_append_duration_seconds_bucket";
        let all = format!("{bucket}{{le=\"+Inf\",stream=\"{stream}\"}}");
        assert_eq!(metric(&broker, &all), Some(appends));
    }
    assert_eq!(of("read_bytes_total", "b"), Some(2.0 * bytes as f64));
    assert_eq!(of("read_bytes_total", ""), Some(0.0));
    assert_eq!(of("records", "c"), None);

    // Another takes the place of one that is deleted, from zero on, and the counters of the others do not fall.
    broker.run(&["stream", "delete", "a", "--yes"]);
    assert_eq!(of("appended_records_total", "c"), Some(0.0));
    assert_eq!(of("records", "c"), Some(4.0));
    append(&mut raw, &ids[2], 0);
    answer(&mut raw, FrameKind::AppendReply);
    assert_eq!(of("appended_records_total", "c"), Some(1.0));
    assert_eq!(of("appended_records_total", ""), Some(12.0));
    assert_eq!(of("appended_records_total", "a"), None);
}

#[test]
fn the_time_of_a_read_is_counted_if_it_waited_for_no_records() {
    let broker = Broker::with(&["--http-listen", "127.0.0.1:0"]);
    broker.run(&["stream", "create", "s"]);
    let (stream, mut raw) = (stream_id(&broker, "s"), Raw::open(&broker));
    let counted = || metric(&broker, "kera_read_duration_seconds_count ");
    read(&mut raw, &stream, 1, 0);
    append(&mut raw, &stream, 2);
    let mut kinds = [(); 2].map(|()| raw.next().expect("the broker goes on").kind as u8);
    kinds.sort_unstable();
    let mut expected = [FrameKind::AppendReply as u8, FrameKind::ReadReply as u8];
    expected.sort_unstable();
    assert_eq!(kinds, expected);
    assert_eq!(counted(), Some(0.0), "it waited for its record");
    read(&mut raw, &stream, 3, 0);
    answer(&mut raw, FrameKind::ReadReply);
    assert_eq!(counted(), Some(1.0));
}

#[test]
fn requests_of_kafka_clients_are_counted_and_timed_by_api() {
    let flags = [
        "--http-listen",
        "127.0.0.1:0",
        "--kafka-listen",
        "127.0.0.1:0",
    ];
    let broker = Broker::with(&flags);
    let address = kafka::addresses(&broker.log()).remove(0);
    let of =
        |what: &str, api: &str| metric(&broker, &format!("kera_kafka_{what}{{api=\"{api}\"}}"));
    for asked in 1..=3 {
        assert_eq!(kafka::ask_versions(&address), 0);
        let asked = Some(f64::from(asked));
        assert_eq!(of("requests_total", "ApiVersions"), asked);
        assert_eq!(of("request_duration_seconds_count", "ApiVersions"), asked);
    }
    assert_eq!(of("requests_total", "Metadata"), Some(0.0));
    assert_eq!(of("request_duration_seconds_count", "Metadata"), None);
}
