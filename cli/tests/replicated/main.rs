//! Streams whose groups have copies at other brokers: one broker and two that keep copies, as
//! processes over an etcd, over their deaths and returns.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../metadata/tests/support/etcd.rs"]
#[allow(dead_code)]
mod etcd;

mod appends;
mod full_disk;
mod loss;
mod recovery;
mod repair;
mod scrub;
mod settings;
mod trio;
