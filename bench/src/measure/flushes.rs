//! What a flush costs on the device below a directory, and how many there were.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::fs::OFlags;

/// Bytes of each write, and what its place and its memory are aligned to.
const BLOCK: usize = 4096;
/// Blocks of the file, written one after another and then again.
const BLOCKS: u64 = 256;
/// Writes that are timed at one look at the device.
const SAMPLES: u64 = 250;
/// A look at a slow device ends after this, with fewer samples.
const LONGEST: Duration = Duration::from_secs(2);

/// How long one writer alone waits for a write to be flushed: 4 KiB past the page cache, then
/// `fdatasync`, in a file that was written before, so that the file system has nothing to add.
#[derive(Debug)]
pub(crate) struct FlushTimes(Histogram<u64>);

impl FlushTimes {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?))
    }

    /// Takes more samples, in a file below `directory` that is removed.
    pub(crate) fn look(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join(".flushes");
        let taken = self.take(&path);
        let _ = fs::remove_file(&path);
        taken.with_context(|| format!("cannot write and flush in {}", directory.display()))
    }

    fn take(&mut self, path: &Path) -> io::Result<()> {
        let memory: Vec<u8> = (0..2 * BLOCK as u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let from = memory.as_ptr().align_offset(BLOCK);
        let block = memory
            .get(from..from + BLOCK)
            .ok_or_else(|| io::Error::other("memory cannot be aligned"))?;
        let filled: Vec<u8> = block.repeat(BLOCKS as usize);
        fs::write(path, filled)?;
        File::open(path)?.sync_all()?;
        let file = open(path)?;
        let begin = Instant::now();
        for number in 0..SAMPLES {
            let one = Instant::now();
            file.write_all_at(block, number % BLOCKS * BLOCK as u64)?;
            file.sync_data()?;
            let took = u64::try_from(one.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.0.saturating_record(took);
            if begin.elapsed() > LONGEST {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn samples(&self) -> u64 {
        self.0.len()
    }

    /// A quantile, in microseconds.
    pub(crate) fn at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Past the page cache, where the file system can do that.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let past = options.clone().custom_flags(direct).open(path);
    past.or_else(|_| options.open(path))
}

/// What the kernel has counted of a device since it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFlushes {
    /// Flushes that it was asked for and has done; of several that wait at once the kernel makes one.
    pub flushes: u64,
    /// How long they took together.
    pub took: Duration,
}

impl DeviceFlushes {
    /// Of the device below `directory`; `None` where no device is known, or its driver counts none.
    pub(crate) fn below(directory: &Path) -> Option<Self> {
        let device = fs::metadata(directory).ok()?.dev();
        let mut number = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        // Flushes are those of the whole disk, not of a partition.
        let folder = format!("/sys/dev/block/{number}");
        if Path::new(&folder).join("partition").exists() {
            number = fs::read_to_string(format!("{folder}/../dev")).ok()?;
        }
        parse(&fs::read_to_string("/proc/diskstats").ok()?, number.trim())
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            flushes: self.flushes.saturating_sub(earlier.flushes),
            took: self.took.saturating_sub(earlier.took),
        }
    }
}

/// Fields 16 and 17 after the number and the name of a device.
fn parse(diskstats: &str, number: &str) -> Option<DeviceFlushes> {
    let mut lines = diskstats
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = lines.find(|fields| match fields[..] {
        [major, minor, ..] => format!("{major}:{minor}") == number,
        _ => false,
    })?;
    Some(DeviceFlushes {
        flushes: fields.get(18)?.parse().ok()?,
        took: Duration::from_millis(fields.get(19)?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_the_last_two_fields_of_a_device() {
        let text = " 253 0 zram0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
            254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 342 1401\n 7 0 loop0 1 2 3 4\n";
        let found = parse(text, "254:0").unwrap();
        assert_eq!((found.flushes, found.took.as_millis()), (342, 1401));
        // Kernels before 5.5 count none.
        assert_eq!(parse(text, "7:0"), None);
        assert_eq!(parse(text, "8:0"), None);
        let later = DeviceFlushes {
            flushes: 350,
            took: Duration::from_millis(1_500),
        };
        let since = later.since(&found);
        assert_eq!((since.flushes, since.took.as_millis()), (8, 99));
    }

    #[test]
    fn a_look_at_the_device_leaves_no_file() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut times = FlushTimes::new().unwrap();
        times.look(folder.path()).unwrap();
        assert!(times.samples() > 0 && times.at(0.99) >= times.at(0.5));
        assert!(times.at(0.5) > 0.0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(times.look(&folder.path().join("gone")).is_err());
    }
}
