//! Produce and Fetch by hand, over a socket.

#[path = "../common/mod.rs"]
mod common;
mod compacted;
mod fetching;
mod owners;
mod producing;
mod quotas;
mod retained;
mod transactions;
mod two_phase;
