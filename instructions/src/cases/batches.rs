//! Batches: from records to bytes, and back.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, Records, verify};

use super::RECORDS;
use crate::counted::counted;

/// Bytes of a record's value.
const VALUE: usize = 100;
/// Bytes that hold a batch.
const BATCH: usize = 16 << 10;
/// Most bytes of a batch when it is read.
const LIMIT: usize = 1 << 20;

pub(super) fn batch(buffer: BytesMut) -> Bytes {
    let value = [7; VALUE];
    let mut builder = BatchBuilder::from_buffer(buffer);
    for number in 0..RECORDS {
        let record = NewRecord {
            key: None,
            value: Some(black_box(&value)),
            headers: &[],
            timestamp: 1_700_000_000_000 + number as i64,
        };
        builder.push(&record).expect("room");
    }
    let stamp = ProducerStamp {
        producer_id: 1,
        producer_epoch: 0,
        base_sequence: 0,
    };
    builder.finish(Compression::None, stamp).expect("records")
}

pub(super) fn encode(times: u64) {
    // As a producer does, which has its buffers already, of the size of a batch.
    let warm = || {
        let buffer = BytesMut::with_capacity(BATCH);
        batch(buffer).try_into_mut().expect("its own")
    };
    let mut buffers: Vec<_> = (0..times).map(|_| warm()).collect();
    counted(&mut || {
        for buffer in buffers.drain(..) {
            black_box(batch(buffer));
        }
    });
}

pub(super) fn decode(times: u64) {
    let batch = batch(BytesMut::new());
    let mut scratch = Vec::new();
    let mut visited = 0;
    counted(&mut || {
        for _ in 0..times {
            let batch = black_box(&batch[..]);
            verify(batch).expect("undamaged");
            let records = Records::open(batch, LIMIT, &mut scratch).expect("a batch");
            for record in records {
                let record = record.expect("a record");
                visited += black_box(record.value).map_or(0, <[u8]>::len);
            }
        }
    });
    assert_eq!(visited as u64, times * RECORDS * VALUE as u64);
}
