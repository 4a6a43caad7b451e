//! Closed groups get back the copies that they have lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_records::GroupRecord;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::{JobConfig, Jobs, Owned};
use kera_replication::primary::{Lane, Primary};
use kera_replication::recovery::{Recovered, Unclean};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{CopyState, Reply, Request};

use crate::suite::scenario::streamlet;
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, Opened, another, append, case, open};

pub fn jobs(
    case: &Case,
    primary: &Arc<Primary>,
    recovered: &Recovered,
    config: JobConfig,
) -> Arc<Jobs> {
    jobs_with(case, primary, recovered, config, Weak::new())
}

/// What a case's owner owns, without lanes that are open.
pub fn owned(case: &Case, recovered: &Recovered) -> Owned {
    Owned {
        streamlet: streamlet(),
        epoch: recovered.epoch,
        replicas: case.plan.replicas,
        min_insync_replicas: case.plan.min_insync_replicas,
        lanes: Vec::new(),
        mend: None,
    }
}

pub fn jobs_with(
    case: &Case,
    primary: &Arc<Primary>,
    recovered: &Recovered,
    config: JobConfig,
    lane: Weak<Lane>,
) -> Arc<Jobs> {
    let owned = owned(case, recovered);
    let now = move |_| {
        vec![Owned {
            lanes: lane.upgrade().into_iter().collect(),
            ..owned.clone()
        }]
    };
    Jobs::new(primary, Box::new(now), config)
}

/// A broker is to hold nothing more.
pub fn leaves(primary: &Primary, leaving: BrokerId) {
    let (peers, placement) = (primary.peers(), primary.placement());
    primary.set_peers(peers.to_vec(), (*placement).clone(), vec![leaving]);
}

/// A group of some batches that is closed and flushed.
pub async fn closed(case: &Case, lane: &Arc<Lane>) -> Opened {
    let group = open(lane, 0);
    for id in 0..12 {
        append(lane, &group, id).await.expect("all is well");
    }
    group.1.freeze();
    group.0.froze();
    case.wait(Duration::from_secs(1)).await;
    assert!(group.0.is_closed());
    group
}

pub fn record(case: &Case, copy: CopyId) -> GroupRecord {
    let found = case.stage.look();
    let record = found.groups.iter().find(|r| CopyId::of(r) == copy);
    let closed = record.filter(|r| r.is_closed());
    closed.cloned().expect("it is closed")
}

pub async fn bytes(case: &Case, at: BrokerId, copy: CopyId, len: u64) -> Vec<u8> {
    let read = Request::Read {
        copy,
        address: 0,
        len: len as u32,
    };
    match case.ask(at, read).await {
        Reply::Bytes(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_that_is_lost_is_built_elsewhere() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.round().await;
        assert_eq!(record(&case, copy), before, "nothing is wanting");
        assert_eq!(jobs.stats().wanting, 0);

        case.stage.kill(lost).await;
        jobs.round().await;
        assert_eq!(record(&case, copy), before, "it may come back");
        case.wait(busy().lost_after).await;
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        assert!(after.copies.iter().all(|h| h.broker != lost), "{after:?}");
        let new = after.copies.iter().find(|h| !before.copies.contains(h));
        let new = new.expect("another one").broker;
        let info = case.copies(new).await;
        assert_eq!(
            info.iter().find(|i| i.copy == copy).map(|i| i.state),
            Some(CopyState::Flushed)
        );
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_eq!(bytes(&case, new, copy, before.length).await, whole);
        let stats = jobs.stats();
        assert_eq!((stats.built, stats.bytes), (1, before.length));

        // The one that was lost comes back with its copy, which nobody needs any more.
        case.stage.start(lost, MemoryFate::Kept).await;
        jobs.round().await;
        assert!(case.copies(lost).await.iter().all(|info| info.copy != copy));
    });
}

/// Its lease has ended: nobody asks it for anything any more.
#[test]
fn a_copy_at_a_broker_that_left_the_living_is_built_elsewhere() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let jobs = jobs(&case, &primary, &recovered, busy());
        case.stage.kill(lost).await;
        let (peers, placement) = (primary.peers(), primary.placement());
        let alive = peers.iter().copied().filter(|peer| *peer != lost);
        primary.set_peers(alive.collect(), (*placement).clone(), Vec::new());
        jobs.round().await;
        assert_eq!(record(&case, copy), before, "it may come back");
        case.wait(busy().lost_after).await;
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        assert!(after.copies.iter().all(|h| h.broker != lost), "{after:?}");
        assert_eq!(jobs.stats().wanting, 1);

        // It comes back, and counts anew from when it is away again.
        case.stage.start(lost, MemoryFate::Kept).await;
        primary.set_peers(peers.to_vec(), (*placement).clone(), Vec::new());
        jobs.round().await;
        assert_eq!(jobs.stats().wanting, 0);
    });
}

#[test]
fn a_broker_that_came_back_empty_takes_a_copy_again() {
    case(|mut case| async move {
        // All four brokers have one, so that nobody else is left.
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        case.stage.kill_with_memory(lost).await;
        case.stage.start(lost, MemoryFate::Vanished).await;
        let free = Request::Free {
            copy,
            epoch: recovered.epoch,
            version: None,
        };
        case.ask(lost, free).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 4);
        assert_ne!(after.copies, before.copies, "under its new incarnation");
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_eq!(bytes(&case, lost, copy, before.length).await, whole);
    });
}

#[test]
fn a_broker_that_leaves_gives_its_copies_to_others() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, leaving) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let jobs = jobs(&case, &primary, &recovered, busy());
        leaves(&primary, leaving);
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        assert!(after.copies.iter().all(|h| h.broker != leaving));
        let new = after.copies.iter().find(|h| !before.copies.contains(h));
        let new = new.expect("another one").broker;
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_eq!(bytes(&case, new, copy, before.length).await, whole);
        assert_eq!(jobs.stats().wanting, 0, "there were enough all the time");
        jobs.round().await;
        assert!(
            case.copies(leaving)
                .await
                .iter()
                .all(|info| info.copy != copy)
        );
    });
}

#[test]
fn a_broker_that_leaves_keeps_what_nobody_else_can_take() {
    case(|mut case| async move {
        // All four brokers have one, so that nobody else is left.
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, leaving) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let jobs = jobs(&case, &primary, &recovered, busy());
        leaves(&primary, leaving);
        jobs.round().await;
        assert_eq!(record(&case, copy), before);
        let stats = jobs.stats();
        assert_eq!((stats.wanting, stats.failed, stats.built), (0, 0, 0));
    });
}

/// More are recorded than are asked for, as after a take-over by a broker that held none. Silent ones may come back; until
/// then the one that leaves is needed.
#[test]
fn a_broker_that_leaves_keeps_what_only_silent_ones_have_besides() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, leaving) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        case.plan.replicas = 3;
        let jobs = jobs(&case, &primary, &recovered, busy());
        let others = case.stage.nodes();
        let others = others
            .into_iter()
            .filter(|at| ![OWNER, leaving].contains(at));
        let silent: Vec<_> = others.collect();
        for broker in &silent {
            case.stage.kill(*broker).await;
        }
        leaves(&primary, leaving);
        jobs.round().await;
        assert_eq!(record(&case, copy), before);
        let kept = case.copies(leaving).await;
        assert!(kept.iter().any(|info| info.copy == copy), "{kept:?}");

        // With one of them there are enough that can be read.
        case.stage.start(silent[0], MemoryFate::Kept).await;
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        assert!(
            after.copies.iter().all(|h| h.broker != leaving),
            "{after:?}"
        );
        let kept = case.copies(leaving).await;
        assert!(kept.iter().all(|info| info.copy != copy), "{kept:?}");
    });
}

#[test]
fn an_open_group_with_too_few_copies_ends_once_more_can_be_had() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let away = BrokerId(3);
        case.stage.kill(away).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let short = open(&lane, 0);
        append(&lane, &short, 0).await.expect("three are enough");
        assert_eq!(short.0.holders().len(), 3);
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        assert!(!short.1.is_frozen(), "nobody else could take a replica");
        append(&lane, &short, 1).await.expect("it goes on");

        case.stage.start(away, MemoryFate::Kept).await;
        jobs.round().await;
        assert!(short.1.is_frozen());
        assert_eq!(jobs.stats().renewed, 1);
        case.wait(Duration::from_secs(1)).await;
        assert!(short.0.is_closed());
        let left = case.stage.look().groups;
        assert_eq!(left.len(), 1, "what was recorded ahead is gone: {left:?}");
        let next = open(&lane, short.1.end().ordinal);
        append(&lane, &next, 2).await.expect("all are there");
        assert_eq!(next.0.holders().len(), 4);
        jobs.round().await;
        assert_eq!(record(&case, short.0.id()).copies.len(), 4);
        let stats = jobs.stats();
        assert_eq!((stats.renewed, stats.built, stats.wanting), (1, 1, 1));
        jobs.round().await;
        assert_eq!(jobs.stats().wanting, 0);
        assert!(!next.1.is_frozen(), "it has all its copies");
    });
}

#[test]
fn a_job_that_is_broken_off_leaves_nothing_that_counts_and_is_done_again() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let length = record(&case, copy).length;
        case.stage.kill(lost).await;
        let target = case.stage.nodes().into_iter().find(|node| {
            let holders = group.0.holders();
            holders.iter().all(|h| h.broker != *node)
        });
        let target = target.expect("one that has none");
        // So slowly that it is in the middle of it when its broker dies.
        let slow = JobConfig {
            bytes_per_second: length / 10,
            lost_after: Duration::ZERO,
            ..busy()
        };
        let begun = jobs(&case, &primary, &recovered, slow);
        let round = begun.clone();
        case.stage
            .runtime(OWNER)
            .spawn(Box::pin(async move { round.round().await }));
        while !case
            .copies_over(target)
            .await
            .iter()
            .any(|info| info.copy == copy)
        {
            case.wait(Duration::from_millis(50)).await;
        }
        case.stage.kill(OWNER).await;
        drop((lane, group, primary, begun));
        assert_eq!(record(&case, copy).copies.len(), 3, "nothing is recorded");
        assert!(
            record(&case, copy)
                .copies
                .iter()
                .all(|h| h.broker != target)
        );

        let owner = target;
        let (primary, recovered) = case.recover(owner, Unclean::Wait).await;
        let again = jobs(
            &case,
            &primary,
            &recovered,
            JobConfig {
                lost_after: Duration::ZERO,
                ..busy()
            },
        );
        case.stage.start(OWNER, MemoryFate::Kept).await;
        for _ in 0..3 {
            again.round().await;
        }
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        for holder in &after.copies {
            let found = bytes(&case, holder.broker, copy, length).await;
            assert_eq!(found, bytes(&case, OWNER, copy, length).await);
        }
    });
}

#[test]
fn a_short_copy_does_not_count_as_one() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 0).await.expect("all is well");
        // It is on disk as far as this.
        case.wait(2 * case.plan.config.flush_interval).await;
        for id in 1..8 {
            append(&lane, &group, id).await.expect("all is well");
        }
        let (copy, lost) = (group.0.id(), another(&group));
        // Closed, and its holder loses power before it has flushed the rest.
        case.stage.pause(lost, true);
        group.1.freeze();
        group.0.froze();
        while !group.0.is_closed() {
            case.wait(Duration::from_millis(1)).await;
        }
        case.stage.kill(lost).await;
        case.stage.start(lost, MemoryFate::PowerLost).await;
        case.wait(Duration::from_secs(1)).await;
        let before = record(&case, copy);
        assert!(before.copies.iter().any(|h| h.broker == lost), "{before:?}");
        assert!(case.copies(lost).await.iter().any(|info| info.copy == copy));
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.round().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        assert_ne!(after.copies, before.copies);
        for holder in &after.copies {
            let whole = bytes(&case, OWNER, copy, before.length).await;
            assert_eq!(
                bytes(&case, holder.broker, copy, before.length).await,
                whole
            );
        }
    });
}

#[test]
fn a_deposed_owners_jobs_change_nothing() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        case.stage.kill(lost).await;
        let zombie = jobs(
            &case,
            &primary,
            &recovered,
            JobConfig {
                lost_after: Duration::ZERO,
                ..busy()
            },
        );
        let (_after, _) = case.recover(BrokerId(3), Unclean::Wait).await;
        let before = record(&case, copy);
        zombie.round().await;
        zombie.round().await;
        assert_eq!(record(&case, copy), before);
        let stats = zombie.stats();
        assert_eq!((stats.built, stats.freed, stats.bytes), (0, 0, 0));
    });
}
