//! Closed groups that end behind where a later one of their lane begins: there may be such once the metadata store was put back
//! to an older state, and brokers have recorded what they have. A broker that was not the owner any more wrote the rest,
//! which was never acknowledged. The next owner of the streamlet ends them where the later one begins. Groups behind a hole that
//! hold nothing acknowledged are dropped: their headers tell of batches that are in the hole as stored, and who sends those again
//! must not hear so.

use std::collections::BTreeMap;

use kera_log_segments::group::GroupSpec;
use kera_log_segments::io::OpenHow;
use kera_log_segments::scan::{self, ScanSpec};
use kera_metadata::{GroupChange, GroupRecord, Image, StreamRecord, Transaction, Write};
use kera_protocol::ids::{LaneId, Ordinal};

use super::takeover::{CHANGES_AT_ONCE, Restore};
use crate::cluster::replica::closed_records::{all_of, unclean};
use crate::cluster::replica::fetching::{MayLack, NotFetched, fetch};
use crate::cluster::replica::own_files::OwnFile;
use crate::cluster::replica::waiting::Stuck;
use crate::cluster::restore_plan::{overlaps, unacknowledged};
use crate::cluster::restored_groups::{drop_trimmed, served_restore};
use crate::store_calls::blocking;

impl Restore<'_> {
    /// Ends groups of `image` where the next ones begin; true if any was changed. Of one that nobody can read nothing is left,
    /// if the operator has accepted that.
    ///
    /// # Errors
    /// Says, for people, which group could be had from nobody.
    pub(super) async fn end_overlaps(&self, image: &Image) -> Result<bool, Stuck> {
        let overlapping = lanes(image).into_values().flat_map(overlaps);
        let overlapping: Vec<_> = overlapping.collect();
        for (record, to) in &overlapping {
            let end = match *to <= record.start_ordinal() {
                // Nothing of it counts, and so nobody is asked for it.
                true => None,
                false => self.end_below(record, *to).await?,
            };
            let ended = end.and_then(|end| ended(record, end));
            let end = ended
                .as_ref()
                .map_or(record.start_ordinal(), |ended| ended.end_ordinal);
            // One change: an owner that is killed in between leaves all or nothing of it.
            let change = match ended {
                Some(ended) => ended.put(),
                None => Write::delete_group(record.key(), record.revision),
            };
            self.change([change]).await?;
            tracing::warn!(group = %record.key(), from = end, to = record.end_ordinal, "the metadata store was put back to an older state: a group ends where the next one of its lane begins, since what it has from there on was not acknowledged");
        }
        Ok(!overlapping.is_empty())
    }

    /// Removes records of groups that were trimmed since; true if there were any.
    ///
    /// # Errors
    /// The store's, for people.
    pub(super) async fn drop_trimmed(
        &self,
        stream: &StreamRecord,
        image: &Image,
    ) -> Result<bool, String> {
        let parts = drop_trimmed(stream, image, CHANGES_AT_ONCE);
        let are_any = parts.iter().any(|part| !part.is_empty());
        for part in parts {
            self.change(part).await?;
        }
        Ok(are_any)
    }

    /// Removes records of groups behind holes that hold nothing acknowledged; true if there were any. All brokers have
    /// recorded what they have. Whoever sent what is in them sends it again.
    ///
    /// # Errors
    /// The store's, for people.
    pub(super) async fn drop_unacknowledged(
        &self,
        stream: &StreamRecord,
        image: &Image,
    ) -> Result<bool, String> {
        let served = image.streamlets.first().map_or(0, served_restore);
        let min_insync_replicas = stream.config.min_insync_replicas as usize;
        let found = lanes(image).into_values();
        let found: Vec<_> = found
            .flat_map(|groups| unacknowledged(groups, served, min_insync_replicas))
            .collect();
        for groups in found.chunks(CHANGES_AT_ONCE) {
            let changes = groups.iter();
            self.change(changes.map(|record| Write::delete_group(record.key(), record.revision)))
                .await?;
        }
        for record in &found {
            tracing::warn!(stream = stream.name, group = %record.key(), from = record.start_ordinal(), to = record.end_ordinal, "the metadata store was put back to an older state: a group is dropped of which nothing was acknowledged, since ordinals before it are on no broker");
        }
        Ok(!found.is_empty())
    }

    async fn change(&self, changes: impl IntoIterator<Item = GroupChange>) -> Result<(), String> {
        let transaction = Transaction::of_groups(self.streamlet.key(), self.epoch, changes);
        let committed = self.shared.metadata.commit_async(transaction).await;
        committed.map(|_| ()).map_err(|error| error.to_string())
    }

    /// The last end of a batch of a group at or below an ordinal, as address and ordinal; `None` if it is given up.
    async fn end_below(
        &self,
        record: &GroupRecord,
        to: Ordinal,
    ) -> Result<Option<(u64, Ordinal)>, Stuck> {
        let file = OwnFile::new(self.streamlet, record);
        if self.inspect(&file, record).await?.is_none() {
            let primary = self.replicated.primary();
            match fetch(primary, &file, record, &MayLack::Recorded).await {
                Ok(_) => {}
                Err(NotFetched::Untold(reason) | NotFetched::Blocked(reason)) => {
                    return Err(Stuck::from(reason));
                }
                Err(NotFetched::Nowhere(reason) | NotFetched::Holes(reason, _)) => {
                    let waiting = self.replicated.waiting();
                    if waiting
                        .accepted(record.streamlet_key(), record.group)
                        .is_some()
                    {
                        return Ok(None);
                    }
                    let lost = all_of(record);
                    let mut stuck = Stuck::from(reason);
                    stuck.unclean.push(unclean(record, &lost));
                    stuck.lost.insert(record.group, lost);
                    return Err(stuck);
                }
            }
        }
        let name = GroupSpec::file_name(record.group, record.generation);
        let path = self.streamlet.dir().join(name);
        let (io, first) = (self.shared.data.env.io.clone(), record.start_ordinal());
        let look = move || {
            let mut end = (0, first);
            let file = io.open(&path, OpenHow::ReadOnly, false);
            let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
            let scanned = scan::scan(&*file, &ScanSpec::default(), |header, address| {
                if header.next_ordinal() <= to {
                    end = (address + header.total_bytes as u64, header.next_ordinal());
                }
            });
            scanned.map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<_, String>(end)
        };
        Ok(Some(blocking(look).await?))
    }
}

/// The groups of each lane of a streamlet, the oldest first.
fn lanes(image: &Image) -> BTreeMap<LaneId, Vec<&GroupRecord>> {
    let mut lanes: BTreeMap<LaneId, Vec<&GroupRecord>> = BTreeMap::new();
    for group in &image.groups {
        lanes.entry(group.lane).or_default().push(group);
    }
    lanes
}

/// A closed group that ends earlier, at an address and an ordinal; `None` if nothing is left of it.
fn ended(record: &GroupRecord, (length, end): (u64, Ordinal)) -> Option<GroupRecord> {
    let damaged = record.damaged.as_ref();
    (end > record.start_ordinal()).then(|| GroupRecord {
        length,
        live_bytes: length.min(record.live_bytes),
        end_ordinal: end,
        next_ordinal: end,
        damaged: damaged.and_then(|damage| damage.below(length, end)),
        ..record.clone()
    })
}
