//! Reading as a member of a consumer group.

use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Consumer};
use tokio::time::MissedTickBehavior;

use super::ends::Ends;
use super::{ConsumeArgs, Sink, go_on, say_skipped};
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::output::say;

/// How often progress is committed.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// Likewise when the command ends once everything is committed.
const COMMIT_EVERY_TO_END: Duration = Duration::from_millis(100);
/// How long an interrupted command tries to commit and to leave,
const END_WITHIN: Duration = Duration::from_secs(2);
/// and one that failed, as when nobody reads what it writes.
const FAIL_WITHIN: Duration = Duration::from_secs(5);

pub(super) async fn consume(
    args: &ConsumeArgs,
    group: &str,
    sink: &mut Sink,
) -> Result<(), Failure> {
    let ends = if args.follow {
        None
    } else {
        Some(Ends::now(args.connect.client()?, &args.stream, group).await?)
    };
    let mut interrupts = Interrupts::new()?;
    let mut builder = Consumer::builder()
        .bootstrap(&args.connect.bootstrap)
        .connect_options(args.connect.options()?)
        .stream(&args.stream)
        .group(group)
        .client_name(format!("kera consume, process {}", std::process::id()))
        .order(args.order.into())
        .rack(args.rack.clone().unwrap_or_default())
        .start(args.from.into())
        .memory_limit(args.memory_limit as usize)
        .manual_commit();
    if args.skip_damaged {
        builder = builder.skip_damaged(say_skipped);
    }
    let consumer = tokio::select! {
        opened = builder.open() => opened?,
        _ = interrupts.next() => return Ok(()),
    };
    let mut member = Member {
        consumer,
        stream: args.stream.clone(),
        uncommitted: None,
    };
    let ended = tokio::select! {
        biased;
        _ = interrupts.next() => Ended::Interrupted,
        read = member.read(sink, ends.as_ref()) => match read {
            Ok(()) => Ended::Done,
            Err(failure) => Ended::Failed(failure),
        },
    };
    member.leave(group, ended, interrupts).await
}

/// Why no more is read.
enum Ended {
    /// All that was asked for is written.
    Done,
    /// A signal came.
    Interrupted,
    /// Reading or writing failed.
    Failed(Failure),
}

/// A member of the group.
struct Member {
    consumer: Consumer,
    stream: String,
    /// Written last; to commit it is to commit all that was written.
    uncommitted: Option<Batch>,
}

impl Member {
    /// Writes what the member gets, and commits it now and then, until the sink is full or the ends are
    /// reached. Safe to cancel: what is written and not committed is known.
    async fn read(&mut self, sink: &mut Sink, ends: Option<&Ends>) -> Result<(), Failure> {
        let mut ticks = tokio::time::interval(match ends {
            Some(_) => COMMIT_EVERY_TO_END,
            None => COMMIT_EVERY,
        });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !sink.is_full() {
            tokio::select! {
                batch = self.consumer.next_batch() => match batch {
                    Ok(batch) => {
                        self.write(&batch, sink)?;
                        // Where batch follows batch without a wait, signals are looked at here.
                        tokio::task::yield_now().await;
                    }
                    Err(error) => go_on(&self.stream, &error)?,
                },
                _ = ticks.tick() => {
                    self.commit().await?;
                    if let Some(ends) = ends
                        && ends.are_reached().await?
                    {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, batch: &Batch, sink: &mut Sink) -> Result<(), Failure> {
        let batch = batch.until(sink.write(batch)?);
        // What is committed must have reached whoever reads along.
        sink.flush()?;
        match self.consumer.mark(&batch) {
            // Another member will write it too.
            Err(error @ ConsumeError::StaleLease { .. }) => {
                say(&format!("warning: {error}"));
            }
            marked => marked?,
        }
        self.uncommitted = Some(batch);
        Ok(())
    }

    /// Commits everything marked so far. A range that was marked to its end was committed and given
    /// back already; that is no failure.
    async fn commit(&mut self) -> Result<(), Failure> {
        if let Some(batch) = &self.uncommitted {
            match self.consumer.commit(batch).await {
                Err(ConsumeError::StaleLease { .. }) => {}
                committed => committed?,
            }
            self.uncommitted = None;
        }
        Ok(())
    }

    /// Commits what is left and leaves the group, so that others need not wait until the session ends.
    /// Nobody waits long for that who was not done, and nobody at all after a further signal.
    async fn leave(
        mut self,
        group: &str,
        ended: Ended,
        mut interrupts: Interrupts,
    ) -> Result<(), Failure> {
        let within = match ended {
            Ended::Done => Duration::MAX,
            Ended::Interrupted => END_WITHIN,
            Ended::Failed(_) => FAIL_WITHIN,
        };
        let mut committed = false;
        let leaving = async {
            self.commit().await?;
            committed = true;
            Ok::<_, Failure>(self.consumer.close().await?)
        };
        let left = tokio::select! {
            left = leaving => Some(left),
            _ = interrupts.next() => None,
            () = tokio::time::sleep(within) => None,
        };
        let lost = match &left {
            Some(Err(failure)) => failure.text(),
            _ => "the broker did not answer in time".to_owned(),
        };
        let lost = format!(
            "what was read last is not committed, and group {group:?} gets it again: {lost}"
        );
        match ended {
            Ended::Failed(failure) => {
                if !committed {
                    say(&format!("warning: {lost}"));
                }
                Err(failure)
            }
            _ if !committed => Err(Failure::message(lost)),
            Ended::Interrupted => Ok(()),
            Ended::Done => left.unwrap_or(Ok(())),
        }
    }
}
