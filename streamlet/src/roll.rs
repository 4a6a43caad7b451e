//! Opening and rolling groups.
//!
//! A roll is O(1) in memory and waits for nothing: the new group takes appends at once, while its
//! record and its file follow; until the record is durable the head stands still before it. On hot
//! lanes the record is made ahead, so that not even the first acknowledgement waits.

use std::time::Instant;

use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::invariant;
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::sync::{Arc, Ordering};
use kera_protocol::ids::{GroupId, LaneId, LaneKey};
use kera_records::seldom::Seldom;
use kera_records::{GroupRecord, GroupState, Write};
use parking_lot::Mutex;

use crate::job::Job;
use crate::recorder::RecordError;
use crate::standing::Standing;
use crate::streamlet::{
    ActiveGroup, Carry, Env, Filling, Inner, Lane, LaneSlot, Prepared, Streamlet, Tail, group_lock,
};

/// A full disk fails this for each lane, many times a second, and the log may be on it.
static NOT_RECORDED: Mutex<Seldom> = Mutex::new(Seldom::new());

/// A group just begun.
pub(crate) struct Begun {
    active: Arc<ActiveGroup>,
    record: RecordOf,
}

/// Where the record of a group just begun comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordOf {
    /// It was made ahead.
    Ahead,
    /// It was asked for ahead, or others make it.
    OnItsWay,
    /// It is to be asked for.
    Wanted,
}

/// The lane snapshot takes a quarter of the first segment at most, so that data fits behind it.
pub(crate) fn snapshot_limit(segment_size: u32) -> usize {
    segment_size as usize / 4
}

impl Streamlet {
    /// Opens a group in an idle lane; `None` if it is not idle. The streamlet lock is held.
    pub(crate) fn open_group(&self, inner: &mut Inner, lane: LaneId, now_ms: u64) -> Option<Begun> {
        let slot = &mut inner.lanes.get_mut(lane.0 as usize)?.slot;
        let LaneSlot::Idle(carry) = slot else {
            return None;
        };
        let carry = Carry {
            state: std::mem::take(&mut carry.state),
            next_ordinal: carry.next_ordinal,
        };
        Some(self.begin(inner, lane, carry, now_ms))
    }

    /// Asks for the record of a group just begun, with all locks released.
    pub(crate) fn announce(&self, lane: LaneId, begun: Begun) -> Arc<ActiveGroup> {
        if begun.record == RecordOf::Wanted {
            let group = &begun.active.group;
            self.record_open(group, lane);
            self.inner.lock().announcing.retain(|id| *id != group.id());
        }
        begun.active
    }

    /// Replaces a full group. Takes the streamlet lock, then the group lock.
    pub(crate) fn roll(&self, lane: LaneId, full: &Arc<ActiveGroup>, now_ms: u64) {
        let mut inner = self.inner.lock();
        let still = inner.lanes[lane.0 as usize]
            .active()
            .is_some_and(|a| Arc::ptr_eq(&a, full));
        if !still || self.standing() != Standing::Serving {
            // Another appender has rolled it, or the lane takes no more; the caller looks again.
            return;
        }
        if let Some(carry) = self.freeze(full, now_ms) {
            let begun = self.begin(&mut inner, lane, carry, now_ms);
            drop(inner);
            full.group.announce_frozen();
            self.announce(lane, begun);
            (self.env.jobs)(Job::Close(self.lane_key(lane)));
        }
    }

    /// Ends a group and takes what the lane carries over, under the group lock.
    pub(crate) fn freeze(&self, active: &ActiveGroup, now_ms: u64) -> Option<Carry> {
        let mut tail = active.tail.lock();
        if tail.filling == Filling::Frozen {
            return None;
        }
        tail.filling = Filling::Frozen;
        active.group.note_end(now_ms);
        let end = tail.writer.freeze();
        if active.group.is_shipped() {
            // The other copies close it; the lane goes on in its next group, if there is any use.
            self.note_failure(&active.group);
        }
        let mut state = std::mem::take(&mut tail.state);
        state.expire(now_ms.saturating_sub(self.env.limits.producer_expiry_ms));
        Some(Carry {
            state,
            next_ordinal: end.ordinal,
        })
    }

    fn begin(&self, inner: &mut Inner, lane: LaneId, mut carry: Carry, now_ms: u64) -> Begun {
        let settings = self.settings.load();
        let epoch = inner.epoch;
        let lane_generation = inner.lane_generation;
        let copies = self.copies.get();
        let slot = &mut inner.lanes[lane.0 as usize];
        let (group_id, record) = match std::mem::replace(&mut slot.prepared, Prepared::No) {
            Prepared::Ready(id) => (id, RecordOf::Ahead),
            // Whoever asked for it finds the group begun.
            Prepared::Asked(id) => (id, RecordOf::OnItsWay),
            Prepared::No => match copies {
                // They record it, and say when it counts.
                Some(copies) => (copies.next_group(lane, settings.ack), RecordOf::OnItsWay),
                None => {
                    inner.next_group += 1;
                    (GroupId(inner.next_group), RecordOf::Wanted)
                }
            },
        };
        let made_ahead = inner.made_ahead.remove(&group_id).flatten();
        let slot = &mut inner.lanes[lane.0 as usize];
        let (before, head) = (slot.groups.last_key_value(), slot.head.ordinal());
        invariant!(
            carry.next_ordinal >= head,
            "{} would begin at ordinal {}, and all below {head} was acknowledged",
            self.group_key(group_id),
            carry.next_ordinal
        );
        invariant!(
            before.is_none_or(|(before, _)| *before < group_id),
            "{} would follow {before:?} in {}",
            self.group_key(group_id),
            self.lane_key(lane)
        );
        let spec = self.spec(&settings, lane, group_id, epoch, carry.next_ordinal, now_ms);
        let snapshot = carry.state.encode(snapshot_limit(settings.segment_size));
        let slot = &mut inner.lanes[lane.0 as usize];
        let (group, writer) = Group::create(
            spec,
            settings.ack,
            slot.head.clone(),
            self.env.io.clone(),
            self.env.pool.clone(),
            snapshot,
        );
        match (copies, slot.groups.values().next_back()) {
            (Some(copies), _) => copies.begin(lane, &group),
            (None, Some(before)) if before.spec().epoch == epoch => group.follow(before),
            (None, _) => {}
        }
        if let Some(file) = made_ahead {
            group.adopt(file);
        }
        slot.head.push_group(group.clone());
        slot.groups.insert(group_id, group.clone());
        let active = Arc::new(ActiveGroup {
            group: group.clone(),
            head: slot.head.clone(),
            failures: slot.head.failures(),
            created_ms: now_ms,
            tail: group_lock(Tail {
                writer,
                state: carry.state,
                lane_generation,
                filling: Filling::Begun,
                ends: Vec::new(),
            }),
        });
        slot.slot = LaneSlot::Active(active.clone());
        match record {
            RecordOf::Ahead => group.mark_recorded(),
            RecordOf::Wanted => inner.announcing.push(group_id),
            RecordOf::OnItsWay => {}
        }
        Begun { active, record }
    }

    /// Asks for the group's record; the head counts the group once it is durable. Its file comes first: one
    /// that is recorded and has none has lost it. If it cannot be made, the first write says so.
    fn record_open(&self, group: &Arc<Group>, lane: LaneId) {
        let spec = group.spec();
        let file_made = group.policy() != AckPolicy::Memory && group.file().is_ok();
        let change = Write::PutGroup(GroupRecord {
            state: GroupState::Open,
            first_ordinal: Some(spec.first_ordinal),
            file_made,
            ..GroupRecord::new(self.group_key(spec.group), lane, spec.epoch)
        });
        let (env, lane_key) = (self.env.clone(), self.lane_key(lane));
        let group = group.clone();
        let done = move |outcome| recorded(&env, lane_key, &group, outcome);
        let done = Box::new(done);
        self.env.recorder.record(spec.epoch, vec![change], done);
    }

    /// Tries again to record a group whose record failed, unless it was made all the same. False if nobody knows.
    pub(crate) fn record_again(&self, lane: LaneId, group: GroupId) -> bool {
        let group = self.group(lane, group);
        let Some(group) = group.filter(|g| !g.is_recorded() && !self.is_over()) else {
            return true;
        };
        match self.env.recorder.read(self.group_key(group.id())) {
            Ok(Some(_)) => recorded(&self.env, self.lane_key(lane), &group, Ok(())),
            Ok(None) => self.record_open(&group, lane),
            Err(_) => return false,
        }
        true
    }

    /// Makes the file of the lane's next group and records it, ahead of its use.
    pub(crate) fn prepare(self: &Arc<Self>, lane: LaneId) {
        let (epoch, group) = {
            let mut inner = self.inner.lock();
            let full = self.env.disk_full.load(Ordering::Relaxed);
            if self.is_over() || full || self.copies.get().is_some() {
                return;
            }
            if !inner.lanes.get(lane.0 as usize).is_some_and(is_unprepared) {
                return;
            }
            inner.next_group += 1;
            (inner.epoch, GroupId(inner.next_group))
        };
        let ack = self.settings.load().ack;
        // If it cannot be made now, the group's first write tries again.
        let file_made = ack != AckPolicy::Memory && self.make_ahead(lane, group, ack);
        {
            let mut inner = self.inner.lock();
            let slot = &mut inner.lanes[lane.0 as usize];
            let newest = slot.groups.keys().next_back();
            if !is_unprepared(slot) || newest.is_some_and(|newest| *newest > group) {
                // The lane has ended meanwhile, or rolled: ids rise along a lane.
                drop(inner);
                return self.drop_ahead(group, true);
            }
            slot.prepared = Prepared::Asked(group);
        }
        let change = Write::PutGroup(GroupRecord {
            file_made,
            ..GroupRecord::new(self.group_key(group), lane, epoch)
        });
        let this = self.clone();
        self.env.recorder.record(
            epoch,
            vec![change],
            Box::new(move |outcome| {
                let mut inner = this.inner.lock();
                let Inner {
                    lanes, made_ahead, ..
                } = &mut *inner;
                let slot = &mut lanes[lane.0 as usize];
                if matches!(slot.prepared, Prepared::Asked(id) if id == group) {
                    slot.prepared = match outcome {
                        Ok(()) => Prepared::Ready(group),
                        Err(_) => {
                            made_ahead.remove(&group);
                            Prepared::No
                        }
                    };
                } else if let Some(begun) = slot.groups.get(&group).cloned() {
                    drop(inner);
                    recorded(&this.env, this.lane_key(lane), &begun, outcome);
                }
            }),
        );
    }
}

/// The outcome of a group's record is known. Call without holding any lock.
fn recorded(env: &Env, lane: LaneKey, group: &Arc<Group>, outcome: Result<(), RecordError>) {
    match outcome {
        Ok(()) => {
            group.set_recorded();
            if let Some(next) = group.next() {
                next.pump(&env.pump);
            }
        }
        Err(error) => {
            if let Some(others) = NOT_RECORDED.lock().due(Instant::now()) {
                tracing::warn!(group = ?group, %error, others, "a group could not be recorded, nor could others lately; trying again");
            }
            (env.jobs)(Job::Record(lane, group.id()));
        }
    }
}

fn is_unprepared(lane: &Lane) -> bool {
    matches!(lane.prepared, Prepared::No) && matches!(lane.slot, LaneSlot::Active(_))
}
