//! What is recorded: plain values, as callers see them.

use std::collections::BTreeMap;
use std::ops::Range;

use kera_protocol::ids::{
    BrokerId, Epoch, GroupId, Incarnation, LaneId, LaneKey, Ordinal, StreamId, StreamletId,
    StreamletKey,
};
use uuid::Uuid;

use crate::access::RulesRecord;
use crate::config::{StreamConfig, partitions_of};
use crate::lost::LostRecords;
use crate::numbered::numbered;
use crate::pin::PinRecord;
use crate::quota::QuotasRecord;
use crate::user::UsersRecord;

pub use kera_protocol::ids::GroupKey;

numbered! {
    /// What a process that shares the store does for the others.
    #[derive(Default)]
    Role {
        /// It owns streamlets, serves clients, and holds replicas. Older versions left it out.
        #[default]
        Broker = 0 "broker",
        /// It holds replicas and nothing else: it never owns a streamlet, is never controller, and no client
        /// reaches it.
        ReplicaStore = 1 "replica store",
    }
}

/// A broker that has used this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerRecord {
    /// The broker's number; streamlets name their owner by it.
    pub id: u32,
    /// `host:port` that clients reach it at, or other brokers if it is a replica store; 1 to 255 bytes.
    pub address: String,
    /// Random id of its store directory, made when that was created empty.
    pub store_id: Uuid,
    /// Random id of the machine's boot that its last start happened in.
    pub boot_id: Uuid,
    /// When it last started, milliseconds since 1970.
    pub started_ms: u64,
    /// Version of the program that last started, at most 64 bytes; for people.
    pub version: String,
    /// What it does for the others; its number keeps that for good.
    pub role: Role,
    /// The last restore of the store from an older state that it knows of; 0 for none. The highest of all brokers is the
    /// cluster's. Older versions left it out.
    pub restore: u64,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

/// Broker settings that were changed at run time, of one broker or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsRecord {
    /// The broker; `None`: all brokers that have no value of their own.
    pub broker: Option<u32>,
    /// The values by name, as a configuration file would have them. A broker skips the names that it
    /// does not know.
    pub values: BTreeMap<String, String>,
    /// Of all brokers: the cluster version that was finalized. 0 is what records of older programs and of single
    /// brokers say.
    pub cluster_version: u32,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

/// A time in a stream's life with one number of lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneGeneration {
    /// Q during this generation.
    pub lanes: u32,
    /// How many streamlets, the last ones, have one lane less.
    pub short_streamlets: u32,
    /// For each lane of the generation before: the ordinal at which this one begins. Empty in a
    /// stream's first generation. With `lane_by = key` every old lane of every streamlet is listed;
    /// with `lane_by = producer` growth needs no boundary and the list may be empty.
    pub starts: Vec<(StreamletId, LaneId, Ordinal)>,
}

impl LaneGeneration {
    /// n, lanes of all of the stream's streamlets during this generation.
    pub fn partitions(&self, streamlets: u32) -> u32 {
        partitions_of(streamlets, self.lanes, self.short_streamlets)
    }
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    /// Its id for life.
    pub id: StreamId,
    /// Its name, unique among the streams that exist.
    pub name: String,
    /// Its settings.
    pub config: StreamConfig,
    /// How its lanes grew, oldest first; never empty, the last has the lanes of `config`. A generation's
    /// index is its number in the protocol.
    pub lane_generations: Vec<LaneGeneration>,
    /// When it was created, milliseconds since 1970.
    pub created_ms: u64,
    /// True for the broker's own streams, whose names begin with `_kera`.
    pub internal: bool,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

impl StreamRecord {
    /// A stream as it is created: one lane generation, no revision.
    pub fn new(name: impl Into<String>, config: StreamConfig, created_ms: u64) -> Self {
        let first = LaneGeneration {
            lanes: config.lanes,
            short_streamlets: config.short_streamlets,
            starts: Vec::new(),
        };
        let name = name.into();
        Self {
            id: StreamId::random(),
            internal: name.starts_with(crate::name::INTERNAL_PREFIX),
            name,
            config,
            lane_generations: vec![first],
            created_ms,
            revision: 0,
        }
    }
}

/// A streamlet: the unit of ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamletRecord {
    /// The stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub streamlet: StreamletId,
    /// Number of the broker that owns it.
    pub owner: u32,
    /// The owner's right to write; at most `i32::MAX`, never falls, rises with every owner.
    pub epoch: Epoch,
    /// The least group id that this epoch has not reserved; never falls. Every recorded group is below.
    pub next_group: GroupId,
    /// The last [restore](Self::after_restore) of the store that it was told of; 0 for none. Older versions left it out.
    pub restore: u64,
    /// How many times 2^32 ordinals its lanes have still to pass over, which unknown groups may have used.
    pub awaits_jumps: u32,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

impl StreamletRecord {
    /// The key it is recorded under.
    pub fn key(&self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.streamlet,
        }
    }

    /// This streamlet under `owner` in its next epoch; `None` once its epochs are used up.
    ///
    /// An owner makes the file of a group before it records the group. One that dies in between leaves files whose ids
    /// no record knows, and other brokers cannot see them. So each epoch begins `UNRECORDED_GROUPS` ids further up:
    /// no id names groups of two epochs.
    pub fn in_next_epoch(&self, owner: u32) -> Option<Self> {
        let epoch = self.epoch.0.checked_add(1)?;
        let next_group = self.next_group.0.checked_add(UNRECORDED_GROUPS)?;
        (epoch <= i32::MAX as u32).then(|| Self {
            owner,
            epoch: Epoch(epoch),
            next_group: GroupId(next_group),
            ..self.clone()
        })
    }

    /// This streamlet once the store was put back to an older state, for the `restore`th time; `None` once its epochs are
    /// used up.
    ///
    /// What was recorded since that state is unknown. So epoch and group ids go up by more than any cluster uses
    /// meanwhile, or new groups would have the epochs and ids of unknown ones, of which brokers have replicas. The ordinals of
    /// unknown groups are passed over by whoever takes it over next. A state that was put back before knows nothing of
    /// what followed that restore either: all go up once for each restore that this record was not told of.
    pub fn after_restore(&self, restore: u64) -> Option<Self> {
        let times = u32::try_from(restore.saturating_sub(self.restore))
            .ok()?
            .max(1);
        let epochs = UNKNOWN_EPOCHS.checked_mul(times)?;
        let epoch = self.epoch.0.checked_add(epochs)?;
        let unknown = u64::from(epochs) * UNRECORDED_GROUPS;
        let next_group = self.next_group.0.checked_add(unknown)?;
        (epoch <= i32::MAX as u32).then(|| Self {
            epoch: Epoch(epoch),
            next_group: GroupId(next_group),
            restore,
            awaits_jumps: self.awaits_jumps.saturating_add(times),
            ..self.clone()
        })
    }
}

/// More epochs than a streamlet takes between a snapshot of the store and its restore.
const UNKNOWN_EPOCHS: u32 = 1 << 12;

/// More groups than an owner can have under way without their records: each holds at least one segment of its memory.
/// The ids of all epochs together stay within the 16 digits of a file's name.
const UNRECORDED_GROUPS: u64 = 1 << 20;

numbered! {
    /// Where a group stands in its life; it only ever moves down this list.
    GroupState {
        /// Recorded ahead of its use; nothing is written yet, and it may be deleted unopened.
        Ahead = 1 "ahead",
        /// In use, or left behind by an owner that ended; its set of copies never changes.
        Open = 2 "open",
        /// Ended by its one close: length and ordinals are final.
        Closed = 3 "closed",
    }
}

/// Where a replica of a group is: at which broker, and in which life of its store. The same broker in
/// another incarnation does not hold the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// The broker.
    pub broker: BrokerId,
    /// The store directory, and the machine's boot in which the replica was made: the life that bytes
    /// survive which are not on the disk.
    pub incarnation: Incarnation,
}

/// That a group's bytes are damaged, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Address in the group, in bytes, of the first batch that cannot be served.
    pub address: u64,
    /// What was found there, at most [`MAX_DAMAGE_DETAIL`] bytes; for people.
    pub detail: String,
    /// The records that an operator has given up. If there are none, what lies at `address` or behind it counts as lost:
    /// builds that knew of one place alone wrote that, and it holds for a group of which nothing is left.
    pub lost: LostRecords,
}

/// Most bytes of [`Damage::detail`].
pub const MAX_DAMAGE_DETAIL: usize = 1024;

impl Damage {
    /// Damage at `address`; of `detail`, the first [`MAX_DAMAGE_DETAIL`] bytes.
    pub fn new(address: u64, mut detail: String) -> Self {
        detail.truncate(detail.floor_char_boundary(MAX_DAMAGE_DETAIL));
        Self {
            address,
            detail,
            lost: LostRecords::default(),
        }
    }

    /// What of it lies below `length` and `end`, where its group ends now; `None` if nothing does.
    pub fn below(&self, length: u64, end: Ordinal) -> Option<Self> {
        let stretches = self.lost.stretches().iter();
        let below = stretches.map(|one| one.start..one.end.min(end));
        let lost: LostRecords = below.filter(|one| !one.is_empty()).collect();
        let is_left = self.address < length && self.lost.is_empty() == lost.is_empty();
        is_left.then(|| Self {
            lost,
            ..self.clone()
        })
    }

    /// Whether records of which the first lies at `address` are known to be lost.
    pub fn covers(&self, address: u64, ordinals: &Range<Ordinal>) -> bool {
        match self.lost.is_empty() {
            true => self.address <= address,
            false => self.lost.covers(ordinals),
        }
    }
}

/// A group: the unit of copies, retention and movement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The group's number in the streamlet.
    pub group: GroupId,
    /// The file generation: 0 as appended, more after a job rewrote it; never falls.
    pub generation: u32,
    /// The lane it belongs to, for life.
    pub lane: LaneId,
    /// Its one epoch, for life.
    pub epoch: Epoch,
    /// Where it stands in its life.
    pub state: GroupState,
    /// Ordinal of its first record. Unknown while its predecessor is not closed; never changes once
    /// known, and a closed group's is known.
    pub first_ordinal: Option<Ordinal>,
    /// Where its bytes end: the address after the last batch. Final once closed.
    pub length: u64,
    /// One above the ordinal of its last record; at most 2^32 above the first. Final once closed.
    pub end_ordinal: Ordinal,
    /// First ordinal of the lane's next group: `end_ordinal`, or more after a loss.
    pub next_ordinal: Ordinal,
    /// Greatest timestamp of its records, milliseconds since 1970; -1 when it has none.
    pub max_timestamp_ms: i64,
    /// When it was closed, milliseconds since 1970; 0 until then.
    pub closed_ms: u64,
    /// Bytes in it that still count, after compaction; at most `length` once closed.
    pub live_bytes: u64,
    /// Where its bytes are: 1 to [`MAX_COPIES`], each at another broker.
    pub copies: Vec<Replica>,
    /// Set when its bytes were found damaged.
    pub damaged: Option<Damage>,
    /// Its owner's file was there, with a durable mark in it, before this was recorded: a file that is gone was
    /// lost. Builds that do not know of it wrote false.
    pub file_made: bool,
    /// The restore of the store after which a broker has recorded this from what it had; 0 if it was recorded as it was
    /// written.
    pub restore: u64,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

/// Most copies of a group.
pub const MAX_COPIES: usize = 16;

impl GroupRecord {
    /// A group recorded ahead of its use. Its replicas are still to be named.
    pub fn new(key: GroupKey, lane: LaneId, epoch: Epoch) -> Self {
        Self {
            stream: key.stream,
            streamlet: key.streamlet,
            group: key.group,
            generation: 0,
            lane,
            epoch,
            state: GroupState::Ahead,
            first_ordinal: None,
            length: 0,
            end_ordinal: 0,
            next_ordinal: 0,
            max_timestamp_ms: -1,
            closed_ms: 0,
            live_bytes: 0,
            copies: Vec::new(),
            damaged: None,
            file_made: false,
            restore: 0,
            revision: 0,
        }
    }

    /// True once its length and ordinals are final.
    pub fn is_closed(&self) -> bool {
        self.state == GroupState::Closed
    }

    /// True if it is closed and has records. One without only says where its lane goes on, as one that was given up.
    pub fn holds_records(&self) -> bool {
        self.is_closed() && self.end_ordinal > self.start_ordinal() && !self.is_given_up()
    }

    /// True if none of its bytes is left anywhere.
    pub fn is_given_up(&self) -> bool {
        self.damaged.as_ref().is_some_and(|d| d.address == 0)
    }

    /// Its end: the group holds bytes below `length`, of records below `end_ordinal`. The next group of its
    /// lane begins at `next_ordinal`, and `copies` hold all of it.
    pub fn closed(
        self,
        first_ordinal: Ordinal,
        (length, end_ordinal): (u64, Ordinal),
        next_ordinal: Ordinal,
        copies: Vec<Replica>,
    ) -> Self {
        Self {
            state: GroupState::Closed,
            first_ordinal: Some(first_ordinal),
            length,
            end_ordinal,
            next_ordinal,
            live_bytes: length,
            copies,
            ..self
        }
    }

    /// True if both say the same of the group's life, place and end. Times, damage, revision and what
    /// compaction left may differ.
    pub fn agrees(&self, other: &Self) -> bool {
        self.key() == other.key()
            && (self.lane, self.epoch, self.state) == (other.lane, other.epoch, other.state)
            && (self.first_ordinal, self.length) == (other.first_ordinal, other.length)
            && (self.end_ordinal, self.next_ordinal) == (other.end_ordinal, other.next_ordinal)
            && (self.generation, &self.copies) == (other.generation, &other.copies)
    }

    /// True if this closed group begins earlier than `old`, which it takes the place of: it was made of that one and of
    /// groups before it.
    pub fn takes_in_others(&self, old: &Self) -> bool {
        (old.is_closed() && self.is_closed())
            && self.generation > old.generation
            && self.start_ordinal() < old.start_ordinal()
    }

    /// Whether `deleted` holds closed groups of its lane that cover all from where it begins to where `old` begins, each
    /// from where the one before ends.
    pub fn covers(&self, old: &Self, mut deleted: Vec<Self>) -> bool {
        deleted.retain(|group| group.lane == self.lane && group.group < self.group);
        deleted.sort_by_key(|group| group.group);
        let mut begin = self.start_ordinal();
        for group in &deleted {
            if !group.is_closed() || group.start_ordinal() != begin {
                break;
            }
            begin = group.next_ordinal;
        }
        begin == old.start_ordinal()
    }

    /// Ordinal of a closed group's first record, or `end_ordinal` if it has none.
    pub fn start_ordinal(&self) -> Ordinal {
        self.first_ordinal.unwrap_or(self.end_ordinal)
    }

    /// The key it is recorded under.
    pub fn key(&self) -> GroupKey {
        self.streamlet_key().group(self.group)
    }

    /// The key of its streamlet's record.
    pub fn streamlet_key(&self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.streamlet,
        }
    }

    /// The lane it belongs to.
    pub fn lane_key(&self) -> LaneKey {
        LaneKey {
            stream: self.stream,
            streamlet: self.streamlet,
            lane: self.lane,
        }
    }
}

/// Where a lane's log begins, once it was trimmed or expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStart {
    /// The lane.
    pub key: LaneKey,
    /// The least ordinal that may be read; never falls.
    pub ordinal: Ordinal,
    /// Revision of the transaction that wrote this.
    pub revision: u64,
}

/// A number that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// The least producer id that was never given out; ids begin at 1.
    ProducerIds,
    /// The highest epoch that a streamlet of a deleted stream had; new streamlets begin above it, so
    /// that epochs also rise where a name is used again. Only the store writes it, with the deletion.
    EpochFloor,
}

/// Everything that a store holds, or everything of one streamlet. Each list is sorted by its key:
/// stream id, then streamlet, then group or lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Random id made when the store was created.
    pub cluster: Uuid,
    /// Revision of the last transaction that is in this image.
    pub revision: u64,
    /// By number.
    pub brokers: Vec<BrokerRecord>,
    /// By id.
    pub streams: Vec<StreamRecord>,
    /// By stream and number.
    pub streamlets: Vec<StreamletRecord>,
    /// By streamlet and group.
    pub groups: Vec<GroupRecord>,
    /// By streamlet and lane; a lane that is absent begins at 0.
    pub lane_starts: Vec<LaneStart>,
    /// The values of counters; one that is absent was never used.
    pub counters: Vec<(Counter, u64)>,
    /// Those of all brokers first, then by broker.
    pub settings: Vec<SettingsRecord>,
    /// Who may do what; `None` where there were never any rules.
    pub rules: Option<RulesRecord>,
    /// Users; `None` where there were never any.
    pub users: Option<UsersRecord>,
    /// How much clients may do; `None` where there was never a quota.
    pub quotas: Option<QuotasRecord>,
    /// By stream and name.
    pub pins: Vec<PinRecord>,
}

impl Image {
    /// The streamlets of a stream.
    pub fn streamlets_of(&self, stream: StreamId) -> &[StreamletRecord] {
        equal_range(&self.streamlets, |r| r.stream.cmp(&stream))
    }

    /// The groups of a streamlet, by id.
    pub fn groups_of(&self, stream: StreamId, streamlet: StreamletId) -> &[GroupRecord] {
        equal_range(&self.groups, |r| {
            (r.stream, r.streamlet).cmp(&(stream, streamlet))
        })
    }

    /// The pins of a stream, by name.
    pub fn pins_of(&self, stream: StreamId) -> &[PinRecord] {
        equal_range(&self.pins, |r| r.stream.cmp(&stream))
    }

    /// The log starts of a streamlet, by lane.
    pub fn lane_starts_of(&self, stream: StreamId, streamlet: StreamletId) -> &[LaneStart] {
        equal_range(&self.lane_starts, |r| {
            (r.key.stream, r.key.streamlet).cmp(&(stream, streamlet))
        })
    }
}

fn equal_range<T>(sorted: &[T], compare: impl Fn(&T) -> std::cmp::Ordering) -> &[T] {
    let start = sorted.partition_point(|r| compare(r).is_lt());
    let end = sorted.partition_point(|r| compare(r).is_le());
    &sorted[start..end]
}
