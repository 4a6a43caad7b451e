//! Files in a served streamlet's directory that belong to none of its groups.
//!
//! A start removes those that no record names, and a group that is given up takes its file with it. What
//! comes to lie there in between nobody would look at before the next start: other brokers free what lies
//! at those that do not own a streamlet, never at its owner.

use std::collections::HashSet;
use std::io::ErrorKind;

use kera_log_segments::group::GroupSpec;
use kera_protocol::ids::GroupId;

use crate::streamlet::{Prepared, Streamlet};

/// Group files that belong to none of a streamlet's groups, as they were found at one moment.
#[derive(Debug)]
pub struct Strays(Vec<(GroupId, String)>);

impl Strays {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Streamlet {
    /// The files of groups that it does not have in memory. Groups without records are among them, which have
    /// a record: those are asked for after this. Reads the directory.
    ///
    /// # Errors
    /// The store's.
    pub fn strays(&self) -> std::io::Result<Strays> {
        let files = self.file_names()?.into_iter().filter_map(|name| {
            let (group, _) = GroupSpec::parse_file_name(&name)?;
            Some((group, name))
        });
        let files: Vec<_> = files.collect();
        let known = self.known_groups();
        let strays = files.into_iter().filter(|(id, _)| !known.contains(id));
        Ok(Strays(strays.collect()))
    }

    /// Removes those of `strays` that are not `recorded`, as read after they were found; how many. Each group
    /// has an id of its own for ever, and one that may get a record yet is in memory: so nothing ever counts
    /// in what has neither. What may be newer than the records themselves stays, as at a start.
    pub fn remove_strays(&self, strays: &Strays, recorded: &HashSet<GroupId>) -> u64 {
        let _turn = self.maintenance.lock();
        if self.is_over() {
            return 0;
        }
        let known = self.known_groups();
        let (epoch, newest_found) = {
            let inner = self.inner.lock();
            (inner.epoch, inner.next_group)
        };
        let mut removed = 0;
        for (id, name) in &strays.0 {
            if known.contains(id) || recorded.contains(id) {
                continue;
            }
            let path = self.dir().join(name);
            // Files of this epoch that were here before it began are of another time of the records.
            let was_here = id.0 <= newest_found;
            if was_here && self.epoch_of(&path).is_some_and(|found| found >= epoch) {
                continue;
            }
            match self.env.io.remove_file(&path) {
                Ok(()) => {
                    tracing::info!(file = %path.display(), "no record names this file and none ever will: it is removed");
                    removed += 1;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a file that no record names could not be removed");
                }
            }
        }
        removed
    }

    fn known_groups(&self) -> HashSet<GroupId> {
        let inner = self.inner.lock();
        let lanes = inner.lanes.iter();
        let mut known: HashSet<_> = lanes.flat_map(|lane| lane.groups.keys().copied()).collect();
        known.extend(&inner.announcing);
        known.extend(inner.lanes.iter().filter_map(|lane| match &lane.prepared {
            Prepared::No => None,
            Prepared::Asked(id, _) | Prepared::Ready(id, _) => Some(*id),
        }));
        known
    }
}
