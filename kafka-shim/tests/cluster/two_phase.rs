//! A transaction that is kept while its coordinator, and the leader of what takes part, change.

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{
    ApiKey, EndTxnRequest, EndTxnResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    InitProducerIdRequest, InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse,
    ProduceResponse, ProducerId, TransactionalId,
};
use kera_broker::cluster::ownership;
use kera_broker::coordination::TRANSACTIONS_STREAM;
use kera_protocol::batch::{Compression, ProducerStamp, mark_transactional};
use kera_protocol::ids::StreamletId;

use crate::common::{Client, PATIENCE, batch};
use crate::{Cluster, leaders, metadata, produce_request, topic, words};

const ID: &str = "p";

fn id() -> TransactionalId {
    TransactionalId(words(ID))
}

/// Clients look for the coordinator or the leader again, or wait, and send again what these answer.
fn again(code: i16) -> bool {
    let again = [
        ResponseError::ConcurrentTransactions,
        ResponseError::CoordinatorLoadInProgress,
        ResponseError::CoordinatorNotAvailable,
        ResponseError::NotCoordinator,
        ResponseError::NotEnoughReplicas,
        ResponseError::NotLeaderOrFollower,
        ResponseError::UnknownTopicOrPartition,
    ];
    again.iter().any(|error| error.code() == code)
}

/// The broker that coordinates the id.
async fn coordinator(cluster: &Cluster) -> i32 {
    let mut anywhere = cluster.client(1).await;
    let request = FindCoordinatorRequest::default()
        .with_key_type(1)
        .with_coordinator_keys(vec![words(ID)]);
    loop {
        let reply: FindCoordinatorResponse =
            anywhere.call(ApiKey::FindCoordinator, 4, &request).await;
        let found = &reply.coordinators[0];
        if found.error_code == 0 {
            return found.node_id.0;
        }
    }
}

/// An instance begins that keeps what is open: what it has, and what it has kept.
pub(crate) async fn begin(cluster: &Cluster) -> ((i64, i16), (i64, i16)) {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id()))
        .with_transaction_timeout_ms(60_000)
        .with_enable_2_pc(true)
        .with_keep_prepared_txn(true);
    loop {
        let mut client = cluster.client(coordinator(cluster).await).await;
        let begun: InitProducerIdResponse = client.init_producer_id(6, &request).await;
        if !again(begun.error_code) {
            assert_eq!(begun.error_code, 0);
            let ongoing = (
                begun.ongoing_txn_producer_id.0,
                begun.ongoing_txn_producer_epoch,
            );
            return ((begun.producer_id.0, begun.producer_epoch), ongoing);
        }
    }
}

pub(crate) async fn end(cluster: &Cluster, (producer, epoch): (i64, i16)) -> (i16, (i64, i16)) {
    let request = EndTxnRequest::default()
        .with_transactional_id(id())
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_committed(true);
    loop {
        let mut client = cluster.client(coordinator(cluster).await).await;
        let ended: EndTxnResponse = client.call(ApiKey::EndTxn, 5, &request).await;
        if !again(ended.error_code) {
            let next = (ended.producer_id.0, ended.producer_epoch);
            return (ended.error_code, next);
        }
    }
}

pub(crate) async fn leader(cluster: &Cluster, partition: i32) -> i32 {
    let mut anywhere = cluster.client(1).await;
    leaders(&metadata(&mut anywhere, "t").await)[&partition].0
}

/// Appends a record under a transaction.
pub(crate) async fn join(cluster: &Cluster, partition: i32, (producer, epoch): (i64, i16)) -> i16 {
    let stamp = ProducerStamp {
        producer_id: producer,
        producer_epoch: epoch,
        base_sequence: 0,
    };
    let mut records = batch("v", 1, Compression::None, stamp).to_vec();
    mark_transactional(&mut records);
    let request = produce_request("t", partition, Bytes::from(records), PATIENCE);
    let request = request.with_transactional_id(Some(id()));
    loop {
        let mut client = cluster.client(leader(cluster, partition).await).await;
        let reply: ProduceResponse = client.call(ApiKey::Produce, 12, &request).await;
        let code = reply.responses[0].partition_responses[0].error_code;
        if !again(code) {
            return code;
        }
    }
}

/// Where readers of what is committed stop.
async fn stable(client: &mut Client, partition: i32) -> Option<i64> {
    let asked = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(-1);
    let asked = ListOffsetsTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![asked]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(1)
        .with_topics(vec![asked]);
    let reply: ListOffsetsResponse = client.call(ApiKey::ListOffsets, 7, &request).await;
    let answer = &reply.topics[0].partitions[0];
    (answer.error_code == 0).then_some(answer.offset)
}

pub(crate) async fn stable_at(cluster: &Cluster, partition: i32, offset: i64) {
    let waiting = async {
        loop {
            let mut client = cluster.client(leader(cluster, partition).await).await;
            let at = stable(&mut client, partition).await;
            assert!(at <= Some(offset), "readers are at {at:?}");
            if at == Some(offset) {
                return;
            }
        }
    };
    let waiting = tokio::time::timeout(PATIENCE, waiting);
    waiting.await.expect("readers still wait");
}

/// Gives what a broker owns of a stream to another one.
async fn hand_over(cluster: &Cluster, stream: &str, from: i32, only: Option<i32>) {
    let shared = cluster.brokers[from as usize - 1].0.shared();
    let stream = shared.data.catalog.named(stream).unwrap();
    for streamlet in &stream.streamlets {
        let is_meant = only.is_none_or(|only| streamlet.id() == StreamletId(only as u32));
        if is_meant && shared.owner_of(&streamlet).broker == from as u32 {
            let to = from as u32 % 3 + 1;
            let given = ownership::hand_over(shared, stream.id(), streamlet.id(), to);
            given.await.expect("the other takes it");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_kept_over_another_coordinator_and_another_leader() {
    let cluster = Cluster::with(|config| config.transactions.two_phase_commit = true).await;
    cluster.topic("t").await;
    let (first, ongoing) = begin(&cluster).await;
    assert_eq!(ongoing, (-1, -1));
    for partition in [0, 1] {
        assert_eq!(join(&cluster, partition, first).await, 0);
    }
    let (second, ongoing) = begin(&cluster).await;
    assert_eq!((second, ongoing), ((first.0, first.1 + 1), first));

    let before = coordinator(&cluster).await;
    hand_over(&cluster, TRANSACTIONS_STREAM, before, None).await;
    hand_over(&cluster, "t", leader(&cluster, 0).await, Some(0)).await;
    let (third, ongoing) = begin(&cluster).await;
    assert_eq!((third, ongoing), ((first.0, first.1 + 2), first));
    assert_ne!(coordinator(&cluster).await, before, "another coordinates");
    let fenced = ResponseError::ProducerFenced.code();
    for old in [first, second] {
        assert_eq!(end(&cluster, old).await, (fenced, (-1, -1)));
    }
    for partition in [0, 1] {
        stable_at(&cluster, partition, 0).await;
    }
    let next = (third.0, third.1 + 1);
    assert_eq!(end(&cluster, third).await, (0, next));
    for partition in [0, 1] {
        // The record, and the marker of its own epoch.
        stable_at(&cluster, partition, 2).await;
    }
    assert_eq!(join(&cluster, 0, next).await, 0);
    assert_eq!(end(&cluster, next).await, (0, (next.0, next.1 + 1)));
    stable_at(&cluster, 0, 4).await;
}
