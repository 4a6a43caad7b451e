//! Opening: reserving memory, and promising it to one link.

use std::ops::RangeInclusive;
use std::sync::Arc;

use kera_protocol::ids::Epoch;

use super::buffers::Registrations;
use super::{Control, ReplicaStore};
use crate::backup::copy::{Copy, Life, State, failed};
use crate::backup::memory::CopySpec;
use crate::ids::{BrokerId, BufferKey, CopyId};
use crate::transport::{Buffer, Opened, Refusal, Room};

/// Segment sizes and numbers that a copy may have, as in a segment's header.
const SEGMENT_BYTES: RangeInclusive<u32> = 1024..=1 << 30;
const MAX_SEGMENTS: u32 = 1 << 16;

impl ReplicaStore {
    /// As [`open`](Self::open); where there is no room, what is on disk makes some.
    pub(super) fn open_or_make_room(
        &self,
        spec: &CopySpec,
        primary: BrokerId,
        address: u64,
        bytes: u32,
    ) -> Result<Opened, Refusal> {
        match self.open(spec, primary, address, bytes) {
            Err(Refusal::NoRoom {
                of: Room::Memory, ..
            }) if self.release_all() > 0 => self.open(spec, primary, address, bytes),
            other => other,
        }
    }

    fn open(
        &self,
        spec: &CopySpec,
        primary: BrokerId,
        address: u64,
        bytes: u32,
    ) -> Result<Opened, Refusal> {
        let end = range_end(spec, address, u64::from(bytes))?;
        if !self.is_mine(spec.incarnation) {
            return Err(Refusal::OtherIncarnation);
        }
        let mut control = self.control.lock();
        let sealed = control.seals.sealed(&spec.copy.streamlet);
        if spec.copy.epoch < sealed && !self.faults.open_after_seal() {
            return Err(Refusal::Sealed { by: sealed });
        }
        let known = control.copies.get(&spec.copy).cloned();
        let is_new = known.is_none();
        let copy = match known {
            Some(copy) => copy,
            None if address > 0 => return Err(Refusal::Unknown),
            // It was here, and is gone: an empty one in its place would say it never held anything.
            None if control
                .seals
                .was_freed(&spec.copy.streamlet, spec.copy.group) =>
            {
                return Err(Refusal::Unknown);
            }
            None => self.create(&mut control, spec, Life::Open)?,
        };
        let mut state = copy.state.lock();
        state.writable()?;
        if address < state.released {
            return Err(Refusal::Invalid(format!(
                "{} is on disk up to {}, and complete",
                spec.copy, state.released
            )));
        }
        if copy.spec != *spec || state.primary.is_some_and(|p| p != primary) {
            return Err(Refusal::Invalid(format!(
                "{} is open with other sizes or for another owner",
                spec.copy
            )));
        }
        state.primary = Some(primary);
        let end = self.share(&control, &copy, &state, address..end);
        let mut registered = Registrations::new();
        let mut key =
            |address, bytes| self.key_for(&copy, primary, address, bytes, &mut registered);
        let reserved = self.reserve(&mut control, &copy, &mut state, address, end, &mut key);
        let buffers = state.covering(address, end);
        if !registered.is_empty() {
            // Nobody here will see what a card writes: as far as it may, it may have.
            let ends = buffers.iter().map(Buffer::end);
            state.placed = ends.fold(state.placed, u64::max);
        }
        if let Err(refusal) = reserved {
            // One that has given all its memory back is on disk, and counts.
            let empty = is_new && state.buffers.is_empty();
            if empty {
                state.life = Life::Freed;
            } else {
                self.enter(&copy, primary, &buffers, &mut registered);
            }
            drop(state);
            if empty {
                control.copies.remove(&spec.copy);
                control.records -= 1;
                copy.memory.remove().map_err(failed)?;
            }
            return Err(refusal);
        }
        self.enter(&copy, primary, &buffers, &mut registered);
        drop(state);
        // Others need not wait for that.
        drop(control);
        for buffer in &buffers {
            copy.memory.warm(buffer.address, u64::from(buffer.bytes));
        }
        Ok(Opened {
            buffers,
            process: self.process,
        })
    }

    pub(super) fn create(
        &self,
        control: &mut Control,
        spec: &CopySpec,
        life: Life,
    ) -> Result<Arc<Copy>, Refusal> {
        if self.is_hidden(&spec.copy.streamlet) {
            return Err(Refusal::Failed(
                "a directory with replicas of this streamlet could not be read when the broker started; put it right and start the broker again".into(),
            ));
        }
        let mut others = control.copies.range(of_group(&spec.copy));
        // A compaction's file is made while the one that it replaces still counts.
        if let Some((other, _)) = others.find(|(other, _)| other.epoch != spec.copy.epoch) {
            return Err(Refusal::Invalid(format!(
                "a replica of {other} is here; a group has one epoch"
            )));
        }
        if let Some(of) = self.full_of_copies(control) {
            let (asked, free) = (1, 0);
            return Err(Refusal::NoRoom { of, asked, free });
        }
        self.meet(control, spec.copy.streamlet)?;
        let memory = self.memory.create(spec).map_err(|e| no_room(e, 1))?;
        let copy = Arc::new(Copy::new(*spec, memory, life));
        control.copies.insert(spec.copy, copy.clone());
        control.records += 1;
        Ok(copy)
    }

    /// Reserves what of `from..to` is not yet; `key` names a reserved range of an address and bytes.
    pub(super) fn reserve(
        &self,
        control: &mut Control,
        copy: &Copy,
        state: &mut State,
        from: u64,
        to: u64,
        key: &mut dyn FnMut(u64, u64) -> Result<BufferKey, Refusal>,
    ) -> Result<(), Refusal> {
        let size = u64::from(copy.spec.segment_size);
        let limit = (from / size + 1) * size;
        let missing = state.uncovered(from, to, limit);
        let lacking = |(from, to): &(u64, u64)| copy.memory.lacking(*from, to - from);
        let asked: u64 = missing.iter().map(lacking).sum();
        let free = self.limits.memory_bytes.saturating_sub(control.used());
        if asked > free {
            let of = Room::Memory;
            return Err(Refusal::NoRoom { of, asked, free });
        }
        for (from, to) in missing {
            let bytes = to - from;
            let taken = copy.memory.reserve(from, bytes);
            let taken = taken.map_err(|e| no_room(e, bytes))?;
            // A segment's size is 32 bits, and a buffer lies within one.
            state.add(from, bytes as u32, key(from, bytes)?);
            control.holders += u64::from(state.reserved == 0 && taken > 0);
            state.reserved += taken;
            control.reserved += taken;
        }
        Ok(())
    }
}

fn of_group(copy: &CopyId) -> RangeInclusive<CopyId> {
    let at = |epoch, generation| CopyId {
        epoch: Epoch(epoch),
        generation,
        ..*copy
    };
    at(0, 0)..=at(u32::MAX, u32::MAX)
}

/// The end of `len` bytes at `address`, within one segment of a group of legal size.
pub(super) fn range_end(spec: &CopySpec, address: u64, len: u64) -> Result<u64, Refusal> {
    let legal =
        SEGMENT_BYTES.contains(&spec.segment_size) && (1..=MAX_SEGMENTS).contains(&spec.segments);
    if !legal {
        return Err(Refusal::Invalid(format!(
            "{} segments of {} bytes are no group",
            spec.segments, spec.segment_size
        )));
    }
    let size = u64::from(spec.segment_size);
    let end = address.checked_add(len).filter(|_| len > 0);
    match end {
        Some(end) if end <= spec.group_bytes() && (end - 1) / size == address / size => Ok(end),
        _ => Err(Refusal::Invalid(format!(
            "{len} bytes at {address} do not lie within one segment of {}",
            spec.copy
        ))),
    }
}

fn no_room(error: std::io::Error, asked: u64) -> Refusal {
    match error.kind() {
        std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded
        | std::io::ErrorKind::OutOfMemory => Refusal::NoRoom {
            of: Room::Memory,
            asked,
            free: 0,
        },
        _ => failed(error),
    }
}
