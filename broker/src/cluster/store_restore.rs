//! The metadata store was put back to an older state, as from a snapshot: what brokers do at their next start.
//!
//! An operator says so by removing `REVISION` from the data directory of each broker. Groups that were recorded since the
//! older state are unknown, and so are the ordinals, epochs and ids that they have.
//!
//! 1. [`take_part`]: all streamlets are told, so that each broker hears of the restore, whenever it takes a streamlet over.
//!    Their epochs and group ids go up, so that an owner that already serves one is deposed. Once all are told, the broker's
//!    record names the restore by its number. A broker that starts later finds the number in another's record, not in its
//!    own, and takes part in the same restore. Two brokers that start at once give it the same number, and no streamlet is
//!    told twice.
//!    Before that, producer ids are passed over that may have been given out, and brokers are recorded again that the older state does
//!    not name and that the data directory knows.
//! 2. [`take_in`]: groups that no record names, and that are whole here, are recorded again; recorded ones that are gone since
//!    are trimmed. What is not recorded then is set aside. All of that before anybody can free it.
//! 3. The next owner of such a streamlet waits until the brokers that are recorded have done so, but not for ever: as long as
//!    anything is heard of them. It records once, in each lane, that ordinals [jump](jumps).
//!
//! Brokers of earlier versions know nothing of it: what they take over first goes on where the store says.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kera_log_segments::group::{GroupSpec, MAX_GROUP_ORDINALS};
use kera_log_segments::io::{EngineKind, Io, OpenHow, is_broken_file, open_engine};
use kera_log_segments::scan::{self, ScanSpec};
use kera_metadata::{
    BrokerRecord, ClusterStore, Compare, Counter, GroupRecord, Image, Key, MetadataError,
    MetadataStore, Replica, Role, StreamletRecord, Transaction, Write,
};
use kera_protocol::batch::BatchHeader;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{BrokerId, GroupId, LaneId, StreamletId, StreamletKey};
use uuid::Uuid;

use super::replica::backup::{self, BackupOptions};
use super::restored_groups::{Places, Spare, Unseen, take_in};
use crate::clock::{now_ms, wall_ms};
use crate::cluster_version;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::fault_rules::Rule;
use crate::recover::remove_deleted_streams;
use crate::set_aside::move_aside;
use crate::store_dir::{DAMAGED_DIR, StoreDir};

/// Streamlets that are told in one transaction, where the store allows so many.
const TOLD_AT_ONCE: usize = 1024;
/// How often streamlets are read again that others changed meanwhile.
const ATTEMPTS: u32 = 32;
/// More producer ids than were ever given out between a snapshot and its restore, and few of the 2^63 that there are.
const PRODUCER_IDS_PASSED: u64 = 1 << 40;
/// More restores than there are between a snapshot and its use, of which the state that it brings back knows nothing.
const RESTORES_PASSED: u64 = 16;
/// How often a broker that looks through its files says so; others wait for ten times as long.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Generations from here on are in the names of files that are not finished.
const UNFINISHED: u32 = 1 << 31;

/// The last restore that any broker knows of; 0 for none.
pub(crate) fn last_known(brokers: &[BrokerRecord]) -> u64 {
    brokers.iter().map(|b| b.restore).max().unwrap_or(0)
}

/// The number of the restore for the record of broker `id`, which the caller keeps in the directory. If this is its first start after one, it tells all streamlets,
/// unless another broker has done so. Blocks.
///
/// # Errors
/// The store's.
pub(crate) fn take_part(
    store: &dyn ClusterStore,
    dir: &StoreDir,
    (id, brokers): (u32, &[BrokerRecord]),
) -> Result<u64, MetadataError> {
    let known = last_known(brokers);
    if !dir.is_after_restore() || Rule::RestoreUntold.is_broken() {
        // A start after one that failed once it had told: nothing says so yet but this directory.
        return Ok(known.max(dir.restore()));
    }
    let kept = dir.restore();
    let store_id = dir.incarnation().store_id;
    let mut mine = brokers
        .iter()
        .filter(|b| (b.id, b.store_id) == (id, store_id));
    // Of as many restores as this directory knows, the last is not the one that another broker has told of: it came to
    // the same number, since it knows of fewer.
    if kept < known && mine.next().is_some_and(|mine| mine.restore < known) {
        tracing::info!(
            restore = known,
            "the metadata store was put back to an older state; another broker has told all streamlets of it"
        );
        return Ok(known);
    }
    // The older state may be of before a restore that this directory has seen.
    let restore = known.max(kept) + 1;
    pass_over_producer_ids(store, restore)?;
    tell_streamlets(store, restore)?;
    tracing::warn!(
        restore,
        "REVISION is not in the data directory: the metadata store was put back to an older state. Groups that it does not know are recorded again where they are whole, and set aside where not. Each lane goes on 2^32 ordinals higher"
    );
    Ok(restore)
}

/// As [`take_part`], by a broker that cannot know of a restore: its data directory is new, and of the others that are recorded,
/// which would know, none [is alive](super::ownership::newcomer). What they have is waited for as after a restore, and no ordinal
/// of what they do not bring is used again. Blocks.
///
/// # Errors
/// The store's.
pub(crate) fn suppose(
    store: &dyn ClusterStore,
    dir: &StoreDir,
    brokers: &[BrokerRecord],
) -> Result<u64, MetadataError> {
    let (known, kept) = (last_known(brokers), dir.restore());
    // One that was kept is that of a start which failed before this broker was recorded.
    let restore = match kept > known {
        true => kept,
        false => known + RESTORES_PASSED,
    };
    pass_over_producer_ids(store, restore)?;
    tell_streamlets(store, restore)?;
    tracing::warn!(
        restore,
        "this data directory is new, and of the other brokers that the metadata store names none is alive. Should the store have been put back to an older state, only they know: each lane goes on {RESTORES_PASSED} x 2^32 ordinals higher, and is served once they have started"
    );
    Ok(restore)
}

/// Ids that were given out since the older state are given to nobody else: what a new producer sends first would be taken
/// for a duplicate of what the former one sent first. From restore to restore they begin at another place, also where the same
/// state was put back twice, and whichever brokers tell of it.
fn pass_over_producer_ids(store: &dyn MetadataStore, restore: u64) -> Result<(), MetadataError> {
    let counter = Counter::ProducerIds;
    for _ in 0..ATTEMPTS {
        let value = store.counter(counter)?;
        // Behind the place of the restore after this one are those of a state whose restores had no places yet.
        let begin = restore.saturating_mul(PRODUCER_IDS_PASSED);
        let passed = match value {
            value if value < begin => Some(begin),
            value if value - begin < PRODUCER_IDS_PASSED => return Ok(()),
            value => value.checked_add(PRODUCER_IDS_PASSED),
        };
        // Kafka's producer ids are signed.
        let Some(passed) = passed.filter(|passed| i64::try_from(*passed).is_ok()) else {
            return Err(invalid("no producer ids are left".to_owned()));
        };
        let compare = Compare::CounterValue { counter, value };
        let write = Write::PutCounter {
            counter,
            value: passed,
        };
        match store.commit(Transaction::new(vec![compare], vec![write])) {
            Ok(_) => return Ok(()),
            Err(MetadataError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(invalid(format!(
        "others took producer ids through {ATTEMPTS} attempts to pass over those that were given out before the metadata store was put back; start the broker again"
    )))
}

/// Records again brokers that this directory knows and the older state does not name, since they were added later: whoever takes
/// a streamlet over waits for recorded brokers.
fn name_unrecorded(
    store: &dyn ClusterStore,
    dir: &StoreDir,
    (me, brokers): (u32, &[BrokerRecord]),
) -> Result<(), MetadataError> {
    let is_recorded = |id: u32| brokers.iter().any(|broker| broker.id == id);
    let unrecorded = dir.brokers().into_iter();
    for (id, known) in unrecorded.filter(|(id, _)| *id != me && !is_recorded(*id)) {
        let record = BrokerRecord {
            id,
            address: known.address,
            store_id: known.store_id,
            boot_id: Uuid::nil(),
            started_ms: 0,
            version: String::new(),
            role: Role::Broker,
            restore: 0,
            revision: 0,
        };
        let compare = Compare::revision(Key::Broker(id), 0);
        match store.commit(Transaction::new(
            vec![compare],
            vec![Write::PutBroker(record)],
        )) {
            Ok(_) => {
                tracing::info!(
                    broker = id,
                    "the metadata store was put back to a state that does not know this broker; it is recorded again, and waited for"
                );
            }
            // It has started meanwhile, or another broker has recorded it.
            Err(MetadataError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells every streamlet of a restore that was not told of it yet.
fn tell_streamlets(store: &dyn MetadataStore, restore: u64) -> Result<(), MetadataError> {
    let size = TOLD_AT_ONCE.min(store.max_operations()).max(1);
    let mut left = store.streamlets()?;
    for _ in 0..ATTEMPTS {
        left.retain(|streamlet| streamlet.restore < restore);
        if left.is_empty() {
            return Ok(());
        }
        let mut again = Vec::new();
        for chunk in left.chunks(size) {
            let told = chunk.iter().map(|streamlet| {
                let told = streamlet.after_restore(restore);
                told.map(Write::PutStreamlet).ok_or_else(|| {
                    invalid(format!(
                        "streamlet {} has used up its epochs; copy the stream to a new one",
                        streamlet.key()
                    ))
                })
            });
            let told = told.collect::<Result<_, _>>()?;
            let compare = chunk.iter().map(Compare::streamlet).collect();
            match store.commit(Transaction::new(compare, told)) {
                Ok(_) => {}
                Err(MetadataError::Conflict(_)) => {
                    for streamlet in chunk {
                        let now = store.streamlet(streamlet.stream, streamlet.streamlet)?;
                        again.extend(now);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        left = again;
    }
    Err(invalid(format!(
        "{} streamlets were changed by others through {ATTEMPTS} attempts to tell them that the metadata store was put back; start the broker again",
        left.len()
    )))
}

fn invalid(text: String) -> MetadataError {
    WireError::new(ErrorCode::InvalidArgument, text).into()
}

/// Records that say where the lanes of a streamlet go on after a restore: 2^32 ordinals behind the end that is recorded, for
/// each restore that it was not told of before. Each is a closed group without records, at `own`. All groups in `image` are closed, or end where `ends` says.
///
/// Their ids are the last ones below the first that this epoch gives out: no earlier epoch comes so far.
pub(crate) fn jumps(
    image: &Image,
    streamlet: &StreamletRecord,
    lanes: u32,
    own: Replica,
    ends: impl Fn(LaneId) -> Option<u64>,
) -> Vec<GroupRecord> {
    let mut recorded: HashMap<LaneId, u64> = HashMap::new();
    for start in &image.lane_starts {
        recorded.insert(start.key.lane, start.ordinal);
    }
    for group in image.groups.iter().filter(|group| group.is_closed()) {
        let end = recorded.entry(group.lane).or_default();
        *end = group.next_ordinal.max(*end);
    }
    let key = streamlet.key();
    let jump = |lane: LaneId| {
        let recorded = recorded.get(&lane).copied().unwrap_or(0);
        let from = ends(lane).unwrap_or(0).max(recorded);
        let id = GroupId(streamlet.next_group.0 - 1 - u64::from(lane.0));
        let passed = MAX_GROUP_ORDINALS.saturating_mul(streamlet.awaits_jumps.into());
        let to = from.saturating_add(passed);
        GroupRecord {
            closed_ms: now_ms(),
            ..GroupRecord::new(key.group(id), lane, streamlet.epoch).closed(
                from,
                (0, from),
                to,
                vec![own],
            )
        }
    };
    (0..lanes).map(LaneId).map(jump).collect()
}

/// The streamlet's record once ordinals have jumped in all of its lanes.
pub(crate) fn jumped(streamlet: &StreamletRecord) -> StreamletRecord {
    StreamletRecord {
        awaits_jumps: 0,
        ..streamlet.clone()
    }
}

/// What a start has done because the metadata store was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The restore's number.
    pub(crate) restore: u64,
    /// Of the store, once all was told and taken in.
    pub(crate) revision: u64,
    /// Files that were set aside.
    pub(crate) set_aside: u64,
}

/// All that a broker does at a start after a restore, before its replicas are served: the replica store frees what no record
/// names. `brokers` are all that are recorded. Nobody may be using the directories. Blocks.
///
/// # Errors
/// [`BrokerError`] if the store or the data directory cannot be used.
pub(crate) fn begin(
    store: &dyn ClusterStore,
    dir: &StoreDir,
    config: &BrokerConfig,
    brokers: &[BrokerRecord],
) -> Result<Restored, BrokerError> {
    cluster_version::check_program(store.cluster_version()?)?;
    let id = config.cluster.broker_id.ok_or(BrokerError::NoNumber)?;
    name_unrecorded(store, dir, (id, brokers))?;
    let restore = take_part(store, dir, (id, brokers))?;
    let looking = Looking::begin(store, id, TOLD_EVERY);
    let mut own = Unknown::new();
    let (spare, own) = {
        let io = open_engine(EngineKind::Blocking);
        let streams = dir.streams();
        let is_no_file =
            |_: StreamletKey, (_, generation): (GroupId, u32)| generation >= UNFINISHED;
        match find(&*io, &streams, &is_no_file, &mut own) {
            Ok(unseen) => {
                let names = own
                    .iter()
                    .map(|(key, files)| (*key, files.keys().copied().collect()));
                let replicas = backup::open(&BackupOptions::of(config)?)?;
                let places = Places {
                    io: &*io,
                    streams: &streams,
                    incarnation: dir.incarnation(),
                    replicas: &replicas,
                    me: BrokerId(id),
                    is_known: brokers
                        .iter()
                        .any(|b| (b.id, b.store_id) == (id, dir.incarnation().store_id)),
                    own: names.collect(),
                    unseen,
                    goes_on: &|| looking.goes_on(),
                };
                (take_in(store, &store.load()?, &places)?, Some(own))
            }
            Err(error) => {
                tracing::error!(dir = %streams.display(), %error, "what is whole here of groups that the restored metadata store does not know cannot be looked for: nothing of it is recorded again or set aside. Later these files count as nobody's, and are removed; copy the directory elsewhere if you need what it holds");
                (Spare::new(), None)
            }
        }
    };
    let image = store.load()?;
    let set_aside = set_unknown_aside(dir, config, &image, (own, &spare))?;
    // Should this start fail once it counts as done, the next one takes what the store does not know for deleted.
    if !remove_deleted_streams(dir, &image, false) {
        return Err(BrokerError::DataDir {
            path: dir.unknown(),
            reason: "files of streams that the restored metadata store does not know cannot be moved here, and would count as deleted; make room or put right what the log names, then start again".to_owned(),
        });
    }
    Ok(Restored {
        restore,
        revision: image.revision,
        set_aside,
    })
}

/// A broker that looks through its files and its replicas, which may take long: others wait for it as long as they hear of it.
struct Looking<'a> {
    store: &'a dyn ClusterStore,
    id: u32,
    every: Duration,
    told: Cell<Instant>,
}

impl<'a> Looking<'a> {
    fn begin(store: &'a dyn ClusterStore, id: u32, every: Duration) -> Self {
        Self {
            store,
            id,
            every,
            told: Cell::new(Instant::now()),
        }
    }

    /// Says so once in a while, by writing this broker's record anew. The older state may not know this broker: nobody waits for it.
    fn goes_on(&self) {
        if self.told.get().elapsed() < self.every {
            return;
        }
        self.told.set(Instant::now());
        let told = self.store.broker(self.id).and_then(|mine| {
            let Some(mine) = mine else {
                return Ok(());
            };
            let compare = Compare::revision(Key::Broker(self.id), mine.revision);
            let now = BrokerRecord {
                started_ms: wall_ms(),
                ..mine
            };
            let write = Write::PutBroker(now);
            let told = self
                .store
                .commit(Transaction::new(vec![compare], vec![write]));
            told.map(drop)
        });
        if let Err(error) = told {
            tracing::warn!(%error, "others cannot be told that this broker looks through its files after the metadata store was put back; after ten minutes they go on without it");
        }
    }
}

/// The files of one group, with the directory of streams that they lie in.
type Files = Vec<(PathBuf, PathBuf)>;
/// Groups that no record names, by streamlet and by id and generation.
type Unknown = BTreeMap<StreamletKey, BTreeMap<(GroupId, u32), Files>>;

/// Sets aside what this broker has of groups that `image` does not know and that are not to `spare`: own files in streams that
/// it knows, and replicas for other brokers in all streams; how many files. What cannot be set aside is told and left. Nobody may be using the
/// directories. Own files are those of `own`, if they could be listed. Blocks.
///
/// # Errors
/// [`BrokerError::DataDir`] if the data directory cannot be used.
fn set_unknown_aside(
    dir: &StoreDir,
    config: &BrokerConfig,
    image: &Image,
    (own, spare): (Option<Unknown>, &Spare),
) -> Result<u64, BrokerError> {
    let options = BackupOptions::of(config)?;
    let io = open_engine(EngineKind::Blocking);
    // A closed record of no length says where a lane goes on. What a broker has of that group, no record names.
    let holds = |group: &&GroupRecord| !group.is_closed() || group.length > 0;
    let recorded: HashSet<_> = image
        .groups
        .iter()
        .filter(holds)
        .map(|group| (group.streamlet_key(), group.group, group.generation))
        .collect();
    let streams: HashMap<_, _> = image.streams.iter().map(|s| (s.id, &*s.name)).collect();
    let is_recorded = |key: StreamletKey, (group, generation): (GroupId, u32)| {
        let name = (key, group, generation);
        generation >= UNFINISHED || recorded.contains(&name) || spare.contains(&name)
    };
    let mut set_aside = 0;
    // Own files of unknown streams are set aside with their directory.
    let mut unknown_own = own.unwrap_or_default();
    unknown_own.retain(|key, groups| {
        groups.retain(|group, _| !is_recorded(*key, *group));
        streams.contains_key(&key.stream)
    });
    let for_others = vec![options.disk_dir, options.shared_dir];
    for (roots, mut unknown) in [(Vec::new(), unknown_own), (for_others, Unknown::new())] {
        for root in roots {
            if let Err(error) = find(&*io, &root, &is_recorded, &mut unknown) {
                tracing::error!(dir = %root.display(), %error, "files of groups that the restored metadata store does not know cannot be looked for here: later they count as nobody's, and are removed; copy the directory elsewhere if you need what it holds");
            }
        }
        for (key, groups) in unknown {
            let stream = streams.get(&key.stream).copied().unwrap_or("unknown");
            set_aside += set_streamlet_aside(dir, &*io, (key, stream), groups);
        }
    }
    Ok(set_aside)
}

fn set_streamlet_aside(
    dir: &StoreDir,
    io: &dyn Io,
    (key, stream): (StreamletKey, &str),
    groups: BTreeMap<(GroupId, u32), Files>,
) -> u64 {
    let base = dir.path().join(DAMAGED_DIR);
    let mut names = Vec::new();
    for files in groups.into_values() {
        let mut logs = files.iter().map(|(_, file)| file);
        // One that cannot be read may hold some.
        if !logs.any(|file| is_log(file) && holds_records(io, file).unwrap_or(true)) {
            continue;
        }
        for (root, file) in files {
            match move_aside(&base, &root, &file) {
                Ok(Some(to)) => names.push(to.display().to_string()),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(stream, file = %file.display(), %error, "a file of a group that the restored metadata store does not know cannot be set aside; later it counts as nobody's, and is removed: copy it elsewhere if you need what it holds");
                }
            }
        }
    }
    if !names.is_empty() {
        tracing::error!(
            stream,
            streamlet = key.streamlet.0,
            files = names.len(),
            names = names.join(" "),
            "the restored metadata store does not know these groups: what they hold was acknowledged and is lost to the stream. Their files are set aside; nothing removes them but you. `kera segment inspect` reads those that end in .log; have their records produced again"
        );
    }
    names.len() as u64
}

fn is_log(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "log")
}

/// Whether any record is in a group's file. What compaction made may have batches and no records.
fn holds_records(io: &dyn Io, file: &Path) -> io::Result<bool> {
    let file = io.open(file, OpenHow::ReadOnly, false)?;
    if scan::is_without_batches(&*file)? {
        return Ok(false);
    }
    let mut records = 0;
    let count = |header: &BatchHeader, _| records += u64::from(header.record_count);
    let scanned = scan::scan(&*file, &ScanSpec::default(), count);
    // Of one that is not whole nobody knows.
    let is_whole = scanned.is_ok_and(|scanned| scanned.batches > 0 && !scanned.damaged);
    Ok(records > 0 || !is_whole)
}

/// Adds the files below `root` of groups that are not recorded; answers which directories cannot be made out.
fn find(
    io: &dyn Io,
    root: &Path,
    is_recorded: &impl Fn(StreamletKey, (GroupId, u32)) -> bool,
    found: &mut Unknown,
) -> io::Result<Vec<Unseen>> {
    let mut unseen = Vec::new();
    for name in names(io, root)? {
        let Ok(stream) = name.parse() else {
            continue;
        };
        let of_stream = root.join(name);
        let Some(listed) = names_if_seen(io, &of_stream)? else {
            unseen.push((stream, None));
            continue;
        };
        for name in listed {
            let Ok(streamlet) = name.parse() else {
                continue;
            };
            let key = StreamletKey {
                stream,
                streamlet: StreamletId(streamlet),
            };
            let of_streamlet = of_stream.join(name);
            let Some(listed) = names_if_seen(io, &of_streamlet)? else {
                unseen.push((stream, Some(key.streamlet)));
                continue;
            };
            for name in listed {
                if let Some(group) = group_of(&name).filter(|group| !is_recorded(key, *group)) {
                    let files = found.entry(key).or_default().entry(group).or_default();
                    files.push((root.to_path_buf(), of_streamlet.join(name)));
                }
            }
        }
    }
    Ok(unseen)
}

/// The names in a directory; `None` if the file system cannot make it out, which says nothing of others.
fn names_if_seen(io: &dyn Io, dir: &Path) -> io::Result<Option<Vec<String>>> {
    match names(io, dir) {
        Err(error) if is_broken_file(&error) => {
            tracing::error!(dir = %dir.display(), %error, "this directory cannot be made out: groups in it that the restored metadata store does not know are neither recorded again nor set aside. Put it right, or copy it elsewhere, before anything removes what is in it");
            Ok(None)
        }
        listed => listed.map(Some),
    }
}

/// The group of a file, or of what a replica store says of one.
fn group_of(name: &str) -> Option<(GroupId, u32)> {
    let log = name.strip_suffix(".copy").map(|stem| format!("{stem}.log"));
    GroupSpec::parse_file_name(log.as_deref().unwrap_or(name))
}

/// The names in a directory; none in what is no directory.
fn names(io: &dyn Io, dir: &Path) -> io::Result<Vec<String>> {
    match io.list(dir) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        listed => listed,
    }
}

#[cfg(test)]
#[path = "store_restore_tests.rs"]
mod tests;
