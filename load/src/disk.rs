//! The disk below a directory: what it is, and how fast it is today.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes written to measure.
const SAMPLE: usize = 128 << 20;
/// Measuring stops here even when less was written.
const LONGEST: Duration = Duration::from_secs(2);

/// The file system's type, such as ext4, and what is mounted, such as /dev/vda1; `None` if the kernel does not tell.
pub fn mount_of(directory: &Path) -> Option<(String, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // A path may be relative, or lead over links.
    find_mount(&mounts, &fs::canonicalize(directory).ok()?)
}

/// MB (10^6 bytes) a second of sequential writing, flushed at the end, to a file in `directory` that is removed.
///
/// # Errors
/// The file system's.
pub fn write_speed(directory: &Path) -> std::io::Result<u64> {
    let path = directory.join(format!(".kera-bench-{}", std::process::id()));
    let speed = write_and_flush(&path);
    let _ = fs::remove_file(&path);
    speed
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
        assert_eq!(find("/srv/a b/c"), "tmpfs");
    }

    #[test]
    fn a_relative_path_has_its_mount_too() {
        assert!(mount_of(Path::new(".")).is_some());
        assert_eq!(mount_of(Path::new("./nowhere/at/all")), None);
    }

    #[test]
    fn measuring_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("kera-load-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        assert!(write_speed(&folder).unwrap() > 0);
        fs::remove_dir(&folder).unwrap();
        assert!(write_speed(&folder).is_err());
    }
}
