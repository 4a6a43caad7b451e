//! The owner's own copy of its groups: the files it writes itself, without a backup in between.
//!
//! A broker that writes groups into files of its own counts them as copies of its groups' sets. Who
//! writes a file says how far it is ([`crate::primary::ReplicaSet::own_completed`]); recovery asks
//! [`OwnReplicas`] what it asks of a backup, and gets its answers without a network. Nobody else is at
//! work on these files when a streamlet is recovered, so sealing them means nothing more than reading
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::check::{Checked, check};
use kera_log_segments::damage::{FileDamage, Unsynced};
use kera_log_segments::group::GroupSpec;
use kera_log_segments::io::{File, FileRef, Io, OpenHow, rewrite, volatile_file_system};
use kera_log_segments::layout::{DurableMark, SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_log_segments::scan::{ScanError, ScanSpec, Scanned, read_mark, scan, write_mark};
use kera_log_segments::window::Place;
use kera_protocol::ids::{Epoch, GroupId};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::aside;
use crate::ids::{CopyId, Incarnation, StreamletKey};
use crate::transport::{
    CopyAnswer, CopyInfo, CopyState, CopyVersion, MAX_TRANSFER_BYTES, Pending, Refusal, Reply,
    Request, Seal, SealedCopy,
};

/// The epoch of a listed file whose header cannot be read. No group has it.
pub const UNREADABLE: Epoch = Epoch(0);

/// A broker's own replicas, asked as a replica store is asked.
pub trait OwnReplicas: Send + Sync {
    /// The life over which what is written and not synced survives; what groups' records name.
    fn incarnation(&self) -> Incarnation;

    /// The life over which what this process has in memory survives. No file answers for it: whoever asks has lost
    /// sight of the process that wrote it, and what another broker has placed counts.
    fn process(&self) -> Incarnation;

    /// The life over which what is synced survives.
    ///
    /// # Errors
    /// Why a loss of power may take that as well.
    fn disk(&self) -> Result<Incarnation, String> {
        Ok(Incarnation::of_disk(self.incarnation().store_id))
    }

    /// Answers [`Request::Seal`] with what each file holds, [`Request::Read`], [`Request::Check`], and, while a streamlet
    /// is recovered, [`Request::Complete`] and [`Request::Flush`], as
    /// [`ReplicaStore`](crate::backup::ReplicaStore) does. A file that is not there is
    /// [`CopyAnswer::Absent`]; whether that can be believed is recovery's to decide.
    ///
    /// # Errors
    /// As a backup's; [`Refusal::Invalid`] to what is never asked of own replicas.
    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>>;
}

/// Shared own replicas.
pub type OwnRef = Arc<dyn OwnReplicas>;

/// Own copies as a broker's group files lie: `<root>/<stream uuid>/<streamlet>/<group>.<generation>.log`.
#[derive(Clone)]
pub struct OwnFiles {
    io: Arc<dyn Io>,
    root: PathBuf,
    incarnation: Incarnation,
    process: Incarnation,
    /// The epochs in the headers of files that were listed, each with the version that was read.
    epochs: Arc<Mutex<BTreeMap<StreamletKey, Epochs>>>,
    /// The files that are being made anew, aside of what has their name.
    making: Arc<Mutex<BTreeMap<Made, Making>>>,
}

/// Which file is made: its streamlet, group and generation.
type Made = (StreamletKey, GroupId, u32);

/// A file that is being made anew.
#[derive(Clone, Copy, Debug)]
struct Making {
    copy: CopyId,
    /// The epoch under which it is made.
    by: Epoch,
}

/// By group and generation.
type Epochs = BTreeMap<(GroupId, u32), (CopyVersion, Epoch)>;

fn made_key(copy: &CopyId) -> Made {
    (copy.streamlet, copy.group, copy.generation)
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
            process: Incarnation {
                boot_id: Uuid::new_v4(),
                ..incarnation
            },
            epochs: Arc::default(),
            making: Arc::default(),
        })
    }

    /// Where the file of a copy lies.
    pub fn path(&self, copy: &CopyId) -> PathBuf {
        self.root
            .join(copy.streamlet.stream.to_string())
            .join(copy.streamlet.streamlet.0.to_string())
            .join(GroupSpec::file_name(copy.group, copy.generation))
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
        if is_of(header, copy) {
            return Ok(scanned);
        }
        let (stream, streamlet) = (header.stream, header.streamlet);
        Err(ScanError::Foreign {
            expected: copy.to_string(),
            found: format!("{stream}/{streamlet}, generation {}", header.generation),
        })
    }

    /// Whether there is a file of this copy, or one is being made.
    pub fn has(&self, copy: &CopyId) -> bool {
        self.io.exists(&self.path(copy)) || self.made(copy).is_some()
    }

    /// Removes what was left of files that an earlier process did not finish, before anybody makes others: how many.
    /// Nothing of them counts, since a file gets its name once it is whole and durable.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep_unfinished(&self) -> io::Result<usize> {
        aside::sweep(&*self.io, &self.root)
    }

    /// The file of the copy that is being made, if one is.
    fn made(&self, copy: &CopyId) -> Option<Making> {
        let making = self.making.lock();
        let made = making.get(&made_key(copy)).copied();
        made.filter(|made| made.copy == *copy)
    }

    /// Gives up a file that is being made.
    fn stop_making(&self, copy: &CopyId) -> io::Result<()> {
        let stopped = self.making.lock().remove(&made_key(copy));
        match stopped {
            Some(_) => aside::remove(&*self.io, &self.path(copy)),
            None => Ok(()),
        }
    }

    /// Gives up what owners of a streamlet before `epoch` were making: nobody ends that any more.
    ///
    /// # Errors
    /// The store's.
    pub fn end_making(&self, streamlet: StreamletKey, epoch: Epoch) -> io::Result<()> {
        let all = (streamlet, GroupId(0), 0)..=(streamlet, GroupId(u64::MAX), u32::MAX);
        let over: Vec<_> = {
            let making = self.making.lock();
            let made = making.range(all).map(|(_, made)| *made);
            made.filter(|made| made.by < epoch).collect()
        };
        over.iter()
            .try_for_each(|made| self.stop_making(&made.copy))
    }

    /// The files of a streamlet, as a store lists copies. One whose header says nothing has the epoch
    /// [`UNREADABLE`]: only its name tells which group it was made for. Waits for the disk.
    pub fn list(&self, streamlet: StreamletKey) -> Vec<CopyInfo> {
        let any = CopyId {
            streamlet,
            group: GroupId(0),
            epoch: UNREADABLE,
            generation: 0,
        };
        let entries = self.path(&any).parent().map(fs::read_dir);
        let Some(Ok(entries)) = entries else {
            return Vec::new();
        };
        let before = self.epochs.lock().remove(&streamlet).unwrap_or_default();
        let mut now = Epochs::new();
        let mut others = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let parsed = name.to_str().and_then(GroupSpec::parse_file_name);
            let Some((group, generation)) = parsed else {
                continue;
            };
            let copy = CopyId {
                group,
                generation: generation & !aside::UNFINISHED,
                ..any
            };
            let Ok(Some(version)) = self.version(&copy) else {
                continue;
            };
            if generation >= aside::UNFINISHED {
                // Made for the first time.
                let made = self.making.lock().get(&made_key(&copy)).copied();
                let first = made.filter(|made| !self.io.exists(&self.path(&made.copy)));
                others.extend(first.map(|made| CopyInfo {
                    copy: made.copy,
                    version,
                    state: CopyState::Sealed,
                }));
                continue;
            }
            let known = before
                .get(&(group, generation))
                .filter(|(read, _)| *read == version);
            let known = known.map(|(_, epoch)| *epoch);
            // What could not be read now may be whole.
            let Some(epoch) = known.or_else(|| self.epoch_of(&copy)) else {
                continue;
            };
            now.insert((group, generation), (version, epoch));
        }
        let listed = now
            .iter()
            .map(|((group, generation), (version, epoch))| CopyInfo {
                copy: CopyId {
                    streamlet,
                    group: *group,
                    epoch: *epoch,
                    generation: *generation,
                },
                version: *version,
                state: CopyState::Flushed,
            });
        let listed = listed.chain(others).collect();
        if !now.is_empty() {
            self.epochs.lock().insert(streamlet, now);
        }
        listed
    }

    /// The epoch in the header of the file of a copy's group; `None` if the disk did not answer.
    fn epoch_of(&self, copy: &CopyId) -> Option<Epoch> {
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        let file = self.io.open(&self.path(copy), OpenHow::ReadOnly, false);
        let read = file.and_then(|file| file.read_at(&mut head, 0)).ok()?;
        let header = SegmentHeader::decode(&head[..read]).ok();
        let of_copy = |header: &SegmentHeader| is_of(header, copy);
        Some(header.filter(of_copy).map_or(UNREADABLE, |h| h.epoch))
    }

    /// Tells the file of a copy, and what is made in its place, from what stands there later.
    fn version(&self, copy: &CopyId) -> io::Result<Option<CopyVersion>> {
        let path = self.path(copy);
        let made = self.made_of(copy).then(|| aside::path(&path));
        let mut hasher = DefaultHasher::new();
        let mut is_there = false;
        for path in std::iter::once(path).chain(made) {
            match fs::metadata(&path) {
                Ok(metadata) => {
                    is_there = true;
                    let changed = (metadata.ctime(), metadata.ctime_nsec());
                    (metadata.ino(), changed, metadata.len()).hash(&mut hasher);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => 0.hash(&mut hasher),
                Err(error) => return Err(error),
            }
        }
        Ok(is_there.then(|| CopyVersion(hasher.finish())))
    }

    fn made_of(&self, copy: &CopyId) -> bool {
        let making = self.making.lock();
        making.contains_key(&made_key(copy))
    }

    /// Removes the file of a copy, if it still is the `version` that was listed, and what is made in its place.
    fn remove(&self, copy: &CopyId, version: Option<CopyVersion>) -> Result<(), Refusal> {
        if let Some(version) = version {
            match self.version(copy).map_err(failed)? {
                Some(now) if now == version => {}
                Some(_) => {
                    return Err(Refusal::Invalid(
                        "the file is not the one that was listed: it was written since".into(),
                    ));
                }
                None => return Ok(()),
            }
        }
        self.stop_making(copy).map_err(failed)?;
        match self.io.remove_file(&self.path(copy)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Answers a request at once; may wait for a disk.
    ///
    /// # Errors
    /// As [`OwnReplicas::ask`].
    pub fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::Seal(Seal {
                streamlet,
                epoch,
                copies,
            }) => {
                self.end_making(streamlet, epoch).map_err(failed)?;
                let answers = copies.into_iter().filter_map(|(copy, recorded)| {
                    let answer = self.answer(&copy, recorded);
                    let answer = answer.inspect_err(|error| {
                        tracing::warn!(%copy, %error, "its file cannot be read now, so nothing is said of it");
                    });
                    let answer = answer.ok()?;
                    Some(SealedCopy { copy, answer })
                });
                Ok(Reply::Sealed(answers.collect()))
            }
            Request::Read { copy, address, len } => {
                self.read(&copy, address, len).map(Reply::Bytes)
            }
            Request::Complete {
                copy,
                epoch,
                segment_size,
                segments,
                address,
                bytes,
            } => {
                let group_bytes = u64::from(segment_size) * u64::from(segments);
                self.complete(&Making { copy, by: epoch }, group_bytes, address, &bytes)
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
                // What is read behind a file's end is zeros, and so says nothing of where it ends.
                let there = file.len().map_err(failed)?;
                if there < end.address {
                    return Ok(Reply::Checked(Checked {
                        to: from,
                        wrong: Some(format!(
                            "the file has {there} bytes, and {} are recorded: it was cut short",
                            end.address
                        )),
                    }));
                }
                let checked = check(&*file, &copy.check_spec(end), from, u64::from(bytes));
                checked.map(Reply::Checked).map_err(failed)
            }
            Request::Free { copy, version, .. } => {
                self.remove(&copy, version).map(|()| Reply::Done)
            }
            other => Err(Refusal::Invalid(format!(
                "{} is never asked of a broker's own replicas",
                other.name()
            ))),
        }
    }

    /// What the file of a copy counts as.
    ///
    /// # Errors
    /// The store's: that a file cannot be read now says nothing of what is in it.
    fn answer(&self, copy: &CopyId, recorded: Incarnation) -> io::Result<CopyAnswer> {
        if !self.incarnation.includes(recorded) {
            return Ok(CopyAnswer::Unknown);
        }
        // What was synced counts whatever became of the rest.
        let unsynced = match recorded.is_of_disk() {
            true => Unsynced::PerhapsLost,
            false => Unsynced::Kept,
        };
        let file = match self.open(copy) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(CopyAnswer::Absent),
            file => file?,
        };
        let detail = match self.scan(&file, copy) {
            Ok(scanned) => match FileDamage::of(&*file, &scanned, unsynced)? {
                None => return Ok(CopyAnswer::of(&scanned)),
                Some(damage) => {
                    let (end, stop) = (scanned.end.address, scanned.stop);
                    format!("{} (byte {end}: {stop})", damage.reason())
                }
            },
            Err(ScanError::Io(error)) => return Err(error),
            Err(error @ (ScanError::NoHeader(_) | ScanError::BadSnapshot)) => {
                let (epoch, here) = (copy.epoch, &self.incarnation);
                match FileDamage::of_headless(&*file, epoch, here, None, unsynced)? {
                    None => return Ok(CopyAnswer::EMPTY),
                    Some(damage) => format!("{} ({error})", damage.reason()),
                }
            }
            Err(error) => error.to_string(),
        };
        Ok(CopyAnswer::Damaged { detail })
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

    /// Writes what other copies hold. From address 0 on the file is made anew, aside of what has its name: that
    /// stays as it is until the new one is whole and durable, since the one who writes, or whoever is read, may fail before.
    fn complete(
        &self,
        making: &Making,
        group_bytes: u64,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let copy = &making.copy;
        let end = address.saturating_add(bytes.len() as u64);
        if end > group_bytes {
            return Err(Refusal::Invalid(format!(
                "{copy} has {group_bytes} bytes, none at {end}"
            )));
        }
        let path = self.path(copy);
        let made = self.made(copy);
        if let Some(Making { by, .. }) = made.filter(|made| made.by > making.by) {
            return Err(Refusal::Sealed { by });
        }
        let file = if address == 0 {
            let mut all = self.making.lock();
            let made = aside::begin(&*self.io, &path, group_bytes).map_err(failed)?;
            all.insert(made_key(copy), *making);
            made
        } else if made.is_some_and(|made| made.by == making.by) {
            let made = aside::path(&path);
            let file = self.io.open(&made, OpenHow::ReadWrite, false);
            file.map_err(unknown)?
        } else {
            let file = self.open(copy).map_err(unknown)?;
            self.lower_mark(&*file, group_bytes, address)
                .map_err(failed)?;
            file
        };
        file.write_vectored_at(&[IoSlice::new(bytes)], address)
            .map_err(failed)
    }

    /// Takes back what the mark says of the bytes from `address` on, before other bytes replace them.
    fn lower_mark(&self, file: &dyn File, group_bytes: u64, address: u64) -> io::Result<()> {
        let Some(before) = read_mark(file, group_bytes)?.filter(|mark| mark.synced > address)
        else {
            return Ok(());
        };
        // Where batches begin is not known here, so nothing below counts either.
        let lowered = DurableMark {
            incarnation: self.incarnation,
            ..before.then_lowered()
        };
        write_mark(file, &lowered, group_bytes)?;
        file.sync_data().inspect_err(|_| {
            // Only the page cache may have it: whoever tries again must not take it for lowered.
            let again = DurableMark {
                sequence: before.sequence + 2,
                ..before
            };
            let _ = write_mark(file, &again, group_bytes);
        })
    }

    fn scan_for_flush(&self, file: &FileRef, copy: &CopyId) -> Result<Scanned, Refusal> {
        self.scan(file, copy).map_err(|error| match error {
            ScanError::Io(error) => failed(error),
            _ => Refusal::Short { length: 0 },
        })
    }

    /// Brings the file to the device, or the one that was made in its place, which takes its name then.
    fn flush(&self, copy: &CopyId, length: u64) -> Result<Place, Refusal> {
        let path = self.path(copy);
        if self.made(copy).is_none() {
            return self.flush_at(copy, &path, length);
        }
        let made = aside::path(&path);
        match self.flush_at(copy, &made, length) {
            Ok(end) => {
                let put = aside::put(&*self.io, &path);
                // From here on it has its name, whether or not that is durable: asked again, that is made so.
                if !self.io.exists(&made) {
                    self.making.lock().remove(&made_key(copy));
                }
                put.map(|()| end).map_err(failed)
            }
            // Whoever made it did not get to its end, and asks for what was there before.
            Err(Refusal::Short { length: short }) => {
                let before = self.flush_at(copy, &path, length);
                let before = before.map_err(|refusal| match refusal {
                    Refusal::Short { .. } | Refusal::Unknown => Refusal::Short { length: short },
                    // A disk that does not answer now is no proof that nothing is there.
                    refusal => refusal,
                })?;
                self.stop_making(copy).map_err(failed)?;
                Ok(before)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Brings the file at `path` to the device. What no sync has proven is written once more before: if an earlier sync
    /// failed, the page cache shows bytes that the device does not have and that no later sync writes. Written
    /// anew and then checked, all of it is dirty and whole when the sync begins.
    fn flush_at(&self, copy: &CopyId, path: &Path, length: u64) -> Result<Place, Refusal> {
        let file = self.io.open(path, OpenHow::ReadWrite, false);
        let file = file.map_err(unknown)?;
        let scanned = self.scan_for_flush(&file, copy)?;
        let end = scanned.end;
        if end.address < length {
            return Err(Refusal::Short {
                length: end.address,
            });
        }
        let header = &scanned.header;
        let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
        let before = scanned.mark.unwrap_or_default();
        if before.synced < end.address {
            rewrite(&*file, before.synced, end.address).map_err(failed)?;
            let again = self.scan_for_flush(&file, copy)?.end;
            if again != end {
                return Err(Refusal::Short {
                    length: again.address.min(end.address),
                });
            }
        }
        let mark = before.then(end, end, self.incarnation);
        let store = || -> io::Result<()> {
            // The mark speaks of bytes and of a name that are on disk, so it comes after them.
            file.sync_data()?;
            sync_names(&*self.io, path)?;
            write_mark(&*file, &mark, group_bytes)?;
            file.sync_data()
        };
        store().map_err(failed)?;
        Ok(end)
    }
}

impl OwnReplicas for OwnFiles {
    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn process(&self) -> Incarnation {
        self.process
    }

    fn disk(&self) -> Result<Incarnation, String> {
        match volatile_file_system(&self.root) {
            Some(kind) => Err(format!(
                "its own files are in {}, which is {kind}: a loss of power empties it",
                self.root.display()
            )),
            None => Ok(Incarnation::of_disk(self.incarnation.store_id)),
        }
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

/// Makes a group file's name durable, and those of the directories above it that may be new: streamlet's, stream's
/// and the one of all streams.
///
/// # Errors
/// The store's.
pub fn sync_names(io: &dyn Io, path: &Path) -> io::Result<()> {
    let mut dirs = path.ancestors().skip(1).take(3);
    dirs.try_for_each(|dir| io.sync_dir(dir))
}

/// True if a header is that of the copy's group, whatever its epoch.
pub(crate) fn is_of(header: &SegmentHeader, copy: &CopyId) -> bool {
    (header.stream, header.streamlet) == (copy.streamlet.stream, copy.streamlet.streamlet)
        && (header.group, header.generation) == (copy.group, copy.generation)
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
