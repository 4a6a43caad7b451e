//! Starting over very many copies: what is opened, mapped and stored is counted, and does not grow
//! with them. `KERA_BACKUP_COPIES=100000 cargo test --release -p kera-replication --test backup many -- --nocapture`
//! tells how long it takes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, Took};
use kera_replication::faults::Faults;
use kera_replication::ids::CopyId;
use kera_replication::transport::{CopyAnswer, CopyState};

use crate::content::{copy, segment};
use crate::stage::{Ask, PRIMARY, options, shared_dir, whole};
use crate::starts::descriptors_below;

/// Copies in memory and on disk unless the environment says otherwise.
const COPIES: u64 = 600;
/// Made by one process: an open copy takes up to three descriptors.
const AT_ONCE: u64 = 100;

fn start(dir: &Path) -> (Arc<ReplicaStore>, Took) {
    let memory = ShmMemory::new(options(dir, true));
    let limits = Limits {
        memory_bytes: 1 << 40,
        ..Limits::default()
    };
    let store = ReplicaStore::start(memory.clone(), limits, Faults::default()).expect("starts");
    (store, memory.took())
}

/// Mappings of files below that folder that this process has.
fn mappings_below(dir: &Path) -> usize {
    let dir = dir.canonicalize().expect("a directory");
    let dir = dir.display().to_string();
    let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
    maps.lines().filter(|line| line.contains(&dir)).count()
}

fn how_many() -> u64 {
    let told = std::env::var("KERA_BACKUP_COPIES");
    told.map_or(COPIES, |text| text.parse().expect("a number"))
}

/// Opens a copy and places three batches in it; returns where the second ends.
fn open(store: &ReplicaStore, id: &CopyId) -> u64 {
    let content = segment(id, 3, 200);
    let opened = store.opening(id, store.incarnation(), 0, 4096);
    let key = opened.expect("opens").buffers[0].key;
    let region = store.region(PRIMARY, key).expect("is registered");
    region.place(0, &content.bytes).expect("fits");
    content.ends[1]
}

#[test]
fn a_start_over_many_copies_opens_and_maps_none() {
    let (dir, count) = (shared_dir(), how_many());
    // A third each: closed and on disk; in memory; in memory, and flushed in part.
    let life = |group: u64| group % 3;
    let groups: Vec<_> = (0..count).collect();
    for some in groups.chunks(AT_ONCE as usize) {
        let (store, _) = start(dir.path());
        for group in some {
            let id = copy(*group, 7);
            let second = open(&store, &id);
            let length = segment(&id, 3, 200).bytes.len() as u64;
            match life(*group) {
                0 => store.flush(&id, length, true).expect("is closed"),
                1 => {}
                _ => store.flush(&id, second, false).expect("is flushed"),
            }
        }
    }
    let begun = Instant::now();
    let (store, took) = start(dir.path());
    println!("{count} copies: {:?}, {took:?}", begun.elapsed());
    let flushed = (0..count).filter(|group| life(*group) == 2).count();
    let expected = Took {
        copies: count as usize,
        looked: count as usize + flushed,
        opened: 0,
        stored: 0,
    };
    assert_eq!(took, expected);
    assert_eq!(descriptors_below(dir.path()), 0, "no file stays open");
    assert_eq!(mappings_below(dir.path()), 0, "and none is mapped");

    // What is asked for is there, and is let go of again.
    let here = store.incarnation();
    for group in 0..6 {
        let (id, content) = (copy(group, 7), segment(&copy(group, 7), 3, 200));
        let state = match life(group) {
            0 => CopyState::Flushed,
            _ => CopyState::Sealed,
        };
        assert_eq!(store.state(&id), Some(state));
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
    }
    assert_eq!(descriptors_below(dir.path()), 0);
    assert_eq!(mappings_below(dir.path()), 0);
    // Written, one is mapped; brought to the disk, it is no more.
    let (id, content) = (copy(1, 7), segment(&copy(1, 7), 3, 200));
    store
        .complete(&id, 8, 0, &content.bytes)
        .expect("is written");
    assert_eq!(mappings_below(dir.path()), 1);
    assert_eq!(store.flush_open(), []);
    assert_eq!(descriptors_below(dir.path()), 0, "all are on disk");
    assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
    for group in 0..6 {
        store.free(&copy(group, 7), 8).expect("is freed");
        assert_eq!(store.state(&copy(group, 7)), None);
    }
    drop(store);
    // Sealed ones have only their records in memory by now.
    let expected = Took {
        copies: count as usize - 6,
        looked: count as usize + (0..count).filter(|group| life(*group) > 0).count() - 10,
        opened: 0,
        stored: 0,
    };
    assert_eq!(start(dir.path()).1, expected);
}

#[test]
fn what_another_store_left_on_disk_is_not_stored_anew_at_each_start() {
    let (dir, count) = (shared_dir(), 20);
    let (store, _) = start(dir.path());
    for group in 0..count {
        let id = copy(group, 7);
        let second = open(&store, &id);
        store.flush(&id, second, false).expect("is flushed");
    }
    let before = store.incarnation();
    drop(store);
    // The machine was started anew: shared memory is empty.
    fs::remove_dir_all(dir.path().join("shared")).expect("is removed");
    for _ in 0..2 {
        let (store, took) = start(dir.path());
        assert_eq!((took.copies, took.stored), (count as usize, 0));
        for incarnation in [before, store.incarnation()] {
            let answer = store.seal(&copy(3, 7), 8, incarnation);
            assert_eq!(answer, Ok(CopyAnswer::Unknown));
        }
    }
}

#[test]
fn what_this_store_has_lost_is_stored_once() {
    let dir = shared_dir();
    let (store, _) = start(dir.path());
    for group in 0..3 {
        let id = copy(group, 7);
        let second = open(&store, &id);
        store.flush(&id, second, false).expect("is flushed");
    }
    drop(store);
    let shared = dir
        .path()
        .join("shared")
        .join(copy(1, 7).streamlet.stream.to_string());
    let shared = shared.join(copy(1, 7).streamlet.streamlet.to_string());
    for kind in ["copy", "log"] {
        fs::remove_file(shared.join(format!("1.0.{kind}"))).expect("is removed");
    }
    for stored in [1, 0] {
        let (store, took) = start(dir.path());
        assert_eq!(took.stored, stored);
        let answer = store.seal(&copy(1, 7), 8, store.incarnation());
        assert_eq!(answer, Ok(CopyAnswer::Unknown));
        let length = segment(&copy(2, 7), 3, 200);
        let other = store.seal(&copy(2, 7), 8, store.incarnation());
        assert_eq!(other, Ok(whole(&length)));
    }
}
