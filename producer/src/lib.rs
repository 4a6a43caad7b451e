//! Appends records to a Kera stream: fast, in order, and each exactly once.
//!
//! [`Producer::append`] encodes a record straight into its lane's batch and returns; batches go out
//! when they are full or have waited long enough, many at a time, and are sent again after errors
//! until their deadline, without duplicates and without changing the order within a lane. Await a
//! [`Delivery`] to learn where a record is, or [`Producer::flush`] to wait for all of them.
//!
//! ```no_run
//! use kera_producer::{Producer, Record};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let producer = Producer::builder().stream("clicks").build().await?;
//! let delivery = producer.append(&Record::keyed(b"user-7", b"bought a hat"))?;
//! println!("record {} of its lane", delivery.await?.ordinal);
//! producer.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Programs without tasks use [`blocking::Producer`].
//!
//! With a [transactional id](ProducerBuilder::transactional_id) records are appended in transactions: see
//! [`Producer::transaction`].
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

mod append;
pub mod blocking;
mod config;
mod delivery;
mod driver;
mod end;
mod error;
mod event;
mod family;
mod handle;
mod link;
mod link_sink;
mod memory;
mod metrics;
mod producer;
mod record;
mod reply;
mod resplit;
mod settings;
mod settle;
mod shared;
mod slot;
mod slots;
mod stall;
mod timer;
mod transaction;
mod transactional;

pub use config::{Compression, MAX_IN_FLIGHT_BATCHES, ProducerBuilder};
pub use delivery::Delivery;
pub use error::{AppendError, BuildError, ProduceError, TransactionError};
pub use handle::TransactionHandle;
pub use kera_protocol::error::{ErrorCode, WireError};
pub use kera_protocol::frame::FrameError;
pub use kera_rpc::admin;
pub use kera_rpc::{
    Admin, BlockingError, Client, ClientOptions, ClientTls, ConnectOptions, ConnectionError,
    GroupPositions, Login, LoginError, RetryPolicy, RpcError, SaslMechanism, Stall, TlsError,
    TlsFiles,
};
pub use metrics::Metrics;
pub use producer::Producer;
pub use record::{Header, Record, RecordPlace};
pub use transaction::{
    AbortWhich, AbortedTransaction, PreparedTransaction, Transaction, Transactions,
};

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
