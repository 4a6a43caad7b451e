//! `kera produce`.

mod input;
mod json;
mod pace;
mod run;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kera_producer::{Compression, ProducerBuilder};

use crate::connect::ConnectArgs;
use crate::parse;

use input::InputFormat;

pub(crate) use pace::Pace;
pub(crate) use run::run;

/// Arguments of `kera produce`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  echo 'hello' | kera produce clicks
  kera produce clicks --from events.log
  kera produce flights --from flights.csv --format csv --key carrier --compression lz4
  kera produce orders --from orders.jsonl --format jsonl --key customer --header source=import
  printf 'alice,1\\nbob,2\\n' | kera produce clicks --key-separator ,
  kera produce clicks --from events.log --rate 1000/s

The command ends when every record is acknowledged. A record that cannot be delivered ends it with status 1, \
and it says how many were acknowledged and how many were not. So does Ctrl-C, with status 130: it waits for what was sent, \
and another one ends that.")]
pub(crate) struct ProduceArgs {
    /// The stream
    stream: String,
    /// The file to read; - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    from: PathBuf,
    /// How the input is cut into records
    #[arg(long, short, value_enum, default_value_t = InputFormat::Lines)]
    format: InputFormat,
    /// The column (csv) or field (jsonl) that is the key
    #[arg(long, short, value_name = "FIELD")]
    key: Option<String>,
    /// What stands between key and value of a line; for a tab $'\t' in most shells
    #[arg(long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// A header for every record; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE", value_parser = parse::header)]
    headers: Vec<(String, String)>,
    /// The text that stands for a null value
    #[arg(long, value_name = "TEXT")]
    null_marker: Option<String>,
    /// At most so many records a second, such as 1000/s
    #[arg(long, value_name = "N/s", value_parser = parse::rate)]
    rate: Option<f64>,
    /// How batches are compressed; the broker stores them as they are
    #[arg(long, value_enum, default_value_t = CompressionArg::None)]
    compression: CompressionArg,
    #[command(flatten)]
    batching: BatchingArgs,
    /// No progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How records become batches.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct BatchingArgs {
    /// Send a batch when it holds this many bytes
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = parse::small_size)]
    pub batch_size: u32,
    /// Send a batch when its first record has waited this long
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = parse::duration)]
    pub linger: std::time::Duration,
}

impl BatchingArgs {
    /// A builder with these settings.
    pub(crate) fn apply(&self, builder: ProducerBuilder) -> ProducerBuilder {
        builder
            .batch_size(self.batch_size as usize)
            .linger(self.linger)
            .memory_limit((64 << 20).max(4 * self.batch_size as usize))
    }
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionArg {
    /// Not at all.
    None,
    /// Fast.
    Lz4,
    /// Small.
    Zstd,
    /// Fast, for older consumers.
    Snappy,
    /// Small and slow, for older consumers.
    Gzip,
}

impl From<CompressionArg> for Compression {
    fn from(arg: CompressionArg) -> Self {
        match arg {
            CompressionArg::None => Compression::None,
            CompressionArg::Lz4 => Compression::Lz4,
            CompressionArg::Zstd => Compression::Zstd,
            CompressionArg::Snappy => Compression::Snappy,
            CompressionArg::Gzip => Compression::Gzip,
        }
    }
}
