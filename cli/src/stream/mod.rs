//! `kera stream`.

mod change;
mod create;
mod describe;
mod recover;
mod view;

use clap::{Args, Subcommand, ValueEnum};
use kera_protocol::v1;

use crate::connect::ConnectArgs;
use crate::failure::Outcome;
use crate::output::OutputArgs;
use crate::parse;

pub(crate) use change::{confirm, confirm_to};
pub(crate) use create::CreateArgs;

/// `kera stream ...`
#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Create a stream.
    Create(CreateArgs),
    /// List the streams.
    List(ListArgs),
    /// Show a stream's settings, lanes and groups.
    Describe(DescribeArgs),
    /// Change a stream while it runs: more lanes, retention, acknowledgements.
    Alter(AlterArgs),
    /// Delete a stream and all its records.
    Delete(DeleteArgs),
    /// Delete a stream's oldest records.
    Trim(TrimArgs),
    /// Compact a stream now: of each key the newest record is kept
    Compact(CompactArgs),
    /// Show what a stream waits for, and go on without lost replicas.
    Recover(RecoverArgs),
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ack {
    /// In the broker's memory: survives nothing, fastest.
    Memory,
    /// Handed to the operating system: survives the broker's death, not a power loss.
    Written,
    /// On the disk: survives a power loss.
    Synced,
}

impl From<Ack> for v1::AckPolicy {
    fn from(ack: Ack) -> Self {
        match ack {
            Ack::Memory => v1::AckPolicy::Memory,
            Ack::Written => v1::AckPolicy::Written,
            Ack::Synced => v1::AckPolicy::Synced,
        }
    }
}

/// How records find their lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LaneBy {
    /// By key: records of one key stay in order.
    Key,
    /// By producer: records of one producer stay in order.
    Producer,
}

/// Which clock a record's time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Timestamps {
    /// The producer's.
    Create,
    /// The broker's.
    Append,
}

/// What the broker looks at in a batch before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Validate {
    /// Checksum and header.
    Header,
    /// Also every record, decompressed.
    Full,
}

/// What becomes of old records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cleanup {
    /// Retention deletes them.
    Delete,
    /// Of each key the newest is kept, and retention deletes nothing.
    Compact,
    /// Both.
    #[value(name = "compact,delete", alias = "delete,compact")]
    CompactDelete,
}

/// Settings that can be given at creation and changed later.
#[derive(Debug, Default, Args)]
pub(crate) struct SettingArgs {
    /// What an acknowledgement promises [default: written]
    #[arg(long, value_enum)]
    pub ack: Option<Ack>,
    /// Delete records older than this, such as 30d; none keeps them [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis_or_none, allow_negative_numbers = true)]
    pub retention_time: Option<u64>,
    /// Delete the oldest records above this size of the whole stream, such as 10GiB; none keeps them.
    /// Each lane may keep an equal share, and more while others have less [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse::size_or_none, allow_negative_numbers = true)]
    pub retention_bytes: Option<u64>,
    /// Begin a new group when the active one is older than this, such as 6h; none never does
    /// [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis_or_none)]
    pub group_max_age: Option<u64>,
    /// The largest batch accepted [default: 1MiB, or less in small segments]
    #[arg(long, value_name = "SIZE", value_parser = parse::small_size)]
    pub max_batch_bytes: Option<u32>,
    /// Which clock records' times come from [default: create]
    #[arg(long, value_enum)]
    pub timestamps: Option<Timestamps>,
    /// Refuse batches with records older than this, such as 30d; none takes them [default: none]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis_or_none)]
    pub timestamp_before_max: Option<u64>,
    /// Refuse batches with records that are further ahead of the broker's clock than this, such as
    /// 1h; none takes them [default: none]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis_or_none)]
    pub timestamp_after_max: Option<u64>,
    /// What is looked at in a batch before it is stored: full decompresses it and reads every record,
    /// which costs the broker about as much as a consumer [default: header]
    #[arg(long, value_enum)]
    pub validate: Option<Validate>,
    /// What becomes of old records. With compact each record needs a key, and the newest of each key is
    /// kept [default: delete]
    #[arg(long, value_enum)]
    pub cleanup: Option<Cleanup>,
    /// Do not compact records younger than this, such as 1h [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis)]
    pub min_compaction_lag: Option<u64>,
    /// Compact records older than this however few they are; none waits for --min-dirty-ratio [default: none]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis_or_none)]
    pub max_compaction_lag: Option<u64>,
    /// Keep records without a value so long once what they delete has gone [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse::millis)]
    pub delete_retention: Option<u64>,
    /// Compact a lane once so much of it is new, 0 to 1 [default: 0.5]
    #[arg(long, value_name = "RATIO", value_parser = parse::permille)]
    pub min_dirty_ratio: Option<u32>,
    /// Let brokers write there what share groups of Kafka's clients give up [default: false]
    #[arg(long, value_name = "BOOL")]
    pub dead_letters: Option<bool>,
}

impl SettingArgs {
    /// The settings given; all others absent.
    fn config(&self) -> v1::StreamConfig {
        v1::StreamConfig {
            ack: self.ack.map(|ack| v1::AckPolicy::from(ack) as i32),
            retention_ms: self.retention_time,
            retention_bytes: self.retention_bytes,
            group_max_age_ms: self.group_max_age,
            max_batch_bytes: self.max_batch_bytes,
            timestamp_type: self.timestamps.map(|clock| match clock {
                Timestamps::Create => v1::TimestampType::Create as i32,
                Timestamps::Append => v1::TimestampType::Append as i32,
            }),
            timestamp_before_max_ms: self.timestamp_before_max,
            timestamp_after_max_ms: self.timestamp_after_max,
            validate: self.validate.map(|check| match check {
                Validate::Header => v1::BatchCheck::Header as i32,
                Validate::Full => v1::BatchCheck::Full as i32,
            }),
            cleanup: self.cleanup.map(|cleanup| match cleanup {
                Cleanup::Delete => v1::Cleanup::Delete as i32,
                Cleanup::Compact => v1::Cleanup::Compact as i32,
                Cleanup::CompactDelete => v1::Cleanup::CompactDelete as i32,
            }),
            min_compaction_lag_ms: self.min_compaction_lag,
            max_compaction_lag_ms: self.max_compaction_lag,
            delete_retention_ms: self.delete_retention,
            min_dirty_permille: self.min_dirty_ratio,
            dead_letters: self.dead_letters,
            ..v1::StreamConfig::default()
        }
    }
}

/// Arguments of `kera stream list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream list
  kera stream list --internal --json")]
pub(crate) struct ListArgs {
    /// Include the streams Kera keeps for itself
    #[arg(long)]
    internal: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera stream describe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream describe clicks
  kera stream describe clicks --groups
  kera stream describe clicks --json")]
pub(crate) struct DescribeArgs {
    /// The stream
    stream: String,
    /// Also list every group
    #[arg(long)]
    groups: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera stream alter`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream alter clicks --lanes 8
  kera stream alter clicks --partitions 6
  kera stream alter clicks --retention-time 30d --retention-bytes none
  kera stream alter clicks --ack synced
  kera stream alter accounts --cleanup compact --delete-retention 7d

What is not named stays as it is; the defaults above are those of a stream that is created. Producers and consumers may \
go on while lanes grow. Lanes never shrink; streamlets never change.")]
pub(crate) struct AlterArgs {
    /// The stream
    stream: String,
    /// Lanes of each streamlet; only more than now
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..=65536), conflicts_with = "partitions")]
    lanes: Option<u32>,
    /// Lanes of all streamlets, as Kafka counts partitions; only more than now. Streamlets may differ by one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    partitions: Option<u32>,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera stream delete`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream delete clicks
  kera stream delete clicks --yes

On a terminal the name has to be typed again unless --yes is given. There is no way back.")]
pub(crate) struct DeleteArgs {
    /// The stream
    stream: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `kera stream trim`.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("to").required(true).multiple(false),
    after_help = "Examples:
  kera stream trim clicks --before 7d
  kera stream trim clicks --before 2026-02-03T00:00:00Z
  kera stream trim clicks --ordinal 1000 --streamlet 0 --lane 0
  kera stream trim clicks --everything --yes

Whole groups below the new start are deleted from disk; records below it are not served any more. With --everything the \
name has to be typed again on a terminal, and elsewhere --yes is needed. There is no way back."
)]
pub(crate) struct TrimArgs {
    /// The stream
    stream: String,
    /// Delete records older than this time (2026-02-03T04:05:06Z) or age (7d)
    #[arg(long, group = "to", value_name = "TIME", value_parser = parse::moment)]
    before: Option<u64>,
    /// Delete records below this ordinal of their lane
    #[arg(long, group = "to", value_name = "N")]
    ordinal: Option<u64>,
    /// Delete every record that is durable now
    #[arg(long, group = "to")]
    everything: bool,
    /// With --everything: do not ask
    #[arg(long, short)]
    yes: bool,
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

/// Arguments of `kera stream compact`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream compact accounts

Streams with --cleanup compact are compacted by themselves once enough is new. This ends the groups that take appends \
and compacts what is durable and older than --min-compaction-lag at once; it returns when that is done.")]
pub(crate) struct CompactArgs {
    /// The stream
    stream: String,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera stream recover`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera stream recover clicks
  kera stream recover clicks --streamlet 2 --accept-loss

A stream with replicas is recovered by itself once a broker is back that has all acknowledged records. \
If none will ever come back, --accept-loss shows the groups concerned, asks, and then keeps the longest replica that is left of each, of a closed group every batch that is whole on a broker, and nothing of one that no broker has. It gives up no group that it did not show: one that comes up later stops its lane again. Ordinals jump past the lost records.")]
pub(crate) struct RecoverArgs {
    /// The stream
    stream: String,
    /// Only this streamlet
    #[arg(long)]
    streamlet: Option<u32>,
    /// Go on without the records that no replica has; there is no way back
    #[arg(long)]
    accept_loss: bool,
    /// With --accept-loss: do not ask; the groups are shown all the same
    #[arg(long, requires = "accept_loss")]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera stream`.
pub(crate) async fn run(command: StreamCommand) -> Outcome {
    match command {
        StreamCommand::Create(args) => create::create(args).await,
        StreamCommand::List(args) => describe::list(args).await,
        StreamCommand::Describe(args) => describe::describe(args).await,
        StreamCommand::Alter(args) => change::alter(args).await,
        StreamCommand::Delete(args) => change::delete(args).await,
        StreamCommand::Trim(args) => change::trim(args).await,
        StreamCommand::Compact(args) => change::compact(args).await,
        StreamCommand::Recover(args) => recover::recover(args).await,
    }
}
