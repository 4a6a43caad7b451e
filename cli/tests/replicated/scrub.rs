//! Copies of closed groups are compared while the broker serves, and those that a disk has spoiled are
//! made anew.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::trio::{Trio, lines};
use crate::common::PATIENCE;

/// Looks again and again until it is so.
fn until(what: &str, trio: &Trio, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: {}", trio.broker.log());
        std::thread::yield_now();
    }
}

/// A place within the first batches of a group.
const PLACE: u64 = 5000;

fn byte(path: &Path) -> Option<u8> {
    let mut byte = [0];
    let file = File::open(path).ok()?;
    file.read_exact_at(&mut byte, PLACE).ok()?;
    Some(byte[0])
}

/// Flips a bit; what the byte was.
fn flip(path: &Path) -> u8 {
    let was = byte(path).unwrap_or_else(|| panic!("{} is there", path.display()));
    let file = File::options().write(true).open(path).expect("it opens");
    file.write_all_at(&[was ^ 0x20], PLACE).expect("a disk");
    was
}

/// The files of groups of a backup that are closed, and so on its disk alone.
fn files_at(trio: &Trio, at: usize) -> Vec<PathBuf> {
    let dir = trio.backups[at].data_dir().join("backup");
    let (in_memory, on_disk) = trio.copies_at(at);
    let closed = on_disk.iter().filter(|name| !in_memory.contains(name));
    let mut files: Vec<_> = closed
        .map(|name| dir.join(name).with_extension("log"))
        .collect();
    files.sort();
    files
}

#[test]
fn a_bit_that_a_disk_flips_is_put_right_at_a_backup_and_at_the_owner() {
    let rounds = ["--cluster-repair-interval", "200ms"];
    let Some(trio) = Trio::with(&[&rounds[..], &["--cluster-scrub-interval", "500ms"]].concat())
    else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..3000);
    trio.produce("s", &all);
    until("copies are on disk", &trio, || files_at(&trio, 0).len() > 1);
    let compared = || trio.metric("kera_scrubbed_groups_total");
    until("nothing is compared", &trio, || compared() > 0);
    assert_eq!(
        trio.metric("kera_scrub_replaced_replicas_total"),
        0,
        "all is well"
    );

    let spoiled = files_at(&trio, 0).remove(0);
    let was = flip(&spoiled);
    until("the backup's copy stays spoiled", &trio, || {
        byte(&spoiled) == Some(was) && trio.metric("kera_scrub_replaced_replicas_total") == 1
    });
    let spoiled = trio.group_files("s").remove(0);
    let was = flip(&spoiled);
    until("the owner's file stays spoiled", &trio, || {
        byte(&spoiled) == Some(was)
    });
    until("it is not counted", &trio, || {
        trio.metric("kera_scrub_replaced_replicas_total") == 2
    });
    fs::remove_file(&spoiled).expect("it can be removed");
    until("the owner's file stays away", &trio, || {
        byte(&spoiled) == Some(was)
    });
    until("it is not counted", &trio, || {
        trio.metric("kera_scrub_replaced_replicas_total") == 3
    });
    assert_eq!(trio.metric("kera_scrub_unrepaired_groups"), 0);
    let kinds =
        |kind: &str| trio.metric(&format!("kera_scrub_bad_replicas_total{{kind=\"{kind}\"}}"));
    // A file that goes while it is being read counts as damaged.
    let (damaged, missing) = (kinds("damaged"), kinds("missing"));
    assert!(damaged >= 2, "{damaged} damaged, {missing} missing");
    assert_eq!((damaged + missing, kinds("differing")), (3, 0));
    assert_eq!(trio.consume("s"), all);
}

#[test]
fn without_comparing_a_spoiled_copy_stays() {
    let Some(trio) = Trio::with(&["--cluster-repair-interval", "100ms"]) else {
        return;
    };
    trio.create("s", "3", "2");
    trio.produce("s", &lines(0..3000));
    until("copies are on disk", &trio, || {
        [0, 1].iter().all(|at| files_at(&trio, *at).len() > 1)
    });
    let spoiled = files_at(&trio, 0).remove(0);
    let was = flip(&spoiled);
    // The jobs go round and make anew what is gone, and do not look at what is there.
    let at = files_at(&trio, 1).remove(0);
    let mut trio = trio;
    trio.backups[1].kill();
    fs::remove_file(&at).expect("it can be removed");
    fs::remove_file(at.with_extension("copy")).expect("it can be removed");
    trio.backups[1].restart();
    until("what is gone is not made anew", &trio, || at.exists());
    assert_eq!(byte(&spoiled), Some(was ^ 0x20));
    assert_eq!(trio.metric("kera_scrubbed_groups_total"), 0);
}
