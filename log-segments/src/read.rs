//! Reading a group: whole batches, from memory without a copy, else from the file.

use std::io::ErrorKind;
use std::ops::Range;

use bytes::Bytes;
use kera_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use kera_protocol::ids::{Epoch, Ordinal};

use crate::buffers::Buffer;
use crate::footer::Footer;
use crate::group::Group;
use crate::io::is_broken_file;
use crate::layout::{FOOTER_OFFSET, SEGMENT_HEADER_BYTES};
use crate::pool::ChunkReader;
use crate::scan::{self, ScanError};
use crate::steps::Steps;
use crate::sync::MutexGuard;
use crate::window::{Place, Window};

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadSpec {
    /// Address of a batch, or of a segment's end.
    pub from: u64,
    /// Nothing at or above this address is read: the durable head, or the recorded length.
    pub limit: u64,
    /// Nothing of a batch that begins at or above this ordinal is read.
    pub end_ordinal: Ordinal,
    /// Soft limit: at least one batch is returned if there is one.
    pub max_bytes: usize,
    /// Refuse to wait for the disk; see [`ReadError::WouldBlock`].
    pub cached_only: bool,
}

/// Whole batches, in order.
#[derive(Debug, Default)]
pub struct ReadOut {
    /// The batches' bytes; a batch may be split over two buffers.
    pub bufs: Vec<Bytes>,
    /// Bytes in all.
    pub bytes: usize,
    /// Batches in all.
    pub batches: usize,
    /// Where to go on.
    pub next: Place,
    /// Ordinal of the first batch returned.
    pub first_ordinal: Ordinal,
    /// Batches of transactions, or markers, are among them.
    pub transactional: bool,
}

/// Why a group could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes are not in memory or page cache; read again from a thread that may wait.
    #[error("bytes are on disk only")]
    WouldBlock,
    /// Bytes do not match their checksum. They are not served.
    #[error("{file} is damaged at byte {offset}{}: {reason}", expected(*ordinal))]
    Damaged {
        /// The group's file.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// Ordinal expected there; the greatest there is if none is known.
        ordinal: Ordinal,
        /// What does not fit.
        reason: String,
    },
    /// The store refused.
    #[error("reading {file} failed: {error}")]
    Io {
        /// The group's file.
        file: String,
        /// The store's answer.
        error: std::io::Error,
    },
}

/// Nothing tells which ordinal is expected at a place.
const UNKNOWN: Ordinal = Ordinal::MAX;

fn expected(ordinal: Ordinal) -> String {
    match ordinal {
        UNKNOWN => String::new(),
        ordinal => format!(", in the batch expected to hold ordinal {ordinal}"),
    }
}

/// What the system answers where a disk cannot read a place: `EIO`.
const BAD_SECTOR: i32 = 5;

impl ReadError {
    /// Whether the bytes at a place are wrong or the disk cannot read them, whatever is whole beside it.
    pub fn is_of_a_place(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::WouldBlock => false,
            Self::Io { error, .. } => error.raw_os_error() == Some(BAD_SECTOR),
        }
    }

    /// Whether reading again brings nothing: the bytes are damaged, their file is gone, no file or one that the
    /// file system cannot make out, or the disk cannot read them.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::WouldBlock => false,
            Self::Io { error, .. } => {
                error.kind() == std::io::ErrorKind::NotFound
                    || is_broken_file(error)
                    || error.raw_os_error() == Some(BAD_SECTOR)
            }
        }
    }
}

impl Group {
    /// Reads whole batches from `spec.from` on, within one segment.
    ///
    /// # Errors
    /// [`ReadError`]; damaged bytes are never returned.
    pub fn read(&self, spec: ReadSpec) -> Result<ReadOut, ReadError> {
        self.note_read();
        let (from, parts) = {
            let window = self.loaded_window(spec.cached_only)?;
            let (from, stop) = window.within(spec.from.max(self.data_start()));
            let stop = stop.min(spec.limit);
            if from >= stop {
                let next = Place {
                    address: from,
                    ordinal: spec.end_ordinal,
                };
                return Ok(ReadOut {
                    next,
                    ..Default::default()
                });
            }
            if from >= window.memory_start() {
                (from, Ok(window.parts(from, stop)))
            } else {
                // The rest may be in memory only: `memory` streams show it before it is written.
                (from, Err(stop.min(window.written.address)))
            }
        };
        match parts {
            Ok(parts) => self.read_memory(from, &Parts::new(parts), &spec),
            Err(stop) => self.read_file(from, stop, &spec),
        }
    }

    fn read_memory(&self, from: u64, parts: &Parts, spec: &ReadSpec) -> Result<ReadOut, ReadError> {
        let mut out = ReadOut {
            next: Place {
                address: from,
                ordinal: 0,
            },
            ..Default::default()
        };
        let mut taken = 0;
        while taken + HEADER_BYTES <= parts.len {
            let header = BatchHeader::peek(&parts.header_at(taken))
                .map_err(|e| self.damaged(from + taken as u64, out.next.ordinal, e.to_string()))?;
            if header.base_ordinal >= spec.end_ordinal || taken + header.total_bytes > parts.len {
                break;
            }
            if out.batches > 0 && taken + header.total_bytes > spec.max_bytes {
                break;
            }
            if out.batches == 0 {
                out.first_ordinal = header.base_ordinal;
            }
            out.transactional |= header.is_transactional();
            taken += header.total_bytes;
            out.batches += 1;
            out.next = Place {
                address: from + taken as u64,
                ordinal: header.next_ordinal(),
            };
        }
        out.bytes = taken;
        out.bufs = parts.slices(taken);
        Ok(out)
    }

    fn read_file(&self, from: u64, stop: u64, spec: &ReadSpec) -> Result<ReadOut, ReadError> {
        let room = usize::try_from(stop - from).unwrap_or(usize::MAX);
        let mut want = spec.max_bytes.max(HEADER_BYTES).min(room);
        loop {
            let buf = self.read_exact(from, want, spec.cached_only)?;
            let mut out = ReadOut {
                next: Place {
                    address: from,
                    ordinal: 0,
                },
                ..Default::default()
            };
            let mut need = None;
            while out.bytes < buf.len() {
                let rest = &buf[out.bytes..];
                match self.check_loaded(rest, out.next, out.batches == 0, stop) {
                    Ok(Loaded::Whole(header)) if header.base_ordinal >= spec.end_ordinal => break,
                    Ok(Loaded::Whole(header)) => {
                        if out.batches == 0 {
                            out.first_ordinal = header.base_ordinal;
                        }
                        out.transactional |= header.is_transactional();
                        out.bytes += header.total_bytes;
                        out.batches += 1;
                        out.next = Place {
                            address: from + out.bytes as u64,
                            ordinal: header.next_ordinal(),
                        };
                    }
                    Ok(Loaded::Part(bytes)) => {
                        need = Some(bytes);
                        break;
                    }
                    // What is whole before the damage is served; the next read meets it first.
                    Err(_) if out.batches > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            if let (0, Some(bytes)) = (out.batches, need) {
                want = bytes;
                continue;
            }
            if out.bytes > 0 {
                out.bufs.push(buf.into_bytes(out.bytes));
            }
            return Ok(out);
        }
    }

    /// Checks the batch at the start of `rest`, loaded from the file at `at`; `at.ordinal` is what
    /// should follow, unless it is the `first` that was read. `stop` is where the data ends.
    fn check_loaded(
        &self,
        rest: &[u8],
        at: Place,
        first: bool,
        stop: u64,
    ) -> Result<Loaded, ReadError> {
        if rest.len() < HEADER_BYTES && at.address + HEADER_BYTES as u64 <= stop {
            return Ok(Loaded::Part(HEADER_BYTES));
        }
        let header = BatchHeader::peek(rest)
            .map_err(|e| self.damaged(at.address, at.ordinal, e.to_string()))?;
        let follows = first || header.base_ordinal == at.ordinal;
        if !self.is_own_epoch(header.epoch)
            || header.base_ordinal < self.spec.first_ordinal
            || !follows
        {
            let reason = format!(
                "it belongs to epoch {}, ordinal {}",
                header.epoch, header.base_ordinal
            );
            return Err(self.damaged(at.address, at.ordinal, reason));
        }
        if at.address + header.total_bytes as u64 > stop {
            return Err(self.damaged(
                at.address,
                header.base_ordinal,
                "it runs past the end of the data".into(),
            ));
        }
        if header.total_bytes > rest.len() {
            return Ok(Loaded::Part(header.total_bytes));
        }
        batch::verify(rest)
            .map_err(|e| self.damaged(at.address, header.base_ordinal, e.to_string()))?;
        Ok(Loaded::Whole(header))
    }

    /// Whether a batch of an epoch may be the group's: where a job made groups one, batches keep the epochs that
    /// they were written under.
    pub(crate) fn is_own_epoch(&self, epoch: Epoch) -> bool {
        epoch == self.spec.epoch || (self.spec.generation > 0 && epoch < self.spec.epoch)
    }

    pub(crate) fn read_exact(
        &self,
        from: u64,
        want: usize,
        cached_only: bool,
    ) -> Result<Buffer, ReadError> {
        let file = self.file().map_err(|error| self.io_error(error))?;
        let mut buf = Buffer::take(want);
        let got = if cached_only {
            match file
                .try_read_cached(buf.bytes_mut(), from)
                .map_err(|error| self.io_error(error))?
            {
                Some(got) => got,
                None => return Err(ReadError::WouldBlock),
            }
        } else {
            file.read_at(buf.bytes_mut(), from)
                .map_err(|error| self.io_error(error))?
        };
        if got < want {
            if cached_only {
                return Err(ReadError::WouldBlock);
            }
            return Err(self.damaged(
                from + got as u64,
                UNKNOWN,
                "the file ends before the group does: it was cut short or replaced; put the group's own file back, or move this one away so that it is fetched from another replica".into(),
            ));
        }
        Ok(buf)
    }

    /// The place of the batch that holds `ordinal`, or the end if `ordinal` lies above it. `hint`
    /// spares the search when it is the address of the batch that begins with `ordinal`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn locate(
        &self,
        ordinal: Ordinal,
        hint: Option<u64>,
        cached_only: bool,
    ) -> Result<Place, ReadError> {
        let walked = self.walk(
            cached_only,
            hint.map(|address| Place { address, ordinal }),
            |index| index.floor_ordinal(ordinal),
            |header| header.next_ordinal() > ordinal,
        )?;
        match walked.damage {
            // Between the damage and the next place that is known nobody can tell what stands where.
            Some(damage) if walked.found.ordinal > ordinal => Err(damage),
            _ => Ok(walked.found),
        }
    }

    /// The place of the first batch that has ordinals at or above `from` and, by its header, a record
    /// at or after `timestamp`, or the end. What is passed over on the way is proven by its checksum.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn locate_time(
        &self,
        timestamp: i64,
        from: Ordinal,
        cached_only: bool,
    ) -> Result<Place, ReadError> {
        let walked = self.walk(
            cached_only,
            None,
            |index| {
                let by_time = index.floor_time(timestamp)?;
                let by_ordinal = index.floor_ordinal(from);
                Some(by_ordinal.map_or(by_time, |entry| {
                    if entry.address > by_time.address {
                        entry
                    } else {
                        by_time
                    }
                }))
            },
            |header| header.max_timestamp >= timestamp && header.next_ordinal() > from,
        )?;
        match walked.damage {
            Some(damage) => Err(damage),
            None => Ok(walked.found),
        }
    }

    /// Steps from where `floor` says on to a batch that is `found`, or the end.
    fn walk(
        &self,
        cached_only: bool,
        hint: Option<Place>,
        floor: impl Fn(&crate::footer::SparseIndex) -> Option<crate::footer::IndexEntry>,
        found: impl Fn(&BatchHeader) -> bool,
    ) -> Result<Walked, ReadError> {
        let (end, first) = {
            let window = self.loaded_window(cached_only)?;
            let at = floor(&window.index).map_or(self.start(), |e| Place {
                address: e.address,
                ordinal: e.ordinal,
            });
            (window.end, at)
        };
        if let Some(hint) = hint.filter(|h| h.address > first.address && h.address < end.address) {
            // Believed only if the batch that is sought begins there.
            if let Ok(Some((header, address))) = self.header_at(hint.address, cached_only)
                && self.is_own_epoch(header.epoch)
                && header.base_ordinal == hint.ordinal
            {
                let ordinal = hint.ordinal;
                return Ok(Walked {
                    found: Place { address, ordinal },
                    damage: None,
                });
            }
        }
        let mut steps = Steps::new(self, end, cached_only);
        let mut place = first;
        loop {
            place = match steps.meet(place) {
                Ok(None) => break,
                Ok(Some(met)) if found(&met.header) => {
                    place = met.at;
                    break;
                }
                Ok(Some(met)) => steps.over(&met)?,
                Err(error) => steps.pass(place, error)?,
            };
        }
        let found = match place.ordinal < end.ordinal {
            true => place,
            false => end,
        };
        Ok(Walked {
            found,
            damage: steps.damage,
        })
    }

    /// The header of the batch at `place`, its address and the place behind it; `None` at `end`, where the group ends.
    ///
    /// No checksum is looked at, and none covers a batch's ordinal: where a header does not fit what stands before it and
    /// where the group ends, one of them is damaged. To end there without a word would hide all that lies behind it.
    /// Where damage must not lead astray, [`Steps`] go.
    pub(crate) fn step(
        &self,
        place: Place,
        end: Place,
        cached_only: bool,
    ) -> Result<Option<(BatchHeader, u64, Place)>, ReadError> {
        if place.ordinal >= end.ordinal {
            return Ok(None);
        }
        let Some((header, address)) = self.header_at(place.address, cached_only)? else {
            let reason = "no batch follows, and the group goes on".to_owned();
            return Err(self.damaged(place.address, place.ordinal, reason));
        };
        let next = self.follows(place, &header, address, end)?;
        Ok(Some((header, address, next)))
    }

    /// Walks whole batches from `from` on, below the address `limit` and the ordinal `head`: at least
    /// one, if there is one, else at most `max_bytes` and `max_ordinals`. Returns where it ends.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn cut(
        &self,
        from: Place,
        limit: u64,
        head: Ordinal,
        max_bytes: u64,
        max_ordinals: u64,
    ) -> Result<Place, ReadError> {
        let last = self.loaded_window(false)?.end;
        let mut steps = Steps::new(self, last, false);
        let mut end = from;
        while end.address < limit {
            let over = match steps.meet(end) {
                Ok(Some(met)) => steps.over(&met),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            let next = match over {
                Ok(next) => next,
                // What is whole before the damage is walked; the next walk meets it first.
                Err(_) if end.address > from.address => break,
                Err(error) => return Err(error),
            };
            let over = next.address - from.address > max_bytes
                || next.ordinal - from.ordinal > max_ordinals;
            if next.address > limit || next.ordinal > head || (over && end.address > from.address) {
                break;
            }
            end = next;
        }
        Ok(end)
    }

    /// True if `ordinal` lies in this group.
    pub fn holds(&self, ordinal: Ordinal) -> bool {
        self.spec.first_ordinal <= ordinal && ordinal < self.end().ordinal
    }

    /// The last place the sparse index knows at or below `address`: a batch boundary.
    pub fn boundary_below(&self, address: u64) -> Option<Place> {
        let window = self.window.lock();
        let entries = window.index.entries();
        let after = entries.partition_point(|e| e.address <= address);
        after.checked_sub(1).map(|i| Place {
            address: entries[i].address,
            ordinal: entries[i].ordinal,
        })
    }

    /// Shows `visit` the header of every batch, in order.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn for_each_header(&self, mut visit: impl FnMut(&BatchHeader)) -> Result<(), ReadError> {
        let end = self.loaded_window(false)?.end;
        let mut at = self.start();
        while let Some((header, _, next)) = self.step(at, end, false)? {
            visit(&header);
            at = next;
        }
        Ok(())
    }

    /// Where the group's first batch begins; known once its window is loaded.
    pub(crate) fn start(&self) -> Place {
        Place {
            address: self.data_start(),
            ordinal: self.spec().first_ordinal,
        }
    }

    /// The header of the batch at `address`, stepping over the end of a segment.
    pub(crate) fn header_at(
        &self,
        address: u64,
        cached_only: bool,
    ) -> Result<Option<(BatchHeader, u64)>, ReadError> {
        let (at, parts) = {
            let window = self.loaded_window(cached_only)?;
            let (at, stop) = window.within(address);
            if at + HEADER_BYTES as u64 > stop {
                return Ok(None);
            }
            let parts =
                (at >= window.memory_start()).then(|| window.parts(at, at + HEADER_BYTES as u64));
            (at, parts)
        };
        let header = match parts {
            Some(parts) => BatchHeader::peek(&Parts::new(parts).header_at(0)),
            None => BatchHeader::peek(&self.read_exact(at, HEADER_BYTES, cached_only)?),
        };
        header
            .map(|h| Some((h, at)))
            .map_err(|e| self.damaged(at, UNKNOWN, e.to_string()))
    }

    /// The window with index and segment ends in it, loaded first if need be.
    pub(crate) fn loaded_window(
        &self,
        cached_only: bool,
    ) -> Result<MutexGuard<'_, Window>, ReadError> {
        loop {
            let window = self.window.lock();
            if window.loaded {
                return Ok(window);
            }
            drop(window);
            if cached_only {
                return Err(ReadError::WouldBlock);
            }
            // Looked at again above: an idle group may be unloaded meanwhile.
            self.load()?;
        }
    }

    /// Loads index and segment ends of a closed group, from its footer or, without one, by a scan.
    fn load(&self) -> Result<(), ReadError> {
        let end = self.end();
        let file = self.file().map_err(|error| self.io_error(error))?;
        let spec = scan::ScanSpec::closed(&self.spec, end);
        let unusable = |error| match error {
            ScanError::Io(error) => self.io_error(error),
            // Of this group there is no file: another has its name, as of an owner that died before it recorded it.
            foreign @ ScanError::Foreign { .. } => {
                self.io_error(std::io::Error::new(ErrorKind::NotFound, foreign))
            }
            other => self.damaged(0, self.spec.first_ordinal, other.to_string()),
        };
        if self.data_start() == 0 && end.address > 0 {
            let (header, _) = scan::read_head(&*file, &spec).map_err(unusable)?;
            let start = SEGMENT_HEADER_BYTES as u64 + u64::from(header.snapshot_bytes);
            self.set_data_start(start);
        }
        let (segment_ends, index, max) = match self.read_footer().ok().flatten() {
            Some(footer) => (footer.segment_ends, footer.index, footer.max_timestamp),
            None => {
                let scanned = scan::scan(&*file, &spec, |_, _| {}).map_err(unusable)?;
                if scanned.end.address < end.address {
                    return Err(self.damaged(
                        scanned.end.address,
                        scanned.end.ordinal,
                        scanned.stop.to_string(),
                    ));
                }
                (scanned.segment_ends, scanned.index, scanned.max_timestamp)
            }
        };
        let mut window = self.window.lock();
        window.segment_ends = segment_ends;
        window.index = index;
        window.max_timestamp = max;
        window.loaded = true;
        Ok(())
    }

    /// The footer of a closed group, if there is a whole one for its length.
    ///
    /// # Errors
    /// The store's, if the file cannot be read. What the footer tells, a scan finds as well.
    pub fn read_footer(&self) -> std::io::Result<Option<Footer>> {
        let footer = Footer::find(&*self.file()?, self.spec.group_bytes())?;
        Ok(footer.filter(|footer| footer.length == self.end().address))
    }

    /// Writes the footer of a frozen, fully written group.
    ///
    /// # Errors
    /// Whatever the store answers; the group can do without.
    pub fn write_footer(&self, lane_state: Vec<u8>) -> std::io::Result<()> {
        let footer = {
            let window = self.window.lock();
            Footer {
                length: window.end.address,
                end_ordinal: window.end.ordinal,
                max_timestamp: window.max_timestamp,
                segment_ends: window.segment_ends.clone(),
                index: window.index.clone(),
                lane_state,
            }
        };
        let at = self.spec.group_bytes() + FOOTER_OFFSET;
        self.file()?
            .write_vectored_at(&[std::io::IoSlice::new(&footer.encode())], at)
    }

    /// Drops index and memory of an idle closed group; the next read loads it again.
    pub fn unload(&self) {
        let mut window = self.window.lock();
        if self.lane_head().is_none() && window.loaded {
            window.loaded = false;
            window.index = Default::default();
            window.segment_ends = Vec::new();
            window.slots.clear();
        }
    }

    pub(crate) fn damaged(&self, offset: u64, ordinal: Ordinal, reason: String) -> ReadError {
        ReadError::Damaged {
            file: self.spec.path.display().to_string(),
            offset,
            ordinal,
            reason,
        }
    }

    fn io_error(&self, error: std::io::Error) -> ReadError {
        ReadError::Io {
            file: self.spec.path.display().to_string(),
            error,
        }
    }
}

/// Where a walk has come to.
struct Walked {
    /// What was sought, or the group's end.
    found: Place,
    /// The first damage on the way.
    damage: Option<ReadError>,
}

/// What stands at the start of bytes loaded from a file.
enum Loaded {
    /// A whole batch, its checksum checked.
    Whole(BatchHeader),
    /// The beginning of a batch of so many bytes, or of its header.
    Part(usize),
}

/// Slices of chunks laid end to end.
struct Parts {
    parts: Vec<(ChunkReader, Range<usize>)>,
    len: usize,
}

impl Parts {
    fn new(parts: Vec<(ChunkReader, Range<usize>)>) -> Self {
        let len = parts.iter().map(|(_, range)| range.len()).sum();
        Self { parts, len }
    }

    /// The 61 bytes at `at`, which may straddle chunks.
    fn header_at(&self, mut at: usize) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut filled = 0;
        for (chunk, range) in &self.parts {
            if at >= range.len() {
                at -= range.len();
                continue;
            }
            let take = (range.len() - at).min(HEADER_BYTES - filled);
            let start = range.start + at;
            out[filled..filled + take].copy_from_slice(chunk.bytes(start..start + take));
            filled += take;
            at = 0;
            if filled == HEADER_BYTES {
                break;
            }
        }
        out
    }

    fn slices(&self, mut bytes: usize) -> Vec<Bytes> {
        let mut out = Vec::with_capacity(self.parts.len());
        for (chunk, range) in &self.parts {
            let take = range.len().min(bytes);
            if take == 0 {
                break;
            }
            out.push(chunk.slice(range.start..range.start + take));
            bytes -= take;
        }
        out
    }
}
