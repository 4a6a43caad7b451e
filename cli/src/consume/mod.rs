//! `kera consume`.

mod alone;
mod ends;
mod format;
mod shared;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kera_consumer::{Batch, ConsumeError, Order};

use crate::connect::ConnectArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, say};
use crate::parse::{self, Start};

use format::{Formatter, OutputFormat, Shown};

/// Arguments of `kera consume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera consume clicks
  kera consume clicks --from latest --follow
  kera consume clicks --from 10m --format jsonl
  kera consume clicks --group billing --follow
  kera consume clicks --group resize --order none --follow
  kera consume clicks --group carts --order key --follow
  kera consume clicks --max 10 --metadata
  kera consume clicks --rack eu-1a
  kera consume clicks --skip-damaged

Without --group every record is read, from --from on, and nothing is remembered. With --group the group's members \
share the stream, and go on where the group was, record by record. Without --follow the command ends at what was there when it began. \
At SIGINT or SIGTERM a group's member commits what it wrote, for at most 2 s, and leaves; at a second one it ends at once.")]
pub(crate) struct ConsumeArgs {
    /// The stream
    stream: String,
    /// The consumer group; its members share the stream
    #[arg(long, short)]
    group: Option<String>,
    /// How a group's members share: whole lanes in order, keys of lanes with each key in order, or ranges in no order
    #[arg(long, value_enum, default_value_t = OrderArg::Lane, requires = "group")]
    order: OrderArg,
    /// Where to start: earliest, latest, ordinal:N, a time (2026-02-03T04:05:06Z) or an age (10m); for a group
    /// only where it has no progress yet
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    from: Start,
    /// Wait for more at the end
    #[arg(long)]
    follow: bool,
    /// Stop after so many records
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// The rack of this machine, as brokers name theirs: closed groups are read from replicas in it
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// Skip batches that cannot be read, and say so: records that do not decode, or take more than
    /// --memory-limit when they are decompressed, and groups of which the file is damaged or gone
    #[arg(long)]
    skip_damaged: bool,
    /// Bytes that are fetched ahead, and that a batch may take when it is decompressed
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse::small_size)]
    memory_limit: u32,
    /// How records are written
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Lines)]
    format: OutputFormat,
    /// With --format lines: put streamlet/lane/ordinal, time and key before each value
    #[arg(long, visible_alias = "partition")]
    metadata: bool,
    /// The text that stands for a null value
    #[arg(long, value_name = "TEXT", default_value = "")]
    null_marker: String,
    /// Only this streamlet's lane; not with --group
    #[arg(long, requires = "lane", conflicts_with = "group")]
    streamlet: Option<u32>,
    /// Only this lane; not with --group
    #[arg(long, requires = "streamlet", conflicts_with = "group")]
    lane: Option<u32>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How a group's members share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// One consumer follows a lane.
    Lane,
    /// Ranges of a lane go to any consumer.
    None,
    /// The keys of a lane go to several consumers, each key in order.
    Key,
}

/// Writes records to standard output and counts them.
struct Sink {
    formatter: Formatter,
    out: Out,
    line: Vec<u8>,
    written: u64,
    most: u64,
}

impl Sink {
    fn new(args: &ConsumeArgs) -> Self {
        Self {
            formatter: Formatter::new(args.format, args.metadata, args.null_marker.clone()),
            out: Out::stdout(),
            line: Vec::new(),
            written: 0,
            most: args.max.unwrap_or(u64::MAX),
        }
    }

    /// True when --max is reached.
    fn is_full(&self) -> bool {
        self.written >= self.most
    }

    /// Writes a batch's records and returns the ordinal after the last one written, which lies
    /// within the batch if --max ended it.
    fn write(&mut self, batch: &Batch) -> Result<u64, Failure> {
        let lane = batch.lane();
        for record in batch.records() {
            let record = record.map_err(|error| batch.undecodable(error))?;
            if self.is_full() {
                return Ok(record.ordinal);
            }
            let headers: Vec<_> = record
                .headers()
                .map(|header| (header.key, header.value))
                .collect();
            self.line.clear();
            self.formatter.write(
                &Shown {
                    streamlet: lane.streamlet.0,
                    lane: lane.lane.0,
                    ordinal: record.ordinal,
                    timestamp_ms: record.timestamp,
                    key: record.key,
                    value: record.value,
                    headers: &headers,
                },
                &mut self.line,
            )?;
            self.out.bytes(&self.line)?;
            self.written += 1;
        }
        Ok(batch.next_ordinal())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush()
    }
}

/// Says what is wrong and returns if reading may go on; otherwise it ends.
fn go_on(stream: &str, error: &ConsumeError) -> Result<(), Failure> {
    if !error.is_retryable() {
        return Err(Failure::message(format!("stream {stream}: {error}")));
    }
    say(&format!("warning: stream {stream}: {error}"));
    Ok(())
}

/// Says which batch is skipped, and why.
fn say_skipped(error: &ConsumeError) {
    match error {
        ConsumeError::Undecodable {
            lane,
            ordinal,
            next,
            error,
        } => say(&format!(
            "warning: skipped ordinals {ordinal} to {} of lane {lane}: {error}",
            next.saturating_sub(1)
        )),
        ConsumeError::Lane { error, .. } => {
            say(&format!("warning: skipped what cannot be read: {error}"));
        }
        other => say(&format!("warning: skipped: {other}")),
    }
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Lane => Order::Lane,
            OrderArg::None => Order::None,
            OrderArg::Key => Order::Key,
        }
    }
}

/// Runs `kera consume`.
pub(crate) async fn run(args: ConsumeArgs) -> Outcome {
    let mut sink = Sink::new(&args);
    // The first contact says clearly when nobody is there.
    args.connect.control().await?;
    if !sink.is_full() {
        match &args.group {
            Some(group) => shared::consume(&args, group, &mut sink).await?,
            None => alone::consume(&args, &mut sink).await?,
        }
    }
    sink.flush()?;
    Ok(ExitCode::SUCCESS)
}
