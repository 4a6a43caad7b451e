//! Whole batches of a copy, from an ordinal on.

use bytes::{Bytes, BytesMut};
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_metadata::GroupRecord;
use kera_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, Ordinal};
use kera_replication::backup::ReplicaStore;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::transport::{MAX_TRANSFER_BYTES, Refusal, Reply, Request};
use kera_streamlet::Located;

use crate::fault_rules::Rule;

/// Bytes read at once while a batch is looked for.
const BLOCK: usize = 64 << 10;

/// What was found.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) bufs: Vec<Bytes>,
    /// The batch that follows belongs to a transaction.
    pub(super) stops_at_transaction: bool,
    pub(super) bytes: usize,
    /// Of the record that follows the last batch.
    pub(super) ordinal: Ordinal,
    /// Where that batch would begin.
    pub(super) address: u64,
    pub(super) segment_size: u32,
}

impl Walked {
    /// For tests that are to notice: no batches, as if there were none before `end`.
    pub(super) fn nothing_up_to(end: Ordinal) -> Self {
        Self {
            bufs: Vec::new(),
            stops_at_transaction: false,
            bytes: 0,
            ordinal: end,
            address: 0,
            segment_size: 0,
        }
    }
}

/// Why nothing was.
#[derive(Debug, thiserror::Error)]
pub(super) enum WalkError {
    #[error("the replica is not here: {0}")]
    Refused(Refusal),
    #[error("the replica is damaged at byte {address}: {reason}; read from the owner")]
    Damaged { address: u64, reason: String },
}

impl From<WalkError> for WireError {
    fn from(error: WalkError) -> Self {
        let code = match &error {
            WalkError::Refused(Refusal::Unknown) => ErrorCode::NotOwner,
            WalkError::Refused(_) => ErrorCode::StorageError,
            WalkError::Damaged { .. } => ErrorCode::Damaged,
        };
        Self::new(code, error.to_string())
    }
}

/// A copy that is read, one block at a time.
struct Reader<'a> {
    store: &'a ReplicaStore,
    group: &'a GroupRecord,
    copy: CopyId,
    start: u64,
    block: Bytes,
}

impl Reader<'_> {
    /// At least `len` bytes at `address`, fewer only at the group's recorded end; `ahead` are read.
    fn at(&mut self, address: u64, len: usize, ahead: usize) -> Result<Bytes, WalkError> {
        let end = (address + len as u64).min(self.group.length);
        if address < self.start || end > self.start + self.block.len() as u64 {
            let to = (address + ahead.max(len) as u64).min(self.group.length);
            let mut gathered = BytesMut::new();
            let mut from = address;
            while from < to {
                let piece = (to - from).min(u64::from(MAX_TRANSFER_BYTES)) as u32;
                let read = self.ask(from, piece)?;
                if to - address == read.len() as u64 {
                    self.block = read;
                    self.start = address;
                    return Ok(self.cut(address, end));
                }
                if read.is_empty() {
                    break;
                }
                from += read.len() as u64;
                gathered.extend_from_slice(&read);
            }
            self.block = gathered.freeze();
            self.start = address;
        }
        Ok(self.cut(address, end))
    }

    fn cut(&self, address: u64, end: u64) -> Bytes {
        let from = (address - self.start) as usize;
        let to = ((end - self.start) as usize).min(self.block.len());
        self.block.slice(from.min(to)..to)
    }

    fn ask(&self, address: u64, len: u32) -> Result<Bytes, WalkError> {
        let copy = self.copy;
        let read = Request::Read { copy, address, len };
        // This broker asks itself: only opening a copy is about who asks.
        match self.store.handle(BrokerId::default(), read) {
            Ok(Reply::Bytes(bytes)) => Ok(bytes),
            Ok(other) => Err(WalkError::Refused(Refusal::Failed(format!(
                "a read was answered with {other:?}"
            )))),
            Err(refusal) => Err(WalkError::Refused(refusal)),
        }
    }

    fn header(&mut self, segment: u64, size: u64) -> Result<SegmentHeader, WalkError> {
        let address = segment * size;
        let bytes = self.at(address, SEGMENT_HEADER_BYTES, BLOCK)?;
        let damaged = |reason: String| WalkError::Damaged { address, reason };
        let header = SegmentHeader::decode(&bytes).map_err(|error| damaged(error.to_string()))?;
        let group = self.group;
        let fits = header.stream == group.stream
            && header.streamlet == group.streamlet
            && header.group == group.group
            && header.epoch == group.epoch
            && header.generation == group.generation
            && u64::from(header.segment) == segment;
        match fits {
            true => Ok(header),
            false => Err(damaged("it is another group's".into())),
        }
    }
}

/// Reads whole batches from the one that holds `from` on, `at_most` bytes unless the first is larger. Those
/// before damage are given, and the damage is told to who asks for what lies there.
pub(super) fn walk(
    store: &ReplicaStore,
    group: &GroupRecord,
    from: Located,
    end_ordinal: Ordinal,
    at_most: usize,
) -> Result<Walked, WalkError> {
    let endless;
    let group = match Rule::CopyServedBeyondEnd.is_broken() {
        true => {
            endless = without_end(group);
            &endless
        }
        false => group,
    };
    let mut reader = Reader {
        store,
        group,
        copy: CopyId::of(group),
        start: 0,
        block: Bytes::new(),
    };
    let first = reader.header(0, 0)?;
    let size = u64::from(first.segment_size);
    let hinted = from.at.filter(|(id, generation, address)| {
        *id == group.group && *generation == group.generation && *address < group.length
    });
    let (address, expected) = match hinted {
        Some((_, _, address)) if is_there(&mut reader, address, size, from.ordinal)? => {
            (address, None)
        }
        _ => nearest(&mut reader, &first, size, from.ordinal)?,
    };
    let mut walk = Walk {
        reader,
        size,
        walked: Walked {
            bufs: Vec::new(),
            stops_at_transaction: false,
            bytes: 0,
            ordinal: from.ordinal,
            address,
            segment_size: first.segment_size,
        },
        expected,
    };
    let end = end_ordinal.min(group.end_ordinal);
    match walk.take(end, at_most) {
        // What is whole is given; whoever reads on meets the damage first.
        Err(_) if !walk.walked.bufs.is_empty() => {}
        taken => taken?,
    }
    let walked = walk.walked;
    if walked.bufs.is_empty() && walked.ordinal < end && !walked.stops_at_transaction {
        let reason = format!("no batch holds ordinal {}", walked.ordinal);
        return Err(WalkError::Damaged {
            address: walked.address,
            reason,
        });
    }
    Ok(walked)
}

/// For tests that are to notice: a group as if no end were recorded.
fn without_end(group: &GroupRecord) -> GroupRecord {
    GroupRecord {
        length: u64::MAX,
        end_ordinal: Ordinal::MAX,
        ..group.clone()
    }
}

/// Batches taken one after the other.
struct Walk<'a> {
    reader: Reader<'a>,
    size: u64,
    walked: Walked,
    /// The ordinal that the next batch begins with, if that is known.
    expected: Option<Ordinal>,
}

impl Walk<'_> {
    /// Takes batches up to `end`. On an error those before it have been taken.
    fn take(&mut self, end: Ordinal, at_most: usize) -> Result<(), WalkError> {
        let length = self.reader.group.length;
        while self.walked.address < length && self.walked.ordinal < end {
            let address = self.walked.address;
            let (segment, left) = (address / self.size, self.size - address % self.size);
            let head = match left < HEADER_BYTES as u64 {
                true => Bytes::new(),
                false => self.reader.at(address, HEADER_BYTES, at_most.max(BLOCK))?,
            };
            // Zeros follow a segment's last batch, and may lie where a batch was.
            if head.len() < HEADER_BYTES || head.iter().all(|b| *b == 0) {
                let next = self.reader.header(segment + 1, self.size)?;
                if let Some(at) = self.expected.filter(|at| *at != next.first_ordinal) {
                    let next = next.first_ordinal;
                    let reason = format!(
                        "no batch follows, and the next segment begins with ordinal {next} and not {at}"
                    );
                    return Err(WalkError::Damaged { address, reason });
                }
                self.walked.address = (segment + 1) * self.size + SEGMENT_HEADER_BYTES as u64;
                self.expected = Some(next.first_ordinal);
                continue;
            }
            let damaged = |reason: String| WalkError::Damaged { address, reason };
            let peeked = BatchHeader::peek(&head).map_err(|error| damaged(error.to_string()))?;
            let total = peeked.total_bytes;
            let is_late = self.expected.is_some_and(|at| peeked.base_ordinal != at);
            let ends = address + total as u64;
            let is_foreign = !may_hold(self.reader.group, peeked.epoch);
            if is_late || is_foreign || total as u64 > left || ends > length {
                return Err(damaged("the batch does not follow".into()));
            }
            let is_wanted = peeked.next_ordinal() > self.walked.ordinal;
            if is_wanted {
                if !self.walked.bufs.is_empty() && self.walked.bytes + total > at_most {
                    break;
                }
                if peeked.is_transactional() {
                    // What became of its transaction is the owner's to say.
                    self.walked.stops_at_transaction = true;
                    break;
                }
            }
            // Also of one that is passed over: a length that is damaged may lead into a payload.
            let batch = self.reader.at(address, total, at_most.max(BLOCK))?;
            if let Err(error) = batch::verify(&batch)
                && !Rule::CopyNotChecked.is_broken()
            {
                return Err(damaged(error.to_string()));
            }
            if is_wanted {
                self.walked.bufs.push(batch);
                self.walked.bytes += total;
                self.walked.ordinal = peeked.next_ordinal();
            }
            self.expected = Some(peeked.next_ordinal());
            self.walked.address = ends;
        }
        Ok(())
    }
}

/// Whether a group may hold batches of an epoch: its own, and of earlier ones where it was made of others.
fn may_hold(group: &GroupRecord, epoch: Epoch) -> bool {
    epoch == group.epoch || (group.generation > 0 && epoch < group.epoch)
}

/// Whether the batch that holds `ordinal` begins at `address`; a hint may be anything.
fn is_there(
    reader: &mut Reader<'_>,
    address: u64,
    size: u64,
    ordinal: Ordinal,
) -> Result<bool, WalkError> {
    if size - address % size < HEADER_BYTES as u64 {
        return Ok(false);
    }
    let group = reader.group;
    let head = reader.at(address, HEADER_BYTES, BLOCK)?;
    let found = BatchHeader::peek(&head).ok();
    let found = found.filter(|h| may_hold(group, h.epoch));
    let holds = |h: &BatchHeader| h.base_ordinal <= ordinal && ordinal < h.next_ordinal();
    if !found.as_ref().is_some_and(holds) {
        return Ok(false);
    }
    let total = found.map_or(0, |header| header.total_bytes);
    let batch = reader.at(address, total, BLOCK)?;
    Ok(batch::verify(&batch).is_ok())
}

/// The begin of the segment that holds `ordinal`, and its first ordinal.
fn nearest(
    reader: &mut Reader<'_>,
    first: &SegmentHeader,
    size: u64,
    ordinal: Ordinal,
) -> Result<(u64, Option<Ordinal>), WalkError> {
    let data = SEGMENT_HEADER_BYTES as u64;
    let mut found = (
        data + u64::from(first.snapshot_bytes),
        Some(first.first_ordinal),
    );
    for segment in 1..u64::from(first.segments) {
        if segment * size + data > reader.group.length {
            break;
        }
        let header = reader.header(segment, size)?;
        if header.first_ordinal > ordinal {
            break;
        }
        found = (segment * size + data, Some(header.first_ordinal));
    }
    Ok(found)
}
