//! A member of a consumer group, with Kera's own client.

use std::time::Duration;

use anyhow::{Context, Result};
use kera_consumer::{ConsumeError, Consumer, Order, Start};
use tokio::runtime::Handle;

use super::{LOOK_EVERY, Window};
use crate::load::Plan;
use crate::scenario::Sharing;

/// Ranges held at a time: one is worked on while the next is on its way.
const RANGES: usize = 2;
/// A consumer that cannot leave in this time is left alone.
const LEAVE: Duration = Duration::from_secs(5);

/// Joins, and works on what it is given until time is up.
pub(super) fn consume(
    plan: &Plan,
    group: &str,
    order: Sharing,
    window: &Window,
    handle: &Handle,
) -> Result<()> {
    let mut builder = Consumer::builder()
        .bootstrap(&plan.bootstrap)
        .stream(&plan.topic)
        .group(group)
        .start(Start::Earliest);
    builder = match order {
        Sharing::Lane => builder.order(Order::Lane),
        // Of one batch each, so that there is something for everybody.
        Sharing::None => builder
            .order(Order::None)
            .range_bytes(plan.batch_bytes)
            .max_leases(RANGES),
    };
    let opening = builder.open();
    let mut consumer = handle.block_on(opening).context("no consumer")?;
    while !window.is_over()? {
        let next = async { tokio::time::timeout(LOOK_EVERY, consumer.next_batch()).await };
        let batch = match handle.block_on(next) {
            Ok(Ok(batch)) => batch,
            Ok(Err(ConsumeError::StaleLease { .. })) | Err(_) => continue,
            Ok(Err(error)) if error.is_retryable() => continue,
            Ok(Err(error)) => return Err(error.into()),
        };
        for record in batch.records() {
            record?;
            window.work();
            if window.is_over()? {
                break;
            }
        }
    }
    let _ = handle.block_on(async { tokio::time::timeout(LEAVE, consumer.close()).await });
    Ok(())
}
