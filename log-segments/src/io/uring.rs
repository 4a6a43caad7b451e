//! The engine over io_uring.
//!
//! A batch is pushed to one ring and submitted with one system call, which also waits. There are a
//! few rings, so that a cold read does not wait behind a flush; each is made on first use and used
//! by one batch at a time. Buffers of the arena are registered with each ring on first use.
//!
//! Buffers belong to the kernel from submission to completion: a batch returns only when the kernel
//! has let go of all of them. Where that cannot be known (the ring itself fails), they are leaked.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;

use super::aligned::{Arena, BLOCK_BYTES};
use super::flight::{Flight, Step, Transfer};
use super::{AlignedBuf, Done, Io, Op, blocking, os, perform};

/// Operations under way in one ring at most.
const DEPTH: u32 = 256;
/// Rings at most: batches under way at once.
const RINGS: usize = 4;
/// The arena: 4 MiB, which an unprivileged process may register with a ring or two (`RLIMIT_MEMLOCK`).
const ARENA_SLOTS: u32 = 64;
const ARENA_SLOT_BYTES: usize = 64 * 1024;
/// Memory that this engine registers with the kernel when all its rings are at work, in bytes: what
/// RLIMIT_MEMLOCK should allow. With less, rings that find no room go on with plain buffers.
pub const LOCKED_BYTES: u64 = RINGS as u64 * ARENA_SLOTS as u64 * ARENA_SLOT_BYTES as u64;
/// Refusals of a submission for want of kernel memory in a row before the batch gives up.
const MAX_REFUSALS: u32 = 1_000;

/// Files of the operating system, moved by io_uring.
pub(super) struct Uring {
    rings: [Mutex<Option<Ring>>; RINGS],
    turn: AtomicUsize,
    arena: Arc<Arena>,
}

struct Ring {
    ring: IoUring,
    arena: Registration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Registration {
    Untried,
    Registered,
    Refused,
}

impl Uring {
    /// Makes a ring and proves it by a real write, sync and read.
    ///
    /// # Errors
    /// The kernel's refusal, or `Unsupported` when it grants rings but not the operations needed.
    pub(super) fn open() -> io::Result<Self> {
        let ring = Ring::new()?;
        ring.check_operations()?;
        let this = Self {
            rings: Default::default(),
            turn: AtomicUsize::new(0),
            arena: Arena::new(ARENA_SLOTS, ARENA_SLOT_BYTES)?,
        };
        *this.rings[0].lock() = Some(ring);
        this.check_round_trip()?;
        Ok(this)
    }

    /// Writes, syncs and reads back a file in memory. A sandbox may grant the ring and then fail
    /// each operation.
    fn check_round_trip(&self) -> io::Result<()> {
        let Some(file) = os::memory_file() else {
            return Ok(());
        };
        let ops = vec![
            Op::Write {
                file: file.clone(),
                offset: 0,
                bufs: vec![bytes::Bytes::from_static(b"kera")],
            },
            Op::SyncData { file: file.clone() },
            Op::Read {
                file,
                offset: 0,
                buf: AlignedBuf::zeroed(BLOCK_BYTES),
                len: 4,
            },
        ];
        let mut read = None;
        for done in self.run(ops) {
            done.result?;
            read = done.buf;
        }
        match read {
            Some(buf) if buf.starts_with(b"kera") => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring read back something else than it wrote",
            )),
        }
    }

    fn run_on(&self, slot: &mut Option<Ring>, ops: Vec<Op>) -> Vec<Done> {
        // Taken out for the duration: should the batch unwind, the ring is not used again.
        let ring = match slot.take() {
            Some(ring) => Ok(ring),
            None => Ring::new(),
        };
        let mut ring = match ring {
            Ok(ring) => ring,
            Err(error) => {
                tracing::debug!(%error, "no further io_uring ring, performing a batch by plain calls");
                return blocking::run(ops);
            }
        };
        if ring.arena == Registration::Untried && ops.iter().any(|op| uses(op, &self.arena)) {
            ring.register(&self.arena);
        }
        let registered = ring.arena == Registration::Registered;
        let flights = ops.into_iter().map(|op| {
            let fixed = registered && uses(&op, &self.arena);
            Flight::new(op, fixed)
        });
        // Never dropped by unwinding: the kernel may still be at the buffers.
        let mut flights: ManuallyDrop<Vec<Flight>> = ManuallyDrop::new(flights.collect());
        match ring.fly(&mut flights) {
            Ok(()) => {
                *slot = Some(ring);
                ManuallyDrop::into_inner(flights)
                    .into_iter()
                    .map(Flight::into_done)
                    .collect()
            }
            Err(error) => {
                tracing::error!(%error, "an io_uring ring failed, its operations under way count as failed");
                flights
                    .iter_mut()
                    .map(|flight| flight.abandon(&error))
                    .collect()
            }
        }
    }
}

fn uses(op: &Op, arena: &Arc<Arena>) -> bool {
    match op {
        Op::WriteDirect { buf, .. } | Op::Read { buf, .. } => buf.is_in(arena),
        _ => false,
    }
}

impl Io for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn run(&self, mut ops: Vec<Op>) -> Vec<Done> {
        if ops.len() <= 1 {
            // Nothing to batch: the plain call is the cheaper one.
            return ops.pop().map(perform::perform).into_iter().collect();
        }
        for slot in &self.rings {
            if let Some(mut slot) = slot.try_lock() {
                return self.run_on(&mut slot, ops);
            }
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % RINGS;
        self.run_on(&mut self.rings[turn].lock(), ops)
    }

    fn buffer(&self, len: usize) -> AlignedBuf {
        self.arena
            .take(len)
            .unwrap_or_else(|| AlignedBuf::zeroed(len))
    }
}

impl Ring {
    fn new() -> io::Result<Self> {
        // Completions are only looked for when a batch waits: no need to interrupt it (Linux 5.19).
        let ring = IoUring::builder()
            .dontfork()
            .setup_coop_taskrun()
            .build(DEPTH);
        let ring = match ring {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                IoUring::builder().dontfork().build(DEPTH)?
            }
            ring => ring?,
        };
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_submit_stable() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring of this kernel is too old (5.6 is the first that fits)",
            ));
        }
        Ok(Self {
            ring,
            arena: Registration::Untried,
        })
    }

    fn check_operations(&self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        let needed = [
            ("writev", opcode::Writev::CODE),
            ("write", opcode::Write::CODE),
            ("read", opcode::Read::CODE),
            ("fsync", opcode::Fsync::CODE),
            ("write_fixed", opcode::WriteFixed::CODE),
            ("read_fixed", opcode::ReadFixed::CODE),
        ];
        match needed
            .into_iter()
            .find(|(_, code)| !probe.is_supported(*code))
        {
            None => Ok(()),
            Some((name, _)) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("io_uring does not grant the operation {name}"),
            )),
        }
    }

    fn register(&mut self, arena: &Arc<Arena>) {
        // SAFETY: the arena is mapped for as long as the engine lives, and the rings, which are
        // fields of the same engine, are dropped with it; the kernel pins the pages besides.
        self.arena = match unsafe { self.ring.submitter().register_buffers(&[arena.iovec()]) } {
            Ok(()) => Registration::Registered,
            Err(error) => {
                tracing::debug!(%error, "io_uring buffers cannot be registered, going on without");
                Registration::Refused
            }
        };
    }

    /// Brings every flight to its result, phase by phase.
    ///
    /// # Errors
    /// When the ring fails, with operations possibly under way.
    fn fly(&mut self, flights: &mut [Flight]) -> io::Result<()> {
        let mut from = 0;
        while from < flights.len() {
            let sync = flights[from].is_sync();
            let len = flights[from..]
                .iter()
                .take_while(|flight| flight.is_sync() == sync)
                .count();
            self.fly_phase(from, &mut flights[from..from + len])?;
            from += len;
        }
        Ok(())
    }

    fn fly_phase(&mut self, base: usize, flights: &mut [Flight]) -> io::Result<()> {
        let mut ready: Vec<usize> = (0..flights.len()).rev().collect();
        let mut waiting_for = 0u32;
        let mut refusals = 0;
        loop {
            while waiting_for < DEPTH
                && let Some(at) = ready.pop()
            {
                match flights[at].next() {
                    Step::Finished => {}
                    Step::Move(transfer) => {
                        let entry = entry(&transfer).user_data((base + at) as u64);
                        // SAFETY: the buffers, the slices and the open file of this entry are in
                        // the flight, which stays where it is, untouched, until its completion is
                        // reaped below; on every other way out all flights are leaked.
                        if unsafe { self.ring.submission().push(&entry) }.is_err() {
                            ready.push(at);
                            break;
                        }
                        waiting_for += 1;
                    }
                }
            }
            if waiting_for == 0 {
                return Ok(());
            }
            // With more to submit, half the ring is enough to go on with.
            let want = if ready.is_empty() {
                waiting_for
            } else {
                waiting_for.div_ceil(2)
            };
            match self.ring.submit_and_wait(want as usize) {
                Ok(_) => refusals = 0,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) if refusals < MAX_REFUSALS => {
                        refusals += 1;
                        std::thread::yield_now();
                    }
                    _ => return Err(error),
                },
            }
            for completion in self.ring.completion() {
                waiting_for -= 1;
                let at = completion.user_data() as usize - base;
                if !flights[at].land(completion.result()) {
                    ready.push(at);
                }
            }
        }
    }
}

fn entry(transfer: &Transfer) -> squeue::Entry {
    match *transfer {
        Transfer::Gather {
            fd,
            slices,
            count,
            offset,
        } => opcode::Writev::new(types::Fd(fd), slices, count)
            .offset(offset)
            .build(),
        Transfer::Write {
            fd,
            start,
            len,
            offset,
            fixed: true,
        } => opcode::WriteFixed::new(types::Fd(fd), start, len, 0)
            .offset(offset)
            .build(),
        Transfer::Write {
            fd,
            start,
            len,
            offset,
            fixed: false,
        } => opcode::Write::new(types::Fd(fd), start, len)
            .offset(offset)
            .build(),
        Transfer::Read {
            fd,
            start,
            len,
            offset,
            fixed: true,
        } => opcode::ReadFixed::new(types::Fd(fd), start, len, 0)
            .offset(offset)
            .build(),
        Transfer::Read {
            fd,
            start,
            len,
            offset,
            fixed: false,
        } => opcode::Read::new(types::Fd(fd), start, len)
            .offset(offset)
            .build(),
        Transfer::SyncData { fd } => opcode::Fsync::new(types::Fd(fd))
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
    }
}
