//! `kera group`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, refused};
use crate::failure::Outcome;
use crate::output::{Out, OutputArgs, Table, count, print_json, short_time};
use crate::parse::Start;
use crate::stream::confirm;

/// `kera group ...`
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List the consumer groups with their lag.
    List(ListArgs),
    /// Show a group's members, and its progress and lag on each lane.
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
pub struct ListArgs {
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
pub struct DescribeArgs {
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
  kera group reset billing --to ordinal:1000 --streamlet 0 --lane 0")]
pub struct ResetArgs {
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
pub struct DeleteArgs {
    /// The consumer group
    group: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Serialize)]
struct SummaryView {
    group: String,
    stream: String,
    order: &'static str,
    members: u32,
    leases: u32,
    lag: u64,
}

impl SummaryView {
    fn new(summary: &v1::GroupSummary) -> Self {
        Self {
            group: summary.group.clone(),
            stream: summary.stream.clone(),
            order: match summary.order() {
                v1::Order::Lane => "lane",
                v1::Order::None => "none",
            },
            members: summary.members,
            leases: summary.leases,
            lag: summary.lag,
        }
    }
}

#[derive(Serialize)]
struct DescriptionView {
    #[serde(flatten)]
    summary: SummaryView,
    member_descriptions: Vec<MemberView>,
    lanes: Vec<LaneView>,
}

#[derive(Serialize)]
struct MemberView {
    member: String,
    client: String,
    leases: u32,
    last_heartbeat_ms_ago: u64,
}

#[derive(Serialize)]
struct LaneView {
    streamlet: u32,
    lane: u32,
    committed: u64,
    finished_above: u64,
    head_ordinal: u64,
    lag: u64,
    leases: Vec<LeaseView>,
}

#[derive(Serialize)]
struct LeaseView {
    lease: u64,
    member: String,
    start_ordinal: u64,
    /// 0: the lane from the start on.
    end_ordinal: u64,
}

impl LaneView {
    fn new(lane: &v1::LaneProgress) -> Self {
        Self {
            streamlet: lane.streamlet,
            lane: lane.lane,
            committed: lane.committed,
            finished_above: lane.finished_above,
            head_ordinal: lane.head_ordinal,
            lag: lane.lag,
            leases: lane
                .leases
                .iter()
                .map(|lease| LeaseView {
                    lease: lease.lease,
                    member: lease.member.clone(),
                    start_ordinal: lease.start_ordinal,
                    end_ordinal: lease.end_ordinal,
                })
                .collect(),
        }
    }
}

fn lanes_table(lanes: &[LaneView]) -> Table {
    let mut table = Table::new(&[
        ">streamlet",
        ">lane",
        ">committed",
        ">finished above",
        ">head",
        ">lag",
        ">leases",
    ]);
    for lane in lanes {
        table.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            lane.committed.to_string(),
            lane.finished_above.to_string(),
            lane.head_ordinal.to_string(),
            count(lane.lag),
            lane.leases.len().to_string(),
        ]);
    }
    table
}

/// Runs `kera group`.
pub async fn run(command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::List(args) => list(args).await,
        GroupCommand::Describe(args) => describe(args).await,
        GroupCommand::Reset(args) => reset(args).await,
        GroupCommand::Delete(args) => delete(args).await,
    }
}

async fn list(args: ListArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let answer = control
        .consumers
        .list_groups(v1::ListGroupsRequest {})
        .await
        .map_err(|s| refused(&s))?;
    let views: Vec<SummaryView> = answer
        .into_inner()
        .groups
        .iter()
        .map(SummaryView::new)
        .collect();
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["group", "stream", "order", ">members", ">leases", ">lag"]);
    for view in &views {
        table.row([
            view.group.clone(),
            view.stream.clone(),
            view.order.into(),
            view.members.to_string(),
            view.leases.to_string(),
            count(view.lag),
        ]);
    }
    table.print("no consumer groups; `kera consume STREAM --group NAME` makes one")?;
    Ok(ExitCode::SUCCESS)
}

async fn describe(args: DescribeArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let request = v1::DescribeGroupRequest {
        group: args.group.clone(),
    };
    let answer = control
        .consumers
        .describe_group(request)
        .await
        .map_err(|s| refused(&s))?;
    let answer = answer.into_inner();
    let view = DescriptionView {
        summary: SummaryView::new(&answer.summary.unwrap_or_default()),
        member_descriptions: answer
            .members
            .iter()
            .map(|member| MemberView {
                member: member.member.clone(),
                client: member.client.clone(),
                leases: member.leases,
                last_heartbeat_ms_ago: member.last_heartbeat_ms_ago,
            })
            .collect(),
        lanes: answer.lanes.iter().map(LaneView::new).collect(),
    };
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(format_args!(
        "{}: stream {}, order {}, lag {}",
        view.summary.group,
        view.summary.stream,
        view.summary.order,
        count(view.summary.lag)
    ))?;
    out.line("")?;
    out.bytes(lanes_table(&view.lanes).render().as_bytes())?;
    out.line("")?;
    if view.member_descriptions.is_empty() {
        out.line("no members")?;
    } else {
        let mut members = Table::new(&["member", "client", ">leases", ">last heartbeat"]);
        for member in &view.member_descriptions {
            let ago = Duration::from_millis(member.last_heartbeat_ms_ago);
            members.row([
                member.member.clone(),
                member.client.clone(),
                member.leases.to_string(),
                format!("{} ago", short_time(ago)),
            ]);
        }
        out.bytes(members.render().as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn reset(args: ResetArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let request = v1::ResetGroupRequest {
        group: args.group,
        to: Some(args.to.into()),
        streamlet: args.streamlet,
        lane: args.lane,
    };
    let answer = control
        .consumers
        .reset_group(request)
        .await
        .map_err(|s| refused(&s))?;
    let lanes: Vec<LaneView> = answer
        .into_inner()
        .lanes
        .iter()
        .map(LaneView::new)
        .collect();
    if args.output.json {
        print_json(&lanes)?;
    } else {
        lanes_table(&lanes).print("the group has no lanes yet")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> Outcome {
    confirm(&args.group, "consumer group and its progress", args.yes)?;
    let mut control = args.connect.control().await?;
    let request = v1::DeleteGroupRequest {
        group: args.group.clone(),
    };
    control
        .consumers
        .delete_group(request)
        .await
        .map_err(|s| refused(&s))?;
    let mut out = Out::stdout();
    out.line(format_args!("deleted: group {}", args.group))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
