use std::fs;
use std::path::PathBuf;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{CrashPlan, Fault, FaultIo};
use kera_log_segments::io::{EngineKind, open_engine};
use kera_log_segments::layout::SegmentHeader;
use kera_metadata::Replica;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::ids::{Epoch, GroupId, LaneId, LaneKey, StreamId, StreamletId, StreamletKey};
use kera_replication::transport::{CopyState, CopyVersion};

use super::*;

const SEGMENT: u32 = 64 << 10;

/// The bytes of a group, and the file they are to be in on a machine.
struct Restored {
    io: FaultIo,
    file: OwnFile,
    bytes: Vec<u8>,
}

impl Restored {
    /// On a machine that has the directory of streams, and nothing in it.
    fn new(seed: u64) -> Self {
        let io = FaultIo::new(seed);
        io.create_dir_all(Path::new("/streams")).expect("is made");
        io.sync_dir(Path::new("/")).expect("syncs");
        let lane = LaneKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
            lane: LaneId(0),
        };
        let name = GroupSpec::file_name(GroupId(5), 0);
        let spec = GroupSpec {
            lane,
            group: GroupId(5),
            generation: 0,
            epoch: Epoch(3),
            segment_size: SEGMENT,
            segments: 2,
            first_ordinal: 100,
            created_ms: 0,
            path: PathBuf::from(format!("/streams/{}/1/{name}", lane.stream)),
        };
        let (bytes, end) = content(&spec);
        let file = OwnFile {
            io: Arc::new(io.clone()),
            incarnation: Incarnation::default(),
            spec,
            end,
        };
        Self { io, file, bytes }
    }

    /// As a fetch writes it.
    fn fetched(self) -> Self {
        let (begin, rest) = self.bytes.split_at(9000);
        self.file.write_now(0, begin).expect("takes it");
        self.file.write_now(9000, rest).expect("takes it");
        self
    }

    /// Under its name, with nothing synced, as an owner writes it.
    fn written(self) -> Self {
        let this = self.fetched();
        let path = &this.file.spec.path;
        this.io
            .rename(&aside::path(path), path)
            .expect("is renamed");
        this
    }

    /// The same file after a crash.
    fn after(&self, plan: &CrashPlan) -> Self {
        let (io, _) = self.io.crash(plan);
        let file = OwnFile {
            io: Arc::new(io.clone()),
            ..self.file.clone()
        };
        let bytes = self.bytes.clone();
        Self { io, file, bytes }
    }

    fn survives_power_loss(&self, seed: u64) {
        let after = self.after(&CrashPlan::power_loss(seed));
        let found = after.file.inspect_now().expect("reads");
        assert!(found.is_some(), "it is gone or damaged with seed {seed}");
    }
}

fn content(spec: &GroupSpec) -> (Vec<u8>, Place) {
    let header = SegmentHeader {
        stream: spec.lane.stream,
        streamlet: spec.lane.streamlet,
        lane: spec.lane.lane,
        group: spec.group,
        generation: 0,
        segment: 0,
        epoch: spec.epoch,
        segment_size: spec.segment_size,
        segments: spec.segments,
        first_ordinal: spec.first_ordinal,
        snapshot_bytes: 0,
        snapshot_crc: 0,
        created_ms: 1,
        ack: AckPolicy::Written,
        marked: true,
        in_order: false,
    };
    let mut bytes = header.encode().to_vec();
    let mut ordinal = spec.first_ordinal;
    for number in 0..30u8 {
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            value: Some(&[number; 900]),
            timestamp: i64::from(number),
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
        let batch = builder.finish(Compression::None, ProducerStamp::NONE);
        let mut batch = batch.expect("records").to_vec();
        patch(&mut batch, ordinal, spec.epoch);
        ordinal += 1;
        bytes.extend_from_slice(&batch);
    }
    let address = bytes.len() as u64;
    (bytes, Place { address, ordinal })
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_alone_is_written_once_more() {
    for seed in 0..16 {
        let mut at = Restored::new(seed).written();
        at.io.inject_on(".log", Fault::FailSync { nth: 1 });
        at.file.inspect_now().expect_err("its sync fails");
        if seed % 2 == 1 {
            at = at.after(&CrashPlan::kill());
        }
        let found = at.file.inspect_now().expect("is well");
        assert_eq!(found, Some(29), "the greatest timestamp");
        // Its name is on disk too, though nobody synced a directory before.
        at.survives_power_loss(seed);
    }
}

#[test]
fn a_sync_that_fails_at_a_look_is_told_and_not_made_up_for() {
    for seed in 0..16 {
        let at = Restored::new(seed).written();
        for _ in 0..2 {
            at.io.inject_on(".log", Fault::FailSync { nth: 1 });
            at.file.inspect_now().expect_err("its sync fails");
        }
        assert!(at.file.stands_alone_now().expect("is well"));
        at.survives_power_loss(seed);
    }
}

#[test]
fn a_file_that_was_fetched_is_durable_with_all_directories_above_it_and_looked_at_cheaply() {
    for seed in 0..8 {
        let at = Restored::new(seed).fetched();
        assert_eq!(at.file.finish_now().expect("is well"), Some(29));
        at.survives_power_loss(seed);
        let before = at.io.counts();
        assert_eq!(at.file.inspect_now().expect("is well"), Some(29));
        let after = at.io.counts();
        assert_eq!((after.writes, after.syncs), (before.writes, before.syncs));
    }
}

#[test]
fn a_disk_without_room_for_the_mark_costs_nothing_but_another_write() {
    let at = Restored::new(1).written();
    let room = at.bytes.len() as u64;
    at.io.inject_on(".log", Fault::NoSpaceAfter { bytes: room });
    assert_eq!(at.file.inspect_now().expect("goes on"), Some(29));
    at.survives_power_loss(1);
    at.io.heal();
    assert_eq!(at.file.inspect_now().expect("is well"), Some(29));
    at.survives_power_loss(2);
}

#[test]
fn another_replica_is_of_no_use_once_the_name_is_durable_too() {
    for seed in 0..8 {
        let at = Restored::new(seed).written();
        // As a close leaves it that has synced its file: a footer, and no directory was synced.
        let path = &at.file.spec.path;
        let opened = at.io.open(path, OpenHow::ReadWrite, false);
        opened.expect("is there").sync_data().expect("is well");
        let (spec, end) = (at.file.spec.clone(), at.file.end);
        let group = Group::closed(spec, end, 0, 29, 0, at.file.io.clone());
        group.write_footer(Vec::new()).expect("is well");
        assert!(at.file.stands_alone_now().expect("is well"));
        at.survives_power_loss(seed);
    }
}

#[test]
fn a_file_with_a_damaged_batch_stands_for_nothing() {
    let at = Restored::new(1).written();
    at.io
        .plant(&at.file.spec.path, 9000, b"no batch")
        .expect("is there");
    assert_eq!(at.file.inspect_now().expect("reads"), None);
    assert!(!at.file.stands_alone_now().expect("reads"));
}

#[test]
fn a_fetch_that_does_not_end_well_leaves_the_file_that_is_there() {
    for seed in 0..8 {
        let at = Restored::new(seed).fetched();
        at.file.finish_now().expect("is well");
        // Fetched again: from a damaged source, over a disk that fails, and by a broker that is killed.
        let again = at.after(&CrashPlan::kill()).fetched();
        let made = aside::path(&again.file.spec.path);
        match seed % 3 {
            0 => {
                again.io.plant(&made, 9000, b"no batch").expect("is there");
                assert_eq!(again.file.finish_now().expect("reads"), None);
            }
            1 => {
                again.io.inject_on(".log", Fault::FailSync { nth: 1 });
                again.file.finish_now().expect_err("its sync fails");
            }
            _ => {}
        }
        again.survives_power_loss(seed);
        let found = again.file.inspect_now().expect("is well");
        assert_eq!(found, Some(29));
    }
}

#[tokio::test]
async fn what_an_earlier_owner_made_and_never_recorded_does_not_count() {
    let me = BrokerId(1);
    let replica = |broker| Replica {
        broker: BrokerId(broker),
        incarnation: Incarnation::default(),
    };
    let recorded = |generation, brokers: &[u32]| {
        let restored = Restored::new(11).written();
        let spec = &restored.file.spec;
        let key = StreamletKey {
            stream: spec.lane.stream,
            streamlet: spec.lane.streamlet,
        };
        let record = GroupRecord::new(key.group(spec.group), spec.lane.lane, spec.epoch);
        let copies = brokers.iter().map(|broker| replica(*broker)).collect();
        let end = (restored.file.end.address, restored.file.end.ordinal);
        let record = GroupRecord {
            generation,
            ..record.closed(spec.first_ordinal, end, end.1, copies)
        };
        (restored, record)
    };
    let info = |record: &GroupRecord| CopyInfo {
        copy: CopyId::of(record),
        version: CopyVersion(1),
        state: CopyState::Flushed,
    };
    // As it was appended, a group has one content.
    let (restored, record) = recorded(0, &[2, 3]);
    let kept = [info(&record)];
    let found = restored.file.inspect_of(&record, me, &kept);
    assert!(found.await.expect("the disk answers").is_some());
    let (restored, record) = recorded(1, &[1, 3]);
    let found = restored.file.inspect_of(&record, me, &[]);
    assert!(found.await.expect("the disk answers").is_some());
    // The store has what was brought later.
    let kept = [info(&record)];
    let found = restored.file.inspect_of(&record, me, &kept);
    assert_eq!(found.await, Ok(None));
    assert!(!restored.file.is_doubtful(&record, me));
    let (restored, record) = recorded(1, &[2, 3]);
    let found = restored.file.inspect_of(&record, me, &[]);
    assert_eq!(found.await, Ok(None));
    assert!(restored.file.is_doubtful(&record, me));
    // It stays until another is whole.
    assert!(restored.io.exists(&restored.file.spec.path));
}

/// A directory under the name of a group's file, as a fault of a file system or of somebody leaves it.
#[tokio::test]
async fn what_is_no_file_makes_way_for_what_was_fetched() {
    let home = tempfile::tempdir().expect("a directory");
    let restored = Restored::new(1);
    let below = restored.file.spec.path.strip_prefix("/streams");
    let below = below.expect("it is there").to_path_buf();
    let mut file = OwnFile {
        io: open_engine(EngineKind::Blocking),
        ..restored.file.clone()
    };
    file.spec.path = home.path().join("streams").join(&below);
    let path = file.spec.path.clone();
    let fetch = || {
        file.write_now(0, &restored.bytes).expect("it is written");
        file.finish_now()
    };
    fs::create_dir_all(path.join("x")).expect("it is made");
    assert!(file.is_blocked().await);
    assert!(fetch().expect("it takes the name").is_some());
    assert!(file.inspect_now().expect("it is read").is_some());
    assert!(!file.is_blocked().await);
    let damaged = home.path().join("damaged");
    assert!(damaged.join(&below).join("x").exists());

    // It cannot be moved away.
    fs::remove_file(&path).expect("it is there");
    fs::create_dir_all(path.join("x")).expect("it is made");
    fs::remove_dir_all(&damaged).expect("it is there");
    fs::write(&damaged, "no directory").expect("it is written");
    let refused = fetch().expect_err("the name is taken").to_string();
    assert!(refused.contains("nor moved away"), "{refused}");
    assert!(file.is_blocked().await && path.join("x").exists());
}
