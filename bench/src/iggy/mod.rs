//! A small client of Apache Iggy's binary protocol over TCP, as servers of version 0.8 speak it.
//!
//! It has what a comparison needs: topics, batches of messages to a partition, and polls of one. A
//! request is answered before the next one is sent, as with Iggy's own client, which keeps one batch in
//! flight so that a retry does not change the order. Iggy's own would bring QUIC, HTTP, WebSockets and
//! TLS along, for a load that uses none of them.

mod connection;
#[cfg(test)]
#[path = "scripted_tests.rs"]
pub(crate) mod scripted;
mod wire;

pub(crate) use connection::Connection;
pub(crate) use wire::Batch;

/// The user that a server is started with.
pub(crate) const USER: &str = "iggy";
/// Its password.
pub(crate) const PASSWORD: &str = "iggy";
/// The stream in which topics are made.
const STREAM: &str = "kera-bench";
/// The name under which records are polled; nothing is kept of it.
const CONSUMER: &str = "kera-bench";
