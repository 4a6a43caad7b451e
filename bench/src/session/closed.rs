//! Closed groups in great number, made without the time that filling and syncing them takes: files as a
//! broker would have left them, and their records.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use kera_log_segments::group::{AckPolicy, GroupSpec};
use kera_log_segments::layout::{DurableMark, FOOTER_OFFSET, SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_metadata::{
    CommitFuture, Compare, GroupRecord, GroupState, MetadataStore, Replica, StreamRecord,
    StreamletRecord, Transaction, Write,
};
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, crc32c, patch};
use kera_protocol::ids::{BrokerId, GroupId, Incarnation, LaneId, Ordinal};

use super::workplace::remove_stale;

/// Records of a group.
pub(super) const RECORDS: u32 = 10;
/// Transactions under way at once.
const UNDER_WAY: usize = 64;

/// Where the files are: removing so many takes minutes on disks that are told of every block that is free.
const SHARED: &str = "/dev/shm";
/// Their folders there, followed by the process id of the session.
const FOLDERS: &str = "kera-bench-groups-";

/// Has the folder `streams` of a stopped broker lie on shared memory, where there is some.
pub(super) fn share(streams: &Path, name: &str) -> Result<()> {
    let shared = Path::new(SHARED);
    remove_stale(shared, FOLDERS);
    if !shared.is_dir() {
        return Ok(());
    }
    let place = shared.join(format!("{FOLDERS}{}-{name}", std::process::id()));
    copy(streams, &place)?;
    fs::remove_dir_all(streams)?;
    std::os::unix::fs::symlink(&place, streams)
        .with_context(|| format!("cannot make {}", streams.display()))
}

/// Removes what [`share`] made for `streams`.
pub(super) fn unshare(streams: &Path) -> Result<()> {
    match fs::read_link(streams) {
        Ok(place) => Ok(fs::remove_dir_all(place)?),
        Err(_) => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &there)?;
        } else {
            fs::copy(entry.path(), there)?;
        }
    }
    Ok(())
}

/// Gives every lane of `stream` its share of `groups` closed groups, of [`RECORDS`] records each, all
/// owned by `broker`, below `streams`, the folder of its files. No broker may run on either. How many
/// records that were.
///
/// # Errors
/// If the stream has groups already, and the store's and the disk's.
pub(super) fn make(
    store: &dyn MetadataStore,
    streams: &Path,
    stream: &str,
    (broker, groups): (u32, u32),
    record_bytes: u32,
) -> Result<u64> {
    let id = store.stream_named(stream)?;
    let id = id.with_context(|| format!("there is no stream {stream}"))?;
    let record = store.stream(id)?.context("the stream has a record")?;
    let holder = store.broker(broker)?.context("the broker is recorded")?;
    let mut streamlets = store.streamlets()?;
    streamlets.retain(|one| one.stream == id);
    let lanes = record.config.streamlets * record.config.lanes;
    let maker = Maker {
        store,
        folder: streams.join(id.to_string()),
        record,
        holder: Replica {
            broker: BrokerId(broker),
            incarnation: Incarnation {
                store_id: holder.store_id,
                boot_id: holder.boot_id,
            },
        },
        batch: batch(record_bytes)?,
        now_ms: now_ms()?,
    };
    let mut left = groups;
    let mut room = Vec::new();
    let mut work = Vec::new();
    for (turn, streamlet) in streamlets.iter().enumerate() {
        let begun = store.load_streamlet(id, streamlet.streamlet)?.groups;
        ensure!(begun.is_empty(), "the stream has groups already");
        // Lanes that come first get those that are left over.
        let lanes_left = lanes - turn as u32 * maker.record.config.lanes;
        let share = (left * maker.record.config.lanes)
            .div_ceil(lanes_left.max(1))
            .min(left);
        left -= share;
        let mut raised = streamlet.clone();
        raised.next_group = GroupId(streamlet.next_group.0 + u64::from(share));
        room.push(Transaction::new(
            vec![Compare::epoch(streamlet)],
            vec![Write::PutStreamlet(raised)],
        ));
        work.push((streamlet, share));
    }
    maker.commit(room)?;
    let mut transactions = Vec::new();
    for (streamlet, share) in work {
        let made = maker.streamlet(streamlet, share)?;
        // Each group takes a comparison and a write, beside that of the epoch.
        for some in made.chunks(store.max_operations() - 1) {
            let compare = some.iter().map(Compare::group);
            let compare = compare.chain([Compare::epoch(streamlet)]).collect();
            let write = some.iter().cloned().map(Write::PutGroup).collect();
            transactions.push(Transaction::new(compare, write));
        }
    }
    maker.commit(transactions)?;
    Ok(u64::from(groups) * u64::from(RECORDS))
}

struct Maker<'a> {
    store: &'a dyn MetadataStore,
    /// The stream's files.
    folder: std::path::PathBuf,
    record: StreamRecord,
    holder: Replica,
    batch: Vec<u8>,
    now_ms: u64,
}

impl Maker<'_> {
    /// Commits all, many at a time.
    fn commit(&self, transactions: Vec<Transaction>) -> Result<()> {
        let mut under_way: std::collections::VecDeque<CommitFuture> = Default::default();
        for transaction in transactions {
            if under_way.len() >= UNDER_WAY
                && let Some(oldest) = under_way.pop_front()
            {
                oldest.wait()?;
            }
            under_way.push_back(self.store.commit_async(transaction));
        }
        for one in under_way {
            one.wait()?;
        }
        Ok(())
    }

    /// Writes the files of a streamlet's groups, which take turns over its lanes; their records.
    fn streamlet(&self, streamlet: &StreamletRecord, share: u32) -> Result<Vec<GroupRecord>> {
        let folder = self.folder.join(streamlet.streamlet.to_string());
        fs::create_dir_all(&folder)?;
        let lanes = self.record.config.lanes;
        let mut ends: Vec<Ordinal> = vec![0; lanes as usize];
        let mut records = Vec::new();
        for number in 0..share {
            let lane = number % lanes;
            let group = GroupId(streamlet.next_group.0 + u64::from(number));
            let first = ends[lane as usize];
            let end = first + u64::from(RECORDS);
            ends[lane as usize] = end;
            let length = self.file(streamlet, LaneId(lane), group, first, &folder)?;
            records.push(GroupRecord {
                state: GroupState::Closed,
                first_ordinal: Some(first),
                length,
                end_ordinal: end,
                next_ordinal: end,
                max_timestamp_ms: self.now_ms as i64,
                closed_ms: self.now_ms,
                live_bytes: length,
                copies: vec![self.holder],
                ..GroupRecord::new(streamlet.key().group(group), LaneId(lane), streamlet.epoch)
            });
        }
        Ok(records)
    }

    /// Writes a group's file, sparse but for its header, its batch and its mark; where its bytes end.
    fn file(
        &self,
        streamlet: &StreamletRecord,
        lane: LaneId,
        group: GroupId,
        first: Ordinal,
        folder: &Path,
    ) -> Result<u64> {
        let config = &self.record.config;
        let header = SegmentHeader {
            stream: streamlet.stream,
            streamlet: streamlet.streamlet,
            lane,
            group,
            generation: 0,
            segment: 0,
            epoch: streamlet.epoch,
            segment_size: config.segment_size,
            segments: config.segments_per_group,
            first_ordinal: first,
            snapshot_bytes: 0,
            snapshot_crc: crc32c(&[]),
            created_ms: self.now_ms,
            ack: AckPolicy::Written,
            marked: false,
            in_order: false,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&self.batch);
        patch(&mut bytes[SEGMENT_HEADER_BYTES..], first, streamlet.epoch);
        let length = bytes.len() as u64;
        let end = first + u64::from(RECORDS);
        let mark = DurableMark {
            sequence: 1,
            written: length,
            written_ordinal: end,
            synced: length,
            synced_ordinal: end,
            incarnation: Incarnation {
                store_id: self.holder.incarnation.store_id,
                boot_id: self.holder.incarnation.boot_id,
            },
        };
        let group_bytes = u64::from(config.segment_size) * u64::from(config.segments_per_group);
        let path = folder.join(GroupSpec::file_name(group, 0));
        let mut file =
            File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        file.write_all(&bytes)?;
        file.write_all_at(&mark.encode(), mark.slot_offset(group_bytes))?;
        file.set_len(group_bytes + FOOTER_OFFSET)?;
        Ok(length)
    }
}

/// A batch of records of the present, as a producer without an id sends it.
fn batch(record_bytes: u32) -> Result<Vec<u8>> {
    let value = vec![b'k'; record_bytes as usize];
    let mut builder = BatchBuilder::new();
    for _ in 0..RECORDS {
        builder.push(&NewRecord {
            value: Some(&value),
            timestamp: now_ms()? as i64,
            ..NewRecord::default()
        })?;
    }
    Ok(builder
        .finish(Compression::None, ProducerStamp::NONE)?
        .to_vec())
}

fn now_ms() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_metadata::{BrokerRecord, EmbeddedOptions, EmbeddedStore, Key, StreamConfig};
    use uuid::Uuid;

    #[test]
    fn every_lane_gets_its_share_and_records_fit_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("metadata.redb");
        let store = EmbeddedStore::open(store, EmbeddedOptions::default()).unwrap();
        store
            .commit(Transaction::new(
                vec![Compare::revision(Key::Broker(1), 0)],
                vec![Write::PutBroker(BrokerRecord {
                    id: 1,
                    address: "h:1".into(),
                    store_id: Uuid::from_bytes([1; 16]),
                    boot_id: Uuid::from_bytes([2; 16]),
                    started_ms: 0,
                    version: String::new(),
                    role: Default::default(),
                    restore: 0,
                    revision: 0,
                })],
            ))
            .unwrap();
        let config = StreamConfig {
            streamlets: 3,
            lanes: 2,
            ..StreamConfig::default()
        };
        let record = StreamRecord::new("s", config, 1);
        let (record, _) = store.create_stream(record, 1).unwrap();
        let made = make(&store, folder.path(), "s", (1, 20), 50).unwrap();
        assert_eq!(made, 20 * u64::from(RECORDS));
        let image = store.load().unwrap();
        assert_eq!(image.groups.len(), 20);
        for streamlet in &image.streamlets {
            let groups = image.groups_of(record.id, streamlet.streamlet);
            assert!((6..=8).contains(&groups.len()), "{}", groups.len());
            for lane in 0..2 {
                let mut next = 0;
                for group in groups.iter().filter(|group| group.lane.0 == lane) {
                    assert_eq!(group.first_ordinal, Some(next));
                    next = group.end_ordinal;
                    let path = folder
                        .path()
                        .join(record.id.to_string())
                        .join(streamlet.streamlet.to_string())
                        .join(GroupSpec::file_name(group.group, 0));
                    let bytes = fs::read(path).unwrap();
                    let header = SegmentHeader::decode(&bytes).unwrap();
                    assert_eq!((header.group, header.lane.0), (group.group, lane));
                    let batch = &bytes[SEGMENT_HEADER_BYTES..group.length as usize];
                    let batch = kera_protocol::batch::verify(batch).unwrap();
                    assert_eq!(batch.next_ordinal(), group.end_ordinal);
                }
            }
        }
        assert!(make(&store, folder.path(), "s", (1, 20), 50).is_err());
    }
}
