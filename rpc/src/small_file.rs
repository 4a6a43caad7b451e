//! Small files that somebody else writes: tokens, passwords, keys and certificates.
//!
//! A pipe that nobody writes into, and a file system whose server has gone, keep whoever reads for ever, and a runtime waits for
//! its blocking threads when it ends. So a thread of its own reads, which nobody waits for after [`WITHIN`].

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// A file has been read by then, or is given up.
pub const WITHIN: Duration = Duration::from_secs(5);
/// Threads of this process that read at a time. Those that never come to an end count.
const MOST_THREADS: usize = 128;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Files that can be read again and again.
    Files,
    /// Pipes too, as a shell makes them of `<(command)`.
    Pipes,
}

/// Reads a file, of no more than `most` bytes and one, within [`WITHIN`].
///
/// # Errors
/// The system's; `TimedOut`; that the file is none. They do not name it.
pub fn read(path: &Path, most: usize, takes: Takes) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    blocking(WITHIN, move || contents(&path, most, takes))
}

/// As [`read`], with one of the runtime's threads that waits: no longer than that does a runtime wait for it when it ends.
///
/// # Errors
/// As [`read`].
pub async fn read_async(path: PathBuf, most: usize, takes: Takes) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(move || read(&path, most, takes));
    read.await.unwrap_or_else(|_| Err(panicked()))
}

fn contents(path: &Path, most: usize, takes: Takes) -> io::Result<Vec<u8>> {
    // To open a pipe waits for who writes into it.
    if takes == Takes::Files && !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut read = Vec::new();
    let file = File::open(path)?;
    file.take(most as u64 + 1).read_to_end(&mut read)?;
    Ok(read)
}

fn late(within: Duration) -> io::Error {
    let text = format!(
        "it did not come within {} s; it may lie on a server that does not answer, or be a pipe that nobody writes into",
        within.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn panicked() -> io::Error {
    io::Error::other("what reads it has panicked")
}

/// Counts a thread while it works.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has a thread do something that may never come to an end. It is not waited for when the process ends, or its runtime.
fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if THREADS.fetch_add(1, Ordering::Relaxed) >= MOST_THREADS {
        drop(Counted);
        let text = format!("{MOST_THREADS} files are being read already, and do not come");
        return Err(io::Error::other(text));
    }
    let counted = Counted;
    let work = move || {
        let _counted = counted;
        work();
    };
    let name = "kera-small-file".to_owned();
    thread::Builder::new().name(name).spawn(work).map(drop)
}

/// What comes of `work`, on a thread of its own; an error if it panics.
pub(crate) fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (done, outcome) = oneshot::channel();
    spawn(move || {
        // Nobody may wait any more.
        let _ = done.send(work());
    })?;
    Ok(outcome)
}

fn blocking<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = mpsc::sync_channel(1);
    spawn(move || {
        let _ = done.send(work());
    })?;
    match outcome.recv_timeout(within) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(late(within)),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(panicked()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_never_comes_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        std::fs::write(&file, "secret").unwrap();
        for takes in [Takes::Files, Takes::Pipes] {
            assert_eq!(read(&file, 6, takes).unwrap(), b"secret");
            // One more than there may be, so that who reads can tell.
            assert_eq!(read(&file, 3, takes).unwrap(), b"secr");
            let none = read(&dir.path().join("none"), 3, takes).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::NotFound);
        }
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for other in [&pipe, dir.path()] {
            let why = read(other, 6, Takes::Files).unwrap_err().to_string();
            assert!(why.contains("no regular file"), "{why}");
        }
        // Who writes into it comes: it is read whole.
        let writes = {
            let pipe = pipe.clone();
            thread::spawn(move || std::fs::write(pipe, "secret"))
        };
        assert_eq!(read(&pipe, 6, Takes::Pipes).unwrap(), b"secret");
        writes.join().unwrap().unwrap();
        // Nobody comes.
        let within = Duration::from_millis(1);
        let waits = pipe.clone();
        let given_up = blocking(within, move || contents(&waits, 6, Takes::Pipes));
        assert_eq!(given_up.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // The thread left behind ends once somebody does.
        std::fs::write(&pipe, "").unwrap();
        let panics = blocking(WITHIN, || -> io::Result<()> {
            panic!("as a test wants it")
        });
        assert!(panics.unwrap_err().to_string().contains("panicked"));
    }
}
