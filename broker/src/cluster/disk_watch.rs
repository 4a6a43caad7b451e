//! Whether this broker's disk takes what is written, and what follows where it does not.
//!
//! A thread writes and flushes a small file in the data directory from time to time.
//!
//! - Where that fails, or the disk is full, the broker says so in its live record. The controller gives it no streamlets
//!   then and has it hand over those that it serves. Those that it was about to take over it gives away itself.
//! - Where the write does not come back, the broker gives its lease back, so that others take over what it owns. All
//!   that waits for that disk would otherwise wait for as long as it stands still. Once the write comes back the
//!   broker takes a new lease.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often the file is written while all is well; while it cannot be, at each look.
const EVERY: Duration = Duration::from_secs(5);
/// Failures in a row after which files count as not writable: one that passes is no reason to move anything.
const FAILURES: u32 = 2;

/// What is known of the disk.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    /// A write that takes longer costs the lease.
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the write began that is under way.
    began: Option<Instant>,
    /// When the last one ended.
    ended: Option<Instant>,
    /// Failures since the last that succeeded, and what the last one said.
    failures: u32,
    error: String,
    /// Somebody has met an error: it is written at the next look.
    doubted: bool,
}

impl DiskWatch {
    pub(crate) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            timeout,
            state: Mutex::default(),
        })
    }

    /// Whether the lease may be kept. Never waits for the disk.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn may_hold_lease(&self) -> Result<(), String> {
        let began = self.state.lock().began;
        match began.map(|began| began.elapsed()) {
            Some(waited) if waited >= self.timeout => Err(format!(
                "its disk stands still: a write in the data directory has not come back for {} s (cluster.disk_timeout is {} s)",
                waited.as_secs(),
                self.timeout.as_secs()
            )),
            _ => Ok(()),
        }
    }

    /// Something could not be written: it is looked sooner whether anything can.
    pub(crate) fn doubt(&self) {
        self.state.lock().doubted = true;
    }

    /// Why nothing can be written, if that was found.
    pub(crate) fn failing(&self) -> Option<String> {
        let state = self.state.lock();
        (state.failures >= FAILURES).then(|| {
            format!(
                "files in its data directory cannot be written: {}",
                state.error
            )
        })
    }

    /// Writes by `probe` if that is due.
    pub(crate) fn look(&self, probe: impl FnOnce() -> io::Result<()>) {
        {
            let mut state = self.state.lock();
            let rested = state.ended.is_none_or(|ended| ended.elapsed() >= EVERY);
            let is_due = rested || state.failures > 0 || state.doubted;
            if !is_due {
                return;
            }
            state.doubted = false;
            state.began = Some(Instant::now());
        }
        let probed = probe();
        let mut state = self.state.lock();
        state.began = None;
        state.ended = Some(Instant::now());
        match probed {
            Ok(()) => state.failures = 0,
            Err(error) => {
                state.failures += 1;
                state.error = error.to_string();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn failed() -> io::Result<()> {
        Err(io::Error::other("planted"))
    }

    #[test]
    fn one_failure_that_passes_is_told_to_nobody() {
        let disk = DiskWatch::new(Duration::from_secs(30));
        disk.look(failed);
        assert_eq!(disk.failing(), None);
        disk.look(|| Ok(()));
        disk.doubt();
        disk.look(failed);
        assert_eq!(disk.failing(), None);
        // While it fails it is tried at each look.
        disk.look(failed);
        let reason = disk.failing().expect("twice in a row");
        assert!(reason.ends_with("cannot be written: planted"), "{reason}");
        disk.look(|| Ok(()));
        assert_eq!(disk.failing(), None);
    }

    #[test]
    fn while_all_is_well_it_is_not_written_at_each_look() {
        let disk = DiskWatch::new(Duration::from_secs(30));
        let mut written = 0;
        for _ in 0..3 {
            disk.look(|| {
                written += 1;
                Ok(())
            });
        }
        assert_eq!(written, 1);
        disk.doubt();
        disk.look(|| {
            written += 1;
            Ok(())
        });
        assert_eq!(written, 2);
    }

    #[test]
    fn a_write_that_does_not_come_back_costs_the_lease_until_it_does() {
        let disk = DiskWatch::new(Duration::ZERO);
        assert_eq!(disk.may_hold_lease(), Ok(()));
        let (thaw, frozen) = mpsc::sync_channel::<()>(1);
        let (begun, begins) = mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            let written = &disk;
            let writing = scope.spawn(move || {
                written.look(|| {
                    begun.send(()).expect("the test waits");
                    let _ = frozen.recv();
                    Ok(())
                });
            });
            begins.recv().expect("it is written");
            let reason = disk.may_hold_lease().expect_err("it stands still");
            assert!(reason.starts_with("its disk stands still"), "{reason}");
            drop(thaw);
            writing.join().expect("it comes back");
        });
        assert_eq!(disk.may_hold_lease(), Ok(()));
        // One that is under way for less is nothing.
        let patient = DiskWatch::new(Duration::from_secs(3600));
        patient.look(|| {
            assert_eq!(patient.may_hold_lease(), Ok(()));
            Ok(())
        });
    }
}
