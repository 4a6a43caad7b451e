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
    use crate::scan::write_mark;
    use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
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
}
