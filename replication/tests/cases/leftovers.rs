//! What is left over when groups end, and who gives it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::Epoch;
use kera_records::{GroupState, Transaction};
use kera_replication::ids::{BrokerId, StreamletKey};
use kera_replication::records::{Records, RecordsError, RecordsRef, StreamletRecords};
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{CopyState, Pending};

use crate::jobs::jobs_with;
use crate::suite::{Stage, busy};
use crate::{OWNER, another, append, case, open};

#[test]
fn a_copy_that_a_close_leaves_out_gives_its_memory_back() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let lost = another(&group);
        let before = case.describe(lost).await.free_bytes;
        // Its process alone: the copy is found again, sealed, with all its memory.
        case.stage.kill(lost).await;
        case.stage.start(lost, MemoryFate::Kept).await;
        assert_eq!(case.copies(lost).await[0].state, CopyState::Sealed);
        case.wait(Duration::from_secs(3)).await;
        assert!(group.0.is_closed());
        assert_eq!(
            case.copies(lost).await,
            [],
            "nobody will ask for it any more"
        );
        assert!(case.describe(lost).await.free_bytes > before);
    });
}

#[test]
fn a_recovery_frees_what_is_left_at_brokers_that_it_did_not_have_to_ask() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let lost = another(&group);
        case.stage.cut(OWNER, lost);
        case.wait(Duration::from_secs(3)).await;
        assert!(group.0.is_closed(), "without the one that was cut off");
        assert_eq!(case.copies_over(lost).await.len(), 1, "and cannot be told");
        case.stage.heal();
        drop((lane, group, primary));
        let (_primary, _) = case.recover(BrokerId(3), Unclean::Wait).await;
        case.wait(Duration::from_secs(3)).await;
        assert_eq!(case.copies(lost).await, []);
    });
}

#[test]
fn a_closed_copy_whose_flush_was_lost_is_flushed_later() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let holder = another(&group);
        // What was shipped counts, and its holder takes no calls.
        case.stage.pause(holder, true);
        group.1.freeze();
        group.0.froze();
        case.wait(Duration::from_secs(5)).await;
        assert!(group.0.is_closed());
        case.stage.pause(holder, false);
        case.wait(Duration::from_secs(5)).await;
        if case.copies(holder).await[0].state == CopyState::Flushed {
            // A call that waited at the stopped process was carried out after all.
            return;
        }
        drop((lane, group, primary));
        let (_primary, _) = case.recover(BrokerId(3), Unclean::Wait).await;
        case.wait(Duration::from_secs(3)).await;
        assert_eq!(case.copies(holder).await[0].state, CopyState::Flushed);
    });
}

#[test]
fn a_lane_that_is_dropped_leaves_no_task_behind() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&lane, &first, 1).await.expect("all is well");
        // One group waits for a second holder, one for its turn.
        for node in case.stage.nodes().into_iter().filter(|n| *n != OWNER) {
            case.stage.cut(OWNER, node);
        }
        case.wait(Duration::from_secs(2)).await;
        assert!(first.1.is_frozen());
        let second = open(&lane, 1);
        second.1.freeze();
        second.0.froze();
        case.wait(Duration::from_secs(1)).await;
        let sources = [Arc::downgrade(&first.1), Arc::downgrade(&second.1)];
        let broker = Arc::downgrade(&primary);
        drop((lane, first, second, primary));
        case.wait(Duration::from_secs(20)).await;
        assert_eq!(sources.map(|s| s.strong_count()), [0, 0]);
        assert_eq!(broker.strong_count(), 0);
    });
}

#[test]
fn a_healthy_group_ends_with_its_lane() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        case.wait(Duration::from_secs(1)).await;
        let source = Arc::downgrade(&group.1);
        drop((lane, group, primary));
        case.wait(Duration::from_secs(1)).await;
        assert_eq!(
            source.strong_count(),
            0,
            "it waits for news that do not come"
        );
        assert!(
            case.stage.look().groups[0].state == GroupState::Open,
            "nothing was closed"
        );
    });
}

/// Records that do what they are asked, and do not say so; or do not change at all.
struct Deaf {
    inner: RecordsRef,
    deaf: Arc<AtomicBool>,
    stuck: Arc<AtomicBool>,
}

impl Deaf {
    fn hears<T: Send + 'static>(
        &self,
        asked: Pending<Result<T, RecordsError>>,
    ) -> Pending<Result<T, RecordsError>> {
        let deaf = self.deaf.clone();
        Box::pin(async move {
            let answer = asked.await;
            if deaf.load(Ordering::Relaxed) {
                return Err(RecordsError::Unknown("nobody hears".into()));
            }
            answer
        })
    }
}

impl Records for Deaf {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        if self.stuck.load(Ordering::Relaxed) {
            let error = RecordsError::Unknown("it never arrived".into());
            return Box::pin(std::future::ready(Err(error)));
        }
        self.hears(self.inner.try_commit(transaction))
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.hears(self.inner.try_read(streamlet))
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.hears(self.inner.try_take_epoch(streamlet, owner))
    }
}

#[test]
fn groups_that_were_recorded_without_an_answer_are_not_left_behind() {
    case(|case| async move {
        let deaf = Arc::new(AtomicBool::new(false));
        let records = Arc::new(Deaf {
            inner: case.stage.records(OWNER),
            deaf: deaf.clone(),
            stuck: Arc::default(),
        });
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        deaf.store(true, Ordering::Relaxed);
        let group = open(&lane, 0);
        let batch = group.1.append(1, 20).expect("room");
        group.0.grew();
        // Longer than a commit is tried.
        case.wait(Duration::from_secs(30)).await;
        assert!(case.stage.look().groups.len() >= 2, "it was carried out");
        deaf.store(false, Ordering::Relaxed);
        let time = Duration::from_secs(120);
        let acknowledged = group.1.acknowledged(&lane, batch.end, time);
        acknowledged.await.expect("what was recorded is taken over");
        lane.finish().await.expect("still the owner");
        let left = case.stage.look().groups;
        assert!(left.iter().all(|r| r.is_closed()), "{left:?}");
    });
}

#[test]
fn an_end_without_an_answer_can_be_asked_for_again() {
    case(|case| async move {
        let stuck = Arc::new(AtomicBool::new(false));
        let records = Arc::new(Deaf {
            inner: case.stage.records(OWNER),
            deaf: Arc::default(),
            stuck: stuck.clone(),
        });
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        group.1.freeze();
        group.0.froze();
        case.wait(Duration::from_secs(1)).await;
        assert!(case.stage.look().groups.iter().any(|r| !r.is_closed()));
        stuck.store(true, Ordering::Relaxed);
        let error = lane.finish().await.expect_err("no answer");
        assert!(matches!(error, RecordsError::Unknown(_)), "{error}");
        stuck.store(false, Ordering::Relaxed);
        lane.finish().await.expect("still the owner");
        let left = case.stage.look().groups;
        assert!(left.iter().all(|r| r.is_closed()), "{left:?}");
    });
}

#[test]
fn groups_ahead_that_were_recorded_without_an_answer_go_while_the_lane_goes_on() {
    case(|case| async move {
        let deaf = Arc::new(AtomicBool::new(false));
        let records = Arc::new(Deaf {
            inner: case.stage.records(OWNER),
            deaf: deaf.clone(),
            stuck: Arc::default(),
        });
        let (primary, recovered) = case.recover_over(OWNER, records).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&lane, &first, 1).await.expect("all is well");
        first.1.freeze();
        first.0.froze();
        case.wait(Duration::from_secs(1)).await;
        let second = open(&lane, 1);
        deaf.store(true, Ordering::Relaxed);
        append(&lane, &second, 2)
            .await
            .expect("it was recorded ahead");
        // Longer than a commit is tried.
        case.wait(Duration::from_secs(30)).await;
        deaf.store(false, Ordering::Relaxed);
        let open_now = || {
            let mut found = case.stage.look().groups;
            found.retain(|record| !record.is_closed());
            found.len()
        };
        assert!(open_now() > 1, "more was recorded, and nobody knows");
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        // One to find it, one to delete it.
        jobs.round().await;
        jobs.round().await;
        assert_eq!(open_now(), 1, "what takes appends");
        append(&lane, &second, 3).await.expect("the lane goes on");
    });
}
