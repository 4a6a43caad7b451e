//! Checks beyond the checksum, and walking a run of batches.

use super::codec;
use super::header::{
    BatchError, BatchHeader, Compression, HEADER_BYTES, MAX_DECOMPRESSED_BYTES, verify,
};
use super::record::{MIN_RECORD_BYTES, Record, Records};

/// Checks in O(1) that a batch may come from a producer: no records or sequences are missing, the
/// record count fits the bytes, compressed records begin as their codec's do, and the fields that
/// only brokers write are unset. `batch` begins with the header's batch, as [`verify`] found it.
///
/// # Errors
/// [`BatchError`] naming the rule that is broken.
pub fn check_produced(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let compression = header.compression()?;
    if header.record_count == 0 {
        return Err(BatchError::Inconsistent("it holds no records"));
    }
    if header.delete_horizon().is_some() {
        return Err(BatchError::Inconsistent(
            "it has a delete horizon, which only compaction sets",
        ));
    }
    if header.last_ordinal_delta != header.record_count - 1 {
        return Err(BatchError::Inconsistent(
            "its ordinals are not as many as its records",
        ));
    }
    let body = header.total_bytes - HEADER_BYTES;
    let fewest = header.record_count as usize * MIN_RECORD_BYTES;
    let most = match compression {
        Compression::None => body,
        compression => {
            let stored = batch.get(HEADER_BYTES..header.total_bytes);
            codec::most_bytes(compression, stored.unwrap_or_default())?.min(MAX_DECOMPRESSED_BYTES)
        }
    };
    if fewest > most {
        return Err(BatchError::Inconsistent(
            "its records do not fit its length",
        ));
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
    if header.is_transactional() && !header.is_idempotent() {
        return Err(BatchError::Inconsistent(
            "it is of a transaction and has no producer id",
        ));
    }
    Ok(())
}

/// Checks in O(1) that a batch's first and its greatest time, in milliseconds, lie no further than
/// `before_max` behind `now` and `after_max` ahead of it; 0 is no limit. As with Kafka -1 is no time.
///
/// # Errors
/// [`BatchError::BadTimestamp`].
pub fn check_timestamps(
    header: &BatchHeader,
    now: i64,
    before_max: u64,
    after_max: u64,
) -> Result<(), BatchError> {
    for timestamp in [header.base_timestamp, header.max_timestamp] {
        let by = timestamp.abs_diff(now);
        let (direction, limit, key) = match timestamp > now {
            true => ("ahead of", after_max, "timestamp_after_max_ms"),
            false => ("behind", before_max, "timestamp_before_max_ms"),
        };
        if timestamp != -1 && limit != 0 && by > limit {
            return Err(BatchError::BadTimestamp {
                timestamp,
                by,
                direction,
                limit,
                key,
            });
        }
    }
    Ok(())
}

/// Checks everything about the whole batch at the start of `batch`: checksum, and what
/// [`check_records`] does.
///
/// # Errors
/// [`BatchError`] for the first thing that is wrong.
pub fn validate_records(
    batch: &[u8],
    limit: usize,
    scratch: &mut Vec<u8>,
) -> Result<BatchHeader, BatchError> {
    let header = verify(batch)?;
    check_records(batch, limit, scratch)?;
    Ok(header)
}

/// Checks every record of the whole batch at the start of `batch`, and that records, ordinals and
/// count agree. Compressed records are decompressed into `scratch`, to `limit` bytes at most. Does not
/// check the checksum; see [`verify`].
///
/// # Errors
/// [`BatchError`] for the first thing that is wrong.
pub fn check_records(batch: &[u8], limit: usize, scratch: &mut Vec<u8>) -> Result<(), BatchError> {
    check_each(batch, limit, scratch, |_, _| Ok(()))
}

/// As [`check_records`], and that each record has a key.
///
/// # Errors
/// [`BatchError`] for the first thing that is wrong.
pub fn check_keys(batch: &[u8], limit: usize, scratch: &mut Vec<u8>) -> Result<(), BatchError> {
    check_each(batch, limit, scratch, |record, index| {
        match record.key.is_none() {
            true => Err(BatchError::NoKey { index }),
            false => Ok(()),
        }
    })
}

fn check_each(
    batch: &[u8],
    limit: usize,
    scratch: &mut Vec<u8>,
    check: impl Fn(&Record<'_>, u32) -> Result<(), BatchError>,
) -> Result<(), BatchError> {
    let mut expected = 0_u32;
    for (index, record) in Records::open(batch, limit, scratch)?.enumerate() {
        let record = record?;
        if record.ordinal_delta < expected {
            return Err(BatchError::BadRecord {
                index: index as u32,
                reason: "its ordinal does not grow",
            });
        }
        check(&record, index as u32)?;
        expected = record.ordinal_delta + 1;
    }
    Ok(())
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
