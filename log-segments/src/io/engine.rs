//! Choosing an engine.

use std::io;
use std::sync::Arc;

use super::Io;
use super::blocking::Blocking;
use super::uring::Uring;

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring where the kernel grants it, plain system calls elsewhere.
    #[default]
    Auto,
    /// io_uring; falls back as `Auto` does, since a broker that serves slowly beats one that does not start.
    Uring,
    /// Plain system calls.
    Blocking,
}

/// Opens an engine.
///
/// `Auto` and `Uring` try io_uring with real operations, because containers often refuse it (by
/// seccomp or by sysctl) or grant only a part; when it is refused the blocking engine is used and
/// one line says so.
pub fn open_engine(kind: EngineKind) -> Arc<dyn Io> {
    choose(kind, Uring::open)
}

fn choose(kind: EngineKind, open: impl FnOnce() -> io::Result<Uring>) -> Arc<dyn Io> {
    if kind == EngineKind::Blocking {
        return Arc::new(Blocking);
    }
    match open() {
        Ok(uring) => Arc::new(uring),
        Err(error) => {
            let advice = what_to_set(&error, switch());
            tracing::info!(%error, "io_uring is refused here, using plain system calls: {advice}");
            Arc::new(Blocking)
        }
    }
}

/// The system-wide switch of io_uring: 0 allows it, 1 to one group, 2 to nobody; `None` where the
/// kernel has no such switch.
fn switch() -> Option<u8> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok()
}

/// What grants io_uring after such a refusal.
fn what_to_set(error: &io::Error, switch: Option<u8>) -> &'static str {
    match (error.raw_os_error(), switch) {
        (Some(libc::EPERM | libc::EACCES), Some(2)) => {
            "to use it, set the sysctl kernel.io_uring_disabled to 0"
        }
        (Some(libc::EPERM | libc::EACCES), Some(1)) => {
            "to use it, set the sysctl kernel.io_uring_disabled to 0, or kernel.io_uring_group to a group of the broker's"
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a seccomp filter forbids it; to use it, allow io_uring_setup, io_uring_enter and io_uring_register, as deploy/container/seccomp.json does for containers"
        }
        (Some(libc::ENOSYS), _) => {
            "the kernel has none, or a sandbox hides it; from Linux 5.6 on it can be had"
        }
        (Some(libc::ENOMEM), _) => {
            "to use it, raise RLIMIT_MEMLOCK: LimitMEMLOCK= of the systemd unit, --ulimit memlock= of the container"
        }
        _ => "`synced` streams cost more CPU so, and nothing else changes",
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
