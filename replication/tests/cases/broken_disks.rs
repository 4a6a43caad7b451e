//! Brokers that answer and take no copy, and copies that are not what they should be: the next attempt is
//! another one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_replication::ids::BrokerId;
use kera_replication::jobs::JobStats;
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{Refusal, Request};

use crate::jobs::{bytes, closed, jobs, record};
use crate::scrub::flip;
use crate::suite::{Stage, busy};
use crate::trouble::{Bent, Fate};
use crate::{Case, OWNER, append, case, open};

/// It has no copy at first.
const BROKEN: BrokerId = BrokerId(3);

/// The owner, for which nothing comes to a certain disk; and how often that was tried.
fn primary(case: &Case) -> (Arc<Primary>, Arc<Mutex<u32>>) {
    let tried = Arc::new(Mutex::new(0));
    let count = tried.clone();
    let bent = Arc::new(Bent {
        inner: case.stage.transport(OWNER),
        clock: case.stage.sim.runtime(None),
        fate: move |to, request: &Request| match request {
            Request::Flush { closed: true, .. } if to == BROKEN => {
                *count.lock().unwrap() += 1;
                Fate::Refused(Refusal::Failed("a disk that is full".into()))
            }
            _ => Fate::Usual,
        },
    });
    let primary = case.primary_over(OWNER, bent, case.stage.records(OWNER));
    (Arc::new(primary), tried)
}

#[test]
fn a_group_that_ends_with_too_few_copies_gets_one_where_a_disk_takes_it() {
    case(|case| async move {
        let (primary, tried) = primary(&case);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let others = [BrokerId(1), BrokerId(2)];
        for other in others {
            assert!(group.0.holders().iter().any(|h| h.broker == other));
            case.stage.cut(OWNER, other);
        }
        // Neither has this, so that both are lost.
        group.1.append(2, 20).expect("room");
        group.0.grew();
        case.wait(Duration::from_secs(20)).await;
        assert!(group.1.is_frozen() && !group.0.is_closed());
        let before = *tried.lock().unwrap();
        // A pause of 10 ms would make it 2,000; the longest is 64 times that.
        assert!((2..100).contains(&before), "each sends the group: {before}");
        case.stage.kill(others[0]).await;
        case.stage.heal();
        case.wait(Duration::from_secs(5)).await;
        assert!(group.0.is_closed());
        let closed = record(&case, group.0.id());
        let holders: Vec<_> = closed.copies.iter().map(|h| h.broker).collect();
        assert_eq!(holders, [OWNER, others[1]]);
    });
}

#[test]
fn a_copy_that_a_broken_disk_does_not_take_is_built_elsewhere() {
    case(|case| async move {
        let (primary, tried) = primary(&case);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, empty) = (group.0.id(), BrokerId(2));
        let before = record(&case, copy);
        case.stage.kill_with_memory(empty).await;
        case.stage.start(empty, MemoryFate::Vanished).await;
        let free = Request::Free {
            copy,
            epoch: recovered.epoch,
            version: None,
        };
        case.ask(empty, free).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        for _ in 0..3 {
            jobs.round().await;
        }
        let after = record(&case, copy);
        assert_ne!(after, before);
        assert_eq!((after.copies.len(), *tried.lock().unwrap()), (3, 1));
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_eq!(bytes(&case, empty, copy, before.length).await, whole);
    });
}

/// A copy whose disk has flipped a bit is read first.
async fn spoilt_source(case: Case, scrubs: bool) -> JobStats {
    let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
    let lane = case.lane(&primary, &recovered);
    let group = closed(&case, &lane).await;
    let copy = group.0.id();
    let before = record(&case, copy);
    let (spoilt, lost) = (before.copies[0].broker, before.copies[2].broker);
    let whole = bytes(&case, before.copies[1].broker, copy, before.length).await;
    flip(&case, spoilt, copy, before.length).await;
    case.stage.kill(lost).await;
    let jobs = jobs(&case, &primary, &recovered, busy());
    jobs.round().await;
    case.wait(busy().lost_after).await;
    jobs.round().await;
    assert_eq!(record(&case, copy), before, "what was built is not whole");
    if scrubs {
        jobs.scrub_due().await;
    } else {
        jobs.round().await;
    }
    let after = record(&case, copy);
    let new = after.copies.iter().find(|h| !before.copies.contains(h));
    let new = new.expect("another copy").broker;
    assert_eq!(bytes(&case, new, copy, before.length).await, whole);
    jobs.stats()
}

#[test]
fn a_copy_that_is_not_whole_is_built_from_another_source() {
    case(|case| async move {
        let stats = spoilt_source(case, false).await;
        assert_eq!((stats.built, stats.unsound), (1, 0));
    });
}

#[test]
fn copies_from_which_no_whole_one_comes_are_compared_soon() {
    case(|case| async move {
        let stats = spoilt_source(case, true).await;
        assert_eq!((stats.scrubbed, stats.damaged, stats.mended), (1, 1, 1));
    });
}
