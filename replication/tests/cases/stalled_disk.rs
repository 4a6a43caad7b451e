//! The owner's disk stalls: what needs the disk waits, other tasks go on.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::window::Place;
use kera_protocol::ids::{GroupId, LaneId};
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::own::OwnFiles;
use kera_replication::primary::{Config, Lane, LaneSpec, Primary};
use kera_replication::records::{MemoryRecords, take_epoch};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::TransportRef;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::suite::scenario::streamlet;
use crate::suite::test_group::TestGroup;
use crate::suite::{Plan, Stage};
use crate::{OWNER, SimStage, calm};

/// Far more than a runtime needs to run another task; only a failure takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a step of the disk tells: that it stands still, and then whether somebody let it go on.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Stands(&'static str),
    IsOver { let_go: bool },
}

/// A step that stands still until somebody lets it go on.
#[derive(Debug)]
pub(crate) struct Stall {
    told: Sender<Step>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Stall {
    /// With what it tells, and how it is let go.
    pub(crate) fn new() -> (Arc<Self>, Receiver<Step>, mpsc::SyncSender<()>) {
        let (told, steps) = channel(8);
        let (go, go_on) = mpsc::sync_channel(1);
        let go_on = Mutex::new(go_on);
        (Arc::new(Self { told, go_on }), steps, go)
    }

    pub(crate) fn stall(&self, what: &'static str) {
        let _ = self.told.try_send(Step::Stands(what));
        let let_go = self.go_on.lock().unwrap().recv_timeout(PATIENCE).is_ok();
        let _ = self.told.try_send(Step::IsOver { let_go });
    }
}

/// An owner each of whose files is made and removed once somebody lets the disk go on.
struct Stalling {
    group: Arc<TestGroup>,
    disk: Arc<Stall>,
}

impl GroupOwner for Stalling {
    fn freeze_group(&self, lane: LaneId, group: &Arc<Group>, now_ms: u64) -> Place {
        self.group.freeze_group(lane, group, now_ms)
    }

    fn make_ahead(&self, _lane: LaneId, _group: GroupId, _ack: AckPolicy) -> bool {
        self.disk.stall("make");
        true
    }

    fn drop_ahead(&self, _group: GroupId, is_unrecorded: bool) {
        assert!(is_unrecorded, "its record is deleted");
        self.disk.stall("drop");
    }

    fn group_ended(&self, lane: LaneId, group: &Group) {
        self.group.group_ended(lane, group);
    }

    fn group_flushed(&self, lane: LaneId, group: (GroupId, u32), with_own: bool) {
        self.group.group_flushed(lane, group, with_own);
    }

    fn deposed(&self) {
        self.group.deposed();
    }
}

/// The next step stands still until this task, which has the same one thread, lets it go on.
pub(crate) async fn lets_go(
    what: &'static str,
    told: &mut Receiver<Step>,
    go: &mpsc::SyncSender<()>,
) {
    stands(what, told).await;
    goes_on(told, go).await;
}

/// The next step stands still.
pub(crate) async fn stands(what: &'static str, told: &mut Receiver<Step>) {
    let step = timeout(PATIENCE, told.recv()).await;
    assert_eq!(step, Ok(Some(Step::Stands(what))));
}

/// The step that stands still goes on.
pub(crate) async fn goes_on(told: &mut Receiver<Step>, go: &mpsc::SyncSender<()>) {
    go.send(()).expect("it waits");
    let over = Step::IsOver { let_go: true };
    assert_eq!(told.recv().await, Some(over), "the runtime stood still");
}

/// A lane of an owner with files of its own and so many replicas, of which all must be left, on the runtime of the test;
/// and where it is recorded.
pub(crate) async fn lane_with(
    replicas: usize,
    peers: Vec<BrokerId>,
    transport: TransportRef,
    config: Config,
) -> (Arc<Lane>, Arc<MemoryRecords>) {
    let records = Arc::new(MemoryRecords::default());
    records.create(streamlet());
    let runtime = Arc::new(TokioRuntime::new(Handle::current()));
    let io = Arc::new(FaultIo::new(0));
    let own = OwnFiles::new(io, PathBuf::from("/streams"), Incarnation::default());
    let clock = runtime.clone();
    let primary = Primary::new(OWNER, peers, transport, records.clone(), clock, config);
    let primary = Arc::new(primary.with_own(own));
    let owned = take_epoch(primary.records(), &*runtime, streamlet(), OWNER).await;
    let (epoch, _) = owned.expect("it is recorded");
    let spec = LaneSpec {
        streamlet: streamlet(),
        epoch,
        lane: LaneId(0),
        replicas,
        min_insync_replicas: replicas,
    };
    let lane = Lane::new(primary, spec, Arc::new(AtomicU64::new(1)));
    (lane, records)
}

async fn a_lane_records_and_ends() {
    let plan = Plan {
        own: true,
        replicas: 1,
        min_insync_replicas: 1,
        ..calm()
    };
    let nobody = SimStage::new(&plan).transport(OWNER);
    let (lane, records) = lane_with(1, vec![OWNER], nobody, plan.config).await;
    let epoch = lane.spec().epoch;
    let copy = CopyId {
        streamlet: streamlet(),
        group: lane.next_group(AckPolicy::Written),
        epoch,
        generation: 0,
    };
    let (disk, mut steps, go) = Stall::new();
    let group = Arc::new(TestGroup::new(copy, LaneId(0), 0));
    let owner: Arc<dyn GroupOwner> = Arc::new(Stalling {
        group: group.clone(),
        disk,
    });
    let set = group.open_as(&lane, &owner);
    lets_go("make", &mut steps, &go).await;

    let ending = lane.clone();
    let ended = tokio::spawn(async move { ending.finish().await });
    lets_go("drop", &mut steps, &go).await;
    assert_eq!(ended.await.expect("it ends"), Ok(()));
    assert!(set.is_closed());
    let left = records.look(streamlet()).expect("it is recorded").groups;
    let left: Vec<_> = left.iter().map(|record| record.group).collect();
    assert_eq!(left, [copy.group], "what was recorded ahead is gone");
}

#[test]
fn a_disk_that_stands_still_holds_up_no_other_task() {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(a_lane_records_and_ends());
}
