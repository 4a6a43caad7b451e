//! What is appended is read back: across chunks, segments and groups, by ordinal, hint and time.

mod support;

use kera_log_segments::group::{AckPolicy, GroupWriter};
use kera_log_segments::pool::CHUNK_BYTES;
use kera_streamlet::{AppendError, LaneReadError, Located, Outcome};
use support::batches::{exactly, ids_of, plain, stamped};
use support::{LANE, Machine, Node, settings};

/// Appends batches of many sizes until `groups` groups are begun; returns the ids in order.
fn fill(node: &Node, groups: usize) -> Vec<u64> {
    let (mut ids, mut next, mut size) = (Vec::new(), 0, 1);
    while node.streamlet.describe()[0].groups.len() < groups {
        let count = 1 + next % 7;
        let mut batch = plain(next..next + count, size);
        node.append(0, &mut batch);
        ids.extend(next..next + count);
        next += count;
        size = (size * 7 + 13) % 9000;
    }
    ids
}

fn expect_all(node: &Node, ids: &[u64], max_bytes: usize) {
    let found = node.read_from(LANE, 0, max_bytes).expect("a readable lane");
    let expected: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(ordinal, id)| (ordinal as u64, *id))
        .collect();
    assert_eq!(
        found, expected,
        "ordinals are gapless and every record is there"
    );
}

#[test]
fn what_is_appended_is_read_back_across_chunks_segments_and_groups() {
    for mut machine in [Machine::fault(1), Machine::disk()] {
        let mut wide = settings(AckPolicy::Written);
        wide.segment_size = 3 * CHUNK_BYTES as u32 + 1234;
        let node = machine.create(wide);
        let ids = fill(&node, 4);
        for max_bytes in [1, 500, 70_000, usize::MAX] {
            expect_all(&node, &ids, max_bytes);
        }
        // From the file, closed and without memory.
        assert!(node.work());
        node.streamlet.release_idle(node.now_ms + 10_000, 1000);
        assert_eq!(node.env.pool.used(), 0, "an idle lane holds no memory");
        expect_all(&node, &ids, 3000);
        assert!(node.streamlet.close_all(node.now_ms));
        node.streamlet.release_idle(node.now_ms + 60_000, 1000);
        expect_all(&node, &ids, usize::MAX);
    }
}

#[test]
fn every_policy_shows_what_it_acknowledges() {
    for ack in [AckPolicy::Memory, AckPolicy::Written, AckPolicy::Synced] {
        let mut machine = Machine::fault(2);
        let node = machine.create(settings(ack));
        let ids = fill(&node, 3);
        expect_all(&node, &ids, 5000);
        for _ in 0..3 {
            node.streamlet.write_out();
            node.env.pump.drain();
            node.work();
        }
        expect_all(&node, &ids, 5000);
        assert_eq!(
            machine.store.counts(),
            (3, 2),
            "{ack:?}: full groups are closed"
        );
    }
}

#[test]
fn batches_larger_than_a_chunk_and_the_largest_there_is() {
    let mut machine = Machine::fault(3);
    let mut wide = settings(AckPolicy::Written);
    wide.segment_size = 5 * CHUNK_BYTES as u32;
    let node = machine.create(wide.clone());
    let largest = GroupWriter::largest_batch(wide.segment_size);
    for (id, bytes) in [100, 3 * CHUNK_BYTES, largest, 100, largest, largest - 1]
        .into_iter()
        .enumerate()
    {
        node.append(0, &mut exactly(id as u64, bytes));
    }
    let too_large = node
        .place(0, &mut exactly(9, largest + 1))
        .expect_err("too large");
    assert_eq!(
        too_large,
        AppendError::TooLarge {
            size: largest + 1,
            limit: largest
        }
    );
    expect_all(&node, &[0, 1, 2, 3, 4, 5], 1000);
    node.work();
    node.streamlet.release_idle(node.now_ms + 10_000, 0);
    expect_all(&node, &[0, 1, 2, 3, 4, 5], 1000);
}

#[test]
fn the_largest_batch_fits_behind_a_snapshot() {
    for segments in [1, 2] {
        let mut machine = Machine::fault(4);
        let mut narrow = settings(AckPolicy::Written);
        narrow.segments_per_group = segments;
        let node = machine.create(narrow.clone());
        // Enough producers for a snapshot of its full quarter.
        let mut ids = Vec::new();
        for producer in 0..416 {
            node.append(
                0,
                &mut stamped(producer, 0, 0, producer as u64..producer as u64 + 1, 8),
            );
            ids.push(producer as u64);
        }
        let limit = match node
            .place(0, &mut exactly(0, 2 << 20))
            .expect_err("too large")
        {
            AppendError::TooLarge { limit, .. } => limit,
            other => panic!("{other}"),
        };
        for id in 1000..1010 {
            node.append(0, &mut exactly(id, limit));
            ids.push(id);
        }
        expect_all(&node, &ids, 100_000);
        machine.kill(node, 0);
        let (node, recovery) = machine.recover(narrow);
        assert_eq!(recovery.reports, Vec::<String>::new());
        expect_all(&node, &ids, 100_000);
    }
}

#[test]
fn a_reader_goes_to_any_ordinal_with_and_without_a_hint() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Written));
    let ids = fill(&node, 3);
    node.work();
    for (ordinal, id) in ids.iter().enumerate().step_by(3) {
        let from = Located {
            ordinal: ordinal as u64,
            at: None,
        };
        let found = node.read_at(LANE, from, 1, u64::MAX).expect("a read");
        let records = ids_of(&found.bufs.concat());
        assert!(
            records.contains(&(ordinal as u64, *id)),
            "the batch that holds {ordinal} comes first"
        );
        assert_eq!(found.batches, 1);
        // Hints that are right, wrong by any distance, and of a group that is elsewhere.
        let right = found.next.at;
        for at in [
            right,
            right.map(|(g, n, a)| (g, n, a + 1)),
            right.map(|(g, n, a)| (g, n, a / 2)),
            right.map(|(g, n, _)| (g, n, u64::MAX)),
        ] {
            let next = Located {
                ordinal: found.next.ordinal,
                at,
            };
            if next.ordinal < found.head {
                let again = node.read_at(LANE, next, 1, u64::MAX).expect("a read");
                let first = ids_of(&again.bufs.concat())[0];
                assert_eq!(
                    first,
                    (next.ordinal, ids[next.ordinal as usize]),
                    "hint {at:?}"
                );
            }
        }
    }
    let head = node.head(LANE);
    let at_head = node
        .read_at(
            LANE,
            Located {
                ordinal: head,
                at: None,
            },
            100,
            u64::MAX,
        )
        .expect("nothing");
    assert_eq!((at_head.batches, at_head.next.ordinal), (0, head));
    let above = node.read_at(
        LANE,
        Located {
            ordinal: head + 1,
            at: None,
        },
        100,
        u64::MAX,
    );
    assert!(matches!(above, Err(LaneReadError::OutOfRange { .. })));
}

#[test]
fn a_range_ends_where_it_was_cut_and_cuts_lie_between_batches() {
    let mut machine = Machine::fault(6);
    let node = machine.create(settings(AckPolicy::Written));
    let ids = fill(&node, 3);
    let mut at = 0;
    let mut seen = Vec::new();
    while let Some((start, end)) = node
        .streamlet
        .batch_boundary(LANE, at, 20_000, 40)
        .expect("a boundary")
    {
        assert!(
            start.ordinal == at && end > at && end - at <= 40,
            "{at}..{end}"
        );
        // Read as the holder of such a range does.
        let mut from = start;
        while from.ordinal < end {
            let found = node.read_at(LANE, from, 4000, end).expect("a read");
            let records = ids_of(&found.bufs.concat());
            assert!(
                records
                    .iter()
                    .all(|(ordinal, _)| (at..end).contains(ordinal)),
                "{at}..{end}: {records:?}"
            );
            seen.extend(records);
            from = found.next;
        }
        assert_eq!(from.ordinal, end);
        at = end;
    }
    assert_eq!(seen.iter().map(|(_, id)| *id).collect::<Vec<_>>(), ids);
    assert!(
        node.streamlet
            .batch_boundary(LANE, at, usize::MAX, u64::MAX)
            .expect("a boundary")
            .is_none()
    );
    let whole = node
        .streamlet
        .batch_boundary(LANE, 0, usize::MAX, u64::MAX)
        .expect("a boundary")
        .expect("a range");
    assert!(whole.1 > 0 && whole.1 <= node.head(LANE));
}

#[test]
fn a_time_is_found() {
    let mut machine = Machine::fault(7);
    let node = machine.create(settings(AckPolicy::Written));
    // The timestamp of each batch is its first id.
    let ids = fill(&node, 3);
    node.work();
    let all = node.read_all(LANE);
    for time in (0..ids.len() as i64).step_by(11).chain([i64::MIN, -1]) {
        let found = node.streamlet.find_time(LANE, time).expect("a place");
        // Of a batch that begins at or after `time`: every record before it is older.
        let (_, first) = all[found.ordinal as usize];
        assert!(first as i64 >= time, "{time}: {first}");
        if found.ordinal > 0 {
            let before = node.read_from(LANE, found.ordinal - 1, 1).expect("a read")[0].1;
            assert!(
                (before as i64) < time.max(0),
                "{time}: {before} comes before {first}"
            );
        }
        let read = node.read_at(LANE, found, 1, u64::MAX).expect("a read");
        assert_eq!(ids_of(&read.bufs.concat())[0].0, found.ordinal);
    }
    assert_eq!(
        node.streamlet
            .find_time(LANE, i64::MAX)
            .expect("the head")
            .ordinal,
        node.head(LANE)
    );
}

#[test]
fn nothing_above_the_durable_head_is_read_or_acknowledged() {
    let mut machine = Machine::fault(8);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..3, 100));
    let placed = node.place(0, &mut plain(3..6, 100)).expect("a place");
    assert_eq!(placed.outcome(), Outcome::Pending);
    assert_eq!(node.read_all(LANE).len(), 3, "in memory, not written");
    assert_eq!(node.pump(&placed), Outcome::Durable);
    assert_eq!(node.read_all(LANE).len(), 6);
}

#[test]
fn the_head_waits_for_the_groups_record() {
    let mut machine = Machine::fault(9);
    let node = machine.create(settings(AckPolicy::Written));
    machine.store.set_slow(true);
    let placed = node.place(0, &mut plain(0..3, 100)).expect("a place");
    assert_eq!(
        node.pump(&placed),
        Outcome::Pending,
        "written, but not recorded"
    );
    assert!(node.read_all(LANE).is_empty());
    machine.store.settle(1);
    assert_eq!(placed.outcome(), Outcome::Durable);
    assert_eq!(node.read_all(LANE).len(), 3);
    // A record that fails is asked for again.
    assert!(node.streamlet.close_all(node.now_ms));
    machine.store.set_slow(false);
    machine.store.fail(1);
    let placed = node.place(0, &mut plain(3..6, 100)).expect("a place");
    assert_eq!(node.pump(&placed), Outcome::Pending);
    assert!(node.work());
    assert_eq!(placed.outcome(), Outcome::Durable);
}

#[test]
fn a_group_recorded_ahead_is_used_and_an_unused_one_goes() {
    let mut machine = Machine::fault(10);
    machine.limits.prepare_at = 0.3;
    let node = machine.create(settings(AckPolicy::Written));
    let (mut next, mut begun) = (0, 1);
    while begun < 4 {
        node.append(0, &mut plain(next..next + 1, 5000));
        next += 1;
        begun = node.streamlet.describe()[0].groups.len();
        assert!(node.work());
    }
    let ids: Vec<_> = (0..next).collect();
    expect_all(&node, &ids, 5000);
    node.append(0, &mut plain(next..next + 1, 5000));
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert!(
        recovery.reports.is_empty() && recovery.gaps.is_empty(),
        "{recovery:?}"
    );
    expect_all(&node, &(0..=next).collect::<Vec<_>>(), 5000);
}

#[test]
fn no_memory_is_an_answer_and_goes_away() {
    let mut machine = Machine::fault(11);
    machine.pool_bytes = 4 * CHUNK_BYTES;
    let node = machine.create(settings(AckPolicy::Written));
    // Nothing is pumped: memory fills up and is not given back.
    let mut next = 0;
    let refused = loop {
        match node.place(0, &mut plain(next..next + 1, 10_000)) {
            Ok(_) => next += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AppendError::NoMemory);
    // Full groups are written where they are closed, the active one here.
    assert!(node.work());
    node.streamlet.release_idle(node.now_ms, 0);
    for id in next..next + 50 {
        node.append(0, &mut plain(id..id + 1, 10_000));
    }
    expect_all(&node, &(0..next + 50).collect::<Vec<_>>(), 30_000);
}

#[test]
fn a_full_pool_never_takes_the_chunk_that_is_being_filled() {
    let mut machine = Machine::fault(12);
    machine.pool_bytes = 3 * CHUNK_BYTES;
    machine.limits.keep_chunks = 0;
    let mut wide = settings(AckPolicy::Written);
    wide.segment_size = 16 * CHUNK_BYTES as u32;
    let node = machine.create(wide);
    // Batches that end within a chunk, all written, and each needs one more chunk.
    for id in 0..60 {
        node.append(0, &mut plain(id..id + 1, CHUNK_BYTES * 2 / 3));
    }
    expect_all(&node, &(0..60).collect::<Vec<_>>(), 100_000);
}

#[test]
fn many_lanes_share_little_memory() {
    let mut machine = Machine::fault(13);
    // A chunk for each lane and a few to change over.
    machine.pool_bytes = 110 * CHUNK_BYTES;
    let mut wide = settings(AckPolicy::Written);
    wide.lanes = 100;
    wide.segment_size = 128 * 1024;
    let node = machine.create(wide);
    let mut next = 0;
    for _ in 0..20 {
        for lane in 0..100 {
            node.append(lane, &mut plain(next..next + 1, 16_000));
            next += 1;
        }
        // As the broker's thread for it does.
        node.work();
    }
    for lane in 0..100 {
        let found = node.read_all(kera_protocol::ids::LaneId(lane));
        let expected: Vec<_> = (0..20).map(|n| (n, n * 100 + u64::from(lane))).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_deleted_stream_gives_its_memory_back_while_its_last_group_is_open() {
    let mut machine = Machine::fault(3);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..3, 5000));
    let pool = node.env.pool.clone();
    assert!(pool.used() > 0);
    node.streamlet.mark_deleted();
    drop(node);
    assert_eq!(pool.used(), 0, "an open group and its head kept each other");
}
