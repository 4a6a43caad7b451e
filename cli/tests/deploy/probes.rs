//! The probes of a broker as a process, through its life.

use bytes::Bytes;
use kera_protocol::frame::FrameKind;
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use crate::common::raw::{Raw, batch_of, frame_of};
use crate::process::Process;

/// Batches of nearly 1 MiB, the most that a stream takes, and reads of all of them: together more than sockets hold.
const BATCHES: u32 = 16;
const READS: u32 = 4;

/// A connection whose peer does not take the replies that it asked for.
fn that_reads_nothing(broker: &Process) -> Raw {
    broker.run(&["stream", "create", "s"], b"");
    let described = broker.run(&["stream", "describe", "s", "--json"], b"");
    let described: serde_json::Value = serde_json::from_str(&described).expect("JSON");
    let id = described["id"].as_str().and_then(|id| id.parse().ok());
    let id: StreamId = id.expect("an id");
    let stream = Bytes::copy_from_slice(id.as_bytes());
    let mut raw = Raw::open_to(&broker.address);
    let batch = batch_of(&vec![b'x'; 1_000_000]);
    for correlation in 0..BATCHES {
        let append = v1::AppendRequest {
            stream: stream.clone(),
            ..v1::AppendRequest::default()
        };
        raw.send(&frame_of(FrameKind::Append, correlation, &append, &batch));
        let (_, answer) = raw.append_answer();
        assert_eq!(answer.error, 0, "{}", answer.message);
    }
    for correlation in 0..READS {
        let read = v1::ReadRequest {
            stream: stream.clone(),
            cursor: Some(v1::Cursor::default()),
            max_bytes: BATCHES << 20,
            ..v1::ReadRequest::default()
        };
        raw.send(&frame_of(FrameKind::Read, correlation, &read, b""));
    }
    raw
}

#[test]
fn a_draining_broker_lives_and_is_not_ready() {
    // Longer than any machine needs to ask three questions; it ends when the peer is gone.
    let broker = Process::with(&["--server-drain-timeout", "10m"]);
    for (path, answer) in [
        ("/livez", "ok\n"),
        ("/healthz", "ok\n"),
        ("/readyz", "ready\n"),
    ] {
        assert_eq!(broker.get(path), (200, answer.to_owned()), "{path}");
    }
    let raw = that_reads_nothing(&broker);
    broker.terminate();
    // The signal takes its time to arrive; the drain lasts until the peer is gone.
    let (status, reason) = loop {
        let (status, reason) = broker.get("/readyz");
        if status != 200 {
            break (status, reason);
        }
    };
    assert_eq!(
        (status, reason.as_str()),
        (503, "draining: the broker stops\n")
    );
    assert_eq!(broker.get("/livez").0, 200);
    assert!(broker.get("/metrics").1.contains("\nkera_ready 0\n"));
    drop(raw);
    let status = broker.ended();
    assert!(status.success(), "{status}");
}
