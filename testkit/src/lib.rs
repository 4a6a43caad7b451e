//! What tests of processes share, each thing once: brokers and etcd as processes, the network between them, ports,
//! directories, clocks that jump. All of it ends with the test, whatever becomes of that.
//!
//! It imports none of Kera's crates. Brokers are the binary `kera` of the build that the test belongs to
//! ([`program::kera_binary`]).
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "it is for this repository's tests alone, where names say enough"
)]

mod broker;
pub mod certificates;
pub mod clock;
pub mod command;
pub mod etcd;
pub mod http;
pub mod issuer;
pub mod kafka;
pub mod machine;
pub mod namespaces;
pub mod place;
pub mod planted;
pub mod ports;
pub mod program;
pub mod reasons;
pub mod small_disk;
pub mod standstill;

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

pub use broker::{Announced, Broker};
pub use command::{Finished, finish};
pub use program::{kera, kera_within};

/// Whatever takes longer has failed. Nothing is expected to take anywhere near as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Cargo's directory for tests: that of the build, or the one that `KERA_TEST_DIR` names.
pub fn scratch() -> PathBuf {
    let place = std::env::var_os("KERA_TEST_DIR").map(PathBuf::from);
    let place = place.unwrap_or_else(|| program::profile().with_file_name("tmp"));
    std::fs::create_dir_all(&place).expect("the build's directory can be written");
    place
}

/// An empty directory on the disk that holds the build, for data that is to be durable.
pub fn home() -> TempDir {
    TempDir::new_in(scratch()).expect("the build's directory can be written")
}

/// An empty directory on shared memory, or on the build's disk where there is none.
pub fn shared_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| home())
}
