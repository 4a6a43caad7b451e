//! Groups of Kafka's classic kind: their rules, and a model that runs them at random.

mod consumer;
mod consumer_model;
mod driver;
mod membership;
mod model;
mod offsets;
mod pending;
mod persistence;
mod shares;
#[path = "../support/mod.rs"]
mod support;
