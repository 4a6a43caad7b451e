//! Connections to brokers, gRPC stubs, the metadata cache and retry: what clients and brokers share.
//!
//! [`Client`] finds brokers and streams; [`DataConnection`] carries data frames, pipelined;
//! [`RetryPolicy`] says when to try again.
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

mod brokers;
mod cause;
mod channels;
mod client;
mod data;
mod error;
mod finding;
pub mod login;
mod meta;
mod places;
mod positions;
mod refusals;
mod report;
mod retry;
pub mod scram;
pub mod serve;
pub mod small_file;
pub mod stream;
pub mod tls;
mod tokens;
mod way;

pub use channels::Channels;
pub use client::{Client, ClientOptions, DEFAULT_BOOTSTRAP};
pub use data::{ConnectOptions, DataConnection, FrameSink};
pub use error::{
    ChangeError, ConnectionError, ERROR_METADATA_KEY, RpcError, error_of_status, status_of,
    wire_error_of_status,
};
pub use login::{Login, LoginError, SaslMechanism};
pub use meta::StreamMeta;
pub use positions::GroupPositions;
pub use report::{LOOK_EVERY, Reports, Stall, TOLD_AFTER, told};
pub use retry::RetryPolicy;
pub use tls::{ClientTls, TlsError, TlsFiles};
pub use tokens::token_of_file;
pub use way::{Connector, Way};

/// The stubs of the control services, generated from `protocol/proto`; checked against it by a
/// test. Messages are in `kera_protocol::v1`.
#[allow(missing_docs, clippy::all, rustdoc::all)]
pub mod v1 {
    include!("generated/kera.v1.rs");
}
