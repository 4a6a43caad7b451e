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
            tracing::info!(%error, "io_uring is refused here, using plain system calls");
            Arc::new(Blocking)
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
