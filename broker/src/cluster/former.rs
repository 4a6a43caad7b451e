//! Files of streamlets that were this broker's and are another's now.
//!
//! A broker keeps the files that it wrote as an owner: records list them as its copies, and whoever owns the
//! streamlet now frees them by asking for it, such as when they are trimmed. What was asked for while this
//! broker was away, and what no record ever named, goes here: the files are listed first and the records read
//! after that, so that what is listed and not recorded never will be, as nobody but an owner adds files, and
//! this broker is none. Removed is nothing while a streamlet is on its way here, and nothing by records that
//! are older than what this broker has seen.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::group::GroupSpec;
use kera_metadata::Image;
use kera_protocol::ids::{GroupId, StreamletId};
use kera_streamlet::Streamlet;

use super::copies::key_of;
use super::replicated::Replicated;
use crate::catalog::Stream;
use crate::start::Shared;

/// Files that are removed before others may change owners.
const AT_ONCE: usize = 64;

/// Looks for such files, at an interval.
pub(super) async fn run(shared: Arc<Shared>, interval: Duration) {
    if shared.store.is_none() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(interval).await;
        let sweeping = shared.clone();
        let swept = tokio::task::spawn_blocking(move || sweep(&sweeping)).await;
        if let Err(error) = swept {
            tracing::error!(%error, "looking for files of other brokers' streamlets failed");
        }
    }
}

/// A file of a group.
pub(super) struct Found {
    group: GroupId,
    path: PathBuf,
    bytes: u64,
}

/// Goes over all streamlets once; how many files were removed. Waits for disk and store.
pub(super) fn sweep(shared: &Arc<Shared>) -> u64 {
    let Some(replicated) = &shared.replicated else {
        return 0;
    };
    let mut removed = 0;
    for stream in shared.catalog.all() {
        // Without copies elsewhere a streamlet stays where its files are.
        if !stream.record.load().config.is_replicated() {
            continue;
        }
        for streamlet in &stream.streamlets {
            if *shared.stopping.borrow() {
                return removed;
            }
            if is_elsewhere(shared, &stream, streamlet.id()) {
                removed += look_at(shared, replicated, &stream, &streamlet);
            }
        }
    }
    removed
}

/// True if another broker is known to own it, and nothing here is at work on its files.
fn is_elsewhere(shared: &Shared, stream: &Stream, id: StreamletId) -> bool {
    let known = stream.owner(id).filter(|owner| owner.broker != 0);
    let moved = stream.streamlet(id).is_some_and(|now| now.is_moved());
    moved && known.is_some_and(|owner| owner.broker != shared.broker_id)
}

fn look_at(
    shared: &Arc<Shared>,
    replicated: &Replicated,
    stream: &Arc<Stream>,
    streamlet: &Arc<Streamlet>,
) -> u64 {
    let id = streamlet.id();
    let listed = list(&streamlet.dir());
    let me = shared.broker_id;
    // Most are recorded, as is known without reading the records.
    let kept = shared.pictured.read(|picture| {
        let view = picture.streamlet(stream.id(), id);
        view.is_some_and(|view| {
            listed.iter().all(|file| {
                let group = view.groups.get(&file.group);
                group.is_some_and(|group| group.copies.contains(&me))
            })
        })
    });
    if listed.is_empty() || kept.unwrap_or(true) {
        return 0;
    }
    // Nobody recovers it here meanwhile.
    let taking = replicated.taking(key_of(streamlet));
    let Ok(_alone) = taking.try_lock() else {
        return 0;
    };
    let image = match shared.metadata.load_streamlet(stream.id(), id) {
        Ok(image) => image,
        Err(error) => {
            tracing::debug!(stream = stream.name(), streamlet = id.0, %error, "its files are looked at later");
            return 0;
        }
    };
    let unnamed = unnamed(shared, &image, listed);
    let mut removed = 0;
    for some in unnamed.chunks(AT_ONCE) {
        let Some(ownership) = &shared.ownership else {
            break;
        };
        // No stretch of ownership begins here while they go.
        ownership.between_changes(|| {
            if is_elsewhere(shared, stream, id) {
                let files = some.iter().filter(|file| remove(shared, file));
                let bytes: Vec<u64> = files.map(|file| file.bytes).collect();
                replicated
                    .changes()
                    .removed(bytes.len() as u64, bytes.iter().sum());
                removed += bytes.len() as u64;
            }
        });
    }
    if removed > 0 {
        tracing::info!(
            stream = stream.name(),
            streamlet = id.0,
            files = removed,
            "another broker owns it, and its records name these files no more: they are removed"
        );
    }
    removed
}

/// The files in a streamlet's directory.
pub(super) fn list(dir: &Path) -> Vec<Found> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let found = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let (group, _) = GroupSpec::parse_file_name(name.to_str()?)?;
        let bytes = entry.metadata().map_or(0, |metadata| on_disk(&metadata));
        let path = entry.path();
        Some(Found { group, path, bytes })
    });
    found.collect()
}

/// Files are sparse: what one takes, not how far it reaches.
fn on_disk(metadata: &fs::Metadata) -> u64 {
    metadata.blocks() * 512
}

/// Those of `listed` that no record names as this broker's file; none where `image` does not say that
/// another broker owns the streamlet, or is older than what was seen.
pub(super) fn unnamed(shared: &Shared, image: &Image, listed: Vec<Found>) -> Vec<Found> {
    let (me, store) = (shared.broker_id, shared.dir.incarnation().store_id);
    let seen = shared.ownership.as_ref().map_or(0, |o| *o.seen().borrow());
    let [record] = image.streamlets.as_slice() else {
        // It is being deleted, and all of it goes.
        return Vec::new();
    };
    if record.owner == me || image.revision < seen {
        return Vec::new();
    }
    let named = |group: GroupId| {
        let record = image.groups.iter().find(|record| record.group == group);
        record.is_some_and(|record| {
            let mut copies = record.copies.iter();
            copies.any(|copy| copy.broker == me && *copy.store_id.as_bytes() == store)
        })
    };
    let unnamed = listed.into_iter().filter(|file| !named(file.group));
    unnamed.collect()
}

/// False if it is still there.
fn remove(shared: &Shared, file: &Found) -> bool {
    match shared.env.io.remove_file(&file.path) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(file = %file.path.display(), %error, "a file that no record names could not be removed; tried again");
            false
        }
    }
}
