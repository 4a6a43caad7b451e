//! Single cases, told from beginning to end, over the simulated network at its best.

mod ahead;
mod alone;
mod bent;
mod broken_disks;
mod built;
#[path = "../common/mod.rs"]
mod common;
mod decisions;
mod deposed;
mod flushed;
mod idle;
mod interleavings;
mod jobs;
mod jobs_cut;
mod leftovers;
mod meanwhile;
mod own;
mod owners;
mod proportional;
mod quiet;
mod read_backs;
mod rewritten;
mod room;
mod scrub;
mod severed;
mod shifts;
mod slow;
mod stalled_disk;
mod stalls;
mod stopped;
#[path = "../suite/mod.rs"]
mod suite;
mod trouble;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::{GroupId, LaneId};
use kera_replication::faults::Faults;
use kera_replication::ids::{AckPolicy, BrokerId, CopyId};
use kera_replication::primary::{Lane, LaneSpec, Primary, ReplicaSet};
use kera_replication::records::RecordsRef;
use kera_replication::recovery::{RecoverSpec, Recovered, RecoveredLane, Unclean, recover};
use kera_replication::runtime::Runtime;
use kera_replication::transport::{CopyInfo, Description, Reply, Request, Seal, TransportRef};

use common::SimStage;
use suite::scenario::streamlet;
use suite::test_group::{TestGroup, Unacknowledged};
use suite::{Plan, Stage};

const OWNER: BrokerId = BrokerId(0);

/// How long an append waits that is told of no other time.
const BRIEFLY: Duration = Duration::from_secs(2);

struct Case {
    stage: Arc<SimStage>,
    plan: Plan,
}

/// Calm weather, three copies of which two must be left.
fn calm() -> Plan {
    // Seed 0 has calm weather.
    let mut plan = Plan::new(0, 2, Faults::default());
    plan.late = 0;
    plan
}

fn case<F: Future<Output = ()> + Send + 'static>(story: impl FnOnce(Case) -> F) {
    planned(calm(), story);
}

fn planned<F: Future<Output = ()> + Send + 'static>(plan: Plan, story: impl FnOnce(Case) -> F) {
    let stage = SimStage::new(&plan);
    let told = stage.sim.run(story(Case {
        stage: stage.clone(),
        plan,
    }));
    assert_eq!(told, Some(()), "nothing moves any more");
    stage.sim.end();
}

/// Plays a story with a rule broken on purpose: it must fail, and its words must have `harm` in them.
fn noticed<F: Future<Output = ()> + Send + 'static>(
    faults: Faults,
    harm: &str,
    story: impl FnOnce(Case) -> F,
) {
    let plan = Plan { faults, ..calm() };
    let played = catch_unwind(AssertUnwindSafe(|| planned(plan, story)));
    let panic = played.expect_err("the story does not notice");
    let said = panic.downcast_ref::<String>().expect("words");
    assert!(
        said.contains(harm),
        "it fails, but not for {harm:?}: {said}"
    );
}

/// The operator's decision about all groups that a recovery stopped at.
fn all_shown(recovered: &Recovered) -> Unclean {
    let groups = recovered.lanes.iter().flat_map(RecoveredLane::unclean);
    Unclean::Accept(groups.map(|(copy, _)| copy.group).collect())
}

/// A broker's group, and where its bytes are.
type Opened = (Arc<ReplicaSet>, Arc<TestGroup>);

impl Case {
    fn primary(&self, owner: BrokerId) -> Primary {
        self.primary_over(
            owner,
            self.stage.transport(owner),
            self.stage.records(owner),
        )
    }

    fn primary_over(
        &self,
        owner: BrokerId,
        transport: TransportRef,
        records: RecordsRef,
    ) -> Primary {
        let (nodes, runtime) = (self.stage.nodes(), self.stage.runtime(owner));
        Primary::new(owner, nodes, transport, records, runtime, self.plan.config)
            .with_faults(self.plan.faults)
    }

    async fn recover(&self, owner: BrokerId, unclean: Unclean) -> (Arc<Primary>, Recovered) {
        let primary = Arc::new(self.primary(owner));
        let recovered = self.recover_as(&primary, unclean).await;
        (primary, recovered)
    }

    /// Over other records than the stage's.
    async fn recover_over(
        &self,
        owner: BrokerId,
        records: RecordsRef,
    ) -> (Arc<Primary>, Recovered) {
        let transport = self.stage.transport(owner);
        let primary = Arc::new(self.primary_over(owner, transport, records));
        let recovered = self.recover_as(&primary, Unclean::Wait).await;
        (primary, recovered)
    }

    async fn recover_as(&self, primary: &Arc<Primary>, unclean: Unclean) -> Recovered {
        self.recover_from(primary, unclean, BTreeMap::new()).await
    }

    async fn recover_from(
        &self,
        primary: &Arc<Primary>,
        unclean: Unclean,
        starts: BTreeMap<LaneId, u64>,
    ) -> Recovered {
        let spec = RecoverSpec {
            streamlet: streamlet(),
            min_insync_replicas: self.plan.min_insync_replicas,
            unclean,
            starts,
        };
        recover(primary, &spec).await.expect("a recovery")
    }

    fn lane(&self, primary: &Arc<Primary>, recovered: &Recovered) -> Arc<Lane> {
        let next = Arc::new(AtomicU64::new(recovered.next_group.0));
        self.lane_of(primary, recovered, LaneId(0), &next)
    }

    fn lane_of(
        &self,
        primary: &Arc<Primary>,
        recovered: &Recovered,
        lane: LaneId,
        next: &Arc<AtomicU64>,
    ) -> Arc<Lane> {
        let spec = LaneSpec {
            streamlet: streamlet(),
            epoch: recovered.epoch,
            lane,
            replicas: self.plan.replicas,
            min_insync_replicas: self.plan.min_insync_replicas,
        };
        Lane::new(primary.clone(), spec, next.clone())
    }

    async fn wait(&self, time: Duration) {
        self.stage.wait(time).await;
    }

    fn now(&self) -> Duration {
        self.stage.sim.runtime(None).now()
    }

    async fn ask(&self, backup: BrokerId, request: Request) -> Reply {
        let asked = self.stage.transport(OWNER).call(backup, request).await;
        asked.expect("an answer")
    }

    /// What a backup holds.
    async fn copies(&self, backup: BrokerId) -> Vec<CopyInfo> {
        match self.ask(backup, Request::List { streamlet: None }).await {
            Reply::Copies(copies) => copies,
            other => panic!("{other:?}"),
        }
    }

    /// The same, past cuts of the owner's own network.
    async fn copies_over(&self, backup: BrokerId) -> Vec<CopyInfo> {
        let asked = self.stage.transport(BrokerId(3));
        match asked.call(backup, Request::List { streamlet: None }).await {
            Ok(Reply::Copies(copies)) => copies,
            other => panic!("{other:?}"),
        }
    }

    async fn describe(&self, backup: BrokerId) -> Description {
        match self.ask(backup, Request::Describe).await {
            Reply::Description(description) => description,
            other => panic!("{other:?}"),
        }
    }

    /// Puts what `source` has at a backup, as an owner of the group's epoch may.
    async fn put(&self, backup: BrokerId, source: &TestGroup) {
        let copy = source.copy;
        let seal = Request::Seal(Seal {
            streamlet: copy.streamlet,
            epoch: copy.epoch,
            copies: vec![],
        });
        self.ask(backup, seal).await;
        let shape = source.shape();
        for run in source.runs(0) {
            let complete = Request::Complete {
                copy,
                epoch: copy.epoch,
                segment_size: shape.segment_size,
                segments: shape.segments,
                address: run.address,
                bytes: run.parts.concat().into(),
            };
            self.ask(backup, complete).await;
        }
    }
}

fn open(lane: &Arc<Lane>, first_ordinal: u64) -> Opened {
    open_as(lane, lane.next_group(AckPolicy::Written), first_ordinal)
}

fn open_as(lane: &Arc<Lane>, group: GroupId, first_ordinal: u64) -> Opened {
    let spec = *lane.spec();
    let copy = CopyId {
        streamlet: spec.streamlet,
        group,
        epoch: spec.epoch,
        generation: 0,
    };
    let source = Arc::new(TestGroup::new(copy, spec.lane, first_ordinal));
    (source.open(lane), source)
}

async fn append(lane: &Arc<Lane>, group: &Opened, id: u64) -> Result<(), Unacknowledged> {
    append_within(BRIEFLY, lane, group, id).await
}

async fn append_within(
    time: Duration,
    lane: &Arc<Lane>,
    group: &Opened,
    id: u64,
) -> Result<(), Unacknowledged> {
    let batch = group.1.append(id, 20).expect("the group takes it");
    group.0.grew();
    group.1.acknowledged(lane, batch.end, time).await
}

/// One of the group's holders that is not its owner.
fn another(group: &Opened) -> BrokerId {
    let holders = group.0.holders();
    let mut brokers = holders.iter().map(|holder| holder.broker);
    brokers
        .find(|broker| *broker != OWNER)
        .expect("another broker")
}
