//! The connection to one owner of streamlets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kera_rpc::DataConnection;
use parking_lot::Mutex;

pub(crate) struct Link {
    pub(crate) address: String,
    pub(crate) state: Mutex<LinkState>,
    /// Batches submitted and not answered.
    pub(crate) in_flight: AtomicUsize,
    /// Why there is no connection; `None` while there is one.
    pub(crate) trouble: Mutex<Option<String>>,
}

#[derive(Default)]
pub(crate) struct LinkState {
    pub(crate) connection: Option<Arc<DataConnection>>,
    pub(crate) connecting: bool,
    /// Failed attempts since the last success.
    pub(crate) attempt: u32,
    pub(crate) not_before: Option<Instant>,
    /// Frames received when last looked at, and since when there are no more although batches wait.
    pub(crate) heard: u64,
    pub(crate) silent_since: Option<Instant>,
}

impl Link {
    pub(crate) fn new(address: &str) -> Arc<Self> {
        Arc::new(Self {
            address: address.to_owned(),
            state: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            trouble: Mutex::default(),
        })
    }

    /// The connection, if there is one that lives.
    pub(crate) fn connection(&self) -> Option<Arc<DataConnection>> {
        self.state
            .lock()
            .connection
            .as_ref()
            .filter(|connection| !connection.is_closed())
            .cloned()
    }

    /// True if batches wait for the broker's answer, and nothing has come from it for `limit`; then the
    /// time begins anew.
    pub(crate) fn was_silent(&self, now: Instant, limit: Duration) -> bool {
        let mut state = self.state.lock();
        let Some(connection) = &state.connection else {
            return false;
        };
        let heard = connection.received_frames();
        let since = match state.silent_since {
            Some(since) if heard == state.heard && !self.is_idle() => since,
            _ => {
                state.heard = heard;
                state.silent_since = Some(now);
                return false;
            }
        };
        let silent = now.duration_since(since) >= limit;
        if silent {
            state.silent_since = Some(now);
        }
        silent
    }

    /// True if nothing is under way to the broker.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }
}

/// Connections to flush once no slot is locked, each once.
#[derive(Default)]
pub(crate) struct Flushes(Vec<Arc<DataConnection>>);

impl Flushes {
    pub(crate) fn add(&mut self, connection: Option<Arc<DataConnection>>) {
        if let Some(connection) = connection
            && !self.0.iter().any(|known| Arc::ptr_eq(known, &connection))
        {
            self.0.push(connection);
        }
    }

    pub(crate) fn run(self) {
        for connection in self.0 {
            connection.flush();
        }
    }
}
