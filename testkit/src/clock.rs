//! A wall clock that jumps, for one process: a small library before the system's own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const SOURCE: &str = include_str!("clock.c");

/// The clock of the processes that are started with [`Clock::within`].
pub struct Clock {
    library: PathBuf,
    dir: TempDir,
    file: File,
}

impl Clock {
    /// Why there can be none on this machine, if so.
    pub fn lacking() -> Option<String> {
        library().err()
    }

    #[expect(clippy::new_without_default, reason = "it builds a library")]
    /// One that tells the machine's time.
    pub fn new() -> Self {
        let library = library().unwrap_or_else(|reason| panic!("{reason}"));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seconds");
        fs::write(&path, 0i64.to_ne_bytes()).expect("a file");
        let file = File::options().write(true).open(&path).expect("the file");
        Self { library, dir, file }
    }

    /// What goes before the command line of a process that is to have this clock.
    pub fn within(&self) -> Vec<String> {
        let file = self.dir.path().join("seconds");
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("JUMPING_CLOCK={}", file.display()),
        ]
    }

    /// It jumps so far from the machine's time; at 0 it is right again.
    pub fn set(&self, seconds: i64) {
        let written = self.file.write_all_at(&seconds.to_ne_bytes(), 0);
        written.expect("the file can be written");
    }
}

/// The library, built once by each process of tests.
fn library() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    let at = crate::scratch();
    let (source, library) = (at.join("clock.c"), at.join("libjumpingclock.so"));
    let made = at.join(format!("clock-{}.so", std::process::id()));
    let failed = |error: String| format!("a clock that jumps cannot be built with cc: {error}");
    fs::write(&source, SOURCE).map_err(|error| failed(error.to_string()))?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&made, &source])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !built.status.success() {
        return Err(failed(String::from_utf8_lossy(&built.stderr).into_owned()));
    }
    // At once, since others may be loading it.
    fs::rename(&made, &library).map_err(|error| failed(error.to_string()))?;
    Ok(library)
}
