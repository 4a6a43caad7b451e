//! Batches as they were stored, and records borrowed from them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kera_protocol::batch::{self, BatchError, BatchHeader, Compression, HEADER_BYTES, Header};
use kera_protocol::ids::{LaneKey, Ordinal};
use kera_protocol::v1::Cursor;

use crate::error::ConsumeError;
use crate::group::LeaseKey;
use crate::slices::LeasedSlices;

/// Records of one lane, in order, with its checksum checked. Holds on to the memory it was received
/// in; cheap to clone and to send to another task.
#[derive(Clone, Debug)]
pub struct Batch {
    lane: LaneKey,
    lease: Option<LeaseKey>,
    header: BatchHeader,
    /// What follows the header, decompressed.
    body: Bytes,
    wire_bytes: usize,
    first: Ordinal,
    next: Cursor,
    head: Ordinal,
    /// Where the order of keys is kept: the records of these, and how many they are.
    own: Option<(Arc<LeasedSlices>, usize)>,
}

/// Where a consumer stands after a batch: what to store beside one's results, in one transaction,
/// to count every record exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The lane.
    pub lane: LaneKey,
    /// The next record. Its ordinal is authoritative, the rest only makes resuming quick.
    pub next: Cursor,
    /// The lease under which the batch was read; grows for ever within a group, so that a later
    /// holder of the lane can be told from an earlier one. `None` without a group.
    pub lease: Option<u64>,
}

impl Batch {
    /// The lane it was read from.
    pub fn lane(&self) -> LaneKey {
        self.lane
    }

    /// The lease it was read under; `None` without a group.
    pub fn lease(&self) -> Option<u64> {
        self.lease.map(|key| key.lease)
    }

    /// The same, told apart from a lease of that number in a group that was deleted and made anew.
    pub(crate) fn lease_key(&self) -> Option<LeaseKey> {
        self.lease
    }

    /// Ordinal of the first record delivered.
    pub fn first_ordinal(&self) -> Ordinal {
        self.first
    }

    /// Ordinal after the last record delivered.
    pub fn next_ordinal(&self) -> Ordinal {
        self.next.ordinal
    }

    /// Where the consumer stands after it.
    pub fn position(&self) -> Position {
        Position {
            lane: self.lane,
            next: self.next,
            lease: self.lease(),
        }
    }

    /// Records in it, at most: fewer if it was compacted. With [`Order::Key`](crate::Order::Key) those that are this
    /// consumer's.
    pub fn len(&self) -> usize {
        let ordinals = self.next.ordinal.saturating_sub(self.first) as usize;
        let count = self.own.as_ref().map(|(_, count)| *count);
        ordinals.min(count.unwrap_or(self.header.record_count as usize))
    }

    /// The same batch cut before ordinal `next`: to commit part of it. Shares its memory. An ordinal
    /// outside the batch is moved to its nearer end.
    pub fn until(&self, next: Ordinal) -> Self {
        let ordinal = next.clamp(self.first, self.next.ordinal);
        if ordinal == self.next.ordinal {
            return self.clone();
        }
        Self {
            // The place after a part of a batch is known by its ordinal only.
            next: Cursor {
                ordinal,
                ..Cursor::default()
            },
            ..self.clone()
        }
    }

    /// The same batch without its records below ordinal `first`, which lies within it.
    pub(crate) fn starting_at(self, first: Ordinal) -> Self {
        Self { first, ..self }
    }

    /// The error of a batch whose records do not decode, as [`records`](Self::records) found: it names the
    /// batch and says what to do.
    pub fn undecodable(&self, error: BatchError) -> ConsumeError {
        ConsumeError::Undecodable {
            lane: self.lane,
            ordinal: self.first,
            next: self.next.ordinal,
            error,
        }
    }

    /// True if no record lies within the range that was asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the batch as it was sent.
    pub fn wire_bytes(&self) -> usize {
        self.wire_bytes
    }

    /// The batch's header: producer, timestamps, compression.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The lane's durable head when the batch was read; the lag is what lies between.
    pub fn head_ordinal(&self) -> Ordinal {
        self.head
    }

    /// The records, in order, borrowed from the batch. With [`Order::Key`](crate::Order::Key) those that are this
    /// consumer's.
    pub fn records(&self) -> Records<'_> {
        Records {
            slices: self.own.as_ref().map(|(slices, _)| slices.as_ref()),
            inner: batch::Records::new(&self.header, &self.body),
            base: self.header.base_ordinal,
            first: self.first,
            next: self.next.ordinal,
        }
    }

    /// The records with memory of their own share: each keeps the batch's memory alive.
    ///
    /// # Errors
    /// [`BatchError`] for the first record that does not decode.
    pub fn owned_records(&self) -> Result<Vec<OwnedRecord>, BatchError> {
        let share = |bytes: Option<&[u8]>| bytes.map(|bytes| self.body.slice_ref(bytes));
        self.records()
            .map(|record| {
                let record = record?;
                Ok(OwnedRecord {
                    lane: self.lane,
                    ordinal: record.ordinal,
                    timestamp: record.timestamp,
                    key: share(record.key),
                    value: share(record.value),
                    headers: record
                        .headers()
                        .map(|header| (header.key.to_owned(), share(header.value)))
                        .collect(),
                })
            })
            .collect()
    }
}

/// A record, borrowed from its batch.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its number within its lane.
    pub ordinal: Ordinal,
    /// Milliseconds since 1970: the producer's clock, or the broker's if the stream says so.
    pub timestamp: i64,
    /// The key; `None` if it is null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` if it is null.
    pub value: Option<&'a [u8]>,
    inner: batch::Record<'a>,
}

impl<'a> Record<'a> {
    /// The record's headers, in the order given.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header<'a>> + use<'a> {
        self.inner.headers()
    }
}

/// A record that shares its batch's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The lane it was read from.
    pub lane: LaneKey,
    /// Its number within its lane.
    pub ordinal: Ordinal,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// The key; `None` if it is null.
    pub key: Option<Bytes>,
    /// The value; `None` if it is null.
    pub value: Option<Bytes>,
    /// Names and values of the headers, in the order given.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// Iterator over a batch's records. A record that does not decode ends it with an error: its
/// producer wrote it so, the checksum fits.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    inner: batch::Records<'a>,
    /// Others are left out.
    slices: Option<&'a LeasedSlices>,
    base: Ordinal,
    first: Ordinal,
    next: Ordinal,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let record = match self.inner.next()? {
                Ok(record) => record,
                Err(error) => return Some(Err(error)),
            };
            let ordinal = self.base + u64::from(record.ordinal_delta);
            if ordinal < self.first {
                continue;
            }
            if ordinal >= self.next {
                return None;
            }
            let slices = self.slices;
            if slices.is_some_and(|slices| !slices.takes(record.key, ordinal)) {
                continue;
            }
            return Some(Ok(Record {
                ordinal,
                timestamp: record.timestamp,
                key: record.key,
                value: record.value,
                inner: record,
            }));
        }
    }
}

/// What was received of one lane at a time: a run of whole batches.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) source: u64,
    /// The owner's name for the source: a lease, or the index of a lane.
    pub(crate) tag: u64,
    /// The life of the membership in which it was granted; 0 without a group.
    pub(crate) life: u64,
    pub(crate) lane: LaneKey,
    /// Only the records of these are wanted.
    pub(crate) slices: Option<Arc<LeasedSlices>>,
    pub(crate) body: Bytes,
    /// Nothing below is wanted,
    pub(crate) from: Ordinal,
    /// nothing at or above this either.
    pub(crate) end: Ordinal,
    /// Where the next chunk goes on.
    pub(crate) next: Cursor,
    pub(crate) head: Ordinal,
    /// Nothing follows it.
    pub(crate) finished: bool,
    /// What lies in it was not read and is skipped.
    pub(crate) skipped: bool,
}

/// Is told of batches that are skipped.
pub(crate) type SkipHook = dyn Fn(&ConsumeError) + Send + Sync;

/// How batches are unpacked.
#[derive(Clone)]
pub(crate) struct Unpacking {
    /// Bytes that a batch's records may take.
    pub(crate) limit: usize,
    /// Batches that cannot be unpacked are skipped, and this is told of them.
    pub(crate) on_skip: Option<Arc<SkipHook>>,
}

impl fmt::Debug for Unpacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacking")
            .field("limit", &self.limit)
            .field("skips", &self.on_skip.is_some())
            .finish()
    }
}

/// What a chunk brings next.
#[derive(Debug)]
pub(crate) enum Unpacked {
    Batch(Batch),
    /// A batch arrived damaged: its checksum does not fit.
    Damaged(ConsumeError),
    /// A batch that is as it was stored, and cannot be read.
    Undecodable(ConsumeError),
    /// Such a batch was skipped, or what its broker cannot read: nothing is delivered of what lies from the one ordinal up to the other.
    Skipped(Ordinal, Ordinal),
    /// All records of a batch are of slices that others have: everything below is passed.
    Passed(Cursor),
}

/// Takes a chunk apart, checking each batch's checksum as it is delivered: the bytes are then in
/// the cache when the records are visited.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    pub(crate) chunk: Chunk,
    at: usize,
}

impl ChunkReader {
    pub(crate) fn new(chunk: Chunk) -> Self {
        Self { chunk, at: 0 }
    }

    /// First ordinal not delivered.
    pub(crate) fn position(&self) -> Ordinal {
        self.chunk.from
    }

    /// The next batch; `lease` is the one it is read under.
    pub(crate) fn next_batch(
        &mut self,
        lease: Option<LeaseKey>,
        unpacking: &Unpacking,
    ) -> Option<Unpacked> {
        if std::mem::take(&mut self.chunk.skipped) {
            let (from, next) = (self.chunk.from, self.chunk.next.ordinal);
            self.chunk.from = next;
            return Some(Unpacked::Skipped(from, next));
        }
        while self.at < self.chunk.body.len() {
            let rest = &self.chunk.body[self.at..];
            let header = match batch::verify(rest) {
                Ok(header) => header,
                Err(error) => {
                    return Some(Unpacked::Damaged(ConsumeError::Corrupt {
                        lane: self.chunk.lane,
                        ordinal: self.position(),
                        error,
                    }));
                }
            };
            let start = self.at;
            self.at += header.total_bytes;
            let (base, after) = (header.base_ordinal, header.next_ordinal());
            if base >= self.chunk.end {
                return None;
            }
            if after <= self.chunk.from {
                continue;
            }
            let next = after.min(self.chunk.end);
            let first = base.max(self.chunk.from);
            if header.is_control() {
                self.chunk.from = next;
                continue;
            }
            let stored = self.chunk.body.slice(start + HEADER_BYTES..self.at);
            let slices = self.chunk.slices.clone();
            let opened = unpacked(&header, stored, unpacking).and_then(|body| {
                let own = slices.map(|slices| {
                    let count = slices.count(&header, &body, first, next)?;
                    Ok((slices, count))
                });
                Ok((body, own.transpose()?))
            });
            let (body, own) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    let error = ConsumeError::Undecodable {
                        lane: self.chunk.lane,
                        ordinal: first,
                        next,
                        error,
                    };
                    let Some(on_skip) = &unpacking.on_skip else {
                        return Some(Unpacked::Undecodable(error));
                    };
                    tracing::debug!(%error, "batch skipped");
                    on_skip(&error);
                    self.chunk.from = next;
                    return Some(Unpacked::Skipped(first, next));
                }
            };
            self.chunk.from = next;
            // The chunk's cursor carries the hint for whoever resumes behind its last batch.
            let is_last = self.at == self.chunk.body.len() && next == after;
            let next = if is_last && self.chunk.next.ordinal == next {
                self.chunk.next
            } else {
                Cursor {
                    ordinal: next,
                    ..Cursor::default()
                }
            };
            if own.as_ref().is_some_and(|(_, count)| *count == 0) {
                return Some(Unpacked::Passed(next));
            }
            return Some(Unpacked::Batch(Batch {
                own,
                lane: self.chunk.lane,
                lease,
                header,
                body,
                wire_bytes: header.total_bytes,
                first,
                next,
                head: self.chunk.head,
            }));
        }
        None
    }
}

/// The bytes of a batch's records. Where batches that do not decode are skipped every record is looked at;
/// otherwise whoever visits the records hears of it.
fn unpacked(
    header: &BatchHeader,
    stored: Bytes,
    unpacking: &Unpacking,
) -> Result<Bytes, BatchError> {
    let body = match header.compression()? {
        Compression::None => stored,
        compression => {
            let mut records = Vec::new();
            batch::decompress(compression, &stored, unpacking.limit, &mut records)?;
            records.into()
        }
    };
    if unpacking.on_skip.is_some() {
        batch::Records::new(header, &body).try_for_each(|record| record.map(drop))?;
    }
    Ok(body)
}
