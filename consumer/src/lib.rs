//! Kera's consumer client.
//!
//! A [`Consumer`] shares a stream with the other members of its group; a [`Reader`] reads the lanes
//! it is told to, without a group. Both deliver [`Batch`]es, whose records are borrowed from the
//! memory they were received in; [`Consumer::records`] and [`Reader::records`] give single records.
//! Programs without tasks use [`blocking::Consumer`] and [`blocking::Reader`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use kera_consumer::{Consumer, Start};
//!
//! let mut consumer = Consumer::builder()
//!     .stream("flights")
//!     .group("delays")
//!     .start(Start::Earliest)
//!     .open()
//!     .await?;
//! loop {
//!     let batch = consumer.next_batch().await?;
//!     for record in batch.records() {
//!         let record = record?;
//!         println!("{}: {:?}", record.ordinal, record.value);
//!     }
//! }
//! # }
//! ```
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

mod batch;
pub mod blocking;
mod builder;
mod config;
mod consumer;
mod error;
mod fetch;
mod find;
mod group;
mod metrics;
mod opened;
mod reader;
mod records;
mod slices;

pub use batch::{Batch, OwnedRecord, Position, Record, Records};
pub use builder::{ConsumerBuilder, ReaderBuilder};
pub use config::{Fetch, LaneRange, Order, Seek, Start};
pub use consumer::{Committer, Consumer};
pub use error::ConsumeError;
pub use group::{LeaseInfo, Rebalance};
pub use kera_protocol::batch::{BatchError, BatchHeader, Compression, Header};
pub use kera_protocol::error::{ErrorCode, WireError};
pub use kera_protocol::frame::FrameError;
pub use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
pub use kera_protocol::slices::SliceSet;
pub use kera_protocol::v1::Cursor;
pub use kera_rpc::admin;
pub use kera_rpc::{
    Admin, BlockingError, Client, ClientOptions, ClientTls, ConnectOptions, ConnectionError,
    GroupPositions, Login, LoginError, RetryPolicy, RpcError, SaslMechanism, Stall, TlsError,
    TlsFiles,
};
pub use metrics::Metrics;
pub use reader::Reader;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
