//! The scenarios with more clients, and Kafka's own tools. Part of `make test-long`.

#[path = "../common/mod.rs"]
mod common;

#[macro_use]
#[path = "../clients/matrix.rs"]
mod matrix;

#[path = "../clients/admin.rs"]
mod admin;
#[path = "../clients/groups.rs"]
mod groups;
#[path = "../clients/producing.rs"]
mod producing;
#[path = "../clients/reading.rs"]
mod reading;
#[path = "../clients/restart.rs"]
mod restart;
#[path = "../clients/stage.rs"]
mod stage;
#[path = "../clients/topics.rs"]
mod topics;

mod tools;

every!(
    java_3 = Java3,
    sarama = Sarama,
    aiokafka = Aiokafka,
    confluent = Confluent,
    kafkajs = Kafkajs,
);
