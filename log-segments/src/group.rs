//! A group: one bounded run of segments in one file, appended by one writer, read by many.
//!
//! [`Group`] is what everyone may hold; [`GroupWriter`] is the one right to append and stands
//! under the lane's group lock. The writer never waits: it copies into pool memory and publishes;
//! making bytes durable is the pumps' work ([`crate::pump`]).

use std::path::PathBuf;

use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{Epoch, GroupId, LaneKey, Ordinal};

use crate::footer::SparseIndex;
use crate::head::LaneHead;
use crate::io::{FileRef, Io, OpenHow};
use crate::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::pool::{CHUNK_BYTES, ChunkPool, ChunkWriter};
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Mutex, Ordering};
use crate::window::{Place, Slot, Window};

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum AckPolicy {
    /// Nothing: the record is in the broker's memory.
    Memory = 0,
    /// The record survives the process: it is in the page cache.
    #[default]
    Written = 1,
    /// The record survives power loss: it is on the device.
    Synced = 2,
}

impl AckPolicy {
    fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Memory,
            2 => Self::Synced,
            _ => Self::Written,
        }
    }
}

/// The fixed facts of a group.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Its lane.
    pub lane: LaneKey,
    /// Its id.
    pub group: GroupId,
    /// Its file generation.
    pub generation: u32,
    /// Its one epoch.
    pub epoch: Epoch,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Most segments.
    pub segments: u32,
    /// Ordinal of its first record.
    pub first_ordinal: Ordinal,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// Its file.
    pub path: PathBuf,
}

impl GroupSpec {
    /// Bytes of all segments; marks and footer stand behind them.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.segment_size) * u64::from(self.segments)
    }

    /// The name of the group's file within its streamlet's directory.
    pub fn file_name(group: GroupId, generation: u32) -> String {
        format!("{:016}.{generation}.log", group.0)
    }

    /// Reads group and generation back from a file name; `None` for a foreign file.
    pub fn parse_file_name(name: &str) -> Option<(GroupId, u32)> {
        let stem = name.strip_suffix(".log")?;
        let (group, generation) = stem.split_once('.')?;
        Some((GroupId(group.parse().ok()?), generation.parse().ok()?))
    }
}

/// How far a group has come by the stream's policy; what the durable head is made of.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// False while its record is not durable: nothing of it counts yet.
    pub counts: bool,
    /// Address up to which bytes satisfy the policy.
    pub address: u64,
    /// Ordinal at that address.
    pub ordinal: Ordinal,
    /// The group is frozen and all of it satisfies the policy.
    pub finished: bool,
}

/// Why an append to a group did not happen. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFull {
    /// The group has no room: roll to the next.
    Roll,
    /// The chunk pool is empty: wait for the pump.
    NoMemory,
}

/// A group of a lane.
pub struct Group {
    pub(crate) spec: GroupSpec,
    pub(crate) io: Arc<dyn Io>,
    file: Mutex<Option<FileRef>>,
    pub(crate) window: Mutex<Window>,
    /// Held by whoever writes the file right now.
    pub(crate) turn: AtomicBool,
    /// In a pump's queue.
    pub(crate) queued: AtomicBool,
    policy: AtomicU8,
    head: Option<Arc<LaneHead>>,
    /// The lane's state before the first batch; empty for a closed group.
    snapshot: Vec<u8>,
    /// Where batches of segment 0 begin.
    data_start: AtomicU64,
    /// Milliseconds since 1970 of the last append or read, for giving back memory.
    pub(crate) last_used_ms: AtomicU64,
    /// Sequence of the durable mark last written.
    pub(crate) mark_sequence: AtomicU64,
    /// `written` address at the last mark.
    pub(crate) marked: AtomicU64,
    /// Index and segment ends are in memory.
    pub(crate) loaded: AtomicBool,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} {} epoch {})", self.spec.lane, self.spec.group, self.spec.epoch)
    }
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
        let data_start = (SEGMENT_HEADER_BYTES + snapshot.len()) as u64;
        let start = Place { address: 0, ordinal: spec.first_ordinal };
        let group = Arc::new(Self {
            window: Mutex::new(Window {
                segment_size: u64::from(spec.segment_size),
                slots: Default::default(),
                segment_ends: Vec::new(),
                index: SparseIndex::default(),
                max_timestamp: i64::MIN,
                end: start,
                written: start,
                synced: start,
                frozen: false,
                recorded: false,
                failed: None,
            }),
            io,
            file: Mutex::new(None),
            turn: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            policy: AtomicU8::new(policy as u8),
            head: Some(head),
            snapshot,
            data_start: AtomicU64::new(data_start),
            last_used_ms: AtomicU64::new(spec.created_ms),
            mark_sequence: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            loaded: AtomicBool::new(true),
            spec,
        });
        let writer = GroupWriter {
            group: group.clone(),
            pool,
            chunk: None,
            address: 0,
            next_ordinal: group.spec.first_ordinal,
            max_timestamp: i64::MIN,
        };
        (group, writer)
    }

    /// A closed group as its record describes it. Index and segment ends are loaded on first use.
    pub fn closed(spec: GroupSpec, end: Place, data_start: u64, max_timestamp: i64, io: Arc<dyn Io>) -> Arc<Self> {
        Arc::new(Self {
            window: Mutex::new(Window {
                segment_size: u64::from(spec.segment_size),
                slots: Default::default(),
                segment_ends: Vec::new(),
                index: SparseIndex::default(),
                max_timestamp,
                end,
                written: end,
                synced: end,
                frozen: true,
                recorded: true,
                failed: None,
            }),
            io,
            file: Mutex::new(None),
            turn: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            policy: AtomicU8::new(AckPolicy::Written as u8),
            head: None,
            snapshot: Vec::new(),
            data_start: AtomicU64::new(data_start),
            last_used_ms: AtomicU64::new(0),
            mark_sequence: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            loaded: AtomicBool::new(false),
            spec,
        })
    }

    /// The fixed facts.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// The group's id.
    pub fn id(&self) -> GroupId {
        self.spec.group
    }

    /// Address of the first batch.
    pub fn data_start(&self) -> u64 {
        self.data_start.load(Ordering::Relaxed)
    }

    pub(crate) fn set_data_start(&self, address: u64) {
        self.data_start.store(address, Ordering::Relaxed);
    }

    /// Address after the last byte appended.
    pub fn end_address(&self) -> u64 {
        self.window.lock().end.address
    }

    /// Address and ordinal after the last batch appended.
    pub fn end(&self) -> Place {
        self.window.lock().end
    }

    /// How far the file has been written.
    pub fn written(&self) -> Place {
        self.window.lock().written
    }

    /// How far the file has been synced.
    pub fn synced(&self) -> Place {
        self.window.lock().synced
    }

    /// Highest timestamp in the group, `i64::MIN` if it is empty.
    pub fn max_timestamp(&self) -> i64 {
        self.window.lock().max_timestamp
    }

    /// True once nothing more is appended.
    pub fn is_frozen(&self) -> bool {
        self.window.lock().frozen
    }

    /// True once the record is durable.
    pub fn is_recorded(&self) -> bool {
        self.window.lock().recorded
    }

    /// The error that ended writing, if one did.
    pub fn failure(&self) -> Option<std::io::Error> {
        self.window.lock().failed.map(|(kind, code)| match code {
            Some(code) => std::io::Error::from_raw_os_error(code),
            None => kind.into(),
        })
    }

    /// Bytes of pool memory the group holds.
    pub fn memory_bytes(&self) -> usize {
        self.window.lock().slots.len() * CHUNK_BYTES
    }

    /// What acknowledgements promise in this group.
    pub fn policy(&self) -> AckPolicy {
        AckPolicy::from_u8(self.policy.load(Ordering::Relaxed))
    }

    /// Changes the promise for acknowledgements to come.
    pub fn set_policy(&self, policy: AckPolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Notes that the group's record is durable; its bytes count from now on.
    pub fn set_recorded(&self) {
        self.window.lock().recorded = true;
        self.advance_head();
    }

    /// How far the group has come by its policy.
    pub fn acknowledged(&self) -> Acknowledged {
        let policy = self.policy();
        let window = self.window.lock();
        let place = match policy {
            AckPolicy::Memory if window.failed.is_none() => window.end,
            AckPolicy::Memory | AckPolicy::Written => window.written,
            AckPolicy::Synced => window.synced,
        };
        Acknowledged {
            counts: window.recorded,
            address: place.address.max(self.data_start()),
            ordinal: place.ordinal,
            finished: window.frozen && window.failed.is_none() && place.address == window.end.address,
        }
    }

    /// The lane's head; `None` for a closed group, which it has passed for ever.
    pub fn lane_head(&self) -> Option<&Arc<LaneHead>> {
        self.head.as_ref()
    }

    /// The closed form of a frozen group whose end is settled: same bytes, same memory and index,
    /// no tie to the lane's head.
    pub fn to_closed(&self) -> Arc<Self> {
        let (end, max_timestamp) = {
            let window = self.window.lock();
            (window.end, window.max_timestamp)
        };
        let closed = Self::closed(self.spec.clone(), end, self.data_start(), max_timestamp, self.io.clone());
        {
            let mut from = self.window.lock();
            let mut to = closed.window.lock();
            to.slots = std::mem::take(&mut from.slots);
            to.segment_ends = from.segment_ends.clone();
            to.index = from.index.clone();
        }
        closed.loaded.store(true, Ordering::Release);
        closed.touch(self.last_used_ms());
        *closed.file.lock() = self.file.lock().clone();
        closed
    }

    /// Ends a failed group at its last written byte: what lies above was never durable.
    pub fn cut_at_written(&self) -> Place {
        let mut window = self.window.lock();
        let written = window.written;
        window.frozen = true;
        window.end = written;
        window.failed = None;
        let size = window.segment_size;
        window.slots.clear();
        window.segment_ends.truncate((written.address / size) as usize);
        let kept = window.index.entries().iter().copied().filter(|e| e.address < written.address).collect();
        window.index = SparseIndex::from_entries(kept);
        written
    }

    pub(crate) fn advance_head(&self) {
        if let Some(head) = &self.head {
            head.advance();
        }
    }

    /// The lane's state before the first batch, as its first segment has it.
    pub fn snapshot(&self) -> &[u8] {
        &self.snapshot
    }

    /// The file, opened (and made, for a group being written) on first use.
    ///
    /// # Errors
    /// Whatever the store answers.
    pub fn file(&self) -> std::io::Result<FileRef> {
        let mut slot = self.file.lock();
        if let Some(file) = slot.as_ref() {
            return Ok(file.clone());
        }
        let how = if self.head.is_some() && !self.io.exists(&self.spec.path) {
            OpenHow::CreateNew
        } else {
            OpenHow::ReadWrite
        };
        let file = self.io.open(&self.spec.path, how, false)?;
        *slot = Some(file.clone());
        Ok(file)
    }

    /// Closes the file handle of an idle group; the next use opens it again.
    pub fn release_file(&self) {
        *self.file.lock() = None;
    }

    /// Notes use, so that memory and file handle stay.
    pub fn touch(&self, now_ms: u64) {
        self.last_used_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When the group was last used, milliseconds since 1970.
    pub fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }

    /// Drops index and memory of a frozen group whose bytes are all in the file.
    pub fn release_frozen(&self) {
        let mut window = self.window.lock();
        if window.frozen && window.failed.is_none() && window.written.address == window.end.address {
            window.slots.clear();
        }
    }
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

impl GroupWriter {
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
    /// ([`Self::next_ordinal`]) and the group's epoch. O(bytes) for the copy, O(1) otherwise.
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
        let size = u64::from(self.group.spec.segment_size);
        let segment = self.address / size;
        let position = self.address % size;
        let first = self.address == 0;
        let lead = if first { SEGMENT_HEADER_BYTES + self.group.snapshot.len() } else { 0 };
        // Strictly less: a segment is never filled to its last byte, so an address always tells
        // its segment.
        let fits = position + ((lead + batch.len()) as u64) < size;
        let (start, lead) = if fits {
            (self.address, lead)
        } else if first || segment + 1 >= u64::from(self.group.spec.segments) {
            return Err(GroupFull::Roll);
        } else {
            ((segment + 1) * size, SEGMENT_HEADER_BYTES)
        };
        let new_segment = start != self.address || first;

        // All memory is taken before the first byte is copied, so that a failure changes nothing.
        let room = if new_segment { 0 } else { self.chunk.as_ref().map_or(0, ChunkWriter::remaining) };
        let need = (lead + batch.len()).saturating_sub(room).div_ceil(CHUNK_BYTES);
        let mut fresh = Vec::with_capacity(need);
        if need > 0 {
            self.group.window.lock().evict(keep_chunks);
        }
        while fresh.len() < need {
            match self.pool.try_take() {
                Some(chunk) => fresh.push(chunk),
                None if self.group.window.lock().evict(0) > 0 => {}
                None => return Err(GroupFull::NoMemory),
            }
        }
        fresh.reverse();

        let mut added: Vec<Slot> = Vec::with_capacity(need);
        let mut at = start;
        if new_segment {
            self.chunk = None;
            let header = self.segment_header((start / size) as u32, now_ms).encode();
            self.copy(&header, &mut at, &mut fresh, &mut added);
            if first {
                let group = self.group.clone();
                self.copy(&group.snapshot, &mut at, &mut fresh, &mut added);
            }
        }
        let placed = Place { address: at, ordinal: self.next_ordinal };
        self.copy(batch, &mut at, &mut fresh, &mut added);
        debug_assert!(fresh.is_empty(), "chunks taken and not used");

        let end = Place { address: at, ordinal: self.next_ordinal + header.ordinals() };
        let mut window = self.group.window.lock();
        if new_segment && !first {
            window.segment_ends.push(position as u32);
        }
        window.slots.extend(added);
        window.index.note(placed.ordinal, placed.address, self.max_timestamp);
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
        window.max_timestamp = self.max_timestamp;
        window.end = end;
        drop(window);
        self.address = end.address;
        self.next_ordinal = end.ordinal;
        self.group.touch(now_ms);
        Ok(placed)
    }

    fn copy(&mut self, mut bytes: &[u8], at: &mut u64, fresh: &mut Vec<ChunkWriter>, added: &mut Vec<Slot>) {
        while !bytes.is_empty() {
            let full = self.chunk.as_ref().is_none_or(|chunk| chunk.remaining() == 0);
            if full {
                let Some(chunk) = fresh.pop() else {
                    unreachable!("memory was counted before copying");
                };
                added.push(Slot { base: *at, reader: chunk.reader() });
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
            (self.group.snapshot.len() as u32, kera_protocol::batch::crc32c(&self.group.snapshot))
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
        }
    }

    /// Ends the group: nothing more can be appended. Returns its end.
    pub fn freeze(&mut self) -> Place {
        self.chunk = None;
        let end = {
            let mut window = self.group.window.lock();
            window.frozen = true;
            window.end
        };
        self.group.advance_head();
        end
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
