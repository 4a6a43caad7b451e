//! What is to be profiled.

use std::path::PathBuf;

use crate::scenario::{Acks, ClientPath, Durability, Keys, Size};

/// A load, and where its profile goes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kera-bench profile
  kera-bench profile --records 2000000 --out /tmp/profile
  kera-bench profile --work consume --batch 128KiB
  kera-bench profile --path kafka --partitions 16 --keys random --out docs/benchmarks

Samples come from Linux's `perf` (Debian: apt-get install linux-perf).")]
pub(crate) struct ProfileArgs {
    /// What the load does; `both` produces and then consumes, a profile each
    #[arg(long, value_enum, default_value_t = Works::Both)]
    pub work: Works,
    /// Through which clients
    #[arg(long, value_enum, default_value_t = Path::Native)]
    pub path: Path,
    /// Records of the load
    #[arg(long, value_name = "N", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    pub records: u64,
    /// Bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub record_bytes: u32,
    /// Size of a batch
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = size)]
    pub batch: Size,
    /// Partitions of the topic, that is lanes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub partitions: u32,
    /// Whether records have keys
    #[arg(long, value_enum, default_value_t = Keys::None)]
    pub keys: Keys,
    /// What an acknowledgement promises
    #[arg(long, value_enum, default_value_t = Durability::Written)]
    pub ack: Durability,
    /// Samples a second
    #[arg(long, value_name = "HZ", default_value_t = 1999, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    pub frequency: u32,
    /// Where the flame graphs and the tables go; below the build's folder without it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A `kera` binary with frame pointers and names; built without it
    #[arg(long, value_name = "PATH")]
    pub kera: Option<PathBuf>,
    /// Where the broker keeps its data, on a disk; below the build's folder without it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Works {
    Produce,
    Consume,
    Both,
}

/// Which clients make the load.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Path {
    /// Kera's own
    Native,
    /// librdkafka
    Kafka,
}

impl From<Path> for ClientPath {
    fn from(path: Path) -> Self {
        match path {
            Path::Native => Self::Native,
            Path::Kafka => Self::Kafka,
        }
    }
}

impl ProfileArgs {
    /// Kafka's producers always ask for all.
    pub(crate) const ACKS: Acks = Acks::All;
}

fn size(text: &str) -> Result<Size, String> {
    Size::parse(text).ok_or_else(|| format!("`{text}` is no size such as 16KiB"))
}
