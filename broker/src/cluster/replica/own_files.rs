//! This broker's own file of one closed group: whether it is whole and durable, and how it is made so.
//!
//! A file with a footer was closed here, after its sync. Of any other only what lies below its durable mark has
//! been synced for certain: if a sync failed before, the page cache shows bytes that the device does not have.
//!
//! [`super::fetching`] makes such a file from other replicas. [`Leftovers`] frees what the owner keeps of a
//! streamlet and needs no more: replicas in its own store, of before it owned the streamlet, and files of groups
//! that no record names. Other brokers' leftovers the owner finds by asking them; its own nobody asks for. Proof is
//! the same: what is there is listed first, and the records are read after that.

use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::group::{Group, GroupSpec};
use kera_log_segments::io::{File, Io, OpenHow, is_broken_file, rewrite};
use kera_log_segments::scan::{ScanSpec, Scanned, read_head, scan, write_mark};
use kera_log_segments::window::Place;
use kera_metadata::{GroupRecord, Image, MetadataStore};
use kera_protocol::ids::{Epoch, Incarnation};
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::primary::Primary;
use kera_replication::transport::{CopyInfo, Request};
use kera_replication::{aside, own};
use kera_streamlet::Streamlet;

use crate::store_calls::blocking;

/// The file of one closed group.
#[derive(Clone)]
pub(crate) struct OwnFile {
    pub(super) io: Arc<dyn Io>,
    incarnation: Incarnation,
    pub(crate) spec: GroupSpec,
    pub(super) end: Place,
}

impl OwnFile {
    pub(crate) fn new(streamlet: &Streamlet, record: &GroupRecord) -> Self {
        let settings = streamlet.settings();
        let name = GroupSpec::file_name(record.group, record.generation);
        let spec = GroupSpec {
            lane: record.lane_key(),
            group: record.group,
            generation: record.generation,
            epoch: record.epoch,
            segment_size: settings.segment_size,
            segments: settings.segments_per_group,
            first_ordinal: record.start_ordinal(),
            created_ms: 0,
            path: streamlet.dir().join(name),
        };
        let end = Place {
            address: record.length,
            ordinal: record.end_ordinal,
        };
        Self {
            io: streamlet.io(),
            incarnation: streamlet.incarnation(),
            spec,
            end,
        }
    }

    pub(super) async fn off_runtime<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let (this, path) = (self.clone(), self.spec.path.clone());
        let named = move |error| format!("{}: {error}", path.display());
        blocking(move || step(&this).map_err(named)).await
    }

    /// The greatest timestamp, if the file holds the whole group durably. A footer says that it was closed
    /// here, and its batches are checked when they are read; without one every batch is checked now, and
    /// bytes that no sync is known to have stored are written once more and synced.
    pub(crate) async fn inspect(&self) -> Result<Option<i64>, String> {
        self.off_runtime(Self::inspect_now).await
    }

    /// As [`inspect`](Self::inspect), of a broker that takes a streamlet over and keeps replicas of it in its store. What
    /// compaction made has the name of what an earlier owner made of the same groups and never recorded: it counts if the
    /// record names this broker and the store has no replica, which is later.
    pub(crate) async fn inspect_of(
        &self,
        record: &GroupRecord,
        me: BrokerId,
        kept: &[CopyInfo],
    ) -> Result<Option<i64>, String> {
        let copy = CopyId::of(record);
        let is_kept = kept.iter().any(|kept| kept.copy == copy);
        match may_be_of_others(record, me) || record.generation > 0 && is_kept {
            true => Ok(None),
            false => self.inspect().await,
        }
    }

    /// Whether there is a file of this name whose batches may count, though it is not whole.
    pub(super) fn has_parts(&self, record: &GroupRecord, me: BrokerId) -> bool {
        !may_be_of_others(record, me) && self.is_there()
    }

    /// Whether there is a file of this name.
    pub(super) fn is_there(&self) -> bool {
        self.io.exists(&self.spec.path)
    }

    /// Whether there is a file of this name that is not what is recorded, as far as is known.
    pub(crate) fn is_doubtful(&self, record: &GroupRecord, me: BrokerId) -> bool {
        may_be_of_others(record, me) && self.is_there()
    }

    fn inspect_now(&self) -> io::Result<Option<i64>> {
        let path = &self.spec.path;
        let file = match self.io.open(path, OpenHow::ReadOnly, false) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if read_head(&*file, &self.scan_spec()).is_err() {
            return Ok(None);
        }
        let group = Group::closed(self.spec.clone(), self.end, 0, -1, 0, self.io.clone());
        if let Ok(Some(footer)) = group.read_footer() {
            return Ok(Some(footer.max_timestamp));
        }
        let Some(found) = self.whole(&*file) else {
            return Ok(None);
        };
        let proven = found.mark.map_or(0, |mark| mark.synced);
        if proven >= self.end.address {
            return Ok(Some(found.max_timestamp));
        }
        let file = self.io.open(path, OpenHow::ReadWrite, false)?;
        rewrite(&*file, proven, self.end.address)?;
        // What was written once more is what counts.
        self.make_durable(&*file, path)
    }

    /// The greatest timestamp of a file that was just written from its beginning, once it is durable and has its name;
    /// `None` if it is not whole.
    pub(crate) async fn finish(&self) -> Result<Option<i64>, String> {
        self.off_runtime(Self::finish_now).await
    }

    fn finish_now(&self) -> io::Result<Option<i64>> {
        let path: &Path = &self.spec.path;
        let made = aside::path(path);
        let file = self.io.open(&made, OpenHow::ReadWrite, false)?;
        let found = self.make_durable(&*file, &made)?;
        if found.is_some() {
            aside::put(&*self.io, path)?;
        }
        Ok(found)
    }

    /// The same of a file of which some batches are damaged, as they are whole nowhere.
    pub(super) fn finish_with_holes(&self) -> io::Result<()> {
        let path: &Path = &self.spec.path;
        let made = aside::path(path);
        let file = self.io.open(&made, OpenHow::ReadWrite, false)?;
        let headers = ScanSpec::closed(&self.spec, self.end);
        let found = scan(&*file, &headers, |_, _| {}).map_err(io::Error::other)?;
        if found.end != self.end {
            return Err(io::Error::other(found.stop));
        }
        self.store(&*file, &made, &found)?;
        aside::put(&*self.io, path)
    }

    /// Syncs a file of which all that is unsynced is dirty, if it is whole.
    fn make_durable(&self, file: &dyn File, path: &Path) -> io::Result<Option<i64>> {
        let Some(found) = self.whole(file) else {
            return Ok(None);
        };
        self.store(file, path, &found)?;
        Ok(Some(found.max_timestamp))
    }

    /// Syncs a file and its name, and says so in its durable mark.
    fn store(&self, file: &dyn File, path: &Path, found: &Scanned) -> io::Result<()> {
        file.sync_data()?;
        own::sync_names(&*self.io, path)?;
        let before = found.mark.unwrap_or_default();
        let mark = before.then(self.end, self.end, self.incarnation);
        let marked = write_mark(file, &mark, self.spec.group_bytes());
        if let Err(error) = marked.and_then(|()| file.sync_data()) {
            // It only spares the next start from writing the file once more.
            tracing::warn!(file = %self.spec.path.display(), %error, "a group's file is durable, and its durable mark cannot be stored");
        }
        Ok(())
    }

    fn scan_spec(&self) -> ScanSpec {
        ScanSpec {
            verify_all: true,
            ..ScanSpec::closed(&self.spec, self.end)
        }
    }

    /// What the file holds, if that is the whole group.
    fn whole(&self, file: &dyn File) -> Option<Scanned> {
        let found = scan(file, &self.scan_spec(), |_, _| {}).ok()?;
        (found.end == self.end).then_some(found)
    }

    /// Whether the file is whole and durable under its name, so that another replica on this machine is of no use.
    pub(crate) async fn stands_alone(&self) -> Result<bool, String> {
        self.off_runtime(Self::stands_alone_now).await
    }

    fn stands_alone_now(&self) -> io::Result<bool> {
        let is_whole = self.inspect_now()?.is_some();
        if is_whole {
            own::sync_names(&*self.io, &self.spec.path)?;
        }
        Ok(is_whole)
    }

    /// Whether there is a file of that name that ends before the group does.
    pub(crate) async fn is_cut(&self) -> Result<bool, String> {
        self.off_runtime(Self::is_cut_now).await
    }

    fn is_cut_now(&self) -> io::Result<bool> {
        match self.io.open(&self.spec.path, OpenHow::ReadOnly, false) {
            Ok(file) => Ok(file.len()? < self.end.address),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes bytes of a file that is made anew, from its beginning on, aside of what is there.
    pub(crate) async fn write(&self, address: u64, bytes: Bytes) -> Result<(), String> {
        self.off_runtime(move |this| this.write_now(address, &bytes))
            .await
    }

    pub(super) fn write_now(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let path: &Path = &self.spec.path;
        let file = if address == 0 {
            aside::begin(&*self.io, path, self.spec.group_bytes())?
        } else {
            let made = aside::path(path);
            self.io.open(&made, OpenHow::ReadWrite, false)?
        };
        file.write_vectored_at(&[IoSlice::new(bytes)], address)
    }

    /// Whether something has its name that can be read by nobody, and not be replaced.
    pub(super) async fn is_blocked(&self) -> bool {
        let open = |this: &Self| match this.io.open(&this.spec.path, OpenHow::ReadOnly, false) {
            Ok(file) => Ok(file.read_at(&mut [0], 0).err()),
            Err(error) => Ok(Some(error)),
        };
        let found = self.off_runtime(open).await;
        found.is_ok_and(|found| found.is_some_and(|error| is_broken_file(&error)))
    }

    /// Removes what was written and not finished.
    pub(crate) async fn give_up(&self) -> Result<(), String> {
        self.off_runtime(|this| aside::remove(&*this.io, &this.spec.path))
            .await
    }
}

/// Whether an own file of this name may be one that was never recorded.
pub(super) fn may_be_of_others(record: &GroupRecord, me: BrokerId) -> bool {
    record.generation > 0 && !record.copies.iter().any(|replica| replica.broker == me)
}

/// Files and replicas that this broker keeps of a streamlet it owns, under one epoch, and may not need.
pub(crate) struct Leftovers<'a> {
    pub(crate) primary: &'a Primary,
    pub(crate) metadata: &'a Arc<dyn MetadataStore>,
    pub(crate) streamlet: &'a Arc<Streamlet>,
    pub(crate) epoch: Epoch,
}

impl Leftovers<'_> {
    /// Frees it; how many replicas. What cannot be freed now is looked at again with the next round of jobs.
    pub(crate) async fn free(&self) -> u64 {
        self.try_free().await.unwrap_or_else(|error| {
            tracing::info!(streamlet = %self.streamlet.key(), error, "what this broker keeps of it without need is not freed; it is tried again");
            0
        })
    }

    async fn try_free(&self) -> Result<u64, String> {
        if self.streamlet.is_over() || !self.streamlet.is_recovered() {
            return Ok(0);
        }
        let kept = self.kept().await;
        let streamlet = self.streamlet.clone();
        let strays =
            blocking(move || streamlet.strays().map_err(|error| error.to_string())).await?;
        if kept.is_empty() && strays.is_empty() {
            return Ok(0);
        }
        let Some(image) = self.image().await? else {
            return Ok(0);
        };
        let recorded = image.groups.iter();
        let recorded = recorded.map(|record| (record.group, record.generation));
        let recorded: HashMap<_, _> = recorded.collect();
        let streamlet = self.streamlet.clone();
        let removing = move || Ok::<_, String>(streamlet.remove_strays(&strays, &recorded));
        let removed = blocking(removing).await?;
        Ok(removed + self.free_kept(&kept, &image).await?)
    }

    /// What lies in this broker's store.
    async fn kept(&self) -> Vec<CopyInfo> {
        let mut kept = self.primary.kept_here(self.streamlet.key()).await;
        kept.retain(|held| held.copy.epoch < self.epoch);
        kept
    }

    /// What is recorded, if the streamlet is this broker's still.
    async fn image(&self) -> Result<Option<Image>, String> {
        let (metadata, streamlet) = (self.metadata.clone(), self.streamlet.clone());
        let load = move || {
            let image = metadata.load_streamlet(streamlet.stream(), streamlet.id());
            image.map_err(|error| error.to_string())
        };
        let image = blocking(load).await?;
        let mut streamlets = image.streamlets.iter();
        let is_mine = streamlets.any(|found| found.epoch == self.epoch);
        Ok(is_mine.then_some(image))
    }

    /// Whether a group's own file needs no replica in the store beside it. One that was cut short is made anew: as long
    /// as the store answers for the group, nobody else notices. One that is not there is fetched in its turn.
    async fn stands_alone(&self, file: &OwnFile) -> Result<bool, String> {
        if file.stands_alone().await? {
            return Ok(true);
        }
        if !file.is_cut().await? {
            return Ok(false);
        }
        let (path, group) = (file.spec.path.display(), file.spec.group);
        tracing::error!(file = %path, "a closed group's file was cut short; it is built again from another replica: check the disk");
        let (streamlet, lane) = (self.streamlet.clone(), file.spec.lane.lane);
        let made = blocking(move || Ok::<_, String>(streamlet.fetch_again(lane, group))).await?;
        Ok(made && file.stands_alone().await?)
    }

    /// Frees replicas in the store of groups that this broker's files hold, or that nobody records.
    async fn free_kept(&self, kept: &[CopyInfo], image: &Image) -> Result<u64, String> {
        let mut freed = 0;
        for held in kept {
            let is_named = |record: &&GroupRecord| {
                // Of another generation it counts for nothing: it was replaced, or never recorded.
                (record.group, record.generation) == (held.copy.group, held.copy.generation)
            };
            if let Some(record) = image.groups.iter().find(is_named) {
                let file = OwnFile::new(self.streamlet, record);
                if !record.is_closed() || !self.stands_alone(&file).await? {
                    continue;
                }
            }
            let free = Request::free(held.copy, self.epoch, Some(held.version));
            let done = self.primary.ask(self.primary.me(), free).await;
            done.map_err(|error| error.to_string())?;
            freed += 1;
        }
        Ok(freed)
    }
}

#[cfg(test)]
#[path = "own_files_tests.rs"]
mod tests;
