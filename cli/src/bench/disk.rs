//! The disk below a broker's data directory: what it is, and how fast it is today.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Bytes written to measure.
const SAMPLE: usize = 128 << 20;
/// Measuring stops here even when less was written.
const LONGEST: Duration = Duration::from_secs(2);

/// A disk.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Disk {
    /// The file system's type, such as ext4.
    pub filesystem: String,
    /// What is mounted, such as /dev/vda1.
    pub device: String,
    /// MB (10^6 bytes) a second of sequential writing, flushed at the end; none if not measured.
    pub write_mb_per_second: Option<u64>,
}

/// Looks at the disk below `data_dir`; `None` if the directory is not on this machine.
pub(super) fn look(data_dir: &Path, measure: bool) -> Option<Disk> {
    let metadata = fs::metadata(data_dir).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let (filesystem, device) = find_mount(&mounts, data_dir)
        .unwrap_or_else(|| ("unknown file system".into(), "unknown device".into()));
    // Beside the data directory, never in it: what is in there is the broker's.
    let beside = data_dir
        .parent()
        .filter(|parent| fs::metadata(parent).is_ok_and(|parent| parent.dev() == metadata.dev()));
    let write_mb_per_second = match (measure, beside) {
        (true, Some(directory)) => write_speed(directory),
        _ => None,
    };
    Some(Disk {
        filesystem,
        device,
        write_mb_per_second,
    })
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

fn write_speed(directory: &Path) -> Option<u64> {
    let path = directory.join(format!(".kera-bench-{}", std::process::id()));
    let speed = write_and_flush(&path);
    let _ = fs::remove_file(&path);
    speed.ok()
}

fn write_and_flush(path: &Path) -> std::io::Result<u64> {
    // Not zeros: some disks do not write them.
    let block: Vec<u8> = (0..1u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut file = File::create_new(path)?;
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
        assert_eq!(find("/srvx"), "ext4");
        assert_eq!(find("/srv/a b/c"), "tmpfs");
    }

    #[test]
    fn a_directory_elsewhere_is_not_looked_at() {
        assert!(look(Path::new("/nowhere/at/all"), false).is_none());
        assert!(look(&std::env::temp_dir(), false).is_some());
    }
}
