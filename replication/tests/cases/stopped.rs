//! Brokers that have stopped, and are still alive as far as anyone knows: who waits for them, and how long.
//! Every bound on a call is far beyond what these cases allow to pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::runtime::{Runtime, RuntimeRef};
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Seal, Transport, TransportRef, Write,
};

use crate::suite::{Plan, Stage};
use crate::{Case, OWNER, Opened, another, append_within, calm, open, planned};

/// As long as a hang, where nobody cuts it short.
const LONG: Duration = Duration::from_secs(600);
/// Longer than any of these cases may take.
const SHORT: Duration = Duration::from_secs(3);
/// When a lease of a stopped broker ends.
const LEASE: Duration = Duration::from_secs(1);

fn patient() -> Plan {
    let mut plan = calm();
    plan.config.call_timeout = LONG;
    plan.config.scan_timeout = LONG;
    plan.config.flush_timeout = LONG;
    plan.config.drain_timeout = LONG;
    plan.config.flush_interval = 10 * LONG;
    plan
}

/// Which calls the stopped broker never answers.
type Stops = fn(&Request) -> bool;

/// A network with a broker that stops: calls to it are not answered, links to it not completed.
struct Stopped {
    inner: TransportRef,
    clock: RuntimeRef,
    at: BrokerId,
    stops: Stops,
    links: Arc<AtomicBool>,
}

impl Transport for Stopped {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let connected = self.inner.connect(to, process);
        let stopped = self.links.clone();
        if to != self.at {
            return connected;
        }
        Box::pin(async move {
            let link: Box<dyn Link> = Box::new(Still {
                link: connected.await?,
                stopped,
            });
            Ok(link)
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let hangs = to == self.at && (self.stops)(&request);
        let call = self.inner.call(to, request);
        if !hangs {
            return call;
        }
        let long = self.clock.sleep(10 * LONG);
        Box::pin(async move {
            long.await;
            call.await
        })
    }
}

struct Still {
    link: Box<dyn Link>,
    stopped: Arc<AtomicBool>,
}

impl Link for Still {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        self.link.submit(writes)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.stopped.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.link.poll_completed(cx)
    }
}

/// A primary at `me` for which `at` stops: at calls at once, at links when the flag says so.
fn primary(
    case: &Case,
    me: BrokerId,
    at: BrokerId,
    stops: Stops,
) -> (Arc<Primary>, Arc<AtomicBool>) {
    let links = Arc::new(AtomicBool::new(false));
    let transport = Arc::new(Stopped {
        inner: case.stage.transport(me),
        clock: case.stage.sim.runtime(None),
        at,
        stops,
        links: links.clone(),
    });
    let records = case.stage.records(me);
    (Arc::new(case.primary_over(me, transport, records)), links)
}

/// The lease of `gone` ends after a while.
fn ends_later(case: &Case, primary: &Arc<Primary>, gone: &[BrokerId]) {
    let clock = case.stage.sim.runtime(None);
    let (primary, gone) = (primary.clone(), gone.to_vec());
    let ending = clock.sleep(LEASE);
    clock.spawn(Box::pin(async move {
        ending.await;
        let peers = primary.peers();
        let left = peers.iter().copied().filter(|peer| !gone.contains(peer));
        let placement = (*primary.placement()).clone();
        primary.set_peers(left.collect(), placement, Vec::new());
    }));
}

/// A group with a record in it, whose owner is gone.
async fn orphaned(case: &Case) -> Opened {
    let (owner, recovered) = case.recover(OWNER, Unclean::Wait).await;
    let lane = case.lane(&owner, &recovered);
    let group = open(&lane, 0);
    append_within(LONG, &lane, &group, 1)
        .await
        .expect("all is well");
    group
}

fn reads(request: &Request) -> bool {
    matches!(request, Request::Seal(Seal { copies, .. }) if !copies.is_empty())
}

#[test]
fn a_stopped_holder_holds_up_no_take_over_of_which_enough_others_have_copies() {
    planned(patient(), |case| async move {
        let group = orphaned(&case).await;
        let stopped = another(&group);
        let (new, _) = primary(&case, BrokerId(3), stopped, reads);
        let begun = case.now();
        let recovered = case.recover_as(&new, Unclean::Wait).await;
        let took = case.now() - begun;
        assert!(took < SHORT, "nobody else was needed: {took:?}");
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 1));
        let closed = &lane.groups[0];
        assert!(closed.copies.iter().all(|h| h.broker != stopped));
        assert!(
            closed.copies.len() >= case.plan.min_insync_replicas,
            "{closed:?}"
        );
    });
}

#[test]
fn a_holder_that_leaves_the_living_while_it_is_sealed_is_waited_for_no_longer() {
    planned(patient(), |case| async move {
        let group = orphaned(&case).await;
        let stopped = another(&group);
        case.stage.kill(OWNER).await;
        let (new, _) = primary(&case, BrokerId(3), stopped, reads);
        ends_later(&case, &new, &[OWNER, stopped]);
        let begun = case.now();
        // Of three copies one is left; the broker that takes over makes another.
        let recovered = case.recover_as(&new, Unclean::Wait).await;
        let took = case.now() - begun;
        assert!(took >= LEASE && took < LEASE + SHORT, "{took:?}");
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 1));
        let closed = &lane.groups[0];
        assert_eq!(closed.copies.len(), 2, "{closed:?}");
    });
}

#[test]
fn a_holder_that_leaves_the_living_while_its_copy_is_completed_is_a_copy_less() {
    planned(patient(), |case| async move {
        let group = orphaned(&case).await;
        let stopped = another(&group);
        let flush = |request: &Request| matches!(request, Request::Flush { .. });
        let (new, _) = primary(&case, BrokerId(3), stopped, flush);
        ends_later(&case, &new, &[stopped]);
        let begun = case.now();
        let recovered = case.recover_as(&new, Unclean::Wait).await;
        let took = case.now() - begun;
        assert!(took < LEASE + SHORT, "{took:?}");
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 1));
        let closed = &lane.groups[0];
        assert!(closed.copies.iter().all(|h| h.broker != stopped));
    });
}

#[test]
fn a_holder_that_lost_its_lease_and_answers_counts() {
    planned(patient(), |case| async move {
        let group = orphaned(&case).await;
        let other = another(&group);
        for holder in group.0.holders() {
            if holder.broker != other {
                case.stage.kill(holder.broker).await;
            }
        }
        // No other copy is left, and nobody counts the broker among the living.
        let new = Arc::new(case.primary(BrokerId(3)));
        let placement = (*new.placement()).clone();
        new.set_peers(vec![BrokerId(3)], placement, Vec::new());
        let recovered = case.recover_as(&new, Unclean::Wait).await;
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 1));
        let closed = &lane.groups[0];
        assert!(closed.copies.iter().any(|h| h.broker == other));
    });
}

#[test]
fn lanes_roll_when_a_silent_backup_leaves_the_living() {
    planned(patient(), |case| async move {
        let at = BrokerId(1);
        let (owner, links) = primary(&case, OWNER, at, |_| false);
        let recovered = case.recover_as(&owner, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let lanes: Vec<_> = (0..4)
            .map(|lane| case.lane_of(&owner, &recovered, LaneId(lane), &next))
            .collect();
        let mut groups = Vec::new();
        for lane in &lanes {
            let group = open(lane, 0);
            append_within(LONG, lane, &group, 1)
                .await
                .expect("all is well");
            assert!(group.0.holders().iter().any(|h| h.broker == at));
            groups.push(group);
        }
        links.store(true, Ordering::SeqCst);
        ends_later(&case, &owner, &[at]);
        let begun = case.now();
        let mut ends = Vec::new();
        for group in &groups {
            ends.push(group.1.append(2, 20).expect("room").end);
            group.0.grew();
        }
        for ((lane, group), end) in lanes.iter().zip(&groups).zip(ends) {
            let acknowledged = group.1.acknowledged(lane, end, LONG);
            acknowledged.await.expect("the others are enough");
        }
        let took = case.now() - begun;
        assert!(took < LEASE + SHORT, "{took:?}");
        assert!(groups.iter().all(|group| group.1.is_frozen()));
        for lane in &lanes {
            let group = open(lane, 2);
            append_within(LONG, lane, &group, 3)
                .await
                .expect("the lane goes on");
            assert!(group.0.holders().iter().all(|h| h.broker != at));
        }
    });
}

#[test]
fn a_backup_that_left_the_living_and_answers_keeps_its_copies() {
    planned(patient(), |case| async move {
        let at = BrokerId(1);
        let (owner, _) = primary(&case, OWNER, at, |_| false);
        let recovered = case.recover_as(&owner, Unclean::Wait).await;
        let lane = case.lane(&owner, &recovered);
        let group = open(&lane, 0);
        append_within(LONG, &lane, &group, 1)
            .await
            .expect("all is well");
        ends_later(&case, &owner, &[at]);
        case.wait(2 * LEASE).await;
        append_within(LONG, &lane, &group, 2)
            .await
            .expect("it answers");
        case.wait(LEASE).await;
        assert!(!group.1.is_frozen(), "no copy was lost");
    });
}

#[test]
fn a_group_begins_without_a_backup_that_does_not_answer() {
    planned(patient(), |case| async move {
        let at = BrokerId(1);
        let describe = |request: &Request| matches!(request, Request::Describe);
        let (owner, _) = primary(&case, OWNER, at, describe);
        let recovered = case.recover_as(&owner, Unclean::Wait).await;
        let lane = case.lane(&owner, &recovered);
        let begun = case.now();
        let group = open(&lane, 0);
        append_within(LONG, &lane, &group, 1)
            .await
            .expect("the others are enough");
        let took = case.now() - begun;
        assert!(took < SHORT, "{took:?}");
        assert!(group.0.holders().iter().all(|h| h.broker != at));
    });
}
