//! A stream with `ack = synced`: all brokers die at once and their shared memory with them, and what was
//! acknowledged is served again without anybody being asked.

use std::fs;
use std::path::Path;
use std::time::Instant;

use kera_log_segments::io::volatile_file_system;
use kera_metadata::{EtcdOptions, EtcdStore, GroupRecord, GroupState, MetadataStore};

use super::{Trio, lines, text};
use crate::common::machine::skip;
use crate::common::{PATIENCE, home};

const CREATE: [&str; 14] = [
    "stream",
    "create",
    "payments",
    "--if-not-exists",
    "--streamlets",
    "2",
    "--replicas",
    "3",
    "--min-insync-replicas",
    "2",
    "--ack",
    "synced",
    "--segment-size",
    "64KiB",
];
const PRODUCE: [&str; 5] = ["produce", "payments", "--quiet", "--batch-size", "4KiB"];

/// As a loss of power and a container's restart do.
fn empty(dir: &Path) {
    for entry in fs::read_dir(dir).expect("it is there").flatten() {
        let path = entry.path();
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.expect("it can be removed");
    }
}

/// The files that brokers wrote as owners.
fn remove_own_files(data_dir: &Path) -> usize {
    let mut removed = 0;
    let mut dirs = vec![data_dir.join("streams")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("it is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|kind| kind == "log") {
                fs::remove_file(&path).expect("it can be removed");
                removed += 1;
            }
        }
    }
    removed
}

impl Trio {
    fn black_out(&mut self) {
        self.brokers.iter_mut().for_each(|broker| broker.kill());
        self.places.iter().for_each(|place| empty(place.shared()));
    }

    /// Waits until no open group's record names a life that ends with shared memory.
    fn until_only_disks_count(&self) {
        let store = EtcdStore::open(&self.etcd.address(), EtcdOptions::default());
        let store = store.expect("it opens");
        let id = store.stream_named("payments").expect("it is read");
        let id = id.expect("it is recorded");
        let begin = Instant::now();
        loop {
            let image = store.load().expect("it can be read");
            let mut groups = image.groups.iter().filter(|group| group.stream == id);
            let counts_on_memory = |group: &GroupRecord| {
                let mut lives = group.copies.iter().map(|copy| copy.incarnation);
                group.state != GroupState::Closed && lives.any(|life| !life.is_of_disk())
            };
            let Some(group) = groups.find(|group| counts_on_memory(group)) else {
                return;
            };
            assert!(begin.elapsed() < PATIENCE, "{group:?}");
        }
    }

    fn no_ordinal_jumped(&self) {
        for broker in &self.brokers {
            let log = broker.log();
            assert!(!log.contains("ordinals jump"), "{log}");
        }
    }
}

/// A group of before the change promises what it was begun with, and nothing more is appended to it.
#[test]
fn an_altered_policy_holds_from_the_next_record_on() {
    if let Some(kind) = volatile_file_system(home().path()) {
        let reason = format!("temporary files are on {kind}, where nothing is synced");
        return skip("an_altered_policy_holds", &reason);
    }
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    let create = CREATE.map(|word| match word {
        "synced" => "written",
        other => other,
    });
    trio.run(&all, &create, b"");
    trio.run(&all, &PRODUCE, &text(&lines(0..300)));
    let alter = ["stream", "alter", "payments", "--ack", "synced"];
    trio.run(&all, &alter, b"");
    // Every owner has heard of it.
    for broker in &trio.brokers {
        let describe = ["stream", "describe", "payments"];
        broker.until(&describe, |stream| stream["ack"] == "synced");
    }
    trio.run(&all, &PRODUCE, &text(&lines(300..600)));
    trio.until_only_disks_count();
    trio.black_out();
    trio.brokers.iter_mut().for_each(|broker| {
        broker.restart();
    });
    assert_eq!(trio.consume(&all, "payments"), lines(0..600));
    trio.no_ordinal_jumped();
}

#[test]
fn what_is_synced_outlives_all_brokers_and_their_shared_memory() {
    if let Some(kind) = volatile_file_system(home().path()) {
        let reason = format!("temporary files are on {kind}, where nothing is synced");
        return skip("what_is_synced_outlives_all_brokers", &reason);
    }
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    trio.run(&all, &CREATE, b"");
    // Some groups are full and closed, some open.
    trio.run(&all, &PRODUCE, &text(&lines(0..3000)));
    trio.positions_are_told("payments", |placed, flushed, end| {
        (placed, flushed) == (end, end)
    });
    trio.black_out();
    trio.brokers.iter_mut().for_each(|broker| {
        broker.restart();
    });
    assert_eq!(trio.consume(&all, "payments"), lines(0..3000));
    trio.run(&all, &PRODUCE, &text(&lines(3000..3500)));
    trio.no_ordinal_jumped();

    // Once more, and the owners' own files are gone: the replicas' disks have it all.
    trio.black_out();
    let dirs = trio.brokers.iter().map(|broker| broker.data_dir());
    let removed: usize = dirs.map(remove_own_files).sum();
    assert!(removed > 2, "{removed} files");
    trio.brokers.iter_mut().for_each(|broker| {
        broker.restart();
    });
    assert_eq!(trio.consume(&all, "payments"), lines(0..3500));
    trio.no_ordinal_jumped();
}
