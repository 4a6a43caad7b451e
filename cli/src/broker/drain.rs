//! `kera broker drain`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, not_made, refused};
use crate::failure::{Failure, Outcome};
use crate::members::{Asked, answering, progress};
use crate::output::{Out, OutputArgs, Steps, Table, count, end, rfc3339, rounded_bytes};
use crate::parse;

/// Between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `kera broker drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker drain 3
  kera broker drain 3 --no-wait --json
  kera broker drain 3 --empty --timeout 6h
  kera broker drain 3 --cancel

The broker hands its streamlets over to others, one at a time, each after the records in flight are acknowledged. Producers \
and consumers follow by themselves. Its replicas of other brokers' groups move in the background, at \
cluster.repair_bytes_per_second; --empty waits for them too, and refuses at once if no broker can take them. The broker gets nothing new until it is started again or the drain \
is cancelled. The exit status is 0 once the broker may be stopped for good, and 1 if something keeps it: a streamlet \
with one replica stays on its broker until its stream is deleted or its records expire.

With --json every change is a line, an object with \"event\":\"step\"; the last line has \"event\":\"end\" and \
\"outcome\": done, kept (something keeps it), begun (--no-wait), cancelled, timeout or failed.")]
pub(crate) struct DrainArgs {
    /// The broker's number
    broker: u32,
    /// End the drain: the broker gets streamlets again
    #[arg(long)]
    cancel: bool,
    /// Do not wait until the streamlets are handed over
    #[arg(long, conflicts_with = "cancel")]
    no_wait: bool,
    /// Wait too until other brokers have its replicas of closed groups
    #[arg(long, conflicts_with_all = ["cancel", "no_wait"])]
    empty: bool,
    /// Wait at most so long
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse::duration)]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a broker still has, as it is shown.
#[derive(Clone, PartialEq, Serialize)]
struct View {
    broker_id: u32,
    draining: bool,
    may_stop: bool,
    streamlets: u64,
    leaving: u64,
    kept: Vec<KeptView>,
    copies: u64,
    copy_bytes: u64,
    last_copies: u64,
    /// Groups whose copy no other broker can take, and why.
    stuck: u64,
    stuck_because: Option<String>,
}

/// A streamlet that cannot leave.
#[derive(Clone, PartialEq, Serialize)]
struct KeptView {
    stream: String,
    streamlet: u32,
    reason: String,
    until: Option<String>,
}

impl View {
    fn new(broker_id: u32, answer: v1::DescribeDrainResponse) -> Self {
        let kept = answer.kept.into_iter().map(|one| KeptView {
            stream: one.stream,
            streamlet: one.streamlet,
            reason: one.reason,
            until: one.until_ms.map(rfc3339),
        });
        Self {
            broker_id,
            draining: answer.draining,
            may_stop: answer.may_stop,
            streamlets: answer.owned,
            leaving: answer.leaving,
            kept: kept.collect(),
            copies: answer.copies,
            copy_bytes: answer.copy_bytes,
            last_copies: answer.last_copies,
            stuck: answer.stuck,
            stuck_because: Some(answer.stuck_because).filter(|text| !text.is_empty()),
        }
    }

    /// Why the broker cannot be emptied, however long that is waited for.
    fn cannot_be_emptied(&self) -> Option<Failure> {
        let broker = self.broker_id;
        if let Some(because) = &self.stuck_because {
            return Some(Failure::message(format!(
                "broker {broker} cannot be emptied: no broker can take its replicas of {} groups: {because}; start another broker on another machine, or drain it without --empty",
                count(self.stuck)
            )));
        }
        let first = self.kept.first()?;
        Some(Failure::message(format!(
            "broker {broker} cannot be emptied: {} streamlets stay with it, first stream {} streamlet {}: {}; without --empty the others leave",
            count(self.kept.len() as u64),
            first.stream,
            first.streamlet,
            first.reason
        )))
    }
}

async fn look(asked: &mut Asked, broker: u32) -> Result<View, Failure> {
    let request = v1::DescribeDrainRequest { broker };
    let answer = asked.ask(async |mut clusters| clusters.describe_drain(request).await);
    Ok(View::new(broker, answer.await?))
}

pub(super) async fn run(args: DrainArgs) -> Outcome {
    let (mut control, _) = answering(&args.connect).await?;
    if args.empty {
        let request = v1::DescribeDrainRequest {
            broker: args.broker,
        };
        let answer = control.clusters.describe_drain(request).await;
        let view = View::new(args.broker, answer.map_err(|s| refused(&s))?.into_inner());
        // Nothing is begun that cannot come to its end.
        if let Some(failure) = view.cannot_be_emptied() {
            if args.output.json {
                end("failed", Some(&failure), &view)?;
            }
            return Err(failure);
        }
    }
    let request = v1::SetDrainingRequest {
        broker: args.broker,
        draining: !args.cancel,
        passed_on: false,
    };
    let answer = control.clusters.set_draining(request).await;
    let changed = answer
        .map_err(|s| not_made(&s, "kera broker list"))?
        .into_inner()
        .changed;
    if args.cancel {
        return cancelled(&args, changed);
    }
    let mut asked = Asked::new(&args.connect, control);
    let mut view = look(&mut asked, args.broker).await?;
    let failure = if args.no_wait {
        None
    } else {
        wait_all(&mut asked, &mut view, &args).await
    };
    let outcome = match &failure {
        Some((outcome, _)) => *outcome,
        None if view.may_stop => "done",
        None if args.no_wait => "begun",
        None => "kept",
    };
    if args.output.json {
        end(outcome, failure.as_ref().map(|(_, failure)| failure), &view)?;
    }
    if let Some((_, failure)) = failure {
        return Err(failure);
    }
    if !args.output.json {
        print(&view)?;
    }
    Ok(match view.may_stop || args.no_wait {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Waits for all that is to be waited for; says how it ended if that was not to the end.
async fn wait_all(
    asked: &mut Asked,
    view: &mut View,
    args: &DrainArgs,
) -> Option<(&'static str, Failure)> {
    let waiting = async {
        let mut steps = Steps::new(args.output.json);
        steps.step(view)?;
        wait(asked, view, &mut steps, |view| view.leaving, args.empty).await?;
        match args.empty {
            true => wait(asked, view, &mut steps, |view| view.copies, true).await,
            false => Ok(()),
        }
    };
    match tokio::time::timeout(args.timeout, waiting).await {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(("failed", failure)),
        Err(_) => {
            let text = format!(
                "broker {} still has {} streamlets and replicas of {} groups, {}; the drain goes on, wait longer with --timeout",
                args.broker,
                view.leaving,
                view.copies,
                rounded_bytes(view.copy_bytes)
            );
            Some(("timeout", Failure::message(text)))
        }
    }
}

fn cancelled(args: &DrainArgs, changed: bool) -> Outcome {
    #[derive(Serialize)]
    struct Cancelled {
        broker_id: u32,
        changed: bool,
    }
    if args.output.json {
        let body = Cancelled {
            broker_id: args.broker,
            changed,
        };
        end("cancelled", None, &body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    match changed {
        true => out.line(format_args!("broker {} gets streamlets again", args.broker))?,
        false => out.line(format_args!("broker {} was not draining", args.broker))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns once nothing is `left`.
async fn wait(
    asked: &mut Asked,
    view: &mut View,
    steps: &mut Steps<View>,
    left: fn(&View) -> u64,
    until_empty: bool,
) -> Result<(), Failure> {
    let bar = progress(left(view));
    let mut most = left(view);
    let mut look_again = tokio::time::interval(LOOK_EVERY);
    while left(view) > 0 {
        look_again.tick().await;
        *view = look(asked, view.broker_id).await?;
        steps.step(view)?;
        most = most.max(left(view));
        bar.set_length(most);
        bar.set_position(most - left(view));
        // Another broker may have gone meanwhile.
        if until_empty && let Some(failure) = view.cannot_be_emptied() {
            return Err(failure);
        }
        bar.set_message(format!(
            "given away by broker {}; {} of replicas left",
            view.broker_id,
            rounded_bytes(view.copy_bytes)
        ));
        if !view.draining {
            return Err(Failure::message(format!(
                "the drain of broker {} was cancelled, or the broker was started again",
                view.broker_id
            )));
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn print(view: &View) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let broker = view.broker_id;
    match (view.streamlets, view.leaving) {
        (0, _) => out.line(format_args!("broker {broker} owns no streamlets any more"))?,
        (owned, 0) => out.line(format_args!(
            "broker {broker} keeps {} streamlets that it cannot hand over",
            count(owned)
        ))?,
        (owned, leaving) => out.line(format_args!(
            "broker {broker} owns {} streamlets, of which {} leave",
            count(owned),
            count(leaving)
        ))?,
    }
    if !view.kept.is_empty() {
        let mut table = Table::new(&["stream", ">streamlet", "why it stays", "until"]);
        for one in &view.kept {
            table.row([
                one.stream.clone(),
                one.streamlet.to_string(),
                one.reason.clone(),
                one.until.clone().unwrap_or_else(|| "-".into()),
            ]);
        }
        out.bytes(table.render().as_bytes())?;
    }
    if view.copies > 0 {
        out.line(format_args!(
            "it holds replicas of {} groups of other brokers, {}, which move in the background; --empty waits for that",
            count(view.copies),
            rounded_bytes(view.copy_bytes)
        ))?;
    }
    if view.last_copies > 0 {
        out.line(format_args!(
            "it holds the last replicas of {} groups, which no other staying broker has: do not stop it for good yet",
            count(view.last_copies)
        ))?;
    }
    if view.may_stop {
        out.line(format_args!("broker {broker} may be stopped"))?;
    }
    out.flush()
}
