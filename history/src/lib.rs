//! The history checker: what clients did and saw, and whether a broker that keeps its promises could
//! have shown it to them.
//!
//! A test or a bench makes a [`Recorder`], and its producers and consumers record an [`Event`] for
//! everything they do or see. Afterwards [`check()`] reads the history once and reports every
//! [`Anomaly`]: records lost, duplicated, reordered, unseen, never sent, above the durable head,
//! leased twice, never leased, and more. Each [`Anomaly`] has a [`Class`] if it is one of those that
//! Jepsen's workload for Kafka looks for, so that results can be compared.
//!
//! # What a recorder must observe
//!
//! The checker never reports an anomaly that a correct broker could cause, as long as each client
//! keeps to these rules. They all come down to "record claims about the past after, and intentions
//! before, the call":
//!
//! - [`Event::Send`] before the record is handed to the client library; a producer numbers its
//!   records 0, 1, 2, ... in the order in which it sends them.
//! - [`Event::Ack`], [`Event::AckedUnplaced`] and [`Event::Failed`] after the outcome is known.
//! - [`Event::LeaseGranted`] before the first [`Event::Read`] under the lease, every `Read` before
//!   the commit that covers it is asked for, and [`Event::LeaseEnded`] *before* the lease is given
//!   back.
//! - [`Event::Batched`] before the sends, and [`Event::Polled`] before the reads, of one call. They are
//!   not needed; with them the report says whether an anomaly shows within one call.
//! - Calls whose duration matters carry `asked`, taken from [`Recorder::now`] before the call.
//!
//! # Memory
//!
//! The checker streams: a history on disk is read line by line. It keeps about 12 bytes for each
//! record sent, 8 for each ordinal seen, 64 for each lease, and for each reader a set of ranges that
//! is small as long as reading is mostly contiguous; ordered groups whose reads carry a key cost about
//! 40 bytes for each distinct (producer, key). Ten million records on a few lanes and two groups
//! take about 200 MB, and 8 s when built for release.
//!
//! ```
//! use kera_history::{check, Event, Expectations, History, Lane, Record, Recorder};
//!
//! let recorder = Recorder::in_memory();
//! let record = Record { producer: 0, seq: 0 };
//! let lane = Lane { stream: 0, streamlet: 0, lane: 0 };
//! recorder.record(Event::Send { record, stream: 0, streamlet: Some(0), lane: None, key: None });
//! recorder.record(Event::Ack { record, lane, ordinal: 0 });
//! let history = recorder.finish().unwrap();
//!
//! // Nobody read the record, although everybody claims to be done.
//! let report = check(&history, &Expectations { complete: true, ..Expectations::default() }).unwrap();
//! assert_eq!(report.counts.lost(), 1);
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod anomaly;
mod check;
mod event;
mod expectations;
mod history;
pub mod isolation;
pub mod payload;
mod ranges;
mod recorder;
mod records;
mod report;
mod slots;

pub use anomaly::{Anomaly, AnomalyKind, Class, HeadBreach, OrderBreach, PhantomReason, Scope};
pub use check::{Checker, check};
pub use event::{Entry, Event, FailureOutcome, Lane, LeaseRef, NamedThing, Place, Reader, Record};
pub use expectations::{AckPolicy, Expectations, Fault, Order, Redelivery};
pub use history::{FORMAT_VERSION, Header, History, HistoryError};
pub use recorder::Recorder;
pub use report::{Counts, Report};
