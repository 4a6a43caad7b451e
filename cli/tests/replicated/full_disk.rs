//! A replica store whose disk is full. What it holds can be given up all the same, and then it takes replicas again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::trio::{Trio, copies_below, lines};
use crate::common::PATIENCE;
use crate::common::machine::skip;
use crate::common::small_disk::SmallDisk;

/// Room for some thirty groups.
const BYTES: u64 = 4 << 20;

/// The store's replicas on its disk.
fn on_disk(disk: &Path) -> BTreeSet<String> {
    copies_below(disk).into_iter().collect()
}

/// Looks again and again until it is so.
fn until(what: &str, trio: &Trio, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        let late = begun.elapsed() > PATIENCE;
        assert!(!late, "{what}: {}", trio.backups[0].log());
        std::thread::yield_now();
    }
}

/// Fills the disk, and appends what it has no room for: at least two closed groups wait in memory.
fn overfill(small: &SmallDisk, trio: &Trio) {
    small.fill();
    trio.produce("s", &lines(0..5000));
    until(
        "memory holds nothing that the disk has no room for",
        trio,
        || trio.copies_at(0).0.len() > 2,
    );
}

#[test]
fn a_full_disk_is_emptied_by_a_trim_or_a_deletion_and_takes_replicas_again() {
    let small = match SmallDisk::mount(BYTES) {
        Ok(small) => small,
        Err(reason) => return skip("replicated full_disk", &reason),
    };
    let disk = small.path().join("replicas");
    let at_disk = [
        "--replica-store-disk-dir",
        disk.to_str().expect("a path is text"),
    ];
    let often = ["--cluster-repair-interval", "200ms"];
    let Some(trio) = Trio::at("127.0.0.1", &[&at_disk, &[]], &often) else {
        return;
    };
    trio.create("s", "3", "2");
    trio.produce("s", &lines(0..5000));
    until("no replica is on the disk", &trio, || {
        on_disk(&disk).len() > 2
    });
    overfill(&small, &trio);

    let before = on_disk(&disk);
    trio.broker
        .run(&["stream", "trim", "s", "--everything", "--yes"]);
    until("the disk is not emptied", &trio, || {
        on_disk(&disk).is_disjoint(&before)
    });
    let again = lines(5000..10_000);
    trio.produce("s", &again);
    until("the disk takes no replicas any more", &trio, || {
        on_disk(&disk).len() > 2 && trio.short_groups("s") == 0
    });
    assert_eq!(trio.consume("s"), again);

    overfill(&small, &trio);
    trio.broker.run(&["stream", "delete", "s", "--yes"]);
    until("the deleted stream's replicas are left", &trio, || {
        on_disk(&disk).is_empty() && trio.copies_at(0).0.is_empty()
    });
    trio.create("s", "3", "2");
    trio.produce("s", &again);
    until("the disk takes no replicas any more", &trio, || {
        on_disk(&disk).len() > 2 && trio.short_groups("s") == 0
    });
    assert_eq!(trio.consume("s"), again);
}
