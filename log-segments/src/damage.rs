//! What the file of an open group tells against itself once its writer is gone: that more was in it than its valid data.
//!
//! A group is written from its beginning to its end, and a durable mark follows. So the end of a process leaves valid
//! data, at most one torn write behind it, and zeros. A loss of power keeps any of the pages that no sync has proven:
//! then marks alone tell.

use std::io;

use kera_protocol::ids::{Epoch, Incarnation};

use crate::io::ReadAt;
use crate::layout::{DurableMark, FOOTER_OFFSET, MARK_BYTES, MARK_SLOT_STRIDE};
use crate::scan::{Scanned, find_batch, find_more, read_mark};
use crate::spec::GroupSpec;

/// What became of bytes that were written and not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// The machine has run since they were written.
    Kept,
    /// It has started since, or that is not known: any of them may be gone.
    PerhapsLost,
}

/// What is wrong with a group's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDamage {
    /// Its durable mark speaks of bytes that are not there.
    BelowMark,
    /// It has no durable mark. A file that is made ahead of its group's record has one from its beginning.
    NoMark,
    /// More of the group stands behind where its valid data ends.
    MoreBehind,
}

impl FileDamage {
    /// For people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BelowMark => "damaged: the data ends below what was durable",
            Self::NoMark => {
                "damaged: the file was cut short or overwritten, its durable mark is gone"
            }
            Self::MoreBehind => {
                "damaged: more of the group stands behind where its valid data ends"
            }
        }
    }

    /// What is wrong with a file that was scanned.
    ///
    /// # Errors
    /// The store's. What cannot be read cannot be believed to be zeros.
    pub fn of(
        file: &dyn ReadAt,
        scanned: &Scanned,
        unsynced: Unsynced,
    ) -> io::Result<Option<Self>> {
        if scanned.damaged {
            return Ok(Some(Self::BelowMark));
        }
        if unsynced == Unsynced::PerhapsLost {
            return Ok(None);
        }
        if scanned.header.marked && scanned.mark.is_none() {
            return Ok(Some(Self::NoMark));
        }
        Ok(find_more(file, scanned)?.map(|_| Self::MoreBehind))
    }

    /// What is wrong with a file of a group of `epoch` that begins with no valid header; nothing, if it may have been
    /// made and never written. How it was cut is in `spec`, where that is known.
    ///
    /// # Errors
    /// As of [`of`](Self::of).
    pub fn of_headless(
        file: &dyn ReadAt,
        epoch: Epoch,
        incarnation: &Incarnation,
        spec: Option<&GroupSpec>,
        unsynced: Unsynced,
    ) -> io::Result<Option<Self>> {
        let len = file.len()?;
        let marks = marks(file, len, spec)?;
        let binds = |mark: &DurableMark| mark.binding_length(incarnation) > 0;
        if marks.iter().any(binds) {
            return Ok(Some(Self::BelowMark));
        }
        if unsynced == Unsynced::PerhapsLost {
            return Ok(None);
        }
        if marks.is_empty() {
            return Ok(Some(Self::NoMark));
        }
        // Segments of files that go around the page cache are written side by side.
        let until = spec.map_or(len, |spec| spec.segment_size.into());
        Ok(find_batch(file, 0, until, epoch, None)?.map(|_| Self::MoreBehind))
    }
}

/// The marks of a file without a header, which lie behind its last segment.
fn marks(file: &dyn ReadAt, len: u64, spec: Option<&GroupSpec>) -> io::Result<Vec<DurableMark>> {
    // The file ends with the room for both marks, with the second of them, or with the first.
    let behind = [
        FOOTER_OFFSET,
        MARK_SLOT_STRIDE + MARK_BYTES as u64,
        MARK_BYTES as u64,
    ];
    let ends = behind.iter().filter_map(|behind| len.checked_sub(*behind));
    let ends = ends.chain(spec.map(GroupSpec::group_bytes));
    let marks = ends.map(|end| read_mark(file, end));
    marks.filter_map(io::Result::transpose).collect()
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::io::{Io, OpenHow};
    use crate::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
    use crate::scan::{ScanSpec, scan, write_mark};
    use kera_protocol::ack::AckPolicy;
    use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
    use kera_protocol::ids::{GroupId, LaneId, StreamId, StreamletId};
    use std::io::IoSlice;

    const EPOCH: Epoch = Epoch(3);
    const SEGMENT: u64 = 4096;
    const GROUP: u64 = 2 * SEGMENT;

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            value: Some(b"some"),
            ..Default::default()
        };
        builder.push(&record).expect("a small record");
        let batch = builder.finish(Compression::None, ProducerStamp::NONE);
        let mut bytes = batch.expect("one record").to_vec();
        patch(&mut bytes, 0, EPOCH);
        bytes
    }

    /// A file without a header, with the mark and the bytes given.
    fn headless(mark: Option<DurableMark>, bytes: &[u8], at: u64) -> crate::io::FileRef {
        let disk = FaultIo::new(0);
        disk.create_dir_all("/g".as_ref()).expect("a directory");
        let file = disk.open("/g/1".as_ref(), OpenHow::CreateNew, false);
        let file = file.expect("a new file");
        file.set_len(GROUP + FOOTER_OFFSET).expect("room");
        if let Some(mark) = mark {
            write_mark(&*file, &mark, GROUP).expect("room");
        }
        let written = file.write_vectored_at(&[IoSlice::new(bytes)], at);
        written.expect("room");
        file
    }

    #[test]
    fn a_file_without_a_header_counts_as_never_written_only_if_nothing_tells_otherwise() {
        use FileDamage::{BelowMark, MoreBehind, NoMark};
        use Unsynced::{Kept, PerhapsLost};
        let here = Incarnation {
            store_id: uuid::Uuid::from_u128(1),
            boot_id: uuid::Uuid::from_u128(2),
        };
        let first = DurableMark::default();
        let written = DurableMark {
            written: 100,
            incarnation: here,
            ..first
        };
        let elsewhere = DurableMark {
            incarnation: Incarnation::default(),
            ..written
        };
        let synced = DurableMark {
            synced: 100,
            ..elsewhere
        };
        let (nothing, batch) = (Vec::new(), batch());
        let below = Some(BelowMark);
        for (mark, bytes, kept, lost) in [
            (None, &nothing, Some(NoMark), None),
            (Some(first), &nothing, None, None),
            (Some(first), &batch, Some(MoreBehind), None),
            (Some(elsewhere), &nothing, None, None),
            (Some(written), &nothing, below, below),
            (Some(synced), &nothing, below, below),
        ] {
            let file = headless(mark, bytes, 200);
            for (unsynced, expected) in [(Kept, kept), (PerhapsLost, lost)] {
                let found = FileDamage::of_headless(&*file, EPOCH, &here, None, unsynced);
                let found = found.expect("it is read");
                assert_eq!(found, expected, "{mark:?}, {unsynced:?}");
            }
        }
    }

    /// A file of which a part cannot be read.
    #[derive(Debug)]
    struct BadFrom(crate::io::FileRef, std::ops::Range<u64>);

    impl ReadAt for BadFrom {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            if offset < self.1.end && self.1.start < offset + buf.len() as u64 {
                return Err(io::Error::from_raw_os_error(5));
            }
            self.0.read_at(buf, offset)
        }

        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
    }

    #[test]
    fn a_bad_sector_behind_zeros_is_no_damage_and_hides_none_that_can_be_read() {
        const SECTOR: u64 = 4096;
        let header = SegmentHeader {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(0),
            lane: LaneId(0),
            group: GroupId(1),
            generation: 0,
            segment: 0,
            epoch: EPOCH,
            segment_size: 8 * SECTOR as u32,
            segments: 1,
            first_ordinal: 0,
            snapshot_bytes: 0,
            snapshot_crc: 0,
            created_ms: 1,
            ack: AckPolicy::Written,
            marked: true,
            in_order: true,
        };
        let group = u64::from(header.segment_size);
        let begin = SEGMENT_HEADER_BYTES as u64;
        let end = begin + batch().len() as u64;
        let mut behind = batch();
        patch(&mut behind, 5, EPOCH);
        for (more, stale, bad, expected) in [
            (None, None, None, Ok(None)),
            (None, None, Some(SECTOR..3 * SECTOR), Ok(None)),
            (
                Some(4 * SECTOR),
                None,
                Some(SECTOR..3 * SECTOR),
                Ok(Some(FileDamage::MoreBehind)),
            ),
            // What stands there is no more than what cannot be read.
            (Some(2 * SECTOR), None, Some(SECTOR..3 * SECTOR), Ok(None)),
            // Not zeros, so it is not known what was there.
            (None, Some(end), Some(SECTOR..3 * SECTOR), Err(())),
            // Nothing behind its data can be read.
            (None, None, Some(end + 61..u64::MAX), Err(())),
        ] {
            let file = headless(None, &header.encode(), 0);
            file.set_len(group + FOOTER_OFFSET).expect("room");
            let put = |bytes: &[u8], at| {
                let written = file.write_vectored_at(&[IoSlice::new(bytes)], at);
                written.expect("room");
            };
            put(&batch(), begin);
            if let Some(at) = more {
                put(&behind, at);
            }
            if let Some(at) = stale {
                put(&[7; 100], at);
            }
            write_mark(&*file, &DurableMark::default(), group).expect("room");
            let scanned = scan(&*file, &ScanSpec::default(), |_, _| {}).expect("a header");
            assert_eq!(scanned.end.address, end);
            let what = format!("{more:?} {stale:?} {bad:?}");
            let read = BadFrom(file, bad.unwrap_or(0..0));
            let found = FileDamage::of(&read, &scanned, Unsynced::Kept);
            assert_eq!(found.map_err(|_| ()), expected, "{what}");
        }
    }
}
