//! Deleted streams that some backup may not have heard of. A backup keeps a stream's copies and seals
//! until it is told that the stream is gone, so each one is told, over failures and restarts, until it
//! has answered. Where brokers share a store those that are away are not waited for: each sees for itself,
//! see [`catch_up`].
//!
//! ```text
//! DATA_DIR/forget/<stream uuid>     empty; there before the stream's records are deleted
//! ```
//! The metadata store decides whether a stream is gone: a mark alone deletes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_metadata::{ClusterStore, Counter, MetadataError, MetadataStore};
use kera_protocol::ids::{Epoch, StreamId};
use kera_replication::backup::ReplicaStore;
use kera_replication::ids::BrokerId;
use kera_replication::primary::Primary;
use kera_replication::transport::Request;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Streams to be forgotten elsewhere.
#[derive(Debug)]
pub(crate) struct Forgotten {
    dir: PathBuf,
    streams: Mutex<BTreeMap<StreamId, Mark>>,
    news: Notify,
}

#[derive(Clone, Debug, Default)]
struct Mark {
    /// An earlier process made it: nobody is about to delete the stream.
    old: bool,
    /// Backups that have answered.
    heard: BTreeSet<BrokerId>,
}

impl Forgotten {
    /// What an earlier process left in `dir`. Where that cannot be read, it is not told again.
    pub(crate) fn open(dir: PathBuf) -> Self {
        let found = read(&dir).unwrap_or_else(|error| {
            tracing::warn!(dir = %dir.display(), %error, "the list of deleted streams cannot be read; brokers that were away may keep replicas of them");
            BTreeMap::new()
        });
        Self {
            dir,
            streams: Mutex::new(found),
            news: Notify::new(),
        }
    }

    /// The stream is about to be deleted. If it is not, nothing comes of it. Waits for the disk.
    pub(crate) fn deleting(&self, stream: StreamId) {
        if let Err(error) = self.write(stream) {
            // A full disk is no reason to keep a stream.
            tracing::warn!(%stream, %error, "the deletion is not recorded and is forgotten at a restart; brokers that are away may keep replicas");
        }
        self.streams.lock().entry(stream).or_default();
    }

    /// It is deleted: backups are told now.
    pub(crate) fn deleted(&self, stream: StreamId) {
        self.streams.lock().entry(stream).or_default();
        self.news.notify_one();
    }

    /// Returns when something was deleted.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Tells every peer, and this broker's own backup store, of every stream that is gone, as far as
    /// they have not heard of it.
    pub(crate) async fn sweep(
        &self,
        primary: &Primary,
        store: &Arc<ReplicaStore>,
        metadata: &Arc<dyn MetadataStore>,
    ) {
        let pending: Vec<_> = {
            let streams = self.streams.lock();
            let pending = streams.iter();
            pending.map(|(id, mark)| (*id, mark.clone())).collect()
        };
        for (stream, mut mark) in pending {
            let store_of = metadata.clone();
            let known = tokio::task::spawn_blocking(move || store_of.stream(stream)).await;
            match known {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(_))) if mark.old => {
                    self.done(stream);
                    continue;
                }
                // Somebody may be deleting it right now; or it cannot be told.
                Ok(Ok(Some(_)) | Err(_)) | Err(_) => continue,
            }
            let me = primary.me();
            let mut failed = BTreeMap::new();
            if !mark.heard.contains(&me)
                && let Err(reason) = forget_here(store, me, stream).await
            {
                failed.insert(me, reason);
            }
            for (peer, error) in primary.forget(stream, &mark.heard).await {
                failed.insert(peer, error.to_string());
            }
            for (peer, reason) in &failed {
                tracing::debug!(%stream, %peer, reason, "the peer still has replicas of a deleted stream; it is told again");
            }
            if failed.is_empty() {
                self.done(stream);
                continue;
            }
            let peers = primary.peers();
            let all = peers.iter().copied().chain([me]);
            mark.heard
                .extend(all.filter(|one| !failed.contains_key(one)));
            if let Some(kept) = self.streams.lock().get_mut(&stream) {
                kept.heard = mark.heard;
            }
        }
    }

    fn done(&self, stream: StreamId) {
        if let Err(error) = fs::remove_file(self.dir.join(stream.to_string()))
            && error.kind() != ErrorKind::NotFound
        {
            // Told again after the next start, which does no harm.
            tracing::debug!(%stream, %error, "the mark of a deleted stream cannot be removed");
        }
        self.streams.lock().remove(&stream);
    }

    fn write(&self, stream: StreamId) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        File::create(self.dir.join(stream.to_string()))?.sync_all()?;
        File::open(&self.dir)?.sync_all()
    }
}

/// Forgets the streams of which this broker's own backup store holds or remembers something, and which
/// the store that brokers share says are gone: who deleted them told those that were there, and this
/// broker was away. Streams that are `known` are not asked for.
///
/// A stream that is not there may be gone, or not be there yet: then what says so is older than the
/// copies, such as a store that was brought back as it was before. The epoch floor tells: a stream begins
/// above it, so that it is below the epochs of all the stream's copies until a stream was deleted
/// after that. It is read first, since a store that answers does not go back ([`Stranger::Older`]). Where
/// nothing is told, or not by the store that was there, nothing is forgotten.
///
/// [`Stranger::Older`]: kera_metadata::Stranger::Older
pub(crate) async fn catch_up(
    me: BrokerId,
    store: &Arc<ReplicaStore>,
    shared: &Arc<dyn ClusterStore>,
    known: impl Fn(StreamId) -> bool,
) {
    // Before the store is asked: whatever it says is later than what is here.
    let held = store.streams().into_iter();
    let unknown: Vec<_> = held.filter(|(stream, _)| !known(*stream)).collect();
    if unknown.is_empty() {
        return;
    }
    let shared = shared.clone();
    let asked = tokio::task::spawn_blocking(move || gone(&*shared, unknown)).await;
    let gone = match asked {
        Ok(Ok(gone)) => gone,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the metadata store does not say now which streams with replicas here were deleted");
            return;
        }
        Err(error) => {
            tracing::error!(%error, "looking for replicas of deleted streams failed");
            return;
        }
    };
    for stream in gone {
        match forget_here(store, me, stream).await {
            Ok(()) => {
                tracing::info!(%stream, "the stream was deleted while this broker was away: its replicas are removed here");
            }
            Err(reason) => {
                tracing::debug!(%stream, reason, "replicas of a deleted stream are left here; trying again");
            }
        }
    }
}

/// Those of `streams`, of which copies of that epoch are here, that are deleted.
fn gone(
    shared: &dyn ClusterStore,
    streams: Vec<(StreamId, Epoch)>,
) -> Result<Vec<StreamId>, MetadataError> {
    let floor = shared.counter(Counter::EpochFloor)?;
    let mut gone = Vec::new();
    for (stream, epoch) in streams {
        if floor >= u64::from(epoch.0) && shared.stream(stream)?.is_none() {
            gone.push(stream);
        }
    }
    Ok(gone)
}

/// Has this broker's own backup store forget what it holds for other owners of the stream.
async fn forget_here(
    store: &Arc<ReplicaStore>,
    me: BrokerId,
    stream: StreamId,
) -> Result<(), String> {
    let store = store.clone();
    let forget = move || store.handle(me, Request::Forget { stream });
    let forgotten = tokio::task::spawn_blocking(forget).await;
    let forgotten = forgotten.map_err(|error| error.to_string())?;
    forgotten.map(drop).map_err(|refusal| refusal.to_string())
}

fn read(dir: &Path) -> io::Result<BTreeMap<StreamId, Mark>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        if let Ok(stream) = entry?.file_name().to_string_lossy().parse() {
            let mark = Mark {
                old: true,
                ..Mark::default()
            };
            found.insert(stream, mark);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use kera_metadata::{
        Compare, FIRST_EPOCH, Key, MemoryCluster, StreamConfig, StreamRecord, Transaction, Write,
    };

    use super::*;

    fn created(store: &MemoryCluster, name: &str) -> StreamRecord {
        let record = StreamRecord::new(name.to_owned(), StreamConfig::default(), 1);
        store.create_stream(record, 1).expect("it is created").0
    }

    #[test]
    fn a_stream_is_gone_where_the_store_says_so_that_knew_of_it() {
        let store = MemoryCluster::new();
        let (dropped, kept) = (created(&store, "a"), created(&store, "b"));
        let stranger = StreamId::random();
        let asked = || {
            let first = [dropped.id, kept.id, stranger].map(|id| (id, FIRST_EPOCH));
            let mut found = gone(&store, first.into()).expect("it answers");
            found.sort_unstable();
            found
        };
        // A stream that nobody has deleted is one that this store has not come to yet.
        assert_eq!(asked(), []);
        let revision = Compare::revision(Key::Stream(dropped.id), dropped.revision);
        let deletion = Transaction::new(vec![revision], vec![Write::DeleteStream(dropped.id)]);
        store.commit(deletion).expect("it is deleted");
        let mut expected = [dropped.id, stranger];
        expected.sort_unstable();
        assert_eq!(asked(), expected);
        // Its copies are of a time after this store's.
        let later = Epoch(FIRST_EPOCH.0 + 1);
        assert_eq!(gone(&store, vec![(stranger, later)]), Ok(Vec::new()));
    }

    fn pending(forgotten: &Forgotten) -> Vec<StreamId> {
        forgotten.streams.lock().keys().copied().collect()
    }

    #[test]
    fn a_mark_outlives_the_process_until_it_is_done() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("forget");
        let stream = StreamId::random();
        let forgotten = Forgotten::open(path.clone());
        assert!(pending(&forgotten).is_empty());
        forgotten.deleting(stream);
        let again = Forgotten::open(path.clone());
        assert_eq!(pending(&again), [stream]);
        again.done(stream);
        assert!(pending(&again).is_empty());
        assert!(pending(&Forgotten::open(path)).is_empty());
    }
}
