//! Read frames and subscriptions: slices of the broker's memory, pulled or pushed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_log_segments::head::LaneHead;
use kera_log_segments::read::ReadError;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{GroupId, LaneId, Ordinal};
use kera_protocol::v1;
use kera_streamlet::transactions::Committed;
use kera_streamlet::{Found, GroupView, LaneReadError, LaneReadSpec, Located, Streamlet};

use super::DataPlane;
use super::directory::Directory;
use super::memory_budget::TURN_WITHIN;
use crate::data::append::find_streamlet;
use crate::fault_rules::Rule;

/// Most bytes of one reply or push, whatever is asked for.
const MAX_READ_BYTES: usize = 8 << 20;
/// Longest wait of a long poll.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// So many looks in a row find nothing that counts before the reader hears how far it is. Behind GBs of aborted records
/// clients give up earlier, and would ask again from where they were.
const MOST_PASSED_OVER: u32 = 8;
/// Subscriptions of one connection.
pub const MAX_SUBSCRIPTIONS: usize = 16_384;

/// What a read or a subscription is after.
#[derive(Clone)]
pub struct Target {
    /// The streamlet.
    pub streamlet: Arc<Streamlet>,
    /// The lane.
    pub lane: LaneId,
    /// Its head, to wait at.
    pub head: Arc<LaneHead>,
    /// Where to read on.
    pub at: Located,
    end_ordinal: Ordinal,
    generation: Option<u32>,
    stream: Arc<crate::data::catalog::Stream>,
    directory: Arc<dyn Directory>,
    /// It waits at the head, which had brought this news when it was last looked at.
    parked: Option<u64>,
}

impl Target {
    fn new(
        data: &DataPlane,
        stream: &[u8],
        streamlet: u32,
        lane: u32,
        cursor: Option<&v1::Cursor>,
        end_ordinal: Ordinal,
        generation: Option<u32>,
    ) -> Result<Self, WireError> {
        let streamlet_found = find_streamlet(data, stream, streamlet)?;
        let gone = || WireError::new(ErrorCode::UnknownStream, "the stream was deleted");
        let entry = data
            .catalog
            .get(streamlet_found.stream())
            .ok_or_else(gone)?;
        if !streamlet_found.is_recovered() {
            let error = streamlet_found.not_recovered();
            let text = format!("stream {}: {error}", entry.name());
            return Err(WireError::new(code_of(&error, true), text));
        }
        let head = streamlet_found.head(LaneId(lane)).ok_or_else(|| {
            let lanes = streamlet_found.settings().lanes;
            WireError::new(
                ErrorCode::UnknownLane,
                format!(
                    "stream {} has {lanes} lanes, there is no {lane}",
                    entry.name()
                ),
            )
        })?;
        let cursor = cursor.cloned().unwrap_or_default();
        Ok(Self {
            at: located(&cursor, streamlet_found.settings().segment_size),
            streamlet: streamlet_found,
            lane: LaneId(lane),
            head,
            end_ordinal: if end_ordinal == 0 {
                u64::MAX
            } else {
                end_ordinal
            },
            generation,
            stream: entry,
            directory: data.directory.clone(),
            parked: None,
        })
    }

    /// True while it waits at its head and nothing has come of that: there is nothing new to read.
    /// Much cheaper than to look, where a connection waits at thousands.
    fn is_parked(&self) -> bool {
        self.parked == Some(self.head.news())
    }

    /// Waits for ordinal `until`; false if it is there already. `news` is the head's before it was
    /// last looked at.
    fn park(&mut self, news: u64, until: Ordinal, waker: &std::task::Waker) -> bool {
        let waits = self.head.wait(until, waker);
        self.parked = waits.then_some(news);
        waits
    }

    /// Why there is no use in waiting at the head: with its lease this broker may have lost the
    /// streamlet, and news would come to another. What lies below the head is right in any case.
    fn refuses_to_wait(&self) -> Option<WireError> {
        (!self.directory.is_current()).then(|| {
            let text = format!(
                "stream {} streamlet {}: this broker has lost touch with the metadata store and cannot tell who owns it; look its owner up again",
                self.stream.name(),
                self.streamlet.id()
            );
            WireError::new(ErrorCode::NotOwner, text)
        })
    }

    /// Has it looked at again, whether or not there is news.
    pub fn unpark(&mut self) {
        self.parked = None;
    }

    /// The exclusive end: what was asked for, or the lane generation's boundary if that is nearer. Nothing of the next
    /// generation is appended before this broker knows the boundary: all below a head that was read before is of this one
    /// or lies behind an end that is seen here.
    fn end(&self) -> Ordinal {
        let boundary = self.generation.and_then(|generation| {
            self.stream
                .generation_end(self.streamlet.id(), self.lane, generation)
        });
        self.end_ordinal.min(boundary.unwrap_or(u64::MAX))
    }

    /// True once everything asked for was read.
    pub fn is_finished(&self) -> bool {
        let end = self.end();
        end != u64::MAX && self.at.ordinal >= end
    }

    /// Reads on, what counts: nothing of open transactions, and neither aborted batches nor markers. `Err` with
    /// [`ReadError::WouldBlock`] inside means: from a thread that may wait.
    fn read(&self, max_bytes: usize, cached_only: bool) -> Result<Found, LaneReadError> {
        // Read first: what is appended after that may lie behind a boundary that was not known yet.
        let known = match self.generation {
            Some(_) => self.head.ordinal(),
            None => Ordinal::MAX,
        };
        let spec = LaneReadSpec {
            lane: self.lane,
            from: self.at,
            end_ordinal: self.end().min(known),
            max_bytes: max_bytes.clamp(1, MAX_READ_BYTES),
            cached_only,
        };
        let mut read = match Rule::OpenTransactionsShown.is_broken() {
            true => Committed {
                found: self.streamlet.read(spec)?,
                stable: Ordinal::MAX,
                aborted: Vec::new(),
            },
            false => self.streamlet.read_committed(spec)?,
        };
        // A reader that waits for more waits from there.
        read.found.head = read.found.head.min(known);
        if Rule::AbortedShown.is_broken() {
            read.aborted.clear();
        }
        // Another batch than the one that had it stands for where the reader is.
        let stands_in = read.found.first_ordinal < self.at.ordinal;
        if Rule::CleanedPositionSkipped.is_broken() && stands_in && self.is_compacted() {
            read.found.bufs.clear();
            (read.found.bytes, read.found.batches) = (0, 0);
        }
        Ok(read.only_committed())
    }

    fn holders(&self, group: GroupId) -> Vec<u32> {
        self.directory.holders(self.streamlet.key().group(group))
    }

    /// A group as discovery shows it, with who is recorded to hold a copy of it.
    fn group_info(&self, group: &GroupView) -> v1::GroupInfo {
        let mut info = group_info(self.lane, group);
        if group.closed {
            info.holders = self.holders(group.group);
        }
        info
    }

    fn is_compacted(&self) -> bool {
        self.stream.record.load().config.cleanup.compacts()
    }

    /// True if a file that is gone is fetched anew.
    fn is_replicated(&self) -> bool {
        self.stream.record.load().config.is_replicated()
    }

    /// Where a reader may go on that passes by what cannot be read: behind the damaged batch if its header still leads on,
    /// else behind its group.
    fn behind_damage(&self) -> Option<v1::Cursor> {
        // Before the group there may be a gap, of another that is gone.
        let at = self.streamlet.skip_gap(self.lane, self.at.ordinal);
        let behind_gap = Located {
            ordinal: at,
            at: self.at.at,
        };
        let groups = self.streamlet.closed_from(self.lane, behind_gap, 1);
        let damaged = groups.first()?;
        let held = damaged.first_ordinal..damaged.end_ordinal;
        let next = self.streamlet.behind_batch(self.lane, damaged.group, at);
        let next = next.unwrap_or(held.end);
        let ordinal = self.streamlet.skip_gap(self.lane, next);
        held.contains(&at).then_some(v1::Cursor {
            ordinal,
            ..v1::Cursor::default()
        })
    }

    /// The error as it goes to the client.
    fn error(&self, error: &LaneReadError) -> WireError {
        // Another broker may have gone on above where this one has stopped.
        if let LaneReadError::OutOfRange { head, .. } = error
            && self.at.ordinal > *head
            && let Some(lost) = self.refuses_to_wait()
        {
            return lost;
        }
        let code = code_of(error, self.is_replicated());
        let name = self.stream.name();
        if matches!(code, ErrorCode::Damaged | ErrorCode::StorageError) {
            tracing::error!(stream = name, streamlet = self.streamlet.id().0, lane = self.lane.0, %error, "a read failed");
        }
        let (streamlet, lane) = (self.streamlet.id(), self.lane);
        let more = match error {
            LaneReadError::Group(error) if error.is_lasting() && self.is_replicated() => format!(
                "; no replica has it whole that answers, and `kera stream recover {name}` tells which records are lost"
            ),
            _ => String::new(),
        };
        let text = format!("stream {name} streamlet {streamlet} lane {lane}: {error}{more}");
        WireError::new(code, text)
    }
}

/// The code of an error for clients. Of a replicated stream a file that is gone is fetched anew.
pub(crate) fn code_of(error: &LaneReadError, is_replicated: bool) -> ErrorCode {
    match error {
        LaneReadError::UnknownLane { .. } => ErrorCode::UnknownLane,
        LaneReadError::OutOfRange { .. } => ErrorCode::OutOfRange,
        LaneReadError::Deleted => ErrorCode::UnknownStream,
        LaneReadError::NotRecovered | LaneReadError::Awaited { .. } => ErrorCode::NotEnoughCopies,
        LaneReadError::Unreadable { .. } => ErrorCode::StorageError,
        LaneReadError::NotOwner => ErrorCode::NotOwner,
        LaneReadError::Group(ReadError::Damaged { .. }) => ErrorCode::Damaged,
        // No other broker has it either: to ask again brings nothing.
        LaneReadError::Group(error) if error.is_lasting() && !is_replicated => ErrorCode::Damaged,
        LaneReadError::Group(_) => ErrorCode::StorageError,
    }
}

/// A read request, waiting for data or answered.
pub struct Read {
    /// Of its frame.
    pub correlation: u32,
    /// What it is after.
    pub target: Target,
    /// Answered by then, with nothing if need be.
    pub deadline: Instant,
    /// When it was received; `None` once it has waited for records.
    pub at_once_since: Option<Instant>,
    received: Instant,
    max_bytes: usize,
    min_bytes: usize,
}

/// What to do with a read or a subscription now.
pub enum Step<T> {
    /// Answer it with this header and body.
    Reply(T, Vec<Bytes>),
    /// Nothing to say yet; the head's waker is set.
    Wait,
    /// Bytes are on disk only: call again from a thread that may wait.
    Blocking,
}

impl Read {
    /// Takes a request.
    ///
    /// # Errors
    /// What the client is to be told.
    pub fn new(
        data: &DataPlane,
        correlation: u32,
        request: &v1::ReadRequest,
    ) -> Result<Self, WireError> {
        let target = Target::new(
            data,
            &request.stream,
            request.streamlet,
            request.lane,
            request.cursor.as_ref(),
            request.end_ordinal,
            request.lane_generation,
        )?;
        let wait = Duration::from_millis(u64::from(request.max_wait_ms)).min(MAX_WAIT);
        let received = Instant::now();
        Ok(Self {
            correlation,
            target,
            deadline: received + wait,
            at_once_since: Some(received),
            received,
            max_bytes: request.max_bytes as usize,
            min_bytes: request.min_bytes as usize,
        })
    }

    /// True while there is nothing to answer yet; see [`Self::step`].
    pub fn is_waiting(&self, now: Instant) -> bool {
        now < self.deadline && self.target.is_parked()
    }

    /// True once it is answered although it is others' turn to be sent records; see [`Self::nothing`].
    pub fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline.max(self.received + TURN_WITHIN)
    }

    /// The answer that nothing is sent yet of what is there: the client asks again from where it is.
    pub fn nothing(&self) -> v1::ReadResponse {
        let target = &self.target;
        let bounds = target.streamlet.lane_bounds(target.lane);
        let (log_start, head) = bounds.unwrap_or((0, target.at.ordinal));
        v1::ReadResponse {
            next: Some(cursor(&target.at, target.streamlet.settings().segment_size)),
            head_ordinal: head,
            log_start,
            ..v1::ReadResponse::default()
        }
    }

    /// Tries to answer, with `at_most` bytes unless one batch is larger.
    pub fn step(
        &mut self,
        waker: &std::task::Waker,
        now: Instant,
        at_most: usize,
        may_block: bool,
    ) -> Step<v1::ReadResponse> {
        let mut passed_over = 0;
        loop {
            let news = self.target.head.news();
            let found = match self.target.read(self.max_bytes.min(at_most), !may_block) {
                Ok(found) => found,
                Err(LaneReadError::Group(ReadError::WouldBlock)) => return Step::Blocking,
                Err(error) => {
                    let mut refusal = read_refusal(&self.target.error(&error));
                    if refusal.error == ErrorCode::Damaged as u32 {
                        if !may_block {
                            // What follows is looked up on the disk.
                            return Step::Blocking;
                        }
                        refusal.next = self.target.behind_damage();
                    }
                    if let LaneReadError::OutOfRange {
                        log_start, head, ..
                    } = error
                    {
                        refusal.log_start = log_start;
                        refusal.head_ordinal = head;
                    }
                    return Step::Reply(refusal, Vec::new());
                }
            };
            let mut after = self.target.clone();
            after.at = found.next;
            let finished = after.is_finished();
            if found.bytes == 0 && !finished && found.next.ordinal > self.target.at.ordinal {
                // All of it was aborted.
                self.target.at = found.next;
                passed_over += 1;
                if passed_over < MOST_PASSED_OVER {
                    continue;
                }
            }
            let enough = found.bytes >= self.min_bytes.max(1)
                || finished
                || now >= self.deadline
                || passed_over == MOST_PASSED_OVER;
            // Less than asked for, but a whole segment's rest: waiting would not make it more.
            let mut answer = enough || (found.bytes > 0 && found.next.ordinal < found.head);
            if !answer && let Some(error) = self.target.refuses_to_wait() {
                if found.bytes == 0 {
                    return Step::Reply(read_refusal(&error), Vec::new());
                }
                answer = true;
            }
            if answer {
                let reply = v1::ReadResponse {
                    error: 0,
                    message: String::new(),
                    next: Some(cursor(
                        &found.next,
                        self.target.streamlet.settings().segment_size,
                    )),
                    head_ordinal: found.head,
                    log_start: found.log_start,
                    groups: found
                        .groups
                        .iter()
                        .map(|g| self.target.group_info(g))
                        .collect(),
                    finished,
                };
                return Step::Reply(reply, found.bufs);
            }
            if self.target.park(news, found.head + 1, waker) {
                self.at_once_since = None;
                return Step::Wait;
            }
        }
    }
}

/// A subscription: batches are pushed as long as credit lasts.
pub struct Subscription {
    /// The client's number for it.
    pub id: u32,
    /// What it is after.
    pub target: Target,
    credit: u64,
    max_bytes: usize,
    /// A read of it runs on a thread that may wait.
    pub blocked: bool,
}

impl Subscription {
    /// Takes a request.
    ///
    /// # Errors
    /// What the client is to be told.
    pub fn new(data: &DataPlane, request: &v1::SubscribeRequest) -> Result<Self, WireError> {
        let target = Target::new(
            data,
            &request.stream,
            request.streamlet,
            request.lane,
            request.cursor.as_ref(),
            request.end_ordinal,
            request.lane_generation,
        )?;
        let max_bytes = if request.max_bytes == 0 {
            256 << 10
        } else {
            request.max_bytes as usize
        };
        Ok(Self {
            id: request.subscription,
            target,
            credit: request.credit_bytes,
            max_bytes,
            blocked: false,
        })
    }

    /// Adds credit.
    pub fn add_credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// Credit left, in bytes.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Stands in for the subscription while it is read by a thread that may wait; gathers the
    /// credit that arrives meanwhile.
    pub fn placeholder(&self) -> Self {
        Self {
            id: self.id,
            target: self.target.clone(),
            credit: 0,
            max_bytes: self.max_bytes,
            blocked: true,
        }
    }

    /// True while there is credit left to push with.
    pub fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// True if there may be something to push, and credit to push it with.
    pub fn is_ready(&self) -> bool {
        self.has_credit() && !self.blocked && !self.target.is_parked()
    }

    /// Tries to push, `at_most` bytes unless one batch is larger. A push with an error or `finished` is its last.
    pub fn step(
        &mut self,
        waker: &std::task::Waker,
        at_most: usize,
        may_block: bool,
    ) -> Step<v1::PushData> {
        let mut passed_over = 0;
        loop {
            if self.credit == 0 {
                return Step::Wait;
            }
            let news = self.target.head.news();
            let max = self
                .max_bytes
                .min(at_most)
                .min(usize::try_from(self.credit).unwrap_or(usize::MAX));
            let found = match self.target.read(max, !may_block) {
                Ok(found) => found,
                Err(LaneReadError::Group(ReadError::WouldBlock)) => return Step::Blocking,
                Err(error) => {
                    return Step::Reply(self.failed(&self.target.error(&error)), Vec::new());
                }
            };
            let before = std::mem::replace(&mut self.target.at, found.next);
            let finished = self.target.is_finished();
            if found.bytes == 0 && !finished && found.next.ordinal > before.ordinal {
                passed_over += 1;
                if passed_over < MOST_PASSED_OVER {
                    continue;
                }
            }
            if found.bytes > 0 || finished || passed_over == MOST_PASSED_OVER {
                // The last batch may exceed the credit; it is taken from the credit to come.
                self.credit = self.credit.saturating_sub(found.bytes as u64);
                let push = v1::PushData {
                    subscription: self.id,
                    error: 0,
                    message: String::new(),
                    next: Some(cursor(
                        &found.next,
                        self.target.streamlet.settings().segment_size,
                    )),
                    head_ordinal: found.head,
                    finished,
                };
                return Step::Reply(push, found.bufs);
            }
            if let Some(error) = self.target.refuses_to_wait() {
                return Step::Reply(self.failed(&error), Vec::new());
            }
            if self.target.park(news, found.head + 1, waker) {
                return Step::Wait;
            }
        }
    }

    fn failed(&self, error: &WireError) -> v1::PushData {
        v1::PushData {
            subscription: self.id,
            error: error.code as u32,
            message: error.message.clone(),
            ..Default::default()
        }
    }
}

/// The reply that carries an error.
pub fn read_refusal(error: &WireError) -> v1::ReadResponse {
    v1::ReadResponse {
        error: error.code as u32,
        message: error.message.clone(),
        ..Default::default()
    }
}

/// A place as it travels.
pub fn cursor(at: &Located, segment_size: u32) -> v1::Cursor {
    let Some((group, generation, address)) = at.at else {
        return v1::Cursor {
            ordinal: at.ordinal,
            ..Default::default()
        };
    };
    v1::Cursor {
        ordinal: at.ordinal,
        group: group.0,
        generation,
        segment: (address / u64::from(segment_size)) as u32,
        position: (address % u64::from(segment_size)) as u32,
        has_hint: true,
    }
}

/// A place from its travels.
pub fn located(cursor: &v1::Cursor, segment_size: u32) -> Located {
    let address = u64::from(cursor.segment) * u64::from(segment_size) + u64::from(cursor.position);
    let at = cursor
        .has_hint
        .then_some((GroupId(cursor.group), cursor.generation, address));
    Located {
        ordinal: cursor.ordinal,
        at,
    }
}

/// A group as discovery shows it.
pub fn group_info(lane: LaneId, group: &GroupView) -> v1::GroupInfo {
    v1::GroupInfo {
        group: group.group.0,
        generation: group.generation,
        lane: lane.0,
        epoch: group.epoch.0,
        first_ordinal: group.first_ordinal,
        end_ordinal: group.end_ordinal,
        bytes: group.bytes,
        closed: group.closed,
        holders: Vec::new(),
    }
}
