//! The owner's disk stalls: what needs the disk waits, other tasks go on.

use std::future::ready;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::io::{Done, File, FileRef, FileSystem, Io, Op, OpenHow};
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::ship::Shipping;
use kera_log_segments::window::Place;
use kera_protocol::ids::{GroupId, LaneId};
use kera_replication::ids::{BrokerId, BufferKey, CopyId, Incarnation, ProcessId};
use kera_replication::own::OwnFiles;
use kera_replication::primary::{Lane, LaneSpec, Primary};
use kera_replication::records::{MemoryRecords, take_epoch};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::{
    Buffer, CallError, Description, Link, LinkError, Opened, Pending, Reply, Request, Transport,
    TransportRef, Write,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::suite::scenario::streamlet;
use crate::suite::test_group::{SHAPE, TestGroup};
use crate::suite::{Plan, Stage};
use crate::{OWNER, SimStage, calm};

/// Far more than a runtime needs to run another task; only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a step of the disk tells: that it stands still, and then whether somebody let it go on.
#[derive(Debug, PartialEq)]
enum Step {
    Stands(&'static str),
    IsOver { let_go: bool },
}

/// A step that stands still until somebody lets it go on.
#[derive(Debug)]
struct Stall {
    told: Sender<Step>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Stall {
    /// With what it tells, and how it is let go.
    fn new() -> (Arc<Self>, Receiver<Step>, mpsc::SyncSender<()>) {
        let (told, steps) = channel(8);
        let (go, go_on) = mpsc::sync_channel(1);
        let go_on = Mutex::new(go_on);
        (Arc::new(Self { told, go_on }), steps, go)
    }

    fn stall(&self, what: &'static str) {
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

    fn deposed(&self) {
        self.group.deposed();
    }
}

/// The next step stands still until this task, which has the same one thread, lets it go on.
async fn lets_go(what: &'static str, told: &mut Receiver<Step>, go: &mpsc::SyncSender<()>) {
    assert_eq!(told.recv().await, Some(Step::Stands(what)));
    go.send(()).expect("it waits");
    let over = Step::IsOver { let_go: true };
    assert_eq!(told.recv().await, Some(over), "the runtime stood still");
}

/// A lane of an owner with files of its own and so many replicas, of which all must be left, on the runtime of the test;
/// and where it is recorded.
async fn lane_with(
    replicas: usize,
    peers: Vec<BrokerId>,
    transport: TransportRef,
) -> (Arc<Lane>, Arc<MemoryRecords>) {
    let records = Arc::new(MemoryRecords::default());
    records.create(streamlet());
    let runtime = Arc::new(TokioRuntime::new(Handle::current()));
    let io = Arc::new(FaultIo::new(0));
    let own = OwnFiles::new(io, PathBuf::from("/streams"), Incarnation::default());
    let (clock, config) = (runtime.clone(), calm().config);
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
    let (lane, records) = lane_with(1, vec![OWNER], nobody).await;
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

/// A disk from which nothing is read before somebody lets it go on.
#[derive(Debug)]
struct SlowFile {
    file: FileRef,
    disk: Arc<Stall>,
}

impl File for SlowFile {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_vectored_at(bufs, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.stall("read");
        self.file.read_at(buf, offset)
    }

    fn try_read_cached(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.file.sync_file_system()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.write_back(offset, len)
    }

    fn file_system(&self) -> io::Result<FileSystem> {
        self.file.file_system()
    }
}

struct SlowDisk {
    io: FaultIo,
    disk: Arc<Stall>,
}

impl Io for SlowDisk {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn open(&self, path: &Path, how: OpenHow, direct: bool) -> io::Result<FileRef> {
        let file = self.io.open(path, how, direct)?;
        let disk = self.disk.clone();
        Ok(Arc::new(SlowFile { file, disk }))
    }

    fn run(&self, ops: Vec<Op>) -> Vec<Done> {
        self.io.run(ops)
    }
}

/// A link whose writes have landed when it is looked at next.
#[derive(Default)]
struct Lands {
    submitted: u64,
    told: u64,
}

impl Link for Lands {
    fn submit(&mut self, _: Vec<Write>) -> Result<u64, LinkError> {
        self.submitted += 1;
        Ok(self.submitted)
    }

    fn poll_completed(&mut self, _: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.told == self.submitted {
            return Poll::Pending;
        }
        self.told = self.submitted;
        Poll::Ready(Ok(self.told))
    }
}

/// Peers that have and do all that they are asked for; one of them takes no bytes over a link.
struct Willing {
    unreachable: Option<BrokerId>,
}

impl Transport for Willing {
    fn connect(&self, to: BrokerId, _: ProcessId) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let link: Result<Box<dyn Link>, _> = match self.unreachable == Some(to) {
            true => Err(LinkError::OtherProcess(to)),
            false => Ok(Box::new(Lands::default())),
        };
        Box::pin(ready(link))
    }

    fn call(&self, _: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let process = ProcessId(1);
        let reply = match request {
            Request::Describe => Reply::Description(Description {
                incarnation: Incarnation::default(),
                disk: Err("it has none".into()),
                process,
                free_bytes: 1 << 30,
            }),
            Request::Open { address, bytes, .. } => {
                let key = BufferKey(address + 1);
                let buffer = Buffer {
                    key,
                    address,
                    bytes,
                };
                let buffers = vec![buffer];
                Reply::Opened(Opened { buffers, process })
            }
            Request::Flush { .. } => Reply::Flushed {
                length: 0,
                end_ordinal: 0,
            },
            Request::Seal(_) => Reply::Sealed(Vec::new()),
            Request::List { .. } => Reply::Copies(Vec::new()),
            _ => Reply::Done,
        };
        Box::pin(ready(Ok(reply)))
    }
}

/// What has left memory is read from a disk that stands still: for a replica that is behind, or for one that is built
/// because the group's other one cannot be reached.
async fn a_replica_gets_what_has_left_memory(unreachable: Option<BrokerId>) {
    let peers = vec![OWNER, BrokerId(2), BrokerId(3)];
    let (lane, _) = lane_with(2, peers, Arc::new(Willing { unreachable })).await;
    let copy = CopyId {
        streamlet: streamlet(),
        group: lane.next_group(AckPolicy::Written),
        epoch: lane.spec().epoch,
        generation: 0,
    };
    let (disk, mut steps, go) = Stall::new();
    let slow = |io: FaultIo| -> Arc<dyn Io> { Arc::new(SlowDisk { io, disk }) };
    let group = Arc::new(TestGroup::over(copy, LaneId(0), 0, SHAPE, slow));
    let set = group.open(&lane);
    let batch = group.append(1, 20).expect("the group takes it");
    group.leave_to_disk();
    set.grew();
    set.own_completed(batch.end);
    lets_go("read", &mut steps, &go).await;
    if unreachable.is_none() {
        let counts = group.acknowledged(&lane, batch.end, PATIENCE).await;
        counts.expect("another broker has it");
    } else {
        lane.closed_frozen().await.expect("another is given it");
    }
    assert_eq!(set.is_closed(), unreachable.is_some());
    assert_eq!(set.durable(), batch.end);
}

#[test]
fn bytes_that_are_on_disk_alone_are_read_where_that_holds_up_no_other_task() {
    for unreachable in [None, Some(BrokerId(2))] {
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(a_replica_gets_what_has_left_memory(unreachable));
    }
}
