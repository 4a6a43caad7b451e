//! What brokers hold, looked at from outside: the files in their directories beside the records of the
//! metadata store. No broker is asked.
//!
//! Three things hold at every rest. Every recorded replica of a closed group has its bytes; for a broker that
//! does not own the streamlet that is so at any moment. What is trimmed or deleted has left every broker. And
//! every replica that a broker holds has a record that names this broker.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kera_log_segments::check::{CheckSpec, Progress, check};
use kera_log_segments::group::GroupSpec;
use kera_log_segments::io::{EngineKind, OpenHow, open_engine};
use kera_log_segments::window::Place;
use kera_metadata::{GroupKey, GroupRecord, GroupState, Image};
use kera_protocol::ids::{StreamId, StreamletId};

/// What an owner logs whose jobs find that a broker does not have a recorded replica.
pub const MISSED: &str = "brokers do not have replicas of closed groups that are recorded there";

/// Where a broker keeps bytes.
#[derive(Clone, Debug)]
pub struct Directories {
    /// Its number.
    pub broker: u32,
    /// The directories of replicas that it keeps for others, shared memory first: what moves goes from the
    /// first to the last, and then to its own files.
    pub kept: Vec<PathBuf>,
    /// Its data directory.
    pub data: PathBuf,
    /// It runs, and so gives up what it is not recorded for.
    pub runs: bool,
    /// Its disk was taken away: what it lacks is made anew elsewhere, or here, in time.
    pub harmed: bool,
}

/// What is not as it should be, in words.
#[derive(Debug, Default)]
pub struct Amiss {
    /// Recorded replicas without their bytes, of brokers that do not own the streamlet: never.
    pub lost: Vec<String>,
    /// What is so for a moment only.
    pub unsettled: Vec<String>,
}

/// Looks once.
pub fn look(image: impl Fn() -> Image, brokers: &[Directories]) -> Amiss {
    let before = image();
    let mut amiss = Amiss::default();
    let mut found = FoundFiles::new();
    for broker in brokers {
        for root in &broker.kept {
            files(root, broker.broker, &mut found);
        }
        files(&broker.data.join("streams"), broker.broker, &mut found);
    }
    let mut lacking = Vec::new();
    for record in before.groups.iter().filter(|record| has_records(record)) {
        for copy in &record.copies {
            let of = brokers.iter().find(|broker| broker.broker == copy.broker.0);
            if let Some(Err(why)) = of.map(|broker| digest(broker, record)) {
                lacking.push((copy.broker.0, record, why));
            }
        }
    }
    let after = image();
    for (broker, record, why) in lacking {
        let now = after.groups.iter().find(|now| now.key() == record.key());
        if now.is_none_or(|now| now.revision != record.revision) {
            continue;
        }
        let text = format!("{} at broker {broker}: {why}", record.key());
        // The owner may still be writing its file of a group that has just been closed.
        let is_harmed = brokers.iter().any(|one| one.broker == broker && one.harmed);
        let owns = |image| is_owner(image, broker, &record.key());
        match is_harmed || owns(&before) || owns(&after) {
            true => amiss.unsettled.push(text),
            false => amiss.lost.push(text),
        }
    }
    for ((broker, key, generation), path) in found {
        let runs = brokers.iter().any(|one| one.broker == broker && one.runs);
        let named = [&before, &after]
            .iter()
            .any(|image| names(image, broker, (&key, generation)));
        if runs && !named && path.exists() {
            let text = format!("broker {broker} holds {} for no record", path.display());
            amiss.unsettled.push(text);
        }
    }
    amiss
}

/// Whether the group is closed and has records.
pub fn has_records(record: &GroupRecord) -> bool {
    let first = record.first_ordinal.unwrap_or(record.end_ordinal);
    record.state == GroupState::Closed && record.end_ordinal > first
}

fn is_owner(image: &Image, broker: u32, key: &GroupKey) -> bool {
    let mut streamlets = image.streamlets.iter();
    streamlets
        .any(|one| (one.stream, one.streamlet, one.owner) == (key.stream, key.streamlet, broker))
}

/// Whether a record names the broker, or is of a group that it owns and may fetch.
fn names(image: &Image, broker: u32, (key, generation): (&GroupKey, u32)) -> bool {
    let record = image.groups.iter().find(|record| record.key() == *key);
    let record = record.filter(|record| record.generation == generation);
    record.is_some_and(|record| {
        let mut copies = record.copies.iter();
        copies.any(|copy| copy.broker.0 == broker) || is_owner(image, broker, key)
    })
}

/// Files of groups, by broker, group and generation.
type FoundFiles = BTreeMap<(u32, GroupKey, u32), PathBuf>;

/// The files of groups below a directory: `<stream uuid>/<streamlet>/<group>.<generation>.log`.
fn files(root: &Path, broker: u32, found: &mut FoundFiles) {
    for (name, stream) in entries(root) {
        let Ok(of) = name.parse::<StreamId>() else {
            continue;
        };
        for (name, streamlet) in entries(&stream) {
            let Ok(number) = name.parse() else { continue };
            for (name, path) in entries(&streamlet) {
                if let Some((group, generation)) = GroupSpec::parse_file_name(&name) {
                    let key = GroupKey {
                        stream: of,
                        streamlet: StreamletId(number),
                        group,
                    };
                    found.insert((broker, key, generation), path);
                }
            }
        }
    }
}

fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Vec::new();
        }
        Err(error) => panic!("{}: {error}", dir.display()),
    };
    let entry = |entry: fs::DirEntry| {
        (
            entry.file_name().into_string().unwrap_or_default(),
            entry.path(),
        )
    };
    listed.flatten().map(entry).collect()
}

/// A digest of all bytes that a broker has of a closed group, up to the recorded end.
///
/// # Errors
/// Says which of them it has not.
pub fn digest(broker: &Directories, record: &GroupRecord) -> Result<u64, String> {
    let own_name = GroupSpec::file_name(record.group, record.generation);
    let kept_name = format!("{}.{}.log", record.group, record.generation);
    let below = |(root, name): (&PathBuf, &String)| {
        let dir = root.join(record.stream.to_string());
        dir.join(record.streamlet.to_string()).join(name)
    };
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut reasons = Vec::new();
    let own = broker.data.join("streams");
    let kept = broker.kept.iter().map(|root| (root, &kept_name));
    for path in kept.chain([(&own, &own_name)]).map(below) {
        match fs::read(&path) {
            Ok(bytes) => {
                match checked(&path, record) {
                    Ok(digest) => return Ok(digest),
                    Err(why) => reasons.push(format!("{}: {why}", path.display())),
                }
                parts.push(bytes);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => reasons.push(format!("{}: {error}", path.display())),
        }
    }
    if let [memory, disk, ..] = parts.as_slice() {
        // What is on disk is given back in shared memory, where there are zeros then.
        let mut both = memory.clone();
        both.resize(both.len().max(disk.len()), 0);
        for (at, byte) in disk.iter().enumerate() {
            if both[at] == 0 {
                both[at] = *byte;
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("both.log");
        fs::write(&path, both).expect("a file is written");
        if let Ok(digest) = checked(&path, record) {
            return Ok(digest);
        }
    }
    match reasons.is_empty() {
        true => Err("there is no file".to_owned()),
        false => Err(reasons.join("; ")),
    }
}

fn checked(path: &Path, record: &GroupRecord) -> Result<u64, String> {
    let io = open_engine(EngineKind::Blocking);
    let file = io.open(path, OpenHow::ReadOnly, false);
    let file = file.map_err(|error| error.to_string())?;
    let end = Place {
        address: record.length,
        ordinal: record.end_ordinal,
    };
    let spec = CheckSpec {
        stream: record.stream,
        streamlet: record.streamlet,
        group: record.group,
        epoch: record.epoch,
        end,
        generation: record.generation,
    };
    let mut from = Progress::default();
    while from.place.address < end.address {
        let looked = check(&*file, &spec, from, end.address);
        let looked = looked.map_err(|error| error.to_string())?;
        if let Some(wrong) = looked.wrong {
            return Err(wrong);
        }
        if looked.to.place.address <= from.place.address {
            return Err(format!("it ends at {}", from.place.address));
        }
        from = looked.to;
    }
    Ok(from.digest)
}
