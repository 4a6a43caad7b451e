//! Connections to brokers, control calls, the metadata cache and retry: what clients and brokers share.
//!
//! [`Client`] finds brokers and streams, and makes control calls; [`DataConnection`] carries frames, pipelined;
//! [`RetryPolicy`] says when to try again; [`Admin`] creates, lists and deletes streams and consumer groups.
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod admin;
pub mod blocking;
mod brokers;
mod call_links;
mod cause;
mod chance;
mod client;
mod control_call;
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
pub mod small_file;
mod start;
pub mod stream;
pub mod tls;
mod tokens;
mod way;

pub use admin::Admin;
pub use blocking::BlockingError;
pub use chance::random_u64;
pub use client::{Client, ClientOptions, DEFAULT_BOOTSTRAP};
pub use control_call::ControlCall;
pub use data::{ConnectOptions, DataConnection, FrameSink};
pub use error::{ChangeError, ConnectionError, RpcError};
pub use login::{Login, LoginError, SaslMechanism};
pub use meta::StreamMeta;
pub use positions::GroupPositions;
pub use report::{LOOK_EVERY, Reports, Stall, TOLD_AFTER, told};
pub use retry::RetryPolicy;
pub use start::Start;
pub use tls::{ClientTls, TlsError, TlsFiles};
pub use tokens::token_of_file;
pub use way::{Way, check_address};
