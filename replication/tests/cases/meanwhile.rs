//! What is read takes its time, and something else happens meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::transport::CopyState;
use kera_replication::transport::sim::MemoryFate;

use crate::bent::{self, Answers, Gate, Outcome, closes};
use crate::jobs::{bytes, closed, jobs, record};
use crate::suite::{Plan, Stage, busy};
use crate::{OWNER, Opened, append, calm, case, open, planned};

fn brokers(group: &Opened) -> Vec<BrokerId> {
    let holders = group.0.holders().into_iter();
    holders.map(|holder| holder.broker).collect()
}

/// One group ends without broker 2, which is to give its copy back; another one ends without broker 1,
/// and gets a copy at broker 2 before it is closed. Whoever sees to the first sees the second one's copy
/// as well, and must not take it for left over.
fn built_while_the_records_are_read(faults: Faults, is_kept: bool) {
    let plan = Plan { faults, ..calm() };
    planned(plan, move |mut case| async move {
        let [one, two] = [BrokerId(1), BrokerId(2)];
        let (holds, close) = (Arc::new(AtomicBool::new(false)), Gate::default());
        let (held, gate) = (holds.clone(), close.clone());
        let records = bent::records(&case, OWNER, move |transaction| {
            match closes(transaction) && held.load(Ordering::SeqCst) {
                true => Outcome::Held(gate.clone()),
                false => Outcome::Usual,
            }
        });
        let answers = Answers::default();
        let records = answers.over(&case, records);
        let primary = Primary::new(
            OWNER,
            vec![OWNER, one, two],
            case.stage.transport(OWNER),
            records,
            case.stage.runtime(OWNER),
            case.plan.config,
        );
        let primary = Arc::new(primary.with_faults(faults));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let wide = case.lane_of(&primary, &recovered, LaneId(0), &next);
        let first = open(&wide, 0);
        append(&wide, &first, 1).await.expect("all is well");
        assert_eq!(brokers(&first), [OWNER, one, two]);
        case.plan.replicas = 2;
        let narrow = case.lane_of(&primary, &recovered, LaneId(1), &next);
        let second = open(&narrow, 0);
        append(&narrow, &second, 2).await.expect("all is well");
        assert_eq!(brokers(&second), [OWNER, one]);

        // Broker 1 has all of the first group, and is asked in vain to bring it to its disk. Until that
        // is given up on nobody looks at what broker 2 has left.
        case.stage.cut(OWNER, one);
        case.stage.kill(two).await;
        case.stage.start(two, MemoryFate::Kept).await;
        while !first.0.is_closed() {
            case.wait(Duration::from_millis(1)).await;
        }
        holds.store(true, Ordering::SeqCst);
        let read = answers.hold();
        second.1.append(3, 20).expect("room");
        second.1.freeze();
        second.0.froze();
        close.reached(&case).await;
        let built = case.copies(two).await;
        let built = built.iter().find(|info| info.copy == second.0.id());
        assert_eq!(built.map(|info| info.state), Some(CopyState::Flushed));
        assert!(!read.is_reached(), "it was looked at too early: no test");
        read.reached(&case).await;
        // What was read is of before, and is heard after.
        close.open();
        while !second.0.is_closed() {
            case.wait(Duration::from_millis(1)).await;
        }
        case.wait(Duration::from_millis(100)).await;
        read.open();
        case.wait(Duration::from_secs(1)).await;
        let kept = case.copies(two).await;
        assert!(
            kept.iter().all(|info| info.copy != first.0.id()),
            "nobody has looked: {kept:?}"
        );
        let recorded = record(&case, second.0.id());
        let holders: Vec<_> = recorded.copies.iter().map(|h| h.broker).collect();
        assert_eq!(holders, [OWNER, two]);
        let there = kept.iter().any(|info| info.copy == second.0.id());
        assert_eq!(there, is_kept, "the record names it: {kept:?}");
        if there {
            let whole = bytes(&case, OWNER, second.0.id(), recorded.length).await;
            let built = bytes(&case, two, second.0.id(), recorded.length).await;
            assert_eq!(built, whole);
        }
    });
}

#[test]
fn a_copy_that_is_built_and_recorded_while_the_records_are_read_is_not_freed() {
    built_while_the_records_are_read(Faults::default(), true);
}

/// The rule broken on purpose; it takes too rare a moment for the suite to find it.
#[test]
fn marks_that_are_read_after_the_records_cost_a_recorded_copy() {
    let faults = Faults {
        marks_read_late: true,
        ..Faults::default()
    };
    built_while_the_records_are_read(faults, false);
}

/// A round of jobs begins with what each broker holds. What was opened since is in no list.
#[test]
fn a_group_that_is_younger_than_a_round_of_jobs_lacks_no_copy() {
    case(|case| async move {
        let answers = Answers::default();
        let records = answers.over(&case, case.stage.records(OWNER));
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        let old = closed(&case, &lane).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        let (round, done) = (jobs.clone(), Gate::default());
        let ended = done.clone();
        // The lists are there, and the records are being read.
        let read = answers.hold();
        case.stage.runtime(OWNER).spawn(Box::pin(async move {
            round.round().await;
            ended.open();
        }));
        read.reached(&case).await;
        let young = open(&lane, old.1.end().ordinal);
        append(&lane, &young, 100).await.expect("all is well");
        young.1.freeze();
        young.0.froze();
        while !young.0.is_closed() {
            case.wait(Duration::from_millis(1)).await;
        }
        case.wait(Duration::from_secs(1)).await;
        let before = record(&case, young.0.id());
        assert_eq!(before.copies.len(), 3);
        read.open();
        while !done.is_open() {
            case.wait(Duration::from_millis(1)).await;
        }
        let stats = jobs.stats();
        assert_eq!((stats.built, stats.wanting), (0, 0), "{stats:?}");
        assert_eq!(record(&case, young.0.id()), before);
    });
}
