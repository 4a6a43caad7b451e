//! Batches whose records are numbered, so that a reader can tell which it has.

use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, HEADER_BYTES, Header, NewRecord, ProducerStamp,
    Records, batches, verify,
};
use kera_protocol::ids::Ordinal;

/// Batches with the records `ids`, each of about `size` bytes.
pub fn batch_of(
    ids: std::ops::Range<u64>,
    size: usize,
    stamp: ProducerStamp,
    timestamp: i64,
) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let mut value = vec![0u8; size.max(8)];
    for id in ids {
        value[..8].copy_from_slice(&id.to_le_bytes());
        // Not compressible into runs that look alike: no two records share a tail.
        for (at, byte) in value.iter_mut().enumerate().skip(8) {
            *byte = (id as usize).wrapping_mul(31).wrapping_add(at * 7) as u8;
        }
        // A batch never ends with a zero: cut short by one byte over zeros it would still be whole.
        let last = [(id % 250) as u8 + 1];
        let headers = [Header {
            key: "last",
            value: Some(&last),
        }];
        let record = NewRecord {
            key: None,
            value: Some(&value),
            headers: &headers,
            timestamp,
        };
        builder.push(&record).expect("room");
    }
    builder
        .finish(Compression::None, stamp)
        .expect("records")
        .to_vec()
}

/// A batch of a producer that is not idempotent.
pub fn plain(ids: std::ops::Range<u64>, size: usize) -> Vec<u8> {
    let timestamp = ids.start as i64;
    batch_of(ids, size, ProducerStamp::NONE, timestamp)
}

/// A batch of an idempotent producer.
pub fn stamped(
    producer: i64,
    epoch: i16,
    sequence: i32,
    ids: std::ops::Range<u64>,
    size: usize,
) -> Vec<u8> {
    let timestamp = ids.start as i64;
    let stamp = ProducerStamp {
        producer_id: producer,
        producer_epoch: epoch,
        base_sequence: sequence,
    };
    batch_of(ids, size, stamp, timestamp)
}

/// A batch with one record that is exactly `bytes` long.
pub fn exactly(id: u64, bytes: usize) -> Vec<u8> {
    for overhead in HEADER_BYTES..HEADER_BYTES + 40 {
        let batch = plain(id..id + 1, bytes.saturating_sub(overhead));
        if batch.len() == bytes {
            return batch;
        }
    }
    panic!("no record makes a batch of {bytes} bytes");
}

/// Ordinals and ids of all records in a run of whole, undamaged batches.
pub fn ids_of(bytes: &[u8]) -> Vec<(Ordinal, u64)> {
    let mut out = Vec::new();
    let mut scratch = Vec::new();
    for found in batches(bytes) {
        let (header, batch): (BatchHeader, &[u8]) = found.expect("a whole batch");
        verify(batch).expect("an undamaged batch");
        for record in Records::open(batch, 1 << 20, &mut scratch).expect("records") {
            let record = record.expect("a record");
            let value = record
                .value
                .and_then(|v| v.first_chunk::<8>())
                .expect("a value");
            out.push((
                header.base_ordinal + u64::from(record.ordinal_delta),
                u64::from_le_bytes(*value),
            ));
        }
    }
    out
}
