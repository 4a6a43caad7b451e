//! Transactions in a lane: what readers of what counts see, whichever way transactions, rolls, failures and restarts
//! fall together; and what a lane refuses so that no transaction is left that nobody ends.

mod support;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Fault;
use kera_protocol::batch::batches;
use kera_protocol::ids::Epoch;
use kera_streamlet::producers::SequenceError;
use kera_streamlet::transactions::{Committed, EndTransaction, Ended, Grant, TransactionError};
use kera_streamlet::{
    AppendError, CompactSpec, LaneReadError, LaneReadSpec, Located, Outcome, Streamlet,
};
use support::batches::{ids_of, plain, stamped};
use support::transactions::{end, end_of, grant, grant_of, keyed, keyed_as, transactional};
use support::{LANE, Machine, Node, settings};

fn refused(node: &Node, mut batch: Vec<u8>) -> TransactionError {
    match node.place(0, &mut batch) {
        Err(AppendError::Sequence(SequenceError::Transaction(error))) => error,
        other => panic!("{other:?}"),
    }
}

/// What a reader of what counts takes from an ordinal on, as Kafka's clients do: it drops the batches of a producer
/// from where one of its aborted transactions begins to the next marker. And the last stable ordinal.
fn read_committed(node: &Node, from: u64, max_bytes: usize) -> (Vec<u64>, u64) {
    let (mut taken, mut at) = (Vec::new(), from);
    loop {
        let read = node.streamlet.read_committed(LaneReadSpec {
            lane: LANE,
            from: Located {
                ordinal: at,
                at: None,
            },
            end_ordinal: u64::MAX,
            max_bytes,
            cached_only: false,
        });
        let read = read.expect("a readable lane");
        if read.found.batches == 0 {
            assert!(read.found.next.ordinal >= read.stable, "{read:?}");
            return (taken, read.stable);
        }
        let mut aborted: Vec<_> = read.aborted.iter().map(|e| (e.first, e.producer)).collect();
        aborted.sort_unstable();
        let mut dropping = HashSet::new();
        for batch in batches(&read.found.bufs.concat()) {
            let (header, bytes) = batch.expect("a whole batch");
            assert!(header.next_ordinal() <= read.stable);
            while aborted
                .first()
                .is_some_and(|(first, _)| *first < header.next_ordinal())
            {
                dropping.insert(aborted.remove(0).1);
            }
            if header.is_control() {
                dropping.remove(&header.producer_id);
            } else if !header.is_transactional() || !dropping.contains(&header.producer_id) {
                taken.extend(ids_of(bytes).into_iter().map(|(_, id)| id));
            }
        }
        at = read.found.next.ordinal;
    }
}

/// What a native reader is given: neither aborted batches nor markers.
fn read_native(node: &Node, max_bytes: usize) -> Vec<u64> {
    let (mut taken, mut at) = (Vec::new(), Located::default());
    loop {
        let read = node.streamlet.read_committed(LaneReadSpec {
            lane: LANE,
            from: at,
            end_ordinal: u64::MAX,
            max_bytes,
            cached_only: false,
        });
        let read = read.expect("a readable lane");
        let batches = read.found.batches;
        let found = read.only_committed();
        assert!(found.batches <= batches);
        let bytes = found.bufs.concat();
        assert_eq!(bytes.len(), found.bytes);
        taken.extend(ids_of(&bytes).into_iter().map(|(_, id)| id));
        if batches == 0 {
            return taken;
        }
        at = found.next;
    }
}

#[test]
fn what_is_open_is_not_shown_and_what_is_aborted_is_named() {
    let mut machine = Machine::fault(1);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..2, 50));
    assert!(grant(&node, 7, 1) && grant(&node, 8, 1));
    node.append(0, &mut transactional(7, 0, 0, 10..12));
    node.append(0, &mut plain(2..4, 50));
    node.append(0, &mut transactional(8, 0, 0, 20..22));
    assert_eq!(read_committed(&node, 0, 1 << 20), (vec![0, 1], 2));
    assert!(end(&node, 8, 1, false));
    assert_eq!(read_committed(&node, 0, 1 << 20).1, 2, "7's is older");
    assert!(end(&node, 7, 1, true));
    assert_eq!(
        read_committed(&node, 0, 1 << 20),
        (vec![0, 1, 10, 11, 2, 3], 10)
    );
    // From the middle of the aborted one, and behind its marker, after which 8 writes without a transaction.
    node.append(0, &mut stamped(8, 0, 2, 30..31, 50));
    for from in [6, 7, 8] {
        assert_eq!(read_committed(&node, from, 1).0, vec![30], "from {from}");
    }
    assert!(node.streamlet.open_transactions(LANE).unwrap().is_empty());
}

#[test]
fn compaction_keeps_the_newest_record_that_counts_and_stops_at_an_open_transaction() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Written));
    let close = || {
        assert!(node.streamlet.close_all(node.now_ms));
        assert!(node.work());
    };
    let compact = || {
        let done = node
            .streamlet
            .compact_lane(LANE, &compaction(node.now_ms), None, &mut |_| true);
        done.expect("a pass")
    };
    let append = |producer: i64, key: &str, id: u64| {
        assert!(grant(&node, producer, 1));
        node.append(0, &mut keyed(producer, key, id));
    };
    append(6, "a", 1);
    assert!(end(&node, 6, 1, true));
    // Aborted, by a marker in a later group.
    append(7, "a", 2);
    close();
    assert!(end(&node, 7, 1, false));
    append(8, "b", 3);
    assert!(end(&node, 8, 1, true));
    close();
    // Open: nobody knows whether it will count.
    append(9, "b", 4);
    append(10, "b", 5);
    assert!(end(&node, 10, 1, true));
    close();
    assert!(compact().is_some());
    assert_eq!(read_native(&node, 1 << 20), vec![1, 3]);
    assert!(end(&node, 9, 1, false));
    assert_eq!(read_native(&node, 1 << 20), vec![1, 3, 5]);
    close();
    assert!(compact().is_some());
    assert_eq!(read_native(&node, 1 << 20), vec![1, 5]);
    assert_eq!(read_committed(&node, 0, 1 << 20).0, vec![1, 5]);
}

fn compaction(now_ms: u64) -> CompactSpec {
    CompactSpec {
        now_ms: now_ms as i64,
        min_lag_ms: 0,
        max_lag_ms: 0,
        delete_retention_ms: 1000,
        quiet: std::time::Duration::ZERO,
        min_dirty_permille: 0,
        memory: 1 << 20,
        broken: None,
    }
}

/// A restarted broker's lane whose first group, of which nothing is in memory, has a record that was aborted, by a
/// marker there or in the next group, and one that counts (5) in the latter case. Another of each producer (10, 11)
/// follows: of the aborted one compaction leaves nothing.
fn aborted_group_and_next(machine: &mut Machine, marker_in_next: bool) -> Node {
    let node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut keyed(7, "a", 1));
    if marker_in_next {
        node.append(0, &mut keyed(-1, "c", 5));
    } else {
        assert!(end(&node, 7, 1, false));
    }
    assert!(node.streamlet.close_all(node.now_ms));
    assert!(node.work());
    drop(node);
    let node = machine.recover(settings(AckPolicy::Written)).0;
    if marker_in_next {
        assert!(end(&node, 7, 1, false));
    }
    node.append(0, &mut keyed(-1, "b", 10));
    assert!(grant(&node, 7, 2));
    node.append(0, &mut keyed_as(7, 1, "d", 11));
    assert!(end(&node, 7, 2, true));
    node
}

fn from(ordinal: u64) -> LaneReadSpec {
    LaneReadSpec {
        lane: LANE,
        from: Located { ordinal, at: None },
        end_ordinal: u64::MAX,
        max_bytes: 1 << 20,
        cached_only: false,
    }
}

/// Reads what is committed from the start, and does something before one of the reads of the disk that this takes:
/// each in turn. How many of them there were.
fn at_each_read(
    marker_in_next: bool,
    then: impl Fn(&Arc<Streamlet>) + Copy + Send + 'static,
    look: impl Fn(&Node, Result<Committed, LaneReadError>),
) -> u64 {
    for reads in 0.. {
        let mut machine = Machine::fault(13 + reads);
        let node = aborted_group_and_next(&mut machine, marker_in_next);
        let (streamlet, done) = (node.streamlet.clone(), Arc::new(AtomicBool::new(false)));
        let is_done = done.clone();
        let fault = machine.fault.as_ref().expect("the fault engine");
        fault.before_read(reads, move || {
            then(&streamlet);
            done.store(true, Ordering::Relaxed);
        });
        let read = node.streamlet.read_committed(from(0));
        if !is_done.load(Ordering::Relaxed) {
            return reads;
        }
        look(&node, read);
    }
    unreachable!("a read of the disk follows each")
}

/// A trim takes the group away while a reader waits for its bytes, and with it the marker that says what was aborted.
#[test]
fn what_was_aborted_is_not_shown_where_a_trim_takes_its_group_away_meanwhile() {
    let trim = |streamlet: &Arc<Streamlet>| {
        streamlet.trim(LANE, 2).expect("a trim");
    };
    let reads = at_each_read(false, trim, |node, read| {
        let shown = read.map(|read| ids_of(&read.only_committed().bufs.concat()));
        let is_out = matches!(shown, Err(LaneReadError::OutOfRange { log_start: 2, .. }));
        assert!(
            is_out || shown.as_ref().is_ok_and(Vec::is_empty),
            "{shown:?}"
        );
        assert_eq!(read_committed(node, 2, 1 << 20).0, vec![10, 11]);
    });
    assert!(reads > 1, "{reads}");
}

/// The same where a compaction leaves out what was aborted, while a reader has the file as it was before.
#[test]
fn what_was_aborted_is_not_shown_where_a_compaction_rewrites_its_group_meanwhile() {
    let compact = |streamlet: &Arc<Streamlet>| {
        let spec = compaction(u64::MAX >> 1);
        let pass = streamlet.compact_lane(LANE, &spec, None, &mut |_| true);
        assert!(pass.expect("a pass").is_some());
    };
    let reads = at_each_read(true, compact, |node, read| {
        let found = read.expect("a readable lane").only_committed();
        let shown = ids_of(&found.bufs.concat());
        assert!(shown.iter().all(|(_, id)| *id == 5), "{shown:?}");
        assert_eq!(read_native(node, 1 << 20), vec![5, 10, 11]);
    });
    assert!(reads > 1, "{reads}");
}

#[test]
fn many_that_were_committed_are_not_looked_up_with_each_read() {
    let mut machine = Machine::fault(6);
    machine.limits.max_known_ends = 100;
    let node = machine.create(settings(AckPolicy::Written));
    let mut expected = Vec::new();
    // One is committed in the next group, and one is aborted.
    for (group, over) in [(0, 7), (1, 8)] {
        for n in 0..150 {
            let id = group * 150 + n;
            assert!(grant(&node, 1, id + 1));
            node.append(0, &mut transactional(1, 0, id as i32, id..id + 1));
            assert!(end(&node, 1, id + 1, true));
            expected.push(id);
            if n == 75 {
                assert!(grant(&node, over, 1));
                let other = 10_000 + over as u64;
                node.append(0, &mut transactional(over, 0, 0, other..other + 1));
            }
        }
        assert!(node.streamlet.close_all(node.now_ms));
        assert!(node.work());
    }
    assert!(end(&node, 7, 1, true) && end(&node, 8, 1, false));
    expected.insert(76, 10_007);
    assert_eq!(read_committed(&node, 0, 1 << 20).0, expected);
    assert_eq!(read_native(&node, 500), expected);
    // All of it is in memory, and so is what readers must know of it.
    for from in [0, 10, 300, 310, 0] {
        let read = node.streamlet.read_committed(LaneReadSpec {
            lane: LANE,
            from: Located {
                ordinal: from,
                at: None,
            },
            end_ordinal: u64::MAX,
            max_bytes: 500,
            cached_only: true,
        });
        assert!(read.is_ok(), "from {from}: {read:?}");
    }
}

#[test]
fn no_transaction_begins_that_its_coordinator_does_not_end() {
    let mut machine = Machine::fault(2);
    let node = machine.create(settings(AckPolicy::Written));
    let first = transactional(7, 0, 0, 0..1);
    let unverified = TransactionError::Unverified { producer: 7 };
    assert_eq!(refused(&node, first.clone()), unverified);
    // The coordinator knows of none; it is asked again after a while.
    node.streamlet.refuse_transaction(LANE, 7, 0, node.now_ms);
    let not_open = TransactionError::NotOpen { producer: 7 };
    assert_eq!(refused(&node, first.clone()), not_open);
    assert!(grant(&node, 7, 3));
    node.streamlet.refuse_transaction(LANE, 7, 0, node.now_ms);
    node.append(0, &mut first.clone());
    assert!(node.append(0, &mut first.clone()).duplicate);
    // Another epoch, or no transaction, while it is open.
    assert_eq!(refused(&node, transactional(7, 1, 0, 9..10)), unverified);
    let open = TransactionError::Open { producer: 7 };
    assert_eq!(refused(&node, stamped(7, 0, 1, 9..10, 20)), open);
    assert!(end(&node, 7, 3, true));
    // A retry of what has its place is one, also after the end.
    assert!(node.append(0, &mut first.clone()).duplicate);
    // What comes late belongs to no transaction, and a grant that comes late opens none.
    let late = transactional(7, 0, 1, 1..2);
    assert_eq!(refused(&node, late.clone()), unverified);
    assert!(!grant(&node, 7, 3), "it has ended");
    assert_eq!(refused(&node, late.clone()), unverified);
    // Nor where no batch came before the end.
    assert!(grant(&node, 7, 4) && !end(&node, 7, 4, false));
    assert!(!grant(&node, 7, 4));
    assert_eq!(refused(&node, late.clone()), unverified);
    // Nor after the coordinator was asked in between and said that none is open.
    node.streamlet.refuse_transaction(LANE, 7, 0, node.now_ms);
    assert!(
        !grant(&node, 7, 4),
        "it has ended, and was asked about since"
    );
    assert_eq!(refused(&node, late), not_open);
    // Nor one that was asked for before the lane was put in order.
    let head = node.streamlet.head(LANE).unwrap();
    let asked = Some(head.failures() + 1);
    assert!(
        !node
            .streamlet
            .grant(LANE, grant_of(7, 5), 0, asked, node.now_ms)
    );
}

#[test]
fn a_marker_that_is_late_or_repeated_ends_nothing() {
    let mut machine = Machine::fault(3);
    let node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    assert!(end(&node, 7, 1, true));
    assert!(!end(&node, 7, 1, true), "it was appended");
    assert!(grant(&node, 7, 2));
    node.append(0, &mut transactional(7, 0, 1, 1..2));
    for commit in [true, false] {
        assert!(!end(&node, 7, 1, commit), "the transaction before");
    }
    let elsewhere = EndTransaction {
        owner_epoch: Some(Epoch(9)),
        ..end_of(7, 2, false)
    };
    let refused = node
        .streamlet
        .end_transaction(LANE, &elsewhere, node.now_ms);
    assert!(matches!(refused, Err(AppendError::NotOwner)), "{refused:?}");
    assert_eq!(read_committed(&node, 0, 1 << 20), (vec![0], 2));
    // As sent to this owner it counts, and raises the epoch.
    let here = EndTransaction {
        owner_epoch: Some(node.streamlet.epoch()),
        epoch_after: 1,
        ..end_of(7, 2, false)
    };
    let ended = node.streamlet.end_transaction(LANE, &here, node.now_ms);
    let Ok(Ended::Marked(appended)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(node.pump(&appended), Outcome::Durable);
    let mut fenced = transactional(7, 0, 2, 2..3);
    let fenced = node.place(0, &mut fenced);
    assert!(
        matches!(
            fenced,
            Err(AppendError::Sequence(SequenceError::Fenced { .. }))
        ),
        "{fenced:?}"
    );
}

/// Each end gives another epoch. A lane that has lost a marker goes on with the producer's next transaction, and an end
/// that comes late does not end that one.
#[test]
fn a_lane_that_lost_a_marker_takes_the_next_epoch_once_it_is_written_again() {
    let mut machine = Machine::fault(8);
    let mut node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    let next = transactional(7, 1, 0, 1..2);
    let unverified = TransactionError::Unverified { producer: 7 };
    assert_eq!(refused(&node, next.clone()), unverified);
    // Its coordinator has ended the first, and begun another: the marker was there.
    let second = Grant {
        epoch: 1,
        ..grant_of(7, 2)
    };
    assert!(node.streamlet.grant(LANE, second, 0, None, node.now_ms));
    assert_eq!(refused(&node, next.clone()), unverified);
    let again = node
        .streamlet
        .end_again(LANE, &end_of(7, 1, true), 2, node.now_ms);
    let Ok(Ended::Marked(appended)) = again else {
        panic!("{again:?}")
    };
    assert_eq!(node.pump(&appended), Outcome::Durable);
    node.append(0, &mut next.clone());
    assert_eq!(read_committed(&node, 0, 1 << 20), (vec![0], 2));
    // It forgets which transactions ended.
    assert!(node.streamlet.close_all(node.now_ms));
    machine.now_ms = node.now_ms;
    machine.kill(node, usize::MAX);
    (node, _) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(
        node.streamlet.open_transactions(LANE),
        Some(vec![(7, 1, 2)])
    );
    let ends = |number, epoch| EndTransaction {
        grant: Grant {
            epoch,
            ..grant_of(7, number)
        },
        epoch_after: epoch + 1,
        ..end_of(7, number, true)
    };
    let late = node
        .streamlet
        .end_transaction(LANE, &ends(1, 0), node.now_ms);
    assert!(matches!(late, Ok(Ended::Nothing(..))), "{late:?}");
    let ended = node
        .streamlet
        .end_transaction(LANE, &ends(2, 1), node.now_ms);
    let Ok(Ended::Marked(appended)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(node.pump(&appended), Outcome::Durable);
    assert_eq!(read_committed(&node, 0, 1 << 20).0, vec![0, 1]);
}

#[test]
fn nothing_forgets_an_open_transaction() {
    let mut machine = Machine::fault(4);
    machine.limits.producer_expiry_ms = 1_000;
    machine.limits.max_producers = 2;
    let mut node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    node.now_ms += 100_000;
    node.append(0, &mut stamped(8, 0, 0, 10..11, 20));
    node.now_ms += 100_000;
    // Makes room for itself by forgetting the silent.
    node.append(0, &mut stamped(9, 0, 0, 20..21, 20));
    assert!(node.streamlet.close_all(node.now_ms));
    machine.now_ms = node.now_ms + 100_000;
    machine.kill(node, usize::MAX);
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(
        node.streamlet.open_transactions(LANE),
        Some(vec![(7, 0, 0)])
    );
    assert_eq!(read_committed(&node, 0, 1 << 20), (Vec::new(), 0));
    assert!(end(&node, 7, 1, true));
    assert_eq!(read_committed(&node, 0, 1 << 20).0, vec![0, 10, 20]);
}

#[test]
fn nothing_of_an_open_transaction_is_trimmed() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..3, 20));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 10..11));
    node.append(0, &mut plain(3..6, 20));
    assert!(node.streamlet.close_all(node.now_ms));
    node.append(0, &mut plain(6..9, 20));
    let trimmed = node.streamlet.trim(LANE, u64::MAX).expect("it is recorded");
    assert_eq!((trimmed.log_start, trimmed.groups), (3, 0));
    assert!(end(&node, 7, 1, true));
    assert_eq!(
        read_committed(&node, 3, 1 << 20).0,
        [10, 3, 4, 5, 6, 7, 8].to_vec()
    );
    let trimmed = node.streamlet.trim(LANE, u64::MAX).expect("it is recorded");
    assert_eq!((trimmed.log_start, trimmed.groups), (11, 1));
}

#[test]
fn a_lane_takes_as_many_open_transactions_as_its_snapshot_has_room_for() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Written));
    // A quarter of a segment of 64 KiB.
    let room = 16 * 1024 / 128;
    for producer in 0..room {
        assert!(grant(&node, producer, 1));
        let id = producer as u64;
        node.append(0, &mut transactional(producer, 0, 0, id..id + 1));
    }
    assert!(grant(&node, room, 1));
    assert!(matches!(
        refused(&node, transactional(room, 0, 0, 0..1)),
        TransactionError::TooManyOpen { limit, .. } if limit == room as usize
    ));
    assert!(node.streamlet.close_all(node.now_ms));
    machine.kill(node, usize::MAX);
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    let open = node.streamlet.open_transactions(LANE).unwrap();
    assert_eq!(open.len(), room as usize);
}

#[test]
fn a_marker_whose_write_fails_is_sent_again() {
    let mut machine = Machine::fault(6);
    let node = machine.create(settings(AckPolicy::Written));
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    let fault = machine.fault.as_ref().expect("a fault engine");
    fault.inject(Fault::FailWrite { nth: 1 });
    let ended = node
        .streamlet
        .end_transaction(LANE, &end_of(7, 1, false), node.now_ms);
    let Ok(Ended::Marked(appended)) = ended else {
        panic!("{ended:?}")
    };
    // Who asks again meanwhile waits for the same head, and hears that it failed, whatever it comes to afterwards.
    let again = node
        .streamlet
        .end_transaction(LANE, &end_of(7, 1, false), node.now_ms);
    let Ok(Ended::Nothing(head, 2, failures)) = again else {
        panic!("{again:?}")
    };
    assert_eq!(head.failures(), failures);
    node.pump(&appended);
    node.streamlet.write_out();
    assert!(node.work());
    assert_eq!(appended.outcome(), Outcome::Lost);
    assert_ne!(head.failures(), failures);
    assert_eq!(read_committed(&node, 0, 1 << 20), (Vec::new(), 0));
    assert!(end(&node, 7, 1, false));
    assert_eq!(read_committed(&node, 0, 1 << 20), (Vec::new(), 2));
}

/// Where acknowledgements take long and others go on appending, a repeat that waited for what is in the lane by then would
/// never be done.
#[test]
fn an_end_that_is_asked_for_again_waits_for_itself_alone() {
    let mut machine = Machine::fault(9);
    let node = machine.create(settings(AckPolicy::Written));
    let until = |producer| {
        let end = end_of(producer, 1, true);
        match node.streamlet.end_transaction(LANE, &end, node.now_ms) {
            Ok(Ended::Marked(appended)) => appended.next_ordinal,
            Ok(Ended::Nothing(_, until, _)) => until,
            other => panic!("{other:?}"),
        }
    };
    assert!(grant(&node, 7, 1));
    node.append(0, &mut transactional(7, 0, 0, 0..1));
    // A marker, and the end of a transaction without batches here.
    let first = [until(7), until(8)];
    assert_eq!(first, [2, 2]);
    // Nobody has written it yet: somebody else's.
    node.place(0, &mut plain(5..6, 100)).expect("there is room");
    assert_eq!([until(7), until(8)], first);
}

/// What a lane was told, record by record.
#[derive(Default)]
struct Model {
    /// Id of a record, and producer and number of its transaction.
    records: Vec<(u64, Option<(i64, u64)>)>,
    /// Whether it was committed, of those that ended.
    ended: BTreeMap<(i64, u64), bool>,
}

impl Model {
    /// What a reader of what counts sees.
    fn committed(&self) -> Vec<u64> {
        let mut seen = Vec::new();
        for (id, transaction) in &self.records {
            match transaction.map(|transaction| self.ended.get(&transaction)) {
                None | Some(Some(true)) => seen.push(*id),
                Some(Some(false)) => {}
                Some(None) => break,
            }
        }
        seen
    }
}

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn whatever_falls_together_readers_see_what_counts() {
    for seed in 1..=60_u64 {
        let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut machine = Machine::fault(seed);
        let mut node = machine.create(settings(AckPolicy::Written));
        let mut model = Model::default();
        // Per producer: its number, whether it is open, the next sequence.
        let mut producers = [(1_u64, false, 0_i32); 4];
        let mut ended = 0;
        for step in 0..120_u64 {
            let p = (next(&mut dice) % 4) as usize;
            let producer = p as i64 + 10;
            let id = seed * 1_000_000 + step * 10;
            let (number, is_open, sequence) = producers[p];
            match next(&mut dice) % 20 {
                0..=9 => {
                    if !is_open || next(&mut dice).is_multiple_of(4) {
                        // To grant again what is open changes nothing.
                        grant(&node, producer, number);
                    }
                    let count = 1 + next(&mut dice) % 3;
                    let batch = transactional(producer, 0, sequence, id..id + count);
                    let mut placed = node.place(0, &mut batch.clone());
                    if let Err(AppendError::Sequence(SequenceError::Transaction(error))) = &placed {
                        // A new owner asks.
                        let unverified = TransactionError::Unverified { producer };
                        assert_eq!((is_open, *error), (true, unverified), "seed {seed}");
                        assert!(grant(&node, producer, number), "seed {seed}");
                        placed = node.place(0, &mut { batch });
                    }
                    let appended = placed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    node.pump(&appended);
                    for id in id..id + count {
                        model.records.push((id, Some((producer, number))));
                    }
                    producers[p] = (number, true, sequence + count as i32);
                }
                10..=12 => {
                    node.append(0, &mut plain(id..id + 2, 3000));
                    model.records.extend([(id, None), (id + 1, None)]);
                }
                13..=16 if is_open => {
                    let commit = next(&mut dice).is_multiple_of(2);
                    assert!(end(&node, producer, number, commit), "seed {seed}");
                    if next(&mut dice).is_multiple_of(3) {
                        assert!(!end(&node, producer, number, commit), "seed {seed}");
                    }
                    model.ended.insert((producer, number), commit);
                    producers[p] = (number + 1, false, sequence);
                    ended += 1;
                }
                17 => {
                    node.streamlet.close_all(node.now_ms);
                }
                18 => {
                    node.work();
                }
                19 => {
                    machine.kill(node, usize::MAX);
                    node = machine.recover(settings(AckPolicy::Written)).0;
                }
                _ => {}
            }
            let max_bytes = 1 + (next(&mut dice) % 40_000) as usize;
            let (seen, stable) = read_committed(&node, 0, max_bytes);
            assert_eq!(seen, model.committed(), "seed {seed}, step {step}");
            assert_eq!(
                read_native(&node, max_bytes),
                seen,
                "seed {seed}, step {step}"
            );
            if producers.iter().all(|(_, open, _)| !open) {
                assert_eq!(stable, node.head(LANE), "seed {seed}: none is open");
            }
            let from = next(&mut dice) % (stable + 1);
            let (part, _) = read_committed(&node, from, max_bytes);
            assert!(
                seen.ends_with(&part) || part.ends_with(&seen),
                "seed {seed}, step {step}: from {from}"
            );
        }
        assert!(ended > 5, "seed {seed} ended {ended} transactions");
    }
}
