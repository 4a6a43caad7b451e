//! The engine of plain system calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::perform::{perform, waits_for_device};
use super::{Done, Io, Op};

/// Threads a batch is spread over at most.
const MAX_THREADS: usize = 8;
/// Operations a thread must have to be worth starting.
const OPS_PER_THREAD: usize = 4;

/// Files of the operating system, read and written by plain calls.
#[derive(Debug)]
pub(super) struct Blocking;

impl Io for Blocking {
    fn name(&self) -> &'static str {
        "blocking"
    }

    fn run(&self, ops: Vec<Op>) -> Vec<Done> {
        run(ops)
    }
}

/// Performs a batch phase by phase.
pub(super) fn run(ops: Vec<Op>) -> Vec<Done> {
    let mut done = Vec::with_capacity(ops.len());
    let mut ops = ops.into_iter().peekable();
    while let Some(first) = ops.next() {
        let sync = first.is_sync();
        let mut phase = vec![first];
        while let Some(op) = ops.next_if(|op| op.is_sync() == sync) {
            phase.push(op);
        }
        run_phase(phase, &mut done);
    }
    done
}

fn run_phase(phase: Vec<Op>, done: &mut Vec<Done>) {
    let waiting = phase.iter().filter(|op| waits_for_device(op)).count();
    let threads = (waiting / OPS_PER_THREAD).min(MAX_THREADS);
    if threads < 2 {
        done.extend(phase.into_iter().map(perform));
        return;
    }
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Slot>> = phase
        .into_iter()
        .map(|op| Mutex::new(Slot::Todo(op)))
        .collect();
    let work = || {
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Nobody else comes to this slot: each index is drawn once.
            let mut slot = slot.lock();
            if let Slot::Todo(op) = std::mem::replace(&mut *slot, Slot::Taken) {
                *slot = Slot::Done(perform(op));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Refused (no more threads): the others and this one do the work.
            let _ = std::thread::Builder::new()
                .name("kera-io".into())
                .spawn_scoped(scope, work);
        }
        work();
    });
    done.extend(
        slots
            .into_iter()
            .filter_map(|slot| match slot.into_inner() {
                Slot::Done(done) => Some(done),
                Slot::Todo(_) | Slot::Taken => None,
            }),
    );
}

/// An operation on its way through the threads of a phase.
enum Slot {
    Todo(Op),
    Taken,
    Done(Done),
}
