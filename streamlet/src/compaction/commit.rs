//! A group that was made of others takes their place: first in the records, then for readers, then on the disk.

use kera_log_segments::group::Group;
use kera_log_segments::rewrite::Rewritten;
use kera_log_segments::scan::{self, ScanSpec};
use kera_log_segments::sync::Arc;
use kera_protocol::ids::LaneId;
use kera_records::{GroupRecord, Write};

use super::{CompactError, Made, Pace, Pass};
use crate::recorder::RecordError;
use crate::streamlet::Streamlet;

/// How often a change of which nobody knows whether it was made is asked after.
const ASKED: usize = 50;

/// What became of a change.
enum Outcome {
    Made,
    Refused(RecordError),
    Unknown(RecordError),
}

impl Pass<'_> {
    /// Has the new group take the place of `sources`.
    pub(super) fn commit(
        &self,
        made: Made,
        rewritten: Rewritten,
        sources: &[Arc<Group>],
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let streamlet = self.streamlet;
        let _turn = streamlet.maintenance.lock();
        let result = self.replace(&made, rewritten, sources, pace);
        match &result {
            Ok(()) => {}
            // The record may name the new file, or come to.
            Err(_) if streamlet.is_unsettled(self.lane) => {}
            Err(_) => made.rewrite.give_up(),
        }
        result
    }

    fn replace(
        &self,
        made: &Made,
        rewritten: Rewritten,
        sources: &[Arc<Group>],
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let streamlet = self.streamlet;
        let Some((last, others)) = sources.split_last() else {
            return Err(CompactError::Changed);
        };
        if !streamlet.holds_all(self.lane, sources) || streamlet.is_over() {
            return Err(CompactError::Changed);
        }
        let recorder = &streamlet.env.recorder;
        let key = streamlet.group_key(last.id());
        let before = recorder.read(key)?.ok_or(CompactError::Changed)?;
        if before.generation != last.spec().generation || before.length != last.end_address() {
            return Err(CompactError::Changed);
        }
        let record = GroupRecord {
            generation: made.spec.generation,
            first_ordinal: Some(made.spec.first_ordinal),
            length: rewritten.end.address,
            live_bytes: rewritten.end.address,
            max_timestamp_ms: rewritten.max_timestamp.max(-1),
            ..before
        };
        let deleted = others
            .iter()
            .map(|group| Write::DeleteGroup(streamlet.group_key(group.id())));
        let mut changes: Vec<_> = deleted.collect();
        changes.push(Write::PutGroup(record.clone()));
        match self.settle(&record, changes, pace) {
            Outcome::Made => {}
            Outcome::Refused(error) => return Err(error.into()),
            Outcome::Unknown(error) => {
                streamlet.replaced.lock().unsettled.push(self.lane);
                return Err(error.into());
            }
        }
        let fresh = Group::closed(
            made.spec.clone(),
            rewritten.end,
            rewritten.data_start,
            rewritten.max_timestamp,
            record.closed_ms,
            streamlet.env.io.clone(),
        );
        {
            let mut inner = streamlet.inner.lock();
            if let Some(slot) = inner.lanes.get_mut(self.lane.0 as usize) {
                for group in others {
                    slot.groups.remove(&group.id());
                }
                slot.groups.insert(fresh.id(), fresh);
            }
        }
        streamlet.replaced.lock().groups.extend_from_slice(sources);
        Ok(())
    }

    /// Records `changes`. Whether a change of which that is not certain was made, the record tells; if it was not, it is
    /// written once more as it is, so that the change, which compares it, cannot be made later either.
    fn settle(&self, record: &GroupRecord, changes: Vec<Write>, pace: Pace<'_>) -> Outcome {
        let (recorder, epoch) = (&self.streamlet.env.recorder, self.streamlet.epoch());
        let Err(error) = recorder.record_now(epoch, changes) else {
            return Outcome::Made;
        };
        for _ in 0..ASKED {
            if let Ok(Some(now)) = recorder.read(record.key()) {
                if now.generation == record.generation {
                    return Outcome::Made;
                }
                let again = vec![Write::PutGroup(now)];
                if recorder.record_now(epoch, again).is_ok() {
                    return Outcome::Refused(error);
                }
            }
            if !pace(0) || self.streamlet.is_over() {
                break;
            }
        }
        Outcome::Unknown(error)
    }
}

impl Streamlet {
    /// Whether all of `groups` are what the lane holds now.
    fn holds_all(&self, lane: LaneId, groups: &[Arc<Group>]) -> bool {
        let inner = self.inner.lock();
        let Some(slot) = inner.lanes.get(lane.0 as usize) else {
            return false;
        };
        groups.iter().all(|group| {
            let held = slot.groups.get(&group.id());
            held.is_some_and(|held| Arc::ptr_eq(held, group))
        })
    }

    /// Whether nobody knows what the records say of a lane's groups.
    pub(super) fn is_unsettled(&self, lane: LaneId) -> bool {
        self.replaced.lock().unsettled.contains(&lane)
    }

    /// Removes the files of groups that others replaced and that nobody reads any more. Cheap if there are none.
    pub fn remove_replaced(&self) {
        let mut done = Vec::new();
        self.replaced.lock().groups.retain(|group| {
            let is_read = Arc::strong_count(group) > 1;
            if !is_read {
                done.push(group.clone());
            }
            is_read
        });
        for group in done {
            self.remove_file(&group);
        }
    }

    /// The lane's state at the end of a closed group, as a footer or the snapshot of the group behind has it.
    pub(super) fn state_behind(&self, lane: LaneId, group: &Arc<Group>) -> Option<Vec<u8>> {
        if let Some(footer) = group.read_footer() {
            return Some(footer.lane_state);
        }
        let next = {
            let inner = self.inner.lock();
            let slot = inner.lanes.get(lane.0 as usize)?;
            let behind = (
                std::ops::Bound::Excluded(group.id()),
                std::ops::Bound::Unbounded,
            );
            slot.groups
                .range(behind)
                .next()
                .map(|(_, next)| next.clone())
        };
        match next {
            Some(next) if next.lane_head().is_none() => {
                let file = next.file().ok()?;
                let closed = ScanSpec::closed(next.spec(), next.end());
                let (_, snapshot) = scan::read_head(&*file, &closed).ok()?;
                Some(snapshot)
            }
            _ => self.state_at_end(lane, group.id()),
        }
    }
}
