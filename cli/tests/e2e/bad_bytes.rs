//! Bytes at the socket that are no requests get a clear error, and disturb nobody else.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;

use bytes::{Bytes, BytesMut};
use kera_protocol::batch::{HEADER_BYTES, ProducerStamp, crc32c};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{self, FrameKind, Hello, PREFIX_BYTES};
use kera_protocol::v1;

use crate::common::Broker;
use crate::common::raw::{Raw, batch_by, batch_of, frame_of, stream_id};

const LIMIT: usize = 1 << 20;

fn broker() -> Broker {
    let broker = Broker::with(&["--server-max-frame-bytes", "1MiB"]);
    broker.run(&["stream", "create", "s"]);
    broker
}

/// Others go on as if nothing had happened.
fn unharmed(broker: &mut Broker) {
    assert!(broker.is_running());
    let before = broker.run(&["consume", "s"]);
    broker.feed(&["produce", "s", "-q"], b"fine\n");
    assert_eq!(broker.run(&["consume", "s"]), format!("{before}fine\n"));
}

fn append(broker: &Broker, body: &[u8], correlation: u32) -> BytesMut {
    let request = v1::AppendRequest {
        stream: stream_id(broker, "s"),
        ..v1::AppendRequest::default()
    };
    frame_of(FrameKind::Append, correlation, &request, body)
}

fn batch() -> Vec<u8> {
    batch_of(b"by hand")
}

/// A connection after a good hello.
fn open(broker: &Broker) -> Raw {
    let raw = Raw::open(broker);
    assert_eq!(raw.max_frame_bytes, LIMIT);
    raw
}

#[test]
fn an_unknown_protocol_version_is_told_ours() {
    let mut broker = broker();
    let mut raw = Raw::connect(&broker);
    raw.send(
        &Hello {
            version: 99,
            flags: 0,
        }
        .encode(),
    );
    assert_eq!(raw.hello_reply().version, 1);
    raw.goes_away(ErrorCode::UnsupportedVersion);
    unharmed(&mut broker);
}

#[test]
fn an_unknown_frame_version_is_refused() {
    let mut broker = broker();
    let mut raw = open(&broker);
    let mut ping = BytesMut::new();
    frame::encode_empty(&mut ping, FrameKind::Ping, 7);
    ping[5] = 9;
    raw.send(&ping);
    raw.goes_away(ErrorCode::UnsupportedVersion);
    unharmed(&mut broker);
}

#[test]
fn an_oversized_frame_is_refused_before_it_is_read() {
    let mut broker = broker();
    let mut raw = open(&broker);
    let mut prefix = [0; PREFIX_BYTES];
    prefix[..4].copy_from_slice(&(LIMIT as u32 + 1).to_le_bytes());
    prefix[4] = FrameKind::Append as u8;
    prefix[5] = 1;
    // Nothing follows: the length alone is enough.
    raw.send(&prefix);
    raw.goes_away(ErrorCode::FrameTooLarge);
    unharmed(&mut broker);
}

#[test]
fn a_truncated_frame_ends_with_its_connection() {
    let mut broker = broker();
    let whole = append(&broker, &batch(), 1);
    for cut in [1, 4, PREFIX_BYTES, PREFIX_BYTES + 3, whole.len() - 1] {
        let mut raw = open(&broker);
        raw.send(&whole[..cut]);
        raw.socket
            .shutdown(Shutdown::Write)
            .expect("a socket can be half closed");
        while let Some(frame) = raw.next() {
            assert_eq!(frame.kind, FrameKind::GoAway, "cut at {cut}");
        }
    }
    assert_eq!(
        broker.run(&["consume", "s"]),
        "",
        "nothing of it was stored"
    );
    unharmed(&mut broker);
}

#[test]
fn an_unknown_kind_and_a_header_that_does_not_decode_are_refused() {
    let mut broker = broker();
    let mut unknown = BytesMut::new();
    frame::encode_empty(&mut unknown, FrameKind::Ping, 7);
    unknown[4] = 200;
    let mut raw = open(&broker);
    raw.send(&unknown);
    raw.goes_away(ErrorCode::MalformedFrame);

    let mut garbled = append(&broker, &batch(), 1);
    for byte in &mut garbled[PREFIX_BYTES..PREFIX_BYTES + 10] {
        *byte = 0xff;
    }
    let mut raw = open(&broker);
    raw.send(&garbled);
    raw.goes_away(ErrorCode::MalformedFrame);

    let mut lying = append(&broker, &batch(), 1);
    lying[6..8].copy_from_slice(&u16::MAX.to_le_bytes());
    let mut raw = open(&broker);
    raw.send(&lying);
    raw.goes_away(ErrorCode::MalformedFrame);
    unharmed(&mut broker);
}

#[test]
fn a_bad_batch_is_refused_and_the_connection_goes_on() {
    let mut broker = broker();
    let good = batch();
    let mut flipped = good.clone();
    *flipped.last_mut().expect("a batch has bytes") ^= 1;
    let cut = &good[..good.len() - 1];
    let mut raw = open(&broker);
    for (correlation, bad) in [(1, &flipped[..]), (2, cut), (3, &[][..]), (4, &good[..20])] {
        raw.send(&append(&broker, bad, correlation));
        let (answered, answer) = raw.append_answer();
        assert_eq!(answered, correlation);
        let code = ErrorCode::from_number(answer.error);
        assert!(
            matches!(
                code,
                Some(ErrorCode::CorruptBatch | ErrorCode::InvalidBatch)
            ),
            "{correlation}: {code:?} {}",
            answer.message
        );
        assert!(!answer.message.is_empty());
    }
    raw.send(&append(&broker, &good, 5));
    let (answered, answer) = raw.append_answer();
    assert_eq!((answered, answer.error), (5, 0), "{}", answer.message);
    assert_eq!(broker.run(&["consume", "s"]), "by hand\n");
    unharmed(&mut broker);
}

#[test]
fn an_append_that_could_not_be_sent_again_is_refused_whole() {
    let mut broker = broker();
    let by = |producer_id: i64, base_sequence: i32| {
        let producer = ProducerStamp {
            producer_id,
            producer_epoch: 0,
            base_sequence,
        };
        batch_by(
            producer,
            format!("{producer_id}-{base_sequence}").as_bytes(),
        )
    };
    let run = |count: i32| (0..count).flat_map(|n| by(7, n)).collect::<Vec<_>>();
    let mut raw = open(&broker);
    for (correlation, body) in [
        (1, batch().repeat(2)),
        (2, [by(7, 0), batch()].concat()),
        (3, [batch(), by(7, 0)].concat()),
        (4, [by(7, 0), by(8, 0)].concat()),
        (5, run(17)),
    ] {
        raw.send(&append(&broker, &body, correlation));
        let (answered, answer) = raw.append_answer();
        assert_eq!(answered, correlation);
        assert_eq!(
            ErrorCode::from_number(answer.error),
            Some(ErrorCode::InvalidBatch),
            "{correlation}: {}",
            answer.message
        );
    }
    assert_eq!(
        broker.run(&["consume", "s"]),
        "",
        "nothing of them is stored"
    );
    // What is remembered of a producer may come at once, and again.
    for duplicate in [false, true] {
        raw.send(&append(&broker, &run(16), 6));
        let (_, answer) = raw.append_answer();
        assert_eq!(
            (answer.error, answer.base_ordinal),
            (0, 0),
            "{}",
            answer.message
        );
        assert_eq!(answer.duplicate, duplicate);
    }
    let expected: String = (0..16).map(|n| format!("7-{n}\n")).collect();
    assert_eq!(broker.run(&["consume", "s"]), expected);
    unharmed(&mut broker);
}

#[test]
fn what_does_not_exist_is_named() {
    let mut broker = broker();
    let mut raw = open(&broker);
    let body = batch();
    let good = stream_id(&broker, "s");
    for (stream, streamlet, lane, code) in [
        (Bytes::from_static(&[7; 16]), 0, 0, ErrorCode::UnknownStream),
        (
            Bytes::from_static(&[7; 3]),
            0,
            0,
            ErrorCode::InvalidArgument,
        ),
        (good.clone(), 77, 0, ErrorCode::UnknownStreamlet),
        (good, 0, 77, ErrorCode::UnknownLane),
    ] {
        let request = v1::AppendRequest {
            stream,
            streamlet,
            lane,
            ..v1::AppendRequest::default()
        };
        raw.send(&frame_of(FrameKind::Append, 9, &request, &body));
        let (_, answer) = raw.append_answer();
        assert_eq!(
            ErrorCode::from_number(answer.error),
            Some(code),
            "{}",
            answer.message
        );
    }
    unharmed(&mut broker);
}

/// Sends a batch to a stream, and returns what it is answered with.
fn answered(raw: &mut Raw, broker: &Broker, stream: &str, body: &[u8]) -> (u32, String) {
    let request = v1::AppendRequest {
        stream: stream_id(broker, stream),
        ..v1::AppendRequest::default()
    };
    raw.send(&frame_of(FrameKind::Append, 1, &request, body));
    let (_, answer) = raw.append_answer();
    (answer.error, answer.message)
}

#[test]
fn a_stream_takes_what_its_settings_let_it_take() {
    let mut broker = broker();
    let settings = [
        "stream",
        "create",
        "careful",
        "--validate",
        "full",
        "--timestamp-before-max",
        "30d",
        "--timestamp-after-max",
        "1h",
    ];
    broker.run(&settings);
    let described = broker.json(&["stream", "describe", "careful"]);
    assert_eq!(described["validate"], "full");
    assert_eq!(described["timestamp_before_max_ms"], 2_592_000_000_u64);
    assert_eq!(described["timestamp_after_max_ms"], 3_600_000);
    let mut raw = open(&broker);
    // A record that is longer than its batch, with a checksum that fits.
    let mut long = batch();
    long[HEADER_BYTES] += 2;
    let crc = crc32c(&long[21..]);
    long[17..21].copy_from_slice(&crc.to_be_bytes());
    // A time a thousand times now.
    let mut late = batch();
    let now = i64::from_be_bytes(late[35..43].try_into().expect("8 bytes"));
    late[35..43].copy_from_slice(&(now * 1_000).to_be_bytes());
    let crc = crc32c(&late[21..]);
    late[17..21].copy_from_slice(&crc.to_be_bytes());
    for (bad, word) in [(&long, "record 0"), (&late, "timestamp_after_max_ms")] {
        let (code, text) = answered(&mut raw, &broker, "careful", bad);
        let code = ErrorCode::from_number(code);
        assert_eq!(code, Some(ErrorCode::InvalidBatch), "{text}");
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(answered(&mut raw, &broker, "careful", &batch()).0, 0);
    assert_eq!(broker.run(&["consume", "careful"]), "by hand\n");
    // And no more of it.
    let altered = ["--validate", "header", "--timestamp-after-max", "none"];
    broker.run(&[&["stream", "alter", "careful"][..], &altered].concat());
    for taken in [&long, &late] {
        let (code, text) = answered(&mut raw, &broker, "careful", taken);
        assert_eq!(code, 0, "{text}");
    }
    unharmed(&mut broker);
}

#[test]
fn a_count_that_no_compressed_bytes_could_keep_is_refused() {
    let mut broker = broker();
    let mut lying = batch();
    lying.truncate(HEADER_BYTES);
    lying.extend_from_slice(b"\x1f\x8b\x08garbage");
    let length = lying.len() as i32 - 12;
    lying[8..12].copy_from_slice(&length.to_be_bytes());
    lying[22] = 1;
    lying[23..27].copy_from_slice(&999_999_i32.to_be_bytes());
    lying[57..61].copy_from_slice(&1_000_000_i32.to_be_bytes());
    let crc = crc32c(&lying[21..]);
    lying[17..21].copy_from_slice(&crc.to_be_bytes());
    let mut raw = open(&broker);
    let (code, text) = answered(&mut raw, &broker, "s", &lying);
    let code = ErrorCode::from_number(code);
    assert_eq!(code, Some(ErrorCode::InvalidBatch), "{text}");
    unharmed(&mut broker);
}

#[test]
fn streams_of_the_brokers_own_are_read_and_never_changed() {
    let mut broker = broker();
    let own = "_kera_groups";
    let mut raw = open(&broker);
    let (code, text) = answered(&mut raw, &broker, own, &batch());
    let code = ErrorCode::from_number(code);
    assert_eq!(code, Some(ErrorCode::InvalidName), "{text}");
    assert!(text.contains("the broker's own"), "{text}");
    for refused in [
        &["stream", "delete", own, "--yes"][..],
        &["stream", "alter", own, "--lanes", "2"],
        &["stream", "alter", own, "--retention-time", "1s"],
        &["stream", "trim", own, "--everything", "--yes"],
        &["stream", "create", own],
    ] {
        let text = broker.refused(refused);
        assert!(text.contains(own), "{refused:?}: {text}");
    }
    assert_eq!(broker.run(&["consume", own]), "", "nothing was appended");
    unharmed(&mut broker);
}

#[test]
fn random_bytes_are_survived() {
    let mut broker = broker();
    let mut state = 0x6b65_7261_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    for round in 0..60 {
        let bytes: Vec<u8> = (0..round * 37 + 1).map(|_| next()).collect();
        // Before and after the hello, and behind the start of gRPC.
        let mut raw = match round % 3 {
            0 => Raw::connect(&broker),
            1 => open(&broker),
            _ => {
                let mut raw = Raw::connect(&broker);
                raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
                raw
            }
        };
        raw.send(&bytes);
        raw.socket.shutdown(Shutdown::Write).ok();
        let mut answer = Vec::new();
        // However it ends, it ends.
        if let Err(error) = raw.socket.read_to_end(&mut answer) {
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "round {round}: {error}"
            );
        }
    }
    unharmed(&mut broker);
}
