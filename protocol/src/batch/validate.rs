//! Checks beyond the checksum, and walking a run of batches.

use super::header::{BatchError, BatchHeader, Compression, HEADER_BYTES, verify};
use super::record::{MIN_RECORD_BYTES, Records};

/// Checks in O(1) that a header may come from a producer: no records or sequences are missing, the
/// record count fits the bytes, and the fields that only brokers write are unset.
///
/// # Errors
/// [`BatchError`] naming the rule that is broken.
pub fn check_produced(header: &BatchHeader) -> Result<(), BatchError> {
    let compression = header.compression()?;
    if header.last_ordinal_delta != header.record_count - 1 {
        return Err(BatchError::Inconsistent(
            "its ordinals are not as many as its records",
        ));
    }
    let body = header.total_bytes - HEADER_BYTES;
    if compression == Compression::None {
        let fewest = header.record_count as usize * MIN_RECORD_BYTES;
        if fewest > body {
            return Err(BatchError::Inconsistent(
                "its records do not fit its length",
            ));
        }
    } else if body == 0 {
        return Err(BatchError::Inconsistent("its records are missing"));
    }
    if header.is_control() {
        return Err(BatchError::Inconsistent("it is a control batch"));
    }
    if header.producer_id < -1 {
        return Err(BatchError::Inconsistent("its producer id is negative"));
    }
    if header.is_idempotent() && (header.producer_epoch < 0 || header.base_sequence < 0) {
        return Err(BatchError::Inconsistent(
            "it has a producer id but no producer epoch or sequence",
        ));
    }
    Ok(())
}

/// Checks everything about the whole batch at the start of `batch`: checksum, every record, and
/// that records, ordinals and count agree. Compressed records are decompressed into `scratch`, to
/// `limit` bytes at most.
///
/// # Errors
/// [`BatchError`] for the first thing that is wrong.
pub fn validate_records(
    batch: &[u8],
    limit: usize,
    scratch: &mut Vec<u8>,
) -> Result<BatchHeader, BatchError> {
    let header = verify(batch)?;
    let mut expected = 0_u32;
    for (index, record) in Records::open(batch, limit, scratch)?.enumerate() {
        let record = record?;
        if record.ordinal_delta < expected {
            return Err(BatchError::BadRecord {
                index: index as u32,
                reason: "its ordinal does not grow",
            });
        }
        expected = record.ordinal_delta + 1;
    }
    Ok(header)
}

/// Iterator over the whole batches at the start of a run of bytes, each with its header. The CRC is
/// not checked.
///
/// A batch that is cut short, or is none, ends the iteration with an error;
/// [`consumed`](Self::consumed) tells where.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

/// The batches in `bytes`, one after the other.
pub fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches {
        bytes,
        at: 0,
        failed: false,
    }
}

impl Batches<'_> {
    /// Bytes of the whole batches yielded so far.
    pub fn consumed(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<(BatchHeader, &'a [u8]), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.at..];
        if self.failed || rest.is_empty() {
            return None;
        }
        let found = BatchHeader::peek(rest).and_then(|header| {
            rest.get(..header.total_bytes)
                .map(|batch| (header, batch))
                .ok_or(BatchError::Truncated {
                    need: header.total_bytes,
                    have: rest.len(),
                })
        });
        match &found {
            Ok((header, _)) => self.at += header.total_bytes,
            Err(_) => self.failed = true,
        }
        Some(found)
    }
}
