//! Looking what there is for a fetch, now or when there is some.

use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_log_segments::read::ReadError;
use kera_protocol::batch::Compression;
use kera_protocol::ids::Ordinal;
use kera_streamlet::{Found, LaneReadError, LaneReadSpec};

use super::request::FetchRequest;
use super::session::{Entry, Session, Sessions, Target};
use crate::errors;

/// Partitions whose bytes come from the disk for one reply, and most bytes of them together.
const DISK_PARTITIONS: usize = 16;
const DISK_BYTES: usize = 4 << 20;

/// The first version whose clients know zstd.
const ZSTD: i16 = 10;

/// A request that is being answered.
pub(crate) struct Fetch {
    /// Of its request.
    pub(crate) correlation: i32,
    pub(crate) version: i16,
    /// Answered by then, with nothing if need be.
    pub(crate) deadline: Instant,
    pub(crate) session: Session,
    min_bytes: usize,
    max_bytes: usize,
    /// Wakers are set.
    parked: bool,
    /// What came from the disk for this request, by entry.
    from_disk: Vec<(usize, Result<Found, LaneReadError>)>,
}

/// What there is of one partition.
pub(crate) struct Part {
    /// Index of its entry.
    pub(crate) entry: usize,
    pub(crate) code: i16,
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
    pub(crate) bufs: Vec<Bytes>,
    pub(crate) bytes: usize,
}

/// What to do with a fetch now.
pub(crate) enum Progress {
    /// Answer with this.
    Reply(Vec<Part>),
    /// Nothing to say yet; wakers are set.
    Wait,
    /// These reads must be made where waiting for the disk is allowed, and handed to
    /// [`Fetch::take_from_disk`].
    Disk(Vec<DiskRead>),
}

/// A read that waits for the disk.
pub(crate) struct DiskRead {
    entry: usize,
    target: Target,
    spec: LaneReadSpec,
}

impl Part {
    fn failed(entry: usize, code: i16) -> Self {
        Self {
            entry,
            code,
            high_watermark: -1,
            log_start: -1,
            bufs: Vec::new(),
            bytes: 0,
        }
    }

    fn without_records(entry: &mut Entry, index: usize) -> Self {
        let Some(target) = &entry.target else {
            return Self::failed(index, ResponseError::UnknownTopicOrPartition.code());
        };
        let (log_start, head) = target
            .streamlet
            .lane_bounds(target.lane)
            .unwrap_or_default();
        entry.seen = head;
        Self {
            entry: index,
            code: errors::NONE,
            high_watermark: head as i64,
            log_start: log_start as i64,
            bufs: Vec::new(),
            bytes: 0,
        }
    }
}

/// Looks what there is of one partition; `Err` is a read that must wait for the disk.
fn look(
    entry: &mut Entry,
    index: usize,
    shared: &Shared,
    version: i16,
    at_most: usize,
    read: Option<Result<Found, LaneReadError>>,
) -> Result<Part, DiskRead> {
    let from = entry.from();
    let wanted_epoch = entry.wanted.leader_epoch;
    let target = match entry.locate(shared) {
        Ok(target) => target.clone(),
        Err(code) => return Ok(Part::failed(index, code)),
    };
    if let Some(code) = errors::epoch_code(wanted_epoch, &target.streamlet) {
        return Ok(Part::failed(index, code));
    }
    let spec = LaneReadSpec {
        lane: target.lane,
        from,
        end_ordinal: Ordinal::MAX,
        max_bytes: at_most,
        cached_only: true,
    };
    let found = match read {
        Some(read) => read,
        None if at_most == 0 => return Ok(Part::without_records(entry, index)),
        None => target.streamlet.read(spec),
    };
    match found {
        Ok(found) => {
            entry.seen = found.head;
            if found.bytes > 0 {
                entry.next = found.next;
            }
            if version < ZSTD && has_zstd(&found.bufs) {
                let code = ResponseError::UnsupportedCompressionType.code();
                return Ok(Part::failed(index, code));
            }
            Ok(Part {
                entry: index,
                code: errors::NONE,
                high_watermark: found.head as i64,
                log_start: found.log_start as i64,
                bufs: found.bufs,
                bytes: found.bytes,
            })
        }
        Err(LaneReadError::Group(ReadError::WouldBlock)) => Err(DiskRead {
            entry: index,
            target,
            spec: LaneReadSpec {
                cached_only: false,
                ..spec
            },
        }),
        Err(error) => Ok(failed(entry, index, &target, &error)),
    }
}

/// What a read that failed means to the client.
fn failed(entry: &mut Entry, index: usize, target: &Target, error: &LaneReadError) -> Part {
    let code = match error {
        LaneReadError::OutOfRange { ordinal, head, .. } => {
            // Appended but not yet durable: there is nothing to read yet.
            let end = target.streamlet.log_end(target.lane).unwrap_or(*head);
            if ordinal > head && *ordinal <= end {
                return Part::without_records(entry, index);
            }
            ResponseError::OffsetOutOfRange
        }
        LaneReadError::UnknownLane { .. } | LaneReadError::Deleted => {
            ResponseError::UnknownTopicOrPartition
        }
        LaneReadError::Group(ReadError::Damaged { .. }) => ResponseError::CorruptMessage,
        LaneReadError::Group(_) => ResponseError::KafkaStorageError,
    };
    if matches!(error, LaneReadError::Group(_)) {
        tracing::error!(stream = %target.stream, streamlet = target.streamlet.id().0, lane = target.lane.0, %error, "a read failed");
    }
    Part::failed(index, code.code())
}

fn has_zstd(bufs: &[Bytes]) -> bool {
    let bytes = bufs.concat();
    kera_protocol::batch::batches(&bytes)
        .flatten()
        .any(|(header, _)| header.compression() == Ok(Compression::Zstd))
}

impl DiskRead {
    /// Reads. Waits for the disk.
    pub(crate) fn run(self) -> (usize, Result<Found, LaneReadError>) {
        (self.entry, self.target.streamlet.read(self.spec))
    }
}

impl Fetch {
    /// Takes a request.
    ///
    /// # Errors
    /// Kafka's number for the whole request.
    pub(crate) fn new(
        mut request: FetchRequest,
        version: i16,
        correlation: i32,
        sessions: &mut Sessions,
        shared: &Shared,
    ) -> Result<Self, i16> {
        let mut session = sessions.take(&mut request)?;
        for entry in &mut session.entries {
            if entry.next.at.is_none()
                && let Ok(target) = entry.locate(shared)
                && let Some(hint) = sessions.hint(target.stream, entry.wanted.partition)
            {
                entry.next = hint;
            }
        }
        Ok(Self {
            correlation,
            version,
            deadline: Instant::now() + request.max_wait,
            session,
            min_bytes: request.min_bytes,
            max_bytes: request.max_bytes,
            parked: false,
            from_disk: Vec::new(),
        })
    }

    /// Takes what was read from the disk.
    pub(crate) fn take_from_disk(&mut self, read: Vec<(usize, Result<Found, LaneReadError>)>) {
        self.from_disk = read;
    }

    /// Tries to answer, with about `room` bytes.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        waker: &Waker,
        now: Instant,
        room: usize,
    ) -> Progress {
        loop {
            let (parts, disk) = self.look_at_all(shared, room);
            let bytes: usize = parts.iter().map(|p| p.bytes).sum();
            if !disk.is_empty() && self.from_disk.is_empty() {
                return Progress::Disk(disk);
            }
            let failed = parts.iter().any(|p| p.code != errors::NONE);
            if bytes >= self.min_bytes || failed || now >= self.deadline {
                return self.reply(parts);
            }
            if self.park(waker) {
                return Progress::Wait;
            }
        }
    }

    /// Reads of each partition what fits, beginning where the last round ended.
    fn look_at_all(&mut self, shared: &Shared, room: usize) -> (Vec<Part>, Vec<DiskRead>) {
        let count = self.session.entries.len();
        let begin = self.session.begin;
        let mut parts = Vec::with_capacity(count);
        let mut disk: Vec<DiskRead> = Vec::new();
        let mut left = self.max_bytes.min(room);
        let mut from_disk = std::mem::take(&mut self.from_disk);
        let retried = !from_disk.is_empty();
        for index in (begin..count).chain(0..begin) {
            let entry = &mut self.session.entries[index];
            let read = from_disk.iter().position(|(at, _)| *at == index);
            let read = read.map(|at| from_disk.swap_remove(at).1);
            let at_most = entry.wanted.max_bytes.min(left);
            match look(entry, index, shared, self.version, at_most, read) {
                Ok(part) => {
                    left = left.saturating_sub(part.bytes);
                    parts.push(part);
                }
                // Served in one of the next rounds.
                Err(_) if retried || disk.len() >= DISK_PARTITIONS => {
                    parts.push(Part::without_records(entry, index));
                }
                Err(mut read) => {
                    read.spec.max_bytes = read.spec.max_bytes.min(DISK_BYTES / DISK_PARTITIONS);
                    disk.push(read);
                }
            }
        }
        if let [only] = &mut disk[..] {
            only.spec.max_bytes = self.max_bytes.min(room).min(DISK_BYTES);
        }
        (parts, disk)
    }

    fn reply(&mut self, mut parts: Vec<Part>) -> Progress {
        let session = &mut self.session;
        if let Some(last) = parts.iter().rfind(|p| p.bytes > 0) {
            session.begin = (last.entry + 1) % session.entries.len();
        }
        if session.incremental {
            parts.retain(|part| {
                let told = session.entries[part.entry].told;
                part.bytes > 0
                    || part.code != errors::NONE
                    || told != (part.high_watermark, part.log_start)
            });
        }
        for part in &parts {
            session.entries[part.entry].told = if part.code == errors::NONE {
                (part.high_watermark, part.log_start)
            } else {
                (-1, -1)
            };
        }
        Progress::Reply(parts)
    }

    /// Has `waker` woken when any partition's head moves. False: one has moved already.
    fn park(&mut self, waker: &Waker) -> bool {
        self.parked = true;
        self.session.entries.iter().all(|entry| {
            let Some(target) = &entry.target else {
                return true;
            };
            target.head.wait(entry.seen + 1, waker)
        })
    }

    /// Forgets a waker given to [`Self::step`]: idle lanes must not collect those of requests that
    /// are answered.
    pub(crate) fn forget(&mut self, waker: &Waker) {
        if !std::mem::take(&mut self.parked) {
            return;
        }
        for entry in &self.session.entries {
            if let Some(target) = &entry.target {
                target.head.forget(waker);
            }
        }
    }
}
