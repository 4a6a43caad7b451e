//! Batches of transactions by hand.

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiKey, EndTxnRequest, EndTxnResponse,
    GroupId, InitProducerIdRequest, InitProducerIdResponse, OffsetFetchRequest,
    OffsetFetchResponse, ProduceResponse, ProducerId, TopicName, TransactionalId,
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::clock::now_ms;
use kera_protocol::batch::{Compression, ProducerStamp, mark_transactional};
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::v1;
use kera_streamlet::transactions::Grant;

use crate::common::{Client, World, batch};
use crate::producing::request;

pub fn id_of(id: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(id.to_owned()))
}

/// Clients send again what these answer.
pub fn again(code: i16) -> bool {
    let again = [
        ResponseError::NotEnoughReplicas,
        ResponseError::ConcurrentTransactions,
        ResponseError::CoordinatorLoadInProgress,
        ResponseError::CoordinatorNotAvailable,
        ResponseError::NotCoordinator,
    ];
    again.iter().any(|error| error.code() == code)
}

/// The producer id and epoch of a transactional id.
async fn init(client: &mut Client, id: &str) -> (i64, i16) {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id_of(id)))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    loop {
        let begun: InitProducerIdResponse = client.call(ApiKey::InitProducerId, 4, &request).await;
        if !again(begun.error_code) {
            assert_eq!(begun.error_code, 0);
            return (begun.producer_id.0, begun.producer_epoch);
        }
    }
}

/// Makes the partition part of a transaction.
async fn add(client: &mut Client, id: &str, (producer, epoch): (i64, i16)) {
    let topic = AddPartitionsToTxnTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partitions(vec![0]);
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id_of(id))
        .with_v3_and_below_producer_id(ProducerId(producer))
        .with_v3_and_below_producer_epoch(epoch)
        .with_v3_and_below_topics(vec![topic]);
    loop {
        let added: AddPartitionsToTxnResponse =
            client.call(ApiKey::AddPartitionsToTxn, 3, &request).await;
        let of_topic = &added.results_by_topic_v3_and_below[0];
        let code = of_topic.results_by_partition[0].partition_error_code;
        if !again(code) {
            assert_eq!(code, 0);
            return;
        }
    }
}

/// Sends a batch of one record until the answer is no wish to have it again.
async fn produce(client: &mut Client, id: &str, stamp: ProducerStamp) -> i16 {
    produce_by(client, 9, id, 0, stamp).await
}

/// As a client whose transactions are of version 2: nobody has added the partition.
pub async fn join(client: &mut Client, id: &str, partition: i32, stamp: ProducerStamp) -> i16 {
    produce_by(client, 12, id, partition, stamp).await
}

async fn produce_by(
    client: &mut Client,
    version: i16,
    id: &str,
    partition: i32,
    stamp: ProducerStamp,
) -> i16 {
    let mut records = batch("v", 1, Compression::None, stamp).to_vec();
    mark_transactional(&mut records);
    let request = request("t", -1, &[(partition, Bytes::from(records))]);
    let request = request.with_transactional_id(Some(id_of(id)));
    loop {
        let reply: ProduceResponse = client.call(ApiKey::Produce, version, &request).await;
        let code = reply.responses[0].partition_responses[0].error_code;
        if !again(code) {
            return code;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_guesses_a_producer_id_has_no_part_in_its_transaction() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let payments = init(&mut client, "payments").await;
    init(&mut client, "other").await;
    let stamp = |(producer_id, producer_epoch), base_sequence| ProducerStamp {
        producer_id,
        producer_epoch,
        base_sequence,
    };
    let not_given = ResponseError::InvalidProducerIdMapping.code();
    // No coordinator takes such an id, and none is asked.
    let long = "i".repeat(1025);
    let refused = ResponseError::InvalidRequest.code();
    assert_eq!(
        produce(&mut client, &long, stamp(payments, 0)).await,
        refused
    );
    // Before the broker has heard of the producer, and while its transaction is open.
    assert_eq!(
        produce(&mut client, "other", stamp(payments, 0)).await,
        not_given
    );
    add(&mut client, "payments", payments).await;
    assert_eq!(
        produce(&mut client, "payments", stamp(payments, 0)).await,
        0
    );
    assert_eq!(
        produce(&mut client, "other", stamp(payments, 1)).await,
        not_given
    );
    assert_eq!(
        produce(&mut client, "nobody", stamp(payments, 1)).await,
        not_given
    );
    assert_eq!(
        produce(&mut client, "payments", stamp(payments, 1)).await,
        0
    );
    // A producer is told that nothing of its own is open.
    let idle = init(&mut client, "idle").await;
    let not_open = ResponseError::InvalidTxnState.code();
    assert_eq!(produce(&mut client, "idle", stamp(idle, 0)).await, not_open);
}

pub fn stamp_of((producer_id, producer_epoch): (i64, i16), base_sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        producer_epoch,
        base_sequence,
    }
}

/// Ends a transaction by the newest version: the error, and what the producer has from then on.
pub async fn end(
    client: &mut Client,
    id: &str,
    (producer, epoch): (i64, i16),
    committed: bool,
) -> (i16, (i64, i16)) {
    let request = EndTxnRequest::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_committed(committed);
    let ended: EndTxnResponse = client.call(ApiKey::EndTxn, 5, &request).await;
    (
        ended.error_code,
        (ended.producer_id.0, ended.producer_epoch),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_join_their_transaction_and_each_end_gives_the_producer_another_epoch() {
    let world = World::start().await;
    world.topic("t", 3);
    let mut client = world.client().await;
    let fenced = ResponseError::InvalidProducerEpoch.code();
    let mut who = init(&mut client, "p").await;
    let mut before = None;
    for committed in [true, false, true] {
        // Of a transaction in which nothing was added, while the markers of the one before are written.
        for sequence in 0..2 {
            assert_eq!(join(&mut client, "p", 0, stamp_of(who, sequence)).await, 0);
        }
        if let Some(before) = before {
            // What comes late: where the new transaction is, where the one before was, and where none was ever.
            for (partition, sequence) in [(0, 2), (1, 1), (2, 0)] {
                let late = join(&mut client, "p", partition, stamp_of(before, sequence)).await;
                assert_eq!(late, fenced, "partition {partition}");
            }
        }
        assert_eq!(join(&mut client, "p", 1, stamp_of(who, 0)).await, 0);
        let next = (who.0, who.1 + 1);
        assert_eq!(end(&mut client, "p", who, committed).await, (0, next));
        // Its answer was lost.
        assert_eq!(end(&mut client, "p", who, committed).await, (0, next));
        let otherwise = end(&mut client, "p", who, !committed).await;
        let not_open = ResponseError::InvalidTxnState.code();
        assert_eq!(otherwise, (not_open, (-1, -1)));
        before = Some(who);
        who = next;
    }
    // Nothing of it was taken, and it is aborted all the same.
    let next = (who.0, who.1 + 1);
    loop {
        let ended = end(&mut client, "p", who, false).await;
        if !again(ended.0) {
            assert_eq!(ended, (0, next));
            break;
        }
    }
    // Another instance.
    let new = init(&mut client, "p").await;
    assert_eq!(new, (next.0, next.1 + 1));
    assert_eq!(join(&mut client, "p", 2, stamp_of(next, 0)).await, fenced);
    let ended = end(&mut client, "p", next, true).await;
    assert_eq!(ended, (ResponseError::ProducerFenced.code(), (-1, -1)));
    assert_eq!(join(&mut client, "p", 2, stamp_of(new, 0)).await, 0);
    // Nobody joins under another's id.
    let not_given = ResponseError::InvalidProducerIdMapping.code();
    let stranger = join(&mut client, "other", 0, stamp_of(new, 0)).await;
    assert_eq!(stranger, not_given);
}

/// Commits an offset with a transaction, without making the group part of it before.
async fn commit_offset(client: &mut Client, id: &str, who: (i64, i16), offset: i64) -> i16 {
    let partition = TxnOffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset);
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partitions(vec![partition]);
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(id_of(id))
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_producer_id(ProducerId(who.0))
        .with_producer_epoch(who.1)
        .with_generation_id(-1)
        .with_topics(vec![topic]);
    loop {
        let reply: TxnOffsetCommitResponse =
            client.call(ApiKey::TxnOffsetCommit, 5, &request).await;
        let code = reply.topics[0].partitions[0].error_code;
        if !again(code) {
            return code;
        }
    }
}

/// The committed offset, once no transaction is about to change it.
async fn committed(client: &mut Client) -> i64 {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_topics(Some(vec![topic]))
        .with_require_stable(true);
    loop {
        let reply: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 7, &request).await;
        let of = &reply.topics[0].partitions[0];
        if reply.error_code == 0 && of.error_code == 0 {
            return of.committed_offset;
        }
        assert!(
            again(reply.error_code) || of.error_code == ResponseError::UnstableOffsetCommit.code(),
            "{reply:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_join_their_transaction_as_well() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let mut who = init(&mut client, "p").await;
    for (offset, commits, counts) in [(5, true, 5), (7, false, 5), (9, true, 9)] {
        assert_eq!(commit_offset(&mut client, "p", who, offset).await, 0);
        let (code, next) = end(&mut client, "p", who, commits).await;
        assert_eq!(code, 0);
        assert_eq!(committed(&mut client).await, counts);
        let late = commit_offset(&mut client, "p", who, 100).await;
        assert_eq!(late, ResponseError::ProducerFenced.code());
        who = next;
    }
    assert_eq!(committed(&mut client).await, 9);
}

/// What a broker is told of several transactions: the code of each partition of topic `t`.
async fn add_batched(
    client: &mut Client,
    version: i16,
    verify_only: bool,
    asked: &[(&str, (i64, i16), &[i32])],
) -> Vec<Vec<i16>> {
    let transactions = asked.iter().map(|(id, (producer, epoch), partitions)| {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(TopicName(StrBytes::from_static_str("t")))
            .with_partitions(partitions.to_vec());
        AddPartitionsToTxnTransaction::default()
            .with_transactional_id(id_of(id))
            .with_producer_id(ProducerId(*producer))
            .with_producer_epoch(*epoch)
            .with_verify_only(verify_only)
            .with_topics(vec![topic])
    });
    let request = AddPartitionsToTxnRequest::default().with_transactions(transactions.collect());
    loop {
        let reply: AddPartitionsToTxnResponse = client
            .call(ApiKey::AddPartitionsToTxn, version, &request)
            .await;
        assert_eq!(reply.error_code, 0);
        let of = reply.results_by_transaction.iter().zip(asked);
        let codes: Vec<Vec<i16>> = of
            .map(|(of, (id, ..))| {
                assert_eq!(&of.transactional_id.0[..], *id);
                let partitions = of.topic_results[0].results_by_partition.iter();
                partitions.map(|one| one.partition_error_code).collect()
            })
            .collect();
        if !codes.iter().flatten().any(|code| again(*code)) {
            return codes;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_ask_about_several_transactions_at_once() {
    let world = World::start().await;
    world.topic("t", 3);
    let mut client = world.client().await;
    let one = init(&mut client, "one").await;
    let two = init(&mut client, "two").await;
    let abortable = ResponseError::TransactionAbortable.code();
    let not_open = ResponseError::InvalidTxnState.code();
    let stranger = ResponseError::InvalidProducerIdMapping.code();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let untried = ResponseError::OperationNotAttempted.code();
    for version in [4, 5] {
        let none = if version == 4 { not_open } else { abortable };
        let all: [(&str, (i64, i16), &[i32]); 3] = [
            ("one", one, &[0, 1]),
            ("two", two, &[2]),
            ("one", two, &[0]),
        ];
        // Looked at, and nothing is added by that.
        for _ in 0..2 {
            let told = add_batched(&mut client, version, true, &all).await;
            assert_eq!(told, [vec![none; 2], vec![none], vec![stranger]]);
        }
        let told = add_batched(&mut client, version, false, &all[..1]).await;
        assert_eq!(told, [[0, 0]]);
        let told = add_batched(&mut client, version, true, &all).await;
        assert_eq!(told, [vec![0; 2], vec![none], vec![stranger]]);
        let told = add_batched(&mut client, version, true, &[("one", one, &[1, 2])]).await;
        assert_eq!(told, [[0, none]]);
        // All of one transaction or nothing.
        for verify_only in [true, false] {
            let asked: [(&str, (i64, i16), &[i32]); 1] = [("two", two, &[2, 3, -1])];
            let told = add_batched(&mut client, version, verify_only, &asked).await;
            assert_eq!(told, [[untried, unknown, unknown]]);
        }
        let told = add_batched(&mut client, version, true, &[("two", two, &[2])]).await;
        assert_eq!(told, [[none]]);
        // The lane heard of it: a batch of a client that adds what it writes to is taken.
        let stamp = stamp_of(one, i32::from(version == 5));
        assert_eq!(produce(&mut client, "one", stamp).await, 0);
        end_by(&mut client, "one", one).await;
    }
    let fenced = ResponseError::ProducerFenced.code();
    init(&mut client, "one").await;
    let told = add_batched(&mut client, 5, true, &[("one", one, &[0])]).await;
    assert_eq!(told, [[fenced]]);
}

/// Commits as a client of version 1: the epoch stays.
async fn end_by(client: &mut Client, id: &str, (producer, epoch): (i64, i16)) {
    let request = EndTxnRequest::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_committed(true);
    loop {
        let ended: EndTxnResponse = client.call(ApiKey::EndTxn, 3, &request).await;
        if !again(ended.error_code) {
            return assert_eq!(ended.error_code, 0);
        }
    }
}

/// What a marker from outside does to partition `partition` of topic `t`.
async fn mark(client: &mut Client, (producer, epoch): (i64, i16), partition: i32) -> i16 {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partition_indexes(vec![partition, partition]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_transaction_result(true)
        .with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    loop {
        let reply: WriteTxnMarkersResponse =
            client.call(ApiKey::WriteTxnMarkers, 1, &request).await;
        assert_eq!(reply.markers[0].producer_id.0, producer);
        let of = &reply.markers[0].topics[0].partitions;
        assert_eq!(of.len(), 2);
        assert_eq!(of[0].error_code, of[1].error_code);
        if of[0].error_code != ResponseError::BrokerNotAvailable.code() {
            return of[0].error_code;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_from_outside_end_what_no_coordinator_knows_and_nothing_else() {
    let world = World::start().await;
    world.topic("t", 2);
    let mut client = world.client().await;
    let who = init(&mut client, "known").await;
    add(&mut client, "known", who).await;
    assert_eq!(produce(&mut client, "known", stamp_of(who, 0)).await, 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(mark(&mut client, who, 2).await, unknown);
    let known = ResponseError::InvalidTxnState.code();
    assert_eq!(mark(&mut client, who, 0).await, known);
    assert_eq!(mark(&mut client, who, 1).await, 0, "nothing is open there");

    // Nobody but the lane knows of it.
    let stream = world.broker.shared().data.catalog.named("t");
    let streamlet = stream.expect("a topic").streamlet(StreamletId(1));
    let streamlet = streamlet.expect("its partition");
    let lost = (1 << 40, 3);
    let grant = Grant {
        producer: lost.0,
        epoch: lost.1,
        number: 1,
    };
    assert!(streamlet.grant(LaneId(0), grant, 0, None, now_ms()));
    let shared = world.broker.shared();
    // As a broker that has heard of the producer takes it.
    let granted = v1::GrantTransactionRequest {
        transaction: Some(v1::ProducerTransaction {
            producer: lost.0,
            epoch: lost.1.into(),
            number: 1,
        }),
        transactional_id: "lost".into(),
        ..Default::default()
    };
    kera_broker::transactions::grant_here(shared, &granted).expect("it is heard");
    assert_eq!(
        produce_by(&mut client, 9, "lost", 1, stamp_of(lost, 0)).await,
        0
    );
    let open = || {
        streamlet
            .open_transactions(LaneId(0))
            .map(|open| open.len())
    };
    assert_eq!(open(), Some(1));
    let old = ResponseError::InvalidProducerEpoch.code();
    assert_eq!(mark(&mut client, (lost.0, 2), 1).await, old);
    assert_eq!(open(), Some(1));
    for _ in 0..2 {
        assert_eq!(mark(&mut client, lost, 1).await, 0);
        assert_eq!(open(), Some(0));
    }
}
