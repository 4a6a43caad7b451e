//! What a start finds under the names of copies, and what that takes: of each copy its record is read
//! and its file is looked at, by several threads, since a disk that has to seek answers many at once.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;

use super::record::{self, Kept, Record};
use super::{FoundFiles, Name, Paths, ShmMemory, is_broken};
use crate::backup::StartError;
use crate::backup::memory::CopySpec;

/// What it took to take over what a process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Copies that are there.
    pub copies: usize,
    /// Records read, and files looked at without opening them.
    pub looked: usize,
    /// Files of copies opened; none of them stays open.
    pub opened: usize,
    /// Records stored anew, each brought to the disk.
    pub stored: usize,
}

/// Threads that look, at most, and names that are worth one.
const LOOKERS: usize = 16;
const NAMES_EACH: usize = 128;

/// What stands under a copy's name.
pub(super) enum Look {
    Copy {
        spec: CopySpec,
        kept: Kept,
        /// Of memory, or of a disk, that its file has; `None` if there is no such file.
        bytes: Option<u64>,
    },
    /// No record, so no copy: what was beside it is removed.
    Nothing,
    /// There was a copy, and what it held is not known any more.
    Damaged,
}

/// Looks at all of them; in their order.
pub(super) fn look_at(
    found: FoundFiles,
    took: &mut Took,
) -> Result<Vec<(Name, Paths, Look)>, StartError> {
    took.looked += found.len();
    let lookers = (found.len() / NAMES_EACH).clamp(1, LOOKERS);
    if lookers == 1 {
        return look_each(found);
    }
    let share = found.len().div_ceil(lookers);
    let mut parts = Vec::with_capacity(lookers);
    let mut found = found.into_iter();
    loop {
        let part: FoundFiles = found.by_ref().take(share).collect();
        if part.is_empty() {
            break;
        }
        parts.push(part);
    }
    thread::scope(|scope| {
        let looking: Vec<_> = parts
            .into_iter()
            .map(|part| scope.spawn(|| look_each(part)))
            .collect();
        let mut out = Vec::new();
        for one in looking {
            match one.join() {
                Ok(looked) => out.extend(looked?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(out)
    })
}

fn look_each(found: FoundFiles) -> Result<Vec<(Name, Paths, Look)>, StartError> {
    let looked = found.into_iter().map(|(name, paths)| {
        let found = look(&name, &paths)?;
        Ok((name, paths, found))
    });
    looked.collect()
}

fn look(name: &Name, paths: &Paths) -> Result<Look, StartError> {
    // What cannot be read now, for want of descriptors for example, is not damaged.
    let mut bytes = [0; record::MOST_BYTES + 1];
    let read = match read(paths, &mut bytes) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let _ = fs::remove_file(&paths.log);
            return Ok(Look::Nothing);
        }
        Err(error) => return broken(&paths.record, error),
    };
    let (log_bytes, allocated) = match fs::metadata(&paths.log) {
        Ok(metadata) => (metadata.len(), Some(metadata.blocks() * 512)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (0, None),
        Err(error) => return broken(&paths.log, error),
    };
    Ok(match record::decode(&bytes[..read]) {
        Record::Newer { version } => {
            return Err(StartError::Unusable {
                path: paths.record.clone(),
                reason: format!(
                    "format {version} is newer than this build reads; use the newer build"
                ),
            });
        }
        // Touching a mapping beyond a file that was cut short would end the process.
        Record::Copy { spec, kept }
            if (spec.copy.streamlet, spec.copy.group, spec.copy.generation) == *name
                && (kept.released == record::ALL || log_bytes >= spec.group_bytes()) =>
        {
            Look::Copy {
                spec,
                kept,
                bytes: allocated,
            }
        }
        Record::Copy { .. } | Record::Damaged => Look::Damaged,
    })
}

/// What an error makes of a copy.
fn broken(path: &Path, error: io::Error) -> Result<Look, StartError> {
    match is_broken(path, &error) {
        true => Ok(Look::Damaged),
        false => ShmMemory::io(path, Err(error)),
    }
}

/// Reads the record with one call; one byte more than a record has tells that it is none.
fn read(paths: &Paths, bytes: &mut [u8]) -> io::Result<usize> {
    let file = File::open(&paths.record)?;
    loop {
        match file.read_at(bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
