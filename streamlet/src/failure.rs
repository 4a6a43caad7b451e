//! Putting a lane in order after a failed write.
//!
//! The failed group ends at its last good byte. What was appended above was never acknowledged: its
//! producers are told to send again, and the lane's memory of sequences is rebuilt from the bytes
//! that count, so that the re-sent batches are neither refused nor taken twice.

use std::io::ErrorKind;

use kera_log_segments::group::{AckPolicy, Group, MAX_GROUP_ORDINALS};
use kera_log_segments::lane_chain::LaneChain;
use kera_log_segments::sync::{Arc, Ordering};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_records::Write;

use crate::producers::LaneState;
use crate::streamlet::{Carry, Failed, Filling, LaneSlot, Prepared, Streamlet};

impl Streamlet {
    /// Closes what counts, discards what does not, and leaves the lane idle. Returns false if the
    /// outcome could not be recorded yet. The maintenance lock is held.
    pub(crate) fn repair(self: &Arc<Self>, lane: LaneId, now_ms: u64) -> bool {
        if self.is_unread(lane) {
            return true;
        }
        if self.copies.get().is_some() {
            // Whoever makes the copies closes what failed here, and loses nothing.
            return true;
        }
        let (groups, shown) = match self.stop_lane(lane) {
            Stopped::Sound => return true,
            Stopped::NotYet => return false,
            Stopped::Here(groups, shown) => (groups, shown),
        };
        groups.iter().for_each(|group| self.end_group(group, shown));
        // Those of an older epoch were recovered whole and counted before; closed ones, and a gap,
        // may stand between them and what this process began.
        let epoch = self.epoch();
        let (mut recovered, begun): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|group| group.spec().epoch < epoch);
        let (kept, discarded) = split_chain(&begun);
        let Ok(Carry {
            state,
            next_ordinal: end,
        }) = self.rebuild(lane, &kept, begun.first(), now_ms)
        else {
            return false;
        };
        // Only `memory` shows records before they are written; their ordinals are never reused.
        let next = if shown > end {
            shown + MAX_GROUP_ORDINALS
        } else {
            end
        };
        let mut changes: Vec<_> = kept
            .iter()
            .map(|group| self.closed_record(lane, group, now_ms, None))
            .collect();
        if next > end && changes.is_empty() {
            // Somebody must carry the jump over a restart: a group without records does.
            changes.extend(
                discarded
                    .first()
                    .map(|group| self.closed_record(lane, group, now_ms, None)),
            );
        }
        if let Some(last) = changes.last_mut() {
            last.next_ordinal = next;
        }
        let carriers: Vec<_> = changes.iter().map(|closed| closed.group).collect();
        let whole = recovered.iter();
        changes.extend(whole.map(|group| self.closed_record(lane, group, now_ms, None)));
        let mut changes: Vec<_> = changes.into_iter().map(Write::PutGroup).collect();
        let gone = discarded
            .iter()
            .filter(|group| !carriers.contains(&group.id()));
        changes.extend(gone.map(|group| Write::DeleteGroup(self.group_key(group.id()))));
        if let Err(error) = self.env.recorder.record_now(epoch, changes) {
            tracing::warn!(lane = %self.lane_key(lane), %error, "a lane could not be put in order yet");
            return false;
        }
        recovered.extend(kept);
        self.restart_lane(
            lane,
            &recovered,
            &discarded,
            Carry {
                state,
                next_ordinal: next,
            },
        );
        tracing::info!(lane = %self.lane_key(lane), ordinal = next, "lane put in order after a failed write");
        true
    }

    /// Freezes the lane and returns its groups that are not closed, with the head at which it stood.
    fn stop_lane(&self, lane: LaneId) -> Stopped {
        let (head, groups) = {
            let mut inner = self.inner.lock();
            let announcing = inner.announcing.clone();
            let Some(slot) = inner.lanes.get_mut(lane.0 as usize) else {
                return Stopped::Sound;
            };
            let groups: Vec<_> = slot
                .groups
                .values()
                .filter(|g| g.lane_head().is_some())
                .cloned()
                .collect();
            if !groups.iter().any(|g| g.is_broken()) && !matches!(slot.slot, LaneSlot::Failed(_)) {
                return Stopped::Sound;
            }
            if groups.iter().any(|g| announcing.contains(&g.id())) {
                return Stopped::NotYet;
            }
            if let Some(active) = slot.active() {
                let mut tail = active.tail.lock();
                tail.filling = Filling::Frozen;
                tail.writer.freeze();
            }
            let failed = LaneSlot::Failed(Failed::Write(None));
            if let LaneSlot::Idle(carry) | LaneSlot::Failed(Failed::Write(Some(carry))) =
                std::mem::replace(&mut slot.slot, failed)
            {
                slot.slot = LaneSlot::Failed(Failed::Write(Some(carry)));
            }
            (slot.head.clone(), groups)
        };
        // From here on the head stands still.
        head.abandon();
        Stopped::Here(groups, head.ordinal())
    }

    /// Writes and syncs what can be, and ends a failed group where its bytes are good.
    fn end_group(&self, group: &Arc<Group>, shown: Ordinal) {
        if self.env.pump.settle(group).is_ok() {
            return;
        }
        self.note_failure(group);
        // What was shown stays, whatever the device may have lost; what was only written under
        // `synced` does not count: a retry of it must not pass for durable.
        if group.policy() != AckPolicy::Synced || group.written().ordinal <= shown {
            group.cut_at_written();
        } else if group.synced().ordinal >= shown {
            group.cut_at_synced();
        } else {
            // Shown under `written`, before the policy was altered.
            match group.locate(shown, None, false) {
                Ok(place) => group.cut_at(place),
                Err(_) => group.cut_at_written(),
            };
        }
        if let Err(error) = group.sync_good() {
            tracing::error!(group = ?group, %error, "syncing what is left of a failed group failed: it may be damaged after a power loss");
        }
    }

    /// Refuses appends from now on if `group` failed because the disk is full, or is one of several with
    /// copies elsewhere that failed for another reason.
    pub(crate) fn note_failure(&self, group: &Group) {
        let Some(error) = group.failure() else {
            return;
        };
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                self.env.disk_full.store(true, Ordering::Relaxed);
            }
            _ if group.is_shipped() => self.own_write_failed(&error),
            _ => {}
        }
    }

    /// What the lane carries from the last group that counts, of those begun by this process.
    fn rebuild(
        &self,
        lane: LaneId,
        kept: &[Arc<Group>],
        first: Option<&Arc<Group>>,
        now_ms: u64,
    ) -> Result<Carry, ()> {
        let Some(group) = kept.last().or(first) else {
            // It had begun none: what it carried all counts.
            let inner = self.inner.lock();
            return match &inner.lanes[lane.0 as usize].slot {
                LaneSlot::Failed(Failed::Write(Some(carry))) => Ok(carry.clone()),
                _ => Err(()),
            };
        };
        let mut state = LaneState::decode(group.snapshot()).map_err(|error| {
            tracing::error!(group = ?group, %error, "a failed group's lane snapshot cannot be read");
        })?;
        if kept.is_empty() {
            let next_ordinal = group.spec().first_ordinal;
            return Ok(Carry {
                state,
                next_ordinal,
            });
        }
        group
            .for_each_header(|header| state.note(header, now_ms))
            .map_err(|error| {
                tracing::warn!(group = ?group, %error, "a failed group cannot be read back yet");
            })?;
        let next_ordinal = group.end().ordinal;
        Ok(Carry {
            state,
            next_ordinal,
        })
    }

    fn restart_lane(
        &self,
        lane: LaneId,
        kept: &[Arc<Group>],
        discarded: &[Arc<Group>],
        carry: Carry,
    ) {
        for group in kept {
            self.replace_by_closed(lane, group);
        }
        let head = {
            let mut inner = self.inner.lock();
            let slot = &mut inner.lanes[lane.0 as usize];
            for group in discarded {
                slot.groups.remove(&group.id());
            }
            let prepared = std::mem::replace(&mut slot.prepared, Prepared::No);
            // What was cut may have held markers.
            slot.ends.clear();
            // Before the lane takes appends again: all below is durable, or lost for good.
            slot.head.raise(carry.next_ordinal);
            slot.slot = LaneSlot::Idle(carry);
            let head = slot.head.clone();
            if let Prepared::Asked(id) | Prepared::Ready(id) = prepared {
                inner.made_ahead.remove(&id);
            }
            head
        };
        head.wake_all();
        discarded.iter().for_each(|group| self.remove_file(group));
    }
}

/// What stopping a lane for repair found.
enum Stopped {
    /// Nothing has failed.
    Sound,
    /// A group is just being begun.
    NotYet,
    /// Its open groups, and the durable head.
    Here(Vec<Arc<Group>>, Ordinal),
}

/// Groups count as long as each begins where the one before ends; those without records are left
/// out.
fn split_chain(groups: &[Arc<Group>]) -> (Vec<Arc<Group>>, Vec<Arc<Group>>) {
    let (mut kept, mut discarded) = (Vec::new(), Vec::new());
    let start = groups.first().map_or(0, |first| first.spec().first_ordinal);
    let mut chain = LaneChain::new(start, Some(start));
    let mut is_whole = true;
    for group in groups {
        let (first, end) = (group.spec().first_ordinal, group.end().ordinal);
        is_whole &= chain.continues(first);
        match is_whole && end > first {
            true => kept.push(group.clone()),
            false => discarded.push(group.clone()),
        }
        chain.counts(end, None);
    }
    (kept, discarded)
}
