//! Where transactions ended, by group.

use std::collections::{BTreeMap, HashMap};

use kera_log_segments::group::Group;
use kera_log_segments::read::ReadError;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::Marker;
use kera_protocol::ids::{GroupId, Ordinal};

use super::End;

/// The transactions of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupEnds {
    /// Those that ended in it, in the order of their markers, as far as a reader [needs](is_needed) them.
    pub(super) ends: Vec<End>,
    /// Producers whose transactions have batches in it, from that ordinal on, and ended later.
    pub(super) unfinished: HashMap<i64, Ordinal>,
    /// Where its batches are damaged: they may have been ends. Then `ends` are all that are left.
    pub(super) damaged: Vec<Ordinal>,
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
        1 + self.ends.len() + self.unfinished.len() + self.damaged.len()
    }

    /// Looks through a group, and over what of it is damaged, which is the second. Waits for the disk.
    pub(super) fn of(group: &Group) -> Result<(Self, Option<ReadError>), ReadError> {
        let mut ends = Vec::new();
        let mut unfinished = HashMap::new();
        let damage = group.for_each_transactional(|header, bytes| {
            if !header.is_control() {
                let first = unfinished.entry(header.producer_id);
                first.or_insert(header.base_ordinal);
                return;
            }
            unfinished.remove(&header.producer_id);
            if let Ok(Some(marker)) = Marker::decode(bytes) {
                let end = End {
                    producer: marker.producer_id,
                    first: marker.first_ordinal,
                    marker: header.base_ordinal,
                    commit: marker.commit,
                };
                ends.push(end);
            }
        })?;
        if damage.is_none() {
            ends.retain(|end| is_needed(end, group));
        }
        let (first, damaged) = match damage {
            Some(damage) => (Some(damage.first), damage.ordinals),
            None => (None, Vec::new()),
        };
        let found = Self {
            ends,
            unfinished,
            damaged,
        };
        Ok((found, first))
    }
}

/// Whether readers need to know of an end in `group`: it was aborted, or it began in an earlier group, whose readers
/// look for it.
pub(crate) fn is_needed(end: &End, group: &Group) -> bool {
    !end.commit || end.first < group.spec().first_ordinal
}
