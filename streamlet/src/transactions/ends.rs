//! Where transactions ended, by group.

use std::collections::{BTreeMap, HashSet};

use kera_log_segments::group::Group;
use kera_log_segments::read::ReadError;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::Marker;
use kera_protocol::ids::GroupId;

use super::End;

/// Ends remembered per lane, over all its groups that take no more.
const MAX_KNOWN: usize = 64 << 10;

/// The transactions of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupEnds {
    /// Those that ended in it.
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

    pub(super) fn put(&mut self, group: &Group, ends: Arc<GroupEnds>) {
        let key = (group.id(), group.spec().generation);
        let more = ends.weight();
        if self.count + more > MAX_KNOWN {
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
                ends.push(End {
                    producer: marker.producer_id,
                    first: marker.first_ordinal,
                    marker: header.base_ordinal,
                    commit: marker.commit,
                });
            }
        })?;
        Ok(Self {
            ends,
            unfinished: open.into_iter().collect(),
        })
    }
}
