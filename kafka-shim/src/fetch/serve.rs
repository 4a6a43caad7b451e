//! Looking what there is for a fetch, now or when there is some.

use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_broker::copy_reads::{self, Asked, Given, Nearby, Refused};
use kera_broker::data::memory_budget::{MOST_IN_A_CROWD, TURN_WITHIN};
use kera_broker::data::{DataPlane, traced};
use kera_log_segments::read::ReadError;
use kera_protocol::batch::Compression;
use kera_protocol::ids::Ordinal;
use kera_streamlet::{Committed, End, LaneReadError, LaneReadSpec};

use super::near::{self, Elsewhere, Near};
use super::request::FetchRequest;
use super::session::{Entry, Session, Sessions, Target};
use crate::topic::TopicRef;
use crate::{errors, topic};

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
    /// When it was received; `None` once it has waited for records.
    pub(crate) at_once_since: Option<Instant>,
    pub(crate) session: Session,
    received: Instant,
    min_bytes: usize,
    max_bytes: usize,
    /// Wakers are set.
    parked: bool,
    /// What came from the disk for this request, by entry.
    from_disk: Vec<(usize, FromDisk)>,
    near: Near,
    /// Of the rules that said which topics the client may read.
    rules: u64,
}

/// What there is of one partition.
pub(crate) struct Part {
    /// Index of its entry.
    pub(crate) entry: usize,
    pub(crate) code: i16,
    pub(crate) high_watermark: i64,
    /// The last stable offset.
    pub(crate) stable: i64,
    /// Aborted transactions with batches among those given.
    pub(crate) aborted: Vec<End>,
    pub(crate) log_start: i64,
    pub(crate) bufs: Vec<Bytes>,
    pub(crate) bytes: usize,
    /// Whom the client is to ask from now on.
    pub(crate) elsewhere: Option<Nearby>,
    /// There is no use in waiting for more.
    pub(crate) at_once: bool,
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
    what: DiskWork,
}

enum DiskWork {
    /// A lane, and whether only what is committed is to be given.
    Lane(Target, LaneReadSpec, bool),
    Copy(Asked),
}

/// What came of it.
pub(crate) enum FromDisk {
    Lane(Result<Committed, LaneReadError>),
    Copy(Result<Given, Refused>),
}

impl Part {
    pub(crate) fn failed(entry: usize, code: i16) -> Self {
        Self {
            entry,
            code,
            high_watermark: -1,
            stable: -1,
            aborted: Vec::new(),
            log_start: -1,
            bufs: Vec::new(),
            bytes: 0,
            elsewhere: None,
            at_once: true,
        }
    }

    /// Where the partition begins and ends; of one that is led elsewhere what the client knows already.
    pub(crate) fn without_records(entry: &mut Entry, index: usize) -> Self {
        let (high_watermark, log_start, stable) = match &entry.target {
            Some(target) => {
                let bounds = target.streamlet.lane_bounds(target.lane);
                let (log_start, head) = bounds.unwrap_or_default();
                entry.seen = head;
                let stable = target.streamlet.stable(target.lane);
                let stable = stable.unwrap_or(log_start).min(head);
                (head as i64, log_start as i64, stable as i64)
            }
            None => (entry.told.0, entry.told.1, entry.told.0),
        };
        Self {
            entry: index,
            code: errors::NONE,
            high_watermark,
            stable,
            aborted: Vec::new(),
            log_start,
            bufs: Vec::new(),
            bytes: 0,
            elsewhere: None,
            at_once: false,
        }
    }

    /// Sends the client to another broker, at once.
    pub(crate) fn to_elsewhere(entry: &mut Entry, index: usize, broker: Nearby) -> Self {
        Self {
            elsewhere: Some(broker),
            at_once: true,
            ..Self::without_records(entry, index)
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
    read: Option<FromDisk>,
    near: &mut Near,
) -> Result<Part, DiskRead> {
    // Also of what was read from the disk while the right to it went.
    if entry.is_denied {
        return Ok(Part::failed(
            index,
            ResponseError::TopicAuthorizationFailed.code(),
        ));
    }
    let read = match read {
        Some(FromDisk::Copy(read)) => return Ok(near::given(entry, index, shared, read)),
        Some(FromDisk::Lane(read)) => Some(read),
        None => None,
    };
    let from = entry.from();
    let wanted_epoch = entry.wanted.leader_epoch;
    let target = match entry.locate(shared) {
        Ok(target) => target.clone(),
        Err(code) if near.is_here() && code == ResponseError::NotLeaderOrFollower.code() => {
            return near::look(entry, index, shared, at_most);
        }
        Err(code) => return Ok(Part::failed(index, code)),
    };
    if let Some(code) = errors::epoch_code(wanted_epoch, &target.streamlet) {
        return Ok(Part::failed(index, code));
    }
    if read.is_none()
        && let Some(nearby) = near.better(entry, &target, shared)
    {
        return Ok(Part::to_elsewhere(entry, index, nearby));
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
        None => read_lane(&target, spec, entry.committed),
    };
    match found {
        // A broker that does not know whether it still leads must not say that there is nothing more.
        Ok(read) if read.found.bytes == 0 && !topic::is_led_here(shared, &target.streamlet) => {
            let code = ResponseError::NotLeaderOrFollower.code();
            Ok(Part::failed(index, code))
        }
        Ok(read) => {
            let found = read.found;
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
                stable: read.stable.min(found.head) as i64,
                aborted: read.aborted,
                log_start: found.log_start as i64,
                bufs: found.bufs,
                bytes: found.bytes,
                elsewhere: None,
                at_once: false,
            })
        }
        Err(LaneReadError::Group(ReadError::WouldBlock)) => {
            let spec = LaneReadSpec {
                cached_only: false,
                ..spec
            };
            Err(DiskRead {
                entry: index,
                what: DiskWork::Lane(target, spec, entry.committed),
            })
        }
        Err(error) => Ok(failed(shared, entry, index, &target, &error)),
    }
}

/// Reads a lane: what is durable, or what is committed.
fn read_lane(
    target: &Target,
    spec: LaneReadSpec,
    committed: bool,
) -> Result<Committed, LaneReadError> {
    if committed {
        return target.streamlet.read_committed(spec);
    }
    let stable = target.streamlet.stable(target.lane);
    let found = target.streamlet.read(spec)?;
    Ok(Committed {
        stable: stable.unwrap_or(found.log_start),
        found,
        aborted: Vec::new(),
    })
}

/// What a read that failed means to the client.
fn failed(
    shared: &Shared,
    entry: &mut Entry,
    index: usize,
    target: &Target,
    error: &LaneReadError,
) -> Part {
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
        LaneReadError::NotRecovered | LaneReadError::Awaited { .. } | LaneReadError::NotOwner => {
            ResponseError::NotLeaderOrFollower
        }
        LaneReadError::Group(ReadError::Damaged { .. }) => ResponseError::CorruptMessage,
        // Clients ask for ever, without a word, after an error of the storage.
        LaneReadError::Group(error) if error.is_lasting() && !target.streamlet.has_copies() => {
            ResponseError::CorruptMessage
        }
        LaneReadError::Unreadable { .. } | LaneReadError::Group(_) => {
            ResponseError::KafkaStorageError
        }
    };
    // Clients come back at once.
    if matches!(error, LaneReadError::Group(_))
        && let Some(others) = shared.failed_reads.lock().due(Instant::now())
    {
        tracing::error!(stream = %target.stream, streamlet = target.streamlet.id().0, lane = target.lane.0, %error, others, "a read failed, and so did others lately");
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
    /// Of a copy kept here, for the entry of an index.
    pub(crate) fn of_copy(entry: usize, asked: Asked) -> Self {
        Self {
            entry,
            what: DiskWork::Copy(asked),
        }
    }

    /// Reads. Waits for the disk, and where it is a copy's for the metadata store.
    pub(crate) fn run(self, shared: &Shared) -> (usize, FromDisk) {
        let read = match self.what {
            DiskWork::Lane(target, spec, committed) => {
                FromDisk::Lane(read_lane(&target, spec, committed))
            }
            DiskWork::Copy(asked) => FromDisk::Copy(copy_reads::read(shared, &asked)),
        };
        (self.entry, read)
    }

    /// Most bytes that it brings, unless the first batch is larger.
    pub(crate) fn bytes(&self) -> usize {
        match &self.what {
            DiskWork::Lane(_, spec, _) => spec.max_bytes,
            DiskWork::Copy(asked) => asked.max_bytes,
        }
    }

    /// It is the only one of its request, which has room for so many bytes.
    fn only(&mut self, bytes: usize) {
        match &mut self.what {
            DiskWork::Lane(_, spec, _) => spec.max_bytes = bytes,
            DiskWork::Copy(_) => self.limit(bytes),
        }
    }

    /// It is one of several.
    fn limit(&mut self, bytes: usize) {
        match &mut self.what {
            DiskWork::Lane(_, spec, _) => spec.max_bytes = spec.max_bytes.min(bytes),
            DiskWork::Copy(asked) => asked.max_bytes = asked.max_bytes.min(bytes),
        }
    }
}

impl Fetch {
    /// Counts what is sent with the streamlets that it was read from.
    pub(crate) fn count(&self, data: &DataPlane, parts: &[Part]) {
        for part in parts.iter().filter(|part| part.bytes > 0) {
            if let Some(target) = &self.session.entries[part.entry].target {
                target.streamlet.traffic().note_read(part.bytes);
                traced::note_read(data, &target.streamlet, self.at_once_since, &part.bufs);
            }
        }
    }

    /// Takes a request, for partitions of topics but those that the client may not read.
    ///
    /// # Errors
    /// Kafka's number for the whole request.
    pub(crate) fn new(
        mut request: FetchRequest,
        version: i16,
        correlation: i32,
        sessions: &mut Sessions,
        shared: &Shared,
        is_denied: impl Fn(&TopicRef) -> bool,
    ) -> Result<Self, i16> {
        let mut session = sessions.take(&mut request)?;
        // Should they change while they are asked, they are asked again.
        let rules = shared.access.revision();
        session.note_denied(is_denied);
        let near = Near::of(request.rack.as_deref(), shared, &mut sessions.sent);
        for entry in &mut session.entries {
            entry.committed = request.committed;
            if entry.next.at.is_some() || entry.is_denied {
                continue;
            }
            let stream = match entry.locate(shared) {
                Ok(target) => Some(target.stream),
                Err(_) if near.is_here() => {
                    let place = Elsewhere::of(entry, shared).ok();
                    place.map(|place| place.stream)
                }
                Err(_) => None,
            };
            if let Some(stream) = stream
                && let Some(hint) = sessions.hint(stream, entry.wanted.partition)
            {
                entry.next = hint;
            }
        }
        let wait = match session.may_wait() {
            true => request.max_wait,
            false => Duration::ZERO,
        };
        let received = Instant::now();
        Ok(Self {
            correlation,
            version,
            deadline: received + wait,
            at_once_since: Some(received),
            session,
            received,
            min_bytes: request.min_bytes,
            max_bytes: request.max_bytes,
            parked: false,
            from_disk: Vec::new(),
            near,
            rules,
        })
    }

    /// Whether rules have changed since they said what the client may read; true once for each change.
    pub(crate) fn is_outdated(&mut self, shared: &Shared) -> bool {
        let rules = shared.access.revision();
        std::mem::replace(&mut self.rules, rules) != rules
    }

    /// By when it is answered; one that waits for its turn to be sent records waits for that as well.
    pub(crate) fn due(&self, waits_for_turn: bool) -> Instant {
        match waits_for_turn {
            true => self.deadline.max(self.received + TURN_WITHIN),
            false => self.deadline,
        }
    }

    /// True if something was read from the disk for it.
    pub(crate) fn has_read(&self) -> bool {
        !self.from_disk.is_empty()
    }

    /// Takes what was read from the disk.
    pub(crate) fn take_from_disk(&mut self, read: Vec<(usize, FromDisk)>) {
        self.from_disk = read;
    }

    /// Gives back what is kept until the next request.
    pub(crate) fn end(self, sessions: &mut Sessions) {
        if let Some(sent) = self.near.into_sent() {
            sessions.sent = sent;
        }
        sessions.put_back(self.session);
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
            let at_once = parts.iter().any(|p| p.at_once);
            if bytes >= self.min_bytes.min(room) || at_once || now >= self.deadline {
                return self.reply(parts);
            }
            if self.park(waker) {
                self.at_once_since = None;
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
        // Each brings a batch at least.
        let most_reads = match room <= MOST_IN_A_CROWD {
            true => 1,
            false => DISK_PARTITIONS,
        };
        let mut left = self.max_bytes.min(room);
        let mut from_disk = std::mem::take(&mut self.from_disk);
        let retried = !from_disk.is_empty();
        for index in (begin..count).chain(0..begin) {
            let entry = &mut self.session.entries[index];
            let read = from_disk.iter().position(|(at, _)| *at == index);
            let read = read.map(|at| from_disk.swap_remove(at).1);
            let at_most = entry.wanted.max_bytes.min(left);
            let near = &mut self.near;
            match look(entry, index, shared, self.version, at_most, read, near) {
                Ok(part) => {
                    left = left.saturating_sub(part.bytes);
                    parts.push(part);
                }
                // Served in one of the next rounds.
                Err(_) if retried || disk.len() >= most_reads => {
                    parts.push(Part::without_records(entry, index));
                }
                Err(read) => disk.push(read),
            }
        }
        match &mut disk[..] {
            [only] => only.only(self.max_bytes.min(room).min(DISK_BYTES)),
            many => {
                for read in many {
                    read.limit(DISK_BYTES / DISK_PARTITIONS);
                }
            }
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
                    || part.elsewhere.is_some()
                    || told != (part.high_watermark, part.log_start)
            });
        }
        for part in &parts {
            self.near.answered(&session.entries[part.entry], part);
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
