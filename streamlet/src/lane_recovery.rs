//! One lane from its records and files.
//!
//! Each open group is scanned and counts if it begins where the one before ends: that also proves
//! the one before whole. Where records that had been shown may be missing at the lane's end,
//! ordinals jump, so that none is used twice; where they are missing before a group that is whole,
//! that group is kept and the gap reported.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::time::Instant;

use kera_log_segments::damage::{FileDamage, Unsynced};
use kera_log_segments::group::{AckPolicy, Group, GroupSpec};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::{OpenHow, ReadAt};
use kera_log_segments::lane_chain::LaneChain;
use kera_log_segments::layout::LayoutError;
use kera_log_segments::scan::{self, ScanError, ScanSpec, Scanned};
use kera_log_segments::sync::Arc;
use kera_log_segments::window::Place;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};
use kera_records::{Damage, GroupRecord, Write};

use crate::lane_memory::{decoded, lost_between, told_lost};
use crate::producers::{LaneState, Verdict};
use crate::recovery::{LaneRecords, Recovery};
use crate::streamlet::{Carry, Failed, Lane, LaneSlot, Prepared, Settings, Streamlet, Unread};

/// Why records that had been shown may be missing.
const GONE: &str = "damaged: its file is gone, and it was there when the group was recorded";
const WRITTEN_ANEW: &str =
    "damaged: it was not whole any more after its unsynced bytes were written to the device again";
const SHORT: &str = "damaged: the data ends below where the next group begins";
/// Those of them that are not a promise's, but the disk's or somebody's doing.
const DAMAGE: [&str; 6] = [
    FileDamage::BelowMark.reason(),
    FileDamage::NoMark.reason(),
    FileDamage::MoreBehind.reason(),
    GONE,
    WRITTEN_ANEW,
    SHORT,
];
const MEMORY: &str = "records acknowledged in memory only may be lost";
const POWER: &str = "the machine went down, records not yet synced may be lost";

pub(crate) struct LaneBuild<'a> {
    streamlet: &'a Streamlet,
    settings: &'a Settings,
    lane: LaneId,
    log_start: Ordinal,
    now_ms: u64,
    out: &'a mut Recovery,
    head: Arc<LaneHead>,
    kept: Vec<Arc<Group>>,
    /// Recorded without data, and where the lane goes on behind each.
    empty: BTreeMap<GroupId, Ordinal>,
    /// Those of `kept` that the records have as open.
    open: Vec<Open>,
    /// Open in the records, without a usable file.
    missing: Vec<Missing>,
    /// The last group that counts is one of `open`.
    open_end: bool,
    state: Option<LaneState>,
    /// What counts so far.
    chain: LaneChain,
}

struct Open {
    group: Arc<Group>,
    /// Why it must be closed at once, for people.
    damage: Option<String>,
    is_damaged: bool,
    /// Where the lane goes on, if that is not its end.
    next: Option<Ordinal>,
    stop: String,
}

struct Missing {
    spec: GroupSpec,
    /// Where it began, as recorded. Above `at` if the end of a group before it is lost as well.
    first: Option<Ordinal>,
    /// Where the lane ended before it.
    at: Ordinal,
    /// Where it goes on; not known before the next group that counts.
    next: Option<Ordinal>,
    /// Its file holds something that once counted, or its record carries a gap: it is closed, not
    /// deleted.
    damage: Option<String>,
    is_damaged: bool,
}

impl<'a> LaneBuild<'a> {
    pub(crate) fn new(
        streamlet: &'a Streamlet,
        settings: &'a Settings,
        lane: LaneId,
        log_start: Ordinal,
        now_ms: u64,
        out: &'a mut Recovery,
    ) -> Self {
        Self {
            streamlet,
            settings,
            lane,
            log_start,
            now_ms,
            out,
            head: Arc::new(LaneHead::new(0)),
            kept: Vec::new(),
            empty: BTreeMap::new(),
            open: Vec::new(),
            missing: Vec::new(),
            open_end: false,
            state: None,
            chain: LaneChain::new(log_start, None),
        }
    }

    /// Puts the lane together.
    ///
    /// # Errors
    /// The store's, and `InvalidData` for a file that only an operator may judge.
    pub(crate) fn finish(mut self, mut records: LaneRecords) -> std::io::Result<Lane> {
        records.groups.sort_by_key(|g| g.group);
        for record in &records.groups {
            match record.is_closed() {
                true => self.take_closed(record),
                false => self.take_open(record)?,
            }
        }
        let next_ordinal = self.chain.next_ordinal();
        self.go_on(next_ordinal);
        self.settle_open();
        self.settle_missing();
        let slot = self.idle(next_ordinal)?;
        // Everything recovered counts: what is on disk was, or may have been, acknowledged.
        for open in self.open.iter().filter(|open| open.damage.is_none()) {
            self.head.push_group(open.group.clone());
        }
        self.head.advance();
        self.head.raise(next_ordinal);
        Ok(Lane {
            head: self.head,
            slot,
            groups: self.kept.into_iter().map(|g| (g.id(), g)).collect(),
            empty: self.empty,
            log_start: self.log_start,
            prepared: Prepared::No,
            ends: Default::default(),
            asks_flushed: false,
        })
    }

    fn spec(&self, record: &GroupRecord, first_ordinal: Ordinal) -> GroupSpec {
        let mut spec = self.streamlet.spec(
            self.settings,
            self.lane,
            record.group,
            record.epoch,
            first_ordinal,
            0,
        );
        spec.generation = record.generation;
        spec.path = self
            .streamlet
            .dir()
            .join(GroupSpec::file_name(record.group, record.generation));
        spec
    }

    fn take_closed(&mut self, closed: &GroupRecord) {
        let first_ordinal = closed.start_ordinal();
        self.go_on(first_ordinal);
        // One without records only says where the lane goes on.
        if closed.holds_records() {
            let spec = self.spec(closed, first_ordinal);
            let end = Place {
                address: closed.length,
                ordinal: closed.end_ordinal,
            };
            let io = self.streamlet.env.io.clone();
            self.kept.push(Group::closed(
                spec,
                end,
                0,
                closed.max_timestamp_ms,
                closed.closed_ms,
                io,
            ));
            self.state = None;
        } else {
            self.empty.insert(closed.group, closed.next_ordinal);
        }
        self.chain.counts(closed.next_ordinal, None);
        self.open_end = false;
    }

    fn take_open(&mut self, record: &GroupRecord) -> std::io::Result<()> {
        let spec = self.spec(record, 0);
        let (mut scanned, mut state) = match self.scan(&spec) {
            Ok(found) => found,
            Err(error) => return self.take_missing(record, spec, error, None),
        };
        self.out.scanned += 1;
        self.out.scanned_bytes += scanned.end.address;
        let first = scanned.header.first_ordinal;
        let end = self.chain.end();
        if first > end && scanned.header.in_order && scanned.batches > 0 {
            // All before it was whole when it was written.
            self.chain.loses(Some(SHORT));
        }
        if !self.chain.continues(first) {
            if scanned.batches > 0 {
                self.out.reports.push(format!(
                    "{} begins at ordinal {first} where {end} should follow: nothing of it was acknowledged, unless a group before it was damaged; it does not count and is set aside",
                    spec.path.display()
                ));
                self.out.aside.push(spec.path.clone());
            }
            self.chain.leaves_out();
            self.discard(&spec);
            return Ok(());
        }
        self.go_on(first);
        let lost = self.loss(record, &spec, &scanned)?;
        self.chain.counts(scanned.end.ordinal, lost);
        if scanned.batches == 0 && lost.is_none() && !self.kept.is_empty() {
            // Without batches it says nothing that the group before does not say.
            self.discard(&spec);
            return Ok(());
        }
        let mut group = self.recovered(record, &scanned);
        if self.settings.ack == AckPolicy::Synced && !harden(&group)? {
            (scanned, state) = match self.scan(&spec) {
                Ok(found) => found,
                Err(error) => return self.take_missing(record, spec, error, Some(WRITTEN_ANEW)),
            };
            self.chain.counts(scanned.end.ordinal, Some(WRITTEN_ANEW));
            group = self.recovered(record, &scanned);
        }
        self.state = Some(state);
        let stop = format!(
            "byte {}, batch at ordinal {}: {}",
            scanned.end.address, scanned.end.ordinal, scanned.stop
        );
        self.kept.push(group.clone());
        let damage = self
            .chain
            .lost()
            .filter(|reason| DAMAGE.contains(reason))
            .map(|reason| format!("{}: {reason} ({stop})", group.spec().path.display()));
        self.open.push(Open {
            group,
            is_damaged: damage.is_some(),
            damage,
            next: None,
            stop,
        });
        self.open_end = true;
        Ok(())
    }

    fn recovered(&self, record: &GroupRecord, scanned: &Scanned) -> Arc<Group> {
        Group::recovered(
            self.spec(record, scanned.header.first_ordinal),
            self.settings.ack,
            self.head.clone(),
            self.streamlet.env.io.clone(),
            scanned,
        )
    }

    /// A group that is open in the records but has no usable file, for a reason that is `known` or told by the error.
    fn take_missing(
        &mut self,
        record: &GroupRecord,
        spec: GroupSpec,
        error: ScanError,
        known: Option<&'static str>,
    ) -> std::io::Result<()> {
        let path = spec.path.display();
        let damage = match &error {
            ScanError::Io(error) if error.kind() == ErrorKind::NotFound => {
                // A loss of power may take a file of which nothing was promised yet.
                (record.file_made && self.is_same_boot(record)).then_some(GONE)
            }
            ScanError::Io(error) => {
                return Err(Error::new(error.kind(), format!("{path}: {error}")));
            }
            ScanError::Foreign { .. } => {
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    format!(
                        "{path}: {error}; nothing was changed. Put the group's own file there, or move this one away: then its records count as lost, and that is said"
                    ),
                ));
            }
            ScanError::NoHeader(LayoutError::NewerFormat { .. }) => {
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    format!("{path}: {error}"),
                ));
            }
            // A write torn in the first segment's head, unless more is known to have been durable.
            ScanError::NoHeader(_) | ScanError::BadSnapshot => self.headless(record, &spec)?,
        };
        let damage = known.or(damage);
        let reason = damage.or_else(|| self.may_have_lost(record, self.settings.ack));
        if damage.is_some() && !matches!(error, ScanError::Io(_)) {
            self.out.aside.push(spec.path.clone());
        }
        let damage = damage.map(|reason| format!("{path}: {reason} ({error})"));
        self.chain.loses(reason);
        self.chain.leaves_out();
        self.missing.push(Missing {
            spec,
            first: record.first_ordinal,
            at: self.chain.end(),
            next: None,
            is_damaged: damage.is_some(),
            damage,
        });
        Ok(())
    }

    fn scan(&self, spec: &GroupSpec) -> Result<(Scanned, LaneState), ScanError> {
        let env = &self.streamlet.env;
        let file = env.io.open(&spec.path, OpenHow::ReadWrite, false)?;
        let spec = ScanSpec::open(spec, env.incarnation);
        let (_, snapshot) = scan::read_head(&*file, &spec)?;
        let mut state = decoded(&snapshot)?;
        let mut last: Option<(BatchHeader, u64)> = None;
        let mut scanned = scan::scan(&*file, &spec, |header, address| {
            if let Some((before, _)) = last.replace((*header, address)) {
                state.note(&before, self.now_ms);
            }
        })?;
        if let Some((header, address)) = last {
            if self.repeats(&state, &scanned, &header, address) {
                scanned.take_back(Place {
                    address,
                    ordinal: header.base_ordinal,
                });
            } else {
                state.note(&header, self.now_ms);
            }
        }
        Ok((scanned, state))
    }

    /// A batch's checksum does not cover its first bytes. Where a file system shows stale bytes, the
    /// last batch may be the beginning of one batch over the rest of an older one; if that one's
    /// producer is known, its sequence tells. Never below what was seen to be durable.
    fn repeats(
        &self,
        state: &LaneState,
        scanned: &Scanned,
        header: &BatchHeader,
        address: u64,
    ) -> bool {
        // One that may have been forgotten meanwhile may rightly have begun anew.
        let remembered = |since: u64| {
            let expiry = self.streamlet.env.limits.producer_expiry_ms;
            since.saturating_add(expiry) > self.now_ms
        };
        let last = state.last_ms(header.producer_id);
        if !remembered(scanned.header.created_ms) || !last.is_some_and(remembered) {
            return false;
        }
        let incarnation = &self.streamlet.env.incarnation;
        let durable = scanned.mark.map_or(0, |m| m.binding_length(incarnation));
        address >= durable && matches!(state.check(header), Ok(Verdict::Duplicate(_)))
    }

    /// Why the file of a group counts as damaged that begins with no header, if it does: it may have been made, and
    /// never written.
    fn headless(
        &self,
        record: &GroupRecord,
        spec: &GroupSpec,
    ) -> std::io::Result<Option<&'static str>> {
        let (epoch, here) = (record.epoch, &self.streamlet.env.incarnation);
        let unsynced = self.unsynced(record);
        let damage = self.damage(spec, |file| {
            FileDamage::of_headless(file, epoch, here, Some(spec), unsynced)
        })?;
        // The file of a group that was recorded first may have been made, and not have its mark yet.
        let damage = damage.filter(|damage| *damage != FileDamage::NoMark || record.file_made);
        Ok(damage.map(FileDamage::reason))
    }

    /// What is wrong with a group's file, as `look` finds. A file that cannot be read now has lost nothing yet: what it has is
    /// known once it is read, or given up.
    fn damage(
        &self,
        spec: &GroupSpec,
        look: impl FnOnce(&dyn ReadAt) -> std::io::Result<Option<FileDamage>>,
    ) -> std::io::Result<Option<FileDamage>> {
        let io = &self.streamlet.env.io;
        let file = io.open(&spec.path, OpenHow::ReadOnly, false);
        file.and_then(|file| look(&*file))
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", spec.path.display())))
    }

    fn unsynced(&self, record: &GroupRecord) -> Unsynced {
        match self.is_same_boot(record) {
            true => Unsynced::Kept,
            false => Unsynced::PerhapsLost,
        }
    }

    fn is_same_boot(&self, record: &GroupRecord) -> bool {
        let boot_id = record.copies.first().map(|copy| copy.incarnation.boot_id);
        boot_id == Some(self.streamlet.env.incarnation.boot_id)
    }

    /// Why records that had been shown may be missing from the end of this group, if they may.
    fn loss(
        &self,
        record: &GroupRecord,
        spec: &GroupSpec,
        scanned: &Scanned,
    ) -> std::io::Result<Option<&'static str>> {
        let damage = self.damage(spec, |file| {
            FileDamage::of(file, scanned, self.unsynced(record))
        })?;
        // The weaker of what was promised when it was begun and what is promised now.
        Ok(damage
            .map(FileDamage::reason)
            .or_else(|| self.may_have_lost(record, self.settings.ack))
            .or_else(|| self.may_have_lost(record, scanned.header.ack)))
    }

    fn may_have_lost(&self, record: &GroupRecord, ack: AckPolicy) -> Option<&'static str> {
        match ack {
            AckPolicy::Memory => Some(MEMORY),
            AckPolicy::Written if !self.is_same_boot(record) => Some(POWER),
            AckPolicy::Written | AckPolicy::Synced => None,
        }
    }

    /// The lane goes on at ordinal `to`: where the next group that counts begins, or where the
    /// next record will be. If that is not where it ended, some record must carry the gap.
    fn go_on(&mut self, to: Ordinal) {
        // Those after the last group that counts.
        let mut damaged_behind = None;
        for missing in self.missing.iter_mut().filter(|m| m.next.is_none()) {
            missing.next = Some(to);
            damaged_behind = damaged_behind.or(missing.is_damaged.then_some(missing.spec.group));
        }
        let (Some(reason), Some((from, _))) = (self.chain.lost(), self.chain.gap(to)) else {
            return;
        };
        self.out.gaps.push((self.lane, from, to));
        if self.open_end
            && let Some(open) = self.open.last_mut()
        {
            let path = open.group.spec().path.display();
            open.damage = Some(match damaged_behind.filter(|_| !open.is_damaged) {
                // It is whole, its close only says where the lane goes on.
                Some(group) => format!(
                    "{path}: group {group} behind it is lost; the lane goes on at ordinal {to}"
                ),
                None => {
                    open.is_damaged |= DAMAGE.contains(&reason);
                    let stop = &open.stop;
                    format!("{path}: {reason} ({stop}); the lane goes on at ordinal {to}")
                }
            });
            open.next = Some(to);
        } else if let Some(missing) = self.missing.last_mut() {
            let path = missing.spec.path.display();
            missing.is_damaged |= DAMAGE.contains(&reason);
            let text = missing
                .damage
                .take()
                .unwrap_or_else(|| format!("{path}: {reason}"));
            missing.damage = Some(format!(
                "{text}; the lane goes on at ordinal {to} after {from}"
            ));
        }
    }

    /// Closes the open groups after which the lane does not simply go on; the others are closed in
    /// the ordinary way, once synced.
    fn settle_open(&mut self) {
        for open in &self.open {
            let Some(damage) = &open.damage else { continue };
            self.out.reports.push(damage.clone());
            self.out.damaged += usize::from(open.is_damaged);
            let settle = || {
                let settled = self.streamlet.env.pump.settle(&open.group);
                // Nobody comes back to a group that is closed, so one failure is made up for here.
                settled.or_else(|_| open.group.sync_good())
            };
            if self.settings.ack != AckPolicy::Memory
                && let Err(error) = settle()
            {
                self.out.reports.push(format!(
                    "{}: what is left of it cannot be synced, and a loss of power may take it: {error}",
                    open.group.spec().path.display()
                ));
            }
            let mut closed = self.streamlet.closed_record(
                self.lane,
                &open.group,
                self.now_ms,
                Some(damage.clone()),
            );
            closed.next_ordinal = open.next.unwrap_or(closed.next_ordinal);
            self.out.changes.push(Write::PutGroup(closed));
        }
        for group in &mut self.kept {
            if self
                .open
                .iter()
                .any(|open| open.damage.is_some() && Arc::ptr_eq(&open.group, group))
            {
                *group = group.to_closed();
            }
        }
    }

    fn settle_missing(&mut self) {
        for missing in std::mem::take(&mut self.missing) {
            let Some(damage) = missing.damage else {
                self.discard(&missing.spec);
                continue;
            };
            self.out.reports.push(damage.clone());
            self.out.damaged += usize::from(missing.is_damaged);
            let first = missing.first.unwrap_or(missing.at);
            let next = missing.next.unwrap_or(first).max(first);
            let (group, epoch) = (missing.spec.group, missing.spec.epoch);
            self.empty.insert(group, next);
            let open = GroupRecord::new(self.streamlet.group_key(group), self.lane, epoch);
            self.out.changes.push(Write::PutGroup(GroupRecord {
                closed_ms: self.now_ms,
                damaged: Some(Damage::new(0, damage)),
                ..open.closed(first, (0, first), next, Vec::new())
            }));
        }
    }

    fn discard(&mut self, spec: &GroupSpec) {
        self.out
            .changes
            .push(Write::DeleteGroup(self.streamlet.group_key(spec.group)));
        if !self.out.aside.contains(&spec.path) {
            self.out.remove.push(spec.path.clone());
        }
    }

    /// What the lane goes on with: the state after its last group is known from its scan, or read.
    ///
    /// # Errors
    /// What may be otherwise next time, where others have replicas: who takes a streamlet over does so again soon. And
    /// `InvalidData` for a newer build's state.
    fn idle(&mut self, next_ordinal: Ordinal) -> std::io::Result<LaneSlot> {
        let read = match self.state.take() {
            Some(mut state) => {
                let expiry_ms = self.streamlet.env.limits.producer_expiry_ms;
                state.expire(self.now_ms.saturating_sub(expiry_ms));
                Ok((state, None))
            }
            None => {
                let last = self.kept.last().map(|last| &**last);
                self.streamlet.state_after(last, self.now_ms)
            }
        };
        match read {
            Ok((mut state, report)) => {
                self.out.reports.extend(report);
                let lost = lost_between(self.kept.iter(), &self.empty);
                let lost = state.note_lost(&lost);
                if lost > 0 {
                    self.out.reports.push(told_lost(self.lane, lost));
                }
                Ok(LaneSlot::Idle(Carry {
                    state,
                    next_ordinal,
                }))
            }
            Err(error) => {
                let last = self.kept.last().map(|last| last.spec().path.clone());
                let path = last.unwrap_or_default();
                let text = format!("{}: {error}", path.display());
                let has_others =
                    !self.streamlet.is_recovered() && self.streamlet.unreadable().is_none();
                if error.kind() == ErrorKind::InvalidData || has_others {
                    return Err(Error::new(error.kind(), text));
                }
                self.out.reports.push(format!(
                    "{text}: lane {} takes no appends before what it remembers of its producers can be read there; it is read again and again. Without the file the producers begin anew",
                    self.lane
                ));
                Ok(LaneSlot::Failed(Failed::Read(Unread {
                    cause: error.to_string(),
                    not_before: Instant::now(),
                })))
            }
        }
    }
}

/// Writes what no sync of a recovered group has proven once more, since what the page cache holds counts only once
/// the device holds it; whether the group is whole after that.
fn harden(group: &Group) -> std::io::Result<bool> {
    match group.harden() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(Error::new(
            error.kind(),
            format!("{}: {error}", group.spec().path.display()),
        )),
    }
}
