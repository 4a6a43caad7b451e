//! Starting over files that somebody has been at.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::ids::StreamletId;
use kera_replication::backup::{ReplicaStore, ShmMemory, StartError};
use kera_replication::faults::Faults;
use kera_replication::ids::{CopyId, StreamletKey};
use kera_replication::transport::{CopyAnswer, Refusal};

use crate::content::{copy, segment};
use crate::stage::{Ask, limits, options, shared_dir, whole};

fn try_start(dir: &Path) -> Result<Arc<ReplicaStore>, StartError> {
    let memory = ShmMemory::new(options(dir, true));
    ReplicaStore::start(memory, limits(), Faults::default())
}

fn start(dir: &Path) -> Arc<ReplicaStore> {
    try_start(dir).expect("starts")
}

fn file(dir: &Path, root: &str, copy: &CopyId, kind: &str) -> PathBuf {
    dir.join(root)
        .join(copy.streamlet.stream.to_string())
        .join(copy.streamlet.streamlet.to_string())
        .join(format!("{}.0.{kind}", copy.group))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("writes");
}

/// A copy of six batches, of which three went to disk at an interval.
fn half_flushed(dir: &Path, id: &CopyId) -> (Arc<ReplicaStore>, crate::content::Content) {
    let content = segment(id, 6, 700);
    let store = start(dir);
    let key = store.open_first(id).expect("opens").buffers[0].key;
    let region = store
        .region(crate::stage::PRIMARY, key)
        .expect("is registered");
    let half = content.ends[2] as usize;
    region.place(0, &content.bytes[..half]).expect("fits");
    assert_eq!(store.flush_open(), []);
    region
        .place(half as u64, &content.bytes[half..])
        .expect("fits");
    (store, content)
}

#[test]
fn what_is_damaged_on_disk_is_not_gone_on_with() {
    for kind in ["copy", "log"] {
        let (dir, id) = (shared_dir(), copy(3, 7));
        let (store, content) = half_flushed(dir.path(), &id);
        let here = store.incarnation();
        drop(store);
        let path = file(dir.path(), "disk", &id, kind);
        if kind == "copy" {
            flip(&path, 20);
        } else {
            fs::write(&path, b"short").expect("writes");
        }
        let store = start(dir.path());
        assert_eq!(
            store.seal(&id, 8, here),
            Ok(whole(&content)),
            "memory has it all"
        );
        let length = content.bytes.len() as u64;
        store.flush(&id, length, true).expect("flushes");
        drop(store);
        let store = start(dir.path());
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)), "{kind}");
        assert_eq!(
            store.bytes(&id, content.bytes.len()),
            content.bytes,
            "{kind}"
        );
    }
}

#[test]
fn what_was_flushed_at_an_interval_says_nothing_without_its_memory() {
    // The record is damaged, or both files are gone without a trace.
    for damaged in [true, false] {
        let (dir, id) = (shared_dir(), copy(3, 7));
        let (store, content) = half_flushed(dir.path(), &id);
        let here = store.incarnation();
        drop(store);
        let record = file(dir.path(), "shared", &id, "copy");
        if damaged {
            flip(&record, 20);
        } else {
            fs::remove_file(record).expect("is removed");
            fs::remove_file(file(dir.path(), "shared", &id, "log")).expect("is removed");
        }
        for _ in 0..2 {
            let store = start(dir.path());
            assert_eq!(store.incarnation(), here);
            assert_eq!(store.seal(&id, 8, here), Ok(CopyAnswer::Unknown));
            let half = content.ends[2] as usize;
            let bytes = store.bytes(&id, half);
            assert_eq!(bytes, content.bytes[..half], "it can still be read");
        }
    }
}

#[test]
fn what_is_whole_on_disk_needs_no_memory() {
    let (dir, id) = (shared_dir(), copy(3, 7));
    let (store, content) = half_flushed(dir.path(), &id);
    let here = store.incarnation();
    store
        .flush(&id, content.bytes.len() as u64, true)
        .expect("flushes");
    drop(store);
    for _ in 0..2 {
        let store = start(dir.path());
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
    }
}

#[test]
fn a_damaged_copy_is_set_aside_and_not_removed() {
    let (dir, id) = (shared_dir(), copy(3, 7));
    let store = start(dir.path());
    let content = segment(&id, 3, 500);
    store.fill(&id, &content).expect("fills");
    drop(store);
    flip(&file(dir.path(), "shared", &id, "copy"), 20);
    drop(start(dir.path()));
    let log = file(dir.path(), "shared", &id, "log");
    assert!(!log.exists());
    let aside = fs::read(log.with_extension("log.damaged")).expect("it is there");
    assert_eq!(aside[..content.bytes.len()], content.bytes);
    // Nobody stumbles over it.
    let store = start(dir.path());
    assert_eq!(store.state(&id), None);
    store.seal(&id, 8, store.incarnation()).expect("seals");
    store
        .complete(&id, 8, 0, &content.bytes)
        .expect("is built anew");
}

#[test]
fn one_file_that_cannot_be_made_out_keeps_no_store_from_starting() {
    // Something else under its name: the file system cannot give a file, as where an inode is damaged.
    for (root, kind) in [("shared", "copy"), ("disk", "copy"), ("disk", "log")] {
        let (dir, id, other) = (shared_dir(), copy(3, 7), copy(4, 7));
        let (store, content) = half_flushed(dir.path(), &id);
        let here = store.incarnation();
        store.fill(&other, &segment(&other, 2, 300)).expect("fills");
        // What is flushed leaves shared memory: then the disk alone has it.
        let in_memory = root == "shared";
        if !in_memory {
            let length = content.bytes.len() as u64;
            store.flush(&id, length, true).expect("flushes");
        }
        drop(store);
        if !in_memory {
            for kind in ["copy", "log"] {
                let _ = fs::remove_file(file(dir.path(), "shared", &id, kind));
            }
        }
        let path = file(dir.path(), root, &id, kind);
        fs::remove_file(&path).expect("it is there");
        fs::create_dir(&path).expect("a directory");
        for _ in 0..2 {
            let store = start(dir.path());
            let answer = store.seal(&id, 8, here);
            assert_eq!(answer, Ok(CopyAnswer::Unknown), "{root} {kind}");
            let state = store.state(&other);
            assert!(state.is_some(), "{root} {kind}: the others are there");
        }
    }
}

#[test]
fn a_newer_builds_copy_is_left_to_the_newer_build() {
    let (dir, id) = (shared_dir(), copy(3, 7));
    let store = start(dir.path());
    store.fill(&id, &segment(&id, 3, 500)).expect("fills");
    drop(store);
    let record = file(dir.path(), "shared", &id, "copy");
    let mut bytes = fs::read(&record).expect("a record");
    bytes[8] = 99;
    fs::write(&record, &bytes).expect("writes");
    let error = try_start(dir.path()).expect_err("a newer record");
    assert!(error.to_string().contains("newer"), "{error}");
    assert_eq!(fs::read(&record).expect("it is still there"), bytes);
}

#[test]
fn seals_that_were_removed_are_missed() {
    for root in ["shared", "disk"] {
        let (dir, id) = (shared_dir(), copy(3, 7));
        let store = start(dir.path());
        let content = segment(&id, 3, 500);
        store.fill(&id, &content).expect("fills");
        let length = content.bytes.len() as u64;
        store.flush(&id, length, false).expect("flushes");
        store.seal(&id, 8, store.incarnation()).expect("seals");
        drop(store);
        fs::remove_file(dir.path().join(root).join("SEALS")).expect("is removed");
        let error = try_start(dir.path()).expect_err("no seals").to_string();
        assert!(
            error.contains("SEALS") && error.contains("missing"),
            "{error}"
        );
    }
}

#[test]
fn a_start_that_was_killed_before_it_drew_an_id_can_be_begun_again() {
    let dir = shared_dir();
    let killed = || {
        fs::remove_file(dir.path().join("shared/STORE")).expect("is removed");
        fs::remove_dir_all(dir.path().join("shared/spare")).expect("is removed");
    };
    drop(start(dir.path()));
    killed();
    drop(start(dir.path()));
    // But not over seals that say something.
    let store = start(dir.path());
    store
        .seal(&copy(1, 7), 8, store.incarnation())
        .expect("seals");
    drop(store);
    killed();
    let error = try_start(dir.path())
        .expect_err("seals without a store")
        .to_string();
    assert!(error.contains("SEALS"), "{error}");
}

#[test]
fn memory_of_copies_that_were_found_is_used_again_when_they_are_freed() {
    let dir = shared_dir();
    let ids: Vec<_> = (1..4).map(|group| copy(group, 7)).collect();
    let store = start(dir.path());
    for id in &ids {
        store.fill(id, &segment(id, 2, 500)).expect("fills");
    }
    drop(store);
    let store = start(dir.path());
    for id in &ids {
        store.free(id, 7).expect("is freed");
    }
    for group in 4..6 {
        let id = copy(group, 7);
        store.fill(&id, &segment(&id, 2, 500)).expect("fills");
        store.free(&id, 7).expect("is freed");
    }
    let spare = fs::read_dir(dir.path().join("shared/spare")).expect("a directory");
    assert_eq!(spare.count(), 1, "one file serves again and again");
}

/// Files of that folder that this process has open.
pub fn descriptors_below(dir: &Path) -> usize {
    let dir = dir.canonicalize().expect("a directory");
    let all = fs::read_dir("/proc/self/fd").expect("descriptors");
    let links = all
        .flatten()
        .filter_map(|one| fs::read_link(one.path()).ok());
    links
        .filter(|link| link.starts_with(&dir) && link.extension().is_some_and(|end| end == "log"))
        .count()
}

#[test]
fn closed_copies_take_no_descriptors() {
    let dir = shared_dir();
    let disk = dir.path().join("disk");
    let copies: Vec<_> = (3..6).map(|group| copy(group, 7)).collect();
    let store = start(dir.path());
    let mut contents = Vec::new();
    for id in &copies {
        let content = segment(id, 6, 700);
        store.fill(id, &content).expect("there is room");
        assert_eq!(store.flush_open(), []);
        assert_ne!(descriptors_below(&disk), 0, "an open one has a file");
        let length = content.bytes.len() as u64;
        store.flush(id, length, true).expect("flushes");
        assert_eq!(descriptors_below(&disk), 0);
        contents.push(content);
    }
    let here = store.incarnation();
    drop(store);
    let store = start(dir.path());
    assert_eq!(descriptors_below(&disk), 0, "at a start neither");
    for (id, content) in copies.iter().zip(&contents) {
        assert_eq!(store.bytes(id, content.bytes.len()), content.bytes);
        assert_eq!(store.seal(id, 8, here), Ok(whole(content)));
        assert_eq!(descriptors_below(&disk), 0, "nor once it was read");
    }
    // What was known to be on disk, and is damaged there, is still said to be.
    flip(&file(dir.path(), "disk", &copies[0], "log"), 300);
    let answer = store.seal(&copies[0], 9, here);
    assert!(
        matches!(answer, Ok(CopyAnswer::Damaged { .. })),
        "{answer:?}"
    );
}

#[test]
fn a_directory_that_cannot_be_made_out_hides_what_is_in_it_and_no_more() {
    for root in ["shared", "disk"] {
        let (dir, id) = (shared_dir(), copy(3, 7));
        let other = CopyId {
            streamlet: StreamletKey {
                streamlet: StreamletId(id.streamlet.streamlet.0 + 1),
                ..id.streamlet
            },
            ..id
        };
        let (store, content) = half_flushed(dir.path(), &id);
        let of_other = segment(&other, 3, 700);
        store.fill(&other, &of_other).expect("fills");
        let here = store.incarnation();
        drop(store);
        // A file stands in the place of the directory, as a check of the file system may leave it.
        let streamlet = file(dir.path(), root, &id, "log");
        let streamlet = streamlet.parent().expect("a directory");
        let away = dir.path().join("away");
        fs::rename(streamlet, &away).expect("is moved");
        fs::write(streamlet, b"").expect("writes");
        let store = start(dir.path());
        assert_eq!(store.stats().unreadable_dirs, 1, "{root}");
        let never = copy(4, 7);
        for unknown in [id, never] {
            let said = store.seal(&unknown, 8, here);
            assert_eq!(said, Ok(CopyAnswer::Unknown), "{root}: nobody knows");
        }
        assert!(store.is_hidden(&id.streamlet) && !store.is_hidden(&other.streamlet));
        // Nothing is made beside what may be there.
        let made = store.complete(&never, 8, 0, &segment(&never, 1, 100).bytes);
        assert!(matches!(made, Err(Refusal::Failed(_))), "{made:?}");
        assert_eq!(store.seal(&other, 8, here), Ok(whole(&of_other)), "{root}");
        drop(store);
        // Put right, all is there.
        fs::remove_file(streamlet).expect("is removed");
        fs::rename(&away, streamlet).expect("is moved back");
        let store = start(dir.path());
        assert_eq!(store.stats().unreadable_dirs, 0);
        assert_eq!(store.seal(&id, 9, here), Ok(whole(&content)), "{root}");
    }
}
