//! What coordinators of transactions ask of a lane.

use kera_log_segments::group::AckPolicy;
use kera_log_segments::head::LaneHead;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::{BatchHeader, Marker};
use kera_protocol::ids::{Epoch, LaneId, Ordinal};

use super::Grant;
use crate::append::{AppendError, AppendSpec, Appended};
use crate::producers::LaneState;
use crate::streamlet::{Lane, LaneSlot, Streamlet};

/// A coordinator's request to end a transaction in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTransaction {
    /// The transaction.
    pub grant: Grant,
    /// The producer's epoch from now on.
    pub epoch_after: i16,
    /// Whether its records count.
    pub commit: bool,
    /// Epoch of the coordinator.
    pub coordinator_epoch: i32,
    /// What the producer began in the lane before this is of earlier transactions, which have ended: if one is open, the
    /// lane has lost its marker. 0 if that is not known.
    pub ended_before: Ordinal,
    /// Epoch of the streamlet that it was sent to, if it was sent by a coordinator: one that was sent to another
    /// owner, or to this one at another time, is late.
    pub owner_epoch: Option<Epoch>,
}

/// What became of it.
#[derive(Debug)]
pub enum Ended {
    /// The marker has its place: it counts once it is durable.
    Marked(Appended),
    /// There is nothing to end, or its marker was appended before: it counts once the head is here, if that has failed no
    /// more often than so many times. If it has, the marker may be gone, and another record stand in its place.
    Nothing(Arc<LaneHead>, Ordinal, u64),
    /// An earlier transaction of the producer is open, whose marker the lane has lost. Its coordinator ends that one again
    /// first: it may have ended otherwise.
    NotYet,
}

/// What the lane holds of the producer's transaction.
enum Open {
    Since(Ordinal),
    No(Ordinal),
    /// An earlier one is.
    Earlier,
}

impl Streamlet {
    /// Looks at a lane's memory of producers, or changes it; `None` while that is not known. `look` has where the lane
    /// ends.
    fn with_state<T>(
        &self,
        lane: LaneId,
        look: impl FnOnce(&mut LaneState, Ordinal) -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        match &mut inner.lanes.get_mut(lane.0 as usize)?.slot {
            LaneSlot::Active(active) => {
                let mut tail = active.tail.lock();
                let end = tail.writer.next_ordinal();
                Some(look(&mut tail.state, end))
            }
            LaneSlot::Idle(carry) => Some(look(&mut carry.state, carry.next_ordinal)),
            LaneSlot::Failed(_) => None,
        }
    }

    /// Why a lane cannot end a transaction now.
    fn refusal(&self, lane: LaneId) -> AppendError {
        match self.inner.lock().lanes.get(lane.0 as usize) {
            Some(Lane {
                slot: LaneSlot::Failed(failed),
                ..
            }) => failed.refusal(lane),
            _ => AppendError::Recovering,
        }
    }

    /// Takes batches of a transaction from now on; those of the producer that began before `ended_before` have ended.
    /// `failures` are those of the lane's head when the coordinator was asked, if it was asked. False if the transaction has
    /// ended meanwhile, or there is no room.
    pub fn grant(
        &self,
        lane: LaneId,
        grant: Grant,
        ended_before: Ordinal,
        failures: Option<u64>,
        now_ms: u64,
    ) -> bool {
        let Some(head) = self.head(lane) else {
            return false;
        };
        let granted = self.with_state(lane, |state, _| {
            // A lane that was put in order has forgotten which transactions ended.
            let is_same = failures.is_none_or(|failures| failures == head.failures());
            is_same && state.grants().open(grant, ended_before, now_ms)
        });
        granted.unwrap_or(false)
    }

    /// Whether a batch of a transaction waits for a grant: no coordinator has said that its batches may come since the lane
    /// has this owner.
    pub fn awaits_grant(&self, lane: LaneId, header: &BatchHeader, now_ms: u64) -> bool {
        let awaits = self.with_state(lane, |state, _| {
            match state.open_transaction(header.producer_id) {
                Some((first, epoch)) if epoch == header.producer_epoch => {
                    state.grants().check_open(header, first, now_ms).is_err()
                }
                _ => state.grants().check(header, now_ms).is_err(),
            }
        });
        awaits.unwrap_or(false)
    }

    /// Notes that a coordinator knows of no such transaction.
    pub fn refuse_transaction(&self, lane: LaneId, producer: i64, epoch: i16, now_ms: u64) {
        self.with_state(lane, |state, _| {
            state.grants().refuse(producer, epoch, now_ms)
        });
    }

    /// The open transactions of a lane: producer, epoch, first ordinal; `None` while that is not known.
    pub fn open_transactions(&self, lane: LaneId) -> Option<Vec<(i64, i16, Ordinal)>> {
        self.with_state(lane, |state, _| state.open_transactions())
    }

    /// The last stable ordinal of a lane: what lies below it is durable and belongs to no open transaction. `None`
    /// while that is not known.
    pub fn stable(&self, lane: LaneId) -> Option<Ordinal> {
        self.stable_below_head(lane).map(|(stable, _)| stable)
    }

    /// As [`Self::stable`], with the durable head that it goes with.
    pub(crate) fn stable_below_head(&self, lane: LaneId) -> Option<(Ordinal, Ordinal)> {
        let head = self.head(lane)?.ordinal();
        let stable = self.with_state(lane, |state, _| state.stable(head))?;
        Some((stable, head))
    }

    /// Where the lane's first transaction began; `None` if there never was one, the lane's end while that is not
    /// known.
    pub fn transactional_from(&self, lane: LaneId) -> Option<Ordinal> {
        let found = self.with_state(lane, |state, _| state.transactional_from());
        found.unwrap_or(Some(0))
    }

    /// Ends a transaction: appends its marker if it has batches in the lane. A repeated request appends none. On
    /// return the caller pumps, with no lock held, and waits.
    ///
    /// # Errors
    /// [`AppendError`]; on [`AppendError::NotOwner`] the coordinator looks the owner up again.
    pub fn end_transaction(
        &self,
        lane: LaneId,
        end: &EndTransaction,
        now_ms: u64,
    ) -> Result<Ended, AppendError> {
        let head = self.head_to_end_at(lane, end)?;
        let producer = end.grant.producer;
        loop {
            // Before the look: a failure after it takes back what was found.
            let failures = head.failures();
            let open = self.with_state(lane, |state, next| {
                let open = state.open_transaction(producer);
                if open.is_some_and(|(first, _)| first < end.ended_before) {
                    return Open::Earlier;
                }
                let Some(until) = state.grants().end(end.grant, next, now_ms) else {
                    // Its marker was appended long ago, and a later transaction began.
                    return Open::No(next);
                };
                match open {
                    // A transaction of a newer epoch is not the one that is to end, also where its epoch is the one that
                    // this end gives.
                    Some((first, epoch)) if epoch <= end.grant.epoch => Open::Since(first),
                    _ => Open::No(until),
                }
            });
            let first = match open.ok_or_else(|| self.refusal(lane))? {
                Open::Since(first) => first,
                Open::No(next) => return Ok(Ended::Nothing(head, next, failures)),
                Open::Earlier => return Ok(Ended::NotYet),
            };
            if let Some(appended) = self.append_end(lane, end, first, now_ms)? {
                return Ok(Ended::Marked(appended));
            }
            // Another request was faster.
        }
    }

    /// Ends a transaction again that ended here and began before that ordinal: if it is open, the lane has lost its marker
    /// since. A later transaction of the same producer is left alone.
    ///
    /// # Errors
    /// As [`Self::end_transaction`].
    pub fn end_again(
        &self,
        lane: LaneId,
        end: &EndTransaction,
        before: Ordinal,
        now_ms: u64,
    ) -> Result<Ended, AppendError> {
        let head = self.head_to_end_at(lane, end)?;
        loop {
            let failures = head.failures();
            let looked = self.with_state(lane, |state, next| {
                let open = state.open_transaction(end.grant.producer);
                let ended =
                    |(first, epoch): &(Ordinal, i16)| *epoch <= end.grant.epoch && *first < before;
                (open.filter(ended), next)
            });
            let (open, next) = looked.ok_or_else(|| self.refusal(lane))?;
            let Some((first, _)) = open else {
                return Ok(Ended::Nothing(head, next, failures));
            };
            if let Some(appended) = self.append_end(lane, end, first, now_ms)? {
                return Ok(Ended::Marked(appended));
            }
        }
    }

    /// Where a lane ends.
    pub fn lane_end(&self, lane: LaneId) -> Option<Ordinal> {
        self.with_state(lane, |_, next| next)
    }

    /// What lies below this stays, whatever loses power: it is in closed groups that enough brokers have on their disks, or
    /// flushed where no broker has another replica. `None` while the lane is put in order.
    pub fn settled(&self, lane: LaneId) -> Option<Ordinal> {
        let mut inner = self.inner.lock();
        let lane = inner.lanes.get_mut(lane.0 as usize)?;
        for group in lane.groups.values() {
            // Closed groups have no head. One with replicas may be closed before slow disks have it, and after a take-over
            // nobody knows: it counts once that is said.
            if group.lane_head().is_none() || (group.is_shipped() && group.has_ended()) {
                if self.is_perhaps_unflushed(group) {
                    lane.asks_flushed = true;
                    return Some(group.spec().first_ordinal);
                }
                continue;
            }
            let place = match group.is_shipped() {
                // A replica of this policy counts once it is flushed.
                true if group.policy() == AckPolicy::Synced => lane.head.ordinal(),
                true => group.spec().first_ordinal,
                false => group.synced().ordinal,
            };
            if place < group.end().ordinal {
                return Some(place.max(group.spec().first_ordinal));
            }
        }
        match &lane.slot {
            LaneSlot::Active(active) => Some(active.group.end().ordinal),
            LaneSlot::Idle(carry) => Some(carry.next_ordinal),
            LaneSlot::Failed(_) => None,
        }
    }

    /// The head of a lane in which a transaction may be ended.
    fn head_to_end_at(
        &self,
        lane: LaneId,
        end: &EndTransaction,
    ) -> Result<Arc<LaneHead>, AppendError> {
        if self.is_over() || end.owner_epoch.is_some_and(|sent| sent != self.epoch()) {
            return Err(AppendError::NotOwner);
        }
        if !self.is_recovered() {
            return Err(self.append_before_recovery());
        }
        let lanes = self.inner.lock().lanes.len() as u32;
        self.head(lane).ok_or(AppendError::UnknownLane {
            lane: lane.0,
            lanes,
        })
    }

    /// Appends the marker of the transaction that began at `first`; `None` if it is not open any more.
    fn append_end(
        &self,
        lane: LaneId,
        end: &EndTransaction,
        first: Ordinal,
        now_ms: u64,
    ) -> Result<Option<Appended>, AppendError> {
        let marker = Marker {
            producer_id: end.grant.producer,
            producer_epoch: end.epoch_after,
            commit: end.commit,
            coordinator_epoch: end.coordinator_epoch,
            first_ordinal: first,
            number: end.grant.number,
        };
        let mut bytes = marker.encode(now_ms as i64);
        let header = BatchHeader::peek(&bytes).map_err(|_| AppendError::NoMemory)?;
        let spec = AppendSpec {
            lane: lane.0,
            lane_generation: None,
            now_ms,
            essential: true,
        };
        self.append_marker(&mut bytes, &header, spec, &marker)
    }
}
