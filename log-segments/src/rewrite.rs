//! A closed group's file written anew, with fewer batches: what compaction makes of a run of groups.
//!
//! The file is one like any other, of another generation. Its ordinals have no gaps that the lane did not have
//! before: where batches are gone, the batch before them stands for their ordinals, or an empty one does. So a scan, a
//! check and a copy of it prove what they prove of every closed group. Its batches keep their epochs, which are the
//! group's or lower.

use std::io::{Error, ErrorKind, IoSlice, Result};

use kera_protocol::ack::AckPolicy;
use kera_protocol::batch::{self, BatchError, BatchHeader, MAX_EMPTY_ORDINALS};
use kera_protocol::ids::{Epoch, Incarnation, Ordinal};

use crate::check::{CheckSpec, Progress, check};
use crate::footer::{Footer, SparseIndex};
use crate::io::{FileRef, Io, OpenHow};
use crate::layout::{DurableMark, FOOTER_OFFSET, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::place::Place;
use crate::spec::GroupSpec;
use crate::sync::Arc;

/// Bytes that are gathered before they are written.
const WRITTEN_AT_ONCE: usize = 1 << 20;
/// Bytes that are looked at in one step when the file is checked.
const CHECKED_AT_ONCE: u64 = 4 << 20;

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The group has no room for it.
    #[error("the group has no room for what is left of it")]
    Full,
    /// It does not follow what was written before.
    #[error("a batch that is to be written does not follow: {0}")]
    Batch(#[from] BatchError),
    /// The store refused.
    #[error(transparent)]
    Io(#[from] Error),
}

/// A batch that waits to learn how many ordinals behind it are gone.
struct Held {
    bytes: Vec<u8>,
    header: BatchHeader,
    /// Nobody needs its producer's sequence.
    is_free: bool,
}

/// Ordinals of which nothing is left.
#[derive(Clone, Copy)]
struct Gone {
    to: Ordinal,
    epoch: Epoch,
}

/// A group's file that is written anew.
pub struct Rewrite {
    io: Arc<dyn Io>,
    file: FileRef,
    header: SegmentHeader,
    spec: GroupSpec,
    /// Bytes for `unwritten_at` on, of one segment.
    unwritten: Vec<u8>,
    unwritten_at: u64,
    end: Place,
    held: Option<Held>,
    gone: Option<Gone>,
    segment_ends: Vec<u32>,
    index: SparseIndex,
    max_timestamp: i64,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Where it ends.
    pub end: Place,
    /// Address of the first batch.
    pub data_start: u64,
    /// Greatest timestamp, `i64::MIN` if there is none.
    pub max_timestamp: i64,
}

impl Rewrite {
    /// Makes the file of `spec`, which must not exist. It begins at the spec's first ordinal, with the lane's state
    /// there.
    ///
    /// # Errors
    /// The store's; there is no file then.
    pub fn begin(
        spec: GroupSpec,
        ack: AckPolicy,
        snapshot: &[u8],
        io: Arc<dyn Io>,
    ) -> Result<Self> {
        let header = SegmentHeader {
            stream: spec.lane.stream,
            streamlet: spec.lane.streamlet,
            lane: spec.lane.lane,
            group: spec.group,
            generation: spec.generation,
            segment: 0,
            epoch: spec.epoch,
            segment_size: spec.segment_size,
            segments: spec.segments,
            first_ordinal: spec.first_ordinal,
            snapshot_bytes: snapshot.len() as u32,
            snapshot_crc: batch::crc32c(snapshot),
            created_ms: spec.created_ms,
            ack,
            marked: true,
            in_order: false,
        };
        let file = io.open(&spec.path, OpenHow::CreateNew, false)?;
        let mut unwritten = header.encode().to_vec();
        unwritten.extend_from_slice(snapshot);
        let this = Self {
            end: Place {
                address: unwritten.len() as u64,
                ordinal: spec.first_ordinal,
            },
            unwritten,
            unwritten_at: 0,
            io,
            file,
            header,
            spec,
            held: None,
            gone: None,
            segment_ends: Vec::new(),
            index: SparseIndex::default(),
            max_timestamp: i64::MIN,
        };
        if let Err(error) = this.file.set_len(this.spec.group_bytes() + FOOTER_OFFSET) {
            this.give_up();
            return Err(error);
        }
        Ok(this)
    }

    /// The ordinals below `to` that were not written are gone, or never were; they were of `epoch`.
    ///
    /// # Errors
    /// [`RewriteError`].
    pub fn pass(&mut self, to: Ordinal, epoch: Epoch) -> std::result::Result<(), RewriteError> {
        if to <= self.next_ordinal() {
            return Ok(());
        }
        if self.gone.is_some_and(|gone| gone.epoch != epoch) {
            self.settle()?;
        }
        self.gone = Some(Gone { to, epoch });
        Ok(())
    }

    /// Writes a batch. If it `is_free`, nobody needs its producer's sequence any more.
    ///
    /// # Errors
    /// [`RewriteError`].
    pub fn push(&mut self, bytes: Vec<u8>, is_free: bool) -> std::result::Result<(), RewriteError> {
        let header = BatchHeader::peek(&bytes)?;
        if header.base_ordinal < self.next_ordinal() || header.epoch > self.spec.epoch {
            return Err(BatchError::Inconsistent("its ordinal or epoch is out of order").into());
        }
        self.pass(header.base_ordinal, header.epoch)?;
        self.settle()?;
        self.held = Some(Held {
            bytes,
            header,
            is_free,
        });
        Ok(())
    }

    /// After the last ordinal that was written or passed.
    fn next_ordinal(&self) -> Ordinal {
        match (&self.gone, &self.held) {
            (Some(gone), _) => gone.to,
            (None, Some(held)) => held.header.next_ordinal(),
            (None, None) => self.end.ordinal,
        }
    }

    /// Writes what is held back, and what stands for the ordinals behind it.
    fn settle(&mut self) -> std::result::Result<(), RewriteError> {
        let gone = self.gone.take();
        if let Some(mut held) = self.held.take() {
            let from = held.header.next_ordinal();
            if let Some(gone) = gone
                && held.is_free
                && held.header.epoch == gone.epoch
                && !held.header.is_transactional()
                && !held.header.is_control()
            {
                batch::extend(&mut held.bytes, gone.to - from)?;
            }
            self.place(&held.bytes)?;
        }
        let Some(gone) = gone else {
            return Ok(());
        };
        while self.end.ordinal < gone.to {
            let ordinals = (gone.to - self.end.ordinal).min(MAX_EMPTY_ORDINALS);
            self.place(&batch::empty(self.end.ordinal, ordinals, gone.epoch))?;
        }
        Ok(())
    }

    fn place(&mut self, bytes: &[u8]) -> std::result::Result<(), RewriteError> {
        let header = BatchHeader::peek(bytes)?;
        let size = u64::from(self.spec.segment_size);
        let segment = self.end.address / size;
        // As where groups are appended to: a segment is never filled to its last byte.
        if self.end.address % size + bytes.len() as u64 >= size {
            let next = segment + 1;
            let room = size - SEGMENT_HEADER_BYTES as u64;
            if next >= u64::from(self.spec.segments) || bytes.len() as u64 >= room {
                return Err(RewriteError::Full);
            }
            self.write()?;
            self.segment_ends.push((self.end.address % size) as u32);
            let begin = SegmentHeader {
                segment: next as u32,
                first_ordinal: self.end.ordinal,
                snapshot_bytes: 0,
                snapshot_crc: 0,
                ..self.header.clone()
            };
            self.unwritten_at = next * size;
            self.unwritten.extend_from_slice(&begin.encode());
            self.end.address = self.unwritten_at + SEGMENT_HEADER_BYTES as u64;
        }
        self.index
            .note(header.base_ordinal, self.end.address, self.max_timestamp);
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
        self.unwritten.extend_from_slice(bytes);
        self.end = Place {
            address: self.end.address + bytes.len() as u64,
            ordinal: header.next_ordinal(),
        };
        if self.unwritten.len() >= WRITTEN_AT_ONCE {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        self.file
            .write_vectored_at(&[IoSlice::new(&self.unwritten)], self.unwritten_at)?;
        self.unwritten_at += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }

    /// Everything below `to` was written or is gone, the last of it of `epoch`: the group ends there.
    ///
    /// # Errors
    /// [`RewriteError`].
    pub fn end_at(&mut self, to: Ordinal, epoch: Epoch) -> std::result::Result<(), RewriteError> {
        self.pass(to, epoch)?;
        self.settle()
    }

    /// Makes the file, which [ends](Self::end_at), durable with its name. All of it is read back and checked.
    /// `lane_state` is the lane's at its end.
    ///
    /// # Errors
    /// The store's, and `InvalidData` if what is read back is not what was written; the file does not count then.
    pub fn finish(&mut self, incarnation: &Incarnation, lane_state: Vec<u8>) -> Result<Rewritten> {
        self.write()?;
        let end = self.end;
        let footer = Footer {
            length: end.address,
            end_ordinal: end.ordinal,
            max_timestamp: self.max_timestamp,
            segment_ends: self.segment_ends.clone(),
            index: self.index.clone(),
            lane_state,
        };
        let group_bytes = self.spec.group_bytes();
        let at = group_bytes + FOOTER_OFFSET;
        self.file
            .write_vectored_at(&[IoSlice::new(&footer.encode())], at)?;
        self.file.sync_data()?;
        self.verify()?;
        let mark = DurableMark::default().then(end, end, *incarnation);
        self.file.write_vectored_at(
            &[IoSlice::new(&mark.encode())],
            mark.slot_offset(group_bytes),
        )?;
        self.file.sync_data()?;
        if let Some(dir) = self.spec.path.parent() {
            self.io.sync_dir(dir)?;
        }
        Ok(Rewritten {
            end,
            data_start: SEGMENT_HEADER_BYTES as u64 + u64::from(self.header.snapshot_bytes),
            max_timestamp: self.max_timestamp,
        })
    }

    /// Reads the file back and checks every batch of it.
    fn verify(&self) -> Result<()> {
        let spec = CheckSpec {
            stream: self.header.stream,
            streamlet: self.header.streamlet,
            group: self.header.group,
            epoch: self.header.epoch,
            end: self.end,
            generation: self.header.generation,
        };
        let mut from = Progress::default();
        loop {
            let checked = check(&*self.file, &spec, from, CHECKED_AT_ONCE)?;
            if let Some(wrong) = checked.wrong {
                let path = self.spec.path.display();
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    format!("{path} was written anew and is not what was written: {wrong}"),
                ));
            }
            if checked.to.place == self.end {
                return Ok(());
            }
            from = checked.to;
        }
    }

    /// Removes the file, which does not count.
    pub fn give_up(&self) {
        if let Err(error) = self.io.remove_file(&self.spec.path)
            && error.kind() != ErrorKind::NotFound
        {
            let path = self.spec.path.display();
            tracing::warn!(file = %path, %error, "a file that was not finished could not be removed; the next start removes it");
        }
    }
}
