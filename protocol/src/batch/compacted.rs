//! What compaction leaves of a batch: some of its records, or only its place in the lane.
//!
//! A batch keeps its ordinals whatever goes from it, so that each record keeps its own. Ordinals of which nothing is
//! left belong to an [`empty`] batch or to the batch before ([`extend`]): a lane that was compacted has no gaps that
//! were not there before.

use super::builder::{ProducerStamp, write_stamp};
use super::codec;
use super::header::{
    ATTRIBUTE_CODEC, ATTRIBUTE_DELETE_HORIZON, BatchError, BatchHeader, Compression, HEADER_BYTES,
    MAX_BATCH_BYTES, seal,
};
use super::varint;
use crate::ids::{Epoch, Ordinal};

/// Ordinals that one empty batch can stand for.
pub const MAX_EMPTY_ORDINALS: u64 = 1 << 31;

/// Where fields begin that are written here.
const LENGTH: usize = 8;
const ATTRIBUTES: usize = 21;
const LAST_DELTA: usize = 23;
const BASE_TIMESTAMP: usize = 27;
const MAX_TIMESTAMP: usize = 35;
const COUNT: usize = 57;
/// Bytes before the point from which the length field counts.
const LENGTH_BASE: usize = 12;

/// The batch at the start of `batch` with `records` of its records only, each as it stands there
/// ([`Records::next_raw`](super::Records::next_raw)) and in their order; `max_timestamp` is the greatest of them. With
/// a `horizon` that is written where the base timestamp was. Ordinals, producer and compression stay.
///
/// # Errors
/// [`BatchError`] if the header is none, there are no records, or the batch becomes larger than any may be.
pub fn rebuild(
    batch: &[u8],
    records: &[&[u8]],
    max_timestamp: i64,
    horizon: Option<i64>,
) -> Result<Vec<u8>, BatchError> {
    let header = BatchHeader::peek(batch)?;
    if records.is_empty() {
        return Err(BatchError::Inconsistent("it holds no records"));
    }
    let base = horizon
        .or(header.delete_horizon())
        .unwrap_or(header.base_timestamp);
    let shift = header.base_timestamp.wrapping_sub(base);
    let bytes: usize = records.iter().map(|record| record.len()).sum();
    let mut body = Vec::with_capacity(bytes + records.len() * 8);
    for record in records {
        if shift == 0 {
            body.extend_from_slice(record);
        } else {
            push_shifted(&mut body, record, shift)
                .ok_or(BatchError::Inconsistent("a record does not decode"))?;
        }
    }
    let mut attributes = header.attributes & !ATTRIBUTE_CODEC;
    let compression = header.compression()?;
    if compression != Compression::None {
        let compressed = codec::compress(compression, &body);
        if compressed.len() < body.len() {
            attributes |= compression as i16;
            body = compressed;
        }
    }
    if horizon.is_some() {
        attributes |= ATTRIBUTE_DELETE_HORIZON;
    }
    let total = HEADER_BYTES + body.len();
    if total > MAX_BATCH_BYTES {
        return Err(BatchError::BadLength(total as i64));
    }
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&batch[..HEADER_BYTES]);
    out.extend_from_slice(&body);
    write_at(
        &mut out,
        LENGTH,
        &((total - LENGTH_BASE) as i32).to_be_bytes(),
    );
    write_at(&mut out, ATTRIBUTES, &attributes.to_be_bytes());
    write_at(&mut out, BASE_TIMESTAMP, &base.to_be_bytes());
    write_at(&mut out, MAX_TIMESTAMP, &max_timestamp.to_be_bytes());
    write_at(&mut out, COUNT, &(records.len() as u32).to_be_bytes());
    seal(&mut out);
    Ok(out)
}

/// The batch at the start of `batch` without its records: what a lane remembers of its producer stays.
///
/// # Errors
/// [`BatchError`] if the header is none.
pub fn emptied(batch: &[u8]) -> Result<Vec<u8>, BatchError> {
    let header = BatchHeader::peek(batch)?;
    let mut out = batch[..HEADER_BYTES].to_vec();
    let attributes = header.attributes & !ATTRIBUTE_CODEC;
    write_at(
        &mut out,
        LENGTH,
        &((HEADER_BYTES - LENGTH_BASE) as i32).to_be_bytes(),
    );
    write_at(&mut out, ATTRIBUTES, &attributes.to_be_bytes());
    write_at(&mut out, COUNT, &[0; 4]);
    seal(&mut out);
    Ok(out)
}

/// A batch of nobody that holds no record and stands for `ordinals` ordinals, 1 to [`MAX_EMPTY_ORDINALS`].
pub fn empty(base_ordinal: Ordinal, ordinals: u64, epoch: Epoch) -> Vec<u8> {
    let last = ordinals.clamp(1, MAX_EMPTY_ORDINALS) - 1;
    let mut out = vec![0; HEADER_BYTES];
    write_at(&mut out, 0, &base_ordinal.to_be_bytes());
    write_at(
        &mut out,
        LENGTH,
        &((HEADER_BYTES - LENGTH_BASE) as i32).to_be_bytes(),
    );
    write_at(&mut out, LENGTH_BASE, &epoch.0.to_be_bytes());
    out[16] = 2;
    write_at(&mut out, LAST_DELTA, &(last as u32).to_be_bytes());
    // No time: -1, as with Kafka.
    write_at(&mut out, BASE_TIMESTAMP, &(-1_i64).to_be_bytes());
    write_at(&mut out, MAX_TIMESTAMP, &(-1_i64).to_be_bytes());
    write_stamp(&mut out, ProducerStamp::NONE);
    seal(&mut out);
    out
}

/// Lets a batch stand for `more` ordinals behind its own as well, and for no producer's sequence any more. False, and
/// the batch is as it was, if they are too many.
///
/// # Errors
/// [`BatchError`] if `batch` is none.
pub fn extend(batch: &mut [u8], more: u64) -> Result<bool, BatchError> {
    let header = BatchHeader::peek(batch)?;
    let last = u64::from(header.last_ordinal_delta).saturating_add(more);
    if last >= MAX_EMPTY_ORDINALS {
        return Ok(false);
    }
    write_at(batch, LAST_DELTA, &(last as u32).to_be_bytes());
    write_stamp(batch, ProducerStamp::NONE);
    seal(batch);
    Ok(true)
}

/// Writes a record again whose time is counted from another base, which lies `shift` lower.
fn push_shifted(out: &mut Vec<u8>, record: &[u8], shift: i64) -> Option<()> {
    let mut rest = record;
    varint::read_i32(&mut rest)?;
    let (attributes, fields) = rest.split_first()?;
    rest = fields;
    let delta = varint::read(&mut rest)?.wrapping_add(shift);
    let length = 1 + varint::size(delta) + rest.len();
    let mut numbers = [0; 2 * varint::MAX_VARLONG_BYTES + 1];
    let mut at = 0;
    varint::write(&mut numbers, &mut at, length as i64);
    numbers[at] = *attributes;
    at += 1;
    varint::write(&mut numbers, &mut at, delta);
    out.extend_from_slice(&numbers[..at]);
    out.extend_from_slice(rest);
    Some(())
}

fn write_at(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, NewRecord, Records, patch, verify};

    fn batch(compression: Compression) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for index in 0..100_u32 {
            let key = format!("key-{index}");
            let value = index % 3 != 0;
            let record = NewRecord {
                key: Some(key.as_bytes()),
                value: value.then_some(b"some value that compresses some"),
                timestamp: 1_700_000_000_000 + i64::from(index) * 17,
                ..NewRecord::default()
            };
            builder.push(&record).expect("small");
        }
        let stamp = ProducerStamp {
            producer_id: 7,
            producer_epoch: 1,
            base_sequence: 40,
        };
        let mut bytes = builder
            .finish(compression, stamp)
            .expect("records")
            .to_vec();
        patch(&mut bytes, 1000, Epoch(3));
        bytes
    }

    /// Ordinal, time, key and whether there is a value.
    fn records(batch: &[u8]) -> Vec<(u32, i64, Vec<u8>, bool)> {
        let mut scratch = Vec::new();
        let records = Records::open(batch, 1 << 20, &mut scratch).expect("whole");
        let record = records.map(|record| record.expect("whole"));
        record
            .map(|r| {
                (
                    r.ordinal_delta,
                    r.timestamp,
                    r.key.unwrap_or_default().to_vec(),
                    r.value.is_some(),
                )
            })
            .collect()
    }

    #[test]
    fn what_is_kept_is_as_it_was_with_and_without_a_horizon() {
        use Compression::{Gzip, Lz4, None as Plain, Snappy, Zstd};
        for compression in [Plain, Gzip, Snappy, Lz4, Zstd] {
            let from = batch(compression);
            let before = BatchHeader::peek(&from).expect("a header");
            for horizon in [None, Some(1_800_000_000_000), Some(0)] {
                let mut scratch = Vec::new();
                let mut all = Records::open(&from, 1 << 20, &mut scratch).expect("whole");
                let (mut kept, mut latest) = (Vec::new(), i64::MIN);
                while let Some(record) = all.next_raw() {
                    let (record, raw) = record.expect("whole");
                    if record.ordinal_delta % 7 == 2 {
                        latest = latest.max(record.timestamp);
                        kept.push(raw);
                    }
                }
                let out = rebuild(&from, &kept, latest, horizon).expect("rebuilt");
                let after = verify(&out).expect("whole");
                assert_eq!(after.delete_horizon(), horizon);
                assert_eq!(after.max_timestamp, latest);
                assert_eq!(after.compression(), before.compression());
                assert_eq!((after.base_ordinal, after.epoch), (1000, Epoch(3)));
                assert_eq!(after.next_ordinal(), before.next_ordinal());
                assert_eq!(after.last_sequence(), before.last_sequence());
                let mut expected = records(&from);
                expected.retain(|record| record.0 % 7 == 2);
                assert_eq!(records(&out), expected);
                // What has a horizon keeps it.
                let mut scratch = Vec::new();
                let mut all = Records::open(&out, 1 << 20, &mut scratch).expect("whole");
                let (record, raw) = all.next_raw().expect("one").expect("whole");
                let again = rebuild(&out, &[raw], record.timestamp, None).expect("rebuilt");
                let header = verify(&again).expect("whole");
                assert_eq!(header.delete_horizon(), horizon);
                assert_eq!(records(&again), expected[..1]);
            }
        }
    }

    #[test]
    fn without_records_the_ordinals_stay_and_the_sequence_until_it_is_extended() {
        let from = batch(Compression::Lz4);
        let before = BatchHeader::peek(&from).expect("a header");
        let mut out = emptied(&from).expect("emptied");
        let after = verify(&out).expect("whole");
        assert_eq!((out.len(), after.record_count), (HEADER_BYTES, 0));
        assert_eq!(after.last_sequence(), before.last_sequence());
        assert_eq!(after.next_ordinal(), 1100);
        assert_eq!(records(&out), []);
        assert_eq!(extend(&mut out, 50), Ok(true));
        let after = verify(&out).expect("whole");
        assert_eq!((after.next_ordinal(), after.is_idempotent()), (1150, false));
        assert_eq!(extend(&mut out, MAX_EMPTY_ORDINALS), Ok(false));
        assert_eq!(verify(&out), Ok(after));
        let most = empty(7, MAX_EMPTY_ORDINALS, Epoch(2));
        let header = verify(&most).expect("whole");
        assert_eq!(header.next_ordinal(), 7 + MAX_EMPTY_ORDINALS);
        assert_eq!(records(&most), []);
        assert!(super::super::check_produced(&header, &most).is_err());
    }
}
