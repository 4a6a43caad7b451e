//! What can go wrong with a table.

use std::time::Duration;

use datafusion::error::DataFusionError;
use kera_consumer::ConsumeError;
use kera_producer::{AppendError, BuildError, ProduceError};
use kera_rpc::{RpcError, Stall};

/// Why a table cannot be made, read or written to. DataFusion hands it on as [`DataFusionError::External`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeraError {
    /// The location of an external table.
    #[error(
        "location {location} is none of Kera's: {reason}; write 'kera://HOST:PORT/STREAM', with further HOST:PORT behind commas"
    )]
    Location {
        /// As it was given.
        location: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An option, or a setting of a builder.
    #[error("option {option} is not usable: {reason}")]
    Option {
        /// Which one.
        option: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// No place of a lane.
    #[error(
        "{0:?} is no place in a lane: use earliest, latest, an ordinal such as ordinal:7, or a time since 1970 such as 2026-02-03T04:05:06Z"
    )]
    Place(String),
    /// A field of the schema of values has the name of another column.
    #[error(
        "column {name} of the values' schema has the name of one of the records' own columns: set metadata.prefix, such as 'kera_', which goes before those names"
    )]
    Collision {
        /// The name.
        name: String,
    },
    /// The brokers were not reached, or refused.
    #[error("stream {stream}: {error}")]
    Rpc {
        /// The stream's name.
        stream: String,
        /// What they say.
        error: Box<RpcError>,
    },
    /// The streams were not listed.
    #[error("streams cannot be listed: {0}")]
    List(Box<RpcError>),
    /// A lane cannot be read.
    #[error("stream {stream} cannot be read: {error}")]
    Consume {
        /// The stream's name.
        stream: String,
        /// Why.
        error: Box<ConsumeError>,
    },
    /// The brokers have not answered for too long.
    #[error("stream {stream} could not be read for {limit:?} (option timeout): {stall}")]
    Stalled {
        /// The stream's name.
        stream: String,
        /// The table's limit.
        limit: Duration,
        /// What is waited for.
        stall: Box<Stall>,
    },
    /// Records were deleted before they were read.
    #[error(
        "about {records} records of stream {stream} were deleted after the query had begun and before they were read: keep them longer (kera stream alter --retention-time), or set scan.on-data-loss to 'skip' to go on without them"
    )]
    Lost {
        /// The stream's name.
        stream: String,
        /// Ordinals that were passed over.
        records: u64,
    },
    /// Another stream has its name.
    #[error(
        "stream {stream} was deleted after the query had begun, and another one has its name: run the query again to read that one"
    )]
    Replaced {
        /// The stream's name.
        stream: String,
    },
    /// A value is no JSON of the table's schema.
    #[error(
        "the value of record {ordinal} in lane {streamlet}/{lane} of stream {stream} does not fit the table: {reason}; json.on-error = 'null' has such values as nulls"
    )]
    Json {
        /// The stream's name.
        stream: String,
        /// The record's streamlet.
        streamlet: u32,
        /// Its lane.
        lane: u32,
        /// Its number in the lane.
        ordinal: u64,
        /// What is wrong.
        reason: String,
    },
    /// A single batch is too large for Arrow.
    #[error(
        "records of lane {streamlet}/{lane} of stream {stream} have more than 2 GiB of keys or values, which an Arrow array cannot hold: lower scan.memory-limit"
    )]
    TooLarge {
        /// The stream's name.
        stream: String,
        /// Streamlet
        streamlet: u32,
        /// and lane.
        lane: u32,
    },
    /// An `INSERT` sets what is not its to set.
    #[error("column {column} cannot be written to stream {stream}: {reason}")]
    Column {
        /// The stream's name.
        stream: String,
        /// The column.
        column: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The producer of an `INSERT` was not opened.
    #[error("stream {stream} cannot be written to: {error}")]
    Build {
        /// The stream's name.
        stream: String,
        /// Why.
        error: Box<BuildError>,
    },
    /// A record was not taken.
    #[error(
        "row {row} of the INSERT cannot be written to stream {stream}: {error}; the rows before it are written all the same"
    )]
    Append {
        /// The stream's name.
        stream: String,
        /// Which row, from 1.
        row: u64,
        /// Why.
        error: Box<AppendError>,
    },
    /// Records were not acknowledged.
    #[error(
        "not all of the {rows} rows that were sent to stream {stream} are acknowledged: {error}; those that are stay written, so the INSERT writes them twice if it is run again"
    )]
    Produce {
        /// The stream's name.
        stream: String,
        /// Rows sent.
        rows: u64,
        /// What the producer says.
        error: Box<ProduceError>,
    },
}

impl From<KeraError> for DataFusionError {
    fn from(error: KeraError) -> Self {
        Self::External(Box::new(error))
    }
}

impl KeraError {
    pub(crate) fn option(option: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Option {
            option: option.into(),
            reason: reason.into(),
        }
    }
}
