//! When lanes are compacted, and by how much work at a time.
//!
//! One thread does it. It looks at the lanes of compacted streams every `compaction.check_interval`, and compacts those
//! that are due, the one first of which most is new. After each stretch of work it rests three times as long, so that
//! it takes a quarter of a core; what somebody asks for by `kera stream compact` is done at once and without rests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_metadata::StreamConfig;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, LaneKey, StreamId};
use kera_protocol::v1;
use kera_streamlet::{Backlog, BrokenPass, CompactError, CompactSpec, Compacted, Ship, Streamlet};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::clock::{now_ms, retention_ms};
use crate::data::catalog::Stream;
use crate::data::fetch::code_of;
use crate::fault_rules::Rule;
use crate::shared::Shared;

/// A stretch of work is followed by a rest of so many times that.
const REST: u32 = 3;
/// Work between two rests.
const STRETCH: Duration = Duration::from_millis(10);
/// A lane that could not be compacted is left alone for so long.
const AFTER_FAILURE: Duration = Duration::from_secs(600);
/// The metadata store is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// What somebody asks for waits so long until the lanes' groups are closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// It is looked so often whether the interval changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Where there are replicas, tombstones stay as long as the records of their lane changed no longer ago than this: a
/// broker that answers from its replicas believes what it has read of the records for a second, and takes its time to
/// read a disk.
const QUIET: Duration = Duration::from_secs(30);
/// Between two looks at whether groups are closed.
const LOOK: Duration = Duration::from_millis(20);

type Answer = Result<v1::CompactStreamResponse, WireError>;

/// Somebody waits for a stream's compaction.
struct Asked {
    stream: StreamId,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Queue {
    asked: Vec<Asked>,
    is_stopping: bool,
}

/// What a broker's compaction waits for, and what it has done.
#[derive(Default)]
pub(crate) struct Compactor {
    queue: Mutex<Queue>,
    ready: Condvar,
    pub(crate) stats: Stats,
}

/// What compaction has done since the start, and what is left to do.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) passes: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) removed_bytes: AtomicU64,
    pub(crate) unreadable: AtomicU64,
    /// At the last look: bytes that were not compacted yet, of all lanes.
    pub(crate) dirty_bytes: AtomicU64,
    /// At the last look: thousandths of the lane with the greatest share that were not compacted yet.
    pub(crate) dirty_permille: AtomicU64,
    /// At the last look: for how many seconds the lane was due that has been so for longest.
    pub(crate) due_seconds: AtomicU64,
}

impl Stats {
    fn count(&self, done: &Compacted) {
        let add = |counter: &AtomicU64, value| counter.fetch_add(value, Ordering::Relaxed);
        add(&self.passes, 1);
        add(&self.read_bytes, done.bytes_read);
        add(
            &self.removed_bytes,
            done.bytes_before.saturating_sub(done.bytes_after),
        );
        add(&self.unreadable, done.unreadable);
    }
}

impl Compactor {
    /// Ends the thread, for good.
    pub(crate) fn stop(&self) {
        self.queue.lock().is_stopping = true;
        self.ready.notify_all();
    }

    /// Compacts all lanes of a stream that are served here.
    ///
    /// # Errors
    /// What a lane's compaction ended with; others may be compacted by then.
    pub(crate) async fn compact(&self, stream: StreamId) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.queue.lock().asked.push(Asked { stream, answer });
        self.ready.notify_all();
        answered.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Waits, for no longer than `time`; false once it is to stop.
    fn wait(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut queue = self.queue.lock();
        while !queue.is_stopping {
            if self.ready.wait_until(&mut queue, deadline).timed_out() {
                break;
            }
        }
        !queue.is_stopping
    }

    /// Waits until somebody asks for something or `deadline` has come; `None` once it is to stop.
    fn next(&self, deadline: Instant) -> Option<Vec<Asked>> {
        let mut queue = self.queue.lock();
        while queue.asked.is_empty() && !queue.is_stopping {
            if self.ready.wait_until(&mut queue, deadline).timed_out() {
                break;
            }
        }
        match queue.is_stopping {
            true => None,
            false => Some(std::mem::take(&mut queue.asked)),
        }
    }

    fn is_asked(&self) -> bool {
        !self.queue.lock().asked.is_empty()
    }
}

fn stopping() -> WireError {
    WireError::new(ErrorCode::NotOwner, "the broker is stopping; ask again")
}

/// A lane that may be compacted.
struct Candidate {
    streamlet: Arc<Streamlet>,
    lane: LaneId,
    spec: CompactSpec,
    backlog: Backlog,
    /// Other brokers are to have replicas of its groups.
    is_replicated: bool,
}

impl Candidate {
    fn key(&self) -> LaneKey {
        LaneKey {
            stream: self.streamlet.stream(),
            streamlet: self.streamlet.id(),
            lane: self.lane,
        }
    }

    fn dirty_permille(&self) -> u64 {
        let all = self.backlog.clean_bytes + self.backlog.dirty_bytes;
        (self.backlog.dirty_bytes * 1000)
            .checked_div(all)
            .unwrap_or(0)
    }
}

fn spec_of(shared: &Shared, streamlet: &Streamlet, config: &StreamConfig) -> CompactSpec {
    let is_early = Rule::TombstonesDroppedEarly.is_broken();
    CompactSpec {
        now_ms: retention_ms() as i64,
        min_lag_ms: config.min_compaction_lag_ms,
        max_lag_ms: config.max_compaction_lag_ms,
        delete_retention_ms: if is_early {
            0
        } else {
            config.delete_retention_ms
        },
        quiet: match streamlet.has_copies() && !is_early {
            true => QUIET,
            false => Duration::ZERO,
        },
        min_dirty_permille: config.min_dirty_permille,
        memory: usize::try_from(shared.config.compaction.memory).unwrap_or(usize::MAX),
        broken: broken_pass(),
    }
}

/// What passes do wrong on purpose.
fn broken_pass() -> Option<BrokenPass> {
    if Rule::OldestRecordLeft.is_broken() {
        return Some(BrokenPass::OldestLeft);
    }
    Rule::KeysConfused
        .is_broken()
        .then_some(BrokenPass::KeysConfused)
}

/// The lanes of a stream that are served here.
fn lanes_of(shared: &Shared, stream: &Stream) -> Vec<Candidate> {
    let is_replicated = stream.record.load().config.is_replicated();
    let mut lanes = Vec::new();
    for streamlet in &stream.streamlets {
        if streamlet.is_over() || !streamlet.is_recovered() {
            continue;
        }
        let spec = spec_of(shared, &streamlet, &stream.record.load().config);
        streamlet.remove_replaced();
        for (lane, _, _) in streamlet.bounds() {
            lanes.push(Candidate {
                backlog: streamlet.compaction_backlog(lane, &spec),
                streamlet: streamlet.clone(),
                lane,
                spec,
                is_replicated,
            });
        }
    }
    lanes
}

/// The body of the thread.
pub(crate) fn run(shared: &Arc<Shared>) {
    let compactor = &shared.compactor;
    let mut rounds = Rounds::default();
    let mut last = Instant::now();
    loop {
        let interval = shared.live().compaction.check_interval;
        // The interval may change.
        let deadline = (last + interval).min(Instant::now() + LOOK_AGAIN);
        let Some(asked) = compactor.next(deadline) else {
            return;
        };
        for one in asked {
            // Nobody may wait any more, and what was asked for is done all the same.
            let _ = one.answer.send(answer(shared, one.stream));
        }
        if last.elapsed() >= interval {
            rounds.round(shared);
            last = Instant::now();
        }
    }
}

/// What is known between rounds.
#[derive(Default)]
struct Rounds {
    /// Lanes that could not be compacted, and when.
    failed: HashMap<LaneKey, Instant>,
    /// Since when lanes are due.
    due: HashMap<LaneKey, Instant>,
}

impl Rounds {
    fn round(&mut self, shared: &Shared) {
        let streams = shared.data.catalog.all();
        let compacted = streams
            .iter()
            .filter(|stream| stream.record.load().config.cleanup.compacts());
        let mut lanes: Vec<_> = compacted
            .flat_map(|stream| lanes_of(shared, stream))
            .collect();
        self.note(shared, &lanes);
        self.failed
            .retain(|_, since| since.elapsed() < AFTER_FAILURE);
        lanes.retain(|lane| lane.backlog.is_due && !self.failed.contains_key(&lane.key()));
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.dirty_permille()));
        for lane in lanes {
            let compactor = &shared.compactor;
            let mut begun = Instant::now();
            // What somebody asks for comes first; the lane has its turn again.
            let mut pace = |bytes| {
                if bytes == 0 {
                    return compactor.wait(ASK_AGAIN);
                }
                let worked = begun.elapsed();
                let goes_on = worked < STRETCH || compactor.wait(worked * REST);
                if worked >= STRETCH {
                    begun = Instant::now();
                }
                goes_on && !compactor.is_asked()
            };
            match compact(shared, &lane, &mut pace) {
                Ok(_) => drop(self.due.remove(&lane.key())),
                Err(CompactError::Stopped) => return,
                Err(CompactError::Changed) => {}
                Err(_) => drop(self.failed.insert(lane.key(), Instant::now())),
            }
        }
    }

    fn note(&mut self, shared: &Shared, lanes: &[Candidate]) {
        let mut due = HashMap::new();
        for lane in lanes.iter().filter(|lane| lane.backlog.is_due) {
            let since = self.due.get(&lane.key()).copied();
            due.insert(lane.key(), since.unwrap_or_else(Instant::now));
        }
        self.due = due;
        let longest = self
            .due
            .values()
            .map(|since| since.elapsed().as_secs())
            .max();
        let dirty = lanes.iter().map(|lane| lane.backlog.dirty_bytes).sum();
        let most = lanes.iter().map(Candidate::dirty_permille).max();
        let stats = &shared.compactor.stats;
        stats.dirty_bytes.store(dirty, Ordering::Relaxed);
        stats
            .dirty_permille
            .store(most.unwrap_or(0), Ordering::Relaxed);
        stats
            .due_seconds
            .store(longest.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Compacts one lane, and tells of what could not be done.
fn compact(
    shared: &Shared,
    lane: &Candidate,
    pace: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Compacted>, CompactError> {
    let begun = Instant::now();
    let clustered = shared.clustered.as_ref();
    let ships = clustered.and_then(|clustered| clustered.replicated.ships(&lane.streamlet));
    let ship = ships.as_ref().map(|ships| ships as &dyn Ship);
    let outcome = match lane.is_replicated && ship.is_none() {
        // It is not served yet, or not any more.
        true => Err(CompactError::Changed),
        false => lane
            .streamlet
            .compact_lane(lane.lane, &lane.spec, ship, pace),
    };
    // The streamlet has another owner now, or none: compaction goes on there.
    let outcome = match lane.streamlet.is_over() {
        true => outcome.map_err(|_| CompactError::Changed),
        false => outcome,
    };
    let stats = &shared.compactor.stats;
    match &outcome {
        Ok(None) | Err(CompactError::Stopped | CompactError::Changed) => {}
        Ok(Some(done)) => {
            stats.count(done);
            let (before, after) = (done.bytes_before, done.bytes_after);
            tracing::info!(lane = %lane.key(), groups = done.groups_before, left = done.groups_after, before, after, took = ?begun.elapsed(), "a lane was compacted");
            if done.unreadable > 0 {
                tracing::warn!(lane = %lane.key(), batches = done.unreadable, "batches could not be read and stay as they are, with what they may hold of older records; tombstones above them stay too");
            }
        }
        Err(error) => {
            stats.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(lane = %lane.key(), %error, "a lane could not be compacted; it keeps all its records, and is tried again later");
        }
    }
    outcome
}

/// Compacts all lanes of a stream: what is durable now and old enough, however little of it is new.
fn answer(shared: &Shared, stream: StreamId) -> Answer {
    let gone = || WireError::new(ErrorCode::UnknownStream, "the stream was deleted");
    let stream = shared.data.catalog.get(stream).ok_or_else(gone)?;
    let config = stream.record.load().config.clone();
    let mut told = v1::CompactStreamResponse::default();
    for streamlet in &stream.streamlets {
        if streamlet.is_over() {
            continue;
        }
        if !streamlet.is_recovered() {
            let (name, id, error) = (stream.name(), streamlet.id(), streamlet.not_recovered());
            let text = format!("stream {name} streamlet {id}: {error}");
            return Err(WireError::new(code_of(&error, true), text));
        }
        told.streamlets.push(streamlet.id().0);
        close(shared, &streamlet)?;
        for (lane, _, _) in streamlet.bounds() {
            let candidate = Candidate {
                streamlet: streamlet.clone(),
                lane,
                spec: spec_of(shared, &streamlet, &config),
                backlog: Backlog::default(),
                is_replicated: config.is_replicated(),
            };
            let mut pace = |bytes| match bytes {
                0 => shared.compactor.wait(ASK_AGAIN),
                _ => shared.compactor.wait(Duration::ZERO),
            };
            match compact(shared, &candidate, &mut pace) {
                Ok(None) => {}
                Ok(Some(done)) => {
                    told.lanes += 1;
                    told.groups_before += done.groups_before;
                    told.groups_after += done.groups_after;
                    told.bytes_before += done.bytes_before;
                    told.bytes_after += done.bytes_after;
                    told.unreadable += done.unreadable;
                }
                Err(CompactError::Stopped) => return Err(stopping()),
                Err(_) if streamlet.is_over() => {
                    let (name, id) = (stream.name(), streamlet.id());
                    let text =
                        format!("stream {name} streamlet {id} is changing its owner; ask again");
                    return Err(WireError::new(ErrorCode::NotOwner, text));
                }
                Err(error) => {
                    let name = stream.name();
                    let text = format!("stream {name} lane {}/{lane}: {error}", streamlet.id());
                    return Err(WireError::new(ErrorCode::StorageError, text));
                }
            }
        }
    }
    Ok(told)
}

/// Ends the groups that take appends and has them closed.
fn close(shared: &Shared, streamlet: &Arc<Streamlet>) -> Result<(), WireError> {
    let deadline = Instant::now() + CLOSED_WITHIN;
    let wait = || {
        if !shared.compactor.wait(LOOK) {
            return Err(stopping());
        }
        if Instant::now() >= deadline {
            let text = format!(
                "the groups of streamlet {} could not be closed within {CLOSED_WITHIN:?}; see the broker's log",
                streamlet.id()
            );
            return Err(WireError::new(ErrorCode::StorageError, text));
        }
        Ok(())
    };
    while !streamlet.close_all(now_ms()) {
        wait()?;
    }
    // What comes to an end after this is not waited for.
    let mut ending = streamlet.ending();
    loop {
        let now = streamlet.ending();
        ending.retain(|group| now.contains(group));
        if ending.is_empty() || streamlet.is_over() {
            return Ok(());
        }
        wait()?;
    }
}
