//! What the tests of the program `kera` share: all of `kera-testkit`, and what only they need.

// Each test program uses a part of it.
#![allow(dead_code, unused_imports)]

pub mod held_bytes;
pub mod holdings;
pub mod raw;

pub use kera_testkit::{
    Announced, Broker, Finished, PATIENCE, command, finish, home, http, kera, kera_within, machine,
    place, ports, reasons, scratch, shared_memory, small_disk, standstill,
};
