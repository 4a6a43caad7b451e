//! Reading as a member of a consumer group.

use std::collections::HashMap;
use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Consumer};
use kera_protocol::v1;
use kera_rpc::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{ConsumeArgs, Sink, go_on};
use crate::connect::failed;
use crate::failure::Failure;

/// How long the group's coordinator is given before it is looked up anew.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How often progress is committed.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// Likewise when the command ends once everything is committed.
const COMMIT_EVERY_TO_END: Duration = Duration::from_millis(100);

pub(super) async fn consume(
    args: &ConsumeArgs,
    group: &str,
    sink: &mut Sink,
) -> Result<(), Failure> {
    let client = args.connect.client()?;
    let ends = if args.follow {
        None
    } else {
        Some(Ends::now(&client, &args.stream).await?)
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut consumer = Consumer::builder()
        .bootstrap(&args.connect.bootstrap)
        .stream(&args.stream)
        .group(group)
        .client_name(format!("kera consume, process {}", std::process::id()))
        .order(args.order.into())
        .rack(args.rack.clone().unwrap_or_default())
        .start(args.from.into())
        .manual_commit()
        .open()
        .await?;
    let mut ticks = tokio::time::interval(match ends {
        Some(_) => COMMIT_EVERY_TO_END,
        None => COMMIT_EVERY,
    });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut written: Option<Batch> = None;
    while !sink.is_full() {
        tokio::select! {
            batch = consumer.next_batch() => match batch {
                Ok(batch) => {
                    let batch = batch.until(sink.write(&batch)?);
                    // What is committed must have reached whoever reads along.
                    sink.flush()?;
                    match consumer.mark(&batch) {
                        // Another member will write it too.
                        Err(error @ ConsumeError::StaleLease { .. }) => {
                            eprintln!("warning: {error}");
                        }
                        marked => marked?,
                    }
                    written = Some(batch);
                }
                Err(error) => go_on(error)?,
            },
            _ = ticks.tick() => {
                if let Some(batch) = written.take() {
                    commit(&consumer, &batch).await?;
                }
                if let Some(ends) = &ends
                    && ends.are_reached(&client, group).await?
                {
                    break;
                }
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    if let Some(batch) = written {
        commit(&consumer, &batch).await?;
    }
    Ok(consumer.close().await?)
}

/// Commits everything marked so far. A range that was marked to its end was committed and given
/// back already; that is no failure.
async fn commit(consumer: &Consumer, batch: &Batch) -> Result<(), Failure> {
    match consumer.commit(batch).await {
        Err(ConsumeError::StaleLease { .. }) => Ok(()),
        other => Ok(other?),
    }
}

/// What was durable when the command began.
struct Ends(HashMap<(u32, u32), u64>);

impl Ends {
    async fn now(client: &Client, stream: &str) -> Result<Self, Failure> {
        let stream = client.stream(stream).await.map_err(failed)?;
        let latest = v1::find_ordinals_request::At::Latest(true);
        let found = client.find_ordinals(&stream, latest).await;
        let lanes = found.map_err(failed)?;
        Ok(Self(
            lanes
                .into_iter()
                .map(|lane| ((lane.streamlet, lane.lane), lane.head_ordinal))
                .collect(),
        ))
    }

    /// Whether the group has committed all of it.
    async fn are_reached(&self, client: &Client, group: &str) -> Result<bool, Failure> {
        let answer = client.group_call(group, ANSWER_WITHIN, |mut stub| {
            let group = group.to_owned();
            async move {
                stub.describe_group(v1::DescribeGroupRequest { group })
                    .await
            }
        });
        let lanes = answer.await.map_err(failed)?.lanes;
        let committed: HashMap<(u32, u32), u64> = lanes
            .into_iter()
            .map(|lane| ((lane.streamlet, lane.lane), lane.committed))
            .collect();
        Ok(self.0.iter().all(|(lane, end)| {
            *end == 0
                || committed
                    .get(lane)
                    .is_some_and(|committed| committed >= end)
        }))
    }
}
