//! A history in memory, or in a file of JSON lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::event::{Entry, Event};

/// The version of the file format that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1 << 20;

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The format's version.
    pub kera_history: u32,
    /// What the history is of, for people: the test, its seed.
    #[serde(default)]
    pub title: String,
}

/// Why a history cannot be written, read or judged.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be opened, read or written.
    #[error("cannot use history file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not an entry.
    #[error("line {line} of history file {} is not an entry: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file was written by another version.
    #[error("history file {} has format version {found}; this build reads version {FORMAT_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The entries contradict the rules for recording: the recorder is wrong, not the broker.
    #[error("the history cannot be judged, at time {at}: {reason}")]
    Invalid {
        /// The entry's time.
        at: u64,
        /// Which rule is broken.
        reason: String,
    },
}

/// Entries in the order of their times.
#[derive(Clone, Debug)]
pub struct History {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Memory(Vec<Entry>),
    File(PathBuf),
}

impl History {
    /// A history of entries that are in the order of their times.
    pub fn from_entries(entries: Vec<Entry>) -> Self {
        Self {
            source: Source::Memory(entries),
        }
    }

    /// A history of events, timed in the order given.
    pub fn from_events(events: impl IntoIterator<Item = Event>) -> Self {
        let entries = events.into_iter().enumerate().map(|(at, event)| Entry {
            at: at as u64,
            event,
        });
        Self::from_entries(entries.collect())
    }

    /// A history in a file, which is read anew by each use and never held in memory whole.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, HistoryError> {
        let path = path.into();
        read_header(&path)?;
        Ok(Self {
            source: Source::File(path),
        })
    }

    /// The file, if the history is in one.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Memory(_) => None,
            Source::File(path) => Some(path),
        }
    }

    /// The entries, in order.
    pub fn entries(
        &self,
    ) -> Result<Box<dyn Iterator<Item = Result<Entry, HistoryError>> + '_>, HistoryError> {
        match &self.source {
            Source::Memory(entries) => Ok(Box::new(entries.iter().cloned().map(Ok))),
            Source::File(path) => {
                let reader = read_header(path)?;
                Ok(Box::new(Lines {
                    path: path.clone(),
                    reader,
                    line: 1,
                    buffer: Vec::new(),
                    broken: false,
                }))
            }
        }
    }

    /// Writes the history to a new file.
    pub fn save(&self, path: &Path, title: &str) -> Result<(), HistoryError> {
        let io = |source| HistoryError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = create(path, title).map_err(io)?;
        for entry in self.entries()? {
            write_entry(&mut file, &entry?).map_err(io)?;
        }
        file.flush().map_err(io)
    }
}

/// Makes a file with its first line.
pub(crate) fn create(path: &Path, title: &str) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::with_capacity(1 << 16, File::create(path)?);
    let header = Header {
        kera_history: FORMAT_VERSION,
        title: title.to_owned(),
    };
    serde_json::to_writer(&mut file, &header)?;
    file.write_all(b"\n")?;
    Ok(file)
}

/// Writes one line.
pub(crate) fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    serde_json::to_writer(&mut *file, &(entry.at, &entry.event))?;
    file.write_all(b"\n")
}

fn read_header(path: &Path) -> Result<BufReader<File>, HistoryError> {
    let io = |source| HistoryError::Io {
        path: path.to_owned(),
        source,
    };
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?);
    let mut line = Vec::new();
    read_line(&mut reader, &mut line).map_err(io)?;
    let header: Header = serde_json::from_slice(&line).map_err(|e| HistoryError::Malformed {
        path: path.to_owned(),
        line: 1,
        reason: e.to_string(),
    })?;
    if header.kera_history != FORMAT_VERSION {
        return Err(HistoryError::Version {
            path: path.to_owned(),
            found: header.kera_history,
        });
    }
    Ok(reader)
}

fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    let read = io::Read::take(&mut *reader, MAX_LINE).read_until(b'\n', line)?;
    if read as u64 == MAX_LINE {
        let reason = format!("a line is longer than {MAX_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(read)
}

struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
    buffer: Vec<u8>,
    broken: bool,
}

impl Iterator for Lines {
    type Item = Result<Entry, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        self.line += 1;
        match read_line(&mut self.reader, &mut self.buffer) {
            Ok(0) => None,
            Ok(_) => {
                Some(
                    serde_json::from_slice(&self.buffer).map_err(|e| HistoryError::Malformed {
                        path: self.path.clone(),
                        line: self.line,
                        reason: e.to_string(),
                    }),
                )
            }
            Err(source) => {
                self.broken = true;
                Some(Err(HistoryError::Io {
                    path: self.path.clone(),
                    source,
                }))
            }
        }
    }
}
