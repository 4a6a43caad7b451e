//! The broker: the only crate that composes the log, streamlets, metadata, coordinator and listeners.
//!
//! Data path, in order: [`listener`] accepts and tells data connections from control calls;
//! [`connection`] reads frames; [`append`] places batches, pumps, waits for the durable head and
//! acknowledges; [`fetch`] serves reads and pushes.
#![forbid(unsafe_code)]

pub mod accept;
pub mod admin;
pub mod admission;
pub mod append;
pub mod bell;
pub mod catalog;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod control;
pub mod coordination;
pub mod copy_reads;
pub mod directory;
mod error;
pub mod fault_rules;
pub mod fetch;
pub mod http;
mod http_listener;
pub mod inbox;
pub mod listener;
pub mod machine;
pub mod maintenance;
pub mod memory_budget;
pub mod metrics;
mod open;
pub mod others;
pub mod outbox;
pub mod panicked_threads;
pub mod process;
pub mod recorder;
mod recover;
mod retention;
pub mod settings;
mod start;
pub mod store_dir;

pub use error::BrokerError;
pub use start::{BROKER_ID, Broker, Shared};
