//! Files that do not count where they lie, and that only a person may remove: they keep their name, below another directory.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Moves a file under `root` to the same place under `base`, beside what has that name; answers where it is, `None` if the file
/// is gone.
pub(crate) fn move_aside(base: &Path, root: &Path, file: &Path) -> io::Result<Option<PathBuf>> {
    let to = base.join(file.strip_prefix(root).unwrap_or(file));
    let dir = to.parent().unwrap_or(&to);
    fs::create_dir_all(dir)?;
    let mut free = to.clone();
    for number in 1.. {
        if !free.try_exists()? {
            break;
        }
        free.set_file_name(format!(
            "{}.{number}",
            to.file_name().unwrap_or_default().to_string_lossy()
        ));
    }
    let moved = fs::rename(file, &free).or_else(|error| match error.kind() {
        ErrorKind::CrossesDevices => move_across(file, &free),
        _ => Err(error),
    });
    match moved {
        Ok(()) => Ok(Some(free)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copies a file to another file system, durably, and removes it.
fn move_across(from: &Path, to: &Path) -> io::Result<()> {
    let copied = fs::copy(from, to).and_then(|_| fs::File::open(to)?.sync_all());
    if let Err(error) = copied {
        // Half of it is of no use to anybody.
        let _ = fs::remove_file(to);
        return Err(error);
    }
    fs::remove_file(from)
}
