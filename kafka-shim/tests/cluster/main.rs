//! Three brokers that share a store, in this process, as Kafka's clients see them by hand over sockets.

mod admission;
#[path = "../common/mod.rs"]
mod common;
mod consumers;
mod dead_letters;
mod named;
mod near;
mod planted;
mod second_login;
mod settings;
mod shares;
mod shares_lost;
mod two_phase;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, DescribeClusterRequest, DescribeClusterResponse, FindCoordinatorRequest,
    FindCoordinatorResponse, GroupId, HeartbeatRequest, HeartbeatResponse, InitProducerIdRequest,
    InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ProduceResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::Broker;
use kera_broker::cluster::ownership;
use kera_broker::config::BrokerConfig;
use kera_metadata::{ClusterStore, MemoryCluster, StreamConfig, StreamRecord};
use kera_protocol::batch::{Compression, ProducerStamp};
use kera_protocol::ids::StreamletId;
use tempfile::TempDir;

use common::{Client, NEVER, PATIENCE, batch};

/// NOT_LEADER_OR_FOLLOWER.
const NOT_LEADER: i16 = 6;

/// Brokers 1, 2 and 3 in racks a, b and c.
struct Cluster {
    store: Arc<MemoryCluster>,
    brokers: Vec<(Broker, SocketAddr)>,
    _dirs: Vec<TempDir>,
}

impl Cluster {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl Fn(&mut BrokerConfig)) -> Self {
        let store = Arc::new(MemoryCluster::new());
        let (mut brokers, mut dirs) = (Vec::new(), Vec::new());
        for (id, rack) in [(1, "a"), (2, "b"), (3, "c")] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = BrokerConfig {
                data_dir: dir.path().join("data"),
                ..BrokerConfig::default()
            };
            config.server.listen = "127.0.0.1:0".into();
            config.http.listen = None;
            config.memory.pool = 64 << 20;
            config.kafka.listen = vec!["127.0.0.1:0".into()];
            config.retention.check_interval = NEVER;
            config.cluster.broker_id = Some(id);
            config.cluster.rack = Some(rack.into());
            config.cluster.listen = "127.0.0.1:0".into();
            config.cluster.allow_same_host = true;
            config.replica_store.memory_bytes = 64 << 20;
            config.replica_store.shared_dir = Some(dir.path().join("shared"));
            change(&mut config);
            let shared: Arc<dyn ClusterStore> = store.clone();
            let started = Broker::start_sharing(config, Some(shared)).await;
            let broker = started.unwrap();
            let listeners = kera_kafka_shim::start(broker.shared().clone()).await;
            brokers.push((broker, listeners.unwrap().addresses[0]));
            dirs.push(dir);
        }
        let cluster = Self {
            store,
            brokers,
            _dirs: dirs,
        };
        // Each hears of the others' listeners after they have joined.
        for (broker, _) in &cluster.brokers {
            let directory = &broker.shared().data.directory;
            until(|| {
                let brokers = directory.brokers();
                brokers.len() == 3 && brokers.iter().all(|b| !b.kafka.is_empty())
            })
            .await;
        }
        cluster
    }

    /// A stream of six partitions at all brokers, with three copies.
    async fn topic(&self, name: &str) {
        let config = StreamConfig {
            streamlets: 6,
            replicas: 3,
            min_insync_replicas: 2,
            ..StreamConfig::default()
        };
        self.create(name, config).await;
    }

    async fn create(&self, name: &str, config: StreamConfig) {
        let (shared, record) = (
            self.brokers[0].0.shared().clone(),
            StreamRecord::new(name, config, 1),
        );
        let made = tokio::task::spawn_blocking(move || shared.create_stream(record).map(drop));
        made.await.unwrap().unwrap();
        for (broker, _) in &self.brokers {
            let catalog = &broker.shared().data.catalog;
            until(|| catalog.named(name).is_some()).await;
        }
    }

    async fn client(&self, id: i32) -> Client {
        Client::connect(self.brokers[id as usize - 1].1).await
    }
}

/// Looks again and again; what never comes is a failure.
async fn until(so: impl Fn() -> bool) {
    let looks = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks)
        .await
        .expect("the brokers came to what the test waits for");
}

fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic(name: &str) -> TopicName {
    TopicName(words(name))
}

async fn metadata(client: &mut Client, name: &str) -> MetadataResponse {
    let asked = MetadataRequestTopic::default().with_name(Some(topic(name)));
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    client.call(ApiKey::Metadata, 12, &request).await
}

/// Leaders by partition.
fn leaders(response: &MetadataResponse) -> BTreeMap<i32, (i32, i32)> {
    let partitions = response.topics[0].partitions.iter();
    let leaders = partitions.map(|p| (p.partition_index, (p.leader_id.0, p.leader_epoch)));
    leaders.collect()
}

fn produce_request(name: &str, partition: i32, records: Bytes, within: Duration) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(topic(name))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(within.as_millis() as i32)
        .with_topic_data(vec![data])
}

async fn produce(client: &mut Client, name: &str, partition: i32, records: Bytes) -> (i16, i64) {
    let request = produce_request(name, partition, records, Duration::from_secs(30));
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    let answer = &reply.responses[0].partition_responses[0];
    (answer.error_code, answer.base_offset)
}

async fn latest(client: &mut Client, name: &str, partition: i32) -> (i16, i64) {
    let asked = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(-1);
    let asked = ListOffsetsTopic::default()
        .with_name(topic(name))
        .with_partitions(vec![asked]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![asked]);
    let reply: ListOffsetsResponse = client.call(ApiKey::ListOffsets, 7, &request).await;
    let answer = &reply.topics[0].partitions[0];
    (answer.error_code, answer.offset)
}

async fn coordinator(client: &mut Client, id: &str) -> (i16, i32, i32) {
    let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![words(id)]);
    let reply: FindCoordinatorResponse = client.call(ApiKey::FindCoordinator, 4, &request).await;
    let found = &reply.coordinators[0];
    (found.error_code, found.node_id.0, found.port)
}

fn records(count: usize) -> Bytes {
    batch("v", count, Compression::None, ProducerStamp::NONE)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_broker_names_all_brokers_and_leaders() {
    let cluster = Cluster::start().await;
    cluster.topic("t").await;
    let mut seen = Vec::new();
    for id in 1..=3 {
        let mut client = cluster.client(id).await;
        let response = metadata(&mut client, "t").await;
        let brokers = response.brokers.iter();
        let brokers: Vec<_> = brokers
            .map(|b| (b.node_id.0, b.port, b.rack.as_deref().map(str::to_owned)))
            .collect();
        let expected: Vec<_> = cluster
            .brokers
            .iter()
            .zip([(1, "a"), (2, "b"), (3, "c")])
            .map(|((_, address), (id, rack))| {
                (id, i32::from(address.port()), Some(rack.to_owned()))
            })
            .collect();
        assert_eq!(brokers, expected, "as broker {id} tells it");
        let request = DescribeClusterRequest::default();
        let described: DescribeClusterResponse =
            client.call(ApiKey::DescribeCluster, 0, &request).await;
        let racks = described.brokers.iter();
        let racks: Vec<_> = racks.map(|b| (b.broker_id.0, b.rack.as_deref())).collect();
        assert_eq!(racks, [(1, Some("a")), (2, Some("b")), (3, Some("c"))]);
        assert_eq!(described.cluster_id, response.cluster_id.clone().unwrap());
        seen.push((leaders(&response), described.cluster_id));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "all tell the same");
    let leading: BTreeSet<i32> = seen[0].0.values().map(|(leader, _)| *leader).collect();
    assert_eq!(leading, BTreeSet::from([1, 2, 3]), "leaders are spread");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_two_brokers_are_to_create_at_once_are_there_or_soon_will_be() {
    let cluster = Cluster::start().await;
    let mut clients = [
        cluster.client(1).await,
        cluster.client(2).await,
        cluster.client(3).await,
    ];
    let names: Vec<_> = (0..20).map(|number| format!("t{number}")).collect();
    let asked = names.iter();
    let asked = asked.map(|name| MetadataRequestTopic::default().with_name(Some(topic(name))));
    let request = MetadataRequest::default()
        .with_topics(Some(asked.collect()))
        .with_allow_auto_topic_creation(true);
    let [a, b, c] = &mut clients;
    let (a, b, c): (MetadataResponse, MetadataResponse, MetadataResponse) = tokio::join!(
        a.call(ApiKey::Metadata, 12, &request),
        b.call(ApiKey::Metadata, 12, &request),
        c.call(ApiKey::Metadata, 12, &request),
    );
    let soon = [0, ResponseError::LeaderNotAvailable.code()];
    for answer in [a, b, c] {
        assert_eq!(answer.topics.len(), names.len());
        for topic in answer.topics {
            assert!(soon.contains(&topic.error_code), "{topic:?}");
        }
    }
    for name in &names {
        for (broker, _) in &cluster.brokers {
            until(|| broker.shared().data.catalog.named(name).is_some()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_serves_and_its_successor_knows_the_end() {
    let cluster = Cluster::start().await;
    cluster.topic("t").await;
    let before = leaders(&metadata(&mut cluster.client(1).await, "t").await);
    let (leader, epoch) = before[&0];
    let mut at_leader = cluster.client(leader).await;
    assert_eq!(produce(&mut at_leader, "t", 0, records(10)).await, (0, 0));
    assert_eq!(latest(&mut at_leader, "t", 0).await, (0, 10));
    let other = leader % 3 + 1;
    let mut at_other = cluster.client(other).await;
    assert_eq!(
        produce(&mut at_other, "t", 0, records(1)).await.0,
        NOT_LEADER
    );
    assert_eq!(latest(&mut at_other, "t", 0).await.0, NOT_LEADER);

    let shared = cluster.brokers[leader as usize - 1].0.shared();
    let stream = shared.data.catalog.named("t").unwrap().id();
    ownership::hand_over(shared, stream, StreamletId(0), other as u32)
        .await
        .unwrap();
    let name_of_leader = async |client: &mut Client| leaders(&metadata(client, "t").await)[&0];
    while name_of_leader(&mut at_other).await.0 != other {
        tokio::task::yield_now().await;
    }
    // Asked at once, the successor waits until it knows where the partition ends.
    assert_eq!(latest(&mut at_other, "t", 0).await, (0, 10));
    let mut placed = produce(&mut at_other, "t", 0, records(1)).await;
    while placed.0 != 0 {
        placed = produce(&mut at_other, "t", 0, records(1)).await;
    }
    assert_eq!(placed, (0, 10));
    assert_eq!(
        produce(&mut at_leader, "t", 0, records(1)).await.0,
        NOT_LEADER
    );
    let (_, after) = name_of_leader(&mut at_other).await;
    assert!(after > epoch, "leader epochs rise: {epoch}, then {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_have_one_coordinator_and_every_broker_names_it() {
    let cluster = Cluster::start().await;
    let mut found = BTreeSet::new();
    for group in ["g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8"] {
        let mut named = BTreeSet::new();
        for id in 1..=3 {
            let mut client = cluster.client(id).await;
            let mut answer = coordinator(&mut client, group).await;
            while answer.0 == ResponseError::CoordinatorLoadInProgress.code() {
                answer = coordinator(&mut client, group).await;
            }
            let (code, node, port) = answer;
            assert_eq!(code, 0);
            assert_eq!(port, i32::from(cluster.brokers[node as usize - 1].1.port()));
            named.insert(node);
        }
        assert_eq!(named.len(), 1, "{group}: all name the same");
        let node = *named.first().unwrap();
        found.insert(node);
        let beat = HeartbeatRequest::default()
            .with_group_id(GroupId(words(group)))
            .with_generation_id(1)
            .with_member_id(words("nobody"));
        for id in 1..=3 {
            let mut client = cluster.client(id).await;
            let loading = ResponseError::CoordinatorLoadInProgress.code();
            let mut code = loading;
            while code == loading {
                let reply: HeartbeatResponse = client.call(ApiKey::Heartbeat, 4, &beat).await;
                code = reply.error_code;
            }
            let expected = match id == node {
                true => ResponseError::UnknownMemberId.code(),
                false => ResponseError::NotCoordinator.code(),
            };
            assert_eq!(code, expected, "{group} at {id}, coordinator {node}");
        }
    }
    assert!(found.len() > 1, "coordinators are spread");
}

#[tokio::test(flavor = "multi_thread")]
async fn producer_ids_are_given_out_once_by_whomever() {
    let cluster = Cluster::start().await;
    let mut ids = BTreeSet::new();
    for round in 0..5 {
        for id in 1..=3 {
            let mut client = cluster.client(id).await;
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(1_000);
            let reply: InitProducerIdResponse =
                client.call(ApiKey::InitProducerId, 4, &request).await;
            assert_eq!(reply.error_code, 0);
            assert!(
                ids.insert(reply.producer_id.0),
                "id {:?} twice, round {round}",
                reply.producer_id
            );
        }
    }
}
