//! Memory that is given back while a copy lives on, and what is known of it once its disk is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::ids::Epoch;
use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::CopyId;
use kera_replication::transport::{CopyAnswer, CopyState, Refusal};

use crate::content::{Content, SEGMENT, copy, second, segment};
use crate::stage::{Ask, BESIDES, PRIMARY, QUOTA, limits, options, over_each_memory, shared_dir};

/// A copy with a full segment and the beginning of another.
struct Two {
    id: CopyId,
    first: Content,
    second: Content,
}

impl Two {
    fn new(group: u64) -> Self {
        let id = copy(group, 7);
        let first = segment(&id, 8, 700);
        let second = second(&id, &first, 5, 700);
        Self { id, first, second }
    }

    fn length(&self) -> u64 {
        u64::from(SEGMENT) + self.second.bytes.len() as u64
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.bytes.clone();
        bytes.resize(SEGMENT as usize, 0);
        bytes.extend_from_slice(&self.second.bytes);
        bytes
    }

    fn whole(&self) -> CopyAnswer {
        CopyAnswer::Scanned {
            length: self.length(),
            first_ordinal: 100,
            end_ordinal: self.second.next_ordinal,
        }
    }

    /// Puts all of it into the store.
    fn fill(&self, store: &ReplicaStore) {
        store.fill(&self.id, &self.first).expect("fills");
        let here = store.incarnation();
        let opened = store.opening(&self.id, here, u64::from(SEGMENT), SEGMENT);
        let key = opened.expect("opens").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        region.place(0, &self.second.bytes).expect("fits");
    }
}

#[test]
fn a_segment_that_is_on_disk_gives_its_memory_back_and_is_read_from_there() {
    over_each_memory(|stage| {
        let two = Two::new(1);
        let store = stage.store();
        let here = store.incarnation();
        two.fill(&store);
        let key = store.open_first(&two.id).expect("again").buffers[0].key;
        let early = store.region(PRIMARY, key).expect("is registered");
        assert_eq!(store.free_bytes(), QUOTA - 2 * u64::from(SEGMENT));
        store.flush(&two.id, two.length(), false).expect("flushes");
        assert_eq!(store.free_bytes(), QUOTA - u64::from(SEGMENT));
        assert_eq!(store.state(&two.id), Some(CopyState::Open));
        assert_eq!(store.bytes(&two.id, two.bytes().len()), two.bytes());

        // Nothing is opened there any more; what a link sends again does no harm.
        assert_eq!(store.region(PRIMARY, key).err(), Some(Refusal::Unknown));
        let refused = store.open_first(&two.id);
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        early.place(0, &two.first.bytes).expect("as it was");
        assert_eq!(store.free_bytes(), QUOTA - u64::from(SEGMENT));
        assert_eq!(store.bytes(&two.id, two.bytes().len()), two.bytes());

        drop((store, early));
        stage.restart();
        let store = stage.store();
        assert_eq!(store.seal(&two.id, 8, here), Ok(two.whole()));
        assert_eq!(store.bytes(&two.id, two.bytes().len()), two.bytes());
        // A recovery may write all of it once more.
        for (address, content) in [(0, &two.first), (u64::from(SEGMENT), &two.second)] {
            let completed = store.complete(&two.id, 8, address, &content.bytes);
            completed.expect("completes");
        }
        store.flush(&two.id, two.length(), true).expect("flushes");
        assert_eq!(store.state(&two.id), Some(CopyState::Flushed));
        assert_eq!(store.free_bytes(), QUOTA);
        assert_eq!(store.bytes(&two.id, two.bytes().len()), two.bytes());
        drop(store);
        stage.restart();
        assert_eq!(stage.store().seal(&two.id, 8, here), Ok(two.whole()));
    });
}

const QUARTER: u32 = SEGMENT / 4;

/// Puts a copy into buffers of a quarter of a segment each.
fn fill_quarters(store: &ReplicaStore, id: &CopyId, content: &Content) {
    for (index, bytes) in content.bytes.chunks(QUARTER as usize).enumerate() {
        let address = index as u64 * u64::from(QUARTER);
        let opened = store.opening(id, store.incarnation(), address, QUARTER);
        let key = opened.expect("opens").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        region.place(0, bytes).expect("fits");
    }
}

#[test]
fn a_buffer_of_a_segment_that_is_not_full_gives_its_memory_back() {
    over_each_memory(|stage| {
        let (id, other) = (copy(1, 7), copy(2, 7));
        let content = segment(&id, 30, 700);
        let length = content.bytes.len() as u64;
        assert_eq!(length / u64::from(QUARTER), 2, "two full, one begun");
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&other, &segment(&other, 2, 500)).expect("fills");
        fill_quarters(&store, &id, &content);
        let taken = u64::from(SEGMENT + 3 * QUARTER);
        assert_eq!(store.free_bytes(), QUOTA - taken);
        store.flush(&id, length, false).expect("flushes");
        let taken = u64::from(SEGMENT + QUARTER);
        assert_eq!(store.free_bytes(), QUOTA - taken);
        assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);

        let refused = store.opening(&id, here, u64::from(QUARTER), QUARTER);
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        // The last one is written on.
        let opened = store.opening(&id, here, u64::from(2 * QUARTER), QUARTER);
        let key = opened.expect("is open").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        let last = &content.bytes[2 * QUARTER as usize..];
        region.place(0, last).expect("once more");
        drop((store, region));
        stage.restart();
        let store = stage.store();
        assert_eq!(store.seal(&id, 8, here), Ok(crate::stage::whole(&content)));
        assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
    });
}

#[test]
fn a_copy_that_lost_its_first_buffers_with_its_disk_is_missed() {
    let dir = shared_dir();
    let (id, other) = (copy(1, 7), copy(2, 7));
    let content = segment(&id, 30, 700);
    let store = files(dir.path());
    let here = store.incarnation();
    store.fill(&other, &segment(&other, 2, 500)).expect("fills");
    fill_quarters(&store, &id, &content);
    let length = content.bytes.len() as u64;
    store.flush(&id, length, false).expect("flushes");
    drop(store);
    lose_disk(dir.path());
    let store = files(dir.path());
    assert_eq!(store.seal(&id, 8, here), Ok(CopyAnswer::Unknown));
}

#[test]
fn whoever_finds_no_room_gets_what_is_on_disk_already() {
    let limits = Limits {
        memory_bytes: 5 * u64::from(SEGMENT) + BESIDES + (16 << 10),
        ..limits()
    };
    let store = ReplicaStore::start(SimMemory::new(3), limits, Faults::default());
    let store = store.expect("starts");
    let two = Two::new(1);
    two.fill(&store);
    store.flush(&two.id, two.length(), false).expect("flushes");
    let free = store.free_bytes();
    let extra = 16 << 10;
    assert_eq!(free, 3 * u64::from(SEGMENT) + extra, "there is no need yet");
    for group in 2..6 {
        let id = copy(group, 7);
        let filled = store.fill(&id, &segment(&id, 2, 500));
        filled.unwrap_or_else(|refusal| panic!("group {group}: {refusal}"));
    }
    let id = copy(6, 7);
    let refused = store.fill(&id, &segment(&id, 2, 500));
    assert!(
        matches!(refused, Err(Refusal::NoRoom { .. })),
        "{refused:?}"
    );
    assert_eq!(store.bytes(&two.id, two.bytes().len()), two.bytes());
}

/// The first segment of a copy, full to its last byte.
fn brim(id: &CopyId) -> Content {
    let room = SEGMENT as usize - segment(id, 0, 0).bytes.len();
    let batch = |value_bytes| segment(id, 1, value_bytes).bytes.len() + room - SEGMENT as usize;
    let value_bytes = (500..5000).find(|bytes| room.is_multiple_of(batch(*bytes)));
    let value_bytes = value_bytes.expect("some size fits");
    let full = segment(id, (room / batch(value_bytes)) as u32, value_bytes);
    assert_eq!(full.bytes.len(), SEGMENT as usize);
    full
}

#[test]
fn a_copy_that_has_given_all_its_memory_back_outlives_a_want_of_room() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let full = brim(&id);
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &full).expect("fills");
        let fill_another = |group| {
            let other = copy(group, 7);
            store.fill(&other, &segment(&other, 2, 500)).expect("fills");
        };
        fill_another(2);
        store
            .flush(&id, u64::from(SEGMENT), false)
            .expect("flushes");
        assert_eq!(store.free_bytes(), QUOTA - u64::from(SEGMENT));
        fill_another(3);
        fill_another(4);
        let next = || store.opening(&id, here, u64::from(SEGMENT), SEGMENT);
        let refused = next();
        assert!(
            matches!(refused, Err(Refusal::NoRoom { .. })),
            "{refused:?}"
        );
        assert_eq!(store.state(&id), Some(CopyState::Open));
        assert_eq!(store.bytes(&id, full.bytes.len()), full.bytes);
        store.free(&copy(2, 7), 7).expect("is freed");
        next().expect("now there is room");
        assert_eq!(store.seal(&id, 8, here), Ok(crate::stage::whole(&full)));
    });
}

#[test]
fn what_its_primary_has_not_seen_complete_stays() {
    over_each_memory(|stage| {
        let two = Two::new(1);
        let store = stage.store();
        two.fill(&store);
        // By the store itself, which does not know what the primary has seen.
        assert_eq!(store.flush_open(), []);
        let within = two.first.ends[2];
        store.flush(&two.id, within, false).expect("flushes");
        assert_eq!(store.free_bytes(), QUOTA - 2 * u64::from(SEGMENT));
        store.open_first(&two.id).expect("it may send it again");
    });
}

/// A store of files below `dir`.
fn files(dir: &Path) -> Arc<ReplicaStore> {
    let memory = ShmMemory::new(options(dir, true));
    ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
}

fn lose_disk(dir: &Path) {
    fs::remove_dir_all(dir.join("disk")).expect("the disk is lost");
}

#[test]
fn a_copy_whose_disk_is_lost_never_seems_shorter_than_it_was() {
    let dir = shared_dir();
    let two = Two::new(1);
    let store = files(dir.path());
    let here = store.incarnation();
    two.fill(&store);
    store.flush(&two.id, two.length(), false).expect("flushes");
    // Another, all of which is in memory.
    let other = copy(2, 7);
    let content = segment(&other, 3, 700);
    store.fill(&other, &content).expect("fills");
    drop(store);
    lose_disk(dir.path());

    let store = files(dir.path());
    assert_eq!(store.incarnation(), here);
    assert_eq!(store.seal(&two.id, 8, here), Ok(CopyAnswer::Unknown));
    assert_eq!(
        store.seal(&other, 8, here),
        Ok(crate::stage::whole(&content)),
        "that one needs no disk"
    );
    // It is made anew from elsewhere, and still says nothing for the open group.
    store
        .complete(&two.id, 8, 0, &two.first.bytes)
        .expect("is built");
    assert_eq!(store.seal(&two.id, 8, here), Ok(CopyAnswer::Unknown));
    drop(store);
    let store = files(dir.path());
    assert_eq!(store.seal(&two.id, 8, here), Ok(CopyAnswer::Unknown));
}

#[test]
fn a_copy_that_is_on_disk_alone_is_missed_when_that_is_lost() {
    let dir = shared_dir();
    let two = Two::new(1);
    let store = files(dir.path());
    let here = store.incarnation();
    two.fill(&store);
    drop(store);
    // A start seals it, and it goes to the disk.
    let store = files(dir.path());
    assert_eq!(store.flush_open(), []);
    assert_eq!(store.free_bytes(), QUOTA);
    drop(store);
    let store = files(dir.path());
    assert_eq!(store.free_bytes(), QUOTA, "it stays there");
    assert_eq!(store.seal(&two.id, 8, here), Ok(two.whole()));
    drop(store);
    lose_disk(dir.path());

    let store = files(dir.path());
    assert_eq!(store.incarnation(), here);
    assert_eq!(
        store.seal(&two.id, 9, here),
        Ok(CopyAnswer::Unknown),
        "it is not absent: it was here"
    );
    drop(store);
    let store = files(dir.path());
    assert_eq!(store.seal(&two.id, 9, here), Ok(CopyAnswer::Unknown));
}

#[test]
fn the_memory_of_a_copy_on_disk_alone_goes_although_its_process_ended_before_that() {
    let dir = shared_dir();
    let two = Two::new(1);
    let store = files(dir.path());
    two.fill(&store);
    drop(store);
    let shared = dir.path().join("shared");
    let [log] = &logs(&shared)[..] else {
        panic!("one file");
    };
    let in_memory = fs::read(log).expect("its bytes");
    let store = files(dir.path());
    assert_eq!(store.flush_open(), []);
    drop(store);
    assert_eq!(logs(&shared), [] as [PathBuf; 0]);
    // As it was after its record said that it is on disk alone.
    fs::write(log, in_memory).expect("it is written");
    let store = files(dir.path());
    assert_eq!(store.free_bytes(), QUOTA);
    assert_eq!(logs(&shared), [] as [PathBuf; 0], "nobody would count it");
    store.free(&two.id, 8).expect("is freed");
    assert_eq!(records(dir.path()), 0);
}

#[test]
fn a_closed_copy_leaves_nothing_in_memory() {
    let dir = shared_dir();
    let two = Two::new(1);
    let store = files(dir.path());
    let here = store.incarnation();
    two.fill(&store);
    drop(store);
    let store = files(dir.path());
    assert_eq!(store.flush_open(), []);
    store.seal(&two.id, 8, here).expect("seals");
    assert_eq!(records(&dir.path().join("shared")), 1);
    store.flush(&two.id, two.length(), true).expect("flushes");
    assert_eq!(records(&dir.path().join("shared")), 0);
    assert_eq!(records(&dir.path().join("disk")), 1);
    let by = Epoch(8);
    assert_eq!(store.open_first(&two.id), Err(Refusal::Sealed { by }));
    store.free(&two.id, 8).expect("is freed");
    assert_eq!(records(&dir.path().join("disk")), 0);
}

/// Records of copies below a directory.
fn records(dir: &Path) -> usize {
    named(dir, "copy").len()
}

/// The files with the bytes of copies below a directory.
fn logs(dir: &Path) -> Vec<PathBuf> {
    named(dir, "log")
}

/// Files below a directory whose names end so.
fn named(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |path: PathBuf| match path.is_dir() {
        true => named(&path, ending),
        false if path.extension().is_some_and(|found| found == ending) => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(|entry| of(entry.path())).collect()
}
