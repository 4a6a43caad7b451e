//! What is recorded, cut down to what decides who owns what.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kera_protocol::ids::{Epoch, GroupId, Ordinal, StreamId, StreamletKey};

use kera_metadata::Record;
use kera_records::key::Key;
use kera_records::{GroupRecord, GroupState, Image, StreamRecord, StreamletRecord};

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamView {
    /// Its name.
    pub name: String,
    /// The brokers' own, which is kept by as many of them as there are, up to R.
    pub internal: bool,
    /// R.
    pub replicas: u32,
    /// Copies without which nothing is acknowledged.
    pub min_insync_replicas: u32,
    /// Milliseconds that records are kept; 0 is no limit by time.
    pub retention_ms: u64,
}

impl StreamView {
    /// True if other brokers hold copies of its groups, so that it can have another owner.
    pub fn is_movable(&self) -> bool {
        self.replicas > 1
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Where it stands in its life.
    pub state: GroupState,
    /// Its file generation.
    pub generation: u32,
    /// Bytes of it that count; 0 until it is closed.
    pub bytes: u64,
    /// It is closed and has no records: it only says where its lane goes on.
    pub empty: bool,
    /// Greatest timestamp of its records, milliseconds since 1970; -1 when it has none.
    pub max_timestamp_ms: i64,
    /// The brokers that hold copies.
    pub copies: Box<[u32]>,
    /// Records that an operator has given up, in order.
    pub lost: Box<[Range<Ordinal>]>,
}

impl GroupView {
    fn of(record: &GroupRecord) -> Self {
        let closed = record.is_closed();
        Self {
            state: record.state,
            generation: record.generation,
            bytes: if closed { record.live_bytes } else { 0 },
            empty: closed && !record.holds_records(),
            max_timestamp_ms: record.max_timestamp_ms,
            copies: record.copies.iter().map(|copy| copy.broker.0).collect(),
            lost: lost_of(record),
        }
    }

    /// True if records may be in it that only its copies have: it was opened and is not closed.
    pub fn is_open(&self) -> bool {
        self.state == GroupState::Open
    }

    /// Where the given-up records end that `ordinal` is among.
    pub fn behind_lost(&self, ordinal: Ordinal) -> Option<Ordinal> {
        let at = self.lost.partition_point(|lost| lost.end <= ordinal);
        let lost = self.lost.get(at)?;
        (lost.start <= ordinal).then_some(lost.end)
    }
}

/// The records of a group that were given up, as far as it is recorded by ordinals: builds that knew of one place alone
/// wrote where it lies, in bytes.
fn lost_of(record: &GroupRecord) -> Box<[Range<Ordinal>]> {
    match &record.damaged {
        None => Box::default(),
        Some(damage) if damage.lost.is_empty() && record.is_given_up() => {
            std::iter::once(record.start_ordinal()..record.end_ordinal).collect()
        }
        Some(damage) => damage.lost.stretches().into(),
    }
}

/// A streamlet with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamletView {
    /// Its record.
    pub record: StreamletRecord,
    /// Its groups.
    pub groups: BTreeMap<GroupId, GroupView>,
    /// Bytes of its closed groups.
    pub bytes: u64,
    /// Of how many groups each broker holds a copy, as far as it is recorded; those without records
    /// aside.
    pub holders: BTreeMap<u32, usize>,
}

impl StreamletView {
    fn count(&mut self, group: &GroupView) {
        self.bytes += group.bytes;
        for broker in group.copies.iter().filter(|_| !group.empty) {
            *self.holders.entry(*broker).or_default() += 1;
        }
    }

    fn discount(&mut self, group: &GroupView) {
        self.bytes -= group.bytes;
        for broker in group.copies.iter().filter(|_| !group.empty) {
            if let Some(groups) = self.holders.get_mut(broker) {
                *groups -= 1;
                if *groups == 0 {
                    self.holders.remove(broker);
                }
            }
        }
    }

    /// The owner's number.
    pub fn owner(&self) -> u32 {
        self.record.owner
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.record.epoch
    }

    /// Its groups that may hold records that are recorded nowhere else.
    pub fn open_groups(&self) -> impl Iterator<Item = &GroupView> {
        self.groups.values().filter(|group| group.is_open())
    }

    /// Bytes of closed groups of which each broker holds a copy.
    pub fn held(&self) -> BTreeMap<u32, u64> {
        let mut held = BTreeMap::new();
        for group in self.groups.values().filter(|group| !group.empty) {
            for broker in &group.copies {
                *held.entry(*broker).or_default() += group.bytes;
            }
        }
        held
    }

    /// The brokers that hold a copy of some open group.
    pub fn open_holders(&self) -> BTreeSet<u32> {
        let open = self.open_groups();
        open.flat_map(|group| group.copies.iter().copied())
            .collect()
    }
}

/// All streams, streamlets and groups, in short. Built from an [`Image`] and kept by what a watch tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    streams: BTreeMap<StreamId, StreamView>,
    /// Those of streams that are being created are here before their stream.
    streamlets: BTreeMap<StreamletKey, StreamletView>,
}

impl Picture {
    /// What an image holds.
    pub fn of(image: &Image) -> Self {
        let mut picture = Self::default();
        for stream in &image.streams {
            picture.put_stream(stream);
        }
        for streamlet in &image.streamlets {
            picture.put_streamlet(streamlet);
        }
        for group in &image.groups {
            picture.put_group(group);
        }
        picture
    }

    /// A record changed, or, with `None`, was deleted.
    pub fn apply(&mut self, key: &Key, record: Option<&Record>) {
        match (key, record) {
            (_, Some(Record::Stream(record))) => self.put_stream(record),
            (_, Some(Record::Streamlet(record))) => self.put_streamlet(record),
            (_, Some(Record::Group(record))) => self.put_group(record),
            (Key::Stream(id), None) => {
                self.streams.remove(id);
            }
            (Key::Streamlet(key), None) => {
                self.streamlets.remove(key);
            }
            (Key::Group(key), None) => {
                if let Some(streamlet) = self.streamlets.get_mut(&key.streamlet_key())
                    && let Some(group) = streamlet.groups.remove(&key.group)
                {
                    streamlet.discount(&group);
                }
            }
            _ => {}
        }
    }

    fn put_stream(&mut self, record: &StreamRecord) {
        let config = &record.config;
        let view = StreamView {
            name: record.name.clone(),
            internal: record.internal,
            replicas: config.replicas,
            min_insync_replicas: config.min_insync_replicas,
            retention_ms: config.retention_ms,
        };
        self.streams.insert(record.id, view);
    }

    fn put_streamlet(&mut self, record: &StreamletRecord) {
        let which = record.key();
        match self.streamlets.get_mut(&which) {
            // What this process wrote itself may be here before older changes are told.
            Some(view) if view.record.revision > record.revision => {}
            Some(view) => view.record = record.clone(),
            None => {
                let view = StreamletView {
                    record: record.clone(),
                    groups: BTreeMap::new(),
                    bytes: 0,
                    holders: BTreeMap::new(),
                };
                self.streamlets.insert(which, view);
            }
        }
    }

    fn put_group(&mut self, record: &GroupRecord) {
        let which = record.streamlet_key();
        // A group's streamlet was recorded before it, and a late word on a deleted one is no matter.
        let Some(streamlet) = self.streamlets.get_mut(&which) else {
            return;
        };
        let group = GroupView::of(record);
        streamlet.count(&group);
        if let Some(old) = streamlet.groups.insert(record.group, group) {
            streamlet.discount(&old);
        }
    }

    /// A stream.
    pub fn stream(&self, id: StreamId) -> Option<&StreamView> {
        self.streams.get(&id)
    }

    /// The id of the stream of a name.
    pub fn named(&self, name: &str) -> Option<StreamId> {
        let mut streams = self.streams.iter();
        streams.find_map(|(id, stream)| (stream.name == name).then_some(*id))
    }

    /// A streamlet.
    pub fn streamlet(&self, streamlet: StreamletKey) -> Option<&StreamletView> {
        self.streamlets.get(&streamlet)
    }

    /// Every streamlet of a stream that exists, with it, by stream and number.
    pub fn streamlets(&self) -> impl Iterator<Item = (StreamletKey, &StreamView, &StreamletView)> {
        let all = self.streamlets.iter();
        all.filter_map(|(which, streamlet)| {
            let stream = self.streams.get(&which.stream)?;
            Some((*which, stream, streamlet))
        })
    }

    /// Every streamlet that `owner` owns.
    pub fn owned_by(
        &self,
        owner: u32,
    ) -> impl Iterator<Item = (StreamletKey, &StreamView, &StreamletView)> {
        self.streamlets()
            .filter(move |(_, _, streamlet)| streamlet.owner() == owner)
    }

    /// Streams that exist.
    pub fn streams(&self) -> impl Iterator<Item = (&StreamId, &StreamView)> {
        self.streams.iter()
    }
}
