//! The owner's own copy of its groups: the files it writes itself, without a backup in between.
//!
//! A broker that writes groups into files of its own counts them as copies of its groups' sets. Who
//! writes a file says how far it is ([`crate::primary::CopySet::own_completed`]); recovery asks
//! [`OwnCopies`] what it asks of a backup, and gets its answers without a network. Nobody else is at
//! work on these files when a streamlet is recovered, so sealing them means nothing more than reading
//! them.

use std::io::{self, ErrorKind, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::check::check;
use kera_log_segments::group::GroupSpec;
use kera_log_segments::io::{FileRef, Io, OpenHow};
use kera_log_segments::layout::{DurableMark, FOOTER_OFFSET};
use kera_log_segments::scan::{ScanError, ScanSpec, Scanned, read_mark, scan};
use kera_log_segments::window::Place;

use crate::ids::{CopyId, Incarnation};
use crate::transport::{
    CopyAnswer, MAX_TRANSFER_BYTES, Pending, Refusal, Reply, Request, SealedCopy,
};

/// A broker's own copies, asked as a backup is asked.
pub trait OwnCopies: Send + Sync {
    /// The life over which what is written and not synced survives; what groups' records name.
    fn incarnation(&self) -> Incarnation;

    /// Answers [`Request::Seal`] with what each file holds, [`Request::Read`], [`Request::Check`], and, while a streamlet
    /// is recovered, [`Request::Complete`] and [`Request::Flush`], as
    /// [`BackupStore`](crate::backup::BackupStore) does. A file that is not there is
    /// [`CopyAnswer::Absent`]; whether that can be believed is recovery's to decide.
    ///
    /// # Errors
    /// As a backup's; [`Refusal::Invalid`] to what is never asked of own copies.
    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>>;
}

/// Shared own copies.
pub type OwnRef = Arc<dyn OwnCopies>;

/// Own copies as a broker's group files lie: `<root>/<stream uuid>/<streamlet>/<group>.0.log`.
#[derive(Clone)]
pub struct OwnFiles {
    io: Arc<dyn Io>,
    root: PathBuf,
    incarnation: Incarnation,
}

impl std::fmt::Debug for OwnFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnFiles")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl OwnFiles {
    /// The files under `root`, the directory of streams' directories.
    pub fn new(io: Arc<dyn Io>, root: PathBuf, incarnation: Incarnation) -> Arc<Self> {
        Arc::new(Self {
            io,
            root,
            incarnation,
        })
    }

    /// Where the file of a copy lies.
    pub fn path(&self, copy: &CopyId) -> PathBuf {
        self.root
            .join(copy.streamlet.stream.to_string())
            .join(copy.streamlet.streamlet.0.to_string())
            .join(GroupSpec::file_name(copy.group, 0))
    }

    fn open(&self, copy: &CopyId) -> io::Result<FileRef> {
        self.io.open(&self.path(copy), OpenHow::ReadWrite, false)
    }

    fn scan(&self, file: &FileRef, copy: &CopyId) -> Result<Scanned, ScanError> {
        let spec = ScanSpec {
            lane: None,
            group: Some(copy.group),
            epoch: Some(copy.epoch),
            limit: None,
            incarnation: self.incarnation,
            // Other copies are completed from what counts as whole here.
            verify_all: true,
        };
        let scanned = scan(&**file, &spec, |_, _| {})?;
        let header = &scanned.header;
        if header.stream == copy.streamlet.stream && header.streamlet == copy.streamlet.streamlet {
            return Ok(scanned);
        }
        Err(ScanError::Foreign {
            expected: copy.to_string(),
            found: format!("{}/{}", header.stream, header.streamlet),
        })
    }

    /// Whether there is a file of this copy.
    pub fn has(&self, copy: &CopyId) -> bool {
        self.path(copy).exists()
    }

    /// Answers a request at once; may wait for a disk.
    ///
    /// # Errors
    /// As [`OwnCopies::ask`].
    pub fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::Seal { copies, .. } => {
                let answers = copies.into_iter().map(|(copy, recorded)| SealedCopy {
                    copy,
                    answer: self.answer(&copy, recorded),
                });
                Ok(Reply::Sealed(answers.collect()))
            }
            Request::Read { copy, address, len } => {
                self.read(&copy, address, len).map(Reply::Bytes)
            }
            Request::Complete {
                copy,
                segment_size,
                segments,
                address,
                bytes,
                ..
            } => {
                let group_bytes = u64::from(segment_size) * u64::from(segments);
                self.complete(&copy, group_bytes, address, &bytes)
                    .map(|()| Reply::Done)
            }
            Request::Flush { copy, length, .. } => {
                let end = self.flush(&copy, length)?;
                Ok(Reply::Flushed {
                    length: end.address,
                    end_ordinal: end.ordinal,
                })
            }
            Request::Check {
                copy,
                from,
                bytes,
                end,
            } => {
                let how = OpenHow::ReadOnly;
                let file = self.io.open(&self.path(&copy), how, false);
                let file = file.map_err(unknown)?;
                let checked = check(&*file, &copy.check_spec(end), from, u64::from(bytes));
                checked.map(Reply::Checked).map_err(failed)
            }
            Request::Free { copy, .. } => match self.io.remove_file(&self.path(&copy)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(Reply::Done),
            },
            other => Err(Refusal::Invalid(format!(
                "{} is never asked of a broker's own copies",
                other.name()
            ))),
        }
    }

    fn answer(&self, copy: &CopyId, recorded: Incarnation) -> CopyAnswer {
        if recorded != self.incarnation {
            return CopyAnswer::Unknown;
        }
        let damaged = |detail: String| CopyAnswer::Damaged { detail };
        let file = match self.open(copy) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return CopyAnswer::Absent,
            Err(error) => return damaged(error.to_string()),
        };
        match self.scan(&file, copy) {
            Ok(scanned) if scanned.damaged => damaged(format!(
                "the valid data ends at byte {}, below what was seen to be durable: {}",
                scanned.end.address, scanned.stop
            )),
            Ok(scanned) => CopyAnswer::Scanned {
                length: scanned.end.address,
                first_ordinal: scanned.header.first_ordinal,
                end_ordinal: scanned.end.ordinal,
            },
            Err(ScanError::NoHeader(_) | ScanError::BadSnapshot)
                if !self.was_durable(&file, copy) =>
            {
                CopyAnswer::Scanned {
                    length: 0,
                    first_ordinal: 0,
                    end_ordinal: 0,
                }
            }
            Err(error) => damaged(error.to_string()),
        }
    }

    /// True if a mark, which lies behind the last segment, says that bytes were durable once.
    fn was_durable(&self, file: &FileRef, copy: &CopyId) -> bool {
        let group_bytes = match file.len() {
            Ok(len) => len.saturating_sub(FOOTER_OFFSET),
            Err(_) => return true,
        };
        match read_mark(&**file, group_bytes) {
            Ok(mark) => mark.is_some_and(|mark| {
                let here = &self.incarnation;
                mark.binding_length(&here.store_id, &here.boot_id) > 0
            }),
            Err(error) => {
                tracing::warn!(%copy, %error, "its marks cannot be read");
                true
            }
        }
    }

    fn read(&self, copy: &CopyId, address: u64, len: u32) -> Result<Bytes, Refusal> {
        if len > MAX_TRANSFER_BYTES {
            return Err(Refusal::Invalid(format!(
                "{len} bytes are too many at once; ask for at most {MAX_TRANSFER_BYTES}"
            )));
        }
        let file = self.open(copy).map_err(unknown)?;
        let mut bytes = vec![0; len as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let at = address + filled as u64;
            match file.read_at(&mut bytes[filled..], at).map_err(failed)? {
                0 => break,
                read => filled += read,
            }
        }
        // What was never written is zeros, also behind the file's end.
        Ok(bytes.into())
    }

    /// Writes what other copies hold. From address 0 on the file is made anew: what it held before
    /// did not count, and could stand behind what is written now.
    fn complete(
        &self,
        copy: &CopyId,
        group_bytes: u64,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let end = address.saturating_add(bytes.len() as u64);
        if end > group_bytes {
            return Err(Refusal::Invalid(format!(
                "{copy} has {group_bytes} bytes, none at {end}"
            )));
        }
        let file = if address == 0 {
            self.make(copy, group_bytes).map_err(failed)?
        } else {
            self.open(copy).map_err(unknown)?
        };
        file.write_vectored_at(&[IoSlice::new(bytes)], address)
            .map_err(failed)
    }

    fn make(&self, copy: &CopyId, group_bytes: u64) -> io::Result<FileRef> {
        let path = self.path(copy);
        if let Some(dir) = path.parent() {
            self.io.create_dir_all(dir)?;
        }
        match self.io.remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.io.open(&path, OpenHow::CreateNew, false)?;
        file.set_len(group_bytes + FOOTER_OFFSET)?;
        Ok(file)
    }

    fn flush(&self, copy: &CopyId, length: u64) -> Result<Place, Refusal> {
        let file = self.open(copy).map_err(unknown)?;
        let scanned = match self.scan(&file, copy) {
            Ok(scanned) => scanned,
            Err(ScanError::Io(error)) => return Err(failed(error)),
            Err(_) => return Err(Refusal::Short { length: 0 }),
        };
        if scanned.end.address < length {
            return Err(Refusal::Short {
                length: scanned.end.address,
            });
        }
        let header = &scanned.header;
        let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
        let before = scanned.mark.unwrap_or_default();
        let mark = DurableMark {
            sequence: before.sequence + 1,
            written: scanned.end.address,
            written_ordinal: scanned.end.ordinal,
            synced: scanned.end.address,
            synced_ordinal: scanned.end.ordinal,
            store_id: self.incarnation.store_id,
            boot_id: self.incarnation.boot_id,
        };
        let store = || -> io::Result<()> {
            // The mark speaks of bytes that are on disk, so it comes after them.
            file.sync_data()?;
            let slot = mark.slot_offset(group_bytes);
            file.write_vectored_at(&[IoSlice::new(&mark.encode())], slot)?;
            file.sync_data()?;
            // Its name, and those of the directories above it that may be new.
            for dir in self.path(copy).ancestors().skip(1).take(3) {
                self.io.sync_dir(dir)?;
            }
            Ok(())
        };
        store().map_err(failed)?;
        Ok(scanned.end)
    }
}

impl OwnCopies for OwnFiles {
    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>> {
        let files = self.clone();
        Box::pin(async move {
            // Files are waited for on a thread that may wait, where there is one.
            match tokio::runtime::Handle::try_current() {
                Ok(tokio) => {
                    let answered = tokio.spawn_blocking(move || files.handle(request)).await;
                    answered.unwrap_or_else(|error| Err(Refusal::Failed(error.to_string())))
                }
                Err(_) => files.handle(request),
            }
        })
    }
}

fn failed(error: io::Error) -> Refusal {
    Refusal::Failed(error.to_string())
}

fn unknown(error: io::Error) -> Refusal {
    match error.kind() {
        ErrorKind::NotFound => Refusal::Unknown,
        _ => failed(error),
    }
}
