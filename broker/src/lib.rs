//! The broker: the only crate that composes the log, streamlets, metadata, coordinator and listeners.
//!
//! `data` is what appends and reads share, [`cluster`] what comes of other brokers, and `shared.rs` holds both together
//! with administration and groups of consumers. It names no part that uses it; `start.rs` puts the parts together.
//! Data path, in order: [`listener`] accepts and tells data connections from control calls;
//! [`connection`] reads frames; [`data::append`] places batches, pumps, waits for the durable head and
//! acknowledges; [`data::fetch`] serves reads and pushes.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
pub mod admission;
mod alter_settings;
mod api;
pub mod audit;
pub mod auth;
pub mod bell;
pub mod calendar;
pub mod client_link;
pub mod clock;
pub mod cluster;
mod cluster_id;
mod cluster_version;
mod compaction;
pub mod config;
pub mod connection;
pub mod coordination;
pub mod copy_reads;
pub mod counted;
mod create;
pub mod data;
mod error;
pub mod fault_rules;
mod former_metrics;
mod group_records;
pub mod http;
mod http_auth;
mod http_listener;
pub mod import;
pub mod inbox;
mod job_queue;
mod known_brokers;
pub mod listener;
pub mod log_levels;
pub mod machine;
pub mod maintenance;
pub mod metrics;
mod named_streams;
mod open;
pub mod others;
pub mod outbox;
pub mod panicked_threads;
pub mod peer_addresses;
mod pins;
pub mod principal;
pub mod process;
pub mod quotas;
mod readiness;
mod recover;
mod replaced_record;
mod retention;
mod scrape;
mod set_aside;
pub mod settings;
mod shared;
pub mod shares;
pub mod socket;
mod start;
mod store_calls;
pub mod store_dir;
mod stream_metrics;
pub mod telemetry;
pub mod tls;
pub mod transactions;
mod turns;
pub mod unheard;
mod unreadable;

pub use alter_settings::alter as alter_settings;
pub use error::BrokerError;
pub use shared::{BROKER_ID, Shared};
pub use start::Broker;
