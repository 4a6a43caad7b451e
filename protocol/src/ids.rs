//! The identifiers that every crate shares.
//!
//! Plain numbers would compile just as well and would be swapped just as easily; each id is a type of its own.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// Identifies a stream for its whole life. Paths and headers use it, never the name, so that a
/// deleted and re-created name can never be mistaken for its predecessor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub Uuid);

impl StreamId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The 16 bytes as they stand in headers and frames.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Reads the id from exactly 16 bytes; `None` for any other length.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Uuid::from_slice(bytes).ok().map(Self)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({self})")
    }
}

impl FromStr for StreamId {
    type Err = uuid::Error;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(s).map(Self)
    }
}

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

numeric_id!(
    /// A semantic partition of a stream, `0..M`; fixed at creation.
    StreamletId,
    u32
);
numeric_id!(
    /// One of a streamlet's Q slots for an active group, `0..Q`.
    LaneId,
    u32
);
numeric_id!(
    /// A bounded sub-partition; ids grow within the streamlet and are never reused.
    GroupId,
    u64
);
numeric_id!(
    /// The right to write a streamlet: every start of a broker and every change of owner takes a
    /// higher one. Fits Kafka's signed 32-bit leader epoch; never negative.
    Epoch,
    u32
);
numeric_id!(
    /// Identifies an idempotent producer. Handed out by the broker, never reused.
    ProducerId,
    u64
);

/// Number of a record within its lane. At most `i64::MAX`, as Kafka's offsets are signed.
pub type Ordinal = u64;

/// Lane value of an append that leaves the choice to the owner (`lane_by = producer`).
pub const ANY_LANE: u32 = u32::MAX;

/// Names one streamlet: the unit of ownership, which has one owner and one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamletKey {
    /// The stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub streamlet: StreamletId,
}

impl StreamletKey {
    /// The key of one of its groups.
    pub fn group(self, group: GroupId) -> GroupKey {
        GroupKey {
            stream: self.stream,
            streamlet: self.streamlet,
            group,
        }
    }
}

impl fmt::Display for StreamletKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.streamlet)
    }
}

/// Names one group of one streamlet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The group.
    pub group: GroupId,
}

impl GroupKey {
    /// The key of its streamlet.
    pub fn streamlet_key(self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.streamlet,
        }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.stream, self.streamlet, self.group)
    }
}

/// The life over which unsynced bytes survive: one store directory during one boot of its machine. A
/// replica's record names it, so that a broker in another life does not count as holding the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Random id of the store directory.
    pub store_id: Uuid,
    /// Random id of the machine's boot; nil where the bytes are on the disk and survive every boot.
    pub boot_id: Uuid,
}

impl Incarnation {
    /// The life of bytes that are flushed to the disk with this id: it ends with the disk.
    pub fn of_disk(store_id: Uuid) -> Self {
        let boot_id = Uuid::nil();
        Self { store_id, boot_id }
    }

    /// True if what `recorded` names is still there in this life: that is the same one, or of its disk alone.
    pub fn includes(&self, recorded: Self) -> bool {
        recorded == *self || recorded == Self::of_disk(self.store_id)
    }

    /// True if it is the life of a disk, whatever boots there were.
    pub fn is_of_disk(&self) -> bool {
        self.boot_id.is_nil() && !self.store_id.is_nil()
    }
}

/// The number of a broker. Replicas name their holder by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub u32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broker {}", self.0)
    }
}

/// Names one lane of one streamlet of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
}

impl LaneKey {
    /// The key of its streamlet.
    pub fn streamlet_key(self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.streamlet,
        }
    }
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.stream, self.streamlet, self.lane)
    }
}
