//! A cable between two brokers that is cut while both are well, and a third reaches both: the copies at the
//! other end are lost within three seconds, however they are waited for, and lanes go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::primary::{Config, Lane, Primary};
use kera_replication::recovery::Unclean;
use kera_replication::runtime::{Runtime, RuntimeRef};
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef, Write,
};

use crate::suite::{Plan, Stage};
use crate::{Case, OWNER, Opened, append_within, calm, open, planned};

/// At the other end of the cable.
const AT: BrokerId = BrokerId(1);
/// What was sent and is not taken ends a link after this, as sockets and cards do it.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Nobody else gives up by then.
const LONG: Duration = Duration::from_secs(600);
/// What a cut may cost a lane.
const BOUND: Duration = Duration::from_secs(3);

/// Everything as brokers have it, but for sizes.
fn usual() -> Plan {
    let mut plan = calm();
    let usual = Config::default();
    plan.config.call_timeout = usual.call_timeout;
    plan.config.reconnect_timeout = usual.reconnect_timeout;
    plan.config.drain_timeout = usual.drain_timeout;
    plan.config.attempts = usual.attempts;
    plan.config.pause = usual.pause;
    plan.config.flush_interval = LONG;
    plan
}

/// A network with a cable that can be cut: nothing comes through, and nobody says so.
struct Cable {
    inner: TransportRef,
    clock: RuntimeRef,
    cut: Arc<AtomicBool>,
}

impl Cable {
    fn is_cut(&self, to: BrokerId) -> bool {
        to == AT && self.cut.load(Ordering::SeqCst)
    }
}

impl Transport for Cable {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let connected = self.inner.connect(to, process);
        let (cut, clock) = (self.cut.clone(), self.clock.clone());
        let (is_cut, long) = (self.is_cut(to), self.clock.sleep(LONG));
        Box::pin(async move {
            if is_cut {
                long.await;
            }
            let link = connected.await?;
            if to != AT {
                return Ok(link);
            }
            let link: Box<dyn Link> = Box::new(CutLink {
                link,
                clock,
                cut,
                silence: None,
            });
            Ok(link)
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let call = self.inner.call(to, request);
        let (is_cut, long) = (self.is_cut(to), self.clock.sleep(LONG));
        Box::pin(async move {
            if is_cut {
                long.await;
            }
            call.await
        })
    }
}

struct CutLink {
    link: Box<dyn Link>,
    clock: RuntimeRef,
    cut: Arc<AtomicBool>,
    /// Since something was sent over the cut cable.
    silence: Option<Pending<()>>,
}

impl Link for CutLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        if self.cut.load(Ordering::SeqCst) {
            let clock = &self.clock;
            self.silence
                .get_or_insert_with(|| clock.sleep(TAKEN_WITHIN));
            return Ok(u64::MAX);
        }
        self.link.submit(writes)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if !self.cut.load(Ordering::SeqCst) {
            return self.link.poll_completed(cx);
        }
        let Some(silence) = &mut self.silence else {
            return Poll::Pending;
        };
        silence.as_mut().poll(cx).map(|()| {
            Err(LinkError::Broken {
                backup: AT,
                reason: "nothing was taken".into(),
            })
        })
    }
}

/// A broker, its lanes, and the cable between it and [`AT`].
struct Cluster {
    case: Case,
    _owner: Arc<Primary>,
    lanes: Vec<Arc<Lane>>,
    cut: Arc<AtomicBool>,
}

impl Cluster {
    async fn new(case: Case, lanes: u32) -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let cable = Cable {
            inner: case.stage.transport(OWNER),
            clock: case.stage.sim.runtime(None),
            cut: cut.clone(),
        };
        let records = case.stage.records(OWNER);
        let owner = Arc::new(case.primary_over(OWNER, Arc::new(cable), records));
        let recovered = case.recover_as(&owner, Unclean::Wait).await;
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        let lanes = (0..lanes).map(|lane| case.lane_of(&owner, &recovered, LaneId(lane), &next));
        Self {
            lanes: lanes.collect(),
            case,
            _owner: owner,
            cut,
        }
    }

    /// A group in each lane, with a record in it and a copy at [`AT`].
    async fn begin(&self) -> Vec<Opened> {
        let mut groups = Vec::new();
        for lane in &self.lanes {
            let group = open(lane, 0);
            append_within(LONG, lane, &group, 1)
                .await
                .expect("all is well");
            assert!(is_at_the_other_end(&group));
            groups.push(group);
        }
        groups
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

fn is_at_the_other_end(group: &Opened) -> bool {
    let holders = group.0.holders();
    holders.iter().any(|holder| holder.broker == AT)
}

/// Ends a group that has room left, as one that is full ends.
fn end(group: &Opened) {
    group.1.freeze();
    group.0.froze();
}

#[test]
fn lanes_go_on_past_a_cut_cable_wherever_their_groups_were() {
    planned(usual(), |case| async move {
        let cluster = Cluster::new(case, 4).await;
        let groups = cluster.begin().await;
        cluster.cut();
        let begun = cluster.case.now();
        let mut waiting = Vec::new();
        for (at, (lane, group)) in cluster.lanes.iter().zip(&groups).enumerate() {
            if at % 2 == 0 {
                // Under way on the link.
                let place = group.1.append(2, 20).expect("room").end;
                group.0.grew();
                waiting.push((lane, group.1.clone(), place));
                continue;
            }
            // Asks for its first buffers, one sooner and one later than the link is known to be silent.
            end(group);
            if at == 3 {
                cluster.case.wait(TAKEN_WITHIN * 3 / 2).await;
            }
            let next = open(lane, 1);
            let place = next.1.append(2, 20).expect("room").end;
            next.0.grew();
            waiting.push((lane, next.1.clone(), place));
        }
        for (lane, group, place) in waiting {
            let acknowledged = group.acknowledged(lane, place, LONG).await;
            acknowledged.expect("the others are enough");
        }
        let took = cluster.case.now() - begun;
        assert!(took < BOUND, "{took:?}");
        for lane in &cluster.lanes {
            let begun = cluster.case.now();
            let group = open(lane, 2);
            append_within(LONG, lane, &group, 3)
                .await
                .expect("the lane goes on");
            assert!(!is_at_the_other_end(&group));
            let took = cluster.case.now() - begun;
            assert!(took < BOUND / 10, "nobody waits for it again: {took:?}");
        }
    });
}

#[test]
fn a_group_that_only_asks_for_buffers_finds_out_by_itself() {
    planned(usual(), |case| async move {
        let cluster = Cluster::new(case, 1).await;
        let (lane, groups) = (&cluster.lanes[0], cluster.begin().await);
        // Recorded ahead, with a copy that nobody can reach any more. Nothing is under way on the link.
        end(&groups[0]);
        lane.closed_frozen().await.expect("it is the owner");
        cluster.cut();
        let begun = cluster.case.now();
        let group = open(lane, 1);
        assert!(is_at_the_other_end(&group));
        append_within(LONG, lane, &group, 2)
            .await
            .expect("the others are enough");
        let took = cluster.case.now() - begun;
        assert!(took < BOUND, "{took:?}");
    });
}

#[test]
fn what_was_recorded_ahead_with_a_silent_broker_is_not_used() {
    planned(usual(), |case| async move {
        let cluster = Cluster::new(case, 2).await;
        let groups = cluster.begin().await;
        let [first, second] = cluster.lanes.as_slice() else {
            panic!("two lanes");
        };
        end(&groups[1]);
        second.closed_frozen().await.expect("it is the owner");
        cluster.cut();
        append_within(LONG, first, &groups[0], 2)
            .await
            .expect("the others are enough");
        let begun = cluster.case.now();
        let group = open(second, 1);
        append_within(LONG, second, &group, 2)
            .await
            .expect("the others are enough");
        let took = cluster.case.now() - begun;
        assert!(
            !is_at_the_other_end(&group) && took < BOUND / 10,
            "{took:?}"
        );
    });
}

#[test]
fn a_cable_that_is_mended_in_time_costs_no_copy() {
    planned(usual(), |case| async move {
        let cluster = Cluster::new(case, 1).await;
        let (lane, groups) = (&cluster.lanes[0], cluster.begin().await);
        cluster.cut();
        let place = groups[0].1.append(2, 20).expect("room").end;
        groups[0].0.grew();
        cluster.case.wait(TAKEN_WITHIN / 2).await;
        // What was sent is not taken still: the link breaks, and the next one is made.
        let (cut, clock) = (cluster.cut.clone(), cluster.case.stage.sim.runtime(None));
        let later = clock.sleep(TAKEN_WITHIN / 2 + Duration::from_millis(10));
        clock.spawn(Box::pin(async move {
            later.await;
            cut.store(false, Ordering::SeqCst);
        }));
        let acknowledged = groups[0].1.acknowledged(lane, place, LONG);
        acknowledged.await.expect("all copies take it");
        assert!(!groups[0].1.is_frozen(), "no copy was lost");
    });
}
