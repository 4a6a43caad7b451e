//! Three brokers that share a store, in this process, with the producers and consumers of the client
//! crates: streamlets and coordinators change their broker under them.

mod copies;
mod planted;
mod transactions;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kera_broker::Broker;
use kera_broker::cluster::ownership;
use kera_broker::config::BrokerConfig;
use kera_broker::coordination::GROUPS_STREAM;
use kera_consumer::{Consumer, Order};
use kera_metadata::{
    ClusterStore, Compare, MemoryCluster, MetadataError, MetadataStore, StreamletRecord,
    Transaction, Write,
};
use kera_producer::{Producer, Record};
use kera_protocol::ids::{Epoch, StreamletId};
use kera_protocol::v1;
use kera_rpc::Client;
use tempfile::TempDir;

/// Nothing here takes as long; a test that waits for ever fails instead.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a call about a group may take.
const WITHIN: Duration = Duration::from_secs(10);
const STREAMLETS: u32 = 6;

thread_local! {
    /// Removed with the test's thread: by then its runtime has ended, and with it whatever writes there.
    static DIRS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

struct Cluster {
    store: Arc<MemoryCluster>,
    brokers: Vec<Broker>,
}

impl Cluster {
    async fn start() -> Self {
        let store = Arc::new(MemoryCluster::new());
        let mut brokers = Vec::new();
        for id in 1..=3 {
            let dir = tempfile::tempdir().unwrap();
            let mut config = BrokerConfig {
                data_dir: dir.path().join("data"),
                ..BrokerConfig::default()
            };
            config.server.listen = "127.0.0.1:0".into();
            config.http.listen = None;
            config.memory.pool = 64 << 20;
            config.cluster.broker_id = Some(id);
            config.cluster.listen = "127.0.0.1:0".into();
            config.cluster.allow_same_host = true;
            config.cluster.rack = Some(format!("rack{id}"));
            config.replica_store.memory_bytes = 256 << 20;
            config.replica_store.shared_dir = Some(dir.path().join("shared"));
            let shared: Arc<dyn ClusterStore> = store.clone();
            let started = Broker::start_sharing(config, Some(shared)).await;
            brokers.push(started.unwrap());
            DIRS.with_borrow_mut(|dirs| dirs.push(dir));
        }
        let cluster = Self { store, brokers };
        for broker in &cluster.brokers {
            let directory = &broker.shared().data.directory;
            until(|| directory.brokers().len() == 3).await;
        }
        cluster
    }

    fn address(&self, index: usize) -> String {
        self.brokers[index].local_addr().to_string()
    }

    fn bootstrap(&self) -> String {
        let addresses: Vec<_> = (0..3).map(|index| self.address(index)).collect();
        addresses.join(",")
    }

    /// Creates the stream "s" with three copies, and waits until all have heard of it.
    async fn create(&self) -> Client {
        let client = Client::connect_to(&self.bootstrap()).unwrap();
        let request = v1::CreateStreamRequest {
            name: "s".into(),
            config: Some(v1::StreamConfig {
                streamlets: Some(STREAMLETS),
                lanes: Some(1),
                replicas: Some(3),
                min_insync_replicas: Some(2),
                segment_size: Some(1 << 20),
                ..v1::StreamConfig::default()
            }),
        };
        client.call(request).await.unwrap();
        for broker in &self.brokers {
            let catalog = &broker.shared().data.catalog;
            until(|| catalog.named("s").is_some()).await;
        }
        client
    }

    /// How much broker `id` is recorded to own.
    fn owned_by(&self, id: u32) -> usize {
        let image = self.store.load().unwrap();
        image.streamlets.iter().filter(|s| s.owner == id).count()
    }

    /// Records other owners for everything that broker `from` owns, as the controller does when a broker is
    /// gone, which may be faster.
    fn reassign(&self, from: u32) {
        let image = self.store.load().unwrap();
        let owned = image.streamlets.iter().filter(|s| s.owner == from);
        let others = (1..=3).filter(|id| *id != from).cycle();
        for (streamlet, owner) in owned.zip(others) {
            let compare = Compare::streamlet(streamlet);
            let next = StreamletRecord {
                owner,
                epoch: Epoch(streamlet.epoch.0 + 1),
                ..streamlet.clone()
            };
            let write = vec![Write::PutStreamlet(next)];
            match self.store.commit(Transaction::new(vec![compare], write)) {
                Ok(_) | Err(MetadataError::Conflict(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Hands every streamlet of a stream that broker `index` owns to the next broker; how many.
    async fn hand_over(&self, index: usize, name: &str) -> usize {
        let shared = self.brokers[index].shared();
        let Some(stream) = shared.data.catalog.named(name) else {
            return 0;
        };
        let me = shared.data.directory.me();
        let owned: Vec<StreamletId> = shared
            .owners_of(&stream)
            .into_iter()
            .zip(0..)
            .filter(|(owner, _)| *owner == me)
            .map(|(_, streamlet)| StreamletId(streamlet))
            .collect();
        let next = me % 3 + 1;
        for streamlet in &owned {
            let still_owned = || {
                let owner = shared.data.directory.owner(stream.id(), *streamlet);
                owner.is_some_and(|owner| owner.broker == me)
            };
            let mut last = None;
            // One that is still being taken over cannot be handed on yet; the controller, which spreads
            // streamlets, may be faster.
            let handed = async {
                while still_owned() {
                    match ownership::hand_over(shared, stream.id(), *streamlet, next).await {
                        Ok(()) => break,
                        Err(error) => {
                            assert!(error.code.is_retryable(), "{error}");
                            last = Some(error);
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            if tokio::time::timeout(PATIENCE, handed).await.is_err() {
                panic!("streamlet {streamlet} is not handed over: {last:?}");
            }
        }
        owned.len()
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

async fn append(producer: &Producer, range: std::ops::Range<usize>) {
    for number in range {
        let (key, value) = ((number % 50).to_string(), number.to_string());
        let record = Record::keyed(key.as_bytes(), value.as_bytes());
        producer.append_wait(&record).await.unwrap();
    }
}

async fn consumer(cluster: &Cluster, group: &str, order: Order) -> Consumer {
    Consumer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .group(group)
        .order(order)
        .auto_commit(Duration::from_millis(50))
        .open()
        .await
        .unwrap()
}

/// Reads until `count` records were seen, which must be all there are: each once, and those of a key in
/// order if lanes are read in order.
async fn read_all(consumer: &mut Consumer, count: usize, ordered: bool) {
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let reading = async {
        while seen.len() < count {
            let batch = consumer.next_batch().await.unwrap();
            for record in batch.records() {
                let value = record.unwrap().value.unwrap().to_vec();
                let number: usize = String::from_utf8(value).unwrap().parse().unwrap();
                *seen.entry(number).or_default() += 1;
                let before = last.insert(number % 50, number);
                assert!(
                    !ordered || before < Some(number),
                    "{number} came after {before:?}"
                );
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("all records are read");
    let doubled: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
    assert!(doubled.is_empty(), "read twice: {doubled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn producers_and_groups_go_on_while_everything_changes_hands() {
    let cluster = Cluster::start().await;
    let client = cluster.create().await;
    let producer = Producer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .batch_size(4 << 10)
        .build()
        .await
        .unwrap();
    let mut consumer = consumer(&cluster, "lanes", Order::Lane).await;
    let count = 6_000;
    let producing = async {
        for (round, start) in (0..count).step_by(1_000).enumerate() {
            append(&producer, start..start + 1_000).await;
            let moved = cluster.hand_over(round % 3, "s").await;
            let groups = cluster.hand_over((round + 1) % 3, GROUPS_STREAM).await;
            assert!(round > 0 || moved > 0, "streamlets are spread");
            tracing::debug!(round, moved, groups, "handed over");
        }
        producer.close().await.unwrap();
    };
    let ((), ()) = tokio::join!(producing, read_all(&mut consumer, count, true));
    let metrics = producer.metrics();
    assert_eq!(metrics.records_acknowledged, count as u64);
    consumer.close().await.unwrap();
    let group = "lanes".to_owned();
    let described = client
        .group_call("lanes", WITHIN, v1::DescribeGroupRequest { group })
        .await
        .unwrap();
    assert_eq!(described.lanes.len(), STREAMLETS as usize);
    let committed: u64 = described.lanes.iter().map(|lane| lane.committed).sum();
    assert_eq!(committed, count as u64, "{:?}", described.lanes);
    assert_eq!(described.summary.unwrap().lag, 0);
}

/// Keys move between streamlets of different owners, while these change too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_keep_their_order_while_partitions_grow_at_several_owners() {
    let cluster = Cluster::start().await;
    let client = cluster.create().await;
    let producer = Producer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .batch_size(2 << 10)
        .build()
        .await
        .unwrap();
    let mut consumer = consumer(&cluster, "lanes", Order::Lane).await;
    let count = 5_000;
    let producing = async {
        for (round, partitions) in [7, 10, 11, 20].into_iter().enumerate() {
            append(&producer, round * 1_000..(round + 1) * 1_000).await;
            let request = v1::AlterStreamRequest {
                name: "s".into(),
                config: Some(v1::StreamConfig {
                    partitions: Some(partitions),
                    ..v1::StreamConfig::default()
                }),
            };
            let grow = || client.call(request.clone());
            // While an owner changes nobody can say where its lanes end.
            while let Err(error) = grow().await {
                tracing::debug!(%error, "not grown yet");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            cluster.hand_over(round % 3, "s").await;
        }
        append(&producer, 4_000..count).await;
        producer.close().await.unwrap();
    };
    let ((), ()) = tokio::join!(producing, read_all(&mut consumer, count, true));
    consumer.close().await.unwrap();
    let metrics = producer.metrics();
    assert_eq!(metrics.records_acknowledged, count as u64);
    let meta = client.refresh("s").await.unwrap();
    assert_eq!((meta.partitions, meta.lanes), (20, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn producers_and_groups_go_on_when_a_broker_loses_its_lease() {
    let cluster = Cluster::start().await;
    cluster.create().await;
    let producer = Producer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .batch_size(4 << 10)
        .build()
        .await
        .unwrap();
    let mut consumer = consumer(&cluster, "lanes", Order::Lane).await;
    let count = 4_000;
    let producing = async {
        append(&producer, 0..1_000).await;
        producer.flush().await.unwrap();
        assert!(cluster.owned_by(1) > 0, "it owns something");
        // It goes on running, and hears of its successors by the store only.
        cluster.store.expire(1);
        append(&producer, 1_000..2_000).await;
        cluster.reassign(1);
        until(|| cluster.owned_by(1) == 0).await;
        append(&producer, 2_000..count).await;
        producer.close().await.unwrap();
    };
    let ((), ()) = tokio::join!(producing, read_all(&mut consumer, count, true));
    consumer.close().await.unwrap();
    assert_eq!(producer.metrics().records_acknowledged, count as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ranges_of_lanes_of_all_brokers_are_shared() {
    let cluster = Cluster::start().await;
    cluster.create().await;
    let producer = Producer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .batch_size(2 << 10)
        .build()
        .await
        .unwrap();
    let mut consumer = consumer(&cluster, "ranges", Order::None).await;
    let count = 4_000;
    let producing = async {
        for start in (0..count).step_by(500) {
            append(&producer, start..start + 500).await;
            producer.flush().await.unwrap();
        }
    };
    let ((), ()) = tokio::join!(producing, read_all(&mut consumer, count, false));
    consumer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_broker_answers_for_all_lanes() {
    let cluster = Cluster::start().await;
    cluster.create().await;
    let producer = Producer::builder()
        .bootstrap(cluster.address(2))
        .stream("s")
        .build()
        .await
        .unwrap();
    append(&producer, 0..1_000).await;
    producer.close().await.unwrap();
    for index in 0..3 {
        let client = Client::connect_to(&cluster.address(index)).unwrap();
        let request = v1::FindOrdinalsRequest {
            name: "s".into(),
            at: Some(v1::find_ordinals_request::At::Latest(true)),
            local: false,
        };
        let found = client.call(request).await.unwrap();
        let lanes: Vec<_> = found.lanes.iter().map(|l| (l.streamlet, l.lane)).collect();
        let expected: Vec<_> = (0..STREAMLETS).map(|s| (s, 0)).collect();
        assert_eq!(lanes, expected, "as broker {} tells it", index + 1);
        let heads: u64 = found.lanes.iter().map(|lane| lane.head_ordinal).sum();
        assert_eq!(heads, 1_000);
        let name = "s".to_owned();
        let described = client
            .call(v1::DescribeStreamRequest { name, local: false })
            .await
            .unwrap();
        assert_eq!(described.lanes.len(), STREAMLETS as usize);
        assert!(described.unrecovered.is_empty());
    }
}
