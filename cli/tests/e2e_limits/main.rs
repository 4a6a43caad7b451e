//! The limits of a broker: what it takes at most, what it does there, and what it does when its
//! clients misbehave or its directory is not as it should be.
//!
//! Memory is what the system says of the broker's process, so these tests see all of it.

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod directories;
mod growth;
mod held;
mod idle;
mod lanes;
mod load;
mod memory;
mod pressure;

use kera_testkit::etcd;
