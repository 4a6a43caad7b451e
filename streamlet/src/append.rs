//! Appending a batch: the straight line from a checked batch to its place in a lane.

use std::collections::HashSet;
use std::task::Waker;

use kera_log_segments::group::{Group, GroupFull, GroupWriter};
use kera_log_segments::head::LaneHead;
use kera_log_segments::sync::{Arc, Ordering};
use kera_protocol::batch::{self, BatchHeader, Marker};
use kera_protocol::ids::{ANY_LANE, LaneId, Ordinal};

use crate::job::Job;
use crate::producers::{LaneState, SequenceError, Verdict};
use crate::roll::snapshot_limit;
use crate::standing::Standing;
use crate::streamlet::{ActiveGroup, Failed, Filling, Inner, LaneSlot, Settings, Streamlet};
use crate::transactions::{End, TransactionError, is_needed};

/// Where a batch is to go.
#[derive(Clone, Copy, Debug)]
pub struct AppendSpec {
    /// The lane, or [`ANY_LANE`] where the owner chooses.
    pub lane: u32,
    /// The lane generation the client split its records by; `None` if it knows of none.
    pub lane_generation: Option<u32>,
    /// The broker's clock, milliseconds since 1970.
    pub now_ms: u64,
    /// May take of the room that is kept free on a full disk: the broker's own state, by which readers
    /// go on.
    pub essential: bool,
}

/// A batch that has its place but is not yet durable: acknowledge it when [`Appended::outcome`] says so.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The lane it went to.
    pub lane: LaneId,
    /// Ordinal of its first record.
    pub base_ordinal: Ordinal,
    /// It is acknowledged when the durable head reaches this.
    pub next_ordinal: Ordinal,
    /// It was stored before; nothing was appended.
    pub duplicate: bool,
    /// The lane's head.
    pub head: Arc<LaneHead>,
    /// The group to pump, with all locks released.
    pub group: Arc<Group>,
    failures: u64,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not durable yet.
    Pending,
    /// Durable by the stream's policy.
    Durable,
    /// Its bytes were given up; the producer must send again.
    Lost,
}

impl Appended {
    /// Looks what became of it.
    pub fn outcome(&self) -> Outcome {
        // The head first: if it was past this batch and no failure is seen afterwards, then it was
        // this batch that it passed. The other way round a failure in between, and other records
        // at the same ordinals, would look like success.
        let passed = self.head.ordinal() >= self.next_ordinal;
        if self.head.failures() != self.failures {
            return Outcome::Lost;
        }
        if passed {
            Outcome::Durable
        } else {
            Outcome::Pending
        }
    }

    /// As [`Self::outcome`], and if that is pending has `waker` woken when to look again.
    pub fn poll(&self, waker: &Waker) -> Outcome {
        match self.outcome() {
            // A failure between the look and the wait would wake nobody: look once more.
            Outcome::Pending => {
                self.head.wait(self.next_ordinal, waker);
                self.outcome()
            }
            settled => settled,
        }
    }
}

/// Why a batch was not appended. Nothing has changed, except as said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No such lane.
    #[error("lane {lane} does not exist, the streamlet has {lanes}")]
    UnknownLane {
        /// Asked for.
        lane: u32,
        /// There are.
        lanes: u32,
    },
    /// The client split its records by another number of lanes, an older one, or one that this owner has not heard of.
    #[error(
        "the batch was built for generation {found} of the stream's lanes, and here they are at {current}, or about to be"
    )]
    StaleLanes {
        /// In force, or about to be.
        current: u32,
        /// The batch's.
        found: u32,
    },
    /// The producer's sequence does not fit.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// More than the stream accepts.
    #[error("batch of {size} bytes is larger than the stream's {limit}")]
    TooLarge {
        /// The batch's.
        size: usize,
        /// The stream's.
        limit: usize,
    },
    /// The pool is empty: wait for the pump and try again.
    #[error("no memory is free for the batch")]
    NoMemory,
    /// The disk is full.
    #[error("the disk is full; free space or shorten retention")]
    DiskFull,
    /// This broker's own files cannot be written; try again.
    #[error(
        "this broker cannot write its own files, and takes no appends until it can; its log names the error"
    )]
    DiskFailing,
    /// The lane's last write failed and it is being put in order; try again.
    #[error("the lane is recovering from a failed write")]
    Recovering,
    /// The lane's memory of its producers could not be read, and is read again every second; try again.
    #[error(
        "lane {lane} takes no appends yet: what it remembers of its producers cannot be read ({cause}); it is read again every second, and the broker's log names the file"
    )]
    Unread {
        /// The lane.
        lane: LaneId,
        /// What the system said.
        cause: String,
    },
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
    /// Another broker owns the streamlet, or is about to.
    #[error("another broker owns the streamlet; look its owner up again")]
    NotOwner,
    /// The streamlet has copies at other brokers, and too few of them were reached to recover it; try
    /// again.
    #[error(
        "the streamlet is not recovered yet: `kera stream recover` says what it waits for, such as brokers that hold its replicas"
    )]
    NotRecovered,
    /// Its files cannot be read, and there are no replicas elsewhere; they are read again and again.
    #[error(
        "the streamlet is not served: its files cannot be read ({cause}); they are read again and again"
    )]
    Unreadable {
        /// The file, and what the system said.
        cause: String,
    },
    /// The lane has used up its ordinals.
    #[error("the lane has reached the highest ordinal")]
    Exhausted,
}

impl Failed {
    /// What an append is told.
    pub(crate) fn refusal(&self, lane: LaneId) -> AppendError {
        match self {
            Self::Write(_) => AppendError::Recovering,
            Self::Read(unread) => AppendError::Unread {
                lane,
                cause: unread.cause.clone(),
            },
        }
    }
}

impl Streamlet {
    /// Appends one batch whose checksum the caller has checked, patching base ordinal and epoch in
    /// place. On return the batch has its place; it is not durable yet.
    ///
    /// # Errors
    /// [`AppendError`]. On [`AppendError::NoMemory`], [`AppendError::Recovering`] and [`AppendError::Unread`] the caller
    /// may try again shortly.
    pub fn append(
        &self,
        batch: &mut [u8],
        header: &BatchHeader,
        spec: AppendSpec,
    ) -> Result<Appended, AppendError> {
        self.append_any(batch, header, spec, None)
    }

    /// As [`Self::append`], of a marker where one is given. `None` if there is no such transaction any more.
    pub(crate) fn append_marker(
        &self,
        batch: &mut [u8],
        header: &BatchHeader,
        spec: AppendSpec,
        marker: &Marker,
    ) -> Result<Option<Appended>, AppendError> {
        match self.append_any(batch, header, spec, Some(marker)) {
            Err(AppendError::Sequence(SequenceError::Transaction(_))) => Ok(None),
            appended => appended.map(Some),
        }
    }

    fn append_any(
        &self,
        batch: &mut [u8],
        header: &BatchHeader,
        spec: AppendSpec,
        marker: Option<&Marker>,
    ) -> Result<Appended, AppendError> {
        let settings = self.settings.load();
        let mut reclaimed = false;
        loop {
            let (lane, active) = self.active_group(&settings, header, &spec)?;
            match self.append_to(lane, &active, &settings, batch, header, &spec, marker) {
                Ok(Some(appended)) => return Ok(appended),
                Ok(None) => self.roll(lane, &active, spec.now_ms),
                Err(AppendError::NoMemory) if !reclaimed && self.reclaim() > 0 => reclaimed = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// What an append is told before the streamlet is recovered.
    pub(crate) fn append_before_recovery(&self) -> AppendError {
        self.unreadable()
            .map_or(AppendError::NotRecovered, |cause| AppendError::Unreadable {
                cause,
            })
    }

    /// Level one: the streamlet lock, to find (or open) the lane's active group.
    fn active_group(
        &self,
        settings: &Settings,
        header: &BatchHeader,
        spec: &AppendSpec,
    ) -> Result<(LaneId, Arc<ActiveGroup>), AppendError> {
        let mut inner = self.inner.lock();
        match self.standing() {
            Standing::Serving => {}
            Standing::Deleted => return Err(AppendError::Deleted),
            Standing::Moved | Standing::Leaving => return Err(AppendError::NotOwner),
            Standing::Recovering => return Err(self.append_before_recovery()),
        }
        let lane = choose_lane(&mut inner, settings, header, spec)?;
        match &inner.lanes[lane.0 as usize].slot {
            LaneSlot::Active(active) => return Ok((lane, active.clone())),
            LaneSlot::Failed(failed) => return Err(failed.refusal(lane)),
            // No group is opened for a batch that will be refused.
            LaneSlot::Idle(carry) => match carry.state.check(header) {
                Ok(Verdict::Duplicate(_)) => {}
                Ok(Verdict::Fresh) if header.is_control() => {}
                Ok(Verdict::Fresh) => check_fresh(settings, &carry.state, header, spec)?,
                Err(_) => check_size(settings, header)?,
            },
        }
        self.check_disk(spec)?;
        let begun = self
            .open_group(&mut inner, lane, spec.now_ms)
            .ok_or(AppendError::Recovering)?;
        drop(inner);
        Ok((lane, self.announce(lane, begun)))
    }

    /// Refuses while the disk cannot be written.
    fn check_disk(&self, spec: &AppendSpec) -> Result<(), AppendError> {
        let full = self.env.disk_full.load(Ordering::Relaxed);
        if full && !spec.essential {
            Err(AppendError::DiskFull)
        } else if self.refuses_to_write() {
            Err(AppendError::DiskFailing)
        } else {
            Ok(())
        }
    }

    /// Level two: the group lock, to check the sequence, reserve, copy, patch and advance.
    /// `None`: the group is full or frozen; roll and try again.
    #[allow(clippy::too_many_arguments)]
    fn append_to(
        &self,
        lane: LaneId,
        active: &Arc<ActiveGroup>,
        settings: &Settings,
        bytes: &mut [u8],
        header: &BatchHeader,
        spec: &AppendSpec,
        marker: Option<&Marker>,
    ) -> Result<Option<Appended>, AppendError> {
        let mut tail = active.tail.lock();
        if tail.filling == Filling::Frozen {
            return Ok(None);
        }
        let appended = |base_ordinal, duplicate| Appended {
            lane,
            base_ordinal,
            next_ordinal: base_ordinal + header.ordinals(),
            duplicate,
            head: active.head.clone(),
            group: active.group.clone(),
            failures: active.failures,
        };
        let verdict = tail.state.check(header);
        if let Ok(Verdict::Duplicate(base)) = verdict {
            drop(tail);
            if active.group.is_broken() {
                // Its sender may wait for bytes that will never be durable.
                (self.env.jobs)(Job::Repair(self.lane_key(lane)));
            }
            return Ok(Some(appended(base, true)));
        }
        // After the duplicate check: a retry of what was stored under the older split still is one, and
        // one of what was stored before the limit was lowered.
        // Before gaps count: what was sent behind a refused batch is to be split anew as well.
        if settings.lane_by_key
            && let Some(found) = spec.lane_generation
            && found != tail.lane_generation
        {
            let present = settings.lane_generation;
            let current = present + u32::from(found == present);
            return Err(AppendError::StaleLanes { current, found });
        }
        verdict?;
        match marker {
            None => check_fresh(settings, &tail.state, header, spec)?,
            Some(marker) => {
                let producer = marker.producer_id;
                let open = tail.state.open_transaction(producer);
                if open.is_none_or(|(first, _)| first != marker.first_ordinal) {
                    let error = TransactionError::NotOpen { producer };
                    return Err(SequenceError::from(error).into());
                }
            }
        }
        // A batch of a producer that is not remembered yet begins at 0, or was refused above.
        if header.base_sequence == 0 {
            self.admit(&mut tail.state, header, settings, spec.now_ms)?;
        }
        self.check_disk(spec)?;
        if active.group.is_broken() {
            if active.group.is_shipped() {
                // The other copies close it; the lane goes on in its next group.
                return Ok(None);
            }
            drop(tail);
            (self.env.jobs)(Job::Repair(self.lane_key(lane)));
            return Err(AppendError::Recovering);
        }
        let base = tail.writer.next_ordinal();
        if base + header.ordinals() >= i64::MAX as u64 {
            return Err(AppendError::Exhausted);
        }
        batch::patch(bytes, base, active.group.spec().epoch);
        let placed = BatchHeader {
            base_ordinal: base,
            epoch: active.group.spec().epoch,
            ..*header
        };
        match tail
            .writer
            .append(bytes, &placed, spec.now_ms, self.env.limits.keep_chunks)
        {
            Ok(_) => {}
            Err(GroupFull::Roll) => return Ok(None),
            Err(GroupFull::NoMemory) => return Err(AppendError::NoMemory),
        }
        tail.state.note(&placed, spec.now_ms);
        if let Some(marker) = marker {
            let grants = tail.state.grants();
            grants.ends_at(marker.producer_id, marker.number, placed.next_ordinal());
        }
        self.traffic.note_appended(&placed);
        let end = marker.map(|marker| End {
            producer: marker.producer_id,
            first: marker.first_ordinal,
            marker: base,
            commit: marker.commit,
        });
        tail.ends
            .extend(end.filter(|end| is_needed(end, &active.group)));
        let prepare =
            tail.filling == Filling::Begun && tail.writer.fill() >= self.env.limits.prepare_at;
        if prepare {
            tail.filling = Filling::NextAsked;
        }
        drop(tail);
        if prepare {
            (self.env.jobs)(Job::Prepare(self.lane_key(lane)));
        }
        Ok(Some(appended(base, false)))
    }
}

/// Refuses a batch that is fresh by its sequence for its transaction, or its size.
fn check_fresh(
    settings: &Settings,
    state: &LaneState,
    header: &BatchHeader,
    spec: &AppendSpec,
) -> Result<(), AppendError> {
    let max_bytes = snapshot_limit(settings.segment_size);
    let allowed = state.check_transaction(header, max_bytes, spec.now_ms);
    allowed.map_err(SequenceError::from)?;
    check_size(settings, header)
}

/// Refuses a batch of more bytes than the stream accepts.
fn check_size(settings: &Settings, header: &BatchHeader) -> Result<(), AppendError> {
    let limit = settings.max_batch_bytes.min(largest_batch(settings));
    let size = header.total_bytes;
    if size > limit {
        return Err(AppendError::TooLarge { size, limit });
    }
    Ok(())
}

impl Streamlet {
    /// Refuses the first batch of a producer that the lane has no room to remember.
    fn admit(
        &self,
        state: &mut LaneState,
        header: &BatchHeader,
        settings: &Settings,
        now_ms: u64,
    ) -> Result<(), SequenceError> {
        let limits = &self.env.limits;
        let room = LaneState::room(snapshot_limit(settings.segment_size));
        let before_ms = now_ms.saturating_sub(limits.producer_expiry_ms);
        state.admit(header, limits.max_producers.min(room), before_ms)
    }
}

/// The largest batch that always finds room in a new group.
fn largest_batch(settings: &Settings) -> usize {
    let whole = GroupWriter::largest_batch(settings.segment_size);
    if settings.segments_per_group > 1 {
        return whole;
    }
    // The only segment also holds the lane snapshot.
    whole - snapshot_limit(settings.segment_size)
}

fn choose_lane(
    inner: &mut Inner,
    settings: &Settings,
    header: &BatchHeader,
    spec: &AppendSpec,
) -> Result<LaneId, AppendError> {
    let lanes = inner.lanes.len() as u32;
    // The lanes of a transaction are known to its coordinator before its batches come.
    let is_named = settings.lane_by_key || !header.is_idempotent() || header.is_transactional();
    if spec.lane != ANY_LANE && is_named {
        if spec.lane >= lanes {
            return Err(AppendError::UnknownLane {
                lane: spec.lane,
                lanes,
            });
        }
        return Ok(LaneId(spec.lane));
    }
    if !header.is_idempotent() {
        return Ok(LaneId(0));
    }
    let chosen = LaneId((header.producer_id.unsigned_abs() % u64::from(lanes)) as u32);
    let producer = (header.producer_id, header.producer_epoch);
    if let Some(pinned) = inner.pins.get(&producer) {
        return Ok(*pinned);
    }
    // It may be pinned to a lane that does not know that yet.
    let unread = inner.lanes.iter().zip(0..).find_map(|(lane, id)| {
        let LaneSlot::Failed(failed @ Failed::Read(_)) = &lane.slot else {
            return None;
        };
        Some(failed.refusal(LaneId(id)))
    });
    if let Some(refusal) = unread {
        return Err(refusal);
    }
    if inner.pins.len() >= inner.pins_limit {
        drop_pins(inner);
    }
    inner.pins.insert(producer, chosen);
    Ok(chosen)
}

/// Drops the pins of producers that no lane remembers: without them these begin anew anyway, at
/// sequence 0 of a new epoch.
fn drop_pins(inner: &mut Inner) {
    let mut remembered = HashSet::new();
    for lane in &inner.lanes {
        match &lane.slot {
            LaneSlot::Active(active) => {
                remembered.extend(active.tail.lock().state.producer_epochs())
            }
            LaneSlot::Idle(carry) => remembered.extend(carry.state.producer_epochs()),
            // What a lane under repair remembers is not known now: keep all.
            LaneSlot::Failed(_) => {
                inner.pins_limit = inner.pins.len() * 2;
                return;
            }
        }
    }
    inner
        .pins
        .retain(|producer, _| remembered.contains(producer));
    inner.pins_limit = (inner.pins.len() * 2).max(MIN_PINS);
}

/// Pins below this number are not worth looking through.
pub(crate) const MIN_PINS: usize = 1024;
