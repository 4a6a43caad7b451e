//! `kera group`.

mod held;
mod view;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use kera_rpc::admin::GroupPart;

use view::{DescriptionView, LaneView, PartitionView, SummaryView};

use crate::connect::{ConnectArgs, failed, not_changed};
use crate::failure::Outcome;
use crate::output::{Out, OutputArgs, Table, paragraph, plain, print_json, print_line};
use crate::parse::Start;
use crate::stream::confirm;

/// `kera group ...`
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the consumer groups with their lag.
    List(ListArgs),
    /// Show a group's members, and its progress and lag on each lane or partition.
    Describe(DescribeArgs),
    /// Move a group to another place. Its members must have left.
    Reset(ResetArgs),
    /// Forget a group and its progress. Its members must have left.
    Delete(DeleteArgs),
}

/// Arguments of `kera group list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera group list
  kera group list --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera group describe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera group describe billing
  kera group describe billing --json")]
pub(crate) struct DescribeArgs {
    /// The consumer group
    group: String,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera group reset`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera group reset billing --to earliest
  kera group reset billing --to 2026-02-03T04:05:06Z
  kera group reset billing --to ordinal:1000 --streamlet 0 --lane 0
  kera group reset kafka-app --to earliest --stream orders --partition 3

Groups of Kafka's clients are reset by stream and partition, others by streamlet and lane.")]
pub(crate) struct ResetArgs {
    /// The consumer group
    group: String,
    /// earliest, latest, ordinal:N, a time (2026-02-03T04:05:06Z) or an age (1h)
    #[arg(long, value_name = "PLACE")]
    to: Start,
    /// Only this streamlet's lane
    #[arg(long, requires = "lane")]
    streamlet: Option<u32>,
    /// Only this lane
    #[arg(long, requires = "streamlet")]
    lane: Option<u32>,
    /// Only this stream, also if a group of Kafka's clients has no offsets in it yet
    #[arg(long, conflicts_with = "streamlet")]
    stream: Option<String>,
    /// Only this partition of the stream, as Kafka's clients count
    #[arg(long, requires = "stream")]
    partition: Option<u32>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera group delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kera group delete billing --yes

The stream's records stay; only the group's progress is forgotten.")]
pub(crate) struct DeleteArgs {
    /// The consumer group
    group: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs `kera group`.
pub(crate) async fn run(command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::List(args) => list(args).await,
        GroupCommand::Describe(args) => describe(args).await,
        GroupCommand::Reset(args) => reset(args).await,
        GroupCommand::Delete(args) => delete(args).await,
    }
}

async fn list(args: ListArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let groups = admin.groups().await.map_err(failed)?;
    let views: Vec<SummaryView> = groups.iter().map(SummaryView::new).collect();
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        "group", "kind", "stream", "order", "state", ">members", ">leases", ">lag",
    ]);
    for view in &views {
        table.row([
            view.group.clone(),
            view.kind.into(),
            view.streams_shown(),
            view.order.unwrap_or("-").into(),
            view.state.clone().unwrap_or_else(|| "-".into()),
            view.members.to_string(),
            view.leases.to_string(),
            view.lag_shown(),
        ]);
    }
    table.print("no consumer groups; `kera consume STREAM --group NAME` makes one")?;
    Ok(ExitCode::SUCCESS)
}

async fn describe(args: DescribeArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let answer = admin.describe_group(&args.group).await.map_err(failed)?;
    let view = DescriptionView::new(&answer);
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(plain(&view.headline()))?;
    out.line("")?;
    let progress = if view.summary.kind == view::KAFKA {
        view::partitions_table(&view.partitions)
    } else {
        view::lanes_table(&view.lanes)
    };
    out.bytes(progress.render().as_bytes())?;
    out.line("")?;
    if let Some(text) = view.not_known() {
        out.line(paragraph(&text))?;
        out.line("")?;
    }
    if let Some(slices) = view::slices_table(&view.lanes) {
        out.bytes(slices.render().as_bytes())?;
        out.line("")?;
    }
    if let Some(held) = held::table(&view.lanes) {
        out.bytes(held.render().as_bytes())?;
        out.line("")?;
    }
    match view.members_table() {
        Some(members) => out.bytes(members.render().as_bytes())?,
        None => out.line("no members")?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn reset(args: ResetArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let part = match (args.streamlet.zip(args.lane), args.stream, args.partition) {
        (Some((streamlet, lane)), ..) => GroupPart::Lane { streamlet, lane },
        (None, Some(stream), Some(partition)) => GroupPart::Partition { stream, partition },
        (None, Some(stream), None) => GroupPart::Stream(stream),
        (None, None, _) => GroupPart::Whole,
    };
    let answer = admin.reset_group(&args.group, part, args.to).await;
    let answer = answer.map_err(not_changed)?;
    let lanes: Vec<LaneView> = answer.lanes.iter().map(LaneView::new).collect();
    let partitions = answer.partitions.iter();
    let partitions: Vec<PartitionView> = partitions.map(PartitionView::new).collect();
    match (args.output.json, partitions.is_empty()) {
        (true, true) => print_json(&lanes)?,
        (true, false) => print_json(&partitions)?,
        (false, true) => view::lanes_table(&lanes).print("nothing to reset")?,
        (false, false) => view::partitions_table(&partitions).print("nothing to reset")?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> Outcome {
    confirm(&args.group, "consumer group and its progress", args.yes)?;
    let admin = args.connect.admin().await?;
    let deleted = admin.delete_group(&args.group).await;
    deleted.map_err(not_changed)?;
    print_line(format_args!("deleted: group {}", args.group))?;
    Ok(ExitCode::SUCCESS)
}
