//! Starting from what a previous process left.
//!
//! Closed groups are taken from their records. Open ones are scanned; each counts if it begins where
//! the one before ends. All of them are closed, in one bulk of changes that the caller records
//! before it serves; lanes open new groups, of the new epoch, at their next append.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use arc_swap::ArcSwap;
use kera_log_segments::group::{AckPolicy, Group, GroupSpec};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::OpenHow;
use kera_log_segments::scan::{self, ScanError, ScanSpec, Scanned};
use kera_log_segments::sync::{Arc, AtomicBool, AtomicU64, Mutex};
use kera_log_segments::window::Place;
use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal, StreamId, StreamletId};

use crate::producers::LaneState;
use crate::recorder::{Closed, GroupChange};
use crate::streamlet::{Carry, Env, Inner, Lane, LaneSlot, Prepared, Settings, Streamlet};

/// How far ordinals jump after a loss of records that may have been shown: a group never spans more.
pub const ORDINAL_JUMP: u64 = 1 << 32;

/// A group as its record describes it.
#[derive(Clone, Debug)]
pub struct RecoveredGroup {
    /// Its id.
    pub group: GroupId,
    /// Its file generation.
    pub generation: u32,
    /// Its epoch.
    pub epoch: Epoch,
    /// How it was closed; `None` if it is open or was only recorded ahead.
    pub closed: Option<Closed>,
    /// The boot in which it was opened.
    pub boot_id: [u8; 16],
}

/// A lane's records.
#[derive(Clone, Debug, Default)]
pub struct LaneRecords {
    /// First readable ordinal.
    pub log_start: Ordinal,
    /// Its groups, in any order.
    pub groups: Vec<RecoveredGroup>,
}

/// What recovery found and wants recorded.
#[derive(Debug, Default)]
pub struct Recovery {
    /// To be recorded before the streamlet serves.
    pub changes: Vec<GroupChange>,
    /// To be removed once the changes are recorded.
    pub remove: Vec<PathBuf>,
    /// Damage and gaps, for the log and for people.
    pub reports: Vec<String>,
    /// Groups scanned.
    pub scanned: usize,
    /// Bytes scanned.
    pub scanned_bytes: u64,
    /// Gaps in ordinals that this recovery made: lane, first missing, next.
    pub gaps: Vec<(LaneId, Ordinal, Ordinal)>,
}

struct LaneBuild<'a> {
    streamlet: &'a Streamlet,
    settings: &'a Settings,
    lane: LaneId,
    now_ms: u64,
    out: &'a mut Recovery,
    kept: Vec<Arc<Group>>,
    state: Option<LaneState>,
    /// Where the next group must begin.
    expected: Option<Ordinal>,
}

impl Streamlet {
    /// A streamlet without history.
    pub fn new(stream: StreamId, id: StreamletId, epoch: Epoch, settings: Settings, env: Arc<Env>) -> Arc<Self> {
        let lanes = (0..settings.lanes).map(|_| Lane::empty(0)).collect();
        Arc::new(Self::with(stream, id, epoch, 0, settings, env, lanes))
    }

    fn with(stream: StreamId, id: StreamletId, epoch: Epoch, next_group: u64, settings: Settings, env: Arc<Env>, lanes: Vec<Lane>) -> Self {
        Self {
            stream,
            id,
            env,
            settings: ArcSwap::from_pointee(settings),
            inner: Mutex::new(Inner { epoch, next_group, lanes, pins: HashMap::new(), cutting: false }),
            deleted: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Takes over what records and files hold, under the new `epoch`.
    ///
    /// # Errors
    /// The store's, if a file that exists cannot be read at all: the operator must decide.
    #[allow(clippy::too_many_arguments)]
    pub fn recover(
        stream: StreamId,
        id: StreamletId,
        epoch: Epoch,
        next_group: GroupId,
        settings: Settings,
        env: Arc<Env>,
        mut records: HashMap<LaneId, LaneRecords>,
        now_ms: u64,
    ) -> std::io::Result<(Arc<Self>, Recovery)> {
        let mut out = Recovery::default();
        let highest = records.values().flat_map(|l| &l.groups).map(|g| g.group.0).max().unwrap_or(0);
        let highest = highest.max(next_group.0.saturating_sub(1));
        let known: Vec<String> = records
            .values()
            .flat_map(|l| &l.groups)
            .map(|g| GroupSpec::file_name(g.group, g.generation))
            .collect();
        let this = Self::with(stream, id, epoch, highest, settings.clone(), env, Vec::new());
        let mut lanes = Vec::with_capacity(settings.lanes as usize);
        let mut pins = HashMap::new();
        for index in 0..settings.lanes {
            let lane = LaneId(index);
            let records = records.remove(&lane).unwrap_or_default();
            let built = this.recover_lane(&settings, lane, records, now_ms, &mut out)?;
            if let LaneSlot::Idle(carry) = &built.slot {
                pins.extend(carry.state.producer_epochs().map(|producer| (producer, lane)));
            }
            lanes.push(built);
        }
        this.find_unrecorded(&known, &mut out)?;
        {
            let mut inner = this.inner.lock();
            inner.lanes = lanes;
            inner.pins = pins;
        }
        Ok((Arc::new(this), out))
    }

    fn recover_lane(
        &self,
        settings: &Settings,
        lane: LaneId,
        mut records: LaneRecords,
        now_ms: u64,
        out: &mut Recovery,
    ) -> std::io::Result<Lane> {
        records.groups.sort_by_key(|g| g.group);
        let mut build = LaneBuild { streamlet: self, settings, lane, now_ms, out, kept: Vec::new(), state: None, expected: None };
        for (index, record) in records.groups.iter().enumerate() {
            let later = (records.groups.len() - index - 1) as u64;
            match &record.closed {
                Some(closed) => build.take_closed(record, closed),
                None => build.take_open(record, later)?,
            }
        }
        let state = build.final_state();
        let (kept, expected) = (build.kept, build.expected);
        let next_ordinal = expected.unwrap_or(records.log_start).max(records.log_start);
        let mut slot = Lane {
            head: Arc::new(LaneHead::new(next_ordinal)),
            slot: LaneSlot::Idle(Carry { state, next_ordinal }),
            groups: kept.into_iter().map(|g| (g.id(), g)).collect(),
            log_start: records.log_start,
            prepared: Prepared::No,
        };
        if let LaneSlot::Idle(carry) = &mut slot.slot {
            carry.state.expire(now_ms.saturating_sub(self.env.limits.producer_expiry_ms));
        }
        Ok(slot)
    }

    /// Group files without a record are of an older epoch: nothing of them ever counted.
    fn find_unrecorded(&self, known: &[String], out: &mut Recovery) -> std::io::Result<()> {
        let names = match self.env.io.list(&self.dir()) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in names {
            if GroupSpec::parse_file_name(&name).is_none() {
                out.reports.push(format!("{} is not a group file; it is left alone", self.dir().join(&name).display()));
            } else if !known.contains(&name) {
                out.remove.push(self.dir().join(&name));
            }
        }
        Ok(())
    }
}

impl LaneBuild<'_> {
    fn spec(&self, record: &RecoveredGroup, first_ordinal: Ordinal) -> GroupSpec {
        let mut spec = self.streamlet.spec(self.settings, self.lane, record.group, record.epoch, first_ordinal, 0);
        spec.generation = record.generation;
        spec.path = self.streamlet.dir().join(GroupSpec::file_name(record.group, record.generation));
        spec
    }

    fn take_closed(&mut self, record: &RecoveredGroup, closed: &Closed) {
        let spec = self.spec(record, closed.first_ordinal);
        let end = Place { address: closed.length, ordinal: closed.end_ordinal };
        if closed.end_ordinal > closed.first_ordinal {
            let io = self.streamlet.env.io.clone();
            self.kept.push(Group::closed(spec, end, closed.data_start, closed.max_timestamp, io));
            self.state = None;
        }
        self.expected = Some(closed.next_ordinal);
    }

    fn take_open(&mut self, record: &RecoveredGroup, later: u64) -> std::io::Result<()> {
        let spec = self.spec(record, 0);
        let (scanned, state) = match self.scan(&spec) {
            Ok(found) => found,
            Err(ScanError::Io(error)) if error.kind() == ErrorKind::NotFound => {
                self.discard(&spec);
                return Ok(());
            }
            Err(ScanError::Io(error)) => {
                let text = format!("{}: {error}", spec.path.display());
                return Err(std::io::Error::new(error.kind(), text));
            }
            Err(error) => {
                // Without a header nothing of it was acknowledged, unless a mark says otherwise.
                if self.was_durable(&spec) {
                    self.out.reports.push(format!("{} is damaged: {error}", spec.path.display()));
                    self.jump(self.expected.unwrap_or(0), later);
                }
                self.discard(&spec);
                return Ok(());
            }
        };
        self.out.scanned += 1;
        self.out.scanned_bytes += scanned.end.address;
        let first = scanned.header.first_ordinal;
        if self.expected.is_some_and(|expected| expected != first) {
            self.out.reports.push(format!(
                "{} begins at ordinal {first} where {} should follow; it was never acknowledged and is discarded",
                spec.path.display(),
                self.expected.unwrap_or(0)
            ));
            self.discard(&spec);
            return Ok(());
        }
        let end = scanned.end;
        let lost = self.loss(record, &scanned);
        if scanned.batches == 0 && lost.is_none() {
            // Its snapshot lives on in memory; the file may go once an older group holds the state.
            self.state = Some(state);
            self.expected = Some(end.ordinal);
            if !self.kept.is_empty() {
                self.discard(&spec);
                return Ok(());
            }
        } else {
            self.state = Some(state);
        }
        let mut damage = String::new();
        let mut next_ordinal = end.ordinal;
        if let Some(reason) = lost {
            next_ordinal = end.ordinal + ORDINAL_JUMP * (1 + later);
            self.out.gaps.push((self.lane, end.ordinal, next_ordinal));
            let text = format!(
                "{}: {reason} (byte {}, batch at ordinal {}: {}); the lane goes on at ordinal {next_ordinal}",
                spec.path.display(), end.address, end.ordinal, scanned.stop
            );
            self.out.reports.push(text.clone());
            damage = text;
        }
        self.expected = Some(next_ordinal);
        self.out.changes.push(GroupChange::Close(Closed {
            group: self.streamlet.group_name(record.group),
            lane: self.lane,
            epoch: record.epoch,
            first_ordinal: first,
            data_start: scanned.data_start,
            length: end.address,
            end_ordinal: end.ordinal,
            next_ordinal,
            max_timestamp: scanned.max_timestamp,
            closed_ms: self.now_ms,
            damage,
        }));
        let spec = self.spec(record, first);
        let io = self.streamlet.env.io.clone();
        self.kept.push(Group::closed(spec, end, scanned.data_start, scanned.max_timestamp, io));
        Ok(())
    }

    fn scan(&self, spec: &GroupSpec) -> Result<(Scanned, LaneState), ScanError> {
        let file = self.streamlet.env.io.open(&spec.path, OpenHow::ReadWrite, false)?;
        let mut noted = Vec::new();
        let scanned = scan::scan(&*file, &ScanSpec::open(spec, self.streamlet.env.incarnation), |header, _| noted.push(*header))?;
        let mut state = LaneState::decode(&scanned.snapshot).unwrap_or_default();
        for header in &noted {
            state.note(header, self.now_ms, self.streamlet.env.limits.max_producers);
        }
        Ok((scanned, state))
    }

    fn was_durable(&self, spec: &GroupSpec) -> bool {
        let incarnation = &self.streamlet.env.incarnation;
        self.streamlet
            .env
            .io
            .open(&spec.path, OpenHow::ReadOnly, false)
            .and_then(|file| scan::read_mark(&*file, spec.group_bytes()))
            .ok()
            .flatten()
            .is_some_and(|mark| mark.binding_length(&incarnation.store_id, &incarnation.boot_id) > 0)
    }

    /// Why records that had been shown may be missing from this group, if they may.
    fn loss(&self, record: &RecoveredGroup, scanned: &Scanned) -> Option<&'static str> {
        let same_boot = record.boot_id == self.streamlet.env.incarnation.boot_id;
        if scanned.damaged {
            Some("damaged: the data ends below what was durable")
        } else if self.settings.ack == AckPolicy::Memory {
            Some("records acknowledged in memory only may be lost")
        } else if self.settings.ack == AckPolicy::Written && !same_boot {
            Some("the machine went down, records not yet synced may be lost")
        } else {
            None
        }
    }

    fn jump(&mut self, from: Ordinal, later: u64) {
        let to = from + ORDINAL_JUMP * (1 + later);
        self.out.gaps.push((self.lane, from, to));
        self.expected = Some(to);
    }

    fn discard(&mut self, spec: &GroupSpec) {
        self.out.changes.push(GroupChange::Delete(self.streamlet.group_name(spec.group)));
        self.out.remove.push(spec.path.clone());
    }

    /// The state after the lane's last group: already known from its scan, else from its footer or
    /// a walk over its headers.
    fn final_state(&mut self) -> LaneState {
        if let Some(state) = self.state.take() {
            return state;
        }
        let Some(last) = self.kept.last() else { return LaneState::default() };
        if let Some(state) = last.read_footer().and_then(|f| LaneState::decode(&f.lane_state)) {
            return state;
        }
        let spec = ScanSpec::closed(last.spec(), last.end());
        let scan = last.file().map_err(ScanError::Io).and_then(|file| {
            let mut noted = Vec::new();
            let scanned = scan::scan(&*file, &spec, |header, _| noted.push(*header))?;
            Ok((scanned, noted))
        });
        match scan {
            Ok((scanned, noted)) => {
                let mut state = LaneState::decode(&scanned.snapshot).unwrap_or_default();
                for header in &noted {
                    state.note(header, self.now_ms, self.streamlet.env.limits.max_producers);
                }
                state
            }
            Err(error) => {
                self.out.reports.push(format!(
                    "{}: the lane's memory of its producers cannot be read ({error}); they must begin anew",
                    last.spec().path.display()
                ));
                LaneState::default()
            }
        }
    }
}
