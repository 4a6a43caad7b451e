//! A streamlet as a broker serves it: appends, rolls, groups, files and the durable head are those of
//! `kera-streamlet`, and replication is wired to it as in a broker, by `StreamletLanes`.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use kera_log_segments::group::{AckPolicy, Group, GroupSpec};
use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::layout::FOOTER_OFFSET;
use kera_log_segments::local_writer::LocalWriter;
use kera_log_segments::pool::ChunkPool;
use kera_log_segments::replicas::Mending;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{Epoch, GroupId, GroupKey, LaneId};
use kera_records::{GroupRecord, Transaction, Write};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, StreamletKey};
use kera_replication::primary::{Lane, LaneSpec, Primary, StreamletLanes};
use kera_replication::recovery::Recovered;
use kera_replication::transport::{Reply, Request};
use kera_streamlet::recorder::{Done, GroupRecorder, RecordError};
use kera_streamlet::{
    AppendError, AppendSpec, Appended, BatchRules, Copies, Env, GroupOwner, Job, LaneReadSpec,
    LaneRecords, Limits, Located, Outcome, Settings, Streamlet,
};

use super::asked::Asked;
use super::check::{Model, whole_batches};
use super::test_group::{SHAPE, batch, out_of_sequence};
use super::{Plan, StageRef};

/// Address space for the segments of one streamlet.
const POOL_BYTES: usize = 64 << 20;
/// Between two attempts at a job.
const JOB_PAUSE: Duration = Duration::from_millis(100);
/// Attempts at a job. Not for ever: when nothing else moves any more, somebody must notice.
const JOB_ATTEMPTS: u32 = 50;

/// Ages and expiry are no part of the suite: time stands still for them.
fn clock() -> u64 {
    1_700_000_000_000
}

/// Where an owner's own group files lie.
pub struct Disk {
    pub io: Arc<dyn Io>,
    /// Directory of stream directories.
    pub root: PathBuf,
    pub life: Incarnation,
}

impl Disk {
    /// An empty one in memory. Nothing that is written to it counts as a copy.
    pub fn of_no_account() -> Self {
        Self {
            io: Arc::new(FaultIo::new(0)),
            root: "/store".into(),
            life: Incarnation::default(),
        }
    }
}

/// A streamlet under one owner and one epoch.
pub struct Served {
    pub owner: BrokerId,
    streamlet: Arc<Streamlet>,
    env: Arc<Env>,
    copies: Arc<LaneCopies>,
    primary: Arc<Primary>,
    disk: Disk,
}

impl Served {
    /// Takes over what was recovered, as a broker does: the newest group of each lane is fetched where the
    /// owner's own file lacks it, the streamlet is put together from records and files, and serves.
    ///
    /// # Errors
    /// Says which group could be had from nobody, or what the streamlet found wrong.
    pub async fn take_over(
        stage: &StageRef,
        plan: &Plan,
        primary: &Arc<Primary>,
        recovered: &Recovered,
        model: &Model,
    ) -> Result<Arc<Self>, String> {
        let owner = primary.me();
        let key = super::scenario::streamlet();
        let disk = stage.disk(owner);
        restore(&disk, primary, recovered, false).await?;

        let target: Arc<OnceLock<Weak<Streamlet>>> = Arc::default();
        let env = Arc::new(Env {
            io: disk.io.clone(),
            pool: ChunkPool::new(POOL_BYTES).expect("address space"),
            pump: LocalWriter::new(disk.io.clone()),
            recorder: Arc::new(Recorder {
                records: stage.asked(owner),
                streamlet: key,
            }),
            incarnation: disk.life,
            jobs: jobs(primary, &target),
            root: disk.root.clone(),
            limits: Limits::default(),
            disk_full: Default::default(),
            losses: Default::default(),
        });
        let streamlet = Streamlet::awaiting(
            key.stream,
            key.streamlet,
            recovered.epoch,
            settings(plan),
            env.clone(),
        );
        let _ = target.set(Arc::downgrade(&streamlet));
        let next = recovered.next_group;
        let records = lane_records(recovered);
        let found = streamlet
            .take_over(recovered.epoch, next, records, clock())
            .map_err(|error| format!("the owner's own files: {error}"))?;
        if !found.changes.is_empty() || !found.gaps.is_empty() || !found.reports.is_empty() {
            return Err(format!("all groups were closed, and still: {found:?}"));
        }
        for path in found.remove.iter().chain(&found.aside) {
            disk.io.remove_file(path).expect("it is listed");
        }
        let dir = streamlet.dir();
        disk.io.create_dir_all(&dir).expect("a directory");
        // Durably, as a broker makes them.
        for above in dir.ancestors().skip(1).take(2) {
            disk.io.sync_dir(above).expect("a directory");
        }
        for lane in &recovered.lanes {
            let end = streamlet.log_end(lane.lane);
            if end != Some(lane.next_ordinal) {
                return Err(format!(
                    "lane {} goes on at {end:?} in the streamlet, at {} in the records",
                    lane.lane, lane.next_ordinal
                ));
            }
        }
        let next = next.max(streamlet.next_group());
        let spec = LaneSpec {
            streamlet: key,
            epoch: recovered.epoch,
            lane: LaneId(0),
            replicas: plan.replicas,
            min_insync_replicas: plan.min_insync_replicas,
        };
        let groups_of: Arc<dyn GroupOwner> = streamlet.clone();
        let groups_of = Arc::downgrade(&groups_of);
        let copies = Arc::new(LaneCopies {
            lanes: StreamletLanes::new(
                primary.clone(),
                spec,
                groups_of,
                next,
                clock,
                Box::new(|_| Mending::Nowhere),
            ),
            newest: Mutex::default(),
            model: model.clone(),
        });
        streamlet.serve(copies.clone());
        Ok(Arc::new(Self {
            owner,
            streamlet,
            env,
            copies,
            primary: primary.clone(),
            disk,
        }))
    }

    /// The lane as replication has it.
    pub fn lane(&self, lane: LaneId) -> Arc<Lane> {
        self.copies.lanes.lane(lane)
    }

    pub fn epoch(&self) -> Epoch {
        self.copies.lanes.spec().epoch
    }

    /// What a broker does every second: what its groups have in memory is written.
    pub fn write_out(&self) {
        self.streamlet.write_out();
    }

    /// Appends a batch that says `id`; `None` where another broker owns the streamlet by now.
    ///
    /// # Errors
    /// Any other refusal.
    pub fn append(&self, lane: LaneId, id: u64, filler: usize) -> Result<Option<Appended>, String> {
        let mut bytes = batch(id, filler);
        match self.place(lane, &mut bytes) {
            Ok(appended) => {
                let copy = self.copies.id(appended.group.id());
                self.copies.model.appended(copy, id, bytes.into());
                appended.group.pump(&self.env.pump);
                // As the pump's thread does, which is all that writes files of synced groups.
                self.env.pump.drain();
                Ok(Some(appended))
            }
            Err(AppendError::NotOwner) => Ok(None),
            Err(error) => Err(format!("an append is refused: {error}")),
        }
    }

    fn place(&self, lane: LaneId, bytes: &mut [u8]) -> Result<Appended, AppendError> {
        let header = BatchHeader::peek(bytes).expect("a batch");
        let spec = AppendSpec {
            lane: lane.0,
            lane_generation: None,
            now_ms: clock(),
            essential: false,
        };
        self.streamlet.append(bytes, &header, spec)
    }

    /// The lane goes on in a group that nothing is appended to yet: the batch that opens it is refused.
    pub fn open_empty(&self, lane: LaneId) {
        let refused = self.place(lane, &mut out_of_sequence());
        assert!(
            matches!(
                refused,
                Err(AppendError::Sequence(_) | AppendError::NotOwner)
            ),
            "{refused:?}"
        );
    }

    /// Ends the group that the lane appends to, as its age would; whether there is any.
    pub fn end_group(&self, lane: LaneId) -> bool {
        let Some(group) = self.copies.newest(lane) else {
            return false;
        };
        if !group.is_frozen() {
            self.streamlet.freeze_group(lane, &group, clock());
            group.announce_frozen();
        }
        true
    }

    /// The records of a lane from its start to its head: what each batch says, in order.
    ///
    /// # Errors
    /// If the lane cannot be read, or its ordinals have a gap.
    pub fn read(&self, lane: LaneId) -> Result<Vec<u64>, String> {
        let mut from = Located {
            ordinal: 0,
            at: None,
        };
        let (mut said, mut next) = (Vec::new(), 0);
        loop {
            let spec = LaneReadSpec {
                lane,
                from,
                end_ordinal: u64::MAX,
                max_bytes: 1 << 20,
                cached_only: false,
            };
            let found = self.streamlet.read(spec);
            let found = found.map_err(|error| format!("lane {lane}: {error}"))?;
            let bytes = found.bufs.concat();
            let mut at = 0;
            while at < bytes.len() {
                let header = BatchHeader::peek(&bytes[at..]).map_err(|error| error.to_string())?;
                if header.base_ordinal != next {
                    return Err(format!(
                        "lane {lane}: a reader finds ordinal {} after {next}",
                        header.base_ordinal
                    ));
                }
                next += header.ordinals();
                said.push(header.max_timestamp as u64);
                at += header.total_bytes;
            }
            if found.next.ordinal >= found.head {
                return Ok(said);
            }
            if found.batches == 0 && found.next == from {
                return Err(format!(
                    "lane {lane}: a reader stands still at {from:?} below {}",
                    found.head
                ));
            }
            from = found.next;
        }
    }

    /// Fetches every recovered group that the owner's own files lack.
    ///
    /// # Errors
    /// Says which group could be had from nobody.
    pub async fn restore_all(&self, recovered: &Recovered) -> Result<(), String> {
        restore(&self.disk, &self.primary, recovered, true).await
    }
}

/// Waits at the lane's durable head; false if the bytes were given up.
pub async fn durable(appended: Appended) -> bool {
    poll_fn(move |cx| match appended.poll(cx.waker()) {
        Outcome::Pending => Poll::Pending,
        outcome => Poll::Ready(outcome == Outcome::Durable),
    })
    .await
}

fn settings(plan: &Plan) -> Settings {
    Settings {
        lanes: plan.lanes,
        uneven_partitions: 0,
        lane_generation: 1,
        lane_by_key: true,
        segment_size: SHAPE.segment_size,
        segments_per_group: SHAPE.segments,
        ack: match (plan.synced, plan.remembered) {
            (true, _) => AckPolicy::Synced,
            (false, true) => AckPolicy::Memory,
            (false, false) => AckPolicy::Written,
        },
        max_batch_bytes: 1 << 20,
        append_time: false,
        group_max_age_ms: 0,
        rules: BatchRules::default(),
    }
}

/// Work off the append path, as tasks of the owner's process.
fn jobs(
    primary: &Arc<Primary>,
    target: &Arc<OnceLock<Weak<Streamlet>>>,
) -> Box<dyn Fn(Job) + Send + Sync> {
    let (runtime, target) = (primary.runtime().clone(), target.clone());
    Box::new(move |job| {
        let (clock_of_pauses, target) = (runtime.clone(), target.clone());
        runtime.spawn(Box::pin(async move {
            for _ in 0..JOB_ATTEMPTS {
                let Some(streamlet) = target.get().and_then(Weak::upgrade) else {
                    return;
                };
                if streamlet.do_job(&job, clock()) {
                    return;
                }
                drop(streamlet);
                clock_of_pauses.sleep(JOB_PAUSE).await;
            }
        }));
    })
}

/// What was recovered, as the streamlet takes it over.
fn lane_records(recovered: &Recovered) -> HashMap<LaneId, LaneRecords> {
    let lanes = recovered.lanes.iter().map(|lane| {
        let records = LaneRecords {
            log_start: 0,
            groups: lane.groups.clone(),
        };
        (lane.lane, records)
    });
    lanes.collect()
}

/// Fetches what the owner's own files lack: of every group if `all`, otherwise of each lane's newest.
async fn restore(
    disk: &Disk,
    primary: &Primary,
    recovered: &Recovered,
    all: bool,
) -> Result<(), String> {
    for lane in &recovered.lanes {
        let groups = lane.groups.iter().rev();
        let holding = groups.filter(|record| record.holds_records());
        for record in holding.take(if all { usize::MAX } else { 1 }) {
            let copy = CopyId::of(record);
            let path = disk
                .root
                .join(copy.streamlet.stream.to_string())
                .join(copy.streamlet.streamlet.0.to_string())
                .join(GroupSpec::file_name(copy.group, 0));
            if is_whole(disk, &path, copy, record) {
                continue;
            }
            let bytes = fetch(primary, copy, record).await?;
            let _may_be_there = disk.io.remove_file(&path);
            let dir = path.parent().expect("a directory");
            disk.io.create_dir_all(dir).expect("a directory");
            let file = disk.io.open(&path, OpenHow::CreateNew, false);
            let file = file.expect("a new file");
            let group_bytes = u64::from(SHAPE.segment_size) * u64::from(SHAPE.segments);
            file.set_len(group_bytes + FOOTER_OFFSET).expect("room");
            file.write_vectored_at(&[IoSlice::new(&bytes)], 0)
                .expect("room");
        }
    }
    Ok(())
}

fn is_whole(disk: &Disk, path: &std::path::Path, copy: CopyId, record: &GroupRecord) -> bool {
    let Ok(file) = disk.io.open(path, OpenHow::ReadOnly, false) else {
        return false;
    };
    let mut bytes = vec![0; record.length as usize];
    let read = file.read_at(&mut bytes, 0).expect("it is read");
    read == bytes.len() && whole_batches(&bytes.into(), copy, record.length).is_ok()
}

async fn fetch(primary: &Primary, copy: CopyId, record: &GroupRecord) -> Result<Bytes, String> {
    let mut said = Vec::new();
    for holder in &record.copies {
        let read = Request::Read {
            copy,
            address: 0,
            len: record.length as u32,
        };
        match primary.ask(holder.broker, read).await {
            Ok(Reply::Bytes(bytes)) => match whole_batches(&bytes, copy, record.length) {
                Ok(_) => return Ok(bytes),
                Err(error) => said.push(error),
            },
            Ok(other) => said.push(format!("{other:?} is no answer to read")),
            Err(error) => said.push(error.to_string()),
        }
    }
    Err(format!("{copy} can be fetched from no holder: {said:?}"))
}

/// The lanes, and what the suite notes of them.
struct LaneCopies {
    lanes: StreamletLanes,
    /// The last group of each lane.
    newest: Mutex<BTreeMap<LaneId, Arc<Group>>>,
    model: Model,
}

impl LaneCopies {
    fn id(&self, group: GroupId) -> CopyId {
        let spec = self.lanes.spec();
        CopyId {
            streamlet: spec.streamlet,
            group,
            epoch: spec.epoch,
            generation: 0,
        }
    }

    fn newest(&self, lane: LaneId) -> Option<Arc<Group>> {
        self.newest.lock().expect("no panic").get(&lane).cloned()
    }
}

impl Copies for LaneCopies {
    fn next_group(&self, lane: LaneId, ack: AckPolicy) -> GroupId {
        self.lanes.next_group(lane, ack)
    }

    fn begin(&self, lane: LaneId, group: &Arc<Group>) {
        self.model.opened(self.id(group.id()), lane);
        let mut newest = self.newest.lock().expect("no panic");
        newest.insert(lane, group.clone());
        drop(newest);
        self.lanes.begin(lane, group);
    }

    fn deleted(&self, groups: &[(GroupId, Epoch, u32)]) {
        self.lanes.deleted(groups);
    }

    fn mend(&self, group: GroupId) -> Mending {
        self.lanes.mend(group)
    }

    fn abandon(&self) {
        self.lanes.abandon();
    }
}

/// The streamlet's own changes of records; replication makes all others.
struct Recorder {
    records: Arc<Asked>,
    streamlet: StreamletKey,
}

impl GroupRecorder for Recorder {
    fn read(&self, group: GroupKey) -> Result<Option<GroupRecord>, RecordError> {
        let found = self.records.records.look(self.streamlet);
        let found = found.ok_or(RecordError("no such streamlet".into()))?;
        Ok(found.groups.into_iter().find(|r| r.key() == group))
    }

    fn record(&self, epoch: Epoch, changes: Vec<Write>, done: Done) {
        let deleted = changes.into_iter().try_for_each(|change| match change {
            Write::DeleteGroup(key) => self.delete(epoch, key.group),
            other => Err(RecordError(format!(
                "replication records groups: {other:?}"
            ))),
        });
        done(deleted);
    }
}

impl Recorder {
    fn delete(&self, epoch: Epoch, group: GroupId) -> Result<(), RecordError> {
        let found = self.records.records.look(self.streamlet);
        let found = found.ok_or(RecordError("no such streamlet".into()))?;
        let Some(record) = found.groups.iter().find(|r| r.group == group) else {
            return Ok(());
        };
        let delete = Write::delete_group(record.key(), record.revision);
        let transaction = Transaction::of_groups(self.streamlet, epoch, [delete]);
        let committed = self.records.commit_at_once(&transaction);
        committed
            .map(drop)
            .map_err(|error| RecordError(error.to_string()))
    }
}
