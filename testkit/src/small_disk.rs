//! A small file system of a test's own, which it can fill.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::home;

/// A file system in memory, unmounted when dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// One of so many bytes.
    ///
    /// # Errors
    /// Why this machine lets the test mount none.
    pub fn mount(bytes: u64) -> Result<Self, String> {
        let directory = home();
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(directory.path())
            .output()
            .map_err(|error| format!("no small file system can be mounted here: {error}"))?;
        if output.status.success() {
            return Ok(Self(directory));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("no small file system can be mounted here: {said}"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all that is left of it, to the last byte.
    pub fn fill(&self) {
        let file = self.path().join("others");
        let file = File::options().create(true).append(true).open(file);
        let mut file = file.expect("a file");
        for size in [64 << 10, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount succeeds even if the broker is still on its way out.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
