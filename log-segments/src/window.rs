//! The part of a group that is in memory, and how far its bytes have come.
//!
//! A window is guarded by one leaf lock per group: appenders add to it after they have copied and
//! patched, pumps take unwritten ranges from it, readers take slices. Nothing is copied under it.

use std::collections::VecDeque;
use std::ops::Range;

use crate::footer::SparseIndex;
use crate::group::Group;
use crate::layout::SEGMENT_HEADER_BYTES;
use crate::pool::ChunkReader;
use crate::sync::Weak;

pub use crate::place::Place;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) base: u64,
    pub(crate) reader: ChunkReader,
}

impl Slot {
    fn end(&self) -> u64 {
        self.base + self.reader.len() as u64
    }
}

/// A contiguous run of bytes of one segment, to be written at `address`.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) address: u64,
    pub(crate) parts: Vec<(ChunkReader, Range<usize>)>,
}

/// Whether a group takes appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Filling {
    /// It does.
    Open,
    /// No more.
    Frozen,
    /// No more, and it ends below what was appended.
    Cut,
}

/// How much of a group is durable in the metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordStage {
    /// Nothing: none of its bytes counts.
    Awaited,
    /// That there is this group.
    Open,
    /// Its close.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) segment_size: u64,
    /// Chunks in order of address; runs of one segment are gapless.
    pub(crate) slots: VecDeque<Slot>,
    /// Where batches of finished segments end.
    pub(crate) segment_ends: Vec<u32>,
    pub(crate) index: SparseIndex,
    pub(crate) max_timestamp: i64,
    /// After the last byte appended.
    pub(crate) end: Place,
    /// Written to the file (page cache, or device for direct files).
    pub(crate) written: Place,
    /// Synced to the device.
    pub(crate) synced: Place,
    /// Held by all replicas, of a group that has others than its file.
    pub(crate) replicated: Place,
    /// `segment_ends` and `index` are those of the group; false for a closed group until first use.
    pub(crate) loaded: bool,
    /// The appender holds no chunk: what is written need not stay.
    pub(crate) let_go: bool,
    pub(crate) filling: Filling,
    pub(crate) record: RecordStage,
    /// A sync may have failed on what is written and not synced up to here: the page cache shows it, and the device may
    /// lack it whatever a mere sync says. It must be written once more.
    pub(crate) unproven: u64,
    /// How often that was so. A sync that began before the last time proves nothing.
    pub(crate) doubts: u64,
    /// The lane's next group, which is written once all of this one is.
    pub(crate) after: Weak<Group>,
    /// A write failed: bytes above `written` will never be durable.
    pub(crate) failed: Option<(std::io::ErrorKind, Option<i32>)>,
}

impl Window {
    /// A group without chunks that ends at `end`, all of it written and synced, open and loaded.
    pub(crate) fn new(segment_size: u64, end: Place) -> Self {
        Self {
            segment_size,
            slots: VecDeque::new(),
            segment_ends: Vec::new(),
            index: SparseIndex::default(),
            max_timestamp: i64::MIN,
            end,
            written: end,
            synced: end,
            replicated: end,
            loaded: true,
            let_go: false,
            filling: Filling::Open,
            record: RecordStage::Awaited,
            failed: None,
            unproven: 0,
            doubts: 0,
            after: Weak::new(),
        }
    }

    /// Ends the group at `place`, a batch boundary at or below `written`: nothing above counts.
    pub(crate) fn cut(&mut self, place: Place) {
        self.filling = Filling::Cut;
        self.failed = None;
        self.end = place;
        self.written = place;
        self.doubt();
        if self.synced.address > place.address {
            self.synced = place;
        }
        self.slots.clear();
        self.segment_ends
            .truncate((place.address / self.segment_size) as usize);
        self.index.cut(place.address);
    }

    /// A sync may have failed on all that is written.
    pub(crate) fn doubt(&mut self) {
        self.unproven = self.written.address;
        self.doubts += 1;
    }

    /// Whether a mere sync does not bring all that is written to the device.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.synced.address < self.unproven
    }

    /// Nothing more is appended.
    pub(crate) fn is_frozen(&self) -> bool {
        self.filling != Filling::Open
    }

    /// The record in the metadata store is durable.
    pub(crate) fn is_recorded(&self) -> bool {
        self.record != RecordStage::Awaited
    }

    /// So much of it is durable in the metadata store.
    pub(crate) fn reach(&mut self, stage: RecordStage) {
        self.record = self.record.max(stage);
    }

    /// Nothing more is appended, and all of it is in the file; on the device, if that is how it is written.
    pub(crate) fn is_whole(&self, direct: bool) -> bool {
        let there = if direct { self.synced } else { self.written };
        self.is_frozen() && there.address >= self.end.address
    }

    /// Lowest address served from memory; the end if nothing is.
    pub(crate) fn memory_start(&self) -> u64 {
        self.slots
            .front()
            .map_or(self.end.address, |slot| slot.base)
    }

    /// Where batches of `segment` end, if the segment is finished or the last.
    pub(crate) fn end_of_segment(&self, segment: u64) -> u64 {
        match self.segment_ends.get(segment as usize) {
            Some(position) => segment * self.segment_size + u64::from(*position),
            None => self.end.address,
        }
    }

    /// `address`, stepped over the end of a finished segment to the next one's first batch, and
    /// where the batches of its segment end.
    pub(crate) fn within(&self, address: u64) -> (u64, u64) {
        let mut at = address;
        let mut segment = at / self.segment_size;
        let mut stop = self.end_of_segment(segment);
        while at >= stop && (segment as usize) < self.segment_ends.len() {
            segment += 1;
            at = segment * self.segment_size + SEGMENT_HEADER_BYTES as u64;
            stop = self.end_of_segment(segment);
        }
        (at, stop)
    }

    /// The bytes of `from..to`, which must lie within one segment and in memory.
    pub(crate) fn parts(&self, from: u64, to: u64) -> Vec<(ChunkReader, Range<usize>)> {
        let first = self.slots.partition_point(|slot| slot.end() <= from);
        let mut parts = Vec::new();
        let mut at = from;
        for slot in self.slots.iter().skip(first) {
            if at >= to || slot.base >= to {
                break;
            }
            debug_assert!(slot.base <= at, "hole in the window at {at}");
            let start = (at - slot.base) as usize;
            let end = (to.min(slot.end()) - slot.base) as usize;
            parts.push((slot.reader.clone(), start..end));
            at = slot.base + end as u64;
        }
        debug_assert_eq!(at, to, "window does not hold {from}..{to}");
        parts
    }

    /// Runs of bytes from `from` to the end: one per segment, since the rest of a finished segment
    /// stays zero and is never written.
    pub(crate) fn runs_from(&self, from: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut at = from;
        while at < self.end.address {
            let segment = at / self.segment_size;
            let stop = self.end_of_segment(segment);
            if at < stop {
                runs.push(Run {
                    address: at,
                    parts: self.parts(at, stop),
                });
            }
            if segment as usize >= self.segment_ends.len() {
                break;
            }
            at = (segment + 1) * self.segment_size;
        }
        runs
    }

    /// Drops the oldest chunks whose bytes are in the file, keeping the newest `keep`. The chunk
    /// that is being filled must be among those.
    pub(crate) fn evict(&mut self, keep: usize) -> usize {
        self.evict_below(self.written.address, keep)
    }

    /// As [`Self::evict`], of what the other replicas have too: they need not take it from the file then.
    pub(crate) fn evict_replicated(&mut self, keep: usize) -> usize {
        self.evict_below(self.replicated.address.min(self.written.address), keep)
    }

    fn evict_below(&mut self, address: u64, keep: usize) -> usize {
        let mut evicted = 0;
        while self.slots.len() > keep
            && self.slots.front().is_some_and(|slot| slot.end() <= address)
        {
            self.slots.pop_front();
            evicted += 1;
        }
        evicted
    }
}
