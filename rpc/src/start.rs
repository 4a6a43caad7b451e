//! Places in lanes that a broker looks up.

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{StartAt, find_ordinals_request, start_at};

/// Where to start: a group that has committed nothing yet or is reset, or a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Start {
    /// At the first record stored.
    #[default]
    Earliest,
    /// After the last durable record.
    Latest,
    /// At the first record at or after this time, milliseconds since 1970.
    Timestamp(u64),
    /// At this ordinal of each lane, or the nearest stored.
    Ordinal(Ordinal),
}

impl From<Start> for StartAt {
    fn from(start: Start) -> Self {
        Self {
            at: Some(match start {
                Start::Earliest => start_at::At::Earliest(true),
                Start::Latest => start_at::At::Latest(true),
                Start::Timestamp(time) => start_at::At::TimestampMs(time),
                Start::Ordinal(ordinal) => start_at::At::Ordinal(ordinal),
            }),
        }
    }
}

impl From<Start> for find_ordinals_request::At {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest(true),
            Start::Latest => Self::Latest(true),
            Start::Timestamp(time) => Self::TimestampMs(time),
            Start::Ordinal(ordinal) => Self::Ordinal(ordinal),
        }
    }
}
