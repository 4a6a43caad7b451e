//! Which epoch wrote what in a lane: for readers that were away over a change of epoch and ask
//! whether what they read is still what the lane holds.

use kera_log_segments::group::Group;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{Epoch, LaneId, Ordinal};

use crate::streamlet::{Failed, Lane, LaneSlot, Streamlet};

/// Where the durable records of an epoch end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The greatest epoch with records at or below the one that was asked for; that one itself if
    /// none is known.
    pub epoch: Epoch,
    /// The ordinal after its last record.
    pub end: Ordinal,
}

impl Streamlet {
    /// Where `epoch` ends in a lane. The present epoch ends at the durable head; one that wrote
    /// nothing is answered by the greatest below it that did; all that is not readable any more
    /// counts as one stretch that ends at the log start. `None` for an epoch above the present one,
    /// and for a lane that does not exist.
    ///
    /// Ends never fall as `epoch` grows. Reads no file.
    pub fn epoch_end(&self, lane: LaneId, epoch: Epoch) -> Option<EpochEnd> {
        let inner = self.inner.lock();
        let slot = inner.lanes.get(lane.0 as usize)?;
        let head = slot.head.ordinal();
        if epoch >= inner.epoch {
            return (epoch == inner.epoch).then_some(EpochEnd { epoch, end: head });
        }
        let has_records = |g: &&Arc<Group>| {
            let first = g.spec().first_ordinal;
            first < head && first < g.end().ordinal
        };
        // Where records were lost with the epoch that wrote them, ordinals jump: it ends where its last
        // group does, not where the next begins.
        let mut below = slot.groups.values().rev();
        let last = below.find(|g| g.spec().epoch <= epoch && has_records(g));
        let known = last.map(|g| EpochEnd {
            epoch: g.spec().epoch,
            end: g.end().ordinal.min(head),
        });
        let mut above = slot.groups.values();
        let next = above.find(|g| g.spec().epoch > epoch && has_records(g));
        let merged = next.filter(|g| g.spec().generation > 0);
        let known = merged
            .and_then(|g| end_within(slot, g, epoch, head))
            .or(known);
        Some(
            known
                .filter(|k| k.end > slot.log_start)
                .unwrap_or(EpochEnd {
                    epoch,
                    end: slot.log_start,
                }),
        )
    }

    /// The epoch that wrote the durable record `ordinal`; `None` if no group holds it.
    pub fn epoch_at(&self, lane: LaneId, ordinal: Ordinal) -> Option<Epoch> {
        let inner = self.inner.lock();
        let slot = inner.lanes.get(lane.0 as usize)?;
        if ordinal >= slot.head.ordinal() {
            return None;
        }
        let below = slot.groups.values().rev();
        let mut holding = below.skip_while(|g| g.spec().first_ordinal > ordinal);
        holding
            .next()
            .filter(|g| g.holds(ordinal))
            .map(|g| match g.spec().generation {
                0 => g.spec().epoch,
                _ => remembered(slot, |epochs| {
                    let wrote = epochs.iter().rev().find(|(_, first)| *first <= ordinal);
                    wrote.map_or(g.spec().epoch, |(epoch, _)| *epoch)
                }),
            })
    }
}

/// Where `epoch` ends in a file that compaction made, if the file has records of it: the file has the epoch of the last
/// of its groups, and the batches in it keep theirs. An end that is too low would send readers back, so where the lane
/// does not remember which epochs wrote, the answer is the file's end.
fn end_within(slot: &Lane, group: &Group, epoch: Epoch, head: Ordinal) -> Option<EpochEnd> {
    let end = group.end().ordinal.min(head);
    remembered(slot, |epochs| {
        let next = epochs.partition_point(|(wrote, _)| *wrote <= epoch);
        let end = epochs.get(next).map_or(end, |(_, first)| end.min(*first));
        let wrote = next.checked_sub(1).map_or(epoch, |last| epochs[last].0);
        (end > group.spec().first_ordinal).then_some(EpochEnd { epoch: wrote, end })
    })
}

/// Shows `look` the epochs that a lane remembers, which are none while it is put in order.
fn remembered<T>(slot: &Lane, look: impl FnOnce(&[(Epoch, Ordinal)]) -> T) -> T {
    match &slot.slot {
        LaneSlot::Active(active) => look(active.tail.lock().state.epochs()),
        LaneSlot::Idle(carry) | LaneSlot::Failed(Failed::Write(Some(carry))) => {
            look(carry.state.epochs())
        }
        LaneSlot::Failed(Failed::Write(None) | Failed::Read(_)) => look(&[]),
    }
}
