//! An etcd that is put back to an older state, as an operator does who has lost its disks: what whole files hold of groups that
//! it does not know is served, what was removed since is missed by nobody, and no ordinal is given to another record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Trio, lines, text};

const JUMP: u64 = 1 << 32;

impl Trio {
    fn make(&self, stream: &str, replicas: &str, more: &[&str]) {
        let create = ["stream", "create", stream, "--if-not-exists"];
        let small = ["--segment-size", "64KiB", "--segments-per-group", "1"];
        let words = [
            &create[..],
            &small,
            &["--streamlets", "1"],
            &["--replicas", replicas],
            more,
        ];
        self.run(&self.bootstrap(), &words.concat(), b"");
    }

    fn feed(&self, stream: &str, range: std::ops::Range<usize>) {
        let produce = ["produce", stream, "--quiet", "--batch-size", "4KiB"];
        self.run(&self.bootstrap(), &produce, &text(&lines(range)));
    }

    fn feed_all(&self, streams: &[&str], range: std::ops::Range<usize>) {
        for stream in streams {
            self.feed(stream, range.clone());
        }
    }

    /// What the stream's one lane holds, by ordinal.
    fn held(&self, stream: &str) -> BTreeMap<u64, String> {
        let consume = ["consume", stream, "--format", "jsonl"];
        let text = self.run(&self.bootstrap(), &consume, b"").text();
        let records = text.lines().map(|line| {
            let record: Value = serde_json::from_str(line).expect("an object a line");
            let ordinal = record["ordinal"].as_u64().expect("an ordinal");
            (ordinal, record["value"].as_str().expect("text").to_owned())
        });
        records.collect()
    }

    /// Newer values of the same keys.
    fn feed_table(&self, round: usize) {
        let records = (0..600).map(|key| format!("{key},{round} {key} {}\n", "x".repeat(90)));
        let produce = ["produce", "table", "--quiet", "--key-separator", ","];
        let text: String = records.collect();
        self.run(&self.bootstrap(), &produce, text.as_bytes());
    }

    /// The brokers end and start again, one after the other.
    fn restart_all(&mut self) {
        for broker in &mut self.brokers {
            broker.kill();
            broker.restart();
        }
    }

    /// All brokers end, etcd is what it was at `state`, and they start as the operator's guide says, the first of them when the
    /// others have not.
    fn put_back(&mut self, state: &str) {
        for broker in &mut self.brokers {
            broker.kill();
        }
        self.etcd.become_state(state);
        for broker in &mut self.brokers {
            fs::remove_file(broker.data_dir().join("REVISION")).expect("it is there");
            broker.restart();
        }
    }
}

impl Trio {
    /// The broker that owns a stream's one streamlet.
    fn owner(&self, stream: &str) -> usize {
        let describe = ["stream", "describe", stream, "--json"];
        let told = self.run(&self.bootstrap(), &describe, b"").text();
        let told: Value = serde_json::from_str(&told).expect("an object");
        let owner = &told["owners"][0]["owner"];
        let mut brokers = self.brokers.iter();
        let at = brokers.position(|broker| owner == broker.address());
        at.expect("it is one of them")
    }

    /// A stream's owner is killed and starts again, and another takes over meanwhile; its replicas are made up for.
    fn fail_over(&mut self, stream: &str, more: std::ops::Range<usize>) {
        let owner = self.owner(stream);
        self.brokers[owner].kill();
        self.feed(stream, more);
        self.brokers[owner].restart();
        self.brokers[owner].until(&["stream", "describe", stream], |told| {
            told["under_replicated_groups"] == 0
        });
    }
}

/// Files below a directory that end so.
fn files(dir: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("it is listed").path();
        match path.is_dir() {
            true => files(&path, end, found),
            false if path.to_string_lossy().ends_with(end) => found.push(path),
            false => {}
        }
    }
}

#[test]
fn an_etcd_that_is_put_back_gives_no_ordinal_to_another_record() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let streams = ["clicks", "alone"];
    let all_streams = ["clicks", "alone", "short", "table"];
    for (stream, replicas) in [("clicks", "3"), ("alone", "1"), ("short", "3")] {
        trio.make(stream, replicas, &[]);
    }
    let compacted = ["--cleanup", "compact", "--max-batch-bytes", "16KiB"];
    trio.make("table", "3", &compacted);
    let all = trio.bootstrap();
    let group = ["consume", "clicks", "--group", "readers"];
    trio.feed_all(&["clicks", "alone", "short"], 0..1000);
    trio.feed_table(0);
    trio.feed_table(1);
    assert_eq!(trio.run(&all, &group, b"").text().lines().count(), 1000);
    trio.etcd.keep_state("old");
    trio.feed_all(&["clicks", "alone", "short"], 1000..4000);
    for round in 2..5 {
        trio.feed_table(round);
    }
    assert_eq!(trio.run(&all, &group, b"").text().lines().count(), 3000);
    // What the older state knows of these is removed: by compaction, by a trim, and by brokers that write the state of groups
    // anew.
    trio.run(&all, &["stream", "compact", "table"], b"");
    trio.run(
        &all,
        &["stream", "trim", "short", "--everything", "--yes"],
        b"",
    );
    trio.restart_all();
    trio.restart_all();
    trio.feed("short", 4000..4100);
    let before = all_streams.map(|stream| trio.held(stream));
    assert!(before[..2].iter().all(|held| held.len() == 4000));
    assert!(before[2].len() < 1000 && before[3].len() < 2000);

    trio.put_back("old");
    for (stream, before) in all_streams.iter().zip(&before) {
        let after = trio.held(stream);
        let lost = before.keys().find(|at| !after.contains_key(at));
        // What was trimmed of a group that is there still is back.
        let first = before.keys().next().expect("it has some");
        let mut since = after.range(first..);
        let odd = since.find(|(at, line)| before.get(at) != Some(line));
        assert_eq!((lost, odd), (None, None), "{stream}");
    }
    trio.feed_all(&streams, 4000..5000);
    let after = streams.map(|stream| trio.held(stream));
    for (before, after) in before.iter().zip(&after) {
        let known = after.iter().filter(|(ordinal, _)| **ordinal < JUMP);
        assert!(known.eq(before));
        let new = after.iter().filter(|(ordinal, _)| **ordinal >= JUMP);
        let new: Vec<_> = new.map(|(_, line)| line.clone()).collect();
        assert_eq!(new, lines(4000..5000));
        let highest = after.keys().next_back();
        assert!(
            highest < Some(&(2 * JUMP)),
            "once for all brokers: {highest:?}"
        );
    }
    // Its position is that of before the restore.
    let read = trio.run(&all, &group, b"").text();
    assert_eq!(read.lines().count(), 1000, "{read}");
    for broker in &trio.brokers {
        let mut damaged = Vec::new();
        files(&broker.data_dir().join("damaged"), ".log", &mut damaged);
        assert!(damaged.is_empty(), "{damaged:?}");
        let log = broker.log();
        assert!(log.contains("it is recorded again, and served"), "{log}");
    }

    // A failover and a start are no restores.
    let ends = after.map(|held| held.keys().next_back().copied());
    for broker in 0..3 {
        trio.brokers[broker].kill();
        trio.run(
            trio.brokers[(broker + 1) % 3].address(),
            &["cluster", "status"],
            b"",
        );
        trio.brokers[broker].restart();
    }
    trio.feed_all(&streams, 5000..6000);
    for (stream, end) in streams.iter().zip(ends) {
        let held = trio.held(stream);
        let new = held.range(end.expect("records") + 1..);
        let (ordinals, new): (Vec<_>, Vec<_>) = new.map(|(at, line)| (*at, line.clone())).unzip();
        assert_eq!(new, lines(5000..6000), "{stream}");
        assert_eq!(ordinals[0], end.expect("records") + 1, "{stream}");
    }

    // The next one is another.
    trio.etcd.keep_state("newer");
    trio.put_back("newer");
    trio.feed_all(&streams, 6000..6100);
    for stream in streams {
        let held = trio.held(stream);
        let new = held.range(2 * JUMP..3 * JUMP).map(|(_, line)| line.clone());
        assert_eq!(new.collect::<Vec<_>>(), lines(6000..6100), "{stream}");
    }
}

#[test]
fn failovers_since_the_older_state_keep_nothing_from_being_served() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let mut fed = 0;
    let kinds = [("three", "3", "synced", 2), ("two", "2", "written", 1)];
    for (stream, replicas, ack, failovers) in kinds {
        trio.make(stream, replicas, &["--ack", ack]);
        let begin = fed;
        // This group is open in the older state.
        trio.feed(stream, fed..fed + 50);
        trio.etcd.keep_state(stream);
        fed += 50;
        for _ in 0..failovers {
            trio.fail_over(stream, fed..fed + 20);
            fed += 20;
        }
        let before = trio.held(stream);
        let in_order: Vec<_> = before.values().cloned().collect();
        assert_eq!(in_order, lines(begin..fed), "{stream}");

        trio.put_back(stream);
        assert_eq!(trio.held(stream), before, "{stream}");
        trio.feed(stream, fed..fed + 10);
        let since = trio.held(stream);
        let since = since.range(JUMP..).map(|(_, line)| line.clone());
        assert_eq!(since.collect::<Vec<_>>(), lines(fed..fed + 10), "{stream}");
        fed += 10;
    }
    for broker in &trio.brokers {
        let mut damaged = Vec::new();
        files(&broker.data_dir().join("damaged"), ".log", &mut damaged);
        assert!(damaged.is_empty(), "{damaged:?}");
    }
}
