//! Files in a served streamlet's directory that belong to none of its groups.
//!
//! A start removes those that no record names, and a group that is given up takes its file with it. What
//! comes to lie there in between nobody would look at before the next start: other brokers free what lies
//! at those that do not own a streamlet, never at its owner.

use std::collections::HashMap;
use std::io::ErrorKind;

use kera_log_segments::group::GroupSpec;
use kera_protocol::ids::GroupId;

use crate::streamlet::Streamlet;

/// Generations from here on are in the names of files that are being made, and that a start removes.
const UNFINISHED: u32 = 1 << 31;

/// Group files that belong to none of a streamlet's groups, as they were found at one moment.
#[derive(Debug)]
pub struct Strays(Vec<Stray>);

#[derive(Debug)]
struct Stray {
    group: GroupId,
    generation: u32,
    name: String,
}

impl Strays {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Streamlet {
    /// The files of groups that it does not have in memory, and files of other generations of those that it has. Groups
    /// without records are among the first, which have a record: those are asked for after this. Reads the directory.
    ///
    /// # Errors
    /// The store's.
    pub fn strays(&self) -> std::io::Result<Strays> {
        let files = self.file_names()?.into_iter().filter_map(|name| {
            let (group, generation) = GroupSpec::parse_file_name(&name)?;
            Some(Stray {
                group,
                generation,
                name,
            })
        });
        let files: Vec<_> = files.collect();
        let known = self.known_groups();
        let strays = files.into_iter().filter(|file| self.is_stray(file, &known));
        Ok(Strays(strays.collect()))
    }

    /// Whether nothing counts in a file, unless it is recorded.
    fn is_stray(&self, file: &Stray, known: &HashMap<GroupId, u32>) -> bool {
        match known.get(&file.group) {
            Some(generation) if *generation == file.generation => false,
            Some(_) if file.generation >= UNFINISHED => false,
            Some(generation) if file.generation > *generation => !self.may_be_replaced(),
            _ => !self.is_replaced(file.group, file.generation),
        }
    }

    /// Removes those of `strays` that are not `recorded`, as read after they were found; how many. Each group
    /// has an id of its own for ever, and one that may get a record yet is in memory: so nothing ever counts
    /// in what has neither. What may be newer than the records themselves stays, as at a start.
    pub fn remove_strays(&self, strays: &Strays, recorded: &HashMap<GroupId, u32>) -> u64 {
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
        for stray in &strays.0 {
            let (id, record) = (&stray.group, recorded.get(&stray.group));
            let is_recorded = match known.get(id) {
                // One without records: it has no other file.
                None => record.is_some(),
                Some(_) => record.is_none_or(|generation| *generation == stray.generation),
            };
            if is_recorded || !self.is_stray(stray, &known) {
                continue;
            }
            let path = self.dir().join(&stray.name);
            // Files of this epoch that were here before it began are of another time of the records.
            let was_here = id.0 <= newest_found;
            let is_older = record.is_some_and(|generation| *generation > stray.generation);
            if was_here && !is_older && self.is_since(&path, epoch).unwrap_or(true) {
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

    /// The groups in memory, with their file generations.
    fn known_groups(&self) -> HashMap<GroupId, u32> {
        let inner = self.inner.lock();
        let lanes = inner.lanes.iter();
        let groups = lanes.flat_map(|lane| lane.groups.values());
        let mut known: HashMap<_, _> = groups
            .map(|group| (group.id(), group.spec().generation))
            .collect();
        known.extend(inner.announcing.iter().map(|id| (*id, 0)));
        known.extend(inner.made_ahead.keys().map(|id| (*id, 0)));
        known
    }
}
