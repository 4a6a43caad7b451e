//! One round: all writes, then as few syncs as make them durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use parking_lot::MutexGuard;

use super::DirectRange;
use super::file::{DirectFile, State, remembered};
use super::layout::Piece;
use crate::io::{FileRef, Io, Op};

/// Bytes in buffers at a time; a longer round is written in waves.
const WAVE_BYTES: usize = 4 * 1024 * 1024;

/// What a round does to one file.
struct Job<'r> {
    file: &'r FileRef,
    /// The ranges of this file, ascending.
    ranges: Vec<usize>,
    direct: Option<(&'r DirectFile, MutexGuard<'r, State>)>,
    error: Option<io::Error>,
}

impl Job<'_> {
    fn fail(&mut self, error: io::Error) {
        if let Some((_, state)) = &mut self.direct {
            state.fail(&error);
        }
        self.error.get_or_insert(error);
    }

    /// Whether another file's flush cannot make this one's bytes durable.
    fn needs_own_sync(&self) -> bool {
        self.direct
            .as_ref()
            .is_none_or(|(file, state)| !file.one_flush || state.unsynced_blocks)
    }

    fn device(&self) -> Option<u64> {
        self.direct
            .as_ref()
            .map(|(file, _)| file.file_system.device)
    }

    fn sync_op(&self) -> Op {
        let file = self
            .direct
            .as_ref()
            .map_or(self.file, |(direct, _)| &direct.inner);
        Op::SyncData { file: file.clone() }
    }

    fn synced(&mut self, result: io::Result<usize>) -> io::Result<()> {
        result?;
        if let Some((_, state)) = &mut self.direct {
            state.unsynced_blocks = false;
        }
        Ok(())
    }
}

pub(super) struct Round<'r> {
    io: &'r dyn Io,
    ranges: &'r [DirectRange],
    jobs: Vec<Job<'r>>,
    ops: Vec<Op>,
    /// The job of each operation.
    owners: Vec<usize>,
    bytes: usize,
}

impl<'r> Round<'r> {
    pub(super) fn new(io: &'r dyn Io, ranges: &'r [DirectRange]) -> Self {
        // By identity; direct files in the order of their ids, in which they are locked, so that
        // two rounds over the same files cannot wait for each other in a circle.
        let mut jobs: BTreeMap<(u64, usize), Job<'r>> = BTreeMap::new();
        for (at, range) in ranges.iter().enumerate() {
            let key = match range.file.as_direct() {
                Some(direct) => (direct.id, 0),
                None => (0, std::sync::Arc::as_ptr(&range.file).cast::<()>() as usize),
            };
            let job = Job {
                file: &range.file,
                ranges: Vec::new(),
                direct: None,
                error: None,
            };
            jobs.entry(key).or_insert(job).ranges.push(at);
        }
        let mut jobs: Vec<Job<'r>> = jobs.into_values().collect();
        for job in &mut jobs {
            job.ranges.sort_by_key(|at| ranges[*at].offset);
            job.direct = job
                .file
                .as_direct()
                .map(|direct| (direct, direct.state.lock()));
        }
        Self {
            io,
            ranges,
            jobs,
            ops: Vec::new(),
            owners: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn run(mut self) -> Vec<io::Result<()>> {
        for at in 0..self.jobs.len() {
            self.plan_writes(at);
            if self.bytes >= WAVE_BYTES {
                self.write();
            }
        }
        self.write();
        self.sync();
        let mut results: Vec<io::Result<()>> = self.ranges.iter().map(|_| Ok(())).collect();
        for job in &self.jobs {
            if let Some(error) = &job.error {
                for at in &job.ranges {
                    results[*at] = Err(remembered((error.kind(), error.raw_os_error())));
                }
            }
        }
        results
    }

    fn plan_writes(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        let before = self.ops.len();
        match &mut job.direct {
            Some((direct, state)) => {
                let pieces: Vec<Piece<'_>> = job
                    .ranges
                    .iter()
                    .map(|range| &self.ranges[*range])
                    .map(|range| {
                        (
                            range.offset,
                            range.bufs.iter().map(|buf| &buf[..]).collect(),
                        )
                    })
                    .collect();
                match state.lay_out(self.io, &direct.inner, &pieces) {
                    Ok(layout) => self.ops.extend(layout.ops),
                    Err(error) => job.fail(error),
                }
            }
            None => {
                for range in &job.ranges {
                    let DirectRange { file, offset, bufs } = &self.ranges[*range];
                    self.ops.push(Op::Write {
                        file: file.clone(),
                        offset: *offset,
                        bufs: bufs.clone(),
                    });
                }
            }
        }
        for op in &self.ops[before..] {
            self.owners.push(at);
            if let Op::WriteDirect { len, .. } = op {
                self.bytes += len;
            }
        }
    }

    fn write(&mut self) {
        let done = self.io.run(std::mem::take(&mut self.ops));
        for (done, owner) in done.into_iter().zip(std::mem::take(&mut self.owners)) {
            if let Err(error) = done.result {
                self.jobs[owner].fail(error);
            }
        }
        self.bytes = 0;
    }

    /// Makes what was written durable with as few syncs as do. If one of them fails, nothing that was written
    /// counts: the device may have dropped what its cache held of any file, and would answer that all is well when
    /// it is flushed the next time.
    fn sync(&mut self) {
        let written: Vec<usize> = (0..self.jobs.len())
            .filter(|at| self.jobs[*at].error.is_none())
            .collect();
        let (mut syncing, covered): (Vec<usize>, Vec<usize>) = written
            .iter()
            .partition(|at| self.jobs[**at].needs_own_sync());
        // On each device one sync at least, so that it is flushed for all.
        let synced = syncing.iter().filter_map(|at| self.jobs[*at].device());
        let mut flushed: BTreeSet<u64> = synced.collect();
        for at in covered {
            if self.jobs[at]
                .device()
                .is_some_and(|device| flushed.insert(device))
            {
                syncing.push(at);
            }
        }
        let ops = syncing.iter().map(|at| self.jobs[*at].sync_op()).collect();
        let mut failed = None;
        for (done, at) in self.io.run(ops).into_iter().zip(&syncing) {
            if let Err(error) = self.jobs[*at].synced(done.result) {
                failed.get_or_insert((error.kind(), error.raw_os_error()));
            }
        }
        if let Some(failed) = failed {
            for at in written {
                self.jobs[at].fail(remembered(failed));
            }
        }
    }
}
