//! Calls that take long, refusals that are about one group only, limits that are set too high.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::recovery::Unclean;
use kera_replication::runtime::RuntimeRef;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Refusal, Reply, Request, Seal, Transport, TransportRef,
};

use crate::suite::Stage;
use crate::{Case, OWNER, all_shown, another, append, append_within, case, open};

/// What becomes of a call.
pub enum Fate {
    Usual,
    /// It takes so long.
    Slow(Duration),
    Refused(Refusal),
    /// Nobody is asked.
    Answered(Reply),
}

/// A network on which some calls have another fate.
pub struct Bent<F> {
    pub inner: TransportRef,
    pub clock: RuntimeRef,
    pub fate: F,
}

impl<F: Fn(BrokerId, &Request) -> Fate + Send + Sync> Transport for Bent<F> {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        self.inner.connect(to, process)
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        match (self.fate)(to, &request) {
            Fate::Usual => self.inner.call(to, request),
            Fate::Slow(time) => {
                let (call, late) = (self.inner.call(to, request), self.clock.sleep(time));
                Box::pin(async move {
                    late.await;
                    call.await
                })
            }
            Fate::Refused(refusal) => Box::pin(std::future::ready(Err(CallError::Refused {
                backup: to,
                refusal,
            }))),
            Fate::Answered(reply) => Box::pin(std::future::ready(Ok(reply))),
        }
    }
}

#[test]
fn reading_and_flushing_whole_groups_may_take_longer_than_a_small_call() {
    case(|mut case| async move {
        case.plan.config.ahead = 12;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        drop((lane, group, primary));
        let config = case.plan.config;
        let slow = config.call_timeout + Duration::from_millis(100);
        let most = Arc::new(Mutex::new((0, 0)));
        let seen = most.clone();
        let bent = Arc::new(Bent {
            inner: case.stage.transport(BrokerId(3)),
            clock: case.stage.sim.runtime(None),
            fate: move |_, request: &Request| match request {
                Request::Seal(Seal { copies, .. }) if !copies.is_empty() => {
                    let mut seen = seen.lock().unwrap();
                    *seen = (seen.0.max(copies.len()), seen.1 + copies.len());
                    Fate::Slow(slow)
                }
                Request::Flush { .. } => Fate::Slow(slow),
                _ => Fate::Usual,
            },
        });
        let records = case.stage.records(BrokerId(3));
        let primary = Arc::new(case.primary_over(BrokerId(3), bent, records));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 1));
        let (most, all) = *most.lock().unwrap();
        assert!(all >= 3 * 13, "each copy is asked for: {all}");
        assert!(most <= 4, "{most} copies in one call");
    });
}

#[test]
fn a_refusal_about_one_group_does_not_hold_up_the_others() {
    case(|mut case| async move {
        // Whoever pauses is seen to.
        case.plan.config.pause = Duration::from_secs(60);
        let long = Duration::from_secs(600);
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let lanes: Vec<_> = (0..8)
            .map(|lane| case.lane_of(&primary, &recovered, LaneId(lane), &next))
            .collect();
        let mut groups = Vec::new();
        for lane in &lanes {
            let group = open(lane, 0);
            append_within(long, lane, &group, 1)
                .await
                .expect("all is well");
            groups.push(group);
        }
        let at = another(&groups[0]);
        for group in &groups[..7] {
            let free = Request::Free {
                copy: group.0.id(),
                epoch: recovered.epoch,
                version: None,
            };
            case.ask(at, free).await;
        }
        let began = case.now();
        for group in groups.iter().take(7) {
            group.1.append(2, 20).expect("room");
            group.0.grew();
        }
        append_within(long, &lanes[7], &groups[7], 2)
            .await
            .expect("it is well");
        let took = case.now() - began;
        assert!(
            took < Duration::from_secs(30),
            "it waited for others: {took:?}"
        );
        assert!(!groups[7].1.is_frozen());
    });
}

#[test]
fn more_groups_ahead_than_a_close_can_delete_are_not_recorded() {
    case(|mut case| async move {
        case.plan.config.ahead = 1000;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        case.stage.kill(another(&group)).await;
        case.wait(Duration::from_secs(3)).await;
        assert!(group.0.is_closed(), "{:?}", lane.deposed());
        let next = open(&lane, 1);
        append(&lane, &next, 2).await.expect("the lane goes on");
    });
}

#[test]
fn a_backup_that_holds_less_than_it_took_is_found_out_at_the_interval() {
    for refusal in [Refusal::Short { length: 0 }, Refusal::Unknown] {
        case(|case| is_found_out(case, refusal));
    }
}

async fn is_found_out(case: Case, refusal: Refusal) {
    let damaged = Arc::new(Mutex::new(BTreeMap::new()));
    let told = damaged.clone();
    let bent = Arc::new(Bent {
        inner: case.stage.transport(OWNER),
        clock: case.stage.sim.runtime(None),
        fate: move |to, request: &Request| match request {
            Request::Flush {
                closed: false,
                length,
                ..
            } if *length > 0 => {
                told.lock().unwrap().insert(to, *length);
                if to == BrokerId(2) {
                    Fate::Refused(refusal.clone())
                } else {
                    Fate::Usual
                }
            }
            _ => Fate::Usual,
        },
    });
    let records = case.stage.records(OWNER);
    let primary = Arc::new(case.primary_over(OWNER, bent, records));
    let recovered = case.recover_as(&primary, Unclean::Wait).await;
    let lane = case.lane(&primary, &recovered);
    let group = open(&lane, 0);
    append(&lane, &group, 1).await.expect("all is well");
    let end = group.1.end().address;
    case.wait(Duration::from_secs(2)).await;
    let told = damaged.lock().unwrap().clone();
    assert!(
        told.len() == 3 && told.values().all(|length| *length == end),
        "{told:?}"
    );
    assert!(group.0.is_closed(), "the damaged copy is lost");
    let closed = &case.stage.look().groups[0];
    assert!(closed.is_closed());
    assert!(
        closed.copies.iter().all(|h| h.broker != BrokerId(2)),
        "{closed:?}"
    );
}

#[test]
fn what_a_machine_had_flushed_at_the_interval_survives_its_power() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        // Two intervals.
        case.wait(2 * case.plan.config.flush_interval).await;
        for node in case.stage.nodes() {
            case.stage.kill(node).await;
            case.stage.start(node, MemoryFate::PowerLost).await;
        }
        // Nothing counts any more, and what was flushed is there for a decision.
        let (_, waits) = case.recover(BrokerId(1), Unclean::Wait).await;
        let (_, recovered) = case.recover(BrokerId(1), all_shown(&waits)).await;
        let closed = &recovered.lanes[0].groups[0];
        assert_eq!(closed.end_ordinal, 1);
    });
}

#[test]
fn a_group_that_could_not_be_flushed_at_the_interval_is_flushed_at_the_next() {
    case(|case| async move {
        let asked = Arc::new(Mutex::new(0));
        let count = asked.clone();
        let bent = Arc::new(Bent {
            inner: case.stage.transport(OWNER),
            clock: case.stage.sim.runtime(None),
            fate: move |to, request: &Request| match request {
                Request::Flush { closed: false, .. } if to == BrokerId(2) => {
                    let mut count = count.lock().unwrap();
                    *count += 1;
                    match *count {
                        1..=3 => Fate::Refused(Refusal::Failed("a disk that is full".into())),
                        _ => Fate::Usual,
                    }
                }
                _ => Fate::Usual,
            },
        });
        let records = case.stage.records(OWNER);
        let primary = Arc::new(case.primary_over(OWNER, bent, records));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&lane, &group, 1).await.expect("all is well");
        // Nothing is appended any more.
        case.wait(20 * case.plan.config.flush_interval).await;
        assert_eq!(
            *asked.lock().unwrap(),
            4,
            "once an interval until it is done"
        );
        assert!(!group.1.is_frozen());
    });
}
