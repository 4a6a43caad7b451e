//! Owners that are deposed: nothing is acknowledged from then on, and no append waits in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_records::{Transaction, Write};
use kera_replication::ids::{AckPolicy, BrokerId, CopyId};
use kera_replication::recovery::Unclean;
use kera_replication::runtime::within;

use crate::bent::{self, Gate, Outcome};
use crate::own::take_over;
use crate::suite::check::Model;
use crate::suite::scenario::streamlet;
use crate::suite::served::{Served, durable};
use crate::suite::test_group::{TestGroup, Unacknowledged};
use crate::suite::{Plan, Stage, StageRef};
use crate::{BRIEFLY, Case, OWNER, calm, open, planned};

/// Another broker becomes the owner. It has sealed nothing yet, so that only the records know.
const NEXT: BrokerId = BrokerId(3);

fn own() -> Plan {
    Plan {
        own: true,
        ..calm()
    }
}

async fn is_taken_over(case: &Case) {
    let taken = case.stage.records(NEXT).try_take_epoch(streamlet(), NEXT);
    taken.await.expect("its records are there");
}

/// Whether a transaction records groups and ends none.
fn opens(transaction: &Transaction) -> bool {
    let mut writes = transaction.write.iter();
    !transaction.write.is_empty()
        && writes.all(|write| matches!(write, Write::PutGroup(record) if !record.is_closed()))
}

/// The last replica has it, and who asks for the durable head must not see that.
#[test]
fn what_a_replica_completes_once_the_owner_is_deposed_is_not_acknowledged() {
    planned(own(), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        let batch = group.1.append(1, 20).expect("room");
        group.0.grew();
        case.wait(Duration::from_secs(1)).await;
        assert_eq!(group.0.durable(), 0, "its own file has nothing yet");
        is_taken_over(&case).await;
        // The owner finds out with the record that the lane's next group needs.
        let copy = CopyId {
            group: lane.next_group(AckPolicy::Written),
            ..group.0.id()
        };
        let next = TestGroup::new(copy, LaneId(0), 1);
        let owner: Arc<dyn GroupOwner> = group.1.clone();
        let _next = next.open_as(&lane, &owner);
        let told = group.1.acknowledged(&lane, batch.end, BRIEFLY).await;
        let told = told.expect_err("another broker owns the streamlet");
        assert!(matches!(told, Unacknowledged::Deposed(_)), "{told:?}");
        group.0.own_completed(batch.end);
        assert_eq!(group.0.durable(), batch.end, "every replica has it now");
        assert_eq!(group.1.durable_head(), 0, "a successor may cut it");
    });
}

/// The lane that finds out has no group just then, and the streamlet's other lane would not find out for long.
#[test]
fn an_owner_deposed_between_two_groups_of_a_lane_answers_every_append() {
    planned(own(), |case| async move {
        let (is_held, gate) = (Arc::new(AtomicBool::new(false)), Gate::default());
        let (holds, held) = (is_held.clone(), gate.clone());
        let records = bent::records(&case, OWNER, move |transaction| {
            match holds.load(Ordering::SeqCst) && opens(transaction) {
                true => Outcome::Held(held.clone()),
                false => Outcome::Usual,
            }
        });
        let primary = case.primary_over(OWNER, case.stage.transport(OWNER), records);
        let own = case.stage.own(OWNER).expect("it has files");
        let primary = Arc::new(primary.with_own(own));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let (stage, model): (StageRef, _) = (case.stage.clone(), Model::default());
        let served = Served::take_over(&stage, &case.plan, &primary, &recovered, &model);
        let served = served.await.expect("it is served");
        let (lane, other) = (LaneId(0), LaneId(1));
        let append = |lane, id| served.append(lane, id, 20).expect("it is taken");

        assert!(durable(append(lane, 1).expect("it is the owner")).await);
        case.wait(Duration::from_secs(1)).await;
        // The group after it was recorded with it, and is closed before the one after that is recorded.
        is_held.store(true, Ordering::SeqCst);
        assert!(served.end_group(lane));
        assert!(durable(append(lane, 2).expect("it is the owner")).await);
        gate.reached(&case).await;
        assert!(served.end_group(lane));
        let closed = served.lane(lane).closed_frozen().await;
        closed.expect("it is the owner");
        for node in case.stage.nodes().into_iter().filter(|node| *node != OWNER) {
            case.stage.cut(OWNER, node);
        }
        let waits = append(other, 3).expect("it is the owner");
        is_taken_over(&case).await;
        gate.open();
        let clock = primary.runtime().clone();
        let told = within(&*clock, BRIEFLY, Box::pin(durable(waits))).await;
        assert_eq!(told, Some(false), "it waits in vain");
        assert!(append(lane, 4).is_none(), "it would wait in vain");
    });
}
