//! Every scenario, with every client: what works against Apache Kafka works against Kera.
//!
//! The tests need Java and Maven, Go, Python 3 and kcat; a test whose tools are missing says that it
//! did not run. `KAFKA_BOOTSTRAP` and `KAFKA_LIB` run the same tests against another broker, see
//! `common/broker.rs`.

#[path = "../common/mod.rs"]
mod common;

#[macro_use]
mod matrix;

mod admin;
mod broker_settings;
mod compaction;
mod groups;
mod interop;
mod kcat;
mod mutants;
mod producing;
mod reading;
mod restart;
mod stage;
mod topics;

every!(
    java = Java,
    librdkafka = Librdkafka,
    franz_go = FranzGo,
    kafka_python = KafkaPython,
);
