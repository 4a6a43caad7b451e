//! What a store refuses, and what it remembers.

use kera_protocol::ids::Epoch;
use kera_replication::backup::{ReplicaStore, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::transport::{
    CopyAnswer, CopyState, MAX_TRANSFER_BYTES, Refusal, Request, Room,
};

use crate::content::{SEGMENT, copy, segment};
use crate::stage::{Ask, PRIMARY, QUOTA, limits, over_each_memory, whole};

const SEALED_BY_8: Refusal = Refusal::Sealed { by: Epoch(8) };

#[test]
fn buffers_grow_behind_each_other_and_stay_the_same_when_asked_again() {
    over_each_memory(|stage| {
        let (store, id) = (stage.store(), copy(1, 7));
        let here = store.incarnation();
        let first = store.opening(&id, here, 0, 4096).expect("opens");
        let more = store.opening(&id, here, 0, 20_000).expect("grows");
        assert_eq!(more.buffers[0], first.buffers[0]);
        assert_eq!(store.opening(&id, here, 0, 20_000), Ok(more.clone()));
        let mut end = 0;
        for buffer in &more.buffers {
            assert_eq!(buffer.address, end, "no gap and no overlap");
            end += u64::from(buffer.bytes);
        }
        assert!(end >= 20_000 && more.buffers[0].key != more.buffers[1].key);

        let content = segment(&id, 3, 2000);
        for buffer in &more.buffers {
            let region = store.region(PRIMARY, buffer.key).expect("is registered");
            let from = (buffer.address as usize).min(content.bytes.len());
            let to = (from + buffer.bytes as usize).min(content.bytes.len());
            region.place(0, &content.bytes[from..to]).expect("fits");
        }
        let read = store.bytes(&id, SEGMENT as usize);
        assert_eq!(read[..content.bytes.len()], content.bytes);
        assert!(read[content.bytes.len()..].iter().all(|b| *b == 0));
    });
}

#[test]
fn a_buffer_is_its_primarys_alone_and_ends_where_it_ends() {
    over_each_memory(|stage| {
        let (store, id) = (stage.store(), copy(1, 7));
        let opened = store.open_first(&id).expect("opens");
        let key = opened.buffers[0].key;
        assert_eq!(store.region(BrokerId(9), key).err(), Some(Refusal::Unknown));
        let region = store.region(PRIMARY, key).expect("is registered");
        let beyond = region.place(u64::from(SEGMENT) - 1, &[1, 2]);
        assert!(matches!(beyond, Err(Refusal::Invalid(_))));
        assert!(matches!(
            region.place(u64::MAX, &[1]),
            Err(Refusal::Invalid(_))
        ));
    });
}

#[test]
fn a_request_that_makes_no_sense_changes_nothing() {
    over_each_memory(|stage| {
        let (store, id) = (stage.store(), copy(1, 7));
        let here = store.incarnation();
        for (address, bytes) in [
            (0, 0),
            (0, SEGMENT + 1),
            (u64::MAX, 1),
            (4 * u64::from(SEGMENT), 1),
        ] {
            let opened = store.opening(&id, here, address, bytes);
            assert!(
                matches!(opened, Err(Refusal::Invalid(_))),
                "{address} {bytes}"
            );
        }
        assert_eq!(store.opening(&id, here, 4096, 1), Err(Refusal::Unknown));
        let foreign = Request::Open {
            copy: id,
            incarnation: here,
            primary: PRIMARY,
            segment_size: SEGMENT,
            segments: 4,
            address: 0,
            bytes: 1,
        };
        let refused = store.handle(BrokerId(9), foreign);
        assert!(matches!(refused, Err(Refusal::Invalid(_))));
        let read = Request::Read {
            copy: id,
            address: 0,
            len: MAX_TRANSFER_BYTES + 1,
        };
        assert!(matches!(
            store.handle(PRIMARY, read),
            Err(Refusal::Invalid(_))
        ));
        assert_eq!(store.state(&id), None);
        assert_eq!(store.free_bytes(), QUOTA);
        // A group has one epoch.
        store.open_first(&id).expect("opens");
        let other = store.open_first(&copy(1, 9));
        assert!(matches!(other, Err(Refusal::Invalid(_))), "{other:?}");
    });
}

#[test]
fn a_seal_ends_lower_epochs_for_good_and_before_any_length_is_read() {
    over_each_memory(|stage| {
        let (id, unborn) = (copy(1, 7), copy(2, 7));
        let content = segment(&id, 3, 500);
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        let key = store.open_first(&id).expect("is open").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");

        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        assert_eq!(region.place(0, &[1]), Err(SEALED_BY_8));
        assert_eq!(store.region(PRIMARY, key).err(), Some(Refusal::Unknown));
        assert_eq!(store.open_first(&id), Err(SEALED_BY_8));
        assert_eq!(store.open_first(&unborn), Err(SEALED_BY_8));
        assert_eq!(store.seal(&id, 7, here), Err(SEALED_BY_8));
        // Asked again it answers the same; a higher epoch writes.
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        store.open_first(&copy(3, 8)).expect("epoch 8 may open");

        drop(store);
        drop(region);
        stage.restart();
        let store = stage.store();
        assert_eq!(store.incarnation(), here);
        assert_eq!(store.open_first(&unborn), Err(SEALED_BY_8));
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
    });
}

#[test]
fn a_start_seals_what_it_finds() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 2, 500);
        let store = stage.store();
        store.fill(&id, &content).expect("fills");
        let process = store.process();
        drop(store);
        stage.restart();
        let store = stage.store();
        assert_ne!(store.process(), process);
        assert_eq!(store.state(&id), Some(CopyState::Sealed));
        assert_eq!(store.open_first(&id), Err(Refusal::Sealed { by: Epoch(7) }));
        // The epoch itself has not ended: its owner rolls.
        store.open_first(&copy(2, 7)).expect("opens the next group");
        let here = store.incarnation();
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
    });
}

#[test]
fn only_the_highest_epoch_that_sealed_completes_a_copy() {
    over_each_memory(|stage| {
        let (store, id) = (stage.store(), copy(1, 7));
        let content = segment(&id, 4, 500);
        let half = content.ends[1] as usize;
        let opened = store.open_first(&id).expect("opens");
        let region = store
            .region(PRIMARY, opened.buffers[0].key)
            .expect("is registered");
        region.place(0, &content.bytes[..half + 9]).expect("fits");

        let rest = &content.bytes[half..];
        let not_sealed = Err(Refusal::NotSealed { epoch: Epoch(8) });
        assert_eq!(store.complete(&id, 8, half as u64, rest), not_sealed);
        let here = store.incarnation();
        let scanned = store.seal(&id, 8, here).expect("seals");
        assert!(matches!(scanned, CopyAnswer::Scanned { length, .. } if length == half as u64));
        store.seal(&id, 9, here).expect("seals");
        let lower = store.complete(&id, 8, half as u64, rest);
        assert_eq!(lower, Err(Refusal::Sealed { by: Epoch(9) }));
        store
            .complete(&id, 9, half as u64, rest)
            .expect("completes");
        assert_eq!(store.seal(&id, 9, here), Ok(whole(&content)));

        // An owner fills a copy of its own epoch; links write it no more.
        let own = copy(3, 9);
        let key = store.open_first(&own).expect("opens").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        store.complete(&own, 9, 0, &[1, 2, 3]).expect("completes");
        assert_eq!(region.place(0, &[9]), Err(Refusal::Sealed { by: Epoch(9) }));
        assert_eq!(store.region(PRIMARY, key).err(), Some(Refusal::Unknown));
        assert_eq!(store.bytes(&own, 3), [1, 2, 3]);
        let newer = store.complete(&copy(4, 10), 9, 0, &[1]);
        assert_eq!(newer, Err(Refusal::NotSealed { epoch: Epoch(9) }));

        // A copy that is not here is made from its beginning only.
        let other = copy(2, 7);
        let built = segment(&other, 2, 500);
        assert_eq!(store.complete(&other, 9, 96, &[1]), Err(Refusal::Unknown));
        store
            .complete(&other, 9, 0, &built.bytes)
            .expect("is built");
        assert_eq!(store.bytes(&other, built.bytes.len()), built.bytes);
    });
}

#[test]
fn a_freed_copy_is_unknown_and_never_made_anew() {
    over_each_memory(|stage| {
        let id = copy(5, 7);
        let store = stage.store();
        let here = store.incarnation();
        assert_eq!(store.seal(&id, 1, here), Ok(CopyAnswer::Absent));
        store.fill(&id, &segment(&id, 1, 100)).expect("fills");
        assert!(matches!(store.free(&id, 6), Err(Refusal::Invalid(_))));
        store.free(&id, 7).expect("is freed");
        store.free(&id, 7).expect("is gone");
        assert_eq!(store.state(&id), None);
        assert_eq!(store.free_bytes(), QUOTA, "its memory is given back");
        drop(store);
        for _ in 0..2 {
            let store = stage.store();
            assert_eq!(store.open_first(&id), Err(Refusal::Unknown));
            let gone = CopyAnswer::Gone { is_file: false };
            assert_eq!(store.seal(&id, 1, here), Ok(gone));
            drop(store);
            stage.restart();
        }
        for group in [4, 6] {
            let other = stage.store().open_first(&copy(group, 7));
            other.expect("another group opens");
        }
    });
}

/// The files of replicas below a directory go.
fn lose_replicas(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).expect("it is there").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let is_replica = |end: &str| name.to_string_lossy().ends_with(end);
        if path.is_dir() {
            lose_replicas(&path);
        } else if is_replica(".log") || is_replica(".copy") {
            std::fs::remove_file(&path).expect("it is there");
        }
    }
}

#[test]
fn a_copy_that_is_made_again_and_lost_is_not_said_to_be_freed() {
    over_each_memory(|stage| {
        let store = stage.store();
        let here = store.incarnation();
        let (id, other) = (copy(5, 7), copy(6, 7));
        for id in [id, other] {
            store.fill(&id, &segment(&id, 1, 100)).expect("fills");
            store.free(&id, 7).expect("is freed");
        }
        assert_eq!(
            store.seal(&id, 9, here),
            Ok(CopyAnswer::Gone { is_file: false })
        );
        let content = segment(&id, 2, 500);
        store.complete(&id, 9, 0, &content.bytes).expect("is built");
        let length = content.bytes.len() as u64;
        store.flush(&id, length, true).expect("is on the disk");
        drop(store);
        let Some(dir) = &stage.dir else {
            return;
        };
        lose_replicas(dir.path());
        stage.restart();
        let store = stage.store();
        assert_eq!(store.state(&id), None);
        assert_eq!(store.seal(&id, 9, here), Ok(CopyAnswer::Unknown));
        assert_eq!(
            store.seal(&other, 9, here),
            Ok(CopyAnswer::Gone { is_file: false })
        );
    });
}

#[test]
fn a_zombie_frees_nothing() {
    over_each_memory(|stage| {
        let (store, id) = (stage.store(), copy(5, 7));
        store.fill(&id, &segment(&id, 1, 100)).expect("fills");
        store.seal(&id, 8, store.incarnation()).expect("seals");
        assert_eq!(store.free(&id, 7), Err(SEALED_BY_8));
        assert_eq!(store.state(&id), Some(CopyState::Sealed));
        store.free(&id, 8).expect("the new owner may");
    });
}

#[test]
fn a_full_quota_refuses_at_once_and_leaves_nothing_behind() {
    over_each_memory(|stage| {
        let store = stage.store();
        for group in 1..4 {
            store.open_first(&copy(group, 7)).expect("there is room");
        }
        let refused = store.open_first(&copy(4, 7));
        let room = u64::from(SEGMENT);
        assert!(
            matches!(refused, Err(Refusal::NoRoom { of: Room::Memory, asked, free }) if asked == room && free < room),
            "{refused:?}"
        );
        assert_eq!(store.state(&copy(4, 7)), None);
        let here = store.incarnation();
        store
            .opening(&copy(4, 7), here, 0, 4096)
            .expect("this much there is");
        store.free(&copy(2, 7), 7).expect("is freed");
        store.open_first(&copy(5, 7)).expect("there is room again");
    });
}

#[test]
fn what_is_flushed_is_on_disk_and_its_memory_is_given_back_at_the_close() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 5, 700);
        let store = stage.store();
        let here = store.incarnation();
        let opened = store.open_first(&id).expect("opens");
        let region = store
            .region(PRIMARY, opened.buffers[0].key)
            .expect("is registered");
        let half = content.ends[2] as usize;
        region.place(0, &content.bytes[..half]).expect("fits");
        let length = content.bytes.len() as u64;
        let short = Err(Refusal::Short {
            length: half as u64,
        });
        assert_eq!(store.flush(&id, length, true), short);

        assert_eq!(store.flush_open(), []);
        assert_eq!(
            store.state(&id),
            Some(CopyState::Open),
            "an interval ends nothing"
        );
        region
            .place(half as u64, &content.bytes[half..])
            .expect("fits");
        store.flush(&id, length, true).expect("flushes");
        assert_eq!(store.state(&id), Some(CopyState::Flushed));
        assert_eq!(store.free_bytes(), QUOTA);
        assert!(region.place(0, &[1]).is_err());
        store.flush(&id, length, true).expect("asked again");
        drop((store, region));

        for _ in 0..2 {
            let store = stage.store();
            assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
            assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
            drop(store);
            stage.restart();
        }
        let store = stage.store();
        store.free(&id, 8).expect("is freed");
        drop(store);
        stage.restart();
        assert_eq!(stage.store().state(&id), None, "from disk too");
    });
}

#[test]
fn a_copy_of_another_incarnation_says_nothing() {
    let memory = SimMemory::new(3);
    let start =
        || ReplicaStore::start(memory.clone(), limits(), Faults::default()).expect("starts");
    let (lost, flushed) = (copy(1, 7), copy(2, 7));
    let content = segment(&flushed, 3, 300);
    let store = start();
    let recorded = store.incarnation();
    store.fill(&lost, &segment(&lost, 3, 300)).expect("fills");
    store.fill(&flushed, &content).expect("fills");
    store
        .flush(&flushed, content.bytes.len() as u64, false)
        .expect("flushes");
    drop(store);
    memory.crash_machine();

    let store = start();
    assert_ne!(store.incarnation(), recorded);
    assert_eq!(
        store.opening(&copy(3, 7), recorded, 0, 512),
        Err(Refusal::OtherIncarnation)
    );
    assert_eq!(store.seal(&lost, 8, recorded), Ok(CopyAnswer::Unknown));
    assert_eq!(store.seal(&flushed, 8, recorded), Ok(CopyAnswer::Unknown));
    // What was synced is there to be read, for a group that is closed.
    assert_eq!(store.bytes(&flushed, content.bytes.len()), content.bytes);
    drop(store);

    // The machine runs on, its shared memory is gone: another store, though the boot is the same.
    let before = start().incarnation();
    memory.vanish();
    let after = start().incarnation();
    assert_eq!(after.boot_id, before.boot_id);
    assert_ne!(after.store_id, before.store_id);
}

#[test]
fn bytes_on_their_way_land_after_a_process_died_and_never_after_another_has_started() {
    let memory = SimMemory::new(3);
    let start =
        || ReplicaStore::start(memory.clone(), limits(), Faults::default()).expect("starts");
    let id = copy(1, 7);
    let content = segment(&id, 3, 300);
    let half = content.ends[0] as usize;
    let store = start();
    let here = store.incarnation();
    let key = store.open_first(&id).expect("opens").buffers[0].key;
    let region = store.region(PRIMARY, key).expect("is registered");
    drop(store);
    region.place(0, &content.bytes[..half]).expect("lands late");
    let store = start();
    assert!(region.place(half as u64, &content.bytes[half..]).is_err());
    let answer = store.seal(&id, 8, here).expect("seals");
    assert!(matches!(answer, CopyAnswer::Scanned { length, .. } if length == half as u64));
}

#[test]
fn each_broken_rule_shows() {
    let broken = |faults: Faults, shows: &dyn Fn(&SimMemory, &ReplicaStore) -> bool| {
        for faults in [Faults::default(), faults] {
            let memory = SimMemory::new(3);
            let store = ReplicaStore::start(memory.clone(), limits(), faults).expect("starts");
            assert_eq!(
                shows(&memory, &store),
                faults != Faults::default(),
                "{faults:?}"
            );
        }
    };
    let id = copy(1, 7);
    let writes_after_seal = |_: &SimMemory, store: &ReplicaStore| {
        let key = store.open_first(&id).expect("opens").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        store.seal(&id, 8, store.incarnation()).expect("seals");
        region.place(0, &[1]).is_ok()
    };
    let sealing_disabled = Faults {
        sealing_disabled: true,
        ..Faults::default()
    };
    broken(sealing_disabled, &writes_after_seal);
    let open_after_seal = Faults {
        open_after_seal: true,
        ..Faults::default()
    };
    broken(open_after_seal, &|_, store| {
        store.seal(&id, 8, store.incarnation()).expect("seals");
        store.open_first(&id).is_ok()
    });
    let old_incarnation_answers = Faults {
        old_incarnation_answers: true,
        ..Faults::default()
    };
    broken(old_incarnation_answers, &|_, store| {
        let other = kera_replication::ids::Incarnation::default();
        store.seal(&id, 8, other) != Ok(CopyAnswer::Unknown)
    });
}

#[test]
fn memory_that_is_given_back_comes_again_as_zeros_under_other_keys() {
    over_each_memory(|stage| {
        let store = stage.store();
        let mut keys = Vec::new();
        for group in 1..12 {
            let id = copy(group, 7);
            let opened = store.open_first(&id).expect("opens");
            assert!(store.bytes(&id, SEGMENT as usize).iter().all(|b| *b == 0));
            let key = opened.buffers[0].key;
            let region = store.region(PRIMARY, key).expect("is registered");
            region
                .place(0, &vec![0xEE; SEGMENT as usize])
                .expect("fits");
            store.free(&id, 7).expect("is freed");
            assert_eq!(region.place(0, &[1]), Err(Refusal::Unknown));
            assert!(!keys.contains(&key), "a key is given once");
            keys.push(key);
        }
        assert_eq!(store.free_bytes(), QUOTA);
    });
}
