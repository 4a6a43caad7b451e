//! Backups that are full, down, or back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::backup::Limits;
use kera_replication::ids::{AckPolicy, BrokerId, CopyId};
use kera_replication::primary::Shape;
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{Reply, Request};

use crate::suite::test_group::TestGroup;
use crate::suite::{Plan, Stage};
use crate::{BRIEFLY, Case, OWNER, append, calm, case, open, planned};

const SMALL: BrokerId = BrokerId(1);

/// Starts `SMALL` anew with this much memory.
async fn shrink(case: &Case, memory_bytes: u64) {
    case.stage.sim.set_limits(Limits {
        memory_bytes,
        ..Limits::default()
    });
    case.stage.kill(SMALL).await;
    case.stage.start(SMALL, MemoryFate::Vanished).await;
}

#[test]
fn a_backup_without_room_is_not_chosen() {
    case(|case| async move {
        shrink(&case, 64).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let holders = group.0.holders();
        assert_eq!(holders.len(), 3);
        assert!(holders.iter().all(|h| h.broker != SMALL), "{holders:?}");
    });
}

#[test]
fn a_backup_that_turns_out_to_be_full_costs_one_group_and_not_each() {
    case(|case| async move {
        // One segment's buffer, beside the seals and the copy's record: the second one is refused.
        shrink(&case, (32 << 10) + 4096 + 1500).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let mut group = open(&lane, 0);
        let (mut groups, mut named, mut ordinal) = (1, 0, 0);
        let began = case.now();
        for id in 0..60 {
            if group.1.append(id, 20).is_err() {
                let end = group.1.freeze();
                group.0.froze();
                group = open(&lane, end.ordinal);
                groups += 1;
                group.1.append(id, 20).expect("an empty group takes it");
            }
            ordinal += 1;
            group.0.grew();
            let end = group.1.end();
            assert_eq!(end.ordinal, ordinal);
            let acknowledged = group.1.acknowledged(&lane, end.address, BRIEFLY);
            acknowledged.await.expect("there are others");
            if group.1.is_frozen() && group.0.holders().iter().any(|h| h.broker == SMALL) {
                named += 1;
                group = open(&lane, end.ordinal);
                groups += 1;
            }
        }
        let took = case.now() - began;
        assert!(
            took < Duration::from_secs(5),
            "all of it within one wait: {took:?}"
        );
        assert!(named >= 1, "it was never full");
        assert!(
            named <= 2,
            "{named} of {groups} groups ended for want of room"
        );
    });
}

/// Buffers as large as a broker's.
fn large(plan: &mut Plan) {
    let config = &mut plan.config;
    (config.first_buffer_bytes, config.buffer_bytes) = (64 << 10, 8 << 20);
    (config.turn_bytes, config.submission_bytes) = (64 << 10, 1 << 20);
    config.in_flight_bytes = 4 << 20;
    config.flush_interval = Duration::from_secs(60);
}

const GROUPS: u32 = 24;

/// Groups of many lanes, each of which is as long as a backup's memory lasts for a few.
#[test]
fn many_open_groups_have_room_in_little_memory() {
    let mut plan = calm();
    large(&mut plan);
    let shape = Shape {
        segment_size: 1 << 20,
        segments: 2,
    };
    // Eight segments, where a backup has a copy of most groups or of all.
    plan.limits.memory_bytes = 8 << 20;
    planned(plan, move |case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let groups = (0..GROUPS).map(|lane| {
            let lane = case.lane_of(&primary, &recovered, LaneId(lane), &next);
            let copy = CopyId {
                streamlet: lane.spec().streamlet,
                group: lane.next_group(AckPolicy::Written),
                epoch: lane.spec().epoch,
                generation: 0,
            };
            let source = TestGroup::with_shape(copy, lane.spec().lane, 0, shape);
            let source = Arc::new(source);
            (source.open(&lane), source, lane)
        });
        let groups: Vec<_> = groups.collect();
        for round in 0..60 {
            let mut ends = Vec::new();
            for (set, source, _) in &groups {
                let batch = source.append(round, 16_000).expect("no copy was lost");
                set.grew();
                ends.push(batch.end);
            }
            for ((_, source, lane), end) in groups.iter().zip(ends) {
                let acknowledged = source.acknowledged(lane, end, BRIEFLY);
                acknowledged.await.expect("there is room");
            }
        }
        let stats = case.stage.nodes().into_iter();
        let stats: Vec<_> = stats.filter_map(|n| case.stage.sim.stats(n)).collect();
        let refused: u64 = stats.iter().map(|s| s.refused_no_room).sum();
        assert_eq!(refused, 0, "{stats:?}");
        for (set, source, _) in &groups {
            assert!(!source.is_frozen(), "a copy of {} was lost", set.id());
            let bytes = source.bytes();
            assert!(bytes.len() > 900 << 10, "it is no long group");
            assert_eq!(set.holders().len(), 3);
            for holder in set.holders() {
                let request = Request::Read {
                    copy: set.id(),
                    address: 0,
                    len: bytes.len() as u32,
                };
                match case.ask(holder.broker, request).await {
                    Reply::Bytes(read) => assert!(read == bytes, "{} at {holder:?}", set.id()),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
}

/// Buffers that double would take more than there is, though what is appended fits.
#[test]
fn a_backup_that_is_nearly_full_gives_what_it_has() {
    let mut plan = calm();
    large(&mut plan);
    planned(plan, |case| async move {
        // Buffers of 64, 64, 128 and 256 KiB, and less than the 512 that come next.
        shrink(&case, 704 << 10).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let copy = CopyId {
            streamlet: lane.spec().streamlet,
            group: lane.next_group(AckPolicy::Written),
            epoch: lane.spec().epoch,
            generation: 0,
        };
        let shape = Shape {
            segment_size: 1 << 20,
            segments: 2,
        };
        let source = TestGroup::with_shape(copy, lane.spec().lane, 0, shape);
        let source = Arc::new(source);
        let group = source.open(&lane);
        for id in 0.. {
            let batch = source.append(id, 16_000).expect("no copy was lost");
            group.grew();
            let acknowledged = source.acknowledged(&lane, batch.end, BRIEFLY);
            acknowledged.await.expect("there is room");
            if batch.end > 600 << 10 {
                break;
            }
        }
        let holders = group.holders();
        assert!(holders.iter().any(|h| h.broker == SMALL), "{holders:?}");
        assert!(!source.is_frozen(), "no copy was lost");
    });
}

#[test]
fn a_backup_that_is_back_is_noticed_though_others_suffice() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        case.stage.kill(SMALL).await;
        let mut ordinal = 0;
        let mut roll = async |times: u64| {
            for id in 0..times {
                let group = open(&lane, ordinal);
                append(&lane, &group, ordinal + id)
                    .await
                    .expect("others suffice");
                ordinal = group.1.freeze().ordinal;
                group.0.froze();
                case.wait(Duration::from_millis(500)).await;
            }
        };
        roll(8).await;
        assert!(!primary.health().is_up(SMALL));
        case.stage.start(SMALL, MemoryFate::Kept).await;
        roll(24).await;
        assert!(primary.health().is_up(SMALL), "nobody asked it again");
    });
}

#[test]
fn who_seems_down_is_asked_when_the_others_are_not_enough() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let others: Vec<_> = case
            .stage
            .nodes()
            .into_iter()
            .filter(|n| *n != OWNER)
            .collect();
        for other in &others {
            // As if nothing had been heard of them, a moment ago.
            for _ in 0..3 {
                primary.health().failure(*other, case.now());
            }
        }
        let began = case.now();
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("they are there");
        assert!(
            case.now() - began < Duration::from_secs(1),
            "before the wait is over"
        );
    });
}
