//! Writing copies to disk, at the close of a group and at an interval.

use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::ScanError;

use super::BackupStore;
use crate::backup::copy::{Copy, Life, failed};
use crate::ids::CopyId;
use crate::transport::Refusal;

impl BackupStore {
    /// Writes what links have placed in open copies to disk: the flush at an interval. A copy that
    /// fails is tried again the next time. Returns the copies that failed.
    pub fn flush_open(&self) -> Vec<(CopyId, Refusal)> {
        let copies: Vec<_> = self.control.lock().copies.values().cloned().collect();
        let mut failures = Vec::new();
        for copy in copies {
            let wanted = {
                let state = copy.state.lock();
                state.life == Life::Open && state.placed > state.mark.synced
            };
            if wanted && let Err(refusal) = self.flush_copy(&copy, 0, false) {
                failures.push((copy.spec.copy, refusal));
            }
        }
        failures
    }

    pub(super) fn flush(&self, copy: &CopyId, length: u64, closed: bool) -> Result<(), Refusal> {
        let copy = self.held(copy)?;
        self.flush_copy(&copy, length, closed)
    }

    fn flush_copy(&self, copy: &Copy, length: u64, closed: bool) -> Result<(), Refusal> {
        let _turn = copy.flushing.lock();
        let before = {
            let state = copy.state.lock();
            if state.life == Life::Freed {
                return Err(Refusal::Unknown);
            }
            state.mark
        };
        let seen = (before.sequence > 0).then_some(before);
        let scanned = match copy.scan(self.incarnation, &self.faults, seen) {
            Ok(scanned) => scanned,
            Err(ScanError::Io(error)) => return Err(failed(error)),
            Err(_) if length == 0 => return Ok(()),
            Err(_) => return Err(Refusal::Short { length: 0 }),
        };
        let end = scanned.end;
        if end.address < length {
            return Err(Refusal::Short {
                length: end.address,
            });
        }
        if !closed && end.address <= before.synced {
            return Ok(());
        }
        if closed {
            let mut state = copy.state.lock();
            match state.life {
                Life::Freed => return Err(Refusal::Unknown),
                Life::Flushed => return Ok(()),
                Life::Open | Life::Sealed(_) => state.life = Life::Flushed,
            }
            drop(state);
            self.forget_buffers(copy);
        }
        let mark = DurableMark {
            sequence: before.sequence + 1,
            written: end.address,
            written_ordinal: end.ordinal,
            synced: end.address,
            synced_ordinal: end.ordinal,
            store_id: self.incarnation.store_id,
            boot_id: self.incarnation.boot_id,
        };
        let flushed = copy.memory.flush(before.synced, end.address, &mark, closed);
        let mut state = copy.state.lock();
        let given_back = match flushed {
            Ok(given_back) => given_back,
            Err(error) => {
                // Asked again, it is tried again.
                if closed && state.life == Life::Flushed {
                    state.life = Life::Sealed(copy.spec.copy.epoch);
                }
                return Err(failed(error));
            }
        };
        state.mark = mark;
        if given_back {
            let reserved = std::mem::take(&mut state.reserved);
            state.buffers.clear();
            drop(state);
            self.give_back(reserved);
        }
        Ok(())
    }
}
