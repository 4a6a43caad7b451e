//! Fetches by clients that name their rack: whom the owner names, and what is served there.

use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kera_broker::Shared;
use kera_broker::copy_reads::nearby;
use kera_metadata::{Compare, GroupRecord, GroupState, MetadataStore, Transaction, Write};
use kera_protocol::batch::batches;
use kera_protocol::ids::{LaneId, StreamId};
use kera_streamlet::{Located, Streamlet};

use super::*;

/// Records of a batch, of which 100 fill about three and a half groups.
const BATCH: usize = 40;
const RECORDS: i64 = 100 * BATCH as i64;

/// A topic "t" of one partition in small groups, of which only the newest is open.
struct Filled {
    cluster: Cluster,
    stream: StreamId,
    owner: i32,
    /// It holds the first of the groups, too.
    near: i32,
}

/// What a fetch asks for, beside partition 0 of "t" from an offset on.
#[derive(Clone, Copy)]
struct Ask {
    version: i16,
    rack: i32,
    offset: i64,
    epoch: i32,
    session: (i32, i32),
}

impl Ask {
    fn at(offset: i64) -> Self {
        Self {
            version: 12,
            rack: 0,
            offset,
            epoch: -1,
            session: (0, -1),
        }
    }

    /// By a client in that broker's rack.
    fn beside(self, rack: i32) -> Self {
        Self { rack, ..self }
    }
}

fn rack(id: i32) -> StrBytes {
    words(["", "a", "b", "c", "elsewhere"][id as usize])
}

impl Filled {
    async fn start() -> Self {
        let cluster = Cluster::start().await;
        let config = StreamConfig {
            streamlets: 1,
            replicas: 3,
            min_insync_replicas: 2,
            segment_size: 64 << 10,
            segments_per_group: 2,
            max_batch_bytes: StreamConfig::default_max_batch_bytes(64 << 10),
            ..StreamConfig::default()
        };
        cluster.create("t", config).await;
        let owner = leaders(&metadata(&mut cluster.client(1).await, "t").await)[&0].0;
        let mut client = cluster.client(owner).await;
        let value = "v".repeat(95);
        for _ in 0..RECORDS / BATCH as i64 {
            let records = batch(&value, BATCH, Compression::None, ProducerStamp::NONE);
            let (code, _) = produce(&mut client, "t", 0, records).await;
            assert_eq!(code, 0);
        }
        let shared = cluster.brokers[0].0.shared();
        let stream = shared.data.catalog.named("t").unwrap().id();
        let mut filled = Self {
            cluster,
            stream,
            owner,
            near: 0,
        };
        until(|| filled.closed().len() == 3).await;
        let first = filled.closed().remove(0);
        let mut holders = first.copies.iter().map(|copy| copy.broker.0 as i32);
        filled.near = holders.find(|id| *id != owner).expect("a copy");
        // The owner hears a moment later what is recorded.
        until(|| filled.named_to() == Some(filled.held())).await;
        filled
    }

    fn shared(&self, id: i32) -> &Arc<Shared> {
        self.cluster.brokers[id as usize - 1].0.shared()
    }

    /// The topic's partition, as a broker has it.
    fn streamlet(&self, id: i32) -> Arc<Streamlet> {
        let found = self
            .shared(id)
            .data
            .catalog
            .streamlet(self.stream, StreamletId(0));
        found.expect("every broker knows the stream")
    }

    /// Up to where the owner knows the broker in question to hold the groups, from the first on.
    fn named_to(&self) -> Option<i64> {
        let (shared, streamlet) = (self.shared(self.owner), self.streamlet(self.owner));
        let (begin, near) = (Located::default(), [self.near as u32]);
        let found = nearby(shared, &streamlet, LaneId(0), begin, &near, 0, 0);
        found.map(|nearby| nearby.held_to as i64)
    }

    fn closed(&self) -> Vec<GroupRecord> {
        let store = &self.cluster.store;
        let image = store.load_streamlet(self.stream, StreamletId(0)).unwrap();
        let mut groups = image.groups;
        groups.retain(|g| g.state == GroupState::Closed && g.first_ordinal != Some(g.end_ordinal));
        groups.sort_unstable_by_key(|group| group.group);
        groups
    }

    /// Where the groups end that the broker in question holds, from the first on.
    fn held(&self) -> i64 {
        let near = self.near as u32;
        let holds = |group: &&GroupRecord| group.copies.iter().any(|copy| copy.broker.0 == near);
        let closed = self.closed();
        let held = closed.iter().take_while(holds);
        held.last().unwrap().end_ordinal as i64
    }

    fn copy_bytes(&self, id: i32) -> u64 {
        self.shared(id).data.metrics.copy_read_bytes.get()
    }

    async fn answer(&self, client: &mut Client, ask: Ask) -> FetchResponse {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_fetch_offset(ask.offset)
            .with_current_leader_epoch(ask.epoch)
            .with_partition_max_bytes(32 << 10);
        let mut fetched = FetchTopic::default().with_partitions(vec![partition]);
        match ask.version >= 13 {
            true => fetched.topic_id = self.stream.0,
            false => fetched.topic = topic("t"),
        }
        let mut request = FetchRequest::default()
            .with_replica_id((-1).into())
            .with_max_wait_ms(30_000)
            .with_min_bytes(1)
            .with_max_bytes(50 << 20)
            .with_session_id(ask.session.0)
            .with_session_epoch(ask.session.1)
            .with_topics(vec![fetched]);
        if ask.version >= 11 {
            request.rack_id = rack(ask.rack);
        }
        client.call(ApiKey::Fetch, ask.version, &request).await
    }

    async fn fetch(&self, client: &mut Client, ask: Ask) -> PartitionData {
        let reply = self.answer(client, ask).await;
        assert_eq!(reply.error_code, 0);
        reply.responses[0].partitions[0].clone()
    }

    /// As the first request of a connection.
    async fn first(&self, id: i32, ask: Ask) -> PartitionData {
        self.fetch(&mut self.cluster.client(id).await, ask).await
    }
}

/// The broker that is named, and bytes of records.
fn outcome(data: &PartitionData) -> (i32, usize) {
    let records = data.records.as_ref().map_or(0, Bytes::len);
    (data.preferred_read_replica.0, records)
}

fn is_served(data: &PartitionData) -> bool {
    let (named, bytes) = outcome(data);
    data.error_code == 0 && named == -1 && bytes > 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_owner_names_a_broker_in_the_clients_rack_that_holds_a_copy() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    for version in [11, 12, 13, 18] {
        let ask = Ask {
            version,
            ..Ask::at(0)
        };
        let data = filled.first(owner, ask.beside(near)).await;
        assert_eq!((data.error_code, outcome(&data)), (0, (near, 0)));
        let bounds = (
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
        );
        assert_eq!(bounds, (RECORDS, RECORDS, 0), "version {version}");
        // It says nothing, is beside the owner, or where nobody is.
        for beside in [0, owner, 4] {
            let data = filled.first(owner, ask.beside(beside)).await;
            assert!(is_served(&data), "version {version}, {beside}: {data:?}");
        }
    }
    let end = filled.closed().last().unwrap().end_ordinal as i64;
    for (offset, what) in [
        (end, "that group is open"),
        (end - 1, "less is left than makes up for the way"),
    ] {
        let data = filled.first(owner, Ask::at(offset).beside(near)).await;
        assert!(is_served(&data), "{what}");
    }
    let older = Ask {
        version: 10,
        ..Ask::at(0)
    };
    assert!(is_served(&filled.first(owner, older).await));
    for id in 1..=3 {
        assert_eq!(filled.copy_bytes(id), 0, "nobody went there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_broker_that_is_named_serves_closed_groups_and_sends_back_behind_them() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    for session in [false, true] {
        let before = filled.copy_bytes(near);
        let mut client = filled.cluster.client(near).await;
        let (mut offset, mut gathered, mut heads) = (0, Vec::new(), Vec::new());
        let (mut id, mut epoch) = (0, if session { 0 } else { -1 });
        loop {
            let ask = Ask {
                session: (id, epoch),
                ..Ask::at(offset)
            };
            let reply = filled.answer(&mut client, ask.beside(near)).await;
            if session {
                (id, epoch) = (reply.session_id, epoch + 1);
            }
            let data = &reply.responses[0].partitions[0];
            let bytes = data.records.clone().unwrap_or_default();
            assert_eq!(data.error_code, 0);
            if outcome(data) == (owner, 0) {
                break;
            }
            assert_eq!(outcome(data).0, -1);
            for found in batches(&bytes) {
                let (header, batch) = found.unwrap();
                kera_protocol::batch::verify(batch).unwrap();
                assert_eq!(header.base_ordinal as i64, offset);
                offset = header.next_ordinal() as i64;
            }
            assert!(!bytes.is_empty() && bytes.len() <= 32 << 10);
            heads.push((data.high_watermark, offset));
            assert_eq!(data.last_stable_offset, data.high_watermark);
            assert_eq!(data.log_start_offset, 0);
            gathered.extend_from_slice(&bytes);
        }
        let held = filled.held();
        assert_eq!(offset, held, "it serves more or less than closed groups");
        for (high, offset) in heads {
            assert!(
                high >= offset,
                "a high watermark below what is served: {high}"
            );
            assert!(
                high <= RECORDS,
                "a high watermark above the owner's: {high}"
            );
        }
        assert_eq!(filled.copy_bytes(near) - before, gathered.len() as u64);
        // The same bytes as the owner's.
        let (mut from, mut owners) = (0, Vec::new());
        let mut client = filled.cluster.client(owner).await;
        while from < offset {
            let data = filled.fetch(&mut client, Ask::at(from)).await;
            assert!(is_served(&data));
            let bytes = data.records.unwrap();
            let last = batches(&bytes).last().unwrap().unwrap();
            from = last.0.next_ordinal() as i64;
            owners.extend_from_slice(&bytes);
        }
        owners.truncate(gathered.len());
        assert!(gathered == owners, "bytes differ");
    }
    // From within a batch on the whole batch comes.
    let within = Ask::at(BATCH as i64 + 7).beside(near);
    let data = filled.first(near, within).await;
    let bytes = data.records.unwrap();
    let first = batches(&bytes).next().unwrap().unwrap();
    assert_eq!(first.0.base_ordinal, BATCH as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_are_for_clients_beside_them_that_know_the_epoch() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    let elder = Ask {
        version: 10,
        ..Ask::at(0)
    };
    for ask in [
        elder,
        Ask::at(0),
        Ask::at(0).beside(owner),
        Ask::at(0).beside(4),
    ] {
        let data = filled.first(near, ask).await;
        assert_eq!((data.error_code, outcome(&data).1), (NOT_LEADER, 0));
    }
    let mut client = filled.cluster.client(near).await;
    let (_, epoch) = leaders(&metadata(&mut client, "t").await)[&0];
    let fenced = ResponseError::FencedLeaderEpoch.code();
    for (epoch, code) in [(epoch, 0), (epoch - 1, fenced), (epoch + 1, NOT_LEADER)] {
        let ask = Ask {
            epoch,
            ..Ask::at(0)
        };
        let data = filled.fetch(&mut client, ask.beside(near)).await;
        assert_eq!(data.error_code, code, "the client knows another epoch");
        assert_eq!(outcome(&data).1 > 0, code == 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_comes_back_at_once_is_served_by_the_owner() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    let mut client = filled.cluster.client(owner).await;
    let named = filled.fetch(&mut client, Ask::at(0).beside(near)).await;
    assert_eq!(outcome(&named), (near, 0));
    for offset in [0, BATCH as i64] {
        let data = filled
            .fetch(&mut client, Ask::at(offset).beside(near))
            .await;
        assert!(is_served(&data), "back at {offset}");
    }
    // With a session, of which it names only what changes, as well.
    let mut client = filled.cluster.client(owner).await;
    let ask = Ask {
        session: (0, 0),
        ..Ask::at(0)
    };
    let reply = filled.answer(&mut client, ask.beside(near)).await;
    assert_eq!(outcome(&reply.responses[0].partitions[0]), (near, 0));
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(30_000)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(reply.session_id)
        .with_session_epoch(1)
        .with_rack_id(rack(near));
    let reply: FetchResponse = client.call(ApiKey::Fetch, 12, &request).await;
    assert!(is_served(&reply.responses[0].partitions[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_holds_copies_is_a_replica_and_whoever_is_gone_is_not_named() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    for id in 1..=3 {
        let (shared, streamlet) = (filled.shared(id), filled.streamlet(id));
        until(|| shared.holders_of(&streamlet).contains(&(near as u32))).await;
        let mut client = filled.cluster.client(id).await;
        let response = metadata(&mut client, "t").await;
        let partition = &response.topics[0].partitions[0];
        let replicas: Vec<_> = partition.replica_nodes.iter().map(|node| node.0).collect();
        assert_eq!((replicas[0], replicas.contains(&near)), (owner, true));
        assert_eq!(partition.isr_nodes, partition.replica_nodes);
        assert!(partition.offline_replicas.is_empty());
    }
    filled.cluster.store.expire(near as u32);
    let directory = &filled.cluster.brokers[owner as usize - 1]
        .0
        .shared()
        .data
        .directory;
    until(|| directory.broker(near as u32).is_none()).await;
    let mut client = filled.cluster.client(owner).await;
    let data = filled.fetch(&mut client, Ask::at(0).beside(near)).await;
    assert!(is_served(&data));
    let response = metadata(&mut client, "t").await;
    let partition = &response.topics[0].partitions[0];
    assert!(!partition.isr_nodes.contains(&near.into()));
    assert_eq!(partition.offline_replicas, [near]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_that_is_not_listed_sends_back_to_the_owner() {
    let filled = Filled::start().await;
    let (owner, near) = (filled.owner, filled.near);
    let first = filled.closed().remove(0);
    // It has been read from, so what was listed is remembered for a moment.
    assert!(is_served(
        &filled.first(near, Ask::at(0).beside(near)).await
    ));
    let mut unlisted = first.clone();
    unlisted.copies.retain(|copy| copy.broker.0 != near as u32);
    let store = &filled.cluster.store;
    let streamlet = store.streamlet(filled.stream, StreamletId(0)).unwrap();
    let streamlet = streamlet.expect("it exists");
    let compare = vec![Compare::epoch(&streamlet), Compare::group(&first)];
    let write = vec![Write::PutGroup(unlisted)];
    store
        .commit(Transaction::new(compare, write))
        .expect("nobody was faster");
    let mut client = filled.cluster.client(near).await;
    let back = tokio::time::timeout(PATIENCE, async {
        loop {
            let data = filled.fetch(&mut client, Ask::at(0).beside(near)).await;
            assert_eq!(data.error_code, 0);
            if !is_served(&data) {
                return data;
            }
        }
    });
    let back = back
        .await
        .expect("what is not listed is not served for long");
    assert_eq!(outcome(&back), (owner, 0));
    // The owner hears of it too, and names it for what it is listed for only.
    let named = tokio::time::timeout(PATIENCE, async {
        while !is_served(&filled.first(owner, Ask::at(0).beside(near)).await) {}
    });
    named.await.expect("it is not named any more");
    let second = first.next_ordinal as i64;
    let data = filled.first(owner, Ask::at(second).beside(near)).await;
    assert_eq!(
        outcome(&data).0 == near,
        filled.closed()[1]
            .copies
            .iter()
            .any(|c| c.broker.0 == near as u32)
    );
}
