//! The real binary, end to end: one broker process for each test, and commands and clients that
//! talk to it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../metadata/tests/support/etcd.rs"]
#[allow(dead_code)]
mod etcd;

mod backup;
mod bad_bytes;
mod cluster;
mod disk_full;
mod durability;
mod group_ends;
mod groups;
mod kafka;
mod lifecycle;
mod long_polls;
mod round_trip;
mod sharing;
mod streams;
mod waits;
