//! One suite over all engines.

mod suite;

use std::path::PathBuf;
use std::sync::Arc;

use super::fault::FaultIo;
use super::uring::Uring;
use super::{EngineKind, Io, open_engine};

/// An engine to test, with a directory of its own.
pub(crate) struct Bench {
    pub(crate) io: Arc<dyn Io>,
    pub(crate) dir: PathBuf,
    _keep: Option<tempfile::TempDir>,
}

impl Bench {
    fn on_disk(io: Arc<dyn Io>) -> Self {
        // Under the target directory: a temporary directory may lie in memory, without direct I/O.
        let base = std::env::current_exe().unwrap();
        let keep = tempfile::tempdir_in(base.parent().unwrap()).unwrap();
        let dir = keep.path().to_owned();
        Self {
            io,
            dir,
            _keep: Some(keep),
        }
    }

    pub(crate) fn blocking() -> Self {
        Self::on_disk(open_engine(EngineKind::Blocking))
    }

    /// `None` where the kernel refuses io_uring; the fallback has a test of its own.
    pub(crate) fn uring() -> Option<Self> {
        Some(Self::on_disk(Arc::new(Uring::open().ok()?)))
    }

    pub(crate) fn fault() -> Self {
        let io = FaultIo::new(7);
        let dir = PathBuf::from("/data");
        io.create_dir_all(&dir).unwrap();
        Self::over(Arc::new(io), dir)
    }

    pub(crate) fn over(io: Arc<dyn Io>, dir: PathBuf) -> Self {
        Self {
            io,
            dir,
            _keep: None,
        }
    }
}

macro_rules! over_all_engines {
    ($($test:ident),+ $(,)?) => {
        mod blocking {
            $(#[test] fn $test() { super::suite::$test(&super::Bench::blocking()); })+
        }
        mod uring {
            $(#[test] fn $test() {
                if let Some(bench) = super::Bench::uring() {
                    super::suite::$test(&bench);
                } else {
                    eprintln!("io_uring is refused here, nothing tested");
                }
            })+
        }
        mod fault {
            $(#[test] fn $test() { super::suite::$test(&super::Bench::fault()); })+
        }
    };
}

over_all_engines!(
    writes_and_reads_back,
    gathers_more_slices_than_one_call_takes,
    open_modes_are_kept,
    directories_list_and_remove,
    length_can_be_set,
    cached_reads_are_whole_or_refused,
    batch_returns_results_and_buffers_in_order,
    large_batches_complete,
    syncs_divide_a_batch,
    one_failing_operation_fails_alone,
    reads_end_with_the_file,
    direct_files_take_whole_blocks,
    direct_reads_end_with_the_file,
    zeros_are_written,
    batches_run_from_several_threads,
    empty_batches_and_empty_operations,
    short_buffers_are_refused,
);
