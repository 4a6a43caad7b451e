//! Groups recorded ahead of lanes that rest: whatever happens to their brokers, nobody has to decide about
//! a group that never held a byte.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_records::GroupRecord;
use kera_replication::primary::Lane;
use kera_replication::transport::sim::MemoryFate;

use crate::jobs::jobs_with;
use crate::own::{closed, take_over};
use crate::suite::{Plan, Stage, busy};
use crate::{Case, OWNER, another, calm, open, planned};

/// The owner's own file is one of the copies: that it is not there proves nothing to its next process.
fn own(replicas: usize) -> Plan {
    Plan {
        own: true,
        replicas,
        ..calm()
    }
}

fn still_open(case: &Case) -> Vec<GroupRecord> {
    let mut found = case.stage.look().groups;
    found.retain(|record| !record.is_closed());
    found
}

/// The owner's process ends: its next one finds nothing to wait for.
async fn comes_back(case: &Case, lane: Arc<Lane>) {
    case.stage.kill(OWNER).await;
    drop(lane);
    case.stage.start(OWNER, MemoryFate::Kept).await;
    let (_, recovered) = take_over(case).await;
    let lane = &recovered.lanes[0];
    assert_eq!((&lane.stopped, lane.next_ordinal), (&None, 8));
}

#[test]
fn a_group_ahead_of_a_lane_that_rests_goes_once_one_of_its_brokers_was_booted() {
    planned(own(3), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let ahead = still_open(&case);
        assert_eq!((ahead.len(), ahead[0].copies.len()), (1, 3));
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        assert_eq!(still_open(&case), ahead, "it may be used");
        let others = group.0.holders().into_iter().map(|holder| holder.broker);
        for other in others.filter(|broker| *broker != OWNER) {
            case.stage.kill(other).await;
            case.stage.start(other, MemoryFate::PowerLost).await;
            jobs.round().await;
        }
        assert_eq!(still_open(&case), []);
        drop((group, primary));
        comes_back(&case, lane).await;
    });
}

#[test]
fn a_group_ahead_of_a_lane_that_rests_goes_once_one_of_its_brokers_is_lost() {
    planned(own(2), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let ahead = still_open(&case);
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        case.stage.kill(another(&group)).await;
        jobs.round().await;
        assert_eq!(still_open(&case), ahead, "it may come back");
        case.wait(busy().lost_after).await;
        jobs.round().await;
        assert_eq!(still_open(&case), []);
        drop((group, primary));
        comes_back(&case, lane).await;
    });
}

#[test]
fn a_lane_that_comes_to_rest_leaves_nothing_recorded_ahead() {
    planned(own(3), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let first = closed(&case, &lane).await;
        let second = open(&lane, first.1.end().ordinal);
        case.wait(Duration::from_secs(1)).await;
        assert!(still_open(&case).len() > 1, "the next one is prepared");
        case.wait(Duration::from_secs(60)).await;
        second.1.freeze();
        second.0.froze();
        case.wait(Duration::from_secs(1)).await;
        assert!(second.0.is_closed());
        assert_eq!(still_open(&case), []);
    });
}
