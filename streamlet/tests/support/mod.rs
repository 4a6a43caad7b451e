//! What the tests of streamlets share: a machine that can be crashed, a record store that can be
//! slow and fail, batches whose records say who they are, and a reader that checks what it gets.
#![allow(dead_code, reason = "every test takes what it needs")]

pub mod batches;
pub mod client;
pub mod model;
pub mod store;
pub mod transactions;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{CrashPlan, FaultIo, Flip};
use kera_log_segments::io::{EngineKind, Io, open_engine};
use kera_log_segments::local_writer::LocalWriter;
use kera_log_segments::pool::ChunkPool;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{
    ANY_LANE, Epoch, GroupId, Incarnation, LaneId, Ordinal, StreamId, StreamletId,
};
use kera_streamlet::{
    AppendError, AppendSpec, Appended, BatchRules, Env, Job, LaneReadError, LaneReadSpec, Limits,
    Located, Outcome, Recovery, Settings, Streamlet,
};
use uuid::Uuid;

use batches::ids_of;
use store::Store;

/// The lane of tests that have one.
pub const LANE: LaneId = LaneId(0);

/// Small segments and groups, so that few batches cross their borders.
pub fn settings(ack: AckPolicy) -> Settings {
    Settings {
        uneven_partitions: 0,
        lanes: 1,
        lane_generation: 1,
        lane_by_key: true,
        segment_size: 64 * 1024,
        segments_per_group: 3,
        ack,
        max_batch_bytes: 1 << 20,
        append_time: false,
        group_max_age_ms: 0,
        rules: BatchRules::default(),
    }
}

/// A machine with a disk and a metadata store that outlive the broker's process.
pub struct Machine {
    pub io: Arc<dyn Io>,
    pub fault: Option<FaultIo>,
    pub store: Arc<Store>,
    pub stream: StreamId,
    pub incarnation: Incarnation,
    pub limits: Limits,
    pub pool_bytes: usize,
    pub now_ms: u64,
    root: PathBuf,
    epoch: u32,
    _dir: Option<tempfile::TempDir>,
}

impl Machine {
    /// On the fault engine.
    pub fn fault(seed: u64) -> Self {
        let fault = FaultIo::new(seed);
        Self::with(
            Arc::new(fault.clone()),
            Some(fault),
            PathBuf::from("/store"),
            None,
        )
    }

    /// On plain system calls in a temporary directory.
    pub fn disk() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path().to_owned();
        Self::with(open_engine(EngineKind::Blocking), None, root, Some(dir))
    }

    fn with(
        io: Arc<dyn Io>,
        fault: Option<FaultIo>,
        root: PathBuf,
        dir: Option<tempfile::TempDir>,
    ) -> Self {
        Self {
            io,
            fault,
            store: Arc::default(),
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            incarnation: Incarnation {
                store_id: Uuid::from_u128(1),
                boot_id: Uuid::from_u128(1),
            },
            limits: Limits {
                prepare_at: 2.0,
                ..Limits::default()
            },
            pool_bytes: 64 << 20,
            now_ms: 1_700_000_000_000,
            root,
            epoch: 0,
            _dir: dir,
        }
    }

    fn env(&self, jobs: &Jobs) -> Arc<Env> {
        self.store.set_boot(self.incarnation.boot_id);
        let jobs = jobs.clone();
        Arc::new(Env {
            io: self.io.clone(),
            pool: ChunkPool::new(self.pool_bytes).expect("address space"),
            pump: LocalWriter::new(self.io.clone()),
            recorder: self.store.clone(),
            incarnation: self.incarnation,
            jobs: Box::new(move |job| jobs.lock().expect("jobs").push_back(job)),
            root: self.root.clone(),
            limits: self.limits,
            disk_full: Default::default(),
            losses: Default::default(),
        })
    }

    /// Counts starts of this machine that happened elsewhere.
    pub fn skip_epochs(&mut self, count: u32) {
        self.epoch += count;
    }

    /// The next starts take epochs again that such many had: their store was put back.
    pub fn forget_epochs(&mut self, count: u32) {
        self.epoch -= count;
    }

    /// The streamlet's directory.
    pub fn dir(&self) -> PathBuf {
        self.root.join(self.stream.to_string()).join("0")
    }

    /// The file of a group.
    pub fn file(&self, group: u64) -> PathBuf {
        self.dir()
            .join(kera_log_segments::group::GroupSpec::file_name(
                GroupId(group),
                0,
            ))
    }

    /// A broker's first start.
    pub fn create(&mut self, settings: Settings) -> Node {
        self.io.create_dir_all(&self.dir()).expect("a directory");
        let mut above = Some(self.dir());
        while let Some(dir) = above.filter(|d| d.starts_with(&self.root)) {
            above = dir.parent().map(Into::into);
            if let Some(parent) = &above {
                self.io.sync_dir(parent).expect("a synced directory");
            }
        }
        self.epoch += 1;
        let jobs = Jobs::default();
        let env = self.env(&jobs);
        let streamlet = Streamlet::new(
            self.stream,
            StreamletId(0),
            Epoch(self.epoch),
            settings,
            env.clone(),
        );
        Node {
            streamlet,
            env,
            jobs,
            now_ms: self.now_ms,
        }
    }

    /// A later start: takes over what records and files hold.
    pub fn recover(&mut self, settings: Settings) -> (Node, Recovery) {
        self.try_recover(settings).expect("a recovery")
    }

    /// As [`Self::recover`], which may be refused.
    pub fn try_recover(&mut self, settings: Settings) -> std::io::Result<(Node, Recovery)> {
        self.epoch += 1;
        self.now_ms += 1000;
        let jobs = Jobs::default();
        let env = self.env(&jobs);
        let records: HashMap<_, _> = self.store.lanes();
        let epoch = Epoch(self.epoch);
        let (streamlet, recovery) = Streamlet::recover(
            self.stream,
            StreamletId(0),
            epoch,
            GroupId(0),
            settings,
            env.clone(),
            records,
            self.now_ms,
        )?;
        self.settle(&recovery);
        Ok((
            Node {
                streamlet,
                env,
                jobs,
                now_ms: self.now_ms,
            },
            recovery,
        ))
    }

    /// Records what a recovery decided, and removes what no longer counts.
    fn settle(&self, recovery: &Recovery) {
        self.store.apply_now(recovery.changes.clone());
        for path in &recovery.remove {
            if let Err(error) = self.io.remove_file(path) {
                assert_eq!(
                    error.kind(),
                    std::io::ErrorKind::NotFound,
                    "{}",
                    path.display()
                );
            }
        }
    }

    /// After a start that could not read the streamlet's files for a `cause`: it goes on without it.
    pub fn waiting(&self, settings: Settings, cause: String) -> Node {
        let jobs = Jobs::default();
        let env = self.env(&jobs);
        let (id, epoch) = (StreamletId(0), Epoch(self.epoch));
        let streamlet = Streamlet::awaiting(self.stream, id, epoch, settings, env.clone());
        streamlet.set_unreadable(cause);
        Node {
            streamlet,
            env,
            jobs,
            now_ms: self.now_ms,
        }
    }

    /// Reads the files of one that waits again, and has it served.
    pub fn read_again(&self, node: &Node) -> std::io::Result<Recovery> {
        let (epoch, records) = (Epoch(self.epoch), self.store.lanes());
        let recovered = node
            .streamlet
            .recover_files(epoch, GroupId(0), records, self.now_ms);
        let recovery = recovered?;
        self.settle(&recovery);
        node.streamlet.serve_alone();
        Ok(recovery)
    }

    /// The process is killed: completed writes survive, `keep` of the records not yet acknowledged do.
    pub fn kill(&mut self, node: Node, keep: usize) {
        drop(node);
        self.store.crash(keep);
        if let Some(fault) = &self.fault {
            let (after, _) = fault.crash(&CrashPlan::kill());
            self.io = Arc::new(after.clone());
            self.fault = Some(after);
        }
    }

    /// The machine loses power by `plan`: a new boot. Returns the bits that were flipped.
    pub fn power_loss(&mut self, node: Node, keep: usize, plan: &CrashPlan) -> Vec<Flip> {
        drop(node);
        self.store.crash(keep);
        let (after, flips) = self.fault.as_ref().expect("a fault engine").crash(plan);
        self.io = Arc::new(after.clone());
        self.fault = Some(after);
        next_boot(&mut self.incarnation);
        flips
    }
}

type Jobs = Arc<Mutex<VecDeque<Job>>>;

/// A running streamlet.
pub struct Node {
    pub streamlet: Arc<Streamlet>,
    pub env: Arc<Env>,
    pub jobs: Jobs,
    pub now_ms: u64,
}

impl Node {
    /// Ends a growth of the streamlet's lanes.
    pub fn finish_growth(&self, lanes: u32, lane_generation: u32) {
        self.streamlet.finish_growth(&Settings {
            lanes,
            lane_generation,
            ..(*self.streamlet.settings()).clone()
        });
    }

    /// Appends without pumping.
    pub fn place(&self, lane: u32, batch: &mut [u8]) -> Result<Appended, AppendError> {
        self.place_as(lane, None, batch)
    }

    /// As [`Self::place`], split by a lane generation.
    pub fn place_as(
        &self,
        lane: u32,
        generation: Option<u32>,
        batch: &mut [u8],
    ) -> Result<Appended, AppendError> {
        let header = BatchHeader::peek(batch).expect("a batch");
        let spec = AppendSpec {
            lane,
            lane_generation: generation,
            now_ms: self.now_ms,
            essential: false,
        };
        self.streamlet.append(batch, &header, spec)
    }

    /// Pumps what a group needs by its policy, in this thread.
    pub fn pump(&self, appended: &Appended) -> Outcome {
        appended.group.pump(&self.env.pump);
        self.env.pump.drain();
        appended.outcome()
    }

    /// Appends and makes durable.
    pub fn append(&self, lane: u32, batch: &mut [u8]) -> Appended {
        let appended = self.place(lane, batch).expect("an append");
        assert_eq!(self.pump(&appended), Outcome::Durable);
        appended
    }

    /// Appends to the lane the owner chooses.
    pub fn append_any(&self, batch: &mut [u8]) -> Appended {
        self.append(ANY_LANE, batch)
    }

    /// Does the jobs that are due until none is left or none succeeds; returns true if all did.
    pub fn work(&self) -> bool {
        let mut idle = 0;
        loop {
            let Some(job) = self.jobs.lock().expect("jobs").pop_front() else {
                return true;
            };
            self.env.pump.drain();
            if self.streamlet.do_job(&job, self.now_ms) {
                idle = 0;
            } else {
                let mut jobs = self.jobs.lock().expect("jobs");
                if !jobs.contains(&job) {
                    jobs.push_back(job);
                }
                idle += 1;
                if idle > jobs.len() + 2 {
                    return false;
                }
            }
        }
    }

    /// One read.
    pub fn read_at(
        &self,
        lane: LaneId,
        from: Located,
        max_bytes: usize,
        end: Ordinal,
    ) -> Result<kera_streamlet::Found, LaneReadError> {
        self.streamlet.read(LaneReadSpec {
            lane,
            from,
            end_ordinal: end,
            max_bytes,
            cached_only: false,
        })
    }

    /// Reads a lane from an ordinal to its head, checking that ordinals never go back and that
    /// nothing at or above the head is shown.
    pub fn read_from(
        &self,
        lane: LaneId,
        from: Ordinal,
        max_bytes: usize,
    ) -> Result<Vec<(Ordinal, u64)>, LaneReadError> {
        let mut at = Located {
            ordinal: from,
            at: None,
        };
        let mut out: Vec<(Ordinal, u64)> = Vec::new();
        loop {
            let found = self.read_at(lane, at, max_bytes, u64::MAX)?;
            let bytes = found.bufs.concat();
            assert_eq!(bytes.len(), found.bytes);
            let records = ids_of(&bytes);
            for (ordinal, id) in records {
                assert!(
                    ordinal < found.head,
                    "ordinal {ordinal} is shown, the head is {}",
                    found.head
                );
                if let Some((before, _)) = out.last() {
                    assert!(*before < ordinal, "ordinal {ordinal} follows {before}");
                }
                out.push((ordinal, id));
            }
            if found.batches == 0 {
                if found.next.ordinal >= found.head {
                    return Ok(out);
                }
                assert!(
                    found.next.ordinal > at.ordinal,
                    "a reader at {at:?} stands still below {}",
                    found.head
                );
            }
            at = found.next;
        }
    }

    /// Everything readable in a lane.
    pub fn read_all(&self, lane: LaneId) -> Vec<(Ordinal, u64)> {
        self.read_from(lane, self.log_start(lane), 10_000)
            .expect("a readable lane")
    }

    /// The durable head.
    pub fn head(&self, lane: LaneId) -> Ordinal {
        self.streamlet.head(lane).expect("a lane").ordinal()
    }

    /// The first readable ordinal.
    pub fn log_start(&self, lane: LaneId) -> Ordinal {
        self.streamlet.bounds()[lane.0 as usize].1
    }
}

/// The machine boots.
pub fn next_boot(incarnation: &mut Incarnation) {
    incarnation.boot_id = Uuid::from_u128(incarnation.boot_id.as_u128() + 1);
}
