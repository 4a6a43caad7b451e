//! What is asked of a store: compare, then write, all or nothing.

use kera_protocol::ids::{Epoch, LaneKey, Ordinal, StreamId, StreamletId, StreamletKey};

use crate::access::RulesRecord;
use crate::key::Key;
use crate::pin::{PinKey, PinRecord};
use crate::quota::QuotasRecord;
use crate::record::{
    BrokerRecord, Counter, GroupKey, GroupRecord, SettingsRecord, StreamRecord, StreamletRecord,
};
use crate::user::UsersRecord;

/// Writes that take effect together, if every comparison holds when they would.
///
/// What changes is guarded: a write without the comparisons it requires (see [`Write`]) is refused
/// as invalid, so that no caller can forget the epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    /// What must hold.
    pub compare: Vec<Compare>,
    /// What is then written, each record at most once.
    pub write: Vec<Write>,
}

/// A condition on what the store holds, before any of the transaction's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// No stream has this name.
    StreamAbsent {
        /// The name.
        name: String,
    },
    /// The record has this revision; 0: it does not exist, and of settings, rules, users and quotas there were never any.
    Revision {
        /// The record.
        key: Key,
        /// The revision.
        revision: u64,
    },
    /// The streamlet exists and has this epoch.
    StreamletEpoch {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Each of these streamlets of a stream exists and has this epoch. One comparison, however many they
    /// are: with all of a stream's, where that is more than a transaction may compare one by one.
    StreamletEpochs {
        /// The stream.
        stream: StreamId,
        /// The streamlets with their epochs.
        epochs: Vec<(StreamletId, Epoch)>,
    },
    /// The counter has this value; 0: it was never used.
    CounterValue {
        /// The counter.
        counter: Counter,
        /// The value.
        value: u64,
    },
    /// The controller is the one elected for this term; see
    /// `Membership::fence` of `kera-metadata`.
    Controller {
        /// The term, which no other election has.
        term: u64,
    },
}

impl Compare {
    /// A comparison of a record's revision with `revision`; 0: it does not exist.
    pub fn revision(key: Key, revision: u64) -> Self {
        Self::Revision { key, revision }
    }

    /// A comparison with the revision of `group`, as it was read or written last.
    pub fn group(group: &GroupRecord) -> Self {
        Self::revision(Key::Group(group.key()), group.revision)
    }

    /// A comparison with the revision of `streamlet`, as it was read or written last.
    pub fn streamlet(streamlet: &StreamletRecord) -> Self {
        Self::revision(Key::Streamlet(streamlet.key()), streamlet.revision)
    }

    /// A comparison with the epoch of `streamlet`, as it was read or written last.
    pub fn epoch(streamlet: &StreamletRecord) -> Self {
        Self::epoch_of(streamlet.key(), streamlet.epoch)
    }

    /// A comparison of a streamlet's epoch with `epoch`.
    pub fn epoch_of(streamlet: StreamletKey, epoch: Epoch) -> Self {
        let StreamletKey { stream, streamlet } = streamlet;
        Self::StreamletEpoch {
            stream,
            streamlet,
            epoch,
        }
    }
}

/// One change. The `revision` within a record is ignored and stamped by the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates or changes a stream. Requires [`Compare::Revision`] or, for a new one,
    /// [`Compare::StreamAbsent`].
    PutStream(StreamRecord),
    /// Deletes a stream with its name, streamlets, groups, log starts and pins, and raises
    /// [`Counter::EpochFloor`] to its streamlets' highest epoch. Requires
    /// [`Compare::Revision`] of the stream as it is; no other write may touch the stream.
    DeleteStream(StreamId),
    /// Creates or changes a streamlet. Requires [`Compare::StreamletEpoch`] or
    /// [`Compare::Revision`], unless the same transaction creates the stream.
    PutStreamlet(StreamletRecord),
    /// Creates or changes a group. Requires [`Compare::StreamletEpoch`] and
    /// [`Compare::Revision`]. A closed group only changes where it may, unless its streamlet waits for its jumps after a
    /// restore of the store.
    PutGroup(GroupRecord),
    /// Deletes a group. Requires [`Compare::StreamletEpoch`] and [`Compare::Revision`] of the
    /// group as it is.
    DeleteGroup(GroupKey),
    /// Moves the log start of a lane up. Requires [`Compare::StreamletEpoch`].
    PutLaneStart {
        /// The lane.
        key: LaneKey,
        /// The least ordinal that may be read.
        ordinal: Ordinal,
    },
    /// Records a broker. Requires [`Compare::Revision`].
    PutBroker(BrokerRecord),
    /// Forgets a broker. Requires [`Compare::Revision`] of the broker as it is.
    DeleteBroker(u32),
    /// Replaces the settings of a broker, or of all. Requires [`Compare::Revision`].
    PutSettings(SettingsRecord),
    /// Replaces the rules of access. Requires [`Compare::Revision`].
    PutRules(RulesRecord),
    /// Replaces the users. Requires [`Compare::Revision`].
    PutUsers(UsersRecord),
    /// Replaces the quotas. Requires [`Compare::Revision`].
    PutQuotas(QuotasRecord),
    /// Creates or replaces a pin of a stream that exists. Requires [`Compare::Revision`].
    PutPin(PinRecord),
    /// Deletes a pin. Requires [`Compare::Revision`] of the pin as it is.
    DeletePin(PinKey),
    /// Moves a counter up, but for [`Counter::EpochFloor`]. Requires [`Compare::CounterValue`].
    PutCounter {
        /// The counter.
        counter: Counter,
        /// Its new value.
        value: u64,
    },
}

/// A change of one group's record, with the comparison that it requires.
pub type GroupChange = (Compare, Write);

impl GroupRecord {
    /// Writes this record in the place of the one of the same revision; 0: where there is none.
    pub fn put(self) -> GroupChange {
        (Compare::group(&self), Write::PutGroup(self))
    }
}

impl Write {
    /// Deletes the record of a group that has this revision.
    pub fn delete_group(key: GroupKey, revision: u64) -> GroupChange {
        let compare = Compare::revision(Key::Group(key), revision);
        (compare, Self::DeleteGroup(key))
    }

    /// The record that is written or deleted.
    pub fn key(&self) -> Key {
        match self {
            Write::PutStream(r) => Key::Stream(r.id),
            Write::DeleteStream(id) => Key::Stream(*id),
            Write::PutStreamlet(r) => Key::Streamlet(r.key()),
            Write::PutGroup(r) => Key::Group(r.key()),
            Write::DeleteGroup(key) => Key::Group(*key),
            Write::PutLaneStart { key, .. } => Key::LaneStart(*key),
            Write::PutBroker(r) => Key::Broker(r.id),
            Write::DeleteBroker(id) => Key::Broker(*id),
            Write::PutSettings(r) => Key::Settings(r.broker),
            Write::PutRules(_) => Key::Rules,
            Write::PutUsers(_) => Key::Users,
            Write::PutQuotas(_) => Key::Quotas,
            Write::PutPin(r) => Key::Pin(r.key()),
            Write::DeletePin(key) => Key::Pin(key.clone()),
            Write::PutCounter { counter, .. } => Key::Counter(*counter),
        }
    }

    /// How many comparisons the store adds for the write: with what it reads to check the write, and
    /// the caller need not compare.
    fn comparisons(&self) -> usize {
        match self {
            Write::PutLaneStart { .. } | Write::PutStream(_) | Write::PutPin(_) => 1,
            // The floor of epochs, and the range of streamlets.
            Write::DeleteStream(_) => 2,
            _ => 0,
        }
    }

    /// How many operations on keys and key ranges the write stands for.
    fn operations(&self) -> usize {
        match self {
            // The record and its name.
            Write::PutStream(_) => 2,
            // The record, its name, the floor of epochs, and the ranges of streamlets, groups, log starts
            // and pins.
            Write::DeleteStream(_) => 7,
            _ => 1,
        }
    }
}

impl Transaction {
    /// A transaction that writes `write` if all of `compare` holds.
    pub fn new(compare: Vec<Compare>, write: Vec<Write>) -> Self {
        Self { compare, write }
    }

    /// Changes of groups of `streamlet`, which hold only while its epoch is `epoch`.
    pub fn of_groups(
        streamlet: StreamletKey,
        epoch: Epoch,
        changes: impl IntoIterator<Item = GroupChange>,
    ) -> Self {
        let (mut compare, write): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        compare.insert(0, Compare::epoch_of(streamlet, epoch));
        Self { compare, write }
    }

    /// The streamlet of the first group or lane that it changes.
    pub fn streamlet(&self) -> Option<StreamletKey> {
        let mut keys = self.write.iter().map(Write::key);
        keys.find_map(|key| key.streamlet_of())
    }

    /// Comparisons, those that its writes imply among them, or operations that its writes stand for,
    /// whichever is more: what counts against
    /// `MetadataStore::max_operations` of `kera-metadata`.
    pub fn operations(&self) -> usize {
        let writes: usize = self.write.iter().map(Write::operations).sum();
        let implied: usize = self.write.iter().map(Write::comparisons).sum();
        writes.max(self.compare.len() + implied)
    }
}

/// A transaction that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The store-wide revision of the transaction, stamped on every record it wrote. Each
    /// transaction that writes has a greater one than all before it; one that writes nothing
    /// answers the last.
    pub revision: u64,
}
