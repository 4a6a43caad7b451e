//! What copies get of memory that is not enough for all that they ask for.

use kera_replication::backup::{Limits, ReplicaStore, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::transport::{Refusal, Reply, Request};

use crate::content::copy;
use crate::stage::{BESIDES, PRIMARY, limits};

const SEGMENT: u32 = 1 << 20;
const LEAST: u32 = 64 << 10;

/// A copy's next bytes, as many as there may be; how many it got.
fn ask(store: &ReplicaStore, group: u64, address: u64) -> Result<u32, Refusal> {
    let request = Request::Open {
        copy: copy(group, 7),
        incarnation: store.incarnation(),
        primary: PRIMARY,
        segment_size: SEGMENT,
        segments: 4,
        address,
        bytes: SEGMENT - address as u32 % SEGMENT,
    };
    match store.handle(PRIMARY, request)? {
        Reply::Opened(opened) => {
            assert_eq!(opened.buffers.len(), 1);
            assert_eq!(opened.buffers[0].address, address);
            Ok(opened.buffers[0].bytes)
        }
        other => panic!("{other:?}"),
    }
}

fn store(memory_bytes: u64) -> std::sync::Arc<ReplicaStore> {
    let limits = Limits {
        memory_bytes,
        copies_in_memory: 100,
        copies: 100,
        ..limits()
    };
    ReplicaStore::start(SimMemory::new(3), limits, Faults::default()).expect("starts")
}

#[test]
fn copies_that_come_late_get_their_share_of_what_is_left() {
    let segment = u64::from(SEGMENT);
    let store = store(6 * segment + BESIDES);
    let all = (1..=12).map(|group| ask(&store, group, 0).expect("there is room"));
    let all: Vec<_> = all.collect();
    assert_eq!(all[..3], [SEGMENT; 3], "as long as half of it is free");
    let shares = all[3..].windows(2).all(|pair| pair[0] >= pair[1]);
    assert!(shares && all.iter().all(|bytes| *bytes >= LEAST), "{all:?}");
    // And there is something left for their next bytes.
    let mut address = u64::from(all[11]);
    let mut more = 0;
    let refused = loop {
        match ask(&store, 12, address) {
            Ok(bytes) => (address, more) = (address + u64::from(bytes), more + 1),
            Err(refusal) => break refusal,
        }
    };
    assert!(more >= 5, "{more} times more, after {all:?}");
    assert!(matches!(refused, Refusal::NoRoom { .. }), "{refused:?}");
}

#[test]
fn a_copy_gets_the_buffer_it_has_however_little_is_left() {
    let store = store(u64::from(SEGMENT) + BESIDES);
    let first = ask(&store, 1, 0).expect("there is room");
    assert_eq!(first, SEGMENT);
    assert_eq!(ask(&store, 1, 0), Ok(SEGMENT), "its answer was lost");
    let refused = ask(&store, 2, 0);
    assert!(
        matches!(refused, Err(Refusal::NoRoom { .. })),
        "{refused:?}"
    );
}
