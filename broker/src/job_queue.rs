//! The jobs that wait for the maintenance threads.

use std::sync::Arc;
use std::time::Instant;

use kera_streamlet::Job;
use parking_lot::{Condvar, Mutex};

/// Jobs that the append path leaves behind.
#[derive(Default)]
pub struct Jobs {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    /// The thread that waits in [`Jobs::take`] returns, although there is no job.
    woken: bool,
    stopping: bool,
}

impl Jobs {
    /// Leaves a job. Never blocks.
    pub fn push(&self, job: Job) {
        let mut queue = self.queue.lock();
        if !queue.jobs.contains(&job) {
            queue.jobs.push(job);
            self.ready.notify_one();
        }
    }

    /// Ends a wait early, without a job.
    fn wake(&self) {
        self.queue.lock().woken = true;
        self.ready.notify_one();
    }

    /// Ends all waits, for good.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.ready.notify_all();
    }

    /// Waits for jobs until `deadline`; `None` once stopping.
    pub(crate) fn take(&self, deadline: Instant) -> Option<Vec<Job>> {
        let mut queue = self.queue.lock();
        while queue.jobs.is_empty() && !queue.stopping && !std::mem::take(&mut queue.woken) {
            if self.ready.wait_until(&mut queue, deadline).timed_out() {
                break;
            }
        }
        if queue.stopping {
            None
        } else {
            Some(std::mem::take(&mut queue.jobs))
        }
    }
}

/// The threads that wait for a time that a setting tells.
#[derive(Default)]
pub(crate) struct Retimed {
    pub(crate) intervals: Arc<Jobs>,
    pub(crate) flushes: Arc<Jobs>,
}

impl Retimed {
    /// Times that settings tell may have changed: what waits for the old ones looks anew.
    pub(crate) fn wake(&self) {
        self.intervals.wake();
        self.flushes.wake();
    }
}
