//! `kera cluster plan` and `kera cluster apply`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kera_protocol::v1;
use serde::Serialize;

use super::agree::agree;
use crate::connect::{ConnectArgs, Control, refused};
use crate::failure::{Failure, Outcome};
use crate::members::{Asked, answering, may_pass, progress, progress_bytes};
use crate::output::{
    Out, OutputArgs, Steps, Table, count, end, print_json, rounded_bytes, say, short_time,
};
use crate::parse;

/// Arguments of `kera cluster plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster plan
  kera cluster plan --most 10 --json

Streamlets move by themselves when brokers come, go or drain, which evens out their number. The plan also evens out \
bytes. A move takes no records with it: the new owner has replicas, or they follow in the background. Replicas of closed \
groups move by themselves too, until brokers hold about as many bytes each (cluster.spread_tolerance_bytes), and surplus \
ones are freed; they are shown by stream.")]
pub(crate) struct PlanArgs {
    /// Show at most so many moves
    #[arg(long, value_name = "MOVES", default_value_t = 1000)]
    most: u32,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera cluster apply`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster apply
  kera cluster apply --most 10 --yes
  kera cluster apply --yes --replicas --timeout 6h

The plan is made, shown and, after a yes, carried out. Interrupted, it leaves the streamlet in hand with one owner or \
the other and the rest where they are; applied again it goes on. Replicas of closed groups follow by themselves at \
cluster.repair_bytes_per_second; --replicas waits for them.

With --json every move is a line once it is made, an object with \"event\":\"step\"; the last line has \
\"event\":\"end\" and \"outcome\": done, timeout or failed.")]
pub(crate) struct ApplyArgs {
    /// Make at most so many moves
    #[arg(long, value_name = "MOVES", default_value_t = 1000)]
    most: u32,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Wait too until replicas of closed groups are where they belong
    #[arg(long, group = "waits")]
    replicas: bool,
    /// The former name of --replicas
    #[arg(long, hide = true, group = "waits")]
    copies: bool,
    /// Wait for replicas at most so long
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse::duration, requires = "waits")]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Between two looks at copies that are to come.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A plan, as it is shown.
#[derive(Serialize)]
struct View {
    moves: Vec<MoveView>,
    copies: Vec<CopiesView>,
    brokers: Vec<LoadView>,
}

/// Copies of a stream's closed groups that move by themselves.
#[derive(Serialize)]
struct CopiesView {
    stream: String,
    from: u32,
    /// Absent: they are too many, and go.
    to: Option<u32>,
    groups: u64,
    bytes: u64,
}

/// A streamlet that moves.
#[derive(Clone, PartialEq, Serialize)]
struct MoveView {
    stream: String,
    streamlet: u32,
    epoch: u32,
    from: u32,
    to: u32,
    bytes: u64,
}

/// What a broker owns before and after.
#[derive(Serialize)]
struct LoadView {
    broker_id: u32,
    streamlets: u64,
    bytes: u64,
    streamlets_then: u64,
    bytes_then: u64,
    /// Of closed groups of which it has a copy, its own among them.
    held_bytes: u64,
    held_bytes_then: u64,
}

/// What became of a move.
#[derive(Clone, PartialEq, Serialize)]
struct MadeView {
    #[serde(flatten)]
    planned: MoveView,
    took_ms: Option<u64>,
    error: Option<String>,
}

/// How far it is.
#[derive(Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Far {
    /// A move was made, or not.
    Made {
        number: usize,
        of: usize,
        #[serde(flatten)]
        made: MadeView,
    },
    /// Copies are on their way.
    Copies { to_come_bytes: u64 },
}

/// How it ended.
#[derive(Default, Serialize)]
struct Ended {
    moves: usize,
    made: usize,
    failed: usize,
    /// Of copies that are still to come to some broker.
    to_come_bytes: u64,
}

impl View {
    fn new(answer: v1::PlanMovesResponse) -> Self {
        let moves = answer.moves.into_iter().map(|one| MoveView {
            stream: one.stream,
            streamlet: one.streamlet,
            epoch: one.epoch,
            from: one.from,
            to: one.to,
            bytes: one.bytes,
        });
        let loads = answer.loads.into_iter().map(|load| LoadView {
            broker_id: load.broker,
            streamlets: load.streamlets,
            bytes: load.bytes,
            streamlets_then: load.streamlets_then,
            bytes_then: load.bytes_then,
            held_bytes: load.held_bytes,
            held_bytes_then: load.held_bytes_then,
        });
        let copies = answer.copies.into_iter().map(|one| CopiesView {
            stream: one.stream,
            from: one.from,
            to: one.to,
            groups: one.groups,
            bytes: one.bytes,
        });
        Self {
            moves: moves.collect(),
            copies: copies.collect(),
            brokers: loads.collect(),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let mut out = Out::stdout();
        if self.moves.is_empty() && self.copies.is_empty() {
            out.line("nothing to move: the brokers' load is even")?;
            return out.flush();
        }
        let mut table = Table::new(&["stream", ">streamlet", ">from", ">to", ">bytes"]);
        for one in &self.moves {
            table.row([
                one.stream.clone(),
                one.streamlet.to_string(),
                one.from.to_string(),
                one.to.to_string(),
                rounded_bytes(one.bytes),
            ]);
        }
        if !self.moves.is_empty() {
            out.bytes(table.render().as_bytes())?;
            out.bytes(b"\n")?;
        }
        let mut table = Table::new(&["replicas of", ">groups", ">from", ">to", ">bytes"]);
        for one in &self.copies {
            table.row([
                one.stream.clone(),
                count(one.groups),
                one.from.to_string(),
                one.to.map_or_else(|| "-".into(), |to| to.to_string()),
                rounded_bytes(one.bytes),
            ]);
        }
        if !self.copies.is_empty() {
            out.bytes(table.render().as_bytes())?;
            out.line("replicas move by themselves, in the background; those without a target are surplus and are freed")?;
            out.bytes(b"\n")?;
        }
        let mut table = Table::new(&[
            "broker",
            ">streamlets",
            ">then",
            ">bytes",
            ">bytes then",
            ">held",
            ">held then",
        ]);
        for load in &self.brokers {
            table.row([
                load.broker_id.to_string(),
                count(load.streamlets),
                count(load.streamlets_then),
                rounded_bytes(load.bytes),
                rounded_bytes(load.bytes_then),
                rounded_bytes(load.held_bytes),
                rounded_bytes(load.held_bytes_then),
            ]);
        }
        out.bytes(table.render().as_bytes())?;
        out.flush()
    }
}

async fn ask(control: &mut Control, most: u32) -> Result<View, Failure> {
    let request = v1::PlanMovesRequest { most };
    let answer = control.clusters.plan_moves(request).await;
    Ok(View::new(answer.map_err(|s| refused(&s))?.into_inner()))
}

pub(super) async fn plan(args: PlanArgs) -> Outcome {
    let (mut control, _) = answering(&args.connect).await?;
    let view = ask(&mut control, args.most).await?;
    match args.output.json {
        true => print_json(&view)?,
        false => view.print()?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn apply(args: ApplyArgs) -> Outcome {
    if args.copies {
        say("warning: --copies is now --replicas; the old name goes with the next version");
    }
    let (mut control, _) = answering(&args.connect).await?;
    let view = ask(&mut control, args.most).await?;
    if !args.output.json {
        view.print()?;
    }
    if !view.moves.is_empty() && !args.yes {
        let question = format!("Make these {} moves?", view.moves.len());
        agree(&question, "make the moves", "nothing was moved")?;
    }
    let mut ended = Ended {
        moves: view.moves.len(),
        ..Ended::default()
    };
    let mut asked = Asked::new(&args.connect, control);
    let outcome = carry_out(&mut asked, view, &args, &mut ended).await;
    let (outcome, failure) = match outcome {
        Ok(()) => ("done", None),
        Err((outcome, failure)) => (outcome, Some(failure)),
    };
    if args.output.json {
        end(outcome, failure.as_ref(), &ended)?;
    }
    match failure {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure),
    }
}

/// Makes the moves one after the other, and waits for copies if it is to.
async fn carry_out(
    asked: &mut Asked,
    view: View,
    args: &ApplyArgs,
    ended: &mut Ended,
) -> Result<(), (&'static str, Failure)> {
    let failed = |failure: Failure| ("failed", failure);
    let mut steps = Steps::new(args.output.json);
    let bar = progress(view.moves.len() as u64);
    let mut made = Vec::new();
    for planned in view.moves {
        bar.set_message(format!(
            "{} streamlet {}: {} to {}",
            planned.stream, planned.streamlet, planned.from, planned.to
        ));
        let request = v1::MoveStreamletRequest {
            stream: planned.stream.clone(),
            streamlet: planned.streamlet,
            to: planned.to,
            epoch: Some(planned.epoch),
            passed_on: false,
        };
        let (took_ms, error) = match asked.clusters().move_streamlet(request).await {
            Ok(answer) => (Some(answer.into_inner().took_ms), None),
            Err(status) => {
                // The moves that follow need not fail for a broker that is gone.
                if may_pass(&status) {
                    asked.look_for_another().await;
                }
                (None, Some(status.message().to_owned()))
            }
        };
        bar.inc(1);
        let one = MadeView {
            planned,
            took_ms,
            error,
        };
        match one.error {
            None => ended.made += 1,
            Some(_) => ended.failed += 1,
        }
        made.push(one.clone());
        let step = steps.step(&Far::Made {
            number: made.len(),
            of: ended.moves,
            made: one,
        });
        step.map_err(failed)?;
    }
    bar.finish_and_clear();
    if !args.output.json {
        print_made(&made).map_err(failed)?;
    }
    if args.replicas || args.copies {
        let waiting = wait_for_copies(asked, &mut steps, ended);
        let waited = tokio::time::timeout(args.timeout, waiting).await;
        match waited {
            Ok(waited) => waited.map_err(failed)?,
            Err(_) => {
                let text = format!(
                    "{} of replicas have still to move; the moves go on, wait longer with --timeout",
                    rounded_bytes(ended.to_come_bytes)
                );
                return Err(("timeout", Failure::message(text)));
            }
        }
    } else {
        let answer = asked.describe_cluster().await.map_err(failed)?;
        ended.to_come_bytes = answer.to_come_bytes;
    }
    match ended.failed {
        0 => Ok(()),
        some => Err(failed(Failure::message(format!(
            "{some} of {} moves were not made; look at `kera cluster plan` again",
            made.len()
        )))),
    }
}

/// Returns once copies are where they are to be.
async fn wait_for_copies(
    asked: &mut Asked,
    steps: &mut Steps<Far>,
    ended: &mut Ended,
) -> Result<(), Failure> {
    let bar = progress_bytes();
    bar.set_message("of replicas moved");
    let mut most = 0;
    let mut look_again = tokio::time::interval(LOOK_EVERY);
    loop {
        look_again.tick().await;
        let left = asked.describe_cluster().await?.to_come_bytes;
        ended.to_come_bytes = left;
        steps.step(&Far::Copies {
            to_come_bytes: left,
        })?;
        most = most.max(left);
        bar.set_length(most);
        bar.set_position(most - left);
        if left == 0 {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn print_made(made: &[MadeView]) -> Result<(), Failure> {
    let mut out = Out::stdout();
    for one in made {
        if let Some(error) = &one.error {
            out.line(format_args!(
                "{} streamlet {} stays at broker {}: {error}",
                one.planned.stream, one.planned.streamlet, one.planned.from
            ))?;
        }
    }
    let longest = made.iter().filter_map(|one| one.took_ms).max();
    if let Some(longest) = longest {
        let moved = made.iter().filter(|one| one.took_ms.is_some()).count();
        out.line(format_args!(
            "{} streamlets moved, the slowest within {}",
            count(moved as u64),
            short_time(Duration::from_millis(longest))
        ))?;
    }
    out.flush()
}
