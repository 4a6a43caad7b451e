//! A broker that died, with or without its own files, is whole again with what was acknowledged.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::Instant;

use kera_testkit::command::lines_of;

use super::trio::{Trio, lines};
use crate::common::{PATIENCE, kera};

/// Reads the stream once it is served again.
fn everything(trio: &Trio, stream: &str) -> Vec<String> {
    let begun = Instant::now();
    while !trio.is_served(stream) {
        assert!(begun.elapsed() < PATIENCE, "the stream is not recovered");
        std::thread::yield_now();
    }
    trio.consume(stream)
}

#[test]
fn a_broker_that_was_killed_has_what_was_acknowledged() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    // Some groups full and closed, one open.
    let all = lines(0..4000);
    trio.produce("s", &all);
    trio.broker.kill();
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
    let more = lines(4000..5000);
    trio.produce("s", &more);
    assert_eq!(trio.consume("s"), [all, more].concat());
}

#[test]
fn own_files_that_are_gone_come_back_from_the_copies() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..4000);
    trio.produce("s", &all);
    let files = trio.group_files("s");
    assert!(files.len() > 2, "{files:?}");
    trio.broker.kill();
    for file in &files {
        fs::remove_file(file).expect("a file can be removed");
    }
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
    // And they are this broker's own again: the others are not needed to read them.
    trio.broker.stop();
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
}

#[test]
fn own_files_that_are_damaged_are_fetched_again() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..2000);
    trio.produce("s", &all);
    let files = trio.group_files("s");
    trio.broker.kill();
    // Headers and ends of closed ones, the middle of the open one.
    let (open, closed) = files.split_last().expect("there are files");
    let damage = |file: &std::path::Path, how: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(file).expect("a file can be read");
        how(&mut bytes);
        fs::write(file, bytes).expect("a file can be written");
    };
    damage(open, &|bytes| bytes[20_000..20_100].fill(0xaa));
    for (at, file) in closed.iter().enumerate() {
        match at % 2 {
            0 => damage(file, &|bytes| bytes[8] ^= 0xff),
            _ => damage(file, &|bytes| bytes.truncate(30_000)),
        }
    }
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
}

#[test]
fn damage_that_a_reader_meets_is_mended_from_another_copy() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "3");
    let all = lines(0..4000);
    trio.produce("s", &all);
    assert!(trio.broker.stop().success());
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
    // The broker has nothing in memory of groups that were closed before it started.
    let first = trio.group_files("s").remove(0);
    let whole = fs::read(&first).expect("a file can be read");
    let damage = || {
        let file = fs::OpenOptions::new().write(true).open(&first);
        let file = file.expect("a file can be opened");
        file.write_all_at(&[0xaa; 100], 20_000)
            .expect("a file can be written");
    };
    damage();
    assert_eq!(trio.consume("s"), all);
    let log = trio.broker.log();
    assert!(log.contains("was fetched from another replica"), "{log}");
    let mended = fs::read(&first).expect("a file can be read");
    assert_eq!(mended[20_000..20_100], whole[20_000..20_100]);
    // As is a file that is gone.
    fs::remove_file(&first).expect("a file can be removed");
    assert!(trio.broker.stop().success());
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
    // Where who may have it does not answer, a reader says so, and waits.
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    damage();
    let mut consume = kera();
    consume
        .args(["consume", "s"])
        .env("KERA_BOOTSTRAP", trio.broker.address());
    consume.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut consume = consume.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = consume.stdout.take().expect("it is piped");
    let reading = std::thread::spawn(move || {
        let mut read = String::new();
        stdout.read_to_string(&mut read).expect("lines");
        read
    });
    let said = lines_of(consume.stderr.take().expect("it is piped"));
    let is_it = |line: &String| line.contains("is damaged") && line.contains("does not answer");
    let mut others = Vec::new();
    loop {
        match said.recv_timeout(PATIENCE) {
            Ok(line) if is_it(&line) => break,
            Ok(line) => others.push(line),
            Err(_) => panic!("it says nothing of that, but {others:?}"),
        }
    }
    trio.backups[0].restart();
    let read = reading.join().expect("it is read");
    assert!(consume.wait().expect("it ends").success());
    assert_eq!(read.lines().collect::<Vec<_>>(), all);
    assert_eq!(trio.consume("s"), all);
}

#[test]
fn a_group_is_not_put_at_an_end_that_is_not_known() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    // All copies are needed; two are enough for what the group has committed.
    trio.create("s", "3", "3");
    let all = lines(0..1000);
    trio.produce("s", &all);
    let consume = ["consume", "s", "--group", "g"];
    assert_eq!(trio.broker.run(&consume).lines().count(), all.len());
    trio.broker.kill();
    trio.backups[0].kill();
    trio.broker.restart();
    assert!(!trio.is_served("s"), "two copies are not enough");
    let reset = ["group", "reset", "g", "--to", "latest"];
    let refused = trio.broker.refused(&reset);
    assert!(refused.contains("not recovered yet"), "{refused}");
    trio.backups[0].restart();
    assert_eq!(everything(&trio, "s"), all);
    trio.broker.run(&reset);
    trio.produce("s", &lines(1000..1010));
    let seen = trio.broker.run(&consume);
    let seen: Vec<_> = seen.lines().map(str::to_owned).collect();
    assert_eq!(seen, lines(1000..1010));
}

#[test]
fn a_stream_whose_copies_are_away_waits_and_others_do_not() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    trio.broker
        .run(&["stream", "create", "alone", "--replicas", "1"]);
    let all = lines(0..1000);
    trio.produce("s", &all);
    trio.broker.kill();
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    let other = trio.fullest();
    trio.broker.restart();
    trio.produce("alone", &lines(0..10));
    assert_eq!(trio.consume("alone"), lines(0..10));
    assert!(!trio.is_served("s"), "one copy is not enough");
    trio.backups[other].restart();
    assert_eq!(everything(&trio, "s"), all);
    trio.produce("s", &lines(1000..1010));
    assert_eq!(trio.consume("s"), lines(0..1010));
}

#[test]
fn nothing_is_left_to_recover_after_a_stop() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..1000);
    trio.produce("s", &all);
    assert!(trio.broker.stop().success());
    // All closed, so that one copy is enough to serve them.
    trio.backups.iter_mut().for_each(|backup| backup.kill());
    trio.broker.restart();
    assert_eq!(everything(&trio, "s"), all);
}
