//! Closed groups read from copies: who serves them, how far, and what stands in their place.

use std::sync::Arc;

use bytes::Bytes;
use kera_consumer::{Reader, Start};
use kera_metadata::{Compare, GroupRecord, GroupState, MetadataStore, Transaction, Write};
use kera_producer::{Producer, Record};
use kera_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::ids::{StreamId, StreamletId};
use kera_protocol::v1;
use kera_replication::ids::{BrokerId, CopyId, StreamletKey};
use kera_replication::transport::{CopyState, Reply, Request};
use kera_rpc::Client;

use super::{Cluster, PATIENCE, until};

const RECORDS: usize = 4_000;

/// A stream "t" of one lane with small groups, of which only the newest is open.
struct Filled {
    cluster: Cluster,
    client: Client,
    stream: StreamId,
    /// Its owner, by number.
    owner: u32,
}

fn value(number: usize) -> String {
    format!("{number:08} {}", "v".repeat(90))
}

impl Filled {
    async fn start(replicas: u32) -> Self {
        let cluster = Cluster::start().await;
        let client = Client::connect_to(&cluster.bootstrap()).unwrap();
        let request = v1::CreateStreamRequest {
            name: "t".into(),
            config: Some(v1::StreamConfig {
                streamlets: Some(1),
                lanes: Some(1),
                replicas: Some(replicas),
                // No group begins without one that is slow to answer.
                min_insync_replicas: Some(replicas),
                segment_size: Some(64 << 10),
                segments_per_group: Some(2),
                ..v1::StreamConfig::default()
            }),
        };
        client.call(request).await.unwrap();
        for broker in &cluster.brokers {
            let catalog = &broker.shared().data.catalog;
            until(|| catalog.named("t").is_some()).await;
        }
        let shared = cluster.brokers[0].shared();
        let stream = shared.data.catalog.named("t").unwrap().id();
        let owner = shared.data.directory.owner(stream, StreamletId(0));
        let producer = Producer::builder()
            .bootstrap(cluster.bootstrap())
            .stream("t")
            .batch_size(4 << 10)
            .build()
            .await
            .unwrap();
        for number in 0..RECORDS {
            let value = value(number);
            let record = Record::of_value(value.as_bytes());
            producer.append_wait(&record).await.unwrap();
        }
        producer.close().await.unwrap();
        let filled = Self {
            cluster,
            client,
            stream,
            owner: owner.unwrap().broker,
        };
        // About three and a half groups were filled; one that lost a copy meanwhile gets it back.
        let has_all = |group: &GroupRecord| group.copies.len() == replicas as usize;
        until(|| {
            let closed = filled.closed();
            closed.len() >= 3 && closed.iter().all(has_all)
        })
        .await;
        filled
    }

    fn groups(&self) -> Vec<GroupRecord> {
        let image = self
            .cluster
            .store
            .load_streamlet(self.stream, StreamletId(0));
        let mut groups = image.unwrap().groups;
        groups.retain(|g| g.state != GroupState::Closed || g.first_ordinal != Some(g.end_ordinal));
        groups.sort_unstable_by_key(|group| group.group);
        groups
    }

    fn closed(&self) -> Vec<GroupRecord> {
        let mut groups = self.groups();
        groups.retain(|group| group.state == GroupState::Closed);
        groups
    }

    /// A holder of a group that does not own the streamlet.
    fn holder(&self, group: &GroupRecord) -> u32 {
        let mut brokers = group.copies.iter().map(|copy| copy.broker.0);
        brokers
            .find(|broker| *broker != self.owner)
            .expect("a copy")
    }

    /// Bytes of the closed groups.
    fn closed_bytes(&self) -> u64 {
        self.closed().iter().map(|group| group.length).sum()
    }

    fn copy_bytes(&self, broker: u32) -> u64 {
        let shared = self.cluster.brokers[broker as usize - 1].shared();
        shared.data.metrics.copy_read_bytes.get()
    }

    async fn read(
        &self,
        broker: u32,
        cursor: v1::Cursor,
        from_copy: bool,
    ) -> (v1::ReadResponse, Bytes) {
        let request = v1::ReadRequest {
            cursor: Some(cursor),
            from_copy,
            ..v1::ReadRequest::default()
        };
        self.ask(broker, request).await
    }

    async fn ask(&self, broker: u32, request: v1::ReadRequest) -> (v1::ReadResponse, Bytes) {
        let address = self.cluster.address(broker as usize - 1);
        let connection = self.client.data(&address).await.unwrap();
        let request = v1::ReadRequest {
            stream: Bytes::copy_from_slice(self.stream.as_bytes()),
            max_bytes: 1 << 20,
            ..request
        };
        let frame = connection
            .call(FrameKind::Read, &request, Bytes::new())
            .await
            .unwrap();
        (frame.message().unwrap(), frame.body)
    }

    /// What a reader in a rack reads from the first record to the last, and how many bytes of it come from copies.
    async fn read_in(&self, rack: &str) -> (Vec<String>, u64) {
        let reader = Reader::builder()
            .bootstrap(self.cluster.bootstrap())
            .stream("t")
            .start(Start::Earliest)
            .rack(rack)
            .follow(false)
            .open();
        read_all(reader.await.unwrap()).await
    }

    /// Changes a closed group's record, which must be as it was.
    fn commit(&self, before: &GroupRecord, write: Write) {
        let store = &self.cluster.store;
        let streamlet = store.streamlet(self.stream, StreamletId(0)).unwrap();
        let streamlet = streamlet.expect("it exists");
        let compare = vec![Compare::epoch(&streamlet), Compare::group(before)];
        store
            .commit(Transaction::new(compare, vec![write]))
            .expect("nobody was faster");
    }

    fn copy(&self, group: &GroupRecord) -> CopyId {
        CopyId {
            streamlet: StreamletKey {
                stream: self.stream,
                streamlet: StreamletId(0),
            },
            group: group.group,
            epoch: group.epoch,
            generation: group.generation,
        }
    }

    /// Waits until a broker's copy of a group is on its disk, and changes a byte of a record there; where.
    async fn spoil(&self, group: &GroupRecord, broker: u32) -> u64 {
        let (file, mut bytes) = self.stored(group, broker).await;
        let begin = group.length as usize / 4;
        let record = bytes[begin..]
            .windows(5)
            .position(|found| found == b"vvvvv");
        let at = begin + record.expect("a record's value") + 2;
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        at as u64
    }

    /// The same with zeros in place of a batch's header, as where a disk has forgotten a sector; the batch's first ordinal.
    async fn blank(&self, group: &GroupRecord, broker: u32) -> u64 {
        let (file, mut bytes) = self.stored(group, broker).await;
        let begin = group.length as usize / 4;
        let header = |at: usize| {
            let header = BatchHeader::peek(&bytes[at..]).ok()?;
            let batch = bytes.get(at..at + header.total_bytes)?;
            batch::verify(batch).is_ok().then_some((at, header))
        };
        let found = (begin..bytes.len() - HEADER_BYTES).find_map(header);
        let (at, header) = found.expect("a batch");
        bytes[at..at + HEADER_BYTES].fill(0);
        std::fs::write(&file, bytes).unwrap();
        header.base_ordinal
    }

    /// A broker's copy of a group once it is on its disk: the file, and what it holds.
    async fn stored(&self, group: &GroupRecord, broker: u32) -> (std::path::PathBuf, Vec<u8>) {
        let shared = self.cluster.brokers[broker as usize - 1].shared();
        let store = shared
            .clustered
            .as_ref()
            .unwrap()
            .peers
            .backup
            .store()
            .clone();
        let copy = self.copy(group);
        let is_on_disk = || {
            let list = store.handle(BrokerId(0), Request::List { streamlet: None });
            let Ok(Reply::Copies(copies)) = list else {
                return false;
            };
            let mut copies = copies.iter();
            copies.any(|held| held.copy == copy && held.state == CopyState::Flushed)
        };
        until(is_on_disk).await;
        let dir = shared.dir.path().join("backup");
        let name = format!("{}.0.log", group.group);
        let file = find(&dir.join(self.stream.to_string()), &name);
        let file = file.expect("the copy has a file");
        let bytes = std::fs::read(&file).unwrap();
        (file, bytes)
    }
}

fn at(ordinal: u64) -> v1::Cursor {
    v1::Cursor {
        ordinal,
        ..v1::Cursor::default()
    }
}

async fn read_all(mut reader: Reader) -> (Vec<String>, u64) {
    let mut seen = Vec::new();
    let mut next = async || {
        let next = tokio::time::timeout(PATIENCE, reader.next_batch()).await;
        next.expect("there is more").unwrap()
    };
    while let Some(batch) = next().await {
        for record in batch.records() {
            let value = record.unwrap().value.unwrap().to_vec();
            seen.push(String::from_utf8(value).unwrap());
        }
    }
    (seen, reader.metrics().copy_bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_with_a_rack_reads_closed_groups_there() {
    let filled = Filled::start(3).await;
    let near = filled.holder(&filled.closed()[0]);
    let expected: Vec<_> = (0..RECORDS).map(value).collect();
    let closed = filled.closed_bytes();
    let (seen, from_copies) = filled.read_in(&format!("rack{near}")).await;
    assert_eq!(seen, expected);
    // All but headers and lane snapshots.
    assert!(
        from_copies > closed * 9 / 10 && from_copies < closed,
        "{from_copies} of {closed}"
    );
    // An answer may come when the reader has asked anew, which leaves it unused.
    let served = filled.copy_bytes(near);
    assert!(
        (from_copies..2 * closed).contains(&served),
        "{served} for {from_copies}"
    );
    // Where the owner is no further away, and where nobody is near, the owner is asked.
    for rack in [format!("rack{}", filled.owner), "elsewhere".to_owned()] {
        let (seen, from_copies) = filled.read_in(&rack).await;
        assert_eq!((seen.len(), from_copies), (RECORDS, 0), "{rack}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_that_is_spoiled_is_left_for_the_owner() {
    let filled = Filled::start(3).await;
    let (first, near) = (
        filled.closed().remove(0),
        filled.holder(&filled.closed()[0]),
    );
    let spoiled_at = filled.spoil(&first, near).await;
    let (seen, from_copies) = filled.read_in(&format!("rack{near}")).await;
    let expected: Vec<_> = (0..RECORDS).map(value).collect();
    assert!(
        seen == expected,
        "not all records, each once: {}",
        seen.len()
    );
    // What stands before the damage and what other groups hold, but for headers, snapshots and a batch.
    let whole = filled.closed_bytes() - (first.length - spoiled_at);
    assert!(
        from_copies > whole * 9 / 10 && from_copies < whole,
        "{from_copies} of {whole} that are whole"
    );
}

/// Zeros follow the last batch of a segment: where they stand in its midst, they end it no sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn zeros_in_place_of_a_header_hide_nothing_behind_them() {
    let filled = Filled::start(3).await;
    let first = filled.closed().remove(0);
    let near = filled.holder(&first);
    let ordinal = filled.blank(&first, near).await;
    let (reply, _) = filled.read(near, at(ordinal), true).await;
    assert_eq!(reply.error, ErrorCode::Damaged as u32, "{reply:?}");
    let (seen, from_copies) = filled.read_in(&format!("rack{near}")).await;
    let expected: Vec<_> = (0..RECORDS).map(value).collect();
    assert!(seen == expected, "{} of {RECORDS} records", seen.len());
    assert!(from_copies > 0, "the copy was not asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damage_is_told_and_not_served() {
    let filled = Filled::start(3).await;
    let first = filled.closed().remove(0);
    let near = filled.holder(&first);
    filled.spoil(&first, near).await;
    let mut cursor = at(0);
    while cursor.ordinal < first.end_ordinal {
        let (reply, body) = filled.read(near, cursor, true).await;
        if reply.error != 0 {
            assert_eq!(reply.error, ErrorCode::Damaged as u32, "{}", reply.message);
            break;
        }
        for found in batch::batches(&body) {
            let (_, bytes) = found.unwrap();
            assert!(batch::verify(bytes).is_ok(), "a damaged batch is served");
        }
        cursor = reply.next.unwrap();
    }
    let within = first.first_ordinal.unwrap() + 1..first.end_ordinal;
    assert!(within.contains(&cursor.ordinal), "{cursor:?}");
}

/// As after a failover in which the copy that had most did not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_longer_than_its_record_is_served_up_to_the_record() {
    let filled = Filled::start(3).await;
    let first = filled.closed().remove(0);
    let near = filled.holder(&first);
    let (_, body) = filled.read(filled.owner, at(0), false).await;
    let (third, _) = batch::batches(&body).nth(2).expect("batches").unwrap();
    let end = third.next_ordinal();
    let up_to_there = v1::ReadRequest {
        cursor: Some(at(0)),
        end_ordinal: end,
        ..v1::ReadRequest::default()
    };
    let (reply, _) = filled.ask(filled.owner, up_to_there).await;
    let next = reply.next.expect("a cursor");
    assert!(next.ordinal == end && next.has_hint, "{next:?}");
    let length = u64::from(next.segment) * (64 << 10) + u64::from(next.position);
    let shorter = GroupRecord {
        length,
        live_bytes: length,
        end_ordinal: end,
        ..first.clone()
    };
    // A record's end never changes, so another one takes its place.
    let gone = GroupRecord {
        revision: 0,
        ..first.clone()
    };
    filled.commit(&first, Write::DeleteGroup(first.key()));
    filled.commit(&gone, Write::PutGroup(shorter));
    let mut cursor = at(0);
    while cursor.ordinal < end {
        let (reply, body) = filled.read(near, cursor, true).await;
        assert_eq!(reply.error, 0, "{}", reply.message);
        for found in batch::batches(&body) {
            let (header, _) = found.unwrap();
            let served = header.next_ordinal();
            assert!(served <= end, "more than is recorded: {served} of {end}");
        }
        cursor = reply.next.unwrap();
    }
    assert_eq!(cursor.ordinal, first.next_ordinal, "the next group is next");
}

fn find(dir: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_is_read_no_further_than_its_group_is_recorded_to_reach() {
    let filled = Filled::start(3).await;
    let closed = filled.closed();
    let near = filled.holder(&closed[0]);
    let mut cursor = at(0);
    let mut gathered = Vec::new();
    for group in &closed {
        while cursor.ordinal < group.end_ordinal {
            let (reply, body) = filled.read(near, cursor, true).await;
            assert_eq!(reply.error, 0, "{}", reply.message);
            let next = reply.next.unwrap();
            assert!(next.ordinal <= group.end_ordinal, "one group at a time");
            if next.ordinal == group.end_ordinal {
                let follow: Vec<_> = reply.groups.iter().map(|g| g.first_ordinal).collect();
                let later = closed.iter().filter(|g| g.group > group.group);
                let later: Vec<_> = later.filter_map(|g| g.first_ordinal).take(16).collect();
                assert_eq!(follow, later, "closed groups, and no open one");
                assert!(reply.groups.iter().all(|g| g.holders.contains(&near)));
            }
            gathered.extend_from_slice(&body);
            cursor = next;
        }
    }
    // The same bytes as the owner's.
    let mut owners = Vec::new();
    let mut from = at(0);
    while from.ordinal < cursor.ordinal {
        let (reply, body) = filled.read(filled.owner, from, false).await;
        assert_eq!(reply.error, 0, "{}", reply.message);
        owners.extend_from_slice(&body);
        from = reply.next.unwrap();
    }
    owners.truncate(gathered.len());
    assert!(gathered == owners, "bytes differ");
    let (reply, _) = filled.read(near, cursor, true).await;
    assert_eq!(
        reply.error,
        ErrorCode::NotOwner as u32,
        "closed groups are served, and no open one"
    );

    // A hint that does not fit counts for nothing.
    let group = &closed[1];
    let middle = (group.first_ordinal.unwrap() + group.end_ordinal) / 2;
    let (plain, body) = filled.read(near, at(middle), true).await;
    assert_eq!(plain.error, 0);
    for (group_id, generation, position) in [
        (group.group.0, 0, 12_345),
        (group.group.0, 7, 96),
        (99, 0, 96),
    ] {
        let hinted = v1::Cursor {
            ordinal: middle,
            group: group_id,
            generation,
            segment: 0,
            position,
            has_hint: true,
        };
        let (reply, same) = filled.read(near, hinted, true).await;
        assert_eq!((reply.error, reply.next), (0, plain.next));
        assert_eq!(same, body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_that_is_not_listed_is_not_served() {
    let filled = Filled::start(3).await;
    let (first, second) = (filled.closed().remove(0), filled.closed().remove(1));
    let near = filled.holder(&first);
    let mut unlisted = first.clone();
    unlisted.copies.retain(|copy| copy.broker.0 != near);
    filled.commit(&first, Write::PutGroup(unlisted));
    let (reply, body) = filled.read(near, at(0), true).await;
    assert_eq!(
        (reply.error, body.len()),
        (ErrorCode::NotOwner as u32, 0),
        "what is not listed is served"
    );
    // It has the bytes all the same, and serves what it is listed for.
    let copy = filled.copy(&first);
    let shared: &Arc<_> = filled.cluster.brokers[near as usize - 1].shared();
    assert!(
        shared
            .clustered
            .as_ref()
            .unwrap()
            .peers
            .backup
            .store()
            .holds(&copy)
    );
    let (reply, _) = filled
        .read(near, at(second.first_ordinal.unwrap()), true)
        .await;
    assert_eq!(reply.error, 0, "{}", reply.message);
    // A reader that is sent there finds its way.
    let (seen, _) = filled.read_in(&format!("rack{near}")).await;
    assert_eq!(seen, (0..RECORDS).map(value).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_broker_without_a_copy_says_so() {
    let filled = Filled::start(2).await;
    let first = filled.closed().remove(0);
    let holds = |broker: &u32| first.copies.iter().any(|copy| copy.broker.0 == *broker);
    let without = (1..=3)
        .find(|broker| !holds(broker))
        .expect("a third broker");
    let (reply, _) = filled.read(without, at(0), true).await;
    assert_eq!(reply.error, ErrorCode::NotOwner as u32);
    assert_eq!(filled.copy_bytes(without), 0);
}
