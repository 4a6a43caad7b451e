//! The folders of a session, which it has to itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use kera_load::process;

/// Folders; the data is removed at the end.
pub(crate) struct Workplace {
    /// Cargo's target folder.
    pub target: PathBuf,
    /// Below it: what is kept from session to session.
    pub build: PathBuf,
    /// The data of the brokers.
    pub data: PathBuf,
    _lock: File,
}

impl Workplace {
    /// Takes the folders and removes what a session that was killed has left.
    pub(crate) fn open(data: Option<&Path>) -> Result<Self> {
        let program = std::env::current_exe()?;
        // target/PROFILE/kera-bench
        let target = program.ancestors().nth(2).context("no target folder")?;
        let build = target.join("kera-bench");
        fs::create_dir_all(&build)?;
        let above = data.unwrap_or(&build);
        fs::create_dir_all(above).with_context(|| format!("cannot create {}", above.display()))?;
        let above = above.canonicalize()?;
        let lock = File::create(above.join(".kera-bench.lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another session uses {}; wait for it", above.display()))?;
        let data = above.join("kera-bench-data");
        remove(&data)?;
        fs::create_dir_all(&data)?;
        Ok(Self {
            target: target.to_owned(),
            build,
            data,
            _lock: lock,
        })
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = remove(&self.data);
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Removes folders in `above` that sessions which were killed have left: their names are `prefix`, the
/// session's process id, a hyphen and something more.
pub(crate) fn remove_stale(above: &Path, prefix: &str) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let pid = rest.and_then(|rest| rest.split_once('-')?.0.parse().ok());
        if pid.is_some_and(process::ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Brokers hold a file open for each partition: they take as many as the system grants.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        eprintln!("cannot raise the limit of open files: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_dead_have_left_is_removed() {
        let above = tempfile::tempdir().unwrap();
        let own = format!("kept-{}-1", std::process::id());
        let names = [
            own.as_str(),
            "kept-4294967295-7",
            "kept-x-1",
            "other-4294967295-7",
        ];
        for name in names {
            fs::create_dir(above.path().join(name)).unwrap();
        }
        remove_stale(above.path(), "kept-");
        let there = names.map(|name| above.path().join(name).exists());
        assert_eq!(there, [true, false, true, true]);
    }
}
