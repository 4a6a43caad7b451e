//! A member of a consumer group, with librdkafka.

use anyhow::{Context, Result};
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::{LOOK_EVERY, Window};
use crate::load::Plan;
use crate::load::kafka::client;

/// Joins, and works on what it is given until time is up.
pub(super) fn consume(plan: &Plan, group: &str, window: &Window) -> Result<()> {
    let mut config = client(plan);
    config
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        // Who has a partition keeps it while others join.
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("heartbeat.interval.ms", "500");
    let consumer: BaseConsumer = config.create().context("librdkafka makes no consumer")?;
    consumer.subscribe(&[&plan.topic])?;
    while !window.is_over()? {
        match consumer.poll(LOOK_EVERY) {
            Some(message) => {
                message.context("librdkafka cannot read")?;
                window.work();
            }
            None => continue,
        }
    }
    Ok(())
}
