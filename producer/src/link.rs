//! The connection to one owner of streamlets, and what comes back over it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kera_protocol::frame::Frame;
use kera_rpc::{ConnectionError, DataConnection, FrameSink};
use parking_lot::Mutex;

use crate::shared::Shared;

pub(crate) struct Link {
    pub(crate) address: String,
    pub(crate) state: Mutex<LinkState>,
    /// Batches submitted and not answered.
    pub(crate) in_flight: AtomicUsize,
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

/// Takes a link's replies. It does not keep the producer alive.
pub(crate) struct LinkSink {
    pub(crate) shared: Weak<Shared>,
    pub(crate) link: Weak<Link>,
}

impl FrameSink for LinkSink {
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>) {
        if let Some(link) = self.link.upgrade() {
            link.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.replied(token, reply);
        }
    }

    fn push(&self, _frame: Frame) {
        // A producer subscribes to nothing.
    }

    fn drained(&self) {
        if let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade())
            && shared.settings.linger.is_zero()
            && link.is_idle()
        {
            shared.send_open_batches();
        }
    }

    fn closed(&self, error: &ConnectionError) {
        let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade()) else {
            return;
        };
        tracing::debug!(broker = %link.address, %error, "producer lost its connection");
        let dead = {
            let mut state = link.state.lock();
            // A new connection may have taken its place already.
            state
                .connection
                .take_if(|connection| connection.is_closed())
        };
        drop(dead);
        // Its streamlets may have another owner soon.
        shared.want_meta.store(true, Ordering::Relaxed);
        shared.wake_driver();
    }
}
