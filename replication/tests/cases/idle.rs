//! A machine that loses its power ends no connection, and over one that carries nothing nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef, Write,
};

use crate::jobs::{jobs_with, record};
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, Opened, another, append, case, open};

/// A network whose connections do not tell that they have ended, from a moment on.
struct Dark {
    inner: TransportRef,
    is_dark: Arc<AtomicBool>,
}

struct DarkLink {
    inner: Box<dyn Link>,
    is_dark: Arc<AtomicBool>,
}

impl Transport for Dark {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let (connecting, is_dark) = (self.inner.connect(to, process), self.is_dark.clone());
        Box::pin(async move {
            let inner = connecting.await?;
            Ok(Box::new(DarkLink { inner, is_dark }) as Box<dyn Link>)
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        self.inner.call(to, request)
    }
}

impl Link for DarkLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        self.inner.submit(writes)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        match self.inner.poll_completed(cx) {
            Poll::Ready(Err(_)) if self.is_dark.load(Ordering::Relaxed) => Poll::Pending,
            polled => polled,
        }
    }
}

fn primary(case: &Case, is_dark: &Arc<AtomicBool>) -> Arc<Primary> {
    let dark = Arc::new(Dark {
        inner: case.stage.transport(OWNER),
        is_dark: is_dark.clone(),
    });
    Arc::new(case.primary_over(OWNER, dark, case.stage.records(OWNER)))
}

/// The machine of one of the group's backups loses its power and is started again, and nobody hears of it.
async fn loses_power(case: &Case, is_dark: &AtomicBool, group: &Opened) -> BrokerId {
    // All that was appended is on disks.
    case.wait(3 * case.plan.config.flush_interval).await;
    is_dark.store(true, Ordering::Relaxed);
    let at = another(group);
    case.stage.kill(at).await;
    case.stage.start(at, MemoryFate::PowerLost).await;
    case.wait(10 * case.plan.config.flush_interval).await;
    assert!(!group.1.is_frozen(), "nobody has noticed");
    at
}

/// The group is closed, and what the machine had of it before does not count.
fn is_closed_without(case: &Case, group: &Opened, at: BrokerId) {
    assert!(group.0.is_closed());
    let closed = record(case, group.0.id());
    let gone = group.0.holders().into_iter().find(|h| h.broker == at);
    assert!(
        !closed.copies.contains(&gone.expect("it had one")),
        "{closed:?}"
    );
}

#[test]
fn a_copy_that_went_with_its_machine_is_noticed_when_the_next_group_opens_there() {
    case(|case| async move {
        let is_dark = Arc::default();
        let primary = primary(&case, &is_dark);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let idle = case.lane_of(&primary, &recovered, LaneId(0), &next);
        let group = open(&idle, 0);
        append(&idle, &group, 1).await.expect("all is well");
        let at = loses_power(&case, &is_dark, &group).await;
        let lane = case.lane_of(&primary, &recovered, LaneId(1), &next);
        let first = open(&lane, 0);
        append(&lane, &first, 2).await.expect("the others are well");
        assert!(first.0.holders().iter().any(|h| h.broker == at));
        case.wait(5 * case.plan.config.drain_timeout).await;
        is_closed_without(&case, &group, at);
        // It is as good a backup as before.
        let second = open(&lane, first.1.end().ordinal);
        append(&lane, &second, 3).await.expect("all is well");
        case.wait(5 * case.plan.config.drain_timeout).await;
        assert!(second.0.holders().iter().any(|h| h.broker == at));
        assert!(!second.1.is_frozen());
    });
}

#[test]
fn a_copy_that_went_with_its_machine_is_noticed_in_a_round_of_the_jobs() {
    case(|case| async move {
        let is_dark = Arc::default();
        let primary = primary(&case, &is_dark);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        let at = loses_power(&case, &is_dark, &group).await;
        jobs.round().await;
        case.wait(5 * case.plan.config.drain_timeout).await;
        is_closed_without(&case, &group, at);
    });
}

/// What a lane costs that nobody appends to just now.
#[test]
fn lanes_at_rest_have_no_tasks() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let mut kept = Vec::new();
        let mut tasks = Vec::new();
        for lane in 0..200 {
            let lane = case.lane_of(&primary, &recovered, LaneId(lane), &next);
            let group = open(&lane, 0);
            append(&lane, &group, 1).await.expect("all is well");
            kept.push((lane, group));
            if matches!(kept.len(), 10 | 200) {
                case.wait(Duration::from_secs(1)).await;
                tasks.push(case.stage.sim.live_tasks());
            }
        }
        assert_eq!(tasks[0], tasks[1], "with 10 lanes and with 200");
        // Each of them still ends when its group does.
        for (_, group) in &kept {
            group.1.freeze();
            group.0.froze();
        }
        case.wait(Duration::from_secs(5)).await;
        assert!(kept.iter().all(|(_, group)| group.0.is_closed()));
    });
}
