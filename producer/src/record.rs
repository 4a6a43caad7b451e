//! What is appended, and where it went.

pub use kera_protocol::batch::Header;
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};

/// A record to append, borrowed: it is encoded at once into its batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// Chooses streamlet and lane; records of one key keep their order. `None` goes anywhere.
    pub key: Option<&'a [u8]>,
    /// The payload; `None` is a null value.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since 1970; `None` is now, to a millisecond or two.
    pub timestamp: Option<i64>,
}

impl<'a> Record<'a> {
    /// A record without key.
    pub fn of_value(value: &'a [u8]) -> Self {
        Self {
            value: Some(value),
            ..Self::default()
        }
    }

    /// A record with key and value.
    pub fn keyed(key: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            key: Some(key),
            value: Some(value),
            ..Self::default()
        }
    }

    /// The same record with `headers`.
    pub fn with_headers(self, headers: &'a [Header<'a>]) -> Self {
        Self { headers, ..self }
    }

    /// The same record with a timestamp, in milliseconds since 1970.
    pub fn at(self, timestamp: i64) -> Self {
        Self {
            timestamp: Some(timestamp),
            ..self
        }
    }
}

/// Where an acknowledged record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Its streamlet.
    pub streamlet: StreamletId,
    /// Its lane of that streamlet.
    pub lane: LaneId,
    /// Its number in that lane.
    pub ordinal: Ordinal,
    /// Its timestamp, in milliseconds since 1970: as given, or the broker's if the stream says so.
    pub timestamp: i64,
}
