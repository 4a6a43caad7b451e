//! Compaction: of each key of a lane the newest record is kept.
//!
//! A pass takes the lane's closed groups, oldest first, as far as they may be compacted. It reads them twice: to find the
//! newest record of each key ([`newest`]), and to write what is left ([`left`]). Groups that follow each other become
//! one where there is room ([`plan`]), under the id and epoch of the last of them and a new generation. The new file is
//! made beside the old ones, read back, and synced; then one transaction puts its record in the place of theirs
//! ([`commit`]). The old files go once nobody reads them.
//!
//! Appends and reads never wait for a pass. A crash at any point leaves either the old groups or the new one in the
//! records, and files that no record names, which the next start removes.

mod commit;
mod left;
mod newest;
mod plan;
mod replaced;
mod ship;

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::time::Duration;

use kera_log_segments::group::{Group, GroupSpec, GroupWriter};
use kera_log_segments::read::{ReadError, ReadSpec};
use kera_log_segments::rewrite::{Rewrite, RewriteError, Rewritten};
use kera_log_segments::scan::{self, ScanSpec};
use kera_log_segments::sync::Arc;
use kera_protocol::batch::{BatchHeader, batches, emptied};
use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};

use crate::producers::REMEMBERED_BATCHES;
use crate::read::LaneReadError;
use crate::recorder::RecordError;
use crate::streamlet::{LaneSlot, Streamlet};

use left::{Aborted, Judge, Left, Rules};
use newest::{Newest, SpillFiles};
pub(crate) use replaced::Replaced;
pub use ship::{Ship, ShipError, Shipped};

/// A producer that was silent for so long sends no batch again: clients give records up sooner, Kafka's after 2 minutes.
const SENT_AGAIN_WITHIN_MS: u64 = 15 * 60 * 1000;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;
/// The generation in the names of files that a pass keeps what memory has no room for in; those of later files are
/// lower. No group comes so far, and the next start removes what is left of them.
const SPILL_GENERATION: u32 = u32::MAX - 1;

/// What a lane is compacted by.
#[derive(Clone, Copy, Debug)]
pub struct CompactSpec {
    /// Retention's clock, in milliseconds.
    pub now_ms: i64,
    /// Records younger than this stay as they are.
    pub min_lag_ms: u64,
    /// Records older than this are compacted whatever else there is; 0: there is no such time.
    pub max_lag_ms: u64,
    /// How long tombstones are kept once what they delete has gone.
    pub delete_retention_ms: u64,
    /// Tombstones and markers stay as long as a lane's records changed no longer ago than this: another broker may still
    /// answer from what was replaced.
    pub quiet: Duration,
    /// Thousandths of the lane's bytes that must not have been compacted yet.
    pub min_dirty_permille: u32,
    /// About how much memory a pass may take for keys, in bytes.
    pub memory: usize,
    /// What the pass does wrong on purpose, so that tests are seen to notice.
    pub broken: Option<BrokenPass>,
}

/// A rule of compaction that a pass breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenPass {
    /// Of a key the oldest record is left.
    OldestLeft,
    /// Keys count as one where a byte of their hashes is the same.
    KeysConfused,
}

/// What of a lane may be compacted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of groups that went through a pass.
    pub clean_bytes: u64,
    /// Bytes of groups that did not.
    pub dirty_bytes: u64,
    /// A pass is due.
    pub is_due: bool,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Groups that it took.
    pub groups_before: u64,
    /// Groups that it made of them.
    pub groups_after: u64,
    /// Bytes that it took.
    pub bytes_before: u64,
    /// Bytes that it made of them.
    pub bytes_after: u64,
    /// Bytes that it read.
    pub bytes_read: u64,
    /// Batches that could not be read, or not be written anew, and stay as they are.
    pub unreadable: u64,
}

/// Why a pass ended early. What it replaced before stays replaced.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// Other brokers do not have what was rewritten.
    #[error("what was rewritten is not at enough brokers: {0}")]
    Replicas(String),
    /// Somebody asked for the end, or the streamlet is not served here any more.
    #[error("it was broken off")]
    Stopped,
    /// Another change came first, such as a trim; the next pass goes on.
    #[error("the lane's groups changed meanwhile")]
    Changed,
    /// A group cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file cannot be written.
    #[error("{what}: {error}")]
    Write {
        /// Which one.
        what: String,
        /// Why.
        error: RewriteError,
    },
    /// The metadata store refused, or does not say what became of a change.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl From<ShipError> for CompactError {
    fn from(error: ShipError) -> Self {
        match error {
            ShipError::Stopped => Self::Stopped,
            ShipError::TooFew(why) => Self::Replicas(why),
        }
    }
}

/// Called with the bytes that were just read: it may take its time, and answers whether to go on. With 0 it waits a
/// moment, for the metadata store to answer.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Called with a batch and its header.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &BatchHeader) -> Result<(), CompactError>;

/// What one pass needs besides its groups.
struct Pass<'a> {
    streamlet: &'a Arc<Streamlet>,
    lane: LaneId,
    /// Makes replicas of what is rewritten, if there are to be any.
    ship: Option<&'a dyn Ship>,
    rules: Rules,
    /// What the groups of this pass tell of each producer that the lane remembers.
    producers: HashMap<i64, LastBatches>,
    out: Compacted,
}

impl Streamlet {
    /// The groups of a lane that may be compacted, oldest first: closed, and with nothing in them that is too young.
    fn compactable(&self, lane: LaneId, spec: &CompactSpec) -> (Vec<Arc<Group>>, Ordinal) {
        // Of what lies below the last stable ordinal it is known whether it counts.
        let stable = self.stable_below_head(lane).map_or(0, |(stable, _)| stable);
        let inner = self.inner.lock();
        let Some(slot) = inner.lanes.get(lane.0 as usize) else {
            return (Vec::new(), 0);
        };
        if matches!(slot.slot, LaneSlot::Failed(_)) {
            return (Vec::new(), slot.log_start);
        }
        let min_lag = i64::try_from(spec.min_lag_ms).unwrap_or(i64::MAX);
        let is_old = |group: &Group| {
            spec.min_lag_ms == 0
                || group
                    .newest_ms(spec.now_ms)
                    .is_some_and(|newest| newest <= spec.now_ms.saturating_sub(min_lag))
        };
        let groups = slot.groups.values();
        let groups = groups.take_while(|group| {
            group.lane_head().is_none() && group.end().ordinal <= stable && is_old(group)
        });
        (groups.cloned().collect(), slot.log_start)
    }

    /// How much of a lane waits for compaction. May read the first bytes of one file.
    pub fn compaction_backlog(&self, lane: LaneId, spec: &CompactSpec) -> Backlog {
        let (groups, _) = self.compactable(lane, spec);
        let bytes = |dirty: bool| {
            let groups = groups
                .iter()
                .filter(|group| (group.spec().generation == 0) == dirty);
            groups.map(|group| group.end_address()).sum::<u64>()
        };
        let (clean_bytes, dirty_bytes) = (bytes(false), bytes(true));
        let share = u128::from(dirty_bytes) * 1000;
        let is_enough =
            share >= u128::from(spec.min_dirty_permille) * u128::from(dirty_bytes + clean_bytes);
        let is_late = || {
            let oldest = groups.iter().find(|group| group.spec().generation == 0);
            oldest.is_some_and(|group| is_late(group, spec))
        };
        Backlog {
            clean_bytes,
            dirty_bytes,
            is_due: dirty_bytes > 0 && (is_enough || is_late()),
        }
    }

    /// Compacts a lane, whether or not that is due. `None` if there is nothing that was not compacted before. Where there
    /// are replicas, `ship` brings what is rewritten to their brokers. Call on a thread that may wait for long, and for
    /// one lane at a time.
    ///
    /// # Errors
    /// [`CompactError`].
    pub fn compact_lane(
        self: &Arc<Self>,
        lane: LaneId,
        spec: &CompactSpec,
        ship: Option<&dyn Ship>,
        pace: Pace<'_>,
    ) -> Result<Option<Compacted>, CompactError> {
        if self.has_copies() != ship.is_some() {
            // It is not served any more, or not yet.
            return Err(CompactError::Changed);
        }
        self.settle_earlier(lane)?;
        self.remove_replaced();
        let _passing = self.passing();
        if let Some(ship) = ship {
            self.fetch_absent(lane, spec, ship, pace)?;
        }
        let (groups, log_start) = self.compactable(lane, spec);
        let Some(last) = groups.last().map(|group| group.id()) else {
            return Ok(None);
        };
        if groups.iter().all(|group| group.spec().generation > 0) {
            return Ok(None);
        }
        let epoch = self.epoch();
        let is_quiet = self.replaced.lock().is_quiet(lane, epoch, spec.quiet);
        let settings = self.settings();
        let rules = Rules {
            now_ms: spec.now_ms,
            delete_retention_ms: spec.delete_retention_ms,
            log_start,
            largest: GroupWriter::largest_batch(settings.segment_size),
            may_grow: true,
            keeps_deleted: !is_quiet,
        };
        let aborted = self
            .aborted_in(lane, &groups)
            .map_err(|error| match error {
                LaneReadError::Group(error) => CompactError::Read(error),
                _ => CompactError::Stopped,
            })?
            .ok_or(CompactError::Changed)?;
        let is_aborted = |producer: i64, ordinal: Ordinal| {
            // A producer has one transaction at a time: its ranges follow each other.
            let ranges = aborted.get(&producer);
            ranges.is_some_and(|ranges| {
                let begun = ranges.partition_point(|range| range.start <= ordinal);
                begun > 0 && ordinal < ranges[begun - 1].end
            })
        };
        let mut pass = Pass {
            streamlet: self,
            lane,
            ship,
            rules,
            producers: HashMap::new(),
            out: Compacted::default(),
        };
        match pass.run(&groups, &is_aborted, spec, pace) {
            // Batches became longer than there is room for: this time none does.
            Err(CompactError::Write {
                error: RewriteError::Full,
                ..
            }) => {
                let (groups, _) = self.compactable(lane, spec);
                // Some of them may have been closed since.
                let known = groups.partition_point(|group| group.id() <= last);
                pass.rules.may_grow = false;
                pass.run(&groups[..known], &is_aborted, spec, pace)?;
            }
            // What was read is gone because somebody else changed the lane.
            Err(CompactError::Read(_))
                if self
                    .lane_bounds(lane)
                    .is_none_or(|(start, _)| start != log_start) =>
            {
                return Err(CompactError::Changed);
            }
            other => other?,
        }
        // Nothing of this pass reads them any more.
        drop(groups);
        self.remove_replaced();
        Ok(Some(pass.out))
    }

    /// Has the files fetched that are not here: after a change of owner history comes by and by.
    fn fetch_absent(
        self: &Arc<Self>,
        lane: LaneId,
        spec: &CompactSpec,
        ship: &dyn Ship,
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let (groups, _) = self.compactable(lane, spec);
        let io = &self.env.io;
        for group in groups.iter().filter(|group| !io.exists(&group.spec().path)) {
            ship.may_fetch(group.end_address(), &mut || pace(0) && !self.is_over())?;
            // Who cannot have it meets that where it is read.
            self.fetch_again(lane, group.id());
        }
        Ok(())
    }

    /// The producers that a lane remembers, without batches.
    fn remembered_producers(&self, lane: LaneId, now_ms: i64) -> HashMap<i64, LastBatches> {
        let recent = u64::try_from(now_ms)
            .unwrap_or(0)
            .saturating_sub(SENT_AGAIN_WITHIN_MS);
        self.of_state(lane, |state| {
            let ids = state.producer_epochs().map(|(id, _)| id);
            let of_each = ids.map(|id| {
                let is_recent = state.last_ms(id) >= Some(recent);
                (id, LastBatches::none(is_recent))
            });
            of_each.collect()
        })
    }
}

/// Whether a group has records that should have been compacted.
fn is_late(group: &Group, spec: &CompactSpec) -> bool {
    if spec.max_lag_ms == 0 {
        return false;
    }
    let begun = || {
        let file = group.file().ok()?;
        let closed = ScanSpec::closed(group.spec(), group.end());
        let (header, _) = scan::read_head(&*file, &closed).ok()?;
        Some(header.created_ms)
    };
    let lag = i64::try_from(spec.max_lag_ms).unwrap_or(i64::MAX);
    begun().is_some_and(|begun| (begun as i64) <= spec.now_ms.saturating_sub(lag))
}

impl Pass<'_> {
    fn run(
        &mut self,
        groups: &[Arc<Group>],
        aborted: Aborted<'_>,
        spec: &CompactSpec,
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let Some(last) = groups.last() else {
            return Ok(());
        };
        let spill = self.spill_files(last.id());
        let mut newest = Newest::new(spec.memory, spill).breaking(spec.broken);
        let mut judge = Judge::new(self.rules, aborted);
        let mut producers = self.streamlet.remembered_producers(self.lane, spec.now_ms);
        for group in groups {
            self.each_batch(group, pace, &mut |batch, header| {
                if let Some(last) = producers.get_mut(&header.producer_id) {
                    last.note(header);
                }
                let noted = judge.note(batch, header, &mut newest);
                noted
                    .map(|_| ())
                    .map_err(|error| unwritten(group, error.into()))
            })?;
        }
        self.producers = producers;
        let mut newest = newest
            .finish()
            .map_err(|error| unwritten(last, error.into()))?;
        let settings = self.streamlet.settings();
        let runs = plan::runs(
            groups,
            settings.segment_size.into(),
            settings.segments_per_group.into(),
        );
        let mut judge = Judge::new(self.rules, aborted);
        for run in runs {
            let sources = &groups[run];
            let mut made = self.make(sources)?;
            let written = self.fill(&mut made.rewrite, sources, &mut judge, &mut newest, pace);
            let done = written.and_then(|()| self.finish(&mut made, sources));
            let rewritten = match done {
                Ok(rewritten) => rewritten,
                Err(error) => {
                    self.give_up(&made);
                    return Err(error);
                }
            };
            self.commit(made, rewritten, sources, pace)?;
            self.out.groups_before += sources.len() as u64;
            self.out.groups_after += 1;
            self.out.bytes_before += sources.iter().map(|group| group.end_address()).sum::<u64>();
            self.out.bytes_after += rewritten.end.address;
        }
        Ok(())
    }

    fn spill_files(&self, group: GroupId) -> SpillFiles {
        let (dir, next) = (self.streamlet.dir(), 0);
        SpillFiles {
            io: self.streamlet.io(),
            path: Arc::new(move |number| {
                let generation = SPILL_GENERATION - number as u32;
                dir.join(GroupSpec::file_name(group, generation))
            }),
            next,
        }
    }

    /// Shows `visit` every batch of a group, in order.
    fn each_batch(
        &mut self,
        group: &Arc<Group>,
        pace: Pace<'_>,
        visit: Visit<'_>,
    ) -> Result<(), CompactError> {
        let end = group.end();
        let (mut from, mut expected) = (0, group.spec().first_ordinal);
        while expected < end.ordinal {
            let read = group.read(ReadSpec {
                from,
                limit: end.address,
                end_ordinal: end.ordinal,
                max_bytes: READ_BYTES,
                cached_only: false,
            })?;
            let bytes = match &read.bufs[..] {
                [one] => one.clone(),
                many => many.concat().into(),
            };
            for batch in batches(&bytes) {
                let follows = |header: &BatchHeader| header.base_ordinal == expected;
                match batch {
                    Ok((header, batch)) if follows(&header) => {
                        expected = header.next_ordinal();
                        visit(batch, &header)?;
                    }
                    other => {
                        let reason = match other {
                            Ok((header, _)) => {
                                format!("a batch begins at ordinal {}", header.base_ordinal)
                            }
                            Err(error) => error.to_string(),
                        };
                        return Err(not_whole(group, from, expected, reason));
                    }
                }
            }
            if read.batches == 0 {
                let reason = "its batches end before it does".into();
                return Err(not_whole(group, from, expected, reason));
            }
            from = read.next.address;
            self.out.bytes_read += read.bytes as u64;
            if !pace(read.bytes as u64) || self.streamlet.is_over() {
                return Err(CompactError::Stopped);
            }
        }
        Ok(())
    }

    /// The file of the group that `sources` become.
    fn make(&self, sources: &[Arc<Group>]) -> Result<Made, CompactError> {
        let (Some(first), Some(last)) = (sources.first(), sources.last()) else {
            return Err(CompactError::Changed);
        };
        let unreadable = |error: scan::ScanError| {
            not_whole(first, 0, first.spec().first_ordinal, error.to_string())
        };
        let file = first.file().map_err(|error| unreadable(error.into()))?;
        let closed = ScanSpec::closed(first.spec(), first.end());
        let (header, snapshot) = scan::read_head(&*file, &closed).map_err(unreadable)?;
        let generation = last.spec().generation + 1;
        let name = GroupSpec::file_name(last.id(), generation);
        let spec = GroupSpec {
            generation,
            first_ordinal: first.spec().first_ordinal,
            created_ms: header.created_ms,
            path: self.streamlet.dir().join(name),
            ..last.spec().clone()
        };
        if self.streamlet.is_over() {
            return Err(CompactError::Stopped);
        }
        // What an earlier pass left there counts for nothing: no record names it.
        let io = self.streamlet.io();
        let begun = match io.remove_file(&spec.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Rewrite::begin(spec.clone(), header.ack, &snapshot, io),
        };
        let rewrite = begun.map_err(|error| unwritten(last, error.into()))?;
        Ok(Made { rewrite, spec })
    }

    /// Writes what is left of `sources`.
    fn fill(
        &mut self,
        rewrite: &mut Rewrite,
        sources: &[Arc<Group>],
        judge: &mut Judge<'_>,
        newest: &mut newest::NewestOrdinals,
        pace: Pace<'_>,
    ) -> Result<(), CompactError> {
        let mut last_epoch = Epoch::default();
        let mut unreadable = 0;
        for group in sources {
            // Borrowed apart from the rest, which counts what is read.
            let producers = std::mem::take(&mut self.producers);
            let done = self.each_batch(group, pace, &mut |batch, header| {
                last_epoch = header.epoch;
                let left = judge
                    .judge(batch, header, newest)
                    .map_err(|error| unwritten(group, error.into()))?;
                unreadable += u64::from(left == Left::Unreadable);
                write_left(rewrite, batch, header, left, is_needed(&producers, header))
                    .map_err(|error| unwritten(group, error))
            });
            self.producers = producers;
            done?;
        }
        let last = sources.last().map_or(0, |group| group.end().ordinal);
        let ended = rewrite.end_at(last, last_epoch);
        self.out.unreadable += unreadable;
        match sources.last() {
            Some(group) => ended.map_err(|error| unwritten(group, error)),
            None => Ok(()),
        }
    }

    fn finish(&self, made: &mut Made, sources: &[Arc<Group>]) -> Result<Rewritten, CompactError> {
        let state = sources
            .last()
            .and_then(|last| self.streamlet.state_behind(self.lane, last));
        let incarnation = self.streamlet.incarnation();
        let finished = made.rewrite.finish(&incarnation, state.unwrap_or_default());
        finished.map_err(|error| CompactError::Write {
            what: made.spec.path.display().to_string(),
            error: error.into(),
        })
    }
}

/// A file that is being made.
struct Made {
    rewrite: Rewrite,
    spec: GroupSpec,
}

/// The last batches of a producer in closed groups, which stay for what they say of it, if need be without records: a
/// lane whose owner is gone knows from them which batches it has.
///
/// Later ones in an open group do not stand for them: that group may be lost.
struct LastBatches {
    epoch: i16,
    /// Where they begin, oldest first.
    ordinals: VecDeque<Ordinal>,
    /// That many stay.
    most: usize,
}

impl LastBatches {
    /// Of one that was not silent for long each batch may be sent again that the lane remembers; of others none is.
    fn none(is_recent: bool) -> Self {
        Self {
            epoch: 0,
            ordinals: VecDeque::new(),
            most: if is_recent { REMEMBERED_BATCHES } else { 1 },
        }
    }

    fn note(&mut self, header: &BatchHeader) {
        if header.is_control() {
            return;
        }
        if self.epoch != header.producer_epoch {
            self.epoch = header.producer_epoch;
            self.ordinals.clear();
        }
        if self.ordinals.len() == self.most {
            self.ordinals.pop_front();
        }
        self.ordinals.push_back(header.base_ordinal);
    }

    fn has(&self, header: &BatchHeader) -> bool {
        self.epoch == header.producer_epoch && self.ordinals.contains(&header.base_ordinal)
    }
}

/// Whether a lane needs a batch for what it says of its producer.
fn is_needed(producers: &HashMap<i64, LastBatches>, header: &BatchHeader) -> bool {
    let last = producers.get(&header.producer_id);
    header.is_idempotent() && last.is_some_and(|last| last.has(header))
}

fn write_left(
    rewrite: &mut Rewrite,
    batch: &[u8],
    header: &BatchHeader,
    left: Left,
    is_needed: bool,
) -> Result<(), RewriteError> {
    match left {
        Left::Whole | Left::Unreadable => {
            // What cannot be read stays byte for byte.
            let is_free = !is_needed && left == Left::Whole;
            rewrite.push(batch.to_vec(), is_free)
        }
        Left::Part(bytes) => rewrite.push(bytes, !is_needed),
        Left::Nothing if is_needed => rewrite.push(emptied(batch)?, false),
        Left::Nothing => rewrite.pass(header.next_ordinal(), header.epoch),
    }
}

fn unwritten(group: &Group, error: RewriteError) -> CompactError {
    CompactError::Write {
        what: format!("what is left of {}", group.spec().path.display()),
        error,
    }
}

fn not_whole(group: &Group, offset: u64, ordinal: Ordinal, reason: String) -> CompactError {
    CompactError::Read(ReadError::Damaged {
        file: group.spec().path.display().to_string(),
        offset,
        ordinal,
        reason,
    })
}
