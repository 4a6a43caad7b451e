//! The store: one function for each request.

mod flush;
mod open;
mod seal;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use kera_protocol::ids::Epoch;
use parking_lot::{Mutex, RwLock};

use crate::backup::StartError;
use crate::backup::copy::{Copy, Life, Region, failed};
use crate::backup::memory::{CopySpec, Memory};
use crate::backup::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{BackupId, BufferKey, CopyId, Incarnation, ProcessId, StreamletKey};
use crate::transport::{CopyInfo, Description, MAX_TRANSFER_BYTES, Refusal, Reply, Request};

/// What a store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes reserved for buffers, of all copies together. A primary's memory is not part of it.
    pub memory_bytes: u64,
    /// Copies, those on disk included.
    pub copies: usize,
}

impl Default for Limits {
    /// 1 GiB and 65,536 copies.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            copies: 1 << 16,
        }
    }
}

#[derive(Debug, Default)]
struct Control {
    seals: SealTable,
    /// Grows with each change of `seals`.
    version: u64,
    copies: BTreeMap<CopyId, Arc<Copy>>,
    reserved: u64,
}

/// The copies that one process of a broker holds for others. Answers are given at once: nothing
/// waits for room.
#[derive(Debug)]
pub struct BackupStore {
    memory: Arc<dyn Memory>,
    limits: Limits,
    faults: Faults,
    incarnation: Incarnation,
    process: ProcessId,
    control: Mutex<Control>,
    /// What links may write, by key.
    buffers: RwLock<HashMap<BufferKey, (BackupId, Region)>>,
    /// The version of the seals that is stored. Whoever holds it stores for all that wait.
    stored: Mutex<u64>,
}

impl BackupStore {
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
        let mut control = Control::default();
        if !faults.seals_forgotten_at_restart {
            control.seals = found.seals;
        }
        for each in found.copies {
            let copy = each.spec.copy;
            let by = control.seals.sealed(&copy.streamlet).max(copy.epoch);
            let kept = Copy::new(each.spec, each.memory, Life::Sealed(by));
            let mut state = kept.state.lock();
            state.reserved = each.reserved;
            state.mark = each.mark.unwrap_or_default();
            if each.reserved == 0 && each.mark.is_some() {
                state.life = Life::Flushed;
            }
            drop(state);
            control.reserved += each.reserved;
            control.copies.insert(copy, Arc::new(kept));
        }
        Ok(Arc::new(Self {
            memory,
            limits,
            faults,
            incarnation: found.incarnation,
            process: ProcessId(rand::random()),
            control: Mutex::new(control),
            buffers: RwLock::default(),
            stored: Mutex::new(0),
        }))
    }

    /// The life over which unsynced bytes survive.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// This process, to which alone bytes may be sent again.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// The buffer `key`, for a link of `from`.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] if there is none, or it is another primary's.
    pub fn region(&self, from: BackupId, key: BufferKey) -> Result<Region, Refusal> {
        match self.buffers.read().get(&key) {
            Some((primary, region)) if *primary == from => Ok(region.clone()),
            _ => Err(Refusal::Unknown),
        }
    }

    /// Answers a request of broker `from`. May wait for a disk, so not to be called where that
    /// would hold up others.
    ///
    /// # Errors
    /// The backup's no.
    pub fn handle(&self, from: BackupId, request: Request) -> Result<Reply, Refusal> {
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
                        "{from} cannot open a copy for {primary}"
                    )));
                }
                let spec = CopySpec {
                    copy,
                    segment_size,
                    segments,
                    incarnation,
                    built: false,
                };
                self.open(&spec, primary, address, bytes).map(Reply::Opened)
            }
            Request::Flush {
                copy,
                length,
                closed,
            } => self.flush(&copy, length, closed).map(|()| Reply::Flushed),
            Request::Seal {
                streamlet,
                epoch,
                copies,
            } => self.seal(streamlet, epoch, &copies).map(Reply::Sealed),
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
                self.read(&copy, address, len).map(Reply::Bytes)
            }
            Request::Free { copy, epoch } => self.free(&copy, epoch).map(|()| Reply::Done),
            Request::List { streamlet } => Ok(Reply::Copies(self.list(streamlet))),
        }
    }

    fn describe(&self) -> Description {
        let reserved = self.control.lock().reserved;
        Description {
            incarnation: self.incarnation,
            process: self.process,
            free_bytes: self.limits.memory_bytes.saturating_sub(reserved),
        }
    }

    pub(super) fn held(&self, copy: &CopyId) -> Result<Arc<Copy>, Refusal> {
        let control = self.control.lock();
        control.copies.get(copy).cloned().ok_or(Refusal::Unknown)
    }

    pub(super) fn give_back(&self, reserved: u64) {
        let mut control = self.control.lock();
        control.reserved = control.reserved.saturating_sub(reserved);
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
        Ok(bytes.into())
    }

    fn free(&self, id: &CopyId, epoch: Epoch) -> Result<(), Refusal> {
        let (copy, version) = {
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
                return Ok(());
            };
            if control.seals.free(id.streamlet, id.group) {
                control.version += 1;
            }
            (copy, control.version)
        };
        self.store_seals(version)?;
        self.forget_buffers(&copy);
        // Until it is removed nobody writes it to disk, where a start would find it again.
        let _turn = copy.flushing.lock();
        let reserved = {
            let mut state = copy.state.lock();
            state.life = Life::Freed;
            state.buffers.clear();
            std::mem::take(&mut state.reserved)
        };
        self.give_back(reserved);
        // After a failure it is still listed, and is freed when asked again.
        copy.memory.remove().map_err(failed)?;
        self.control.lock().copies.remove(id);
        Ok(())
    }

    fn list(&self, streamlet: Option<StreamletKey>) -> Vec<CopyInfo> {
        let control = self.control.lock();
        let wanted = |id: &CopyId| streamlet.is_none_or(|s| s == id.streamlet);
        let copies = control.copies.iter().filter(|(id, _)| wanted(id));
        copies
            .map(|(id, copy)| CopyInfo {
                copy: *id,
                state: copy.state_shown(),
            })
            .collect()
    }
}

pub(super) fn too_much(len: u64) -> Refusal {
    Refusal::Invalid(format!(
        "{len} bytes are too many at once; ask for at most {MAX_TRANSFER_BYTES}"
    ))
}
