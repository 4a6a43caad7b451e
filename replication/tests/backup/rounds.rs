//! Flush rounds, and what a start makes of them: the disk alone counts, whatever became of shared memory.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kera_protocol::ids::Epoch;
use kera_replication::backup::{Limits, Region, ReplicaStore, ShmMemory, ShmOptions, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::transport::{CopyAnswer, Refusal, Reply, Request};
use tempfile::TempDir;

use crate::content::{Content, SEGMENT, copy, second, segment};
use crate::stage::{Ask, BESIDES, PRIMARY, QUOTA, limits, shared_dir, whole};

/// Shared memory and a disk that survives a loss of power.
struct Machine {
    shared: TempDir,
    disk: TempDir,
}

impl Machine {
    fn new() -> Self {
        // Beside the test itself: temporary files may lie in memory.
        let here = std::env::current_exe().expect("this test");
        let disk = tempfile::tempdir_in(here.parent().expect("a directory"));
        Self {
            shared: shared_dir(),
            disk: disk.expect("room"),
        }
    }

    fn start(&self) -> Arc<ReplicaStore> {
        let memory = ShmMemory::new(ShmOptions {
            dir: self.shared.path().join("shared"),
            disk: Some(self.disk.path().join("disk")),
            quota: QUOTA + BESIDES,
        });
        ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
    }

    /// As a loss of power does, and as a container's restart does, which leaves the boot's id.
    fn wipe_shared(&self) {
        fs::remove_dir_all(self.shared.path().join("shared")).expect("it is there");
    }

    fn file(&self, copy: &CopyId, kind: &str) -> PathBuf {
        self.disk
            .path()
            .join("disk")
            .join(copy.streamlet.stream.to_string())
            .join(copy.streamlet.streamlet.to_string())
            .join(format!("{}.0.{kind}", copy.group))
    }
}

fn disk_of(store: &ReplicaStore) -> Incarnation {
    store.disk().expect("a disk")
}

fn round(store: &ReplicaStore, copies: &[(CopyId, u64)]) -> Vec<Result<(), Refusal>> {
    let copies = copies.to_vec();
    match store.handle(PRIMARY, Request::FlushRound { copies }) {
        Ok(Reply::FlushedRound(outcomes)) => outcomes,
        other => panic!("{other:?}"),
    }
}

/// Opens a replica in the life of the disk and places `content`.
fn placed(store: &ReplicaStore, id: &CopyId, content: &Content) -> Region {
    let opened = store.opening(id, disk_of(store), 0, content.bytes.len() as u32);
    let key = opened.expect("opens").buffers[0].key;
    let region = store.region(PRIMARY, key).expect("is registered");
    region.place(0, &content.bytes).expect("fits");
    region
}

/// The first `batches` of `content` are whole.
fn first(content: &Content, batches: usize) -> CopyAnswer {
    CopyAnswer::Scanned {
        length: content.ends[batches - 1],
        first_ordinal: 100,
        // A batch has two records.
        end_ordinal: 100 + 2 * batches as u64,
    }
}

#[test]
fn the_disk_alone_keeps_what_a_round_has_flushed() {
    let machine = Machine::new();
    let id = copy(3, 7);
    let content = segment(&id, 6, 700);
    let store = machine.start();
    let life = disk_of(&store);
    placed(&store, &id, &content);
    // In two rounds, so that the second goes on within a block of the first.
    assert_eq!(round(&store, &[(id, content.ends[1])]), [Ok(())]);
    assert_eq!(round(&store, &[(id, content.ends[3])]), [Ok(())]);
    let before = store.incarnation();
    drop(store);

    machine.wipe_shared();
    let store = machine.start();
    assert_ne!(store.incarnation(), before, "shared memory is another");
    assert_eq!(disk_of(&store), life, "the disk is the same");
    assert_eq!(store.seal(&id, 8, before), Ok(CopyAnswer::Unknown));
    assert_eq!(store.seal(&id, 8, life), Ok(first(&content, 4)));
    let length = content.ends[3] as usize;
    assert_eq!(store.bytes(&id, length), content.bytes[..length]);
    // A recovery may fill it up and close it, and that lasts.
    store
        .complete(&id, 8, length as u64, &content.bytes[length..])
        .expect("it is sealed by this epoch");
    store
        .flush(&id, content.bytes.len() as u64, true)
        .expect("flushes");
    drop(store);
    machine.wipe_shared();
    let store = machine.start();
    assert_eq!(store.seal(&id, 9, life), Ok(whole(&content)));
}

#[test]
fn shared_memory_that_is_there_says_more_than_the_disk() {
    let machine = Machine::new();
    let id = copy(3, 7);
    let content = segment(&id, 6, 700);
    let store = machine.start();
    let life = disk_of(&store);
    placed(&store, &id, &content);
    assert_eq!(round(&store, &[(id, content.ends[2])]), [Ok(())]);
    drop(store);
    let store = machine.start();
    assert_eq!(store.seal(&id, 8, life), Ok(whole(&content)));
    drop(store);
    // And what it said is on the disk once it was flushed at an interval.
    let store = machine.start();
    assert_eq!(store.flush_open(), []);
    drop(store);
    machine.wipe_shared();
    assert_eq!(machine.start().seal(&id, 8, life), Ok(whole(&content)));
}

/// What was given back in memory lies on the disk alone; what came after that only a round has flushed.
#[test]
fn a_replica_that_was_released_in_part_and_flushed_in_part_is_whole() {
    let machine = Machine::new();
    let id = copy(3, 7);
    let (size, content) = (u64::from(SEGMENT), segment(&id, 8, 700));
    let next = second(&id, &content, 5, 700);
    let store = machine.start();
    let life = disk_of(&store);
    let place = |address, bytes: &[u8]| {
        let opened = store.opening(&id, life, address, SEGMENT).expect("opens");
        let region = store.region(PRIMARY, opened.buffers[0].key);
        region
            .expect("is registered")
            .place(0, bytes)
            .expect("fits");
    };
    place(0, &content.bytes);
    place(size, &next.bytes);
    let flushed = size + next.ends[1];
    assert_eq!(round(&store, &[(id, flushed)]), [Ok(())]);
    let free = store.free_bytes();
    store
        .flush(&id, size + next.ends[0], false)
        .expect("flushes");
    assert_eq!(store.free_bytes(), free + size, "a segment is given back");
    let more = size + next.ends[3];
    assert_eq!(round(&store, &[(id, more)]), [Ok(())]);
    drop(store);
    machine.wipe_shared();
    let store = machine.start();
    let answer = store.seal(&id, 8, life).expect("seals");
    let CopyAnswer::Scanned { length, .. } = answer else {
        panic!("{answer:?}");
    };
    assert!(length >= more, "{length} of {more}");
    let bytes = store.bytes(&id, more as usize);
    assert_eq!(bytes[..content.bytes.len()], content.bytes);
    assert_eq!(
        bytes[SEGMENT as usize..],
        next.bytes[..next.ends[3] as usize]
    );
}

#[test]
fn a_replica_that_no_round_has_flushed_was_never_acknowledged() {
    let machine = Machine::new();
    let (id, other) = (copy(3, 7), copy(4, 7));
    let content = segment(&id, 2, 700);
    let store = machine.start();
    let life = disk_of(&store);
    placed(&store, &id, &content);
    placed(&store, &other, &segment(&other, 2, 700));
    assert_eq!(round(&store, &[(other, 1)]), [Ok(())]);
    drop(store);
    machine.wipe_shared();
    let store = machine.start();
    assert_eq!(store.seal(&id, 8, life), Ok(CopyAnswer::Absent));
}

#[test]
fn an_empty_disk_in_the_place_of_another_is_another_life() {
    let machine = Machine::new();
    let id = copy(3, 7);
    let content = segment(&id, 3, 700);
    let store = machine.start();
    let life = disk_of(&store);
    placed(&store, &id, &content);
    assert_eq!(round(&store, &[(id, content.ends[2])]), [Ok(())]);
    drop(store);
    fs::remove_dir_all(machine.disk.path().join("disk")).expect("it is there");
    let store = machine.start();
    assert_ne!(disk_of(&store), life);
    // Even though shared memory has it all.
    assert_eq!(store.seal(&id, 8, life), Ok(CopyAnswer::Unknown));
    assert_eq!(store.seal(&id, 8, disk_of(&store)), Ok(CopyAnswer::Unknown));
    let refused = store.opening(&copy(5, 9), life, 0, 4096);
    assert_eq!(refused, Err(Refusal::OtherIncarnation));
}

#[test]
fn seals_outlive_shared_memory() {
    let machine = Machine::new();
    let store = machine.start();
    let (id, life) = (copy(3, 7), disk_of(&store));
    assert_eq!(store.seal(&id, 8, life), Ok(CopyAnswer::Absent));
    drop(store);
    machine.wipe_shared();
    let store = machine.start();
    let refused = store.opening(&id, life, 0, 4096);
    assert_eq!(refused, Err(Refusal::Sealed { by: Epoch(8) }));
}

#[test]
fn rounds_are_for_open_replicas_that_count_on_the_disk() {
    let machine = Machine::new();
    let store = machine.start();
    let (id, written, unknown) = (copy(3, 7), copy(4, 7), copy(5, 7));
    let content = segment(&id, 3, 700);
    placed(&store, &id, &content);
    store
        .fill(&written, &segment(&written, 3, 700))
        .expect("fits");
    let end = content.bytes.len() as u64;
    let outcomes = round(
        &store,
        &[(unknown, 1), (written, 1), (id, end), (id, end + 1)],
    );
    assert_eq!(outcomes[0], Err(Refusal::Unknown));
    assert!(
        matches!(outcomes[1], Err(Refusal::Invalid(_))),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[2], Ok(()));
    assert_eq!(outcomes[3], Err(Refusal::Short { length: end }));
    // An owner that is over hears so.
    let by = Epoch(8);
    store.seal(&id, 8, disk_of(&store)).expect("seals");
    assert_eq!(round(&store, &[(id, end)]), [Err(Refusal::Sealed { by })]);
    drop(store);
    let store = machine.start();
    let refused = round(&store, &[(id, end)]);
    assert!(matches!(refused[0], Err(Refusal::Sealed { .. })));
}

#[test]
fn many_replicas_are_flushed_by_one_round() {
    let machine = Machine::new();
    let store = machine.start();
    let life = disk_of(&store);
    let ids: Vec<_> = (0..7).map(|group| copy(3 + group, 7)).collect();
    let contents: Vec<_> = ids.iter().map(|id| segment(id, 2, 100)).collect();
    for (id, content) in ids.iter().zip(&contents) {
        placed(&store, id, content);
    }
    // More parts than the flush of a whole file system is for.
    let asked: Vec<_> = (0..3)
        .flat_map(|_| ids.iter().zip(&contents))
        .map(|(id, content)| (*id, content.ends[1]))
        .collect();
    assert_eq!(round(&store, &asked), vec![Ok(()); 21]);
    drop(store);
    machine.wipe_shared();
    let store = machine.start();
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.seal(id, 8, life), Ok(first(content, 2)));
    }
}

#[test]
fn files_that_are_left_of_an_earlier_replica_are_not_gone_on_with() {
    let machine = Machine::new();
    let id = copy(3, 7);
    let content = segment(&id, 3, 700);
    let store = machine.start();
    let life = disk_of(&store);
    for kind in ["log", "copy"] {
        let path = machine.file(&id, kind);
        fs::create_dir_all(path.parent().expect("a directory")).expect("is made");
        fs::write(path, [7; 9000]).expect("room");
    }
    placed(&store, &id, &content);
    assert_eq!(round(&store, &[(id, content.ends[1])]), [Ok(())]);
    drop(store);
    machine.wipe_shared();
    assert_eq!(machine.start().seal(&id, 8, life), Ok(first(&content, 2)));
}

#[test]
fn a_disk_that_a_loss_of_power_empties_is_none() {
    let dir = shared_dir();
    let start = |disk| {
        let memory = ShmMemory::new(ShmOptions {
            dir: dir.path().join("shared"),
            disk,
            quota: QUOTA + BESIDES,
        });
        ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
    };
    let reason = |store: &ReplicaStore| match store.handle(BrokerId(2), Request::Describe) {
        Ok(Reply::Description(description)) => description.disk.expect_err("no disk"),
        other => panic!("{other:?}"),
    };
    assert!(reason(&start(None)).contains("no replicas on a disk"));
    if dir.path().starts_with("/dev/shm") {
        let told = reason(&start(Some(dir.path().join("disk"))));
        assert!(told.contains("tmpfs"), "{told}");
    }
}

/// A sync that fails takes its bytes for clean: one more, which succeeds, proves nothing.
#[test]
fn a_flush_that_failed_loses_the_replica_for_good() {
    for at_an_interval in [false, true] {
        let memory = SimMemory::new(9);
        let start = || ReplicaStore::start(memory.clone(), limits(), Faults::default());
        let store = start().expect("starts");
        let (id, life) = (copy(3, 7), disk_of(&store));
        let content = segment(&id, 4, 700);
        placed(&store, &id, &content);
        assert_eq!(round(&store, &[(id, content.ends[0])]), [Ok(())]);
        memory.fail_sync();
        if at_an_interval {
            assert_eq!(store.flush_open().len(), 1);
        } else {
            let failed = round(&store, &[(id, content.ends[2])]);
            assert!(matches!(failed[0], Err(Refusal::Failed(_))), "{failed:?}");
        }
        let refused = round(&store, &[(id, content.ends[3])]);
        assert!(matches!(refused[0], Err(Refusal::Sealed { .. })));
        drop(store);
        memory.crash_machine();
        let store = start().expect("starts");
        assert_eq!(store.seal(&id, 8, life), Ok(first(&content, 1)));
    }
}

/// A device that fails a flush may have dropped what its cache held of any replica, and answers the next flush.
#[test]
fn a_flush_that_failed_loses_every_replica_of_its_round() {
    // With one flush for all, and each by itself.
    for count in [20, 2] {
        let memory = SimMemory::new(9);
        let limits = Limits {
            memory_bytes: 64 * u64::from(SEGMENT),
            copies_in_memory: 64,
            copies: 64,
            streamlets: 4,
        };
        let start = || ReplicaStore::start(memory.clone(), limits, Faults::default());
        let store = start().expect("starts");
        let ids: Vec<_> = (0..count).map(|at| copy(3 + at, 7)).collect();
        let contents: Vec<_> = ids.iter().map(|id| segment(id, 4, 700)).collect();
        for (id, content) in ids.iter().zip(&contents) {
            placed(&store, id, content);
        }
        let up_to = |batches: usize| -> Vec<_> {
            let ends = contents.iter().map(|content| content.ends[batches - 1]);
            ids.iter().copied().zip(ends).collect()
        };
        assert!(round(&store, &up_to(1)).iter().all(Result::is_ok));
        memory.fail_sync();
        let outcomes = round(&store, &up_to(3));
        let again = round(&store, &up_to(4));
        let life = disk_of(&store);
        drop(store);
        memory.crash_machine();
        let store = start().expect("starts");
        for (at, (id, content)) in ids.iter().zip(&contents).enumerate() {
            let there = store.seal(id, 8, life);
            let acknowledged = content.ends[2];
            let is_kept =
                matches!(there, Ok(CopyAnswer::Scanned { length, .. }) if length >= acknowledged);
            assert!(
                outcomes[at].is_err() || is_kept,
                "{id} was acknowledged, and there is {there:?}"
            );
            let (outcome, again) = (&outcomes[at], &again[at]);
            assert!(matches!(outcome, Err(Refusal::Failed(_))), "{outcome:?}");
            assert!(matches!(again, Err(Refusal::Sealed { .. })), "{again:?}");
        }
    }
}
