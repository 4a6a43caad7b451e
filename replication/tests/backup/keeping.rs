//! What is kept, for how long, and how much of it.

use kera_protocol::ids::{Epoch, StreamId, StreamletId};
use kera_replication::backup::ReplicaStore;
use kera_replication::ids::{CopyId, StreamletKey};
use kera_replication::transport::Seal;
use kera_replication::transport::{CopyState, CopyVersion, Refusal, Reply, Request};

use crate::content::{SEGMENT, copy, segment};
use crate::stage::{Ask, PRIMARY, QUOTA, Stage, limits, over_each_memory, whole};

fn version(store: &ReplicaStore, copy: &CopyId) -> CopyVersion {
    let list = Request::List {
        streamlet: Some(copy.streamlet),
    };
    match store.handle(PRIMARY, list) {
        Ok(Reply::Copies(copies)) => {
            let found = copies.iter().find(|info| info.copy == *copy);
            found.expect("it is listed").version
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_that_a_restart_sealed_gives_its_memory_back_and_is_whole_all_the_same() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 6, 700);
        let half = content.ends[3] as usize;
        let store = stage.store();
        let here = store.incarnation();
        let key = store.open_first(&id).expect("opens").buffers[0].key;
        let region = store.region(PRIMARY, key).expect("is registered");
        region.place(0, &content.bytes[..half + 20]).expect("fits");
        drop((store, region));
        stage.restart();

        let store = stage.store();
        assert!(store.free_bytes() < QUOTA);
        assert_eq!(store.flush_open(), []);
        assert_eq!(store.free_bytes(), QUOTA, "it is on disk");
        assert_eq!(store.state(&id), Some(CopyState::Sealed), "and not closed");
        assert_eq!(store.open_first(&id), Err(Refusal::Sealed { by: Epoch(7) }));
        // A recovery goes on with it.
        store.seal(&id, 8, here).expect("seals");
        let rest = &content.bytes[half..];
        store
            .complete(&id, 8, half as u64, rest)
            .expect("completes");
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        let length = content.bytes.len() as u64;
        store.flush(&id, length, true).expect("flushes");
        assert_eq!(store.state(&id), Some(CopyState::Flushed));
        drop(store);
        stage.restart();
        let store = stage.store();
        assert_eq!(store.seal(&id, 8, here), Ok(whole(&content)));
        assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
    });
}

#[test]
fn a_found_copys_memory_is_counted_once() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 3, 700);
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        drop(store);
        stage.restart();
        let store = stage.store();
        let before = store.free_bytes();
        store.seal(&id, 8, here).expect("seals");
        store
            .complete(&id, 8, 0, &content.bytes)
            .expect("completes");
        assert_eq!(store.free_bytes(), before);
        assert_eq!(before, QUOTA - u64::from(SEGMENT));
        store.free(&id, 8).expect("is freed");
        assert_eq!(store.free_bytes(), QUOTA);
    });
}

#[test]
fn a_late_request_to_free_leaves_alone_what_was_built_since() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let content = segment(&id, 3, 700);
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&id, &content).expect("fills");
        let listed = version(&store, &id);
        let free = Request::Free {
            copy: id,
            epoch: Epoch(8),
            version: Some(listed),
        };
        store.seal(&id, 8, here).expect("seals");
        assert_eq!(
            version(&store, &id),
            listed,
            "sealing changes nothing of it"
        );
        store.complete(&id, 8, 0, &content.bytes).expect("is built");
        let refused = store.handle(PRIMARY, free.clone());
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
        assert_eq!(
            store.seal(&id, 8, here),
            Ok(whole(&content)),
            "nothing is noted"
        );
        drop(store);
        stage.restart();
        let store = stage.store();
        assert!(store.handle(PRIMARY, free).is_err(), "nor after a restart");
        let free = Request::Free {
            copy: id,
            epoch: Epoch(8),
            version: Some(version(&store, &id)),
        };
        assert_eq!(store.handle(PRIMARY, free), Ok(Reply::Done));
        assert_eq!(store.state(&id), None);
    });
}

fn streamlet(number: u32) -> StreamletKey {
    StreamletKey {
        stream: StreamId::from_slice(&[number as u8 + 1; 16]).expect("16 bytes"),
        streamlet: StreamletId(number),
    }
}

fn seal(number: u32, epoch: u32) -> Seal {
    Seal {
        streamlet: streamlet(number),
        epoch: Epoch(epoch),
        copies: Vec::new(),
    }
}

#[test]
fn seals_are_bounded_and_go_with_their_stream() {
    over_each_memory(|stage| {
        let store = stage.store();
        let most = limits().streamlets as u32;
        for number in 0..most {
            store.seal_all(&[seal(number, 5)]).expect("there is room");
        }
        store.seal_all(&[seal(0, 6)]).expect("it is known already");
        let refused = store.seal_all(&[seal(most, 5)]);
        assert!(
            matches!(refused, Err(Refusal::NoRoom { .. })),
            "{refused:?}"
        );
        let forget = Request::Forget {
            stream: streamlet(1).stream,
        };
        for _ in 0..2 {
            assert_eq!(store.handle(PRIMARY, forget.clone()), Ok(Reply::Done));
        }
        store
            .seal_all(&[seal(most, 5)])
            .expect("there is room again");
        drop(store);
        stage.restart();
        let lower = stage.store().seal_all(&[seal(0, 5)]);
        assert_eq!(lower, Err(Refusal::Sealed { by: Epoch(6) }));
    });
}

#[test]
fn a_stream_that_is_gone_leaves_no_copy() {
    over_each_memory(|stage| {
        let store = stage.store();
        for group in 1..3 {
            let id = copy(group, 7);
            store.fill(&id, &segment(&id, 2, 100)).expect("fills");
        }
        let stream = copy(1, 7).streamlet.stream;
        let is_there = |stage: &Stage| {
            let root = stage.dir.as_ref().map(|dir| dir.path().join("shared"));
            root.is_some_and(|root| root.join(stream.to_string()).exists())
        };
        assert_eq!(is_there(stage), stage.dir.is_some());
        let forget = Request::Forget { stream };
        assert_eq!(store.handle(PRIMARY, forget), Ok(Reply::Done));
        assert_eq!(store.free_bytes(), QUOTA);
        assert!(!is_there(stage), "its directories go as well");
        drop(store);
        stage.restart();
        assert_eq!(stage.store().state(&copy(1, 7)), None);
    });
}

#[test]
fn streamlets_are_sealed_together_or_not_at_all() {
    over_each_memory(|stage| {
        let store = stage.store();
        let id = copy(1, 7);
        store.fill(&id, &segment(&id, 2, 100)).expect("fills");
        store.seal_all(&[seal(1, 9)]).expect("seals");
        let of_copy = Seal {
            streamlet: id.streamlet,
            epoch: Epoch(8),
            copies: vec![(id, store.incarnation())],
        };
        let both = store.seal_all(&[of_copy.clone(), seal(1, 8)]);
        assert_eq!(both, Err(Refusal::Sealed { by: Epoch(9) }));
        store.open_first(&id).expect("it is still open");
        let answers = store.seal_all(&[seal(2, 8), of_copy]).expect("seals");
        assert_eq!((answers[0].len(), answers[1].len()), (0, 1));
        assert_eq!(store.open_first(&id), Err(Refusal::Sealed { by: Epoch(8) }));
    });
}
