//! `kera bench`: load from this process, measured here and at the broker.

mod report;
mod run;
mod setup;

use clap::{Args, Subcommand};

pub(crate) use run::run;
pub(crate) use setup::is_this_machine;

use crate::connect::ConnectArgs;
use crate::output::OutputArgs;
use crate::parse;
use crate::produce::{BatchingArgs, CompressionArg};
use crate::stream::Ack;

/// `kera bench ...`
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Append as fast as the broker takes it, or at a rate.
    Produce(ProduceArgs),
    /// Read what a stream holds, visiting every record.
    Consume(ConsumeArgs),
    /// Append and read at the same time; time from the one to the other.
    E2e(E2eArgs),
    /// Time from append to acknowledgement at a fixed rate, corrected for coordinated omission.
    Latency(LatencyArgs),
}

/// What every benchmark takes.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// The stream; made if there is none
    pub stream: String,
    /// Records in all
    #[arg(long, short = 'n', value_name = "N", default_value = "5M", value_parser = parse::records)]
    pub records: u64,
    /// Streamlets, if the stream is made
    #[arg(long, value_name = "M", default_value_t = 1)]
    pub streamlets: u32,
    /// Lanes of each streamlet, if the stream is made
    #[arg(long, value_name = "Q", default_value_t = 1)]
    pub lanes: u32,
    /// What an acknowledgement promises, if the stream is made
    #[arg(long, value_enum, default_value_t = Ack::Written)]
    pub ack: Ack,
    /// Do not measure the disk first
    #[arg(long)]
    pub no_disk: bool,
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What is appended.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LoadArgs {
    /// Bytes of a record's value
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub record_size: u32,
    /// Producers, each with connections of its own
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub producers: u32,
    #[command(flatten)]
    pub batching: BatchingArgs,
    /// How batches are compressed
    #[arg(long, value_enum, default_value_t = CompressionArg::None)]
    pub compression: CompressionArg,
}

/// Arguments of `kera bench produce`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera bench produce load --records 10M
  kera bench produce load --records 10M --batch-size 16KiB --producers 4 --ack memory
  kera bench produce load --records 1M --rate 200k/s --json")]
pub(crate) struct ProduceArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Records a second of all producers together; as fast as possible without it
    #[arg(long, value_name = "N/s", value_parser = parse::rate)]
    pub rate: Option<f64>,
}

/// Arguments of `kera bench consume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera bench consume load --records 10M
  kera bench consume load --records 10M --consumers 4")]
pub(crate) struct ConsumeArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Consumers; more than one share the stream with order = none
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub consumers: u32,
}

/// Arguments of `kera bench e2e`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera bench e2e load --records 1M --rate 100k/s
  kera bench e2e load --records 10M --producers 2 --consumers 4")]
pub(crate) struct E2eArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Consumers; more than one share the stream with order = none
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub consumers: u32,
    /// Records a second of all producers together; as fast as possible without it
    #[arg(long, value_name = "N/s", value_parser = parse::rate)]
    pub rate: Option<f64>,
}

/// Arguments of `kera bench latency`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera bench latency load --records 1M --rate 100k/s
  kera bench latency load --records 100k --rate 10k/s --linger 0 --ack synced

Each record is due at a moment that the rate decides. Its latency counts from that moment, not from when it was sent, \
so a stall counts for every record that it held up.")]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Records a second of all producers together
    #[arg(long, value_name = "N/s", default_value = "10k/s", value_parser = parse::rate)]
    pub rate: f64,
}
