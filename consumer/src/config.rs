//! Settings that consumers and readers share.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{self, Cursor};
pub use kera_rpc::Start;

use crate::batch::{SkipHook, Unpacking};

/// How a group shares a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// One consumer follows a lane: records of a lane are seen in order.
    #[default]
    Lane,
    /// Ranges of a lane go to any consumer: consumers may outnumber lanes.
    None,
    /// The keys of a lane go to several consumers, so that these may outnumber lanes (64 to a lane at most), and the
    /// records of a key are seen in order. Each of them reads the lane and passes over the keys of others: for records that
    /// take long to process.
    Key,
}

impl From<Order> for v1::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Lane => v1::Order::Lane,
            Order::None => v1::Order::None,
            Order::Key => v1::Order::Key,
        }
    }
}

/// Where a reader, or a member of a group, goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Looked up by the broker.
    To(Start),
    /// A position stored earlier.
    Cursor(Cursor),
}

impl From<Start> for Seek {
    fn from(start: Start) -> Self {
        Self::To(start)
    }
}

impl From<Cursor> for Seek {
    fn from(cursor: Cursor) -> Self {
        Self::Cursor(cursor)
    }
}

/// A part of a lane, for [`ReaderBuilder::ranges`](crate::ReaderBuilder::ranges).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRange {
    /// The streamlet.
    pub streamlet: u32,
    /// Its lane.
    pub lane: u32,
    /// Where reading begins: a position that was looked up or stored earlier.
    pub from: Cursor,
    /// The first ordinal that is not read. `None`: it goes on for ever.
    pub end: Option<Ordinal>,
}

/// How batches come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// The broker pushes as long as there is credit: lowest latency. Ranges of a lane, which are
    /// short, are asked for all the same.
    #[default]
    Push,
    /// The client asks, and the broker answers when there is something (long poll).
    Pull,
}

/// How much is fetched ahead.
#[derive(Clone)]
pub(crate) struct FetchSettings {
    /// Closed groups are read from copies in this rack.
    pub(crate) rack: Option<Arc<str>>,
    pub(crate) fetch: Fetch,
    /// Bytes received and not yet delivered, and those that brokers may push.
    pub(crate) memory_limit: usize,
    /// Bytes of one answer.
    pub(crate) fetch_bytes: usize,
    /// How long a request waits at the broker.
    pub(crate) poll_wait: Duration,
    /// Batches that cannot be read are skipped, and this is told of them.
    pub(crate) on_skip: Option<Arc<SkipHook>>,
}

impl FetchSettings {
    /// What one batch takes when it is decompressed keeps to the memory limit as well.
    pub(crate) fn unpacking(&self) -> Unpacking {
        Unpacking {
            limit: self.memory_limit,
            on_skip: self.on_skip.clone(),
        }
    }
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self {
            rack: None,
            fetch: Fetch::default(),
            memory_limit: 32 << 20,
            fetch_bytes: 256 << 10,
            poll_wait: Duration::from_secs(5),
            on_skip: None,
        }
    }
}
