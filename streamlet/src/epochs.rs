//! Which epoch wrote what in a lane: for readers that were away over a change of epoch and ask
//! whether what they read is still what the lane holds.

use kera_protocol::ids::{Epoch, LaneId, Ordinal};

use crate::streamlet::Streamlet;

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
        // Where records were lost with the epoch that wrote them, ordinals jump: it ends where its last
        // group does, not where the next begins.
        let mut below = slot.groups.values().rev();
        let last = below.find(|g| {
            let first = g.spec().first_ordinal;
            g.spec().epoch <= epoch && first < head && first < g.end().ordinal
        });
        let known = last.map(|g| EpochEnd {
            epoch: g.spec().epoch,
            end: g.end().ordinal.min(head),
        });
        Some(
            known
                .filter(|k| k.end > slot.log_start)
                .unwrap_or(EpochEnd {
                    epoch,
                    end: slot.log_start,
                }),
        )
    }

    /// The epoch of the group that holds the durable record `ordinal`; `None` if no group does.
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
            .map(|g| g.spec().epoch)
    }
}
