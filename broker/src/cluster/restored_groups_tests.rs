//! What brokers have of a group, whichever of them records it first.

use kera_log_segments::io::{EngineKind, open_engine};
use kera_log_segments::layout::SegmentHeader;
use kera_metadata::{GroupRecord, MemoryCluster, StreamConfig};
use kera_protocol::batch::{self, BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::ids::Epoch;
use kera_replication::backup::Limits;
use kera_replication::ids::CopyId;
use tempfile::TempDir;

use super::*;
use crate::cluster::replica::backup::{BackupOptions, open};

const SEGMENT: u32 = 64 << 10;
const OWNER: BrokerId = BrokerId(1);

/// The first `batches` batches of a group, of a record each, as its owner appends them.
fn bytes(copy: &CopyId, batches: u64) -> Vec<u8> {
    let header = SegmentHeader {
        stream: copy.streamlet.stream,
        streamlet: copy.streamlet.streamlet,
        lane: LaneId(0),
        group: copy.group,
        generation: 0,
        segment: 0,
        epoch: copy.epoch,
        segment_size: SEGMENT,
        segments: 1,
        first_ordinal: 0,
        snapshot_bytes: 0,
        snapshot_crc: 0,
        created_ms: 1,
        ack: AckPolicy::Memory,
        marked: false,
        in_order: false,
    };
    let mut bytes = header.encode().to_vec();
    for ordinal in 0..batches {
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            value: Some(b"some"),
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
        let batch = builder.finish(Compression::None, ProducerStamp::NONE);
        let mut batch = batch.expect("a record").to_vec();
        batch::patch(&mut batch, ordinal, copy.epoch);
        bytes.extend_from_slice(&batch);
    }
    bytes
}

/// The length of so many batches.
fn length(batches: u64) -> u64 {
    let copy = CopyId {
        streamlet: StreamletKey {
            stream: StreamId::random(),
            streamlet: StreamletId(0),
        },
        group: GroupId(7),
        epoch: Epoch(1),
        generation: 0,
    };
    bytes(&copy, batches).len() as u64
}

/// A stream whose streamlet was told of a restore.
struct Put {
    store: MemoryCluster,
    copy: CopyId,
}

impl Put {
    /// The older state, which has this of the group.
    fn back(group: impl FnOnce(GroupRecord) -> Option<GroupRecord>) -> Self {
        let store = MemoryCluster::new();
        let config = StreamConfig {
            replicas: 3,
            min_insync_replicas: 2,
            ..StreamConfig::default()
        };
        let stream = StreamRecord::new("clicks", config, 0);
        let stream = store.create_stream(stream, OWNER.0).expect("it is made").0;
        let found = store.streamlet(stream.id, StreamletId(0));
        let before = found.expect("it is read").expect("it is there");
        let copy = CopyId {
            streamlet: before.key(),
            group: GroupId(7),
            epoch: before.epoch,
            generation: 0,
        };
        let new = GroupRecord::new(copy.streamlet.group(copy.group), LaneId(0), copy.epoch);
        if let Some(group) = group(new) {
            let (compare, write) = group.put();
            let compare = vec![
                Compare::streamlet(&before),
                Compare::epoch(&before),
                compare,
            ];
            let with_room = StreamletRecord {
                next_group: GroupId(8),
                ..before
            };
            let put = Transaction::new(compare, vec![Write::PutStreamlet(with_room), write]);
            store.commit(put).expect("it is recorded");
        }
        let found = store.streamlet(stream.id, StreamletId(0));
        let before = found.expect("it is read").expect("it is there");
        let told = before.after_restore(1).expect("it has epochs left");
        let compare = vec![Compare::streamlet(&before)];
        let told = Transaction::new(compare, vec![Write::PutStreamlet(told)]);
        store.commit(told).expect("it is told");
        Self { store, copy }
    }

    /// What is recorded of the group, and where it ends.
    fn recorded(&self) -> Option<(bool, Ordinal, Vec<u32>)> {
        let key = self.copy.streamlet;
        let image = self.store.load_streamlet(key.stream, key.streamlet);
        let groups = image.expect("it is read").groups;
        let record = groups.iter().find(|one| one.group == self.copy.group)?;
        let holders = record.copies.iter().map(|copy| copy.broker.0);
        Some((record.is_closed(), record.end_ordinal, holders.collect()))
    }
}

/// A broker whose process was killed.
struct Killed {
    me: BrokerId,
    dir: TempDir,
    life: Incarnation,
    own: Names,
}

impl Killed {
    fn new(me: u32) -> Self {
        let id = uuid::Uuid::from_u128(me.into());
        Self {
            me: BrokerId(me),
            dir: tempfile::tempdir().expect("a directory"),
            life: Incarnation {
                store_id: id,
                boot_id: id,
            },
            own: Names::new(),
        }
    }

    /// The owner, whose file has less than its process had.
    fn owner(copy: &CopyId, batches: u64) -> Self {
        let mut owner = Self::new(OWNER.0);
        let of_streamlet = (owner.dir.path().join("streams"))
            .join(copy.streamlet.stream.to_string())
            .join(copy.streamlet.streamlet.0.to_string());
        std::fs::create_dir_all(&of_streamlet).expect("room");
        let file = of_streamlet.join(GroupSpec::file_name(copy.group, 0));
        std::fs::write(file, bytes(copy, batches)).expect("room");
        owner.own.insert((copy.group, 0));
        owner
    }

    /// Another, in whose memory is what the owner placed there.
    fn other(me: u32, copy: &CopyId, batches: u64) -> Self {
        let other = Self::new(me);
        let store = other.replicas();
        let request = Request::Open {
            copy: *copy,
            incarnation: store.incarnation(),
            primary: OWNER,
            segment_size: SEGMENT,
            segments: 1,
            address: 0,
            bytes: SEGMENT,
        };
        let Ok(Reply::Opened(opened)) = store.handle(OWNER, request) else {
            panic!("there is room");
        };
        let region = store.region(OWNER, opened.buffers[0].key);
        let placed = region.expect("it is open").place(0, &bytes(copy, batches));
        placed.expect("it fits");
        other
    }

    fn replicas(&self) -> std::sync::Arc<ReplicaStore> {
        let options = BackupOptions {
            shared_dir: self.dir.path().join("shared"),
            disk_dir: self.dir.path().join("backup"),
            flush_interval: Duration::from_secs(1),
            limits: Limits {
                memory_bytes: 16 << 20,
                copies_in_memory: 8,
                copies: 8,
                streamlets: 8,
            },
            listen: String::new(),
        };
        open(&options).expect("it opens")
    }

    /// It starts, and records what it has.
    fn starts(&self, put: &Put) {
        let (io, replicas) = (open_engine(EngineKind::Blocking), self.replicas());
        let places = Places {
            io: &*io,
            streams: &self.dir.path().join("streams"),
            incarnation: self.life,
            replicas: &replicas,
            me: self.me,
            is_known: true,
            own: BTreeMap::from([(put.copy.streamlet, self.own.clone())]),
            unseen: Vec::new(),
            goes_on: &|| {},
        };
        let image = put.store.load().expect("it is read");
        take_in(&put.store, &image, &places).expect("it is recorded");
    }
}

#[test]
fn a_replica_that_has_more_than_who_started_earlier_counts() {
    let orders = [
        [1, 2, 3],
        [1, 3, 2],
        [2, 1, 3],
        [2, 3, 1],
        [3, 1, 2],
        [3, 2, 1],
    ];
    for order in orders {
        let put = Put::back(|_| None);
        // The second one fell out before the end. Four were acknowledged.
        let brokers = [
            Killed::owner(&put.copy, 3),
            Killed::other(2, &put.copy, 2),
            Killed::other(3, &put.copy, 4),
        ];
        for me in order {
            brokers[me - 1].starts(&put);
        }
        assert_eq!(put.recorded(), Some((true, 4, vec![3])), "{order:?}");
        // And once more, as after a start that failed later on.
        brokers[0].starts(&put);
        brokers[2].starts(&put);
        assert_eq!(put.recorded(), Some((true, 4, vec![3])), "{order:?}");
    }
}

#[test]
fn a_replica_that_has_less_than_is_recorded_is_not_brought_to_its_disk_as_closed() {
    let put = Put::back(|_| None);
    let state = |of: &Killed| {
        let list = Request::List { streamlet: None };
        match of.replicas().handle(of.me, list) {
            Ok(Reply::Copies(copies)) => copies[0].state,
            other => panic!("{other:?}"),
        }
    };
    let brokers = [(3, 4), (2, 2)].map(|(me, has)| Killed::other(me, &put.copy, has));
    for broker in &brokers {
        broker.starts(&put);
    }
    assert_eq!(put.recorded(), Some((true, 4, vec![3])));
    assert_eq!(state(&brokers[0]), CopyState::Flushed);
    assert_ne!(state(&brokers[1]), CopyState::Flushed);
}

#[test]
fn a_replica_as_long_as_what_is_recorded_is_one_of_its_replicas() {
    let put = Put::back(|_| None);
    for me in [2, 3] {
        Killed::other(me, &put.copy, 4).starts(&put);
    }
    assert_eq!(put.recorded(), Some((true, 4, vec![2, 3])));
}

#[test]
fn a_replica_adds_nothing_to_what_the_older_state_has_as_closed_or_as_open() {
    let holder = Replica {
        broker: OWNER,
        incarnation: Killed::new(OWNER.0).life,
    };
    for is_closed in [true, false] {
        let put = Put::back(|group| {
            Some(match is_closed {
                true => group.closed(0, (length(4), 4), 4, vec![holder]),
                false => GroupRecord {
                    copies: vec![holder],
                    ..group
                },
            })
        });
        let before = put.recorded();
        assert!(before.is_some());
        Killed::other(3, &put.copy, 4).starts(&put);
        assert_eq!(put.recorded(), before, "{is_closed}");
    }
}
