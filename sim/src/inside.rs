//! What is wrong inside, whatever clients saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kera_metadata::{AckPolicy, GroupRecord, GroupState, Image};
use parking_lot::Mutex;

use crate::brokers::Brokers;
use crate::faults::Faults;
use crate::held_bytes::{self, Directories, MISSED};
use crate::load::{Load, PATIENCE};
use crate::os;
use crate::store::Store;

/// How often brokers are looked at until what they hold is what is recorded.
const LOOK: Duration = Duration::from_millis(500);

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

static NOT_THERE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What an owner logs that serves a share group in a partition no more, also if that is for a moment.
const SHARE_ENDED: &str = "a share group is not served in a partition any more";

/// What an owner logs that gives up writing dead letters.
const UNWRITTEN: &str = "are not in its dead-letter topic";

static LETTERS_UNWRITTEN: AtomicU64 = AtomicU64::new(0);

static SHARES_ENDED: AtomicU64 = AtomicU64::new(0);

/// A broker logs a line.
pub fn hear(line: &str) {
    if line.contains(MISSED) {
        NOT_THERE.lock().push(line.to_owned());
    }
    if line.contains(UNWRITTEN) {
        LETTERS_UNWRITTEN.fetch_add(1, Ordering::SeqCst);
    }
    if line.contains(SHARE_ENDED) {
        SHARES_ENDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// How often owners have given up writing dead letters.
pub fn letters_unwritten() -> u64 {
    LETTERS_UNWRITTEN.load(Ordering::SeqCst)
}

/// How often owners have stopped serving a share group in a partition.
pub fn shares_ended() -> u64 {
    SHARES_ENDED.load(Ordering::SeqCst)
}

/// Recorded replicas of closed groups that owners did not find at machines that have lost nothing.
pub fn not_there(brokers: &Brokers) -> Vec<String> {
    let lost_nothing = |line: &&String| match named(line) {
        Some(at) => at.into_iter().any(|one| !brokers.is_harmed(one)),
        None => true,
    };
    let lines = NOT_THERE.lock();
    lines.iter().filter(lost_nothing).cloned().collect()
}

/// The brokers in `at={1, 3}` of a line.
fn named(line: &str) -> Option<Vec<u32>> {
    let (_, rest) = line.rsplit_once("at={")?;
    let (names, _) = rest.split_once('}')?;
    names
        .split(", ")
        .map(|name| name.trim().parse().ok())
        .collect()
}

/// What tokio says of a task that was busy when the runtime ended, and then wanted to wait: its process has stopped.
const ENDED: &str = "A Tokio 1.x context was found, but it is being shutdown.";

/// Panics of any thread become findings from now on.
pub fn watch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("a thread of node {:?} panicked: {panic}", os::node_here());
        os::log(&text);
        if !text.contains(ENDED) {
            PANICS.lock().push(text);
        }
    }));
}

/// The panics so far.
pub fn panics() -> Vec<String> {
    PANICS.lock().clone()
}

/// Nobody writes any more: everything recorded is held, nothing else is, and records agree with each other.
pub fn look(load: &Load, brokers: &Arc<Brokers>, store: &Arc<Store>, faults: &mut Faults) {
    records(load, &store.image());
    let directories: Vec<_> = brokers
        .all()
        .into_iter()
        .chain(brokers.gone())
        .map(|broker| directories(brokers, broker))
        .collect();
    let until = os::now() + PATIENCE;
    loop {
        let amiss = held_bytes::look(|| store.image(), &directories);
        if !amiss.lost.is_empty() {
            return load.complain(format!(
                "recorded replicas have lost their bytes: {:?}",
                amiss.lost
            ));
        }
        if amiss.unsettled.is_empty() {
            return;
        }
        if os::now() > until {
            return load.complain(format!(
                "what brokers hold is not what is recorded: {:?}",
                amiss.unsettled
            ));
        }
        os::sleep(LOOK);
        faults.start_what_has_ended();
    }
}

/// Replicas of closed groups of `synced` streams that are recorded at a broker and whole there: no loss of power takes
/// them.
pub fn flushed(brokers: &Brokers, store: &Store, broker: u32) -> Vec<GroupRecord> {
    let image = store.image();
    let at = directories(brokers, broker);
    let is_synced = |id| {
        let mut streams = image.streams.iter();
        streams.any(|stream| stream.id == id && stream.config.ack == AckPolicy::Synced)
    };
    let is_here = |record: &&GroupRecord| {
        let mut copies = record.copies.iter();
        held_bytes::has_records(record)
            && copies.any(|copy| copy.broker.0 == broker)
            && is_synced(record.stream)
    };
    let recorded = image.groups.iter().filter(is_here);
    let whole = recorded.filter(|record| held_bytes::digest(&at, record).is_ok());
    whole.cloned().collect()
}

/// Complains if one of them is gone.
pub fn still_flushed(load: &Load, brokers: &Brokers, broker: u32, record: &GroupRecord) {
    if let Err(why) = held_bytes::digest(&directories(brokers, broker), record) {
        let group = record.key();
        load.complain(format!(
            "a loss of power took a flushed replica of {group} at broker {broker}: {why}"
        ));
    }
}

fn directories(brokers: &Brokers, broker: u32) -> Directories {
    let data = brokers.data_dir(broker);
    Directories {
        broker,
        kept: vec![brokers.shared_dir(broker), data.join("backup")],
        data,
        runs: !brokers.gone().contains(&broker),
        harmed: brokers.is_harmed(broker),
    }
}

/// Groups of a lane follow each other: no ordinal is in two of them.
fn records(load: &Load, image: &Image) {
    // A closed one without records says where the lane went on; compaction puts groups on both sides of it together.
    let has_ordinals =
        |group: &&GroupRecord| group.state != GroupState::Closed || group.holds_records();
    let mut groups: Vec<&GroupRecord> = image.groups.iter().filter(has_ordinals).collect();
    groups.sort_by_key(|group| (group.stream, group.streamlet, group.lane, group.group));
    for pair in groups.windows(2) {
        let [before, after] = pair else { continue };
        let same = (before.stream, before.streamlet, before.lane)
            == (after.stream, after.streamlet, after.lane);
        if !same || before.state != GroupState::Closed {
            continue;
        }
        if after
            .first_ordinal
            .is_some_and(|first| first < before.end_ordinal)
        {
            load.complain(format!(
                "ordinals are in two groups: {before:?} and {after:?}"
            ));
        }
    }
}
