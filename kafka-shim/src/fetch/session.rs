//! Fetch sessions: a client that fetches the same partitions again and again names only what
//! changed.
//!
//! A session belongs to its connection, one at a time, so its memory goes with the connection. A
//! client that comes back on another one is told that its session is not known and begins anew,
//! as after a restart of a Kafka broker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_log_segments::head::LaneHead;
use kera_protocol::ids::{LaneId, Ordinal, StreamId};
use kera_streamlet::{Located, Streamlet};

use super::near::{Elsewhere, Sent};
use super::request::{FetchRequest, Wanted};
use crate::topic::{self, TopicRef};

/// Partitions of one session, or of one request; more than a Kafka broker would hold.
pub(crate) const MAX_PARTITIONS: usize = 65_536;
/// Up to so many every connection may name, whatever others do.
const UNCOUNTED: usize = 100;
/// Epoch of a request that wants no session.
const NO_SESSION: i32 = -1;

/// The room for what sessions and waiting fetches of all connections name.
#[derive(Clone, Debug)]
pub(crate) struct SessionRoom {
    limit: usize,
    used: Arc<AtomicUsize>,
}

impl SessionRoom {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: Arc::default(),
        }
    }

    /// Room for so many partitions, if there is as much.
    pub(crate) fn hold(&self, count: usize) -> Option<Held> {
        let counted = if count > UNCOUNTED { count } else { 0 };
        let more = |used: usize| used.checked_add(counted).filter(|sum| *sum <= self.limit);
        let held = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        held.is_ok().then(|| Held {
            used: self.used.clone(),
            count,
            counted,
        })
    }
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    used: Arc<AtomicUsize>,
    count: usize,
    counted: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

static NEXT_SESSION: AtomicI32 = AtomicI32::new(1);

/// Where a partition is served from.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) stream: StreamId,
    pub(crate) streamlet: Arc<Streamlet>,
    pub(crate) lane: LaneId,
    pub(crate) head: Arc<LaneHead>,
}

/// What a client fetches of one partition, and what it was told last.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) wanted: Wanted,
    pub(crate) target: Option<Target>,
    /// Only what is committed is to be given, as of this request.
    pub(crate) committed: bool,
    /// The client may not read it, as of this request.
    pub(crate) is_denied: bool,
    /// Whose copies kept here were looked at for it.
    pub(crate) elsewhere: Option<Elsewhere>,
    /// Where the last read ended; a hint if that is where the next begins.
    pub(crate) next: Located,
    /// High watermark and log start the client knows.
    pub(crate) told: (i64, i64),
    /// The durable head when it was last looked at.
    pub(crate) seen: Ordinal,
}

impl Entry {
    fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            target: None,
            committed: false,
            is_denied: false,
            elsewhere: None,
            next: Located::default(),
            told: (-1, -1),
            seen: 0,
        }
    }

    /// Finds where the partition is served from, or Kafka's number for why it is not.
    pub(crate) fn locate(&mut self, shared: &Shared) -> Result<&Target, i16> {
        if self.target.as_ref().is_none_or(|t| t.streamlet.is_over()) {
            self.target = None;
            let stream = self.wanted.topic.find(shared)?;
            let missing = || ResponseError::UnknownTopicOrPartition.code();
            let (streamlet, lane) =
                topic::lane_of(&stream, self.wanted.partition).ok_or_else(missing)?;
            // While it is being recovered too: to a fetch Java's client knows no other error for that
            // after which it goes on.
            if !topic::is_led_here(shared, &streamlet) || !streamlet.is_recovered() {
                return Err(ResponseError::NotLeaderOrFollower.code());
            }
            let head = streamlet.head(lane).ok_or_else(missing)?;
            self.target = Some(Target {
                stream: stream.id(),
                streamlet,
                lane,
                head,
            });
        }
        self.target
            .as_ref()
            .ok_or_else(|| ResponseError::UnknownTopicOrPartition.code())
    }

    /// Where to read, with a hint if the last read ended there.
    pub(crate) fn from(&self) -> Located {
        let ordinal = Ordinal::try_from(self.wanted.offset).unwrap_or(Ordinal::MAX);
        if self.next.ordinal == ordinal {
            return self.next;
        }
        Located { ordinal, at: None }
    }
}

/// The partitions of one session, in the order in which they are served.
#[derive(Default)]
pub(crate) struct Session {
    /// 0: none, the request stands for itself.
    pub(crate) id: i32,
    next_epoch: i32,
    /// Whether it names topics by id.
    by_id: bool,
    pub(crate) entries: Vec<Entry>,
    index: HashMap<(TopicRef, i32), usize>,
    /// Only what changed is answered.
    pub(crate) incremental: bool,
    /// Where the next round begins, so that no partition's backlog starves another's.
    pub(crate) begin: usize,
    held: Option<Held>,
}

impl Session {
    fn add(&mut self, wanted: Wanted) -> Result<(), i16> {
        let key = (wanted.topic.clone(), wanted.partition);
        if let Some(at) = self.index.get(&key) {
            self.entries[*at].wanted = wanted;
            return Ok(());
        }
        if self.entries.len() >= MAX_PARTITIONS {
            return Err(ResponseError::InvalidRequest.code());
        }
        self.index.insert(key, self.entries.len());
        self.entries.push(Entry::new(wanted));
        Ok(())
    }

    /// Takes note of what the client may not read. Each request asks anew: rights may have changed since the last one.
    pub(crate) fn note_denied(&mut self, is_denied: impl Fn(&TopicRef) -> bool) {
        // Partitions of a topic stand together, most often.
        let mut last: Option<(TopicRef, bool)> = None;
        for entry in &mut self.entries {
            let topic = &entry.wanted.topic;
            let known = last.as_ref().filter(|(of, _)| of == topic);
            entry.is_denied = known.map_or_else(|| is_denied(topic), |(_, denied)| *denied);
            last = Some((topic.clone(), entry.is_denied));
        }
    }

    /// Counts its partitions. False: all connections together have too many.
    fn hold(&mut self, room: &SessionRoom) -> bool {
        let count = self.entries.len();
        if self.held.as_ref().is_none_or(|held| held.count != count) {
            self.held = None;
            self.held = room.hold(count);
        }
        self.held.is_some()
    }

    /// True if it may wait for records: it names partitions, and others have room for what they name. A consumer that closes
    /// sends a last request without partitions, and waits for the answer.
    pub(crate) fn may_wait(&self) -> bool {
        self.held.is_some() && !self.entries.is_empty()
    }

    fn forget(&mut self, topic: TopicRef, partition: i32) {
        let Some(at) = self.index.remove(&(topic, partition)) else {
            return;
        };
        self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            let key = (moved.wanted.topic.clone(), moved.wanted.partition);
            self.index.insert(key, at);
        }
        if self.begin >= self.entries.len() {
            self.begin = 0;
        }
    }
}

/// The session of a connection, and where its reads without one ended.
pub(crate) struct Sessions {
    room: SessionRoom,
    current: Option<Session>,
    hints: HashMap<(StreamId, i32), Located>,
    hints_held: Option<Held>,
    /// Where the client was sent, while no request is being answered.
    pub(crate) sent: Sent,
}

impl Sessions {
    pub(crate) fn new(room: SessionRoom) -> Self {
        Self {
            room,
            current: None,
            hints: HashMap::new(),
            hints_held: None,
            sent: Sent::default(),
        }
    }

    /// What a request asks for: the connection's session as the request changes it, a new one, or
    /// one for this request alone. Give it back with [`Self::put_back`].
    ///
    /// # Errors
    /// Kafka's number, for the whole request.
    pub(crate) fn take(&mut self, request: &mut FetchRequest) -> Result<Session, i16> {
        let (id, epoch) = (request.session_id, request.session_epoch);
        if epoch <= 0 {
            let ends = self.current.as_ref().is_some_and(|s| s.id == id);
            // A new one takes its place, and its room.
            if ends || epoch != NO_SESSION {
                self.current = None;
            }
            let mut session = Session {
                by_id: request.by_id,
                ..Session::default()
            };
            if epoch != NO_SESSION {
                session.id = NEXT_SESSION
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| {
                        Some(id.checked_add(1).unwrap_or(1))
                    })
                    .unwrap_or(1);
                session.next_epoch = 1;
            }
            for wanted in request.wanted.drain(..) {
                session.add(wanted)?;
            }
            if !session.hold(&self.room) {
                // Served all the same, as by a Kafka broker whose sessions are all taken.
                session.id = 0;
            }
            return Ok(session);
        }
        let Some(mut session) = self.current.take_if(|s| s.id == id) else {
            return Err(ResponseError::FetchSessionIdNotFound.code());
        };
        if session.next_epoch != epoch {
            self.current = Some(session);
            return Err(ResponseError::InvalidFetchSessionEpoch.code());
        }
        // Java's client begins with names while it has no topic ids, as after a restart of its only broker, and goes on with
        // ids in the same session. It cannot read an answer that has names where it expects ids. With this error it begins
        // a new session.
        if session.by_id != request.by_id {
            self.current = Some(session);
            return Err(ResponseError::FetchSessionTopicIdError.code());
        }
        session.next_epoch = epoch.checked_add(1).unwrap_or(1);
        session.incremental = true;
        for wanted in request.wanted.drain(..) {
            session.add(wanted)?;
        }
        for (topic, partition) in request.forgotten.drain(..) {
            session.forget(topic, partition);
        }
        if !session.hold(&self.room) {
            // The client asks anew, for all of it.
            return Err(ResponseError::FetchSessionIdNotFound.code());
        }
        Ok(session)
    }

    /// Keeps a session for the next request; of one for a single request only where its reads ended.
    pub(crate) fn put_back(&mut self, session: Session) {
        if session.id != 0 {
            self.current = Some(session);
            return;
        }
        for entry in session.entries {
            let led = entry.target.map(|target| target.stream);
            let stream = led.or(entry.elsewhere.map(|place| place.stream));
            if let Some(stream) = stream
                && entry.next.at.is_some()
            {
                self.hints
                    .insert((stream, entry.wanted.partition), entry.next);
            }
        }
        let count = self.hints.len();
        if self
            .hints_held
            .as_ref()
            .is_none_or(|held| held.count != count)
        {
            self.hints_held = None;
            self.hints_held = self.room.hold(count);
        }
        if self.hints.len() > MAX_PARTITIONS || self.hints_held.is_none() {
            self.hints = HashMap::new();
            self.hints_held = None;
        }
    }

    /// Where the last read of a partition ended, for sessions that do not know.
    pub(crate) fn hint(&self, stream: StreamId, partition: i32) -> Option<Located> {
        self.hints.get(&(stream, partition)).copied()
    }
}
