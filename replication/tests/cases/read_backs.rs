//! Bytes that a replica lacks and that have left the owner's memory: each is read once, where that holds up nobody, and
//! what waits for its way keeps no other from being read.

use std::future::ready;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::io::{Done, File, FileRef, FileSystem, Io, Op, OpenHow, ReadAt};
use kera_log_segments::ship::Shipping;
use kera_protocol::ids::{GroupId, LaneId};
use kera_replication::ids::{BrokerId, BufferKey, CopyId, Incarnation, ProcessId};
use kera_replication::primary::{Config, Lane, LaneSpec, ReplicaSet, WayStands};
use kera_replication::transport::{
    Buffer, CallError, Description, Link, LinkError, Opened, Pending, Refusal, Reply, Request,
    Room, Transport, Write,
};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::stalled_disk::{PATIENCE, Stall, Step, goes_on, lane_with, lets_go, stands};
use crate::suite::scenario::streamlet;
use crate::suite::test_group::{SHAPE, TestGroup};
use crate::{OWNER, calm};

const ANOTHER: BrokerId = BrokerId(2);

/// Bytes of a buffer that ends within a batch.
const LITTLE: u32 = 128;

/// A disk from which nothing is read before somebody lets it go on.
#[derive(Debug)]
struct SlowFile {
    file: FileRef,
    disk: Arc<Stall>,
}

impl ReadAt for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.stall("read");
        self.file.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

impl File for SlowFile {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_vectored_at(bufs, offset)
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

/// A link whose writes have landed when it is looked at next, or on which nothing lands until it breaks.
struct Wire {
    submitted: u64,
    told: u64,
    fails: Option<Arc<Break>>,
}

/// Whether a link is broken, who waits for that, and what was submitted before.
#[derive(Default)]
struct Break {
    is_broken: AtomicBool,
    waits: Mutex<Option<Waker>>,
    submitted: Notify,
}

impl Break {
    fn now(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waits.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl Link for Wire {
    fn submit(&mut self, _: Vec<Write>) -> Result<u64, LinkError> {
        if let Some(fails) = &self.fails {
            fails.submitted.notify_one();
        }
        self.submitted += 1;
        Ok(self.submitted)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if let Some(fails) = &self.fails {
            *fails.waits.lock().unwrap() = Some(cx.waker().clone());
            return match fails.is_broken.load(Ordering::SeqCst) {
                true => Poll::Ready(Err(LinkError::Broken {
                    backup: ANOTHER,
                    reason: "cut".into(),
                })),
                false => Poll::Pending,
            };
        }
        if self.told == self.submitted {
            return Poll::Pending;
        }
        self.told = self.submitted;
        Poll::Ready(Ok(self.told))
    }
}

/// Peers that have and do all that they are asked for, but for what is said here.
#[derive(Default)]
struct Willing {
    /// It takes no bytes over a link.
    unreachable: Option<BrokerId>,
    /// So the first link ends.
    fails: Option<Arc<Break>>,
    links: AtomicU64,
    connects: Notify,
    /// There is room for little of it, and no more.
    crowded: Option<GroupId>,
    refused: Notify,
}

impl Willing {
    fn is_crowded(&self, copy: &CopyId) -> bool {
        self.crowded == Some(copy.group)
    }
}

impl Transport for Willing {
    fn connect(&self, to: BrokerId, _: ProcessId) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let is_first = self.links.fetch_add(1, Ordering::SeqCst) == 0;
        self.connects.notify_one();
        let wire = Wire {
            submitted: 0,
            told: 0,
            fails: self.fails.clone().filter(|_| is_first),
        };
        let link: Result<Box<dyn Link>, _> = match self.unreachable == Some(to) {
            true => Err(LinkError::OtherProcess(to)),
            false => Ok(Box::new(wire)),
        };
        Box::pin(ready(link))
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let process = ProcessId(1);
        let reply = match request {
            Request::Describe => Reply::Description(Description {
                incarnation: Incarnation::default(),
                disk: Err("it has none".into()),
                process,
                free_bytes: 1 << 30,
            }),
            Request::Open { copy, address, .. } if address > 0 && self.is_crowded(&copy) => {
                self.refused.notify_one();
                let refusal = Refusal::NoRoom {
                    of: Room::Memory,
                    asked: 1,
                    free: 0,
                };
                let refused = CallError::Refused {
                    backup: to,
                    refusal,
                };
                return Box::pin(ready(Err(refused)));
            }
            Request::Open {
                copy,
                address,
                bytes,
                ..
            } => {
                let bytes = if self.is_crowded(&copy) {
                    LITTLE
                } else {
                    bytes
                };
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
            Request::ListChanged { .. } => Reply::Changed(Vec::new()),
            _ => Reply::Done,
        };
        Box::pin(ready(Ok(reply)))
    }
}

/// A lane's group at this broker and another, on a disk that stands still.
struct Slow {
    lane: Arc<Lane>,
    group: Arc<TestGroup>,
    set: Arc<ReplicaSet>,
    steps: Receiver<Step>,
    go: SyncSender<()>,
}

impl Slow {
    fn begin(lane: &Arc<Lane>) -> Self {
        let spec = lane.spec();
        let copy = CopyId {
            streamlet: streamlet(),
            group: lane.next_group(AckPolicy::Written),
            epoch: spec.epoch,
            generation: 0,
        };
        let (disk, steps, go) = Stall::new();
        let slow = |io: FaultIo| -> Arc<dyn Io> { Arc::new(SlowDisk { io, disk }) };
        let group = Arc::new(TestGroup::over(copy, spec.lane, 0, SHAPE, slow));
        Self {
            lane: lane.clone(),
            set: group.open(lane),
            group,
            steps,
            go,
        }
    }

    /// Takes a batch.
    fn append(&self, id: u64, filler: usize) -> u64 {
        let batch = self.group.append(id, filler).expect("the group takes it");
        self.set.grew();
        batch.end
    }

    /// The same; what it has is then in its file alone.
    fn append_to_disk(&self, id: u64, filler: usize) -> u64 {
        let batch = self.group.append(id, filler).expect("the group takes it");
        self.group.leave_to_disk();
        self.set.grew();
        self.set.own_completed(batch.end);
        batch.end
    }

    async fn reads(&mut self) {
        lets_go("read", &mut self.steps, &self.go).await;
    }

    /// Until its shipper has what was read.
    async fn has_read(&self) {
        let look = async {
            loop {
                let looked = self.lane.standstill(Duration::ZERO, Duration::ZERO).await;
                let is_reading = looked.map(|still| {
                    let mut copies = still.copies.iter();
                    copies.any(|copy| match &copy.way {
                        Some(WayStands::Ships { copy, .. }) => {
                            copy.as_ref().is_some_and(|copy| copy.is_reading)
                        }
                        _ => false,
                    })
                });
                if is_reading == Some(false) {
                    break;
                }
                yield_now().await;
            }
        };
        timeout(PATIENCE, look).await.expect("it never has it");
    }

    async fn acknowledges(&self, end: u64) {
        let counts = self.group.acknowledged(&self.lane, end, PATIENCE).await;
        counts.expect("another broker has it");
    }
}

/// Another lane of the same broker, whose groups go the same way.
fn beside(lane: &Lane) -> Arc<Lane> {
    let spec = LaneSpec {
        lane: LaneId(1),
        ..*lane.spec()
    };
    let next_group = Arc::new(AtomicU64::new(1000));
    Lane::new(lane.primary().clone(), spec, next_group)
}

/// One read at a time; and nothing is lost because it takes long.
fn patient() -> Config {
    Config {
        call_timeout: PATIENCE,
        reconnect_timeout: PATIENCE,
        scan_timeout: PATIENCE,
        flush_timeout: PATIENCE,
        flush_interval: PATIENCE,
        room_timeout: PATIENCE,
        drain_timeout: PATIENCE,
        read_backs: 1,
        first_buffer_bytes: SHAPE.segment_size,
        buffer_bytes: SHAPE.segment_size,
        ..calm().config
    }
}

async fn heard(news: &Notify) {
    let heard = timeout(PATIENCE, news.notified()).await;
    heard.expect("it never comes");
}

fn played(story: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(story);
}

/// What has left memory is read from a disk that stands still: for a replica that is behind, or for one that is built
/// because the group's other one cannot be reached.
async fn a_replica_gets_what_has_left_memory(unreachable: Option<BrokerId>) {
    let peers = vec![OWNER, ANOTHER, BrokerId(3)];
    let willing = Willing {
        unreachable,
        ..Willing::default()
    };
    let (lane, _) = lane_with(2, peers, Arc::new(willing), patient()).await;
    let mut slow = Slow::begin(&lane);
    let end = slow.append_to_disk(1, 20);
    slow.reads().await;
    if unreachable.is_none() {
        slow.acknowledges(end).await;
    } else {
        lane.closed_frozen().await.expect("another is given it");
    }
    assert_eq!(slow.set.is_closed(), unreachable.is_some());
    assert_eq!(slow.set.durable(), end);
}

#[test]
fn bytes_that_are_on_disk_alone_are_read_where_that_holds_up_no_other_task() {
    played(a_replica_gets_what_has_left_memory(None));
    played(a_replica_gets_what_has_left_memory(Some(ANOTHER)));
}

/// A link breaks while bytes are read that are not the next over another one, or before they are shipped.
async fn a_read_outlives_its_link(is_read_before: bool) {
    let fails = Arc::new(Break::default());
    let willing = Arc::new(Willing {
        fails: Some(fails.clone()),
        ..Willing::default()
    });
    let (lane, _) = lane_with(2, vec![OWNER, ANOTHER], willing.clone(), patient()).await;
    let mut slow = Slow::begin(&lane);
    slow.append(1, 20);
    heard(&willing.connects).await;
    heard(&fails.submitted).await;
    // One batch is on its way, and the next one has to be read.
    let end = slow.append_to_disk(2, 20);
    stands("read", &mut slow.steps).await;
    if is_read_before {
        // What is under way over the link is all that it takes.
        let other = Slow::begin(&beside(&lane));
        other.append(3, 20);
        heard(&fails.submitted).await;
        goes_on(&mut slow.steps, &slow.go).await;
        slow.has_read().await;
        fails.now();
    } else {
        fails.now();
        heard(&willing.connects).await;
        goes_on(&mut slow.steps, &slow.go).await;
    }
    // All of it is sent again, for which it is read again.
    slow.reads().await;
    slow.acknowledges(end).await;
}

#[test]
fn a_read_for_a_link_that_broke_takes_no_room() {
    played(a_read_outlives_its_link(false));
    played(a_read_outlives_its_link(true));
}

/// What is read is what there is room for at the other broker.
async fn another_is_read_though_there_is_no_room() {
    let willing = Arc::new(Willing {
        crowded: Some(GroupId(1)),
        ..Willing::default()
    });
    let (lane, _) = lane_with(2, vec![OWNER, ANOTHER], willing.clone(), patient()).await;
    let mut crowded = Slow::begin(&lane);
    assert_eq!(crowded.set.id().group, GroupId(1));
    let end = crowded.append_to_disk(1, 200);
    assert!(end > LITTLE.into());
    crowded.reads().await;
    heard(&willing.refused).await;
    let mut other = Slow::begin(&beside(&lane));
    let end = other.append_to_disk(2, 20);
    other.reads().await;
    other.acknowledges(end).await;
}

#[test]
fn a_read_that_finds_no_room_at_its_backup_holds_up_no_other() {
    played(another_is_read_though_there_is_no_room());
}
