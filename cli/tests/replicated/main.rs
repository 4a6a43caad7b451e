//! Streams whose groups have copies at other brokers: one broker and two that keep copies, as
//! processes over an etcd, over their deaths and returns.

#[path = "../common/mod.rs"]
mod common;

mod appends;
mod full_disk;
mod loss;
mod recovery;
mod repair;
mod scrub;
mod settings;
mod trio;

use kera_testkit::etcd;
