//! Backups that are full, down, or back.

use std::sync::Arc;
use std::time::Duration;

use kera_replication::backup::Limits;
use kera_replication::ids::{BackupId, CopyId};
use kera_replication::primary::{Shape, Source};
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;

use crate::suite::Stage;
use crate::suite::source::TestSource;
use crate::{Case, OWNER, append, calm, case, open, planned};

const SMALL: BackupId = BackupId(1);

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
        // One segment's buffer: the second one is refused.
        shrink(&case, 1500).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let mut group = open(&lane, 0);
        let (mut groups, mut named, mut ordinal) = (1, 0, 0);
        let began = case.now();
        for id in 0..60 {
            if group.1.append(id, 20).is_err() {
                let end = group.1.freeze();
                lane.froze(&group.0);
                group = open(&lane, end.ordinal);
                groups += 1;
                group.1.append(id, 20).expect("an empty group takes it");
            }
            ordinal += 1;
            lane.grew(&group.0);
            let (copy, end) = (group.0.id(), group.1.end());
            assert_eq!(end.ordinal, ordinal);
            let acknowledged = lane.clone().acknowledged(copy.group, end.address);
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

/// Buffers that double would take more than there is, though what is appended fits.
#[test]
fn a_backup_that_is_nearly_full_is_asked_for_less() {
    let mut plan = calm();
    (plan.config.first_buffer_bytes, plan.config.buffer_bytes) = (4 << 10, 64 << 10);
    (plan.config.turn_bytes, plan.config.in_flight_bytes) = (64 << 10, 64 << 10);
    plan.config.submission_bytes = 64 << 10;
    planned(plan, |case| async move {
        // Buffers of 4, 4, 8 and 16 KiB, and less than the 32 that come next.
        shrink(&case, 44 << 10).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let copy = CopyId {
            streamlet: lane.spec().streamlet,
            group: lane.next_group(),
            epoch: lane.spec().epoch,
        };
        let shape = Shape {
            segment_size: 64 << 10,
            segments: 2,
        };
        let source = TestSource::with_shape(copy, lane.spec().lane, 0, shape);
        let source = Arc::new(source);
        let group = lane.open(copy.group, source.clone());
        for id in 0.. {
            let batch = source.append(id, 1000).expect("no copy was lost");
            lane.grew(&group);
            let acknowledged = lane.clone().acknowledged(copy.group, batch.end);
            acknowledged.await.expect("there is room");
            if batch.end > 34 << 10 {
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
                lane.froze(&group.0);
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
