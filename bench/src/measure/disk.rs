//! The disk below a directory: what it is, how fast it is today, and whether there is room.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Bytes written to measure.
const SAMPLE: usize = 128 << 20;
/// Measuring stops here even when less was written.
const LONGEST: Duration = Duration::from_secs(2);

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
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (filesystem, device) = find_mount(&mounts, directory)
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
        let path = directory.join(".speed");
        let speed = write_and_flush(&path);
        let _ = fs::remove_file(&path);
        let speed = speed.with_context(|| format!("cannot write in {}", directory.display()))?;
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

/// The longest mount point that is a prefix of the path.
fn find_mount(mounts: &str, path: &Path) -> Option<(String, String)> {
    mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = left.split(' ').nth(4)?.replace("\\040", " ");
            let mut right = right.split(' ');
            let (filesystem, device) = (right.next()?, right.next()?);
            path.starts_with(&point)
                .then(|| (point.len(), filesystem.to_owned(), device.to_owned()))
        })
        .max_by_key(|(length, ..)| *length)
        .map(|(_, filesystem, device)| (filesystem, device))
}

fn write_and_flush(path: &Path) -> std::io::Result<u64> {
    // Not zeros: some disks do not write them.
    let block: Vec<u8> = (0..1u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut file = File::create(path)?;
    let begin = Instant::now();
    let mut written = 0;
    while written < SAMPLE && begin.elapsed() < LONGEST {
        file.write_all(&block)?;
        written += block.len();
    }
    file.sync_data()?;
    Ok((written as f64 / 1e6 / begin.elapsed().as_secs_f64()).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "21 1 253:0 / / rw - ext4 /dev/vda rw\n\
                      22 21 0:20 / /srv rw,nosuid shared:1 - xfs /dev/vdb rw\n\
                      23 21 0:21 / /srv/a\\040b rw - tmpfs none rw\n";
        let find = |path: &str| find_mount(mounts, Path::new(path)).unwrap().0;
        assert_eq!(find("/home/x"), "ext4");
        assert_eq!(find("/srv/x"), "xfs");
        assert_eq!(find("/srv/a b/c"), "tmpfs");
    }

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
