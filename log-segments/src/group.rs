//! A group: one bounded run of segments in one file, appended by one writer, read by many.
//!
//! [`Group`] is what everyone may hold; [`GroupWriter`] is the one right to append and stands
//! under the lane's group lock. The writer never waits: it copies into pool memory and publishes;
//! making bytes durable is the work of [`crate::local_writer`].

use std::io::{ErrorKind, IoSlice};
use std::sync::OnceLock;

use kera_protocol::ids::{GroupId, Ordinal};

use crate::head::LaneHead;
use crate::io::direct::DirectWriter;
use crate::io::{FileRef, Io, OpenHow};
use crate::layout::{DurableMark, SEGMENT_HEADER_BYTES};
use crate::place::Place;
use crate::pool::CHUNK_BYTES;
use crate::scan::Scanned;
use crate::shipping::Shipping;
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Mutex, Ordering, Rank, Weak, mutex};
use crate::window::{Filling, RecordStage, Window};

pub use crate::spec::{GroupSpec, MAX_GROUP_ORDINALS};
pub use crate::writer::{GroupFull, GroupWriter};
pub use kera_protocol::ack::AckPolicy;

/// Chunks a closed group keeps for readers near the tail, until it is idle.
const CLOSED_CHUNKS: usize = 4;

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

/// A group of a lane.
pub struct Group {
    pub(crate) spec: GroupSpec,
    pub(crate) io: Arc<dyn Io>,
    file: Mutex<FileSlot>,
    pub(crate) window: Mutex<Window>,
    /// Held by whoever writes the file right now.
    pub(crate) turn: AtomicBool,
    /// In a pump's queue.
    pub(crate) queued: AtomicBool,
    /// A write or a sync failed; repeats `window.failed` for a look without its lock.
    pub(crate) broken: AtomicBool,
    policy: AtomicU8,
    /// The file is written around the page cache, by the pump alone.
    direct: bool,
    /// See [`SegmentHeader::in_order`](crate::layout::SegmentHeader::in_order).
    pub(crate) in_order: bool,
    /// The last group before it with a batch may not be whole in its file yet: nothing of this one is written until it
    /// is.
    pub(crate) waits: AtomicBool,
    /// That group.
    pub(crate) before: OnceLock<Weak<Group>>,
    head: Option<Arc<LaneHead>>,
    /// Who brings the group's bytes to other copies, if it has any; weak, as they hold the group.
    pub(crate) shipping: OnceLock<Weak<dyn Shipping>>,
    /// The lane's state before the first batch; empty for a closed group.
    pub(crate) snapshot: Vec<u8>,
    /// Where batches of segment 0 begin; 0 for a closed group that is not loaded.
    pub(crate) data_start: AtomicU64,
    /// Milliseconds since 1970 of the last use, for giving back memory.
    pub(crate) last_used_ms: AtomicU64,
    /// The broker's time when nothing more was appended, in milliseconds; 0 until then.
    ended_ms: AtomicU64,
    /// Read since [`Self::take_read`] last looked.
    read: AtomicBool,
    /// Whether enough of its replicas are on disk: see [`Self::set_flushed`].
    pub(crate) flushed: AtomicU8,
    /// The durable mark last written; the lock makes syncs and marks take turns.
    pub(crate) store: Mutex<Marked>,
}

/// A group's file.
enum FileSlot {
    /// It is made with its first use.
    ToMake,
    /// It is this group's: made by it or for it, or found with its record. Open after its last use, until it is let go of.
    Made(Option<FileRef>),
    /// The group was given up before it had one: none is made any more.
    None,
}

/// A file made for a group ahead of its use.
#[derive(Clone, Debug)]
pub struct MadeFile {
    file: Option<FileRef>,
    direct: bool,
}

impl MadeFile {
    /// Makes the file of a group to come, for the policy in force.
    ///
    /// # Errors
    /// As [`Group::file`]'s; there is no file then.
    pub fn make(spec: &GroupSpec, policy: AckPolicy, io: &Arc<dyn Io>) -> std::io::Result<Self> {
        let direct = policy == AckPolicy::Synced;
        let file = Some(make_file(spec, direct, io)?);
        Ok(Self { file, direct })
    }

    /// The same, closed until its group is used, where that costs nothing: what is written past the page cache stays
    /// open, as only who made it knows that it is empty.
    #[must_use]
    pub fn put_away(self) -> Self {
        Self {
            file: self.file.filter(|_| self.direct),
            ..self
        }
    }
}

/// Makes a group's file, which must not exist yet. It has a durable mark from the beginning, behind the room for
/// segments: a file without one was cut short, whatever else it holds.
fn make_file(spec: &GroupSpec, direct: bool, io: &Arc<dyn Io>) -> std::io::Result<FileRef> {
    let file = open_file(spec, direct, OpenHow::CreateNew, io)?;
    let mark = DurableMark::default();
    let at = mark.slot_offset(spec.group_bytes());
    if let Err(error) = file.write_vectored_at(&[IoSlice::new(&mark.encode())], at) {
        // Nothing stands in the way of the next attempt, unless that fails too.
        let _ = io.remove_file(&spec.path);
        return Err(error);
    }
    Ok(file)
}

fn open_file(
    spec: &GroupSpec,
    direct: bool,
    how: OpenHow,
    io: &Arc<dyn Io>,
) -> std::io::Result<FileRef> {
    if direct {
        DirectWriter::new(io.clone()).open(&spec.path, how, spec.group_bytes())
    } else {
        io.open(&spec.path, how, false)
    }
}

/// Whether a group may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It may.
    Open,
    /// Once the group before it is whole in its file.
    Waits,
    /// Once the record of the group before it is durable.
    Unrecorded,
    /// The group before it will never be whole.
    Shut,
}

/// What the durable mark last written says.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marked {
    pub(crate) sequence: u64,
    pub(crate) written: u64,
    pub(crate) synced: u64,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Group({} {} epoch {})",
            self.spec.lane, self.spec.group, self.spec.epoch
        )
    }
}

impl Group {
    fn with(
        spec: GroupSpec,
        io: Arc<dyn Io>,
        policy: AckPolicy,
        window: Window,
        file: FileSlot,
    ) -> Self {
        Self {
            window: mutex(Rank::Window, window),
            io,
            file: mutex(Rank::File, file),
            turn: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            policy: AtomicU8::new(policy as u8),
            direct: false,
            in_order: false,
            waits: AtomicBool::new(false),
            before: OnceLock::new(),
            head: None,
            shipping: OnceLock::new(),
            snapshot: Vec::new(),
            data_start: AtomicU64::new(0),
            last_used_ms: AtomicU64::new(spec.created_ms),
            ended_ms: AtomicU64::new(0),
            read: AtomicBool::new(false),
            flushed: AtomicU8::new(0),
            store: mutex(Rank::Store, Marked::default()),
            spec,
        }
    }

    /// A new group to be appended to; see [`Group::create`].
    pub(crate) fn begin(
        spec: GroupSpec,
        policy: AckPolicy,
        head: Arc<LaneHead>,
        io: Arc<dyn Io>,
        snapshot: Vec<u8>,
    ) -> Arc<Self> {
        let data_start = (SEGMENT_HEADER_BYTES + snapshot.len()) as u64;
        let start = Place {
            address: 0,
            ordinal: spec.first_ordinal,
        };
        let window = Window::new(u64::from(spec.segment_size), start);
        Arc::new(Self {
            direct: policy == AckPolicy::Synced,
            // `memory` shows records before they are written, so no order of writing proves anything.
            in_order: policy != AckPolicy::Memory,
            head: Some(head),
            snapshot,
            data_start: AtomicU64::new(data_start),
            ..Self::with(spec, io, policy, window, FileSlot::ToMake)
        })
    }

    /// A closed group as its record describes it. Index and segment ends are loaded on first use,
    /// and so is `data_start` if it is 0. It ended at `ended_ms` by the broker's clock.
    pub fn closed(
        spec: GroupSpec,
        end: Place,
        data_start: u64,
        max_timestamp: i64,
        ended_ms: u64,
        io: Arc<dyn Io>,
    ) -> Arc<Self> {
        let mut window = Window::new(u64::from(spec.segment_size), end);
        window.max_timestamp = max_timestamp;
        window.filling = Filling::Frozen;
        window.record = RecordStage::Closed;
        window.loaded = false;
        Arc::new(Self {
            data_start: AtomicU64::new(data_start),
            ended_ms: AtomicU64::new(ended_ms),
            ..Self::with(spec, io, AckPolicy::Written, window, FileSlot::Made(None))
        })
    }

    /// A group that a previous process left open, as a scan found it: frozen, all of it written,
    /// its record durable. It can be read; [`Self::sync`] and a record of its end close it.
    pub fn recovered(
        spec: GroupSpec,
        policy: AckPolicy,
        head: Arc<LaneHead>,
        io: Arc<dyn Io>,
        found: &Scanned,
    ) -> Arc<Self> {
        let mut window = Window::new(u64::from(spec.segment_size), found.end);
        window.segment_ends = found.segment_ends.clone();
        window.index = found.index.clone();
        window.max_timestamp = found.max_timestamp;
        window.filling = Filling::Frozen;
        window.record = RecordStage::Open;
        // Only what a mark says is synced is: a sync that failed before the crash leaves no trace.
        window.doubt();
        window.synced = match &found.mark {
            Some(mark) if mark.synced <= found.end.address => Place {
                address: mark.synced,
                ordinal: mark.synced_ordinal,
            },
            _ => Place {
                address: 0,
                ordinal: found.header.first_ordinal,
            },
        };
        Arc::new(Self {
            direct: found.header.ack == AckPolicy::Synced,
            head: Some(head),
            snapshot: found.snapshot.clone(),
            data_start: AtomicU64::new(found.data_start),
            ..Self::with(spec, io, policy, window, FileSlot::Made(None))
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

    /// The broker's time when nothing more was appended, in milliseconds; 0 if it is not known.
    pub fn ended_ms(&self) -> u64 {
        self.ended_ms.load(Ordering::Relaxed)
    }

    /// Notes that nothing more is appended since `now_ms`; what was noted first stays.
    pub fn note_end(&self, now_ms: u64) {
        if self.ended_ms() == 0 {
            self.ended_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// The time of its newest record by which retention goes, in milliseconds; `None` if it is not known.
    ///
    /// It is the greatest timestamp, as with Kafka. One that lies ahead of `now` says nothing of the
    /// records' age, and neither does a missing one: then it is the time when the group ended. So no
    /// producer's clock keeps records for much longer than they are to be kept.
    pub fn newest_ms(&self, now: i64) -> Option<i64> {
        let stamp = self.max_timestamp();
        if (0..=now).contains(&stamp) {
            return Some(stamp);
        }
        match self.ended_ms() {
            0 => None,
            ended => i64::try_from(ended).ok(),
        }
    }

    /// True once nothing more is appended.
    pub fn is_frozen(&self) -> bool {
        self.window.lock().is_frozen()
    }

    /// True once the record is durable.
    pub fn is_recorded(&self) -> bool {
        self.window.lock().is_recorded()
    }

    /// True once writing has failed; cheap.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
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

    /// Gives back written chunks but the newest `keep`; 1 at least while the group is appended to.
    /// Returns how many.
    pub fn shed(&self, keep: usize) -> usize {
        self.window.lock().evict(keep)
    }

    /// What acknowledgements promise in this group.
    pub fn policy(&self) -> AckPolicy {
        AckPolicy::from_u8(self.policy.load(Ordering::Relaxed))
    }

    /// True if the file is written around the page cache, by the pump alone. Fixed at creation, so
    /// that a file never goes both ways, whatever the policy becomes.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Changes the promise for acknowledgements to come.
    pub fn set_policy(&self, policy: AckPolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Notes that the group's record is durable; its bytes count from now on. Call without holding
    /// the streamlet or a group lock.
    pub fn set_recorded(&self) {
        self.mark_recorded();
        self.advance_head();
    }

    /// As [`Self::set_recorded`] for a group without bytes, which moves no head; under any lock.
    pub fn mark_recorded(&self) {
        self.window.lock().reach(RecordStage::Open);
    }

    /// How far the group has come by its policy.
    pub fn acknowledged(&self) -> Acknowledged {
        let (policy, is_shipped) = (self.policy(), self.is_shipped());
        let window = self.window.lock();
        // Of a group with other replicas its own file is one of several.
        let is_sound = is_shipped || window.failed.is_none();
        let place = match policy {
            _ if is_shipped => window.replicated,
            AckPolicy::Memory if is_sound => window.end,
            AckPolicy::Memory | AckPolicy::Written => window.written,
            AckPolicy::Synced => window.synced,
        };
        Acknowledged {
            counts: window.is_recorded(),
            address: place.address.max(self.data_start()),
            ordinal: place.ordinal,
            finished: window.is_frozen() && is_sound && place.address == window.end.address,
        }
    }

    /// The lane's head; `None` for a closed group, which it has passed for ever.
    pub fn lane_head(&self) -> Option<&Arc<LaneHead>> {
        self.head.as_ref()
    }

    /// The closed form of a frozen group whose end is settled: same bytes, same memory and index,
    /// no tie to the lane's head.
    pub fn to_closed(&self) -> Arc<Self> {
        let window = {
            let mut from = self.window.lock();
            from.evict(CLOSED_CHUNKS);
            Window {
                slots: std::mem::take(&mut from.slots),
                segment_ends: from.segment_ends.clone(),
                index: from.index.clone(),
                max_timestamp: from.max_timestamp,
                filling: Filling::Frozen,
                record: RecordStage::Closed,
                ..Window::new(from.segment_size, from.end)
            }
        };
        // What is only read from now on may as well be cached.
        let file = match &*self.file.lock() {
            FileSlot::Made(file) => file.clone().filter(|_| !self.direct),
            FileSlot::ToMake | FileSlot::None => None,
        };
        Arc::new(Self {
            data_start: AtomicU64::new(self.data_start()),
            last_used_ms: AtomicU64::new(self.last_used_ms()),
            ended_ms: AtomicU64::new(self.ended_ms()),
            ..Self::with(
                self.spec.clone(),
                self.io.clone(),
                AckPolicy::Written,
                window,
                FileSlot::Made(file),
            )
        })
    }

    /// Ends a failed group at its last written byte: what lies above was never durable.
    pub fn cut_at_written(&self) -> Place {
        self.cut_at(self.written())
    }

    /// Ends a failed group at its last synced byte: what lies above may not be on the device,
    /// whatever later syncs say.
    pub fn cut_at_synced(&self) -> Place {
        self.cut_at(self.synced())
    }

    /// Ends a failed group, to which nothing is appended any more, at a batch boundary that is
    /// written.
    pub fn cut_at(&self, place: Place) -> Place {
        let mut window = self.window.lock();
        debug_assert!(place.address <= window.written.address);
        window.cut(place);
        self.broken.store(false, Ordering::Release);
        place
    }

    /// The group's own file has more: moves the head, or tells who counts all copies.
    pub(crate) fn advance_head(&self) {
        if let Some(shipping) = self.shipping.get() {
            if let Some(shipping) = shipping.upgrade() {
                shipping.wrote();
            }
        } else if let Some(head) = &self.head {
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
    /// Whatever the store answers; `AlreadyExists` if a new group finds a file in its place, since
    /// files are never recycled; `NotFound` if the group was [given up](Self::retire_file) before.
    pub fn file(&self) -> std::io::Result<FileRef> {
        let mut slot = self.file.lock();
        let file = match &*slot {
            FileSlot::Made(Some(file)) => return Ok(file.clone()),
            FileSlot::Made(None) => {
                open_file(&self.spec, self.direct, OpenHow::ReadWrite, &self.io)?
            }
            FileSlot::ToMake => make_file(&self.spec, self.direct, &self.io)?,
            FileSlot::None => return Err(ErrorKind::NotFound.into()),
        };
        *slot = FileSlot::Made(Some(file.clone()));
        Ok(file)
    }

    /// Makes the file before its group is recorded as one that other brokers have replicas of. Of a `synced` group its name
    /// is durable then: a loss of power before the first flush leaves a file in which nothing is, and no doubt whether
    /// one was removed.
    ///
    /// # Errors
    /// As [`Self::file`]'s, and the store's.
    pub fn make_file_to_record(&self) -> std::io::Result<()> {
        self.file()?;
        match self.spec.path.parent().filter(|_| self.direct) {
            Some(dir) => self.io.sync_dir(dir),
            None => Ok(()),
        }
    }

    /// Takes the file that was made for it.
    pub fn adopt(&self, made: MadeFile) {
        // After a change of the policy it is opened anew, the other way.
        let file = made.file.filter(|_| made.direct == self.direct);
        *self.file.lock() = FileSlot::Made(file);
    }

    /// Holds back what is written of this group, to which nothing was appended yet, until all of `before`, the
    /// group before it in its lane, is in its file and its record is durable. So what is written of a group proves
    /// that those before it were whole. Whoever calls [`Self::set_recorded`] pumps [`Self::next`] then.
    pub fn follow(self: &Arc<Self>, before: &Arc<Self>) {
        // Of one that ended without a batch nothing is written that could wait: the one before that is waited for.
        let before = match before.end_address() {
            0 => before.before.get().and_then(Weak::upgrade),
            _ => Some(before.clone()),
        };
        if let Some(before) = before.filter(|_| self.in_order)
            && self.before.set(Arc::downgrade(&before)).is_ok()
        {
            self.waits.store(true, Ordering::Release);
            before.window.lock().after = Arc::downgrade(self);
        }
    }

    /// The group that waits for this one, if it was begun.
    pub fn next(&self) -> Option<Arc<Self>> {
        self.window.lock().after.upgrade()
    }

    /// Whether it may be written.
    #[inline]
    pub(crate) fn gate(&self) -> Gate {
        match self.waits.load(Ordering::Acquire) {
            false => Gate::Open,
            true => self.gate_of_waiting(),
        }
    }

    /// Looks at each of the groups before it that wait, of which there may be very many.
    #[cold]
    fn gate_of_waiting(&self) -> Gate {
        let mut before = match self.own_gate() {
            Ok(gate) => return gate,
            Err(before) => before,
        };
        // One of those before it may itself be held back for good.
        loop {
            before = match before.own_gate() {
                Ok(Gate::Open) => return Gate::Waits,
                Ok(gate) => return gate,
                Err(further) => further,
            };
        }
    }

    /// Whether it may be written; the group before it where that is not whole yet and so decides.
    fn own_gate(&self) -> Result<Gate, Arc<Self>> {
        if !self.waits.load(Ordering::Acquire) {
            return Ok(Gate::Open);
        }
        // Closed and let go otherwise.
        if let Some(before) = self.before.get().and_then(Weak::upgrade) {
            let (is_over, is_whole, is_recorded) = {
                let window = before.window.lock();
                let is_over = window.failed.is_some() || window.filling == Filling::Cut;
                let is_recorded = window.is_recorded();
                (is_over, window.is_whole(before.direct), is_recorded)
            };
            if is_over {
                return Ok(Gate::Shut);
            }
            if !is_whole {
                return Err(before);
            }
            if !is_recorded {
                return Ok(Gate::Unrecorded);
            }
        }
        self.waits.store(false, Ordering::Release);
        Ok(Gate::Open)
    }

    /// Nothing more is appended, and all of it is in the file as its policy wants.
    pub(crate) fn is_whole_in_file(&self) -> bool {
        self.window.lock().is_whole(self.direct)
    }

    /// Closes the file handle of an idle group; the next use opens it again.
    pub fn release_file(&self) {
        if let FileSlot::Made(file) = &mut *self.file.lock() {
            *file = None;
        }
    }

    /// The group is given up, and its file about to be removed: whoever comes late to write to it, such as a
    /// turn of the pump, makes none that nobody would know of.
    pub fn retire_file(&self) {
        match &mut *self.file.lock() {
            FileSlot::Made(file) => *file = None,
            slot => *slot = FileSlot::None,
        }
    }

    /// Notes use, so that memory and file handle stay.
    pub fn touch(&self, now_ms: u64) {
        self.last_used_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes a read; the clock is left to [`Self::take_read`].
    pub(crate) fn note_read(&self) {
        // Looked at first: readers of one group need not fight over the cache line.
        if !self.read.load(Ordering::Relaxed) {
            self.read.store(true, Ordering::Relaxed);
        }
    }

    /// True if the group was read since the last call.
    pub fn take_read(&self) -> bool {
        self.read.swap(false, Ordering::Relaxed)
    }

    /// When the group was last used, milliseconds since 1970.
    pub fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }
}
