//! What a store needs of the memory below it.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use kera_log_segments::io::ReadAt;
use kera_log_segments::layout::{DurableMark, MARK_BYTES};
use kera_protocol::ids::{StreamId, StreamletId};

use super::StartError;
use super::mapping::Window;
use super::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{CopyId, Incarnation, StreamletKey};

/// Whether nothing more can be stored where something was to be.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The fixed facts of a copy, stored beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpec {
    /// Its name.
    pub copy: CopyId,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Segments the group may have.
    pub segments: u32,
    /// The incarnation in which it was made; in another its unsynced bytes may be gone.
    pub incarnation: Incarnation,
    /// Made by `complete` from another copy, not opened by a primary.
    pub built: bool,
}

impl CopySpec {
    /// Bytes that all segments take together.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.segment_size) * u64::from(self.segments)
    }
}

/// A copy that a store found when it started.
#[derive(Debug)]
pub struct Found {
    /// Its facts.
    pub spec: CopySpec,
    /// Its bytes.
    pub memory: Arc<dyn CopyMemory>,
    /// Bytes of shared memory that it has reserved.
    pub reserved: u64,
    /// The mark of its last flush, if it was looked at; else it is when somebody asks for it, see
    /// [`CopyMemory::mark`].
    pub mark: Option<DurableMark>,
    /// It is on disk, and there was no more of it in memory.
    pub whole: bool,
    /// It is on the disk alone: on shared memory there is its record at most.
    pub on_disk: bool,
    /// There is a record of it on shared memory.
    pub record: bool,
}

/// What a store starts with.
#[derive(Debug)]
pub struct TakenOver {
    /// The life of the memory.
    pub incarnation: Incarnation,
    /// The life of the disk, if it survives a loss of power; else why it does not, or that there is none.
    pub disk: Result<Incarnation, String>,
    /// The seals as stored.
    pub seals: SealTable,
    /// The copies, in no order.
    pub copies: Vec<Found>,
    /// Of which there may be copies that could not be looked for.
    pub hidden: Vec<Hidden>,
}

/// A stream, or one streamlet of it, of which a directory cannot be made out: what is in it nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The stream.
    pub stream: StreamId,
    /// `None` for all of its streamlets.
    pub streamlet: Option<StreamletId>,
}

impl Hidden {
    /// Whether this is about a streamlet.
    pub fn is_of(&self, key: &StreamletKey) -> bool {
        self.stream == key.stream && self.streamlet.is_none_or(|one| one == key.streamlet)
    }
}

/// Where a store keeps copies and seals.
pub trait Memory: Send + Sync + Debug {
    /// Waits for the predecessor to be gone, then reads what it left. Nothing that was handed to
    /// the predecessor can be written any more when this returns.
    ///
    /// # Errors
    /// [`StartError`] if another process has it, or what is there cannot be used.
    fn take_over(&self, faults: &Faults) -> Result<TakenOver, StartError>;

    /// Makes a copy without any reserved bytes; it is there after a crash of the process.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, spec: &CopySpec) -> io::Result<Arc<dyn CopyMemory>>;

    /// Replaces the stored seals, as durably as copies are stored, whole or not at all.
    ///
    /// # Errors
    /// The system's; what is stored is then unknown.
    fn store_seals(&self, seals: &SealTable) -> io::Result<()>;

    /// Syncs what was written of many replicas ([`CopyMemory::write_to_disk`]) with one flush, which costs
    /// less than one of each.
    ///
    /// # Errors
    /// The system's; whose bytes it is about is not told, so each is to be synced by itself then.
    fn sync_disk(&self) -> io::Result<()>;

    /// A stream is gone, and no copy of it is here: so may be what its copies lay in.
    fn forget(&self, _stream: StreamId) {}

    /// Bytes of shared memory that the store takes for itself, beside what it keeps of copies.
    fn own_bytes(&self) -> u64 {
        0
    }
}

/// The bytes of one copy. Addresses count from the group's start. Callers see to it that two threads
/// never write the same copy at once.
#[allow(clippy::len_without_is_empty)]
pub trait CopyMemory: Send + Sync + Debug {
    /// Makes `len` bytes at `address` writable; they are zero until written. Nothing already
    /// reserved changes. Returns the bytes of shared memory that it took in addition: none where an
    /// earlier process had reserved them, or the copy is on disk alone.
    ///
    /// # Errors
    /// `StorageFull` where there is no room.
    fn reserve(&self, address: u64, len: u64) -> io::Result<u64>;

    /// Bytes that reserving this range would take in addition.
    fn lacking(&self, address: u64, len: u64) -> u64;

    /// Prepares reserved bytes for their first use, where that takes time; only a hint.
    fn warm(&self, _address: u64, _len: u64) {}

    /// Reserved bytes as a network card may write them, where the memory is the machine's own.
    ///
    /// # Errors
    /// `Unsupported` where it is not; `InvalidInput` outside of what is reserved.
    fn window(&self, _address: u64, _len: u64) -> io::Result<Window> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Writes into reserved bytes. Never waits for a disk: what lies below what was released is there
    /// already, and is left as it is.
    ///
    /// # Errors
    /// `InvalidInput` outside of them, `BrokenPipe` if the memory has been taken over.
    fn place(&self, address: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes what a recovery brings: into reserved bytes, and on disk where these alone have the
    /// address. May wait for the disk. To be called in the copy's turn to be flushed.
    ///
    /// # Errors
    /// As [`place`](Self::place); the system's.
    fn complete(&self, address: u64, bytes: &[u8]) -> io::Result<()>;

    /// As [`place`](Self::place), for bytes that come after their time: memory that a simulation
    /// reaches beyond the life of a process takes them, any other refuses.
    ///
    /// # Errors
    /// `Unsupported`; `InvalidInput` where nothing is reserved any more.
    #[doc(hidden)]
    fn place_stray(&self, _address: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reads from `socket`, without waiting, first up to `len` bytes into reserved memory at
    /// `address`, then into `spare`; returns the bytes read in all, 0 at the stream's end.
    ///
    /// # Errors
    /// As [`place`](Self::place); the socket's, such as `WouldBlock`.
    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        address: u64,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize>;

    /// Fills as much of `buf` as lies below the group's end; what was never written reads as zeros.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, buf: &mut [u8], address: u64) -> io::Result<usize>;

    /// Makes the bytes of `from..to` survive power loss, then stores `mark`. Does nothing where
    /// there is no disk. What is in memory is written again each time; for what is not, see
    /// [`renew`](Self::renew).
    ///
    /// # Errors
    /// The system's.
    fn flush(&self, from: u64, to: u64, mark: &DurableMark) -> io::Result<()>;

    /// Writes the bytes of `from..to` to the replica's file on the disk, which is made if it is not there.
    /// They survive a loss of power once [`sync_to_disk`](Self::sync_to_disk), or
    /// [`Memory::sync_disk`], and then [`name_on_disk`](Self::name_on_disk) have succeeded.
    ///
    /// # Errors
    /// The system's; `Unsupported` where there is no disk.
    fn write_to_disk(&self, from: u64, to: u64) -> io::Result<()>;

    /// Syncs what was written to the file on the disk.
    ///
    /// # Errors
    /// The system's; what was written since the last sync counts as lost then.
    fn sync_to_disk(&self) -> io::Result<()>;

    /// Makes the file's name durable, and what tells that it is this replica, unless that was done. A start
    /// finds the file by it where shared memory is gone. To be called once the file is synced.
    ///
    /// # Errors
    /// The system's.
    fn name_on_disk(&self) -> io::Result<()>;

    /// Writes once more what of `from..to` the disk alone holds, before it is looked at and flushed; whether
    /// there was any. A sync that failed leaves bytes in the page cache that are clean and not on the disk,
    /// and that no later sync brings there.
    ///
    /// # Errors
    /// The system's.
    fn renew(&self, from: u64, to: u64) -> io::Result<bool>;

    /// Stores a mark that says less than the last one, before the bytes it spoke of change. Does nothing
    /// where nothing was flushed.
    ///
    /// # Errors
    /// The system's; what is stored is then unknown.
    fn lower_mark(&self, mark: &DurableMark) -> io::Result<()>;

    /// The mark stored last, where there is a disk and one was.
    ///
    /// # Errors
    /// The system's.
    fn mark(&self) -> io::Result<Option<DurableMark>> {
        Ok(None)
    }

    /// Gives back the memory of what lies below `to`, if there is a disk: it has been flushed, and
    /// is read from the disk from now on. Remembers that before anything goes, so that it is not
    /// missed when the disk is lost. `to` is a multiple of 4096. Returns the bytes given back.
    ///
    /// # Errors
    /// The system's; nothing, or all of it, is given back then.
    fn release(&self, to: u64) -> io::Result<u64>;

    /// Gives reserved memory back, if there is a disk: all that counts of the copy has been flushed,
    /// and what is placed from now on goes to the disk. Returns whether it was. Unless its group is
    /// `closed`, it stays remembered where the memory was that there is such a copy.
    ///
    /// # Errors
    /// The system's; nothing is given back then.
    fn give_back(&self, closed: bool) -> io::Result<bool>;

    /// Gives up the copy's bytes, in memory and on disk, so that there is room for others. That there was a
    /// copy stays remembered until it is removed: a start finds it damaged.
    ///
    /// # Errors
    /// The system's.
    fn vacate(&self) -> io::Result<()>;

    /// Forgets the copy, on disk too. Its memory is never seen by another copy before it is zeros.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self) -> io::Result<()>;
}

/// A copy's bytes as a file that a scan can walk.
#[derive(Debug)]
pub(super) struct CopyFile<'a> {
    pub(super) memory: &'a dyn CopyMemory,
    pub(super) bytes: u64,
    /// Stands where a file has its marks: below it the scan walks headers only.
    pub(super) mark: Option<DurableMark>,
}

impl ReadAt for CopyFile<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(mark) = &self.mark
            && offset == mark.slot_offset(self.bytes)
        {
            let len = buf.len().min(MARK_BYTES);
            buf[..len].copy_from_slice(&mark.encode()[..len]);
            return Ok(len);
        }
        let room = self.bytes.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.memory.read_at(&mut buf[..len], offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}
