//! Records events from many threads, in real-time order.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::event::{Entry, Event};
use crate::history::{self, History, HistoryError};

/// Entries handed to the writing thread at once.
const BLOCK: usize = 4096;
/// Blocks that may wait for the writing thread; then recording waits for the disk.
const WAITING: usize = 8;

/// Gives events their times and keeps them, in memory or in a file. Shared by reference between
/// all threads of a test; [`Recorder::record`] is a short critical section without I/O.
///
/// ```
/// let recorder = kera_history::Recorder::in_memory();
/// let asked = recorder.now();
/// let at = recorder.record(kera_history::Event::BrokerStarted);
/// assert!(at >= asked && at < recorder.now());
/// ```
#[derive(Debug)]
pub struct Recorder {
    clock: AtomicU64,
    buffer: Mutex<Vec<Entry>>,
    writer: Option<Writer>,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    blocks: SyncSender<Vec<Entry>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Recorder {
    /// Keeps everything in memory: about 120 bytes for each event.
    pub fn in_memory() -> Self {
        Self {
            clock: AtomicU64::new(0),
            buffer: Mutex::new(Vec::new()),
            writer: None,
        }
    }

    /// Writes to a new file; memory stays within a few megabytes, and recording waits when the
    /// disk does not keep up. `title` says what the history is of.
    pub fn to_file(path: &Path, title: &str) -> Result<Self, HistoryError> {
        let io = |source| HistoryError::Io {
            path: path.to_owned(),
            source,
        };
        let file = history::create(path, title).map_err(io)?;
        let (blocks, waiting) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("history-writer".to_owned())
            .spawn(move || write_blocks(file, &waiting))
            .map_err(io)?;
        Ok(Self {
            clock: AtomicU64::new(0),
            buffer: Mutex::new(Vec::with_capacity(BLOCK)),
            writer: Some(Writer {
                path: path.to_owned(),
                blocks,
                thread,
            }),
        })
    }

    /// The time of the next event: all events recorded so far have a smaller one. To be taken
    /// before a call whose event carries `asked`.
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Records an event, and returns its time.
    pub fn record(&self, event: Event) -> u64 {
        let mut buffer = self.lock();
        self.push(&mut buffer, event)
    }

    /// Records several events in a row, with no other in between.
    pub fn record_all(&self, events: impl IntoIterator<Item = Event>) {
        let mut buffer = self.lock();
        for event in events {
            self.push(&mut buffer, event);
        }
    }

    /// Ends recording and gives the history. Fails if the file could not be written. A recorder
    /// that is dropped instead leaves a complete file, too.
    pub fn finish(mut self) -> Result<History, HistoryError> {
        match self.close() {
            None => Ok(History::from_entries(std::mem::take(&mut *self.lock()))),
            Some((path, Ok(()))) => History::open(path),
            Some((path, Err(source))) => Err(HistoryError::Io { path, source }),
        }
    }

    fn close(&mut self) -> Option<(PathBuf, io::Result<()>)> {
        let Writer {
            path,
            blocks,
            thread,
        } = self.writer.take()?;
        let rest = std::mem::take(&mut *self.lock());
        // A writer that is gone has failed, and says so when joined.
        let _ = blocks.send(rest);
        drop(blocks);
        let written = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the history's writer panicked")));
        Some((path, written))
    }

    fn push(&self, buffer: &mut Vec<Entry>, event: Event) -> u64 {
        // Taken under the lock, so that the file is in the order of the times.
        let at = self.clock.fetch_add(1, Ordering::SeqCst);
        buffer.push(Entry { at, event });
        if let Some(writer) = &self.writer
            && buffer.len() >= BLOCK
        {
            let block = std::mem::replace(buffer, Vec::with_capacity(BLOCK));
            // As above: the failure shows in `finish`.
            let _ = writer.blocks.send(block);
        }
        at
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A panic elsewhere must not hide the history that leads to it.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Whoever wants to know of a failure calls `finish`.
        let _ = self.close();
    }
}

fn write_blocks(mut file: BufWriter<File>, blocks: &Receiver<Vec<Entry>>) -> io::Result<()> {
    for block in blocks {
        for entry in &block {
            history::write_entry(&mut file, entry)?;
        }
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: String) -> Event {
        Event::Note { text }
    }

    #[test]
    fn many_threads_write_one_ordered_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let recorder = Recorder::to_file(&path, "threads").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for n in 0..5_000 {
                        let asked = recorder.now();
                        let at = recorder.record(note(format!("{thread} {n}")));
                        assert!(at >= asked && at < recorder.now());
                    }
                });
            }
        });
        let history = recorder.finish().unwrap();
        let mut next = [0; 4];
        let mut count = 0;
        for (n, entry) in history.entries().unwrap().enumerate() {
            let entry = entry.unwrap();
            assert_eq!(entry.at, n as u64);
            let Event::Note { text } = entry.event else {
                panic!("only notes were recorded");
            };
            let (thread, number) = text.split_once(' ').unwrap();
            let thread: usize = thread.parse().unwrap();
            assert_eq!(number.parse(), Ok(next[thread]));
            next[thread] += 1;
            count += 1;
        }
        assert_eq!(count, 20_000);
    }

    #[test]
    fn a_dropped_recorder_leaves_a_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let recorder = Recorder::to_file(&path, "dropped").unwrap();
        recorder.record(note("last".to_owned()));
        drop(recorder);
        let history = History::open(&path).unwrap();
        assert_eq!(history.entries().unwrap().count(), 1);
    }

    #[test]
    fn broken_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        std::fs::write(&path, "{\"kera_history\":2}\n").unwrap();
        assert!(matches!(
            History::open(&path),
            Err(HistoryError::Version { found: 2, .. })
        ));
        std::fs::write(
            &path,
            "{\"kera_history\":1}\n[0,\"broker_started\"]\n[1,{\"se",
        )
        .unwrap();
        let history = History::open(&path).unwrap();
        let entries: Vec<_> = history.entries().unwrap().collect();
        assert_eq!(entries.len(), 2);
        assert!(entries[0].is_ok());
        assert!(matches!(
            &entries[1],
            Err(HistoryError::Malformed { line: 3, .. })
        ));
        assert!(History::open(dir.path().join("none")).is_err());
    }
}
