//! Writing copies to disk, at the close of a group and at an interval.

use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::ScanError;
use kera_log_segments::window::Place;

use super::ReplicaStore;
use super::buffers::Taking;
use crate::backup::copy::{Copy, Life, failed, is_lost};
use crate::ids::CopyId;
use crate::transport::Refusal;

/// Why a copy goes to disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// An interval has passed; its link goes on.
    Interval,
    /// Nobody but a recovery may write it any more, so its memory need not wait for one.
    Sealed,
    /// Its group is closed.
    Closed,
}

/// Marks of copies that a start has found that are looked at between two flushes at an interval, at most.
const MAX_MARKS: usize = 1024;

impl ReplicaStore {
    /// Looks at the marks of copies that a start took for whole, some at each interval: a start that read one file
    /// for each of a hundred thousand groups would take long. A recovery that was filling one when its process ended
    /// has lowered its mark and not its record, and such a copy counts as flushed only when a flush has looked at
    /// all of it.
    pub fn look_at_marks(&self) {
        let unread: Vec<_> = {
            let mut unread = self.unread.lock();
            let from = unread.len().saturating_sub(MAX_MARKS);
            unread.drain(from..).collect()
        };
        for id in unread {
            let Ok(copy) = self.held(&id) else { continue };
            // Nobody completes or frees it meanwhile.
            let _turn = copy.flushing.lock();
            let sealed = self.control.lock().seals.sealed(&id.streamlet);
            match copy.mark() {
                Ok(mark) if mark.synced > 0 && mark.written <= mark.synced => {}
                Ok(_) => {
                    let mut state = copy.state.lock();
                    if state.life == Life::Flushed {
                        tracing::warn!(copy = %id, "a closed group's replica was incomplete when its process ended; the streamlet's owner checks it, and replaces it if it is not whole");
                        state.life = Life::Sealed(sealed.max(id.epoch));
                    }
                }
                Err(error) if is_lost(&error) => {
                    copy.state.lock().life = Life::Sealed(sealed.max(id.epoch));
                }
                Err(error) => {
                    tracing::warn!(copy = %id, %error, "the mark of a replica cannot be read; see to replica_store.disk_dir");
                }
            }
        }
    }

    /// As [`flush_open`](Self::flush_open); what failed is told to people.
    pub fn flush_open_and_tell(&self) {
        let failures = self.flush_open();
        if let Some((copy, refusal)) = failures.first() {
            // Where one cannot be, thousands often cannot.
            let others = failures.len() - 1;
            tracing::warn!(%copy, others, "a replica was not flushed, and others neither: {refusal}");
        }
    }

    /// The flush at an interval: writes to disk what links have placed in open copies, and copies
    /// that were sealed since, which give their memory back. A copy that fails is tried again the
    /// next time. Returns the copies that failed.
    pub fn flush_open(&self) -> Vec<(CopyId, Refusal)> {
        let copies: Vec<_> = self.control.lock().copies.values().cloned().collect();
        let mut failures = Vec::new();
        for copy in copies {
            let why = {
                let state = copy.state.lock();
                match state.life {
                    Life::Open if state.placed > state.mark.synced => Why::Interval,
                    Life::Sealed(_) if !state.settled => Why::Sealed,
                    _ => continue,
                }
            };
            if let Err(refusal) = self.flush_copy(&copy, 0, why) {
                failures.push((copy.spec.copy, refusal));
            }
        }
        failures
    }

    pub(super) fn flush(&self, copy: &CopyId, length: u64, closed: bool) -> Result<Place, Refusal> {
        let copy = self.held(copy)?;
        if closed {
            return self.flush_copy(&copy, length, Why::Closed);
        }
        let end = self.flush_copy(&copy, length, Why::Interval)?;
        {
            let mut state = copy.state.lock();
            state.confirmed = state.confirmed.max(length);
        }
        if self.is_crowded() {
            let _turn = copy.flushing.lock();
            if let Err(refusal) = self.release(&copy) {
                self.not_released(&copy, &refusal);
            }
        } else {
            let control = &mut *self.control.lock();
            if control.copies.contains_key(&copy.spec.copy) && copy.state.lock().life == Life::Open
            {
                control.releasable.insert(copy.spec.copy);
            }
        }
        Ok(end)
    }

    /// Where the valid scan ends, once that is on disk.
    fn flush_copy(&self, copy: &Copy, length: u64, why: Why) -> Result<Place, Refusal> {
        let _turn = copy.flushing.lock();
        let before = copy.mark();
        let (version, flushed) = {
            let state = copy.state.lock();
            if state.life == Life::Freed {
                return Err(Refusal::Unknown);
            }
            (state.version, state.flushed)
        };
        let before = before.map_err(failed)?;
        // One that was lowered vouches for no checksum above what was synced since.
        let seen = (before.synced > 0).then_some(DurableMark {
            written: before.synced,
            written_ordinal: before.synced_ordinal,
            ..before
        });
        let scanned = match copy.scan(self.incarnation, &self.faults, seen) {
            Ok(scanned) => scanned,
            Err(ScanError::Io(error)) if is_lost(&error) && why != Why::Sealed => {
                tracing::error!(copy = %copy.spec.copy, %error, "a replica's bytes are lost");
                return Err(Refusal::Short { length: 0 });
            }
            Err(ScanError::Io(error)) => return Err(failed(error)),
            Err(_) if length == 0 => {
                // There is nothing to be flushed, and there will not be.
                let mut state = copy.state.lock();
                state.settled |= why == Why::Sealed && state.version == version;
                return Ok(Place::default());
            }
            Err(_) => return Err(Refusal::Short { length: 0 }),
        };
        let end = scanned.end;
        if end.address < length {
            return Err(Refusal::Short {
                length: end.address,
            });
        }
        if why == Why::Interval && end.address <= before.synced {
            return Ok(end);
        }
        // A closed one of which a start found more than its mark speaks of was completed, and not flushed.
        let is_proven = |life| life == Life::Flushed && end.address <= before.synced;
        if !is_proven(copy.state.lock().life)
            && copy
                .memory
                .renew(before.synced, end.address)
                .map_err(failed)?
        {
            // What was written once more is what counts now.
            match copy.scan(self.incarnation, &self.faults, seen) {
                Ok(again) if again.end == end => {}
                Ok(again) => {
                    return Err(Refusal::Short {
                        length: again.end.address,
                    });
                }
                Err(ScanError::Io(error)) => return Err(failed(error)),
                Err(_) => return Err(Refusal::Short { length: 0 }),
            }
        }
        if why == Why::Closed {
            let mut state = copy.state.lock();
            match state.life {
                Life::Freed => return Err(Refusal::Unknown),
                life if is_proven(life) => return Ok(end),
                Life::Open | Life::Sealed(_) | Life::Closing | Life::Flushed => {
                    state.life = Life::Closing;
                }
            }
            drop(state);
            if let Err(refusal) = self.forget_buffers(copy, Taking::WhenDone) {
                copy.state.lock().life = Life::Sealed(copy.spec.copy.epoch);
                return Err(refusal);
            }
        }
        if why == Why::Sealed {
            // Where a card was stuck when it was sealed.
            self.forget_buffers(copy, Taking::ByForce)?;
        }
        // How far it reached before it was damaged stays until it is closed: it is damaged, and not short.
        let reached = match why {
            Why::Closed => end,
            _ if before.written > end.address => Place {
                address: before.written,
                ordinal: before.written_ordinal,
            },
            _ => end,
        };
        let mark = before.then(reached, end, self.incarnation);
        // What rounds have flushed is there already.
        let from = before.synced.max(flushed.min(end.address));
        let flushed = copy.memory.flush(from, end.address, &mark);
        let result = flushed.and_then(|()| {
            let last = {
                let mut state = copy.state.lock();
                state.mark = mark;
                match why {
                    Why::Interval => false,
                    Why::Sealed => {
                        let sealed = matches!(state.life, Life::Sealed(_));
                        let same = sealed && state.version == version;
                        state.settled |= same;
                        same
                    }
                    Why::Closed => true,
                }
            };
            // Links write only what is open, and recoveries in the copy's turn: nothing is placed while the
            // memory goes.
            Ok(last && copy.memory.give_back(why == Why::Closed)?)
        });
        let mut state = copy.state.lock();
        if result.is_ok() && state.life == Life::Closing {
            state.life = Life::Flushed;
        }
        match result {
            Ok(false) => Ok(end),
            Ok(true) => {
                let reserved = std::mem::take(&mut state.reserved);
                // Nobody knows them any more: that came before the flush.
                state.buffers.clear();
                let first = !std::mem::replace(&mut state.on_disk, true);
                let record = why == Why::Closed && std::mem::take(&mut state.record);
                drop(state);
                self.give_back(reserved, true);
                let mut control = self.control.lock();
                control.on_disk += usize::from(first);
                control.releasable.remove(&copy.spec.copy);
                control.records -= u64::from(record);
                Ok(end)
            }
            Err(error) => {
                // Asked again, it is tried again.
                state.settled = false;
                let is_counted = state.life == Life::Open && copy.spec.incarnation.is_of_disk();
                if state.life == Life::Closing || is_counted {
                    // A round of the same bytes must not take them for flushed.
                    state.life = Life::Sealed(copy.spec.copy.epoch);
                }
                Err(failed(error))
            }
        }
    }
}
