//! Markers: the control batches that end a transaction in a lane, as Kafka has them. The broker alone writes them.
//!
//! Behind what Kafka's clients read, a marker's value says where in the lane its transaction began: whoever looks
//! for aborted records need not remember it.

use super::builder::{BatchBuilder, NewRecord, ProducerStamp};
use super::header::{BatchError, BatchHeader, Compression, Marked, mark};
use super::record::Records;
use crate::ids::Ordinal;

/// Numbers of Kafka's for the two kinds of markers.
const ABORT: i16 = 0;
const COMMIT: i16 = 1;
/// Bytes of a marker's key, of the part of its value that Kafka has, and of the whole value.
const KEY_BYTES: usize = 4;
const KAFKA_VALUE_BYTES: usize = 6;
const VALUE_BYTES: usize = KAFKA_VALUE_BYTES + 16;

/// The end of one transaction in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The transaction's producer.
    pub producer_id: i64,
    /// The epoch of the producer's next transaction, or of this one where that stays.
    pub producer_epoch: i16,
    /// Whether the records count.
    pub commit: bool,
    /// Epoch of the coordinator that decided it.
    pub coordinator_epoch: i32,
    /// Ordinal of the transaction's first record in the lane.
    pub first_ordinal: Ordinal,
    /// Which of the producer's transactions it was, counted by its coordinator.
    pub number: u64,
}

impl Marker {
    /// The control batch. Base ordinal and epoch are zero, for the broker to patch.
    pub fn encode(&self, now_ms: i64) -> Vec<u8> {
        let mut key = [0; KEY_BYTES];
        let kind = if self.commit { COMMIT } else { ABORT };
        key[2..].copy_from_slice(&kind.to_be_bytes());
        let mut value = [0; VALUE_BYTES];
        value[2..6].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        value[6..14].copy_from_slice(&self.first_ordinal.to_be_bytes());
        value[14..].copy_from_slice(&self.number.to_be_bytes());
        let record = NewRecord {
            key: Some(&key),
            value: Some(&value),
            headers: &[],
            timestamp: now_ms,
        };
        let stamp = ProducerStamp {
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            base_sequence: -1,
        };
        let mut builder = BatchBuilder::new();
        let written = builder.push(&record);
        let batch = written.and_then(|_| builder.finish(Compression::None, stamp));
        // One record of a few bytes fits any batch.
        let mut bytes = batch.map(Vec::from).unwrap_or_default();
        mark(&mut bytes, Marked::Control);
        bytes
    }

    /// Reads the marker in a control batch; `None` if it is one of another kind, or of another software.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are no batch.
    pub fn decode(batch: &[u8]) -> Result<Option<Self>, BatchError> {
        let header = BatchHeader::peek(batch)?;
        if !header.is_control() {
            return Ok(None);
        }
        let mut scratch = Vec::new();
        let Some(record) = Records::open(batch, header.total_bytes, &mut scratch)?.next() else {
            return Ok(None);
        };
        let record = record?;
        let (Some(key), Some(value)) = (record.key, record.value) else {
            return Ok(None);
        };
        let (Some(key), Some(value)) = (
            key.first_chunk::<KEY_BYTES>(),
            value.first_chunk::<VALUE_BYTES>(),
        ) else {
            return Ok(None);
        };
        let commit = match i16::from_be_bytes([key[2], key[3]]) {
            ABORT => false,
            COMMIT => true,
            _ => return Ok(None),
        };
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&value[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        Ok(Some(Self {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            commit,
            coordinator_epoch: i32::from_be_bytes([value[2], value[3], value[4], value[5]]),
            first_ordinal: number(6),
            number: number(14),
        }))
    }
}

/// Makes a whole batch one of a transaction, and writes its CRC.
pub fn mark_transactional(batch: &mut [u8]) {
    mark(batch, Marked::Transactional);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{check_produced, validate_records};

    #[test]
    fn a_marker_is_read_back_and_no_producer_may_send_it() {
        for commit in [true, false] {
            let marker = Marker {
                producer_id: 7,
                producer_epoch: 3,
                commit,
                coordinator_epoch: 9,
                first_ordinal: 1 << 40,
                number: 5,
            };
            let bytes = marker.encode(1_700_000_000_000);
            let header = validate_records(&bytes, bytes.len(), &mut Vec::new()).expect("a batch");
            assert!(header.is_control() && header.is_transactional());
            assert_eq!((header.base_sequence, header.record_count), (-1, 1));
            assert_eq!(Marker::decode(&bytes), Ok(Some(marker)));
            assert!(check_produced(&header, &bytes).is_err());
        }
    }

    #[test]
    fn what_is_no_marker_is_told_apart() {
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            value: Some(b"v"),
            ..NewRecord::default()
        };
        builder.push(&record).unwrap();
        let data = builder
            .finish(Compression::None, ProducerStamp::NONE)
            .unwrap();
        let mut data = data.to_vec();
        assert_eq!(Marker::decode(&data), Ok(None));
        mark_transactional(&mut data);
        let header = crate::batch::verify(&data).expect("a checksum that fits");
        assert!(header.is_transactional() && !header.is_control());
        mark(&mut data, Marked::Control);
        assert_eq!(Marker::decode(&data), Ok(None), "without a key");
        assert!(Marker::decode(&data[..20]).is_err());
    }
}
