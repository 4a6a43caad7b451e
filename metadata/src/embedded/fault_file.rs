//! A file in memory that fails on demand and knows what a power loss would leave of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{Database, StorageBackend};

use super::file::{Opener, builder, file_error, initialise};
use crate::error::MetadataError;

/// What reaches the disk of a write that was not synced, in units of this many bytes.
const SECTOR: usize = 512;

/// What fails from some operation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFault {
    /// Writes and growth fail for lack of space until it is cleared.
    Full,
    /// One sync fails, and what it should have written never reaches the disk.
    SyncLoses,
    /// One sync fails, yet what it should have written reached the disk.
    SyncLies,
}

enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
}

#[derive(Default)]
pub(super) struct FileState {
    /// What reads see.
    current: Vec<u8>,
    /// What is certainly on the disk.
    synced: Vec<u8>,
    /// What is perhaps on it, in order.
    pending: Vec<Change>,
    /// True when pages of `current` never reached the disk, though the kernel takes them for clean.
    lost: bool,
    /// Writes, growths and syncs so far.
    pub(super) operations: u64,
    /// Strikes at the first operation of its kind with at least this number.
    pub(super) fault: Option<(u64, FileFault)>,
    /// At this operation a power loss is imagined, with this seed.
    pub(super) power_loss_at: Option<(u64, u64)>,
    /// What that power loss leaves, and what had been acknowledged by then.
    pub(super) after_power_loss: Option<(Vec<u8>, u64)>,
    /// Greatest revision that a caller was told of.
    pub(super) acknowledged: u64,
}

#[derive(Clone, Default)]
pub(super) struct FaultFile(pub(super) Arc<Mutex<FileState>>);

impl std::fmt::Debug for FaultFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultFile")
    }
}

impl FaultFile {
    /// A file that holds `bytes`, all of it synced.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let file = Self::default();
        {
            let mut state = file.0.lock();
            state.current.clone_from(&bytes);
            state.synced = bytes;
        }
        file
    }
}

impl FileState {
    /// What is certainly on the disk.
    pub(super) fn synced_bytes(&self) -> Vec<u8> {
        self.synced.clone()
    }

    fn step(&mut self) {
        self.operations += 1;
        if let Some((at, seed)) = self.power_loss_at
            && at == self.operations
        {
            self.after_power_loss = Some((self.torn(seed), self.acknowledged));
        }
    }

    /// The synced bytes with any part of what was not synced, as a disk may order it.
    fn torn(&self, seed: u64) -> Vec<u8> {
        let mut random = seed | 1;
        let mut coin = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random & 1 == 0
        };
        let mut bytes = self.synced.clone();
        for change in &self.pending {
            match change {
                Change::Length(length) => {
                    if coin() {
                        bytes.resize(*length as usize, 0);
                    }
                }
                Change::Write(offset, data) => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if coin() {
                            put(&mut bytes, *offset as usize + index * SECTOR, sector);
                        }
                    }
                }
            }
        }
        bytes
    }

    fn full(&self) -> io::Result<()> {
        match self.fault {
            Some((from, FileFault::Full)) if self.operations >= from => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if bytes.len() < offset + data.len() {
        bytes.resize(offset + data.len(), 0);
    }
    bytes[offset..offset + data.len()].copy_from_slice(data);
}

impl StorageBackend for FaultFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock();
        let start = offset as usize;
        let source = state
            .current
            .get(start..start + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(source);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step();
        state.full()?;
        state.current.resize(length as usize, 0);
        state.pending.push(Change::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step();
        if let Some((from, fault)) = state.fault
            && state.operations >= from
            && fault != FileFault::Full
        {
            state.fault = None;
            state.pending.clear();
            match fault {
                FileFault::SyncLies => state.synced = state.current.clone(),
                _ => state.lost = true,
            }
            return Err(io::Error::other("planted: sync failed"));
        }
        state.pending.clear();
        if !state.lost {
            state.synced = state.current.clone();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step();
        state.full()?;
        put(&mut state.current, offset as usize, data);
        state.pending.push(Change::Write(offset, data.to_vec()));
        Ok(())
    }
}

/// Opens a [`FaultFile`].
pub(super) struct FaultOpener(pub(super) FaultFile);

impl Opener for FaultOpener {
    fn open(&self, create: bool) -> Result<(Database, bool), MetadataError> {
        let path = PathBuf::from("(fault)");
        let empty = {
            let mut state = self.0.0.lock();
            if state.lost {
                // The kernel's clean pages are dropped, and the disk is read.
                state.current = state.synced.clone();
                state.lost = false;
            }
            state.current.is_empty()
        };
        let (builder, repaired) = builder(1 << 20);
        let database = builder
            .create_with_backend(self.0.clone())
            .map_err(|e| file_error(&path, e))?;
        if empty && create {
            initialise(&path, &database)?;
        }
        Ok((database, repaired.get()))
    }
}
