//! The real binary, end to end: one broker process for each test, and commands and clients that
//! talk to it.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod acts;
mod administered;
mod api;
mod audit;
mod backup;
mod bad_bytes;
mod cluster;
mod collector;
mod compaction;
mod disk_full;
mod durability;
mod each_route;
mod engine_calls;
mod framed_calls;
mod group_ends;
mod groups;
mod http_logins;
mod http_tokens;
mod kafka;
mod key_order;
mod lifecycle;
mod login_ends;
mod logins;
mod long_polls;
mod lost_markers;
mod objectives;
mod produce_ends;
mod quotas;
mod round_trip;
mod sent_positions;
mod several_streams;
mod sharing;
mod stream_metrics;
mod streams;
mod telemetry;
mod token_logins;
mod top;
mod transactions;
mod waits;

use kera_testkit::etcd;
