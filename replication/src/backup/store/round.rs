//! Flush rounds: what acknowledgements of synced groups wait for.
//!
//! A round brings the bytes of many open replicas to the disk and answers once they are there. It looks at no
//! byte and stores no mark: the primary names ends below which everything is placed, and marks follow at the
//! flushes at an interval. Rounds of all primaries that come while one is under way make up the next one, so
//! that the disk is flushed as few times as possible.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ReplicaStore;
use crate::backup::copy::{Copy, Life};
use crate::ids::CopyId;
use crate::transport::Refusal;

/// From so many files on one flush of the file system costs less than one of each. It brings there whatever else
/// is written on that file system, too, so few files are not worth it.
const ONE_FLUSH_FROM: usize = 16;

/// What came of a round for each of its replicas.
type Outcomes = Vec<Result<(), Refusal>>;

/// The rounds of a store.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// What waits for the next round.
    waiting: Mutex<Vec<Arc<Part>>>,
    /// Held by the one that carries a round out, for all that wait.
    turn: Mutex<()>,
}

/// What one primary asks of a round.
#[derive(Debug)]
struct Part {
    copies: Vec<(CopyId, u64)>,
    outcomes: Mutex<Option<Outcomes>>,
}

impl ReplicaStore {
    /// Brings each of the replicas to the disk up to its address, together with what other primaries ask for.
    pub(super) fn flush_round(&self, copies: Vec<(CopyId, u64)>) -> Outcomes {
        let part = Arc::new(Part {
            copies,
            outcomes: Mutex::default(),
        });
        self.rounds.waiting.lock().push(part.clone());
        let turn = self.rounds.turn.lock();
        if part.outcomes.lock().is_none() {
            let parts = std::mem::take(&mut *self.rounds.waiting.lock());
            self.carry_out(&parts);
        }
        drop(turn);
        // Carried out by the one that had the turn.
        part.outcomes.lock().take().unwrap_or_default()
    }

    fn carry_out(&self, parts: &[Arc<Part>]) {
        let asked = parts.iter().flat_map(|part| part.copies.iter());
        let mut written: Vec<_> = asked.map(|(id, end)| self.write_one(id, *end)).collect();
        // Answered and only then flushed, where that rule is broken; and a crash comes before the flush.
        if !self.faults.answered_before_flush() {
            self.sync_all(&mut written);
        }
        let mut outcomes = written.into_iter().map(|one| one.map(|_| ()));
        for part in parts {
            let own = outcomes.by_ref().take(part.copies.len()).collect();
            *part.outcomes.lock() = Some(own);
        }
    }

    /// Writes what the disk lacks of one replica below `end`. Nothing is waited for but the page cache, or the
    /// device's queue.
    fn write_one(&self, id: &CopyId, end: u64) -> Result<(Arc<Copy>, u64), Refusal> {
        let copy = self.held(id).map_err(|_| Refusal::Unknown)?;
        if self.disk() != Ok(copy.spec.incarnation) {
            return Err(Refusal::Invalid(format!(
                "{id} was not opened to be flushed in rounds"
            )));
        }
        let _turn = copy.flushing.lock();
        let flushed = {
            let state = copy.state.lock();
            state.writable()?;
            if state.placed < end {
                let length = state.placed;
                return Err(Refusal::Short { length });
            }
            state.flushed.max(state.mark.synced)
        };
        let written = match flushed < end {
            true => copy.memory.write_to_disk(flushed, end),
            false => Ok(()),
        };
        match written {
            Ok(()) => Ok((copy.clone(), end)),
            Err(error) => Err(given_up(&copy, &error)),
        }
    }

    /// Syncs the written replicas to the device. If one sync fails, all of them take part in no further round: the
    /// device may have dropped what its cache held of any of them, and would answer that all is well when it is
    /// flushed the next time.
    fn sync_all(&self, written: &mut [Result<(Arc<Copy>, u64), Refusal>]) {
        let copies = || written.iter().flatten().map(|(copy, _)| copy);
        let together = copies().count() >= ONE_FLUSH_FROM;
        let synced = match together {
            true => self.memory.sync_disk(),
            false => Ok(()),
        };
        let synced =
            synced.and_then(|()| copies().try_for_each(|copy| self.sync_one(copy, together)));
        for one in written {
            let counted = match (&*one, &synced) {
                (Ok((copy, end)), Ok(())) => count(copy, *end),
                (Ok((copy, _)), Err(error)) => Err(given_up(copy, error)),
                (Err(_), _) => continue,
            };
            if let Err(refusal) = counted {
                *one = Err(refusal);
            }
        }
    }

    /// Brings what was written of one replica to the device, unless that was done `together` with others, and
    /// its name.
    fn sync_one(&self, copy: &Copy, together: bool) -> io::Result<()> {
        let _turn = copy.flushing.lock();
        if !together {
            copy.memory.sync_to_disk()?;
        }
        match self.faults.names_not_synced() {
            true => Ok(()),
            false => copy.memory.name_on_disk(),
        }
    }
}

/// What was synced counts, unless the replica has ended meanwhile.
fn count(copy: &Copy, end: u64) -> Result<(), Refusal> {
    let mut state = copy.state.lock();
    match state.life {
        Life::Open => {
            state.flushed = state.flushed.max(end);
            Ok(())
        }
        // Also where another flush of these bytes has failed meanwhile.
        Life::Sealed(by) => Err(Refusal::Sealed { by }),
        Life::Closing | Life::Flushed | Life::Freed => Err(Refusal::Unknown),
    }
}

/// A replica whose bytes could not be brought to the disk: a later sync may take them for clean, so its primary
/// writes it no more. What was flushed before counts, and a recovery may complete it.
fn given_up(copy: &Copy, error: &io::Error) -> Refusal {
    tracing::error!(copy = %copy.spec.copy, %error, "a replica of a synced group cannot be flushed; the group goes on without it");
    copy.seal(copy.spec.copy.epoch);
    Refusal::Failed(error.to_string())
}
