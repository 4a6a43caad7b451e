//! Batches that are on their way while the owner changes.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{ApiKey, ProduceResponse};
use kera_broker::Broker;
use kera_broker::config::BrokerConfig;
use kera_metadata::{
    ClusterStore, Compare, Incarnation, LiveBroker, MemoryCluster, MetadataStore, StreamConfig,
    StreamRecord, StreamletRecord, Transaction, Write,
};
use kera_protocol::batch::{Compression, ProducerStamp};
use kera_protocol::ids::{Epoch, StreamletId};

use super::producing::request;
use crate::common::{Client, NEVER, PATIENCE, batch};

/// Broker 1, beside a broker 2 that is known to all and never answers.
struct Pair {
    store: Arc<MemoryCluster>,
    broker: Broker,
    client: Client,
    /// Held, so that its address is nobody else's.
    _silent: tokio::net::TcpListener,
    _membership: kera_metadata::Membership,
    _dir: tempfile::TempDir,
}

impl Pair {
    async fn start() -> Self {
        let store = Arc::new(MemoryCluster::new());
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let incarnation = Incarnation {
            store_id: uuid::Uuid::from_u128(2),
            boot_id: uuid::Uuid::from_u128(2),
        };
        let mut other = LiveBroker::new(2, incarnation);
        other.address = "127.0.0.1:1".into();
        other.replication_address = silent.local_addr().unwrap().to_string();
        // Copies may lie on one machine here.
        other.host = "here".into();
        let membership = store.join(other, Duration::from_secs(60)).unwrap();
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
        config.cluster.broker_id = Some(1);
        config.cluster.listen = "127.0.0.1:0".into();
        config.cluster.host = Some("here".into());
        config.cluster.allow_same_host = true;
        config.replica_store.memory_bytes = 32 << 20;
        config.replica_store.shared_dir = Some(dir.path().join("shared"));
        let shared: Arc<dyn ClusterStore> = store.clone();
        let broker = Broker::start_sharing(config, Some(shared)).await.unwrap();
        let listeners = kera_kafka_shim::start(broker.shared().clone())
            .await
            .unwrap();
        let client = Client::connect(listeners.addresses[0]).await;
        Self {
            store,
            broker,
            client,
            _silent: silent,
            _membership: membership,
            _dir: dir,
        }
    }

    /// Creates stream `t` with two copies of everything, and sends a batch that waits for the second to
    /// the partition of which this broker is the leader. Returns the partition.
    async fn send_one(&mut self, timeout_ms: i32) -> (u32, i32) {
        let config = StreamConfig {
            streamlets: 2,
            replicas: 2,
            min_insync_replicas: 2,
            ..StreamConfig::default()
        };
        let shared = self.broker.shared().clone();
        let record = StreamRecord::new("t", config, 1);
        let created = tokio::task::spawn_blocking(move || shared.create_stream(record));
        let stream = created.await.unwrap().unwrap();
        let owners = stream.owners();
        let partition = owners.iter().position(|owner| owner.broker == 1).unwrap();
        let records = batch("v", 3, Compression::None, ProducerStamp::NONE);
        let request = request("t", -1, &[(partition as i32, records)]).with_timeout_ms(timeout_ms);
        let correlation = self.client.send(ApiKey::Produce, 9, &request).await;
        // It has its place.
        let appended = &self.broker.shared().data.metrics.appended_records;
        let placed = async {
            while appended.get() < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, placed).await.unwrap();
        (partition as u32, correlation)
    }

    async fn answer(&mut self, correlation: i32) -> i16 {
        let received = self.client.receive(ApiKey::Produce, 9, correlation);
        let reply: ProduceResponse = received.await;
        reply.responses[0].partition_responses[0].error_code
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_change_cuts_off_is_to_be_sent_to_the_new_leader() {
    let mut pair = Pair::start().await;
    let (partition, correlation) = pair.send_one(60_000).await;
    let stream = pair.broker.shared().data.catalog.named("t").unwrap().id();
    let id = StreamletId(partition);
    let found = pair.store.streamlet(stream, id).unwrap().unwrap();
    let compare = Compare::StreamletEpoch {
        stream,
        streamlet: id,
        epoch: found.epoch,
    };
    let next = StreamletRecord {
        owner: 2,
        epoch: Epoch(found.epoch.0 + 1),
        ..found
    };
    let transaction = Transaction::new(vec![compare], vec![Write::PutStreamlet(next)]);
    pair.store.commit(transaction).unwrap();
    let code = pair.answer(correlation).await;
    assert_eq!(code, ResponseError::NotLeaderOrFollower.code());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_times_out_without_a_lease_is_to_be_sent_to_whoever_leads_now() {
    let mut pair = Pair::start().await;
    // Long enough for the lease to be over by then, however busy the machine is.
    let (_, correlation) = pair.send_one(10_000).await;
    pair.store.expire(1);
    let code = pair.answer(correlation).await;
    assert_eq!(code, ResponseError::NotLeaderOrFollower.code());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_replicas_until_it_times_out_is_not_called_refused() {
    let mut pair = Pair::start().await;
    let (_, correlation) = pair.send_one(100).await;
    let code = pair.answer(correlation).await;
    assert_eq!(code, ResponseError::NotEnoughReplicasAfterAppend.code());
}
