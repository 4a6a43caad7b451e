//! Copies of closed groups that move, though nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_records::Transaction;
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::{JobConfig, Jobs, Shift};
use kera_replication::placement::Placement;
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;

use crate::jobs::{bytes, closed, jobs, jobs_with, leaves, record};
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, Opened, another, append, case, noticed, open};

/// The broker that has no copy of the group.
fn without(case: &Case, group: &Opened) -> BrokerId {
    let holders = group.0.holders();
    let nodes = case.stage.nodes().into_iter();
    let mut without = nodes.filter(|node| holders.iter().all(|h| h.broker != *node));
    without.next().expect("one that has none")
}

fn shift(copy: CopyId, from: BrokerId, to: Option<BrokerId>) -> Shift {
    Shift {
        streamlet: copy.streamlet,
        group: copy.group,
        from,
        to,
    }
}

fn wanted(jobs: &Arc<Jobs>, shifts: Vec<Shift>) {
    jobs.set_shifts(Box::new(move |most| {
        let shifts = shifts.iter().take(most).copied().collect();
        Box::pin(std::future::ready(shifts))
    }));
}

/// So slow that there is time to do something in the middle.
fn slow(length: u64) -> JobConfig {
    JobConfig {
        bytes_per_second: length / 10,
        ..busy()
    }
}

async fn holds(case: &Case, at: BrokerId, copy: CopyId) -> bool {
    let copies = case.copies_over(at).await;
    copies.iter().any(|info| info.copy == copy)
}

fn names(case: &Case, copy: CopyId) -> Vec<BrokerId> {
    let holders = record(case, copy).copies;
    holders.iter().map(|holder| holder.broker).collect()
}

/// Lets the jobs begin a round, until `to` has something of the group.
async fn begins(case: &Case, jobs: &Arc<Jobs>, to: BrokerId, copy: CopyId) {
    let round = jobs.clone();
    case.stage
        .runtime(OWNER)
        .spawn(Box::pin(async move { round.round().await }));
    while !holds(case, to, copy).await {
        case.wait(Duration::from_millis(50)).await;
    }
}

/// Waits for the end of their first round.
async fn ends(case: &Case, jobs: &Jobs) {
    while jobs.stats().rounds == 0 {
        case.wait(Duration::from_millis(50)).await;
    }
}

async fn a_copy_moves(case: Case) {
    let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
    let lane = case.lane(&primary, &recovered);
    let group = closed(&case, &lane).await;
    let (copy, from) = (group.0.id(), another(&group));
    let (to, length) = (without(&case, &group), record(&case, copy).length);
    let jobs = jobs(&case, &primary, &recovered, slow(length));
    wanted(&jobs, vec![shift(copy, from, Some(to))]);
    begins(&case, &jobs, to, copy).await;
    // In the middle of it all three that are recorded have it.
    let named = names(&case, copy);
    assert!(
        !named.contains(&to),
        "recorded before it is whole: {named:?}"
    );
    assert!(named.contains(&from), "not recorded any more: {named:?}");
    for broker in named {
        assert!(holds(&case, broker, copy).await);
    }
    ends(&case, &jobs).await;
    let named = names(&case, copy);
    assert!(named.contains(&to) && !named.contains(&from), "{named:?}");
    assert_eq!(named.len(), 3);
    assert!(!holds(&case, from, copy).await, "it is freed at once");
    let whole = bytes(&case, OWNER, copy, length).await;
    assert_eq!(bytes(&case, to, copy, length).await, whole);
    let stats = jobs.stats();
    assert_eq!((stats.shifted, stats.failed, stats.wanting), (1, 0, 0));
    // What was meant once is not meant again.
    jobs.round().await;
    assert_eq!(names(&case, copy), named);
    assert_eq!(jobs.stats().shifted, 1);
}

#[test]
fn a_copy_moves_and_there_are_enough_all_the_time() {
    case(a_copy_moves);
}

#[test]
fn a_copy_that_is_recorded_before_it_is_whole_is_noticed() {
    let faults = Faults {
        recorded_before_built: true,
        ..Faults::default()
    };
    noticed(faults, "recorded before it is whole", a_copy_moves);
}

/// Somebody else changes the group's record while a copy is on its way.
async fn a_move_that_comes_too_late(case: Case) {
    let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
    let lane = case.lane(&primary, &recovered);
    let group = closed(&case, &lane).await;
    let (copy, from, to) = (group.0.id(), another(&group), without(&case, &group));
    let before = record(&case, copy);
    let jobs = jobs(&case, &primary, &recovered, slow(before.length));
    wanted(&jobs, vec![shift(copy, from, Some(to))]);
    begins(&case, &jobs, to, copy).await;
    let mut found = case.stage.look().groups.into_iter();
    let found = found.find(|record| CopyId::of(record) == copy);
    let found = found.expect("it is recorded");
    let as_it_was = Transaction::of_groups(copy.streamlet, recovered.epoch, [found.put()]);
    let records = case.stage.records(OWNER);
    records.try_commit(as_it_was).await.expect("it is in time");
    ends(&case, &jobs).await;
    let after = record(&case, copy);
    assert!(after.agrees(&before), "the other change stands: {after:?}");
    assert_eq!(jobs.stats().shifted, 0);
    for broker in names(&case, copy) {
        let there = holds(&case, broker, copy).await;
        assert!(there, "{broker} is recorded, and has been told to free it");
    }
}

#[test]
fn a_move_that_comes_too_late_frees_nothing() {
    case(a_move_that_comes_too_late);
}

#[test]
fn a_copy_that_is_freed_before_the_other_is_recorded_is_noticed() {
    let faults = Faults {
        freed_before_recorded: true,
        ..Faults::default()
    };
    noticed(
        faults,
        "has been told to free it",
        a_move_that_comes_too_late,
    );
}

#[test]
fn a_copy_too_many_is_given_up_and_no_other() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, from) = (group.0.id(), another(&group));
        assert_eq!(names(&case, copy).len(), 4);
        let enough = jobs(&case, &primary, &recovered, busy());
        wanted(&enough, vec![shift(copy, from, None)]);
        enough.round().await;
        assert_eq!(names(&case, copy).len(), 4, "four is what it is to have");
        case.plan.replicas = 3;
        let many = jobs(&case, &primary, &recovered, busy());
        wanted(
            &many,
            vec![shift(copy, OWNER, None), shift(copy, from, None)],
        );
        many.round().await;
        many.round().await;
        let named = names(&case, copy);
        assert_eq!(named.len(), 3);
        assert!(named.contains(&OWNER) && !named.contains(&from));
        assert!(!holds(&case, from, copy).await);
        assert_eq!(many.stats().surplus, 1);
    });
}

#[test]
fn what_lacks_a_copy_does_not_move() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, from) = (group.0.id(), another(&group));
        let holders = group.0.holders();
        let mut others = holders.iter().map(|holder| holder.broker);
        let away = others.find(|broker| *broker != OWNER && *broker != from);
        case.stage.kill(away.expect("three have it")).await;
        let before = record(&case, copy);
        let config = JobConfig {
            lost_after: Duration::from_secs(3600),
            ..busy()
        };
        let jobs = jobs(&case, &primary, &recovered, config);
        wanted(&jobs, vec![shift(copy, from, Some(without(&case, &group)))]);
        jobs.round().await;
        assert_eq!(record(&case, copy), before);
        assert_eq!(jobs.stats().bytes, 0);
    });
}

#[test]
fn no_machine_gets_a_second_copy() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, from, to) = (group.0.id(), another(&group), without(&case, &group));
        let before = record(&case, copy);
        // It would stand beside the owner's.
        let host = |broker: BrokerId| (broker, if broker == to { OWNER } else { broker });
        let hosts = case.stage.nodes().into_iter().map(host);
        let hosts = hosts.map(|(broker, host)| (broker, host.to_string()));
        let placement = Placement::new(hosts, false);
        primary.set_peers(primary.peers().to_vec(), placement, Vec::new());
        let jobs = jobs(&case, &primary, &recovered, busy());
        wanted(&jobs, vec![shift(copy, from, Some(to))]);
        jobs.round().await;
        assert_eq!(record(&case, copy), before);
    });
}

/// Lets a move begin, has something happen to it, and lets it end.
fn broken_off<F: Future<Output = ()> + Send + 'static>(
    what: impl FnOnce(Arc<Case>, Arc<Primary>, BrokerId) -> F + Send + 'static,
) {
    case(|case| async move {
        let case = Arc::new(case);
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, from, to) = (group.0.id(), another(&group), without(&case, &group));
        let before = record(&case, copy);
        let begun = jobs(&case, &primary, &recovered, slow(before.length));
        wanted(&begun, vec![shift(copy, from, Some(to))]);
        begins(&case, &begun, to, copy).await;
        what(case.clone(), primary.clone(), to).await;
        ends(&case, &begun).await;
        assert_eq!(record(&case, copy), before, "nothing has moved");
        assert_eq!(begun.stats().shifted, 0);
        // What was built of it goes.
        let placement = (*primary.placement()).clone();
        primary.set_peers(case.stage.nodes(), placement, Vec::new());
        if !case.stage.is_alive(to) {
            case.stage.start(to, MemoryFate::Kept).await;
        }
        let tidying = jobs(&case, &primary, &recovered, busy());
        for _ in 0..3 {
            tidying.round().await;
        }
        assert!(!holds(&case, to, copy).await, "half a copy stays");
        assert_eq!(record(&case, copy), before);
    });
}

#[test]
fn a_move_ends_when_its_target_goes_away() {
    broken_off(|case, _, to| async move { case.stage.kill(to).await });
}

#[test]
fn a_move_ends_when_its_target_is_to_hold_nothing_more() {
    broken_off(|_, primary, to| async move {
        leaves(&primary, to);
    });
}

#[test]
fn a_move_ends_when_its_target_is_none_of_the_brokers_any_more() {
    broken_off(|_, primary, to| async move {
        let (peers, placement) = (primary.peers(), primary.placement());
        let others = peers.iter().copied().filter(|peer| *peer != to).collect();
        primary.set_peers(others, (*placement).clone(), Vec::new());
    });
}

#[test]
fn an_owner_that_dies_in_the_middle_of_a_move_leaves_it_to_the_next() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, from, to) = (group.0.id(), another(&group), without(&case, &group));
        let before = record(&case, copy);
        let begun = jobs(&case, &primary, &recovered, slow(before.length));
        wanted(&begun, vec![shift(copy, from, Some(to))]);
        begins(&case, &begun, to, copy).await;
        case.stage.kill(OWNER).await;
        drop((lane, group, primary, begun));
        assert_eq!(record(&case, copy), before);
        case.stage.start(OWNER, MemoryFate::Kept).await;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let again = jobs(&case, &primary, &recovered, busy());
        wanted(&again, vec![shift(copy, from, Some(to))]);
        for _ in 0..3 {
            again.round().await;
        }
        let named = names(&case, copy);
        assert!(named.contains(&to) && !named.contains(&from), "{named:?}");
        assert_eq!(named.len(), 3);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_eq!(bytes(&case, to, copy, before.length).await, whole);
        assert!(!holds(&case, from, copy).await);
    });
}

#[test]
fn an_open_group_at_a_broker_that_leaves_ends() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 0).await.expect("all is well");
        let leaving = another(&group);
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        assert!(!group.1.is_frozen(), "it is as it should be");
        leaves(&primary, leaving);
        jobs.round().await;
        assert!(group.1.is_frozen());
        case.wait(Duration::from_secs(1)).await;
        assert!(group.0.is_closed());
        jobs.round().await;
        // Nothing names it any more, not even what is recorded ahead.
        let left = case.stage.look().groups;
        let mut named = left.iter().flat_map(|record| &record.copies);
        assert!(named.all(|holder| holder.broker != leaving), "{left:?}");
        let next = open(&lane, group.1.end().ordinal);
        append(&lane, &next, 1).await.expect("others take it");
        assert!(next.0.holders().iter().all(|h| h.broker != leaving));
        jobs.round().await;
        assert!(!next.1.is_frozen());
        assert_eq!(jobs.stats().renewed, 1);
    });
}

#[test]
fn an_open_group_at_a_broker_that_leaves_goes_on_where_nobody_else_is() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 0).await.expect("all is well");
        let leaving = another(&group);
        leaves(&primary, leaving);
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        jobs.round().await;
        assert!(!group.1.is_frozen());
        assert_eq!(jobs.stats().renewed, 0);
    });
}

#[test]
fn a_round_that_has_more_to_do_is_followed_by_the_next_at_once() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let leaving = another(&group);
        let mut groups = vec![group];
        let mut next = groups[0].1.end().ordinal;
        for _ in 0..5 {
            let group = open(&lane, next);
            append(&lane, &group, next).await.expect("all is well");
            group.1.freeze();
            group.0.froze();
            next = group.1.end().ordinal;
            groups.push(group);
        }
        case.wait(Duration::from_secs(1)).await;
        // A day between two rounds, and one copy in each.
        let config = JobConfig {
            interval: Duration::from_secs(24 * 3600),
            builds: 1,
            ..busy()
        };
        let jobs = jobs(&case, &primary, &recovered, config);
        case.stage
            .runtime(OWNER)
            .spawn(Box::pin(jobs.clone().run()));
        case.wait(Duration::from_secs(60)).await;
        assert_eq!(jobs.stats().rounds, 0);
        leaves(&primary, leaving);
        jobs.ask();
        case.wait(Duration::from_secs(60)).await;
        for group in &groups {
            let named = names(&case, group.0.id());
            assert!(named.len() == 3 && !named.contains(&leaving), "{named:?}");
        }
        let rounds = jobs.stats().rounds;
        assert!(rounds >= 6, "{rounds}");
        case.wait(Duration::from_secs(60)).await;
        assert_eq!(jobs.stats().rounds, rounds, "then there is nothing to do");
    });
}
