//! Which parts of a file have memory, and giving it back.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

/// The ranges below `end` in which a file has memory.
pub(super) fn data_ranges(file: &File, end: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < end {
        let from = match seek(file, SeekFrom::Data(at)) {
            Ok(from) if from < end => from,
            // Nothing but holes follows.
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let to = seek(file, SeekFrom::Hole(from))?.min(end);
        out.push((from, to));
        at = to;
    }
    Ok(out)
}

/// Gives `from..to` of a file back to the system; it reads as zeros then.
pub(super) fn punch(file: &File, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, how, from, to - from)?)
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
