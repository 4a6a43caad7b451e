//! Whether a streamlet's own files can be written, as groups with copies elsewhere find it.
//!
//! Such a group goes on without its own file: it ends, and its copies close it. A disk that takes
//! nothing any more (`EROFS`, `EIO`, `EMFILE`) would end a group with each append, and each costs
//! transactions of the metadata store, memory at other brokers, and memory here until its file is
//! written. So after a few in a row appends are refused, until somebody has found that files can be
//! written; then the first group that fails has them refused again.

use kera_log_segments::sync::{AtomicBool, AtomicU32, Ordering};

use crate::streamlet::Streamlet;

/// Groups in a row whose files fail before appends are refused: one alone may have met a bad block.
const FEW: u32 = 3;

/// What became of the files of the last groups.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites {
    failed: AtomicU32,
    refused: AtomicBool,
}

impl Streamlet {
    /// The file of a group that has copies elsewhere could not be written.
    pub(crate) fn own_write_failed(&self, error: &std::io::Error) {
        let OwnWrites { failed, refused } = &self.own_writes;
        let failed = failed.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failed < FEW {
            return;
        }
        refused.store(true, Ordering::Relaxed);
        // Once, until a group is whole again.
        if failed != FEW {
            return;
        }
        if error.kind() == std::io::ErrorKind::NotFound {
            tracing::error!(
                stream = %self.stream, streamlet = self.id.0, dir = %self.dir().display(), %error,
                "the directory of a streamlet's own files is missing: its appends are refused until it is made again, which is tried in a moment; find out who removed it"
            );
        } else {
            tracing::error!(
                stream = %self.stream, streamlet = self.id.0, %error,
                "this broker's own files of a streamlet cannot be written: its appends are refused until then, reads go on; check the disk, or drain the broker"
            );
        }
    }

    /// The file of such a group is whole and synced.
    pub(crate) fn own_write_succeeded(&self) {
        let OwnWrites { failed, refused } = &self.own_writes;
        if failed.load(Ordering::Relaxed) == 0 {
            return;
        }
        refused.store(false, Ordering::Relaxed);
        if failed.swap(0, Ordering::Relaxed) >= FEW {
            tracing::info!(stream = %self.stream, streamlet = self.id.0, "this broker's own files of a streamlet can be written again");
        }
    }

    /// True while appends are refused because this broker's own files cannot be written.
    pub fn refuses_to_write(&self) -> bool {
        self.own_writes.refused.load(Ordering::Relaxed)
    }

    /// Files can be written, as far as can be told: appends are taken until the next group fails.
    pub fn take_appends_again(&self) {
        self.own_writes.refused.store(false, Ordering::Relaxed);
    }
}
