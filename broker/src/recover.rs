//! At a start: every streamlet of this broker from its records and files, and the catalog of all
//! streams there are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_log_segments::group::GroupSpec;
use kera_metadata::{GroupRecord, Image, StreamRecord, StreamletRecord, Write};
use kera_protocol::ids::{Epoch, LaneId, StreamId, StreamletId};
use kera_streamlet::recorder::GroupRecorder;
use kera_streamlet::{Env, LaneRecords, Recovery, Streamlet};

use crate::clock::now_ms;
use crate::cluster::restored_groups::{starts, tell_holes};
use crate::cluster::store_restore::{jumped, jumps};
use crate::data::catalog::{Catalog, Stream, make_dirs, settings_of};
use crate::data::directory::Owner;
use crate::error::BrokerError;
use crate::group_records::GroupRecords;
use crate::set_aside::move_aside;
use crate::store_dir::{DAMAGED_DIR, StoreDir};
use crate::unreadable;

/// Recovers `streamlets`, which are this broker's, and makes the catalog of all streams in `image`,
/// which is `shared` with other brokers or this one's own.
///
/// # Errors
/// [`BrokerError::Stream`] if an operator must decide what files are, or what was found cannot be recorded.
pub(crate) fn recover_all(
    image: &Image,
    streamlets: &[StreamletRecord],
    shared: bool,
    env: &Arc<Env>,
    recorder: &GroupRecords,
) -> Result<Catalog, BrokerError> {
    let catalog = Catalog::default();
    let mut work: Vec<(&StreamRecord, &StreamletRecord)> = Vec::with_capacity(streamlets.len());
    let streams: HashMap<StreamId, &StreamRecord> =
        image.streams.iter().map(|s| (s.id, s)).collect();
    for streamlet in streamlets {
        if let Some(stream) = streams.get(&streamlet.stream) {
            work.push((stream, streamlet));
        }
    }
    // Scans wait for the disk and checksum: as many threads as cores, at least two.
    let threads = std::thread::available_parallelism()
        .map_or(2, |n| n.get())
        .max(2)
        .min(work.len().max(1));
    let next = AtomicU64::new(0);
    let results = parking_lot::Mutex::new(Vec::with_capacity(work.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((stream, streamlet)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    let outcome = recover_one(image, stream, streamlet, shared, env);
                    results.lock().push((*stream, *streamlet, outcome));
                }
            });
        }
    });
    // Nothing is removed or set aside before all of them can be recovered.
    let outcomes = results.into_inner().into_iter();
    let outcomes = outcomes.map(|(stream, recorded, outcome)| {
        let outcome = outcome.map_err(|error| stuck(stream, error))?;
        Ok((stream, recorded, outcome))
    });
    let outcomes: Vec<_> = outcomes.collect::<Result<_, BrokerError>>()?;
    let mut recovered: HashMap<StreamId, Vec<Arc<Streamlet>>> = HashMap::new();
    let (mut scanned, mut scanned_bytes) = (0, 0);
    for (stream, recorded, (mut streamlet, recovery)) in outcomes {
        scanned += recovery.scanned;
        scanned_bytes += recovery.scanned_bytes;
        settle(&stream.name, &streamlet, recovery, env, recorder)?;
        if streamlet.is_recovered()
            && let Some((image, recorded)) = pass_over_unknown(&streamlet, recorded, recorder)
                .map_err(|error| stuck(stream, error))?
        {
            let holes = tell_holes(&stream.name, &image);
            env.losses.groups.fetch_add(holes, Ordering::Relaxed);
            let again = recover_one(&image, stream, &recorded, shared, env);
            let (again, recovery) = again.map_err(|error| stuck(stream, error))?;
            settle(&stream.name, &again, recovery, env, recorder)?;
            streamlet = again;
        }
        recovered
            .entry(streamlet.stream())
            .or_default()
            .push(streamlet);
    }
    if scanned > 0 {
        tracing::info!(
            groups = scanned,
            bytes = scanned_bytes,
            "scanned open groups"
        );
    }
    for stream in &image.streams {
        let own = recovered.remove(&stream.id).unwrap_or_default();
        make_dirs(&own, env).map_err(|error| BrokerError::Stream {
            stream: stream.name.clone(),
            error,
        })?;
        catalog.insert(whole(stream, own, image, env));
    }
    Ok(catalog)
}

fn stuck(stream: &StreamRecord, error: std::io::Error) -> BrokerError {
    BrokerError::Stream {
        stream: stream.name.clone(),
        error,
    }
}

/// Of a streamlet without replicas elsewhere that was recovered, and what was found is recorded: after a restore of the metadata
/// store its lanes go on behind what unknown groups may have held. Answers what is recorded then, from which it is to be
/// recovered again; `None` if it does not wait for that.
///
/// # Errors
/// The store's; nothing says then that it does not wait any more.
pub(crate) fn pass_over_unknown(
    streamlet: &Streamlet,
    recorded: &StreamletRecord,
    recorder: &GroupRecords,
) -> std::io::Result<Option<(Image, StreamletRecord)>> {
    if recorded.awaits_jumps == 0 {
        return Ok(None);
    }
    let failed = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
    let load = || {
        let image = recorder
            .store()
            .load_streamlet(recorded.stream, recorded.streamlet);
        image.map_err(|error| failed(&error))
    };
    let image = load()?;
    let lanes = streamlet.settings().lanes;
    let ends = |lane| streamlet.head(lane).map(|head| head.ordinal());
    let jumps = jumps(&image, recorded, lanes, recorder.own(), ends);
    let mut changes: Vec<_> = jumps.into_iter().map(Write::PutGroup).collect();
    let starts = starts(&image).into_iter();
    changes.extend(starts.map(|(key, ordinal)| Write::PutLaneStart { key, ordinal }));
    changes.push(Write::PutStreamlet(jumped(recorded)));
    let done = recorder.record_now(recorded.epoch, changes);
    done.map_err(|error| failed(&error))?;
    let image = load()?;
    recorder.add_streamlets(&image.streamlets);
    let now = image.streamlets.first().cloned();
    let now = now.ok_or_else(|| failed(&"its record is gone"))?;
    Ok(Some((image, now)))
}

/// A stream with the streamlets that this broker has, and the places of those that others have.
fn whole(
    record: &StreamRecord,
    own: Vec<Arc<Streamlet>>,
    image: &Image,
    env: &Arc<Env>,
) -> Arc<Stream> {
    let count = record.config.streamlets as usize;
    let mut owners = vec![NOBODY; count];
    for streamlet in image.streamlets_of(record.id) {
        if let Some(owner) = owners.get_mut(streamlet.streamlet.0 as usize) {
            *owner = Owner {
                broker: streamlet.owner,
                epoch: streamlet.epoch,
            };
        }
    }
    let mut places: Vec<Option<Arc<Streamlet>>> = vec![None; count];
    for streamlet in own {
        if let Some(place) = places.get_mut(streamlet.id().0 as usize) {
            *place = Some(streamlet);
        }
    }
    let streamlets = places.into_iter().zip((0..).map(StreamletId));
    let streamlets = streamlets.map(|(place, id)| {
        let settings = settings_of(record, id);
        let others = || Streamlet::elsewhere(record.id, id, NOBODY.epoch, settings, env.clone());
        place.unwrap_or_else(others)
    });
    Stream::new(record.clone(), streamlets.collect(), owners)
}

/// The owner of a streamlet that is not known yet.
const NOBODY: Owner = Owner {
    broker: 0,
    epoch: Epoch(0),
};

/// A stream all of whose streamlets other brokers own; nobody knows yet which.
pub(crate) fn elsewhere(record: &StreamRecord, env: &Arc<Env>) -> Arc<Stream> {
    let places = (0..record.config.streamlets).map(StreamletId);
    let streamlets: Vec<_> = places
        .map(|id| {
            let settings = settings_of(record, id);
            Streamlet::elsewhere(record.id, id, NOBODY.epoch, settings, env.clone())
        })
        .collect();
    let owners = vec![NOBODY; streamlets.len()];
    Stream::new(record.clone(), streamlets, owners)
}

/// The lanes of a streamlet as recorded.
pub(crate) fn lane_records(
    image: &Image,
    stream: StreamId,
    streamlet: StreamletId,
) -> HashMap<LaneId, LaneRecords> {
    let mut lanes: HashMap<LaneId, LaneRecords> = HashMap::new();
    for start in image.lane_starts_of(stream, streamlet) {
        lanes.entry(start.key.lane).or_default().log_start = start.ordinal;
    }
    for group in image.groups_of(stream, streamlet) {
        lanes
            .entry(group.lane)
            .or_default()
            .groups
            .push(group.clone());
    }
    lanes
}

/// Whether the files of a streamlet without copies elsewhere are this store's. If they are not they
/// lie in another data directory of this broker, and are not to be taken for lost.
pub(crate) fn is_here(image: &Image, streamlet: &StreamletRecord, env: &Env) -> bool {
    let store_id = env.incarnation.store_id;
    let mut groups = image
        .groups_of(streamlet.stream, streamlet.streamlet)
        .iter();
    groups.all(|group| {
        let mut copies = group.copies.iter();
        copies.any(|copy| copy.incarnation.store_id == store_id)
    })
}

fn recover_one(
    image: &Image,
    stream: &StreamRecord,
    streamlet: &StreamletRecord,
    shared: bool,
    env: &Arc<Env>,
) -> std::io::Result<(Arc<Streamlet>, Recovery)> {
    let waiting = Streamlet::awaiting(
        stream.id,
        streamlet.streamlet,
        streamlet.epoch,
        settings_of(stream, streamlet.streamlet),
        env.clone(),
    );
    if stream.config.is_replicated() || (shared && !is_here(image, streamlet, env)) {
        // Recovered from its copies, beside what this broker can serve at once.
        return Ok((waiting, Recovery::default()));
    }
    let recovered = Streamlet::recover(
        stream.id,
        streamlet.streamlet,
        streamlet.epoch,
        streamlet.next_group,
        settings_of(stream, streamlet.streamlet),
        env.clone(),
        lane_records(image, stream.id, streamlet.streamlet),
        now_ms(),
    );
    let (served, mut recovery) = match recovered {
        Ok(recovered) => recovered,
        Err(error) if unreadable::is_for_later(&error) => {
            // The rest of the broker serves.
            let cause = error.to_string();
            let (stream, streamlet) = (&stream.name, waiting.id().0);
            tracing::error!(stream, streamlet, "{}", unreadable::told(&cause));
            waiting.set_unreadable(cause);
            return Ok((waiting, Recovery::default()));
        }
        Err(error) => return Err(error),
    };
    find_short(image, &served, &mut recovery);
    Ok((served, recovery))
}

/// As [`recover_one`], in place, of a streamlet whose files could not be read at the start; `recorded` is its record.
pub(crate) fn recover_again(
    image: &Image,
    recorded: &StreamletRecord,
    streamlet: &Streamlet,
) -> std::io::Result<Recovery> {
    let mut recovery = streamlet.recover_files(
        recorded.epoch,
        recorded.next_group,
        lane_records(image, recorded.stream, recorded.streamlet),
        now_ms(),
    )?;
    find_short(image, streamlet, &mut recovery);
    Ok(recovery)
}

/// Tells of files of closed groups that were cut short.
fn find_short(image: &Image, streamlet: &Streamlet, recovery: &mut Recovery) {
    let groups = image.groups_of(streamlet.stream(), streamlet.id());
    let short = short_files(&streamlet.dir(), groups);
    recovery.damaged += short.len();
    let more = short.len().saturating_sub(SHORT_TOLD);
    recovery.reports.extend(short.into_iter().take(SHORT_TOLD));
    if more > 0 {
        recovery.reports.push(format!(
            "{}: {more} more files of closed groups were cut short",
            streamlet.dir().display()
        ));
    }
}

/// At most this many damaged closed files get a line of their own in the log; the rest are counted.
const SHORT_TOLD: usize = 10;

/// The files of closed groups that are shorter than is recorded, in words. Each is asked for its length alone,
/// since there may be very many; batches are checked when they are read. Of those that are gone the recovery tells.
fn short_files(dir: &Path, groups: &[GroupRecord]) -> Vec<String> {
    let closed = groups.iter().filter(|record| record.holds_records());
    let told = closed.filter_map(|record| {
        let file = dir.join(GroupSpec::file_name(record.group, record.generation));
        let (path, recorded) = (file.display(), record.length);
        match std::fs::metadata(&file) {
            Ok(file) if file.len() >= recorded => None,
            Ok(file) => Some(format!(
                "{path} has {} bytes, and {recorded} are recorded: it was cut short, and there is no other replica; put the file back, or read what is left of it",
                file.len()
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(format!(
                "{path} cannot be looked at ({error}), {recorded} bytes are recorded and there is no other replica"
            )),
        }
    });
    told.collect()
}

/// Records what recovery decided, then removes what no longer counts.
pub(crate) fn settle(
    name: &str,
    streamlet: &Streamlet,
    recovery: Recovery,
    env: &Env,
    recorder: &GroupRecords,
) -> Result<(), BrokerError> {
    for report in &recovery.reports {
        if recovery.damaged + recovery.aside.len() > 0 {
            tracing::error!(stream = name, streamlet = streamlet.id().0, "{report}");
        } else {
            tracing::warn!(stream = name, streamlet = streamlet.id().0, "{report}");
        }
    }
    env.losses
        .groups
        .fetch_add(recovery.damaged as u64, Ordering::Relaxed);
    for (lane, from, to) in &recovery.gaps {
        tracing::warn!(
            stream = name,
            streamlet = streamlet.id().0,
            lane = lane.0,
            from,
            to,
            "ordinals jump: what was shown between them may be lost and is never reused"
        );
    }
    if !recovery.changes.is_empty() {
        let recorded = recorder.record_now(streamlet.epoch(), recovery.changes);
        recorded.map_err(|error| BrokerError::Stream {
            stream: name.to_string(),
            error: std::io::Error::other(error),
        })?;
    }
    for path in &recovery.aside {
        match set_file_aside(&env.root, path) {
            Ok(Some(to)) => {
                env.losses.files_aside.fetch_add(1, Ordering::Relaxed);
                tracing::error!(stream = name, from = %path.display(), to = %to.display(), "a file is set aside; nothing removes it but you");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "a damaged file cannot be set aside; it is left where it is");
            }
        }
    }
    for path in &recovery.remove {
        if let Err(error) = env.io.remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "a file that no longer counts could not be removed");
        }
    }
    Ok(())
}

/// Moves a file of a streamlet, under `root`, to where nothing removes it; answers where that is, `None` if the
/// file is gone.
fn set_file_aside(root: &Path, file: &Path) -> std::io::Result<Option<PathBuf>> {
    move_aside(&root.with_file_name(DAMAGED_DIR), root, file)
}

/// Directories of streams that no longer exist: a delete was cut short by a crash. Where neither `image` is
/// `believed` to be newer than they are nor the delete is remembered, they are set aside.
/// False if some cannot be.
pub(crate) fn remove_deleted_streams(dir: &StoreDir, image: &Image, believed: bool) -> bool {
    let Ok(entries) = std::fs::read_dir(dir.streams()) else {
        return true;
    };
    let mut is_done = true;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(id) = name.to_string_lossy().parse::<StreamId>() else {
            tracing::warn!(path = %entry.path().display(), "not a stream's directory; it is left alone");
            continue;
        };
        if image.streams.iter().any(|s| s.id == id) {
            dir.deleted(id);
            continue;
        }
        if !believed && !dir.is_deleting(id) {
            is_done &= set_aside(dir, id);
            continue;
        }
        match std::fs::remove_dir_all(entry.path()) {
            Ok(()) => dir.deleted(id),
            Err(error) => {
                tracing::warn!(path = %entry.path().display(), %error, "files of a deleted stream could not be removed");
            }
        }
    }
    is_done
}

/// Keeps the files of a stream that the metadata store knows nothing of, which says nothing: it is not known
/// to be as new as they are.
fn set_aside(dir: &StoreDir, stream: StreamId) -> bool {
    let aside = dir.unknown();
    let from = dir.streams().join(stream.to_string());
    // An earlier restore may have set some aside already.
    let names = (0_u32..).map(|n| match n {
        0 => stream.to_string(),
        n => format!("{stream}.{n}"),
    });
    let to = names
        .map(|name| aside.join(name))
        .find(|path| !path.exists());
    let to = to.unwrap_or_else(|| aside.join(stream.to_string()));
    let moved = std::fs::create_dir_all(&aside).and_then(|()| std::fs::rename(&from, &to));
    match &moved {
        Ok(()) => tracing::warn!(
            path = %to.display(),
            "the metadata store does not know this stream and may be older than it: its files are set aside; remove them if it was deleted"
        ),
        Err(error) => {
            tracing::error!(path = %from.display(), %error, "files of an unknown stream cannot be set aside")
        }
    }
    moved.is_ok()
}

#[cfg(test)]
mod tests {
    use kera_metadata::GroupState;
    use kera_protocol::ids::{GroupId, StreamletKey};

    use super::*;

    #[test]
    fn files_of_closed_groups_that_were_cut_short_are_told_of() {
        let home = tempfile::tempdir().expect("a directory");
        let streamlet = StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(0),
        };
        let record = |number: u64, length: u64, state| GroupRecord {
            state,
            first_ordinal: Some(0),
            length,
            end_ordinal: u64::from(length > 0),
            next_ordinal: 1,
            live_bytes: length,
            ..GroupRecord::new(streamlet.group(GroupId(number)), LaneId(0), Epoch(1))
        };
        let groups = [
            record(1, 100, GroupState::Closed),
            record(2, 100, GroupState::Closed),
            record(3, 100, GroupState::Closed),
            record(4, 0, GroupState::Closed),
            record(5, 100, GroupState::Open),
        ];
        for (number, bytes) in [(1, 100), (2, 99)] {
            let name = GroupSpec::file_name(groups[number - 1].group, 0);
            std::fs::write(home.path().join(name), vec![1; bytes]).expect("a file");
        }
        let told = short_files(home.path(), &groups);
        // The start that lists the directory reports the missing file.
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("has 99 bytes, and 100 are recorded"),
            "{told:?}"
        );
    }

    #[test]
    fn what_the_store_does_not_know_goes_only_where_the_store_is_known_to_be_newer() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = StoreDir::open(home.path()).expect("opens");
        let id = StreamId::random();
        let file = Path::new(&id.to_string()).join("1.0.log");
        let stream = dir.streams().join(id.to_string());
        std::fs::create_dir_all(&stream).expect("a directory");
        std::fs::write(dir.streams().join(&file), b"records").expect("a file");
        let empty = Image::default();
        remove_deleted_streams(&dir, &empty, false);
        assert!(!stream.exists());
        let kept = std::fs::read(dir.unknown().join(&file)).expect("it is kept");
        assert_eq!(kept, b"records");

        std::fs::create_dir_all(&stream).expect("a directory");
        remove_deleted_streams(&dir, &empty, true);
        assert!(!stream.exists());
        assert!(dir.unknown().join(&file).exists());

        // Its own store, restored from a backup, is older; but this broker began to delete it.
        std::fs::create_dir_all(&stream).expect("a directory");
        dir.deleting(id).expect("a mark");
        remove_deleted_streams(&dir, &empty, false);
        assert!(!stream.exists());
        assert!(!dir.is_deleting(id));
    }
}
