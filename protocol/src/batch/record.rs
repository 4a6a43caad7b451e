//! Records: their parts, and the iterator that borrows them from a batch.

use super::codec;
use super::header::{BatchError, BatchHeader, Compression, HEADER_BYTES};
use super::varint;

/// Fewest bytes of a record: seven fields of one byte each.
pub const MIN_RECORD_BYTES: usize = 7;

/// A record's header: a name and a value of the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name.
    pub key: &'a str,
    /// The value; may be null.
    pub value: Option<&'a [u8]>,
}

/// A record, borrowed from its batch.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The record's ordinal less the batch's base ordinal.
    pub ordinal_delta: u32,
    /// Milliseconds since 1970: the producer's clock, or the broker's if the batch says so.
    pub timestamp: i64,
    /// The key; null if none was given.
    pub key: Option<&'a [u8]>,
    /// The value; may be null.
    pub value: Option<&'a [u8]>,
    headers: RawHeaders<'a>,
}

#[derive(Clone, Copy, Debug)]
struct RawHeaders<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record's headers, in the order given. Their format was checked when the record was read.
    pub fn headers(&self) -> Headers<'a> {
        Headers { rest: self.headers }
    }
}

/// Iterator over a record's headers.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    rest: RawHeaders<'a>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        self.rest.count = self.rest.count.checked_sub(1)?;
        read_header(&mut self.rest.bytes).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rest.count as usize, Some(self.rest.count as usize))
    }
}

impl ExactSizeIterator for Headers<'_> {}

/// Iterator over the records of one batch, in order. After an error it is at its end.
///
/// It yields exactly as many records as the batch header says, or an error: a count that lies is
/// found at the record where it shows, bytes left over at the end.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    next: u32,
    count: u32,
    base_timestamp: i64,
    append_time: Option<i64>,
    last_ordinal_delta: u32,
    failed: bool,
}

impl<'a> Records<'a> {
    /// The records of a batch whose header is `header`, from `bytes`: what follows the header,
    /// decompressed.
    pub fn new(header: &BatchHeader, bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            next: 0,
            count: header.record_count,
            base_timestamp: header.base_timestamp,
            append_time: header.is_append_time().then_some(header.max_timestamp),
            last_ordinal_delta: header.last_ordinal_delta,
            failed: false,
        }
    }

    /// The records of the whole batch at the start of `batch`. Uncompressed records are borrowed
    /// from it; compressed ones are decompressed into `scratch`, to `limit` bytes at most.
    ///
    /// Does not check the CRC; see [`verify`](super::verify).
    ///
    /// # Errors
    /// [`BatchError`] if there is no whole batch, or it does not decompress within `limit`.
    pub fn open(
        batch: &'a [u8],
        limit: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Self, BatchError> {
        let header = BatchHeader::peek(batch)?;
        let stored = batch
            .get(HEADER_BYTES..header.total_bytes)
            .ok_or(BatchError::Truncated {
                need: header.total_bytes,
                have: batch.len(),
            })?;
        let compression = header.compression()?;
        if compression == Compression::None {
            return Ok(Self::new(&header, stored));
        }
        codec::decompress(compression, stored, limit, scratch)?;
        Ok(Self::new(&header, scratch))
    }

    /// The next record, and the bytes it stands in.
    #[inline]
    pub fn next_raw(&mut self) -> Option<Result<(Record<'a>, &'a [u8]), BatchError>> {
        let before = self.rest;
        let record = self.next()?;
        Some(record.map(|record| (record, &before[..before.len() - self.rest.len()])))
    }

    /// Records not yet read, as the header has it.
    pub fn remaining(&self) -> u32 {
        if self.failed {
            0
        } else {
            self.count - self.next
        }
    }

    #[inline]
    fn read(&mut self) -> Result<Record<'a>, &'static str> {
        let length = varint::read_i32(&mut self.rest).ok_or("its length does not decode")?;
        let length = usize::try_from(length).map_err(|_| "its length is negative")?;
        let (mut record, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or("it is longer than the batch")?;
        self.rest = rest;

        let (_attributes, fields) = record.split_first().ok_or("it is cut short")?;
        record = fields;
        let timestamp_delta = varint::read(&mut record).ok_or("its timestamp does not decode")?;
        let ordinal_delta = varint::read_i32(&mut record).ok_or("its ordinal does not decode")?;
        let ordinal_delta = u32::try_from(ordinal_delta).map_err(|_| "its ordinal is negative")?;
        if ordinal_delta > self.last_ordinal_delta {
            return Err("its ordinal lies above the batch's last");
        }
        let key = read_nullable(&mut record).ok_or("its key does not decode")?;
        let value = read_nullable(&mut record).ok_or("its value does not decode")?;
        let headers = read_headers(record)?;
        Ok(Record {
            ordinal_delta,
            timestamp: self
                .append_time
                .unwrap_or_else(|| self.base_timestamp.wrapping_add(timestamp_delta)),
            key,
            value,
            headers,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if self.next == self.count {
            if self.rest.is_empty() {
                return None;
            }
            self.failed = true;
            return Some(Err(BatchError::Inconsistent(
                "bytes follow the last record",
            )));
        }
        match self.read() {
            Ok(record) => {
                self.next += 1;
                Some(Ok(record))
            }
            Err(reason) => {
                self.failed = true;
                Some(Err(BatchError::BadRecord {
                    index: self.next,
                    reason,
                }))
            }
        }
    }
}

#[inline]
fn read_nullable<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let length = varint::read_i32(bytes)?;
    if length == -1 {
        return Some(None);
    }
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(Some(taken))
}

fn read_header<'a>(bytes: &mut &'a [u8]) -> Result<Header<'a>, &'static str> {
    let key = read_nullable(bytes)
        .flatten()
        .ok_or("a header's key does not decode")?;
    let key = std::str::from_utf8(key).map_err(|_| "a header's key is not UTF-8")?;
    let value = read_nullable(bytes).ok_or("a header's value does not decode")?;
    Ok(Header { key, value })
}

#[inline]
fn read_headers(mut bytes: &[u8]) -> Result<RawHeaders<'_>, &'static str> {
    if bytes == [0] {
        return Ok(RawHeaders {
            count: 0,
            bytes: &[],
        });
    }
    let count = varint::read_i32(&mut bytes).ok_or("its header count does not decode")?;
    let count = u32::try_from(count).map_err(|_| "its header count is negative")?;
    let mut rest = bytes;
    for _ in 0..count {
        read_header(&mut rest)?;
    }
    if !rest.is_empty() {
        return Err("bytes follow its last header");
    }
    Ok(RawHeaders { count, bytes })
}
