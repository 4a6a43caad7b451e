//! Rounds of the jobs in which nothing has changed read no records, and what they remember frees nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_records::{GroupRecord, Transaction, Write};
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::{Followed, Jobs};
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;

use crate::jobs::{closed, jobs, record};
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, another, case};

/// Has jobs follow the records up to what the test tells them of.
fn follow(jobs: &Jobs) -> Arc<AtomicU64> {
    let changes = Arc::new(AtomicU64::new(0));
    let told = changes.clone();
    jobs.set_followed(Box::new(move |_| {
        Some(Followed {
            loads: 1,
            changes: told.load(Ordering::Relaxed),
        })
    }));
    changes
}

fn tell(changes: &AtomicU64) {
    changes.fetch_add(1, Ordering::Relaxed);
}

async fn holds(case: &Case, at: BrokerId, copy: CopyId) -> bool {
    let copies = case.copies(at).await;
    copies.iter().any(|info| info.copy == copy)
}

#[test]
fn a_round_in_which_nothing_has_changed_reads_no_records() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        let changes = follow(&jobs);
        let reads = || case.stage.reads();
        let before = reads();
        jobs.round().await;
        assert_eq!(reads() - before, 1, "what is not known is read, once");
        for _ in 0..5 {
            jobs.round().await;
        }
        assert_eq!(reads() - before, 1, "nothing has changed");
        tell(&changes);
        jobs.round().await;
        assert_eq!(reads() - before, 2, "something has");
        // A broker that is away for a while changes no record, and may come back.
        case.stage.kill(another(&group)).await;
        jobs.round().await;
        jobs.round().await;
        assert_eq!(reads() - before, 2);
        // Once it counts as lost there is something to do, whatever is remembered.
        case.wait(busy().lost_after).await;
        jobs.round().await;
        let after = record(&case, group.0.id());
        assert!(after.copies.iter().all(|h| h.broker != another(&group)));
        assert_eq!((after.copies.len(), jobs.stats().built), (3, 1));
    });
}

#[test]
fn what_is_remembered_frees_no_replica_that_was_recorded_since() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let behind = jobs(&case, &primary, &recovered, busy());
        let _nothing_is_told = follow(&behind);
        behind.round().await;
        case.stage.kill(lost).await;
        let repairs = jobs(&case, &primary, &recovered, busy());
        repairs.round().await;
        case.wait(busy().lost_after).await;
        repairs.round().await;
        let moved = record(&case, copy);
        let mut new = moved.copies.iter().map(|holder| holder.broker);
        let new = new.find(|broker| group.0.holders().iter().all(|h| h.broker != *broker));
        let new = new.expect("another one has it now");
        case.stage.start(lost, MemoryFate::Kept).await;
        behind.round().await;
        assert!(holds(&case, new, copy).await, "it is recorded there");
        assert_eq!(record(&case, copy), moved);
        assert!(!holds(&case, lost, copy).await, "it is not recorded there");
    });
}

#[test]
fn a_replica_goes_once_it_is_told_that_its_record_has_gone() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let jobs = jobs(&case, &primary, &recovered, busy());
        let changes = follow(&jobs);
        jobs.round().await;
        let GroupRecord { revision, .. } = record(&case, copy);
        let delete = Write::delete_group(copy.streamlet.group(copy.group), revision);
        let trim = Transaction::of_groups(copy.streamlet, recovered.epoch, [delete]);
        case.stage
            .asked(OWNER)
            .commit_at_once(&trim)
            .expect("it is trimmed");
        tell(&changes);
        jobs.round().await;
        assert!(!holds(&case, at, copy).await);
    });
}
