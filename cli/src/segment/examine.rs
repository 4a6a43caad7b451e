//! Reads a whole group file and checks everything that can be checked without a broker.

use std::path::Path;

use kera_log_segments::footer::Footer;
use kera_log_segments::io::{EngineKind, File, OpenHow, boot_id, open_engine};
use kera_log_segments::layout::{
    DurableMark, LayoutError, MARK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use kera_log_segments::scan::{ScanSpec, Scanned, Stop, read_mark, scan};
use kera_protocol::batch::{BatchHeader, MAX_BATCH_BYTES, validate_records};
use kera_protocol::ids::Incarnation;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::rfc3339;

/// Compressed batches are opened to this size at most.
const LARGEST_UNPACKED: usize = 16 * MAX_BATCH_BYTES;

/// Bytes of a file without a header that are looked at together.
const LOOK: usize = 1 << 20;

/// What was found in a file.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Examined {
    Group(Box<Examination>),
    Ahead(AheadView),
}

/// A file that a broker made for a group to come, and in which nothing is written: it does not tell whose it is.
#[derive(Debug, Serialize)]
pub(super) struct AheadView {
    pub(super) file: String,
    pub(super) file_bytes: u64,
    pub(super) state: State,
}

/// What a group file holds.
#[derive(Debug, Serialize)]
pub(super) struct Examination {
    pub(super) file: String,
    pub(super) file_bytes: u64,
    pub(super) stream: String,
    pub(super) streamlet: u32,
    pub(super) lane: u32,
    pub(super) group: u64,
    pub(super) generation: u32,
    pub(super) epoch: u32,
    /// What acknowledgements promised when the group was begun.
    pub(super) ack: String,
    pub(super) segment_size: u32,
    pub(super) segments_at_most: u32,
    pub(super) snapshot_bytes: u32,
    pub(super) first_ordinal: u64,
    pub(super) end_ordinal: u64,
    pub(super) end_address: u64,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) segments: Vec<SegmentView>,
    pub(super) mark: Option<MarkView>,
    pub(super) footer: Option<FooterView>,
    pub(super) state: State,
    /// What is wrong, when the state is not sound.
    pub(super) fault: Option<Fault>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) listed: Vec<BatchView>,
}

/// Whether the bytes are what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Everything checks out.
    Sound,
    /// Made ahead of its use: nothing is written yet.
    Ahead,
    /// Bytes at the end that are no whole batch; nothing shows that they ever were.
    Torn,
    /// Bytes known to have been whole are not.
    Damaged,
}

/// The first thing wrong.
#[derive(Debug, Serialize)]
pub(super) struct Fault {
    /// Offset in the file of the batch or header that does not check out: its first byte is the
    /// first bad one.
    pub(super) offset: u64,
    pub(super) segment: u64,
    pub(super) position: u64,
    /// The ordinal the batch there should have.
    pub(super) ordinal: u64,
    /// Its number in the file, from 0.
    pub(super) batch: u64,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct SegmentView {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) first_ordinal: u64,
    pub(super) created: String,
    pub(super) batches: u64,
    pub(super) records: u64,
    /// Where its valid data ends, from its start.
    pub(super) used: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct MarkView {
    pub(super) sequence: u64,
    pub(super) written: u64,
    pub(super) written_ordinal: u64,
    pub(super) synced: u64,
    pub(super) synced_ordinal: u64,
    /// Whether `written` still means anything: the machine has not restarted since.
    pub(super) same_boot: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct FooterView {
    pub(super) length: u64,
    pub(super) end_ordinal: u64,
    pub(super) index_entries: usize,
    pub(super) lane_state_bytes: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct BatchView {
    pub(super) offset: u64,
    pub(super) segment: u64,
    pub(super) position: u64,
    pub(super) base_ordinal: u64,
    pub(super) records: u32,
    pub(super) bytes: usize,
    pub(super) epoch: u32,
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) base_sequence: i32,
    pub(super) compression: String,
    pub(super) max_timestamp: String,
    pub(super) crc: String,
}

impl Examined {
    /// True if nothing is wrong with the file.
    pub(super) fn is_sound(&self) -> bool {
        match self {
            Self::Group(found) => found.state == State::Sound,
            Self::Ahead(_) => true,
        }
    }
}

/// Reads the file; lists at most `limit` batches.
pub(super) fn examine(path: &Path, limit: usize) -> Result<Examined, Failure> {
    let shown = path.display();
    let failed = |error: &dyn std::fmt::Display| Failure::message(format!("{shown}: {error}"));
    if path.is_dir() {
        return Err(failed(
            &"it is a directory; name files in it, such as 1.0.log below the data directory",
        ));
    }
    let engine = open_engine(EngineKind::Blocking);
    let file = engine
        .open(path, OpenHow::ReadOnly, false)
        .map_err(|error| {
            failed(&format_args!(
                "cannot open it: {error}; check path and permissions"
            ))
        })?;
    let file = file.as_ref();
    let unreadable = |error: std::io::Error| failed(&format_args!("cannot read it: {error}"));
    let file_bytes = file.len().map_err(unreadable)?;
    let header = match read_header(file, 0) {
        Ok(header) => header,
        Err(LayoutError::Blank) if is_ahead(file).map_err(unreadable)? => {
            return Ok(Examined::Ahead(AheadView {
                file: shown.to_string(),
                file_bytes,
                state: State::Ahead,
            }));
        }
        Err(error) => {
            return Err(failed(&format_args!(
                "it does not begin like a group's file: {error}; name a file such as 1.0.log below the data directory"
            )));
        }
    };
    let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
    let mark = read_mark(file, group_bytes).map_err(unreadable)?;
    let incarnation = Incarnation {
        store_id: mark
            .map(|mark| mark.incarnation.store_id)
            .unwrap_or_default(),
        boot_id: boot_id(),
    };
    let spec = ScanSpec {
        incarnation,
        verify_all: true,
        ..ScanSpec::default()
    };

    let size = u64::from(header.segment_size);
    let mut walk = Walk {
        size,
        limit,
        ..Walk::default()
    };
    let scanned =
        scan(file, &spec, |batch, at| walk.visit(batch, at)).map_err(|error| failed(&error))?;
    let bad_records = check_records(file, &walk.places).map_err(unreadable)?;
    // It repeats the group's length; whether the data reaches it is judged later.
    let footer = Footer::find(file, group_bytes).map_err(unreadable)?;
    let (state, fault) = judge(file, &scanned, footer.as_ref(), bad_records).map_err(unreadable)?;

    Ok(Examined::Group(Box::new(Examination {
        file: shown.to_string(),
        file_bytes,
        stream: header.stream.to_string(),
        streamlet: header.streamlet.0,
        lane: header.lane.0,
        group: header.group.0,
        generation: header.generation,
        epoch: header.epoch.0,
        ack: format!("{:?}", header.ack).to_lowercase(),
        segment_size: header.segment_size,
        segments_at_most: header.segments,
        snapshot_bytes: header.snapshot_bytes,
        first_ordinal: header.first_ordinal,
        end_ordinal: scanned.end.ordinal,
        end_address: scanned.end.address,
        batches: scanned.batches,
        records: walk.records.iter().map(|(_, records)| records).sum(),
        segments: segments(file, &scanned, &walk, size),
        mark: mark.map(|mark| MarkView {
            sequence: mark.sequence,
            written: mark.written,
            written_ordinal: mark.written_ordinal,
            synced: mark.synced,
            synced_ordinal: mark.synced_ordinal,
            same_boot: mark.incarnation.boot_id == incarnation.boot_id,
        }),
        footer: footer.map(|footer| FooterView {
            length: footer.length,
            end_ordinal: footer.end_ordinal,
            index_entries: footer.index.entries().len(),
            lane_state_bytes: footer.lane_state.len(),
        }),
        state,
        fault,
        listed: walk.listed,
    })))
}

/// True if a file without a header holds what a broker makes ahead of a group's use: a durable mark behind the room for
/// segments, which says that nothing was written, and else zeros. A file whose header was lost has another mark or
/// more bytes; one without a mark was cut short.
fn is_ahead(file: &dyn File) -> std::io::Result<bool> {
    let Some(at) = first_written(file, 0)? else {
        return Ok(false);
    };
    let mut slot = [0; MARK_BYTES];
    let read = file.read_at(&mut slot, at)?;
    let mark = DurableMark::decode(&slot[..read]);
    let is_first = mark.is_ok_and(|mark| mark == DurableMark::default());
    Ok(is_first && first_written(file, at + MARK_BYTES as u64)?.is_none())
}

/// Where the first byte at or after `from` is that is not zero.
fn first_written(file: &dyn File, mut from: u64) -> std::io::Result<Option<u64>> {
    let mut bytes = vec![0; LOOK];
    loop {
        let read = file.read_at(&mut bytes, from)?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(found) = bytes[..read].iter().position(|byte| *byte != 0) {
            return Ok(Some(from + found as u64));
        }
        from += read as u64;
    }
}

/// What the scan passes by.
#[derive(Default)]
struct Walk {
    size: u64,
    limit: usize,
    /// Offset, length and first ordinal of every batch.
    places: Vec<(u64, usize, u64)>,
    /// Batches and records of each segment.
    records: Vec<(u64, u64)>,
    listed: Vec<BatchView>,
}

impl Walk {
    fn visit(&mut self, batch: &BatchHeader, at: u64) {
        let segment = at / self.size;
        let index = usize::try_from(segment).unwrap_or(usize::MAX);
        if self.records.len() <= index {
            self.records.resize(index + 1, (0, 0));
        }
        self.records[index].0 += 1;
        self.records[index].1 += u64::from(batch.record_count);
        self.places
            .push((at, batch.total_bytes, batch.base_ordinal));
        if self.listed.len() < self.limit {
            self.listed.push(BatchView {
                offset: at,
                segment,
                position: at % self.size,
                base_ordinal: batch.base_ordinal,
                records: batch.record_count,
                bytes: batch.total_bytes,
                epoch: batch.epoch.0,
                producer_id: batch.producer_id,
                producer_epoch: batch.producer_epoch,
                base_sequence: batch.base_sequence,
                compression: batch.compression().map_or_else(
                    |error| error.to_string(),
                    |codec| format!("{codec:?}").to_lowercase(),
                ),
                max_timestamp: u64::try_from(batch.max_timestamp)
                    .map(rfc3339)
                    .unwrap_or_default(),
                crc: format!("{:08x}", batch.crc),
            });
        }
    }
}

fn read_header(file: &dyn File, at: u64) -> Result<SegmentHeader, LayoutError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    // What cannot be read is not there; the scan, which comes next, says why.
    let read = file.read_at(&mut bytes, at).unwrap_or(0);
    SegmentHeader::decode(&bytes[..read])
}

/// Decodes every record of the batches whose checksums were found good: a checksum only says that
/// the bytes are those that were sent.
fn check_records(file: &dyn File, places: &[(u64, usize, u64)]) -> std::io::Result<Option<Fault>> {
    let mut batch = Vec::new();
    let mut scratch = Vec::new();
    for (number, (at, length, ordinal)) in places.iter().enumerate() {
        batch.resize(*length, 0);
        let read = file.read_at(&mut batch, *at)?;
        if let Err(error) = validate_records(&batch[..read], LARGEST_UNPACKED, &mut scratch) {
            return Ok(Some(Fault {
                offset: *at,
                segment: 0,
                position: 0,
                ordinal: *ordinal,
                batch: number as u64,
                reason: error.to_string(),
            }));
        }
    }
    Ok(None)
}

fn judge(
    file: &dyn File,
    scanned: &Scanned,
    footer: Option<&Footer>,
    bad_records: Option<Fault>,
) -> std::io::Result<(State, Option<Fault>)> {
    let size = u64::from(scanned.header.segment_size);
    let place = |fault: Fault| Fault {
        segment: fault.offset / size,
        position: fault.offset % size,
        ..fault
    };
    if let Some(fault) = bad_records {
        return Ok((State::Damaged, Some(place(fault))));
    }
    let at = scanned.end.address;
    let fault = |reason: String| {
        let offset = match scanned.stop {
            // A segment's header is at its start, not where the batches before it end.
            Stop::Segment { segment, .. } => u64::from(segment) * size,
            _ => at,
        };
        place(Fault {
            offset,
            segment: 0,
            position: 0,
            ordinal: scanned.end.ordinal,
            batch: scanned.batches,
            reason,
        })
    };
    let short_of_footer = footer.is_some_and(|footer| footer.length > at);
    if scanned.damaged || short_of_footer {
        let reason = match (&scanned.stop, footer) {
            (Stop::EndOfData, Some(footer)) if short_of_footer => {
                format!(
                    "the data ends here, the footer says it ends at {}",
                    footer.length
                )
            }
            (Stop::EndOfData, _) => {
                "the data ends here, but more is recorded as durable".to_owned()
            }
            (stop, _) => stop.to_string(),
        };
        return Ok((State::Damaged, Some(fault(reason))));
    }
    let closed_here = footer.is_some_and(|footer| footer.length == at);
    if closed_here || matches!(scanned.stop, Stop::EndOfData | Stop::Limit) {
        return Ok((State::Sound, None));
    }
    let whole_batch_follows = finds_later_batch(file, scanned)?;
    let state = if whole_batch_follows {
        State::Damaged
    } else {
        State::Torn
    };
    Ok((state, Some(fault(scanned.stop.to_string()))))
}

/// Whether, behind the first bad byte, a whole batch of the same epoch and a later ordinal stands
/// in the same segment: then the bad bytes are no torn end.
fn finds_later_batch(file: &dyn File, scanned: &Scanned) -> std::io::Result<bool> {
    let size = u64::from(scanned.header.segment_size);
    let at = scanned.end.address;
    let left = usize::try_from(size - at % size).unwrap_or(0);
    let mut rest = vec![0; left];
    let read = file.read_at(&mut rest, at)?;
    let rest = &rest[..read];
    // The length field may be what is bad, so every offset is tried; the header's own rules sort
    // out nearly all of them before a checksum is computed.
    Ok((1..rest.len()).any(|offset| {
        let bytes = &rest[offset..];
        BatchHeader::peek(bytes).is_ok_and(|header| {
            header.epoch == scanned.header.epoch
                && header.base_ordinal > scanned.end.ordinal
                && header.base_ordinal - scanned.end.ordinal <= size
                && kera_protocol::batch::verify(bytes).is_ok()
        })
    }))
}

fn segments(file: &dyn File, scanned: &Scanned, walk: &Walk, size: u64) -> Vec<SegmentView> {
    let reached = scanned.end.address.div_ceil(size).max(1);
    (0..reached)
        .filter_map(|index| {
            let header = read_header(file, index * size).ok()?;
            let (batches, records) = walk
                .records
                .get(usize::try_from(index).ok()?)
                .copied()
                .unwrap_or_default();
            let used = match scanned.segment_ends.get(usize::try_from(index).ok()?) {
                Some(end) => u64::from(*end),
                None => scanned.end.address.saturating_sub(index * size).min(size),
            };
            Some(SegmentView {
                segment: header.segment,
                offset: index * size,
                first_ordinal: header.first_ordinal,
                created: rfc3339(header.created_ms),
                batches,
                records,
                used,
            })
        })
        .collect()
}

#[cfg(test)]
#[path = "examine_tests.rs"]
mod tests;
