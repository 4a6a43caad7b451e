//! Records for tests.
#![allow(dead_code, reason = "each test file uses its own part")]

#[cfg(feature = "etcd")]
pub mod proxy;

use std::sync::Arc;

#[cfg(feature = "etcd")]
pub use kera_testkit::etcd;

use kera_metadata::*;
use kera_protocol::ids::*;
use tokio::sync::watch;
use uuid::Uuid;

/// A broker that lives, without addresses.
pub fn live(id: u32) -> LiveBroker {
    let incarnation = Incarnation {
        store_id: Uuid::from_u128(id.into()),
        boot_id: Uuid::from_u128(1),
    };
    LiveBroker::new(id, incarnation)
}

/// Waits until what is watched is as wanted.
pub fn until<T: Clone>(watched: &mut watch::Receiver<T>, wanted: impl Fn(&T) -> bool) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let found = runtime.block_on(watched.wait_for(|value| wanted(value)));
    found.unwrap().clone()
}

/// True if what was decided is refused since another was elected.
pub fn is_of_former_controller<T>(decided: &Result<T, MetadataError>) -> bool {
    let refused = decided.as_ref().err();
    refused.is_some_and(|error| {
        matches!(
            error,
            MetadataError::Conflict(Conflict::NotController { .. })
        )
    })
}

/// A small stream: 4 streamlets of 4 lanes.
pub fn stream(name: &str) -> StreamRecord {
    let config = StreamConfig {
        streamlets: 4,
        lanes: 4,
        ..StreamConfig::default()
    };
    StreamRecord::new(name, config, 1_700_000_000_000)
}

/// An open group of a streamlet.
pub fn open_group(streamlet: &StreamletRecord, group: u64, lane: u32) -> GroupRecord {
    GroupRecord {
        stream: streamlet.stream,
        streamlet: streamlet.streamlet,
        group: GroupId(group),
        generation: 0,
        lane: LaneId(lane),
        epoch: streamlet.epoch,
        state: GroupState::Open,
        first_ordinal: Some(0),
        length: 0,
        end_ordinal: 0,
        next_ordinal: 0,
        max_timestamp_ms: -1,
        closed_ms: 0,
        live_bytes: 0,
        copies: vec![Replica {
            broker: BrokerId(streamlet.owner),
            incarnation: Incarnation {
                store_id: Uuid::from_u128(1),
                boot_id: Uuid::from_u128(2),
            },
        }],
        damaged: None,
        file_made: false,
        restore: 0,
        revision: 0,
    }
}

/// The same group, closed with `records` records in `bytes` bytes.
pub fn closed(group: &GroupRecord, records: u64, bytes: u64) -> GroupRecord {
    let end = group.first_ordinal.unwrap_or(0) + records;
    GroupRecord {
        state: GroupState::Closed,
        first_ordinal: Some(end - records),
        length: bytes,
        live_bytes: bytes,
        end_ordinal: end,
        next_ordinal: end,
        max_timestamp_ms: 1_700_000_000_000,
        closed_ms: 1_700_000_000_001,
        ..group.clone()
    }
}

/// The transaction that writes a group as its guards demand, raising the streamlet's next group
/// where it must.
pub fn put_group(streamlet: &StreamletRecord, group: GroupRecord) -> Transaction {
    let mut write = Vec::new();
    if group.group >= streamlet.next_group {
        write.push(Write::PutStreamlet(StreamletRecord {
            next_group: GroupId(group.group.0 + 1),
            ..streamlet.clone()
        }));
    }
    let compare = vec![Compare::epoch(streamlet), Compare::group(&group)];
    write.push(Write::PutGroup(group));
    Transaction::new(compare, write)
}

/// The transaction that deletes a group.
pub fn delete_group(streamlet: &StreamletRecord, group: &GroupRecord) -> Transaction {
    Transaction::new(
        vec![Compare::epoch(streamlet), Compare::group(group)],
        vec![Write::DeleteGroup(group.key())],
    )
}

/// The transaction that moves a log start.
pub fn put_start(streamlet: &StreamletRecord, lane: u32, ordinal: u64) -> Transaction {
    let key = LaneKey {
        stream: streamlet.stream,
        streamlet: streamlet.streamlet,
        lane: LaneId(lane),
    };
    Transaction::new(
        vec![Compare::epoch(streamlet)],
        vec![Write::PutLaneStart { key, ordinal }],
    )
}

/// The transaction that deletes a stream.
pub fn delete_stream(stream: &StreamRecord) -> Transaction {
    Transaction::new(
        vec![Compare::revision(Key::Stream(stream.id), stream.revision)],
        vec![Write::DeleteStream(stream.id)],
    )
}

/// A store in a fresh directory.
pub fn embedded(directory: &tempfile::TempDir) -> EmbeddedStore {
    EmbeddedStore::open(
        directory.path().join("metadata.redb"),
        EmbeddedOptions::default(),
    )
    .unwrap()
}

/// Fills a store with one stream of many closed groups.
pub fn fill(store: &dyn MetadataStore, groups: u64) -> Vec<StreamletRecord> {
    let (_, mut streamlets) = store.create_stream(stream("filled"), 7).unwrap();
    let per_streamlet = groups / streamlets.len() as u64;
    for streamlet in &mut streamlets {
        let last = streamlet.next_group.0 + per_streamlet;
        let raised = StreamletRecord {
            next_group: GroupId(last),
            ..streamlet.clone()
        };
        store
            .commit(Transaction::new(
                vec![Compare::epoch(streamlet)],
                vec![Write::PutStreamlet(raised.clone())],
            ))
            .unwrap();
        let numbers: Vec<u64> = (streamlet.next_group.0..last).collect();
        let waiting: Vec<_> = numbers
            .chunks(500)
            .map(|chunk| {
                let groups: Vec<_> = chunk
                    .iter()
                    .map(|n| closed(&open_group(&raised, *n, (*n % 4) as u32), 1000, 1 << 20))
                    .collect();
                let mut compare: Vec<_> = groups.iter().map(Compare::group).collect();
                compare.push(Compare::epoch(&raised));
                let write = groups.into_iter().map(Write::PutGroup).collect();
                store.commit_async(Transaction::new(compare, write))
            })
            .collect();
        for future in waiting {
            future.wait().unwrap();
        }
        *streamlet = raised;
    }
    streamlets
}

/// An etcd is waited for however busy the machine is.
#[cfg(feature = "etcd")]
pub fn patient() -> EtcdOptions {
    EtcdOptions {
        timeout: std::time::Duration::from_secs(60),
        ..EtcdOptions::default()
    }
}

/// A store in an etcd, as a new broker opens it.
#[cfg(feature = "etcd")]
pub fn opened(etcd: &etcd::Etcd) -> EtcdStore {
    EtcdStore::open(&etcd.address(), patient()).unwrap()
}

/// An etcd with an empty cluster in it; `None` where there is no etcd on this machine.
#[cfg(feature = "etcd")]
pub fn cluster() -> Option<etcd::Etcd> {
    let etcd = etcd::Etcd::start()?;
    EtcdStore::init(&etcd.address(), patient()).unwrap();
    Some(etcd)
}

fn on_etcd(test: impl Fn(Arc<dyn MetadataStore>)) {
    #[cfg(feature = "etcd")]
    if let Some(etcd) = cluster() {
        test(Arc::new(opened(&etcd)));
    }
    #[cfg(not(feature = "etcd"))]
    let _ = test;
}

/// Runs a test on every store, whoever runs its callbacks.
pub fn on_each_store(test: impl Fn(Arc<dyn MetadataStore>)) {
    test(Arc::new(MemoryStore::manual()));
    on_each_threaded_store(test);
}

/// Runs a test on every store that runs callbacks on a thread of its own.
pub fn on_each_threaded_store(test: impl Fn(Arc<dyn MetadataStore>)) {
    test(Arc::new(MemoryStore::new()));
    let directory = tempfile::tempdir().unwrap();
    test(Arc::new(embedded(&directory)));
    on_etcd(test);
}
