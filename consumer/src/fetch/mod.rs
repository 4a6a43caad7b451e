//! Fetches lanes: asks or subscribes, keeps what arrives until it is taken, within a memory limit,
//! and goes on where it was after a lost connection.
//!
//! Replies are handled where they arrive, on the connection's reading task, and the next request
//! leaves from there: the driver task only connects, waits out pauses, and finds owners.

mod arrive;
mod ask;
mod detour;
mod driver;
mod refused;
mod replicas;
mod source;
mod stall;
mod state;
mod trouble;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kera_protocol::frame::{Frame, FrameKind};
use kera_protocol::ids::{LaneKey, Ordinal};
use kera_protocol::v1::{self, Cursor};
use kera_rpc::{Client, ConnectionError, DataConnection, FrameSink};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::batch::{Chunk, SkipHook};
use crate::config::FetchSettings;
use crate::error::ConsumeError;
use crate::slices::LeasedSlices;
use state::State;

/// What to read.
#[derive(Clone, Debug)]
pub(crate) struct SourceSpec {
    /// The owner's name for it,
    pub(crate) tag: u64,
    /// and the life of the membership in which that is its name; 0 without a group.
    pub(crate) life: u64,
    pub(crate) lane: LaneKey,
    pub(crate) from: Cursor,
    /// Exclusive; `Ordinal::MAX`: follow.
    pub(crate) end: Ordinal,
    pub(crate) lane_generation: Option<u32>,
    /// Pushed or asked for.
    pub(crate) push: bool,
    /// Only the records of these are wanted, and all that is passed is told.
    pub(crate) slices: Option<Arc<LeasedSlices>>,
}

/// What [`Fetcher::pop`] found.
#[derive(Debug)]
pub(crate) enum Popped {
    Chunk(Chunk),
    Failed(ConsumeError),
    Empty,
}

/// What to do once the state is unlocked: these calls may come back into the fetcher.
#[derive(Default)]
struct After {
    flush: Vec<Arc<DataConnection>>,
    credits: Vec<(Arc<DataConnection>, v1::CreditRequest)>,
    ready: bool,
    drive: bool,
    /// What was skipped, to be told.
    skips: Vec<(Arc<SkipHook>, ConsumeError)>,
    /// Records that were trimmed before they were read.
    skipped: u64,
    /// Bytes that came from copies.
    from_copies: u64,
}

/// Counts for metrics.
#[derive(Debug, Default)]
pub(crate) struct FetchCounts {
    pub(crate) connects: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// Bytes that came from copies of closed groups, not from owners.
    pub(crate) from_copies: AtomicU64,
}

pub(crate) struct Fetcher {
    client: Client,
    stream: String,
    state: Mutex<State>,
    ready: Notify,
    work: Arc<Notify>,
    driver: Mutex<Option<AbortHandle>>,
    pub(crate) counts: FetchCounts,
}

impl Fetcher {
    /// A fetcher of lanes of `stream`. Must be [closed](Self::close).
    pub(crate) fn start(client: Client, stream: String, settings: &FetchSettings) -> Arc<Self> {
        let fetcher = Arc::new(Self {
            client,
            stream,
            state: Mutex::new(State::new(settings.clone())),
            ready: Notify::new(),
            work: Arc::default(),
            driver: Mutex::default(),
            counts: FetchCounts::default(),
        });
        let task = tokio::spawn(driver::run(Arc::downgrade(&fetcher), fetcher.work.clone()));
        *fetcher.driver.lock() = Some(task.abort_handle());
        fetcher
    }

    /// Starts to read sources. Their keys, in the same order.
    pub(crate) fn add(&self, specs: Vec<SourceSpec>) -> Vec<u64> {
        let mut after = After::default();
        let keys = self.state.lock().add(specs, &mut after);
        self.finish(after);
        keys
    }

    /// Forgets a source and what of it was not taken.
    pub(crate) fn remove(&self, key: u64) {
        let mut after = After::default();
        self.state.lock().remove(key, &mut after);
        self.finish(after);
    }

    /// Reads a source again from `ordinal`, after a pause.
    pub(crate) fn rewind(&self, key: u64, ordinal: Ordinal) {
        let mut after = After::default();
        self.state.lock().rewind(key, ordinal, &mut after);
        self.finish(after);
    }

    /// Takes what arrived first.
    pub(crate) fn pop(&self) -> Popped {
        let mut after = After::default();
        let popped = self.state.lock().pop(&mut after);
        self.finish(after);
        popped
    }

    /// Waits until there may be something to take, or [`wake`](Self::wake) was called.
    pub(crate) async fn readable(&self) {
        self.ready.notified().await;
    }

    /// Wakes who waits in [`readable`](Self::readable).
    pub(crate) fn wake(&self) {
        self.ready.notify_one();
    }

    /// Bytes received and not taken.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.state.lock().buffered()
    }

    /// The durable head of each source as last heard: (tag, head, end).
    pub(crate) fn heads(&self) -> Vec<(u64, Ordinal, Ordinal)> {
        self.state.lock().heads()
    }

    /// Ends all reading.
    pub(crate) fn close(&self) {
        if let Some(driver) = self.driver.lock().take() {
            driver.abort();
        }
        let connections = self.state.lock().close();
        for connection in connections {
            connection.close();
        }
        self.ready.notify_one();
    }

    fn finish(&self, after: After) {
        for (on_skip, error) in after.skips {
            on_skip(&error);
        }
        for (connection, credit) in after.credits {
            // A lost connection takes its subscriptions with it; they are made anew.
            let _ = connection.post(FrameKind::Credit, &credit);
        }
        for connection in after.flush {
            connection.flush();
        }
        if after.from_copies > 0 {
            let count = &self.counts.from_copies;
            count.fetch_add(after.from_copies, Ordering::Relaxed);
        }
        if after.skipped > 0 {
            self.counts
                .skipped
                .fetch_add(after.skipped, Ordering::Relaxed);
            tracing::warn!(
                stream = self.stream,
                skipped = after.skipped,
                "records were trimmed before they were read"
            );
        }
        if after.ready {
            self.ready.notify_one();
        }
        if after.drive {
            self.work.notify_one();
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.close();
    }
}

/// Hands a connection's frames to the fetcher, as long as that lives.
struct Sink {
    fetcher: std::sync::Weak<Fetcher>,
    address: Arc<str>,
    link: u64,
}

impl FrameSink for Sink {
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>) {
        let Some(fetcher) = self.fetcher.upgrade() else {
            return;
        };
        let mut after = After::default();
        fetcher.state.lock().reply(token, reply, &mut after);
        fetcher.finish(after);
    }

    fn push(&self, frame: Frame) {
        let Some(fetcher) = self.fetcher.upgrade() else {
            return;
        };
        let mut after = After::default();
        fetcher
            .state
            .lock()
            .pushed(&self.address, self.link, frame, &mut after);
        fetcher.finish(after);
    }

    fn closed(&self, error: &ConnectionError) {
        let Some(fetcher) = self.fetcher.upgrade() else {
            return;
        };
        tracing::debug!(broker = %self.address, %error, "consumer lost a data connection");
        let mut after = After::default();
        fetcher
            .state
            .lock()
            .link_down(&self.address, self.link, &error.to_string(), &mut after);
        fetcher.finish(after);
    }
}

/// The 16 bytes of a stream's id as frames carry them.
fn stream_bytes(lane: LaneKey) -> Bytes {
    Bytes::copy_from_slice(lane.stream.as_bytes())
}

#[cfg(test)]
mod tests {
    use kera_rpc::ClientOptions;

    use super::*;

    #[tokio::test]
    async fn a_fetcher_that_nobody_holds_is_gone() {
        let client = Client::new("127.0.0.1:1", ClientOptions::default()).unwrap();
        let fetcher = Fetcher::start(client, "s".to_owned(), &FetchSettings::default());
        // Its driver has looked round, and waits for work.
        while !fetcher.state.lock().looking {
            tokio::task::yield_now().await;
        }
        let gone = Arc::downgrade(&fetcher);
        drop(fetcher);
        assert!(gone.upgrade().is_none());
    }
}
