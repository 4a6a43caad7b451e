//! Very many groups of a lane that wait for one before them.

use std::path::Path;
use std::sync::Arc;

use kera_log_segments::group::{AckPolicy, Group, GroupSpec};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::Io;
use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::pool::ChunkPool;
use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp, patch,
};
use kera_protocol::ids::{Epoch, GroupId, LaneId, LaneKey, StreamId, StreamletId};

/// More than any stack has frames for.
const GROUPS: u64 = 20_000;
/// Far less than a thread has, so that few frames are enough.
const STACK: usize = 128 << 10;
const SEGMENT: u32 = 64 << 10;

/// A lane of which group after group was filled while the record of the first was not durable.
fn lane() -> (Arc<LaneHead>, Vec<Arc<Group>>) {
    let io = FaultIo::new(1);
    io.create_dir_all(Path::new("/lane")).expect("a directory");
    let lane = LaneKey {
        stream: StreamId::from_slice(&[6; 16]).expect("16 bytes"),
        streamlet: StreamletId(1),
        lane: LaneId(2),
    };
    let head = Arc::new(LaneHead::new(0));
    let pool = ChunkPool::new(4 << 30).expect("address space");
    let mut groups: Vec<Arc<Group>> = Vec::new();
    for number in 0..GROUPS {
        let spec = GroupSpec {
            lane,
            group: GroupId(number + 1),
            generation: 0,
            epoch: Epoch(4),
            segment_size: SEGMENT,
            segments: 1,
            first_ordinal: number,
            created_ms: 5,
            path: format!("/lane/{number}").into(),
        };
        let (group, mut writer) = Group::create(
            spec,
            AckPolicy::Written,
            head.clone(),
            Arc::new(io.clone()),
            pool.clone(),
            Vec::new(),
        );
        if let Some(before) = groups.last() {
            group.follow(before);
        }
        head.push_group(group.clone());
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            value: Some(b"x"),
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
        let finished = builder.finish(Compression::None, ProducerStamp::NONE);
        let mut batch = finished.expect("a record").to_vec();
        patch(&mut batch, number, Epoch(4));
        let header = BatchHeader::peek(&batch).expect("a batch");
        writer.append(&batch, &header, 5, 1).expect("room");
        writer.freeze();
        groups.push(group);
    }
    (head, groups)
}

/// Runs `work` with little stack.
fn with_little_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
    thread.expect("a thread").join().expect("no panic");
}

#[test]
fn all_that_waited_for_a_record_is_written_without_a_frame_for_each() {
    with_little_stack(|| {
        let (head, groups) = lane();
        let last = groups.last().expect("groups").clone();
        // Nothing of the later ones may be written before the first is recorded.
        groups[0].write_out();
        last.write_out();
        assert_eq!(last.written().address, 0);
        for group in &groups {
            group.set_recorded();
        }
        groups[0].next().expect("the second").write_out();
        assert_eq!(last.written(), last.end());
        assert_eq!(head.advance(), GROUPS);
    });
}

#[test]
fn the_last_of_many_brings_those_before_it_along() {
    with_little_stack(|| {
        let (head, groups) = lane();
        for group in &groups {
            group.set_recorded();
        }
        let last = groups.last().expect("groups");
        last.write_out();
        assert_eq!(last.written(), last.end());
        assert_eq!(head.advance(), GROUPS);
    });
}
