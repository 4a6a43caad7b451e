//! What clients do and see, one event at a time.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::expectations::Order;

/// One lane of one streamlet of one stream; streams are numbered by whoever records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "[u32; 3]", into = "[u32; 3]")]
pub struct Lane {
    /// The stream's number in this history.
    pub stream: u32,
    /// The streamlet.
    pub streamlet: u32,
    /// The lane within the streamlet.
    pub lane: u32,
}

impl From<[u32; 3]> for Lane {
    fn from([stream, streamlet, lane]: [u32; 3]) -> Self {
        Self {
            stream,
            streamlet,
            lane,
        }
    }
}

impl From<Lane> for [u32; 3] {
    fn from(lane: Lane) -> Self {
        [lane.stream, lane.streamlet, lane.lane]
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.stream, self.streamlet, self.lane)
    }
}

/// A record, by who sent it and that producer's own number for it (0, 1, 2, ...). This is the
/// test's numbering, not the protocol's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u32, u64)", into = "(u32, u64)")]
pub struct Record {
    /// The producer's number in this history; below 2^20.
    pub producer: u32,
    /// The producer's own number for the record; dense from 0, below 2^40.
    pub seq: u64,
}

impl From<(u32, u64)> for Record {
    fn from((producer, seq): (u32, u64)) -> Self {
        Self { producer, seq }
    }
}

impl From<Record> for (u32, u64) {
    fn from(record: Record) -> Self {
        (record.producer, record.seq)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.producer, self.seq)
    }
}

/// A lease, by its consumer group and its number within that group. Numbers grow within a group
/// and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u32, u64)", into = "(u32, u64)")]
pub struct LeaseRef {
    /// The consumer group's number in this history.
    pub group: u32,
    /// The lease's number (its generation).
    pub lease: u64,
}

impl From<(u32, u64)> for LeaseRef {
    fn from((group, lease): (u32, u64)) -> Self {
        Self { group, lease }
    }
}

impl From<LeaseRef> for (u32, u64) {
    fn from(lease: LeaseRef) -> Self {
        (lease.group, lease.lease)
    }
}

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of group {}", self.lease, self.group)
    }
}

/// An ordinal of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The lane.
    pub lane: Lane,
    /// The ordinal within it.
    pub ordinal: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ordinal {} of lane {}", self.ordinal, self.lane)
    }
}

/// Whose reading is judged as one: a consumer group, or a consumer that reads without a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// All members of a consumer group.
    Group(u32),
    /// One consumer without a group.
    Consumer(u32),
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(id) => write!(f, "group {id}"),
            Self::Consumer(id) => write!(f, "consumer {id}"),
        }
    }
}

/// What is known about a record that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureOutcome {
    /// It was not stored and never will be.
    Definite,
    /// It may or may not have been stored.
    Unknown,
}

/// What a [`Event::Named`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedThing {
    /// A stream.
    Stream,
    /// A producer.
    Producer,
    /// A consumer group.
    Group,
    /// A consumer: a member of a group, or one without a group.
    Consumer,
}

/// Something that a client did or saw, or that was done to the broker.
///
/// `asked` is the value of [`crate::Recorder::now`] before the call whose result is recorded: every
/// entry with a smaller time was recorded before the call began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A producer is about to hand a record to its client.
    Send {
        /// The record.
        record: Record,
        /// The stream it goes to.
        stream: u32,
        /// The streamlet, if it is determined (by a key) and known to the sender.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        streamlet: Option<u32>,
        /// The lane, likewise; leave it out when lanes may grow on the way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lane: Option<u32>,
        /// A hash of the key, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<u64>,
    },
    /// A producer is about to hand over in one call the records that it sends from here to the next
    /// of these. Without it nothing is known of calls: each record counts as one of its own.
    Batched {
        /// The producer.
        producer: u32,
    },
    /// A record was acknowledged.
    Ack {
        /// The record.
        record: Record,
        /// The lane that holds it.
        lane: Lane,
        /// The ordinal at which it is stored.
        ordinal: u64,
    },
    /// A record was acknowledged, and its producer was not told where it is: the acknowledgement of a
    /// later record of its lane said so, say, after its own answer was lost. Nobody can tell then whether
    /// it was trimmed: it counts as lost only where nothing was.
    AckedUnplaced {
        /// The record.
        record: Record,
    },
    /// A record was given up.
    Failed {
        /// The record.
        record: Record,
        /// Whether it may have been stored all the same.
        outcome: FailureOutcome,
    },
    /// A call for records has returned to a consumer: what it reads from here to the next of these
    /// came with that call. Without it nothing is known of calls: each record counts as one of its own.
    Polled {
        /// The consumer.
        consumer: u32,
    },
    /// A record was delivered to a consumer.
    Read {
        /// The consumer.
        consumer: u32,
        /// The lease under which it was read; none for a consumer without a group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseRef>,
        /// The lane.
        lane: Lane,
        /// The record's ordinal.
        ordinal: u64,
        /// What the payload says; none if it cannot be decoded or its checksum is wrong.
        record: Option<Record>,
        /// A hash of the key; with it, ordered groups are checked per key across lanes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<u64>,
        /// The durable head that the same response stated, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<u64>,
    },
    /// The broker stated a lane's durable head.
    HeadObserved {
        /// The lane.
        lane: Lane,
        /// The first ordinal that is not durable.
        head: u64,
        /// Time before the call.
        asked: u64,
    },
    /// A consumer group reads a stream in this order. Without it the expectations' order holds.
    GroupDefined {
        /// The group.
        group: u32,
        /// The stream it reads.
        stream: u32,
        /// The order it asked for.
        order: Order,
    },
    /// A reader is about to start, or to start anew (seek, reset), at an ordinal of a lane. Without
    /// it, it starts at 0. A consumer without a group must then not get anything that was trimmed
    /// before.
    Positioned {
        /// The reader.
        reader: Reader,
        /// The lane.
        lane: Lane,
        /// The next ordinal it is to see.
        ordinal: u64,
    },
    /// A member got a lease.
    LeaseGranted {
        /// The lease.
        lease: LeaseRef,
        /// The member.
        member: u32,
        /// The lane.
        lane: Lane,
        /// The first ordinal of the lease.
        start: u64,
        /// The end, exclusive; none for a lease of the lane from `start` on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<u64>,
    },
    /// The member is about to give a lease back, or has learned that it lost it.
    LeaseEnded {
        /// The lease.
        lease: LeaseRef,
    },
    /// A commit within a lease succeeded: everything of the lease below `ordinal` is consumed.
    Committed {
        /// The lease.
        lease: LeaseRef,
        /// The next ordinal to consume.
        ordinal: u64,
        /// Time before the call.
        asked: u64,
    },
    /// The broker stated a group's commit: everything below `ordinal` is consumed.
    CommitObserved {
        /// The group.
        group: u32,
        /// The lane.
        lane: Lane,
        /// The committed ordinal.
        ordinal: u64,
        /// Time before the call.
        asked: u64,
    },
    /// A member asked for leases and got none.
    AcquiredNothing {
        /// The group.
        group: u32,
        /// The member.
        member: u32,
        /// Time before the call.
        asked: u64,
    },
    /// A reader claims to have seen everything of a lane below `ordinal`.
    Drained {
        /// The reader.
        reader: Reader,
        /// The lane.
        lane: Lane,
        /// The end, exclusive.
        ordinal: u64,
    },
    /// The broker reported that no record has, nor ever will have, these ordinals.
    OrdinalGap {
        /// The lane.
        lane: Lane,
        /// The first missing ordinal.
        from: u64,
        /// The next ordinal that may hold a record.
        to: u64,
    },
    /// Records below `start` were deleted by trim or retention.
    LogTrimmed {
        /// The lane.
        lane: Lane,
        /// The first ordinal still stored.
        start: u64,
    },
    /// A stream's number of lanes grew.
    LanesGrown {
        /// The stream.
        stream: u32,
        /// Lanes per streamlet from now on.
        lanes: u32,
    },
    /// A broker is ready.
    BrokerStarted,
    /// A broker is about to be killed without warning.
    BrokerKilled,
    /// A broker is about to be asked to stop.
    BrokerStopped,
    /// The metadata store is put back to an older state: what was trimmed since, and is still there, may be read once more.
    StorePutBack,
    /// Gives a number of this history a name for people.
    Named {
        /// What kind of thing it is.
        thing: NamedThing,
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
    },
    /// Anything a person may want to know when reading the history.
    Note {
        /// The text.
        text: String,
    },
}

/// An event and its logical time. Times are unique and grow; an event that ended before another
/// began has the smaller time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, Event)", into = "(u64, Event)")]
pub struct Entry {
    /// Logical time: the event's place in the history.
    pub at: u64,
    /// The event.
    pub event: Event,
}

impl From<(u64, Event)> for Entry {
    fn from((at, event): (u64, Event)) -> Self {
        Self { at, event }
    }
}

impl From<Entry> for (u64, Event) {
    fn from(entry: Entry) -> Self {
        (entry.at, entry.event)
    }
}
