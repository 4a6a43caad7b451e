//! Tests of the Kafka listener with real clients; see `tests/`.
#![forbid(unsafe_code)]
