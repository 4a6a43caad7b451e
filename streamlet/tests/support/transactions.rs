//! Transactions of producers, without a coordinator.

use kera_protocol::batch::{
    BatchBuilder, Compression, NewRecord, ProducerStamp, mark_transactional,
};
use kera_streamlet::Outcome;
use kera_streamlet::transactions::{EndTransaction, Ended, Grant};

use super::batches::stamped;
use super::{LANE, Node};

/// A batch of a transaction.
pub fn transactional(
    producer: i64,
    epoch: i16,
    sequence: i32,
    ids: std::ops::Range<u64>,
) -> Vec<u8> {
    let mut batch = stamped(producer, epoch, sequence, ids, 100);
    mark_transactional(&mut batch);
    batch
}

/// The first instance's transaction of a number.
pub fn grant_of(producer: i64, number: u64) -> Grant {
    Grant {
        producer,
        epoch: 0,
        number,
    }
}

/// Takes batches of it from now on, if it may.
pub fn grant(node: &Node, producer: i64, number: u64) -> bool {
    node.streamlet
        .grant(LANE, grant_of(producer, number), 0, None, node.now_ms)
}

/// The request to end it.
pub fn end_of(producer: i64, number: u64, commit: bool) -> EndTransaction {
    EndTransaction {
        grant: grant_of(producer, number),
        epoch_after: 0,
        commit,
        coordinator_epoch: 1,
        ended_before: 0,
        owner_epoch: None,
    }
}

/// Ends a transaction, and waits until that is durable. Whether a marker was appended.
pub fn end(node: &Node, producer: i64, number: u64, commit: bool) -> bool {
    let end = end_of(producer, number, commit);
    match node.streamlet.end_transaction(LANE, &end, node.now_ms) {
        Ok(Ended::Marked(appended)) => {
            assert_eq!(node.pump(&appended), Outcome::Durable);
            true
        }
        Ok(Ended::Nothing(head, ordinal, _)) => {
            assert!(head.ordinal() >= ordinal);
            false
        }
        other => panic!("{other:?}"),
    }
}

/// A batch of a transaction with one record of a key.
pub fn keyed(producer: i64, key: &str, id: u64) -> Vec<u8> {
    keyed_as(producer, 0, key, id)
}

/// The same, with a sequence number.
pub fn keyed_as(producer: i64, sequence: i32, key: &str, id: u64) -> Vec<u8> {
    keyed_of(producer, sequence, key, &id.to_le_bytes())
}

/// The same, with any value.
pub fn keyed_of(producer: i64, sequence: i32, key: &str, value: &[u8]) -> Vec<u8> {
    let stamp = ProducerStamp {
        producer_id: producer,
        producer_epoch: 0,
        base_sequence: sequence,
    };
    let record = NewRecord {
        key: Some(key.as_bytes()),
        value: Some(value),
        ..NewRecord::default()
    };
    let mut builder = BatchBuilder::new();
    builder.push(&record).expect("room");
    let batch = builder.finish(Compression::None, stamp).expect("a record");
    let mut batch = batch.to_vec();
    if producer >= 0 {
        mark_transactional(&mut batch);
    }
    batch
}
