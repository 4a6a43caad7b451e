//! Pauses shorter than a millisecond, which the runtime's own timer does not know.

use std::time::Duration;

/// Pauses of the background task. The runtime's timer rounds up to whole milliseconds, which would
/// double a linger of one; Linux has timers that are files, and those are exact. Without one of
/// them pauses are rounded.
pub(crate) struct Timer {
    #[cfg(target_os = "linux")]
    file: Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>,
}

impl Timer {
    /// Call within a runtime.
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            file: linux::create(),
        }
    }

    /// Waits for `pause`. Dropped before that, it leaves nothing behind.
    pub(crate) async fn sleep(&self, pause: Duration) {
        #[cfg(target_os = "linux")]
        if let Some(file) = &self.file
            && linux::sleep(file, pause).await.is_ok()
        {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub(super) fn create() -> Option<AsyncFd<OwnedFd>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
        // Deprecated for types that may close their file unseen; an owned descriptor does not, and the
        // successor is an unsafe function, which this crate has none of.
        #[expect(deprecated)]
        let registered = AsyncFd::with_interest(file, Interest::READABLE);
        registered.ok()
    }

    pub(super) async fn sleep(file: &AsyncFd<OwnedFd>, pause: Duration) -> io::Result<()> {
        // Zero would disarm it.
        let pause = pause.max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        // Setting it anew also forgets that it has run out before.
        timerfd_settime(file.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut guard = file.readable().await?;
            let mut times = [0; 8];
            match rustix::io::read(guard.get_inner(), &mut times) {
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn waits_at_least_as_long_as_it_should_and_can_be_used_again() {
        let timer = Timer::new();
        for micros in [300, 1, 700, 1_500] {
            let pause = Duration::from_micros(micros);
            let begun = Instant::now();
            timer.sleep(pause).await;
            assert!(begun.elapsed() >= pause);
        }
    }

    #[tokio::test]
    async fn a_pause_that_was_dropped_after_it_ran_out_does_not_end_the_next() {
        let timer = Timer::new();
        tokio::select! {
            biased;
            () = timer.sleep(Duration::from_micros(1)) => {}
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        {
            let dropped = timer.sleep(Duration::from_nanos(1));
            tokio::select! {
                biased;
                () = std::future::ready(()) => {}
                () = dropped => {}
            }
        }
        let begun = Instant::now();
        timer.sleep(Duration::from_millis(3)).await;
        assert!(begun.elapsed() >= Duration::from_millis(3));
    }

    #[tokio::test]
    async fn a_pause_of_nothing_ends() {
        Timer::new().sleep(Duration::ZERO).await;
    }
}
