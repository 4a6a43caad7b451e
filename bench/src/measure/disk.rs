//! The disk below a directory: what it is, how fast it is today, and whether there is room.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// A disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Disk {
    /// The file system's type, such as ext4.
    pub filesystem: String,
    /// What is mounted, such as /dev/vda1.
    pub device: String,
    /// MB (10^6 bytes) a second of sequential writing, flushed at the end, at the start and at the
    /// end of the session.
    pub write_mb_per_second: Vec<u64>,
}

impl Disk {
    /// Looks at the disk below `directory`, which must not be memory.
    pub(crate) fn below(directory: &Path) -> Result<Self> {
        let (filesystem, device) = kera_load::disk::mount_of(directory)
            .unwrap_or_else(|| ("unknown".into(), "unknown device".into()));
        if ["tmpfs", "ramfs", "devtmpfs"].contains(&filesystem.as_str()) {
            bail!(
                "{} is on a {filesystem}, which is memory; name a directory on a disk with --data-dir",
                directory.display()
            );
        }
        Ok(Self {
            filesystem,
            device,
            write_mb_per_second: Vec::new(),
        })
    }

    /// Measures and remembers how fast the disk is now.
    pub(crate) fn measure(&mut self, directory: &Path) -> Result<()> {
        let speed = kera_load::disk::write_speed(directory)
            .with_context(|| format!("cannot write in {}", directory.display()))?;
        self.write_mb_per_second.push(speed);
        Ok(())
    }
}

/// Bytes that can still be written below `directory`.
pub(crate) fn free(directory: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(directory)
        .with_context(|| format!("cannot look at {}", directory.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Bytes that the files below `directory` take on the disk; what vanishes meanwhile counts nothing.
pub(crate) fn used(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => sum += used(&entry.path()),
            Ok(metadata) => sum += metadata.blocks() * 512,
            Err(_) => {}
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_and_room_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), vec![1; 100_000]).unwrap();
        assert!(used(folder.path()) >= 100_000);
        assert_eq!(used(&folder.path().join("gone")), 0);
        assert!(free(folder.path()).unwrap() > 0);
    }
}
