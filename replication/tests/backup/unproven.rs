//! Bytes count as durable when a sync has brought them to the disk, and as whole when their checksums
//! were looked at: neither is taken over from what was there before.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kera_log_segments::layout::{DurableMark, MARK_BYTES, MARK_SLOT_STRIDE};
use kera_replication::backup::{ReplicaStore, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::CopyId;
use kera_replication::transport::{CopyAnswer, CopyState, Refusal};

use crate::content::{Content, SEGMENT, SEGMENTS, copy, segment};
use crate::stage::{Ask, limits, options, over_each_memory, shared_dir, whole};

fn start(memory: &Arc<SimMemory>) -> Arc<ReplicaStore> {
    ReplicaStore::start(memory.clone(), limits(), Faults::default()).expect("starts")
}

/// A copy of which the first batches are on disk alone.
fn on_disk_alone(memory: &Arc<SimMemory>, id: &CopyId, content: &Content, batches: usize) -> u64 {
    let store = start(memory);
    let there = content.ends[batches - 1];
    let first = Content {
        bytes: content.bytes[..there as usize].to_vec(),
        ends: content.ends[..batches].to_vec(),
        next_ordinal: 0,
    };
    store.fill(id, &first).expect("fills");
    drop(store);
    // A start seals it, and it goes to the disk.
    let store = start(memory);
    assert_eq!(store.flush_open(), []);
    assert_eq!(store.free_bytes(), crate::stage::QUOTA);
    there
}

#[test]
fn what_a_failed_sync_has_lost_is_not_durable_when_the_next_succeeds() {
    let (memory, id) = (SimMemory::new(11), copy(1, 7));
    let content = segment(&id, 8, 700);
    let length = content.bytes.len() as u64;
    let there = on_disk_alone(&memory, &id, &content, 3);
    let store = start(&memory);
    let here = store.incarnation();
    store.seal(&id, 8, here).expect("seals");
    let missing = &content.bytes[there as usize..];
    store.complete(&id, 8, there, missing).expect("completes");
    memory.fail_sync();
    let failed = store.flush(&id, length, true);
    assert!(matches!(failed, Err(Refusal::Failed(_))), "{failed:?}");
    store.flush(&id, length, true).expect("asked again");
    assert_eq!(store.state(&id), Some(CopyState::Flushed));
    drop(store);
    memory.crash_machine();
    let store = start(&memory);
    let there = store.bytes(&id, content.bytes.len());
    assert!(there == content.bytes, "what was durable is gone");
}

#[test]
fn a_sync_that_failed_before_a_kill_is_not_made_up_for_either() {
    let (memory, id) = (SimMemory::new(12), copy(1, 7));
    let content = segment(&id, 8, 700);
    let length = content.bytes.len() as u64;
    let there = on_disk_alone(&memory, &id, &content, 3);
    let store = start(&memory);
    store.seal(&id, 8, store.incarnation()).expect("seals");
    let missing = &content.bytes[there as usize..];
    store.complete(&id, 8, there, missing).expect("completes");
    memory.fail_sync();
    store.flush(&id, length, true).expect_err("fails");
    drop(store);
    let store = start(&memory);
    store.flush(&id, length, true).expect("asked again");
    drop(store);
    memory.crash_machine();
    let store = start(&memory);
    let there = store.bytes(&id, content.bytes.len());
    assert!(there == content.bytes, "what was durable is gone");
}

/// One byte in the middle of a batch is another.
fn damaged(content: &Content) -> Vec<u8> {
    let mut bytes = content.bytes.clone();
    let at = content.ends[2] as usize - 100;
    bytes[at] ^= 1;
    bytes
}

#[test]
fn a_repair_from_a_damaged_source_is_found_whatever_was_checked_before() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 8, 700);
        let length = content.bytes.len() as u64;
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        store.flush(&id, length, true).expect("is closed");
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        let bad = damaged(&content);
        store.complete(&id, 8, 0, &bad).expect("takes the bytes");
        let refused = store.flush(&id, length, true);
        let whole_until = content.ends[1];
        let short = Err(Refusal::Short {
            length: whole_until,
        });
        assert_eq!(refused, short);
        drop(store);
        stage.restart();
        let store = stage.store();
        assert_eq!(store.flush(&id, length, true), short);
        let answered = store.seal(&id, 8, here).expect("answers");
        assert_ne!(answered, whole(&content), "its bytes are not");
        // Another source mends it.
        store.complete(&id, 8, 0, &content.bytes).expect("takes it");
        store.flush(&id, length, true).expect("is whole");
        drop(store);
        stage.restart();
        let store = stage.store();
        let there = store.bytes(&id, content.bytes.len());
        assert!(there == content.bytes, "what was durable is gone");
    });
}

#[test]
fn a_repair_of_what_memory_holds_and_was_flushed_gets_to_the_disk() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 8, 700);
        let length = content.bytes.len() as u64;
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        store.flush(&id, length, false).expect("flushes");
        store.seal(&id, 8, here).expect("seals");
        let bad = damaged(&content);
        store.complete(&id, 8, 0, &bad).expect("takes the bytes");
        let refused = store.flush(&id, length, true);
        assert!(matches!(refused, Err(Refusal::Short { .. })), "{refused:?}");
        store.complete(&id, 8, 0, &content.bytes).expect("takes it");
        store.flush(&id, length, true).expect("is whole");
        let there = store.bytes(&id, content.bytes.len());
        assert!(there == content.bytes, "what was durable is gone");
        drop(store);
        stage.restart();
        assert_eq!(stage.store().seal(&id, 8, here), Ok(whole(&content)));
    });
}

#[test]
fn the_mark_goes_before_the_bytes_that_it_spoke_of() {
    let dir = shared_dir();
    let memory = kera_replication::backup::ShmMemory::new(options(dir.path(), true));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    let id = copy(1, 7);
    let content = segment(&id, 8, 700);
    let length = content.bytes.len() as u64;
    store.fill(&id, &content).expect("fills");
    store.flush(&id, length, true).expect("is closed");
    let log = dir.path().join(format!(
        "disk/{}/{}/1.0.log",
        id.streamlet.stream, id.streamlet.streamlet
    ));
    let marked = || {
        let file = fs::File::open(&log).expect("is there");
        let mut slots = [[0; MARK_BYTES]; 2];
        for (index, slot) in slots.iter_mut().enumerate() {
            let group = u64::from(SEGMENT) * u64::from(SEGMENTS);
            let at = group + index as u64 * MARK_SLOT_STRIDE;
            file.read_exact_at(slot, at).expect("is read");
        }
        DurableMark::newest(&slots[0], &slots[1]).expect("a mark")
    };
    assert_eq!(marked().synced, length);
    store.seal(&id, 8, store.incarnation()).expect("seals");
    let piece = &content.bytes[..content.ends[0] as usize];
    store.complete(&id, 8, 0, piece).expect("the first piece");
    assert_eq!(marked().synced, 0, "before anything is flushed");
    // What follows the mark needs no further one.
    let sequence = marked().sequence;
    let rest = &content.bytes[content.ends[0] as usize..];
    store
        .complete(&id, 8, content.ends[0], rest)
        .expect("the rest");
    assert_eq!(marked().sequence, sequence);
    store.flush(&id, length, true).expect("flushes");
    assert_eq!(marked().synced, length);
    let answered = store.seal(&id, 8, store.incarnation());
    assert!(matches!(answered, Ok(CopyAnswer::Scanned { .. })));
}

/// A recovery must not take it for a replica that never held more: the replicas with the missing bytes may be away.
#[test]
fn a_damaged_copy_that_is_half_completed_is_not_a_short_one() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 8, 700);
        let length = content.bytes.len() as u64;
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        store.flush(&id, length, true).expect("is closed");
        store.seal(&id, 8, here).expect("seals");
        let (bad, half) = (damaged(&content), content.ends[4] as usize);
        store.complete(&id, 8, 0, &bad[..half]).expect("takes it");
        let is_damaged = |answered: CopyAnswer| {
            matches!(answered, CopyAnswer::Damaged { .. } | CopyAnswer::Unknown)
        };
        let answered = store.seal(&id, 9, here).expect("answers");
        assert!(
            matches!(answered, CopyAnswer::Damaged { .. }),
            "{answered:?}"
        );
        drop(store);
        stage.restart();
        let store = stage.store();
        assert!(is_damaged(store.seal(&id, 10, here).expect("answers")));
        // The rest alone is not enough, and no checksum is taken for looked at.
        let rest = &content.bytes[half..];
        store
            .complete(&id, 10, half as u64, rest)
            .expect("takes it");
        let whole_until = content.ends[1];
        let short = Err(Refusal::Short {
            length: whole_until,
        });
        assert_eq!(store.flush(&id, length, true), short);
        assert!(is_damaged(store.seal(&id, 11, here).expect("answers")));
        store
            .complete(&id, 11, 0, &content.bytes)
            .expect("takes it");
        store.flush(&id, length, true).expect("is whole");
        drop(store);
        stage.restart();
        assert_eq!(stage.store().state(&id), Some(CopyState::Flushed));
    });
}

/// Its record says that all of it was on the disk once: the owner would not have it looked at.
#[test]
fn a_copy_that_was_half_completed_at_an_end_does_not_count_as_flushed() {
    over_each_memory(|stage| {
        let (id, other) = (copy(1, 7), copy(2, 7));
        let content = segment(&id, 8, 700);
        let length = content.bytes.len() as u64;
        let store = stage.store();
        let here = store.incarnation();
        for id in [&id, &other] {
            store.fill(id, &segment(id, 8, 700)).expect("fills");
            store.flush(id, length, true).expect("is closed");
        }
        store.seal(&id, 8, here).expect("seals");
        // Whole batches, and then nothing: the process ends, before the flush at an interval or after it.
        let (whole_until, half) = (content.ends[3], content.ends[3] as usize);
        let zeroed = vec![0; content.bytes.len() - half];
        store
            .complete(&id, 8, 0, &content.bytes[..half])
            .expect("takes it");
        store
            .complete(&id, 8, half as u64, &zeroed)
            .expect("takes it");
        drop(store);
        for at_interval in [false, true] {
            let store = stage.store();
            if at_interval {
                assert_eq!(store.flush_open(), []);
            }
            drop(store);
            stage.restart();
            let store = stage.store();
            store.look_at_marks();
            assert_eq!(store.state(&id), Some(CopyState::Sealed));
            assert_eq!(store.state(&other), Some(CopyState::Flushed));
            let answered = store.seal(&id, 9, here).expect("answers");
            assert!(
                matches!(answered, CopyAnswer::Damaged { .. } | CopyAnswer::Unknown),
                "{answered:?}"
            );
            // As the owner asks of what is not flushed.
            let short = Err(Refusal::Short {
                length: whole_until,
            });
            assert_eq!(store.flush(&id, length, true), short);
        }
        let store = stage.store();
        store.complete(&id, 9, 0, &content.bytes).expect("takes it");
        store.flush(&id, length, true).expect("is whole");
        drop(store);
        stage.restart();
        stage.store().look_at_marks();
        assert_eq!(stage.store().state(&id), Some(CopyState::Flushed));
    });
}
