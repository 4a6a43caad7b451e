//! Groups as a primary writes them.

use kera_log_segments::group::AckPolicy;
use kera_log_segments::layout::SegmentHeader;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId, StreamletId};
use kera_replication::ids::{CopyId, StreamletKey};

pub const SEGMENT: u32 = 64 << 10;
pub const SEGMENTS: u32 = 4;

/// A copy of group `group` of one fixed stream.
pub fn copy(group: u64, epoch: u32) -> CopyId {
    CopyId {
        streamlet: StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
        },
        group: GroupId(group),
        epoch: Epoch(epoch),
        generation: 0,
    }
}

/// A segment's header and batches, and where each ends.
#[derive(Debug)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub ends: Vec<u64>,
    pub next_ordinal: u64,
}

/// The first segment of `copy`, with `batches` batches of two records.
pub fn segment(copy: &CopyId, batches: u32, value_bytes: usize) -> Content {
    segment_of(copy, (0, 100), batches, value_bytes)
}

/// The second segment of `copy`, after `first`.
pub fn second(copy: &CopyId, first: &Content, batches: u32, value_bytes: usize) -> Content {
    segment_of(copy, (1, first.next_ordinal), batches, value_bytes)
}

fn segment_of(
    copy: &CopyId,
    (index, first_ordinal): (u32, u64),
    batches: u32,
    value_bytes: usize,
) -> Content {
    let header = SegmentHeader {
        stream: copy.streamlet.stream,
        streamlet: copy.streamlet.streamlet,
        lane: LaneId(0),
        group: copy.group,
        generation: copy.generation,
        segment: index,
        epoch: copy.epoch,
        segment_size: SEGMENT,
        segments: SEGMENTS,
        first_ordinal,
        snapshot_bytes: 0,
        snapshot_crc: 0,
        created_ms: 1,
        ack: AckPolicy::Written,
        marked: false,
        in_order: false,
    };
    let mut content = Content {
        bytes: header.encode().to_vec(),
        ends: Vec::new(),
        next_ordinal: first_ordinal,
    };
    for number in 0..batches {
        let mut builder = BatchBuilder::new();
        for record in 0..2u8 {
            let value = vec![number as u8 ^ record; value_bytes];
            let record = NewRecord {
                value: Some(&value),
                timestamp: i64::from(number),
                ..NewRecord::default()
            };
            builder.push(&record).expect("room");
        }
        let batch = builder.finish(Compression::None, ProducerStamp::NONE);
        let mut batch = batch.expect("records").to_vec();
        patch(&mut batch, content.next_ordinal, copy.epoch);
        content.next_ordinal += 2;
        content.bytes.extend_from_slice(&batch);
        content.ends.push(content.bytes.len() as u64);
    }
    assert!(content.bytes.len() <= SEGMENT as usize, "one segment");
    content
}
