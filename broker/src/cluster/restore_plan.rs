//! What is to be recorded of a lane once the metadata store was put back to an older state, as one broker knows it by what it
//! has.
//!
//! 1. A file that compaction made takes the place of all groups whose ordinals it has, where any of those is gone.
//! 2. Groups as appended that no record names are recorded, closed where they are whole. Where a later group begins
//!    earlier than one ends, the later one counts: what the earlier one has from there on was never acknowledged. What was gone
//!    already when the older state was taken stays gone: below where the lane begins, and before a group that is open.
//! 3. A group that is recorded as open and was closed since is closed, also where this broker has no footer of it: in a file
//!    that it was given, or has brought to its end, once an owner had decided how far the group counts.
//! 4. What this broker has lost of a recorded group it is no holder of any more. Groups that no holder has, at the lower
//!    end of the lane, were trimmed since: their records go, once no broker can have them that was given them since.
//!
//! Each broker does so at its start, one after the other in any order. The records of all of them come to the same.

use std::collections::{BTreeMap, HashSet};

use kera_log_segments::group::{AckPolicy, MAX_GROUP_ORDINALS};
use kera_metadata::{Damage, GroupRecord, MAX_COPIES, Replica};
use kera_protocol::ids::{BrokerId, Epoch, GroupId, Incarnation, LaneId, Ordinal, StreamletKey};
use uuid::Uuid;

use crate::clock::now_ms;

/// Why nothing is left of a group: for people.
const TRIMMED: &str = "the metadata store was put back to an older state, and no broker that it names has any of this group: it was trimmed since";

/// A file or a replica of one group at this broker, which is whole as far as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) lane: LaneId,
    pub(crate) group: GroupId,
    pub(crate) generation: u32,
    pub(crate) epoch: Epoch,
    pub(crate) first: Ordinal,
    pub(crate) end: Ordinal,
    /// Where its bytes end.
    pub(crate) length: u64,
    pub(crate) max_timestamp_ms: i64,
    /// Its group was closed there.
    pub(crate) is_closed: bool,
    /// The older state has its group as open, and it was made, or brought to its end, once an owner had decided how far the group
    /// counts: it has all that was acknowledged.
    pub(crate) is_decided: bool,
    /// How records name it.
    pub(crate) replica: Replica,
}

impl Holding {
    fn name(&self) -> (GroupId, u32) {
        (self.group, self.generation)
    }
}

/// What one broker has of a streamlet.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Those of which anything is whole, in any order.
    pub(crate) holdings: Vec<Holding>,
    /// All files and replicas, by group and generation, whole or not.
    pub(crate) here: HashSet<(GroupId, u32)>,
    /// Groups as appended whose replicas this broker has freed by their owner's word.
    pub(crate) removed: HashSet<GroupId>,
    /// One that compaction made is not whole, or not all could be looked at: there may be what seems to be gone.
    pub(crate) is_torn: bool,
    /// The stores whose replicas these are.
    pub(crate) stores: Vec<Uuid>,
    /// The machine's boot, if the older state knows this broker by the data directory that it has now.
    pub(crate) boot: Option<Uuid>,
    pub(crate) me: BrokerId,
}

impl Held {
    /// Whether a record means this broker as it is now, of what it has and of what it has freed.
    fn is_named(&self, record: &GroupRecord, replica: &Replica) -> bool {
        let is_of_store = self.stores.contains(&replica.incarnation.store_id);
        let was_removed = record.generation == 0 && self.removed.contains(&record.group);
        replica.broker == self.me && (is_of_store || was_removed)
    }

    /// Whether a record means this broker, as it is now or as it was before a reboot, of which a store in memory has another id.
    fn is_meant(&self, record: &GroupRecord, replica: &Replica) -> bool {
        let life = replica.incarnation.boot_id;
        let is_before = |boot: Uuid| !life.is_nil() && life != boot;
        let was_named = replica.broker == self.me && self.boot.is_some_and(is_before);
        was_named || self.is_named(record, replica)
    }

    /// Whether this broker has all of a recorded group.
    fn has(&self, record: &GroupRecord) -> bool {
        let name = (record.group, record.generation);
        let copies = record.copies.iter();
        let mut named = copies.filter(|copy| self.is_named(record, copy));
        let mut whole = self.holdings.iter().filter(|one| one.name() == name);
        let is_whole =
            whole.any(|one| (one.length, one.end) == (record.length, record.end_ordinal));
        is_whole || (named.next().is_some() && self.here.contains(&name))
    }

    /// Whether a record names this broker, which has nothing of the group.
    pub(crate) fn lacks(&self, record: &GroupRecord) -> bool {
        let mut copies = record.copies.iter();
        let is_named = copies.any(|copy| self.is_meant(record, copy));
        is_named && !self.here.contains(&(record.group, record.generation))
    }
}

/// What a lane's records are to be.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) groups: BTreeMap<GroupId, GroupRecord>,
    /// Groups that are recorded now, or of which this broker has become a holder.
    pub(crate) taken: Vec<(GroupId, u32)>,
    /// Files that hold nothing that recorded groups do not hold.
    pub(crate) spare: Vec<(GroupId, u32)>,
    /// Ordinals of trimmed groups.
    pub(crate) trimmed: Vec<(Ordinal, Ordinal)>,
}

/// Where a holding is to end that ends above an ordinal: the greatest end of a batch at or below it, as address and ordinal.
pub(crate) type Cut<'a> = &'a dyn Fn(&Holding, Ordinal) -> Option<(u64, Ordinal)>;

/// A lane of a streamlet after a restore of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestoredLane {
    pub(crate) key: StreamletKey,
    pub(crate) lane: LaneId,
    /// Where its log begins.
    pub(crate) start: Ordinal,
    /// The restore's number.
    pub(crate) restore: u64,
    /// That of the last one after which the lane was served. Whatever is recorded of later ones came before all brokers had
    /// recorded what they have, and nobody has appended behind it.
    pub(crate) served: u64,
    /// Others have replicas of its groups.
    pub(crate) is_replicated: bool,
    /// All brokers have recorded what they have, or are not waited for any more.
    pub(crate) is_last: bool,
}

/// Plans one lane, of which `records` are all groups.
pub(crate) fn plan(
    of: RestoredLane,
    records: impl IntoIterator<Item = GroupRecord>,
    held: &Held,
    cut: Cut<'_>,
) -> Plan {
    let groups = records.into_iter().map(|record| (record.group, record));
    let plan = Plan {
        groups: groups.collect(),
        ..Plan::default()
    };
    let mut planning = Planning {
        plan,
        of,
        held,
        cut,
    };
    let of_lane = held.holdings.iter().filter(|one| one.lane == of.lane);
    let (of_lane, trimmed): (Vec<_>, Vec<_>) = of_lane.partition(|one| one.end > of.start);
    let trimmed = trimmed.into_iter().map(Holding::name);
    planning.plan.spare.extend(trimmed);
    let (mut rewritten, mut appended): (Vec<_>, Vec<_>) =
        of_lane.into_iter().partition(|one| one.generation > 0);
    // The newest first: it has what those before it have, and an earlier group ends where a later one begins.
    rewritten.sort_by_key(|one| std::cmp::Reverse(one.name()));
    appended.sort_by_key(|one| std::cmp::Reverse(one.name()));
    for one in rewritten {
        planning.rewritten(one);
    }
    for one in appended {
        planning.appended(one);
    }
    planning.end_overlaps();
    planning.lost();
    planning.plan
}

struct Planning<'a> {
    plan: Plan,
    of: RestoredLane,
    held: &'a Held,
    cut: Cut<'a>,
}

impl Planning<'_> {
    /// A group of its own record, closed at `end`.
    fn record(&self, of: &Holding, (length, end): (u64, Ordinal)) -> GroupRecord {
        let record = GroupRecord::new(self.of.key.group(of.group), of.lane, of.epoch);
        GroupRecord {
            generation: of.generation,
            max_timestamp_ms: of.max_timestamp_ms.max(-1),
            closed_ms: now_ms(),
            restore: self.of.restore,
            ..record.closed(of.first, (length, end), end, vec![of.replica])
        }
    }

    fn put(&mut self, record: GroupRecord) {
        self.plan.taken.push((record.group, record.generation));
        self.plan.groups.insert(record.group, record);
    }

    /// This broker is a holder of a recorded group.
    fn joins(&mut self, one: &Holding) {
        let Some(record) = self.plan.groups.get_mut(&one.group) else {
            return;
        };
        if is_trimmed(record) {
            record.damaged = None;
        }
        let has_room = record.copies.len() < MAX_COPIES;
        record.copies.retain(|copy| !is_nobody(copy));
        if !record
            .copies
            .iter()
            .any(|copy| copy.broker == one.replica.broker)
            && has_room
        {
            record.copies.push(one.replica);
            self.plan.taken.push(one.name());
        }
    }

    fn rewritten(&mut self, one: &Holding) {
        let known = self.plan.groups.values();
        let has_all = known.into_iter().find(|record| {
            let is_newer = (record.group, record.generation) >= one.name();
            is_newer && record.generation > 0 && covers(record, one.first, one.end)
        });
        match has_all {
            // Made twice, the first time without a record: which of them is the same for all brokers, and the longer one has what
            // was still needed when the shorter one was made.
            Some(same)
                if (same.group, same.generation) == one.name()
                    && same.restore > self.of.served
                    && (same.start_ordinal(), same.end_ordinal) == (one.first, one.end)
                    && same.length < one.length
                    && one.is_closed =>
            {
                self.put(self.record(one, (one.length, one.end)));
                return;
            }
            Some(same) if (same.group, same.generation) == one.name() => {
                if (same.length, same.end_ordinal) == (one.length, one.end) {
                    self.joins(one);
                }
                return;
            }
            Some(_) => {
                self.plan.spare.push(one.name());
                return;
            }
            None => {}
        }
        let up_to = self.plan.groups.range(..=one.group);
        let sources: Vec<_> = up_to
            .filter(|(id, record)| **id == one.group || reaches_into(record, one.first, one.end))
            .map(|(id, record)| {
                (
                    *id,
                    *id == one.group || is_within(record, one.first, one.end),
                )
            })
            .collect();
        let mut within = sources.iter().filter(|(_, is_within)| *is_within);
        let is_here = |id: &GroupId| {
            let record = self.plan.groups.get(id);
            record.is_some_and(|record| self.held.has(record))
        };
        if self.hold_all(&sources, one) && within.all(|(id, _)| is_here(id)) {
            // It was made, and perhaps not recorded: those that it was made of are what counts.
            self.plan.spare.push(one.name());
            return;
        }
        let behind = self.plan.groups.range(next(one.group)..).map(|(_, r)| r);
        let mut starts = behind.filter_map(|record| record.first_ordinal);
        let is_behind = starts.next().is_none_or(|start| start >= one.end);
        // One that begins before and ends within has more than was acknowledged, or does not fit.
        let before = self.plan.groups.clone();
        for (id, is_within) in &sources {
            if *is_within {
                self.plan.groups.remove(id);
            }
        }
        if !one.is_closed || !is_behind || !self.makes_way(one) {
            self.plan.groups = before;
            return;
        }
        self.put(self.record(one, (one.length, one.end)));
    }

    /// Whether recorded groups hold all of one, which was made of them.
    fn hold_all(&self, sources: &[(GroupId, bool)], one: &Holding) -> bool {
        let mut at = one.first;
        for (id, _) in sources {
            let record = self.plan.groups.get(id);
            match record.filter(|record| record.is_closed() && record.start_ordinal() == at) {
                Some(record) => at = record.end_ordinal,
                None => return false,
            }
        }
        at == one.end
    }

    fn appended(&mut self, one: &Holding) {
        let behind = self.plan.groups.range(next(one.group)..).map(|(_, r)| r);
        let behind: Vec<_> = behind.collect();
        if behind
            .iter()
            .any(|r| r.generation > 0 && covers(r, one.first, one.end))
        {
            self.plan.spare.push(one.name());
            return;
        }
        let limit = behind.iter().find_map(|record| record.first_ordinal);
        let own_record = self.plan.groups.get(&one.group);
        // Groups of a lane are recorded in their order, and brokers record none as open here: it was removed before that one.
        if own_record.is_none() && behind.iter().any(|record| !record.is_closed()) {
            self.plan.spare.push(one.name());
            return;
        }
        // What the older state has as closed was acknowledged up to its end, and no further.
        let is_longer = |record: &GroupRecord| {
            let is_of_now = record.restore > self.of.served;
            let is_whole = record.next_ordinal == record.end_ordinal;
            let fits = limit.is_none_or(|limit| one.end <= limit);
            is_of_now && is_whole && fits && one.end > record.end_ordinal
        };
        match own_record {
            Some(record) if record.generation > 0 => {
                self.plan.spare.push(one.name());
                return;
            }
            Some(record) if record.is_closed() && !record.is_given_up() && !is_longer(record) => {
                if (record.length, record.end_ordinal) == (one.length, one.end) {
                    self.joins(one);
                }
                return;
            }
            // An owner of another epoch made it, and nobody recorded that.
            Some(record) if !record.is_closed() && record.epoch != one.epoch => return,
            // The next owner closes it. Who was not in its set was given it once it was closed.
            Some(record)
                if !record.is_closed()
                    && !one.is_closed
                    && record
                        .copies
                        .iter()
                        .any(|copy| copy.broker == one.replica.broker) =>
            {
                return;
            }
            _ => {}
        }
        if limit.is_some_and(|limit| limit <= one.first) {
            self.plan.spare.push(one.name());
            return;
        }
        // Who had it while it was open has it still, unless it says otherwise.
        let others = own_record.filter(|record| !record.is_closed());
        let others = others.map_or_else(Vec::new, |record| record.copies.clone());
        if !self.makes_way(one) {
            return;
        }
        let mut record = self.record(one, (one.length, one.end));
        let others = others.into_iter();
        (record.copies).extend(others.filter(|copy| copy.broker != one.replica.broker));
        self.put(record);
    }

    /// Drops what earlier owners have from where one begins on: it was recorded and not acknowledged. False if one does not fit.
    fn makes_way(&mut self, one: &Holding) -> bool {
        let before = self
            .plan
            .groups
            .range(..one.group)
            .map(|(_, record)| record);
        let above =
            before.filter(|record| record.holds_records() && record.end_ordinal > one.first);
        let above: Vec<_> = above.cloned().collect();
        if above.iter().any(|record| record.epoch >= one.epoch) {
            return false;
        }
        for record in above {
            if record.start_ordinal() >= one.first {
                self.plan.groups.remove(&record.group);
            }
        }
        true
    }

    /// Ends groups where the next ones begin, as far as this broker has them: what they have from there on was never acknowledged.
    fn end_overlaps(&mut self) {
        for (record, to) in overlaps(self.plan.groups.values()) {
            let name = (record.group, record.generation);
            let mut mine = self.held.holdings.iter();
            let Some(mine) = mine.find(|mine| mine.name() == name && mine.generation == 0) else {
                continue;
            };
            let shorter = match mine.end > to {
                true => (self.cut)(mine, to),
                false => Some((mine.length, mine.end)),
            };
            match shorter {
                Some((_, end)) if end <= mine.first => {
                    self.plan.groups.remove(&record.group);
                }
                Some(shorter) => self.put(self.record(mine, shorter)),
                None => {}
            }
        }
    }

    /// What this broker is recorded to have, and has not.
    fn lost(&mut self) {
        let (held, is_replicated) = (self.held, self.of.is_replicated);
        if held.is_torn {
            return;
        }
        let last = self.plan.groups.keys().next_back().copied();
        let mut gone = HashSet::new();
        for record in self.plan.groups.values_mut() {
            let is_open = !record.is_closed();
            if is_open && (is_replicated || last == Some(record.group)) {
                // The next owner asks all of its holders.
                continue;
            }
            if is_trimmed(record) {
                gone.insert(record.group);
            }
            if !is_open && !record.holds_records() {
                continue;
            }
            if held.lacks(record) {
                let copies = record.copies.iter();
                let others = copies.filter(|copy| !held.is_meant(record, copy));
                let others: Vec<_> = others.filter(|copy| !is_nobody(copy)).copied().collect();
                match others.is_empty() {
                    false => record.copies = others,
                    true if is_replicated => record.copies = vec![nobody(held.me)],
                    true => drop(gone.insert(record.group)),
                }
            }
            if record.copies.iter().all(is_nobody) {
                gone.insert(record.group);
            }
        }
        if is_replicated && !self.of.is_last {
            return;
        }
        let run = self.plan.groups.values().take_while(|record| {
            let is_empty = record.is_closed() && !record.holds_records();
            is_empty || gone.contains(&record.group)
        });
        let run: Vec<_> = run.cloned().collect();
        let Some(up_to) = run.iter().rposition(|r| gone.contains(&r.group)) else {
            return;
        };
        let mut behind = self.plan.groups.values().skip(up_to + 1);
        let is_told_behind = behind.any(GroupRecord::is_closed);
        // Without another that is closed the last of them says where the lane goes on.
        let mut removed = run[..=up_to].iter();
        let last = removed.rposition(|r| r.is_closed() && gone.contains(&r.group));
        let left = last.filter(|_| !is_told_behind);
        for (at, record) in run.iter().enumerate().take(up_to + 1) {
            if gone.contains(&record.group) && !is_trimmed(record) {
                let first = record.first_ordinal.unwrap_or_default();
                let trimmed = (first, record.end_ordinal.max(first));
                self.plan.trimmed.push(trimmed);
            }
            match left == Some(at) {
                true => {
                    let left = self.plan.groups.get_mut(&record.group);
                    if let Some(left) = left {
                        left.damaged = Some(Damage::new(0, TRIMMED.to_owned()));
                    }
                }
                false => drop(self.plan.groups.remove(&record.group)),
            }
        }
    }
}

/// Whether a broker's own file of a group that is recorded as open has all that was acknowledged, by what the record `named`
/// there, the life of `own` files now, and the life in which all of it was last `marked` as durable.
pub(crate) fn is_decided(
    ack: AckPolicy,
    (named, own): (Incarnation, Incarnation),
    marked: Option<Incarnation>,
) -> bool {
    if named.store_id != own.store_id {
        // It had a replica for another owner at first. It was given a file once that was closed, or taken over, and a file
        // gets its name when all of it is there.
        return true;
    }
    // It has appended to it. What a reboot may have taken is there if who took the group over looked at it since, or made it anew.
    let is_of_boot = ack == AckPolicy::Written && !named.is_of_disk();
    let is_later =
        |marked: Incarnation| marked.store_id == own.store_id && marked.boot_id != named.boot_id;
    is_of_boot && marked.is_some_and(is_later)
}

/// Closed groups of a lane, which come oldest first, that end behind where any later one begins, and where that is: a broker that
/// was not the owner any more wrote the rest. Or an earlier restore, of which this state knows nothing, went on without the rest,
/// which readers were told is lost: where ordinals jumped then tells where the lane had ended.
pub(crate) fn overlaps<'a>(
    groups: impl IntoIterator<Item = &'a GroupRecord>,
) -> Vec<(GroupRecord, Ordinal)> {
    let with_records = groups.into_iter().filter(|record| record.holds_records());
    let with_records: Vec<_> = with_records.collect();
    let mut limit = Ordinal::MAX;
    let mut overlapping = Vec::new();
    let mut next = None;
    for record in with_records.into_iter().rev() {
        let before_jump = next.and_then(|next| end_before_jump(record, next));
        limit = limit.min(before_jump.unwrap_or(Ordinal::MAX));
        if record.end_ordinal > limit {
            overlapping.push((record.clone(), limit));
        }
        limit = limit.min(record.start_ordinal());
        next = Some(record.start_ordinal());
    }
    overlapping
}

/// Where a lane had ended that goes on behind a group at `next`, if ordinals jumped in between, once or several times, from below
/// the group's end. Where they jumped from above that, what is missing is lost.
fn end_before_jump(record: &GroupRecord, next: Ordinal) -> Option<Ordinal> {
    let gap = next.checked_sub(record.end_ordinal)?;
    let beyond = (MAX_GROUP_ORDINALS - gap % MAX_GROUP_ORDINALS) % MAX_GROUP_ORDINALS;
    let has_jumped = gap >= MAX_GROUP_ORDINALS / 2 && beyond <= MAX_GROUP_ORDINALS / 2;
    has_jumped.then(|| record.end_ordinal.saturating_sub(beyond))
}

/// Ordinals between groups of a lane, which come oldest first, of which no record is left: what was there is lost. Where that is
/// just as far as ordinals jump, nothing was: they jumped after a restore of which this state knows nothing.
pub(crate) fn holes<'a>(
    groups: impl IntoIterator<Item = &'a GroupRecord>,
) -> Vec<(Ordinal, Ordinal)> {
    let mut holes = Vec::new();
    // What lies before the first that is left was trimmed.
    let mut end: Option<Ordinal> = None;
    for record in groups.into_iter().filter(|record| record.is_closed()) {
        match end {
            Some(to) if record.start_ordinal() > to => {
                let next = record.start_ordinal();
                if !(next - to).is_multiple_of(MAX_GROUP_ORDINALS) {
                    holes.push((to, next));
                }
            }
            None if !record.holds_records() => continue,
            _ => {}
        }
        end = Some(record.next_ordinal.max(end.unwrap_or_default()));
    }
    holes
}

/// Groups of a lane, which come oldest first, that hold nothing acknowledged, though they are whole somewhere. Ordinals right
/// before them are on no broker: their owner had appended both, and was killed before it had written or sent the first.
/// Acknowledgements go on in order, so nothing behind such a hole was acknowledged, if all brokers have recorded what they
/// have. If brokers have lost files since, it may have been; then as many as acknowledge together have it still. Groups that the
/// older state knew, as it was `served`, stay.
pub(crate) fn unacknowledged<'a>(
    groups: impl IntoIterator<Item = &'a GroupRecord>,
    served: u64,
    min_insync_replicas: usize,
) -> Vec<&'a GroupRecord> {
    let is_lone = |record: &GroupRecord| {
        let holders = record.copies.iter().filter(|copy| !is_nobody(copy));
        record.generation == 0 && record.restore > served && holders.count() < min_insync_replicas
    };
    let (mut found, mut behind) = (Vec::new(), None::<Vec<_>>);
    let mut end: Option<Ordinal> = None;
    for record in groups.into_iter().filter(|record| record.is_closed()) {
        let gap = end.map_or(0, |end| record.start_ordinal().saturating_sub(end));
        let is_jump = gap.is_multiple_of(MAX_GROUP_ORDINALS);
        match gap {
            // As before: within a hole's rest, or in no hole.
            0 => {}
            // Another life of the lane, which has acknowledged by itself.
            _ if is_jump => found.extend(behind.take().into_iter().flatten()),
            _ => drop(behind.get_or_insert_default()),
        }
        if let Some(lone) = &mut behind {
            match is_lone(record) {
                true => lone.push(record),
                // What is acknowledged here was so before it, too.
                false => behind = None,
            }
        }
        if end.is_some() || record.holds_records() {
            end = Some(record.next_ordinal.max(end.unwrap_or_default()));
        }
    }
    found.extend(behind.into_iter().flatten());
    found
}

/// Whether a record stands for groups that were trimmed.
fn is_trimmed(record: &GroupRecord) -> bool {
    let damaged = record.damaged.as_ref();
    damaged.is_some_and(|damaged| damaged.detail == TRIMMED)
}

fn next(group: GroupId) -> GroupId {
    GroupId(group.0.saturating_add(1))
}

/// A holder of which nothing is left: it has answered.
fn nobody(broker: BrokerId) -> Replica {
    Replica {
        broker,
        incarnation: Incarnation::default(),
    }
}

fn is_nobody(replica: &Replica) -> bool {
    replica.incarnation == Incarnation::default()
}

fn covers(record: &GroupRecord, first: Ordinal, end: Ordinal) -> bool {
    record.is_closed() && record.start_ordinal() <= first && end <= record.end_ordinal
}

/// Whether any ordinal of a group may lie between the two.
fn reaches_into(record: &GroupRecord, first: Ordinal, end: Ordinal) -> bool {
    match record.is_closed() {
        true => {
            let is_empty = record.start_ordinal() == record.end_ordinal;
            let (start, to) = (record.start_ordinal(), record.end_ordinal);
            match is_empty {
                true => first <= start && start < end,
                false => start < end && to > first,
            }
        }
        // Of one that follows an open group nobody knows where it begins: who takes it over finds that out.
        false => record
            .first_ordinal
            .is_some_and(|start| start < end && first <= start),
    }
}

fn is_within(record: &GroupRecord, first: Ordinal, end: Ordinal) -> bool {
    match record.is_closed() {
        true => first <= record.start_ordinal() && record.end_ordinal <= end,
        false => record.first_ordinal.is_some_and(|start| first <= start),
    }
}

#[cfg(test)]
#[path = "restore_plan_tests.rs"]
mod tests;
