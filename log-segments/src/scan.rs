//! Recovery of a group from its bytes: no length is trusted, the data says where it ends.
//!
//! The scan walks batches from the first segment on and stops at the first that does not fit: magic,
//! length, epoch, next ordinal or CRC. It is Tailwind's certificate (section 4.3 of the paper) with
//! the batch's own checksum in the role of the extra bytes. Below the recorded durable length only
//! headers are walked, since those bytes were seen to be whole.

use kera_protocol::ack::AckPolicy;
use kera_protocol::batch::{self, BatchError, BatchHeader, HEADER_BYTES, crc32c};
use kera_protocol::ids::{Epoch, GroupId, Incarnation, LaneKey, Ordinal};

use crate::footer::SparseIndex;
use crate::io::{File, ReadAt};
use crate::layout::{
    DurableMark, LayoutError, MARK_BYTES, MARK_SLOT_STRIDE, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use crate::place::Place;
use crate::spec::{GroupSpec, MAX_GROUP_ORDINALS};

/// Bytes read from the file at once.
const BLOCK: usize = 256 * 1024;
/// Bytes read at once to see a header only.
const SMALL_BLOCK: usize = 512;
/// Mean size of batches from which reading each header by itself is cheaper than reading all.
const LARGE_BATCH: u64 = 8 * 1024;

/// What is known of the group before the scan.
#[derive(Clone, Debug, Default)]
pub struct ScanSpec {
    /// The lane the group must belong to; `None` accepts any.
    pub lane: Option<LaneKey>,
    /// The group it must be.
    pub group: Option<GroupId>,
    /// The epoch it must have.
    pub epoch: Option<Epoch>,
    /// Stop here at the latest; `None` scans to the end of the data.
    pub limit: Option<u64>,
    /// The incarnation of the reader, to tell whether a `written` mark binds.
    pub incarnation: Incarnation,
    /// Check every CRC, also below the durable mark.
    pub verify_all: bool,
}

impl ScanSpec {
    /// For an open group of a known record.
    pub fn open(spec: &GroupSpec, incarnation: Incarnation) -> Self {
        Self {
            lane: Some(spec.lane),
            group: Some(spec.group),
            epoch: Some(spec.epoch),
            limit: None,
            incarnation,
            verify_all: false,
        }
    }

    /// For a closed group of a known record: headers only, up to its length.
    pub fn closed(spec: &GroupSpec, end: Place) -> Self {
        Self {
            limit: Some(end.address),
            ..Self::open(spec, Incarnation::default())
        }
    }
}

/// Why the scan ended where it did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Zeros follow: nothing more was written.
    #[error("the data ends here")]
    EndOfData,
    /// The limit was reached.
    #[error("the recorded length is reached")]
    Limit,
    /// A batch of another epoch: bytes from elsewhere.
    #[error("the batch has epoch {found}, the group has {expected}")]
    Epoch {
        /// The group's.
        expected: Epoch,
        /// The batch's.
        found: Epoch,
    },
    /// Not the batch that should follow.
    #[error("the batch begins at ordinal {found}, {expected} should follow")]
    Ordinal {
        /// Next ordinal.
        expected: Ordinal,
        /// The batch's.
        found: Ordinal,
    },
    /// Not a whole batch.
    #[error("{0}")]
    Batch(BatchError),
    /// A whole batch that was stored earlier stands where another was being written.
    #[error("the batch repeats what its producer sent before")]
    Repeats,
    /// The next segment's header does not fit.
    #[error("the header of segment {segment} does not fit: {reason}")]
    Segment {
        /// Its index.
        segment: u32,
        /// What is wrong.
        reason: String,
    },
}

/// The outcome of a scan.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Header of the first segment.
    pub header: SegmentHeader,
    /// The lane snapshot.
    pub snapshot: Vec<u8>,
    /// Address of the first batch.
    pub data_start: u64,
    /// End of the valid data.
    pub end: Place,
    /// Batches found.
    pub batches: u64,
    /// Highest timestamp, `i64::MIN` if there is no batch.
    pub max_timestamp: i64,
    /// Where batches of finished segments end.
    pub segment_ends: Vec<u32>,
    /// The sparse index.
    pub index: SparseIndex,
    /// The newest durable mark.
    pub mark: Option<DurableMark>,
    /// Why it stopped.
    pub stop: Stop,
    /// The valid data ends below what is known to have been durable: damage, not a torn tail.
    pub damaged: bool,
}

impl Scanned {
    /// Behind the first segment's header and the lane snapshot, before anything else was looked at.
    pub(crate) fn begin(header: SegmentHeader, snapshot: Vec<u8>) -> Self {
        let data_start = SEGMENT_HEADER_BYTES as u64 + u64::from(header.snapshot_bytes);
        Self {
            data_start,
            end: Place {
                address: data_start,
                ordinal: header.first_ordinal,
            },
            batches: 0,
            max_timestamp: i64::MIN,
            segment_ends: Vec::new(),
            index: SparseIndex::default(),
            mark: None,
            stop: Stop::EndOfData,
            damaged: false,
            snapshot,
            header,
        }
    }

    /// Takes back the last batch, which began at `place`: its bytes are whole, yet not what was
    /// being written there.
    pub fn take_back(&mut self, place: Place) {
        self.end = place;
        self.batches = self.batches.saturating_sub(1);
        self.stop = Stop::Repeats;
        self.segment_ends
            .truncate((place.address / u64::from(self.header.segment_size)) as usize);
        self.index.cut(place.address);
    }
}

/// Why there is nothing to scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// No valid header: the group never received its first bytes, or lost them.
    #[error("the group has no valid header: {0}")]
    NoHeader(LayoutError),
    /// The file is another group's.
    #[error("the file belongs to {found}, not to {expected}")]
    Foreign {
        /// As recorded.
        expected: String,
        /// As in the header.
        found: String,
    },
    /// The lane snapshot does not match its checksum.
    #[error("the lane snapshot does not match its checksum")]
    BadSnapshot,
    /// The store refused.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads the first segment's header and the lane snapshot.
///
/// # Errors
/// [`ScanError`] if they cannot be used.
pub fn read_head(
    file: &dyn ReadAt,
    spec: &ScanSpec,
) -> Result<(SegmentHeader, Vec<u8>), ScanError> {
    head(&mut BlockReader::new(file), spec)
}

/// Whether nothing was written into a group's file but, perhaps, the first segment's header and the lane snapshot. Where these
/// are damaged it cannot be told, and counts as no.
///
/// # Errors
/// The store's.
pub fn is_without_batches(file: &dyn ReadAt) -> std::io::Result<bool> {
    let header = match read_head(file, &ScanSpec::default()) {
        Ok((header, _)) => header,
        Err(ScanError::NoHeader(LayoutError::Blank)) => return Ok(true),
        Err(ScanError::Io(error)) => return Err(error),
        Err(_) => return Ok(false),
    };
    let begin = SEGMENT_HEADER_BYTES as u64 + u64::from(header.snapshot_bytes);
    let mut first = [0; HEADER_BYTES];
    let read = file.read_at(&mut first, begin)?;
    Ok(first[..read].iter().all(|byte| *byte == 0))
}

pub(crate) fn head(
    reader: &mut BlockReader<'_>,
    spec: &ScanSpec,
) -> Result<(SegmentHeader, Vec<u8>), ScanError> {
    let header =
        SegmentHeader::decode(reader.at(0, SEGMENT_HEADER_BYTES)?).map_err(ScanError::NoHeader)?;
    check_identity(&header, spec)?;
    let snapshot = reader.owned(SEGMENT_HEADER_BYTES as u64, header.snapshot_bytes as usize)?;
    if snapshot.len() < header.snapshot_bytes as usize || crc32c(&snapshot) != header.snapshot_crc {
        return Err(ScanError::BadSnapshot);
    }
    Ok((header, snapshot))
}

/// Scans a group's file. `visit` sees every valid batch's header and address, in order.
///
/// # Errors
/// [`ScanError`] if not even the first header can be used.
pub fn scan(
    file: &dyn ReadAt,
    spec: &ScanSpec,
    mut visit: impl FnMut(&BatchHeader, u64),
) -> Result<Scanned, ScanError> {
    let mut reader = BlockReader::new(file);
    let (header, snapshot) = head(&mut reader, spec)?;
    let size = u64::from(header.segment_size);
    let group_bytes = size * u64::from(header.segments);
    let mark = match read_mark(file, group_bytes) {
        // The record of a closed group tells all that a mark does.
        Err(_) if spec.limit.is_some() => None,
        mark => mark?,
    };
    let binding = mark.map_or(0, |m| m.binding_length(&spec.incarnation));
    // A mark is as true as the bytes it speaks of: within the incarnation, or for synced bytes.
    let trusted = if spec.verify_all {
        0
    } else {
        spec.limit.unwrap_or(binding)
    };

    let mut out = Scanned::begin(header, snapshot);
    let data_start = out.data_start;
    out.mark = mark;
    let limit = spec.limit.unwrap_or(group_bytes);
    loop {
        let at = out.end.address;
        if at >= limit {
            out.stop = if spec.limit.is_some() {
                Stop::Limit
            } else {
                Stop::EndOfData
            };
            break;
        }
        let segment = at / size;
        let left = (segment + 1) * size - at;
        // Where only headers are walked and batches are large, what lies between is not read.
        let large = at < trusted && at - data_start > out.batches * LARGE_BATCH;
        reader.block = if large { SMALL_BLOCK } else { BLOCK };
        let head = if left < HEADER_BYTES as u64 {
            &[][..]
        } else {
            reader.at(at, HEADER_BYTES)?
        };
        if head.len() < HEADER_BYTES || head.iter().all(|b| *b == 0) {
            match next_segment(&mut reader, &out, segment as u32 + 1)? {
                Next::Continue => {
                    out.segment_ends.push((at - segment * size) as u32);
                    out.end.address = (segment + 1) * size + SEGMENT_HEADER_BYTES as u64;
                    continue;
                }
                Next::Stop(stop) => {
                    out.stop = stop;
                    break;
                }
            }
        }
        match check_batch(&mut reader, &out, at, left, at < trusted)? {
            Ok(batch) => {
                visit(&batch, at);
                out.index.note(batch.base_ordinal, at, out.max_timestamp);
                out.max_timestamp = out.max_timestamp.max(batch.max_timestamp);
                out.batches += 1;
                out.end = Place {
                    address: at + batch.total_bytes as u64,
                    ordinal: batch.next_ordinal(),
                };
            }
            Err(stop) => {
                out.stop = stop;
                break;
            }
        }
    }
    out.damaged = out.end.address < binding.min(limit);
    Ok(out)
}

fn check_identity(header: &SegmentHeader, spec: &ScanSpec) -> Result<(), ScanError> {
    let lane = LaneKey {
        stream: header.stream,
        streamlet: header.streamlet,
        lane: header.lane,
    };
    let fits = spec.lane.is_none_or(|l| l == lane)
        && spec.group.is_none_or(|g| g == header.group)
        && spec.epoch.is_none_or(|e| e == header.epoch)
        && header.segment == 0;
    if fits {
        return Ok(());
    }
    let describe = |lane: Option<LaneKey>, group: Option<GroupId>, epoch: Option<Epoch>| {
        let lane = lane.map_or("any lane".into(), |l| l.to_string());
        let group = group.map_or("any".into(), |g| g.to_string());
        let epoch = epoch.map_or("any".into(), |e| e.to_string());
        format!("lane {lane} group {group} epoch {epoch}")
    };
    Err(ScanError::Foreign {
        expected: describe(spec.lane, spec.group, spec.epoch),
        found: describe(Some(lane), Some(header.group), Some(header.epoch)),
    })
}

pub(crate) enum Next {
    Continue,
    Stop(Stop),
}

pub(crate) fn next_segment(
    reader: &mut BlockReader<'_>,
    out: &Scanned,
    segment: u32,
) -> Result<Next, ScanError> {
    if segment >= out.header.segments {
        return Ok(Next::Stop(Stop::EndOfData));
    }
    let at = u64::from(segment) * u64::from(out.header.segment_size);
    let reason = match SegmentHeader::decode(reader.at(at, SEGMENT_HEADER_BYTES)?) {
        Err(LayoutError::Blank) => return Ok(Next::Stop(Stop::EndOfData)),
        Err(error) => error.to_string(),
        Ok(next) => {
            let same = next.stream == out.header.stream
                && next.streamlet == out.header.streamlet
                && next.lane == out.header.lane
                && next.group == out.header.group
                && next.epoch == out.header.epoch
                && next.segment == segment;
            if same && next.first_ordinal == out.end.ordinal {
                return Ok(Next::Continue);
            }
            format!(
                "it is segment {} of group {}, epoch {}, ordinal {}",
                next.segment, next.group, next.epoch, next.first_ordinal
            )
        }
    };
    Ok(Next::Stop(Stop::Segment { segment, reason }))
}

pub(crate) fn check_batch(
    reader: &mut BlockReader<'_>,
    out: &Scanned,
    at: u64,
    left: u64,
    trusted: bool,
) -> Result<Result<BatchHeader, Stop>, ScanError> {
    let header = match BatchHeader::peek(reader.at(at, HEADER_BYTES)?) {
        Ok(header) => header,
        Err(error) => return Ok(Err(Stop::Batch(error))),
    };
    // Where groups were made one, batches keep the epochs that they were written under.
    let is_earlier = out.header.generation > 0 && header.epoch < out.header.epoch;
    if header.epoch != out.header.epoch && !is_earlier {
        return Ok(Err(Stop::Epoch {
            expected: out.header.epoch,
            found: header.epoch,
        }));
    }
    if header.base_ordinal != out.end.ordinal {
        return Ok(Err(Stop::Ordinal {
            expected: out.end.ordinal,
            found: header.base_ordinal,
        }));
    }
    if header.total_bytes as u64 > left {
        let have = left as usize;
        return Ok(Err(Stop::Batch(BatchError::Truncated {
            need: header.total_bytes,
            have,
        })));
    }
    if trusted {
        return Ok(Ok(header));
    }
    match batch::verify(reader.at(at, header.total_bytes)?) {
        Ok(header) => Ok(Ok(header)),
        Err(error) => Ok(Err(Stop::Batch(error))),
    }
}

/// Reads the newest valid durable mark of a group's file.
///
/// # Errors
/// Whatever the store answers.
pub fn read_mark(file: &dyn ReadAt, group_bytes: u64) -> std::io::Result<Option<DurableMark>> {
    let mut slots = [[0u8; MARK_BYTES]; 2];
    for (index, slot) in slots.iter_mut().enumerate() {
        file.read_at(slot, group_bytes + index as u64 * MARK_SLOT_STRIDE)?;
    }
    Ok(DurableMark::newest(&slots[0], &slots[1]))
}

/// Writes a durable mark of a file into its slot.
///
/// # Errors
/// The store's; the slot may be torn then, and the other one still tells what it told.
pub fn write_mark(file: &dyn File, mark: &DurableMark, group_bytes: u64) -> std::io::Result<()> {
    let bytes = mark.encode();
    file.write_vectored_at(
        &[std::io::IoSlice::new(&bytes)],
        mark.slot_offset(group_bytes),
    )
}

/// How far behind its end a group is searched for a batch that should not be there.
const SEARCHED: u64 = 256 * 1024;

/// Looks behind the end of a group's valid data for more of the group. A group is written from its beginning to its
/// end, so what stands there tells damage from a write that a kill cut short; not after a loss of power, which keeps
/// any of the pages. Returns where it stands.
///
/// # Errors
/// Whatever the store answers.
pub fn find_more(file: &dyn ReadAt, scanned: &Scanned) -> std::io::Result<Option<u64>> {
    let readable = Readable(file);
    let file: &dyn ReadAt = match scanned.stop {
        // Zeros follow, so what cannot be read there is as likely as not nothing that was ever written.
        Stop::EndOfData => &readable,
        _ => file,
    };
    let header = &scanned.header;
    let size = u64::from(header.segment_size);
    let (end, above) = (scanned.end.address, scanned.end.ordinal);
    let segment = end / size;
    let here = find_batch(
        file,
        end + 1,
        (segment + 1) * size,
        header.epoch,
        Some(above),
    )?;
    if here.is_some() || header.ack == AckPolicy::Synced {
        // Segments of files that go around the page cache are written side by side.
        return Ok(here);
    }
    for next in segment + 1..u64::from(header.segments) {
        let at = next * size;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        file.read_at(&mut bytes, at)?;
        match SegmentHeader::decode(&bytes) {
            Err(LayoutError::Blank) => {}
            Ok(found) if u64::from(found.segment) == next && found.group == header.group => {
                if found.epoch == header.epoch && found.first_ordinal > above {
                    return Ok(Some(at));
                }
            }
            Ok(_) | Err(_) => {
                let found = find_batch(file, at, at + size, header.epoch, Some(above))?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
    }
    Ok(None)
}

/// A file in which sectors that cannot be read hold zeros. A read of which nothing can be read fails.
#[derive(Debug)]
struct Readable<'a>(&'a dyn ReadAt);

impl ReadAt for Readable<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let failed = match self.0.read_at(buf, offset) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => error,
            read => return read,
        };
        let (mut done, mut any) = (0, false);
        while done < buf.len() {
            let at = offset + done as u64;
            let sector = (SECTOR - at % SECTOR) as usize;
            let len = sector.min(buf.len() - done);
            let piece = &mut buf[done..done + len];
            match self.0.read_at(piece, at) {
                // The file ends here.
                Ok(read) if read < len => return Ok(done + read),
                Ok(_) => any = true,
                Err(_) => piece.fill(0),
            }
            done += len;
        }
        match any {
            true => Ok(done),
            false => Err(failed),
        }
    }

    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
}

/// What of a disk goes bad at once.
pub(crate) const SECTOR: u64 = 4096;

/// The first whole batch of `epoch`, with an ordinal above `above` where that is known, between the two addresses, which lie in one
/// segment; not far behind the first of them.
///
/// # Errors
/// Whatever the store answers.
pub fn find_batch(
    file: &dyn ReadAt,
    from: u64,
    until: u64,
    epoch: Epoch,
    above: Option<Ordinal>,
) -> std::io::Result<Option<u64>> {
    /// Where a batch's epoch and magic stand.
    const EPOCH: usize = 12;
    const MAGIC: usize = 16;
    let wanted = epoch.0.to_be_bytes();
    let mut reader = BlockReader::new(file);
    let searched = reader
        .at(from, until.saturating_sub(from).min(SEARCHED) as usize)?
        .to_vec();
    for (at, chunk) in (0..).step_by(BLANK).zip(searched.chunks(BLANK)) {
        // A batch may begin with zeros, but no further than to its epoch.
        let behind = &searched[at..searched.len().min(at + BLANK + MAGIC)];
        if behind.iter().all(|byte| *byte == 0) {
            continue;
        }
        for at in at..at + chunk.len() {
            let Some(head) = searched.get(at..at + HEADER_BYTES) else {
                return Ok(None);
            };
            if head[MAGIC] != 2 || head[EPOCH..MAGIC] != wanted {
                continue;
            }
            let Ok(header) = BatchHeader::peek(head) else {
                continue;
            };
            let place = from + at as u64;
            let bytes = header.total_bytes as u64;
            let near = above.is_none_or(|above| {
                (above + 1..=above.saturating_add(MAX_GROUP_ORDINALS))
                    .contains(&header.base_ordinal)
            });
            if near
                && place + bytes <= until
                && batch::verify(reader.at(place, header.total_bytes)?).is_ok()
            {
                return Ok(Some(place));
            }
        }
    }
    Ok(None)
}

/// Zeros passed over at once.
const BLANK: usize = 4096;

/// Sequential reads through one buffer; a short file reads as if it ended there.
pub(crate) struct BlockReader<'a> {
    file: &'a dyn ReadAt,
    /// Bytes read at once.
    block: usize,
    start: u64,
    buf: Vec<u8>,
}

impl<'a> BlockReader<'a> {
    pub(crate) fn new(file: &'a dyn ReadAt) -> Self {
        Self {
            file,
            block: BLOCK,
            start: 0,
            buf: Vec::new(),
        }
    }

    /// The `len` bytes at `at`, fewer only at the end of the file.
    pub(crate) fn at(&mut self, at: u64, len: usize) -> std::io::Result<&[u8]> {
        let end = at + len as u64;
        let have = self.start + self.buf.len() as u64;
        if at < self.start || end > have {
            // What is there of it is not read again: a batch as long as a block begins in every one.
            let kept = if (self.start..have).contains(&at) {
                let from = (at - self.start) as usize;
                self.buf.copy_within(from.., 0);
                self.buf.len() - from
            } else {
                0
            };
            self.start = at;
            let from = at + kept as u64;
            let mut read = self.fill(kept, len.max(self.block), from);
            if read.is_err() && self.block > len {
                // What was read ahead may lie in a sector that has gone bad and that nobody asks for.
                read = self.fill(kept, len, from);
            }
            let got = match read {
                Ok(got) => got,
                Err(error) => {
                    self.buf.clear();
                    return Err(error);
                }
            };
            self.buf.truncate(kept + got);
        }
        let from = (at - self.start) as usize;
        let to = (from + len).min(self.buf.len());
        Ok(&self.buf[from.min(to)..to])
    }

    /// Makes the buffer `len` bytes long, and reads what stands at `from` in the file behind the first `kept` of them.
    fn fill(&mut self, kept: usize, len: usize, from: u64) -> std::io::Result<usize> {
        self.buf.resize(len, 0);
        self.file.read_at(&mut self.buf[kept..], from)
    }

    /// As [`Self::at`], for a length that only the file's own bytes vouch for: no more is allocated
    /// than the file holds.
    fn owned(&mut self, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
        let there = usize::try_from(self.file.len()?.saturating_sub(at)).unwrap_or(usize::MAX);
        self.at(at, len.min(there)).map(<[u8]>::to_vec)
    }
}
