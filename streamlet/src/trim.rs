//! Trim and retention: moving a lane's log start up and freeing whole groups below it.

use kera_log_segments::group::Group;
use kera_log_segments::invariant;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};
use kera_records::{Compare, Write};

use crate::recorder::RecordError;
use crate::streamlet::Streamlet;

/// What a trim did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// The log start now.
    pub log_start: Ordinal,
    /// Bytes of deleted groups.
    pub freed_bytes: u64,
    /// Groups deleted.
    pub groups: usize,
}

impl Streamlet {
    /// Makes everything below `ordinal` (at most the last stable ordinal: nothing of an open transaction goes)
    /// unreadable and deletes the groups that lie wholly below, with the records of groups of which nothing is left. The lane's newest group is kept until its successor's header is on
    /// disk, because it holds the lane's state.
    ///
    /// # Errors
    /// [`RecordError`] if the new log start could not be recorded; nothing is deleted then.
    pub fn trim(&self, lane: LaneId, ordinal: Ordinal) -> Result<Trimmed, RecordError> {
        self.trim_if(lane, ordinal, Vec::new())
    }

    /// [`Self::trim`], if all of `compare` holds when the log start is recorded.
    ///
    /// # Errors
    /// As of [`Self::trim`], and if something of `compare` does not hold.
    pub fn trim_if(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
        compare: Vec<Compare>,
    ) -> Result<Trimmed, RecordError> {
        let _turn = self.maintenance.lock();
        // Not known while the lane is put in order after a failed write.
        let stable = self.stable(lane).unwrap_or(0);
        let (log_start, doomed, successor, empty, epoch) = {
            let inner = self.inner.lock();
            let Some(slot) = inner.lanes.get(lane.0 as usize) else {
                return Ok(Trimmed::default());
            };
            let log_start = slot.log_start.max(ordinal.min(stable));
            let mut doomed: Vec<Arc<Group>> = Vec::new();
            let mut successor = None;
            for group in slot.groups.values() {
                if group.lane_head().is_none() && group.end().ordinal <= log_start {
                    doomed.push(group.clone());
                } else {
                    successor = Some(group.clone());
                    break;
                }
            }
            if successor.is_none() {
                // The newest group with records stays, and with it what follows: its file tells
                // what the lane remembers of its producers.
                let newest = doomed
                    .iter()
                    .rposition(|g| g.end().ordinal > g.spec().first_ordinal)
                    .unwrap_or(0);
                successor = doomed.drain(newest..).next();
            }
            // Below the oldest group that stays there may be a gap; a start within it would look to
            // a recovery as if groups were missing.
            let log_start = match &successor {
                Some(oldest) if !doomed.is_empty() => {
                    log_start.max(oldest.spec().first_ordinal.min(stable))
                }
                _ => log_start,
            };
            let empty = slot.empty.iter().filter(|(_, next)| **next <= log_start);
            let empty: Vec<GroupId> = empty.map(|(group, _)| *group).collect();
            if log_start == slot.log_start && doomed.is_empty() && empty.is_empty() {
                return Ok(Trimmed {
                    log_start,
                    ..Default::default()
                });
            }
            (log_start, doomed, successor, empty, inner.epoch)
        };
        let (mut doomed, mut empty) = (doomed, empty);
        // The first group that stays tells where the lane begins, once that is recorded or in its file.
        let mut stays = successor.as_ref().map(|group| group.id());
        if let Some(successor) = successor.filter(|g| g.lane_head().is_some()) {
            // An active successor: its header and snapshot must be on disk before the state in the
            // groups below may go.
            if successor.is_shipped() {
                // Its record may not tell where it begins, and its copies may lack its snapshot: the
                // group before it stays until it is closed.
                stays = doomed.pop().map(|group| group.id());
            } else if successor.written().address == 0 || self.env.pump.settle(&successor).is_err()
            {
                stays = doomed.first().map(|group| group.id());
                doomed.clear();
            }
        }
        empty.retain(|group| stays.is_some_and(|stays| *group < stays));
        for group in &doomed {
            invariant!(
                group.end().ordinal <= log_start,
                "{group:?} would be deleted, and {} begins at {log_start}",
                self.lane_key(lane)
            );
        }
        let mut changes = vec![Write::PutLaneStart {
            key: self.lane_key(lane),
            ordinal: log_start,
        }];
        let deleted = doomed.iter().map(|group| group.id()).chain(empty.clone());
        changes.extend(deleted.map(|group| Write::DeleteGroup(self.group_key(group))));
        let recorder = &self.env.recorder;
        recorder.record_now_if(epoch, compare, changes)?;
        {
            let mut inner = self.inner.lock();
            let slot = &mut inner.lanes[lane.0 as usize];
            slot.log_start = slot.log_start.max(log_start);
            for group in &doomed {
                slot.groups.remove(&group.id());
            }
            slot.empty.retain(|group, _| !empty.contains(group));
        }
        let mut freed_bytes = 0;
        for group in &doomed {
            freed_bytes += group.end_address();
            self.remove_file(group);
        }
        if let Some(copies) = self.copies.get().filter(|_| !doomed.is_empty()) {
            let gone: Vec<_> = doomed.iter().map(|g| g.spec().name()).collect();
            copies.deleted(&gone);
        }
        Ok(Trimmed {
            log_start,
            freed_bytes,
            groups: doomed.len(),
        })
    }

    /// The ordinal below which everything in the lane is older than `timestamp`, by whole closed
    /// groups; `None` if nothing is. Both times are milliseconds, `now` is retention's.
    pub fn expired_below(&self, lane: LaneId, timestamp: i64, now: i64) -> Option<Ordinal> {
        let is_over = |group: &Group| {
            group
                .newest_ms(now)
                .is_some_and(|newest| newest < timestamp)
        };
        let inner = self.inner.lock();
        let slot = inner.lanes.get(lane.0 as usize)?;
        let expired = slot
            .groups
            .values()
            .take_while(|g| g.lane_head().is_none() && is_over(g));
        expired.last().map(|g| g.end().ordinal)
    }
}
