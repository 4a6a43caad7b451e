//! Where transactions ended, by group.

use std::collections::{BTreeMap, HashSet};

use kera_log_segments::group::Group;
use kera_log_segments::read::ReadError;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::Marker;
use kera_protocol::ids::GroupId;

use super::End;

/// The transactions of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupEnds {
    /// Those that ended in it, in the order of their markers, as far as a reader [needs](is_needed) them.
    pub(super) ends: Vec<End>,
    /// Producers whose transactions have batches in it and ended later.
    pub(super) unfinished: Vec<i64>,
}

/// What is known of groups that take no more, by id and file generation. Bounded: what is not known is looked up.
#[derive(Debug, Default)]
pub(crate) struct KnownEnds {
    by_group: BTreeMap<(GroupId, u32), Arc<GroupEnds>>,
    count: usize,
}

impl KnownEnds {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get(&self, group: &Group) -> Option<Arc<GroupEnds>> {
        let key = (group.id(), group.spec().generation);
        self.by_group.get(&key).cloned()
    }

    /// Remembers no more than `most` ends, except of one group.
    pub(super) fn put(&mut self, group: &Group, ends: Arc<GroupEnds>, most: usize) {
        let key = (group.id(), group.spec().generation);
        let more = ends.weight();
        if self.count + more > most {
            self.clear();
        }
        if let Some(before) = self.by_group.insert(key, ends) {
            self.count -= before.weight();
        }
        self.count += more;
    }
}

impl GroupEnds {
    /// About as many ends as it takes room for.
    fn weight(&self) -> usize {
        1 + self.ends.len() + self.unfinished.len()
    }

    /// Looks through a group. Waits for the disk.
    pub(super) fn of(group: &Group) -> Result<Self, ReadError> {
        let mut ends = Vec::new();
        let mut open = HashSet::new();
        group.for_each_transactional(|header, bytes| {
            if !header.is_control() {
                open.insert(header.producer_id);
                return;
            }
            open.remove(&header.producer_id);
            if let Ok(Some(marker)) = Marker::decode(bytes) {
                let end = End {
                    producer: marker.producer_id,
                    first: marker.first_ordinal,
                    marker: header.base_ordinal,
                    commit: marker.commit,
                };
                ends.extend(is_needed(&end, group).then_some(end));
            }
        })?;
        Ok(Self {
            ends,
            unfinished: open.into_iter().collect(),
        })
    }
}

/// Whether readers need to know of an end in `group`: it was aborted, or it began in an earlier group, whose readers
/// look for it.
pub(crate) fn is_needed(end: &End, group: &Group) -> bool {
    !end.commit || end.first < group.spec().first_ordinal
}
