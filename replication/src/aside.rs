//! A group file that is made anew from other replicas: aside of what has its name, which keeps its bytes until the new
//! file is whole and durable.
//!
//! 1. [`begin`] makes an empty file in the same directory. Its name is that of a group file of a generation that no
//!    record has, so that whoever reads directories takes it for what it is: a file that nothing records.
//! 2. Whoever makes it writes it, checks it, and syncs it with its directories.
//! 3. [`put`] renames it and syncs the directories again. What stands under the name and cannot be replaced, as a directory, is
//!    moved to `damaged`, beside the directory of streams.
//!
//! A crash before the third step leaves the old file and the new one; [`sweep`] removes the new one at the next start,
//! when nobody makes any. A crash after the rename leaves either, whole, under the name.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use kera_log_segments::group::GroupSpec;
use kera_log_segments::io::{FileRef, Io, OpenHow, is_broken_file};
use kera_log_segments::layout::FOOTER_OFFSET;

use crate::own::sync_names;

/// Added to a generation in the name of a file that is not finished. What else has so high a generation is nobody's
/// record either: what a compaction keeps aside.
pub(crate) const UNFINISHED: u32 = 1 << 31;
/// Beside the directory of streams: what nothing removes.
const DAMAGED: &str = "damaged";

/// Where the new file for `path` is made; `path` itself if that is not a group file.
pub fn path(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str());
    let group = name.and_then(GroupSpec::parse_file_name);
    group.map_or_else(
        || path.to_path_buf(),
        |(group, generation)| {
            path.with_file_name(GroupSpec::file_name(group, generation | UNFINISHED))
        },
    )
}

/// An empty file for what is to be at `path`, in place of one that was left.
///
/// # Errors
/// The store's.
pub fn begin(io: &dyn Io, path: &Path, group_bytes: u64) -> io::Result<FileRef> {
    let made = self::path(path);
    if let Some(dir) = made.parent() {
        io.create_dir_all(dir)?;
    }
    remove(io, path)?;
    let file = io.open(&made, OpenHow::CreateNew, false)?;
    file.set_len(group_bytes + FOOTER_OFFSET)?;
    Ok(file)
}

/// Removes what was made for `path`, if there is anything.
///
/// # Errors
/// The store's.
pub fn remove(io: &dyn Io, path: &Path) -> io::Result<()> {
    match io.remove_file(&self::path(path)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives what was made for `path`, which is whole and durable, that name, durably.
///
/// # Errors
/// The store's; it may have the name then, and need not keep it over a loss of power.
pub fn put(io: &dyn Io, path: &Path) -> io::Result<()> {
    let made = self::path(path);
    match io.rename(&made, path) {
        Err(error) if is_broken_file(&error) => {
            give_way(io, path).map_err(|cause| {
                let text = format!(
                    "what has this name cannot be replaced ({error}) nor moved away ({cause})"
                );
                io::Error::new(error.kind(), text)
            })?;
            io.rename(&made, path)?;
        }
        renamed => renamed?,
    }
    sync_names(io, path)
}

/// Moves what has the name of a group's file, and is none, to where nothing removes it.
fn give_way(io: &dyn Io, path: &Path) -> io::Result<()> {
    // <root>/<stream>/<streamlet>/<name>
    let root = path.ancestors().nth(3).unwrap_or(path);
    let to = root
        .with_file_name(DAMAGED)
        .join(path.strip_prefix(root).unwrap_or(path));
    if let Some(dir) = to.parent() {
        io.create_dir_all(dir)?;
    }
    let name = to
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut free = to.clone();
    let mut number = 0;
    while io.exists(&free) {
        number += 1;
        free = to.with_file_name(format!("{name}.{number}"));
    }
    io.rename(path, &free)?;
    tracing::error!(from = %path.display(), to = %free.display(), "what has the name of a group's file is no file that can be replaced: it is set aside, and the file that was fetched from another replica takes the name. Nothing removes it but you");
    Ok(())
}

/// Removes what was not finished of any streamlet below `root`, the directory of streams' directories: how many files.
/// Nobody may be making any.
///
/// # Errors
/// The store's.
pub fn sweep(io: &dyn Io, root: &Path) -> io::Result<usize> {
    let mut swept = 0;
    for stream in names(io, root)? {
        let stream = root.join(stream);
        for streamlet in names(io, &stream)? {
            let dir = stream.join(streamlet);
            for name in names(io, &dir)? {
                let named = GroupSpec::parse_file_name(&name);
                if named.is_some_and(|(_, generation)| generation >= UNFINISHED) {
                    io.remove_file(&dir.join(name))?;
                    swept += 1;
                }
            }
        }
    }
    Ok(swept)
}

/// The names in a directory; none in what is no directory.
fn names(io: &dyn Io, dir: &Path) -> io::Result<Vec<String>> {
    match io.list(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        listed => listed,
    }
}
