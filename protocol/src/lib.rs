//! Kera's wire and storage formats: ids, error codes, the record batch, data frames and messages.
//!
//! This crate does no I/O and knows no clock: every function maps bytes to values or back.
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod ack;
pub mod batch;
#[cfg(feature = "serde")]
pub mod cursor;
pub mod error;
pub mod frame;
pub mod ids;
pub mod login;
pub mod partition;
pub mod slices;

pub use prost::Message;

/// The messages of control calls and data frames, generated from `proto/kera/v1`; checked against
/// it by a test of the crate `kera-rpc`, which also holds the services' stubs.
#[allow(missing_docs, clippy::all, rustdoc::all)]
pub mod v1 {
    include!("generated/kera.v1.rs");
}
