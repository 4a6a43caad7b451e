//! Reads of what counts: up to the last stable ordinal, with the ranges that were aborted.
//!
//! Where a transaction ended, its marker says where it began. So what was aborted in a group is found in the group
//! itself and, for a transaction that was open at its end, in the next ones. Of the group that takes appends it is
//! known; of others it is looked up when a read first meets batches of transactions in them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bytes::Bytes;
use kera_log_segments::group::Group;
use kera_log_segments::read::ReadError;
use kera_log_segments::replicas::Mending;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};

use super::End;
use super::ends::GroupEnds;
use crate::mending::{is_damage, tell};
use crate::read::{Found, LaneReadError, LaneReadSpec, Located};
use crate::streamlet::{LaneSlot, Streamlet};

/// What was aborted, by producer: from a transaction's first record to its marker, in order.
pub(crate) type Aborted = HashMap<i64, Vec<Range<Ordinal>>>;

/// What was read, and how far that counts.
#[derive(Debug)]
pub struct Committed {
    /// Batches below the last stable ordinal, those of aborted transactions among them.
    pub found: Found,
    /// The last stable ordinal.
    pub stable: Ordinal,
    /// Aborted transactions that have batches, or their marker, at or above the first batch found, in the order of
    /// their markers.
    pub aborted: Vec<End>,
}

/// A whole batch of a transaction of which nobody can tell how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostEnd {
    /// The ordinal behind the batch.
    pub next: Ordinal,
    /// Lost batches that may be the end: their groups and ordinals. It is one of them, or the transaction is not over. Of a
    /// group that was given up as a whole it is where the group began.
    pub places: Vec<(GroupId, Ordinal)>,
}

impl Committed {
    /// Without aborted batches and markers: what is left counts. Where to go on stays.
    pub fn only_committed(self) -> Found {
        let mut found = self.found;
        if !found.transactional {
            return found;
        }
        let bytes = Bytes::from(found.bufs.concat());
        found.bufs.clear();
        found.bytes = 0;
        found.batches = 0;
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Ok(header) = BatchHeader::peek(rest)
        {
            let end = at + header.total_bytes;
            let is_aborted = || {
                let base = header.base_ordinal;
                let mut aborted = self.aborted.iter();
                aborted.any(|end| {
                    end.producer == header.producer_id && (end.first..end.marker).contains(&base)
                })
            };
            let is_left_out = header.is_control() || (header.is_transactional() && is_aborted());
            if !is_left_out && end <= bytes.len() {
                found.bufs.push(bytes.slice(at..end));
                found.bytes += header.total_bytes;
                found.batches += 1;
            }
            at = end;
        }
        found
    }
}

impl Streamlet {
    /// As [`Self::read`], of what is stable, with what of it was aborted.
    ///
    /// # Errors
    /// [`LaneReadError`]; that the bytes are on disk only also where what was aborted must be looked up.
    pub fn read_committed(&self, spec: LaneReadSpec) -> Result<Committed, LaneReadError> {
        loop {
            // Where a trim or a compaction took the group away meanwhile, the ends in it went with it: what was read
            // may have been aborted, and nobody can tell any more. The next look finds what is there now.
            if let Some(committed) = self.try_read_committed(&spec)? {
                return Ok(committed);
            }
        }
    }

    /// The same; `None` if the group that was read is not the lane's any more.
    fn try_read_committed(&self, spec: &LaneReadSpec) -> Result<Option<Committed>, LaneReadError> {
        // While a lane is put in order, what is stable is not known: nothing more is shown.
        let known = self.stable_below_head(spec.lane);
        let stable = known.map_or(spec.from.ordinal, |(stable, _)| stable);
        let mut found = self.read(LaneReadSpec {
            end_ordinal: spec.end_ordinal.min(stable),
            ..*spec
        })?;
        if let Some((_, head)) = known {
            // Whoever waits for more waits from there: with the head, what is stable may have moved since.
            found.head = found.head.min(head);
        }
        let mut aborted = Vec::new();
        if found.transactional
            && let Some((group, generation, _)) = found.next.at
        {
            let (from, to) = (found.first_ordinal, found.next.ordinal);
            let Some(known) = self.ends(spec, (group, generation), from, to)? else {
                return Ok(None);
            };
            if let Some(damage) = &known.damage {
                found = only_told(found, &known, damage)?;
            }
            aborted = known.aborted(found.next.ordinal);
        }
        Ok(Some(Committed {
            found,
            stable,
            aborted,
        }))
    }

    /// What was aborted in closed groups of a lane that lie below its last stable ordinal, by producer: from the
    /// transaction's first record to its marker, in order; `None` if one of them is not the lane's any more. Waits for
    /// the disk.
    pub(crate) fn aborted_in(
        &self,
        lane: LaneId,
        groups: &[Arc<Group>],
    ) -> Result<Option<Aborted>, LaneReadError> {
        let mut aborted = Aborted::new();
        if self.transactional_from(lane).is_none() {
            return Ok(Some(aborted));
        }
        let spec = LaneReadSpec {
            lane,
            from: Located::default(),
            end_ordinal: u64::MAX,
            max_bytes: 0,
            cached_only: false,
        };
        for group in groups {
            let (from, to) = (group.spec().first_ordinal, group.end().ordinal);
            let read = (group.id(), group.spec().generation);
            let Some(known) = self.ends(&spec, read, from, to)? else {
                return Ok(None);
            };
            if let Some(damage) = &known.damage {
                return Err(ends_unknown(damage, from).into());
            }
            for end in known.aborted(to) {
                let ranges = aborted.entry(end.producer).or_default();
                // One that began in another group is found with each of its groups.
                if ranges.last().is_none_or(|last| last.end <= end.first) {
                    ranges.push(end.first..end.marker);
                }
            }
        }
        Ok(Some(aborted))
    }

    /// Where transactions ended of which batches `from` to `to` are, which were read from that file of a group; `None` if
    /// it is not the lane's any more.
    fn ends(
        &self,
        spec: &LaneReadSpec,
        (group, generation): (GroupId, u32),
        from: Ordinal,
        to: Ordinal,
    ) -> Result<Option<KnownOf>, LaneReadError> {
        let (groups, active, gone) = {
            let inner = self.inner.lock();
            let slot = self.slot(&inner, spec.lane)?;
            let is_read = |there: &Arc<Group>| there.spec().generation == generation;
            if !slot.groups.get(&group).is_some_and(is_read) {
                return Ok(None);
            }
            let active = match &slot.slot {
                LaneSlot::Active(active) => Some(active.clone()),
                LaneSlot::Idle(_) | LaneSlot::Failed(_) => None,
            };
            let groups: Vec<_> = slot.groups.range(group..).map(|(_, g)| g.clone()).collect();
            let gone: Vec<_> = slot
                .empty
                .range(group..)
                .map(|(g, next)| (*g, *next))
                .collect();
            (groups, active, gone)
        };
        let mut known = KnownOf::default();
        // Producers with an end still to be found; at first of all.
        let mut sought: Option<HashSet<i64>> = None;
        // The group in which the last end was found.
        let mut until = None;
        for group in &groups {
            let mut take = |ends: &[End]| {
                let begin = ends.partition_point(|end| end.marker < from);
                for end in &ends[begin..] {
                    let is_sought = match &mut sought {
                        Some(sought) => sought.remove(&end.producer),
                        None => true,
                    };
                    if is_sought && end.first < to {
                        known.ends.push(*end);
                    }
                }
            };
            let is_active = active
                .as_ref()
                .filter(|a| Arc::ptr_eq(&a.group, group) && !group.is_frozen());
            if let Some(active) = is_active {
                // The lane's last.
                take(&active.tail.lock().ends);
                break;
            }
            let ends = match self.ends_of(spec, group) {
                Ok(ends) => ends,
                // Its file went with it.
                Err(_) if !self.has_group(spec.lane, group) => return Ok(None),
                Err(error) => return Err(error),
            };
            take(&ends.ends);
            if !ends.damaged.is_empty() {
                known.damage.get_or_insert_with(|| group.clone());
                let places = ends.damaged.iter();
                known
                    .places
                    .extend(places.map(|place| (group.id(), *place)));
            }
            let sought = sought.get_or_insert_with(|| {
                // Of the group that was read.
                known.of_read = Some(ends.clone());
                ends.unfinished.keys().copied().collect()
            });
            if sought.is_empty() {
                until = Some(group.id());
                break;
            }
        }
        let passed = gone
            .into_iter()
            .filter(|(gone, _)| until.is_none_or(|until| *gone < until));
        known.may_lie_in(passed, &groups);
        Ok(Some(known))
    }

    /// Whether the batch that holds `ordinal` is kept from readers of what is committed because nobody can tell how its
    /// transaction ended. Waits for the disk.
    ///
    /// # Errors
    /// The batch cannot be read, or what followed it.
    pub fn lost_end(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
    ) -> Result<Option<LostEnd>, LaneReadError> {
        let spec = LaneReadSpec {
            lane,
            from: Located { ordinal, at: None },
            end_ordinal: self.stable(lane).unwrap_or(ordinal),
            max_bytes: 1,
            cached_only: false,
        };
        let found = self.read(spec)?;
        let Some((group, generation, _)) = found.next.at.filter(|_| found.transactional) else {
            return Ok(None);
        };
        let (from, next) = (found.first_ordinal, found.next.ordinal);
        let Some(known) = self.ends(&spec, (group, generation), from, next)? else {
            return Ok(None);
        };
        let bytes = found.bufs.concat();
        let header = BatchHeader::peek(&bytes).ok();
        let is_lost = header.is_some_and(|header| known.is_lost_of(&header));
        let mut places = known.places;
        places.retain(|(_, place)| *place >= next);
        Ok((is_lost && !places.is_empty()).then_some(LostEnd { next, places }))
    }

    /// Whether a group, in that file, is still the lane's.
    fn has_group(&self, lane: LaneId, group: &Group) -> bool {
        let there = self.group(lane, group.id());
        there.is_some_and(|there| there.spec().generation == group.spec().generation)
    }

    fn ends_of(
        &self,
        spec: &LaneReadSpec,
        group: &Arc<Group>,
    ) -> Result<Arc<GroupEnds>, LaneReadError> {
        let known = |streamlet: &Self| {
            let inner = streamlet.inner.lock();
            let slot = inner.lanes.get(spec.lane.0 as usize)?;
            slot.ends.get(group)
        };
        if let Some(known) = known(self) {
            return Ok(known);
        }
        if spec.cached_only {
            return Err(ReadError::WouldBlock.into());
        }
        let (group, ends) = self.read_ends(spec.lane, group)?;
        let ends = Arc::new(ends);
        let mut inner = self.inner.lock();
        if let Some(slot) = inner.lanes.get_mut(spec.lane.0 as usize) {
            let is_there = slot.groups.get(&group.id());
            // One that failed meanwhile may have been cut.
            if is_there.is_some_and(|there| Arc::ptr_eq(there, &group)) && !group.is_broken() {
                slot.ends
                    .put(&group, ends.clone(), self.env.limits.max_known_ends);
            }
        }
        Ok(ends)
    }

    /// Looks through a group. What its own file lacks is fetched from another replica first: a read of the group before
    /// it needs its ends, too.
    fn read_ends(
        &self,
        lane: LaneId,
        group: &Arc<Group>,
    ) -> Result<(Arc<Group>, GroupEnds), LaneReadError> {
        let (ends, error) = match GroupEnds::of(group) {
            Ok((ends, None)) => return Ok((group.clone(), ends)),
            Ok((ends, Some(error))) => (Some(ends), error),
            Err(error) => (None, error),
        };
        // What is whole nowhere is looked over: most transactions ended elsewhere.
        let as_it_is = |error: ReadError| match ends {
            Some(ends) => Ok((group.clone(), ends)),
            None => Err(error.into()),
        };
        if !is_damage(&error) || !self.is_mendable(group) {
            return as_it_is(error);
        }
        tell(group, &error);
        let mended = match self.mend(lane, group) {
            Mending::Done => self.group(lane, group.id()),
            Mending::NotYet => return Err(LaneReadError::Awaited { error }),
            Mending::Nowhere => None,
        };
        let Some(group) = mended else {
            return as_it_is(error);
        };
        let (ends, _) = GroupEnds::of(&group)?;
        Ok((group, ends))
    }
}

/// Where transactions ended, of which some batches are.
#[derive(Default)]
struct KnownOf {
    /// Of each producer in the order of their markers, as far as readers need them.
    ends: Vec<End>,
    /// A group of which some batches are damaged, or the one that was read if a group behind it was given up: ends may be
    /// among what is lost.
    damage: Option<Arc<Group>>,
    /// Where these batches are, in all groups that were looked through: group and ordinal.
    places: Vec<(GroupId, Ordinal)>,
    /// The transactions of the group that was read, if it takes no more.
    of_read: Option<Arc<GroupEnds>>,
}

impl KnownOf {
    /// Those that were aborted and began below `to`.
    fn aborted(self, to: Ordinal) -> Vec<End> {
        let mut ends = self.ends;
        ends.retain(|end| !end.commit && end.first < to);
        ends
    }

    /// Ends that were not found may have been in groups that are not there any more: `gone`, with the ordinal behind each, and
    /// behind the first of `groups`, which was read. Those that held nothing are among them.
    fn may_lie_in(
        &mut self,
        gone: impl Iterator<Item = (GroupId, Ordinal)>,
        groups: &[Arc<Group>],
    ) {
        let mut given_up = Vec::new();
        for (gone, next) in gone {
            let before = groups.iter().take_while(|group| group.id() < gone);
            let end = before.last().map_or(next, |group| group.end().ordinal);
            let begin = given_up.last().map_or(end, |(_, last)| end.max(*last));
            if next > begin {
                given_up.push(((gone, begin), next));
            }
        }
        let mut unfinished = self.of_read.iter().flat_map(|of_read| &of_read.unfinished);
        let is_found = |(producer, first): (&i64, &Ordinal)| {
            let mut ends = self.ends.iter();
            ends.any(|end| end.producer == *producer && (end.first..end.marker).contains(first))
        };
        if given_up.is_empty() || unfinished.all(is_found) {
            return;
        }
        if self.damage.is_none() {
            self.damage = groups.first().cloned();
        }
        self.places
            .extend(given_up.into_iter().map(|(place, _)| place));
    }

    /// Whether a batch is of a transaction whose end is not among what is left.
    fn is_lost_of(&self, batch: &BatchHeader) -> bool {
        let (producer, base) = (batch.producer_id, batch.base_ordinal);
        let is_of = |end: &End| end.producer == producer && (end.first..end.marker).contains(&base);
        // Of what both began and was committed in a whole group no end is kept.
        let may_be_lost = self.of_read.as_ref().is_none_or(|of_read| {
            let first = of_read.unfinished.get(&producer);
            !of_read.damaged.is_empty() || first.is_some_and(|first| *first <= base)
        });
        batch.is_transactional()
            && !batch.is_control()
            && may_be_lost
            && !self.ends.iter().any(is_of)
    }
}

/// The batches before the first one of a transaction of which nobody can tell how it ended.
///
/// # Errors
/// That batch is the first: it may have been aborted, and is not shown.
fn only_told(mut found: Found, known: &KnownOf, damaged: &Group) -> Result<Found, ReadError> {
    let bytes = Bytes::from(found.bufs.concat());
    let (mut at, mut batches) = (0, 0);
    while let Some(rest) = bytes.get(at..)
        && let Ok(header) = BatchHeader::peek(rest)
    {
        if !known.is_lost_of(&header) {
            at += header.total_bytes;
            batches += 1;
            continue;
        }
        if batches == 0 {
            return Err(ends_unknown(damaged, header.base_ordinal));
        }
        found.next.ordinal = header.base_ordinal;
        if let Some((_, _, address)) = &mut found.next.at {
            *address -= (bytes.len() - at) as u64;
        }
        found.bufs = vec![bytes.slice(..at)];
        (found.bytes, found.batches) = (at, batches);
        // The end of the group was not reached.
        found.groups.clear();
        break;
    }
    Ok(found)
}

/// A record's transaction ended in what is damaged of a group, if it ended.
fn ends_unknown(damaged: &Group, ordinal: Ordinal) -> ReadError {
    ReadError::Damaged {
        file: damaged.spec().path.display().to_string(),
        offset: 0,
        ordinal,
        reason: "whether its transaction was committed is not known: the batch that tells is lost. Readers that do not ask for committed records only get it".to_owned(),
    }
}
