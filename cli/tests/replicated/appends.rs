//! Appends while copies come and go.

use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;

use super::trio::{Trio, lines};
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::common::{PATIENCE, kera};

/// Waits until the head of the stream's one lane is at `ordinal`.
fn durable_up_to(trio: &Trio, stream: &str, ordinal: u64) {
    let begun = Instant::now();
    loop {
        let described = trio.broker.json(&["stream", "describe", stream]);
        let head = described["lane_descriptions"][0]["head_ordinal"].as_u64();
        if head.is_some_and(|head| head >= ordinal) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the head stands at {head:?}");
    }
}

#[test]
fn a_backup_that_dies_under_load_costs_no_record() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    let mut command = kera();
    command
        .args(["produce", "s", "--quiet", "--batch-size", "4KiB"])
        .env("KERA_BOOTSTRAP", trio.broker.address())
        .stdin(Stdio::piped());
    let mut producer = command.spawn().expect("the command can be started");
    let mut input = producer.stdin.take().expect("standard input is piped");
    let mut feed = |lines: &[String]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        input
            .write_all(text.as_bytes())
            .expect("the producer reads");
        input.flush().expect("the producer reads");
    };
    let all = lines(0..6000);
    feed(&all[..2000]);
    durable_up_to(&trio, "s", 1);
    trio.backups[0].kill();
    feed(&all[2000..4000]);
    durable_up_to(&trio, "s", 2000);
    // The other one goes, once the first is back.
    trio.backups[0].restart();
    trio.backups[1].kill();
    feed(&all[4000..]);
    drop(input);
    let ended = producer.wait().expect("the command can be waited for");
    assert!(ended.success(), "{ended}");
    assert_eq!(trio.consume("s"), all);
    // What was acknowledged outlives the broker's own files as well.
    trio.broker.kill();
    for file in trio_files(&trio) {
        std::fs::remove_file(file).expect("a file can be removed");
    }
    trio.backups[1].restart();
    trio.broker.restart();
    let begun = Instant::now();
    while !trio.is_served("s") {
        assert!(begun.elapsed() < PATIENCE, "the stream is not recovered");
    }
    assert_eq!(trio.consume("s"), all);
}

/// Every group file of the broker, which does not run, but those of its internal streams.
fn trio_files(trio: &Trio) -> Vec<std::path::PathBuf> {
    let streams = trio.broker.data_dir().join("streams");
    let mut files = Vec::new();
    for stream in std::fs::read_dir(streams).expect("streams").flatten() {
        let streamlets = std::fs::read_dir(stream.path()).expect("streamlets");
        let streamlets: Vec<_> = streamlets.flatten().collect();
        // The internal stream has four.
        if streamlets.len() == 1 {
            let groups = std::fs::read_dir(streamlets[0].path()).expect("groups");
            files.extend(groups.flatten().map(|group| group.path()));
        }
    }
    files
}

#[test]
fn with_too_few_copies_appends_wait_and_are_refused_for_now() {
    let Some(mut trio) = Trio::with(&["--cluster-append-deadline", "500ms"]) else {
        return;
    };
    trio.create("s", "3", "2");
    trio.produce("s", &lines(0..10));
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    let mut raw = Raw::open(&trio.broker);
    let request = v1::AppendRequest {
        stream: stream_id(&trio.broker, "s"),
        ..v1::AppendRequest::default()
    };
    raw.send(&frame_of(
        FrameKind::Append,
        1,
        &request,
        &batch_of(b"waits"),
    ));
    let (_, refused) = raw.append_answer();
    let code = ErrorCode::from_number(refused.error).expect("a known code");
    assert_eq!(code, ErrorCode::NotEnoughCopies, "{}", refused.message);
    assert!(code.is_retryable());
    let seen = trio.consume("s");
    assert_eq!(seen, lines(0..10), "what has too few copies is not shown");
    trio.backups[0].restart();
    // It may still take effect, and does.
    durable_up_to(&trio, "s", 11);
    trio.produce("s", &lines(10..20));
    let expected = [lines(0..10), vec!["waits".to_owned()], lines(10..20)].concat();
    assert_eq!(trio.consume("s"), expected);
}
