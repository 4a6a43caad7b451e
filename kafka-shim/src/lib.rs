//! Kafka's protocol over the broker's streams: existing Kafka producers, consumers and tools work
//! unchanged, on the same streams that native clients use.
//!
//! A topic is a stream; partition `p` is lane `p / M` of streamlet `p % M`; an offset is an ordinal;
//! the high watermark is the durable head; the leader epoch is the streamlet's epoch. Record bytes
//! of a Produce request go into a segment as they came, and a Fetch response is made of slices of
//! segments.
//!
//! Data path, in order: `listener` accepts; `connection` reads requests and sends replies in
//! their order; [`wire`] finds its way in a request without allocating what the peer claims;
//! `produce` places batches and acknowledges them; `fetch` answers with what is durable.
//! Everything else goes through `dispatch` to the handler of its API.
//!
//! Types of the Kafka codec stay inside this crate.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod absent;
mod access;
mod acls;
mod active_producers;
pub mod apis;
mod behind;
mod brokers;
mod cluster;
pub mod config_table;
mod configs;
mod connection;
mod context;
mod dispatch;
mod errors;
mod fetch;
mod groups;
mod listener;
mod metadata;
mod offsets;
mod produce;
mod producer_ids;
mod quotas;
mod records;
mod refusal;
mod reply_room;
mod sasl;
mod scram_users;
mod shares;
mod throttle;
mod topic;
mod topic_config;
mod topics;
mod transactions;
mod versions;
pub mod wire;

pub use listener::{Listeners, start};
