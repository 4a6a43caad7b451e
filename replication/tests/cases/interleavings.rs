//! Owners that change at the worst moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::primary::Primary;
use kera_replication::records::RecordsError;
use kera_replication::recovery::{RecoverError, RecoverSpec, Recovered, Unclean, recover};
use kera_replication::runtime::Runtime;
use kera_replication::transport::CopyState;
use kera_replication::transport::sim::MemoryFate;

use crate::bent::{self, Gate, Leash, Outcome, closes};
use crate::suite::Stage;
use crate::suite::scenario::streamlet;
use crate::{Case, OWNER, another, append, case, open};

type Outcomes = Arc<Mutex<Option<Result<Recovered, RecoverError>>>>;

/// Takes over beside everything else.
fn begin_to_recover(case: &Case, primary: &Arc<Primary>) -> Outcomes {
    let spec = RecoverSpec {
        streamlet: streamlet(),
        min_insync_replicas: case.plan.min_insync_replicas,
        unclean: Unclean::Wait,
        starts: BTreeMap::new(),
    };
    let outcome = Outcomes::default();
    let (primary, told) = (primary.clone(), outcome.clone());
    let recovering = async move {
        let recovered = recover(&primary, &spec).await;
        *told.lock().unwrap() = Some(recovered);
    };
    case.stage.sim.runtime(None).spawn(Box::pin(recovering));
    outcome
}

async fn outcome(case: &Case, of: &Outcomes) -> Result<Recovered, RecoverError> {
    loop {
        if let Some(outcome) = of.lock().unwrap().take() {
            return outcome;
        }
        case.wait(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_roll_that_races_a_failover_keeps_what_was_acknowledged() {
    case(|case| async move {
        // The close of the full group is on its way while the lane goes on in the next.
        let gate = Gate::default();
        let held = gate.clone();
        let records = bent::records(&case, OWNER, move |transaction| {
            if closes(transaction) {
                Outcome::Held(held.clone())
            } else {
                Outcome::Usual
            }
        });
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&lane, &first, 1).await.expect("all is well");
        first.1.freeze();
        first.0.froze();
        let second = open(&lane, 1);
        append(&lane, &second, 2).await.expect("the lane goes on");
        gate.reached(&case).await;

        let (_, after) = case.recover(BrokerId(3), Unclean::Wait).await;
        assert_eq!(
            (after.lanes[0].next_ordinal, &after.lanes[0].stopped),
            (2, &None)
        );
        let before = case.stage.look();
        gate.open();
        case.wait(Duration::from_secs(1)).await;
        assert_eq!(case.stage.look(), before, "the late close is refused");
        assert!(
            matches!(lane.deposed(), Some(RecordsError::Epoch { .. })),
            "{:?}",
            lane.deposed()
        );
        append(&lane, &second, 3).await.expect_err("it is over");
        let (_, again) = case.recover(BrokerId(2), Unclean::Wait).await;
        assert_eq!(again.lanes[0].next_ordinal, 2);
    });
}

/// A backup is lost, and of the close that leaves it out nobody hears.
fn shrink(fate: fn() -> Outcome) {
    case(move |case| async move {
        let told = Arc::new(AtomicBool::new(false));
        let once = told.clone();
        let records = bent::records(&case, OWNER, move |transaction| {
            if closes(transaction) && !once.swap(true, Ordering::SeqCst) {
                fate()
            } else {
                Outcome::Usual
            }
        });
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let lost = another(&group);
        case.stage.kill(lost).await;
        append(&lane, &group, 2)
            .await
            .expect("acknowledged either way");
        while !group.0.is_closed() {
            case.wait(Duration::from_millis(10)).await;
        }
        assert!(told.load(Ordering::SeqCst), "the close was asked for");
        let found = case.stage.look();
        let record = found.groups.iter().find(|r| CopyId::of(r) == group.0.id());
        let closed = record.filter(|r| r.is_closed()).expect("it is closed");
        assert_eq!(closed.end_ordinal, 2);
        assert!(closed.copies.iter().all(|h| h.broker != lost));
        let next = open(&lane, 2);
        append(&lane, &next, 3).await.expect("the lane goes on");
        let (_, after) = case.recover(BrokerId(3), Unclean::Wait).await;
        assert_eq!(after.lanes[0].next_ordinal, 3);
        assert!(after.lanes[0].gaps.is_empty());
    });
}

#[test]
fn a_shrink_that_happened_unheard_is_read_back() {
    shrink(|| Outcome::AnswerLost);
}

#[test]
fn a_shrink_that_did_not_happen_is_asked_for_again() {
    shrink(|| Outcome::Lost);
}

#[test]
fn an_owner_stalled_between_seal_and_close_changes_nothing_any_more() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        for id in 0..3 {
            append(&lane, &group, id).await.expect("all is well");
        }
        let gate = Gate::default();
        let held = gate.clone();
        let slow = BrokerId(1);
        let records = bent::records(&case, slow, move |transaction| {
            if closes(transaction) {
                Outcome::Held(held.clone())
            } else {
                Outcome::Usual
            }
        });
        let stalled = Arc::new(case.primary_over(slow, case.stage.transport(slow), records));
        let stalled = begin_to_recover(&case, &stalled);
        gate.reached(&case).await;
        append(&lane, &group, 3)
            .await
            .expect_err("its copies are sealed");

        let (primary, recovered) = case.recover(BrokerId(2), Unclean::Wait).await;
        let kept = recovered.lanes[0].next_ordinal;
        assert!(kept >= 3, "{recovered:?}");
        let lane = case.lane(&primary, &recovered);
        let next = open(&lane, kept);
        append(&lane, &next, 4).await.expect("it serves");
        let before = case.stage.look();
        gate.open();
        let told = outcome(&case, &stalled).await;
        assert!(
            matches!(told, Err(RecoverError::Records(RecordsError::Epoch { .. }))),
            "{told:?}"
        );
        assert_eq!(case.stage.look(), before);
        append(&lane, &next, 5).await.expect("it still serves");
        let (_, last) = case.recover(BrokerId(3), Unclean::Wait).await;
        assert_eq!(last.lanes[0].next_ordinal, kept + 2);
    });
}

#[test]
fn of_two_would_be_owners_one_serves() {
    for delay in 0..30 {
        case(move |case| async move {
            let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = case.lane(&primary, &recovered);
            let group = open(&lane, 0);
            for id in 0..3 {
                append(&lane, &group, id).await.expect("all is well");
            }
            let one = Arc::new(case.primary(BrokerId(1)));
            let other = Arc::new(case.primary(BrokerId(2)));
            let first = begin_to_recover(&case, &one);
            case.wait(Duration::from_millis(delay)).await;
            let second = begin_to_recover(&case, &other);
            let mut lanes = Vec::new();
            for (primary, told) in [(&one, &first), (&other, &second)] {
                match outcome(&case, told).await {
                    Ok(recovered) if recovered.lanes[0].stopped.is_none() => {
                        assert!(recovered.lanes[0].next_ordinal >= 3, "{recovered:?}");
                        lanes.push((case.lane(primary, &recovered), recovered));
                    }
                    // It was overtaken.
                    Ok(_) | Err(_) => {}
                }
            }
            let newest = case.stage.look().streamlet.epoch;
            let mut served = 0;
            for (lane, recovered) in &lanes {
                let next = open(lane, recovered.lanes[0].next_ordinal);
                let taken = append(lane, &next, 4).await;
                assert_eq!(taken.is_ok(), recovered.epoch == newest, "{taken:?}");
                served += u64::from(taken.is_ok());
            }
            assert_eq!(served, 1, "{delay} ms apart");
            let (_, last) = case.recover(BrokerId(3), Unclean::Wait).await;
            assert_eq!(last.lanes[0].next_ordinal, 4, "{delay} ms apart");
        });
    }
}

#[test]
fn a_hand_over_cut_at_any_step_loses_nothing() {
    for step in 0.. {
        let whole = Arc::new(AtomicBool::new(false));
        let told = whole.clone();
        case(move |case| async move {
            let leash = Leash::new();
            let transport = leash.transport(&case, OWNER);
            let records = leash.records(&case, OWNER);
            let primary = Arc::new(case.primary_over(OWNER, transport, records));
            let recovered = case.recover_as(&primary, Unclean::Wait).await;
            let lane = case.lane(&primary, &recovered);
            let first = open(&lane, 0);
            append(&lane, &first, 1).await.expect("all is well");
            first.1.freeze();
            first.0.froze();
            let second = open(&lane, 1);
            append(&lane, &second, 2).await.expect("all is well");
            leash.shorten(step);
            let finished = Arc::new(AtomicBool::new(false));
            let done = finished.clone();
            let finishing = lane.clone();
            let finish = async move {
                if finishing.finish().await.is_ok() {
                    done.store(true, Ordering::SeqCst);
                }
            };
            case.stage.runtime(OWNER).spawn(Box::pin(finish));
            case.wait(Duration::from_secs(2)).await;
            let finished = finished.load(Ordering::SeqCst);
            if finished {
                let left = case.stage.look().groups;
                assert!(left.iter().all(|r| r.is_closed()), "{left:?}");
            }
            // Whoever is next is not told how far it came.
            case.stage.kill(OWNER).await;
            let (primary, after) = case.recover(BrokerId(2), Unclean::Wait).await;
            let found = &after.lanes[0];
            assert_eq!(
                (found.next_ordinal, &found.stopped),
                (2, &None),
                "step {step}"
            );
            assert!(found.gaps.is_empty(), "step {step}: {found:?}");
            let lane = case.lane(&primary, &after);
            let next = open(&lane, 2);
            append(&lane, &next, 3).await.expect("the lane goes on");
            told.store(finished, Ordering::SeqCst);
        });
        if whole.load(Ordering::SeqCst) {
            assert!(step > 2, "there are no steps to be cut at");
            return;
        }
        assert!(step < 200, "a hand-over has no end");
    }
}

#[test]
fn a_zombie_that_wakes_after_its_successor_acknowledges_nothing() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        // Stopped with bytes on their way.
        group.1.append(2, 20).expect("room");
        group.0.grew();
        case.stage.pause(OWNER, true);
        let (next_primary, after) = case.recover(BrokerId(3), Unclean::Wait).await;
        let kept = after.lanes[0].next_ordinal;
        assert!((1..=2).contains(&kept), "{after:?}");
        let next_lane = case.lane(&next_primary, &after);
        let next = open(&next_lane, kept);
        append(&next_lane, &next, 4).await.expect("it serves");
        case.stage.heal();
        // It goes on where it was stopped, and still believes that it is the owner.
        append(&lane, &group, 3).await.expect_err("it is over");
        case.wait(Duration::from_secs(1)).await;
        append(&next_lane, &next, 5).await.expect("it still serves");
        let (_, last) = case.recover(BrokerId(2), Unclean::Wait).await;
        assert_eq!(last.lanes[0].next_ordinal, kept + 2);
    });
}

#[test]
fn a_busy_lane_has_several_groups_recorded_with_one_transaction() {
    case(|mut case| async move {
        case.plan.config.ahead_busy = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let unused = |case: &Case, used: &[CopyId]| {
            let mut found = case.stage.look().groups;
            found.retain(|r| !used.contains(&CopyId::of(r)) && !r.is_closed());
            found
        };
        let first = open(&lane, 0);
        append(&lane, &first, 1).await.expect("all is well");
        let used = [first.0.id()];
        while unused(&case, &used).is_empty() {
            case.wait(Duration::from_millis(10)).await;
        }
        case.wait(Duration::from_millis(100)).await;
        assert_eq!(unused(&case, &used).len(), 1, "an idle lane holds little");
        first.1.freeze();
        first.0.froze();
        let second = open(&lane, 1);
        append(&lane, &second, 2).await.expect("it was recorded");
        let used = [used[0], second.0.id()];
        while unused(&case, &used).is_empty() {
            case.wait(Duration::from_millis(10)).await;
        }
        let ahead = unused(&case, &used);
        assert_eq!(ahead.len(), 4);
        let revision = ahead[0].revision;
        assert!(ahead.iter().all(|r| r.revision == revision), "{ahead:?}");
    });
}

#[test]
fn a_zombie_that_opens_a_group_recorded_ahead_finds_it_sealed() {
    case(|mut case| async move {
        case.plan.config.ahead = 2;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let ahead = |case: &Case| {
            let mut found = case.stage.look().groups;
            found.retain(|r| CopyId::of(r) != group.0.id() && r.epoch == recovered.epoch);
            found
        };
        while ahead(&case).is_empty() {
            case.wait(Duration::from_millis(10)).await;
        }
        let (_, after) = case.recover(BrokerId(3), Unclean::Wait).await;
        assert_eq!(after.lanes[0].next_ordinal, 1);
        assert!(ahead(&case).is_empty(), "the new owner has no use for them");
        // It needs to ask nobody for the next group.
        group.1.freeze();
        let next = open(&lane, 1);
        append(&lane, &next, 2).await.expect_err("it is over");
        for node in case.stage.nodes() {
            let copies = case.copies_over(node).await;
            let open = copies
                .iter()
                .any(|info| info.copy == next.0.id() && info.state == CopyState::Open);
            assert!(!open, "{node} lets a zombie write: {copies:?}");
        }
        let (_, last) = case.recover(BrokerId(2), Unclean::Wait).await;
        assert_eq!(last.lanes[0].next_ordinal, 1);
    });
}

#[test]
fn a_copy_that_returns_longer_than_the_record_does_not_count() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        // One of the copies alone gets more.
        let longer = another(&group);
        for holder in group.0.holders() {
            if holder.broker != longer {
                case.stage.cut(OWNER, holder.broker);
            }
        }
        group.1.append(2, 20).expect("room");
        group.0.grew();
        case.wait(Duration::from_millis(100)).await;
        case.stage.kill(longer).await;
        case.stage.kill(OWNER).await;
        case.stage.heal();
        let next_owner = case
            .stage
            .nodes()
            .into_iter()
            .find(|node| *node != OWNER && *node != longer)
            .expect("four brokers");
        let (primary, after) = case.recover(next_owner, Unclean::Wait).await;
        assert_eq!(
            (after.lanes[0].next_ordinal, &after.lanes[0].stopped),
            (1, &None)
        );
        let lane = case.lane(&primary, &after);
        let next = open(&lane, 1);
        append(&lane, &next, 7).await.expect("it serves");

        case.stage.start(longer, MemoryFate::Kept).await;
        let held = case.copies_over(longer).await;
        assert!(
            held.iter().any(|info| info.copy == group.0.id()),
            "it came back without its copy: no test"
        );
        let (_, last) = case.recover(longer, Unclean::Wait).await;
        assert_eq!(last.lanes[0].next_ordinal, 2);
        let found = case.stage.look();
        let record = found.groups.iter().find(|r| CopyId::of(r) == group.0.id());
        let closed = record.filter(|r| r.is_closed()).expect("it is closed");
        assert_eq!(closed.end_ordinal, 1, "what was not acknowledged came back");
        assert!(closed.copies.iter().all(|h| h.broker != longer));
    });
}
