//! Copies that are missing: how it shows, and how an operator goes on without them.

use std::fs;
use std::time::Instant;

use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;

use super::trio::{Trio, lines};
use crate::common::PATIENCE;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};

fn describe(trio: &Trio) -> serde_json::Value {
    describe_of(trio, "s")
}

fn describe_of(trio: &Trio, stream: &str) -> serde_json::Value {
    trio.broker.json(&["stream", "describe", stream])
}

/// Asks again until the description is as wanted.
fn until(trio: &Trio, what: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
    let begun = Instant::now();
    loop {
        let described = describe(trio);
        if wanted(&described) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {described}");
        std::thread::yield_now();
    }
}

#[test]
fn groups_with_too_few_copies_are_counted() {
    // They are counted as often as they are repaired.
    let often = ["--cluster-repair-interval", "200ms"];
    let Some(mut trio) = Trio::with(&often) else {
        return;
    };
    trio.create("s", "3", "2");
    // One that waits for all its copies lacks none.
    trio.create("whole", "3", "3");
    trio.broker
        .run(&["stream", "create", "alone", "--replicas", "1"]);
    for stream in ["s", "whole"] {
        trio.produce(stream, &lines(0..100));
    }
    assert_eq!(describe_of(&trio, "whole")["under_replicated_groups"], 0);
    trio.backups[0].kill();
    trio.produce("s", &lines(100..3000));
    until(&trio, "copies are missing", |described| {
        described["under_replicated_groups"].as_u64() > Some(0)
    });
    let text = trio.broker.run(&["stream", "describe", "s"]);
    assert!(text.contains("groups with fewer than 3 replicas"), "{text}");
    let short = "kera_stream_under_replicated_groups{stream=\"s\"}";
    until(&trio, "it is not counted", |_| trio.metric(short) > 0);
    let metrics = trio.metrics();
    let line = |start: &str| metrics.lines().find(|line| line.starts_with(start));
    assert_eq!(
        line("kera_stream_under_replicated_groups{stream=\"alone\"}"),
        None
    );
    let waiting = line("kera_stream_unrecovered_streamlets{stream=\"s\"}").expect("the gauge");
    assert!(waiting.ends_with(" 0"), "{waiting}");
}

/// Starts all again where the replica stores have lost what they kept, and waits until groups are to be given up.
fn is_stuck_without_copies(trio: &mut Trio) {
    trio.lose_copies();
    trio.backups.iter_mut().for_each(|backup| {
        backup.restart();
    });
    trio.broker.restart();
    until(trio, "it is stuck", |described| {
        described["unrecovered"][0]["unclean"]
            .as_array()
            .is_some_and(|groups| !groups.is_empty())
    });
}

#[test]
fn what_no_copy_has_is_given_up_when_the_operator_says_so() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "2", "2");
    trio.produce("s", &lines(0..100));
    let files = trio.group_files("s");
    trio.broker.kill();
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    for file in &files {
        fs::remove_file(file).expect("a file can be removed");
    }
    is_stuck_without_copies(&mut trio);
    // Who appends is told what to do.
    let mut raw = Raw::open(&trio.broker);
    let request = v1::AppendRequest {
        stream: stream_id(&trio.broker, "s"),
        ..v1::AppendRequest::default()
    };
    let append = frame_of(FrameKind::Append, 1, &request, &batch_of(b"no"));
    raw.send(&append);
    let (_, refused) = raw.append_answer();
    assert_eq!(
        ErrorCode::from_number(refused.error),
        Some(ErrorCode::NotEnoughCopies)
    );
    assert!(
        refused.message.contains("kera stream recover"),
        "{refused:?}"
    );
    // So is who asks.
    let refused = trio.broker.refused(&["stream", "recover", "s"]);
    assert!(refused.contains("--accept-loss"), "{refused}");
    assert!(!trio.is_served("s"), "asking decides nothing");
    let text = trio.broker.run(&["stream", "describe", "s"]);
    assert!(text.contains("no replica of group"), "{text}");

    // A program that does not say --yes is shown the groups, and they are not given up.
    let words = ["stream", "recover", "s", "--accept-loss"];
    let since = Instant::now();
    let asked = loop {
        let asked = trio.broker.attempt(&words, b"");
        // An attempt that has just failed before it came to look at groups has found none.
        if asked.status.code() == Some(2) {
            break asked;
        }
        assert!(since.elapsed() < PATIENCE, "{}", asked.stderr);
    };
    let (shown, refused) = (asked.text(), asked.stderr);
    assert!(shown.contains("LOST FROM ORDINAL"), "{shown}");
    assert!(refused.contains("add --yes"), "{refused}");
    assert!(!trio.is_served("s"), "nothing is given up yet");

    let words = [&words[..], &["--yes"]].concat();
    let accepted = trio
        .broker
        .json(&[&words[..], &["--streamlet", "0"]].concat());
    let loss = &accepted["accepted"][0];
    assert_eq!(loss["from_ordinal"], 0, "{accepted}");
    let next = loss["to_ordinal"].as_u64().expect("an ordinal");
    assert!(next >= 1 << 32, "{accepted}");
    assert!(trio.is_served("s"), "{accepted}");
    assert!(trio.broker.log().contains("ordinals jump"));
    // Nothing that is appended now has an ordinal that somebody saw.
    let more = lines(100..200);
    trio.produce("s", &more);
    assert_eq!(trio.consume("s"), more);
    let lane = &describe(&trio)["lane_descriptions"][0];
    assert!(lane["end_ordinal"].as_u64() >= Some(next + 100), "{lane}");
    // It holds over the next start, and there is nothing left to decide.
    trio.broker.kill();
    trio.broker.restart();
    until(&trio, "it is served", |described| {
        described["unrecovered"] == serde_json::json!([])
    });
    assert_eq!(trio.consume("s"), more);
    let served = trio.broker.run(&words);
    assert!(served.contains("stream s is served"), "{served}");

    // The same for a group that is closed, of which nothing is left anywhere: its record says where the lane goes on.
    let end = describe(&trio)["lane_descriptions"][0]["end_ordinal"].as_u64();
    let files = trio.group_files("s");
    let dir = files[0].parent().expect("their directory").to_path_buf();
    assert!(trio.broker.stop().success());
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    fs::remove_dir_all(&dir).expect("the files can be removed");
    is_stuck_without_copies(&mut trio);
    let text = trio.broker.run(&["stream", "describe", "s"]);
    assert!(text.contains("cannot be fetched"), "{text}");
    let accepted = trio.broker.json(&words);
    let losses = accepted["accepted"].as_array().expect("a list");
    let last = losses.last().expect("a loss");
    assert_eq!(last["to_ordinal"].as_u64(), end, "{accepted}");
    assert!(trio.is_served("s"), "{accepted}");
    assert_eq!(trio.consume("s"), Vec::<String>::new());
    let more = lines(200..300);
    trio.produce("s", &more);
    assert_eq!(trio.consume("s"), more);
}
