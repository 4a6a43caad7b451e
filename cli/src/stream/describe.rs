//! `kera stream list` and `kera stream describe`.

use std::process::ExitCode;

use super::view::{DescriptionView, GroupLagView, LaneView, StreamView, UnrecoveredView};
use super::{DescribeArgs, ListArgs};
use crate::connect::failed;
use crate::failure::Outcome;
use crate::output::{Out, Table, count, fact, lag, paragraph, print_json, rounded_bytes};

pub(super) async fn list(args: ListArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let streams = admin.streams(args.internal).await.map_err(failed)?;
    let views: Vec<StreamView> = streams.iter().map(StreamView::new).collect();
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        "stream",
        ">streamlets",
        ">lanes",
        "lane by",
        "ack",
        ">replicas",
        "kept",
        "created",
    ]);
    for view in &views {
        table.row([
            view.name.clone(),
            view.streamlets.to_string(),
            view.lanes_each(),
            view.lane_by.into(),
            view.ack.into(),
            view.replicas.to_string(),
            view.retention(),
            view.created.clone(),
        ]);
    }
    table.print("no streams; make one with `kera stream create NAME`")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn describe(args: DescribeArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let answer = admin.describe_stream(&args.stream).await.map_err(failed)?;
    // Lag is the coordinator's knowledge; a stream can be described while it is still loading.
    let (groups, consumer_groups_error) = match admin.groups().await {
        Ok(groups) => (groups, None),
        Err(error) => (Vec::new(), Some(failed(error).text())),
    };
    let view = DescriptionView {
        stream: StreamView::new(&answer.stream.unwrap_or_default()),
        under_replicated_groups: answer.under_replicated_groups,
        unrecovered: answer
            .unrecovered
            .iter()
            .map(UnrecoveredView::new)
            .collect(),
        lane_descriptions: answer.lanes.iter().map(LaneView::new).collect(),
        consumer_groups: groups
            .iter()
            .filter_map(|group| GroupLagView::new(group, &args.stream))
            .collect(),
        consumer_groups_error,
    };
    if args.output.json {
        print_json(&view)?;
    } else {
        print(&view, args.groups)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How far the replicas of groups are that are not closed.
fn replicas(view: &DescriptionView) -> Table {
    let mut table = Table::new(&[
        ">open group",
        ">streamlet",
        ">lane",
        ">broker",
        ">end",
        ">placed",
        ">flushed",
        "state",
    ])
    .keys(3);
    let address = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), |at| at.to_string());
    for lane in &view.lane_descriptions {
        for replica in &lane.replicas {
            table.row([
                replica.group.to_string(),
                lane.streamlet.to_string(),
                lane.lane.to_string(),
                replica.broker.to_string(),
                replica.end.to_string(),
                address(replica.placed),
                address(replica.flushed),
                replica.state(),
            ]);
        }
    }
    table
}

fn print(view: &DescriptionView, with_groups: bool) -> Result<(), crate::failure::Failure> {
    let mut out = Out::stdout();
    out.line(&view.stream.name)?;
    for (name, value) in view.stream.settings() {
        out.line(fact(name, &value))?;
    }
    let records: u64 = view.lane_descriptions.iter().map(|lane| lane.records).sum();
    let bytes: u64 = view.lane_descriptions.iter().map(|lane| lane.bytes).sum();
    let stored = format!("{} ({})", count(records), rounded_bytes(bytes));
    out.line(fact("stored", &stored))?;
    if view.under_replicated_groups > 0 {
        let lacks = format!(
            "{} groups with fewer than {} replicas",
            view.under_replicated_groups, view.stream.replicas
        );
        out.line(fact("lacks", &lacks))?;
    }
    for one in &view.unrecovered {
        out.line(fact("not served", &one.line()))?;
    }
    out.line("")?;
    // The only replica is the owner's.
    let is_replicated = view.stream.replicas > 1;
    let mut headings = vec![">streamlet", "owner", ">epoch"];
    if is_replicated {
        headings.insert(2, "replicas at brokers");
    }
    let mut owners = Table::new(&headings);
    for one in &view.stream.owners {
        let mut cells = vec![one.streamlet.to_string(), one.text(), one.epoch.to_string()];
        if is_replicated {
            cells.insert(2, one.replicas_text());
        }
        owners.row(cells);
    }
    out.bytes(owners.render().as_bytes())?;
    out.line("")?;
    let mut lanes = Table::new(&[
        ">streamlet",
        ">lane",
        ">start",
        ">head",
        ">end",
        ">records",
        ">size",
        ">groups",
        ">producers",
    ])
    .keys(2);
    for lane in &view.lane_descriptions {
        lanes.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            count(lane.log_start),
            count(lane.head_ordinal),
            count(lane.end_ordinal),
            count(lane.records),
            rounded_bytes(lane.bytes),
            lane.groups.len().to_string(),
            lane.producers.to_string(),
        ]);
    }
    out.bytes(lanes.render().as_bytes())?;
    if with_groups {
        let mut groups = Table::new(&[
            ">group",
            ">generation",
            ">streamlet",
            ">lane",
            ">epoch",
            ">first",
            ">end",
            ">size",
            "state",
        ])
        .keys(4);
        for lane in &view.lane_descriptions {
            for group in &lane.groups {
                groups.row([
                    group.group.to_string(),
                    group.generation.to_string(),
                    lane.streamlet.to_string(),
                    lane.lane.to_string(),
                    group.epoch.to_string(),
                    count(group.first_ordinal),
                    count(group.end_ordinal),
                    rounded_bytes(group.bytes),
                    if group.closed { "closed" } else { "open" }.into(),
                ]);
            }
        }
        out.line("")?;
        out.bytes(groups.render().as_bytes())?;
        if is_replicated {
            out.line("")?;
            out.bytes(replicas(view).render().as_bytes())?;
        }
    }
    if !view.consumer_groups.is_empty() {
        let mut table = Table::new(&["consumer group", ">members", ">lag"]);
        for group in &view.consumer_groups {
            table.row([
                group.group.clone(),
                group.members.to_string(),
                lag(group.lag, group.unknown_lanes.into()),
            ]);
        }
        out.line("")?;
        out.bytes(table.render().as_bytes())?;
    }
    if let Some(error) = &view.consumer_groups_error {
        out.line("")?;
        out.line(paragraph(&format!(
            "consumer groups are not known: {error}"
        )))?;
    }
    out.flush()
}
