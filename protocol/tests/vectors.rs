//! The test vectors of the wire are what this crate writes and reads. Clients in other languages read the same file.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, Header, NewRecord, ProducerStamp, Records,
    check_produced, mark_transactional, patch, patch_append_time, verify,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{
    Frame, FrameKind, Hello, HelloReply, PREFIX_BYTES, TAKES_CALLS, encode_empty, encode_go_away,
    encode_head,
};
use kera_protocol::ids::Epoch;
use kera_protocol::login;
use kera_protocol::v1;

const LIMIT: usize = 1 << 20;
const TIME: i64 = 1_700_000_000_000;
const STREAM: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const STAMP: ProducerStamp = ProducerStamp {
    producer_id: 4711,
    producer_epoch: 2,
    base_sequence: 7,
};

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| digit.to_digit(16).expect("a hex digit") as u8)
        .collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty(), "whole bytes: {hex}");
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

/// The vectors by name. What a test has checked it removes.
fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let lines = include_str!("vectors/wire.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut vectors = BTreeMap::new();
    for line in lines {
        let (name, hex) = line.split_once(" = ").expect("a name and bytes");
        assert!(vectors.insert(name, bytes_of(hex)).is_none(), "{name}");
    }
    vectors
}

fn built(stamp: ProducerStamp) -> Vec<u8> {
    let named = |key, value| [Header { key, value }];
    let (first, last) = (named("h", Some(&b"x"[..])), named("n", None));
    let mut builder = BatchBuilder::new();
    let records = [
        (0, Some(&b"21"[..]), Some(&b"one"[..]), &first[..]),
        (5, None, Some(&b"two"[..]), &[][..]),
        (-1, Some(&b"k"[..]), None, &last[..]),
    ];
    for (after, key, value, headers) in records {
        let timestamp = TIME + after;
        let record = NewRecord {
            key,
            value,
            headers,
            timestamp,
        };
        builder.push(&record).expect("room");
    }
    let batch = builder.finish(Compression::None, stamp).expect("records");
    batch.to_vec()
}

/// Records as text, so that batches of different bytes can be compared.
fn told(batch: &[u8]) -> Vec<String> {
    let mut scratch = Vec::new();
    let records = Records::open(batch, LIMIT, &mut scratch).expect("it decompresses");
    let records = records.map(|record| {
        let record = record.expect("a record");
        let headers: Vec<_> = record.headers().map(|h| (h.key, h.value)).collect();
        let (at, time) = (record.ordinal_delta, record.timestamp);
        format!(
            "{at} {time} {:?} {:?} {headers:?}",
            record.key, record.value
        )
    });
    records.collect()
}

#[test]
fn batches_are_written_and_read_as_the_vectors_have_them() {
    let vectors = vectors();
    let sent = built(STAMP);
    assert_eq!(vectors["batch"], sent);
    assert_eq!(vectors["batch-plain"], built(ProducerStamp::NONE));
    let mut stored = sent.clone();
    patch(&mut stored, 1000, Epoch(3));
    assert_eq!(vectors["batch-stored"], stored);
    let mut stamped = sent.clone();
    patch_append_time(&mut stamped, TIME + 999);
    assert_eq!(vectors["batch-append-time"], stamped);
    assert!(told(&stamped).iter().all(|r| r.contains("1700000000999")));

    let header = verify(&stored).expect("whole");
    assert_eq!((header.base_ordinal, header.next_ordinal()), (1000, 1003));
    assert_eq!((header.last_sequence(), header.epoch), (9, Epoch(3)));
    assert_eq!(told(&sent).len(), 3);
    let codecs = [
        ("batch-gzip", Compression::Gzip),
        ("batch-snappy", Compression::Snappy),
        ("batch-lz4", Compression::Lz4),
        ("batch-zstd", Compression::Zstd),
    ];
    for (name, codec) in codecs {
        let batch = &vectors[name];
        let header: BatchHeader = verify(batch).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(header.compression(), Ok(codec));
        check_produced(&header, batch).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(told(batch), told(&sent), "{name}");
    }
}

/// The exchange of RFC 7677: how a client proves to know a password ahead of its hello.
#[test]
fn logins_are_written_and_read_as_the_vectors_have_them() {
    let mut vectors = vectors();
    vectors.retain(|name, _| name.starts_with("login"));
    let client = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    let both = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let challenge = format!("r={both},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
    let proof = format!("c=biws,r={both},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    let signature = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
    let wrong = b"authentication failed: the user or the password is wrong";
    let (proved, refused) = (login::Status::Proved, login::Status::Refused);
    let replies = [
        (
            "login-scram-challenge",
            login::Status::GoesOn,
            challenge.as_bytes(),
        ),
        ("login-scram-proved", proved, signature),
        ("login-plain-proved", proved, b""),
        ("login-refused", refused, wrong),
    ];
    for (name, status, message) in replies {
        let vector = vectors.remove(name).expect(name);
        assert_eq!(vector, login::reply(status, message), "{name}");
        let (head, rest) = vector.split_first_chunk().expect("a head");
        assert_eq!(login::read_reply_head(head), Some(status), "{name}");
        let (length, rest) = rest.split_first_chunk().expect("a length");
        assert_eq!(
            (login::read_length(*length, login::MAX_MESSAGE), rest),
            (Some(message.len()), message)
        );
    }
    for (name, mechanism, message) in [
        ("login-scram-first", 1, client.as_bytes()),
        ("login-plain", 0, b"\0user\0pencil"),
    ] {
        let vector = vectors.remove(name).expect(name);
        assert_eq!(vector, login::first(mechanism, message), "{name}");
        let head = vector.first_chunk().expect("a head");
        assert_eq!(login::read_head(head), Some((login::VERSION, mechanism)));
    }
    let vector = vectors.remove("login-scram-proof").expect("a proof");
    assert_eq!(vector, login::next(proof.as_bytes()));
    assert!(
        vectors.is_empty(),
        "{:?} are checked by nobody",
        vectors.keys()
    );

    assert_eq!(login::read_head(b"KERA\x01\0\0\0"), None);
    assert_eq!(login::read_reply_head(&[3, 0, 0, 0]), None);
    assert_eq!(login::read_reply_head(&[0, 0, 1, 0]), None);
    for mechanism in 0..5 {
        let most = login::max_first(mechanism);
        let expected = match mechanism {
            login::OAUTHBEARER => 32 << 10,
            _ => 4 << 10,
        };
        assert_eq!(most, expected);
        let length = |bytes: usize| login::read_length((bytes as u32).to_le_bytes(), most);
        assert_eq!((length(most), length(most + 1)), (Some(most), None));
    }
}

/// Checks that `name` is what is written, and that it is read as what was written.
fn check<M>(
    vectors: &mut BTreeMap<&str, Vec<u8>>,
    name: &str,
    (kind, correlation): (FrameKind, u32),
    message: &M,
    body: &[u8],
) where
    M: Message + Default + PartialEq + std::fmt::Debug,
{
    let vector = vectors.remove(name).expect(name);
    let mut out = BytesMut::new();
    encode_head(&mut out, kind, correlation, message, body.len()).expect("it fits");
    out.extend_from_slice(body);
    assert_eq!(vector, out, "{name}");
    let read = Frame::split_from(&mut out, LIMIT).expect("a frame");
    let read = read.expect("the whole frame");
    assert_eq!((read.kind, read.correlation), (kind, correlation), "{name}");
    assert_eq!(read.message::<M>().as_ref(), Ok(message), "{name}");
    assert_eq!(read.body, body, "{name}");
}

fn check_calls(v: &mut BTreeMap<&str, Vec<u8>>) {
    let call = v1::CallRequest {
        method: v1::CallMethod::GetStream.into(),
        deadline_ms: 5000,
    };
    let request = v1::GetStreamRequest {
        name: "orders".into(),
    };
    let (request, sent) = (request.encode_to_vec(), (FrameKind::Call, 8));
    check(v, "call", sent, &call, &request);
    let answered = v1::CallResponse::default();
    let reply = v1::InitProducerResponse {
        producer_id: 4711,
        producer_epoch: 2,
    };
    let (reply, sent) = (reply.encode_to_vec(), (FrameKind::CallReply, 8));
    check(v, "call-reply", sent, &answered, &reply);
    let refused = v1::CallResponse {
        error: ErrorCode::ShuttingDown as u32,
        message: "stopping".into(),
    };
    check(v, "call-refused", sent, &refused, &[]);
    let answer = |body: Vec<u8>| (answered.clone(), body);
    let boundary = v1::LaneBoundary {
        streamlet: 3,
        lane: 2,
        ordinal: 1003,
    };
    let grown = v1::GetGenerationsResponse {
        stream: Bytes::from_static(&STREAM),
        streamlets: 4,
        generations: vec![v1::LaneGeneration {
            generation: 1,
            partitions: 12,
            barrier: v1::BarrierScope::Streamlet as i32,
            boundaries: vec![boundary],
        }],
        total: 2,
    };
    let (header, body) = answer(grown.encode_to_vec());
    let sent = (FrameKind::CallReply, 9);
    check(v, "generations-reply", sent, &header, &body);
    let call = v1::CallRequest {
        method: v1::CallMethod::CommitPositions.into(),
        deadline_ms: 5000,
    };
    let positions = v1::CommitPositionsRequest {
        group: "engine".into(),
        stream: "orders".into(),
        positions: vec![v1::LanePosition {
            streamlet: 3,
            lane: 2,
            ordinal: 1003,
        }],
        ..v1::CommitPositionsRequest::default()
    };
    let sent = (FrameKind::Call, 10);
    check(
        v,
        "commit-positions",
        sent,
        &call,
        &positions.encode_to_vec(),
    );
}

fn check_transactions(v: &mut BTreeMap<&str, Vec<u8>>) {
    let (id, producer, epoch) = ("pay/0/7", STAMP.producer_id, 2);
    let call_of = |method: v1::CallMethod| v1::CallRequest {
        method: method.into(),
        deadline_ms: 5000,
    };
    let (streamlet, lane) = (3, 2);
    let add = v1::AddToTransactionRequest {
        transactional_id: id.into(),
        producer,
        epoch,
        streams: vec![v1::LanesOfTransaction {
            stream: Bytes::from_static(&STREAM),
            lanes: vec![v1::LaneOfTransaction { streamlet, lane }],
        }],
        groups: Vec::new(),
    };
    let call = call_of(v1::CallMethod::AddToTransaction);
    let (sent, body) = ((FrameKind::Call, 11), add.encode_to_vec());
    check(v, "add-to-transaction", sent, &call, &body);
    let added = v1::AddToTransactionResponse { number: 9 }.encode_to_vec();
    let (sent, answered) = ((FrameKind::CallReply, 11), v1::CallResponse::default());
    check(v, "add-to-transaction-reply", sent, &answered, &added);

    let mut batch = built(STAMP);
    mark_transactional(&mut batch);
    assert!(verify(&batch).expect("whole").is_transactional());
    let append = v1::AppendRequest {
        stream: Bytes::from_static(&STREAM),
        streamlet,
        lane,
        lane_generation: 1,
        partitions: 12,
        transactional_id: id.into(),
    };
    let sent = (FrameKind::Append, 1);
    check(v, "append-transactional", sent, &append, &batch);

    let end = v1::EndTransactionRequest {
        transaction: Some(v1::TransactionHandle {
            transactional_id: id.into(),
            producer,
            epoch,
            number: 9,
        }),
        commit: true,
    };
    let call = call_of(v1::CallMethod::EndTransaction);
    let (sent, body) = ((FrameKind::Call, 12), end.encode_to_vec());
    check(v, "end-transaction", sent, &call, &body);

    let lives = v1::HeartbeatTransactionRequest {
        transactional_id: id.into(),
        producer,
        epoch,
    };
    let call = call_of(v1::CallMethod::HeartbeatTransaction);
    let (sent, body) = ((FrameKind::Call, 14), lives.encode_to_vec());
    check(v, "heartbeat-transaction", sent, &call, &body);

    let abort = v1::AbortTransactionsRequest {
        prefix: "pay/0/".into(),
        label_above: Some(41),
        ..v1::AbortTransactionsRequest::default()
    };
    let call = call_of(v1::CallMethod::AbortTransactions);
    let (sent, body) = ((FrameKind::Call, 13), abort.encode_to_vec());
    check(v, "abort-transactions", sent, &call, &body);
    let aborted = v1::AbortTransactionsResponse {
        transactions: vec![v1::AbortedTransaction {
            transaction: Some(v1::TransactionHandle {
                transactional_id: "pay/0/42".into(),
                producer,
                epoch,
                number: 9,
            }),
            ..v1::AbortedTransaction::default()
        }],
        more: false,
    };
    let (sent, answered) = ((FrameKind::CallReply, 13), v1::CallResponse::default());
    let body = aborted.encode_to_vec();
    check(v, "abort-transactions-reply", sent, &answered, &body);
}

fn at(ordinal: u64) -> Option<v1::Cursor> {
    Some(v1::Cursor {
        ordinal,
        ..v1::Cursor::default()
    })
}

#[test]
fn frames_are_written_and_read_as_the_vectors_have_them() {
    let mut vectors = vectors();
    vectors.retain(|name, _| !name.starts_with("batch") && !name.starts_with("login"));
    let stream = Bytes::from_static(&STREAM);
    let (streamlet, lane) = (3, 2);
    let sent = built(STAMP);
    let mut stored = sent.clone();
    patch(&mut stored, 1000, Epoch(3));

    let append = v1::AppendRequest {
        stream: stream.clone(),
        streamlet,
        lane,
        lane_generation: 1,
        partitions: 12,
        transactional_id: String::new(),
    };
    let v = &mut vectors;
    check(v, "append", (FrameKind::Append, 1), &append, &sent);
    let reply = v1::AppendResponse {
        lane,
        base_ordinal: 1000,
        append_time_ms: 1_700_000_000_999,
        ..v1::AppendResponse::default()
    };
    check(v, "append-reply", (FrameKind::AppendReply, 1), &reply, &[]);
    let refused = v1::AppendResponse {
        error: ErrorCode::NotOwner as u32,
        message: "not here".into(),
        placement: v1::Placement::MayBePlaced as i32,
        ..v1::AppendResponse::default()
    };
    let answer = (FrameKind::AppendReply, 2);
    check(v, "append-refused", answer, &refused, &[]);

    let read = v1::ReadRequest {
        stream: stream.clone(),
        streamlet,
        lane,
        cursor: Some(v1::Cursor {
            ordinal: 1001,
            group: 7,
            generation: 1,
            segment: 2,
            position: 4096,
            has_hint: true,
        }),
        end_ordinal: 1003,
        max_bytes: 65_536,
        min_bytes: 1,
        max_wait_ms: 500,
        lane_generation: Some(0),
        from_copy: false,
    };
    check(v, "read", (FrameKind::Read, 3), &read, &[]);
    let reply = v1::ReadResponse {
        next: at(1003),
        head_ordinal: 1003,
        log_start: 1000,
        finished: true,
        ..v1::ReadResponse::default()
    };
    check(v, "read-reply", (FrameKind::ReadReply, 3), &reply, &stored);

    let subscribe = v1::SubscribeRequest {
        subscription: 5,
        stream,
        streamlet,
        lane,
        cursor: at(1000),
        credit_bytes: 1 << 20,
        max_bytes: 65_536,
        ..v1::SubscribeRequest::default()
    };
    check(v, "subscribe", (FrameKind::Subscribe, 4), &subscribe, &[]);
    let reply = v1::SubscribeResponse::default();
    let answer = (FrameKind::SubscribeReply, 4);
    check(v, "subscribe-reply", answer, &reply, &[]);
    let push = v1::PushData {
        subscription: 5,
        next: at(1003),
        head_ordinal: 1003,
        ..v1::PushData::default()
    };
    check(v, "push", (FrameKind::PushData, 0), &push, &stored);
    let mut credit = v1::CreditRequest {
        subscription: 5,
        credit_bytes: 65_536,
        unsubscribe: false,
    };
    check(v, "credit", (FrameKind::Credit, 6), &credit, &[]);
    (credit.credit_bytes, credit.unsubscribe) = (0, true);
    check(v, "unsubscribe", (FrameKind::Credit, 7), &credit, &[]);

    let mut out = BytesMut::new();
    encode_go_away(
        &mut out,
        &WireError::new(ErrorCode::ShuttingDown, "stopping"),
    );
    assert_eq!(v.remove("go-away").as_deref(), Some(&out[..]));
    for (name, kind) in [("ping", FrameKind::Ping), ("pong", FrameKind::Pong)] {
        let mut out = BytesMut::new();
        encode_empty(&mut out, kind, 9);
        assert_eq!(out.len(), PREFIX_BYTES);
        assert_eq!(v.remove(name).as_deref(), Some(&out[..]), "{name}");
    }
    let hello = v.remove("hello").expect("hello");
    assert_eq!(hello, Hello::CURRENT.encode());
    for (name, flags) in [("hello-reply", 0), ("hello-reply-calls", TAKES_CALLS)] {
        let reply = HelloReply {
            version: 1,
            flags,
            max_frame_bytes: 67_174_412,
        };
        assert_eq!(v.remove(name).as_deref(), Some(&reply.encode()[..]));
    }
    check_calls(v);
    check_transactions(v);
    assert!(v.is_empty(), "nothing checks {:?}", v.keys());
}
