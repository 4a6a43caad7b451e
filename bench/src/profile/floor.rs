//! What the machine itself takes for the same bytes: bare loops that receive, check, copy and write
//! batches of one size, and do nothing else.
//!
//! Each loop is timed by the CPU time of its thread, user and kernel. A broker that kept its own work
//! at zero would need as much; what it takes above that is its own.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use kera_protocol::batch::crc32c;
use rustix::time::{ClockId, clock_gettime};

use super::steps::Step;

/// Bytes that pass through each loop, at most.
const BYTES: u64 = 512 << 20;
/// Memory that copies go to, round and round: a segment's worth.
const SEGMENT: usize = 8 << 20;

/// Nanoseconds of CPU per byte of each step's bare loop.
#[derive(Clone, Debug)]
pub(super) struct Floor {
    pub steps: Vec<(Step, f64)>,
}

impl Floor {
    /// Measures what an appending broker cannot do without; `write` for a file in page cache.
    pub(super) fn of_produce(
        batch: usize,
        records_bytes: u64,
        folder: &Path,
        write: bool,
    ) -> Result<Self> {
        let rounds = rounds(batch, records_bytes);
        let mut steps = vec![
            (Step::Receive, receive(batch, rounds)?),
            (Step::Check, check(batch, rounds)),
            (Step::Copy, copy(batch, rounds)),
        ];
        if write {
            steps.push((Step::Write, file(batch, rounds, folder)?.0));
        }
        Ok(Self { steps })
    }

    /// Measures what a broker whose readers are behind cannot do without.
    pub(super) fn of_consume(batch: usize, records_bytes: u64, folder: &Path) -> Result<Self> {
        let rounds = rounds(batch, records_bytes);
        Ok(Self {
            steps: vec![
                (Step::Check, check(batch, rounds)),
                (Step::Load, file(batch, rounds, folder)?.1),
                (Step::Send, send(batch, rounds)?),
            ],
        })
    }

    /// Of one step, per byte.
    pub(super) fn of(&self, step: Step) -> Option<f64> {
        let found = self.steps.iter().find(|(one, _)| *one == step);
        found.map(|(_, nanos)| *nanos)
    }
}

fn rounds(batch: usize, bytes: u64) -> u64 {
    (bytes.min(BYTES) / batch as u64).max(16)
}

/// CPU time of this thread so far, in nanoseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds per byte of `rounds` times `work`, which passes `batch` bytes.
fn timed(batch: usize, rounds: u64, mut work: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    work(0)?;
    let begin = cpu();
    for round in 0..rounds {
        work(round)?;
    }
    Ok((cpu() - begin) / (rounds * batch as u64) as f64)
}

fn bytes(batch: usize) -> Vec<u8> {
    (0..batch).map(|at| (at * 31) as u8).collect()
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a bare loop panicked"))?
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn receive(batch: usize, rounds: u64) -> Result<f64> {
    let (mut client, mut server) = pair()?;
    let sender = std::thread::spawn(move || {
        let bytes = bytes(batch);
        // One round before the timed ones.
        for _ in 0..=rounds {
            client.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut buffer = vec![0; batch];
    let nanos = timed(batch, rounds, |_| Ok(server.read_exact(&mut buffer)?))?;
    joined(sender)?;
    Ok(nanos)
}

fn send(batch: usize, rounds: u64) -> Result<f64> {
    let (mut client, mut server) = pair()?;
    let receiver = std::thread::spawn(move || {
        let mut buffer = vec![0; batch];
        while client.read(&mut buffer)? > 0 {}
        Ok(())
    });
    let bytes = bytes(batch);
    let nanos = timed(batch, rounds, |_| Ok(server.write_all(&bytes)?))?;
    drop(server);
    joined(receiver)?;
    Ok(nanos)
}

fn check(batch: usize, rounds: u64) -> f64 {
    let bytes = bytes(batch);
    let nanos = timed(batch, rounds, |_| {
        black_box(crc32c(black_box(&bytes)));
        Ok(())
    });
    nanos.unwrap_or_default()
}

fn copy(batch: usize, rounds: u64) -> f64 {
    let bytes = bytes(batch);
    // Written to once: the first touch of its pages is not counted.
    let mut segment = vec![1; SEGMENT.max(batch)];
    let places = (segment.len() / batch) as u64;
    let nanos = timed(batch, rounds, |round| {
        let at = (round % places) as usize * batch;
        segment[at..at + batch].copy_from_slice(black_box(&bytes));
        black_box(&segment[at]);
        Ok(())
    });
    nanos.unwrap_or_default()
}

/// Writing a new file through the page cache, and reading it from there.
fn file(batch: usize, rounds: u64, folder: &Path) -> Result<(f64, f64)> {
    let path = folder.join("floor");
    let file = open(&path)?;
    let bytes = bytes(batch);
    let written = timed(batch, rounds, |round| {
        Ok(file.write_all_at(&bytes, (round + 1) * batch as u64)?)
    });
    let mut buffer = vec![0; batch];
    let read = timed(batch, rounds, |round| {
        Ok(file.read_exact_at(&mut buffer, (round + 1) * batch as u64)?)
    });
    let _ = std::fs::remove_file(&path);
    Ok((written?, read?))
}

fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(true).read(true).write(true);
    options
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_takes_time_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let produce = Floor::of_produce(16 << 10, 1 << 20, folder.path(), true).unwrap();
        assert_eq!(produce.steps.len(), 4);
        let consume = Floor::of_consume(16 << 10, 1 << 20, folder.path()).unwrap();
        assert_eq!(consume.steps.len(), 3);
        for (step, nanos) in produce.steps.iter().chain(&consume.steps) {
            assert!(*nanos > 0.0, "{step:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(produce.of(Step::Send).is_none());
    }
}
