//! Owners that come, go, and do not know that they have gone.

use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::records::RecordsError;
use kera_replication::recovery::{Stopped, Unclean};
use kera_replication::transport::sim::MemoryFate;

use crate::suite::Stage;
use crate::suite::test_group::Unacknowledged;
use crate::{BRIEFLY, OWNER, all_shown, another, append, case, open};

#[test]
fn a_stopped_backup_holds_up_no_append() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let holders = group.0.holders();
        assert_eq!(holders.len(), 3);
        for holder in holders.iter().filter(|h| h.broker != OWNER) {
            case.stage.pause(holder.broker, true);
        }
        // Into buffers that are there already: no backup's process is asked for anything.
        for id in 2..4 {
            append(&lane, &group, id)
                .await
                .expect("copies take bytes without their processes");
        }
    });
}

#[test]
fn losing_a_backup_ends_the_group_and_what_named_it_ahead() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let lost = another(&group);
        case.stage.kill(lost).await;
        // Until its connections are gone a dead process takes writes as before, and they count.
        append(&lane, &group, 2)
            .await
            .expect("acknowledged either way");
        case.stage.wait(Duration::from_secs(1)).await;
        assert!(group.1.is_frozen(), "the loss ends the group");
        assert!(group.0.is_closed(), "two copies are enough to close it");
        let found = case.stage.look();
        let record = found.groups.iter().find(|r| CopyId::of(r) == group.0.id());
        let closed = record.filter(|r| r.is_closed()).expect("it is closed");
        assert_eq!(closed.end_ordinal, 2);
        assert!(closed.copies.iter().all(|h| h.broker != lost), "{closed:?}");
        assert!(closed.copies.len() >= 2);
        for record in found.groups.iter().filter(|r| !r.is_closed()) {
            let names = record.copies.iter().any(|h| h.broker == lost);
            assert!(!names, "recorded ahead, with the lost broker: {record:?}");
        }
        let next = open(&lane, 2);
        append(&lane, &next, 3).await.expect("the lane goes on");
        assert!(next.0.holders().iter().all(|h| h.broker != lost));
    });
}

#[test]
fn below_min_insync_replicas_appends_wait_and_are_then_told_to_come_again() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        for node in case.stage.nodes().into_iter().filter(|n| *n != OWNER) {
            case.stage.cut(OWNER, node);
        }
        case.stage.wait(Duration::from_secs(2)).await;
        assert!(group.1.is_frozen(), "its copies are lost");
        let next = open(&lane, 1);
        let error = append(&lane, &next, 2)
            .await
            .expect_err("one copy is too few");
        assert_eq!(error, Unacknowledged::TooFewReplicas);
        case.stage.heal();
        // It finds its copies now, and counts.
        let end = next.1.end().address;
        let acknowledged = next.1.acknowledged(&lane, end, BRIEFLY).await;
        acknowledged.expect("enough copies again");
        assert!(group.0.is_closed());
    });
}

#[test]
fn a_deposed_owner_acknowledges_nothing() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let (_, after) = case.recover(BrokerId(3), Unclean::Wait).await;
        assert_eq!(after.lanes[0].next_ordinal, 1);
        let error = append(&lane, &group, 2)
            .await
            .expect_err("its copies are sealed");
        assert!(
            matches!(error, Unacknowledged::Deposed(RecordsError::Epoch { .. })),
            "{error:?}"
        );
    });
}

#[test]
fn a_planned_end_leaves_nothing_to_recover() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&lane, &first, 1).await.expect("all is well");
        first.1.freeze();
        first.0.froze();
        let second = open(&lane, 1);
        append(&lane, &second, 2).await.expect("the next group");
        lane.finish().await.expect("still the owner");
        let found = case.stage.look();
        assert!(found.groups.iter().all(|r| r.is_closed()), "{found:?}");
        let (_, after) = case.recover(BrokerId(2), Unclean::Wait).await;
        assert_eq!(after.lanes[0].next_ordinal, 2);
        assert!(after.lanes[0].discarded.is_empty() && after.lanes[0].gaps.is_empty());
    });
}

#[test]
fn without_a_copy_that_counts_the_lane_waits_for_a_decision() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        for id in 0..3 {
            append(&lane, &group, id).await.expect("all is well");
        }
        for node in case.stage.nodes() {
            case.stage.kill(node).await;
            case.stage.start(node, MemoryFate::PowerLost).await;
        }
        let (_, waits) = case.recover(BrokerId(1), Unclean::Wait).await;
        let stopped = waits.lanes[0].stopped.clone();
        assert!(
            matches!(stopped, Some(Stopped::Unclean { .. })),
            "{stopped:?}"
        );
        let (_, goes_on) = case.recover(BrokerId(1), all_shown(&waits)).await;
        let found = &goes_on.lanes[0];
        assert_eq!(found.stopped, None);
        assert!(
            found.next_ordinal >= 1 << 32,
            "what somebody may have seen is never numbered again: {found:?}"
        );
        assert_eq!(
            found.gaps.len(),
            found.groups.len(),
            "each loss is reported"
        );
        let (_, again) = case.recover(BrokerId(2), Unclean::Wait).await;
        assert_eq!(again.lanes[0].next_ordinal, found.next_ordinal);
    });
}
