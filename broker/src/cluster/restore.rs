//! This broker's own files of closed groups, before their streamlet serves: what is missing or short
//! is fetched from the other copies, byte for byte, and checked as any bytes that come from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{Compare, GroupRecord, Image, MAX_COPIES, Replica, Transaction, Write};
use kera_protocol::ids::{Epoch, GroupId};
use kera_replication::ids::BrokerId;
use kera_replication::primary::Primary;
use kera_streamlet::Streamlet;

use super::fetch_file::fetch;
use super::leftovers::Leftovers;
use super::own_file::OwnFile;
use crate::shared::Shared;

/// Pauses after which what could not be fetched is asked for again. After the last it is fetched when it is
/// read.
const AGAIN: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::ZERO,
];
/// Records changed by one transaction.
const CHANGES_AT_ONCE: usize = 64;

/// The own files of a streamlet that this broker has under an epoch.
pub(super) struct Restore<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) primary: &'a Arc<Primary>,
    pub(super) streamlet: &'a Arc<Streamlet>,
    pub(super) epoch: Epoch,
}

impl Restore<'_> {
    /// Puts the own file of each closed group in `image` in order, or, where other brokers may have owned
    /// the streamlet, of those without which it cannot be served; the others are returned. Groups whose
    /// file had to be fetched name this broker as a holder again, in the records and in `image`.
    ///
    /// # Errors
    /// Says, for people, which group could be had from nobody.
    pub(super) async fn before_serving(
        &self,
        image: &mut Image,
    ) -> Result<Vec<GroupRecord>, String> {
        let whole = image.groups.iter().filter(|record| record.holds_records());
        let (now, later): (Vec<_>, Vec<_>) = match &self.shared.store {
            // History moves when the streamlet is served.
            Some(_) => {
                let newest = newest_of_lanes(image);
                let needed = |record: &&GroupRecord| {
                    newest.contains(&record.group) || record.max_timestamp_ms < 0
                };
                whole.partition(needed)
            }
            None => (whole.collect(), Vec::new()),
        };
        let mut changed = Vec::new();
        for record in now {
            let file = OwnFile::new(self.streamlet, record);
            let max_timestamp_ms = match file.inspect().await? {
                Some(found) => found,
                None => fetch(self.primary, &file, record).await?,
            };
            changed.extend(mended(self.shared, record, max_timestamp_ms));
        }
        let later = later.into_iter().cloned().collect();
        for records in changed.chunks(CHANGES_AT_ONCE) {
            let revision = self.record(records.to_vec()).await?;
            for record in records {
                let mut groups = image.groups.iter_mut();
                if let Some(known) = groups.find(|known| known.group == record.group) {
                    known.clone_from(record);
                    known.revision = revision;
                }
            }
        }
        Ok(later)
    }

    /// Fetches the files of `later` that are not here, one after the other, no faster than jobs may copy;
    /// whoever reads one first has it fetched first. Then copies in this broker's own store that its files stand for now are freed.
    pub(super) async fn after_serving(&self, later: Vec<GroupRecord>) {
        let had_some = !later.is_empty();
        let mut left = later;
        for pause in AGAIN {
            left = match self.fetch_all(left).await {
                Some(failed) => failed,
                None => return,
            };
            if left.is_empty() {
                break;
            }
            let mut stopping = self.shared.stopping.subscribe();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
        let leftovers = Leftovers {
            primary: self.primary,
            metadata: &self.shared.metadata,
            streamlet: self.streamlet,
            epoch: self.epoch,
        };
        leftovers.free().await;
        if let Some(replicated) = self.shared.replicated.as_ref().filter(|_| had_some) {
            // What it has now others need no more.
            replicated.stirred();
        }
    }

    /// Those that could not be had; `None` once another broker owns the streamlet.
    async fn fetch_all(&self, records: Vec<GroupRecord>) -> Option<Vec<GroupRecord>> {
        let mut failed = Vec::new();
        for record in records {
            if self.streamlet.is_over() {
                return None;
            }
            if let Err(error) = self.fetch_later(&record).await {
                tracing::debug!(group = %record.key(), error, "it is not in this broker's own files yet");
                failed.push(record);
            }
        }
        Some(failed)
    }

    async fn fetch_later(&self, record: &GroupRecord) -> Result<(), String> {
        let file = OwnFile::new(self.streamlet, record);
        let found = match file.inspect().await? {
            Some(found) => found,
            None => {
                if let Some(replicated) = &self.shared.replicated {
                    replicated.may_copy(record.length).await;
                }
                if self.streamlet.is_over() {
                    return Err("another broker owns it meanwhile".into());
                }
                let (streamlet, lane, group) = (self.streamlet.clone(), record.lane, record.group);
                let fetched =
                    tokio::task::spawn_blocking(move || streamlet.fetch_again(lane, group));
                if !fetched.await.map_err(|error| error.to_string())? {
                    return Err("nobody has it now".into());
                }
                file.inspect().await?.ok_or("it was trimmed")?
            }
        };
        let (metadata, key) = (self.shared.metadata.clone(), record.key());
        let stored = tokio::task::spawn_blocking(move || metadata.group(key)).await;
        let stored = stored.map_err(|error| error.to_string())?;
        let stored = stored.map_err(|error| error.to_string())?;
        if let Some(mended) = stored.and_then(|record| mended(self.shared, &record, found)) {
            self.record(vec![mended]).await?;
        }
        Ok(())
    }

    /// The revision of the change.
    async fn record(&self, records: Vec<GroupRecord>) -> Result<u64, String> {
        let epoch = Compare::StreamletEpoch {
            stream: self.streamlet.stream(),
            streamlet: self.streamlet.id(),
            epoch: self.epoch,
        };
        let compare = std::iter::once(epoch).chain(records.iter().map(Compare::group));
        let write = records.iter().cloned().map(Write::PutGroup);
        let transaction = Transaction::new(compare.collect(), write.collect());
        let committed = self.shared.metadata.commit_async(transaction).await;
        let revision = committed.map_err(|error| error.to_string())?.revision;
        for record in records {
            self.shared.recorder.learned(record.key(), Some(revision));
        }
        Ok(revision)
    }
}

/// The last group with records of each lane: its file tells what the lane remembers of its producers.
fn newest_of_lanes(image: &Image) -> BTreeSet<GroupId> {
    let mut newest = BTreeMap::new();
    for record in image.groups.iter().filter(|record| record.holds_records()) {
        let of_lane: &mut GroupId = newest.entry(record.lane).or_default();
        *of_lane = record.group.max(*of_lane);
    }
    newest.into_values().collect()
}

/// The record of a group whose own file is whole, if that is not what it says.
fn mended(shared: &Shared, record: &GroupRecord, max_timestamp_ms: i64) -> Option<GroupRecord> {
    let incarnation = shared.dir.incarnation();
    let own = Replica {
        broker: BrokerId(shared.broker_id),
        incarnation,
    };
    let mut mended = record.clone();
    mended.max_timestamp_ms = mended.max_timestamp_ms.max(max_timestamp_ms);
    let mut brokers = record.copies.iter().map(|copy| copy.broker);
    if !brokers.any(|broker| broker == own.broker) && record.copies.len() < MAX_COPIES {
        mended.copies.push(own);
    }
    (mended != *record).then_some(mended)
}
