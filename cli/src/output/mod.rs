//! What commands print: tables for people, JSON for programs.

mod colour;
mod columns;
mod id;
mod number;
mod paragraph;
mod plain;
mod stdout;
mod steps;
mod table;
mod width;

pub(crate) use colour::{marked, of_state, verdict};
pub(crate) use columns::{columns_of, cut, padded};
pub(crate) use id::uuid;
pub(crate) use number::{ago, count, lag, per_second, plural, rounded_bytes, short_time};
pub(crate) use paragraph::{fact, paragraph, say};
pub(crate) use plain::plain;
pub(crate) use stdout::{Out, next, print_bytes, print_json, print_line};
pub(crate) use steps::{Steps, end};
pub(crate) use table::Table;
use width::width;

use clap::Args;
pub(crate) use kera_broker::calendar::{parse_rfc3339, rfc3339};
pub(crate) use kera_broker::clock::wall_ms as now_ms;

/// How a list or a description is printed.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}
