//! The one right to append to a group: reserve, copy, publish.

use kera_protocol::ack::AckPolicy;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Ordinal;

use crate::group::Group;
use crate::head::LaneHead;
use crate::io::Io;
use crate::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::place::Place;
use crate::pool::{CHUNK_BYTES, ChunkPool, ChunkWriter};
use crate::spec::{GroupSpec, MAX_GROUP_ORDINALS};
use crate::sync::Arc;
use crate::window::{Filling, Slot};

/// Once this part of the pool is in use there are so many lanes that each finds its memory cold when its
/// next batch comes. Then a batch's memory is given back as soon as it is in the file: the next lane's
/// batch finds it warm, and readers find the page cache.
const CROWDED: usize = 64;

/// As long as less than this part of the pool is in use, what other copies are still to take stays in
/// memory. Beyond it they take it from the file: read back for each of them, it costs as much as what a
/// broker spends on receiving it.
const SPARED: usize = 2;

/// Why an append to a group did not happen. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFull {
    /// The group has no room: roll to the next.
    Roll,
    /// The chunk pool is empty: wait for the pump.
    NoMemory,
}

/// The one right to append to a group. Stands under the group lock.
pub struct GroupWriter {
    group: Arc<Group>,
    pool: ChunkPool,
    chunk: Option<ChunkWriter>,
    address: u64,
    next_ordinal: Ordinal,
    max_timestamp: i64,
}

impl Group {
    /// A new group to be appended to, with its writer. Does no I/O: the file is made by the first
    /// write. `snapshot` is the lane's state, shipped before the first batch.
    pub fn create(
        spec: GroupSpec,
        policy: AckPolicy,
        head: Arc<LaneHead>,
        io: Arc<dyn Io>,
        pool: ChunkPool,
        snapshot: Vec<u8>,
    ) -> (Arc<Self>, GroupWriter) {
        let group = Self::begin(spec, policy, head, io, snapshot);
        let writer = GroupWriter::new(group.clone(), pool);
        (group, writer)
    }
}

impl GroupWriter {
    fn new(group: Arc<Group>, pool: ChunkPool) -> Self {
        let next_ordinal = group.spec.first_ordinal;
        Self {
            group,
            pool,
            chunk: None,
            address: 0,
            next_ordinal,
            max_timestamp: i64::MIN,
        }
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Ordinal of the next record.
    pub fn next_ordinal(&self) -> Ordinal {
        self.next_ordinal
    }

    /// The segment being filled.
    pub fn segment(&self) -> u32 {
        (self.address / u64::from(self.group.spec.segment_size)) as u32
    }

    /// How much of the group's capacity is used, 0.0 to 1.0.
    pub fn fill(&self) -> f64 {
        self.address as f64 / self.group.spec.group_bytes() as f64
    }

    /// Largest batch that fits an empty segment of `segment_size` bytes.
    pub fn largest_batch(segment_size: u32) -> usize {
        segment_size as usize - SEGMENT_HEADER_BYTES - 1
    }

    /// Appends one batch that is already checked and carries its base ordinal
    /// ([`Self::next_ordinal`]) and the group's epoch; at most [`Self::largest_batch`] bytes. O(bytes)
    /// for the copy, O(1) otherwise.
    ///
    /// `now_ms` stamps segment headers; `keep_chunks` is how many written chunks stay in memory
    /// for readers at the tail.
    ///
    /// # Errors
    /// [`GroupFull`]; nothing has changed then.
    pub fn append(
        &mut self,
        batch: &[u8],
        header: &BatchHeader,
        now_ms: u64,
        keep_chunks: usize,
    ) -> Result<Place, GroupFull> {
        debug_assert!(batch.len() <= Self::largest_batch(self.group.spec.segment_size));
        let size = u64::from(self.group.spec.segment_size);
        let segment = self.address / size;
        let first = self.address == 0;
        let lead = if first {
            SEGMENT_HEADER_BYTES + self.group.snapshot.len()
        } else {
            0
        };
        // Strictly less: a segment is never filled to its last byte, so an address always tells
        // its segment.
        let fits = self.address % size + ((lead + batch.len()) as u64) < size;
        let spanned = self.next_ordinal - self.group.spec.first_ordinal + header.ordinals();
        if (!fits && segment + 1 >= u64::from(self.group.spec.segments))
            || (!first && spanned > MAX_GROUP_ORDINALS)
        {
            return Err(GroupFull::Roll);
        }

        // All memory is taken before the first byte is copied, so that a failure changes nothing.
        let room = if fits && !first {
            self.chunk.as_ref().map_or(0, ChunkWriter::remaining)
        } else {
            0
        };
        let chunks = |bytes: usize| bytes.div_ceil(CHUNK_BYTES);
        let need = match (first, fits) {
            (_, true) => chunks((lead + batch.len()).saturating_sub(room)),
            // A first segment that has room for its header and snapshot only.
            (_, false) => chunks(lead) + chunks(SEGMENT_HEADER_BYTES + batch.len()),
        };
        let mut fresh = if need > 0 {
            self.take_chunks(need, keep_chunks, room > 0)?
        } else {
            Vec::new()
        };

        let mut added: Vec<Slot> = Vec::with_capacity(need);
        let mut at = self.address;
        if first {
            let group = self.group.clone();
            self.chunk = None;
            self.copy(
                &self.segment_header(0, now_ms).encode(),
                &mut at,
                &mut fresh,
                &mut added,
            );
            self.copy(&group.snapshot, &mut at, &mut fresh, &mut added);
        }
        let ended = (!fits).then_some((at % size) as u32);
        if !fits {
            at = (segment + 1) * size;
            self.chunk = None;
            self.copy(
                &self.segment_header(segment as u32 + 1, now_ms).encode(),
                &mut at,
                &mut fresh,
                &mut added,
            );
        }
        let placed = Place {
            address: at,
            ordinal: self.next_ordinal,
        };
        self.copy(batch, &mut at, &mut fresh, &mut added);
        debug_assert!(fresh.is_empty(), "chunks taken and not used");

        let end = Place {
            address: at,
            ordinal: self.next_ordinal + header.ordinals(),
        };
        let before = self.max_timestamp;
        self.max_timestamp = before.max(header.max_timestamp);
        let mut window = self.group.window.lock();
        window.segment_ends.extend(ended);
        window.slots.extend(added);
        window.index.note(placed.ordinal, placed.address, before);
        window.max_timestamp = self.max_timestamp;
        // Nothing waited, so this batch is written next, and its memory is warm for another lane then.
        let let_go = self.pool.used() >= self.pool.limit() / CROWDED
            && window.written.address == self.address
            && self.group.policy() == AckPolicy::Written
            // Its copies are still to take it from memory.
            && !self.group.is_shipped();
        window.let_go = let_go;
        window.end = end;
        drop(window);
        if let_go {
            self.chunk = None;
        }
        self.address = end.address;
        self.next_ordinal = end.ordinal;
        self.group.touch(now_ms);
        Ok(placed)
    }

    /// Takes `need` chunks, last first, giving back written ones of this group where memory is
    /// short; `filling` keeps the chunk that still has room.
    fn take_chunks(
        &self,
        need: usize,
        keep: usize,
        filling: bool,
    ) -> Result<Vec<ChunkWriter>, GroupFull> {
        let least = usize::from(filling);
        let (used, limit) = (self.pool.used(), self.pool.limit());
        // What is kept is for readers at the tail. With many lanes a little of each is much in all,
        // and the system's page cache holds the same bytes.
        let keep = if used / 3 >= limit / 4 {
            least
        } else if used >= limit / 8 {
            keep.min(1).max(least)
        } else {
            keep.max(least)
        };
        let mut window = self.group.window.lock();
        if self.group.is_shipped() && used < limit / SPARED {
            window.evict_replicated(keep);
        } else {
            window.evict(keep);
        }
        drop(window);
        let mut taken = Vec::with_capacity(need);
        while taken.len() < need {
            match self.pool.try_take() {
                Some(chunk) => taken.push(chunk),
                None if self.group.window.lock().evict(least) > 0 => {}
                None => return Err(GroupFull::NoMemory),
            }
        }
        Ok(taken)
    }

    fn copy(
        &mut self,
        mut bytes: &[u8],
        at: &mut u64,
        fresh: &mut Vec<ChunkWriter>,
        added: &mut Vec<Slot>,
    ) {
        while !bytes.is_empty() {
            let full = self
                .chunk
                .as_ref()
                .is_none_or(|chunk| chunk.remaining() == 0);
            if full {
                let Some(chunk) = fresh.pop() else {
                    unreachable!("memory was counted before copying");
                };
                added.push(Slot {
                    base: *at,
                    reader: chunk.reader(),
                });
                self.chunk = Some(chunk);
            }
            if let Some(chunk) = self.chunk.as_mut() {
                let taken = chunk.append(bytes);
                bytes = &bytes[taken..];
                *at += taken as u64;
            }
        }
    }

    fn segment_header(&self, segment: u32, now_ms: u64) -> SegmentHeader {
        let spec = &self.group.spec;
        let (snapshot_bytes, snapshot_crc) = if segment == 0 {
            (
                self.group.snapshot.len() as u32,
                kera_protocol::batch::crc32c(&self.group.snapshot),
            )
        } else {
            (0, 0)
        };
        SegmentHeader {
            stream: spec.lane.stream,
            streamlet: spec.lane.streamlet,
            lane: spec.lane.lane,
            group: spec.group,
            generation: spec.generation,
            segment,
            epoch: spec.epoch,
            segment_size: spec.segment_size,
            segments: spec.segments,
            first_ordinal: self.next_ordinal,
            snapshot_bytes,
            snapshot_crc,
            created_ms: now_ms,
            ack: self.group.policy(),
            marked: true,
            in_order: self.group.in_order && !self.group.is_shipped(),
        }
    }

    /// Ends the group: nothing more can be appended. Returns its end. The head passes the group
    /// when it next moves; no waker runs here, since the group lock is held.
    pub fn freeze(&mut self) -> Place {
        self.chunk = None;
        let mut window = self.group.window.lock();
        window.filling = window.filling.max(Filling::Frozen);
        window.end
    }

    /// Gives back the memory of a group all of whose bytes are in the file. Appending goes on in
    /// fresh memory. Returns true if anything was given back.
    pub fn release_memory(&mut self) -> bool {
        let mut window = self.group.window.lock();
        if window.slots.is_empty() || window.written.address < window.end.address {
            return false;
        }
        window.slots.clear();
        self.chunk = None;
        true
    }
}
