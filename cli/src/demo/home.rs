//! The demo's directory: fresh, on a disk, and printed.

use std::fs;
use std::path::{Path, PathBuf};

use kera_broker::config::{default_data_dir, volatile_filesystem};

use crate::failure::Failure;

/// Marks a directory that a finished demo left behind, and that the next one may remove.
const FINISHED: &str = "finished";

/// Finds and makes the directory.
pub(super) fn make(wanted: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(directory) = wanted {
        refuse_volatile(directory)?;
        return prepare(directory);
    }
    let name = format!("kera-demo-{:08x}", rand::random::<u32>());
    let mut refusals = Vec::new();
    // Beside the broker's usual data first; where there is no home, or it is no disk, right here.
    for parent in [
        default_data_dir().parent().map(Path::to_path_buf),
        std::env::current_dir().ok(),
    ] {
        let Some(parent) = parent else { continue };
        remove_finished(&parent);
        let directory = parent.join(&name);
        match refuse_volatile(&directory).and_then(|()| prepare(&directory)) {
            Ok(directory) => return Ok(directory),
            Err(refusal) => refusals.push(refusal),
        }
    }
    Err(refusals
        .pop()
        .unwrap_or_else(|| Failure::message("no directory to work in; name one with --dir")))
}

/// Leaves a mark: nobody needs this directory any more.
pub(super) fn mark_finished(directory: &Path) {
    // Without the mark the directory is only kept longer.
    let _ = fs::write(directory.join(FINISHED), b"");
}

fn refuse_volatile(directory: &Path) -> Result<(), Failure> {
    match volatile_filesystem(directory) {
        None => Ok(()),
        Some(name) => Err(Failure::message(format!(
            "{} is on a {name}, where nothing lasts, and the demo claims that records do; name a directory on a disk with --dir",
            directory.display()
        ))),
    }
}

fn prepare(directory: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: std::io::Error| {
        Failure::message(format!(
            "cannot use {}: {error}; name another directory with --dir",
            directory.display()
        ))
    };
    fs::create_dir_all(directory).map_err(failed)?;
    if fs::read_dir(directory).map_err(failed)?.next().is_some() {
        return Err(Failure::message(format!(
            "{} is not empty; name a new directory with --dir",
            directory.display()
        )));
    }
    fs::canonicalize(directory).map_err(failed)
}

/// Removes what earlier demos left: a demo leaves some hundred megabytes.
fn remove_finished(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with("kera-demo-"));
        if ours && entry.path().join(FINISHED).is_file() {
            // What cannot be removed is left.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kera-home-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn only_finished_demos_are_removed() {
        let parent = scratch("remove");
        for name in ["kera-demo-1", "kera-demo-2", "mine"] {
            fs::create_dir_all(parent.join(name)).unwrap();
        }
        mark_finished(&parent.join("kera-demo-1"));
        mark_finished(&parent.join("mine"));
        remove_finished(&parent);
        assert!(!parent.join("kera-demo-1").exists());
        assert!(parent.join("kera-demo-2").exists());
        assert!(parent.join("mine").exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_directory_in_use_and_shared_memory_are_refused() {
        let parent = scratch("refuse");
        fs::write(parent.join("x"), b"").unwrap();
        assert!(prepare(&parent).is_err());
        assert!(prepare(&parent.join("new")).is_ok());
        fs::remove_dir_all(parent).unwrap();
        if volatile_filesystem(Path::new("/dev/shm")).is_some() {
            let refusal = format!("{:?}", make(Some(Path::new("/dev/shm/kera-demo-x"))));
            assert!(refusal.contains("tmpfs"), "{refusal}");
            assert!(!Path::new("/dev/shm/kera-demo-x").exists());
        }
    }
}
