//! Idempotent producers: retries are recognised wherever the lane has gone meanwhile, gaps are
//! refused, and what is remembered is bounded.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_log_segments::group::AckPolicy;
use kera_protocol::ids::{ANY_LANE, Epoch, GroupId, LaneId, StreamletId, StreamletKey};
use kera_records::Write;
use kera_streamlet::producers::SequenceError;
use kera_streamlet::{AppendError, Outcome, Settings};
use support::batches::{plain, stamped};
use support::{LANE, Machine, settings};

fn by_producer(lanes: u32) -> Settings {
    Settings {
        lanes,
        lane_by_key: false,
        ..settings(AckPolicy::Written)
    }
}

#[test]
fn a_retry_is_recognised_across_rolls_closings_and_restarts() {
    let mut machine = Machine::fault(1);
    let mut node = machine.create(settings(AckPolicy::Written));
    let mut batch = stamped(7, 0, 0, 0..3, 100);
    let first = node.append(0, &mut batch.clone());
    for life in 0..4 {
        let again = node.append(0, &mut batch);
        assert!(
            again.duplicate && again.base_ordinal == first.base_ordinal,
            "life {life}"
        );
        match life {
            // A roll by age, a clean stop, a kill.
            0 => assert_eq!(node.streamlet.age_out(node.now_ms), 0, "no limit is set"),
            1 => assert!(node.streamlet.close_all(node.now_ms)),
            _ => {
                machine.kill(node, 0);
                node = machine.recover(settings(AckPolicy::Written)).0;
            }
        }
    }
    assert_eq!(node.read_all(LANE).len(), 3);
    assert_eq!(
        node.append(0, &mut stamped(7, 0, 3, 3..4, 100))
            .base_ordinal,
        3
    );
}

#[test]
fn a_retry_is_recognised_although_batches_of_its_size_are_refused_by_now() {
    let mut machine = Machine::fault(9);
    let wide = settings(AckPolicy::Written);
    let node = machine.create(wide.clone());
    let mut batch = stamped(7, 0, 0, 0..3, 500);
    let first = node.append(0, &mut batch.clone());
    // The lane has no open group, then one.
    machine.kill(node, 0);
    let (node, _) = machine.recover(Settings {
        max_batch_bytes: 300,
        ..wide
    });
    for _ in 0..2 {
        let fresh = node.place(0, &mut stamped(7, 0, 3, 3..6, 500));
        let refused = matches!(fresh, Err(AppendError::TooLarge { limit: 300, .. }));
        assert!(refused, "{fresh:?}");
        let again = node.append(0, &mut batch);
        assert!(again.duplicate && again.base_ordinal == first.base_ordinal);
    }
    assert_eq!(node.read_all(LANE).len(), 3);
}

#[test]
fn a_duplicate_waits_for_the_original() {
    let mut machine = Machine::fault(2);
    let node = machine.create(settings(AckPolicy::Written));
    let mut batch = stamped(7, 0, 0, 0..3, 100);
    let original = node.place(0, &mut batch).expect("a place");
    let again = node.place(0, &mut batch).expect("a duplicate");
    assert!(again.duplicate);
    assert_eq!(
        (original.outcome(), again.outcome()),
        (Outcome::Pending, Outcome::Pending)
    );
    assert_eq!(
        node.pump(&again),
        Outcome::Durable,
        "the duplicate's sender pumps as well"
    );
    assert_eq!(original.outcome(), Outcome::Durable);
}

#[test]
fn gaps_old_instances_and_the_forgotten_are_refused() {
    let mut machine = Machine::fault(3);
    machine.limits.max_producers = 4;
    machine.limits.producer_expiry_ms = 5000;
    let mut node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut stamped(1, 1, 0, 0..3, 10));
    let refused = |node: &support::Node, batch: Vec<u8>| match node.place(0, &mut { batch }) {
        Err(AppendError::Sequence(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        refused(&node, stamped(1, 1, 5, 5..6, 10)),
        SequenceError::Gap {
            expected: 3,
            found: 5,
            ..
        }
    ));
    assert!(matches!(
        refused(&node, stamped(1, 0, 0, 5..6, 10)),
        SequenceError::Fenced { .. }
    ));
    for other in 2..5 {
        node.now_ms += 1;
        node.append(0, &mut stamped(other, 0, 0, 100..101, 10));
    }
    // None of the four is forgotten for a fifth: its retry would be stored twice.
    assert!(matches!(
        refused(&node, stamped(5, 0, 0, 101..102, 10)),
        SequenceError::TooMany { limit: 4, .. }
    ));
    assert!(
        node.append(0, &mut stamped(1, 1, 0, 0..3, 10)).duplicate,
        "a retry is one"
    );
    // After the time of forgetting it makes room.
    node.now_ms += 4998;
    assert!(
        !node
            .append(0, &mut stamped(5, 0, 0, 101..102, 10))
            .duplicate
    );
    assert!(
        matches!(
            refused(&node, stamped(1, 1, 3, 5..6, 10)),
            SequenceError::Unknown { .. }
        ),
        "forgotten, and not taken for a new one"
    );
    assert!(
        !node
            .append(0, &mut stamped(5, 0, 1, 101..102, 10))
            .duplicate
    );
    // Silence forgets as well, at the next roll.
    node.now_ms += 10_000;
    assert!(node.streamlet.close_all(node.now_ms));
    assert!(matches!(
        refused(&node, stamped(5, 0, 2, 102..103, 10)),
        SequenceError::Unknown { .. }
    ));
}

#[test]
fn a_producer_keeps_its_lane_over_growth_and_restart() {
    let mut machine = Machine::fault(4);
    let node = machine.create(by_producer(2));
    for producer in 0..4i64 {
        let placed = node.append_any(&mut stamped(producer, 0, 0, 0..1, 10));
        assert_eq!(i64::from(placed.lane.0), producer % 2);
    }
    let cuts = node.streamlet.cut_lanes().expect("cuts");
    // By producer, growing stops nobody.
    assert_eq!(node.append_any(&mut stamped(3, 0, 1, 1..2, 10)).lane.0, 1);
    assert!(node.streamlet.growth_settled(&cuts));
    node.finish_growth(3, 2);
    assert_eq!(
        node.append_any(&mut stamped(3, 0, 2, 2..3, 10)).lane.0,
        1,
        "pinned"
    );
    assert_eq!(
        node.append_any(&mut stamped(5, 0, 0, 0..1, 10)).lane.0,
        2,
        "the new lane takes new ones"
    );
    assert_eq!(
        node.append_any(&mut stamped(3, 1, 0, 9..10, 10)).lane.0,
        0,
        "as a new instance does"
    );
    machine.kill(node, 0);
    let (node, _) = machine.recover(Settings {
        lane_generation: 2,
        ..by_producer(3)
    });
    assert_eq!(
        node.append_any(&mut stamped(3, 1, 1, 10..11, 10)).lane.0,
        0,
        "pinned still"
    );
    assert_eq!(node.append_any(&mut stamped(2, 0, 1, 5..6, 10)).lane.0, 0);
    assert_eq!(node.append_any(&mut stamped(1, 0, 1, 5..6, 10)).lane.0, 1);
}

/// It was cut before, and its end is heard while the same broker takes the streamlet again.
#[test]
fn lanes_of_a_growth_that_is_heard_during_a_take_over_are_there() {
    let mut machine = Machine::fault(6);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..2, 10));
    assert!(node.streamlet.close_all(node.now_ms));
    assert!(node.work());
    let (streamlet, heard) = (node.streamlet.clone(), Arc::new(AtomicBool::new(false)));
    let is_heard = heard.clone();
    let fault = machine.fault.as_ref().expect("a fault engine");
    fault.before_read(0, move || {
        let grown = Settings {
            lanes: 3,
            lane_generation: 2,
            ..(*streamlet.settings()).clone()
        };
        streamlet.finish_growth(&grown);
        heard.store(true, Ordering::Relaxed);
    });
    let next = Epoch(node.streamlet.epoch().0 + 1);
    let records = machine.store.lanes();
    let taken = node
        .streamlet
        .take_over(next, GroupId(2), records, node.now_ms);
    taken.expect("a take-over");
    assert!(is_heard.load(Ordering::Relaxed));
    for lane in 0..3 {
        node.append(lane, &mut plain(2..4, 10));
    }
    assert_eq!(node.read_all(LaneId(2)), [(0, 2), (1, 3)]);
}

#[test]
fn growth_refuses_the_old_split_but_not_its_retries() {
    let mut machine = Machine::fault(5);
    let node = machine.create(Settings {
        lanes: 2,
        ..settings(AckPolicy::Written)
    });
    let mut stored = stamped(1, 0, 0, 0..2, 10);
    let placed = node.place_as(0, Some(1), &mut stored).expect("a place");
    let mut late = stamped(1, 0, 2, 2..3, 10);
    let mut later = stamped(1, 0, 3, 3..4, 10);

    let cuts = node.streamlet.cut_lanes().expect("cuts");
    assert_eq!(cuts[0].ordinal, 2);
    assert!(node.streamlet.cut_lanes().is_none(), "one growth at a time");
    for batch in [&mut late, &mut later] {
        let refused = node.place_as(0, Some(1), batch).expect_err("an old split");
        assert_eq!(
            refused,
            AppendError::StaleLanes {
                current: 2,
                found: 1
            }
        );
    }
    // An idle lane refuses as well, and what is split by more lanes than this owner knows of.
    for (lane, found) in [(1, 1), (0, 2), (1, 2)] {
        assert!(matches!(
            node.place_as(lane, Some(found), &mut plain(9..10, 10)),
            Err(AppendError::StaleLanes { .. })
        ));
    }
    assert!(
        node.place_as(0, Some(1), &mut stored)
            .expect("a duplicate")
            .duplicate
    );
    node.streamlet.abort_growth();
    assert!(
        !node
            .place_as(0, Some(1), &mut late)
            .expect("a place")
            .duplicate,
        "as before"
    );

    let cuts = node.streamlet.cut_lanes().expect("cuts");
    assert_eq!(cuts[0].ordinal, 3);
    assert!(
        node.head(LANE) < 3 && node.streamlet.growth_settled(&cuts),
        "waits for what is below the boundary"
    );
    assert_eq!(placed.outcome(), Outcome::Durable);
    node.finish_growth(4, 2);
    assert!(
        node.place_as(0, Some(1), &mut stored)
            .expect("a duplicate")
            .duplicate
    );
    let refused = node
        .place_as(0, Some(1), &mut later)
        .expect_err("an old split");
    assert_eq!(
        refused,
        AppendError::StaleLanes {
            current: 2,
            found: 1
        }
    );
    assert_eq!(
        node.place_as(0, Some(2), &mut later)
            .expect("a place")
            .base_ordinal,
        3
    );
    assert_eq!(
        node.place_as(3, Some(2), &mut plain(5..6, 10))
            .expect("a place")
            .base_ordinal,
        0
    );
    assert!(matches!(
        node.place(4, &mut plain(5..6, 10)),
        Err(AppendError::UnknownLane { lane: 4, lanes: 4 })
    ));
    assert!(matches!(
        node.place(ANY_LANE - 1, &mut plain(5..6, 10)),
        Err(AppendError::UnknownLane { .. })
    ));
}

#[test]
fn no_retry_is_stored_again_however_many_producers_there_are() {
    // 64 KiB segments leave 16 KiB for the producers of a lane, which 200 with three batches each fill.
    let mut machine = Machine::fault(8);
    let mut node = machine.create(settings(AckPolicy::Written));
    let first = |id: i64| stamped(id, 0, 0, id as u64..id as u64 + 1, 1000);
    for id in 0..200 {
        node.append(0, &mut first(id));
        for n in 1..3 {
            node.append(0, &mut stamped(id, 0, n, 900..901, 10));
        }
    }
    for life in 0..3 {
        assert!(node.streamlet.close_all(node.now_ms));
        for id in 0..200 {
            let again = node.place(0, &mut first(id));
            let stored = again.as_ref().is_ok_and(|placed| !placed.duplicate);
            assert!(!stored, "producer {id} in life {life}: {again:?}");
            let mut last = stamped(id, 0, 2, 900..901, 10);
            assert!(node.append(0, &mut last).duplicate, "producer {id}");
        }
        machine.kill(node, 0);
        node = machine.recover(settings(AckPolicy::Written)).0;
    }
    // Beyond that room new ones are refused, and those that are known go on.
    let refused = (200..1000).find_map(|id| node.place(0, &mut first(id)).err());
    assert!(
        matches!(
            refused,
            Some(AppendError::Sequence(SequenceError::TooMany {
                limit: 416,
                ..
            }))
        ),
        "{refused:?}"
    );
    assert_eq!(node.streamlet.describe()[0].producers, 416);
    node.append(0, &mut stamped(3, 0, 3, 900..901, 10));
}

/// A group between others is lost, as after a restore of the metadata store: the one behind it tells of batches in it.
#[test]
fn a_batch_that_is_lost_between_groups_is_not_taken_for_stored() {
    let mut machine = Machine::fault(12);
    let settings = settings(AckPolicy::Written);
    let node = machine.create(settings.clone());
    let end_group = |node: &support::Node| {
        assert!(node.streamlet.close_all(node.now_ms));
        assert!(node.work());
    };
    node.append(0, &mut stamped(2, 0, 0, 0..3, 100));
    end_group(&node);
    node.append(0, &mut stamped(2, 0, 3, 3..6, 100));
    end_group(&node);
    node.append(0, &mut stamped(2, 0, 6, 6..9, 100));
    end_group(&node);
    let groups: Vec<_> = node.streamlet.describe()[0].groups.clone();
    assert_eq!(groups.len(), 3);
    let streamlet = StreamletKey {
        stream: machine.stream,
        streamlet: StreamletId(0),
    };
    let lost = streamlet.group(groups[1].group);
    machine.store.apply_now(vec![Write::DeleteGroup(lost)]);
    let file = machine.file(groups[1].group.0);
    machine.kill(node, 0);
    machine.io.remove_file(&file).expect("it was there");
    let (node, recovery) = machine.recover(settings.clone());
    let told = recovery.reports.join("; ");
    assert!(told.contains("1 batches that producers may send"), "{told}");
    let check = |node: &support::Node| {
        let refused = node.place(0, &mut stamped(2, 0, 3, 3..6, 100));
        assert!(
            matches!(
                refused,
                Err(AppendError::Sequence(SequenceError::Lost {
                    first: 3,
                    last: 5,
                    ..
                }))
            ),
            "it is lost"
        );
        // What is there is known as before, and the producer goes on.
        for (sequence, ids) in [(0, 0..3), (6, 6..9)] {
            let again = node.append(0, &mut stamped(2, 0, sequence, ids, 100));
            assert!(again.duplicate, "{sequence}");
        }
    };
    check(&node);
    let next = node.append(0, &mut stamped(2, 0, 9, 9..12, 100));
    assert!(!next.duplicate);
    // A later group remembers it as well.
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings);
    check(&node);
}
