//! A group that was made of others takes their place: first in the records, then for readers, then on the disk.

use kera_log_segments::group::Group;
use kera_log_segments::rewrite::Rewritten;
use kera_log_segments::scan::{self, ScanSpec};
use kera_log_segments::sync::Arc;
use kera_protocol::ids::LaneId;
use kera_records::{GroupRecord, Write};

use super::replaced::Replacement;
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
        let result = self.replace(&made, rewritten, sources, pace);
        match &result {
            Ok(()) => {}
            // The record may name the new file, or come to.
            Err(_) if streamlet.is_unsettled(self.lane) => {}
            Err(_) => self.give_up(&made),
        }
        result
    }

    /// Removes a file that is not finished. Where this broker has lost the streamlet it may own it again meanwhile, and
    /// the name may be that of a recorded group's file by now; whatever no record names is removed by others then.
    pub(super) fn give_up(&self, made: &Made) {
        if !self.streamlet.is_over() {
            made.rewrite.give_up();
        }
    }

    /// What is to be recorded of the new group.
    fn planned(
        &self,
        made: &Made,
        rewritten: Rewritten,
        last: &Arc<Group>,
    ) -> Result<GroupRecord, CompactError> {
        let recorder = &self.streamlet.env.recorder;
        let key = self.streamlet.group_key(last.id());
        let before = recorder.read(key)?.ok_or(CompactError::Changed)?;
        if before.generation != last.spec().generation || before.length != last.end_address() {
            return Err(CompactError::Changed);
        }
        if self.ship.is_none() && before.copies.len() > 1 {
            return Err(CompactError::Changed);
        }
        Ok(GroupRecord {
            generation: made.spec.generation,
            first_ordinal: Some(made.spec.first_ordinal),
            length: rewritten.end.address,
            live_bytes: rewritten.end.address,
            max_timestamp_ms: rewritten.max_timestamp.max(-1),
            damaged: None,
            ..before
        })
    }

    fn replace(
        &self,
        made: &Made,
        rewritten: Rewritten,
        sources: &[Arc<Group>],
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let streamlet = self.streamlet;
        let last = sources.last().ok_or(CompactError::Changed)?;
        // Other brokers have the bytes before a record names them; that takes its time, and nobody waits for it.
        let shipped = match self.ship {
            Some(ship) => {
                let planned = self.planned(made, rewritten, last)?;
                let mut goes_on = || pace(0) && !streamlet.is_over();
                Some(ship.ship(&planned, &mut goes_on)?)
            }
            None => None,
        };
        let _turn = streamlet.maintenance.lock();
        if !streamlet.holds_all(self.lane, sources) || streamlet.is_over() {
            return Err(CompactError::Changed);
        }
        let mut record = self.planned(made, rewritten, last)?;
        let mut hold = None;
        if let Some(shipped) = shipped {
            record.copies = shipped.copies;
            hold = Some(shipped.hold);
        }
        let fresh = Group::closed(
            made.spec.clone(),
            rewritten.end,
            rewritten.data_start,
            rewritten.max_timestamp,
            record.closed_ms,
            streamlet.env.io.clone(),
        );
        let replacement = Replacement {
            lane: self.lane,
            fresh,
            sources: sources.to_vec(),
            record,
            _hold: hold,
        };
        streamlet.record_replacement(replacement, pace)
    }
}

impl Streamlet {
    /// Records that a group takes the place of others, and has readers find it. In the turn of maintenance.
    fn record_replacement(
        &self,
        replacement: Replacement,
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let (lane, epoch) = (replacement.lane, self.epoch());
        let outcome = self.settle(&replacement, pace);
        self.replaced.lock().changes(lane, epoch);
        match outcome {
            Outcome::Made => self.adopt(replacement),
            Outcome::Refused(error) => return Err(error.into()),
            Outcome::Unknown(error) => {
                self.replaced.lock().unsettled.push(replacement);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Readers find the group that took the place of others.
    fn adopt(&self, replacement: Replacement) {
        let Replacement {
            lane,
            fresh,
            sources,
            ..
        } = replacement;
        {
            let mut inner = self.inner.lock();
            if let Some(slot) = inner.lanes.get_mut(lane.0 as usize) {
                for group in &sources {
                    slot.groups.remove(&group.id());
                }
                slot.groups.insert(fresh.id(), fresh);
            }
        }
        self.replaced.lock().groups.extend(sources);
    }

    /// Records a replacement. Whether a change of which that is not certain was made, the record tells; if it was not, it
    /// is written once more as it is, so that the change, which compares it, cannot be made later either.
    fn settle(&self, replacement: &Replacement, pace: Pace<'_>) -> Outcome {
        let (recorder, epoch) = (&self.env.recorder, self.epoch());
        let (record, changes) = (&replacement.record, replacement.changes(self));
        let Err(error) = recorder.record_now(epoch, changes) else {
            return Outcome::Made;
        };
        for _ in 0..ASKED {
            match self.ask_once(record, error.clone()) {
                Outcome::Unknown(_) => {}
                known => return known,
            }
            if !pace(0) || self.is_over() {
                break;
            }
        }
        Outcome::Unknown(error)
    }

    /// Whether a change of which that is not certain was made; if not, it cannot be any more.
    fn ask_once(&self, record: &GroupRecord, error: RecordError) -> Outcome {
        let recorder = &self.env.recorder;
        match recorder.read(record.key()) {
            Ok(Some(now)) if now.generation == record.generation => Outcome::Made,
            Ok(Some(now)) => match recorder.record_now(self.epoch(), vec![Write::PutGroup(now)]) {
                Ok(()) => Outcome::Refused(error),
                Err(_) => Outcome::Unknown(error),
            },
            // Trimmed since, whether or not the change was made. It compares a record that is gone, and a group's id is
            // never used again.
            Ok(None) => Outcome::Refused(error),
            Err(_) => Outcome::Unknown(error),
        }
    }

    /// Asks what became of a lane's changes of which nobody knows, and does what follows from it.
    pub(super) fn settle_earlier(&self, lane: LaneId) -> Result<(), CompactError> {
        let _turn = self.maintenance.lock();
        let waiting: Vec<_> = {
            let mut replaced = self.replaced.lock();
            let all = std::mem::take(&mut replaced.unsettled);
            let (of_lane, others) = all.into_iter().partition(|one| one.lane == lane);
            replaced.unsettled = others;
            of_lane
        };
        let mut unknown = None;
        for one in waiting {
            let error = RecordError(
                "an earlier change of the lane's groups has no certain outcome yet; it is asked for again".into(),
            );
            match self.ask_once(&one.record, error) {
                Outcome::Made => self.adopt(one),
                Outcome::Refused(_) => self.remove_file(&one.fresh),
                Outcome::Unknown(error) => {
                    self.replaced.lock().unsettled.push(one);
                    unknown = Some(error);
                }
            }
        }
        unknown.map_or(Ok(()), |error| Err(error.into()))
    }

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
        let replaced = self.replaced.lock();
        replaced.unsettled.iter().any(|one| one.lane == lane)
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
        if let Ok(Some(footer)) = group.read_footer() {
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
