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
mod consumer_protocol;
mod foreign_issuer;
mod groups;
mod interop;
mod kcat;
mod logins;
mod mechanisms;
mod mutants;
mod producing;
mod reading;
mod restart;
mod secured_tools;
mod share_groups;
mod share_tools;
mod stage;
mod tokens;
mod topics;
mod transactions;

every!(
    java = Java,
    librdkafka = Librdkafka,
    franz_go = FranzGo,
    kafka_python = KafkaPython,
);

matrix! {
    java_consumer_protocol = Java: [consumer_protocol::{
        members_come_and_go, a_group_outlives_its_broker_and_a_member, a_member_keeps_its_name,
    }];
    librdkafka_consumer_protocol = Librdkafka: [consumer_protocol::{
        members_come_and_go, a_group_outlives_its_broker_and_a_member, a_member_keeps_its_name,
    }];
    java_share_groups = Java: [share_groups::{
        records_are_acknowledged_one_by_one, more_members_than_partitions_share_the_work,
        a_member_renews_the_locks_of_what_takes_long,
        what_is_not_acknowledged_comes_again, the_next_poll_acknowledges_what_the_last_one_delivered,
    }];
    java_transactions = Java: [transactions::{
        what_is_open_or_aborted_is_not_read, another_instance_fences_the_one_before,
        a_transaction_whose_time_is_over_is_aborted, offsets_count_with_the_transaction,
        records_are_copied_once_over_kills, operators_see_and_end_what_is_open,
        each_end_gives_another_epoch,
    }];
    java_3_transactions = Java3: [transactions::{
        what_is_open_or_aborted_is_not_read, another_instance_fences_the_one_before,
        offsets_count_with_the_transaction,
    }];
    librdkafka_transactions = Librdkafka: [transactions::{
        what_is_open_or_aborted_is_not_read, another_instance_fences_the_one_before,
        a_transaction_whose_time_is_over_is_aborted, offsets_count_with_the_transaction,
        records_are_copied_once_over_kills, operators_see_and_end_what_is_open,
    }];
    franz_go_transactions = FranzGo: [transactions::{
        what_is_open_or_aborted_is_not_read, another_instance_fences_the_one_before,
        each_end_gives_another_epoch,
    }];
}
