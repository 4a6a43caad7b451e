//! The end of a run that cannot go on.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::world::world;

/// Where the log goes if the run ends before its end.
static LOG: OnceLock<PathBuf> = OnceLock::new();

/// Sets where that is.
pub(super) fn log_to(path: PathBuf) {
    LOG.get_or_init(|| path);
}

/// Writes the log and `text` after it, and ends the process.
pub(super) fn end_with(text: &str, code: i32) -> ! {
    let lines = std::mem::take(&mut world().lines);
    if let Some(path) = LOG.get() {
        let written = fs::File::create(path).and_then(|mut file| {
            for line in &lines {
                writeln!(file, "{line}")?;
            }
            writeln!(file, "{text}")
        });
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
        }
    }
    eprint!("{text}");
    // SAFETY: it returns nowhere.
    unsafe { libc::_exit(code) }
}

/// Ends the process at once: threads stand everywhere, and nothing of them is to run any more.
pub fn end(code: u8) -> ! {
    // SAFETY: it returns nowhere.
    unsafe { libc::_exit(code.into()) }
}
