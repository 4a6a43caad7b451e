//! Markers that counted, and that a loss of power took: their transactions are open again, and end as was decided.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::CrashPlan;
use kera_log_segments::local_writer::sync_together;
use kera_streamlet::producers::SequenceError;
use kera_streamlet::transactions::{EndTransaction, Ended, TransactionError};
use kera_streamlet::{AppendError, LaneReadSpec, Located, Outcome};
use support::batches::ids_of;
use support::transactions::{end, end_of, grant, grant_of, transactional};
use support::{LANE, Machine, Node, settings};

/// What a native reader is given.
fn committed(node: &Node) -> Vec<u64> {
    let read = node.streamlet.read_committed(LaneReadSpec {
        lane: LANE,
        from: Located::default(),
        end_ordinal: u64::MAX,
        max_bytes: 1 << 20,
        cached_only: false,
    });
    let found = read.expect("a readable lane").only_committed();
    let ids = ids_of(&found.bufs.concat());
    ids.into_iter().map(|(_, id)| id).collect()
}

/// Commits a transaction, and says where its marker ends.
fn commit(node: &Node, producer: i64, number: u64) -> u64 {
    let request = end_of(producer, number, true);
    match node.streamlet.end_transaction(LANE, &request, node.now_ms) {
        Ok(Ended::Marked(marker)) => {
            assert_eq!(node.pump(&marker), Outcome::Durable);
            marker.next_ordinal
        }
        other => panic!("{other:?}"),
    }
}

/// Ends it again; whether a marker was appended.
fn end_again(node: &Node, request: &EndTransaction, before: u64) -> bool {
    let streamlet = &node.streamlet;
    match streamlet.end_again(LANE, request, before, node.now_ms) {
        Ok(Ended::Marked(marker)) => {
            assert_eq!(node.pump(&marker), Outcome::Durable);
            true
        }
        Ok(Ended::Nothing(head, until, _)) => {
            assert!(head.ordinal() >= until);
            false
        }
        other => panic!("{other:?}"),
    }
}

fn refused(node: &Node, mut batch: Vec<u8>) -> TransactionError {
    match node.place(0, &mut batch) {
        Err(AppendError::Sequence(SequenceError::Transaction(error))) => error,
        other => panic!("{other:?}"),
    }
}

fn open(node: &Node) -> Vec<(i64, i16, u64)> {
    let open = node.streamlet.open_transactions(LANE);
    open.expect("it is known")
}

/// A lane with record 0 of producer 7's first transaction, which was committed; power has taken its marker. And where that
/// ended.
fn after_a_lost_marker() -> (Node, u64) {
    for seed in 0..100 {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Written));
        assert!(grant(&node, 7, 1));
        node.append(0, &mut transactional(7, 0, 0, 0..1));
        sync_together(&node.streamlet.unflushed()).expect("a flush");
        let until = commit(&node, 7, 1);
        assert_eq!(committed(&node), vec![0]);
        assert_eq!(node.streamlet.settled(LANE), Some(1), "not the marker");
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let node = machine.recover(settings(AckPolicy::Written)).0;
        if open(&node) == [(7, 0, 0)] {
            return (node, until);
        }
        assert_eq!(open(&node), vec![], "seed {seed}");
    }
    panic!("no seed takes the marker");
}

#[test]
fn a_marker_that_power_took_is_written_again_and_decides_about_its_own_transaction_alone() {
    let (node, until) = after_a_lost_marker();
    assert_eq!(committed(&node), vec![]);

    // Whether a batch of the same epoch is of the open one is asked, and it is not; nor is one of the next epoch.
    let unverified = TransactionError::Unverified { producer: 7 };
    let next = transactional(7, 0, 1, 1..2);
    assert_eq!(refused(&node, next.clone()), unverified);
    let second = grant_of(7, 2);
    assert!(node.streamlet.grant(LANE, second, until, None, node.now_ms));
    assert_eq!(refused(&node, next.clone()), unverified);
    let raised = kera_streamlet::transactions::Grant {
        producer: 7,
        epoch: 1,
        number: 3,
    };
    assert!(node.streamlet.grant(LANE, raised, until, None, node.now_ms));
    assert_eq!(refused(&node, transactional(7, 1, 0, 1..2)), unverified);

    // Nor does the end of the next one, which the coordinator has decided already, decide about it.
    let mut aborted = end_of(7, 2, false);
    aborted.ended_before = until;
    let ended = node.streamlet.end_transaction(LANE, &aborted, node.now_ms);
    assert!(matches!(ended, Ok(Ended::NotYet)), "{ended:?}");
    assert_eq!(open(&node), [(7, 0, 0)]);

    assert!(end_again(&node, &end_of(7, 1, true), until));
    assert_eq!(committed(&node), vec![0]);
    let ended = node.streamlet.end_transaction(LANE, &aborted, node.now_ms);
    assert!(matches!(ended, Ok(Ended::Nothing(..))), "{ended:?}");
    assert!(!end_again(&node, &end_of(7, 1, true), until), "repeated");
    let end = node.streamlet.lane_end(LANE);
    assert!(node.streamlet.settled(LANE) < end);
    sync_together(&node.streamlet.unflushed()).expect("a flush");
    assert_eq!(node.streamlet.settled(LANE), end);
}

#[test]
fn a_later_transaction_is_not_ended_by_the_end_of_the_one_before() {
    let mut machine = Machine::fault(8);
    let node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    let until = commit(&node, 7, 1);
    assert!(grant(&node, 7, 2));
    node.append(0, &mut transactional(7, 0, 1, 1..2));
    // A new owner has no grants: nothing but where they began tells the two apart.
    assert!(node.streamlet.close_all(node.now_ms));
    machine.kill(node, 0);
    let node = machine.recover(settings(AckPolicy::Written)).0;
    let is_open = open(&node);
    assert_eq!(is_open, vec![(7, 0, until)]);
    assert!(!end_again(&node, &end_of(7, 1, true), until));
    assert_eq!(open(&node), is_open);
    // It goes on once its coordinator has said that it is the one.
    let more = transactional(7, 0, 2, 2..3);
    let unverified = TransactionError::Unverified { producer: 7 };
    assert_eq!(refused(&node, more.clone()), unverified);
    let second = grant_of(7, 2);
    assert!(node.streamlet.grant(LANE, second, until, None, node.now_ms));
    node.append(0, &mut more.clone());
    assert!(end(&node, 7, 2, false));
    assert_eq!(committed(&node), vec![0]);
}
