//! The seeds of the fuzz targets: small inputs that reach every part of what is fuzzed.

use bytes::BytesMut;
use kera_log_segments::group::AckPolicy;
use kera_log_segments::layout::{DurableMark, MARK_BYTES, SegmentHeader};
use kera_protocol::Message;
use kera_protocol::batch::{
    BatchBuilder, Compression, Header, NewRecord, ProducerStamp, crc32c, patch,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{
    FrameKind, Hello, HelloReply, encode_empty, encode_go_away, encode_head,
};
use kera_protocol::ids::{Epoch, GroupId, Incarnation, LaneId, StreamId, StreamletId};
use kera_protocol::v1;
use uuid::Uuid;

/// An input that a target starts from.
pub(crate) struct Seed {
    pub(crate) target: &'static str,
    /// The file's name.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// The bytes depend on a codec's version.
    pub(crate) compressed: bool,
}

impl Seed {
    fn plain(target: &'static str, name: &str, bytes: Vec<u8>) -> Self {
        Self {
            target,
            name: name.into(),
            bytes,
            compressed: false,
        }
    }
}

/// Every seed.
pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = batches();
    seeds.extend(frames());
    seeds.extend(groups());
    seeds.extend(frames_in_tls());
    seeds.extend(logins());
    seeds
}

const STAMP: ProducerStamp = ProducerStamp {
    producer_id: 4_097,
    producer_epoch: 1,
    base_sequence: i32::MAX - 1,
};

/// `count` records with keys, null values, headers and times that run backwards.
pub(crate) fn batch(count: u32, compression: Compression, stamp: ProducerStamp) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for index in 0..count {
        let key = format!("key-{}", index % 3);
        let value = format!("value {index} value {index} value {index}");
        let headers = [
            Header {
                key: "trace",
                value: Some(b"\x00\x01"),
            },
            Header {
                key: "none",
                value: None,
            },
        ];
        let record = NewRecord {
            key: (index % 4 != 1).then_some(key.as_bytes()),
            value: (index % 5 != 2).then_some(value.as_bytes()),
            headers: &headers[..(index % 3) as usize],
            timestamp: 1_700_000_000_000 + i64::from(index % 7) - 3,
        };
        builder.push(&record).expect("a small batch holds it");
    }
    builder
        .finish(compression, stamp)
        .expect("it holds records")
        .to_vec()
}

fn batches() -> Vec<Seed> {
    let codecs = [
        ("none", Compression::None),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    let mut seeds: Vec<Seed> = codecs
        .iter()
        .map(|(name, codec)| Seed {
            compressed: *codec != Compression::None,
            ..Seed::plain("batch", name, batch(12, *codec, STAMP))
        })
        .collect();
    let one = batch(1, Compression::None, ProducerStamp::NONE);
    seeds.push(Seed::plain("batch", "one-record", one));
    let mut run = batch(3, Compression::None, ProducerStamp::NONE);
    run.extend(batch(4, Compression::None, STAMP));
    seeds.push(Seed::plain("batch", "run-of-two", run));
    seeds
}

/// Where a group's file begins, in the fields that its segments share.
fn segment(segment: u32, first_ordinal: u64, snapshot: &[u8]) -> SegmentHeader {
    SegmentHeader {
        stream: StreamId::from_slice(&[9; 16]).expect("16 bytes"),
        streamlet: StreamletId(1),
        lane: LaneId(2),
        group: GroupId(3),
        generation: 0,
        segment,
        epoch: Epoch(4),
        segment_size: SEGMENT_BYTES as u32,
        segments: 3,
        first_ordinal,
        snapshot_bytes: snapshot.len() as u32,
        snapshot_crc: crc32c(snapshot),
        created_ms: 1_700_000_000_000,
        ack: AckPolicy::Synced,
        marked: false,
        in_order: false,
    }
}

/// Small, so that a whole group fits an input.
const SEGMENT_BYTES: usize = 1024;

/// A group's file with batches of `counts` records in its segments, and both durable marks.
fn group(counts: &[&[u32]]) -> Vec<u8> {
    let snapshot = b"what the lane remembers";
    let mut file = vec![0; 3 * SEGMENT_BYTES];
    let (mut ordinal, mut end) = (70, 0);
    for (index, counts) in counts.iter().enumerate() {
        let snapshot: &[u8] = if index == 0 { snapshot } else { &[] };
        let mut bytes = segment(index as u32, ordinal, snapshot).encode().to_vec();
        bytes.extend_from_slice(snapshot);
        for count in *counts {
            let mut batch = batch(*count, Compression::None, STAMP);
            patch(&mut batch, ordinal, Epoch(4));
            ordinal += u64::from(*count);
            bytes.extend_from_slice(&batch);
        }
        let start = index * SEGMENT_BYTES;
        end = start + bytes.len();
        file[start..end].copy_from_slice(&bytes);
    }
    for sequence in [6, 7] {
        let mark = DurableMark {
            sequence,
            written: end as u64,
            written_ordinal: ordinal,
            synced: SEGMENT_BYTES as u64,
            synced_ordinal: 71,
            incarnation: Incarnation {
                store_id: Uuid::from_bytes([5; 16]),
                boot_id: Uuid::from_bytes([6; 16]),
            },
        };
        let at = mark.slot_offset(3 * SEGMENT_BYTES as u64) as usize;
        file.resize(file.len().max(at + MARK_BYTES), 0);
        file[at..at + MARK_BYTES].copy_from_slice(&mark.encode());
    }
    file
}

fn groups() -> Vec<Seed> {
    let full = group(&[&[3, 2], &[4], &[1, 1, 1]]);
    let mut torn = full.clone();
    torn[2 * SEGMENT_BYTES + 200..3 * SEGMENT_BYTES].fill(0);
    let mut stale = full.clone();
    // An older batch of another epoch where the next one would stand.
    let mut old = batch(2, Compression::None, STAMP);
    patch(&mut old, 75, Epoch(3));
    stale[SEGMENT_BYTES + 96..SEGMENT_BYTES + 96 + old.len()].copy_from_slice(&old);
    let no_size = SegmentHeader {
        segment_size: 0,
        ..segment(0, 70, &[])
    };
    let mut no_size = no_size.encode().to_vec();
    no_size.extend_from_slice(&[0; 100]);
    vec![
        Seed::plain("segment_scan", "no-size", no_size),
        Seed::plain("segment_scan", "three-segments", full),
        Seed::plain("segment_scan", "one-segment", group(&[&[2, 2]])),
        Seed::plain("segment_scan", "empty", group(&[&[]])),
        Seed::plain("segment_scan", "torn", torn),
        Seed::plain("segment_scan", "stale", stale),
    ]
}

fn frame<M: Message>(kind: FrameKind, correlation: u32, header: &M, body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_head(&mut out, kind, correlation, header, body.len()).expect("a small frame");
    out.extend_from_slice(body);
    out.to_vec()
}

fn frames() -> Vec<Seed> {
    let body = batch(2, Compression::None, STAMP);
    let stream = vec![7; 16];
    let cursor = Some(v1::Cursor {
        ordinal: 99,
        group: 3,
        segment: 1,
        position: 512,
        ..Default::default()
    });
    let append = v1::AppendRequest {
        stream: stream.clone().into(),
        streamlet: 1,
        lane: 2,
        ..Default::default()
    };
    let appended = v1::AppendResponse {
        base_ordinal: 300,
        duplicate: true,
        ..Default::default()
    };
    let read = v1::ReadRequest {
        stream: stream.clone().into(),
        cursor,
        max_bytes: 1 << 20,
        max_wait_ms: 500,
        ..Default::default()
    };
    let group = v1::GroupInfo {
        group: 4,
        first_ordinal: 100,
        closed: true,
        ..Default::default()
    };
    let answer = v1::ReadResponse {
        next: cursor,
        head_ordinal: 120,
        groups: vec![group],
        ..Default::default()
    };
    let subscribe = v1::SubscribeRequest {
        subscription: 1,
        stream: stream.into(),
        cursor,
        credit_bytes: 1 << 22,
        ..Default::default()
    };
    let refused = v1::SubscribeResponse {
        error: 2,
        message: "no streamlet 9".into(),
    };
    let push = v1::PushData {
        subscription: 1,
        next: cursor,
        finished: true,
        ..Default::default()
    };
    let credit = v1::CreditRequest {
        subscription: 1,
        credit_bytes: 4_096,
        unsubscribe: false,
    };

    let mut go_away = BytesMut::new();
    encode_go_away(
        &mut go_away,
        &WireError::new(ErrorCode::FrameTooLarge, "smaller, please"),
    );
    let mut ping = BytesMut::new();
    encode_empty(&mut ping, FrameKind::Ping, 5);
    let hello = HelloReply {
        version: 1,
        flags: 0,
        max_frame_bytes: 1 << 20,
    };
    let first = frame(FrameKind::Append, 1, &append, &body);
    let pipelined = [first.clone(), ping.to_vec(), first.clone()].concat();

    [
        ("hello", Hello::CURRENT.encode().to_vec()),
        ("hello-reply", hello.encode().to_vec()),
        ("append", first),
        (
            "append-reply",
            frame(FrameKind::AppendReply, 1, &appended, &[]),
        ),
        ("read", frame(FrameKind::Read, 2, &read, &[])),
        ("read-reply", frame(FrameKind::ReadReply, 2, &answer, &body)),
        ("subscribe", frame(FrameKind::Subscribe, 3, &subscribe, &[])),
        (
            "subscribe-reply",
            frame(FrameKind::SubscribeReply, 3, &refused, &[]),
        ),
        ("push-data", frame(FrameKind::PushData, 0, &push, &body)),
        ("credit", frame(FrameKind::Credit, 0, &credit, &[])),
        ("go-away", go_away.to_vec()),
        ("pipelined", pipelined),
    ]
    .map(|(name, bytes)| Seed::plain("frame", name, bytes))
    .into()
}

/// Frames of clients behind how they are sent, see `fuzz/checks/tls_frames.rs`: event and flags, bytes of a record, and
/// where the event is.
fn frames_in_tls() -> Vec<Seed> {
    const CHANGES: u8 = 1;
    const CLOSES: u8 = 2;
    const NEW_KEYS: u8 = 3;
    const TLS12: u8 = 4;
    const NO_PROTOCOL: u8 = 8;
    const APART: u8 = 16;
    let frames = frames();
    let named = |name: &str| {
        let frame = frames.iter().find(|frame| frame.name == name);
        frame.expect("a frame of that name").bytes.clone()
    };
    let call = v1::CallRequest {
        method: v1::CallMethod::ListStreams.into(),
        ..Default::default()
    };
    let call = frame(FrameKind::Call, 4, &call, &[]);
    let reads = ["subscribe", "credit", "read"].map(named).concat();
    let pipelined = named("pipelined");
    let cut = [&pipelined[..], &pipelined[..100]].concat();
    let seed = |name: &str, script: [u8; 4], sent: &[u8]| {
        let bytes = [&script[..], &Hello::CURRENT.encode(), sent].concat();
        Seed::plain("tls_frames", name, bytes)
    };
    vec![
        seed("append", [0, 0, 0, 0], &named("append")),
        seed("append-tls12", [TLS12, 0, 0, 0], &named("append")),
        seed("call", [NO_PROTOCOL, 0, 0, 0], &call),
        seed("reads", [APART, 20, 0, 0], &reads),
        seed("pipelined", [APART | TLS12, 5, 0, 0], &pipelined),
        seed("cut", [NO_PROTOCOL | APART, 50, 0, 0], &cut),
        seed("changed", [CHANGES, 100, 3, 0], &pipelined),
        seed("changed-tls12", [CHANGES | TLS12, 100, 2, 1], &pipelined),
        seed("closed", [CLOSES, 64, 3, 0], &pipelined),
        seed("new-keys", [NEW_KEYS | APART, 33, 4, 0], &pipelined),
        seed("broken", [0, 0, 0, 0], &named("push-data")),
        seed("go-away", [0, 0, 0, 0], &named("go-away")),
    ]
}

/// Messages of logins, see `fuzz/checks/login.rs`: listener and mechanism, and for each message its kind, its length and its
/// bytes or how it is changed.
fn logins() -> Vec<Seed> {
    const NATIVE: u8 = 1;
    const PLAIN: u8 = 0;
    const SHA_256: u8 = 2;
    const SHA_512: u8 = 4;
    const TOKEN: u8 = 6;
    let raw = |bytes: &[u8]| [&[0, bytes.len() as u8][..], bytes].concat();
    let made = |kind: u8, changes: &[u8]| [&[kind, changes.len() as u8][..], changes].concat();
    let right = raw(b"\0ann\0right");
    let whole = [made(1, &[]), made(2, &[])].concat();
    let changed = [made(1, &[]), made(2, &[30, 0, 1])].concat();
    let renamed = [made(1, &[5, 0, 3]), made(2, &[])].concat();
    let strange = [raw(b"n,a=bob,n=ann,r=abc"), made(2, &[])].concat();
    let nobody = [raw(b"n,,n=nobody,r=abcdef"), raw(b"c=biws,r=abcdef,p=AAAA")].concat();
    let seed = |name: &str, how: u8, messages: &[u8]| {
        Seed::plain("login", name, [&[how], messages].concat())
    };
    vec![
        seed("plain", PLAIN, &right),
        seed("plain-native", PLAIN | NATIVE, &right),
        seed("plain-as-ann", PLAIN, &raw(b"ann\0ann\0right")),
        seed("plain-as-bob", PLAIN, &raw(b"bob\0ann\0right")),
        seed("scram-256", SHA_256, &whole),
        seed("scram-256-native", SHA_256 | NATIVE, &whole),
        seed("scram-512", SHA_512, &whole),
        seed("scram-512-changed", SHA_512, &changed),
        seed("scram-512-renamed-native", SHA_512 | NATIVE, &renamed),
        seed("scram-256-strange", SHA_256, &strange),
        seed("scram-256-nobody-native", SHA_256 | NATIVE, &nobody),
        seed("token", TOKEN, &made(3, &[])),
        seed("token-native", TOKEN | NATIVE, &made(3, &[])),
        seed(
            "token-changed",
            TOKEN,
            &[made(3, &[200, 0, 1]), raw(b"\x01")].concat(),
        ),
        seed("nothing", SHA_512 | NATIVE, &[]),
    ]
}
