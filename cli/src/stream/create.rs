//! `kera stream create`.

use std::process::ExitCode;

use clap::Args;
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;

use super::view::StreamView;
use super::{LaneBy, SettingArgs};
use crate::connect::{ConnectArgs, failed, not_changed};
use crate::failure::Outcome;
use crate::output::{Out, OutputArgs, next, paragraph, print_json, say};
use crate::parse;

/// Arguments of `kera stream create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream create clicks
  kera stream create clicks --streamlets 4 --lanes 2 --retention-time 7d
  kera stream create sensors --lanes 16 --lane-by producer --ack memory
  kera stream create payments --ack synced --retention-bytes 10GiB

A stream has M streamlets, fixed for ever, with Q lanes each; lanes can grow later. Records of one key always reach \
the same lane. Consumers are not bounded by either: `kera consume --order none` shares even one lane among many.")]
pub(crate) struct CreateArgs {
    /// The stream's name: 1 to 249 of a-z A-Z 0-9 . _ -
    pub stream: String,
    /// Streamlets (M), fixed for ever
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub streamlets: u32,
    /// Lanes of each streamlet (Q); may grow later
    #[arg(long, value_name = "Q", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub lanes: u32,
    /// How records find their lane; fixed for ever
    #[arg(long, value_enum, default_value_t = LaneBy::Key)]
    pub lane_by: LaneBy,
    /// Bytes of a segment, 64KiB to 1GiB [default: 8MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse::small_size)]
    pub segment_size: Option<u32>,
    /// Segments of a group [default: 16, with replicas 2]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub segments_per_group: Option<u32>,
    /// Replicas of each group, the owner's own file included; more than 1 needs that many brokers
    /// [default: 3, or as many as there are brokers]
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub replicas: Option<u32>,
    /// Replicas without which no record is acknowledged [default: more than half of the replicas]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub min_insync_replicas: Option<u32>,
    /// The former name of --min-insync-replicas
    #[arg(long, hide = true, conflicts_with = "min_insync_replicas", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub min_copies: Option<u32>,
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Succeed if a stream of that name exists already, whatever its settings
    #[arg(long)]
    pub if_not_exists: bool,
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub(super) async fn create(args: CreateArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    if args.min_copies.is_some() {
        say(
            "warning: --min-copies is now --min-insync-replicas; the old name goes with the next version",
        );
    }
    let config = v1::StreamConfig {
        streamlets: Some(args.streamlets),
        lanes: Some(args.lanes),
        lane_by: Some(match args.lane_by {
            LaneBy::Key => v1::LaneBy::Key as i32,
            LaneBy::Producer => v1::LaneBy::Producer as i32,
        }),
        segment_size: args.segment_size,
        segments_per_group: args.segments_per_group,
        replicas: args.replicas,
        min_insync_replicas: args.min_insync_replicas.or(args.min_copies),
        ..args.settings.config()
    };
    let (info, existed) = match admin.create_stream(&args.stream, config).await {
        Ok(info) => (info, false),
        Err(change)
            if args.if_not_exists && change.error.code() == Some(ErrorCode::StreamExists) =>
        {
            (admin.stream(&args.stream).await.map_err(failed)?, true)
        }
        Err(change) => return Err(not_changed(change)),
    };
    let view = StreamView::new(&info);
    if args.output.json {
        print_json(&view)?;
    } else {
        let verb = if existed { "exists" } else { "created" };
        let mut out = Out::stdout();
        out.line(paragraph(&format!("{verb}: {}", view.summary())))?;
        let name = &args.stream;
        next(
            &mut out,
            &[
                (format!("echo hello | kera produce {name}"), "send a record"),
                (format!("kera consume {name} --from earliest"), "read it"),
                ("kera top".to_owned(), "watch all streams"),
            ],
        )?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
