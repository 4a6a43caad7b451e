//! Produce and Fetch by hand, over a socket.

#[path = "../common/mod.rs"]
mod common;
mod fetching;
mod owners;
mod producing;
mod retained;
