//! A streamlet whose groups have copies at other brokers: what it needs of whoever makes them, and
//! what they need of it.
//!
//! Who makes the copies also records the groups and closes them, and decides how far the head may go
//! ([`Group::set_replicated`]): for the streamlet a group is one like any other, but for the moment at
//! which it begins and the moment at which its close is known.

use std::io::ErrorKind;

use kera_log_segments::group::{AckPolicy, Group, GroupSpec, MadeFile};
use kera_log_segments::replicas::{Copies, GroupOwner, Mending};
use kera_log_segments::sync::{Arc, Ordering};
use kera_log_segments::window::Place;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};

use crate::job::Job;
use crate::standing::Standing;
use crate::streamlet::{Inner, LaneSlot, Streamlet};

impl Streamlet {
    /// Serves from now on, with the copies that `copies` makes: for a streamlet without history, or
    /// after [`Self::take_over`].
    pub fn serve(&self, copies: Arc<dyn Copies>) {
        let _only_once = self.copies.set(copies);
        self.standing.advance(Standing::Serving);
    }

    /// The least group id that no record and no file has.
    pub fn next_group(&self) -> GroupId {
        GroupId(self.inner.lock().next_group + 1)
    }

    /// The engine that its files are read and written with.
    pub fn io(&self) -> Arc<dyn kera_log_segments::io::Io> {
        self.env.io.clone()
    }

    /// The store and the boot that write its files.
    pub fn incarnation(&self) -> kera_protocol::ids::Incarnation {
        self.env.incarnation
    }

    /// Whether its groups have copies at other brokers, of which a file that is gone is made anew.
    pub fn has_copies(&self) -> bool {
        self.copies.get().is_some()
    }

    /// Whether damage in a group's own file may be mended from another copy: it is closed, and has
    /// some.
    pub(crate) fn is_mendable(&self, group: &Group) -> bool {
        self.copies.get().is_some() && group.lane_head().is_none() && group.is_frozen()
    }

    /// Fetches a closed group's file anew and reads that from now on.
    pub(crate) fn mend(&self, lane: LaneId, group: &Arc<Group>) -> Mending {
        // One at a time: whoever comes second finds it done.
        let _one_at_a_time = self.mending.lock();
        let is_current = |inner: &Inner| {
            let current = inner.group(lane, group.id());
            current.map(|current| Arc::ptr_eq(current, group))
        };
        match is_current(&self.inner.lock()) {
            Some(true) => {}
            Some(false) => return Mending::Done,
            None => return Mending::Nowhere,
        }
        let Some(copies) = self.copies.get() else {
            return Mending::Nowhere;
        };
        let mending = copies.mend(group.id());
        if mending != Mending::Done {
            return mending;
        }
        let fresh = Group::closed(
            group.spec().clone(),
            group.end(),
            0,
            group.max_timestamp(),
            group.ended_ms(),
            self.env.io.clone(),
        );
        let mut inner = self.inner.lock();
        if is_current(&inner) == Some(true)
            && let Some(slot) = inner.lanes.get_mut(lane.0 as usize)
        {
            slot.groups.insert(group.id(), fresh);
            // Where it was damaged, not all ends in it were found.
            slot.ends.clear();
            return Mending::Done;
        }
        drop(inner);
        // Trimmed meanwhile: the file is nobody's.
        let path = &group.spec().path;
        if let Err(error) = self.env.io.remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "a file that no longer counts could not be removed");
        }
        Mending::Nowhere
    }

    /// A closed group of which nothing is left is given up: readers pass it by, and its record, which says where the lane
    /// goes on, goes with a trim. Nothing happens if it has another generation by now.
    pub fn forget_group(
        &self,
        lane: LaneId,
        (group, generation): (GroupId, u32),
        next_ordinal: Ordinal,
    ) {
        let mut inner = self.inner.lock();
        let Some(slot) = inner.lanes.get_mut(lane.0 as usize) else {
            return;
        };
        let is_it = |found: &Arc<Group>| {
            found.spec().generation == generation && found.lane_head().is_none()
        };
        if slot.groups.get(&group).is_some_and(is_it) {
            slot.groups.remove(&group);
            slot.empty.insert(group, next_ordinal);
        }
    }

    /// Whether a group is closed and its own file of this generation written to its end, so that what the file lacks
    /// is damage. Once compaction has replaced it its file goes.
    pub fn is_settled(&self, lane: LaneId, group: GroupId, generation: u32) -> bool {
        let found = self.group(lane, group);
        found.is_some_and(|group| group.spec().generation == generation && self.is_mendable(&group))
    }

    /// Closed groups of which somebody asks whether they stay if all brokers with replicas lose their power, and nobody has
    /// said so yet: oldest first, with the generations of their files.
    pub fn unflushed_closed(&self) -> Vec<(GroupId, u32)> {
        let inner = self.inner.lock();
        let asked = inner.lanes.iter().filter(|lane| lane.asks_flushed);
        let groups = asked
            .flat_map(|lane| lane.groups.values())
            .filter(|group| group.lane_head().is_none() && self.is_perhaps_unflushed(group));
        groups
            .map(|group| (group.id(), group.spec().generation))
            .collect()
    }

    /// Whether a closed group has replicas of which nobody has said that enough are on disk.
    pub(crate) fn is_perhaps_unflushed(&self, group: &Group) -> bool {
        let is_empty = group.end().ordinal == group.spec().first_ordinal;
        self.copies.get().is_some() && !is_empty && !group.is_flushed()
    }

    /// The file generation of a group, if it is there.
    pub fn generation_of(&self, lane: LaneId, group: GroupId) -> Option<u32> {
        let found = self.group(lane, group);
        found.map(|group| group.spec().generation)
    }

    /// Has the file of a closed group that is not here fetched from another copy; false if there is none
    /// that can be had now, or the group is not closed or not there. Call without holding any lock, on a
    /// thread that may wait.
    pub fn fetch_again(&self, lane: LaneId, group: GroupId) -> bool {
        let found = self.group(lane, group);
        let found = found.filter(|group| self.is_mendable(group));
        found.is_some_and(|group| self.mend(lane, &group) == Mending::Done)
    }
}

impl Streamlet {
    /// Makes the name of a file durable that was made ahead, where [`Group::make_file_to_record`] does.
    fn keep_name(&self, spec: &GroupSpec, ack: AckPolicy) -> std::io::Result<()> {
        if ack != AckPolicy::Synced || !self.has_copies() {
            return Ok(());
        }
        let synced = self.env.io.sync_dir(&self.dir());
        synced.inspect_err(|_| {
            // Nothing stands in the way of the next attempt, unless that fails too.
            let _ = self.env.io.remove_file(&spec.path);
        })
    }
}

impl GroupOwner for Streamlet {
    fn freeze_group(&self, lane: LaneId, group: &Arc<Group>, now_ms: u64) -> Place {
        {
            let mut inner = self.inner.lock();
            if let Some(slot) = inner.lanes.get_mut(lane.0 as usize)
                && let Some(active) = slot.active()
                && Arc::ptr_eq(&active.group, group)
                && let Some(carry) = self.freeze(&active, now_ms)
            {
                slot.slot = LaneSlot::Idle(carry);
            }
        }
        group.end()
    }

    fn make_ahead(&self, lane: LaneId, group: GroupId, ack: AckPolicy) -> bool {
        if ack == AckPolicy::Memory {
            // Its owner's process answers for it, and no file.
            return true;
        }
        if self.is_over() || self.env.disk_full.load(Ordering::Relaxed) {
            return false;
        }
        let epoch = {
            let mut inner = self.inner.lock();
            inner.made_ahead.insert(group, None);
            inner.epoch
        };
        let spec = self.spec(&self.settings.load(), lane, group, epoch, 0, 0);
        let made = MadeFile::make(&spec, ack, &self.env.io);
        let made = made.and_then(|file| self.keep_name(&spec, ack).map(|()| file));
        let mut inner = self.inner.lock();
        match made {
            Ok(file) => {
                // Several may wait long for their use where there are replicas.
                let file = match self.has_copies() {
                    true => file.put_away(),
                    false => file,
                };
                inner.made_ahead.insert(group, Some(file));
                true
            }
            Err(error) => {
                inner.made_ahead.remove(&group);
                tracing::debug!(file = %spec.path.display(), %error, "a file could not be made ahead of its use, and its group is not recorded ahead");
                false
            }
        }
    }

    fn drop_ahead(&self, group: GroupId, is_unrecorded: bool) {
        self.inner.lock().made_ahead.remove(&group);
        if !is_unrecorded {
            return;
        }
        let path = self.dir().join(GroupSpec::file_name(group, 0));
        if let Err(error) = self.env.io.remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "a file made ahead of its use could not be removed");
        }
    }

    fn group_ended(&self, lane: LaneId, group: &Group) {
        group.set_ended();
        (self.env.jobs)(Job::Close(self.lane_key(lane)));
    }

    fn group_flushed(&self, lane: LaneId, (group, generation): (GroupId, u32), with_own: bool) {
        let inner = self.inner.lock();
        if let Some(group) = inner.group(lane, group)
            && group.spec().generation == generation
        {
            group.set_flushed(with_own);
        }
    }

    fn deposed(&self) {
        // The new owner has, or gets, what counts.
        self.mark_moved();
    }
}
