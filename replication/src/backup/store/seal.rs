//! Sealing, what is answered afterwards, and filling what is short.

use std::ops::RangeInclusive;

use kera_protocol::ids::{Epoch, GroupId};

use super::open::range_end;
use super::{BackupStore, too_much};
use crate::backup::copy::{Copy, Life, failed};
use crate::backup::memory::CopySpec;
use crate::ids::{CopyId, Incarnation, StreamletKey};
use crate::transport::{CopyAnswer, MAX_TRANSFER_BYTES, Refusal, SealedCopy};

impl BackupStore {
    pub(super) fn seal(
        &self,
        streamlet: StreamletKey,
        epoch: Epoch,
        copies: &[(CopyId, Incarnation)],
    ) -> Result<Vec<SealedCopy>, Refusal> {
        let mut control = self.control.lock();
        let by = control.seals.sealed(&streamlet);
        if epoch < by {
            return Err(Refusal::Sealed { by });
        }
        if !self.faults.sealing_disabled {
            if control.seals.seal(streamlet, epoch) {
                control.version += 1;
            }
            let lower = of_streamlet(&streamlet);
            for (id, copy) in control.copies.range(lower) {
                if id.epoch < epoch {
                    copy.seal(epoch);
                }
            }
            let version = control.version;
            drop(control);
            self.store_seals(version)?;
            self.forget_sealed(&streamlet, epoch);
        } else {
            drop(control);
        }
        // Stored, and nobody is writing any more: now, and not before, lengths may be read.
        let answers = copies.iter().map(|(copy, recorded)| {
            let answer = self.answer(copy, *recorded)?;
            Ok(SealedCopy {
                copy: *copy,
                answer,
            })
        });
        answers.collect()
    }

    fn answer(&self, id: &CopyId, recorded: Incarnation) -> Result<CopyAnswer, Refusal> {
        if recorded != self.incarnation && !self.faults.old_incarnation_answers {
            return Ok(CopyAnswer::Unknown);
        }
        let (copy, freed) = {
            let control = self.control.lock();
            let copy = control.copies.get(id).cloned();
            (copy, control.seals.was_freed(&id.streamlet, id.group))
        };
        match copy {
            Some(copy)
                if copy.spec.incarnation != recorded && !self.faults.old_incarnation_answers =>
            {
                Ok(CopyAnswer::Unknown)
            }
            // What was built later stands where a copy was that may have held more.
            Some(copy) if copy.spec.built && freed => Ok(CopyAnswer::Unknown),
            Some(copy) => copy.answer(self.incarnation, &self.faults),
            None if freed => Ok(CopyAnswer::Unknown),
            None => Ok(CopyAnswer::Absent),
        }
    }

    /// Takes the buffers of sealed copies from the table, so that their keys mean nothing.
    fn forget_sealed(&self, streamlet: &StreamletKey, epoch: Epoch) {
        self.buffers.write().retain(|_, (_, region)| {
            let copy = &region.copy.spec.copy;
            copy.streamlet != *streamlet || copy.epoch >= epoch
        });
    }

    pub(super) fn forget_buffers(&self, copy: &Copy) {
        let keys: Vec<_> = copy.state.lock().buffers.iter().map(|b| b.key).collect();
        let mut known = self.buffers.write();
        for key in keys {
            known.remove(&key);
        }
    }

    /// Returns when the seals of `version`, or later ones, are stored.
    pub(super) fn store_seals(&self, version: u64) -> Result<(), Refusal> {
        let mut stored = self.stored.lock();
        if *stored >= version {
            return Ok(());
        }
        let (seals, latest) = {
            let control = self.control.lock();
            (control.seals.clone(), control.version)
        };
        self.memory.store_seals(&seals).map_err(failed)?;
        *stored = latest;
        Ok(())
    }

    pub(super) fn complete(
        &self,
        spec: &CopySpec,
        epoch: Epoch,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        if bytes.len() > MAX_TRANSFER_BYTES as usize {
            return Err(too_much(bytes.len() as u64));
        }
        let end = range_end(spec, address, bytes.len() as u64)?;
        let copy = {
            let mut control = self.control.lock();
            let sealed = control.seals.sealed(&spec.copy.streamlet);
            if epoch < sealed {
                return Err(Refusal::Sealed { by: sealed });
            }
            if epoch > sealed || spec.copy.epoch > epoch {
                return Err(Refusal::NotSealed { epoch });
            }
            let copy = match control.copies.get(&spec.copy) {
                Some(copy) => copy.clone(),
                None if address > 0 => return Err(Refusal::Unknown),
                None => self.create(&mut control, spec, Life::Sealed(epoch))?,
            };
            if copy.spec.segment_size != spec.segment_size || copy.spec.segments != spec.segments {
                return Err(Refusal::Invalid(format!(
                    "{} has other sizes here",
                    spec.copy
                )));
            }
            let mut state = copy.state.lock();
            if state.life == Life::Freed {
                return Err(Refusal::Unknown);
            }
            self.reserve(&mut control, &copy, &mut state, address, end)?;
            drop(state);
            copy
        };
        if copy.complete(epoch, address, bytes)? {
            self.forget_buffers(&copy);
        }
        Ok(())
    }
}

fn of_streamlet(streamlet: &StreamletKey) -> RangeInclusive<CopyId> {
    let at = |group, epoch| CopyId {
        streamlet: *streamlet,
        group: GroupId(group),
        epoch: Epoch(epoch),
    };
    at(0, 0)..=at(u64::MAX, u32::MAX)
}
