//! The backup's end of a data connection: checks where bytes go, and puts them there.
//!
//! No checksum is computed and no batch is looked at: whoever recovers a copy walks its bytes. A
//! large write is read from the socket into the copy's memory, and hardly more than the next
//! write's head with it; small writes are read many at once and copied from there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::net::RecvFlags;

use super::wire::{Cause, WRITE_BYTES, WriteHead};
use crate::backup::{Region, ReplicaStore};
use crate::ids::{BrokerId, BufferKey};
use crate::transport::Refusal;

/// Small writes are read so many bytes at once.
pub(super) const SPARE_BYTES: usize = 128 << 10;
/// Of these a connection has so many at first, and twice as many whenever a read fills them: most connections of
/// thousands are idle.
const FIRST_SPARE_BYTES: usize = 4 << 10;
/// From this length on a write counts as large: another is expected to follow it, of which no more
/// than [`LOOK_AHEAD`] bytes should be copied twice.
const LARGE_WRITE: usize = 8 << 10;
const LOOK_AHEAD: usize = 1 << 10;
/// Buffers remembered by a connection; asking the store again costs a lock.
const MAX_REGIONS: usize = 4096;

/// Why a connection ends.
#[derive(Debug)]
pub(super) struct Farewell {
    pub(super) cause: Cause,
    /// The buffer of a refused write, else zero.
    pub(super) buffer: BufferKey,
    pub(super) text: String,
}

impl Farewell {
    fn refused(buffer: BufferKey, refusal: &Refusal) -> Self {
        Self {
            cause: Cause::Refused,
            buffer,
            text: format!("write to buffer {:016x}: {refusal}", buffer.0),
        }
    }

    pub(super) fn malformed(text: impl Into<String>) -> Self {
        Self::new(Cause::Malformed, text)
    }

    pub(super) fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self {
            cause,
            buffer: BufferKey(0),
            text: text.into(),
        }
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Bytes came; there may be more.
    Read(usize),
    /// Nothing came: in the middle of a large write without waiting for it, else for as long as the
    /// socket waits.
    Empty,
    /// The primary has closed its end.
    Ended,
}

/// Keys are drawn at random by the store, and only its own are kept: they need no hashing.
#[derive(Debug, Default)]
struct AsDrawn(u64);

impl Hasher for AsDrawn {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// The buffers that a connection writes.
type Regions = HashMap<BufferKey, Region, BuildHasherDefault<AsDrawn>>;

/// A write that has begun and not ended.
#[derive(Debug)]
struct Current {
    buffer: BufferKey,
    region: Region,
    offset: u64,
    left: usize,
    signalled: bool,
}

/// The state of one data connection. Reads, checks and places; what it waits for is the socket alone.
#[derive(Debug)]
pub(super) struct Receiver {
    store: Arc<ReplicaStore>,
    primary: BrokerId,
    regions: Regions,
    current: Option<Current>,
    spare: Vec<u8>,
    start: usize,
    end: usize,
    done: u64,
    /// Writes placed to their ends when the latest was of which the primary wants to hear.
    signalled: u64,
    /// The latest write was large.
    large: bool,
}

impl Receiver {
    pub(super) fn new(store: Arc<ReplicaStore>, primary: BrokerId) -> Self {
        Self {
            store,
            primary,
            regions: Regions::default(),
            current: None,
            spare: vec![0; FIRST_SPARE_BYTES],
            start: 0,
            end: 0,
            done: 0,
            signalled: 0,
            large: false,
        }
    }

    /// Writes placed to their ends.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Of these, up to the last one of which the primary wants to hear.
    pub(super) fn signalled(&self) -> u64 {
        self.signalled
    }

    /// True once a write to a buffer that the primary may write has begun.
    pub(super) fn has_written(&self) -> bool {
        self.done > 0 || self.is_in_copy()
    }

    /// True if the primary may write something here, over this connection or another.
    pub(super) fn has_open_copies(&self) -> bool {
        self.store.has_buffers_of(self.primary)
    }

    /// True while the next step reads into a copy, which does not wait.
    pub(super) fn is_in_copy(&self) -> bool {
        self.current.is_some()
    }

    /// True between the first and the last byte of a write.
    pub(super) fn is_amid(&self) -> bool {
        self.current.is_some() || self.start < self.end
    }

    /// Reads once from `socket`, and places what came. Waits as the socket does, but not while a copy is
    /// held: whoever seals it would wait too.
    pub(super) fn step(&mut self, socket: BorrowedFd<'_>) -> Result<io::Result<Step>, Farewell> {
        // Beyond what is known to be wanted.
        let ahead = if self.large { LOOK_AHEAD } else { SPARE_BYTES };
        let Some(current) = &mut self.current else {
            let read = self.read_spare(ahead, |free| {
                let read = rustix::net::recv(socket, free, RecvFlags::empty());
                read.map(|(read, _)| read).map_err(io::Error::from)
            });
            return self.came(read);
        };
        // While a write is under way, nothing waits in the spare bytes.
        let ahead = ahead.min(self.spare.len());
        let spare = &mut self.spare[..ahead];
        let read = current
            .region
            .receive(socket, current.offset, current.left, spare);
        let read = read.map_err(|refusal| Farewell::refused(current.buffer, &refusal))?;
        if let Ok(read) = read {
            let own = read.min(current.left);
            (self.start, self.end) = (0, read - own);
            self.grow_spare();
            self.went_on(own);
        }
        self.came(read)
    }

    /// The same from a TLS session: what it decrypts is copied from the spare bytes.
    pub(super) fn step_decrypting(
        &mut self,
        session: &mut impl Read,
    ) -> Result<io::Result<Step>, Farewell> {
        let read = self.read_spare(SPARE_BYTES, |free| session.read(free));
        self.came(read)
    }

    /// Reads up to `ahead` bytes behind those that wait in the spare bytes.
    fn read_spare(
        &mut self,
        ahead: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.spare.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let free = self.end..(self.end + ahead).min(self.spare.len());
        let read = read(&mut self.spare[free])?;
        self.end += read;
        self.grow_spare();
        Ok(read)
    }

    /// Makes room where a read has filled what there is.
    fn grow_spare(&mut self) {
        let there = self.spare.len();
        if self.end == there && there < SPARE_BYTES {
            self.spare.resize(SPARE_BYTES.min(2 * there), 0);
        }
    }

    /// Places what a read brought, or tells why it brought nothing.
    fn came(&mut self, read: io::Result<usize>) -> Result<io::Result<Step>, Farewell> {
        let read = match read {
            Ok(0) => return Ok(Ok(Step::Ended)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Ok(Step::Empty)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Ok(Step::Read(0)));
            }
            Err(error) => return Ok(Err(error)),
        };
        self.go_on()?;
        self.take_spare()?;
        Ok(Ok(Step::Read(read)))
    }

    /// So many more bytes of the write under way are placed.
    fn went_on(&mut self, bytes: usize) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.left -= bytes;
        current.offset += bytes as u64;
        if current.left == 0 {
            let signalled = current.signalled;
            self.current = None;
            self.placed(signalled);
        }
    }

    /// Places what the spare bytes have of the write under way.
    fn go_on(&mut self) -> Result<(), Farewell> {
        let Some(current) = &self.current else {
            return Ok(());
        };
        let there = current.left.min(self.end - self.start);
        if there == 0 {
            return Ok(());
        }
        let bytes = &self.spare[self.start..self.start + there];
        let placed = current.region.place(current.offset, bytes);
        placed.map_err(|refusal| Farewell::refused(current.buffer, &refusal))?;
        self.start += there;
        self.went_on(there);
        Ok(())
    }

    /// A write is placed to its end.
    fn placed(&mut self, signalled: bool) {
        self.done += 1;
        if signalled {
            self.signalled = self.done;
        }
    }

    /// Places what lies in the spare bytes: whole writes, and the beginning of one.
    fn take_spare(&mut self) -> Result<(), Farewell> {
        while self.current.is_none() {
            let Some(head) = self.spare[self.start..self.end].first_chunk::<WRITE_BYTES>() else {
                return Ok(());
            };
            let head = WriteHead::decode(head)
                .ok_or_else(|| Farewell::malformed("a write should begin here and does not"))?;
            if head.len == 0 {
                return Err(Farewell::malformed("a write has no bytes"));
            }
            let region = known(&mut self.regions, &self.store, self.primary, head.buffer)?;
            let fits = region.check(head.offset, u64::from(head.len));
            fits.map_err(|refusal| Farewell::malformed(refusal.to_string()))?;
            self.start += WRITE_BYTES;

            let len = head.len as usize;
            self.large = len >= LARGE_WRITE;
            let there = len.min(self.end - self.start);
            let placed = region.place(head.offset, &self.spare[self.start..self.start + there]);
            placed.map_err(|refusal| Farewell::refused(head.buffer, &refusal))?;
            self.start += there;
            if there == len {
                self.placed(head.signalled);
            } else {
                self.current = Some(Current {
                    buffer: head.buffer,
                    region: region.clone(),
                    offset: head.offset + there as u64,
                    left: len - there,
                    signalled: head.signalled,
                });
            }
        }
        Ok(())
    }
}

/// The buffer, of which the store is asked when a connection first writes it.
fn known<'a>(
    regions: &'a mut Regions,
    store: &ReplicaStore,
    primary: BrokerId,
    buffer: BufferKey,
) -> Result<&'a Region, Farewell> {
    // Closed groups' buffers would stay for ever.
    if regions.len() >= MAX_REGIONS && !regions.contains_key(&buffer) {
        regions.clear();
    }
    match regions.entry(buffer) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(unknown) => match store.region(primary, buffer) {
            Ok(region) => Ok(unknown.insert(region)),
            Err(refusal) => Err(Farewell::refused(buffer, &refusal)),
        },
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
