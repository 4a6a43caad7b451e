//! Building batches, record by record, without an allocation per record.

use bytes::{Bytes, BytesMut};

use super::codec;
use super::header::{BatchError, Compression, HEADER_BYTES, MAX_BATCH_BYTES, seal, wrap_sequence};
use super::record::Header;
use super::varint;

/// Who sent a batch, and as which of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// The producer, -1 for none.
    pub producer_id: i64,
    /// Its epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence of the batch's first record, -1 for none.
    pub base_sequence: i32,
}

impl ProducerStamp {
    /// The stamp of a producer that is not idempotent.
    pub const NONE: ProducerStamp = ProducerStamp {
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
    };
}

/// The sequence that follows a batch of `records` records whose first has `base_sequence`.
/// Sequences wrap from `i32::MAX` to 0, as Kafka's do.
pub fn next_sequence(base_sequence: i32, records: u32) -> i32 {
    wrap_sequence(base_sequence, records)
}

/// A record to be written.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecord<'a> {
    /// The key; `None` is null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is null.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since 1970.
    pub timestamp: i64,
}

/// Most bytes of a record beside its key, value and headers: length, attributes, timestamp, ordinal,
/// key length, value length, header count.
const FIELDS_BYTES: usize = 5 + 1 + varint::MAX_VARLONG_BYTES + 5 + 5 + 5 + 5;
/// A buffer's first size when nobody asked for one.
const FIRST_BYTES: usize = 1 << 10;

/// Encodes records straight into the bytes of a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    /// Initialised up to its length, of which only `at` bytes mean something: records are written
    /// into a slice, which is quicker than appending piece by piece.
    buffer: BytesMut,
    at: usize,
    count: u32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl BatchBuilder {
    /// An empty builder that allocates with its first record.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty builder whose batch may reach `bytes` bytes before it allocates again.
    pub fn with_capacity(bytes: usize) -> Self {
        Self::from_buffer(BytesMut::with_capacity(bytes))
    }

    /// An empty builder over the memory of `buffer`. What the buffer holds is overwritten; it is best
    /// handed over as it came out of an earlier batch, uncleared.
    pub fn from_buffer(buffer: BytesMut) -> Self {
        Self {
            buffer,
            ..Self::default()
        }
    }

    /// Records written so far.
    #[inline]
    pub fn record_count(&self) -> u32 {
        self.count
    }

    /// True if no record was written yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch so far, header included, before compression.
    #[inline]
    pub fn len(&self) -> usize {
        self.at.max(HEADER_BYTES)
    }

    /// Bytes the batch may reach before the builder allocates.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Makes room for a batch of `bytes` bytes in all.
    pub fn reserve_total(&mut self, bytes: usize) {
        self.buffer.reserve(bytes.saturating_sub(self.buffer.len()));
    }

    /// Timestamp of the first record; meaningless while empty.
    pub fn base_timestamp(&self) -> i64 {
        self.base_timestamp
    }

    /// An upper bound of the bytes by which `record` makes the batch longer.
    #[inline]
    pub fn record_bound(record: &NewRecord<'_>) -> usize {
        let mut bytes =
            FIELDS_BYTES + record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        for header in record.headers {
            bytes += 10 + header.key.len() + header.value.map_or(0, <[u8]>::len);
        }
        bytes
    }

    /// Writes `record` and returns its index in the batch.
    ///
    /// # Errors
    /// [`BatchError::BadLength`] if the batch would be larger than any may be; it is unchanged.
    #[inline]
    pub fn push(&mut self, record: &NewRecord<'_>) -> Result<u32, BatchError> {
        let bound = Self::record_bound(record);
        let end = self.len() + bound;
        if end > self.buffer.len() {
            self.enlarge(end)?;
        }
        let index = self.count;
        if index == 0 {
            self.at = HEADER_BYTES;
            self.base_timestamp = record.timestamp;
            self.max_timestamp = record.timestamp;
        } else if record.timestamp > self.max_timestamp {
            self.max_timestamp = record.timestamp;
        }
        let timestamp_delta = record.timestamp.wrapping_sub(self.base_timestamp);
        let out = &mut self.buffer[self.at..end];
        self.at += match write_short(out, timestamp_delta, index, record) {
            Some(bytes) => bytes,
            None => write_any(out, timestamp_delta, index, record),
        };
        self.count = index + 1;
        Ok(index)
    }

    /// Initialises the buffer up to `end` at least: all it has, or twice what it had.
    #[cold]
    fn enlarge(&mut self, end: usize) -> Result<(), BatchError> {
        if end > MAX_BATCH_BYTES {
            return Err(BatchError::BadLength(end as i64));
        }
        let capacity = self.buffer.capacity();
        let bytes = if end <= capacity {
            capacity
        } else {
            end.max(capacity * 2).max(FIRST_BYTES)
        };
        self.buffer.resize(bytes, 0);
        Ok(())
    }

    /// Ends the batch: compresses the records, writes the header and the CRC. The builder is then
    /// empty and without memory. Base ordinal and epoch are zero, for the broker to patch.
    ///
    /// Compression that does not make the records smaller is left out.
    ///
    /// # Errors
    /// [`BatchError::Inconsistent`] if the batch holds no records.
    pub fn finish(
        &mut self,
        compression: Compression,
        stamp: ProducerStamp,
    ) -> Result<Bytes, BatchError> {
        if self.count == 0 {
            return Err(BatchError::Inconsistent("it holds no records"));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.truncate(self.at);
        let mut attributes = Compression::None as i16;
        if compression != Compression::None {
            let compressed = codec::compress(compression, &buffer[HEADER_BYTES..]);
            if compressed.len() + HEADER_BYTES < buffer.len() {
                attributes = compression as i16;
                buffer.truncate(HEADER_BYTES);
                buffer.extend_from_slice(&compressed);
            }
        }
        let length = (buffer.len() - 12) as i32;
        let last = self.count - 1;
        buffer[..8].fill(0);
        buffer[8..12].copy_from_slice(&length.to_be_bytes());
        buffer[12..16].fill(0);
        buffer[16] = 2;
        buffer[21..23].copy_from_slice(&attributes.to_be_bytes());
        buffer[23..27].copy_from_slice(&last.to_be_bytes());
        buffer[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        buffer[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        buffer[57..61].copy_from_slice(&self.count.to_be_bytes());
        write_stamp(&mut buffer, stamp);
        self.at = 0;
        self.count = 0;
        Ok(buffer.freeze())
    }
}

/// The raw number that stands for the length of what is null: that of -1.
const NULL: u64 = 1;

/// Writes a record without headers whose numbers take two bytes at most, as nearly all do: the
/// numbers are put together in a register and written at once. `None`, and nothing that counts is
/// written, for any other. `out` is as long as [`BatchBuilder::record_bound`] says.
#[inline]
fn write_short(
    out: &mut [u8],
    timestamp_delta: i64,
    index: u32,
    record: &NewRecord<'_>,
) -> Option<usize> {
    let key = record.key.unwrap_or_default();
    let value = record.value.unwrap_or_default();
    let timestamp = varint::zigzag(timestamp_delta);
    let index = u64::from(index) << 1;
    let key_length = record.key.map_or(NULL, |key| (key.len() as u64) << 1);
    let value_length = record.value.map_or(NULL, |value| (value.len() as u64) << 1);
    let all = timestamp | index | key_length | value_length;
    if all >= varint::Short::END || !record.headers.is_empty() {
        return None;
    }
    let timestamp = varint::Short::of(timestamp);
    let index = varint::Short::of(index);
    let key_length = varint::Short::of(key_length);
    let value_length = varint::Short::of(value_length);
    // A byte of attributes, which are zero, and three numbers: seven bytes at most.
    let mut fields = timestamp.word << 8;
    let mut fields_bytes = 1 + timestamp.bytes;
    fields |= index.word << (8 * fields_bytes);
    fields_bytes += index.bytes;
    fields |= key_length.word << (8 * fields_bytes);
    fields_bytes += key_length.bytes;
    let body = fields_bytes + key.len() + value_length.bytes + value.len() + 1;
    let length = (body as u64) << 1;
    if length >= varint::Short::END {
        return None;
    }
    let length = varint::Short::of(length);

    let start = out.first_chunk_mut::<16>()?;
    start[..8].copy_from_slice(&length.word.to_le_bytes());
    start[length.bytes..length.bytes + 8].copy_from_slice(&fields.to_le_bytes());
    let mut at = length.bytes + fields_bytes;
    if !key.is_empty() {
        copy(out, &mut at, key);
    }
    // The second byte is overwritten if the number takes only one.
    out[at..at + 2].copy_from_slice(&value_length.word.to_le_bytes()[..2]);
    at += value_length.bytes;
    copy(out, &mut at, value);
    out[at] = 0;
    Some(at + 1)
}

/// Writes any record; `out` is as long as [`BatchBuilder::record_bound`] says.
#[cold]
fn write_any(out: &mut [u8], timestamp_delta: i64, index: u32, record: &NewRecord<'_>) -> usize {
    let key_length = record.key.map_or(-1, |key| key.len() as i64);
    let value_length = record.value.map_or(-1, |value| value.len() as i64);
    let headers_bytes = if record.headers.is_empty() {
        1
    } else {
        headers_size(record.headers)
    };
    let body = 1
        + varint::size(timestamp_delta)
        + varint::size(i64::from(index))
        + varint::size(key_length)
        + key_length.max(0) as usize
        + varint::size(value_length)
        + value_length.max(0) as usize
        + headers_bytes;

    let mut at = 0;
    varint::write(out, &mut at, body as i64);
    out[at] = 0;
    at += 1;
    varint::write(out, &mut at, timestamp_delta);
    varint::write(out, &mut at, i64::from(index));
    varint::write(out, &mut at, key_length);
    if let Some(key) = record.key {
        copy(out, &mut at, key);
    }
    varint::write(out, &mut at, value_length);
    if let Some(value) = record.value {
        copy(out, &mut at, value);
    }
    if record.headers.is_empty() {
        out[at] = 0;
        at += 1;
    } else {
        write_headers(out, &mut at, record.headers);
    }
    at
}

#[inline]
fn copy(out: &mut [u8], at: &mut usize, bytes: &[u8]) {
    out[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

fn write_headers(out: &mut [u8], at: &mut usize, headers: &[Header<'_>]) {
    varint::write(out, at, headers.len() as i64);
    for header in headers {
        varint::write(out, at, header.key.len() as i64);
        copy(out, at, header.key.as_bytes());
        varint::write(out, at, header.value.map_or(-1, |value| value.len() as i64));
        copy(out, at, header.value.unwrap_or(&[]));
    }
}

/// Gives one whole batch another producer stamp and the CRC that goes with it.
///
/// # Panics
/// If `batch` is not exactly one batch.
pub fn write_stamp(batch: &mut [u8], stamp: ProducerStamp) {
    batch[43..51].copy_from_slice(&stamp.producer_id.to_be_bytes());
    batch[51..53].copy_from_slice(&stamp.producer_epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&stamp.base_sequence.to_be_bytes());
    seal(batch);
}

fn headers_size(headers: &[Header<'_>]) -> usize {
    let mut bytes = varint::size(headers.len() as i64);
    for header in headers {
        let value_length = header.value.map_or(-1, |value| value.len() as i64);
        bytes += varint::size(header.key.len() as i64)
            + header.key.len()
            + varint::size(value_length)
            + value_length.max(0) as usize;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_way_writes_what_the_other_does() {
        let bytes = [7; 8_300];
        let lengths = [
            None,
            Some(0),
            Some(1),
            Some(63),
            Some(64),
            Some(4_000),
            Some(8_191),
        ];
        let mut quick = 0;
        for (key, value) in lengths
            .iter()
            .flat_map(|key| lengths.map(|value| (key, value)))
        {
            for (index, timestamp_delta) in [(0, 0), (63, -64), (64, 64), (8_191, 8_191)] {
                let record = NewRecord {
                    key: key.map(|length| &bytes[..length]),
                    value: value.map(|length| &bytes[..length]),
                    headers: &[],
                    timestamp: 0,
                };
                let mut any = vec![0; BatchBuilder::record_bound(&record)];
                let mut short = any.clone();
                let expected = write_any(&mut any, timestamp_delta, index, &record);
                if let Some(written) = write_short(&mut short, timestamp_delta, index, &record) {
                    assert_eq!(short[..written], any[..expected]);
                    quick += 1;
                } else {
                    let bytes = key.unwrap_or(0) + value.unwrap_or(0);
                    assert!(bytes > 8_000, "{key:?} {value:?}");
                }
            }
        }
        assert!(quick > 100);
        let header = Header {
            key: "a",
            value: None,
        };
        let record = NewRecord {
            headers: &[header],
            ..NewRecord::default()
        };
        assert_eq!(write_short(&mut [0; 64], 0, 0, &record), None);
        for large in [(8_192, 0), (0, 8_192), (0, -8_193)] {
            let written = write_short(&mut [0; 64], large.1, large.0, &NewRecord::default());
            assert_eq!(written, None);
        }
    }
}
