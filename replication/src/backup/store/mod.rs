//! The store: one function for each request.

mod buffers;
mod doubles;
mod flush;
mod limits;
mod open;
mod release;
mod round;
mod seal;
mod share;
mod stats;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kera_protocol::ids::{Epoch, StreamId};
use parking_lot::{Mutex, RwLock};

use crate::backup::StartError;
use crate::backup::copy::{Copy, Life, PAGE, Region, State, failed};
use crate::backup::memory::{CopySpec, Hidden, Memory, is_full};
use crate::backup::owner_files::Beside;
use crate::backup::registrar::Registrar;
use crate::backup::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{BrokerId, BufferKey, CopyId, Incarnation, ProcessId, StreamletKey};
use crate::seldom::Seldom;
use crate::transport::{
    CopyInfo, CopyVersion, Description, MAX_TRANSFER_BYTES, Refusal, Reply, Request,
};
use buffers::{Buffers, Taking};

pub use limits::Limits;
pub use stats::StoreStats;

#[derive(Debug, Default)]
struct Control {
    seals: SealTable,
    /// Grows with each change of `seals`.
    version: u64,
    copies: BTreeMap<CopyId, Arc<Copy>>,
    /// Those of them that are on the disk alone.
    on_disk: usize,
    reserved: u64,
    /// Copies that have reserved any of that.
    holders: u64,
    /// Copies of which there is a record on shared memory.
    records: u64,
    /// Bytes of shared memory that the store takes for itself.
    own_bytes: u64,
    /// Open copies that were flushed since it was last tried to give back their memory.
    releasable: BTreeSet<CopyId>,
    told: limits::Told,
}

impl Control {
    /// Bytes of shared memory that are in use.
    fn used(&self) -> u64 {
        self.reserved + self.besides()
    }

    /// Those of them that are no copy's content.
    fn besides(&self) -> u64 {
        self.records * PAGE + self.own_bytes
    }
}

/// Doubles that are looked at between two flushes at an interval, at most.
const MAX_DOUBLES: usize = 1024;

/// The copies that one process of a broker holds for others. Answers are given at once: nothing
/// waits for room.
#[derive(Debug)]
pub struct ReplicaStore {
    memory: Arc<dyn Memory>,
    limits: Limits,
    faults: Faults,
    incarnation: Incarnation,
    /// The life of what is flushed in rounds; or why there are none.
    disk: Result<Incarnation, String>,
    rounds: round::Rounds,
    process: ProcessId,
    /// Files beside the store of which it has copies as well, as they were listed, until they are looked at.
    doubles: Mutex<BTreeMap<CopyId, CopyVersion>>,
    /// Copies that a start found to be whole by their records, until their marks are looked at.
    unread: Mutex<Vec<CopyId>>,
    control: Mutex<Control>,
    /// Of which there may be copies that the start could not look for.
    hidden: Vec<Hidden>,
    /// What links may write, by key.
    buffers: RwLock<Buffers>,
    /// Who lets network cards at buffers, if there are any.
    registrar: OnceLock<Arc<dyn Registrar>>,
    /// Copies outside of the store, if there are any.
    beside: OnceLock<Arc<dyn Beside>>,
    /// There will be such, so that until they are known what is not in the store is not known to be gone.
    expects_beside: AtomicBool,
    /// The version of the seals that is stored. Whoever holds it stores for all that wait.
    stored: Mutex<u64>,
    asked: stats::Asked,
    /// Of memory that could not be given back.
    unreleased: Mutex<Seldom>,
    /// Of seals that could not be stored.
    unsealed: Mutex<Seldom>,
}

impl ReplicaStore {
    /// Takes over `memory` from the process that had it before, reads its seals, and seals every
    /// copy it finds: their primaries roll.
    ///
    /// # Errors
    /// [`StartError`] if another process has the memory or what is there cannot be used.
    pub fn start(
        memory: Arc<dyn Memory>,
        limits: Limits,
        faults: Faults,
    ) -> Result<Arc<Self>, StartError> {
        let found = memory.take_over(&faults)?;
        let mut control = Control {
            seals: found.seals,
            ..Control::default()
        };
        if faults.seals_forgotten_at_restart() {
            control.seals.forget_seals();
        }
        let mut unread = Vec::new();
        for each in found.copies {
            let copy = each.spec.copy;
            let by = control.seals.sealed(&copy.streamlet).max(copy.epoch);
            let kept = Copy::new(each.spec, each.memory, Life::Sealed(by));
            let mut state = kept.state.lock();
            state.reserved = each.reserved;
            state.mark_unread = each.mark.is_none();
            state.mark = each.mark.unwrap_or_default();
            state.on_disk = each.on_disk;
            state.record = each.record;
            if each.whole {
                state.life = Life::Flushed;
                unread.push(copy);
            }
            drop(state);
            control.reserved += each.reserved;
            control.holders += u64::from(each.reserved > 0);
            control.on_disk += usize::from(each.on_disk);
            control.records += u64::from(each.record);
            // What is here counts, whatever may come beside it.
            control.seals.meet(copy.streamlet);
            control.copies.insert(copy, Arc::new(kept));
        }
        control.own_bytes = memory.own_bytes();
        Ok(Arc::new(Self {
            memory,
            limits,
            faults,
            incarnation: found.incarnation,
            disk: found.disk,
            rounds: round::Rounds::default(),
            process: ProcessId(rand::random()),
            doubles: Mutex::default(),
            unread: Mutex::new(unread),
            control: Mutex::new(control),
            hidden: found.hidden,
            buffers: RwLock::default(),
            registrar: OnceLock::new(),
            beside: OnceLock::new(),
            expects_beside: AtomicBool::new(false),
            stored: Mutex::new(0),
            asked: stats::Asked::default(),
            unreleased: Mutex::default(),
            unsealed: Mutex::default(),
        }))
    }

    /// Whether there may be copies of a streamlet that the start could not look for. Nobody is told that they are not here, and
    /// none is made beside them.
    pub fn is_hidden(&self, streamlet: &StreamletKey) -> bool {
        self.hidden.iter().any(|one| one.is_of(streamlet))
    }

    /// The broker may have copies beside this store. Until [`set_beside`](Self::set_beside) says which, what
    /// is not in the store is not known to be gone, and [`Refusal::Starting`] says so. To be called before
    /// anybody is let in.
    pub fn expect_beside(&self) {
        self.expects_beside.store(true, Ordering::Release);
    }

    /// What is said of a copy that is neither in the store nor known beside it.
    fn not_here(&self) -> Refusal {
        match self.is_starting() {
            true => Refusal::Starting,
            false => Refusal::Unknown,
        }
    }

    fn is_starting(&self) -> bool {
        self.expects_beside.load(Ordering::Acquire) && self.beside.get().is_none()
    }

    /// The broker has copies beside this store: they are asked for what is not in it. The first call
    /// counts.
    pub fn set_beside(&self, beside: Arc<dyn Beside>) {
        let _only_once = self.beside.set(beside);
    }

    /// Whether the store itself holds a copy.
    pub fn holds(&self, copy: &CopyId) -> bool {
        self.control.lock().copies.contains_key(copy)
    }

    /// Who has `copy` beside the store, if the store does not hold it.
    fn beside(&self, copy: &CopyId) -> Option<&dyn Beside> {
        let beside = self.beside.get()?;
        (!self.holds(copy) && beside.has(copy)).then_some(&**beside)
    }

    /// The life over which unsynced bytes survive.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The life over which flushed bytes survive, where this store flushes in rounds.
    ///
    /// # Errors
    /// Why it does not.
    pub fn disk(&self) -> Result<Incarnation, &str> {
        self.disk.as_ref().copied().map_err(String::as_str)
    }

    /// Whether a record that names this life means this store.
    pub(super) fn is_mine(&self, recorded: Incarnation) -> bool {
        recorded == self.incarnation || self.disk() == Ok(recorded)
    }

    /// This process, to which alone bytes may be sent again.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// The buffer `key`, for a link of `from`.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] if there is none, or it is another primary's.
    pub fn region(&self, from: BrokerId, key: BufferKey) -> Result<Region, Refusal> {
        match self.buffers.read().get(&key) {
            Some(entry) if entry.primary == from => Ok(entry.region.clone()),
            _ => Err(Refusal::Unknown),
        }
    }

    /// Answers a request of broker `from`. May wait for a disk, so not to be called where that
    /// would hold up others.
    ///
    /// # Errors
    /// The backup's no.
    pub fn handle(&self, from: BrokerId, request: Request) -> Result<Reply, Refusal> {
        let answered = self.answer_to(from, request);
        self.asked.note(&answered);
        answered
    }

    fn answer_to(&self, from: BrokerId, request: Request) -> Result<Reply, Refusal> {
        if let Request::Flush { copy, .. }
        | Request::Read { copy, .. }
        | Request::Check { copy, .. } = &request
            && let Some(beside) = self.beside(copy)
        {
            return beside.handle(request);
        }
        match request {
            Request::Describe => Ok(Reply::Description(self.describe())),
            Request::Open {
                copy,
                incarnation,
                primary,
                segment_size,
                segments,
                address,
                bytes,
            } => {
                if primary != from {
                    return Err(Refusal::Invalid(format!(
                        "{from} cannot open a replica for {primary}"
                    )));
                }
                let spec = CopySpec {
                    copy,
                    segment_size,
                    segments,
                    incarnation,
                    built: false,
                };
                self.open_or_make_room(&spec, primary, address, bytes)
                    .map(Reply::Opened)
            }
            Request::Flush {
                copy,
                length,
                closed,
            } => match self.flush(&copy, length, closed) {
                Ok(end) => Ok(Reply::Flushed {
                    length: end.address,
                    end_ordinal: end.ordinal,
                }),
                // One that could not be freed as a whole is unknown by now, and still listed.
                Err(short @ (Refusal::Short { .. } | Refusal::Unknown)) if closed => {
                    self.flush_file_instead(&copy, length, short)
                }
                Err(refusal) => Err(refusal),
            },
            Request::FlushRound { copies } => Ok(Reply::FlushedRound(self.flush_round(copies))),
            Request::Seal(seal) => {
                let mut sealed = self.seal_each(&[seal])?;
                Ok(Reply::Sealed(sealed.pop().unwrap_or_default()))
            }
            Request::Complete {
                copy,
                epoch,
                segment_size,
                segments,
                address,
                bytes,
            } => {
                let spec = CopySpec {
                    copy,
                    segment_size,
                    segments,
                    incarnation: self.incarnation,
                    built: true,
                };
                self.complete(&spec, epoch, address, &bytes)
                    .map(|()| Reply::Done)
            }
            Request::Read { copy, address, len } => {
                let read = self.read(&copy, address, len);
                self.with_file(request, read)
            }
            Request::Check {
                copy,
                from,
                bytes,
                end,
            } => {
                let held = self.held(&copy);
                let checked = held.and_then(|held| held.check(from, bytes, end));
                self.or_check_file(request, checked)
            }
            Request::Free {
                copy,
                epoch,
                version,
            } => self.free(&copy, epoch, version).map(|()| Reply::Done),
            Request::Forget { stream } => self.forget(stream).map(|()| Reply::Done),
            Request::List { .. } | Request::ListChanged { .. } if self.is_starting() => {
                Err(Refusal::Starting)
            }
            Request::List { streamlet } => Ok(Reply::Copies(self.list(streamlet))),
            Request::ListChanged { known } => Ok(Reply::changed(&known, |streamlet| {
                self.list(Some(streamlet))
            })),
        }
    }

    fn describe(&self) -> Description {
        let mut control = self.control.lock();
        let free = self.limits.memory_bytes.saturating_sub(control.used());
        let full = self.full_of_copies(&mut control).is_some();
        Description {
            incarnation: self.incarnation,
            disk: self.disk.clone(),
            process: self.process,
            free_bytes: if full { 0 } else { free },
        }
    }

    pub(super) fn held(&self, copy: &CopyId) -> Result<Arc<Copy>, Refusal> {
        let control = self.control.lock();
        let found = control.copies.get(copy).cloned();
        found.ok_or_else(|| self.not_here())
    }

    /// Takes back `bytes` that a copy had reserved; `all` that it had.
    pub(super) fn give_back(&self, bytes: u64, all: bool) {
        let mut control = self.control.lock();
        control.reserved = control.reserved.saturating_sub(bytes);
        if bytes > 0 && all {
            control.holders = control.holders.saturating_sub(1);
        }
    }

    fn read(&self, copy: &CopyId, address: u64, len: u32) -> Result<Bytes, Refusal> {
        if len > MAX_TRANSFER_BYTES {
            return Err(too_much(u64::from(len)));
        }
        let copy = self.held(copy)?;
        let room = copy.spec.group_bytes().saturating_sub(address);
        let mut bytes = vec![0; u64::from(len).min(room) as usize];
        let read = copy.memory.read_at(&mut bytes, address).map_err(failed)?;
        bytes[read..].fill(0);
        copy.still_here()?;
        Ok(bytes.into())
    }

    /// A file that took the place of a replica went by its owner's word: nothing of the replica is left, and no record names it.
    fn file_removed(&self, id: &CopyId) -> Result<(), Refusal> {
        let version = {
            let mut control = self.control.lock();
            let (streamlet, group) = (id.streamlet, id.group);
            if id.generation > 0
                || !control.seals.was_freed(&streamlet, group)
                || !control.seals.remove(streamlet, group)
            {
                return Ok(());
            }
            control.version += 1;
            control.version
        };
        self.store_seals(version)
    }

    fn free(&self, id: &CopyId, epoch: Epoch, version: Option<CopyVersion>) -> Result<(), Refusal> {
        let beside = self.beside(id);
        // A record may name the file that stands in its place.
        let has_file = self.beside.get().is_some_and(|beside| beside.has(id));
        let (copy, stored) = {
            let mut control = self.control.lock();
            let by = control.seals.sealed(&id.streamlet);
            if epoch < by {
                return Err(Refusal::Sealed { by });
            }
            if epoch < id.epoch {
                return Err(Refusal::Invalid(format!(
                    "epoch {epoch} cannot free {id}, which is newer"
                )));
            }
            let Some(copy) = control.copies.get(id).cloned() else {
                drop(control);
                if self.is_starting() {
                    return Err(Refusal::Starting);
                }
                if let Some(beside) = beside {
                    let free = Request::free(*id, epoch, version);
                    beside.handle(free)?;
                    self.file_removed(id)?;
                }
                return Ok(());
            };
            same_version(&copy.state.lock(), version)?;
            let (streamlet, group) = (id.streamlet, id.group);
            // A file that a compaction made and gave up says nothing of the group.
            let is_new = match has_file || id.generation > 0 {
                true => control.seals.free(streamlet, group),
                false => control.seals.remove(streamlet, group),
            };
            control.version += u64::from(is_new);
            (copy, control.version)
        };
        // Stored before the copy goes: a start must not find it absent. Where there is no room for that,
        // the copy's own bytes make some.
        match self.stored(stored) {
            Err(error) if is_full(&error) => {
                self.take_away(&copy, version, |copy| copy.memory.vacate())?;
                self.store_seals(stored)?;
            }
            other => other.map_err(failed)?,
        }
        self.remove(&copy, version)
    }

    /// Ends a copy's life, if it is still the one that was meant, and does `then` with what is left of it,
    /// in its turn: nobody writes it to disk meanwhile, where a start would find it again.
    fn take_away(
        &self,
        copy: &Copy,
        version: Option<CopyVersion>,
        then: impl FnOnce(&Copy) -> std::io::Result<()>,
    ) -> Result<(), Refusal> {
        let _turn = copy.flushing.lock();
        let id = &copy.spec.copy;
        let listed = self.control.lock().copies.get(id).cloned();
        if !listed.is_some_and(|listed| std::ptr::eq(&*listed, copy)) {
            // Somebody else has taken it away; what has its name by now is another.
            return Ok(());
        }
        {
            let mut state = copy.state.lock();
            same_version(&state, version)?;
            state.life = Life::Freed;
        }
        // First nothing is registered for it any more, then what is registered ends.
        self.forget_buffers(copy, Taking::ByForce)?;
        let reserved = {
            let mut state = copy.state.lock();
            state.buffers.clear();
            std::mem::take(&mut state.reserved)
        };
        self.give_back(reserved, true);
        // After a failure it is still listed, and is freed when asked again.
        then(copy).map_err(failed)
    }

    /// Takes a copy away, if it is still the one that was meant.
    fn remove(&self, copy: &Copy, version: Option<CopyVersion>) -> Result<(), Refusal> {
        let id = &copy.spec.copy;
        self.take_away(copy, version, |copy| {
            copy.memory.remove()?;
            let mut control = self.control.lock();
            control.copies.remove(id);
            control.releasable.remove(id);
            let mut state = copy.state.lock();
            control.on_disk -= usize::from(state.on_disk);
            control.records -= u64::from(std::mem::take(&mut state.record));
            Ok(())
        })?;
        tracing::debug!(copy = %id, "a replica is freed");
        Ok(())
    }

    /// All copies of a stream that is gone, and then what was remembered of it.
    fn forget(&self, stream: StreamId) -> Result<(), Refusal> {
        let copies: Vec<_> = {
            let control = self.control.lock();
            let of = |(id, _): &(&CopyId, &Arc<Copy>)| id.streamlet.stream == stream;
            let copies = control.copies.iter().filter(of);
            copies.map(|(_, copy)| copy.clone()).collect()
        };
        for copy in copies {
            self.remove(&copy, None)?;
        }
        let version = {
            let control = &mut *self.control.lock();
            if control.seals.forget(stream) {
                control.version += 1;
            }
            // Somebody who has not heard may have opened another meanwhile.
            let left = control.copies.keys().map(|copy| copy.streamlet);
            for streamlet in left.filter(|streamlet| streamlet.stream == stream) {
                control.seals.meet(streamlet);
            }
            control.version
        };
        self.memory.forget(stream);
        self.store_seals(version)
    }

    /// The streams of which copies are here, or anything is remembered, each with an epoch under which
    /// one of its streamlets had an owner: the latest that has sealed, or of whom a copy is here.
    pub fn streams(&self) -> BTreeMap<StreamId, Epoch> {
        let control = self.control.lock();
        let mut streams = BTreeMap::new();
        // Every streamlet of which a copy is here is remembered.
        for (streamlet, sealed) in control.seals.streamlets() {
            let mut copies = control.copies.range(CopyId::all_of(streamlet));
            let last = copies.next_back().map(|(copy, _)| copy.epoch);
            let latest = streams.entry(streamlet.stream).or_default();
            *latest = sealed.max(last.unwrap_or_default()).max(*latest);
        }
        streams
    }

    fn list(&self, streamlet: Option<StreamletKey>) -> Vec<CopyInfo> {
        // A disk is read for those, and nobody is to wait for that.
        let beside = self.beside.get();
        let beside = beside.map_or_else(Vec::new, |beside| beside.list(streamlet));
        let control = self.control.lock();
        let mut listed: Vec<_> = match streamlet {
            None => control.copies.values().map(|copy| copy.info()).collect(),
            Some(one) => {
                let copies = control.copies.range(CopyId::all_of(one));
                copies.map(|(_, copy)| copy.info()).collect()
            }
        };
        // Requests mean the store's where both have one.
        let alone = |info: &CopyInfo| !control.copies.contains_key(&info.copy);
        let (alone, both): (Vec<_>, Vec<_>) = beside.into_iter().partition(alone);
        listed.extend(alone);
        drop(control);
        let mut doubles = self.doubles.lock();
        for file in both {
            if doubles.len() < MAX_DOUBLES || doubles.contains_key(&file.copy) {
                doubles.insert(file.copy, file.version);
            }
        }
        listed
    }
}

fn same_version(state: &State, version: Option<CopyVersion>) -> Result<(), Refusal> {
    match version {
        Some(version) if version != state.version => Err(Refusal::Invalid(
            "the replica is not the one that was listed: it was completed since".into(),
        )),
        _ => Ok(()),
    }
}

pub(super) fn too_much(len: u64) -> Refusal {
    Refusal::Invalid(format!(
        "{len} bytes are too many at once; ask for at most {MAX_TRANSFER_BYTES}"
    ))
}
