//! Groups that a restored metadata store does not know, and that are whole in files or replicas at this broker: they are
//! recorded again, before anybody takes their streamlet over, and before anybody can free them. [`restore_plan`](super::restore_plan) says
//! which count; what does not is set aside.
//!
//! Each change raises the streamlet's epoch: who was about to take it over begins anew, with what is recorded now.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use kera_log_segments::footer::Footer;
use kera_log_segments::group::{AckPolicy, GroupSpec, MAX_GROUP_ORDINALS};
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::scan::{self, ScanSpec, Scanned};
use kera_metadata::{
    ClusterStore, Compare, GroupChange, GroupRecord, Image, MetadataError, MetadataStore, Replica,
    StreamRecord, StreamletRecord, Transaction, Write,
};
use kera_protocol::batch::BatchHeader;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{
    BrokerId, GroupId, Incarnation, LaneId, LaneKey, Ordinal, StreamId, StreamletId, StreamletKey,
};
use kera_replication::backup::ReplicaStore;
use kera_replication::ids::CopyId;
use kera_replication::transport::{CopyInfo, CopyState, Reply, Request};

use super::restore_plan::{Cut, Held, Holding, Plan, RestoredLane, holes, is_decided, plan};

/// How often a streamlet is read again that others changed meanwhile.
const ATTEMPTS: u32 = 32;
/// The pause after the first of them; it doubles so often.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MOST_DOUBLED: u32 = 6;

/// The names of one streamlet's files.
type Names = BTreeSet<(GroupId, u32)>;

/// Where this broker has files and replicas.
pub(crate) struct Places<'a> {
    pub(crate) io: &'a dyn Io,
    /// The directory of own files' streams.
    pub(crate) streams: &'a Path,
    /// The life of own files.
    pub(crate) incarnation: Incarnation,
    /// Nobody else has it open.
    pub(crate) replicas: &'a ReplicaStore,
    pub(crate) me: BrokerId,
    /// The older state knows this broker by this data directory.
    pub(crate) is_known: bool,
    /// All own group files there are, by streamlet.
    pub(crate) own: BTreeMap<StreamletKey, Names>,
    /// Where own files may be that are not among these.
    pub(crate) unseen: Vec<Unseen>,
    /// Is called now and then.
    pub(crate) goes_on: &'a dyn Fn(),
}

/// A directory that cannot be made out: of a streamlet, or of all of a stream.
pub(crate) type Unseen = (StreamId, Option<StreamletId>);

impl Places<'_> {
    fn is_unseen(&self, key: &StreamletKey) -> bool {
        self.unseen.iter().any(|(stream, streamlet)| {
            *stream == key.stream && streamlet.is_none_or(|one| one == key.streamlet)
        })
    }
}

/// Files and replicas that no record names, and that hold nothing that recorded groups do not hold.
pub(crate) type Spare = HashSet<(StreamletKey, GroupId, u32)>;

/// Records what is whole here of groups that `image` does not know, in streamlets that wait for their jumps; answers what is
/// of no use. Blocks.
///
/// # Errors
/// The store's.
pub(crate) fn take_in(
    store: &dyn ClusterStore,
    image: &Image,
    places: &Places<'_>,
) -> Result<Spare, MetadataError> {
    let mut spare = Spare::new();
    let list = Request::List { streamlet: None };
    let (replicas, is_listed) = match places.replicas.handle(places.me, list) {
        Ok(Reply::Copies(replicas)) => (replicas, true),
        other => {
            tracing::error!(answer = ?other, "the replicas that this broker has for others cannot be listed: none of them is recorded again, and what is not whole here counts as held elsewhere");
            (Vec::new(), false)
        }
    };
    let mut by_streamlet: BTreeMap<StreamletKey, Vec<CopyInfo>> = BTreeMap::new();
    for replica in replicas {
        let of_streamlet = by_streamlet.entry(replica.copy.streamlet).or_default();
        of_streamlet.push(replica);
    }
    let streams: HashMap<_, _> = image.streams.iter().map(|s| (s.id, s)).collect();
    for streamlet in &image.streamlets {
        let key = streamlet.key();
        let Some(stream) = streams.get(&key.stream).copied() else {
            continue;
        };
        (places.goes_on)();
        if !stream.config.is_replicated() && streamlet.owner != places.me.0 {
            // Its files are its owner's alone.
            continue;
        }
        let replicas = by_streamlet.remove(&key).unwrap_or_default();
        let records = image.groups_of(key.stream, key.streamlet);
        let looked = Looked {
            places,
            stream,
            key,
            replicas,
            is_blind: !is_listed || places.replicas.is_hidden(&key) || places.is_unseen(&key),
        };
        let Some(held) = looked.held(records, served_restore(streamlet)) else {
            continue;
        };
        let spares = looked.record(store, &held)?;
        spare.extend(
            spares
                .into_iter()
                .map(|(group, generation)| (key, group, generation)),
        );
    }
    Ok(spare)
}

/// One streamlet, and what this broker has of it.
struct Looked<'a> {
    places: &'a Places<'a>,
    stream: &'a StreamRecord,
    key: StreamletKey,
    replicas: Vec<CopyInfo>,
    /// There may be more replicas or files.
    is_blind: bool,
}

impl Looked<'_> {
    /// What is here, of a streamlet that was `served` after the restore of that number and none since; `None` if the records say
    /// just that.
    fn held(&self, records: &[GroupRecord], served: u64) -> Option<Held> {
        let places = self.places;
        let none = Names::new();
        let own = places.own.get(&self.key).unwrap_or(&none);
        let replicas = self.replicas.iter();
        let replicas = replicas.map(|replica| (replica.copy.group, replica.copy.generation));
        let here: HashSet<_> = own.iter().copied().chain(replicas).collect();
        let store = places.replicas;
        let disk = store.disk().ok().map(|disk| disk.store_id);
        let lives = [places.incarnation.store_id, store.incarnation().store_id];
        let mut held = Held {
            here,
            stores: lives.into_iter().chain(disk).collect(),
            is_torn: self.is_blind,
            boot: places.is_known.then_some(places.incarnation.boot_id),
            me: places.me,
            ..Held::default()
        };
        let recorded: BTreeMap<_, _> = records
            .iter()
            .map(|record| ((record.group, record.generation), record))
            .collect();
        let mine = records.iter().filter(|record| {
            let is_here = held.here.contains(&(record.group, record.generation));
            let mut copies = record.copies.iter();
            record.generation == 0 && !is_here && copies.any(|copy| copy.broker == places.me)
        });
        let removed = mine.filter(|record| store.was_removed(self.key, record.group));
        held.removed = removed.map(|record| record.group).collect();
        // What the older state has as closed, and is here, needs no look. Who closed one since may have had less of it, also where
        // that is part of the older state.
        let is_known = |name: &(GroupId, u32)| {
            let record = recorded.get(name);
            let is_named = |copy: &Replica| copy.broker == places.me;
            let is_closed = |record: &&&GroupRecord| record.is_closed() && record.restore <= served;
            let record = record.filter(is_closed);
            record.is_some_and(|record| record.copies.iter().any(is_named))
        };
        let unknown: BTreeSet<_> = held.here.iter().copied().collect();
        let unknown: Vec<_> = unknown.into_iter().filter(|name| !is_known(name)).collect();
        if unknown.is_empty() && !records.iter().any(|record| held.lacks(record)) {
            return None;
        }
        for name in unknown {
            (places.goes_on)();
            let record = recorded.get(&name).copied();
            let found = [
                own.contains(&name)
                    .then(|| self.own_file(name, record, &mut held.is_torn)),
                self.replica(name)
                    .map(|copy| self.stored(copy, (record, served), &mut held.is_torn)),
            ];
            let found = found.into_iter().flatten().flatten();
            let found = found.filter(|one| self.is_legal(one));
            // This broker's own file, if both are whole.
            let found = found.reduce(
                |own, stored| match own.is_decided || stored.end <= own.end {
                    true => own,
                    false => stored,
                },
            );
            held.holdings.extend(found);
        }
        Some(held)
    }

    fn replica(&self, (group, generation): (GroupId, u32)) -> Option<&CopyInfo> {
        let mut replicas = self.replicas.iter();
        replicas.find(|one| (one.copy.group, one.copy.generation) == (group, generation))
    }

    /// Whether it may be recorded.
    fn is_legal(&self, one: &Holding) -> bool {
        let config = &self.stream.config;
        one.lane.0 < config.lanes_of(self.key.streamlet)
            && one.length <= config.group_bytes()
            && one.first < one.end
            && one.end - one.first <= MAX_GROUP_ORDINALS
    }

    fn path(&self, (group, generation): (GroupId, u32)) -> std::path::PathBuf {
        let of_stream = self.places.streams.join(self.key.stream.to_string());
        let of_streamlet = of_stream.join(self.key.streamlet.0.to_string());
        of_streamlet.join(GroupSpec::file_name(group, generation))
    }

    fn scan(
        &self,
        name: (GroupId, u32),
        visit: impl FnMut(&BatchHeader, u64),
    ) -> Option<(Scanned, bool)> {
        let (io, path) = (self.places.io, self.path(name));
        let spec = ScanSpec {
            group: Some(name.0),
            incarnation: self.places.incarnation,
            verify_all: true,
            ..ScanSpec::default()
        };
        let file = io.open(&path, OpenHow::ReadWrite, false).ok()?;
        let scanned = scan::scan(&*file, &spec, visit).ok()?;
        let header = &scanned.header;
        let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
        let footer = Footer::find(&*file, group_bytes).ok().flatten();
        let is_closed = footer.is_some_and(|footer| footer.length == scanned.end.address);
        // What counts from now on is on the disk.
        (is_closed || file.sync_data().is_ok()).then_some((scanned, is_closed))
    }

    /// This broker's own file of a group, if it is whole.
    fn own_file(
        &self,
        name: (GroupId, u32),
        record: Option<&GroupRecord>,
        is_torn: &mut bool,
    ) -> Option<Holding> {
        let found = self.scan(name, |_, _| {});
        let found = found.filter(|(scanned, _)| !scanned.damaged);
        let Some((scanned, is_closed)) = found else {
            *is_torn |= name.1 > 0 && record.is_none() && self.was_finished(name);
            return None;
        };
        if name.1 > 0 && !is_closed {
            // Compaction did not finish it.
            return None;
        }
        let life = match scanned.header.ack {
            AckPolicy::Synced => Incarnation::of_disk(self.places.incarnation.store_id),
            AckPolicy::Memory | AckPolicy::Written => self.places.incarnation,
        };
        let is_decided = record.is_some_and(|record| self.is_decided(record, &scanned));
        let is_closed = is_closed || is_decided;
        let holding = self.holding(name, &scanned, is_closed, life);
        holding.map(|holding| Holding {
            is_decided,
            ..holding
        })
    }

    /// Whether this broker's own file of a group that is recorded as open was made, or brought to its end, once an owner had
    /// decided how far the group counts.
    fn is_decided(&self, record: &GroupRecord, scanned: &Scanned) -> bool {
        let (me, own) = (self.places.me, self.places.incarnation);
        let mut copies = record.copies.iter();
        let named = copies.find(|copy| copy.broker == me);
        let mark = scanned
            .mark
            .filter(|mark| mark.synced == scanned.end.address);
        let marked = mark.map(|mark| mark.incarnation);
        named.is_some_and(|named| is_decided(scanned.header.ack, (named.incarnation, own), marked))
    }

    /// Whether a file that is not whole was: compaction's files have no mark before.
    fn was_finished(&self, name: (GroupId, u32)) -> bool {
        let (io, path) = (self.places.io, self.path(name));
        let read = || {
            let file = io.open(&path, OpenHow::ReadOnly, false).ok()?;
            let (header, _) = scan::read_head(&*file, &ScanSpec::default()).ok()?;
            let group_bytes = u64::from(header.segment_size) * u64::from(header.segments);
            scan::read_mark(&*file, group_bytes).ok()?
        };
        read().is_some_and(|mark| mark.synced > 0)
    }

    /// The replica of a group, if it is whole; it is on the disk then.
    fn stored(
        &self,
        replica: &CopyInfo,
        (record, served): (Option<&GroupRecord>, u64),
        is_torn: &mut bool,
    ) -> Option<Holding> {
        let (store, copy) = (self.places.replicas, replica.copy);
        let name = (copy.group, copy.generation);
        let was_closed = replica.state == CopyState::Flushed;
        let is_rewritten = copy.generation > 0;
        let Ok(Some(scanned)) = store.whole(&copy, |_, _| {}) else {
            *is_torn |= is_rewritten && was_closed && record.is_none();
            return None;
        };
        // One that the records have as open is left to who takes it over. Of one that a broker has recorded since, which started
        // before this one, this replica may have more: the owner's file follows what is acknowledged from memory. One that has less
        // must not look like a closed one.
        let end = scanned.end.ordinal;
        let is_left = record.is_some_and(|record| {
            !record.is_closed() || record.restore <= served || record.end_ordinal > end
        });
        if scanned.batches == 0 || (!was_closed && (is_left || is_rewritten)) {
            // What compaction made came as a whole.
            return None;
        }
        let length = scanned.end.address;
        let closed = true;
        let flush = Request::Flush {
            copy,
            length,
            closed,
        };
        if !was_closed && let Err(error) = store.handle(self.places.me, flush) {
            tracing::warn!(%copy, %error, "a replica of a group that the restored metadata store does not know cannot be brought to the disk");
            return None;
        }
        let life = match scanned.header.ack {
            AckPolicy::Synced => store.disk().unwrap_or_else(|_| store.incarnation()),
            AckPolicy::Memory | AckPolicy::Written => store.incarnation(),
        };
        // A replica that fell out of the set of its group says so of itself, too.
        self.holding(name, &scanned, is_rewritten, life)
    }

    fn holding(
        &self,
        (group, generation): (GroupId, u32),
        scanned: &Scanned,
        is_closed: bool,
        incarnation: Incarnation,
    ) -> Option<Holding> {
        let header = &scanned.header;
        let is_of = (header.stream, header.streamlet) == (self.key.stream, self.key.streamlet)
            && (header.group, header.generation) == (group, generation);
        (is_of && scanned.batches > 0).then_some(Holding {
            lane: header.lane,
            group,
            generation,
            epoch: header.epoch,
            first: header.first_ordinal,
            end: scanned.end.ordinal,
            length: scanned.end.address,
            max_timestamp_ms: scanned.max_timestamp,
            is_closed,
            is_decided: false,
            replica: Replica {
                broker: self.places.me,
                incarnation,
            },
        })
    }

    /// The end of the last batch of a holding that ends at or below an ordinal.
    fn cut(&self, one: &Holding, below: Ordinal) -> Option<(u64, Ordinal)> {
        let name = (one.group, one.generation);
        let mut end = None;
        let mut visit = |header: &BatchHeader, address: u64| {
            if header.next_ordinal() <= below {
                let length = header.total_bytes as u64;
                end = Some((address + length, header.next_ordinal()));
            }
        };
        if one.replica.incarnation.store_id == self.places.incarnation.store_id {
            self.scan(name, visit)?;
        } else {
            let copy = self.replica(name)?.copy;
            self.places.replicas.whole(&copy, &mut visit).ok()??;
        }
        Some(end.unwrap_or((0, one.first)))
    }

    /// Records what is to be recorded; answers what is of no use.
    fn record(
        &self,
        store: &dyn ClusterStore,
        held: &Held,
    ) -> Result<Vec<(GroupId, u32)>, MetadataError> {
        for attempt in 0..ATTEMPTS {
            let image = store.load_streamlet(self.key.stream, self.key.streamlet)?;
            let Some(streamlet) = image.streamlets.first() else {
                return Ok(Vec::new());
            };
            if streamlet.awaits_jumps == 0 {
                // It is served again: what was not recorded by then is too late.
                return Ok(Vec::new());
            }
            let of = Planned {
                stream: self.stream,
                streamlet,
                is_last: false,
            };
            let cut = |one: &Holding, below| self.cut(one, below);
            let (plans, changes) = of.plans(&image, held, &cut);
            match changes.commit(store, streamlet) {
                Ok(()) => {
                    of.tell(&plans);
                    let spare = plans.into_iter().flat_map(|(_, plan)| plan.spare);
                    return Ok(spare.collect());
                }
                // Others do the same at their starts.
                Err(MetadataError::Conflict(_)) => {
                    std::thread::park_timeout(FIRST_PAUSE * (1 << attempt.min(MOST_DOUBLED)));
                }
                Err(MetadataError::Invalid(error)) => {
                    tracing::error!(stream = self.stream.name, streamlet = self.key.streamlet.0, %error, "groups that are whole here, and that the restored metadata store does not know, cannot be recorded");
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
        let text = format!(
            "streamlet {} was changed by others through {ATTEMPTS} attempts to record what is whole here; start the broker again",
            self.key
        );
        Err(WireError::new(ErrorCode::InvalidArgument, text).into())
    }
}

/// The last restore after which a streamlet was served.
pub(crate) fn served_restore(streamlet: &StreamletRecord) -> u64 {
    let unserved = u64::from(streamlet.awaits_jumps);
    streamlet.restore.saturating_sub(unserved)
}

/// Plans of all lanes of a streamlet.
struct Planned<'a> {
    stream: &'a StreamRecord,
    streamlet: &'a StreamletRecord,
    is_last: bool,
}

impl Planned<'_> {
    /// What is to be recorded, by the groups in `image` and by what a broker has.
    fn plans(&self, image: &Image, held: &Held, cut: Cut<'_>) -> (Vec<(LaneId, Plan)>, Changes) {
        let (mut plans, mut changes) = (Vec::new(), Changes::default());
        let config = &self.stream.config;
        for lane in (0..config.lanes_of(self.streamlet.streamlet)).map(LaneId) {
            let before: Vec<_> = image.groups.iter().filter(|g| g.lane == lane).collect();
            let records = before.iter().map(|record| (*record).clone());
            let mut starts = image.lane_starts.iter();
            let start = starts.find(|start| start.key.lane == lane);
            let of = RestoredLane {
                key: self.streamlet.key(),
                lane,
                start: start.map_or(0, |start| start.ordinal),
                restore: self.streamlet.restore,
                served: served_restore(self.streamlet),
                is_replicated: config.is_replicated(),
                is_last: self.is_last,
            };
            let plan = plan(of, records, held, cut);
            changes.of(&before, &plan);
            plans.push((lane, plan));
        }
        (plans, changes)
    }

    fn tell(&self, plans: &[(LaneId, Plan)]) {
        let (stream, streamlet) = (&*self.stream.name, self.streamlet.streamlet.0);
        for (lane, plan) in plans {
            let lane = lane.0;
            if !plan.taken.is_empty() {
                tracing::warn!(
                    stream,
                    streamlet,
                    lane,
                    groups = plan.taken.len(),
                    "the restored metadata store does not know what is whole here of these groups: it is recorded again, and served"
                );
            }
            if let (Some((from, _)), Some((_, to))) = (plan.trimmed.first(), plan.trimmed.last()) {
                tracing::error!(
                    stream,
                    streamlet,
                    lane,
                    groups = plan.trimmed.len(),
                    from,
                    to,
                    "the restored metadata store knows groups at the beginning of this lane of which no broker that it names has anything: they count as trimmed since, and their records are removed. Without retention, trims or compaction they are lost"
                );
            }
        }
    }
}

/// Transactions of at most `size` changes each that remove, once all brokers have recorded what they have, the records of groups
/// which were trimmed since: those at the lower ends of lanes that nobody has. `image` is of one streamlet.
pub(crate) fn drop_trimmed(
    stream: &StreamRecord,
    image: &Image,
    size: usize,
) -> Vec<Vec<GroupChange>> {
    let Some(streamlet) = image.streamlets.first() else {
        return Vec::new();
    };
    let of = Planned {
        stream,
        streamlet,
        is_last: true,
    };
    let (plans, changes) = of.plans(image, &Held::default(), &|_, _| None);
    of.tell(&plans);
    changes.parts(size)
}

/// Changes of a streamlet's groups, in an order in which no part of them takes away what only the rest brings: a broker that ends
/// in between leaves records from which its next start, or another's, comes to the same.
#[derive(Default)]
pub(crate) struct Changes {
    put: Vec<GroupChange>,
    removed: Vec<GroupChange>,
}

impl Changes {
    /// Adds what makes a `plan` of the records of a lane.
    pub(crate) fn of(&mut self, before: &[&GroupRecord], plan: &Plan) {
        let known: BTreeMap<_, _> = before
            .iter()
            .map(|record| (record.group, *record))
            .collect();
        // The last first: an earlier one ends where a later one begins.
        for (id, record) in plan.groups.iter().rev() {
            let before = known.get(id);
            if before.is_none_or(|before| *before != record) {
                let changed = GroupRecord {
                    revision: before.map_or(0, |before| before.revision),
                    ..record.clone()
                };
                self.put.push(changed.put());
            }
        }
        let gone = known.iter().filter(|(id, _)| !plan.groups.contains_key(id));
        let gone = gone.map(|(_, record)| Write::delete_group(record.key(), record.revision));
        self.removed.extend(gone);
    }

    /// Transactions of at most so many changes each, one after the other.
    pub(crate) fn parts(mut self, size: usize) -> Vec<Vec<GroupChange>> {
        self.put.append(&mut self.removed);
        self.put.chunks(size.max(1)).map(<[_]>::to_vec).collect()
    }

    fn commit(
        self,
        store: &dyn MetadataStore,
        streamlet: &StreamletRecord,
    ) -> Result<(), MetadataError> {
        // Beside the streamlet's record, by its revision and its epoch.
        let size = store.max_operations().saturating_sub(2);
        let mut streamlet = streamlet.clone();
        for changes in self.parts(size) {
            let Some(next) = streamlet.in_next_epoch(streamlet.owner) else {
                let text = format!(
                    "streamlet {} has used up its epochs; copy the stream to a new one",
                    streamlet.key()
                );
                return Err(WireError::new(ErrorCode::InvalidArgument, text).into());
            };
            let mut compare = vec![Compare::streamlet(&streamlet), Compare::epoch(&streamlet)];
            let mut write = vec![Write::PutStreamlet(next.clone())];
            for (compared, written) in changes {
                compare.push(compared);
                write.push(written);
            }
            let committed = store.commit(Transaction::new(compare, write))?;
            streamlet = StreamletRecord {
                revision: committed.revision,
                ..next
            };
        }
        Ok(())
    }
}

/// Closed groups of a streamlet that this restore has recorded, at several brokers: a broker that had looked through its replicas before, while the
/// group was recorded as open, is named as a holder whatever it has.
pub(crate) fn recorded_again(image: &Image) -> Vec<CopyId> {
    let served = image.streamlets.first().map_or(0, served_restore);
    let again = image.groups.iter().filter(|record| {
        record.restore > served && record.holds_records() && record.copies.len() > 1
    });
    again.map(CopyId::of).collect()
}

/// Tells of records that are lost between groups of `image`; how many stretches of them there are.
pub(crate) fn tell_holes(stream: &str, image: &Image) -> u64 {
    let mut lanes: BTreeMap<_, Vec<&GroupRecord>> = BTreeMap::new();
    for group in &image.groups {
        let of_lane = lanes.entry((group.streamlet, group.lane)).or_default();
        of_lane.push(group);
    }
    let mut told = 0;
    for ((streamlet, lane), groups) in lanes {
        for (from, to) in holes(groups) {
            told += 1;
            tracing::error!(
                stream,
                streamlet = streamlet.0,
                lane = lane.0,
                from,
                to,
                "the restored metadata store does not know the groups between these ordinals, and no broker has them whole: their records are lost. Brokers that were down may have them: look into the folders damaged"
            );
        }
    }
    told
}

/// Where lanes begin whose first groups are gone: at the first that is left, by the groups in `image`.
pub(crate) fn starts(image: &Image) -> Vec<(LaneKey, Ordinal)> {
    let mut first: BTreeMap<LaneId, &GroupRecord> = BTreeMap::new();
    let may_hold = |group: &&GroupRecord| group.holds_records() || !group.is_closed();
    for group in image.groups.iter().filter(may_hold) {
        let known = first.entry(group.lane).or_insert(group);
        if group.group < known.group {
            *known = group;
        }
    }
    let starts = first.into_iter().filter_map(|(lane, group)| {
        let key = LaneKey {
            stream: group.stream,
            streamlet: group.streamlet,
            lane,
        };
        Some((key, group.first_ordinal?))
    });
    let is_new = |(key, ordinal): &(LaneKey, Ordinal)| {
        let mut known = image.lane_starts.iter();
        let known = known.find(|start| start.key == *key);
        *ordinal > known.map_or(0, |start| start.ordinal)
    };
    starts.filter(is_new).collect()
}

#[cfg(test)]
#[path = "restored_groups_tests.rs"]
mod tests;
