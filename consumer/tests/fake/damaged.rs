//! Batches that are as their producers wrote them, and that readers have trouble with.

use bytes::Bytes;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, crc32c};

use super::Fake;

/// `count` records of these values.
fn batch(count: u64, value: &[u8], compression: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for _ in 0..count {
        let record = NewRecord {
            value: Some(value),
            ..NewRecord::default()
        };
        builder.push(&record).unwrap();
    }
    let bytes = builder.finish(compression, ProducerStamp::NONE);
    bytes.unwrap().to_vec()
}

fn seal(mut batch: Vec<u8>) -> Bytes {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch.into()
}

impl Fake {
    /// A batch of so many records that says it is compressed, and is not.
    pub(crate) fn poison(&self, lane: (u32, u32), count: u64) {
        let mut bytes = batch(count, b"no gzip", Compression::None);
        bytes[22] |= Compression::Gzip as u8;
        self.append_batch(lane, seal(bytes));
    }

    /// A batch that says it has so many records, and has one.
    pub(crate) fn short(&self, lane: (u32, u32), count: u32) {
        let mut bytes = batch(1, &[b'x'; 100], Compression::None);
        bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        self.append_batch(lane, seal(bytes));
    }

    /// A batch of so many records that takes so many bytes once it is decompressed.
    pub(crate) fn large(&self, lane: (u32, u32), count: u64, bytes: usize) {
        let value = vec![0; bytes / count as usize];
        let bytes = batch(count, &value, Compression::Gzip);
        assert!(bytes.len() < 64 << 10);
        self.append_batch(lane, bytes.into());
    }
}
