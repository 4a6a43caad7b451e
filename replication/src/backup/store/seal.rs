//! Sealing, what is answered afterwards, and filling what is short.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use bytes::Bytes;
use kera_protocol::ids::Epoch;

use super::buffers::Taking;
use super::open::range_end;
use super::{Control, ReplicaStore, too_much};
use crate::backup::copy::Life;
use crate::backup::memory::CopySpec;
use crate::ids::{BufferKey, CopyId, Incarnation};
use crate::transport::{CopyAnswer, MAX_TRANSFER_BYTES, Refusal, Reply, Request, Seal, SealedCopy};

impl ReplicaStore {
    /// Seals streamlets, all of them or, where one is refused, none, and stores that once; then
    /// answers for the named copies of each. May take as long as reading all of them.
    ///
    /// # Errors
    /// [`Refusal::Sealed`] if a higher epoch has sealed one of them; [`Refusal::NoRoom`] if the store
    /// remembers as many streamlets as its limits allow.
    pub fn seal_all(&self, seals: &[Seal]) -> Result<Vec<Vec<SealedCopy>>, Refusal> {
        let answered = self.seal_each(seals);
        self.asked.note(&answered);
        answered
    }

    pub(super) fn seal_each(&self, seals: &[Seal]) -> Result<Vec<Vec<SealedCopy>>, Refusal> {
        let mut control = self.control.lock();
        let mut new = BTreeSet::new();
        for seal in seals {
            let by = control.seals.sealed(&seal.streamlet);
            if seal.epoch < by {
                return Err(Refusal::Sealed { by });
            }
            if !control.seals.knows(&seal.streamlet) {
                new.insert(seal.streamlet);
            }
        }
        self.room_for_streamlets(&mut control, new.len())?;
        if !self.faults.sealing_disabled() {
            let mut sealed = Vec::new();
            for Seal {
                streamlet, epoch, ..
            } in seals
            {
                if control.seals.seal(*streamlet, *epoch) {
                    control.version += 1;
                }
                for (id, copy) in control.copies.range(CopyId::all_of(*streamlet)) {
                    if id.epoch < *epoch {
                        copy.seal(*epoch);
                        sealed.push(copy.clone());
                    }
                }
            }
            let version = control.version;
            drop(control);
            for copy in sealed {
                copy.wait_for_completion();
            }
            self.store_seals(version)?;
            self.forget_where(Taking::ByForce, |entry| {
                let copy = &entry.region.copy.spec.copy;
                let ends =
                    |seal: &Seal| copy.streamlet == seal.streamlet && copy.epoch < seal.epoch;
                seals.iter().any(ends)
            })?;
        } else {
            drop(control);
        }
        if let Some(beside) = self.beside.get() {
            for seal in seals {
                beside.sealed(seal.streamlet, seal.epoch);
            }
        }
        self.asked.sealed(seals.len());
        // Stored, and nobody is writing any more: now, and not before, lengths may be read.
        let answers = seals.iter().map(|seal| {
            let answers = seal.copies.iter().map(|(copy, recorded)| {
                let answer = match self.answer_beside(seal, copy, *recorded)? {
                    Some(answer) => answer,
                    None => self.answer(copy, *recorded)?,
                };
                Ok(SealedCopy {
                    copy: *copy,
                    answer,
                })
            });
            answers.collect()
        });
        answers.collect()
    }

    /// What a copy outside of the store holds, if it is one that the record means.
    fn answer_beside(
        &self,
        seal: &Seal,
        copy: &CopyId,
        recorded: Incarnation,
    ) -> Result<Option<CopyAnswer>, Refusal> {
        let Some(beside) = self.beside.get() else {
            return Ok(None);
        };
        if !beside.is_mine(recorded) || self.is_mine(recorded) {
            return Ok(None);
        }
        let asked = beside.handle(Request::Seal(Seal {
            streamlet: seal.streamlet,
            epoch: seal.epoch,
            copies: vec![(*copy, recorded)],
        }));
        Ok(match asked? {
            Reply::Sealed(mut answers) => match answers.pop().map(|sealed| sealed.answer) {
                // A file is made before it is recorded, and may have been removed since: what it held nobody knows.
                Some(CopyAnswer::Absent) => Some(CopyAnswer::Gone { is_file: true }),
                answer => answer,
            },
            _ => None,
        })
    }

    fn answer(&self, id: &CopyId, recorded: Incarnation) -> Result<CopyAnswer, Refusal> {
        if self.is_hidden(&id.streamlet) {
            return Ok(CopyAnswer::Unknown);
        }
        let (copy, freed, removed) = {
            let control = self.control.lock();
            let copy = control.copies.get(id).cloned();
            let freed = control.seals.was_freed(&id.streamlet, id.group);
            (
                copy,
                freed,
                control.seals.was_removed(&id.streamlet, id.group),
            )
        };
        // That it was freed is known in later lives as well. A file may stand in its place.
        let has_file = || self.beside.get().is_some_and(|beside| beside.has(id));
        if copy.is_none() && removed && !has_file() {
            return Ok(CopyAnswer::Gone { is_file: false });
        }
        if !self.is_mine(recorded) && !self.faults.old_incarnation_answers() {
            return Ok(CopyAnswer::Unknown);
        }
        match copy {
            // What was built here stands where a copy was not, in either life.
            Some(copy)
                if copy.spec.incarnation != recorded
                    && !(copy.spec.built && self.is_mine(copy.spec.incarnation))
                    && !self.faults.old_incarnation_answers() =>
            {
                Ok(CopyAnswer::Unknown)
            }
            // What was built later stands where a copy was that may have held more.
            Some(copy) if copy.spec.built && freed => Ok(CopyAnswer::Unknown),
            Some(copy) if copy.still_here().is_err() => Ok(CopyAnswer::Unknown),
            Some(copy) => copy.answer(self.incarnation, &self.faults),
            None if freed => Ok(CopyAnswer::Unknown),
            None => Ok(CopyAnswer::Absent),
        }
    }

    /// Returns when the seals of `version`, or later ones, are stored.
    pub(super) fn store_seals(&self, version: u64) -> Result<(), Refusal> {
        self.stored(version).map_err(|error| {
            if let Some(others) = self.unsealed.lock().due(Instant::now()) {
                tracing::error!(%error, others, "seals cannot be stored: no broker recovers from this broker's replicas, and none is freed; check replica_store.shared_dir and replica_store.disk_dir");
            }
            Refusal::Failed(format!("the seals cannot be stored: {error}"))
        })
    }

    /// As [`store_seals`](Self::store_seals).
    pub(super) fn stored(&self, version: u64) -> io::Result<()> {
        let mut stored = self.stored.lock();
        if *stored >= version {
            return Ok(());
        }
        let (seals, latest) = {
            let control = self.control.lock();
            (control.seals.clone(), control.version)
        };
        self.memory.store_seals(&seals)?;
        *stored = latest;
        self.control.lock().own_bytes = self.memory.own_bytes();
        Ok(())
    }

    pub(super) fn complete(
        &self,
        spec: &CopySpec,
        epoch: Epoch,
        address: u64,
        bytes: &Bytes,
    ) -> Result<(), Refusal> {
        if bytes.len() > MAX_TRANSFER_BYTES as usize {
            return Err(too_much(bytes.len() as u64));
        }
        let end = range_end(spec, address, bytes.len() as u64)?;
        let beside = self.beside(&spec.copy);
        let (copy, version) = {
            let mut control = self.control.lock();
            may_complete(&control, spec, epoch)?;
            if let Some(beside) = beside.filter(|_| !control.copies.contains_key(&spec.copy)) {
                drop(control);
                let complete = Request::Complete {
                    copy: spec.copy,
                    epoch,
                    segment_size: spec.segment_size,
                    segments: spec.segments,
                    address,
                    bytes: bytes.clone(),
                };
                return beside.handle(complete).map(|_| ());
            }
            let copy = match control.copies.get(&spec.copy) {
                Some(copy) => copy.clone(),
                // It would stand beside the file, if there is one.
                None if self.is_starting() => return Err(Refusal::Starting),
                None if address > 0 => return Err(Refusal::Unknown),
                None => {
                    let copy = self.create(&mut control, spec, Life::Sealed(epoch))?;
                    let (streamlet, group) = (&spec.copy.streamlet, spec.copy.group);
                    if spec.copy.generation == 0 && control.seals.made_again(streamlet, group) {
                        control.version += 1;
                    }
                    copy
                }
            };
            if copy.spec.segment_size != spec.segment_size || copy.spec.segments != spec.segments {
                return Err(Refusal::Invalid(format!(
                    "{} has other sizes here",
                    spec.copy
                )));
            }
            (copy, control.version)
        };
        if address == 0 {
            // Before it counts: a start that does not find it must not take it for removed.
            self.store_seals(version)?;
        }
        // Whoever flushes or frees it is waited for while nobody else waits for us.
        let _turn = copy.flushing.lock();
        {
            let mut control = self.control.lock();
            may_complete(&control, spec, epoch)?;
            let mut state = copy.state.lock();
            if state.life == Life::Freed {
                return Err(Refusal::Unknown);
            }
            let mut key = |_, _| Ok(BufferKey(rand::random()));
            self.reserve(&mut control, &copy, &mut state, address, end, &mut key)?;
        }
        if copy.complete(epoch, address, bytes)? {
            self.forget_buffers(&copy, Taking::ByForce)?;
        }
        Ok(())
    }
}

/// Whether `epoch`, and nobody else, completes copies now.
fn may_complete(control: &Control, spec: &CopySpec, epoch: Epoch) -> Result<(), Refusal> {
    let sealed = control.seals.sealed(&spec.copy.streamlet);
    if epoch < sealed {
        return Err(Refusal::Sealed { by: sealed });
    }
    if epoch > sealed || spec.copy.epoch > epoch {
        return Err(Refusal::NotSealed { epoch });
    }
    Ok(())
}
