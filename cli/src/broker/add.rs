//! `kera broker add`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::failure::{Failure, Outcome};
use crate::members::{Asked, BrokerView, answering, how_to_start, progress, progress_bytes};
use crate::output::{Out, OutputArgs, Steps, count, end, rounded_bytes};
use crate::parse;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `kera broker add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker add 4
  kera broker add 4 --full --timeout 6h
  kera broker add 4 --json --timeout 30m

A broker joins by being started with the cluster's store and a number of its own; this says how, waits for it, and shows \
how its share of the streamlets comes to it: JOINING until it owns one, PARTIAL k/n, NORMAL. It serves each from the \
moment it owns it. Their records follow in the background, and so do replicas of other brokers' closed groups, until \
all brokers hold about as many bytes, at cluster.repair_bytes_per_second; --full waits for them too. Interrupted, it changes \
nothing.

With --json every change is a line, an object with \"event\":\"step\"; the last line has \"event\":\"end\" and \
\"outcome\": done, timeout or failed.")]
pub(crate) struct AddArgs {
    /// The broker's number
    broker: u32,
    /// Wait too until it holds its share of the bytes
    #[arg(long)]
    full: bool,
    /// Wait at most so long
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse::duration)]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// How far the broker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Progress {
    broker_id: u32,
    state: &'static str,
    streamlets: u64,
    share: u64,
    /// Of closed groups, here and still to come.
    held_bytes: u64,
    to_come_bytes: u64,
}

impl Progress {
    fn of(broker: u32, answer: &v1::DescribeClusterResponse) -> Self {
        let found = answer.brokers.iter().find(|one| one.id == broker).cloned();
        let view = found.map(BrokerView::new);
        let number = |of: fn(&BrokerView) -> u64| view.as_ref().map_or(0, of);
        Self {
            broker_id: broker,
            state: view.as_ref().map_or("GONE", |view| view.state),
            streamlets: number(|view| view.streamlets),
            share: number(|view| view.share),
            held_bytes: number(|view| view.held_bytes),
            to_come_bytes: number(|view| view.to_come_bytes),
        }
    }

    fn is_there(&self) -> bool {
        self.state != "GONE"
    }
}

pub(super) async fn run(args: AddArgs) -> Outcome {
    let (control, first) = answering(&args.connect).await?;
    let mut asked = Asked::new(&args.connect, control);
    let mut now = Progress::of(args.broker, &first);
    if !now.is_there() {
        eprintln!(
            "broker {} is not there yet; start it on its machine:\n  {}",
            args.broker,
            how_to_start(args.broker, &first.store)
        );
    }
    let waiting = wait(&mut asked, &mut now, &args);
    let waited = tokio::time::timeout(args.timeout, waiting).await;
    let (outcome, failure) = match waited {
        Ok(Ok(())) => ("done", None),
        Ok(Err(failure)) => ("failed", Some(failure)),
        Err(_) => {
            let text = too_long(&now, &first.store);
            ("timeout", Some(Failure::message(text)))
        }
    };
    if args.output.json {
        end(outcome, failure.as_ref(), &now)?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if !args.output.json {
        let mut out = Out::stdout();
        let bytes = match now.to_come_bytes {
            0 => format!("and {} of closed groups", rounded_bytes(now.held_bytes)),
            to_come => format!(
                "and {} of closed groups; {} more follow in the background, --full waits for them",
                rounded_bytes(now.held_bytes),
                rounded_bytes(to_come)
            ),
        };
        out.line(format_args!(
            "broker {} is NORMAL, with {} streamlets {bytes}",
            args.broker,
            count(now.streamlets)
        ))?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn too_long(now: &Progress, store: &str) -> String {
    let broker = now.broker_id;
    match (now.is_there(), now.state) {
        (true, "NORMAL") => format!(
            "broker {broker} holds {} of closed groups and {} are still to come; they go on coming, wait longer with --timeout",
            rounded_bytes(now.held_bytes),
            rounded_bytes(now.to_come_bytes)
        ),
        (true, _) => format!(
            "broker {broker} has {} of the {} streamlets that are its share; it goes on, wait longer with --timeout, or see `kera cluster status`",
            now.streamlets, now.share
        ),
        (false, _) => format!(
            "broker {broker} did not come; start it with `{}` and see its log",
            how_to_start(broker, store)
        ),
    }
}

/// Returns once the broker has its share.
async fn wait(asked: &mut Asked, now: &mut Progress, args: &AddArgs) -> Result<(), Failure> {
    let mut steps = Steps::new(args.output.json);
    let bar = progress(now.share);
    let mut look_again = tokio::time::interval(LOOK_EVERY);
    loop {
        look_again.tick().await;
        *now = Progress::of(now.broker_id, &asked.describe_cluster().await?);
        steps.step(now)?;
        bar.set_length(now.share);
        bar.set_position(now.streamlets.min(now.share));
        bar.set_message(format!(
            "streamlets of broker {}: {}",
            now.broker_id, now.state
        ));
        match now.state {
            "NORMAL" => break,
            "DRAINING" | "DRAINED" => {
                return Err(Failure::message(format!(
                    "broker {0} drains and gets no streamlets; `kera broker drain {0} --cancel` ends that",
                    now.broker_id
                )));
            }
            _ => {}
        }
    }
    bar.finish_and_clear();
    let bar = progress_bytes();
    bar.set_message(format!("of closed groups at broker {}", now.broker_id));
    while args.full && now.to_come_bytes > 0 {
        bar.set_length(now.held_bytes + now.to_come_bytes);
        bar.set_position(now.held_bytes);
        look_again.tick().await;
        *now = Progress::of(now.broker_id, &asked.describe_cluster().await?);
        steps.step(now)?;
        if !now.is_there() {
            return Err(Failure::message(format!(
                "broker {} is gone; what was to come to it stays where it is",
                now.broker_id
            )));
        }
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_broker_is_what_the_cluster_says() {
        let broker = v1::ClusterBroker {
            id: 4,
            state: v1::BrokerState::Partial.into(),
            streamlets: 3,
            share: 12,
            held_bytes: 5,
            to_come_bytes: 7,
            ..Default::default()
        };
        let answer = v1::DescribeClusterResponse {
            brokers: vec![broker],
            ..Default::default()
        };
        let there = Progress::of(4, &answer);
        assert_eq!(
            serde_json::to_string(&there).unwrap(),
            r#"{"broker_id":4,"state":"PARTIAL","streamlets":3,"share":12,"held_bytes":5,"to_come_bytes":7}"#
        );
        assert!(too_long(&there, "etcd://x").contains("3 of the 12"));
        let absent = Progress::of(5, &answer);
        assert!(!absent.is_there());
        let told = too_long(&absent, "etcd://10.0.0.1:2379");
        assert!(
            told.contains("kera serve --cluster etcd://10.0.0.1:2379 --broker-id 5"),
            "{told}"
        );
    }
}
