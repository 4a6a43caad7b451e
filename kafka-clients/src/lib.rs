//! Tests of the Kafka listener with real clients; see `tests/`.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]
