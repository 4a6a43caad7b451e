//! Batches of transactions by hand.

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiKey, InitProducerIdRequest,
    InitProducerIdResponse, ProduceResponse, ProducerId, TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kera_protocol::batch::{Compression, ProducerStamp, mark_transactional};

use crate::common::{Client, World, batch};
use crate::producing::request;

fn id_of(id: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(id.to_owned()))
}

/// Clients send again what these answer.
fn again(code: i16) -> bool {
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
    let mut records = batch("v", 1, Compression::None, stamp).to_vec();
    mark_transactional(&mut records);
    let request = request("t", -1, &[(0, Bytes::from(records))]);
    let request = request.with_transactional_id(Some(id_of(id)));
    loop {
        let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
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
