//! This broker's own file of one closed group: whether it is whole and durable, and how it is made so.
//!
//! A file with a footer was closed here, after its sync. Of any other only what lies below its durable mark has
//! been synced for certain: if a sync failed before, the page cache shows bytes that the device does not have.

use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::group::{Group, GroupSpec};
use kera_log_segments::io::{File, Io, OpenHow, rewrite};
use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::{ScanSpec, Scanned, read_head, scan, write_mark};
use kera_log_segments::window::Place;
use kera_metadata::GroupRecord;
use kera_protocol::ids::Incarnation;
use kera_replication::{aside, own};
use kera_streamlet::Streamlet;

/// The file of one closed group.
#[derive(Clone)]
pub(super) struct OwnFile {
    io: Arc<dyn Io>,
    incarnation: Incarnation,
    pub(super) spec: GroupSpec,
    end: Place,
}

impl OwnFile {
    pub(super) fn new(streamlet: &Streamlet, record: &GroupRecord) -> Self {
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

    async fn off_runtime<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let (this, path) = (self.clone(), self.spec.path.clone());
        let done = tokio::task::spawn_blocking(move || step(&this)).await;
        let done = done.map_err(|error| error.to_string())?;
        done.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The greatest timestamp, if the file holds the whole group durably. A footer says that it was closed
    /// here, and its batches are checked when they are read; without one every batch is checked now, and
    /// bytes that no sync is known to have stored are written once more and synced.
    pub(super) async fn inspect(&self) -> Result<Option<i64>, String> {
        self.off_runtime(Self::inspect_now).await
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
        if let Some(footer) = group.read_footer() {
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
    pub(super) async fn finish(&self) -> Result<Option<i64>, String> {
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

    /// Syncs a file of which all that is unsynced is dirty, if it is whole.
    fn make_durable(&self, file: &dyn File, path: &Path) -> io::Result<Option<i64>> {
        let Some(found) = self.whole(file) else {
            return Ok(None);
        };
        file.sync_data()?;
        own::sync_names(&*self.io, path)?;
        let mark = DurableMark {
            sequence: found.mark.map_or(0, |mark| mark.sequence) + 1,
            written: self.end.address,
            written_ordinal: self.end.ordinal,
            synced: self.end.address,
            synced_ordinal: self.end.ordinal,
            incarnation: self.incarnation,
        };
        let marked = write_mark(file, &mark, self.spec.group_bytes());
        if let Err(error) = marked.and_then(|()| file.sync_data()) {
            // It only spares the next start from writing the file once more.
            tracing::warn!(file = %self.spec.path.display(), %error, "a group's file is durable, and its durable mark cannot be stored");
        }
        Ok(Some(found.max_timestamp))
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
    pub(super) async fn stands_alone(&self) -> Result<bool, String> {
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
    pub(super) async fn is_cut(&self) -> Result<bool, String> {
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
    pub(super) async fn write(&self, address: u64, bytes: Bytes) -> Result<(), String> {
        self.off_runtime(move |this| this.write_now(address, &bytes))
            .await
    }

    fn write_now(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let path: &Path = &self.spec.path;
        let file = if address == 0 {
            aside::begin(&*self.io, path, self.spec.group_bytes())?
        } else {
            let made = aside::path(path);
            self.io.open(&made, OpenHow::ReadWrite, false)?
        };
        file.write_vectored_at(&[IoSlice::new(bytes)], address)
    }

    /// Removes what was written and not finished.
    pub(super) async fn give_up(&self) -> Result<(), String> {
        self.off_runtime(|this| aside::remove(&*this.io, &this.spec.path))
            .await
    }
}

#[cfg(test)]
#[path = "own_file_tests.rs"]
mod tests;
