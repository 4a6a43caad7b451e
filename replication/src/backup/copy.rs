//! One copy: who may write it, and its buffers.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use kera_log_segments::check::{Checked, Progress, check};
use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::{ScanError, ScanSpec, Scanned, scan};
use kera_log_segments::window::Place;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Epoch;
use parking_lot::Mutex;

use super::memory::{CopyFile, CopyMemory, CopySpec};
use crate::faults::Faults;
use crate::ids::{BrokerId, BufferKey, Incarnation};
use crate::transport::{Buffer, CopyAnswer, CopyInfo, CopyState, CopyVersion, Refusal};

/// What is reserved is rounded up to this, and given back in it.
pub(super) const PAGE: u64 = 4096;

/// Where a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its primary writes.
    Open,
    /// `complete` alone writes; the epoch is the one that sealed, or the copy's own after a restart.
    Sealed(Epoch),
    /// Its group is closed, and what it has is on its way to the disk. Nobody writes it any more, and nobody is
    /// told yet that it is there.
    Closing,
    /// Closed at a length that counts.
    Flushed,
    /// Gone.
    Freed,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) life: Life,
    /// Sorted by address, without overlaps.
    pub(super) buffers: Vec<Buffer>,
    /// The one whose link may write the buffers.
    pub(super) primary: Option<BrokerId>,
    /// The highest epoch that has sealed the copy.
    pub(super) sealed_by: Epoch,
    /// The end of the highest write by a link, or of what a network card may write unseen.
    pub(super) placed: u64,
    /// Below this address its primary has seen everything complete, and sends nothing any more.
    pub(super) confirmed: u64,
    /// What lies below this address is on disk alone.
    pub(super) released: u64,
    /// Flush rounds have brought all below this address to the disk.
    pub(super) flushed: u64,
    /// Tells this copy from what stands under its name later.
    pub(super) version: CopyVersion,
    /// It is sealed, and what was whole of it then is on disk.
    pub(super) settled: bool,
    /// It is on the disk alone, and counts as such.
    pub(super) on_disk: bool,
    /// What counts against the quota.
    pub(super) reserved: u64,
    /// There is a record of it on shared memory.
    pub(super) record: bool,
    /// The last mark stored; below its `synced` everything is on disk, or was where there is none.
    pub(super) mark: DurableMark,
    /// The mark lies on the disk and was not looked at yet; see [`Copy::mark`].
    pub(super) mark_unread: bool,
}

/// A copy. Bytes are placed under its lock, so whoever has changed its life under the lock knows
/// that nobody is in the middle of writing.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) spec: CopySpec,
    pub(super) memory: Arc<dyn CopyMemory>,
    pub(super) state: Mutex<State>,
    /// The copy's turn: held while it goes to disk, or is completed or freed. It may be held for as long as
    /// a disk takes, and so is never waited for under another lock. `state` is never held for that long.
    pub(super) flushing: Mutex<()>,
    /// Held while a recovery's bytes are placed, which may take a disk's time.
    completing: Mutex<()>,
}

impl Copy {
    pub(super) fn new(spec: CopySpec, memory: Arc<dyn CopyMemory>, life: Life) -> Self {
        let state = State {
            life,
            buffers: Vec::new(),
            primary: None,
            sealed_by: Epoch(0),
            placed: 0,
            confirmed: 0,
            released: 0,
            flushed: 0,
            version: CopyVersion(rand::random()),
            settled: false,
            on_disk: false,
            reserved: 0,
            record: true,
            mark: DurableMark::default(),
            mark_unread: false,
        };
        Self {
            spec,
            memory,
            state: Mutex::new(state),
            flushing: Mutex::new(()),
            completing: Mutex::new(()),
        }
    }

    pub(super) fn info(&self) -> CopyInfo {
        let state = self.state.lock();
        CopyInfo {
            copy: self.spec.copy,
            version: state.version,
            state: match state.life {
                Life::Open => CopyState::Open,
                Life::Sealed(_) | Life::Closing | Life::Freed => CopyState::Sealed,
                Life::Flushed => CopyState::Flushed,
            },
        }
    }

    /// The last mark stored. Of a copy that a start has found it is read when it is first asked for.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn mark(&self) -> io::Result<DurableMark> {
        let known = {
            let state = self.state.lock();
            (!state.mark_unread).then_some(state.mark)
        };
        if let Some(mark) = known {
            return Ok(mark);
        }
        let read = self.memory.mark()?.unwrap_or_default();
        let mut state = self.state.lock();
        if std::mem::take(&mut state.mark_unread) {
            state.mark = read;
        }
        Ok(state.mark)
    }

    /// Ends the primary's right to write, and that of lower epochs to complete. When this returns no
    /// primary is writing; see [`wait_for_completion`](Self::wait_for_completion).
    pub(super) fn seal(&self, by: Epoch) {
        let mut state = self.state.lock();
        state.sealed_by = state.sealed_by.max(by);
        if state.life == Life::Open {
            state.life = Life::Sealed(by);
        }
    }

    /// Waits for a lower epoch that is in the middle of completing the copy; sealed, none begins to.
    pub(super) fn wait_for_completion(&self) {
        drop(self.completing.lock());
    }

    /// What `complete` brings, by the epoch that sealed, in the copy's turn. An open copy, which is of that
    /// epoch itself, takes nothing from a link any more. Returns whether it was open.
    pub(super) fn complete(&self, by: Epoch, address: u64, bytes: &[u8]) -> Result<bool, Refusal> {
        let _completing = self.completing.lock();
        let mut state = self.state.lock();
        let before = state.life;
        if before == Life::Freed {
            return Err(Refusal::Unknown);
        }
        // A higher epoch may have sealed, and read the length, since the caller looked.
        if state.sealed_by > by {
            return Err(Refusal::Sealed {
                by: state.sealed_by,
            });
        }
        state.life = Life::Sealed(by);
        state.version = CopyVersion(rand::random());
        state.settled = false;
        state.flushed = state.flushed.min(address);
        drop(state);
        self.distrust(address).map_err(failed)?;
        self.memory.complete(address, bytes).map_err(failed)?;
        Ok(before == Life::Open)
    }

    /// What lies at `address` is about to change: if the mark speaks of it, the mark goes first, so that
    /// all checksums are looked at, and all bytes brought to the disk, before they count again.
    fn distrust(&self, address: u64) -> io::Result<()> {
        let before = self.mark()?;
        if before.synced <= address {
            return Ok(());
        }
        let lowered = before.then_lowered();
        self.memory.lower_mark(&lowered)?;
        self.state.lock().mark = lowered;
        Ok(())
    }

    /// The walk over the copy's batches. All checksums are looked at, since nothing here is known to
    /// be whole; but for what lies below `seen`, where an earlier walk looked at them.
    pub(super) fn scan(
        &self,
        incarnation: Incarnation,
        faults: &Faults,
        seen: Option<DurableMark>,
    ) -> Result<Scanned, ScanError> {
        self.walk(incarnation, faults, seen, |_, _| {})
    }

    /// As [`scan`](Self::scan); `visit` sees the header and the address of each whole batch.
    pub(super) fn walk(
        &self,
        incarnation: Incarnation,
        faults: &Faults,
        seen: Option<DurableMark>,
        visit: impl FnMut(&BatchHeader, u64),
    ) -> Result<Scanned, ScanError> {
        let copy = &self.spec.copy;
        let file = CopyFile {
            memory: &*self.memory,
            bytes: self.spec.group_bytes(),
            mark: seen,
        };
        let spec = ScanSpec {
            lane: None,
            group: Some(copy.group),
            epoch: Some(copy.epoch),
            limit: faults.scan_trusts_length().then(|| self.spec.group_bytes()),
            incarnation,
            verify_all: seen.is_none() && !faults.scan_trusts_length(),
        };
        let scanned = scan(&file, &spec, visit)?;
        let header = &scanned.header;
        let fits = header.stream == copy.streamlet.stream
            && header.streamlet == copy.streamlet.streamlet
            && header.generation == copy.generation
            && header.segment_size == self.spec.segment_size
            && header.segments == self.spec.segments;
        if fits {
            return Ok(scanned);
        }
        Err(ScanError::Foreign {
            expected: format!(
                "{copy}, {} x {} bytes",
                self.spec.segments, self.spec.segment_size
            ),
            found: format!(
                "{}/{} group {}, generation {}, {} x {} bytes",
                header.stream,
                header.streamlet,
                header.group,
                header.generation,
                header.segments,
                header.segment_size
            ),
        })
    }

    /// Looks at a stretch of a closed group again.
    ///
    /// # Errors
    /// The system's; [`Refusal::Unknown`] if the copy is being freed.
    pub(super) fn check(&self, from: Progress, bytes: u32, end: Place) -> Result<Checked, Refusal> {
        self.still_here()?;
        let file = CopyFile {
            memory: &*self.memory,
            bytes: self.spec.group_bytes(),
            mark: None,
        };
        let spec = self.spec.copy.check_spec(end);
        check(&file, &spec, from, u64::from(bytes)).map_err(failed)
    }

    /// # Errors
    /// [`Refusal::Unknown`] if it is being freed, and its bytes may be gone.
    pub(super) fn still_here(&self) -> Result<(), Refusal> {
        match self.state.lock().life {
            Life::Freed => Err(Refusal::Unknown),
            _ => Ok(()),
        }
    }

    /// What the copy has to say after it was sealed.
    pub(super) fn answer(
        &self,
        incarnation: Incarnation,
        faults: &Faults,
    ) -> Result<CopyAnswer, Refusal> {
        let damaged = |detail: String| Ok(CopyAnswer::Damaged { detail });
        let reached = match self.mark() {
            Ok(mark) => mark.synced.max(mark.written),
            Err(error) if is_lost(&error) => return damaged(error.to_string()),
            Err(error) => return Err(failed(error)),
        };
        match self.scan(incarnation, faults, None) {
            Ok(scanned) if scanned.end.address < reached => damaged(format!(
                "the valid data ends at byte {}, {reached} bytes were on disk: {}",
                scanned.end.address, scanned.stop
            )),
            Ok(scanned) => Ok(CopyAnswer::of(&scanned)),
            Err(ScanError::Io(error)) if is_lost(&error) => damaged(error.to_string()),
            Err(ScanError::Io(error)) => Err(failed(error)),
            Err(error @ ScanError::Foreign { .. }) => damaged(error.to_string()),
            Err(error) if reached > 0 => {
                damaged(format!("{reached} bytes were on disk, and now {error}"))
            }
            Err(_) => Ok(CopyAnswer::EMPTY),
        }
    }
}

impl State {
    /// Whether its primary may write.
    pub(super) fn writable(&self) -> Result<(), Refusal> {
        match self.life {
            Life::Open => Ok(()),
            Life::Sealed(by) => Err(Refusal::Sealed { by }),
            Life::Closing | Life::Flushed => Err(Refusal::Invalid("the group is closed".into())),
            Life::Freed => Err(Refusal::Unknown),
        }
    }

    /// The ranges of `from..to` that no buffer covers; each ends on a page, a buffer or `limit`.
    pub(super) fn uncovered(&self, from: u64, to: u64, limit: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = from;
        for buffer in &self.buffers {
            let (start, end) = (buffer.address, buffer.end());
            if end <= at {
                continue;
            }
            if start >= to {
                break;
            }
            if start > at {
                out.push((at, start));
            }
            at = end;
        }
        if at < to {
            let next = self.buffers.iter().map(|b| b.address).find(|a| *a >= to);
            let end = to
                .next_multiple_of(PAGE)
                .min(limit)
                .min(next.unwrap_or(limit));
            out.push((at, end));
        }
        out
    }

    /// Adds a buffer for reserved bytes.
    pub(super) fn add(&mut self, address: u64, bytes: u32, key: BufferKey) {
        let at = self.buffers.partition_point(|b| b.address < address);
        let buffer = Buffer {
            key,
            address,
            bytes,
        };
        self.buffers.insert(at, buffer);
    }

    /// The buffers that cover `from..to`.
    pub(super) fn covering(&self, from: u64, to: u64) -> Vec<Buffer> {
        let covers = |b: &&Buffer| b.address < to && b.end() > from;
        self.buffers.iter().filter(covers).copied().collect()
    }
}

/// Whether a copy's file is gone or shorter than it was: there is nothing to be tried again.
pub(super) fn is_lost(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound
    )
}

pub(super) fn failed(error: io::Error) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// A buffer that a link may write, until its copy is sealed, closed or freed. It outlives its store:
/// what the network still holds when a process dies may land later.
#[derive(Clone, Debug)]
pub struct Region {
    pub(super) copy: Arc<Copy>,
    pub(super) address: u64,
    pub(super) bytes: u32,
}

impl Region {
    /// Bytes of the buffer.
    pub fn len(&self) -> u32 {
        self.bytes
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Puts `bytes` at `offset` of the buffer.
    ///
    /// # Errors
    /// [`Refusal::Sealed`], [`Refusal::Unknown`] once the right to write has ended;
    /// [`Refusal::Invalid`] beyond the buffer. Nothing is written then.
    pub fn place(&self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.check(offset, bytes.len() as u64)?;
        let mut state = self.copy.state.lock();
        state.writable()?;
        let address = self.address + offset;
        state.placed = state.placed.max(address + bytes.len() as u64);
        let placed = self.copy.memory.place(address, bytes);
        drop(state);
        placed.map_err(failed)
    }

    /// As a network may do it: bytes that were sent once land however late, also in a copy that was
    /// sealed since and in the memory of a process that is gone. For simulations, which are harsher
    /// than any network; memory that cannot be reached so refuses.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] beyond the buffer, [`Refusal::Failed`] if the memory is gone.
    #[doc(hidden)]
    pub fn place_stray(&self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.check(offset, bytes.len() as u64)?;
        let placed = self.copy.memory.place_stray(self.address + offset, bytes);
        placed.map_err(failed)
    }

    /// Reads from `socket`, without waiting, up to `len` bytes to `offset` of the buffer and what
    /// comes after them into `spare`. Returns the bytes read in all, 0 at the stream's end.
    ///
    /// # Errors
    /// As [`place`](Self::place), in which case nothing was read; the inner error is the socket's.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        spare: &mut [u8],
    ) -> Result<io::Result<usize>, Refusal> {
        self.check(offset, len as u64)?;
        let mut state = self.copy.state.lock();
        state.writable()?;
        let address = self.address + offset;
        state.placed = state.placed.max(address + len as u64);
        let read = self.copy.memory.receive(socket, address, len, spare);
        drop(state);
        match read {
            // The copy's, not the socket's.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(failed(error)),
            other => Ok(other),
        }
    }

    /// Whether `len` bytes at `offset` are within the buffer.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if not.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), Refusal> {
        match offset.checked_add(len) {
            Some(end) if end <= u64::from(self.bytes) => Ok(()),
            _ => Err(Refusal::Invalid(format!(
                "{len} bytes at offset {offset} do not fit a buffer of {} bytes",
                self.bytes
            ))),
        }
    }
}
