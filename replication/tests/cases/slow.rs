//! A broker that is well and answers slowly: a group begins without it, and the next with it.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::primary::Primary;
use kera_replication::recovery::Unclean;
use kera_replication::runtime::RuntimeRef;
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef,
};

use crate::jobs::{jobs_with, record};
use crate::suite::{Plan, Stage, busy};
use crate::{Case, OWNER, append, calm, open, planned};

const SLOW: BrokerId = BrokerId(3);
/// Longer than a group waits for who is wanting beside enough others, far shorter than a call may take.
const TAKES: Duration = Duration::from_millis(500);

/// A network with a broker that takes its time to say that it is there.
struct Slowly {
    inner: TransportRef,
    clock: RuntimeRef,
}

impl Transport for Slowly {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        self.inner.connect(to, process)
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let slowly = to == SLOW && matches!(request, Request::Describe);
        let call = self.inner.call(to, request);
        if !slowly {
            return call;
        }
        let first = self.clock.sleep(TAKES);
        Box::pin(async move {
            first.await;
            call.await
        })
    }
}

fn four_copies() -> Plan {
    let mut plan = calm();
    plan.replicas = 4;
    plan.config.call_timeout = 4 * TAKES;
    plan
}

fn primary(case: &Case) -> Arc<Primary> {
    let transport = Arc::new(Slowly {
        inner: case.stage.transport(OWNER),
        clock: case.stage.sim.runtime(None),
    });
    Arc::new(case.primary_over(OWNER, transport, case.stage.records(OWNER)))
}

#[test]
fn who_answers_late_is_waited_for_when_a_later_group_begins() {
    planned(four_copies(), |case| async move {
        let primary = primary(&case);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let mut holders = Vec::new();
        let mut next = 0;
        for id in 0..3 {
            let begun = case.now();
            let group = open(&lane, next);
            append(&lane, &group, id).await.expect("three are enough");
            assert!(case.now() - begun < 2 * TAKES);
            holders.push(group.0.holders().len());
            case.wait(2 * TAKES).await;
            group.1.freeze();
            group.0.froze();
            case.wait(Duration::from_secs(1)).await;
            assert!(group.0.is_closed());
            next = group.1.end().ordinal;
        }
        // The record of the second may have been made ahead, beside the first.
        assert_eq!((holders[0], holders[2]), (3, 4), "{holders:?}");
    });
}

#[test]
fn a_group_that_began_without_a_slow_broker_is_renewed_once() {
    planned(four_copies(), |case| async move {
        let primary = primary(&case);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let short = open(&lane, 0);
        append(&lane, &short, 0).await.expect("three are enough");
        assert_eq!(short.0.holders().len(), 3);
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        jobs.round().await;
        assert!(short.1.is_frozen());
        case.wait(Duration::from_secs(1)).await;
        let next = open(&lane, short.1.end().ordinal);
        append(&lane, &next, 1).await.expect("all are there");
        assert_eq!(next.0.holders().len(), 4);
        // It stays, and the one before gets the copy that it lacks.
        for _ in 0..3 {
            jobs.round().await;
        }
        assert!(!next.1.is_frozen(), "it has all its copies");
        assert_eq!(record(&case, short.0.id()).copies.len(), 4);
        let stats = jobs.stats();
        assert_eq!((stats.renewed, stats.built), (1, 1));
    });
}
