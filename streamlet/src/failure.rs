//! Putting a lane in order after a failed write.
//!
//! The failed group ends at its last good byte. What was appended above was never acknowledged: its
//! producers are told to send again, and the lane's memory of sequences is rebuilt from the bytes
//! that count, so that the re-sent batches are neither refused nor taken twice.

use std::io::ErrorKind;

use kera_log_segments::group::Group;
use kera_log_segments::pump::Turn;
use kera_log_segments::sync::{Arc, Ordering};
use kera_protocol::ids::{LaneId, Ordinal};

use crate::producers::LaneState;
use crate::recorder::GroupChange;
use crate::recovery::ORDINAL_JUMP;
use crate::streamlet::{Carry, LaneSlot, Prepared, Streamlet};

impl Streamlet {
    /// Closes what counts, discards what does not, and leaves the lane idle. Returns false if the
    /// outcome could not be recorded yet.
    pub(crate) fn repair(self: &Arc<Self>, lane: LaneId, now_ms: u64) -> bool {
        let Some(groups) = self.stop_lane(lane) else { return true };
        for group in &groups {
            while group.write_out() == Turn::Taken {
                std::thread::yield_now();
            }
            if let Some(error) = group.failure() {
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
                    self.env.disk_full.store(true, Ordering::Relaxed);
                }
                group.cut_at_written();
            } else if let Err(error) = group.sync() {
                tracing::error!(group = ?group, %error, "syncing failed; the group ends at its last written byte");
                group.cut_at_written();
            }
        }
        let (kept, discarded) = split_chain(&groups);
        let Ok(state) = self.rebuild(&kept, &groups, now_ms) else { return false };
        let shown = {
            let inner = self.inner.lock();
            inner.lanes[lane.0 as usize].head.ordinal()
        };
        let end = kept.last().or(discarded.first()).map_or(shown, |g| {
            if kept.is_empty() { g.spec().first_ordinal } else { g.end().ordinal }
        });
        // Only `memory` shows records before they are written; their ordinals are never reused.
        let next = if shown > end { end.max(shown) + ORDINAL_JUMP } else { end };
        let mut changes = Vec::new();
        for (index, group) in kept.iter().enumerate() {
            let mut closed = self.closed_record(lane, group, now_ms, None);
            if index + 1 == kept.len() {
                closed.next_ordinal = next;
            }
            changes.push(GroupChange::Close(closed));
        }
        changes.extend(discarded.iter().map(|g| GroupChange::Delete(self.group_name(g.id()))));
        if let Err(error) = self.env.recorder.record_now(self.epoch(), changes) {
            tracing::warn!(lane = %self.lane_key(lane), %error, "a lane could not be put in order yet");
            return false;
        }
        self.restart_lane(lane, &kept, &discarded, Carry { state, next_ordinal: next });
        tracing::info!(lane = %self.lane_key(lane), ordinal = next, "lane put in order after a failed write");
        true
    }

    /// Freezes the lane and returns its groups that are not closed. `None` if nothing has failed.
    fn stop_lane(&self, lane: LaneId) -> Option<Vec<Arc<Group>>> {
        let (head, groups) = {
            let mut inner = self.inner.lock();
            let slot = inner.lanes.get_mut(lane.0 as usize)?;
            let groups: Vec<_> = slot.groups.values().filter(|g| g.lane_head().is_some()).cloned().collect();
            let failed = groups.iter().any(|g| g.failure().is_some());
            if !failed && !matches!(slot.slot, LaneSlot::Failed) {
                return None;
            }
            if let Some(active) = slot.active() {
                let mut tail = active.tail.lock();
                tail.frozen = true;
                tail.writer.freeze();
            }
            slot.slot = LaneSlot::Failed;
            (slot.head.clone(), groups)
        };
        head.abandon();
        Some(groups)
    }

    /// The lane's state at the end of the last group that counts.
    fn rebuild(&self, kept: &[Arc<Group>], all: &[Arc<Group>], now_ms: u64) -> Result<LaneState, ()> {
        let Some(last) = kept.last() else {
            let first = all.first().map_or(&[][..], |g| g.snapshot());
            return Ok(LaneState::decode(first).unwrap_or_default());
        };
        let mut state = LaneState::decode(last.snapshot()).unwrap_or_default();
        let max = self.env.limits.max_producers;
        last.for_each_header(|header| state.note(header, now_ms, max)).map_err(|error| {
            tracing::warn!(group = ?last, %error, "a failed group cannot be read back yet");
        })?;
        Ok(state)
    }

    fn restart_lane(&self, lane: LaneId, kept: &[Arc<Group>], discarded: &[Arc<Group>], carry: Carry) {
        for group in kept {
            self.replace_by_closed(lane, group);
        }
        let head = {
            let mut inner = self.inner.lock();
            let slot = &mut inner.lanes[lane.0 as usize];
            for group in discarded {
                slot.groups.remove(&group.id());
            }
            slot.prepared = Prepared::No;
            // Set before the lane takes appends again, and never above what is readable.
            let readable: Ordinal = kept.last().map_or(0, |g| g.end().ordinal);
            slot.head.resume(readable.max(carry.next_ordinal));
            slot.slot = LaneSlot::Idle(carry);
            slot.head.clone()
        };
        head.wake_all();
        for group in discarded {
            group.release_file();
            if let Err(error) = self.env.io.remove_file(&group.spec().path)
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!(group = ?group, %error, "a discarded group's file could not be removed");
            }
        }
    }
}

/// Groups count as long as each begins where the one before ends; an empty one counts for nothing.
fn split_chain(groups: &[Arc<Group>]) -> (Vec<Arc<Group>>, Vec<Arc<Group>>) {
    let mut kept: Vec<Arc<Group>> = Vec::new();
    let mut discarded = Vec::new();
    for group in groups {
        let follows = kept.last().is_none_or(|k| k.end().ordinal == group.spec().first_ordinal);
        let empty = group.end().ordinal == group.spec().first_ordinal;
        if discarded.is_empty() && follows && !empty {
            kept.push(group.clone());
        } else {
            discarded.push(group.clone());
        }
    }
    (kept, discarded)
}
