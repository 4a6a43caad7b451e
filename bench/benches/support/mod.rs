//! What the benches of the log share: a broker's environment, with files that are kept or thrown
//! away.
#![allow(dead_code, reason = "every bench takes what it needs")]

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::{
    Done, EngineKind, File, FileRef, FileSystem, Io, Op, OpenHow, ReadAt, open_engine,
};
use kera_log_segments::local_writer::LocalWriter;
use kera_log_segments::pool::ChunkPool;
use kera_protocol::batch::{BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp};
use kera_protocol::ids::{Epoch, GroupKey, Incarnation, StreamId, StreamletId};
use kera_records::{GroupRecord, Write};
use kera_streamlet::recorder::{Done as Recorded, GroupRecorder, RecordError};
use kera_streamlet::{AppendError, AppendSpec, Appended, Env, Job, Limits, Settings, Streamlet};

/// A batch of 100-byte records, `bytes` long or a little less.
pub(super) fn batch(bytes: usize, producer: i64) -> Vec<u8> {
    let value = [7u8; 90];
    let record = NewRecord {
        key: None,
        value: Some(&value),
        headers: &[],
        timestamp: 1,
    };
    let mut builder = BatchBuilder::with_capacity(bytes);
    while builder.is_empty() || builder.len() + BatchBuilder::record_bound(&record) <= bytes {
        builder.push(&record).expect("room");
    }
    let stamp = ProducerStamp {
        producer_id: producer,
        producer_epoch: 0,
        base_sequence: 0,
    };
    builder
        .finish(Compression::None, stamp)
        .expect("records")
        .to_vec()
}

/// Every change is durable at once.
struct Records;

impl GroupRecorder for Records {
    fn record(&self, _epoch: Epoch, _changes: Vec<Write>, done: Recorded) {
        done(Ok(()));
    }

    fn read(&self, _group: GroupKey) -> Result<Option<GroupRecord>, RecordError> {
        Ok(None)
    }
}

/// A file system whose files take everything and keep nothing.
#[derive(Debug)]
pub(super) struct Discard;

impl ReadAt for Discard {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
}

impl File for Discard {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], _offset: u64) -> io::Result<()> {
        std::hint::black_box(bufs);
        Ok(())
    }
    fn try_read_cached(&self, _buf: &mut [u8], _offset: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn sync_file_system(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn file_system(&self) -> io::Result<FileSystem> {
        Ok(FileSystem {
            device: 0,
            magic: 0,
        })
    }
}

impl Io for Discard {
    fn name(&self) -> &'static str {
        "discard"
    }
    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Ok(())
    }
    fn remove_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
    fn exists(&self, _path: &Path) -> bool {
        false
    }
    fn open(&self, _path: &Path, _how: OpenHow, _direct: bool) -> io::Result<FileRef> {
        Ok(Arc::new(Discard))
    }
    fn run(&self, ops: Vec<Op>) -> Vec<Done> {
        ops.into_iter()
            .map(|_| Done {
                result: Ok(0),
                buf: None,
                bufs: Vec::new(),
            })
            .collect()
    }
}

/// A streamlet ready for appends.
pub(super) struct Bench {
    pub streamlet: Arc<Streamlet>,
    pub env: Arc<Env>,
    jobs: Mutex<Receiver<Job>>,
    pump: Option<JoinHandle<()>>,
    _dir: Option<tempfile::TempDir>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.env.pump.stop();
        if let Some(pump) = self.pump.take() {
            pump.join().expect("the pump");
        }
    }
}

impl Bench {
    /// Over files that keep nothing.
    pub(super) fn discarding(ack: AckPolicy, lanes: u32) -> Self {
        Self::over(
            Arc::new(Discard),
            ack,
            lanes,
            PathBuf::from("/nowhere"),
            None,
        )
    }

    /// Over real files, removed at the end.
    pub(super) fn on_disk(ack: AckPolicy, lanes: u32) -> Self {
        let dir = tempfile::tempdir_in(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("."))
            .expect("a directory");
        let root = dir.path().to_owned();
        Self::over(
            open_engine(EngineKind::Blocking),
            ack,
            lanes,
            root,
            Some(dir),
        )
    }

    fn over(
        io: Arc<dyn Io>,
        ack: AckPolicy,
        lanes: u32,
        root: PathBuf,
        dir: Option<tempfile::TempDir>,
    ) -> Self {
        let (push, jobs) = sync_channel(100_000);
        let env = Arc::new(Env {
            io: io.clone(),
            pool: ChunkPool::new(512 << 20).expect("address space"),
            pump: LocalWriter::new(io),
            recorder: Arc::new(Records),
            incarnation: Incarnation::default(),
            // A full queue drops jobs; a bench never comes near.
            jobs: Box::new(move |job| drop(push.try_send(job))),
            root,
            limits: Limits::default(),
            disk_full: Default::default(),
            losses: Default::default(),
        });
        let settings = Settings {
            lanes,
            uneven_partitions: 0,
            lane_generation: 1,
            lane_by_key: true,
            segment_size: 8 << 20,
            segments_per_group: 16,
            ack,
            max_batch_bytes: 8 << 20,
            append_time: false,
            group_max_age_ms: 0,
            rules: Default::default(),
        };
        let streamlet = Streamlet::new(
            StreamId::random(),
            StreamletId(0),
            Epoch(1),
            settings,
            env.clone(),
        );
        env.io
            .create_dir_all(&streamlet.dir())
            .expect("a directory");
        let pump = env.pump.clone();
        Self {
            streamlet,
            env,
            jobs: Mutex::new(jobs),
            pump: Some(std::thread::spawn(move || pump.run())),
            _dir: dir,
        }
    }

    /// Appends and pumps, as a connection does; `sequence` counts a producer's records.
    pub(super) fn append(
        &self,
        lane: u32,
        batch: &mut [u8],
        header: &mut BatchHeader,
        sequence: &mut i32,
    ) -> Appended {
        header.base_sequence = *sequence;
        *sequence = kera_protocol::batch::next_sequence(*sequence, header.record_count);
        let spec = AppendSpec {
            lane,
            lane_generation: Some(1),
            now_ms: 1,
            essential: false,
        };
        let appended = loop {
            match self.streamlet.append(batch, header, spec) {
                Ok(appended) => break appended,
                // As a connection does: wait for the pump.
                Err(AppendError::NoMemory) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        appended.group.pump(&self.env.pump);
        appended
    }

    /// Closes what is full and frees it.
    pub(super) fn tidy(&self) {
        let jobs = self.jobs.lock().expect("jobs");
        while let Ok(job) = jobs.try_recv() {
            self.streamlet.do_job(&job, 1);
        }
        for (lane, _, head) in self.streamlet.bounds() {
            self.streamlet.trim(lane, head).expect("a trim");
        }
    }
}
