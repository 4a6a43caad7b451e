//! What happens to groups off the append path: closing, ageing, giving back memory.

use std::io::ErrorKind;
use std::ops::Bound;
use std::time::Instant;

use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::group_life::{GroupFacts, GroupStage};
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{GroupId, LaneId};
use kera_records::seldom::Seldom;
use kera_records::{Damage, GroupRecord, Write};
use parking_lot::Mutex;

use crate::job::Job;
use crate::streamlet::{Failed, LaneSlot, Streamlet};

// A full disk fails each of these for each lane, many times a second, and the log may be on it.
static NO_FOOTER: Mutex<Seldom> = Mutex::new(Seldom::new());
static NOT_CLOSED: Mutex<Seldom> = Mutex::new(Seldom::new());
static NOT_DROPPED: Mutex<Seldom> = Mutex::new(Seldom::new());

impl Streamlet {
    /// Does a job; may wait for disk and metadata store. Returns false if it should be tried again
    /// later.
    pub fn do_job(self: &Arc<Self>, job: &Job, now_ms: u64) -> bool {
        if self.is_over() {
            return true;
        }
        match job {
            Job::Prepare(lane) => {
                self.prepare(lane.lane);
                return true;
            }
            Job::Remember(lane) => {
                self.remember(lane.lane, now_ms);
                return true;
            }
            _ => {}
        }
        let _turn = self.maintenance.lock();
        match job {
            Job::Close(lane) => self.close_frozen(lane.lane, now_ms),
            Job::Record(lane, group) => self.record_again(lane.lane, *group),
            Job::Repair(lane) => self.repair(lane.lane, now_ms),
            Job::Prepare(_) | Job::Remember(_) => true,
        }
    }

    /// Syncs, foots and records the lane's frozen groups, oldest first.
    fn close_frozen(self: &Arc<Self>, lane: LaneId, now_ms: u64) -> bool {
        let groups: Vec<Arc<Group>> = {
            let inner = self.inner.lock();
            let Some(slot) = inner.lanes.get(lane.0 as usize) else {
                return true;
            };
            if matches!(slot.slot, LaneSlot::Failed(_)) {
                // Repair closes what counts, all at once, and decides where the lane goes on.
                return false;
            }
            let frozen = slot
                .groups
                .values()
                .filter(|g| g.lane_head().is_some() && g.is_frozen());
            frozen.cloned().collect()
        };
        for group in groups {
            if !self.close_one(lane, &group, now_ms) {
                return false;
            }
        }
        true
    }

    /// Puts the file of a frozen group in order and sees to its close, which the replicas record of a group that has
    /// any. False if it is to be tried again; true also if that is asked for when there is more to do.
    fn close_one(self: &Arc<Self>, lane: LaneId, group: &Arc<Group>, now_ms: u64) -> bool {
        if group.is_shipped() {
            if !group.has_ended() {
                return true;
            }
            if group.is_broken()
                && let Err(error) = group.write_again()
            {
                // What the file lacks is in memory and in the other copies; it is tried again every
                // second or so, and fetched at the next start.
                tracing::debug!(group = ?group, %error, "a closed group is not whole in its own file yet");
                return true;
            }
        } else if group.policy() == AckPolicy::Synced && self.facts(group).behind > 0 {
            // Files of `synced` streams are written by the pump alone.
            self.env.pump.submit(group);
            return false;
        }
        let settled = self.env.pump.settle(group);
        if let Err(error) = &settled {
            tracing::warn!(group = ?group, %error, "the file of a group that has ended could not be synced");
        }
        match (GroupStage::of(&self.facts(group)), settled) {
            // The other replicas have what its own file lacks.
            (GroupStage::Closed, Err(_)) => true,
            // After the repair the lane goes on where this one ends: none behind it may be closed before.
            (_, Err(_)) => {
                (self.env.jobs)(Job::Repair(self.lane_key(lane)));
                false
            }
            (GroupStage::Closed | GroupStage::Closing, Ok(())) => {
                self.close_whole(lane, group, now_ms)
            }
            _ => false,
        }
    }

    /// What is known of a group whose one replica that is waited for is its own file.
    fn facts(&self, group: &Group) -> GroupFacts {
        let is_whole = group.synced().address >= group.end_address();
        let is_lost = group.is_broken();
        GroupFacts {
            is_recorded: group.is_recorded(),
            is_frozen: group.is_frozen(),
            is_closed: group.has_ended(),
            lost: usize::from(is_lost),
            behind: usize::from(!is_whole && !is_lost),
            whole: usize::from(is_whole && !is_lost),
            needed: 1,
            can_build: false,
            // They are looked at in their order, until one is not closed.
            is_oldest: true,
        }
    }

    /// Closes a group that is whole in its own file.
    fn close_whole(&self, lane: LaneId, group: &Arc<Group>, now_ms: u64) -> bool {
        if group.end().ordinal == group.spec().first_ordinal {
            // Alone in its lane, its snapshot may be the only memory of producers.
            return self.is_alone(lane, group) || self.drop_empty(lane, group);
        }
        let state = self.state_at_end(lane, group.id());
        if let Err(error) = group.write_footer(state.unwrap_or_default()) {
            // The footer only spares a scan.
            if let Some(others) = NO_FOOTER.lock().due(Instant::now()) {
                tracing::warn!(group = ?group, %error, others, "writing a footer failed, and so did others lately");
            }
        }
        if group.has_ended() {
            self.own_write_succeeded();
        } else {
            let closed = self.closed_record(lane, group, now_ms, None);
            let changes = vec![Write::PutGroup(closed)];
            if let Err(error) = self.env.recorder.record_now(self.epoch(), changes) {
                if let Some(others) = NOT_CLOSED.lock().due(Instant::now()) {
                    tracing::warn!(group = ?group, %error, others, "closing a group could not be recorded, nor that of others lately; trying again");
                }
                return false;
            }
        }
        self.replace_by_closed(lane, group);
        true
    }

    pub(crate) fn is_alone(&self, lane: LaneId, group: &Group) -> bool {
        let inner = self.inner.lock();
        inner
            .lanes
            .get(lane.0 as usize)
            .is_none_or(|slot| slot.groups.keys().all(|id| *id == group.id()))
    }

    /// Removes a group that ended without a batch. The lane's state is in an older group, in its
    /// successor or in memory: an empty one never became the only place for it.
    pub(crate) fn drop_empty(&self, lane: LaneId, group: &Arc<Group>) -> bool {
        let change = Write::DeleteGroup(self.group_key(group.id()));
        if let Err(error) = self.env.recorder.record_now(self.epoch(), vec![change]) {
            if let Some(others) = NOT_DROPPED.lock().due(Instant::now()) {
                tracing::warn!(group = ?group, %error, others, "dropping an empty group could not be recorded, nor that of others lately; trying again");
            }
            return false;
        }
        if let Some(slot) = self.inner.lock().lanes.get_mut(lane.0 as usize) {
            slot.groups.remove(&group.id());
        }
        self.remove_file(group);
        if let Some(copies) = self.copies.get() {
            copies.deleted(&[group.spec().name()]);
        }
        true
    }

    /// Removes the file of a group that is no longer recorded.
    pub(crate) fn remove_file(&self, group: &Group) {
        group.retire_file();
        // This broker may own it again, and have another file of this name.
        if self.is_moved() {
            return;
        }
        if let Err(error) = self.env.io.remove_file(&group.spec().path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(group = ?group, %error, "the file of a dropped group could not be removed");
        }
    }

    /// The lane's state at the end of `group`: the snapshot its successor began with.
    pub(crate) fn state_at_end(&self, lane: LaneId, group: GroupId) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock();
        let slot = &mut inner.lanes[lane.0 as usize];
        let next = slot
            .groups
            .range((Bound::Excluded(group), Bound::Unbounded))
            .next();
        match (next, &mut slot.slot) {
            (Some((_, next)), _) if next.lane_head().is_some() => Some(next.snapshot().to_vec()),
            (None, LaneSlot::Idle(carry)) => Some(carry.state.encode(usize::MAX)),
            _ => None,
        }
    }

    pub(crate) fn closed_record(
        &self,
        lane: LaneId,
        group: &Group,
        now_ms: u64,
        damage: Option<String>,
    ) -> GroupRecord {
        let (spec, end) = (group.spec(), group.end());
        group.note_end(now_ms);
        let open = GroupRecord::new(self.group_key(group.id()), lane, spec.epoch);
        let place = (end.address, end.ordinal);
        GroupRecord {
            max_timestamp_ms: group.max_timestamp().max(-1),
            closed_ms: now_ms,
            damaged: damage.map(|detail| Damage::new(end.address, detail)),
            ..open.closed(spec.first_ordinal, place, end.ordinal, Vec::new())
        }
    }

    /// Puts a closed group in the place of the one that was appended to, so that its memory, its
    /// head and its file handle can go.
    pub(crate) fn replace_by_closed(&self, lane: LaneId, group: &Arc<Group>) {
        let closed = group.to_closed();
        let mut inner = self.inner.lock();
        if let Some(slot) = inner.lanes.get_mut(lane.0 as usize)
            && slot.groups.contains_key(&group.id())
        {
            closed.set_flushed_as(group);
            slot.groups.insert(group.id(), closed);
            // Only the newest closed group keeps memory for readers near the tail.
            if let Some((_, before)) = slot.groups.range(..group.id()).next_back() {
                before.shed(0);
            }
        }
    }

    /// Gives back what readers near the tails could do without. Returns the chunks given back.
    pub(crate) fn reclaim(&self) -> usize {
        let inner = self.inner.lock();
        let mut given = 0;
        for lane in &inner.lanes {
            let newest = lane.groups.values().rev().take(2);
            given += newest
                .map(|group| group.shed(usize::from(!group.is_frozen())))
                .sum::<usize>();
        }
        given
    }

    /// Ends active groups that are older than the stream's limit; the lane goes on in a new group
    /// at its next append. Returns how many.
    pub fn age_out(self: &Arc<Self>, now_ms: u64) -> usize {
        let max_age = self.settings.load().group_max_age_ms;
        if max_age == 0 {
            return 0;
        }
        self.end_active(now_ms, |active| {
            now_ms.saturating_sub(active.created_ms) >= max_age
        })
    }

    /// Ends active groups of at least `bytes` bytes; as with [`age_out`](Self::age_out), the lane goes on in a
    /// new group. Returns how many.
    pub fn end_long(&self, bytes: u64, now_ms: u64) -> usize {
        self.end_active(now_ms, |active| active.group.end_address() >= bytes)
    }

    /// Ends every active group, as at a clean stop, and closes what is frozen.
    pub fn close_all(self: &Arc<Self>, now_ms: u64) -> bool {
        self.end_active(now_ms, |_| true);
        let _turn = self.maintenance.lock();
        let lanes = self.inner.lock().lanes.len() as u32;
        let mut all = true;
        // Nothing of a lane that could not be read is open.
        for lane in (0..lanes).map(LaneId).filter(|lane| !self.is_unread(*lane)) {
            all &= self.repair(lane, now_ms) && self.close_frozen(lane, now_ms);
        }
        all
    }

    /// The groups with records that take no more and are not closed yet: who records the close of one with replicas
    /// waits for those.
    pub fn ending(&self) -> Vec<GroupId> {
        let inner = self.inner.lock();
        let groups = inner.lanes.iter().flat_map(|lane| lane.groups.values());
        let ending = groups.filter(|group| {
            let has_records = group.end().ordinal > group.spec().first_ordinal;
            group.lane_head().is_some() && group.is_frozen() && has_records
        });
        ending.map(|group| group.id()).collect()
    }

    fn end_active(
        &self,
        now_ms: u64,
        which: impl Fn(&crate::streamlet::ActiveGroup) -> bool,
    ) -> usize {
        let mut ended = Vec::new();
        {
            let mut inner = self.inner.lock();
            for (index, lane) in inner.lanes.iter_mut().enumerate() {
                let Some(active) = lane.active() else {
                    continue;
                };
                let sound = !active.group.is_broken() || active.group.is_shipped();
                if which(&active)
                    && sound
                    && let Some(carry) = self.freeze(&active, now_ms)
                {
                    lane.slot = LaneSlot::Idle(carry);
                    ended.push((LaneId(index as u32), active));
                }
            }
        }
        for (lane, active) in &ended {
            active.group.announce_frozen();
            (self.env.jobs)(Job::Close(self.lane_key(*lane)));
        }
        ended.len()
    }

    /// Writes the durable marks of active groups; for the mark interval.
    pub fn mark(&self) {
        for group in self.active_groups() {
            if group.is_broken() {
                continue;
            }
            if let Err(error) = group.write_mark(&self.env.incarnation) {
                tracing::warn!(group = ?group, %error, "writing a durable mark failed");
            }
        }
    }

    /// The groups being appended to that hold bytes of a `written` stream which a power loss would
    /// take.
    pub fn unflushed(&self) -> Vec<Arc<Group>> {
        let mut groups = self.active_groups();
        groups.retain(|group| {
            group.policy() == AckPolicy::Written
                && !group.is_direct()
                && !group.is_broken()
                && group.synced().address < group.written().address
        });
        groups
    }

    /// Writes what lies in memory, and asks again for work that is due; to be called every second or
    /// so.
    pub fn write_out(&self) {
        for group in self.active_groups() {
            self.env.pump.write(&group);
        }
        for job in self.lanes_due() {
            (self.env.jobs)(job);
        }
    }

    /// Lanes that could not be read or have a failed group, or frozen ones that are not closed: also those that a
    /// recovery found open.
    fn lanes_due(&self) -> Vec<Job> {
        let inner = self.inner.lock();
        let due = inner.lanes.iter().enumerate().filter_map(|(index, lane)| {
            let key = self.lane_key(LaneId(index as u32));
            if let LaneSlot::Failed(Failed::Read(unread)) = &lane.slot {
                let is_due = unread.not_before <= Instant::now();
                return is_due.then_some(Job::Remember(key));
            }
            let mut open = lane.groups.values().filter(|g| g.lane_head().is_some());
            let failed = |group: &Arc<Group>| group.is_broken() && !group.is_shipped();
            if matches!(lane.slot, LaneSlot::Failed(_)) || open.clone().any(failed) {
                return Some(Job::Repair(key));
            }
            open.any(|g| g.is_frozen() && (!g.is_shipped() || g.has_ended()))
                .then_some(Job::Close(key))
        });
        due.collect()
    }

    /// Gives back the memory of lanes that have been idle, and file handles and indexes of closed
    /// groups not used for as long. Returns how many groups gave something back.
    pub fn release_idle(&self, now_ms: u64, idle_ms: u64) -> usize {
        let idle = |group: &Group| now_ms.saturating_sub(group.last_used_ms()) >= idle_ms;
        let (active, closed): (Vec<_>, Vec<Arc<Group>>) = {
            let inner = self.inner.lock();
            let active = inner
                .lanes
                .iter()
                .filter_map(|l| l.active())
                .filter(|a| idle(&a.group))
                .collect();
            let closed = inner.lanes.iter().flat_map(|l| l.groups.values());
            (
                active,
                closed
                    .filter(|g| g.lane_head().is_none())
                    .cloned()
                    .collect(),
            )
        };
        let mut released = 0;
        for active in active {
            if active.group.memory_bytes() == 0 {
                continue;
            }
            self.env.pump.write(&active.group);
            if let Some(mut tail) = active.tail.try_lock()
                && tail.writer.release_memory()
            {
                released += 1;
            }
        }
        for group in closed {
            if group.take_read() {
                group.touch(now_ms);
            }
            if idle(&group) {
                released += usize::from(group.memory_bytes() > 0);
                group.unload();
                group.release_file();
            }
        }
        released
    }

    pub(crate) fn active_groups(&self) -> Vec<Arc<Group>> {
        let inner = self.inner.lock();
        inner
            .lanes
            .iter()
            .filter_map(|l| l.active())
            .map(|a| a.group.clone())
            .collect()
    }
}
