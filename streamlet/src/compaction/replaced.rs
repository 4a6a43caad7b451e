//! What is left of compactions that are over, and what one that is under way relies on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kera_log_segments::group::Group;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_records::{GroupRecord, Write};

use crate::streamlet::Streamlet;

/// A group that was made of others, and those.
pub(super) struct Replacement {
    pub(super) lane: LaneId,
    pub(super) fresh: Arc<Group>,
    pub(super) sources: Vec<Arc<Group>>,
    pub(super) record: GroupRecord,
    /// Keeps its replicas at other brokers until it is known what the records say.
    pub(super) _hold: Option<Box<dyn Send>>,
}

impl Replacement {
    /// What the records are to say.
    pub(super) fn changes(&self, streamlet: &Streamlet) -> Vec<Write> {
        let sources = self.sources.iter().map(|group| group.id());
        let others = sources.filter(|id| *id != self.fresh.id());
        let deleted = others.map(|id| Write::DeleteGroup(streamlet.group_key(id)));
        let mut changes: Vec<_> = deleted.collect();
        changes.push(Write::PutGroup(self.record.clone()));
        changes
    }
}

/// What a streamlet's compactions have left.
#[derive(Default)]
pub(crate) struct Replaced {
    /// Groups that others replaced, and that readers may still hold.
    pub(super) groups: Vec<Arc<Group>>,
    /// Changes of which nobody knows whether they were made.
    pub(super) unsettled: Vec<Replacement>,
    /// A pass is under way: files that no record names may be its.
    pub(super) is_passing: bool,
    /// When a lane's records last changed, or may have.
    changed: HashMap<LaneId, (Epoch, Instant)>,
}

impl Replaced {
    /// A lane's records change, under an epoch.
    pub(super) fn changes(&mut self, lane: LaneId, epoch: Epoch) {
        self.changed.insert(lane, (epoch, Instant::now()));
    }

    /// Whether the last change of a lane's records is so long ago that nobody reads what it replaced. What owners of
    /// earlier epochs changed may have been changed just before the first question under this one.
    pub(super) fn is_quiet(&mut self, lane: LaneId, epoch: Epoch, quiet: Duration) -> bool {
        if quiet.is_zero() {
            return true;
        }
        let known = self.changed.get(&lane).filter(|(of, _)| *of == epoch);
        let Some((_, since)) = known else {
            self.changes(lane, epoch);
            return false;
        };
        since.elapsed() >= quiet
    }
}

/// Held while a pass is under way.
pub(super) struct Passing<'a>(&'a Streamlet);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.replaced.lock().is_passing = false;
    }
}

impl Streamlet {
    /// Files that a pass makes stay until it is over.
    pub(super) fn passing(&self) -> Passing<'_> {
        // Whoever removes files looks first, and has this turn until they are gone.
        let _turn = self.maintenance.lock();
        self.replaced.lock().is_passing = true;
        Passing(self)
    }

    /// Whether a file of a later generation than a group has may be about to take its place.
    pub(crate) fn may_be_replaced(&self) -> bool {
        let replaced = self.replaced.lock();
        replaced.is_passing || !replaced.unsettled.is_empty()
    }

    /// Whether a file is that of a group which another replaced and readers may still hold.
    pub(crate) fn is_replaced(&self, group: GroupId, generation: u32) -> bool {
        let replaced = self.replaced.lock();
        let mut held = replaced.groups.iter().map(|held| held.spec());
        held.any(|held| (held.group, held.generation) == (group, generation))
    }
}
