//! Clients that take without giving: they slow themselves down, and nobody else.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use kera_producer::{Producer, Record};
use kera_protocol::batch::BatchHeader;
use kera_protocol::frame::{FrameKind, PREFIX_BYTES};
use kera_protocol::v1;
use tokio::task::block_in_place;

use crate::common::machine::{Memory, mib, skip};
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::common::{Broker, PATIENCE};

const MIB: u64 = 1 << 20;
/// A socket that takes nothing for so long is not read any more. Too short on a busy machine would
/// make a test weaker, not fail.
const STALLED: Duration = Duration::from_secs(1);

/// Sends the bytes again and again until nobody reads them any more; how many went out.
fn flood(raw: &mut Raw, bytes: &[u8], at_most: u64) -> u64 {
    raw.socket
        .set_write_timeout(Some(STALLED))
        .expect("a timeout can be set");
    let mut sent = 0;
    loop {
        let rest = (sent % bytes.len() as u64) as usize;
        match raw.socket.write(&bytes[rest..]) {
            Ok(written) => sent += written as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return sent;
            }
            Err(error) => panic!("the broker closed a connection that only sends: {error}"),
        }
        assert!(sent < at_most, "the broker reads on after {}", mib(sent));
    }
}

/// Others produce and consume as if nothing was the matter.
fn others_are_served(broker: &Broker) {
    let before = broker.run(&["consume", "others"]);
    broker.feed(&["produce", "others", "-q"], b"served\n");
    let after = broker.run(&["consume", "others"]);
    assert_eq!(after, format!("{before}served\n"));
}

/// The most memory that the broker ever took must be below `limit`.
fn bounded(broker: &Broker, test: &str, limit: u64) {
    let Some(memory) = Memory::of(broker.pid()) else {
        skip(&format!("e2e_limits {test}"), "no /proc here");
        return;
    };
    eprintln!("{test}: {} at the most", mib(memory.peak));
    assert!(memory.peak < limit, "{} at the most", mib(memory.peak));
}

fn broker(flags: &[&str]) -> Broker {
    let broker = Broker::with(flags);
    broker.run(&["stream", "create", "others"]);
    broker
}

#[test]
fn a_sender_that_never_reads_its_replies_is_not_read_any_more() {
    let broker = broker(&[
        "--server-connection-in-flight-bytes",
        "2MiB",
        "--server-max-frame-bytes",
        "2MiB",
        "--memory-pool",
        "64MiB",
    ]);
    broker.run(&["stream", "create", "s"]);
    let request = v1::AppendRequest {
        stream: stream_id(&broker, "s"),
        ..v1::AppendRequest::default()
    };
    let append = frame_of(FrameKind::Append, 7, &request, &batch_of(b"x"));
    let many = append.repeat(1_000);
    let mut raw = Raw::open(&broker);
    let sent = flood(&mut raw, &many, 512 * MIB);
    others_are_served(&broker);
    bounded(&broker, "unread replies", 200 * MIB);

    // Nothing of it was dropped: once replies are read, there is one for each append.
    let appends = sent / append.len() as u64;
    assert!(appends > 1_000, "{appends} appends");
    for _ in 0..appends {
        let (answered, reply) = raw.append_answer();
        assert_eq!((answered, reply.error), (7, 0), "{}", reply.message);
    }
    others_are_served(&broker);
}

/// A connection that asks for all of a lane and reads none of it.
fn subscribe(broker: &Broker, stream: &bytes::Bytes, lane: u32) -> Raw {
    let request = v1::SubscribeRequest {
        subscription: 1,
        stream: stream.clone(),
        lane,
        credit_bytes: u64::MAX,
        max_bytes: 1 << 20,
        ..v1::SubscribeRequest::default()
    };
    let mut raw = Raw::open(broker);
    raw.send(&frame_of(FrameKind::Subscribe, 1, &request, b""));
    let reply = raw.next().expect("the subscription is answered");
    assert_eq!(reply.kind, FrameKind::SubscribeReply);
    raw
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_never_read_do_not_keep_the_pool() {
    const LANES: u32 = 32;
    const RECORDS: u32 = 12 << 7;
    // What all of them could have under way would be more than the pool.
    let broker = block_in_place(|| broker(&["--memory-pool", "16MiB"]));
    let lanes = LANES.to_string();
    let words = ["stream", "create", "s", "--segment-size", "1MiB"];
    block_in_place(|| broker.run(&[&words[..], &["--lanes", &lanes]].concat()));
    let stream = block_in_place(|| stream_id(&broker, "s"));
    let mut silent: Vec<Raw> = block_in_place(|| {
        (0..LANES)
            .map(|lane| subscribe(&broker, &stream, lane))
            .collect()
    });
    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .batch_size(64 << 10)
        .deadline(PATIENCE)
        .build()
        .await
        .expect("a producer can be built");
    // 12 MiB for each lane: more than sockets and outgoing buffers take.
    let value = vec![7; 8 << 10];
    let shape = super::load::Shape {
        streamlets: 1,
        lanes: LANES,
    };
    let keys = shape.keys();
    for round in 1..=RECORDS {
        for key in &keys {
            let sent = producer.append_wait(&Record::keyed(key, &value)).await;
            sent.expect("a record is taken");
        }
        if round % 4 == 0 {
            // Slow enough for pushes to come from memory, not from files.
            let flushed = producer.flush().await;
            flushed.expect("appends do not wait for those that never read");
        }
    }
    producer
        .close()
        .await
        .expect("appends do not wait for those that never read");
    block_in_place(|| others_are_served(&broker));
    bounded(&broker, "unread pushes", 300 * MIB);

    // Nothing was dropped for them either.
    let mut first = silent.swap_remove(0);
    let mut next = 0;
    block_in_place(|| {
        while next < u64::from(RECORDS) {
            let frame = first.next().expect("pushes go on");
            let push: v1::PushData = frame.message().expect("a push");
            assert_eq!(push.error, 0, "{}", push.message);
            let mut body = &frame.body[..];
            while !body.is_empty() {
                let header = BatchHeader::peek(body).expect("a batch");
                assert_eq!(header.base_ordinal, next);
                next += header.ordinals();
                body = &body[header.total_bytes..];
            }
        }
    });
    assert_eq!(next, u64::from(RECORDS));
}

/// The start of the largest frame that the broker accepts.
fn claim(raw: &Raw) -> [u8; PREFIX_BYTES] {
    let mut prefix = [0; PREFIX_BYTES];
    // The length counts what follows it.
    prefix[..4].copy_from_slice(&(raw.max_frame_bytes as u32 - 4).to_le_bytes());
    prefix[4] = FrameKind::Append as u8;
    prefix[5] = 1;
    prefix
}

/// The broker has neither closed nor said anything.
fn is_open(raw: &mut Raw) -> bool {
    raw.socket
        .set_nonblocking(true)
        .expect("a socket need not block");
    let peeked = raw.socket.peek(&mut [0]);
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_claim_of_a_large_frame_takes_no_memory() {
    let broker = broker(&[]);
    let mut claims: Vec<Raw> = (0..100)
        .map(|_| {
            let mut raw = Raw::open(&broker);
            raw.send(&claim(&raw));
            raw
        })
        .collect();
    others_are_served(&broker);
    bounded(&broker, "100 claims of 16 MiB", 150 * MIB);
    assert!(claims.iter_mut().all(is_open), "a claim is no error");
}

#[test]
fn frames_that_never_end_stay_within_the_bytes_in_flight() {
    let broker = broker(&["--server-max-in-flight-bytes", "32MiB"]);
    let half = vec![0; 8 << 20];
    let mut unfinished: Vec<Raw> = (0..32)
        .map(|_| {
            let mut raw = Raw::open(&broker);
            raw.send(&claim(&raw));
            raw.socket
                .set_nonblocking(true)
                .expect("a socket need not block");
            // What does not fit now is not sent at all.
            let mut sent = 0;
            while let Ok(written) = raw.socket.write(&half[sent..]) {
                sent += written;
                if sent == half.len() {
                    break;
                }
            }
            raw
        })
        .collect();
    others_are_served(&broker);
    bounded(&broker, "32 frames of 16 MiB that never end", 180 * MIB);
    assert!(
        unfinished.iter_mut().all(is_open),
        "a slow frame is no error"
    );
}
