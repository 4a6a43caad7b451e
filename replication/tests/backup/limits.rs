//! How many copies and streamlets a store takes, and what it says then.

use kera_protocol::ids::{Epoch, StreamletId};
use kera_replication::backup::ReplicaStore;
use kera_replication::ids::{CopyId, StreamletKey};
use kera_replication::transport::{CopyState, Refusal, Room};

use crate::content::{copy, segment};
use crate::stage::{Ask, PRIMARY, limits, over_each_memory};

/// Bytes that leave room for as many copies as there may be.
const LITTLE: u32 = 512;

fn refused(of: Room) -> Refusal {
    let (asked, free) = (1, 0);
    Refusal::NoRoom { of, asked, free }
}

fn open(store: &ReplicaStore, group: u64) -> Result<(), Refusal> {
    let here = store.incarnation();
    store.opening(&copy(group, 7), here, 0, LITTLE).map(drop)
}

/// Fills a copy, and closes its group.
fn closed(store: &ReplicaStore, group: u64) -> Result<(), Refusal> {
    let (id, content) = (copy(group, 7), segment(&copy(group, 7), 1, 8));
    let opened = store.opening(&id, store.incarnation(), 0, 4096)?;
    let region = store.region(PRIMARY, opened.buffers[0].key)?;
    region.place(0, &content.bytes)?;
    store.flush(&id, content.bytes.len() as u64, true)
}

#[test]
fn copies_in_memory_are_counted() {
    over_each_memory(|stage| {
        let store = stage.store();
        let most = limits().copies_in_memory as u64;
        for group in 0..most {
            assert!(store.free_bytes() > 0);
            open(&store, group).expect("there is room");
        }
        assert_eq!(open(&store, 99), Err(refused(Room::CopiesInMemory)));
        assert_eq!(store.free_bytes(), 0, "nobody need ask");
        store.free(&copy(0, 7), 7).expect("is freed");
        assert!(store.free_bytes() > 0);
        open(&store, 99).expect("there is room again");
    });
}

#[test]
fn a_copy_that_is_on_the_disk_alone_leaves_room_for_another() {
    over_each_memory(|stage| {
        let limits = limits();
        let (in_memory, all) = (limits.copies_in_memory as u64, limits.copies as u64);
        let on_disk = all - in_memory + 2;
        for group in 0..on_disk {
            closed(&stage.store(), group).expect("there is room");
        }
        // Another process counts as the first did.
        stage.restart();
        let store = stage.store();
        assert_eq!(store.state(&copy(0, 7)), Some(CopyState::Flushed));
        for group in on_disk..all {
            assert!(store.free_bytes() > 0, "group {group}");
            open(&store, group).expect("there is room");
        }
        // All of them together are far more, and have a limit too.
        assert_eq!(open(&store, 99), Err(refused(Room::Copies)));
        assert_eq!(store.free_bytes(), 0);
        store.free(&copy(0, 7), 7).expect("is freed");
        store.free(&copy(1, 7), 7).expect("is freed");
        open(&store, 99).expect("there is room again");
        open(&store, 100).expect("and for one more");
        assert_eq!(open(&store, 101), Err(refused(Room::Copies)));
        store.free(&copy(2, 7), 7).expect("is freed");
        assert_eq!(open(&store, 101), Err(refused(Room::CopiesInMemory)));
    });
}

#[test]
fn a_streamlet_whose_copy_was_taken_has_room_for_its_seal() {
    over_each_memory(|stage| {
        let store = stage.store();
        let of = |streamlet: u64| CopyId {
            streamlet: StreamletKey {
                streamlet: StreamletId(streamlet as u32),
                ..copy(1, 7).streamlet
            },
            ..copy(1, 7)
        };
        let here = store.incarnation();
        let most = limits().streamlets as u64;
        for streamlet in 0..most {
            let opened = store.opening(&of(streamlet), here, 0, LITTLE);
            opened.expect("there is room");
        }
        let room = Err(refused(Room::Streamlets));
        assert_eq!(
            store.opening(&of(most), here, 0, LITTLE).map(drop),
            room.clone()
        );
        assert_eq!(store.seal(&of(most), 8, here).map(drop), room);
        for streamlet in 0..most {
            store.seal(&of(streamlet), 8, here).expect("is sealed");
            store.free(&of(streamlet), 8).expect("is freed");
        }
        // Whose copies are gone are remembered all the same.
        drop(store);
        stage.restart();
        let store = stage.store();
        let again = store.opening(&of(most), store.incarnation(), 0, LITTLE);
        assert_eq!(again.map(drop), Err(refused(Room::Streamlets)));
        let remembered = [(of(0).streamlet.stream, Epoch(8))];
        assert_eq!(store.streams(), remembered.into());
    });
}

#[test]
fn a_refusal_names_the_setting_that_stands_in_the_way() {
    for (of, key) in [
        (Room::Memory, "replica_store.memory_bytes"),
        (Room::CopiesInMemory, "replica_store.max_replicas_in_memory"),
        (Room::Copies, "replica_store.max_replicas"),
        (Room::Streamlets, "replica_store.max_streamlets"),
    ] {
        let said = refused(of).to_string();
        assert!(said.contains(key), "{said}");
    }
}
