//! Lanes that stand still: what may never hold one up, and what is told of one that is held up.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::group_life::GroupStage;
use kera_log_segments::ship::Shipping;
use kera_replication::ids::BrokerId;
use kera_replication::primary::{
    Lane, Primary, ReplicaStands, ShipmentStands, Standstill, WayStands,
};
use kera_replication::recovery::Unclean;

use crate::jobs;
use crate::own::{closed, take_over};
use crate::suite::{Plan, Stage};
use crate::{Case, OWNER, another, append, calm, open, planned};

const NEVER: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(5);

fn two_copies() -> Plan {
    let mut plan = Plan {
        replicas: 2,
        ..calm()
    };
    // One request for memory is enough for a small group.
    plan.config.first_buffer_bytes = 1024;
    plan
}

/// One of the two is the owner's own file.
fn own_and_another() -> Plan {
    Plan {
        own: true,
        ..two_copies()
    }
}

/// A group that was recorded ahead loses its copy at a broker that has stopped since as soon as it begins,
/// maybe before whoever begins it has put the first bytes into it. Nothing can be built then.
#[test]
fn a_group_that_loses_a_copy_before_its_first_byte_holds_up_nobody() {
    planned(own_and_another(), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let first = closed(&case, &lane).await;
        case.stage.kill(another(&first)).await;
        let empty = open(&lane, 8);
        assert_eq!(another(&empty), another(&first), "it is recorded ahead");
        case.wait(LONG).await;
        assert!(empty.1.is_frozen(), "its copy is lost");
        assert_eq!(empty.1.end().address, 0);

        let next = open(&lane, 8);
        next.1.append(100, 20).expect("room");
        case.stage.write_own(OWNER, &next.0, &next.1);
        next.0.grew();
        next.1.freeze();
        next.0.froze();
        case.wait(LONG).await;
        let still = lane.standstill(Duration::ZERO, Duration::ZERO).await;
        assert_eq!(still.map(|still| still.to_string()), None);
        assert!(empty.0.is_closed() && next.0.is_closed());
    });
}

/// The same where no copy is left at all.
#[test]
fn a_group_that_loses_all_its_copies_before_its_first_byte_holds_up_nobody() {
    planned(two_copies(), |case| async move {
        let peers = [BrokerId(1), BrokerId(2)];
        let primary = primary_among(&case, peers.to_vec());
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        jobs::closed(&case, &lane).await;
        for peer in peers {
            case.stage.kill(peer).await;
        }
        let empty = open(&lane, 1);
        assert_eq!(empty.0.holders().len(), 2, "it is recorded ahead");
        case.wait(LONG).await;
        assert_eq!((empty.1.is_frozen(), empty.1.end().address), (true, 0));
        assert!(empty.0.is_closed(), "{:?}", lane.deposed());
    });
}

fn primary_among(case: &Case, peers: Vec<BrokerId>) -> Arc<Primary> {
    Arc::new(Primary::new(
        OWNER,
        peers,
        case.stage.transport(OWNER),
        case.stage.records(OWNER),
        case.stage.runtime(OWNER),
        case.plan.config,
    ))
}

/// Looks twice, so that it has lasted.
async fn looked(case: &Case, lane: &Lane) -> Option<Standstill> {
    let patience = Duration::from_secs(1);
    let before = lane.standstill(patience, NEVER).await;
    assert_eq!(before, None, "it has only begun");
    case.wait(patience).await;
    lane.standstill(patience, NEVER).await
}

#[test]
fn a_lane_says_which_copy_it_waits_for_until_that_has_all() {
    planned(own_and_another(), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        group.1.append(1, 20).expect("room");
        group.0.grew();
        case.stage.write_own(OWNER, &group.0, &group.1);
        case.wait(LONG).await;
        assert_eq!(looked(&case, &lane).await, None, "nothing waits");
        let (before, other) = (group.1.end().address, another(&group));
        assert_eq!(group.0.durable(), before);
        append(&lane, &group, 2)
            .await
            .expect_err("its own file lacks it");
        let end = group.1.end().address;

        let still = looked(&case, &lane).await.expect("it stands still");
        assert_eq!(still.group, group.0.id());
        assert_eq!((still.stage, still.durable), (GroupStage::Open, before));
        assert_eq!((still.end, still.is_frozen, still.behind), (end, false, 0));
        let at = |holder, durable, way| ReplicaStands {
            holder,
            durable,
            written: durable,
            lost: None,
            way,
        };
        let ships = WayStands::Ships {
            link: "connected",
            submissions: 0,
            in_flight: 0,
            copy: Some(ShipmentStands {
                shipped: end,
                placed: end,
                reserved: 1024,
                is_opening: false,
                is_queued: false,
                is_reading: false,
            }),
        };
        assert_eq!(
            still.copies,
            [at(OWNER, before, None), at(other, end, Some(ships))]
        );
        let told = format!(
            "its bytes are awaited at its replicas; open at {end}, acknowledged {before}, groups behind it 0; \
             {OWNER} has {before}, its own file; {other} has {end}, connected, submissions 0 of 0 bytes, \
             shipped {end} of 1024, placed {end}"
        );
        assert_eq!(still.to_string(), told);
        let again = lane.standstill(Duration::ZERO, NEVER).await;
        assert_eq!(again, None, "it is told");

        case.stage.write_own(OWNER, &group.0, &group.1);
        assert_eq!(looked(&case, &lane).await, None, "nothing waits");
    });
}

#[test]
fn a_group_that_nobody_takes_says_why_it_is_not_recorded() {
    planned(two_copies(), |case| async move {
        let primary = primary_among(&case, vec![OWNER]);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect_err("too few copies");
        let still = looked(&case, &lane).await.expect("it stands still");
        assert_eq!(
            (still.stage, still.copies.len()),
            (GroupStage::Recording, 0)
        );
        let told = still.to_string();
        assert!(told.contains("too few brokers take replicas"), "{told}");
    });
}

/// A group that has ended is told of nothing any more: who could not read its bytes looks again by itself.
#[test]
fn bytes_that_could_not_be_read_for_a_while_are_shipped_all_the_same() {
    planned(two_copies(), |case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        group.1.set_unreadable(true);
        append(&lane, &group, 2)
            .await
            .expect_err("nothing is shipped");
        group.1.freeze();
        group.0.froze();
        case.wait(LONG).await;
        assert!(!group.0.is_closed());
        group.1.set_unreadable(false);
        case.wait(LONG).await;
        assert!(group.0.is_closed());
        assert_eq!(group.0.durable(), group.1.end().address);
    });
}
