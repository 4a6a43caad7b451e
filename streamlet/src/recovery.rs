//! Starting from what a previous process left.
//!
//! Closed groups are taken from their records, open ones are scanned (`lane_recovery.rs`). Lanes open new
//! groups, of the new epoch, at their next append; nothing is appended to a file found here.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arc_swap::{ArcSwap, ArcSwapOption};
use kera_log_segments::footer::Footer;
use kera_log_segments::group::GroupSpec;
use kera_log_segments::invariant;
use kera_log_segments::io::{FileRef, OpenHow};
use kera_log_segments::layout::SegmentHeader;
use kera_log_segments::scan::{self, ScanError, ScanSpec};
use kera_log_segments::sync::{Arc, Rank, mutex};
use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal, StreamId, StreamletId};
use kera_records::{GroupRecord, Write};

use crate::append::MIN_PINS;
use crate::lane_recovery::LaneBuild;
use crate::standing::{Standing, StandingCell};
use crate::streamlet::{Env, Inner, Lane, LaneSlot, Settings, Streamlet, streamlet_lock};
use crate::traffic::Traffic;

/// A lane's records.
#[derive(Clone, Debug, Default)]
pub struct LaneRecords {
    /// First readable ordinal.
    pub log_start: Ordinal,
    /// Its groups, in any order.
    pub groups: Vec<GroupRecord>,
}

/// What a start compares: the files there are, and those that records name. Both are made once, since there may be
/// very many.
struct FileNames {
    /// What lies in the streamlet's directory, sorted.
    there: Vec<String>,
    /// The names of the recorded groups' files.
    recorded: HashSet<String>,
}

impl FileNames {
    fn is_there(&self, name: &str) -> bool {
        let found = self
            .there
            .binary_search_by(|there| there.as_str().cmp(name));
        found.is_ok()
    }

    /// Whether closed groups of a lane, whose files are there, hold all of its ordinals between the two.
    fn hold(&self, lane: &LaneRecords, mut begin: Ordinal, end: Ordinal) -> bool {
        let mut closed: Vec<_> = lane
            .groups
            .iter()
            .filter(|group| group.is_closed())
            .collect();
        closed.sort_by_key(|group| group.group);
        for group in closed {
            if group.start_ordinal() <= begin && begin < group.end_ordinal {
                if !self.is_there(&GroupSpec::file_name(group.group, group.generation)) {
                    return false;
                }
                begin = group.end_ordinal;
            }
        }
        begin >= end
    }
}

/// At most this many files that are gone get a line of their own in the log; the rest are counted.
const GONE_TOLD: usize = 10;

/// What recovery found and wants recorded.
#[derive(Debug, Default)]
pub struct Recovery {
    /// To be recorded before the streamlet serves. Groups that are whole are not among them: they
    /// stay open in the records, frozen, until the ordinary [`crate::Job::Close`] has synced them.
    pub changes: Vec<Write>,
    /// To be removed once the changes are recorded.
    pub remove: Vec<PathBuf>,
    /// To be set aside once the changes are recorded: files that do not count, and that hold, or may hold,
    /// records that did.
    pub aside: Vec<PathBuf>,
    /// Groups found damaged, cut short or gone.
    pub damaged: usize,
    /// Damage and gaps, for the log and for people.
    pub reports: Vec<String>,
    /// Groups scanned.
    pub scanned: usize,
    /// Bytes scanned.
    pub scanned_bytes: u64,
    /// Gaps in ordinals that this recovery made: lane, first missing, next.
    pub gaps: Vec<(LaneId, Ordinal, Ordinal)>,
}

impl Streamlet {
    /// A streamlet without history.
    pub fn new(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        settings: Settings,
        env: Arc<Env>,
    ) -> Arc<Self> {
        let lanes = (0..settings.lanes).map(|_| Lane::empty(0)).collect();
        Arc::new(Self::with(
            stream,
            id,
            epoch,
            Standing::Serving,
            settings,
            env,
            lanes,
        ))
    }

    fn with(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        standing: Standing,
        settings: Settings,
        env: Arc<Env>,
        lanes: Vec<Lane>,
    ) -> Self {
        Self {
            stream,
            id,
            env,
            maintenance: mutex(Rank::Maintenance, ()),
            mending: mutex(Rank::Maintenance, ()),
            replaced: mutex(Rank::File, Default::default()),
            inner: streamlet_lock(Inner {
                epoch,
                next_group: 0,
                lanes,
                pins: HashMap::new(),
                pins_limit: MIN_PINS,
                announcing: Vec::new(),
                made_ahead: HashMap::new(),
                lane_generation: settings.lane_generation,
            }),
            settings: ArcSwap::from_pointee(settings),
            standing: StandingCell::new(standing),
            unreadable: ArcSwapOption::empty(),
            copies: OnceLock::new(),
            own_writes: Default::default(),
            traffic: Traffic::default(),
        }
    }

    /// A streamlet whose groups have copies at other brokers, and that serves nothing until it has
    /// been recovered from them: [`Self::take_over`], then [`Self::serve`].
    pub fn awaiting(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        settings: Settings,
        env: Arc<Env>,
    ) -> Arc<Self> {
        Self::without_lanes(stream, id, epoch, Standing::Recovering, settings, env)
    }

    /// A streamlet that another broker owns: it has no lanes, and answers so.
    pub fn elsewhere(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        settings: Settings,
        env: Arc<Env>,
    ) -> Arc<Self> {
        Self::without_lanes(stream, id, epoch, Standing::Moved, settings, env)
    }

    fn without_lanes(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        standing: Standing,
        settings: Settings,
        env: Arc<Env>,
    ) -> Arc<Self> {
        let lanes = Vec::new();
        Arc::new(Self::with(
            stream, id, epoch, standing, settings, env, lanes,
        ))
    }

    /// Takes over what records and files hold, under the new `epoch`.
    ///
    /// # Errors
    /// The store's, if a file that exists cannot be read at all, and `InvalidData` for one of a newer
    /// format or of another group, or if the records are older than the files: the operator must decide.
    #[allow(clippy::too_many_arguments)]
    pub fn recover(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        next_group: GroupId,
        settings: Settings,
        env: Arc<Env>,
        records: HashMap<LaneId, LaneRecords>,
        now_ms: u64,
    ) -> std::io::Result<(Arc<Self>, Recovery)> {
        let this = Self::with(
            stream,
            id,
            epoch,
            Standing::Serving,
            settings,
            env,
            Vec::new(),
        );
        let out = this.recover_files(epoch, next_group, records, now_ms)?;
        Ok((Arc::new(this), out))
    }

    /// As [`Self::recover`], in place, of one whose files could not be read at the start and that has no replicas
    /// elsewhere: [`Self::serve_alone`] is to follow.
    ///
    /// # Errors
    /// As [`Self::recover`]; it is as it was then.
    pub fn recover_files(
        &self,
        epoch: Epoch,
        next_group: GroupId,
        records: HashMap<LaneId, LaneRecords>,
        now_ms: u64,
    ) -> std::io::Result<Recovery> {
        let names = self.compare_names(&records)?;
        self.refuse_older_records(epoch, &records, &names)?;
        let mut out = self.take_over_files(epoch, next_group, records, &names, now_ms)?;
        self.find_gone(&names, &mut out);
        Ok(out)
    }

    /// Its files cannot be read now, for a cause that people and clients are told; it waits until they can.
    pub fn set_unreadable(&self, cause: String) {
        self.unreadable.store(Some(cause.into()));
    }

    /// Why its files cannot be read, if it waits for that.
    pub fn unreadable(&self) -> Option<String> {
        let cause = self.unreadable.load();
        cause.as_ref().map(|cause| cause.as_ref().clone())
    }

    /// Serves from now on, without replicas at other brokers.
    pub fn serve_alone(&self) {
        self.standing.advance(Standing::Serving);
        self.unreadable.store(None);
    }

    /// Refuses records that are older than the files, as after an older copy of the metadata store was put back:
    /// what they do not know would be removed, and its ordinals used again. A file without a record shows it that
    /// was closed and not trimmed, which no group is before its record is durable, or that is of this epoch, under
    /// which nothing was written yet. What compaction leaves behind holds nothing that the records' own files do not
    /// hold: groups that others replaced, and ones that were made and not recorded.
    fn refuse_older_records(
        &self,
        epoch: Epoch,
        records: &HashMap<LaneId, LaneRecords>,
        names: &FileNames,
    ) -> std::io::Result<()> {
        let mut newer = Vec::new();
        for name in &names.there {
            if names.recorded.contains(name) || GroupSpec::parse_file_name(name).is_none() {
                continue;
            }
            let path = self.dir().join(name);
            let is_newer = || -> std::io::Result<bool> {
                let Some((file, header)) = self.with_header(&path)? else {
                    return Ok(false);
                };
                let log_start = records.get(&header.lane).map_or(0, |lane| lane.log_start);
                let begin = log_start.max(header.first_ordinal);
                let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
                let footer = Footer::find(&*file, group_bytes)?;
                let end = footer.map_or(begin, |footer| footer.end_ordinal);
                let is_held = || {
                    let lane = records.get(&header.lane);
                    lane.is_some_and(|lane| names.hold(lane, begin, end))
                };
                Ok(header.epoch >= epoch || end > begin && !is_held())
            };
            let is_newer = is_newer().map_err(|error| {
                let path = path.display();
                std::io::Error::new(error.kind(), format!("{path} cannot be read: {error}"))
            })?;
            if is_newer {
                newer.push(path);
            }
        }
        newer.sort();
        match newer.first() {
            None => Ok(()),
            Some(first) => Err(std::io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "{} and {} more files hold records that the metadata store does not know: it is older than the data, as after an older copy of it was put back; put back the newest one, or move these files elsewhere to go on without what they hold. No file was changed",
                    first.display(),
                    newer.len() - 1
                ),
            )),
        }
    }

    fn compare_names(&self, records: &HashMap<LaneId, LaneRecords>) -> std::io::Result<FileNames> {
        let groups = records.values().flat_map(|lane| &lane.groups);
        let recorded = groups.map(|group| GroupSpec::file_name(group.group, group.generation));
        Ok(FileNames {
            there: self.file_names()?,
            recorded: recorded.collect(),
        })
    }

    /// What lies in the streamlet's directory, sorted.
    pub(crate) fn file_names(&self) -> std::io::Result<Vec<String>> {
        match self.env.io.list(&self.dir()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            names => names,
        }
    }

    /// Tells of closed groups whose files are gone. Nobody else has them.
    fn find_gone(&self, names: &FileNames, out: &mut Recovery) {
        let mut gone = 0;
        let inner = self.inner.lock();
        let closed = inner.lanes.iter().flat_map(|lane| lane.groups.values());
        for group in closed.filter(|group| group.lane_head().is_none()) {
            let spec = group.spec();
            if names.is_there(&GroupSpec::file_name(spec.group, spec.generation)) {
                continue;
            }
            gone += 1;
            if gone <= GONE_TOLD {
                out.reports.push(format!(
                    "{}: damaged: the file of a closed group is gone, ordinals {} to {} cannot be read; restore it, or trim the lane above them",
                    spec.path.display(),
                    spec.first_ordinal,
                    group.end().ordinal
                ));
            }
        }
        out.damaged += gone;
        if let Some(more) = gone.checked_sub(GONE_TOLD).filter(|more| *more > 0) {
            out.reports.push(format!(
                "{}: damaged: {more} more files of closed groups are gone",
                self.dir().display()
            ));
        }
    }

    /// As [`Self::recover`], in place, for a streamlet that serves nothing yet.
    ///
    /// # Errors
    /// As [`Self::recover`]; it is as it was then.
    pub fn take_over(
        &self,
        epoch: Epoch,
        next_group: GroupId,
        records: HashMap<LaneId, LaneRecords>,
        now_ms: u64,
    ) -> std::io::Result<Recovery> {
        let names = self.compare_names(&records)?;
        self.take_over_files(epoch, next_group, records, &names, now_ms)
    }

    fn take_over_files(
        &self,
        epoch: Epoch,
        next_group: GroupId,
        mut records: HashMap<LaneId, LaneRecords>,
        names: &FileNames,
        now_ms: u64,
    ) -> std::io::Result<Recovery> {
        let before = self.epoch();
        invariant!(
            epoch >= before,
            "{} would go back from epoch {before} to {epoch}",
            self.key()
        );
        let mut out = Recovery::default();
        let settings = self.settings();
        let highest = records
            .values()
            .flat_map(|l| &l.groups)
            .map(|g| g.group.0)
            .max()
            .unwrap_or(0);
        let highest = highest.max(next_group.0.saturating_sub(1));
        let mut lanes = Vec::with_capacity(settings.lanes as usize);
        let mut pins = HashMap::new();
        for index in 0..settings.lanes {
            let lane = LaneId(index);
            let records = records.remove(&lane).unwrap_or_default();
            let built = LaneBuild::new(self, &settings, lane, records.log_start, now_ms, &mut out)
                .finish(records)?;
            if let LaneSlot::Idle(carry) = &built.slot {
                pins.extend(
                    carry
                        .state
                        .producer_epochs()
                        .map(|producer| (producer, lane)),
                );
            }
            lanes.push(built);
        }
        if let Some(lane) = records.keys().min() {
            out.reports.push(format!(
                "{}: there are groups of lane {lane}, but only {} lanes are recorded; they are left alone",
                self.dir().display(), settings.lanes
            ));
        }
        let found = self.find_unrecorded(names, epoch, &mut out);
        let mut inner = self.inner.lock();
        // A growth may have been heard meanwhile. It stores its settings in this lock.
        let lanes_now = self.settings().lanes;
        if records.keys().any(|lane| lane.0 < lanes_now) {
            let told =
                "lanes of a growth were heard of that have groups already; it is tried again";
            return Err(std::io::Error::other(told));
        }
        inner.epoch = epoch;
        inner.lanes = lanes;
        inner
            .lanes
            .resize_with(lanes_now as usize, || Lane::empty(0));
        inner.pins = pins;
        // An unrecorded file is removed later: no new group may take its name.
        inner.next_group = highest.max(found);
        drop(inner);
        Ok(out)
    }

    /// Group files without a record are of an older epoch: nothing of them ever counted. Those of this epoch or a
    /// later one are newer than the records, which were put back to an older state: they are set aside. Returns
    /// the highest group id among all files.
    fn find_unrecorded(&self, names: &FileNames, epoch: Epoch, out: &mut Recovery) -> u64 {
        let mut highest = 0;
        for name in &names.there {
            let Some((group, _)) = GroupSpec::parse_file_name(name) else {
                out.reports.push(format!(
                    "{} is not a group file; it is left alone",
                    self.dir().join(name).display()
                ));
                continue;
            };
            highest = highest.max(group.0);
            if names.recorded.contains(name) {
                continue;
            }
            let path = self.dir().join(name);
            match self.may_hold_newer(&path, epoch) {
                Ok(false) => out.remove.push(path),
                Ok(true) => {
                    out.reports.push(format!(
                        "{} is newer than the metadata store, which does not know it, as after a restore of an older one; it is set aside",
                        path.display()
                    ));
                    out.aside.push(path);
                }
                Err(error) => out.reports.push(format!(
                    "no record names {}, and it cannot be read ({error}): it is left alone",
                    path.display()
                )),
            }
        }
        highest
    }

    /// Whether a group file is of this epoch or a later one, and anything was written into it: a file that was made ahead of its
    /// group's record holds nothing that anybody could have been shown.
    fn may_hold_newer(&self, path: &Path, epoch: Epoch) -> std::io::Result<bool> {
        match self.with_header(path)? {
            Some((file, header)) if header.epoch >= epoch => Ok(!scan::is_without_batches(&*file)?),
            _ => Ok(false),
        }
    }

    /// Whether a group file, by its header, is of this epoch or a later one.
    ///
    /// # Errors
    /// The store's: then nobody knows.
    pub(crate) fn is_since(&self, path: &Path, epoch: Epoch) -> std::io::Result<bool> {
        let found = self.with_header(path)?;
        Ok(found.is_some_and(|(_, header)| header.epoch >= epoch))
    }

    /// A group file, with its header; `None` if it was never written, or is gone by now.
    fn with_header(&self, path: &Path) -> std::io::Result<Option<(FileRef, SegmentHeader)>> {
        let read = || {
            let file = self.env.io.open(path, OpenHow::ReadOnly, false)?;
            let (header, _) = scan::read_head(&*file, &ScanSpec::default())?;
            Ok((file, header))
        };
        match read() {
            Ok(found) => Ok(Some(found)),
            Err(ScanError::Io(error)) if error.kind() != ErrorKind::NotFound => Err(error),
            Err(_) => Ok(None),
        }
    }
}
