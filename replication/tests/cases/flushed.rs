//! A group is on its holders' disks before it is closed: from then on the record's word counts, also after all of them
//! have lost power. Nobody who appends waits for that.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::GroupId;
use kera_records::GroupRecord;
use kera_replication::ids::CopyId;
use kera_replication::jobs::{Jobs, Mend, Mended, Owned};
use kera_replication::primary::{Lane, Primary};
use kera_replication::recovery::Unclean;
use kera_replication::transport::{CopyState, Pending, Request};

use crate::jobs::{owned, record};
use crate::suite::{Stage, busy};
use crate::trouble::{Bent, Fate};
use crate::{BRIEFLY, Case, OWNER, Opened, another, append, case, open, own, planned};

/// The owner, to which no backup's flush of a closed group is told before `time` has passed.
fn told_late(case: &Case, time: Duration) -> Arc<Primary> {
    let bent = Arc::new(Bent {
        inner: case.stage.transport(OWNER),
        clock: case.stage.sim.runtime(None),
        fate: move |_, request: &Request| match request {
            Request::Flush { closed: true, .. } => Fate::Slow(time),
            _ => Fate::Usual,
        },
    });
    Arc::new(case.primary_over(OWNER, bent, case.stage.records(OWNER)))
}

/// The same for longer than any append waits, and nobody gives up waiting for it.
fn never_told(case: &mut Case) -> Arc<Primary> {
    let never = Duration::from_secs(600);
    case.plan.config.drain_timeout = never;
    case.plan.config.flush_timeout = never;
    told_late(case, never)
}

/// A lane with a batch in its first group.
async fn begin(case: &Case, primary: &Arc<Primary>) -> (Arc<Lane>, Opened) {
    let recovered = case.recover_as(primary, Unclean::Wait).await;
    let lane = case.lane(primary, &recovered);
    let group = open(&lane, 0);
    append(&lane, &group, 1).await.expect("all is well");
    (lane, group)
}

async fn states(case: &Case, group: &Opened) -> Vec<CopyState> {
    let mut states = Vec::new();
    for broker in group.0.holders().iter().map(|holder| holder.broker) {
        let copies = case.copies(broker).await;
        let copy = copies.iter().find(|copy| copy.copy == group.0.id());
        states.extend(copy.map(|copy| copy.state));
    }
    states
}

fn ends(group: &Opened) {
    group.1.freeze();
    group.0.froze();
}

#[test]
fn a_group_is_closed_once_its_holders_have_flushed_it() {
    case(|case| async move {
        let late = case.plan.config.drain_timeout / 2;
        let primary = told_late(&case, late);
        let (lane, group) = begin(&case, &primary).await;
        ends(&group);
        let next = open(&lane, 1);
        let appended = append(&lane, &next, 2).await;
        appended.expect("nobody waits for the group before");
        case.wait(late / 2).await;
        assert!(!group.0.is_closed(), "nobody has said that it is flushed");
        case.wait(late).await;
        assert!(group.0.is_closed());
        assert_eq!(states(&case, &group).await, [CopyState::Flushed; 3]);
        assert!(group.0.group().is_flushed(), "its streamlet was told");
    });
}

#[test]
fn a_flush_that_takes_too_long_holds_up_no_close() {
    case(|case| async move {
        let timeout = case.plan.config.drain_timeout;
        let primary = told_late(&case, 20 * timeout);
        let (_lane, group) = begin(&case, &primary).await;
        ends(&group);
        case.wait(timeout / 2).await;
        assert!(!group.0.is_closed());
        case.wait(timeout).await;
        assert!(group.0.is_closed());
        assert!(!group.0.group().is_flushed(), "no more than that");
    });
}

/// It is closed, and all that have it could lose their power: then nobody says that it stays, before they have it on disk.
#[test]
fn what_is_closed_before_it_is_flushed_stays_once_it_is() {
    case(|case| async move {
        let timeout = case.plan.config.drain_timeout;
        let flush_timeout = case.plan.config.flush_timeout;
        let late = timeout + timeout / 10;
        assert!(late < flush_timeout);
        let primary = told_late(&case, late);
        let (_lane, group) = begin(&case, &primary).await;
        ends(&group);
        case.wait(timeout + timeout / 4).await;
        assert!(group.0.is_closed() && !group.0.group().is_flushed());
        case.wait(2 * timeout).await;
        assert!(group.0.group().is_flushed());
    });
}

/// A streamlet that asks about a group.
struct Asks(Opened);

impl Mend for Asks {
    fn is_settled(&self, _: &GroupRecord) -> bool {
        true
    }

    fn mend(&self, _: &GroupRecord) -> Pending<Mended> {
        Box::pin(async { Mended::NotYet })
    }

    fn unflushed(&self) -> Vec<(GroupId, u32)> {
        let copy = self.0.0.id();
        let is_known = self.0.0.group().is_flushed();
        (!is_known)
            .then_some((copy.group, copy.generation))
            .into_iter()
            .collect()
    }

    fn flushed(&self, record: &GroupRecord) {
        assert_eq!(CopyId::of(record), self.0.0.id());
        self.0.0.group().set_flushed(false);
    }
}

/// The jobs look at what brokers have on their disks, and flush what they have not.
#[test]
fn jobs_say_which_closed_groups_are_on_disk_where_nobody_has_said_so() {
    case(|mut case| async move {
        let primary = never_told(&mut case);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        case.stage.cut(OWNER, another(&group));
        let appended = append(&lane, &group, 2).await;
        appended.expect("two of three have it");
        assert!(group.0.is_closed() && !group.0.group().is_flushed());
        let (copy, set) = (group.0.id(), group.0.clone());

        // Who asks on another way is told.
        let transport = case.stage.transport(OWNER);
        let primary = Arc::new(case.primary_over(OWNER, transport, case.stage.records(OWNER)));
        let owned = Owned {
            mend: Some(Arc::new(Asks(group))),
            ..owned(&case, &recovered)
        };
        let jobs = Jobs::new(&primary, Box::new(move |_| vec![owned.clone()]), busy());
        let unflushed = record(&case, copy).copies;
        assert_eq!(unflushed.len(), 2);
        jobs.round().await;
        assert!(set.group().is_flushed());
        for holder in unflushed {
            let copies = case.copies(holder.broker).await;
            let held = copies.iter().find(|held| held.copy == copy);
            assert_eq!(held.map(|held| held.state), Some(CopyState::Flushed));
        }
    });
}

/// What could be lost with one more replica is closed at once: appends wait for that.
#[test]
fn a_group_that_has_lost_a_replica_is_closed_before_it_is_flushed() {
    case(|mut case| async move {
        let primary = never_told(&mut case);
        let (lane, group) = begin(&case, &primary).await;
        case.stage.cut(OWNER, another(&group));
        // It is acknowledged once the group is closed without the one that is lost.
        let appended = append(&lane, &group, 2).await;
        appended.expect("two of three have it");
        assert!(group.0.is_closed());
    });
}

/// A later group loses a replica: its acknowledgements wait for the closes before its own.
#[test]
fn a_flush_is_not_waited_for_where_a_later_group_loses_a_replica() {
    case(|mut case| async move {
        let primary = never_told(&mut case);
        let (lane, group) = begin(&case, &primary).await;
        ends(&group);
        let next = open(&lane, 1);
        append(&lane, &next, 2).await.expect("nobody waits");
        assert!(!group.0.is_closed());
        case.stage.cut(OWNER, another(&next));
        let appended = append(&lane, &next, 3).await;
        appended.expect("two of three have it");
        assert!(group.0.is_closed() && next.0.is_closed());
    });
}

#[test]
fn groups_of_a_lane_are_flushed_side_by_side() {
    case(|case| async move {
        let late = case.plan.config.drain_timeout / 2;
        let primary = told_late(&case, late);
        let (lane, first) = begin(&case, &primary).await;
        ends(&first);
        let second = open(&lane, 1);
        append(&lane, &second, 2).await.expect("nobody waits");
        ends(&second);
        case.wait(late + late / 2).await;
        assert!(first.0.is_closed() && second.0.is_closed());
    });
}

#[test]
fn a_group_that_its_owner_has_alone_is_synced_before_it_is_closed() {
    planned(own::plan(1, 1), |case| async move {
        let (primary, recovered) = own::take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        let batch = group.1.append(1, 20).expect("room");
        group.0.grew();
        case.stage.write_own(OWNER, &group.0, &group.1);
        let acknowledged = group.1.acknowledged(&lane, batch.end, BRIEFLY).await;
        acknowledged.expect("its one replica has it");
        assert!(group.0.group().synced().address < batch.end);
        ends(&group);
        while !group.0.is_closed() {
            case.wait(Duration::from_millis(1)).await;
        }
        assert_eq!(group.0.group().synced().address, batch.end);
    });
}
