//! A group as a broker's would be, small enough to end often, with nobody but tests that appends to it.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use kera_log_segments::group::{AckPolicy, Group, GroupFull, GroupSpec, GroupWriter};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::Io;
use kera_log_segments::io::fault::{Fault, FaultIo};
use kera_log_segments::local_writer::Turn;
use kera_log_segments::pool::ChunkPool;
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::ship::ShipRun;
use kera_log_segments::window::Place;
use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp, patch,
};
use kera_protocol::ids::{GroupId, LaneId, LaneKey, Ordinal};
use kera_replication::ids::CopyId;
use kera_replication::primary::{Appender, Lane, ReplicaSet, Shape};
use kera_replication::records::RecordsError;
use kera_replication::runtime::within;

pub const SHAPE: Shape = Shape {
    segment_size: 1024,
    segments: 3,
};

/// A batch as it was appended.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Unique among all batches of a run.
    pub id: u64,
    /// Where it ends in its group.
    pub end: u64,
    /// With ordinal and epoch in place.
    pub bytes: Bytes,
}

/// A group and the right to append to it. Its own file is its own: what counts as a replica is written by the stage.
pub struct TestGroup {
    pub copy: CopyId,
    group: Arc<Group>,
    writer: Mutex<GroupWriter>,
    head: Arc<LaneHead>,
    disk: FaultIo,
    is_unreadable: AtomicBool,
    /// The group before it, where that holds it back.
    before: Option<Box<Self>>,
    batches: Mutex<Vec<Appended>>,
}

/// Why an append is not acknowledged.
#[derive(Debug, PartialEq)]
pub enum Unacknowledged {
    /// Not in time; the bytes may still become durable.
    TooFewReplicas,
    /// Another broker owns the streamlet.
    Deposed(RecordsError),
}

/// Why a group takes no batch.
#[derive(Debug, PartialEq)]
pub enum Closed {
    Full,
    Frozen,
}

/// Ages are no part of these tests: time stands still for them.
fn clock() -> u64 {
    0
}

/// Address space for what all groups of a process have in memory.
fn pool() -> ChunkPool {
    static POOL: OnceLock<ChunkPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| ChunkPool::new(1 << 30).expect("address space"));
    pool.clone()
}

impl TestGroup {
    pub fn new(copy: CopyId, lane: LaneId, first_ordinal: Ordinal) -> Self {
        Self::with_shape(copy, lane, first_ordinal, SHAPE)
    }

    /// Another size than the suite's.
    pub fn with_shape(copy: CopyId, lane: LaneId, first_ordinal: Ordinal, shape: Shape) -> Self {
        Self::over(copy, lane, first_ordinal, shape, |disk| Arc::new(disk))
    }

    /// On the disk that `wrap` makes of one of its own.
    pub fn over(
        copy: CopyId,
        lane: LaneId,
        first_ordinal: Ordinal,
        shape: Shape,
        wrap: impl FnOnce(FaultIo) -> Arc<dyn Io>,
    ) -> Self {
        let head = Arc::new(LaneHead::new(first_ordinal));
        Self::of_lane((copy, lane, first_ordinal, shape), head, wrap)
    }

    /// The next group of this one's lane, whose head passes both: whoever deposes the lane tells those that wait for
    /// either.
    pub fn next(&self, place: (CopyId, LaneId, Ordinal, Shape)) -> Self {
        Self::of_lane(place, self.head.clone(), |disk| Arc::new(disk))
    }

    fn of_lane(
        (copy, lane, first_ordinal, shape): (CopyId, LaneId, Ordinal, Shape),
        head: Arc<LaneHead>,
        wrap: impl FnOnce(FaultIo) -> Arc<dyn Io>,
    ) -> Self {
        let path = PathBuf::from("/group").join(GroupSpec::file_name(copy.group, 0));
        let spec = GroupSpec {
            lane: LaneKey {
                stream: copy.streamlet.stream,
                streamlet: copy.streamlet.streamlet,
                lane,
            },
            group: copy.group,
            generation: copy.generation,
            epoch: copy.epoch,
            segment_size: shape.segment_size,
            segments: shape.segments,
            first_ordinal,
            created_ms: clock(),
            path,
        };
        let disk = FaultIo::new(0);
        disk.create_dir_all("/group".as_ref()).expect("a directory");
        let snapshot = format!("lane {lane} before {first_ordinal}").into_bytes();
        let io = wrap(disk.clone());
        let (group, writer) =
            Group::create(spec, AckPolicy::Written, head.clone(), io, pool(), snapshot);
        head.push_group(group.clone());
        Self {
            copy,
            group,
            writer: Mutex::new(writer),
            head,
            disk,
            is_unreadable: AtomicBool::new(false),
            before: None,
            batches: Mutex::default(),
        }
    }

    /// Its bytes count before its file has them, which is only after [`Self::let_go`]: the group before it is not
    /// recorded.
    pub fn remembered(copy: CopyId, lane: LaneId) -> Self {
        let before = Self::new(copy, lane, 0);
        before.append(0, 0).expect("room");
        before.group.write_out();
        before.freeze();
        let this = Self::new(copy, lane, 0);
        this.group.set_policy(AckPolicy::Memory);
        this.group.follow(&before.group);
        Self {
            before: Some(Box::new(before)),
            ..this
        }
    }

    /// The group before it is recorded.
    pub fn let_go(&self) {
        let before = self.before.as_ref().expect("it waits for one");
        before.group.mark_recorded();
        self.group.write_out();
    }

    /// Ready to be shipped, which its segments say, though nobody does it.
    pub fn shipped(self) -> Self {
        self.group.ship_by(Weak::<ReplicaSet>::new());
        self
    }

    /// Its lane ships it from now on.
    pub fn open(self: &Arc<Self>, lane: &Arc<Lane>) -> Arc<ReplicaSet> {
        let owner: Arc<dyn GroupOwner> = self.clone();
        self.open_as(lane, &owner)
    }

    /// The same; its files are made and removed by `owner`.
    pub fn open_as(&self, lane: &Arc<Lane>, owner: &Arc<dyn GroupOwner>) -> Arc<ReplicaSet> {
        let streamlet = Arc::downgrade(owner);
        lane.open(&self.group, Appender { streamlet, clock })
    }

    /// Waits until all below `address` counts, at most for `time`.
    pub async fn acknowledged(
        &self,
        lane: &Arc<Lane>,
        address: u64,
        time: Duration,
    ) -> Result<(), Unacknowledged> {
        let below = self.batches().iter().filter(|b| b.end <= address).count();
        let until = self.group.spec().first_ordinal + below as u64;
        let runtime = lane.primary().runtime().clone();
        let (lane, head) = (lane.clone(), self.head.clone());
        let counts = poll_fn(move |cx| {
            let is_above = head.wait(until, cx.waker());
            // As a streamlet's appends do, it asks the head alone: whoever deposes the lane must tell it.
            match (head.failures() > 0, is_above) {
                (true, _) => {
                    let error = lane.deposed().expect("nothing else fails here");
                    Poll::Ready(Err(Unacknowledged::Deposed(error)))
                }
                (false, true) => Poll::Pending,
                (false, false) => Poll::Ready(Ok(())),
            }
        });
        let counted = within(&*runtime, time, Box::pin(counts)).await;
        counted.unwrap_or(Err(Unacknowledged::TooFewReplicas))
    }

    /// Its bytes cannot be read from now on, or can be again; nobody is told.
    pub fn set_unreadable(&self, is_unreadable: bool) {
        self.is_unreadable.store(is_unreadable, Ordering::Relaxed);
        self.disk.heal();
        if is_unreadable {
            self.leave_to_bad_disk(&mut self.writer.lock().unwrap());
        }
    }

    /// What was appended is in its file alone, which nobody can read.
    fn leave_to_bad_disk(&self, writer: &mut GroupWriter) {
        self.disk.heal();
        self.leave_memory(writer);
        self.disk.inject(Fault::StopAfter { ops: 0 });
    }

    fn leave_memory(&self, writer: &mut GroupWriter) {
        self.group.write_out();
        assert!(writer.release_memory(), "all of it was written");
    }

    /// What was appended is in its file alone.
    pub fn leave_to_disk(&self) {
        self.leave_memory(&mut self.writer.lock().unwrap());
    }

    /// Appends a batch that says `id`, with `filler` bytes more; nobody is told.
    pub fn append(&self, id: u64, filler: usize) -> Result<Appended, Closed> {
        let mut writer = self.writer.lock().unwrap();
        if self.group.is_frozen() {
            return Err(Closed::Frozen);
        }
        let mut bytes = batch(id, filler);
        patch(&mut bytes, writer.next_ordinal(), self.copy.epoch);
        let header = BatchHeader::peek(&bytes).expect("a batch");
        match writer.append(&bytes, &header, clock(), usize::MAX) {
            Ok(_) => {}
            Err(GroupFull::Roll) => return Err(Closed::Full),
            Err(GroupFull::NoMemory) => panic!("the pool is empty"),
        }
        let appended = Appended {
            id,
            end: self.group.end_address(),
            bytes: bytes.into(),
        };
        self.batches.lock().unwrap().push(appended.clone());
        if self.is_unreadable.load(Ordering::Relaxed) {
            self.leave_to_bad_disk(&mut writer);
        }
        Ok(appended)
    }

    pub fn shape(&self) -> Shape {
        let spec = self.group.spec();
        Shape {
            segment_size: spec.segment_size,
            segments: spec.segments,
        }
    }

    /// Its bytes from `from` on.
    pub fn runs(&self, from: u64) -> Vec<ShipRun> {
        let shipped = self.group.ship(from, usize::MAX);
        assert_eq!(shipped.on_disk, None, "they are in memory");
        shipped.runs
    }

    pub fn end(&self) -> Place {
        self.group.end()
    }

    /// What was appended before this ordinal is acknowledged.
    pub fn durable_head(&self) -> Ordinal {
        self.head.ordinal()
    }

    /// Writes what was appended into its own file, as another appender does that has the file's turn.
    pub fn write_out(&self) {
        assert_eq!(self.group.write_out(), Turn::Written);
    }

    pub fn is_frozen(&self) -> bool {
        self.group.is_frozen()
    }

    /// Takes nothing more; nobody is told.
    pub fn freeze(&self) -> Place {
        self.writer.lock().unwrap().freeze()
    }

    /// All its segments, as they lie in a copy: zeros between a segment's end and the next.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for run in self.runs(0) {
            out.resize(run.address as usize, 0);
            run.parts
                .iter()
                .for_each(|part| out.extend_from_slice(part));
        }
        out
    }

    pub fn batches(&self) -> Vec<Appended> {
        self.batches.lock().unwrap().clone()
    }
}

impl GroupOwner for TestGroup {
    fn freeze_group(&self, _lane: LaneId, _group: &Arc<Group>, _now_ms: u64) -> Place {
        self.freeze()
    }

    /// What counts as its own file is written by the stage.
    fn make_ahead(&self, _lane: LaneId, _group: GroupId, _ack: AckPolicy) -> bool {
        true
    }

    fn drop_ahead(&self, _group: GroupId, _is_unrecorded: bool) {}

    fn group_ended(&self, _lane: LaneId, group: &Group) {
        group.set_ended();
    }

    fn group_flushed(&self, _lane: LaneId, group: (GroupId, u32), with_own: bool) {
        assert_eq!(group, (self.group.id(), self.group.spec().generation));
        self.group.set_flushed(with_own);
    }

    fn deposed(&self) {
        self.head.abandon();
    }
}

/// A batch that no lane takes: its producer is not known, and it does not begin at 0.
pub fn out_of_sequence() -> Vec<u8> {
    let stamp = ProducerStamp {
        producer_id: 1,
        producer_epoch: 0,
        base_sequence: 9,
    };
    stamped(0, 0, stamp)
}

/// One record whose value begins with `id`.
pub fn batch(id: u64, filler: usize) -> Vec<u8> {
    stamped(id, filler, ProducerStamp::NONE)
}

fn stamped(id: u64, filler: usize, stamp: ProducerStamp) -> Vec<u8> {
    let mut value = id.to_be_bytes().to_vec();
    value.resize(8 + filler, id as u8);
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        value: Some(&value),
        timestamp: id as i64,
        ..Default::default()
    };
    builder.push(&record).expect("a small record");
    let batch = builder.finish(Compression::None, stamp);
    batch.expect("one record").to_vec()
}
