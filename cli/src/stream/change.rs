//! `kera stream alter`, `delete` and `trim`.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use kera_protocol::v1;
use kera_rpc::admin::Trim;
use serde::Serialize;

use super::view::StreamView;
use super::{AlterArgs, CompactArgs, DeleteArgs, TrimArgs};
use crate::connect::{failed, not_changed};
use crate::failure::{Failure, Outcome};
use crate::output::{
    Out, Table, count, paragraph, plural, print_json, print_line, rounded_bytes, say,
};

pub(super) async fn alter(args: AlterArgs) -> Outcome {
    let config = v1::StreamConfig {
        lanes: args.lanes,
        partitions: args.partitions,
        ..args.settings.config()
    };
    if config == v1::StreamConfig::default() {
        return Err(Failure::Usage(
            "nothing to change; name a setting, such as --lanes 8 or --retention-time 7d".into(),
        ));
    }
    let admin = args.connect.admin().await?;
    let changed = admin.alter_stream(&args.stream, config).await;
    let view = StreamView::new(&changed.map_err(not_changed)?);
    if args.output.json {
        print_json(&view)?;
    } else {
        print_line(paragraph(&format!(
            "changed: {}, kept: {}",
            view.summary(),
            view.retention()
        )))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn delete(args: DeleteArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let found = admin.stream(&args.stream).await.map_err(failed)?;
    confirm(&args.stream, "stream and all its records", args.yes)?;
    admin.delete_exactly(&found).await.map_err(not_changed)?;
    print_line(format_args!("deleted: stream {}", args.stream))?;
    Ok(ExitCode::SUCCESS)
}

/// Has a person on a terminal type the name of what is about to be deleted; elsewhere `--yes` is
/// what says so.
pub(crate) fn confirm(name: &str, what: &str, yes: bool) -> Result<(), Failure> {
    confirm_to(("delete", "deleted"), name, what, yes)
}

/// As [`confirm`], for what else cannot be undone: a verb, and its participle.
pub(crate) fn confirm_to(
    (verb, done): (&str, &str),
    name: &str,
    what: &str,
    yes: bool,
) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("add --yes to {verb} the {what}")));
    }
    eprint!("This {verb}s the {what}. Type `{name}` to go on: ");
    std::io::stderr().flush()?;
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed)?;
    if typed.trim() == name {
        return Ok(());
    }
    Err(Failure::message(format!(
        "that is not `{name}`; nothing was {done}"
    )))
}

#[derive(Serialize)]
struct Compacted {
    lanes: u32,
    groups_before: u64,
    groups_after: u64,
    bytes_before: u64,
    bytes_after: u64,
    unreadable_batches: u64,
}

pub(super) async fn compact(args: CompactArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let answer = admin.compact_stream(&args.stream).await;
    let answer = answer.map_err(not_changed)?;
    let done = Compacted {
        lanes: answer.lanes,
        groups_before: answer.groups_before,
        groups_after: answer.groups_after,
        bytes_before: answer.bytes_before,
        bytes_after: answer.bytes_after,
        unreadable_batches: answer.unreadable,
    };
    if args.output.json {
        print_json(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    match done.lanes {
        0 => out.line(format_args!("nothing new to compact"))?,
        lanes => out.line(format_args!(
            "compacted {}: {} in {} became {} in {}",
            plural(lanes.into(), "lane"),
            rounded_bytes(done.bytes_before),
            plural(done.groups_before, "group"),
            rounded_bytes(done.bytes_after),
            done.groups_after
        ))?,
    }
    if done.unreadable_batches > 0 {
        out.line(format_args!(
            "{} batches could not be read and stay as they are; the broker's log tells more",
            done.unreadable_batches
        ))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Trimmed {
    freed_bytes: u64,
    lanes: Vec<TrimmedLane>,
    /// Names of pins that needed what is gone.
    lost_pins: Vec<String>,
    /// Which those are could not be read.
    pins_unknown: bool,
}

#[derive(Serialize)]
struct TrimmedLane {
    streamlet: u32,
    lane: u32,
    log_start: u64,
}

pub(super) async fn trim(args: TrimArgs) -> Outcome {
    let trim = match (args.before, args.ordinal) {
        (Some(ms), _) => Trim::Before(ms),
        (None, Some(ordinal)) => Trim::Below(ordinal),
        (None, None) => Trim::Everything,
    };
    let admin = args.connect.admin().await?;
    if args.everything {
        admin.stream(&args.stream).await.map_err(failed)?;
        let what = match args.lane {
            Some(_) => "records of the lane",
            None => "records of the stream",
        };
        confirm(&args.stream, what, args.yes)?;
    }
    let answer = admin
        .trim_stream(&args.stream, args.streamlet.zip(args.lane), trim)
        .await
        .map_err(not_changed)?;
    let trimmed = Trimmed {
        freed_bytes: answer.freed_bytes,
        lanes: answer
            .lanes
            .iter()
            .map(|lane| TrimmedLane {
                streamlet: lane.streamlet,
                lane: lane.lane,
                log_start: lane.log_start,
            })
            .collect(),
        lost_pins: answer.lost_pins,
        pins_unknown: answer.pins_unknown,
    };
    if trimmed.pins_unknown {
        say(
            "it is not known which pins have lost records that they needed: `kera pin list` tells later",
        );
    }
    if !trimmed.lost_pins.is_empty() {
        say(&format!(
            "pins have lost records that they needed: {}",
            trimmed.lost_pins.join(", ")
        ));
    }
    if args.output.json {
        print_json(&trimmed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[">streamlet", ">lane", ">start"]);
    for lane in &trimmed.lanes {
        table.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            count(lane.log_start),
        ]);
    }
    table.print("no lanes")?;
    print_line(format_args!("freed {}", rounded_bytes(trimmed.freed_bytes)))?;
    Ok(ExitCode::SUCCESS)
}
