//! A closed group put together from replicas of which none is whole: each batch is taken from any that has it whole.
//!
//! A batch proves itself by its checksum, its epoch and the ordinal that should follow. A batch that is whole nowhere
//! leaves a hole. The new file keeps its bytes, under a header that leads on to the next batch, so that readers meet the
//! damage there and nowhere else.

use kera_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use kera_protocol::ids::{Epoch, Ordinal};

use crate::check::CheckSpec;
use crate::io::ReadAt;
use crate::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::place::Place;
use crate::scan::{BlockReader, Next, SECTOR, ScanSpec, Scanned, check_batch, head, next_segment};

/// Bytes that are written at once.
const WRITTEN_AT_ONCE: usize = 1 << 20;
/// Bytes in which a batch is looked for at once; where they cannot be read, in stretches of a sector.
const SEARCHED_AT_ONCE: u64 = 64 << 10;

/// Records that are whole nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Where they begin.
    pub from: Place,
    /// The next whole batch, or the group's end.
    pub to: Place,
}

/// What was put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    /// In order; none if every batch was whole somewhere.
    pub holes: Vec<Hole>,
    /// Highest timestamp of the whole batches, `i64::MIN` if there is none.
    pub max_timestamp: i64,
}

/// Why a group cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// No replica has its first header and its lane snapshot whole.
    #[error("its beginning is whole on no replica")]
    NoHead,
    /// Behind this place no replica has anything that fits.
    #[error("no replica has anything whole behind byte {}, ordinal {}", .0.address, .0.ordinal)]
    NoEnd(Place),
    /// The new file cannot be written.
    #[error("writing failed: {0}")]
    Write(#[from] std::io::Error),
}

/// Puts the group together from `replicas`, and hands `write` the bytes of the new file with their addresses, in order.
/// Bytes that are not handed over are zeros. A replica that cannot be read somewhere is one that is not whole there.
///
/// # Errors
/// [`AssembleError`]; what was written counts for nothing then.
pub fn assemble(
    replicas: &[&dyn ReadAt],
    spec: &CheckSpec,
    write: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> Result<Assembled, AssembleError> {
    let mut readers: Vec<_> = replicas
        .iter()
        .map(|file| BlockReader::new(*file))
        .collect();
    let mut begins = readers.iter_mut().map(|reader| whole_head(reader, spec));
    let begin = begins
        .find_map(|begin| begin)
        .ok_or(AssembleError::NoHead)?;
    let (header, snapshot, begin) = begin;
    let mut sink = Sink {
        write,
        at: 0,
        bytes: begin,
    };
    let mut assembly = Assembly {
        readers,
        end: spec.end,
        state: Scanned::begin(header, snapshot),
        preferred: 0,
        holes: Vec::new(),
    };
    assembly.run(&mut sink)?;
    sink.flush()?;
    Ok(Assembled {
        holes: assembly.holes,
        max_timestamp: assembly.state.max_timestamp,
    })
}

/// The group's first header and its lane snapshot, with the bytes of both.
fn whole_head(
    reader: &mut BlockReader<'_>,
    spec: &CheckSpec,
) -> Option<(SegmentHeader, Vec<u8>, Vec<u8>)> {
    let identity = ScanSpec {
        group: Some(spec.group),
        epoch: Some(spec.epoch),
        ..ScanSpec::default()
    };
    let (header, snapshot) = head(reader, &identity).ok()?;
    let is_it = (header.stream, header.streamlet, header.generation)
        == (spec.stream, spec.streamlet, spec.generation);
    let mut bytes = reader.at(0, SEGMENT_HEADER_BYTES).ok()?.to_vec();
    bytes.extend_from_slice(&snapshot);
    is_it.then_some((header, snapshot, bytes))
}

struct Assembly<'a> {
    readers: Vec<BlockReader<'a>>,
    end: Place,
    /// How far it has come; what steps of a scan look at.
    state: Scanned,
    /// The replica that had the batch before, and so is likely to have the next.
    preferred: usize,
    holes: Vec<Hole>,
}

impl Assembly<'_> {
    fn run(&mut self, sink: &mut Sink<'_>) -> Result<(), AssembleError> {
        while self.state.end.address < self.end.address {
            let at = self.state.end;
            if let Some(batch) = self.take(sink, at)? {
                self.state.max_timestamp = self.state.max_timestamp.max(batch.max_timestamp);
                self.state.end = after(&batch, at.address);
            } else if let Some(header) = self.next_segment(at) {
                let address = (self.segment(at.address) + 1) * self.size();
                sink.push(address, &header)?;
                self.state.end.address = address + SEGMENT_HEADER_BYTES as u64;
            } else {
                let (batch, to) = self.hole(at)?;
                sink.push(at.address, &batch)?;
                self.state.end = to;
                // Two that touch are one.
                match self.holes.last_mut().filter(|last| last.to == at) {
                    Some(last) => last.to = to,
                    None => self.holes.push(Hole { from: at, to }),
                }
            }
        }
        match self.state.end == self.end {
            true => Ok(()),
            false => Err(AssembleError::NoEnd(self.state.end)),
        }
    }

    fn size(&self) -> u64 {
        u64::from(self.state.header.segment_size)
    }

    fn segment(&self, address: u64) -> u64 {
        address / self.size()
    }

    /// Where batches of the segment of `address` end at the latest.
    fn limit(&self, address: u64) -> u64 {
        // A segment is never filled to its last byte.
        let last = (self.segment(address) + 1) * self.size() - 1;
        last.min(self.end.address)
    }

    /// Whether a whole batch of the group stands at a place of replica `from`.
    fn whole(&mut self, from: usize, at: Place) -> Option<BatchHeader> {
        let left = self.limit(at.address).checked_sub(at.address)?;
        if left < HEADER_BYTES as u64 {
            return None;
        }
        let before = std::mem::replace(&mut self.state.end, at);
        let found = check_batch(
            &mut self.readers[from],
            &self.state,
            at.address,
            left,
            false,
        );
        self.state.end = before;
        let batch = found.ok()?.ok()?;
        (batch.next_ordinal() <= self.end.ordinal).then_some(batch)
    }

    fn anywhere(&mut self, at: Place) -> Option<(usize, BatchHeader)> {
        let count = self.readers.len();
        let order = (0..count).map(|step| (self.preferred + step) % count);
        let order: Vec<_> = order.collect();
        let mut found = order.into_iter().map(|from| (from, self.whole(from, at)));
        found.find_map(|(from, batch)| batch.map(|batch| (from, batch)))
    }

    /// Takes the next batch from a replica that has it whole.
    fn take(
        &mut self,
        sink: &mut Sink<'_>,
        at: Place,
    ) -> Result<Option<BatchHeader>, AssembleError> {
        let Some((from, batch)) = self.anywhere(at) else {
            return Ok(None);
        };
        self.preferred = from;
        // It was read just now, and is in the reader's buffer.
        let bytes = self.readers[from].at(at.address, batch.total_bytes)?;
        sink.push(at.address, bytes)?;
        Ok(Some(batch))
    }

    /// The header of the next segment, if the lane goes on there at `at`: as any replica has it, or as its first batch
    /// tells.
    fn next_segment(&mut self, at: Place) -> Option<Vec<u8>> {
        let next = self.segment(at.address) + 1;
        let address = next * self.size();
        if next >= u64::from(self.state.header.segments) || address >= self.end.address {
            return None;
        }
        let before = std::mem::replace(&mut self.state.end, at);
        let begins = |reader: &mut BlockReader<'_>, state: &Scanned| {
            let found = next_segment(reader, state, next as u32);
            let is_header = matches!(found, Ok(Next::Continue));
            let bytes = reader.at(address, SEGMENT_HEADER_BYTES).ok()?;
            is_header.then(|| bytes.to_vec())
        };
        let mut readers = self.readers.iter_mut();
        let named = readers.find_map(|reader| begins(reader, &self.state));
        self.state.end = before;
        if named.is_some() {
            return named;
        }
        let first = Place {
            address: address + SEGMENT_HEADER_BYTES as u64,
            ordinal: at.ordinal,
        };
        self.anywhere(first)?;
        let header = SegmentHeader {
            segment: next as u32,
            first_ordinal: at.ordinal,
            snapshot_bytes: 0,
            snapshot_crc: 0,
            ..self.state.header.clone()
        };
        Some(header.encode().to_vec())
    }

    /// What stands for the batches at `at` that are whole nowhere, and where whole ones follow.
    fn hole(&mut self, at: Place) -> Result<(Vec<u8>, Place), AssembleError> {
        for from in 0..self.readers.len() {
            if let Some(found) = self.led_over(from, at) {
                return Ok(found);
            }
        }
        let limit = self.limit(at.address);
        let to = self.next_whole(at, limit);
        let to = to.or_else(|| self.next_header(at, limit));
        let to = to.or_else(|| (limit == self.end.address).then_some(self.end));
        let to = to.ok_or(AssembleError::NoEnd(at))?;
        let bytes = self.readable(at.address, to.address);
        let batch = standing_for(bytes, at.ordinal, to.ordinal, self.state.header.epoch);
        let batch = batch.ok_or(AssembleError::NoEnd(at))?;
        Ok((batch, to))
    }

    /// The batch that replica `from` has at `at`, though damaged, if its header leads on to what follows.
    fn led_over(&mut self, from: usize, at: Place) -> Option<(Vec<u8>, Place)> {
        let left = self.limit(at.address).checked_sub(at.address)?;
        let before = std::mem::replace(&mut self.state.end, at);
        // What is trusted is judged by its header.
        let found = check_batch(&mut self.readers[from], &self.state, at.address, left, true);
        self.state.end = before;
        let batch = found.ok()?.ok()?;
        let to = after(&batch, at.address);
        let follows = to == self.end
            || to.ordinal <= self.end.ordinal
                && (self.anywhere(to).is_some() || self.next_segment(to).is_some());
        let bytes = self.readable_of(from, at.address, to.address);
        follows.then_some((bytes, to))
    }

    /// The nearest whole batch behind `at` in its segment, of any replica.
    fn next_whole(&mut self, at: Place, limit: u64) -> Option<Place> {
        let mut nearest = limit;
        let mut found = None;
        for from in 0..self.readers.len() {
            if let Some(place) = self.search(from, at, nearest) {
                nearest = place.address;
                found = Some(place);
            }
        }
        found
    }

    /// The first whole batch that replica `from` has behind `at` and before `limit`.
    fn search(&mut self, from: usize, at: Place, limit: u64) -> Option<Place> {
        let mut place = at.address + HEADER_BYTES as u64;
        let mut step = SEARCHED_AT_ONCE;
        while place + HEADER_BYTES as u64 <= limit {
            // Batches begin in the stretch, and their headers may end behind it.
            let until = (place / step + 1) * step;
            let bytes = until.min(limit) - place + HEADER_BYTES as u64 - 1;
            let bytes = bytes.min(limit - place) as usize;
            let searched = match self.readers[from].at(place, bytes) {
                Ok(searched) => searched.to_vec(),
                Err(_) if step > SECTOR => {
                    step = SECTOR;
                    continue;
                }
                // The sector behind may be the bad one.
                Err(_) => {
                    let sector = (until.min(limit) - place) as usize;
                    let read = self.readers[from].at(place, sector);
                    read.map(<[u8]>::to_vec).unwrap_or_default()
                }
            };
            for (offset, head) in searched.windows(HEADER_BYTES).enumerate() {
                let Ok(header) = BatchHeader::peek(head) else {
                    continue;
                };
                let place = Place {
                    address: place + offset as u64,
                    ordinal: header.base_ordinal,
                };
                let is_behind = (at.ordinal + 1..self.end.ordinal).contains(&place.ordinal);
                if is_behind && self.whole(from, place).is_some() {
                    return Some(place);
                }
            }
            if until.is_multiple_of(SEARCHED_AT_ONCE) {
                step = SEARCHED_AT_ONCE;
            }
            place = until;
        }
        None
    }

    /// Where the segment of `at` ends and the next one goes on, by its header at any replica.
    fn next_header(&mut self, at: Place, limit: u64) -> Option<Place> {
        let header = &self.state.header;
        let next = at.address / u64::from(header.segment_size) + 1;
        let address = next * u64::from(header.segment_size);
        if next >= u64::from(header.segments) || address >= self.end.address {
            return None;
        }
        let mut readers = self.readers.iter_mut();
        readers.find_map(|reader| {
            let bytes = reader.at(address, SEGMENT_HEADER_BYTES).ok()?;
            let found = SegmentHeader::decode(bytes).ok()?;
            let is_of_group = (found.stream, found.streamlet, found.group, found.epoch)
                == (header.stream, header.streamlet, header.group, header.epoch);
            let follows = (at.ordinal + 1..=self.end.ordinal).contains(&found.first_ordinal);
            let is_it = is_of_group && u64::from(found.segment) == next && follows;
            is_it.then_some(Place {
                address: limit,
                ordinal: found.first_ordinal,
            })
        })
    }

    /// What stands between two addresses at the first replica that can read it.
    fn readable(&mut self, from: u64, to: u64) -> Vec<u8> {
        let len = (to - from) as usize;
        let mut read = self
            .readers
            .iter_mut()
            .map(|reader| reader.at(from, len).map(<[u8]>::to_vec));
        let mut bytes = read.find_map(Result::ok).unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// The same of one replica, of which the header can be read.
    fn readable_of(&mut self, from: usize, begin: u64, to: u64) -> Vec<u8> {
        let len = (to - begin) as usize;
        let reader = &mut self.readers[from];
        let mut bytes = match reader.at(begin, len).map(<[u8]>::to_vec) {
            Ok(bytes) => bytes,
            Err(_) => reader
                .at(begin, HEADER_BYTES)
                .map(<[u8]>::to_vec)
                .unwrap_or_default(),
        };
        bytes.resize(len, 0);
        bytes
    }
}

/// Where the lane goes on behind a batch at `address`.
fn after(batch: &BatchHeader, address: u64) -> Place {
    Place {
        address: address + batch.total_bytes as u64,
        ordinal: batch.next_ordinal(),
    }
}

/// `bytes` under a header of nobody's batch that holds the ordinals and matches no checksum; `None` if no header can.
fn standing_for(
    mut bytes: Vec<u8>,
    first: Ordinal,
    next: Ordinal,
    epoch: Epoch,
) -> Option<Vec<u8>> {
    let ordinals = next.checked_sub(first).filter(|ordinals| *ordinals > 0)?;
    if ordinals > batch::MAX_EMPTY_ORDINALS || bytes.len() > batch::MAX_BATCH_BYTES {
        return None;
    }
    let header = batch::empty(first, ordinals, epoch);
    bytes.get_mut(..HEADER_BYTES)?.copy_from_slice(&header);
    // Its length, behind the ordinal, counts what follows it.
    let length = i32::try_from(bytes.len() - 12).ok()?;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    if batch::verify(&bytes).is_ok() {
        bytes[17] ^= 0xff;
    }
    Some(bytes)
}

/// Bytes that lie one behind the other are written together.
struct Sink<'a> {
    write: &'a mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
    at: u64,
    bytes: Vec<u8>,
}

impl Sink<'_> {
    fn push(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        if self.at + self.bytes.len() as u64 != at || self.bytes.len() >= WRITTEN_AT_ONCE {
            self.flush()?;
            self.at = at;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if !self.bytes.is_empty() {
            (self.write)(self.at, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

#[cfg(all(test, not(kera_shuttle)))]
#[path = "assemble_tests.rs"]
mod tests;
