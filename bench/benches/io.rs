//! What writing costs: the page cache against io_uring, and a round over many files made durable in
//! several ways.
//!
//! `cargo bench -p kera-bench --bench io`; the directory is `KERA_BENCH_DIR` (default: the target
//! directory), the files of a round are `KERA_BENCH_FILES` (default 1,000). The disk's speed is
//! printed first: no figure means anything without it.

use std::io::{IoSlice, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use kera_log_segments::io::direct::{DirectRange, DirectWriter};
use kera_log_segments::io::{EngineKind, FileRef, Io, Op, OpenHow, open_engine};
use rustix::time::{ClockId, clock_gettime};

/// A file is cut back to nothing when it has grown to this.
const FILE_BYTES: u64 = 256 << 20;
/// Writes under way at once through the ring, and per turn of the plain loop.
const BATCH: usize = 8;
/// What each file of a round gets.
const ROUND_BYTES: usize = 16 << 10;

fn main() {
    let base = std::env::var_os("KERA_BENCH_DIR").map_or_else(
        || {
            std::env::current_exe()
                .ok()
                .and_then(|exe| Some(exe.parent()?.to_owned()))
                .unwrap_or_else(|| ".".into())
        },
        PathBuf::from,
    );
    let dir = tempfile::tempdir_in(base).expect("a directory to write to");
    raise_open_files();
    print_disk(dir.path());
    let mut criterion = Criterion::default().configure_from_args();
    buffered(&mut criterion, dir.path());
    rounds(&mut criterion, dir.path());
    criterion.final_summary();
}

fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("open files stay limited: {error}");
    }
}

/// CPU time of all threads of this process, the kernel's workers for it included.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn engines() -> Vec<Arc<dyn Io>> {
    let mut engines = vec![open_engine(EngineKind::Blocking)];
    let uring = open_engine(EngineKind::Uring);
    if uring.name() == "uring" {
        engines.push(uring);
    }
    engines
}

/// Sequential speed and the price of a small sync, as this disk has them now.
fn print_disk(dir: &Path) {
    let io = open_engine(EngineKind::Auto);
    let file = io
        .open(&dir.join("speed"), OpenHow::CreateNew, false)
        .expect("a file");
    let mib = vec![7u8; 1 << 20];
    let start = Instant::now();
    for at in 0..512u64 {
        file.write_vectored_at(&[IoSlice::new(&mib)], at << 20)
            .expect("a write");
    }
    file.sync_data().expect("a sync");
    let sequential = 512.0 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for at in 0..200u64 {
        file.write_vectored_at(&[IoSlice::new(&mib[..4096])], at << 12)
            .expect("a write");
        file.sync_data().expect("a sync");
    }
    let sync = start.elapsed().as_secs_f64() * 1e3 / 200.0;
    let system = file.file_system().expect("a file system");
    println!(
        "disk: {sequential:.0} MiB/s sequential, {sync:.2} ms per 4 KiB and sync, magic {:#x}",
        system.magic
    );
    print_flushes(&*io, dir, system.device);
    io.remove_file(&dir.join("speed")).expect("removed");
}

/// Flushes the device has seen: the fact that one flush for many files rests on.
fn print_flushes(io: &dyn Io, dir: &Path, device: u64) {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let flushes = || -> Option<u64> {
        let mut text = String::new();
        std::fs::File::open(format!("/sys/dev/block/{major}:{minor}/stat"))
            .ok()?
            .read_to_string(&mut text)
            .ok()?;
        text.split_whitespace().nth(15)?.parse().ok()
    };
    let (Some(_), Ok(direct)) = (
        flushes(),
        io.open(&dir.join("flush-a"), OpenHow::CreateNew, true),
    ) else {
        println!("flushes: not to be seen here");
        return;
    };
    let clean = io
        .open(&dir.join("flush-b"), OpenHow::CreateNew, false)
        .expect("a file");
    let write = |len| Op::WriteZeros {
        file: direct.clone(),
        offset: 0,
        len,
    };
    let sync = |file: &FileRef| Op::SyncData { file: file.clone() };
    // Both files settled first, the blocks of the direct one allocated and written.
    io.run(vec![write(1 << 20), sync(&direct), sync(&clean)]);
    let before = flushes();
    const TIMES: u64 = 100;
    for _ in 0..TIMES {
        io.run(vec![write(4096), sync(&clean)]);
    }
    let seen = flushes()
        .zip(before)
        .map_or(0, |(after, before)| after - before);
    println!(
        "flushes: {seen} for {TIMES} overwrites of one file, each followed by a sync of another that is clean"
    );
}

fn buffered(criterion: &mut Criterion, dir: &Path) {
    for (clock, now) in [("cpu", cpu as fn() -> Duration), ("wall", wall)] {
        let mut group = criterion.benchmark_group(format!("buffered/{clock}"));
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(3))
            .warm_up_time(Duration::from_millis(500));
        for size in [16 << 10, 128 << 10] {
            let data = Bytes::from(vec![0x5a; size]);
            group.throughput(Throughput::Bytes((BATCH * size) as u64));
            for io in engines() {
                let path = dir.join("buffered");
                let file = io.open(&path, OpenHow::CreateNew, false).expect("a file");
                let name = if io.name() == "uring" {
                    "uring"
                } else {
                    "pwritev"
                };
                let mut offset = 0;
                group.bench_function(
                    BenchmarkId::new(name, format!("{}KiB", size >> 10)),
                    |bencher| {
                        bencher.iter_custom(|times| {
                            let mut spent = Duration::ZERO;
                            for _ in 0..times {
                                if offset >= FILE_BYTES {
                                    file.set_len(0).expect("cut");
                                    offset = 0;
                                }
                                let start = now();
                                write_batch(&*io, &file, &data, offset);
                                spent += now() - start;
                                offset += (BATCH * data.len()) as u64;
                            }
                            spent
                        });
                    },
                );
                drop(file);
                io.remove_file(&path).expect("removed");
            }
        }
        group.finish();
    }
}

fn wall() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn write_batch(io: &dyn Io, file: &FileRef, data: &Bytes, offset: u64) {
    let offsets = (0..BATCH).map(|at| offset + (at * data.len()) as u64);
    if io.name() == "uring" {
        let op = |offset| Op::Write {
            file: file.clone(),
            offset,
            bufs: vec![data.clone()],
        };
        for done in io.run(offsets.map(op).collect()) {
            done.result.expect("a write");
        }
    } else {
        for offset in offsets {
            file.write_vectored_at(&[IoSlice::new(data)], offset)
                .expect("a write");
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    /// `pwritev` and `fdatasync`, file by file.
    SyncEach,
    /// `pwritev` to all, then all `fdatasync`s as one batch.
    SyncBatch,
    /// `pwritev` to all, then `syncfs`.
    SyncFileSystem,
    /// [`DirectWriter`].
    OneFlush,
}

fn rounds(criterion: &mut Criterion, dir: &Path) {
    let files: usize = std::env::var("KERA_BENCH_FILES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000);
    for files in [10, files] {
        let mut group = criterion.benchmark_group(format!("round/{files}x16KiB"));
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(6))
            .warm_up_time(Duration::from_secs(1));
        group.throughput(Throughput::Bytes((files * ROUND_BYTES) as u64));
        for (name, way) in [
            ("fdatasync each", Way::SyncEach),
            ("fdatasync batch", Way::SyncBatch),
            ("syncfs", Way::SyncFileSystem),
            ("direct, one flush", Way::OneFlush),
        ] {
            for io in engines() {
                if io.name() == "blocking" && matches!(way, Way::SyncFileSystem)
                    || io.name() == "uring" && matches!(way, Way::SyncEach)
                {
                    continue;
                }
                let dir = dir.join("round");
                io.create_dir_all(&dir).expect("a directory");
                let mut round = Round::new(io.clone(), &dir, files, way);
                group.bench_function(BenchmarkId::new(name, io.name()), |bencher| {
                    bencher.iter_custom(|times| {
                        let start = Instant::now();
                        for _ in 0..times {
                            round.run();
                        }
                        start.elapsed()
                    });
                });
                drop(round);
                io.remove_dir_all(&dir).expect("removed");
            }
        }
        group.finish();
    }
}

struct Round {
    io: Arc<dyn Io>,
    writer: DirectWriter,
    files: Vec<FileRef>,
    way: Way,
    offset: u64,
    data: Bytes,
}

impl Round {
    fn new(io: Arc<dyn Io>, dir: &Path, files: usize, way: Way) -> Self {
        let writer = DirectWriter::new(io.clone());
        let files = (0..files)
            .map(|at| {
                let path = dir.join(format!("{at}"));
                match way {
                    Way::OneFlush => writer.open(&path, OpenHow::CreateNew, u64::MAX),
                    _ => io.open(&path, OpenHow::CreateNew, false),
                }
                .expect("a file")
            })
            .collect();
        Self {
            io,
            writer,
            files,
            way,
            offset: 0,
            data: Bytes::from(vec![0x5a; ROUND_BYTES]),
        }
    }

    fn run(&mut self) {
        let (offset, data) = (self.offset, &self.data);
        self.offset += ROUND_BYTES as u64;
        if let Way::OneFlush = self.way {
            let ranges = self
                .files
                .iter()
                .map(|file| DirectRange::new(file.clone(), offset, vec![data.clone()]));
            for result in self.writer.write_and_sync(ranges.collect()) {
                result.expect("a round");
            }
            return;
        }
        for file in &self.files {
            file.write_vectored_at(&[IoSlice::new(data)], offset)
                .expect("a write");
            if let Way::SyncEach = self.way {
                file.sync_data().expect("a sync");
            }
        }
        match self.way {
            Way::SyncBatch => {
                let ops = self
                    .files
                    .iter()
                    .map(|file| Op::SyncData { file: file.clone() })
                    .collect();
                for done in self.io.run(ops) {
                    done.result.expect("a sync");
                }
            }
            Way::SyncFileSystem => self.files[0].sync_file_system().expect("a sync"),
            Way::SyncEach | Way::OneFlush => {}
        }
    }
}
